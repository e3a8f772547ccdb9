/*
 * cursor.h
 *		One scan in progress: graph results and unlinked rows merged in
 *		distance order, in batches.
 *
 * A cursor gives every element at most once and never a distance smaller than
 * one it gave before; what the graph finds too late is held back for the
 * caller's final sweep (design, invariant 8).
 */
#ifndef NAVIS_CURSOR_H
#define NAVIS_CURSOR_H

#include "engine_internal.h"
#include "visited.h"

struct nv_cursor
{
	uint64_t id;    /* 0: not in the table */
	uint64_t owner; /* of the request that made it */
	bool busy;      /* a search thread works on it; cursor_lock */
	bool doomed;    /* free it when it is no longer busy; cursor_lock */
	uint64_t used_ns;

	nv_index *index;
	nv_body *body;  /* NULL: rows without a graph only */
	int epoch;      /* of the body's store while it is worked on, or -1 */
	uint64_t freed; /* body->freed when the search began */
	nv_search *search;
	nv_req_search ask; /* options of the SEARCH request */
	float *query;
	uint32_t k_total; /* results asked of the graph so far */
	bool started;
	bool exhausted; /* the graph has nothing more */

	nv_hit *pending; /* min-heap on distance */
	uint32_t n_pending, pending_room;
	uint32_t all_pending;   /* with those given, which stand behind the heap */
	uint64_t moves;         /* of the index, over before the comparison */
	uint64_t let_go;        /* times the index had let its rows go by then */
	bool knows_pending;     /* pending_set is filled */
	nv_visited pending_set; /* elements that were unlinked rows */

	nv_result *queue; /* graph results not given yet, nearest first */
	uint32_t queue_n, queue_pos, queue_room;
	nv_visited seen; /* vertices that were queued or held back */
	uint32_t vertex; /* being given, or NV_NO_VERTEX */
	double vertex_distance;
	nv_element_ref *elements; /* of it */
	uint32_t n_elements, next_element, elements_room;

	double last; /* distance given last */
	bool any;
	uint32_t window, list_used;
	nv_search_stats reported; /* counters already answered */
	uint64_t io_ns, compute_ns, pending_compared;
};

/* A cursor for a SEARCH request; not in the table yet. */
extern nv_status nv_cursor_create(nv_index *index, const nv_request *request,
								  nv_cursor **cursor, nv_error *err);

/* Puts it in the table (drops the least recently used idle one if full). */
extern nv_status nv_cursor_register(nv_engine *engine, nv_cursor *cursor);
/* Takes a cursor for work; NULL: gone, another's, or busy. */
extern nv_cursor *nv_cursor_take(nv_engine *engine, uint64_t id,
								 uint64_t owner);
/* Gives it back; frees it when drop or doomed. */
extern void nv_cursor_give(nv_engine *engine, nv_cursor *cursor, bool drop);

/*
 * Enters an epoch of the body (NULL: nothing to do) for the time of one
 * request, so that no vertex the cursor knows is freed meanwhile; first: the
 * search begins.  NV_ENOENT: vertices were freed since it began, whose numbers
 * may mean others by now; the cursor is of no use any more.
 */
extern nv_status nv_cursor_enter(nv_cursor *cursor, bool first, nv_error *err);
extern void nv_cursor_leave(nv_cursor *cursor);

/* Compares the next slice of unlinked rows; true while there are more. */
extern nv_status nv_cursor_pending_step(nv_cursor *cursor, uint32_t *from,
										bool *more, nv_error *err);

/* Starts or resumes the graph search for the next round. */
extern nv_status nv_cursor_round(nv_cursor *cursor, uint8_t *buffer,
								 nv_error *err);
/* The round is done: queues what is new. */
extern nv_status nv_cursor_collect(nv_cursor *cursor, nv_error *err);

/*
 * Gives up to room hits, *n of them, in order; stops early when another round
 * is needed (then *more_needed).  NV_ENOMEM.
 */
extern nv_status nv_cursor_emit(nv_cursor *cursor, nv_hit *out, uint32_t room,
								uint32_t *n, bool *more_needed, nv_error *err);

#endif
