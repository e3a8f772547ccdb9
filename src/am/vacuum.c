/*
 * vacuum.c
 *		ambulkdelete and amvacuumcleanup.
 *
 * Entries go live -> deleted in ambulkdelete, from which moment no scan
 * returns their rows, and deleted -> free in amvacuumcleanup, once this
 * server's engine has published a checkpoint without them.  VACUUM is the only
 * one that takes entries away, so what it saw stays as it was until it acts.
 *
 * Between these the graph is consolidated if too many of its vertices have no
 * rows: VACUUM waits for it, autovacuum leaves it to the engine, which does the
 * same by itself.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/indexfsm.h"

#include "catchup.h"
#include "client.h"
#include "compat.h"
#include "journal.h"

#define NAVIS_DELETE_BATCH (NV_REQUEST_DATA / sizeof(nv_element_ref))

typedef struct NavisVacuum
{
	IndexVacuumInfo *info;
	Relation index;
	IndexBulkDeleteResult *stats;
	nv_key key;
	/* what the engine is to forget */
	nv_element_ref *batch;
	uint32 n;
	XLogRecPtr lsn;
	uint64 freed, kept; /* entries of deleted rows, at the end */
	bool told;          /* everything so far, to one and the same engine */
	uint64 incarnation;
} NavisVacuum;

static void
vacuum_init(NavisVacuum *vacuum, IndexVacuumInfo *info,
			IndexBulkDeleteResult *stats)
{
	NavisMeta meta;

	memset(vacuum, 0, sizeof(NavisVacuum));
	vacuum->info = info;
	vacuum->index = info->index;
	vacuum->stats =
		stats != NULL ? stats : palloc0(sizeof(IndexBulkDeleteResult));
	navis_meta_read(info->index, &meta);
	navis_make_key(&vacuum->key, meta.identity);
	vacuum->batch = palloc(NAVIS_DELETE_BATCH * sizeof(nv_element_ref));
	vacuum->incarnation = navis_engine_incarnation();
	vacuum->told = vacuum->incarnation != 0;
}

/* --- telling the engine --- */

/*
 * An engine that does not have the index open hears of it when it opens it;
 * one in the middle of opening must hear of it now.  So every batch is sent.
 */
static void
flush_deletes(NavisVacuum *vacuum)
{
	vacuum->told &= navis_tell_dead(&vacuum->key, vacuum->batch, vacuum->n,
									vacuum->lsn) == NV_OK;
	vacuum->n = 0;
}

static void
tell_deleted(NavisVacuum *vacuum, uint32 element, uint32 generation,
			 XLogRecPtr lsn)
{
	if (vacuum->n == NAVIS_DELETE_BATCH)
		flush_deletes(vacuum);
	vacuum->batch[vacuum->n].element = element;
	vacuum->batch[vacuum->n].generation = generation;
	vacuum->n++;
	vacuum->lsn = Max(vacuum->lsn, lsn);
}

/* Has the engine published a checkpoint without all that it was told? */
static bool
engine_has_let_go(NavisVacuum *vacuum)
{
	nv_request *request;

	flush_deletes(vacuum);
	if (!vacuum->told)
		return false;
	request = navis_request_begin(NV_REQ_CHECKPOINT, &vacuum->key);
	return request != NULL &&
		   navis_request_call(request, NULL, NULL) == NV_OK &&
		   navis_engine_incarnation() == vacuum->incarnation;
}

/*
 * Has vertices without rows taken out of the graph, if they are more than the
 * index's share.  What the engine cannot do now it does later; an interrupt
 * ends the wait, and the engine's work if nobody else wants it.
 */
static void
consolidate(NavisVacuum *vacuum)
{
	nv_request *request;

	if (!vacuum->told || IsAutoVacuumWorkerProcess())
		return;
	request = navis_request_begin(NV_REQ_CONSOLIDATE, &vacuum->key);
	if (request == NULL)
		return;
	request->u.consolidate.threshold =
		navis_consolidate_threshold(vacuum->index);
	request->u.consolidate.keep = 1;
	if (navis_request_call(request, NULL, NULL) != NV_OK ||
		request->u.consolidate.runs == 0)
		return;
	ereport(vacuum->info->message_level,
			(errmsg("index \"%s\": took " UINT64_FORMAT
					" vertices without rows out of the graph",
					RelationGetRelationName(vacuum->index),
					request->u.consolidate.freed),
			 errdetail(UINT64_FORMAT " vertices remain, " UINT64_FORMAT
									 " of them without rows.",
					   request->u.consolidate.vertices,
					   request->u.consolidate.deleted)));
}

