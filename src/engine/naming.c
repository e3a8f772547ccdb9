/*
 * naming.c
 *		The table of naming.h.
 */
#include "naming.h"

#define MIN_CAPACITY 1024

bool
nv_naming_begin(nv_naming *naming, size_t ids)
{
	size_t capacity = MIN_CAPACITY;

	/* At most half full, so that probes stay short. */
	while (capacity / 2 < ids)
		capacity *= 2;
	if (capacity > naming->capacity)
	{
		nv_naming_free(naming);
		naming->slots = nv_alloc_array(capacity, sizeof(*naming->slots));
		if (naming->slots == NULL)
			return false;
		naming->capacity = capacity;
		naming->shift = 64 - (uint32_t) __builtin_ctzll(capacity);
	}
	if (++naming->stamp == 0)
	{
		/* Stamps came round: old ones would look current. */
		memset(naming->slots, 0, naming->capacity * sizeof(*naming->slots));
		naming->stamp = 1;
	}
	return true;
}

void
nv_naming_free(nv_naming *naming)
{
	free(naming->slots);
	memset(naming, 0, sizeof(*naming));
}

/* Where the id is, or would be. */
static nv_naming_slot *
find(const nv_naming *naming, uint32_t id)
{
	uint64_t hash = id * UINT64_C(0x9e3779b97f4a7c15);
	size_t i = (size_t) (hash >> naming->shift);

	while (naming->slots[i].stamp == naming->stamp && naming->slots[i].id != id)
		i = (i + 1) & (naming->capacity - 1);
	return &naming->slots[i];
}

void
nv_naming_add(nv_naming *naming, uint32_t id)
{
	nv_naming_slot *slot = find(naming, id);

	if (slot->stamp != naming->stamp)
		*slot = (nv_naming_slot){id, naming->stamp, 0};
	slot->count += slot->count < UINT16_MAX;
}

void
nv_naming_remove(nv_naming *naming, uint32_t id)
{
	nv_naming_slot *slot = find(naming, id);

	if (slot->stamp == naming->stamp && slot->count > 0)
		slot->count--;
}

uint32_t
nv_naming_count(const nv_naming *naming, uint32_t id)
{
	const nv_naming_slot *slot = find(naming, id);

	return slot->stamp == naming->stamp ? slot->count : 0;
}
