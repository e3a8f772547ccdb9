/*
 * test_store.c
 *		The sidecar in one thread: building, publishing, opening again, damage
 *		of every kind, crashes between the steps of a checkpoint, reuse of
 *		space.
 */
#include "store_dirs.h"

#include <errno.h>

#include "io_internal.h"
#include "store_internal.h"

/* Seeds of damage; there are no threads here for TSan to watch. */
#ifdef __SANITIZE_THREAD__
#define DAMAGES 60
#else
#define DAMAGES 400
#endif

static uint64_t
lsn_of(void *arg)
{
	return *(uint64_t *) arg;
}

static void
checkpoint(nv_store *store, uint64_t lsn)
{
	nv_checkpoint_hooks hooks = {.arg = &lsn, .cut = lsn_of};

	ok(nv_store_checkpoint(store, &hooks, &why));
}

static nv_store *
open_ok(const char *name)
{
	nv_store *store = NULL;

	ok(nv_store_open(name, &test_key, NULL, &store, &why));
	return store;
}

static nv_status
open_status(const char *name, const nv_key *key)
{
	nv_store *store = NULL;
	nv_error err = {0};
	nv_status status = nv_store_open(name, key, NULL, &store, &err);

	assert_true((status == NV_OK) == (store != NULL));
	assert_true(status == NV_OK || err.detail[0] != 0);
	nv_store_close(store);
	return status;
}

/* Vectors, codes and lists are those of build_store and of versions. */
static void
compare(nv_store *store, uint32_t dim, uint32_t code_stride, const int *version)
{
	uint32_t max = nv_store_vector_extent_max(store);
	uint32_t align = nv_file_align(nv_store_vector_file(store));
	uint8_t *edges = read_file(nv_store_edge_file(store));
	uint8_t *vectors = read_file(nv_store_vector_file(store));
	uint8_t *right = nv_alloc(dim * 4 + 256);

	assert_int_equal(nv_store_vertices(store), VERTICES);
	for (uint32_t v = 0; v < VERTICES; v++)
	{
		uint64_t offset;
		uint32_t len, skip;

		assert_int_equal(version_in(store, v, edges),
						 version != NULL ? version[v] : 0);
		assert_true(nv_store_edge_word(store, v) & NV_LINKED);
		nv_store_vector_extent(store, v, &offset, &len, &skip);
		assert_true(len <= max && skip + dim * 4 <= len);
		assert_true(offset % align == 0 && len % align == 0);
		make_bytes(v, 1, right, dim * 4);
		assert_memory_equal(vectors + offset + skip, right, dim * 4);
		assert_true(nv_store_vector_hash(store, v) ==
					nv_vector_hash(right, dim * 4));
		make_bytes(v, 2, right, code_stride);
		if (code_stride > 0)
			assert_memory_equal(nv_store_code(store, v), right, code_stride);
	}
	free(edges);
	free(vectors);
	free(right);
}

static void
relink_to(nv_writer *writer, uint32_t vertex, uint32_t version)
{
	uint32_t ids[DEGREE], degree = make_list(vertex, version, ids);
	uint64_t word = nv_store_edge_word(writer->store, vertex);

	ok(nv_store_relink(writer, vertex, word, ids, degree, &why));
}

/* --- Building and opening --- */

static void
test_build_reopen(void **state)
{
	/* Several to a sector, exactly one, a sector and a bit, many sectors. */
	static const uint32_t dims[] = {1, 25, 100, 127, 128, 129, 200, 960};
	static const uint32_t strides[] = {0, 4, 32, 100, 252};

	for (size_t i = 0; i < NV_LENGTH(dims); i++)
	{
		uint32_t stride = strides[i % NV_LENGTH(strides)];
		nv_store *store = build_store(dir, dims[i], stride, NULL);
		nv_store_stats stats;

		compare(store, dims[i], stride, NULL);
		assert_int_equal(open_status(dir, &test_key), NV_ENOENT);
		checkpoint(store, 77);
		compare(store, dims[i], stride, NULL);
		nv_store_close(store);

		store = open_ok(dir);
		compare(store, dims[i], stride, NULL);
		assert_int_equal(nv_store_get_params(store)->dim, dims[i]);
		assert_int_equal(nv_store_get_params(store)->relfilenode, 11);
		assert_int_equal(nv_store_get_params(store)->index_oid, 12);
		nv_store_get_stats(store, &stats);
		assert_int_equal(stats.published_lsn, 77);
		assert_int_equal(stats.published_sequence, VERTICES);
		assert_int_equal(stats.live_slots, VERTICES);
		assert_int_equal(stats.free_pages, 0);
		assert_false(stats.dirty);
		assert_true(stats.state_bytes % NV_SEGMENT == 0);
		assert_true(stats.memory_map > 0 && stats.memory_other > 0);
		nv_store_close(store);
		remove_directory(dir);
		make_directory(dir);
	}
}

static void
test_empty_lists(void **state)
{
	nv_store_params params = test_params(3, 0);
	float vector[3] = {1, 2, 3};
	uint64_t hash = 5;
	uint64_t offset[] = {0, 0};
	uint32_t page[1] = {0}, degree = 9;
	nv_graph graph = {.n = 1, .offset = offset, .edges = page};
	nv_store *store = NULL;
	_Alignas(NV_BLOCK) uint8_t bytes[NV_PAGE];

	ok(nv_store_create(dir, &params, NULL, &store, &why));
	ok(nv_store_bulk_vectors(store, vector, 12, &hash, 1, &why));
	ok(nv_store_bulk_edges(store, &graph, page, 1, NULL, NULL, &why));
	checkpoint(store, 1);
	nv_store_close(store);
	store = open_ok(dir);
	ok(nv_file_read(nv_store_edge_file(store), bytes, NV_PAGE, 0, &why));
	assert_non_null(
		nv_slot_find(store, bytes, nv_store_edge_word(store, 0), 0, &degree));
	assert_int_equal(degree, 0);
	nv_store_close(store);
}

