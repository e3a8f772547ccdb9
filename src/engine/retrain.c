/*
 * retrain.c
 *		Another codebook for a graph that stays, when the vectors have drifted
 *		away from the old one and a build does not fit navis.build_memory.
 *
 * A run
 *
 *	1. reads a sample of the live vectors and trains a codebook on it, of as
 *	   many bytes as the old one;
 *	2. begins codes beside those in use (nv_store_recode_begin): rows that are
 *	   linked from then on bring a code of either codebook;
 *	3. reads the vector file in its order, verifies each vector, and encodes it.
 *	   Dead vertices are walked through until they are freed, so they are
 *	   encoded, too;
 *	4. switches: codes, codebook, description and rerank windows between two
 *	   cuts of checkpoints.  Whoever is inside an epoch ends with the codes he
 *	   began with; cursors that were idle begin anew, as after a consolidation;
 *	5. waits until those have left, frees what they used, and publishes a
 *	   checkpoint.  The windows are calibrated again; until then searches load
 *	   all that they have explored.
 *
 *	6. links those vertices anew whose place was sought by codes that said
 *	   little: where the old code was farther from the vector than what counts
 *	   as drift, and those that came since 2.  All others keep their lists.
 *
 * The entrance graph holds vectors and no codes, so it stays.  Where a build
 * does fit, it is taken instead (renew.c): it links and places all of them.
 *
 * It rests as long as it works, and stops within a block of rows when the
 *engine stops, the index gets another graph or is dropped, or somebody else
 *wants its memory.  Nothing of it is kept when it stops before the switch, nor
 *on disk before the checkpoint; what is not linked anew by then stays as it is.
 *
 * Source: design.md section 4, "Codes", "Concurrency".
 */
#include "retrain.h"

#include "linker.h"
#include "navis/distance.h"
#include "parallel.h"
#include "pq_internal.h"
#include "stored.h"

#define TICK_MS 500
#define BLOCK_ROWS 256 /* encoded at a time */
#define WAIT_US 1000
#define REST_STEP_NS (UINT64_C(20) * 1000000u)
#define MAX_REST_NS (UINT64_C(1000) * 1000000u)
#define READ_TRIES 3
#define REST_LINKS 16 /* vertices linked anew between two rests */
#define RETRY_NS (UINT64_C(60) * 1000000000u) /* doubled with each failure */
#define MAX_RETRY_SHIFT 6                     /* to about an hour at most */

/* Rows read for training: those it trains on, and those it is tried with. */
#define SAMPLE_ROWS 24000u
/* Training holds copies of the sample (one turned), codes, and products. */
#define SAMPLE_COPIES 4u
#define FIXED_BYTES (UINT64_C(1) << 20)

typedef struct run
{
	nv_engine *engine;
	nv_index *index;
	nv_body *body;
	nv_pq *pq; /* the new one, until it is the body's */
	nv_pq_report report;
	nv_stored stored;
	/* one block */
	float *rows;      /* in graph space, gdim floats each */
	float *projected; /* in the old codes' space, and what they decode to */
	uint32_t vertex[BLOCK_ROWS];
	uint64_t hash[BLOCK_ROWS];
	uint8_t *codes;
	uint32_t n;
	bool replaced;    /* the new codes are those in use */
	double far;       /* squared error from which on a code said little */
	uint64_t *placed; /* bitmap of ids: their old codes were good */
	uint32_t n_placed;
	uint32_t linked; /* vertices linked anew */
	nv_linker linker;
	uint64_t worked_ns; /* when the last rest ended */
} run;

uint64_t
nv_retrain_memory(const nv_body *body, uint64_t ids)
{
	uint64_t gdim = body->view.gspace.gdim;
	uint64_t row = gdim * sizeof(float);
	uint64_t sample = NV_MIN(ids, (uint64_t) SAMPLE_ROWS);
	/* Room for rows that come meanwhile. */
	uint64_t codes =
		(ids + ids / 8) * nv_store_get_params(body->store)->code_stride;

	return codes + ids / 8 +
		   (SAMPLE_COPIES * sample + 3 * BLOCK_ROWS + 2 * gdim) * row +
		   FIXED_BYTES;
}

