/*
 * test_page_writer.c
 *		The background writer: that it merges neighbours, that a checkpoint
 *		waits for it, that its failures reach whoever must know, that waiting
 *		for it ends when it is to.
 */
#include <errno.h>

#include "store_fixture.h"

#include "io_internal.h"
#include "must.h"
#include "page_writer.h"
#include "store_internal.h"

#define WAIT_MS 20000

static char dir[NAME], copy[NAME];
static nv_page_writer *page_writer;
static int version[VERTICES];

static int
set_up(void **state)
{
	make_directory(dir);
	make_directory(copy);
	memset(version, 0, sizeof(version));
	ok(nv_page_writer_create(NV_IO_AUTO, &page_writer, &why));
	return 0;
}

static int
tear_down(void **state)
{
	nv_page_writer_destroy(page_writer);
	remove_directory(dir);
	remove_directory(copy);
	return 0;
}

static nv_status
checkpoint(nv_store *store, nv_error *err)
{
	nv_checkpoint_hooks hooks = {0};

	return nv_store_checkpoint(store, &hooks, err);
}

static nv_status
relink(nv_writer *w, uint32_t vertex, int to, nv_error *err)
{
	uint32_t ids[DEGREE], degree = make_list(vertex, (uint32_t) to, ids);

	return nv_store_relink(w, vertex, nv_store_edge_word(w->store, vertex), ids,
						   degree, err);
}

static void
compare(nv_store *store, const int *right)
{
	uint8_t *edges = read_file(nv_store_edge_file(store));

	for (uint32_t v = 0; v < VERTICES; v++)
		assert_int_equal(version_in(store, v, edges), right[v]);
	free(edges);
}

static void
compare_reopened(const char *name, const int *right)
{
	nv_store *store = NULL;

	ok(nv_store_open(name, &test_key, NULL, &store, &why));
	compare(store, right);
	nv_store_close(store);
}

/* --- What it does --- */

static void
test_merges(void **state)
{
	nv_cache *cache = make_cache(1 << 20);
	nv_store *store = build_store(dir, 4, 8, cache);
	nv_store_stats stats;
	nv_writer *writer;
	uint64_t seed = nv_random_seed(5);

	nv_store_use_page_writer(store, page_writer);
	nv_store_use_page_writer(store, page_writer);
	ok(nv_writer_create(store, &writer, &why));
	for (int round = 0; round < 10; round++)
	{
		for (int i = 0; i < 1000; i++)
		{
			uint32_t v = (uint32_t) nv_random_below(&seed, VERTICES);

			version[v] = (int) nv_random_below(&seed, VERSIONS);
			ok(relink(writer, v, version[v], &why));
			assert_int_equal(read_version(store, v, NV_CACHE_INSERT),
							 version[v]);
		}
		/* What was cut is in the file when the checkpoint is over. */
		ok(checkpoint(store, &why));
		nv_store_get_stats(store, &stats);
		assert_int_equal(stats.rmw_pages, 0);
		copy_directory(dir, copy);
		compare_reopened(copy, version);
	}
	print_message("%llu writes of %llu pages, %llu taken back\n",
				  (unsigned long long) stats.page_writes,
				  (unsigned long long) stats.pages_written,
				  (unsigned long long) stats.pages_reopened);
	assert_true(stats.pages_written >= 10 * 30);
	assert_true(stats.page_writes < stats.pages_written / 2);
	assert_true(stats.pages_reopened > 0);
	nv_writer_destroy(writer);
	nv_store_close(store);
	nv_cache_free(cache);
	compare_reopened(dir, version);
}

/* --- A disk that is slow, stops, or fails --- */

static const nv_file_ops *real_ops;
static nv_file_ops slow_ops;
static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t disk_goes_on = PTHREAD_COND_INITIALIZER;
static bool disk_stopped;
static _Atomic bool disk_is_slow;
static int disk_error;
static uint32_t disk_writes;

static ssize_t
slow_pwrite(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	int error;

	pthread_mutex_lock(&disk_lock);
	disk_writes++;
	while (disk_stopped)
		pthread_cond_wait(&disk_goes_on, &disk_lock);
	error = disk_error;
	pthread_mutex_unlock(&disk_lock);
	if (disk_is_slow)
		usleep(1000);
	return error != 0 ? -error : real_ops->pwrite(file, buf, len, offset);
}

