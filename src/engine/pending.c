/*
 * pending.c
 *		Rows that have no vertex yet.
 *
 * Slots live in chunks that never move; a freed slot is used again.  A table
 * with open addressing finds an element's slot.  One readers-writer lock
 * guards all; searches take it a slice at a time, so that a writer waits for
 * one slice at most.  Rows that wait to be linked form a queue, in the order
 * in which they came.
 */
#include "pending.h"

#include "util.h"

#define CHUNK 1024         /* slots */
#define MAX_CHUNKS 65536   /* 64 Mi rows */
#define SLOT_OVERHEAD 48   /* entry, table and chunk bookkeeping, bytes */
#define NO_SLOT UINT32_MAX /* empty place of the table */
#define GONE_SLOT (UINT32_MAX - 1)

typedef struct pending_chunk
{
	nv_journal_entry entry[CHUNK];
	bool live[CHUNK];
	bool waits[CHUNK];    /* in the queue */
	uint32_t next[CHUNK]; /* of the queue, slots */
	uint32_t prev[CHUNK];
	float vectors[]; /* CHUNK * dim */
} pending_chunk;

struct nv_pending
{
	pthread_rwlock_t lock;
	uint32_t dim;
	_Atomic uint64_t *bytes_used;
	_Atomic uint64_t limit;
	pending_chunk **chunks;
	uint32_t n_slots; /* ever used */
	_Atomic uint32_t n_live;
	uint32_t *free_slots;
	uint32_t n_free, free_room;
	uint32_t *table; /* slot numbers, by element */
	uint32_t table_size, table_used;
	uint32_t first, last; /* of the queue, or NO_SLOT */
	_Atomic uint64_t waiting;
};

uint64_t
nv_pending_row_bytes(uint32_t dim)
{
	return (uint64_t) dim * sizeof(float) + SLOT_OVERHEAD;
}

static bool
init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;
	bool ok;

	pthread_rwlockattr_init(&attr);
	/* Readers come without end; a writer must get in. */
	pthread_rwlockattr_setkind_np(&attr,
								  PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	ok = pthread_rwlock_init(lock, &attr) == 0;
	pthread_rwlockattr_destroy(&attr);
	return ok;
}

nv_pending *
nv_pending_create(uint32_t dim, _Atomic uint64_t *bytes_used, uint64_t limit)
{
	nv_pending *p = nv_alloc(sizeof(*p));

	if (p == NULL)
		return NULL;
	p->dim = dim;
	p->first = p->last = NO_SLOT;
	p->bytes_used = bytes_used;
	p->limit = limit;
	p->chunks = nv_alloc_array(MAX_CHUNKS, sizeof(*p->chunks));
	if (p->chunks == NULL || !init_lock(&p->lock))
	{
		free(p->chunks);
		free(p);
		return NULL;
	}
	return p;
}

void
nv_pending_set_limit(nv_pending *p, uint64_t limit)
{
	atomic_store(&p->limit, limit);
}

/* All rows, with all that grows with their number. */
static void
free_rows(nv_pending *p)
{
	atomic_fetch_sub(p->bytes_used,
					 (uint64_t) p->n_live * nv_pending_row_bytes(p->dim));
	for (uint32_t i = 0; i < MAX_CHUNKS && p->chunks[i] != NULL; i++)
	{
		free(p->chunks[i]);
		p->chunks[i] = NULL;
	}
	free(p->free_slots);
	free(p->table);
}

void
nv_pending_clear(nv_pending *p)
{
	pthread_rwlock_wrlock(&p->lock);
	free_rows(p);
	p->free_slots = p->table = NULL;
	p->n_slots = p->n_free = p->free_room = 0;
	p->table_size = p->table_used = 0;
	p->first = p->last = NO_SLOT;
	atomic_store(&p->n_live, 0);
	atomic_store(&p->waiting, 0);
	pthread_rwlock_unlock(&p->lock);
}

void
nv_pending_free(nv_pending *p)
{
	if (p == NULL)
		return;
	free_rows(p);
	free(p->chunks);
	pthread_rwlock_destroy(&p->lock);
	free(p);
}

static inline pending_chunk *
chunk_of(const nv_pending *p, uint32_t slot)
{
	return p->chunks[slot / CHUNK];
}

