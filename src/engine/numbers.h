/*
 * numbers.h
 *		A growing array of atomic 32-bit numbers that never moves, so that
 *		readers need no lock.
 *
 * Chunks hang on a directory that is mapped once at its largest; only what is
 * used of it takes memory.  Numbers that were never set are NV_NO_NUMBER.  Who
 * grows an array sees to it that nobody else does at the same time.
 */
#ifndef NAVIS_NUMBERS_H
#define NAVIS_NUMBERS_H

#include <stdatomic.h>

#include "util.h"

#define NV_NO_NUMBER UINT32_MAX
#define NV_NUMBERS_CHUNK 16384

typedef _Atomic uint32_t nv_number;

typedef struct nv_numbers
{
	_Atomic(nv_number *) *chunks; /* the directory */
	_Atomic uint64_t n_chunks;    /* changed by whoever grows it */
} nv_numbers;

extern bool nv_numbers_init(nv_numbers *numbers);
extern void nv_numbers_free(nv_numbers *numbers);
/* Room for numbers 0 .. n - 1, n <= 2^32; false: no memory. */
extern bool nv_numbers_grow(nv_numbers *numbers, uint64_t n);
extern uint64_t nv_numbers_memory(const nv_numbers *numbers);

/* A number there is room for. */
static inline nv_number *
nv_numbers_at(const nv_numbers *numbers, uint32_t i)
{
	nv_number *chunk = atomic_load_explicit(
		&numbers->chunks[i / NV_NUMBERS_CHUNK], memory_order_acquire);

	nv_assert(chunk != NULL);
	return &chunk[i % NV_NUMBERS_CHUNK];
}

/* Its value; NV_NO_NUMBER where there is no room. */
static inline uint32_t
nv_numbers_get(const nv_numbers *numbers, uint32_t i)
{
	nv_number *chunk = atomic_load_explicit(
		&numbers->chunks[i / NV_NUMBERS_CHUNK], memory_order_acquire);

	return chunk == NULL ? NV_NO_NUMBER
						 : atomic_load(&chunk[i % NV_NUMBERS_CHUNK]);
}

#endif
