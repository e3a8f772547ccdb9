/*
 * pq_kernel.c
 *		Products of rows with small matrices kept in panels.
 *
 * The instruction set is the one the distance kernels chose.  Platforms other
 * than x86-64 take the plain kernels, whose inner loops have a constant length
 * that compilers turn into vectors.
 */
#include "pq_kernel.h"

#include <math.h>

#include "navis/distance.h"
#include "pq.h"
#include "util.h"

#ifdef __clang__
#define NV_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NV_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__x86_64__)
#include <immintrin.h>

/* Least of eight lanes. */
__attribute__((target("avx2,fma"))) static inline float
minimum_avx2(__m256 v)
{
	__m128 m =
		_mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	m = _mm_min_ps(m, _mm_movehl_ps(m, m));
	m = _mm_min_ss(m, _mm_movehdup_ps(m));
	return _mm_cvtss_f32(m);
}

/* Least of the numbers in the lanes whose value is least. */
__attribute__((target("avx2,fma"))) static inline uint32_t
first_at_avx2(__m256 v, float least, __m256i at)
{
	__m256 equal = _mm256_cmp_ps(v, _mm256_set1_ps(least), _CMP_EQ_OQ);
	__m256i n =
		_mm256_or_si256(at, _mm256_andnot_si256(_mm256_castps_si256(equal),
												_mm256_set1_epi32(0x7fffffff)));
	__m128i m = _mm_min_epi32(_mm256_castsi256_si128(n),
							  _mm256_extracti128_si256(n, 1));

	m = _mm_min_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
	m = _mm_min_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
	return (uint32_t) _mm_cvtsi128_si32(m);
}

#define KERNEL(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define VECTORS 4
#define ROWS 2
#define vf __m256
#define vi __m256i
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_LOAD_SHORT(p)                                                        \
	_mm256_cvtepi32_ps(                                                        \
		_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *) (p))))
#define V_STORE(p, a) _mm256_storeu_ps(p, a)
#define V_SET1(x) _mm256_set1_ps(x)
#define V_SUB(a, b) _mm256_sub_ps(a, b)
#define V_FMADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_FNMADD(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define V_LANE_NUMBERS _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define V_NUMBERS_FROM(first)                                                  \
	_mm256_add_epi32(V_LANE_NUMBERS, _mm256_set1_epi32(first))
#define V_KEEP_LESS(best, at, value, number)                                   \
	do                                                                         \
	{                                                                          \
		__m256 less_ = _mm256_cmp_ps(value, best, _CMP_LT_OQ);                 \
		best = _mm256_blendv_ps(best, value, less_);                           \
		at = _mm256_blendv_epi8(at, number, _mm256_castps_si256(less_));       \
	} while (0)
#define V_MINIMUM(v) minimum_avx2(v)
#define V_FIRST_AT(v, least, at) first_at_avx2(v, least, at)
#include "pq_kernel_template.h"

#define KERNEL(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#define LANES 16
#define VECTORS 2
#define ROWS 4
#define vf __m512
#define vi __m512i
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_LOAD_SHORT(p)                                                        \
	_mm512_cvtepi32_ps(                                                        \
		_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *) (p))))
#define V_STORE(p, a) _mm512_storeu_ps(p, a)
#define V_SET1(x) _mm512_set1_ps(x)
#define V_SUB(a, b) _mm512_sub_ps(a, b)
#define V_FMADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FNMADD(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define V_LANE_NUMBERS                                                         \
	_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define V_NUMBERS_FROM(first)                                                  \
	_mm512_add_epi32(V_LANE_NUMBERS, _mm512_set1_epi32(first))
#define V_KEEP_LESS(best, at, value, number)                                   \
	do                                                                         \
	{                                                                          \
		__mmask16 less_ = _mm512_cmp_ps_mask(value, best, _CMP_LT_OQ);         \
		best = _mm512_mask_mov_ps(best, less_, value);                         \
		at = _mm512_mask_mov_epi32(at, less_, number);                         \
	} while (0)
#define V_MINIMUM(v) _mm512_reduce_min_ps(v)
#define V_FIRST_AT(v, least, at)                                               \
	_mm512_mask_reduce_min_epu32(                                              \
		_mm512_cmp_ps_mask(v, _mm512_set1_ps(least), _CMP_EQ_OQ), at)
