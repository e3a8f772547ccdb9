/*
 * free_vertex.c
 *		Vertices that are freed, and how their ids come back.
 *
 * A freed vertex has edge word 0, like an id that was never used, so the free
 * state needs no place of its own on disk: the map tells it.  But until a root
 * is published that was cut after the word became 0, the last root names the
 * vertex's list and record, and they must stay.  Until then the id is *held*:
 * a bit is set before the word becomes 0 and cleared when that root is out.
 *
 * The unit of the id (vertex.c) may be in the stack of units with unused ids,
 * or some writer's.  Then it only gets a flag, and whoever lets go of it puts
 * it back into the stack.
 *
 * Source: design.md section 4, "Checkpoint protocol" 2, 10, 12.
 */
#include "store_internal.h"

#define FIRST_ROOM 1024

/* Room for n entries of some size, new ones zero; false: no memory. */
static bool
grow(void *pointer, uint64_t *room, uint64_t n, size_t size)
{
	uint64_t want = NV_MAX(*room * 2, (uint64_t) FIRST_ROOM);
	uint8_t *old, *grown;

	if (n <= *room)
		return true;
	memcpy(&old, pointer, sizeof(old));
	want = NV_MAX(want, n);
	grown = realloc(old, want * size);
	if (grown == NULL)
		return false;
	memset(grown + *room * size, 0, (want - *room) * size);
	memcpy(pointer, &grown, sizeof(grown));
	*room = want;
	return true;
}

static nv_status
no_memory(nv_error *err)
{
	return nv_fail(err, NV_ENOMEM, 0, "no memory to keep unused ids");
}

/* --- Units --- */

nv_status
nv_unit_take(nv_vectors *vectors, uint64_t unit, nv_error *err)
{
	if (!grow(&vectors->unit_flags, &vectors->flag_room, unit + 1,
			  sizeof(*vectors->unit_flags)))
		return no_memory(err);
	vectors->unit_flags[unit] = NV_UNIT_TAKEN;
	return NV_OK;
}

bool
nv_unit_leave(nv_vectors *vectors, uint64_t unit)
{
	bool again;

	nv_assert(unit < vectors->flag_room);
	again = vectors->unit_flags[unit] & NV_UNIT_AGAIN;
	vectors->unit_flags[unit] = 0;
	return again;
}

/* An id of the unit may be used again; vectors->lock is held. */
static void
return_unit(nv_vectors *vectors, uint64_t unit)
{
	/* Not counted yet: counting finds it. */
	if (!vectors->counted)
		return;
	if (unit < vectors->flag_room && vectors->unit_flags[unit] & NV_UNIT_TAKEN)
		vectors->unit_flags[unit] |= NV_UNIT_AGAIN;
	else
		/* Without memory it waits until the store is opened again. */
		(void) nv_unit_push(vectors, unit, NULL);
}

/* --- Ids --- */

bool
nv_id_held(const nv_vectors *vectors, uint32_t vertex)
{
	return vertex / 64 < vectors->held_room &&
		   (vectors->held[vertex / 64] >> vertex % 64 & 1) != 0;
}

static void
set_held(nv_vectors *vectors, uint32_t vertex, bool on)
{
	uint64_t bit = UINT64_C(1) << vertex % 64;

	if (on)
		vectors->held[vertex / 64] |= bit;
	else
		vectors->held[vertex / 64] &= ~bit;
}

/* Room for one more held id; vectors->lock is held. */
static bool
make_room(nv_vectors *vectors, uint32_t vertex)
{
	return grow(&vectors->freed, &vectors->freed_room, vectors->freed_count + 1,
				sizeof(*vectors->freed)) &&
		   grow(&vectors->held, &vectors->held_room, (uint64_t) vertex / 64 + 1,
				sizeof(*vectors->held));
}

nv_status
nv_store_free_vertex(nv_store *store, uint32_t vertex, nv_error *err)
{
	nv_vectors *vectors = &store->vectors;
	uint64_t death = 0;
	nv_status status;
	bool room, held;

	pthread_mutex_lock(&vectors->lock);
	held = nv_id_held(vectors, vertex);
	room = make_room(vectors, vertex);
	if (room)
		set_held(vectors, vertex, true);
	pthread_mutex_unlock(&vectors->lock);
	if (held)
		return nv_fail(err, NV_EINVAL, 0, "vertex %u is free already", vertex);
	if (!room)
		return no_memory(err);
	status = nv_store_drop_list(store, vertex, &death, err);
	pthread_mutex_lock(&vectors->lock);
	if (status != NV_OK)
		set_held(vectors, vertex, false);
	else if (make_room(vectors, vertex))
		vectors->freed[vectors->freed_count++] = (nv_freed){vertex, death};
	/* else: held until the store is opened again */
	pthread_mutex_unlock(&vectors->lock);
	return status;
}

void
nv_freed_published(nv_store *store, uint64_t sequence)
{
	nv_vectors *vectors = &store->vectors;
	uint32_t records = nv_unit_records(store);
	uint64_t kept = 0;

	pthread_mutex_lock(&vectors->lock);
	for (uint64_t i = 0; i < vectors->freed_count; i++)
	{
		nv_freed freed = vectors->freed[i];

		if (freed.death > sequence)
		{
			vectors->freed[kept++] = freed;
			continue;
		}
		set_held(vectors, freed.vertex, false);
		return_unit(vectors, freed.vertex / records);
	}
	vectors->freed_count = kept;
	pthread_mutex_unlock(&vectors->lock);
}
