/*
 * store.c
 *		Creating, opening and closing a sidecar; elements, blobs, statistics.
 */
#include "page_writer.h"
#include "store_internal.h"

#include "navis/distance.h"
#include "navis/hash.h"

/* Numbers of edge files in caches: never used twice in a process. */
static _Atomic uint32_t next_cache_file = 1;

void
nv_store_number_files(uint32_t first)
{
	atomic_store(&next_cache_file, first);
}

/* --- Life --- */

/* Parameters come from a caller (NV_EINVAL) or from a root (NV_ECORRUPT). */
nv_status
nv_check_params(const nv_store_params *params, nv_status status, nv_error *err)
{
	if (params->dim < 1 || params->dim > NV_MAX_DIM)
		return nv_fail(err, status, 0, "%u dimensions, 1 to %d expected",
					   params->dim, NV_MAX_DIM);
	if (params->vector_bytes < 1 || params->vector_bytes > NV_MAX_DIM * 4)
		return nv_fail(err, status, 0, "vectors of %u bytes, 1 to %d expected",
					   params->vector_bytes, NV_MAX_DIM * 4);
	if (params->max_degree < 1 || params->max_degree > NV_MAX_DEGREE)
		return nv_fail(err, status, 0, "lists of %u ids, 1 to %d expected",
					   params->max_degree, NV_MAX_DEGREE);
	if (params->code_stride % 4 != 0 || params->code_stride > NV_PQ_MAX_BYTES)
		return nv_fail(err, status, 0,
					   "codes of %u bytes, a multiple of 4 up to %d expected",
					   params->code_stride, NV_PQ_MAX_BYTES);
	return NV_OK;
}

