/*
 * pool.h
 *		The candidate pool of one search: every vertex scored so far, ordered
 *		by code distance, ties by id.
 *
 * The frontier is the list_size best of everything scored; only its members
 * are explored.  It is kept as a heap of which only the farthest member is
 * ever asked for, and the unexplored candidates as a second heap of which
 * only the nearest is asked for, so that a candidate costs O(log n) however
 * wide the frontier is.  Being in the frontier is one comparison with its
 * farthest member.
 *
 * What never was in the frontier waits in an unordered overflow array; a
 * wider frontier takes the best of it in.  Candidates that were in it also
 * hang on a chain of the page that holds their edge list, so that a page that
 * was read serves all of them.
 *
 * Source: algorithms.md sections 5 and 6.
 */
#ifndef NAVIS_POOL_H
#define NAVIS_POOL_H

#include "util.h"

#define NV_CAND_NONE UINT32_MAX

/*
 * Distance and id as one number: orders as (distance, id) does.  NaN comes
 * last.
 */
typedef uint64_t nv_rank;

static inline nv_rank
nv_rank_of(float dist, uint32_t id)
{
	uint32_t bits;

	if (dist != dist)
		dist = __builtin_inff();
	memcpy(&bits, &dist, sizeof(bits));
	bits ^= (bits >> 31) != 0 ? UINT32_MAX : UINT32_C(1) << 31;
	return (nv_rank) bits << 32 | id;
}

static inline uint32_t
nv_rank_id(nv_rank rank)
{
	return (uint32_t) rank;
}

/* The distance of a rank. */
static inline float
nv_rank_dist(nv_rank rank)
{
	uint32_t bits = (uint32_t) (rank >> 32);
	float dist;

	bits ^= (bits >> 31) != 0 ? UINT32_C(1) << 31 : UINT32_MAX;
	memcpy(&dist, &bits, sizeof(dist));
	return dist;
}

/* A candidate that is or was in the frontier. */
typedef struct nv_cand_node
{
	nv_rank rank;
	uint32_t page; /* where its list was last seen: a hint */
	uint32_t next; /* on the chain of that page */
	bool explored;
	uint8_t retries; /* look-ups that met a changed edge word */
} nv_cand_node;

typedef struct nv_cand_open
{
	nv_rank rank;
	uint32_t node;
} nv_cand_open;

typedef struct nv_cand_page
{
	uint32_t page;
	uint32_t stamp; /* in use when equal to the pool's stamp */
	uint32_t head;  /* first node of the chain */
} nv_cand_page;

typedef struct nv_cand_pool
{
	uint32_t frontier; /* list_size */
	uint32_t unexplored_nodes;
	nv_rank *best; /* the frontier, farthest first: a heap */
	size_t n_best, cap_best;
	nv_cand_node *nodes;
	size_t n_nodes, cap_nodes;
	nv_cand_open *open; /* a heap, nearest first; may name explored nodes */
	size_t n_open, cap_open;
	nv_rank *overflow;
	size_t n_overflow, cap_overflow;
	size_t reseat_from;  /* overflow before this was looked at by reseat */
	nv_cand_page *pages; /* open addressing */
	size_t n_pages, cap_pages;
	uint32_t stamp;
} nv_cand_pool;

/* Grows *array to hold need elements; false when there is no memory. */
extern bool nv_grow(void *array, size_t *capacity, size_t need, size_t size);

extern void nv_cand_pool_clear(nv_cand_pool *pool, uint32_t frontier);
extern void nv_cand_pool_free(nv_cand_pool *pool);
extern size_t nv_cand_pool_memory(const nv_cand_pool *pool);

/* Makes room for n more candidates; false when there is no memory. */
extern bool nv_cand_pool_reserve(nv_cand_pool *pool, size_t n);

/*
 * Takes n new candidates (room was reserved).  Those that are in the frontier
 * are written to entered, to be opened by the caller, who knows their pages;
 * returns their number.
 */
extern uint32_t nv_cand_pool_offer(nv_cand_pool *pool, const uint32_t *ids,
								   const float *dists, uint32_t n,
								   nv_rank *entered);
extern void nv_cand_pool_add(nv_cand_pool *pool, nv_rank rank, uint32_t page);

/* Takes out the nearest unexplored member of the frontier, or NONE. */
extern uint32_t nv_cand_pool_pop(nv_cand_pool *pool);
/* Makes a popped node that was not explored available again. */
extern void nv_cand_pool_push_back(nv_cand_pool *pool, uint32_t node);
extern void nv_cand_pool_set_explored(nv_cand_pool *pool, uint32_t node);

static inline bool
nv_cand_pool_within(const nv_cand_pool *pool, nv_rank rank)
{
	return pool->n_best < pool->frontier || rank <= pool->best[0];
}

/*
 * Empties the chain of a page and returns its first node (follow .next, which
 * putting a node on a chain changes); NONE when it is empty.
 */
extern uint32_t nv_cand_pool_take_chain(nv_cand_pool *pool, uint32_t page);
extern void nv_cand_pool_chain(nv_cand_pool *pool, uint32_t node,
							   uint32_t page);
/* Moves a node to the chain of another page. */
extern void nv_cand_pool_move(nv_cand_pool *pool, uint32_t node, uint32_t page);

/*
 * A wider frontier.  Afterwards nv_cand_pool_reseat hands out, up to max at a
 * time, what was in the overflow and is in the frontier now, until it returns
 * 0.
 */
extern bool nv_cand_pool_widen(nv_cand_pool *pool, uint32_t frontier);
extern uint32_t nv_cand_pool_reseat(nv_cand_pool *pool, nv_rank *entered,
									uint32_t max);

/* True when everything ever scored has been explored. */
static inline bool
nv_cand_pool_drained(const nv_cand_pool *pool)
{
	return pool->unexplored_nodes == 0 && pool->n_overflow == 0;
}

#endif
