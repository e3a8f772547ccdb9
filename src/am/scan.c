/*
 * scan.c
 *		Scans: batches from the engine, checked against the journal; the exact
 *		scan where there is no engine; journal order where no order is asked.
 *
 * A row is given only if the journal, under its buffer lock, still says that
 * this element and generation is live; visibility is the executor's business,
 * so no pins are held and an MVCC snapshot is required.  When the graph has
 * nothing more to give, or so much was asked for that comparing all rows is
 * cheaper, the final sweep gives the rest (sweep.c).
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catchup.h"
#include "compat.h"
#include "scan.h"
#include "settings.h"

#define FIRST_BATCH 10      /* rows, when K is not known */
#define SWEEP_MIN_ROWS 2000 /* given by the graph before a sweep may pay */
#define SWEEP_SHARE 8       /* ... and a share of all entries, 1 in so many */
#define OPEN_TRIES 3        /* the engine may change under our feet */

/* --- life --- */

static void
release_cursor(NavisScan *so)
{
	/* In another engine the number may be somebody else's cursor. */
	if (so->cursor != 0 && so->incarnation == navis_engine_incarnation())
		navis_cursor_release(&so->key, so->cursor);
	so->cursor = 0;
}

static void
release_callback(void *arg)
{
	release_cursor(arg);
}

IndexScanDesc
navis_beginscan(Relation index, int nkeys, int norderbys)
{
	IndexScanDesc scan = RelationGetIndexScan(index, nkeys, norderbys);
	MemoryContext context = AllocSetContextCreate(
		CurrentMemoryContext, "navis scan", ALLOCSET_DEFAULT_SIZES);
	NavisScan *so = MemoryContextAllocZero(context, sizeof(NavisScan));

	so->context = context;
	so->work = AllocSetContextCreate(context, "navis scan work",
									 ALLOCSET_DEFAULT_SIZES);
	so->release.func = release_callback;
	so->release.arg = so;
	MemoryContextRegisterResetCallback(context, &so->release);
	scan->opaque = so;
	return scan;
}

void
navis_rescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys,
			 int norderbys)
{
	NavisScan *so = scan->opaque;

	if (keys != NULL && scan->numberOfKeys > 0)
		memmove(scan->keyData, keys, scan->numberOfKeys * sizeof(ScanKeyData));
	if (orderbys != NULL && scan->numberOfOrderBys > 0)
		memmove(scan->orderByData, orderbys,
				scan->numberOfOrderBys * sizeof(ScanKeyData));
	release_cursor(so);
	navis_sweep_end(so);
	MemoryContextReset(so->work);
	so->phase = NAVIS_SCAN_START;
	so->hits = NULL;
	so->n_hits = so->next_hit = so->hits_room = 0;
	so->given = so->given_sorted = NULL;
	so->n_dead = 0;
	so->n_given = so->given_room = so->n_sorted = 0;
	so->exhausted = so->replaying = so->has_prior = false;
	so->entries = NULL;
	so->n_entries = so->next_entry = 0;
	memset(&so->counters, 0, sizeof(so->counters));
}

void
navis_endscan(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;

	navis_sweep_end(so);
	MemoryContextDelete(so->context); /* releases the cursor */
	scan->opaque = NULL;
}

/* --- batches from the engine --- */

static int
compare_uint32(const void *a, const void *b)
{
	uint32 x = *(const uint32 *) a, y = *(const uint32 *) b;

	return x < y ? -1 : x > y ? 1 : 0;
}

static bool
was_given(const NavisScan *so, uint32 element)
{
	return so->replaying && bsearch(&element, so->given_sorted, so->n_sorted,
									sizeof(uint32), compare_uint32) != NULL;
}

/* A cursor is lost: what follows is compared with what was given. */
static void
begin_replay(NavisScan *so)
{
	if (so->n_given == 0)
		return;
	so->given_sorted =
		MemoryContextAllocHuge(so->work, so->n_given * sizeof(uint32));
	memcpy(so->given_sorted, so->given, so->n_given * sizeof(uint32));
	so->n_sorted = so->n_given;
	qsort(so->given_sorted, so->n_sorted, sizeof(uint32), compare_uint32);
	so->replaying = true;
}

