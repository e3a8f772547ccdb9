/*
 * sweep.c
 *		Exact answers by the access method alone: walks the journal, fetches
 *		the rows, sorts by distance, streams.
 *
 * It is the whole scan where the engine cannot answer, and the end of a scan
 * that outlasts the graph: then it has what was held back or never reached.
 * Order: finite distances, then NaN, then rows without a vector.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"

#include "scan.h"

/* First sort key. */
#define CLASS_FINITE 0
#define CLASS_NAN 1
#define CLASS_NULL 2

#define ATTR_CLASS 1
#define ATTR_DISTANCE 2
#define ATTR_TID 3
#define ATTRS 3

/* --- what was given before --- */

typedef struct NavisGivenSet
{
	uint8 *bits; /* NULL: nothing was given */
	uint64 n;
} NavisGivenSet;

static NavisGivenSet
make_given_set(const NavisScan *so)
{
	NavisGivenSet set = {NULL, 0};

	for (uint64 i = 0; i < so->n_given; i++)
		set.n = Max(set.n, (uint64) so->given[i] + 1);
	if (set.n > 0)
		set.bits = MemoryContextAllocExtended(
			so->work, set.n / 8 + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (uint64 i = 0; i < so->n_given; i++)
		set.bits[so->given[i] / 8] |= 1 << (so->given[i] % 8);
	return set;
}

static bool
in_given_set(const NavisGivenSet *set, uint32 element)
{
	return element < set->n && (set->bits[element / 8] >> (element % 8) & 1);
}

/* --- sorting --- */

static void
begin_sort(NavisScan *so)
{
	TupleDesc desc = CreateTemplateTupleDesc(ATTRS);
	AttrNumber keys[] = {ATTR_CLASS, ATTR_DISTANCE};
	Oid operators[] = {Int4LessOperator, Float8LessOperator};
	Oid collations[] = {InvalidOid, InvalidOid};
	bool nulls_first[] = {false, false};

	TupleDescInitEntry(desc, ATTR_CLASS, "class", INT4OID, -1, 0);
	TupleDescInitEntry(desc, ATTR_DISTANCE, "distance", FLOAT8OID, -1, 0);
	TupleDescInitEntry(desc, ATTR_TID, "tid", TIDOID, -1, 0);
	so->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	so->sort =
		tuplesort_begin_heap(desc, 2, keys, operators, collations, nulls_first,
							 work_mem, NULL, TUPLESORT_NONE);
}

static void
put_row(NavisScan *so, TupleTableSlot *slot, int32 class, double distance,
		ItemPointer tid)
{
	ExecClearTuple(slot);
	slot->tts_values[ATTR_CLASS - 1] = Int32GetDatum(class);
	slot->tts_values[ATTR_DISTANCE - 1] = Float8GetDatum(distance);
	slot->tts_values[ATTR_TID - 1] = PointerGetDatum(tid);
	memset(slot->tts_isnull, 0, ATTRS * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(so->sort, slot);
}

/* One row as the scan's snapshot sees it; none if it sees none. */
static void
compare_row(NavisScan *so, NavisFetch *fetch, TupleTableSlot *slot,
			ItemPointer tid)
{
	const float *vector;
	double distance = 0;
	uint32 dim;

	switch (navis_fetch_row(fetch, tid, &vector, &dim))
	{
		case NAVIS_FETCH_GONE:
			return;
		case NAVIS_FETCH_NULL:
			put_row(so, slot, CLASS_NULL, 0, tid);
			break;
		case NAVIS_FETCH_VECTOR:
			if (dim != so->dim)
				ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
								errmsg("vector has %u dimensions, expected %u",
									   dim, so->dim),
								errcontext("comparing row (%u,%u)",
										   ItemPointerGetBlockNumber(tid),
										   ItemPointerGetOffsetNumber(tid))));
			distance = nv_distance((nv_metric) so->meta.metric, so->query,
								   vector, dim);
			if (isnan(distance))
				put_row(so, slot, CLASS_NAN, 0, tid);
			else
				put_row(so, slot, CLASS_FINITE, distance, tid);
			break;
	}
	so->counters.fetched++;
}

/* --- the sweep --- */

static void
sort_rows(IndexScanDesc scan, NavisFetch *fetch, TupleTableSlot *slot)
{
	NavisScan *so = scan->opaque;
	Relation index = scan->indexRelation;
	NavisGivenSet given = make_given_set(so);
	NavisEntry *entries = palloc(navis_entries_per_page() * sizeof(NavisEntry));

	/* The end is read again: rows may be appended meanwhile. */
	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(index); block++)
	{
		XLogRecPtr lsn;
		uint32 n = navis_journal_read(index, block, entries, &lsn, NULL);
		uint32 first = navis_first_element(block);

		for (uint32 i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (navis_entry_visible(&entries[i], scan->ignore_killed_tuples) &&
				!in_given_set(&given, first + i))
				compare_row(so, fetch, slot, &entries[i].tid);
		}
	}
	pfree(entries);
}

static void
add_index_context(void *arg)
{
	errcontext("exact scan of index \"%s\"",
			   RelationGetRelationName((Relation) arg));
}

void
navis_sweep_begin(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	ErrorContextCallback callback = {error_context_stack, add_index_context,
									 scan->indexRelation};
	MemoryContext old = MemoryContextSwitchTo(so->work);
	TupleTableSlot *slot;
	NavisFetch *fetch;

	begin_sort(so);
	slot =
		MakeSingleTupleTableSlot(so->slot->tts_tupleDescriptor, &TTSOpsVirtual);
	fetch = navis_fetch_begin(scan->heapRelation, scan->indexRelation,
							  scan->xs_snapshot);
	error_context_stack = &callback;
	sort_rows(scan, fetch, slot);
	error_context_stack = callback.previous;
	navis_fetch_end(fetch);
	ExecDropSingleTupleTableSlot(slot);
	tuplesort_performsort(so->sort);
	MemoryContextSwitchTo(old);
}

bool
navis_sweep_next(IndexScanDesc scan)
{
	NavisScan *so = scan->opaque;
	bool null;

	if (!tuplesort_gettupleslot(so->sort, true, false, so->slot, NULL))
		return false;
	scan->xs_heaptid =
		*(ItemPointer) DatumGetPointer(slot_getattr(so->slot, ATTR_TID, &null));
	return true;
}

void
navis_sweep_end(NavisScan *so)
{
	if (so->sort != NULL)
		tuplesort_end(so->sort);
	if (so->slot != NULL)
		ExecDropSingleTupleTableSlot(so->slot);
	so->sort = NULL;
	so->slot = NULL;
}
