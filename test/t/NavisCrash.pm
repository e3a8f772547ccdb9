# Crashes of a real server, in rounds: sessions that change everything a navis
# index can go through, SIGKILL at a random moment, restart, and the questions
# that must be answered well afterwards.  019_crash.pl runs a few rounds;
# `bash test/soak.sh server` as many as there is time for.
#
# What a round does follows from its number, but for the moments at which
# processes get the processor: the same seed tries the same things again.
package NavisCrash;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Path qw(remove_tree);
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(crash_campaign);

# Of the ten nearest of 20 queries, by distance, with every explored vector loaded
# (a fresh build has 0.99 here), and with rerank windows from the 50 observations
# that tests have patience for.
use constant { RECALL => 0.95, RECALL_CALIBRATED => 0.90 };
# Share of the rows that navis_check may find out of reach of the entrance:
# that costs recall only.
use constant UNREACHABLE => 0.01;
use constant { POOL => 9000, ROWS => 3000, FEWEST => 2600, MOST => 6000 };
use constant { PIECES => 12, PIECE => 250 };
# An index of so many distinct vectors gets a graph.
use constant GRAPH => 2400;

my $with = 'max_degree = 24, build_list_size = 32, pq_bytes = 32';
# What the server may say when sessions meet, are ended, or wait too long.
my $expected = join '|', 'terminating', 'the database system is', 'crash of another', 'canceling statement due to',
  'could not obtain lock', 'deadlock detected', 'connection to client', 'unexpected EOF', 'Connection reset', 'postmaster exited',
  '(relation|index|table) "\w+" (does not exist|already exists)', 'prepared transaction with identifier',
  'could not open relation with OID', 'concurrently', 'current transaction is aborted', 'savepoint "s" does not exist',
  'violates unique constraint "pg_(type|class)_';    # two sessions make the same table

# --- What the server is asked to do ---

sub any { return $_[ int rand @_ ] }

# One row whose vector nobody else has, or one of the pool's.
sub vector
{
	my $i = 1 + int rand POOL;

	return rand() < 0.5 ? "pool($i)" : sprintf 'moved(%d, %.6f)', $i, 0.001 + rand 0.1;
}

sub insert
{
	my ($table) = @_;
	my $i = 1 + int rand(POOL - 300);
	my ($n, $m) = (1 + int rand 30, 1 + int rand 300);

	return any(
		"INSERT INTO $table (v) VALUES (" . vector() . ');',
		"INSERT INTO $table (v) VALUES (" . vector() . ');',
		"INSERT INTO $table (v) SELECT moved($i + n, 0.01) FROM generate_series(1, $n) n;",
		"INSERT INTO $table (v) SELECT pool($i + n % 3) FROM generate_series(1, $n) n;",
		"INSERT INTO $table (v) SELECT pool($i + n) FROM generate_series(1, $m) n;",
		"INSERT INTO $table (v) VALUES (NULL), (array_fill(0::real, ARRAY[100]));",
		"BEGIN; INSERT INTO $table (v) SELECT pool($i + n) FROM generate_series(1, $n) n; ROLLBACK;",
		"BEGIN; INSERT INTO $table (v) VALUES (" . vector() . "); SAVEPOINT s; "
		  . "INSERT INTO $table (v) SELECT pool($i + n) FROM generate_series(1, $n) n; ROLLBACK TO s; "
		  . "INSERT INTO $table (v) VALUES (" . vector() . '); COMMIT;');
}

# Rows somewhere in the table, about so many per cent of it.
sub some_rows
{
	my ($per_cent) = @_;

	return sprintf 'id %% 1000 BETWEEN %d AND %d', map { $_, $_ + $per_cent * 10 } int rand 900;
}

sub update
{
	my ($table) = @_;

	return any(
		"UPDATE $table SET v = " . vector() . ' WHERE ' . some_rows(0.2) . ';',
		"UPDATE $table SET v = moved(1 + id % 5000, 0.05) WHERE " . some_rows(2) . ';',
		"UPDATE $table SET other = other + 1 WHERE " . some_rows(2) . ';',
		"UPDATE $table SET word = word || 'x' WHERE " . some_rows(1) . ';',
		"BEGIN; UPDATE $table SET v = " . vector() . ' WHERE ' . some_rows(0.5) . '; ROLLBACK;');
}

