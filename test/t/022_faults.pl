# Faults at run time: EIO and ENOSPC on each file, files that are deleted,
# truncated and overwritten under a running server, a worker without memory,
# sessions that end while they open an index, an index whose opening crashes the
# server, 200 sessions, another max_connections.  Each: a clear error or none,
# right answers all the time, and the graph afterwards.
use strict;
use warnings FATAL => 'all';

use Errno qw(EIO ENOSPC);
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $options = 'WITH (max_degree = 32, build_list_size = 64, pq_bytes = 16)';
# Files are read by pread, and not from memory.
my $node = new_node('faults', conf => <<CONF);
navis.io_method = sync
navis.cache_size = 0
navis.checkpoint_timeout = 1
navis.search_threads = 2
jit = off
restart_after_crash = on
CONF
my $shim = $node->basedir . '/fault_shim.so';
my $control = $node->basedir . '/fault';

system($ENV{CC} // 'cc', '-O1', '-shared', '-fPIC', '-o', $shim, "$FindBin::RealBin/../fault_shim.c", '-ldl') == 0
  or die 'the shim cannot be compiled';

# fail_when(calls, errno, part of a path), or without arguments: nothing fails.
sub fail_when
{
	my ($calls, $errno, $match) = @_;
	my $text = defined $calls ? "1$calls $errno $match" : '0';

	# In place: the servers have it mapped.
	open my $f, -e $control ? '+<' : '>', $control or die "$control: $!";
	print $f $text . "\0" x (512 - length $text);
	close $f or die $!;
	return;
}

sub start_with_shim
{
	local $ENV{LD_PRELOAD} = $shim;
	local $ENV{NAVIS_FAULT} = $control;

	$node->start;
	return;
}

fail_when();
start_with_shim();
make_helpers($node);
load_words($node, 'words', 1500);
query_words($node, 'queries', 4001, 600);
$node->safe_psql('postgres', "CREATE INDEX words_v ON words USING navis (v) $options");
my $oid = $node->safe_psql('postgres', "SELECT 'words_v'::regclass::oid");
my $next = 4001;
my $q = '(SELECT v FROM words WHERE id = 77)';

sub graph_dir
{
	my ($newest) = sort { substr($b, rindex($b, '/g') + 2) <=> substr($a, rindex($a, '/g') + 2) } glob(sidecar_of($node, $oid) . '/g*');

	return $newest;
}

# Searches for rows by their own vectors; a complete scan; no error.
sub right_answers
{
	my ($name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL);
SET enable_seqscan = off; SET navis.casr = off; SET navis.search_list_size = 300;
SELECT count(*), sum((s.d = 0)::int) FROM (SELECT id, v FROM words WHERE id % 31 = 3) q,
  LATERAL (SELECT w.v <-> q.v AS d FROM words w ORDER BY w.v <-> q.v LIMIT 1) s;
SQL
	my ($n, $hits) = split /\|/, $out || '0|0';
	my ($scan) = complete_scan($node, 'words', $q);

	is("$rc|$err", '0|', "$name: no error, no warning");
	ok($n > 40 && $hits == $n, "$name: rows are found by their vectors") or diag($out);
	is($scan, table_rows($node, 'words', $q), "$name: no row is missing");
	return;
}

# Inserts rows one by one; errors are those of a full disk.
sub insert_rows
{
	my ($name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL, on_error_stop => 0);
\\set VERBOSITY verbose
SELECT format('INSERT INTO words SELECT id, ''new'', v FROM queries WHERE id = %s', i) FROM generate_series($next, $next + 14) i \\gexec
SQL
	my @wrong = grep { /ERROR|FATAL|WARNING/ && !/ERROR:  53100/ } split /\n/, $err;

	$next += 15;
	is("@wrong", '', "$name: inserts succeed or find the disk full");
	return;
}

# After the fault: usable, the graph answers, rows go in and are linked.
sub recovers
{
	my ($name) = @_;

	ok(wait_ready($node, 'words_v'), "$name: usable again");
	right_answers("$name, over");
	insert_rows("$name, over");
	ok(wait_until(sub {
		return $node->safe_psql('postgres', "SELECT state, pending_rows FROM navis_index_info('words_v')") eq 'ready|0' }, 60),
		"$name, over: rows are linked");
	return;
}

# --- I/O errors
for my $case (
	[ 'EIO reading edges', 'r', EIO, '/edges' ],
	[ 'EIO reading vectors', 'r', EIO, '/vectors' ],
	[ 'EIO writing edges', 'w', EIO, '/edges' ],
	[ 'EIO writing vectors', 'w', EIO, '/vectors' ],
	[ 'EIO writing the state', 'w', EIO, '/state' ],
	[ 'EIO syncing', 's', EIO, '/navis/' ],
	[ 'disk full: edges', 'wf', ENOSPC, '/edges' ],
	[ 'disk full: vectors', 'wf', ENOSPC, '/vectors' ],
	[ 'disk full: state', 'wf', ENOSPC, '/state' ])
{
	my ($name, @fault) = @$case;

	fail_when(@fault);
	insert_rows($name);
	right_answers($name);
	# A checkpoint, which may fail; VACUUM does not.
	$node->safe_psql('postgres', "DELETE FROM words WHERE id = $next - 3; VACUUM (INDEX_CLEANUP on) words");
	fail_when();
	recovers($name);
}

# --- files that somebody meddles with
my $x = 4711;
my $noise = join '', map { $x = ($x * 1103515245 + 12345) & 0x7FFFFFFF; chr($x >> 16 & 0xFF) } 1 .. 65536;

sub overwrite
{
	my ($file) = @_;

	open my $f, '+<:raw', $file or die "$file: $!";
	print $f substr($noise, 0, $_ > 65536 ? 65536 : $_) foreach map { (-s $file) - $_ * 65536 } 0 .. int((-s $file) / 65536);
	close $f or die $!;
	return;
}

for my $case (
	[ 'edges truncated', sub { truncate "$_[0]/edges", 4096 } ],
	[ 'vectors truncated', sub { truncate "$_[0]/vectors", 4096 } ],
	[ 'everything overwritten', sub { overwrite("$_[0]/$_") foreach 'edges', 'vectors', 'state' } ],
	[ 'files deleted', sub { unlink map { "$_[0]/$_" } 'edges', 'vectors', 'state' } ],
	[ 'directory deleted', sub { system_or_bail('rm', '-rf', sidecar_of($node, $oid)) } ])
{
	my ($name, $meddle) = @$case;

	$meddle->(graph_dir());
	right_answers($name);
	insert_rows($name);
	$node->safe_psql('postgres', "DELETE FROM words WHERE id = $next - 3; VACUUM (INDEX_CLEANUP on) words");
	$node->stop;
	start_with_shim();
	right_answers("$name, restarted");
	recovers($name);
}

# --- a worker without memory
sub limit_memory
{
	my ($kilobytes) = @_;
	my $pid = worker_pid($node);
	my ($now) = slurp_file("/proc/$pid/status") =~ /^VmSize:\s+(\d+) kB/m;
	my $limit = defined $kilobytes ? ($now + $kilobytes) * 1024 : 'unlimited';

	system_or_bail('prlimit', "--pid=$pid", "--as=$limit:unlimited");
	return;
}

my $pid = worker_pid($node);
limit_memory(0);
right_answers('no memory');
insert_rows('no memory');
my ($rc, $out, $err) = $node->psql('postgres', "CREATE INDEX words_w ON words USING navis (v) $options");
ok($rc != 0 && $err =~ /ERROR:  .*memory/, 'CREATE INDEX says that there is no memory') or diag("$rc $err");
limit_memory(undef);
is(worker_pid($node), $pid, 'the worker survives');
recovers('no memory');

# --- sessions that end while they open an index
$node->safe_psql('postgres', <<SQL);
CREATE FUNCTION slow(v real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_sleep(0.02); RETURN v; END';
CREATE TABLE few AS SELECT id, v FROM words WHERE id <= 200;
CREATE INDEX few_v ON few USING navis (slow(v));
SQL
my $search = 'SELECT id FROM few ORDER BY slow(v) <-> (SELECT v FROM words WHERE id = 9) LIMIT 1';
my $state = "SELECT state FROM navis_index_info('few_v')";
$node->stop;
start_with_shim();
ok(wait_worker($node, 'few_v'), 'the engine is there');
($rc, $out, $err) = $node->psql('postgres', "SET enable_seqscan = off; SET statement_timeout = 500; $search");
like($err, qr/ERROR:  canceling statement due to statement timeout/, 'statement_timeout while the index is opened');
is($node->safe_psql('postgres', $state), 'opening', 'it is not open');
for my $end ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $run = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', 'SET enable_seqscan = off', '-c', "/* opener */ $search" ],
		'>', \my $stdout, '2>', \my $stderr);
	my $opener = "FROM pg_stat_activity WHERE query LIKE '/* opener */%' AND wait_event = 'PgSleep'";

	ok($node->poll_query_until('postgres', "SELECT count(*) > 0 $opener"), "$end: a session opens it");
	$node->safe_psql('postgres', "SELECT $end(pid) $opener");
	$run->finish;
	like($stderr, qr/canceling statement due to user request|terminating connection/, "$end: it ends");
}
is($node->safe_psql('postgres', "SET enable_seqscan = off; $search; SELECT mode FROM navis_last_scan()"), "9\ngraph", 'the next one opens it');
is($node->safe_psql('postgres', $state), 'ready', 'and it is open');

