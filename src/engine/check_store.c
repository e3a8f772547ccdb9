/*
 * check_store.c
 *		CHECK: the published root on disk, and the space of the edge file.
 */
#include <errno.h>

#include "check.h"
#include "navis/hash.h"
#include "store_internal.h"

/* --- The root --- */

/* Reads a segment; what is wrong is noted.  False: its bytes are no use. */
static bool
check_segment(nv_check *check, uint32_t place, uint32_t crc, uint8_t *named,
			  uint8_t *bytes)
{
	const nv_state *state = &check->body->store->state;
	uint32_t found;

	check->request->u.check.checked++;
	if (place < NV_FIRST_PLACE || place >= state->places || named[place] != 0)
	{
		nv_check_found(check, NV_DAMAGE, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "segment %u is named twice or not one of %llu", place,
					   (unsigned long long) state->places);
		return false;
	}
	named[place] = 1;
	if (!(state->used[place] & NV_PLACE_PUBLISHED))
		nv_check_found(check, NV_DAMAGE, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "segment %u of the last root counts as free", place);
	if (nv_file_read(state->file, bytes, NV_SEGMENT,
					 (uint64_t) place * NV_SEGMENT, NULL) != NV_OK)
	{
		nv_check_found(check, NV_DAMAGE, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "segment %u cannot be read", place);
		return false;
	}
	found = nv_crc32c(0, bytes, NV_SEGMENT);
	if (found != crc)
		nv_check_found(check, NV_DAMAGE, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "checksum of segment %u is %08x, %08x expected", place,
					   found, crc);
	return found == crc;
}

/* A segment of the table and all that it names. */
static nv_status
check_table(nv_check *check, const nv_segment_ref *ref, uint64_t entries,
			uint8_t *named, uint8_t *table, uint8_t *bytes, nv_error *err)
{
	nv_status status = NV_OK;

	if (!check_segment(check, ref->place, ref->crc, named, table))
		return NV_OK;
	for (uint64_t i = 0; i < entries && status == NV_OK; i++)
	{
		nv_table_entry entry;

		memcpy(&entry, table + i * sizeof(entry), sizeof(entry));
		(void) check_segment(check, entry.place, entry.crc, named, bytes);
		status = nv_check_go_on(check, err);
	}
	return status;
}

