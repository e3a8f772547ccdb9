/*
 * search.c
 *		Beam search over the edge file, as a resumable state machine.
 *
 * One hop: the nearest unexplored candidates that lie on beam_width distinct
 * pages are chosen and their pages looked up (RMW, NAVIS-Cache, else read).
 * When all are there, every frontier candidate whose list lies on one of them
 * is explored: its neighbours that were never scored are scored by code and
 * offered to the pool.  The pages of the last hops stay in the buffer, and a
 * candidate that lies on one of them is explored without looking its page up
 * again.  When the frontier has no unexplored candidate left, the explored set
 * is reranked (rerank.c).
 *
 * Concurrency: an edge word is loaded before its page is looked up, and the
 * epoch keeps the slot it names from being reused; so the page must hold that
 * slot, however the list has moved on since.  Nothing else is shared.
 *
 * Results do not depend on the order of arrivals: a hop is worked on when it
 * is complete.
 *
 * Source: algorithms.md sections 5 and 6; design.md section 4.
 */
#include "search.h"

#include "pool.h"
#include "pq_internal.h"
#include "rerank.h"
#include "visited.h"

/* Neighbours scored at a time: at least one longest list fits. */
#define SCORE_BLOCK 1024
/* Look-ups of one vertex whose word had changed, before it counts as damage. */
#define MAX_RETRIES 16
/* Candidates set aside in one hop because their page is asked for already. */
#define MAX_SET_ASIDE 256
#define CACHE_LINE 64 /* bytes; the step of prefetches */

typedef enum nv_phase_of_search
{
	PHASE_IDLE,   /* nothing started yet */
	PHASE_SEED,   /* table and entrance to come */
	PHASE_RESEAT, /* a wider frontier to be filled from the overflow */
	PHASE_PAGES,  /* a hop waits for its pages */
	PHASE_RANK,   /* rerank to begin */
	PHASE_VECTORS,
	PHASE_DONE,
	PHASE_FAILED
} nv_phase_of_search;

/* A page-sized place in the buffer. */
typedef struct nv_beam_page
{
	uint64_t page;
	uint64_t word;   /* of the candidate that was asked for */
	uint64_t ticket; /* for the cache, when it was read */
	uint32_t node;
	int32_t result;
	bool valid;   /* holds `page`, of this hop or an earlier one */
	bool asked;   /* belongs to the hop under way */
	bool read;    /* from disk */
	bool arrived; /* nothing to wait for */
} nv_beam_page;

/* A list as it was when its vertex was explored. */
typedef struct kept_list
{
	uint64_t word;
	size_t first; /* of its ids */
	uint32_t degree;
} kept_list;

struct nv_search
{
	const nv_view *view;
	const nv_coding *coding; /* what it began with */
	nv_search_options options;
	nv_phase_of_search phase;
	int epoch; /* slot, or -1 */
	uint8_t *buffer;
	float *query;  /* as the operator sees it */
	float *mapped; /* in graph space */
	float *turned; /* in code space, and as much scratch */
	float *table;  /* ADC */
	nv_candidate *seeds;
	uint32_t n_seeds;
	void *scratch; /* of the entrance search */
	size_t cap_query, cap_mapped, cap_turned, cap_table, cap_seeds, cap_scratch;

	nv_visited visited;
	nv_cand_pool pool;
	nv_beam_page beam[NV_MAX_BEAM];
	uint32_t next_place; /* the place of the buffer the next page goes to */
	uint32_t waiting;    /* pages of the hop that have not arrived */
	nv_rerank rerank;

	/* position seeking: lists of explored vertices, and their ids */
	kept_list *lists;
	uint32_t *list_ids;
	size_t n_lists, cap_lists, n_list_ids, cap_list_ids;

	/* neighbours waiting to be scored */
	uint32_t n_block;
	uint32_t block_id[SCORE_BLOCK];
	const uint8_t *block_code[SCORE_BLOCK];
	float block_dist[SCORE_BLOCK];
	nv_rank block_rank[SCORE_BLOCK];
	uint32_t block_page[SCORE_BLOCK];

