/*
 * pool.c
 *		Heaps, overflow and page chains of the candidate pool.
 */
#include "pool.h"

#define FIRST_PAGES 256
/* Arrays longer than this are given back when another search begins. */
#define KEPT_ENTRIES (64 * 1024)

bool
nv_grow(void *array, size_t *capacity, size_t need, size_t size)
{
	void *old;
	void *bigger;
	size_t wanted, bytes;

	if (need <= *capacity)
		return true;
	wanted = NV_MAX(need, *capacity + *capacity / 2);
	wanted = NV_MAX(wanted, 64);
	if (__builtin_mul_overflow(wanted, size, &bytes))
		return false;
	memcpy(&old, array, sizeof(old));
	bigger = realloc(old, bytes);
	if (bigger == NULL)
		return false;
	memcpy(array, &bigger, sizeof(bigger));
	*capacity = wanted;
	return true;
}

void
nv_cand_pool_free(nv_cand_pool *pool)
{
	free(pool->best);
	free(pool->nodes);
	free(pool->open);
	free(pool->overflow);
	free(pool->pages);
	memset(pool, 0, sizeof(*pool));
}

void
nv_cand_pool_clear(nv_cand_pool *pool, uint32_t frontier)
{
	if (pool->cap_nodes > KEPT_ENTRIES || pool->cap_overflow > KEPT_ENTRIES ||
		pool->cap_pages > KEPT_ENTRIES)
		nv_cand_pool_free(pool);
	pool->frontier = frontier;
	pool->unexplored_nodes = 0;
	pool->n_best = pool->n_nodes = pool->n_open = 0;
	pool->n_overflow = pool->reseat_from = pool->n_pages = 0;
	pool->stamp++;
	if (pool->stamp == 0)
	{
		if (pool->pages != NULL)
			memset(pool->pages, 0, pool->cap_pages * sizeof(*pool->pages));
		pool->stamp = 1;
	}
}

size_t
nv_cand_pool_memory(const nv_cand_pool *pool)
{
	return pool->cap_best * sizeof(*pool->best) +
		   pool->cap_nodes * sizeof(*pool->nodes) +
		   pool->cap_open * sizeof(*pool->open) +
		   pool->cap_overflow * sizeof(*pool->overflow) +
		   pool->cap_pages * sizeof(*pool->pages);
}

/* --- The chains of the pages --- */

/* The entry of a page, or the free one where it belongs. */
static nv_cand_page *
page_entry(const nv_cand_pool *pool, uint32_t page)
{
	uint64_t hash = page * UINT64_C(0x9e3779b97f4a7c15);
	size_t i = (size_t) (hash >> 32) & (pool->cap_pages - 1);

	while (pool->pages[i].stamp == pool->stamp && pool->pages[i].page != page)
		i = (i + 1) & (pool->cap_pages - 1);
	return &pool->pages[i];
}

static bool
reserve_pages(nv_cand_pool *pool, size_t extra)
{
	nv_cand_pool old = *pool;
	size_t capacity = NV_MAX(pool->cap_pages, FIRST_PAGES);

	while (capacity / 2 < pool->n_pages + extra)
		capacity *= 2;
	if (capacity == pool->cap_pages)
		return true;
	pool->pages = nv_alloc_array(capacity, sizeof(*pool->pages));
	if (pool->pages == NULL)
	{
		pool->pages = old.pages;
		return false;
	}
	pool->cap_pages = capacity;
	for (size_t i = 0; i < old.cap_pages; i++)
		if (old.pages[i].stamp == pool->stamp)
			*page_entry(pool, old.pages[i].page) = old.pages[i];
	free(old.pages);
	return true;
}

void
nv_cand_pool_chain(nv_cand_pool *pool, uint32_t node, uint32_t page)
{
	nv_cand_page *entry = page_entry(pool, page);

	if (entry->stamp != pool->stamp)
	{
		*entry = (nv_cand_page){
			.page = page, .stamp = pool->stamp, .head = NV_CAND_NONE};
		pool->n_pages++;
	}
	pool->nodes[node].page = page;
	pool->nodes[node].next = entry->head;
	entry->head = node;
}

uint32_t
nv_cand_pool_take_chain(nv_cand_pool *pool, uint32_t page)
{
	nv_cand_page *entry = page_entry(pool, page);
	uint32_t head;

	if (entry->stamp != pool->stamp)
		return NV_CAND_NONE;
	head = entry->head;
	entry->head = NV_CAND_NONE;
	return head;
}

void
nv_cand_pool_move(nv_cand_pool *pool, uint32_t node, uint32_t page)
{
	uint32_t *link = &page_entry(pool, pool->nodes[node].page)->head;

	while (*link != node)
	{
		nv_assert(*link != NV_CAND_NONE);
		link = &pool->nodes[*link].next;
	}
	*link = pool->nodes[node].next;
	nv_cand_pool_chain(pool, node, page);
}

/* --- The heaps --- */

/* Puts a rank into the hole at i of the frontier's heap (farthest on top). */
static void
best_sift_down(nv_cand_pool *pool, size_t i, nv_rank rank)
{
	for (;;)
	{
		size_t child = 2 * i + 1;

		if (child >= pool->n_best)
			break;
		if (child + 1 < pool->n_best &&
			pool->best[child + 1] > pool->best[child])
			child++;
		if (pool->best[child] <= rank)
			break;
		pool->best[i] = pool->best[child];
		i = child;
	}
	pool->best[i] = rank;
}

