/*
 * gspace.c
 *		Mapping of rows and queries into graph space.
 *
 * Arithmetic is done in double and rounded to float once an element.
 */
#include "gspace.h"

#include <math.h>
#include <string.h>

#include "util.h"

/*
 * Typical rows are scaled to elements of about 1 (root mean square), which
 * suits squares in float as well as members kept as IEEE halves.  A float
 * holds powers of two between these as normal numbers.
 */
#define MAX_SCALE_EXPONENT 126

/*
 * A longer row or query is shortened to this norm: the sum of two such vectors
 * squared, 2^122, is still far from the largest float, 2^128.  What is so far
 * out stays far out; distances between two such rows are lost.
 */
#define MAX_SCALED_NORM 0x1p60

uint32_t
nv_gspace_dim(nv_metric metric, uint32_t dim)
{
	return metric == NV_METRIC_IP ? dim + 1 : dim;
}

/*
 * A power of two that brings the geometric mean of the rows' norms to
 * sqrt(dim).  Not the largest norm: one outlier would drown all others.
 */
static float
learn_scale(double sum_log2, uint64_t counted, uint32_t dim)
{
	double exponent;

	if (counted == 0)
		return 1;
	exponent = round(0.5 * log2(dim) - sum_log2 / (double) counted);
	exponent = NV_MAX(exponent, -MAX_SCALE_EXPONENT);
	exponent = NV_MIN(exponent, MAX_SCALE_EXPONENT);
	return ldexpf(1, (int) exponent);
}

void
nv_gspace_learn(nv_gspace *gs, nv_metric metric, uint32_t dim,
				const float *rows, size_t stride, uint64_t n)
{
	double sum_log2 = 0, max_norm = 0;
	uint64_t counted = 0;

	memset(gs, 0, sizeof(*gs));
	gs->metric = metric;
	gs->dim = dim;
	gs->gdim = nv_gspace_dim(metric, dim);
	gs->scale = 1;
	if (metric == NV_METRIC_COSINE)
		return;
	for (uint64_t i = 0; i < n; i++)
	{
		double norm = nv_norm(rows + i * stride, dim);

		if (norm == 0)
			continue;
		sum_log2 += log2(norm);
		counted++;
		max_norm = NV_MAX(max_norm, norm);
	}
	gs->scale = learn_scale(sum_log2, counted, dim);
	if (metric == NV_METRIC_IP)
	{
		double scaled = NV_MIN(max_norm * gs->scale, MAX_SCALED_NORM);

		/* Without a row that tells, any M orders queries alike. */
		gs->max_norm = counted == 0 ? 1 : (float) scaled;
	}
}

/* out = in * factor */
static void
multiply(const nv_gspace *gs, const float *in, double factor, float *out)
{
	for (uint32_t i = 0; i < gs->dim; i++)
	{
		float value;

		memcpy(&value, (const char *) in + i * sizeof(value), sizeof(value));
		value = (float) (value * factor);
		memcpy((char *) out + i * sizeof(value), &value, sizeof(value));
	}
}

/* gs->scale, or less for a vector that would get too long. */
static double
bounded_scale(const nv_gspace *gs, double norm)
{
	return norm * gs->scale > MAX_SCALED_NORM ? MAX_SCALED_NORM / norm
											  : gs->scale;
}

/*
 * By float arithmetic alone the row is clearly not too long: what underflows
 * in the sum of squares is less than NV_MAX_DIM * 2^-149, and scaled less than
 * 2^118.  False for a sum that overflows, too.
 */
static bool
is_short(const nv_gspace *gs, const float *in)
{
	double scaled =
		(double) nv_dot(in, in, gs->dim) * ((double) gs->scale * gs->scale);

	return scaled < MAX_SCALED_NORM * MAX_SCALED_NORM / 4;
}

/* A product is rounded once, as it is on the way through double. */
static void
scale_row(const nv_gspace *gs, const float *in, float *out)
{
	for (uint32_t i = 0; i < gs->dim; i++)
	{
		float value;

		memcpy(&value, (const char *) in + i * sizeof(value), sizeof(value));
		out[i] = value * gs->scale;
	}
}

void
nv_gspace_row(const nv_gspace *gs, const float *in, float *out)
{
	double norm, factor;

	if (gs->metric == NV_METRIC_L2 && is_short(gs, in))
	{
		scale_row(gs, in, out);
		return;
	}
	norm = nv_norm(in, gs->dim);
	factor = bounded_scale(gs, norm);
	if (gs->metric == NV_METRIC_COSINE)
		factor = norm > 0 ? 1 / norm : 0;
	multiply(gs, in, factor, out);
	if (gs->metric == NV_METRIC_IP)
	{
		double longest = gs->max_norm, scaled = norm * factor;
		double rest = (longest - scaled) * (longest + scaled);

		out[gs->dim] = rest > 0 ? (float) sqrt(rest) : 0;
	}
}

void
nv_gspace_query(const nv_gspace *gs, const float *in, float *out)
{
	double norm = nv_norm(in, gs->dim);
	double factor = bounded_scale(gs, norm);

	if (gs->metric == NV_METRIC_COSINE)
		factor = norm > 0 ? 1 / norm : 0;
	else if (gs->metric == NV_METRIC_IP)
		factor = norm > 0 ? gs->max_norm / norm : 0;
	multiply(gs, in, factor, out);
	if (gs->metric == NV_METRIC_IP)
		out[gs->dim] = 0;
}
