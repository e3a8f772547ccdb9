/*
 * sim_world.c
 *		The run of a simulated world and the model it is compared with.
 */
#include "sim_world.h"

#include <inttypes.h>
#include <setjmp.h>

#include "linker.h"
#include "search_run.h"
#include "store_internal.h"

#define BASE_ROWS 1060u /* a graph needs NV_MIN_GRAPH_ROWS */
#define BASE_EQUAL 10u  /* of these, rows equal to an earlier one */
#define MAX_ELEMENTS 1500u
#define VECTORS 1900u
#define LIVES 4
#define OPENING_CHANGES 12 /* and a few less that opening takes */
#define STATES 3           /* states looked at after one power failure */
#define MAX_SNAPSHOTS 64   /* roots that are remembered */
#define SEARCH_LIST 250
#define MAX_DEGREE 12u

/* --- What the model knows --- */

/* An entry of the journal. */
typedef struct element
{
	uint32_t generation;
	uint32_t vector;
	bool live;
} element;

/* To undo what a crash took from the end of the journal. */
typedef struct journal_change
{
	uint64_t lsn;
	uint32_t element;
	element before;
} journal_change;

typedef struct vertex_state
{
	uint64_t word, hash;
	uint32_t list_crc, code_crc;
	bool readable; /* its list could be verified */
} vertex_state;

typedef struct element_state
{
	uint32_t vertex, generation;
} element_state;

/* Everything a root says, and what the journal said then. */
typedef struct snapshot
{
	uint64_t lsn;
	bool whole; /* taken; whether it was published is another matter */
	uint32_t n_vertices, n_elements;
	vertex_state *vertex;
	element_state *element;
	uint32_t *vector; /* of each element with a vertex */
	uint32_t blob_crc[NV_BLOBS];
} snapshot;

struct sim_base
{
	uint32_t dim;
	sim_disk *disk;
	float *vectors; /* VECTORS * dim */
	uint64_t *hashes;
	nv_key key;
	nv_index_params params;
	snapshot root; /* the one that was published */
};

typedef struct world
{
	const sim_base *base;
	sim_kind kind;
	uint64_t seed, random;
	sim_disk *disk;
	sim_counts *counts;
	char *why;
	jmp_buf failed;

	nv_port port;
	nv_engine *engine;
	nv_index *index; /* a reference */
	nv_linker linker;
	nv_ring *search_ring;
	nv_search *search;
	float *row;
	nv_request *request;

	element elements[MAX_ELEMENTS];
	uint32_t n_elements;
	journal_change *journal;
	size_t n_journal, journal_room;
	uint64_t lsn, flushed;

	snapshot snapshots[MAX_SNAPSHOTS];
	uint32_t n_snapshots;
	uint64_t acknowledged; /* LSN of the last root known to be published */
	uint64_t under_way;    /* of one that may be, 0: none */
	uint64_t rebuild_lsn;  /* of the graph that was built anew, or 0 */
	bool in_checkpoint, nested, snapshot_taken;
	uint64_t turns;   /* how seldom reads give the turn away */
	bool linking;     /* a row is being linked */
	uint32_t linked;  /* vertices that were before */
	bool fell_back;   /* the newest root was not whole */
	bool interrupted; /* power failed in the last opening */
	bool lost_writes; /* roots may have been published in vain */
} world;

#define sim_fail(w, ...)                                                       \
	do                                                                         \
	{                                                                          \
		snprintf((w)->why, SIM_WHY, __VA_ARGS__);                              \
		longjmp((w)->failed, 1);                                               \
	} while (0)

