/*
 * sim_world.c
 *		The run of a simulated world: lives of an engine and how they end.
 */
#include "sim_internal.h"

#include <math.h>

#include "search_run.h"

#define LIVES 4
#define OPENING_CHANGES 12 /* and a few less that opening takes */
#define STATES 3           /* states looked at after one power failure */
#define SEARCH_LIST 250
#define SEARCH_RESULTS 100
/* Rows that fit pending_memory, and how many of them ask for a graph. */
#define PENDING_ROWS 1400u
#define MOST_SPACE (UINT64_C(1) << 20) /* that a small disk has left, bytes */
/* One world in so many of a kind and shape begins without a graph. */
#define EMPTY_WORLDS 12
/* One in so many of the others replaces codes. */
#define RETRAIN_WORLDS 8
#define MORE_ROWS 120u /* than NV_PQ_MIN_ROWS, so that some may be deleted */

/* --- The engine's surroundings --- */

static nv_request *
port_take(void *arg)
{
	return NULL;
}

static void
port_finish(void *arg, nv_request *request)
{
}

static uint32_t
port_ticket(void *arg)
{
	return 0;
}

static void
port_sleep(void *arg, uint32_t ticket, uint32_t timeout_us)
{
}

static void
port_kick(void *arg)
{
}

/* Step 8: from here on the root may be found. */
static nv_status
port_flush(void *arg, uint64_t lsn, nv_error *err)
{
	sim_note_flush(arg, lsn);
	return NV_OK;
}

static void
set_port(world *w)
{
	w->port = (nv_port){.arg = w,
						.take = port_take,
						.finish = port_finish,
						.ticket = port_ticket,
						.sleep = port_sleep,
						.kick = port_kick,
						.flush_wal = port_flush};
}

static nv_config
config_of_world(const world *w, bool cache)
{
	nv_config config;

	nv_config_defaults(&config);
	snprintf(config.directory, sizeof(config.directory), "/navis");
	config.io_method = NV_IO_SYNC;
	config.search_threads = 1;
	config.insert_threads = 0;
	config.insert_list_size = 24;
	config.cache_size = cache ? 256 * 1024 : 0;
	config.casr_warmup = 8;
	config.pending_memory = PENDING_ROWS * nv_pending_row_bytes(w->base->dim);
	config.build_memory = UINT64_C(1) << 30;
	config.build_threads = 1;
	return config;
}

static nv_request *
begin(world *w, nv_request_kind kind)
{
	nv_request *r = w->request;

	memset(&r->u, 0, sizeof(r->u));
	atomic_store(&r->state, NV_RUNNING);
	r->kind = kind;
	r->key = w->base->key;
	r->owner = 1;
	return r;
}

static nv_status
run_job(world *w, void (*job)(nv_engine *, nv_job *))
{
	nv_job j = {.request = w->request};

	job(w->engine, &j);
	return (nv_status) w->request->status;
}

/* --- Work --- */

static nv_status
send_insert(world *w, uint32_t e, bool from_heap)
{
	uint32_t dim = w->base->dim, vector = w->elements[e].vector;
	nv_request *r = begin(w, NV_REQ_INSERT);

	r->u.insert = (nv_req_insert){.element = e,
								  .generation = w->elements[e].generation,
								  .hash = w->base->hashes[vector],
								  .lsn = w->lsn,
								  .dim = dim,
								  .from_heap = from_heap};
	memcpy(r->data, w->base->vectors + (size_t) vector * dim,
		   dim * sizeof(float));
	nv_request_insert(w->engine, r);
	return (nv_status) r->status;
}

/* On a disk that is nearly full rows come after there is space for them. */
static bool
has_room(world *w)
{
	nv_body *body = w->index->body;
	uint64_t rows = nv_pending_count(w->index->pending) + 1;

	if (!w->short_of_room || body == NULL)
		return true;
	if (!nv_store_have_room(body->store, rows) &&
		nv_store_make_room(body->store, rows, NULL) != NV_OK)
		return false;
	w->promised = body->store;
	return true;
}

/* A new row; one in five is equal to another. */
static void
do_insert(world *w)
{
	uint32_t e = w->n_elements;
	nv_status status;

	/* An entry that is free again, or one more. */
	if (sim_pick(w, 2) == 0 || e == MAX_ELEMENTS)
		for (uint32_t i = 0; i < 20 && e == w->n_elements; i++)
		{
			uint32_t other = (uint32_t) sim_pick(w, w->n_elements);

			if (!w->elements[other].live)
				e = other;
		}
	if (e == MAX_ELEMENTS || !has_room(w))
		return;
	sim_journal_note(w, e);
	w->n_elements = NV_MAX(w->n_elements, e + 1);
	sim_journal_row(w, e,
					sim_pick(w, 5) == 0
						? w->elements[sim_pick(w, w->n_elements)].vector
						: (uint32_t) sim_pick(w, VECTORS));
	w->changed++;
	status = send_insert(w, e, false);
	if (status != NV_OK && !sim_may_fail(w))
		sim_fail(w, "INSERT: %s", w->request->detail);
	w->counts->inserts++;
}

static void
delete_row(world *w, uint32_t e, nv_element_ref *ref)
{
	sim_journal_note(w, e);
	w->elements[e].live = false;
	w->changed++;
	*ref = (nv_element_ref){e, w->elements[e].generation};
}

