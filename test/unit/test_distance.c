/*
 * test_distance.c
 *		Every distance kernel of this machine against sums in double.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "kernels.h"
#include "util.h"

#define SIMDS 4
#define MAX_CODES 100

/* Room for the longest vector at any misalignment. */
#define ROOM (NV_MAX_DIM * sizeof(float) + 16)

static uint8_t *memory_a, *memory_b;

static const nv_metric metrics[] = {NV_METRIC_L2, NV_METRIC_IP,
									NV_METRIC_COSINE};

static int
set_up(void **state)
{
	memory_a = nv_alloc(ROOM);
	memory_b = nv_alloc(ROOM);
	return memory_a == NULL || memory_b == NULL;
}

static int
tear_down(void **state)
{
	free(memory_a);
	free(memory_b);
	return 0;
}

/* Uniform in [-1, 1). */
static float
random_float(uint64_t *seed)
{
	return (float) ((double) (nv_random(seed) >> 11) * 0x1p-52 - 1);
}

static void
put(float *vector, uint32_t i, float value)
{
	memcpy((char *) vector + i * sizeof(value), &value, sizeof(value));
}

static float
get(const float *vector, uint32_t i)
{
	float value;

	memcpy(&value, (const char *) vector + i * sizeof(value), sizeof(value));
	return value;
}

/* A vector that ends where memory ends, so that ASan sees reads beyond. */
static float *
at_end(uint8_t *memory, uint32_t dim, uint32_t misaligned)
{
	return (float *) (memory + ROOM - dim * sizeof(float) - misaligned);
}

static void
fill(float *vector, uint32_t dim, uint64_t *seed, float scale)
{
	for (uint32_t i = 0; i < dim; i++)
		put(vector, i, random_float(seed) * scale);
}

typedef struct sums
{
	double l2sq, dot, aa, bb, magnitude; /* sum of |a * b| */
} sums;

static sums
reference(const float *a, const float *b, uint32_t dim)
{
	sums s = {0, 0, 0, 0, 0};

	for (uint32_t i = 0; i < dim; i++)
	{
		double x = get(a, i), y = get(b, i);

		s.l2sq += (x - y) * (x - y);
		s.dot += x * y;
		s.magnitude += fabs(x * y);
		s.aa += x * x;
		s.bb += y * y;
	}
	return s;
}

static double
reference_distance(nv_metric metric, const float *a, const float *b,
				   uint32_t dim)
{
	sums s = reference(a, b, dim);

	switch (metric)
	{
		case NV_METRIC_L2:
			return sqrt(s.l2sq);
		case NV_METRIC_IP:
			return -s.dot;
		default:
			return 1 - s.dot / sqrt(s.aa) / sqrt(s.bb);
	}
}

/*
 * Rounding of a float sum of dim terms, with several partial sums: no more
 * than a unit of the last place for every few terms.
 */
static double
tolerance(uint32_t dim, double magnitude)
{
	return magnitude * FLT_EPSILON * (2 + dim / 4.0);
}

static void
check_close(double found, double expected, double bound)
{
	if (!(fabs(found - expected) <= bound))
		fail_msg("found %.17g, expected %.17g within %g", found, expected,
				 bound);
}

static void
check_pair(const float *a, const float *b, uint32_t dim)
{
	sums s = reference(a, b, dim);
	uint16_t half[NV_MAX_DIM];
	double half_sum = 0;

	check_close(nv_l2sq(a, b, dim), s.l2sq, tolerance(dim, s.l2sq));
	check_close(nv_dot(a, b, dim), s.dot, tolerance(dim, s.magnitude));
	check_close(nv_distance(NV_METRIC_L2, a, b, dim), sqrt(s.l2sq),
				tolerance(dim, sqrt(s.l2sq)));
	check_close(nv_distance(NV_METRIC_IP, a, b, dim), -s.dot,
				tolerance(dim, s.magnitude));
	check_close(nv_distance(NV_METRIC_COSINE, a, b, dim),
				1 - s.dot / sqrt(s.aa * s.bb), 3 * tolerance(dim, 1));
	check_close(nv_norm(a, dim), sqrt(s.aa), 1e-13 * sqrt(s.aa));

	nv_to_half(b, half, dim);
	for (uint32_t i = 0; i < dim; i++)
	{
		double diff = get(a, i) - nv_float_of_half(half[i]);

		half_sum += diff * diff;
	}
	check_close(nv_l2sq_half(a, half, dim), half_sum, tolerance(dim, half_sum));
}

