/*
 * rebuild.c
 *		Building an index's graph again in the background, from journal and
 *		heap: what the helper does when a sidecar is missing or useless.
 *
 * Works in slices (slice.h); while the engine builds, the helper holds no
 * transaction at all.  What is inserted and deleted meanwhile the engine hears
 * from whoever does it; the opening procedure that follows finds the rest.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "catchup.h"
#include "feed.h"
#include "worker.h"

typedef struct NavisRebuild
{
	NavisSlice slice;
	nv_key key;
	NavisFeed feed;
	NavisEntry *page; /* room for one page */
	XLogRecPtr lsn;   /* newest page read */
	char *name;
} NavisRebuild;

/* Live entries with a vector; false: given up. */
static bool
count_vectors(NavisRebuild *rebuild, uint64 *count)
{
	NavisSlice *slice = &rebuild->slice;

	*count = 0;
	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(slice->index); block++)
	{
		uint32 n =
			navis_journal_read(slice->index, block, rebuild->page, NULL, NULL);

		for (uint32 i = 0; i < n; i++)
			*count += navis_entry_has_vector(&rebuild->page[i]);
		if (!navis_slice_continue(slice))
			return false;
	}
	return true;
}

/* Hands the vectors of one page to the engine. */
static bool
stream_page(NavisRebuild *rebuild, BlockNumber block)
{
	NavisSlice *slice = &rebuild->slice;
	XLogRecPtr lsn;
	uint32 n =
		navis_journal_read(slice->index, block, rebuild->page, &lsn, NULL);

	rebuild->lsn = Max(rebuild->lsn, lsn);
	for (uint32 i = 0; i < n; i++)
	{
		NavisEntry *entry = &rebuild->page[i];
		nv_journal_entry row;
		const float *vector;

		if (!navis_entry_has_vector(entry))
			continue;
		row.element = navis_first_element(block) + i;
		row.generation = entry->generation;
		row.hash = navis_entry_hash(entry);
		vector = navis_entry_vector(slice, &row, &entry->tid);
		if (vector != NULL)
			navis_feed_add(&rebuild->feed, &row, vector);
		if (!navis_slice_continue(slice))
			return false;
	}
	return true;
}

static bool
stream_all(NavisRebuild *rebuild)
{
	NavisSlice *slice = &rebuild->slice;

	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(slice->index); block++)
		if (!stream_page(rebuild, block) || !navis_slice_continue(slice))
			return false;
	return true;
}

/* About ten times a second while the engine builds. */
static void
look_around(nv_request *request, void *arg)
{
	if (!navis_helper_may_stay())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("somebody waits for the database of the index")));
}

/* Streams and builds; false: given up.  No slice is open afterwards. */
static bool
build_graph(NavisRebuild *rebuild, uint64 rows)
{
	NavisSlice *slice = &rebuild->slice;
	nv_req_build result;
	nv_index_params params;
	MemoryContext old = MemoryContextSwitchTo(slice->context);
	bool begun;

	navis_index_params(slice->index, &slice->meta, &params);
	begun = navis_feed_begin(&rebuild->feed, &rebuild->key, &params, rows, true,
							 rebuild->name);
	MemoryContextSwitchTo(old);
	if (!begun)
	{
		navis_slice_end(slice);
		return false;
	}
	if (!stream_all(rebuild))
		return false;
	navis_slice_end(slice);
	navis_feed_run(&rebuild->feed, rebuild->lsn, look_around, NULL, &result);
	ereport(LOG, (errmsg("rebuilt the graph of navis index \"%s\": %llu rows",
						 rebuild->name, (unsigned long long) result.rows)));
	return true;
}

/* Worth a graph at all?  Decided by the journal's size, without the engine. */
static bool
is_large_enough(const NavisSlice *slice)
{
	BlockNumber pages = RelationGetNumberOfBlocks(slice->index) - 1;

	return slice->meta.dim != 0 &&
		   (uint64) pages * navis_entries_per_page() > NV_MIN_GRAPH_ROWS;
}

