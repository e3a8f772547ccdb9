/*
 * search_fixture.h
 *		A small index built end to end in a directory of its own, and drivers
 *		for searches on it.  For tests of the search; include after cmocka.h.
 */
#ifndef NAVIS_SEARCH_FIXTURE_H
#define NAVIS_SEARCH_FIXTURE_H

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "navis/hash.h"
#include "search.h"
#include "search_run.h"
#include "util.h"

#define FIXTURE_K 10

/*
 * Dimensions of a record of several pages.  TSan looks for races, not for
 * sizes, and training in so many dimensions takes it minutes.
 */
#ifdef __SANITIZE_THREAD__
#define FIXTURE_WIDE 30
#else
#define FIXTURE_WIDE 3000
#endif

#define CHECK(call)                                                            \
	do                                                                         \
	{                                                                          \
		nv_error check_err = {0};                                              \
		nv_status check_status = (call);                                       \
		if (check_status != NV_OK)                                             \
			fail_msg("%s: %s: %s", #call, nv_status_name(check_status),        \
					 check_err.detail);                                        \
	} while (0)
#define ERR (&check_err)

typedef struct fixture
{
	char dir[96];
	nv_metric metric;
	uint32_t n, dim, n_queries;
	float *rows;     /* n x dim */
	float *queries;  /* n_queries x dim */
	uint32_t *truth; /* n_queries x FIXTURE_K, nearest first */
	nv_gspace gspace;
	nv_pq *pq;
	uint8_t *codes;
	nv_graph graph;
	nv_entrance *entrance;
	nv_cache *cache;
	nv_store *store;
	nv_view view;
	bool *dead;      /* what view.live says */
	uint32_t *asked; /* how often view.live was asked for a vertex */
	uint8_t *buffer;
} fixture;

static inline bool
fixture_live(void *arg, uint32_t vertex)
{
	fixture *f = arg;

	f->asked[vertex]++;
	return !f->dead[vertex];
}

static inline float
random_normal(uint64_t *seed)
{
	double sum = 0;

	for (int i = 0; i < 12; i++)
		sum += (double) nv_random_below(seed, 1 << 24) / (1 << 24);
	return (float) (sum - 6);
}

static inline void
random_clustered(float *rows, uint32_t n, const float *centres,
				 uint32_t n_centres, uint32_t dim, uint64_t *seed)
{
	for (uint32_t i = 0; i < n; i++)
	{
		const float *c = centres + nv_random_below(seed, n_centres) * dim;

		for (uint32_t d = 0; d < dim; d++)
			rows[(size_t) i * dim + d] = c[d] + random_normal(seed);
	}
}

static inline double
exact_distance(const fixture *f, const float *query, uint32_t vertex)
{
	return nv_distance(f->metric, query, f->rows + (size_t) vertex * f->dim,
					   f->dim);
}

/* The FIXTURE_K nearest of the rows that are not dead, by a full scan. */
static inline void
brute_force(const fixture *f, const float *query, uint32_t *out)
{
	double dist[FIXTURE_K + 1];
	uint32_t have = 0;

	for (uint32_t i = 0; i < f->n; i++)
	{
		double d;
		uint32_t at;

		if (f->dead[i])
			continue;
		d = exact_distance(f, query, i);
		for (at = have; at > 0 && dist[at - 1] > d; at--)
		{
			dist[at] = dist[at - 1];
			if (at < FIXTURE_K)
				out[at] = out[at - 1];
		}
		dist[at] = d;
		if (at < FIXTURE_K)
			out[at] = i;
		have = NV_MIN(have + 1, FIXTURE_K);
	}
	assert_true(have == FIXTURE_K);
}

static inline uint64_t
hook_cut(void *arg)
{
	return 1;
}

static inline nv_status
hook_flush(void *arg, uint64_t lsn, nv_error *err)
{
	return NV_OK;
}

static inline void
fixture_link(fixture *f, const float *mapped, uint32_t degree)
{
	nv_vamana_params params = {.max_degree = degree,
							   .list_size = 2 * degree,
							   .alpha = 1.2f,
							   .fill_to = degree / 2,
							   .threads = 1}; /* the same graph every time */

	CHECK(nv_vamana_build(&params, mapped, f->gspace.gdim, f->n, f->gspace.gdim,
						  &f->graph, ERR));
	CHECK(nv_entrance_build(mapped, f->gspace.gdim, f->n, f->gspace.gdim, 0.01f,
							16, 1.2f, 2, 7, NULL, NULL, &f->entrance, ERR));
}

