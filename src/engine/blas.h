/*
 * blas.h
 *		OpenBLAS, loaded when it is first needed.
 *
 * The server's postmaster preloads us, and OpenBLAS starts threads from its
 * constructor: linking it would give the postmaster threads, which it must
 * not have before it forks.  So it is opened at first use, held to one thread
 * (our own threads work on blocks), and never closed.
 */
#ifndef NAVIS_BLAS_H
#define NAVIS_BLAS_H

#include "navis/status.h"

/*
 * Sets OPENBLAS_NUM_THREADS, which the library reads when it is opened.  Call
 * it before there are threads that may read the environment.
 */
extern void nv_blas_prepare(void);

/*
 * Opens the library; later calls return what the first one found.  Safe from
 * any thread.  NV_ENOENT names the library or symbol that is missing.
 */
extern nv_status nv_blas_load(nv_error *err);

/*
 * The functions below need a successful nv_blas_load().  Matrices are row
 * major; the last number before a matrix's end is its row's length in floats.
 */

/* out[rows_a][rows_b] = a * b^T; a and b have depth columns. */
extern void nv_blas_product(const float *a, size_t stride_a, uint32_t rows_a,
							const float *b, size_t stride_b, uint32_t rows_b,
							uint32_t depth, float *out, size_t stride_out);

/* Lower triangle of out[dim][dim] += a^T * a, a having rows x dim floats. */
extern void nv_blas_add_gram(const float *a, uint32_t rows, uint32_t dim,
							 float *out);

/*
 * Eigenvectors of a symmetric matrix whose lower triangle is given: row i
 * of the result is the unit eigenvector of values[i], values ascending.
 */
extern nv_status nv_blas_eigen(float *matrix, uint32_t dim, float *values,
							   nv_error *err);

#endif
