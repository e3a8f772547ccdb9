/*
 * link_times.c
 *		See link_times.h.
 */
#include "link_times.h"

#include <pthread.h>

#include "pending.h"
#include "renew.h"

#define FIRST_ROOM 4096

extern bool __real_nv_pending_take(nv_pending *p, nv_journal_entry *entry,
								   float *row);
extern bool __wrap_nv_pending_take(nv_pending *p, nv_journal_entry *entry,
								   float *row);
extern void __real_nv_renew_note_link(nv_index *index, uint64_t ns);
extern void __wrap_nv_renew_note_link(nv_index *index, uint64_t ns);

static struct
{
	pthread_mutex_t lock;
	bool on;
	double *ms;
	size_t n, room;
} times = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint64_t taken_ns; /* when the row at hand was */

static void
note(double ms)
{
	if (times.n == times.room)
	{
		times.room = times.room == 0 ? FIRST_ROOM : 2 * times.room;
		times.ms = bench_need(realloc(times.ms, times.room * sizeof(double)));
	}
	times.ms[times.n++] = ms;
}

bool
__wrap_nv_pending_take(nv_pending *p, nv_journal_entry *entry, float *row)
{
	taken_ns = nv_now_ns();
	return __real_nv_pending_take(p, entry, row);
}

/* Of processor time, which it is told: here the clock is what counts. */
void
__wrap_nv_renew_note_link(nv_index *index, uint64_t ns)
{
	double ms = (double) (nv_now_ns() - taken_ns) / 1e6;

	__real_nv_renew_note_link(index, ns);
	pthread_mutex_lock(&times.lock);
	if (times.on)
		note(ms);
	pthread_mutex_unlock(&times.lock);
}

void
link_times_begin(void)
{
	pthread_mutex_lock(&times.lock);
	times.on = true;
	times.n = 0;
	pthread_mutex_unlock(&times.lock);
}

pass_latency
link_times_end(void)
{
	pass_latency latency;

	pthread_mutex_lock(&times.lock);
	times.on = false;
	latency = pass_summarise(times.ms, times.n);
	free(times.ms);
	times.ms = NULL;
	times.n = times.room = 0;
	pthread_mutex_unlock(&times.lock);
	return latency;
}
