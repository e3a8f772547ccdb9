/*
 * rmw.c
 *		Pages of the edge file that are being built or written.
 *
 * A page has one owner from its allocation to the end of its write: the
 * writer that fills it (open), the list of pages to write (sealed), the thread
 * that writes it.  All that time it is in RMW and readers copy it from there.
 * It leaves RMW when its write is complete and the cached copy is replaced, in
 * this order: who does not find it here finds the new bytes in the cache or on
 * disk.  A fill with the bytes of an earlier life of the page is dropped by
 * the cache, whose ticket nv_cache_written made stale.
 *
 * Source: design.md section 4, "Concurrency" 3 and 4.
 */
#include "store_internal.h"

#define BATCH_PAGES 256 /* written by one round of write back */
#define RUN_PAGES 64    /* neighbours merged into one write */

nv_rmw_page *
nv_rmw_page_alloc(nv_error *err)
{
	nv_rmw_page *page = nv_alloc(sizeof(*page));
	uint8_t *bytes = aligned_alloc(NV_BLOCK, NV_PAGE);

	if (page == NULL || bytes == NULL)
	{
		free(page);
		free(bytes);
		nv_fail(err, NV_ENOMEM, 0, "no memory for a page of edge lists");
		return NULL;
	}
	memset(bytes, 0, NV_PAGE);
	page->bytes = bytes;
	return page;
}

void
nv_rmw_page_free(nv_rmw_page *page)
{
	if (page == NULL)
		return;
	free(page->bytes);
	free(page);
}

nv_rmw_partition *
nv_rmw_partition_of(nv_store *store, uint64_t page)
{
	return &store->rmw.partition[page % NV_RMW_PARTITIONS];
}

void
nv_rmw_add(nv_store *store, nv_rmw_page *page)
{
	nv_rmw *rmw = &store->rmw;
	nv_rmw_partition *part = nv_rmw_partition_of(store, page->page);

	page->epoch = atomic_load(&store->epoch);
	pthread_mutex_lock(&rmw->lock);
	rmw->unwritten[page->epoch & 1]++;
	pthread_mutex_unlock(&rmw->lock);

	/* Before the first flip to this page, so that readers look here. */
	atomic_fetch_add(&rmw->count, 1);
	pthread_mutex_lock(&part->latch);
	page->next = part->pages;
	part->pages = page;
	pthread_mutex_unlock(&part->latch);
}

void
nv_rmw_seal(nv_store *store, nv_rmw_page *page)
{
	nv_rmw *rmw = &store->rmw;

	nv_edges_page_sealed(store, page->page);
	pthread_mutex_lock(&rmw->lock);
	page->sealed = NULL;
	if (rmw->sealed == NULL)
		rmw->sealed = page;
	else
		rmw->last_sealed->sealed = page;
	rmw->last_sealed = page;
	rmw->sealed_count++;
	pthread_cond_broadcast(&rmw->changed);
	pthread_mutex_unlock(&rmw->lock);
}

/* The write is complete: replace the cached copy, then leave RMW. */
static void
leave(nv_store *store, nv_rmw_page *page)
{
	nv_rmw *rmw = &store->rmw;
	nv_rmw_partition *part = nv_rmw_partition_of(store, page->page);
	nv_rmw_page **link;

	if (store->cache != NULL)
		nv_cache_written(store->cache, store->cache_file, page->page,
						 page->bytes);
	pthread_mutex_lock(&part->latch);
	for (link = &part->pages; *link != page; link = &(*link)->next)
		nv_assert(*link != NULL);
	*link = page->next;
	pthread_mutex_unlock(&part->latch);
	atomic_fetch_sub(&rmw->count, 1);
	nv_edges_page_written(store, page->page);

	pthread_mutex_lock(&rmw->lock);
	nv_assert(rmw->unwritten[page->epoch & 1] > 0);
	rmw->unwritten[page->epoch & 1]--;
	pthread_cond_broadcast(&rmw->changed);
	pthread_mutex_unlock(&rmw->lock);
	nv_rmw_page_free(page);
}

static int
by_page(const void *a, const void *b)
{
	const nv_rmw_page *x = *(nv_rmw_page *const *) a;
	const nv_rmw_page *y = *(nv_rmw_page *const *) b;

	return x->page < y->page ? -1 : x->page > y->page;
}

/* Writes pages that are neighbours in the file; buffer: RUN_PAGES or NULL. */
static nv_status
write_run(nv_store *store, nv_rmw_page **pages, uint32_t n, uint8_t *buffer,
		  nv_error *err)
{
	if (n == 1)
		return nv_file_write(store->edges.file, pages[0]->bytes, NV_PAGE,
							 pages[0]->page * NV_PAGE, err);
	for (uint32_t i = 0; i < n; i++)
		memcpy(buffer + (size_t) i * NV_PAGE, pages[i]->bytes, NV_PAGE);
	return nv_file_write(store->edges.file, buffer, (size_t) n * NV_PAGE,
						 pages[0]->page * NV_PAGE, err);
}

