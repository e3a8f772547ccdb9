/*
 * test_sidecar.c
 *		Directories of sidecars and what a crash leaves in them: removal that is
 *		cut short can be found again, and nothing stays that nobody owns.
 */
#include <errno.h>

#include "engine_fixture.h"

#include "engine_internal.h"
#include "io_internal.h"

#define ROOM 600

/* The path of a name in a directory; path has ROOM bytes. */
static void
below(char *path, const char *dir, const char *name)
{
	assert_true(snprintf(path, ROOM, "%s/%s", dir, name) < ROOM);
}

static void
make_below(char *path, const char *dir, const char *name)
{
	below(path, dir, name);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void
make_file(const char *dir, const char *name)
{
	char path[ROOM];
	FILE *file;

	below(path, dir, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("navis sidecar 1\n", file);
	fclose(file);
}

/* --- what a crash leaves --- */

/* A build that did not end, newer than the graph in use; one superseded. */
static void
test_one_graph_stays(void **state)
{
	fixture *f = *state;
	char dir[300], path[ROOM];
	uint32_t st;

	build_all(f);
	assert_int_equal(build_begin(f, true, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, f->n), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	stop_engine(f, true);
	index_dir(f, dir);
	assert_true(exists(dir, "g2"));
	make_below(path, dir, "g1");
	make_file(path, "edges");
	make_below(path, dir, "g3");
	make_file(path, "edges");
	make_file(path, "state");
	make_below(path, dir, "g17");

	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_true(exists(dir, "g2"));
	assert_false(exists(dir, "g1"));
	assert_false(exists(dir, "g3"));
	assert_false(exists(dir, "g17"));
	assert_true(recall(f, 60, NULL) >= 0.95);
	/* The next one does not take the place of another. */
	assert_int_equal(build_begin(f, true, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, f->n), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &st), 0);
	assert_true(recall(f, 60, NULL) >= 0.95);
}

/* Builds that did not end go, though no graph takes their place. */
static void
test_unended_go(void **state)
{
	fixture *f = *state;
	static const char noise[] = "no root at all";
	char dir[300], path[ROOM], file[ROOM];
	uint32_t st;
	int fd;

	build_all(f);
	stop_engine(f, true);
	index_dir(f, dir);
	below(path, dir, "g1");
	below(file, path, "state");
	fd = open(file, O_WRONLY);
	for (off_t root = 0; root <= 65536; root += 65536)
		assert_int_equal(pwrite(fd, noise, sizeof(noise), root), sizeof(noise));
	close(fd);
	for (int g = 2; g <= 3; g++)
	{
		make_below(path, dir, g == 2 ? "g2" : "g3");
		make_file(path, "edges");
		below(file, path, "state");
		fd = open(file, O_CREAT | O_WRONLY, 0600);
		assert_int_equal(ftruncate(fd, g == 2 ? 0 : 1 << 20), 0);
		close(fd);
	}

	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, false, &st), f->n);
	assert_int_equal(st, NV_INDEX_NO_GRAPH);
	assert_false(exists(dir, "g2"));
	assert_false(exists(dir, "g3"));
	/* Published once: it stays until there is another one. */
	assert_true(exists(dir, "g1"));
	assert_true(exists(dir, "navis.sidecar"));
}

/* Between mkdir and the marker, or between the marker's removal and rmdir. */
static void
test_tidied_at_start(void **state)
{
	fixture *f = *state;
	static const char *const names[] = {
		"00000000000000000000000000000001", "00000000000000000000000000000002",
		"00000000000000000000000000000003", "00000000000000000000000000000004",
		"0000000000000000000000000000000x"};
	char db[ROOM], empty_db[ROOM], word[ROOM], path[ROOM];

	stop_engine(f, false);
	make_below(db, f->dir, "7");
	make_below(empty_db, f->dir, "8");
	make_below(word, f->dir, "word");
	make_below(path, db, names[0]); /* nothing */
	make_below(path, db, names[1]); /* half a marker */
	make_file(path, "navis.sidecar.tmp");
	make_below(path, db, names[2]); /* a sidecar, its marker written again */
	make_file(path, "navis.sidecar");
	make_file(path, "navis.sidecar.tmp");
	make_below(path, db, names[3]); /* somebody else's */
	make_file(path, "precious");
	make_below(path, db, names[4]); /* no identity */
	make_file(db, "00000000000000000000000000000009");

	start_engine(f);
	assert_false(exists(db, names[0]));
	assert_false(exists(db, names[1]));
	below(path, db, names[2]);
	assert_true(exists(path, "navis.sidecar"));
	assert_false(exists(path, "navis.sidecar.tmp"));
	below(path, db, names[3]);
	assert_true(exists(path, "precious"));
	assert_true(exists(db, names[4]));
	assert_true(exists(db, "00000000000000000000000000000009"));
	assert_false(exists(f->dir, "8"));
	assert_true(exists(f->dir, "word"));
}

/* --- removal that is cut short --- */

/* The real file system, until so many names have been removed. */
typedef struct short_disk
{
	uint32_t left;
} short_disk;

static int
short_change(void *arg, nv_name_change what, const char *path, const char *to)
{
	short_disk *disk = arg;

	assert_int_equal(what, NV_NAME_REMOVE);
	if (disk->left == 0)
		return -EIO;
	disk->left--;
	return remove(path) < 0 ? -errno : 0;
}

static int
short_list(void *arg, const char *path, nv_name_fn found, void *found_arg)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	if (dir == NULL)
		return -errno;
	while ((entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.')
			found(found_arg, entry->d_name);
	closedir(dir);
	return 0;
}

static void
count_sidecar(void *arg, const nv_key *key, uint32_t relfilenode,
			  uint32_t index_oid)
{
	(*(uint32_t *) arg)++;
}

static uint32_t
sidecars(const fixture *f)
{
	nv_error err;
	uint32_t n = 0;

	assert_int_equal(nv_list_sidecars(f->dir, count_sidecar, &n, &err), NV_OK);
	return n;
}

/*
 * After a crash at any step of its removal a sidecar is gone, or can be found
 * by whoever removes it, or is empty and gone at the next start.
 */
static void
test_removal_cut_short(void **state)
{
	fixture *f = *state;
	short_disk short_of;
	nv_disk disk = {
		.arg = &short_of, .change = short_change, .list = short_list};
	nv_error err;
	char dir[300], path[ROOM];
	bool done = false;

	index_dir(f, dir);
	for (uint32_t steps = 0; !done; steps++)
	{
		assert_int_equal(
			nv_sidecar_create(f->engine, &f->key, &f->params, &err), NV_OK);
		make_below(path, dir, "g1");
		make_file(path, "edges");
		make_file(path, "vectors");
		make_file(path, "state");
		short_of.left = steps;
		nv_io_set_disk(&disk);
		done = nv_sidecar_remove(f->engine, &f->key, &err) == NV_OK;
		nv_io_set_disk(NULL);
		if (!done && sidecars(f) == 0)
			nv_tidy_sidecars(f->dir);
		if (sidecars(f) == 1)
			assert_int_equal(nv_sidecar_remove(f->engine, &f->key, &err),
							 NV_OK);
		assert_false(exists(dir, ""));
		assert_true(steps < 20);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_one_graph_stays),
		TEST(test_unended_go),
		TEST(test_tidied_at_start),
		TEST(test_removal_cut_short),
	};

	nv_set_log_sink(NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