static void
check_symmetry(const float *a, const float *b, uint32_t dim)
{
	for (size_t i = 0; i < NV_LENGTH(metrics); i++)
	{
		double forth = nv_distance(metrics[i], a, b, dim);
		double back = nv_distance(metrics[i], b, a, dim);

		assert_memory_equal(&forth, &back, sizeof(forth));
		assert_true(isfinite(forth));
	}
}

static void
with_every_simd(void (*check)(uint64_t *seed))
{
	nv_simd before = nv_simd_in_use();
	uint32_t tried = 0;

	for (int simd = 0; simd < SIMDS; simd++)
	{
		uint64_t seed = nv_random_seed(1);

		if (!nv_simd_force((nv_simd) simd))
			continue;
		assert_int_equal(nv_simd_in_use(), simd);
		check(&seed);
		tried++;
	}
	assert_true(tried >= 1);
	assert_true(nv_simd_force(before));
}

static void
check_dimension(uint32_t dim, uint32_t misaligned, uint64_t *seed)
{
	float *a = at_end(memory_a, dim, misaligned);
	float *b = at_end(memory_b, dim, misaligned / 2);

	fill(a, dim, seed, 1);
	fill(b, dim, seed, 1);
	check_pair(a, b, dim);
	check_symmetry(a, b, dim);
	/* Near vectors: the difference is what counts. */
	for (uint32_t i = 0; i < dim; i++)
		put(b, i, get(a, i) + random_float(seed) * 1e-3f);
	check_pair(a, b, dim);
	check_symmetry(a, b, dim);
}

static void
check_dimensions(uint64_t *seed)
{
	static const uint32_t more[] = {100, 127, 128, 129, 768, 1536, 16000};

	for (uint32_t dim = 1; dim <= 70; dim++)
	{
		for (uint32_t misaligned = 0; misaligned < 4; misaligned++)
			check_dimension(dim, misaligned, seed);
	}
	for (size_t i = 0; i < NV_LENGTH(more); i++)
	{
		check_dimension(more[i], 0, seed);
		check_dimension(more[i], 3, seed);
	}
}

static void
test_dimensions(void **state)
{
	with_every_simd(check_dimensions);
}

/* Every element counts, once: one term at a time is not zero. */
static void
check_elements(uint64_t *seed)
{
	for (uint32_t dim = 1; dim <= 140; dim++)
	{
		float *a = at_end(memory_a, dim, 0), *b = at_end(memory_b, dim, 0);
		uint16_t half[140];

		fill(a, dim, seed, 0);
		fill(b, dim, seed, 0);
		for (uint32_t i = 0; i < dim; i++)
		{
			put(a, i, 3);
			put(b, i, 5);
			nv_to_half(b, half, dim);
			assert_true(nv_l2sq(a, b, dim) == 4);
			assert_true(nv_dot(a, b, dim) == 15);
			assert_true(nv_distance(NV_METRIC_COSINE, a, b, dim) == 0);
			assert_true(nv_l2sq_half(a, half, dim) == 4);
			assert_true(nv_norm(a, dim) == 3);
			put(a, i, 0);
			put(b, i, 0);
		}
	}
}

/* Integers are exact, whatever the length, up to the largest difference. */
static void
check_short(uint64_t *seed)
{
	int16_t a[200], b[200];

	for (uint32_t dim = 1; dim <= 200; dim++)
	{
		uint32_t most = (uint32_t) sqrt((double) INT32_MAX / dim);
		uint64_t sum = 0;

		most = NV_MIN(most, 32767);
		for (uint32_t i = 0; i < dim; i++)
		{
			int32_t diff = (int32_t) nv_random_below(seed, 2 * most + 1);

			diff -= (int32_t) most;
			a[i] = (int16_t) (diff / 2);
			b[i] = (int16_t) (a[i] - diff);
			sum += (uint64_t) ((int64_t) diff * diff);
		}
		assert_true(sum <= INT32_MAX);
		assert_int_equal(nv_l2sq_short(a, b, dim), sum);
		assert_int_equal(nv_l2sq_short(b, a, dim), sum);
		assert_int_equal(nv_l2sq_short(a, a, dim), 0);
	}
}

static void
test_short(void **state)
{
	with_every_simd(check_short);
}

static void
test_elements(void **state)
{
	with_every_simd(check_elements);
}

