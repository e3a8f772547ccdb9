/*
 * engine_fixture.h
 *		An engine with one index for tests: rows, requests as a backend makes
 *		them, checks against brute force.
 *
 * Several threads may use one engine: each with a copy of the fixture that has
 * a request of its own (fork_fixture).
 */
#ifndef NAVIS_ENGINE_FIXTURE_H
#define NAVIS_ENGINE_FIXTURE_H

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "navis/engine.h"
#include "navis/hash.h"
#include "util.h"

#define DIM 24
#define ROWS 3000
#define WAIT_SECONDS 120 /* for what the engine does in the background */

typedef struct fixture
{
	char dir[256];
	nv_config config;
	nv_local *local;
	nv_engine *engine;
	nv_request *r;
	nv_key key;
	nv_index_params params;
	uint32_t n;
	float *rows; /* element e's vector, DIM floats */
	uint64_t lsn;
	uint64_t owner; /* of requests */
} fixture;

/* --- Data --- */

static inline void
make_rows(float *rows, uint32_t n, uint64_t seed)
{
	uint64_t random = nv_random_seed(seed);

	for (uint32_t i = 0; i < n; i++)
	{
		uint64_t cluster = nv_random_seed(nv_random_below(&random, 40));

		for (uint32_t d = 0; d < DIM; d++)
			rows[i * DIM + d] =
				(float) (nv_random(&cluster) >> 40) / (float) (1 << 22) +
				(float) (nv_random(&random) >> 40) / (float) (1 << 24);
	}
}

static inline uint64_t
hash_row(const fixture *f, uint32_t e)
{
	return nv_vector_hash(f->rows + (size_t) e * DIM, DIM * sizeof(float));
}

/* --- requests
 * ------------------------------------------------------------------ */

static inline nv_request *
begin(fixture *f, nv_request_kind kind)
{
	nv_request *r = f->r;

	assert_int_equal(atomic_load(&r->state), NV_IDLE);
	memset(&r->u, 0, sizeof(r->u));
	r->kind = kind;
	r->key = f->key;
	r->owner = f->owner;
	return r;
}

static inline nv_status
call(fixture *f)
{
	return nv_local_call(f->local, f->r);
}

static inline void
start_engine(fixture *f)
{
	nv_error err;

	f->local = nv_local_create();
	assert_non_null(f->local);
	assert_int_equal(
		nv_engine_start(&f->config, nv_local_port(f->local), &f->engine, &err),
		NV_OK);
}

static inline void
stop_engine(fixture *f, bool checkpoint)
{
	nv_engine_stop(f->engine, checkpoint, 10000);
	nv_local_free(f->local);
	f->engine = NULL;
	f->local = NULL;
}

static inline nv_status
build_begin(fixture *f, bool rebuild, uint64_t memory)
{
	nv_req_build *b = &begin(f, NV_REQ_BUILD_BEGIN)->u.build;

	b->params = f->params;
	b->expected_rows = f->n;
	b->build_memory = memory;
	b->threads = 2;
	b->rebuild = rebuild;
	return call(f);
}

static inline nv_status
build_add(fixture *f, uint32_t first, uint32_t n)
{
	size_t bytes = sizeof(nv_journal_entry) + DIM * sizeof(float);
	uint32_t per_request = (uint32_t) (NV_REQUEST_DATA / bytes);

	for (uint32_t i = 0; i < n;)
	{
		nv_request *r = begin(f, NV_REQ_BUILD_ADD);
		nv_status status;
		uint32_t k = 0;

		for (; k < per_request && i < n; k++, i++)
		{
			nv_journal_entry entry = {first + i, 1, hash_row(f, first + i)};

			memcpy(r->data + k * bytes, &entry, sizeof(entry));
			memcpy(r->data + k * bytes + sizeof(entry),
				   f->rows + (size_t) (first + i) * DIM, DIM * sizeof(float));
		}
		r->u.build.n = k;
		status = call(f);
		if (status != NV_OK)
			return status;
	}
	return NV_OK;
}

static inline nv_status
build_run(fixture *f)
{
	begin(f, NV_REQ_BUILD_RUN)->u.build.lsn = ++f->lsn;
	return call(f);
}

static inline void
build_all(fixture *f)
{
	assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, f->n), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	assert_int_equal(f->r->u.build.rows, f->n);
}

/* A graph over the first n rows. */
static inline void
build_first(fixture *f, uint32_t n)
{
	assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, n), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	assert_true(f->r->u.build.vertices >= NV_MIN_GRAPH_ROWS);
}

static inline nv_req_search *
search_request(fixture *f, const float *query, uint32_t k, uint32_t list)
{
	nv_request *r = begin(f, NV_REQ_SEARCH);
	nv_req_search *s = &r->u.search;

	s->dim = DIM;
	s->k = k;
	s->list_size = list;
	s->beam_width = 4;
	s->entrance_list = 10;
	s->percentile = 99;
	memcpy(r->data, query, DIM * sizeof(float));
	return s;
}