sub delete_rows
{
	my ($table, $per_cent) = @_;

	return "DELETE FROM $table WHERE " . some_rows($per_cent) . ';';
}

# A window that moves: whole pages of the journal are freed and used again.
sub oldest_rows
{
	my ($table) = @_;

	return "DELETE FROM $table WHERE id IN (SELECT id FROM $table ORDER BY id LIMIT 700);";
}

sub newest_rows
{
	my ($table) = @_;
	my $i = 1 + int rand(POOL - 700);

	return any('', " INSERT INTO $table (v) SELECT moved($i + n, 0.02) FROM generate_series(1, 600) n;");
}

sub search
{
	my ($table) = @_;
	my $k = any(1, 10, 10, 100);

	return "SELECT count(*) FROM (SELECT id FROM $table ORDER BY v " . any('<->', '<=>') . ' ' . vector() . " LIMIT $k) s;";
}

sub make_index
{
	my ($table) = @_;
	my ($class, $name) = @{ any([ 'real_cosine_ops', 'c' ], [ 'real_ip_ops', 'ip' ]) };
	my $index = "${table}_$name";

	return any(
		"DROP INDEX IF EXISTS $index; CREATE INDEX $index ON $table USING navis (v $class) WITH ($with);",
		"DROP INDEX CONCURRENTLY IF EXISTS $index;",
		"DROP INDEX IF EXISTS $index; CREATE INDEX CONCURRENTLY $index ON $table USING navis (v $class) WITH ($with);");
}

# A transaction that is left prepared, or not.
sub prepare
{
	my ($gid) = @_;
	my $fate = any('', '', "COMMIT PREPARED '$gid';", "ROLLBACK PREPARED '$gid';");
	my $does = any(
		insert('words') =~ s/BEGIN;|ROLLBACK;|COMMIT;//gr, delete_rows('words', 2), update('words') =~ s/BEGIN;|ROLLBACK;//gr,
		insert('prep') =~ s/BEGIN;|ROLLBACK;|COMMIT;//gr, insert('unl') =~ s/BEGIN;|ROLLBACK;|COMMIT;//gr,
		delete_rows('prep', 5), 'REINDEX INDEX prep_v;', 'TRUNCATE prep;', 'DROP INDEX prep_v;',
		"CREATE INDEX prep_c ON prep USING navis (v real_cosine_ops) WITH ($with);",
		"CREATE TABLE $gid AS SELECT * FROM words; CREATE INDEX ${gid}_v ON $gid USING navis (v) WITH ($with);");

	return "BEGIN; $does PREPARE TRANSACTION '$gid'; SELECT pg_sleep(0.1); $fate";
}

# A table that begins empty: the engine builds its first graph by itself.
sub young
{
	my $rows = 2100 + int rand 900;
	my $i = 1 + int rand(POOL - $rows);

	return "DROP TABLE IF EXISTS fresh; CREATE TABLE fresh (LIKE words INCLUDING DEFAULTS); "
	  . "CREATE INDEX fresh_v ON fresh USING navis (v) WITH ($with); "
	  . "INSERT INTO fresh (v) SELECT v FROM pool WHERE id BETWEEN $i AND $i + 200; "
	  . "INSERT INTO fresh (v) SELECT v FROM pool WHERE id BETWEEN $i + 200 AND $i + $rows; "
	  . 'SELECT pg_sleep(' . rand(1.5) . '); ' . insert('fresh') . ' ' . delete_rows('fresh', 5)
	  . any('', ' TRUNCATE fresh;', ' VACUUM fresh;', ' SELECT pg_sleep(1);');
}

sub temporary
{
	my $rows = any(50, 1500, 2200);

	return "CREATE TEMP TABLE t AS SELECT id, v FROM pool WHERE id <= $rows; "
	  . "CREATE INDEX t_v ON t USING navis (v) WITH ($with); INSERT INTO t SELECT id + 10000, v FROM pool WHERE id <= 20; "
	  . 'SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> ' . vector() . ' LIMIT 10) s; DELETE FROM t WHERE id % 3 = 0; '
	  . "VACUUM t; DROP TABLE t;";
}

