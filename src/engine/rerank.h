/*
 * rerank.h
 *		The rerank half of a search: vectors of the explored set are loaded in
 *		code order as far as CASR asks for, and compared exactly.
 *
 * Explored vertices are only ever added; a rerank puts them in code order and
 * runs CASR from the first one on.  Vectors that an earlier rerank of the same
 * search loaded are given to CASR from memory.  A vector that cannot be read
 * or does not have its hash leaves the candidates as if it had never been
 * among them, so that CASR sees an unbroken sequence of exact distances and
 * asks for one more in its place.
 *
 * Source: navis-system.txt, "CASR"; casr.h.
 */
#ifndef NAVIS_RERANK_H
#define NAVIS_RERANK_H

#include "pool.h"
#include "search.h"

typedef enum nv_vector_state
{
	NV_VECTOR_UNREAD,
	NV_VECTOR_LOADED,
	NV_VECTOR_DAMAGED
} nv_vector_state;

#define NV_NO_LIST UINT32_MAX

typedef struct nv_explored
{
	nv_rank rank;  /* code distance and vertex */
	double exact;  /* when LOADED */
	uint32_t kept; /* its vector's number, when LOADED by position seeking */
	uint32_t list; /* its list's number, or NV_NO_LIST */
	uint8_t state;
} nv_explored;

/* One place for a record in the buffer. */
typedef struct nv_vector_read
{
	uint32_t explored;     /* its number in code order */
	nv_vector_place place; /* of the record in the file */
	int32_t result;
	bool busy, arrived;
} nv_vector_read;

/* What a rerank needs to know of its search. */
typedef struct nv_rerank_query
{
	const nv_view *view;
	const float *query;
	const float *graph_query; /* in graph space, for view->rows */
	const float *mapped;      /* position seeking: the row in graph space */
	uint32_t k, window, exclude;
	bool stages;     /* ablation: nv_casr_use_stages */
	uint8_t *buffer; /* NV_SEARCH_VECTOR_BUFFER bytes */
	uint32_t first_tag;
	nv_search_stats *stats;
} nv_rerank_query;

typedef struct nv_rerank
{
	nv_explored *explored;
	size_t n_explored, cap_explored;
	size_t sorted;   /* the first so many are in code order */
	uint32_t *order; /* candidates: numbers into explored, in code order */
	size_t n_order, cap_order;
	size_t fed;        /* candidates that CASR has seen or that are damaged */
	size_t batch_end;  /* candidates of the batch under way end here */
	size_t next_issue; /* the first of them not looked at */
	bool batch_reads;  /* the batch loaded something */
	float *kept;       /* vectors in graph space */
	size_t n_kept, cap_kept;
	nv_casr casr;
	double *heap;
	size_t cap_heap;
	nv_vector_read reads[NV_SEARCH_MAX_READS];
	uint32_t n_reads, stride; /* places in the buffer, bytes between them */
	uint32_t busy;
	nv_result *results;
	size_t n_results, cap_results;
	bool complete; /* every candidate is loaded or damaged */
} nv_rerank;

extern void nv_rerank_clear(nv_rerank *r);
extern void nv_rerank_free(nv_rerank *r);
extern size_t nv_rerank_memory(const nv_rerank *r);

/* Room for n more explored vertices; false when there is no memory. */
extern bool nv_rerank_reserve(nv_rerank *r, size_t n);
extern void nv_rerank_add(nv_rerank *r, nv_rank rank, uint32_t list);

/* Begins a rerank over everything explored; false: no memory. */
extern bool nv_rerank_begin(nv_rerank *r, const nv_rerank_query *q);

/*
 * Takes in what has arrived and asks for more.  True when the rerank is over;
 * otherwise *n new reads, and (if something is busy) an arrival is needed.
 */
extern bool nv_rerank_step(nv_rerank *r, const nv_rerank_query *q,
						   nv_read *reads, uint32_t *n);
extern void nv_rerank_arrived(nv_rerank *r, uint32_t place, int32_t result);
/* Forgets reads under way; their vectors count as never asked for. */
extern void nv_rerank_cancel(nv_rerank *r);

/* The k nearest loaded live vectors; allocates nothing. */
extern void nv_rerank_collect(nv_rerank *r, const nv_view *view, uint32_t k);

#endif
