/*
 * consolidate.c
 *		Dead vertices are taken out of the graph and freed.
 *
 * A run takes the vertices that are dead when it begins, marks them as *dying*
 * and
 *
 *	1. waits until all insertions that began before the marks have ended.  A
 *	   dying vertex is no neighbour of a new list, and an equal row does not
 *	   revive it but gets a vertex of its own; an insertion that did not see the
 *	   mark may still do both.  So those that have rows again afterwards are
 *	   taken out of the set, and from then on nobody adds an edge to a dying
 *	   vertex or an element;
 *	2. takes them out of the table of equal vectors and replaces the medoid if
 *	   it is one of them;
 *	3. collects their neighbours, rewrites every list that names one of them
 *	   (sweep.c), and links what has lost its last edge;
 *	4. promotes vertices of regions that have too few members of the entrance
 *	   graph (cover.c), and replaces it by one without its dropped members;
 *	5. raises body->freed and waits until all readers that began before have
 *	   ended.  Whoever begins later meets no dying vertex: no list names one.
 *	   Cursors that were idle meanwhile are refused by the number they began
 *	   with (cursor.c), so a vertex that a search knows never means another;
 *	6. frees list, record and id of each (free_vertex.c) and publishes a
 *	   checkpoint, after which they are given out again.
 *
 * All waiting looks at whether to stop.  What was rewritten stays when a run
 * stops or the process ends: each list is right by itself, before and after.
 * The next run finds less to do.  Nothing of a run is stored.
 *
 * One run at a time in an engine; its thread does it.  It begins when the share
 * of dead vertices exceeds the index's consolidate_threshold, or when a request
 * wants it.
 *
 * Source: design.md section 4, "Deletion", "Checkpoint protocol" 12;
 * algorithms.md section 10.
 */
#include "consolidate.h"

#include "search_run.h"

#define IDLE_MS 1000 /* between two looks at all indexes */
#define WAIT_US 1000 /* between two looks at who is waited for */
#define SLICE 4096   /* vertices looked at with a lock held */
#define STEP 256     /* vertices freed between two looks at whether to stop */
#define RETRY_NS (UINT64_C(60) * 1000000000u) /* after a failure */

struct nv_consolidate_wish
{
	nv_request *request;
	bool joined;   /* the run under way answers it */
	uint32_t runs; /* that it waited for */
	uint64_t freed;
	nv_consolidate_wish *next;
};

typedef struct run
{
	nv_engine *engine;
	nv_index *index;
	nv_body *body;
	bool own; /* the engine wants it, whatever becomes of the requests */
	nv_dying *dying;
	uint32_t *dead; /* dying vertices, ascending */
	uint32_t n_dead;
	uint64_t freed;
	nv_linker *linker;
	nv_rewire *rewire;
	nv_sweep sweep;
} run;

/* --- Whether to stop --- */

/* Abandoned requests are let go; true: some are left in this run. */
static bool
still_wanted(run *r, uint32_t phase, uint64_t done, uint64_t total)
{
	nv_engine *engine = r->engine;
	nv_consolidate_wish **link = &engine->wishes;
	bool wanted = false;

	pthread_mutex_lock(&engine->consolidate_lock);
	while (*link != NULL)
	{
		nv_consolidate_wish *wish = *link;

		if (wish->joined && nv_abandoned(wish->request))
		{
			*link = wish->next;
			nv_answer(engine, wish->request, NV_ECANCELLED, NULL);
			free(wish);
			continue;
		}
		if (wish->joined)
		{
			atomic_store(&wish->request->phase, phase);
			atomic_store(&wish->request->done, done);
			atomic_store(&wish->request->total, total);
			wanted = true;
		}
		link = &wish->next;
	}
	pthread_mutex_unlock(&engine->consolidate_lock);
	return wanted;
}

/* The index still has this graph, and no rebuild makes another. */
static bool
still_there(run *r)
{
	nv_index *index = r->index;
	bool there;

	pthread_mutex_lock(&index->lock);
	there = index->body == r->body && index->build == NULL && !index->dropped &&
			index->state == NV_INDEX_READY;
	pthread_mutex_unlock(&index->lock);
	return there;
}

