# Searches, inserts, updates, deletes and VACUUM at the same time: every search
# returns exactly its LIMIT, and in the end a complete scan has the table's rows.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = 12;
my $node = new_node('concurrent', conf => "navis.checkpoint_timeout = 2\n");
$node->start;
make_helpers($node);
load_words($node, 'words', 3000);
query_words($node, 'queries', 4001, 2000);
$node->safe_psql('postgres', <<'SQL');
CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32);
CREATE SEQUENCE ids START 10000;
CREATE TABLE searches (k int, rows int, different int, ordered bool, mode text, hops bigint);
-- A search, and what came of it.
CREATE FUNCTION search(k int, q int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  query real[] := (SELECT v FROM queries WHERE id = 4001 + q);
  ids int[];
  d float8[];
BEGIN
  SELECT array_agg(id), array_agg(v <-> query) INTO ids, d
  FROM (SELECT id, v FROM words ORDER BY v <-> query LIMIT k) w;
  INSERT INTO searches
    SELECT k, cardinality(ids), (SELECT count(DISTINCT x) FROM unnest(ids) x),
           d = (SELECT array_agg(x ORDER BY x) FROM unnest(d) x), mode, hops
    FROM navis_last_scan();
END $$;
SQL

# pgbench scripts, with their weights
my $dir = $node->basedir;
my %scripts = (
	search => [ 10, <<'SQL' ],
\set q random(0, 1999)
SELECT search(10, :q);
SQL
	search_more => [ 2, <<'SQL' ],
\set q random(0, 1999)
SELECT search(100, :q);
SQL
	insert => [ 4, <<'SQL' ],
\set q random(0, 1999)
INSERT INTO words SELECT nextval('ids'), 'new', v FROM queries WHERE id = 4001 + :q;
SQL
	insert_aborted => [ 1, <<'SQL' ],
\set q random(0, 1999)
BEGIN;
INSERT INTO words SELECT nextval('ids'), 'aborted', v FROM queries WHERE id = 4001 + :q;
ROLLBACK;
SQL
	update => [ 2, <<'SQL' ],
\set q random(0, 1999)
\set i random(1, 3000)
UPDATE words SET v = (SELECT v FROM queries WHERE id = 4001 + :q) WHERE id = :i;
SQL
	delete => [ 2, <<'SQL' ],
\set i random(10000, 10500)
DELETE FROM words WHERE id IN (SELECT id FROM words WHERE id >= :i ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED);
SQL
	cursor => [ 1, <<'SQL' ],
\set q random(0, 1999)
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 4001 + :q) LIMIT 300;
FETCH 5 FROM c;
FETCH 200 FROM c;
COMMIT;
SQL
);
my @files;
for my $name (sort keys %scripts)
{
	append_to_file("$dir/$name.sql", $scripts{$name}[1]);
	push @files, '-f', "$dir/$name.sql\@$scripts{$name}[0]";
}

my $bench = IPC::Run::start(
	[ $node->installed_command('pgbench'), '-n', '-c', 6, '-j', 2, '-T', $seconds, '-h', $node->host, '-p', $node->port, @files, 'postgres' ],
	'>', \my $bench_out, '2>', \my $bench_err);
my $vacuums = 0;
my $end = time + $seconds;
while (time < $end)
{
	$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP on) words');
	$vacuums++;
	sleep 1;
}
$bench->finish;
is($bench->result(0), 0, 'no client failed') or diag($bench_err);
unlike($bench_err, qr/ERROR|aborted|WARNING/, 'no error, no warning');
my ($transactions) = $bench_out =~ /number of transactions actually processed: (\d+)/;
note("$transactions transactions beside $vacuums VACUUMs");
cmp_ok($transactions, '>', 100, 'there was traffic');

my ($searches, $wrong, $doubled, $unordered, $graph) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT count(*), count(*) FILTER (WHERE rows <> k), count(*) FILTER (WHERE different <> rows),
       count(*) FILTER (WHERE NOT ordered), count(*) FILTER (WHERE mode LIKE 'graph%' AND hops > 0) FROM searches
SQL
note("$searches searches");
cmp_ok($searches, '>', 30, 'there were searches');
is($wrong, 0, 'each returned exactly its LIMIT');
is($doubled, 0, 'no row twice');
is($unordered, 0, 'in order of distance');
is($graph, $searches, 'all from the graph')
  or diag($node->safe_psql('postgres', 'SELECT mode, hops, count(*) FROM searches GROUP BY 1, 2 ORDER BY 3'));

my $q = '(SELECT v FROM queries WHERE id = 4077)';
my ($scan, $mode) = complete_scan($node, 'words', $q);
is($scan, table_rows($node, 'words', $q), 'a complete scan has the table\'s rows');
like($mode, qr/^graph/, 'from the graph');
is($node->safe_psql('postgres', <<SQL), 0, 'every row is found by its own vector');
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id, v AS q FROM words ORDER BY id DESC LIMIT 200) w
WHERE NOT EXISTS (SELECT FROM (SELECT v <-> q AS d FROM words ORDER BY v <-> q LIMIT 1) s WHERE d = 0)
SQL
ok(vacuum($node, 'words', 'words_v'), 'as many live entries as rows');
is($node->safe_psql('postgres', "SELECT state FROM navis_index_info('words_v')"), 'ready', 'the index is ready');
ok(wait_until(sub {
	$node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM (SELECT 1 FROM words ORDER BY v <-> $q LIMIT 1) s;
SELECT cursors FROM navis_index_info('words_v')") =~ /^0$/m }, 10), 'no cursor is left')
  or diag($node->safe_psql('postgres', "SELECT cursors FROM navis_index_info('words_v')"));
$node->restart;
my $before = table_rows($node, 'words', $q);
($scan, $mode) = complete_scan($node, 'words', $q);
is($scan, $before, 'also after a restart');
like($mode, qr/^graph/, 'from the graph');
is(scalar(log_lines($node, 'PANIC|signal 11|signal 6|TRAP')), 0, 'no crash');
$node->stop;
done_testing();
