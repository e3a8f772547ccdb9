/*
 * catchup.h
 *		The opening procedure, as sessions and helpers share it.
 */
#ifndef NAVIS_CATCHUP_H
#define NAVIS_CATCHUP_H

#include "slice.h"

/* How the opening of an index ended. */
typedef enum NavisOpening
{
	NAVIS_OPENING_READY,
	NAVIS_OPENING_FULL,    /* rows without a vertex outgrow pending_memory */
	NAVIS_OPENING_REBUILD, /* needs a (re)build of its graph */
	NAVIS_OPENING_LATER,   /* no engine, one is busy with it, or it failed */
	NAVIS_OPENING_LOST     /* given up; a helper has no slice open any more */
} NavisOpening;

extern NavisOpening navis_opening_run(NavisSlice *slice, const nv_key *key);

/*
 * After an error in there: tells the engine that the walk is given up, so that
 * scans do not repeat it at once.  Throws nothing.
 */
extern void navis_opening_failed(NavisSlice *slice, const nv_key *key);

/*
 * Fetches the vector of a live entry; NULL when the row needs none any more.
 * An error when the table has another vector than the journal's hash says.
 */
extern const float *navis_entry_vector(NavisSlice *slice,
									   const nv_journal_entry *entry,
									   ItemPointer tid);

#endif
