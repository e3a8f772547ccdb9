/*
 * build.c
 *		CREATE INDEX and REINDEX: one scan of the table fills the journal and
 *		hands the vectors to the engine, which then builds the graph.
 *
 * The index relation is ours alone meanwhile, so journal pages are written
 * without WAL and logged as a whole at the end, before the engine publishes
 * its first checkpoint (journal first, invariant 1).  A build that fails
 * leaves nothing: the relation goes with the transaction, the engine's part
 * with BUILD_ABORT.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"

#include "compat.h"
#include "feed.h"
#include "journal.h"

/* Heap blocks looked at to estimate the number of rows. */
#define NAVIS_ESTIMATE_BLOCKS 64

/*
 * Share of the estimate that is told to the engine: a table that just fits
 * must not be refused for an estimate that is a little high.  The engine
 * counts for itself.
 */
#define NAVIS_ESTIMATE_SHARE 0.9

/* Rows between two updates of the progress view. */
#define NAVIS_PROGRESS_ROWS 1000

typedef struct NavisBuild
{
	Relation heap;
	Relation index;
	IndexInfo *info;
	PGAlignedBlock metapage; /* written at the end */
	PGAlignedBlock page;     /* the journal page being filled */
	BlockNumber block;       /* its number */
	uint32 count;            /* its entries */
	double entries;          /* of all pages */
	bool feeding;            /* the engine has been asked to build */
	NavisFeed feed;
	MemoryContext context; /* lives as long as the build */
	MemoryContext row;     /* reset with every row */
	/* for error messages */
	int64 rows;
	ItemPointerData tid;
} NavisBuild;

static NavisMetaPage *
build_meta(NavisBuild *build)
{
	return NavisPageGetMeta((Page) build->metapage.data);
}

/* --- journal pages --- */

static void
write_page(Relation index, BlockNumber block, const char *image)
{
	Buffer buffer =
		block == 0 ? ReadBuffer(index, 0) : navis_extend(index, MAIN_FORKNUM);

	if (BufferGetBlockNumber(buffer) != block)
		elog(ERROR, "index \"%s\" has unexpected block %u, expected %u",
			 RelationGetRelationName(index), BufferGetBlockNumber(buffer),
			 block);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(BufferGetPage(buffer), image, BLCKSZ);
	MarkBufferDirty(buffer);
	UnlockReleaseBuffer(buffer);
}

/* Pages get their block number as sequence, each linked to the one before. */
static void
start_page(NavisBuild *build)
{
	bool first = build->block == NAVIS_FIRST_PAGE;

	if (build->block > NAVIS_MAX_BLOCK)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("index \"%s\" cannot have more than %u entries",
						RelationGetRelationName(build->index), PG_UINT32_MAX)));
	navis_page_init((Page) build->page.data, build->block,
					first ? InvalidBlockNumber : build->block - 1,
					first ? 0 : build->block - 1);
	build->count = 0;
}

static void
finish_page(NavisBuild *build)
{
	if (build->count == 0)
		return;
	write_page(build->index, build->block, build->page.data);
	build->block++;
	start_page(build);
}

/* Returns the element id. */
static uint32
add_entry(NavisBuild *build, ItemPointer tid, uint64 hash)
{
	Page page = (Page) build->page.data;
	uint32 slot = build->count;
	uint32 element = navis_first_element(build->block) + slot;
	NavisEntry *entry = &NavisPageEntries(page)[slot];

	entry->generation = 1;
	entry->hash_low = (uint32) hash;
	entry->hash_high = (uint32) (hash >> 32);
	entry->tid = *tid;
	entry->flags = NAVIS_ENTRY_LIVE;
	((PageHeader) page)->pd_lower += sizeof(NavisEntry);
	build->count++;
	build->entries++;
	if (build->count == NAVIS_PAGE_CAPACITY)
		finish_page(build);
	return element;
}

static void
start_journal(NavisBuild *build)
{
	if (RelationGetNumberOfBlocks(build->index) != 0)
		elog(ERROR, "index \"%s\" already contains data",
			 RelationGetRelationName(build->index));
	ReleaseBuffer(navis_extend(build->index, MAIN_FORKNUM));
	navis_meta_init(build->index, (Page) build->metapage.data);
	build->block = NAVIS_FIRST_PAGE;
	start_page(build);
}

/* Last page, metapage, WAL; returns the LSN behind all of it. */
static XLogRecPtr
finish_journal(NavisBuild *build)
{
	NavisMetaPage *meta = build_meta(build);

	finish_page(build);
	meta->next_page_sequence = build->block;
	if (build->block > NAVIS_FIRST_PAGE)
	{
		meta->ntails = 1;
		meta->tails[0].block = build->block - 1;
		meta->tails[0].sequence = build->block - 1;
	}
	write_page(build->index, 0, build->metapage.data);
	if (!RelationNeedsWAL(build->index))
		return InvalidXLogRecPtr;
	log_newpage_range(build->index, MAIN_FORKNUM, 0, build->block, true);
	return XactLastRecEnd;
}