# Relations that get other files, or other properties.
sub rewrite
{
	return any(
		'VACUUM FULL words;', 'VACUUM FULL prep;', 'CLUSTER prep USING prep_pkey;', 'ALTER INDEX words_v SET TABLESPACE space;',
		'ALTER INDEX words_v SET TABLESPACE pg_default;', 'ALTER TABLE prep SET UNLOGGED; ALTER TABLE prep SET LOGGED;',
		'ALTER TABLE unl SET LOGGED; ALTER TABLE unl SET UNLOGGED;', 'TRUNCATE unl; ' . insert('unl'),
		'ALTER TABLE prep ALTER COLUMN other TYPE bigint; ALTER TABLE prep ALTER COLUMN other TYPE int;');
}

# name => [ weight, statements of one session ]; each session goes on until the
# server is gone.
my %work = (
	copy => [ 3, sub { "COPY words (v) FROM '$_[0]{pieces}/" . int(rand PIECES) . any("';", "';", "'; " . update('words')) } ],
	insert => [ 4, sub { insert(any('words', 'words', 'unl')) } ],
	update => [ 3, sub { update('words') } ],
	delete => [ 2, sub { delete_rows('words', 1 + rand 4) . any('', '', ' VACUUM (INDEX_CLEANUP on) words;') } ],
	consolidate => [ 2, sub { any(delete_rows('words', 10), oldest_rows('words')) . ' VACUUM (INDEX_CLEANUP on) words; ' . insert('words') . newest_rows('words') } ],
	vacuum => [ 1, sub { any('VACUUM (INDEX_CLEANUP on) words;', 'VACUUM (INDEX_CLEANUP on) unl;', 'VACUUM FREEZE prep;', 'ANALYZE words;') } ],
	index => [ 3, sub { make_index('words') } ],
	reindex => [ 2, sub { any('REINDEX INDEX words_v;', 'REINDEX INDEX CONCURRENTLY words_v;', 'REINDEX TABLE unl;', 'REINDEX INDEX CONCURRENTLY prep_v;') } ],
	checkpoint => [ 2, sub { any('CHECKPOINT;', 'CHECKPOINT;', 'SELECT pg_switch_wal();') . ' SELECT pg_sleep(' . rand(0.2) . ');' } ],
	young => [ 3, sub { young() } ],
	temporary => [ 2, sub { temporary() } ],
	prepare => [ 3, sub { prepare("p$_[0]{round}_$_[1]") } ],
	rewrite => [ 2, sub { rewrite() } ],
	search => [ 2, sub { search(any('words', 'words', 'unl')) } ]);

sub choose_work
{
	my ($n) = @_;
	my @urn = map { ($_) x $work{$_}[0] } sort keys %work;

	return map { any(@urn) } 1 .. $n;
}

sub start_session
{
	my ($c, $name, $number) = @_;
	my $base = $c->{node}->basedir . "/session$number";
	my @command = ($c->{node}->installed_command('psql'), '-XAtq', '-d', $c->{node}->connstr('postgres'), '-f', "$base.sql");

	open my $f, '>', "$base.sql" or die "$base.sql: $!";
	print $f "SET lock_timeout = '300ms';\nSET statement_timeout = '20s';\nSET enable_seqscan = off;\n";
	print $f $work{$name}[1]->($c, "${number}_$_"), "\n" for 1 .. 400;
	close $f or die $!;
	return IPC::Run::start(\@command, '<', \undef, '>', '/dev/null', '2>', '/dev/null');
}

# --- The server ---

my $data_sql = <<'SQL';
CREATE SEQUENCE ids START 20000;
CREATE FUNCTION pool(i int) RETURNS real[] LANGUAGE sql STABLE AS 'SELECT v FROM pool WHERE id = i';
CREATE FUNCTION moved(i int, by float8) RETURNS real[] LANGUAGE sql STABLE AS
  'SELECT array_agg((x + by * sin(n))::real ORDER BY n) FROM unnest(pool(i)) WITH ORDINALITY u (x, n)';
