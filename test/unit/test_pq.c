/*
 * test_pq.c
 *		Product quantization: kernels, k-means, codes, training, the choice.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "blas.h"
#include "kmeans.h"
#include "navis/distance.h"
#include "parallel.h"
#include "pq_internal.h"
#include "pq_kernel.h"
#include "pq_recall.h"
#include "util.h"

#define SMALL_ROWS                                                             \
	1100 /* hardly more than NV_PQ_MIN_ROWS: sanitizers are slow */

/* Roughly normal, from a seeded sequence. */
static float
noise(uint64_t *random)
{
	double sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (double) (nv_random(random) >> 40) * 0x1p-24;
	return (float) ((sum - 2) * 1.7320508);
}

/* Rows about five centres; a dimension's spread falls slowly. */
static float *
make_rows(uint64_t n, uint32_t gdim, uint64_t seed)
{
	enum
	{
		centres = 5
	};
	uint64_t random = nv_random_seed(seed);
	float *centre = nv_alloc_array((size_t) centres * gdim, sizeof(float));
	float *rows = nv_alloc_array(n * gdim, sizeof(float));

	assert_non_null(centre);
	assert_non_null(rows);
	for (size_t i = 0; i < (size_t) centres * gdim; i++)
		centre[i] = noise(&random);
	for (uint64_t i = 0; i < n; i++)
	{
		const float *c = centre + nv_random_below(&random, centres) * gdim;

		for (uint32_t k = 0; k < gdim; k++)
			rows[i * gdim + k] = c[k] + noise(&random) / (1 + 0.05f * k);
	}
	free(centre);
	return rows;
}

/* Rows of a few hidden dimensions, mixed into all, plus a little noise. */
static float *
make_flat_rows(uint64_t n, uint32_t gdim, uint32_t hidden)
{
	uint64_t random = nv_random_seed(77);
	float *mix = nv_alloc_array((size_t) hidden * gdim, sizeof(float));
	float *rows = nv_alloc_array(n * gdim, sizeof(float));

	assert_non_null(mix);
	assert_non_null(rows);
	for (size_t i = 0; i < (size_t) hidden * gdim; i++)
		mix[i] = noise(&random);
	for (uint64_t i = 0; i < n; i++)
	{
		float *row = rows + i * gdim;

		for (uint32_t h = 0; h < hidden; h++)
		{
			float x = noise(&random);

			for (uint32_t k = 0; k < gdim; k++)
				row[k] += x * mix[(size_t) h * gdim + k];
		}
		for (uint32_t k = 0; k < gdim; k++)
			row[k] += 0.01f * noise(&random);
	}
	free(mix);
	return rows;
}

static nv_pq *
train(const float *rows, size_t stride, uint64_t n, uint32_t gdim,
	  nv_pq_params params, nv_pq_report *report)
{
	nv_error err = {0};
	nv_pq_report unused;
	nv_pq *pq = NULL;

	params.seed = params.seed == 0 ? 1 : params.seed;
	params.threads = params.threads == 0 ? 2 : params.threads;
	if (nv_pq_train(&params, rows, stride, n, gdim, &pq,
					report == NULL ? &unused : report, &err) != NV_OK)
		fail_msg("%s", err.detail);
	return pq;
}

static uint8_t *
encode_all(const nv_pq *pq, const float *rows, uint64_t n, uint32_t threads)
{
	uint8_t *codes = nv_alloc_array(n, nv_pq_stride(pq));

	assert_non_null(codes);
	assert_int_equal(nv_pq_encode_many(pq, rows, nv_pq_gdim(pq), n, codes,
									   threads, NULL, NULL, NULL),
					 NV_OK);
	return codes;
}

static double
square_distance(const float *a, const float *b, uint32_t dim)
{
	double sum = 0;

	for (uint32_t k = 0; k < dim; k++)
		sum += ((double) a[k] - b[k]) * ((double) a[k] - b[k]);
	return sum;
}

/* Mean squared distance of rows to their decoded codes. */
static double
distortion(const nv_pq *pq, const float *rows, uint64_t n)
{
	uint32_t gdim = nv_pq_gdim(pq);
	uint8_t *codes = encode_all(pq, rows, n, 2);
	float *decoded = nv_alloc_array(gdim, sizeof(float));
	double sum = 0;

	for (uint64_t i = 0; i < n; i++)
	{
		nv_pq_decode(pq, codes + i * nv_pq_stride(pq), decoded);
		sum += square_distance(rows + i * gdim, decoded, gdim);
	}
	free(decoded);
	free(codes);
	return sum / (double) n;
}

