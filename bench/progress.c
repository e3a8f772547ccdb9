/*
 * progress.c
 *		Progress of long work; see progress.h.
 */
#include "progress.h"

#include <unistd.h>

#include "common.h"

#define SECOND UINT64_C(1000000000)

void
bench_progress_begin(bench_progress *p, const char *what, uint64_t total)
{
	p->what = what;
	p->total = total;
	p->begun_ns = p->shown_ns = bench_now_ns();
}

void
bench_progress_show(bench_progress *p, uint64_t done)
{
	uint64_t now = bench_now_ns();
	bool terminal = isatty(STDERR_FILENO) != 0;
	double seconds = (double) (now - p->begun_ns) / 1e9, left = 0;

	if (now - p->shown_ns < (terminal ? 1 : 10) * SECOND)
		return;
	p->shown_ns = now;
	if (done > 0 && done < p->total)
		left = seconds * (double) (p->total - done) / (double) done;
	fprintf(stderr, "%s%s: ", terminal ? "\r" : "", p->what);
	if (p->total > 0)
		fprintf(stderr, "%llu of %llu, ", (unsigned long long) done,
				(unsigned long long) p->total);
	fprintf(stderr, "%.0f s", seconds);
	if (done > 0 && p->total > 0)
		fprintf(stderr, ", %.0f s to go", left);
	fprintf(stderr, "%s", terminal ? "          " : "\n");
	fflush(stderr);
}

void
bench_progress_end(bench_progress *p)
{
	if (p->shown_ns != p->begun_ns && isatty(STDERR_FILENO))
		fprintf(stderr, "\n");
}
