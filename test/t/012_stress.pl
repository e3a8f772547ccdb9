# Writes under stress: sessions insert, update, delete, search and vacuum at the
# same time, once undisturbed, once while the worker is ended, once while it is
# killed, once while everything is killed.  Each time the graph, once it has
# settled, must have the table's rows, as many live vertices as there are
# distinct vectors, and its recall.  Then 5,000 equal vectors among others.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# Of the ten nearest, with a frontier of 100; a fresh build has 0.99 here.
my $recall_needed = 0.97;
my $rows = 5000;
my $pool = 8000;
my $queries = 100;
my $clients = 5;
# Transactions a second that slow machines keep up with, too, for a minute; as
# fast as they go and for longer by test/soak.sh.
my $seconds = $ENV{NAVIS_STRESS_SECONDS} // 60;
my $rate = $ENV{NAVIS_STRESS_RATE} // 80;

my $node = new_node('stress', conf => <<CONF);
navis.checkpoint_timeout = 2
log_min_messages = warning
restart_after_crash = on
CONF
$node->start;
make_helpers($node);
load_words($node, 'words', $rows);
make_pool($node, $rows + 1, $pool);
query_words($node, 'queries', $rows + $pool + 1, $queries);
$node->safe_psql('postgres', <<'SQL');
CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 48);
-- A vector that nobody else has.
CREATE FUNCTION moved(i int, by float8) RETURNS real[] LANGUAGE sql STABLE AS
  'SELECT array_agg((x + by * sin(n))::real ORDER BY n) FROM unnest(pool(i)) WITH ORDINALITY u (x, n)';
-- Recall@10 by distance: among equal vectors the exact scan may name other rows.
CREATE FUNCTION near(q real[], OUT recall float8, OUT graph int) LANGUAGE plpgsql AS $$
DECLARE
  d float8[];
  truth float8[];
BEGIN
  PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
  EXECUTE 'SELECT array_agg(v <-> $1) FROM (SELECT v FROM words ORDER BY v <-> $1 LIMIT 10) s' INTO d USING q;
  graph := (SELECT count(*) FROM navis_last_scan() WHERE mode = 'graph' AND rows = 10 AND hops > 0);
  PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
  EXECUTE 'SELECT array_agg(v <-> $1) FROM (SELECT v FROM words ORDER BY v <-> $1 LIMIT 10) s' INTO truth USING q;
  recall := (SELECT count(*) FROM unnest(d) x WHERE x <= (SELECT max(t) FROM unnest(truth) t)) / 10.0;
END $$;
SQL

my $scripts = mixed_scripts($rows, $pool, { search => 6, insert => 6, insert_aborted => 1, update => 4 },
	insert_moved => [ 6, <<'SQL' ],
\set i random(0, 7999)
\set by random(1, 1000000)
INSERT INTO words SELECT nextval('ids'), 'moved', moved(:i, :by / 1e7);
SQL
	insert_many => [ 2, <<'SQL' ],
\set i random(0, 7899)
BEGIN;
INSERT INTO words SELECT nextval('ids'), 'many', pool(:i + n) FROM generate_series(1, 10) n;
SAVEPOINT s;
INSERT INTO words SELECT nextval('ids'), 'undone', pool(:i + n) FROM generate_series(1, 3) n;
ROLLBACK TO s;
INSERT INTO words SELECT nextval('ids'), 'equal', pool(:i + n % 2) FROM generate_series(1, 5) n;
COMMIT;
SQL
	update_other => [ 2, <<'SQL' ],
\set id random(1, 5000)
UPDATE words SET word = 'seen' WHERE id = :id;
SQL
	delete => [ 5, <<'SQL' ],
\set id random(1, 5000)
DELETE FROM words WHERE id IN (SELECT id FROM words WHERE id >= :id ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED);
SQL
	delete_new => [ 4, <<'SQL' ],
\set back random(1, 400)
DELETE FROM words WHERE id = (SELECT last_value FROM ids) - :back;
SQL
	statistics => [ 1, <<'SQL' ],
SELECT * FROM navis_stat_indexes, navis_stat_worker;
SQL
	vacuum => [ 1, "VACUUM (INDEX_CLEANUP on) words;\n" ]);