static inline void
fixture_encode(fixture *f, const float *mapped)
{
	nv_pq_params params = {.bytes = f->gspace.gdim < 32 ? f->gspace.gdim : 32,
						   .threads = 2,
						   .seed = 5};
	nv_pq_report report;

	CHECK(nv_pq_train(&params, mapped, f->gspace.gdim, f->n, f->gspace.gdim,
					  &f->pq, &report, ERR));
	f->codes = nv_alloc((size_t) f->n * nv_pq_stride(f->pq));
	assert_non_null(f->codes);
	CHECK(nv_pq_encode_many(f->pq, mapped, f->gspace.gdim, f->n, f->codes, 2,
							NULL, NULL, ERR));
}

static inline void
fixture_store(fixture *f, uint32_t degree)
{
	nv_store_params params = {.key = {.system_id = 1, .database = 2},
							  .dim = f->dim,
							  .vector_bytes = f->dim * 4,
							  .max_degree = degree,
							  .code_stride = nv_pq_stride(f->pq)};
	nv_checkpoint_hooks hooks = {.cut = hook_cut, .flush_wal = hook_flush};
	uint64_t *hashes = nv_alloc_array(f->n, sizeof(*hashes));
	uint32_t *page = nv_alloc_array(f->n, sizeof(*page));
	uint32_t pages;

	assert_true(hashes != NULL && page != NULL);
	for (uint32_t i = 0; i < f->n; i++)
		hashes[i] =
			nv_vector_hash(f->rows + (size_t) i * f->dim, (size_t) f->dim * 4);
	CHECK(nv_place(&f->graph, 0, false, 2, 3, NULL, NULL, page, &pages, ERR));
	CHECK(nv_store_create(f->dir, &params, NULL, &f->store, ERR));
	CHECK(nv_store_bulk_vectors(f->store, f->rows, (size_t) f->dim * 4, hashes,
								f->n, ERR));
	CHECK(nv_store_bulk_codes(f->store, f->codes, ERR));
	CHECK(
		nv_store_bulk_edges(f->store, &f->graph, page, pages, NULL, NULL, ERR));
	CHECK(nv_store_checkpoint(f->store, &hooks, ERR));
	free(hashes);
	free(page);
}

/* Closes the store and opens it behind a cache of so many bytes (0: none). */
static inline void
fixture_reopen(fixture *f, uint64_t cache_bytes)
{
	nv_key key = {.system_id = 1, .database = 2};
	nv_cache_params params = {.bytes = cache_bytes,
							  .window = 0.10,
							  .promote = 2,
							  .promote_search = 16};

	if (f->store != NULL)
		nv_store_close(f->store);
	if (f->cache != NULL)
		nv_cache_free(f->cache);
	f->cache = NULL;
	if (cache_bytes > 0)
		CHECK(nv_cache_create(&params, &f->cache, ERR));
	CHECK(nv_store_open(f->dir, &key, f->cache, &f->store, ERR));
	assert_true(nv_store_vertices(f->store) == f->n);
	f->view.store = f->store;
	nv_store_use_pq(f->store, f->pq);
}

static inline void
fixture_build(fixture *f, nv_metric metric, uint32_t n, uint32_t dim,
			  uint32_t n_queries, uint32_t degree)
{
	static uint32_t number;
	uint64_t seed = nv_random_seed(100 + dim + metric);
	const uint32_t n_centres = 12;
	float *centres = nv_alloc((size_t) n_centres * dim * 4);
	float *mapped;

	memset(f, 0, sizeof(*f));
	snprintf(f->dir, sizeof(f->dir), "navis-test-search-%d-%u", (int) getpid(),
			 number++);
	assert_int_equal(mkdir(f->dir, 0700), 0);
	f->metric = metric;
	f->n = n;
	f->dim = dim;
	f->n_queries = n_queries;
	f->rows = nv_alloc((size_t) n * dim * 4);
	f->queries = nv_alloc((size_t) n_queries * dim * 4);
	f->truth = nv_alloc((size_t) n_queries * FIXTURE_K * 4);
	f->dead = nv_alloc(n);
	f->asked = nv_alloc((size_t) n * 4);
	f->buffer = aligned_alloc(NV_BLOCK, NV_SEARCH_BUFFER);
	assert_true(centres && f->rows && f->queries && f->truth && f->dead &&
				f->asked && f->buffer);
	for (uint32_t i = 0; i < n_centres * dim; i++)
		centres[i] = random_normal(&seed);
	random_clustered(f->rows, n, centres, n_centres, dim, &seed);
	random_clustered(f->queries, n_queries, centres, n_centres, dim, &seed);
	free(centres);
	for (uint32_t q = 0; q < n_queries; q++)
		brute_force(f, f->queries + (size_t) q * dim,
					f->truth + (size_t) q * FIXTURE_K);

	nv_gspace_learn(&f->gspace, metric, dim, f->rows, dim, n);
	mapped = nv_alloc((size_t) n * f->gspace.gdim * 4);
	assert_non_null(mapped);
	for (uint32_t i = 0; i < n; i++)
		nv_gspace_row(&f->gspace, f->rows + (size_t) i * dim,
					  mapped + (size_t) i * f->gspace.gdim);
	fixture_encode(f, mapped);
	fixture_link(f, mapped, degree);
	free(mapped);
	fixture_store(f, degree);
	nv_store_use_pq(f->store, f->pq);
	f->view = (nv_view){.store = f->store,
						.entrance = f->entrance,
						.gspace = f->gspace,
						.medoid = f->graph.medoid,
						.live = fixture_live,
						.live_arg = f};
}

