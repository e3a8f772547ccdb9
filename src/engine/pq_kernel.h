/*
 * pq_kernel.h
 *		Products of rows with small matrices kept in panels.
 *
 * A matrix of depth x columns is stored as panels of 32 columns: element
 * (k, c) is at ((c / 32) * depth + k) * 32 + c % 32, missing columns of the
 * last panel are 0.  The 256 centroids of a chunk are such a matrix, a centroid
 * a column; so is a rotation.
 *
 * Every element is summed over the depth in ascending order by the same
 * operations, however many rows a call has: the code of a row does not depend
 * on whether it was encoded alone.  That is why a BLAS, which picks another
 * kernel for another shape, is not used here; for the short sums of a chunk it
 * is slower besides.
 */
#ifndef NAVIS_PQ_KERNEL_H
#define NAVIS_PQ_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define NV_PANEL_COLUMNS 32

/* Floats of a matrix in panels. */
extern size_t nv_panel_size(uint32_t depth, uint32_t columns);

/* From columns x depth floats (a column's floats together) into panels. */
extern void nv_panel_pack(const float *columns, uint32_t count, uint32_t depth,
						  float *panels);

/* Half the squared length of each of 256 columns. */
extern void nv_panel_half_norms(const float *panels, uint32_t depth,
								float *half_norms);

/*
 * The nearest of 256 columns to each of n rows of depth floats; of equally
 * near ones the first.  Codes are code_stride bytes apart.  score (may be
 * NULL) gets half the squared distance minus half the row's squared length.
 */
extern void nv_panel_nearest(const float *rows, size_t stride, size_t n,
							 uint32_t depth, const float *panels,
							 const float *half_norms, uint8_t *codes,
							 size_t code_stride, float *score);

/* Squared distances of one row to each of 256 columns. */
extern void nv_panel_distances(const float *row, uint32_t depth,
							   const float *panels, float *out);

/* The least of 256 values and the first place where it is. */
extern float nv_panel_least(const float *values, uint8_t *at);

/*
 * Rounds a matrix of elements from -1 to 1 to multiples of NV_SHORT_STEP, and
 * gives their numbers: half the bytes, and the same product.
 */
#define NV_SHORT_STEP 0x1p-15f
extern void nv_panel_shorten(float *panels, size_t n, int16_t *out);
/* out = row * such a matrix. */
extern void nv_panel_multiply_short(const float *row, uint32_t depth,
									const int16_t *panels, uint32_t columns,
									float *out);

/* out (n rows, out_stride floats apart) = rows * matrix. */
extern void nv_panel_multiply(const float *rows, size_t stride, size_t n,
							  uint32_t depth, const float *panels,
							  uint32_t columns, float *out, size_t out_stride);

#endif
