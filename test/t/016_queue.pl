# The insert queue: COPY and INSERT wait for room and can be cancelled meanwhile,
# others do not; when the engine goes away waiting writers go on.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# One insert thread that seeks thoroughly: writers are faster.  Too little memory
# to let rows pile up for a build.
my $node = new_node('queue', conf => <<CONF);
navis.insert_queue_size = 20
navis.pending_memory = 1MB
navis.insert_threads = 1
navis.insert_list_size = 300
fsync = off
CONF
$node->start;
make_helpers($node);
load_words($node, 'words', 4000);
query_words($node, 'more', 4001, 1500);
$node->safe_psql('postgres', <<SQL);
CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32);
COPY (SELECT id, '*copied', v FROM more) TO '@{[ $node->basedir ]}/more.copy';
SQL
my $copy = $node->basedir . '/more.copy';
# A writer that outlasts any timeout here.
my $endless = <<SQL;
INSERT INTO words SELECT 100000 * i + id, '*endless', (SELECT array_agg(x * (1 + i * 0.0001)) FROM unnest(w.v) x)
FROM generate_series(1, 20) i, words w WHERE w.id <= 4000;
SQL

sub info
{
	my ($what) = @_;

	return $node->safe_psql('postgres', "SELECT $what FROM navis_index_info('words_v')");
}

sub linked
{
	return wait_until(sub { return info('pending_rows') == 0 });
}

# COPY larger than the queue: it waits, and fails nothing; the limit holds.
my $loader = session($node);
$loader->{stdin} .= "BEGIN; COPY words FROM '$copy'; COMMIT;\n\\echo loaded\n";
$loader->{run}->pump_nb;
my ($most, $vertices) = (0, 0);
wait_until(
	sub {
		my ($pending, $n) = split /\|/, info('pending_rows, vertices');
		$most = $pending if $pending > $most;
		$vertices = $n;
		$loader->{run}->pump_nb;
		return $loader->{stdout} =~ /loaded/;
	}, 120, 2);
is($loader->{stderr}, '', 'COPY of more rows than the queue holds succeeds');
cmp_ok($most, '<=', 20, 'the queue never holds more than its limit');
cmp_ok($most, '>', 0, 'it was in use');
cmp_ok($vertices, '>', 4000 + 1000, 'rows were linked while COPY waited');
ok(linked(), 'all are linked');
is(info('vertices'), 5500, 'none is missing');
is(nearest_word($node, 5005), "5005\ngraph|t", 'the graph finds a copied row');

# cancel: statement_timeout, and pg_cancel_backend
for my $ms (30, 200, 600)
{
	my $start = time;
	my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = $ms; $endless");
	like($err, qr/canceling statement due to statement timeout/, "a waiting INSERT is cancelled after $ms ms");
	cmp_ok(time - $start, '<', $ms / 1000 + 5, 'soon');
}
my $writer = session($node);
$writer->{stdin} .= "$endless\n\\echo over\n";
$writer->{run}->pump_nb;
ok( wait_until(
		sub {
			$writer->{run}->pump_nb;
			return $node->safe_psql('postgres', <<SQL) eq 't';
SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO words SELECT 100000 *%' AND state = 'active'
  AND wait_event_type = 'Extension'
SQL
		}, 30, 10),
	'a writer waits on its latch');
# Meanwhile: searches, deletions and other tables are not kept waiting.
is(nearest_word($node, 5406), "5406\ngraph|t", 'searches go on');
$node->safe_psql('postgres', 'DELETE FROM words WHERE id = 5406');
is($node->safe_psql('postgres', <<SQL), 't', 'it is cancelled');
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO words SELECT 100000 *%' AND state = 'active';
SQL
ok(wait_until(sub { $writer->{run}->pump_nb; return $writer->{stdout} =~ /over/ }, 10, 10), 'and ends');
like($writer->{stderr}, qr/canceling statement due to user request/, 'with the right error');
$writer->{stderr} = '';
$writer->{stdout} = '';
is($writer->query_safe('SELECT count(*) FROM words'), 5499, 'the session lives, nothing was inserted');
ok(linked(), 'what was in the queue is linked');
is(info('pending_rows'), 0, 'no place is lost: the queue is empty');

