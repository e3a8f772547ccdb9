/*
 * test_vertices.c
 *		Vertices that are added one by one: their records, codes and lists
 *		after opening again, ids that come back, and several threads that add
 *		while checkpoints are cut.
 */
#include "store_dirs.h"

#include "io_internal.h"
#include "must.h"
#include "store_internal.h"

#define CODE 12 /* bytes */

static nv_store *
open_at(const char *name, uint32_t align)
{
	nv_store *store = NULL;

	ok(nv_store_open(name, &test_key, NULL, &store, &why));
	/* A device with larger blocks, as far as the store is concerned. */
	store->vectors.file->align = NV_MAX(store->vectors.file->align, align);
	return store;
}

/* The n-th row ever added: its bytes follow from n alone. */
static nv_status
add_row(nv_writer *w, uint32_t n, uint32_t *vertex)
{
	uint32_t bytes = w->store->params.vector_bytes;
	uint8_t *vector = nv_alloc(bytes + 256), code[CODE];
	nv_error err;
	nv_status status;

	make_bytes(n, 7, vector, bytes);
	make_bytes(n, 8, code, CODE);
	status = nv_store_add_vertex(w, vector, nv_vector_hash(vector, bytes), code,
								 vertex, &err);
	if (status != NV_OK)
		fprintf(stderr, "add: %s\n", err.detail);
	free(vector);
	return status;
}

/* Its list: vertices of the first VERTICES that follow from n. */
static uint32_t
row_list(uint32_t n, uint32_t *ids)
{
	return make_list(n % VERTICES, n % VERSIONS, ids);
}

static void
give_list(nv_writer *w, uint32_t n, uint32_t vertex)
{
	uint32_t ids[DEGREE], degree = row_list(n, ids);

	must(nv_store_relink(w, vertex, 0, ids, degree, NULL) == NV_OK);
}

/* The row is in the store as vertex, with a list. */
static void
compare_row(nv_store *store, uint32_t n, uint32_t vertex)
{
	uint32_t bytes = store->params.vector_bytes, len, skip, degree, right_n;
	uint8_t *right = nv_alloc(bytes + 256);
	uint8_t *buf = aligned_alloc(NV_BLOCK, 128 * 1024);
	uint32_t ids[DEGREE];
	uint64_t offset, word = nv_store_edge_word(store, vertex);
	const uint32_t *list;

	must(bytes <= 64 * 1024 && word != 0);
	nv_store_vector_extent(store, vertex, &offset, &len, &skip);
	must(nv_file_read(nv_store_vector_file(store), buf, len, offset, NULL) ==
		 NV_OK);
	make_bytes(n, 7, right, bytes);
	must(memcmp(buf + skip, right, bytes) == 0);
	must(nv_store_vector_hash(store, vertex) == nv_vector_hash(right, bytes));
	make_bytes(n, 8, right, CODE);
	must(memcmp(nv_store_code(store, vertex), right, CODE) == 0);
	must(nv_file_read(nv_store_edge_file(store), buf, NV_PAGE,
					  nv_word_page(word) * NV_PAGE, NULL) == NV_OK);
	list = nv_slot_find(store, buf, word, vertex, &degree);
	right_n = row_list(n, ids);
	must(list != NULL && degree == right_n &&
		 memcmp(list, ids, degree * 4) == 0);
	free(right);
	free(buf);
}

/* The rows of the build are untouched. */
static void
compare_base(nv_store *store)
{
	uint32_t bytes = store->params.vector_bytes;
	uint8_t *right = nv_alloc(bytes + 256);
	uint8_t *vectors = read_file(nv_store_vector_file(store));

	for (uint32_t v = 0; v < VERTICES; v++)
	{
		make_bytes(v, 1, right, bytes);
		must(memcmp(vectors + nv_record_offset(bytes, v), right, bytes) == 0);
	}
	free(vectors);
	free(right);
}

/* --- One thread --- */

#define ADDED 300

/* Of every four one is linked, one has a list, one has none, one is linked. */
static bool
has_list(uint32_t n)
{
	return n % 4 != 2;
}

static bool
is_linked(uint32_t n)
{
	return n % 4 == 0 || n % 4 == 3;
}

