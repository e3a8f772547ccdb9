/*
 * follow.c
 *		Keeping the engine up with a journal whose writers do not publish to it:
 *		a standby's, and once more after promotion.
 *
 * Entries are appended to tail pages only.  A page that becomes tail gets the
 * next sequence number and a link to the tail it replaces.  Whoever remembers
 * the tails as they were reads, from the tails as they are, back along the
 * links to pages older than what he remembers; all entries appended meanwhile
 * are on these.  A link that leads to a page which has become tail once more
 * tells too little: then every page that changed is read.
 *
 * What has been followed is kept by the engine, so that sessions need not do
 * what others have done.  A row visible to a scan's snapshot has been replayed
 * before the snapshot was taken, and its entry before its commit: a scan that
 * follows first misses none.
 *
 * Source: design.md section 3, "Entries are appended", invariant 6.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catchup.h"
#include "client.h"
#include "journal.h"
#include "settings.h"

/* While this few rows fit pending_memory a follower waits for others to go. */
#define NAVIS_FOLLOW_ROOM 512
#define NAVIS_FOLLOW_NAP 10      /* ms between two looks at it */
#define NAVIS_FOLLOW_PATIENCE 50 /* looks in a row without any progress */

/* All changed pages are read once in so many rounds of the helper. */
#define NAVIS_WALK_ROUNDS 10

StaticAssertDecl(NAVIS_MAX_TAILS == NV_MAX_TAILS,
				 "the engine keeps as many tails as the journal has");

typedef struct NavisFollow
{
	NavisWalk walk;
	XLogRecPtr since; /* what is not newer has been followed */
} NavisFollow;

/* --- where the journal stands --- */

static XLogRecPtr
page_lsn(Relation index, BlockNumber block, BufferAccessStrategy strategy,
		 NavisPageSpecial *special)
{
	Buffer buffer =
		ReadBufferExtended(index, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
	Page page = BufferGetPage(buffer);
	XLogRecPtr lsn;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	(void) navis_page_count(index, block, page);
	lsn = BufferGetLSNAtomic(buffer);
	*special = navis_page_special(page);
	UnlockReleaseBuffer(buffer);
	return lsn;
}

/* The tails that a metapage names, with what they hold now. */
static void
look_at_tails(Relation index, const NavisMeta *meta, nv_followed *now)
{
	NavisPageSpecial special;

	memset(now, 0, sizeof(nv_followed));
	now->in_recovery = RecoveryInProgress();
	now->next_sequence = meta->next_page_sequence;
	now->n_tails = meta->ntails;
	for (uint32 i = 0; i < meta->ntails; i++)
	{
		now->tails[i].sequence = meta->tails[i].sequence;
		now->tails[i].block = meta->tails[i].block;
		now->tails[i].lsn =
			page_lsn(index, meta->tails[i].block, NULL, &special);
	}
}

void
navis_tails_read(Relation index, nv_followed *now)
{
	NavisMeta meta;

	navis_meta_read(index, &meta);
	look_at_tails(index, &meta, now);
}

static bool
same_tails(const nv_followed *a, const nv_followed *b)
{
	if (a->next_sequence != b->next_sequence || a->n_tails != b->n_tails)
		return false;
	for (uint32 i = 0; i < a->n_tails; i++)
		if (a->tails[i].lsn != b->tails[i].lsn)
			return false;
	return true;
}

bool
navis_is_followed(Relation index, const NavisMeta *meta,
				  const nv_followed *followed)
{
	nv_followed now;

	/* Writers publish what they append. */
	if (!RecoveryInProgress() && !followed->in_recovery)
		return true;
	if (meta != NULL)
		look_at_tails(index, meta, &now);
	else
		navis_tails_read(index, &now);
	return now.in_recovery == followed->in_recovery &&
		   same_tails(&now, followed);
}

/* --- the difference --- */

XLogRecPtr
navis_newest_followed(const nv_followed *followed)
{
	XLogRecPtr newest = InvalidXLogRecPtr;

	for (uint32 i = 0; i < followed->n_tails; i++)
		newest = Max(newest, followed->tails[i].lsn);
	return newest;
}

static nv_status
take_page(NavisFollow *f, BlockNumber block)
{
	nv_status status = NV_OK;

	if (!navis_walk_has_room(&f->walk))
		status = navis_walk_flush(&f->walk);
	if (status == NV_OK && !navis_slice_continue(f->walk.slice))
		status = NV_ECANCELLED;
	if (status == NV_OK)
		navis_walk_page(&f->walk, block);
	return status;
}

/* Every page that changed. */
static nv_status
take_changed_pages(NavisFollow *f)
{
	NavisSlice *slice = f->walk.slice;
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	NavisPageSpecial special;
	nv_status status = NV_OK;

	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 status == NV_OK && block < RelationGetNumberOfBlocks(slice->index);
		 block++)
	{
		if (page_lsn(slice->index, block, strategy, &special) > f->since)
			status = take_page(f, block);
		else if (!navis_slice_continue(slice))
			status = NV_ECANCELLED;
	}
	return status;
}

