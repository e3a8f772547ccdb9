/*
 * hash.h
 *		The 64-bit hash of a stored vector, and CRC-32C.
 */
#ifndef NAVIS_HASH_H
#define NAVIS_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * XXH3 over the vector's bytes; never 0, since 0 in the journal means "no
 * vector" (design, section 3).
 */
extern uint64_t nv_vector_hash(const void *bytes, size_t len);

/* CRC-32C (Castagnoli), start with crc = 0; hardware where there is some. */
extern uint32_t nv_crc32c(uint32_t crc, const void *bytes, size_t len);

#endif
