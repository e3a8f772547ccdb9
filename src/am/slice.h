/*
 * slice.h
 *		A piece of work on one index, in the session's transaction or cut into
 *		short transactions of our own.
 *
 * A session that opens an index does so within its own transaction, with the
 * relations it has open.  A helper works in slices of about a second: between
 * two it lets go of everything, so that DDL and DROP DATABASE get their turn,
 * and goes on only if all locks are free and the index is still the same.
 */
#ifndef NAVIS_SLICE_H
#define NAVIS_SLICE_H

#include "navis.h"

#include "portability/instr_time.h"

typedef struct NavisSlice
{
	bool own; /* transactions of our own */
	Oid index_oid;
	Relation heap, index;  /* NULL between slices */
	NavisMeta meta;        /* as of the first slice */
	NavisFetch *fetch;     /* begun at need; gone after a pause */
	uint64 pass;           /* of an opening under way in the engine, or 0 */
	nv_followed followed;  /* how far the engine has followed, when READY */
	MemoryContext context; /* outlives the slices */
	instr_time began;
} NavisSlice;

/* Within the caller's transaction. */
extern void navis_slice_session(NavisSlice *slice, Relation heap,
								Relation index, const NavisMeta *meta);

/* First slice of a helper; false: no such index, or somebody wants it. */
extern bool navis_slice_begin(NavisSlice *slice, Oid index_oid,
							  MemoryContext context);

/*
 * To be called often, with nothing pinned.  Ends the slice and begins the
 * next when it is time; false: the work must be given up, no slice is open.
 */
extern bool navis_slice_continue(NavisSlice *slice);

/* Ends the slice; navis_slice_resume begins another one. */
extern void navis_slice_end(NavisSlice *slice);
extern bool navis_slice_resume(NavisSlice *slice);

/* Row fetch of this slice, for the newest versions of rows. */
extern NavisFetch *navis_slice_fetch(NavisSlice *slice);

#endif