static void
note_given(NavisScan *so, uint32 element)
{
	if (so->n_given == so->given_room)
	{
		uint64 room = Max(so->given_room * 2, 64);

		so->given = so->given == NULL
						? MemoryContextAlloc(so->work, room * sizeof(uint32))
						: repalloc_huge(so->given, room * sizeof(uint32));
		so->given_room = room;
	}
	so->given[so->n_given++] = element;
}

static void
add_stats(nv_search_stats *sum, const nv_search_stats *one)
{
	sum->hops += one->hops;
	sum->edge_pages += one->edge_pages;
	sum->edge_reads += one->edge_reads;
	sum->cache_hits += one->cache_hits;
	sum->explored += one->explored;
	sum->vectors += one->vectors;
	sum->batches += one->batches;
	sum->pending += one->pending;
	sum->bytes += one->bytes;
	sum->io_ns += one->io_ns;
	sum->compute_ns += one->compute_ns;
	sum->damaged += one->damaged;
}

/* Copies the answer out of the slot, which other requests will use. */
static void
take_answer(NavisScan *so, const nv_request *request)
{
	const nv_req_search *answer = &request->u.search;
	const nv_hit *hits = (const nv_hit *) request->data;

	if (answer->n > so->hits_room)
	{
		if (so->hits != NULL)
			pfree(so->hits);
		so->hits_room = Max(answer->n, so->batch);
		so->hits = MemoryContextAlloc(so->work, so->hits_room * sizeof(nv_hit));
	}
	so->n_hits = so->next_hit = 0;
	for (uint32 i = 0; i < answer->n; i++)
		if (!was_given(so, hits[i].element) &&
			!(so->replaying && hits[i].distance < so->last))
			so->hits[so->n_hits++] = hits[i];
	so->cursor = answer->cursor;
	so->exhausted = answer->exhausted != 0;
	so->counters.window = answer->window;
	so->counters.list_used = answer->list_used;
	so->counters.requests++;
	add_stats(&so->counters.engine, &answer->stats);
}

static nv_status
call_search(NavisScan *so, nv_request *request)
{
	nv_status status = navis_request_call(request, NULL, NULL);

	if (status == NV_OK)
		take_answer(so, request);
	else if (status == NV_ENOMEM || status == NV_EINVAL)
		navis_request_error(request, status, "could not search index");
	return status;
}

static nv_status
search_first(NavisScan *so)
{
	nv_request *request = navis_request_begin(NV_REQ_SEARCH, &so->key);
	nv_req_search *ask;

	if (request == NULL)
		return NV_EUNUSABLE;
	ask = &request->u.search;
	ask->dim = so->dim;
	ask->k = so->batch;
	ask->list_size = navis_search_list_size;
	ask->beam_width = navis_beam_width;
	ask->entrance_list = navis_entrance_list_size;
	ask->percentile = navis_casr_percentile_search;
	if (!navis_casr)
		ask->flags |= NV_SEARCH_LOAD_ALL;
	if (!navis_entrance)
		ask->flags |= NV_SEARCH_FROM_MEDOID;
	memcpy(request->data, so->query, so->dim * sizeof(float));
	so->incarnation = navis_engine_incarnation();
	return call_search(so, request);
}

static nv_status
search_next(NavisScan *so)
{
	nv_request *request;

	/* A cursor is a number of one engine only. */
	if (so->incarnation != navis_engine_incarnation())
		return NV_ENOENT;
	request = navis_request_begin(NV_REQ_NEXT, &so->key);
	if (request == NULL)
		return NV_EUNUSABLE;
	request->u.search.cursor = so->cursor;
	request->u.search.k = so->batch;
	return call_search(so, request);
}

/* Opens the index if need be and asks for the first batch; false: exact scan.
 */
static bool
start_search(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	Relation index = scan->indexRelation;

	for (int i = 0; i < OPEN_TRIES; i++)
	{
		nv_status status;

		if (navis_open_index(scan->heapRelation, index, &so->meta, &so->key) !=
			NAVIS_USE_GRAPH)
			return false;
		status = search_first(so);
		if (status == NV_OK)
			return true;
		navis_open_forget(RelationGetRelid(index));
	}
	return false;
}

