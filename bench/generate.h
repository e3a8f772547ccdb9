/*
 * generate.h
 *		Vectors shaped like embeddings of text, of any number, the same on
 *		every machine.
 *
 * A row is normalise(G (m_c + B_c z) + e):
 *	G	an orthonormal basis of GLOBAL_DIM directions of the dim there are,
 *	c	the row's cluster; small numbers are drawn more often (1 / (c + 20)),
 *	m_c	its centre, whose scale falls from axis to axis; clusters come in
 *		families that share half of their centre, so that they have neighbours,
 *	B_c	the cluster's own LOCAL_DIM directions, strong global axes preferred,
 *	z	Gaussian, falling from axis to axis; the spread differs by cluster,
 *	e	Gaussian noise in all directions, total length 0.15.
 *
 * A row depends on the seed, its stream and its number only.  Arithmetic is
 * double with a fixed order (build without contraction: -ffp-contract=off) and
 * Gaussians are sums of uniforms, so that no library function has a say.
 *
 * Drift: with drift_from > 0 rows below it come from the even families, rows
 * from it on from the odd ones: regions that the first rows lack.  Queries
 * come from all.
 */
#ifndef NAVIS_BENCH_GENERATE_H
#define NAVIS_BENCH_GENERATE_H

#include "navis/status.h"

typedef enum bench_stream
{
	BENCH_STREAM_BASE,
	BENCH_STREAM_QUERY
} bench_stream;

typedef struct bench_generator bench_generator;

/* dim: 96 to 4096. */
extern nv_status bench_generator_create(uint64_t seed, uint32_t dim,
										uint64_t drift_from,
										bench_generator **g, nv_error *err);
extern void bench_generator_free(bench_generator *g);

/* Row `number` of a stream, dim floats.  Any thread. */
extern void bench_generate(const bench_generator *g, bench_stream stream,
						   uint64_t number, float *out);

#endif
