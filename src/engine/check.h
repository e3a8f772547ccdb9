/*
 * check.h
 *		What the files that look for damage share.
 *
 * check.c			the request; elements, equal vectors, counts
 * check_graph.c	lists, vectors, reachability
 * check_store.c	the published root, space of the edge file
 */
#ifndef NAVIS_CHECK_H
#define NAVIS_CHECK_H

#include "engine_internal.h"

/* One CHECK request at work on a graph. */
typedef struct nv_check
{
	nv_engine *engine;
	nv_request *request;
	nv_index *index;
	nv_body *body;
	nv_problem *problem; /* the request's data */
	uint32_t n;
} nv_check;

/* Severity of a finding. */
#define NV_DAMAGE false
#define NV_WEAKNESS true

/* Notes a problem, as long as there is room. */
extern void nv_check_found(nv_check *check, bool warning, uint32_t vertex,
						   uint32_t element, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* NV_ECANCELLED when the caller has gone or the engine stops. */
extern nv_status nv_check_go_on(const nv_check *check, nv_error *err);

extern nv_status nv_check_lists(nv_check *check, nv_error *err);
extern nv_status nv_check_vectors(nv_check *check, nv_error *err);
extern nv_status nv_check_reach(nv_check *check, nv_error *err);
extern nv_status nv_check_state(nv_check *check, nv_error *err);
extern nv_status nv_check_space(nv_check *check, nv_error *err);

#endif
