# Backups and moves: base backup under write load, point-in-time recovery and
# pg_rewind beside a sidecar of another timeline, pg_checksums, pg_upgrade, dump
# and restore, tablespaces, VACUUM FULL, CLUSTER, TRUNCATE and their rollback.
# After each of them the index has exactly the table's rows, and a graph.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $options = 'WITH (max_degree = 24, build_list_size = 32)';
my $any = '(SELECT v FROM queries WHERE id = 4001)';

sub same_rows
{
	my ($node, $name, %opt) = @_;
	my $table = $opt{table} // 'words';
	my ($scan, $mode) = complete_scan($node, $table, $any, $opt{db});

	is($scan, table_rows($node, $table, $any, $opt{db}), "$name: the table's rows");
	like($mode, qr/^graph/, "$name: by the graph") unless $opt{exact};
	return;
}

# A psql that inserts rows one by one until it is told to stop.
sub start_writer
{
	my ($node, $from) = @_;
	my $writer = session($node);

	$writer->query_until(qr/writing/, <<SQL);
\\echo writing
DO \$\$ BEGIN FOR i IN 1 .. 400 LOOP
  INSERT INTO words SELECT $from + i, 'w', array(SELECT x + i * 0.001 FROM unnest(v) WITH ORDINALITY u(x, n) ORDER BY n)::real[]
    FROM queries WHERE id = 4001 + i % 100;
  IF i % 10 = 0 THEN DELETE FROM words WHERE id = i; END IF;
  COMMIT;
END LOOP; END \$\$;
SQL
	return $writer;
}

my $external = PostgreSQL::Test::Utils::tempdir . '/outside';
my $node = new_node('moves', conf => <<CONF);
max_wal_senders = 5
wal_log_hints = on
wal_keep_size = 256MB
navis.checkpoint_timeout = 1s
CONF
$node->append_conf('pg_hba.conf', "local replication all trust\n");
$node->enable_archiving;
$node->start;
make_helpers($node);
load_words($node, 'words', 2500);
query_words($node, 'queries', 4001, 100);
$node->safe_psql('postgres', "CREATE INDEX words_v ON words USING navis (v) $options");
same_rows($node, 'made');

# A base backup while files change; the copy starts and answers.
my $writer = start_writer($node, 10000);
$node->backup('busy', backup_options => ['--manifest-checksums=crc32c']);
$writer->quit;
command_ok(['pg_verifybackup', '-n', $node->backup_dir . '/busy'], 'pg_verifybackup accepts the backup');
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($node, 'busy');
$copy->append_conf('postgresql.conf', "archive_mode = off\n");
$copy->start;
same_rows($copy, 'copy of a busy server', exact => 1);
ok(wait_ready($copy, 'words_v'), 'the copy has a graph');
same_rows($copy, 'copy of a busy server');

# pg_checksums on the stopped copy.
$copy->stop;
command_ok(['pg_checksums', '--enable', '-D', $copy->data_dir], 'pg_checksums --enable');
command_ok(['pg_checksums', '--check', '-D', $copy->data_dir], 'pg_checksums --check');
$copy->start;
same_rows($copy, 'with checksums');
$copy->stop;
command_ok(['pg_checksums', '--disable', '-D', $copy->data_dir], 'pg_checksums --disable');

# The sidecars move outside the data directory; point-in-time recovery goes back
# to before rows that they hold.
$node->append_conf('postgresql.conf', "navis.directory = '$external'\n");
$node->restart;
ok(wait_ready($node, 'words_v'), 'another navis.directory: built there');
$node->backup('base');
$node->safe_psql('postgres', "INSERT INTO words SELECT id + 20000, 'a', v FROM queries WHERE id <= 4050; SELECT pg_create_restore_point('here')");
$node->safe_psql('postgres', "DELETE FROM words WHERE id BETWEEN 100 AND 300; VACUUM words");
$node->safe_psql('postgres', "INSERT INTO words SELECT id + 30000, 'b', v FROM queries");
$node->safe_psql('postgres', 'CHECKPOINT; SELECT pg_switch_wal()');
same_rows($node, 'before going back');
$node->poll_query_until('postgres', 'SELECT last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 16777216) FROM pg_stat_archiver');
$node->stop;
my $past = PostgreSQL::Test::Cluster->new('past');
$past->init_from_backup($node, 'base', has_restoring => 1, standby => 0);
$past->append_conf('postgresql.conf', "recovery_target_name = 'here'\nrecovery_target_action = promote\n");
$past->start;
$past->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is($past->safe_psql('postgres', 'SELECT count(*) FROM words WHERE id BETWEEN 100 AND 300 OR id > 30000'),
	$past->safe_psql('postgres', 'SELECT count(*) FROM words WHERE id BETWEEN 100 AND 300'), 'the past');
same_rows($past, 'point in time', exact => 1);
ok(wait_ready($past, 'words_v'), 'a graph again');
same_rows($past, 'point in time');
$past->safe_psql('postgres', "INSERT INTO words SELECT id + 40000, 'c', v FROM queries");
same_rows($past, 'written on the new timeline');
$past->stop;

# The old server comes back to the same directory: the files are of the other
# timeline now.
$node->start;
same_rows($node, 'the old timeline', exact => 1);
ok(wait_ready($node, 'words_v'), 'its graph again');
same_rows($node, 'the old timeline');

