/*
 * state_file.c
 *		The state file: roots, segment table, places of segments.
 *
 * The file is cut into places of NV_SEGMENT bytes.  Places 0 and 1 begin with
 * the two root blocks; every other place holds one segment, or is free.  A
 * root names the segments of the table with their checksums; the table names,
 * in this order, the segments of map, element map, codes and blobs.  A place
 * that the last published root refers to is never written.
 *
 * Source: design.md section 4, "Checkpoint protocol" 3, 7 and 9.
 */
#include "navis/hash.h"
#include "store_internal.h"

#define RUN_SEGMENTS 16 /* neighbours read or written at once, 1 MiB */
#define MAX_RECORDS (UINT64_C(1) << 40)

static const uint8_t root_magic[8] = {'n', 'a', 'v', 'i', 's', 's', 't', 0};

_Static_assert(sizeof(nv_root) == NV_BLOCK, "a root is one block");
_Static_assert(offsetof(nv_root, table) == 168, "a root has no holes");

uint32_t
nv_root_crc(const nv_root *root)
{
	nv_root copy = *root;

	copy.crc = 0;
	return nv_crc32c(0, &copy, sizeof(copy));
}

nv_status
nv_state_create(nv_store *store, nv_error *err)
{
	nv_state *state = &store->state;

	state->capacity = NV_FIRST_PLACE;
	state->used = nv_alloc(state->capacity);
	if (state->used == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a state file");
	state->places = state->cursor = NV_FIRST_PLACE;
	state->root_block = 1; /* the first root goes to block 0 */
	return nv_state_reserve(store, NV_FIRST_PLACE, err);
}

/* The arrays, in the order of the table. */
#define ARRAYS 3

static void
list_arrays(nv_store *store, uint64_t vertices, uint64_t elements,
			nv_array *array[ARRAYS], uint64_t count[ARRAYS])
{
	array[0] = &store->map;
	count[0] = vertices;
	array[1] = &store->element_map;
	count[1] = elements;
	array[2] = nv_store_codes(store);
	count[2] = vertices;
}

/* --- Writing --- */

typedef struct saver
{
	nv_store *store;
	uint8_t
		*buffer; /* RUN_SEGMENTS segments for places first, first + 1, ... */
	uint64_t first;
	uint32_t count;
	nv_table_entry *table;
	uint32_t entries, capacity;
	uint32_t codebook;
} saver;

static nv_status
save_run(saver *s, nv_error *err)
{
	nv_state *state = &s->store->state;
	uint64_t end = s->first + s->count;
	nv_status status;

	if (s->count == 0)
		return NV_OK;
	status = nv_state_reserve(s->store, end, err);
	if (status == NV_OK)
		status = nv_file_write(state->file, s->buffer,
							   (size_t) s->count * NV_SEGMENT,
							   s->first * NV_SEGMENT, err);
	s->count = 0;
	return status;
}

/* A place that no root refers to. */
static nv_status
take_place(nv_state *state, uint64_t *place, nv_error *err)
{
	while (state->cursor < state->places && state->used[state->cursor] != 0)
		state->cursor++;
	if (state->cursor == state->places)
	{
		if (state->places > UINT32_MAX)
			return nv_fail(err, NV_ELIMIT, 0, "the state file is full");
		if (state->places == state->capacity)
		{
			uint64_t capacity = state->capacity * 2;
			uint8_t *used = realloc(state->used, capacity);

			if (used == NULL)
				return nv_fail(err, NV_ENOMEM, 0,
							   "no memory for the state file's places");
			memset(used + state->capacity, 0, capacity - state->capacity);
			state->used = used;
			state->capacity = capacity;
		}
		state->places++;
	}
	*place = state->cursor++;
	return NV_OK;
}

/* Where the next segment's bytes go in memory, its place being known. */
static nv_status
save_room(saver *s, uint8_t **room, nv_error *err)
{
	nv_status status = NV_OK;

	if (s->count == RUN_SEGMENTS)
		status = save_run(s, err);
	*room = s->buffer + (size_t) s->count * NV_SEGMENT;
	return status;
}

/* The segment in *room, as save_room gave it, gets a place and is written. */
static nv_status
save_segment(saver *s, nv_segment_ref *where, const uint8_t *room,
			 nv_error *err)
{
	uint64_t place = 0;
	nv_status status = take_place(&s->store->state, &place, err);

	if (status != NV_OK)
		return status;
	where->place = (uint32_t) place;
	where->crc = nv_crc32c(0, room, NV_SEGMENT);
	if (s->count > 0 && place != s->first + s->count)
	{
		status = save_run(s, err);
		memmove(s->buffer, room, NV_SEGMENT);
	}
	if (s->count == 0)
		s->first = place;
	s->count++;
	return status;
}

static void
enter_table(saver *s, uint32_t place, uint32_t crc, uint32_t label)
{
	nv_table_entry *entry = &s->table[s->entries++];

	nv_assert(place >= NV_FIRST_PLACE && s->entries <= s->capacity);
	entry->place = place;
	entry->crc = crc;
	entry->label = label;
	s->store->state.used[place] |= NV_PLACE_PENDING;
}

static nv_status
save_array(saver *s, nv_array *array, uint64_t n, uint64_t closed,
		   uint32_t label, nv_error *err)
{
	uint64_t segments = nv_array_segments(array, n);

	for (uint64_t i = 0; i < segments; i++)
	{
		nv_segment *seg = nv_array_segment(array, i);
		uint8_t *room;
		nv_status status = save_room(s, &room, err);

		if (status == NV_OK && nv_array_take(array, i, closed, room))
		{
			nv_segment_ref where;

			status = save_segment(s, &where, room, err);
			if (status == NV_OK)
			{
				seg->place = where.place;
				seg->crc = where.crc;
				seg->label = label;
			}
		}
		if (status != NV_OK)
			return status;
		enter_table(s, seg->place, seg->crc, seg->label);
	}
	return NV_OK;
}

static nv_status
save_blob(saver *s, nv_blob_data *blob, nv_error *err)
{
	for (uint32_t i = 0; blob != NULL && i < blob->segments; i++)
	{
		nv_segment_ref *where = &blob->places[i];

		if (where->place == 0)
		{
			uint8_t *room;
			nv_status status = save_room(s, &room, err);

			if (status == NV_OK)
			{
				memcpy(room, blob->bytes + (size_t) i * NV_SEGMENT, NV_SEGMENT);
				status = save_segment(s, where, room, err);
			}
			if (status != NV_OK)
				return status;
		}
		enter_table(s, where->place, where->crc, 0);
	}
	return NV_OK;
}

static nv_status
save_table(saver *s, nv_root *root, nv_error *err)
{
	root->table_entries = s->entries;
	for (uint32_t i = 0; i < root->table_segments; i++)
	{
		uint8_t *room;
		nv_status status = save_room(s, &room, err);

		if (status == NV_OK)
		{
			memcpy(room, (uint8_t *) s->table + (size_t) i * NV_SEGMENT,
				   NV_SEGMENT);
			status = save_segment(s, &root->table[i], room, err);
		}
		if (status != NV_OK)
			return status;
		s->store->state.used[root->table[i].place] |= NV_PLACE_PENDING;
	}
	return save_run(s, err);
}

static void
fill_root(const nv_store *store, const nv_cut *cut, nv_root *root)
{
	const nv_store_params *params = &store->params;

	memcpy(root->magic, root_magic, sizeof(root->magic));
	root->version = NV_FORMAT_VERSION;
	root->number = atomic_load(&store->state.number) + 1;
	root->sequence = cut->sequence;
	root->lsn = cut->lsn;
	root->key = params->key;
	root->relfilenode = params->relfilenode;
	root->index_oid = params->index_oid;
	root->dim = params->dim;
	root->vector_bytes = params->vector_bytes;
	root->max_degree = params->max_degree;
	root->code_stride = params->code_stride;
	root->vertices = cut->vertices;
	root->elements = cut->elements;
	root->records = cut->records;
	root->edge_pages = cut->edge_pages;
	for (int b = 0; b < NV_BLOBS; b++)
		root->blob_len[b] = cut->blob[b] != NULL ? cut->blob[b]->len : 0;
}

static nv_status
save_everything(saver *s, const nv_cut *cut, nv_root *root, nv_error *err)
{
	nv_array *array[ARRAYS];
	uint64_t count[ARRAYS];
	nv_status status = NV_OK;

	list_arrays(s->store, cut->vertices, cut->elements, array, count);
	for (int a = 0; a < ARRAYS && status == NV_OK; a++)
		status = save_array(s, array[a], count[a], cut->epoch,
							a == 2 ? s->codebook : 0, err);
	for (int b = 0; b < NV_BLOBS && status == NV_OK; b++)
		status = save_blob(s, cut->blob[b], err);
	if (status == NV_OK)
		status = save_table(s, root, err);
	return status;
}

nv_status
nv_state_save(nv_store *store, const nv_cut *cut, nv_root *root, nv_error *err)
{
	const nv_blob_data *codebook = cut->blob[NV_BLOB_CODEBOOK];
	saver s = {.store = store};
	nv_array *array[ARRAYS];
	uint64_t count[ARRAYS], entries = 0;
	nv_status status;

	list_arrays(store, cut->vertices, cut->elements, array, count);
	for (int a = 0; a < ARRAYS; a++)
		entries += nv_array_segments(array[a], count[a]);
	for (int b = 0; b < NV_BLOBS; b++)
		entries += cut->blob[b] != NULL ? cut->blob[b]->segments : 0;
	if (entries > NV_TABLE_SEGMENTS * NV_TABLE_ENTRIES)
		return nv_fail(err, NV_ELIMIT, 0,
					   "the state takes %llu segments, at "
					   "most %llu are possible",
					   (unsigned long long) entries,
					   (unsigned long long) NV_TABLE_SEGMENTS *
						   NV_TABLE_ENTRIES);
	fill_root(store, cut, root);
	root->table_segments =
		(uint32_t) ((entries + NV_TABLE_ENTRIES - 1) / NV_TABLE_ENTRIES);
	s.capacity = (uint32_t) entries;
	s.codebook = codebook != NULL ? codebook->crc : 0;
	s.table = nv_alloc_array(root->table_segments, NV_SEGMENT);
	s.buffer = aligned_alloc(NV_BLOCK, RUN_SEGMENTS * NV_SEGMENT);
	store->state.cursor = NV_FIRST_PLACE;
	if (s.table == NULL || s.buffer == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to save the state");
	else
		status = save_everything(&s, cut, root, err);
	free(s.table);
	free(s.buffer);
	if (status == NV_OK)
		status = nv_file_sync(store->state.file, err);
	return status;
}

nv_status
nv_state_publish(nv_store *store, const nv_root *root, nv_error *err)
{
	nv_state *state = &store->state;
	uint32_t block = 1 - state->root_block;
	nv_root *out = aligned_alloc(NV_BLOCK, sizeof(*out));
	nv_status status;

	if (out == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a root");
	*out = *root;
	out->crc = nv_root_crc(root);
	status = nv_file_write(state->file, out, sizeof(*out),
						   (uint64_t) block * NV_SEGMENT, err);
	free(out);
	if (status == NV_OK)
		status = nv_file_sync(state->file, err);
	if (status != NV_OK)
		return status;
	state->root_block = block;
	atomic_store(&state->number, root->number);
	for (uint64_t p = 0; p < state->places; p++)
		state->used[p] =
			state->used[p] & NV_PLACE_PENDING ? NV_PLACE_PUBLISHED : 0;
	atomic_store(&state->published,
				 (uint64_t) root->table_entries + root->table_segments);
	return NV_OK;
}

/* --- Reading --- */

typedef struct loader
{
	nv_store *store;
	uint8_t *buffer;
	uint64_t first;
	uint32_t count;
	struct
	{
		uint32_t crc;
		uint8_t *out;
	} segment[RUN_SEGMENTS];
	nv_table_entry *table;
	uint32_t next; /* entry of the table */
} loader;

static nv_status
load_run(loader *l, nv_error *err)
{
	uint32_t n = l->count;
	nv_status status;

	l->count = 0;
	if (n == 0)
		return NV_OK;
	status = nv_file_read(l->store->state.file, l->buffer,
						  (size_t) n * NV_SEGMENT, l->first * NV_SEGMENT, err);
	for (uint32_t i = 0; i < n && status == NV_OK; i++)
	{
		const uint8_t *bytes = l->buffer + (size_t) i * NV_SEGMENT;
		uint32_t crc = nv_crc32c(0, bytes, NV_SEGMENT);

		if (crc != l->segment[i].crc)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "checksum of segment %llu is %08x, %08x expected",
						   (unsigned long long) (l->first + i), crc,
						   l->segment[i].crc);
		memcpy(l->segment[i].out, bytes, NV_SEGMENT);
	}
	return status;
}

/* The segment at place goes to out, at the latest with load_run. */
static nv_status
load_segment(loader *l, uint32_t place, uint32_t crc, uint8_t *out,
			 nv_error *err)
{
	nv_state *state = &l->store->state;
	nv_status status = NV_OK;

	if (place < NV_FIRST_PLACE || place >= state->places ||
		state->used[place] != 0)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "segment %u is outside the %llu segments of the state "
					   "file or named twice",
					   place, (unsigned long long) state->places);
	state->used[place] = NV_PLACE_PUBLISHED;
	if (l->count == RUN_SEGMENTS ||
		(l->count > 0 && place != l->first + l->count))
		status = load_run(l, err);
	if (l->count == 0)
		l->first = place;
	l->segment[l->count].crc = crc;
	l->segment[l->count++].out = out;
	return status;
}

static nv_status
load_array(loader *l, nv_array *array, uint64_t n, nv_error *err)
{
	uint64_t segments = nv_array_segments(array, n);
	nv_status status = nv_array_grow(array, n, err);

	for (uint64_t i = 0; i < segments && status == NV_OK; i++)
	{
		nv_segment *seg = nv_array_segment(array, i);
		const nv_table_entry *entry = &l->table[l->next++];

		seg->place = entry->place;
		seg->crc = entry->crc;
		seg->label = entry->label;
		status = load_segment(l, entry->place, entry->crc,
							  nv_array_window(array, i), err);
	}
	if (status == NV_OK)
		status = load_run(l, err);
	/* Nothing is there yet behind the last entry. */
	if (status == NV_OK && n * array->entry_bytes % NV_SEGMENT != 0)
	{
		uint32_t used = (uint32_t) (n * array->entry_bytes % NV_SEGMENT);

		memset(nv_array_window(array, segments - 1) + used, 0,
			   NV_SEGMENT - used);
	}
	return status;
}

static nv_status
load_blob(loader *l, nv_blob which, uint64_t len, nv_error *err)
{
	nv_blob_data *blob;
	nv_status status = NV_OK;

	if (len == 0)
		return NV_OK;
	blob = nv_blob_alloc(len);
	if (blob == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %llu bytes",
					   (unsigned long long) len);
	l->store->blob[which] = blob;
	for (uint32_t i = 0; i < blob->segments && status == NV_OK; i++)
	{
		const nv_table_entry *entry = &l->table[l->next++];

		blob->places[i].place = entry->place;
		blob->places[i].crc = entry->crc;
		status = load_segment(l, entry->place, entry->crc,
							  blob->bytes + (size_t) i * NV_SEGMENT, err);
	}
	if (status == NV_OK)
		status = load_run(l, err);
	if (status == NV_OK)
		blob->crc = nv_crc32c(0, blob->bytes, len);
	return status;
}

/*
 * Numbers of a root that the rest relies on.  Every segment it names must be
 * in the file once, so memory is bounded by the file's size.
 */
static nv_status
check_root(const nv_store *store, const nv_root *root, nv_error *err)
{
	uint64_t entries = 0, stride[ARRAYS] = {NV_MAP_ENTRY, NV_ELEMENT_ENTRY,
											root->code_stride};
	uint64_t count[ARRAYS] = {root->vertices, root->elements, root->vertices};
	bool possible = root->vertices <= NV_MAX_VERTICES &&
					root->elements <= NV_MAX_ELEMENTS &&
					root->records <= MAX_RECORDS &&
					root->edge_pages <= NV_MAX_EDGE_PAGES &&
					root->sequence <= NV_SEQUENCE_MAX && root->number > 0;

	for (int a = 0; a < ARRAYS && possible; a++)
		entries += (count[a] * stride[a] + NV_SEGMENT - 1) / NV_SEGMENT;
	for (int b = 0; b < NV_BLOBS && possible; b++)
	{
		possible = root->blob_len[b] <= store->state.places * NV_SEGMENT;
		entries += (root->blob_len[b] + NV_SEGMENT - 1) / NV_SEGMENT;
	}
	if (!possible || entries > store->state.places ||
		entries != root->table_entries ||
		root->table_segments > NV_TABLE_SEGMENTS ||
		root->table_segments !=
			(entries + NV_TABLE_ENTRIES - 1) / NV_TABLE_ENTRIES)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "numbers of the root are out of bounds: %llu vertices, "
					   "%llu elements, %u segments of %llu in the file",
					   (unsigned long long) root->vertices,
					   (unsigned long long) root->elements, root->table_entries,
					   (unsigned long long) store->state.places);
	return NV_OK;
}

