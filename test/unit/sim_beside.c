/*
 * sim_beside.c
 *		What goes on beside everything else in a simulated world: consolidation,
 *		graphs that the engine builds by itself, and codes that are replaced.
 *
 * Each is a task (sim_turns.h) that runs the engine's own function for it and
 * rests after so many reads and syncs, where it waits for somebody, and where
 * it meets a lock of somebody who rests.  Cuts are noted at the first read or
 * sync after them, whoever makes them: until then nobody else had a turn.
 */
#include "sim_internal.h"

#include "retrain.h"

#define DRIFTED_ROWS 1200u /* rows that make a codebook unfit */
#define DRIFTED_ERROR 100.0
#define RETRAIN_ROOM 600u /* rows that may come meanwhile */

void
sim_give_up(world *w)
{
	if (w->actor == ACTOR_MAIN)
		longjmp(w->failed, 1);
	w->failed_in_task = true;
	for (;;)
		sim_task_rest();
}

/* --- Roots --- */

/* The last root that was begun may be known to be published. */
static void
note_published(world *w, nv_store *store)
{
	uint64_t lsn = atomic_load(&store->published_lsn);

	if (lsn == w->acknowledged || (lsn != w->under_way && lsn != w->built_lsn))
		return;
	w->acknowledged = lsn;
	if (lsn == w->under_way)
	{
		w->counts->checkpoints++;
		sim_disk_calm(w->disk, true);
		sim_check_kept(w, store);
		sim_check_published(w, store, sim_find_snapshot(w, lsn));
		sim_disk_calm(w->disk, false);
	}
	w->under_way = 0;
}

/* LSNs tell roots apart. */
static void
next_lsn(world *w)
{
	w->lsn++;
	if (w->index != NULL)
		nv_index_set_lsn(w->index, w->lsn);
}

/* A cut was made: nothing was changed since. */
static void
note_cut(world *w, nv_store *store)
{
	snapshot *s = sim_new_snapshot(w);

	s->lsn = atomic_load(&w->index->lsn);
	s->store = store;
	w->last_cut = s->lsn;
	/* All its back edges are there before a vertex counts as linked. */
	if (w->linking && !w->nested &&
		atomic_load(&w->index->consolidated.freed) == w->freed &&
		w->linked_into == store)
		sim_check(w, sim_count_linked(store) == w->linked);
	sim_disk_calm(w->disk, true);
	sim_take_snapshot(store, s);
	sim_take_vectors(s, w->elements);
	sim_disk_calm(w->disk, false);
	next_lsn(w);
}

void
sim_watch(world *w)
{
	nv_body *body = w->index != NULL ? w->index->body : NULL;
	uint64_t epoch;

	if (body == NULL)
		return;
	note_published(w, body->store);
	epoch = atomic_load(&body->store->epoch);
	if (body->store == w->watched && epoch != w->epoch_seen)
		note_cut(w, body->store);
	/* Another graph took its place: what becomes of its root is no matter. */
	if (w->watched != NULL && body->store != w->watched)
		w->under_way = 0;
	if (body->store != w->watched)
		sim_watch_built(w, body->store);
	w->watched = body->store;
	w->epoch_seen = epoch;
	if (w->task[ACTOR_CONSOLIDATOR] != NULL || w->linking)
		sim_check_kept(w, body->store);
}

void
sim_note_flush(world *w, uint64_t lsn)
{
	const snapshot *root;

	sim_watch(w);
	root = sim_find_snapshot(w, lsn);
	w->flushed = NV_MAX(w->flushed, lsn);
	if (w->actor == ACTOR_BUILDER || w->building)
	{
		snapshot *s = sim_new_snapshot(w);

		s->lsn = w->built_lsn = lsn;
		s->built = true;
		next_lsn(w);
	}
	/* Not that of a graph whose place another has taken. */
	else if (root != NULL && root->store == w->watched)
		w->under_way = lsn;
}

/* --- Turns --- */

void
sim_let_go(world *w, actor who, uint64_t budget)
{
	bool ended;

	nv_assert(w->actor == ACTOR_MAIN);
	if (w->task[who] == NULL)
		return;
	w->actor = who;
	w->budget = budget;
	ended = sim_task_go(w->task[who]);
	w->actor = ACTOR_MAIN;
	if (w->failed_in_task)
		sim_give_up(w);
	sim_watch(w);
	if (ended)
		w->task[who] = NULL;
}

