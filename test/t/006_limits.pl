# Limits: navis.build_memory, a bad row in a large table, navis.pending_memory.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

# A row of 100 dimensions takes about half a kilobyte: some 250 rows fit.
my $node = new_node('limits', conf => "navis.pending_memory = 128kB\nnavis.insert_threads = 0\n");
my $options = 'WITH (max_degree = 16, build_list_size = 24, pq_bytes = 16)';
$node->start;
make_helpers($node);
load_words($node, 'words', 7000);

sub nothing_left
{
	my ($name) = @_;

	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'words_v'"), 0, "$name: no index is left");
	ok(wait_until(sub { return sidecars($node) == 0 }, 30), "$name: no sidecar is left");
	return;
}

# build_memory
my ($rc, $out, $err) = $node->psql('postgres', "SET navis.build_memory = '1MB'; CREATE INDEX words_v ON words USING navis (v)");
isnt($rc, 0, 'a build that does not fit navis.build_memory fails');
like($err, qr/ERROR:  .*build.* (\d+) (MB|kB|bytes).* (\d+) (MB|kB|bytes)/i, 'the error names both figures');
like($err, qr/HINT:  .*navis\.build_memory/, 'and the setting');
note($err);
nothing_left('build_memory');
($rc, $out, $err) = $node->psql('postgres', <<SQL);
\\set VERBOSITY sqlstate
SET navis.build_memory = '1MB';
CREATE INDEX words_v ON words USING navis (v);
SQL
like($err, qr/ERROR:  54000/, 'its SQLSTATE is program_limit_exceeded');
# Rows the estimate knows nothing of: a partial index counts as it goes.
($rc, $out, $err) = $node->psql('postgres',
	"SET navis.build_memory = '1MB'; CREATE INDEX words_v ON words USING navis (v) WHERE id > 0");
like($err, qr/ERROR:  .*HINT:  .*navis\.build_memory/s, 'a build without an estimate fails as well');
nothing_left('build_memory without estimate');

# The first bad row is row 6,900.
$node->safe_psql('postgres', "UPDATE words SET v = v[1:99] WHERE id = 6900");
my $ctid = $node->safe_psql('postgres', 'SELECT ctid FROM words WHERE id = 6900');
my $count = $node->safe_psql('postgres', "SELECT count(*) FROM words WHERE ctid <= '$ctid'");
($rc, $out, $err) = $node->psql('postgres', "CREATE INDEX words_v ON words USING navis (v) $options");
isnt($rc, 0, 'a bad row: the build fails');
like($err, qr/ERROR:  vector has 99 dimensions, expected 100/, 'found and expected');
like($err, qr/CONTEXT:  building index "words_v": row $count of the table scan, ctid \Q$ctid\E/, 'the row is named');
nothing_left('bad row');
is($node->safe_psql('postgres', 'SELECT count(*) FROM words'), 7000, 'the table can be used');
$node->safe_psql('postgres', 'DELETE FROM words WHERE id > 3000');

# pending_memory, where nothing is linked
$node->safe_psql('postgres', <<SQL);
VACUUM FULL words;
CREATE TABLE more AS SELECT id + 20000 AS id, word, array(SELECT -x FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n) AS v
  FROM words WHERE id <= 1000;
