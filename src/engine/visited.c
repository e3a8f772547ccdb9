/*
 * visited.c
 *		Growing and clearing the set of scored vertices.
 */
#include "visited.h"

#define FIRST_CAPACITY 1024
/* A larger table is given back on clear: probing it would miss the caches. */
#define KEPT_CAPACITY (64 * 1024)

void
nv_visited_free(nv_visited *set)
{
	free(set->slots);
	memset(set, 0, sizeof(*set));
}

void
nv_visited_clear(nv_visited *set)
{
	if (set->capacity > KEPT_CAPACITY)
		nv_visited_free(set);
	set->count = 0;
	set->stamp++;
	if (set->stamp == 0)
	{
		/* Stamps came round: old ones would look current. */
		if (set->slots != NULL)
			memset(set->slots, 0, set->capacity * sizeof(*set->slots));
		set->stamp = 1;
	}
}

static bool
grow(nv_visited *set, size_t capacity)
{
	nv_visited bigger = {.capacity = capacity, .stamp = 1};

	bigger.slots = nv_alloc_array(capacity, sizeof(*bigger.slots));
	if (bigger.slots == NULL)
		return false;
	bigger.shift = 64 - (uint32_t) __builtin_ctzll(capacity);
	for (size_t i = 0; i < set->capacity; i++)
		if (set->slots[i].stamp == set->stamp)
			nv_visited_add(&bigger, set->slots[i].id);
	nv_assert(bigger.count == set->count);
	free(set->slots);
	*set = bigger;
	return true;
}

bool
nv_visited_reserve(nv_visited *set, size_t extra)
{
	size_t need = set->count + extra;
	size_t capacity = NV_MAX(set->capacity, FIRST_CAPACITY);

	/* At most half full, so that probes stay short. */
	while (capacity / 2 < need)
		capacity *= 2;
	return capacity == set->capacity || grow(set, capacity);
}
