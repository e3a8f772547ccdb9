# Standbys: their engine follows the journal, so that index scans there are
# answered by the graph and see inserts, deletes, VACUUM, REINDEX and DROP; lost
# sidecars, cascading, recovery conflicts, promotion.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $options = 'WITH (max_degree = 32, build_list_size = 48)';
my $primary = new_node('primary', conf => <<CONF);
max_wal_senders = 5
hot_standby = on
max_standby_streaming_delay = 1s
wal_receiver_status_interval = 1s
navis.checkpoint_timeout = 1s
CONF
$primary->append_conf('postgresql.conf', "wal_level = replica\n");
$primary->append_conf('pg_hba.conf', "local replication all trust\n");
$primary->start;
make_helpers($primary);
load_words($primary, 'words', 3000);
query_words($primary, 'queries', 5001, 700);
$primary->safe_psql('postgres', "CREATE INDEX words_v ON words USING navis (v) $options");

sub new_standby
{
	my ($from, $name, $backup) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$from->backup($backup);
	$node->init_from_backup($from, $backup, has_streaming => 1);
	$node->start;
	return $node;
}

sub catch_up
{
	my ($node) = @_;

	$primary->wait_for_catchup($node, 'replay', $primary->lsn('insert'));
	return;
}

# Every row of queries in a range is found by its own vector in the words:
# "rows found|answered by the graph".
sub finds
{
	my ($node, $from, $to, $table) = @_;

	$table //= 'words';
	return $node->safe_psql('postgres', <<SQL) =~ s/\n/|/r;
SET enable_seqscan = off;
SET navis.casr = off;
SET navis.search_list_size = 300;
SELECT count(*) FROM (SELECT * FROM queries WHERE id BETWEEN $from AND $to) q,
  LATERAL (SELECT id, v <-> q.v AS d FROM $table ORDER BY v <-> q.v LIMIT 1) s WHERE s.d = 0 AND s.id = q.id;
SELECT mode FROM navis_last_scan();
SQL
}

sub same_rows
{
	my ($node, $name) = @_;
	my $q = '(SELECT v FROM queries WHERE id = 5001)';
	my ($scan, $mode) = complete_scan($node, 'words', $q);

	is($scan, table_rows($node, 'words', $q), "$name: a complete scan has the table's rows");
	like($mode, qr/^graph/, "$name: it began in the graph");
	return;
}

my $standby = new_standby($primary, 'standby', 'b1');
catch_up($standby);
ok(wait_ready($standby, 'words_v'), 'the standby has a graph');
is(answers($standby, 'words', 'queries', 10), answers($primary, 'words', 'queries', 10),
	'it answers as the primary does, from the graph');
$primary->safe_psql('postgres', 'CREATE UNLOGGED TABLE unlogged (v real[]); CREATE INDEX unlogged_v ON unlogged USING navis (v)');
catch_up($standby);
is($standby->safe_psql('postgres', 'SELECT indexrelname, state, searches > 0, vertices FROM navis_stat_indexes ORDER BY 1'),
	"unlogged_v|not readable||\nwords_v|ready|t|3000", 'its statistics can be read');
is($standby->safe_psql('postgres', 'SELECT state, searches > 0 FROM navis_stat_worker'), 'running|t', 'and those of its engine');
$primary->safe_psql('postgres', 'DROP TABLE unlogged');

# How far its engine is behind.
my $lag = 'SELECT lag_bytes, followed_lsn = journal_lsn, journal_lsn <= replay_lsn, unlinked_rows FROM navis_stat_standby';
$standby->append_conf('postgresql.conf', "navis.collect_interval = 3600\n");
$standby->reload;
catch_up($standby);
ok(wait_until(sub { wait_ready($standby, 'words_v'); $standby->safe_psql('postgres', $lag) eq '0|t|t|0' }, 20, 500), 'nothing is behind');
my $row = 9000;
# A helper that was started before may follow, too.
ok( wait_until(
		sub {
			$row++;
			$primary->safe_psql('postgres', "INSERT INTO words SELECT $row, word, v FROM words WHERE id = 5");
			catch_up($standby);
			return $standby->safe_psql('postgres', $lag) =~ /^[1-9]\d*\|f\|t\|0$/;
		}),
	'rows that were replayed and not followed are a lag');
is(finds($standby, 5001, 5001), '0|graph', 'the next scan follows');
ok(wait_until(sub { $standby->safe_psql('postgres', $lag) eq '0|t|t|0' }), 'then there is none');
$primary->safe_psql('postgres', 'DELETE FROM words WHERE id > 9000');
is($primary->safe_psql('postgres', 'SELECT count(*) FROM navis_stat_standby'), 0, 'a primary has none to tell of');
$standby->append_conf('postgresql.conf', "navis.collect_interval = 1\n");
$standby->reload;

