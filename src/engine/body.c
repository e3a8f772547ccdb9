/*
 * body.c
 *		One finished graph of an index: store, codebook, entrance graph,
 *		calibration, and the chains that lead from a vertex to its elements.
 *
 * Elements come at the head of a chain and go from anywhere in it; a freed
 * element may come back in another chain.  So a link that a reader follows may
 * lead anywhere by the time it is there.  Readers therefore take a whole chain
 * at once, and what they got counts if no chain changed meanwhile (a sequence
 * lock); who fails too often holds changes up.  What becomes of the elements
 * afterwards the element map tells.
 */
#include "engine_internal.h"

uint32_t
nv_widen(uint32_t list_size, uint64_t dead, uint64_t all)
{
	uint64_t live = all - dead, wide;

	nv_assert(dead <= all);
	if (dead == 0)
		return list_size;
	if (live == 0)
		live = 1;
	/* ceil(list / (1 - dead / all)) + 10, in integers */
	wide = ((uint64_t) list_size * all + live - 1) / live + 10;
	return (uint32_t) NV_MIN(wide, (uint64_t) NV_MAX_VERTICES);
}

uint64_t
nv_body_codebooks_memory(nv_body *body)
{
	int epoch = nv_store_enter(body->store);
	nv_vertex_codes codes;
	uint64_t bytes;

	if (epoch < 0)
		return 0;
	nv_store_codings(body->store, &codes);
	bytes = nv_pq_memory(nv_coding_pq(codes.coding));
	if (codes.next != NULL)
		bytes += nv_pq_memory(nv_coding_pq(codes.next));
	nv_store_leave(body->store, epoch);
	return bytes;
}

uint32_t
nv_body_widen(const nv_body *body, uint32_t list_size)
{
	uint64_t dead = atomic_load(&body->dead_vertices);
	uint32_t vertices = NV_MAX(atomic_load(&body->n_vertices), 1u);

	/* Both change meanwhile. */
	return nv_widen(list_size, NV_MIN(dead, vertices), vertices);
}

bool
nv_body_live(const nv_body *body, uint32_t vertex)
{
	return nv_numbers_get(&body->first, vertex) != NV_NO_ELEMENT;
}

bool
nv_body_dying(nv_body *body, uint32_t vertex)
{
	nv_dying *dying = atomic_load(&body->dying);

	return dying != NULL && vertex < dying->n &&
		   (atomic_load(&dying->bits[vertex / 64]) >> vertex % 64 & 1) != 0;
}

static bool
body_live(void *arg, uint32_t vertex)
{
	return nv_body_live(arg, vertex);
}

bool
nv_body_has(const nv_body *body, uint32_t element, uint32_t generation,
			uint64_t hash)
{
	uint32_t found;
	uint32_t vertex = nv_store_element(body->store, element, &found);

	return vertex != NV_NO_VERTEX && found == generation &&
		   nv_store_vector_hash(body->store, vertex) == hash &&
		   (nv_store_edge_word(body->store, vertex) & NV_LINKED) != 0;
}

/* --- Changing chains
 * ---------------------------------------------------------- */

static void
begin_change(nv_body *body)
{
	pthread_mutex_lock(&body->chain_lock);
	atomic_fetch_add(&body->chain_changes, 1);
}

static void
end_change(nv_body *body)
{
	atomic_fetch_add(&body->chain_changes, 1);
	pthread_mutex_unlock(&body->chain_lock);
}

/* Puts an element at the head of a chain there is room for. */
static void
chain_in(nv_body *body, uint32_t element, uint32_t vertex)
{
	nv_number *first = nv_numbers_at(&body->first, vertex);
	uint32_t head = atomic_load(first);

	atomic_store(nv_numbers_at(&body->next, element), head);
	atomic_store(nv_numbers_at(&body->prev, element), NV_NO_ELEMENT);
	if (head != NV_NO_ELEMENT)
		atomic_store(nv_numbers_at(&body->prev, head), element);
	atomic_store(first, element);
}

static void
chain_out(nv_body *body, uint32_t element, uint32_t vertex)
{
	uint32_t next = nv_numbers_get(&body->next, element);
	uint32_t prev = nv_numbers_get(&body->prev, element);

	if (prev != NV_NO_ELEMENT)
		atomic_store(nv_numbers_at(&body->next, prev), next);
	else
		atomic_store(nv_numbers_at(&body->first, vertex), next);
	if (next != NV_NO_ELEMENT)
		atomic_store(nv_numbers_at(&body->prev, next), prev);
}