/* A sidecar without vertices keeps elements and blobs. */
static void
test_no_vertices(void **state)
{
	nv_store_params params = test_params(3, 8);
	nv_store *store = NULL;
	uint32_t generation;
	size_t len;

	ok(nv_store_create(dir, &params, NULL, &store, &why));
	ok(nv_store_set_blob(store, NV_BLOB_META, (const uint8_t *) "abc", 3,
						 &why));
	ok(nv_store_set_element(store, 2, NV_NO_VERTEX, 5, &why));
	checkpoint(store, 1);
	nv_store_close(store);
	store = open_ok(dir);
	assert_int_equal(nv_store_vertices(store), 0);
	assert_int_equal(nv_store_elements(store), 3);
	assert_int_equal(nv_store_element(store, 2, &generation), NV_NO_VERTEX);
	assert_int_equal(generation, 5);
	assert_memory_equal(nv_store_get_blob(store, NV_BLOB_META, &len), "abc", 3);
	assert_int_equal(len, 3);
	nv_store_close(store);
}

/* Vertices that have no list yet, and no code. */
static void
test_first_lists(void **state)
{
	nv_store_params params = test_params(3, 8);
	nv_store *store = NULL;
	nv_writer *writer;
	float vectors[3 * VERTICES] = {0};
	uint64_t hashes[VERTICES] = {0};
	uint8_t *edges;

	ok(nv_store_create(dir, &params, NULL, &store, &why));
	ok(nv_store_bulk_vectors(store, vectors, 12, hashes, VERTICES, &why));
	checkpoint(store, 1);
	nv_store_close(store);
	store = open_ok(dir);
	ok(nv_writer_create(store, &writer, &why));
	for (uint32_t v = 0; v < VERTICES; v += 2)
	{
		assert_true(nv_store_edge_word(store, v) == 0);
		relink_to(writer, v, v / 2);
	}
	checkpoint(store, 2);
	nv_writer_destroy(writer);
	nv_store_close(store);
	store = open_ok(dir);
	edges = read_file(nv_store_edge_file(store));
	for (uint32_t v = 0; v < VERTICES; v++)
	{
		assert_false(nv_store_edge_word(store, v) & NV_LINKED);
		assert_int_equal(version_in(store, v, edges),
						 v % 2 == 0 ? (int) v / 2 : -1);
		assert_int_equal(nv_store_code(store, v)[3], 0);
	}
	free(edges);
	nv_store_close(store);
}

/* The size of codes is said once, and within bounds. */
static void
test_code_stride_set_late(void **state)
{
	nv_store_params params = test_params(3, 0);
	nv_store *store = NULL;
	nv_error err;

	ok(nv_store_create(dir, &params, NULL, &store, &why));
	assert_int_equal(nv_store_set_code_stride(store, 6, &err), NV_EINVAL);
	assert_int_equal(nv_store_set_code_stride(store, NV_PQ_MAX_BYTES + 4, &err),
					 NV_EINVAL);
	ok(nv_store_set_code_stride(store, 8, &why));
	assert_int_equal(nv_store_set_code_stride(store, 8, &err), NV_EINVAL);
	assert_int_equal(nv_store_get_params(store)->code_stride, 8);
	nv_store_close(store);
}

static bool
cancel_at_once(void *arg)
{
	return true;
}

/* A build that stopped is never published. */
static void
test_bulk_cancelled(void **state)
{
	nv_store_params params = test_params(3, 0);
	nv_store *store = NULL;
	nv_checkpoint_hooks hooks = {0};
	float vectors[3 * VERTICES] = {0};
	uint64_t hashes[VERTICES] = {0};
	uint32_t page[VERTICES], pages;
	nv_graph graph;
	nv_error err;

	make_graph(&graph);
	pages = scatter(&graph, page);
	ok(nv_store_create(dir, &params, NULL, &store, &why));
	ok(nv_store_bulk_vectors(store, vectors, 12, hashes, VERTICES, &why));
	page[9] = pages; /* refused before anything is done */
	assert_int_equal(
		nv_store_bulk_edges(store, &graph, page, pages, NULL, NULL, &err),
		NV_EINVAL);
	page[9] = 0;
	assert_int_equal(nv_store_bulk_edges(store, &graph, page, pages,
										 cancel_at_once, NULL, &err),
					 NV_ECANCELLED);
	assert_int_equal(nv_store_checkpoint(store, &hooks, &err), NV_EIO);
	nv_store_close(store);
	assert_int_equal(open_status(dir, &test_key), NV_ENOENT);
	free_graph(&graph);
}

static void
test_bad_arguments(void **state)
{
	nv_store_params params = test_params(3, 6);
	nv_store *store = NULL;
	nv_writer *writer;
	uint32_t ids[2] = {1, 0};
	nv_error err;

	assert_int_equal(nv_store_create(dir, &params, NULL, &store, &err),
					 NV_EINVAL);
	assert_null(store);
	params = test_params(0, 8);
	assert_int_equal(nv_store_create(dir, &params, NULL, &store, &err),
					 NV_EINVAL);
	assert_int_equal(open_status(dir, &test_key), NV_ENOENT);
	assert_int_equal(open_status("navis_store_none", &test_key), NV_ENOENT);

	store = build_store(dir, 4, 8, NULL);
	assert_int_equal(nv_store_set_element(store, 0, VERTICES, 1, &err),
					 NV_EINVAL);
	ok(nv_writer_create(store, &writer, &why));
	assert_int_equal(nv_store_relink(writer, 0, 1, ids, 1, &err), NV_EBUSY);
	assert_int_equal(
		nv_store_relink(writer, 0, nv_store_edge_word(store, 0), ids, 2, &err),
		NV_EINVAL);
	assert_int_equal(nv_store_relink(writer, VERTICES, 0, ids, 1, &err),
					 NV_EINVAL);
	assert_int_equal(nv_store_relink(writer, 5, nv_store_edge_word(store, 5),
									 ids, DEGREE + 1, &err),
					 NV_EINVAL);
	nv_writer_destroy(writer);
	nv_store_close(store);
	params = test_params(4, 8);
	assert_int_equal(nv_store_create(dir, &params, NULL, &store, &err),
					 NV_EEXIST);
}