static nv_status
check_file(nv_file *file, uint64_t least, uint64_t *size, nv_error *err)
{
	nv_status status = nv_file_size(file, size, err);

	if (status == NV_OK && *size < least)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" has %llu bytes, at least %llu expected",
					   nv_file_path(file), (unsigned long long) *size,
					   (unsigned long long) least);
	return status;
}

/* Bounds of what the segments say. */
static nv_status
check_entries(nv_store *store, const nv_root *root, nv_error *err)
{
	const nv_blob_data *codebook = store->blob[NV_BLOB_CODEBOOK];
	uint32_t label = codebook != NULL ? codebook->crc : 0;
	uint64_t code_segments =
		nv_array_segments(nv_store_codes(store), root->vertices);

	for (uint32_t v = 0; v < root->vertices; v++)
	{
		uint64_t record = atomic_load(nv_map_field(store, v, NV_MAP_RECORD));

		if (record >= root->records)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "vertex %u has vector record %llu of %llu", v,
						   (unsigned long long) record,
						   (unsigned long long) root->records);
	}
	for (uint32_t e = 0; e < root->elements; e++)
	{
		uint32_t generation;
		uint32_t vertex = nv_store_element(store, e, &generation);

		if (vertex != NV_NO_VERTEX && vertex >= root->vertices)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "element %u has vertex %u of %u", e, vertex,
						   (uint32_t) root->vertices);
	}
	for (uint64_t i = 0; i < code_segments; i++)
		if (nv_array_segment(nv_store_codes(store), i)->label != label)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "code segment %llu belongs to codebook %08x, the "
						   "codebook is %08x",
						   (unsigned long long) i,
						   nv_array_segment(nv_store_codes(store), i)->label,
						   label);
	return NV_OK;
}

