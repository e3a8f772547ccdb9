/*
 * placement.c
 *		Which edge lists share a page.
 *
 * Greedy page locality as in Starling: pages are filled with a vertex and its
 * neighbours first; then, in rounds, all pages are emptied in thought and each
 * vertex, in random order, goes to the page that holds most of its out- and
 * in-neighbours, pages weighing less the fuller they are:
 *
 *		score(page) = neighbours there * (1 - units used / units of a page)
 *
 * A neighbour not yet visited in the round counts for its page of the round
 * before.  Lists have different lengths, so room is counted in units; a few
 * more pages than needed leave room for choice.
 *
 * Only the nearest NV_PLACE_NEIGHBOURS of each list are looked at: vertices
 *that a search expands together are near each other.  On word vectors this
 *gives fewer pages a query than whole lists, and the reversed lists stay small.
 *One thread is fast enough, so the result depends on graph and seed only.
 *
 * Source: algorithms.md section 5.
 */
#include "vamana.h"

#include "util.h"

#define DEFAULT_ROUNDS 8

/* Pages beyond the least number: one in this many. */
#define SLACK_DIVISOR 50

/* Vertices between two questions to cancel: well below 10 ms. */
#define CANCEL_STEP 1024

/* The longest list of NV_MAX_DEGREE takes 33 units. */
#define UNIT_SIZES (NV_PAGE_UNITS + 1)

#define NO_PAGE UINT32_MAX

typedef struct placement
{
	const nv_graph *graph;
	nv_cancel_fn cancel;
	void *cancel_arg;
	uint64_t random;

	uint32_t *page;      /* n: of each vertex, the caller's array */
	uint32_t *order;     /* n */
	uint64_t *in_offset; /* n + 1: reversed lists */
	uint32_t *in;

	uint32_t max_pages; /* room in the arrays below */
	uint32_t pages;     /* in use; grows when no page has room */
	uint8_t *used;      /* units, per page */
	uint32_t *tally;    /* neighbours of the present vertex, per page */
	uint32_t *touched;  /* pages whose tally is not 0 */
	/* No page below cursor[u] has room for u units in this round. */
	uint32_t cursor[UNIT_SIZES];
} placement;

static inline uint32_t
units_of(const nv_graph *g, uint32_t v)
{
	return nv_slot_units((uint32_t) (g->offset[v + 1] - g->offset[v]));
}

/* The end of the part of v's list that is looked at. */
static inline uint64_t
list_end(const nv_graph *g, uint32_t v)
{
	return NV_MIN(g->offset[v + 1], g->offset[v] + NV_PLACE_NEIGHBOURS);
}

static bool
cancelled(const placement *p, uint32_t step)
{
	return step % CANCEL_STEP == 0 && p->cancel != NULL &&
		   p->cancel(p->cancel_arg);
}

static void
put(placement *p, uint32_t v, uint32_t page)
{
	p->page[v] = page;
	p->used[page] = (uint8_t) (p->used[page] + units_of(p->graph, v));
	nv_assert(p->used[page] <= NV_PAGE_UNITS);
}

/* The lowest page with room; a new one if there is none. */
static uint32_t
first_with_room(placement *p, uint32_t units)
{
	uint32_t page = p->cursor[units];

	while (page < p->pages && p->used[page] + units > NV_PAGE_UNITS)
		page++;
	if (page == p->pages)
	{
		nv_assert(p->pages < p->max_pages);
		p->pages++;
	}
	p->cursor[units] = page;
	return page;
}

static void
empty_pages(placement *p)
{
	memset(p->used, 0, p->max_pages);
	memset(p->cursor, 0, sizeof(p->cursor));
}

static void
shuffle(placement *p)
{
	for (uint32_t i = p->graph->n; i > 1; i--)
	{
		uint32_t j = (uint32_t) nv_random_below(&p->random, i);
		uint32_t other = p->order[j];

		p->order[j] = p->order[i - 1];
		p->order[i - 1] = other;
	}
}