static void
add_some(nv_store *store, uint32_t *vertex)
{
	nv_writer *w;

	ok(nv_writer_create(store, &w, &why));
	for (uint32_t n = 0; n < ADDED; n++)
	{
		must(add_row(w, n, &vertex[n]) == NV_OK);
		must(nv_store_edge_word(store, vertex[n]) == 0);
		for (uint32_t i = 0; i < n; i++)
			must(vertex[i] != vertex[n]);
		if (n == 5)
			assert_int_equal(nv_store_set_linked(store, vertex[n], NULL),
							 NV_EINVAL);
		if (has_list(n))
			give_list(w, n, vertex[n]);
		if (is_linked(n))
			ok(nv_store_set_linked(store, vertex[n], &why));
	}
	/* Another writer meanwhile never writes into this one's blocks. */
	nv_writer_destroy(w);
}

/* Ids without a list come back, those with one do not. */
static void
add_again(nv_store *store, const uint32_t *vertex)
{
	uint32_t before = nv_store_vertices(store), reused = 0;
	bool *taken = nv_alloc(before + 1000);
	nv_writer *w;

	for (uint32_t n = 0; n < ADDED; n++)
		taken[vertex[n]] = has_list(n);
	ok(nv_writer_create(store, &w, &why));
	for (uint32_t n = ADDED; n < ADDED + 100; n++)
	{
		uint32_t v = 0;

		must(add_row(w, n, &v) == NV_OK);
		must(v >= VERTICES && v < before + 1000 && !taken[v]);
		taken[v] = true;
		give_list(w, n, v);
		reused += v < before;
	}
	assert_true(reused >= ADDED / 4);
	nv_writer_destroy(w);
	free(taken);
}

static void
check_dim(uint32_t dim, uint32_t align)
{
	nv_store *store = build_store(dir, dim, CODE, NULL);
	uint32_t vertex[ADDED];
	nv_store_stats stats;

	publish(store);
	nv_store_close(store);
	store = open_at(dir, align);
	add_some(store, vertex);
	publish(store);
	nv_store_close(store);
	store = open_at(dir, align);
	compare_base(store);
	for (uint32_t n = 0; n < ADDED; n++)
	{
		bool linked = nv_store_edge_word(store, vertex[n]) & NV_LINKED;

		assert_int_equal(linked, is_linked(n));
		if (has_list(n))
			compare_row(store, n, vertex[n]);
		else
			assert_true(nv_store_edge_word(store, vertex[n]) == 0);
	}
	add_again(store, vertex);
	publish(store);
	for (uint32_t n = 0; n < ADDED; n++)
		if (has_list(n))
			compare_row(store, n, vertex[n]);
	compare_base(store);
	nv_store_get_stats(store, &stats);
	assert_true(stats.vector_bytes <=
				nv_vector_file_size(dim * 4, VERTICES + ADDED + 300) +
					(2 << 20));
	nv_store_close(store);
}

static void
test_add_reopen(void **state)
{
	/* Several to a sector, one, one and a bit, many. */
	static const uint32_t dims[] = {1, 25, 100, 128, 129, 768, 960};

	for (size_t i = 0; i < 2 * NV_LENGTH(dims); i++)
	{
		check_dim(dims[i / 2], i % 2 == 0 ? NV_SECTOR : NV_BLOCK);
		remove_directory(dir);
		make_directory(dir);
	}
}

static void
test_add_before_checkpoint(void **state)
{
	nv_store *store = build_store(dir, 4, CODE, NULL);
	uint8_t bytes[16] = {0};
	nv_writer *w;
	uint32_t v;

	ok(nv_writer_create(store, &w, &why));
	assert_int_equal(nv_store_add_vertex(w, bytes, 1, bytes, &v, NULL),
					 NV_EINVAL);
	nv_writer_destroy(w);
	nv_store_close(store);
}

