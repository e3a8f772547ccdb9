/*
 * store_fixture.h
 *		Sidecars for tests: a directory, a random graph, and lists whose
 *		content tells whose they are and which version.
 *
 * The number of vertices is 1 + a prime, so that steps of any size around the
 * other vertices name each at most once.
 */
#ifndef NAVIS_STORE_FIXTURE_H
#define NAVIS_STORE_FIXTURE_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "navis/hash.h"
#include "store.h"
#include "util.h"

#define OTHERS 1009           /* prime */
#define VERTICES (OTHERS + 1) /* of a test graph */
#define DEGREE 40             /* hard cap */
#define VERSIONS OTHERS       /* a list tells its version below this */

static const nv_key test_key = {
	.system_id = 7, .database = 5, .identity = {1, 2, 3, 4}};

/* The call names its nv_error `why`. */
#define ok(call)                                                               \
	do                                                                         \
	{                                                                          \
		nv_error why = {0};                                                    \
		nv_status ok_status = (call);                                          \
		if (ok_status != NV_OK)                                                \
			fail_msg("%s: %s (%s)", #call, nv_status_name(ok_status),          \
					 why.detail);                                              \
	} while (0)

#define NAME 256 /* bytes of a directory's name */

/* A new empty directory below TMPDIR. */
static inline void
make_directory(char *name)
{
	const char *parent = getenv("TMPDIR");

	snprintf(name, NAME, "%s/navis_store_XXXXXX",
			 parent != NULL ? parent : "/tmp");
	if (mkdtemp(name) == NULL)
		abort();
}

