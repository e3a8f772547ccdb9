/*
 * test_gspace.c
 *		Squared distance in graph space must order rows as the metric does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "gspace.h"
#include "util.h"

#define ROWS 300
#define QUERIES 6
#define MAX_TEST_DIM 65

static const nv_metric metrics[] = {NV_METRIC_L2, NV_METRIC_IP,
									NV_METRIC_COSINE};

/* Sum of a few uniform values: near enough to normal. */
static double
random_normal(uint64_t *seed)
{
	double sum = 0;

	for (int i = 0; i < 6; i++)
		sum += (double) (nv_random(seed) >> 11) * 0x1p-53 - 0.5;
	return sum;
}

/* Rows whose norms differ by factors, off the origin, times scale. */
static void
make_rows(float *rows, uint64_t n, size_t stride, uint32_t dim, double scale,
		  uint64_t *seed)
{
	for (uint64_t i = 0; i < n; i++)
	{
		double length = scale * exp(random_normal(seed));

		for (uint32_t j = 0; j < dim; j++)
			rows[i * stride + j] =
				(float) (length * (random_normal(seed) + 0.3));
	}
}

/* In double, so that only the mapping's own rounding is tested. */
static double
graph_distance(const float *a, const float *b, uint32_t gdim)
{
	double sum = 0;

	for (uint32_t i = 0; i < gdim; i++)
	{
		double diff = (double) a[i] - b[i];

		sum += diff * diff;
	}
	return sum;
}

/* What differences of the metric are measured in. */
static double
unit(nv_metric metric, const float *query, const float *a, const float *b,
	 uint32_t dim)
{
	double longest = NV_MAX(nv_norm(a, dim), nv_norm(b, dim));
	double q = nv_norm(query, dim);

	switch (metric)
	{
		case NV_METRIC_L2:
			return NV_MAX(longest, q);
		case NV_METRIC_IP:
			return longest * q;
		default:
			return 1;
	}
}

/*
 * Rows the metric tells apart by more than rounding can blur must be ordered
 * alike in graph space.  Returns the number of pairs compared.
 */
static uint64_t
compare_orders(const nv_gspace *gs, const float *query, const float *rows,
			   size_t stride, const float *mapped, double resolution)
{
	float q[MAX_TEST_DIM + 1];
	nv_metric metric = (nv_metric) gs->metric;
	uint64_t compared = 0;

	nv_gspace_query(gs, query, q);
	for (uint32_t i = 1; i < ROWS; i++)
	{
		const float *a = rows + (i - 1) * stride, *b = rows + i * stride;
		double exact = nv_distance(metric, query, a, gs->dim) -
					   nv_distance(metric, query, b, gs->dim);
		double graph =
			graph_distance(q, mapped + (i - 1) * gs->gdim, gs->gdim) -
			graph_distance(q, mapped + i * gs->gdim, gs->gdim);

		if (fabs(exact) < resolution * unit(metric, query, a, b, gs->dim))
			continue;
		compared++;
		assert_true((exact > 0) == (graph > 0));
	}
	return compared;
}

static void
check_order(nv_metric metric, uint32_t dim, double row_scale,
			double query_scale)
{
	size_t stride = dim + 3;
	uint64_t seed = nv_random_seed(dim * 10 + (uint32_t) metric);
	float *rows = nv_alloc_array(ROWS * stride, sizeof(float));
	float *mapped = nv_alloc_array(ROWS * (dim + 1), sizeof(float));
	float query[MAX_TEST_DIM];
	uint64_t compared = 0;
	nv_gspace gs;

	assert_non_null(rows);
	assert_non_null(mapped);
	make_rows(rows, ROWS, stride, dim, row_scale, &seed);
	nv_gspace_learn(&gs, metric, dim, rows, stride, ROWS);
	assert_int_equal(gs.dim, dim);
	assert_int_equal(gs.gdim, nv_gspace_dim(metric, dim));
	assert_true(frexpf(gs.scale, &(int){0}) == 0.5f); /* a power of two */
	for (uint32_t i = 0; i < ROWS; i++)
	{
		float *out = mapped + (size_t) i * gs.gdim;

		nv_gspace_row(&gs, rows + i * stride, out);
		/* Nothing a float kernel computes in graph space may overflow. */
		assert_true(isfinite(nv_l2sq(out, mapped, gs.gdim)));
	}
	for (int i = 0; i < QUERIES; i++)
	{
		make_rows(query, 1, dim, dim, query_scale, &seed);
		compared += compare_orders(&gs, query, rows, stride, mapped, 1e-5);
	}
	assert_true(compared > ROWS * QUERIES * (dim == 1 ? 0 : 8) / 10);
	free(rows);
	free(mapped);
}