CREATE INDEX words_v ON words USING navis (v) $options;
SQL
# Each row finds itself: the graph is thin and its codes are short, so the
# frontier is wide and every explored vector is loaded.
my $search = <<SQL;
SET enable_seqscan = off;
SET navis.search_list_size = 1000;
SET navis.casr = off;
SELECT count(*) FROM more q, LATERAL (SELECT id, v <-> q.v AS d FROM words ORDER BY v <-> q.v LIMIT 1) s
WHERE q.id % 100 = 1 AND s.id = q.id AND s.d = 0;
SELECT mode, hops > 0 FROM navis_last_scan();
SQL
$node->safe_psql('postgres', 'INSERT INTO words SELECT * FROM more WHERE id <= 20050');
is($node->safe_psql('postgres', $search), "1\ngraph|t", 'a few rows more: the graph answers');
my $offset = -s $node->logfile;
($rc, $out, $err) = $node->psql('postgres', <<SQL);
INSERT INTO words SELECT * FROM more WHERE id BETWEEN 20051 AND 20400;
INSERT INTO words SELECT * FROM more WHERE id BETWEEN 20401 AND 20500;
$search
SQL
is($rc, 0, 'inserts beyond navis.pending_memory are accepted');
is($out, "5\nexact|f", 'the exact scan answers, right');
my @warnings = $err =~ /WARNING:  .*/g;
is(scalar(@warnings), 1, 'one warning') or diag($err);
like($err, qr/WARNING:  rows of index "words_v" that are not linked yet exceed navis\.pending_memory/, 'it says why');
like($err, qr/HINT:  REINDEX/, 'and what to do');
($rc, $out, $err) = $node->psql('postgres', $search);
is($out, "5\nexact|f", 'another session: exact');
is(scalar(() = $err =~ /WARNING/g), 1, 'another session: one warning');
is($node->safe_psql('postgres', "SELECT state FROM navis_index_info('words_v')"), 'pending memory full', 'the state says it');
is($node->safe_psql('postgres', "SELECT pending_bytes <= pending_limit FROM navis_index_info('words_v')"), 't', 'the limit holds');
is(scalar(log_lines($node, 'scans are exact', $offset)), 1, 'one line in the log');
my ($scan) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 77)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 77)'), 'no row is missing');
# other indexes go on
$node->safe_psql('postgres', "CREATE TABLE others AS SELECT id, v FROM words WHERE id <= 1500; CREATE INDEX others_v ON others USING navis (v) $options");
is($node->safe_psql('postgres', <<SQL), "77\ngraph", 'another index answers from its graph');
SET enable_seqscan = off;
SELECT id FROM others ORDER BY v <-> (SELECT v FROM words WHERE id = 77) LIMIT 1;
SELECT mode FROM navis_last_scan();
SQL
$node->safe_psql('postgres', 'REINDEX INDEX words_v');
($rc, $out, $err) = $node->psql('postgres', $search);
is($out, "5\ngraph|t", 'after REINDEX the graph answers');
is($err, '', 'without a warning');
is($node->safe_psql('postgres', "SELECT state, vertices, pending_rows, pending_bytes FROM navis_index_info('words_v')"), 'ready|3500|0|0',
	'nothing is pending');

# Restarted with more rows than fit: what is missing is too much, so the graph
# is built again in the background.
$node->safe_psql('postgres', 'INSERT INTO words SELECT * FROM more WHERE id > 20500');
$offset = -s $node->logfile;
$node->restart;
is($node->safe_psql('postgres', $search) =~ s/\n.*//r, '10', 'restarted with more unlinked rows than fit: right answers');
ok(wait_ready($node, 'words_v'), 'the graph is built again');
is($node->safe_psql('postgres', $search), "10\ngraph|t", 'and answers');
is($node->safe_psql('postgres', "SELECT vertices, pending_rows FROM navis_index_info('words_v')"), '4000|0', 'with all rows');

# Dead rows need no vector: those of a load that was rolled back are more than
# fit, and after a restart nothing is built again for them.  Once beside a
# graph, once where there are too few rows for one.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE young (LIKE words);
CREATE INDEX young_v ON young USING navis (v) $options;
INSERT INTO young SELECT * FROM words WHERE id <= 100;
BEGIN; INSERT INTO young SELECT * FROM words WHERE id <= 1500; ROLLBACK;
BEGIN; INSERT INTO words SELECT id + 50000, word, v FROM words WHERE id <= 1500; ROLLBACK;
SQL
$node->restart;
$offset = -s $node->logfile;
is($node->safe_psql('postgres', $search), "10\ngraph|t", 'restarted after a rolled-back load: the graph answers at once');
is($node->safe_psql('postgres', <<SQL), "77\ngraph|0|100", 'and so do the rows of a small table');
SET enable_seqscan = off;
SELECT id FROM young ORDER BY v <-> (SELECT v FROM young WHERE id = 77) LIMIT 1;
SELECT mode, hops, pending FROM navis_last_scan();
SQL
sleep 3;    # a few times navis.collect_interval
is(scalar(log_lines($node, 'rebuilt the graph', $offset)), 0, 'nothing is built again');
$node->stop;
done_testing();
