/*
 * opening.c
 *		Which way must a scan of this session go: through the graph, or the
 *		exact scan?  Remembers usable indexes, opens others, asks for help.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catchup.h"
#include "feed.h"

/* A session asks for a background rebuild of an index no more often. */
#define NAVIS_WANT_INTERVAL 10000 /* ms */

/* What this session knows of an index. */
typedef struct NavisKnown
{
	Oid index_oid; /* hash key */
	bool ready;
	uint64 incarnation; /* of the engine that said so */
	uint8 identity[16];
	nv_followed followed;
	TimestampTz opened; /* when its opening ended last */
	TimestampTz wanted; /* when a helper was asked for */
} NavisKnown;

static HTAB *known_indexes = NULL;

static NavisKnown *
known_index(Oid index_oid)
{
	NavisKnown *known;
	bool found;

	if (known_indexes == NULL)
	{
		HASHCTL control = {0};

		control.keysize = sizeof(Oid);
		control.entrysize = sizeof(NavisKnown);
		known_indexes = hash_create("navis open indexes", 16, &control,
									HASH_ELEM | HASH_BLOBS);
	}
	known = hash_search(known_indexes, &index_oid, HASH_ENTER, &found);
	if (!found)
	{
		memset(known, 0, sizeof(NavisKnown));
		known->index_oid = index_oid;
	}
	return known;
}

void
navis_open_forget(Oid index_oid)
{
	NavisKnown *known = known_index(index_oid);

	known->ready = false;
	known->opened = 0;
}

bool
navis_expect_exact(Oid index_oid)
{
	NavisKnown *known;

	if (navis_engine_status() != NAVIS_ENGINE_RUNNING)
		return true;
	known = known_index(index_oid);
	return known->opened != 0 && !known->ready &&
		   known->incarnation == navis_engine_incarnation() &&
		   !TimestampDifferenceExceeds(known->opened, GetCurrentTimestamp(),
									   NAVIS_WANT_INTERVAL);
}

/* A row could not be fetched: nothing wrong is answered, and the log says why.
 */
static void
log_failed_opening(Relation index, ErrorData *error)
{
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("navis index \"%s\" is not usable, scans are exact: %s",
					RelationGetRelationName(index), error->message),
			 error->context ? errdetail_internal("%s", error->context) : 0));
}

typedef struct NavisAttempt
{
	NavisSlice *slice;
	const nv_key *key;
	NavisOpening result;
} NavisAttempt;

static void
run_opening(void *arg)
{
	NavisAttempt *attempt = arg;

	attempt->result = navis_opening_run(attempt->slice, attempt->key);
}

/*
 * Catch-up runs users' functions and reads rows that the query may not see:
 * their errors must not fail the query.
 */
static NavisOpening
open_guarded(NavisSlice *slice, const nv_key *key)
{
	NavisAttempt attempt = {slice, key, NAVIS_OPENING_LATER};
	ErrorData *error;

	if (IsInParallelMode()) /* no subtransactions there */
		return navis_opening_run(slice, key);
	error = navis_attempt(run_opening, &attempt);
	if (error == NULL)
		return attempt.result;
	log_failed_opening(slice->index, error);
	navis_opening_failed(slice, key);
	FreeErrorData(error);
	return NAVIS_OPENING_LATER;
}

/* Not more often than necessary: every scan comes here meanwhile. */
static void
want_rebuild(NavisKnown *known)
{
	TimestampTz now = GetCurrentTimestamp();

	if (known->wanted != 0 &&
		!TimestampDifferenceExceeds(known->wanted, now, NAVIS_WANT_INTERVAL))
		return;
	known->wanted = now;
	navis_helper_wanted(MyDatabaseId);
}

NavisUse
navis_open_index(Relation heap, Relation index, const NavisMeta *meta,
				 nv_key *key)
{
	NavisEngineStatus status = navis_engine_status();
	uint64 incarnation = navis_engine_incarnation();
	NavisKnown *known;
	NavisSlice slice;
	NavisOpening opening;

	navis_make_key(key, meta->identity);
	if (status != NAVIS_ENGINE_RUNNING || incarnation == 0)
	{
		navis_warn_no_engine(status);
		return NAVIS_USE_EXACT;
	}
	if (meta->dim == 0) /* no vector yet */
		return NAVIS_USE_EXACT;
	known = known_index(RelationGetRelid(index));
	if (known->ready && known->incarnation == incarnation &&
		memcmp(known->identity, meta->identity, sizeof(known->identity)) == 0 &&
		navis_is_followed(index, meta, &known->followed))
		return NAVIS_USE_GRAPH;

	navis_slice_session(&slice, heap, index, meta);
	opening = open_guarded(&slice, key);
	known = known_index(RelationGetRelid(index));
	known->ready = opening == NAVIS_OPENING_READY;
	known->incarnation = incarnation;
	known->followed = slice.followed;
	known->opened = GetCurrentTimestamp();
	memcpy(known->identity, meta->identity, sizeof(known->identity));
	if (opening == NAVIS_OPENING_FULL)
		navis_warn_pending_full(index);
	if (opening == NAVIS_OPENING_REBUILD)
		want_rebuild(known);
	return known->ready ? NAVIS_USE_GRAPH : NAVIS_USE_EXACT;
}
