/*
 * pass.h
 *		A search pass: every query once, asked by some clients, each one after
 *		the other.
 */
#ifndef NAVIS_BENCH_PASS_H
#define NAVIS_BENCH_PASS_H

#include <stdatomic.h>

#include "json.h"
#include "tool.h"

/* Latencies by powers of 2^(1/4) from 10 microseconds on. */
#define PASS_BUCKETS 80

typedef struct pass_options
{
	uint32_t k, list_size, beam_width, entrance_list, flags, clients;
	double percentile; /* CASR */
} pass_options;

typedef struct pass_setup
{
	const tool *tool;
	pass_options o;
	uint32_t n_queries, dim;
	float *queries;
	nv_request *requests[BENCH_MAX_CLIENTS]; /* one a client */
	double *ms;                              /* of each query */
} pass_setup;

extern void pass_setup_init(pass_setup *s, const tool *t, bench_rows *queries,
							const pass_options *o);
extern void pass_setup_free(pass_setup *s);

typedef struct pass_latency
{
	uint64_t n;
	double mean_ms, p50_ms, p99_ms; /* 0 if n is */
	uint32_t histogram[PASS_BUCKETS];
} pass_latency;

/* Sorts ms. */
extern pass_latency pass_summarise(double *ms, size_t n);

typedef struct pass_result
{
	uint64_t answered;     /* queries; fewer than all when it was stopped */
	double begun, seconds; /* begun: since the program began */
	double qps;
	pass_latency latency;
	double recall; /* -1: not measured */
	uint32_t window, list_used;
	nv_search_stats sum; /* over the queries */
	uint64_t proc_bytes; /* the process has read meanwhile */
} pass_result;

/*
 * Runs one.  truth: recall is measured against it, or NULL; stop: when it
 * becomes true, clients end after the query at hand, or NULL.  Any search that
 * the graph did not answer ends the program.
 */
extern pass_result pass_run(pass_setup *s, const bench_truth *truth,
							const atomic_bool *stop);

/* Asks until the rerank window of this list size is calibrated. */
extern void pass_await_window(pass_setup *s);

/* One line, and one line of JSON. */
extern void pass_print(const char *head, const pass_result *r);
extern void pass_json(bench_json *j, const char *kind, const pass_setup *s,
					  const pass_result *r, int batch);

/* Reads the truth for these queries; ends the program when it does not fit. */
extern bench_truth pass_truth(const char *path, const pass_setup *s);

/* Seconds since the program began. */
extern double pass_clock(void);

#endif