static inline void
remove_directory(const char *name)
{
	DIR *dir = opendir(name);
	struct dirent *entry;
	char path[512];

	while (dir != NULL && (entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.')
		{
			snprintf(path, sizeof(path), "%s/%s", name, entry->d_name);
			unlink(path);
		}
	if (dir != NULL)
		closedir(dir);
	rmdir(name);
}

/* Copies one file as the engine reads it. */
static inline void
copy_file(const char *from, const char *to, const char *name)
{
	const size_t step = 1 << 20;
	uint8_t *buf = aligned_alloc(NV_BLOCK, step);
	char path[512];
	nv_file *in;
	FILE *out;
	uint64_t size;

	snprintf(path, sizeof(path), "%s/%s", from, name);
	ok(nv_file_open(path, NV_FILE_READONLY, &in, &why));
	ok(nv_file_size(in, &size, &why));
	snprintf(path, sizeof(path), "%s/%s", to, name);
	out = fopen(path, "wb");
	if (buf == NULL || out == NULL)
		abort();
	for (uint64_t at = 0; at < size; at += step)
	{
		size_t len = NV_MIN(size - at, step);

		ok(nv_file_read(in, buf, len, at, &why));
		if (fwrite(buf, 1, len, out) != len)
			abort();
	}
	if (fclose(out) != 0)
		abort();
	nv_file_close(in);
	free(buf);
}

static inline void
copy_directory(const char *from, const char *to)
{
	copy_file(from, to, "edges");
	copy_file(from, to, "vectors");
	copy_file(from, to, "state");
}

static inline uint64_t
mix(uint64_t a, uint64_t b)
{
	return nv_random_seed(a * UINT64_C(1000003) + b);
}

/*
 * The list of a vertex in a version (below VERSIONS): the first id tells the
 * version, all others follow from both.  Returns the degree, 1 to DEGREE.
 */
static inline uint32_t
make_list(uint32_t vertex, uint32_t version, uint32_t *ids)
{
	uint64_t h = mix(vertex, version);
	uint32_t degree = 1 + (uint32_t) (h % DEGREE);
	uint32_t step = 1 + (uint32_t) (h / DEGREE % (OTHERS - 1));

	for (uint32_t i = 0; i < degree; i++)
	{
		uint64_t at = (version + (uint64_t) i * step) % OTHERS;

		ids[i] = (uint32_t) ((vertex + 1 + at) % VERTICES);
	}
	return degree;
}

/* The version of a list; -1: it is no list of this vertex. */
static inline int
list_version(uint32_t vertex, const uint32_t *ids, uint32_t degree)
{
	uint32_t right[DEGREE], version;

	if (degree < 1 || degree > DEGREE || ids[0] >= VERTICES)
		return -1;
	version = (ids[0] + VERTICES - 1 - vertex) % VERTICES;
	if (version >= VERSIONS || make_list(vertex, version, right) != degree ||
		memcmp(ids, right, degree * 4) != 0)
		return -1;
	return (int) version;
}

/* A graph of version 0 of all lists. */
static inline void
make_graph(nv_graph *graph)
{
	memset(graph, 0, sizeof(*graph));
	graph->n = VERTICES;
	graph->offset = nv_alloc_array(VERTICES + 1, sizeof(*graph->offset));
	graph->edges = nv_alloc_array(VERTICES * DEGREE, sizeof(*graph->edges));
	if (graph->offset == NULL || graph->edges == NULL)
		abort();
	for (uint32_t v = 0; v < VERTICES; v++)
		graph->offset[v + 1] =
			graph->offset[v] + make_list(v, 0, graph->edges + graph->offset[v]);
}

static inline void
free_graph(nv_graph *graph)
{
	free(graph->offset);
	free(graph->edges);
}

/* Puts lists on pages in a scattered order; returns the number of pages. */
static inline uint32_t
scatter(const nv_graph *graph, uint32_t *page)
{
	uint32_t last = 0, used = 0;

	for (uint32_t i = 0; i < graph->n; i++)
	{
		uint32_t v = (uint32_t) ((uint64_t) i * 7 % graph->n);
		uint32_t units =
			nv_slot_units((uint32_t) (graph->offset[v + 1] - graph->offset[v]));

		if (used + units > NV_PAGE_UNITS)
		{
			last++;
			used = 0;
		}
		page[v] = last;
		used += units;
	}
	return last + 1;
}

static inline nv_store_params
test_params(uint32_t dim, uint32_t code_stride)
{
	nv_store_params params = {.key = test_key,
							  .relfilenode = 11,
							  .index_oid = 12,
							  .dim = dim,
							  .vector_bytes = dim * 4,
							  .max_degree = DEGREE,
							  .code_stride = code_stride};

	return params;
}

/* Vector and code of a vertex: bytes that follow from its id. */
static inline void
make_bytes(uint32_t vertex, uint32_t salt, uint8_t *out, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		out[i] =
			(uint8_t) mix(vertex, ((uint64_t) salt << 32) + i / 8) >> (i % 8);
}

/* A sidecar with vectors, codes and version 0 of all lists, unpublished. */
static inline nv_store *
build_store(const char *dir, uint32_t dim, uint32_t code_stride,
			nv_cache *cache)
{
	nv_store_params params = test_params(dim, code_stride);
	uint32_t stride = params.vector_bytes + 8;
	uint8_t *vectors = nv_alloc_array(VERTICES, stride);
	uint8_t *codes = nv_alloc_array(VERTICES, NV_MAX(code_stride, 1));
	uint64_t *hashes = nv_alloc_array(VERTICES, sizeof(*hashes));
	uint32_t *page = nv_alloc_array(VERTICES, sizeof(*page));
	nv_store *store = NULL;
	nv_graph graph;

	for (uint32_t v = 0; v < VERTICES; v++)
	{
		make_bytes(v, 1, vectors + (size_t) v * stride, params.vector_bytes);
		hashes[v] =
			nv_vector_hash(vectors + (size_t) v * stride, params.vector_bytes);
		make_bytes(v, 2, codes + (size_t) v * code_stride, code_stride);
	}
	make_graph(&graph);
	/* As a build does: only training, later, tells how long codes are. */
	params.code_stride = 0;
	ok(nv_store_create(dir, &params, cache, &store, &why));
	/* In parts of uneven size, as a build gives them. */
	for (uint32_t v = 0, n; v < VERTICES; v += n)
	{
		n = NV_MIN(VERTICES - v, 97);
		ok(nv_store_bulk_vectors(store, vectors + (size_t) v * stride, stride,
								 hashes + v, n, &why));
	}
	if (code_stride > 0)
	{
		ok(nv_store_set_code_stride(store, code_stride, &why));
		ok(nv_store_bulk_codes(store, codes, &why));
	}
	ok(nv_store_bulk_edges(store, &graph, page, scatter(&graph, page), NULL,
						   NULL, &why));
	free_graph(&graph);
	free(vectors);
	free(codes);
	free(hashes);
	free(page);
	return store;
}

/*
 * The list of a vertex by way of RMW, cache and file, as a search reads it:
 * its version, or -1 when it cannot be verified.
 */
static inline int
read_version(nv_store *store, uint32_t vertex, nv_cache_user user)
{
	uint8_t *page = aligned_alloc(NV_BLOCK, NV_PAGE);
	int version = -1, place = nv_store_enter(store);
	uint64_t word, ticket;
	const uint32_t *ids = NULL;
	uint32_t degree = 0;

	if (page == NULL || place < 0)
		abort();
	do
	{
		word = nv_store_edge_word(store, vertex);
		if (nv_store_get_page(store, nv_word_page(word), user, page, &ticket) ==
			NV_PAGE_MISS)
		{
			if (nv_file_read(nv_store_edge_file(store), page, NV_PAGE,
							 nv_word_page(word) * NV_PAGE, NULL) != NV_OK)
				break;
			nv_store_fill(store, nv_word_page(word), ticket, page);
		}
		ids = nv_slot_find(store, page, word, vertex, &degree);
	} while (ids == NULL && nv_store_edge_word(store, vertex) != word);
	if (ids != NULL)
		version = list_version(vertex, ids, degree);
	nv_store_leave(store, place);
	free(page);
	return version;
}

/* A whole file, as it is on disk. */
static inline uint8_t *
read_file(nv_file *file)
{
	uint64_t size;
	uint8_t *bytes;

	ok(nv_file_size(file, &size, &why));
	bytes = aligned_alloc(NV_BLOCK, nv_round_up(size + 1, NV_BLOCK));
	if (bytes == NULL)
		abort();
	ok(nv_file_read(file, bytes, size, 0, &why));
	return bytes;
}

/* The version of a list in RMW or else in the bytes of the edge file. */
static inline int
version_in(nv_store *store, uint32_t vertex, uint8_t *edges)
{
	_Alignas(NV_BLOCK) uint8_t page[NV_PAGE];
	uint64_t ticket, word = nv_store_edge_word(store, vertex);
	const uint32_t *ids;
	uint32_t degree;

	if (nv_store_get_page(store, nv_word_page(word), NV_CACHE_SEARCH, page,
						  &ticket) == NV_PAGE_MISS)
		memcpy(page, edges + nv_word_page(word) * NV_PAGE, NV_PAGE);
	ids = nv_slot_find(store, page, word, vertex, &degree);
	return ids != NULL ? list_version(vertex, ids, degree) : -1;
}

static inline nv_cache *
make_cache(uint64_t bytes)
{
	nv_cache_params params = {
		.bytes = bytes, .window = 0.10, .promote = 2, .promote_search = 16};
	nv_cache *cache = NULL;

	ok(nv_cache_create(&params, &cache, &why));
	return cache;
}

#endif