/* --- Whether to stop --- */

static bool
stop(void *arg)
{
	run *r = arg;
	nv_index *index = r->index;
	bool there;

	if (atomic_load(&r->engine->stopping) || atomic_load(&r->body->given_up) ||
		atomic_load(&r->body->remove_dir))
		return true;
	/* Somebody else wants the memory, and we still have it. */
	if (atomic_load(&r->engine->retrain_bytes) > 0 &&
		nv_now_ns() < atomic_load(&r->engine->renew_after_ns))
		return true;
	pthread_mutex_lock(&index->lock);
	there = index->body == r->body && index->build == NULL && !index->dropped;
	pthread_mutex_unlock(&index->lock);
	return !there;
}

static nv_status
check_stop(run *r, nv_error *err)
{
	return stop(r) ? nv_fail(err, NV_ECANCELLED, 0, "retraining was stopped")
				   : NV_OK;
}

/* As long as it has worked: half of the time is for others. */
static void
rest(run *r)
{
	uint64_t now = nv_now_ns();
	uint64_t end = now + NV_MIN(now - r->worked_ns, MAX_REST_NS);

	while (now < end && !stop(r))
	{
		nv_pause(r->engine,
				 (uint32_t) (NV_MIN(end - now, REST_STEP_NS) / 1000));
		/* Where a test says whose turn it is it is not time that counts. */
		now = r->engine->pause != NULL ? end : nv_now_ns();
	}
	r->worked_ns = nv_now_ns();
}

/* --- Vectors --- */

/*
 * The vector that a vertex has now, mapped into place; *hash tells which it is.
 * False: its id is not in use, or is being given to another vector.
 */
static nv_status
read_row(run *r, uint32_t vertex, float *place, uint64_t *hash, bool *found,
		 nv_error *err)
{
	nv_store *store = r->body->store;
	uint32_t bytes = nv_store_get_params(store)->vector_bytes;

	*found = false;
	for (int i = 0; i < READ_TRIES; i++)
	{
		nv_status status;

		*hash = nv_store_vector_hash(store, vertex);
		/* An id that was never used. */
		if (*hash == 0 && nv_store_edge_word(store, vertex) == 0)
			return NV_OK;
		status = nv_stored_read(&r->stored, vertex, err);
		if (status != NV_OK)
			return status;
		if (nv_vector_hash(r->stored.row, bytes) == *hash)
		{
			nv_gspace_row(&r->body->view.gspace, r->stored.row, place);
			*found = true;
			return NV_OK;
		}
		nv_stored_forget(&r->stored);
	}
	if (nv_store_edge_word(store, vertex) == 0)
		return NV_OK;
	return nv_fail(err, NV_ECORRUPT, 0,
				   "vector of vertex %u in \"%s\" is damaged", vertex,
				   r->body->dir);
}

/* Rows of live vertices, spread evenly over their ids; *n of them. */
static nv_status
read_sample(run *r, float *rows, uint32_t most, uint32_t *n, nv_error *err)
{
	nv_body *body = r->body;
	uint32_t ids = nv_store_vertices(body->store);
	uint64_t live = NV_MAX(nv_body_live_vertices(body), UINT64_C(1)), met = 0;
	nv_status status = NV_OK;

	*n = 0;
	for (uint32_t v = 0; v < ids && *n < most && status == NV_OK; v++)
	{
		uint64_t hash;
		bool found;

		if (!nv_body_live(body, v) || met++ * most / live < *n)
			continue;
		if (*n % BLOCK_ROWS == 0)
		{
			rest(r);
			status = check_stop(r, err);
		}
		if (status == NV_OK)
			status = read_row(r, v, rows + (size_t) *n * body->view.gspace.gdim,
							  &hash, &found, err);
		if (status == NV_OK)
			*n += found;
	}
	return status;
}

/* --- 1: the codebook --- */

