/*
 * exact.c
 *		Exact neighbours of queries among some rows; see exact.h.
 */
#include "exact.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GROUP 16 /* queries that look at a row while it is in the cache */
#define MAX_THREADS 64

typedef struct job
{
	pthread_t thread;
	nv_metric metric;
	const bench_matrix *rows, *queries;
	uint32_t first, n;
	uint32_t begin, end; /* queries of this thread */
	uint32_t *nearest;   /* BENCH_K for each query */
} job;

/* Keeps the K nearest in order; rows come by rising number. */
static void
offer(double *best, uint32_t *ids, double distance, uint32_t row)
{
	uint32_t at = BENCH_K;

	while (at > 0 && distance < best[at - 1])
		at--;
	if (at == BENCH_K)
		return;
	memmove(best + at + 1, best + at, (BENCH_K - 1 - at) * sizeof(*best));
	memmove(ids + at + 1, ids + at, (BENCH_K - 1 - at) * sizeof(*ids));
	best[at] = distance;
	ids[at] = row;
}

static void
scan_group(const job *j, uint32_t begin, uint32_t end)
{
	double best[GROUP][BENCH_K];
	uint32_t dim = j->rows->dim;
	const float *rows = (const float *) j->rows->words;
	const float *queries = (const float *) j->queries->words;

	for (uint32_t q = begin; q < end; q++)
		for (uint32_t i = 0; i < BENCH_K; i++)
			best[q - begin][i] = INFINITY;
	for (uint32_t row = j->first; row < j->first + j->n; row++)
		for (uint32_t q = begin; q < end; q++)
			offer(best[q - begin], j->nearest + (size_t) q * BENCH_K,
				  nv_distance(j->metric, queries + (size_t) q * dim,
							  rows + (size_t) row * dim, dim),
				  row);
}

static void *
job_main(void *arg)
{
	const job *j = arg;

	for (uint32_t q = j->begin; q < j->end; q += GROUP)
		scan_group(j, q, q + GROUP < j->end ? q + GROUP : j->end);
	return NULL;
}

bench_matrix
bench_exact(nv_metric metric, const bench_matrix *rows, uint32_t first,
			uint32_t n, const bench_matrix *queries, uint32_t threads)
{
	bench_matrix truth = {queries->n, BENCH_K, NULL};
	job jobs[MAX_THREADS];

	if (n < BENCH_K || rows->dim != queries->dim)
		bench_die("exact neighbours", "rows and queries do not fit");
	truth.words = bench_allocate((size_t) truth.n * BENCH_K, sizeof(uint32_t));
	threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
	for (uint32_t i = 0; i < threads; i++)
	{
		jobs[i] = (job){
			.metric = metric,
			.rows = rows,
			.queries = queries,
			.first = first,
			.n = n,
			.begin = (uint32_t) ((uint64_t) truth.n * i / threads),
			.end = (uint32_t) ((uint64_t) truth.n * (i + 1) / threads),
			.nearest = truth.words,
		};
		if (pthread_create(&jobs[i].thread, NULL, job_main, &jobs[i]) != 0)
			bench_die("exact neighbours", "cannot start a thread");
	}
	for (uint32_t i = 0; i < threads; i++)
		pthread_join(jobs[i].thread, NULL);
	return truth;
}