static bool
stop(void *arg, uint32_t phase, uint64_t done, uint64_t total)
{
	run *r = arg;

	atomic_store(&r->index->consolidated.phase, phase);
	return (!still_wanted(r, phase, done, total) && !r->own) ||
		   atomic_load(&r->engine->stopping) ||
		   atomic_load(&r->body->given_up) || !still_there(r);
}

static bool
stop_compaction(void *arg)
{
	return stop(arg, NV_CONSOLIDATE_FREE, 0, 1);
}

static nv_status
stopped(nv_error *err)
{
	return nv_fail(err, NV_ECANCELLED, 0, "consolidation was stopped");
}

/* Until all who were inside an epoch have left. */
static nv_status
wait_for_others(run *r, uint32_t phase, nv_error *err)
{
	nv_store *store = r->body->store;
	uint64_t mark = nv_store_mark(store);

	while (!nv_store_passed(store, mark))
	{
		if (stop(r, phase, 0, 1))
			return stopped(err);
		nv_pause(r->engine, WAIT_US);
	}
	return NV_OK;
}

/* --- 1, 2: the set --- */

static void
mark(nv_dying *dying, uint32_t vertex, bool on)
{
	uint64_t bit = UINT64_C(1) << vertex % 64;

	if (on)
		atomic_fetch_or(&dying->bits[vertex / 64], bit);
	else
		atomic_fetch_and(&dying->bits[vertex / 64], ~bit);
}

/* A set without members becomes the body's; the one before hangs on it. */
static nv_status
new_set(run *r, nv_error *err)
{
	uint32_t n = nv_store_vertices(r->body->store);
	size_t words = (size_t) n / 64 + 1;

	r->dying = nv_alloc(sizeof(*r->dying) + words * sizeof(uint64_t));
	r->dead =
		nv_alloc_array(NV_MIN(n, NV_CONSOLIDATE_MAX) + 1u, sizeof(*r->dead));
	if (r->dying == NULL || r->dead == NULL)
	{
		free(r->dying);
		r->dying = NULL;
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory to take vertices out of the graph");
	}
	r->dying->n = n;
	r->dying->next = atomic_load(&r->body->dying);
	atomic_store(&r->body->dying, r->dying);
	return NV_OK;
}

/* Vertices with a list and without rows. */
static void
mark_dead(run *r)
{
	for (uint32_t v = 0; v < r->dying->n && r->n_dead < NV_CONSOLIDATE_MAX; v++)
		if (!nv_body_live(r->body, v) &&
			nv_store_edge_word(r->body->store, v) != 0)
		{
			mark(r->dying, v, true);
			r->dead[r->n_dead++] = v;
		}
}

/*
 * Those that insertions gave rows before they saw the mark are let off.  Rows
 * come under the lock, so what has none now gets none.
 */
static void
settle_set(run *r)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < r->n_dead;)
	{
		uint32_t end = NV_MIN(i + SLICE, r->n_dead);

		pthread_mutex_lock(&r->index->lock);
		for (; i < end; i++)
			if (nv_body_live(r->body, r->dead[i]))
				mark(r->dying, r->dead[i], false);
			else
				r->dead[kept++] = r->dead[i];
		pthread_mutex_unlock(&r->index->lock);
	}
	r->n_dead = kept;
}

/* What earlier runs left behind, since somebody might still look at it. */
static void
free_leftovers(run *r)
{
	while (r->dying->next != NULL)
	{
		nv_dying *next = r->dying->next->next;

		free(r->dying->next);
		r->dying->next = next;
	}
	/* Deletions use it inside the lock. */
	pthread_mutex_lock(&r->index->lock);
	pthread_mutex_unlock(&r->index->lock);
	nv_entrance_free(r->body->left_entrance);
	r->body->left_entrance = NULL;
}