/* Codes are as far apart as integers as they are as floats. */
static void
assert_places_agree(const nv_pq *pq, const uint8_t *a, const uint8_t *b)
{
	uint32_t gdim = nv_pq_gdim(pq);
	float *x = nv_alloc_array(gdim, sizeof(*x));
	float *y = nv_alloc_array(gdim, sizeof(*y));
	int16_t *p = nv_alloc_array(gdim, sizeof(*p));
	int16_t *q = nv_alloc_array(gdim, sizeof(*q));
	double found, expected;

	nv_pq_decode_projected(pq, a, x);
	nv_pq_decode_projected(pq, b, y);
	nv_pq_decode_short(pq, a, p);
	nv_pq_decode_short(pq, b, q);
	expected = sqrt(square_distance(x, y, gdim));
	found = sqrt(pq->short_unit * nv_l2sq_short(p, q, gdim));
	/* Each coordinate is rounded by half a step. */
	assert_true(fabs(found - expected) <=
				sqrt(pq->short_unit * gdim) + 1e-6 * expected);
	free(x);
	free(y);
	free(p);
	free(q);
}

static void
assert_single_equals_many(const nv_pq *pq, const float *rows, uint64_t n)
{
	uint8_t *codes = encode_all(pq, rows, n, 2);
	uint8_t one[NV_PQ_MAX_BYTES];

	for (uint64_t i = 0; i < n; i++)
	{
		nv_pq_encode(pq, rows + i * nv_pq_gdim(pq), one);
		assert_memory_equal(one, codes + i * nv_pq_stride(pq),
							nv_pq_stride(pq));
		assert_places_agree(pq, one, codes + i / 2 * nv_pq_stride(pq));
	}
	free(codes);
}

/* The ADC distance is the exact distance to the decoded row. */
static void
assert_adc_exact(const nv_pq *pq, const float *rows, uint64_t n)
{
	uint32_t gdim = nv_pq_gdim(pq);
	uint8_t *codes = encode_all(pq, rows, n, 1);
	float *table = nv_alloc_array(nv_pq_table_size(pq), sizeof(float));
	float *decoded = nv_alloc_array(gdim, sizeof(float));
	double slack = 1e-3;

	nv_pq_table(pq, rows + (n - 1) * gdim, table);
	/* A rotation of elements of 16 bits does not keep lengths quite. */
	for (uint32_t i = 0; i < gdim && nv_pq_rotated(pq); i++)
		slack += pow((double) rows[(n - 1) * gdim + i], 2);
	for (uint64_t i = 0; i < n; i++)
	{
		const uint8_t *code = codes + i * nv_pq_stride(pq);
		double expected;
		float adc;

		nv_adc_scan(table, nv_pq_bytes(pq), &code, 1, &adc);
		nv_pq_decode(pq, code, decoded);
		expected = square_distance(rows + (n - 1) * gdim, decoded, gdim);
		assert_true(fabs(adc - expected) <= 1e-4 * (slack + expected));
	}
	free(decoded);
	free(table);
	free(codes);
}

static uint8_t *
saved(const nv_pq *pq)
{
	uint8_t *out = nv_alloc(nv_pq_saved_size(pq));

	assert_non_null(out);
	nv_pq_save(pq, out);
	return out;
}

/* ---------------------------------------------------------------------
 * What training stands on
 * ---------------------------------------------------------------------
 */

static void
count_step(void *arg, uint32_t worker, uint64_t step)
{
	atomic_uint *seen = arg;

	if (worker < 4)
		atomic_fetch_add(&seen[step], 1);
}

static bool
stop_after(void *arg)
{
	int *left = arg;

	return (*left)-- <= 0;
}

static void
parallel_does_each_step_once(void **state)
{
	atomic_uint seen[1000] = {0};
	int left = 0;

	assert_int_equal(
		nv_parallel_run(4, 1000, count_step, seen, NULL, NULL, NULL), NV_OK);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(seen[i], 1);
	assert_int_equal(nv_parallel_run(4, 0, count_step, seen, NULL, NULL, NULL),
					 NV_OK);
	assert_int_equal(
		nv_parallel_run(1, 5, count_step, seen, stop_after, &left, NULL),
		NV_ECANCELLED);
	assert_int_equal(seen[0], 1);
}

static void
blas_products_and_eigenvectors(void **state)
{
	float a[] = {1, 2, 3, 4, 5, 6};
	float b[] = {1, 0, -1, 2, 2, 2};
	float out[4];
	float gram[9] = {0};
	float symmetric[] = {2, 0, 1, 2}; /* lower triangle of 2 1 / 1 2 */
	float values[2];
	nv_error err;

	assert_int_equal(nv_blas_load(&err), NV_OK);
	assert_int_equal(nv_blas_load(NULL), NV_OK);
	nv_blas_product(a, 3, 2, b, 3, 2, 3, out, 2);
	assert_float_equal(out[0], -2, 1e-6);
	assert_float_equal(out[1], 12, 1e-6);
	assert_float_equal(out[2], -2, 1e-6);
	assert_float_equal(out[3], 30, 1e-6);
	nv_blas_add_gram(a, 2, 3, gram);
	assert_float_equal(gram[0], 17, 1e-6);
	assert_float_equal(gram[3], 22, 1e-6);
	assert_float_equal(gram[8], 45, 1e-6);
	assert_int_equal(nv_blas_eigen(symmetric, 2, values, &err), NV_OK);
	assert_float_equal(values[0], 1, 1e-6);
	assert_float_equal(values[1], 3, 1e-6);
	assert_float_equal(fabsf(symmetric[2]), sqrtf(0.5f), 1e-6);
	assert_float_equal(symmetric[2], symmetric[3], 1e-6);
}

