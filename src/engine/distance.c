/*
 * distance.c
 *		Choice of the distance kernels at run time, and what is built on them:
 *		the values of the SQL operators.
 */
#include "navis/distance.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

/*
 * Sums of squares or products outside [2^-100, FLT_MAX] are not trusted and
 * computed again in double.  The terms of a float sum that were lost to
 * underflow are at most dim * 2^-149 < 2^-135, which is nothing beside 2^-100.
 */
#define MIN_TRUSTED_SUM 0x1p-100f

/*
 * The table in use: chosen at the first call, the same by whichever thread,
 * and never changed afterwards except by nv_simd_force.
 */
static _Atomic(const nv_kernels *) chosen;

static const nv_kernels *
table_of(nv_simd simd)
{
	switch (simd)
	{
		case NV_SIMD_SCALAR:
			return &nv_kernels_scalar;
#ifdef __x86_64__
		case NV_SIMD_AVX2:
			return &nv_kernels_avx2;
		case NV_SIMD_AVX512:
			return &nv_kernels_avx512;
#endif
#ifdef __aarch64__
		case NV_SIMD_NEON:
			return &nv_kernels_neon;
#endif
		default:
			return NULL;
	}
}

#ifdef __x86_64__
/* Not every compiler knows __builtin_cpu_supports("f16c"). */
static bool
has_f16c(void)
{
	unsigned int eax, ebx, ecx, edx;

	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool
nv_simd_available(nv_simd simd)
{
	if (table_of(simd) == NULL)
		return false;
#ifdef __x86_64__
	if (simd == NV_SIMD_AVX2 || simd == NV_SIMD_AVX512)
	{
		__builtin_cpu_init();
		if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
			!has_f16c())
			return false;
		if (simd == NV_SIMD_AVX512 && !__builtin_cpu_supports("avx512f"))
			return false;
	}
#endif
	return true;
}

static const nv_kernels *
choose(void)
{
	static const nv_simd order[] = {NV_SIMD_AVX512, NV_SIMD_AVX2, NV_SIMD_NEON};
	const nv_kernels *table = &nv_kernels_scalar;
	const nv_kernels *found = NULL;

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
	{
		if (nv_simd_available(order[i]))
		{
			table = table_of(order[i]);
			break;
		}
	}
	/* Another thread may have chosen, or a test forced, meanwhile. */
	if (!atomic_compare_exchange_strong(&chosen, &found, table))
		return found;
	return table;
}

static inline const nv_kernels *
kernels(void)
{
	const nv_kernels *table =
		atomic_load_explicit(&chosen, memory_order_relaxed);

	return table != NULL ? table : choose();
}

nv_simd
nv_simd_in_use(void)
{
	return kernels()->simd;
}

bool
nv_simd_force(nv_simd simd)
{
	if (!nv_simd_available(simd))
		return false;
	atomic_store(&chosen, table_of(simd));
	return true;
}

const char *
nv_simd_name(nv_simd simd)
{
	switch (simd)
	{
		case NV_SIMD_SCALAR:
			return "scalar";
		case NV_SIMD_AVX2:
			return "avx2";
		case NV_SIMD_AVX512:
			return "avx512";
		case NV_SIMD_NEON:
			return "neon";
	}
	return "unknown";
}

float
nv_l2sq(const float *a, const float *b, uint32_t dim)
{
	return kernels()->l2sq(a, b, dim);
}

float
nv_dot(const float *a, const float *b, uint32_t dim)
{
	return kernels()->dot(a, b, dim);
}

uint32_t
nv_l2sq_short(const int16_t *a, const int16_t *b, uint32_t dim)
{
	return kernels()->l2sq_short(a, b, dim);
}

float
nv_l2sq_half(const float *a, const uint16_t *b, uint32_t dim)
{
	return kernels()->l2sq_half(a, b, dim);
}

void
nv_to_half(const float *a, uint16_t *out, uint32_t dim)
{
	kernels()->to_half(a, out, dim);
}

