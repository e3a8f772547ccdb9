/*
 * distance_x86.c
 *		Distance kernels for AVX2 with FMA and F16C, and for AVX-512F.
 *
 * Functions carry their instruction set as an attribute, so the file is
 * compiled with the flags of all others; distance.c calls them only where the
 * processor has them.  Ends of vectors are read by masked loads, which touch
 * no byte behind the vector.
 */
#include "kernels.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target("avx512f,avx2,fma,f16c")))

/* AVX2: eight floats a register. */

/* All bits set in the first count lanes, 0 < count < 8. */
AVX2 static inline __m256i
tail_mask(uint32_t count)
{
	static const int32_t ramp[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

	return _mm256_loadu_si256((const __m256i *) (ramp + 8 - count));
}

AVX2 static inline float
sum_avx2(__m256 v)
{
	__m128 x =
		_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	x = _mm_add_ps(x, _mm_movehl_ps(x, x));
	x = _mm_add_ss(x, _mm_movehdup_ps(x));
	return _mm_cvtss_f32(x);
}

AVX2 static inline __m256
add_square_avx2(__m256 sum, __m256 x, __m256 y)
{
	__m256 diff = _mm256_sub_ps(x, y);

	return _mm256_fmadd_ps(diff, diff, sum);
}

AVX2 static float
l2sq_avx2(const float *a, const float *b, uint32_t dim)
{
	__m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 32; i += 32)
	{
		s0 =
			add_square_avx2(s0, _mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
		s1 = add_square_avx2(s1, _mm256_loadu_ps(a + i + 8),
							 _mm256_loadu_ps(b + i + 8));
		s2 = add_square_avx2(s2, _mm256_loadu_ps(a + i + 16),
							 _mm256_loadu_ps(b + i + 16));
		s3 = add_square_avx2(s3, _mm256_loadu_ps(a + i + 24),
							 _mm256_loadu_ps(b + i + 24));
	}
	for (; dim - i >= 8; i += 8)
		s0 =
			add_square_avx2(s0, _mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
	if (i < dim)
	{
		__m256i mask = tail_mask(dim - i);

		s1 = add_square_avx2(s1, _mm256_maskload_ps(a + i, mask),
							 _mm256_maskload_ps(b + i, mask));
	}
	return sum_avx2(
		_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

AVX2 static inline __m256i
add_square_short_avx2(__m256i sum, const int16_t *a, const int16_t *b)
{
	__m256i diff = _mm256_sub_epi16(_mm256_loadu_si256((const __m256i *) a),
									_mm256_loadu_si256((const __m256i *) b));

	return _mm256_add_epi32(sum, _mm256_madd_epi16(diff, diff));
}

AVX2 static uint32_t
l2sq_short_avx2(const int16_t *a, const int16_t *b, uint32_t dim)
{
	__m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0, s3 = s0;
	__m128i x;
	uint32_t i = 0, sum;

	for (; dim - i >= 64; i += 64)
	{
		s0 = add_square_short_avx2(s0, a + i, b + i);
		s1 = add_square_short_avx2(s1, a + i + 16, b + i + 16);
		s2 = add_square_short_avx2(s2, a + i + 32, b + i + 32);
		s3 = add_square_short_avx2(s3, a + i + 48, b + i + 48);
	}
	for (; dim - i >= 16; i += 16)
		s0 = add_square_short_avx2(s0, a + i, b + i);
	s0 = _mm256_add_epi32(_mm256_add_epi32(s0, s1), _mm256_add_epi32(s2, s3));
	x = _mm_add_epi32(_mm256_castsi256_si128(s0),
					  _mm256_extracti128_si256(s0, 1));
	if (dim - i >= 8)
	{
		__m128i diff =
			_mm_sub_epi16(_mm_loadu_si128((const __m128i *) (a + i)),
						  _mm_loadu_si128((const __m128i *) (b + i)));

		x = _mm_add_epi32(x, _mm_madd_epi16(diff, diff));
		i += 8;
	}
	x = _mm_add_epi32(x, _mm_shuffle_epi32(x, _MM_SHUFFLE(1, 0, 3, 2)));
	x = _mm_add_epi32(x, _mm_shuffle_epi32(x, _MM_SHUFFLE(2, 3, 0, 1)));
	sum = (uint32_t) _mm_cvtsi128_si32(x);
	for (; i < dim; i++)
	{
		int32_t diff = a[i] - b[i];

		sum += (uint32_t) (diff * diff);
	}
	return sum;
}

AVX2 static float
dot_avx2(const float *a, const float *b, uint32_t dim)
{
	__m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 32; i += 32)
	{
		s0 =
			_mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), s0);
		s1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8),
							 _mm256_loadu_ps(b + i + 8), s1);
		s2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 16),
							 _mm256_loadu_ps(b + i + 16), s2);
		s3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 24),
							 _mm256_loadu_ps(b + i + 24), s3);
	}
	for (; dim - i >= 8; i += 8)
		s0 =
			_mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), s0);
	if (i < dim)
	{
		__m256i mask = tail_mask(dim - i);

		s1 = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, mask),
							 _mm256_maskload_ps(b + i, mask), s1);
	}
	return sum_avx2(
		_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

typedef struct cosine_state_avx2
{
	__m256 ab, aa, bb;
} cosine_state_avx2;

AVX2 static inline void
cosine_step_avx2(cosine_state_avx2 *s, __m256 x, __m256 y)
{
	s->ab = _mm256_fmadd_ps(x, y, s->ab);
	s->aa = _mm256_fmadd_ps(x, x, s->aa);
	s->bb = _mm256_fmadd_ps(y, y, s->bb);
}

AVX2 static void
cosine_avx2(const float *a, const float *b, uint32_t dim, nv_cosine_sums *sums)
{
	__m256 zero = _mm256_setzero_ps();
	cosine_state_avx2 s = {zero, zero, zero}, t = {zero, zero, zero};
	uint32_t i = 0;

	for (; dim - i >= 16; i += 16)
	{
		cosine_step_avx2(&s, _mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
		cosine_step_avx2(&t, _mm256_loadu_ps(a + i + 8),
						 _mm256_loadu_ps(b + i + 8));
	}
	if (dim - i >= 8)
	{
		cosine_step_avx2(&s, _mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
		i += 8;
	}
	if (i < dim)
	{
		__m256i mask = tail_mask(dim - i);

		cosine_step_avx2(&t, _mm256_maskload_ps(a + i, mask),
						 _mm256_maskload_ps(b + i, mask));
	}
	sums->dot = sum_avx2(_mm256_add_ps(s.ab, t.ab));
	sums->aa = sum_avx2(_mm256_add_ps(s.aa, t.aa));
	sums->bb = sum_avx2(_mm256_add_ps(s.bb, t.bb));
}

AVX2 static inline __m256
load_half_avx2(const uint16_t *half)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) half));
}