/* --- pages --- */

/* A page, pinned and locked shared. */
static Buffer
read_page(NavisVacuum *vacuum, BlockNumber block, uint32 *count)
{
	Buffer buffer = ReadBufferExtended(vacuum->index, MAIN_FORKNUM, block,
									   RBM_NORMAL, vacuum->info->strategy);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	*count = navis_page_count(vacuum->index, block, BufferGetPage(buffer));
	return buffer;
}

/*
 * Marks the entries for which dead[] is set, unless they are not what was
 * copied any more; one WAL record.  Returns how many were marked.
 */
static uint32
mark_deleted(NavisVacuum *vacuum, Buffer buffer, const NavisEntry *copy,
			 const bool *dead, uint32 count)
{
	uint32 first = navis_first_element(BufferGetBlockNumber(buffer));
	uint32 marked = 0;
	GenericXLogState *state;
	NavisEntry *entries;
	XLogRecPtr lsn;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(vacuum->index);
	entries = NavisPageEntries(GenericXLogRegisterBuffer(state, buffer, 0));
	for (uint32 i = 0; i < count; i++)
	{
		NavisEntry *entry = &entries[i];

		if (!dead[i] || !navis_entry_live(entry) ||
			entry->generation != copy[i].generation)
			continue;
		entry->flags = NAVIS_ENTRY_DELETED;
		ItemPointerSetInvalid(&entry->tid);
		marked++;
	}
	lsn = GenericXLogFinish(state);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	for (uint32 i = 0; i < count; i++)
		if (dead[i] && navis_entry_hash(&copy[i]) != 0)
			tell_deleted(vacuum, first + i, copy[i].generation, lsn);
	return marked;
}

/* Every live TID, killed or not, goes to the callback, without a lock. */
static void
bulkdelete_page(NavisVacuum *vacuum, BlockNumber block,
				IndexBulkDeleteCallback callback, void *state)
{
	NavisEntry copy[NAVIS_PAGE_CAPACITY];
	bool dead[NAVIS_PAGE_CAPACITY];
	uint32 count, live = 0, removed = 0;
	Buffer buffer = read_page(vacuum, block, &count);

	memcpy(copy, NavisPageEntries(BufferGetPage(buffer)),
		   count * sizeof(NavisEntry));
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	for (uint32 i = 0; i < count; i++)
	{
		dead[i] = false;
		if (!navis_entry_live(&copy[i]))
			continue;
		live++;
		dead[i] = callback(&copy[i].tid, state);
		removed += dead[i];
	}
	if (removed > 0)
		removed = mark_deleted(vacuum, buffer, copy, dead, count);
	ReleaseBuffer(buffer);
	vacuum->stats->num_index_tuples += live - removed;
	vacuum->stats->tuples_removed += removed;
}

IndexBulkDeleteResult *
navis_bulkdelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
				 IndexBulkDeleteCallback callback, void *state)
{
	NavisVacuum vacuum;

	vacuum_init(&vacuum, info, stats);
	vacuum.stats->num_index_tuples = 0;
	/* To the end as it is when we get there. */
	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(info->index); block++)
	{
		navis_vacuum_delay_point();
		bulkdelete_page(&vacuum, block, callback, state);
	}
	flush_deletes(&vacuum);
	pfree(vacuum.batch);
	return vacuum.stats;
}

/* --- cleanup --- */

/*
 * First walk: counts, and tells the engine once more of everything deleted,
 * because it may have been told of some while it did not listen.  Returns
 * whether anything is waiting to be freed.
 */
static bool
count_and_tell(NavisVacuum *vacuum)
{
	bool waiting = false;

	vacuum->stats->num_index_tuples = 0;
	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(vacuum->index); block++)
	{
		NavisEntry copy[NAVIS_PAGE_CAPACITY];
		uint32 first = navis_first_element(block);
		uint32 count;
		XLogRecPtr lsn;
		Buffer buffer;

		navis_vacuum_delay_point();
		buffer = read_page(vacuum, block, &count);
		memcpy(copy, NavisPageEntries(BufferGetPage(buffer)),
			   count * sizeof(NavisEntry));
		lsn = BufferGetLSNAtomic(buffer);
		UnlockReleaseBuffer(buffer);
		for (uint32 i = 0; i < count; i++)
		{
			uint32 state = navis_entry_state(&copy[i]);

			vacuum->stats->num_index_tuples += state == NAVIS_ENTRY_LIVE;
			if (state != NAVIS_ENTRY_DELETED)
				continue;
			waiting = true;
			if (navis_entry_hash(&copy[i]) != 0)
				tell_deleted(vacuum, first + i, copy[i].generation, lsn);
		}
	}
	flush_deletes(vacuum);
	return waiting;
}

