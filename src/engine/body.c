/*
 * body.c
 *		One finished graph of an index: store, codebook, entrance graph,
 *		calibration, and the chains that lead from a vertex to its elements.
 *
 * Within a body elements are only ever taken out, so a chain never loses a
 * link under a reader: an element that is gone merely no longer names its
 * vertex in the element map.
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

static bool
body_live(void *arg, uint32_t vertex)
{
	return nv_body_element(arg, vertex, NV_NO_ELEMENT) != NV_NO_ELEMENT;
}

/*
 * from = NV_NO_ELEMENT: the first live element, else the first live one after
 * from.
 */
uint32_t
nv_body_element(const nv_body *body, uint32_t vertex, uint32_t from)
{
	uint32_t e =
		from == NV_NO_ELEMENT
			? atomic_load_explicit(&body->first[vertex], memory_order_acquire)
			: atomic_load_explicit(&body->next[from], memory_order_acquire);

	while (e != NV_NO_ELEMENT)
	{
		uint32_t generation;

		if (nv_store_element(body->store, e, &generation) == vertex)
			return e;
		e = atomic_load_explicit(&body->next[e], memory_order_acquire);
	}
	return NV_NO_ELEMENT;
}

bool
nv_body_has(const nv_body *body, uint32_t element, uint32_t generation,
			uint64_t hash)
{
	uint32_t found, vertex;

	if (element >= body->n_elements)
		return false;
	vertex = nv_store_element(body->store, element, &found);
	return vertex != NV_NO_VERTEX && found == generation &&
		   nv_store_vector_hash(body->store, vertex) == hash;
}

/* The vertex lost an element: is it dead now?  Skips dead heads of its chain.
 */
static void
vertex_lost_element(nv_body *body, uint32_t vertex)
{
	uint32_t e = nv_body_element(body, vertex, NV_NO_ELEMENT);

	atomic_store_explicit(&body->first[vertex], e, memory_order_release);
	if (e != NV_NO_ELEMENT)
		return;
	atomic_fetch_add(&body->dead_vertices, 1);
	if (body->entrance != NULL)
		nv_entrance_drop(body->entrance, vertex);
}

nv_status
nv_body_drop_element(nv_body *body, uint32_t element, nv_error *err)
{
	uint32_t generation, vertex;
	nv_status status;

	if (element >= body->n_elements)
		return NV_OK;
	vertex = nv_store_element(body->store, element, &generation);
	if (vertex == NV_NO_VERTEX)
		return NV_OK;
	status = nv_store_set_element(body->store, element, NV_NO_VERTEX,
								  generation, err);
	if (status == NV_OK)
		vertex_lost_element(body, vertex);
	return status;
}

/* Chains from the element map, lowest element first. */
static nv_status
build_chains(nv_body *body, nv_error *err)
{
	body->n_vertices = nv_store_vertices(body->store);
	body->n_elements = nv_store_elements(body->store);
	body->first = nv_alloc_array(body->n_vertices, sizeof(*body->first));
	body->next = nv_alloc_array(body->n_elements, sizeof(*body->next));
	if (body->first == NULL || body->next == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for the element chains of %llu elements",
					   (unsigned long long) body->n_elements);
	for (uint32_t v = 0; v < body->n_vertices; v++)
		atomic_init(&body->first[v], NV_NO_ELEMENT);
	for (uint64_t i = body->n_elements; i > 0; i--)
	{
		uint32_t e = (uint32_t) (i - 1), generation;
		uint32_t v = nv_store_element(body->store, e, &generation);

		atomic_init(&body->next[e], NV_NO_ELEMENT);
		if (v == NV_NO_VERTEX)
			continue;
		if (v >= body->n_vertices)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "element %u names vertex %u of %u", e, v,
						   body->n_vertices);
		atomic_init(&body->next[e], atomic_load(&body->first[v]));
		atomic_store(&body->first[v], e);
	}
	for (uint32_t v = 0; v < body->n_vertices; v++)
		if (atomic_load(&body->first[v]) == NV_NO_ELEMENT)
		{
			atomic_fetch_add(&body->dead_vertices, 1);
			nv_entrance_drop(body->entrance, v);
		}
	return NV_OK;
}

/* Everything that the blobs hold. */
static nv_status
load_blobs(nv_body *body, nv_error *err)
{
	const nv_store_params *sp = nv_store_get_params(body->store);
	nv_meta_blob meta;
	const uint8_t *blob;
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
	blob = nv_store_get_blob(body->store, NV_BLOB_ENTRANCE, &len);
	status = nv_entrance_load(blob, len, nv_store_vertices(body->store),
							  meta.gspace.gdim, &body->entrance, err);
	if (status != NV_OK)
		return status;
	blob = nv_store_get_blob(body->store, NV_BLOB_CALIBRATION, &len);
	if (blob != NULL && nv_casr_load(body->casr, blob, len, err) != NV_OK)
		nv_casr_reset(body->casr); /* costs a warm-up, nothing else */
	body->view.gspace = meta.gspace;
	body->view.medoid = meta.medoid;
	body->pq_rotated = meta.pq_rotated;
	body->pq_recall = meta.pq_recall;
	body->average_degree = meta.average_degree;
	body->placement_quality = meta.placement_quality;
	return NV_OK;
}

static void
body_free(nv_body *body)
{
	nv_store_close(body->store);
	nv_pq_free(body->pq);
	nv_entrance_free(body->entrance);
	nv_casr_table_free(body->casr);
	free((void *) body->first);
	free((void *) body->next);
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
	body->casr = nv_casr_table_create(engine->config.casr_warmup);
	status = body->casr != NULL
				 ? load_blobs(body, err)
				 : nv_fail(err, NV_ENOMEM, 0, "no memory for calibration");
	if (status == NV_OK)
		status = build_chains(body, err);
	if (status != NV_OK)
	{
		body_free(body);
		return status;
	}
	body->view.store = store;
	body->view.pq = body->pq;
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