static inline void
fixture_free(fixture *f)
{
	static const char *const files[] = {"edges", "vectors", "state"};
	char path[160];

	nv_store_close(f->store);
	if (f->cache != NULL)
		nv_cache_free(f->cache);
	for (size_t i = 0; i < NV_LENGTH(files); i++)
	{
		snprintf(path, sizeof(path), "%s/%s", f->dir, files[i]);
		unlink(path);
	}
	rmdir(f->dir);
	nv_pq_free(f->pq);
	nv_graph_free(&f->graph);
	nv_entrance_free(f->entrance);
	free(f->codes);
	free(f->rows);
	free(f->queries);
	free(f->truth);
	free(f->dead);
	free(f->asked);
	free(f->buffer);
	memset(f, 0, sizeof(*f));
}

static inline const float *
query_of(const fixture *f, uint32_t q)
{
	return f->queries + (size_t) q * f->dim;
}

/* Usual options of the tests. */
static inline nv_search_options
usual_options(uint32_t list_size, uint32_t beam_width)
{
	return (nv_search_options){.k = FIXTURE_K,
							   .list_size = list_size,
							   .beam_width = beam_width,
							   .entrance_list = 10,
							   .window = NV_CASR_ALL,
							   .exclude = NV_NO_VERTEX,
							   .user = NV_CACHE_SEARCH};
}

/* How many of the true nearest are among the results. */
static inline uint32_t
found_of(const uint32_t *truth, const nv_result *results, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t t = 0; t < FIXTURE_K; t++)
		for (uint32_t i = 0; i < n; i++)
			found += results[i].vertex == truth[t];
	return found;
}

/* Results are sorted, unique, live and carry the operator's distances. */
static inline void
check_results(const fixture *f, const float *query, const nv_result *results,
			  uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
	{
		double exact;

		assert_true(results[i].vertex < f->n);
		assert_false(f->dead[results[i].vertex]);
		exact = exact_distance(f, query, results[i].vertex);
		assert_memory_equal(&results[i].distance, &exact, sizeof(exact));
		if (i > 0)
			assert_true(results[i - 1].distance < results[i].distance ||
						(results[i - 1].distance == results[i].distance &&
						 results[i - 1].vertex < results[i].vertex));
	}
}

typedef struct ranked
{
	float code;
	uint32_t vertex;
} ranked;

static inline int
compare_ranked(const void *a, const void *b)
{
	const ranked *x = a;
	const ranked *y = b;

	if (x->code != y->code)
		return x->code < y->code ? -1 : 1;
	return (x->vertex > y->vertex) - (x->vertex < y->vertex);
}

/* The explored set of the last search, in code order. */
static inline uint32_t
explored_in_order(const fixture *f, const float *query, ranked *out)
{
	float *mapped = nv_alloc((size_t) f->gspace.gdim * 4);
	float *table = nv_alloc(nv_pq_table_size(f->pq) * 4);
	uint32_t n = 0;

	nv_gspace_query(&f->gspace, query, mapped);
	nv_pq_table(f->pq, mapped, table);
	for (uint32_t i = 0; i < f->n; i++)
	{
		const uint8_t *code = f->codes + (size_t) i * nv_pq_stride(f->pq);

		if (f->asked[i] == 0 || f->dead[i])
			continue;
		nv_adc_scan(table, nv_pq_bytes(f->pq), &code, 1, &out[n].code);
		out[n++].vertex = i;
	}
	qsort(out, n, sizeof(*out), compare_ranked);
	free(mapped);
	free(table);
	return n;
}

/*
 * Loads of a rerank that goes on until the top k has not changed for w loads,
 * told one vector at a time; *gap: the longest way from change to change.
 */
