/*
 * catchup.c
 *		The opening procedure: OPEN, RECONCILE page by page, INSERT what the
 *		engine has not got, OPENED.
 *
 * The journal decides.  The engine keeps of its sidecar what agrees in
 * generation and hash, forgets what the journal does not name, and gets the
 * rest from the heap.  Rows appended meanwhile are published by their
 * inserters: the engine takes them from OPEN on, and what was appended before
 * is found by the walk.  See design, section 3, invariants 3 and 6.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catchup.h"
#include "client.h"

/* Journal entries in one RECONCILE request. */
#define NAVIS_RECONCILE_BATCH                                                  \
	((uint32) (NV_REQUEST_DATA / sizeof(nv_journal_entry)))

/* Openings whose walk was made worthless by a rebuild are tried again. */
#define NAVIS_OPENING_TRIES 3

/* How long the engine may take to hear that an opening failed. */
#define NAVIS_FAILED_TIMEOUT 1000 /* ms */

/* --- vectors of rows --- */

typedef struct NavisRowContext
{
	NavisSlice *slice;
	ItemPointer tid;
} NavisRowContext;

static void
add_row_context(void *arg)
{
	NavisRowContext *row = arg;

	errcontext("fetching row (%u,%u) of table \"%s\" for index \"%s\"",
			   ItemPointerGetBlockNumberNoCheck(row->tid),
			   ItemPointerGetOffsetNumberNoCheck(row->tid),
			   RelationGetRelationName(row->slice->heap),
			   RelationGetRelationName(row->slice->index));
}

const float *
navis_entry_vector(NavisSlice *slice, const nv_journal_entry *entry,
				   ItemPointer tid)
{
	NavisRowContext row = {slice, tid};
	ErrorContextCallback callback = {error_context_stack, add_row_context,
									 &row};
	NavisFetchResult result;
	const float *vector = NULL;
	ItemPointerData current;
	uint32 dim;

	error_context_stack = &callback;
	result = navis_fetch_row(navis_slice_fetch(slice), tid, &vector, &dim);
	/* The entry again: the row may have gone, and its place been reused. */
	if (result == NAVIS_FETCH_GONE ||
		!navis_journal_live(slice->index, entry->element, entry->generation,
							false, &current))
		vector = NULL;
	else if (result == NAVIS_FETCH_NULL || dim != slice->meta.dim ||
			 navis_journal_hash(slice->meta.metric, vector, dim) != entry->hash)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the row does not have the vector that it was indexed "
						"with"),
				 errhint("An index expression may not be immutable; "
						 "REINDEX.")));
	error_context_stack = callback.previous;
	return vector;
}

/* --- the walk --- */

void
navis_walk_init(NavisWalk *walk, NavisSlice *slice, const nv_key *key,
				bool with_dead)
{
	memset(walk, 0, sizeof(NavisWalk));
	walk->slice = slice;
	walk->key = key;
	walk->page = MemoryContextAlloc(slice->context, navis_entries_per_page() *
														sizeof(NavisEntry));
	walk->batch = MemoryContextAlloc(slice->context, NAVIS_RECONCILE_BATCH *
														 sizeof(NavisMissing));
	if (with_dead)
		walk->dead = MemoryContextAlloc(slice->context, NV_REQUEST_DATA);
}

static void
note_missing(NavisWalk *walk, const NavisMissing *missing)
{
	if (walk->n_missing == walk->room)
	{
		walk->room = Max(walk->room * 2, 1024);
		walk->missing =
			walk->missing == NULL
				? MemoryContextAllocHuge(walk->slice->context,
										 walk->room * sizeof(NavisMissing))
				: repalloc_huge(walk->missing,
								walk->room * sizeof(NavisMissing));
	}
	walk->missing[walk->n_missing++] = *missing;
}