/* Room for the chain links of a vertex and an element. */
static bool
chain_room(nv_body *body, uint32_t element, uint32_t vertex)
{
	return nv_numbers_grow(&body->first, (uint64_t) vertex + 1) &&
		   nv_numbers_grow(&body->next, (uint64_t) element + 1) &&
		   nv_numbers_grow(&body->prev, (uint64_t) element + 1);
}

static nv_status
no_chain_memory(uint64_t elements, nv_error *err)
{
	return nv_fail(err, NV_ENOMEM, 0,
				   "no memory for the element chains of %llu elements",
				   (unsigned long long) elements);
}

nv_status
nv_body_add_element(nv_body *body, uint32_t element, uint32_t generation,
					uint32_t vertex, nv_error *err)
{
	uint32_t old;
	nv_status status;
	bool was_dead;

	nv_assert(nv_store_element(body->store, element, &old) == NV_NO_VERTEX);
	if (!chain_room(body, element, vertex))
		return no_chain_memory((uint64_t) element + 1, err);
	was_dead = !nv_body_live(body, vertex);
	begin_change(body);
	status =
		nv_store_set_element(body->store, element, vertex, generation, err);
	if (status == NV_OK)
		chain_in(body, element, vertex);
	end_change(body);
	if (status == NV_OK && was_dead)
		atomic_fetch_sub(&body->dead_vertices, 1);
	return status;
}

void
nv_body_count_vertex(nv_body *body)
{
	atomic_fetch_add(&body->n_vertices, 1);
	atomic_fetch_add(&body->dead_vertices, 1);
}

nv_status
nv_body_drop_element(nv_body *body, uint32_t element, nv_error *err)
{
	uint32_t generation, vertex;
	nv_status status;

	vertex = nv_store_element(body->store, element, &generation);
	if (vertex == NV_NO_VERTEX)
		return NV_OK;
	begin_change(body);
	status = nv_store_set_element(body->store, element, NV_NO_VERTEX,
								  generation, err);
	if (status == NV_OK)
		chain_out(body, element, vertex);
	end_change(body);
	if (status != NV_OK || nv_body_live(body, vertex))
		return status;
	atomic_fetch_add(&body->dead_vertices, 1);
	if (body->entrance != NULL)
		nv_entrance_drop(body->entrance, vertex);
	return NV_OK;
}

