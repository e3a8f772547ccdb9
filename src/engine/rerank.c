/*
 * rerank.c
 *		Loading vectors in code order for CASR, and the results.
 */
#include "rerank.h"

#include <math.h>

#include "navis/hash.h"

/* Arrays longer than this are given back when another search begins. */
#define KEPT_ENTRIES (64 * 1024)

void
nv_rerank_free(nv_rerank *r)
{
	free(r->explored);
	free(r->order);
	free(r->heap);
	free(r->results);
	free(r->kept);
	memset(r, 0, sizeof(*r));
}

void
nv_rerank_clear(nv_rerank *r)
{
	nv_assert(r->busy == 0);
	if (r->cap_explored > KEPT_ENTRIES || r->cap_heap > KEPT_ENTRIES)
		nv_rerank_free(r);
	r->n_kept = 0;
	r->n_explored = r->sorted = r->n_order = r->n_results = 0;
	r->fed = r->batch_end = r->next_issue = 0;
	r->complete = false;
	memset(&r->casr, 0, sizeof(r->casr));
}

size_t
nv_rerank_memory(const nv_rerank *r)
{
	return r->cap_explored * sizeof(*r->explored) +
		   r->cap_order * sizeof(*r->order) + r->cap_heap * sizeof(*r->heap) +
		   r->cap_results * sizeof(*r->results) +
		   r->cap_kept * sizeof(*r->kept);
}

bool
nv_rerank_reserve(nv_rerank *r, size_t n)
{
	return nv_grow(&r->explored, &r->cap_explored, r->n_explored + n,
				   sizeof(*r->explored));
}

void
nv_rerank_add(nv_rerank *r, nv_rank rank, uint32_t list)
{
	nv_assert(r->n_explored < r->cap_explored);
	r->explored[r->n_explored++] =
		(nv_explored){.rank = rank, .list = list, .state = NV_VECTOR_UNREAD};
}

/* --- Order --- */

static int
compare_explored(const void *a, const void *b)
{
	nv_rank x = ((const nv_explored *) a)->rank;
	nv_rank y = ((const nv_explored *) b)->rank;

	return (x > y) - (x < y);
}

/* Sorts what was added since the last rerank and merges it in. */
static bool
sort_explored(nv_rerank *r)
{
	size_t head = r->sorted;
	size_t tail = r->n_explored - head;
	size_t to = r->n_explored;
	nv_explored *added;

	if (tail == 0)
		return true;
	qsort(r->explored + head, tail, sizeof(*r->explored), compare_explored);
	r->sorted = r->n_explored;
	if (head == 0 || r->explored[head - 1].rank < r->explored[head].rank)
		return true;
	added = malloc(tail * sizeof(*added));
	if (added == NULL)
	{
		r->sorted = head;
		return false;
	}
	memcpy(added, r->explored + head, tail * sizeof(*added));
	while (tail > 0)
	{
		if (head > 0 && r->explored[head - 1].rank > added[tail - 1].rank)
			r->explored[--to] = r->explored[--head];
		else
			r->explored[--to] = added[--tail];
	}
	free(added);
	return true;
}

static void
choose_places(nv_rerank *r, nv_store *store)
{
	uint32_t align = nv_file_align(nv_store_vector_file(store));
	uint32_t longest = nv_store_vector_read_max(store);

	r->stride = (uint32_t) nv_round_up(NV_MAX(longest, 1), align);
	r->n_reads =
		NV_MIN(NV_SEARCH_MAX_READS, NV_SEARCH_VECTOR_BUFFER / r->stride);
	nv_assert(r->n_reads >= 1);
	memset(r->reads, 0, sizeof(r->reads));
	r->busy = 0;
}

