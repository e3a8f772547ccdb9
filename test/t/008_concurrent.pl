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
make_pool($node, 4001, 2000);
$node->safe_psql('postgres', 'CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32)');

my $scripts = mixed_scripts(3000, 2000, { search => 10, search_more => 2, insert => 4, insert_aborted => 1, update => 2 },
	delete => [ 2, <<'SQL' ],
\set i random(100000, 100500)
DELETE FROM words WHERE id IN (SELECT id FROM words WHERE id >= :i ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED);
SQL
	cursor => [ 1, <<'SQL' ]);
\set i random(0, 1999)
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> pool(:i) LIMIT 300;
FETCH 5 FROM c;
FETCH 200 FROM c;
COMMIT;
SQL
my $bench = start_bench($node, $scripts, '-c', 6, '-j', 2, '-T', $seconds);
my $vacuums = 0;
my $end = time + $seconds;
while (time < $end)
{
	$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP on) words');
	$vacuums++;
	sleep 1;
}
my ($rc, $out, $err) = finish_bench($bench);
is($rc, 0, 'no client failed') or diag($err);
unlike($err, qr/ERROR|aborted|WARNING/, 'no error, no warning');
my ($transactions) = $out =~ /number of transactions actually processed: (\d+)/;
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

my $q = 'pool(76)';
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
