/*
 * opening.c
 *		OPEN, RECONCILE, OPENED: making the engine agree with the journal.
 *
 * The newest whole generation on disk becomes the index's body.  Every opener
 * then walks the journal: an element counts only if generation and hash agree
 * (design, invariant 3); what the journal does not name is dropped when a walk
 * is complete.  Several walks may run at once; each is idempotent.
 */
#include <errno.h>

#include "engine_internal.h"

#define MAX_GENERATIONS 64
#define MAX_PASSES 64
/* A walk that found too much missing is not repeated before this. */
#define NO_GRAPH_RETRY_NS (UINT64_C(10) * 1000000000u)
#define PASS_LIFE_NS (UINT64_C(3600) * 1000000000u)

/* Opens one generation; leaves a marker behind if that crashes. */
static nv_status
open_generation(nv_index *index, uint32_t generation, nv_body **body,
				nv_error *err)
{
	nv_engine *engine = index->engine;
	char dir[NV_PATH];
	nv_store *store;
	nv_status status;

	nv_sidecar_generation_dir(engine, &index->key, generation, dir);
	if (nv_sidecar_quarantined(dir))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "two attempts to open it ended in a crash");
	/* Without the marker (a full disk) opening goes on all the same. */
	(void) nv_sidecar_mark_opening(dir, true, NULL);
	status = nv_store_open(dir, &index->key, engine->cache, &store, err);
	if (status == NV_OK)
		status = nv_body_create(engine, store, dir, generation, body, err);
	(void) nv_sidecar_mark_opening(dir, false, NULL);
	if (status == NV_OK &&
		((*body)->view.gspace.metric != index->params.metric ||
		 (*body)->view.gspace.dim != index->params.dim))
	{
		nv_body_put(*body);
		*body = NULL;
		status = nv_fail(err, NV_EFOREIGN, 0,
						 "graph has another metric or dimension");
	}
	return status;
}

/* No descriptors or memory just now: that says nothing about the sidecar. */
static bool
is_shortage(const nv_error *err)
{
	return err->status == NV_ENOMEM || err->sys_errno == EMFILE ||
		   err->sys_errno == ENFILE || err->sys_errno == ENOMEM;
}

/*
 * Beside the graph that is in use: older ones, superseded when the server went
 * down, and newer ones, of builds that did not end.  A build that runs right
 * now has a number that was given later, or was cancelled by reset_index.
 */
static void
remove_others(nv_index *index, uint32_t used, const uint32_t *generations,
			  uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
	{
		char dir[NV_PATH];

		if (generations[i] == used)
			continue;
		nv_sidecar_generation_dir(index->engine, &index->key, generations[i],
								  dir);
		(void) nv_remove_tree(dir, NULL);
	}
}

/*
 * Graphs of builds that a crash ended: nothing was published in them, and a
 * table that has become small may never get another one.
 */
static void
remove_unended(nv_index *index, const uint32_t *generations, uint32_t n)
{
	bool building;

	pthread_mutex_lock(&index->lock);
	building = index->build != NULL;
	pthread_mutex_unlock(&index->lock);
	if (!building)
		remove_others(index, 0, generations, n);
}

/*
 * Looks for a usable graph, newest generation first.  Published ones that are
 * no use are left where they are until a rebuild replaces them; one log line.
 */
static nv_status
load_sidecar(nv_index *index, nv_error *why)
{
	uint32_t generations[MAX_GENERATIONS], unended[MAX_GENERATIONS];
	uint32_t n_unended = 0;
	uint32_t n = nv_sidecar_generations(index->engine, &index->key, generations,
										MAX_GENERATIONS);
	nv_body *body = NULL;

	for (uint32_t i = 0; i < n && body == NULL; i++)
	{
		nv_error err = {0};

		if (open_generation(index, generations[i], &body, &err) == NV_OK)
			continue;
		if (is_shortage(&err))
		{
			*why = err;
			return err.status;
		}
		nv_log(NV_LOG_INFO, "sidecar of %s, graph %u: %s (%s)", index->title,
			   generations[i], err.detail, nv_status_name(err.status));
		if (err.status == NV_ENOENT)
			unended[n_unended++] = generations[i];
	}
	pthread_mutex_lock(&index->lock);
	index->body = body;
	index->loaded = true;
	index->explained = n > 0;
	if (n > 0)
		index->next_generation = generations[0] + 1;
	pthread_mutex_unlock(&index->lock);
	/*
	 * Its rows are pending then: whoever looks for what no index owns must
	 * find it all the same.  Without a directory it goes with the engine.
	 */
	if (n == 0)
		(void) nv_sidecar_create(index->engine, &index->key, &index->params,
								 NULL);
	if (body != NULL)
		remove_others(index, body->generation, generations, n);
	else
		remove_unended(index, unended, n_unended);
	return NV_OK;
}

