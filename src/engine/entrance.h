/*
 * entrance.h
 *		The entrance graph: a small Vamana graph in memory over about 1 % of
 *		the vertices; a search starts at the nearest members it finds.
 *
 * Members' vectors are kept as IEEE halves.  It grows by promotion: a vertex
 * that was just linked becomes a member, its neighbours being members that its
 * own position seeking met.  Dropped members stay traversable and are no
 * longer reported.  Readers take no lock and see every change at once; those
 * who change it take one that only they take.
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

/* Members that are not dropped. */
extern uint32_t nv_entrance_live(const nv_entrance *ent);

/* The vertex is deleted: traversable, not reported any more.  Thread-safe. */
extern void nv_entrance_drop(nv_entrance *ent, uint32_t vertex);

/*
 * The vertex becomes a member (a dropped one is taken back).  row: its place
 * in graph space; near: vertices among which its neighbours are, those that
 * are no live members are passed over.  Thread-safe.  NV_ENOMEM.
 */
extern nv_status nv_entrance_promote(nv_entrance *ent, uint32_t vertex,
									 const float *row, const uint32_t *near,
									 uint32_t n_near, float alpha,
									 nv_error *err);
/*
 * A copy without the dropped members, of which there is one that is not: each
 * of the others is linked anew among those before it.  What changes meanwhile
 * is missing.  NV_ENOMEM, NV_ECANCELLED.
 */
extern nv_status nv_entrance_compact(const nv_entrance *ent, float alpha,
									 nv_cancel_fn cancel, void *cancel_arg,
									 nv_entrance **out, nv_error *err);
/* Calls fn for every member that is not dropped. */
extern void nv_entrance_each(const nv_entrance *ent,
							 void (*fn)(void *arg, uint32_t vertex),
							 void *arg);
/* Changes (promotions, drops) so far; to know when to save. */
extern uint64_t nv_entrance_changes(const nv_entrance *ent);

/*
 * The count nearest live members found with list size list_size, nearest
 * first: graph vertex ids and squared distances in graph space.  Returns how
 * many.  scratch: at least the nv_entrance_scratch_size() bytes asked for just
 * before, one a thread, all zero when first used; members that came since do
 * not fit and are passed over.  When tombstones leave fewer than count, the
 * search is repeated with a longer list.
 */
extern size_t nv_entrance_scratch_size(const nv_entrance *ent);
extern uint32_t nv_entrance_search(const nv_entrance *ent, const float *query,
								   uint32_t list_size, uint32_t count,
								   void *scratch, size_t scratch_size,
								   nv_candidate *out);

/*
 * Flat form for the state file; load checks every bound.  Size and saving see
 * the same graph only while nobody changes it; nv_entrance_copy does both at
 * one moment (malloc'ed; NULL: no memory).
 */
extern uint8_t *nv_entrance_copy(nv_entrance *ent, size_t *size);
extern size_t nv_entrance_saved_size(const nv_entrance *ent);
extern void nv_entrance_save(const nv_entrance *ent, uint8_t *out);
extern nv_status nv_entrance_load(const uint8_t *in, size_t len,
								  uint32_t n_vertices, uint32_t gdim,
								  nv_entrance **ent, nv_error *err);

#endif
