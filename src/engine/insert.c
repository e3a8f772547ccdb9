/*
 * insert.c
 *		Insert threads: rows leave the queue of unlinked ones for the graph.
 *
 * A row's life: taken from the queue, but still compared exactly by every
 * search; an equal vector is looked for; else its position is sought, it gets
 * a vertex, a list and back edges, and the linked bit.  Only then, in one step
 * under the index's lock, does the row get its element and stop being pending.
 * A search compares pending rows before it takes the graph, so it meets the
 * row in one of them at least; in both, cursor.c gives it once.
 *
 * A deletion that comes first finds the row pending and removes it: the step
 * then finds nothing to move, and the vertex stays as a deleted one.  While a
 * rebuild runs nothing is moved: the rows it does not know must be pending
 * when it is done.
 *
 * A vertex that is being consolidated (nv_body_dying) is as if it were not
 * there, unless it has rows again; consolidate.c waits for insertions that
 * could think otherwise, by the epoch each of them is in.
 *
 * Source: design.md sections 3 ("vertex"), 4 ("Checkpoint protocol" 4,
 * "Concurrency" 5), 6 ("Insert").
 */
#include "linker.h"
#include "pq_internal.h"

#include "navis/hash.h"

#define BATCH 64 /* rows of one index before others have their turn */
#define IDLE_MS 200
/* For a checkpoint, at most; and between two looks at whether it is over. */
#define CHECKPOINT_WAIT_NS (UINT64_C(5000) * 1000000u)
#define CHECKPOINT_LOOK_US 1000
#define KEEP_BODY_NS (UINT64_C(1000) * 1000000u) /* a graph without work */
#define RETRY_NS (UINT64_C(1000) * 1000000u)     /* after a failure */

/* One thread. */
typedef struct inserter
{
	nv_engine *engine;
	nv_linker linker;
	uint32_t next_slot; /* of the table of indexes, where to look first */
	uint64_t worked_ns; /* when it last linked a row */
	float *row;         /* of the index at hand */
	uint32_t row_dim;
} inserter;

/* --- Moving a row --- */

/* What moving a row came to. */
typedef enum settled
{
	SETTLED,      /* it has its element, or is gone */
	SETTLE_LATER, /* it stays pending for now */
	SETTLE_DEAD   /* the vertex has no rows any more: it must be linked anew */
} settled;

/*
 * The row gets its element and is pending no more.  linked: the vertex was
 * just linked; it was not before if fresh.
 */
static nv_status
settle(nv_index *index, nv_body *body, const nv_journal_entry *entry,
	   uint32_t vertex, bool linked, bool fresh, settled *how, nv_error *err)
{
	nv_status status = NV_OK;

	*how = SETTLED;
	pthread_mutex_lock(&index->lock);
	if (index->body == body && fresh)
		nv_body_count_vertex(body);
	if (index->body != body || index->build != NULL || index->dropped)
		*how = SETTLE_LATER;
	else if (!nv_pending_has(index->pending, entry->element, entry->generation,
							 entry->hash))
		; /* deleted meanwhile */
	else if (!linked && !nv_body_live(body, vertex))
		*how = SETTLE_DEAD;
	else
	{
		atomic_fetch_add(&index->moves_begun, 1);
		status = nv_body_add_element(body, entry->element, entry->generation,
									 vertex, err);
		if (status == NV_OK)
		{
			nv_pending_remove(index->pending, entry->element,
							  entry->generation);
			nv_passes_confirm(index, entry->element);
			nv_index_leave_full(index);
			atomic_fetch_add(&body->unsaved, 1);
			atomic_fetch_add(&index->inserted.rows, 1);
			atomic_fetch_add(&index->inserted.equal, !linked);
		}
		atomic_fetch_add(&index->moves_over, 1);
	}
	pthread_mutex_unlock(&index->lock);
	return status;
}

/* --- Equal vectors --- */

/* *same: the vertex holds exactly these bytes. */
static nv_status
same_bytes(nv_linker *l, uint32_t vertex, const float *row, bool *same,
		   nv_error *err)
{
	nv_store *store = l->body->store;
	uint32_t bytes = nv_store_get_params(store)->vector_bytes;
	uint64_t offset;
	uint32_t len, skip;
	nv_status status;

	nv_store_vector_extent(store, vertex, &offset, &len, &skip);
	status =
		nv_file_read(nv_store_vector_file(store), l->record, len, offset, err);
	*same = status == NV_OK && memcmp(l->record + skip, row, bytes) == 0;
	return status;
}