/* --- the engine's part --- */

/* Rows of a heap page that an index scan would probably see. */
static uint32
count_rows(Page page, AttrNumber column, TupleDesc desc)
{
	uint32 rows = 0;
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	for (OffsetNumber i = FirstOffsetNumber; i <= last; i++)
	{
		ItemId item = PageGetItemId(page, i);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		if (HeapTupleHeaderXminInvalid(tuple.t_data) ||
			((tuple.t_data->t_infomask & HEAP_XMAX_COMMITTED) &&
			 !HEAP_XMAX_IS_LOCKED_ONLY(tuple.t_data->t_infomask)))
			continue;
		if (column == 0 || !heap_attisnull(&tuple, column, desc))
			rows++;
	}
	return rows;
}

/*
 * How many rows with a vector to expect, 0 for unknown.  Planner statistics
 * may not exist yet and know nothing of wide rows, so some pages are counted.
 */
static uint64
estimate_rows(NavisBuild *build)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(build->heap);
	BlockNumber sample = Min(blocks, NAVIS_ESTIMATE_BLOCKS);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	uint64 rows = 0;

	if (build->info->ii_Predicate != NIL || sample == 0)
		return 0;
	for (BlockNumber i = 0; i < sample; i++)
	{
		Buffer buffer = ReadBufferExtended(
			build->heap, MAIN_FORKNUM,
			(BlockNumber) ((uint64) i * blocks / sample), RBM_NORMAL, strategy);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		if (!PageIsNew(BufferGetPage(buffer)))
			rows += count_rows(BufferGetPage(buffer),
							   build->info->ii_IndexAttrNumbers[0],
							   RelationGetDescr(build->heap));
		UnlockReleaseBuffer(buffer);
	}
	FreeAccessStrategy(strategy);
	return (uint64) ((double) rows / sample * blocks * NAVIS_ESTIMATE_SHARE);
}

/* At the first vector: nothing has been written to the engine before. */
static void
start_feed(NavisBuild *build)
{
	NavisEngineStatus status = navis_engine_wait_started();
	const char *name = RelationGetRelationName(build->index);
	MemoryContext old;
	NavisMeta meta;
	nv_index_params params;
	nv_key key;

	if (status != NAVIS_ENGINE_RUNNING)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot build index \"%s\" over a table with rows: "
						"the navis engine is not running",
						name),
				 errhint("%s", navis_engine_hint(status))));
	navis_meta_copy(build_meta(build), &meta);
	navis_index_params(build->index, &meta, &params);
	navis_make_key(&key, meta.identity);
	old = MemoryContextSwitchTo(build->context);
	(void) navis_feed_begin(&build->feed, &key, &params, estimate_rows(build),
							false, name);
	MemoryContextSwitchTo(old);
	build->feeding = true;
}

static void
report_progress(nv_request *request, void *arg)
{
	const int columns[] = {PROGRESS_CREATEIDX_SUBPHASE,
						   PROGRESS_CREATEIDX_TUPLES_TOTAL,
						   PROGRESS_CREATEIDX_TUPLES_DONE};
	int64 values[3];

	values[0] =
		PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE + atomic_load(&request->phase);
	values[1] = atomic_load(&request->total);
	values[2] = atomic_load(&request->done);
	pgstat_progress_update_multi_param(lengthof(columns), columns, values);
}

/* --- rows --- */

static void
add_row_context(void *arg)
{
	NavisBuild *build = arg;

	errcontext("building index \"%s\": row " INT64_FORMAT
			   " of the table scan, ctid (%u,%u)",
			   RelationGetRelationName(build->index), build->rows,
			   ItemPointerGetBlockNumberNoCheck(&build->tid),
			   ItemPointerGetOffsetNumberNoCheck(&build->tid));
}

/* The first row that is alive sets the dimensions, unless the option does. */
static const float *
check_vector(NavisBuild *build, Datum value)
{
	NavisMetaPage *meta = build_meta(build);
	ErrorContextCallback callback = {error_context_stack, add_row_context,
									 build};
	const float *vector;
	uint32 dim;

	error_context_stack = &callback;
	vector =
		navis_vector_from_datum(value, meta->element_type, meta->dim, &dim);
	error_context_stack = callback.previous;
	meta->dim = dim;
	return vector;
}

typedef struct NavisDeadRow
{
	NavisBuild *build;
	Datum value;
	const float *vector;
} NavisDeadRow;

static void
check_dead_row(void *arg)
{
	NavisDeadRow *row = arg;

	row->vector = check_vector(row->build, row->value);
}

