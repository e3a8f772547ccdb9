# Without the engine: right answers by the exact scan, writes accepted, one
# warning a session, and what was written is found once the engine is back.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('no_engine', preload => 0);
my $preload = "shared_preload_libraries = 'navis'\n";
my $q = '(SELECT v FROM words WHERE id = 77)';
# Five searches, and how the last one was answered.
my $searches = <<'SQL';
SET enable_seqscan = off;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5001) LIMIT 10;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5002) LIMIT 10;
SELECT id FROM words WHERE id % 500 = 7 ORDER BY v <-> (SELECT v FROM queries WHERE id = 5003) LIMIT 10;
SELECT mode, rows, hops, edge_pages, rows_compared > 0 FROM navis_last_scan();
SQL
my $truth;

sub check_exact
{
	my ($name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $searches);
	my $rows = $node->safe_psql('postgres', 'SELECT count(*) FROM words');

	is($rc, 0, "$name: no error");
	like($out, qr/^exact\|\d+\|0\|0\|t$/m, "$name: answered by the exact scan");
	is($out =~ s/^exact.*\n?//mr =~ s/\n$//r, exact_answer(), "$name: right answers");
	my @warnings = $err =~ /WARNING:.*the navis engine is not running/g;
	is(scalar(@warnings), 1, "$name: one warning in a session with several searches");
	my ($scan, $mode) = complete_scan($node, 'words', $q);
	is($scan, table_rows($node, 'words', $q), "$name: a complete scan has the table's rows");
	is($mode, 'exact', "$name: exact");
	return $err;
}

sub exact_answer
{
	return $node->safe_psql('postgres', "SET enable_indexscan = off; " . $searches =~ s/SELECT mode.*\n//r =~ s/SET enable_seqscan = off;\n//r);
}

# An index made by a server with the engine.
$node->append_conf('postgresql.conf', $preload);
$node->start;
make_helpers($node);
load_words($node, 'words', 2000);
query_words($node, 'queries', 5001, 60);
$node->safe_psql('postgres', 'CREATE INDEX words_v ON words USING navis (v)');
like($node->safe_psql('postgres', $searches), qr/^graph/m, 'with the engine the graph answers');

# Not preloaded
$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$node->restart;
my $err = check_exact('not preloaded');
my $stats = "SELECT state, pid, started, searches FROM navis_stat_worker;
SELECT indexrelname, state, searches, vertices FROM navis_stat_indexes";
is($node->safe_psql('postgres', $stats), "not preloaded|||\nwords_v|no engine||", 'not preloaded: statistics say so');
like($err, qr/HINT:.*shared_preload_libraries = 'navis'/, 'the hint says what to set');
is($node->safe_psql('postgres', "LOAD 'navis'; SHOW navis.search_list_size"), '100', 'settings are there');
is($node->safe_psql('postgres', "SELECT state, dimensions, live_rows, vertices FROM navis_index_info('words_v')"),
	'no engine|100|2000|', 'what the journal knows can be asked');
# The planner is told: a plain search of a small table does not take the index.
unlike($node->safe_psql('postgres', 'EXPLAIN SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries LIMIT 1) LIMIT 10'),
	qr/Index Scan using words_v/, 'the planner knows');

# writes
my ($rc, $out, $stderr) = $node->psql('postgres', <<SQL);
INSERT INTO words SELECT id, 'n' || id, v FROM queries WHERE id <= 5030;
UPDATE words SET v = (SELECT v FROM queries WHERE id = 5031) WHERE id = 3;
DELETE FROM words WHERE id = 4;
UPDATE words SET word = 'renamed' WHERE id = 5;
VACUUM (INDEX_CLEANUP on) words;
INSERT INTO words SELECT id, 'n' || id, v FROM queries WHERE id BETWEEN 5041 AND 5050;
SQL
is($rc, 0, 'writes are accepted');
is(scalar(() = $stderr =~ /WARNING/g), 1, 'one warning in a session that writes');
check_exact('after writes');
ok(vacuum($node, 'words', 'words_v'), 'VACUUM removes the dead rows');
($rc, $out, $stderr) = $node->psql('postgres', "INSERT INTO words VALUES (1, 'x', '{1,2}')");
like($stderr, qr/duplicate key|vector has 2 dimensions, expected 100/, 'bad values are refused');
($rc, $out, $stderr) = $node->psql('postgres', "INSERT INTO words VALUES (9999, 'x', '{1,2}')");
like($stderr, qr/vector has 2 dimensions, expected 100/, 'wrong dimensions are refused');

# builds
($rc, $out, $stderr) = $node->psql('postgres', 'CREATE INDEX words_w ON words USING navis (v)');
isnt($rc, 0, 'CREATE INDEX over rows fails');
like($stderr, qr/ERROR:  cannot build index "words_w" over a table with rows: the navis engine is not running/,
	'with a clear error');
like($stderr, qr/HINT:  Set shared_preload_libraries = 'navis' and restart the server\./, 'and a hint');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'words_w'"), 0, 'nothing is left of it');
($rc, $out, $stderr) = $node->psql('postgres', 'REINDEX INDEX words_v');
isnt($rc, 0, 'REINDEX fails as well');
$node->safe_psql('postgres', <<SQL);
CREATE TABLE later (id int PRIMARY KEY, v real[]);
CREATE INDEX later_v ON later USING navis (v);
CREATE UNLOGGED TABLE later_unlogged (id int PRIMARY KEY, v real[]);
CREATE INDEX later_unlogged_v ON later_unlogged USING navis (v);
INSERT INTO later SELECT id, v FROM words WHERE id <= 1500;
INSERT INTO later_unlogged SELECT id, v FROM words WHERE id <= 20;
SQL
is($node->safe_psql('postgres', <<SQL), "77\nexact", 'an index made on an empty table takes rows and answers');
SET enable_seqscan = off;
SELECT id FROM later ORDER BY v <-> (SELECT v FROM words WHERE id = 77) LIMIT 1;
SELECT mode FROM navis_last_scan();
SQL
is($node->safe_psql('postgres', <<SQL), '7', 'also an unlogged one');
SET enable_seqscan = off;
SELECT id FROM later_unlogged ORDER BY v <-> (SELECT v FROM words WHERE id = 7) LIMIT 1;
SQL
# NULLs only need no engine either.
$node->safe_psql('postgres', 'CREATE TABLE nulls AS SELECT NULL::real[] AS v FROM generate_series(1, 10)');
$node->safe_psql('postgres', 'CREATE INDEX ON nulls USING navis (v)');

# Preloaded, but no worker slot
$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'navis'");
$node->append_conf('postgresql.conf', "max_worker_processes = 0\n");
$node->restart;
$err = check_exact('no worker slot');
like($err, qr/HINT:.*max_worker_processes/, 'no worker slot: another hint');
unlike($err, qr/shared_preload_libraries/, 'and not the one of before');
($rc, $out, $stderr) = $node->psql('postgres', 'CREATE INDEX words_w ON words USING navis (v)');
like($stderr, qr/the navis engine is not running.*HINT:.*max_worker_processes/s, 'CREATE INDEX says it too');
$node->safe_psql('postgres', "INSERT INTO words SELECT id, 'n' || id, v FROM queries WHERE id BETWEEN 5051 AND 5055");

# The engine is back: what was written meanwhile is found by the graph.
$node->append_conf('postgresql.conf', "max_worker_processes = 8\n");
$node->restart;
($rc, $out, $stderr) = $node->psql('postgres', <<SQL);
SET enable_seqscan = off;
SET navis.search_list_size = 1000;
SET navis.casr = off;
SELECT count(*) FROM queries q, LATERAL (SELECT id, v <-> q.v AS d FROM words ORDER BY v <-> q.v LIMIT 1) s
WHERE s.d = 0 AND s.id = q.id;
SELECT index::regclass, mode, rows, hops > 0, edge_pages > 0, pending <= 46 FROM navis_last_scan();
SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5031) LIMIT 1;
SQL
is($out, "45\nwords_v|graph|1|t|t|t\n3", 'with the engine again the graph finds what was written');
is($stderr, '', 'and nothing is said');
my ($scan, $mode) = complete_scan($node, 'words', $q);
is($scan, table_rows($node, 'words', $q), 'a complete scan has the table\'s rows');
like($mode, qr/^graph/, 'it began in the graph');
ok(wait_ready($node, 'later_v'), 'the index made without the engine gets its graph');
is($node->safe_psql('postgres', <<SQL), "77\ngraph|t", 'and answers from it');
SET enable_seqscan = off;
SELECT id FROM later ORDER BY v <-> (SELECT v FROM words WHERE id = 77) LIMIT 1;
SELECT mode, hops > 0 AND edge_pages > 0 FROM navis_last_scan();
SQL
$node->stop;
done_testing();
