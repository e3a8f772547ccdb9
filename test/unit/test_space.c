/*
 * test_space.c
 *		Units of partly filled pages that get new lists: what a crash leaves at
 *		every write of a page, torn or whole; how far the file grows; pages that
 *		an opened store knows little of; space that goes back when it is not
 *		needed.
 */
#include "store_dirs.h"

#include "io_internal.h"
#include "store_internal.h"

static void
relink_to(nv_writer *w, uint32_t vertex, int version)
{
	uint32_t ids[DEGREE], degree = make_list(vertex, (uint32_t) version, ids);

	ok(nv_store_relink(w, vertex, nv_store_edge_word(w->store, vertex), ids,
					   degree, &why));
}

/* Every list is there in its version. */
static void
compare(nv_store *store, const int *version)
{
	uint8_t *edges = read_file(nv_store_edge_file(store));

	for (uint32_t v = 0; v < VERTICES; v++)
		assert_int_equal(version_in(store, v, edges), version[v]);
	free(edges);
}

/* What a crash would leave now is the published state. */
static void
compare_crashed(const int *version)
{
	nv_store *again = NULL;

	copy_directory(dir, copy);
	ok(nv_store_open(copy, &test_key, NULL, &again, &why));
	compare(again, version);
	nv_store_close(again);
}

/* --- Torn writes --- */

static const nv_file_ops *real_ops;
static nv_store *torn_store;
static int published[VERTICES];
static uint64_t torn_seed, torn_writes, torn_used;

/* Some sectors of it reach the disk, then the rest. */
static ssize_t
torn_pwrite(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	uint8_t *sector = aligned_alloc(NV_BLOCK, NV_BLOCK);
	uint32_t align = NV_MAX(nv_file_align(file), NV_SECTOR);

	assert_non_null(sector);
	for (uint64_t p = offset / NV_PAGE; p < (offset + len) / NV_PAGE; p++)
		torn_used += torn_store->edges.info[p].start != 0;
	for (size_t at = 0; at < len; at += align)
		if (nv_random_below(&torn_seed, 2) == 0)
		{
			memcpy(sector, (const uint8_t *) buf + at, align);
			assert_int_equal(real_ops->pwrite(file, sector, align, offset + at),
							 align);
		}
	free(sector);
	torn_writes++;
	compare_crashed(published);
	return real_ops->pwrite(file, buf, len, offset);
}

static void
test_torn_writes(void **state)
{
	static int version[VERTICES];
	nv_file_ops ops;
	nv_writer *writer;
	uint64_t seed = nv_random_seed(3);

	torn_store = build_store(dir, 4, 8, NULL);
	torn_seed = nv_random_seed(4);
	torn_writes = torn_used = 0;
	ops = *torn_store->edges.file->ops;
	real_ops = torn_store->edges.file->ops;
	ops.pwrite = torn_pwrite;
	memset(version, 0, sizeof(version));
	ok(nv_writer_create(torn_store, &writer, &why));
	for (int round = 0; round < 8; round++)
	{
		torn_store->edges.file->ops = real_ops;
		publish(torn_store);
		memcpy(published, version, sizeof(version));
		torn_store->edges.file->ops = &ops;
		for (int i = 0; i < 300; i++)
		{
			uint32_t v = (uint32_t) nv_random_below(&seed, VERTICES);

			version[v] = (int) nv_random_below(&seed, VERSIONS);
			relink_to(writer, v, version[v]);
			if (i % 60 == 59)
				ok(nv_store_write_back(torn_store, &why));
		}
		compare(torn_store, version);
	}
	torn_store->edges.file->ops = real_ops;
	nv_writer_destroy(writer);
	nv_store_close(torn_store);
	print_message("%llu torn writes, %llu pages with lists on them\n",
				  (unsigned long long) torn_writes,
				  (unsigned long long) torn_used);
	assert_true(torn_writes > 50 && torn_used > torn_writes);
}

/* --- How far the file grows --- */

/* Pages that `lists` lists of these versions would fill. */
static uint64_t
fresh_pages(const int *version)
{
	uint64_t units = 0;
	uint32_t ids[DEGREE];

	for (uint32_t v = 0; v < VERTICES; v++)
		units += nv_slot_units(make_list(v, (uint32_t) version[v], ids));
	return (units + NV_PAGE_UNITS - 1) / NV_PAGE_UNITS;
}

static nv_store_stats
churn(nv_store *store, int *version, uint64_t *seed, int relinks)
{
	nv_store_stats stats;
	nv_writer *writer;

	ok(nv_writer_create(store, &writer, &why));
	for (int i = 0; i < relinks; i++)
	{
		uint32_t v = (uint32_t) nv_random_below(seed, VERTICES);

		version[v] = (int) nv_random_below(seed, VERSIONS);
		relink_to(writer, v, version[v]);
		/* Dead lists are a sixteenth of all. */
		if (i % (VERTICES / 16) == 0)
			publish(store);
	}
	nv_writer_destroy(writer);
	publish(store);
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 0);
	assert_int_equal(stats.rmw_pages, 0);
	return stats;
}