/* The pages that became tail since, and those that were tail then. */
static nv_status
take_tails(NavisFollow *f, const nv_followed *then, const nv_followed *now)
{
	for (uint32 i = 0; i < now->n_tails; i++)
	{
		BlockNumber block = now->tails[i].block;
		uint64 sequence = now->tails[i].sequence;

		while (block != InvalidBlockNumber)
		{
			Relation index = f->walk.slice->index;
			NavisPageSpecial special;
			nv_status status = NV_OK;

			if (block >= RelationGetNumberOfBlocks(index))
				return take_changed_pages(f);
			if (page_lsn(index, block, NULL, &special) > f->since)
				status = take_page(f, block);
			if (status != NV_OK)
				return status;
			if (special.sequence == sequence && sequence < then->next_sequence)
				break;
			if (!navis_page_back(&special, &block, &sequence))
				return take_changed_pages(f);
		}
	}
	return NV_OK;
}

/* --- handing it over --- */

/* Rows of pending_memory that are free; 0 also when the engine is gone. */
static uint64
ask_room(NavisFollow *f)
{
	NavisSlice *slice = f->walk.slice;
	nv_request *request = navis_request_begin(NV_REQ_OPEN, f->walk.key);

	if (request == NULL)
		return 0;
	navis_index_params(slice->index, &slice->meta, &request->u.open.params);
	navis_request_title(request, RelationGetRelid(slice->index));
	if (navis_request_call(request, NULL, NULL) != NV_OK)
		return 0;
	return request->u.open.room;
}

/*
 * Lets the insert threads make room for so many rows, as long as they do.  Else
 * the rows are refused, and the engine says that it has not got everything.
 */
static void
wait_for_room(NavisFollow *f, uint64 rows)
{
	uint64 before = 0;

	for (int looks = 0; looks < NAVIS_FOLLOW_PATIENCE; looks++)
	{
		uint64 room = ask_room(f);

		if (room >= Min(rows, NAVIS_FOLLOW_ROOM))
			return;
		if (room > before)
			looks = 0;
		before = room;
		navis_nap(NAVIS_FOLLOW_NAP);
	}
}

static nv_status
hand_over(NavisFollow *f)
{
	NavisWalk *walk = &f->walk;
	NavisMissing *all = walk->missing;
	uint64 n = walk->n_missing;
	nv_status status = NV_OK;

	for (uint64 done = 0; done < n && status == NV_OK; done += walk->n_missing)
	{
		wait_for_room(f, n - done);
		walk->missing = all + done;
		walk->n_missing = Min(n - done, NAVIS_FOLLOW_ROOM / 2);
		status = navis_walk_insert(walk);
	}
	return status;
}

static nv_status
tell_followed(const nv_key *key, const nv_followed *followed)
{
	nv_request *request = navis_request_begin(NV_REQ_FOLLOWED, key);

	if (request == NULL)
		return NV_EUNUSABLE;
	request->u.followed.followed = *followed;
	return navis_request_call(request, NULL, NULL);
}

/*
 * In memory of its own; everything: all pages that changed since such a walk,
 * for what was deleted on them.
 */
static nv_status
follow(NavisSlice *slice, const nv_key *key, bool everything)
{
	MemoryContext outer = slice->context;
	MemoryContext context =
		AllocSetContextCreate(outer, "navis follow", ALLOCSET_DEFAULT_SIZES);
	NavisFollow f;
	nv_followed now;
	nv_status status;

	/* Before the entries are read: what comes later is newer. */
	navis_tails_read(slice->index, &now);
	/* The last time: nobody follows deletions after that. */
	everything |= slice->followed.in_recovery && !now.in_recovery;
	slice->context = context;
	slice->pass = 0;
	navis_walk_init(&f.walk, slice, key, true);
	now.walked = slice->followed.walked;
	now.walked_at = slice->followed.walked_at;
	f.since = navis_newest_followed(&slice->followed);
	if (everything)
	{
		f.since = slice->followed.walked;
		now.walked = navis_newest_followed(&now);
		now.walked_at = GetCurrentTimestamp();
	}
	status = everything ? take_changed_pages(&f)
						: take_tails(&f, &slice->followed, &now);
	if (status == NV_OK)
		status = navis_walk_flush(&f.walk);
	if (status == NV_OK)
		status = hand_over(&f);
	if (slice->fetch != NULL)
		navis_fetch_end(slice->fetch);
	slice->fetch = NULL;
	slice->context = outer;
	MemoryContextDelete(context);
	if (status == NV_OK)
		status = tell_followed(key, &now);
	if (status == NV_OK)
		slice->followed = now;
	return status;
}

nv_status
navis_follow(NavisSlice *slice, const nv_key *key)
{
	return follow(slice, key, false);
}

/* --- deletions --- */

nv_status
navis_follow_deletions(NavisSlice *slice, const nv_key *key)
{
	int64 pause = (int64) navis_collect_interval * NAVIS_WALK_ROUNDS * 1000;

	if (!TimestampDifferenceExceeds(slice->followed.walked_at,
									GetCurrentTimestamp(), pause))
		return NV_OK;
	return follow(slice, key, true);
}