static nv_status
load_table(loader *l, const nv_root *root, nv_error *err)
{
	nv_status status = NV_OK;

	l->table = nv_alloc_array(root->table_segments, NV_SEGMENT);
	l->buffer = aligned_alloc(NV_BLOCK, RUN_SEGMENTS * NV_SEGMENT);
	if (l->table == NULL || l->buffer == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to load the state");
	for (uint32_t i = 0; i < root->table_segments && status == NV_OK; i++)
		status =
			load_segment(l, root->table[i].place, root->table[i].crc,
						 (uint8_t *) l->table + (size_t) i * NV_SEGMENT, err);
	return status == NV_OK ? load_run(l, err) : status;
}

static nv_status
load_segments(nv_store *store, const nv_root *root, nv_error *err)
{
	loader l = {.store = store};
	nv_array *array[ARRAYS];
	uint64_t count[ARRAYS];
	nv_status status = load_table(&l, root, err);

	list_arrays(store, root->vertices, root->elements, array, count);
	for (int a = 0; a < ARRAYS && status == NV_OK; a++)
		status = load_array(&l, array[a], count[a], err);
	for (int b = 0; b < NV_BLOBS && status == NV_OK; b++)
		status = load_blob(&l, (nv_blob) b, root->blob_len[b], err);
	free(l.table);
	free(l.buffer);
	return status;
}

static void
take_params(nv_store_params *params, const nv_root *root)
{
	params->key = root->key;
	params->relfilenode = root->relfilenode;
	params->index_oid = root->index_oid;
	params->dim = root->dim;
	params->vector_bytes = root->vector_bytes;
	params->max_degree = root->max_degree;
	params->code_stride = root->code_stride;
}

/* Everything a root describes; on failure the store is as good as empty. */
static nv_status
load_root(nv_store *store, const nv_root *root, nv_error *err)
{
	uint64_t edge_bytes, vector_bytes;
	nv_status status;

	take_params(&store->params, root);
	status = nv_check_params(&store->params, NV_ECORRUPT, err);
	if (status == NV_OK)
		status = check_root(store, root, err);
	if (status == NV_OK)
		status = check_file(store->edges.file, root->edge_pages * NV_PAGE,
							&edge_bytes, err);
	if (status == NV_OK)
		status =
			check_file(store->vectors.file,
					   nv_vector_file_size(root->vector_bytes, root->records),
					   &vector_bytes, err);
	if (status == NV_OK)
		status = nv_array_init(nv_store_codes(store), root->code_stride, err);
	if (status == NV_OK)
		status = load_segments(store, root, err);
	if (status != NV_OK)
		return status;
	atomic_store(&store->vertices, (uint32_t) root->vertices);
	atomic_store(&store->elements, root->elements);
	store->vectors.records = root->records;
	status = check_entries(store, root, err);
	if (status == NV_OK)
		status = nv_edges_recount(store, root->edge_pages, err);
	return status;
}

/* Forgets what a failed load_root left. */
static nv_status
forget(nv_store *store, nv_error *err)
{
	nv_status status;

	atomic_store(&store->vertices, 0);
	atomic_store(&store->elements, 0);
	for (int b = 0; b < NV_BLOBS; b++)
	{
		nv_blob_drop(store->blob[b]);
		store->blob[b] = NULL;
	}
	nv_array_free(nv_store_codes(store));
	nv_array_free(&store->map);
	nv_array_free(&store->element_map);
	memset(store->state.used, 0, store->state.capacity);
	status = nv_array_init(&store->map, NV_MAP_ENTRY, err);
	if (status == NV_OK)
		status = nv_array_init(&store->element_map, NV_ELEMENT_ENTRY, err);
	return status;
}

/*
 * Reads root block i.  NV_ENOENT: nothing was ever written there; NV_ECORRUPT,
 * NV_EVERSION, NV_EFOREIGN.
 */
static nv_status
read_root(nv_store *store, const nv_key *key, uint32_t i, nv_root *root,
		  nv_error *err)
{
	static const nv_root nothing;
	nv_status status;

	status = nv_file_read(store->state.file, root, sizeof(*root),
						  (uint64_t) i * NV_SEGMENT, err);
	if (status != NV_OK)
		return status;
	if (memcmp(root, &nothing, sizeof(nothing)) == 0)
		return nv_fail(err, NV_ENOENT, 0, "\"%s\" holds no checkpoint",
					   nv_file_path(store->state.file));
	if (memcmp(root->magic, root_magic, sizeof(root_magic)) != 0 ||
		root->crc != nv_root_crc(root))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "root %u of \"%s\" does not match its checksum", i,
					   nv_file_path(store->state.file));
	if (root->version != NV_FORMAT_VERSION)
		return nv_fail(
			err, NV_EVERSION, 0, "\"%s\" has format version %u, %d expected",
			nv_file_path(store->state.file), root->version, NV_FORMAT_VERSION);
	if (memcmp(&root->key, key, sizeof(*key)) != 0)
		return nv_fail(err, NV_EFOREIGN, 0, "\"%s\" belongs to another index",
					   nv_file_path(store->state.file));
	return NV_OK;
}

