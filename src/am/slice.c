/*
 * slice.c
 *		A piece of work on one index, in the session's transaction or cut into
 *		short transactions of our own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "slice.h"
#include "worker.h"

#define NAVIS_SLICE_MS 1000.0

void
navis_slice_session(NavisSlice *slice, Relation heap, Relation index,
					const NavisMeta *meta)
{
	memset(slice, 0, sizeof(NavisSlice));
	slice->index_oid = RelationGetRelid(index);
	slice->heap = heap;
	slice->index = index;
	slice->meta = *meta;
	slice->context = CurrentMemoryContext;
}

/* An index of ours that sessions may use, with pages to read. */
static bool
is_usable_index(Relation index, Oid heap_oid)
{
	return navis_is_index(index) && index->rd_index->indrelid == heap_oid &&
		   index->rd_index->indisvalid && index->rd_index->indisready &&
		   index->rd_index->indislive && !navis_has_no_pages(index) &&
		   RelationGetNumberOfBlocks(index) > 0;
}

static void
close_relations(NavisSlice *slice)
{
	if (slice->index != NULL)
		relation_close(slice->index, NoLock);
	if (slice->heap != NULL)
		relation_close(slice->heap, NoLock);
	slice->index = slice->heap = NULL;
}

/* Table before index, as everybody does; waits for nobody. */
static bool
open_relations(NavisSlice *slice)
{
	Oid heap_oid = IndexGetRelation(slice->index_oid, true);

	if (!OidIsValid(heap_oid) ||
		!ConditionalLockRelationOid(heap_oid, AccessShareLock) ||
		!ConditionalLockRelationOid(slice->index_oid, AccessShareLock))
		return false;
	slice->heap = try_relation_open(heap_oid, NoLock);
	slice->index = try_relation_open(slice->index_oid, NoLock);
	return slice->heap != NULL && slice->index != NULL &&
		   is_usable_index(slice->index, heap_oid);
}

/* A transaction with the relations open, or none. */
static bool
start(NavisSlice *slice)
{
	INSTR_TIME_SET_CURRENT(slice->began);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (open_relations(slice))
		return true;
	navis_slice_end(slice);
	return false;
}

bool
navis_slice_begin(NavisSlice *slice, Oid index_oid, MemoryContext context)
{
	memset(slice, 0, sizeof(NavisSlice));
	slice->own = true;
	slice->index_oid = index_oid;
	slice->context = context;
	if (!start(slice))
		return false;
	navis_meta_read(slice->index, &slice->meta);
	return true;
}

void
navis_slice_end(NavisSlice *slice)
{
	if (slice->fetch != NULL)
		navis_fetch_end(slice->fetch);
	slice->fetch = NULL;
	if (!slice->own)
		return;
	close_relations(slice);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(slice->context);
}

bool
navis_slice_resume(NavisSlice *slice)
{
	NavisMeta meta;

	if (!navis_helper_may_stay() || !start(slice))
		return false;
	navis_meta_read(slice->index, &meta);
	if (memcmp(meta.identity, slice->meta.identity, sizeof(meta.identity)) == 0)
		return true;
	navis_slice_end(slice);
	return false;
}

bool
navis_slice_continue(NavisSlice *slice)
{
	instr_time now;

	CHECK_FOR_INTERRUPTS();
	if (!slice->own)
		return true;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, slice->began);
	if (INSTR_TIME_GET_MILLISEC(now) < NAVIS_SLICE_MS)
		return true;
	navis_slice_end(slice);
	return navis_slice_resume(slice);
}

NavisFetch *
navis_slice_fetch(NavisSlice *slice)
{
	MemoryContext old = MemoryContextSwitchTo(slice->context);

	if (slice->fetch == NULL)
		slice->fetch = navis_fetch_begin(slice->heap, slice->index, NULL);
	MemoryContextSwitchTo(old);
	return slice->fetch;
}
