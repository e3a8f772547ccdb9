/*
 * writer.c
 *		Replacing a list out of place, and the linked bit.
 *
 * Before the gate: everything that may wait or fail for want of space (a
 * place in the retire list, memory for a page, room in the file, too many
 * sealed pages).  Inside: one stripe, recheck, slot, flip.  Nothing inside
 * does I/O, so a cut waits for microseconds only.
 *
 * Source: design.md section 4, "Concurrency" 3 and 6.
 */
#include "store_internal.h"

/* One set for all stores: a thread holds one stripe at most. */
#define STRIPES 65536
static pthread_mutex_t stripes[STRIPES] = {
	[0 ... STRIPES - 1] = PTHREAD_MUTEX_INITIALIZER,
};

/* How often a writer looks whether slots can be released. */
#define RELINKS_A_RECLAIM 32
/* The nearest neighbours of a list that tell where it is to be. */
#define NEAR_LISTS 16
/* A list is worth so many neighbours to the page where it is. */
#define OWN_PAGE_BONUS 2

static pthread_mutex_t *
stripe_of(const nv_store *store, uint32_t vertex)
{
	uint64_t hash = ((uint64_t) store->cache_file << 32 | vertex) *
					UINT64_C(0x9e3779b97f4a7c15);

	return &stripes[hash >> 48];
}

/* With the vertex's stripe and the gate held. */
static void
set_word(nv_store *store, uint32_t vertex, uint64_t word)
{
	atomic_store(nv_map_field(store, vertex, NV_MAP_WORD), word);
	atomic_store(&store->dirty, true);
}