/*
 * Entries without a vector never were the engine's: they are free as soon as
 * they are deleted.  Others only when it has let go.
 */
static bool
may_free(const NavisEntry *entry, bool let_go)
{
	return navis_entry_state(entry) == NAVIS_ENTRY_DELETED &&
		   (let_go || navis_entry_hash(entry) == 0);
}

/* With the page locked exclusively; at most one WAL record. */
static void
free_entries(NavisVacuum *vacuum, Buffer buffer, uint32 count, bool let_go)
{
	NavisEntry *entries = NavisPageEntries(BufferGetPage(buffer));
	GenericXLogState *state;
	uint32 i;

	for (i = 0; i < count; i++)
		if (may_free(&entries[i], let_go))
			vacuum->freed++;
		else
			vacuum->kept +=
				navis_entry_state(&entries[i]) == NAVIS_ENTRY_DELETED;
	for (i = 0; i < count && !may_free(&entries[i], let_go); i++)
		continue;
	if (i == count)
		return;
	state = GenericXLogStart(vacuum->index);
	entries = NavisPageEntries(GenericXLogRegisterBuffer(state, buffer, 0));
	for (; i < count; i++)
		if (may_free(&entries[i], let_go))
		{
			entries[i].flags = NAVIS_ENTRY_FREE;
			entries[i].hash_low = entries[i].hash_high = 0;
		}
	GenericXLogFinish(state);
}

/* Second walk: frees, and notes pages that may become tail again. */
static void
free_and_note(NavisVacuum *vacuum, bool waiting, bool let_go)
{
	IndexBulkDeleteResult *stats = vacuum->stats;
	NavisMeta meta;

	navis_meta_read(vacuum->index, &meta);
	stats->pages_free = 0;
	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(vacuum->index); block++)
	{
		Buffer buffer;
		uint32 count;
		bool reusable, tail = false;

		navis_vacuum_delay_point();
		buffer = read_page(vacuum, block, &count);
		if (waiting)
		{
			LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
			LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
			count =
				navis_page_count(vacuum->index, block, BufferGetPage(buffer));
			free_entries(vacuum, buffer, count, let_go);
		}
		/* Not sure: a page may be tail by now.  Verified when it is taken. */
		for (uint32 i = 0; i < meta.ntails; i++)
			tail |= meta.tails[i].block == block;
		reusable = !tail && navis_page_reusable(vacuum->index, block,
												BufferGetPage(buffer));
		UnlockReleaseBuffer(buffer);
		if (reusable)
		{
			RecordFreeIndexPage(vacuum->index, block);
			stats->pages_free++;
		}
	}
	IndexFreeSpaceMapVacuum(vacuum->index);
}

/* At the level that core gives to access methods: DEBUG2 since version 15. */
static void
report(const NavisVacuum *vacuum)
{
	if (vacuum->freed + vacuum->kept == 0)
		return;
	ereport(
		vacuum->info->message_level,
		(errmsg("index \"%s\": freed " UINT64_FORMAT " entries of deleted rows",
				RelationGetRelationName(vacuum->index), vacuum->freed),
		 vacuum->kept == 0
			 ? 0
			 : errdetail(UINT64_FORMAT
						 " more are free when the engine has published a "
						 "checkpoint without them.",
						 vacuum->kept)));
}

IndexBulkDeleteResult *
navis_vacuumcleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	NavisVacuum vacuum;
	bool waiting;

	if (info->analyze_only)
		return stats;
	vacuum_init(&vacuum, info, stats);
	waiting = count_and_tell(&vacuum);
	consolidate(&vacuum);
	free_and_note(&vacuum, waiting, waiting && engine_has_let_go(&vacuum));
	report(&vacuum);
	vacuum.stats->num_pages = RelationGetNumberOfBlocks(info->index);
	vacuum.stats->estimated_count = false;
	pfree(vacuum.batch);
	return vacuum.stats;
}
