/*
 * visited.h
 *		The set of vertices a search has scored: open addressing, growing,
 *		stamped with a generation so that clearing it costs nothing.
 *
 * Source: algorithms.md section 6.
 */
#ifndef NAVIS_VISITED_H
#define NAVIS_VISITED_H

#include "util.h"

typedef struct nv_visited_slot
{
	uint32_t id;
	uint32_t stamp; /* in use when equal to the set's stamp */
} nv_visited_slot;

typedef struct nv_visited
{
	nv_visited_slot *slots;
	size_t capacity; /* a power of two, or 0 before the first reserve */
	size_t count;
	uint32_t stamp;
	uint32_t shift; /* 64 - log2(capacity) */
} nv_visited;

/* Forgets all ids; gives memory back that only a huge search needs. */
extern void nv_visited_clear(nv_visited *set);
extern void nv_visited_free(nv_visited *set);

/* Makes room for `extra` more ids; false when there is no memory. */
extern bool nv_visited_reserve(nv_visited *set, size_t extra);

static inline size_t
nv_visited_home(const nv_visited *set, uint32_t id)
{
	return (size_t) ((id * UINT64_C(0x9e3779b97f4a7c15)) >> set->shift);
}

/* Adds an id (room was reserved); true when it was not there. */
static inline bool
nv_visited_add(nv_visited *set, uint32_t id)
{
	size_t i = nv_visited_home(set, id);

	while (set->slots[i].stamp == set->stamp)
	{
		if (set->slots[i].id == id)
			return false;
		i = (i + 1) & (set->capacity - 1);
	}
	set->slots[i] = (nv_visited_slot){.id = id, .stamp = set->stamp};
	set->count++;
	return true;
}

/* True when the id is there; room was reserved before. */
static inline bool
nv_visited_has(const nv_visited *set, uint32_t id)
{
	size_t i = nv_visited_home(set, id);

	for (; set->slots[i].stamp == set->stamp; i = (i + 1) & (set->capacity - 1))
		if (set->slots[i].id == id)
			return true;
	return false;
}

static inline void
nv_visited_prefetch(const nv_visited *set, uint32_t id)
{
	__builtin_prefetch(&set->slots[nv_visited_home(set, id)], 1);
}

#endif
