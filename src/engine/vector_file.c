/*
 * vector_file.c
 *		Places of vectors, and bulk writing of vectors.
 *
 * Record r is at nv_record_offset(): whole sectors for vectors of a sector and
 * more, else several to a sector, none across a border.  The file is a whole
 * number of blocks long, so that any aligned extent around a record can be
 * read.
 */
#include "store_internal.h"

/* Writes what the buffer has beyond `written`; the last block may grow yet. */
static nv_status
write_tail(nv_vectors *vectors, nv_error *err)
{
	uint32_t end = (uint32_t) nv_round_up(vectors->used, NV_BLOCK);
	nv_status status;

	if (end == vectors->written)
		return NV_OK;
	status = nv_file_write(vectors->file, vectors->buffer + vectors->written,
						   end - vectors->written,
						   vectors->base + vectors->written, err);
	vectors->written = vectors->used / NV_BLOCK * NV_BLOCK;
	return status;
}

/* Puts bytes at an offset not before the end of what was given so far. */
static nv_status
append(nv_vectors *vectors, const uint8_t *bytes, uint32_t len, uint64_t offset,
	   nv_error *err)
{
	while (len > 0)
	{
		uint32_t part;

		if (offset >= vectors->base + NV_VECTOR_BUFFER)
		{
			nv_status status;

			vectors->used = NV_VECTOR_BUFFER;
			status = write_tail(vectors, err);
			if (status != NV_OK)
				return status;
			memset(vectors->buffer, 0, NV_VECTOR_BUFFER);
			vectors->base += NV_VECTOR_BUFFER;
			vectors->used = vectors->written = 0;
		}
		vectors->used = (uint32_t) (offset - vectors->base);
		part = NV_MIN(len, NV_VECTOR_BUFFER - vectors->used);
		memcpy(vectors->buffer + vectors->used, bytes, part);
		vectors->used += part;
		bytes += part;
		offset += part;
		len -= part;
	}
	return NV_OK;
}

/* Enters n new vertices in the map, without lists, their codes all zero. */
static nv_status
enter(nv_store *store, uint32_t first, const uint64_t *hashes, uint32_t n,
	  nv_error *err)
{
	uint64_t epoch = atomic_load(&store->epoch);
	uint32_t stride = store->params.code_stride;
	nv_status status;

	status = nv_array_touch(&store->map, (uint64_t) first * NV_MAP_ENTRY,
							(uint64_t) n * NV_MAP_ENTRY, epoch, err);
	if (status == NV_OK)
		status =
			nv_array_touch(nv_store_codes(store), (uint64_t) first * stride,
						   (uint64_t) n * stride, epoch, err);
	if (status != NV_OK)
		return status;
	atomic_store(&store->vertices, first + n);
	for (uint32_t i = 0; i < n; i++)
	{
		atomic_store(nv_map_field(store, first + i, NV_MAP_RECORD), first + i);
		atomic_store(nv_map_field(store, first + i, NV_MAP_HASH), hashes[i]);
	}
	return NV_OK;
}

