/*
 * test_stats.c
 *		Counters: each counts what was done, totals are the sums over indexes,
 *		and what an index that is gone has counted stays in them.
 */
#include "engine_fixture.h"

#define BASE 2400u
#define SEARCHES 20u

static int
setup_stats(void **state)
{
	return setup_linking(state, NV_METRIC_L2, ROWS);
}

static nv_req_totals
totals(fixture *f)
{
	begin(f, NV_REQ_TOTALS);
	assert_int_equal(call(f), NV_OK);
	return f->r->u.totals;
}

static void
insert_all(fixture *f)
{
	insert_some(f, BASE, f->n - BASE, 1);
	await_linked(f);
}

/* What searches answered, and what the index counted. */
static void
check_searches(fixture *f)
{
	nv_req_info before = *info(f), after;
	nv_search_stats sum = {0};

	for (uint32_t e = 0; e < SEARCHES; e++)
	{
		const nv_search_stats *s = &f->r->u.search.stats;

		assert_int_equal(search(f, f->rows + (size_t) e * DIM, 10, 60), NV_OK);
		sum.edge_pages += s->edge_pages;
		sum.cache_hits += s->cache_hits;
		sum.vectors += s->vectors;
		sum.pending += s->pending;
		sum.bytes += s->bytes;
	}
	after = *info(f);
	assert_int_equal(after.searches - before.searches, SEARCHES);
	assert_int_equal(after.search_pages - before.search_pages, sum.edge_pages);
	assert_int_equal(after.search_cached - before.search_cached,
					 sum.cache_hits);
	assert_int_equal(after.search_vectors - before.search_vectors, sum.vectors);
	assert_int_equal(after.search_pending - before.search_pending, sum.pending);
	assert_int_equal(after.search_bytes - before.search_bytes, sum.bytes);
	assert_true(sum.edge_pages > 0 && sum.vectors >= 10 * SEARCHES);
}

static void
test_counters(void **state)
{
	fixture *f = *state;
	nv_req_totals t, gone;
	nv_req_info i;

	assert_int_equal(totals(f).indexes, 0);
	build_first(f, BASE);
	check_searches(f);
	insert_all(f);
	checkpoint(f);
	check_searches(f);

	i = *info(f);
	assert_int_equal(i.inserted, f->n - BASE);
	assert_int_equal(i.seeks + i.inserted_equal, i.inserted);
	assert_true(i.seek_pages >= i.seek_cached && i.seek_cached > 0);
	assert_true(i.link_pages >= i.link_cached && i.link_pages > 0);
	assert_true(i.checkpoints >= 1 && i.checkpoint_failures == 0);
	assert_true(i.checkpoint_ns > 0 && i.checkpointed_at > 0);
	/* Every list written since the build is on a page that was written. */
	assert_true(i.pages_written >= i.page_writes && i.page_writes > 0);
	assert_int_equal(i.rmw_pages, 0);
	assert_true(i.search_observed > 0);

	t = totals(f);
	assert_int_equal(t.indexes, 1);
	assert_int_equal(t.search_threads, 2);
	assert_int_equal(t.insert_threads, 2);
	assert_int_equal(t.searches, i.searches);
	assert_int_equal(t.inserted, i.inserted);
	assert_int_equal(t.seeks, i.seeks);
	assert_int_equal(t.relinks, i.relinks);
	assert_int_equal(t.checkpoints, i.checkpoints);
	assert_int_equal(t.pages_written, i.pages_written);
	assert_int_equal(t.search_lookups + t.insert_lookups, i.cache_lookups);
	assert_int_equal(t.search_hits + t.insert_hits, i.cache_hits);
	assert_true(t.insert_lookups > 0 && t.search_lookups > 0);
	assert_true(t.memory > 0 && t.cache_pages > 0);

	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	gone = totals(f);
	assert_int_equal(gone.indexes, 0);
	assert_int_equal(gone.searches, t.searches);
	assert_int_equal(gone.inserted, t.inserted);
	assert_int_equal(gone.seeks, t.seeks);
	assert_int_equal(gone.checkpoints, t.checkpoints);
	/* The graph is closed by a job of its own. */
	for (int n = 0; n < 6000 && totals(f).pages_written < t.pages_written; n++)
		usleep(10000);
	assert_int_equal(totals(f).pages_written, t.pages_written);
	assert_int_equal(totals(f).page_writes, t.page_writes);
	assert_int_equal(totals(f).memory, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_counters, setup_stats, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
