/*
 * stats.c
 *		What indexes and the engine have done: counters, their sums, and the
 *		answer to TOTALS.
 *
 * Counters are relaxed atomics that nobody waits for; a sum over them is true
 * of no single moment.  What an index has counted stays in the engine's sums
 * when it goes.
 */
#include <time.h>

#include "engine_internal.h"

/* --- Counting --- */

void
nv_stats_search(nv_index *index, const nv_search_stats *stats)
{
	nv_work_counters *c = &index->work;

	nv_count(&c->pages, stats->edge_pages);
	nv_count(&c->cached, stats->cache_hits);
	nv_count(&c->vectors, stats->vectors);
	nv_count(&c->pending, stats->pending);
	nv_count(&c->bytes, stats->bytes);
}

void
nv_stats_checkpoint(nv_index *index, bool done, uint64_t ns)
{
	struct timespec now;

	nv_count(&index->work.checkpoint_ns, ns);
	if (!done)
	{
		nv_count(&index->work.checkpoint_failures, 1);
		return;
	}
	nv_count(&index->work.checkpoints, 1);
	clock_gettime(CLOCK_REALTIME, &now);
	atomic_store(&index->checkpointed_at, (uint64_t) now.tv_sec * 1000000u +
											  (uint64_t) now.tv_nsec / 1000u);
}

/* --- One index --- */

void
nv_stats_index(nv_index *index, nv_req_info *info)
{
	const nv_work_counters *w = &index->work;
	const nv_insert_counters *c = &index->inserted;

	info->searches = atomic_load(&w->searches);
	info->search_pages = atomic_load(&w->pages);
	info->search_cached = atomic_load(&w->cached);
	info->search_vectors = atomic_load(&w->vectors);
	info->search_pending = atomic_load(&w->pending);
	info->search_bytes = atomic_load(&w->bytes);
	info->seek_cached = atomic_load(&c->cached);
	info->link_pages = atomic_load(&c->link_pages);
	info->link_cached = atomic_load(&c->link_cached);
	info->insert_bytes = atomic_load(&c->bytes);
	info->insert_waits = atomic_load(&c->waits);
	info->insert_wait_ns = atomic_load(&c->wait_ns);
	info->checkpoints = atomic_load(&w->checkpoints);
	info->checkpoint_failures = atomic_load(&w->checkpoint_failures);
	info->checkpoint_ns = atomic_load(&w->checkpoint_ns);
	info->checkpointed_at = atomic_load(&index->checkpointed_at);
}

/* --- Sums --- */

_Static_assert(sizeof(nv_insert_counters) % sizeof(_Atomic uint64_t) == 0 &&
				   sizeof(nv_work_counters) % sizeof(_Atomic uint64_t) == 0 &&
				   sizeof(nv_counters) ==
					   sizeof(nv_insert_counters) + sizeof(nv_work_counters),
			   "counters are nothing but numbers");

/* Structures of counters are added field by field, as the arrays they are. */
static void
add(void *sum, const void *counters, size_t bytes)
{
	_Atomic uint64_t *to = sum;
	const _Atomic uint64_t *from = counters;

	for (size_t i = 0; i < bytes / sizeof(*to); i++)
		nv_count(&to[i], atomic_load(&from[i]));
}

static void
add_index(nv_counters *sum, const nv_index *index)
{
	add(&sum->insert, &index->inserted, sizeof(sum->insert));
	add(&sum->work, &index->work, sizeof(sum->work));
}

void
nv_stats_index_gone(nv_index *index)
{
	add_index(&index->engine->gone, index);
}

void
nv_stats_body_gone(nv_body *body)
{
	nv_store_stats stats;

	nv_store_get_stats(body->store, &stats);
	nv_count(&body->engine->gone_pages_written, stats.pages_written);
	nv_count(&body->engine->gone_page_writes, stats.page_writes);
}

/* --- TOTALS --- */

static void
total_body(nv_body *body, nv_req_totals *t)
{
	nv_store_stats stats;

	nv_store_get_stats(body->store, &stats);
	t->memory += stats.memory_map + stats.memory_elements + stats.memory_codes +
				 stats.memory_other + nv_numbers_memory(&body->first) +
				 nv_numbers_memory(&body->next) +
				 nv_numbers_memory(&body->prev) +
				 nv_entrance_memory(body->entrance) +
				 nv_equal_memory(body->equal) + nv_body_codebooks_memory(body);
	t->pages_written += stats.pages_written;
	t->page_writes += stats.page_writes;
}

