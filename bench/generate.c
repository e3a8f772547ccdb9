/*
 * generate.c
 *		Vectors shaped like embeddings of text; see generate.h.
 */
#include "generate.h"

#include <math.h>

#include "util.h"

#define GLOBAL_DIM 96
#define LOCAL_DIM 24
#define CLUSTERS 2000
#define FAMILY 20 /* clusters */
#define FAMILIES (CLUSTERS / FAMILY)
#define RANK_SHIFT 20
#define NOISE 0.15
#define MAX_DIM 4096

_Static_assert(FAMILIES % 2 == 0, "drift divides the families in two");

struct bench_generator
{
	uint64_t seed, drift_from;
	uint32_t dim;
	double *basis;  /* GLOBAL_DIM rows of dim */
	double *centre; /* CLUSTERS rows of GLOBAL_DIM */
	double *local;  /* CLUSTERS * LOCAL_DIM rows of GLOBAL_DIM, scaled */
	double share[CLUSTERS]; /* cumulative, in drawing order */
};

/* --- Random numbers --- */

static uint64_t
begin_random(uint64_t seed, uint64_t stream, uint64_t number)
{
	uint64_t mixed = nv_random_seed(seed) ^ nv_random_seed(stream + 1000);

	return nv_random_seed(nv_random_seed(mixed) + number);
}

/* Uniform in [0, 1). */
static double
uniform(uint64_t *random)
{
	return (double) (nv_random(random) >> 11) * 0x1p-53;
}

/* Twelve uniforms: mean 0, variance 1, tails end at 6. */
static double
gaussian(uint64_t *random)
{
	uint64_t sum = 0;

	for (int i = 0; i < 6; i++)
	{
		uint64_t x = nv_random(random);

		sum += (x >> 32) + (x & UINT32_MAX);
	}
	return (double) sum * 0x1p-32 - 6;
}

/* Four uniforms of 16 bits: good enough for noise, and cheap. */
static double
rough_gaussian(uint64_t *random)
{
	uint64_t x = nv_random(random);
	uint64_t sum =
		(x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);

	/* Variance of the sum: 4 / 12. */
	return ((double) sum * 0x1p-16 - 2) * 1.7320508075688772;
}

/* --- The model --- */

