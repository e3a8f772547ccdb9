/*
 * insert.c
 *		aminsert: a place in the insert queue, the journal, then the engine.
 *
 * The place is waited for before the journal is touched: there is room in the
 * queue and on disk for the row, or the statement waits or fails and nothing
 * has happened (design, invariant 9).  Where nobody links rows, none is needed.
 *
 * When aminsert returns, every later search of this server finds the row
 * (design, invariant 6): either the engine has taken the vector, or it knows
 * that it has not got everything and scans answer exactly, or it does not have
 * the index open and the next opening compares it with the journal.  Which of
 * these is waited for only by the session's first row, and after one that was
 * not accepted: otherwise the row is posted, and whoever searches later waits
 * for it (client.c).
 *
 * Nothing but an interrupt can come between append and publication, and an
 * error here aborts the row: what stays is the entry of an aborted insert,
 * which needs no vector, and the place is given back.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "feed.h"

/* The vector of the row, NULL if it has none. */
typedef struct NavisNewRow
{
	const float *vector;
	uint32 dim;
	uint64 hash;      /* 0: nothing for the engine */
	nv_key key;       /* of the index, if there is something */
	bool unchanged;   /* says the executor: the vector may be the old row's */
	NavisPlace place; /* in the queue */
} NavisNewRow;

static void
add_index_context(void *arg)
{
	errcontext("inserting into index \"%s\"",
			   RelationGetRelationName((Relation) arg));
}

/* Dead rows hold on to the dimensions, too, until VACUUM removes them. */
static void
refuse_dimensions(const NavisMeta *meta, uint32 found)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("vector has %u dimensions, expected %u", found, meta->dim),
			 meta->dim_fixed
				 ? 0
				 : errhint("The first row has set the dimensions of "
						   "the index. If it, and all like it, have "
						   "been rolled back or deleted, VACUUM the "
						   "table.")));
}

/*
 * Checks the value against the index, whose dimensions the first row sets.
 */
static void
examine_row(Relation index, Datum value, bool isnull, NavisNewRow *row)
{
	NavisMeta meta;

	row->vector = NULL;
	row->dim = 0;
	row->hash = 0;
	if (isnull)
		return;
	navis_meta_read(index, &meta);
	row->vector =
		navis_vector_from_datum(value, meta.element_type, 0, &row->dim);
	row->hash = navis_journal_hash(meta.metric, row->vector, row->dim);
	navis_make_key(&row->key, meta.identity);
	while (meta.dim != row->dim && !navis_meta_set_dimensions(index, row->dim))
	{
		navis_meta_read(index, &meta);
		if (meta.dim != 0 && meta.dim != row->dim) /* it may change just now */
			refuse_dimensions(&meta, row->dim);
	}
}

/*
 * Waits for a place in the queue, unless the row has one.  A full disk fails
 * the statement here.
 */
static void
reserve(Relation index, NavisNewRow *row)
{
	nv_request *request;

	if (row->place.taken != NV_PLACE_NONE || row->hash == 0)
		return;
	if (navis_place_reserve(&row->key, &row->place, &request) != NV_ENOSPC)
		return;
	ereport(ERROR, (errcode(ERRCODE_DISK_FULL),
					errmsg("could not extend the files of index \"%s\": %s",
						   RelationGetRelationName(index), strerror(ENOSPC)),
					errdetail("%s.", request->detail),
					errhint("Free space on the file system of "
							"navis.directory, or drop the index.")));
}

/*
 * Fills and submits one INSERT request; the status is the engine's, or NV_OK
 * without waiting for it where it has accepted the session's last row.
 */
static nv_status
publish_once(nv_request *request, NavisNewRow *row,
			 const NavisAppended *appended)
{
	nv_req_insert *insert = &request->u.insert;
	nv_status status;

	insert->element = appended->element;
	insert->generation = appended->generation;
	insert->hash = row->hash;
	insert->lsn = appended->lsn;
	insert->dim = row->dim;
	insert->from_heap = 0;
	insert->place = row->place.word;
	insert->unchanged = row->unchanged;
	memcpy(request->data, row->vector, row->dim * sizeof(float));
	if (navis_place_accepted(&row->place, request))
	{
		navis_request_post(request);
		row->place.taken = NV_PLACE_NONE; /* goes with the row */
		return NV_OK;
	}
	status = navis_request_call(request, NULL, NULL);
	navis_place_answered(&row->place, request, status);
	return status;
}

/*
 * Opens the index in the engine; false where that is not an inserter's
 * business.  An index of this transaction may be gone before anybody hears of
 * it, one that is not valid is about to be compared with the table.
 */
static bool
open_for_insert(Relation heap, Relation index)
{
	NavisMeta meta;
	nv_key key;

	if (!index->rd_index->indisvalid || IsInParallelMode() ||
		index->rd_createSubid != InvalidSubTransactionId)
		return false;
	navis_meta_read(index, &meta);
	navis_open_forget(RelationGetRelid(index));
	(void) navis_open_index(heap, index, &meta, &key);
	return true;
}

/*
 * Tells the engine, and a new engine again if it changes meanwhile (an insert
 * is idempotent by element and generation).
 */
static void
publish(Relation heap, Relation index, NavisNewRow *row,
		const NavisAppended *appended)
{
	bool opened = false;
	nv_key key;

	navis_make_key(&key, appended->identity);
	for (;;)
	{
		uint64 incarnation = navis_engine_incarnation();
		nv_request *request = navis_request_begin(NV_REQ_INSERT, &key);
		nv_status status;

		if (request == NULL)
		{
			navis_warn_no_engine(navis_engine_status());
			return;
		}
		status = publish_once(request, row, appended);
		if (status == NV_OK)
			return;
		/*
		 * Not open there: whoever opens it finds the row in the journal.  A
		 * load into an index that nobody searches yet should not be left to
		 * the first search, so that is us.
		 */
		if (status == NV_ENOENT)
		{
			if (opened || !open_for_insert(heap, index))
				return;
			opened = true;
			continue;
		}
		/* The engine has marked the index as not usable. */
		if (status == NV_ELIMIT)
		{
			navis_warn_pending_full(index);
			return;
		}
		if (status != NV_EUNUSABLE)
			navis_request_error(request, status, "could not insert into index");
		if (navis_engine_incarnation() == incarnation)
			return;
	}
}

/* The row as a whole; its place is given back by the caller. */
static void
insert_row(Relation heap, Relation index, Datum value, bool isnull,
		   ItemPointer tid, NavisNewRow *row)
{
	NavisAppended appended;

	do
	{
		examine_row(index, value, isnull, row);
		reserve(index, row);
	} while (!navis_journal_append(index, tid, row->hash, row->dim, &appended));
	if (row->hash != 0)
		publish(heap, index, row, &appended);
}

bool
navis_insert(Relation index, Datum *values, bool *isnull, ItemPointer tid,
			 Relation heap, IndexUniqueCheck unique, bool unchanged,
			 IndexInfo *info)
{
	MemoryContext context = AllocSetContextCreate(
		CurrentMemoryContext, "navis insert", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ErrorContextCallback callback = {error_context_stack, add_index_context,
									 index};
	NavisNewRow *row = palloc0(sizeof(NavisNewRow));

	row->unchanged = unchanged;
	error_context_stack = &callback;
	PG_TRY();
	{
		insert_row(heap, index, values[0], isnull[0], tid, row);
	}
	PG_FINALLY();
	{
		navis_place_drop(&row->place);
	}
	PG_END_TRY();
	error_context_stack = callback.previous;

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return false; /* not a unique index */
}
