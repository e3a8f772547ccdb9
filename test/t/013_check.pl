# navis_check: a sound index has no problems, also under load, on a standby and
# without an engine; each kind of damage is told; repair mends it.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Pages are read from the file; no helper whose transactions hold VACUUM back.
my $node = new_node('check', conf => <<CONF);
navis.cache_size = 0
navis.collect_interval = 3600
max_wal_senders = 5
hot_standby = on
CONF
$node->append_conf('pg_hba.conf', "local replication all trust\n");
$node->start;
make_helpers($node);
load_words($node, 'words', 3000);
my $with = 'WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32)';
$node->safe_psql('postgres', "CREATE INDEX words_v ON words USING navis (v) $with");
my $oid = $node->safe_psql('postgres', "SELECT 'words_v'::regclass::oid");
my $columns = "severity, kind, element IS NOT NULL, vertex IS NOT NULL, detail, repaired";

# Problems but for rows out of reach of the entrance: those cost recall only.
sub problems
{
	my ($repair, $on) = @_;

	return ($on // $node)->safe_psql('postgres',
		"SELECT $columns FROM navis_check('words_v', $repair) WHERE kind <> 'reach'");
}

sub kinds
{
	return $node->safe_psql('postgres',
		"SELECT DISTINCT severity, kind FROM navis_check('words_v') WHERE kind <> 'reach' ORDER BY 2");
}

# Overwrites n bytes of a file of the newest graph, also of one that an earlier
# REINDEX has left for the collector.
sub spoil
{
	my ($file, $at, $n) = @_;

	for my $dir (glob($node->data_dir . '/navis/[0-9]*/*'))
	{
		next unless slurp_file("$dir/navis.sidecar") =~ /^index $oid$/m;
		my ($graph) = sort { substr($b, 1) <=> substr($a, 1) } map { s{.*/}{}r } glob("$dir/g*");

		open my $f, '+<', "$dir/$graph/$file" or die "$dir/$graph/$file: $!";
		binmode $f;
		seek $f, $at, 0;
		print $f join '', map { chr(int(rand(256))) } 1 .. $n;
		close $f or die $!;
	}
	return;
}

# Entry n of the journal's first page: 20 bytes, behind the header of the page:
# hash 8, generation 4, TID 6, flags 2.
sub patch_journal
{
	my ($file, $offset, $bytes) = @_;

	open my $f, '+<:raw', $file or die "$file: $!";
	seek $f, 8192 + 24 + $offset, 0;
	print $f $bytes;
	close $f or die $!;
	return;
}

sub patch_flags
{
	my ($file, $n, $flags) = @_;

	patch_journal($file, 20 * $n + 18, pack('S', $flags));
	return;
}

sub patch_generation
{
	my ($file, $n) = @_;

	patch_journal($file, 20 * $n + 8, pack('L', 77));
	return;
}

# The bytes of an entry, and the id of its row.
sub entry
{
	my ($file, $n) = @_;

	open my $f, '<:raw', $file or die "$file: $!";
	seek $f, 8192 + 24 + 20 * $n, 0;
	read $f, my $bytes, 20;
	close $f or die $!;
	my ($high, $low, $place) = unpack 'x12SSS', $bytes;
	return ($bytes, $node->safe_psql('postgres', "SELECT id FROM words WHERE ctid = '(" . ($high * 65536 + $low) . ",$place)'"));
}

# --- sound
is($node->safe_psql('postgres', "SELECT * FROM navis_check('words_v')"), '', 'a new index has no problems');
$node->safe_psql('postgres', <<SQL);
INSERT INTO words SELECT id + 10000, word, v FROM words WHERE id % 10 = 0;
INSERT INTO words VALUES (20001, 'none', NULL);
UPDATE words SET v = (SELECT array_agg(x + 0.5) FROM unnest(v) x) WHERE id % 7 = 0;
UPDATE words SET word = word || '!' WHERE id % 11 = 0;
DELETE FROM words WHERE id % 13 = 0;
BEGIN; INSERT INTO words SELECT id + 30000, word, v FROM words WHERE id % 17 = 0; ROLLBACK;
SQL
is(problems('false'), '', 'none after changes');
vacuum($node, 'words', 'words_v');
is(problems('false'), '', 'none after VACUUM');
is(problems('true'), '', 'nothing to be repaired');