static void
test_elements(void **state)
{
	nv_store *store = build_store(dir, 4, 0, NULL);
	const uint32_t n = 100000; /* several segments and chunks */
	uint32_t generation;

	for (uint32_t e = 0; e < n; e += 3)
		ok(nv_store_set_element(store, e, e % VERTICES, e * 5, &why));
	checkpoint(store, 1);
	for (uint32_t e = 0; e < n; e += 6)
		ok(nv_store_set_element(store, e, NV_NO_VERTEX, e * 5 + 1, &why));
	for (int round = 0; round < 3; round++)
	{
		assert_int_equal(nv_store_elements(store), n - 1 - (n - 1) % 3 + 1);
		for (uint32_t e = 0; e < n; e++)
		{
			uint32_t vertex = nv_store_element(store, e, &generation);

			if (e % 3 != 0)
			{
				assert_int_equal(vertex, NV_NO_VERTEX);
				assert_int_equal(generation, 0);
				continue;
			}
			/* Round 1 sees what was published first. */
			assert_int_equal(vertex, e % 6 == 0 && round != 1 ? NV_NO_VERTEX
															  : e % VERTICES);
			assert_int_equal(generation,
							 e * 5 + (e % 6 == 0 && round != 1 ? 1 : 0));
		}
		if (round == 1)
		{
			for (uint32_t e = 0; e < n; e += 6)
				ok(nv_store_set_element(store, e, NV_NO_VERTEX, e * 5 + 1,
										&why));
			checkpoint(store, 2);
		}
		nv_store_close(store);
		store = open_ok(dir);
	}
	nv_store_close(store);
}

static void
test_blobs(void **state)
{
	nv_store *store = build_store(dir, 4, 8, NULL);
	size_t sizes[] = {1, NV_SEGMENT - 1, NV_SEGMENT, 5 * NV_SEGMENT + 17};
	uint8_t *bytes = nv_alloc(6 * NV_SEGMENT);
	size_t len;
	nv_error err;

	for (uint32_t round = 0; round < 6; round++)
	{
		for (int b = 0; b < NV_BLOBS; b++)
		{
			/* One stays as it is; the codebook must. */
			if (round > 0 && (b == NV_BLOB_CODEBOOK || b == (int) round % 4))
				continue;
			make_bytes((uint32_t) b, round, bytes, 6 * NV_SEGMENT);
			ok(nv_store_set_blob(store, (nv_blob) b, bytes,
								 sizes[(b + (int) round) % 4], &why));
		}
		checkpoint(store, round);
		for (int b = 0; b < NV_BLOBS; b++)
		{
			const uint8_t *before = nv_store_get_blob(store, (nv_blob) b, &len);

			if (b == 0)
			{
				copy_directory(dir, copy);
				assert_non_null(before);
			}
			nv_store *again = open_ok(copy);
			size_t len_again;
			const uint8_t *after =
				nv_store_get_blob(again, (nv_blob) b, &len_again);

			assert_int_equal(len, len_again);
			assert_memory_equal(before, after, len);
			nv_store_close(again);
		}
	}
	/* Codes name their codebook. */
	assert_int_equal(nv_store_set_blob(store, NV_BLOB_CODEBOOK, bytes, 9, &err),
					 NV_EINVAL);
	ok(nv_store_set_blob(store, NV_BLOB_ENTRANCE, NULL, 0, &why));
	checkpoint(store, 9);
	nv_store_close(store);
	store = open_ok(dir);
	assert_null(nv_store_get_blob(store, NV_BLOB_ENTRANCE, &len));
	assert_int_equal(len, 0);
	nv_store_close(store);
	free(bytes);
}

/* --- Slots --- */

/* Any bit of a slot, and any other vertex or word, must be noticed. */
static void
test_slot_damage(void **state)
{
	nv_store *store = build_store(dir, 4, 0, NULL);
	uint8_t *page = aligned_alloc(NV_BLOCK, NV_PAGE);
	uint64_t seed = nv_random_seed(3);

	for (int i = 0; i < 60; i++)
	{
		uint32_t v = (uint32_t) nv_random_below(&seed, VERTICES), degree;
		uint64_t word = nv_store_edge_word(store, v);
		uint8_t *slot = page + nv_word_unit(word) * NV_UNIT;

		ok(nv_file_read(nv_store_edge_file(store), page, NV_PAGE,
						nv_word_page(word) * NV_PAGE, &why));
		assert_non_null(nv_slot_find(store, page, word, v, &degree));
		for (uint32_t bit = 0; bit < (NV_SLOT_HEADER + degree * 4) * 8; bit++)
		{
			uint32_t ignored;

			slot[bit / 8] ^= (uint8_t) (1 << bit % 8);
			assert_null(nv_slot_find(store, page, word, v, &ignored));
			slot[bit / 8] ^= (uint8_t) (1 << bit % 8);
		}
		assert_null(nv_slot_find(store, page, word, v ^ 1, &degree));
		for (int bit = 1; bit < 32; bit++)
			assert_null(nv_slot_find(store, page, word ^ UINT64_C(1) << bit, v,
									 &degree));
		assert_null(nv_slot_find(store, page, 0, v, &degree));
	}
	/* A list with a valid checksum that names vertices there are none of. */
	{
		uint32_t ids[2] = {1, VERTICES}, degree;

		memset(page, 0xff, NV_PAGE);
		nv_slot_write(page, 7, 99, ids, 2);
		assert_null(nv_slot_find(store, page, nv_word_make(0, 0, 99, true), 7,
								 &degree));
		ids[1] = VERTICES - 1;
		nv_slot_write(page, 7, 99, ids, 2);
		assert_non_null(nv_slot_find(store, page, nv_word_make(0, 0, 99, true),
									 7, &degree));
		/* A slot that would reach across the end of the page. */
		memset(page, 0, NV_PAGE);
		nv_slot_write(page + 63 * NV_UNIT, 7, 99, ids, 2);
		page[63 * NV_UNIT + 4] = DEGREE;
		assert_null(nv_slot_find(store, page, nv_word_make(0, 63, 99, true), 7,
								 &degree));
	}
	free(page);
	nv_store_close(store);
}

/* --- Damaged and foreign state files --- */

static uint8_t *
slurp(const char *name, const char *file, size_t *len)
{
	char path[512];
	FILE *f;
	uint8_t *bytes;

	snprintf(path, sizeof(path), "%s/%s", name, file);
	f = fopen(path, "rb");
	if (f == NULL)
		abort();
	fseek(f, 0, SEEK_END);
	*len = (size_t) ftell(f);
	rewind(f);
	bytes = malloc(*len + 1);
	if (bytes == NULL || fread(bytes, 1, *len, f) != *len)
		abort();
	fclose(f);
	return bytes;
}

