/*
 * equal.h
 *		Vertices by the hash of their vectors, for insertion: equal rows share
 *		a vertex.
 *
 * Only vertices that have a list are in the table, linked or not, with or
 * without elements.  It is filled from the map when it is first asked.  A hash
 * is claimed by one insert thread at a time, so that two equal rows never
 * become two vertices.
 *
 * Source: design.md section 3, "vertex".
 */
#ifndef NAVIS_EQUAL_H
#define NAVIS_EQUAL_H

#include "store.h"

/* Vertices of one hash that are looked at; more have 64 equal bits by design.
 */
#define NV_EQUAL_MAX 8
#define NV_EQUAL_CLAIMS 64 /* at most so many threads */

typedef struct nv_equal nv_equal;

extern nv_equal *nv_equal_create(void);
extern void nv_equal_free(nv_equal *equal);
extern uint64_t nv_equal_memory(nv_equal *equal);

/* Waits until no other thread has the hash. */
extern void nv_equal_claim(nv_equal *equal, uint64_t hash);
extern void nv_equal_release(nv_equal *equal, uint64_t hash);

/* Vertices with this hash, *n of them; NV_ENOMEM. */
extern nv_status nv_equal_find(nv_equal *equal, const nv_store *store,
							   uint64_t hash, uint32_t out[NV_EQUAL_MAX],
							   uint32_t *n, nv_error *err);
/*
 * Some vertex has this hash, probably: a hint that neither waits nor reads.
 * False as long as nobody has asked nv_equal_find.
 */
extern bool nv_equal_expect(nv_equal *equal, const nv_store *store,
							uint64_t hash);
/*
 * The vertex is found no more.  Whoever has found it already must not rely on
 * it: see consolidate.c.
 */
extern nv_status nv_equal_remove(nv_equal *equal, const nv_store *store,
								 uint32_t vertex, nv_error *err);
/* The vertex has got its first list; its hash was looked for and is claimed. */
extern void nv_equal_add(nv_equal *equal, const nv_store *store,
						 uint32_t vertex);

#endif
