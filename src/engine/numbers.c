/*
 * numbers.c
 *		A growing array of atomic 32-bit numbers that never moves.
 */
#include "numbers.h"

#include <sys/mman.h>

#define CHUNKS ((UINT64_C(1) << 32) / NV_NUMBERS_CHUNK)
#define DIRECTORY_BYTES (CHUNKS * sizeof(void *))
#define CHUNK_BYTES (NV_NUMBERS_CHUNK * sizeof(nv_number))

bool
nv_numbers_init(nv_numbers *numbers)
{
	void *dir = mmap(NULL, DIRECTORY_BYTES, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	numbers->chunks = dir == MAP_FAILED ? NULL : dir;
	atomic_store(&numbers->n_chunks, 0);
	return numbers->chunks != NULL;
}

void
nv_numbers_free(nv_numbers *numbers)
{
	if (numbers->chunks == NULL)
		return;
	for (uint64_t c = 0; c < atomic_load(&numbers->n_chunks); c++)
		free((void *) atomic_load(&numbers->chunks[c]));
	munmap((void *) numbers->chunks, DIRECTORY_BYTES);
	numbers->chunks = NULL;
}

bool
nv_numbers_grow(nv_numbers *numbers, uint64_t n)
{
	uint64_t have = atomic_load(&numbers->n_chunks);

	nv_assert(n <= UINT64_C(1) << 32);
	for (; have * NV_NUMBERS_CHUNK < n; have++)
	{
		nv_number *chunk = malloc(CHUNK_BYTES);

		if (chunk == NULL)
			return false;
		memset((void *) chunk, 0xff, CHUNK_BYTES); /* NV_NO_NUMBER */
		atomic_store_explicit(&numbers->chunks[have], chunk,
							  memory_order_release);
		atomic_store(&numbers->n_chunks, have + 1);
	}
	return true;
}

uint64_t
nv_numbers_memory(const nv_numbers *numbers)
{
	return atomic_load(&numbers->n_chunks) * CHUNK_BYTES;
}
