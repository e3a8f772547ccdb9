/*
 * edge_file.c
 *		Slots, pages of the edge file, and bulk writing of lists.
 *
 * A slot never moves and never changes; a page is written once in each of its
 * lives.  For every page the number of slots not yet released is kept; when
 * the last one goes, and the page is not being written, the page is free as a
 * whole.  Free pages are used before the file grows.
 *
 * Source: design.md section 4, "Decoupled layout", "Checkpoint protocol" 1.
 */
#include "navis/hash.h"
#include "store_internal.h"

#define GROW_PAGES 64  /* space is reserved in steps of this many pages */
#define GROW_SHARE 32  /* or this part of the file */
#define BULK_PAGES 256 /* pages a write of bulk edges, 1 MiB */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
			   "the files are little-endian");

/* --- Slots --- */

#define SLOT_CRC_OFFSET 12

static uint32_t
slot_crc(const uint8_t *slot, uint32_t degree)
{
	static const uint8_t zero[4];
	uint32_t crc = nv_crc32c(0, slot, SLOT_CRC_OFFSET);

	crc = nv_crc32c(crc, zero, sizeof(zero));
	return nv_crc32c(crc, slot + NV_SLOT_HEADER, degree * 4);
}

void
nv_slot_write(uint8_t *slot, uint32_t vertex, uint64_t sequence,
			  const uint32_t *ids, uint32_t degree)
{
	/* The sequence has 48 bits: bytes 6 to 11. */
	uint64_t head = degree | sequence << 16;
	uint32_t crc;

	memcpy(slot, &vertex, 4);
	memcpy(slot + 4, &head, 8);
	if (degree > 0)
		memcpy(slot + NV_SLOT_HEADER, ids, (size_t) degree * 4);
	crc = slot_crc(slot, degree);
	memcpy(slot + SLOT_CRC_OFFSET, &crc, 4);
}

const uint32_t *
nv_slot_find(const nv_store *store, const uint8_t *page, uint64_t word,
			 uint32_t vertex, uint32_t *degree)
{
	uint32_t unit = nv_word_unit(word);
	const uint8_t *slot = page + (size_t) unit * NV_UNIT;
	uint32_t id, crc, n;
	uint32_t vertices = atomic_load(&store->vertices);
	const uint32_t *ids;
	uint64_t head;

	if (word == 0)
		return NULL;
	memcpy(&id, slot, 4);
	memcpy(&head, slot + 4, 8);
	memcpy(&crc, slot + SLOT_CRC_OFFSET, 4);
	n = (uint32_t) (head & UINT16_MAX);
	if (id != vertex || (head >> 16 & NV_TAG_MASK) != nv_word_tag(word) ||
		n > store->params.max_degree ||
		unit + nv_slot_units(n) > NV_PAGE_UNITS || crc != slot_crc(slot, n))
		return NULL;
	ids = (const uint32_t *) (const void *) (slot + NV_SLOT_HEADER);
	for (uint32_t i = 0; i < n; i++)
		if (ids[i] >= vertices)
			return NULL;
	*degree = n;
	return ids;
}

void
nv_store_page_lists(const nv_store *store, uint64_t page, const uint8_t *bytes,
					nv_page_lists *lists)
{
	uint32_t vertices = atomic_load(&store->vertices), n;

	lists->n = lists->units = 0;
	for (uint32_t unit = 0; unit < NV_PAGE_UNITS; unit += n)
	{
		const uint8_t *slot = bytes + (size_t) unit * NV_UNIT;
		uint32_t id;
		uint64_t head, word;

		memcpy(&id, slot, 4);
		memcpy(&head, slot + 4, 8);
		n = nv_slot_units((uint32_t) (head & UINT16_MAX));
		/* No sequence is 0: the rest of the page was never written. */
		if (head >> 16 == 0 || id >= vertices || unit + n > NV_PAGE_UNITS)
			break;
		word = nv_store_edge_word(store, id);
		if (word == 0 || nv_word_page(word) != page ||
			nv_word_unit(word) != unit ||
			nv_word_tag(word) != (head >> 16 & NV_TAG_MASK))
			continue;
		lists->vertex[lists->n] = id;
		lists->word[lists->n++] = word;
		lists->units += n;
	}
}

/* --- Pages --- */

/* Called with the allocator held; more memory for counts and free pages. */
static nv_status
grow_tables(nv_edges *edges, uint64_t capacity, nv_error *err)
{
	nv_page_info *info;
	uint32_t *stack;

	info = realloc(edges->info, capacity * sizeof(*info));
	if (info != NULL)
		edges->info = info;
	stack = realloc(edges->free, capacity * sizeof(*stack));
	if (stack != NULL)
		edges->free = stack;
	if (info == NULL || stack == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %llu edge pages",
					   (unsigned long long) capacity);
	memset(edges->info + edges->capacity, 0,
		   (capacity - edges->capacity) * sizeof(*info));
	edges->capacity = capacity;
	return NV_OK;
}