# The engine's checkpoints know of no WAL that a crash could take back.
my $published = "(SELECT published_lsn FROM navis_index_info('words_v'))";
my $before = $primary->safe_psql('postgres', "SELECT $published");
my $writer = session($primary);
# Nobody flushes WAL for a transaction that is open, and the WAL writer sleeps.
$primary->append_conf('postgresql.conf', "wal_writer_delay = 10s\n");
$primary->reload;
$writer->query_safe("BEGIN; INSERT INTO words SELECT 9100 + id, word, v FROM words WHERE id <= 5");
ok(wait_until(sub { $primary->safe_psql('postgres', "SELECT $published > '$before'") eq 't' }), 'a checkpoint knows of uncommitted rows');
is($primary->safe_psql('postgres', "SELECT pg_current_wal_flush_lsn() >= $published"), 't', 'their WAL was flushed first');
$primary->append_conf('postgresql.conf', "wal_writer_delay = 200ms\n");
$primary->reload;
catch_up($standby);
$before = $standby->safe_psql('postgres', "SELECT $published");
is(finds($standby, 5001, 5001), '0|graph', 'the standby follows them');
ok(wait_until(sub { $standby->safe_psql('postgres', "SELECT $published > '$before'") eq 't' }), 'and its checkpoint knows of them');
is($standby->safe_psql('postgres', "SELECT min_recovery_end_lsn >= $published FROM pg_control_recovery()"), 't',
	'which it is not consistent before');
$writer->query_safe('ROLLBACK');
$writer->quit;

# Inserts, in a session that has searched before and in new ones.
my $open = session($standby);
$open->query_safe('SET enable_seqscan = off; SET navis.casr = off; SET navis.search_list_size = 300');
my $near = 'SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = %d) LIMIT 1';
my $mode = 'SELECT mode FROM navis_last_scan()';
isnt($open->query_safe(sprintf $near, 5010), '5010', 'a row that is not there yet');
$primary->safe_psql('postgres', "INSERT INTO words SELECT id, 'n' || id, v FROM queries WHERE id BETWEEN 5001 AND 5100");
catch_up($standby);
is($open->query_safe(sprintf $near, 5010), '5010', 'an inserted row is found on the standby');
is($open->query_safe($mode), 'graph', 'by the graph');
is(finds($standby, 5001, 5100), '100|graph', 'all of them, by another session');
# a row that is not committed, then rolled back
$writer = session($primary);
$writer->query_safe("BEGIN; INSERT INTO words SELECT id, 'n' || id, v FROM queries WHERE id = 5101");
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
catch_up($standby);
isnt($open->query_safe(sprintf $near, 5101), '5101', 'an uncommitted row is not seen');
$writer->query_safe('ROLLBACK');
$writer->quit;
same_rows($standby, 'inserts');

# Deletes, VACUUM, entries used again; several tail pages.
$primary->safe_psql('postgres', 'DELETE FROM words WHERE id BETWEEN 5051 AND 5100 OR id % 3 = 0 AND id < 5000');
catch_up($standby);
is(finds($standby, 5001, 5050), '50|graph', 'rows that are left after a DELETE');
is($standby->safe_psql('postgres', "SELECT count(*) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5060) LIMIT 50) s WHERE id BETWEEN 5051 AND 5100"),
	0, 'deleted ones are not returned');
same_rows($standby, 'deletes');
ok(vacuum($primary, 'words', 'words_v'), 'VACUUM on the primary');
ok(vacuum($primary, 'words', 'words_v'), 'again: entries are free');
$primary->safe_psql('postgres', "INSERT INTO words SELECT id, 'n' || id, v FROM queries WHERE id BETWEEN 5051 AND 5700");
catch_up($standby);
is($open->query_safe(sprintf $near, 5333), '5333', 'a row in an entry that was free');
is(finds($standby, 5001, 5700), '700|graph', 'all rows after VACUUM and reuse');
same_rows($standby, 'vacuum');
ok(wait_until(sub { $standby->safe_psql('postgres', "SELECT deleted_vertices + freed_vertices > 0 FROM navis_index_info('words_v')") eq 't' }),
	'the engine hears of deletions');

