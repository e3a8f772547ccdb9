/*
 * small.c
 *		Indexes without a graph share pending_memory.
 *
 * Rows of an index that is too small for a graph stay unlinked for good.  What
 * such indexes hold is a cache: the exact scan answers for a small index as
 * well, a few milliseconds slower.  So when one needs room, those that were
 * used least recently let go of all their rows, and are FULL for a while; a
 * search after that brings the rows back.  An index that is about to get a
 * graph keeps its rows, so one that grows always gets there.
 */
#include "engine_internal.h"

#include "cursor.h"

/* So long an index that had to let go, or got no room, is scanned exactly. */
#define REST_NS (UINT64_C(10) * 1000000000u)

void
nv_index_used(nv_index *index)
{
	atomic_store_explicit(&index->used_ns, nv_now_ns(), memory_order_relaxed);
}

/* Its rows are of no use for a graph; index->lock held. */
static bool
is_small(const nv_index *index)
{
	uint32_t renewal = atomic_load(&index->renewal);

	return index->body == NULL && index->pending != NULL &&
		   (renewal == NV_RENEWAL_NONE || renewal == NV_RENEWAL_BACKLOG) &&
		   !nv_index_builds_when_full(index);
}

static bool
may_let_go(const nv_index *index)
{
	return (index->state == NV_INDEX_READY || index->state == NV_INDEX_FULL) &&
		   index->build == NULL && !index->dropped && is_small(index) &&
		   nv_pending_count(index->pending) > 0 &&
		   atomic_load(&index->reserved) == 0;
}

/*
 * A search that is comparing the rows finds the count changed when it is
 * through with them, and leaves the answer to the exact scan; index->lock held.
 */
static void
let_go(nv_index *index)
{
	atomic_fetch_add(&index->let_go, 1);
	nv_index_lacks_row(index);
	index->state = NV_INDEX_FULL;
	index->full_ns = nv_now_ns();
	nv_pending_clear(index->pending);
}

void
nv_index_become_full(nv_index *index, const char *why)
{
	if (index->state != NV_INDEX_FULL)
		/* Of small indexes that take turns there is nothing to tell. */
		nv_log(is_small(index) ? NV_LOG_DEBUG : NV_LOG_INFO,
			   "%s: %s; scans are exact", index->title, why);
	if (index->state != NV_INDEX_FULL)
		index->full_ns = nv_now_ns();
	nv_index_lacks_row(index);
	index->state = NV_INDEX_FULL;
	if (is_small(index))
		let_go(index);
}

bool
nv_index_rests(const nv_index *index)
{
	return index->state == NV_INDEX_FULL && index->body == NULL &&
		   !nv_index_builds_when_full(index);
}

bool
nv_index_rested(const nv_index *index)
{
	return nv_index_rests(index) && nv_elapsed_ns(index->full_ns) > REST_NS;
}

/* The one that was used least recently lets go; false: there is none. */
static bool
oldest_lets_go(nv_engine *engine, const nv_index *but)
{
	nv_index *oldest = NULL;
	uint64_t used = UINT64_MAX;

	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES; i++)
		for (nv_index *x = engine->table[i]; x != NULL; x = x->hash_next)
		{
			uint64_t x_used = atomic_load(&x->used_ns);

			if (x == but || x_used >= used)
				continue;
			pthread_mutex_lock(&x->lock);
			if (may_let_go(x))
			{
				oldest = x;
				used = x_used;
			}
			pthread_mutex_unlock(&x->lock);
		}
	if (oldest != NULL)
	{
		pthread_mutex_lock(&oldest->lock);
		/* Or it does not any more: then there is another look. */
		if (may_let_go(oldest))
			let_go(oldest);
		pthread_mutex_unlock(&oldest->lock);
	}
	pthread_mutex_unlock(&engine->lock);
	return oldest != NULL;
}

bool
nv_index_make_room(nv_index *index, uint64_t bytes)
{
	nv_engine *engine = index->engine;
	uint64_t limit;

	pthread_mutex_lock(&index->lock);
	limit = index->body == NULL && index->state != NV_INDEX_FULL
				? nv_index_pending_limit(index)
				: 0;
	pthread_mutex_unlock(&index->lock);
	if (bytes > limit)
		return false;
	while (atomic_load(&engine->pending_bytes) + bytes > limit)
		if (!oldest_lets_go(engine, index))
			return false;
	return true;
}