# --- beside writers
my $writer = session($node);
$writer->query_until(qr/go/, <<SQL);
\\echo go
DO \$\$ BEGIN FOR i IN 1 .. 40 LOOP
  INSERT INTO words SELECT 40000 + i * 100 + n, 'w', (SELECT array_agg(x + i) FROM unnest(v) x) FROM words, generate_series(1, 20) n WHERE id = 1;
  DELETE FROM words WHERE id IN (40000 + i * 100 - 90, 40000 + i * 100 - 95);
  COMMIT;
END LOOP; END \$\$;
SQL
is(problems('false'), '', "none beside a writer, look $_") for 1 .. 5;
$writer->quit;
is(problems('false'), '', 'none afterwards');

# --- who may, and what
my ($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM navis_check('words_pkey')");
like($err, qr/ERROR:  "words_pkey" is not a navis index/, 'not a navis index');
($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM navis_check('words')");
like($err, qr/ERROR:  "words" is not a navis index/, 'not an index');
($rc, $out, $err) = $node->psql('postgres', "CREATE ROLE other; SET ROLE other; SELECT * FROM navis_check('words_v')");
like($err, qr/ERROR:  must be owner of index words_v/, 'only the owner');
($rc, $out, $err) = $node->psql('postgres', "BEGIN READ ONLY; SELECT * FROM navis_check('words_v', true)");
like($err, qr/ERROR:  cannot execute navis_check\(\) with repair in a read-only transaction/, 'no repair in a read-only transaction');

# An expression is evaluated as the table's owner.
$node->safe_psql('postgres', <<SQL);
CREATE ROLE owner;
GRANT CREATE ON SCHEMA public TO owner;
CREATE TABLE others (id int, v real[]);
ALTER TABLE others OWNER TO owner;
CREATE FUNCTION me(real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS
  'BEGIN IF current_user <> ''owner'' THEN RAISE ''run as %'', current_user; END IF; RETURN \$1; END';
SET ROLE owner;
INSERT INTO others SELECT i, ARRAY[i, 1, 2]::real[] FROM generate_series(1, 50) i;
CREATE INDEX others_v ON others USING navis (me(v)) WHERE id > 10;
SQL
is($node->safe_psql('postgres', "SELECT * FROM navis_check('others_v')"), '', 'expressions and predicates, as the owner');

# --- the journal
# Rows that were written while the index was not looked at have no entry.
$node->safe_psql('postgres', <<SQL);
UPDATE pg_index SET indisready = false WHERE indexrelid = 'words_v'::regclass;
INSERT INTO words SELECT 60000 + id, word, v FROM words WHERE id IN (1, 2, 3);
UPDATE pg_index SET indisready = true WHERE indexrelid = 'words_v'::regclass;
SQL
like(problems('false'), qr/^(error\|journal\|f\|f\|row \(\d+,\d+\) of the table has no entry\|f\n?){3}$/, 'rows without entries');
like(problems('true'), qr/^(error\|journal\|f\|f\|row \(\d+,\d+\) of the table has no entry\|t\n?){3}$/, 'they are entered');
is(problems('false'), '', 'and have entries then');
my ($scan, $mode) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 1)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 1)'), 'a scan finds all');

# Entries of rows that VACUUM removed meanwhile lead nowhere.
vacuum($node, 'words', 'words_v');
$node->safe_psql('postgres', 'DELETE FROM words WHERE id IN (60001, 60002)');
$node->safe_psql('postgres', "UPDATE pg_index SET indisready = false WHERE indexrelid = 'words_v'::regclass");
$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP on) words');
$node->safe_psql('postgres', "UPDATE pg_index SET indisready = true WHERE indexrelid = 'words_v'::regclass");
like(problems('false'), qr/^(error\|journal\|t\|f\|entry of row \(\d+,\d+\), where there is none; REINDEX\|f\n?){2}$/, 'entries without rows');
$node->safe_psql('postgres', 'REINDEX INDEX words_v');
is(problems('false'), '', 'REINDEX makes it good');