static inline nv_journal_entry *
entry_of(const nv_pending *p, uint32_t slot)
{
	return &chunk_of(p, slot)->entry[slot % CHUNK];
}

static inline uint32_t
table_start(const nv_pending *p, uint32_t element)
{
	return (uint32_t) (((uint64_t) element * 0x9e3779b97f4a7c15u) >> 32) &
		   (p->table_size - 1);
}

/* Place of the element in the table, or NO_SLOT. */
static uint32_t
table_find(const nv_pending *p, uint32_t element)
{
	if (p->table_size == 0)
		return NO_SLOT;
	for (uint32_t i = table_start(p, element);;
		 i = (i + 1) & (p->table_size - 1))
	{
		if (p->table[i] == NO_SLOT)
			return NO_SLOT;
		if (p->table[i] != GONE_SLOT &&
			entry_of(p, p->table[i])->element == element)
			return i;
	}
}

static void
table_put(nv_pending *p, uint32_t slot)
{
	uint32_t i = table_start(p, entry_of(p, slot)->element);

	while (p->table[i] != NO_SLOT && p->table[i] != GONE_SLOT)
		i = (i + 1) & (p->table_size - 1);
	if (p->table[i] == NO_SLOT)
		p->table_used++;
	p->table[i] = slot;
}

/* Keeps the table at most half full, counting places that were left. */
static bool
table_reserve(nv_pending *p)
{
	uint32_t size = 64, old_size = p->table_size;
	uint32_t *old = p->table, *fresh;

	if ((uint64_t) (p->table_used + 1) * 2 <= p->table_size)
		return true;
	while ((uint64_t) size < ((uint64_t) p->n_live + 1) * 4)
		size *= 2;
	fresh = malloc((size_t) size * sizeof(*fresh));
	if (fresh == NULL)
		return false;
	memset(fresh, 0xff, (size_t) size * sizeof(*fresh));
	p->table = fresh;
	p->table_size = size;
	p->table_used = 0;
	for (uint32_t i = 0; i < old_size; i++)
		if (old[i] != NO_SLOT && old[i] != GONE_SLOT)
			table_put(p, old[i]);
	free(old);
	return true;
}

/* A free slot with its chunk in place; NO_SLOT when there is no memory. */
static uint32_t
slot_reserve(nv_pending *p)
{
	uint32_t chunk;

	if (p->n_free > 0)
		return p->free_slots[p->n_free - 1];
	chunk = p->n_slots / CHUNK;
	if (chunk >= MAX_CHUNKS)
		return NO_SLOT;
	if (p->chunks[chunk] == NULL)
	{
		/* Room to free every slot must be there before it is needed. */
		uint32_t room = (chunk + 1) * CHUNK;
		uint32_t *grown = realloc(p->free_slots, room * sizeof(*grown));

		if (grown == NULL)
			return NO_SLOT;
		p->free_slots = grown;
		p->free_room = room;
		p->chunks[chunk] = malloc(sizeof(pending_chunk) +
								  (size_t) CHUNK * p->dim * sizeof(float));
		if (p->chunks[chunk] == NULL)
			return NO_SLOT;
		memset(p->chunks[chunk]->live, 0, sizeof(p->chunks[chunk]->live));
		memset(p->chunks[chunk]->waits, 0, sizeof(p->chunks[chunk]->waits));
	}
	return p->n_slots;
}

/* --- The queue --- */

static inline uint32_t *
next_of(const nv_pending *p, uint32_t slot)
{
	return &chunk_of(p, slot)->next[slot % CHUNK];
}

static inline uint32_t *
prev_of(const nv_pending *p, uint32_t slot)
{
	return &chunk_of(p, slot)->prev[slot % CHUNK];
}

static void
queue_in(nv_pending *p, uint32_t slot)
{
	nv_assert(!chunk_of(p, slot)->waits[slot % CHUNK]);
	*next_of(p, slot) = NO_SLOT;
	*prev_of(p, slot) = p->last;
	if (p->last != NO_SLOT)
		*next_of(p, p->last) = slot;
	else
		p->first = slot;
	p->last = slot;
	chunk_of(p, slot)->waits[slot % CHUNK] = true;
	atomic_fetch_add(&p->waiting, 1);
}

