/*
 * rmw.c
 *		Pages of the edge file that are being built or written.
 *
 * A page has one owner from being taken to the end of its write: the writer
 * that fills it (open), the list of pages to write (sealed), the thread that
 * writes it.  A sealed page that is not being written yet can go back to a
 * writer, as long as no cut has come: two changes are one write then.  All that
 *time it is in RMW and readers copy it from there. It leaves RMW when its write
 *is complete and the cached copy is replaced, in this order: who does not find
 *it here finds the new bytes in the cache or on disk.  A fill with the bytes of
 *an earlier life of the page is dropped by the cache, whose ticket
 *nv_cache_written made stale.
 *
 * Source: design.md section 4, "Concurrency" 3 and 4.
 */
#include "page_writer.h"
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
	page->state = NV_RMW_OPEN;
	pthread_mutex_lock(&rmw->lock);
	rmw->unwritten[page->epoch & 1]++;
	pthread_mutex_unlock(&rmw->lock);

	/* Before the first flip to this page, so that readers look here. */
	atomic_fetch_add(&rmw->count, 1);
	pthread_mutex_lock(&part->latch);
	page->next = part->pages[nv_rmw_chain_of(page->page)];
	part->pages[nv_rmw_chain_of(page->page)] = page;
	pthread_mutex_unlock(&part->latch);
}

/* The list of sealed pages; rmw->lock is held. */
static void
append(nv_rmw *rmw, nv_rmw_page *page)
{
	page->state = NV_RMW_SEALED;
	page->later = NULL;
	page->prev = rmw->last_sealed;
	if (page->prev != NULL)
		page->prev->later = page;
	else
		rmw->first_sealed = page;
	rmw->last_sealed = page;
	rmw->sealed_count++;
	rmw->sealed_ever++;
}

static void
take_out(nv_rmw *rmw, nv_rmw_page *page)
{
	nv_assert(page->state == NV_RMW_SEALED && rmw->sealed_count > 0);
	if (page->prev != NULL)
		page->prev->later = page->later;
	else
		rmw->first_sealed = page->later;
	if (page->later != NULL)
		page->later->prev = page->prev;
	else
		rmw->last_sealed = page->prev;
	rmw->sealed_count--;
}

void
nv_rmw_seal(nv_store *store, nv_rmw_page *page)
{
	nv_rmw *rmw = &store->rmw;

	uint64_t waiting;
	bool wake;

	pthread_mutex_lock(&rmw->lock);
	append(rmw, page);
	waiting = rmw->sealed_count;
	wake = rmw->wanted > 0 || waiting % rmw->least_sealed == 0;
	if (rmw->wanted > 0)
		pthread_cond_broadcast(&rmw->changed);
	pthread_mutex_unlock(&rmw->lock);
	if (wake && atomic_load(&store->page_writer) != NULL)
		nv_page_writer_wake(atomic_load(&store->page_writer));
}

nv_rmw_page *
nv_rmw_reopen(nv_store *store, uint64_t page)
{
	nv_rmw *rmw = &store->rmw;
	nv_rmw_partition *part = nv_rmw_partition_of(store, page);
	nv_rmw_page *found;

	/*
	 * Sealed pages stay where they are as long as the lock is held; others may
	 * be freed once the latch is let go.
	 */
	pthread_mutex_lock(&rmw->lock);
	pthread_mutex_lock(&part->latch);
	for (found = part->pages[nv_rmw_chain_of(page)]; found != NULL;
		 found = found->next)
		if (found->page == page)
			break;
	if (found != NULL && (found->state != NV_RMW_SEALED ||
						  found->epoch != atomic_load(&store->epoch)))
		found = NULL;
	pthread_mutex_unlock(&part->latch);
	if (found != NULL)
	{
		take_out(rmw, found);
		found->state = NV_RMW_OPEN;
		rmw->passed++;
		atomic_fetch_add(&rmw->counters.reopened, 1);
	}
	pthread_mutex_unlock(&rmw->lock);
	return found;
}

