/*
 * client.h
 *		How a backend talks to the engine: its request slot.
 *
 * Every process with a PGPROC has one slot in main shared memory, so one
 * request at a time.  Waiting is interruptible; a request left behind by an
 * error is abandoned and the engine lets go of it soon after.
 */
#ifndef NAVIS_CLIENT_H
#define NAVIS_CLIENT_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "navis/request.h"

/* Why there is no engine. */
typedef enum NavisEngineStatus
{
	NAVIS_ENGINE_RUNNING,
	NAVIS_ENGINE_NOT_PRELOADED, /* not in shared_preload_libraries */
	NAVIS_ENGINE_STARTING,
	NAVIS_ENGINE_NO_WORKER, /* preloaded, but no worker slot, or it failed */
	NAVIS_ENGINE_STOPPED    /* shutting down, or binary upgrade */
} NavisEngineStatus;

extern NavisEngineStatus navis_engine_status(void);

/* Number that changes with every start of the engine; 0: none runs. */
extern uint64 navis_engine_incarnation(void);

/*
 * The worker process: its pid (0: there is none), and when the engine that
 * runs in it was started (0: none does).
 */
extern void navis_engine_process(int *pid, TimestampTz *started);

/* Sleeps so long, interruptibly: to look again at what the engine does. */
extern void navis_nap(long ms);

/* Fills key for an index of the current database. */
extern void navis_make_key(nv_key *key, const uint8 *identity);

/*
 * This process's slot, free and with kind and key set, everything else 0
 * (except data); NULL when no engine runs.  Waits (interruptibly) for the
 * engine to let go of an abandoned request.
 */
extern nv_request *navis_request_begin(nv_request_kind kind, const nv_key *key);

/*
 * OPEN and BUILD_BEGIN: tells the engine what its log may call the index. Reads
 * catalogs.
 */
extern void navis_request_title(nv_request *request, Oid index_oid);

/*
 * Submits and waits for the answer; returns its status, NV_EUNUSABLE when the
 * engine went away meanwhile.  Interrupts are served: an error thrown from
 * here (cancel, terminate, postmaster death) abandons the request.  Must not be
 * called with an LWLock or buffer lock held (asserted).  The results stay in
 * the slot until the next navis_request_begin of this process.
 *
 * progress (may be NULL) is called about ten times a second.
 */
extern nv_status
navis_request_call(nv_request *request,
				   void (*progress)(nv_request *request, void *arg), void *arg);

/*
 * Submits an INSERT and does not wait: every later request, of any process,
 * that must know of the row waits for it (navis_request_begin).  Throws
 * nothing.  For rows of which the engine has accepted one before, see
 * navis_place_accepted.
 */
extern void navis_request_post(nv_request *request);

/*
 * As navis_request_begin, but throws nothing and serves no interrupts; for
 * abort paths.  NULL also when the engine does not let go of an abandoned
 * request within timeout_ms.
 */
extern nv_request *navis_request_begin_noerror(nv_request_kind kind,
											   const nv_key *key,
											   int timeout_ms);

/*
 * As navis_request_call, but throws nothing and serves no interrupts; for
 * what must be told in an abort path.  Waits at most timeout_ms.
 */
extern nv_status navis_request_call_noerror(nv_request *request,
											int timeout_ms);

/* A place in the insert queue of an index, for one row. */
typedef struct NavisPlace
{
	uint32 word;  /* of the slot; for nv_req_insert.place */
	uint64 taken; /* NV_PLACE_NONE: none is needed */
} NavisPlace;

/*
 * Waits, interruptibly, for a place: to be called before the journal is
 * touched, and without locks, as navis_request_call.  No request is made if the
 * engine offered one with the answer of the last INSERT.  NV_ENOSPC: the files
 * of the index cannot grow, *request tells the rest.  Everything else means
 * that the row may be appended; it goes with or without a place.
 */
extern nv_status navis_place_reserve(const nv_key *key, NavisPlace *place,
									 nv_request **request);

/*
 * Whether the engine has accepted this process's last row of the index that an
 * INSERT with this place is for: then the next may be posted.  answered: what
 * became of one that was not.
 */
extern bool navis_place_accepted(const NavisPlace *place,
								 const nv_request *request);
extern void navis_place_answered(const NavisPlace *place,
								 const nv_request *request, nv_status status);

/* Gives it back; harmless when the row has come.  Throws nothing. */
extern void navis_place_drop(const NavisPlace *place);

/*
 * Lets the engine free a cursor.  Throws nothing, waits for nothing: safe in
 * memory context callbacks and in transaction abort.
 */
extern void navis_cursor_release(const nv_key *key, uint64 cursor);

/*
 * Asks the worker to run a helper in this database soon (rebuild, collect).
 * Returns at once; harmless when there is no engine.
 */
extern void navis_helper_wanted(Oid database);

/*
 * ereport(ERROR) for a failed request, with SQLSTATE by status; the message is
 * "what: why", e.g. what = "could not build index \"i\"".  request may be
 * NULL.
 */
extern void navis_request_error(nv_request *request, nv_status status,
								const char *what) pg_attribute_noreturn();

#endif
