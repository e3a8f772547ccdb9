/*
 * test_search.c
 *		Traversal and rerank on small indexes built end to end: recall, exact
 *		distances, CASR's loads, resumption, exhaustion, deletion.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "search_fixture.h"

/* Dimensions of a record within a sector, of one, and of several pages. */
static fixture tiny, plain, cosine, product, wide;
static nv_ring *ring_sync, *ring_uring; /* the latter where there is one */
static nv_ring *ring;                   /* one of them */

static double
recall_of(fixture *f, const nv_search_options *options, nv_ring *on)
{
	nv_search *search = new_search();
	const nv_result *results;
	uint32_t found = 0;

	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		uint32_t n = run_on(f, search, options, query_of(f, q), on, &results);

		assert_int_equal(n, options->k);
		assert_true(nv_search_get_stats(search)->damaged == 0);
		found += found_of(f->truth + (size_t) q * FIXTURE_K, results, n);
	}
	nv_search_free(search);
	return (double) found / (f->n_queries * FIXTURE_K);
}

/* --- Recall and exact distances --- */

static void
check_recall(fixture *f, double bound)
{
	static const uint32_t widths[] = {1, 4, NV_MAX_BEAM};

	for (size_t w = 0; w < NV_LENGTH(widths); w++)
	{
		nv_search_options options = usual_options(100, widths[w]);
		double recall = recall_of(f, &options, ring);

		if (recall < bound)
			fail_msg("recall %.3f at width %u, expected %.3f", recall,
					 widths[w], bound);
		options.from_medoid = true;
		recall = recall_of(f, &options, ring);
		if (recall < bound - 0.02)
			fail_msg("recall %.3f from the medoid at width %u", recall,
					 widths[w]);
	}
}

static void
test_recall(void **state)
{
	check_recall(&tiny, 0.99);
	check_recall(&plain, 0.97);
	check_recall(&cosine, 0.97);
	check_recall(&product, 0.90);
	check_recall(&wide, 0.95);
}

/* Everything about a search that must not depend on how its reads are done. */
typedef struct outcome
{
	uint32_t n;
	nv_result results[FIXTURE_K];
	nv_search_stats stats;
} outcome;

static outcome
outcome_of(fixture *f, nv_search *search, const float *query)
{
	outcome out = {.stats = *nv_search_get_stats(search)};
	const nv_result *results;

	out.n = nv_search_results(search, &results);
	assert_true(out.n <= FIXTURE_K);
	check_results(f, query, results, out.n);
	memcpy(out.results, results, out.n * sizeof(*results));
	return out;
}

static void
assert_same_outcome(const outcome *a, const outcome *b)
{
	assert_int_equal(a->n, b->n);
	for (uint32_t i = 0; i < a->n; i++)
	{
		assert_int_equal(a->results[i].vertex, b->results[i].vertex);
		assert_true(a->results[i].distance == b->results[i].distance);
	}
	assert_int_equal(a->stats.hops, b->stats.hops);
	assert_int_equal(a->stats.explored, b->stats.explored);
	assert_int_equal(a->stats.edge_pages, b->stats.edge_pages);
	assert_int_equal(a->stats.vectors, b->stats.vectors);
	assert_int_equal(a->stats.batches, b->stats.batches);
	assert_int_equal(a->stats.edge_pages,
					 a->stats.edge_reads + a->stats.cache_hits);
	assert_int_equal(b->stats.edge_pages,
					 b->stats.edge_reads + b->stats.cache_hits);
	assert_true(a->stats.damaged == 0 && b->stats.damaged == 0);
}