static nv_status
choose_dying(run *r, nv_error *err)
{
	nv_status status = new_set(r, err);

	if (status != NV_OK)
		return status;
	mark_dead(r);
	status = wait_for_others(r, NV_CONSOLIDATE_WAIT, err);
	if (status != NV_OK)
		return status;
	free_leftovers(r);
	settle_set(r);
	for (uint32_t i = 0; i < r->n_dead && status == NV_OK; i++)
		status =
			nv_equal_remove(r->body->equal, r->body->store, r->dead[i], err);
	return status;
}

/* Whatever happened, nobody is dying any more. */
static void
forget_dying(run *r)
{
	for (uint32_t i = 0; i < r->n_dead; i++)
		mark(r->dying, r->dead[i], false);
}

/* --- 2: the medoid --- */

/* A live vertex near the old medoid, as entrance graph and codes see it. */
static nv_status
nearest_live(run *r, uint32_t old, uint32_t *found, nv_error *err)
{
	nv_body *body = r->body;
	const nv_entrance *entrance = body->entrance;
	float *place = nv_alloc(body->view.gspace.gdim * sizeof(*place));
	size_t room = nv_entrance_scratch_size(entrance);
	void *scratch = nv_alloc(room);
	uint32_t vertices = nv_store_vertices(body->store), n = 0;
	nv_candidate near[NV_ENTRANCE_LIST];

	*found = NV_NO_VERTEX;
	if (place != NULL && scratch != NULL &&
		nv_body_decode(body, old, place, err) == NV_OK)
	{
		n = nv_entrance_search(entrance, place, NV_ENTRANCE_LIST,
							   NV_ENTRANCE_LIST, scratch, room, near);
	}
	free(place);
	free(scratch);
	/* One that was there when the run began, so that the sweep knows it. */
	for (uint32_t i = 0; i < n && *found == NV_NO_VERTEX; i++)
		if (near[i].id < r->dying->n && nv_body_live(body, near[i].id))
			*found = near[i].id;
	for (uint32_t v = 0; v < vertices && *found == NV_NO_VERTEX; v++)
		if (nv_body_live(body, v) &&
			(nv_store_edge_word(body->store, v) & NV_LINKED))
			*found = v;
	if (*found == NV_NO_VERTEX)
		return nv_fail(err, NV_ENOENT, 0, "no vertex of the graph has rows");
	return NV_OK;
}

static nv_status
replace_medoid(run *r, nv_error *err)
{
	nv_body *body = r->body;
	uint32_t old = atomic_load(&body->view.medoid), found;
	nv_meta_blob meta;
	const uint8_t *blob;
	nv_status status;
	size_t len;

	if (!nv_is_dying(r->dying, old))
		return NV_OK;
	status = nearest_live(r, old, &found, err);
	if (status != NV_OK)
		return status;
	/* So that nobody else changes the description meanwhile. */
	pthread_mutex_lock(&r->index->checkpoint_lock);
	blob = nv_store_get_blob(body->store, NV_BLOB_META, &len);
	nv_assert(blob != NULL && len == sizeof(meta));
	memcpy(&meta, blob, sizeof(meta));
	meta.medoid = found;
	status = nv_store_set_blob(body->store, NV_BLOB_META,
							   (const uint8_t *) &meta, sizeof(meta), err);
	pthread_mutex_unlock(&r->index->checkpoint_lock);
	if (status == NV_OK)
		atomic_store(&body->view.medoid, found);
	return status;
}

/* --- 3: lists --- */

static nv_status
rewrite_lists(run *r, nv_error *err)
{
	nv_status status;

	r->sweep = (nv_sweep){
		.index = r->index,
		.linker = r->linker,
		.rewire = r->rewire,
		.n = r->dying->n,
		.stop = stop,
		.stop_arg = r,
	};
	r->rewire->count = &r->index->consolidated.rewired;
	status = nv_rewire_begin(r->rewire, r->linker, r->dying, r->dead, r->n_dead,
							 err);
	if (status == NV_OK)
		status = nv_sweep_begin(&r->sweep, err);
	if (status == NV_OK)
		status = nv_sweep_collect(&r->sweep, err);
	if (status == NV_OK)
		status = nv_sweep_rewrite(&r->sweep, err);
	if (status == NV_OK)
		status =
			nv_sweep_repair(&r->sweep, atomic_load(&r->body->view.medoid), err);
	nv_sweep_end(&r->sweep);
	nv_rewire_end(r->rewire);
	return status;
}

