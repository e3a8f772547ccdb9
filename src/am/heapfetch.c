/*
 * heapfetch.c
 *		Rows behind journal entries: fetches a row and computes the indexed
 *		value, outside the statement that inserted it.
 *
 * Index expressions run under a guard (navis.h).  The entries of a partial
 *index stand for rows that satisfied the predicate when they were inserted; a
 *row version does not change, so it is not evaluated again.
 */
#include "postgres.h"

#include "catalog/index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#include "compat.h"
#include "navis.h"

struct NavisFetch
{
	Relation heap;
	IndexInfo *info;
	uint32 element_type;
	Snapshot snapshot;   /* what the fetch looks with */
	bool last_version;   /* NonVacuumable: follow to the last member */
	Snapshot registered; /* ours, for detoasting; may be NULL */
	SnapshotData nonvacuumable;
	IndexFetchTableData *table;
	TupleTableSlot *slot;  /* what the table AM fills */
	TupleTableSlot *found; /* the version chosen */
	EState *estate;
	MemoryContext row;     /* reset with every row */
	MemoryContext context; /* everything else */
};

void
navis_guard_enter(NavisGuard *guard, Relation heap)
{
	GetUserIdAndSecContext(&guard->user, &guard->security);
	SetUserIdAndSecContext(heap->rd_rel->relowner,
						   guard->security | SECURITY_RESTRICTED_OPERATION);
	guard->nest_level = NewGUCNestLevel();
	navis_restrict_search_path();
}

void
navis_guard_leave(const NavisGuard *guard)
{
	AtEOXact_GUC(false, guard->nest_level);
	SetUserIdAndSecContext(guard->user, guard->security);
}

static void
choose_snapshot(NavisFetch *fetch, Snapshot snapshot)
{
	fetch->snapshot = snapshot;
	if (snapshot != NULL)
		return;

	/* Held for detoasting, and so that the horizon below stays put. */
	fetch->registered = RegisterSnapshot(
		ActiveSnapshotSet() ? GetActiveSnapshot() : GetTransactionSnapshot());
	/*
	 * The horizon as it is now: by an older one, of snapshots that are gone, a
	 * row counts as needed whose TOAST has been vacuumed.
	 */
	(void) GetOldestNonRemovableTransactionId(fetch->heap);
	InitNonVacuumableSnapshot(fetch->nonvacuumable,
							  GlobalVisTestFor(fetch->heap));
	fetch->snapshot = &fetch->nonvacuumable;
	fetch->last_version = true;
}

NavisFetch *
navis_fetch_begin(Relation heap, Relation index, Snapshot snapshot)
{
	MemoryContext context = AllocSetContextCreate(
		CurrentMemoryContext, "navis row fetch", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	NavisFetch *fetch = palloc0(sizeof(NavisFetch));
	NavisMeta meta;

	navis_meta_read(index, &meta);
	fetch->context = context;
	fetch->heap = heap;
	fetch->element_type = meta.element_type;
	fetch->info = BuildIndexInfo(index);
	choose_snapshot(fetch, snapshot);
	fetch->slot = table_slot_create(heap, NULL);
	fetch->found = table_slot_create(heap, NULL);
	fetch->estate = CreateExecutorState();
	GetPerTupleExprContext(fetch->estate)->ecxt_scantuple = fetch->found;
	fetch->table = table_index_fetch_begin(heap);
	fetch->row =
		AllocSetContextCreate(context, "navis row", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(old);
	return fetch;
}

/*
 * Leaves the wanted version in fetch->found.  Catch-up wants the last member
 * of a HOT chain that is not dead: a chain that was broken when the index was
 * made may hold another vector first.
 */
static bool
find_version(NavisFetch *fetch, ItemPointer tid)
{
	ItemPointerData root = *tid;
	bool call_again = false, any = false;

	ExecClearTuple(fetch->found);
	do
	{
		ItemPointerData member = root;

		if (!table_index_fetch_tuple(fetch->table, &member, fetch->snapshot,
									 fetch->slot, &call_again, NULL))
			break;
		ExecCopySlot(fetch->found, fetch->slot);
		any = true;
		root = member;
	} while (fetch->last_version && call_again);
	ExecClearTuple(fetch->slot);
	return any;
}

static NavisFetchResult
compute_vector(NavisFetch *fetch, const float **vector, uint32 *dim)
{
	Datum values[INDEX_MAX_KEYS];
	bool isnull[INDEX_MAX_KEYS];
	bool guarded = fetch->info->ii_Expressions != NIL;
	NavisGuard guard;

	if (guarded)
		navis_guard_enter(&guard, fetch->heap);
	FormIndexDatum(fetch->info, fetch->found, fetch->estate, values, isnull);
	if (guarded)
		navis_guard_leave(&guard);
	if (isnull[0])
		return NAVIS_FETCH_NULL;
	*vector = navis_vector_from_datum(values[0], fetch->element_type, 0, dim);
	return NAVIS_FETCH_VECTOR;
}

/* The vector lives until the next row is fetched. */
NavisFetchResult
navis_fetch_row(NavisFetch *fetch, ItemPointer tid, const float **vector,
				uint32 *dim)
{
	NavisFetchResult result = NAVIS_FETCH_GONE;
	MemoryContext old;

	MemoryContextReset(fetch->row);
	ResetPerTupleExprContext(fetch->estate);
	if (!find_version(fetch, tid))
		return result;
	old = MemoryContextSwitchTo(fetch->row);
	result = compute_vector(fetch, vector, dim);
	MemoryContextSwitchTo(old);
	return result;
}

bool
navis_fetch_exists(NavisFetch *fetch, ItemPointer tid)
{
	bool exists = find_version(fetch, tid);

	ExecClearTuple(fetch->found);
	return exists;
}

void
navis_fetch_end(NavisFetch *fetch)
{
	table_index_fetch_end(fetch->table);
	ExecDropSingleTupleTableSlot(fetch->slot);
	ExecDropSingleTupleTableSlot(fetch->found);
	FreeExecutorState(fetch->estate);
	if (fetch->registered != NULL)
		UnregisterSnapshot(fetch->registered);
	MemoryContextDelete(fetch->context);
}
