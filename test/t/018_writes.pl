# What writes do to an index: UPDATE of another column, triggers, several
# indexes, savepoints, cascades, killed entries, ids that are used again, and
# concurrent index builds beside writers.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $options = 'WITH (max_degree = 24, build_list_size = 32, pq_bytes = 16)';
my $node = new_node('writes', conf => "fsync = off\ntrack_counts = on\n");
$node->start;
make_helpers($node);
load_words($node, 'words', 2000);
query_words($node, 'queries', 2001, 1000);
$node->safe_psql('postgres', "CREATE TABLE more AS SELECT id, 'new'::text AS word, v FROM queries");

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# Waits until every row of an index is linked; its vertices.
sub linked
{
	my ($index) = @_;

	ok( wait_until(sub { return sql("SELECT pending_rows FROM navis_index_info('$index')") eq '0' }, 60),
		"$index: every row is linked");
	return sql("SELECT vertices FROM navis_index_info('$index')");
}

# The nearest row to a vector, and how it was found.
sub nearest
{
	my ($vector, %opt) = @_;
	my $table = $opt{table} // 'words';
	my $op = $opt{op} // '<->';
	my $where = $opt{where} // 'true';
	my $column = $opt{column} // 'v';

	return sql(<<SQL);
SET enable_seqscan = off;
SELECT id FROM $table WHERE $where ORDER BY $column $op ($vector) LIMIT 1;
SELECT index::regclass, mode, hops > 0 FROM navis_last_scan();
SQL
}

# Blocks of a relation that a statement of one session touched.
sub blocks
{
	my ($view, $name, $statement) = @_;
	my $total = "SELECT coalesce(sum(${view}_blks_read + ${view}_blks_hit), 0)";
	my $from =
	  $view eq 'idx'
	  ? "FROM pg_statio_user_indexes WHERE indexrelname = '$name'"
	  : "FROM pg_statio_user_tables WHERE relname = '$name'";
	my $before = sql("$total $from");

	sql("$statement; SELECT pg_stat_force_next_flush()");
	return sql("$total $from") - $before;
}

# --- UPDATE of another column ---

sql(<<SQL);
CREATE INDEX words_word ON words (word); -- so that no update of word is HOT
CREATE INDEX words_v ON words USING navis (v) $options;
SQL
my $vertices = linked('words_v');
my $blocks = blocks('idx', 'words_v', "UPDATE words SET word = word || '*' WHERE id <= 1000");
cmp_ok($blocks, '>=', 1000, 'an UPDATE of another column comes to the index');
cmp_ok($blocks, '<', 1000 * 20, 'and takes few of its buffers') or diag($blocks);
note("$blocks buffers of the index for 1000 updated rows");
is(linked('words_v'), $vertices, 'it makes no vertex');
is(nearest('SELECT v FROM words WHERE id = 77'), "77\nwords_v|graph|t", 'the new version is found');
ok(vacuum($node, 'words', 'words_v'), 'and alone there after VACUUM');
is(linked('words_v'), $vertices, 'which leaves the vertices');
is(sql("SELECT deleted_vertices FROM navis_index_info('words_v')"), 0, 'none of them dead');

# A trigger changes the vector: the executor calls it unchanged.
sql(<<'SQL');
CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.v := (SELECT array_agg(-x) FROM unnest(OLD.v) x);
  RETURN NEW;
END $$;
CREATE TRIGGER turn BEFORE UPDATE OF word ON words FOR EACH ROW WHEN (OLD.id IN (10, 11)) EXECUTE FUNCTION turn();
CREATE TABLE old AS SELECT * FROM words WHERE id IN (10, 11);
UPDATE words SET word = word || '!' WHERE id <= 20;
SQL
is(linked('words_v'), $vertices + 2, 'a vector that a trigger changed is a new vertex');
is(nearest('SELECT v FROM words WHERE id = 10'), "10\nwords_v|graph|t", 'it is found by its new vector');
isnt(sql("SET enable_seqscan = off; SELECT id FROM words ORDER BY v <-> (SELECT v FROM old WHERE id = 10) LIMIT 1"), 10, 'and not by the old one');
is(nearest('SELECT v FROM words WHERE id = 12'), "12\nwords_v|graph|t", 'others of that UPDATE kept theirs');
sql('DROP TRIGGER turn ON words');

