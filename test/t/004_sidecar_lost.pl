# Sidecars that are missing, damaged, of another version or of another index:
# right answers at once by the exact scan, a log line, the graph rebuilt in the
# background; the server lives.  A journal of another version: an error.
use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use File::Path qw(remove_tree);
use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Utils;
use Test::More;

use constant SEGMENT => 65536;    # root i of a state file begins at i * SEGMENT
use constant ROOT => 4096;        # bytes of a root

my $rows = 1500;
# Room for the engine and nothing else: no helper rebuilds while we look.
my $alone = "max_worker_processes = 1\nmax_logical_replication_workers = 0\n";
my $node = new_node('sidecar', conf => "navis.checkpoint_timeout = 1\n");

# CRC-32C, bit by bit from a table.
my @crc_table = map {
	my $c = $_;
	$c = $c & 1 ? ($c >> 1) ^ 0x82F63B78 : $c >> 1 for 1 .. 8;
	$c;
} 0 .. 255;

sub crc32c
{
	my $crc = 0xFFFFFFFF;

	$crc = ($crc >> 8) ^ $crc_table[ ($crc ^ $_) & 0xFF ] for unpack 'C*', $_[0];
	return $crc ^ 0xFFFFFFFF;
}

sub patch
{
	my ($file, $offset, $bytes) = @_;

	open my $f, '+<:raw', $file or die "$file: $!";
	seek $f, $offset, 0 or die "$file: $!";
	print $f $bytes;
	close $f or die "$file: $!";
	return;
}

sub read_at
{
	my ($file, $offset, $length) = @_;

	open my $f, '<:raw', $file or die "$file: $!";
	seek $f, $offset, 0 or die "$file: $!";
	my $bytes;
	read $f, $bytes, $length;
	close $f;
	return $bytes;
}

# The same bytes every time, of no meaning.
sub noise
{
	my ($length) = @_;
	my $x = 12345;

	return join '', map { $x = ($x * 1103515245 + 12345) & 0x7FFFFFFF; chr($x >> 16 & 0xFF) } 1 .. $length;
}

# Gives every root of a state file another format version, checksum and all.
sub change_version
{
	my ($file) = @_;
	my $changed = 0;

	for my $i (0, 1)
	{
		my $root = read_at($file, $i * SEGMENT, ROOT);
		next if $root =~ /^\0*$/;
		die 'checksum of a root is not CRC-32C' unless
		  crc32c(substr($root, 0, 12) . "\0\0\0\0" . substr($root, 16)) == unpack 'V', substr($root, 12, 4);
		substr($root, 8, 4) = pack 'V', 77;
		substr($root, 12, 4) = "\0\0\0\0";
		substr($root, 12, 4) = pack 'V', crc32c($root);
		patch($file, $i * SEGMENT, $root);
		$changed++;
	}
	die 'no root found' unless $changed;
	return;
}

my $oid;
my $other_oid;

sub generation
{
	my ($dir) = @_;
	my ($newest) = sort { $b cmp $a } glob("$dir/g*");

	return $newest;
}

# Half of what is in the file; what is reserved behind it is no loss.
sub cut_in_two
{
	my ($file) = @_;
	my $content = slurp_file($file);

	$content =~ s/\0+\z//;
	truncate $file, int(length($content) / 2) or die "$file: $!";
	return;
}

sub search_words
{
	return $node->psql('postgres', <<SQL);
SET enable_seqscan = off;
SELECT array_agg(id) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5001) LIMIT 20) s;
SELECT count(*), sum(id) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5002)) s;
SELECT mode, hops, edge_pages FROM navis_last_scan();
SQL
}

# What the exact scan gives for these.
sub expected
{
	return $node->safe_psql('postgres', <<SQL);
SET enable_indexscan = off;
SELECT array_agg(id) FROM (SELECT id FROM words ORDER BY v <-> (SELECT v FROM queries WHERE id = 5001) LIMIT 20) s;
SELECT count(*), sum(id) FROM words;
SQL
}

sub check_rebuilt
{
	my ($name, $offset) = @_;

	ok(wait_ready($node, 'words_v'), "$name: the index is ready again");
	my $answers = answers($node, 'words', 'queries', 10);
	like($answers, qr/^words_v\|graph\|10\|t$/m, "$name: the graph answers again");
	my ($scan, $mode) = complete_scan($node, 'words', '(SELECT v FROM queries WHERE id = 5001)');
	is($scan, table_rows($node, 'words', '(SELECT v FROM queries WHERE id = 5001)'), "$name: no row is missing");
	is(scalar(log_lines($node, 'PANIC|terminated by signal', $offset)), 0, "$name: the server lives");
	return;
}

# Damage while the server is down; answers without a helper, then with one.
sub lose
{
	my ($name, $log, $damage) = @_;
	my $offset;

	$node->stop;
	$damage->(generation(sidecar_of($node, $oid)), sidecar_of($node, $oid));
	$node->append_conf('postgresql.conf', $alone);
	$offset = -s $node->logfile;
	$node->start;
	my ($rc, $out, $err) = search_words();
	is("$rc|$err", '0|', "$name: no error, no warning");
	is($out, expected() . "\nexact|0|0", "$name: right answers by the exact scan");
	is($node->safe_psql('postgres', "SELECT state FROM navis_index_info('words_v')"), 'needs rebuild', "$name: state");
	search_words() for 1 .. 3;
	is(scalar(log_lines($node, $log, $offset)), 1, "$name: one clear log line")
	  or diag(join "\n", log_lines($node, 'navis|sidecar', $offset));

	$node->adjust_conf('postgresql.conf', 'max_worker_processes', '8');
	$offset = -s $node->logfile;
	$node->restart;
	check_rebuilt($name, $offset);
	like(join("\n", log_lines($node, 'rebuilt', $offset)), qr/rebuilt the graph of navis index "words_v": $rows rows/,
		"$name: the log tells of the rebuild");
	is(scalar(my @graphs = glob(sidecar_of($node, $oid) . '/g*')), 1, "$name: one graph is left");
	return;
}