#include "pq_kernel_template.h"
#endif

/* acc = acc -/+ row * panel, one row at a time whatever a call's rows. */
static inline void
tile_plain(const float *row, uint32_t depth, const float *panel, float sign,
		   float *acc)
{
	for (uint32_t k = 0; k < depth; k++)
	{
		float x = sign * row[k];

		for (int c = 0; c < NV_PANEL_COLUMNS; c++)
			acc[c] += x * panel[(size_t) k * NV_PANEL_COLUMNS + c];
	}
}

/* Least value and its first place among lanes that each kept their own. */
static uint8_t
first_of_lanes(const float *best, const int *at, float *least)
{
	int first = 0;

	for (int c = 1; c < NV_PANEL_COLUMNS; c++)
		if (best[c] < best[first] ||
			(best[c] == best[first] && at[c] < at[first]))
			first = c;
	*least = best[first];
	return (uint8_t) at[first];
}

static void
nearest_plain(const float *rows, size_t stride, size_t n, uint32_t depth,
			  const float *panels, const float *half_norms, uint8_t *codes,
			  size_t code_stride, float *score)
{
	for (size_t i = 0; i < n; i++)
	{
		float best[NV_PANEL_COLUMNS];
		int at[NV_PANEL_COLUMNS];
		float least;

		for (int c = 0; c < NV_PANEL_COLUMNS; c++)
		{
			best[c] = INFINITY;
			at[c] = c;
		}
		for (int first = 0; first < NV_PQ_CENTROIDS; first += NV_PANEL_COLUMNS)
		{
			float acc[NV_PANEL_COLUMNS];

			memcpy(acc, half_norms + first, sizeof(acc));
			tile_plain(rows + i * stride, depth,
					   panels + (size_t) first * depth, -1.0f, acc);
			for (int c = 0; c < NV_PANEL_COLUMNS; c++)
			{
				at[c] = acc[c] < best[c] ? first + c : at[c];
				best[c] = acc[c] < best[c] ? acc[c] : best[c];
			}
		}
		codes[i * code_stride] = first_of_lanes(best, at, &least);
		if (score != NULL)
			score[i] = least;
	}
}

static void
distances_plain(const float *row, uint32_t depth, const float *panels,
				float *out)
{
	memset(out, 0, NV_PQ_CENTROIDS * sizeof(float));
	for (int column = 0; column < NV_PQ_CENTROIDS; column += NV_PANEL_COLUMNS)
		for (uint32_t k = 0; k < depth; k++)
			for (int c = 0; c < NV_PANEL_COLUMNS; c++)
			{
				float d = row[k] - panels[(size_t) column * depth +
										  (size_t) k * NV_PANEL_COLUMNS + c];

				out[column + c] += d * d;
			}
}

static void
multiply_plain(const float *rows, size_t stride, size_t n, uint32_t depth,
			   const float *panels, uint32_t columns, float *out,
			   size_t out_stride)
{
	for (uint32_t c = 0; c < columns; c += NV_PANEL_COLUMNS)
		for (size_t i = 0; i < n; i++)
		{
			float acc[NV_PANEL_COLUMNS] = {0};

			tile_plain(rows + i * stride, depth, panels + (size_t) c * depth,
					   1.0f, acc);
			memcpy(out + i * out_stride + c, acc,
				   NV_MIN(columns - c, NV_PANEL_COLUMNS) * sizeof(float));
		}
}

static void
multiply_short_plain(const float *row, uint32_t depth, const int16_t *panels,
					 uint32_t columns, float *out)
{
	for (uint32_t c = 0; c < columns; c += NV_PANEL_COLUMNS)
	{
		const int16_t *panel = panels + (size_t) c * depth;
		float acc[NV_PANEL_COLUMNS] = {0};

		for (uint32_t k = 0; k < depth; k++)
		{
			float x = row[k] * NV_SHORT_STEP;

			for (int i = 0; i < NV_PANEL_COLUMNS; i++)
				acc[i] += x * panel[(size_t) k * NV_PANEL_COLUMNS + i];
		}
		memcpy(out + c, acc,
			   NV_MIN(columns - c, NV_PANEL_COLUMNS) * sizeof(float));
	}
}

