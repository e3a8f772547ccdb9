/*
 * distance.h
 *		Distance kernels, shared by the SQL operators and the engine.
 *
 * Vectors are arrays of dim IEEE floats without alignment requirement.  Every
 * kernel is chosen once at run time among scalar, AVX2+FMA, AVX-512 and NEON;
 * within one process the choice does not change, so that equal arguments give
 * bit-equal results wherever they are computed.
 */
#ifndef NAVIS_DISTANCE_H
#define NAVIS_DISTANCE_H

#include "navis/status.h"

#define NV_MAX_DIM 16000

typedef enum nv_metric
{
	NV_METRIC_L2 = 1,
	NV_METRIC_IP = 2,
	NV_METRIC_COSINE = 3
} nv_metric;

typedef enum nv_simd
{
	NV_SIMD_SCALAR,
	NV_SIMD_AVX2,
	NV_SIMD_AVX512,
	NV_SIMD_NEON
} nv_simd;

/*
 * The value of the SQL operators <->, <#>, <=>: Euclidean distance, negative
 * inner product, 1 - cosine.  Symmetric in a and b, bit for bit.  Finite for
 * finite input: when float arithmetic overflows (or norms underflow) the value
 * is computed again in double.  Cosine of a zero vector is NaN.
 */
extern double nv_distance(nv_metric metric, const float *a, const float *b,
						  uint32_t dim);

/* Squared Euclidean distance and inner product in float (may overflow). */
extern float nv_l2sq(const float *a, const float *b, uint32_t dim);
extern float nv_dot(const float *a, const float *b, uint32_t dim);

/* Squared Euclidean distance of a float vector and an IEEE half vector. */
extern float nv_l2sq_half(const float *a, const uint16_t *b, uint32_t dim);
extern void nv_to_half(const float *a, uint16_t *out, uint32_t dim);
extern void nv_from_half(const uint16_t *a, float *out, uint32_t dim);

/*
 * Squared Euclidean distance of vectors of integers.  Their differences fit 16
 * bits, and the result 31: see nv_pq.short_unit.
 */
extern uint32_t nv_l2sq_short(const int16_t *a, const int16_t *b, uint32_t dim);

/* Euclidean norm, in double throughout; 0 only for the zero vector. */
extern double nv_norm(const float *a, uint32_t dim);

/*
 * ADC: out[i] = sum over m < m_count of table[m * 256 + code_i[m]], where
 * code_i = codes[i], an array of n pointers to codes.
 */
extern void nv_adc_scan(const float *table, uint32_t m_count,
						const uint8_t *const *codes, uint32_t n, float *out);

/* What is in use, and (for tests) a way to force one; false if not possible. */
extern nv_simd nv_simd_in_use(void);
extern bool nv_simd_available(nv_simd simd);
extern bool nv_simd_force(nv_simd simd);
extern const char *nv_simd_name(nv_simd simd);

#endif
