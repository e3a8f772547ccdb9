/*
 * distance_scalar.c
 *		Distance kernels in plain C: the reference for all others, and what
 *		runs where there is no instruction set we know.
 */
#include <string.h>

#include "kernels.h"

static inline float
load_float(const float *vector, uint32_t i)
{
	float value;

	memcpy(&value, (const char *) vector + (size_t) i * sizeof(value),
		   sizeof(value));
	return value;
}

static inline uint16_t
load_half(const uint16_t *vector, uint32_t i)
{
	uint16_t value;

	memcpy(&value, (const char *) vector + (size_t) i * sizeof(value),
		   sizeof(value));
	return value;
}

static inline float
square(float x)
{
	return x * x;
}

/* Four independent sums everywhere, so that additions overlap. */
static float
l2sq_scalar(const float *a, const float *b, uint32_t dim)
{
	float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
	uint32_t i = 0;

	for (; dim - i >= 4; i += 4)
	{
		s0 += square(load_float(a, i) - load_float(b, i));
		s1 += square(load_float(a, i + 1) - load_float(b, i + 1));
		s2 += square(load_float(a, i + 2) - load_float(b, i + 2));
		s3 += square(load_float(a, i + 3) - load_float(b, i + 3));
	}
	for (; i < dim; i++)
		s0 += square(load_float(a, i) - load_float(b, i));
	return (s0 + s1) + (s2 + s3);
}

static uint32_t
l2sq_short_scalar(const int16_t *a, const int16_t *b, uint32_t dim)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < dim; i++)
	{
		int32_t diff = a[i] - b[i];

		sum += (uint32_t) (diff * diff);
	}
	return sum;
}

static float
dot_scalar(const float *a, const float *b, uint32_t dim)
{
	float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
	uint32_t i = 0;

	for (; dim - i >= 4; i += 4)
	{
		s0 += load_float(a, i) * load_float(b, i);
		s1 += load_float(a, i + 1) * load_float(b, i + 1);
		s2 += load_float(a, i + 2) * load_float(b, i + 2);
		s3 += load_float(a, i + 3) * load_float(b, i + 3);
	}
	for (; i < dim; i++)
		s0 += load_float(a, i) * load_float(b, i);
	return (s0 + s1) + (s2 + s3);
}

static void
cosine_scalar(const float *a, const float *b, uint32_t dim,
			  nv_cosine_sums *sums)
{
	sums->dot = dot_scalar(a, b, dim);
	sums->aa = dot_scalar(a, a, dim);
	sums->bb = dot_scalar(b, b, dim);
}

/*
 * Rounds to nearest, ties to even; what is too large, infinity included,
 * becomes the largest finite half; NaN stays NaN.
 */
uint16_t
nv_half_of_float(float value)
{
	/* 2^-14, the smallest normal half, and the limit, as bits of a float. */
	const uint32_t normal_min = UINT32_C(113) << 23;
	const uint32_t max_bits = UINT32_C(0x477fe000);
	uint32_t bits;
	uint16_t sign;

	memcpy(&bits, &value, sizeof(bits));
	sign = (uint16_t) (bits >> 16 & 0x8000);
	bits &= UINT32_C(0x7fffffff);
	if (bits > UINT32_C(0x7f800000))
		return sign | 0x7e00;
	if (bits >= max_bits)
		return sign | 0x7bff;
	if (bits < normal_min)
	{
		/*
		 * The unit of a subnormal half is 2^-24, which is the last place of a
		 * float in [0.5, 1): adding 0.5 rounds, and leaves the half's bits.
		 */
		float shifted;

		memcpy(&shifted, &bits, sizeof(shifted));
		shifted += 0.5f;
		memcpy(&bits, &shifted, sizeof(bits));
		return (uint16_t) (sign | (bits - UINT32_C(0x3f000000)));
	}
	bits += UINT32_C(0xfff) + (bits >> 13 & 1);
	return (uint16_t) (sign | ((bits - (UINT32_C(112) << 23)) >> 13));
}

