/*
 * epoch.h
 *		Who may still see an old list: reader epochs and the retire list.
 *
 * A slot that is no longer named by the map may be reused when
 *
 *	- no reader that entered before it was replaced is still inside, and
 *	- no root that may be opened again names it: a root of sequence S names a
 *	  slot that was born and had not died then, birth <= S < death.  Two roots
 *	  count, the last one published and the one being published.
 *
 * Source: design.md section 4, "Checkpoint protocol" 10, "Concurrency" 1.
 */
#ifndef NAVIS_EPOCH_H
#define NAVIS_EPOCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "navis/status.h"

/* Readers.  Value 0: the place is free; else the epoch at entering. */
typedef struct nv_epoch_place
{
	_Alignas(64) _Atomic uint64_t epoch;
} nv_epoch_place;

typedef struct nv_epochs
{
	_Atomic uint64_t now;   /* counts up with every slot retired; from 1 */
	_Atomic uint32_t high;  /* places from here on were never used */
	nv_epoch_place *places; /* NV_EPOCH_SLOTS */
} nv_epochs;

typedef struct nv_retired
{
	uint64_t birth; /* sequence numbers */
	uint64_t death;
	uint64_t epoch;
	uint64_t slot; /* its unit in the edge file */
} nv_retired;

typedef struct nv_retire_list
{
	pthread_mutex_t lock;
	nv_retired *queue; /* a ring, oldest first: waits for readers */
	uint64_t capacity, head, count, reserved;
	nv_retired *held; /* waits for a root to be replaced */
	uint64_t held_count, held_capacity;
	bool has_published, has_pending;
	uint64_t published, pending; /* S of the two roots that count */
} nv_retire_list;

extern nv_status nv_epochs_init(nv_epochs *epochs, nv_error *err);
extern void nv_epochs_free(nv_epochs *epochs);
extern int nv_epochs_enter(nv_epochs *epochs);
extern void nv_epochs_leave(nv_epochs *epochs, int place);

/*
 * Waiting for readers: all that were inside at the mark have left when it has
 * passed.  Who enters later sees everything that was done before the mark.
 */
extern uint64_t nv_epochs_mark(nv_epochs *epochs);
extern bool nv_epochs_passed(nv_epochs *epochs, uint64_t mark);

extern void nv_retire_init(nv_retire_list *list);
extern void nv_retire_free(nv_retire_list *list);

/* Makes sure that one nv_retire_add will find room. */
extern nv_status nv_retire_reserve(nv_retire_list *list, nv_error *err);
extern void nv_retire_unreserve(nv_retire_list *list);

/* After the flip that made the slot unreachable. */
extern void nv_retire_add(nv_retire_list *list, nv_epochs *epochs,
						  uint64_t slot, uint64_t birth, uint64_t death);

/*
 * Takes up to max slots out of the list that nobody can need any more; 0: none
 * for now.
 */
extern uint32_t nv_retire_release(nv_retire_list *list, nv_epochs *epochs,
								  uint64_t *slots, uint32_t max);

/* The root of sequence S is being made; it is the last published one. */
extern void nv_retire_cut(nv_retire_list *list, uint64_t sequence);
extern void nv_retire_published(nv_retire_list *list, uint64_t sequence);

/* Slots waiting, and bytes held. */
extern uint64_t nv_retire_count(nv_retire_list *list);
extern uint64_t nv_retire_memory(nv_retire_list *list);

#endif
