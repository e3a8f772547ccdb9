# Nothing stays behind: DROP of indexes, tables and databases, TRUNCATE,
# REINDEX, rolled-back, cancelled, killed and crashed builds.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $options = 'WITH (max_degree = 16, build_list_size = 24, pq_bytes = 16)';
my $node = new_node('drop', conf => "restart_after_crash = on\nlog_min_messages = warning\n");
$node->start;
make_helpers($node);
load_words($node, 'words', 3000);
$node->safe_psql('postgres', 'CREATE DATABASE second');
make_helpers($node, 'second');
load_words($node, 'words', 1500, db => 'second');

# Descriptors of the worker to files that were deleted.
sub deleted_files
{
	my $pid = worker_pid($node) // die 'no worker';

	return grep { /\/navis\/.*\(deleted\)$/ } map { readlink($_) // '' } glob("/proc/$pid/fd/*");
}

# Identities in the directory are those of the indexes, and no file is held
# open that is gone.
sub check_directory
{
	my ($name, $expected) = @_;
	my @left;
	my $ok = wait_until(sub { @left = sidecars($node); return @left == $expected }, 30);

	ok($ok, "$name: $expected sidecars") or diag(join "\n", @left);
	ok(wait_until(sub { return !deleted_files() }, 10), "$name: no deleted file is open")
	  or diag(join "\n", deleted_files());
	return;
}

sub graph_answers
{
	my ($table, $db) = @_;

	return $node->safe_psql($db // 'postgres', <<SQL);
SET enable_seqscan = off;
SELECT id FROM $table ORDER BY v <-> (SELECT v FROM $table WHERE id = 77) LIMIT 1;
SELECT mode, hops > 0 AND edge_pages > 0 FROM navis_last_scan();
SQL
}

# Several indexes in two databases
$node->safe_psql('postgres', <<SQL);
CREATE TABLE copies AS SELECT id, v FROM words WHERE id <= 1500;
CREATE INDEX words_l2 ON words USING navis (v) $options;
CREATE INDEX words_cosine ON words USING navis (v real_cosine_ops) $options;
CREATE INDEX copies_v ON copies USING navis (v) $options;
CREATE TABLE empty (id int, v real[]);
CREATE INDEX empty_v ON empty USING navis (v);
SQL
$node->safe_psql('second', "CREATE INDEX words_v ON words USING navis (v) $options");
check_directory('made', 4);
is(graph_answers('words'), "77\ngraph|t", 'they answer');
is(graph_answers('words', 'second'), "77\ngraph|t", 'in both databases');

$node->safe_psql('postgres', 'DROP INDEX words_cosine');
check_directory('DROP INDEX', 3);
$node->safe_psql('postgres', 'REINDEX INDEX words_l2');
check_directory('REINDEX', 3);
$node->safe_psql('postgres', 'REINDEX INDEX CONCURRENTLY words_l2');
check_directory('REINDEX CONCURRENTLY', 3);
is(graph_answers('words'), "77\ngraph|t", 'the new one answers');
$node->safe_psql('postgres', 'TRUNCATE copies');
check_directory('TRUNCATE', 2);
$node->safe_psql('postgres', 'INSERT INTO copies SELECT id, v FROM words WHERE id <= 1500; REINDEX INDEX copies_v');
check_directory('filled again', 3);
$node->safe_psql('postgres', 'DROP TABLE copies');
check_directory('DROP TABLE', 2);
# a table moved to another tablespace keeps its sidecar: the relfilenode changes
my $space = $node->basedir . '/space';
mkdir $space or die $!;
$node->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$space'");
$node->safe_psql('postgres', 'ALTER INDEX words_l2 SET TABLESPACE space');
sleep 3;
check_directory('SET TABLESPACE', 2);
is(graph_answers('words'), "77\ngraph|t", 'it still answers from the graph');
$node->safe_psql('postgres', "BEGIN; CREATE INDEX words_x ON words USING navis (v) $options; ROLLBACK;");
check_directory('rolled-back CREATE INDEX', 2);
$node->safe_psql('postgres', "BEGIN; SAVEPOINT s; CREATE INDEX words_x ON words USING navis (v) $options; ROLLBACK TO s; COMMIT;");
check_directory('CREATE INDEX rolled back to a savepoint', 2);
# an uncommitted one is not taken away, however long it takes
my $open = session($node);
$open->query_safe('BEGIN');
$open->query_safe("CREATE INDEX words_x ON words USING navis (v) $options");
sleep 4;
is($open->query_safe(<<SQL), "77\ngraph|t", 'the sidecar of an uncommitted index stays');
SET LOCAL enable_seqscan = off;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = 77) LIMIT 1;
SELECT mode, hops > 0 AND edge_pages > 0 FROM navis_last_scan();
SQL
$open->query_safe('ROLLBACK');
check_directory('rolled back later', 2);
$open->quit;
# temporary tables, dropped with their session
$node->safe_psql('postgres', <<SQL);
CREATE TEMP TABLE t AS SELECT id, v FROM words;
CREATE INDEX t_v ON t USING navis (v) $options;
SQL
check_directory('temporary table', 2);

$node->safe_psql('postgres', 'DROP DATABASE second');
check_directory('DROP DATABASE', 1);
$node->safe_psql('postgres', 'CREATE DATABASE third TEMPLATE postgres');
is(graph_answers('words', 'third') =~ s/\n.*//r, '77', 'a copied database answers');
ok(wait_ready($node, 'words_l2', 'third'), 'and gets a graph of its own');
check_directory('CREATE DATABASE', 2);
$node->safe_psql('postgres', 'DROP DATABASE third');
check_directory('DROP DATABASE again', 1);

# Builds cancelled in each phase.  They are made slow by a longer list.
$node->safe_psql('postgres', 'CREATE TABLE many AS SELECT id, v FROM words UNION ALL
  SELECT id + 10000, array(SELECT -x FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n) FROM words');
my $slow = 'CREATE INDEX many_v ON many USING navis (v) WITH (max_degree = 128, build_list_size = 1000)';
my %stopped;

# What a build says it is doing, or nothing when there is none.
my $watch = session($node);
sub phase
{
	return $watch->query_safe('SELECT pid, phase FROM pg_stat_progress_create_index');
}

sub interrupt_build
{
	my ($function, $wanted, $name, $command) = @_;
	my $build = session($node);
	my ($pid, $now) = ($build->query_safe('SELECT pg_backend_pid()'), '');

	$build->query_until(qr/started/, "SET navis.build_threads = 1;\n\\echo started\n$command;\n");
	my $seen = wait_until(sub {
		$now = phase();
		return $now =~ /^\d+\|building index: \Q$wanted\E/;
	}, 60, 5);
	ok($seen && $now =~ /\Q$wanted\E/, "$name: phase \"$wanted\" is shown") or diag($now);
	my $start = time;
	$watch->query_safe("SELECT $function($pid)");
	ok(wait_until(sub { return phase() eq '' }, 30), "$name in phase \"$wanted\": it ends");
	my $took = time - $start;
	note(sprintf '%s in phase "%s" took %.2f s', $name, $wanted, $took);
	# Generous: machines that run tests are slow; a build takes much longer.
	cmp_ok($took, '<', 5, "$name in phase \"$wanted\": soon");
	$build->{run}->kill_kill(grace => 5);
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'many_v'"), 0,
		"$name in phase \"$wanted\": no index");
	return;
}

$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION slowly(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS
  'BEGIN PERFORM pg_sleep(0.001); RETURN v; END';
SQL
interrupt_build('pg_cancel_backend', 'scanning table', 'cancel', $slow =~ s/\(v\)/(slowly(v))/r);
interrupt_build('pg_cancel_backend', 'training codes', 'cancel', $slow);
interrupt_build('pg_cancel_backend', 'linking graph', 'cancel', $slow);
check_directory('cancelled', 1);
interrupt_build('pg_terminate_backend', 'linking graph', 'terminate', $slow);
check_directory('terminated', 1);
$watch->quit;

# One look takes no sidecar away: the first one comes when the server has
# started, another one navis.collect_interval later.
my $database = $node->safe_psql('postgres', 'SELECT oid FROM pg_database WHERE datname = current_database()');
$node->safe_psql('postgres', "CREATE INDEX words_x ON words USING navis (v) $options");
$node->adjust_conf('postgresql.conf', 'navis.collect_interval', '3600');
$node->adjust_conf('postgresql.conf', 'log_min_messages', 'debug1');
$node->reload;
$node->safe_psql('postgres', 'DROP INDEX words_x');
$node->adjust_conf('postgresql.conf', 'navis.casr_warmup', '10000');
my $offset = -s $node->logfile;
$node->restart;
ok(wait_until(sub {
	return log_lines($node, qq(unregistering background worker "navis helper for database $database"), $offset);
}, 30), 'a helper has looked');
is(scalar(sidecars($node)), 2, 'after one look the sidecar is still there');
$node->adjust_conf('postgresql.conf', 'navis.collect_interval', '1');
$node->adjust_conf('postgresql.conf', 'log_min_messages', 'warning');
$node->reload;
check_directory('after another one', 1);
$watch = session($node);
interrupt_build('pg_cancel_backend', 'calibrating search', 'cancel',
	"CREATE INDEX many_v ON many USING navis (v) $options");
check_directory('cancelled while it is calibrated', 1);
$watch->quit;
$node->adjust_conf('postgresql.conf', 'navis.casr_warmup', '50');
$node->restart;
$watch = session($node);

# The other phases are short: cancelled after random times, whatever it is doing.
for my $ms (1, 30, 80, 150, 250, 400, 600)
{
	my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = $ms;
CREATE INDEX many_v ON many USING navis (v) WITH (max_degree = 16, build_list_size = 24);
RESET statement_timeout;
SELECT 'made';");
	$stopped{ $err =~ /canceling statement due to statement timeout/ ? 'cancelled' : 'made' }++;
	$node->safe_psql('postgres', 'DROP INDEX IF EXISTS many_v');
}
note('builds with a time limit: ' . join(', ', map { "$stopped{$_} $_" } sort keys %stopped));
cmp_ok($stopped{cancelled} // 0, '>', 0, 'some builds ran into the time limit');
check_directory('cancelled after some time', 1);
is($node->safe_psql('postgres', "SET client_min_messages = warning; CREATE INDEX many_v ON many USING navis (v) $options; SELECT 'made'"),
	'made', 'the next build is not in the way of those');
is(graph_answers('many'), "77\ngraph|t", 'and answers');
check_directory('built', 2);

# the server crashes in the middle of a build
my $build = session($node);
$build->query_until(qr/started/, "SET navis.build_threads = 1;\n\\echo started\nDROP INDEX many_v;\n$slow;\n");
ok(wait_until(sub { return phase() =~ /linking graph/ }, 60), 'a build is running');
kill9_all($node);
$_->{run}->finish for $build, $watch;
$node->start;
check_directory('crashed build', 1);
is(graph_answers('words'), "77\ngraph|t", 'the others answer');

# files that are not ours stay
my $foreign = $node->data_dir . '/navis/5/0123456789abcdef0123456789abcdef';
mkdir $node->data_dir . '/navis/5';
mkdir $foreign or die "$foreign: $!";
append_to_file("$foreign/precious", 'x');
$node->safe_psql('postgres', 'DROP EXTENSION navis CASCADE; DROP TABLE words, many, empty');
ok(wait_until(sub { return sidecars($node) == 1 }, 30), 'DROP EXTENSION: all sidecars go');
sleep 3;
ok(-f "$foreign/precious", 'a directory without our marker stays');
is(scalar(log_lines($node, 'PANIC|signal 11|signal 6|could not remove')), 0, 'no crash, nothing that could not be removed');
$node->stop;
done_testing();
