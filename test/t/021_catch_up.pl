# Catch-up: what the engine has not got is fetched from the table by whoever has
# it open.  Users' functions run as the table's owner, in a security-restricted
# context; broken HOT chains, dead rows without their TOAST, uncommitted and
# prepared rows; DDL and DROP DATABASE do not wait for helpers; many small
# indexes take turns in navis.pending_memory.  Answers are right all the time.
use strict;
use warnings FATAL => 'all';

use File::Path qw(remove_tree);
use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $options = 'WITH (max_degree = 16, build_list_size = 32, pq_bytes = 16)';
my $node = new_node('catch_up', conf => <<CONF);
max_prepared_transactions = 5
fsync = off
jit = off
CONF
$node->start;
make_helpers($node);
load_words($node, 'words', 1500);

# The worker leaves, and its files with it; sessions stay.
sub lose_sidecars
{
	my $pid = worker_pid($node);

	kill 'TERM', $pid;
	wait_until(sub { gone($pid) }, undef, 5) or die 'the worker does not leave';
	remove_tree($node->data_dir . '/navis');
	return;
}

sub same_rows
{
	my ($table, $name, $db) = @_;
	my $q = "(SELECT v FROM $table ORDER BY id LIMIT 1)";
	my ($scan, $mode) = complete_scan($node, $table, $q, $db);

	is($scan, table_rows($node, $table, $q, $db), "$name: a complete scan has the table's rows");
	return $mode;
}

# --- users' functions
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE owner;
GRANT CREATE ON SCHEMA public TO owner;
SET ROLE owner;
CREATE TABLE attempts (app text, who name, what text, outcome text);
CREATE TABLE trap (i int);
CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO attempts VALUES (current_setting('application_name'), current_user, 'trap', 'done'); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON trap DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION spring();
CREATE FUNCTION attempt(what text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  outcome text := 'done';
BEGIN
  BEGIN
    EXECUTE what;
  EXCEPTION WHEN OTHERS THEN outcome := SQLERRM;
  END;
  INSERT INTO public.attempts VALUES (current_setting('application_name'), current_user, what, outcome);
END $$;
CREATE FUNCTION sly(v real[], id int) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  IF id = 7 THEN
    PERFORM public.attempt(w) FROM unnest('{SET ROLE postgres,RESET ROLE,SET SESSION AUTHORIZATION postgres,
      ALTER ROLE owner SUPERUSER,CREATE TEMP TABLE mine (i int),INSERT INTO public.trap VALUES (1)}'::text[]) w;
  END IF;
  RETURN v;
END $$;
CREATE TABLE guarded (id int, v real[]);
RESET ROLE;
INSERT INTO guarded SELECT id, v FROM words;
CREATE TABLE few (id int, v real[]);
ALTER TABLE few OWNER TO owner;
INSERT INTO few SELECT id, v FROM words WHERE id <= 20;
SQL
$node->safe_psql('postgres', "SET ROLE owner; CREATE INDEX guarded_v ON guarded USING navis (sly(v, id)) $options; CREATE INDEX few_v ON few USING navis (sly(v, id))");
$node->safe_psql('postgres', 'TRUNCATE attempts');
lose_sidecars();
ok(wait_worker($node, 'guarded_v'), 'another worker');
# Who searches asks for a helper.
my $search = 'SELECT id FROM guarded ORDER BY sly(v, id) <-> (SELECT v FROM words WHERE id = 9) LIMIT 1';
ok(wait_until(sub {
	return $node->safe_psql('postgres', <<SQL) eq "9\nt" }), 'a helper builds the graph again');
SET enable_seqscan = off; $search;
SELECT state = 'ready' AND vertices > 1000 FROM navis_index_info('guarded_v');
SQL
# Its own target list must not have the function look at row 7.
is( $node->safe_psql('postgres', <<SQL), "9\ngraph", 'a session opens the small one');
SET enable_seqscan = off;
SELECT id FROM few ORDER BY sly(v, id) <-> (SELECT v FROM words WHERE id = 9) LIMIT 1;
SELECT mode FROM navis_last_scan();
SQL
is($node->safe_psql('postgres', 'SELECT DISTINCT who FROM attempts'), 'owner', 'the function is run as the owner');
is($node->safe_psql('postgres', 'SELECT count(DISTINCT app), count(DISTINCT what) FROM attempts'), '2|6', 'by both');
is($node->safe_psql('postgres', "SELECT app, what FROM attempts WHERE outcome = 'done'"), '', 'nothing it attempts is done');
is($node->safe_psql('postgres', <<SQL), '4', 'because the context is restricted');
SELECT count(DISTINCT what) FROM attempts WHERE outcome LIKE '%security-restricted operation%' AND what ~ 'ROLE postgres|AUTHORIZATION|TEMP|trap'
SQL
is($node->safe_psql('postgres', "SELECT rolsuper FROM pg_roles WHERE rolname = 'owner'"), 'f', 'the owner is what it was');

# --- broken HOT chains, TOAST of dead rows, rows of others' transactions
$node->safe_psql('postgres', <<SQL);
DROP TABLE guarded, few;
CREATE TABLE hot (id int, v real[]) WITH (fillfactor = 40);
INSERT INTO hot SELECT id, v FROM words WHERE id <= 60;
CREATE TABLE toasted (id int, v real[]);
INSERT INTO toasted SELECT i, (SELECT array_agg(random()) FROM generate_series(1, 1000) WHERE i > 0)::real[] FROM generate_series(1, 40) i;
CREATE INDEX toasted_v ON toasted USING navis (v);
CREATE TABLE pending (id int, v real[]);
INSERT INTO pending SELECT id, v FROM words WHERE id <= 30;
CREATE INDEX pending_v ON pending USING navis (v);
SQL
my $old = session($node);
my $opener = session($node);
my $nearest = 'SELECT id FROM %s ORDER BY v <-> (SELECT v FROM words WHERE id = %d) LIMIT 1';
my $first = 'SELECT sum(v[1]) FROM hot';
my $before = $node->safe_psql('postgres', $first);
$old->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; $first");
$node->safe_psql('postgres', <<SQL);
UPDATE hot SET v = (SELECT w.v FROM words w WHERE w.id = hot.id + 100);
BEGIN; UPDATE hot SET v = (SELECT w.v FROM words w WHERE w.id = hot.id + 200) WHERE id <= 20; ROLLBACK;
CREATE INDEX hot_v ON hot USING navis (v);
DELETE FROM toasted WHERE id > 20;
SQL
is($node->safe_psql('postgres', "SELECT indcheckxmin FROM pg_index WHERE indexrelid = 'hot_v'::regclass"), 't', 'HOT chains are broken');
# What is deleted is needed by the old snapshot: this session knows that.
$opener->query_safe("SET enable_seqscan = off; SELECT id FROM toasted ORDER BY v <-> (SELECT v FROM toasted WHERE id = 5) LIMIT 30");
my $writer = session($node);
$writer->query_safe('BEGIN; INSERT INTO pending SELECT id, v FROM words WHERE id BETWEEN 101 AND 110');
$node->safe_psql('postgres', "BEGIN; INSERT INTO pending SELECT id, v FROM words WHERE id BETWEEN 201 AND 210; PREPARE TRANSACTION 'later'");
lose_sidecars();
ok(wait_worker($node, 'hot_v'), 'another worker');
is($node->safe_psql('postgres', "SET enable_seqscan = off; " . sprintf($nearest, 'hot', 105)), 5, 'the indexed version of a row is found');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; ' . sprintf($nearest, 'hot', 105) . '; SELECT mode FROM navis_last_scan()'),
	"5\ngraph", 'by the engine');
