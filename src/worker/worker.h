/*
 * worker.h
 *		What the files of the worker and its helpers share.
 */
#ifndef NAVIS_WORKER_H
#define NAVIS_WORKER_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "slots.h"

/* --- worker.c: the background worker --- */

/* Registers the worker; only while preloading. */
extern void navis_worker_register(void);

/* State of the worker when shared memory is made: will one be started? */
extern NavisWorkerState navis_worker_expected(void);

extern PGDLLEXPORT void navis_worker_main(Datum arg);

/* navis.directory as an absolute path. */
extern const char *navis_directory_path(void);

/* --- launch.c: the worker's main thread starts helpers --- */

/* Looks for sidecars as soon as possible. */
extern void navis_launch_soon(void);

/*
 * Starts the helpers that are due and notes those that ended; returns the
 * milliseconds until it wants to be called again.
 */
extern long navis_launch(void);

/* Tells running helpers to end. */
extern void navis_launch_stop(void);

/* --- helper.c: the process --- */

extern PGDLLEXPORT void navis_helper_main(Datum arg);

/*
 * Between transactions of a helper: false when somebody waits for the
 * database itself (DROP DATABASE); the helper must leave then.
 */
extern bool navis_helper_may_stay(void);

/* --- collector.c --- */

/* One look for sidecars of this database that no index owns. */
extern void navis_collect_database(void);

/*
 * One look for sidecars of databases that are gone; asks for a helper in
 * every other database that has sidecars.  Without a database.
 */
extern void navis_collect_dropped(void);

#endif