static void
test_order(void **state)
{
	static const double scales[] = {1,    1e-3,  1e6,   1e18, 1e30,
									1e36, 1e-18, 1e-30, 1e-36};
	static const uint32_t dims[] = {2, 3, 10, 64};

	for (size_t m = 0; m < NV_LENGTH(metrics); m++)
	{
		for (size_t d = 0; d < NV_LENGTH(dims); d++)
		{
			for (size_t s = 0; s < NV_LENGTH(scales); s++)
				check_order(metrics[m], dims[d], scales[s], scales[s]);
		}
	}
}

/* The length of the query says nothing under cosine and inner product. */
static void
test_query_length(void **state)
{
	check_order(NV_METRIC_IP, 16, 1, 1e-30);
	check_order(NV_METRIC_IP, 16, 1, 1e30);
	check_order(NV_METRIC_IP, 16, 1e-20, 1e10);
	check_order(NV_METRIC_COSINE, 16, 1e-30, 1e30);
	check_order(NV_METRIC_COSINE, 16, 1e30, 1e-35);
	check_order(NV_METRIC_L2, 16, 1, 10);
}

/* One row far out must not drown the differences of all others. */
static void
test_outlier(void **state)
{
	float rows[ROWS * 8], a[8], b[8];
	uint64_t seed = nv_random_seed(5);
	nv_gspace gs;
	double exact, graph;

	make_rows(rows, ROWS, 8, 8, 1e-3, &seed);
	for (int j = 0; j < 8; j++)
		rows[j] = 3e38f;
	nv_gspace_learn(&gs, NV_METRIC_L2, 8, rows, 8, ROWS);
	nv_gspace_row(&gs, rows + 8, a);
	nv_gspace_row(&gs, rows + 16, b);
	exact = nv_distance(NV_METRIC_L2, rows + 8, rows + 16, 8);
	graph = sqrt(nv_l2sq(a, b, 8)) / gs.scale;
	assert_true(fabs(graph - exact) < 1e-5 * exact);
	/* And the one far out is still the farthest. */
	nv_gspace_row(&gs, rows, b);
	assert_true(isfinite(nv_l2sq(a, b, 8)));
	assert_true(nv_l2sq(a, b, 8) > 1e20f);
}

/* Later rows and queries may be of any size: finite, and far is far. */
static void
test_later_rows(void **state)
{
	float rows[ROWS * 8], far[8], zero[8] = {0}, out[9], q[9], near[9];
	uint64_t seed = nv_random_seed(6);
	nv_gspace gs;

	make_rows(rows, ROWS, 8, 8, 1e-30, &seed);
	for (int j = 0; j < 8; j++)
		far[j] = FLT_MAX;
	for (size_t m = 0; m < NV_LENGTH(metrics); m++)
	{
		nv_gspace_learn(&gs, metrics[m], 8, rows, 8, ROWS);
		nv_gspace_row(&gs, far, out);
		nv_gspace_query(&gs, rows, q);
		nv_gspace_row(&gs, rows, near);
		assert_true(isfinite(nv_l2sq(out, q, gs.gdim)));
		if (metrics[m] == NV_METRIC_L2)
			assert_true(nv_l2sq(out, q, gs.gdim) >
						1e6f * nv_l2sq(near, q, gs.gdim));
		if (metrics[m] == NV_METRIC_IP)
			assert_true(out[8] == 0);
		nv_gspace_query(&gs, far, q);
		assert_true(isfinite(nv_l2sq(out, q, gs.gdim)));
		nv_gspace_row(&gs, zero, out);
		nv_gspace_query(&gs, zero, q);
		assert_true(isfinite(nv_l2sq(out, q, gs.gdim)));
	}
}