void
nv_from_half(const uint16_t *a, float *out, uint32_t dim)
{
	kernels()->from_half(a, out, dim);
}

void
nv_adc_scan(const float *table, uint32_t m_count, const uint8_t *const *codes,
			uint32_t n, float *out)
{
	kernels()->adc_scan(table, m_count, codes, n, out);
}

/* In double nothing a float can hold overflows or underflows when squared. */
static inline double
load_double(const float *vector, uint32_t i)
{
	float value;

	memcpy(&value, (const char *) vector + (size_t) i * sizeof(value),
		   sizeof(value));
	return value;
}

static inline double
square(double x)
{
	return x * x;
}

static double
l2sq_double(const float *a, const float *b, uint32_t dim)
{
	double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
	uint32_t i = 0;

	for (; dim - i >= 4; i += 4)
	{
		s0 += square(load_double(a, i) - load_double(b, i));
		s1 += square(load_double(a, i + 1) - load_double(b, i + 1));
		s2 += square(load_double(a, i + 2) - load_double(b, i + 2));
		s3 += square(load_double(a, i + 3) - load_double(b, i + 3));
	}
	for (; i < dim; i++)
		s0 += square(load_double(a, i) - load_double(b, i));
	return (s0 + s1) + (s2 + s3);
}

static double
dot_double(const float *a, const float *b, uint32_t dim)
{
	double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
	uint32_t i = 0;

	for (; dim - i >= 4; i += 4)
	{
		s0 += load_double(a, i) * load_double(b, i);
		s1 += load_double(a, i + 1) * load_double(b, i + 1);
		s2 += load_double(a, i + 2) * load_double(b, i + 2);
		s3 += load_double(a, i + 3) * load_double(b, i + 3);
	}
	for (; i < dim; i++)
		s0 += load_double(a, i) * load_double(b, i);
	return (s0 + s1) + (s2 + s3);
}

double
nv_norm(const float *a, uint32_t dim)
{
	return sqrt(dot_double(a, a, dim));
}

/* False for NaN, too. */
static inline bool
trusted(float sum)
{
	return sum >= MIN_TRUSTED_SUM && sum <= FLT_MAX;
}

static double
l2_distance(const float *a, const float *b, uint32_t dim)
{
	float sum = kernels()->l2sq(a, b, dim);

	return sqrt(trusted(sum) ? (double) sum : l2sq_double(a, b, dim));
}

static double
ip_distance(const float *a, const float *b, uint32_t dim)
{
	float dot = kernels()->dot(a, b, dim);

	/* A difference, because - 0.0 would be printed with its sign. */
	return 0.0 - (trusted(fabsf(dot)) ? (double) dot : dot_double(a, b, dim));
}

static double
cosine_distance(const float *a, const float *b, uint32_t dim)
{
	nv_cosine_sums sums;
	double dot, aa, bb, similarity;

	kernels()->cosine(a, b, dim, &sums);
	if (trusted(sums.aa) && trusted(sums.bb) && isfinite(sums.dot))
	{
		dot = sums.dot;
		aa = sums.aa;
		bb = sums.bb;
	}
	else
	{
		dot = dot_double(a, b, dim);
		aa = dot_double(a, a, dim);
		bb = dot_double(b, b, dim);
		if (aa == 0 || bb == 0)
			return NAN;
	}
	/* The root of a * a is a: a vector's distance to itself is exactly 0. */
	similarity = dot / sqrt(aa * bb);
	if (similarity > 1)
		similarity = 1;
	else if (similarity < -1)
		similarity = -1;
	return 1 - similarity;
}

double
nv_distance(nv_metric metric, const float *a, const float *b, uint32_t dim)
{
	switch (metric)
	{
		case NV_METRIC_L2:
			return l2_distance(a, b, dim);
		case NV_METRIC_IP:
			return ip_distance(a, b, dim);
		case NV_METRIC_COSINE:
			return cosine_distance(a, b, dim);
	}
	return NAN;
}