/* Both I/O methods, any order of arrivals, cache or none: the same search. */
static void
check_same_everywhere(fixture *f, uint32_t width)
{
	nv_search_options options = usual_options(40, width);
	nv_search *search = new_search();
	wild_driver wild = {.seed = nv_random_seed(width)};
	outcome want[4], got;
	uint32_t n = NV_MIN(f->n_queries, NV_LENGTH(want));
	const nv_result *results;
	uint64_t hits = 0;

	options.window = 5;
	fixture_reopen(f, 0);
	for (uint32_t q = 0; q < n; q++)
	{
		run_on(f, search, &options, query_of(f, q), ring_sync, &results);
		want[q] = outcome_of(f, search, query_of(f, q));
		assert_true(want[q].stats.cache_hits == 0);
		assert_true(want[q].stats.bytes >=
					want[q].stats.edge_reads * NV_PAGE +
						want[q].stats.vectors * f->dim * 4);
		CHECK(nv_search_start(search, &f->view, &options, query_of(f, q),
							  f->buffer, ERR));
		assert_true(wild_run(&wild, f, search));
		got = outcome_of(f, search, query_of(f, q));
		assert_same_outcome(&want[q], &got);
		if (ring_uring == NULL)
			continue;
		run_on(f, search, &options, query_of(f, q), ring_uring, &results);
		got = outcome_of(f, search, query_of(f, q));
		assert_same_outcome(&want[q], &got);
	}
	fixture_reopen(f, 64 << 20);
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t q = 0; q < n; q++)
		{
			run_on(f, search, &options, query_of(f, q), ring_sync, &results);
			got = outcome_of(f, search, query_of(f, q));
			assert_same_outcome(&want[q], &got);
			hits += got.stats.cache_hits;
			/* What the first round read is in the cache. */
			assert_true(round == 0 || got.stats.edge_reads == 0);
		}
	assert_true(hits > 0);
	fixture_reopen(f, 0);
	nv_search_free(search);
}

static void
test_same_everywhere(void **state)
{
	static const uint32_t widths[] = {1, 4, NV_MAX_BEAM};

	for (size_t w = 0; w < NV_LENGTH(widths); w++)
	{
		check_same_everywhere(&tiny, widths[w]);
		check_same_everywhere(&plain, widths[w]);
		check_same_everywhere(&product, widths[w]);
		check_same_everywhere(&wide, widths[w]);
	}
}

/* Using all of a page that was read must pay: that is what placement is for. */
static void
test_page_search_saves_reads(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(60, 4);
	nv_search *search = new_search();
	const nv_result *results;
	uint64_t pages[2] = {0}, explored[2] = {0}, hops[2] = {0};

	for (uint32_t q = 0; q < f->n_queries; q++)
		for (int single = 0; single < 2; single++)
		{
			const nv_search_stats *stats = nv_search_get_stats(search);

			options.single_lists = single == 1;
			run_on(f, search, &options, query_of(f, q), ring, &results);
			pages[single] += stats->edge_pages;
			explored[single] += stats->explored;
			hops[single] += stats->hops;
			/* Alone, every list costs a page. */
			if (single == 1)
				assert_int_equal(stats->edge_pages, stats->explored);
		}
	assert_true(pages[0] * 4 < pages[1] * 3);
	assert_true(hops[0] < hops[1]);
	assert_true(explored[0] * 2 > explored[1]);
	nv_search_free(search);
}

/* --- CASR --- */

static void
check_casr(fixture *f, uint32_t k, uint32_t w)
{
	nv_search_options options = usual_options(60, 4);
	nv_search *search = new_search();
	ranked *order = nv_alloc_array(f->n, sizeof(*order));
	const nv_result *results;

	assert_non_null(order);
	options.k = k;
	options.window = w;
	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		const nv_search_stats *stats = nv_search_get_stats(search);
		const float *query = query_of(f, q);
		uint32_t n, want, gap;

		memset(f->asked, 0, (size_t) f->n * 4);
		run_on(f, search, &options, query, ring, &results);
		n = explored_in_order(f, query, order);
		assert_int_equal(n, stats->explored);
		want = loads_by_hand(f, query, order, n, k, w, &gap);
		assert_int_equal(stats->vectors, want);
		if (w == NV_CASR_ALL)
		{
			assert_int_equal(want, n);
			assert_int_equal(nv_search_smallest_window(search), gap);
			assert_int_equal(stats->batches, 1);
		}
	}
	free(order);
	nv_search_free(search);
}