/* A few rows, or many. */
static void
do_delete(world *w)
{
	nv_request *r;
	nv_element_ref *refs;
	uint32_t n = 0, first_pick = 1 + (uint32_t) sim_pick(w, 6);
	uint32_t cluster = CLUSTERS;

	/* Without a graph there must be rows enough for one. */
	if (w->index->body == NULL)
		first_pick = 1;
	if (w->mood.deletes_many && sim_pick(w, 4) == 0)
		first_pick = 20 + (uint32_t) sim_pick(w, 100);
	if (w->mood.deletes_many && sim_pick(w, 6) == 0)
		cluster = (uint32_t) sim_pick(w, CLUSTERS);
	w->deleted_many |= first_pick > 6 || cluster < CLUSTERS;

	r = begin(w, NV_REQ_DELETE);
	refs = (nv_element_ref *) r->data;
	for (uint32_t i = 0; i < first_pick; i++)
	{
		uint32_t e = (uint32_t) sim_pick(w, w->n_elements);

		if (w->elements[e].live)
			delete_row(w, e, &refs[n++]);
	}
	/* All that lie together. */
	for (uint32_t e = 0; e < w->n_elements && cluster < CLUSTERS; e++)
		if (w->elements[e].live && w->elements[e].vector % CLUSTERS == cluster)
			delete_row(w, e, &refs[n++]);
	r->u.del.n = n;
	r->u.del.lsn = w->lsn;
	nv_request_delete(w->engine, r);
	if (r->status != NV_OK && !sim_may_fail(w))
		sim_fail(w, "DELETE: %s", r->detail);
	w->counts->deletes += n;
}

static void
do_link(world *w, uint32_t n)
{
	nv_body *body = nv_index_body(w->index);
	nv_error err = {0};

	if (body == NULL)
		return;
	if (nv_linker_use(&w->linker, body, &err) != NV_OK)
		sim_fail(w, "linker: %s", err.detail);
	w->linker.counters = &w->index->inserted;
	for (bool more = true; more && n > 0; n--)
	{
		w->linked_into = body->store;
		w->linked = sim_count_linked(body->store);
		w->freed = atomic_load(&w->index->consolidated.freed);
		w->linking = true;
		more = nv_insert_next(&w->linker, w->index, w->row);
		w->linking = false;
		w->counts->links += more;
		w->changed++;
	}
	nv_body_put(body);
	if (atomic_load(&w->index->inserted.failures) > 0 && !sim_may_fail(w) &&
		!w->short_of_room)
		sim_fail(w, "a row could not be linked");
}

static void
link_new_rows(world *w)
{
	for (int i = 0; i < 4; i++)
		do_insert(w);
	do_link(w, 4);
}

/* A writer is short of memory for sealed pages: it writes some out. */
static void
do_write_back(world *w)
{
	nv_body *body = nv_index_body(w->index);
	nv_error err = {0};

	if (body == NULL)
		return;
	if (nv_store_write_back(body->store, &err) != NV_OK && !sim_may_fail(w))
		sim_fail(w, "write back: %s", err.detail);
	nv_body_put(body);
}

/*
 * A vertex that a search gives is the one whose vector it has read: its id did
 * not come to another row meanwhile.
 */
static void
check_distance(world *w, const float *query, uint64_t hash, double distance)
{
	uint32_t dim = w->base->dim, v = 0;
	double exact = 0;

	while (v < VECTORS && w->base->hashes[v] != hash)
		v++;
	if (v == VECTORS)
		sim_check(w, w->kind == SIM_LIES);
	else
	{
		const float *row = w->base->vectors + (size_t) v * dim;

		for (uint32_t d = 0; d < dim; d++)
			exact +=
				((double) row[d] - query[d]) * ((double) row[d] - query[d]);
		if (fabs(sqrt(exact) - distance) > 1e-3 * (1 + sqrt(exact)) &&
			fabs(exact - distance) > 1e-3 * (1 + exact))
			sim_fail(w, "distance %g of a result is %g", exact, distance);
	}
}

/* Vertices freed, UINT64_MAX: some are being freed, and nobody waited for. */
static uint64_t
freed_so_far(world *w)
{
	if (atomic_load(&w->index->consolidated.phase) == NV_CONSOLIDATE_FREE)
		return UINT64_MAX;
	return atomic_load(&w->index->consolidated.freed);
}

/* A reader is inside since then: what it may know is not freed. */
static void
check_waited(world *w, const nv_body *body, uint64_t freed)
{
	/* Of another graph that took the place of this one it knows nothing. */
	if (freed != UINT64_MAX && w->index->body == body &&
		atomic_load(&w->index->consolidated.freed) != freed)
		sim_fail(w, "vertices were freed that a search may know");
}

/* The vertices that a search of this vector gives; false: it failed. */
static bool
graph_finds(world *w, nv_body *body, uint32_t vector, uint32_t list,
			bool *found)
{
	nv_search_options options = {.k = SEARCH_RESULTS,
								 .list_size = list,
								 .beam_width = 4,
								 .entrance_list = 10,
								 .window = NV_CASR_ALL,
								 .exclude = NV_NO_VERTEX,
								 .user = NV_CACHE_SEARCH};
	const float *query = w->base->vectors + (size_t) vector * w->base->dim;
	int epoch = nv_store_enter(body->store);
	uint64_t freed = freed_so_far(w);
	const nv_result *results;
	nv_error err;
	uint32_t n;
	bool ok;

	*found = false;
	w->searching = true;
	ok = nv_search_start(w->search, &body->view, &options, query,
						 nv_ring_arena(w->search_ring), &err) == NV_OK &&
		 nv_search_run(w->search, w->search_ring) == NV_OK &&
		 nv_search_get_stats(w->search)->damaged == 0;
	w->searching = false;
	n = ok ? nv_search_results(w->search, &results) : 0;
	for (uint32_t i = 0; i < n; i++)
	{
		uint64_t hash = nv_store_vector_hash(body->store, results[i].vertex);

		check_distance(w, query, hash, results[i].distance);
		*found |= hash == w->base->hashes[vector] && results[i].distance == 0;
	}
	check_waited(w, body, freed);
	nv_store_leave(body->store, epoch);
	return ok;
}

