/*
 * link_times.h
 *		How long each row took to be linked: from the moment an insert thread
 *		took it out of the queue until searches find it in the graph.
 *
 * The linker puts functions around the engine's own that hand a row out and are
 * told when it is linked (-Wl,--wrap).
 */
#ifndef NAVIS_BENCH_LINK_TIMES_H
#define NAVIS_BENCH_LINK_TIMES_H

#include "pass.h"

/* Begins to note them, and forgets those noted before. */
extern void link_times_begin(void);

/* Of those noted since: ms; n = 0 and zeros if there are none. */
extern pass_latency link_times_end(void);

#endif
