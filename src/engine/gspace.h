/*
 * gspace.h
 *		Graph space: where codes and graph live.
 *
 * Graph and codes know squared Euclidean distance only.  A stored row is
 * mapped into graph space so that this distance orders like the metric:
 *
 *	L2		x * scale
 *	cosine	x / |x|
 *	IP		(x * scale, sqrt(M^2 - |x * scale|^2)), one dimension more, M the
 *			largest scaled norm seen at build (longer rows get 0 there)
 *
 * A query maps to q * scale, q / |q|, or (q * M / |q|, 0).  scale is a power
 * of two that keeps squares far from overflow and underflow.  The exact
 * distance is always computed on the stored bytes by nv_distance.
 */
#ifndef NAVIS_GSPACE_H
#define NAVIS_GSPACE_H

#include "navis/distance.h"

typedef struct nv_gspace
{
	uint32_t metric; /* nv_metric */
	uint32_t dim;    /* of stored vectors */
	uint32_t gdim;   /* of graph space: dim, or dim + 1 for IP */
	float scale;
	float max_norm; /* M, in scaled units; IP only */
} nv_gspace;

/* gdim for a metric and dimension. */
extern uint32_t nv_gspace_dim(nv_metric metric, uint32_t dim);

/*
 * Learns scale and max_norm from n rows that start at rows and are stride
 * floats apart.
 */
extern void nv_gspace_learn(nv_gspace *gs, nv_metric metric, uint32_t dim,
							const float *rows, size_t stride, uint64_t n);

/* Map one row or query; out holds gdim floats and may be equal to in. */
extern void nv_gspace_row(const nv_gspace *gs, const float *in, float *out);
extern void nv_gspace_query(const nv_gspace *gs, const float *in, float *out);

#endif