static void
count_search(world *w, bool found)
{
	w->counts->searches++;
	if (w->deleted_many)
		w->counts->missed += !found;
	else if (w->kind != SIM_LIES)
		w->counts->unfound += !found;
}

/* A live row is linked and found, or pending. */
static void
do_search(world *w)
{
	uint32_t e = (uint32_t) sim_pick(w, w->n_elements);
	const element *row = &w->elements[e], was = *row;
	nv_body *body = nv_index_body(w->index);
	uint64_t hash = w->base->hashes[row->vector];
	bool found;

	if (row->live && body != NULL &&
		nv_body_has(body, e, row->generation, hash))
	{
		uint32_t all = NV_MAX(atomic_load(&body->n_vertices), 1u);
		uint32_t list =
			nv_widen(SEARCH_LIST, atomic_load(&body->dead_vertices), all);

		if (!graph_finds(w, body, row->vector, list, &found))
			sim_check(w, sim_may_fail(w));
		else if (row->live && row->generation == was.generation)
			count_search(w, found);
		/* Or else others have deleted it meanwhile. */
	}
	nv_body_put(body);
}

static bool
do_checkpoint(world *w)
{
	nv_error err = {0};
	nv_status status;

	if (w->index->body == NULL)
		return true;
	sim_watch(w);
	nv_index_set_lsn(w->index, ++w->lsn);
	w->in_checkpoint = true;
	status = nv_index_checkpoint(w->index, &err);
	w->in_checkpoint = false;
	sim_watch(w);
	if (status == NV_OK)
		sim_check(w, w->under_way == 0);
	else if (!sim_may_fail(w) && !sim_refused(w, status))
		sim_fail(w, "checkpoint: %s", err.detail);
	return status == NV_OK;
}

/* Between the cut of a checkpoint and its end others go on. */
static void
work_beside_checkpoint(world *w)
{
	bool linking = w->linking;

	w->nested = true;
	for (uint64_t n = sim_pick(w, 6); n > 0; n--)
		switch (sim_pick(w, 6))
		{
			case 0:
				do_insert(w);
				break;
			case 1:
				do_delete(w);
				break;
			case 2:
				do_write_back(w);
				break;
			case 3:
			case 4:
				sim_go_on_beside(w);
				break;
			default:
				/* The one linker may be in the middle of something. */
				if (!linking)
					do_link(w, 1 + (uint32_t) sim_pick(w, 6));
		}
	w->nested = false;
}

/*
 * The one thread's turn goes to somebody else: while a row is being linked or
 * searched for, after the cut of a checkpoint.  A task has its turn as long as
 * it was told.
 */
static void
take_turns(void *arg, bool is_sync)
{
	world *w = arg;

	sim_watch(w);
	if (w->actor != ACTOR_MAIN)
	{
		if (w->budget > 0 && --w->budget == 0)
			sim_task_rest();
		return;
	}
	if (w->nested)
		return;
	if (w->in_checkpoint && is_sync)
		work_beside_checkpoint(w);
	else if ((w->linking || w->searching) && !w->in_checkpoint &&
			 sim_pick(w, w->turns) == 0)
		switch (sim_pick(w, 4))
		{
			case 0:
				(void) do_checkpoint(w);
				break;
			case 1:
				do_write_back(w);
				break;
			default:
				sim_go_on_beside(w);
				/* What it has freed comes to others. */
				if (w->searching && !w->linking)
					link_new_rows(w);
		}
}

/* --- Opening and ending --- */

/* The engine's own check finds nothing, but perhaps rows out of reach. */
static void
check_engine(world *w)
{
	nv_request *r = w->request;

	for (uint32_t part = 0; part < NV_CHECK_PARTS; part++)
	{
		begin(w, NV_REQ_CHECK)->u.check.part = part;
		if (run_job(w, nv_job_check) != NV_OK)
			sim_fail(w, "CHECK: %s", r->detail);
		sim_check(w, r->u.check.next == UINT64_MAX);
		if (w->kind != SIM_LIES && part != NV_CHECK_REACH && r->u.check.n > 0)
			sim_fail(w, "CHECK %u: %s", part, ((nv_problem *) r->data)->detail);
		if (part == NV_CHECK_REACH)
			w->counts->unreachable += r->u.check.n;
	}
}