static void
set_disk(bool stopped, int error)
{
	pthread_mutex_lock(&disk_lock);
	disk_stopped = stopped;
	disk_error = error;
	pthread_cond_broadcast(&disk_goes_on);
	pthread_mutex_unlock(&disk_lock);
}

/* Pages must be many: the list of sealed ones may hold the whole file. */
static void
set_limits(nv_store *store, uint32_t least, uint32_t most)
{
	pthread_mutex_lock(&store->rmw.lock);
	store->rmw.least_sealed = least;
	store->rmw.most_sealed = most;
	pthread_mutex_unlock(&store->rmw.lock);
}

/* Until so many pages are sealed, those being written among them. */
static void
await_sealed(nv_store *store, uint32_t n)
{
	uint32_t sealed = 0;

	for (int i = 0; i < WAIT_MS && sealed < n; i++)
	{
		usleep(1000);
		pthread_mutex_lock(&store->rmw.lock);
		sealed = store->rmw.sealed_count;
		pthread_mutex_unlock(&store->rmw.lock);
	}
	assert_true(sealed >= n);
}

/* A store on such a disk, published once; rings write it by slow_pwrite. */
static nv_store *
slow_store(nv_writer **writer)
{
	nv_store *store = build_store(dir, 4, 8, NULL);

	ok(checkpoint(store, &why));
	real_ops = store->edges.file->ops;
	slow_ops = *real_ops;
	slow_ops.pwrite = slow_pwrite;
	store->edges.file->ops = &slow_ops;
	set_disk(false, 0);
	disk_writes = 0;
	nv_page_writer_destroy(page_writer);
	ok(nv_page_writer_create(NV_IO_SYNC, &page_writer, &why));
	nv_store_use_page_writer(store, page_writer);
	ok(nv_writer_create(store, writer, &why));
	return store;
}

typedef struct attempt
{
	nv_writer *writer;
	pthread_t thread;
	_Atomic bool cancel, over;
	nv_status status;
	nv_error error;
	uint32_t done;
} attempt;

static bool
is_cancelled(void *arg)
{
	attempt *a = arg;

	return atomic_load(&a->cancel);
}

/*
 * Relinks until it is refused.  Pages are sealed faster than they fill: a cut
 * would do it, here the test does.
 */
static void *
relink_on(void *arg)
{
	attempt *a = arg;
	nv_store *store = a->writer->store;

	a->status = NV_OK;
	for (uint32_t i = 0; a->status == NV_OK; i++)
	{
		a->status = relink(a->writer, i % VERTICES, (int) (i % 50), &a->error);
		pthread_rwlock_rdlock(&store->gate);
		for (uint32_t k = 0; k < a->writer->n_open; k++)
			nv_rmw_seal(store, a->writer->open[k]);
		if (a->writer->main != NULL)
			nv_rmw_seal(store, a->writer->main);
		a->writer->n_open = 0;
		a->writer->main = NULL;
		pthread_rwlock_unlock(&store->gate);
		a->done += a->status == NV_OK;
	}
	atomic_store(&a->over, true);
	return NULL;
}

static bool
await(_Atomic bool *flag)
{
	for (int i = 0; i < WAIT_MS && !atomic_load(flag); i++)
		usleep(1000);
	return atomic_load(flag);
}

static void *
checkpoint_on(void *arg)
{
	attempt *a = arg;

	a->status = checkpoint(a->writer->store, &a->error);
	atomic_store(&a->over, true);
	return NULL;
}

/* The checkpoint is not over before the pages of its cut are written. */
static void
test_checkpoint_waits(void **state)
{
	attempt a = {0};
	nv_store *store = slow_store(&a.writer);

	for (uint32_t v = 0; v < 100; v++)
	{
		version[v] = 3;
		ok(relink(a.writer, v, 3, &why));
	}
	set_disk(true, 0);
	assert_int_equal(pthread_create(&a.thread, NULL, checkpoint_on, &a), 0);
	usleep(100000);
	assert_false(atomic_load(&a.over));
	/* Readers do not wait. */
	for (uint32_t v = 0; v < 200; v++)
		assert_int_equal(read_version(store, v, NV_CACHE_SEARCH), version[v]);
	set_disk(false, 0);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	assert_int_equal(a.status, NV_OK);
	nv_writer_destroy(a.writer);
	nv_store_close(store);
	compare_reopened(dir, version);
}

