/*
 * moving.h
 *		Batches: rows inserted, and in a sliding window deleted, while searches
 *		run beside.
 */
#ifndef NAVIS_BENCH_MOVING_H
#define NAVIS_BENCH_MOVING_H

#include "pass.h"

typedef struct moving_options
{
	const char *truth; /* PREFIX of PREFIX_<offset>.bin, or NULL */
	uint64_t batch_size;
	uint32_t batches;
	uint32_t queue; /* rows that wait to be linked, at most */
	bool window;    /* each batch deletes as many of the oldest rows */
	uint32_t delete_threads;
	bool consolidate;         /* after each batch; not part of its time */
	bool searches;            /* passes beside the batches and after them */
	double first_wait, pause; /* seconds: cadence of the passes beside */
} moving_options;

/* Rows of `data` from t->rows on are inserted.  Prints and writes JSON. */
extern void moving_run(tool *t, pass_setup *s, bench_rows *data,
					   const moving_options *o, bench_json *j);

#endif