static uint64_t
capacity_now(nv_edges *edges)
{
	uint64_t capacity;

	pthread_mutex_lock(&edges->allocator);
	capacity = edges->capacity;
	pthread_mutex_unlock(&edges->allocator);
	return capacity;
}

/* Called with `growing` held, which keeps the file from growing twice. */
static nv_status
grow(nv_edges *edges, uint64_t pages, nv_error *err)
{
	uint64_t have = capacity_now(edges);
	uint64_t want = NV_MAX(pages, have + have / GROW_SHARE);
	nv_status status;

	if (pages <= have)
		return NV_OK;
	if (pages > NV_MAX_EDGE_PAGES)
		return nv_fail(err, NV_ELIMIT, 0,
					   "an index's edge file holds at most %llu pages",
					   (unsigned long long) NV_MAX_EDGE_PAGES);
	want = NV_MIN(nv_round_up(want, GROW_PAGES), NV_MAX_EDGE_PAGES);
	/* Pages below the capacity are written meanwhile, none above. */
	status = nv_file_reserve(edges->file, want * NV_PAGE, err);
	if (status == NV_ENOSPC && want > pages)
	{
		want = pages; /* a disk that is almost full */
		status = nv_file_reserve(edges->file, want * NV_PAGE, err);
	}
	if (status != NV_OK)
		return status;
	pthread_mutex_lock(&edges->allocator);
	status = grow_tables(edges, want, err);
	pthread_mutex_unlock(&edges->allocator);
	return status;
}

nv_status
nv_edges_reserve(nv_store *store, uint64_t pages, nv_error *err)
{
	nv_edges *edges = &store->edges;
	nv_status status;

	if (pages <= capacity_now(edges))
		return NV_OK;
	pthread_mutex_lock(&edges->growing);
	status = grow(edges, pages, err);
	pthread_mutex_unlock(&edges->growing);
	return status;
}

bool
nv_edges_have_room(nv_store *store, uint64_t pages)
{
	nv_edges *edges = &store->edges;
	bool have;

	pthread_mutex_lock(&edges->allocator);
	have = edges->free_count + (edges->capacity - edges->pages) >= pages;
	pthread_mutex_unlock(&edges->allocator);
	return have;
}

nv_status
nv_edges_make_room(nv_store *store, uint64_t pages, nv_error *err)
{
	nv_edges *edges = &store->edges;
	uint64_t all;

	pthread_mutex_lock(&edges->allocator);
	all = edges->pages + (pages - NV_MIN(pages, edges->free_count));
	pthread_mutex_unlock(&edges->allocator);
	return nv_edges_reserve(store, NV_MIN(all, NV_MAX_EDGE_PAGES), err);
}

bool
nv_edges_full(nv_store *store)
{
	nv_edges *edges = &store->edges;
	bool full;

	pthread_mutex_lock(&edges->allocator);
	full = edges->free_count == 0 && edges->pages == NV_MAX_EDGE_PAGES;
	pthread_mutex_unlock(&edges->allocator);
	return full;
}

bool
nv_edges_take_page(nv_store *store, uint64_t *page)
{
	nv_edges *edges = &store->edges;
	bool found = true;

	pthread_mutex_lock(&edges->allocator);
	if (edges->free_count > 0)
		*page = edges->free[--edges->free_count];
	else if (edges->pages < edges->capacity)
		*page = edges->pages++;
	else
		found = false;
	if (found)
	{
		nv_page_info *info = &edges->info[*page];

		nv_assert(info->state == NV_PAGE_FREE && info->live == 0);
		info->state = NV_PAGE_IN_RMW;
		info->open = true;
		/*
		 * The gate is held: no cut comes before the page has its first slot
		 * that does not also seal the page.
		 */
		info->birth = atomic_load(&store->sequence) + 1;
	}
	pthread_mutex_unlock(&edges->allocator);
	return found;
}

uint64_t
nv_edges_add_slot(nv_store *store, uint64_t page, uint64_t old)
{
	nv_edges *edges = &store->edges;
	uint64_t birth;

	pthread_mutex_lock(&edges->allocator);
	nv_assert(edges->info[page].state == NV_PAGE_IN_RMW);
	nv_assert(edges->info[page].live < NV_PAGE_UNITS);
	edges->info[page].live++;
	edges->live_slots++;
	birth = edges->info[old].birth;
	pthread_mutex_unlock(&edges->allocator);
	return birth;
}