static bool
place_at_random(placement *p)
{
	shuffle(p);
	for (uint32_t i = 0; i < p->graph->n; i++)
	{
		uint32_t v = p->order[i];

		if (cancelled(p, i))
			return false;
		put(p, v, first_with_room(p, units_of(p->graph, v)));
	}
	return true;
}

/* v on the current page, or the next one, or wherever there is room. */
static void
put_in_turn(placement *p, uint32_t v, uint32_t *current)
{
	uint32_t units = units_of(p->graph, v);

	if (*current < p->pages && p->used[*current] + units > NV_PAGE_UNITS)
		(*current)++;
	put(p, v, *current < p->pages ? *current : first_with_room(p, units));
}

/* Initial fill: vertices in order, each followed by its neighbours. */
static bool
place_in_order(placement *p)
{
	const nv_graph *g = p->graph;
	uint32_t current = 0;

	for (uint32_t v = 0; v < g->n; v++)
		p->page[v] = NO_PAGE;
	for (uint32_t v = 0; v < g->n; v++)
	{
		if (cancelled(p, v))
			return false;
		if (p->page[v] != NO_PAGE)
			continue;
		put_in_turn(p, v, &current);
		for (uint64_t e = g->offset[v]; e < list_end(g, v); e++)
		{
			uint32_t u = g->edges[e];
			uint32_t page = p->page[v];

			if (p->page[u] == NO_PAGE &&
				p->used[page] + units_of(g, u) <= NV_PAGE_UNITS)
				put(p, u, page);
		}
	}
	return true;
}

static inline void
count_page(placement *p, uint32_t page, uint32_t *count)
{
	if (p->tally[page]++ == 0)
		p->touched[(*count)++] = page;
}

/* The best page with room for v; first_with_room if no neighbour has any. */
static uint32_t
choose_page(placement *p, uint32_t v)
{
	const nv_graph *g = p->graph;
	uint32_t units = units_of(g, v);
	uint32_t count = 0;
	uint32_t best = NO_PAGE;
	uint64_t best_score = 0;

	for (uint64_t e = g->offset[v]; e < list_end(g, v); e++)
		count_page(p, p->page[g->edges[e]], &count);
	for (uint64_t e = p->in_offset[v]; e < p->in_offset[v + 1]; e++)
		count_page(p, p->page[p->in[e]], &count);
	for (uint32_t i = 0; i < count; i++)
	{
		uint32_t page = p->touched[i];
		uint32_t used = p->used[page];
		uint64_t score = (uint64_t) p->tally[page] * (NV_PAGE_UNITS - used);

		p->tally[page] = 0;
		if (used + units <= NV_PAGE_UNITS && score > best_score)
		{
			best_score = score;
			best = page;
		}
	}
	return best != NO_PAGE ? best : first_with_room(p, units);
}

static bool
place_round(placement *p)
{
	empty_pages(p);
	shuffle(p);
	for (uint32_t i = 0; i < p->graph->n; i++)
	{
		if (cancelled(p, i))
			return false;
		put(p, p->order[i], choose_page(p, p->order[i]));
	}
	return true;
}

/* Lists of in-neighbours, by counting. */
static bool
reverse_lists(placement *p)
{
	const nv_graph *g = p->graph;
	uint64_t *start = p->in_offset;

	for (uint32_t v = 0; v < g->n; v++)
		for (uint64_t e = g->offset[v]; e < list_end(g, v); e++)
			start[g->edges[e] + 1]++;
	for (uint32_t v = 0; v < g->n; v++)
		start[v + 1] += start[v];
	p->in = nv_alloc_array(start[g->n], sizeof(*p->in));
	if (p->in == NULL)
		return false;
	/* start[v] moves to the end of v's list, which is where v + 1 starts. */
	for (uint32_t v = 0; v < g->n; v++)
		for (uint64_t e = g->offset[v]; e < list_end(g, v); e++)
			p->in[start[g->edges[e]]++] = v;
	memmove(start + 1, start, g->n * sizeof(*start));
	start[0] = 0;
	return true;
}

