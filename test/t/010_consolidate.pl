# Consolidation: rows that are replaced again and again leave nothing behind;
# VACUUM that is cancelled or killed in the middle goes on the next time.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($n, $slide, $rounds) = (2000, 400, 10);
# No helper whose transactions hold VACUUM back, after the one at the start.
my $node = new_node('consolidate', conf => "navis.collect_interval = 3600\n");
my $q = '(SELECT v FROM kept WHERE id = 77)';
my $with = 'max_degree = 32, build_list_size = 48, pq_bytes = 32';
$node->start;
make_helpers($node);
load_words($node, 'kept', $n + $rounds * $slide + 100);
# The engine consolidates only when it is asked to, as long as we count.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE words AS SELECT id, v FROM kept WHERE id <= $n;
CREATE INDEX words_v ON words USING navis (v) WITH ($with, consolidate_threshold = 1);
CREATE TABLE queries AS SELECT id, v FROM kept WHERE id > $n + $rounds * $slide;
SQL

sub info
{
	my ($columns, $index) = @_;

	$index //= 'words_v';
	return $node->safe_psql('postgres', "SELECT $columns FROM navis_index_info('$index')");
}

sub all_linked
{
	return wait_until(sub { info('pending_rows') == 0 });
}

sub check
{
	my ($name) = @_;
	my ($scan, $mode) = complete_scan($node, 'words', $q);

	is($scan, table_rows($node, 'words', $q), "$name: a complete scan has the table's rows");
	like($mode, qr/^graph/, "$name: from the graph");
	return;
}

sub recall
{
	my ($index) = @_;

	return (split /\|/, $node->safe_psql('postgres', <<SQL))[0];
SET navis.casr = off;
SELECT * FROM nt_recall('$index', '<->', 'queries', 10);
SQL
}

# VACUUM consolidates above the threshold only.
$node->safe_psql('postgres', 'DELETE FROM words WHERE id <= 100; VACUUM (INDEX_CLEANUP on) words;');
is(info('vertices, deleted_vertices, consolidations'), "$n|100|0", '1: VACUUM leaves dead vertices in the graph');
$node->safe_psql('postgres', 'ALTER INDEX words_v SET (consolidate_threshold = 0.01)');
$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP on) words');
is(info('vertices, deleted_vertices, freed_vertices, consolidating'), ($n - 100) . '|0|100|f', '0.01: it takes them out');
$node->safe_psql('postgres', 'INSERT INTO words SELECT id, v FROM kept WHERE id <= 100');
all_linked();

# Ten rounds of replacing a fifth.
my (@vectors, @edges);
for my $round (1 .. $rounds)
{
	my $first = ($round - 1) * $slide + 1;

	$node->safe_psql('postgres', <<SQL);
DELETE FROM words WHERE id < $first + $slide;
INSERT INTO words SELECT id, v FROM kept WHERE id BETWEEN $n + $first AND $n + $first + $slide - 1;
SQL
	all_linked();
	ok(vacuum($node, 'words', 'words_v'), "round $round");
	is(info('deleted_vertices, vertices'), "0|$n", 'nothing is left of the rows that went');
	push @vectors, info('vector_bytes');
	push @edges, info('edge_bytes');
}
is($vectors[-1], $vectors[1], 'the vector file has not grown since the second round');
cmp_ok($edges[-1], '<=', 1.2 * $edges[1], 'nor have the edges by much');
check('rounds');
my $grown = recall('words_v');
$node->safe_psql('postgres', "CREATE INDEX words_fresh ON words USING navis (v) WITH ($with)");
$node->safe_psql('postgres', 'UPDATE pg_index SET indisvalid = false WHERE indexrelid = \'words_v\'::regclass');
my $fresh = recall('words_fresh');
$node->safe_psql('postgres', 'UPDATE pg_index SET indisvalid = true WHERE indexrelid = \'words_v\'::regclass; DROP INDEX words_fresh;');
note("recall@10 $grown, of a fresh index $fresh");
cmp_ok($grown, '>=', $fresh - 0.02, 'recall is about that of a fresh index');

# A scan that is open meanwhile, over ids that are used again.
my $open = session($node);
$open->query_safe("SET enable_seqscan = off; SET enable_sort = off; BEGIN; DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> $q;");
my @got = split /\n/, $open->query_safe('FETCH 20 FROM c');
my $writer = session($node);
my $first = $rounds * $slide + 1;
$writer->query_safe("DELETE FROM words WHERE id < $first + 200");
# The cursor's snapshot holds the rows: other tables' vertices cannot go either.
$writer->query_safe('VACUUM (INDEX_CLEANUP on) words');
push @got, split /\n/, $open->query_safe('FETCH ALL FROM c');
$open->query_safe('COMMIT');
my %seen;
is(scalar(grep { $seen{$_}++ } @got), 0, 'no row twice');
is(scalar(@got), $n, 'an open cursor gives the rows of its snapshot');
ok(vacuum($node, 'words', 'words_v'), 'VACUUM afterwards');
is(info('deleted_vertices'), 0, 'and they are gone');

# VACUUM cancelled at some moments; the next one does the rest.
$node->safe_psql('postgres', "INSERT INTO words SELECT id, v FROM kept WHERE id < $first + 200");
all_linked();
my $cancelled = 0;
for my $ms (2, 10, 40, 100, 250)
{
	$node->safe_psql('postgres', "DELETE FROM words WHERE id IN (SELECT id FROM words ORDER BY id LIMIT 150)");
	my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = $ms; VACUUM (INDEX_CLEANUP on) words;");
	$cancelled += $rc != 0;
	is($node->safe_psql('postgres', <<SQL), '0', "cancelled after $ms ms: nothing that was deleted is found");
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id FROM words ORDER BY v <-> $q LIMIT 100) s WHERE NOT EXISTS (SELECT FROM words w WHERE w.id = s.id);
SQL
}
note("$cancelled of 5 cancelled");
ok(vacuum($node, 'words', 'words_v'), 'VACUUM to its end');
is(info('deleted_vertices'), 0, 'nothing is left');
check('cancelled');

# kill -9 in the middle.
for my $ms (0, 20, 60)
{
	my $pid;

	$node->safe_psql('postgres', 'DELETE FROM words WHERE id IN (SELECT id FROM words ORDER BY id DESC LIMIT 300)');
	$pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open STDERR, '>', '/dev/null';
		exec('psql', '-X', '-q', '-d', $node->connstr('postgres'), '-c', 'VACUUM (INDEX_CLEANUP on) words');
		die "exec: $!";
	}
	usleep(100_000 + $ms * 1000);
	kill9_all($node);
	waitpid $pid, 0;
	$node->start;
	ok(wait_ready($node, 'words_v'), "killed after $ms ms: usable again");
	check("killed after $ms ms");
	ok(vacuum($node, 'words', 'words_v'), 'VACUUM after that');
	is(info('deleted_vertices'), 0, 'takes the rest out');
	check('vacuumed');
}

# By itself, without VACUUM's asking: autovacuum does not wait, a standby has none.
$node->safe_psql('postgres', <<SQL);
ALTER INDEX words_v SET (consolidate_threshold = 0.3);
SQL
$node->restart;
ok(wait_ready($node, 'words_v'), 'restarted: usable again');
check('restarted');
$node->safe_psql('postgres', 'DELETE FROM words WHERE id % 2 = 0; VACUUM (INDEX_CLEANUP on) words;');
ok(wait_until(sub { info('deleted_vertices') == 0 }), 'half of the rows');
check('by itself');

done_testing();
