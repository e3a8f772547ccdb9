/*
 * check_graph.c
 *		CHECK: lists, vectors, and what can be reached.
 */
#include "check.h"

#include "entrance_internal.h"
#include "navis/hash.h"
#include "store_internal.h"

#define BATCH (UINT32_C(1) << 22)       /* vertices sorted by page at a time */
#define EPOCH_STEPS 256                 /* lists read inside one epoch */
#define WINDOW ((uint32_t) 1024 * 1024) /* of a file, read at once, bytes */

static int
by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

	return x < y ? -1 : x > y;
}

/* --- Reading lists --- */

typedef struct page_copy
{
	uint64_t page; /* UINT64_MAX: none */
	uint8_t *bytes;
	nv_status status;
} page_copy;

static void
read_page(nv_store *store, uint64_t page, page_copy *copy)
{
	uint64_t ticket;

	copy->page = page;
	copy->status = NV_OK;
	if (nv_store_get_page(store, page, NV_CACHE_PASSING, copy->bytes,
						  &ticket) == NV_PAGE_MISS)
		copy->status = nv_file_read(store->edges.file, copy->bytes, NV_PAGE,
									page * NV_PAGE, NULL);
}

/*
 * The list of a vertex now, inside an epoch; NULL: it has none (*word is 0), or
 * what is there is no list of it.
 */
static const uint32_t *
find_list(nv_store *store, uint32_t v, page_copy *copy, uint64_t *word,
		  uint32_t *degree)
{
	const uint32_t *ids = NULL;

	*word = nv_store_edge_word(store, v);
	for (bool again = false; *word != 0 && ids == NULL; again = true)
	{
		uint64_t now;

		if (again || copy->page != nv_word_page(*word))
			read_page(store, nv_word_page(*word), copy);
		if (copy->status == NV_OK)
			ids = nv_slot_find(store, copy->bytes, *word, v, degree);
		now = nv_store_edge_word(store, v);
		if (ids == NULL && again && now == *word)
			break;
		*word = ids == NULL ? now : *word;
	}
	return ids;
}

/* --- Lists --- */

typedef struct placed
{
	uint64_t page;
	uint32_t vertex;
} placed;

static int
by_page(const void *a, const void *b)
{
	const placed *x = a, *y = b;

	return x->page < y->page ? -1 : x->page > y->page;
}

static void
check_ids(nv_check *check, uint32_t v, const uint32_t *ids, uint32_t degree)
{
	nv_store *store = check->body->store;
	uint32_t sorted[NV_MAX_DEGREE];

	nv_assert(degree <= NV_MAX_DEGREE);
	memcpy(sorted, ids, degree * sizeof(*ids));
	qsort(sorted, degree, sizeof(*sorted), by_number);
	for (uint32_t i = 0; i < degree; i++)
	{
		if (sorted[i] == v)
			nv_check_found(check, NV_WEAKNESS, v, NV_NO_ELEMENT,
						   "its list names the vertex itself");
		else if (i > 0 && sorted[i] == sorted[i - 1])
			nv_check_found(check, NV_WEAKNESS, v, NV_NO_ELEMENT,
						   "its list names vertex %u twice", sorted[i]);
		else if (nv_store_edge_word(store, sorted[i]) == 0)
			nv_check_found(check, NV_WEAKNESS, v, NV_NO_ELEMENT,
						   "its list names vertex %u, which has none",
						   sorted[i]);
	}
}

static void
check_list(nv_check *check, uint32_t v, page_copy *copy)
{
	uint32_t degree = 0;
	uint64_t word;
	const uint32_t *ids =
		find_list(check->body->store, v, copy, &word, &degree);

	if (word == 0)
		return;
	if (copy->status != NV_OK)
		nv_check_found(check, NV_DAMAGE, v, NV_NO_ELEMENT,
					   "page %llu with its list cannot be read",
					   (unsigned long long) nv_word_page(word));
	else if (ids == NULL)
		nv_check_found(check, NV_DAMAGE, v, NV_NO_ELEMENT,
					   "page %llu does not hold its list, or checksum or "
					   "bounds are wrong",
					   (unsigned long long) nv_word_page(word));
	else
		check_ids(check, v, ids, degree);
}

