# VACUUM: true counts, deleted rows never return, entries are used again, the
# journal does not grow; the hint of kill_prior_tuple does no harm.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

# No helper whose transactions hold VACUUM back, after the one at the start.
my $node = new_node('vacuum', conf => "navis.collect_interval = 3600\n");
my $q = '(SELECT v FROM kept WHERE id = 77)';
$node->start;
make_helpers($node);
load_words($node, 'words', 3000);
$node->safe_psql('postgres', <<SQL);
CREATE TABLE kept AS SELECT id, v FROM words;
CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32);
SQL

sub info
{
	my ($columns) = @_;

	return $node->safe_psql('postgres', "SELECT $columns FROM navis_index_info('words_v')");
}

sub check
{
	my ($name) = @_;
	my ($scan, $mode) = complete_scan($node, 'words', $q);

	is($scan, table_rows($node, 'words', $q), "$name: a complete scan has the table's rows");
	like($mode, qr/^graph/, "$name: from the graph");
	is($node->safe_psql('postgres', <<SQL), "0\nt|t", "$name: nothing that was deleted, from the graph");
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id FROM kept WHERE id % 50 = 1) k,
  LATERAL (SELECT id, v <-> (SELECT v FROM kept WHERE kept.id = k.id) AS d FROM words
           ORDER BY v <-> (SELECT v FROM kept WHERE kept.id = k.id) LIMIT 3) s
WHERE s.d = 0 AND NOT EXISTS (SELECT FROM words w WHERE w.id = s.id);
SELECT mode LIKE 'graph%', hops > 0 FROM navis_last_scan();
SQL
	return;
}

# counts
$node->safe_psql('postgres', 'DELETE FROM words WHERE id % 3 = 0');
check('deleted');
is(info('live_rows'), 3000, 'their entries are there until VACUUM');
my ($rc, $out, $err) = $node->psql('postgres', 'SET client_min_messages = debug2; VACUUM (VERBOSE) words');
like($err, qr/index "words_v": freed 1000 entries of deleted rows/, 'VACUUM says what became of its entries');
is(info('live_rows'), 2000, 'VACUUM removes the entries');
is($node->safe_psql('postgres', "SELECT reltuples FROM pg_class WHERE relname = 'words_v'"), 2000, 'reltuples is true');
is($node->safe_psql('postgres', "SELECT relpages = pg_relation_size('words_v') / 8192 FROM pg_class WHERE relname = 'words_v'"), 't',
	'relpages too');
is($node->safe_psql('postgres', "SELECT vertices - deleted_vertices FROM navis_index_info('words_v')"), 2000,
	'the engine knows the dead vertices');
check('vacuumed');
$node->safe_psql('postgres', 'VACUUM words; ANALYZE words;');
is($node->safe_psql('postgres', "SELECT reltuples FROM pg_class WHERE relname = 'words_v'"), 2000, 'also when there is nothing to do');

# entries are used again, each time in another generation
my $pages;
for my $cycle (1 .. 8)
{
	# The first cycles make pages that are mostly free afterwards.
	$pages = info('journal_pages') if $cycle == 3;
	$node->safe_psql('postgres', <<SQL);
INSERT INTO words SELECT id, 'again', v FROM kept WHERE id % 3 = 0;
DELETE FROM words WHERE id % 3 = 0;
VACUUM (INDEX_CLEANUP on) words;
SQL
}
is(info('live_rows'), 2000, 'eight cycles of insert, delete, VACUUM: as many live rows');
note("$pages pages");
cmp_ok(info('journal_pages'), '<=', $pages, 'the journal has not grown');
check('cycles');
# the same with a part that stays, and with a changing table
for my $cycle (1 .. 6)
{
	$pages = info('journal_pages') if $cycle == 3;
	$node->safe_psql('postgres', <<SQL);
UPDATE words SET v = (SELECT v FROM kept WHERE kept.id = words.id % 3000 + 1) WHERE id % 4 = $cycle % 4;
VACUUM (INDEX_CLEANUP on) words;
SQL
}
cmp_ok(info('journal_pages'), '<=', $pages + 1, 'nor with updates');
note("$pages pages");
is(info('live_rows = (SELECT count(*) FROM words)'), 't', 'live rows are the table\'s');
check('updates');