/*
 * A row that is not alive never fails the build: NULL if its vector cannot be
 * used.  Its value may be anything, down to TOAST data that is gone.
 */
static const float *
check_dead_vector(NavisBuild *build, Datum value)
{
	NavisDeadRow row = {build, value, NULL};
	ErrorData *error;

	if (build_meta(build)->dim == 0)
		return NULL;
	error = navis_attempt(check_dead_row, &row);
	if (error == NULL)
		return row.vector;
	FreeErrorData(error);
	return NULL;
}

/* The vector to index, and its journal hash; NULL and 0 for none. */
static const float *
row_vector(NavisBuild *build, Datum value, bool alive, uint64 *hash)
{
	NavisMetaPage *meta = build_meta(build);
	const float *vector =
		alive ? check_vector(build, value) : check_dead_vector(build, value);

	*hash = 0;
	if (vector != NULL)
		*hash = navis_journal_hash(meta->metric, vector, meta->dim);
	else
		/* A snapshot old enough to see the row must not use this index. */
		build->info->ii_BrokenHotChain = true;
	return *hash != 0 ? vector : NULL;
}

static void
build_row(Relation index, ItemPointer tid, Datum *values, bool *isnull,
		  bool alive, void *state)
{
	NavisBuild *build = state;
	MemoryContext old = MemoryContextSwitchTo(build->row);
	const float *vector = NULL;
	nv_journal_entry entry = {0, 1, 0};

	build->rows++;
	build->tid = *tid;
	if (!isnull[0])
		vector = row_vector(build, values[0], alive, &entry.hash);
	if (vector != NULL && !build->feeding)
		start_feed(build);
	entry.element = add_entry(build, tid, entry.hash);
	if (vector != NULL)
		navis_feed_add(&build->feed, &entry, vector);
	if (build->rows % NAVIS_PROGRESS_ROWS == 0)
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
									 build->rows);
	MemoryContextSwitchTo(old);
	MemoryContextReset(build->row);
}

/* --- the whole --- */

static void
check_request(Relation heap, IndexInfo *info)
{
	/* Catch-up follows HOT chains and horizons as heap keeps them. */
	if (heap->rd_tableam != GetHeapamTableAmRoutine())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("navis indexes need a table of access method heap"),
				 errdetail("Table \"%s\" uses another one.",
						   RelationGetRelationName(heap))));
	if (info->ii_ExclusionOps != NULL)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("access method \"navis\" does not support "
							   "exclusion constraints")));
}

/* Scan, journal, graph; returns the rows of the table. */
static double
build_all(NavisBuild *build)
{
	nv_req_build result;
	XLogRecPtr lsn;
	double rows;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE +
									 NV_PHASE_SCAN);
	start_journal(build);
	rows = table_index_build_scan(build->heap, build->index, build->info, true,
								  true, build_row, build, NULL);
	lsn = finish_journal(build);
	if (!build->feeding)
		return rows;
	navis_feed_run(&build->feed, lsn, report_progress, NULL, &result);
	ereport(DEBUG1,
			(errmsg_internal("navis build of \"%s\": %u vertices, %u bytes a "
							 "code, train %.2f s, link %.2f s, place %.2f s, "
							 "write %.2f s",
							 RelationGetRelationName(build->index),
							 result.vertices, result.pq_bytes,
							 result.seconds_train, result.seconds_link,
							 result.seconds_place, result.seconds_write)));
	return rows;
}

IndexBuildResult *
navis_build(Relation heap, Relation index, IndexInfo *info)
{
	IndexBuildResult *result = palloc0(sizeof(IndexBuildResult));
	NavisBuild *build = palloc0(sizeof(NavisBuild));

	check_request(heap, info);
	build->heap = heap;
	build->index = index;
	build->info = info;
	build->context = CurrentMemoryContext;
	build->row = AllocSetContextCreate(CurrentMemoryContext, "navis build row",
									   ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		result->heap_tuples = build_all(build);
	}
	PG_CATCH();
	{
		navis_feed_abort(&build->feed);
		PG_RE_THROW();
	}
	PG_END_TRY();
	result->index_tuples = build->entries;
	MemoryContextDelete(build->row);
	navis_open_forget(RelationGetRelid(index));
	return result;
}

/* The init fork of an unlogged index: a metapage, logged. */
void
navis_buildempty(Relation index)
{
	PGAlignedBlock image;
	Buffer buffer;

	navis_meta_init(index, (Page) image.data);
	buffer = navis_extend(index, INIT_FORKNUM);
	Assert(BufferGetBlockNumber(buffer) == 0);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buffer), image.data, BLCKSZ);
	MarkBufferDirty(buffer);
	log_newpage_buffer(buffer, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}
