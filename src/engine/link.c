/*
 * link.c
 *		Position seeking and linking: where a row belongs in the graph, its
 *		list, and the back edges to it.
 *
 * A search with a frontier of its own (|E_pos|) gives the explored set; CASR
 * loads the nearest of it.  RobustPrune takes exact vectors where there are
 * some, in graph space, and decoded codes elsewhere, in code space, where
 * distances are the same and decoding needs no rotation.  Each chosen neighbour
 * gets a back edge, out of place like every change of a list; one that has
 * outgrown the cap is pruned by decoded codes.  Lists are read before anything
 * is locked; a list that changed meanwhile is read again.
 *
 * Source: navis-system.txt, CASR and NAVIS-Update; algorithms.md section 9;
 * design.md section 4, "Position seeking", "Concurrency".
 */
#include <errno.h>

#include "linker.h"
#include "page_writer.h"
#include "pool.h"
#include "pq_internal.h"
#include "search_run.h"

/* Pages of neighbours' lists that are read at the same time. */
#define LINK_PAGES 64
/* A list that is changed by others so often while we read it is damaged. */
#define MAX_TRIES 1000

_Static_assert(LINK_PAGES *NV_PAGE <= NV_SEARCH_BUFFER,
			   "pages of back edges go where a search had its own");

/* --- Tools --- */

static void
let_go(nv_linker *l)
{
	nv_ring *ring = l->ring, *write_ring = l->write_ring;

	if (l->body == NULL)
		return;
	nv_writer_destroy(l->writer);
	nv_search_free(l->search);
	nv_ring_forget(ring, nv_store_edge_file(l->body->store));
	nv_ring_forget(ring, nv_store_vector_file(l->body->store));
	nv_ring_forget(write_ring, nv_store_vector_file(l->body->store));
	atomic_fetch_sub(&l->body->linkers, 1);
	nv_body_put(l->body);
	free(l->code);
	free(l->next_code);
	free(l->record);
	free(l->cand);
	free(l->vertex);
	free(l->met);
	free(l->chosen);
	free(l->places);
	free(l->exact);
	free(l->prune_scratch);
	free(l->list);
	free(l->list_places);
	free(l->page);
	nv_naming_free(&l->naming);
	memset(l, 0, sizeof(*l));
	l->ring = ring;
	l->write_ring = write_ring;
}

static bool
take_memory(nv_linker *l)
{
	const nv_store_params *params = nv_store_get_params(l->body->store);
	size_t place = l->body->view.gspace.gdim * sizeof(*l->list_places);
	size_t record = nv_store_vector_extent_max(l->body->store);

	l->code = nv_alloc(NV_MAX(params->code_stride, 1u));
	l->next_code = nv_alloc(NV_MAX(params->code_stride, 1u));
	l->record = aligned_alloc(NV_BLOCK, nv_round_up(record, NV_BLOCK));
	l->prune_scratch = nv_alloc(nv_prune_scratch_size());
	l->list = nv_alloc_array(params->max_degree + 1, sizeof(*l->list));
	l->chosen = nv_alloc_array(params->max_degree, sizeof(*l->chosen));
	/* The list, the newcomer and the centre. */
	l->list_places = nv_alloc_array(params->max_degree + 2, place);
	l->page = aligned_alloc(NV_BLOCK, NV_PAGE);
	return l->code != NULL && l->next_code != NULL && l->record != NULL &&
		   l->prune_scratch != NULL && l->chosen != NULL && l->list != NULL &&
		   l->list_places != NULL && l->page != NULL;
}

static bool
engine_stops(void *arg)
{
	nv_engine *engine = arg;

	return atomic_load(&engine->stopping);
}

nv_status
nv_linker_use(nv_linker *l, nv_body *body, nv_error *err)
{
	nv_status status;

	if (l->body == body)
		return NV_OK;
	let_go(l);
	if (body == NULL)
		return NV_OK;
	nv_body_get(body);
	atomic_fetch_add(&body->linkers, 1);
	l->body = body;
	status = take_memory(l)
				 ? NV_OK
				 : nv_fail(err, NV_ENOMEM, 0, "no memory to link rows");
	if (status == NV_OK)
		status = nv_search_create(&l->search, err);
	if (status == NV_OK)
		status = nv_writer_create(body->store, &l->writer, err);
	if (status == NV_OK)
	{
		nv_store_use_page_writer(body->store, body->engine->page_writer);
		nv_writer_set_cancel(l->writer, engine_stops, body->engine);
	}
	if (status != NV_OK)
		let_go(l);
	return status;
}

