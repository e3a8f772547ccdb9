/*
 * hash.c
 *		XXH3 of vectors, CRC-32C of everything read from a sidecar.
 *
 * CRC-32C by the instruction of SSE4.2 or ARMv8, chosen at run time, else by
 * eight tables, eight bytes a step ("slicing").
 */
#include "navis/hash.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "kernels.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

/* Castagnoli's polynomial, bits reversed. */
#define CRC32C_POLYNOMIAL UINT32_C(0x82f63b78)

uint64_t
nv_vector_hash(const void *bytes, size_t len)
{
	uint64_t hash = XXH3_64bits(bytes, len);

	return hash == 0 ? 1 : hash;
}

/*
 * crc_table[0][b] advances a CRC by the byte b, crc_table[k][b] by b and k
 * zero bytes.
 */
static uint32_t crc_table[8][256];
static pthread_once_t crc_table_once = PTHREAD_ONCE_INIT;

static void
fill_crc_table(void)
{
	for (uint32_t byte = 0; byte < 256; byte++)
	{
		uint32_t crc = byte;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ ((crc & 1) != 0 ? CRC32C_POLYNOMIAL : 0);
		crc_table[0][byte] = crc;
	}
	for (int k = 1; k < 8; k++)
	{
		for (uint32_t byte = 0; byte < 256; byte++)
		{
			uint32_t before = crc_table[k - 1][byte];

			crc_table[k][byte] = before >> 8 ^ crc_table[0][before & 0xff];
		}
	}
}

uint32_t
nv_crc32c_tables(uint32_t crc, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	pthread_once(&crc_table_once, fill_crc_table);
	crc = ~crc;
	for (; len >= 8; p += 8, len -= 8)
	{
		crc ^= (uint32_t) p[0] | (uint32_t) p[1] << 8 | (uint32_t) p[2] << 16 |
			   (uint32_t) p[3] << 24;
		crc = crc_table[7][crc & 0xff] ^ crc_table[6][crc >> 8 & 0xff] ^
			  crc_table[5][crc >> 16 & 0xff] ^ crc_table[4][crc >> 24] ^
			  crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
			  crc_table[0][p[7]];
	}
	for (; len > 0; p++, len--)
		crc = crc >> 8 ^ crc_table[0][(crc ^ *p) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)

bool
nv_crc32c_has_hardware(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("sse4.2") != 0;
}

__attribute__((target("sse4.2"))) uint32_t
nv_crc32c_hardware(uint32_t crc, const void *bytes, size_t len)
{
	const char *p = bytes;
	uint64_t state = ~crc;

	for (; len >= 8; p += 8, len -= 8)
	{
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		state = _mm_crc32_u64(state, word);
	}
	for (; len > 0; p++, len--)
		state = _mm_crc32_u8((uint32_t) state, (uint8_t) *p);
	return ~(uint32_t) state;
}

#elif defined(__aarch64__)

bool
nv_crc32c_has_hardware(void)
{
	return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

/*
 * By assembler: the intrinsics are declared only where the whole file may use
 * the instructions.
 */
uint32_t
nv_crc32c_hardware(uint32_t crc, const void *bytes, size_t len)
{
	const char *p = bytes;

	crc = ~crc;
	for (; len >= 8; p += 8, len -= 8)
	{
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		__asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1"
				: "+r"(crc)
				: "r"(word));
	}
	for (; len > 0; p++, len--)
		__asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
				: "+r"(crc)
				: "r"((uint32_t) (uint8_t) *p));
	return ~crc;
}

#else

bool
nv_crc32c_has_hardware(void)
{
	return false;
}

uint32_t
nv_crc32c_hardware(uint32_t crc, const void *bytes, size_t len)
{
	return nv_crc32c_tables(crc, bytes, len);
}

#endif

uint32_t
nv_crc32c(uint32_t crc, const void *bytes, size_t len)
{
	/* 0: not asked yet.  Whichever thread asks, the answer is the same. */
	static atomic_int hardware;
	int known = atomic_load_explicit(&hardware, memory_order_relaxed);

	if (known == 0)
	{
		known = nv_crc32c_has_hardware() ? 1 : -1;
		atomic_store_explicit(&hardware, known, memory_order_relaxed);
	}
	return known > 0 ? nv_crc32c_hardware(crc, bytes, len)
					 : nv_crc32c_tables(crc, bytes, len);
}
