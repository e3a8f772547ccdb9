/*
 * sweep.c
 *		The walk of a consolidation over the edge file.
 *
 * Pages are read in the order of the file, many at a time, and every list on
 * them that the map names is looked at once.  Lists move while we walk, from
 * pages that come to pages that have been; so afterwards the vertices whose
 * list was not met are looked up one by one.  A list that was looked at once
 * without a dying vertex in it gets none any more: whoever changes it starts
 * from what it is (nv_store_relink), and nobody adds a dying vertex
 * (consolidate.c).
 *
 * Work.  With a share d of the vertices dying, a list of m neighbours names at
 * least one of them with probability 1 - (1-d)^m: for d = 0.1 and m = 32 that
 * is 97 %.  A run begins at a share not below a threshold, so reading the whole
 * file costs a bounded number of pages for each vertex that goes (one in ten by
 * default), and looking for the lists otherwise would save next to nothing.
 *
 * Space.  Where most lists of a page change all of them move, in the order they
 * had, so the page gets free as a whole and the new ones keep the placement;
 * those of dying vertices go to pages of their own, shortened, which get free
 * together.  A checkpoint is published whenever a share of the lists waits for
 * one.  So the file grows by that share and the share of the dying only.
 *
 * Source: design.md section 4, "Checkpoint protocol" 12; algorithms.md
 * section 10.
 */
#include "consolidate.h"

#define WINDOW 32 /* pages read at the same time */
/* A checkpoint is published when this part of all lists waits for one. */
#define RETIRED_SHARE 8
#define MIN_RETIRED 256
/* A page with lists on no more units than this is emptied. */
#define SPARSE_UNITS (NV_PAGE_UNITS / 2)
#define STEP 1024 /* vertices between two looks at whether to stop */

_Static_assert(WINDOW *NV_PAGE <= NV_SEARCH_BUFFER,
			   "a window of pages goes where searches have theirs");