static void
spill(const char *name, const char *file, const uint8_t *bytes, size_t len)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", name, file);
	f = fopen(path, "wb");
	if (f == NULL || fwrite(bytes, 1, len, f) != len || fclose(f) != 0)
		abort();
}

static nv_root *
root_at(uint8_t *bytes, int block)
{
	return (nv_root *) (void *) (bytes + block * NV_SEGMENT);
}

static void
seal_root(nv_root *root)
{
	root->crc = 0;
	root->crc = nv_crc32c(0, root, sizeof(*root));
}

/* Two roots: version 0 (LSN 1), then vertices 0 .. 99 at version 1 (LSN 2). */
static void
build_two_roots(int *version)
{
	nv_store *store = build_store(dir, 16, 32, NULL);
	nv_writer *writer;

	for (uint32_t e = 0; e < 3000; e++)
		ok(nv_store_set_element(store, e, e % VERTICES, e, &why));
	ok(nv_store_set_blob(store, NV_BLOB_META, (const uint8_t *) "one", 3,
						 &why));
	checkpoint(store, 1);
	ok(nv_writer_create(store, &writer, &why));
	for (uint32_t v = 0; v < 100; v++)
	{
		relink_to(writer, v, 1);
		version[v] = 1;
	}
	ok(nv_store_set_blob(store, NV_BLOB_META, (const uint8_t *) "two", 3,
						 &why));
	checkpoint(store, 2);
	nv_writer_destroy(writer);
	nv_store_close(store);
}

static uint64_t
opened_lsn(const char *name, const int *version)
{
	nv_store *store = open_ok(name);
	nv_store_stats stats;
	size_t len;
	const uint8_t *meta = nv_store_get_blob(store, NV_BLOB_META, &len);

	nv_store_get_stats(store, &stats);
	assert_true(stats.published_lsn == 1 || stats.published_lsn == 2);
	assert_memory_equal(meta, stats.published_lsn == 1 ? "one" : "two", 3);
	compare(store, 16, 32, stats.published_lsn == 1 ? NULL : version);
	for (uint32_t e = 0; e < 3000; e++)
	{
		uint32_t generation;

		assert_int_equal(nv_store_element(store, e, &generation), e % VERTICES);
		assert_int_equal(generation, e);
	}
	nv_store_close(store);
	return stats.published_lsn;
}

static void
test_root_fallback(void **state)
{
	static int version[VERTICES];
	uint8_t *bytes, *torn;
	size_t len;
	nv_root *newest, *older;

	build_two_roots(version);
	copy_directory(dir, copy);
	assert_int_equal(opened_lsn(copy, version), 2);
	bytes = slurp(dir, "state", &len);
	newest = root_at(bytes, root_at(bytes, 1)->number == 2 ? 1 : 0);
	older = root_at(bytes, root_at(bytes, 1)->number == 2 ? 0 : 1);
	assert_int_equal(newest->number, 2);
	assert_int_equal(older->number, 1);

	/* The newest root torn at any sector: the older one is used. */
	torn = malloc(len);
	for (size_t at = 0; at < NV_BLOCK; at += NV_SECTOR)
	{
		memcpy(torn, bytes, len);
		memset(torn + ((uint8_t *) newest - bytes) + at, 0x55, NV_SECTOR);
		spill(copy, "state", torn, len);
		assert_int_equal(opened_lsn(copy, version), 1);
	}
	/* A segment that only the newest root names. */
	memcpy(torn, bytes, len);
	torn[(size_t) newest->table[0].place * NV_SEGMENT + 5] ^= 1;
	spill(copy, "state", torn, len);
	assert_int_equal(opened_lsn(copy, version), 1);

	/* Both damaged, or none written. */
	memcpy(torn, bytes, len);
	memset(torn, 0x55, 100);
	memset(torn + NV_SEGMENT, 0x55, 100);
	spill(copy, "state", torn, len);
	assert_int_equal(open_status(copy, &test_key), NV_ECORRUPT);
	memset(torn, 0, 2 * NV_SEGMENT);
	spill(copy, "state", torn, len);
	assert_int_equal(open_status(copy, &test_key), NV_ENOENT);
	free(torn);
	free(bytes);
}

/* After falling back, work goes on and the damaged root is replaced. */
static void
test_fallback_goes_on(void **state)
{
	static int version[VERTICES];
	uint8_t *bytes;
	size_t len;
	nv_store *store;
	nv_writer *writer;

	build_two_roots(version);
	bytes = slurp(dir, "state", &len);
	root_at(bytes, root_at(bytes, 1)->number == 2 ? 1 : 0)->lsn ^= 1;
	spill(dir, "state", bytes, len);
	free(bytes);

	memset(version, 0, sizeof(version));
	store = open_ok(dir);
	ok(nv_writer_create(store, &writer, &why));
	for (uint32_t v = 0; v < 200; v++)
	{
		relink_to(writer, v, 2);
		version[v] = 2;
	}
	checkpoint(store, 3);
	compare(store, 16, 32, version);
	nv_writer_destroy(writer);
	nv_store_close(store);
	store = open_ok(dir);
	compare(store, 16, 32, version);
	nv_store_close(store);
}

static void
test_version_and_key(void **state)
{
	static int version[VERTICES];
	uint8_t *bytes;
	size_t len;
	nv_key key = test_key;

	build_two_roots(version);
	key.identity[15] ^= 1;
	assert_int_equal(open_status(dir, &key), NV_EFOREIGN);
	key = test_key;
	key.database++;
	assert_int_equal(open_status(dir, &key), NV_EFOREIGN);
	key = test_key;
	key.system_id++;
	assert_int_equal(open_status(dir, &key), NV_EFOREIGN);

	bytes = slurp(dir, "state", &len);
	for (int block = 0; block < 2; block++)
	{
		root_at(bytes, block)->version++;
		seal_root(root_at(bytes, block));
		spill(dir, "state", bytes, len);
		assert_int_equal(open_status(dir, &test_key), NV_EVERSION);
	}
	free(bytes);
}