CREATE TABLE words (id int PRIMARY KEY DEFAULT nextval('ids'), word text, other int DEFAULT 0, v real[]);
CREATE TABLE prep (LIKE words INCLUDING ALL);
CREATE UNLOGGED TABLE unl (LIKE words INCLUDING ALL);
CREATE INDEX words_other ON words (other);
-- The operator an index orders by.
CREATE FUNCTION operator_of(i regclass) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE opcname WHEN 'real_l2_ops' THEN '<->' WHEN 'real_ip_ops' THEN '<#>' ELSE '<=>' END
  FROM pg_index, pg_opclass c WHERE indexrelid = i AND c.oid = indclass[0] $$;
-- Makes the planner take an index, or none.
CREATE FUNCTION take_index(i bool) RETURNS void LANGUAGE sql AS $$
  SELECT set_config('enable_seqscan', (NOT i)::text, true), set_config('enable_sort', (NOT i)::text, true),
         set_config('enable_indexscan', i::text, true), set_config('enable_bitmapscan', 'off', true) $$;
-- Rows of a table by a complete scan of an index, and by a sequential one.
CREATE FUNCTION compare(i regclass, OUT by_index text, OUT by_table text, OUT mode text) LANGUAGE plpgsql AS $$
DECLARE
  q real[] := moved(1 + (random() * 8000)::int, 0.01);
  query text := format('SELECT concat(count(*), '' '', count(DISTINCT id), '' '', md5(string_agg(concat(id, '':'', v), '','' ORDER BY id)))
                        FROM (SELECT id, v FROM %s ORDER BY v %s $1) s',
                       (SELECT indrelid::regclass FROM pg_index WHERE indexrelid = i), operator_of(i));
BEGIN
  PERFORM take_index(true);
  EXECUTE query INTO by_index USING q;
  mode := (SELECT l.mode FROM navis_last_scan() l WHERE l.index = i);
  PERFORM take_index(false);
  EXECUTE query INTO by_table USING q;
END $$;
-- Recall@10 by distance (among equal vectors the exact scan may name other rows)
CREATE FUNCTION recall(i regclass, OUT recall float8, OUT others text) LANGUAGE plpgsql AS $$
DECLARE
  q real[];
  d float8[];
  truth float8[];
  tab regclass := (SELECT indrelid FROM pg_index WHERE indexrelid = i);
  query text := format('SELECT array_agg(v %2$s $1) FROM (SELECT v FROM %1$s ORDER BY v %2$s $1 LIMIT 10) s', tab, operator_of(i));
BEGIN
  recall := 0; others := '';
  FOR n IN 1 .. 20 LOOP
    q := moved(1 + (random() * 8000)::int, 0.02);
    PERFORM take_index(true);
    EXECUTE query INTO d USING q;
    others := concat(others, (SELECT l FROM navis_last_scan() l WHERE l.index <> i OR mode <> 'graph' OR hops = 0)::text);
    PERFORM take_index(false);
    EXECUTE query INTO truth USING q;
    recall := recall + (SELECT count(*) FROM unnest(d) x WHERE x <= (SELECT max(t) FROM unnest(truth) t)) / 10.0;
  END LOOP;
  recall := recall / 20;
END $$;
SQL

sub fill
{
	my ($c) = @_;
	my $node = $c->{node};

	$node->safe_psql('postgres', $data_sql . <<SQL);
CREATE TABLESPACE space LOCATION '$c->{space}';
INSERT INTO words SELECT id, word, 0, v FROM pool WHERE id <= ${\ROWS};
INSERT INTO prep SELECT id, word, 0, v FROM pool WHERE id BETWEEN 3001 AND 5500;
INSERT INTO unl SELECT id, word, 0, v FROM pool WHERE id BETWEEN 3001 AND 4200;
CREATE INDEX words_v ON words USING navis (v) WITH ($with, consolidate_threshold = 0.05);
CREATE INDEX prep_v ON prep USING navis (v) WITH ($with);
CREATE INDEX unl_v ON unl USING navis (v) WITH ($with);
SQL
	for my $piece (0 .. PIECES - 1)
	{
		my $from = 1 + $piece * 600;

		$node->safe_psql('postgres', "COPY (SELECT moved(id, $piece * 0.003) FROM pool "
			  . "WHERE id BETWEEN $from AND $from + 5 + $piece * " . PIECE . ") TO '$c->{pieces}/$piece'");
	}
	return;
}