# Rows that only the engine had: their entries say "deleted".  An entry of a row
# that is merely dead is no problem.
$node->safe_psql('postgres', 'DELETE FROM words WHERE id = 38');
is(problems('false'), '', 'dead rows have their entries until VACUUM');
my $journal = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('words_v')");
$node->stop;
patch_flags($journal, 10, 2);
patch_flags($journal, 20, 2);
$node->start;
like(problems('false'), qr/^(error\|journal\|f\|f\|row \(\d+,\d+\) of the table has no entry\|f\n?){2}$/, 'entries that were lost');
like(problems('true'), qr/^(error\|journal\|f\|f\|row \(\d+,\d+\) of the table has no entry\|t\n?){2}$/, 'their rows are entered');
is(problems('false'), '', 'and have entries then');
($scan, $mode) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 1)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 1)'), 'a scan finds all');
# The generation is another one: the engine's row is not this one.
$node->append_conf('postgresql.conf', "shared_buffers = 1MB\n");
$node->stop;
patch_generation($journal, 30);
$node->start;
is(problems('false'), '', 'what the engine has of another generation is fetched again');
($scan, $mode) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 1)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 1)'), 'and a scan finds all');

# Entries that change behind the engine's back: the journal is asked last.
sub is_near
{
	my ($id) = @_;

	return $node->safe_psql('postgres', <<SQL);
SET enable_seqscan = off; SET enable_sort = off;
SELECT bool_or(id = $id) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = $id) LIMIT 5) s;
SELECT mode FROM navis_last_scan();
SQL
}

sub live_rows
{
	return $node->safe_psql('postgres', "SELECT live_rows FROM navis_index_info('words_v')");
}

# Two rows without many copies.
my @found;
for (my $n = 40; @found < 2; $n++)
{
	my ($bytes, $id) = entry($journal, $n);

	push @found, [ $n, $bytes, $id ] if $id < 3000;
}
my ($gone_at, $gone, $gone_id, $other_at, $other, $other_id) = map { @$_ } @found;
is(is_near($_), "t\ngraph", "row $_ is found") foreach $gone_id, $other_id;
my $live = live_rows();
$node->safe_psql('postgres', 'CHECKPOINT');
patch_flags($journal, $gone_at, 2);
patch_generation($journal, $other_at);
# Other pages take the places of the journal's in the few buffers.
ok( wait_until(
		sub {
			$node->safe_psql('postgres', 'SET enable_seqscan = off; SET enable_bitmapscan = off;' . 'SELECT sum(length(word)) FROM words WHERE id > 0;' x 8);
			return live_rows() == $live - 1;
		}),
	'entries change in the file');
is(is_near($gone_id), "f\ngraph", 'deleted: its row is not returned');
is(is_near($other_id), "f\ngraph", 'of another generation: nor is its');
is($node->safe_psql('postgres', <<SQL), $node->safe_psql('postgres', 'SELECT count(*) - 1, count(*) - 1, false, true FROM words'), 'the final sweep has the latter only');
SET enable_seqscan = off; SET enable_sort = off;
SELECT count(*), count(DISTINCT id), bool_or(id = $gone_id), bool_or(id = $other_id) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 1)) s;
SQL
$node->stop;
patch_journal($journal, 20 * $gone_at, $gone);
patch_journal($journal, 20 * $other_at, $other);
$node->start;
is(problems('false'), '', 'as they were');

# --- damage
$node->safe_psql('postgres', 'CHECKPOINT');
for my $case (
	[ 'edges', 4096 * 2, 8192, 'list' ],
	[ 'vectors', 51200, 20000, 'vector' ],
	[ 'state', 65536 * 2 + 100, 4000, 'state' ])
{
	my ($file, $at, $n, $kind) = @$case;

	spoil($file, $at, $n);
	is(kinds(), "error|$kind", "$file: damage is told, nothing else");
	like(problems('true'), qr/^error\|$kind\|.*\|t$/m, "$file: it is mended");
	ok(wait_until(sub { return problems('false') eq '' }), "$file: built again, no problems");
	ok(wait_ready($node, 'words_v'), "$file: and usable");
	($scan, $mode) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 1)');
	is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 1)'), "$file: a scan finds all");
	like($mode, qr/^graph/, "$file: from the graph");
}

# --- elsewhere
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$node->safe_psql('postgres', 'DELETE FROM words WHERE id % 19 = 0');
vacuum($node, 'words', 'words_v');
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
ok(wait_ready($standby, 'words_v'), 'a standby uses the index');
is(problems('false', $standby), '', 'no problems there');
($rc, $out, $err) = $standby->psql('postgres', "SELECT * FROM navis_check('words_v', true)");
like($err, qr/ERROR:  cannot repair an index during recovery/, 'nothing is repaired there');
$standby->stop;

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
like(problems('false'), qr/^warning\|engine\|f\|f\|there is no engine.*\|f$/, 'without an engine: journal and table are compared');
$node->stop;
done_testing();