static void
truncate_file(const char *name, const char *file, uint64_t len)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", name, file);
	if (truncate(path, (off_t) len) != 0)
		abort();
}

static void
test_short_files(void **state)
{
	static int version[VERTICES];
	static const char *const files[] = {"edges", "vectors", "state"};
	size_t len;

	build_two_roots(version);
	for (int f = 0; f < 3; f++)
	{
		char path[512];

		free(slurp(dir, files[f], &len));
		copy_directory(dir, copy);
		/* At its end is space for the next checkpoint, then a segment of the
		   newest root. */
		for (uint64_t lsn = 2; f == 2 && lsn == 2;)
		{
			len -= NV_SEGMENT;
			truncate_file(copy, files[f], len);
			lsn = (uint64_t) opened_lsn(copy, version);
			assert_true(lsn == 1 || lsn == 2);
		}
		if (f != 2)
		{
			truncate_file(copy, files[f], f == 0 ? NV_PAGE : len - NV_BLOCK);
			assert_int_equal(open_status(copy, &test_key), NV_ECORRUPT);
		}
		copy_directory(dir, copy);
		truncate_file(copy, files[f], 0);
		assert_int_equal(open_status(copy, &test_key),
						 f == 2 ? NV_ENOENT : NV_ECORRUPT);
		copy_directory(dir, copy);
		snprintf(path, sizeof(path), "%s/%s", copy, files[f]);
		unlink(path);
		assert_int_equal(open_status(copy, &test_key), NV_ENOENT);
	}
}

/*
 * What is written between the last root and a crash may be in the file: the
 * same list of the same vertex, written again afterwards, has another tag.
 */
static void
test_tags_after_crash(void **state)
{
	static int version[VERTICES];
	uint64_t tag[4];

	build_two_roots(version);
	for (size_t life = 0; life < NV_LENGTH(tag); life++)
	{
		uint32_t ids[1] = {1};
		nv_writer *writer;
		nv_store *store;

		assert_int_equal(nv_store_open(dir, &test_key, NULL, &store, NULL),
						 NV_OK);
		assert_int_equal(nv_writer_create(store, &writer, NULL), NV_OK);
		assert_int_equal(nv_store_relink(writer, 0,
										 nv_store_edge_word(store, 0), ids, 1,
										 NULL),
						 NV_OK);
		tag[life] = nv_word_tag(nv_store_edge_word(store, 0));
		nv_writer_destroy(writer);
		nv_store_close(store);
		for (size_t before = 0; before < life; before++)
			assert_int_not_equal(tag[before], tag[life]);
	}
}

static void
quiet(void *arg, nv_log_level level, const char *line)
{
}

/*
 * Damage anywhere in the state file, some of it under a correct checksum of
 * the root: opening fails, or gives one of the two published states.
 */
static void
test_random_damage(void **state)
{
	static int version[VERTICES];
	uint8_t *bytes, *bad;
	size_t len, cut;
	int opened = 0, refused = 0;

	build_two_roots(version);
	copy_directory(dir, copy);
	bytes = slurp(dir, "state", &len);
	bad = malloc(len);
	nv_set_log_sink(quiet, NULL);
	for (uint64_t n = 1; n <= DAMAGES; n++)
	{
		uint64_t seed = nv_random_seed(n), kind = n % 5;
		uint64_t changes = 1 + nv_random_below(&seed, 8);

		memcpy(bad, bytes, len);
		cut = len;
		for (uint64_t i = 0; i < changes; i++)
		{
			size_t at = (size_t) nv_random_below(&seed, len);

			if (kind == 0) /* in a root; valid checksum */
				at = (at & 1) * NV_SEGMENT + 12 + at % 240;
			else if (kind == 1) /* in a root */
				at = (at & 1) * NV_SEGMENT + at % NV_BLOCK;
			bad[at] = (uint8_t) nv_random(&seed);
		}
		if (kind == 0)
		{
			seal_root(root_at(bad, 0));
			seal_root(root_at(bad, 1));
		}
		if (kind == 2)
			cut = (size_t) nv_random_below(&seed, len);
		if (kind == 3)
		{
			size_t at = (size_t) nv_random_below(&seed, len - 70000);

			memset(bad + at, (int) nv_random_below(&seed, 2) * 255,
				   (size_t) nv_random_below(&seed, 70000));
		}
		spill(copy, "state", bad, cut);
		{
			nv_store *store = NULL;

			if (nv_store_open(copy, &test_key, NULL, &store, NULL) == NV_OK)
				opened++;
			else
				refused++;
			/* A root changed under a right checksum may say anything. */
			if (store != NULL && kind != 0)
				opened_lsn(copy, version);
			nv_store_close(store);
		}
	}
	nv_set_log_sink(NULL, NULL);
	assert_true(opened > 10 && refused > 10);
	free(bad);
	free(bytes);
}

/* Tables and maps with right checksums whose content is out of bounds. */
static void
test_crafted_map(void **state)
{
	static int version[VERTICES];
	uint8_t *bytes, *bad;
	size_t len;

	build_two_roots(version);
	copy_directory(dir, copy);
	bytes = slurp(dir, "state", &len);
	bad = malloc(len);
	for (int n = 0; n < 6; n++)
	{
		nv_root *root;
		nv_table_entry *table;
		uint8_t *seg;
		uint32_t segment = n < 3 ? 0 : n == 3 ? 1 : 2;

		/* One root only, so that nothing is there to fall back to. */
		memcpy(bad, bytes, len);
		root = root_at(bad, root_at(bad, 1)->number == 2 ? 1 : 0);
		memset(root_at(bad, root_at(bad, 1)->number == 2 ? 0 : 1), 0, NV_BLOCK);
		table =
			(nv_table_entry *) (void *) (bad + (size_t) root->table[0].place *
												   NV_SEGMENT);
		seg = bad + (size_t) table[segment].place * NV_SEGMENT;
		if (n == 0) /* an edge word beyond the edge file */
			memset(seg + 4, 0xff, 4);
		else if (n == 1) /* a vector record beyond the vector file */
			seg[24 + 8 + 4] = 1;
		else if (n == 2) /* a word with tag 0 */
			memset(seg + 24, 0x01, 1), memset(seg + 25, 0, 3);
		else if (n == 3) /* an element of a vertex there is none of */
			memcpy(seg, "\1\0\0", 4);
		else if (n == 4) /* codes of another codebook */
			table[segment].label ^= 1;
		else /* two segments in one place */
			table[1] = table[0];
		table[segment].crc = nv_crc32c(0, seg, NV_SEGMENT);
		root->table[0].crc = nv_crc32c(0, table, NV_SEGMENT);
		seal_root(root);
		spill(copy, "state", bad, len);
		assert_int_equal(open_status(copy, &test_key), NV_ECORRUPT);
	}
	free(bad);
	free(bytes);
}