static double
dot(const double *a, const double *b, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* Makes n rows of length dim orthonormal (Gram-Schmidt, twice). */
static void
orthonormalise(double *rows, uint32_t n, uint32_t dim)
{
	for (uint32_t i = 0; i < n; i++)
	{
		double *row = rows + (size_t) i * dim, length;

		for (int again = 0; again < 2; again++)
			for (uint32_t j = 0; j < i; j++)
			{
				const double *other = rows + (size_t) j * dim;
				double along = dot(row, other, dim);

				for (uint32_t d = 0; d < dim; d++)
					row[d] -= along * other[d];
			}
		length = sqrt(dot(row, row, dim));
		for (uint32_t d = 0; d < dim; d++)
			row[d] /= length;
	}
}

/*
 * Scale of each axis, (axis + 1) ^ -1/4 by square roots, which every machine
 * rounds alike; total length 1.
 */
static void
axis_scales(double *scale, uint32_t n)
{
	double length;

	for (uint32_t i = 0; i < n; i++)
		scale[i] = sqrt(sqrt(1.0 / (i + 1)));
	length = sqrt(dot(scale, scale, n));
	for (uint32_t i = 0; i < n; i++)
		scale[i] /= length;
}

/* Families take turns, so that each has clusters of every rank. */
static uint32_t
family_of(uint32_t cluster)
{
	return cluster % FAMILIES;
}

static void
make_centres(bench_generator *g, const double *axis)
{
	double family[FAMILIES][GLOBAL_DIM];
	uint64_t random = begin_random(g->seed, 101, 0);

	for (uint32_t f = 0; f < FAMILIES; f++)
		for (uint32_t d = 0; d < GLOBAL_DIM; d++)
			family[f][d] = gaussian(&random);
	for (uint32_t c = 0; c < CLUSTERS; c++)
		for (uint32_t d = 0; d < GLOBAL_DIM; d++)
			g->centre[(size_t) c * GLOBAL_DIM + d] =
				(family[family_of(c)][d] + gaussian(&random)) *
				0.7071067811865476 * axis[d];
}

static void
make_local(bench_generator *g, const double *axis)
{
	uint64_t random = begin_random(g->seed, 102, 0);
	double scale[LOCAL_DIM];

	axis_scales(scale, LOCAL_DIM);
	for (uint32_t c = 0; c < CLUSTERS; c++)
	{
		double *rows = g->local + (size_t) c * LOCAL_DIM * GLOBAL_DIM;
		double spread = 0.6 + 0.8 * uniform(&random);

		for (uint32_t i = 0; i < LOCAL_DIM * GLOBAL_DIM; i++)
			rows[i] = gaussian(&random) * axis[i % GLOBAL_DIM];
		orthonormalise(rows, LOCAL_DIM, GLOBAL_DIM);
		for (uint32_t i = 0; i < LOCAL_DIM * GLOBAL_DIM; i++)
			rows[i] *= scale[i / GLOBAL_DIM] * spread;
	}
}

static void
make_model(bench_generator *g)
{
	uint64_t random = begin_random(g->seed, 100, 0);
	double axis[GLOBAL_DIM], sum = 0;

	for (size_t i = 0; i < (size_t) GLOBAL_DIM * g->dim; i++)
		g->basis[i] = gaussian(&random);
	orthonormalise(g->basis, GLOBAL_DIM, g->dim);
	axis_scales(axis, GLOBAL_DIM);
	make_centres(g, axis);
	make_local(g, axis);
	for (uint32_t c = 0; c < CLUSTERS; c++)
		g->share[c] = sum += 1.0 / (c + 1 + RANK_SHIFT);
	for (uint32_t c = 0; c < CLUSTERS; c++)
		g->share[c] /= sum;
}

nv_status
bench_generator_create(uint64_t seed, uint32_t dim, uint64_t drift_from,
					   bench_generator **out, nv_error *err)
{
	bench_generator *g;

	if (dim < GLOBAL_DIM || dim > MAX_DIM)
		return nv_fail(err, NV_EINVAL, 0, "%u dimensions, expected %d to %d",
					   dim, GLOBAL_DIM, MAX_DIM);
	g = nv_alloc(sizeof(*g));
	if (g != NULL)
	{
		g->seed = seed;
		g->dim = dim;
		g->drift_from = drift_from;
		g->basis = nv_alloc_array((size_t) GLOBAL_DIM * dim, sizeof(double));
		g->centre = nv_alloc_array(CLUSTERS * GLOBAL_DIM, sizeof(double));
		g->local =
			nv_alloc_array(CLUSTERS * LOCAL_DIM * GLOBAL_DIM, sizeof(double));
	}
	if (g == NULL || g->basis == NULL || g->centre == NULL || g->local == NULL)
	{
		bench_generator_free(g);
		return nv_fail(err, NV_ENOMEM, 0, "no memory for the generator");
	}
	make_model(g);
	*out = g;
	return NV_OK;
}

void
bench_generator_free(bench_generator *g)
{
	if (g == NULL)
		return;
	free(g->basis);
	free(g->centre);
	free(g->local);
	free(g);
}

/* --- Rows --- */

static uint32_t
draw_cluster(const bench_generator *g, uint64_t *random)
{
	double x = uniform(random);
	uint32_t low = 0, high = CLUSTERS - 1;

	while (low < high)
	{
		uint32_t middle = (low + high) / 2;

		if (g->share[middle] > x)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* The cluster of a row; under drift its family is even or odd. */
static uint32_t
choose_cluster(const bench_generator *g, bench_stream stream, uint64_t number,
			   uint64_t *random)
{
	uint32_t cluster = draw_cluster(g, random);

	if (g->drift_from > 0 && stream == BENCH_STREAM_BASE)
		while (family_of(cluster) % 2 != (number >= g->drift_from))
			cluster = draw_cluster(g, random);
	return cluster;
}

void
bench_generate(const bench_generator *g, bench_stream stream, uint64_t number,
			   float *out)
{
	uint64_t random = begin_random(g->seed, stream, number);
	uint32_t c = choose_cluster(g, stream, number, &random);
	const double *local = g->local + (size_t) c * LOCAL_DIM * GLOBAL_DIM;
	double noise = NOISE / sqrt(g->dim), y[GLOBAL_DIM], x[MAX_DIM], length;

	memcpy(y, g->centre + (size_t) c * GLOBAL_DIM, sizeof(y));
	for (uint32_t i = 0; i < LOCAL_DIM; i++)
	{
		double z = gaussian(&random);

		for (uint32_t d = 0; d < GLOBAL_DIM; d++)
			y[d] += z * local[i * GLOBAL_DIM + d];
	}
	for (uint32_t d = 0; d < g->dim; d++)
		x[d] = rough_gaussian(&random) * noise;
	for (uint32_t i = 0; i < GLOBAL_DIM; i++)
		for (uint32_t d = 0; d < g->dim; d++)
			x[d] += y[i] * g->basis[(size_t) i * g->dim + d];
	length = sqrt(dot(x, x, g->dim));
	for (uint32_t d = 0; d < g->dim; d++)
		out[d] = (float) (x[d] / length);
}