# Writers of other tables do not wait for this queue.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE others AS SELECT id, v FROM words WHERE id <= 1500;
CREATE INDEX others_v ON others USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32);
SQL
$writer->{stdin} .= "$endless\n\\echo over\n";
$writer->{run}->pump_nb;
ok(wait_until(sub { $writer->{run}->pump_nb; return info('pending_rows') == 20 }, 30, 5), 'the queue is full');
my $start = time;
$node->safe_psql('postgres', 'INSERT INTO others SELECT id, v FROM more LIMIT 1');
cmp_ok(time - $start, '<', 5, 'another index has a queue of its own');

# DROP INDEX waits for the lock, not the queue for DROP INDEX.
my $dropper = session($node);
$dropper->{stdin} .= "DROP INDEX words_v;\n\\echo dropped\n";
$dropper->{run}->pump_nb;
usleep(300_000);
$dropper->{run}->pump_nb;
unlike($dropper->{stdout}, qr/dropped/, 'DROP INDEX waits for the writer');
$node->safe_psql('postgres', <<SQL);
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO words SELECT 100000 *%' AND state = 'active';
SQL
ok(wait_until(sub { $dropper->{run}->pump_nb; return $dropper->{stdout} =~ /dropped/ }, 30, 10), 'and comes on when it was cancelled');
ok(wait_until(sub { $writer->{run}->pump_nb; return $writer->{stdout} =~ /over/ }, 30, 10), 'the writer ended');
$node->safe_psql('postgres', <<SQL);
DELETE FROM words WHERE word = '*endless';
VACUUM words;
CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 32, build_list_size = 48, pq_bytes = 32);
SQL

# The engine leaves while writers wait: they go on, and nothing is lost.
$writer->{stdin} .= "INSERT INTO words SELECT 20000 + id, '*late', (SELECT array_agg(-x) FROM unnest(v) x) FROM more;\n\\echo late\n";
$writer->{run}->pump_nb;
ok(wait_until(sub { $writer->{run}->pump_nb; return info('pending_rows') == 20 }, 30, 5), 'a writer waits');
my $pid = worker_pid($node);
kill 'TERM', $pid;
ok(wait_until(sub { $writer->{run}->pump_nb; return $writer->{stdout} =~ /late/ }, 60, 10), 'the engine leaves: the writer goes on');
unlike($writer->{stderr} =~ s/^.*canceling statement due to user request.*$//mr, qr/ERROR|FATAL/, 'without an error');
is($node->safe_psql('postgres', "SELECT count(*) FROM words WHERE word = '*late'"), 1500, 'all rows are there');
ok(wait_worker($node, 'words_v'), 'the engine is back');
ok(wait_ready($node, 'words_v'), 'and the index usable');
my ($scan) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 77)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 77)'), 'a complete scan has every row');
is(nearest_word($node, 25005), "25005\ngraph|t", 'the graph or the pending rows have the late ones');

# Rows are posted: inserting waits for no answer, also with the engine standing
# still; who searches afterwards waits for the rows, also for one whose session
# has ended and for what comes next in its place.
sub insert_near
{
	my ($session, $id) = @_;

	$session->query_safe(<<SQL);
INSERT INTO words SELECT $id, '*posted', (SELECT array_agg(x * 1.001 ORDER BY o) FROM unnest(v) WITH ORDINALITY u(x, o))
FROM more WHERE id = $id - 26000;
SQL
	return;
}