nv_status
navis_tell_dead(const nv_key *key, const nv_element_ref *refs, uint32 n,
				XLogRecPtr lsn)
{
	nv_request *request;

	Assert(n <= NV_REQUEST_DATA / sizeof(nv_element_ref));
	if (n == 0)
		return NV_OK;
	request = navis_request_begin(NV_REQ_DELETE, key);
	if (request == NULL)
		return NV_EUNUSABLE;
	request->u.del.lsn = lsn;
	request->u.del.n = n;
	memcpy(request->data, refs, n * sizeof(nv_element_ref));
	return navis_request_call(request, NULL, NULL);
}

static nv_status
flush_dead(NavisWalk *walk)
{
	uint32 n = walk->n_dead;

	walk->n_dead = 0;
	return navis_tell_dead(walk->key, walk->dead, n, walk->lsn);
}

nv_status
navis_walk_flush(NavisWalk *walk)
{
	nv_request *request;
	nv_journal_entry *entries;
	const uint32 *answer;
	uint32 next = 0;
	nv_status status = flush_dead(walk);

	if (walk->n == 0 || status != NV_OK)
		return status;
	request = navis_request_begin(NV_REQ_RECONCILE, walk->key);
	if (request == NULL)
		return NV_EUNUSABLE;
	request->u.reconcile.pass = walk->slice->pass;
	request->u.reconcile.lsn = walk->lsn;
	request->u.reconcile.n = walk->n;
	entries = (nv_journal_entry *) request->data;
	for (uint32 i = 0; i < walk->n; i++)
		entries[i] = walk->batch[i].entry;
	status = navis_request_call(request, NULL, NULL);
	if (status != NV_OK)
		return status;
	/* The answer names a part of the batch, in its order. */
	answer = (const uint32 *) request->data;
	for (uint32 i = 0; i < walk->n && next < request->u.reconcile.n_missing;
		 i++)
		if (walk->batch[i].entry.element == answer[next])
		{
			note_missing(walk, &walk->batch[i]);
			next++;
		}
	walk->n = 0;
	walk->lsn = InvalidXLogRecPtr;
	return NV_OK;
}

bool
navis_walk_has_room(const NavisWalk *walk)
{
	return Max(walk->n, walk->n_dead) + navis_entries_per_page() <=
		   NAVIS_RECONCILE_BATCH;
}

static void
note_dead(NavisWalk *walk, uint32 element, const NavisEntry *entry)
{
	/* Generation 0 was never live. */
	if (walk->dead == NULL || entry->generation == 0 || navis_entry_live(entry))
		return;
	walk->dead[walk->n_dead].element = element;
	walk->dead[walk->n_dead].generation = entry->generation;
	walk->n_dead++;
}

void
navis_walk_page(NavisWalk *walk, BlockNumber block)
{
	XLogRecPtr lsn;
	uint32 n =
		navis_journal_read(walk->slice->index, block, walk->page, &lsn, NULL);
	uint32 first = navis_first_element(block);

	for (uint32 i = 0; i < n; i++)
	{
		NavisEntry *entry = &walk->page[i];
		NavisMissing *place = &walk->batch[walk->n];

		note_dead(walk, first + i, entry);
		if (!navis_entry_has_vector(entry))
			continue;
		place->entry.element = first + i;
		place->entry.generation = entry->generation;
		place->entry.hash = navis_entry_hash(entry);
		place->tid = entry->tid;
		walk->n++;
	}
	walk->lsn = Max(walk->lsn, lsn);
}

/*
 * Rows that are dead to everybody need no vector, and may be many: those of a
 * load that was rolled back.  They do not count for what can be taken, or an
 * index would be built again and again for them.
 */
static nv_status
forget_dead_rows(NavisWalk *walk)
{
	for (uint64 i = walk->n_alive; i < walk->n_missing; i++)
	{
		if (!navis_slice_continue(walk->slice))
			return NV_ECANCELLED;
		if (navis_fetch_exists(navis_slice_fetch(walk->slice),
							   &walk->missing[i].tid))
			walk->missing[walk->n_alive++] = walk->missing[i];
	}
	walk->n_missing = walk->n_alive;
	return walk->n_missing > walk->limit ? NV_ELIMIT : NV_OK;
}

