/*
 * pending.h
 *		Rows that have no vertex yet: their vectors are kept in memory and
 *		compared exactly with every query.
 *
 * Source: design.md, invariant 6 and "Concurrency" 5.
 */
#ifndef NAVIS_PENDING_H
#define NAVIS_PENDING_H

#include "navis/request.h"

typedef struct nv_pending nv_pending;

/*
 * bytes_used is shared by all indexes of an engine; adding fails with
 * NV_ELIMIT when it would exceed limit.
 */
extern nv_pending *nv_pending_create(uint32_t dim, _Atomic uint64_t *bytes_used,
									 uint64_t limit);
/* Another limit for what is added from now on. */
extern void nv_pending_set_limit(nv_pending *p, uint64_t limit);
extern void nv_pending_free(nv_pending *p);

/* Bytes one row takes of the limit. */
extern uint64_t nv_pending_row_bytes(uint32_t dim);

/*
 * Adds a row, or replaces the element's older generation; a row that is there
 * in this generation is left alone.  NV_ELIMIT, NV_ENOMEM.
 */
extern nv_status nv_pending_add(nv_pending *p, const nv_journal_entry *entry,
								const float *vector, nv_error *err);
/*
 * Takes the row that has waited longest: it stays where it is and is compared
 * as before, but is not taken again until it is given back.  Copies it; false:
 * none waits.
 */
extern bool nv_pending_take(nv_pending *p, nv_journal_entry *entry,
							float *vector);
/* The row, if it waits, is the next to be taken. */
extern void nv_pending_hurry(nv_pending *p, const nv_journal_entry *entry);
/* The row (if it is still there) waits again, last of all. */
extern void nv_pending_give_back(nv_pending *p, const nv_journal_entry *entry);
/* Rows that wait to be taken; a hint without the lock. */
extern uint64_t nv_pending_waiting(const nv_pending *p);

/* Lets go of all rows, and of their memory. */
extern void nv_pending_clear(nv_pending *p);
/* True if the row was there. */
extern bool nv_pending_remove(nv_pending *p, uint32_t element,
							  uint32_t generation);
extern bool nv_pending_has(nv_pending *p, uint32_t element, uint32_t generation,
						   uint64_t hash);
extern uint64_t nv_pending_count(const nv_pending *p);
/* The generation in which the element is there; false: it is not. */
extern bool nv_pending_generation(nv_pending *p, uint32_t element,
								  uint32_t *generation);

/*
 * Copies the rows in slots [from, from + n), waiting or not: appends to
 * entries and vectors (room for n, dim floats each), sets *more when there are
 * slots beyond.  Returns the number of rows.  A row that is there all the
 * time is met once by whoever goes through all slots.
 */
extern uint32_t nv_pending_copy(nv_pending *p, uint32_t from, uint32_t n,
								nv_journal_entry *entries, float *vectors,
								bool *more);

/*
 * Distances of the rows in slots [from, from + n): appends one hit a live row
 * to out (room for n), sets *more when there are slots beyond.  Returns the
 * number of hits.  Rows may come and go between calls.
 */
extern uint32_t nv_pending_scan(nv_pending *p, nv_metric metric,
								const float *query, uint32_t from, uint32_t n,
								nv_hit *out, bool *more);

#endif