/* Nothing happens to a slot that is not in the queue. */
static void
queue_out(nv_pending *p, uint32_t slot)
{
	uint32_t next = *next_of(p, slot), prev = *prev_of(p, slot);

	if (!chunk_of(p, slot)->waits[slot % CHUNK])
		return;
	if (prev != NO_SLOT)
		*next_of(p, prev) = next;
	else
		p->first = next;
	if (next != NO_SLOT)
		*prev_of(p, next) = prev;
	else
		p->last = prev;
	chunk_of(p, slot)->waits[slot % CHUNK] = false;
	atomic_fetch_sub(&p->waiting, 1);
}

bool
nv_pending_take(nv_pending *p, nv_journal_entry *entry, float *vector)
{
	uint32_t slot;

	pthread_rwlock_wrlock(&p->lock);
	slot = p->first;
	if (slot != NO_SLOT)
	{
		queue_out(p, slot);
		*entry = *entry_of(p, slot);
		memcpy(vector,
			   chunk_of(p, slot)->vectors + (size_t) (slot % CHUNK) * p->dim,
			   p->dim * sizeof(float));
	}
	pthread_rwlock_unlock(&p->lock);
	return slot != NO_SLOT;
}

void
nv_pending_give_back(nv_pending *p, const nv_journal_entry *entry)
{
	uint32_t place, slot;

	pthread_rwlock_wrlock(&p->lock);
	place = table_find(p, entry->element);
	slot = place != NO_SLOT ? p->table[place] : NO_SLOT;
	if (slot != NO_SLOT && entry_of(p, slot)->generation == entry->generation &&
		!chunk_of(p, slot)->waits[slot % CHUNK])
		queue_in(p, slot);
	pthread_rwlock_unlock(&p->lock);
}

void
nv_pending_hurry(nv_pending *p, const nv_journal_entry *entry)
{
	uint32_t place, slot;

	pthread_rwlock_wrlock(&p->lock);
	place = table_find(p, entry->element);
	slot = place != NO_SLOT ? p->table[place] : NO_SLOT;
	if (slot != NO_SLOT && entry_of(p, slot)->generation == entry->generation &&
		chunk_of(p, slot)->waits[slot % CHUNK] && p->first != slot)
	{
		queue_out(p, slot);
		*prev_of(p, slot) = NO_SLOT;
		*next_of(p, slot) = p->first;
		if (p->first != NO_SLOT)
			*prev_of(p, p->first) = slot;
		else
			p->last = slot;
		p->first = slot;
		chunk_of(p, slot)->waits[slot % CHUNK] = true;
		atomic_fetch_add(&p->waiting, 1);
	}
	pthread_rwlock_unlock(&p->lock);
}

uint64_t
nv_pending_waiting(const nv_pending *p)
{
	return atomic_load(&p->waiting);
}

/* --- Rows --- */

static void
remove_place(nv_pending *p, uint32_t place)
{
	uint32_t slot = p->table[place];

	nv_assert(chunk_of(p, slot)->live[slot % CHUNK]);
	queue_out(p, slot);
	p->table[place] = GONE_SLOT;
	chunk_of(p, slot)->live[slot % CHUNK] = false;
	nv_assert(p->n_free < p->free_room);
	p->free_slots[p->n_free++] = slot;
	p->n_live--;
	atomic_fetch_sub(p->bytes_used, nv_pending_row_bytes(p->dim));
}

static nv_status
add_locked(nv_pending *p, const nv_journal_entry *entry, const float *vector,
		   nv_error *err)
{
	uint32_t place = table_find(p, entry->element);
	uint64_t row = nv_pending_row_bytes(p->dim), limit = atomic_load(&p->limit);
	uint32_t slot;

	if (place != NO_SLOT)
	{
		if (entry_of(p, p->table[place])->generation == entry->generation)
			return NV_OK;
		remove_place(p, place);
	}
	if (atomic_fetch_add(p->bytes_used, row) + row > limit)
	{
		atomic_fetch_sub(p->bytes_used, row);
		return nv_fail(err, NV_ELIMIT, 0,
					   "unlinked vectors do not fit %llu bytes of "
					   "navis.pending_memory",
					   (unsigned long long) limit);
	}
	slot = table_reserve(p) ? slot_reserve(p) : NO_SLOT;
	if (slot == NO_SLOT)
	{
		atomic_fetch_sub(p->bytes_used, row);
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for an unlinked vector of %u dimensions",
					   p->dim);
	}
	if (p->n_free > 0)
		p->n_free--;
	else
		p->n_slots++;
	*entry_of(p, slot) = *entry;
	memcpy(chunk_of(p, slot)->vectors + (size_t) (slot % CHUNK) * p->dim,
		   vector, p->dim * sizeof(float));
	chunk_of(p, slot)->live[slot % CHUNK] = true;
	p->n_live++;
	table_put(p, slot);
	queue_in(p, slot);
	return NV_OK;
}