#define check(w, cond)                                                         \
	do                                                                         \
	{                                                                          \
		if (!(cond))                                                           \
			sim_fail(w, "%s, line %d", #cond, __LINE__);                       \
	} while (0)

static uint64_t
pick(world *w, uint64_t bound)
{
	return nv_random_below(&w->random, bound);
}

static void *
must(void *p)
{
	if (p == NULL)
		abort();
	return p;
}

/* With the disk's power gone, or where faults are made, calls may fail. */
static bool
may_fail(const world *w)
{
	return sim_disk_is_off(w->disk) || w->kind != SIM_POWER;
}

/* --- The journal --- */

static void
journal_note(world *w, uint32_t e)
{
	if (w->n_journal == w->journal_room)
	{
		w->journal_room = NV_MAX(2 * w->journal_room, (size_t) 256);
		w->journal =
			must(realloc(w->journal, w->journal_room * sizeof(*w->journal)));
	}
	w->journal[w->n_journal++] = (journal_change){++w->lsn, e, w->elements[e]};
}

/* A crash of the server: WAL that was not flushed may be gone. */
static void
journal_crash(world *w)
{
	uint64_t keep = w->flushed;

	if (w->lsn > w->flushed)
		keep += pick(w, w->lsn - w->flushed + 1);
	while (w->n_journal > 0 && w->journal[w->n_journal - 1].lsn > keep)
	{
		const journal_change *c = &w->journal[--w->n_journal];

		w->elements[c->element] = c->before;
	}
	/* LSNs are not used again for something else: other tests do that. */
}

/* --- Reading a graph --- */

static void
free_snapshot(snapshot *s)
{
	free(s->vertex);
	free(s->element);
	free(s->vector);
	memset(s, 0, sizeof(*s));
}

/* A page as readers see it; false: it cannot be read. */
static bool
read_page(nv_store *store, uint64_t page, uint8_t *bytes)
{
	uint64_t ticket;

	return nv_store_get_page(store, page, NV_CACHE_SEARCH, bytes, &ticket) !=
			   NV_PAGE_MISS ||
		   nv_file_read(nv_store_edge_file(store), bytes, NV_PAGE,
						page * NV_PAGE, NULL) == NV_OK;
}

static void
take_vertices(nv_store *store, snapshot *s)
{
	_Alignas(NV_BLOCK) static uint8_t bytes[NV_PAGE];
	uint32_t stride = nv_store_get_params(store)->code_stride;
	uint64_t at = UINT64_MAX;

	s->n_vertices = nv_store_vertices(store);
	s->vertex = must(nv_alloc_array(s->n_vertices + 1, sizeof(*s->vertex)));
	for (uint32_t v = 0; v < s->n_vertices; v++)
	{
		vertex_state *to = &s->vertex[v];
		const uint32_t *ids;
		uint32_t degree;

		to->word = nv_store_edge_word(store, v);
		to->hash = nv_store_vector_hash(store, v);
		to->code_crc = nv_crc32c(0, nv_store_code(store, v), stride);
		if (to->word == 0)
			continue;
		if (nv_word_page(to->word) != at)
			at = read_page(store, nv_word_page(to->word), bytes)
					 ? nv_word_page(to->word)
					 : UINT64_MAX;
		ids = at != UINT64_MAX
				  ? nv_slot_find(store, bytes, to->word, v, &degree)
				  : NULL;
		to->readable = ids != NULL;
		if (ids != NULL)
			to->list_crc = nv_crc32c(degree, ids, degree * 4);
	}
}

/* The state of a store with nobody at work on it. */
static void
take_snapshot(nv_store *store, snapshot *s)
{
	take_vertices(store, s);
	s->n_elements = (uint32_t) nv_store_elements(store);
	s->element = must(nv_alloc_array(s->n_elements + 1, sizeof(*s->element)));
	for (uint32_t e = 0; e < s->n_elements; e++)
		s->element[e].vertex =
			nv_store_element(store, e, &s->element[e].generation);
	for (int b = 0; b < NV_BLOBS; b++)
	{
		size_t len;
		const uint8_t *bytes = nv_store_get_blob(store, (nv_blob) b, &len);

		s->blob_crc[b] = nv_crc32c((uint32_t) len, bytes, len);
	}
	s->whole = true;
}

static void
take_vectors(snapshot *s, const element *elements)
{
	s->vector = must(nv_alloc_array(s->n_elements + 1, sizeof(*s->vector)));
	for (uint32_t e = 0; e < s->n_elements; e++)
		s->vector[e] = elements[e].vector;
}

static uint32_t
count_linked(const nv_store *store)
{
	uint32_t n = 0;

	for (uint32_t v = 0; v < nv_store_vertices(store); v++)
		n += (nv_store_edge_word(store, v) & NV_LINKED) != 0;
	return n;
}

/* A place for the root that is being made. */
static snapshot *
new_snapshot(world *w)
{
	if (w->n_snapshots == MAX_SNAPSHOTS)
	{
		free_snapshot(&w->snapshots[0]);
		memmove(w->snapshots, w->snapshots + 1,
				(MAX_SNAPSHOTS - 1) * sizeof(*w->snapshots));
		w->n_snapshots--;
	}
	memset(&w->snapshots[w->n_snapshots], 0, sizeof(snapshot));
	return &w->snapshots[w->n_snapshots++];
}

static const snapshot *
find_snapshot(const world *w, uint64_t lsn)
{
	for (uint32_t i = w->n_snapshots; i-- > 0;)
		if (w->snapshots[i].lsn == lsn)
			return &w->snapshots[i];
	return NULL;
}

/* --- Comparing --- */

/* Lists of a store that was opened, against those of the root. */
static void
compare_vertices(world *w, const snapshot *now, const snapshot *root)
{
	bool honest = w->kind != SIM_LIES;

	check(w, now->n_vertices == root->n_vertices);
	for (uint32_t v = 0; v < now->n_vertices; v++)
	{
		const vertex_state *a = &now->vertex[v], *b = &root->vertex[v];

		check(w, a->word == b->word && a->hash == b->hash);
		check(w, a->code_crc == b->code_crc);
		check(w, a->readable || a->word == 0 || !honest);
		/* A lost write may leave a list of an earlier life, valid in itself. */
		if (a->readable && (honest || !w->lost_writes))
			check(w, a->list_crc == b->list_crc && b->readable);
	}
}

static void
compare_root(world *w, const snapshot *now, const snapshot *root)
{
	compare_vertices(w, now, root);
	check(w, now->n_elements == root->n_elements);
	for (uint32_t e = 0; e < now->n_elements; e++)
	{
		const element_state *a = &now->element[e], *b = &root->element[e];

		check(w, a->vertex == b->vertex && a->generation == b->generation);
	}
	for (int b = 0; b < NV_BLOBS; b++)
		check(w, now->blob_crc[b] == root->blob_crc[b]);
}

/* The record of a vertex; false: it cannot be read, or is damaged. */
static bool
read_vector(nv_store *store, uint32_t vertex, float *out)
{
	_Alignas(NV_BLOCK) static uint8_t bytes[NV_BLOCK * 2];
	uint32_t len, skip, size = nv_store_get_params(store)->vector_bytes;
	uint64_t offset;

	nv_store_vector_extent(store, vertex, &offset, &len, &skip);
	if (len > sizeof(bytes) || nv_file_read(nv_store_vector_file(store), bytes,
											len, offset, NULL) != NV_OK)
		return false;
	memcpy(out, bytes + skip, size);
	return nv_vector_hash(out, size) == nv_store_vector_hash(store, vertex);
}

static void
compare_vectors(world *w, nv_store *store, const snapshot *now,
				const snapshot *root)
{
	uint32_t dim = w->base->dim;

	for (uint32_t e = 0; e < now->n_elements; e++)
	{
		uint32_t v = now->element[e].vertex;

		if (v == NV_NO_VERTEX)
			continue;
		check(w, v < now->n_vertices && (now->vertex[v].word & NV_LINKED));
		if (!read_vector(store, v, w->row))
			check(w, w->kind == SIM_LIES);
		else
			check(w, memcmp(w->row,
							w->base->vectors + (size_t) root->vector[e] * dim,
							dim * sizeof(float)) == 0);
	}
}

static bool
list_is_sound(const snapshot *s, uint32_t v, const uint32_t *ids,
			  uint32_t degree, uint32_t *seen)
{
	if (degree > MAX_DEGREE)
		return false;
	for (uint32_t i = 0; i < degree; i++)
	{
		if (ids[i] >= s->n_vertices || ids[i] == v || seen[ids[i]] == v + 1 ||
			s->vertex[ids[i]].word == 0)
			return false;
		seen[ids[i]] = v + 1;
	}
	return true;
}

/* Bounds and sets; every id named has a list. */
static void
check_lists(world *w, nv_store *store, const snapshot *s)
{
	_Alignas(NV_BLOCK) static uint8_t bytes[NV_PAGE];
	uint32_t *seen = must(nv_alloc_array(s->n_vertices + 1, sizeof(*seen)));
	uint64_t at = UINT64_MAX;

	for (uint32_t v = 0; v < s->n_vertices; v++)
	{
		uint64_t word = s->vertex[v].word;
		const uint32_t *ids;
		uint32_t degree;

		if (word == 0 || !s->vertex[v].readable)
			continue;
		if (nv_word_page(word) != at &&
			!read_page(store, nv_word_page(word), bytes))
			continue;
		at = nv_word_page(word);
		ids = nv_slot_find(store, bytes, word, v, &degree);
		if (ids != NULL && !list_is_sound(s, v, ids, degree, seen) &&
			!w->lost_writes)
		{
			free(seen);
			sim_fail(w, "list of vertex %u is not sound", v);
		}
	}
	free(seen);
}

static int
by_hash(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

	return x < y ? -1 : x > y;
}

/* Equal vectors are stored once. */
static void
check_distinct(world *w, const snapshot *s)
{
	uint64_t *all = must(nv_alloc_array(s->n_vertices + 1, sizeof(*all)));
	uint32_t n = 0, twice = 0;

	for (uint32_t v = 0; v < s->n_vertices; v++)
		if (s->vertex[v].word != 0)
			all[n++] = s->vertex[v].hash;
	qsort(all, n, sizeof(*all), by_hash);
	for (uint32_t i = 1; i < n; i++)
		twice += all[i] == all[i - 1];
	free(all);
	/* Where a record was damaged its vector comes a second time. */
	check(w, twice == 0 || w->kind == SIM_LIES);
}

/* What a store holds after opening: the root it says, whole. */
static void
check_opened(world *w, nv_store *store)
{
	nv_store_stats stats;
	const snapshot *root;
	snapshot now = {0};

	nv_store_get_stats(store, &stats);
	root = find_snapshot(w, stats.published_lsn);
	if (root == NULL && w->rebuild_lsn == stats.published_lsn)
	{
		/* Made of the journal; what it must hold check_rows says. */
		check(w, stats.published_lsn <= w->flushed);
		take_snapshot(store, &now);
		take_vectors(&now, w->elements);
		compare_vectors(w, store, &now, &now);
		check_lists(w, store, &now);
		check_distinct(w, &now);
		free_snapshot(&now);
		w->counts->rebuilt++;
		return;
	}
	if (root == NULL)
		sim_fail(w,
				 "root with LSN %" PRIu64 " was never made (last %" PRIu64 ")",
				 stats.published_lsn, w->acknowledged);
	if (stats.published_lsn != w->acknowledged &&
		stats.published_lsn != w->under_way)
	{
		if (w->kind != SIM_LIES)
			sim_fail(w,
					 "root has LSN %" PRIu64 ", published were %" PRIu64
					 " and perhaps %" PRIu64,
					 stats.published_lsn, w->acknowledged, w->under_way);
		w->counts->fallbacks++;
	}
	check(w, stats.published_lsn <= w->flushed);
	check(w, !w->fell_back || w->kind == SIM_LIES);
	w->fell_back = false;
	take_snapshot(store, &now);
	compare_root(w, &now, root);
	compare_vectors(w, store, &now, root);
	check_lists(w, store, &now);
	check_distinct(w, &now);
	free_snapshot(&now);
	w->acknowledged = stats.published_lsn;
	w->under_way = 0;
	w->counts->states++;
}

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

/* The state of the cut; nothing was changed since. */
static void
note_cut(world *w)
{
	if (w->snapshot_taken || w->index == NULL || w->index->body == NULL)
		return;
	w->snapshot_taken = true;
	/* All its back edges are there before a vertex counts as linked. */
	if (w->linking && !w->nested)
		check(w, count_linked(w->index->body->store) == w->linked);
	sim_disk_calm(w->disk, true);
	take_snapshot(w->index->body->store, &w->snapshots[w->n_snapshots - 1]);
	take_vectors(&w->snapshots[w->n_snapshots - 1], w->elements);
	sim_disk_calm(w->disk, false);
}

/* Step 8: from here on the root may be found. */
static nv_status
port_flush(void *arg, uint64_t lsn, nv_error *err)
{
	world *w = arg;

	if (w->in_checkpoint)
		note_cut(w);
	w->flushed = NV_MAX(w->flushed, lsn);
	w->under_way = lsn;
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
config_of_world(bool cache)
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
	config.pending_memory = 1 << 20;
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

/* A new row; one in five is equal to another. */
static void
do_insert(world *w)
{
	uint32_t e = w->n_elements;
	nv_status status;

	/* An entry that is free again, or one more. */
	if (pick(w, 2) == 0 || e == MAX_ELEMENTS)
		for (uint32_t i = 0; i < 20 && e == w->n_elements; i++)
		{
			uint32_t other = (uint32_t) pick(w, w->n_elements);

			if (!w->elements[other].live)
				e = other;
		}
	if (e == MAX_ELEMENTS)
		return;
	journal_note(w, e);
	w->n_elements = NV_MAX(w->n_elements, e + 1);
	w->elements[e].generation++;
	w->elements[e].live = true;
	w->elements[e].vector = pick(w, 5) == 0
								? w->elements[pick(w, w->n_elements)].vector
								: (uint32_t) pick(w, VECTORS);
	status = send_insert(w, e, false);
	if (status != NV_OK && !may_fail(w))
		sim_fail(w, "INSERT: %s", w->request->detail);
	w->counts->inserts++;
}

static void
do_delete(world *w)
{
	nv_request *r;
	nv_element_ref *refs;
	uint32_t n = 0;

	r = begin(w, NV_REQ_DELETE);
	refs = (nv_element_ref *) r->data;
	for (uint32_t i = 0; i < 1 + pick(w, 6); i++)
	{
		uint32_t e = (uint32_t) pick(w, w->n_elements);

		if (!w->elements[e].live)
			continue;
		journal_note(w, e);
		w->elements[e].live = false;
		refs[n++] = (nv_element_ref){e, w->elements[e].generation};
	}
	r->u.del.n = n;
	r->u.del.lsn = w->lsn;
	nv_request_delete(w->engine, r);
	if (r->status != NV_OK && !may_fail(w))
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
		w->linked = count_linked(body->store);
		w->linking = true;
		more = nv_insert_next(&w->linker, w->index, w->row);
		w->linking = false;
		w->counts->links += more;
	}
	nv_body_put(body);
	if (atomic_load(&w->index->inserted.failures) > 0 && !may_fail(w))
		sim_fail(w, "a row could not be linked");
}

/* A writer is short of memory for sealed pages: it writes some out. */
static void
do_write_back(world *w)
{
	nv_body *body = nv_index_body(w->index);
	nv_error err = {0};

	if (body == NULL)
		return;
	if (nv_store_write_back(body->store, &err) != NV_OK && !may_fail(w))
		sim_fail(w, "write back: %s", err.detail);
	nv_body_put(body);
}

/* The vertices that a search of this vector gives; false: it failed. */
static bool
graph_finds(world *w, nv_body *body, uint32_t vector, uint32_t list,
			bool *found)
{
	nv_search_options options = {.k = 10,
								 .list_size = list,
								 .beam_width = 4,
								 .entrance_list = 10,
								 .window = NV_CASR_ALL,
								 .exclude = NV_NO_VERTEX,
								 .user = NV_CACHE_SEARCH};
	const float *query = w->base->vectors + (size_t) vector * w->base->dim;
	const nv_result *results;
	nv_error err;
	uint32_t n;

	*found = false;
	if (nv_search_start(w->search, &body->view, &options, query,
						nv_ring_arena(w->search_ring), &err) != NV_OK ||
		nv_search_run(w->search, w->search_ring) != NV_OK ||
		nv_search_get_stats(w->search)->damaged > 0)
		return false;
	n = nv_search_results(w->search, &results);
	for (uint32_t i = 0; i < n; i++)
		*found |= nv_store_vector_hash(body->store, results[i].vertex) ==
					  w->base->hashes[vector] &&
				  results[i].distance == 0;
	return true;
}

/* A live row is linked and found, or pending. */
static void
do_search(world *w)
{
	uint32_t e = (uint32_t) pick(w, w->n_elements);
	const element *row = &w->elements[e];
	nv_body *body = nv_index_body(w->index);
	uint64_t hash = w->base->hashes[row->vector];
	bool found;

	if (row->live && body != NULL &&
		nv_body_has(body, e, row->generation, hash))
	{
		if (!graph_finds(w, body, row->vector, SEARCH_LIST, &found))
			check(w, may_fail(w));
		else if (w->kind != SIM_LIES)
			w->counts->unfound += !found;
		w->counts->searches++;
	}
	nv_body_put(body);
}

static bool
do_checkpoint(world *w)
{
	nv_error err = {0};
	nv_status status;
	snapshot *s;

	if (w->index->body == NULL)
		return true;
	s = new_snapshot(w);
	s->lsn = ++w->lsn;
	nv_index_set_lsn(w->index, w->lsn);
	w->in_checkpoint = true;
	w->snapshot_taken = false;
	status = nv_index_checkpoint(w->index, &err);
	w->in_checkpoint = false;
	if (status == NV_OK)
	{
		check(w, w->snapshot_taken);
		w->acknowledged = w->snapshots[w->n_snapshots - 1].lsn;
		w->under_way = 0;
		w->counts->checkpoints++;
	}
	else if (!may_fail(w))
		sim_fail(w, "checkpoint: %s", err.detail);
	return status == NV_OK;
}

/* Between the cut of a checkpoint and its end others go on. */
static void
work_beside_checkpoint(world *w)
{
	bool linking = w->linking;

	w->nested = true;
	for (uint64_t n = pick(w, 6); n > 0; n--)
		switch (pick(w, 4))
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
			default:
				/* The one linker may be in the middle of something. */
				if (!linking)
					do_link(w, 2);
		}
	w->nested = false;
}

