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

/*
 * Where writers do not publish to this engine (in recovery, and once after it)
 * the rows it has not heard of are handed over, too.
 */
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

/*
 * Tells the engine of entries that are not live; lsn: of their pages, if it is
 * known.  At most a request's worth; NV_EUNUSABLE without an engine.
 */
extern nv_status navis_tell_dead(const nv_key *key, const nv_element_ref *refs,
								 uint32 n, XLogRecPtr lsn);

/* --- walking the journal --- */

/* A live entry that the engine has not got. */
typedef struct NavisMissing
{
	nv_journal_entry entry;
	ItemPointerData tid;
} NavisMissing;

/* One walk over the journal, or a part of it. */
typedef struct NavisWalk
{
	NavisSlice *slice;
	const nv_key *key;
	uint64 limit;        /* missing rows that can be taken */
	NavisEntry *page;    /* room for one page */
	NavisMissing *batch; /* live entries to be compared */
	uint32 n;            /* entries in the batch */
	XLogRecPtr lsn;      /* newest page in the batch */
	NavisMissing *missing;
	uint64 n_missing, room;
	uint64 n_alive; /* the first ones, known not to be dead */
	nv_element_ref *dead; /* entries that are not live; NULL: not wanted */
	uint32 n_dead;
} NavisWalk;

/* Memory is the slice's; with_dead: dead entries are told to the engine. */
extern void navis_walk_init(NavisWalk *walk, NavisSlice *slice,
							const nv_key *key, bool with_dead);
/* Takes a page's entries into the batch, which must have room for a page. */
extern bool navis_walk_has_room(const NavisWalk *walk);
extern void navis_walk_page(NavisWalk *walk, BlockNumber block);
/* Asks the engine which of the batch it has not got. */
extern nv_status navis_walk_flush(NavisWalk *walk);
/* Fetches the rows found missing and hands them over. */
extern nv_status navis_walk_insert(NavisWalk *walk);

/* --- follow.c --- */

/* The journal's tails as they are now. */
extern void navis_tails_read(Relation index, nv_followed *now);

/*
 * Has the engine heard of everything that the journal holds now?  meta: as it
 * was read since the snapshot was taken that is to be served; NULL: read it.
 */
extern bool navis_is_followed(Relation index, const NavisMeta *meta,
							  const nv_followed *followed);

/* Hands over what came after slice->followed, which moves on. */
extern nv_status navis_follow(NavisSlice *slice, const nv_key *key);

/*
 * Reads every page that changed since this was done last, if that is some
 * time ago: tells the engine of deletions on pages no follower comes by.
 */
extern nv_status navis_follow_deletions(NavisSlice *slice, const nv_key *key);

/* LSN of the newest page that had been followed: what is not newer has been. */
extern XLogRecPtr navis_newest_followed(const nv_followed *followed);

#endif