/* Fills what every open index has; index->lock held. */
static nv_status
prepare_locked(nv_index *index, const nv_index_params *params,
			   const char *title, nv_error *err)
{
	if (index->pending != NULL)
	{
		if (index->params.dim != params->dim)
			return nv_fail(err, NV_EINVAL, 0,
						   "index is open with %u dimensions, not %u",
						   index->params.dim, params->dim);
		index->params.consolidate_threshold = params->consolidate_threshold;
		return NV_OK;
	}
	nv_index_describe(index, params, title);
	index->pending =
		nv_pending_create(params->dim, &index->engine->pending_bytes,
						  index->engine->config.pending_memory);
	if (index->pending == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for an index");
	return NV_OK;
}

static nv_status
new_pass(nv_index *index, uint64_t *id, nv_error *err)
{
	nv_pass *pass = nv_alloc(sizeof(*pass)), *p;
	uint32_t n = 0;

	if (pass != NULL)
	{
		pass->n_bits =
			index->body != NULL ? nv_store_elements(index->body->store) : 0;
		pass->confirmed = nv_alloc_array(pass->n_bits / 64 + 1, 8);
	}
	if (pass == NULL || pass->confirmed == NULL)
	{
		free(pass);
		return nv_fail(err, NV_ENOMEM, 0, "no memory to open an index");
	}
	pass->id = *id = atomic_fetch_add(&index->engine->next_pass, 1) + 1;
	pass->started_ns = nv_now_ns();
	pass->next = index->passes;
	index->passes = pass;
	index->lacks_row = false;
	/* Openers that died in the middle leave theirs behind: the oldest goes. */
	for (p = pass; p->next != NULL; p = p->next)
		if (++n >= MAX_PASSES ||
			pass->started_ns - p->next->started_ns > PASS_LIFE_NS)
		{
			nv_pass *old = p->next;

			p->next = old->next;
			free(old->confirmed);
			free(old);
			break;
		}
	return NV_OK;
}

void
nv_passes_free(nv_index *index)
{
	while (index->passes != NULL)
	{
		nv_pass *pass = index->passes;

		index->passes = pass->next;
		free(pass->confirmed);
		free(pass);
	}
}

void
nv_index_lacks_row(nv_index *index)
{
	index->lacks_row = true;
	for (nv_pass *pass = index->passes; pass != NULL; pass = pass->next)
		pass->lacks_row = true;
}

void
nv_passes_confirm(nv_index *index, uint32_t element)
{
	for (nv_pass *pass = index->passes; pass != NULL; pass = pass->next)
		if (element < pass->n_bits)
			pass->confirmed[element / 64] |= UINT64_C(1) << (element % 64);
}

bool
nv_passes_vouch(const nv_index *index, uint32_t element)
{
	const nv_pass *pass = index->passes;

	if (index->state == NV_INDEX_READY)
		return true;
	while (pass != NULL &&
		   (element >= pass->n_bits ||
			(pass->confirmed[element / 64] >> (element % 64) & 1)))
		pass = pass->next;
	return index->passes != NULL && pass == NULL;
}

/* For a small index others may make room (small.c). */
static uint64_t
pending_room(nv_index *index)
{
	nv_engine *engine = index->engine;
	uint64_t used = atomic_load(&engine->pending_bytes);
	uint64_t limit = nv_index_pending_limit(index);
	uint64_t rows = used >= limit ? 0
								  : (limit - used) /
										nv_pending_row_bytes(index->params.dim);

	return index->body != NULL ? rows
							   : NV_MAX(rows, (uint64_t) NV_MIN_GRAPH_ROWS);
}

static nv_status
open_index(nv_index *index, nv_req_open *open, const char *title, nv_error *err)
{
	nv_status status;

	pthread_mutex_lock(&index->lock);
	status = index->dropped ? nv_fail(err, NV_ENOENT, 0, "index was dropped")
							: prepare_locked(index, &open->params, title, err);
	pthread_mutex_unlock(&index->lock);
	if (status != NV_OK)
		return status;
	pthread_mutex_lock(&index->load_lock);
	if (!index->loaded && !index->dropped)
		status = load_sidecar(index, err);
	pthread_mutex_unlock(&index->load_lock);
	if (status != NV_OK)
		return status;

	pthread_mutex_lock(&index->lock);
	if (nv_index_rested(index))
		nv_index_leave_full(index);
	open->state = index->state;
	open->has_graph = index->body != NULL;
	open->pass = 0;
	open->room = pending_room(index);
	open->followed = index->followed;
	if (index->state == NV_INDEX_OPENING ||
		(index->state == NV_INDEX_NO_GRAPH &&
		 nv_elapsed_ns(index->no_graph_ns) > NO_GRAPH_RETRY_NS))
	{
		open->state = NV_INDEX_OPENING;
		status = new_pass(index, &open->pass, err);
	}
	pthread_mutex_unlock(&index->lock);
	return status;
}

void
nv_job_open(nv_engine *engine, nv_job *job)
{
	nv_request *request = job->request;
	const nv_index_params *params = &request->u.open.params;
	nv_error err = {0};
	nv_status status;
	nv_index *index;

	if (params->dim < 1 || params->dim > NV_MAX_DIM ||
		params->metric < NV_METRIC_L2 || params->metric > NV_METRIC_COSINE)
	{
		status = nv_fail(&err, NV_EINVAL, 0, "%u dimensions, metric %u",
						 params->dim, params->metric);
		nv_answer(engine, request, status, &err);
		return;
	}
	index = nv_index_get(engine, &request->key, true);
	status = index != NULL
				 ? open_index(index, &request->u.open, request->title, &err)
				 : nv_fail(&err, NV_ELIMIT, 0, "more than %d indexes are open",
						   NV_MAX_INDEXES);
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}

/* --- RECONCILE --- */

static nv_pass *
find_pass(nv_index *index, uint64_t id)
{
	nv_pass *pass = index->passes;

	while (pass != NULL && pass->id != id)
		pass = pass->next;
	return pass;
}

static nv_status
reconcile_locked(nv_index *index, nv_request *request, nv_error *err)
{
	nv_req_reconcile *r = &request->u.reconcile;
	nv_pass *pass = find_pass(index, r->pass);
	nv_journal_entry *in = (nv_journal_entry *) request->data;
	uint32_t *out = (uint32_t *) request->data; /* never ahead of in */

	r->n_missing = 0;
	if (index->pending == NULL ||
		(r->pass == 0 ? index->state != NV_INDEX_READY : pass == NULL))
		return nv_fail(err, NV_ENOENT, 0, "index is not being opened");
	if (r->n > NV_REQUEST_DATA / sizeof(*in))
		return nv_fail(err, NV_EINVAL, 0, "%u entries in one request", r->n);
	for (uint32_t i = 0; i < r->n; i++)
	{
		nv_journal_entry e = in[i];

		if (index->body != NULL &&
			nv_body_has(index->body, e.element, e.generation, e.hash))
		{
			if (pass != NULL && e.element < pass->n_bits)
				pass->confirmed[e.element / 64] |= UINT64_C(1)
												   << (e.element % 64);
		}
		else if (!nv_pending_has(index->pending, e.element, e.generation,
								 e.hash))
			out[r->n_missing++] = e.element;
	}
	return NV_OK;
}

void
nv_request_reconcile(nv_engine *engine, nv_request *request)
{
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_error err = {0};
	nv_status status;

	if (index == NULL)
		status = nv_fail(&err, NV_ENOENT, 0, "index is not open");
	else
	{
		pthread_mutex_lock(&index->lock);
		status = reconcile_locked(index, request, &err);
		pthread_mutex_unlock(&index->lock);
		nv_index_set_lsn(index, request->u.reconcile.lsn);
	}
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}

/* --- OPENED --- */

/* What the journal did not name is not in the index. */
static nv_status
drop_unconfirmed(nv_index *index, const nv_pass *pass, nv_error *err)
{
	nv_status status = NV_OK;

	if (index->body == NULL)
		return NV_OK;
	/* A body of another generation was compared when it was built. */
	for (uint64_t e = 0; e < pass->n_bits && status == NV_OK; e++)
		if (!(pass->confirmed[e / 64] >> (e % 64) & 1))
			status = nv_index_drop_element(index, (uint32_t) e, err);
	return status;
}

static nv_status
opened_locked(nv_index *index, nv_req_opened *r, nv_error *err)
{
	nv_pass **p = &index->passes, *pass;
	nv_status status = NV_OK;

	while (*p != NULL && (*p)->id != r->pass)
		p = &(*p)->next;
	pass = *p;
	if (pass == NULL)
		return nv_fail(err, NV_ENOENT, 0, "index is not being opened");
	*p = pass->next;
	if (r->complete && !pass->lacks_row &&
		(index->state == NV_INDEX_OPENING || index->state == NV_INDEX_NO_GRAPH))
	{
		status = drop_unconfirmed(index, pass, err);
		if (status == NV_OK)
		{
			index->state = NV_INDEX_READY;
			index->followed = r->followed;
			/* Until the renewer looks at it: rows may be pouring in. */
			if (index->body == NULL &&
				atomic_load(&index->renewal) == NV_RENEWAL_NONE)
				atomic_store(&index->renewal, NV_RENEWAL_BACKLOG);
		}
	}
	else if (!r->complete && index->state == NV_INDEX_OPENING)
	{
		index->state = NV_INDEX_NO_GRAPH;
		if (!index->explained)
			nv_log(
				NV_LOG_INFO,
				"%s has no sidecar: scans are exact until its graph is built",
				index->title);
		index->explained = true;
	}
	if (!r->complete)
		index->no_graph_ns = nv_now_ns();
	r->state = index->state;
	free(pass->confirmed);
	free(pass);
	return status;
}

void
nv_job_opened(nv_engine *engine, nv_job *job)
{
	nv_request *request = job->request;
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_error err = {0};
	nv_status status;

	if (index == NULL)
		status = nv_fail(&err, NV_ENOENT, 0, "index is not open");
	else
	{
		pthread_mutex_lock(&index->lock);
		status = opened_locked(index, &request->u.opened, &err);
		pthread_mutex_unlock(&index->lock);
	}
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}

/* --- FOLLOWED --- */

/* A session that was slower than another must not take it back. */
static bool
is_newer(const nv_followed *a, const nv_followed *b)
{
	if (a->next_sequence != b->next_sequence)
		return a->next_sequence > b->next_sequence;
	for (uint32_t i = 0; i < a->n_tails && i < b->n_tails; i++)
		if (a->tails[i].lsn < b->tails[i].lsn)
			return false;
	return true;
}

void
nv_request_followed(nv_engine *engine, nv_request *request)
{
	const nv_followed *followed = &request->u.followed.followed;
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_error err = {0};
	nv_status status = NV_OK;

	if (index == NULL)
		status = nv_fail(&err, NV_ENOENT, 0, "index is not open");
	else if (followed->n_tails > NV_MAX_TAILS)
		status = nv_fail(&err, NV_EINVAL, 0, "%u tails", followed->n_tails);
	else
	{
		pthread_mutex_lock(&index->lock);
		if (index->state != NV_INDEX_READY)
			status = nv_fail(&err, NV_ENOENT, 0, "index is not ready");
		else if (is_newer(followed, &index->followed))
			index->followed = *followed;
		pthread_mutex_unlock(&index->lock);
	}
	nv_index_put(index);
	nv_answer(engine, request, status, &err);
}
