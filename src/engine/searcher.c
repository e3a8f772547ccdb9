/*
 * searcher.c
 *		The loop of a search thread: takes requests, keeps several searches
 *		going on one ring, answers.
 *
 * Short requests are answered on the spot; what may block goes to the pools.
 * Every search is a task with a buffer of its own; a task is given back only
 * when none of its reads is in flight.
 */
#include <errno.h>

#include "cursor.h"

#define MAX_INTERLEAVE 32
#define IDLE_SLEEP_US 200000 /* also bounds the reaction to stop and forget */

typedef enum task_phase
{
	TASK_FREE,
	TASK_PENDING, /* compares unlinked rows */
	TASK_GRAPH,   /* the state machine runs */
	TASK_GIVE     /* fills the answer */
} task_phase;

typedef struct task
{
	task_phase phase;
	nv_request *request;
	nv_cursor *cursor;
	uint8_t *buffer;
	nv_read reads[NV_SEARCH_MAX_READS]; /* asked for, not yet queued */
	uint32_t n_reads, next_read;
	uint32_t inflight;
	bool waiting; /* for an arrival */
	uint64_t wait_started_ns;
	uint32_t pending_from;
	uint32_t n_hits;
	nv_hit *hits; /* in the request */
} task;

typedef struct searcher
{
	nv_searcher *self;
	nv_engine *engine;
	nv_ring *ring;
	uint32_t n_tasks;
	task tasks[MAX_INTERLEAVE];
} searcher;

/* --- answers --- */

static void
report_stats(task *t)
{
	nv_cursor *c = t->cursor;
	nv_req_search *answer = &t->request->u.search;
	nv_search_stats now = {0};

	if (c->started)
		now = *nv_search_get_stats(c->search);
	now.io_ns = c->io_ns;
	now.compute_ns += c->compute_ns;
	now.pending = c->pending_compared;
	answer->stats = (nv_search_stats){
		.hops = now.hops - c->reported.hops,
		.edge_pages = now.edge_pages - c->reported.edge_pages,
		.edge_reads = now.edge_reads - c->reported.edge_reads,
		.cache_hits = now.cache_hits - c->reported.cache_hits,
		.explored = now.explored - c->reported.explored,
		.vectors = now.vectors - c->reported.vectors,
		.batches = now.batches - c->reported.batches,
		.pending = now.pending - c->reported.pending,
		.bytes = now.bytes - c->reported.bytes,
		.io_ns = now.io_ns - c->reported.io_ns,
		.compute_ns = now.compute_ns - c->reported.compute_ns,
		.damaged = now.damaged - c->reported.damaged,
	};
	c->reported = now;
	nv_stats_search(c->index, &answer->stats);
}

/* The task ends; its cursor stays for NEXT when keep. */
static void
finish_task(searcher *s, task *t, nv_status status, const nv_error *err,
			bool keep)
{
	nv_request *request = t->request;

	nv_assert(t->inflight == 0);
	t->phase = TASK_FREE;
	t->request = NULL;
	if (t->cursor != NULL)
		nv_cursor_leave(t->cursor);
	if (t->cursor != NULL)
		nv_cursor_give(s->engine, t->cursor, !keep);
	t->cursor = NULL;
	nv_answer(s->engine, request, status, err);
}

static void
answer_task(searcher *s, task *t)
{
	nv_cursor *c = t->cursor;
	nv_req_search *answer = &t->request->u.search;
	bool exhausted = (c->body == NULL || c->exhausted) &&
					 c->queue_pos == c->queue_n && c->n_pending == 0 &&
					 c->vertex == NV_NO_VERTEX;
	nv_error err;

	report_stats(t);
	if (answer->stats.damaged > 0)
	{
		nv_index_damaged(c->index, c->body);
		nv_fail(&err, NV_EUNUSABLE, 0, "sidecar is damaged");
		finish_task(s, t, NV_EUNUSABLE, &err, false);
		return;
	}
	answer->n = t->n_hits;
	answer->exhausted = exhausted;
	answer->window = c->window;
	answer->list_used = c->list_used;
	if (!exhausted && c->id == 0 && nv_cursor_register(s->engine, c) != NV_OK)
		exhausted = true; /* no room: the caller must search anew */
	answer->cursor = exhausted ? 0 : c->id;
	finish_task(s, t, NV_OK, NULL, !exhausted);
}