/* Kernels against double arithmetic; the chosen column may only be tied. */
static void
check_kernels(uint32_t depth)
{
	enum
	{
		rows = 7
	};
	uint64_t random = nv_random_seed(depth);
	float *x = nv_alloc_array((size_t) rows * depth, sizeof(float));
	float *columns = nv_alloc_array((size_t) 256 * depth, sizeof(float));
	float *panels = nv_alloc_array(nv_panel_size(depth, 256), sizeof(float));
	int16_t *shorts = nv_alloc_array(nv_panel_size(depth, 256), 2);
	float half[256], dist[256], product[rows][256], by_shorts[256];
	uint8_t code[rows], least;
	uint8_t one;

	for (size_t i = 0; i < (size_t) rows * depth; i++)
		x[i] = noise(&random);
	/* Multiples of a step, which shortening leaves as they are. */
	for (size_t i = 0; i < (size_t) 256 * depth; i++)
		columns[i] =
			rintf(fmaxf(-1, fminf(noise(&random), 1)) * 32767) * NV_SHORT_STEP;
	nv_panel_pack(columns, 256, depth, panels);
	nv_panel_shorten(panels, nv_panel_size(depth, 256), shorts);
	nv_panel_half_norms(panels, depth, half);
	nv_panel_nearest(x, depth, rows, depth, panels, half, code, 1, NULL);
	nv_panel_multiply(x, depth, rows, depth, panels, 250, product[0], 256);
	for (uint32_t i = 0; i < rows; i++)
	{
		const float *row = x + (size_t) i * depth;
		double best = INFINITY;

		nv_panel_multiply_short(row, depth, shorts, 250, by_shorts);
		assert_memory_equal(by_shorts, product[i], 250 * sizeof(float));
		nv_panel_distances(row, depth, panels, dist);
		assert_true(nv_panel_least(dist, &least) == dist[least]);
		for (uint32_t c = 0; c < 256; c++)
			assert_true(c < least ? dist[c] > dist[least]
								  : dist[c] >= dist[least]);
		for (uint32_t c = 0; c < 256; c++)
		{
			const float *column = columns + (size_t) c * depth;
			double d = square_distance(row, column, depth);
			double dot = 0;

			for (uint32_t k = 0; k < depth; k++)
				dot += (double) row[k] * column[k];
			best = NV_MIN(best, d);
			assert_true(fabs(dist[c] - d) <= 1e-5 * (d + depth));
			if (c < 250)
				assert_true(fabs(product[i][c] - dot) <= 1e-5 * depth * 8);
		}
		assert_true(square_distance(row, columns + (size_t) code[i] * depth,
									depth) <= best + 1e-5 * depth);
		nv_panel_nearest(row, depth, 1, depth, panels, half, &one, 1, NULL);
		assert_int_equal(one, code[i]);
	}
	free(shorts);
	free(panels);
	free(columns);
	free(x);
}

/* Of equal columns the first is taken, wherever in a vector they stand. */
static void
check_ties(void)
{
	float columns[256], panels[256], half[256];
	float x[5] = {1, 1, 1, 1, 1};
	uint8_t code[5];

	for (int first = 0; first < 256; first += 5)
	{
		for (int c = 0; c < 256; c++)
			columns[c] = c < first ? 9 : 1;
		nv_panel_pack(columns, 256, 1, panels);
		nv_panel_half_norms(panels, 1, half);
		nv_panel_nearest(x, 1, 5, 1, panels, half, code, 1, NULL);
		for (int i = 0; i < 5; i++)
			assert_int_equal(code[i], first);
	}
}

static void
kernels_agree_with_plain_arithmetic(void **state)
{
	static const uint32_t depths[] = {1, 2, 3, 7, 16, 33, 100};
	nv_simd usual = nv_simd_in_use();

	for (int simd = NV_SIMD_SCALAR; simd <= NV_SIMD_NEON; simd++)
	{
		if (!nv_simd_force((nv_simd) simd))
			continue;
		for (size_t i = 0; i < NV_LENGTH(depths); i++)
			check_kernels(depths[i]);
		check_ties();
	}
	assert_true(nv_simd_force(usual));
}

static double
cluster(const float *rows, uint32_t n, uint32_t dim, float *centroids)
{
	void *scratch = nv_alloc(nv_kmeans_scratch_size(n, dim));
	double mean;

	assert_non_null(scratch);
	mean = nv_kmeans(rows, n, dim, 5, scratch, centroids);
	free(scratch);
	return mean;
}

