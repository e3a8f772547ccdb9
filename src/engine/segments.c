/*
 * segments.c
 *		Growing arrays in memory that are saved in 64 KiB segments.
 */
#include "segments.h"

#include <sys/mman.h>

#define DIRECTORY_BYTES (NV_MAX_CHUNKS * sizeof(nv_chunk))

nv_status
nv_array_init(nv_array *array, uint32_t entry_bytes, nv_error *err)
{
	void *dir;

	nv_assert(entry_bytes % 4 == 0);
	array->entry_bytes = entry_bytes;
	array->chunk_segments = entry_bytes / 4;
	array->chunks = NULL;
	array->chunk_count = 0;
	atomic_store(&array->memory, 0);
	atomic_store(&array->dirty, 0);
	/* Only the part of the directory that is used takes memory. */
	dir = mmap(NULL, DIRECTORY_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (dir == MAP_FAILED)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a map directory");
	array->chunks = dir;
	pthread_mutex_init(&array->grow, NULL);
	return NV_OK;
}

void
nv_array_free(nv_array *array)
{
	if (array->chunks == NULL)
		return;
	for (uint64_t c = 0; c < array->chunk_count; c++)
	{
		nv_chunk *chunk = &array->chunks[c];

		for (uint32_t s = 0; s < array->chunk_segments; s++)
		{
			free(chunk->segments[s].saved);
			pthread_mutex_destroy(&chunk->segments[s].latch);
		}
		free(chunk->segments);
		free(atomic_load(&chunk->bytes));
	}
	munmap(array->chunks, DIRECTORY_BYTES);
	pthread_mutex_destroy(&array->grow);
	array->chunks = NULL;
}

/* Called with array->grow held. */
static nv_status
add_chunk(nv_array *array, nv_error *err)
{
	nv_chunk *chunk = &array->chunks[array->chunk_count];
	size_t bytes = (size_t) NV_CHUNK_ENTRIES * array->entry_bytes;
	uint8_t *memory;

	if (array->chunk_count >= NV_MAX_CHUNKS)
		return nv_fail(err, NV_ELIMIT, 0,
					   "an index holds at most 4294967294 elements");
	chunk->segments = nv_alloc_array(array->chunk_segments, sizeof(nv_segment));
	memory = calloc(1, bytes); /* fresh pages stay untouched */
	if (chunk->segments == NULL || memory == NULL)
	{
		free(chunk->segments);
		free(memory);
		chunk->segments = NULL;
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for %zu bytes of an index's map", bytes);
	}
	for (uint32_t s = 0; s < array->chunk_segments; s++)
		pthread_mutex_init(&chunk->segments[s].latch, NULL);
	array->chunk_count++;
	atomic_fetch_add(&array->memory,
					 bytes + array->chunk_segments * sizeof(nv_segment));
	atomic_store_explicit(&chunk->bytes, memory, memory_order_release);
	return NV_OK;
}

nv_status
nv_array_grow(nv_array *array, uint64_t n, nv_error *err)
{
	uint64_t chunks = (n + NV_CHUNK_ENTRIES - 1) / NV_CHUNK_ENTRIES;
	nv_status status = NV_OK;

	if (array->entry_bytes == 0)
		return NV_OK;
	pthread_mutex_lock(&array->grow);
	while (status == NV_OK && array->chunk_count < chunks)
		status = add_chunk(array, err);
	pthread_mutex_unlock(&array->grow);
	return status;
}

static nv_status
touch_segment(nv_array *array, uint64_t segment, uint64_t epoch, nv_error *err)
{
	nv_segment *seg = nv_array_segment(array, segment);
	nv_status status = NV_OK;

	pthread_mutex_lock(&seg->latch);
	nv_assert(seg->changed <= epoch);
	if (seg->dirty && seg->changed < epoch && seg->saved == NULL)
	{
		/* Changed before a cut whose checkpoint has not come by yet. */
		seg->saved = aligned_alloc(NV_BLOCK, NV_SEGMENT);
		if (seg->saved != NULL)
		{
			memcpy(seg->saved, nv_array_window(array, segment), NV_SEGMENT);
			atomic_fetch_add(&array->memory, NV_SEGMENT);
		}
		else
			status = nv_fail(err, NV_ENOMEM, 0,
							 "no memory to save a segment for a checkpoint");
	}
	if (status == NV_OK)
	{
		atomic_fetch_add(&array->dirty, !seg->dirty);
		seg->dirty = true;
		seg->changed = epoch;
	}
	pthread_mutex_unlock(&seg->latch);
	return status;
}

nv_status
nv_array_touch(nv_array *array, uint64_t first_byte, uint64_t bytes,
			   uint64_t epoch, nv_error *err)
{
	uint64_t last;

	if (array->entry_bytes == 0 || bytes == 0)
		return NV_OK;
	last = (first_byte + bytes - 1) / NV_SEGMENT;
	for (uint64_t s = first_byte / NV_SEGMENT; s <= last; s++)
	{
		nv_status status = touch_segment(array, s, epoch, err);

		if (status != NV_OK)
			return status;
	}
	return NV_OK;
}

bool
nv_array_take(nv_array *array, uint64_t segment, uint64_t closed, uint8_t *out)
{
	nv_segment *seg = nv_array_segment(array, segment);
	bool found = false;

	pthread_mutex_lock(&seg->latch);
	if (seg->saved != NULL)
	{
		/* Still dirty: it was changed again after the cut. */
		memcpy(out, seg->saved, NV_SEGMENT);
		free(seg->saved);
		seg->saved = NULL;
		atomic_fetch_sub(&array->memory, NV_SEGMENT);
		found = true;
	}
	else if (seg->dirty && seg->changed <= closed)
	{
		/* Nobody can change the bytes without touching, that is, the latch. */
		memcpy(out, nv_array_window(array, segment), NV_SEGMENT);
		seg->dirty = false;
		atomic_fetch_sub(&array->dirty, 1);
		found = true;
	}
	pthread_mutex_unlock(&seg->latch);
	return found;
}