static void
total_index(nv_index *index, nv_req_totals *t)
{
	nv_body *body;

	pthread_mutex_lock(&index->lock);
	if (index->pending != NULL)
	{
		t->pending_rows += nv_pending_count(index->pending);
		t->insert_queue += nv_pending_waiting(index->pending);
		t->indexes++;
	}
	body = index->body;
	if (body != NULL)
		nv_body_get(body);
	pthread_mutex_unlock(&index->lock);
	if (body != NULL)
		total_body(body, t);
	nv_body_put(body);
}

static void
total_counters(const nv_counters *sum, nv_req_totals *t)
{
	const nv_insert_counters *i = &sum->insert;
	const nv_work_counters *w = &sum->work;

	t->searches = atomic_load(&w->searches);
	t->search_vectors = atomic_load(&w->vectors);
	t->search_bytes = atomic_load(&w->bytes);
	t->search_pending = atomic_load(&w->pending);
	t->inserted = atomic_load(&i->rows);
	t->inserted_equal = atomic_load(&i->equal);
	t->seeks = atomic_load(&i->seeks);
	t->seek_vectors = atomic_load(&i->vectors);
	t->insert_bytes = atomic_load(&i->bytes);
	t->insert_waits = atomic_load(&i->waits);
	t->insert_wait_ns = atomic_load(&i->wait_ns);
	t->insert_failures = atomic_load(&i->failures);
	t->relinks = atomic_load(&i->relinks);
	t->overflows = atomic_load(&i->overflows);
	t->promotions = atomic_load(&i->promotions);
	t->checkpoints = atomic_load(&w->checkpoints);
	t->checkpoint_failures = atomic_load(&w->checkpoint_failures);
	t->checkpoint_ns = atomic_load(&w->checkpoint_ns);
}

static void
total_cache(nv_engine *engine, nv_req_totals *t)
{
	nv_cache_stats cache;

	nv_cache_get_stats(engine->cache, &cache);
	t->cache_bytes = cache.bytes;
	t->cache_limit = engine->config.cache_size;
	t->cache_pages = cache.pages;
	t->cache_frozen = cache.frozen_pages;
	t->cache_promotions = cache.promotions;
	t->cache_evictions = cache.evictions;
	t->search_lookups = cache.user_lookups[NV_CACHE_SEARCH];
	t->search_hits = cache.user_hits[NV_CACHE_SEARCH];
	t->insert_lookups = cache.user_lookups[NV_CACHE_INSERT] +
						cache.user_lookups[NV_CACHE_PASSING];
	t->insert_hits =
		cache.user_hits[NV_CACHE_INSERT] + cache.user_hits[NV_CACHE_PASSING];
}

static void
total_threads(nv_engine *engine, nv_req_totals *t)
{
	for (uint32_t i = 0; i < engine->n_searchers; i++)
	{
		const nv_searcher *s = &engine->searchers[i];

		t->search_threads += atomic_load(&s->state) == NV_SEARCHER_READY;
		t->io_uring += atomic_load(&s->uring);
	}
	for (uint32_t i = 0; i < engine->n_inserters; i++)
		t->insert_threads += atomic_load(&engine->inserters[i].running);
	t->simd = nv_simd_in_use();
	pthread_mutex_lock(&engine->cursor_lock);
	t->cursors = engine->n_cursors;
	pthread_mutex_unlock(&engine->cursor_lock);
}

void
nv_request_totals(nv_engine *engine, nv_request *request)
{
	nv_req_totals *t = &request->u.totals;
	nv_counters sum = {0};
	nv_error err = {0};
	nv_index **list;
	uint32_t n = nv_engine_indexes(engine, &list);

	memset(t, 0, sizeof(*t));
	if (list == NULL)
	{
		nv_fail(&err, NV_ENOMEM, 0, "no memory to list the indexes");
		nv_answer(engine, request, NV_ENOMEM, &err);
		return;
	}
	/* The sums of what is gone last: an index that goes meanwhile may count
	 * twice for a moment, but is never missing. */
	for (uint32_t i = 0; i < n; i++)
	{
		total_index(list[i], t);
		add_index(&sum, list[i]);
		nv_index_put(list[i]);
	}
	free(list);
	add(&sum, &engine->gone, sizeof(sum));
	total_counters(&sum, t);
	t->pages_written += atomic_load(&engine->gone_pages_written);
	t->page_writes += atomic_load(&engine->gone_page_writes);
	t->pending_bytes = atomic_load(&engine->pending_bytes);
	t->pending_limit = engine->config.pending_memory;
	total_cache(engine, t);
	total_threads(engine, t);
	nv_answer(engine, request, NV_OK, NULL);
}
