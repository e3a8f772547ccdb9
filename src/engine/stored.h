/*
 * stored.h
 *		Stored vectors of a graph, read one after the other by a background
 *		thread.
 */
#ifndef NAVIS_STORED_H
#define NAVIS_STORED_H

#include "engine_internal.h"

/* A window of the vector file. */
typedef struct nv_stored
{
	nv_body *body;
	uint8_t *window;
	uint64_t start, len; /* of the window */
	uint64_t end;        /* read ahead up to there; 0: not at all */
	float *row;          /* what was read last, as it is stored */
} nv_stored;

extern nv_status nv_stored_open(nv_stored *s, nv_body *body, nv_error *err);
extern void nv_stored_close(nv_stored *s);

/*
 * The record of a vertex as it is in the file, into s->row; the caller verifies
 * its hash.
 */
extern nv_status nv_stored_read(nv_stored *s, uint32_t vertex, nv_error *err);
/* What comes next is read from the file, though the window has it. */
extern void nv_stored_forget(nv_stored *s);

#endif