static nv_status
train(run *r, nv_error *err)
{
	uint32_t gdim = r->body->view.gspace.gdim, n;
	uint32_t most =
		(uint32_t) NV_MIN(nv_body_live_vertices(r->body), SAMPLE_ROWS);
	float *rows = nv_alloc_array(most, gdim * sizeof(*rows));
	nv_pq_params params = {
		.bytes = r->body->pq_bytes,
		.threads = nv_parallel_threads(atomic_load(&r->engine->build_threads)),
		.seed = nv_store_vertices(r->body->store),
		.cancel = stop,
		.cancel_arg = r,
	};
	nv_status status;

	if (rows == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a sample of %u rows",
					   most);
	r->stored.end = 0; /* they lie far apart */
	status = read_sample(r, rows, most, &n, err);
	if (status == NV_OK)
		status =
			nv_pq_train(&params, rows, gdim, n, gdim, &r->pq, &r->report, err);
	free(rows);
	return status;
}

/* --- 3: codes --- */

/* Notes which rows of the block the old codes told enough about. */
static void
note_placed(run *r)
{
	const nv_pq *old = r->body->pq;
	uint32_t gdim = r->body->view.gspace.gdim, stride = nv_pq_stride(old);
	float *decoded = r->projected + (size_t) BLOCK_ROWS * gdim;

	memset(r->codes, 0, (size_t) r->n * stride);
	nv_store_recode_old(r->body->store, r->vertex, r->hash, r->codes, r->n);
	/* The scratch of the projection is what follows. */
	nv_pq_project(old, r->rows, gdim, r->n, r->projected, decoded);
	for (uint32_t i = 0; i < r->n; i++)
	{
		float *place = r->projected + (size_t) i * gdim;

		nv_pq_decode_projected(old, r->codes + (size_t) i * stride, decoded);
		if ((double) nv_l2sq(place, decoded, gdim) <= r->far)
			r->placed[r->vertex[i] / 64] |= UINT64_C(1) << r->vertex[i] % 64;
	}
}

static nv_status
encode_block(run *r, nv_error *err)
{
	uint32_t gdim = r->body->view.gspace.gdim;
	nv_status status;

	note_placed(r);
	status = nv_pq_encode_many(r->pq, r->rows, gdim, r->n, r->codes, 1, stop, r,
							   err);
	if (status == NV_OK)
		nv_store_recode(r->body->store, r->vertex, r->hash, r->codes, r->n);
	r->n = 0;
	rest(r);
	return status == NV_OK ? check_stop(r, err) : status;
}

/* End of the records of all ids there are. */
static uint64_t
end_of_vectors(nv_store *store, uint32_t ids)
{
	uint64_t offset, end = 0;
	uint32_t len, skip;

	/* The last ones may not be in use; others lie before them. */
	for (uint32_t v = ids - NV_MIN(ids, (uint32_t) BLOCK_ROWS); v < ids; v++)
	{
		nv_store_vector_extent(store, v, &offset, &len, &skip);
		end = NV_MAX(end, offset + len);
	}
	return end;
}

static bool
take_memory(run *r, uint32_t ids)
{
	size_t row = r->body->view.gspace.gdim * sizeof(float);

	r->rows = nv_alloc_array(BLOCK_ROWS, row);
	r->projected = nv_alloc_array(2 * BLOCK_ROWS, row);
	r->codes = nv_alloc_array(BLOCK_ROWS, nv_pq_stride(r->pq));
	r->placed = nv_alloc_array((size_t) ids / 64 + 1, sizeof(*r->placed));
	r->n_placed = ids;
	return r->rows != NULL && r->projected != NULL && r->codes != NULL &&
		   r->placed != NULL;
}