/* --- The vector --- */

nv_status
nv_link_write(nv_linker *l, const float *row, nv_error *err)
{
	nv_vector_write write;
	nv_status status = nv_store_place_vector(l->writer, row, &write, err);
	bool queued;

	if (status != NV_OK)
		return status;
	queued = nv_ring_write(l->write_ring, write.file, write.buf, write.len,
						   write.offset, write.len);
	nv_assert(queued); /* there is one at a time */
	nv_ring_submit(l->write_ring);
	return queued ? NV_OK : nv_fail(err, NV_EIO, 0, "the ring is full");
}

nv_status
nv_link_written(nv_linker *l, nv_error *err)
{
	nv_completion done;
	int error;

	nv_assert(nv_ring_inflight(l->write_ring) == 1);
	while (nv_ring_reap(l->write_ring, &done, 1, true) == 0)
		;
	if (done.result == (int32_t) done.token)
		return NV_OK;
	error = done.result < 0 ? -done.result : 0;
	return nv_fail(err, error == ENOSPC ? NV_ENOSPC : NV_EIO, error,
				   "could not write a vector: %s",
				   error != 0 ? strerror(error) : "it was written in part");
}

/* --- Seeking --- */

/* w_insert; asks for its calibration, and loads everything until then. */
static uint32_t
window(nv_body *body, const nv_config *config)
{
	int bucket = nv_casr_bucket(NV_DEFAULT_K, config->insert_list_size);
	uint32_t untouched = 0;

	if (bucket >= 0 && !nv_casr_ready(body->casr_insert, bucket) &&
		atomic_compare_exchange_strong(&body->wanted_insert[bucket], &untouched,
									   1))
		nv_engine_wake(body->engine);
	return nv_casr_window(body->casr_insert, bucket,
						  config->casr_percentile_insert);
}

static void
count_seek(nv_linker *l)
{
	const nv_search_stats *stats = nv_search_get_stats(l->search);
	nv_insert_counters *c = l->counters;

	atomic_fetch_add(&c->seeks, 1);
	atomic_fetch_add(&c->pages, stats->edge_pages);
	atomic_fetch_add(&c->reads, stats->edge_reads);
	atomic_fetch_add(&c->explored, stats->explored);
	atomic_fetch_add(&c->vectors, stats->vectors);
	nv_count(&c->cached, stats->cache_hits);
	nv_count(&c->bytes, stats->bytes);
}

nv_status
nv_link_seek(nv_linker *l, const float *row, uint32_t exclude, nv_error *err)
{
	nv_body *body = l->body;
	const nv_config *config = &body->engine->config;
	nv_search_options options = {
		.k = NV_DEFAULT_K,
		.list_size = nv_body_widen(body, config->insert_list_size),
		.beam_width = 4,
		.entrance_list = NV_ENTRANCE_LIST,
		.window = window(body, config),
		.exclude = exclude,
		.seek = true,
		.user = NV_CACHE_INSERT,
	};
	nv_status status;

	l->naming_counted = false;
	status = nv_search_start(l->search, &body->view, &options, row,
							 nv_ring_arena(l->ring), err);
	if (status != NV_OK)
		return status;
	status = nv_search_run(l->search, l->ring);
	if (status != NV_OK)
	{
		if (err != NULL)
			*err = *nv_search_error(l->search);
		return status;
	}
	count_seek(l);
	if (nv_search_get_stats(l->search)->damaged > 0)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "position seeking met damaged lists or vectors");
	return NV_OK;
}

/* --- Choosing neighbours --- */

static const int16_t *
place_of(void *arg, uint32_t candidate)
{
	const nv_linker *l = arg;

	return l->places + (size_t) candidate * l->body->view.gspace.gdim;
}

static const float *
exact_of(void *arg, uint32_t candidate)
{
	const nv_linker *l = arg;

	return l->exact[candidate];
}