static void
test_casr_loads(void **state)
{
	static const uint32_t windows[] = {1, 2, 5, 20, NV_CASR_ALL};

	for (size_t i = 0; i < NV_LENGTH(windows); i++)
	{
		check_casr(&plain, FIXTURE_K, windows[i]);
		check_casr(&plain, 1, windows[i]);
		check_casr(&wide, 5, windows[i]);
		check_casr(&tiny, FIXTURE_K, windows[i]);
	}
}

/* --- Going on --- */

/*
 * One list a page and one page a hop: candidates are explored strictly in
 * order, and the frontier only says when to stop.  So a search in two rounds
 * does exactly what one search with the final frontier does.
 */
static void
test_resumed_equals_single(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(15, 1);
	nv_search *search = new_search();
	const nv_result *results;

	options.single_lists = true;
	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		const float *query = query_of(f, q);
		outcome whole, parts;

		options.list_size = 90;
		run_on(f, search, &options, query, ring, &results);
		whole = outcome_of(f, search, query);
		options.list_size = 15;
		run_on(f, search, &options, query, ring, &results);
		for (uint32_t list = 30; list <= 90; list += 30)
		{
			assert_false(nv_search_exhausted(search));
			CHECK(nv_search_more(search, FIXTURE_K, list, NV_CASR_ALL,
								 f->buffer, ERR));
			assert_int_equal(nv_search_run(search, ring), NV_OK);
		}
		parts = outcome_of(f, search, query);
		/* One batch a round. */
		assert_true(parts.stats.batches > 1);
		parts.stats.batches = whole.stats.batches;
		assert_same_outcome(&whole, &parts);
	}
	nv_search_free(search);
}

/* Any width and whole pages: nothing twice, and as good as one search. */
static void
check_resumed(fixture *f, uint32_t width, uint32_t window)
{
	nv_search_options options = usual_options(10, width);
	nv_search *search = new_search();
	uint32_t found = 0, found_whole = 0;

	options.window = window;
	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		const float *query = query_of(f, q);
		const uint32_t *truth = f->truth + (size_t) q * FIXTURE_K;
		const nv_search_stats *stats = nv_search_get_stats(search);
		const nv_result *results;
		uint32_t n, explored = 0;

		options.list_size = 100;
		n = run_on(f, search, &options, query, ring, &results);
		found_whole += found_of(truth, results, n);
		options.list_size = 10;
		memset(f->asked, 0, (size_t) f->n * 4);
		run_on(f, search, &options, query, ring, &results);
		CHECK(nv_search_more(search, 20, 50, window, f->buffer, ERR));
		assert_int_equal(nv_search_run(search, ring), NV_OK);
		CHECK(nv_search_more(search, 20, 100, window, f->buffer, ERR));
		assert_int_equal(nv_search_run(search, ring), NV_OK);
		n = nv_search_results(search, &results);
		assert_int_equal(n, 20);
		check_results(f, query, results, n);
		found += found_of(truth, results, n);
		for (uint32_t i = 0; i < f->n; i++)
			explored += f->asked[i] > 0;
		assert_int_equal(stats->explored, explored);
		if (window == NV_CASR_ALL)
			assert_int_equal(stats->vectors, explored);
		else
			assert_true(stats->vectors < explored);
	}
	assert_true(found + found_whole / 50 >= found_whole);
	nv_search_free(search);
}

static void
test_resumed_reads_nothing_again(void **state)
{
	check_resumed(&plain, 1, NV_CASR_ALL);
	check_resumed(&plain, 4, NV_CASR_ALL);
	check_resumed(&plain, 4, 4);
	check_resumed(&tiny, NV_MAX_BEAM, NV_CASR_ALL);
	check_resumed(&wide, 4, 4);
}

