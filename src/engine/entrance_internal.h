/*
 * entrance_internal.h
 *		What the files of the entrance graph share: members in chunks.
 *
 * entrance.c			sample, search, tombstones
 * entrance_grow.c		members and their numbers, promotion
 * entrance_compact.c	without dropped members
 * entrance_file.c		flat form
 *
 * Members are numbered as they come.  A member's vertex and vector are written
 * before `count` is raised and never changed.  Its list has room for `cap`
 * numbers; it grows at its end (number first, then degree) or has one number
 * replaced, so a reader without lock sees a list that was right a moment ago.
 */
#ifndef NAVIS_ENTRANCE_INTERNAL_H
#define NAVIS_ENTRANCE_INTERNAL_H

#include <stdatomic.h>

#include "entrance.h"
#include "util.h"

#define NV_ENT_CHUNK 256 /* members */
#define NV_ENT_MAX_CHUNKS (UINT32_C(1) << 22)
/* The top bit of a number tells something while searching. */
#define NV_ENT_MAX_MEMBERS (UINT32_C(1) << 30)

typedef struct nv_ent_chunk
{
	uint32_t vertex[NV_ENT_CHUNK];
	_Atomic uint8_t dead[NV_ENT_CHUNK];
	_Atomic uint32_t degree[NV_ENT_CHUNK];
	_Atomic uint32_t *edges; /* NV_ENT_CHUNK * cap */
	uint16_t *half;          /* NV_ENT_CHUNK * gdim */
} nv_ent_chunk;

struct nv_entrance
{
	uint32_t gdim;
	int32_t exponent;
	uint32_t cap; /* numbers a list has room for */
	uint32_t medoid;
	_Atomic uint32_t count, dead_count;
	_Atomic uint64_t changes;
	_Atomic(nv_ent_chunk *) *chunks; /* NV_ENT_MAX_CHUNKS, mapped */
	pthread_mutex_t lock;            /* of those who change it, and the table */
	uint32_t *table;                 /* numbers, by vertex: open addressing */
	uint32_t table_size;
};

static inline nv_ent_chunk *
nv_ent_chunk_of(const nv_entrance *ent, uint32_t i)
{
	return atomic_load_explicit(&ent->chunks[i / NV_ENT_CHUNK],
								memory_order_acquire);
}

static inline uint16_t *
nv_ent_half(const nv_entrance *ent, uint32_t i)
{
	return nv_ent_chunk_of(ent, i)->half +
		   (size_t) (i % NV_ENT_CHUNK) * ent->gdim;
}

static inline uint32_t
nv_ent_vertex(const nv_entrance *ent, uint32_t i)
{
	return nv_ent_chunk_of(ent, i)->vertex[i % NV_ENT_CHUNK];
}

static inline bool
nv_ent_dead(const nv_entrance *ent, uint32_t i)
{
	return atomic_load_explicit(
			   &nv_ent_chunk_of(ent, i)->dead[i % NV_ENT_CHUNK],
			   memory_order_relaxed) != 0;
}

/* The list of a member and its degree. */
static inline _Atomic uint32_t *
nv_ent_list(const nv_entrance *ent, uint32_t i, uint32_t *degree)
{
	nv_ent_chunk *chunk = nv_ent_chunk_of(ent, i);

	*degree = atomic_load_explicit(&chunk->degree[i % NV_ENT_CHUNK],
								   memory_order_acquire);
	return chunk->edges + (size_t) (i % NV_ENT_CHUNK) * ent->cap;
}

/* An entrance graph without members; NULL: no memory. */
extern nv_entrance *nv_ent_allocate(uint32_t gdim, uint32_t cap);
/*
 * Enters a vertex as the next member: chunk, number, table; its vector and
 * list are the caller's to fill before nv_ent_publish.  The lock is held, or
 * nobody else knows the graph.  NV_ENT_MAX_MEMBERS: no memory, or full.
 */
extern uint32_t nv_ent_add(nv_entrance *ent, uint32_t vertex);
extern void nv_ent_publish(nv_entrance *ent, uint32_t number);
/* The member's number, or NV_ENT_MAX_MEMBERS; the lock is held. */
extern uint32_t nv_ent_number(const nv_entrance *ent, uint32_t vertex);

#endif
