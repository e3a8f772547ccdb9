/*
 * coding.c
 *		Codes of all vertices, and how they are replaced by those of another
 *		codebook.
 *
 * The codes in use are an array with a pointer to their codebook; readers take
 * both at once through one pointer, and what it led to lasts until the epoch
 * they are in ends.  Others are made beside them: once next_coding is set, with
 * the gate held exclusively, each vertex that comes brings a code of either
 * codebook, so whoever encodes those that were there before misses none.  Ids
 * may be given to other vectors meanwhile; a code is entered only where the
 * hash is still that of the vector that was encoded, and a new vertex's hash
 * and code come in one step (recode_lock).
 *
 * The switch replaces array, codebook and description between two cuts.  So
 * the codes a checkpoint saves are those of the codebook in its root; after a
 * crash there are the old ones or the new ones.  Segments of codes in the
 * making are clean to the checkpoint, and all become dirty with the switch: a
 * checkpoint that runs would take copies of them otherwise (segments.c).
 *
 * Source: design.md section 4, "Codes", "Checkpoint protocol" 3, 5.
 */
#include "navis/hash.h"
#include "store_internal.h"

nv_coding *
nv_coding_create(void)
{
	return nv_alloc(sizeof(nv_coding));
}

void
nv_coding_free(nv_coding *coding)
{
	if (coding != NULL)
		nv_array_free(&coding->codes);
	free(coding);
}

/* --- Reading --- */

const nv_coding *
nv_store_coding(const nv_store *store)
{
	return atomic_load(&store->coding);
}

const nv_pq *
nv_coding_pq(const nv_coding *coding)
{
	return coding->pq;
}

const uint8_t *
nv_coding_code(const nv_coding *coding, uint32_t vertex)
{
	return nv_array_entry(&coding->codes, vertex);
}

const uint8_t *
nv_store_code(const nv_store *store, uint32_t vertex)
{
	return nv_array_entry(nv_store_codes(store), vertex);
}

void
nv_store_use_pq(nv_store *store, const nv_pq *pq)
{
	atomic_load(&store->coding)->pq = pq;
}

void
nv_store_codings(const nv_store *store, nv_vertex_codes *codes)
{
	codes->coding = atomic_load(&store->coding);
	codes->next = atomic_load(&store->next_coding);
}

uint64_t
nv_codings_memory(nv_store *store)
{
	uint64_t bytes;
	nv_coding *next;

	pthread_rwlock_rdlock(&store->gate);
	next = atomic_load(&store->next_coding);
	bytes = atomic_load(&nv_store_codes(store)->memory);
	if (next != NULL)
		bytes += atomic_load(&next->codes.memory);
	pthread_rwlock_unlock(&store->gate);
	return bytes;
}

nv_status
nv_codings_grow(nv_store *store, uint64_t n, nv_error *err)
{
	nv_coding *next = atomic_load(&store->next_coding);
	nv_status status = nv_array_grow(nv_store_codes(store), n, err);

	if (status == NV_OK && next != NULL)
		status = nv_array_grow(&next->codes, n, err);
	return status;
}

/* --- Replacing --- */

