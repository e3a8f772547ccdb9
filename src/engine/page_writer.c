/*
 * page_writer.c
 *		The background writer.
 *
 * The thread's lock is held neither across I/O nor across anything that waits.
 * Order: its lock, then the rmw.lock of a store.
 */
#include "page_writer.h"

#include <errno.h>
#include <signal.h>

#include "store_internal.h"

#define FLIGHT_PAGES 256 /* written at the same time */
/* Taken out of the list and sorted together: the more, the longer the runs. */
#define BATCH_PAGES 4096

_Static_assert(FLIGHT_PAGES <= NV_RING_DEPTH, "a write a page at most");

struct nv_page_writer
{
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* for the thread */
	pthread_cond_t idle; /* it has let go of a store */
	nv_store *stores;    /* chained by next_served */
	nv_store *busy;      /* whose pages it writes */
	nv_store *leaving;   /* whose file its ring is to forget */
	bool woken, stop;
	nv_rmw_page *batch[BATCH_PAGES];
	nv_ring *ring;
	nv_io_method method;
	bool started;
	nv_status status; /* of its start */
	nv_error error;
};

/* Pages that are written at the same time, and the writes they come to. */
typedef struct flight
{
	nv_rmw_page **pages;
	uint32_t n;
	uint32_t first[FLIGHT_PAGES]; /* of each write, whose number is its token */
	uint32_t length[FLIGHT_PAGES];
	int32_t result[FLIGHT_PAGES];
	uint32_t writes;
} flight;

/* --- A flight --- */

/* Pages that follow each other in the file are one write. */
static void
queue_writes(nv_page_writer *w, nv_store *store, flight *f)
{
	uint8_t *arena = nv_ring_arena(w->ring);

	f->writes = 0;
	for (uint32_t i = 0, run; i < f->n; i += run)
	{
		uint8_t *bytes = arena + (size_t) i * NV_PAGE;
		bool queued;

		run = 0;
		while (i + run < f->n &&
			   f->pages[i + run]->page == f->pages[i]->page + run)
		{
			memcpy(bytes + (size_t) run * NV_PAGE, f->pages[i + run]->bytes,
				   NV_PAGE);
			run++;
		}
		f->first[f->writes] = i;
		f->length[f->writes] = run;
		queued = nv_ring_write(w->ring, store->edges.file, bytes, run * NV_PAGE,
							   f->pages[i]->page * NV_PAGE, f->writes++);
		nv_assert(queued);
	}
}

static void
await_writes(nv_page_writer *w, flight *f)
{
	nv_completion done[FLIGHT_PAGES];

	while (nv_ring_inflight(w->ring) > 0)
	{
		uint32_t n = nv_ring_reap(w->ring, done, FLIGHT_PAGES, true);

		for (uint32_t i = 0; i < n; i++)
			f->result[done[i].token] = done[i].result;
	}
}

/* Pages that were written leave RMW; one failure and the store has failed. */
static void
settle_writes(nv_store *store, flight *f)
{
	for (uint32_t i = 0; i < f->writes; i++)
	{
		nv_rmw_page **pages = f->pages + f->first[i];
		uint32_t n = f->length[i];
		int32_t result = f->result[i];
		nv_error err;

		if (result == (int32_t) (n * NV_PAGE))
		{
			nv_rmw_written(store, pages, n);
			continue;
		}
		nv_fail(&err, result == -ENOSPC ? NV_ENOSPC : NV_EIO,
				result < 0 ? -result : 0, "%u edge pages: %s", n,
				result < 0 ? strerror(-result) : "written in part");
		nv_rmw_not_written(store, pages, n, &err);
	}
}

static void
write_batch(nv_page_writer *w, nv_store *store)
{
	uint32_t n = nv_rmw_take_sealed(store, w->batch, BATCH_PAGES);

	for (uint32_t i = 0; i < n; i += FLIGHT_PAGES)
	{
		flight f;

		/* Its files may be another's soon: see nv_store_give_up. */
		if (atomic_load(&store->failed))
		{
			nv_rmw_not_written(store, w->batch + i, n - i, NULL);
			return;
		}
		f.pages = w->batch + i;
		f.n = NV_MIN(n - i, (uint32_t) FLIGHT_PAGES);
		queue_writes(w, store, &f);
		await_writes(w, &f);
		settle_writes(store, &f);
	}
}

/* --- The thread --- */