/* Well separated places are all found: seeding and re-seeding at work. */
static void
kmeans_finds_separate_places(void **state)
{
	enum
	{
		n = 5000
	};
	static float rows[n][2];
	float centroids[512];
	uint64_t random = nv_random_seed(1);

	for (int i = 0; i < n; i++)
	{
		uint64_t place = i < 256 ? (uint64_t) i : nv_random_below(&random, 256);

		rows[i][0] = (float) (place % 16) * 10 + 0.01f * noise(&random);
		rows[i][1] = (float) (place / 16) * 10 + 0.01f * noise(&random);
	}
	assert_true(cluster(rows[0], n, 2, centroids) < 0.001);
}

/*
 * Seeding looks at every other of these rows and sees 200 places; the 50 of the
 * others are only reached by moving centroids that have no rows.
 */
static void
kmeans_moves_empty_clusters(void **state)
{
	enum
	{
		n = 8192
	};
	static float rows[n];
	float centroids[256];

	for (int i = 0; i < n; i++)
		rows[i] = (float) (i % 2 == 0 ? i / 2 % 200 : 1000 + i / 2 % 50);
	assert_true(cluster(rows, n, 1, centroids) == 0);
}

static void
kmeans_of_few_distinct_rows(void **state)
{
	float rows[600];
	float centroids[256];

	for (int i = 0; i < 600; i++)
		rows[i] = (float) (i % 7);
	assert_true(cluster(rows, 600, 1, centroids) == 0);
	for (int v = 0; v < 7; v++)
	{
		int c = 0;

		while (c < 256 && centroids[c] != (float) v)
			c++;
		assert_true(c < 256);
	}
	assert_true(cluster(rows, 1, 1, centroids) == 0);
	assert_true(centroids[0] == 0 && centroids[255] == 0);
}

/* ---------------------------------------------------------------------
 * Codes
 * ---------------------------------------------------------------------
 */

static void
any_number_of_dimensions(void **state)
{
	static const uint32_t dims[] = {1, 2, 3, 31, 33, 100, 101};

	for (size_t i = 0; i < NV_LENGTH(dims); i++)
	{
		uint32_t gdim = dims[i];
		float *rows = make_rows(SMALL_ROWS, gdim, gdim);
		nv_pq_report report;
		nv_pq *pq =
			train(rows, gdim, SMALL_ROWS, gdim, (nv_pq_params){0}, &report);

		assert_int_equal(nv_pq_gdim(pq), gdim);
		assert_int_equal(report.bytes, nv_pq_bytes(pq));
		assert_int_equal(nv_pq_stride(pq), (report.bytes + 3) / 4 * 4);
		assert_int_equal(report.scanned, SMALL_ROWS);
		assert_float_equal(report.recall_asked, NV_PQ_RECALL, 1e-9);
		if (gdim < 32)
			assert_int_equal(report.bytes, gdim);
		assert_true(report.bytes <= gdim);
		assert_false(report.rotated);
		assert_single_equals_many(pq, rows, 301);
		assert_adc_exact(pq, rows, 200);
		nv_pq_free(pq);
		free(rows);
	}
}

static void
chunks_of_uneven_dimensions(void **state)
{
	nv_pq *pq;

	assert_int_equal(nv_pq_create(101, 32, &pq, NULL), NV_OK);
	for (uint32_t c = 0; c < 32; c++)
		assert_int_equal(nv_pq_chunk_dims(pq, c), c < 101 % 32 ? 4 : 3);
	assert_int_equal(pq->start[0], 0);
	assert_int_equal(pq->start[32], 101);
	nv_pq_free(pq);
}

static void
more_bytes_less_error(void **state)
{
	static const uint32_t bytes[] = {1, 4, 9, 16, 32};
	float *rows = make_rows(SMALL_ROWS, 32, 9);
	double before = INFINITY;

	for (size_t i = 0; i < NV_LENGTH(bytes); i++)
	{
		nv_pq_report report;
		nv_pq *pq = train(rows, 32, SMALL_ROWS, 32,
						  (nv_pq_params){.bytes = bytes[i]}, &report);
		double error = distortion(pq, rows, SMALL_ROWS);

		assert_int_equal(nv_pq_bytes(pq), bytes[i]);
		assert_float_equal(report.recall_asked, 0, 0);
		assert_true(error < 0.9 * before);
		before = error;
		nv_pq_free(pq);
	}
	assert_true(before < 0.05);
	free(rows);
}

/* A centroid is the middle of its rows, so no other code decodes nearer. */
static void
code_is_the_nearest(void **state)
{
	float *rows = make_rows(SMALL_ROWS, 12, 3);
	nv_pq *pq =
		train(rows, 12, SMALL_ROWS, 12, (nv_pq_params){.bytes = 4}, NULL);
	float decoded[12];
	uint8_t code[4];

	for (int i = 0; i < 20; i++)
	{
		double best;

		nv_pq_encode(pq, rows + (size_t) i * 12, code);
		nv_pq_decode(pq, code, decoded);
		best = square_distance(rows + (size_t) i * 12, decoded, 12);
		for (int other = 0; other < 1024; other++)
		{
			uint8_t changed[4];

			memcpy(changed, code, 4);
			changed[other / 256] = (uint8_t) other;
			nv_pq_decode(pq, changed, decoded);
			assert_true(square_distance(rows + (size_t) i * 12, decoded, 12) >=
						best - 1e-4);
		}
	}
	nv_pq_free(pq);
	free(rows);
}