/* --- entries that are not live any more --- */

static void
tell_dead(NavisScan *so)
{
	/* It hears of them again if it cannot listen. */
	(void) navis_tell_dead(&so->key, so->dead, so->n_dead, InvalidXLogRecPtr);
	so->n_dead = 0;
}

/*
 * On a primary VACUUM tells the engine of what it marked; on a standby nobody
 * does.  The entry may be another generation's by now: gone is gone.
 */
static void
note_dead(NavisScan *so, const nv_hit *hit)
{
	if (!RecoveryInProgress())
		return;
	if (so->n_dead == NAVIS_SCAN_DEAD)
		tell_dead(so);
	so->dead[so->n_dead].element = hit->element;
	so->dead[so->n_dead].generation = hit->generation;
	so->n_dead++;
}

/* --- more batches --- */

/* Is it cheaper now to compare all rows that are left? */
static bool
sweep_pays(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	uint64 entries = (uint64) RelationGetNumberOfBlocks(scan->indexRelation) *
					 navis_entries_per_page();

	return so->n_given > Max(SWEEP_MIN_ROWS, entries / SWEEP_SHARE);
}

/* Another batch; false: only the sweep can go on. */
static bool
next_batch(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;

	do
	{
		nv_status status = NV_ENOENT;

		CHECK_FOR_INTERRUPTS();
		tell_dead(so);
		if (so->exhausted || sweep_pays(scan))
			return false;
		so->batch = Min(so->batch * 2, NV_MAX_HITS);
		if (so->cursor != 0)
			status = search_next(so);
		if (status == NV_ENOENT)
		{
			so->cursor = 0;
			begin_replay(so);
			so->batch = Min(so->n_given + so->batch, NV_MAX_HITS);
			if (!start_search(scan))
				return false;
		}
		else if (status != NV_OK)
		{
			so->cursor = 0;
			return false;
		}
	} while (so->n_hits == 0);
	return true;
}

/* --- giving rows --- */

static bool
give(IndexScanDesc scan, ItemPointer tid)
{
	NavisScan *so = scan->opaque;

	scan->xs_heaptid = *tid;
	scan->xs_recheck = false;
	scan->xs_recheckorderby = false;
	so->counters.rows++;
	navis_note_scan(&so->counters);
	return true;
}

/* Next live hit of the graph; false: go on with the sweep. */
static bool
graph_next(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;

	for (;;)
	{
		nv_hit *hit;
		ItemPointerData tid;

		if (so->next_hit == so->n_hits && !next_batch(scan))
			return false;
		hit = &so->hits[so->next_hit++];
		so->last = hit->distance;
		if (!navis_journal_live(scan->indexRelation, hit->element,
								hit->generation, scan->ignore_killed_tuples,
								&tid))
		{
			note_dead(so, hit);
			continue;
		}
		/* Not before: the entry may be another row's, whose turn comes. */
		note_given(so, hit->element);
		so->has_prior = true;
		so->prior_element = hit->element;
		so->prior_generation = hit->generation;
		return give(scan, &tid);
	}
}

/* Rows in journal order, NULLs and all. */
static bool
walk_next(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	XLogRecPtr lsn;

	if (so->entries == NULL)
	{
		so->entries = MemoryContextAlloc(so->work, navis_entries_per_page() *
													   sizeof(NavisEntry));
		so->block = NAVIS_FIRST_PAGE;
	}
	for (;;)
	{
		while (so->next_entry < so->n_entries)
		{
			NavisEntry *entry = &so->entries[so->next_entry++];

			if (!navis_entry_visible(entry, scan->ignore_killed_tuples))
				continue;
			so->has_prior = true;
			so->prior_element =
				navis_first_element(so->block - 1) + so->next_entry - 1;
			so->prior_generation = entry->generation;
			return give(scan, &entry->tid);
		}
		CHECK_FOR_INTERRUPTS();
		if (so->block >= RelationGetNumberOfBlocks(scan->indexRelation))
			return false;
		so->n_entries = navis_journal_read(scan->indexRelation, so->block++,
										   so->entries, &lsn, NULL);
		so->next_entry = 0;
	}
}