/*
 * The first count (0 .. 8) halves and zeros.  Put together in registers:
 * reading back what was just copied in pieces would stall.
 */
AVX2 static inline __m128i
load_half_tail(const uint16_t *half, uint32_t count)
{
	const char *p = (const char *) half;
	uint64_t word[2] = {0, 0};
	uint32_t full = count / 4;

	if (count >= 4)
		memcpy(&word[0], p, sizeof(word[0]));
	if (count == 8)
		memcpy(&word[1], p + sizeof(word[0]), sizeof(word[1]));
	for (uint32_t i = full * 4; i < count; i++)
	{
		uint16_t one;

		memcpy(&one, p + i * sizeof(one), sizeof(one));
		word[full] |= (uint64_t) one << (i % 4 * 16);
	}
	return _mm_set_epi64x((long long) word[1], (long long) word[0]);
}

AVX2 static float
l2sq_half_avx2(const float *a, const uint16_t *b, uint32_t dim)
{
	__m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 32; i += 32)
	{
		s0 = add_square_avx2(s0, _mm256_loadu_ps(a + i), load_half_avx2(b + i));
		s1 = add_square_avx2(s1, _mm256_loadu_ps(a + i + 8),
							 load_half_avx2(b + i + 8));
		s2 = add_square_avx2(s2, _mm256_loadu_ps(a + i + 16),
							 load_half_avx2(b + i + 16));
		s3 = add_square_avx2(s3, _mm256_loadu_ps(a + i + 24),
							 load_half_avx2(b + i + 24));
	}
	for (; dim - i >= 8; i += 8)
		s0 = add_square_avx2(s0, _mm256_loadu_ps(a + i), load_half_avx2(b + i));
	if (i < dim)
	{
		__m128i tail = load_half_tail(b + i, dim - i);

		s1 = add_square_avx2(s1, _mm256_maskload_ps(a + i, tail_mask(dim - i)),
							 _mm256_cvtph_ps(tail));
	}
	return sum_avx2(
		_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

/*
 * The operand that may be NaN comes second: min and max return that one.
 */
AVX2 static inline __m128i
half_of_avx2(__m256 x)
{
	x = _mm256_min_ps(_mm256_set1_ps(NV_HALF_MAX), x);
	x = _mm256_max_ps(_mm256_set1_ps(-NV_HALF_MAX), x);
	return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

AVX2 static void
to_half_avx2(const float *a, uint16_t *out, uint32_t dim)
{
	uint32_t i = 0;

	for (; dim - i >= 8; i += 8)
		_mm_storeu_si128((__m128i *) (out + i),
						 half_of_avx2(_mm256_loadu_ps(a + i)));
	if (i < dim)
	{
		uint16_t tail[8];

		_mm_storeu_si128((__m128i *) tail, half_of_avx2(_mm256_maskload_ps(
											   a + i, tail_mask(dim - i))));
		memcpy((char *) (out + i), tail, (dim - i) * sizeof(*tail));
	}
}

AVX2 static void
from_half_avx2(const uint16_t *a, float *out, uint32_t dim)
{
	uint32_t i = 0;

	for (; dim - i >= 8; i += 8)
		_mm256_storeu_ps(out + i, load_half_avx2(a + i));
	if (i < dim)
	{
		__m128i tail = load_half_tail(a + i, dim - i);

		_mm256_maskstore_ps(out + i, tail_mask(dim - i), _mm256_cvtph_ps(tail));
	}
}

const nv_kernels nv_kernels_avx2 = {
	.simd = NV_SIMD_AVX2,
	.l2sq = l2sq_avx2,
	.dot = dot_avx2,
	.cosine = cosine_avx2,
	.l2sq_short = l2sq_short_avx2,
	.l2sq_half = l2sq_half_avx2,
	.to_half = to_half_avx2,
	.from_half = from_half_avx2,
	.adc_scan = nv_adc_scan_portable,
};

/* AVX-512: sixteen floats a register. */

/* The first count lanes, 0 < count < 16. */
AVX512 static inline __mmask16
tail_lanes(uint32_t count)
{
	return (__mmask16) ((1u << count) - 1);
}

AVX512 static inline float
sum_avx512(__m512 v)
{
	__m256 high =
		_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));

	return sum_avx2(_mm256_add_ps(_mm512_castps512_ps256(v), high));
}

