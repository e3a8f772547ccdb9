/*
 * test_search_faults.c
 *		Searches over damaged files, failing reads, cancellation, lack of
 *		memory, and lists that are rewritten meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "sanitized.h"
#include "search_fixture.h"

static fixture plain, wide;
static nv_ring *ring;

static uint32_t
run(fixture *f, nv_search *search, const nv_search_options *options,
	const float *query, const nv_result **results)
{
	return run_on(f, search, options, query, ring, results);
}

/* --- Damage on disk --- */

/* A file's content, to damage it and to put it right again. */
typedef struct content
{
	char path[160];
	size_t size;
	uint8_t *bytes;
} content;

static content
content_of(const fixture *f, const char *name)
{
	content c;
	FILE *file;
	struct stat st;

	snprintf(c.path, sizeof(c.path), "%s/%s", f->dir, name);
	assert_int_equal(stat(c.path, &st), 0);
	c.size = (size_t) st.st_size;
	c.bytes = malloc(c.size);
	file = fopen(c.path, "r");
	assert_true(c.bytes != NULL && file != NULL);
	assert_true(fread(c.bytes, 1, c.size, file) == c.size);
	fclose(file);
	return c;
}

static void
put(const content *c, size_t at, uint8_t byte)
{
	int fd = open(c->path, O_WRONLY);

	assert_true(fd >= 0);
	assert_true(pwrite(fd, &byte, 1, (off_t) at) == 1);
	close(fd);
}

/* Flips one random bit in every step-th stretch of `step` bytes. */
static void
flip_bits(const content *c, size_t step, uint64_t *seed)
{
	for (size_t i = 0; i + step <= c->size; i += step)
	{
		size_t at = i + nv_random_below(seed, step);

		put(c, at, c->bytes[at] ^ (uint8_t) (1 << nv_random_below(seed, 8)));
	}
}

static void
restore(content *c)
{
	int fd = open(c->path, O_WRONLY);

	assert_true(fd >= 0);
	assert_true(write(fd, c->bytes, c->size) == (ssize_t) c->size);
	close(fd);
	free(c->bytes);
}

/* Sums over all queries. */
typedef struct totals
{
	uint64_t damaged, explored, vectors;
	uint32_t found;
} totals;

static totals
run_all(fixture *f, uint32_t window)
{
	nv_search_options options = usual_options(60, 4);
	nv_search *search = new_search();
	totals sum = {0};

	options.window = window;
	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		const nv_search_stats *stats = nv_search_get_stats(search);
		const nv_result *results;
		uint32_t n = run(f, search, &options, query_of(f, q), &results);

		sum.found += found_of(f->truth + (size_t) q * FIXTURE_K, results, n);
		sum.damaged += stats->damaged;
		sum.explored += stats->explored;
		sum.vectors += stats->vectors;
		if (window == NV_CASR_ALL)
			assert_true(stats->vectors + stats->damaged >= stats->explored);
	}
	nv_search_free(search);
	return sum;
}

static void
check_edge_damage(fixture *f, size_t step)
{
	content edges = content_of(f, "edges");
	uint64_t seed = nv_random_seed(step);
	totals before = run_all(f, NV_CASR_ALL), after;

	flip_bits(&edges, step, &seed);
	after = run_all(f, NV_CASR_ALL);
	restore(&edges);
	assert_true(before.damaged == 0);
	assert_true(after.damaged > 0);
	/* Lists are damaged, not vectors: what was explored was loaded. */
	assert_true(after.vectors == after.explored);
	after = run_all(f, NV_CASR_ALL);
	assert_true(after.damaged == 0 && after.found == before.found);
}

static void
test_damaged_edges(void **state)
{
	check_edge_damage(&plain, 2 * NV_PAGE);
	check_edge_damage(&plain, NV_UNIT);
	check_edge_damage(&wide, NV_PAGE / 4);
}

/*
 * Candidates whose record is damaged are passed over; the window still counts
 * true loads, so that no more than the true top K is lost.
 */
