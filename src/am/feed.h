/*
 * feed.h
 *		Handing vectors to an engine build (CREATE INDEX, rebuild), and what a
 *		session says when there is no engine.
 */
#ifndef NAVIS_FEED_H
#define NAVIS_FEED_H

#include "navis.h"

#include "client.h"

typedef struct NavisFeed
{
	nv_key key;
	uint32 dim;
	bool open; /* BUILD_BEGIN was answered: BUILD_ABORT is due on failure */
	uint32 used, n; /* bytes and rows in the batch */
	uint8 *batch;   /* NV_REQUEST_DATA bytes in the context of begin */
} NavisFeed;

/*
 * Starts a build in the engine.  False when one is running for this index;
 * everything else that fails is an error, about the index called name.
 */
extern bool navis_feed_begin(NavisFeed *feed, const nv_key *key,
							 const nv_index_params *params,
							 uint64 expected_rows, bool rebuild,
							 const char *name);

extern void navis_feed_add(NavisFeed *feed, const nv_journal_entry *entry,
						   const float *vector);

/* Lets the engine build; lsn: newest of the journal entries handed over. */
extern void navis_feed_run(NavisFeed *feed, XLogRecPtr lsn,
						   void (*progress)(nv_request *request, void *arg),
						   void *arg, nv_req_build *result);

/*
 * To be called in PG_CATCH, and when the build is given up; harmless after a
 * finished one.  The end of the process does the same.  Throws nothing.
 */
extern void navis_feed_abort(NavisFeed *feed);

/* --- warn.c --- */

/* What to do about an engine that does not run. */
extern const char *navis_engine_hint(NavisEngineStatus status);

/* Waits, a few seconds at most, for an engine that is starting. */
extern NavisEngineStatus navis_engine_wait_started(void);

/* One WARNING a session each. */
extern void navis_warn_no_engine(NavisEngineStatus status);
extern void navis_warn_pending_full(Relation index);

#endif