/*
 * Explored vertices as candidates; with dead ones only if all are, and never
 * with one that is about to be freed.  All have a decoded place; the loaded
 * vectors stay in graph space, for turning one of them costs gdim^2 operations
 * and comparing it with another one gdim.  *error: of a code, measured from the
 * row: on average a vector is so much farther than its code (squared).
 */
static uint32_t
collect(nv_linker *l, uint32_t self, bool with_dead, float *error)
{
	const nv_coding *coding = nv_search_coding(l->search);
	uint32_t gdim = l->body->view.gspace.gdim;
	uint32_t met = nv_search_n_met(l->search), n = 0, exact = 0;
	double sum = 0;

	for (uint32_t i = 0; i < met; i++)
	{
		nv_met m = nv_search_met(l->search, i);

		if (m.vertex == self || nv_body_dying(l->body, m.vertex) ||
			!(with_dead || nv_body_live(l->body, m.vertex)))
			continue;
		nv_pq_decode_short(nv_coding_pq(coding),
						   nv_coding_code(coding, m.vertex),
						   l->places + (size_t) n * gdim);
		if (m.vector != NULL)
		{
			sum += (double) m.dist - (double) m.code_dist;
			exact++;
		}
		l->exact[n] = m.vector;
		l->vertex[n] = m.vertex;
		l->met[n] = i;
		l->cand[n] = (nv_candidate){m.dist, n};
		n++;
	}
	*error = exact > 0 && sum > 0 ? (float) (sum / exact) : 0.0f;
	return n;
}

/* Some explored vertex is about to be freed. */
static bool
met_dying(const nv_linker *l)
{
	uint32_t met = nv_search_n_met(l->search);

	for (uint32_t i = 0; i < met; i++)
		if (nv_body_dying(l->body, nv_search_met(l->search, i).vertex))
			return true;
	return false;
}

/* The list of a new vertex, nearest first; returns its degree. */
static nv_status
choose_neighbours(nv_linker *l, uint32_t self, uint32_t *ids, uint32_t *degree,
				  nv_error *err)
{
	uint32_t gdim = l->body->view.gspace.gdim;
	uint32_t max_degree = nv_store_get_params(l->body->store)->max_degree;
	size_t met = nv_search_n_met(l->search);
	nv_coded_places places = {
		.place = place_of,
		.unit = nv_coding_pq(nv_search_coding(l->search))->short_unit,
		.exact = exact_of};
	uint32_t n;

	if (!nv_grow(&l->cand, &l->cap_cand, met, sizeof(*l->cand)) ||
		!nv_grow(&l->vertex, &l->cap_vertex, met, sizeof(*l->vertex)) ||
		!nv_grow(&l->met, &l->cap_met, met, sizeof(*l->met)) ||
		!nv_grow(&l->places, &l->cap_places, met * gdim, sizeof(*l->places)) ||
		!nv_grow(&l->exact, &l->cap_exact, met, sizeof(*l->exact)))
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory to choose among %zu vertices", met);
	n = collect(l, self, false, &places.error);
	if (n == 0)
		n = collect(l, self, true, &places.error);
	if (n == 0 && met_dying(l))
		return nv_fail(err, NV_EBUSY, 0,
					   "all vertices around are about to be freed");
	*degree = nv_robust_prune_coded(
		l->cand, n, max_degree, l->body->params.alpha,
		NV_BUILD_FILL(max_degree), gdim, &places, l, l->prune_scratch, ids);
	for (uint32_t i = 0; i < *degree; i++)
	{
		l->chosen[i] = l->met[ids[i]];
		ids[i] = l->vertex[ids[i]];
	}
	return NV_OK;
}

/* --- Back edges --- */

/* Pages at hand; what they hold was true when they were fetched. */
typedef struct page_set
{
	uint64_t page[LINK_PAGES];
	uint64_t ticket[LINK_PAGES];
	int32_t result[LINK_PAGES];
	bool read[LINK_PAGES];
	uint32_t n;
	uint8_t *bytes; /* LINK_PAGES pages */
} page_set;