float
nv_float_of_half(uint16_t half)
{
	uint32_t sign = (uint32_t) (half & 0x8000) << 16;
	uint32_t exponent = half >> 10 & 0x1f;
	uint32_t fraction = half & 0x3ff;
	uint32_t bits;
	float value;

	if (exponent == 0)
	{
		value = (float) fraction * 0x1p-24f;
		return sign != 0 ? -value : value;
	}
	if (exponent == 0x1f) /* infinity, or a NaN, which is made quiet */
		bits = UINT32_C(0x7f800000) | (fraction << 13) |
			   (fraction != 0 ? UINT32_C(0x400000) : 0);
	else
		bits = (exponent + 112) << 23 | fraction << 13;
	bits |= sign;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float
l2sq_half_scalar(const float *a, const uint16_t *b, uint32_t dim)
{
	float s0 = 0, s1 = 0;
	uint32_t i = 0;

	for (; dim - i >= 2; i += 2)
	{
		s0 += square(load_float(a, i) - nv_float_of_half(load_half(b, i)));
		s1 += square(load_float(a, i + 1) -
					 nv_float_of_half(load_half(b, i + 1)));
	}
	if (i < dim)
		s0 += square(load_float(a, i) - nv_float_of_half(load_half(b, i)));
	return s0 + s1;
}

static void
to_half_scalar(const float *a, uint16_t *out, uint32_t dim)
{
	for (uint32_t i = 0; i < dim; i++)
	{
		uint16_t half = nv_half_of_float(load_float(a, i));

		memcpy((char *) out + (size_t) i * sizeof(half), &half, sizeof(half));
	}
}

static void
from_half_scalar(const uint16_t *a, float *out, uint32_t dim)
{
	for (uint32_t i = 0; i < dim; i++)
	{
		float value = nv_float_of_half(load_half(a, i));

		memcpy((char *) out + (size_t) i * sizeof(value), &value,
			   sizeof(value));
	}
}

/*
 * ADC.  Codes are scored eight at a time, with one sum each in a register, so
 * that additions of different codes overlap.  The table (1 KiB a code byte) is
 * walked in blocks that stay in the first-level cache while all n codes use
 * them: at 128 bytes a code this takes 40 % off.  Gather instructions were
 * measured slower than this on Zen 4, with eight lanes as with sixteen.
 */
#define ADC_GROUP 8
#define ADC_BLOCK 32 /* code bytes, 32 KiB of table */
#define ADC_CENTROIDS 256

static inline void
adc_group(const float *restrict table, uint32_t from, uint32_t to,
		  const uint8_t *const *code, float *restrict sum)
{
	const uint8_t *c0 = code[0], *c1 = code[1], *c2 = code[2], *c3 = code[3];
	const uint8_t *c4 = code[4], *c5 = code[5], *c6 = code[6], *c7 = code[7];
	float s0 = sum[0], s1 = sum[1], s2 = sum[2], s3 = sum[3];
	float s4 = sum[4], s5 = sum[5], s6 = sum[6], s7 = sum[7];

	for (uint32_t m = from; m < to; m++)
	{
		const float *row = table + (size_t) m * ADC_CENTROIDS;

		s0 += row[c0[m]];
		s1 += row[c1[m]];
		s2 += row[c2[m]];
		s3 += row[c3[m]];
		s4 += row[c4[m]];
		s5 += row[c5[m]];
		s6 += row[c6[m]];
		s7 += row[c7[m]];
	}
	sum[0] = s0;
	sum[1] = s1;
	sum[2] = s2;
	sum[3] = s3;
	sum[4] = s4;
	sum[5] = s5;
	sum[6] = s6;
	sum[7] = s7;
}

/* The last n < ADC_GROUP codes: as one padded group when that is cheaper. */
static void
adc_rest(const float *table, uint32_t from, uint32_t to,
		 const uint8_t *const *codes, uint32_t n, float *out)
{
	if (n >= ADC_GROUP / 2)
	{
		const uint8_t *padded[ADC_GROUP];
		float sum[ADC_GROUP] = {0};

		for (uint32_t i = 0; i < ADC_GROUP; i++)
			padded[i] = codes[i < n ? i : 0];
		memcpy(sum, out, n * sizeof(*sum));
		adc_group(table, from, to, padded, sum);
		memcpy(out, sum, n * sizeof(*sum));
		return;
	}
	for (uint32_t i = 0; i < n; i++)
	{
		const uint8_t *code = codes[i];
		float sum = out[i];

		for (uint32_t m = from; m < to; m++)
			sum += table[(size_t) m * ADC_CENTROIDS + code[m]];
		out[i] = sum;
	}
}

void
nv_adc_scan_portable(const float *table, uint32_t m_count,
					 const uint8_t *const *codes, uint32_t n, float *out)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = 0;
	for (uint32_t from = 0; from < m_count; from += ADC_BLOCK)
	{
		uint32_t to = from + ADC_BLOCK < m_count ? from + ADC_BLOCK : m_count;
		uint32_t i = 0;

		for (; n - i >= ADC_GROUP; i += ADC_GROUP)
			adc_group(table, from, to, codes + i, out + i);
		if (i < n)
			adc_rest(table, from, to, codes + i, n - i, out + i);
	}
}

const nv_kernels nv_kernels_scalar = {
	.simd = NV_SIMD_SCALAR,
	.l2sq = l2sq_scalar,
	.dot = dot_scalar,
	.cosine = cosine_scalar,
	.l2sq_short = l2sq_short_scalar,
	.l2sq_half = l2sq_half_scalar,
	.to_half = to_half_scalar,
	.from_half = from_half_scalar,
	.adc_scan = nv_adc_scan_portable,
};
