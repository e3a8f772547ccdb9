/*
 * cursor.c
 *		Merging graph results and unlinked rows, and the table of cursors.
 */
#include "cursor.h"

#include <math.h>

#define PENDING_SLICE 2048 /* rows compared between two looks at other work */

/* --- life --------------------------------------------------------------------
 */

nv_status
nv_cursor_create(nv_index *index, const nv_request *request, nv_cursor **out,
				 nv_error *err)
{
	const nv_req_search *ask = &request->u.search;
	nv_cursor *c;

	if (ask->dim != index->params.dim)
		return nv_fail(err, NV_EINVAL, 0,
					   "query has %u dimensions, index has %u", ask->dim,
					   index->params.dim);
	c = nv_alloc(sizeof(*c));
	if (c != NULL)
		c->query = malloc(ask->dim * sizeof(float));
	if (c == NULL || c->query == NULL)
	{
		free(c);
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a cursor");
	}
	memcpy(c->query, request->data, ask->dim * sizeof(float));
	c->ask = *ask;
	c->owner = request->owner;
	c->vertex = NV_NO_VERTEX;
	c->epoch = -1;
	c->used_ns = nv_now_ns();
	c->index = index;
	atomic_fetch_add(&index->refs, 1);
	*out = c;
	return NV_OK;
}

static void
free_cursor(nv_cursor *c)
{
	if (c == NULL)
		return;
	nv_assert(c->epoch < 0);
	nv_search_free(c->search);
	nv_body_put(c->body);
	nv_index_put(c->index);
	nv_visited_free(&c->seen);
	nv_visited_free(&c->pending_set);
	free(c->elements);
	free(c->query);
	free(c->pending);
	free(c->queue);
	free(c);
}

/*
 * Who raises body->freed waits for all that entered before: so whoever finds
 * it unchanged inside the epoch is waited for, and may trust the numbers of
 * vertices it knows, and use the codes it began with, until it leaves.
 */