/* A writer beyond the bound waits, goes on, and stops when it is told to. */
static void
test_bounded_queue(void **state)
{
	attempt a = {0};
	nv_store *store = slow_store(&a.writer);
	nv_store_stats stats;

	set_limits(store, 8, 20);
	nv_writer_set_cancel(a.writer, is_cancelled, &a);
	set_disk(true, 0);
	assert_int_equal(pthread_create(&a.thread, NULL, relink_on, &a), 0);
	for (int i = 0; i < WAIT_MS; i++)
	{
		usleep(1000);
		pthread_mutex_lock(&store->rmw.lock);
		if (store->rmw.sealed_count >= 20)
			i = WAIT_MS;
		must(store->rmw.sealed_count <= 20 + NV_OPEN_PAGES + 1);
		pthread_mutex_unlock(&store->rmw.lock);
	}
	usleep(50000);
	assert_false(atomic_load(&a.over));
	atomic_store(&disk_is_slow, true);
	set_disk(false, 0);
	for (int i = 0; i < WAIT_MS && store->rmw.counters.waits < 3; i++)
		usleep(1000);
	nv_store_get_stats(store, &stats);
	assert_true(stats.write_waits >= 3 && stats.pages_written > 20);
	assert_false(atomic_load(&a.over));
	set_disk(true, 0);
	usleep(20000);
	atomic_store(&a.cancel, true);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	atomic_store(&disk_is_slow, false);
	assert_int_equal(a.status, NV_ECANCELLED);
	/* Nothing is lost by that: the store goes on. */
	atomic_store(&a.cancel, false);
	set_disk(false, 0);
	ok(checkpoint(store, &why));
	nv_writer_destroy(a.writer);
	nv_store_close(store);
	ok(nv_store_open(dir, &test_key, NULL, &store, &why));
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.live_slots, VERTICES);
	for (uint32_t v = 0; v < VERTICES; v++)
		assert_true(read_version(store, v, NV_CACHE_SEARCH) >= 0);
	nv_store_close(store);
}

static void
fail_with(int error, const char *text)
{
	attempt a = {0};
	nv_store *store = slow_store(&a.writer);
	nv_error err;

	memset(version, 0, sizeof(version));
	set_limits(store, 8, 20);
	set_disk(false, error);
	assert_int_equal(pthread_create(&a.thread, NULL, relink_on, &a), 0);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	assert_int_equal(a.status, NV_EIO);
	assert_non_null(strstr(a.error.detail, text));
	set_disk(false, 0);
	assert_int_equal(checkpoint(store, &err), NV_EIO);
	assert_non_null(strstr(err.detail, text));
	/* It still reads what it acknowledged ... */
	for (uint32_t v = 0; v < VERTICES; v++)
		assert_true(read_version(store, v, NV_CACHE_SEARCH) >= 0);
	nv_writer_destroy(a.writer);
	nv_store_close(store);
	/* ... and is found as it was published. */
	compare_reopened(dir, version);
}

static void
test_no_space(void **state)
{
	fail_with(ENOSPC, strerror(ENOSPC));
}

static void
test_io_error(void **state)
{
	fail_with(EIO, strerror(EIO));
}

/* A checkpoint that waits for pages learns that they cannot be written. */
static void
test_checkpoint_fails(void **state)
{
	attempt a = {0};
	nv_store *store = slow_store(&a.writer);

	for (uint32_t v = 0; v < 100; v++)
		ok(relink(a.writer, v, 3, &why));
	set_disk(true, EIO);
	assert_int_equal(pthread_create(&a.thread, NULL, checkpoint_on, &a), 0);
	usleep(50000);
	assert_false(atomic_load(&a.over));
	set_disk(false, EIO);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	assert_int_equal(a.status, NV_EIO);
	nv_writer_destroy(a.writer);
	nv_store_close(store);
	compare_reopened(dir, version);
}