/*
 * The one thread's turn goes to somebody else: while a row is being linked to a
 * checkpoint, after the cut of a checkpoint to others.
 */
static void
take_turns(void *arg, bool is_sync)
{
	world *w = arg;

	if (w->nested)
		return;
	if (w->in_checkpoint && is_sync)
	{
		note_cut(w);
		work_beside_checkpoint(w);
	}
	else if (w->linking && !w->in_checkpoint && pick(w, w->turns) == 0)
	{
		if (pick(w, 2) == 0)
			(void) do_checkpoint(w);
		else
			do_write_back(w);
	}
}

/* --- Opening and ending --- */

/* Every live row is linked or pending, nothing else is linked. */
static void
check_rows(world *w)
{
	nv_body *body = w->index->body;

	for (uint32_t e = 0; e < w->n_elements; e++)
	{
		const element *row = &w->elements[e];
		uint64_t hash = w->base->hashes[row->vector];
		bool has = body != NULL && nv_body_has(body, e, row->generation, hash);
		uint32_t generation;

		has |= nv_pending_has(w->index->pending, e, row->generation, hash);
		if (row->live && !has)
			sim_fail(w, "element %u is missing", e);
		if (!row->live && body != NULL &&
			nv_store_element(body->store, e, &generation) != NV_NO_VERTEX)
			sim_fail(w, "element %u was deleted and is back", e);
		if (!row->live)
			check(w, !has);
	}
}

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
		check(w, r->u.check.next == UINT64_MAX);
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
	w->interrupted = true;
	if (run_job(w, nv_job_open) != NV_OK || sim_disk_is_off(w->disk))
		return false;
	w->interrupted = false;
	check(w, r->u.open.state == NV_INDEX_OPENING);
	pass = r->u.open.pass;
	if (w->index == NULL)
		w->index = nv_index_get(w->engine, &w->base->key, false);
	if (!r->u.open.has_graph)
		return false;
	check_opened(w, w->index->body->store);
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
		check(w, r->status == NV_OK);
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
	nv_config config = config_of_world(pick(w, 2) == 0);
	nv_error err = {0};

	sim_disk_use(w->disk);
	if (nv_engine_create(&config, &w->port, &w->engine, &err) != NV_OK)
		sim_fail(w, "engine: %s", err.detail);
}

