/*
 * test_pool.c
 *		The candidate pool and the visited set of a search, against simple
 *		models.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pool.h"
#include "visited.h"

/* --- Ranks --- */

static void
test_rank_order(void **state)
{
	static const float dists[] = {
		-__builtin_inff(), -2.0f, -1e-40f, 0.0f, 1e-40f, 0.5f, 1.0f, 3e38f,
		__builtin_inff()};

	for (size_t i = 0; i + 1 < NV_LENGTH(dists); i++)
		assert_true(nv_rank_of(dists[i], UINT32_MAX) <
					nv_rank_of(dists[i + 1], 0));
	assert_true(nv_rank_of(1.0f, 4) < nv_rank_of(1.0f, 5));
	assert_int_equal(nv_rank_id(nv_rank_of(-7.0f, 123)), 123);
	assert_true(nv_rank_of(__builtin_nanf(""), 1) ==
				nv_rank_of(__builtin_inff(), 1));
	assert_true(nv_rank_of(-__builtin_nanf(""), 1) ==
				nv_rank_of(__builtin_inff(), 1));
}

/* --- Visited set --- */

#define IDS 20000

static void
test_visited(void **state)
{
	nv_visited set = {0};
	uint64_t seed = nv_random_seed(1);
	static bool model[IDS];

	for (int round = 0; round < 5; round++)
	{
		size_t count = 0;

		nv_visited_clear(&set);
		memset(model, 0, sizeof(model));
		for (int i = 0; i < 3 * IDS >> round; i++)
		{
			/* Spread over the whole range of ids. */
			uint32_t at = (uint32_t) nv_random_below(&seed, IDS);
			uint32_t id = UINT32_MAX - at * 200000;

			assert_true(nv_visited_reserve(&set, 1));
			assert_true(nv_visited_add(&set, id) == !model[at]);
			count += !model[at];
			model[at] = true;
		}
		assert_int_equal(set.count, count);
		assert_true(set.capacity >= 2 * set.count);
	}
	nv_visited_free(&set);
}

/* A stamp that comes round must not bring old ids back. */
static void
test_visited_stamp_wraps(void **state)
{
	nv_visited set = {0};

	nv_visited_clear(&set);
	assert_int_equal(set.stamp, 1);
	assert_true(nv_visited_reserve(&set, 1));
	assert_true(nv_visited_add(&set, 5));
	set.stamp = UINT32_MAX;
	nv_visited_clear(&set);
	assert_true(nv_visited_reserve(&set, 1));
	assert_true(nv_visited_add(&set, 5));
	assert_false(nv_visited_add(&set, 5));
	nv_visited_free(&set);
}

/* A huge table is not kept for the next, small search. */
static void
test_visited_shrinks(void **state)
{
	nv_visited set = {0};

	nv_visited_clear(&set);
	assert_true(nv_visited_reserve(&set, 1000000));
	nv_visited_clear(&set);
	assert_true(nv_visited_reserve(&set, 10));
	assert_true(set.capacity < 100000);
	assert_true(nv_visited_add(&set, 7));
	nv_visited_free(&set);
}

/* --- Pool --- */

typedef struct model_entry
{
	nv_rank rank;
	uint32_t page;
	bool explored;
} model_entry;

typedef struct model
{
	model_entry *entries; /* sorted */
	size_t n;
} model;

static uint32_t
page_of(uint32_t id)
{
	return id / 7;
}

static void
model_add(model *m, nv_rank rank)
{
	size_t at = m->n++;

	for (; at > 0 && m->entries[at - 1].rank > rank; at--)
		m->entries[at] = m->entries[at - 1];
	m->entries[at] =
		(model_entry){.rank = rank, .page = page_of(nv_rank_id(rank))};
}

static model_entry *
model_first(model *m, uint32_t frontier)
{
	for (size_t i = 0; i < m->n && i < frontier; i++)
		if (!m->entries[i].explored)
			return &m->entries[i];
	return NULL;
}

/* Unexplored entries of a page within the frontier. */
static uint32_t
model_on_page(model *m, uint32_t frontier, uint32_t page)
{
	uint32_t n = 0;

	for (size_t i = 0; i < m->n && i < frontier; i++)
		n += !m->entries[i].explored && m->entries[i].page == page;
	return n;
}

static void
model_explore(model *m, nv_rank rank)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].rank == rank)
		{
			assert_false(m->entries[i].explored);
			m->entries[i].explored = true;
			return;
		}
	fail_msg("a candidate that was never offered");
}

static void
open_all(nv_cand_pool *pool, const nv_rank *ranks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		nv_cand_pool_add(pool, ranks[i], page_of(nv_rank_id(ranks[i])));
}

static void
offer_batch(nv_cand_pool *pool, model *m, uint64_t *seed, uint32_t *next_id)
{
	uint32_t ids[64];
	float dists[64];
	nv_rank entered[64];
	uint32_t n = (uint32_t) nv_random_below(seed, NV_LENGTH(ids) + 1);

	assert_true(nv_cand_pool_reserve(pool, n));
	for (uint32_t i = 0; i < n; i++)
	{
		ids[i] = (*next_id)++;
		/* Few distances, so that ties are common. */
		dists[i] = (float) nv_random_below(seed, 500);
		model_add(m, nv_rank_of(dists[i], ids[i]));
	}
	open_all(pool, entered, nv_cand_pool_offer(pool, ids, dists, n, entered));
}

