/*
 * build.c
 *		CREATE INDEX and rebuilds: rows streamed into memory, then trained,
 *		linked, placed, written and published.
 *
 * Rows that are equal byte for byte share a vertex.  Everything is checked
 * against navis.build_memory before the first file is made.  A rebuild runs
 * beside searches of the old body; what is deleted meanwhile is noted, and
 * the new body takes the old one's place in one step.  The engine's own
 * rebuilds (renew.c) give rows that it holds already: the index stays as
 * usable as it was.
 *
 * Source: design.md sections 3 (vertex), 4, 6; algorithms.md section 2.
 */
#include <sys/mman.h>

#include "engine_internal.h"

#define ROW_ALIGN 16 /* floats; rows start at cache lines */
#define NO_ROW UINT32_MAX
#define MAX_SUPERSEDED 64 /* older graphs removed after a build */
#define BUILD_IDLE_NS (UINT64_C(600) * 1000000000u)
#define MB(bytes) ((unsigned long long) ((bytes) >> 20))

/* Memory that grows without copying: the kernel moves pages. */
typedef struct growing
{
	uint8_t *base;
	size_t size; /* mapped */
} growing;

struct nv_build
{
	nv_index *index;
	nv_index_params params;
	uint64_t owner;
	uint64_t used_ns;
	_Atomic bool cancelled;
	bool running; /* a RUN is at work: it frees the build */
	bool rebuild, placement_random;
	nv_request *own;      /* of a build by the engine itself, or NULL */
	nv_request *progress; /* of what runs, or NULL; index->lock */
	uint32_t threads;
	uint64_t memory;   /* navis.build_memory */
	uint64_t reserved; /* of engine->build_bytes */

	pthread_mutex_t lock; /* rows and deleted */
	size_t stride;        /* floats between rows */
	growing rows;         /* stored vectors of vertices */
	growing hashes;       /* uint64_t a vertex */
	growing entries;      /* nv_journal_entry an element */
	growing vertex_of;    /* uint32_t an element */
	uint32_t n_vertices;
	uint64_t n_entries;
	uint64_t expected;    /* rows, as BEGIN estimated them */
	_Atomic uint64_t fed; /* rows so far: n_entries without the lock */
	uint32_t *table;      /* vertices by hash, open addressing */
	uint64_t table_size;
	nv_element_ref *deleted;
	uint32_t n_deleted, deleted_room;
};

/* --- memory --- */