bool
sim_anybody_beside(const world *w)
{
	for (actor a = ACTOR_MAIN + 1; a < ACTORS; a++)
		if (w->task[a] != NULL)
			return true;
	return false;
}

void
sim_others_go(void *arg)
{
	world *w = arg;

	if (w->actor != ACTOR_MAIN)
	{
		sim_task_rest();
		return;
	}
	if (!sim_anybody_beside(w))
		sim_fail(w, "somebody waits for nobody");
	for (actor a = ACTOR_MAIN + 1; a < ACTORS; a++)
		sim_let_go(w, a, 1);
}

void
sim_kill_tasks(world *w)
{
	if (!sim_anybody_beside(w))
		return;
	sim_disk_power_off(w->disk);
	atomic_store(&w->engine->stopping, true);
	while (sim_anybody_beside(w))
		sim_others_go(w);
	w->counts->cut_short += w->wish != NULL;
}

/* --- Consolidation --- */

static bool
make_rings(nv_linker *linker)
{
	nv_error err;

	return nv_ring_create(NV_IO_SYNC, NV_SEARCH_BUFFER, &linker->ring, &err) ==
			   NV_OK &&
		   nv_ring_create(NV_IO_SYNC, 0, &linker->write_ring, &err) == NV_OK;
}

static void
consolidate(void *arg)
{
	world *w = arg;
	nv_linker linker = {0};

	if (!make_rings(&linker))
		abort();
	while (!atomic_load(&w->engine->stopping) &&
		   nv_consolidate_next(w->engine, &linker))
		;
	nv_ring_destroy(linker.ring);
	nv_ring_destroy(linker.write_ring);
}

void
sim_start_consolidation(world *w, float threshold)
{
	nv_request *r;

	nv_assert(w->wish == NULL && w->task[ACTOR_CONSOLIDATOR] == NULL);
	w->wish = r = sim_must(nv_alloc(sizeof(*r)));
	atomic_store(&r->state, NV_RUNNING);
	r->kind = NV_REQ_CONSOLIDATE;
	r->key = w->base->key;
	r->owner = 2;
	r->status = UINT32_MAX;
	r->u.consolidate.threshold = threshold;
	nv_request_consolidate(w->engine, r);
	w->wish_changed = w->changed;
	/* After a failure it would wait for a minute. */
	atomic_store(&w->index->consolidate_after_ns, 0);
	w->task[ACTOR_CONSOLIDATOR] = sim_task_start(consolidate, w);
}

/* What a run that came to its end must have left. */
static void
check_consolidated(world *w)
{
	const nv_req_consolidate *out = &w->wish->u.consolidate;
	nv_body *body = w->index->body;
	nv_store_stats stats;

	if (w->wish->status != NV_OK)
	{
		if (w->wish->status != NV_ECANCELLED && w->wish->status != NV_EBUSY &&
			w->wish->status != NV_EUNUSABLE && !sim_may_fail(w) &&
			!(w->short_of_room && w->wish->status == NV_ENOSPC))
			sim_fail(w, "CONSOLIDATE: %s", w->wish->detail);
		w->counts->cut_short++;
		return;
	}
	w->counts->consolidations += out->runs;
	w->counts->freed += out->freed;
	if (body == NULL || out->runs == 0)
		return;
	/* Nothing died, and nothing came back, meanwhile. */
	if (w->changed == w->wish_changed && out->deleted != 0)
		sim_fail(w, "%" PRIu64 " dead vertices are left", out->deleted);
	/* Its checkpoint has let go of the ids. */
	nv_store_get_stats(body->store, &stats);
	if (w->changed == w->wish_changed && !sim_may_fail(w) && !w->short_of_room)
		sim_check(w, stats.freed_vertices == 0);
	if (!w->linking)
		sim_check_counts(w, body);
	if (!w->lost_writes)
		sim_check_graph(w, body);
}

static void
end_wish(world *w)
{
	if (w->wish == NULL || w->task[ACTOR_CONSOLIDATOR] != NULL)
		return;
	sim_disk_calm(w->disk, true);
	check_consolidated(w);
	sim_disk_calm(w->disk, false);
	free(w->wish);
	w->wish = NULL;
}

