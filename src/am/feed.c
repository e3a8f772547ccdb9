/*
 * feed.c
 *		Handing vectors to an engine build: BUILD_BEGIN, BUILD_ADD in batches,
 *		BUILD_RUN, and BUILD_ABORT when anything goes wrong in between.
 *
 * Rows are collected in memory of our own and copied into the request slot as
 * one batch: index expressions may run queries that use the slot.
 */
#include "postgres.h"

#include <unistd.h>

#include "storage/ipc.h"

#include "feed.h"
#include "settings.h"

/* How long an abort waits for the engine's answer. */
#define NAVIS_ABORT_TIMEOUT 800 /* ms: cancelling takes a second at most */

static uint32
build_threads(void)
{
	long cores;

	if (navis_build_threads > 0)
		return navis_build_threads;
	cores = sysconf(_SC_NPROCESSORS_ONLN);
	return cores > 0 ? (uint32) cores : 1;
}

/* The slot for the next request, or an error: the engine is gone. */
static nv_request *
begin_request(nv_request_kind kind, const nv_key *key)
{
	nv_request *request = navis_request_begin(kind, key);
	NavisEngineStatus status;

	if (request == NULL)
	{
		status = navis_engine_status();
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("the navis engine is not running"),
						errhint("%s", navis_engine_hint(status))));
	}
	return request;
}

/* The open one, for the end of the process in the middle of a build. */
static NavisFeed *active_feed = NULL;

void
navis_feed_abort(NavisFeed *feed)
{
	nv_request *request;

	if (active_feed == feed)
		active_feed = NULL;
	if (!feed->open)
		return;
	feed->open = false;
	request = navis_request_begin_noerror(NV_REQ_BUILD_ABORT, &feed->key,
										  NAVIS_ABORT_TIMEOUT);
	if (request != NULL)
		(void) navis_request_call_noerror(request, NAVIS_ABORT_TIMEOUT);
}

static void
abort_at_exit(int code, Datum arg)
{
	if (active_feed != NULL)
		navis_feed_abort(active_feed);
}

/* PG_ENSURE_ERROR_CLEANUP would not bear others' callbacks in between. */
static void
note_active(NavisFeed *feed)
{
	static bool registered = false;

	if (!registered)
		before_shmem_exit(abort_at_exit, 0);
	registered = true;
	active_feed = feed;
}

static void
build_error(nv_request *request, nv_status status)
{
	if (status == NV_ELIMIT)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("%s", request->detail),
						errhint("Raise navis.build_memory, or lower max_degree "
								"or pq_bytes.")));
	navis_request_error(request, status, "could not build index");
}

bool
navis_feed_begin(NavisFeed *feed, const nv_key *key,
				 const nv_index_params *params, uint64 expected_rows,
				 bool rebuild, const char *name)
{
	nv_request *request = begin_request(NV_REQ_BUILD_BEGIN, key);
	nv_req_build *build = &request->u.build;
	nv_status status;

	build->params = *params;
	navis_request_title(request, params->index_oid);
	build->expected_rows = expected_rows;
	build->build_memory = (uint64) navis_build_memory * 1024;
	build->threads = build_threads();
	build->rebuild = rebuild;
	/* From here on: also when the answer never comes. */
	feed->key = *key;
	feed->open = true;
	note_active(feed);
	status = navis_request_call(request, NULL, NULL);
	if (status == NV_EBUSY) /* somebody else's */
	{
		feed->open = false;
		active_feed = NULL;
	}
	if (status == NV_EBUSY && rebuild)
		return false;
	if (status == NV_EBUSY)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
						errmsg("a build of index \"%s\" is running", name)));
	if (status != NV_OK)
		build_error(request, status);
	feed->dim = params->dim;
	feed->batch = palloc(NV_REQUEST_DATA);
	feed->used = feed->n = 0;
	return true;
}

static void
flush_batch(NavisFeed *feed)
{
	nv_request *request;
	nv_status status;

	if (feed->n == 0)
		return;
	request = begin_request(NV_REQ_BUILD_ADD, &feed->key);
	request->u.build.n = feed->n;
	memcpy(request->data, feed->batch, feed->used);
	status = navis_request_call(request, NULL, NULL);
	if (status != NV_OK)
		build_error(request, status);
	feed->used = feed->n = 0;
}

void
navis_feed_add(NavisFeed *feed, const nv_journal_entry *entry,
			   const float *vector)
{
	uint32 bytes = feed->dim * sizeof(float);
	uint32 record = TYPEALIGN(8, sizeof(nv_journal_entry) + bytes);
	uint8 *place;

	StaticAssertStmt(sizeof(nv_journal_entry) + NV_MAX_DIM * sizeof(float) <=
						 NV_REQUEST_DATA,
					 "the longest vector fits a request");
	if (feed->used + record > NV_REQUEST_DATA)
		flush_batch(feed);
	place = feed->batch + feed->used;
	memcpy(place, entry, sizeof(nv_journal_entry));
	memcpy(place + sizeof(nv_journal_entry), vector, bytes);
	memset(place + sizeof(nv_journal_entry) + bytes, 0,
		   record - sizeof(nv_journal_entry) - bytes);
	feed->used += record;
	feed->n++;
}

void
navis_feed_run(NavisFeed *feed, XLogRecPtr lsn,
			   void (*progress)(nv_request *request, void *arg), void *arg,
			   nv_req_build *result)
{
	nv_request *request;
	nv_status status;

	flush_batch(feed);
	request = begin_request(NV_REQ_BUILD_RUN, &feed->key);
	request->u.build.lsn = lsn;
	status = navis_request_call(request, progress, arg);
	if (status != NV_OK)
		build_error(request, status);
	feed->open = false;
	active_feed = NULL;
	*result = request->u.build;
}