/* The write is complete: replace the cached copy, then leave RMW. */
static void
leave(nv_store *store, nv_rmw_page *page)
{
	nv_rmw *rmw = &store->rmw;
	nv_rmw_partition *part = nv_rmw_partition_of(store, page->page);
	nv_rmw_page **link;

	if (store->cache != NULL && page->dirty)
		nv_cache_written(store->cache, store->cache_file, page->page,
						 page->bytes);
	pthread_mutex_lock(&part->latch);
	link = &part->pages[nv_rmw_chain_of(page->page)];
	for (; *link != page; link = &(*link)->next)
		nv_assert(*link != NULL);
	*link = page->next;
	pthread_mutex_unlock(&part->latch);
	atomic_fetch_sub(&rmw->count, 1);
	nv_edges_give_back(store, page->page);

	pthread_mutex_lock(&rmw->lock);
	nv_assert(rmw->unwritten[page->epoch & 1] > 0);
	rmw->unwritten[page->epoch & 1]--;
	rmw->passed++;
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

/* Pages that were opened and got nothing leave at once; returns the rest. */
static uint32_t
drop_clean(nv_store *store, nv_rmw_page **pages, uint32_t n)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < n; i++)
		if (pages[i]->dirty)
			pages[left++] = pages[i];
		else
			leave(store, pages[i]);
	return left;
}

uint32_t
nv_rmw_take_sealed(nv_store *store, nv_rmw_page **pages, uint32_t max)
{
	nv_rmw *rmw = &store->rmw;
	uint32_t n = 0;

	pthread_mutex_lock(&rmw->lock);
	while (rmw->first_sealed != NULL && n < max)
	{
		pages[n] = rmw->first_sealed;
		take_out(rmw, pages[n]);
		pages[n++]->state = NV_RMW_WRITING;
	}
	pthread_mutex_unlock(&rmw->lock);
	n = drop_clean(store, pages, n);
	qsort(pages, n, sizeof(*pages), by_page);
	return n;
}

void
nv_rmw_written(nv_store *store, nv_rmw_page **pages, uint32_t n)
{
	atomic_fetch_add_explicit(&store->page_writes, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&store->pages_written, n, memory_order_relaxed);
	for (uint32_t i = 0; i < n; i++)
		leave(store, pages[i]);
}

void
nv_rmw_not_written(nv_store *store, nv_rmw_page **pages, uint32_t n,
				   const nv_error *why)
{
	nv_store_fail(store, why);
	for (uint32_t i = 0; i < n; i++)
		nv_rmw_seal(store, pages[i]);
}

/* One round by the calling thread; *n: pages it took. */
static nv_status
write_round(nv_store *store, uint32_t max, uint32_t *n, nv_error *err)
{
	nv_rmw_page *pages[BATCH_PAGES];
	uint8_t *buffer = aligned_alloc(NV_BLOCK, RUN_PAGES * NV_PAGE);
	uint32_t longest = buffer == NULL ? 1 : RUN_PAGES;
	nv_status status = NV_OK;
	nv_error why;

	*n = nv_rmw_take_sealed(store, pages, NV_MIN(max, BATCH_PAGES));
	for (uint32_t i = 0, run; i < *n; i += run)
	{
		run = 1;
		while (run < longest && i + run < *n &&
			   pages[i + run]->page == pages[i]->page + run)
			run++;
		if (status == NV_OK)
			status = write_run(store, pages + i, run, buffer, &why);
		if (status == NV_OK)
			nv_rmw_written(store, pages + i, run);
		else
			nv_rmw_not_written(store, pages + i, run, &why);
	}
	free(buffer);
	if (status != NV_OK && err != NULL)
		*err = why;
	return status;
}

