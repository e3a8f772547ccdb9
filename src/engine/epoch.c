/*
 * epoch.c
 *		Reader epochs and the retire list.
 *
 * Why it is safe.  A reader writes its place (A), then loads an edge word (B).
 * A writer flips the word (C); later, under the list's lock, somebody looks
 * at the places (D).  All four are sequentially consistent.  If the reader got
 * the old word, B came before C, hence A before D, and D sees the reader with
 * an epoch not above the one the slot was retired in.  The epoch counter is
 * raised by every retiring, after its flip, by a read-modify-write; a reader
 * that loads a value above a slot's epoch therefore sees that slot's flip.
 */
#include "epoch.h"

#include <sys/mman.h>

#include "store.h"
#include "util.h"

#define PLACES_BYTES (NV_EPOCH_SLOTS * sizeof(nv_epoch_place))
#define FIRST_CAPACITY 1024

nv_status
nv_epochs_init(nv_epochs *epochs, nv_error *err)
{
	void *places = mmap(NULL, PLACES_BYTES, PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (places == MAP_FAILED)
	{
		epochs->places = NULL;
		return nv_fail(err, NV_ENOMEM, 0, "no memory for reader epochs");
	}
	epochs->places = places;
	atomic_store(&epochs->now, 1);
	atomic_store(&epochs->high, 0);
	return NV_OK;
}

void
nv_epochs_free(nv_epochs *epochs)
{
	if (epochs->places != NULL)
		munmap(epochs->places, PLACES_BYTES);
	epochs->places = NULL;
}

int
nv_epochs_enter(nv_epochs *epochs)
{
	for (uint32_t i = 0; i < NV_EPOCH_SLOTS; i++)
	{
		uint32_t high;
		uint64_t free_value = 0;

		/*
		 * Raised before the place is taken: whoever looks at the places looks
		 * at this one, or looked before it could be taken.
		 */
		high = atomic_load(&epochs->high);
		while (high <= i &&
			   !atomic_compare_exchange_weak(&epochs->high, &high, i + 1))
			;
		if (atomic_load_explicit(&epochs->places[i].epoch,
								 memory_order_relaxed) == 0 &&
			atomic_compare_exchange_strong(&epochs->places[i].epoch,
										   &free_value,
										   atomic_load(&epochs->now)))
			return (int) i;
	}
	return -1;
}

void
nv_epochs_leave(nv_epochs *epochs, int place)
{
	nv_assert(place >= 0 && place < NV_EPOCH_SLOTS);
	nv_assert(atomic_load(&epochs->places[place].epoch) != 0);
	atomic_store(&epochs->places[place].epoch, 0);
}

/* The smallest epoch of a reader inside; UINT64_MAX: none is. */
static uint64_t
oldest_reader(nv_epochs *epochs)
{
	uint32_t high = atomic_load(&epochs->high);
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < high; i++)
	{
		uint64_t epoch = atomic_load(&epochs->places[i].epoch);

		if (epoch != 0 && epoch < oldest)
			oldest = epoch;
	}
	return oldest;
}

uint64_t
nv_epochs_mark(nv_epochs *epochs)
{
	return atomic_fetch_add(&epochs->now, 1);
}

bool
nv_epochs_passed(nv_epochs *epochs, uint64_t mark)
{
	return oldest_reader(epochs) > mark;
}

void
nv_retire_init(nv_retire_list *list)
{
	memset(list, 0, sizeof(*list));
	pthread_mutex_init(&list->lock, NULL);
}

void
nv_retire_free(nv_retire_list *list)
{
	free(list->queue);
	free(list->held);
	pthread_mutex_destroy(&list->lock);
}

/* Called with the lock held; makes room for `more` in the queue. */
static bool
queue_room(nv_retire_list *list, uint64_t more)
{
	uint64_t capacity = list->capacity;
	nv_retired *queue;

	if (list->count + more <= capacity)
		return true;
	capacity = capacity == 0 ? FIRST_CAPACITY : capacity * 2;
	queue = nv_alloc_array(capacity, sizeof(*queue));
	if (queue == NULL)
		return false;
	for (uint64_t i = 0; i < list->count; i++)
		queue[i] = list->queue[(list->head + i) & (list->capacity - 1)];
	free(list->queue);
	list->queue = queue;
	list->head = 0;
	list->capacity = capacity;
	return true;
}