nv_status
nv_sweep_begin(nv_sweep *s, nv_error *err)
{
	nv_body *body = s->linker->body;

	s->seen = nv_alloc_array(s->n / 64 + 1, sizeof(*s->seen));
	s->named = nv_alloc_array((size_t) s->n + 1, sizeof(*s->named));
	s->island = nv_alloc_array((size_t) s->n + 1, sizeof(*s->island));
	s->row = nv_alloc(nv_store_get_params(body->store)->vector_bytes);
	if (s->seen == NULL || s->named == NULL || s->island == NULL ||
		s->row == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory to walk through %u edge lists", s->n);
	for (uint32_t v = 0; v < s->n; v++)
		s->island[v] = v;
	return nv_writer_create(body->store, &s->dead_writer, err);
}

void
nv_sweep_end(nv_sweep *s)
{
	nv_writer_destroy(s->dead_writer);
	free(s->seen);
	free(s->named);
	free(s->island);
	free(s->row);
}

static bool
seen(const nv_sweep *s, uint32_t vertex)
{
	return vertex < s->n && (s->seen[vertex / 64] >> vertex % 64 & 1) != 0;
}

static void
set_seen(nv_sweep *s, uint32_t vertex)
{
	if (vertex < s->n)
		s->seen[vertex / 64] |= UINT64_C(1) << vertex % 64;
}

static nv_status
check_stop(nv_sweep *s, uint32_t phase, uint64_t done, uint64_t total,
		   nv_error *err)
{
	if (!s->stop(s->stop_arg, phase, done, total))
		return NV_OK;
	return nv_fail(err, NV_ECANCELLED, 0, "consolidation was stopped");
}

static nv_status
no_reader_slot(nv_error *err)
{
	return nv_fail(err, NV_ELIMIT, 0,
				   "all %d reader slots of the index are taken",
				   NV_EPOCH_SLOTS);
}

/* --- Islands: sets of vertices that edges connect, in either direction --- */

static uint32_t
island_of(nv_sweep *s, uint32_t v)
{
	while (s->island[v] != v)
	{
		s->island[v] = s->island[s->island[v]];
		v = s->island[v];
	}
	return v;
}

static void
connect(nv_sweep *s, uint32_t a, uint32_t b)
{
	uint32_t x, y;

	if (a >= s->n || b >= s->n)
		return;
	x = island_of(s, a);
	y = island_of(s, b);
	/* The larger number hangs on the smaller: shallow enough when halved. */
	s->island[NV_MAX(x, y)] = NV_MIN(x, y);
}

/* The list of the vertex as it stays. */
static void
note_list(nv_sweep *s, uint32_t vertex, const uint32_t *ids, uint32_t degree)
{
	set_seen(s, vertex);
	for (uint32_t i = 0; i < degree; i++)
	{
		connect(s, vertex, ids[i]);
		if (ids[i] < s->n && s->named[ids[i]] < UINT8_MAX)
			s->named[ids[i]]++;
	}
}

/* --- Windows of pages --- */

typedef struct window
{
	uint64_t page[WINDOW];
	uint64_t ticket[WINDOW];
	int32_t result[WINDOW];
	bool read[WINDOW];
	uint32_t n;
} window;

static uint8_t *
bytes_of(const nv_sweep *s, uint32_t i)
{
	return nv_ring_arena(s->linker->ring) + (size_t) i * NV_PAGE;
}

/* All reads of a window at once; inside an epoch. */
static void
fetch(nv_sweep *s, window *w)
{
	nv_ring *ring = s->linker->ring;
	nv_store *store = s->linker->body->store;
	nv_completion done[WINDOW];

	for (uint32_t i = 0; i < w->n; i++)
	{
		w->result[i] = NV_PAGE;
		w->read[i] =
			nv_store_get_page(store, w->page[i], NV_CACHE_PASSING,
							  bytes_of(s, i), &w->ticket[i]) == NV_PAGE_MISS;
		if (w->read[i] &&
			!nv_ring_read(ring, nv_store_edge_file(store), bytes_of(s, i),
						  NV_PAGE, w->page[i] * NV_PAGE, i))
			w->result[i] = 0; /* its lists are looked up one by one */
	}
	while (nv_ring_inflight(ring) > 0)
	{
		uint32_t arrived = nv_ring_reap(ring, done, WINDOW, true);

		for (uint32_t i = 0; i < arrived; i++)
			w->result[done[i].token] = done[i].result;
	}
}

typedef nv_status (*page_fn)(nv_sweep *s, uint64_t page, const uint8_t *bytes,
							 nv_error *err);

static nv_status
do_window(nv_sweep *s, window *w, page_fn fn, nv_error *err)
{
	nv_store *store = s->linker->body->store;
	int epoch = nv_store_enter(store);
	nv_status status = NV_OK;

	if (epoch < 0)
		return no_reader_slot(err);
	fetch(s, w);
	for (uint32_t i = 0; i < w->n && status == NV_OK; i++)
		if (w->result[i] == NV_PAGE)
			status = fn(s, w->page[i], bytes_of(s, i), err);
	nv_store_leave(store, epoch);
	return status;
}

/* Lists that only the last checkpoint names take space: publish another. */
static nv_status
checkpoint_if_due(nv_sweep *s, nv_error *err)
{
	nv_store_stats stats;

	nv_store_get_stats(s->linker->body->store, &stats);
	if (stats.retired_slots < MIN_RETIRED ||
		stats.retired_slots * RETIRED_SHARE < stats.live_slots)
		return NV_OK;
	return nv_index_checkpoint(s->index, err);
}

/* All pages of the file as it is when the end is reached. */
static nv_status
walk(nv_sweep *s, uint32_t phase, page_fn fn, nv_error *err)
{
	nv_store_stats stats;
	nv_status status = NV_OK;
	window w;

	nv_store_get_stats(s->linker->body->store, &stats);
	for (uint64_t page = 0; page < stats.edge_pages && status == NV_OK;
		 page += w.n)
	{
		w.n = (uint32_t) NV_MIN(stats.edge_pages - page, (uint64_t) WINDOW);
		for (uint32_t i = 0; i < w.n; i++)
			w.page[i] = page + i;
		status = check_stop(s, phase, page, stats.edge_pages, err);
		if (status == NV_OK)
			status = do_window(s, &w, fn, err);
		if (status == NV_OK)
			status = checkpoint_if_due(s, err);
	}
	return status;
}

/* --- Collecting --- */

static nv_status
collect_page(nv_sweep *s, uint64_t page, const uint8_t *bytes, nv_error *err)
{
	nv_store *store = s->linker->body->store;
	nv_page_lists lists;

	nv_store_page_lists(store, page, bytes, &lists);
	for (uint32_t i = 0; i < lists.n; i++)
	{
		uint32_t v = lists.vertex[i], degree;
		const uint32_t *ids;

		if (!nv_is_dying(s->rewire->dying, v) || seen(s, v))
			continue;
		ids = nv_slot_find(store, bytes, lists.word[i], v, &degree);
		if (ids == NULL)
			continue;
		nv_rewire_collect(s->rewire, v, ids, degree);
		set_seen(s, v);
	}
	return NV_OK;
}

static nv_status
collect_one(nv_sweep *s, uint32_t vertex, nv_error *err)
{
	nv_store *store = s->linker->body->store;
	int epoch = nv_store_enter(store);
	nv_status status;
	uint64_t word;
	uint32_t degree;

	if (epoch < 0)
		return no_reader_slot(err);
	status = nv_link_read_list(s->linker, vertex, &word, &degree, err);
	if (status == NV_OK)
		nv_rewire_collect(s->rewire, vertex, s->linker->list, degree);
	nv_store_leave(store, epoch);
	return status;
}

nv_status
nv_sweep_collect(nv_sweep *s, nv_error *err)
{
	const nv_rewire *r = s->rewire;
	nv_status status = walk(s, NV_CONSOLIDATE_COLLECT, collect_page, err);

	for (uint32_t i = 0; i < r->n_dead && status == NV_OK; i++)
	{
		if (i % STEP == 0)
			status = check_stop(s, NV_CONSOLIDATE_COLLECT, 1, 1, err);
		if (status == NV_OK && !seen(s, r->dead[i]))
			status = collect_one(s, r->dead[i], err);
	}
	/* The dying are walked through until the end, their lists move, too. */
	memset(s->seen, 0, (s->n / 64 + 1) * sizeof(*s->seen));
	return status;
}

/* --- Rewriting --- */

/*
 * Looks at the list of a vertex: a list that names dying vertices is
 * rewritten, others only if it must move.  *busy: it was changed meanwhile.
 */
static nv_status
rewrite(nv_sweep *s, uint32_t vertex, uint64_t word, const uint32_t *ids,
		uint32_t degree, bool move, bool *busy, nv_error *err)
{
	uint32_t list[NV_MAX_DEGREE];
	nv_writer *writer = s->linker->writer;
	bool dying = nv_is_dying(s->rewire->dying, vertex);
	bool changes = !dying && nv_rewire_names(s->rewire, ids, degree);
	nv_status status;

	*busy = false;
	if (dying)
	{
		ids = nv_rewire_substitutes(s->rewire, vertex, &degree);
		writer = s->dead_writer;
	}
	else if (changes &&
			 !nv_rewire_list(s->rewire, vertex, ids, degree, list, &degree))
		return nv_fail(err, NV_ENOMEM, 0, "no memory to rewire a list");
	if (changes)
		ids = list;
	if (changes || move)
	{
		status = nv_store_relink(writer, vertex, word, ids, degree, err);
		*busy = status == NV_EBUSY;
		if (status != NV_OK)
			return *busy ? NV_OK : status;
		if (changes)
			atomic_fetch_add(s->rewire->count, 1);
	}
	if (!dying)
		note_list(s, vertex, ids, degree);
	else if (move)
		set_seen(s, vertex);
	return NV_OK;
}

/* Whether all lists of a page are to move: most of them change. */
static bool
page_moves(nv_sweep *s, const uint8_t *bytes, const nv_page_lists *lists)
{
	nv_store *store = s->linker->body->store;
	uint32_t change = 0;

	for (uint32_t i = 0; i < lists->n; i++)
	{
		uint32_t v = lists->vertex[i], degree;
		const uint32_t *ids;

		if (seen(s, v))
			continue;
		ids = nv_slot_find(store, bytes, lists->word[i], v, &degree);
		change += ids != NULL && (nv_is_dying(s->rewire->dying, v) ||
								  nv_rewire_names(s->rewire, ids, degree));
	}
	return change > 0 &&
		   (2 * change >= lists->n || lists->units <= SPARSE_UNITS);
}

static nv_status
rewrite_page(nv_sweep *s, uint64_t page, const uint8_t *bytes, nv_error *err)
{
	nv_store *store = s->linker->body->store;
	nv_status status = NV_OK;
	nv_page_lists lists;
	bool move, busy;

	nv_store_page_lists(store, page, bytes, &lists);
	move = !nv_store_page_open(store, page) && page_moves(s, bytes, &lists);
	for (uint32_t i = 0; i < lists.n && status == NV_OK; i++)
	{
		uint32_t v = lists.vertex[i], degree;
		const uint32_t *ids;

		/* Those looked at are here because we have written them here. */
		if (seen(s, v))
			continue;
		ids = nv_slot_find(store, bytes, lists.word[i], v, &degree);
		if (ids != NULL)
			status =
				rewrite(s, v, lists.word[i], ids, degree, move, &busy, err);
	}
	return status;
}

/* A list that the walk over the pages has not met. */
static nv_status
rewrite_one(nv_sweep *s, uint32_t vertex, nv_error *err)
{
	nv_linker *l = s->linker;
	nv_store *store = l->body->store;
	int epoch = nv_store_enter(store);
	nv_status status;
	bool busy = false;

	if (epoch < 0)
		return no_reader_slot(err);
	do
	{
		uint64_t word;
		uint32_t degree;

		status = nv_link_read_list(l, vertex, &word, &degree, err);
		if (status == NV_OK)
			status =
				rewrite(s, vertex, word, l->list, degree, false, &busy, err);
	} while (status == NV_OK && busy);
	nv_store_leave(store, epoch);
	return status;
}

nv_status
nv_sweep_rewrite(nv_sweep *s, nv_error *err)
{
	nv_store *store = s->linker->body->store;
	nv_status status = walk(s, NV_CONSOLIDATE_SWEEP, rewrite_page, err);
	uint32_t n = nv_store_vertices(store);

	for (uint32_t v = 0; v < n && status == NV_OK; v++)
	{
		if (v % STEP == 0)
			status = check_stop(s, NV_CONSOLIDATE_SWEEP, 1, 1, err);
		if (status == NV_OK && v % STEP == 0)
			status = checkpoint_if_due(s, err);
		if (status == NV_OK && !seen(s, v) &&
			nv_store_edge_word(store, v) != 0 &&
			!nv_is_dying(s->rewire->dying, v))
			status = rewrite_one(s, v, err);
	}
	return status;
}

/* --- Repair --- */

static nv_status
link_again(nv_sweep *s, uint32_t vertex, nv_error *err)
{
	nv_status status = nv_link_again(s->linker, vertex, s->row, false, err);

	/* Nothing but the dying around: the next run finds it again. */
	return status == NV_EBUSY ? NV_OK : status;
}

/*
 * A medoid that came after the run began, when nothing older was live, is in
 * no island: nobody can be told to be apart from it.
 */
static bool
hangs_together(nv_sweep *s, uint32_t vertex, uint32_t medoid)
{
	return medoid >= s->n || island_of(s, vertex) == island_of(s, medoid);
}

nv_status
nv_sweep_repair(nv_sweep *s, uint32_t medoid, nv_error *err)
{
	nv_body *body = s->linker->body;
	nv_status status = NV_OK;

	for (uint32_t v = 0; v < s->n && status == NV_OK; v++)
	{
		if (v % STEP == 0)
			status = check_stop(s, NV_CONSOLIDATE_REPAIR, v, s->n, err);
		if (status != NV_OK || v == medoid || !nv_body_live(body, v) ||
			!(nv_store_edge_word(body->store, v) & NV_LINKED))
			continue;
		/* In no list, or connected with nothing that searches begin at. */
		if (s->named[v] > 0 && hangs_together(s, v, medoid))
			continue;
		status = check_stop(s, NV_CONSOLIDATE_REPAIR, v, s->n, err);
		if (status == NV_OK)
			status = link_again(s, v, err);
		connect(s, v, medoid);
	}
	return status;
}