/* Lists of vertices from..end, in the order of their pages. */
static nv_status
check_batch(nv_check *check, uint32_t from, uint32_t end, placed *order,
			page_copy *copy, nv_error *err)
{
	nv_store *store = check->body->store;
	nv_status status = NV_OK;
	uint32_t n = 0;

	for (uint32_t v = from; v < end; v++)
	{
		uint64_t word = nv_store_edge_word(store, v);

		if (word != 0)
			order[n++] = (placed){nv_word_page(word), v};
	}
	qsort(order, n, sizeof(*order), by_page);
	for (uint32_t i = 0; i < n && status == NV_OK;)
	{
		uint32_t stop = NV_MIN(i + EPOCH_STEPS, n);
		int place = nv_store_enter(store);

		if (place < 0)
			return nv_fail(err, NV_ELIMIT, 0,
						   "all %d reader slots of the index are taken",
						   NV_EPOCH_SLOTS);
		copy->page = UINT64_MAX;
		for (; i < stop; i++)
			check_list(check, order[i].vertex, copy);
		nv_store_leave(store, place);
		status = nv_check_go_on(check, err);
	}
	check->request->u.check.checked = n;
	return status;
}

nv_status
nv_check_lists(nv_check *check, nv_error *err)
{
	nv_req_check *r = &check->request->u.check;
	uint32_t vertices = nv_store_vertices(check->body->store);
	uint32_t from = (uint32_t) NV_MIN(r->from, (uint64_t) vertices);
	uint32_t end = vertices - from > BATCH ? from + BATCH : vertices;
	placed *order = nv_alloc_array((size_t) (end - from) + 1, sizeof(*order));
	page_copy copy = {.bytes = aligned_alloc(NV_BLOCK, NV_PAGE)};
	nv_status status;

	if (order == NULL || copy.bytes == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to check lists");
	else
		status = check_batch(check, from, end, order, &copy, err);
	if (end < vertices)
		r->next = end;
	free(order);
	free(copy.bytes);
	return status;
}

/* --- Vectors --- */

/* A part of the vector file in memory. */
typedef struct window
{
	uint8_t *bytes;
	uint64_t offset;
	uint32_t len;
} window;

/* Where in the window an extent is; NULL: it cannot be read. */
static const uint8_t *
look_at(nv_file *file, window *w, uint64_t offset, uint32_t len)
{
	uint64_t size = 0;

	if (offset >= w->offset && offset + len <= w->offset + w->len)
		return w->bytes + (offset - w->offset);
	w->offset = offset;
	w->len = 0;
	if (nv_file_size(file, &size, NULL) != NV_OK || offset + len > size)
		return NULL;
	w->len = (uint32_t) NV_MIN(size - offset, (uint64_t) WINDOW) / NV_BLOCK *
			 NV_BLOCK;
	if (w->len > len &&
		nv_file_read(file, w->bytes, w->len, offset, NULL) == NV_OK)
		return w->bytes;
	/* By itself, so that a bad block spoils nothing else. */
	w->len = len;
	if (nv_file_read(file, w->bytes, len, offset, NULL) == NV_OK)
		return w->bytes;
	w->len = 0;
	return NULL;
}

/* As it is now: what was read before may have been written since. */
static bool
is_right_now(nv_store *store, uint32_t v, uint8_t *buffer)
{
	uint32_t len, skip, bytes = nv_store_get_params(store)->vector_bytes;
	uint64_t offset;

	nv_store_vector_extent(store, v, &offset, &len, &skip);
	return nv_store_edge_word(store, v) == 0 ||
		   (nv_file_read(store->vectors.file, buffer, len, offset, NULL) ==
				NV_OK &&
			nv_vector_hash(buffer + skip, bytes) ==
				nv_store_vector_hash(store, v));
}

nv_status
nv_check_vectors(nv_check *check, nv_error *err)
{
	nv_store *store = check->body->store;
	uint32_t vertices = nv_store_vertices(store);
	uint32_t bytes = nv_store_get_params(store)->vector_bytes;
	size_t extent = nv_round_up(nv_store_vector_extent_max(store), NV_BLOCK);
	window w = {.bytes = aligned_alloc(NV_BLOCK, WINDOW + extent)};
	nv_status status = NV_OK;

	if (w.bytes == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to check vectors");
	for (uint32_t v = 0; v < vertices && status == NV_OK; v++)
	{
		uint32_t len, skip;
		uint64_t offset;
		const uint8_t *at;

		if (v % EPOCH_STEPS == 0)
			status = nv_check_go_on(check, err);
		if (nv_store_edge_word(store, v) == 0)
			continue;
		check->request->u.check.checked++;
		nv_store_vector_extent(store, v, &offset, &len, &skip);
		at = look_at(store->vectors.file, &w, offset, len);
		if (at != NULL &&
			nv_vector_hash(at + skip, bytes) == nv_store_vector_hash(store, v))
			continue;
		if (!is_right_now(store, v, w.bytes + WINDOW))
			nv_check_found(check, NV_DAMAGE, v, NV_NO_ELEMENT,
						   "its vector cannot be read, or has another hash");
	}
	free(w.bytes);
	return status;
}

/* --- Reachability --- */

#define REACHED 1
#define EXPANDED 2
#define IN_QUESTION 4 /* live when the check began */

typedef struct reach
{
	nv_check *check;
	nv_store *store;
	uint8_t *state; /* of each vertex there was */
	uint32_t vertices;
	page_copy copy;
	bool found; /* something new in this round */
} reach;

static void
reached(reach *r, uint32_t v)
{
	if (v >= r->vertices || r->state[v] & REACHED)
		return;
	r->state[v] |= REACHED;
	r->found = true;
}

/* Inside an epoch.  What has no readable list leads nowhere. */
static void
expand(reach *r, uint32_t v)
{
	uint32_t degree;
	uint64_t word;
	const uint32_t *ids;

	if ((r->state[v] & (REACHED | EXPANDED)) != REACHED)
		return;
	ids = find_list(r->store, v, &r->copy, &word, &degree);
	r->state[v] |= EXPANDED;
	for (uint32_t i = 0; ids != NULL && i < degree; i++)
		reached(r, ids[i]);
}

/* Vertices page by page, then what has moved meanwhile. */
static nv_status
one_round(reach *r, const placed *order, uint32_t n, nv_error *err)
{
	nv_status status = NV_OK;

	r->found = false;
	for (uint32_t i = 0; i < n && status == NV_OK;)
	{
		uint32_t stop = NV_MIN(i + EPOCH_STEPS, n);
		int place = nv_store_enter(r->store);

		if (place < 0)
			return nv_fail(err, NV_ELIMIT, 0,
						   "all %d reader slots of the index are taken",
						   NV_EPOCH_SLOTS);
		r->copy.page = UINT64_MAX;
		for (; i < stop; i++)
			expand(r, order[i].vertex);
		nv_store_leave(r->store, place);
		status = nv_check_go_on(r->check, err);
	}
	return status;
}

static void
begin_reach(reach *r, placed *order, uint32_t *n)
{
	const nv_body *body = r->check->body;

	for (uint32_t v = 0; v < r->vertices; v++)
	{
		uint64_t word = nv_store_edge_word(r->store, v);

		if (word == 0)
			continue;
		order[(*n)++] = (placed){nv_word_page(word), v};
		if ((word & NV_LINKED) && nv_body_live(body, v))
			r->state[v] |= IN_QUESTION;
	}
	qsort(order, *n, sizeof(*order), by_page);
	for (uint32_t i = 0; i < nv_entrance_count(body->entrance); i++)
		reached(r, nv_ent_vertex(body->entrance, i));
	reached(r, body->view.medoid);
}

nv_status
nv_check_reach(nv_check *check, nv_error *err)
{
	nv_store *store = check->body->store;
	reach r = {
		.check = check, .store = store, .vertices = nv_store_vertices(store)};
	placed *order = nv_alloc_array((size_t) r.vertices + 1, sizeof(*order));
	nv_status status = NV_OK;
	uint32_t n = 0;

	r.state = nv_alloc((size_t) r.vertices + 1);
	r.copy.bytes = aligned_alloc(NV_BLOCK, NV_PAGE);
	if (order == NULL || r.state == NULL || r.copy.bytes == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to walk the graph");
	else
	{
		begin_reach(&r, order, &n);
		do
			status = one_round(&r, order, n, err);
		while (status == NV_OK && r.found);
	}
	for (uint32_t v = 0; v < r.vertices && status == NV_OK; v++)
		if ((r.state[v] & IN_QUESTION) && !(r.state[v] & REACHED) &&
			nv_body_live(check->body, v))
			nv_check_found(check, NV_WEAKNESS, v,
						   nv_numbers_get(&check->body->first, v),
						   "no list that can be reached names it");
	check->request->u.check.checked = n;
	free(order);
	free(r.state);
	free(r.copy.bytes);
	return status;
}