static bool
grow(growing *g, size_t need)
{
	size_t size = g->size == 0 ? (1u << 20) : g->size;
	void *p;

	if (need <= g->size)
		return true;
	while (size < need)
		size += size / 2;
	size = nv_round_up(size, NV_BLOCK);
	p = g->base == NULL
			? mmap(NULL, size, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
			: mremap(g->base, g->size, size, MREMAP_MAYMOVE);
	if (p == MAP_FAILED)
		return false;
	g->base = p;
	g->size = size;
	return true;
}

static void
release(growing *g)
{
	if (g->base != NULL)
		munmap(g->base, g->size);
	g->base = NULL;
	g->size = 0;
}

/* Floats between rows. */
static size_t
stride_of(const nv_index_params *params)
{
	return nv_round_up(nv_gspace_dim((nv_metric) params->metric, params->dim),
					   ROW_ALIGN);
}

uint64_t
nv_build_memory(const nv_index_params *params, uint64_t n, uint32_t threads)
{
	uint64_t row = stride_of(params) * sizeof(float) + sizeof(uint64_t) +
				   sizeof(nv_journal_entry) + sizeof(uint32_t) +
				   4 * sizeof(uint32_t) + NV_PQ_MAX_BYTES;

	return n * row + nv_vamana_memory(n, params->max_degree, threads);
}

/* Holds the build's claim on build_memory to what n rows need. */
static nv_status
reserve_memory(nv_build *b, uint64_t n, bool estimate, nv_error *err)
{
	nv_engine *engine = b->index->engine;
	uint64_t need = nv_build_memory(&b->params, n, b->threads), others;

	if (need <= b->reserved)
		return NV_OK;
	others = atomic_fetch_add(&engine->build_bytes, need - b->reserved) -
			 b->reserved;
	others += atomic_load(&engine->retrain_bytes);
	if (others + need > b->memory)
	{
		atomic_fetch_sub(&engine->build_bytes, need - b->reserved);
		return nv_fail(err, NV_ELIMIT, 0,
					   "building over %s%llu rows of %u dimensions needs "
					   "%llu MB of memory, but navis.build_memory leaves "
					   "%llu MB of its %llu MB",
					   estimate ? "an estimated " : "at least ",
					   (unsigned long long) n, b->params.dim, MB(need),
					   others < b->memory ? MB(b->memory - others) : 0ull,
					   MB(b->memory));
	}
	b->reserved = need;
	return NV_OK;
}

static void
build_free(nv_build *b)
{
	atomic_fetch_sub(&b->index->engine->build_bytes, b->reserved);
	release(&b->rows);
	release(&b->hashes);
	release(&b->entries);
	release(&b->vertex_of);
	free(b->table);
	free(b->deleted);
	free(b->own);
	pthread_mutex_destroy(&b->lock);
	nv_index_put(b->index);
	free(b);
}

/*
 * Takes the build out of its index.  A build for a new index leaves no trace:
 * the index itself goes unless it is usable.
 */
static void
detach(nv_build *b, bool succeeded)
{
	nv_index *index = b->index;
	bool remove = false;

	pthread_mutex_lock(&index->lock);
	if (index->build == b)
		index->build = NULL;
	if (!succeeded && !b->rebuild)
	{
		index->dropped = true;
		remove = true;
	}
	pthread_mutex_unlock(&index->lock);
	nv_insert_wake(index->engine);
	if (remove)
	{
		nv_index_remove(index);
		(void) nv_sidecar_remove(index->engine, &index->key, NULL);
	}
}

void
nv_build_progress(const nv_index *index, nv_req_info *info)
{
	const nv_build *b = index->build;
	const nv_request *r = b != NULL ? b->progress : NULL;

	if (b != NULL && r == NULL) /* it is being given its rows */
	{
		info->build_phase = NV_PHASE_SCAN;
		info->build_done = atomic_load(&b->fed);
		info->build_total = b->expected;
		return;
	}
	info->build_own = r != NULL && r == index->build->own;
	info->build_phase = r != NULL ? atomic_load(&r->phase) : NV_PHASE_NONE;
	info->build_done = r != NULL ? atomic_load(&r->done) : 0;
	info->build_total = r != NULL ? atomic_load(&r->total) : 0;
}

void
nv_build_cancel_own(nv_index *index)
{
	if (index->build != NULL && index->build->own != NULL)
		nv_build_cancel(index);
}

void
nv_build_cancel(nv_index *index)
{
	if (index->build != NULL)
		atomic_store(&index->build->cancelled, true);
}

void
nv_build_note_delete(nv_build *b, nv_element_ref ref)
{
	pthread_mutex_lock(&b->lock);
	if (b->n_deleted == b->deleted_room)
	{
		uint32_t room = NV_MAX(2 * b->deleted_room, 1024u);
		nv_element_ref *grown = realloc(b->deleted, room * sizeof(*grown));

		if (grown == NULL)
			atomic_store(&b->cancelled, true); /* it could bring rows back */
		else
		{
			b->deleted = grown;
			b->deleted_room = room;
		}
	}
	if (b->n_deleted < b->deleted_room)
		b->deleted[b->n_deleted++] = ref;
	pthread_mutex_unlock(&b->lock);
}

/* --- BEGIN, ABORT --- */

static bool
valid_params(const nv_index_params *p)
{
	return p->dim >= 1 && p->dim <= NV_MAX_DIM && p->metric >= NV_METRIC_L2 &&
		   p->metric <= NV_METRIC_COSINE && p->max_degree >= 4 &&
		   p->max_degree <= NV_MAX_DEGREE && p->build_list_size >= 4 &&
		   p->alpha >= 1.0f && p->alpha <= 4.0f &&
		   p->pq_bytes <= NV_PQ_MAX_BYTES && p->entrance_degree >= 4 &&
		   p->entrance_ratio > 0 && p->entrance_ratio <= 1;
}

static nv_status
build_new(nv_index *index, const nv_request *request, nv_build **out,
		  nv_error *err)
{
	const nv_req_build *ask = &request->u.build;
	nv_build *b = nv_alloc(sizeof(*b));
	nv_status status;

	if (b == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a build");
	b->index = index;
	atomic_fetch_add(&index->refs, 1);
	b->params = ask->params;
	b->owner = request->owner;
	b->used_ns = nv_now_ns();
	b->rebuild = ask->rebuild != 0;
	b->placement_random = ask->placement_random != 0;
	b->threads = NV_MAX(1u, NV_MIN(ask->threads, 64u));
	b->memory = ask->build_memory;
	b->expected = ask->expected_rows;
	b->stride = stride_of(&b->params);
	pthread_mutex_init(&b->lock, NULL);
	status = reserve_memory(b, NV_MAX(ask->expected_rows, 1u), true, err);
	/* What the engine builds for itself gives way. */
	if (status == NV_ELIMIT && nv_renew_give_way(index->engine))
		status = reserve_memory(b, NV_MAX(ask->expected_rows, 1u), true, err);
	if (status != NV_OK)
	{
		build_free(b);
		return status;
	}
	*out = b;
	return NV_OK;
}

/* The index gets ready to take rows while the build runs. */
static nv_status
attach(nv_index *index, nv_build *b, const char *title, nv_error *err)
{
	nv_status status = NV_OK;

	pthread_mutex_lock(&index->lock);
	if (index->dropped)
		status = nv_fail(err, NV_ENOENT, 0, "index was dropped");
	else if (index->build != NULL)
		status =
			nv_fail(err, NV_EBUSY, 0, "another build of this index is running");
	else if (index->pending == NULL)
	{
		nv_index_describe(index, &b->params, title);
		index->pending =
			nv_pending_create(b->params.dim, &index->engine->pending_bytes,
							  index->engine->config.pending_memory);
		if (index->pending == NULL)
			status = nv_fail(err, NV_ENOMEM, 0, "no memory for an index");
	}
	else if (index->params.dim != b->params.dim)
		status = nv_fail(err, NV_EINVAL, 0, "index has %u dimensions, not %u",
						 index->params.dim, b->params.dim);
	/* What the engine holds must be all there is to build over. */
	if (status == NV_OK && b->own != NULL &&
		(!index->loaded ||
		 (index->state != NV_INDEX_READY && index->state != NV_INDEX_FULL)))
		status = nv_fail(err, NV_EBUSY, 0, "index is being opened");
	if (status == NV_OK)
	{
		index->build = b;
		if (!b->rebuild)
			index->loaded = true; /* nothing on disk yet */
	}
	pthread_mutex_unlock(&index->lock);
	return status;
}

void
nv_job_build_begin(nv_engine *engine, nv_job *job)
{
	nv_request *request = job->request;
	nv_index *index = NULL;
	nv_build *b = NULL;
	nv_error err = {0};
	nv_status status;

	if (!valid_params(&request->u.build.params))
		status = nv_fail(&err, NV_EINVAL, 0, "index options out of bounds");
	else if ((index = nv_index_get(engine, &request->key, true)) == NULL)
		status = nv_fail(&err, NV_ELIMIT, 0, "more than %d indexes are open",
						 NV_MAX_INDEXES);
	else
		status = build_new(index, request, &b, &err);
	if (status == NV_OK)
	{
		status = attach(index, b, request->title, &err);
		if (status != NV_OK)
			build_free(b);
	}
	else if (index != NULL && !request->u.build.rebuild)
		nv_index_remove(index);
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}

/* The build of a key that nobody runs; claims it for RUN, ADD or ABORT. */
static nv_build *
find_build(nv_engine *engine, const nv_request *request, bool run,
		   nv_error *err)
{
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_build *b = NULL;

	if (index != NULL)
	{
		pthread_mutex_lock(&index->lock);
		b = index->build;
		if (b != NULL && (b->owner != request->owner || b->running))
			b = NULL;
		if (b != NULL)
		{
			b->used_ns = nv_now_ns();
			b->running = run;
		}
		pthread_mutex_unlock(&index->lock);
		nv_index_put(index);
	}
	if (b == NULL)
		nv_fail(err, NV_ENOENT, 0, "no such build");
	return b;
}

void
nv_job_build_abort(nv_engine *engine, nv_job *job)
{
	nv_error err = {0};
	nv_build *b = find_build(engine, job->request, true, &err);

	if (b != NULL)
	{
		detach(b, false);
		build_free(b);
	}
	nv_answer(engine, job->request, NV_OK, NULL);
}

/*
 * A backend that died between two requests leaves its build behind; so does
 * one that waits for I/O that long, which is told "no such build".
 */
void
nv_builds_expire(nv_engine *engine)
{
	for (uint32_t i = 0; i < NV_MAX_INDEXES; i++)
	{
		nv_build *dead = NULL;

		pthread_mutex_lock(&engine->lock);
		for (nv_index *x = engine->table[i]; x != NULL && dead == NULL;
			 x = x->hash_next)
		{
			pthread_mutex_lock(&x->lock);
			if (x->build != NULL && !x->build->running &&
				(nv_elapsed_ns(x->build->used_ns) > BUILD_IDLE_NS ||
				 atomic_load(&x->build->cancelled)))
			{
				dead = x->build;
				dead->running = true;
			}
			pthread_mutex_unlock(&x->lock);
		}
		pthread_mutex_unlock(&engine->lock);
		if (dead != NULL)
		{
			detach(dead, false);
			build_free(dead);
		}
	}
}

/* --- ADD --- */

static inline float *
row_of(const nv_build *b, uint32_t vertex)
{
	return (float *) b->rows.base + (size_t) vertex * b->stride;
}

static inline uint64_t
hash_of(const nv_build *b, uint32_t vertex)
{
	return ((const uint64_t *) b->hashes.base)[vertex];
}

static void
table_add(nv_build *b, uint32_t vertex)
{
	uint64_t i = hash_of(b, vertex) & (b->table_size - 1);

	while (b->table[i] != NO_ROW)
		i = (i + 1) & (b->table_size - 1);
	b->table[i] = vertex;
}

static bool
table_grow(nv_build *b)
{
	uint64_t size = NV_MAX(b->table_size * 2, UINT64_C(4096));
	uint32_t *table = malloc(size * sizeof(*table));

	if (table == NULL)
		return false;
	memset(table, 0xff, size * sizeof(*table));
	free(b->table);
	b->table = table;
	b->table_size = size;
	for (uint32_t v = 0; v < b->n_vertices; v++)
		table_add(b, v);
	return true;
}

/* The vertex with these bytes, or NO_ROW. */
static uint32_t
find_equal(const nv_build *b, uint64_t hash, const float *vector)
{
	uint64_t i;

	if (b->table_size == 0)
		return NO_ROW;
	for (i = hash & (b->table_size - 1); b->table[i] != NO_ROW;
		 i = (i + 1) & (b->table_size - 1))
		if (hash_of(b, b->table[i]) == hash &&
			memcmp(row_of(b, b->table[i]), vector,
				   b->params.dim * sizeof(float)) == 0)
			return b->table[i];
	return NO_ROW;
}

static nv_status
add_row(nv_build *b, const nv_journal_entry *entry, const float *vector,
		nv_error *err)
{
	uint32_t vertex = find_equal(b, entry->hash, vector);
	uint64_t v = b->n_vertices;
	bool ok = grow(&b->entries, (b->n_entries + 1) * sizeof(*entry)) &&
			  grow(&b->vertex_of, (b->n_entries + 1) * sizeof(uint32_t));

	if (ok && vertex == NO_ROW)
	{
		if (v >= NV_MAX_VERTICES)
			return nv_fail(err, NV_ELIMIT, 0, "more than %u distinct vectors",
						   NV_MAX_VERTICES);
		ok = grow(&b->rows, (v + 1) * b->stride * sizeof(float)) &&
			 grow(&b->hashes, (v + 1) * sizeof(uint64_t)) &&
			 ((v + 1) * 2 <= b->table_size || table_grow(b));
		if (ok)
		{
			vertex = b->n_vertices++;
			memcpy(row_of(b, vertex), vector, b->params.dim * sizeof(float));
			((uint64_t *) b->hashes.base)[vertex] = entry->hash;
			table_add(b, vertex);
		}
	}
	if (!ok)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to build over %llu rows",
					   (unsigned long long) b->n_entries + 1);
	((nv_journal_entry *) b->entries.base)[b->n_entries] = *entry;
	((uint32_t *) b->vertex_of.base)[b->n_entries] = vertex;
	b->n_entries++;
	return NV_OK;
}

static nv_status
add_rows(nv_build *b, const nv_request *request, nv_error *err)
{
	size_t bytes = nv_round_up(
		sizeof(nv_journal_entry) + b->params.dim * sizeof(float), 8);
	uint32_t n = request->u.build.n;
	nv_status status = NV_OK;

	if ((uint64_t) n * bytes > NV_REQUEST_DATA)
		return nv_fail(err, NV_EINVAL, 0, "%u rows in one request", n);
	status = reserve_memory(b, b->n_entries + n, false, err);
	for (uint32_t i = 0; i < n && status == NV_OK; i++)
	{
		const uint8_t *p = request->data + i * bytes;
		nv_journal_entry entry;

		memcpy(&entry, p, sizeof(entry));
		status = add_row(b, &entry, (const float *) (p + sizeof(entry)), err);
	}
	atomic_store(&b->fed, b->n_entries);
	return status;
}

void
nv_request_build_add(nv_engine *engine, nv_request *request)
{
	nv_error err = {0};
	nv_build *b = find_build(engine, request, false, &err);
	nv_status status = NV_ENOENT;

	if (b != NULL)
	{
		pthread_mutex_lock(&b->lock);
		status = add_rows(b, request, &err);
		pthread_mutex_unlock(&b->lock);
	}
	nv_answer(engine, request, status, &err);
}

/* --- RUN --- */

/* One RUN's tools. */
typedef struct run
{
	nv_build *b;
	nv_engine *engine;
	nv_request *request;
	char dir[NV_PATH];
	uint32_t generation;
	nv_store *store;
	nv_pq *pq;
	nv_pq_report pq_report;
	nv_gspace gspace;
	nv_graph graph;
	uint32_t *page;
	uint32_t pages;
	nv_entrance *entrance;
	nv_body *body;
	float average_degree, placement_quality;
	uint64_t phase_started;
} run;

static bool
run_cancelled(void *arg)
{
	run *r = arg;

	return atomic_load(&r->b->cancelled) || atomic_load(&r->engine->stopping) ||
		   nv_abandoned(r->request);
}

static void
enter_phase(run *r, nv_build_phase phase, uint64_t total, double *seconds)
{
	uint64_t now = nv_now_ns();

	if (seconds != NULL)
		*seconds += (double) (now - r->phase_started) / 1e9;
	r->phase_started = now;
	atomic_store(&r->request->done, 0);
	atomic_store(&r->request->total, total);
	atomic_store(&r->request->phase, phase);
}

/* Where INFO looks while the build runs: until it is detached. */
static void
set_progress(nv_build *b, nv_request *request)
{
	pthread_mutex_lock(&b->index->lock);
	b->progress = request;
	pthread_mutex_unlock(&b->index->lock);
}

static nv_status
check_cancel(run *r, nv_error *err)
{
	return run_cancelled(r) ? nv_fail(err, NV_ECANCELLED, 0, "build cancelled")
							: NV_OK;
}

/* Directory, marker and empty store. */
static nv_status
make_store(run *r, nv_error *err)
{
	nv_build *b = r->b;
	nv_store_params params = {
		.key = b->index->key,
		.relfilenode = b->params.relfilenode,
		.index_oid = b->params.index_oid,
		.dim = b->params.dim,
		.vector_bytes = b->params.dim * (uint32_t) sizeof(float),
		.max_degree = b->params.max_degree,
	};
	nv_status status =
		nv_sidecar_create(r->engine, &b->index->key, &b->params, err);

	if (status != NV_OK)
		return status;
	pthread_mutex_lock(&b->index->lock);
	r->generation = b->index->next_generation++;
	pthread_mutex_unlock(&b->index->lock);
	nv_sidecar_generation_dir(r->engine, &b->index->key, r->generation, r->dir);
	status =
		nv_sidecar_create_graph(r->engine, &b->index->key, r->generation, err);
	if (status != NV_OK)
		return status;
	return nv_store_create(r->dir, &params, r->engine->cache, &r->store, err);
}

/* Stored vectors go to disk as they are; then rows move into graph space. */
static nv_status
write_vectors(run *r, nv_error *err)
{
	nv_build *b = r->b;
	nv_status status;

	enter_phase(r, NV_PHASE_WRITE, b->n_vertices, NULL);
	status = nv_store_bulk_vectors(
		r->store, b->rows.base, b->stride * sizeof(float),
		(const uint64_t *) b->hashes.base, b->n_vertices, err);
	if (status != NV_OK)
		return status;
	nv_gspace_learn(&r->gspace, (nv_metric) b->params.metric, b->params.dim,
					row_of(b, 0), b->stride, b->n_vertices);
	for (uint32_t v = 0; v < b->n_vertices; v++)
		nv_gspace_row(&r->gspace, row_of(b, v), row_of(b, v));
	return check_cancel(r, err);
}

static nv_status
make_codes(run *r, nv_error *err)
{
	nv_build *b = r->b;
	nv_req_build *answer = &r->request->u.build;
	nv_pq_params params = {
		.bytes = b->params.pq_bytes,
		.threads = b->threads,
		.seed = 1,
		.cancel = run_cancelled,
		.cancel_arg = r,
	};
	uint8_t *codes;
	nv_status status;

	enter_phase(r, NV_PHASE_TRAIN, 0, &answer->seconds_write);
	status = nv_pq_train(&params, row_of(b, 0), b->stride, b->n_vertices,
						 r->gspace.gdim, &r->pq, &r->pq_report, err);
	if (status != NV_OK)
		return status;
	enter_phase(r, NV_PHASE_ENCODE, b->n_vertices, &answer->seconds_train);
	codes = nv_alloc_array(b->n_vertices, nv_pq_stride(r->pq));
	if (codes == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %u codes",
					   b->n_vertices);
	status = nv_pq_encode_many(r->pq, row_of(b, 0), b->stride, b->n_vertices,
							   codes, b->threads, run_cancelled, r, err);
	if (status == NV_OK)
		status = nv_store_set_code_stride(r->store, nv_pq_stride(r->pq), err);
	if (status == NV_OK)
		status = nv_store_bulk_codes(r->store, codes, err);
	free(codes);
	return status;
}

static nv_status
make_graph(run *r, nv_error *err)
{
	nv_build *b = r->b;
	nv_req_build *answer = &r->request->u.build;
	nv_vamana_params params = {
		.max_degree = b->params.max_degree,
		.list_size = b->params.build_list_size,
		.alpha = b->params.alpha,
		.fill_to = NV_BUILD_FILL(b->params.max_degree),
		.threads = b->threads,
		.done = &r->request->done,
		.cancel = run_cancelled,
		.cancel_arg = r,
	};
	nv_status status;

	enter_phase(r, NV_PHASE_LINK, b->n_vertices, &answer->seconds_train);
	status = nv_vamana_build(&params, row_of(b, 0), b->stride, b->n_vertices,
							 r->gspace.gdim, &r->graph, err);
	if (status != NV_OK)
		return status;
	r->average_degree =
		(float) r->graph.offset[r->graph.n] / (float) r->graph.n;
	enter_phase(r, NV_PHASE_PLACE, 0, &answer->seconds_link);
	r->page = nv_alloc_array(b->n_vertices, sizeof(*r->page));
	if (r->page == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to place %u lists",
					   b->n_vertices);
	status = nv_place(&r->graph, 0, b->placement_random, b->threads, 1,
					  run_cancelled, r, r->page, &r->pages, err);
	if (status != NV_OK)
		return status;
	r->placement_quality =
		(float) nv_place_quality(&r->graph, r->page, r->pages);
	enter_phase(r, NV_PHASE_ENTRANCE, 0, &answer->seconds_place);
	return nv_entrance_build(
		row_of(b, 0), b->stride, b->n_vertices, r->gspace.gdim,
		b->params.entrance_ratio, b->params.entrance_degree, b->params.alpha,
		b->threads, 1, run_cancelled, r, &r->entrance, err);
}

/* A blob from something that says its size and then saves itself. */
static nv_status
set_blobs(run *r, nv_error *err)
{
	size_t pq_size = nv_pq_saved_size(r->pq);
	size_t ent_size = nv_entrance_saved_size(r->entrance);
	uint8_t *bytes = nv_alloc(NV_MAX(pq_size, ent_size));
	nv_meta_blob meta;
	nv_status status;

	if (bytes == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for the codebook");
	memset(&meta, 0, sizeof(meta)); /* padding is written too */
	meta.version = NV_META_VERSION;
	meta.medoid = r->graph.medoid;
	meta.params = r->b->params;
	meta.gspace = r->gspace;
	meta.pq_rotated = r->pq_report.rotated;
	meta.pq_recall = (float) r->pq_report.recall;
	meta.average_degree = r->average_degree;
	meta.placement_quality = r->placement_quality;
	meta.built = r->b->n_vertices;
	meta.code_error = (float) r->pq_report.error;
	nv_pq_save(r->pq, bytes);
	status = nv_store_set_blob(r->store, NV_BLOB_CODEBOOK, bytes, pq_size, err);
	if (status == NV_OK)
	{
		nv_entrance_save(r->entrance, bytes);
		status =
			nv_store_set_blob(r->store, NV_BLOB_ENTRANCE, bytes, ent_size, err);
	}
	if (status == NV_OK)
		status = nv_store_set_blob(r->store, NV_BLOB_META,
								   (const uint8_t *) &meta, sizeof(meta), err);
	free(bytes);
	return status;
}

static nv_status
set_elements(run *r, nv_error *err)
{
	nv_build *b = r->b;
	const nv_journal_entry *entries =
		(const nv_journal_entry *) b->entries.base;
	const uint32_t *vertex_of = (const uint32_t *) b->vertex_of.base;
	nv_status status = NV_OK;

	for (uint64_t i = 0; i < b->n_entries && status == NV_OK; i++)
		status = nv_store_set_element(r->store, entries[i].element,
									  vertex_of[i], entries[i].generation, err);
	return status;
}

static uint64_t
build_cut(void *arg)
{
	return atomic_load(&((run *) arg)->b->index->lsn);
}

static nv_status
build_flush(void *arg, uint64_t lsn, nv_error *err)
{
	run *r = arg;

	return lsn == 0
			   ? NV_OK
			   : r->engine->port->flush_wal(r->engine->port->arg, lsn, err);
}

static nv_status
write_graph(run *r, nv_error *err)
{
	nv_checkpoint_hooks hooks = {r, build_cut, build_flush};
	nv_status status;

	enter_phase(r, NV_PHASE_WRITE, r->pages,
				&r->request->u.build.seconds_place);
	status = nv_store_bulk_edges(r->store, &r->graph, r->page, r->pages,
								 run_cancelled, r, err);
	if (status == NV_OK)
		status = set_elements(r, err);
	if (status == NV_OK)
		status = set_blobs(r, err);
	if (status == NV_OK)
		status = nv_store_checkpoint(r->store, &hooks, err);
	if (status == NV_OK)
	{
		nv_store *store = r->store;

		r->store = NULL; /* the body has it, also on failure */
		status = nv_body_create(r->engine, store, r->dir, r->generation,
								&r->body, err);
	}
	if (r->body != NULL)
		nv_body_get(r->body); /* one for the run, one for the index */
	return status;
}

/*
 * The warm-up of the default bucket, and of position seeking, so that the
 * first query and the first insert are fast ones.
 */
static nv_status
calibrate_default(run *r, nv_error *err)
{
	const nv_config *config = &r->engine->config;
	int bucket = nv_casr_bucket(NV_DEFAULT_K, NV_DEFAULT_LIST);
	int seek = nv_casr_bucket(NV_DEFAULT_K, config->insert_list_size);
	nv_view view = r->body->view;
	nv_ring *ring;
	nv_status status;

	enter_phase(r, NV_PHASE_CALIBRATE, 2 * (uint64_t) config->casr_warmup,
				&r->request->u.build.seconds_write);
	status = nv_ring_create((nv_io_method) config->io_method, NV_SEARCH_BUFFER,
							&ring, err);
	if (status != NV_OK)
	{
		/* The first search asks for it again, in the background. */
		nv_log(NV_LOG_INFO, "could not calibrate now: %s",
			   err != NULL ? err->detail : nv_status_name(status));
		return NV_OK;
	}
	/* The vectors are still here; reading them again would take longer. */
	view.rows = row_of(r->b, 0);
	view.rows_stride = r->b->stride;
	atomic_store(&r->body->wanted[bucket], 2);
	status = nv_calibrate(r->body, &view, bucket, false, ring, run_cancelled, r,
						  &r->request->done, err);
	if (status == NV_OK && seek >= 0)
	{
		atomic_store(&r->body->wanted_insert[seek], 2);
		status = nv_calibrate(r->body, &view, seek, true, ring, run_cancelled,
							  r, &r->request->done, err);
	}
	nv_ring_destroy(ring);
	return status;
}

static int
compare_refs(const void *a, const void *b)
{
	const nv_element_ref *x = a, *y = b;

	if (x->element != y->element)
		return x->element < y->element ? -1 : 1;
	return x->generation < y->generation   ? -1
		   : x->generation > y->generation ? 1
										   : 0;
}

static void
sort_deleted(nv_build *b)
{
	if (b->n_deleted > 0)
		qsort(b->deleted, b->n_deleted, sizeof(*b->deleted), compare_refs);
}

/* Was it deleted since the build read it?  After sort_deleted. */
static bool
was_deleted(const nv_build *b, const nv_journal_entry *entry)
{
	nv_element_ref ref = {entry->element, entry->generation};

	return b->n_deleted > 0 && bsearch(&ref, b->deleted, b->n_deleted,
									   sizeof(ref), compare_refs) != NULL;
}

/*
 * Is it this row that the body has of the element?  The build may have read
 * two: one from the old graph and, after that was deleted, another one that
 * waited.
 */
static bool
holds(const nv_body *body, const nv_journal_entry *entry)
{
	uint32_t generation;

	return nv_store_element(body->store, entry->element, &generation) !=
			   NV_NO_VERTEX &&
		   generation == entry->generation;
}

/*
 * What the new body holds is unlinked no more.  A row that came back after it
 * was deleted is pending, and stays so.  index->lock held.
 */
static void
leave_pending_locked(const nv_build *b)
{
	nv_index *index = b->index;
	const nv_journal_entry *entries =
		(const nv_journal_entry *) b->entries.base;

	atomic_fetch_add(&index->moves_begun, 1);
	for (uint64_t i = 0; i < b->n_entries; i++)
		if (!was_deleted(b, &entries[i]) && holds(index->body, &entries[i]) &&
			nv_pending_remove(index->pending, entries[i].element,
							  entries[i].generation))
			nv_passes_confirm(index, entries[i].element);
	atomic_fetch_add(&index->moves_over, 1);
}

/*
 * The new body takes its place: minus what was deleted since its rows were
 * read, and what it holds is unlinked no more.  index->lock held.
 */
static nv_status
take_place_locked(run *r, nv_error *err)
{
	nv_build *b = r->b;
	nv_index *index = b->index;
	const nv_journal_entry *entries =
		(const nv_journal_entry *) b->entries.base;
	nv_status status = NV_OK;

	if (index->dropped)
		return nv_fail(err, NV_ENOENT, 0, "index was dropped");
	sort_deleted(b);
	for (uint64_t i = 0; i < b->n_entries && status == NV_OK; i++)
		if (was_deleted(b, &entries[i]) && holds(r->body, &entries[i]))
			status = nv_body_drop_element(r->body, entries[i].element, err);
	if (status != NV_OK)
		return status;
	if (index->body != NULL)
	{
		atomic_store(&index->body->remove_dir, true);
		nv_body_put(index->body);
	}
	index->body = r->body;
	/*
	 * Walks that run compared the old body: they begin anew, unless the new
	 * one holds the same elements and those that were pending.
	 */
	if (b->own == NULL)
		nv_passes_free(index);
	leave_pending_locked(b);
	return NV_OK;
}

/* Too few rows for codes: they stay in memory and are compared exactly. */
static nv_status
keep_pending_locked(run *r, nv_error *err)
{
	nv_build *b = r->b;
	const nv_journal_entry *entries =
		(const nv_journal_entry *) b->entries.base;
	const uint32_t *vertex_of = (const uint32_t *) b->vertex_of.base;
	nv_status status = NV_OK;

	if (b->index->dropped)
		return nv_fail(err, NV_ENOENT, 0, "index was dropped");
	nv_pending_set_limit(b->index->pending, nv_index_pending_limit(b->index));
	sort_deleted(b);
	for (uint64_t i = 0; i < b->n_entries && status == NV_OK; i++)
	{
		if (was_deleted(b, &entries[i]))
			continue;
		status = nv_pending_add(b->index->pending, &entries[i],
								row_of(b, vertex_of[i]), err);
		/* It stays right without: the index is not usable then. */
		if (status == NV_ELIMIT)
		{
			nv_index_become_full(b->index, err->detail);
			return NV_OK;
		}
	}
	return status;
}

/*
 * After a build by the engine itself the index is what it was; but rows that
 * did not fit may be asked for again, and damage is gone with the old files.
 */
static void
own_build_state(nv_index *index)
{
	if (index->state == NV_INDEX_FULL)
		index->state = NV_INDEX_OPENING;
	else if (index->state == NV_INDEX_DAMAGED)
		index->state = index->lacks_row ? NV_INDEX_OPENING : NV_INDEX_READY;
}

static nv_status
take_place(run *r, nv_error *err)
{
	nv_index *index = r->b->index;
	nv_status status;

	if (r->body == NULL)
		(void) nv_index_make_room(
			index, r->b->n_entries * nv_pending_row_bytes(index->params.dim));
	pthread_mutex_lock(&index->lock);
	if (atomic_load(&r->b->cancelled))
		status = nv_fail(err, NV_ECANCELLED, 0, "build cancelled");
	else if (r->body != NULL)
		status = take_place_locked(r, err);
	else
		status = keep_pending_locked(r, err);
	if (status == NV_OK)
	{
		/* A rebuild is usable when a walk has found nothing missing. */
		if (r->b->own != NULL)
			own_build_state(index);
		else if (r->b->rebuild)
			index->state = NV_INDEX_OPENING;
		else if (index->state != NV_INDEX_FULL)
			index->state = NV_INDEX_READY;
	}
	pthread_mutex_unlock(&index->lock);
	return status;
}

static nv_status
run_build(run *r, nv_error *err)
{
	nv_status status = NV_OK;

	/* Without a graph, too, the collector must find what to drop one day. */
	if (r->b->n_vertices < NV_MIN_GRAPH_ROWS)
		(void) nv_sidecar_create(r->engine, &r->b->index->key, &r->b->params,
								 NULL);
	else
	{
		status = make_store(r, err);
		if (status == NV_OK)
			status = write_vectors(r, err);
		if (status == NV_OK)
			status = make_codes(r, err);
		if (status == NV_OK)
			status = make_graph(r, err);
		if (status == NV_OK)
			status = write_graph(r, err);
		if (status == NV_OK)
			status = calibrate_default(r, err);
	}
	if (status == NV_OK)
		status = check_cancel(r, err);
	if (status == NV_OK)
		status = take_place(r, err);
	return status;
}

static void
report(run *r)
{
	nv_req_build *answer = &r->request->u.build;

	answer->rows = r->b->n_entries;
	answer->vertices = r->body != NULL ? r->b->n_vertices : 0;
	if (r->body == NULL)
		return;
	answer->pq_bytes = nv_pq_bytes(r->pq);
	answer->pq_rotated = r->pq_report.rotated;
	answer->pq_recall = (float) r->pq_report.recall;
	answer->average_degree = r->average_degree;
	answer->placement_quality = r->placement_quality;
	answer->edge_pages = r->pages;
	answer->entrance_members = nv_entrance_count(r->entrance);
}

/*
 * Older graphs go with the one that replaces them, also those that could not
 * be opened.  Of a body that is still in use only the names go.
 */
static void
remove_superseded(const run *r)
{
	uint32_t generations[MAX_SUPERSEDED];
	uint32_t n = nv_sidecar_generations(r->engine, &r->b->index->key,
										generations, MAX_SUPERSEDED);

	for (uint32_t i = 0; i < n; i++)
	{
		char dir[NV_PATH];

		if (generations[i] >= r->generation)
			continue;
		nv_sidecar_generation_dir(r->engine, &r->b->index->key, generations[i],
								  dir);
		(void) nv_remove_tree(dir, NULL);
	}
}

/* A failed run removes what it wrote; of a new index, everything. */
static void
clean_up(run *r, nv_status status)
{
	if (r->body != NULL)
	{
		if (status != NV_OK)
		{
			atomic_store(&r->body->remove_dir, true);
			nv_body_put(r->body);
		}
		nv_body_put(r->body);
	}
	if (r->store != NULL)
		nv_store_close(r->store);
	if (status != NV_OK && r->body == NULL && r->dir[0] != '\0')
		(void) nv_remove_tree(r->dir, NULL);
	nv_pq_free(r->pq);
	nv_graph_free(&r->graph);
	nv_entrance_free(r->entrance);
	free(r->page);
}

/*
 * What a row takes, for the decision how the next ones get into the graph.
 * This thread has a share in every parallel phase, so its CPU time is what the
 * build takes where no other program is in the way.
 */
static void
note_speed(const run *r, uint64_t started_cpu_ns)
{
	uint64_t ns = nv_thread_cpu_ns() - started_cpu_ns;

	if (r->body != NULL)
		atomic_store(&r->b->index->build_row_ns,
					 NV_MAX(ns / r->b->n_vertices, UINT64_C(1)));
}

/* Runs the build to its end; it is gone afterwards. */
static nv_status
run_to_end(run *r, nv_error *err)
{
	uint64_t started_cpu_ns = nv_thread_cpu_ns();
	nv_status status;

	r->phase_started = nv_now_ns();
	set_progress(r->b, r->request);
	status = run_build(r, err);
	if (status == NV_OK)
	{
		report(r);
		note_speed(r, started_cpu_ns);
	}
	if (status == NV_OK && r->body != NULL)
		remove_superseded(r);
	enter_phase(r, NV_PHASE_NONE, 0, NULL);
	clean_up(r, status);
	detach(r->b, status == NV_OK);
	return status;
}

void
nv_job_build_run(nv_engine *engine, nv_job *job)
{
	run r = {.engine = engine, .request = job->request};
	nv_error err = {0};
	nv_status status;

	r.b = find_build(engine, job->request, true, &err);
	if (r.b == NULL)
	{
		nv_answer(engine, job->request, NV_ENOENT, &err);
		return;
	}
	nv_index_set_lsn(r.b->index, job->request->u.build.lsn);
	status = run_to_end(&r, &err);
	build_free(r.b);
	nv_answer(engine, job->request, status, &err);
}

/* --- Builds by the engine itself --- */

nv_status
nv_build_own_begin(nv_index *index, uint64_t rows, uint64_t memory,
				   uint32_t threads, nv_build **out, nv_error *err)
{
	nv_request *request = nv_alloc(sizeof(*request));
	nv_build *b = NULL;
	nv_status status;

	if (request == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a build");
	atomic_store(&request->state, NV_RUNNING); /* nobody can abandon it */
	request->u.build = (nv_req_build){
		.params = index->params,
		.expected_rows = rows,
		.build_memory = memory,
		.threads = threads,
		.rebuild = true,
	};
	status = build_new(index, request, &b, err);
	if (status != NV_OK)
	{
		free(request);
		return status;
	}
	b->own = request;
	b->running = true;
	atomic_store(&request->total, rows);
	atomic_store(&request->phase, NV_PHASE_SCAN);
	b->progress = request;
	status = attach(index, b, index->title, err);
	if (status != NV_OK)
	{
		build_free(b);
		return status;
	}
	*out = b;
	return NV_OK;
}

nv_status
nv_build_own_add(nv_build *b, const nv_journal_entry *entry,
				 const float *vector, nv_error *err)
{
	nv_status status = reserve_memory(b, b->n_entries + 1, false, err);

	nv_assert(b->own != NULL);
	if (status == NV_OK && (atomic_load(&b->cancelled) ||
							atomic_load(&b->index->engine->stopping)))
		status = nv_fail(err, NV_ECANCELLED, 0, "build cancelled");
	pthread_mutex_lock(&b->lock);
	if (status == NV_OK)
		status = add_row(b, entry, vector, err);
	pthread_mutex_unlock(&b->lock);
	atomic_fetch_add(&b->own->done, 1);
	return status;
}

nv_status
nv_build_own_end(nv_build *b, nv_status status, nv_req_build *result,
				 nv_error *err)
{
	run r = {.b = b, .engine = b->index->engine, .request = b->own};

	if (status == NV_OK && b->n_vertices < NV_MIN_GRAPH_ROWS)
		status = nv_fail(err, NV_EINVAL, 0,
						 "%u distinct vectors are too few for a graph",
						 b->n_vertices);
	if (status == NV_OK)
		status = run_to_end(&r, err);
	else
		detach(b, false);
	*result = b->own->u.build;
	build_free(b);
	return status;
}