/* --- Crashes --- */

typedef struct crash
{
	nv_store *store;
	nv_writer *writer; /* relinks after the cut */
	uint64_t lsn;
	nv_status flush;
	int flushed;
} crash;

static uint64_t
crash_cut(void *arg)
{
	return ((crash *) arg)->lsn;
}

/* WAL is being flushed: everything is written but the root. */
static nv_status
crash_flush(void *arg, uint64_t lsn, nv_error *err)
{
	crash *c = arg;

	assert_int_equal(lsn, c->lsn);
	copy_directory(dir, copy);
	/* What changes after the cut is not in the checkpoint. */
	for (uint32_t v = 0; v < VERTICES; v += 2)
	{
		relink_to(c->writer, v, 3);
		ok(nv_store_set_element(c->store, v, 3, 3, &why));
	}
	c->flushed++;
	return c->flush;
}

static void
test_crash_before_root(void **state)
{
	static int version[VERTICES];
	crash c = {.lsn = 5};
	nv_checkpoint_hooks hooks = {&c, crash_cut, crash_flush};
	nv_store_stats stats;
	nv_store *again;
	uint32_t generation;

	memset(version, 0, sizeof(version));
	c.store = build_store(dir, 16, 32, NULL);
	ok(nv_writer_create(c.store, &c.writer, &why));
	for (uint32_t e = 0; e < VERTICES; e++)
		ok(nv_store_set_element(c.store, e, e, 1, &why));
	checkpoint(c.store, 1);
	for (uint32_t v = 0; v < 300; v++)
	{
		relink_to(c.writer, v, 2);
		ok(nv_store_set_element(c.store, v, 2, 2, &why));
	}
	ok(nv_store_checkpoint(c.store, &hooks, &why));
	assert_int_equal(c.flushed, 1);

	/* Crashed before the root: the old state. */
	again = open_ok(copy);
	compare(again, 16, 32, version);
	nv_store_get_stats(again, &stats);
	assert_int_equal(stats.published_lsn, 1);
	assert_int_equal(nv_store_element(again, 0, &generation), 0);
	assert_int_equal(generation, 1);
	nv_store_close(again);

	/* Crashed after it: the state of the cut, nothing of what came later. */
	copy_directory(dir, copy);
	for (uint32_t v = 0; v < 300; v++)
		version[v] = 2;
	again = open_ok(copy);
	compare(again, 16, 32, version);
	nv_store_get_stats(again, &stats);
	assert_int_equal(stats.published_lsn, 5);
	for (uint32_t e = 0; e < VERTICES; e++)
	{
		assert_int_equal(nv_store_element(again, e, &generation),
						 e < 300 ? 2 : e);
		assert_int_equal(generation, e < 300 ? 2 : 1);
	}
	nv_store_close(again);

	/* And what came later is in the next one. */
	nv_store_get_stats(c.store, &stats);
	assert_true(stats.dirty);
	for (uint32_t v = 0; v < VERTICES; v += 2)
		version[v] = 3;
	compare(c.store, 16, 32, version);
	checkpoint(c.store, 6);
	nv_writer_destroy(c.writer);
	nv_store_close(c.store);
	again = open_ok(dir);
	compare(again, 16, 32, version);
	assert_int_equal(nv_store_element(again, 2, &generation), 3);
	nv_store_close(again);
}

static void
test_flush_fails(void **state)
{
	crash c = {.lsn = 5, .flush = NV_ECANCELLED};
	nv_checkpoint_hooks hooks = {&c, crash_cut, crash_flush};
	nv_error err;
	nv_store *again;

	c.store = build_store(dir, 16, 32, NULL);
	ok(nv_writer_create(c.store, &c.writer, &why));
	checkpoint(c.store, 1);
	relink_to(c.writer, 7, 2);
	assert_int_equal(nv_store_checkpoint(c.store, &hooks, &err), NV_ECANCELLED);
	assert_int_equal(c.flushed, 1);
	/* Never again, though it might succeed now. */
	c.flush = NV_OK;
	assert_int_equal(nv_store_checkpoint(c.store, &hooks, &err), NV_EIO);
	assert_int_equal(c.flushed, 1);
	assert_int_equal(nv_store_set_element(c.store, 0, 0, 0, &err), NV_EIO);
	assert_int_equal(read_version(c.store, 7, NV_CACHE_SEARCH), 2);
	nv_writer_destroy(c.writer);
	nv_store_close(c.store);
	again = open_ok(dir);
	compare(again, 16, 32, NULL);
	nv_store_close(again);
}

/* A disk on which the n-th write or sync fails. */
static const nv_file_ops *real_ops;
static int fail_after = -1;

static ssize_t
failing_pwrite(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	if (fail_after >= 0 && fail_after-- == 0)
		return -ENOSPC;
	return real_ops->pwrite(file, buf, len, offset);
}

static int
failing_sync(nv_file *file)
{
	if (fail_after >= 0 && fail_after-- == 0)
		return -EIO;
	return real_ops->sync(file);
}