/* As a backend does: a walk over the journal.  False: an error. */
static bool
catch_up(world *w)
{
	nv_request *r = begin(w, NV_REQ_OPEN);
	const uint32_t page = 500;
	uint64_t pass;

	r->u.open.params = w->base->params;
	r->u.open.params.consolidate_threshold = sim_pick(w, 3) == 0 ? 0.02f : 0.2f;
	w->interrupted = true;
	if (run_job(w, nv_job_open) != NV_OK || sim_disk_is_off(w->disk))
		return false;
	w->interrupted = false;
	sim_check(w, r->u.open.state == NV_INDEX_OPENING);
	pass = r->u.open.pass;
	if (w->index == NULL)
		w->index = nv_index_get(w->engine, &w->base->key, false);
	w->watched = NULL;
	if (r->u.open.has_graph)
		sim_check_opened(w, w->index->body);
	else if (w->acknowledged != 0)
		return false;
	sim_watch(w);
	for (uint32_t first = 0; first < w->n_elements; first += page)
	{
		nv_journal_entry *entry = (nv_journal_entry *) r->data;
		uint32_t missing[500], n;

		begin(w, NV_REQ_RECONCILE)->u.reconcile.pass = pass;
		r->u.reconcile.lsn = w->lsn;
		for (uint32_t e = first; e < w->n_elements && e < first + page; e++)
			if (w->elements[e].live)
				entry[r->u.reconcile.n++] =
					(nv_journal_entry){e, w->elements[e].generation,
									   w->base->hashes[w->elements[e].vector]};
		nv_request_reconcile(w->engine, r);
		sim_check(w, r->status == NV_OK);
		n = r->u.reconcile.n_missing;
		memcpy(missing, r->data, n * sizeof(*missing));
		for (uint32_t i = 0; i < n; i++)
			if (send_insert(w, missing[i], true) != NV_OK)
				return false;
	}
	begin(w, NV_REQ_OPENED)->u.opened.pass = pass;
	r->u.opened.complete = 1;
	return run_job(w, nv_job_opened) == NV_OK;
}

static void
start_engine(world *w)
{
	nv_config config = config_of_world(w, sim_pick(w, 2) == 0);
	nv_error err = {0};

	sim_disk_use(w->disk);
	sim_turns_blocked(sim_others_go, w);
	if (nv_engine_create(&config, &w->port, &w->engine, &err) != NV_OK)
		sim_fail(w, "engine: %s", err.detail);
	w->engine->pause = sim_others_go;
	w->engine->pause_arg = w;
}

/* Everything in memory goes; nothing more is written. */
static void
drop_engine(world *w)
{
	sim_watch(w);
	sim_kill_tasks(w);
	(void) nv_linker_use(&w->linker, NULL, NULL);
	nv_index_put(w->index);
	w->index = NULL;
	if (w->engine != NULL)
		nv_engine_stop(w->engine, false, 0);
	w->engine = NULL;
	free(w->wish);
	w->wish = NULL;
	w->promised = NULL;
	w->watched = NULL;
	w->in_checkpoint = w->nested = w->linking = false;
}

/* Opens what the disk holds.  False: damage was noticed, where there may be. */
static bool
open_world(world *w)
{
	start_engine(w);
	if (catch_up(w))
	{
		sim_check_rows(w);
		return true;
	}
	if (w->kind != SIM_LIES && !sim_disk_is_off(w->disk))
		sim_fail(w, "the sidecar is lost: %s", w->request->detail);
	w->counts->refused += !sim_disk_is_off(w->disk);
	return false;
}

static void
set_faults(world *w)
{
	sim_faults f = {0};

	if (w->kind == SIM_ERRORS)
		f = (sim_faults){.read_error = sim_pick(w, 3) == 0 ? 400 : 0,
						 .write_error = sim_pick(w, 3) == 0 ? 500 : 0,
						 .sync_error = sim_pick(w, 3) == 0 ? 3000 : 0,
						 .no_space = sim_pick(w, 2) == 0 ? 1000 : 0,
						 .short_transfer = sim_pick(w, 2) == 0 ? 3000 : 0};
	else if (w->kind == SIM_LIES)
		f.lost_write = sim_pick(w, 2) == 0 ? 300 : 0;
	w->lost_writes |= f.lost_write > 0;
	sim_disk_set_faults(w->disk, &f);
	w->short_of_room = sim_pick(w, 6) == 0;
	if (w->short_of_room)
		sim_disk_set_capacity(w->disk,
							  sim_disk_used(w->disk) + sim_pick(w, MOST_SPACE));
}

/* A store that failed is opened again at its last root, on the same disk. */
static bool
reopen_failed(world *w)
{
	sim_faults none = {0};
	bool ok;

	sim_watch(w);
	(void) nv_linker_use(&w->linker, NULL, NULL);
	/* The housekeeper notices. */
	nv_checkpoint_changed(w->engine, false);
	sim_check(w, w->index->body == NULL);
	sim_end_beside(w);
	sim_disk_set_faults(w->disk, &none);
	sim_disk_set_capacity(w->disk, 0);
	w->short_of_room = false;
	w->promised = NULL;
	ok = catch_up(w);
	if (ok)
		sim_check_rows(w);
	else if (w->kind != SIM_LIES && !sim_disk_is_off(w->disk))
		sim_fail(w, "cannot be opened again: %s", w->request->detail);
	return ok;
}

static void
do_something(world *w)
{
	switch (sim_pick(w, 20))
	{
		case 0:
		case 1:
		case 2:
		case 3:
			do_insert(w);
			break;
		case 4:
		case 5:
			do_delete(w);
			break;
		case 6:
		case 7:
		case 8:
		case 9:
		case 10:
			do_link(w, 1 + (uint32_t) sim_pick(w, 4));
			break;
		case 11:
			do_write_back(w);
			break;
		case 12:
		case 13:
			do_search(w);
			break;
		case 14:
		case 15:
		case 16:
		case 17:
			sim_go_on_beside(w);
			break;
		default:
			(void) do_checkpoint(w);
	}
}