static nv_status
find_equal(nv_linker *l, uint64_t hash, const float *row, uint32_t *vertex,
		   nv_error *err)
{
	uint32_t found[NV_EQUAL_MAX], n;
	nv_status status =
		nv_equal_find(l->body->equal, l->body->store, hash, found, &n, err);

	*vertex = NV_NO_VERTEX;
	for (uint32_t i = 0; i < n && status == NV_OK; i++)
	{
		bool same, live = nv_body_live(l->body, found[i]);

		/* One with rows first: a dead one may have been replaced by it. */
		if (*vertex != NV_NO_VERTEX && !live)
			continue;
		/* Unread it may be equal: no second vertex is made then. */
		status = same_bytes(l, found[i], row, &same, err);
		if (status != NV_OK || !same)
			continue;
		*vertex = found[i];
		if (live)
			break;
	}
	return status;
}

/* --- One row --- */

/* The row that was sought gets its code by a coding; returns its error. */
static float
encode_sought(const nv_linker *l, const nv_coding *coding, uint8_t *code)
{
	const nv_pq *pq = nv_coding_pq(coding);

	/* The search has compared it with all centroids of its own codes. */
	if (coding == nv_search_coding(l->search))
		return nv_pq_encode_by_table(pq, nv_search_table(l->search), code);
	return nv_pq_encode_error(pq, nv_search_mapped(l->search), code);
}

/* Enters it with a code of each codebook there is. */
static nv_status
enter_vertex(nv_linker *l, uint64_t hash, uint32_t *vertex, nv_error *err)
{
	nv_vertex_codes codes = {.code = l->code, .next_code = l->next_code};
	nv_status status;
	float error;

	do
	{
		nv_store_codings(l->body->store, &codes);
		error = encode_sought(l, codes.coding, l->code);
		if (codes.next != NULL)
			(void) encode_sought(l, codes.next, l->next_code);
		status = nv_store_enter_coded(l->writer, hash, &codes, vertex, err);
	} while (status == NV_EBUSY);
	if (status == NV_OK)
		nv_drift_add(&l->body->drift, (double) error);
	return status;
}

/* Seeks a position while the row's vector is written, for a new vertex. */
static nv_status
add_vertex(nv_linker *l, uint64_t hash, const float *row, uint32_t *vertex,
		   nv_error *err)
{
	nv_status status = nv_link_write(l, row, err), written;

	if (status != NV_OK)
		return status;
	status = nv_link_seek(l, row, NV_NO_VERTEX, err);
	written = nv_link_written(l, status == NV_OK ? err : NULL);
	if (status == NV_OK)
		status = written;
	if (status != NV_OK)
		return status;
	return enter_vertex(l, hash, vertex, err);
}

/* Below its target size the entrance graph takes the vertex in. */
static void
promote(nv_index *index, nv_linker *l, uint32_t vertex)
{
	nv_body *body = l->body;
	double target = (double) body->params.entrance_ratio *
					(double) nv_body_live_vertices(body);

	if (index->engine->config.entrance_static ||
		(double) nv_entrance_live(body->entrance) >= target ||
		nv_link_promote(l, vertex, NULL) != NV_OK)
		return;
	/* Deleted at the same time: whoever comes last drops the member. */
	if (!nv_body_live(body, vertex))
		nv_entrance_drop(body->entrance, vertex);
	atomic_fetch_add(&index->inserted.promotions, 1);
}

/* The hash is claimed.  later: the row stays pending without an error. */
static nv_status
link_claimed(nv_index *index, nv_linker *l, const nv_journal_entry *entry,
			 const float *row, bool *later, nv_error *err)
{
	uint32_t vertex;
	settled how = SETTLE_DEAD;
	nv_status status = find_equal(l, entry->hash, row, &vertex, err);
	bool fresh;

	if (status == NV_OK && vertex != NV_NO_VERTEX)
		status = settle(index, l->body, entry, vertex, false, false, &how, err);
	/* It has no rows and is about to be freed: too late to take it back. */
	if (how == SETTLE_DEAD && vertex != NV_NO_VERTEX &&
		nv_body_dying(l->body, vertex))
		vertex = NV_NO_VERTEX;
	if (status == NV_OK && how == SETTLE_DEAD)
	{
		status = vertex == NV_NO_VERTEX
					 ? add_vertex(l, entry->hash, row, &vertex, err)
					 : nv_link_seek(l, row, vertex, err);
		if (status != NV_OK)
			return status;
		fresh = !(nv_store_edge_word(l->body->store, vertex) & NV_LINKED);
		status = nv_link_vertex(l, vertex, err);
		if (status == NV_OK)
			status =
				settle(index, l->body, entry, vertex, true, fresh, &how, err);
		if (status == NV_OK && how == SETTLED && nv_body_live(l->body, vertex))
			promote(index, l, vertex);
	}
	*later = how == SETTLE_LATER;
	return status;
}

/*
 * The same inside an epoch, which a consolidation waits for.  All that is
 * around the row's place may be about to be freed: then it waits, too.
 */
