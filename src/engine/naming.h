/*
 * naming.h
 *		How many of the lists at hand name a vertex: open addressing, stamped
 *		like visited.h.
 */
#ifndef NAVIS_NAMING_H
#define NAVIS_NAMING_H

#include "util.h"

typedef struct nv_naming_slot
{
	uint32_t id;
	uint16_t stamp; /* in use when equal to the table's */
	uint16_t count;
} nv_naming_slot;

typedef struct nv_naming
{
	nv_naming_slot *slots;
	size_t capacity; /* a power of two, or 0 at first */
	uint16_t stamp;
	uint32_t shift; /* 64 - log2(capacity) */
} nv_naming;

/* Forgets all, with room for so many ids; false when there is no memory. */
extern bool nv_naming_begin(nv_naming *naming, size_t ids);
extern void nv_naming_free(nv_naming *naming);
/* One more list names the id; room was asked for. */
extern void nv_naming_add(nv_naming *naming, uint32_t id);
/* One less, if any does. */
extern void nv_naming_remove(nv_naming *naming, uint32_t id);
extern uint32_t nv_naming_count(const nv_naming *naming, uint32_t id);

#endif