static void
choose_mood(world *w)
{
	bool graph = w->index->body != NULL;

	w->mood = (mood){.consolidates = sim_pick(w, 2) == 0,
					 .builds = sim_pick(w, graph ? 10 : 2) == 0,
					 .deletes_many = graph && sim_pick(w, 2) == 0};
	if (w->may_retrain && graph && sim_pick(w, 4) > 0)
	{
		w->mood.retrains = true;
		w->mood.builds = w->mood.deletes_many = false;
	}
}

/* Works until power fails, or as long as the seed says. */
static void
live(world *w)
{
	uint64_t steps = 20 + sim_pick(w, 60);

	w->turns = sim_pick(w, 3) == 0 ? 15 : 150;
	choose_mood(w);
	if (w->mood.retrains)
		do_link(w, MORE_ROWS);
	sim_disk_set_hook(w->disk, take_turns, w);
	set_faults(w);
	while (steps-- > 0 && !sim_disk_is_off(w->disk))
	{
		nv_body *body;

		do_something(w);
		if (sim_disk_is_off(w->disk))
			break;
		body = w->index->body;
		if (body != NULL && atomic_load(&body->store->failed) &&
			!reopen_failed(w))
			break;
	}
	if (sim_pick(w, 2) == 0)
		sim_end_beside(w);
	sim_disk_calm(w->disk, true);
	if (!sim_disk_is_off(w->disk) && w->index->body != NULL)
	{
		sim_check_rows(w);
		/* A check might wait for others, so that they go on. */
		if (sim_pick(w, 4) == 0 && !sim_anybody_beside(w))
			check_engine(w);
	}
	sim_disk_calm(w->disk, false);
}

/* Other states the disk may be in: opened, looked at, and forgotten. */
static void
look_at_states(world *w)
{
	sim_disk *disk = w->disk;
	uint64_t acknowledged = w->acknowledged, under_way = w->under_way;
	bool interrupted = w->interrupted;

	for (int i = 0; i < STATES; i++)
	{
		w->disk = sim_disk_crash(disk, (sim_policy) sim_pick(w, SIM_POLICIES),
								 sim_pick(w, 4) == 0, nv_random(&w->random));
		(void) open_world(w);
		drop_engine(w);
		sim_disk_free(w->disk);
		w->acknowledged = acknowledged;
		w->under_way = under_way;
		w->interrupted = interrupted;
	}
	w->disk = disk;
	sim_disk_use(disk);
}

static void
power_fails(world *w)
{
	sim_disk *after;

	drop_engine(w);
	sim_journal_crash(w);
	look_at_states(w);
	after = sim_disk_crash(w->disk, (sim_policy) sim_pick(w, SIM_POLICIES),
						   sim_pick(w, 4) == 0, nv_random(&w->random));
	if (w->kind == SIM_LIES && sim_pick(w, 2) == 0)
	{
		/* Roots are small, and everything hangs on them. */
		static const struct
		{
			const char *file;
			uint64_t from, below;
		} where[] = {
			{"edges", 0, UINT64_MAX},
			{"vectors", 0, UINT64_MAX},
			{"state", 0, UINT64_MAX},
			{"state", offsetof(nv_root, number), offsetof(nv_root, key)}};
		size_t i = (size_t) sim_pick(w, NV_LENGTH(where));

		sim_disk_flip(after, where[i].file, where[i].from, where[i].below,
					  1 + (uint32_t) sim_pick(w, 8), nv_random(&w->random));
	}
	w->counts->changes += sim_disk_changes(w->disk);
	w->counts->faults += sim_disk_faults(w->disk);
	sim_disk_free(w->disk);
	w->disk = after;
	w->counts->crashes++;
}

static void
end_life(world *w)
{
	switch (sim_disk_is_off(w->disk) ? 0 : sim_pick(w, 4))
	{
		case 0:
		case 1:
			if (!sim_disk_is_off(w->disk) || sim_pick(w, 4) > 0)
			{
				power_fails(w);
				return;
			}
			/* FALLTHROUGH */
		case 2:
			drop_engine(w);
			sim_journal_crash(w);
			w->counts->kills++;
			break;
		default: /* in order */
			if (do_checkpoint(w))
				w->flushed = w->lsn;
			drop_engine(w);
	}
	sim_disk_resume(w->disk);
}

/* More rows for the first life to link. */
static void
journal_more_rows(world *w)
{
	for (uint32_t i = 0; i < MORE_ROWS; i++)
	{
		sim_journal_note(w, w->n_elements);
		sim_journal_row(w, w->n_elements++, (uint32_t) sim_pick(w, VECTORS));
	}
	w->flushed = w->lsn;
}

/* Writes go on while there is no engine: only the journal knows. */
static void
journal_only(world *w)
{
	for (uint64_t n = sim_pick(w, 12); n > 0; n--)
	{
		uint32_t e = (uint32_t) sim_pick(w, w->n_elements);

		sim_journal_note(w, e);
		if (w->elements[e].live)
			w->elements[e].live = false;
		else
			sim_journal_row(w, e, (uint32_t) sim_pick(w, VECTORS));
	}
}

/*
 * When power fails, in changes from the opening on; 0: it does not.  Rarely it
 * fails in the opening itself, which takes a few changes: never twice in a row,
 * for then the sidecar is taken for the reason.
 */
static uint64_t
choose_power_off(world *w, int i)
{
	if (!w->interrupted && i > 0 && sim_pick(w, 6) == 0)
		return 1 + sim_pick(w, OPENING_CHANGES);
	if (sim_pick(w, 8) == 0)
		return 0;
	return OPENING_CHANGES +
		   (i > 0 ? sim_pick(w, 250)
				  : sim_pick(w, (uint64_t) 1 << sim_pick(w, 8)));
}

