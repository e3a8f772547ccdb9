/*
 * check.c
 *		CHECK: looking through an index for what must not be.
 *
 * Everything else goes on meanwhile.  What is compared is therefore compared
 * at one moment (a lock is held for a slice), or looked at again when it seems
 * wrong.  A check changes nothing; condemning the graph is a request of its
 * own.
 *
 * Source: design.md sections 3 (invariants) and 5 (navis_check).
 */
#include "check.h"

#include <stdarg.h>

#include "entrance_internal.h"
#include "store_internal.h"

#define SLICE 8192 /* elements or vertices while a lock is held */
#define DONE UINT64_MAX

void
nv_check_found(nv_check *check, bool warning, uint32_t vertex, uint32_t element,
			   const char *fmt, ...)
{
	nv_problem *p;
	va_list args;

	if (check->n == NV_MAX_PROBLEMS)
	{
		check->request->u.check.unlisted++;
		check->request->u.check.unlisted_damage += !warning;
		return;
	}
	p = &check->problem[check->n++];
	memset(p, 0, sizeof(*p));
	p->warning = warning;
	p->part = check->request->u.check.part;
	p->vertex = vertex;
	p->element = element;
	va_start(args, fmt);
	vsnprintf(p->detail, sizeof(p->detail), fmt, args);
	va_end(args);
}

nv_status
nv_check_go_on(const nv_check *check, nv_error *err)
{
	if (nv_abandoned(check->request) || atomic_load(&check->engine->stopping))
		return nv_fail(err, NV_ECANCELLED, 0, "check cancelled");
	return NV_OK;
}

/* --- Elements --- */

/* An element of the map and its place in the chain; index->lock is held. */
static void
check_element(nv_check *check, uint32_t e)
{
	nv_body *body = check->body;
	uint32_t generation, prev, next;
	uint32_t v = nv_store_element(body->store, e, &generation);

	if (v == NV_NO_VERTEX)
		return;
	if (v >= nv_store_vertices(body->store))
	{
		nv_check_found(check, NV_DAMAGE, v, e, "element of a vertex of %u",
					   nv_store_vertices(body->store));
		return;
	}
	if (!(nv_store_edge_word(body->store, v) & NV_LINKED))
		nv_check_found(check, NV_DAMAGE, v, e,
					   "element of a vertex that is not linked");
	prev = nv_numbers_get(&body->prev, e);
	next = nv_numbers_get(&body->next, e);
	if ((prev == NV_NO_ELEMENT ? nv_numbers_get(&body->first, v)
							   : nv_numbers_get(&body->next, prev)) != e ||
		(next != NV_NO_ELEMENT && nv_numbers_get(&body->prev, next) != e))
		nv_check_found(check, NV_DAMAGE, v, e,
					   "the vertex does not lead to its element");
}

/* The head of a vertex's chain; index->lock is held. */
static void
check_chain(nv_check *check, uint32_t v)
{
	nv_body *body = check->body;
	uint32_t e = nv_numbers_get(&body->first, v), generation;

	if (e != NV_NO_ELEMENT &&
		nv_store_element(body->store, e, &generation) != v)
		nv_check_found(check, NV_DAMAGE, v, e,
					   "the element does not name its vertex");
}

/* Counters that searches and VACUUM rely on; index->lock is held. */
static void
check_counts(nv_check *check)
{
	nv_body *body = check->body;
	uint64_t linked = 0, dead = 0;

	for (uint32_t v = 0; v < nv_store_vertices(body->store); v++)
		if (nv_store_edge_word(body->store, v) & NV_LINKED)
		{
			linked++;
			dead += !nv_body_live(body, v);
		}
	/* A vertex is linked a moment before it is counted. */
	if (atomic_load(&body->n_vertices) > linked ||
		atomic_load(&body->n_vertices) + atomic_load(&body->linkers) < linked)
		nv_check_found(check, NV_WEAKNESS, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "%u vertices are counted, %llu are linked",
					   atomic_load(&body->n_vertices),
					   (unsigned long long) linked);
	if (atomic_load(&body->dead_vertices) > dead ||
		atomic_load(&body->dead_vertices) + atomic_load(&body->linkers) < dead)
		nv_check_found(check, NV_WEAKNESS, NV_NO_VERTEX, NV_NO_ELEMENT,
					   "%llu vertices are counted as deleted, %llu are",
					   (unsigned long long) atomic_load(&body->dead_vertices),
					   (unsigned long long) dead);
}