static nv_status
link_row(nv_index *index, nv_linker *l, const nv_journal_entry *entry,
		 const float *row, bool *later, nv_error *err)
{
	nv_store *store = l->body->store;
	int epoch = nv_store_enter(store);
	nv_status status;

	if (epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	status = link_claimed(index, l, entry, row, later, err);
	nv_store_leave(store, epoch);
	if (status != NV_EBUSY)
		return status;
	*later = true;
	return NV_OK;
}

static void
row_failed(nv_index *index, nv_body *body, const nv_error *err)
{
	uint64_t failures = atomic_fetch_add(&index->inserted.failures, 1) + 1;

	atomic_store(&index->insert_after_ns, nv_now_ns() + RETRY_NS);
	if (err->status == NV_ENOSPC)
		atomic_store(&body->no_space, true);
	if (err->status == NV_ECORRUPT)
		nv_index_damaged(index, body);
	/* The first, the second, the fourth, ... */
	if ((failures & (failures - 1)) == 0)
		nv_log(NV_LOG_WARNING,
			   "a row of %s could not be linked: %s; it is compared exactly "
			   "until that succeeds",
			   index->title, err->detail);
}

bool
nv_insert_next(nv_linker *l, nv_index *index, float *row)
{
	uint64_t started_ns = nv_thread_cpu_ns();
	nv_journal_entry entry;
	nv_error err = {0};
	nv_status status;
	bool later = false;

	if (atomic_load(&index->renewal) == NV_RENEWAL_DUE)
		return false;
	if (!nv_pending_take(index->pending, &entry, row))
		return false;
	nv_equal_claim(l->body->equal, entry.hash);
	status = link_row(index, l, &entry, row, &later, &err);
	nv_equal_release(l->body->equal, entry.hash);
	if (atomic_load(&index->parked) > 0)
		nv_places_serve(index->engine);
	if (status == NV_OK && !later)
	{
		atomic_store(&l->body->no_space, false);
		nv_renew_note_link(index, nv_thread_cpu_ns() - started_ns);
		return true;
	}
	nv_pending_give_back(index->pending, &entry);
	if (status != NV_OK && status != NV_ECANCELLED)
		row_failed(index, l->body, &err);
	return false;
}

/* --- Which index --- */

static bool
may_link(nv_index *index)
{
	switch (index->state)
	{
		case NV_INDEX_OPENING:
		case NV_INDEX_READY:
		case NV_INDEX_FULL:
		case NV_INDEX_NO_GRAPH:
			return true;
		default:
			return false;
	}
}

/* The graph that rows of the index can be linked into now, or NULL. */
static nv_body *
body_for(nv_index *index)
{
	nv_body *body = NULL;

	pthread_mutex_lock(&index->lock);
	if (index->body != NULL && index->pending != NULL && !index->dropped &&
		index->build == NULL && may_link(index) &&
		atomic_load(&index->renewal) != NV_RENEWAL_DUE &&
		nv_pending_waiting(index->pending) > 0 &&
		nv_now_ns() >= atomic_load(&index->insert_after_ns))
	{
		body = index->body;
		nv_body_get(body);
	}
	pthread_mutex_unlock(&index->lock);
	return body;
}

/* An index with work, and its graph, both with a reference; or NULL. */
static nv_index *
next_index(inserter *t, nv_body **body)
{
	nv_engine *engine = t->engine;
	nv_index *found = NULL;

	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < NV_MAX_INDEXES && found == NULL; i++)
	{
		uint32_t slot = (t->next_slot + i) % NV_MAX_INDEXES;

		for (nv_index *x = engine->table[slot]; x != NULL && found == NULL;
			 x = x->hash_next)
			if ((*body = body_for(x)) != NULL)
			{
				atomic_fetch_add(&x->refs, 1);
				found = x;
				t->next_slot = (slot + 1) % NV_MAX_INDEXES;
			}
	}
	pthread_mutex_unlock(&engine->lock);
	return found;
}

static bool
row_memory(inserter *t, uint32_t dim)
{
	float *row;

	if (dim <= t->row_dim)
		return true;
	row = nv_alloc(dim * sizeof(*row));
	if (row == NULL)
		return false;
	free(t->row);
	t->row = row;
	t->row_dim = dim;
	return true;
}

static uint64_t
checkpoints_tried(const nv_index *index)
{
	return atomic_load(&index->work.checkpoints) +
		   atomic_load(&index->work.checkpoint_failures);
}

/*
 * However long a checkpoint takes, the edge file grows by so many dead lists
 * only.  One that failed ends the wait, too, and so does time: linking does not
 * depend on it.
 */