/* The given size is cut to the dimensions. */
static void
given_size_is_clamped(void **state)
{
	float *rows = make_rows(SMALL_ROWS, 20, 4);
	nv_pq_report report;
	nv_pq *pq =
		train(rows, 20, SMALL_ROWS, 20, (nv_pq_params){.bytes = 64}, &report);

	assert_int_equal(report.bytes, 20);
	assert_int_equal(nv_pq_bytes(pq), 20);
	nv_pq_free(pq);
	free(rows);
}

static void
duplicates_and_constants(void **state)
{
	enum
	{
		gdim = 24,
		n = 2000,
		distinct = 50
	};
	float *rows = make_rows(n, gdim, 6);
	nv_pq_report report;
	nv_pq *pq;

	for (int i = distinct; i < n; i++)
		memcpy(rows + i * gdim, rows + i % distinct * gdim,
			   gdim * sizeof(float));
	for (int i = 0; i < n; i++)
		rows[i * gdim + 7] = 3.5f;
	pq = train(rows, gdim, n, gdim, (nv_pq_params){.bytes = 8}, &report);
	assert_true(distortion(pq, rows, n) < 1e-6);
	assert_true(report.recall == 1.0);
	assert_single_equals_many(pq, rows, 100);
	nv_pq_free(pq);

	for (int i = 1; i < n; i++)
		memcpy(rows + i * gdim, rows, gdim * sizeof(float));
	pq = train(rows, gdim, n, gdim, (nv_pq_params){0}, &report);
	assert_true(distortion(pq, rows, n) < 1e-9);
	assert_true(report.recall == 1.0);
	nv_pq_free(pq);
	free(rows);
}

/* Far from the origin codes are as good as near it. */
static void
far_from_the_origin(void **state)
{
	float *rows = make_rows(SMALL_ROWS, 40, 8);
	nv_pq_report near;
	nv_pq_report far;
	nv_pq *pq =
		train(rows, 40, SMALL_ROWS, 40, (nv_pq_params){.bytes = 32}, &near);

	nv_pq_free(pq);
	for (size_t i = 0; i < SMALL_ROWS * 40; i++)
		rows[i] += 1000;
	pq = train(rows, 40, SMALL_ROWS, 40, (nv_pq_params){.bytes = 32}, &far);
	nv_pq_free(pq);
	assert_true(fabs(near.recall - far.recall) < 0.03);
	free(rows);
}

static void
equal_for_any_number_of_threads(void **state)
{
	static const uint32_t threads[] = {1, 2, 4};
	float *rows = make_flat_rows(SMALL_ROWS, 130, 30);
	uint8_t *first = NULL;
	uint8_t *first_codes = NULL;

	for (size_t i = 0; i < NV_LENGTH(threads); i++)
	{
		nv_pq *pq =
			train(rows, 130, SMALL_ROWS, 130,
				  (nv_pq_params){.bytes = 32, .threads = threads[i]}, NULL);
		uint8_t *form = saved(pq);
		uint8_t *codes = encode_all(pq, rows, SMALL_ROWS, threads[i]);

		if (i == 0)
		{
			first = form;
			first_codes = codes;
		}
		else
		{
			assert_memory_equal(form, first, nv_pq_saved_size(pq));
			assert_memory_equal(codes, first_codes,
								(size_t) SMALL_ROWS * nv_pq_stride(pq));
			free(form);
			free(codes);
		}
		nv_pq_free(pq);
	}
	free(first_codes);
	free(first);
	free(rows);
}

/* ---------------------------------------------------------------------
 * The rotation and the choice
 * ---------------------------------------------------------------------
 */

static void
assert_orthogonal(const nv_pq *pq)
{
	uint32_t gdim = nv_pq_gdim(pq);
	uint8_t *form = saved(pq);
	size_t floats = (size_t) gdim * gdim;
	float *r = nv_alloc_array(floats, sizeof(float));

	memcpy(r, form + nv_pq_saved_size(pq) - floats * sizeof(float),
		   floats * sizeof(float));
	for (uint32_t a = 0; a < gdim; a++)
		for (uint32_t b = 0; b <= a; b++)
		{
			double sum = 0;

			for (uint32_t k = 0; k < gdim; k++)
				sum += (double) r[(size_t) k * gdim + a] *
					   r[(size_t) k * gdim + b];
			assert_true(fabs(sum - (a == b)) < 1e-4);
		}
	free(r);
	free(form);
}