nv_status
nv_body_decode(nv_body *body, uint32_t vertex, float *place, nv_error *err)
{
	int epoch = nv_store_enter(body->store);
	const nv_coding *coding = nv_store_coding(body->store);

	if (epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	nv_pq_decode(nv_coding_pq(coding), nv_coding_code(coding, vertex), place);
	nv_store_leave(body->store, epoch);
	return NV_OK;
}

uint64_t
nv_body_live_vertices(nv_body *body)
{
	uint64_t dead = atomic_load(&body->dead_vertices);
	uint64_t vertices = atomic_load(&body->n_vertices);

	return vertices - NV_MIN(dead, vertices);
}

/* --- Reading chains
 * ----------------------------------------------------------- */

#define WALK_TRIES 8 /* before a walk holds changes up */

/* Walks the chain; false: no memory.  What it got counts if nothing changed. */
static bool
walk(const nv_body *body, uint32_t vertex, uint64_t changes,
	 nv_element_ref **refs, uint32_t *room, uint32_t *n)
{
	uint32_t e = nv_numbers_get(&body->first, vertex);

	*n = 0;
	while (e != NV_NO_ELEMENT)
	{
		nv_element_ref *grown;

		if (*n == *room)
		{
			grown = realloc(*refs, NV_MAX(2 * *room, 4u) * sizeof(*grown));
			if (grown == NULL)
				return false;
			*refs = grown;
			*room = NV_MAX(2 * *room, 4u);
		}
		(*refs)[*n].element = e;
		(void) nv_store_element(body->store, e, &(*refs)[*n].generation);
		(*n)++;
		e = nv_numbers_get(&body->next, e);
		/* A chain that changes may lead in a circle. */
		if (*n % 64 == 0 && atomic_load(&body->chain_changes) != changes)
			break;
	}
	return true;
}

bool
nv_body_elements(nv_body *body, uint32_t vertex, nv_element_ref **refs,
				 uint32_t *room, uint32_t *n)
{
	bool memory = true;

	for (int i = 0; i < WALK_TRIES && memory; i++)
	{
		uint64_t changes = atomic_load(&body->chain_changes);

		if (changes % 2 != 0)
			continue;
		memory = walk(body, vertex, changes, refs, room, n);
		if (atomic_load(&body->chain_changes) == changes)
			return memory;
	}
	pthread_mutex_lock(&body->chain_lock);
	memory =
		walk(body, vertex, atomic_load(&body->chain_changes), refs, room, n);
	pthread_mutex_unlock(&body->chain_lock);
	return memory;
}

/* --- Making a body
 * ------------------------------------------------------------ */

/*
 * Chains from the element map, lowest element first.  An element whose vertex
 * is not linked is as if absent.
 */
static nv_status
build_chains(nv_body *body, nv_error *err)
{
	uint32_t vertices = nv_store_vertices(body->store), linked = 0;
	uint64_t elements = nv_store_elements(body->store);

	if (!nv_numbers_grow(&body->first, vertices) ||
		!nv_numbers_grow(&body->next, elements) ||
		!nv_numbers_grow(&body->prev, elements))
		return no_chain_memory(elements, err);
	for (uint64_t i = elements; i > 0; i--)
	{
		uint32_t e = (uint32_t) (i - 1), generation;
		uint32_t v = nv_store_element(body->store, e, &generation);

		if (v == NV_NO_VERTEX)
			continue;
		if (v >= vertices)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "element %u names vertex %u of %u", e, v, vertices);
		if (nv_store_edge_word(body->store, v) & NV_LINKED)
			chain_in(body, e, v);
		else
		{
			nv_status status = nv_store_set_element(
				body->store, e, NV_NO_VERTEX, generation, err);

			if (status != NV_OK)
				return status;
		}
	}
	for (uint32_t v = 0; v < vertices; v++)
	{
		bool is_linked = nv_store_edge_word(body->store, v) & NV_LINKED;

		linked += is_linked;
		if (nv_body_live(body, v))
			continue;
		atomic_fetch_add(&body->dead_vertices, is_linked);
		nv_entrance_drop(body->entrance, v);
	}
	atomic_store(&body->n_vertices, linked);
	return NV_OK;
}

/* Windows of both kinds; what cannot be read costs a warm-up, nothing else. */
static void
load_calibration(nv_body *body)
{
	nv_calibration_head head;
	size_t len;
	const uint8_t *blob =
		nv_store_get_blob(body->store, NV_BLOB_CALIBRATION, &len);

	if (blob == NULL || len < sizeof(head))
		return;
	memcpy(&head, blob, sizeof(head));
	if ((uint64_t) head.search_bytes + head.insert_bytes != len - sizeof(head))
		return;
	blob += sizeof(head);
	if (nv_casr_load(body->casr, blob, head.search_bytes, NULL) != NV_OK)
		nv_casr_reset(body->casr);
	if (nv_casr_load(body->casr_insert, blob + head.search_bytes,
					 head.insert_bytes, NULL) != NV_OK)
		nv_casr_reset(body->casr_insert);
}

/* Everything that the blobs hold. */
static nv_status
load_blobs(nv_body *body, nv_error *err)
{
	const nv_store_params *sp = nv_store_get_params(body->store);
	nv_meta_blob meta;
	const uint8_t *blob;
	nv_entrance *entrance = NULL;
	nv_status status;
	size_t len;

	blob = nv_store_get_blob(body->store, NV_BLOB_META, &len);
	if (blob == NULL || len != sizeof(meta))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "description of the graph has %zu bytes, expected %zu",
					   len, sizeof(meta));
	memcpy(&meta, blob, sizeof(meta));
	if (meta.version != NV_META_VERSION)
		return nv_fail(err, NV_EVERSION, 0,
					   "description of the graph has version %u, expected %u",
					   meta.version, NV_META_VERSION);
	if (meta.medoid >= nv_store_vertices(body->store) ||
		meta.gspace.dim != sp->dim ||
		meta.gspace.gdim !=
			nv_gspace_dim((nv_metric) meta.gspace.metric, sp->dim))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "description of the graph does not fit its store");
	blob = nv_store_get_blob(body->store, NV_BLOB_CODEBOOK, &len);
	status = nv_pq_load(blob, len, &body->pq, err);
	if (status != NV_OK)
		return status;
	if (nv_pq_gdim(body->pq) != meta.gspace.gdim ||
		nv_pq_stride(body->pq) != sp->code_stride)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook does not fit the store's codes");
	nv_store_use_pq(body->store, body->pq);
	body->pq_bytes = nv_pq_bytes(body->pq);
	blob = nv_store_get_blob(body->store, NV_BLOB_ENTRANCE, &len);
	status = nv_entrance_load(blob, len, nv_store_vertices(body->store),
							  meta.gspace.gdim, &entrance, err);
	if (status != NV_OK)
		return status;
	atomic_store(&body->entrance, entrance);
	load_calibration(body);
	body->params = meta.params;
	body->view.gspace = meta.gspace;
	body->view.medoid = meta.medoid;
	atomic_store(&body->pq_rotated, meta.pq_rotated);
	atomic_store(&body->pq_recall, meta.pq_recall);
	body->average_degree = meta.average_degree;
	body->placement_quality = meta.placement_quality;
	body->built = meta.built;
	nv_drift_start(&body->drift, meta.code_error);
	return NV_OK;
}

