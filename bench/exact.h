/*
 * exact.h
 *		Exact neighbours of queries among some rows, with the engine's kernels.
 */
#ifndef NAVIS_BENCH_EXACT_H
#define NAVIS_BENCH_EXACT_H

#include "common.h"
#include "navis/distance.h"

/*
 * The numbers of the BENCH_K rows nearest to each query, nearest first, equal
 * ones by number, among rows first .. first + n - 1; words is caller's to free.
 */
extern bench_matrix bench_exact(nv_metric metric, const bench_matrix *rows,
								uint32_t first, uint32_t n,
								const bench_matrix *queries, uint32_t threads);

#endif