/* Called with the allocator held. */
static void
free_if_empty(nv_edges *edges, uint64_t page)
{
	nv_page_info *info = &edges->info[page];

	if (info->live > 0 || info->state != NV_PAGE_WRITTEN)
		return;
	info->state = NV_PAGE_FREE;
	nv_assert(edges->free_count < edges->capacity);
	edges->free[edges->free_count++] = (uint32_t) page;
}

void
nv_edges_release_slot(nv_store *store, uint64_t page)
{
	nv_edges *edges = &store->edges;

	pthread_mutex_lock(&edges->allocator);
	nv_assert(edges->info[page].live > 0 && edges->live_slots > 0);
	edges->info[page].live--;
	edges->live_slots--;
	free_if_empty(edges, page);
	pthread_mutex_unlock(&edges->allocator);
}

void
nv_edges_page_sealed(nv_store *store, uint64_t page)
{
	pthread_mutex_lock(&store->edges.allocator);
	store->edges.info[page].open = false;
	pthread_mutex_unlock(&store->edges.allocator);
}

bool
nv_store_page_open(nv_store *store, uint64_t page)
{
	bool open;

	pthread_mutex_lock(&store->edges.allocator);
	open = page < store->edges.pages && store->edges.info[page].open;
	pthread_mutex_unlock(&store->edges.allocator);
	return open;
}

void
nv_edges_page_written(nv_store *store, uint64_t page)
{
	nv_edges *edges = &store->edges;

	pthread_mutex_lock(&edges->allocator);
	nv_assert(edges->info[page].state == NV_PAGE_IN_RMW);
	edges->info[page].state = NV_PAGE_WRITTEN;
	free_if_empty(edges, page);
	pthread_mutex_unlock(&edges->allocator);
}

void
nv_edges_reclaim(nv_store *store)
{
	uint64_t pages[256];
	uint32_t n;

	do
	{
		n = nv_retire_release(&store->retired, &store->readers, pages,
							  NV_LENGTH(pages));
		for (uint32_t i = 0; i < n; i++)
			nv_edges_release_slot(store, pages[i]);
	} while (n == NV_LENGTH(pages));
}

/* Counts the slot an edge word names; false: out of bounds. */
static bool
count_word(nv_edges *edges, uint64_t word)
{
	uint64_t page = nv_word_page(word);

	if (word == 0)
		return true;
	if (page >= edges->pages || nv_word_tag(word) == 0 ||
		edges->info[page].live == NV_PAGE_UNITS)
		return false;
	edges->info[page].live++;
	edges->live_slots++;
	return true;
}

nv_status
nv_edges_recount(nv_store *store, uint64_t pages, nv_error *err)
{
	nv_edges *edges = &store->edges;
	uint32_t vertices = atomic_load(&store->vertices);
	nv_status status = NV_OK;

	edges->pages = pages;
	edges->free_count = edges->live_slots = 0;
	if (pages > edges->capacity)
		status = grow_tables(edges, pages, err);
	if (status != NV_OK)
		return status;
	if (edges->capacity > 0)
		memset(edges->info, 0, edges->capacity * sizeof(*edges->info));
	for (uint32_t v = 0; v < vertices; v++)
	{
		uint64_t word = nv_store_edge_word(store, v);

		if (!count_word(edges, word))
			return nv_fail(err, NV_ECORRUPT, 0,
						   "edge word %#llx of vertex %u is out of bounds",
						   (unsigned long long) word, v);
	}
	/* The lowest pages are to be used first. */
	for (uint64_t p = pages; p-- > 0;)
	{
		edges->info[p].state = NV_PAGE_WRITTEN;
		free_if_empty(edges, p);
	}
	return NV_OK;
}

/* --- Bulk --- */

typedef struct bulk
{
	nv_store *store;
	const nv_graph *graph;
	uint32_t *order; /* vertices by page */
	uint32_t *first; /* of each page in order; pages + 1 */
	uint8_t *buffer; /* BULK_PAGES pages */
} bulk;

static nv_status
bulk_check(const nv_store *store, const nv_graph *graph, const uint32_t *page,
		   uint32_t pages, nv_error *err)
{
	if (graph->n != atomic_load(&store->vertices) || store->edges.pages > 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "bulk edges need an empty edge file and as many lists "
					   "as vectors: %u lists, %u vectors",
					   graph->n, atomic_load(&store->vertices));
	for (uint32_t v = 0; v < graph->n; v++)
	{
		uint64_t degree = graph->offset[v + 1] - graph->offset[v];

		if (degree > store->params.max_degree || page[v] >= pages)
			return nv_fail(err, NV_EINVAL, 0,
						   "list of vertex %u: degree %llu on page %u, at "
						   "most %u and below %u expected",
						   v, (unsigned long long) degree, page[v],
						   store->params.max_degree, pages);
		for (uint64_t e = graph->offset[v]; e < graph->offset[v + 1]; e++)
			if (graph->edges[e] >= graph->n)
				return nv_fail(err, NV_EINVAL, 0,
							   "list of vertex %u names vertex %u of %u", v,
							   graph->edges[e], graph->n);
	}
	return NV_OK;
}