static void
rotation_where_it_helps(void **state)
{
	enum
	{
		gdim = 130,
		n = SMALL_ROWS
	};
	float *rows = make_flat_rows(n, gdim, 20);
	nv_pq_report turned;
	nv_pq_report plain;
	nv_pq *pq = train(rows, gdim, n, gdim, (nv_pq_params){0}, &turned);

	assert_true(turned.rotated && nv_pq_rotated(pq));
	assert_orthogonal(pq);
	assert_single_equals_many(pq, rows, 300);
	assert_adc_exact(pq, rows, 100);
	nv_pq_free(pq);

	pq =
		train(rows, gdim, n, gdim, (nv_pq_params){.no_rotation = true}, &plain);
	assert_false(plain.rotated || nv_pq_rotated(pq));
	assert_true(turned.bytes < plain.bytes || turned.recall > plain.recall);
	nv_pq_free(pq);
	free(rows);
}

/* Independent dimensions: there is nothing to turn. */
static void
no_rotation_where_it_does_not_help(void **state)
{
	enum
	{
		gdim = 130,
		n = SMALL_ROWS
	};
	uint64_t random = nv_random_seed(3);
	float *rows = nv_alloc_array((size_t) n * gdim, sizeof(float));
	nv_pq_report report;
	nv_pq *pq;

	for (size_t i = 0; i < (size_t) n * gdim; i++)
		rows[i] = noise(&random);
	pq = train(rows, gdim, n, gdim, (nv_pq_params){.bytes = 32}, &report);
	assert_false(report.rotated);
	nv_pq_free(pq);
	free(rows);
}

/* The smallest step whose recall is what is asked: each is tried by hand. */
static void
smallest_sufficient_step(void **state)
{
	static const uint32_t ladder[] = {32, 48, 64};
	float *rows = make_rows(SMALL_ROWS, 70, 5);
	uint32_t expected = 64;
	nv_pq_report report;
	nv_pq *pq = train(rows, 70, SMALL_ROWS, 70, (nv_pq_params){0}, &report);

	nv_pq_free(pq);
	for (size_t i = NV_LENGTH(ladder); i-- > 0;)
	{
		nv_pq_report step;

		pq = train(rows, 70, SMALL_ROWS, 70, (nv_pq_params){.bytes = ladder[i]},
				   &step);
		nv_pq_free(pq);
		if (step.recall >= NV_PQ_RECALL)
			expected = ladder[i];
		if (report.bytes == ladder[i])
			assert_true(report.recall == step.recall);
	}
	/* The data must make it a choice. */
	assert_true(expected > 32 && expected < 64);
	assert_int_equal(report.bytes, expected);
	free(rows);
}

/*
 * Rows that were not scanned raise what is asked.  The rows are windows, one
 * float apart, of one sequence: many rows for little memory.
 */
static void
unseen_rows_ask_for_more(void **state)
{
	enum
	{
		n = 400000,
		gdim = 32
	};
	uint64_t random = nv_random_seed(11);
	float *sequence = nv_alloc_array(n + gdim, sizeof(float));
	nv_pq_report report;
	nv_pq *pq;

	assert_float_equal(nv_pq_recall_asked(1000, 1000), 0.85, 1e-9);
	assert_float_equal(nv_pq_recall_asked(1000000, 100000), 0.91, 1e-9);
	assert_float_equal(nv_pq_recall_asked(10000000, 100000), 0.97, 1e-9);
	for (int i = 0; i < n + gdim; i++)
		sequence[i] = noise(&random);
	pq = train(sequence, 1, n, gdim, (nv_pq_params){0}, &report);
	assert_int_equal(report.scanned, NV_PQ_TRIAL_ROWS);
	assert_float_equal(report.recall_asked,
					   0.85 + 0.06 * log10((double) n / NV_PQ_TRIAL_ROWS),
					   1e-9);
	nv_pq_free(pq);
	free(sequence);
}

/* Share of a query's 10 nearest rows among its 10 nearest by ADC table. */
static double
adc_recall(const nv_pq *pq, const float *rows, uint64_t n, uint64_t query)
{
	uint32_t gdim = nv_pq_gdim(pq);
	uint8_t *codes = encode_all(pq, rows, n, 1);
	float *table = nv_alloc_array(nv_pq_table_size(pq), sizeof(float));
	float *by_code = nv_alloc_array(n, sizeof(float));
	uint32_t found = 0;

	nv_pq_table(pq, rows + query * gdim, table);
	for (uint64_t i = 0; i < n; i++)
	{
		const uint8_t *code = codes + i * nv_pq_stride(pq);

		nv_adc_scan(table, nv_pq_bytes(pq), &code, 1, &by_code[i]);
	}
	for (uint64_t i = 0; i < n; i++)
	{
		double d = square_distance(rows + i * gdim, rows + query * gdim, gdim);
		uint32_t nearer = 0;
		uint32_t nearer_by_code = 0;

		for (uint64_t j = 0; j < n; j++)
			if (j != query)
			{
				nearer += square_distance(rows + j * gdim, rows + query * gdim,
										  gdim) < d;
				nearer_by_code += by_code[j] < by_code[i];
			}
		found += i != query && nearer < 10 && nearer_by_code < 10;
	}
	free(by_code);
	free(table);
	free(codes);
	return found / 10.0;
}