/* --- start --- */

static void
add_index_context(void *arg)
{
	errcontext("searching index \"%s\"",
			   RelationGetRelationName((Relation) arg));
}

static void
read_query(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	ErrorContextCallback callback = {error_context_stack, add_index_context,
									 scan->indexRelation};
	ScanKey key = &scan->orderByData[0];
	MemoryContext old = MemoryContextSwitchTo(so->work);
	const float *vector;
	float *copy;

	error_context_stack = &callback;
	vector = navis_vector_from_datum(key->sk_argument, so->meta.element_type,
									 so->meta.dim, &so->dim);
	error_context_stack = callback.previous;
	copy = palloc(so->dim * sizeof(float));
	memcpy(copy, vector, so->dim * sizeof(float));
	so->query = copy;
	MemoryContextSwitchTo(old);
}

static NavisScanPhase
choose_phase(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	uint64 wanted;

	if (scan->numberOfOrderBys == 0 ||
		(scan->orderByData[0].sk_flags & SK_ISNULL))
		return NAVIS_SCAN_WALK; /* a NULL orders nothing */
	read_query(scan);
	/* Every distance to a zero vector is NaN under cosine. */
	if (so->meta.metric == NV_METRIC_COSINE && nv_norm(so->query, so->dim) == 0)
		return NAVIS_SCAN_SWEEP;
	wanted = navis_limit_wanted();
	so->batch = wanted == 0 ? FIRST_BATCH : Min(wanted, NV_MAX_HITS);
	return start_search(scan) ? NAVIS_SCAN_GRAPH : NAVIS_SCAN_SWEEP;
}

static void
start_scan(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;

	if (scan->xs_snapshot == NULL || !IsMVCCSnapshot(scan->xs_snapshot))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("navis indexes can be scanned only with an "
							   "MVCC snapshot")));
	pgstat_count_index_scan(scan->indexRelation);
	navis_meta_read(scan->indexRelation, &so->meta);
	navis_make_key(&so->key, so->meta.identity);
	so->counters.index_oid = RelationGetRelid(scan->indexRelation);
	so->phase = choose_phase(scan);
	so->counters.mode = so->phase;
	if (so->phase == NAVIS_SCAN_SWEEP)
		navis_sweep_begin(scan);
	navis_note_scan(&so->counters);
}

/* navis.max_scan_tuples: ends an ordered scan, and says so. */
static bool
limit_reached(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;

	if (navis_max_scan_tuples <= 0 || so->phase == NAVIS_SCAN_DONE ||
		so->phase == NAVIS_SCAN_WALK ||
		so->counters.rows < (uint64) navis_max_scan_tuples)
		return false;
	ereport(NOTICE, (errmsg("scan of index \"%s\" ended after %d rows",
							RelationGetRelationName(scan->indexRelation),
							navis_max_scan_tuples),
					 errhint("Raise navis.max_scan_tuples, or set it to 0.")));
	return true;
}

bool
navis_gettuple(IndexScanDesc scan, ScanDirection direction)
{
	NavisScan *so = scan->opaque;

	if (!ScanDirectionIsForward(direction))
		elog(ERROR, "navis indexes are scanned forward only");
	if (so->phase == NAVIS_SCAN_START)
		start_scan(scan);
	else if (scan->kill_prior_tuple && so->has_prior)
		navis_journal_kill(scan->indexRelation, so->prior_element,
						   so->prior_generation);
	so->has_prior = false;
	if (limit_reached(scan))
		so->phase = NAVIS_SCAN_DONE;
	if (so->phase == NAVIS_SCAN_WALK && walk_next(scan))
		return true;
	if (so->phase == NAVIS_SCAN_GRAPH)
	{
		if (graph_next(scan))
			return true;
		release_cursor(so);
		so->phase = NAVIS_SCAN_SWEEP;
		so->counters.swept = true;
		navis_sweep_begin(scan);
	}
	if (so->phase == NAVIS_SCAN_SWEEP && navis_sweep_next(scan))
		return give(scan, &scan->xs_heaptid);
	so->phase = NAVIS_SCAN_DONE;
	navis_note_scan(&so->counters);
	return false;
}
