/*
 * vamana_finish.c
 *		The end of a graph construction: every vertex reachable, lists sorted
 *		and packed; and the bound of the memory it all takes.
 *
 * Reachability.  A breadth-first walk from the medoid marks what can be
 * reached.  Each vertex u left over (copies in graph space, whose links others
 * occlude, are the usual case) is searched for from the medoid and the marked
 * starts; the nearest expanded vertex with room below the hard cap gets an
 * edge to it.  When all of them are full, u is put between the nearest one, x,
 * and its farthest neighbour w: x -> w becomes x -> u -> w.  For that u may
 * have to drop a neighbour; whatever is marked was reached without u, so
 * nothing marked is ever lost.  Then the walk goes on from u.
 *
 * Source: algorithms.md sections 2 and 13 (items 20, 21).
 */
#include "vamana_build.h"

#include "navis/distance.h"
#include "util.h"

/* Every so many vertices a serial walk asks whether to stop. */
#define WALK_STEP 1024

typedef struct reach
{
	nv_build *b;
	uint8_t *marked; /* n */
	uint32_t *queue; /* n */
	uint32_t head;
	uint32_t tail;
} reach;

static void
mark(reach *r, uint32_t v)
{
	if (!r->marked[v])
	{
		r->marked[v] = 1;
		r->queue[r->tail++] = v;
	}
}

/* Marks v and all that can be reached from it; false if stopped. */
static bool
walk_from(reach *r, uint32_t v)
{
	mark(r, v);
	while (r->head < r->tail)
	{
		const uint32_t *list = nv_build_list(r->b, r->queue[r->head++]);

		for (uint32_t i = 1; i <= list[0]; i++)
			mark(r, list[i]);
		if (nv_build_stopped(&r->b->workers[0], WALK_STEP))
			return false;
	}
	return true;
}

/* Position (1 ...) of id in a list, 0 if it is not there. */
static uint32_t
position_of(const uint32_t *list, uint32_t id)
{
	for (uint32_t i = 1; i <= list[0]; i++)
		if (list[i] == id)
			return i;
	return 0;
}

/* Position (1 ...) of the neighbour farthest from v. */
static uint32_t
farthest_neighbour(const nv_build *b, uint32_t v)
{
	const uint32_t *list = nv_build_list(b, v);
	uint32_t best = 1;
	float best_dist = -1.0f;

	for (uint32_t i = 1; i <= list[0]; i++)
	{
		float d =
			nv_l2sq(nv_build_row(b, v), nv_build_row(b, list[i]), b->gdim);

		if (d > best_dist)
		{
			best_dist = d;
			best = i;
		}
	}
	return best;
}

/* Turns x -> w into x -> u -> w, w the farthest neighbour of the full x. */
static void
insert_between(reach *r, uint32_t x, uint32_t u)
{
	nv_build *b = r->b;
	uint32_t *from = nv_build_list(b, x);
	uint32_t *list = nv_build_list(b, u);
	uint32_t place = farthest_neighbour(b, x);
	uint32_t w = from[place];
	uint32_t drop = list[0];

	from[place] = u;
	if (position_of(list, w) != 0)
		return;
	if (list[0] < b->cap)
	{
		list[++list[0]] = w;
		return;
	}
	for (uint32_t i = 1; i <= list[0]; i++)
		if (r->marked[list[i]])
			drop = i;
	list[drop] = w;
}

/* Gives u, which nothing reached, an edge from something that is. */
static void
attach(reach *r, uint32_t u)
{
	nv_build *b = r->b;
	nv_build_worker *w = &b->workers[0];
	uint32_t count = nv_build_search(w, u, r->marked);

	nv_assert(count > 0);
	nv_candidate_sort(w->expanded, count);
	for (uint32_t i = 0; i < count; i++)
	{
		uint32_t *list = nv_build_list(b, w->expanded[i].id);

		nv_assert(r->marked[w->expanded[i].id]);
		if (list[0] < b->cap)
		{
			list[++list[0]] = u;
			return;
		}
	}
	insert_between(r, w->expanded[0].id, u);
}

bool
nv_build_connect(nv_build *b)
{
	reach r = {.b = b,
			   .marked = nv_alloc(b->n),
			   .queue = nv_alloc_array(b->n, sizeof(*r.queue))};
	bool ok = r.marked != NULL && r.queue != NULL;

	ok = ok && walk_from(&r, b->medoid);
	for (uint32_t u = 0; ok && u < b->n; u++)
		if (!r.marked[u])
		{
			attach(&r, u);
			ok = walk_from(&r, u);
		}
	free(r.marked);
	free(r.queue);
	return ok;
}

/* Sorts lists nearest first. */
static void
sort_phase(nv_build_worker *w, uint32_t begin, uint32_t end)
{
	nv_build *b = w->build;

	for (uint32_t v = begin; v < end; v++)
	{
		uint32_t *list = nv_build_list(b, v);
		const float *row = nv_build_row(b, v);

		for (uint32_t i = 0; i < list[0]; i++)
			w->cand[i] = (nv_candidate){
				nv_l2sq(row, nv_build_row(b, list[i + 1]), b->gdim),
				list[i + 1]};
		nv_candidate_sort(w->cand, list[0]);
		for (uint32_t i = 0; i < list[0]; i++)
		{
			nv_assert(w->cand[i].id != v);
			list[i + 1] = w->cand[i].id;
		}
		if (nv_build_stopped(w, (uint64_t) list[0] * b->gdim))
			return;
	}
}

/* The lists move together within their own memory, which is then cut. */
bool
nv_build_finish(nv_build *b, nv_graph *graph)
{
	uint64_t *offset;
	uint64_t total = 0;
	uint32_t *edges;

	if (!nv_build_phase(b, sort_phase, b->n))
		return false;
	offset = nv_alloc_array((size_t) b->n + 1, sizeof(*offset));
	if (offset == NULL)
		return false;
	for (uint32_t v = 0; v < b->n; v++)
	{
		const uint32_t *list = nv_build_list(b, v);
		uint32_t degree = list[0];

		offset[v] = total;
		memmove(b->lists + total, list + 1, degree * sizeof(*list));
		total += degree;
	}
	offset[b->n] = total;
	edges = realloc(b->lists, NV_MAX(total, 1) * sizeof(*edges));
	*graph = (nv_graph){.n = b->n,
						.medoid = b->medoid,
						.offset = offset,
						.edges = edges != NULL ? edges : b->lists};
	b->lists = NULL;
	return true;
}

/*
 * Allocations are rounded to 64 bytes and, when large, to pages; the fixed
 * shares below cover that, the mean, the locks and what a thread needs for the
 * largest list size.
 */
#define FIXED_SHARE (UINT64_C(1) << 20)
#define THREAD_SHARE (UINT64_C(1) << 20)

uint64_t
nv_vamana_memory(uint64_t n, uint32_t max_degree, uint32_t threads)
{
	uint64_t lists = n * 4 * ((uint64_t) max_degree + 1);
	uint64_t offsets = (n + 1) * 8;
	uint64_t workers = NV_MAX(threads, 1) * (n + THREAD_SHARE);
	uint64_t reachability = n * 5; /* marks and queue */
	/* Order, reversed lists and their offsets, 9 bytes for each of at most n
	 * pages; workers are gone by then. */
	uint64_t placement =
		n * 4 + offsets +
		n * 4 * (uint64_t) NV_MIN(max_degree, NV_PLACE_NEIGHBOURS) + n * 9;

	return lists + offsets + NV_MAX(workers + reachability, placement) +
		   FIXED_SHARE;
}