/* Counting sort of the vertices by page. */
static nv_status
bulk_sort(bulk *b, const uint32_t *page, uint32_t pages, nv_error *err)
{
	uint32_t n = b->graph->n;

	b->order = nv_alloc_array(n, sizeof(*b->order));
	b->first = nv_alloc_array((size_t) pages + 2, sizeof(*b->first));
	b->buffer = aligned_alloc(NV_BLOCK, BULK_PAGES * NV_PAGE);
	if (b->order == NULL || b->first == NULL || b->buffer == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory to sort %u edge lists by page", n);
	for (uint32_t v = 0; v < n; v++)
		b->first[page[v] + 2]++;
	for (uint32_t p = 2; p < pages + 2; p++)
		b->first[p] += b->first[p - 1];
	for (uint32_t v = 0; v < n; v++)
		b->order[b->first[page[v] + 1]++] = v;
	return NV_OK;
}

/* Builds one page and enters its lists in the map. */
static nv_status
bulk_page(bulk *b, uint32_t page, uint8_t *bytes, nv_error *err)
{
	nv_store *store = b->store;
	uint32_t unit = 0;

	memset(bytes, 0, NV_PAGE);
	for (uint32_t i = b->first[page]; i < b->first[page + 1]; i++)
	{
		uint32_t v = b->order[i];
		const uint32_t *ids = b->graph->edges + b->graph->offset[v];
		uint32_t degree =
			(uint32_t) (b->graph->offset[v + 1] - b->graph->offset[v]);
		uint64_t sequence = nv_next_sequence(store);
		nv_status status;

		if (unit + nv_slot_units(degree) > NV_PAGE_UNITS)
			return nv_fail(err, NV_EINVAL, 0,
						   "lists placed on page %u do not fit it", page);
		nv_slot_write(bytes + (size_t) unit * NV_UNIT, v, sequence, ids,
					  degree);
		status = nv_store_touch_map(store, v, NV_MAP_WORD, err);
		if (status != NV_OK)
			return status;
		atomic_store(nv_map_field(store, v, NV_MAP_WORD),
					 nv_word_make(page, unit, sequence, true));
		unit += nv_slot_units(degree);
	}
	return NV_OK;
}

static nv_status
bulk_write(bulk *b, uint32_t pages, nv_cancel_fn cancel, void *cancel_arg,
		   nv_error *err)
{
	nv_status status = NV_OK;

	for (uint32_t p = 0, n; p < pages && status == NV_OK; p += n)
	{
		n = NV_MIN(pages - p, BULK_PAGES);
		if (cancel != NULL && cancel(cancel_arg))
			return nv_fail(err, NV_ECANCELLED, 0, "writing edge lists stopped");
		pthread_rwlock_rdlock(&b->store->gate);
		for (uint32_t i = 0; i < n && status == NV_OK; i++)
			status = bulk_page(b, p + i, b->buffer + (size_t) i * NV_PAGE, err);
		pthread_rwlock_unlock(&b->store->gate);
		if (status == NV_OK)
			status = nv_file_write(b->store->edges.file, b->buffer,
								   (size_t) n * NV_PAGE, (uint64_t) p * NV_PAGE,
								   err);
	}
	return status;
}

nv_status
nv_store_bulk_edges(nv_store *store, const nv_graph *graph,
					const uint32_t *page, uint32_t pages, nv_cancel_fn cancel,
					void *cancel_arg, nv_error *err)
{
	bulk b = {.store = store, .graph = graph};
	nv_status status = bulk_check(store, graph, page, pages, err);

	if (status == NV_OK)
		status = nv_edges_reserve(store, pages, err);
	if (status == NV_OK)
		status = bulk_sort(&b, page, pages, err);
	if (status == NV_OK)
	{
		status = bulk_write(&b, pages, cancel, cancel_arg, err);
		if (status == NV_OK)
			status = nv_edges_recount(store, pages, err);
		if (status != NV_OK)
			nv_store_fail(store); /* the map names lists that are not there */
		atomic_store(&store->dirty, true);
	}
	free(b.order);
	free(b.first);
	free(b.buffer);
	return status;
}