/* What was added after the last checkpoint is gone; nothing else changed. */
static void
test_add_lost(void **state)
{
	nv_store *store = build_store(dir, 25, CODE, NULL);
	uint32_t vertex[ADDED];

	publish(store);
	add_some(store, vertex);
	nv_store_close(store);
	store = open_at(dir, NV_SECTOR);
	assert_int_equal(nv_store_vertices(store), VERTICES);
	compare_base(store);
	add_some(store, vertex); /* over the bytes of the lost ones */
	publish(store);
	for (uint32_t n = 0; n < ADDED; n++)
		if (has_list(n))
			compare_row(store, n, vertex[n]);
	nv_store_close(store);
}

/* --- Freed ids --- */

/* Adds rows first .. first + n - 1 with lists; taken[v]: no id may be v. */
static uint32_t
add_listed(nv_store *store, nv_writer *w, uint32_t first, uint32_t n,
		   uint32_t *vertex, const bool *taken)
{
	uint32_t before = nv_store_vertices(store), reused = 0;

	for (uint32_t i = first; i < first + n; i++)
	{
		must(add_row(w, i, &vertex[i]) == NV_OK);
		must(vertex[i] >= before || !taken[vertex[i]]);
		give_list(w, i, vertex[i]);
		reused += vertex[i] < before;
	}
	return reused;
}

/*
 * Every third of the added is freed: its id, list and record stay until a root
 * without them is published, and are used again afterwards.
 */
static void
check_free(uint32_t dim, uint32_t align)
{
	nv_store *store = build_store(dir, dim, CODE, NULL), *old;
	uint32_t vertex[2 * ADDED], ids;
	bool *taken = nv_alloc(VERTICES + 10000);
	nv_store_stats stats;
	nv_writer *w;

	publish(store);
	nv_store_close(store);
	store = open_at(dir, align);
	memset(taken, true, VERTICES);
	ok(nv_writer_create(store, &w, &why));
	(void) add_listed(store, w, 0, ADDED, vertex, taken);
	publish(store);
	for (uint32_t n = 0; n < ADDED; n++)
		taken[vertex[n]] = true;
	for (uint32_t n = 0; n < ADDED; n += 3)
	{
		ok(nv_store_free_vertex(store, vertex[n], &why));
		must(nv_store_edge_word(store, vertex[n]) == 0);
		assert_int_equal(nv_store_free_vertex(store, vertex[n], NULL),
						 NV_EINVAL);
	}
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.freed_vertices, ADDED / 3);
	/* Not yet, by this writer or another; what the last root says is whole. */
	(void) add_listed(store, w, ADDED, 40, vertex, taken);
	nv_writer_destroy(w);
	ok(nv_writer_create(store, &w, &why));
	(void) add_listed(store, w, ADDED + 40, 40, vertex, taken);
	copy_directory(dir, copy);
	old = open_at(copy, align);
	for (uint32_t n = 0; n < ADDED; n++)
		compare_row(old, n, vertex[n]);
	nv_store_close(old);
	/* Afterwards they come first. */
	publish(store);
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.freed_vertices, 0);
	for (uint32_t n = 0; n < ADDED; n += 3)
		taken[vertex[n]] = false;
	for (uint32_t n = ADDED; n < ADDED + 80; n++)
		taken[vertex[n]] = true;
	ids = nv_store_vertices(store);
	assert_true(add_listed(store, w, ADDED + 80, 90, vertex, taken) >= 80);
	assert_true(nv_store_vertices(store) <= ids + 64);
	publish(store);
	nv_writer_destroy(w);
	nv_store_close(store);
	store = open_at(dir, align);
	compare_base(store);
	for (uint32_t n = 0; n < ADDED + 170; n++)
		if (n >= ADDED || n % 3 != 0)
			compare_row(store, n, vertex[n]);
	nv_store_close(store);
	free(taken);
}

static void
test_freed_ids(void **state)
{
	/* Several to a sector, one, one and a bit. */
	static const uint32_t dims[] = {4, 25, 128, 129};

	for (size_t i = 0; i < 2 * NV_LENGTH(dims); i++)
	{
		check_free(dims[i / 2], i % 2 == 0 ? NV_SECTOR : NV_BLOCK);
		(void) remove_two(NULL);
		(void) make_two(NULL);
	}
}

/* --- Several threads --- */

