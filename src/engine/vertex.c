/*
 * vertex.c
 *		Vertices that are added one by one, after the first checkpoint.
 *
 * Ids are given out in units: the records of as few whole blocks of the device
 * as hold a whole number of records (one record of whole sectors on a device
 * with 512-byte sectors; several records a sector below 512 bytes).  A unit
 * belongs to one writer until its ids are used up, so that no two writers ever
 * write the same block.  A writer keeps the unit's bytes and rewrites a block
 * with what it held and one record more; a device writes a block as a whole.
 *
 * Ids of a unit that were not used, and vertices that never got a list, have
 * edge word 0 and are named by nobody: they are used after the store was
 * opened again, or when their writer is gone.  So are those of vertices that
 * were freed, as soon as no root names them (free_vertex.c).
 *
 * Source: design.md section 4, "Decoupled layout", "Checkpoint protocol" 4.
 */
#include "store_internal.h"

#define GROW_BYTES (UINT64_C(1) << 20) /* space is reserved in such steps */
#define GROW_SHARE 32                  /* or this part of the file */
#define NO_UNIT UINT64_MAX

/* --- Units --- */

typedef struct unit_shape
{
	uint32_t records;
	uint32_t bytes;
} unit_shape;

static unit_shape
shape_of(const nv_store *store)
{
	uint32_t record = store->params.vector_bytes;
	uint32_t block = NV_MAX(nv_file_align(store->vectors.file), NV_SECTOR);
	uint32_t sectors, divisor;

	if (record < NV_SECTOR)
		return (unit_shape){NV_SECTOR / record * (block / NV_SECTOR), block};
	sectors = (uint32_t) nv_round_up(record, NV_SECTOR) / NV_SECTOR;
	divisor = nv_common_divisor(sectors, block / NV_SECTOR);
	return (unit_shape){block / NV_SECTOR / divisor, sectors / divisor * block};
}

uint32_t
nv_unit_records(const nv_store *store)
{
	return shape_of(store).records;
}

nv_status
nv_unit_push(nv_vectors *vectors, uint64_t unit, nv_error *err)
{
	if (vectors->free_count == vectors->free_room)
	{
		size_t room = NV_MAX(vectors->free_room * 2, 64);
		uint32_t *grown = realloc(vectors->free_units, room * sizeof(*grown));

		if (grown == NULL)
			return nv_fail(err, NV_ENOMEM, 0, "no memory for unused ids");
		vectors->free_units = grown;
		vectors->free_room = room;
	}
	if (nv_unit_take(vectors, unit, err) != NV_OK)
		return NV_ENOMEM;
	vectors->free_units[vectors->free_count++] = (uint32_t) unit;
	return NV_OK;
}

/* Nobody has the id, and no root names it; vectors->lock is held. */
static bool
unused(const nv_store *store, uint32_t id)
{
	/* Held before its word becomes 0, until it may be used. */
	return nv_store_edge_word(store, id) == 0 &&
		   !nv_id_held(&store->vectors, id);
}

/*
 * Before the first unit is given out: units with unused ids, the lowest on
 * top.  The last one, if it is not full, is where new ids begin.
 */
static nv_status
count_units(nv_store *store, unit_shape shape, nv_error *err)
{
	nv_vectors *vectors = &store->vectors;
	uint32_t vertices = atomic_load(&store->vertices);
	uint64_t whole = vertices / shape.records;
	nv_status status = nv_file_size(vectors->file, &vectors->space, err);

	for (uint64_t unit = whole; unit-- > 0 && status == NV_OK;)
		for (uint32_t i = 0; i < shape.records; i++)
			if (unused(store, (uint32_t) (unit * shape.records) + i))
			{
				status = nv_unit_push(vectors, unit, err);
				break;
			}
	vectors->next_unit = whole;
	vectors->fresh_unit =
		(vertices + (uint64_t) shape.records - 1) / shape.records;
	vectors->counted = status == NV_OK;
	return status;
}