/* Equal vectors and opposite ones; similarity never leaves [-1, 1]. */
static void
check_identities(uint64_t *seed)
{
	for (uint32_t dim = 1; dim <= 200; dim++)
	{
		float *a = at_end(memory_a, dim, 0), *b = at_end(memory_b, dim, 0);
		double distance;

		fill(a, dim, seed, 10);
		memcpy(b, a, dim * sizeof(*b));
		assert_true(nv_distance(NV_METRIC_L2, a, b, dim) == 0);
		assert_true(nv_distance(NV_METRIC_COSINE, a, b, dim) == 0);
		for (uint32_t i = 0; i < dim; i++)
			put(b, i, -get(a, i));
		assert_true(nv_distance(NV_METRIC_COSINE, a, b, dim) == 2);
		for (uint32_t i = 0; i < dim; i++)
			put(b, i, get(a, i) * 3);
		distance = nv_distance(NV_METRIC_COSINE, a, b, dim);
		assert_true(distance >= 0 && distance < 1e-6);
		for (uint32_t i = 0; i < dim; i++)
			put(b, i, -get(b, i));
		distance = nv_distance(NV_METRIC_COSINE, a, b, dim);
		assert_true(distance <= 2 && distance > 2 - 1e-6);
	}
	/* Orthogonal: no negative zero is shown. */
	{
		float x[2] = {1, 0}, y[2] = {0, -1};

		assert_false(signbit(nv_distance(NV_METRIC_IP, x, y, 2)));
	}
}

static void
test_identities(void **state)
{
	with_every_simd(check_identities);
}

/* Values whose squares leave the range of float, alone and mixed. */
static void
check_extremes(uint64_t *seed)
{
	static const float scales[] = {FLT_MAX, 1e30f,  1e19f,   1e10f,
								   1,       1e-10f, 1e-20f,  1e-25f,
								   1e-38f,  1e-40f, 1.4e-45f};
	static const uint32_t dims[] = {1, 2, 7, 16, 33, 100};

	for (size_t d = 0; d < NV_LENGTH(dims); d++)
	{
		uint32_t dim = dims[d];
		float *a = at_end(memory_a, dim, 0), *b = at_end(memory_b, dim, 0);

		for (size_t i = 0; i < NV_LENGTH(scales); i++)
		{
			for (size_t j = 0; j < NV_LENGTH(scales); j++)
			{
				fill(a, dim, seed, scales[i]);
				fill(b, dim, seed, scales[j]);
				put(a, 0, scales[i]);
				put(b, dim - 1, -scales[j]);
				check_symmetry(a, b, dim);
				for (size_t m = 0; m < NV_LENGTH(metrics); m++)
				{
					double expected = reference_distance(metrics[m], a, b, dim);
					sums s = reference(a, b, dim);
					double size = metrics[m] == NV_METRIC_L2   ? expected
								  : metrics[m] == NV_METRIC_IP ? s.magnitude
															   : 3;

					check_close(nv_distance(metrics[m], a, b, dim), expected,
								tolerance(dim, size));
				}
			}
		}
	}
}

static void
test_extremes(void **state)
{
	with_every_simd(check_extremes);
}

static void
check_longest(uint64_t *seed)
{
	float *a = at_end(memory_a, NV_MAX_DIM, 0);
	float *b = at_end(memory_b, NV_MAX_DIM, 0);
	double norm;

	for (uint32_t i = 0; i < NV_MAX_DIM; i++)
	{
		put(a, i, FLT_MAX);
		put(b, i, -FLT_MAX);
	}
	check_symmetry(a, b, NV_MAX_DIM);
	norm = FLT_MAX * sqrt(NV_MAX_DIM);
	check_close(nv_norm(a, NV_MAX_DIM), norm, norm * 1e-12);
	check_close(nv_distance(NV_METRIC_L2, a, b, NV_MAX_DIM), 2 * norm,
				norm * 1e-12);
	check_close(nv_distance(NV_METRIC_COSINE, a, b, NV_MAX_DIM), 2, 0);
}

static void
test_longest(void **state)
{
	with_every_simd(check_longest);
}

