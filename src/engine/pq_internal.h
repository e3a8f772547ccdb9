/*
 * pq_internal.h
 *		A codebook's inside, for the files that make and use one.
 *
 * Code space is where codes are made: coordinates of graph space less the mean
 * of the sample, turned by the rotation if there is one.  Distances are the
 * same in both.
 */
#ifndef NAVIS_PQ_INTERNAL_H
#define NAVIS_PQ_INTERNAL_H

#include "navis/distance.h"
#include "pq.h"

/* Of graph space: inner product adds one dimension. */
#define NV_PQ_MAX_GDIM (NV_MAX_DIM + 1)

/*
 * A rotation costs gdim^2 operations a row or query and gdim^2 floats of
 * memory; above this it is not tried.
 */
#define NV_PQ_ROTATION_MAX_GDIM 2048

struct nv_pq
{
	uint32_t gdim;
	uint32_t bytes;
	uint32_t stride;
	float *mean;             /* gdim */
	float *rotation;         /* R^T in panels (see pq_kernel.h), or NULL */
	int16_t *rotation_short; /* the same, see nv_panel_shorten */
	float *centroids;        /* chunk after chunk: 256 x its dimensions */
	float *panels;           /* the same, each chunk in panels */
	/*
	 * The same as integers, for comparing codes with each other: a coordinate
	 * is its number of steps, which are so long that what nv_l2sq_short gives
	 * for two codes fits.  short_unit: the square of a step.
	 */
	int16_t *shorts;
	double short_unit;
	float *half_norms; /* bytes x 256: half the centroids' squared lengths */
	uint32_t start[NV_PQ_MAX_BYTES + 1]; /* first dimension of a chunk; gdim */
};

/*
 * A codebook of zeros.  The maker fills mean and centroids, and calls
 * nv_pq_rotate() if there is a rotation and nv_pq_finish() at the end.
 */
extern nv_status nv_pq_create(uint32_t gdim, uint32_t bytes, nv_pq **pq,
							  nv_error *err);
/* rotation: gdim x gdim, row major; code space is R * (x - mean). */
extern nv_status nv_pq_rotate(nv_pq *pq, const float *rotation, nv_error *err);
extern void nv_pq_finish(nv_pq *pq);

/*
 * Rows a block of work holds so that it stays in a core's cache: a multiple of
 * four.
 */
extern uint32_t nv_pq_block_rows(uint32_t gdim);

#define NV_PQ_BLOCK_MAX_ROWS 256

/*
 * n rows of code space (rows are gdim floats apart in out).  With a rotation
 * scratch holds n x gdim floats, otherwise it may be NULL.
 */
extern void nv_pq_project(const nv_pq *pq, const float *rows, size_t stride,
						  size_t n, float *out, float *scratch);
extern void nv_pq_encode_projected(const nv_pq *pq, const float *projected,
								   size_t n, uint8_t *codes);
/*
 * The nearest centroids by a row's table, which was made for a search; returns
 * the squared distance of the row and what was encoded.
 */
extern float nv_pq_encode_by_table(const nv_pq *pq, const float *table,
								   uint8_t *code);
extern void nv_pq_decode_projected(const nv_pq *pq, const uint8_t *code,
								   float *projected);
/* The code's place in steps; places compare by nv_l2sq_short * short_unit. */
extern void nv_pq_decode_short(const nv_pq *pq, const uint8_t *code,
							   int16_t *place);
/* nv_pq_table of a query that is in code space already. */
extern void nv_pq_table_projected(const nv_pq *pq, const float *projected,
								  float *table);

static inline uint32_t
nv_pq_chunk_dims(const nv_pq *pq, uint32_t chunk)
{
	return pq->start[chunk + 1] - pq->start[chunk];
}

#endif