# Runs what pgbench is told; after some seconds what is given.
sub stress
{
	my ($length, $after, $event) = @_;
	my $bench = start_bench($node, $scripts, '-c', $clients, '-j', 2, @$length);

	if (defined $event)
	{
		usleep($after * 1e6);
		$event->();
	}
	return finish_bench($bench);
}

my $log_at = 0;

sub one { return $node->safe_psql('postgres', $_[0]) }

# The graph, when everything is linked, against the table.
sub settled
{
	my ($name) = @_;
	my $q = '(SELECT v FROM queries ORDER BY id LIMIT 1)';

	wait_ready($node, 'words_v');
	ok(wait_until(sub { one("SELECT unlinked_rows FROM navis_stat_indexes WHERE indexrelname = 'words_v'") eq '0' }),
		"$name: everything is linked");
	ok(vacuum($node, 'words', 'words_v'), "$name: as many entries as rows");
	my ($scan, $mode) = complete_scan($node, 'words', $q);
	is($scan, table_rows($node, 'words', $q), "$name: a complete scan has the table's rows");
	like($mode, qr/^graph/, "$name: from the graph");
	is(one("SELECT vertices - deleted_vertices - (SELECT count(DISTINCT v) FROM words) FROM navis_stat_indexes WHERE indexrelname = 'words_v'"),
		0, "$name: a live vertex for each distinct vector");
	my ($recall, $graph) = split /\|/, one("SELECT round(avg(n.recall)::numeric, 4), sum(n.graph) FROM queries, near(v) n");
	note("$name: recall $recall");
	cmp_ok($recall, '>=', $recall_needed, "$name: recall\@10 against the exact scan");
	is($graph, $queries, "$name: all searches by the graph");
	# The rows that came last, and those that have been there for long.  Now and
	# then a vertex loses its links from others to nearer ones.
	for my $order ('DESC', 'ASC')
	{
		cmp_ok(one(<<SQL), '<=', 3, "$name: 99 % of the rows are found by their own vectors, id $order");
SET enable_seqscan = off;
SET navis.casr = off;
SELECT count(*) FROM (SELECT id, v AS q FROM words ORDER BY id $order LIMIT 300) w
WHERE NOT EXISTS (SELECT FROM (SELECT v <-> q AS d FROM words ORDER BY v <-> q LIMIT 1) s WHERE d = 0)
SQL
	}
	is(one('SELECT count(*) FROM searches WHERE rows <> k OR different <> rows OR NOT ordered'),
		0, "$name: every search had its LIMIT, no row twice, in order");
	my @lines = log_lines($node, 'PANIC|signal 11|signal 6|TRAP|ERROR:|damaged|could not be linked', $log_at);
	# Sessions that were ended, and those that met a server that was not up.
	@lines = grep { !/terminating|the database system is|crash of another/ } @lines;
	is(join("\n", @lines), '', "$name: nothing in the log");
	$log_at = -s $node->logfile;
	return;
}

sub statistics
{
	return split /\|/, one(<<SQL);
SELECT rows_inserted, rows_equal, seeks, seek_explored, seek_vectors, searches, queue_length, rows_retried,
       relinks, checkpoints FROM navis_stat_indexes WHERE indexrelname = 'words_v'
SQL
}

