/*
 * room.c
 *		Space on disk for rows that are to come, and for the checkpoint that
 *		publishes them.
 *
 * A row needs a record of the vector file and a list of its own; the lists that
 * name it are rewritten, out of place, and their old places come back with the
 * next checkpoint.  That one writes what has changed of the state beside what
 * the last one wrote: of map and elements all may have, of codes only those of
 * new vertices, or all when they were replaced.  The files grow in steps, so
 * that this is seldom asked in vain.
 *
 * A checkpoint makes room for what it is about to save before its cut: without
 * space it ends there, and nothing has happened.
 *
 * At rest what a longer queue needed goes back to the file system.
 *
 * Source: design.md, invariant 9.
 */
#include "store_internal.h"

/*
 * Pages for lists that are rewritten, whatever the number of rows: a part of
 * the file, within bounds.
 */
#define REWRITE_SHARE 16
#define MOST_REWRITE_PAGES 128

/* Pages for so many full lists. */
static uint64_t
pages_for(nv_store *store, uint64_t rows)
{
	uint32_t per_page = NV_PAGE_UNITS / nv_slot_units(store->params.max_degree);
	uint64_t rewrite;

	pthread_mutex_lock(&store->edges.allocator);
	rewrite = store->edges.pages / REWRITE_SHARE;
	pthread_mutex_unlock(&store->edges.allocator);
	rewrite = NV_MAX(rewrite, (uint64_t) NV_SPARE_PAGES);
	rewrite = NV_MIN(rewrite, (uint64_t) MOST_REWRITE_PAGES);
	return rewrite + rows / NV_MAX(per_page, 1u) + 1;
}

/* --- The state file --- */

/* What is changed between the look and the cut. */
#define SLACK_SEGMENTS 32
/* Entrance graph and windows may have grown by so many when they are saved. */
#define BLOB_SEGMENTS 2
#define GROW_PLACES 16

static uint64_t
blob_segments(nv_store *store)
{
	uint64_t n = 0;

	pthread_mutex_lock(&store->blob_lock);
	for (int b = 0; b < NV_BLOBS; b++)
		if (store->blob[b] != NULL)
			n += store->blob[b]->segments;
	pthread_mutex_unlock(&store->blob_lock);
	return n + BLOB_SEGMENTS;
}

/* Segments of an array of n entries that `changes` may make dirty. */
static uint64_t
dirty_segments(nv_array *array, uint64_t n, uint64_t changes)
{
	return NV_MIN(nv_array_segments(array, n),
				  atomic_load(&array->dirty) + changes);
}

/* Segments of codes, and those that may be dirty; they may be replaced. */
static void
count_codes(nv_store *store, uint64_t vertices, uint64_t changes, uint64_t *all,
			uint64_t *dirty)
{
	nv_array *codes;

	pthread_rwlock_rdlock(&store->gate);
	codes = nv_store_codes(store);
	*all = nv_array_segments(codes, vertices);
	*dirty = dirty_segments(codes, vertices, changes);
	pthread_rwlock_unlock(&store->gate);
}

/*
 * Places of the file while the next root is written and the last one counts;
 * any: everything but codes may change until then.
 */
static uint64_t
places_for(nv_store *store, uint64_t rows, bool any)
{
	uint64_t vertices = atomic_load(&store->vertices) + rows +
						(uint64_t) NV_MAX_WRITERS * nv_unit_records(store);
	uint64_t elements = atomic_load(&store->elements) + rows;
	uint64_t all = any ? UINT32_MAX : SLACK_SEGMENTS;
	uint64_t blobs = blob_segments(store), codes, dirty_codes;
	uint64_t named = atomic_load(&store->state.published);
	uint64_t entries, table, fresh;

	count_codes(store, vertices, rows + SLACK_SEGMENTS, &codes, &dirty_codes);
	entries = nv_array_segments(&store->map, vertices) +
			  nv_array_segments(&store->element_map, elements) + codes + blobs;
	table = entries / NV_TABLE_ENTRIES + 1;
	fresh = dirty_segments(&store->map, vertices, all) +
			dirty_segments(&store->element_map, elements, all) + dirty_codes +
			blobs + table;
	/* One that is being written may name more. */
	if (any && named > 0)
		named = NV_MAX(named, entries + table);
	return NV_MIN(NV_FIRST_PLACE + named + fresh, (uint64_t) UINT32_MAX);
}