static nv_status
choose_unit(nv_store *store, unit_shape shape, uint64_t *unit, bool *fresh,
			nv_error *err)
{
	nv_vectors *vectors = &store->vectors;
	nv_status status = NV_OK;

	*unit = NO_UNIT;
	pthread_mutex_lock(&vectors->lock);
	if (!vectors->counted)
		status = count_units(store, shape, err);
	if (status == NV_OK && vectors->free_count > 0)
	{
		*unit = vectors->free_units[--vectors->free_count];
		*fresh = false;
	}
	else if (status == NV_OK &&
			 (vectors->next_unit + 1) * shape.records > NV_MAX_VERTICES)
		status = nv_fail(err, NV_ELIMIT, 0,
						 "an index holds at most %u distinct vectors",
						 NV_MAX_VERTICES);
	else if (status == NV_OK)
		status = nv_unit_take(vectors, vectors->next_unit, err);
	if (status == NV_OK && *unit == NO_UNIT)
	{
		*unit = vectors->next_unit++;
		*fresh = *unit >= vectors->fresh_unit;
	}
	pthread_mutex_unlock(&vectors->lock);
	return status;
}

/* Space on disk for so many bytes of the vector file. */
static nv_status
reserve_space(nv_store *store, uint64_t bytes, nv_error *err)
{
	nv_vectors *vectors = &store->vectors;
	nv_status status = NV_OK;
	uint64_t have;

	pthread_mutex_lock(&vectors->growing);
	pthread_mutex_lock(&vectors->lock);
	have = vectors->space;
	pthread_mutex_unlock(&vectors->lock);
	if (bytes > have)
	{
		uint64_t want = NV_MAX(have + GROW_BYTES, have + have / GROW_SHARE);

		want = nv_round_up(NV_MAX(want, bytes), NV_BLOCK);
		/* Others write below what there was, nobody above. */
		status = nv_file_reserve(vectors->file, want, err);
		if (status == NV_ENOSPC && want > nv_round_up(bytes, NV_BLOCK))
		{
			want = nv_round_up(bytes, NV_BLOCK); /* a disk almost full */
			status = nv_file_reserve(vectors->file, want, err);
		}
		if (status == NV_OK)
		{
			pthread_mutex_lock(&vectors->lock);
			vectors->space = want;
			pthread_mutex_unlock(&vectors->lock);
		}
	}
	pthread_mutex_unlock(&vectors->growing);
	return status;
}

/* Length of the file with so many vertices more; vectors->lock is held. */
static uint64_t
length_with(const nv_store *store, unit_shape shape, uint64_t rows)
{
	uint64_t units = rows / shape.records + 1 + NV_MAX_WRITERS;

	/* Each unit in the stack has an unused id at least. */
	units -= NV_MIN(store->vectors.free_count,
					shape.records == 1 ? rows : rows / shape.records);
	return (store->vectors.next_unit + units) * shape.bytes;
}

bool
nv_vectors_have_room(nv_store *store, uint64_t rows)
{
	nv_vectors *vectors = &store->vectors;
	bool have;

	pthread_mutex_lock(&vectors->lock);
	have = vectors->counted &&
		   length_with(store, shape_of(store), rows) <= vectors->space;
	pthread_mutex_unlock(&vectors->lock);
	return have;
}

nv_status
nv_vectors_make_room(nv_store *store, uint64_t rows, nv_error *err)
{
	nv_vectors *vectors = &store->vectors;
	nv_status status = NV_OK;
	uint64_t bytes;

	pthread_mutex_lock(&vectors->lock);
	if (!vectors->counted)
		status = count_units(store, shape_of(store), err);
	bytes = length_with(store, shape_of(store), rows);
	pthread_mutex_unlock(&vectors->lock);
	return status == NV_OK ? reserve_space(store, bytes, err) : status;
}

void
nv_vectors_count_on(nv_store *store, uint64_t rows)
{
	nv_vectors *vectors = &store->vectors;
	uint64_t bytes;

	pthread_mutex_lock(&vectors->lock);
	/* Not counted: nobody was promised anything, `space` is not known. */
	if (vectors->counted)
	{
		bytes = length_with(store, shape_of(store), rows);
		bytes = nv_round_up(bytes, NV_BLOCK);
		vectors->space = NV_MIN(vectors->space, bytes);
	}
	pthread_mutex_unlock(&vectors->lock);
}

nv_status
nv_vectors_cut(nv_store *store, nv_error *err)
{
	nv_vectors *vectors = &store->vectors;
	uint64_t space;
	bool counted;

	pthread_mutex_lock(&vectors->lock);
	counted = vectors->counted;
	space = vectors->space;
	pthread_mutex_unlock(&vectors->lock);
	return counted ? nv_file_shorten(vectors->file, space, err) : NV_OK;
}

