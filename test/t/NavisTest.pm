# What the TAP tests share: nodes with quick settings, the word vectors that
# ship with the project, waiting for an index, recall against the exact scan of
# the same server, writes and searches by pgbench, and a look at sidecar
# directories and the worker process.
package NavisTest;

use strict;
use warnings FATAL => 'all';

use Cwd qw(realpath);
use Exporter 'import';
use File::Basename qw(dirname);
use IO::Uncompress::Gunzip qw($GunzipError);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(new_node load_words make_helpers query_words wait_until wait_ready
  answers nearest_word complete_scan table_rows sidecars sidecar_of worker_pid wait_worker
  kill9_all kill9_postmaster log_lines session gone vacuum
  make_pool mixed_scripts start_bench finish_bench);

my $words = realpath(dirname(__FILE__) . '/../..') . '/bench/data/words.tsv.gz';

# new_node(name, preload => 1, conf => '...'): initialised, not started.  Once
# started it has its engine, if it is to have one: what comes next need not ask.
sub new_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init;
	$node->append_conf('postgresql.conf', <<CONF);
wal_level = replica
autovacuum = off
max_worker_processes = 8
navis.collect_interval = 1
navis.casr_warmup = 50
CONF
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'navis'\n")
	  unless defined $opt{preload} && !$opt{preload};
	$node->append_conf('postgresql.conf', $opt{conf}) if defined $opt{conf};
	return bless $node, 'NavisTest::Node';
}

# load_words(node, table, count): the first words, most frequent ones first,
# as table(id int PRIMARY KEY, word text, v real[]).
sub load_words
{
	my ($node, $table, $count, %opt) = @_;
	my $db = $opt{db} // 'postgres';
	my $file = $node->basedir . "/words.$table.tsv";
	my $in = IO::Uncompress::Gunzip->new($words) or die "$words: $GunzipError";
	open my $out, '>', $file or die "$file: $!";

	for my $id (1 .. $count)
	{
		my $line = $in->getline or die "$words has only $. words";
		print $out "$id\t$line";
	}
	close $out or die "$file: $!";
	$node->safe_psql($db, <<SQL);
CREATE TABLE IF NOT EXISTS $table (id int PRIMARY KEY, word text, v real[]);
COPY $table FROM '$file';
ANALYZE $table;
SQL
	unlink $file;
	return;
}

# Functions in a database that the other subs use.
sub make_helpers
{
	my ($node, $db) = @_;

	$node->safe_psql($db // 'postgres', <<'SQL');
CREATE EXTENSION IF NOT EXISTS navis;
-- Searches for the vectors of rows of another table: recall@k against the exact
-- scan, rows returned, and how many searches the graph of that index answered.
CREATE FUNCTION nt_recall(i regclass, op text, queries regclass, k int,
  OUT recall float8, OUT rows bigint, OUT searches bigint, OUT graph bigint)
LANGUAGE plpgsql AS $$
DECLARE
  q real[];
  tab regclass := (SELECT indrelid FROM pg_index WHERE indexrelid = i);
  ids int[];
  truth int[];
  hits bigint := 0;
BEGIN
  rows := 0; searches := 0; graph := 0;
  FOR q IN EXECUTE format('SELECT v FROM %s ORDER BY id', queries) LOOP
    searches := searches + 1;
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
    EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM %s ORDER BY v %s $1 LIMIT %s) s',
                   tab, op, k) INTO ids USING q;
    graph := graph + (SELECT count(*) FROM navis_last_scan() l
                      WHERE l.index = i AND mode = 'graph' AND l.rows = k AND hops > 0 AND edge_pages > 0);
    PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM %s ORDER BY v %s $1, id LIMIT %s) s',
                   tab, op, k) INTO truth USING q;
    rows := rows + cardinality(ids);
    hits := hits + (SELECT count(*) FROM unnest(ids) x WHERE x = ANY (truth));
  END LOOP;
  recall := hits::float8 / (k * searches);