static void
test_growth(void **state)
{
	static int version[VERTICES];
	nv_store *store = build_store(dir, 4, 8, NULL);
	nv_store_stats stats;
	uint64_t seed = nv_random_seed(21), used = 0;
	double ratio;

	memset(version, 0, sizeof(version));
	publish(store);
	stats = churn(store, version, &seed, 20000);
	ratio = (double) stats.edge_pages / (double) fresh_pages(version);
	print_message("%.2f x a fresh file\n", ratio);
	assert_true(ratio < 1.3);
	compare(store, version);
	/* What is taken is what the lists take. */
	for (uint64_t p = 0; p < store->edges.pages; p++)
		used += (uint64_t) __builtin_popcountll(store->edges.info[p].used);
	assert_int_equal(used, store->edges.used_units);
	assert_true(used <= fresh_pages(version) * NV_PAGE_UNITS);
	nv_store_close(store);

	/* Opened again it knows less at first, and grows no further. */
	for (int round = 0; round < 4; round++)
	{
		ok(nv_store_open(dir, &test_key, NULL, &store, &why));
		compare(store, version);
		stats = churn(store, version, &seed, 3000);
		ratio = (double) stats.edge_pages / (double) fresh_pages(version);
		compare(store, version);
		nv_store_close(store);
		assert_true(ratio < 1.35);
	}
	compare_crashed(version);
}

/* --- Space that rows were expected to need --- */

#define MANY_ROWS 20000
#define FEW_ROWS 10
/* Pages reserved with those that are used: spare ones, one for the rows, ... */
#define RESERVED_PAGES (NV_SPARE_PAGES + FEW_ROWS + 1)
/* ... and all of them in steps. */
#define PAGE_STEP 64

static void
trim(nv_store *store, uint64_t rows)
{
	nv_store_trim_begin(store);
	nv_store_trim(store, rows);
	nv_store_trim_end(store);
}

/* The files are no longer than what is in them and a few rows need. */
static void
check_short(nv_store *store)
{
	uint64_t units = store->vectors.next_unit + FEW_ROWS + 1 + NV_MAX_WRITERS;
	uint64_t unit = nv_unit_records(store) * store->params.vector_bytes;
	nv_store_stats stats;

	nv_store_get_stats(store, &stats);
	assert_true(stats.edge_bytes <=
				(stats.edge_pages + RESERVED_PAGES + PAGE_STEP) * NV_PAGE);
	assert_true(stats.vector_bytes <=
				nv_round_up(units * nv_round_up(unit, NV_BLOCK), NV_BLOCK));
	assert_true(stats.vector_bytes >=
				nv_vector_file_size(store->params.vector_bytes,
									store->vectors.records));
}

static void
test_trim(void **state)
{
	static int version[VERTICES];
	nv_store *store = build_store(dir, 4, 8, NULL);
	nv_store_stats stats;
	uint64_t seed = nv_random_seed(5);

	memset(version, 0, sizeof(version));
	publish(store);
	for (int round = 0; round < 4; round++)
	{
		ok(nv_store_make_room(store, MANY_ROWS, &why));
		nv_store_get_stats(store, &stats);
		assert_true(nv_store_have_room(store, MANY_ROWS));
		assert_true(stats.edge_bytes > 2 * stats.edge_pages * NV_PAGE);
		/* What was counted on goes, and nothing else. */
		trim(store, FEW_ROWS);
		assert_true(nv_store_have_room(store, FEW_ROWS));
		assert_false(nv_store_have_room(store, MANY_ROWS));
		check_short(store);
		compare_crashed(version);
		/* It is had again when it is needed. */
		(void) churn(store, version, &seed, 3000);
		trim(store, FEW_ROWS);
		check_short(store);
		compare(store, version);
		compare_crashed(version);
		nv_store_close(store);
		ok(nv_store_open(dir, &test_key, NULL, &store, &why));
		/* One that was just opened knows of no promises. */
		trim(store, FEW_ROWS);
		compare(store, version);
		compare_crashed(version);
	}
	nv_store_close(store);
}

/* --- Roots that name a slot, and that do not --- */

static void
test_young_slots(void **state)
{
	nv_store *store = build_store(dir, 4, 8, NULL);
	nv_store_stats first, stats;
	nv_writer *writer;

	publish(store);
	nv_store_get_stats(store, &first);
	ok(nv_writer_create(store, &writer, &why));
	/* Born and died between two cuts: the same units again and again. */
	for (int i = 1; i < 3000; i++)
	{
		relink_to(writer, 17, i % VERSIONS);
		if (i % 50 == 0)
			ok(nv_store_write_back(store, &why));
	}
	ok(nv_store_write_back(store, &why));
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 1);
	print_message("%llu pages, %llu at first\n",
				  (unsigned long long) stats.edge_pages,
				  (unsigned long long) first.edge_pages);
	assert_true(stats.edge_pages <= first.edge_pages + 8);
	publish(store);
	/* Now it is in a root: kept until the next. */
	relink_to(writer, 17, 5);
	ok(nv_store_write_back(store, &why));
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 1);
	publish(store);
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 0);
	nv_writer_destroy(writer);
	nv_store_close(store);
}

#define space_test(test)                                                       \
	cmocka_unit_test_setup_teardown(test, make_two, remove_two)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		space_test(test_torn_writes),
		space_test(test_growth),
		space_test(test_trim),
		space_test(test_young_slots),
	};

	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