static inline uint32_t
loads_by_hand(const fixture *f, const float *query, const ranked *order,
			  uint32_t n, uint32_t k, uint32_t w, uint32_t *gap)
{
	double top[FIXTURE_K];
	uint32_t have = 0, last_change = 0;

	*gap = 0;
	for (uint32_t i = 0; i < n; i++)
	{
		double d = exact_distance(f, query, order[i].vertex);
		uint32_t at;

		if (i >= k && i - last_change >= w)
			return i;
		if (have == k && d >= top[k - 1])
			continue;
		*gap = NV_MAX(*gap, i + 1 - last_change);
		last_change = i + 1;
		have = NV_MIN(have + 1, k);
		for (at = have - 1; at > 0 && top[at - 1] > d; at--)
			top[at] = top[at - 1];
		top[at] = d;
	}
	return n;
}

/*
 * A driver without a ring: reads are done when they are delivered, in an
 * order drawn at random, and may be made to fail.
 */
typedef struct wild_driver
{
	uint64_t seed;
	uint32_t fail_edges, fail_vectors; /* one in so many; 0: none */
	uint32_t cancel_after;             /* arrivals; 0: never */
	uint64_t edge_failures, vector_failures, delivered;
	nv_read waiting[NV_SEARCH_MAX_READS];
	uint32_t n_waiting;
} wild_driver;

static inline int32_t
wild_read(wild_driver *d, fixture *f, const nv_read *r)
{
	bool edge = r->file == nv_store_edge_file(f->store);
	uint32_t one_in = edge ? d->fail_edges : d->fail_vectors;
	uint32_t align = nv_file_align(r->file);

	assert_true(r->offset % align == 0 && r->len % align == 0);
	assert_true((uintptr_t) r->buf % align == 0 && r->len > 0);
	assert_true(r->buf >= f->buffer &&
				r->buf + r->len <= f->buffer + NV_SEARCH_BUFFER);
	if (one_in > 0 && nv_random_below(&d->seed, one_in) == 0)
	{
		*(edge ? &d->edge_failures : &d->vector_failures) += 1;
		memset(r->buf, 0xee, r->len);
		/* An error, or a read that came back short. */
		return nv_random_below(&d->seed, 2) == 0 ? -EIO
												 : (int32_t) r->len - 512;
	}
	CHECK(nv_file_read(r->file, r->buf, r->len, r->offset, ERR));
	return (int32_t) r->len;
}

/* False when it was cancelled. */
static inline bool
wild_run(wild_driver *d, fixture *f, nv_search *search)
{
	nv_read reads[NV_SEARCH_MAX_READS];
	uint32_t n;
	uint64_t started = d->delivered;

	for (;;)
	{
		nv_step step = nv_search_step(search, reads, &n);

		assert_true(step != NV_STEP_FAILED);
		assert_true(d->n_waiting + n <= NV_SEARCH_MAX_READS);
		memcpy(d->waiting + d->n_waiting, reads, n * sizeof(*reads));
		d->n_waiting += n;
		if (step == NV_STEP_DONE)
		{
			assert_true(d->n_waiting == 0);
			return true;
		}
		if (step == NV_STEP_AGAIN)
			continue;
		assert_true(d->n_waiting > 0);
		for (uint32_t i = 1 + (uint32_t) nv_random_below(&d->seed, 3);
			 i > 0 && d->n_waiting > 0; i--)
		{
			uint32_t which = (uint32_t) nv_random_below(&d->seed, d->n_waiting);
			nv_read r = d->waiting[which];

			d->waiting[which] = d->waiting[--d->n_waiting];
			if (d->cancel_after > 0 &&
				d->delivered - started == d->cancel_after)
			{
				d->n_waiting = 0;
				nv_search_cancel(search);
				return false;
			}
			d->delivered++;
			nv_search_arrived(search, r.tag, wild_read(d, f, &r));
		}
	}
}

/* --- Searches --- */

static inline nv_search *
new_search(void)
{
	nv_search *search;

	CHECK(nv_search_create(&search, ERR));
	return search;
}

/* To its end, on a ring; how many results, all of them checked. */
static inline uint32_t
run_on(fixture *f, nv_search *search, const nv_search_options *options,
	   const float *query, nv_ring *on, const nv_result **results)
{
	uint32_t n;

	CHECK(nv_search_start(search, &f->view, options, query, f->buffer, ERR));
	assert_int_equal(nv_search_run(search, on), NV_OK);
	n = nv_search_results(search, results);
	check_results(f, query, *results, n);
	return n;
}

#endif
