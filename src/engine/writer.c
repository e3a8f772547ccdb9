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

/* Pages beyond those in use that there must be space for: one a writer. */
#define SPARE_PAGES 64
/* How often a writer looks whether slots can be released. */
#define RELINKS_A_RECLAIM 32

static pthread_mutex_t *
stripe_of(const nv_store *store, uint32_t vertex)
{
	uint64_t hash = ((uint64_t) store->cache_file << 32 | vertex) *
					UINT64_C(0x9e3779b97f4a7c15);

	return &stripes[hash >> 48];
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
nv_writer_destroy(nv_writer *writer)
{
	nv_store *store;

	if (writer == NULL)
		return;
	store = writer->store;
	pthread_rwlock_rdlock(&store->gate);
	if (writer->open != NULL)
		nv_rmw_seal(store, writer->open);
	writer->open = NULL;
	pthread_rwlock_unlock(&store->gate);

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
	uint64_t sealed, free_pages, pages;
	nv_status status = nv_store_check(store, err);

	if (status != NV_OK)
		return status;
	pthread_mutex_lock(&store->rmw.lock);
	sealed = store->rmw.sealed_count;
	pthread_mutex_unlock(&store->rmw.lock);
	if (sealed >= NV_RMW_MAX_SEALED)
	{
		status = nv_store_write_back(store, err);
		if (status != NV_OK)
			return status;
	}
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
	if (free_pages < SPARE_PAGES)
		status = nv_edges_reserve(
			store, NV_MIN(pages + SPARE_PAGES, NV_MAX_EDGE_PAGES), err);
	if (status == NV_OK)
		status = nv_retire_reserve(&store->retired, err);
	return status;
}

/* The gate is held.  False: there is no page, reserve more space. */
static bool
open_page_for(nv_writer *w, uint32_t units)
{
	uint64_t page;

	if (w->open != NULL && w->open->used + units <= NV_PAGE_UNITS)
		return true;
	if (!nv_edges_take_page(w->store, &page))
		return false;
	if (w->open != NULL)
		nv_rmw_seal(w->store, w->open);
	w->open = w->spare;
	w->spare = NULL;
	w->open->page = page;
	nv_rmw_add(w->store, w->open);
	return true;
}

/* Gate and stripe are held, the word was checked, the open page has room. */
static void
flip(nv_writer *w, uint32_t vertex, uint64_t old, const uint32_t *ids,
	 uint32_t degree)
{
	nv_store *store = w->store;
	nv_rmw_page *open = w->open;
	nv_rmw_partition *part = nv_rmw_partition_of(store, open->page);
	uint64_t sequence = nv_next_sequence(store);
	uint64_t old_page = old != 0 ? nv_word_page(old) : open->page;
	uint64_t birth = nv_edges_add_slot(store, open->page, old_page);
	uint64_t word =
		nv_word_make(open->page, open->used, sequence, (old & NV_LINKED) != 0);

	pthread_mutex_lock(&part->latch);
	nv_slot_write(open->bytes + (size_t) open->used * NV_UNIT, vertex, sequence,
				  ids, degree);
	pthread_mutex_unlock(&part->latch);
	open->used += nv_slot_units(degree);
	atomic_store(nv_map_field(store, vertex, NV_MAP_WORD), word);
	atomic_store(&store->dirty, true);
	if (old != 0)
		nv_retire_add(&store->retired, &store->readers, old_page, birth,
					  sequence);
	else
		nv_retire_unreserve(&store->retired);
}

/* One try; NV_ELIMIT without a text: the file has no free page left. */
static nv_status
relink(nv_writer *w, uint32_t vertex, uint64_t expected, const uint32_t *ids,
	   uint32_t degree, nv_error *err)
{
	nv_store *store = w->store;
	pthread_mutex_t *stripe = stripe_of(store, vertex);
	nv_status status = NV_OK;

	pthread_rwlock_rdlock(&store->gate);
	if (!open_page_for(w, nv_slot_units(degree)))
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
		flip(w, vertex, expected, ids, degree);
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

	if (status != NV_OK)
		return status;
	do
	{
		status = prepare(writer, err);
		if (status != NV_OK)
			return status;
		status = relink(writer, vertex, expected, ids, degree, err);
		if (status != NV_OK)
			nv_retire_unreserve(&store->retired);
		/* Other writers took the pages: once more, unless there are no more. */
		if (status == NV_ELIMIT && nv_edges_full(store))
			return nv_fail(err, NV_ELIMIT, 0, "the edge file is full");
	} while (status == NV_ELIMIT);
	return status;
}

nv_status
nv_store_set_linked(nv_store *store, uint32_t vertex, nv_error *err)
{
	pthread_mutex_t *stripe = stripe_of(store, vertex);
	nv_status status = nv_store_check(store, err);
	uint64_t word;

	if (status != NV_OK)
		return status;
	pthread_rwlock_rdlock(&store->gate);
	pthread_mutex_lock(stripe);
	word = nv_store_edge_word(store, vertex);
	if (word == 0)
		status = nv_fail(err, NV_EINVAL, 0, "vertex %u has no list", vertex);
	else
		status = nv_store_touch_map(store, vertex, NV_MAP_WORD, err);
	if (status == NV_OK)
	{
		atomic_store(nv_map_field(store, vertex, NV_MAP_WORD),
					 word | NV_LINKED);
		atomic_store(&store->dirty, true);
	}
	pthread_mutex_unlock(stripe);
	pthread_rwlock_unlock(&store->gate);
	return status;
}

/*
 * The list of a vertex goes, with nothing in its place.  Whoever moves lists
 * finds the word changed.
 */
nv_status
nv_store_drop_list(nv_store *store, uint32_t vertex, uint64_t *death,
				   nv_error *err)
{
	pthread_mutex_t *stripe = stripe_of(store, vertex);
	nv_status status = nv_store_check(store, err);
	uint64_t word, page, birth;

	if (status == NV_OK)
		status = nv_retire_reserve(&store->retired, err);
	if (status != NV_OK)
		return status;
	pthread_rwlock_rdlock(&store->gate);
	pthread_mutex_lock(stripe);
	word = nv_store_edge_word(store, vertex);
	if (word == 0)
		status = nv_fail(err, NV_EINVAL, 0, "vertex %u has no list", vertex);
	else
		status = nv_store_touch_map(store, vertex, NV_MAP_WORD, err);
	if (status == NV_OK)
	{
		page = nv_word_page(word);
		*death = nv_next_sequence(store);
		pthread_mutex_lock(&store->edges.allocator);
		birth = store->edges.info[page].birth;
		pthread_mutex_unlock(&store->edges.allocator);
		atomic_store(nv_map_field(store, vertex, NV_MAP_WORD), 0);
		atomic_store(&store->dirty, true);
		nv_retire_add(&store->retired, &store->readers, page, birth, *death);
	}
	pthread_mutex_unlock(stripe);
	pthread_rwlock_unlock(&store->gate);
	if (status != NV_OK)
		nv_retire_unreserve(&store->retired);
	return status;
}