static const uint8_t *
page_at_hand(const page_set *set, uint64_t page)
{
	for (uint32_t i = 0; i < set->n; i++)
		if (set->page[i] == page && set->result[i] == NV_PAGE)
			return set->bytes + (size_t) i * NV_PAGE;
	return NULL;
}

static void
count_pages(nv_linker *l, const page_set *set)
{
	uint32_t reads = 0;

	for (uint32_t i = 0; i < set->n; i++)
		reads += set->read[i];
	nv_count(&l->counters->link_pages, set->n);
	nv_count(&l->counters->link_cached, set->n - reads);
	nv_count(&l->counters->bytes, (uint64_t) reads * NV_PAGE);
}

/* A chosen neighbour's list is still the one that was explored: *met. */
static bool
as_explored(const nv_linker *l, uint32_t number, nv_met *met)
{
	*met = nv_search_met(l->search, number);
	return met->list != NULL &&
		   met->word == nv_store_edge_word(l->body->store, met->vertex);
}

/*
 * Fetches the pages of up to LINK_PAGES lists, all reads at once; not those of
 * lists that are as they were explored.
 */
static void
fetch_pages(nv_linker *l, const uint32_t *numbers, uint32_t n, page_set *set)
{
	nv_store *store = l->body->store;
	nv_completion done[LINK_PAGES];

	set->n = 0;
	set->bytes = nv_ring_arena(l->ring);
	for (uint32_t i = 0; i < n; i++)
	{
		nv_met met;
		bool known = as_explored(l, numbers[i], &met);
		uint64_t page = nv_word_page(nv_store_edge_word(store, met.vertex));
		uint8_t *bytes = set->bytes + (size_t) set->n * NV_PAGE;
		uint32_t at = set->n;

		if (known || page_at_hand(set, page) != NULL)
			continue;
		set->page[at] = page;
		set->result[at] = NV_PAGE;
		set->read[at] = nv_store_get_page(store, page, NV_CACHE_PASSING, bytes,
										  &set->ticket[at]) == NV_PAGE_MISS;
		if (set->read[at] && !nv_ring_read(l->ring, nv_store_edge_file(store),
										   bytes, NV_PAGE, page * NV_PAGE, at))
			continue; /* read by itself later */
		set->n++;
	}
	count_pages(l, set);
	while (nv_ring_inflight(l->ring) > 0)
	{
		uint32_t arrived = nv_ring_reap(l->ring, done, LINK_PAGES, true);

		for (uint32_t i = 0; i < arrived; i++)
			set->result[done[i].token] = done[i].result;
	}
	for (uint32_t i = 0; i < set->n; i++)
		if (set->read[i] && set->result[i] == NV_PAGE)
			nv_store_fill(store, set->page[i], set->ticket[i],
						  set->bytes + (size_t) i * NV_PAGE);
}

/* One page by itself, into l->page. */
static nv_status
read_page(nv_linker *l, uint64_t page, nv_error *err)
{
	nv_store *store = l->body->store;
	uint64_t ticket;
	nv_status status;

	if (nv_store_get_page(store, page, NV_CACHE_PASSING, l->page, &ticket) !=
		NV_PAGE_MISS)
		return NV_OK;
	status = nv_file_read(nv_store_edge_file(store), l->page, NV_PAGE,
						  page * NV_PAGE, err);
	if (status == NV_OK)
		nv_store_fill(store, page, ticket, l->page);
	return status;
}

/* The list of a vertex and the word it belongs to, copied into l->list. */
static nv_status
read_list(nv_linker *l, uint32_t vertex, const page_set *set, uint64_t *word,
		  uint32_t *degree, nv_error *err)
{
	nv_store *store = l->body->store;
	const uint32_t *list = NULL;
	const uint8_t *bytes;
	nv_status status;

	*word = nv_store_edge_word(store, vertex);
	bytes = page_at_hand(set, nv_word_page(*word));
	if (bytes != NULL)
		list = nv_slot_find(store, bytes, *word, vertex, degree);
	/* The word is younger than the page: inside the epoch it must be there. */
	for (int tries = 0; list == NULL; tries++)
	{
		*word = nv_store_edge_word(store, vertex);
		status = read_page(l, nv_word_page(*word), err);
		if (status != NV_OK)
			return status;
		list = nv_slot_find(store, l->page, *word, vertex, degree);
		if (list == NULL &&
			(tries == MAX_TRIES || nv_store_edge_word(store, vertex) == *word))
			return nv_fail(err, NV_ECORRUPT, 0,
						   "the list of vertex %u is damaged", vertex);
	}
	memcpy(l->list, list, *degree * sizeof(*list));
	return NV_OK;
}