/* All that is dead goes, and everything that is free can be had. */
static void
finish(world *w)
{
	sim_consolidate_all(w);
	if (w->index->body == NULL)
		return;
	(void) nv_linker_use(&w->linker, NULL, NULL);
	sim_check_counts(w, w->index->body);
	sim_check(w, w->kind == SIM_LIES ||
					 atomic_load(&w->index->body->dead_vertices) == 0);
	sim_check_ids(w, w->index->body->store);
	sim_check_codes(w, w->index->body, 0, 1);
}

static void
run_lives(world *w, uint64_t power_off_at)
{
	for (int i = 0; i < LIVES; i++)
	{
		uint64_t off = choose_power_off(w, i);

		if (i == 0 && power_off_at != 0)
			off = power_off_at;
		sim_disk_power_off_at(w->disk,
							  off == 0 ? 0 : sim_disk_changes(w->disk) + off);
		if (open_world(w))
			live(w);
		else if (!sim_disk_is_off(w->disk))
			return; /* damage was noticed */
		w->counts->lives++;
		end_life(w);
		if (sim_pick(w, 3) == 0)
			journal_only(w);
	}
	if (open_world(w))
	{
		do_link(w, MAX_ELEMENTS);
		sim_check_rows(w);
		(void) do_checkpoint(w);
		finish(w);
		for (int i = 0; i < 20; i++)
			do_search(w);
		if (w->index->body != NULL)
			check_engine(w);
	}
}

/* --- Running --- */

static void
init_world(world *w, const sim_base *base, uint64_t seed, bool empty)
{
	nv_error err;

	nv_store_number_files(1);
	w->base = base;
	w->seed = seed;
	w->random = nv_random_seed(seed);
	w->disk =
		sim_disk_copy(empty ? base->empty : base->disk, nv_random(&w->random));
	w->row = sim_must(nv_alloc(base->dim * sizeof(float)));
	w->request = sim_must(nv_alloc(sizeof(*w->request)));
	set_port(w);
	if (nv_ring_create(NV_IO_SYNC, NV_SEARCH_BUFFER, &w->linker.ring, &err) !=
			NV_OK ||
		nv_ring_create(NV_IO_SYNC, 0, &w->linker.write_ring, &err) != NV_OK ||
		nv_ring_create(NV_IO_SYNC, NV_SEARCH_BUFFER, &w->search_ring, &err) !=
			NV_OK ||
		nv_search_create(&w->search, &err) != NV_OK)
		abort();
	w->n_elements = BASE_ROWS;
	for (uint32_t e = 0; e < BASE_ROWS; e++)
		sim_journal_row(w, e, e % (BASE_ROWS - BASE_EQUAL));
}

static void
copy_root(world *w, const snapshot *from)
{
	snapshot *s = sim_new_snapshot(w);

	*s = *from;
	s->vertex = sim_must(nv_alloc_array(s->n_vertices + 1, sizeof(*s->vertex)));
	s->element =
		sim_must(nv_alloc_array(s->n_elements + 1, sizeof(*s->element)));
	s->vector = NULL;
	memcpy(s->vertex, from->vertex, s->n_vertices * sizeof(*s->vertex));
	memcpy(s->element, from->element, s->n_elements * sizeof(*s->element));
	sim_take_vectors(s, w->elements);
	w->acknowledged = w->flushed = w->lsn = s->lsn;
}

static void
free_world(world *w)
{
	for (uint32_t i = 0; i < w->n_snapshots; i++)
		sim_free_snapshot(&w->snapshots[i]);
	free(w->snapshots);
	nv_search_free(w->search);
	nv_ring_destroy(w->search_ring);
	nv_ring_destroy(w->linker.ring);
	nv_ring_destroy(w->linker.write_ring);
	sim_disk_use(NULL);
	sim_turns_blocked(NULL, NULL);
	sim_disk_free(w->disk);
	free(w->journal);
	free(w->past);
	free(w->row);
	free(w->request);
	free(w);
}

/* A root that can be read is whole: nothing is made of one that is not. */
static void
hear(void *arg, nv_log_level level, const char *line)
{
	world *w = arg;

	w->fell_back |= strstr(line, "the one before it is used") != NULL;
	if (getenv("NAVIS_SIM_LOG") != NULL)
		fprintf(stderr, "%s\n", line);
}

bool
sim_run(const sim_base *base, sim_kind kind, uint64_t seed,
		uint64_t power_off_at, sim_counts *counts, char *why)
{
	world *w = sim_must(nv_alloc(sizeof(*w)));
	bool empty = power_off_at == 0 && seed / 13 % EMPTY_WORLDS == 5;

	init_world(w, base, seed, empty);
	w->kind = kind;
	w->counts = counts;
	w->why = why;
	w->may_retrain = power_off_at == 0 && seed / 19 % RETRAIN_WORLDS == 0;
	nv_set_log_sink(hear, w);
	/* What a contradicted world holds is left behind: the test has failed. */
	if (setjmp(w->failed) != 0)
	{
		sim_disk_use(NULL);
		nv_set_log_sink(NULL, NULL);
		return false;
	}
	if (empty)
		w->lsn = w->flushed = 1; /* 0 means that there is no journal */
	else
		copy_root(w, &base->root);
	if (w->may_retrain && !empty)
		journal_more_rows(w);
	run_lives(w, power_off_at);
	drop_engine(w);
	counts->changes += sim_disk_changes(w->disk);
	counts->faults += sim_disk_faults(w->disk);
	free_world(w);
	nv_set_log_sink(NULL, NULL);
	return true;
}