	bool results_valid;
	nv_search_stats stats;
	nv_error error;
};

/* --- Life --- */

nv_status
nv_search_create(nv_search **search, nv_error *err)
{
	nv_search *s = nv_alloc(sizeof(*s));

	if (s == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a search");
	s->epoch = -1;
	s->phase = PHASE_IDLE;
	*search = s;
	return NV_OK;
}

/* Gives back what was lent; the results stay. */
static void
let_go(nv_search *s)
{
	if (s->epoch >= 0)
		nv_store_leave(s->view->store, s->epoch);
	s->epoch = -1;
	s->buffer = NULL;
	for (uint32_t i = 0; i < NV_MAX_BEAM; i++)
		s->beam[i].valid = s->beam[i].asked = false;
	s->waiting = 0;
}

void
nv_search_free(nv_search *s)
{
	if (s == NULL)
		return;
	let_go(s);
	nv_visited_free(&s->visited);
	nv_cand_pool_free(&s->pool);
	nv_rerank_free(&s->rerank);
	free(s->query);
	free(s->mapped);
	free(s->turned);
	free(s->lists);
	free(s->list_ids);
	free(s->table);
	free(s->seeds);
	free(s->scratch);
	free(s);
}

size_t
nv_search_memory(const nv_search *s)
{
	return sizeof(*s) + s->cap_query + s->cap_mapped + s->cap_turned +
		   s->cap_table + s->cap_seeds + s->cap_scratch +
		   s->cap_lists * sizeof(*s->lists) +
		   s->cap_list_ids * sizeof(*s->list_ids) +
		   s->visited.capacity * sizeof(*s->visited.slots) +
		   nv_cand_pool_memory(&s->pool) + nv_rerank_memory(&s->rerank);
}

/* Memory of at least so many bytes, zeroed when it is new. */
static bool
room(void *pointer, size_t *capacity, size_t bytes)
{
	void *old;
	void *p;

	if (bytes <= *capacity)
		return true;
	memcpy(&old, pointer, sizeof(old));
	p = nv_alloc(bytes);
	if (p == NULL)
		return false;
	free(old);
	memcpy(pointer, &p, sizeof(p));
	*capacity = bytes;
	return true;
}

static nv_status
check_options(const nv_view *view, const nv_pq *pq, const nv_search_options *o,
			  nv_error *err)
{
	const nv_store_params *params = nv_store_get_params(view->store);

	if (o->k < 1 || o->beam_width < 1 || o->beam_width > NV_MAX_BEAM ||
		o->entrance_list < 1 || o->entrance_list > NV_ENTRANCE_MAX_LIST)
		return nv_fail(err, NV_EINVAL, 0,
					   "search options out of range: k %u, beam width %u, "
					   "entrance list %u",
					   o->k, o->beam_width, o->entrance_list);
	if (view->gspace.dim != params->dim ||
		params->vector_bytes != params->dim * sizeof(float) || pq == NULL ||
		nv_pq_gdim(pq) != view->gspace.gdim ||
		nv_pq_stride(pq) != params->code_stride)
		return nv_fail(err, NV_EINVAL, 0,
					   "search does not fit its index: %u dimensions of %u "
					   "bytes, code of %u bytes in steps of %u",
					   params->dim, params->vector_bytes,
					   pq != NULL ? nv_pq_bytes(pq) : 0, params->code_stride);
	return NV_OK;
}

static nv_status
take_epoch(nv_search *s, nv_store *store, uint8_t *buffer, nv_error *err)
{
	nv_assert(s->epoch < 0);
	nv_assert((uintptr_t) buffer % NV_BLOCK == 0);
	s->epoch = nv_store_enter(store);
	if (s->epoch < 0)
		return nv_fail(err, NV_ELIMIT, 0,
					   "all %d reader slots of the index are taken",
					   NV_EPOCH_SLOTS);
	s->buffer = buffer;
	s->results_valid = false;
	return NV_OK;
}

/* Memory for the query; false: there is none. */
static bool
take_room(nv_search *s, const nv_view *view, const nv_search_options *options)
{
	size_t table = nv_pq_table_size(nv_coding_pq(s->coding));
	size_t mapped = view->gspace.gdim * sizeof(float);

	return room(&s->query, &s->cap_query, view->gspace.dim * sizeof(float)) &&
		   room(&s->mapped, &s->cap_mapped, mapped) &&
		   room(&s->turned, &s->cap_turned, 2 * mapped) &&
		   room(&s->table, &s->cap_table, table * sizeof(float)) &&
		   room(&s->seeds, &s->cap_seeds,
				options->entrance_list * sizeof(*s->seeds));
}

nv_status
nv_search_start(nv_search *s, const nv_view *view,
				const nv_search_options *options, const float *query,
				uint8_t *buffer, nv_error *err)
{
	nv_status status;

	s->view = view;
	s->phase = PHASE_IDLE;
	status = take_epoch(s, view->store, buffer, err);
	if (status != NV_OK)
		return status;
	s->coding = nv_store_coding(view->store);
	status = check_options(view, nv_coding_pq(s->coding), options, err);
	if (status == NV_OK && !take_room(s, view, options))
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for a search");
	if (status != NV_OK)
	{
		let_go(s);
		return status;
	}
	s->options = *options;
	s->options.list_size = NV_MAX(options->list_size, options->k);
	memcpy(s->query, query, view->gspace.dim * sizeof(float));
	nv_visited_clear(&s->visited);
	nv_cand_pool_clear(&s->pool, s->options.list_size);
	nv_rerank_clear(&s->rerank);
	memset(&s->stats, 0, sizeof(s->stats));
	memset(&s->error, 0, sizeof(s->error));
	s->n_block = s->next_place = s->n_seeds = 0;
	s->n_lists = s->n_list_ids = 0;
	s->phase = PHASE_SEED;
	return NV_OK;
}

/* --- Scoring --- */

/* Offers ranks that are in the frontier as candidates on their pages. */
static void
open_ranks(nv_search *s, uint32_t n)
{
	const nv_store *store = s->view->store;

	/* Map entries are random memory: load them all before they are used. */
	for (uint32_t i = 0; i < n; i++)
		s->block_page[i] = (uint32_t) nv_word_page(
			nv_store_edge_word(store, nv_rank_id(s->block_rank[i])));
	for (uint32_t i = 0; i < n; i++)
		nv_cand_pool_add(&s->pool, s->block_rank[i], s->block_page[i]);
}

/* Scores the block and offers it to the pool; false: no memory. */
static bool
score(nv_search *s)
{
	uint32_t n = s->n_block;

	s->n_block = 0;
	if (n == 0)
		return true;
	if (!nv_cand_pool_reserve(&s->pool, n))
		return false;
	nv_adc_scan(s->table, nv_pq_bytes(nv_coding_pq(s->coding)), s->block_code,
				n, s->block_dist);
	n = nv_cand_pool_offer(&s->pool, s->block_id, s->block_dist, n,
						   s->block_rank);
	open_ranks(s, n);
	return true;
}

/* Puts the unseen ones of n vertices into the block; false: no memory. */
static bool
gather(nv_search *s, const uint32_t *ids, uint32_t n)
{
	const nv_store *store = s->view->store;
	uint32_t vertices = nv_store_vertices(store);
	uint32_t code_bytes = nv_pq_bytes(nv_coding_pq(s->coding));

	nv_assert(n <= SCORE_BLOCK);
	if (s->n_block + n > SCORE_BLOCK && !score(s))
		return false;
	if (!nv_visited_reserve(&s->visited, n))
		return false;
	for (uint32_t i = 0; i < n; i++)
		nv_visited_prefetch(&s->visited, ids[i]);
	for (uint32_t i = 0; i < n; i++)
	{
		const uint8_t *code;

		if (ids[i] >= vertices)
		{
			s->stats.damaged++;
			continue;
		}
		if (!nv_visited_add(&s->visited, ids[i]))
			continue;
		/* A random place in memory: fetched while the block fills. */
		code = nv_coding_code(s->coding, ids[i]);
		for (uint32_t b = 0; b < code_bytes; b += CACHE_LINE)
			__builtin_prefetch(code + b);
		__builtin_prefetch(code + code_bytes - 1);
		s->block_id[s->n_block] = ids[i];
		s->block_code[s->n_block++] = code;
	}
	return true;
}

/* Keeps a copy of a list for who seeks a position; *number: the list's. */
static bool
keep_list(nv_search *s, uint64_t word, const uint32_t *list, uint32_t degree,
		  uint32_t *number)
{
	if (!nv_grow(&s->lists, &s->cap_lists, s->n_lists + 1, sizeof(*s->lists)) ||
		!nv_grow(&s->list_ids, &s->cap_list_ids, s->n_list_ids + degree + 1,
				 sizeof(*s->list_ids)))
		return false;
	memcpy(s->list_ids + s->n_list_ids, list, degree * sizeof(*list));
	*number = (uint32_t) s->n_lists;
	s->lists[s->n_lists++] = (kept_list){word, s->n_list_ids, degree};
	s->n_list_ids += degree;
	return true;
}

/*
 * A candidate is explored: its neighbours are gathered, it may be reranked.
 * word: the list's edge word.
 */
static bool
explore(nv_search *s, uint32_t node, uint64_t word, const uint32_t *list,
		uint32_t degree)
{
	uint32_t number = NV_NO_LIST;

	if (!nv_rerank_reserve(&s->rerank, 1) ||
		(s->options.seek && list != NULL &&
		 !keep_list(s, word, list, degree, &number)))
		return false;
	nv_rerank_add(&s->rerank, s->pool.nodes[node].rank, number);
	nv_cand_pool_set_explored(&s->pool, node);
	s->stats.explored++;
	return gather(s, list, degree);
}

/* A candidate whose list cannot be had: explored, without neighbours. */
static bool
explore_damaged(nv_search *s, uint32_t node)
{
	s->stats.damaged++;
	return explore(s, node, 0, NULL, 0);
}

/* --- Where a search begins --- */

/* ADC table, entrance members, first candidates; false: no memory. */
static bool
seed(nv_search *s)
{
	const nv_view *view = s->view;
	const nv_pq *pq = nv_coding_pq(s->coding);
	const nv_entrance *entrance = view->entrance;
	uint32_t n = 0;
	uint32_t id;

	if (s->options.seek)
		nv_gspace_row(&view->gspace, s->query, s->mapped);
	else
		nv_gspace_query(&view->gspace, s->query, s->mapped);
	nv_pq_project(pq, s->mapped, view->gspace.gdim, 1, s->turned,
				  s->turned + view->gspace.gdim);
	nv_pq_table_projected(pq, s->turned, s->table);
	if (entrance != NULL && !s->options.from_medoid)
	{
		if (!room(&s->scratch, &s->cap_scratch,
				  nv_entrance_scratch_size(entrance)))
			return false;
		n = nv_entrance_search(entrance, s->mapped, s->options.entrance_list,
							   s->options.entrance_list, s->scratch,
							   s->cap_scratch, s->seeds);
	}
	s->n_seeds = n;
	for (uint32_t i = 0; i < n; i++)
		if (!gather(s, &s->seeds[i].id, 1))
			return false;
	id = view->medoid;
	if (n == 0 && nv_store_vertices(view->store) > 0 && !gather(s, &id, 1))
		return false;
	return score(s);
}

/* Opens what a wider frontier takes in from the overflow; false: no memory. */
static bool
reseat(nv_search *s)
{
	uint32_t n;

	if (!nv_cand_pool_widen(&s->pool, s->options.list_size))
		return false;
	do
	{
		if (!nv_cand_pool_reserve(&s->pool, SCORE_BLOCK))
			return false;
		n = nv_cand_pool_reseat(&s->pool, s->block_rank, SCORE_BLOCK);
		open_ranks(s, n);
	} while (n > 0);
	return true;
}

/* --- One hop --- */

static uint8_t *
page_bytes(const nv_search *s, uint32_t place)
{
	return s->buffer + (size_t) place * NV_PAGE;
}

/* The place that holds a page or waits for it, or NULL. */
static nv_beam_page *
find_page(nv_search *s, uint64_t page)
{
	for (uint32_t i = 0; i < NV_MAX_BEAM; i++)
		if (s->beam[i].valid && s->beam[i].page == page)
			return &s->beam[i];
	return NULL;
}

/* Looks the page of a candidate up, or asks for it to be read. */
static void
ask_page(nv_search *s, uint32_t node, uint64_t word, nv_read *reads,
		 uint32_t *n_reads)
{
	uint32_t place = s->next_place;
	nv_beam_page *b = &s->beam[place];
	nv_store *store = s->view->store;

	s->next_place = (place + 1) % NV_MAX_BEAM;
	nv_assert(!b->asked);
	*b = (nv_beam_page){.page = nv_word_page(word),
						.word = word,
						.node = node,
						.valid = true,
						.asked = true};
	s->stats.edge_pages++;
	if (nv_store_get_page(store, b->page, s->options.user, page_bytes(s, place),
						  &b->ticket) != NV_PAGE_MISS)
	{
		b->arrived = true;
		b->result = NV_PAGE;
		s->stats.cache_hits++;
		return;
	}
	b->read = true;
	s->stats.edge_reads++;
	s->waiting++;
	reads[(*n_reads)++] = (nv_read){.file = nv_store_edge_file(store),
									.offset = b->page * NV_PAGE,
									.len = NV_PAGE,
									.tag = place,
									.buf = page_bytes(s, place)};
}

typedef enum nv_choice
{
	CHOSE_PAGE,      /* its page was asked for */
	CHOSE_SET_ASIDE, /* its page is asked for in this hop already */
	CHOSE_EXPLORED,  /* needed no page */
	CHOSE_NO_MEMORY
} nv_choice;

static nv_choice
choose(nv_search *s, uint32_t node, nv_read *reads, uint32_t *n_reads)
{
	const nv_store *store = s->view->store;
	uint32_t vertex = nv_rank_id(s->pool.nodes[node].rank);
	uint64_t word = nv_store_edge_word(store, vertex);
	nv_beam_page *b;

	if (word == 0)
		/* Not linked yet: nothing leads on from here. */
		return explore(s, node, 0, NULL, 0) ? CHOSE_EXPLORED : CHOSE_NO_MEMORY;
	if (nv_word_page(word) != s->pool.nodes[node].page)
		nv_cand_pool_move(&s->pool, node, (uint32_t) nv_word_page(word));
	b = find_page(s, nv_word_page(word));
	if (b != NULL && b->asked)
		return CHOSE_SET_ASIDE;
	if (b != NULL && !s->options.single_lists)
	{
		uint32_t degree;
		const uint32_t *list =
			nv_slot_find(store, page_bytes(s, (uint32_t) (b - s->beam)), word,
						 vertex, &degree);

		/* Scored at once: the best of them may be next. */
		if (list != NULL)
			return explore(s, node, word, list, degree) && score(s)
					   ? CHOSE_EXPLORED
					   : CHOSE_NO_MEMORY;
	}
	if (b != NULL)
		b->valid = false;
	ask_page(s, node, word, reads, n_reads);
	return CHOSE_PAGE;
}

/*
 * Chooses the candidates of the next hop.  Returns the number of pages asked
 * for (0: the frontier is explored), or -1: no memory.
 */
static int
select_hop(nv_search *s, nv_read *reads, uint32_t *n_reads)
{
	uint32_t aside[MAX_SET_ASIDE];
	uint32_t n_aside = 0;
	uint32_t pages = 0;
	bool memory = true;

	while (pages < s->options.beam_width && n_aside < MAX_SET_ASIDE && memory)
	{
		uint32_t node = nv_cand_pool_pop(&s->pool);

		if (node == NV_CAND_NONE)
			break;
		switch (choose(s, node, reads, n_reads))
		{
			case CHOSE_PAGE:
				pages++;
				break;
			case CHOSE_SET_ASIDE:
				aside[n_aside++] = node;
				break;
			case CHOSE_EXPLORED:
				break;
			case CHOSE_NO_MEMORY:
				memory = false;
				break;
		}
	}
	for (uint32_t i = 0; i < n_aside; i++)
		nv_cand_pool_push_back(&s->pool, aside[i]);
	return memory ? (int) pages : -1;
}

/* Explores the candidate that a page was asked for. */
static bool
explore_asked(nv_search *s, nv_beam_page *b)
{
	nv_store *store = s->view->store;
	nv_cand_node *node = &s->pool.nodes[b->node];
	const uint8_t *bytes = page_bytes(s, (uint32_t) (b - s->beam));
	uint32_t vertex = nv_rank_id(node->rank);
	uint32_t degree;
	const uint32_t *list = nv_slot_find(store, bytes, b->word, vertex, &degree);

	if (list != NULL)
	{
		if (b->read)
			nv_store_fill(store, b->page, b->ticket, bytes);
		return explore(s, b->node, b->word, list, degree);
	}
	b->valid = false;
	if (nv_store_edge_word(store, vertex) != b->word &&
		node->retries < MAX_RETRIES)
	{
		node->retries++;
		nv_cand_pool_push_back(&s->pool, b->node);
		return true;
	}
	return explore_damaged(s, b->node);
}

/*
 * Explores the other candidates of the frontier that lie on a page.  One whose
 * list is not found stays: its word may be younger than this copy.
 */
static bool
explore_others(nv_search *s, nv_beam_page *b)
{
	nv_store *store = s->view->store;
	nv_cand_pool *pool = &s->pool;
	const uint8_t *bytes = page_bytes(s, (uint32_t) (b - s->beam));
	uint32_t next = nv_cand_pool_take_chain(pool, (uint32_t) b->page);
	bool memory = true;

	while (next != NV_CAND_NONE)
	{
		uint32_t node = next;
		uint32_t vertex = nv_rank_id(pool->nodes[node].rank);
		uint64_t word;
		const uint32_t *list = NULL;
		uint32_t degree;

		next = pool->nodes[node].next;
		if (pool->nodes[node].explored)
			continue;
		word = nv_store_edge_word(store, vertex);
		if (memory && nv_word_page(word) == b->page && word != 0 &&
			nv_cand_pool_within(pool, pool->nodes[node].rank))
			list = nv_slot_find(store, bytes, word, vertex, &degree);
		if (list != NULL)
			memory = explore(s, node, word, list, degree);
		else
			nv_cand_pool_chain(pool, node, (uint32_t) nv_word_page(word));
	}
	return memory;
}

/* A page could not be read: what the frontier has on it is damaged. */
static bool
explore_unreadable(nv_search *s, nv_beam_page *b)
{
	nv_store *store = s->view->store;
	nv_cand_pool *pool = &s->pool;
	uint32_t next = nv_cand_pool_take_chain(pool, (uint32_t) b->page);
	bool memory = true;

	b->valid = false;
	while (next != NV_CAND_NONE)
	{
		uint32_t node = next;
		uint64_t word;

		next = pool->nodes[node].next;
		if (pool->nodes[node].explored)
			continue;
		word = nv_store_edge_word(store, nv_rank_id(pool->nodes[node].rank));
		if (node != b->node &&
			(s->options.single_lists || nv_word_page(word) != b->page ||
			 !nv_cand_pool_within(pool, pool->nodes[node].rank)))
			nv_cand_pool_chain(pool, node, (uint32_t) nv_word_page(word));
		else
			memory = memory && explore_damaged(s, node);
	}
	return memory;
}

/* All pages of the hop are there.  False: no memory. */
static bool
work_hop(nv_search *s)
{
	bool memory = true;

	s->stats.hops++;
	/* Oldest place first, so in the order in which they were asked for. */
	for (uint32_t i = 0; i < NV_MAX_BEAM && memory; i++)
	{
		nv_beam_page *b = &s->beam[(s->next_place + i) % NV_MAX_BEAM];

		if (!b->asked)
			continue;
		b->asked = false;
		if (b->result != NV_PAGE)
			memory = explore_unreadable(s, b);
		else
			memory = explore_asked(s, b) &&
					 (s->options.single_lists || explore_others(s, b));
	}
	return memory && score(s);
}

/* --- The state machine --- */

static nv_rerank_query
rerank_query(nv_search *s)
{
	return (nv_rerank_query){
		.view = s->view,
		.query = s->query,
		.graph_query = s->mapped,
		.mapped = s->options.seek ? s->mapped : NULL,
		.k = s->options.k,
		.window = s->options.window,
		.exclude = s->options.exclude,
		.stages = s->options.stages,
		.buffer = s->buffer + (size_t) NV_MAX_BEAM * NV_PAGE,
		.first_tag = NV_MAX_BEAM,
		.stats = &s->stats,
	};
}

static nv_step
fail(nv_search *s)
{
	nv_assert(s->rerank.busy == 0);
	nv_fail(&s->error, NV_ENOMEM, 0,
			"no memory for a search that holds %zu bytes and has explored "
			"%llu vertices",
			nv_search_memory(s), (unsigned long long) s->stats.explored);
	s->phase = PHASE_FAILED;
	let_go(s);
	return NV_STEP_FAILED;
}

/* Chooses the next hop; what follows is said by the phase. */
static nv_step
begin_hop(nv_search *s, nv_read *reads, uint32_t *n_reads)
{
	int pages = select_hop(s, reads, n_reads);

	if (pages < 0)
		return fail(s);
	s->phase = pages == 0 ? PHASE_RANK : PHASE_PAGES;
	return s->waiting > 0 ? NV_STEP_WAIT : NV_STEP_AGAIN;
}

static nv_step
begin_rerank(nv_search *s)
{
	nv_rerank_query q = rerank_query(s);

	if (!nv_rerank_begin(&s->rerank, &q))
		return fail(s);
	s->phase = PHASE_VECTORS;
	return NV_STEP_AGAIN;
}

static nv_step
load_vectors(nv_search *s, nv_read *reads, uint32_t *n_reads)
{
	nv_rerank_query q = rerank_query(s);

	if (!nv_rerank_step(&s->rerank, &q, reads, n_reads))
		return NV_STEP_WAIT;
	s->phase = PHASE_DONE;
	let_go(s);
	return NV_STEP_DONE;
}

/* The work of one step: at most one hop, or what vectors have arrived. */
static nv_step
advance(nv_search *s, nv_read *reads, uint32_t *n_reads)
{
	switch (s->phase)
	{
		case PHASE_SEED:
			return seed(s) ? begin_hop(s, reads, n_reads) : fail(s);
		case PHASE_RESEAT:
			return reseat(s) ? begin_hop(s, reads, n_reads) : fail(s);
		case PHASE_PAGES:
			if (s->waiting > 0)
				return NV_STEP_WAIT;
			return work_hop(s) ? begin_hop(s, reads, n_reads) : fail(s);
		case PHASE_RANK:
			if (begin_rerank(s) == NV_STEP_FAILED)
				return NV_STEP_FAILED;
			return load_vectors(s, reads, n_reads);
		case PHASE_VECTORS:
			return load_vectors(s, reads, n_reads);
		case PHASE_FAILED:
			return NV_STEP_FAILED;
		case PHASE_IDLE:
		case PHASE_DONE:
			break;
	}
	return NV_STEP_DONE;
}

nv_step
nv_search_step(nv_search *s, nv_read *reads, uint32_t *n_reads)
{
	uint64_t began = nv_now_ns();
	nv_step step;

	*n_reads = 0;
	step = advance(s, reads, n_reads);
	if (step == NV_STEP_FAILED)
		*n_reads = 0;
	nv_assert(*n_reads <= NV_SEARCH_MAX_READS);
	nv_assert(step != NV_STEP_AGAIN || *n_reads == 0);
	s->stats.compute_ns += nv_now_ns() - began;
	return step;
}

void
nv_search_arrived(nv_search *s, uint32_t tag, int32_t result)
{
	nv_beam_page *b;

	if (tag >= NV_MAX_BEAM)
	{
		nv_rerank_arrived(&s->rerank, tag - NV_MAX_BEAM, result);
		return;
	}
	b = &s->beam[tag];
	nv_assert(b->asked && b->read && !b->arrived && s->waiting > 0);
	b->arrived = true;
	b->result = result;
	s->waiting--;
	if (result > 0)
		s->stats.bytes += (uint64_t) result;
}

void
nv_search_cancel(nv_search *s)
{
	if (s->phase == PHASE_DONE || s->phase == PHASE_FAILED)
		return;
	for (uint32_t i = 0; i < NV_MAX_BEAM; i++)
		if (s->beam[i].asked)
			nv_cand_pool_push_back(&s->pool, s->beam[i].node);
	nv_rerank_cancel(&s->rerank);
	s->phase = PHASE_DONE;
	let_go(s);
}

nv_status
nv_search_more(nv_search *s, uint32_t k, uint32_t list_size, uint32_t window,
			   uint8_t *buffer, nv_error *err)
{
	nv_status status;

	if (s->phase != PHASE_DONE || s->view == NULL)
		return nv_fail(err, NV_EINVAL, 0,
					   "no finished search that could be continued");
	status = take_epoch(s, s->view->store, buffer, err);
	if (status != NV_OK)
		return status;
	s->options.k = NV_MAX(k, s->options.k);
	list_size = NV_MAX(list_size, s->options.list_size);
	s->options.list_size = NV_MAX(list_size, s->options.k);
	s->options.window = window;
	s->rerank.complete = false;
	/* A search cancelled before its first step has no candidates yet. */
	s->phase = s->pool.n_best > 0 ? PHASE_RESEAT : PHASE_SEED;
	if (s->phase == PHASE_SEED)
		nv_cand_pool_clear(&s->pool, s->options.list_size);
	return NV_OK;
}

/* --- What it found --- */

uint32_t
nv_search_results(nv_search *s, const nv_result **results)
{
	if (!s->results_valid && s->view != NULL)
		nv_rerank_collect(&s->rerank, s->view, s->options.k);
	s->results_valid = true;
	*results = s->rerank.results;
	return (uint32_t) s->rerank.n_results;
}

uint32_t
nv_search_n_met(const nv_search *s)
{
	return (uint32_t) s->rerank.n_explored;
}

nv_met
nv_search_met(const nv_search *s, uint32_t i)
{
	const nv_explored *e = &s->rerank.explored[i];
	float dist = nv_rank_dist(e->rank);
	nv_met met = {
		.vertex = nv_rank_id(e->rank), .dist = dist, .code_dist = dist};

	nv_assert(i < s->rerank.n_explored);
	if (e->state == NV_VECTOR_LOADED && s->options.seek)
	{
		met.dist = (float) e->exact;
		met.vector = s->rerank.kept + (size_t) e->kept * s->view->gspace.gdim;
	}
	if (e->list != NV_NO_LIST)
	{
		met.word = s->lists[e->list].word;
		met.degree = s->lists[e->list].degree;
		met.list = s->list_ids + s->lists[e->list].first;
	}
	return met;
}

const float *
nv_search_mapped(const nv_search *s)
{
	return s->mapped;
}

const nv_coding *
nv_search_coding(const nv_search *s)
{
	return s->coding;
}

const float *
nv_search_table(const nv_search *s)
{
	return s->table;
}

uint32_t
nv_search_seeds(const nv_search *s, const nv_candidate **seeds)
{
	*seeds = s->seeds;
	return s->n_seeds;
}

bool
nv_search_exhausted(const nv_search *s)
{
	return s->phase == PHASE_DONE && s->rerank.complete &&
		   nv_cand_pool_drained(&s->pool);
}

const nv_error *
nv_search_error(const nv_search *s)
{
	return &s->error;
}

const nv_search_stats *
nv_search_get_stats(const nv_search *s)
{
	return &s->stats;
}

uint32_t
nv_search_smallest_window(const nv_search *s)
{
	return nv_casr_smallest_window(&s->rerank.casr);
}
