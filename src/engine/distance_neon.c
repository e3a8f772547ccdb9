/*
 * distance_neon.c
 *		Distance kernels for aarch64, where NEON with conversions to and from
 *		IEEE half is part of the base instruction set.
 */
#include "kernels.h"

#ifdef __aarch64__

#include <arm_neon.h>
#include <string.h>

/*
 * Element-aligned loads are what vld1q_f32 promises the compiler; vectors may
 * be aligned to bytes only, so everything is loaded as bytes.
 */
static inline float32x4_t
load4(const float *p)
{
	return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *) p));
}

static inline float32x4_t
load4_half(const uint16_t *p)
{
	return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *) p)));
}

/* The first count (1 .. 3) floats at p, and zeros. */
static inline float32x4_t
load_tail(const float *p, uint32_t count)
{
	float tail[4] = {0};

	memcpy(tail, (const char *) p, count * sizeof(*tail));
	return vld1q_f32(tail);
}

static inline float32x4_t
load_tail_half(const uint16_t *p, uint32_t count)
{
	uint16_t tail[4] = {0};

	memcpy(tail, (const char *) p, count * sizeof(*tail));
	return load4_half(tail);
}

static inline float32x4_t
add_square(float32x4_t sum, float32x4_t x, float32x4_t y)
{
	float32x4_t diff = vsubq_f32(x, y);

	return vfmaq_f32(sum, diff, diff);
}

static uint32_t
l2sq_short_neon(const int16_t *a, const int16_t *b, uint32_t dim)
{
	int32x4_t s0 = vdupq_n_s32(0), s1 = s0;
	uint32_t i = 0, sum;

	for (; dim - i >= 8; i += 8)
	{
		int16x8_t diff = vsubq_s16(vld1q_s16(a + i), vld1q_s16(b + i));

		s0 = vmlal_s16(s0, vget_low_s16(diff), vget_low_s16(diff));
		s1 = vmlal_s16(s1, vget_high_s16(diff), vget_high_s16(diff));
	}
	sum = (uint32_t) vaddvq_s32(vaddq_s32(s0, s1));
	for (; i < dim; i++)
	{
		int32_t diff = a[i] - b[i];

		sum += (uint32_t) (diff * diff);
	}
	return sum;
}

static float
l2sq_neon(const float *a, const float *b, uint32_t dim)
{
	float32x4_t s0 = vdupq_n_f32(0), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 16; i += 16)
	{
		s0 = add_square(s0, load4(a + i), load4(b + i));
		s1 = add_square(s1, load4(a + i + 4), load4(b + i + 4));
		s2 = add_square(s2, load4(a + i + 8), load4(b + i + 8));
		s3 = add_square(s3, load4(a + i + 12), load4(b + i + 12));
	}
	for (; dim - i >= 4; i += 4)
		s0 = add_square(s0, load4(a + i), load4(b + i));
	if (i < dim)
		s1 = add_square(s1, load_tail(a + i, dim - i),
						load_tail(b + i, dim - i));
	return vaddvq_f32(vaddq_f32(vaddq_f32(s0, s1), vaddq_f32(s2, s3)));
}

static float
dot_neon(const float *a, const float *b, uint32_t dim)
{
	float32x4_t s0 = vdupq_n_f32(0), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 16; i += 16)
	{
		s0 = vfmaq_f32(s0, load4(a + i), load4(b + i));
		s1 = vfmaq_f32(s1, load4(a + i + 4), load4(b + i + 4));
		s2 = vfmaq_f32(s2, load4(a + i + 8), load4(b + i + 8));
		s3 = vfmaq_f32(s3, load4(a + i + 12), load4(b + i + 12));
	}
	for (; dim - i >= 4; i += 4)
		s0 = vfmaq_f32(s0, load4(a + i), load4(b + i));
	if (i < dim)
		s1 =
			vfmaq_f32(s1, load_tail(a + i, dim - i), load_tail(b + i, dim - i));
	return vaddvq_f32(vaddq_f32(vaddq_f32(s0, s1), vaddq_f32(s2, s3)));
}

