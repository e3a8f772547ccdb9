/*
 * cache_trace.h
 *		A record of what a run asks the page cache for, to be replayed by
 *		navis_cache.
 *
 * The linker puts these functions around the cache's own (-Wl,--wrap): the
 * engine knows nothing of it, and without a trace they only pass on.
 */
#ifndef NAVIS_BENCH_CACHE_TRACE_H
#define NAVIS_BENCH_CACHE_TRACE_H

#include <stdint.h>

#define TRACE_MAGIC UINT64_C(0x314543415254564e) /* "NVTRACE1" */

typedef enum trace_kind
{
	TRACE_SEARCH, /* lookups, by nv_cache_user */
	TRACE_INSERT,
	TRACE_PASSING,
	TRACE_WRITTEN
} trace_kind;

/* The file: TRACE_MAGIC, then these in the order in which they happened. */
typedef struct trace_event
{
	uint32_t page;
	uint16_t file;
	uint16_t kind;
} trace_event;

/* Begins a file, replacing one that is there; errors end the program. */
extern void trace_begin(const char *path);
extern void trace_end(void);

#endif
