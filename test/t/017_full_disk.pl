# A full disk below navis.directory: INSERT fails before anything is written,
# searches, deletions and VACUUM go on, and once there is space inserts do.
#
# The disk is a small tmpfs in a mount namespace of our own, where the kernel
# lets us have one.
use strict;
use warnings FATAL => 'all';

use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::RealBin;

# Starts this script again, above the mount, before the test modules take the
# output over.  The server must not be root there.
BEGIN
{
	if (!defined $ENV{NAVIS_SMALL_DISK})
	{
		my $disk = tempdir('navis-disk-XXXXXX', TMPDIR => 1, CLEANUP => 1);
		my $ids = "--map-user=$< --map-group=" . ($( + 0);
		my $inner = "mount -t tmpfs -o size=10m,mode=700 none $disk && exec unshare -U $ids";

		if ($< == 0 || system("unshare -r -m sh -c '$inner true' 2>/dev/null") != 0)
		{
			print "1..0 # SKIP no mount namespace to be had\n";
			exit 0;
		}
		$ENV{NAVIS_SMALL_DISK} = $disk;
		my $status = system('unshare', '-r', '-m', 'sh', '-c', "$inner \"\$0\" \"\$@\"", $^X, $0);
		exit($status >> 8 || ($status != 0 ? 1 : 0));
	}
}

use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $disk = $ENV{NAVIS_SMALL_DISK};
my $node = new_node('full_disk', conf => "navis.directory = '$disk'\nnavis.insert_threads = 1\nfsync = off\n");
$node->start;
make_helpers($node);
load_words($node, 'words', 2000);
query_words($node, 'queries', 2001, 4000);
$node->safe_psql('postgres', "CREATE TABLE more AS SELECT id, 'new'::text AS word, v FROM queries");
$node->safe_psql('postgres', 'CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 24, build_list_size = 32, pq_bytes = 16)');

# Fills the disk but for so many kilobytes, or frees it.
sub leave_free
{
	my ($kilobytes) = @_;

	unlink "$disk/filler";
	return if !defined $kilobytes;
	my ($free) = `df -k --output=avail $disk` =~ /(\d+)/;
	system('fallocate', '-l', ($free - $kilobytes) . 'KiB', "$disk/filler") == 0 or die 'fallocate';
	return;
}

# Single rows until one fails.
sub insert_until_full
{
	return $node->psql('postgres', <<'SQL', on_error_stop => 1);
\set VERBOSITY verbose
SELECT format('INSERT INTO words SELECT id, word, v FROM more WHERE id = %s', id) FROM more
WHERE id NOT IN (SELECT id FROM words) ORDER BY id \gexec
SQL
}

leave_free(2000);
my ($rc, undef, $err) = insert_until_full();
isnt($rc, 0, 'INSERT fails when the disk is full');
like($err, qr/ERROR:  53100: could not extend the files of index "words_v": No space left on device/, 'SQLSTATE and message');
like($err, qr/DETAIL:  .*could not reserve \d+ bytes/, 'the detail says what for');
like($err, qr/HINT:  Free space/, 'the hint what to do');
like($err, qr/CONTEXT:  .*inserting into index "words_v"/s, 'the context where');
my $rows = $node->safe_psql('postgres', 'SELECT count(*) FROM words');
my $info = "SELECT live_rows FROM navis_index_info('words_v')";
cmp_ok($rows, '>', 2000, 'rows went in before');
is($node->safe_psql('postgres', $info), $rows, 'nothing of the failed row is in the journal');
($rc, undef, $err) = insert_until_full();
# A checkpoint may have given some space back for a few rows.
isnt($rc, 0, 'it fails again soon');
is($node->safe_psql('postgres', $info), $node->safe_psql('postgres', 'SELECT count(*) FROM words'), 'and leaves nothing either');
# Everything that was accepted is linked: there was space for it.
ok( wait_until(
		sub { return $node->safe_psql('postgres', "SELECT pending_rows FROM navis_index_info('words_v')") eq '0' }, 30),
	'accepted rows are linked on the full disk');
is(nearest_word($node, 77), "77\ngraph|t", 'the graph answers');
is(nearest_word($node, 2001), "2001\ngraph|t", 'also for the rows that went in');
is($node->safe_psql('postgres', 'DELETE FROM words WHERE id = 77 RETURNING id'), 77, 'deletions go on');
$node->safe_psql('postgres', 'CREATE TABLE plain AS SELECT * FROM more LIMIT 10');
pass('other tables are written to');

# What has no vector needs no space.
$node->safe_psql('postgres', "INSERT INTO words VALUES (90000, 'nothing', NULL)");
$node->safe_psql('postgres', 'DELETE FROM words WHERE id = 90000');
# The checkpoint that VACUUM asks for may fail; the answers stay right.
leave_free(0);
$node->safe_psql('postgres', 'VACUUM words');
my ($scan) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 78)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 78)'), 'after VACUUM on a full disk no row is missing');

# space again
leave_free(undef);
ok(wait_ready($node, 'words_v'), 'with space the index is usable');
ok( wait_until(
		sub {
			($rc) = $node->psql('postgres', 'INSERT INTO words SELECT * FROM more WHERE id > 5000');
			return $rc == 0;
		}, 30),
	'inserts go on');
ok( wait_until(
		sub { return $node->safe_psql('postgres', "SELECT pending_rows FROM navis_index_info('words_v')") eq '0' }, 60),
	'and are linked');
is(nearest_word($node, 5777), "5777\ngraph|t", 'the graph finds them');
($scan) = complete_scan($node, 'words', '(SELECT v FROM words WHERE id = 78)');
is($scan, table_rows($node, 'words', '(SELECT v FROM words WHERE id = 78)'), 'no row is missing');
$node->stop;
done_testing();