static void
await_checkpoint(inserter *t, const nv_index *index, nv_body *body)
{
	uint64_t tried = checkpoints_tried(index), start_ns = nv_now_ns();

	while (nv_checkpoint_overdue(body) && checkpoints_tried(index) == tried &&
		   nv_elapsed_ns(start_ns) < CHECKPOINT_WAIT_NS &&
		   !atomic_load(&t->engine->stopping) &&
		   !atomic_load(&body->given_up) && !atomic_load(&body->remove_dir))
	{
		nv_engine_wake(t->engine);
		nv_pause(t->engine, CHECKPOINT_LOOK_US);
	}
}

static void
work(inserter *t, nv_index *index, nv_body *body)
{
	nv_error err = {0};
	nv_status status =
		row_memory(t, index->params.dim)
			? nv_linker_use(&t->linker, body, &err)
			: nv_fail(&err, NV_ENOMEM, 0, "no memory to link rows");

	if (status != NV_OK)
	{
		row_failed(index, body, &err);
		return;
	}
	t->linker.counters = &index->inserted;
	for (int i = 0; i < BATCH && !atomic_load(&t->engine->stopping); i++)
	{
		bool more;

		await_checkpoint(t, index, body);
		more = nv_insert_next(&t->linker, index, t->row);
		t->worked_ns = nv_now_ns();
		if (!more)
			break;
	}
	/* At full speed dead lists would outgrow the live ones in seconds. */
	if (nv_checkpoint_wanted(body))
		nv_engine_wake(t->engine);
}

/* --- The loop --- */

void
nv_insert_wake(nv_engine *engine)
{
	atomic_fetch_add(&engine->insert_ticket, 1);
	if (atomic_load(&engine->insert_idle) == 0)
		return;
	pthread_mutex_lock(&engine->insert_lock);
	pthread_cond_signal(&engine->insert_cond);
	pthread_mutex_unlock(&engine->insert_lock);
}

void
nv_insert_wait(nv_engine *engine, nv_body *body)
{
	atomic_store(&body->given_up, true);
	while (atomic_load(&body->linkers) > 0)
	{
		atomic_fetch_add(&engine->insert_ticket, 1);
		pthread_mutex_lock(&engine->insert_lock);
		pthread_cond_broadcast(&engine->insert_cond);
		pthread_mutex_unlock(&engine->insert_lock);
		nv_pause(engine, 1000);
	}
}

/* Nothing was to be done at this ticket. */
static void
sleep_until_woken(inserter *t, uint32_t ticket)
{
	nv_engine *engine = t->engine;
	nv_body *body = t->linker.body;
	struct timespec until;

	/* A graph that is to be closed, or without work, is let go. */
	if (body != NULL &&
		(atomic_load(&body->remove_dir) || atomic_load(&body->given_up) ||
		 nv_now_ns() - t->worked_ns > KEEP_BODY_NS))
		(void) nv_linker_use(&t->linker, NULL, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += IDLE_MS * 1000000;
	if (until.tv_nsec >= 1000000000)
	{
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&engine->insert_lock);
	if (atomic_load(&engine->insert_ticket) == ticket &&
		!atomic_load(&engine->stopping))
		pthread_cond_timedwait(&engine->insert_cond, &engine->insert_lock,
							   &until);
	pthread_mutex_unlock(&engine->insert_lock);
}

static void
inserter_loop(inserter *t)
{
	nv_engine *engine = t->engine;

	while (!atomic_load(&engine->stopping))
	{
		uint32_t ticket;
		nv_index *index;
		nv_body *body;

		atomic_fetch_add(&engine->insert_idle, 1);
		ticket = atomic_load(&engine->insert_ticket);
		index = next_index(t, &body);
		if (index == NULL)
			sleep_until_woken(t, ticket);
		atomic_fetch_sub(&engine->insert_idle, 1);
		if (index == NULL)
			continue;
		work(t, index, body);
		nv_body_put(body);
		nv_index_put(index);
	}
}

void *
nv_inserter_main(void *arg)
{
	nv_inserter *self = arg;
	inserter t = {.engine = self->engine};
	nv_io_method method = (nv_io_method) t.engine->config.io_method;
	nv_error err;

	nv_background_thread();
	if (nv_ring_create(method, NV_SEARCH_BUFFER, &t.linker.ring, &err) !=
			NV_OK ||
		nv_ring_create(method, 0, &t.linker.write_ring, &err) != NV_OK)
	{
		/* The others have the same reason. */
		if (!atomic_exchange(&t.engine->inserter_failed, true))
			nv_log(NV_LOG_WARNING, "an insert thread could not start: %s",
				   err.detail);
		atomic_fetch_sub(&t.engine->inserters_running, 1);
		nv_ring_destroy(t.linker.ring);
		return NULL;
	}
	atomic_store(&self->running, true);
	inserter_loop(&t);
	(void) nv_linker_use(&t.linker, NULL, NULL);
	nv_ring_destroy(t.linker.ring);
	nv_ring_destroy(t.linker.write_ring);
	free(t.row);
	return NULL;
}