#define THREADS 3
#define CUTS 6
#define STEP 200           /* rows of a thread between two cuts, at most */
#define MOST (CUTS * STEP) /* rows of a thread */
#define ROW(t, i) ((i) *THREADS + (t))

static nv_store *shared;
static _Atomic uint32_t allowed;         /* rows a thread may add so far */
static _Atomic uint32_t linked[THREADS]; /* rows linked by a thread */
static uint32_t *where[THREADS];         /* their vertices */
static uint32_t linked_at_cut[THREADS];

static void *
add_thread(void *arg)
{
	uint32_t t = (uint32_t) (uintptr_t) arg;
	uint64_t seed = nv_random_seed(t);
	nv_writer *w;

	must(nv_writer_create(shared, &w, NULL) == NV_OK);
	for (uint32_t i = 0; i < MOST; i++)
	{
		uint32_t n = ROW(t, i);

		while (i >= atomic_load(&allowed))
			usleep(1000);
		must(add_row(w, n, &where[t][i]) == NV_OK);
		give_list(w, n, where[t][i]);
		must(nv_store_set_linked(shared, where[t][i], NULL) == NV_OK);
		atomic_store(&linked[t], i + 1);
		if (nv_random_below(&seed, 50) == 0)
		{
			nv_writer_destroy(w);
			must(nv_writer_create(shared, &w, NULL) == NV_OK);
		}
		usleep(50);
	}
	nv_writer_destroy(w);
	return NULL;
}

static uint64_t
cut(void *arg)
{
	for (uint32_t t = 0; t < THREADS; t++)
		linked_at_cut[t] = atomic_load(&linked[t]);
	return 1;
}

/* Every row linked before the cut is in the copy; no vertex is half born. */
static void
compare_copy(void)
{
	nv_store *again = open_at(copy, NV_SECTOR);
	uint32_t n_linked = 0, rows = 0;

	for (uint32_t v = VERTICES; v < nv_store_vertices(again); v++)
		n_linked += (nv_store_edge_word(again, v) & NV_LINKED) != 0;
	for (uint32_t t = 0; t < THREADS; t++)
		for (uint32_t i = 0; i < linked_at_cut[t]; i++, rows++)
		{
			must(nv_store_edge_word(again, where[t][i]) & NV_LINKED);
			compare_row(again, ROW(t, i), where[t][i]);
		}
	/* A row may have been linked and not yet counted. */
	must(n_linked >= rows && n_linked <= rows + THREADS);
	compare_base(again);
	nv_store_close(again);
}

static uint32_t
all_linked(void)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < THREADS; t++)
		n += atomic_load(&linked[t]);
	return n;
}

static void
test_add_checkpoint(void **state)
{
	nv_checkpoint_hooks hooks = {.cut = cut};
	pthread_t thread[THREADS];

	shared = build_store(dir, 25, CODE, NULL);
	publish(shared);
	for (uintptr_t t = 0; t < THREADS; t++)
	{
		where[t] = nv_alloc_array(MOST, sizeof(uint32_t));
		must(pthread_create(&thread[t], NULL, add_thread, (void *) t) == 0);
	}
	for (int c = 0; c < CUTS; c++)
	{
		/* Half of the step before the cut, the rest beside it. */
		atomic_fetch_add(&allowed, STEP);
		while (all_linked() < THREADS * (uint32_t) c * STEP + STEP / 2)
			usleep(1000);
		ok(nv_store_checkpoint(shared, &hooks, &why));
		copy_directory(dir, copy);
		compare_copy();
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(thread[t], NULL);
	ok(nv_store_checkpoint(shared, &hooks, &why));
	/* Units that were given back were used up. */
	must(nv_store_vertices(shared) - VERTICES < all_linked() + 100);
	nv_store_close(shared);
	copy_directory(dir, copy);
	compare_copy();
	for (int t = 0; t < THREADS; t++)
		free(where[t]);
}

#define with_files(test)                                                       \
	cmocka_unit_test_setup_teardown(test, make_two, remove_two)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		with_files(test_add_reopen),     with_files(test_add_before_checkpoint),
		with_files(test_add_lost),       with_files(test_freed_ids),
		with_files(test_add_checkpoint),
	};

	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