/* --- 4: the entrance graph --- */

typedef struct drop_dead
{
	nv_body *body;
	nv_entrance *entrance;
} drop_dead;

static void
drop_if_dead(void *arg, uint32_t vertex)
{
	drop_dead *d = arg;

	if (!nv_body_live(d->body, vertex))
		nv_entrance_drop(d->entrance, vertex);
}

/* One member at least: the medoid, where its code says it is. */
static nv_status
ensure_member(run *r, nv_error *err)
{
	nv_body *body = r->body;
	nv_entrance *entrance = body->entrance;
	uint32_t medoid = atomic_load(&body->view.medoid);
	nv_status status;
	float *place;

	if (nv_entrance_live(entrance) > 0)
		return NV_OK;
	place = nv_alloc(body->view.gspace.gdim * sizeof(*place));
	if (place == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for an entrance graph");
	status = nv_body_decode(body, medoid, place, err);
	if (status == NV_OK)
		status = nv_entrance_promote(entrance, medoid, place, NULL, 0,
									 body->params.alpha, err);
	free(place);
	return status;
}

/*
 * Makes the new graph the body's.  Promotions that go on in the old one are
 * lost, the next row makes up for them; drops are looked for again, since who
 * has the old graph at hand has made its vertex dead before.
 */
static void
swap_entrance(run *r, nv_entrance *made)
{
	nv_body *body = r->body;
	drop_dead dead = {body, made};

	pthread_mutex_lock(&r->index->checkpoint_lock);
	atomic_store(&body->view.entrance, made);
	atomic_store(&body->entrance, made);
	body->entrance_saved = UINT64_MAX;
	pthread_mutex_unlock(&r->index->checkpoint_lock);
	nv_entrance_each(made, drop_if_dead, &dead);
}

/* The old one is left over until its readers have left. */
static nv_status
replace_entrance(run *r, nv_error *err)
{
	nv_body *body = r->body;
	nv_entrance *entrance = body->entrance, *made;
	nv_status status;
	bool member = false;

	for (uint32_t i = 0; i < r->n_dead; i++)
		if (nv_entrance_member(entrance, r->dead[i]))
		{
			nv_entrance_drop(entrance, r->dead[i]);
			member = true;
		}
	status = ensure_member(r, err);
	if (status == NV_OK && !r->engine->config.entrance_static)
		status = nv_cover_regions(body, stop_compaction, r, err);
	if (status != NV_OK || !member)
		return status;
	status = nv_entrance_compact(entrance, body->params.alpha, stop_compaction,
								 r, &made, err);
	if (status != NV_OK)
		return status;
	swap_entrance(r, made);
	nv_assert(body->left_entrance == NULL);
	body->left_entrance = entrance;
	return NV_OK;
}

/* --- 5, 6: freeing --- */

static nv_status
free_dead(run *r, nv_error *err)
{
	nv_body *body = r->body;
	nv_status status = NV_OK;

	for (uint32_t i = 0; i < r->n_dead && status == NV_OK; i++)
	{
		uint64_t word = nv_store_edge_word(body->store, r->dead[i]);

		if (i % STEP == 0 && stop(r, NV_CONSOLIDATE_FREE, i, r->n_dead))
			return stopped(err);
		nv_assert(!nv_body_live(body, r->dead[i]));
		/* Before its number can mean another. */
		mark(r->dying, r->dead[i], false);
		status = nv_store_free_vertex(body->store, r->dead[i], err);
		if (status != NV_OK)
			break;
		r->freed++;
		atomic_fetch_add(&r->index->consolidated.freed, 1);
		if (word & NV_LINKED)
		{
			atomic_fetch_sub(&body->dead_vertices, 1);
			atomic_fetch_sub(&body->n_vertices, 1);
		}
	}
	return status;
}

static nv_status
free_all(run *r, nv_error *err)
{
	nv_status status = replace_entrance(r, err);

	if (status == NV_OK)
	{
		atomic_fetch_add(&r->body->freed, 1);
		status = wait_for_others(r, NV_CONSOLIDATE_FREE, err);
	}
	if (status == NV_OK)
	{
		free_leftovers(r);
		status = free_dead(r, err);
	}
	/* Also for what was freed before it was stopped. */
	if (r->freed > 0)
	{
		nv_error other;
		nv_status published =
			nv_index_checkpoint(r->index, status == NV_OK ? err : &other);

		if (published == NV_OK)
			nv_places_trim(r->index);
		if (status == NV_OK)
			status = published;
	}
	return status;
}

/* --- A run --- */

static nv_status
run_phases(run *r, nv_error *err)
{
	nv_status status = choose_dying(r, err);

	if (status == NV_OK && r->n_dead > 0)
	{
		status = replace_medoid(r, err);
		if (status == NV_OK)
			status = rewrite_lists(r, err);
		if (status == NV_OK)
			status = free_all(r, err);
	}
	if (r->dying != NULL)
		forget_dying(r);
	free(r->dead);
	return status;
}

/* Share of the vertices that are dead. */
static double
dead_share(nv_body *body)
{
	uint64_t dead = atomic_load(&body->dead_vertices);
	uint64_t vertices = atomic_load(&body->n_vertices);

	return vertices == 0 ? 0 : (double) dead / (double) vertices;
}

static bool
above(nv_body *body, double threshold)
{
	return nv_body_live_vertices(body) > 0 && dead_share(body) > threshold;
}

static double
threshold_of(nv_index *index)
{
	double threshold;

	pthread_mutex_lock(&index->lock);
	threshold = index->params.consolidate_threshold;
	pthread_mutex_unlock(&index->lock);
	return threshold;
}

/* Does the work of one run; *freed: vertices; *cut_short: there are more. */
static nv_status
run_once(nv_engine *engine, nv_linker *linker, nv_index *index, nv_body *body,
		 uint64_t *freed, bool *cut_short, nv_error *err)
{
	run r = {.engine = engine, .index = index, .body = body, .linker = linker};
	double threshold = threshold_of(index);
	nv_insert_counters counters = {0};
	nv_status status;

	r.own = threshold > 0 && above(body, threshold);
	r.rewire = nv_alloc(sizeof(*r.rewire));
	status = r.rewire != NULL
				 ? nv_linker_use(linker, body, err)
				 : nv_fail(err, NV_ENOMEM, 0, "no memory to consolidate");
	linker->counters = &counters; /* not those of insertions */
	if (status == NV_OK)
		status = run_phases(&r, err);
	(void) nv_linker_use(linker, NULL, NULL);
	free(r.rewire);
	atomic_store(&index->consolidated.phase, NV_CONSOLIDATE_NONE);
	atomic_fetch_add(&index->consolidated.runs, status == NV_OK);
	*freed = r.freed;
	*cut_short = r.n_dead == NV_CONSOLIDATE_MAX;
	return status;
}

static void
run_failed(nv_index *index, nv_body *body, const nv_error *err)
{
	atomic_store(&index->consolidate_after_ns, nv_now_ns() + RETRY_NS);
	if (err->status == NV_ECORRUPT)
		nv_index_damaged(index, body);
	nv_log(NV_LOG_WARNING, "consolidation of %s failed: %s", index->title,
		   err->detail);
}

/* --- Requests --- */

/* The index's own threshold becomes the request's. */
static void
keep_threshold(nv_engine *engine, const nv_request *request)
{
	nv_index *index = nv_index_get(engine, &request->key, false);

	if (index == NULL)
		return;
	pthread_mutex_lock(&index->lock);
	index->params.consolidate_threshold = request->u.consolidate.threshold;
	pthread_mutex_unlock(&index->lock);
	nv_index_put(index);
}

void
nv_request_consolidate(nv_engine *engine, nv_request *request)
{
	nv_consolidate_wish *wish = nv_alloc(sizeof(*wish));
	nv_error err;

	if (wish == NULL)
	{
		nv_fail(&err, NV_ENOMEM, 0, "no memory to consolidate");
		nv_answer(engine, request, NV_ENOMEM, &err);
		return;
	}
	if (request->u.consolidate.keep)
		keep_threshold(engine, request);
	wish->request = request;
	atomic_store(&request->phase, NV_CONSOLIDATE_WAIT);
	pthread_mutex_lock(&engine->consolidate_lock);
	wish->next = engine->wishes;
	engine->wishes = wish;
	pthread_cond_signal(&engine->consolidate_cond);
	pthread_mutex_unlock(&engine->consolidate_lock);
}

/* A wish that was taken out of the list. */
static void
answer(nv_engine *engine, nv_consolidate_wish *wish, nv_body *body,
	   nv_status status, const nv_error *err)
{
	nv_req_consolidate *out = &wish->request->u.consolidate;

	out->runs = wish->runs;
	out->freed = wish->freed;
	out->vertices = body != NULL ? atomic_load(&body->n_vertices) : 0;
	out->deleted = body != NULL ? atomic_load(&body->dead_vertices) : 0;
	nv_answer(engine, wish->request, status, err);
	free(wish);
}

void
nv_consolidate_end(nv_engine *engine)
{
	nv_error err;

	nv_fail(&err, NV_ECANCELLED, 0, "engine is stopping");
	while (engine->wishes != NULL)
	{
		nv_consolidate_wish *wish = engine->wishes;

		engine->wishes = wish->next;
		answer(engine, wish, NULL, NV_ECANCELLED, &err);
	}
}

/* Why nothing can be done about a wish now, or NV_OK: body with a reference. */
static nv_status
find_body(nv_index *index, nv_body **body, nv_error *err)
{
	nv_status status = NV_OK;

	*body = NULL;
	if (index == NULL)
		return nv_fail(err, NV_ENOENT, 0, "index is not open");
	pthread_mutex_lock(&index->lock);
	if (index->dropped || index->state != NV_INDEX_READY)
		status =
			nv_fail(err, NV_EUNUSABLE, 0, "index is in state %u", index->state);
	else if (index->build != NULL)
		status = nv_fail(err, NV_EBUSY, 0, "the index is being rebuilt");
	else if (index->body != NULL)
	{
		*body = index->body;
		nv_body_get(*body);
	}
	pthread_mutex_unlock(&index->lock);
	return status;
}

/*
 * The first wish that needs a run: its index and body, with references; those
 * before it that need none are answered.
 */
static nv_index *
next_wish(nv_engine *engine, nv_body **body)
{
	for (;;)
	{
		nv_consolidate_wish *wish;
		nv_index *index;
		nv_status status;
		nv_error err;

		pthread_mutex_lock(&engine->consolidate_lock);
		wish = engine->wishes;
		if (wish != NULL)
			engine->wishes = wish->next;
		pthread_mutex_unlock(&engine->consolidate_lock);
		if (wish == NULL)
			return NULL;
		index = nv_index_get(engine, &wish->request->key, false);
		status = find_body(index, body, &err);
		if (status == NV_OK && nv_abandoned(wish->request))
			status = nv_fail(&err, NV_ECANCELLED, 0, "given up");
		if (status == NV_OK && *body != NULL &&
			above(*body, wish->request->u.consolidate.threshold))
		{
			pthread_mutex_lock(&engine->consolidate_lock);
			wish->next = engine->wishes;
			engine->wishes = wish;
			pthread_mutex_unlock(&engine->consolidate_lock);
			return index;
		}
		answer(engine, wish, *body, status, &err);
		nv_body_put(*body);
		nv_index_put(index);
	}
}

/* The wishes for an index so far belong to the run that begins. */
static void
join(nv_engine *engine, nv_index *index)
{
	pthread_mutex_lock(&engine->consolidate_lock);
	for (nv_consolidate_wish *w = engine->wishes; w != NULL; w = w->next)
		w->joined = memcmp(&w->request->key, &index->key, sizeof(nv_key)) == 0;
	pthread_mutex_unlock(&engine->consolidate_lock);
}

/* The run is over: what belongs to it is answered, unless it was cut short. */
static void
answer_joined(nv_engine *engine, nv_body *body, nv_status status,
			  uint64_t freed, bool cut_short, const nv_error *err)
{
	nv_consolidate_wish **link = &engine->wishes, *done = NULL;

	pthread_mutex_lock(&engine->consolidate_lock);
	while (*link != NULL)
	{
		nv_consolidate_wish *wish = *link;

		if (!wish->joined)
		{
			link = &wish->next;
			continue;
		}
		wish->joined = false;
		wish->runs++;
		wish->freed += freed;
		if (status == NV_OK && cut_short)
		{
			link = &wish->next;
			continue;
		}
		*link = wish->next;
		wish->next = done;
		done = wish;
	}
	pthread_mutex_unlock(&engine->consolidate_lock);
	while (done != NULL)
	{
		nv_consolidate_wish *next = done->next;

		answer(engine, done, body, status, err);
		done = next;
	}
}

/* --- The thread --- */

/* The graph of an index with too many dead vertices, with a reference. */
static nv_body *
due(nv_index *index)
{
	nv_body *body = NULL;
	double threshold;
	nv_error none;

	if (nv_now_ns() < atomic_load(&index->consolidate_after_ns) ||
		find_body(index, &body, &none) != NV_OK || body == NULL)
		return NULL;
	threshold = threshold_of(index);
	if (threshold > 0 && above(body, threshold))
		return body;
	nv_body_put(body);
	return NULL;
}

static nv_index *
next_due(nv_engine *engine, nv_body **body)
{
	nv_index *found = NULL;

	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES && found == NULL; i++)
		for (nv_index *x = engine->table[i]; x != NULL && found == NULL;
			 x = x->hash_next)
			if ((*body = due(x)) != NULL)
			{
				atomic_fetch_add(&x->refs, 1);
				found = x;
			}
	pthread_mutex_unlock(&engine->lock);
	return found;
}