# What may be different after each restart.
sub configure
{
	my ($c) = @_;
	my $level = any('replica', 'replica', 'minimal');

	open my $f, '>', $c->{conf} or die "$c->{conf}: $!";
	print $f map { "$_\n" } 'fsync = ' . any('on', 'off'), 'synchronous_commit = ' . any('on', 'off'),
	  'full_page_writes = ' . any('on', 'on', 'off'), "wal_level = $level", 'navis.checkpoint_timeout = ' . any(1, 1, 3, 300),
	  'navis.insert_threads = ' . any(1, 2, 4), 'navis.io_method = ' . any('auto', 'sync'),
	  'navis.insert_queue_size = ' . any(20, 2000), 'navis.cache_size = ' . any(0, '1MB', '64MB');
	close $f or die $!;
	return;
}

sub new_server
{
	my ($seed) = @_;
	my $node = new_node("crash$seed", conf => <<CONF);
restart_after_crash = on
max_wal_senders = 0
max_prepared_transactions = 50
log_min_messages = warning
lock_timeout = 60s
shared_buffers = 16MB
max_wal_size = 64MB
include = 'crash.conf'
CONF
	my $c = { node => $node, seed => $seed, conf => $node->data_dir . '/crash.conf', log_at => 0,
		map { $_ => $node->basedir . "/$_" } 'pieces', 'space' };

	mkdir $c->{$_} for 'pieces', 'space';
	configure($c);
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION navis');
	load_words($node, 'pool', POOL);
	fill($c);
	return $c;
}

# --- The crash ---

# Children of the postmaster by what they are: 'client backend', 'checkpointer'...
sub kill_child
{
	my ($c) = @_;
	my @pids = split /\n/, $c->{node}->safe_psql('postgres', <<SQL);
SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type <> 'logger' ORDER BY pid;
SQL
	my $pid = any(@pids) // worker_pid($c->{node});

	kill 'KILL', $pid;
	return;
}

# name => [ weight, what to do, does the postmaster survive ]
my %kills = (
	all => [ 4, sub { kill9_all($_[0]{node}) }, 0 ],
	postmaster => [ 2, sub { ok(kill9_postmaster($_[0]{node}), "$_[0]{name}: no process outlives the postmaster") }, 0 ],
	worker => [ 3, sub { kill 'KILL', worker_pid($_[0]{node}) // worker_pid($_[0]{node}) }, 1 ],
	child => [ 2, \&kill_child, 1 ],
	immediate => [ 1, sub { $_[0]{node}->stop('immediate') }, 0 ]);

# psql dies on a broken pipe when the server has refused it before it read.
sub ask
{
	my ($c, $sql) = @_;
	my ($rc, $out) = eval { $c->{node}->psql('postgres', $sql) };

	return defined $rc && $rc == 0 ? $out : undef;
}

# What was going on, by the server's own word.
sub scene
{
	my ($c) = @_;
	my $out = ask($c, <<'SQL');
SET lock_timeout = '50ms';
SELECT string_agg(what, ', ') FROM (
  SELECT substring(query FROM '^\w+ *\w*') AS what FROM pg_stat_activity
  WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid() AND query !~ 'pg_sleep'
  UNION ALL SELECT phase FROM pg_stat_progress_create_index UNION ALL SELECT phase FROM pg_stat_progress_vacuum
  UNION ALL SELECT 'consolidating' FROM pg_class c, navis_index_info(c.oid) WHERE relname IN ('words_v', 'prep_v') AND consolidating
  UNION ALL SELECT build_phase FROM pg_class c, navis_index_info(c.oid) WHERE relname = 'fresh_v' AND build_phase <> '') s
SQL
	return $out // 'not to be asked';
}

# PostgreSQL 15 itself may refuse to start when the creation of an unlogged
# relation (a btree will do) was rolled back just before the crash: the init fork
# is gone, the main one empty, and the WAL that makes the former anew does not
# know of the end.  What is in the way goes, as an administrator would do it.
sub start_again
{
	my ($c) = @_;
	my $node = $c->{node};

	for (1 .. 20)
	{
		my $log_at = -s $node->logfile;

		# Without waiting for the engine, which may be killed while it starts.
		return 1 if $node->PostgreSQL::Test::Cluster::start(fail_ok => 1);
		my ($file) = slurp_file($node->logfile, $log_at) =~ /FATAL: .*could not create file "(base\/[^"]+)": File exists/;
		return 0 if !defined $file || -s $node->data_dir . "/$file";
		unlink $node->data_dir . "/$file";
		$c->{note} .= " $file in the way;";
		$c->{log_at} = -s $node->logfile;
	}
	return 0;
}