static nv_status
check_root(nv_check *check, uint8_t *named, nv_error *err)
{
	const nv_state *state = &check->body->store->state;
	nv_root *root = aligned_alloc(NV_BLOCK, sizeof(*root));
	uint8_t *bytes = aligned_alloc(NV_BLOCK, 2 * NV_SEGMENT);
	nv_status status = NV_OK;

	if (root == NULL || bytes == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to check the state");
	else if (nv_file_read(state->file, root, sizeof(*root),
						  (uint64_t) state->root_block * NV_SEGMENT,
						  NULL) != NV_OK ||
			 root->crc != nv_root_crc(root) ||
			 root->number != atomic_load(&state->number) ||
			 root->table_segments > NV_TABLE_SEGMENTS ||
			 root->table_entries > root->table_segments * NV_TABLE_ENTRIES)
		nv_check_found(check, NV_DAMAGE, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "the last root cannot be read, or is not what was "
					   "written");
	else
		for (uint32_t i = 0; i < root->table_segments && status == NV_OK; i++)
			status =
				check_table(check, &root->table[i],
							NV_MIN(root->table_entries - i * NV_TABLE_ENTRIES,
								   NV_TABLE_ENTRIES),
							named, bytes, bytes + NV_SEGMENT, err);
	free(root);
	free(bytes);
	return status;
}

/* Checkpoints wait meanwhile: their places are those of the last root. */
nv_status
nv_check_state(nv_check *check, nv_error *err)
{
	nv_store *store = check->body->store;
	nv_status status = NV_OK;
	uint8_t *named;

	pthread_mutex_lock(&store->checkpoint);
	named = nv_alloc(store->state.places);
	if (named == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to check the state");
	else if (atomic_load(&store->state.number) > 0)
		status = check_root(check, named, err);
	free(named);
	pthread_mutex_unlock(&store->checkpoint);
	return status;
}

/* --- Space --- */

/* Slots are taken out of one list and then out of another. */
#define SPACE_TRIES 20
#define SPACE_PAUSE_NS 5000000

typedef struct space
{
	uint16_t *slots;  /* of each page: named by the map, or retired */
	uint8_t *on_list; /* of each page: times on the stack of free ones */
	uint64_t capacity;
	uint64_t wrong; /* the first page that is, and why */
	const char *why;
} space;

static void
count_retired(nv_store *store, space *s)
{
	nv_retire_list *list = &store->retired;

	pthread_mutex_lock(&list->lock);
	for (uint64_t i = 0; i < list->count; i++)
	{
		uint64_t page =
			list->queue[(list->head + i) & (list->capacity - 1)].slot /
			NV_PAGE_UNITS;

		s->slots[page] += page < s->capacity;
	}
	for (uint64_t i = 0; i < list->held_count; i++)
		s->slots[list->held[i].slot / NV_PAGE_UNITS]++;
	pthread_mutex_unlock(&list->lock);
}

static void
judge_pages(const nv_edges *edges, space *s)
{
	for (uint64_t p = 0; p < edges->pages && s->why == NULL; p++)
	{
		const nv_page_info *info = &edges->info[p];
		bool is_free = info->state == NV_PAGE_FREE;

		s->wrong = p;
		if (nv_page_slots(info) != s->slots[p])
			s->why = "has another number of slots than are in use";
		else if (is_free && info->used != 0)
			s->why = "is free and in use";
		else if (s->on_list[p] != (is_free ? 1 : 0))
			s->why = "is free and not on the list of free pages, or the "
					 "other way round";
	}
}

/* The gate is held exclusively: nobody relinks. */
static void
look_at_pages(nv_store *store, space *s)
{
	nv_edges *edges = &store->edges;
	uint32_t vertices = atomic_load(&store->vertices);

	s->why = NULL;
	memset(s->slots, 0, s->capacity * sizeof(*s->slots));
	memset(s->on_list, 0, s->capacity);
	pthread_mutex_lock(&edges->allocator);
	for (uint32_t v = 0; v < vertices && s->why == NULL; v++)
	{
		uint64_t word = nv_store_edge_word(store, v);

		if (word == 0)
			continue;
		if (nv_word_page(word) < edges->pages)
			s->slots[nv_word_page(word)]++;
		else
		{
			s->wrong = nv_word_page(word);
			s->why = "holds a list and was never used";
		}
	}
	for (uint64_t i = 0; i < edges->free_count; i++)
		s->on_list[edges->free[i]]++;
	count_retired(store, s);
	judge_pages(edges, s);
	pthread_mutex_unlock(&edges->allocator);
}

/* One look; false: the tables have grown meanwhile. */
static bool
try_space(nv_store *store, space *s)
{
	bool enough;

	pthread_rwlock_wrlock(&store->gate);
	pthread_mutex_lock(&store->edges.allocator);
	enough = store->edges.capacity <= s->capacity;
	pthread_mutex_unlock(&store->edges.allocator);
	if (enough)
		look_at_pages(store, s);
	pthread_rwlock_unlock(&store->gate);
	return enough;
}

static bool
space_memory(nv_store *store, space *s)
{
	pthread_mutex_lock(&store->edges.allocator);
	s->capacity = store->edges.capacity + store->edges.capacity / 8 + 1024;
	pthread_mutex_unlock(&store->edges.allocator);
	s->slots = nv_alloc_array(s->capacity, sizeof(*s->slots));
	s->on_list = nv_alloc(s->capacity);
	return s->slots != NULL && s->on_list != NULL;
}

/*
 * Holds relinking up for some milliseconds a million vertices.  A page that is
 * wrong once may be in the middle of something; what is wrong stays so.
 */
nv_status
nv_check_space(nv_check *check, nv_error *err)
{
	nv_store *store = check->body->store;
	struct timespec pause = {.tv_nsec = SPACE_PAUSE_NS};
	nv_status status = NV_OK;
	space s = {.why = ""};

	if (!space_memory(store, &s))
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to check %llu pages",
						 (unsigned long long) s.capacity);
	for (int i = 0; i < SPACE_TRIES && status == NV_OK && s.why != NULL; i++)
	{
		if (i > 0)
			nanosleep(&pause, NULL);
		if (!try_space(store, &s))
		{
			free(s.slots);
			free(s.on_list);
			if (!space_memory(store, &s))
				status = nv_fail(err, NV_ENOMEM, 0, "no memory to check pages");
		}
		if (status == NV_OK)
			status = nv_check_go_on(check, err);
	}
	if (status == NV_OK && s.why != NULL && s.why[0] != '\0')
		nv_check_found(check, NV_DAMAGE, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "page %llu of the edge file %s",
					   (unsigned long long) s.wrong, s.why);
	check->request->u.check.checked = s.capacity;
	free(s.slots);
	free(s.on_list);
	return status;
}
