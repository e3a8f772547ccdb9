# A clean restart, and kill -9 right after inserts: the index answers as
# before, has what was committed and not what was not.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $q = "(SELECT v FROM words WHERE id = 77)";

# Rows of nt_new with an id from..to are found at distance 0, by the graph.
sub found
{
	my ($node, $from, $to) = @_;

	return $node->safe_psql('postgres', <<SQL);
SET enable_seqscan = off;
SET navis.search_list_size = 1000;
SET navis.casr = off;
SELECT count(*) FROM nt_new n, LATERAL
  (SELECT id, v <-> n.v AS d FROM words ORDER BY v <-> n.v LIMIT 1) s
WHERE n.id BETWEEN $from AND $to AND s.id = n.id AND s.d = 0;
SQL
}

sub check_complete
{
	my ($node, $name) = @_;
	my ($scan, $mode) = complete_scan($node, 'words', $q);

	is($scan, table_rows($node, 'words', $q), "$name: a complete scan has the table's rows");
	like($mode, qr/^graph/, "$name: it began in the graph");
	return;
}

sub run_node
{
	my ($wal_level, $kill) = @_;
	my $name = "$wal_level, $kill";
	my $node = new_node("restart_$wal_level", conf => "wal_level = $wal_level\nmax_wal_senders = 0\n");

	$node->start;
	make_helpers($node);
	load_words($node, 'words', 2000);
	query_words($node, 'queries', 5001, 20);
	query_words($node, 'nt_new', 3001, 300);
	$node->safe_psql('postgres', 'CREATE TABLE nt_old AS SELECT id, v FROM words WHERE id <= 10');
	$node->safe_psql('postgres', <<SQL);
CREATE INDEX words_v ON words USING navis (v);
INSERT INTO words SELECT id, 'n' || id, v FROM nt_new WHERE id <= 3040;
SQL
	my $before = answers($node, 'words', 'queries', 20);
	like($before, qr/^words_v\|graph\|20\|t$/m, "$name: the graph answers");
	is(found($node, 3001, 3040), 40, "$name: inserted rows are found");

	# a clean restart
	$node->restart;
	is(answers($node, 'words', 'queries', 20), $before, "$name: the same answers after a restart, from the graph at once");
	is(found($node, 3001, 3040), 40, "$name: inserted rows after a restart");
	check_complete($node, "$name, restarted");
	is($node->safe_psql('postgres', "SELECT state, vertices + pending_rows FROM navis_index_info('words_v')"),
		'ready|2040', "$name: all rows are the engine's");

	# a crash right after a commit, with open transactions
	my $open = session($node);
	$open->query_safe('BEGIN');
	$open->query_safe("INSERT INTO words SELECT id, 'u' || id, v FROM nt_new WHERE id BETWEEN 3101 AND 3150");
	$open->query_safe("UPDATE words SET v = (SELECT v FROM nt_new WHERE id = 3151) WHERE id = 5");
	$open->query_safe("DELETE FROM words WHERE id = 6");
	my $other = session($node);
	$other->query_safe('BEGIN');
	$other->query_safe("INSERT INTO words SELECT id, 'a' || id, v FROM nt_new WHERE id BETWEEN 3201 AND 3210");
	$other->query_safe('ROLLBACK');
	$node->safe_psql('postgres', <<SQL);
INSERT INTO words SELECT id, 'c' || id, v FROM nt_new WHERE id BETWEEN 3041 AND 3080;
DELETE FROM words WHERE id = 7;
UPDATE words SET v = (SELECT v FROM nt_new WHERE id = 3220) WHERE id = 8;
SQL
	$before = answers($node, 'words', 'queries', 20);
	$kill eq 'all' ? kill9_all($node) : ok(kill9_postmaster($node), "$name: all processes leave with the postmaster");
	$_->{run}->finish for $open, $other;
	$node->start;
	is(answers($node, 'words', 'queries', 20), $before, "$name: the same answers after kill -9, from the graph at once");
	is(found($node, 3001, 3080), 80, "$name: committed rows are there");
	is(found($node, 3101, 3300), 0, "$name: others are not");
	is($node->safe_psql('postgres', <<SQL), "5|t\n6|t\n8|t\nf", "$name: updates and deletes as committed");
SET enable_seqscan = off;
SELECT id, v <-> (SELECT v FROM nt_old WHERE id = s.want) = 0 FROM (SELECT 5 AS want UNION SELECT 6) s,
  LATERAL (SELECT id, v FROM words ORDER BY v <-> (SELECT v FROM nt_old WHERE id = s.want) LIMIT 1) w ORDER BY 1;
SELECT id, v <-> (SELECT v FROM nt_new WHERE id = 3220) = 0 FROM words ORDER BY v <-> (SELECT v FROM nt_new WHERE id = 3220) LIMIT 1;
SELECT count(*) > 0 FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM nt_old WHERE id = 7) LIMIT 3) s WHERE id = 7;
SQL
	check_complete($node, "$name, killed");

	# entries of aborted rows go with VACUUM, and the next crash changes nothing
	ok(vacuum($node, 'words', 'words_v'), "$name: VACUUM removes entries of aborted rows");
	$node->safe_psql('postgres', "INSERT INTO words SELECT id, 'd' || id, v FROM nt_new WHERE id BETWEEN 3081 AND 3100");
	$before = answers($node, 'words', 'queries', 20);
	kill9_all($node);
	$node->start;
	is(answers($node, 'words', 'queries', 20), $before, "$name: the same answers after VACUUM, inserts and kill -9");
	is(found($node, 3081, 3100), 20, "$name: rows in reused entries");
	check_complete($node, "$name, killed again");
	is(scalar(log_lines($node, 'PANIC|Segmentation|signal 11|signal 6')), 0, "$name: nothing crashed by itself");
	$node->stop;
	return;
}

run_node('replica', 'all');
run_node('minimal', 'postmaster');
done_testing();