nv_status
nv_writer_create(nv_store *store, nv_writer **writer, nv_error *err)
{
	nv_writer *w = nv_alloc(sizeof(*w));

	if (w == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a writer");
	w->store = store;
	pthread_mutex_lock(&store->writers_lock);
	w->next = store->writers;
	if (w->next != NULL)
		w->next->prev = w;
	store->writers = w;
	pthread_mutex_unlock(&store->writers_lock);
	*writer = w;
	return NV_OK;
}

void
nv_writer_set_cancel(nv_writer *writer, nv_cancel_fn cancel, void *arg)
{
	writer->cancel = cancel;
	writer->cancel_arg = arg;
}

void
nv_writer_destroy(nv_writer *writer)
{
	nv_store *store;

	if (writer == NULL)
		return;
	store = writer->store;
	pthread_rwlock_rdlock(&store->gate);
	for (uint32_t i = 0; i < writer->n_open; i++)
		nv_rmw_seal(store, writer->open[i]);
	if (writer->main != NULL)
		nv_rmw_seal(store, writer->main);
	writer->n_open = 0;
	writer->main = NULL;
	pthread_rwlock_unlock(&store->gate);
	if (writer->taken != NV_TOOK_NONE)
		nv_edges_give_back(store, writer->taken_page);

	pthread_mutex_lock(&store->writers_lock);
	if (writer->prev != NULL)
		writer->prev->next = writer->next;
	else
		store->writers = writer->next;
	if (writer->next != NULL)
		writer->next->prev = writer->prev;
	pthread_mutex_unlock(&store->writers_lock);
	nv_unit_give_back(store, &writer->unit);
	nv_rmw_page_free(writer->spare);
	free(writer);
}

static nv_status
check_list(const nv_store *store, uint32_t vertex, const uint32_t *ids,
		   uint32_t degree, nv_error *err)
{
	uint32_t vertices = atomic_load(&store->vertices);

	if (vertex >= vertices || degree > store->params.max_degree)
		return nv_fail(err, NV_EINVAL, 0,
					   "list of vertex %u with %u neighbours: below %u and at "
					   "most %u expected",
					   vertex, degree, vertices, store->params.max_degree);
	for (uint32_t i = 0; i < degree; i++)
		if (ids[i] >= vertices || ids[i] == vertex)
			return nv_fail(err, NV_EINVAL, 0, "list of vertex %u names %u",
						   vertex, ids[i]);
	return NV_OK;
}

/* What may take time or fail: without any lock. */
static nv_status
prepare(nv_writer *w, nv_error *err)
{
	nv_store *store = w->store;
	uint64_t free_pages, pages;
	nv_status status = nv_store_check(store, err);

	if (status == NV_OK)
		status = nv_rmw_await_room(w, err);
	if (status != NV_OK)
		return status;
	if (w->spare == NULL)
		w->spare = nv_rmw_page_alloc(err);
	if (w->spare == NULL)
		return NV_ENOMEM;
	if (++w->relinks >= RELINKS_A_RECLAIM)
	{
		w->relinks = 0;
		nv_edges_reclaim(store);
	}
	pthread_mutex_lock(&store->edges.allocator);
	free_pages = store->edges.free_count;
	pages = store->edges.pages;
	pthread_mutex_unlock(&store->edges.allocator);
	if (free_pages < NV_SPARE_PAGES)
		status = nv_edges_reserve(
			store, NV_MIN(pages + NV_SPARE_PAGES, NV_MAX_EDGE_PAGES), err);
	return status;
}

/* --- Which page --- */

/* Pages of the nearest neighbours, and how many lie on each. */
static uint32_t
find_near(const nv_store *store, uint64_t old, const uint32_t *ids,
		  uint32_t degree, nv_near_page *near)
{
	uint32_t n = 0;

	/* A list that stays makes no other reader wait for its new page. */
	if (old != 0)
		near[n++] =
			(nv_near_page){.page = nv_word_page(old), .lists = OWN_PAGE_BONUS};
	degree = NV_MIN(degree, (uint32_t) NEAR_LISTS);
	for (uint32_t i = 0; i < degree; i++)
	{
		uint64_t word = nv_store_edge_word(store, ids[i]);
		uint32_t at = 0;

		if (word == 0)
			continue;
		while (at < n && near[at].page != nv_word_page(word))
			at++;
		if (at == n)
			near[n++] = (nv_near_page){.page = nv_word_page(word)};
		near[at].lists++;
	}
	return n;
}

static nv_rmw_page *
find_open(const nv_writer *w, uint64_t page)
{
	for (uint32_t i = 0; i < w->n_open; i++)
		if (w->open[i]->page == page)
			return w->open[i];
	return NULL;
}

/* One page more is open; the first one makes place for it. */
static void
add_open(nv_writer *w, nv_rmw_page *page)
{
	if (w->n_open == NV_OPEN_PAGES)
	{
		nv_rmw_seal(w->store, w->open[w->turn]);
		w->open[w->turn] = page;
		w->turn = (w->turn + 1) % NV_OPEN_PAGES;
	}
	else
		w->open[w->n_open++] = page;
	page->room = nv_edges_room(w->store, page->page);
}

/* The page that was taken is in memory: into RMW with it. */
static nv_rmw_page *
add_taken(nv_writer *w)
{
	nv_rmw_page *page = w->spare;

	w->spare = NULL;
	w->taken = NV_TOOK_NONE;
	nv_rmw_add(w->store, page);
	if (!w->taken_main)
		add_open(w, page);
	else
	{
		if (w->main != NULL)
			nv_rmw_seal(w->store, w->main);
		w->main = page;
		page->room = nv_edges_room(w->store, page->page);
	}
	return page;
}

/* A near page with room: open, waiting to be written, or at rest. */
static nv_rmw_page *
have_page(nv_writer *w, uint64_t number, uint32_t units)
{
	nv_rmw_page *page = find_open(w, number);

	if (page == NULL && w->main != NULL && w->main->page == number)
		page = w->main;
	if (page == NULL && (page = nv_rmw_reopen(w->store, number)) != NULL)
		add_open(w, page);
	if (page != NULL)
		return page->room >= units ? page : NULL;
	if (nv_edges_take(w->store, number, units))
	{
		w->taken = NV_TOOK_USED;
		w->taken_page = number;
		w->taken_main = false;
	}
	return NULL;
}

/*
 * The page to write a list of so many units to: where most of its nearest
 * neighbours are, weighing less the fuller it is.  NULL: w->taken tells of one
 * that is to be fetched, or any is to be taken.  The gate is held.
 */
static nv_rmw_page *
choose_page(nv_writer *w, nv_near_page *near, uint32_t n, uint32_t units)
{
	nv_rmw_page *page = NULL;

	if (w->taken != NV_TOOK_NONE)
	{
		page = add_taken(w);
		if (page->room >= units)
			return page;
	}
	nv_edges_weigh(w->store, near, n, units);
	for (;;)
	{
		uint32_t best = 0;

		for (uint32_t i = 1; i < n; i++)
			if (near[i].weight > near[best].weight)
				best = i;
		if (n == 0 || near[best].weight == 0)
			break;
		page = have_page(w, near[best].page, units);
		if (page != NULL || w->taken != NV_TOOK_NONE)
			return page;
		near[best].weight = 0;
	}
	return w->main != NULL && w->main->room >= units ? w->main : NULL;
}

/* Fills the spare page with the bytes of the page that was taken. */
static nv_status
fetch_taken(nv_writer *w, nv_error *err)
{
	nv_store *store = w->store;
	uint8_t *bytes = w->spare->bytes;
	uint64_t ticket;
	nv_status status = NV_OK;

	w->spare->page = w->taken_page;
	if (w->taken == NV_TOOK_EMPTY)
	{
		memset(bytes, 0, NV_PAGE);
		return NV_OK;
	}
	if (nv_store_get_page(store, w->taken_page, NV_CACHE_PASSING, bytes,
						  &ticket) == NV_PAGE_MISS)
		status = nv_file_read(store->edges.file, bytes, NV_PAGE,
							  w->taken_page * NV_PAGE, err);
	if (status == NV_OK)
		nv_edges_measure(store, w->taken_page, bytes);
	else
	{
		nv_edges_give_back(store, w->taken_page);
		w->taken = NV_TOOK_NONE;
	}
	return status;
}

/* A page was taken, or there is one to take: makes it ready to be added. */
static nv_status
provide_page(nv_writer *w, uint32_t units, nv_error *err)
{
	nv_status status;

	for (;;)
	{
		status = prepare(w, err);
		if (status != NV_OK)
			break;
		if (w->taken == NV_TOOK_NONE)
		{
			w->taken = nv_edges_take_page(w->store, units, &w->taken_page);
			w->taken_main = true;
		}
		if (w->taken != NV_TOOK_NONE)
			return fetch_taken(w, err);
		/* Other writers took the pages: once more, unless there are no more. */
		if (nv_edges_full(w->store))
			return nv_fail(err, NV_ELIMIT, 0, "the edge file is full");
	}
	if (w->taken != NV_TOOK_NONE)
		nv_edges_give_back(w->store, w->taken_page);
	w->taken = NV_TOOK_NONE;
	return status;
}

/* --- The flip --- */

/* Gate and stripe are held, the word was checked, the page has room. */
static void
flip(nv_writer *w, nv_rmw_page *page, uint32_t vertex, uint64_t old,
	 const uint32_t *ids, uint32_t degree)
{
	nv_store *store = w->store;
	nv_rmw_partition *part = nv_rmw_partition_of(store, page->page);
	uint64_t sequence = nv_next_sequence(store);
	bool young;
	uint32_t unit = nv_edges_add_slot(store, page->page, nv_slot_units(degree),
									  old, &young);
	uint64_t word =
		nv_word_make(page->page, unit, sequence, (old & NV_LINKED) != 0);

	pthread_mutex_lock(&part->latch);
	nv_slot_write(page->bytes + (size_t) unit * NV_UNIT, vertex, sequence, ids,
				  degree);
	pthread_mutex_unlock(&part->latch);
	page->dirty = true;
	page->room = nv_edges_room(store, page->page);
	set_word(store, vertex, word);
	/* What was born since the last cut no root names. */
	if (old != 0)
		nv_retire_add(&store->retired, &store->readers, nv_word_slot(old),
					  young ? sequence : 0, sequence);
	else
		nv_retire_unreserve(&store->retired);
}

/* One try; NV_ELIMIT without a text: a page must be taken first. */
static nv_status
relink(nv_writer *w, uint32_t vertex, uint64_t expected, const uint32_t *ids,
	   uint32_t degree, nv_error *err)
{
	nv_store *store = w->store;
	pthread_mutex_t *stripe = stripe_of(store, vertex);
	nv_status status = NV_OK;
	nv_near_page near[NEAR_LISTS + 1];
	uint32_t n_near;
	nv_rmw_page *page;

	n_near = find_near(store, expected, ids, degree, near);
	pthread_rwlock_rdlock(&store->gate);
	page = choose_page(w, near, n_near, nv_slot_units(degree));
	if (page == NULL)
	{
		pthread_rwlock_unlock(&store->gate);
		return NV_ELIMIT;
	}
	pthread_mutex_lock(stripe);
	if (nv_store_edge_word(store, vertex) != expected)
		status =
			nv_fail(err, NV_EBUSY, 0, "the list of vertex %u changed", vertex);
	else
		status = nv_store_touch_map(store, vertex, NV_MAP_WORD, err);
	if (status == NV_OK)
		flip(w, page, vertex, expected, ids, degree);
	pthread_mutex_unlock(stripe);
	pthread_rwlock_unlock(&store->gate);
	return status;
}

nv_status
nv_store_relink(nv_writer *writer, uint32_t vertex, uint64_t expected,
				const uint32_t *ids, uint32_t degree, nv_error *err)
{
	nv_store *store = writer->store;
	nv_status status = check_list(store, vertex, ids, degree, err);

	if (status == NV_OK)
		status = prepare(writer, err);
	if (status == NV_OK)
		status = nv_retire_reserve(&store->retired, err);
	if (status != NV_OK)
		return status;
	for (;;)
	{
		status = relink(writer, vertex, expected, ids, degree, err);
		if (status != NV_ELIMIT)
			break;
		status = provide_page(writer, nv_slot_units(degree), err);
		if (status != NV_OK)
			break;
	}
	if (status != NV_OK)
		nv_retire_unreserve(&store->retired);
	return status;
}

/*
 * Holds a vertex's list, which must be there, for set_word; unlock_list lets go
 * of it.  Nothing is held after an error.
 */
static nv_status
lock_list(nv_store *store, uint32_t vertex, uint64_t *word, nv_error *err)
{
	nv_status status;

	pthread_rwlock_rdlock(&store->gate);
	pthread_mutex_lock(stripe_of(store, vertex));
	*word = nv_store_edge_word(store, vertex);
	if (*word == 0)
		status = nv_fail(err, NV_EINVAL, 0, "vertex %u has no list", vertex);
	else
		status = nv_store_touch_map(store, vertex, NV_MAP_WORD, err);
	if (status == NV_OK)
		return NV_OK;
	pthread_mutex_unlock(stripe_of(store, vertex));
	pthread_rwlock_unlock(&store->gate);
	return status;
}

static void
unlock_list(nv_store *store, uint32_t vertex)
{
	pthread_mutex_unlock(stripe_of(store, vertex));
	pthread_rwlock_unlock(&store->gate);
}

nv_status
nv_store_set_linked(nv_store *store, uint32_t vertex, nv_error *err)
{
	nv_status status = nv_store_check(store, err);
	uint64_t word;

	if (status == NV_OK)
		status = lock_list(store, vertex, &word, err);
	if (status != NV_OK)
		return status;
	set_word(store, vertex, word | NV_LINKED);
	unlock_list(store, vertex);
	return NV_OK;
}

/*
 * The list of a vertex goes, with nothing in its place.  Whoever moves lists
 * finds the word changed.
 */
nv_status
nv_store_drop_list(nv_store *store, uint32_t vertex, uint64_t *death,
				   nv_error *err)
{
	nv_status status = nv_store_check(store, err);
	uint64_t word, birth;

	if (status == NV_OK)
		status = nv_retire_reserve(&store->retired, err);
	if (status != NV_OK)
		return status;
	status = lock_list(store, vertex, &word, err);
	if (status != NV_OK)
	{
		nv_retire_unreserve(&store->retired);
		return status;
	}
	*death = nv_next_sequence(store);
	birth = nv_edges_is_young(store, word) ? *death : 0;
	set_word(store, vertex, 0);
	nv_retire_add(&store->retired, &store->readers, nv_word_slot(word), birth,
				  *death);
	unlock_list(store, vertex);
	return NV_OK;
}