static void
check_zero(uint64_t *seed)
{
	float zero[20] = {0}, minus[20], other[20];

	fill(other, 20, seed, 1);
	for (int i = 0; i < 20; i++)
		minus[i] = -0.0f;
	assert_true(isnan(nv_distance(NV_METRIC_COSINE, zero, other, 20)));
	assert_true(isnan(nv_distance(NV_METRIC_COSINE, other, zero, 20)));
	assert_true(isnan(nv_distance(NV_METRIC_COSINE, minus, zero, 20)));
	assert_true(nv_norm(zero, 20) == 0);
	assert_true(nv_norm(minus, 20) == 0);
	assert_true(nv_distance(NV_METRIC_L2, zero, minus, 20) == 0);
	/* The smallest vector that is not zero. */
	zero[19] = 1.4e-45f;
	assert_true(nv_norm(zero, 20) > 0);
	assert_true(nv_distance(NV_METRIC_COSINE, zero, zero, 20) == 0);
	assert_true(isfinite(nv_distance(NV_METRIC_COSINE, zero, other, 20)));
	assert_true(nv_distance(NV_METRIC_L2, zero, minus, 20) > 0);
}

static void
test_zero(void **state)
{
	with_every_simd(check_zero);
}

/* All 2^16 halves by their definition, and back. */
static void
check_all_halves(uint64_t *seed)
{
	static uint16_t half[65536], back[65536];
	static float value[65536];

	for (uint32_t h = 0; h < 65536; h++)
		half[h] = (uint16_t) h;
	nv_from_half(half, value, 65536);
	nv_to_half(value, back, 65536);
	for (uint32_t h = 0; h < 65536; h++)
	{
		int exponent = h >> 10 & 31, fraction = h & 1023;
		double expected = exponent == 0 ? ldexp(fraction, -24)
										: ldexp(1024 + fraction, exponent - 25);

		if (exponent == 31 && fraction != 0)
		{
			assert_true(isnan(value[h]));
			assert_true((back[h] & 0x7c00) == 0x7c00 && (back[h] & 0x3ff) != 0);
			continue;
		}
		if (exponent == 31) /* infinity becomes the largest half */
		{
			assert_true(isinf(value[h]));
			assert_int_equal(back[h], (h & 0x8000) | 0x7bff);
			continue;
		}
		assert_true(value[h] == (h & 0x8000 ? -expected : expected));
		assert_int_equal(back[h], h);
	}
}

/* Around the middle between neighbours: nearest, ties to even. */
static void
check_half_rounding(uint64_t *seed)
{
	for (uint32_t h = 0; h < 0x7bff; h++)
	{
		uint16_t pair[2] = {(uint16_t) h, (uint16_t) (h + 1)}, got[6];
		float value[2], middle[6];

		nv_from_half(pair, value, 2);
		middle[1] = (value[0] + value[1]) / 2;
		middle[0] = nextafterf(middle[1], 0);
		middle[2] = nextafterf(middle[1], INFINITY);
		for (int i = 0; i < 3; i++)
			middle[3 + i] = -middle[i];
		nv_to_half(middle, got, 6);
		assert_int_equal(got[0], h);
		assert_int_equal(got[1], h % 2 == 0 ? h : h + 1);
		assert_int_equal(got[2], h + 1);
		for (int i = 0; i < 3; i++)
			assert_int_equal(got[3 + i], got[i] | 0x8000);
	}
}

static void
check_half_limits(uint64_t *seed)
{
	const float large[] = {65504, 65519.99f, 65520,   65536,
						   1e10f, FLT_MAX,   INFINITY};
	const float small[] = {0, 0x1p-25f, 0x1p-26f, 1e-30f, 1.4e-45f};
	uint16_t got[7];

	nv_to_half(large, got, 7);
	for (int i = 0; i < 7; i++)
		assert_int_equal(got[i], 0x7bff);
	nv_to_half(small, got, 5); /* 2^-25 is a tie between 0 and 2^-24 */
	for (int i = 0; i < 5; i++)
		assert_int_equal(got[i], 0);
}

/* Ends of any length, without alignment, and nothing written behind them. */
static void
check_half_lengths(uint64_t *seed)
{
	for (uint32_t dim = 0; dim <= 40; dim++)
	{
		float *a = at_end(memory_a, dim, 0);
		uint8_t half_memory[40 * 2 + 2], back_memory[40 * 4 + 2];
		uint16_t *half = (uint16_t *) (half_memory + 1);
		float *back = (float *) (back_memory + 1);

		memset(half_memory, 0xaa, sizeof(half_memory));
		memset(back_memory, 0xaa, sizeof(back_memory));
		fill(a, dim, seed, 1);
		nv_to_half(a, half, dim);
		nv_from_half(half, back, dim);
		for (uint32_t i = 0; i < dim; i++)
		{
			uint16_t h;

			memcpy(&h, half_memory + 1 + i * 2, sizeof(h));
			assert_int_equal(h, nv_half_of_float(get(a, i)));
			assert_true(get(back, i) == nv_float_of_half(h));
		}
		assert_int_equal(half_memory[1 + dim * 2], 0xaa);
		assert_int_equal(back_memory[1 + dim * 4], 0xaa);
	}
}