static const int16_t *
list_place(void *arg, uint32_t number)
{
	const nv_linker *l = arg;

	return l->list_places + (size_t) number * l->body->view.gspace.gdim;
}

/*
 * Counts in how many of the lists that the seek has met each vertex is.  The
 * newcomer's list is not among them: it may be reached through this one only.
 */
static bool
count_naming(nv_linker *l)
{
	uint32_t met = nv_search_n_met(l->search);
	size_t ids = 0;

	for (uint32_t i = 0; i < met; i++)
		ids += nv_search_met(l->search, i).degree;
	if (!nv_naming_begin(&l->naming, ids))
		return false;
	for (uint32_t i = 0; i < met; i++)
	{
		nv_met m = nv_search_met(l->search, i);

		for (uint32_t e = 0; m.list != NULL && e < m.degree; e++)
			nv_naming_add(&l->naming, m.list[e]);
	}
	l->naming_counted = true;
	return true;
}

/* The last one in a list that other lists name, too, or degree. */
static uint32_t
last_named_twice(const nv_linker *l, uint32_t degree, uint32_t newcomer)
{
	uint32_t i = degree;

	while (i-- > 0)
		if (l->list[i] != newcomer &&
			nv_naming_count(&l->naming, l->list[i]) > 1)
			return i;
	return degree;
}

/*
 * A pruned list, the first `degree` of l->list, goes on naming what no other
 * list names that the seek has met: it may be the last one that does, and no
 * search would find the vertex any more.  left: those it was to lose, and the
 * newcomer behind them.  With `most` members it loses others instead.  Returns
 * its degree.
 */
static uint32_t
keep_last_named(nv_linker *l, const uint32_t *left, uint32_t n_left,
				uint32_t degree, uint32_t most)
{
	if (!l->naming_counted && !count_naming(l))
		return degree; /* no memory: pruned as it is */
	for (uint32_t i = 0; i < n_left; i++)
	{
		uint32_t goes = left[i], place = degree;

		if (nv_naming_count(&l->naming, left[i]) < 2)
		{
			if (degree == most)
				place = last_named_twice(l, degree, left[n_left]);
			if (place < most)
			{
				goes = place < degree ? l->list[place] : NV_NO_VERTEX;
				degree += place == degree;
				l->list[place] = left[i];
			}
		}
		nv_naming_remove(&l->naming, goes);
	}
	return degree;
}

/*
 * A list that has outgrown the cap, l->list with the newcomer at its end: it is
 * pruned by decoded codes to the target of a build's lists, unless others need
 * it.  So the next newcomers find room, and a prune is paid for by all of them.
 * Returns the new degree; *kept: the newcomer is still there, as it is if it
 * must stay.
 */
static uint32_t
shorten_list(nv_linker *l, uint32_t centre, uint32_t count, bool must_stay,
			 bool *kept)
{
	nv_candidate cand[NV_MAX_DEGREE + 1];
	uint32_t old[NV_MAX_DEGREE + 1], picks[NV_MAX_DEGREE];
	bool stays[NV_MAX_DEGREE + 1] = {false};
	const nv_coding *coding = nv_store_coding(l->body->store);
	const nv_pq *pq = nv_coding_pq(coding);
	uint32_t gdim = l->body->view.gspace.gdim;
	uint32_t target = nv_prune_target(count - 1);
	int16_t *middle = l->list_places + (size_t) count * gdim;
	nv_coded_places places = {.place = list_place, .unit = pq->short_unit};
	uint32_t degree, n_left = 0;

	nv_pq_decode_short(pq, nv_coding_code(coding, centre), middle);
	for (uint32_t i = 0; i < count; i++)
	{
		int16_t *place = l->list_places + (size_t) i * gdim;

		nv_pq_decode_short(pq, nv_coding_code(coding, l->list[i]), place);
		cand[i] = (nv_candidate){
			(float) (places.unit * nv_l2sq_short(middle, place, gdim)), i};
		old[i] = l->list[i];
	}
	degree = nv_robust_prune_coded(cand, count, target, l->body->params.alpha,
								   target, gdim, &places, l, l->prune_scratch,
								   picks);
	for (uint32_t i = 0; i < degree; i++)
		stays[picks[i]] = true;
	if (must_stay && !stays[count - 1])
	{
		stays[picks[degree - 1]] = false;
		picks[degree - 1] = count - 1;
		stays[count - 1] = true;
	}
	for (uint32_t i = 0; i < degree; i++)
		l->list[i] = old[picks[i]];
	for (uint32_t i = 0; i < count - 1; i++)
		if (!stays[i])
			old[n_left++] = old[i];
	old[n_left] = old[count - 1];
	*kept = stays[count - 1];
	return keep_last_named(l, old, n_left, degree, count - 1);
}