/* The ids of the unit exist, without list, hash and code. */
static nv_status
extend_vertices(nv_store *store, uint32_t n, nv_error *err)
{
	uint32_t stride = store->params.code_stride;
	uint64_t epoch, have;
	nv_status status = nv_array_grow(&store->map, n, err);

	if (status != NV_OK)
		return status;
	pthread_rwlock_rdlock(&store->gate);
	pthread_mutex_lock(&store->extend);
	epoch = atomic_load(&store->epoch);
	have = atomic_load(&store->vertices);
	if (n > have)
	{
		status = nv_codings_grow(store, n, err);
		if (status == NV_OK)
			status = nv_array_touch(&store->map, have * NV_MAP_ENTRY,
									(n - have) * NV_MAP_ENTRY, epoch, err);
		if (status == NV_OK)
			status = nv_array_touch(nv_store_codes(store), have * stride,
									(n - have) * stride, epoch, err);
		if (status == NV_OK)
		{
			atomic_store(&store->vertices, n);
			store->vectors.records = n;
		}
	}
	pthread_mutex_unlock(&store->extend);
	pthread_rwlock_unlock(&store->gate);
	return status;
}

/* Makes a chosen unit the writer's. */
static nv_status
enter_unit(nv_writer *w, unit_shape shape, uint64_t number, bool fresh,
		   nv_error *err)
{
	nv_store *store = w->store;
	nv_unit *unit = &w->unit;
	uint64_t offset = number * shape.bytes;
	nv_status status = reserve_space(store, offset + shape.bytes, err);

	if (status == NV_OK)
		status = extend_vertices(
			store, (uint32_t) ((number + 1) * shape.records), err);
	if (status == NV_OK && unit->buffer == NULL)
	{
		unit->buffer =
			aligned_alloc(NV_BLOCK, nv_round_up(shape.bytes, NV_BLOCK));
		if (unit->buffer == NULL)
			status = nv_fail(err, NV_ENOMEM, 0, "no memory for a vector");
	}
	if (status == NV_OK && fresh)
		memset(unit->buffer, 0, shape.bytes);
	else if (status == NV_OK)
		status = nv_file_read(store->vectors.file, unit->buffer, shape.bytes,
							  offset, err);
	if (status != NV_OK)
		return status;
	unit->number = number;
	unit->offset = offset;
	unit->next = (uint32_t) (number * shape.records);
	unit->end = unit->next + shape.records;
	return NV_OK;
}

/* The writer lets go of its unit, if it has one; the buffer stays. */
static void
leave_unit(nv_store *store, nv_unit *unit)
{
	bool more = unit->next < unit->end;

	if (unit->end == 0)
		return;
	pthread_mutex_lock(&store->vectors.lock);
	more |= nv_unit_leave(&store->vectors, unit->number);
	/* Without memory its ids wait until the store is opened again. */
	if (more)
		(void) nv_unit_push(&store->vectors, unit->number, NULL);
	pthread_mutex_unlock(&store->vectors.lock);
	unit->next = unit->end = 0;
}

void
nv_unit_give_back(nv_store *store, nv_unit *unit)
{
	leave_unit(store, unit);
	free(unit->buffer);
	memset(unit, 0, sizeof(*unit));
}

/* The next id of the writer's unit, if there is one. */
static bool
next_in_unit(nv_store *store, nv_unit *unit)
{
	bool found = false;

	/* Nobody else gives these ids lists. */
	pthread_mutex_lock(&store->vectors.lock);
	while (unit->next < unit->end && !(found = unused(store, unit->next)))
		unit->next++;
	pthread_mutex_unlock(&store->vectors.lock);
	return found;
}

/* The writer's next id; stays so until it is used. */
static nv_status
next_id(nv_writer *w, unit_shape shape, nv_error *err)
{
	nv_store *store = w->store;
	nv_unit *unit = &w->unit;

	for (;;)
	{
		uint64_t number = 0;
		bool fresh = false;
		nv_status status;

		if (next_in_unit(store, unit))
			return NV_OK;
		leave_unit(store, unit);
		status = choose_unit(store, shape, &number, &fresh, err);
		if (status != NV_OK)
			return status;
		status = enter_unit(w, shape, number, fresh, err);
		if (status != NV_OK)
		{
			pthread_mutex_lock(&store->vectors.lock);
			(void) nv_unit_push(&store->vectors, number, NULL);
			pthread_mutex_unlock(&store->vectors.lock);
			return status;
		}
	}
}