static void
init_gate(nv_store *store)
{
	pthread_rwlockattr_t attr;

	/* A cut must not wait while relinks come and go. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr,
								  PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&store->gate, &attr);
	pthread_rwlockattr_destroy(&attr);
}

static void
init_locks(nv_store *store)
{
	init_gate(store);
	pthread_mutex_init(&store->extend, NULL);
	pthread_mutex_init(&store->blob_lock, NULL);
	pthread_mutex_init(&store->recode_lock, NULL);
	pthread_mutex_init(&store->writers_lock, NULL);
	pthread_mutex_init(&store->checkpoint, NULL);
	pthread_mutex_init(&store->vectors.growing, NULL);
	pthread_mutex_init(&store->vectors.lock, NULL);
	pthread_mutex_init(&store->edges.growing, NULL);
	pthread_mutex_init(&store->state.growing, NULL);
	pthread_mutex_init(&store->edges.allocator, NULL);
	pthread_mutex_init(&store->rmw.lock, NULL);
	pthread_cond_init(&store->rmw.changed, NULL);
	for (int i = 0; i < NV_RMW_PARTITIONS; i++)
		pthread_mutex_init(&store->rmw.partition[i].latch, NULL);
	nv_retire_init(&store->retired);
}

/* A store without files. */
static nv_status
store_alloc(const char *dir, nv_cache *cache, nv_store **out, nv_error *err)
{
	nv_store *store = nv_alloc(sizeof(*store));

	*out = NULL;
	if (store == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for an index");
	init_locks(store);
	store->cache = cache;
	store->cache_file = atomic_fetch_add(&next_cache_file, 1);
	store->cache_vectors = atomic_fetch_add(&next_cache_file, 1);
	store->rmw.most_sealed = NV_RMW_MAX_SEALED;
	store->rmw.least_sealed = NV_RMW_MIN_SEALED;
	atomic_store(&store->epoch, 1);
	store->dir = strdup(dir);
	atomic_store(&store->coding, nv_coding_create());
	if (store->dir == NULL || atomic_load(&store->coding) == NULL ||
		nv_epochs_init(&store->readers, err) != NV_OK ||
		nv_array_init(&store->map, NV_MAP_ENTRY, err) != NV_OK ||
		nv_array_init(&store->element_map, NV_ELEMENT_ENTRY, err) != NV_OK)
	{
		nv_store_close(store);
		return nv_fail(err, NV_ENOMEM, 0, "no memory for an index");
	}
	*out = store;
	return NV_OK;
}

static nv_status
open_files(nv_store *store, int flags, nv_error *err)
{
	static const char *const names[] = {"edges", "vectors", "state"};
	nv_file **const files[] = {&store->edges.file, &store->vectors.file,
							   &store->state.file};
	nv_status status = NV_OK;

	for (int i = 0; i < 3 && status == NV_OK; i++)
	{
		size_t room = strlen(store->dir) + 16;
		char *path = malloc(room);

		if (path == NULL)
			return nv_fail(err, NV_ENOMEM, 0, "no memory for a file name");
		snprintf(path, room, "%s/%s", store->dir, names[i]);
		status = nv_file_open(path, flags, files[i], err);
		free(path);
	}
	return status;
}

nv_status
nv_store_create(const char *dir, const nv_store_params *params, nv_cache *cache,
				nv_store **out, nv_error *err)
{
	nv_store *store;
	nv_status status = nv_check_params(params, NV_EINVAL, err);

	*out = NULL;
	if (status == NV_OK)
		status = store_alloc(dir, cache, &store, err);
	if (status != NV_OK)
		return status;
	store->params = *params;
	status = nv_array_init(nv_store_codes(store), params->code_stride, err);
	if (status == NV_OK)
		status = open_files(store, NV_FILE_CREATE, err);
	if (status == NV_OK)
		status = nv_state_create(store, err);
	if (status != NV_OK)
	{
		nv_store_close(store);
		return status;
	}
	atomic_store(&store->dirty, true);
	*out = store;
	return NV_OK;
}

nv_status
nv_store_set_code_stride(nv_store *store, uint32_t stride, nv_error *err)
{
	nv_store_params params = store->params;
	nv_status status;

	if (params.code_stride != 0 ||
		atomic_load(&nv_store_codes(store)->memory) != 0)
		return nv_fail(err, NV_EINVAL, 0, "code size is %u bytes already",
					   params.code_stride);
	params.code_stride = stride;
	status = nv_check_params(&params, NV_EINVAL, err);
	if (status != NV_OK)
		return status;
	nv_array_free(nv_store_codes(store));
	store->params = params;
	status = nv_array_init(nv_store_codes(store), stride, err);
	if (status == NV_OK)
		status = nv_array_grow(nv_store_codes(store),
							   atomic_load(&store->vertices), err);
	return status;
}

/*
 * A root that can be read may have been written by a process that ended, or was
 * told of an error, before it was durable.  What only the root before it names
 * will be written over, so this one must be durable first.
 */
static nv_status
make_durable(nv_store *store, nv_error *err)
{
	nv_status status = nv_file_sync(store->edges.file, err);

	if (status == NV_OK)
		status = nv_file_sync(store->vectors.file, err);
	if (status == NV_OK)
		status = nv_file_sync(store->state.file, err);
	return status == NV_OK ? nv_dir_sync(store->dir, err) : status;
}

nv_status
nv_store_open(const char *dir, const nv_key *key, nv_cache *cache,
			  nv_store **out, nv_error *err)
{
	nv_store *store;
	nv_status status = store_alloc(dir, cache, &store, err);

	*out = NULL;
	if (status != NV_OK)
		return status;
	status = open_files(store, 0, err);
	if (status == NV_OK)
		status = nv_state_load(store, key, err);
	if (status == NV_OK)
		status = make_durable(store, err);
	if (status != NV_OK)
	{
		nv_store_close(store);
		return status;
	}
	store->directory_synced = true;
	*out = store;
	return NV_OK;
}

static void
destroy_locks(nv_store *store)
{
	pthread_rwlock_destroy(&store->gate);
	pthread_mutex_destroy(&store->extend);
	pthread_mutex_destroy(&store->blob_lock);
	pthread_mutex_destroy(&store->recode_lock);
	pthread_mutex_destroy(&store->writers_lock);
	pthread_mutex_destroy(&store->checkpoint);
	pthread_mutex_destroy(&store->vectors.growing);
	pthread_mutex_destroy(&store->vectors.lock);
	pthread_mutex_destroy(&store->edges.growing);
	pthread_mutex_destroy(&store->state.growing);
	pthread_mutex_destroy(&store->edges.allocator);
	pthread_mutex_destroy(&store->rmw.lock);
	pthread_cond_destroy(&store->rmw.changed);
	for (int i = 0; i < NV_RMW_PARTITIONS; i++)
		pthread_mutex_destroy(&store->rmw.partition[i].latch);
}

void
nv_store_close(nv_store *store)
{
	if (store == NULL)
		return;
	nv_assert(store->writers == NULL);
	if (atomic_load(&store->page_writer) != NULL)
		nv_page_writer_detach(atomic_load(&store->page_writer), store);
	if (store->cache != NULL)
	{
		nv_cache_forget(store->cache, store->cache_file);
		nv_cache_forget(store->cache, store->cache_vectors);
	}
	for (int i = 0; i < NV_RMW_PARTITIONS * NV_RMW_CHAINS; i++)
	{
		nv_rmw_page *page =
			store->rmw.partition[i / NV_RMW_CHAINS].pages[i % NV_RMW_CHAINS];

		while (page != NULL)
		{
			nv_rmw_page *next = page->next;

			nv_rmw_page_free(page);
			page = next;
		}
	}
	for (int b = 0; b < NV_BLOBS; b++)
		nv_blob_drop(store->blob[b]);
	nv_vectors_end_bulk(store);
	nv_array_free(&store->map);
	nv_array_free(&store->element_map);
	nv_coding_free(atomic_load(&store->coding));
	nv_coding_free(atomic_load(&store->next_coding));
	nv_coding_free(store->left_coding);
	nv_retire_free(&store->retired);
	nv_epochs_free(&store->readers);
	free(store->vectors.free_units);
	free(store->vectors.unit_flags);
	free(store->vectors.held);
	free(store->vectors.freed);
	free(store->edges.info);
	free(store->edges.free);
	free(store->state.used);
	nv_file_close(store->edges.file);
	nv_file_close(store->vectors.file);
	nv_file_close(store->state.file);
	destroy_locks(store);
	free(store->dir);
	free(store);
}

void
nv_store_fail(nv_store *store, const nv_error *why)
{
	pthread_mutex_lock(&store->rmw.lock);
	if (!atomic_load(&store->failed) && why != NULL)
		store->failure = *why;
	atomic_store(&store->failed, true);
	pthread_cond_broadcast(&store->rmw.changed);
	pthread_mutex_unlock(&store->rmw.lock);
}

void
nv_store_give_up(nv_store *store)
{
	nv_page_writer *writer = atomic_load(&store->page_writer);

	nv_store_fail(store, NULL);
	if (writer != NULL)
		nv_page_writer_await(writer, store);
}

nv_status
nv_store_check(nv_store *store, nv_error *err)
{
	nv_error why;

	if (!atomic_load(&store->failed))
		return NV_OK;
	pthread_mutex_lock(&store->rmw.lock);
	why = store->failure;
	pthread_mutex_unlock(&store->rmw.lock);
	return nv_fail(err, NV_EIO, why.sys_errno,
				   "an earlier write to \"%s\" failed%s%s, it must be opened "
				   "again",
				   store->dir, why.status != NV_OK ? ": " : "", why.detail);
}

/* --- Reading --- */

const nv_store_params *
nv_store_get_params(const nv_store *store)
{
	return &store->params;
}

uint32_t
nv_store_vertices(const nv_store *store)
{
	return atomic_load(&store->vertices);
}

uint64_t
nv_store_elements(const nv_store *store)
{
	return atomic_load(&store->elements);
}

uint64_t
nv_store_edge_word(const nv_store *store, uint32_t vertex)
{
	/* Sequentially consistent: see epoch.c. */
	return atomic_load(nv_map_field(store, vertex, NV_MAP_WORD));
}

uint64_t
nv_store_vector_hash(const nv_store *store, uint32_t vertex)
{
	return atomic_load(nv_map_field(store, vertex, NV_MAP_HASH));
}

int
nv_store_enter(nv_store *store)
{
	return nv_epochs_enter(&store->readers);
}

void
nv_store_leave(nv_store *store, int slot)
{
	nv_epochs_leave(&store->readers, slot);
}

uint64_t
nv_store_mark(nv_store *store)
{
	return nv_epochs_mark(&store->readers);
}

bool
nv_store_passed(nv_store *store, uint64_t mark)
{
	return nv_epochs_passed(&store->readers, mark);
}

nv_file *
nv_store_edge_file(nv_store *store)
{
	return store->edges.file;
}

nv_file *
nv_store_vector_file(nv_store *store)
{
	return store->vectors.file;
}

nv_status
nv_store_touch_map(nv_store *store, uint32_t vertex, int field, nv_error *err)
{
	uint64_t byte = (uint64_t) vertex * NV_MAP_ENTRY + (uint64_t) field * 8;

	return nv_array_touch(&store->map, byte, 8, atomic_load(&store->epoch),
						  err);
}

/* --- Elements --- */

/*
 * An element entry: generation << 32 | ~vertex, so that zero bytes are an
 * element without vertex.
 */
static uint64_t
element_pack(uint32_t vertex, uint32_t generation)
{
	return (uint64_t) generation << 32 | (uint32_t) ~vertex;
}

uint32_t
nv_store_element(const nv_store *store, uint32_t element, uint32_t *generation)
{
	uint64_t entry = 0;

	if (element < atomic_load(&store->elements))
		entry = atomic_load(
			(_Atomic uint64_t *) nv_array_entry(&store->element_map, element));
	*generation = (uint32_t) (entry >> 32);
	return ~(uint32_t) entry;
}

/* More elements; every new segment is written with the next checkpoint. */
static nv_status
extend_elements(nv_store *store, uint64_t n, nv_error *err)
{
	nv_status status = NV_OK;
	uint64_t have;

	pthread_mutex_lock(&store->extend);
	have = atomic_load(&store->elements);
	if (n > have)
	{
		status = nv_array_grow(&store->element_map, n, err);
		if (status == NV_OK)
			status = nv_array_touch(
				&store->element_map, have * NV_ELEMENT_ENTRY,
				(n - have) * NV_ELEMENT_ENTRY, atomic_load(&store->epoch), err);
		if (status == NV_OK)
			atomic_store(&store->elements, n);
	}
	pthread_mutex_unlock(&store->extend);
	return status;
}

nv_status
nv_store_set_element(nv_store *store, uint32_t element, uint32_t vertex,
					 uint32_t generation, nv_error *err)
{
	nv_status status = nv_store_check(store, err);

	if (status != NV_OK)
		return status;
	if (element >= NV_MAX_ELEMENTS ||
		(vertex != NV_NO_VERTEX && vertex >= nv_store_vertices(store)))
		return nv_fail(err, NV_EINVAL, 0,
					   "element %u of vertex %u: there are %u vertices",
					   element, vertex, nv_store_vertices(store));
	pthread_rwlock_rdlock(&store->gate);
	status = extend_elements(store, (uint64_t) element + 1, err);
	if (status == NV_OK)
		status = nv_array_touch(
			&store->element_map, (uint64_t) element * NV_ELEMENT_ENTRY,
			NV_ELEMENT_ENTRY, atomic_load(&store->epoch), err);
	if (status == NV_OK)
	{
		atomic_store(
			(_Atomic uint64_t *) nv_array_entry(&store->element_map, element),
			element_pack(vertex, generation));
		atomic_store(&store->dirty, true);
	}
	pthread_rwlock_unlock(&store->gate);
	return status;
}

/* --- Blobs --- */

nv_blob_data *
nv_blob_alloc(size_t len)
{
	nv_blob_data *blob = nv_alloc(sizeof(*blob));

	if (blob == NULL)
		return NULL;
	atomic_store(&blob->references, 1);
	blob->len = len;
	blob->segments = (uint32_t) ((len + NV_SEGMENT - 1) / NV_SEGMENT);
	blob->bytes = nv_alloc_array(blob->segments, NV_SEGMENT);
	blob->places = nv_alloc_array(blob->segments, sizeof(*blob->places));
	if (blob->bytes == NULL || blob->places == NULL)
	{
		nv_blob_drop(blob);
		return NULL;
	}
	return blob;
}

nv_blob_data *
nv_blob_make(const uint8_t *bytes, size_t len)
{
	nv_blob_data *blob = nv_blob_alloc(len);

	if (blob == NULL)
		return NULL;
	memcpy(blob->bytes, bytes, len);
	blob->crc = nv_crc32c(0, blob->bytes, len);
	return blob;
}

void
nv_blob_drop(nv_blob_data *blob)
{
	if (blob == NULL || atomic_fetch_sub(&blob->references, 1) > 1)
		return;
	free(blob->bytes);
	free(blob->places);
	free(blob);
}

nv_status
nv_store_set_blob(nv_store *store, nv_blob which, const uint8_t *bytes,
				  size_t len, nv_error *err)
{
	nv_blob_data *blob = NULL, *old;
	nv_status status = nv_store_check(store, err);

	if (status != NV_OK)
		return status;
	if (len > (size_t) UINT32_MAX * 4)
		return nv_fail(err, NV_EINVAL, 0, "a blob of %zu bytes", len);
	if (len > 0)
	{
		blob = nv_blob_make(bytes, len);
		if (blob == NULL)
			return nv_fail(err, NV_ENOMEM, 0, "no memory for %zu bytes", len);
	}
	pthread_rwlock_rdlock(&store->gate);
	pthread_mutex_lock(&store->blob_lock);
	old = store->blob[which];
	if (which == NV_BLOB_CODEBOOK && store->state.number > 0 &&
		(old != NULL ? old->crc : 0) != (blob != NULL ? blob->crc : 0))
	{
		/* Code segments name their codebook: see state_file.c. */
		status = nv_fail(err, NV_EINVAL, 0,
						 "published codes belong to another codebook");
		old = blob;
	}
	else
		store->blob[which] = blob;
	pthread_mutex_unlock(&store->blob_lock);
	atomic_store(&store->dirty, true);
	pthread_rwlock_unlock(&store->gate);
	nv_blob_drop(old);
	return status;
}

const uint8_t *
nv_store_get_blob(nv_store *store, nv_blob which, size_t *len)
{
	const nv_blob_data *blob;

	pthread_mutex_lock(&store->blob_lock);
	blob = store->blob[which];
	*len = blob != NULL ? blob->len : 0;
	pthread_mutex_unlock(&store->blob_lock);
	return blob != NULL ? blob->bytes : NULL;
}

/* --- Statistics --- */

static uint64_t
other_memory(nv_store *store)
{
	uint64_t bytes = sizeof(*store) + nv_retire_memory(&store->retired);

	bytes += atomic_load(&store->readers.high) * sizeof(nv_epoch_place);
	bytes += atomic_load(&store->rmw.count) * (NV_PAGE + sizeof(nv_rmw_page));
	pthread_mutex_lock(&store->edges.allocator);
	bytes += store->edges.capacity * (sizeof(nv_page_info) + sizeof(uint32_t));
	pthread_mutex_unlock(&store->edges.allocator);
	pthread_mutex_lock(&store->blob_lock);
	for (int b = 0; b < NV_BLOBS; b++)
		if (store->blob[b] != NULL)
			bytes += (uint64_t) store->blob[b]->segments * NV_SEGMENT;
	pthread_mutex_unlock(&store->blob_lock);
	bytes += atomic_load(&store->state.size) / NV_SEGMENT;
	return bytes;
}

void
nv_store_count_slots(nv_store *store, uint64_t *all, uint64_t *retired)
{
	nv_edges_reclaim(store); /* who waits for fewer changes nothing meanwhile */
	pthread_mutex_lock(&store->edges.allocator);
	*all = store->edges.live_slots;
	pthread_mutex_unlock(&store->edges.allocator);
	*retired = nv_retire_count(&store->retired);
}

void
nv_store_get_stats(nv_store *store, nv_store_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->published_sequence = atomic_load(&store->published_sequence);
	stats->published_lsn = atomic_load(&store->published_lsn);
	pthread_mutex_lock(&store->edges.allocator);
	stats->edge_pages = store->edges.pages;
	stats->free_pages = store->edges.free_count;
	stats->live_slots = store->edges.live_slots;
	pthread_mutex_unlock(&store->edges.allocator);
	stats->retired_slots = nv_retire_count(&store->retired);
	nv_file_size(store->edges.file, &stats->edge_bytes, NULL);
	nv_file_size(store->vectors.file, &stats->vector_bytes, NULL);
	stats->state_bytes = atomic_load(&store->state.size);
	stats->memory_map = atomic_load(&store->map.memory);
	stats->memory_elements = atomic_load(&store->element_map.memory);
	stats->memory_codes = nv_codings_memory(store);
	stats->memory_other = other_memory(store);
	stats->rmw_pages = atomic_load(&store->rmw.count);
	for (int u = 0; u < NV_CACHE_USERS; u++)
		stats->rmw_hits[u] = atomic_load(&store->rmw_hits[u]);
	stats->pages_written = atomic_load(&store->pages_written);
	stats->page_writes = atomic_load(&store->page_writes);
	pthread_mutex_lock(&store->vectors.lock);
	stats->freed_vertices = store->vectors.freed_count;
	pthread_mutex_unlock(&store->vectors.lock);
	stats->pages_reopened = atomic_load(&store->rmw.counters.reopened);
	stats->write_waits = atomic_load(&store->rmw.counters.waits);
	stats->dirty = atomic_load(&store->dirty);
	stats->failed = atomic_load(&store->failed);
}