static void
sleep_a_while(nv_engine *engine)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += IDLE_MS / 1000;
	pthread_mutex_lock(&engine->consolidate_lock);
	if (engine->wishes == NULL && !atomic_load(&engine->stopping))
		pthread_cond_timedwait(&engine->consolidate_cond,
							   &engine->consolidate_lock, &until);
	pthread_mutex_unlock(&engine->consolidate_lock);
}

bool
nv_consolidate_next(nv_engine *engine, nv_linker *linker)
{
	nv_body *body;
	nv_index *index = next_wish(engine, &body);
	uint64_t freed;
	bool cut_short;
	nv_status status;
	nv_error err;

	if (index == NULL)
		index = next_due(engine, &body);
	if (index == NULL)
		return false;
	join(engine, index);
	status = run_once(engine, linker, index, body, &freed, &cut_short, &err);
	if (status != NV_OK && status != NV_ECANCELLED)
		run_failed(index, body, &err);
	answer_joined(engine, body, status, freed, cut_short, &err);
	nv_body_put(body);
	nv_index_put(index);
	return true;
}

static void
consolidator_loop(nv_engine *engine, nv_linker *linker)
{
	while (!atomic_load(&engine->stopping))
		if (!nv_consolidate_next(engine, linker))
			sleep_a_while(engine);
}

void *
nv_consolidator_main(void *arg)
{
	nv_engine *engine = arg;
	nv_io_method method = (nv_io_method) engine->config.io_method;
	nv_linker linker = {0};
	nv_error err;

	nv_background_thread();
	if (nv_ring_create(method, NV_SEARCH_BUFFER, &linker.ring, &err) != NV_OK ||
		nv_ring_create(method, 0, &linker.write_ring, &err) != NV_OK)
		nv_log(NV_LOG_WARNING, "consolidation could not start: %s", err.detail);
	else
		consolidator_loop(engine, &linker);
	nv_ring_destroy(linker.ring);
	nv_ring_destroy(linker.write_ring);
	return NULL;
}
