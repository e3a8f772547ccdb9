# Recall on real data, for three metrics, against the exact scan of the same
# server; every search is answered by the graph.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 6000;
my $queries = 100;
my $node = new_node('recall', conf => 'navis.casr_warmup = 300');
$node->start;
make_helpers($node);
load_words($node, 'words', $rows);
query_words($node, 'queries', 15001, $queries);

# The vectors are not normalised, so the three metrics have different answers.
is($node->safe_psql('postgres', <<SQL), 't', 'vectors have different lengths');
SELECT max(n) / min(n) > 2 FROM (SELECT sqrt(sum(x * x)) AS n FROM words, unnest(v) x GROUP BY id) s
SQL

# metric => operator, class, least recall@10 at list size 100 and at 300
my %metrics = (
	l2 => [ '<->', 'real_l2_ops', 0.97, 0.99 ],
	cosine => [ '<=>', 'real_cosine_ops', 0.97, 0.99 ],
	ip => [ '<#>', 'real_ip_ops', 0.95, 0.98 ]);

for my $metric (sort keys %metrics)
{
	my ($op, $class, $least, $least_long) = @{ $metrics{$metric} };
	my $index = "words_$metric";

	$node->safe_psql('postgres', "CREATE INDEX $index ON words USING navis (v $class)");
	like($node->safe_psql('postgres', "SELECT state, metric, vertices, live_rows FROM navis_index_info('$index')"),
		qr/^ready\|$metric\|$rows\|$rows$/, "$metric: ready after the build");

	my %list = (100 => $least, 300 => $least_long);
	for my $size (sort { $a <=> $b } keys %list)
	{
		my ($recall, $returned, $searches, $graph) = split /\|/, $node->safe_psql('postgres', <<SQL);
SET navis.search_list_size = $size;
SELECT * FROM nt_recall('$index', '$op', 'queries', 10);
SQL
		note("$metric, list size $size: recall@10 $recall");
		cmp_ok($recall, '>=', $list{$size}, "$metric: recall\@10 at list size $size");
		is($returned, 10 * $queries, "$metric: ten rows a search at list size $size");
		is($graph, $searches, "$metric: the graph answered all searches at list size $size");
	}
	# A hundred rows need a longer frontier than the setting says.
	my ($recall, $returned, undef, $graph) = split /\|/, $node->safe_psql('postgres', <<SQL);
CREATE TABLE IF NOT EXISTS few AS SELECT * FROM queries ORDER BY id LIMIT 20;
SELECT * FROM nt_recall('$index', '$op', 'few', 100);
SQL
	note("$metric, LIMIT 100: recall@100 $recall");
	cmp_ok($recall, '>=', 0.85, "$metric: recall\@100");
	is("$returned|$graph", '2000|20', "$metric: a hundred rows a search");
}

# Without calibration every explored vector is loaded, which costs no recall
# and more vectors; with it fewer are loaded, at nearly the same recall.
my %loaded;
my %recall;
for my $casr ('on', 'off')
{
	($recall{$casr}) = split /\|/, $node->safe_psql('postgres',
		"SET navis.casr = $casr; SELECT * FROM nt_recall('words_l2', '<->', 'queries', 10);");
	$loaded{$casr} = $node->safe_psql('postgres', <<SQL);
SET navis.casr = $casr;
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries LIMIT 1) LIMIT 10) s;
SELECT vectors::float8 / explored FROM navis_last_scan();
SQL
	$loaded{$casr} =~ s/^10\n//;
}
note("loaded share of explored vectors: $loaded{on} calibrated, $loaded{off} without");
cmp_ok($loaded{off}, '>=', 1, 'all explored vectors are loaded without calibration');
cmp_ok($loaded{on}, '<', 1, 'fewer with it');
cmp_ok($recall{on}, '>=', $recall{off} - 0.02, 'at nearly the same recall');
is($node->safe_psql('postgres', "SELECT bool_and(ready) FROM navis_index_calibration('words_l2') WHERE limit_bound = 10 AND list_size_bound = 100"),
	't', 'the bucket of these searches is calibrated');

# Codes of a given size, and a graph of low degree.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE part AS SELECT * FROM words WHERE id <= 3000;
CREATE INDEX part_v ON part USING navis (v) WITH (pq_bytes = 16, max_degree = 16, build_list_size = 32);
SQL
my ($recall, undef, $searches, $graph) = split /\|/, $node->safe_psql('postgres', <<SQL);
SET navis.search_list_size = 200;
SELECT * FROM nt_recall('part_v', '<->', 'queries', 10);
SQL
note("16 bytes a code, degree 16: recall@10 $recall");
cmp_ok($recall, '>=', 0.8, 'short codes');
is($graph, $searches, 'short codes: the graph answered');
is($node->safe_psql('postgres', "SELECT pq_bytes, max_degree FROM navis_index_info('part_v')"), '16|16', 'as asked for');

$node->stop;
done_testing();