/* A trial's recall is what ADC tables and a full sort say. */
static void
recall_is_measured_right(void **state)
{
	enum
	{
		n = 1024,
		gdim = 16,
		checked = 10
	};
	float *rows = make_rows(n, gdim, 14);
	nv_pq_params params = {.bytes = 3, .seed = 1, .threads = 2};
	nv_pq_trial *trial;
	uint64_t chosen[checked];
	nv_pq *pq = train(rows, gdim, n, gdim, params, NULL);
	double expected = 0;
	double recall;

	assert_int_equal(
		nv_pq_trial_create(&params, rows, gdim, n, gdim, &trial, NULL), NV_OK);
	for (int q = 1; q < NV_PQ_TRIAL_QUERIES; q++)
		assert_true(trial->query_id[q] > trial->query_id[q - 1]);
	/* All queries are made to be one of ten, which is quick to check. */
	memcpy(chosen, trial->query_id, sizeof(chosen));
	for (int q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
		trial->query_id[q] = chosen[q % checked];
	for (int q = 0; q < checked; q++)
		expected += adc_recall(pq, rows, n, chosen[q]);
	assert_int_equal(nv_pq_trial_prepare(trial, NULL), NV_OK);
	assert_int_equal(nv_pq_trial_recall(trial, pq, &recall, NULL), NV_OK);
	assert_true(recall > 0.2 && recall < 1);
	assert_float_equal(recall, expected / checked, 0.011);
	nv_pq_trial_free(trial);
	nv_pq_free(pq);
	free(rows);
}

/* ---------------------------------------------------------------------
 * Errors, cancel, the flat form
 * ---------------------------------------------------------------------
 */

static void
arguments_out_of_range(void **state)
{
	float row[4] = {0};
	nv_pq_params params = {.threads = 1};
	nv_error err;
	nv_pq *pq = NULL;

	assert_int_equal(
		nv_pq_train(&params, row, 0, NV_PQ_MIN_ROWS - 1, 4, &pq, NULL, &err),
		NV_EINVAL);
	assert_non_null(strstr(err.detail, "1023"));
	assert_int_equal(nv_pq_train(&params, row, 0, 2000, 0, &pq, NULL, &err),
					 NV_EINVAL);
	assert_int_equal(
		nv_pq_train(&params, row, 0, 2000, NV_PQ_MAX_GDIM + 1, &pq, NULL, NULL),
		NV_EINVAL);
	params.bytes = NV_PQ_MAX_BYTES + 1;
	assert_int_equal(nv_pq_train(&params, row, 0, 2000, 4, &pq, NULL, &err),
					 NV_EINVAL);
	assert_non_null(strstr(err.detail, "257"));
	assert_null(pq);
}

/* Cancelled wherever it asks, until it asks no more. */
static void
cancel_at_any_step(void **state)
{
	float *rows = make_flat_rows(1100, 130, 20);
	nv_pq_params params = {.threads = 2, .seed = 1, .cancel = stop_after};
	uint8_t *codes;
	nv_pq *pq = NULL;
	int cancelled = 0;
	int left;

	for (int allowed = 0;; allowed = allowed * 2 + 1)
	{
		nv_status status;

		left = allowed;
		params.cancel_arg = &left;
		status = nv_pq_train(&params, rows, 130, 1100, 130, &pq, NULL, NULL);
		if (status == NV_OK)
			break;
		assert_int_equal(status, NV_ECANCELLED);
		assert_null(pq);
		cancelled++;
	}
	assert_true(cancelled >= 3);
	codes = nv_alloc_array(1100, nv_pq_stride(pq));
	left = 1;
	assert_int_equal(nv_pq_encode_many(pq, rows, 130, 1100, codes, 1,
									   stop_after, &left, NULL),
					 NV_ECANCELLED);
	free(codes);
	nv_pq_free(pq);
	free(rows);
}

static void
check_round_trip(const nv_pq *pq, const float *rows)
{
	uint8_t *form = saved(pq);
	size_t size = nv_pq_saved_size(pq);
	nv_pq *loaded = NULL;
	nv_error err = {0};
	uint8_t *again;
	uint8_t *codes;
	uint8_t *loaded_codes;

	if (nv_pq_load(form, size, &loaded, &err) != NV_OK)
		fail_msg("%s", err.detail);
	assert_int_equal(nv_pq_bytes(loaded), nv_pq_bytes(pq));
	assert_int_equal(nv_pq_gdim(loaded), nv_pq_gdim(pq));
	assert_int_equal(nv_pq_rotated(loaded), nv_pq_rotated(pq));
	again = saved(loaded);
	assert_memory_equal(again, form, size);
	codes = encode_all(pq, rows, 300, 1);
	loaded_codes = encode_all(loaded, rows, 300, 1);
	assert_memory_equal(codes, loaded_codes, (size_t) 300 * nv_pq_stride(pq));
	free(loaded_codes);
	free(codes);
	free(again);
	nv_pq_free(loaded);
	free(form);
}

/* Loads form with a 32-bit word at offset replaced; it must be refused. */
static void
assert_refused(const uint8_t *form, size_t size, size_t offset, uint32_t word,
			   nv_status expected)
{
	uint8_t *copy = nv_alloc(size);
	nv_pq *pq = NULL;
	nv_error err = {0};

	memcpy(copy, form, size);
	memcpy(copy + offset, &word, sizeof(word));
	assert_int_equal(nv_pq_load(copy, size, &pq, &err), expected);
	assert_int_equal(err.status, expected);
	assert_null(pq);
	free(copy);
}

/* Exact-size copies, so that ASan sees a read past the end. */
static void
assert_truncations_refused(const uint8_t *form, size_t size)
{
	for (size_t len = 0; len < size; len = len < 64 ? len + 1 : len * 3 / 2)
	{
		uint8_t *copy = malloc(len + (len == 0));
		nv_pq *pq = NULL;

		memcpy(copy, form, len);
		assert_int_equal(nv_pq_load(copy, len, &pq, NULL), NV_ECORRUPT);
		assert_null(pq);
		free(copy);
	}
}

static void
flat_form(void **state)
{
	const uint32_t nan_word = 0x7fc00000;
	float *rows = make_rows(SMALL_ROWS, 37, 2);
	float *flat = make_flat_rows(SMALL_ROWS, 130, 10);
	nv_pq *pq =
		train(rows, 37, SMALL_ROWS, 37, (nv_pq_params){.bytes = 10}, NULL);
	nv_pq *turned =
		train(flat, 130, SMALL_ROWS, 130, (nv_pq_params){.bytes = 32}, NULL);
	uint8_t *form = saved(pq);
	size_t size = nv_pq_saved_size(pq);
	size_t turned_size = nv_pq_saved_size(turned);

	assert_true(nv_pq_rotated(turned));
	check_round_trip(pq, rows);
	check_round_trip(turned, flat);
	assert_truncations_refused(form, size);
	assert_refused(form, size, 0, 1, NV_ECORRUPT); /* magic */
	assert_refused(form, size, 4, 2, NV_EVERSION); /* version */
	assert_refused(form, size, 8, 0, NV_ECORRUPT); /* gdim */
	assert_refused(form, size, 8, 38, NV_ECORRUPT);
	assert_refused(form, size, 8, UINT32_MAX, NV_ECORRUPT);
	assert_refused(form, size, 12, 0, NV_ECORRUPT); /* bytes */
	assert_refused(form, size, 12, 38, NV_ECORRUPT);
	assert_refused(form, size, 16, 1, NV_ECORRUPT); /* flags */
	assert_refused(form, size, 16, 2, NV_ECORRUPT);
	assert_refused(form, size, 20, 1, NV_ECORRUPT);        /* unused */
	assert_refused(form, size, 24, nan_word, NV_ECORRUPT); /* mean */
	assert_refused(form, size, size - 4, nan_word, NV_ECORRUPT);
	free(form);
	form = saved(turned);
	assert_truncations_refused(form, turned_size);
	assert_refused(form, turned_size, 16, 0, NV_ECORRUPT);
	assert_refused(form, turned_size, turned_size - 4, nan_word, NV_ECORRUPT);
	free(form);
	nv_pq_free(turned);
	nv_pq_free(pq);
	nv_pq_free(NULL);
	free(flat);
	free(rows);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parallel_does_each_step_once),
		cmocka_unit_test(blas_products_and_eigenvectors),
		cmocka_unit_test(kernels_agree_with_plain_arithmetic),
		cmocka_unit_test(kmeans_finds_separate_places),
		cmocka_unit_test(kmeans_moves_empty_clusters),
		cmocka_unit_test(kmeans_of_few_distinct_rows),
		cmocka_unit_test(any_number_of_dimensions),
		cmocka_unit_test(chunks_of_uneven_dimensions),
		cmocka_unit_test(code_is_the_nearest),
		cmocka_unit_test(given_size_is_clamped),
		cmocka_unit_test(duplicates_and_constants),
		cmocka_unit_test(far_from_the_origin),
		cmocka_unit_test(equal_for_any_number_of_threads),
		cmocka_unit_test(rotation_where_it_helps),
		cmocka_unit_test(arguments_out_of_range),
		cmocka_unit_test(cancel_at_any_step),
		cmocka_unit_test(flat_form),
	};

	/* Of numbers, not of threads: TSan, which checks every load, skips them. */
	const struct CMUnitTest number_tests[] = {
		cmocka_unit_test(more_bytes_less_error),
		cmocka_unit_test(no_rotation_where_it_does_not_help),
		cmocka_unit_test(smallest_sufficient_step),
		cmocka_unit_test(unseen_rows_ask_for_more),
		cmocka_unit_test(recall_is_measured_right),
	};
#ifdef __SANITIZE_THREAD__
	const bool numbers = false;
#else
	const bool numbers = true;
#endif
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	if (numbers)
		failed += cmocka_run_group_tests(number_tests, NULL, NULL);
	return failed;
}