static void
test_io_failures(void **state)
{
	static int version[VERTICES];
	int n, failures = 0;
	bool done = false;

	nv_io_set_fsync(true);
	for (n = 0; !done; n++)
	{
		nv_store *store = build_store(dir, 16, 32, NULL);
		nv_checkpoint_hooks hooks = {0};
		nv_file *files[] = {store->edges.file, store->vectors.file,
							store->state.file};
		nv_file_ops ops = *store->edges.file->ops;
		nv_writer *writer;
		nv_error err = {0};
		nv_status status;

		real_ops = store->edges.file->ops;
		ops.pwrite = failing_pwrite;
		ops.sync = failing_sync;
		checkpoint(store, 1);
		ok(nv_writer_create(store, &writer, &why));
		memset(version, 0, sizeof(version));
		for (uint32_t v = 0; v < 60; v++)
		{
			relink_to(writer, v, 4);
			version[v] = 4;
		}
		for (int f = 0; f < 3; f++)
			files[f]->ops = &ops;
		fail_after = n;
		status = nv_store_checkpoint(store, &hooks, &err);
		done = status == NV_OK;
		if (!done)
		{
			failures++;
			assert_true(status == NV_ENOSPC || status == NV_EIO);
			fail_after = -1;
			assert_int_equal(nv_store_checkpoint(store, &hooks, &err), NV_EIO);
		}
		compare(store, 16, 32, version); /* still readable */
		for (int f = 0; f < 3; f++)
			files[f]->ops = real_ops;
		fail_after = -1;
		nv_writer_destroy(writer);
		nv_store_close(store);
		store = open_ok(dir);
		/*
		 * Before the root was written: the old state.  Its own sync failing
		 * leaves it open which of the two is found.
		 */
		if (read_version(store, 0, NV_CACHE_SEARCH) == 0)
		{
			assert_false(done);
			memset(version, 0, sizeof(version));
		}
		compare(store, 16, 32, version);
		nv_store_close(store);
		remove_directory(dir);
		make_directory(dir);
	}
	nv_io_set_fsync(false);
	/* Edge write, two syncs, segments, sync, root, sync. */
	assert_true(failures >= 7);
}

/*
 * Between the cut and the writing of segments everything changes, twice over:
 * the checkpoint must hold the state of the cut, in the map as in the lists.
 * The sync of the edge file comes in between.
 */
static nv_writer *busy_writer;
static int *busy_version;

static int
busy_sync(nv_file *file)
{
	for (uint32_t i = 0; i < 4 * VERTICES; i++)
	{
		uint32_t v = i % VERTICES;

		busy_version[v] = 5 + (int) (i / VERTICES);
		relink_to(busy_writer, v, (uint32_t) busy_version[v]);
		ok(nv_store_set_element(busy_writer->store, i, v, 5, &why));
		if (i % 100 == 0)
			ok(nv_store_write_back(busy_writer->store, &why));
	}
	return real_ops->sync(file);
}

static void
test_changes_while_saving(void **state)
{
	static int version[VERTICES], at_cut[VERTICES];
	nv_store *store = build_store(dir, 16, 32, NULL);
	nv_store *again;
	nv_file_ops ops = *store->edges.file->ops;

	memset(version, 0, sizeof(version));
	busy_version = version;
	real_ops = store->edges.file->ops;
	ops.sync = busy_sync;
	nv_io_set_fsync(true); /* else nobody is told of a sync */
	ok(nv_writer_create(store, &busy_writer, &why));
	checkpoint(store, 1);
	for (int round = 0; round < 3; round++)
	{
		for (uint32_t v = 0; v < VERTICES; v++)
		{
			version[v] = 1 + round;
			relink_to(busy_writer, v, (uint32_t) version[v]);
			ok(nv_store_set_element(store, v, v, 1, &why));
		}
		memcpy(at_cut, version, sizeof(version));
		store->edges.file->ops = &ops;
		checkpoint(store, 2);
		store->edges.file->ops = real_ops;
		compare(store, 16, 32, version);
		copy_directory(dir, copy);
		again = open_ok(copy);
		compare(again, 16, 32, at_cut);
		for (uint32_t v = 0; v < VERTICES; v++)
		{
			uint32_t generation;

			nv_store_element(again, v, &generation);
			assert_int_equal(generation, 1);
		}
		if (round == 0)
			assert_int_equal(nv_store_elements(again), VERTICES);
		nv_store_close(again);
	}
	nv_io_set_fsync(false);
	nv_writer_destroy(busy_writer);
	nv_store_close(store);
}

/* --- Space --- */

/*
 * The copy taken when a root was published must verify against the files of
 * now, whatever was relinked since without publishing.
 */
static void
test_no_early_reuse(void **state)
{
	static int version[VERTICES], published[VERTICES];
	nv_store *store = build_store(dir, 16, 32, NULL);
	nv_writer *writer;
	uint64_t seed = nv_random_seed(11);

	memset(version, 0, sizeof(version));
	ok(nv_writer_create(store, &writer, &why));
	for (int round = 0; round < 12; round++)
	{
		nv_store *again;

		checkpoint(store, (uint64_t) round + 1);
		memcpy(published, version, sizeof(version));
		for (int i = 0; i < 2500; i++)
		{
			uint32_t v = (uint32_t) nv_random_below(&seed, VERTICES);

			version[v] = (int) nv_random_below(&seed, VERSIONS);
			relink_to(writer, v, (uint32_t) version[v]);
			ok(nv_store_set_element(store, v, v, (uint32_t) i, &why));
			if (i % 400 == 0)
				ok(nv_store_write_back(store, &why));
		}
		ok(nv_store_write_back(store, &why));
		/* As if it crashed here. */
		copy_directory(dir, copy);
		again = open_ok(copy);
		compare(again, 16, 32, published);
		nv_store_close(again);
		compare(store, 16, 32, version);
	}
	nv_writer_destroy(writer);
	nv_store_close(store);
}

static void
test_space_is_bounded(void **state)
{
	nv_cache *cache = make_cache(1 << 20);
	nv_store *store = build_store(dir, 16, 32, cache);
	nv_writer *writer;
	nv_store_stats first, stats;
	uint64_t seed = nv_random_seed(17);
	static int version[VERTICES];

	memset(version, 0, sizeof(version));
	checkpoint(store, 1);
	nv_store_get_stats(store, &first);
	ok(nv_writer_create(store, &writer, &why));
	for (uint32_t i = 0; i < 40000; i++)
	{
		uint32_t v = (uint32_t) nv_random_below(&seed, VERTICES);

		version[v] = (int) nv_random_below(&seed, VERSIONS);
		relink_to(writer, v, (uint32_t) version[v]);
		assert_int_equal(read_version(store, v, NV_CACHE_INSERT), version[v]);
		if (i % 1500 == 0)
			checkpoint(store, i);
		else if (i % 500 == 0)
			ok(nv_store_write_back(store, &why));
	}
	checkpoint(store, 2);
	nv_store_get_stats(store, &stats);
	/* At most: the lists of two roots, those of now, and free units. */
	assert_true(stats.edge_pages < 7 * first.edge_pages / 2);
	assert_true(stats.edge_bytes <= 4 * first.edge_pages * NV_PAGE + 65536 * 4);
	assert_true(stats.state_bytes <= 3 * first.state_bytes);
	assert_int_equal(stats.live_slots, VERTICES);
	assert_int_equal(stats.retired_slots, 0);
	assert_int_equal(stats.rmw_pages, 0);
	compare(store, 16, 32, version);
	nv_writer_destroy(writer);
	nv_store_close(store);
	nv_cache_free(cache);
	store = open_ok(dir);
	compare(store, 16, 32, version);
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.live_slots, VERTICES);
	nv_store_close(store);
}