# --- Killed entries ---

# How many ids two arrays of them share: graph searches are approximate.
sub common
{
	my ($found, $wanted) = @_;
	my %wanted = map { $_ => 1 } $wanted =~ /\d+/g;

	return scalar grep { $wanted{$_} } $found =~ /\d+/g;
}

# Many dead rows nearest to a query.
sql(<<'SQL');
CREATE TABLE target AS SELECT v FROM words WHERE id = 500;
CREATE TABLE near AS SELECT id, word, v FROM words ORDER BY v <-> (SELECT v FROM target), id LIMIT 400;
SQL
my $rest = sql('SET enable_indexscan = off; SELECT id FROM words WHERE id NOT IN (SELECT id FROM near) ORDER BY v <-> (SELECT v FROM target) LIMIT 1');
my $near = sql('SELECT array_agg(id ORDER BY id) FROM near');
my $first = <<SQL;
SET enable_seqscan = off;
SET navis.search_list_size = 600;
SET navis.casr = off;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM target) LIMIT 1
SQL
my $old = session($node);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SET enable_seqscan = off; SET navis.search_list_size = 600; SET navis.casr = off; SELECT 1;');
sql('DELETE FROM words WHERE id IN (SELECT id FROM near)');
my $find_near = "SELECT array_agg(id ORDER BY id) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM target) LIMIT 400) s;";
is(sql("$first"), $rest, 'the nearest live row is found behind 400 dead ones');
cmp_ok(common($old->query_safe($find_near), $near), '>=', 380, 'a snapshot that sees the dead rows finds them after that');
is($old->query_safe('SELECT mode FROM navis_last_scan();'), 'graph', 'in the graph');
$old->query_safe('COMMIT;');
my $second = blocks('heap', 'words', $first);
my $third = blocks('heap', 'words', $first);
cmp_ok($second, '>', 100, 'the first scan after that meets the dead rows');
cmp_ok($third, '<', $second / 5, 'the next one knows them') or diag("$second, then $third");
note("$second heap buffers, then $third");
is(sql($first), $rest, 'and finds the same');
cmp_ok(sql("SELECT live_rows FROM navis_index_info('words_v')"), '>=', sql('SELECT count(*) + 400 FROM words'), 'killed entries are still entries');

# --- Ids that are used again, beside an open scan ---

my $cursor = session($node);
$cursor->query_safe('BEGIN; SET enable_seqscan = off; SET enable_sort = off; DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> (SELECT v FROM target);');
my @got = split /\n/, $cursor->query_safe('FETCH 30 FROM c;');
ok(vacuum($node, 'words', 'words_v'), 'VACUUM takes killed entries away');
my $pages = sql("SELECT journal_pages FROM navis_index_info('words_v')");
sql('INSERT INTO words SELECT id + 10000, word, v FROM near'); # the same vectors in their places
sql('INSERT INTO words SELECT * FROM more WHERE id <= 2400');
is(sql("SELECT journal_pages FROM navis_index_info('words_v')"), $pages, 'their ids are used again');
push @got, split /\n/, $cursor->query_safe('FETCH ALL FROM c;');
is($cursor->query_safe('SELECT mode LIKE \'graph%\' FROM navis_last_scan();'), 't', 'the cursor read the graph');
$cursor->query_safe('COMMIT;');
my %seen;
$seen{$_}++ for @got;
is(scalar(keys %seen), scalar(@got), 'the cursor gave no row twice');
is(scalar(@got), 1600, 'and every row of its snapshot');
is(scalar(grep { $_ > 2000 } @got), 0, 'and no newer one');
linked('words_v');
# Entries used again are not killed any more.
my ($found, $mode) = split /\n/,
  sql("SET enable_seqscan = off; SET navis.search_list_size = 600; SET navis.casr = off; $find_near SELECT mode FROM navis_last_scan()");
# Each was linked among those that came before it; half would do here.
cmp_ok(common($found, $near =~ s/(\d+)/$1 + 10000/ger), '>=', 200, 'new rows in the places of killed ones are found');
is($mode, 'graph', 'in the graph');

