/*
 * renew.c
 *		Graphs that the engine builds by itself, in the background: when, and
 *		from what.
 *
 * A thread looks at every index a few times a second and decides; the build
 * itself is a job of the builder pool, one at a time, so that the other thread
 * of the pool stays free for CREATE INDEX.  Its rows are the live vectors of
 * the body's vector file and the pending rows, nothing is asked of PostgreSQL.
 * Searches go on in the old graph and among the pending rows; rows that come
 * meanwhile stay pending; what is deleted is noted, and dropped from the new
 * body before it takes the old one's place.
 *
 * While rows pour in, a build waits: until they come slowly, or fill most of
 * pending_memory.  So a load that fits there is built in once, at its end.
 *
 * Source: design.md sections 4 ("Codes"), 6, 8.
 */
#include "engine_internal.h"

#include "parallel.h"
#include "retrain.h"
#include "stored.h"

#define TICK_MS 200
/*
 * A backlog that grows by this part within a tick grows fast: it doubles within
 * half a minute.
 */
#define FAST_SHARE 200
#define COPY_ROWS 256                        /* pending rows copied at a time */
#define RETRY_NS (UINT64_C(2) * 1000000000u) /* doubled with each failure */
#define MAX_RETRY_SHIFT 10                   /* to 34 minutes at most */
#define GIVE_WAY_NS (UINT64_C(10) * 1000000000u)
#define LINK_MEAN 64 /* rows the mean time of linking is over */

/* --- Drift --- */

void
nv_drift_start(nv_drift *drift, double trained)
{
	drift->trained = trained;
	drift->mean = trained;
	drift->drifted = 0;
}

void
nv_drift_restart(nv_drift *drift, double trained)
{
	pthread_mutex_lock(&drift->lock);
	nv_drift_start(drift, trained);
	pthread_mutex_unlock(&drift->lock);
}

double
nv_drift_trained(nv_drift *drift)
{
	double trained;

	pthread_mutex_lock(&drift->lock);
	trained = drift->trained;
	pthread_mutex_unlock(&drift->lock);
	return trained;
}

void
nv_drift_add(nv_drift *drift, double error)
{
	pthread_mutex_lock(&drift->lock);
	drift->mean += (error - drift->mean) / NV_DRIFT_WINDOW;
	drift->drifted += drift->mean > NV_DRIFT_FACTOR * drift->trained;
	pthread_mutex_unlock(&drift->lock);
}

double
nv_drift_factor(nv_drift *drift)
{
	double factor = 1;

	pthread_mutex_lock(&drift->lock);
	if (drift->trained > 0)
		factor = drift->mean / drift->trained;
	pthread_mutex_unlock(&drift->lock);
	return factor;
}

bool
nv_drift_too_far(nv_drift *drift, uint64_t vertices)
{
	uint64_t enough =
		NV_MAX((uint64_t) NV_DRIFT_MIN_ROWS, vertices / NV_DRIFT_SHARE);
	bool far;

	pthread_mutex_lock(&drift->lock);
	far = drift->drifted >= enough &&
		  drift->mean > NV_DRIFT_FACTOR * drift->trained;
	pthread_mutex_unlock(&drift->lock);
	return far;
}

/* --- Measured speeds --- */

void
nv_renew_note_link(nv_index *index, uint64_t ns)
{
	uint64_t mean = atomic_load(&index->link_row_ns);

	/* Threads may overwrite each other's: it is a mean all the same. */
	mean = mean == 0 ? ns : mean - mean / LINK_MEAN + ns / LINK_MEAN;
	atomic_store(&index->link_row_ns, NV_MAX(mean, UINT64_C(1)));
}

/* How many times as fast as linking a row a build is. */
static double
speed_ratio(const nv_index *index)
{
	uint64_t build = atomic_load(&index->build_row_ns);
	uint64_t link = atomic_load(&index->link_row_ns);
	double ratio;

	if (build == 0 || link == 0)
		return NV_RENEW_RATIO;
	ratio =
		(double) link / (double) index->engine->n_inserters / (double) build;
	return NV_MAX(NV_RENEW_RATIO_MIN, NV_MIN(ratio, NV_RENEW_RATIO_MAX));
}

