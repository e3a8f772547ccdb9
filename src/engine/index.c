/*
 * index.c
 *		The table of indexes, and the short requests: INSERT, DELETE, INFO.
 */
#include "engine_internal.h"

static bool
same_key(const nv_key *a, const nv_key *b)
{
	return a->system_id == b->system_id && a->database == b->database &&
		   memcmp(a->identity, b->identity, sizeof(a->identity)) == 0;
}

static uint32_t
slot_of(const nv_key *key)
{
	uint64_t h;

	memcpy(&h, key->identity, sizeof(h)); /* random by construction */
	return (uint32_t) (h % NV_MAX_INDEXES);
}

static nv_index *
index_new(nv_engine *engine, const nv_key *key)
{
	nv_index *index = nv_alloc(sizeof(*index));

	if (index == NULL)
		return NULL;
	atomic_init(&index->refs, 1); /* the table's */
	index->engine = engine;
	index->key = *key;
	index->state = NV_INDEX_OPENING;
	index->next_generation = 1;
	atomic_store(&index->checkpointed_ns, nv_now_ns());
	nv_index_used(index);
	pthread_mutex_init(&index->lock, NULL);
	pthread_mutex_init(&index->load_lock, NULL);
	pthread_mutex_init(&index->checkpoint_lock, NULL);
	return index;
}

nv_index *
nv_index_get(nv_engine *engine, const nv_key *key, bool create)
{
	nv_index *index;

	pthread_mutex_lock(&engine->lock);
	for (index = engine->table[slot_of(key)]; index != NULL;
		 index = index->hash_next)
		if (same_key(&index->key, key))
			break;
	if (index == NULL && create && engine->n_indexes < NV_MAX_INDEXES &&
		(index = index_new(engine, key)) != NULL)
	{
		index->hash_next = engine->table[slot_of(key)];
		engine->table[slot_of(key)] = index;
		engine->n_indexes++;
	}
	if (index != NULL)
		atomic_fetch_add(&index->refs, 1);
	pthread_mutex_unlock(&engine->lock);
	return index;
}

void
nv_index_put(nv_index *index)
{
	if (index == NULL || atomic_fetch_sub(&index->refs, 1) != 1)
		return;
	nv_assert(index->build == NULL);
	nv_passes_free(index);
	nv_body_put(index->body);
	nv_pending_free(index->pending);
	pthread_mutex_destroy(&index->lock);
	pthread_mutex_destroy(&index->load_lock);
	pthread_mutex_destroy(&index->checkpoint_lock);
	free(index);
}

void
nv_index_remove(nv_index *index)
{
	nv_engine *engine = index->engine;
	bool found = false;

	pthread_mutex_lock(&engine->lock);
	for (nv_index **p = &engine->table[slot_of(&index->key)]; *p != NULL;
		 p = &(*p)->hash_next)
		if (*p == index)
		{
			*p = index->hash_next;
			engine->n_indexes--;
			found = true;
			nv_stats_index_gone(index);
			break;
		}
	pthread_mutex_unlock(&engine->lock);
	if (found)
		nv_index_put(index);
}

nv_body *
nv_index_body(nv_index *index)
{
	nv_body *body;

	pthread_mutex_lock(&index->lock);
	body = index->body;
	if (body != NULL)
		nv_body_get(body);
	pthread_mutex_unlock(&index->lock);
	return body;
}

/*
 * The answer of a search may lack rows: the exact scan has them.  Of a graph
 * that is the index's no more this says nothing: whatever was opened in its
 * place writes to the same files (nv_store_give_up).
 */
void
nv_index_damaged(nv_index *index, nv_body *body)
{
	bool current;

	pthread_mutex_lock(&index->lock);
	current = index->body == body;
	if (current && index->state == NV_INDEX_READY)
		index->state = NV_INDEX_DAMAGED;
	pthread_mutex_unlock(&index->lock);
	if (current && atomic_fetch_add(&body->damaged, 1) == 0)
		nv_log(NV_LOG_WARNING,
			   "sidecar \"%s\" of %s is damaged; scans are exact until it is "
			   "rebuilt",
			   body->dir, index->title);
}

void
nv_index_describe(nv_index *index, const nv_index_params *params,
				  const char *title)
{
	index->params = *params;
	if (title[0] != '\0')
		snprintf(index->title, sizeof(index->title), "%s", title);
	else
		snprintf(index->title, sizeof(index->title),
				 "index with OID %u of the database with OID %u",
				 params->index_oid, index->key.database);
}

