# Cancelled and terminated searches, exact scans and inserts; sessions live on
# when the worker restarts.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('cancel');
$node->start;
make_helpers($node);
load_words($node, 'words', 6000);
$node->safe_psql('postgres', 'CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32)');

my $q = '(SELECT v FROM words WHERE id = 77)';
# A search in a fresh session's settings: 77, from the graph.
my $search = <<SQL;
SET enable_seqscan = off;
SELECT id FROM words ORDER BY v <-> $q LIMIT 1;
SELECT mode, hops > 0 FROM navis_last_scan();
SQL
# So many searches with a long list that they outlast any timeout here.
my $long = <<SQL;
SELECT count(*) FROM generate_series(1, 100000) i,
  LATERAL (SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 1 + i % 6000) LIMIT 2000) s;
SQL

is($node->safe_psql('postgres', $search), "77\ngraph|t", 'the graph answers');

# statement_timeout, again and again: the slot can be used at once
for my $ms (5, 20, 50, 150)
{
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL, on_error_stop => 0);
SET enable_seqscan = off;
SET navis.search_list_size = 10000;
SET statement_timeout = $ms;
$long
RESET statement_timeout;
RESET navis.search_list_size;
$search
SQL
	like($err, qr/canceling statement due to statement timeout/, "search cancelled after $ms ms");
	is($out, "77\ngraph|t", 'the next one in this session is right');
}
# exact scan and sweep
my ($rc, $out, $err) = $node->psql('postgres', <<SQL, on_error_stop => 0);
SET enable_seqscan = off;
SET enable_sort = off;
SET statement_timeout = 50;
SELECT sum(n) FROM generate_series(1, 100000) i, LATERAL (SELECT count(*) AS n FROM
  (SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 1 + i % 6000)) w) s;
RESET statement_timeout;
$search
SQL
like($err, qr/canceling statement due to statement timeout/, 'complete scans cancelled');
is($out, "77\ngraph|t", 'the next search is right');

# errors in the middle of a scan, in subtransactions and cursors
($rc, $out, $err) = $node->psql('postgres', <<SQL, on_error_stop => 0);
SET enable_seqscan = off;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> $q;
MOVE 50 IN c;
SAVEPOINT a;
SELECT 1 / (id - 77) FROM words ORDER BY v <-> $q LIMIT 5;
ROLLBACK TO a;
FETCH 1 FROM c;
SELECT mode FROM navis_last_scan();
COMMIT;
SQL
like($err, qr/division by zero/, 'an error in the middle of a scan');
like($out, qr/^\d+\ngraph$/, 'the cursor outside goes on');