static bool
allocate(placement *p, bool random)
{
	const nv_graph *g = p->graph;
	uint64_t units = 0;
	uint64_t least;

	for (uint32_t v = 0; v < g->n; v++)
		units += units_of(g, v);
	least = (units + NV_PAGE_UNITS - 1) / NV_PAGE_UNITS;
	p->pages = (uint32_t) NV_MIN(least + least / SLACK_DIVISOR, g->n);
	/* A page is added only when all others are more than half full. */
	p->max_pages = (uint32_t) NV_MIN(2 * least + 1, g->n);
	p->pages = NV_MIN(p->pages, p->max_pages);
	if (random)
		p->pages = 1;
	p->order = nv_alloc_array(g->n, sizeof(*p->order));
	p->used = nv_alloc(p->max_pages);
	p->tally = nv_alloc_array(p->max_pages, sizeof(*p->tally));
	p->touched = nv_alloc_array(p->max_pages, sizeof(*p->touched));
	p->in_offset = nv_alloc_array((size_t) g->n + 1, sizeof(*p->in_offset));
	if (p->order == NULL || p->used == NULL || p->tally == NULL ||
		p->touched == NULL || p->in_offset == NULL)
		return false;
	for (uint32_t v = 0; v < g->n; v++)
		p->order[v] = v;
	return random || reverse_lists(p);
}

/* Leaves no empty page; returns how many there are. */
static uint32_t
number_densely(placement *p)
{
	uint32_t pages = 0;

	for (uint32_t i = 0; i < p->pages; i++)
		p->touched[i] = p->used[i] > 0 ? pages++ : NO_PAGE;
	for (uint32_t v = 0; v < p->graph->n; v++)
		p->page[v] = p->touched[p->page[v]];
	return pages;
}

nv_status
nv_place(const nv_graph *graph, int rounds, bool random, uint32_t threads,
		 uint64_t seed, nv_cancel_fn cancel, void *cancel_arg,
		 uint32_t *out_page, uint32_t *out_pages, nv_error *err)
{
	placement p = {.graph = graph,
				   .cancel = cancel,
				   .cancel_arg = cancel_arg,
				   .random = nv_random_seed(seed),
				   .page = out_page};
	nv_status status = NV_OK;

	if (!allocate(&p, random))
		status = nv_fail(err, NV_ENOMEM, 0,
						 "out of memory while placing %u edge lists", graph->n);
	else
	{
		bool going = random ? place_at_random(&p) : place_in_order(&p);

		if (rounds <= 0)
			rounds = DEFAULT_ROUNDS;
		for (int i = 0; going && !random && i < rounds; i++)
			going = place_round(&p);
		if (going)
			*out_pages = number_densely(&p);
		else
			status = nv_fail(err, NV_ECANCELLED, 0, "placement was cancelled");
	}
	free(p.order);
	free(p.used);
	free(p.tally);
	free(p.touched);
	free(p.in_offset);
	free(p.in);
	return status;
}

double
nv_place_quality(const nv_graph *graph, const uint32_t *page, uint32_t pages)
{
	uint32_t *lists = nv_alloc_array(pages, sizeof(*lists));
	double sum = 0.0;

	if (lists == NULL)
		return 0.0;
	for (uint32_t v = 0; v < graph->n; v++)
		lists[page[v]]++;
	for (uint32_t v = 0; v < graph->n; v++)
	{
		uint32_t mates = 0;

		for (uint64_t e = graph->offset[v]; e < graph->offset[v + 1]; e++)
			mates += page[graph->edges[e]] == page[v];
		if (lists[page[v]] > 1)
			sum += (double) mates / (lists[page[v]] - 1);
	}
	free(lists);
	return sum / graph->n;
}