static nv_status
encode_all(run *r, nv_error *err)
{
	nv_store *store = r->body->store;
	uint32_t gdim = r->body->view.gspace.gdim;
	uint32_t ids = nv_store_vertices(store);
	nv_status status = NV_OK;

	if (!take_memory(r, ids))
		return nv_fail(err, NV_ENOMEM, 0, "no memory to encode rows");
	nv_stored_forget(&r->stored);
	r->stored.end = end_of_vectors(store, ids);
	for (uint32_t v = 0; v < ids && status == NV_OK; v++)
	{
		bool found;

		status = read_row(r, v, r->rows + (size_t) r->n * gdim, &r->hash[r->n],
						  &found, err);
		if (status != NV_OK || !found)
			continue;
		r->vertex[r->n++] = v;
		if (r->n == BLOCK_ROWS)
			status = encode_block(r, err);
	}
	return status == NV_OK ? encode_block(r, err) : status;
}

/* --- 4, 5: the switch --- */

/* All who are inside an epoch leave it; they do not wait for us. */
static void
wait_for_others(const run *r)
{
	nv_store *store = r->body->store;
	uint64_t mark = nv_store_mark(store);

	while (!nv_store_passed(store, mark))
		nv_pause(r->engine, WAIT_US);
}

/*
 * Windows are found anew: the default one and that of position seeking at
 * once, others when somebody asks.
 */
static void
reset_windows(nv_body *body)
{
	int bucket = nv_casr_bucket(NV_DEFAULT_K, NV_DEFAULT_LIST);

	nv_casr_reset(body->casr);
	nv_casr_reset(body->casr_insert);
	for (size_t b = 0; b < NV_LENGTH(body->wanted); b++)
	{
		atomic_store(&body->wanted[b], (int) b == bucket);
		atomic_store(&body->wanted_insert[b], 0);
	}
}