static void
check_vector_damage(fixture *f, size_t step)
{
	content vectors = content_of(f, "vectors");
	uint64_t seed = nv_random_seed(step + 1);
	totals before = run_all(f, NV_CASR_ALL), all, window;

	flip_bits(&vectors, step, &seed);
	all = run_all(f, NV_CASR_ALL);
	window = run_all(f, 10);
	restore(&vectors);
	assert_true(all.damaged > 0 && window.damaged > 0);
	assert_int_equal(all.explored, before.explored);
	assert_int_equal(all.vectors + all.damaged, all.explored);
	assert_true(all.found <= before.found);
	assert_true(window.vectors < all.vectors);
	/* At least K + w sound ones were loaded where there are so many. */
	assert_true(window.vectors >=
				NV_MIN(all.vectors, f->n_queries * (FIXTURE_K + 10)));
	all = run_all(f, NV_CASR_ALL);
	assert_true(all.damaged == 0 && all.found == before.found);
}

static void
test_damaged_vectors(void **state)
{
	check_vector_damage(&plain, 2048);
	check_vector_damage(&wide, FIXTURE_WIDE * 20);
}

/* Flips a bit of every fifth vector; vertices with one count as dead below. */
static void
damage_every_fifth(fixture *f, const content *vectors)
{
	for (uint32_t v = 0; v < f->n; v += 5)
	{
		uint64_t offset;
		uint32_t len, skip;

		nv_store_vector_extent(f->store, v, &offset, &len, &skip);
		offset += skip + v % (f->dim * 4);
		put(vectors, offset, vectors->bytes[offset] ^ 8);
	}
}

/* CASR loads what it would if damaged records had never been candidates. */
static void
test_casr_passes_damage_over(void **state)
{
	fixture *f = &plain;
	content vectors = content_of(f, "vectors");
	nv_search_options options = usual_options(60, 4);
	nv_search *search = new_search();
	ranked *order = nv_alloc_array(f->n, sizeof(*order));
	uint64_t damaged = 0;

	assert_non_null(order);
	damage_every_fifth(f, &vectors);
	for (uint32_t q = 0; q < 4 * f->n_queries; q++)
	{
		const float *query = query_of(f, q / 4);
		const nv_search_stats *stats = nv_search_get_stats(search);
		const nv_result *results;
		uint32_t n = 0, all, gap;

		options.window = 1 + q % 4 * 4;
		memset(f->asked, 0, (size_t) f->n * 4);
		run(f, search, &options, query, &results);
		all = explored_in_order(f, query, order);
		for (uint32_t i = 0; i < all; i++)
			if (order[i].vertex % 5 != 0)
				order[n++] = order[i];
		assert_int_equal(
			stats->vectors,
			loads_by_hand(f, query, order, n, FIXTURE_K, options.window, &gap));
		assert_true(stats->vectors + stats->damaged <= stats->explored);
		damaged += stats->damaged;
	}
	assert_true(damaged > 0);
	restore(&vectors);
	free(order);
	nv_search_free(search);
}

/* A file cut short: reads that end early. */
static void
test_truncated(void **state)
{
	fixture *f = &plain;
	static const char *const files[] = {"edges", "vectors"};

	for (size_t i = 0; i < NV_LENGTH(files); i++)
	{
		content c = content_of(f, files[i]);
		totals sum;

		assert_int_equal(truncate(c.path, (off_t) (c.size / 8192 * 4096)), 0);
		sum = run_all(f, NV_CASR_ALL);
		assert_true(sum.damaged > 0);
		restore(&c);
		assert_true(run_all(f, NV_CASR_ALL).damaged == 0);
	}
}

/* --- Failing reads --- */