# after a restart too: what was freed and used again agrees
$node->restart;
check('restarted');
$node->safe_psql('postgres', "INSERT INTO words SELECT id, 'again', v FROM kept WHERE id % 3 = 0");
kill9_all($node);
$node->start;
check('crashed');
ok(vacuum($node, 'words', 'words_v'), 'VACUUM after the crash');
check('vacuumed after the crash');

# equal vectors: one vertex, rows come and go
$node->safe_psql('postgres', <<SQL);
CREATE TABLE equal AS SELECT i AS id, (SELECT v FROM kept WHERE kept.id = 1 + i % 1500) AS v FROM generate_series(1, 3000) i;
ALTER TABLE equal ADD PRIMARY KEY (id);
CREATE INDEX equal_v ON equal USING navis (v) WITH (max_degree = 16, build_list_size = 24, pq_bytes = 16);
DELETE FROM equal WHERE id <= 1500;
VACUUM (INDEX_CLEANUP on) equal;
SQL
is($node->safe_psql('postgres', "SELECT vertices, deleted_vertices, live_rows FROM navis_index_info('equal_v')"), '1500|0|1500',
	'vertices of equal rows live on');
$node->safe_psql('postgres', 'DELETE FROM equal WHERE id <= 2000; VACUUM (INDEX_CLEANUP on) equal;');
is($node->safe_psql('postgres', "SELECT vertices - deleted_vertices, live_rows FROM navis_index_info('equal_v')"), '1000|1000',
	'until the last one goes');
is($node->safe_psql('postgres', <<SQL), "1000|1000", 'and the others are found');
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM equal ORDER BY v <-> $q) s;
SQL

# kill_prior_tuple: scans mark entries whose rows are dead to everybody.  The
# hint takes nothing from a snapshot that sees the row, and VACUUM still
# removes the entry.
$node->safe_psql('postgres', 'TRUNCATE words; INSERT INTO words SELECT id, NULL, v FROM kept WHERE id <= 2000; REINDEX INDEX words_v;');
my $old = session($node);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM words; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off;');
$node->safe_psql('postgres', 'DELETE FROM words WHERE id <= 500');
complete_scan($node, 'words', $q) for 1 .. 3;
is($old->query_safe("SELECT count(*) FROM (SELECT id FROM words ORDER BY v <-> $q) s"), 2000, 'an older snapshot sees its rows');
$old->query_safe('COMMIT');
$old->quit;
complete_scan($node, 'words', $q) for 1 .. 3;
check('killed entries');
is(info('live_rows'), 2000, 'killed entries are still there');
$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP on) words');
is(info('live_rows'), 1500, 'VACUUM removes them');
check('vacuumed');
# used again: the hint is gone with the generation
$node->safe_psql('postgres', 'INSERT INTO words SELECT id, NULL, v FROM kept WHERE id <= 500');
check('inserted again');
is(info('live_rows'), 2000, 'as many as before');

# VACUUM of everything, and of an index that was never searched
$node->safe_psql('postgres', 'DELETE FROM words; VACUUM (INDEX_CLEANUP on) words;');
is(info('live_rows'), 0, 'all rows deleted');
is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM words ORDER BY v <-> $q LIMIT 10) s"), 0,
	'none is found');
$node->restart;
$node->safe_psql('postgres', 'DELETE FROM equal WHERE id <= 2500');
ok(vacuum($node, 'equal', 'equal_v'), 'VACUUM after a restart');
is($node->safe_psql('postgres', <<SQL), "500|500\n500", 'VACUUM of an index the engine has not opened');
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM equal ORDER BY v <-> $q) s;
SELECT live_rows FROM navis_index_info('equal_v');
SQL
is(scalar(log_lines($node, 'PANIC|signal 11|signal 6|TRAP')), 0, 'no crash');
$node->stop;
done_testing();