/* Vertices that edges lead to from the medoid. */
static uint32_t
reachable(const fixture *f, bool *reached)
{
	uint32_t *queue = nv_alloc_array(f->n, sizeof(*queue));
	uint32_t head = 0, tail = 0;

	memset(reached, 0, f->n);
	queue[tail++] = f->graph.medoid;
	reached[f->graph.medoid] = true;
	while (head < tail)
	{
		uint32_t v = queue[head++];

		for (uint64_t e = f->graph.offset[v]; e < f->graph.offset[v + 1]; e++)
			if (!reached[f->graph.edges[e]])
			{
				reached[f->graph.edges[e]] = true;
				queue[tail++] = f->graph.edges[e];
			}
	}
	free(queue);
	return tail;
}

/* Everything reachable comes, once, whether asked for in rounds or at once. */
static void
check_exhaustive(fixture *f, uint32_t first_list, uint32_t factor,
				 bool single_lists)
{
	nv_search_options options = usual_options(first_list, 4);
	nv_search *search = new_search();
	bool *reached = nv_alloc(f->n);
	uint32_t n_reached = reachable(f, reached);
	const nv_result *results;
	uint32_t n, list = first_list;

	options.from_medoid = true;
	options.single_lists = single_lists;
	options.k = first_list;
	n = run_on(f, search, &options, query_of(f, 0), ring, &results);
	while (!nv_search_exhausted(search))
	{
		assert_int_equal(n, NV_MIN(list, f->n));
		assert_true(list < 2 * f->n);
		list *= factor;
		CHECK(nv_search_more(search, list, list, NV_CASR_ALL, f->buffer, ERR));
		assert_int_equal(nv_search_run(search, ring), NV_OK);
		n = nv_search_results(search, &results);
	}
	assert_int_equal(n, n_reached);
	check_results(f, query_of(f, 0), results, n);
	for (uint32_t i = 0; i < n; i++)
	{
		assert_true(reached[results[i].vertex]);
		reached[results[i].vertex] = false;
	}
	assert_int_equal(nv_search_get_stats(search)->explored, n_reached);
	assert_int_equal(nv_search_get_stats(search)->vectors, n_reached);
	assert_true(nv_search_memory(search) > n_reached * sizeof(nv_result));
	free(reached);
	nv_search_free(search);
}

static void
test_exhaustive(void **state)
{
	check_exhaustive(&plain, 10, 3, false);
	check_exhaustive(&plain, 10, 5, true);
	check_exhaustive(&plain, plain.n, 2, false);
	check_exhaustive(&tiny, 100, 2, false);
	check_exhaustive(&wide, 50, 4, false);
}

/* --- Deleted and excluded vertices --- */

static void
test_deleted(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(150, 4);
	nv_search *search = new_search();
	uint64_t seed = nv_random_seed(9);
	uint32_t found = 0;

	for (uint32_t i = 0; i < f->n; i++)
		f->dead[i] = nv_random_below(&seed, 2) == 0;
	for (uint32_t q = 0; q < f->n_queries; q++)
	{
		const nv_search_stats *stats = nv_search_get_stats(search);
		const nv_result *results;
		uint32_t truth[FIXTURE_K];
		uint32_t n;

		brute_force(f, query_of(f, q), truth);
		/* check_results refuses dead ones. */
		n = run_on(f, search, &options, query_of(f, q), ring, &results);
		found += found_of(truth, results, n);
		/* Traversed, but not loaded. */
		assert_true(stats->vectors < stats->explored);
		assert_true(stats->explored >= options.list_size);
	}
	assert_true(found >= 0.97 * f->n_queries * FIXTURE_K);
	memset(f->dead, 0, f->n);
	nv_search_free(search);
}

/* Deleted between two rounds: no longer reported, though it was loaded. */
static void
test_deleted_between_rounds(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(50, 4);
	nv_search *search = new_search();
	const nv_result *results;
	uint32_t first, n;

	run_on(f, search, &options, query_of(f, 0), ring, &results);
	first = results[0].vertex;
	f->dead[first] = true;
	CHECK(nv_search_more(search, FIXTURE_K, 60, NV_CASR_ALL, f->buffer, ERR));
	assert_int_equal(nv_search_run(search, ring), NV_OK);
	n = nv_search_results(search, &results);
	assert_int_equal(n, FIXTURE_K);
	check_results(f, query_of(f, 0), results, n);
	f->dead[first] = false;
	nv_search_free(search);
}