static void
check_failing(fixture *f, uint32_t fail_edges, uint32_t fail_vectors,
			  uint32_t width)
{
	nv_search_options options = usual_options(60, width);
	nv_search *search = new_search();
	wild_driver wild = {.seed = nv_random_seed(width),
						.fail_edges = fail_edges,
						.fail_vectors = fail_vectors};

	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		const nv_search_stats *stats = nv_search_get_stats(search);
		uint64_t edges = wild.edge_failures, vectors = wild.vector_failures;
		const nv_result *results;
		uint32_t n;

		CHECK(nv_search_start(search, &f->view, &options, query_of(f, q),
							  f->buffer, ERR));
		assert_true(wild_run(&wild, f, search));
		n = nv_search_results(search, &results);
		check_results(f, query_of(f, q), results, n);
		edges = wild.edge_failures - edges;
		vectors = wild.vector_failures - vectors;
		/* A failed page harms all candidates on it, at least the one asked. */
		assert_true(stats->damaged >= edges + vectors);
		assert_true(edges > 0 || stats->damaged == vectors);
		assert_int_equal(stats->vectors + vectors, stats->explored);
		assert_true(n == NV_MIN(stats->vectors, FIXTURE_K));
	}
	assert_true(fail_edges == 0 || wild.edge_failures > 0);
	assert_true(fail_vectors == 0 || wild.vector_failures > 0);
	nv_search_free(search);
}

static void
test_failing_reads(void **state)
{
	check_failing(&plain, 5, 0, 4);
	check_failing(&plain, 0, 5, 4);
	check_failing(&plain, 3, 3, 1);
	check_failing(&plain, 3, 3, NV_MAX_BEAM);
	check_failing(&wide, 4, 4, 4);
	/* Nothing can be read at all. */
	check_failing(&plain, 1, 0, 4);
	check_failing(&plain, 0, 1, 4);
	check_failing(&plain, 1, 1, 4);
}

/* --- Cancelling --- */

/*
 * Cancelled at any arrival, then continued: nothing is lost, nothing comes
 * twice.  With one list a hop the end is exactly that of a whole search.
 */
static void
test_cancelled_and_continued(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(30, 1);
	nv_search *search = new_search();
	wild_driver wild = {.seed = nv_random_seed(4)};
	uint32_t cancelled = 0;

	options.single_lists = true;
	for (uint32_t at = 1; at < 90; at += 4)
	{
		const nv_search_stats *stats = nv_search_get_stats(search);
		const nv_result *results;
		nv_result want[FIXTURE_K];
		uint64_t explored;
		uint32_t n;

		n = run(f, search, &options, query_of(f, 1), &results);
		assert_int_equal(n, FIXTURE_K);
		memcpy(want, results, sizeof(want));
		explored = stats->explored;
		wild.cancel_after = at;
		CHECK(nv_search_start(search, &f->view, &options, query_of(f, 1),
							  f->buffer, ERR));
		while (!wild_run(&wild, f, search))
		{
			cancelled++;
			assert_false(nv_search_exhausted(search));
			n = nv_search_results(search, &results);
			check_results(f, query_of(f, 1), results, n);
			wild.cancel_after *= 3;
			CHECK(nv_search_more(search, FIXTURE_K, 30, NV_CASR_ALL, f->buffer,
								 ERR));
		}
		n = nv_search_results(search, &results);
		assert_int_equal(n, FIXTURE_K);
		for (uint32_t i = 0; i < n; i++)
			assert_true(want[i].vertex == results[i].vertex &&
						want[i].distance == results[i].distance);
		assert_int_equal(stats->explored, explored);
		assert_int_equal(stats->vectors, explored);
	}
	assert_true(cancelled > 20);
	nv_search_free(search);
}

/* More often than there are reader slots: each one is given back. */
static void
test_epochs_are_given_back(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(30, 4);
	nv_search *search = new_search();
	nv_read reads[NV_SEARCH_MAX_READS];
	uint32_t n;

	for (int i = 0; i < NV_EPOCH_SLOTS + 10; i++)
	{
		CHECK(nv_search_start(search, &f->view, &options, query_of(f, 0),
							  f->buffer, ERR));
		if (i % 3 == 1)
			assert_int_equal(nv_search_step(search, reads, &n), NV_STEP_WAIT);
		if (i % 3 == 2)
		{
			/* Freed in the middle. */
			nv_search_free(search);
			search = new_search();
		}
		else
			nv_search_cancel(search);
	}
	nv_search_free(search);
}