nv_status
nv_store_bulk_vectors(nv_store *store, const void *vectors, size_t stride,
					  const uint64_t *hashes, uint32_t n, nv_error *err)
{
	nv_vectors *vf = &store->vectors;
	uint32_t first = atomic_load(&store->vertices);
	uint32_t bytes = store->params.vector_bytes;
	nv_status status;

	status = nv_store_check(store, err);
	if (status != NV_OK)
		return status;
	if (store->state.number > 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "vectors in bulk come before the first checkpoint");
	if (n > NV_MAX_VERTICES - first)
		return nv_fail(err, NV_ELIMIT, 0,
					   "an index holds at most %u distinct vectors",
					   NV_MAX_VERTICES);
	nv_assert(vf->records == first);
	if (vf->buffer == NULL)
		vf->buffer = aligned_alloc(NV_BLOCK, NV_VECTOR_BUFFER);
	if (vf->buffer == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to write vectors");
	if (first == 0)
		memset(vf->buffer, 0, NV_VECTOR_BUFFER);
	status = nv_array_grow(&store->map, (uint64_t) first + n, err);
	if (status == NV_OK)
		status =
			nv_array_grow(nv_store_codes(store), (uint64_t) first + n, err);
	for (uint32_t i = 0; i < n && status == NV_OK; i++)
		status = append(vf, (const uint8_t *) vectors + i * stride, bytes,
						nv_record_offset(bytes, (uint64_t) first + i), err);
	if (status == NV_OK)
		status = write_tail(vf, err);
	if (status != NV_OK)
	{
		nv_store_fail(store, NULL); /* the buffer no longer fits the file */
		return status;
	}
	pthread_rwlock_rdlock(&store->gate);
	status = enter(store, first, hashes, n, err);
	if (status == NV_OK)
		vf->records = (uint64_t) first + n;
	atomic_store(&store->dirty, true);
	pthread_rwlock_unlock(&store->gate);
	return status;
}

void
nv_vectors_end_bulk(nv_store *store)
{
	free(store->vectors.buffer);
	store->vectors.buffer = NULL;
}

nv_status
nv_store_bulk_codes(nv_store *store, const uint8_t *codes, nv_error *err)
{
	uint64_t n = atomic_load(&store->vertices);
	uint32_t stride = store->params.code_stride;
	nv_status status;

	if (stride == 0)
		return nv_fail(err, NV_EINVAL, 0, "this index has no codes");
	pthread_rwlock_rdlock(&store->gate);
	status = nv_array_touch(nv_store_codes(store), 0, n * stride,
							atomic_load(&store->epoch), err);
	for (uint64_t v = 0; v < n && status == NV_OK; v += NV_CHUNK_ENTRIES)
		memcpy(nv_array_entry(nv_store_codes(store), v), codes + v * stride,
			   NV_MIN(n - v, NV_CHUNK_ENTRIES) * stride);
	atomic_store(&store->dirty, true);
	pthread_rwlock_unlock(&store->gate);
	return status;
}

void
nv_store_vector_extent(const nv_store *store, uint32_t vertex, uint64_t *offset,
					   uint32_t *len, uint32_t *skip)
{
	uint32_t bytes = store->params.vector_bytes;
	uint32_t align = nv_file_align(store->vectors.file);
	uint64_t record = atomic_load(nv_map_field(store, vertex, NV_MAP_RECORD));
	uint64_t start = nv_record_offset(bytes, record);

	*offset = start / align * align;
	*skip = (uint32_t) (start - *offset);
	*len = (uint32_t) nv_round_up(*skip + bytes, align);
}

uint32_t
nv_store_vector_extent_max(const nv_store *store)
{
	uint32_t bytes = store->params.vector_bytes;
	uint32_t align = nv_file_align(store->vectors.file);
	uint32_t shift; /* the farthest a record starts behind a border */

	if (bytes <= NV_SECTOR)
		return align; /* never across the border of a sector */
	shift = align - NV_SECTOR;
	return (uint32_t) nv_round_up(shift + bytes, align);
}

/* --- Vectors in the cache --- */

bool
nv_store_get_vector(nv_store *store, uint32_t vertex, uint8_t *out,
					nv_vector_place *place)
{
	uint32_t bytes = store->params.vector_bytes;
	uint64_t record = atomic_load(nv_map_field(store, vertex, NV_MAP_RECORD));
	uint64_t start = nv_record_offset(bytes, record), end = start + bytes;
	uint64_t first = start / NV_PAGE, pages = (end - 1) / NV_PAGE + 1 - first;

	place->missing = 0;
	if (store->cache == NULL || pages > NV_VECTOR_PAGES ||
		!nv_cache_has_spare(store->cache, store->cache_vectors, first))
	{
		nv_store_vector_extent(store, vertex, &place->offset, &place->len,
							   &place->skip);
		return false;
	}
	for (uint64_t i = 0; i < pages; i++)
	{
		uint64_t from = NV_MAX(start, (first + i) * NV_PAGE);
		uint64_t to = NV_MIN(end, (first + i + 1) * NV_PAGE);

		if (!nv_cache_get_spare(store->cache, store->cache_vectors, first + i,
								(uint32_t) (from % NV_PAGE),
								(uint32_t) (to - from), out + (from - start),
								&place->ticket[i]))
			place->missing |= 1u << i;
	}
	place->offset = first * NV_PAGE;
	place->len = (uint32_t) pages * NV_PAGE;
	place->skip = (uint32_t) (start % NV_PAGE);
	return place->missing == 0;
}

void
nv_store_fill_vector(nv_store *store, const nv_vector_place *place,
					 const uint8_t *bytes)
{
	for (uint32_t i = 0; i < NV_VECTOR_PAGES; i++)
		if (place->missing & 1u << i)
			nv_cache_fill_spare(store->cache, store->cache_vectors,
								place->offset / NV_PAGE + i, place->ticket[i],
								bytes + (size_t) i * NV_PAGE);
}

uint32_t
nv_store_vector_read_max(const nv_store *store)
{
	uint32_t longest = nv_store_vector_extent_max(store);
	uint32_t bytes = store->params.vector_bytes, pages = 1;

	if (store->cache == NULL)
		return longest;
	/* Small ones never cross the border of a sector, others begin at one. */
	if (bytes > NV_SECTOR)
		pages = (NV_PAGE - NV_SECTOR + bytes - 1) / NV_PAGE + 1;
	return NV_MAX(longest, NV_MIN(pages, NV_VECTOR_PAGES) * NV_PAGE);
}

/*
 * The vector of the next id of the writer's unit was written: the unit's
 * sectors that it lies in go to the cache, for whoever is linked next beside
 * it compares it.
 */
void
nv_vectors_written(const nv_writer *w)
{
	nv_store *store = w->store;
	uint32_t bytes = store->params.vector_bytes;
	uint64_t start = nv_record_offset(bytes, w->unit.next);
	uint64_t at = start / NV_SECTOR * NV_SECTOR;
	uint64_t end = nv_round_up(start + bytes, NV_SECTOR);
	const uint8_t *sector = w->unit.buffer + (at - w->unit.offset);

	while (store->cache != NULL && at < end)
	{
		uint64_t page = at / NV_PAGE;
		uint32_t len = (uint32_t) (NV_MIN(end, (page + 1) * NV_PAGE) - at);

		nv_cache_written_spare(store->cache, store->cache_vectors, page,
							   (uint32_t) (at % NV_PAGE), len, sector);
		at += len;
		sector += len;
	}
}