AVX512 static inline __m512
add_square_avx512(__m512 sum, __m512 x, __m512 y)
{
	__m512 diff = _mm512_sub_ps(x, y);

	return _mm512_fmadd_ps(diff, diff, sum);
}

AVX512 static float
l2sq_avx512(const float *a, const float *b, uint32_t dim)
{
	__m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 64; i += 64)
	{
		s0 = add_square_avx512(s0, _mm512_loadu_ps(a + i),
							   _mm512_loadu_ps(b + i));
		s1 = add_square_avx512(s1, _mm512_loadu_ps(a + i + 16),
							   _mm512_loadu_ps(b + i + 16));
		s2 = add_square_avx512(s2, _mm512_loadu_ps(a + i + 32),
							   _mm512_loadu_ps(b + i + 32));
		s3 = add_square_avx512(s3, _mm512_loadu_ps(a + i + 48),
							   _mm512_loadu_ps(b + i + 48));
	}
	for (; dim - i >= 16; i += 16)
		s0 = add_square_avx512(s0, _mm512_loadu_ps(a + i),
							   _mm512_loadu_ps(b + i));
	if (i < dim)
	{
		__mmask16 mask = tail_lanes(dim - i);

		s1 = add_square_avx512(s1, _mm512_maskz_loadu_ps(mask, a + i),
							   _mm512_maskz_loadu_ps(mask, b + i));
	}
	return sum_avx512(
		_mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3)));
}