$node->start;
make_helpers($node);
load_words($node, 'words', $rows);
query_words($node, 'queries', 5001, 10);
$node->safe_psql('postgres', <<SQL);
CREATE INDEX words_v ON words USING navis (v) WITH (max_degree = 24, build_list_size = 40, pq_bytes = 32);
CREATE TABLE others AS SELECT id, v FROM words WHERE id <= 1200;
CREATE INDEX others_v ON others USING navis (v) WITH (max_degree = 24, build_list_size = 40, pq_bytes = 32);
SQL
$oid = $node->safe_psql('postgres', "SELECT 'words_v'::regclass::oid");
$other_oid = $node->safe_psql('postgres', "SELECT 'others_v'::regclass::oid");
my $line = 'navis: .*index "words_v" of database "postgres"';

lose('all sidecars deleted', "$line.*has no sidecar", sub { remove_tree($node->data_dir . '/navis') });
lose('sidecar deleted', "$line.*has no sidecar", sub { remove_tree($_[1]) });
lose('graph deleted', "$line.*has no sidecar", sub { remove_tree($_[0]) });
lose('state file truncated', $line, sub { truncate "$_[0]/state", 0 });
lose('state file cut in two', $line, sub { cut_in_two("$_[0]/state") });
lose('state file overwritten', $line, sub { patch("$_[0]/state", 0, noise(-s "$_[0]/state")) });
lose('state file of another version', "$line.*format version 77, 1 expected", sub { change_version("$_[0]/state") });
lose('edge file missing', $line, sub { unlink "$_[0]/edges" });
lose('vector file truncated', $line, sub { truncate "$_[0]/vectors", 4096 });
lose('sidecar of another index', "$line.*belongs to another index", sub {
	my ($to) = @_;
	my $from = generation(sidecar_of($node, $other_oid));
	copy("$from/$_", "$to/$_") or die "$from/$_: $!" for 'edges', 'vectors', 'state';
});
lose('left by a crash while it was opened', "$line.*crash", sub {
	open my $f, '>', "$_[0]/opening" or die $!;
	close $f;
});

# Damage that is only found when a search reads it: verified before use, so the
# answers stay right, and the graph is rebuilt.
for my $file ('edges', 'vectors')
{
	my $name = "$file overwritten";
	$node->stop;
	my $dir = generation(sidecar_of($node, $oid));
	patch("$dir/$file", 0, noise(-s "$dir/$file"));
	my $offset = -s $node->logfile;
	$node->start;
	my ($rc, $out, $err) = search_words();
	is("$rc|$err", '0|', "$name: no error, no warning");
	is($out =~ s/^.*\z//mr =~ s/\n\z//r, expected(), "$name: right answers");
	check_rebuilt($name, $offset);
	cmp_ok(scalar(log_lines($node, $line, $offset)), '>=', 1, "$name: a log line")
	  or diag(join "\n", log_lines($node, 'navis|sidecar', $offset));
}

# Damage in a few pages under a running server.
{
	my $name = 'pages overwritten';
	my $dir = generation(sidecar_of($node, $oid));
	my $offset;
	$node->restart;
	$offset = -s $node->logfile;
	patch("$dir/edges", 4096 * $_, noise(4096)) for 0 .. 3;
	my ($rc, $out, $err) = search_words();
	is("$rc|$err", '0|', "$name: no error, no warning");
	is($out =~ s/^.*\z//mr =~ s/\n\z//r, expected(), "$name: right answers");
	check_rebuilt($name, $offset);
}

# The journal is of another format version.
is($node->safe_psql('postgres', 'SHOW data_checksums'), 'off', 'pages may be patched');
my $path = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('words_v')");
$node->stop;
is(unpack('V', read_at($path, 24, 4)), 0x5349564e, 'the metapage is where it is expected');
patch($path, 28, pack('V', 99));
$node->start;
my ($rc, $out, $err) = search_words();
isnt($rc, 0, 'a journal of another version: searches fail');
like($err, qr/ERROR:  index "words_v" has journal format version 99, expected version 1.*HINT:  .*REINDEX/s,
	'the error names both versions and says what to do');
($rc, $out, $err) = $node->psql('postgres', "INSERT INTO words SELECT 9000 + id, word, v FROM words WHERE id = 1");
like($err, qr/format version 99, expected version 1/, 'inserts fail as well');
is($node->safe_psql('postgres', 'SELECT count(*) FROM words'), $rows, 'the table can be read');
$node->safe_psql('postgres', 'REINDEX INDEX words_v');
like(answers($node, 'words', 'queries', 10), qr/^words_v\|graph\|10\|t$/m, 'REINDEX makes it good');
# and one that is no journal at all
$path = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('words_v')");
$node->stop;
patch($path, 0, "\0" x 8192);
$node->start;
($rc, $out, $err) = search_words();
like($err, qr/ERROR:  index "words_v" has no navis metapage.*HINT:  .*REINDEX/s, 'a lost metapage: an error with a hint');
$node->safe_psql('postgres', 'REINDEX INDEX words_v');
like(answers($node, 'words', 'queries', 10), qr/^words_v\|graph\|10\|t$/m, 'REINDEX makes it good');
$node->stop;
done_testing();