nv_status
nv_pending_add(nv_pending *p, const nv_journal_entry *entry,
			   const float *vector, nv_error *err)
{
	nv_status status;

	pthread_rwlock_wrlock(&p->lock);
	status = add_locked(p, entry, vector, err);
	pthread_rwlock_unlock(&p->lock);
	return status;
}

bool
nv_pending_remove(nv_pending *p, uint32_t element, uint32_t generation)
{
	uint32_t place;
	bool found = false;

	pthread_rwlock_wrlock(&p->lock);
	place = table_find(p, element);
	if (place != NO_SLOT &&
		entry_of(p, p->table[place])->generation == generation)
	{
		remove_place(p, place);
		found = true;
	}
	pthread_rwlock_unlock(&p->lock);
	return found;
}

bool
nv_pending_has(nv_pending *p, uint32_t element, uint32_t generation,
			   uint64_t hash)
{
	uint32_t place;
	bool found = false;

	pthread_rwlock_rdlock(&p->lock);
	place = table_find(p, element);
	if (place != NO_SLOT)
	{
		const nv_journal_entry *e = entry_of(p, p->table[place]);

		found = e->generation == generation && e->hash == hash;
	}
	pthread_rwlock_unlock(&p->lock);
	return found;
}

uint64_t
nv_pending_count(const nv_pending *p)
{
	return atomic_load(&p->n_live);
}

uint32_t
nv_pending_scan(nv_pending *p, nv_metric metric, const float *query,
				uint32_t from, uint32_t n, nv_hit *out, bool *more)
{
	uint32_t hits = 0;

	pthread_rwlock_rdlock(&p->lock);
	for (uint32_t slot = from; slot < p->n_slots && slot - from < n; slot++)
	{
		const pending_chunk *chunk = chunk_of(p, slot);
		uint32_t i = slot % CHUNK;

		if (!chunk->live[i])
			continue;
		out[hits].element = chunk->entry[i].element;
		out[hits].generation = chunk->entry[i].generation;
		out[hits].distance = nv_distance(
			metric, query, chunk->vectors + (size_t) i * p->dim, p->dim);
		hits++;
	}
	*more = p->n_slots - NV_MIN(from, p->n_slots) > n;
	pthread_rwlock_unlock(&p->lock);
	return hits;
}

bool
nv_pending_generation(nv_pending *p, uint32_t element, uint32_t *generation)
{
	uint32_t place;

	pthread_rwlock_rdlock(&p->lock);
	place = table_find(p, element);
	if (place != NO_SLOT)
		*generation = entry_of(p, p->table[place])->generation;
	pthread_rwlock_unlock(&p->lock);
	return place != NO_SLOT;
}

uint32_t
nv_pending_copy(nv_pending *p, uint32_t from, uint32_t n,
				nv_journal_entry *entries, float *vectors, bool *more)
{
	uint32_t found = 0;

	pthread_rwlock_rdlock(&p->lock);
	for (uint32_t slot = from; slot < p->n_slots && slot - from < n; slot++)
	{
		const pending_chunk *chunk = chunk_of(p, slot);
		uint32_t i = slot % CHUNK;

		if (!chunk->live[i])
			continue;
		entries[found] = chunk->entry[i];
		memcpy(vectors + (size_t) found * p->dim,
			   chunk->vectors + (size_t) i * p->dim, p->dim * sizeof(float));
		found++;
	}
	*more = p->n_slots - NV_MIN(from, p->n_slots) > n;
	pthread_rwlock_unlock(&p->lock);
	return found;
}