# pg_rewind: a promoted standby wins over what was written on the old primary.
$node->backup('forked');
my $other = PostgreSQL::Test::Cluster->new('other');
$other->init_from_backup($node, 'forked', has_streaming => 1);
$other->append_conf('postgresql.conf', "navis.directory = 'navis'\n");
$other->start;
$node->wait_for_catchup($other, 'replay', $node->lsn('insert'));
$other->promote;
$other->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
$other->safe_psql('postgres', "INSERT INTO words SELECT id + 50000, 'd', v FROM queries WHERE id <= 4060; CHECKPOINT");
$node->safe_psql('postgres', "INSERT INTO words SELECT id + 60000, 'e', v FROM queries; DELETE FROM words WHERE id BETWEEN 400 AND 500; VACUUM words");
same_rows($node, 'about to lose');
$node->stop;
command_ok(['pg_rewind', '-D', $node->data_dir, '--source-server', $other->connstr('postgres'), '--no-sync'], 'pg_rewind');
$node->append_conf('postgresql.conf', 'port = ' . $node->port . "\nnavis.directory = '$external'\n"
	  . "primary_conninfo = '" . $other->connstr . "'\n");
$node->set_standby_mode;
$node->start;
$other->wait_for_catchup($node, 'replay', $other->lsn('insert'));
same_rows($node, 'rewound', exact => 1);
is($node->safe_psql('postgres', 'SELECT count(*) FROM words WHERE id > 60000'), 0, 'what was lost is gone');
ok(wait_ready($node, 'words_v'), 'rewound: a graph');
same_rows($node, 'rewound');
$node->stop;

# pg_upgrade to a new cluster of the same version, and a dump.
my $new = new_node('new');
$other->stop;
command_ok(['pg_upgrade', '--no-sync', '-d', $other->data_dir, '-D', $new->data_dir, '-b', $other->config_data('--bindir'),
	'-B', $new->config_data('--bindir'), '-s', $new->host, '-p', $other->port, '-P', $new->port], 'pg_upgrade');
$new->start;
same_rows($new, 'upgraded', exact => 1);
ok(wait_ready($new, 'words_v'), 'upgraded: a graph');
same_rows($new, 'upgraded');
my $dump = PostgreSQL::Test::Utils::tempdir . '/dump';
command_ok(['pg_dump', '-Fc', '-f', $dump, '-d', $new->connstr('postgres')], 'pg_dump');
$new->safe_psql('postgres', 'CREATE DATABASE restored');
command_ok(['pg_restore', '-d', $new->connstr('restored'), $dump], 'pg_restore');
same_rows($new, 'restored', db => 'restored');

# Copies of databases, moves between tablespaces, rewrites, and their rollback.
for my $strategy ('wal_log', 'file_copy')
{
	$new->safe_psql('postgres', "CREATE DATABASE c_$strategy TEMPLATE restored STRATEGY $strategy");
	same_rows($new, $strategy, db => "c_$strategy", exact => 1);
	ok(wait_ready($new, 'words_v', "c_$strategy"), "$strategy: a graph");
	same_rows($new, $strategy, db => "c_$strategy");
	$new->safe_psql('postgres', "DROP DATABASE c_$strategy") if $strategy eq 'wal_log';
}
my $space = PostgreSQL::Test::Utils::tempdir . '/space';
mkdir $space or die $!;
$new->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$space'");
$new->safe_psql('postgres', 'ALTER DATABASE c_file_copy SET TABLESPACE space');
same_rows($new, 'ALTER DATABASE SET TABLESPACE', db => 'c_file_copy');
$new->safe_psql('postgres', 'DROP DATABASE c_file_copy');
for my $move (
	'ALTER TABLE words SET TABLESPACE space', 'ALTER INDEX words_v SET TABLESPACE space',
	'ALTER TABLE words SET TABLESPACE pg_default', 'CLUSTER words USING words_pkey',
	'ALTER TABLE words ALTER word TYPE varchar', 'ALTER TABLE words SET UNLOGGED', 'ALTER TABLE words SET LOGGED')
{
	# PostgreSQL itself cannot take back rows inserted after a table's move:
	# entries of every index then name blocks that the old file has not got.
	my $insert = $move =~ /TABLE words SET TABLESPACE/ ? '' : "INSERT INTO words SELECT id + 70000, 'x', v FROM queries;";
	$new->safe_psql('postgres', "BEGIN; $move; $insert ROLLBACK");
	same_rows($new, "$move, rolled back");
	$new->safe_psql('postgres', $move);
	same_rows($new, $move);
}
$new->safe_psql('postgres', 'VACUUM FULL words');
same_rows($new, 'VACUUM FULL');
$new->safe_psql('postgres', "BEGIN; TRUNCATE words; INSERT INTO words SELECT id + 80000, 't', v FROM queries; ROLLBACK");
same_rows($new, 'TRUNCATE, rolled back');
$new->safe_psql('postgres', 'DROP DATABASE restored');
ok(wait_until(sub { sidecars($new) == 1 }, 60), 'one index, one sidecar') or diag(join ' ', sidecars($new));
$new->safe_psql('postgres', 'DROP TABLE words');
ok(wait_until(sub { sidecars($new) == 0 }, 60), 'no index, no sidecar') or diag(join ' ', sidecars($new));
$new->stop;
done_testing();