/* Inner product: all rows lie on a sphere of radius M, so does the query. */
static void
test_sphere(void **state)
{
	float rows[ROWS * 8], out[9], query[8];
	uint64_t seed = nv_random_seed(7);
	nv_gspace gs;

	make_rows(rows, ROWS, 8, 8, 100, &seed);
	make_rows(query, 1, 8, 8, 1, &seed);
	nv_gspace_learn(&gs, NV_METRIC_IP, 8, rows, 8, ROWS);
	for (int i = 0; i < ROWS; i++)
	{
		nv_gspace_row(&gs, rows + i * 8, out);
		assert_true(out[8] >= 0);
		assert_true(fabs(nv_norm(out, 9) / gs.max_norm - 1) < 1e-6);
	}
	nv_gspace_query(&gs, query, out);
	assert_true(out[8] == 0);
	assert_true(fabs(nv_norm(out, 9) / gs.max_norm - 1) < 1e-6);
}

static void
test_in_place(void **state)
{
	float in[9], copy[8], out[9];
	uint64_t seed = nv_random_seed(8);
	nv_gspace gs;

	for (size_t m = 0; m < NV_LENGTH(metrics); m++)
	{
		make_rows(in, 1, 8, 8, 5, &seed);
		memcpy(copy, in, sizeof(copy));
		nv_gspace_learn(&gs, metrics[m], 8, in, 8, 1);
		nv_gspace_row(&gs, in, out);
		nv_gspace_row(&gs, in, in);
		assert_memory_equal(in, out, gs.gdim * sizeof(float));
		memcpy(in, copy, sizeof(copy));
		nv_gspace_query(&gs, in, out);
		nv_gspace_query(&gs, in, in);
		assert_memory_equal(in, out, gs.gdim * sizeof(float));
	}
}

/* Euclidean: rows and queries are mapped alike, however long they are. */
static void
test_alike(void **state)
{
	float rows[16 * 37], row[37], query[37];
	uint64_t seed = nv_random_seed(11);
	nv_gspace gs;

	for (int learnt = -120; learnt <= 120; learnt += 24)
	{
		make_rows(rows, 16, 37, 37, ldexp(1, learnt), &seed);
		nv_gspace_learn(&gs, NV_METRIC_L2, 37, rows, 37, 16);
		for (int exponent = -126; exponent <= 126; exponent++)
		{
			make_rows(rows, 1, 37, 37, ldexp(1, exponent), &seed);
			nv_gspace_row(&gs, rows, row);
			nv_gspace_query(&gs, rows, query);
			assert_memory_equal(row, query, sizeof(row));
		}
	}
}

/* Nothing to learn from: no rows, or zero vectors only. */
static void
test_nothing_learnt(void **state)
{
	float zero[16] = {0}, row[8], out[9], q[9];
	uint64_t seed = nv_random_seed(9);
	nv_gspace gs;

	make_rows(row, 1, 8, 8, 1, &seed);
	for (size_t m = 0; m < NV_LENGTH(metrics); m++)
	{
		for (uint64_t n = 0; n <= 2; n += 2)
		{
			nv_gspace_learn(&gs, metrics[m], 8, zero, 8, n);
			assert_true(gs.scale == 1);
			nv_gspace_row(&gs, row, out);
			nv_gspace_query(&gs, row, q);
			assert_true(isfinite(nv_l2sq(out, q, gs.gdim)));
			assert_true(nv_norm(q, gs.gdim) > 0);
		}
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_query_length),
		cmocka_unit_test(test_outlier),
		cmocka_unit_test(test_later_rows),
		cmocka_unit_test(test_sphere),
		cmocka_unit_test(test_in_place),
		cmocka_unit_test(test_alike),
		cmocka_unit_test(test_nothing_learnt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