# from another session
for my $function ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $victim = session($node);
	my $pid = $victim->query_safe('SELECT pg_backend_pid()');
	$victim->query_safe('SET enable_seqscan = off; SET navis.search_list_size = 10000;');
	$victim->query_until(qr/started/, "\\echo started\n$long");
	wait_until(sub {
		$node->safe_psql('postgres', "SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'active' }) or die 'no search';
	my $start = time;
	$node->safe_psql('postgres', "SELECT $function($pid)");
	ok(wait_until(sub {
		$node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND state = 'active'") eq '0' }, 30),
		"$function: the search ends");
	note(sprintf '%s took %.2f s', $function, time - $start);
	if ($function eq 'pg_cancel_backend')
	{
		is($victim->query("RESET navis.search_list_size; $search") =~ s/^.*?(?=77)//sr, "77\ngraph|t", 'the session goes on');
		$victim->quit;
	}
	else
	{
		$victim->{run}->kill_kill;
	}
	is($node->safe_psql('postgres', $search), "77\ngraph|t", "$function: the next session gets its answers");
}
# many at once
my @sessions = map { session($node) } 1 .. 6;
$_->query_until(qr/started/, "SET statement_timeout = 300; SET enable_seqscan = off; SET navis.search_list_size = 5000;\n\\echo started\n$long")
  for @sessions;
is($node->safe_psql('postgres', $search), "77\ngraph|t", 'searches of others go on beside six that are cancelled');
for my $session (@sessions)
{
	is($session->query("RESET statement_timeout; RESET navis.search_list_size; $search") =~ s/^.*?(?=77)//sr, "77\ngraph|t", 'and these go on afterwards');
	$session->quit;
}

# The worker is stopped: it comes back; sessions go on meanwhile, exactly.
my $session = session($node);
$session->query_safe('SET enable_seqscan = off');
$session->query_safe('BEGIN');
$session->query_safe("DECLARE c CURSOR FOR SELECT id FROM words ORDER BY v <-> $q");
is($session->query_safe('FETCH 1 FROM c'), 77, 'a cursor before');
$session->query_safe("DECLARE d CURSOR FOR SELECT id FROM words ORDER BY v <-> $q");
my @got = split /\n/, $session->query_safe('FETCH 30 FROM d');
my $worker = worker_pid($node);
$node->safe_psql('postgres', "INSERT INTO words SELECT id + 10000, word, array(SELECT -x FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n)
  FROM words WHERE id BETWEEN 1 AND 20");
kill 'TERM', $worker;
ok(wait_until(sub { gone($worker) }, 20), 'the worker leaves when asked to');
is($node->safe_psql('postgres', $search) =~ s/\n.*//r, '77', 'right answers meanwhile');
$session->query_safe('MOVE 4999 IN c');
is($session->query_safe('FETCH 1 FROM c') =~ /^\d+$/ ? 1 : 0, 1, 'the cursor goes on');
ok(wait_until(sub { $node->safe_psql('postgres', $search) eq "77\ngraph|t" }), 'the graph answers again');
push @got, split /\n/, $session->query_safe('FETCH 300 FROM d');
is($session->query_safe('SELECT mode FROM navis_last_scan()'), 'graph', 'another cursor goes on in the new engine');
my %seen;
is(scalar(@got) . '|' . grep({ $seen{$_}++ } @got), '330|0', 'and gives no row twice');
is($session->query_safe('COMMIT; SELECT count(*) FROM words'), 6020, 'and commits');
isnt(worker_pid($node), $worker, 'of another worker');
is($session->query_safe($search), "77\ngraph|t", 'also in the session from before');
is($session->query_safe("SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 10007) LIMIT 1"), 10007, 'inserted rows are there');
$session->query_safe("INSERT INTO words SELECT id + 20000, word, array(SELECT x / 2 FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n) FROM words WHERE id <= 5");
is($session->query_safe("SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 20005) LIMIT 1"), 20005, 'and new ones');
$session->quit;
my ($scan, $mode) = complete_scan($node, 'words', $q);
is($scan, table_rows($node, 'words', $q), 'a complete scan has the table\'s rows');

# A build that loses its worker fails, and leaves nothing.
my $before = sidecars($node);
my $build = session($node);
$build->query_until(qr/started/, "SET navis.build_threads = 1;\n\\echo started\nCREATE INDEX words_w ON words USING navis (v) WITH (max_degree = 128, build_list_size = 1000);\n");
ok(wait_until(sub { $node->safe_psql('postgres', 'SELECT phase FROM pg_stat_progress_create_index') =~ /linking graph/ }, 60), 'a build is running');
$worker = worker_pid($node);
kill 'TERM', $worker;
ok(wait_until(sub { gone($worker) }, 20), 'the worker leaves in the middle of a build');
ok(wait_until(sub { $node->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_progress_create_index') eq '0' }, 20), 'the build ends');
$build->query('SELECT 1');
like($build->{stderr} . join("\n", log_lines($node, 'ERROR')), qr/the navis engine/, 'with an error about the engine');
$build->quit;
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'words_w'"), 0, 'no index is left');
ok(wait_until(sub { worker_pid($node) && sidecars($node) == $before }, 30), 'no sidecar is left');
ok(wait_until(sub { $node->safe_psql('postgres', $search) eq "77\ngraph|t" }), 'the graph answers again');

# stopping the server in the middle of searches
my @busy = map { session($node) } 1 .. 3;
$_->query_until(qr/started/, "SET enable_seqscan = off; SET navis.search_list_size = 10000;\n\\echo started\n$long") for @busy;
my $start = time;
$node->stop('fast');
note(sprintf 'fast shutdown took %.2f s', time - $start);
cmp_ok(time - $start, '<', 30, 'a fast shutdown in the middle of searches');
$_->{run}->kill_kill for @busy;
$node->start;
is($node->safe_psql('postgres', $search), "77\ngraph|t", 'the graph answers after it');
is(scalar(log_lines($node, 'PANIC|signal 11|signal 6|TRAP|did not stop in time')), 0, 'no crash');
$node->stop;
done_testing();