/* Everything in memory goes; nothing more is written. */
static void
drop_engine(world *w)
{
	(void) nv_linker_use(&w->linker, NULL, NULL);
	nv_index_put(w->index);
	w->index = NULL;
	if (w->engine != NULL)
		nv_engine_stop(w->engine, false, 0);
	w->engine = NULL;
	w->in_checkpoint = w->nested = w->linking = false;
}

/* Opens what the disk holds.  False: damage was noticed, where there may be. */
static bool
open_world(world *w)
{
	start_engine(w);
	if (catch_up(w))
	{
		check_rows(w);
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
		f = (sim_faults){.read_error = pick(w, 3) == 0 ? 400 : 0,
						 .write_error = pick(w, 3) == 0 ? 500 : 0,
						 .sync_error = pick(w, 3) == 0 ? 3000 : 0,
						 .no_space = pick(w, 2) == 0 ? 1000 : 0,
						 .short_transfer = pick(w, 2) == 0 ? 3000 : 0};
	else if (w->kind == SIM_LIES)
		f.lost_write = pick(w, 2) == 0 ? 300 : 0;
	w->lost_writes |= f.lost_write > 0;
	sim_disk_set_faults(w->disk, &f);
}

/* A store that failed is opened again at its last root, on the same disk. */
static bool
reopen_failed(world *w)
{
	sim_faults none = {0};
	bool ok;

	(void) nv_linker_use(&w->linker, NULL, NULL);
	/* The housekeeper notices. */
	nv_checkpoint_changed(w->engine, false);
	check(w, w->index->body == NULL);
	sim_disk_set_faults(w->disk, &none);
	ok = catch_up(w);
	if (ok)
		check_rows(w);
	else if (w->kind != SIM_LIES && !sim_disk_is_off(w->disk))
		sim_fail(w, "cannot be opened again: %s", w->request->detail);
	return ok;
}

static void
do_something(world *w)
{
	switch (pick(w, 16))
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
			do_link(w, 1 + (uint32_t) pick(w, 4));
			break;
		case 11:
			do_write_back(w);
			break;
		case 12:
		case 13:
			do_search(w);
			break;
		default:
			(void) do_checkpoint(w);
	}
}

