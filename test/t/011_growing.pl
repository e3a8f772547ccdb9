# An index over an empty table, filled by several sessions with searches beside
# them: its first graph, larger ones, a codebook for other data; what is deleted,
# dropped, stopped or killed in the middle of a build by the engine itself.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('growing', conf => "navis.checkpoint_timeout = 5\n");
$node->start;
make_helpers($node);
load_words($node, 'source', 5000);
query_words($node, 'queries', 5001, 100);

sub query { return $node->safe_psql('postgres', $_[0]); }

sub info
{
	my ($index, $what) = @_;

	return query("SELECT $what FROM navis_index_info('$index')");
}

# A table with an index over nothing.
sub make_table
{
	my ($name) = @_;

	query("CREATE TABLE $name (id int PRIMARY KEY, v real[]); CREATE INDEX ${name}_v ON $name USING navis (v)");
	return;
}

# Until every row is in a graph and nothing is built.
sub wait_linked
{
	my ($index, $more) = @_;

	return 1 if wait_until(sub {
		info($index, "state = 'ready' AND vertices > 0 AND pending_rows = 0 AND " . ($more // 'true')) eq 't' }, 180);
	diag(info($index, '*'));
	return 0;
}

# Until the engine builds by itself and has begun to train.
sub wait_building
{
	my ($index) = @_;

	return wait_until(sub { info($index, "build_phase NOT IN ('initializing', 'collecting vectors')") eq 't' }, 60, 20);
}

sub check_complete
{
	my ($table, $name) = @_;
	my $q = '(SELECT v FROM queries WHERE id = 5077)';
	my ($scan) = complete_scan($node, $table, $q);

	is($scan, table_rows($node, $table, $q), "$name: a complete scan has the table's rows");
	return;
}

sub recall
{
	my ($index, $queries) = @_;
	my ($recall, $rows) = split /\|/, query("SELECT recall, rows FROM nt_recall('$index', '<->', '$queries', 10)");

	note("recall $recall");
	return $recall;
}

# --- empty, and exact while it is small ---

make_table('grow');
is(info('grow_v', 'state, live_rows, vertices'), 'not open|0|', 'an index over nothing');
query('INSERT INTO grow SELECT id, v FROM source WHERE id <= 1500');
is(info('grow_v', 'state, pending_rows, vertices, build_phase'), 'ready|1500||', 'the first rows open it');
is(recall('grow_v', 'queries'), 1, 'and are compared exactly');

# --- several writers, searches beside them ---

query(<<'SQL');
CREATE SEQUENCE blocks;
CREATE TABLE looked (rows int, found bool, ordered bool, mode text);
-- The next hundred rows, as one statement.
CREATE FUNCTION fill() RETURNS void LANGUAGE plpgsql AS $$
DECLARE b int := nextval('blocks');
BEGIN
  INSERT INTO grow SELECT id, v FROM source WHERE id BETWEEN 1401 + 100 * b AND 1500 + 100 * b;
END $$;
-- A row that is there is searched for by its vector.
CREATE FUNCTION look(r int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w record;
  ids int[];
  d float8[];
BEGIN
  SELECT id, v INTO w FROM grow WHERE id >= r ORDER BY id LIMIT 1;
  IF w.id IS NULL THEN RETURN; END IF;
  SELECT array_agg(id), array_agg(v <-> w.v) INTO ids, d FROM (SELECT id, v FROM grow ORDER BY v <-> w.v LIMIT 10) s;
  INSERT INTO looked SELECT cardinality(ids), w.id = ANY (ids), d = (SELECT array_agg(x ORDER BY x) FROM unnest(d) x), mode
  FROM navis_last_scan();
END $$;
SQL
my $look = start_bench($node, { look => [ 1, "\\set r random(1, 5000)\nSELECT look(:r);\n" ] }, '-c', 2, '-T', 10);
my $fill = start_bench($node, { fill => [ 1, "SELECT fill();\n" ] }, '-c', 3, '-t', 12);
my ($fill_rc, undef, $fill_err) = finish_bench($fill);
is($fill_rc, 0, 'no writer failed') or diag($fill_err);
ok(wait_linked('grow_v', 'renewals >= 1'), 'then all rows are in a graph');
my ($look_rc, undef, $look_err) = finish_bench($look);
is($look_rc, 0, 'no searcher failed') or diag($look_err);
unlike("$look_err$fill_err", qr/ERROR|WARNING/, 'no error, no warning');
my ($searches, $short, $missed, $unordered, $graph) = split /\|/, query(<<'SQL');
SELECT count(*), count(*) FILTER (WHERE rows <> 10), count(*) FILTER (WHERE NOT found), count(*) FILTER (WHERE NOT ordered),
  count(*) FILTER (WHERE mode LIKE 'graph%') FROM looked
SQL
note("$searches searches, $missed missed a row");
cmp_ok($searches, '>', 30, 'there were searches');
is($short, 0, 'each returned its LIMIT');
is($unordered, 0, 'in order of distance');
# A row's own vector leads to it, but for one search in a hundred at most.
cmp_ok($missed, '<=', $searches / 100, 'and the row itself');
is($graph, $searches, 'the engine answered all');
is(query('SELECT count(*) FROM grow'), 5000, 'all rows came');
is(info('grow_v', 'vertices + pending_rows - deleted_vertices = (SELECT count(DISTINCT v) FROM grow)'), 't', 'one vertex for each vector');
cmp_ok(recall('grow_v', 'queries'), '>=', 0.95, 'recall@10 of the grown graph');
check_complete('grow', 'grown');
ok(log_lines($node, 'navis: built a graph over \d+ rows'), 'the log says so');
$node->restart;
ok(wait_ready($node, 'grow_v'), 'a restart finds the graph');
is(info('grow_v', 'renewals, pending_rows'), '0|0', 'as it was');
cmp_ok(recall('grow_v', 'queries'), '>=', 0.95, 'recall@10 after a restart');

# --- deletions while a graph is built ---

make_table('del');
query('INSERT INTO del SELECT id, v FROM source');
ok(wait_building('del_v'), 'a load into an empty index begins a build');
is(info('del_v', 'state'), 'building', 'the state says so');
query('DELETE FROM del WHERE id % 4 = 0');
query('UPDATE del SET v = (SELECT v FROM queries q WHERE q.id = 5001 + del.id % 50) WHERE id % 97 = 1');
query('VACUUM (INDEX_CLEANUP on) del');
check_complete('del', 'during the build');
ok(wait_linked('del_v'), 'it ends');
check_complete('del', 'rows deleted during a build');
is(query(<<'SQL'), 0, 'no deleted row is found by its vector');
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id, v FROM source WHERE id % 4 = 0 ORDER BY id LIMIT 200) s,
  LATERAL (SELECT id FROM del ORDER BY v <-> s.v LIMIT 3) f WHERE f.id % 4 = 0
SQL
ok(vacuum($node, 'del', 'del_v'), 'as many live entries as rows');
cmp_ok(recall('del_v', 'queries'), '>=', 0.95, 'recall@10');

# --- killed in the middle ---

make_table('dead');
query('INSERT INTO dead SELECT id, v FROM source');
ok(wait_building('dead_v'), 'a build begins');
kill9_all($node);
$node->start;
check_complete('dead', 'killed before the first graph was there');
ok(wait_ready($node, 'dead_v'), 'the graph is built after all');
check_complete('dead', 'and then');
is(recall('dead_v', 'queries') >= 0.95, 1, 'recall@10');

query('CREATE TABLE old (id int PRIMARY KEY, v real[]); INSERT INTO old SELECT id, v FROM source WHERE id <= 1200; CREATE INDEX old_v ON old USING navis (v)');
query('INSERT INTO old SELECT id, v FROM source WHERE id > 1200');
ok(wait_building('old_v'), 'a larger graph is built beside the old one');
my $before = query("SELECT count(*) FROM old");
kill9_all($node);
$node->start;
my ($scan) = complete_scan($node, 'old', '(SELECT v FROM queries WHERE id = 5077)');
like($scan, qr/^5000\|5000\|/, 'killed beside the old graph: every row is there');
check_complete('old', 'killed beside the old graph');
ok(wait_linked('old_v'), 'and gets into a graph') if wait_ready($node, 'old_v');
cmp_ok(recall('old_v', 'queries'), '>=', 0.95, 'recall@10');

# --- other data: the codebook is trained again ---

query(<<'SQL');
CREATE TABLE other AS SELECT 20000 + i AS id,
  (SELECT array_agg((20 * random() - 40)::real) FROM generate_series(1, 100) j WHERE i > 0) AS v FROM generate_series(1, 2400) i;
CREATE TABLE other_queries AS SELECT id, v FROM other WHERE id > 22300;
CREATE TABLE mix (id int PRIMARY KEY, v real[]);
INSERT INTO mix SELECT id, v FROM source WHERE id <= 4000;
CREATE INDEX mix_v ON mix USING navis (v) WITH (pq_bytes = 32);
SQL
my ($error, $built) = split /\|/, info('mix_v', 'code_error, built_vertices');
# In portions that are linked rather than built in.
for my $part (0 .. 11)
{
	query("INSERT INTO mix SELECT id, v FROM other WHERE id > 20000 + 200 * $part AND id <= 20200 + 200 * $part");
	wait_until(sub { info('mix_v', 'pending_rows < 200') eq 't' }, 60);
}
ok(wait_linked('mix_v', "renewals >= 1 AND built_vertices > $built"), 'other vectors lead to another codebook');
cmp_ok(info('mix_v', 'code_error'), '>', 1.5 * $error, 'trained on them');
cmp_ok(info('mix_v', 'code_drift'), '<', 1.5, 'so that codes suit the rows again');
cmp_ok(recall('mix_v', 'other_queries'), '>=', 0.95, 'recall@10 of the new rows');
cmp_ok(recall('mix_v', 'queries'), '>=', 0.95, 'recall@10 of the old rows');

# --- DROP, REINDEX, a stop beside a build ---

make_table($_) for 'gone', 'again', 'last', 'tiny';
query('INSERT INTO tiny SELECT id, v FROM source WHERE id <= 10');
ok(defined sidecar_of($node, query("SELECT 'tiny_v'::regclass::oid")), 'rows without a graph have a directory');
query('DROP TABLE tiny');
query('INSERT INTO gone SELECT id, v FROM source');
ok(wait_building('gone_v'), 'a build begins');
query('DROP TABLE gone');
query('INSERT INTO again SELECT id, v FROM source');
ok(wait_building('again_v'), 'the next one as well');
query('REINDEX INDEX again_v');
is(info('again_v', 'state, vertices = (SELECT count(DISTINCT v) FROM again), pending_rows'), 'ready|t|0', 'REINDEX beside it');
check_complete('again', 'REINDEX');
query('INSERT INTO last SELECT id, v FROM source');
ok(wait_building('last_v'), 'a build begins');
my $begun = time;
$node->stop('fast');
cmp_ok(time - $begun, '<', 30, 'the server stops beside it');
$node->append_conf('postgresql.conf', "navis.pending_memory = '1MB'\n");
$node->start;
check_complete('last', 'stopped');
# About 2,300 rows fit: the statement waits for builds, and none is lost.
make_table('narrow');
my $narrow = '';
$node->psql('postgres', 'INSERT INTO narrow SELECT id, v FROM source', stderr => \$narrow);
is($narrow, '', 'a load larger than navis.pending_memory waits for builds');
ok(wait_linked('narrow_v', 'renewals >= 1'), 'and gets into a graph');
check_complete('narrow', 'a narrow memory');
# One for each table that is there.
ok(wait_until(sub { sidecars($node) <= 8 }, 60), 'nothing is left of what was dropped') or diag(join ' ', sidecars($node));
is(scalar(log_lines($node, 'PANIC|signal 11|signal 6|TRAP')), 0, 'no crash');
$node->stop;
done_testing();