/* Called with the lock held: a store whose pages are to be written. */
static nv_store *
next_store(nv_page_writer *w)
{
	for (nv_store *s = w->stores; s != NULL; s = s->next_served)
	{
		bool due;

		pthread_mutex_lock(&s->rmw.lock);
		due = s->rmw.sealed_count >= s->rmw.least_sealed ||
			  (s->rmw.wanted > 0 && s->rmw.sealed_count > 0);
		pthread_mutex_unlock(&s->rmw.lock);
		if (due && !atomic_load(&s->failed))
			return s;
	}
	return NULL;
}

/* The ring must not keep a closed file's space. */
static void
let_go(nv_page_writer *w)
{
	nv_store **link = &w->stores;

	while (*link != w->leaving)
		link = &(*link)->next_served;
	*link = w->leaving->next_served;
	nv_ring_forget(w->ring, w->leaving->edges.file);
	w->leaving = NULL;
	pthread_cond_broadcast(&w->idle);
}

static void
serve(nv_page_writer *w)
{
	pthread_mutex_lock(&w->lock);
	while (!w->stop)
	{
		nv_store *store;

		w->woken = false;
		if (w->leaving != NULL)
			let_go(w);
		store = next_store(w);
		if (store != NULL)
		{
			w->busy = store;
			pthread_mutex_unlock(&w->lock);
			write_batch(w, store);
			pthread_mutex_lock(&w->lock);
			w->busy = NULL;
			pthread_cond_broadcast(&w->idle);
		}
		else
			while (!w->woken && !w->stop)
				pthread_cond_wait(&w->wake, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
}

static void *
page_writer_main(void *arg)
{
	nv_page_writer *w = arg;
	nv_status status = nv_ring_create(
		w->method, (size_t) FLIGHT_PAGES * NV_PAGE, &w->ring, &w->error);

	pthread_mutex_lock(&w->lock);
	w->status = status;
	w->started = true;
	pthread_cond_broadcast(&w->idle);
	pthread_mutex_unlock(&w->lock);
	if (status == NV_OK)
		serve(w);
	nv_ring_destroy(w->ring);
	return NULL;
}

/* The server's signals are not for this thread. */
static bool
start(nv_page_writer *w)
{
	sigset_t all, before;
	bool started;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	started = pthread_create(&w->thread, NULL, page_writer_main, w) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

nv_status
nv_page_writer_create(nv_io_method method, nv_page_writer **writer,
					  nv_error *err)
{
	nv_page_writer *w = nv_alloc(sizeof(*w));
	nv_status status;

	*writer = NULL;
	if (w == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a background writer");
	w->method = method;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->wake, NULL);
	pthread_cond_init(&w->idle, NULL);
	if (!start(w))
	{
		free(w);
		return nv_fail(err, NV_ENOMEM, 0, "no thread for a background writer");
	}
	pthread_mutex_lock(&w->lock);
	while (!w->started)
		pthread_cond_wait(&w->idle, &w->lock);
	status = w->status;
	pthread_mutex_unlock(&w->lock);
	if (status == NV_OK)
	{
		*writer = w;
		return NV_OK;
	}
	if (err != NULL)
		*err = w->error;
	nv_page_writer_destroy(w);
	return status;
}

void
nv_page_writer_destroy(nv_page_writer *w)
{
	if (w == NULL)
		return;
	nv_assert(w->stores == NULL);
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->wake);
	pthread_cond_destroy(&w->idle);
	free(w);
}

/* --- For stores --- */

void
nv_store_use_page_writer(nv_store *store, nv_page_writer *w)
{
	if (w == NULL)
		return;
	pthread_mutex_lock(&w->lock);
	if (atomic_load(&store->page_writer) == NULL)
	{
		store->next_served = w->stores;
		w->stores = store;
		atomic_store(&store->page_writer, w);
	}
	pthread_mutex_unlock(&w->lock);
}

void
nv_page_writer_wake(nv_page_writer *w)
{
	pthread_mutex_lock(&w->lock);
	w->woken = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

void
nv_page_writer_await(nv_page_writer *w, const nv_store *store)
{
	pthread_mutex_lock(&w->lock);
	while (w->busy == store)
		pthread_cond_wait(&w->idle, &w->lock);
	pthread_mutex_unlock(&w->lock);
}

void
nv_page_writer_detach(nv_page_writer *w, nv_store *store)
{
	pthread_mutex_lock(&w->lock);
	while (w->leaving != NULL)
		pthread_cond_wait(&w->idle, &w->lock);
	w->leaving = store;
	w->woken = true;
	pthread_cond_signal(&w->wake);
	while (w->leaving == store)
		pthread_cond_wait(&w->idle, &w->lock);
	pthread_mutex_unlock(&w->lock);
}