# A restart with the sidecar, and one without.
$primary->safe_psql('postgres', "UPDATE words SET v = (SELECT v FROM queries WHERE id = 5700) WHERE id = 1");
$open->quit;
$standby->restart;
is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'still a standby');
catch_up($standby);
is(finds($standby, 5001, 5699), '699|graph', 'restarted: from the graph at once');
$standby->stop;
PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $standby->data_dir . '/navis');
$standby->start;
is(finds($standby, 5001, 5010) =~ s/\|.*//r, '10', 'without its sidecar: right answers');
ok(wait_ready($standby, 'words_v'), 'its helper builds the graph again');
is(finds($standby, 5001, 5699), '699|graph', 'and it answers');
same_rows($standby, 'rebuilt');

# A cascading standby, an index made meanwhile, REINDEX, DROP.
my $second = new_standby($standby, 'second', 'b2');
$primary->safe_psql('postgres', <<SQL);
CREATE TABLE others AS SELECT id, v FROM words;
CREATE INDEX others_v ON others USING navis (v) $options;
REINDEX INDEX words_v;
SQL
catch_up($standby);
$standby->wait_for_catchup($second, 'replay', $standby->lsn('replay'));
is(finds($standby, 5001, 5005) =~ s/\|.*//r, '5', 'after REINDEX: right answers');
ok(wait_ready($_, 'others_v'), $_->name . ': an index made meanwhile gets its graph')
  && ok(wait_ready($_, 'words_v'), $_->name . ': and so does one made anew')
  foreach ($standby, $second);
is(finds($second, 5001, 5699), '699|graph', 'the cascading standby answers from its graph');
# A page that does not read any more: the statistics of the others can be read.
$primary->safe_psql('postgres', 'CHECKPOINT'); # its WAL is not replayed again
catch_up($standby);
$standby->wait_for_catchup($second, 'replay', $standby->lsn('replay'));
my $file = $second->data_dir . '/' . $second->safe_psql('postgres', "SELECT pg_relation_filepath('others_v')");
$second->stop;
open my $pages, '+<:raw', $file or die "$file: $!";
seek $pages, -2, 2;
print $pages "\0\0";
close $pages or die $!;
$second->start;
ok(wait_ready($second, 'words_v'), 'a damaged journal page: another index is ready');
my ($rc, $out, $err) = $second->psql('postgres', "SELECT indexrelname, journal_lsn IS NULL FROM navis_stat_standby ORDER BY 1");
is("$rc|$out", "0|others_v|t\nwords_v|f", 'both have their statistics');
like($err, qr/WARNING:  block \d+ of index "others_v" is not a navis journal page$/m, 'with a warning');
$primary->safe_psql('postgres', "INSERT INTO others SELECT id + 10000, v FROM others WHERE id < 10; DROP INDEX words_v;");
catch_up($standby);
ok(wait_until(sub { sidecars($standby) == 1 }), 'DROP: the sidecars of the old indexes go away') or diag(join ' ', sidecars($standby));
$primary->safe_psql('postgres', "CREATE INDEX words_v ON words USING navis (v) $options");
catch_up($standby);
ok(wait_ready($standby, 'words_v'), 'made again');

# A recovery conflict ends a query, nothing else.
my $reader = session($standby);
$reader->query_safe('SET enable_seqscan = off; BEGIN; DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5003); FETCH 3 FROM c');
$primary->safe_psql('postgres', 'DELETE FROM words WHERE id BETWEEN 100 AND 400');
vacuum($primary, 'words', 'words_v');
catch_up($standby);
is(finds($standby, 5001, 5010), '10|graph', 'after a recovery conflict the graph answers');
same_rows($standby, 'conflict');
# The conflict may have ended the session as well.
eval { $reader->query('ROLLBACK'); $reader->quit; 1 } or eval { $reader->{run}->kill_kill; };

# Promotion under load: what was replayed is found, and what is written then.
$open = session($standby);
$open->query_safe('SET enable_seqscan = off; SET navis.casr = off; SET navis.search_list_size = 300');
is($open->query_safe(sprintf $near, 5333), '5333', 'a session on the standby');
# Entries that are freed by replay, and that nothing else will tell the engine of.
$primary->safe_psql('postgres', 'DELETE FROM words WHERE id BETWEEN 500 AND 600');
vacuum($primary, 'words', 'words_v') for 1 .. 3;
catch_up($standby);
$writer = session($primary);
$writer->query_until(qr/writing/, <<SQL);
\\echo writing
INSERT INTO words SELECT id + 20000, 'p', v FROM queries ORDER BY id;
UPDATE words SET word = word || 'x' WHERE id % 5 = 0;
INSERT INTO words SELECT id + 40000, 'p', v FROM queries ORDER BY id;
SQL
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
same_rows($standby, 'promoted');
# The writer's copies of the row may have come as well.
like($open->query_safe(sprintf $near, 5333), qr/^[24]?5333$/, 'a session from before the promotion');
$standby->safe_psql('postgres', "INSERT INTO words SELECT id + 30000, 'q', array(SELECT x * 1.5 FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n)::real[] FROM queries WHERE id <= 5100");
is($open->query_safe('SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 35050) LIMIT 1'), '35050', 'it sees what is written now');
is($open->query_safe($mode), 'graph', 'by the graph');
same_rows($standby, 'written after promotion');
ok(vacuum($standby, 'words', 'words_v'), 'VACUUM works there');
same_rows($standby, 'vacuumed after promotion');
is($standby->safe_psql('postgres', "SELECT count(*) FROM navis_check('words_v') WHERE kind = 'sidecar'"), '0',
	'the engine holds no row that the journal has not');
eval { $writer->quit; };
$open->quit;
$_->stop('fast') foreach ($second, $standby, $primary);
done_testing();