/* --- phases --- */

/* All unlinked rows are compared: only now take the body (see index.c). */
static void
enter_graph(searcher *s, task *t)
{
	nv_cursor *c = t->cursor;
	nv_error err;

	c->body = nv_index_body(c->index);
	if (nv_cursor_enter(c, true, &err) != NV_OK)
		finish_task(s, t, err.status, &err, false);
	else
		t->phase = TASK_GIVE;
}

static void
step_pending(searcher *s, task *t)
{
	uint64_t start = nv_now_ns();
	nv_error err;
	bool more;
	nv_status status;

	status = nv_cursor_pending_step(t->cursor, &t->pending_from, &more, &err);
	t->cursor->compute_ns += nv_now_ns() - start;
	if (status != NV_OK)
		finish_task(s, t, status, &err, false);
	else if (!more)
		enter_graph(s, t);
}

static void
step_give(searcher *s, task *t)
{
	nv_cursor *c = t->cursor;
	uint32_t k = t->request->u.search.k, n;
	bool more_needed;
	nv_error err;
	nv_status status;

	status = nv_cursor_emit(c, t->hits + t->n_hits, k - t->n_hits, &n,
							&more_needed, &err);
	t->n_hits += n;
	if (status == NV_OK && !more_needed)
	{
		answer_task(s, t);
		return;
	}
	if (status == NV_OK)
		status = nv_cursor_round(c, t->buffer, &err);
	if (status != NV_OK)
	{
		finish_task(s, t, status, &err, false);
		return;
	}
	t->phase = TASK_GRAPH;
	t->n_reads = t->next_read = 0;
	t->waiting = false;
}

static void
step_graph(searcher *s, task *t)
{
	nv_cursor *c = t->cursor;
	nv_error err;

	switch (nv_search_step(c->search, t->reads, &t->n_reads))
	{
		case NV_STEP_WAIT:
			t->next_read = 0;
			t->waiting = true;
			t->wait_started_ns = nv_now_ns();
			break;
		case NV_STEP_AGAIN:
			break;
		case NV_STEP_DONE:
			if (nv_cursor_collect(c, &err) != NV_OK)
				finish_task(s, t, NV_ENOMEM, &err, false);
			else
				t->phase = TASK_GIVE;
			break;
		case NV_STEP_FAILED:
			err = *nv_search_error(c->search);
			finish_task(s, t, err.status, &err, false);
			break;
	}
}

/* Queues reads that are still to be issued; the ring may be full for now. */
static void
issue_reads(searcher *s, task *t)
{
	while (t->next_read < t->n_reads)
	{
		nv_read *r = &t->reads[t->next_read];
		uint64_t token = ((uint64_t) (t - s->tasks) << 32) | (uint64_t) r->tag;

		if (!nv_ring_read(s->ring, r->file, r->buf, r->len, r->offset, token))
			return;
		t->next_read++;
		t->inflight++;
	}
}

/* The owner gave up: let go as soon as nothing is in flight. */
static void
abandon_task(searcher *s, task *t)
{
	t->n_reads = t->next_read; /* issue no more */
	if (t->inflight > 0)
		return;
	if (t->phase == TASK_GRAPH)
		nv_search_cancel(t->cursor->search);
	finish_task(s, t, NV_ECANCELLED, NULL, false);
}

static bool
step_task(searcher *s, task *t)
{
	if (t->phase == TASK_FREE)
		return false;
	if (nv_abandoned(t->request) || atomic_load(&s->engine->stopping))
	{
		abandon_task(s, t);
		return t->phase == TASK_FREE;
	}
	issue_reads(s, t);
	if (t->waiting)
		return false;
	switch (t->phase)
	{
		case TASK_PENDING:
			step_pending(s, t);
			break;
		case TASK_GRAPH:
			step_graph(s, t);
			issue_reads(s, t);
			break;
		case TASK_GIVE:
			step_give(s, t);
			break;
		case TASK_FREE:
			break;
	}
	return true;
}