nv_status
nv_store_recode_begin(nv_store *store, const nv_pq *pq, nv_error *err)
{
	nv_coding *coding = nv_coding_create();
	nv_status status = nv_store_check(store, err);

	nv_assert(store->next_coding == NULL && store->left_coding == NULL);
	if (status == NV_OK && coding == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for codes");
	if (status == NV_OK)
		status = nv_array_init(&coding->codes, store->params.code_stride, err);
	if (status == NV_OK)
		status = nv_array_grow(&coding->codes, nv_store_vertices(store), err);
	if (status == NV_OK)
	{
		coding->pq = pq;
		pthread_rwlock_wrlock(&store->gate);
		/* Vertices may have come since; there is room as a rule. */
		status = nv_array_grow(&coding->codes, nv_store_vertices(store), err);
		if (status == NV_OK)
			atomic_store(&store->next_coding, coding);
		pthread_rwlock_unlock(&store->gate);
	}
	if (status != NV_OK)
		nv_coding_free(coding);
	return status;
}

void
nv_store_recode(nv_store *store, const uint32_t *vertex, const uint64_t *hash,
				const uint8_t *codes, uint32_t n)
{
	nv_coding *next = atomic_load(&store->next_coding);
	uint32_t stride = store->params.code_stride;

	pthread_mutex_lock(&store->recode_lock);
	for (uint32_t i = 0; i < n; i++)
		if (nv_store_vector_hash(store, vertex[i]) == hash[i])
			memcpy(nv_array_entry(&next->codes, vertex[i]),
				   codes + (size_t) i * stride, stride);
	pthread_mutex_unlock(&store->recode_lock);
}

void
nv_store_recode_old(nv_store *store, const uint32_t *vertex,
					const uint64_t *hash, uint8_t *codes, uint32_t n)
{
	uint32_t stride = store->params.code_stride;

	pthread_mutex_lock(&store->recode_lock);
	for (uint32_t i = 0; i < n; i++)
		if (nv_store_vector_hash(store, vertex[i]) == hash[i])
			memcpy(codes + (size_t) i * stride, nv_store_code(store, vertex[i]),
				   stride);
	pthread_mutex_unlock(&store->recode_lock);
}

/* The gate is held exclusively; blob: codebook, description, NULL. */
static nv_status
switch_locked(nv_store *store, nv_blob_data *blob[NV_BLOBS], nv_error *err)
{
	nv_coding *next = atomic_load(&store->next_coding);
	uint64_t bytes =
		(uint64_t) nv_store_vertices(store) * store->params.code_stride;
	nv_status status = nv_store_check(store, err);

	if (status == NV_OK)
		status = nv_array_touch(&next->codes, 0, bytes,
								atomic_load(&store->epoch), err);
	if (status != NV_OK)
		return status;
	pthread_mutex_lock(&store->blob_lock);
	for (int b = 0; b < NV_BLOBS; b++)
		if (b != NV_BLOB_ENTRANCE)
		{
			nv_blob_data *old = store->blob[b];

			store->blob[b] = blob[b];
			blob[b] = old;
		}
	pthread_mutex_unlock(&store->blob_lock);
	store->left_coding = atomic_load(&store->coding);
	atomic_store(&store->coding, next);
	atomic_store(&store->next_coding, NULL);
	atomic_store(&store->dirty, true);
	return NV_OK;
}

nv_status
nv_store_recode_switch(nv_store *store, const uint8_t *codebook,
					   size_t codebook_len, const uint8_t *meta,
					   size_t meta_len, nv_error *err)
{
	nv_blob_data *blob[NV_BLOBS] = {0};
	nv_status status;

	blob[NV_BLOB_CODEBOOK] = nv_blob_make(codebook, codebook_len);
	blob[NV_BLOB_META] = nv_blob_make(meta, meta_len);
	if (blob[NV_BLOB_CODEBOOK] == NULL || blob[NV_BLOB_META] == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for a codebook");
	else
	{
		/* What a checkpoint saves is read until it is published. */
		pthread_mutex_lock(&store->checkpoint);
		pthread_rwlock_wrlock(&store->gate);
		status = switch_locked(store, blob, err);
		pthread_rwlock_unlock(&store->gate);
		pthread_mutex_unlock(&store->checkpoint);
	}
	for (int b = 0; b < NV_BLOBS; b++)
		nv_blob_drop(blob[b]);
	return status;
}

void
nv_store_recode_abort(nv_store *store)
{
	pthread_rwlock_wrlock(&store->gate);
	store->left_coding = atomic_load(&store->next_coding);
	atomic_store(&store->next_coding, NULL);
	pthread_rwlock_unlock(&store->gate);
}

void
nv_store_recode_free(nv_store *store)
{
	nv_coding_free(store->left_coding);
	store->left_coding = NULL;
}