/* Nothing to build; a standby has something else to do. */
static void
end_ready(NavisRebuild *rebuild)
{
	NavisSlice *slice = &rebuild->slice;

	if (!RecoveryInProgress() ||
		navis_follow_deletions(slice, &rebuild->key) != NV_ECANCELLED)
		navis_slice_end(slice);
}

/* The graph is to be built: of what the journal names now. */
static void
rebuild_graph(NavisRebuild *rebuild)
{
	NavisSlice *slice = &rebuild->slice;
	uint64 rows;

	if (!count_vectors(rebuild, &rows))
		return;
	if (rows <= NV_MIN_GRAPH_ROWS)
	{
		navis_slice_end(slice);
		return;
	}
	if (build_graph(rebuild, rows) && navis_slice_resume(slice) &&
		navis_opening_run(slice, &rebuild->key) != NAVIS_OPENING_LOST)
		navis_slice_end(slice);
}

/*
 * A graph that lacks rows because they outgrew pending_memory in the running
 * engine is left to REINDEX: rebuilding at every overflow would never end.
 */
static void
rebuild_if_needed(NavisRebuild *rebuild)
{
	NavisSlice *slice = &rebuild->slice;
	NavisOpening opening = is_large_enough(slice)
							   ? navis_opening_run(slice, &rebuild->key)
							   : NAVIS_OPENING_LATER;

	switch (opening)
	{
		case NAVIS_OPENING_LOST:
			break;
		case NAVIS_OPENING_READY:
			end_ready(rebuild);
			break;
		case NAVIS_OPENING_REBUILD:
			rebuild_graph(rebuild);
			break;
		default:
			navis_slice_end(slice);
			break;
	}
}

static void
rebuild_index(NavisRebuild *rebuild, Oid index_oid, MemoryContext context)
{
	if (!navis_slice_begin(&rebuild->slice, index_oid, context))
		return;
	rebuild->name = MemoryContextStrdup(
		context, RelationGetRelationName(rebuild->slice.index));
	rebuild->page = MemoryContextAlloc(context, navis_entries_per_page() *
													sizeof(NavisEntry));
	navis_make_key(&rebuild->key, rebuild->slice.meta.identity);
	rebuild_if_needed(rebuild);
}

/* Ends whatever transaction an error has left. */
static void
log_failed_rebuild(NavisRebuild *rebuild, Oid index_oid, MemoryContext context)
{
	ErrorData *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	MemoryContextSwitchTo(context);
	navis_opening_failed(&rebuild->slice, &rebuild->key);
	ereport(
		LOG,
		(errcode(error->sqlerrcode),
		 errmsg("could not rebuild the graph of navis index \"%s\" (%u): "
				"%s",
				rebuild->name ? rebuild->name : "", index_oid, error->message),
		 error->context ? errdetail_internal("%s", error->context) : 0));
}

/*
 * Builds an index's graph again if it needs that.  Makes its own short
 * transactions and gives way to DDL.  Errors are logged, not thrown.
 */
static void
rebuild_guarded(Oid index_oid)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(
		TopMemoryContext, "navis rebuild", ALLOCSET_DEFAULT_SIZES);
	NavisRebuild *rebuild =
		MemoryContextAllocZero(context, sizeof(NavisRebuild));

	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		rebuild_index(rebuild, index_oid, context);
	}
	PG_CATCH();
	{
		log_failed_rebuild(rebuild, index_oid, context);
	}
	PG_END_TRY();
	/* Also when it was given up between two requests, without an error. */
	navis_feed_abort(&rebuild->feed);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

void
navis_rebuild_all(void)
{
	MemoryContext context = AllocSetContextCreate(
		TopMemoryContext, "navis rebuild list", ALLOCSET_DEFAULT_SIZES);
	ListCell *cell;
	List *oids;

	if (navis_engine_wait_started() == NAVIS_ENGINE_RUNNING)
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(context); /* the list outlives it */
		oids = navis_index_oids();
		CommitTransactionCommand();
		foreach (cell, oids)
		{
			if (!navis_helper_may_stay())
				break;
			rebuild_guarded(lfirst_oid(cell));
		}
	}
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
}