static void
reap(searcher *s, bool wait)
{
	nv_completion done[64];
	uint32_t n = nv_ring_reap(s->ring, done, NV_LENGTH(done), wait);

	for (uint32_t i = 0; i < n; i++)
	{
		task *t = &s->tasks[done[i].token >> 32];

		nv_assert(t->inflight > 0);
		t->inflight--;
		nv_search_arrived(t->cursor->search, (uint32_t) done[i].token,
						  done[i].result);
		if (t->waiting)
		{
			t->waiting = false;
			t->cursor->io_ns += nv_now_ns() - t->wait_started_ns;
		}
	}
}

/* --- requests --- */

static bool
valid_search(const nv_req_search *ask)
{
	return ask->k >= 1 && ask->k <= NV_MAX_HITS && ask->dim >= 1 &&
		   ask->dim <= NV_MAX_DIM && ask->list_size >= 1 &&
		   ask->beam_width >= 1 && ask->beam_width <= NV_MAX_BEAM &&
		   ask->entrance_list >= 1 &&
		   ask->entrance_list <= NV_ENTRANCE_MAX_LIST && ask->percentile >= 1 &&
		   ask->percentile <= 100;
}

static nv_status
begin_search(nv_engine *engine, nv_request *request, nv_cursor **cursor,
			 nv_error *err)
{
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_status status = NV_OK;
	uint64_t let_go;
	uint32_t state;

	if (index == NULL)
		return nv_fail(err, NV_ENOENT, 0, "index is not open");
	nv_index_used(index);
	pthread_mutex_lock(&index->lock);
	state = index->state;
	let_go = atomic_load(&index->let_go);
	pthread_mutex_unlock(&index->lock);
	if (state != NV_INDEX_READY)
		status = nv_fail(err, NV_EUNUSABLE, 0, "index is in state %u", state);
	else
		status = nv_cursor_create(index, request, cursor, err);
	if (status == NV_OK)
	{
		(*cursor)->let_go = let_go;
		nv_count(&index->work.searches, 1);
	}
	nv_index_put(index);
	return status;
}

static void
start_task(searcher *s, nv_request *request)
{
	nv_cursor *cursor = NULL;
	task *t = s->tasks;
	nv_status status;
	nv_error err = {0};

	while (t->phase != TASK_FREE)
		t++;
	nv_assert(t < s->tasks + s->n_tasks);
	if (request->kind == NV_REQ_SEARCH)
		status = valid_search(&request->u.search)
					 ? begin_search(s->engine, request, &cursor, &err)
					 : nv_fail(&err, NV_EINVAL, 0, "search out of bounds");
	else
	{
		cursor =
			nv_cursor_take(s->engine, request->u.search.cursor, request->owner);
		status = cursor != NULL && request->u.search.k >= 1 &&
						 request->u.search.k <= NV_MAX_HITS
					 ? NV_OK
					 : nv_fail(&err, NV_ENOENT, 0, "no such cursor");
		if (status == NV_OK)
			status = nv_cursor_enter(cursor, false, &err);
	}
	if (status != NV_OK)
	{
		if (cursor != NULL)
			nv_cursor_leave(cursor);
		if (cursor != NULL)
			nv_cursor_give(s->engine, cursor, true);
		nv_answer(s->engine, request, status, &err);
		return;
	}
	t->request = request;
	t->cursor = cursor;
	t->hits = (nv_hit *) request->data;
	t->n_hits = 0;
	t->n_reads = t->next_read = 0;
	t->waiting = false;
	t->pending_from = 0;
	t->phase = request->kind == NV_REQ_SEARCH ? TASK_PENDING : TASK_GIVE;
}

