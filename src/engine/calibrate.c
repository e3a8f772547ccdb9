/*
 * calibrate.c
 *		Warm-up of CASR windows: base rows as queries, in the background.
 *
 * The first search that falls into an uncalibrated bucket of (K, L) asks for
 * it and, like all until the warm-up is complete, loads everything.  A bucket
 * is calibrated at its upper bounds.  Users' queries are never observed.
 *
 * Source: navis-system.txt, "CASR"; engine-measurements.md section 3.
 */
#include "engine_internal.h"
#include "search_run.h"

/* A row of graph space as a query that maps to the same place there. */
static void
row_as_query(const nv_view *view, uint32_t vertex, float *query)
{
	const float *row = view->rows + vertex * view->rows_stride;

	for (uint32_t d = 0; d < view->gspace.dim; d++)
		query[d] = row[d] / view->gspace.scale;
}

/* A live vertex and its stored vector; NV_NO_VERTEX when there is none. */
static uint32_t
draw_row(nv_body *body, const nv_view *view, uint64_t *random, uint8_t *buffer,
		 float *vector)
{
	const nv_store_params *params = nv_store_get_params(body->store);

	for (int attempt = 0; attempt < 100; attempt++)
	{
		uint32_t v =
			(uint32_t) nv_random_below(random, nv_store_vertices(body->store));
		uint32_t len, skip;
		uint64_t offset;

		if (!nv_body_live(body, v))
			continue;
		if (view->rows != NULL)
		{
			row_as_query(view, v, vector);
			return v;
		}
		nv_store_vector_extent(body->store, v, &offset, &len, &skip);
		if (nv_file_read(nv_store_vector_file(body->store), buffer, len, offset,
						 NULL) != NV_OK)
			continue;
		if (nv_vector_hash(buffer + skip, params->vector_bytes) !=
			nv_store_vector_hash(body->store, v))
			continue;
		memcpy(vector, buffer + skip, params->vector_bytes);
		return v;
	}
	return NV_NO_VERTEX;
}

/* One observation. */
static nv_status
observe(nv_body *body, const nv_view *view, int bucket, bool seek,
		nv_search *search, nv_ring *ring, uint32_t self, const float *query,
		nv_error *err)
{
	uint32_t vertices = NV_MAX(atomic_load(&body->n_vertices), 1u);
	uint32_t list = nv_body_widen(body, nv_casr_bucket_l(bucket));
	nv_search_options options = {
		.k = NV_MIN(nv_casr_bucket_k(bucket), vertices),
		.list_size = list,
		.beam_width = 4,
		.entrance_list = NV_ENTRANCE_LIST,
		.window = NV_CASR_ALL,
		.exclude = self,
		.seek = seek,
		.user = seek ? NV_CACHE_INSERT : NV_CACHE_SEARCH,
	};
	nv_status status;

	status = nv_search_start(search, view, &options, query, nv_ring_arena(ring),
							 err);
	if (status == NV_OK)
	{
		status = nv_search_run(search, ring);
		if (status != NV_OK && err != NULL)
			*err = *nv_search_error(search);
	}
	if (status == NV_OK)
		nv_casr_observe(seek ? body->casr_insert : body->casr, bucket,
						nv_search_smallest_window(search));
	return status;
}