/* Slots wait for a reader that entered before they were replaced. */
static void
test_readers_hold_slots(void **state)
{
	nv_store *store = build_store(dir, 16, 32, NULL);
	nv_writer *writer;
	nv_store_stats stats;
	int places[NV_EPOCH_SLOTS];
	int reader;

	ok(nv_writer_create(store, &writer, &why));
	reader = nv_store_enter(store);
	assert_true(reader >= 0);
	for (uint32_t v = 0; v < 200; v++)
		relink_to(writer, v, 1);
	checkpoint(store, 1);
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 200);
	assert_int_equal(stats.live_slots, VERTICES + 200);
	nv_store_leave(store, reader);
	ok(nv_store_write_back(store, &why));
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 0);
	assert_int_equal(stats.live_slots, VERTICES);

	/* A reader that enters later does not hold them, the root does. */
	for (uint32_t v = 0; v < 200; v++)
		relink_to(writer, v, 2);
	reader = nv_store_enter(store);
	ok(nv_store_write_back(store, &why));
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 200);
	/* Born and died between two cuts: no root names them. */
	for (uint32_t v = 0; v < 200; v++)
		relink_to(writer, v, 3);
	nv_store_leave(store, reader);
	ok(nv_store_write_back(store, &why));
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 200);
	checkpoint(store, 2);
	nv_store_get_stats(store, &stats);
	assert_int_equal(stats.retired_slots, 0);

	for (int i = 0; i < NV_EPOCH_SLOTS; i++)
	{
		places[i] = nv_store_enter(store);
		assert_true(places[i] >= 0);
	}
	assert_int_equal(nv_store_enter(store), -1);
	for (int i = 0; i < NV_EPOCH_SLOTS; i++)
		nv_store_leave(store, places[i]);
	nv_writer_destroy(writer);
	nv_store_close(store);
}

/* Lists a reader may still follow stay, through checkpoints and reuse. */
static void
test_reader_sees_old_lists(void **state)
{
	static uint64_t word[VERTICES];
	nv_store *store = build_store(dir, 16, 32, NULL);
	nv_writer *writer;
	uint8_t *edges;
	int reader;

	ok(nv_writer_create(store, &writer, &why));
	checkpoint(store, 1);
	for (uint32_t v = 0; v < VERTICES; v++)
		relink_to(writer, v, 1);
	reader = nv_store_enter(store);
	for (uint32_t v = 0; v < VERTICES; v++)
		word[v] = nv_store_edge_word(store, v);
	for (uint32_t round = 2; round < 12; round++)
	{
		for (uint32_t v = 0; v < VERTICES; v++)
			relink_to(writer, v, round);
		checkpoint(store, round);
	}
	edges = read_file(nv_store_edge_file(store));
	for (uint32_t v = 0; v < VERTICES; v++)
	{
		uint32_t degree;
		const uint32_t *ids =
			nv_slot_find(store, edges + nv_word_page(word[v]) * NV_PAGE,
						 word[v], v, &degree);

		assert_non_null(ids);
		assert_int_equal(list_version(v, ids, degree), 1);
	}
	free(edges);
	nv_store_leave(store, reader);
	nv_writer_destroy(writer);
	nv_store_close(store);
}

/* Only what changed is written. */
static void
test_clean_segments_stay(void **state)
{
	nv_store *store = build_store(dir, 16, 252, NULL);
	nv_writer *writer;
	uint64_t segments;
	uint32_t place[64];

	checkpoint(store, 1);
	ok(nv_writer_create(store, &writer, &why));
	segments = nv_array_segments(nv_store_codes(store), VERTICES);
	assert_true(segments > 3 && segments < 64);
	for (uint64_t i = 0; i < segments; i++)
		place[i] = nv_array_segment(nv_store_codes(store), i)->place;
	for (uint32_t round = 0; round < 5; round++)
	{
		uint32_t before = nv_array_segment(&store->map, 0)->place;

		relink_to(writer, 0, round);
		checkpoint(store, round);
		assert_int_not_equal(nv_array_segment(&store->map, 0)->place, before);
	}
	for (uint64_t i = 0; i < segments; i++)
		assert_int_equal(nv_array_segment(nv_store_codes(store), i)->place,
						 place[i]);
	nv_writer_destroy(writer);
	nv_store_close(store);
}

#define with_files(test)                                                       \
	cmocka_unit_test_setup_teardown(test, make_two, remove_two)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		with_files(test_build_reopen),
		with_files(test_empty_lists),
		with_files(test_no_vertices),
		with_files(test_code_stride_set_late),
		with_files(test_first_lists),
		with_files(test_bulk_cancelled),
		with_files(test_bad_arguments),
		with_files(test_elements),
		with_files(test_blobs),
		with_files(test_slot_damage),
		with_files(test_root_fallback),
		with_files(test_fallback_goes_on),
		with_files(test_version_and_key),
		with_files(test_short_files),
		with_files(test_tags_after_crash),
		with_files(test_random_damage),
		with_files(test_crafted_map),
		with_files(test_crash_before_root),
		with_files(test_flush_fails),
		with_files(test_io_failures),
		with_files(test_changes_while_saving),
		with_files(test_no_early_reuse),
		with_files(test_space_is_bounded),
		with_files(test_readers_hold_slots),
		with_files(test_reader_sees_old_lists),
		with_files(test_clean_segments_stay),
	};

	/* No power fails here; where a sync matters the test asks for it. */
	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