/* NV_ELIMIT: more is missing than can be taken; NV_ECANCELLED: given up. */
static nv_status
walk_journal(NavisWalk *walk)
{
	nv_status status = NV_OK;

	for (BlockNumber block = NAVIS_FIRST_PAGE;; block++)
	{
		bool end = block >= RelationGetNumberOfBlocks(walk->slice->index);

		if (end || !navis_walk_has_room(walk))
			status = navis_walk_flush(walk);
		if (status == NV_OK && walk->n_missing > walk->limit)
			status = forget_dead_rows(walk);
		if (status != NV_OK || end)
			return status;
		if (!navis_slice_continue(walk->slice))
			return NV_ECANCELLED;
		navis_walk_page(walk, block);
	}
}

/* --- catch-up --- */

static nv_status
insert_missing(NavisWalk *walk, const NavisMissing *missing,
			   const float *vector)
{
	nv_request *request = navis_request_begin(NV_REQ_INSERT, walk->key);
	nv_req_insert *insert;

	if (request == NULL)
		return NV_EUNUSABLE;
	insert = &request->u.insert;
	insert->element = missing->entry.element;
	insert->generation = missing->entry.generation;
	insert->hash = missing->entry.hash;
	insert->lsn = InvalidXLogRecPtr; /* told by RECONCILE */
	insert->dim = walk->slice->meta.dim;
	insert->from_heap = 1;
	memcpy(request->data, vector, insert->dim * sizeof(float));
	return navis_request_call(request, NULL, NULL);
}

nv_status
navis_walk_insert(NavisWalk *walk)
{
	nv_status status = NV_OK;

	for (uint64 i = 0; i < walk->n_missing && status == NV_OK; i++)
	{
		const float *vector;

		if (!navis_slice_continue(walk->slice))
			return NV_ECANCELLED;
		vector = navis_entry_vector(walk->slice, &walk->missing[i].entry,
									&walk->missing[i].tid);
		if (vector != NULL)
			status = insert_missing(walk, &walk->missing[i], vector);
	}
	return status;
}

/* --- the procedure --- */

/* Ends the pass; *state is the index's, valid if NV_OK. */
static nv_status
end_pass(NavisSlice *slice, const nv_key *key, bool complete, uint32 *state)
{
	nv_request *request = navis_request_begin(NV_REQ_OPENED, key);
	nv_status status;

	if (request == NULL)
		return NV_EUNUSABLE;
	request->u.opened.pass = slice->pass;
	request->u.opened.complete = complete;
	request->u.opened.followed = slice->followed;
	slice->pass = 0;
	status = navis_request_call(request, NULL, NULL);
	*state = request->u.opened.state;
	return status;
}

void
navis_opening_failed(NavisSlice *slice, const nv_key *key)
{
	nv_request *request;

	if (slice->pass == 0)
		return;
	request =
		navis_request_begin_noerror(NV_REQ_OPENED, key, NAVIS_FAILED_TIMEOUT);
	if (request == NULL)
		return;
	request->u.opened.pass = slice->pass;
	request->u.opened.complete = 0;
	slice->pass = 0;
	(void) navis_request_call_noerror(request, NAVIS_FAILED_TIMEOUT);
}

static nv_status
begin_pass(NavisSlice *slice, const nv_key *key, nv_req_open *open)
{
	nv_request *request = navis_request_begin(NV_REQ_OPEN, key);
	nv_status status;

	if (request == NULL)
		return NV_EUNUSABLE;
	navis_index_params(slice->index, &slice->meta, &request->u.open.params);
	navis_request_title(request, RelationGetRelid(slice->index));
	status = navis_request_call(request, NULL, NULL);
	*open = request->u.open;
	if (status != NV_OK && status != NV_EUNUSABLE)
		ereport(LOG, (errmsg("engine cannot open navis index \"%s\": %s",
							 RelationGetRelationName(slice->index),
							 request->detail)));
	return status;
}