static void
check_entrance(nv_check *check)
{
	const nv_entrance *ent = check->body->entrance;
	const nv_store *store = check->body->store;

	for (uint32_t i = 0; i < nv_entrance_count(ent); i++)
	{
		uint32_t v = nv_ent_vertex(ent, i);

		if (v >= nv_store_vertices(store) || nv_store_edge_word(store, v) == 0)
			nv_check_found(check, NV_DAMAGE, v, NV_NO_ELEMENT,
						   "member of the entrance graph without a list");
	}
}

static nv_status
check_elements(nv_check *check, nv_error *err)
{
	nv_store *store = check->body->store;
	uint64_t elements = nv_store_elements(store);
	uint64_t vertices = nv_store_vertices(store);
	nv_status status = NV_OK;

	for (uint64_t from = 0;
		 from < NV_MAX(elements, vertices) && status == NV_OK; from += SLICE)
	{
		pthread_mutex_lock(&check->index->lock);
		for (uint64_t i = from; i < from + SLICE; i++)
		{
			if (i < elements)
				check_element(check, (uint32_t) i);
			if (i < vertices)
				check_chain(check, (uint32_t) i);
		}
		pthread_mutex_unlock(&check->index->lock);
		status = nv_check_go_on(check, err);
	}
	pthread_mutex_lock(&check->index->lock);
	check_counts(check);
	check_entrance(check);
	pthread_mutex_unlock(&check->index->lock);
	check->request->u.check.checked = elements;
	return status;
}

/* --- Equal vectors --- */

typedef struct hashed
{
	uint64_t hash;
	uint32_t vertex;
} hashed;

static int
by_hash(const void *a, const void *b)
{
	const hashed *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->vertex < y->vertex ? -1 : x->vertex > y->vertex;
}