static void
request_close(nv_engine *engine, nv_request *request)
{
	nv_engine_release_cursor(engine, request->u.search.cursor);
	nv_answer(engine, request, NV_OK, NULL);
}

static void
checkpoint_job(nv_engine *engine, nv_job *job)
{
	nv_index *index = nv_index_get(engine, &job->request->key, false);
	nv_error err = {0};
	nv_status status;

	status = index != NULL ? nv_index_checkpoint(index, &err)
						   : nv_fail(&err, NV_ENOENT, 0, "index is not open");
	if (status == NV_OK)
		nv_places_trim(index);
	nv_index_put(index);
	nv_answer(engine, job->request, status, &err);
}

static void
drop_job(nv_engine *engine, nv_job *job)
{
	nv_index *index = nv_index_get(engine, &job->request->key, true);
	nv_error err = {0};
	nv_status status = NV_OK;

	if (index != NULL)
	{
		pthread_mutex_lock(&index->load_lock);
		pthread_mutex_lock(&index->lock);
		index->dropped = true;
		index->state = NV_INDEX_ABSENT;
		nv_build_cancel(index);
		if (index->body != NULL)
			atomic_store(&index->body->remove_dir, true);
		pthread_mutex_unlock(&index->lock);
		nv_cursors_of_index(engine, index);
		nv_places_of_index(engine, index);
		nv_index_remove(index);
		status = nv_sidecar_remove(engine, &job->request->key, &err);
		pthread_mutex_unlock(&index->load_lock);
		nv_index_put(index);
		nv_places_serve(engine);
	}
	nv_answer(engine, job->request, status, &err);
}

/* Long requests and who runs them; NULL: not a job. */
static void (*job_of(uint32_t kind))(nv_engine *, nv_job *)
{
	switch (kind)
	{
		case NV_REQ_OPEN:
			return nv_job_open;
		case NV_REQ_OPENED:
			return nv_job_opened;
		case NV_REQ_BUILD_BEGIN:
			return nv_job_build_begin;
		case NV_REQ_BUILD_RUN:
			return nv_job_build_run;
		case NV_REQ_BUILD_ABORT:
			return nv_job_build_abort;
		case NV_REQ_CHECKPOINT:
			return checkpoint_job;
		case NV_REQ_DROP:
			return drop_job;
		case NV_REQ_CHECK:
			return nv_job_check;
		default:
			return NULL;
	}
}

static void
dispatch(searcher *s, nv_request *request)
{
	void (*run)(nv_engine *, nv_job *) = job_of(request->kind);
	nv_engine *engine = s->engine;
	nv_error err;

	if (run != NULL)
	{
		nv_pool *pool = request->kind == NV_REQ_BUILD_RUN ? &engine->builders
														  : &engine->jobs;
		nv_status status = nv_submit_job(engine, pool, run, request, NULL);

		if (status != NV_OK)
		{
			nv_fail(&err, status, 0, "engine is stopping");
			nv_answer(engine, request, status, &err);
		}
		return;
	}
	switch (request->kind)
	{
		case NV_REQ_SEARCH:
		case NV_REQ_NEXT:
			start_task(s, request);
			break;
		case NV_REQ_CLOSE:
			request_close(engine, request);
			break;
		case NV_REQ_INSERT:
			nv_request_insert(engine, request);
			break;
		case NV_REQ_RESERVE:
			nv_request_reserve(engine, request);
			break;
		case NV_REQ_DELETE:
			nv_request_delete(engine, request);
			break;
		case NV_REQ_RECONCILE:
			nv_request_reconcile(engine, request);
			break;
		case NV_REQ_FOLLOWED:
			nv_request_followed(engine, request);
			break;
		case NV_REQ_BUILD_ADD:
			nv_request_build_add(engine, request);
			break;
		case NV_REQ_CONSOLIDATE:
			nv_request_consolidate(engine, request);
			break;
		case NV_REQ_INFO:
			nv_request_info(engine, request);
			break;
		case NV_REQ_TOTALS:
			nv_request_totals(engine, request);
			break;
		default:
			nv_fail(&err, NV_EINVAL, 0, "unknown request %u", request->kind);
			nv_answer(engine, request, NV_EINVAL, &err);
			break;
	}
}