/* The list of a chosen neighbour: as it was explored, or read. */
static nv_status
list_of(nv_linker *l, uint32_t number, const page_set *set, uint64_t *word,
		uint32_t *degree, nv_error *err)
{
	nv_met met;

	if (!as_explored(l, number, &met))
		return read_list(l, met.vertex, set, word, degree, err);
	*word = met.word;
	*degree = met.degree;
	memcpy(l->list, met.list, met.degree * sizeof(*met.list));
	return NV_OK;
}

/*
 * One back edge, from the vertex that has this number in the search; *kept: its
 * list names the newcomer now.
 */
static nv_status
link_back(nv_linker *l, uint32_t number, uint32_t newcomer, bool must_stay,
		  const page_set *set, bool *kept, nv_error *err)
{
	uint32_t max_degree = nv_store_get_params(l->body->store)->max_degree;
	uint32_t vertex = nv_search_met(l->search, number).vertex;
	nv_status status;
	uint64_t word;

	do
	{
		uint32_t degree;

		status = list_of(l, number, set, &word, &degree, err);
		if (status != NV_OK)
			return status;
		*kept = true;
		for (uint32_t i = 0; i < degree; i++)
			if (l->list[i] == newcomer)
				return NV_OK;
		l->list[degree++] = newcomer;
		if (degree > max_degree)
		{
			degree = shorten_list(l, vertex, degree, must_stay, kept);
			atomic_fetch_add(&l->counters->overflows, 1);
		}
		status = nv_store_relink(l->writer, vertex, word, l->list, degree, err);
	} while (status == NV_EBUSY);
	if (status != NV_OK)
		return status;
	atomic_fetch_add(&l->counters->relinks, 1);
	atomic_fetch_add(&l->counters->moved,
					 nv_word_page(nv_store_edge_word(l->body->store, vertex)) !=
						 nv_word_page(word));
	return NV_OK;
}

/*
 * Back edges from all neighbours chosen after the last seek; one at least
 * stays.
 */
static nv_status
link_back_all(nv_linker *l, uint32_t vertex, uint32_t degree, nv_error *err)
{
	const uint32_t *chosen = l->chosen;
	nv_status status = NV_OK;
	bool reachable = false, kept = false;
	page_set set;

	for (uint32_t first = 0; first < degree && status == NV_OK;
		 first += LINK_PAGES)
	{
		uint32_t n = NV_MIN(degree - first, (uint32_t) LINK_PAGES);

		fetch_pages(l, chosen + first, n, &set);
		for (uint32_t i = first; i < first + n && status == NV_OK; i++)
		{
			status = link_back(l, chosen[i], vertex, false, &set, &kept, err);
			reachable |= kept;
		}
	}
	if (status == NV_OK && !reachable && degree > 0)
	{
		set.n = 0;
		status = link_back(l, chosen[0], vertex, true, &set, &kept, err);
	}
	return status;
}

/* --- Linking --- */

/* The vertex's own list; others may be changing one that it had before. */
static nv_status
write_list(nv_linker *l, uint32_t vertex, const uint32_t *ids, uint32_t degree,
		   nv_error *err)
{
	nv_status status;

	do
		status = nv_store_relink(l->writer, vertex,
								 nv_store_edge_word(l->body->store, vertex),
								 ids, degree, err);
	while (status == NV_EBUSY);
	return status;
}