static nv_status
write_batch(nv_store *store, nv_rmw_page **pages, uint32_t n, nv_error *err)
{
	uint8_t *buffer = aligned_alloc(NV_BLOCK, RUN_PAGES * NV_PAGE);
	uint32_t longest = buffer == NULL ? 1 : RUN_PAGES;
	nv_status status = NV_OK;

	qsort(pages, n, sizeof(*pages), by_page);
	for (uint32_t i = 0, run; i < n && status == NV_OK; i += run)
	{
		run = 1;
		while (run < longest && i + run < n &&
			   pages[i + run]->page == pages[i]->page + run)
			run++;
		status = write_run(store, pages + i, run, buffer, err);
		atomic_fetch_add_explicit(&store->page_writes, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&store->pages_written, run,
								  memory_order_relaxed);
		for (uint32_t j = i; j < i + run && status == NV_OK; j++)
			leave(store, pages[j]);
		if (status == NV_OK)
			continue;
		/* They stay in RMW, readable, until the store is closed. */
		nv_store_fail(store);
		for (uint32_t j = i; j < n; j++)
			nv_rmw_seal(store, pages[j]);
	}
	free(buffer);
	return status;
}

/* Takes the oldest sealed pages out of the list, max at most. */
static uint32_t
take_sealed(nv_rmw *rmw, nv_rmw_page **pages, uint64_t max)
{
	uint32_t n = 0;

	pthread_mutex_lock(&rmw->lock);
	while (rmw->sealed != NULL && n < max)
	{
		pages[n] = rmw->sealed;
		rmw->sealed = pages[n++]->sealed;
		rmw->sealed_count--;
	}
	pthread_mutex_unlock(&rmw->lock);
	return n;
}

nv_status
nv_store_write_back(nv_store *store, nv_error *err)
{
	nv_rmw *rmw = &store->rmw;
	nv_rmw_page *pages[BATCH_PAGES];
	nv_status status = nv_store_check(store, err);
	uint64_t left;

	/* What is sealed meanwhile is for the next call: writers may be faster. */
	pthread_mutex_lock(&rmw->lock);
	left = rmw->sealed_count;
	pthread_mutex_unlock(&rmw->lock);
	while (left > 0 && status == NV_OK)
	{
		uint32_t n = take_sealed(rmw, pages, NV_MIN(left, BATCH_PAGES));

		if (n == 0)
			break; /* others write them */
		left -= n;
		status = write_batch(store, pages, n, err);
	}
	if (status == NV_OK)
		nv_edges_reclaim(store);
	return status;
}

nv_status
nv_rmw_drain(nv_store *store, uint64_t epoch, nv_error *err)
{
	nv_rmw *rmw = &store->rmw;
	uint64_t *unwritten = &rmw->unwritten[epoch & 1];

	for (;;)
	{
		nv_status status = nv_store_write_back(store, err);
		bool done;

		if (status != NV_OK)
			return status;
		/* What is neither sealed nor written yet, somebody is writing. */
		pthread_mutex_lock(&rmw->lock);
		while (*unwritten > 0 && rmw->sealed == NULL &&
			   !atomic_load(&store->failed))
			pthread_cond_wait(&rmw->changed, &rmw->lock);
		done = *unwritten == 0;
		pthread_mutex_unlock(&rmw->lock);
		if (done)
			return NV_OK;
	}
}

nv_page_source
nv_store_get_page(nv_store *store, uint64_t page, nv_cache_user user,
				  uint8_t *out, uint64_t *ticket)
{
	*ticket = 0;
	if (atomic_load(&store->rmw.count) > 0)
	{
		nv_rmw_partition *part = nv_rmw_partition_of(store, page);
		nv_rmw_page *found;

		pthread_mutex_lock(&part->latch);
		for (found = part->pages; found != NULL; found = found->next)
			if (found->page == page)
				break;
		if (found != NULL)
			memcpy(out, found->bytes, NV_PAGE);
		pthread_mutex_unlock(&part->latch);
		if (found != NULL)
		{
			atomic_fetch_add_explicit(&store->rmw_hits[user], 1,
									  memory_order_relaxed);
			return NV_PAGE_RMW;
		}
	}
	if (store->cache != NULL &&
		nv_cache_get(store->cache, store->cache_file, page, user, out, ticket))
		return NV_PAGE_CACHE;
	return NV_PAGE_MISS;
}

void
nv_store_fill(nv_store *store, uint64_t page, uint64_t ticket,
			  const uint8_t *bytes)
{
	if (store->cache != NULL)
		nv_cache_fill(store->cache, store->cache_file, page, ticket, bytes);
}