/* --- the loop --- */

static uint32_t
count_tasks(const searcher *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_tasks; i++)
		n += s->tasks[i].phase != TASK_FREE;
	return n;
}

/* Lets files go that somebody wants to close; none of them is being read. */
static void
serve_forget(searcher *s)
{
	nv_engine *engine = s->engine;
	uint64_t wanted = atomic_load(&engine->forget_seq);

	if (atomic_load(&s->self->forgotten) == wanted)
		return;
	pthread_mutex_lock(&engine->forget_lock);
	wanted = atomic_load(&engine->forget_seq);
	for (uint32_t i = 0; i < NV_LENGTH(engine->forget_files); i++)
		if (engine->forget_files[i] != NULL)
			nv_ring_forget(s->ring, engine->forget_files[i]);
	atomic_store(&s->self->forgotten, wanted);
	pthread_cond_broadcast(&engine->forget_cond);
	pthread_mutex_unlock(&engine->forget_lock);
}

static void
searcher_loop(searcher *s)
{
	const nv_port *port = s->engine->port;
	uint32_t looked = 0;

	for (;;)
	{
		uint32_t ticket = port->ticket(port->arg);
		uint32_t busy = count_tasks(s);
		nv_request *request;
		bool progress = false;

		serve_forget(s);
		/* Whoever gives a request up wakes us. */
		if (ticket != looked && atomic_load(&s->engine->places.n_parked) > 0)
			nv_places_look(s->engine);
		looked = ticket;
		if (atomic_load(&s->engine->stopping) && busy == 0)
			return;
		while (busy < s->n_tasks && !atomic_load(&s->engine->stopping) &&
			   (request = port->take(port->arg)) != NULL)
		{
			dispatch(s, request);
			busy = count_tasks(s);
			progress = true;
		}
		for (uint32_t i = 0; i < s->n_tasks; i++)
			progress |= step_task(s, &s->tasks[i]);
		if (nv_ring_inflight(s->ring) > 0)
			reap(s, !progress);
		else if (!progress && busy == 0)
			port->sleep(port->arg, ticket, IDLE_SLEEP_US);
	}
}

void *
nv_searcher_main(void *arg)
{
	nv_searcher *self = arg;
	nv_engine *engine = self->engine;
	searcher *s = nv_alloc(sizeof(*s));
	uint32_t n = engine->config.interleave;

	nv_assert(n >= 1 && n <= MAX_INTERLEAVE);
	/* io_uring wants a ring to be made by the thread that uses it. */
	if (s == NULL || nv_ring_create((nv_io_method) engine->config.io_method,
									(size_t) n * NV_SEARCH_BUFFER, &self->ring,
									&self->failure) != NV_OK)
	{
		if (s == NULL)
			(void) nv_fail(&self->failure, NV_ENOMEM, 0, "out of memory");
		free(s);
		atomic_store(&self->forgotten, UINT64_MAX);
		atomic_store(&self->state, NV_SEARCHER_FAILED);
		return NULL;
	}
	atomic_store(&self->uring, nv_ring_is_uring(self->ring));
	atomic_store(&self->state, NV_SEARCHER_READY);
	s->self = self;
	s->engine = engine;
	s->ring = self->ring;
	s->n_tasks = n;
	for (uint32_t i = 0; i < n; i++)
		s->tasks[i].buffer =
			nv_ring_arena(s->ring) + (size_t) i * NV_SEARCH_BUFFER;
	searcher_loop(s);
	nv_ring_destroy(self->ring);
	self->ring = NULL;
	pthread_mutex_lock(&engine->forget_lock);
	atomic_store(&self->forgotten, UINT64_MAX);
	pthread_cond_broadcast(&engine->forget_cond);
	pthread_mutex_unlock(&engine->forget_lock);
	free(s);
	return NULL;
}