static void *
give_up_on(void *arg)
{
	attempt *a = arg;

	nv_store_give_up(a->writer->store);
	atomic_store(&a->over, true);
	return NULL;
}

/*
 * The files of a store that is given up are another's afterwards: what is
 * being written is waited for, and what waits to be written never is.
 */
static void
test_give_up(void **state)
{
	attempt a = {0};
	nv_store *store = slow_store(&a.writer);
	uint32_t writes = 0;
	nv_error err;

	memset(version, 0, sizeof(version));
	set_limits(store, 8, 20);
	nv_writer_set_cancel(a.writer, is_cancelled, &a);
	set_disk(true, 0);
	assert_int_equal(pthread_create(&a.thread, NULL, relink_on, &a), 0);
	/* A write is under way ... */
	for (int i = 0; i < WAIT_MS && writes == 0; i++)
	{
		usleep(1000);
		pthread_mutex_lock(&disk_lock);
		writes = disk_writes;
		pthread_mutex_unlock(&disk_lock);
	}
	assert_true(writes > 0);
	/* ... of 20 pages at most, and so many wait that the next is due. */
	set_limits(store, 8, 20 + 20);
	await_sealed(store, 20 + 20);
	atomic_store(&a.cancel, true);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	assert_int_equal(a.status, NV_ECANCELLED);
	atomic_store(&a.over, false);
	assert_int_equal(pthread_create(&a.thread, NULL, give_up_on, &a), 0);
	usleep(50000);
	assert_false(atomic_load(&a.over));
	set_disk(false, 0);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	writes = disk_writes;
	nv_page_writer_wake(page_writer);
	usleep(50000);
	pthread_mutex_lock(&disk_lock);
	assert_int_equal(disk_writes, writes);
	pthread_mutex_unlock(&disk_lock);
	pthread_mutex_lock(&store->rmw.lock);
	assert_true(store->rmw.sealed_count >= 8);
	pthread_mutex_unlock(&store->rmw.lock);
	assert_int_equal(relink(a.writer, 1, 2, &err), NV_EIO);
	assert_int_equal(checkpoint(store, &err), NV_EIO);
	for (uint32_t v = 0; v < VERTICES; v++)
		assert_true(read_version(store, v, NV_CACHE_SEARCH) >= 0);
	nv_writer_destroy(a.writer);
	nv_store_close(store);
	compare_reopened(dir, version);
}

/* --- Two stores, one of which goes while the other is written --- */

static void
test_two_stores(void **state)
{
	attempt a = {0}, b = {0};
	nv_store *first = build_store(dir, 4, 8, NULL);
	nv_store *second = build_store(copy, 4, 8, NULL);

	nv_store_use_page_writer(first, page_writer);
	nv_store_use_page_writer(second, page_writer);
	ok(nv_writer_create(first, &a.writer, &why));
	ok(nv_writer_create(second, &b.writer, &why));
	set_limits(first, 4, 16);
	set_limits(second, 4, 16);
	nv_writer_set_cancel(a.writer, is_cancelled, &a);
	assert_int_equal(pthread_create(&a.thread, NULL, relink_on, &a), 0);
	for (int round = 0; round < 20; round++)
	{
		for (uint32_t v = 0; v < 200; v++)
		{
			version[v] = round;
			ok(relink(b.writer, v, round, &why));
		}
		ok(checkpoint(second, &why));
	}
	nv_writer_destroy(b.writer);
	nv_store_close(second);
	compare_reopened(copy, version);
	atomic_store(&a.cancel, true);
	assert_true(await(&a.over));
	pthread_join(a.thread, NULL);
	assert_true(a.done > 100);
	nv_writer_destroy(a.writer);
	ok(checkpoint(first, &why));
	nv_store_close(first);
}

#define writer_test(test)                                                      \
	cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		writer_test(test_merges),        writer_test(test_checkpoint_waits),
		writer_test(test_bounded_queue), writer_test(test_no_space),
		writer_test(test_io_error),      writer_test(test_checkpoint_fails),
		writer_test(test_give_up),       writer_test(test_two_stores),
	};

	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
