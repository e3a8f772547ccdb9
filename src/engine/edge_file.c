/*
 * edge_file.c
 *		Slots of the edge file, and bulk writing of lists.
 *
 * A slot never moves and never changes.
 *
 * Source: design.md section 4, "Decoupled layout", "Checkpoint protocol" 1.
 */
#include "navis/hash.h"
#include "store_internal.h"

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

uint32_t
nv_slot_measure(const uint8_t *page, uint32_t unit, uint32_t max_degree)
{
	const uint8_t *slot = page + (size_t) unit * NV_UNIT;
	uint32_t crc, n;
	uint64_t head;

	memcpy(&head, slot + 4, 8);
	memcpy(&crc, slot + SLOT_CRC_OFFSET, 4);
	n = (uint32_t) (head & UINT16_MAX);
	if (n > max_degree || unit + nv_slot_units(n) > NV_PAGE_UNITS ||
		crc != slot_crc(slot, n))
		return 0;
	return nv_slot_units(n);
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
			nv_store_fail(store,
						  NULL); /* the map names lists that are not there */
		atomic_store(&store->dirty, true);
	}
	free(b.order);
	free(b.first);
	free(b.buffer);
	return status;
}