static inline nv_status
search(fixture *f, const float *query, uint32_t k, uint32_t list)
{
	search_request(f, query, k, list);
	return call(f);
}

static inline nv_status
insert(fixture *f, uint32_t e, uint32_t generation)
{
	nv_request *r = begin(f, NV_REQ_INSERT);

	r->u.insert = (nv_req_insert){
		.element = e,
		.generation = generation,
		.hash = hash_row(f, e),
		.lsn = ++f->lsn,
		.dim = DIM,
	};
	memcpy(r->data, f->rows + (size_t) e * DIM, DIM * sizeof(float));
	return call(f);
}

static inline nv_status delete (fixture *f, uint32_t first, uint32_t n,
								uint32_t generation)
{
	nv_request *r = begin(f, NV_REQ_DELETE);
	nv_element_ref *refs = (nv_element_ref *) r->data;

	for (uint32_t i = 0; i < n; i++)
		refs[i] = (nv_element_ref){first + i, generation};
	r->u.del.n = n;
	r->u.del.lsn = ++f->lsn;
	return call(f);
}

static inline void
insert_some(fixture *f, uint32_t first, uint32_t n, uint32_t generation)
{
	for (uint32_t e = first; e < first + n; e++)
		assert_int_equal(insert(f, e, generation), NV_OK);
}

static inline void
delete_some(fixture *f, uint32_t first, uint32_t n, uint32_t generation)
{
	for (uint32_t done = 0, batch; done < n; done += batch)
	{
		batch = NV_MIN(n - done, 1000u);
		assert_int_equal(delete (f, first + done, batch, generation), NV_OK);
	}
}

static inline void
checkpoint(fixture *f)
{
	begin(f, NV_REQ_CHECKPOINT);
	assert_int_equal(call(f), NV_OK);
}

static inline nv_req_info *
info(fixture *f)
{
	begin(f, NV_REQ_INFO);
	assert_int_equal(call(f), NV_OK);
	return &f->r->u.info;
}

/* Until nothing is pending. */
static inline void
await_linked(fixture *f)
{
	for (int i = 0; i < WAIT_SECONDS * 100; i++)
	{
		if (info(f)->pending_rows == 0)
			return;
		usleep(10000);
	}
	fail_msg("%llu rows are still pending after %d s",
			 (unsigned long long) f->r->u.info.pending_rows, WAIT_SECONDS);
}

/*
 * Opens as a backend does: a walk that names elements [0, n) in generation 1
 * but for those in [gap, gap + gap_n).  Returns how many were missing.
 */
static inline uint32_t
open_index(fixture *f, uint32_t n, uint32_t gap, uint32_t gap_n, bool complete,
		   uint32_t *state)
{
	uint32_t missing = 0, page = 400;
	uint64_t pass;

	begin(f, NV_REQ_OPEN)->u.open.params = f->params;
	assert_int_equal(call(f), NV_OK);
	*state = f->r->u.open.state;
	pass = f->r->u.open.pass;
	if (pass == 0)
		return 0;
	for (uint32_t e = 0; e < n; e += page)
	{
		nv_request *r = begin(f, NV_REQ_RECONCILE);
		nv_journal_entry *entry = (nv_journal_entry *) r->data;

		r->u.reconcile.pass = pass;
		r->u.reconcile.lsn = f->lsn;
		for (uint32_t i = e; i < n && i < e + page; i++)
			if (i < gap || i >= gap + gap_n)
				entry[r->u.reconcile.n++] =
					(nv_journal_entry){i, 1, hash_row(f, i)};
		assert_int_equal(call(f), NV_OK);
		missing += r->u.reconcile.n_missing;
	}
	begin(f, NV_REQ_OPENED)->u.opened.pass = pass;
	f->r->u.opened.complete = complete;
	assert_int_equal(call(f), NV_OK);
	*state = f->r->u.opened.state;
	return missing;
}

/* --- checks
 * ------------------------------------------------------------------------ */

static inline double
distance(const fixture *f, const float *query, uint32_t e)
{
	return nv_distance((nv_metric) f->params.metric, query,
					   f->rows + (size_t) e * DIM, DIM);
}

static inline int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return x < y ? -1 : x > y;
}

/* Distance of the k-th nearest among elements that alive() says are there. */
static inline double
kth_distance(const fixture *f, const float *query, uint32_t k,
			 bool (*alive)(uint32_t e))
{
	double *all = malloc(f->n * sizeof(*all)), result;
	uint32_t n = 0;

	for (uint32_t e = 0; e < f->n; e++)
		if (alive == NULL || alive(e))
			all[n++] = distance(f, query, e);
	assert_true(n >= k);
	qsort(all, n, sizeof(*all), compare_doubles);
	result = all[k - 1];
	free(all);
	return result;
}

