/*
 * kernels.h
 *		Inside of distance.h and hash.h: what one instruction set provides.
 *
 * Every file distance_*.c holds one table of functions for one instruction
 * set; distance.c chooses a table at run time.  Vectors have no alignment
 * requirement, ADC tables are ordinary aligned floats.
 *
 * Every kernel is symmetric in its two float vectors bit for bit: terms are
 * (a - b)^2 or a * b, and their order depends on dim only.  The order of
 * summation differs between instruction sets, so values of different tables
 * agree within rounding only; adc_scan adds in the order of m everywhere and
 * agrees exactly.
 */
#ifndef NAVIS_KERNELS_H
#define NAVIS_KERNELS_H

#include "navis/distance.h"

/* Largest finite IEEE half; what is beyond is stored as this. */
#define NV_HALF_MAX 65504.0f

/* The three sums a cosine needs, in one pass. */
typedef struct nv_cosine_sums
{
	float dot, aa, bb;
} nv_cosine_sums;

typedef struct nv_kernels
{
	nv_simd simd;
	float (*l2sq)(const float *a, const float *b, uint32_t dim);
	float (*dot)(const float *a, const float *b, uint32_t dim);
	void (*cosine)(const float *a, const float *b, uint32_t dim,
				   nv_cosine_sums *sums);
	uint32_t (*l2sq_short)(const int16_t *a, const int16_t *b, uint32_t dim);
	float (*l2sq_half)(const float *a, const uint16_t *b, uint32_t dim);
	void (*to_half)(const float *a, uint16_t *out, uint32_t dim);
	void (*from_half)(const uint16_t *a, float *out, uint32_t dim);
	void (*adc_scan)(const float *table, uint32_t m_count,
					 const uint8_t *const *codes, uint32_t n, float *out);
} nv_kernels;

extern const nv_kernels nv_kernels_scalar;
#ifdef __x86_64__
extern const nv_kernels nv_kernels_avx2; /* AVX2, FMA and F16C */
extern const nv_kernels nv_kernels_avx512;
#endif
#ifdef __aarch64__
extern const nv_kernels nv_kernels_neon;
#endif

/* Portable; the other tables use them for tails or where nothing is faster. */
extern uint16_t nv_half_of_float(float value);
extern float nv_float_of_half(uint16_t half);
extern void nv_adc_scan_portable(const float *table, uint32_t m_count,
								 const uint8_t *const *codes, uint32_t n,
								 float *out);

/* CRC-32C by tables, and by instructions where nv_crc32c_has_hardware(). */
extern uint32_t nv_crc32c_tables(uint32_t crc, const void *bytes, size_t len);
extern uint32_t nv_crc32c_hardware(uint32_t crc, const void *bytes, size_t len);
extern bool nv_crc32c_has_hardware(void);

#endif