static void
go_on_consolidating(world *w)
{
	/* It may have come to its end while somebody waited for it. */
	end_wish(w);
	if (w->task[ACTOR_CONSOLIDATOR] == NULL)
	{
		sim_start_consolidation(w, sim_pick(w, 3) == 0 ? 0.05f : 0);
		return;
	}
	/* Whoever asked for it may go; what it did stays. */
	if (sim_pick(w, 60) == 0)
	{
		uint32_t running = NV_RUNNING;

		atomic_compare_exchange_strong(&w->wish->state, &running, NV_ABANDONED);
	}
	/* Now and then as far as it comes without others: past a search that
	   still has the lists of before. */
	sim_let_go(w, ACTOR_CONSOLIDATOR,
			   sim_pick(w, w->searching || w->linking ? 3 : 20) == 0
				   ? 0
				   : 1 + sim_pick(w, (uint64_t) 1 << sim_pick(w, 9)));
	end_wish(w);
}

void
sim_consolidate_all(world *w)
{
	sim_end_beside(w);
	if (w->index->body == NULL)
		return;
	sim_start_consolidation(w, 0);
	while (w->task[ACTOR_CONSOLIDATOR] != NULL)
		sim_let_go(w, ACTOR_CONSOLIDATOR, 0);
	end_wish(w);
}

/* --- Builds --- */

static void
build(void *arg)
{
	world *w = arg;

	/* When it looks for the first time rows seem to pour in. */
	if (!nv_renew_next(w->engine))
		(void) nv_renew_next(w->engine);
}

/* Rows come that are like none the codebook was trained for. */
static void
drift(nv_body *body)
{
	for (uint32_t i = 0; body != NULL && i < DRIFTED_ROWS; i++)
		nv_drift_add(&body->drift, DRIFTED_ERROR);
}

static void
start_build(world *w)
{
	w->index->plan.after_ns = 0;
	w->index->plan.min_rows = 0;
	drift(w->index->body);
	w->task[ACTOR_BUILDER] = sim_task_start(build, w);
	w->counts->builds++;
}

static void
go_on_building(world *w)
{
	if (w->task[ACTOR_BUILDER] == NULL)
	{
		/* One a life is enough, it takes the time of a thousand rows. */
		w->mood.builds = false;
		start_build(w);
		return;
	}
	sim_let_go(w, ACTOR_BUILDER,
			   1 + sim_pick(w, (uint64_t) 1 << sim_pick(w, 6)));
}

/* --- Retraining --- */

static void
retrain(void *arg)
{
	world *w = arg;

	if (nv_retrain_next(w->engine))
		w->counts->retrained += atomic_load(&w->index->retrained);
}

/* There is no memory for a build, but for other codes. */
static void
start_retraining(world *w)
{
	nv_body *body = w->index->body;
	uint64_t memory =
		nv_retrain_memory(body, nv_store_vertices(body->store) + RETRAIN_ROOM);

	nv_engine_set_build(w->engine, memory, 1);
	w->index->retrain_after_ns = 0;
	drift(body);
	w->task[ACTOR_RETRAINER] = sim_task_start(retrain, w);
}

static void
go_on_retraining(world *w)
{
	if (w->task[ACTOR_RETRAINER] == NULL)
	{
		/* One a life is enough. */
		w->mood.retrains = false;
		if (w->index->body != NULL)
			start_retraining(w);
		return;
	}
	/* It reads a row at a time. */
	sim_let_go(w, ACTOR_RETRAINER,
			   1 + sim_pick(w, (uint64_t) 1 << sim_pick(w, 12)));
}

/* --- All --- */

void
sim_go_on_beside(world *w)
{
	if (w->mood.retrains || w->task[ACTOR_RETRAINER] != NULL)
		go_on_retraining(w);
	if (w->mood.builds || w->task[ACTOR_BUILDER] != NULL)
		go_on_building(w);
	if (w->mood.consolidates && w->index->body != NULL)
		go_on_consolidating(w);
}

void
sim_end_beside(world *w)
{
	while (sim_anybody_beside(w))
	{
		sim_let_go(w, ACTOR_CONSOLIDATOR, 1 + sim_pick(w, 64));
		sim_let_go(w, ACTOR_BUILDER, 1 + sim_pick(w, 64));
		if (w->task[ACTOR_RETRAINER] != NULL)
			sim_let_go(w, ACTOR_RETRAINER, 1 + sim_pick(w, 64));
	}
	end_wish(w);
}