/* Called with the lock held. */
static bool
held_room(nv_retire_list *list)
{
	uint64_t capacity = list->held_capacity;
	nv_retired *held;

	if (list->held_count < capacity)
		return true;
	capacity = capacity == 0 ? FIRST_CAPACITY : capacity * 2;
	held = realloc(list->held, capacity * sizeof(*held));
	if (held == NULL)
		return false;
	list->held = held;
	list->held_capacity = capacity;
	return true;
}

nv_status
nv_retire_reserve(nv_retire_list *list, nv_error *err)
{
	bool room;

	pthread_mutex_lock(&list->lock);
	room = queue_room(list, list->reserved + 1);
	if (room)
		list->reserved++;
	pthread_mutex_unlock(&list->lock);
	if (!room)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for the retire list");
	return NV_OK;
}

void
nv_retire_unreserve(nv_retire_list *list)
{
	pthread_mutex_lock(&list->lock);
	nv_assert(list->reserved > 0);
	list->reserved--;
	pthread_mutex_unlock(&list->lock);
}

void
nv_retire_add(nv_retire_list *list, nv_epochs *epochs, uint64_t slot,
			  uint64_t birth, uint64_t death)
{
	nv_retired *item;

	pthread_mutex_lock(&list->lock);
	nv_assert(list->reserved > 0 && list->count < list->capacity);
	list->reserved--;
	item = &list->queue[(list->head + list->count) & (list->capacity - 1)];
	list->count++;
	item->slot = slot;
	item->birth = birth;
	item->death = death;
	/* Drawn under the lock, so that the queue is sorted by epoch. */
	item->epoch = atomic_fetch_add(&epochs->now, 1);
	pthread_mutex_unlock(&list->lock);
}

/*
 * A slot that a root being made names was born before its cut, and what is
 * retired after a cut counts as born at 0 unless it was born after it, too
 * (writer.c).  So the published root keeps it as well; the root being made
 * decides alone only where none is published yet.
 */
static bool
named_by_root(const nv_retire_list *list, const nv_retired *item)
{
	return (list->has_published && item->birth <= list->published &&
			list->published < item->death) ||
		   (list->has_pending && item->birth <= list->pending &&
			list->pending < item->death);
}

uint32_t
nv_retire_release(nv_retire_list *list, nv_epochs *epochs, uint64_t *slots,
				  uint32_t max)
{
	uint64_t oldest;
	uint32_t n = 0;

	pthread_mutex_lock(&list->lock);
	oldest = oldest_reader(epochs);
	/* What nv_retire_published moved to the end, before anything is added. */
	while (list->held_count > 0 && n < max &&
		   !named_by_root(list, &list->held[list->held_count - 1]))
		slots[n++] = list->held[--list->held_count].slot;
	while (list->count > 0 && n < max)
	{
		nv_retired *item = &list->queue[list->head];

		if (item->epoch >= oldest)
			break;
		if (named_by_root(list, item))
		{
			if (!held_room(list))
				break; /* it waits where it is */
			list->held[list->held_count++] = *item;
		}
		else
			slots[n++] = item->slot;
		list->head = (list->head + 1) & (list->capacity - 1);
		list->count--;
	}
	pthread_mutex_unlock(&list->lock);
	return n;
}

void
nv_retire_cut(nv_retire_list *list, uint64_t sequence)
{
	pthread_mutex_lock(&list->lock);
	list->pending = sequence;
	list->has_pending = true;
	pthread_mutex_unlock(&list->lock);
}

void
nv_retire_published(nv_retire_list *list, uint64_t sequence)
{
	uint64_t end;

	pthread_mutex_lock(&list->lock);
	list->published = sequence;
	list->has_published = true;
	list->has_pending = false;
	/*
	 * Moves what no root names to the end of held, where nv_retire_release
	 * takes it from.
	 */
	end = list->held_count;
	for (uint64_t i = 0; i < end;)
	{
		if (named_by_root(list, &list->held[i]))
			i++;
		else
		{
			nv_retired item = list->held[i];

			list->held[i] = list->held[--end];
			list->held[end] = item;
		}
	}
	pthread_mutex_unlock(&list->lock);
}

uint64_t
nv_retire_count(nv_retire_list *list)
{
	uint64_t n;

	pthread_mutex_lock(&list->lock);
	n = list->count + list->held_count;
	pthread_mutex_unlock(&list->lock);
	return n;
}

uint64_t
nv_retire_memory(nv_retire_list *list)
{
	uint64_t bytes;

	pthread_mutex_lock(&list->lock);
	bytes = (list->capacity + list->held_capacity) * sizeof(nv_retired);
	pthread_mutex_unlock(&list->lock);
	return bytes;
}