void
nv_panel_shorten(float *panels, size_t n, int16_t *out)
{
	for (size_t i = 0; i < n; i++)
	{
		float steps = rintf(panels[i] / NV_SHORT_STEP);

		steps = NV_MAX(-32767.0f, NV_MIN(steps, 32767.0f));
		out[i] = (int16_t) steps;
		panels[i] = steps * NV_SHORT_STEP;
	}
}

size_t
nv_panel_size(uint32_t depth, uint32_t columns)
{
	return (size_t) nv_round_up(columns, NV_PANEL_COLUMNS) * depth;
}

void
nv_panel_pack(const float *columns, uint32_t count, uint32_t depth,
			  float *panels)
{
	memset(panels, 0, nv_panel_size(depth, count) * sizeof(float));
	for (uint32_t c = 0; c < count; c++)
	{
		float *panel =
			panels + (size_t) (c / NV_PANEL_COLUMNS) * NV_PANEL_COLUMNS * depth;

		for (uint32_t k = 0; k < depth; k++)
			panel[(size_t) k * NV_PANEL_COLUMNS + c % NV_PANEL_COLUMNS] =
				columns[(size_t) c * depth + k];
	}
}

void
nv_panel_half_norms(const float *panels, uint32_t depth, float *half_norms)
{
	for (uint32_t c = 0; c < NV_PQ_CENTROIDS; c++)
	{
		const float *column =
			panels +
			(size_t) (c / NV_PANEL_COLUMNS) * NV_PANEL_COLUMNS * depth +
			c % NV_PANEL_COLUMNS;
		double sum = 0;

		for (uint32_t k = 0; k < depth; k++)
			sum += (double) column[(size_t) k * NV_PANEL_COLUMNS] *
				   column[(size_t) k * NV_PANEL_COLUMNS];
		half_norms[c] = (float) (sum / 2);
	}
}

#if defined(__x86_64__)
#define DISPATCH(kernel, ...)                                                  \
	do                                                                         \
	{                                                                          \
		nv_simd simd_ = nv_simd_in_use();                                      \
		if (simd_ == NV_SIMD_AVX512)                                           \
			kernel##_avx512(__VA_ARGS__);                                      \
		else if (simd_ == NV_SIMD_AVX2)                                        \
			kernel##_avx2(__VA_ARGS__);                                        \
		else                                                                   \
			kernel##_plain(__VA_ARGS__);                                       \
	} while (0)
#else
#define DISPATCH(kernel, ...) kernel##_plain(__VA_ARGS__)
#endif

void
nv_panel_nearest(const float *rows, size_t stride, size_t n, uint32_t depth,
				 const float *panels, const float *half_norms, uint8_t *codes,
				 size_t code_stride, float *score)
{
	DISPATCH(nearest, rows, stride, n, depth, panels, half_norms, codes,
			 code_stride, score);
}

void
nv_panel_distances(const float *row, uint32_t depth, const float *panels,
				   float *out)
{
	DISPATCH(distances, row, depth, panels, out);
}

float
nv_panel_least(const float *values, uint8_t *at)
{
	float lane[8], least;
	int first = 0;

	/* Eight at a time, so that comparisons overlap. */
	memcpy(lane, values, sizeof(lane));
	for (int c = 8; c < NV_PQ_CENTROIDS; c += 8)
		for (int i = 0; i < 8; i++)
			lane[i] = values[c + i] < lane[i] ? values[c + i] : lane[i];
	least = lane[0];
	for (int i = 1; i < 8; i++)
		least = lane[i] < least ? lane[i] : least;
	while (first < NV_PQ_CENTROIDS - 1 && values[first] != least)
		first++;
	*at = (uint8_t) first;
	return least;
}

void
nv_panel_multiply(const float *rows, size_t stride, size_t n, uint32_t depth,
				  const float *panels, uint32_t columns, float *out,
				  size_t out_stride)
{
	DISPATCH(multiply, rows, stride, n, depth, panels, columns, out,
			 out_stride);
}

void
nv_panel_multiply_short(const float *row, uint32_t depth, const int16_t *panels,
						uint32_t columns, float *out)
{
	DISPATCH(multiply_short, row, depth, panels, columns, out);
}