bool
nv_rerank_begin(nv_rerank *r, const nv_rerank_query *q)
{
	const nv_view *view = q->view;
	/* More than the explored set cannot be wanted, and costs memory. */
	uint32_t k = (uint32_t) NV_MAX(NV_MIN(q->k, r->n_explored), 1);

	if (!sort_explored(r) ||
		!nv_grow(&r->order, &r->cap_order, r->n_explored, sizeof(*r->order)) ||
		!nv_grow(&r->heap, &r->cap_heap, k, sizeof(*r->heap)) ||
		!nv_grow(&r->results, &r->cap_results, k, sizeof(*r->results)))
		return false;
	/* All that may be loaded: nothing is allocated while reads arrive. */
	if (q->mapped != NULL &&
		!nv_grow(&r->kept, &r->cap_kept, r->n_explored * view->gspace.gdim,
				 sizeof(*r->kept)))
		return false;
	r->n_order = 0;
	for (size_t i = 0; i < r->n_explored; i++)
	{
		uint32_t vertex = nv_rank_id(r->explored[i].rank);

		if (r->explored[i].state != NV_VECTOR_DAMAGED && vertex != q->exclude &&
			view->live(view->live_arg, vertex))
			r->order[r->n_order++] = (uint32_t) i;
	}
	r->fed = r->batch_end = r->next_issue = 0;
	r->batch_reads = r->complete = false;
	choose_places(r, view->store);
	nv_casr_start(&r->casr, k, q->window, (uint32_t) r->n_order, r->heap);
	if (q->stages)
		nv_casr_use_stages(&r->casr);
	return true;
}

/* --- Loading --- */

void
nv_rerank_arrived(nv_rerank *r, uint32_t place, int32_t result)
{
	nv_assert(place < r->n_reads);
	nv_assert(r->reads[place].busy && !r->reads[place].arrived);
	r->reads[place].arrived = true;
	r->reads[place].result = result;
}

/* The distance of a record; position seeking keeps it in graph space. */
static void
measure(nv_rerank *r, const nv_rerank_query *q, nv_explored *e,
		const float *record)
{
	const nv_gspace *gspace = &q->view->gspace;
	float *kept;

	if (q->mapped == NULL)
	{
		e->exact = nv_distance((nv_metric) gspace->metric, q->query, record,
							   gspace->dim);
		return;
	}
	nv_assert((r->n_kept + 1) * gspace->gdim <= r->cap_kept);
	kept = r->kept + r->n_kept * gspace->gdim;
	e->kept = (uint32_t) r->n_kept++;
	nv_gspace_row(gspace, record, kept);
	e->exact = nv_l2sq(q->mapped, kept, gspace->gdim);
}

/* Verifies one record and computes its distance. */
static void
take_record(nv_rerank *r, const nv_rerank_query *q, nv_explored *e,
			const uint8_t *record)
{
	nv_store *store = q->view->store;
	size_t record_bytes = nv_store_get_params(store)->vector_bytes;

	if (record != NULL && nv_vector_hash(record, record_bytes) ==
							  nv_store_vector_hash(store, nv_rank_id(e->rank)))
	{
		measure(r, q, e, (const float *) (const void *) record);
		e->state = NV_VECTOR_LOADED;
		q->stats->vectors++;
	}
	else
	{
		e->state = NV_VECTOR_DAMAGED;
		q->stats->damaged++;
	}
}

/* A read has arrived. */
static void
take_read(nv_rerank *r, const nv_rerank_query *q, uint32_t place)
{
	nv_vector_read *read = &r->reads[place];
	const uint8_t *bytes = q->buffer + (size_t) place * r->stride;
	bool whole = read->result == (int32_t) read->place.len;

	if (read->result > 0)
		q->stats->bytes += (uint64_t) read->result;
	if (whole)
		nv_store_fill_vector(q->view->store, &read->place, bytes);
	take_record(r, q, &r->explored[read->explored],
				whole ? bytes + read->place.skip : NULL);
	read->busy = read->arrived = false;
	r->busy--;
}

/* A vector that is in memory. */
static void
take_row(nv_explored *e, const nv_rerank_query *q)
{
	const nv_view *view = q->view;

	e->exact = nv_l2sq(q->graph_query,
					   view->rows + nv_rank_id(e->rank) * view->rows_stride,
					   view->gspace.gdim);
	e->state = NV_VECTOR_LOADED;
	q->stats->vectors++;
}