/* state->growing is held. */
static nv_status
grow(nv_state *state, uint64_t places, nv_error *err)
{
	uint64_t want = nv_round_up(places, GROW_PLACES) * NV_SEGMENT;
	nv_status status;

	if (places * NV_SEGMENT <= atomic_load(&state->space))
		return NV_OK;
	status = nv_file_reserve(state->file, want, err);
	if (status == NV_ENOSPC && want > places * NV_SEGMENT)
	{
		want = places * NV_SEGMENT; /* a disk almost full */
		status = nv_file_reserve(state->file, want, err);
	}
	if (status != NV_OK)
		return status;
	atomic_store(&state->space, want);
	if (want > atomic_load(&state->size))
		atomic_store(&state->size, want);
	return NV_OK;
}

nv_status
nv_state_reserve(nv_store *store, uint64_t places, nv_error *err)
{
	nv_state *state = &store->state;
	nv_status status;

	if (places * NV_SEGMENT <= atomic_load(&state->space))
		return NV_OK;
	pthread_mutex_lock(&state->growing);
	status = grow(state, places, err);
	pthread_mutex_unlock(&state->growing);
	return status;
}

bool
nv_state_have_room(nv_store *store, uint64_t rows)
{
	return places_for(store, rows, true) * NV_SEGMENT <=
		   atomic_load(&store->state.space);
}

nv_status
nv_state_make_room(nv_store *store, uint64_t rows, nv_error *err)
{
	return nv_state_reserve(store, places_for(store, rows, true), err);
}

nv_status
nv_state_make_room_now(nv_store *store, nv_error *err)
{
	return nv_state_reserve(store, places_for(store, 0, false), err);
}

/* --- All files --- */

bool
nv_store_have_room(nv_store *store, uint64_t rows)
{
	return nv_vectors_have_room(store, rows) &&
		   nv_edges_have_room(store, pages_for(store, rows)) &&
		   nv_state_have_room(store, rows);
}

nv_status
nv_store_make_room(nv_store *store, uint64_t rows, nv_error *err)
{
	nv_status status = nv_store_check(store, err);

	if (status == NV_OK)
		status = nv_vectors_make_room(store, rows, err);
	if (status == NV_OK)
		status = nv_edges_make_room(store, pages_for(store, rows), err);
	if (status == NV_OK)
		status = nv_state_make_room(store, rows, err);
	return status;
}

/* --- Back to the file system --- */

/*
 * Lists that were dead for a while, or a long queue, have made files longer
 * than they need to be at rest.  Only what no page and no record was ever
 * written to goes: so no root names it, whichever is found after a crash, and
 * nobody reads it.
 */
void
nv_store_trim_begin(nv_store *store)
{
	pthread_mutex_lock(&store->edges.growing);
	pthread_mutex_lock(&store->vectors.growing);
}

void
nv_store_trim(nv_store *store, uint64_t rows)
{
	nv_edges_count_on(store, pages_for(store, rows));
	nv_vectors_count_on(store, rows);
}

void
nv_store_trim_end(nv_store *store)
{
	nv_error err;

	/* A file that stays longer harms nothing. */
	if (nv_store_check(store, &err) == NV_OK &&
		(nv_edges_cut(store, &err) != NV_OK ||
		 nv_vectors_cut(store, &err) != NV_OK))
		nv_log(NV_LOG_DEBUG, "%s", err.detail);
	pthread_mutex_unlock(&store->vectors.growing);
	pthread_mutex_unlock(&store->edges.growing);
}