/*
 * Unlinked rows from which on a build over them and the graph's takes less
 * time than linking them: u with u * ratio = vertices + u.
 */
static uint64_t
backlog_worth_building(const nv_index *index, uint64_t vertices)
{
	double rows = (double) vertices / (speed_ratio(index) - 1);

	return NV_MAX((uint64_t) rows, (uint64_t) NV_FIRST_GRAPH_ROWS);
}

bool
nv_index_wants_backlog(const nv_index *index)
{
	return atomic_load(&index->renewal) != NV_RENEWAL_NONE;
}

/* --- What a build is made from --- */

typedef struct stored
{
	uint64_t offset; /* of the record in the vector file */
	uint32_t vertex;
} stored;

typedef struct reader
{
	nv_body *body;
	nv_build *build;
	stored *list;
	uint32_t n;
	nv_stored vectors;
	nv_element_ref *refs;
	uint32_t refs_room;
} reader;

static int
compare_stored(const void *a, const void *b)
{
	const stored *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Live vertices in the order of the file. */
static nv_status
list_stored(reader *r, nv_error *err)
{
	nv_store *store = r->body->store;
	uint32_t vertices = nv_store_vertices(store);

	r->list = nv_alloc_array((size_t) vertices + 1, sizeof(*r->list));
	if (r->list == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to list %u vectors",
					   vertices);
	for (uint32_t v = 0; v < vertices; v++)
	{
		uint64_t offset;
		uint32_t len, skip;

		if (!nv_body_live(r->body, v))
			continue;
		nv_store_vector_extent(store, v, &offset, &len, &skip);
		r->list[r->n++] = (stored){offset + skip, v};
		r->vectors.end = NV_MAX(r->vectors.end, offset + len);
	}
	qsort(r->list, r->n, sizeof(*r->list), compare_stored);
	return NV_OK;
}

/* All rows of one vertex; its vector is verified like any that is read. */
static nv_status
add_vertex_rows(reader *r, uint32_t vertex, nv_error *err)
{
	nv_store *store = r->body->store;
	uint64_t hash = nv_store_vector_hash(store, vertex);
	nv_status status = nv_stored_read(&r->vectors, vertex, err);
	const float *row = r->vectors.row;
	uint32_t n;

	if (status == NV_OK &&
		nv_vector_hash(row, nv_store_get_params(store)->vector_bytes) != hash)
		/* A vertex that died meanwhile may have lost its place. */
		return nv_body_live(r->body, vertex)
				   ? nv_fail(err, NV_ECORRUPT, 0,
							 "vector of vertex %u in \"%s\" is damaged", vertex,
							 r->body->dir)
				   : NV_OK;
	if (status == NV_OK &&
		!nv_body_elements(r->body, vertex, &r->refs, &r->refs_room, &n))
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for rows");
	for (uint32_t i = 0; status == NV_OK && i < n; i++)
	{
		nv_journal_entry entry = {r->refs[i].element, r->refs[i].generation,
								  hash};

		status = nv_build_own_add(r->build, &entry, row, err);
	}
	return status;
}

static nv_status
add_body_rows(nv_build *build, nv_body *body, nv_error *err)
{
	reader r = {.body = body, .build = build};
	nv_status status = nv_stored_open(&r.vectors, body, err);

	if (status == NV_OK)
		status = list_stored(&r, err);
	for (uint32_t i = 0; i < r.n && status == NV_OK; i++)
		status = add_vertex_rows(&r, r.list[i].vertex, err);
	nv_stored_close(&r.vectors);
	free(r.list);
	free(r.refs);
	return status;
}

static nv_status
add_pending_rows(nv_build *build, nv_index *index, nv_error *err)
{
	uint32_t dim = index->params.dim;
	nv_journal_entry *entries = nv_alloc_array(COPY_ROWS, sizeof(*entries));
	float *vectors = nv_alloc_array((size_t) COPY_ROWS * dim, sizeof(float));
	nv_status status = NV_OK;
	bool more = true;

	if (entries == NULL || vectors == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for rows");
	for (uint32_t slot = 0; more && status == NV_OK; slot += COPY_ROWS)
	{
		uint32_t n = nv_pending_copy(index->pending, slot, COPY_ROWS, entries,
									 vectors, &more);

		for (uint32_t i = 0; i < n && status == NV_OK; i++)
			status = nv_build_own_add(build, &entries[i],
									  vectors + (size_t) i * dim, err);
	}
	free(entries);
	free(vectors);
	return status;
}

/* --- The build --- */

static nv_status
build(nv_index *index, uint64_t rows, nv_req_build *result, nv_error *err)
{
	nv_engine *engine = index->engine;
	nv_build *b;
	nv_body *body;
	nv_status status;

	status = nv_build_own_begin(
		index, rows, atomic_load(&engine->build_memory),
		nv_parallel_threads(atomic_load(&engine->build_threads)), &b, err);
	if (status != NV_OK)
		return status;
	/* From here on no row goes from one to the other. */
	body = nv_index_body(index);
	if (body != NULL)
		status = add_body_rows(b, body, err);
	if (status == NV_ECORRUPT)
		nv_index_damaged(index, body);
	nv_body_put(body);
	if (status == NV_OK)
		status = add_pending_rows(b, index, err);
	return nv_build_own_end(b, status, result, err);
}

/* index->lock held; rows: what was pending. */
static void
note_failure(nv_index *index, nv_status status, const nv_error *err,
			 uint64_t rows)
{
	nv_renew_plan *plan = &index->plan;
	uint32_t shift = NV_MIN(plan->failures, (uint32_t) MAX_RETRY_SHIFT);

	if (status == NV_EBUSY || status == NV_ECANCELLED)
		return; /* it is looked at again as if nothing had been */
	if (status == NV_EINVAL)
	{
		/* Most of them are equal, or a graph's rows are gone. */
		plan->min_rows = 2 * rows;
		if (index->body != NULL)
			plan->after_ns = nv_now_ns() + (RETRY_NS << MAX_RETRY_SHIFT);
		return;
	}
	plan->after_ns = nv_now_ns() + (RETRY_NS << shift);
	plan->failures++;
	plan->all_failures++;
	if (plan->failures == 1)
		nv_log(NV_LOG_WARNING,
			   "graph of %s could not be renewed: %s; it stays as it is and is "
			   "tried again later",
			   index->title, err->detail);
}

static void
finish(nv_index *index, nv_status status, const nv_req_build *result,
	   uint64_t pending, double seconds, const nv_error *err)
{
	nv_engine *engine = index->engine;

	pthread_mutex_lock(&index->lock);
	if (status == NV_OK)
	{
		index->plan.failures = 0;
		index->plan.min_rows = 0;
		index->plan.renewals++;
		nv_log(NV_LOG_INFO, "built a graph over %llu rows of %s in %.1f s",
			   (unsigned long long) result->rows, index->title, seconds);
	}
	else
		note_failure(index, status, err, pending);
	atomic_store(&index->renewal, NV_RENEWAL_NONE);
	pthread_mutex_unlock(&index->lock);
	atomic_store(&engine->renewing, false);
	nv_insert_wake(engine);
	nv_places_serve(engine);
}

static void
renew(nv_engine *engine, nv_index *index)
{
	uint64_t started_ns = nv_now_ns();
	uint64_t pending = nv_pending_count(index->pending), rows = pending;
	nv_body *body = nv_index_body(index);
	nv_req_build result = {0};
	nv_error err = {0};
	nv_status status;

	if (body != NULL)
		rows += nv_body_live_vertices(body);
	nv_body_put(body);
	if (nv_now_ns() < atomic_load(&engine->renew_after_ns) ||
		atomic_load(&engine->stopping))
		status = nv_fail(&err, NV_ECANCELLED, 0, "build cancelled");
	else
		status = build(index, rows, &result, &err);
	finish(index, status, &result, pending,
		   (double) (nv_now_ns() - started_ns) / 1e9, &err);
	nv_index_put(index);
}

static void
renew_job(nv_engine *engine, nv_job *job)
{
	renew(engine, job->arg);
}

/* --- The decision --- */

/* An index as it is looked at. */
typedef struct view
{
	uint64_t vertices; /* with rows */
	uint64_t pending;
	uint64_t row_bytes; /* of pending_memory */
	bool grows_fast;    /* rows pour in */
} view;

/* Nothing may be built now, whatever there is; index->lock held. */
static bool
is_barred(const nv_index *index)
{
	return index->dropped || !index->loaded || index->pending == NULL ||
		   index->build != NULL ||
		   (index->state != NV_INDEX_READY && index->state != NV_INDEX_FULL) ||
		   nv_now_ns() < index->plan.after_ns;
}

bool
nv_renew_fits(const nv_index *index, uint64_t rows, uint64_t beside)
{
	nv_engine *engine = index->engine;
	uint32_t threads = nv_parallel_threads(atomic_load(&engine->build_threads));

	return rows < NV_MAX_VERTICES &&
		   nv_build_memory(&index->params, rows, threads) + beside <=
			   atomic_load(&engine->build_memory);
}

static void
look(nv_index *index, view *v)
{
	uint64_t arrived = atomic_load(&index->arrived);

	memset(v, 0, sizeof(*v));
	v->pending = nv_pending_count(index->pending);
	v->row_bytes = nv_pending_row_bytes(index->params.dim);
	v->grows_fast = (arrived - index->plan.arrived) * FAST_SHARE > v->pending;
	index->plan.arrived = arrived;
	if (index->body != NULL)
		v->vertices = nv_body_live_vertices(index->body);
}

/* The graph or its codebook was made for less than there is. */
static bool
outgrown(nv_index *index, const view *v)
{
	nv_body *body = index->body;
	uint64_t factor = body->built < NV_RENEW_FULL_SAMPLE
						  ? NV_RENEW_GROWTH
						  : NV_RENEW_GROWTH_TRAINED;

	return v->vertices + v->pending >= factor * body->built ||
		   nv_drift_too_far(&body->drift, v->vertices);
}

/* From here on pending_memory is nearly full. */
static uint64_t
most_bytes(const nv_index *index)
{
	return index->engine->config.pending_memory / 4 * 3;
}

/* Fewer than these make no graph. */
static uint64_t
least_rows(const nv_index *index)
{
	return NV_MAX((uint64_t) NV_MIN_GRAPH_ROWS, index->plan.min_rows);
}

bool
nv_index_builds_when_full(const nv_index *index)
{
	return index->body == NULL &&
		   nv_pending_count(index->pending) >= least_rows(index);
}

/*
 * Rows that make a build worth its while if they wait for it.  For a first
 * graph fewer will do where more do not fit pending_memory.
 */
static uint64_t
backlog_wanted(const nv_index *index, const view *v)
{
	if (index->body != NULL)
		return backlog_worth_building(index, v->vertices);
	if (atomic_load(&index->engine->pending_bytes) >= most_bytes(index))
		return least_rows(index);
	return NV_MAX((uint64_t) NV_FIRST_GRAPH_ROWS, least_rows(index));
}

/* A build is worth its while later rather than now. */
static bool
better_later(const nv_index *index, const view *v)
{
	/* Rows that come while it is built need room as well. */
	return v->grows_fast &&
		   atomic_load(&index->engine->pending_bytes) < most_bytes(index);
}

/* What is to become of the index; index->lock held.  True: build now. */
static bool
decide(nv_index *index)
{
	nv_engine *engine = index->engine;
	nv_renewal renewal = NV_RENEWAL_NONE;
	uint64_t wanted;
	bool now = false;
	view v;

	if (atomic_load(&index->renewal) == NV_RENEWAL_RUNS)
		return false;
	nv_index_leave_full(index);
	if (!is_barred(index))
	{
		look(index, &v);
		wanted = backlog_wanted(index, &v);
		if (nv_renew_fits(index, v.vertices + NV_MAX(v.pending, wanted),
						  atomic_load(&engine->retrain_bytes)))
		{
			bool backlog = v.pending >= wanted;

			/* Beside a graph, only what leaves room for others. */
			if (wanted * v.row_bytes * (index->body != NULL ? 2 : 1) <
				engine->config.pending_memory)
				renewal = NV_RENEWAL_BACKLOG;
			if (backlog && better_later(index, &v))
				renewal = NV_RENEWAL_DUE;
			else
				now = backlog;
		}
		if (!now && renewal != NV_RENEWAL_DUE && index->body != NULL)
			now = outgrown(index, &v) &&
				  nv_renew_fits(index, v.vertices + v.pending,
								atomic_load(&engine->retrain_bytes));
	}
	/* Builds of others go first. */
	if (now && (atomic_load(&engine->build_bytes) > 0 ||
				nv_now_ns() < atomic_load(&engine->renew_after_ns) ||
				atomic_exchange(&engine->renewing, true)))
		now = false;
	atomic_store(&index->renewal, now ? NV_RENEWAL_RUNS : renewal);
	return now;
}

/* An index that is to be built over, with a reference; or NULL. */
static nv_index *
choose(nv_engine *engine)
{
	nv_index *chosen = NULL;

	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES; i++)
		for (nv_index *x = engine->table[i]; x != NULL; x = x->hash_next)
		{
			bool now;

			pthread_mutex_lock(&x->lock);
			now = decide(x);
			pthread_mutex_unlock(&x->lock);
			if (now)
			{
				nv_assert(chosen == NULL);
				atomic_fetch_add(&x->refs, 1);
				chosen = x;
			}
		}
	pthread_mutex_unlock(&engine->lock);
	return chosen;
}

bool
nv_renew_next(nv_engine *engine)
{
	nv_index *index = choose(engine);

	if (index == NULL)
		return false;
	renew(engine, index);
	return true;
}

void *
nv_renewer_main(void *arg)
{
	nv_engine *engine = arg;

	/* Without insert threads rows stay as they come. */
	while (!atomic_load(&engine->stopping) && engine->config.insert_threads > 0)
	{
		nv_index *index = choose(engine);

		if (index != NULL && nv_submit_job(engine, &engine->builders, renew_job,
										   NULL, index) != NV_OK)
		{
			atomic_store(&index->renewal, NV_RENEWAL_NONE);
			atomic_store(&engine->renewing, false);
			nv_index_put(index);
		}
		nv_sleep_unless_stopping(engine, TICK_MS);
	}
	return NULL;
}

/* --- Giving way --- */

/* Cancels what the engine builds by itself. */
static void
cancel_own(nv_engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES; i++)
		for (nv_index *x = engine->table[i]; x != NULL; x = x->hash_next)
		{
			pthread_mutex_lock(&x->lock);
			nv_build_cancel_own(x);
			pthread_mutex_unlock(&x->lock);
		}
	pthread_mutex_unlock(&engine->lock);
}

bool
nv_renew_give_way(nv_engine *engine)
{
	uint64_t end = nv_now_ns() + GIVE_WAY_NS;

	if (!atomic_load(&engine->renewing) &&
		atomic_load(&engine->retrain_bytes) == 0)
		return false;
	atomic_store(&engine->renew_after_ns, end);
	while ((atomic_load(&engine->renewing) ||
			atomic_load(&engine->retrain_bytes) > 0) &&
		   nv_now_ns() < end)
	{
		cancel_own(engine);
		nv_pause(engine, 10000);
	}
	return true;
}

void
nv_engine_set_build(nv_engine *engine, uint64_t build_memory,
					uint32_t build_threads)
{
	atomic_store(&engine->build_memory, build_memory);
	atomic_store(&engine->build_threads, build_threads);
}