# --- undisturbed ---
my ($rc, $out, $err) = stress([ '-T', $seconds, '-R', $rate ]);
is($rc, 0, 'no client failed') or diag($err);
is($err =~ s/^pgbench: .*\n//mgr, '', 'no error, no warning');
my ($inserted, $equal, $seeks, $explored, $vectors, $searches, $queue, $retried, $relinks, $checkpoints) = statistics();
my ($called) = one('SELECT count(*) FROM searches');
note("$inserted rows linked, $equal to vertices that were there; $called searches");
settled('undisturbed');
($inserted, $equal, $seeks, $explored, $vectors, $searches, $queue, $retried, $relinks, $checkpoints) = statistics();
cmp_ok($inserted, '>', 500, 'rows were linked');
cmp_ok($equal, '>', 50, 'some to vertices that were there');
cmp_ok($seeks, '>=', $inserted - $equal, 'a position was sought for the others');
cmp_ok($seeks, '<', $inserted, 'and for few more');
cmp_ok($vectors, '<=', $explored, 'no more vectors loaded than explored');
cmp_ok($searches, '>=', $called, 'searches were counted');
is("$queue $retried", '0 0', 'nothing waits, nothing failed');
cmp_ok($relinks, '>', $seeks, 'neighbours got links back');
cmp_ok($checkpoints, '>', 0, 'checkpoints were published');

# --- the worker ends in the middle, and is started again ---
my $pid = worker_pid($node);
($rc, $out, $err) = stress([ '-t', 250 ], 2, sub { kill 'TERM', $pid });
is($rc, 0, 'worker ended: no client failed') or diag($err);
unlike($err, qr/ERROR/, 'worker ended: no error');
ok(wait_until(sub { (worker_pid($node) // $pid) != $pid }), 'worker ended: another one');
settled('worker ended');

# --- it is killed: all sessions end, the server recovers ---
($rc, $out, $err) = stress([ '-t', 20000 ], 4, sub { kill 'KILL', worker_pid($node) });
isnt($rc, 0, 'worker killed: clients lost their sessions');
ok(wait_until(sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 }), 'worker killed: the server is back');
settled('worker killed');

# --- everything is killed ---
($rc, $out, $err) = stress([ '-t', 20000 ], 4, sub { kill9_all($node) });
isnt($rc, 0, 'all killed: clients lost their sessions');
$node->start;
settled('all killed');

# --- equal vectors ---
# 1,500 others: fewer than 1,024 distinct vectors would get no graph.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE equal (id int PRIMARY KEY, v real[]);
INSERT INTO equal SELECT id, v FROM pool ORDER BY id LIMIT 1500;
CREATE TABLE others AS SELECT id, v FROM equal WHERE id % 10 = 0;
CREATE TABLE filled (LIKE equal INCLUDING ALL);
INSERT INTO filled SELECT * FROM equal ORDER BY id LIMIT 1100;
CREATE INDEX filled_v ON filled USING navis (v) WITH (max_degree = 32, build_list_size = 48);
INSERT INTO filled SELECT 50000 + i, v FROM generate_series(1, 2500) i, (SELECT v FROM queries ORDER BY id LIMIT 1) q;
INSERT INTO filled SELECT * FROM equal ON CONFLICT DO NOTHING;
INSERT INTO filled SELECT 60000 + i, v FROM generate_series(1, 2500) i, (SELECT v FROM queries ORDER BY id LIMIT 1) q;
INSERT INTO equal SELECT 50000 + i, v FROM generate_series(1, 5000) i, (SELECT v FROM queries ORDER BY id LIMIT 1) q;
CREATE INDEX equal_v ON equal USING navis (v) WITH (max_degree = 32, build_list_size = 48);
SQL
for my $table ('equal', 'filled')
{
	my $name = $table eq 'equal' ? '5,000 equal by CREATE INDEX' : '5,000 equal by INSERT';

	ok(wait_until(sub { one("SELECT unlinked_rows FROM navis_stat_indexes WHERE relname = '$table'") eq '0' }),
		"$name: everything is linked");
	is(one("SELECT vertices FROM navis_stat_indexes WHERE relname = '$table'"), 1501, "$name: one vertex");
	is(one(<<SQL), '500|500|0|graph', "$name: LIMIT 500");
SET enable_seqscan = off;
SELECT n, different, d, (SELECT mode FROM navis_last_scan()) FROM (
  SELECT count(*) AS n, count(DISTINCT id) AS different, max(v <-> q) AS d
  FROM (SELECT v AS q FROM queries ORDER BY id LIMIT 1) q,
       LATERAL (SELECT id, v FROM $table ORDER BY v <-> q LIMIT 500) s) x
SQL
	is(one(<<SQL), 1500, "$name: each of the others finds itself");
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id, v AS q FROM $table WHERE id < 50000) o,
  LATERAL (SELECT id, v FROM $table ORDER BY v <-> q LIMIT 1) s WHERE s.id = o.id AND v <-> q = 0
SQL
	my ($recall, $n, $asked, $graph) = split /\|/, one("SELECT * FROM nt_recall('${table}_v', '<->', 'others', 10)");
	note("$name: recall of the others $recall");
	cmp_ok($recall, '>=', 0.95, "$name: recall of the others");
	is($graph, $asked, "$name: by the graph");
}
is(scalar(log_lines($node, 'ERROR:|PANIC|damaged', $log_at)), 0, 'nothing in the log');
$node->stop;
done_testing();
