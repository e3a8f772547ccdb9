/*
 * progress.h
 *		Progress of long work, on standard error: once a second on a terminal,
 *		else every ten; nothing for work that ends sooner.
 */
#ifndef NAVIS_BENCH_PROGRESS_H
#define NAVIS_BENCH_PROGRESS_H

#include <stdint.h>

typedef struct bench_progress
{
	const char *what;
	uint64_t total;
	uint64_t begun_ns, shown_ns;
} bench_progress;

extern void bench_progress_begin(bench_progress *p, const char *what,
								 uint64_t total);
/* One thread at a time. */
extern void bench_progress_show(bench_progress *p, uint64_t done);
extern void bench_progress_end(bench_progress *p);

#endif
