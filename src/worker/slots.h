/*
 * slots.h
 *		Shared memory of backends, helpers and the engine.
 *
 * One control block, three bitmaps and one request slot for every PGPROC, in
 * the main shared memory segment: it stays mapped at the same address in every
 * process until the process is gone, so engine threads may use it to the end.
 * See README.md in this folder for states and wake-ups.
 */
#ifndef NAVIS_SLOTS_H
#define NAVIS_SLOTS_H

#include "postgres.h"

#include <stdatomic.h>

#include "datatype/timestamp.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "navis/request.h"

#define NAVIS_SLOT_RELEASES 16 /* cursors a backend can give back at once */
#define NAVIS_WANTED 64        /* databases that may wait for a helper */
#define NAVIS_MAX_HELPERS 2    /* helpers at the same time */
#define NAVIS_MAX_ORPHANS 1024 /* sidecars remembered as without owner */

typedef enum NavisWorkerState
{
	NAVIS_WORKER_NONE,     /* no worker is registered: nobody will start one */
	NAVIS_WORKER_STARTING, /* not there yet */
	NAVIS_WORKER_RUNNING,
	NAVIS_WORKER_FAILED, /* the engine does not start; tried again */
	NAVIS_WORKER_STOPPED /* stopped, or not wanted (binary upgrade) */
} NavisWorkerState;

/* A cursor that its backend gave back; filled by it, emptied by the engine. */
typedef enum NavisReleaseState
{
	NAVIS_RELEASE_EMPTY, /* the backend may fill it */
	NAVIS_RELEASE_FULL,  /* an engine thread may claim it */
	NAVIS_RELEASE_TAKEN  /* one is copying it */
} NavisReleaseState;

typedef struct NavisRelease
{
	_Atomic uint32 state; /* NavisReleaseState */
	uint64 cursor;
	uint64 engine; /* incarnation the cursor belongs to */
	uint64 owner;
	nv_key key;
} NavisRelease;

typedef struct NavisSlot
{
	nv_request request;
	/* Latch of the slot's PGPROC; NULL until the slot is used first. */
	_Atomic(Latch *) latch;
	_Atomic uint64 posts;   /* INSERTs posted from this slot so far */
	_Atomic uint32 awaited; /* its owner waits for the one posted last */
	NavisRelease releases[NAVIS_SLOT_RELEASES];
} NavisSlot;

/* A helper process that runs; database 0: the one for dropped databases. */
typedef struct NavisHelper
{
	int pid; /* 0: free */
	Oid database;
} NavisHelper;

/* A sidecar that had no owner when it was last looked for. */
typedef struct NavisOrphan
{
	bool used;
	nv_key key;
	TimestampTz since; /* end of the first look that found no owner */
} NavisOrphan;

typedef struct NavisControl
{
	_Atomic uint32 worker_state;         /* NavisWorkerState */
	_Atomic uint64 incarnation;          /* of the running engine; 0: none */
	_Atomic uint64 last_incarnation;     /* newest ever given */
	_Atomic uint64 last_owner;           /* newest owner number ever given */
	_Atomic(Latch *) worker_latch;       /* NULL: no worker */
	_Atomic uint32 wanted[NAVIS_WANTED]; /* database OIDs; 0: free */

	_Atomic uint32 worker_pid;     /* 0: no worker */
	_Atomic uint64 engine_started; /* TimestampTz; of the incarnation */

	/* Under lock; helpers only. */
	LWLock *lock;
	NavisHelper helpers[NAVIS_MAX_HELPERS];
	NavisOrphan orphans[NAVIS_MAX_ORPHANS];

	/* Sleep of the engine's threads; see navis_wake_engine. */
	_Alignas(64) _Atomic uint32 word; /* futex: changes with every event */
	_Atomic uint32 sleepers;          /* threads in the futex */
	_Atomic uint32 spinner;           /* 1: a thread spins on the word */

	/* Set in stone when the segment is made. */
	_Alignas(64) uint32 nslots;
	uint32 nwords;
	_Atomic uint64 *submitted; /* bit per slot: a request may wait */
	_Atomic uint64 *released;  /* bit per slot: cursors may be given back */
	_Atomic uint64 *posted;    /* bit per slot: a posted INSERT is under way */
	NavisSlot *slots;
} NavisControl;

/* NULL when the library was not preloaded. */
extern NavisControl *navis_control;

/* An INSERT that nobody takes back; of a request that is not IDLE. */
static inline bool
navis_is_posted(const nv_request *request)
{
	return request->kind == NV_REQ_INSERT && request->u.insert.posted != 0;
}

/* Installs the shared memory hooks; only while preloading. */
extern void navis_slots_init(void);

/* Something was submitted: wakes one engine thread if none is awake for it. */
extern void navis_wake_engine(NavisControl *control);

/* Wakes every engine thread. */
extern void navis_wake_engine_all(NavisControl *control);

/* Monotonic clock in microseconds; safe on engine threads. */
extern uint64 navis_now_us(void);

/* Tells the processor that this is a busy loop. */
static inline void
navis_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

#endif