nv_status
nv_cursor_enter(nv_cursor *c, bool first, nv_error *err)
{
	if (c->body == NULL)
		return NV_OK;
	c->epoch = nv_store_enter(c->body->store);
	if (c->epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	if (first)
		c->freed = atomic_load(&c->body->freed);
	else if (c->freed != atomic_load(&c->body->freed))
		return nv_fail(err, NV_ENOENT, 0,
					   "the graph was consolidated, or its codes were "
					   "replaced, since the search began");
	return NV_OK;
}

void
nv_cursor_leave(nv_cursor *c)
{
	if (c->epoch >= 0)
		nv_store_leave(c->body->store, c->epoch);
	c->epoch = -1;
}

/* --- unlinked rows
 * -------------------------------------------------------------- */

static void
heap_down(nv_hit *heap, uint32_t n, uint32_t i)
{
	nv_hit x = heap[i];

	for (;;)
	{
		uint32_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && heap[child + 1].distance < heap[child].distance)
			child++;
		if (!(heap[child].distance < x.distance))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = x;
}

nv_status
nv_cursor_pending_step(nv_cursor *c, uint32_t *from, bool *more, nv_error *err)
{
	uint32_t hits;

	*more = false;
	if (c->index->pending == NULL)
		return NV_OK;
	if (*from == 0)
		c->moves = atomic_load(&c->index->moves_over);
	if (c->n_pending + PENDING_SLICE > c->pending_room)
	{
		uint32_t room = NV_MAX(2 * c->pending_room, 2 * PENDING_SLICE);
		nv_hit *grown = realloc(c->pending, room * sizeof(*grown));

		if (grown == NULL)
			return nv_fail(err, NV_ENOMEM, 0,
						   "no memory to compare %u unlinked rows", room);
		c->pending = grown;
		c->pending_room = room;
	}
	hits = nv_pending_scan(c->index->pending,
						   (nv_metric) c->index->params.metric, c->query, *from,
						   PENDING_SLICE, c->pending + c->n_pending, more);
	*from += PENDING_SLICE;
	c->n_pending += hits;
	c->all_pending = c->n_pending;
	c->pending_compared += hits;
	if (!*more && atomic_load(&c->index->let_go) != c->let_go)
		return nv_fail(err, NV_EUNUSABLE, 0,
					   "unlinked rows gave way to those of other indexes");
	if (!*more)
		for (uint32_t i = c->n_pending / 2; i > 0; i--)
			heap_down(c->pending, c->n_pending, i - 1);
	return NV_OK;
}

/* The nearest one goes behind the heap. */
static void
pending_pop(nv_cursor *c)
{
	nv_hit given = c->pending[0];

	c->pending[0] = c->pending[--c->n_pending];
	c->pending[c->n_pending] = given;
	if (c->n_pending > 0)
		heap_down(c->pending, c->n_pending, 0);
}

/*
 * A row may have been an unlinked one when they were compared, and be in the
 * graph by the time that is searched (index.c, moves): then it has been given,
 * or will be, as the unlinked row it was.  Only if a move was under way then,
 * or has begun since, it is worth knowing which they were.
 */
static nv_status
was_pending(nv_cursor *c, uint32_t element, bool *was, nv_error *err)
{
	*was = false;
	if (c->all_pending == 0 ||
		(!c->knows_pending && atomic_load(&c->index->moves_begun) == c->moves))
		return NV_OK;
	if (!c->knows_pending &&
		!nv_visited_reserve(&c->pending_set, c->all_pending))
		return nv_fail(err, NV_ENOMEM, 0, "no memory to know %u unlinked rows",
					   c->all_pending);
	if (!c->knows_pending)
		for (uint32_t i = 0; i < c->all_pending; i++)
			nv_visited_add(&c->pending_set, c->pending[i].element);
	c->knows_pending = true;
	*was = nv_visited_has(&c->pending_set, element);
	return NV_OK;
}

/* --- graph rounds
 * ------------------------------------------------------------------ */

/* Frontier for k results: wide enough to hold them with some to spare. */
static uint32_t
frontier(uint32_t list_size, uint32_t k)
{
	uint64_t need = (uint64_t) k + k / 2;

	return (uint32_t) NV_MAX((uint64_t) list_size,
							 NV_MIN(need, (uint64_t) NV_MAX_VERTICES));
}

static uint32_t
choose_window(nv_cursor *c, uint32_t k, uint32_t list)
{
	nv_body *body = c->body;
	int bucket = nv_casr_bucket(k, list);

	if (c->ask.flags & NV_SEARCH_LOAD_ALL)
		return NV_CASR_ALL;
	if (bucket >= 0 && !nv_casr_ready(body->casr, bucket) &&
		atomic_exchange(&body->wanted[bucket], 1) == 0)
		nv_engine_wake(body->engine);
	return nv_casr_window(body->casr, bucket, c->ask.percentile);
}

nv_status
nv_cursor_round(nv_cursor *c, uint8_t *buffer, nv_error *err)
{
	nv_body *body = c->body;
	uint32_t k = c->started ? c->k_total * 2 : c->ask.k;
	uint32_t vertices = NV_MAX(atomic_load(&body->n_vertices), 1u);
	uint32_t list;

	nv_assert(body != NULL && !c->exhausted);
	k = NV_MIN(NV_MAX(k, c->ask.k), vertices);
	list = frontier(c->ask.list_size, k);
	c->window = choose_window(c, k, list);
	list = NV_MIN(nv_body_widen(body, list), vertices + 10);
	c->k_total = k;
	c->list_used = list;
	if (c->started)
		return nv_search_more(c->search, k, list, c->window, buffer, err);
	else
	{
		nv_search_options options = {
			.k = k,
			.list_size = list,
			.beam_width = c->ask.beam_width,
			.entrance_list = c->ask.entrance_list,
			.window = c->window,
			.exclude = NV_NO_VERTEX,
			.from_medoid = (c->ask.flags & NV_SEARCH_FROM_MEDOID) != 0,
			.single_lists = (c->ask.flags & NV_SEARCH_SINGLE_LISTS) != 0,
			.stages = (c->ask.flags & NV_SEARCH_STAGES) != 0,
			.user = NV_CACHE_SEARCH,
		};
		nv_status status;

		status = c->search == NULL ? nv_search_create(&c->search, err) : NV_OK;
		if (status == NV_OK)
			status = nv_search_start(c->search, &body->view, &options, c->query,
									 buffer, err);
		c->started = status == NV_OK;
		return status;
	}
}

nv_status
nv_cursor_collect(nv_cursor *c, nv_error *err)
{
	const nv_result *results;
	uint32_t n = nv_search_results(c->search, &results);

	nv_assert(c->queue_pos == c->queue_n);
	c->queue_n = c->queue_pos = 0;
	if (n > c->queue_room)
	{
		nv_result *grown = realloc(c->queue, n * sizeof(*grown));

		if (grown == NULL)
			return nv_fail(err, NV_ENOMEM, 0, "no memory for %u results", n);
		c->queue = grown;
		c->queue_room = n;
	}
	if (!nv_visited_reserve(&c->seen, n))
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %u results", n);
	for (uint32_t i = 0; i < n; i++)
	{
		if (!nv_visited_add(&c->seen, results[i].vertex))
			continue;
		/* Too late for its place: the caller's final sweep has it. */
		if (c->any && results[i].distance < c->last)
			continue;
		c->queue[c->queue_n++] = results[i];
	}
	/* All that is reachable may be loaded, and more than k of it. */
	c->exhausted = (nv_search_exhausted(c->search) && n < c->k_total) ||
				   c->k_total >= atomic_load(&c->body->n_vertices);
	return NV_OK;
}

/* --- giving
 * ----------------------------------------------------------------------------
 */

/* The element still belongs to the vertex being given. */
static bool
still_there(const nv_cursor *c, nv_element_ref ref)
{
	uint32_t generation;

	return nv_store_element(c->body->store, ref.element, &generation) ==
			   c->vertex &&
		   generation == ref.generation;
}

/* Next element of the graph's results without taking it; *found: one is. */
static nv_status
graph_peek(nv_cursor *c, nv_hit *hit, bool *found, nv_error *err)
{
	*found = false;
	for (;;)
	{
		for (; c->next_element < c->n_elements; c->next_element++)
		{
			nv_element_ref ref = c->elements[c->next_element];
			nv_status status;
			bool was;

			if (!still_there(c, ref))
				continue;
			status = was_pending(c, ref.element, &was, err);
			if (status != NV_OK)
				return status;
			if (was)
				continue;
			*hit = (nv_hit){ref.element, ref.generation, c->vertex_distance};
			*found = true;
			return NV_OK;
		}
		c->vertex = NV_NO_VERTEX;
		c->n_elements = c->next_element = 0;
		if (c->queue_pos == c->queue_n)
			return NV_OK;
		c->vertex = c->queue[c->queue_pos].vertex;
		c->vertex_distance = c->queue[c->queue_pos].distance;
		c->queue_pos++;
		if (!nv_body_elements(c->body, c->vertex, &c->elements,
							  &c->elements_room, &c->n_elements))
			return nv_fail(err, NV_ENOMEM, 0,
						   "no memory for the rows of a vertex");
	}
}

static void
give(nv_cursor *c, nv_hit *out, const nv_hit *hit)
{
	*out = *hit;
	c->last = hit->distance;
	c->any = true;
}

nv_status
nv_cursor_emit(nv_cursor *c, nv_hit *out, uint32_t room, uint32_t *n,
			   bool *more_needed, nv_error *err)
{
	*more_needed = false;
	*n = 0;
	while (*n < room)
	{
		bool graph = false;
		nv_hit hit;

		if (c->body != NULL)
		{
			nv_status status = graph_peek(c, &hit, &graph, err);

			if (status != NV_OK)
				return status;
		}
		if (!graph && c->body != NULL && !c->exhausted)
		{
			/* The next round may find something nearer than what pends. */
			*more_needed = true;
			break;
		}
		if (c->n_pending > 0 &&
			!(graph && hit.distance <= c->pending[0].distance))
		{
			if (!(c->any && c->pending[0].distance < c->last))
				give(c, &out[(*n)++], &c->pending[0]);
			pending_pop(c);
			continue;
		}
		if (!graph)
			break;
		give(c, &out[(*n)++], &hit);
		c->next_element++;
	}
	return NV_OK;
}

/* --- the table
 * ----------------------------------------------------------------------------
 */

static void
table_remove_at(nv_engine *engine, uint32_t i)
{
	engine->cursors[i] = engine->cursors[--engine->n_cursors];
}

/* Least recently used idle cursor's place, or n_cursors. */
static uint32_t
find_victim(nv_engine *engine)
{
	uint32_t victim = engine->n_cursors;

	for (uint32_t i = 0; i < engine->n_cursors; i++)
		if (!engine->cursors[i]->busy &&
			(victim == engine->n_cursors ||
			 engine->cursors[i]->used_ns < engine->cursors[victim]->used_ns))
			victim = i;
	return victim;
}

nv_status
nv_cursor_register(nv_engine *engine, nv_cursor *c)
{
	nv_cursor *dropped = NULL;
	nv_status status = NV_OK;

	pthread_mutex_lock(&engine->cursor_lock);
	if (engine->n_cursors == engine->config.max_cursors)
	{
		uint32_t i = find_victim(engine);

		if (i == engine->n_cursors)
			status = NV_ELIMIT;
		else
		{
			dropped = engine->cursors[i];
			table_remove_at(engine, i);
		}
	}
	if (status == NV_OK)
	{
		c->id = ++engine->next_cursor;
		c->busy = true;
		engine->cursors[engine->n_cursors++] = c;
	}
	pthread_mutex_unlock(&engine->cursor_lock);
	free_cursor(dropped);
	return status;
}

nv_cursor *
nv_cursor_take(nv_engine *engine, uint64_t id, uint64_t owner)
{
	nv_cursor *found = NULL;

	pthread_mutex_lock(&engine->cursor_lock);
	for (uint32_t i = 0; i < engine->n_cursors; i++)
	{
		nv_cursor *c = engine->cursors[i];

		if (c->id == id && c->owner == owner && !c->busy)
		{
			c->busy = true;
			found = c;
			break;
		}
	}
	pthread_mutex_unlock(&engine->cursor_lock);
	return found;
}

void
nv_cursor_give(nv_engine *engine, nv_cursor *c, bool drop)
{
	pthread_mutex_lock(&engine->cursor_lock);
	c->busy = false;
	c->used_ns = nv_now_ns();
	drop = drop || c->doomed;
	if (drop && c->id != 0)
		for (uint32_t i = 0; i < engine->n_cursors; i++)
			if (engine->cursors[i] == c)
			{
				table_remove_at(engine, i);
				break;
			}
	pthread_mutex_unlock(&engine->cursor_lock);
	if (drop)
		free_cursor(c);
}

/* Which cursors a sweep over the table drops. */
typedef struct drop_rule
{
	uint64_t id;      /* this one, or 0 */
	nv_index *index;  /* all of this index, or NULL */
	uint64_t idle_ns; /* all not used since then, or 0 */
	bool all;
} drop_rule;

static bool
drop_matches(const drop_rule *rule, const nv_cursor *c)
{
	return rule->all || (rule->id != 0 && c->id == rule->id) ||
		   (rule->index != NULL && c->index == rule->index) ||
		   (rule->idle_ns != 0 && c->used_ns < rule->idle_ns);
}

static void
drop_cursors(nv_engine *engine, const drop_rule *rule)
{
	for (;;)
	{
		nv_cursor *victim = NULL;

		pthread_mutex_lock(&engine->cursor_lock);
		for (uint32_t i = 0; i < engine->n_cursors && victim == NULL; i++)
		{
			nv_cursor *c = engine->cursors[i];

			if (!drop_matches(rule, c))
				continue;
			if (c->busy)
				c->doomed = true;
			else
			{
				victim = c;
				table_remove_at(engine, i);
			}
		}
		pthread_mutex_unlock(&engine->cursor_lock);
		if (victim == NULL)
			return;
		free_cursor(victim);
	}
}

void
nv_engine_release_cursor(nv_engine *engine, uint64_t cursor)
{
	if (cursor != 0)
		drop_cursors(engine, &(drop_rule){.id = cursor});
}

void
nv_cursors_of_index(nv_engine *engine, nv_index *index)
{
	drop_cursors(engine, &(drop_rule){.index = index});
}

void
nv_cursors_close_all(nv_engine *engine)
{
	drop_cursors(engine, &(drop_rule){.all = true});
}

void
nv_cursors_expire(nv_engine *engine)
{
	uint64_t idle = (uint64_t) engine->config.cursor_idle * 1000000000u;
	uint64_t now = nv_now_ns();

	if (now > idle)
		drop_cursors(engine, &(drop_rule){.idle_ns = now - idle});
}