same_rows('hot', 'broken HOT chains');
is($old->query_safe("SET enable_seqscan = off; $first"), $before, 'an older snapshot sees the older versions');
like(same_rows('pending', 'rows of running transactions'), qr/^graph/, 'they do not keep the index from being used');
$writer->query_safe('COMMIT');
$node->safe_psql('postgres', "COMMIT PREPARED 'later'");
is($node->safe_psql('postgres', "SET enable_seqscan = off; " . sprintf($nearest, 'pending', $_)), $_, 'committed later, found later')
  foreach 105, 205;
same_rows('pending', 'committed');
# Nobody needs what is deleted any more; VACUUM of the TOAST table alone.
$old->quit;
$writer->quit;
my $toast = $node->safe_psql('postgres', "SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'toasted'");
lose_sidecars();
$node->safe_psql('postgres', "VACUUM $toast");
ok(wait_worker($node, 'toasted_v'), 'another worker');
is($opener->query_safe('SELECT count(*) FROM (SELECT id FROM toasted ORDER BY v <-> (SELECT v FROM toasted WHERE id = 5)) s'), 20,
	'dead rows without their TOAST are no obstacle');
like($opener->query_safe('SELECT mode FROM navis_last_scan()'), qr/^graph/, 'the engine has the others');
same_rows('toasted', 'dead rows');
$opener->quit;
is(scalar(log_lines($node, 'is not usable|could not rebuild|missing chunk|does not have the vector')), 0, 'no opening failed');