# Sidecars as an earlier crash left them, in place of today's: the journal knows
# rows, and rows in the places of others, that they do not.
sub exchange_sidecars
{
	my ($c) = @_;
	my $now = $c->{node}->data_dir . '/navis';
	my $old = $c->{node}->basedir . '/navis.old';
	my $what = any('keep', 'put back', '', '');

	if ($what eq 'keep' || ($what eq 'put back' && !-d $old))
	{
		remove_tree($old);
		system('cp', '-a', $now, $old) == 0 or die "cp $now";
	}
	elsif ($what eq 'put back')
	{
		remove_tree($now);
		rename $old, $now or die "$old: $!";
		$c->{note} .= ' with old sidecars;';
	}
	return;
}

sub up_again
{
	my ($c, $survives) = @_;
	my $node = $c->{node};

	if (!$survives)
	{
		configure($c);
		exchange_sidecars($c);
		return 0 unless start_again($c);
	}
	# The postmaster needs a moment to see that a child is gone.
	wait_until(sub { return !grep { !gone($_) } @{ $c->{children} } }, 30, 10) or return 0;
	return wait_until(sub { return defined ask($c, 'SELECT 1') }, 60, 20);
}

sub crash
{
	my ($c, $wait) = @_;
	my @urn = map { ($_) x $kills{$_}[0] } sort keys %kills;
	my $kill = any(@urn);

	usleep($wait * 1e6);
	(undef, my %children) = NavisTest::_children($c->{node});
	$c->{children} = [ keys %children ];
	$c->{note} .= sprintf ' %.2f s, kill %s;', $wait, $kill;
	$kills{$kill}[1]->($c);
	return $kills{$kill}[2];
}

# --- What must hold ---

sub one { return $_[0]{node}->safe_psql('postgres', $_[1]) }

# Complete scans of all indexes whose tables, with all their indexes, are not
# locked by a prepared transaction.
sub compare_all
{
	my ($c, $when) = @_;
	my @wrong = grep { !/\|(.*)\|\1\|(?:graph|exact)/ } split /\n/, one($c, <<'SQL');
WITH locked AS MATERIALIZED (
  SELECT i.indrelid FROM pg_locks JOIN pg_index i ON relation IN (indexrelid, indrelid)
  WHERE mode = 'AccessExclusiveLock' AND pid IS NULL),
free AS MATERIALIZED (
  SELECT c.oid, c.relname FROM pg_index i JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
  WHERE amname = 'navis' AND indisvalid AND relpersistence <> 't' AND indrelid NOT IN (SELECT indrelid FROM locked))
SELECT relname, x.* FROM free, compare(oid) x
SQL

	return is(join("\n", @wrong), '', "$c->{name}: complete scans have the tables' rows, $when");
}

sub end_prepared
{
	my ($c) = @_;

	one($c, join '', map { any('COMMIT', 'ROLLBACK') . " PREPARED '$_';\n" }
		  split /\n/, one($c, 'SELECT gid FROM pg_prepared_xacts ORDER BY prepared'));
	return;
}

sub valid_indexes
{
	my ($c) = @_;

	return split /\n/, one($c, <<'SQL');
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
WHERE amname = 'navis' AND indisvalid AND relpersistence <> 't' ORDER BY 1
SQL
}

