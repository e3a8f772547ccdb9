/*
 * truth.h
 *		Exact nearest neighbours of queries among the rows of a file, by blocks
 *		of row numbers, in one pass over the file.
 *
 * Blocks are [bounds[i], bounds[i + 1]).  The nearest of any union of blocks
 * are among the nearest of each, so one pass gives the truth of every live set
 * that is a union of whole blocks: of moving data at each of its steps.
 *
 * Distances are nv_distance's, ties go to the smaller number.  A matrix
 * product (OpenBLAS) finds candidates; a bound on its rounding error says
 * whether others could have been nearer, and then the block is compared row by
 * row.  So the result is that of the plain double loop, whatever the BLAS.
 */
#ifndef NAVIS_BENCH_TRUTH_H
#define NAVIS_BENCH_TRUTH_H

#include "navis/distance.h"
#include "vectors.h"

#define BENCH_EXACT_MAX_K 1000

typedef struct bench_exact_params
{
	nv_metric metric;
	uint32_t k;
	uint32_t threads;
	uint64_t budget; /* bytes to hold at most, the answer included */
	const uint64_t *bounds;
	uint32_t n_blocks;
} bench_exact_params;

typedef struct bench_near
{
	double distance;
	uint32_t id; /* UINT32_MAX: the block has fewer than k rows */
} bench_near;

typedef struct bench_exact
{
	uint32_t n_queries, k, n_blocks;
	bench_near *near;   /* blocks x queries x k, each nearest first */
	uint64_t full;      /* query and part pairs compared row by row */
	uint64_t partition; /* rows held at a time */
} bench_exact;

/* NV_ELIMIT: the budget is too small; the message names what is needed. */
extern nv_status bench_exact_run(bench_rows *base, bench_rows *queries,
								 const bench_exact_params *params,
								 bench_exact *exact, nv_error *err);
extern void bench_exact_free(bench_exact *exact);

/*
 * The truth of blocks [first, end); NV_EINVAL: they have fewer than k rows.
 */
extern nv_status bench_exact_union(const bench_exact *exact, uint32_t first,
								   uint32_t end, bench_truth *truth,
								   nv_error *err);

/*
 * Bounds of the blocks of moving data: every live set [0, n + i * batch) and
 * [i * batch, n + i * batch), n + i * batch <= total, is a union of whole
 * blocks.  malloc'ed; NULL: no memory.
 */
extern uint64_t *bench_moving_bounds(uint64_t n, uint64_t batch, uint64_t total,
									 uint32_t *n_blocks);
/* The number of the bound at that row; it must be one. */
extern uint32_t bench_bound_at(const uint64_t *bounds, uint32_t n_blocks,
							   uint64_t row);

#endif