/* All reader slots taken: an error, and a search that can be started later. */
static void
test_no_epoch_left(void **state)
{
	fixture *f = &plain;
	static int slots[NV_EPOCH_SLOTS];
	nv_search_options options = usual_options(30, 4);
	nv_search *search = new_search();
	const nv_result *results;
	nv_error err;

	for (int i = 0; i < NV_EPOCH_SLOTS; i++)
	{
		slots[i] = nv_store_enter(f->store);
		assert_true(slots[i] >= 0);
	}
	assert_int_equal(nv_search_start(search, &f->view, &options, query_of(f, 0),
									 f->buffer, &err),
					 NV_ELIMIT);
	for (int i = 0; i < NV_EPOCH_SLOTS; i++)
		nv_store_leave(f->store, slots[i]);
	assert_int_equal(run(f, search, &options, query_of(f, 0), &results),
					 FIXTURE_K);
	nv_search_free(search);
}

/* --- Lack of memory --- */

#ifndef SANITIZED

/* In a child with little address space left: FAILED, and life goes on. */
static int
starve(fixture *f)
{
	nv_search_options options = usual_options(20, 4);
	nv_search *search = new_search();
	struct rlimit limit;
	const nv_result *results;
	nv_error err;
	void *hog;
	size_t size = 1 << 30;

	/* A ring of io_uring is its creator's alone. */
	CHECK(nv_ring_create(NV_IO_SYNC, NV_BLOCK, &ring, ERR));
	if (run(f, search, &options, query_of(f, 0), &results) != FIXTURE_K)
		return 1;
	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = (size_t) 4 << 30;
	setrlimit(RLIMIT_AS, &limit);
	/* Take all there is, in ever smaller pieces that are never given back. */
	while (size >= 32)
	{
		hog = malloc(size);
		if (hog == NULL)
			size /= 2;
	}
	options.list_size = f->n;
	if (nv_search_start(search, &f->view, &options, query_of(f, 1), f->buffer,
						&err) != NV_OK)
		return 2;
	if (nv_search_run(search, ring) != NV_ENOMEM ||
		nv_search_error(search)->status != NV_ENOMEM)
		return 3;
	if (nv_search_more(search, 10, f->n, 1, f->buffer, &err) != NV_EINVAL)
		return 4;
	/* What fits in the memory it has still works. */
	options.list_size = 20;
	if (run(f, search, &options, query_of(f, 0), &results) != FIXTURE_K)
		return 5;
	return 0;
}

#endif