/* Works until power fails, or as long as the seed says. */
static void
live(world *w)
{
	uint64_t steps = 20 + pick(w, 60);

	w->turns = pick(w, 3) == 0 ? 15 : 150;
	sim_disk_set_hook(w->disk, take_turns, w);
	set_faults(w);
	while (steps-- > 0 && !sim_disk_is_off(w->disk))
	{
		nv_body *body = w->index->body;

		do_something(w);
		if (sim_disk_is_off(w->disk))
			break;
		if (body != NULL && atomic_load(&body->store->failed) &&
			!reopen_failed(w))
			break;
	}
	sim_disk_calm(w->disk, true);
	if (!sim_disk_is_off(w->disk) && w->index->body != NULL)
	{
		check_rows(w);
		if (pick(w, 4) == 0)
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
		w->disk = sim_disk_crash(disk, (sim_policy) pick(w, SIM_POLICIES),
								 pick(w, 4) == 0, nv_random(&w->random));
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
	journal_crash(w);
	look_at_states(w);
	after = sim_disk_crash(w->disk, (sim_policy) pick(w, SIM_POLICIES),
						   pick(w, 4) == 0, nv_random(&w->random));
	if (w->kind == SIM_LIES && pick(w, 2) == 0)
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
		size_t i = (size_t) pick(w, NV_LENGTH(where));

		sim_disk_flip(after, where[i].file, where[i].from, where[i].below,
					  1 + (uint32_t) pick(w, 8), nv_random(&w->random));
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
	switch (sim_disk_is_off(w->disk) ? 0 : pick(w, 4))
	{
		case 0:
		case 1:
			if (!sim_disk_is_off(w->disk) || pick(w, 4) > 0)
			{
				power_fails(w);
				return;
			}
			/* FALLTHROUGH */
		case 2:
			drop_engine(w);
			journal_crash(w);
			w->counts->kills++;
			break;
		default: /* in order */
			if (do_checkpoint(w))
				w->flushed = w->lsn;
			drop_engine(w);
	}
	sim_disk_resume(w->disk);
}

/* Writes go on while there is no engine: only the journal knows. */
static void
journal_only(world *w)
{
	for (uint64_t n = pick(w, 12); n > 0; n--)
	{
		uint32_t e = (uint32_t) pick(w, w->n_elements);

		journal_note(w, e);
		w->elements[e].live = !w->elements[e].live;
		if (!w->elements[e].live)
			continue;
		w->elements[e].generation++;
		w->elements[e].vector = (uint32_t) pick(w, VECTORS);
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
	if (!w->interrupted && i > 0 && pick(w, 6) == 0)
		return 1 + pick(w, OPENING_CHANGES);
	if (pick(w, 8) == 0)
		return 0;
	return OPENING_CHANGES +
		   (i > 0 ? pick(w, 150) : pick(w, (uint64_t) 1 << pick(w, 8)));
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
		if (pick(w, 3) == 0)
			journal_only(w);
	}
	if (open_world(w))
	{
		do_link(w, MAX_ELEMENTS);
		check_rows(w);
		(void) do_checkpoint(w);
		for (int i = 0; i < 20; i++)
			do_search(w);
		check_engine(w);
	}
}

/* --- Running --- */

static void
init_world(world *w, const sim_base *base, uint64_t seed)
{
	nv_error err;

	w->base = base;
	w->seed = seed;
	w->random = nv_random_seed(seed);
	w->disk = sim_disk_copy(base->disk, nv_random(&w->random));
	w->row = must(nv_alloc(base->dim * sizeof(float)));
	w->request = must(nv_alloc(sizeof(*w->request)));
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
		w->elements[e] = (element){.generation = 1,
								   .vector = e % (BASE_ROWS - BASE_EQUAL),
								   .live = true};
}

static void
copy_root(world *w, const snapshot *from)
{
	snapshot *s = new_snapshot(w);

	*s = *from;
	s->vertex = must(nv_alloc_array(s->n_vertices + 1, sizeof(*s->vertex)));
	s->element = must(nv_alloc_array(s->n_elements + 1, sizeof(*s->element)));
	s->vector = NULL;
	memcpy(s->vertex, from->vertex, s->n_vertices * sizeof(*s->vertex));
	memcpy(s->element, from->element, s->n_elements * sizeof(*s->element));
	take_vectors(s, w->elements);
	w->acknowledged = w->flushed = w->lsn = s->lsn;
}

static void
free_world(world *w)
{
	for (uint32_t i = 0; i < w->n_snapshots; i++)
		free_snapshot(&w->snapshots[i]);
	nv_search_free(w->search);
	nv_ring_destroy(w->search_ring);
	nv_ring_destroy(w->linker.ring);
	nv_ring_destroy(w->linker.write_ring);
	sim_disk_use(NULL);
	sim_disk_free(w->disk);
	free(w->journal);
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
	world *w = must(nv_alloc(sizeof(*w)));

	init_world(w, base, seed);
	w->kind = kind;
	w->counts = counts;
	w->why = why;
	nv_set_log_sink(hear, w);
	/* What a contradicted world holds is left behind: the test has failed. */
	if (setjmp(w->failed) != 0)
	{
		sim_disk_use(NULL);
		nv_set_log_sink(NULL, NULL);
		return false;
	}
	copy_root(w, &base->root);
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
		check(w, r->status == NV_OK);
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
	check(w, run_job(w, nv_job_build_begin) == NV_OK);
	add_rows(w);
	begin(w, NV_REQ_BUILD_RUN)->u.build.lsn = ++w->lsn;
	return run_job(w, nv_job_build_run);
}

static void
rebuild_and_crash(world *w, uint64_t power_off_at, bool *finished)
{
	if (!open_world(w))
		sim_fail(w, "the base cannot be opened");
	sim_disk_power_off_at(w->disk, sim_disk_changes(w->disk) + power_off_at);
	w->rebuild_lsn = w->lsn + 1;
	*finished = build_graph(w, true) == NV_OK && !sim_disk_is_off(w->disk);
	if (*finished)
		sim_disk_power_off_at(w->disk, sim_disk_changes(w->disk) + 1);
	power_fails(w);
	/* The old graph or the new one, never neither. */
	if (open_world(w))
		check_engine(w);
}

bool
sim_run_rebuild(const sim_base *base, uint64_t seed, uint64_t power_off_at,
				bool *finished, sim_counts *counts, char *why)
{
	world *w = must(nv_alloc(sizeof(*w)));

	init_world(w, base, seed);
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
	rebuild_and_crash(w, power_off_at, finished);
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

	base->vectors = must(nv_alloc_array((size_t) VECTORS * dim, sizeof(float)));
	base->hashes = must(nv_alloc_array(VECTORS, sizeof(*base->hashes)));
	for (uint32_t v = 0; v < VECTORS; v++)
	{
		float *row = base->vectors + (size_t) v * dim;
		uint64_t cluster = nv_random_seed(v % 12);

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
	if (build_graph(w, false) != NV_OK)
		sim_fail(w, "build: %s", w->request->detail);
	w->index = nv_index_get(w->engine, &base->key, false);
	take_snapshot(w->index->body->store, &base->root);
	base->root.lsn = w->lsn;
	drop_engine(w);
}

sim_base *
sim_base_new(uint32_t dim, uint32_t align)
{
	sim_base *base = must(nv_alloc(sizeof(*base)));
	world *w = must(nv_alloc(sizeof(*w)));
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
	sim_disk_set_align(base->disk, align);
	init_world(w, base, 1);
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
	free_snapshot(&base->root);
	sim_disk_free(base->disk);
	free(base->vectors);
	free(base->hashes);
	free(base);
}