END $$;
-- Ids of a complete scan through an index, or of a sequential scan.
CREATE FUNCTION nt_scan(tab regclass, q real[], through_index bool, OUT n bigint, OUT different bigint, OUT sum text)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('enable_seqscan', (NOT through_index)::text, true),
          set_config('enable_sort', (NOT through_index)::text, true),
          set_config('enable_indexscan', through_index::text, true);
  EXECUTE format('SELECT count(*), count(DISTINCT id), md5(string_agg(id::text, '','' ORDER BY id))
                  FROM (SELECT id FROM %s ORDER BY v <-> $1) s', tab) INTO n, different, sum USING q;
END $$;
SQL
	return;
}

# query_words(node, table, from, count): vectors of words that are not indexed.
sub query_words
{
	my ($node, $table, $from, $count, %opt) = @_;

	load_words($node, 'nt_all', $from + $count - 1, %opt);
	$node->safe_psql($opt{db} // 'postgres', <<SQL);
CREATE TABLE $table AS SELECT id, v FROM nt_all WHERE id >= $from;
DROP TABLE nt_all;
SQL
	return;
}

# What mixed_scripts need beside a table words: vectors to search for and to
# insert, by pool(0 .. count - 1), which are words from..from + count - 1; ids of
# new rows; and search(), which notes in searches what came of it.
sub make_pool
{
	my ($node, $from, $count) = @_;

	query_words($node, 'pool', $from, $count);
	$node->safe_psql('postgres', <<SQL);
ALTER TABLE pool ADD PRIMARY KEY (id);
CREATE SEQUENCE ids START 100000;
CREATE FUNCTION pool(i int) RETURNS real[] LANGUAGE sql STABLE AS 'SELECT v FROM pool WHERE id = $from + i';
CREATE TABLE searches (k int, rows int, different int, ordered bool, mode text, hops bigint);
CREATE FUNCTION search(k int, query real[]) RETURNS void LANGUAGE plpgsql AS \$\$
DECLARE
  ids int[];
  d float8[];
BEGIN
  SELECT array_agg(id), array_agg(v <-> query) INTO ids, d
  FROM (SELECT id, v FROM words ORDER BY v <-> query LIMIT k) w;
  INSERT INTO searches
    SELECT k, cardinality(ids), (SELECT count(DISTINCT x) FROM unnest(ids) x),
           d = (SELECT array_agg(x ORDER BY x) FROM unnest(d) x), mode, hops
    FROM navis_last_scan();
END \$\$;
SQL
	return;
}

# pgbench scripts over words 1 .. rows and a pool of this size, for start_bench:
# those that are named with a weight, and others of the caller's.
sub mixed_scripts
{
	my ($rows, $pool, $weights, %others) = @_;
	my $any = "\\set i random(0, $pool - 1)\n";
	my %all = (
		search => "SELECT search(10, pool(:i));\n",
		search_more => "SELECT search(100, pool(:i));\n",
		insert => "INSERT INTO words SELECT nextval('ids'), 'new', pool(:i);\n",
		insert_aborted => "BEGIN;\nINSERT INTO words SELECT nextval('ids'), 'aborted', pool(:i);\nROLLBACK;\n",
		update => "\\set id random(1, $rows)\nUPDATE words SET v = pool(:i) WHERE id = :id;\n",
	);

	return { %others, map { $_ => [ $weights->{$_}, $any . $all{$_} ] } keys %$weights };
}

# Starts pgbench over scripts, { name => [ weight, text ] }, with options.
sub start_bench
{
	my ($node, $scripts, @options) = @_;
	my %bench = (out => '', err => '');
	my @files;

	for my $name (sort keys %$scripts)
	{
		my $file = $node->basedir . "/$name.sql";
		my ($weight, $text) = @{ $scripts->{$name} };

		unlink $file;
		append_to_file($file, $text);
		push @files, '-f', "$file\@$weight";
	}
	$bench{run} = IPC::Run::start(
		[ $node->installed_command('pgbench'), '-n', '-h', $node->host, '-p', $node->port, @options, @files, 'postgres' ],
		'>', \$bench{out}, '2>', \$bench{err});
	return \%bench;
}

# Waits for its end: exit code, output, errors and warnings.
sub finish_bench
{
	my ($bench) = @_;

	$bench->{run}->finish;
	return ($bench->{run}->result(0), $bench->{out}, $bench->{err});
}

# Polls a condition, by default for up to two minutes, every 100 ms.
sub wait_until
{
	my ($condition, $seconds, $step) = @_;
	my $end = time + ($seconds // 120);

	$step //= 100;

	while (1)
	{
		return 1 if $condition->();
		return 0 if time > $end;
		usleep($step * 1000);
	}
}

# Waits until an index is usable and has a graph.  Sessions that search ask for
# what is missing, so this one does.
sub wait_ready
{
	my ($node, $index, $db) = @_;
	my $ok = wait_until(sub {
		my ($table, $dim) = split /\|/, $node->safe_psql($db // 'postgres', <<SQL);
SELECT i.indrelid::regclass, n.dimensions FROM pg_index i, navis_index_info('$index') n
WHERE indexrelid = '$index'::regclass
SQL
		my $answer = $node->safe_psql($db // 'postgres', <<SQL);
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT 1 FROM $table ORDER BY v <-> array_fill(1::real, ARRAY[$dim]) LIMIT 1) s;
SELECT state = 'ready' AND vertices > 0 FROM navis_index_info('$index');
SQL
		return $answer =~ /^t$/m;
	});
	diag("$index: " . $node->safe_psql($db // 'postgres', "SELECT navis_index_info('$index')")) unless $ok;
	return $ok;
}

# Ids and mode of searches for the vectors of a table, one session; every
# explored vector is loaded, so that calibration does not matter.
sub answers
{
	my ($node, $table, $queries, $k, $db) = @_;

	return $node->safe_psql($db // 'postgres', <<SQL);
SET enable_seqscan = off;
SET navis.casr = off;
SET navis.search_list_size = 300;
SELECT q.id, (SELECT array_agg(id) FROM (SELECT id FROM $table ORDER BY v <-> q.v LIMIT $k) s) FROM $queries q ORDER BY q.id;
SELECT index::regclass, mode, rows, hops > 0 AND edge_pages > 0 FROM navis_last_scan();
SQL
}

# The nearest row to that of a word's id in table words, and how it was found.
sub nearest_word
{
	my ($node, $id) = @_;

	return $node->safe_psql('postgres', <<SQL);
SET enable_seqscan = off;
SELECT id FROM words ORDER BY v <-> (SELECT v FROM words WHERE id = $id) LIMIT 1;
SELECT mode, hops > 0 FROM navis_last_scan();
SQL
}

# "n|different|md5" of all rows, and how the scan was answered.
sub complete_scan
{
	my ($node, $table, $q, $db) = @_;

	return split /\n/, $node->safe_psql($db // 'postgres', <<SQL);
SELECT * FROM nt_scan('$table', $q, true);
SELECT mode FROM navis_last_scan();
SQL
}

sub table_rows
{
	my ($node, $table, $q, $db) = @_;

	return $node->safe_psql($db // 'postgres', "SELECT * FROM nt_scan('$table', $q, false)");
}

# VACUUM until it has removed every dead row: a helper's transaction, a second at
# most, may hold it back.  True if the index then has as many rows as the table.
sub vacuum
{
	my ($node, $table, $index, $db) = @_;

	return wait_until(sub {
		$node->safe_psql($db // 'postgres', "VACUUM (INDEX_CLEANUP on) $table");
		return $node->safe_psql($db // 'postgres',
			"SELECT live_rows = (SELECT count(*) FROM $table) FROM navis_index_info('$index')") eq 't';
	}, 30);
}

# Directories of sidecars, as "database/identity"; in scalar context, how many.
sub sidecars
{
	my ($node) = @_;
	my $top = $node->data_dir . '/navis';

	my @found = sort map { s{^\Q$top\E/}{}r } grep { -d $_ } glob("$top/[0-9]*/*");
	return @found;
}

# The directory of one index's sidecar.
sub sidecar_of
{
	my ($node, $oid) = @_;
	my $top = $node->data_dir . '/navis';

	for my $dir (glob("$top/[0-9]*/*"))
	{
		next unless -f "$dir/navis.sidecar";
		return $dir if slurp_file("$dir/navis.sidecar") =~ /^index $oid$/m;
	}
	return;
}

# Process ids below the postmaster, as id => command line.
sub _children
{
	my ($node) = @_;
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my %found;

	for my $dir (glob('/proc/[0-9]*'))
	{
		open my $stat, '<', "$dir/stat" or next;
		my $line = <$stat> // next;
		close $stat;
		next unless $line =~ /^(\d+) \(.*\) \S (\d+)/s && $2 == $postmaster;
		my $pid = $1;
		open my $cmd, '<', "$dir/cmdline" or next;
		my $text = <$cmd> // '';
		close $cmd;
		$found{$pid} = $text =~ s/\0/ /gr;
	}
	return ($postmaster, %found);
}

sub worker_pid
{
	my ($node) = @_;
	my (undef, %children) = _children($node);
	my @pids = grep { $children{$_} =~ /navis worker/ } keys %children;

	return $pids[0];
}

# Waits until the engine answers, in a database with the extension.
sub wait_worker
{
	my ($node, $index, $db) = @_;

	return wait_until(sub {
		return $node->safe_psql($db // 'postgres',
			"SELECT state FROM navis_index_info('$index')") ne 'no engine';
	});
}

sub gone
{
	my ($pid) = @_;

	return !-d "/proc/$pid";
}

# SIGKILL to the postmaster and everything below it, at once.
sub kill9_all
{
	my ($node) = @_;
	my ($postmaster, %children) = _children($node);

	kill 'STOP', $postmaster;
	kill 'KILL', keys %children;
	$node->kill9;
	wait_until(sub { return !grep { !gone($_) } $postmaster, keys %children })
	  or die 'processes survive SIGKILL';
	unlink $node->data_dir . '/postmaster.pid';
	return;
}

# SIGKILL to the postmaster alone: everything else must leave by itself.
sub kill9_postmaster
{
	my ($node) = @_;
	my (undef, %children) = _children($node);

	$node->kill9;
	return wait_until(sub { return !grep { !gone($_) } keys %children }, 30);
}

# Lines of the server log since an offset that match; in scalar context, how many.
sub log_lines
{
	my ($node, $pattern, $offset) = @_;
	my $log = slurp_file($node->logfile, $offset // 0);
	my @lines = grep { /$pattern/ && !/LOG:  statement:/ } split /\n/, $log;

	return @lines;
}

# A psql session in the background that goes on after errors.
sub session
{
	my ($node, $db) = @_;

	return $node->background_psql($db // 'postgres', on_error_stop => 0);
}

package NavisTest::Node;

use parent -norequire, 'PostgreSQL::Test::Cluster';

# Calls what starts the server, and waits for the log to tell of the engine.
sub _with_engine
{
	my ($node, $start) = @_;
	my $offset = -s $node->logfile // 0;
	my $result = $start->();
	my ($rc, $out) = $node->psql('postgres', "SELECT current_setting('shared_preload_libraries') ~ 'navis' AND current_setting('max_worker_processes') <> '0'");

	return $result unless $rc == 0 && $out eq 't';
	NavisTest::wait_until(sub { return NavisTest::log_lines($node, 'navis engine (started|could not be started)', $offset) > 0 }, 20);
	return $result;
}

sub start
{
	my ($node, @options) = @_;

	return _with_engine($node, sub { return $node->SUPER::start(@options) });
}

sub restart
{
	my ($node, @options) = @_;

	return _with_engine($node, sub { return $node->SUPER::restart(@options) });
}

1;