static void
test_no_memory(void **state)
{
#ifdef SANITIZED
	skip();
#else
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0)
		_exit(starve(&plain));
	assert_true(waitpid(child, &status, 0) == child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

/* --- Lists rewritten meanwhile --- */

typedef struct relinker
{
	fixture *f;
	_Atomic bool stop;
	_Atomic uint64_t done;
} relinker;

/* Moves lists about, each in another order but with the same neighbours. */
static void *
relink_lists(void *arg)
{
	relinker *r = arg;
	fixture *f = r->f;
	nv_writer *writer;
	uint64_t seed = nv_random_seed(11);
	uint32_t ids[NV_MAX_DEGREE];

	CHECK(nv_writer_create(f->store, &writer, ERR));
	while (!atomic_load(&r->stop))
	{
		uint32_t v = (uint32_t) nv_random_below(&seed, f->n);
		uint32_t degree =
			(uint32_t) (f->graph.offset[v + 1] - f->graph.offset[v]);
		int epoch = nv_store_enter(f->store);

		assert_true(epoch >= 0);
		for (uint32_t i = 0; i < degree; i++)
			ids[i] = f->graph.edges[f->graph.offset[v + 1] - 1 - i];
		CHECK(nv_store_relink(writer, v, nv_store_edge_word(f->store, v), ids,
							  degree, ERR));
		nv_store_leave(f->store, epoch);
		if (atomic_fetch_add(&r->done, 1) % 200 == 199)
			CHECK(nv_store_write_back(f->store, ERR));
	}
	CHECK(nv_store_write_back(f->store, ERR));
	nv_writer_destroy(writer);
	return NULL;
}

static void
check_relinked(fixture *f, uint64_t cache_bytes, uint32_t width)
{
	nv_search_options options = usual_options(60, width);
	nv_search *search = new_search();
	relinker r = {.f = f};
	pthread_t thread;
	uint32_t found = 0, want;
	uint64_t before;

	fixture_reopen(f, cache_bytes);
	want = run_all(f, NV_CASR_ALL).found;
	assert_int_equal(pthread_create(&thread, NULL, relink_lists, &r), 0);
	for (int round = 0; round < 3; round++)
		for (uint32_t q = 0; q < f->n_queries; q++)
		{
			const nv_result *results;
			uint32_t n;

			before = atomic_load(&r.done);
			n = run(f, search, &options, query_of(f, q), &results);
			assert_int_equal(nv_search_get_stats(search)->damaged, 0);
			found += found_of(f->truth + (size_t) q * FIXTURE_K, results, n);
			/* Let some lists move between searches, and during them. */
			while (atomic_load(&r.done) < before + 20)
				sched_yield();
		}
	atomic_store(&r.stop, true);
	pthread_join(thread, NULL);
	assert_true(found >= 3 * want * 0.95);
	nv_search_free(search);
}

static void
test_relinked_meanwhile(void **state)
{
	check_relinked(&plain, 0, 4);
	check_relinked(&plain, 16 << 20, 4);
	check_relinked(&plain, 16 << 20, NV_MAX_BEAM);
}

/*
 * The page that arrives is spoilt, but the lists asked for have moved on: they
 * are looked up again where they are now, and nothing counts as damage.
 */
static void
test_moved_list_is_looked_up_again(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(60, 4);
	nv_search *search = new_search();
	nv_read reads[NV_SEARCH_MAX_READS];
	uint32_t n;
	nv_writer *writer;
	wild_driver wild = {.seed = nv_random_seed(5)};
	const nv_result *results;

	fixture_reopen(f, 0);
	CHECK(nv_writer_create(f->store, &writer, ERR));
	CHECK(nv_search_start(search, &f->view, &options, query_of(f, 0), f->buffer,
						  ERR));
	assert_int_equal(nv_search_step(search, reads, &n), NV_STEP_WAIT);
	assert_true(n == options.beam_width);
	for (uint32_t v = 0; v < f->n; v++)
	{
		uint64_t word = nv_store_edge_word(f->store, v);
		uint64_t first = f->graph.offset[v];

		for (uint32_t i = 0; i < n; i++)
			if (nv_word_page(word) * NV_PAGE == reads[i].offset)
			{
				CHECK(nv_store_relink(
					writer, v, word, f->graph.edges + first,
					(uint32_t) (f->graph.offset[v + 1] - first), ERR));
				break;
			}
	}
	for (uint32_t i = 0; i < n; i++)
	{
		memset(reads[i].buf, 0xee, reads[i].len);
		nv_search_arrived(search, reads[i].tag, (int32_t) reads[i].len);
	}
	assert_true(wild_run(&wild, f, search));
	assert_int_equal(nv_search_get_stats(search)->damaged, 0);
	n = nv_search_results(search, &results);
	check_results(f, query_of(f, 0), results, n);
	assert_true(found_of(f->truth, results, n) >= FIXTURE_K - 1);
	CHECK(nv_store_write_back(f->store, ERR));
	nv_writer_destroy(writer);
	nv_search_free(search);
}

static int
build_all(void **state)
{
	fixture_build(&plain, NV_METRIC_L2, 2000, 100, 15, 32);
	fixture_build(&wide, NV_METRIC_L2, 1100, FIXTURE_WIDE, 5, 16);
	CHECK(nv_ring_create(NV_IO_AUTO, NV_BLOCK, &ring, ERR));
	return 0;
}

static int
free_all(void **state)
{
	nv_ring_destroy(ring);
	fixture_free(&plain);
	fixture_free(&wide);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_damaged_edges),
		cmocka_unit_test(test_damaged_vectors),
		cmocka_unit_test(test_casr_passes_damage_over),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_failing_reads),
		cmocka_unit_test(test_cancelled_and_continued),
		cmocka_unit_test(test_epochs_are_given_back),
		cmocka_unit_test(test_no_epoch_left),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_moved_list_is_looked_up_again),
		cmocka_unit_test(test_relinked_meanwhile),
	};

	return cmocka_run_group_tests(tests, build_all, free_all);
}
