/*
 * parallel.h
 *		Splitting a counted loop over threads for its duration.
 */
#ifndef NAVIS_PARALLEL_H
#define NAVIS_PARALLEL_H

#include "navis/status.h"

#define NV_PARALLEL_MAX_THREADS 64

/* One step; worker is below the number of threads asked for. */
typedef void (*nv_parallel_fn)(void *arg, uint32_t worker, uint64_t step);

typedef bool (*nv_parallel_cancel_fn)(void *arg);

/* What nv_parallel_run makes of a number of threads: 1 to the maximum. */
extern uint32_t nv_parallel_threads(uint32_t threads);

/*
 * Runs fn for every step below steps.  The caller is worker 0; the others are
 * started with all signals blocked and are gone on return.  Threads take the
 * next step when they are free, so a step's result must not depend on the
 * worker.  With fewer threads to be had than asked for, it goes on with those.
 * cancel (may be NULL) is called by the caller's thread only, before each of
 * its steps: NV_ECANCELLED, with some steps not done.
 */
extern nv_status nv_parallel_run(uint32_t threads, uint64_t steps,
								 nv_parallel_fn fn, void *arg,
								 nv_parallel_cancel_fn cancel, void *cancel_arg,
								 nv_error *err);

#endif
