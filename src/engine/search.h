/*
 * search.h
 *		Traversal and rerank of one query, as a resumable state machine that
 *		does no I/O of its own.
 *
 * The driver calls nv_search_step; it computes until it needs pages or
 * vectors, is done, or has worked long enough (NV_STEP_AGAIN, so that a
 * thread can interleave queries).  Reads it asks for are issued by the driver
 * and reported by nv_search_arrived, in any order.  After NV_STEP_DONE the
 * results stay, and nv_search_more goes on from there with a larger k and
 * frontier, re-reading nothing that was expanded or loaded before.
 *
 * Source: navis-system.txt, design.md section 4 "Traversal" and "CASR",
 * algorithms.md sections 5 (page search) and 6.
 */
#ifndef NAVIS_SEARCH_H
#define NAVIS_SEARCH_H

#include <stdatomic.h>

#include "casr.h"
#include "entrance.h"
#include "gspace.h"
#include "store.h"

#define NV_MAX_BEAM 32
/* Buffer of one running search: beam pages, then vector records. */
#define NV_SEARCH_VECTOR_BUFFER (160 * 1024)
#define NV_SEARCH_BUFFER (NV_MAX_BEAM * NV_PAGE + NV_SEARCH_VECTOR_BUFFER)
#define NV_SEARCH_MAX_READS 64 /* outstanding reads of one search, at most */

/* What a search sees of an index; stays valid while any search uses it. */
typedef struct nv_view
{
	nv_store *store; /* with a codebook: nv_store_use_pq */
	/* Both are replaced by a consolidation: what is read lasts an epoch. */
	_Atomic(nv_entrance *) entrance; /* may be NULL */
	_Atomic uint32_t medoid;
	nv_gspace gspace;
	/* False: deleted; still traversed, never loaded or reported. */
	bool (*live)(void *arg, uint32_t vertex);
	void *live_arg;
	/*
	 * While a build calibrates: all vectors in graph space, rows_stride floats
	 * apart.  They are compared there, and nothing is read from the vector
	 * file.  NULL otherwise.
	 */
	const float *rows;
	size_t rows_stride;
} nv_view;

typedef struct nv_search_options
{
	uint32_t k;             /* results wanted */
	uint32_t list_size;     /* frontier |E|; raised to k when smaller */
	uint32_t beam_width;    /* 1 .. NV_MAX_BEAM */
	uint32_t entrance_list; /* 1 .. NV_ENTRANCE_MAX_LIST */
	uint32_t window;        /* w, or NV_CASR_ALL */
	uint32_t exclude;  /* vertex never loaded or reported, or NV_NO_VERTEX */
	bool from_medoid;  /* no entrance graph */
	bool single_lists; /* ablation: explore only the list asked for */
	bool stages;       /* ablation: rerank in fixed stages */
	/*
	 * Position seeking: the query is a row that is to be linked.  It is mapped
	 * as rows are, distances are squared ones of graph space (also those of
	 * results), and vectors that were loaded are kept there.
	 */
	bool seek;
	nv_cache_user user;
} nv_search_options;

typedef struct nv_result
{
	uint32_t vertex;
	double distance; /* nv_distance(metric, query, stored vector) */
} nv_result;

typedef struct nv_read
{
	nv_file *file;
	uint64_t offset;
	uint32_t len;
	uint32_t tag; /* for nv_search_arrived */
	uint8_t *buf; /* inside the search's buffer */
} nv_read;

typedef enum nv_step
{
	NV_STEP_WAIT, /* issue *n_reads new reads; call again after an arrival */
	NV_STEP_AGAIN,
	NV_STEP_DONE,
	NV_STEP_FAILED /* nv_search_error tells; no reads are in flight */
} nv_step;

typedef struct nv_search nv_search;

extern nv_status nv_search_create(nv_search **search, nv_error *err);
extern void nv_search_free(nv_search *search);
/* Memory held, bytes (cursors are bounded by it). */
extern size_t nv_search_memory(const nv_search *search);

/*
 * Starts over with another query (dim floats as the SQL operator sees them;
 * copied).  buffer: NV_SEARCH_BUFFER bytes aligned to NV_BLOCK, lent until
 * DONE or FAILED.  Takes an epoch of the store, given back with the buffer.
 */
extern nv_status nv_search_start(nv_search *search, const nv_view *view,
								 const nv_search_options *options,
								 const float *query, uint8_t *buffer,
								 nv_error *err);

/*
 * Goes on after DONE: k and list_size not smaller than before.  The codes it
 * began with must last: see nv_cursor_enter.
 */
extern nv_status nv_search_more(nv_search *search, uint32_t k,
								uint32_t list_size, uint32_t window,
								uint8_t *buffer, nv_error *err);

extern nv_step nv_search_step(nv_search *search, nv_read *reads,
							  uint32_t *n_reads);
/* result: bytes read or -errno.  May be called between steps at any time. */
extern void nv_search_arrived(nv_search *search, uint32_t tag, int32_t result);
/* Gives up; the driver has drained all reads.  Then as after DONE. */
extern void nv_search_cancel(nv_search *search);
extern const nv_error *nv_search_error(const nv_search *search);

/*
 * The k nearest of all vectors loaded so far (fewer if there are fewer),
 * sorted by distance, ties by vertex.  Valid until the next call.
 */
extern uint32_t nv_search_results(nv_search *search, const nv_result **results);
/* True when every vertex reachable has been explored and loaded. */
extern bool nv_search_exhausted(const nv_search *search);

/* What a search has met, for position seeking. */
typedef struct nv_met
{
	uint32_t vertex;
	float dist;          /* squared, in graph space: exact when loaded */
	float code_dist;     /* the same by its code */
	const float *vector; /* in graph space; NULL: not loaded, or no seek */
	/* Its list as it was explored, and the edge word; NULL: none, or no seek */
	const uint32_t *list;
	uint32_t degree;
	uint64_t word;
} nv_met;

/*
 * The explored vertices, number 0 .. nv_search_n_met - 1, in no order that
 * matters; the excluded and the dead are among them.  Valid until the next
 * call that changes the search.
 */
extern uint32_t nv_search_n_met(const nv_search *search);
extern nv_met nv_search_met(const nv_search *search, uint32_t i);
/* The query in graph space; entrance members it began with. */
extern const float *nv_search_mapped(const nv_search *search);
/* The codes it uses; they last as long as the epoch of whoever began it. */
extern const nv_coding *nv_search_coding(const nv_search *search);
/* Its squared distances to their centroids, chunk after chunk. */
extern const float *nv_search_table(const nv_search *search);
extern uint32_t nv_search_seeds(const nv_search *search,
								const nv_candidate **seeds);

/* Counters since nv_search_start (io_ns is the driver's to fill). */
extern const nv_search_stats *nv_search_get_stats(const nv_search *search);
/* The smallest safe window of the last rerank (full loads only). */
extern uint32_t nv_search_smallest_window(const nv_search *search);

#endif