/* --- Adding --- */

/* The blocks that the record of an id of the writer's unit lies in. */
nv_status
nv_store_place_vector(nv_writer *w, const void *vector, nv_vector_write *write,
					  nv_error *err)
{
	nv_store *store = w->store;
	unit_shape shape = shape_of(store);
	uint32_t bytes = store->params.vector_bytes;
	uint32_t align = NV_MAX(nv_file_align(store->vectors.file), NV_SECTOR);
	nv_status status = nv_store_check(store, err);
	uint32_t at, first;
	uint64_t base;

	if (status != NV_OK)
		return status;
	if (atomic_load(&store->state.number) == 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "vertices are added after the first checkpoint");
	status = next_id(w, shape, err);
	if (status != NV_OK)
		return status;
	base = w->unit.number * shape.bytes;
	at = (uint32_t) (nv_record_offset(bytes, w->unit.next) - base);
	first = at / align * align;
	memcpy(w->unit.buffer + at, vector, bytes);
	write->file = store->vectors.file;
	write->buf = w->unit.buffer + first;
	write->len = (uint32_t) nv_round_up(at + bytes, align) - first;
	write->offset = base + first;
	nv_assert(first + write->len <= shape.bytes);
	return NV_OK;
}

/* Enters the codes with the hash that tells whose they are; gate shared. */
static void
enter_codes(nv_store *store, uint32_t v, uint64_t hash,
			const nv_vertex_codes *codes)
{
	nv_coding *next = atomic_load(&store->next_coding);
	uint32_t stride = store->params.code_stride;

	if (next != NULL)
	{
		pthread_mutex_lock(&store->recode_lock);
		memcpy(nv_array_entry(&next->codes, v), codes->next_code, stride);
	}
	if (stride > 0)
		memcpy(nv_array_entry(nv_store_codes(store), v), codes->code, stride);
	atomic_store(nv_map_field(store, v, NV_MAP_RECORD), v);
	atomic_store(nv_map_field(store, v, NV_MAP_HASH), hash);
	if (next != NULL)
		pthread_mutex_unlock(&store->recode_lock);
}

/* Hash and codes of the vertex whose vector was placed and written. */
nv_status
nv_store_enter_coded(nv_writer *w, uint64_t hash, const nv_vertex_codes *codes,
					 uint32_t *vertex, nv_error *err)
{
	nv_store *store = w->store;
	uint32_t stride = store->params.code_stride, v = w->unit.next;
	uint64_t epoch;
	nv_status status = NV_OK;

	nv_assert(w->unit.next < w->unit.end);
	nv_vectors_written(w);
	pthread_rwlock_rdlock(&store->gate);
	if (codes->coding != atomic_load(&store->coding) ||
		codes->next != atomic_load(&store->next_coding))
		status = nv_fail(err, NV_EBUSY, 0, "codes are being replaced");
	epoch = atomic_load(&store->epoch);
	if (status == NV_OK)
		status = nv_array_touch(&store->map, (uint64_t) v * NV_MAP_ENTRY,
								NV_MAP_ENTRY, epoch, err);
	if (status == NV_OK)
		status = nv_array_touch(nv_store_codes(store), (uint64_t) v * stride,
								stride, epoch, err);
	if (status == NV_OK)
	{
		enter_codes(store, v, hash, codes);
		atomic_store(&store->dirty, true);
		*vertex = w->unit.next++;
	}
	pthread_rwlock_unlock(&store->gate);
	return status;
}

nv_status
nv_store_enter_vertex(nv_writer *writer, uint64_t hash, const uint8_t *code,
					  uint32_t *vertex, nv_error *err)
{
	nv_vertex_codes codes = {.coding = nv_store_coding(writer->store),
							 .code = code};

	return nv_store_enter_coded(writer, hash, &codes, vertex, err);
}

nv_status
nv_store_add_vertex(nv_writer *writer, const void *vector, uint64_t hash,
					const uint8_t *code, uint32_t *vertex, nv_error *err)
{
	nv_vector_write write;
	nv_status status = nv_store_place_vector(writer, vector, &write, err);

	if (status == NV_OK)
		status =
			nv_file_write(write.file, write.buf, write.len, write.offset, err);
	if (status == NV_OK)
		status = nv_store_enter_vertex(writer, hash, code, vertex, err);
	return status;
}