static void
body_free(nv_body *body)
{
	nv_store_close(body->store);
	nv_pq_free(body->pq);
	nv_entrance_free(body->entrance);
	nv_casr_table_free(body->casr);
	nv_casr_table_free(body->casr_insert);
	nv_numbers_free(&body->first);
	nv_numbers_free(&body->next);
	nv_numbers_free(&body->prev);
	nv_equal_free(body->equal);
	pthread_mutex_destroy(&body->drift.lock);
	nv_entrance_free(body->left_entrance);
	for (nv_dying *dying = body->dying, *next; dying != NULL; dying = next)
	{
		next = dying->next;
		free(dying);
	}
	pthread_mutex_destroy(&body->chain_lock);
	free(body);
}

nv_status
nv_body_create(nv_engine *engine, nv_store *store, const char *dir,
			   uint32_t generation, nv_body **out, nv_error *err)
{
	nv_body *body = nv_alloc(sizeof(*body));
	nv_status status;

	if (body == NULL)
	{
		nv_store_close(store);
		return nv_fail(err, NV_ENOMEM, 0, "no memory for an index");
	}
	atomic_init(&body->refs, 1);
	body->engine = engine;
	body->store = store;
	body->generation = generation;
	snprintf(body->dir, sizeof(body->dir), "%s", dir);
	pthread_mutex_init(&body->chain_lock, NULL);
	pthread_mutex_init(&body->drift.lock, NULL);
	body->casr = nv_casr_table_create(engine->config.casr_warmup);
	body->casr_insert = nv_casr_table_create(engine->config.casr_warmup);
	body->equal = nv_equal_create();
	status = body->casr != NULL && body->casr_insert != NULL &&
					 body->equal != NULL && nv_numbers_init(&body->first) &&
					 nv_numbers_init(&body->next) &&
					 nv_numbers_init(&body->prev)
				 ? load_blobs(body, err)
				 : nv_fail(err, NV_ENOMEM, 0, "no memory for an index");
	if (status == NV_OK)
		status = build_chains(body, err);
	if (status != NV_OK)
	{
		body_free(body);
		return status;
	}
	/* Drops made while chains were built are those of the saved form. */
	body->entrance_saved = nv_entrance_changes(body->entrance);
	body->view.store = store;
	body->view.entrance = body->entrance;
	body->view.live = body_live;
	body->view.live_arg = body;
	*out = body;
	return NV_OK;
}

void
nv_body_get(nv_body *body)
{
	atomic_fetch_add(&body->refs, 1);
}

static void
close_body_job(nv_engine *engine, nv_job *job)
{
	nv_body *body = job->arg;
	bool remove_dir = atomic_load(&body->remove_dir);
	char dir[NV_PATH];
	nv_error err;

	snprintf(dir, sizeof(dir), "%s", body->dir);
	nv_engine_forget(engine, nv_store_edge_file(body->store),
					 nv_store_vector_file(body->store));
	nv_stats_body_gone(body);
	body_free(body);
	if (remove_dir && nv_remove_tree(dir, &err) != NV_OK)
		nv_log(NV_LOG_WARNING, "%s", err.detail);
}

void
nv_body_put(nv_body *body)
{
	nv_job job = {.arg = body};

	if (body == NULL || atomic_fetch_sub(&body->refs, 1) != 1)
		return;
	/* The pool is closed only when no thread can have rings any more. */
	if (nv_submit_job(body->engine, &body->engine->jobs, close_body_job, NULL,
					  body) != NV_OK)
		close_body_job(body->engine, &job);
}