static void
test_halves(void **state)
{
	with_every_simd(check_all_halves);
	with_every_simd(check_half_rounding);
	with_every_simd(check_half_limits);
	with_every_simd(check_half_lengths);
}

/* Codes of every kernel add up in the order of m: exactly equal. */
static void
check_adc(uint64_t *seed)
{
	static const uint32_t m_counts[] = {1,  2,  3,  7,  8,   31,  32,
										33, 64, 65, 96, 100, 128, 256};
	static const uint32_t n_codes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 20, 96};
	float *table = nv_alloc_array(256 * 256, sizeof(*table));
	uint8_t *pool = nv_alloc_array(MAX_CODES, 256);

	assert_non_null(table);
	assert_non_null(pool);
	for (uint32_t i = 0; i < 256 * 256; i++)
		table[i] = random_float(seed) + 1;
	for (uint32_t i = 0; i < MAX_CODES * 256; i++)
		pool[i] = (uint8_t) (nv_random(seed) >> 40);
	for (size_t i = 0; i < NV_LENGTH(m_counts); i++)
	{
		uint32_t m_count = m_counts[i];

		for (size_t j = 0; j < NV_LENGTH(n_codes); j++)
		{
			const uint8_t *codes[MAX_CODES];
			float out[MAX_CODES + 1];
			uint32_t n = n_codes[j];

			out[n] = -1;
			for (uint32_t c = 0; c < n; c++)
				codes[c] = pool + 256 * MAX_CODES - (c * 7 % 100 + 1) * m_count;
			nv_adc_scan(table, m_count, codes, n, out);
			for (uint32_t c = 0; c < n; c++)
			{
				float sum = 0;

				for (uint32_t m = 0; m < m_count; m++)
					sum += table[m * 256 + codes[c][m]];
				assert_true(out[c] == sum);
			}
			assert_true(out[n] == -1);
		}
	}
	free(table);
	free(pool);
}

static void
test_adc(void **state)
{
	with_every_simd(check_adc);
}

static void *
first_calls(void *result)
{
	const float a[] = {1, 2, 3}, b[] = {3, 2, 1};

	*(double *) result = nv_distance(NV_METRIC_L2, a, b, 3);
	return NULL;
}

/* Must run first: the kernels are chosen while four threads call. */
static void
test_choice_by_threads(void **state)
{
	pthread_t thread[4];
	double result[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(
			pthread_create(&thread[i], NULL, first_calls, &result[i]), 0);
	for (int i = 0; i < 4; i++)
	{
		pthread_join(thread[i], NULL);
		assert_true(result[i] == sqrt(8));
	}
}

static void
test_choice(void **state)
{
	nv_simd best = nv_simd_in_use();

	assert_true(nv_simd_available(NV_SIMD_SCALAR));
	assert_true(nv_simd_available(best));
	assert_false(nv_simd_available((nv_simd) 99));
	assert_false(nv_simd_force((nv_simd) 99));
	assert_int_equal(nv_simd_in_use(), best);
	assert_string_equal(nv_simd_name(NV_SIMD_SCALAR), "scalar");
	assert_string_equal(nv_simd_name(NV_SIMD_AVX2), "avx2");
	assert_string_equal(nv_simd_name(NV_SIMD_AVX512), "avx512");
	assert_string_equal(nv_simd_name(NV_SIMD_NEON), "neon");
	printf("in use: %s\n", nv_simd_name(best));
#ifdef __aarch64__
	assert_int_equal(best, NV_SIMD_NEON);
	assert_false(nv_simd_available(NV_SIMD_AVX2));
#else
	assert_false(nv_simd_available(NV_SIMD_NEON));
#endif
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice_by_threads),
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_dimensions),
		cmocka_unit_test(test_elements),
		cmocka_unit_test(test_short),
		cmocka_unit_test(test_identities),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_longest),
		cmocka_unit_test(test_zero),
		cmocka_unit_test(test_halves),
		cmocka_unit_test(test_adc),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
