/*
 * entrance.h
 *		The entrance graph: a small Vamana graph in memory over about 1 % of
 *		the vertices; a search starts at the nearest members it finds.
 *
 * Members' vectors are kept as IEEE halves.  Readers need no lock in this
 * version: a finished entrance graph changes only by tombstones (a dropped
 * member stays traversable and is no longer reported).
 *
 * Source: navis-system.txt (NAVIS-Update), algorithms.md section 11.
 */
#ifndef NAVIS_ENTRANCE_H
#define NAVIS_ENTRANCE_H

#include "vamana.h"

#define NV_ENTRANCE_LIST 10 /* search list size, default */
#define NV_ENTRANCE_BUILD_LIST 64
#define NV_ENTRANCE_MAX_LIST 1000

typedef struct nv_entrance nv_entrance;

/*
 * Draws round(ratio * n) members, at least 1, uniformly (seeded), and links
 * them with degree, list size 64 and alpha.
 */
extern nv_status nv_entrance_build(const float *rows, size_t stride, uint32_t n,
								   uint32_t gdim, float ratio, uint32_t degree,
								   float alpha, uint32_t threads, uint64_t seed,
								   nv_cancel_fn cancel, void *cancel_arg,
								   nv_entrance **ent, nv_error *err);
extern void nv_entrance_free(nv_entrance *ent);
extern uint32_t nv_entrance_count(const nv_entrance *ent);
extern size_t nv_entrance_memory(const nv_entrance *ent);

/* True if the vertex is a member (tombstoned or not). */
extern bool nv_entrance_member(const nv_entrance *ent, uint32_t vertex);

/* The vertex is deleted: traversable, never reported again.  Thread-safe. */
extern void nv_entrance_drop(nv_entrance *ent, uint32_t vertex);

/*
 * The count nearest live members found with list size list_size, nearest
 * first: graph vertex ids and squared distances in graph space.  Returns how
 * many.  scratch: nv_entrance_scratch_size() bytes, one a thread, all zero when
 * first used.  When tombstones leave fewer than count, the search is repeated
 * with a longer list.
 */
extern size_t nv_entrance_scratch_size(const nv_entrance *ent);
extern uint32_t nv_entrance_search(const nv_entrance *ent, const float *query,
								   uint32_t list_size, uint32_t count,
								   void *scratch, nv_candidate *out);

/* Flat form for the state file; load checks every bound. */
extern size_t nv_entrance_saved_size(const nv_entrance *ent);
extern void nv_entrance_save(const nv_entrance *ent, uint8_t *out);
extern nv_status nv_entrance_load(const uint8_t *in, size_t len,
								  uint32_t n_vertices, uint32_t gdim,
								  nv_entrance **ent, nv_error *err);

#endif