# --- an index whose opening crashes the server
$node->stop;
my $offset = -s $node->logfile;
# Armed before the start: the worker opens the index by itself at once.
fail_when('r', 0, graph_dir() . '/state');
start_with_shim();
ok( wait_until(
		sub {
			# A crash ends every session.
			my ($rc, $out) = $node->psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM words ORDER BY v <-> $q LIMIT 10) s");
			return $rc == 0 && $out eq '10' && wait_until(sub {
				my ($rc, $out) = $node->psql('postgres', "SELECT state = 'ready' AND vertices > 0 FROM navis_index_info('words_v')");
				return $rc == 0 && $out eq 't' }, 10);
		}, 90, 500),
	'crashing: the graph is built again');
is(scalar(log_lines($node, 'navis worker.*was terminated by signal 11', $offset)), 2, 'crashing: it was tried twice');
is(scalar(log_lines($node, 'two attempts to open it ended in a crash', $offset)), 1, 'crashing: the log says so');
fail_when();
recovers('crashing');

# --- many sessions, another number of them
$node->append_conf('postgresql.conf', "max_connections = 210\n");
$node->stop;
start_with_shim();
my $script = $node->basedir . '/many.sql';
append_to_file($script, <<'SQL');
\set id random(1, 1500)
SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = :id) LIMIT 10;
INSERT INTO words SELECT 100000 + :client_id * 100 + (SELECT count(*) FROM words WHERE id / 100 = 1000 + :client_id), 'p', v FROM words WHERE id = :id;
SQL
$offset = -s $node->logfile;
command_ok([ 'pgbench', '-n', '-c', '200', '-j', '2', '-t', '2', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
	'200 sessions search and insert');
is(scalar(log_lines($node, 'ERROR|WARNING', $offset)), 0, 'without an error');
is($node->safe_psql('postgres', 'SELECT count(*) FROM words WHERE id >= 100000'), 400, 'all their rows are there');
recovers('200 sessions');
$node->append_conf('postgresql.conf', "max_connections = 15\n");
$node->stop;
start_with_shim();
recovers('fewer sessions');
$node->stop;
is(scalar(log_lines($node, 'PANIC|TRAP|signal 6')), 0, 'nothing worse in the log');
done_testing();