/* What the new root says of the graph: all but the codebook as before. */
static nv_status
switch_codes(run *r, nv_error *err)
{
	nv_store *store = r->body->store;
	size_t size = nv_pq_saved_size(r->pq), len;
	uint8_t *codebook = nv_alloc(size);
	const uint8_t *blob = nv_store_get_blob(store, NV_BLOB_META, &len);
	nv_meta_blob meta;
	nv_status status;

	if (codebook == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for the codebook");
	nv_assert(blob != NULL && len == sizeof(meta));
	memcpy(&meta, blob, sizeof(meta));
	meta.pq_rotated = r->report.rotated;
	meta.pq_recall = (float) r->report.recall;
	meta.code_error = (float) r->report.error;
	nv_pq_save(r->pq, codebook);
	status = nv_store_recode_switch(store, codebook, size,
									(const uint8_t *) &meta, sizeof(meta), err);
	free(codebook);
	return status;
}

static nv_status
take_over(run *r, nv_error *err)
{
	nv_body *body = r->body;
	nv_status status;

	/* Nobody else changes or saves description and windows. */
	pthread_mutex_lock(&r->index->checkpoint_lock);
	status = check_stop(r, err);
	if (status == NV_OK)
		status = switch_codes(r, err);
	if (status == NV_OK)
	{
		nv_pq *old = body->pq;

		body->pq = r->pq;
		r->pq = old; /* freed when nobody uses it */
		atomic_store(&body->pq_rotated, r->report.rotated);
		atomic_store(&body->pq_recall, (float) r->report.recall);
		nv_drift_restart(&body->drift, r->report.error);
		reset_windows(body);
		atomic_fetch_add(&body->freed, 1);
		atomic_fetch_add(&r->index->retrained, 1);
		r->replaced = true;
	}
	pthread_mutex_unlock(&r->index->checkpoint_lock);
	return status;
}

/* --- 6: places --- */

static bool
is_placed(const run *r, uint32_t v)
{
	return v < r->n_placed && (r->placed[v / 64] >> v % 64 & 1) != 0;
}

/* Seeks its place by the new codes, unless it is gone or about to go. */
static nv_status
link_anew(run *r, uint32_t v, nv_error *err)
{
	nv_store *store = r->body->store;
	int epoch = nv_store_enter(store);
	nv_status status = NV_OK;

	if (epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	if (nv_body_live(r->body, v) && !nv_body_dying(r->body, v) &&
		(nv_store_edge_word(store, v) & NV_LINKED))
		status = nv_link_again(&r->linker, v, r->stored.row, true, err);
	nv_store_leave(store, epoch);
	/* Nothing but vertices that go around it: it stays where it is. */
	return status == NV_EBUSY ? NV_OK : status;
}

static nv_status
link_all_anew(run *r, nv_error *err)
{
	nv_insert_counters counters = {0};
	uint32_t ids = nv_store_vertices(r->body->store);
	nv_status status = nv_linker_use(&r->linker, r->body, err);

	r->linker.counters = &counters; /* not those of insertions */
	for (uint32_t v = 0; v < ids && status == NV_OK; v++)
	{
		if (is_placed(r, v) || !nv_body_live(r->body, v))
			continue;
		status = link_anew(r, v, err);
		if (++r->linked % REST_LINKS == 0)
			rest(r);
		if (status == NV_OK)
			status = check_stop(r, err);
		if (nv_checkpoint_wanted(r->body))
			nv_engine_wake(r->engine);
	}
	(void) nv_linker_use(&r->linker, NULL, NULL);
	return status;
}

/* With rings that are had for as long as it takes only. */
static nv_status
improve_places(run *r, nv_error *err)
{
	nv_io_method method = (nv_io_method) r->engine->config.io_method;
	nv_status status =
		nv_ring_create(method, NV_SEARCH_BUFFER, &r->linker.ring, err);

	if (status == NV_OK)
		status = nv_ring_create(method, 0, &r->linker.write_ring, err);
	if (status == NV_OK)
		status = link_all_anew(r, err);
	nv_ring_destroy(r->linker.ring);
	nv_ring_destroy(r->linker.write_ring);
	return status;
}

/* --- A run --- */

static nv_status
replace_codes(run *r, nv_error *err)
{
	nv_store *store = r->body->store;
	nv_status status;

	nv_assert(nv_pq_bytes(r->pq) == r->body->pq_bytes);
	status = nv_store_recode_begin(store, r->pq, err);
	if (status != NV_OK)
		return status;
	status = encode_all(r, err);
	if (status == NV_OK)
		status = take_over(r, err);
	if (status != NV_OK)
		nv_store_recode_abort(store);
	wait_for_others(r);
	nv_store_recode_free(store);
	if (status != NV_OK)
		return status;
	atomic_store(&r->engine->retrain_bytes, 0);
	/* What searches by the old codes have told since. */
	reset_windows(r->body);
	nv_engine_wake(r->engine);
	status = nv_index_checkpoint(r->index, err);
	return status == NV_OK ? improve_places(r, err) : status;
}

static nv_status
run_once(run *r, nv_error *err)
{
	nv_status status = nv_stored_open(&r->stored, r->body, err);

	if (status == NV_OK)
		status = train(r, err);
	if (status == NV_OK)
		status = replace_codes(r, err);
	nv_stored_close(&r->stored);
	nv_pq_free(r->pq);
	free(r->rows);
	free(r->projected);
	free(r->placed);
	free(r->codes);
	return status;
}

/* --- The decision --- */

/* Its codes are to be replaced, and no build will do it; index->lock held. */
static bool
is_due(const nv_index *index)
{
	nv_body *body = index->body;
	uint64_t vertices;

	if (body == NULL || index->dropped || !index->loaded ||
		index->pending == NULL || index->build != NULL ||
		(index->state != NV_INDEX_READY && index->state != NV_INDEX_FULL) ||
		atomic_load(&body->given_up) || nv_now_ns() < index->retrain_after_ns)
		return false;
	vertices = nv_body_live_vertices(body);
	return vertices >= NV_PQ_MIN_ROWS &&
		   nv_drift_too_far(&body->drift, vertices) &&
		   !nv_renew_fits(index, vertices + nv_pending_count(index->pending),
						  0);
}

/* Memory for a run; says once what cannot be mended.  index->lock held. */
static bool
reserve(nv_engine *engine, nv_index *index)
{
	uint64_t need =
		nv_retrain_memory(index->body, nv_store_vertices(index->body->store));
	uint64_t limit = atomic_load(&engine->build_memory);

	if (need > limit && !index->body->drift.told)
	{
		index->body->drift.told = true;
		nv_log(NV_LOG_WARNING,
			   "codes of %s no longer suit its rows, but others need %llu MB "
			   "of memory and navis.build_memory is %llu MB: searches load "
			   "more vectors or find fewer rows",
			   index->title, (unsigned long long) (need >> 20) + 1,
			   (unsigned long long) (limit >> 20));
	}
	if (need + atomic_load(&engine->build_bytes) > limit)
		return false;
	atomic_store(&engine->retrain_bytes, need);
	return true;
}

/* An index with a graph, both with a reference, and memory; or NULL. */
static nv_index *
choose(nv_engine *engine, nv_body **body)
{
	nv_index *chosen = NULL;

	if (nv_now_ns() < atomic_load(&engine->renew_after_ns))
		return NULL;
	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES && chosen == NULL; i++)
		for (nv_index *x = engine->table[i]; x != NULL && chosen == NULL;
			 x = x->hash_next)
		{
			pthread_mutex_lock(&x->lock);
			if (is_due(x) && reserve(engine, x))
			{
				atomic_fetch_add(&x->refs, 1);
				*body = x->body;
				nv_body_get(*body);
				chosen = x;
			}
			pthread_mutex_unlock(&x->lock);
		}
	pthread_mutex_unlock(&engine->lock);
	return chosen;
}

/* index is the retrainer's in what is changed here. */
static void
note_failure(const run *r, const nv_error *err)
{
	nv_index *index = r->index;
	uint32_t shift =
		NV_MIN(index->retrain_failures, (uint32_t) MAX_RETRY_SHIFT);

	if (err->status == NV_ECORRUPT)
		nv_index_damaged(index, r->body);
	if (err->status == NV_ECANCELLED)
		return; /* it is looked at again as if nothing had been */
	if (!r->replaced)
	{
		pthread_mutex_lock(&index->lock);
		index->retrain_after_ns = nv_now_ns() + (RETRY_NS << shift);
		index->retrain_failures++;
		pthread_mutex_unlock(&index->lock);
	}
	nv_log(NV_LOG_WARNING,
		   r->replaced ? "codes of %s were replaced, but not all rows linked "
						 "anew: %s"
					   : "codes of %s could not be replaced: %s; they stay as "
						 "they are and it is tried again later",
		   index->title, err->detail);
}

static void
retrain(nv_engine *engine, nv_index *index, nv_body *body)
{
	uint64_t started_ns = nv_now_ns();
	run r = {
		.engine = engine,
		.index = index,
		.body = body,
		.far = NV_DRIFT_FACTOR * nv_drift_trained(&body->drift),
		.worked_ns = started_ns,
	};
	nv_error err = {0};
	nv_status status;

	atomic_store(&index->retraining, true);
	status = run_once(&r, &err);
	atomic_store(&engine->retrain_bytes, 0);
	if (r.replaced)
		index->retrain_failures = 0;
	if (status == NV_OK)
		nv_log(NV_LOG_INFO,
			   "replaced the codebook of %s, encoded its rows and linked %u of "
			   "them anew in %.1f s",
			   index->title, r.linked,
			   (double) (nv_now_ns() - started_ns) / 1e9);
	else
		note_failure(&r, &err);
	atomic_store(&index->retraining, false);
}

/* --- The thread --- */

bool
nv_retrain_next(nv_engine *engine)
{
	nv_body *body;
	nv_index *index = choose(engine, &body);

	if (index == NULL)
		return false;
	retrain(engine, index, body);
	nv_body_put(body);
	nv_index_put(index);
	return true;
}

void *
nv_retrainer_main(void *arg)
{
	nv_engine *engine = arg;

	nv_background_thread();
	/* Without insert threads no row comes that could drift. */
	while (!atomic_load(&engine->stopping) && engine->config.insert_threads > 0)
	{
		(void) nv_retrain_next(engine);
		nv_sleep_unless_stopping(engine, TICK_MS);
	}
	return NULL;
}