/* Asks for vectors of the batch as long as there are places. */
static void
issue_reads(nv_rerank *r, const nv_rerank_query *q, nv_read *reads, uint32_t *n)
{
	uint32_t place = 0;

	while (r->next_issue < r->batch_end)
	{
		uint32_t number = r->order[r->next_issue];
		nv_explored *e = &r->explored[number];
		nv_vector_read *read;
		nv_read *out = &reads[*n];

		if (e->state == NV_VECTOR_UNREAD && q->view->rows != NULL)
			take_row(e, q);
		if (e->state == NV_VECTOR_LOADED)
		{
			r->next_issue++;
			continue;
		}
		while (place < r->n_reads && r->reads[place].busy)
			place++;
		if (place == r->n_reads)
			break;
		read = &r->reads[place];
		*read = (nv_vector_read){.explored = number};
		out->buf = q->buffer + (size_t) place * r->stride;
		if (nv_store_get_vector(q->view->store, nv_rank_id(e->rank), out->buf,
								&read->place))
		{
			take_record(r, q, e, out->buf);
			r->batch_reads = true;
			r->next_issue++;
			continue;
		}
		read->busy = true;
		out->file = nv_store_vector_file(q->view->store);
		out->offset = read->place.offset;
		out->len = read->place.len;
		nv_assert(out->len <= r->stride);
		out->tag = q->first_tag + place;
		(*n)++;
		r->busy++;
		r->batch_reads = true;
		r->next_issue++;
	}
}

/* The batch is there: gives it to CASR in code order. */
static void
feed_batch(nv_rerank *r, const nv_rerank_query *q)
{
	for (; r->fed < r->batch_end; r->fed++)
	{
		const nv_explored *e = &r->explored[r->order[r->fed]];

		if (e->state == NV_VECTOR_LOADED)
			nv_casr_loaded(&r->casr, e->exact);
		else
		{
			nv_assert(e->state == NV_VECTOR_DAMAGED);
			r->casr.explored--;
		}
	}
	if (r->batch_reads)
		q->stats->batches++;
	r->batch_reads = false;
}

bool
nv_rerank_step(nv_rerank *r, const nv_rerank_query *q, nv_read *reads,
			   uint32_t *n)
{
	for (uint32_t place = 0; place < r->n_reads && r->busy > 0; place++)
		if (r->reads[place].arrived)
			take_read(r, q, place);
	for (;;)
	{
		issue_reads(r, q, reads, n);
		if (r->busy > 0)
			return false;
		feed_batch(r, q);
		r->batch_end = r->fed + nv_casr_want(&r->casr);
		nv_assert(r->batch_end <= r->n_order);
		if (r->batch_end == r->fed)
			break;
	}
	r->complete = r->fed == r->n_order;
	return true;
}

void
nv_rerank_cancel(nv_rerank *r)
{
	for (uint32_t place = 0; place < r->n_reads; place++)
		r->reads[place].busy = r->reads[place].arrived = false;
	r->busy = 0;
	r->complete = false;
}

/* --- Results --- */

/* Ascending by distance, NaN last, ties by vertex. */
static int
compare_results(const void *a, const void *b)
{
	const nv_result *x = a;
	const nv_result *y = b;

	if (x->distance < y->distance)
		return -1;
	if (x->distance > y->distance)
		return 1;
	if (isnan(x->distance) != isnan(y->distance))
		return isnan(x->distance) ? 1 : -1;
	return (x->vertex > y->vertex) - (x->vertex < y->vertex);
}

static int
compare_farthest(const void *a, const void *b)
{
	return compare_results(b, a);
}

/* Puts a result into the hole on top of the heap (farthest on top). */
static void
sift_down(nv_result *heap, size_t n, nv_result result)
{
	size_t i = 0;

	for (;;)
	{
		size_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n &&
			compare_results(&heap[child + 1], &heap[child]) > 0)
			child++;
		if (compare_results(&heap[child], &result) <= 0)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = result;
}

void
nv_rerank_collect(nv_rerank *r, const nv_view *view, uint32_t k)
{
	size_t room = NV_MIN((size_t) k, r->cap_results);
	size_t n = 0;

	for (size_t i = 0; i < r->n_explored; i++)
	{
		const nv_explored *e = &r->explored[i];
		nv_result result = {.vertex = nv_rank_id(e->rank),
							.distance = e->exact};

		if (e->state != NV_VECTOR_LOADED ||
			!view->live(view->live_arg, result.vertex))
			continue;
		if (n < room)
		{
			r->results[n++] = result;
			/* Farthest first is a heap with the farthest on top. */
			if (n == room)
				qsort(r->results, n, sizeof(*r->results), compare_farthest);
		}
		else if (room > 0 && compare_results(&result, &r->results[0]) < 0)
			sift_down(r->results, n, result);
	}
	qsort(r->results, n, sizeof(*r->results), compare_results);
	r->n_results = n;
}