static void
test_exclude(void **state)
{
	fixture *f = &cosine;
	nv_search_options options = usual_options(50, 4);
	nv_search *search = new_search();
	const nv_result *results;

	for (uint32_t i = 0; i < 20; i++)
	{
		const float *row = f->rows + (size_t) i * f->dim;
		uint32_t n;

		options.exclude = NV_NO_VERTEX;
		run_on(f, search, &options, row, ring, &results);
		assert_int_equal(results[0].vertex, i);
		options.exclude = i;
		n = run_on(f, search, &options, row, ring, &results);
		assert_int_equal(n, FIXTURE_K);
		for (uint32_t r = 0; r < n; r++)
			assert_true(results[r].vertex != i);
		assert_int_equal(nv_search_get_stats(search)->vectors + 1,
						 nv_search_get_stats(search)->explored);
	}
	nv_search_free(search);
}

/* --- Position seeking --- */

/* What was met: lists as they are stored, vectors and distances of both kinds.
 */
static void
check_met(const fixture *f, const nv_search *search)
{
	uint32_t gdim = f->gspace.gdim, vectors = 0;
	float *mapped = nv_alloc(gdim * sizeof(float));
	float *table = nv_alloc(nv_pq_table_size(f->pq) * sizeof(float));

	nv_pq_table(f->pq, nv_search_mapped(search), table);
	for (uint32_t i = 0; i < nv_search_n_met(search); i++)
	{
		nv_met m = nv_search_met(search, i);
		const uint32_t *list = f->graph.edges + f->graph.offset[m.vertex];
		uint32_t degree = (uint32_t) (f->graph.offset[m.vertex + 1] -
									  f->graph.offset[m.vertex]);
		const uint8_t *code =
			f->codes + (size_t) m.vertex * nv_pq_stride(f->pq);
		float code_dist;

		assert_non_null(m.list);
		assert_true(m.word == nv_store_edge_word(f->store, m.vertex));
		assert_int_equal(m.degree, degree);
		assert_memory_equal(m.list, list, degree * sizeof(*list));
		nv_adc_scan(table, nv_pq_bytes(f->pq), &code, 1, &code_dist);
		assert_true(m.code_dist == code_dist);
		if (m.vector == NULL)
			assert_true(m.dist == m.code_dist);
		else
		{
			nv_gspace_row(&f->gspace, f->rows + (size_t) m.vertex * f->dim,
						  mapped);
			assert_memory_equal(m.vector, mapped, gdim * sizeof(float));
			assert_true(m.dist ==
						nv_l2sq(nv_search_mapped(search), mapped, gdim));
			vectors++;
		}
	}
	assert_int_equal(vectors, nv_search_get_stats(search)->vectors);
	free(mapped);
	free(table);
}

static void
test_seek(void **state)
{
	fixture *fixtures[] = {&plain, &cosine, &wide};
	nv_search_options options = usual_options(50, 4);
	nv_search *search = new_search();
	const nv_result *results;

	options.window = 5;
	for (size_t i = 0; i < NV_LENGTH(fixtures); i++)
		for (uint32_t q = 0; q < 6; q++)
		{
			fixture *f = fixtures[i];

			options.seek = true;
			CHECK(nv_search_start(search, &f->view, &options, query_of(f, q),
								  f->buffer, ERR));
			assert_int_equal(nv_search_run(search, ring), NV_OK);
			assert_true(nv_search_n_met(search) >= options.list_size);
			assert_true(nv_search_get_stats(search)->vectors <
						nv_search_n_met(search));
			check_met(f, search);
			/* Others do not pay for it. */
			options.seek = false;
			run_on(f, search, &options, query_of(f, q), ring, &results);
			assert_null(nv_search_met(search, 0).list);
		}
	nv_search_free(search);
}

/* --- Limits of the arguments --- */