AVX512 static float
dot_avx512(const float *a, const float *b, uint32_t dim)
{
	__m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
	uint32_t i = 0;

	for (; dim - i >= 64; i += 64)
	{
		s0 =
			_mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), s0);
		s1 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 16),
							 _mm512_loadu_ps(b + i + 16), s1);
		s2 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 32),
							 _mm512_loadu_ps(b + i + 32), s2);
		s3 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 48),
							 _mm512_loadu_ps(b + i + 48), s3);
	}
	for (; dim - i >= 16; i += 16)
		s0 =
			_mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), s0);
	if (i < dim)
	{
		__mmask16 mask = tail_lanes(dim - i);

		s1 = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, a + i),
							 _mm512_maskz_loadu_ps(mask, b + i), s1);
	}
	return sum_avx512(
		_mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3)));
}

typedef struct cosine_state_avx512
{
	__m512 ab, aa, bb;
} cosine_state_avx512;

AVX512 static inline void
cosine_step_avx512(cosine_state_avx512 *s, __m512 x, __m512 y)
{
	s->ab = _mm512_fmadd_ps(x, y, s->ab);
	s->aa = _mm512_fmadd_ps(x, x, s->aa);
	s->bb = _mm512_fmadd_ps(y, y, s->bb);
}

AVX512 static void
cosine_avx512(const float *a, const float *b, uint32_t dim,
			  nv_cosine_sums *sums)
{
	__m512 zero = _mm512_setzero_ps();
	cosine_state_avx512 s = {zero, zero, zero}, t = {zero, zero, zero};
	uint32_t i = 0;

	for (; dim - i >= 32; i += 32)
	{
		cosine_step_avx512(&s, _mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i));
		cosine_step_avx512(&t, _mm512_loadu_ps(a + i + 16),
						   _mm512_loadu_ps(b + i + 16));
	}
	if (dim - i >= 16)
	{
		cosine_step_avx512(&s, _mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i));
		i += 16;
	}
	if (i < dim)
	{
		__mmask16 mask = tail_lanes(dim - i);

		cosine_step_avx512(&t, _mm512_maskz_loadu_ps(mask, a + i),
						   _mm512_maskz_loadu_ps(mask, b + i));
	}
	sums->dot = sum_avx512(_mm512_add_ps(s.ab, t.ab));
	sums->aa = sum_avx512(_mm512_add_ps(s.aa, t.aa));
	sums->bb = sum_avx512(_mm512_add_ps(s.bb, t.bb));
}

/* With halves eight lanes were measured as fast as sixteen. */
const nv_kernels nv_kernels_avx512 = {
	.simd = NV_SIMD_AVX512,
	.l2sq = l2sq_avx512,
	.dot = dot_avx512,
	.cosine = cosine_avx512,
	.l2sq_short = l2sq_short_avx2,
	.l2sq_half = l2sq_half_avx2,
	.to_half = to_half_avx2,
	.from_half = from_half_avx2,
	.adc_scan = nv_adc_scan_portable,
};

#else

/* ISO C wants a translation unit to hold something. */
typedef int nv_no_x86;

#endif