nv_status
nv_calibrate(nv_body *body, const nv_view *view, int bucket, bool seek,
			 nv_ring *ring, nv_cancel_fn cancel, void *cancel_arg,
			 _Atomic uint64_t *done, nv_error *err)
{
	nv_casr_table *table = seek ? body->casr_insert : body->casr;
	const nv_store_params *params = nv_store_get_params(body->store);
	uint32_t room = nv_store_vector_extent_max(body->store);
	uint8_t *buffer = aligned_alloc(NV_BLOCK, nv_round_up(room, NV_BLOCK));
	float *vector = nv_alloc(params->vector_bytes);
	uint64_t random = nv_random_seed((uint64_t) bucket + 1);
	nv_search *search = NULL;
	bool calibrated = false;
	nv_status status;

	status = buffer != NULL && vector != NULL
				 ? nv_search_create(&search, err)
				 : nv_fail(err, NV_ENOMEM, 0, "no memory to calibrate");
	while (status == NV_OK && !nv_casr_ready(table, bucket))
	{
		uint32_t self;

		if (cancel != NULL && cancel(cancel_arg))
		{
			status = nv_fail(err, NV_ECANCELLED, 0, "calibration cancelled");
			break;
		}
		self = draw_row(body, view, &random, buffer, vector);
		if (self == NV_NO_VERTEX)
		{
			status = nv_fail(err, NV_ENOENT, 0, "no row to calibrate with");
			break;
		}
		status =
			observe(body, view, bucket, seek, search, ring, self, vector, err);
		if (done != NULL)
			atomic_fetch_add(done, 1);
		calibrated = true;
	}
	/* Worth a checkpoint, also where nothing else has changed. */
	if (status == NV_OK && calibrated)
		atomic_store(&body->windows_unsaved, true);
	nv_search_free(search);
	free(buffer);
	free(vector);
	return status;
}

static bool
calibration_stops(void *arg)
{
	nv_body *body = arg;

	return atomic_load(&body->engine->stopping) ||
		   atomic_load(&body->remove_dir);
}

/* The wanted bucket of a body, of searches or of position seeking. */
static bool
find_wanted(nv_body *body, int *bucket, bool *seek)
{
	for (uint32_t b = 0; b < NV_LENGTH(body->wanted); b++)
	{
		*bucket = (int) b;
		*seek = atomic_load(&body->wanted[b]) != 1;
		if (!*seek || atomic_load(&body->wanted_insert[b]) == 1)
			return true;
	}
	return false;
}

/* One wanted bucket of some index, with a reference to its body. */
static nv_body *
next_wanted(nv_engine *engine, int *bucket, bool *seek)
{
	nv_body *found = NULL;

	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES && found == NULL; i++)
		for (nv_index *index = engine->table[i]; index != NULL && found == NULL;
			 index = index->hash_next)
		{
			nv_body *body = nv_index_body(index);

			if (body == NULL)
				continue;
			if (find_wanted(body, bucket, seek))
				found = body;
			else
				nv_body_put(body);
		}
	pthread_mutex_unlock(&engine->lock);
	return found;
}

void *
nv_calibrator_main(void *arg)
{
	nv_engine *engine = arg;
	nv_ring *ring = NULL;
	nv_error err;

	nv_background_thread();
	if (nv_ring_create((nv_io_method) engine->config.io_method,
					   NV_SEARCH_BUFFER, &ring, &err) != NV_OK)
	{
		nv_log(NV_LOG_WARNING, "calibration could not start: %s", err.detail);
		return NULL;
	}
	while (!atomic_load(&engine->stopping))
	{
		int bucket;
		bool seek;
		nv_body *body = next_wanted(engine, &bucket, &seek);

		if (body == NULL)
		{
			struct timespec until;

			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_sec += 1;
			pthread_mutex_lock(&engine->wake_lock);
			if (!atomic_load(&engine->stopping))
				pthread_cond_timedwait(&engine->wake_cond, &engine->wake_lock,
									   &until);
			pthread_mutex_unlock(&engine->wake_lock);
			continue;
		}
		atomic_store(
			seek ? &body->wanted_insert[bucket] : &body->wanted[bucket], 2);
		atomic_store(&body->calibrating, 1);
		if (nv_calibrate(body, &body->view, bucket, seek, ring,
						 calibration_stops, body, NULL, &err) != NV_OK &&
			err.status != NV_ECANCELLED)
			nv_log(NV_LOG_DEBUG, "calibration of \"%s\" gave up: %s", body->dir,
				   err.detail);
		atomic_store(&body->calibrating, 0);
		nv_ring_forget(ring, nv_store_edge_file(body->store));
		nv_ring_forget(ring, nv_store_vector_file(body->store));
		nv_body_put(body);
	}
	nv_ring_destroy(ring);
	return NULL;
}