# Everything is linked, and the graph answers as an exact scan does.
sub check_graph
{
	my ($c, $index) = @_;
	my $state;
	my ($rows) = one($c, "SELECT count(DISTINCT v) FROM " . one($c, "SELECT indrelid::regclass FROM pg_index WHERE indexrelid = '$index'::regclass"));

	return if $rows < 1;
	ok(wait_until(sub {
			# Sessions that search ask for what is missing.
			one($c, "SELECT * FROM compare('$index')");
			$state = one($c, "SELECT state, vertices, pending_rows FROM navis_index_info('$index')");
			return $state =~ /^ready\|[1-9]\d*\|0$/ || ($rows < GRAPH && $state =~ /^ready\|/);
		}, 90, 200), "$c->{name}: $index is ready and linked") or diag("$rows rows, $state");
	return if $state !~ /\|[1-9]\d*\|0$/;
	my ($all, $calibrated) = split /\n/, one($c, "SET navis.casr = off; SELECT * FROM recall('$index'); RESET navis.casr; SELECT recall FROM recall('$index')");
	my ($recall, $others) = split /\|/, $all;
	# The mean of shares may miss the bound by a rounding error.
	$_ = sprintf('%.4f', $_) for $recall, $calibrated;
	cmp_ok($recall, '>=', RECALL, "$c->{name}: recall of $index");
	cmp_ok($calibrated, '>=', RECALL_CALIBRATED, "$c->{name}: recall of $index, calibrated")
	  or diag(one($c, "SELECT * FROM navis_index_calibration('$index')"));
	is($others // '', '', "$c->{name}: by the graph");
	push @{ $c->{recalls} }, $recall;
	return;
}

sub check_sound
{
	my ($c, $index) = @_;
	my @found = split /\n/, one($c, "SELECT * FROM navis_check('$index')");
	my ($rows) = one($c, "SELECT live_rows FROM navis_index_info('$index')");
	my @reach = grep { /\|reach\|/ } @found;

	is(join("\n", grep { !/\|reach\|/ } @found), '', "$c->{name}: navis_check of $index");
	cmp_ok(scalar(@reach), '<=', 1 + UNREACHABLE * $rows, "$c->{name}: rows of $index within reach");
	$c->{unreachable} += @reach;
	return;
}

# Sidecars that no index owns, graphs beside the one in use, files of unknown
# names: nothing when all is well.
sub strangers
{
	my ($c) = @_;
	my $top = $c->{node}->data_dir . '/navis';
	my %owner = map { $_ => 0 } split /\n/, one($c, <<'SQL');
SELECT c.oid FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE amname = 'navis' AND relkind = 'i'
SQL
	my @strange = grep { !m{/(?:navis\.lock|\d+)$} } glob("$top/*");

	for my $dir (glob("$top/[0-9]*/*"))
	{
		my $marker = -f "$dir/navis.sidecar" ? slurp_file("$dir/navis.sidecar") : '';
		my ($oid) = $marker =~ /^index (\d+)$/m;

		push @strange, "$dir of " . ($oid // 'no') . ' index' if !defined $oid || !exists $owner{$oid} || $owner{$oid}++;
		my @graphs = grep { m{/g\d+$} } glob("$dir/*");
		push @strange, @graphs if @graphs > 1;
		push @strange, grep { !m{/(?:navis\.sidecar|g\d+)$} } glob("$dir/*");
		push @strange, grep { !m{/(?:edges|vectors|state)$} } glob("$dir/g*/*");
	}
	my $pid = worker_pid($c->{node});
	push @strange, grep { /\/navis\/.*\(deleted\)$/ } map { readlink($_) // '' } glob("/proc/$pid/fd/*") if defined $pid;
	return @strange;
}

# Processes that work in the data directory and are not the postmaster's.
sub strays
{
	my ($c) = @_;
	my $data = Cwd::realpath($c->{node}->data_dir);
	my ($postmaster) = slurp_file("$data/postmaster.pid") =~ /^(\d+)/;
	my @strays;

	for my $dir (glob('/proc/[0-9]*'))
	{
		next unless (readlink("$dir/cwd") // '') eq $data;
		my ($pid) = $dir =~ /(\d+)$/;
		open my $f, '<', "$dir/stat" or next;
		my ($parent) = (<$f> // '') =~ /^\d+ \(.*\) \S (\d+)/s;
		close $f;
		push @strays, $pid if $pid != $postmaster && defined $parent && $parent != $postmaster;
	}
	return @strays;
}

sub check_nothing_left
{
	my ($c) = @_;
	my @strange;

	ok(wait_until(sub { return !(@strange = strangers($c)) }, 45, 200), "$c->{name}: no file is left behind")
	  or diag(join "\n", @strange);
	is(join(' ', strays($c)), '', "$c->{name}: no process is left behind");
	my @lines = grep { !/$expected/ }
	  log_lines($c->{node}, 'PANIC|FATAL|ERROR|TRAP|signal 1?[1678]\b|damaged|could not be linked|needs to be', $c->{log_at});
	is(join("\n", @lines), '', "$c->{name}: nothing in the log");
	$c->{log_at} = -s $c->{node}->logfile;
	return;
}

# For the next round: what a crash may leave invalid goes, rows become as many
# as they were, about.
sub tidy
{
	my ($c) = @_;
	my $node = $c->{node};

	one($c, $_) for split /\n/, one($c, <<'SQL');
SELECT format('DROP INDEX %I;', c.relname) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
WHERE amname = 'navis' AND NOT indisvalid
UNION ALL SELECT format('DROP TABLE %I;', relname) FROM pg_class WHERE relkind = 'r' AND relname ~ '^p\d+_'
SQL
	my ($words, $prep, $unl) = split /\|/, one($c, 'SELECT (SELECT count(*) FROM words), (SELECT count(*) FROM prep), (SELECT count(*) FROM unl)');
	one($c, "INSERT INTO words (v) SELECT moved(1 + n % 8000, 0.1 * random()) FROM generate_series(1, ${\ROWS} - $words) n") if $words < FEWEST;
	one($c, 'DELETE FROM words WHERE id IN (SELECT id FROM words ORDER BY random() LIMIT ' . ($words - ROWS) . ')') if $words > MOST;
	one($c, 'INSERT INTO prep (v) SELECT v FROM pool WHERE id > 6000') if $prep < 1500;
	one($c, 'INSERT INTO unl (v) SELECT v FROM pool WHERE id BETWEEN 6000 AND 6000 + ' . any(100, 1200, 2500)) if $unl < 100;
	one($c, "CREATE INDEX IF NOT EXISTS prep_v ON prep USING navis (v) WITH ($with)");
	return;
}

# --- Rounds ---

sub run_round
{
	my ($c, $round) = @_;
	my @names;
	my @sessions;

	srand($c->{seed} * 1000 + $round);
	$c->{round} = $round;
	$c->{name} = "seed $c->{seed}, round $round";
	@names = choose_work(1 + int rand 4);
	$c->{note} = "@names;";
	# The same at each attempt, whatever the checks do with the generator.
	my @waits = (rand() < 0.3 ? rand 0.3 : rand 2.5, rand() < 0.25 ? rand 1 : ());
	@sessions = map { start_session($c, $names[$_], $_) } 0 .. $#names;
	for my $wait (@waits)
	{
		my $survives;

		usleep(50_000);
		my $scene = scene($c) if rand() < 0.5;
		$survives = crash($c, $wait);
		$c->{note} .= " in [$scene];" if defined $scene;
		ok(up_again($c, $survives), "$c->{name}: the server is up again") or return 0;
	}
	$_->finish for @sessions;

	compare_all($c, 'at once');
	check_sound($c, $_) for grep { rand() < 0.3 && !/^prep/ } valid_indexes($c);
	end_prepared($c);
	compare_all($c, 'after prepared transactions have ended');
	my @indexes = valid_indexes($c);
	check_graph($c, $_) for @indexes;
	check_sound($c, $_) for @indexes;
	tidy($c);
	check_nothing_left($c);
	note("$c->{name}: $c->{note}");
	return Test::More->builder->is_passing;
}

# Rounds from the first of a seed on, on one server; false after the first
# that found something.
sub crash_campaign
{
	my ($seed, $rounds) = @_;
	my $begun = time;
	my $c = new_server($seed);
	my $good = 1;

	for my $round (1 .. $rounds)
	{
		$good = eval { run_round($c, $round) };
		fail("$c->{name}: $@") if !defined $good;
		last if !$good;
	}
	note(sprintf 'seed %d: %d rounds in %.0f s, recall %.3f .. %.3f, %d rows out of reach',
		$seed, $rounds, time - $begun, (sort { $a <=> $b } @{ $c->{recalls} // [0] })[ 0, -1 ], $c->{unreachable} // 0);
	$good ? $c->{node}->stop : diag("$c->{name}: $c->{note}\nkept: " . $c->{node}->basedir);
	return $good;
}

1;