/* --- Building --- */

static void
add_rows(world *w)
{
	uint32_t dim = w->base->dim;
	size_t bytes =
		nv_round_up(sizeof(nv_journal_entry) + dim * sizeof(float), 8);
	uint32_t a_request = (uint32_t) (NV_REQUEST_DATA / bytes);

	for (uint32_t e = 0; e < w->n_elements;)
	{
		nv_request *r = begin(w, NV_REQ_BUILD_ADD);
		uint32_t k = 0;

		for (; k < a_request && e < w->n_elements; k++, e++)
		{
			uint32_t v = w->elements[e].vector;
			nv_journal_entry entry = {e, 1, w->base->hashes[v]};

			memcpy(r->data + k * bytes, &entry, sizeof(entry));
			memcpy(r->data + k * bytes + sizeof(entry),
				   w->base->vectors + (size_t) v * dim, dim * sizeof(float));
		}
		r->u.build.n = k;
		nv_request_build_add(w->engine, r);
		sim_check(w, r->status == NV_OK);
	}
}

static nv_status
build_graph(world *w, bool rebuild)
{
	nv_req_build *b = &begin(w, NV_REQ_BUILD_BEGIN)->u.build;

	b->params = w->base->params;
	b->expected_rows = BASE_ROWS;
	b->build_memory = UINT64_C(1) << 30;
	b->threads = 1;
	b->rebuild = rebuild;
	sim_check(w, run_job(w, nv_job_build_begin) == NV_OK);
	add_rows(w);
	begin(w, NV_REQ_BUILD_RUN)->u.build.lsn = ++w->lsn;
	return run_job(w, nv_job_build_run);
}

/* --- Scripts --- */

static bool
run_rebuild(world *w)
{
	nv_status status;

	w->building = true;
	status = build_graph(w, true);
	w->building = false;
	return status == NV_OK;
}

/* Three runs, rows that come and go beside them, ids that are used again. */
static bool
run_consolidation(world *w)
{
	w->mood = (mood){.consolidates = true, .deletes_many = true};
	w->turns = 40;
	sim_disk_set_hook(w->disk, take_turns, w);
	for (int i = 0; i < 3 && !sim_disk_is_off(w->disk); i++)
	{
		do_delete(w);
		do_delete(w);
		sim_end_beside(w);
		sim_start_consolidation(w, 0);
		for (int k = 0; k < 12 && !sim_disk_is_off(w->disk); k++)
		{
			do_insert(w);
			sim_let_go(w, ACTOR_CONSOLIDATOR, 1 + sim_pick(w, 30));
			do_link(w, 1);
		}
		sim_end_beside(w);
		do_link(w, MAX_ELEMENTS);
	}
	return !sim_disk_is_off(w->disk);
}

/*
 * A full disk refuses a checkpoint and harms nothing; with room for rows made
 * ahead it does not.
 */
static void
fill_disk(world *w)
{
	nv_store *store = w->index->body->store;
	uint64_t links;
	nv_error err;

	for (int i = 0; i < 5; i++)
		do_insert(w);
	sim_disk_set_capacity(w->disk, sim_disk_used(w->disk));
	w->short_of_room = true;
	do_link(w, 5);
	do_delete(w);
	sim_check(w, nv_index_checkpoint(w->index, &err) == NV_ENOSPC);
	sim_check(w, !atomic_load(&store->failed));
	nv_checkpoint_changed(w->engine, true);
	sim_check(w, w->index->body != NULL && w->index->body->store == store);
	for (int i = 0; i < 10; i++)
		do_search(w);
	sim_disk_set_capacity(w->disk, 0);
	sim_check(w, do_checkpoint(w));
	/* Promised. */
	sim_check(w, nv_store_make_room(store, 100, NULL) == NV_OK);
	sim_disk_set_capacity(w->disk, sim_disk_used(w->disk));
	w->promised = store;
	links = w->counts->links;
	for (int i = 0; i < 50; i++)
	{
		do_insert(w);
		do_link(w, 1);
		do_delete(w);
		if (i % 5 == 0)
			sim_check(w, do_checkpoint(w));
	}
	sim_check(w, w->counts->links - links >= 45);
	sim_check_rows(w);
	check_engine(w);
}

static void
delete_below(world *w, uint32_t end)
{
	const uint32_t most = 100; /* a request */

	for (uint32_t e = 0; e < end;)
	{
		nv_request *r = begin(w, NV_REQ_DELETE);
		nv_element_ref *refs = (nv_element_ref *) r->data;
		uint32_t n = 0;

		for (; e < end && n < most; e++)
			if (w->elements[e].live)
				delete_row(w, e, &refs[n++]);
		r->u.del.n = n;
		r->u.del.lsn = w->lsn;
		nv_request_delete(w->engine, r);
		sim_check(w, r->status == NV_OK);
	}
}

/*
 * All rows but one are being taken out when that one is deleted, too, and every
 * new one as soon as it is linked.  So there are only dead vertices around, and
 * none that is about to be freed must become a neighbour.
 */