/* The walk and what it found missing, in memory of its own. */
static nv_status
compare_and_catch_up(NavisSlice *slice, const nv_key *key,
					 const nv_req_open *open)
{
	MemoryContext outer = slice->context;
	MemoryContext context =
		AllocSetContextCreate(outer, "navis opening", ALLOCSET_DEFAULT_SIZES);
	NavisWalk walk;
	nv_status status;

	slice->context = context;
	navis_walk_init(&walk, slice, key, false);
	walk.limit =
		open->has_graph ? open->room : Min(open->room, NV_MIN_GRAPH_ROWS);
	navis_tails_read(slice->index, &slice->followed);
	slice->followed.walked_at = GetCurrentTimestamp();
	slice->followed.walked = navis_newest_followed(&slice->followed);
	status = walk_journal(&walk);
	if (status == NV_OK)
		status = navis_walk_insert(&walk);
	if (slice->fetch != NULL)
		navis_fetch_end(slice->fetch);
	slice->fetch = NULL;
	slice->context = outer;
	MemoryContextDelete(context);
	return status;
}

/* One try; *again when a rebuild has overtaken this walk. */
static NavisOpening
try_opening(NavisSlice *slice, const nv_key *key, bool *again)
{
	nv_req_open open;
	nv_status status;
	uint32 state = NV_INDEX_OPENING;

	*again = false;
	if (begin_pass(slice, key, &open) != NV_OK)
		return NAVIS_OPENING_LATER;
	slice->followed = open.followed;
	if (open.state == NV_INDEX_READY)
		return NAVIS_OPENING_READY;
	if (open.state == NV_INDEX_FULL)
		return NAVIS_OPENING_FULL;
	if (open.state == NV_INDEX_BUILDING)
		return NAVIS_OPENING_LATER;
	if (open.pass == 0) /* compared a moment ago */
		return NAVIS_OPENING_REBUILD;

	slice->pass = open.pass;
	status = compare_and_catch_up(slice, key, &open);
	if (status == NV_ECANCELLED)
		return NAVIS_OPENING_LOST;
	*again = status == NV_ENOENT;
	if (status == NV_OK)
	{
		status = end_pass(slice, key, true, &state);
		/* A row that came meanwhile is missing. */
		*again = status == NV_OK && state == NV_INDEX_OPENING;
	}
	else
		(void) end_pass(slice, key, false, &state);
	if (status == NV_OK && state == NV_INDEX_READY)
		return NAVIS_OPENING_READY;
	if (state == NV_INDEX_FULL)
		return NAVIS_OPENING_FULL;
	return status == NV_ELIMIT ? NAVIS_OPENING_REBUILD : NAVIS_OPENING_LATER;
}

static NavisOpening
follow(NavisSlice *slice, const nv_key *key)
{
	switch (navis_follow(slice, key))
	{
		case NV_OK:
			return NAVIS_OPENING_READY;
		case NV_ELIMIT:
			return NAVIS_OPENING_FULL;
		case NV_ECANCELLED:
			return NAVIS_OPENING_LOST;
		default:
			return NAVIS_OPENING_LATER;
	}
}

NavisOpening
navis_opening_run(NavisSlice *slice, const nv_key *key)
{
	NavisOpening result = NAVIS_OPENING_LATER;
	bool again = true;

	for (int i = 0; again && i < NAVIS_OPENING_TRIES; i++)
		result = try_opening(slice, key, &again);
	if (result == NAVIS_OPENING_READY &&
		!navis_is_followed(slice->index, NULL, &slice->followed))
		result = follow(slice, key);
	return result;
}