static nv_status
write_all(nv_store *store, nv_error *err)
{
	nv_rmw *rmw = &store->rmw;
	uint64_t until;
	nv_status status = nv_store_check(store, err);
	uint32_t n = 1;
	bool more = true;

	/* What is sealed meanwhile is for the next call: writers may be faster. */
	pthread_mutex_lock(&rmw->lock);
	until = rmw->sealed_ever;
	pthread_mutex_unlock(&rmw->lock);
	while (more && status == NV_OK)
	{
		status = write_round(store, BATCH_PAGES, &n, err);
		pthread_mutex_lock(&rmw->lock);
		more = rmw->passed < until && rmw->first_sealed != NULL;
		pthread_mutex_unlock(&rmw->lock);
	}
	return status;
}

/*
 * Has the page writer write everything and waits: until `unwritten` is 0, or,
 * without it, until what is sealed now is written.
 */
static nv_status
have_written(nv_store *store, const uint64_t *unwritten, nv_error *err)
{
	nv_rmw *rmw = &store->rmw;
	uint64_t until;

	pthread_mutex_lock(&rmw->lock);
	rmw->wanted++;
	until = rmw->sealed_ever;
	pthread_mutex_unlock(&rmw->lock);
	nv_page_writer_wake(atomic_load(&store->page_writer));
	pthread_mutex_lock(&rmw->lock);
	while (!atomic_load(&store->failed) &&
		   (unwritten != NULL ? *unwritten > 0 : rmw->passed < until))
		pthread_cond_wait(&rmw->changed, &rmw->lock);
	rmw->wanted--;
	pthread_mutex_unlock(&rmw->lock);
	return nv_store_check(store, err);
}

nv_status
nv_store_write_back(nv_store *store, nv_error *err)
{
	nv_status status = atomic_load(&store->page_writer) != NULL
						   ? have_written(store, NULL, err)
						   : write_all(store, err);

	if (status == NV_OK)
		nv_edges_reclaim(store);
	return status;
}

nv_status
nv_rmw_drain(nv_store *store, uint64_t epoch, nv_error *err)
{
	nv_rmw *rmw = &store->rmw;
	uint64_t *unwritten = &rmw->unwritten[epoch & 1];
	nv_status status = NV_OK;
	bool done = false;

	if (atomic_load(&store->page_writer) != NULL)
		return have_written(store, unwritten, err);
	while (status == NV_OK && !done)
	{
		status = nv_store_write_back(store, err);
		/* What is neither sealed nor written yet, somebody is writing. */
		pthread_mutex_lock(&rmw->lock);
		while (*unwritten > 0 && rmw->first_sealed == NULL &&
			   !atomic_load(&store->failed))
			pthread_cond_wait(&rmw->changed, &rmw->lock);
		done = *unwritten == 0;
		pthread_mutex_unlock(&rmw->lock);
	}
	return status;
}

/* How long a writer waits before it looks whether it is to stop. */
#define CANCEL_MS 20

nv_status
nv_rmw_await_room(nv_writer *w, nv_error *err)
{
	nv_store *store = w->store;
	nv_rmw *rmw = &store->rmw;
	bool cancelled = false, waited = false;

	pthread_mutex_lock(&rmw->lock);
	while (rmw->sealed_count >= rmw->most_sealed &&
		   !atomic_load(&store->failed) && !cancelled)
	{
		struct timespec until;

		if (atomic_load(&store->page_writer) == NULL)
		{
			pthread_mutex_unlock(&rmw->lock);
			return write_all(store, err);
		}
		waited = true;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += CANCEL_MS * 1000000;
		if (until.tv_nsec >= 1000000000)
		{
			until.tv_sec++;
			until.tv_nsec -= 1000000000;
		}
		pthread_cond_timedwait(&rmw->changed, &rmw->lock, &until);
		cancelled = w->cancel != NULL && w->cancel(w->cancel_arg);
	}
	pthread_mutex_unlock(&rmw->lock);
	if (waited)
		atomic_fetch_add(&rmw->counters.waits, 1);
	if (cancelled)
		return nv_fail(err, NV_ECANCELLED, 0, "changing a list was stopped");
	return nv_store_check(store, err);
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
		for (found = part->pages[nv_rmw_chain_of(page)]; found != NULL;
			 found = found->next)
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