# --- DDL and DROP DATABASE beside a helper that takes long
$node->safe_psql('postgres', 'CREATE DATABASE other');
make_helpers($node, 'other');
load_words($node, 'words', 1500, db => 'other');
$node->safe_psql('other', <<SQL);
CREATE FUNCTION slow(v real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS
  'BEGIN IF current_setting(''application_name'') = '''' THEN PERFORM pg_sleep(0.004); END IF; RETURN v; END';
CREATE INDEX words_v ON words USING navis (slow(v)) $options;
SQL
lose_sidecars();
ok(wait_worker($node, 'words_v', 'other'), 'another worker');
my $right = "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM words ORDER BY slow(v) <-> (SELECT v FROM words WHERE id = 99) LIMIT 5) s";
is($node->safe_psql('other', "$right; SELECT mode FROM navis_last_scan()"), "5\nexact", 'scans are exact, and ask for a helper');
my $building = "SELECT state, build_phase, build_done > 0, build_total FROM navis_index_info('words_v')";
my $seen = '';
ok(wait_until(sub { ($seen = $node->safe_psql('other', $building)) =~ /\|t\|/ }, 60, 50), 'the progress of the helper can be seen')
  or diag($seen);
is($seen, 'building|scanning table|t|1500', 'its phase and numbers');
is($node->safe_psql('other', "$right; SELECT mode FROM navis_last_scan()"), "5\nexact", 'and are it meanwhile');
$node->safe_psql('other', "SET lock_timeout = '20s'; ALTER TABLE words ADD COLUMN more int");
is($node->safe_psql('other', "SELECT vertices FROM navis_index_info('words_v')"), '', 'DDL does not wait until it is through');
ok(wait_until(sub { $node->safe_psql('other', "$right; $building") =~ /\|t\|/ }, 60, 500), 'it begins again');
$node->safe_psql('postgres', 'DROP DATABASE other');
pass('nor does DROP DATABASE');

# --- many small indexes in little memory
$node->append_conf('postgresql.conf', "navis.pending_memory = '1MB'\n");
$node->safe_psql('postgres', <<SQL);
DO \$\$ BEGIN FOR i IN 1 .. 30 LOOP
  EXECUTE format('CREATE TABLE s%s AS SELECT id, v FROM words WHERE id %% 30 = %s OR id < 100', i, i - 1);
  EXECUTE format('CREATE INDEX s%s_v ON s%s USING navis (v)', i, i);
END LOOP; END \$\$;
CREATE TABLE growing (id int, v real[]);
CREATE INDEX growing_v ON growing USING navis (v) $options;
SQL
$node->restart;
# Each is asked for its own rows, in this order: wrong answers, and how many ways.
my $ask_all = <<'SQL';
DO $$ DECLARE i int; k int; found int; wrong int := 0; modes text[] := '{}'; BEGIN
SET enable_seqscan = off;
FOREACH i IN ARRAY current_setting('nt.turn')::int[] LOOP
  FOR k IN EXECUTE format('SELECT id FROM s%s WHERE id > 100 ORDER BY id LIMIT 2', i) LOOP
    EXECUTE format('SELECT id FROM s%s ORDER BY v <-> (SELECT v FROM words WHERE id = %s) LIMIT 1', i, k) INTO found;
    wrong := wrong + (found <> k)::int;
    modes := modes || (SELECT mode FROM navis_last_scan());
  END LOOP;
END LOOP;
RAISE NOTICE 'wrong %, graph %, exact %', wrong, cardinality(array_positions(modes, 'graph')), cardinality(array_positions(modes, 'exact'));
END $$;
SQL

sub ask
{
	my ($order) = @_;
	my (undef, undef, $err) = $node->psql('postgres', "SET nt.turn = '{$order}'; $ask_all");
	my @numbers = $err =~ /wrong (\d+), graph (\d+), exact (\d+)/ or die $err;

	unlike($err, qr/WARNING/, 'small indexes give no warnings');
	return @numbers;
}

ok(wait_worker($node, 's1_v'), 'the engine is there');
my ($wrong, $graph, $exact) = ask(join ',', 1 .. 30);
is("$wrong|" . ($graph + $exact), '0|60', 'all answers are right');
cmp_ok($graph, '>=', 30, 'many come from the engine');
is($node->safe_psql('postgres', 'SELECT unlinked_bytes <= unlinked_limit, unlinked_bytes > unlinked_limit / 2 FROM navis_stat_worker'), 't|t',
	'the memory is used, and its limit holds');
($wrong, $graph, $exact) = ask(join ',', 26 .. 30);
is("$wrong|$graph|$exact", '0|10|0', 'those asked last are in memory');
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM navis_stat_indexes WHERE state = 'pending memory full' AND unlinked_rows = 0"),
	'>', 0, 'those asked least recently are not');
$node->safe_psql('postgres', 'INSERT INTO growing SELECT id, v FROM words');
ok(wait_ready($node, 'growing_v'), 'an index that grows gets its graph beside them');
# Ten seconds later others come back.
ok(wait_until(sub { ($wrong, $graph, $exact) = ask('1,2,3'); die if $wrong; return $graph == 6; }, 60, 1000), 'they take turns');
is((ask(join ',', 1 .. 30))[0], 0, 'and all are right');
same_rows("s$_", "s$_") foreach 1, 30;
$node->stop;
is(scalar(log_lines($node, 'PANIC|signal 11|signal 6|TRAP')), 0, 'nothing in the log');
done_testing();