/* True when the rank is one of the best `frontier` seen. */
static bool
best_offer(nv_cand_pool *pool, nv_rank rank)
{
	size_t i;

	if (pool->n_best == pool->frontier)
	{
		if (rank >= pool->best[0])
			return false;
		best_sift_down(pool, 0, rank);
		return true;
	}
	i = pool->n_best++;
	while (i > 0 && pool->best[(i - 1) / 2] < rank)
	{
		pool->best[i] = pool->best[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	pool->best[i] = rank;
	return true;
}

static void
open_push(nv_cand_pool *pool, nv_cand_open entry)
{
	size_t i = pool->n_open++;

	nv_assert(i < pool->cap_open);
	while (i > 0 && pool->open[(i - 1) / 2].rank > entry.rank)
	{
		pool->open[i] = pool->open[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	pool->open[i] = entry;
}

static void
open_remove_top(nv_cand_pool *pool)
{
	nv_cand_open last = pool->open[--pool->n_open];
	size_t i = 0;

	for (;;)
	{
		size_t child = 2 * i + 1;

		if (child >= pool->n_open)
			break;
		if (child + 1 < pool->n_open &&
			pool->open[child + 1].rank < pool->open[child].rank)
			child++;
		if (pool->open[child].rank >= last.rank)
			break;
		pool->open[i] = pool->open[child];
		i = child;
	}
	pool->open[i] = last;
}

/* --- Candidates --- */

bool
nv_cand_pool_reserve(nv_cand_pool *pool, size_t n)
{
	size_t best = NV_MIN(pool->n_best + n, (size_t) pool->frontier);

	/* A node is in the open heap at most once, popped or not. */
	return nv_grow(&pool->best, &pool->cap_best, best, sizeof(*pool->best)) &&
		   nv_grow(&pool->nodes, &pool->cap_nodes, pool->n_nodes + n,
				   sizeof(*pool->nodes)) &&
		   nv_grow(&pool->open, &pool->cap_open, pool->n_nodes + n,
				   sizeof(*pool->open)) &&
		   nv_grow(&pool->overflow, &pool->cap_overflow, pool->n_overflow + n,
				   sizeof(*pool->overflow)) &&
		   reserve_pages(pool, n);
}

uint32_t
nv_cand_pool_offer(nv_cand_pool *pool, const uint32_t *ids, const float *dists,
				   uint32_t n, nv_rank *entered)
{
	uint32_t n_entered = 0;

	for (uint32_t i = 0; i < n; i++)
	{
		nv_rank rank = nv_rank_of(dists[i], ids[i]);

		if (best_offer(pool, rank))
			entered[n_entered++] = rank;
		else
			pool->overflow[pool->n_overflow++] = rank;
	}
	nv_assert(pool->n_overflow <= pool->cap_overflow);
	return n_entered;
}

void
nv_cand_pool_add(nv_cand_pool *pool, nv_rank rank, uint32_t page)
{
	uint32_t node = (uint32_t) pool->n_nodes++;

	nv_assert(pool->n_nodes <= pool->cap_nodes);
	pool->nodes[node] = (nv_cand_node){.rank = rank};
	pool->unexplored_nodes++;
	nv_cand_pool_chain(pool, node, page);
	open_push(pool, (nv_cand_open){.rank = rank, .node = node});
}

uint32_t
nv_cand_pool_pop(nv_cand_pool *pool)
{
	while (pool->n_open > 0 && nv_cand_pool_within(pool, pool->open[0].rank))
	{
		uint32_t node = pool->open[0].node;

		open_remove_top(pool);
		if (!pool->nodes[node].explored)
			return node;
	}
	return NV_CAND_NONE;
}

void
nv_cand_pool_push_back(nv_cand_pool *pool, uint32_t node)
{
	nv_assert(!pool->nodes[node].explored);
	open_push(pool,
			  (nv_cand_open){.rank = pool->nodes[node].rank, .node = node});
}

void
nv_cand_pool_set_explored(nv_cand_pool *pool, uint32_t node)
{
	nv_assert(!pool->nodes[node].explored);
	pool->nodes[node].explored = true;
	pool->unexplored_nodes--;
}

bool
nv_cand_pool_widen(nv_cand_pool *pool, uint32_t frontier)
{
	size_t scored = pool->n_nodes + pool->n_overflow;

	nv_assert(frontier >= pool->frontier);
	if (!nv_grow(&pool->best, &pool->cap_best,
				 NV_MIN(scored, (size_t) frontier), sizeof(*pool->best)))
		return false;
	pool->frontier = frontier;
	pool->n_best = 0;
	for (size_t i = 0; i < pool->n_nodes; i++)
		best_offer(pool, pool->nodes[i].rank);
	for (size_t i = 0; i < pool->n_overflow; i++)
		best_offer(pool, pool->overflow[i]);
	pool->reseat_from = 0;
	return true;
}

uint32_t
nv_cand_pool_reseat(nv_cand_pool *pool, nv_rank *entered, uint32_t max)
{
	uint32_t n = 0;

	while (n < max && pool->reseat_from < pool->n_overflow)
	{
		nv_rank rank = pool->overflow[pool->reseat_from];

		if (nv_cand_pool_within(pool, rank))
		{
			entered[n++] = rank;
			pool->overflow[pool->reseat_from] =
				pool->overflow[--pool->n_overflow];
		}
		else
			pool->reseat_from++;
	}
	return n;
}