# --- Read your own writes, savepoints, long snapshots ---

my $reader = session($node);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SET enable_seqscan = off; SELECT 1;');
my $own = <<'SQL';
SET enable_seqscan = off;
BEGIN;
INSERT INTO words SELECT id + 20000, word, (SELECT array_agg(x + 0.001) FROM unnest(v) x) FROM more WHERE id = 2500;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;
SAVEPOINT a;
INSERT INTO words SELECT * FROM more WHERE id = 2500;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;
ROLLBACK TO a;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;
SAVEPOINT b;
INSERT INTO words SELECT id + 30000, word, v FROM more WHERE id = 2500;
RELEASE b;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;
SELECT mode FROM navis_last_scan();
COMMIT;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;
SQL
is(sql($own), "22500\n2500\n22500\n32500\ngraph\n32500", 'own rows are found at once, those of rolled back savepoints are not');
linked('words_v');
is(nearest('SELECT v FROM more WHERE id = 2500'), "32500\nwords_v|graph|t", 'and after linking');
isnt($reader->query_safe('SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;'), 32500, 'an older snapshot does not see them');
is($reader->query_safe('SELECT count(*) FROM words WHERE id > 20000;'), 0, 'as it does not without the index');
$reader->query_safe('COMMIT;');
is($reader->query_safe('SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 2500) LIMIT 1;'), 32500, 'a newer one does');

# --- Several indexes on a table: three metrics, partial, expression ---

sql(<<SQL);
CREATE FUNCTION half(real[]) RETURNS real[] LANGUAGE sql IMMUTABLE AS 'SELECT array_agg(x / 2) FROM unnest(\$1) x';
CREATE TABLE many AS SELECT * FROM words WHERE id <= 1500 OR id > 10000;
CREATE INDEX many_l2 ON many USING navis (v) $options;
CREATE INDEX many_ip ON many USING navis (v real_ip_ops) $options;
CREATE INDEX many_cos ON many USING navis (v real_cosine_ops) $options;
CREATE INDEX many_half ON many USING navis (half(v)) $options;
CREATE INDEX many_part ON many USING navis (v) $options WHERE id < 50000;
SQL
# More indexes than a session has places for at a time, row by row.
$node->safe_psql('postgres', join('', map { "INSERT INTO many SELECT * FROM more WHERE id = $_;\n" } 2601 .. 2650));
for my $probe (2601, 2650)
{
	my $q = "SELECT v FROM more WHERE id = $probe";
	is(nearest($q, table => 'many', op => '<=>'), "$probe\nmany_cos|graph|t", "cosine: row $probe");
	is(nearest("SELECT half(v) FROM more WHERE id = $probe", table => 'many', column => 'half(v)'), "$probe\nmany_half|graph|t",
		"expression: row $probe");
	like(nearest($q, table => 'many', where => 'id < 50000'), qr/^$probe\nmany_(part|l2)\|graph\|t$/, "partial: row $probe");
	like(nearest($q, table => 'many'), qr/^$probe\nmany_l2\|graph\|t$/, "Euclidean: row $probe");
	like(nearest($q, table => 'many', op => '<#>'), qr/^\d+\nmany_ip\|graph\|t$/, "inner product: the graph answers");
}
linked($_) for qw(many_l2 many_ip many_cos many_half many_part);
sql("INSERT INTO many SELECT 60000, word, v FROM more WHERE id = 2700");
is(sql("SELECT live_rows FROM navis_index_info('many_part')"), sql('SELECT count(*) FROM many WHERE id < 50000'), 'the partial index has its rows only');

# --- Cascades ---

