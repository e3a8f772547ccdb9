/*
 * segments.h
 *		Growing arrays in memory that are saved in 64 KiB segments, copy on
 *		write.
 *
 * An array lives in chunks of NV_CHUNK_ENTRIES entries behind a directory of
 * pointers that is mapped once, at its largest, so that readers follow two
 * pointers and take no lock: a chunk never moves.  A segment is a window of
 * NV_SEGMENT bytes of the array; since entry_bytes is a multiple of 4, a chunk
 * is a whole number of segments (16384 * e / 65536 = e / 4).
 *
 * Copy on write: whoever changes an entry holds the gate shared and touches
 * the entry's segment first.  If the segment holds changes of a closed segment
 * epoch (a cut that is being saved), touching keeps a copy of it.  After the
 * touch and until the gate is released the entry may be changed freely: the
 * checkpoint reads the copy.
 *
 * Source: design.md section 4, "Checkpoint protocol" 3 and 5.
 */
#ifndef NAVIS_SEGMENTS_H
#define NAVIS_SEGMENTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "store.h"
#include "util.h"

#define NV_CHUNK_ENTRIES 16384
#define NV_MAX_CHUNKS 262144 /* 2^32 entries */

typedef struct nv_segment
{
	pthread_mutex_t latch; /* changed, dirty, saved, and copying the bytes */
	uint64_t changed;      /* segment epoch of the last touch */
	bool dirty;            /* the place on disk does not hold these bytes */
	uint8_t *saved;        /* the bytes as of the cut being saved, or NULL */
	/* Of the checkpoint (or the opening) alone: */
	uint32_t place; /* segment of the state file, 0: none yet */
	uint32_t crc;
	uint32_t label;
} nv_segment;

typedef struct nv_chunk
{
	_Atomic(uint8_t *) bytes;
	nv_segment *segments; /* entry_bytes / 4 of them */
} nv_chunk;

typedef struct nv_array
{
	uint32_t entry_bytes; /* multiple of 4; 0: an array that is never used */
	uint32_t chunk_segments;
	nv_chunk *chunks;     /* the directory, NV_MAX_CHUNKS */
	pthread_mutex_t grow; /* chunks are added one after the other */
	uint64_t chunk_count; /* under grow */
	_Atomic uint64_t memory;
	_Atomic uint64_t dirty; /* segments that are */
} nv_array;

extern nv_status nv_array_init(nv_array *array, uint32_t entry_bytes,
							   nv_error *err);
extern void nv_array_free(nv_array *array);

/* Makes room for entries 0 .. n - 1; new ones are all zero bytes. */
extern nv_status nv_array_grow(nv_array *array, uint64_t n, nv_error *err);

/* Touches the segments of a range of bytes; see above. */
extern nv_status nv_array_touch(nv_array *array, uint64_t first_byte,
								uint64_t bytes, uint64_t epoch, nv_error *err);

/*
 * Copies a segment as of the end of segment epoch `closed` into out and calls
 * it clean; false when its place on disk already holds those bytes.
 */
extern bool nv_array_take(nv_array *array, uint64_t segment, uint64_t closed,
						  uint8_t *out);

/* Segments that n entries take. */
static inline uint64_t
nv_array_segments(const nv_array *array, uint64_t n)
{
	return (n * array->entry_bytes + NV_SEGMENT - 1) / NV_SEGMENT;
}

static inline nv_segment *
nv_array_segment(const nv_array *array, uint64_t segment)
{
	return &array->chunks[segment / array->chunk_segments]
				.segments[segment % array->chunk_segments];
}

/* The bytes of a segment. */
static inline uint8_t *
nv_array_window(const nv_array *array, uint64_t segment)
{
	nv_chunk *chunk = &array->chunks[segment / array->chunk_segments];

	return atomic_load_explicit(&chunk->bytes, memory_order_acquire) +
		   segment % array->chunk_segments * NV_SEGMENT;
}

static inline uint8_t *
nv_array_entry(const nv_array *array, uint64_t entry)
{
	nv_chunk *chunk = &array->chunks[entry / NV_CHUNK_ENTRIES];

	return atomic_load_explicit(&chunk->bytes, memory_order_acquire) +
		   entry % NV_CHUNK_ENTRIES * array->entry_bytes;
}

#endif