static void
test_options(void **state)
{
	fixture *f = &plain;
	nv_search *search = new_search();
	nv_search_options bad[5];
	nv_view view = f->view;
	nv_error err;

	for (size_t i = 0; i < NV_LENGTH(bad); i++)
		bad[i] = usual_options(40, 4);
	bad[0].k = 0;
	bad[1].beam_width = 0;
	bad[2].beam_width = NV_MAX_BEAM + 1;
	bad[3].entrance_list = 0;
	bad[4].entrance_list = NV_ENTRANCE_MAX_LIST + 1;
	assert_int_equal(nv_search_more(search, 10, 10, 1, f->buffer, &err),
					 NV_EINVAL);
	for (size_t i = 0; i < NV_LENGTH(bad); i++)
		assert_int_equal(nv_search_start(search, &f->view, &bad[i],
										 query_of(f, 0), f->buffer, &err),
						 NV_EINVAL);
	view.gspace.dim++;
	bad[0] = usual_options(40, 4);
	assert_int_equal(nv_search_start(search, &view, &bad[0], query_of(f, 0),
									 f->buffer, &err),
					 NV_EINVAL);
	nv_search_free(search);
}

/* k above the frontier, the frontier above the index, one seed only. */
static void
test_extremes(void **state)
{
	fixture *f = &plain;
	nv_search_options options = usual_options(1, 4);
	nv_search *search = new_search();
	const nv_result *results;
	uint32_t n;

	options.k = 300;
	options.window = 0;
	options.entrance_list = 1;
	n = run_on(f, search, &options, query_of(f, 0), ring, &results);
	assert_int_equal(n, 300);
	options.k = 1;
	n = run_on(f, search, &options, query_of(f, 1), ring, &results);
	assert_int_equal(n, 1);
	assert_int_equal(nv_search_get_stats(search)->vectors, 1);
	options.list_size = UINT32_MAX;
	options.window = NV_CASR_ALL;
	n = run_on(f, search, &options, query_of(f, 2), ring, &results);
	assert_int_equal(n, 1);
	assert_int_equal(results[0].vertex, f->truth[2 * FIXTURE_K]);
	assert_true(nv_search_exhausted(search));
	options.k = UINT32_MAX / 1024;
	n = run_on(f, search, &options, query_of(f, 2), ring, &results);
	assert_true(n > f->n * 9 / 10);
	nv_search_free(search);
}

static int
build_all(void **state)
{
	fixture_build(&tiny, NV_METRIC_L2, 2000, 3, 20, 16);
	fixture_build(&plain, NV_METRIC_L2, 2500, 100, 20, 32);
	fixture_build(&cosine, NV_METRIC_COSINE, 1500, 100, 15, 32);
	fixture_build(&product, NV_METRIC_IP, 1500, 100, 15, 32);
	fixture_build(&wide, NV_METRIC_L2, 1100, FIXTURE_WIDE, 6, 16);
	CHECK(nv_ring_create(NV_IO_SYNC, NV_BLOCK, &ring_sync, ERR));
	if (nv_ring_create(NV_IO_URING, NV_BLOCK, &ring_uring, NULL) != NV_OK)
	{
		print_message("io_uring is not to be had: not tested\n");
		ring_uring = NULL;
	}
	ring = ring_uring != NULL ? ring_uring : ring_sync;
	return 0;
}

static int
free_all(void **state)
{
	nv_ring_destroy(ring_sync);
	nv_ring_destroy(ring_uring);
	fixture_free(&tiny);
	fixture_free(&plain);
	fixture_free(&cosine);
	fixture_free(&product);
	fixture_free(&wide);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_recall),
		cmocka_unit_test(test_same_everywhere),
		cmocka_unit_test(test_page_search_saves_reads),
		cmocka_unit_test(test_casr_loads),
		cmocka_unit_test(test_resumed_equals_single),
		cmocka_unit_test(test_resumed_reads_nothing_again),
		cmocka_unit_test(test_exhaustive),
		cmocka_unit_test(test_deleted),
		cmocka_unit_test(test_deleted_between_rounds),
		cmocka_unit_test(test_exclude),
		cmocka_unit_test(test_seek),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_extremes),
	};

	return cmocka_run_group_tests(tests, build_all, free_all);
}