sql(<<SQL);
CREATE TABLE parents (id int PRIMARY KEY);
INSERT INTO parents SELECT generate_series(0, 9);
CREATE TABLE children AS SELECT id, id % 10 AS parent, v FROM many WHERE id <= 1500;
ALTER TABLE children ADD FOREIGN KEY (parent) REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE;
CREATE INDEX children_parent ON children (parent);
CREATE INDEX children_v ON children USING navis (v) $options;
DELETE FROM parents WHERE id < 5;
UPDATE parents SET id = 100 WHERE id = 7;
SQL
is(linked('children_v'), sql('SELECT count(DISTINCT v) FROM many WHERE id <= 1500'), 'a cascaded UPDATE makes no vertex');
is(sql(<<SQL), "t\ngraph", 'rows that went by cascade are not found');
SET enable_seqscan = off;
SELECT bool_and(parent >= 5) AND count(*) = 50 FROM (SELECT parent FROM children ORDER BY v <-> (SELECT v FROM target) LIMIT 50) s;
SELECT mode FROM navis_last_scan();
SQL
my ($scan) = complete_scan($node, 'children', '(SELECT v FROM target)');
is($scan, table_rows($node, 'children', '(SELECT v FROM target)'), 'and none of the others is missing');

# --- Concurrent builds beside writers ---

my $busy = { busy => [ 1, <<'SQL' ] };
\set i random(1, 1000000000)
\set q random(0, 999)
INSERT INTO busy SELECT 10000 + :i, word, (SELECT array_agg(x * (1 + (:i % 1000) * 0.0001)) FROM unnest(v) x) FROM more WHERE id = 2001 + :q ON CONFLICT DO NOTHING;
UPDATE busy SET word = word || '+' WHERE id = 1 + :q;
DELETE FROM busy WHERE id = 10000 + :i AND :i % 3 = 0;
SQL
sql('CREATE TABLE busy (LIKE words INCLUDING ALL); INSERT INTO busy SELECT * FROM words WHERE id <= 1500');
sql('DROP INDEX IF EXISTS busy_v_idx');
sub beside_writers
{
	my ($what, $statement) = @_;
	my $writers = start_bench($node, $busy, '-c', 2, '-T', 4);
	usleep(500_000);
	my ($rc, undef, $error) = $node->psql('postgres', $statement);
	is($rc, 0, "$what beside writers") or diag($error);
	my ($bench_rc, undef, $bench_err) = finish_bench($writers);
	is($bench_rc, 0, "$what: the writers succeed") or diag($bench_err);
	ok(wait_ready($node, 'busy_cic'), "$what: the index is usable");
	linked('busy_cic');
	my ($all, $mode) = complete_scan($node, 'busy', '(SELECT v FROM target)');
	is($all, table_rows($node, 'busy', '(SELECT v FROM target)'), "$what: it has every row");
	like($mode, qr/^graph/, "$what: through the graph");
	return;
}
beside_writers('CREATE INDEX CONCURRENTLY', "CREATE INDEX CONCURRENTLY busy_cic ON busy USING navis (v) $options");
beside_writers('REINDEX CONCURRENTLY', 'REINDEX INDEX CONCURRENTLY busy_cic');

$_->{run}->finish for ($old, $cursor, $reader);

# --- Where nobody links ---

$node->append_conf('postgresql.conf', 'navis.insert_threads = 0');
$node->restart;
ok(wait_ready($node, 'words_v'), 'without insert threads');
sql('CREATE TABLE mirror AS SELECT id, array(SELECT -x FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n) AS v FROM queries');
is(sql(<<'SQL'), "902600\ngraph|t|t\n902601\n2600", 'own rows are found while they are pending');
SET enable_seqscan = off;
BEGIN;
INSERT INTO words SELECT id + 900000, 'mirror', v FROM mirror WHERE id = 2600;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM mirror WHERE id = 2600) LIMIT 1;
SELECT mode, hops > 0, pending > 0 FROM navis_last_scan();
SAVEPOINT a;
DELETE FROM words WHERE id = 902600;
INSERT INTO words SELECT 902601, 'mirror', v FROM mirror WHERE id = 2600;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM mirror WHERE id = 2600) LIMIT 1;
ROLLBACK TO a;
UPDATE words SET id = 2600 WHERE id = 902600;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM mirror WHERE id = 2600) LIMIT 1;
COMMIT;
SQL
sql("INSERT INTO words SELECT id + 800000, 'mirror', v FROM mirror");
cmp_ok(sql("SELECT pending_rows FROM navis_index_info('words_v')"), '>=', 1000, 'writers do not wait for what nobody does');
$node->stop;
done_testing();