static nv_status
open_state(nv_store *store, nv_error *err)
{
	nv_state *state = &store->state;
	uint64_t size;
	nv_status status = nv_file_size(state->file, &size, err);

	if (status != NV_OK)
		return status;
	if (size == 0)
		return nv_fail(err, NV_ENOENT, 0, "\"%s\" holds no checkpoint",
					   nv_file_path(state->file));
	state->places = NV_MAX(size / NV_SEGMENT, NV_FIRST_PLACE);
	state->places = NV_MIN(state->places, (uint64_t) UINT32_MAX);
	state->capacity = state->places;
	state->cursor = NV_FIRST_PLACE;
	atomic_store(&state->size, size);
	state->used = nv_alloc(state->capacity);
	if (state->used == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a state file");
	return NV_OK;
}

/*
 * Slots that were written after the root and before a crash may be in the file,
 * and whoever links the same rows again gives the same vertices lists on the
 * same units.  A reader whose copy of a page is older than the word it looks
 * for must not take one for the other, so the sequence goes on from anywhere
 * in the tags' range, another place in each process.
 */
static uint64_t
next_sequence(const nv_root *root)
{
	uint64_t random = nv_random_seed(nv_now_ns());
	uint64_t jump = nv_random_below(&random, NV_TAG_MASK);

	return root->sequence < NV_SEQUENCE_MAX / 2 ? root->sequence + jump
												: root->sequence;
}

static void
adopt(nv_store *store, const nv_root *root, uint32_t block)
{
	store->state.root_block = block;
	atomic_store(&store->state.number, root->number);
	atomic_store(&store->state.published,
				 (uint64_t) root->table_entries + root->table_segments);
	atomic_store(&store->sequence, next_sequence(root));
	atomic_store(&store->published_sequence, root->sequence);
	atomic_store(&store->published_lsn, root->lsn);
	nv_retire_published(&store->retired, root->sequence);
}

/* Tries the roots that can be read, the newest first. */
static nv_status
load_newest(nv_store *store, const nv_root *root, const nv_status *found,
			nv_error *err)
{
	uint32_t first = found[0] != NV_OK ? 1 : 0;
	nv_status status, forgotten;

	if (found[0] == NV_OK && found[1] == NV_OK &&
		root[1].number > root[0].number)
		first = 1;
	status = load_root(store, &root[first], err);
	if (status == NV_OK)
	{
		adopt(store, &root[first], first);
		return NV_OK;
	}
	if (status == NV_ENOMEM || found[1 - first] != NV_OK)
		return status;
	forgotten = forget(store, err);
	if (forgotten != NV_OK)
		return forgotten;
	if (load_root(store, &root[1 - first], NULL) != NV_OK)
		return status;
	nv_log(NV_LOG_WARNING,
		   "the newest checkpoint in \"%s\" is damaged, the one before it is "
		   "used",
		   store->dir);
	adopt(store, &root[1 - first], 1 - first);
	return NV_OK;
}

nv_status
nv_state_load(nv_store *store, const nv_key *key, nv_error *err)
{
	nv_root *root = NULL;
	nv_error error[2];
	nv_status found[2], status = open_state(store, err);
	static const nv_status order[] = {NV_EVERSION, NV_EFOREIGN};

	if (status != NV_OK)
		return status;
	root = aligned_alloc(NV_BLOCK, 2 * sizeof(*root));
	if (root == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for two roots");
	for (uint32_t i = 0; i < 2; i++)
		found[i] = read_root(store, key, i, &root[i], &error[i]);
	/* A readable root that is not ours says that the sidecar is not. */
	status = NV_OK;
	for (size_t o = 0; o < NV_LENGTH(order); o++)
		for (int i = 0; i < 2 && status == NV_OK; i++)
			if (found[i] == order[o])
				status = nv_fail(err, found[i], error[i].sys_errno, "%s",
								 error[i].detail);
	if (status == NV_OK && (found[0] == NV_OK || found[1] == NV_OK))
		status = load_newest(store, root, found, err);
	else if (status == NV_OK)
	{
		int worse = found[0] == NV_ENOENT ? 1 : 0;

		status = nv_fail(err, found[worse], error[worse].sys_errno, "%s",
						 error[worse].detail);
	}
	free(root);
	return status;
}