static void
let_all_die(world *w, uint64_t budget)
{
	delete_below(w, w->n_elements - 1);
	w->turns = UINT64_MAX;
	sim_disk_set_hook(w->disk, take_turns, w);
	sim_start_consolidation(w, 0);
	sim_let_go(w, ACTOR_CONSOLIDATOR, budget);
	delete_below(w, w->n_elements);
	for (int i = 0; i < 200 && w->task[ACTOR_CONSOLIDATOR] != NULL; i++)
	{
		do_insert(w);
		do_link(w, 1);
		sim_check_newcomers(w, w->index->body);
		delete_below(w, w->n_elements);
		sim_let_go(w, ACTOR_CONSOLIDATOR, 1);
	}
	do_insert(w);
	sim_end_beside(w);
	do_link(w, MAX_ELEMENTS);
	sim_disk_set_hook(w->disk, NULL, NULL);
	sim_check_graph(w, w->index->body);
	sim_check_rows(w);
}

static void
run_and_crash(world *w, sim_script script, uint64_t power_off_at,
			  bool *finished)
{
	if (!open_world(w))
		sim_fail(w, "the base cannot be opened");
	if (script == SIM_FULL_DISK || script == SIM_ALL_DIE)
	{
		if (script == SIM_FULL_DISK)
			fill_disk(w);
		else
			let_all_die(w, w->seed);
		*finished = true;
		return;
	}
	sim_disk_power_off_at(w->disk, sim_disk_changes(w->disk) + power_off_at);
	*finished =
		(script == SIM_REBUILD ? run_rebuild(w) : run_consolidation(w)) &&
		!sim_disk_is_off(w->disk);
	sim_disk_set_hook(w->disk, NULL, NULL);
	power_fails(w);
	/* The old graph or the new one, never neither. */
	if (!open_world(w))
		return;
	check_engine(w);
	if (script == SIM_CONSOLIDATE)
	{
		do_link(w, MAX_ELEMENTS);
		finish(w);
	}
}

bool
sim_run_script(const sim_base *base, sim_script script, uint64_t seed,
			   uint64_t power_off_at, bool *finished, sim_counts *counts,
			   char *why)
{
	world *w = sim_must(nv_alloc(sizeof(*w)));

	init_world(w, base, seed, false);
	w->kind = SIM_POWER;
	w->counts = counts;
	w->why = why;
	nv_set_log_sink(hear, w);
	if (setjmp(w->failed) != 0)
	{
		sim_disk_use(NULL);
		nv_set_log_sink(NULL, NULL);
		return false;
	}
	copy_root(w, &base->root);
	run_and_crash(w, script, power_off_at, finished);
	drop_engine(w);
	free_world(w);
	nv_set_log_sink(NULL, NULL);
	return true;
}

/* --- The base --- */

static void
make_vectors(sim_base *base)
{
	uint64_t random = nv_random_seed(11);
	uint32_t dim = base->dim;

	base->vectors =
		sim_must(nv_alloc_array((size_t) VECTORS * dim, sizeof(float)));
	base->hashes = sim_must(nv_alloc_array(VECTORS, sizeof(*base->hashes)));
	for (uint32_t v = 0; v < VECTORS; v++)
	{
		float *row = base->vectors + (size_t) v * dim;
		uint64_t cluster = nv_random_seed(v % CLUSTERS);

		for (uint32_t d = 0; d < dim; d++)
			row[d] = (float) (nv_random(&cluster) >> 40) / (float) (1 << 23) +
					 (float) (nv_random(&random) >> 40) / (float) (1 << 23);
		base->hashes[v] = nv_vector_hash(row, dim * sizeof(float));
	}
}

static void
build_base(world *w, sim_base *base)
{
	start_engine(w);
	if (nv_dir_make("/navis", NULL) != NV_OK || nv_dir_sync("/", NULL) != NV_OK)
		abort();
	base->empty = sim_disk_copy(w->disk, 1);
	w->building = true;
	if (build_graph(w, false) != NV_OK)
		sim_fail(w, "build: %s", w->request->detail);
	w->index = nv_index_get(w->engine, &base->key, false);
	sim_take_snapshot(w->index->body->store, &base->root);
	base->root.lsn = atomic_load(&w->index->body->store->published_lsn);
	drop_engine(w);
}

sim_base *
sim_base_new(uint32_t dim, uint32_t align)
{
	sim_base *base = sim_must(nv_alloc(sizeof(*base)));
	world *w = sim_must(nv_alloc(sizeof(*w)));
	char why[SIM_WHY];

	base->dim = dim;
	base->key = (nv_key){.system_id = 42, .database = 5};
	memset(base->key.identity, 7, sizeof(base->key.identity));
	base->params = (nv_index_params){.dim = dim,
									 .metric = NV_METRIC_L2,
									 .max_degree = MAX_DEGREE,
									 .build_list_size = 30,
									 .pq_bytes = 8,
									 .alpha = 1.2f,
									 .entrance_ratio = 0.02f,
									 .entrance_degree = 8,
									 .relfilenode = 1,
									 .index_oid = 2};
	make_vectors(base);
	base->disk = sim_disk_new(1);
	base->empty = base->disk;
	sim_disk_set_align(base->disk, align);
	init_world(w, base, 1, false);
	w->why = why;
	if (setjmp(w->failed) != 0)
	{
		fprintf(stderr, "%s\n", why);
		abort();
	}
	sim_disk_free(w->disk);
	w->disk = base->disk;
	build_base(w, base);
	/* What was not synced, if anything, is lost: the base is what is durable.
	 */
	base->disk = sim_disk_crash(w->disk, SIM_NOTHING, false, 1);
	free_world(w);
	return base;
}

void
sim_base_free(sim_base *base)
{
	sim_free_snapshot(&base->root);
	sim_disk_free(base->disk);
	sim_disk_free(base->empty);
	free(base->vectors);
	free(base->hashes);
	free(base);
}