/* Explores a popped node and, sometimes, what else lies on its page. */
static void
explore_page(nv_cand_pool *pool, model *m, uint32_t node, bool whole)
{
	uint32_t page = pool->nodes[node].page;
	uint32_t next, found = 0;
	uint32_t want = model_on_page(m, pool->frontier, page);

	nv_cand_pool_set_explored(pool, node);
	model_explore(m, pool->nodes[node].rank);
	if (!whole)
		return;
	next = nv_cand_pool_take_chain(pool, page);
	while (next != NV_CAND_NONE)
	{
		uint32_t other = next;

		next = pool->nodes[other].next;
		if (pool->nodes[other].explored)
			continue;
		if (nv_cand_pool_within(pool, pool->nodes[other].rank))
		{
			nv_cand_pool_set_explored(pool, other);
			model_explore(m, pool->nodes[other].rank);
			found++;
		}
		else
			nv_cand_pool_chain(pool, other, page);
	}
	assert_int_equal(found + 1, want);
}

/* A list that was rewritten elsewhere. */
static void
move_node(nv_cand_pool *pool, model *m, uint32_t node, uint64_t *seed)
{
	uint32_t page = (uint32_t) nv_random_below(seed, 50);

	nv_cand_pool_move(pool, node, page);
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].rank == pool->nodes[node].rank)
			m->entries[i].page = page;
	nv_cand_pool_push_back(pool, node);
}

static void
widen(nv_cand_pool *pool, uint32_t frontier)
{
	nv_rank entered[16];
	uint32_t n;

	assert_true(nv_cand_pool_widen(pool, frontier));
	do
	{
		assert_true(nv_cand_pool_reserve(pool, NV_LENGTH(entered)));
		n = nv_cand_pool_reseat(pool, entered, NV_LENGTH(entered));
		open_all(pool, entered, n);
	} while (n > 0);
}

static void
pool_against_model(nv_cand_pool *pool, model *m, uint64_t *seed)
{
	uint32_t frontier = 1 + (uint32_t) nv_random_below(seed, 60);
	uint32_t next_id = 0;

	m->n = 0;
	nv_cand_pool_clear(pool, frontier);
	for (int step = 0; step < 400; step++)
	{
		model_entry *first = model_first(m, frontier);
		uint64_t dice = nv_random_below(seed, 10);
		uint32_t node;

		if (dice < 2)
		{
			offer_batch(pool, m, seed, &next_id);
			continue;
		}
		if (dice == 2 && nv_random_below(seed, 8) == 0)
		{
			frontier += (uint32_t) nv_random_below(seed, 100);
			widen(pool, frontier);
			continue;
		}
		node = nv_cand_pool_pop(pool);
		assert_true((node == NV_CAND_NONE) == (first == NULL));
		if (first == NULL)
			continue;
		assert_true(pool->nodes[node].rank == first->rank);
		assert_int_equal(pool->nodes[node].page, first->page);
		if (dice == 3)
			nv_cand_pool_push_back(pool, node);
		else if (dice == 4)
			move_node(pool, m, node, seed);
		else
			explore_page(pool, m, node, dice > 6);
		assert_true(nv_cand_pool_drained(pool) ==
					(model_first(m, UINT32_MAX) == NULL));
	}
}

static void
test_pool(void **state)
{
	nv_cand_pool pool = {0};
	model m = {.entries = nv_alloc_array(64 * 400, sizeof(model_entry))};
	uint64_t seed = nv_random_seed(2);

	assert_non_null(m.entries);
	for (int round = 0; round < 60; round++)
		pool_against_model(&pool, &m, &seed);
	assert_true(nv_cand_pool_memory(&pool) > 0);
	nv_cand_pool_free(&pool);
	free(m.entries);
}

/*
 * A frontier of half a million, filled, drained, and filled again: with a cost
 * that grows with the frontier this would not end.
 */
static void
test_pool_large(void **state)
{
	const uint32_t n = 500000, batch = 100;
	nv_cand_pool pool = {0};
	uint64_t seed = nv_random_seed(3);
	uint32_t popped = 0;
	nv_rank last = 0;

	nv_cand_pool_clear(&pool, n);
	for (uint32_t i = 0; i < n; i += batch)
	{
		uint32_t ids[100];
		float dists[100];
		nv_rank entered[100];

		for (uint32_t j = 0; j < batch; j++)
		{
			ids[j] = i + j;
			dists[j] = (float) nv_random_below(&seed, 1 << 20);
		}
		assert_true(nv_cand_pool_reserve(&pool, batch));
		open_all(&pool, entered,
				 nv_cand_pool_offer(&pool, ids, dists, batch, entered));
	}
	for (;;)
	{
		uint32_t node = nv_cand_pool_pop(&pool);

		if (node == NV_CAND_NONE)
			break;
		assert_true(popped == 0 || pool.nodes[node].rank > last);
		last = pool.nodes[node].rank;
		nv_cand_pool_set_explored(&pool, node);
		popped++;
	}
	assert_int_equal(popped, n);
	assert_true(nv_cand_pool_drained(&pool));
	/* The next, small search does not keep the memory of this one. */
	nv_cand_pool_clear(&pool, 40);
	assert_true(nv_cand_pool_memory(&pool) < 4 << 20);
	nv_cand_pool_free(&pool);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rank_order),
		cmocka_unit_test(test_visited),
		cmocka_unit_test(test_visited_stamp_wraps),
		cmocka_unit_test(test_visited_shrinks),
		cmocka_unit_test(test_pool),
		cmocka_unit_test(test_pool_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