static inline bool
alive_upper(uint32_t e)
{
	return e >= 500;
}

/* Share of the true 10 nearest found over some queries; graph must answer. */
static inline double
recall(fixture *f, uint32_t list, bool (*alive)(uint32_t e))
{
	float queries[50 * DIM];
	uint32_t found = 0;

	make_rows(queries, 50, 77);
	for (uint32_t q = 0; q < 50; q++)
	{
		const float *query = queries + q * DIM;
		double bound = kth_distance(f, query, 10, alive);
		nv_hit *hits = (nv_hit *) f->r->data;

		assert_int_equal(search(f, query, 10, list), NV_OK);
		assert_int_equal(f->r->u.search.n, 10);
		assert_true(f->r->u.search.stats.hops > 0);
		assert_true(f->r->u.search.stats.edge_pages > 0);
		for (uint32_t i = 0; i < 10; i++)
		{
			assert_true(alive == NULL || alive(hits[i].element));
			assert_true(hits[i].distance ==
						distance(f, query, hits[i].element));
			assert_true(i == 0 || hits[i - 1].distance <= hits[i].distance);
			found += hits[i].distance <= bound;
		}
	}
	return found / 500.0;
}

static inline bool
exists(const char *dir, const char *name)
{
	char path[700];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

static inline void
index_dir(const fixture *f, char *path)
{
	int n = snprintf(path, 300, "%s/%u/", f->dir, f->key.database);

	for (int i = 0; i < 16; i++)
		n += snprintf(path + n, 3, "%02x", f->key.identity[i]);
}

/* --- set-up
 * ----------------------------------------------------------------------------
 */

static inline int
setup_with(void **state, nv_metric metric, uint32_t n)
{
	fixture *f = nv_alloc(sizeof(*f));

	snprintf(f->dir, sizeof(f->dir), "/tmp/navis-engine-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	nv_config_defaults(&f->config);
	snprintf(f->config.directory, sizeof(f->config.directory), "%s", f->dir);
	f->config.search_threads = 2;
	f->config.casr_warmup = 30;
	f->config.cache_size = 1 << 20;
	f->config.insert_threads = 0; /* rows stay as they come: test_insert.c */
	f->r = nv_alloc(sizeof(*f->r));
	f->n = n;
	f->rows = malloc((size_t) n * DIM * sizeof(float));
	make_rows(f->rows, n, 1);
	f->key.system_id = 42;
	f->key.database = 5;
	for (int i = 0; i < 16; i++)
		f->key.identity[i] = (uint8_t) (i * 7 + 1);
	f->params = (nv_index_params){
		.dim = DIM,
		.metric = metric,
		.max_degree = 32,
		.build_list_size = 60,
		.alpha = 1.2f,
		.entrance_ratio = 0.01f,
		.entrance_degree = 16,
		.relfilenode = 1000,
		.index_oid = 1001,
	};
	f->owner = 1;
	start_engine(f);
	*state = f;
	return 0;
}

/* With insert threads: rows do not stay as they come. */
static inline int
setup_linking(void **state, nv_metric metric, uint32_t n)
{
	int rc = setup_with(state, metric, n);
	fixture *f = *state;

	stop_engine(f, false);
	f->config.insert_threads = 2;
	f->config.fsync = false;
	start_engine(f);
	return rc;
}

static inline int
setup(void **state)
{
	return setup_with(state, NV_METRIC_L2, ROWS);
}

static inline int
setup_cosine(void **state)
{
	return setup_with(state, NV_METRIC_COSINE, ROWS);
}

static inline int
setup_ip(void **state)
{
	return setup_with(state, NV_METRIC_IP, ROWS);
}

static inline int
setup_small(void **state)
{
	return setup_with(state, NV_METRIC_L2, NV_MIN_GRAPH_ROWS - 1);
}

static inline void
remove_all(const char *path)
{
	char command[512];

	snprintf(command, sizeof(command), "rm -rf '%s'", path);
	assert_int_equal(system(command), 0);
}

static inline int
teardown(void **state)
{
	fixture *f = *state;

	if (f->engine != NULL)
		stop_engine(f, false);
	remove_all(f->dir);
	free(f->rows);
	free(f->r);
	free(f);
	return 0;
}

/* For another thread: the same engine and index, a request of its own. */
static inline fixture
fork_fixture(const fixture *f, uint64_t owner)
{
	fixture copy = *f;

	copy.r = nv_alloc(sizeof(*copy.r));
	copy.owner = owner;
	if (copy.r == NULL)
		abort();
	return copy;
}

#endif