nv_status
nv_link_vertex(nv_linker *l, uint32_t vertex, nv_error *err)
{
	nv_store *store = l->body->store;
	uint32_t ids[NV_MAX_DEGREE], degree = 0;
	bool first = nv_store_edge_word(store, vertex) == 0;
	nv_status status = choose_neighbours(l, vertex, ids, &degree, err);
	int epoch;

	if (status == NV_OK)
		status = write_list(l, vertex, ids, degree, err);
	if (status != NV_OK)
		return status;
	if (first)
		nv_equal_add(l->body->equal, store, vertex);
	epoch = nv_store_enter(store);
	if (epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	status = link_back_all(l, vertex, degree, err);
	nv_store_leave(store, epoch);
	if (status == NV_OK)
		status = nv_store_set_linked(store, vertex, err);
	return status;
}

/* --- The entrance graph --- */

nv_status
nv_link_promote(nv_linker *l, uint32_t vertex, nv_error *err)
{
	const nv_candidate *seeds;
	uint32_t met = nv_search_n_met(l->search), n = 0;
	uint32_t n_seeds = nv_search_seeds(l->search, &seeds);

	if (!nv_grow(&l->vertex, &l->cap_vertex, (size_t) met + n_seeds,
				 sizeof(*l->vertex)))
		return nv_fail(err, NV_ENOMEM, 0, "no memory to promote a vertex");
	for (uint32_t i = 0; i < n_seeds; i++)
		l->vertex[n++] = seeds[i].id;
	for (uint32_t i = 0; i < met; i++)
		l->vertex[n++] = nv_search_met(l->search, i).vertex;
	return nv_entrance_promote(l->body->entrance, vertex,
							   nv_search_mapped(l->search), l->vertex, n,
							   l->body->params.alpha, err);
}

/* --- Consolidation --- */

nv_status
nv_link_read_list(nv_linker *l, uint32_t vertex, uint64_t *word,
				  uint32_t *degree, nv_error *err)
{
	page_set none = {.n = 0};

	return read_list(l, vertex, &none, word, degree, err);
}

/* The row of a vertex, and verified. */
static nv_status
read_row(nv_linker *l, uint32_t vertex, float *row, nv_error *err)
{
	nv_store *store = l->body->store;
	uint32_t bytes = nv_store_get_params(store)->vector_bytes;
	uint64_t offset;
	uint32_t len, skip;
	nv_status status;

	nv_store_vector_extent(store, vertex, &offset, &len, &skip);
	status =
		nv_file_read(nv_store_vector_file(store), l->record, len, offset, err);
	if (status != NV_OK)
		return status;
	memcpy(row, l->record + skip, bytes);
	if (nv_vector_hash(row, bytes) != nv_store_vector_hash(store, vertex))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "the vector of vertex %u is damaged", vertex);
	return NV_OK;
}

/* Inside an epoch, whose codes it uses. */
static nv_status
link_again(nv_linker *l, uint32_t vertex, float *row, bool replace,
		   nv_error *err)
{
	uint32_t ids[NV_MAX_DEGREE], degree = 0, own;
	nv_status status = read_row(l, vertex, row, err);
	uint64_t word;

	if (status == NV_OK)
		status = nv_link_seek(l, row, vertex, err);
	if (status == NV_OK)
		status = choose_neighbours(l, vertex, ids, &degree, err);
	if (status == NV_OK)
		status = nv_link_read_list(l, vertex, &word, &own, err);
	if (status == NV_OK && (replace || own == 0))
		status = write_list(l, vertex, ids, degree, err);
	if (status == NV_OK)
		status = link_back_all(l, vertex, degree, err);
	return status;
}

nv_status
nv_link_again(nv_linker *l, uint32_t vertex, float *row, bool replace,
			  nv_error *err)
{
	nv_store *store = l->body->store;
	int epoch = nv_store_enter(store);
	nv_status status;

	if (epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	status = link_again(l, vertex, row, replace, err);
	nv_store_leave(store, epoch);
	return status;
}