/* *same: both can be read, and their bytes are the same. */
static nv_status
same_vectors(nv_check *check, uint32_t a, uint32_t b, bool *same, nv_error *err)
{
	nv_store *store = check->body->store;
	uint32_t bytes = nv_store_get_params(store)->vector_bytes;
	size_t room = nv_round_up(nv_store_vector_extent_max(store), NV_BLOCK);
	uint8_t *buffer = aligned_alloc(NV_BLOCK, 2 * room);
	uint32_t vertex[2] = {a, b};
	const uint8_t *record[2];

	*same = buffer != NULL;
	if (buffer == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to compare two vectors");
	for (int i = 0; i < 2 && *same; i++)
	{
		uint64_t offset;
		uint32_t len, skip;

		nv_store_vector_extent(store, vertex[i], &offset, &len, &skip);
		record[i] = buffer + (size_t) i * room + skip;
		/* What cannot be read is the business of NV_CHECK_VECTORS. */
		*same = nv_file_read(nv_store_vector_file(store),
							 buffer + (size_t) i * room, len, offset,
							 NULL) == NV_OK;
	}
	*same = *same && memcmp(record[0], record[1], bytes) == 0;
	free(buffer);
	return NV_OK;
}

static nv_status
check_equal(nv_check *check, nv_error *err)
{
	nv_store *store = check->body->store;
	uint32_t vertices = nv_store_vertices(store), n = 0;
	hashed *all = nv_alloc_array((size_t) vertices + 1, sizeof(*all));
	nv_status status = NV_OK;

	if (all == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to compare %u vectors",
					   vertices);
	/* One that is consolidated is not taken back, also if that is cut short. */
	for (uint32_t v = 0; v < vertices; v++)
		if (nv_store_edge_word(store, v) != 0 && nv_body_live(check->body, v))
			all[n++] = (hashed){nv_store_vector_hash(store, v), v};
	qsort(all, n, sizeof(*all), by_hash);
	for (uint32_t i = 1; i < n && status == NV_OK; i++)
	{
		bool same = false;

		if (all[i].hash == all[i - 1].hash)
			status = same_vectors(check, all[i - 1].vertex, all[i].vertex,
								  &same, err);
		if (same)
			nv_check_found(check, NV_WEAKNESS, all[i].vertex, NV_NO_ELEMENT,
						   "its vector is that of vertex %u",
						   all[i - 1].vertex);
	}
	free(all);
	check->request->u.check.checked = n;
	return status;
}

/* --- Against the journal --- */

/* Ids of entries that are neither in the graph nor pending, in their order. */
static void
compare_entries(nv_index *index, nv_body *body, nv_request *request)
{
	nv_req_check *r = &request->u.check;
	const nv_journal_entry *in = (const nv_journal_entry *) request->data;
	uint32_t *out = (uint32_t *) request->data; /* never ahead of in */
	uint32_t missing = 0;

	/* Rows move from pending to the graph under this lock. */
	pthread_mutex_lock(&index->lock);
	for (uint32_t i = 0; i < r->n; i++)
	{
		nv_journal_entry e = in[i];

		if (!(body != NULL &&
			  nv_body_has(body, e.element, e.generation, e.hash)) &&
			!(index->pending != NULL &&
			  nv_pending_has(index->pending, e.element, e.generation, e.hash)))
			out[missing++] = e.element;
	}
	pthread_mutex_unlock(&index->lock);
	r->n = missing;
	r->next = DONE;
}

/* Elements of the graph from r->from on, as many as there is room for. */
static void
list_named(nv_body *body, nv_request *request)
{
	nv_req_check *r = &request->u.check;
	nv_journal_entry *out = (nv_journal_entry *) request->data;
	uint64_t elements = nv_store_elements(body->store), e = r->from;

	r->n = 0;
	for (; e < elements && r->n < NV_REQUEST_DATA / sizeof(*out); e++)
	{
		uint32_t generation;
		uint32_t v = nv_store_element(body->store, (uint32_t) e, &generation);

		if (v != NV_NO_VERTEX && v < nv_store_vertices(body->store))
			out[r->n++] = (nv_journal_entry){
				(uint32_t) e, generation, nv_store_vector_hash(body->store, v)};
	}
	r->next = e < elements ? e : DONE;
}

/* --- The request --- */

static nv_status
check_part(nv_check *check, nv_error *err)
{
	switch (check->request->u.check.part)
	{
		case NV_CHECK_STATE:
			return nv_check_state(check, err);
		case NV_CHECK_LISTS:
			return nv_check_lists(check, err);
		case NV_CHECK_VECTORS:
			return nv_check_vectors(check, err);
		case NV_CHECK_ELEMENTS:
			return check_elements(check, err);
		case NV_CHECK_EQUAL:
			return check_equal(check, err);
		case NV_CHECK_REACH:
			return nv_check_reach(check, err);
		case NV_CHECK_SPACE:
			return nv_check_space(check, err);
		default:
			return nv_fail(err, NV_EINVAL, 0, "there is no part %u to check",
						   check->request->u.check.part);
	}
}

static nv_status
run_check(nv_engine *engine, nv_index *index, nv_request *request,
		  nv_error *err)
{
	nv_body *body = nv_index_body(index);
	nv_req_check *r = &request->u.check;
	nv_check check = {.engine = engine,
					  .request = request,
					  .index = index,
					  .body = body,
					  .problem = (nv_problem *) request->data};
	nv_status status = NV_OK;

	pthread_mutex_lock(&index->lock);
	r->state = index->state;
	pthread_mutex_unlock(&index->lock);
	r->has_graph = body != NULL;
	r->unlisted = r->unlisted_damage = 0;
	r->checked = 0;
	r->next = DONE;
	if (r->part == NV_CHECK_ENTRIES)
	{
		if (r->n > NV_REQUEST_DATA / sizeof(nv_journal_entry))
			status =
				nv_fail(err, NV_EINVAL, 0, "%u entries in one request", r->n);
		else
			compare_entries(index, body, request);
	}
	else if (body == NULL)
		r->n = 0;
	else if (r->part == NV_CHECK_NAMED)
		list_named(body, request);
	else if (r->part == NV_CHECK_CONDEMN)
		nv_index_damaged(index, body);
	else
	{
		status = check_part(&check, err);
		r->n = check.n;
	}
	nv_body_put(body);
	return status;
}

void
nv_job_check(nv_engine *engine, nv_job *job)
{
	nv_index *index = nv_index_get(engine, &job->request->key, false);
	nv_error err = {0};
	nv_status status = index != NULL
						   ? run_check(engine, index, job->request, &err)
						   : nv_fail(&err, NV_ENOENT, 0, "index is not open");

	nv_index_put(index);
	nv_answer(engine, job->request, status, &err);
}
