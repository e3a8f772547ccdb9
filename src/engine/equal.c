/*
 * equal.c
 *		Vertices by the hash of their vectors.
 *
 * Open addressing over vertex ids; the hashes are those of the map.  At most
 * half full.
 */
#include "equal.h"

#include "util.h"

#define FIRST_SIZE 4096

struct nv_equal
{
	pthread_mutex_t lock;
	pthread_cond_t released;
	uint64_t claim[NV_EQUAL_CLAIMS];
	uint32_t n_claims;
	bool filled;
	uint32_t *table; /* vertices; NV_NO_VERTEX: empty */
	uint64_t size, used;
};

nv_equal *
nv_equal_create(void)
{
	nv_equal *equal = nv_alloc(sizeof(*equal));

	if (equal == NULL)
		return NULL;
	pthread_mutex_init(&equal->lock, NULL);
	pthread_cond_init(&equal->released, NULL);
	return equal;
}

void
nv_equal_free(nv_equal *equal)
{
	if (equal == NULL)
		return;
	nv_assert(equal->n_claims == 0);
	pthread_mutex_destroy(&equal->lock);
	pthread_cond_destroy(&equal->released);
	free(equal->table);
	free(equal);
}

uint64_t
nv_equal_memory(nv_equal *equal)
{
	uint64_t bytes;

	pthread_mutex_lock(&equal->lock);
	bytes = sizeof(*equal) + equal->size * sizeof(*equal->table);
	pthread_mutex_unlock(&equal->lock);
	return bytes;
}

/* --- Claims --- */

static uint32_t
find_claim(const nv_equal *equal, uint64_t hash)
{
	uint32_t i = 0;

	while (i < equal->n_claims && equal->claim[i] != hash)
		i++;
	return i;
}

void
nv_equal_claim(nv_equal *equal, uint64_t hash)
{
	pthread_mutex_lock(&equal->lock);
	while (find_claim(equal, hash) < equal->n_claims)
		pthread_cond_wait(&equal->released, &equal->lock);
	nv_assert(equal->n_claims < NV_EQUAL_CLAIMS);
	equal->claim[equal->n_claims++] = hash;
	pthread_mutex_unlock(&equal->lock);
}

void
nv_equal_release(nv_equal *equal, uint64_t hash)
{
	uint32_t i;

	pthread_mutex_lock(&equal->lock);
	i = find_claim(equal, hash);
	nv_assert(i < equal->n_claims);
	equal->claim[i] = equal->claim[--equal->n_claims];
	pthread_cond_broadcast(&equal->released);
	pthread_mutex_unlock(&equal->lock);
}

/* --- The table --- */

static void
put(nv_equal *equal, const nv_store *store, uint32_t vertex)
{
	uint64_t i = nv_store_vector_hash(store, vertex) & (equal->size - 1);

	while (equal->table[i] != NV_NO_VERTEX)
		i = (i + 1) & (equal->size - 1);
	equal->table[i] = vertex;
	equal->used++;
}

/* Room for n vertices in all. */
static nv_status
reserve(nv_equal *equal, const nv_store *store, uint64_t n, nv_error *err)
{
	uint64_t size = NV_MAX(equal->size, (uint64_t) FIRST_SIZE);
	uint64_t old_size = equal->size;
	uint32_t *old = equal->table, *table;

	while (size / 2 < n)
		size *= 2;
	if (size == equal->size)
		return NV_OK;
	table = malloc(size * sizeof(*table));
	if (table == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for a table of %llu vectors",
					   (unsigned long long) n);
	memset(table, 0xff, size * sizeof(*table));
	equal->table = table;
	equal->size = size;
	equal->used = 0;
	for (uint64_t i = 0; i < old_size; i++)
		if (old[i] != NV_NO_VERTEX)
			put(equal, store, old[i]);
	free(old);
	return NV_OK;
}

/* Everything that has a list; nothing was added before. */
static nv_status
fill(nv_equal *equal, const nv_store *store, nv_error *err)
{
	uint32_t vertices = nv_store_vertices(store);
	nv_status status = reserve(equal, store, (uint64_t) vertices + 1, err);

	for (uint32_t v = 0; v < vertices && status == NV_OK; v++)
		if (nv_store_edge_word(store, v) != 0)
			put(equal, store, v);
	equal->filled = status == NV_OK;
	return status;
}

nv_status
nv_equal_find(nv_equal *equal, const nv_store *store, uint64_t hash,
			  uint32_t out[NV_EQUAL_MAX], uint32_t *n, nv_error *err)
{
	nv_status status = NV_OK;

	*n = 0;
	pthread_mutex_lock(&equal->lock);
	if (!equal->filled)
		status = fill(equal, store, err);
	if (status == NV_OK)
		status = reserve(equal, store, equal->used + NV_EQUAL_CLAIMS, err);
	if (status == NV_OK)
		for (uint64_t i = hash & (equal->size - 1);
			 equal->table[i] != NV_NO_VERTEX && *n < NV_EQUAL_MAX;
			 i = (i + 1) & (equal->size - 1))
			if (nv_store_vector_hash(store, equal->table[i]) == hash)
				out[(*n)++] = equal->table[i];
	pthread_mutex_unlock(&equal->lock);
	return status;
}

bool
nv_equal_expect(nv_equal *equal, const nv_store *store, uint64_t hash)
{
	bool found = false;

	if (pthread_mutex_trylock(&equal->lock) != 0)
		return false;
	if (equal->filled)
		for (uint64_t i = hash & (equal->size - 1);
			 equal->table[i] != NV_NO_VERTEX && !found;
			 i = (i + 1) & (equal->size - 1))
			found = nv_store_vector_hash(store, equal->table[i]) == hash;
	pthread_mutex_unlock(&equal->lock);
	return found;
}

void
nv_equal_add(nv_equal *equal, const nv_store *store, uint32_t vertex)
{
	pthread_mutex_lock(&equal->lock);
	/* nv_equal_find has made room for all who may have a claim. */
	nv_assert(equal->filled && equal->used < equal->size);
	put(equal, store, vertex);
	pthread_mutex_unlock(&equal->lock);
}

/* The entry at i goes; those behind it that it displaced move up. */
static void
take_out(nv_equal *equal, const nv_store *store, uint64_t i)
{
	uint64_t mask = equal->size - 1;

	equal->used--;
	for (uint64_t j = (i + 1) & mask; equal->table[j] != NV_NO_VERTEX;
		 j = (j + 1) & mask)
	{
		uint64_t home = nv_store_vector_hash(store, equal->table[j]) & mask;

		/* It stays if its home lies between the gap and itself. */
		if (((j - home) & mask) < ((j - i) & mask))
			continue;
		equal->table[i] = equal->table[j];
		i = j;
	}
	equal->table[i] = NV_NO_VERTEX;
}

nv_status
nv_equal_remove(nv_equal *equal, const nv_store *store, uint32_t vertex,
				nv_error *err)
{
	nv_status status = NV_OK;
	uint64_t i;

	pthread_mutex_lock(&equal->lock);
	if (!equal->filled)
		status = fill(equal, store, err);
	if (status == NV_OK)
	{
		i = nv_store_vector_hash(store, vertex) & (equal->size - 1);
		while (equal->table[i] != NV_NO_VERTEX && equal->table[i] != vertex)
			i = (i + 1) & (equal->size - 1);
		if (equal->table[i] == vertex)
			take_out(equal, store, i);
	}
	pthread_mutex_unlock(&equal->lock);
	return status;
}