typedef struct cosine_state
{
	float32x4_t ab, aa, bb;
} cosine_state;

static inline void
cosine_step(cosine_state *s, float32x4_t x, float32x4_t y)
{
	s->ab = vfmaq_f32(s->ab, x, y);
	s->aa = vfmaq_f32(s->aa, x, x);
	s->bb = vfmaq_f32(s->bb, y, y);
}

static void
cosine_neon(const float *a, const float *b, uint32_t dim, nv_cosine_sums *sums)
{
	float32x4_t zero = vdupq_n_f32(0);
	cosine_state s = {zero, zero, zero}, t = {zero, zero, zero};
	uint32_t i = 0;

	for (; dim - i >= 8; i += 8)
	{
		cosine_step(&s, load4(a + i), load4(b + i));
		cosine_step(&t, load4(a + i + 4), load4(b + i + 4));
	}
	if (dim - i >= 4)
	{
		cosine_step(&s, load4(a + i), load4(b + i));
		i += 4;
	}
	if (i < dim)
		cosine_step(&t, load_tail(a + i, dim - i), load_tail(b + i, dim - i));
	sums->dot = vaddvq_f32(vaddq_f32(s.ab, t.ab));
	sums->aa = vaddvq_f32(vaddq_f32(s.aa, t.aa));
	sums->bb = vaddvq_f32(vaddq_f32(s.bb, t.bb));
}

static float
l2sq_half_neon(const float *a, const uint16_t *b, uint32_t dim)
{
	float32x4_t s0 = vdupq_n_f32(0), s1 = s0;
	uint32_t i = 0;

	for (; dim - i >= 8; i += 8)
	{
		s0 = add_square(s0, load4(a + i), load4_half(b + i));
		s1 = add_square(s1, load4(a + i + 4), load4_half(b + i + 4));
	}
	if (dim - i >= 4)
	{
		s0 = add_square(s0, load4(a + i), load4_half(b + i));
		i += 4;
	}
	if (i < dim)
		s1 = add_square(s1, load_tail(a + i, dim - i),
						load_tail_half(b + i, dim - i));
	return vaddvq_f32(vaddq_f32(s0, s1));
}

/* FMIN and FMAX keep a NaN whichever operand it is. */
static inline uint8x8_t
half_of(float32x4_t x)
{
	x = vminq_f32(x, vdupq_n_f32(NV_HALF_MAX));
	x = vmaxq_f32(x, vdupq_n_f32(-NV_HALF_MAX));
	return vreinterpret_u8_f16(vcvt_f16_f32(x));
}

static void
to_half_neon(const float *a, uint16_t *out, uint32_t dim)
{
	uint32_t i = 0;

	for (; dim - i >= 4; i += 4)
		vst1_u8((uint8_t *) (out + i), half_of(load4(a + i)));
	if (i < dim)
	{
		uint8_t tail[8];

		vst1_u8(tail, half_of(load_tail(a + i, dim - i)));
		memcpy((char *) (out + i), tail, (dim - i) * sizeof(*out));
	}
}

static void
from_half_neon(const uint16_t *a, float *out, uint32_t dim)
{
	uint32_t i = 0;

	for (; dim - i >= 4; i += 4)
		vst1q_u8((uint8_t *) (out + i),
				 vreinterpretq_u8_f32(load4_half(a + i)));
	if (i < dim)
	{
		float tail[4];

		vst1q_f32(tail, load_tail_half(a + i, dim - i));
		memcpy((char *) (out + i), tail, (dim - i) * sizeof(*out));
	}
}

const nv_kernels nv_kernels_neon = {
	.simd = NV_SIMD_NEON,
	.l2sq = l2sq_neon,
	.dot = dot_neon,
	.cosine = cosine_neon,
	.l2sq_short = l2sq_short_neon,
	.l2sq_half = l2sq_half_neon,
	.to_half = to_half_neon,
	.from_half = from_half_neon,
	.adc_scan = nv_adc_scan_portable,
};

#else

/* ISO C wants a translation unit to hold something. */
typedef int nv_no_neon;

#endif
