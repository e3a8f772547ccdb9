/*
 * search_run.h
 *		One search on one ring, from start to end, blocking: for tests and
 *		benchmarks.  The engine interleaves searches instead.
 */
#ifndef NAVIS_SEARCH_RUN_H
#define NAVIS_SEARCH_RUN_H

#include "search.h"

/*
 * Runs a started (or continued) search until DONE or FAILED.  The ring must
 * have nothing in flight, and has nothing in flight afterwards.  The status is
 * that of nv_search_error.
 */
extern nv_status nv_search_run(nv_search *search, nv_ring *ring);

#endif