void
nv_index_set_lsn(nv_index *index, uint64_t lsn)
{
	uint64_t old = atomic_load(&index->lsn);

	while (old < lsn && !atomic_compare_exchange_weak(&index->lsn, &old, lsn))
		;
}

static uint64_t
cut_hook(void *arg)
{
	return atomic_load(&((nv_index *) arg)->lsn);
}

static nv_status
flush_hook(void *arg, uint64_t lsn, nv_error *err)
{
	nv_index *index = arg;
	const nv_port *port = index->engine->port;

	return lsn == 0 ? NV_OK : port->flush_wal(port->arg, lsn, err);
}

static nv_status
save_calibration(nv_body *body, nv_error *err)
{
	size_t search = nv_casr_saved_size(body->casr);
	size_t insert = nv_casr_saved_size(body->casr_insert);
	nv_calibration_head head;
	uint8_t *bytes = nv_alloc(sizeof(head) + search + insert);
	nv_status status;

	if (bytes == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for calibration");
	/* A table that grows meanwhile saves nothing: room is too small then. */
	search = nv_casr_save(body->casr, bytes + sizeof(head), search);
	insert =
		nv_casr_save(body->casr_insert, bytes + sizeof(head) + search, insert);
	head.search_bytes = (uint32_t) search;
	head.insert_bytes = (uint32_t) insert;
	memcpy(bytes, &head, sizeof(head));
	status = nv_store_set_blob(body->store, NV_BLOB_CALIBRATION, bytes,
							   sizeof(head) + search + insert, err);
	free(bytes);
	return status;
}

/* If it changed; its members are linked, hence linked in the cut to come. */
static nv_status
save_entrance(nv_body *body, nv_error *err)
{
	nv_entrance *entrance = body->entrance; /* checkpoint_lock is held */
	uint64_t changes = nv_entrance_changes(entrance);
	uint8_t *bytes;
	size_t size;
	nv_status status;

	if (changes == body->entrance_saved)
		return NV_OK;
	bytes = nv_entrance_copy(entrance, &size);
	if (bytes == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %zu bytes", size);
	status = nv_store_set_blob(body->store, NV_BLOB_ENTRANCE, bytes, size, err);
	free(bytes);
	if (status == NV_OK)
		body->entrance_saved = changes;
	return status;
}

nv_status
nv_index_checkpoint(nv_index *index, nv_error *err)
{
	nv_checkpoint_hooks hooks = {index, cut_hook, flush_hook};
	nv_body *body = nv_index_body(index);
	nv_status status;
	uint64_t start;

	if (body == NULL)
		return NV_OK;
	pthread_mutex_lock(&index->checkpoint_lock);
	start = nv_now_ns();
	atomic_store(&body->windows_unsaved, false);
	status = save_calibration(body, err);
	if (status == NV_OK)
		status = save_entrance(body, err);
	atomic_store(&body->unsaved, 0);
	if (status == NV_OK)
		status = nv_store_checkpoint(body->store, &hooks, err);
	atomic_store(&index->checkpointed_ns, nv_now_ns());
	nv_index_used(index);
	nv_stats_checkpoint(index, status == NV_OK, nv_now_ns() - start);
	pthread_mutex_unlock(&index->checkpoint_lock);
	nv_body_put(body);
	return status;
}

/* --- INSERT, DELETE ---------------------------------------------------------
 */

nv_status
nv_index_drop_element(nv_index *index, uint32_t element, nv_error *err)
{
	nv_element_ref ref = {.element = element};
	uint32_t vertex =
		nv_store_element(index->body->store, element, &ref.generation);
	nv_status status = nv_body_drop_element(index->body, element, err);

	if (status == NV_OK && vertex != NV_NO_VERTEX && index->build != NULL)
		nv_build_note_delete(index->build, ref);
	return status;
}

/* A running build must not keep the element's older row, if it is pending. */
static void
note_replaced(nv_index *index, const nv_journal_entry *entry)
{
	nv_element_ref ref = {.element = entry->element};

	if (index->build != NULL &&
		nv_pending_generation(index->pending, ref.element, &ref.generation) &&
		ref.generation != entry->generation)
		nv_build_note_delete(index->build, ref);
}

/* Of the same element; generations go round. */
static bool
is_later(uint32_t generation, uint32_t other)
{
	return (int32_t) (generation - other) > 0;
}

/*
 * A row that was fetched from the table some time ago: VACUUM may have removed
 * it since, and its element may have come to another row that we have already.
 */
static bool
is_outdated(const nv_index *index, const nv_req_insert *in)
{
	uint32_t generation;

	if (!in->from_heap)
		return false;
	if (nv_pending_generation(index->pending, in->element, &generation))
		return is_later(generation, in->generation);
	return index->body != NULL && nv_passes_vouch(index, in->element) &&
		   nv_store_element(index->body->store, in->element, &generation) !=
			   NV_NO_VERTEX &&
		   is_later(generation, in->generation);
}

/* The row gets a place among the unlinked ones; index->lock is held. */
static nv_status
insert_locked(nv_index *index, const nv_req_insert *in, const float *vector,
			  nv_error *err)
{
	nv_journal_entry entry = {in->element, in->generation, in->hash};
	nv_status status;

	if (index->dropped || index->pending == NULL)
		return nv_fail(err, NV_ENOENT, 0, "index is not open");
	if (in->dim != index->params.dim)
		return nv_fail(err, NV_EINVAL, 0,
					   "vector has %u dimensions, index has %u", in->dim,
					   index->params.dim);
	if (is_outdated(index, in))
		return NV_OK;
	if (index->body != NULL)
	{
		if (nv_body_has(index->body, in->element, in->generation, in->hash))
			return NV_OK;
		/* Another generation of the element: the old row is gone. */
		status = nv_index_drop_element(index, in->element, err);
		if (status != NV_OK)
			return status;
	}
	if (nv_index_rests(index))
		return nv_fail(err, NV_ELIMIT, 0,
					   "unlinked rows have just given way to others'");
	note_replaced(index, &entry);
	nv_pending_set_limit(index->pending, nv_index_pending_limit(index));
	status = nv_pending_add(index->pending, &entry, vector, err);
	atomic_fetch_add(&index->arrived, 1);
	/* A row of a vertex that is there needs no seek: it need not wait for
	   those that do.  What is equal is decided when it is linked. */
	if (status == NV_OK && in->unchanged && index->body != NULL &&
		nv_equal_expect(index->body->equal, index->body->store, in->hash))
		nv_pending_hurry(index->pending, &entry);
	return status;
}

/*
 * Where there is no room for the row, others may make some; if they do not, the
 * index does without its unlinked rows.
 */
static nv_status
insert_or_give_up(nv_index *index, const nv_req_insert *in, const float *vector,
				  nv_error *err)
{
	nv_status status;

	pthread_mutex_lock(&index->lock);
	status = insert_locked(index, in, vector, err);
	if (status == NV_ELIMIT)
	{
		pthread_mutex_unlock(&index->lock);
		(void) nv_index_make_room(index,
								  nv_pending_row_bytes(index->params.dim));
		pthread_mutex_lock(&index->lock);
		status = insert_locked(index, in, vector, err);
	}
	if (status == NV_ELIMIT || status == NV_ENOMEM)
		nv_index_become_full(index, err->detail);
	pthread_mutex_unlock(&index->lock);
	return status;
}

/*
 * A row is missing of which its inserter was not told: until the index has been
 * compared with its journal again nobody searches it.
 */
static void
doubt(nv_index *index)
{
	pthread_mutex_lock(&index->lock);
	nv_index_lacks_row(index);
	if (index->state == NV_INDEX_READY)
		index->state = NV_INDEX_OPENING;
	pthread_mutex_unlock(&index->lock);
}

void
nv_request_insert(nv_engine *engine, nv_request *request)
{
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_error err = {0};
	nv_status status;

	if (index == NULL)
		status = nv_fail(&err, NV_ENOENT, 0, "index is not open");
	else if (request->u.insert.dim > NV_MAX_DIM)
		status = nv_fail(&err, NV_EINVAL, 0, "vector has %u dimensions",
						 request->u.insert.dim);
	else
	{
		/* Before it can be linked and so be part of a checkpoint. */
		nv_index_set_lsn(index, request->u.insert.lsn);
		nv_index_used(index);
		status = insert_or_give_up(index, &request->u.insert,
								   (const float *) request->data, &err);
		if (status == NV_OK)
			nv_insert_wake(engine);
		else if (request->u.insert.posted)
			doubt(index);
		nv_places_used(engine, index, request, status == NV_OK);
	}
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}

static nv_status
delete_locked(nv_index *index, const nv_element_ref *refs, uint32_t n,
			  nv_error *err)
{
	for (uint32_t i = 0; i < n; i++)
	{
		uint32_t generation;
		nv_status status = NV_OK;

		if (index->pending != NULL)
			nv_pending_remove(index->pending, refs[i].element,
							  refs[i].generation);
		if (index->body != NULL)
		{
			nv_store_element(index->body->store, refs[i].element, &generation);
			if (generation == refs[i].generation)
				status =
					nv_body_drop_element(index->body, refs[i].element, err);
		}
		if (status != NV_OK)
			return status;
		if (index->build != NULL)
			nv_build_note_delete(index->build, refs[i]);
	}
	return NV_OK;
}

void
nv_request_delete(nv_engine *engine, nv_request *request)
{
	nv_index *index = nv_index_get(engine, &request->key, false);
	uint32_t n = request->u.del.n;
	nv_error err = {0};
	nv_status status;

	if (index == NULL)
		status = nv_fail(&err, NV_ENOENT, 0, "index is not open");
	else if (n > NV_REQUEST_DATA / sizeof(nv_element_ref))
		status = nv_fail(&err, NV_EINVAL, 0, "%u elements in one request", n);
	else
	{
		/* Before a checkpoint can be without them. */
		nv_index_set_lsn(index, request->u.del.lsn);
		pthread_mutex_lock(&index->lock);
		status = delete_locked(index, (const nv_element_ref *) request->data, n,
							   &err);
		pthread_mutex_unlock(&index->lock);
	}
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}

/* --- INFO --------------------------------------------------------------------
 */

static uint32_t
info_buckets(nv_body *body, nv_bucket_info *out)
{
	uint32_t n = 0;

	for (int b = 0; b < NV_CASR_K_BUCKETS * NV_CASR_L_BUCKETS; b++)
	{
		uint32_t observed = nv_casr_observed(body->casr, b);

		if (observed == 0)
			continue;
		out[n].k_bound = nv_casr_bucket_k(b);
		out[n].list_bound = nv_casr_bucket_l(b);
		out[n].observed = observed;
		out[n].ready = nv_casr_ready(body->casr, b);
		out[n].p90 = nv_casr_window(body->casr, b, 90);
		out[n].p99 = nv_casr_window(body->casr, b, 99);
		out[n].p100 = nv_casr_window(body->casr, b, 100);
		out[n].unused = 0;
		n++;
	}
	return n;
}

/* The windows of position seeking and of the default searches. */
static void
info_windows(nv_body *body, nv_req_info *info)
{
	const nv_config *config = &body->engine->config;
	int bucket = nv_casr_bucket(NV_DEFAULT_K, config->insert_list_size);

	info->window_insert = nv_casr_window(body->casr_insert, bucket,
										 config->casr_percentile_insert);
	bucket = nv_casr_bucket(NV_DEFAULT_K, NV_DEFAULT_LIST);
	info->window_search = nv_casr_window(
		body->casr, bucket,
		info->percentile >= 1 && info->percentile <= 100 ? info->percentile
														 : 99);
	info->search_observed = nv_casr_observed(body->casr, bucket);
}

/* Not while all reader slots are taken: it may be replaced (consolidate.c). */
static void
info_entrance(nv_body *body, nv_req_info *info)
{
	int epoch = nv_store_enter(body->store);
	const nv_entrance *entrance = body->entrance;

	if (epoch < 0)
		return;
	info->memory_entrance = nv_entrance_memory(entrance);
	info->entrance_members = nv_entrance_count(entrance);
	info->entrance_live = nv_entrance_live(entrance);
	nv_store_leave(body->store, epoch);
}

static void
info_body(nv_body *body, nv_req_info *info, uint8_t *data)
{
	nv_store_stats stats;

	nv_store_get_stats(body->store, &stats);
	info->has_graph = 1;
	info->vertices = atomic_load(&body->n_vertices);
	info->elements = nv_store_elements(body->store);
	info->deleted = atomic_load(&body->dead_vertices);
	info->edge_pages = stats.edge_pages;
	info->free_pages = stats.free_pages;
	info->edge_bytes = stats.edge_bytes;
	info->vector_bytes = stats.vector_bytes;
	info->state_bytes = stats.state_bytes;
	info->published_lsn = stats.published_lsn;
	info->published_sequence = stats.published_sequence;
	info->memory_codes = stats.memory_codes;
	info->memory_map = stats.memory_map;
	info->memory_elements =
		stats.memory_elements + nv_numbers_memory(&body->first) +
		nv_numbers_memory(&body->next) + nv_numbers_memory(&body->prev);
	info->memory_other = stats.memory_other + nv_equal_memory(body->equal) +
						 nv_body_codebooks_memory(body);
	info->pq_bytes = body->pq_bytes;
	info->pq_rotated = atomic_load(&body->pq_rotated);
	info->pq_recall = atomic_load(&body->pq_recall);
	info->average_degree = body->average_degree;
	info->placement_quality = body->placement_quality;
	info->damaged = atomic_load(&body->damaged);
	info->io_direct = nv_file_is_direct(nv_store_edge_file(body->store));
	info->n_buckets = info_buckets(body, (nv_bucket_info *) data);
	info_entrance(body, info);
	info->retired_slots = stats.retired_slots;
	info->live_slots = stats.live_slots;
	info->built = body->built;
	info->code_error = (float) nv_drift_trained(&body->drift);
	info->drift = (float) nv_drift_factor(&body->drift);
	info->rmw_pages = stats.rmw_pages;
	info->rmw_hits_search = stats.rmw_hits[NV_CACHE_SEARCH];
	info->rmw_hits_insert =
		stats.rmw_hits[NV_CACHE_INSERT] + stats.rmw_hits[NV_CACHE_PASSING];
	info->pages_written = stats.pages_written;
	info->page_writes = stats.page_writes;
	info_windows(body, info);
	info->pages_reopened = stats.pages_reopened;
	info->write_waits = stats.write_waits;
}

static void
info_inserted(nv_index *index, nv_req_info *info)
{
	nv_insert_counters *c = &index->inserted;

	info->inserted = atomic_load(&c->rows);
	info->inserted_equal = atomic_load(&c->equal);
	info->seeks = atomic_load(&c->seeks);
	info->seek_pages = atomic_load(&c->pages);
	info->seek_reads = atomic_load(&c->reads);
	info->seek_explored = atomic_load(&c->explored);
	info->seek_vectors = atomic_load(&c->vectors);
	info->relinks = atomic_load(&c->relinks);
	info->overflows = atomic_load(&c->overflows);
	info->moved = atomic_load(&c->moved);
	info->promotions = atomic_load(&c->promotions);
	info->insert_failures = atomic_load(&c->failures);
	info->insert_reserved = atomic_load(&index->reserved);
}

static void
info_consolidated(nv_index *index, nv_req_info *info)
{
	nv_consolidate_counters *c = &index->consolidated;

	info->consolidating = atomic_load(&c->phase);
	info->consolidations = atomic_load(&c->runs);
	info->freed_vertices = atomic_load(&c->freed);
	info->rewired_lists = atomic_load(&c->rewired);
}

static void
info_engine(nv_engine *engine, nv_req_info *info)
{
	nv_cache_stats cache;

	nv_cache_get_stats(engine->cache, &cache);
	info->cache_bytes = cache.bytes;
	info->cache_limit = engine->config.cache_size;
	info->cache_lookups = cache.lookups;
	info->cache_hits = cache.hits;
	info->cache_promotions = cache.promotions;
	for (uint32_t i = 0; i < engine->n_searchers; i++)
	{
		const nv_searcher *s = &engine->searchers[i];

		info->search_threads += atomic_load(&s->state) == NV_SEARCHER_READY;
		info->io_uring += atomic_load(&s->uring);
	}
	info->insert_threads = engine->n_inserters;
	info->simd = nv_simd_in_use();
	pthread_mutex_lock(&engine->cursor_lock);
	info->cursors = engine->n_cursors;
	pthread_mutex_unlock(&engine->cursor_lock);
}

void
nv_request_info(nv_engine *engine, nv_request *request)
{
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_req_info *info = &request->u.info;
	double percentile = info->percentile;
	nv_body *body;

	memset(info, 0, sizeof(*info));
	info->percentile = percentile;
	info_engine(engine, info);
	if (index == NULL)
	{
		nv_answer(engine, request, NV_OK, NULL); /* NV_INDEX_ABSENT */
		return;
	}
	pthread_mutex_lock(&index->lock);
	info->state = index->state;
	info->followed = index->followed;
	info->building = index->build != NULL;
	nv_build_progress(index, info);
	info->params = index->params;
	body = index->body;
	if (body != NULL)
		nv_body_get(body);
	if (index->pending != NULL)
	{
		info->pending_rows = nv_pending_count(index->pending);
		info->pending_bytes =
			info->pending_rows * nv_pending_row_bytes(index->params.dim);
		info->insert_queue = nv_pending_waiting(index->pending);
	}
	info->renewal = atomic_load(&index->renewal);
	info->renewals = index->plan.renewals;
	info->renewals_failed = index->plan.all_failures;
	info->retraining = atomic_load(&index->retraining);
	info->retrained = atomic_load(&index->retrained);
	pthread_mutex_unlock(&index->lock);
	info->pending_limit = engine->config.pending_memory;
	info_inserted(index, info);
	nv_stats_index(index, info);
	info_consolidated(index, info);
	if (body != NULL)
		info_body(body, info, request->data);
	nv_body_put(body);
	nv_index_put(index);
	nv_answer(engine, request, NV_OK, NULL);
}