# Searches that wait as pg_stat_activity shows it.
sub waiting_searches
{
	return $node->safe_psql('postgres', <<SQL);
SELECT count(*) FROM pg_stat_activity
WHERE query LIKE 'SELECT ''nearest%' AND state = 'active' AND wait_event_type = 'Extension';
SQL
}
ok(linked(), 'all rows are linked');
$node->safe_psql('postgres', 'DROP TABLE others');
my @posters = map { session($node) } 1 .. 3;
insert_near($posters[ $_ ], 30501 + $_) for 0 .. 2;
ok(linked(), 'three sessions have told the engine of a row');
my @searchers = map { session($node) } 1 .. 8;
$_->query_safe("SET enable_seqscan = off; SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 4001) LIMIT 1")
  for @searchers;
my @given_up = map { $_->query_safe('SELECT pg_backend_pid()') } @searchers[ 6, 7 ];
$pid = worker_pid($node);
kill 'STOP', $pid;
insert_near($posters[ $_ ], 30511 + $_) for 0 .. 2;
pass('rows are inserted while the engine stands still');
(shift @posters)->quit;
for my $i (0 .. $#searchers)
{
	my $id = 30511 + $i % 3;

	$searchers[$i]{stdin} .= <<SQL;
SELECT 'nearest ' || id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = $id) LIMIT 1;
SELECT 'by ' || mode FROM navis_last_scan();
SQL
	$searchers[$i]{run}->pump_nb;
}
ok(wait_until(sub { $_->{run}->pump_nb for @searchers; return waiting_searches() == 8 }, 30, 10), 'searches wait, and it is seen');
unlike(join('', map { $_->{stdout} } @searchers), qr/nearest/, 'for the rows');
my (undef, undef, $why) = $node->psql('postgres', <<SQL);
SET enable_seqscan = off;
SET statement_timeout = 200;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 4001) LIMIT 1;
SQL
like($why, qr/canceling statement due to statement timeout/, 'a waiting search ends in time');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($given_up[0]), pg_terminate_backend($given_up[1])");
ok( wait_until(sub { $_->{run}->pump_nb for @searchers; return gone($given_up[1]) && $searchers[6]{stderr} =~ /canceling/ }, 30, 10),
	'it is cancelled, and its session ended');
unlike($searchers[6]{stdout} . $searchers[7]{stdout}, qr/nearest/, 'without an answer');
(pop @searchers)->{run}->finish;
$searchers[6]{stderr} = '';
(pop @searchers)->quit;
kill 'CONT', $pid;
for my $i (0 .. $#searchers)
{
	my $s = $searchers[$i];

	ok(wait_until(sub { $s->{run}->pump_nb; return $s->{stdout} =~ /by/ }, 30, 5), "search $i is answered");
	like($s->{stdout}, qr/nearest @{[ 30511 + $i % 3 ]}\s+by graph/, 'with the row, by the graph');
}
insert_near($posters[ $_ ], 30521 + $_) for 0 .. 1;
is($node->safe_psql('postgres', "SELECT count(*) FROM words WHERE word = '*posted'"), 8, 'the sessions go on');
ok(linked(), 'all rows are linked again');

# Nor does a search wait for a row longer than the postmaster lives.
$pid = worker_pid($node);
kill 'STOP', $pid;
insert_near($posters[0], 30531);
$given_up[0] = $searchers[0]->query_safe('SELECT pg_backend_pid()');
$searchers[0]{stdin} .= "SELECT 'nearest ' || id FROM words ORDER BY v <-> (SELECT v FROM more WHERE id = 4001) LIMIT 1;\n";
ok(wait_until(sub { $searchers[0]{run}->pump_nb; return waiting_searches() == 1 }, 30, 10), 'a search waits');
$node->kill9;
ok(wait_until(sub { return gone($given_up[0]) }, 30, 10), 'it ends with the postmaster');
kill 'KILL', $pid;
$_->{run}->finish for (@posters, @searchers, $loader, $writer, $dropper);
done_testing();
