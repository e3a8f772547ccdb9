/*
 * pq_recall.h
 *		How well codes alone find the nearest rows: what code sizes are
 *		chosen by.
 *
 * A trial holds some rows out as queries.  Its recall of a codebook is the
 * share of a query's 10 nearest rows that are among the 10 nearest by code,
 * over the scanned rows.  A row as near as the 10th counts as found, so copies
 * of one vector do no harm; a query's own row is left out.
 */
#ifndef NAVIS_PQ_RECALL_H
#define NAVIS_PQ_RECALL_H

#include "pq.h"

#define NV_PQ_TRIAL_QUERIES 200
#define NV_PQ_TRIAL_K 10

/* Rows scanned: at most as many, and as many floats, but never under the last.
 */
#define NV_PQ_TRIAL_ROWS 100000
#define NV_PQ_TRIAL_FLOATS (UINT64_C(40) << 20)
#define NV_PQ_TRIAL_MIN_ROWS 10000

typedef struct nv_pq_trial
{
	const nv_pq_params *params;
	const float *rows;
	size_t stride;
	uint64_t n;
	uint32_t gdim;
	uint64_t scanned;
	uint64_t query_id[NV_PQ_TRIAL_QUERIES]; /* ascending */
	float kth[NV_PQ_TRIAL_QUERIES]; /* squared distance of the K-th row */
	float *mean;                    /* taken off before products of rows */
} nv_pq_trial;

/*
 * The recall a code size must reach: more when rows were not scanned, since
 * recall falls as a table grows.
 */
#define NV_PQ_RECALL 0.85
#define NV_PQ_RECALL_PER_DECADE 0.06

extern double nv_pq_recall_asked(uint64_t n, uint64_t scanned);

/*
 * Row i of count rows that are spread over n: one of each of count equal
 * stretches, so ascending and distinct.
 */
extern uint64_t nv_pq_spread(uint64_t i, uint64_t count, uint64_t n,
							 uint64_t seed);

/* Draws the queries; mean (gdim floats) is filled by the caller afterwards. */
extern nv_status nv_pq_trial_create(const nv_pq_params *params,
									const float *rows, size_t stride,
									uint64_t n, uint32_t gdim,
									nv_pq_trial **trial, nv_error *err);
extern void nv_pq_trial_free(nv_pq_trial *trial);

/* Finds the true neighbours; once, before recalls are measured. */
extern nv_status nv_pq_trial_prepare(nv_pq_trial *trial, nv_error *err);
extern nv_status nv_pq_trial_recall(const nv_pq_trial *trial, const nv_pq *pq,
									double *recall, nv_error *err);

#endif
