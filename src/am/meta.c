/*
 * meta.c
 *		The metapage: block 0 of the journal.
 *
 * It says what the index is made of and where the tails are.  Dimensions are
 * the one thing in it that may change with the rows, see
 * navis_meta_set_dimensions.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "compat.h"
#include "journal.h"

/* What a page walk under the metapage's lock has to go back to. */
typedef struct NavisTailsSeen
{
	uint32 dim;
	uint64 lowest; /* among the tails, or next_page_sequence */
} NavisTailsSeen;

typedef enum NavisTailsHold
{
	NAVIS_TAILS_NOTHING,
	NAVIS_TAILS_VECTOR, /* a live entry with a vector */
	NAVIS_TAILS_UNKNOWN /* a chain is broken: walk the whole journal again */
} NavisTailsHold;

static void
fill_identity(uint8 *identity)
{
	if (!pg_strong_random(identity, 16))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("could not generate a random index identity")));
}

void
navis_meta_init(Relation index, Page page)
{
	NavisOptions *options = (NavisOptions *) index->rd_options;
	NavisMetaPage *meta;

	PageInit(page, BLCKSZ, sizeof(NavisPageSpecial));
	NavisPageGetSpecial(page)->link = InvalidBlockNumber;
	NavisPageGetSpecial(page)->page_id = NAVIS_PAGE_ID;
	if (options == NULL)
		options = (NavisOptions *) navis_options((Datum) 0, false);

	meta = NavisPageGetMeta(page);
	memset(meta, 0, sizeof(NavisMetaPage));
	meta->magic = NAVIS_MAGIC;
	meta->version = NAVIS_JOURNAL_VERSION;
	meta->dim = options->dimensions;
	meta->dim_fixed = options->dimensions != 0;
	meta->element_type = NAVIS_TYPE_REAL;
	meta->metric = navis_index_metric(index);
	meta->max_degree = options->max_degree;
	meta->build_list_size = options->build_list_size;
	meta->pq_bytes = options->pq_bytes;
	meta->entrance_degree = options->entrance_degree;
	meta->alpha = options->alpha;
	meta->entrance_ratio = options->entrance_ratio;
	fill_identity(meta->identity);
	meta->next_page_sequence = 1;
	((PageHeader) page)->pd_lower =
		(char *) meta + sizeof(NavisMetaPage) - (char *) page;
}

static bool
is_metapage(Page page)
{
	return !PageIsNew(page) &&
		   PageGetSpecialSize(page) == MAXALIGN(sizeof(NavisPageSpecial)) &&
		   NavisPageGetSpecial(page)->page_id == NAVIS_PAGE_ID &&
		   NavisPageGetMeta(page)->magic == NAVIS_MAGIC;
}

NavisMetaPage *
navis_meta_check(Relation index, Buffer buffer)
{
	Page page = BufferGetPage(buffer);
	NavisMetaPage *meta = NavisPageGetMeta(page);

	if (!is_metapage(page))
		ereport(ERROR, (errcode(ERRCODE_INDEX_CORRUPTED),
						errmsg("index \"%s\" has no navis metapage",
							   RelationGetRelationName(index)),
						errhint("Please REINDEX it.")));
	if (meta->version != NAVIS_JOURNAL_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" has journal format version %u, expected "
						"version %u",
						RelationGetRelationName(index), meta->version,
						NAVIS_JOURNAL_VERSION),
				 errhint("Please REINDEX it.")));
	if (meta->ntails > NAVIS_MAX_TAILS || meta->dim > NV_MAX_DIM)
		ereport(ERROR, (errcode(ERRCODE_INDEX_CORRUPTED),
						errmsg("metapage of index \"%s\" is damaged: %u tails, "
							   "%u dimensions",
							   RelationGetRelationName(index), meta->ntails,
							   meta->dim),
						errhint("Please REINDEX it.")));
	return meta;
}

void
navis_meta_copy(const NavisMetaPage *stored, NavisMeta *meta)
{
	memset(meta, 0, sizeof(NavisMeta));
	meta->version = stored->version;
	meta->dim = stored->dim;
	meta->dim_fixed = stored->dim_fixed != 0;
	meta->element_type = stored->element_type;
	meta->metric = stored->metric;
	memcpy(meta->identity, stored->identity, sizeof(meta->identity));
	meta->max_degree = stored->max_degree;
	meta->build_list_size = stored->build_list_size;
	meta->pq_bytes = stored->pq_bytes;
	meta->entrance_degree = stored->entrance_degree;
	meta->alpha = stored->alpha;
	meta->entrance_ratio = stored->entrance_ratio;
	meta->next_page_sequence = stored->next_page_sequence;
	meta->ntails = stored->ntails;
	for (uint32 i = 0; i < stored->ntails; i++)
	{
		meta->tails[i].block = stored->tails[i].block;
		meta->tails[i].sequence = stored->tails[i].sequence;
	}
}

void
navis_meta_read(Relation index, NavisMeta *meta)
{
	Buffer buffer = ReadBuffer(index, 0);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	navis_meta_copy(navis_meta_check(index, buffer), meta);
	UnlockReleaseBuffer(buffer);
}

bool
navis_meta_peek(Relation index, NavisMeta *meta)
{
	const NavisMetaPage *stored;
	Buffer buffer;
	Page page;
	bool ok;

	if (RelationGetNumberOfBlocks(index) == 0)
		return false; /* not built yet */
	buffer = ReadBuffer(index, 0);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	stored = NavisPageGetMeta(page);
	ok = is_metapage(page) && stored->version == NAVIS_JOURNAL_VERSION &&
		 stored->ntails <= NAVIS_MAX_TAILS && stored->dim <= NV_MAX_DIM;
	if (ok)
		navis_meta_copy(stored, meta);
	UnlockReleaseBuffer(buffer);
	return ok;
}

void
navis_index_params(Relation index, const NavisMeta *meta,
				   nv_index_params *params)
{
	memset(params, 0, sizeof(nv_index_params));
	params->dim = meta->dim;
	params->metric = meta->metric;
	params->max_degree = meta->max_degree;
	params->build_list_size = meta->build_list_size;
	params->pq_bytes = meta->pq_bytes;
	params->entrance_degree = meta->entrance_degree;
	params->alpha = meta->alpha;
	params->entrance_ratio = meta->entrance_ratio;
	params->consolidate_threshold = navis_consolidate_threshold(index);
	params->relfilenode = navis_relfilenode(index);
	params->index_oid = RelationGetRelid(index);
}

/*
 * Does a page hold a live entry with a vector?  Returns its special space in
 * *special (sequence 0 for an all-zero page).
 */
static bool
page_holds_vector(Relation index, BlockNumber block, NavisPageSpecial *special)
{
	Buffer buffer = ReadBuffer(index, block);
	Page page = BufferGetPage(buffer);
	NavisEntry *entries;
	uint32 n;
	bool found = false;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	n = navis_page_count(index, block, page);
	*special = navis_page_special(page);
	entries = NavisPageEntries(page);
	for (uint32 i = 0; i < n && !found; i++)
		found = navis_entry_has_vector(&entries[i]);
	UnlockReleaseBuffer(buffer);
	return found;
}

/* Walks the whole journal without a lock on the metapage. */
static bool
journal_holds_vector(Relation index)
{
	BlockNumber end = RelationGetNumberOfBlocks(index);
	NavisPageSpecial special;

	for (BlockNumber block = NAVIS_FIRST_PAGE; block < end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		if (page_holds_vector(index, block, &special))
			return true;
	}
	return false;
}

/*
 * With the metapage locked exclusively, so that nobody appends: does any page
 * that was tail at the moment seen, or became it since, hold a vector?  The
 * links lead from each tail back to the tails of that moment, unless a page
 * between them has become tail once more meanwhile.
 */
static NavisTailsHold
look_at_tails(Relation index, const NavisMetaPage *meta,
			  const NavisTailsSeen *seen)
{
	for (uint32 i = 0; i < meta->ntails; i++)
	{
		BlockNumber block = meta->tails[i].block;
		uint64 sequence = meta->tails[i].sequence;

		while (block != InvalidBlockNumber && sequence >= seen->lowest)
		{
			NavisPageSpecial special;

			if (page_holds_vector(index, block, &special))
				return NAVIS_TAILS_VECTOR;
			if (!navis_page_back(&special, &block, &sequence))
				return NAVIS_TAILS_UNKNOWN;
		}
	}
	return NAVIS_TAILS_NOTHING;
}

static void
store_dimensions(Relation index, Buffer buffer, uint32 dim)
{
	GenericXLogState *state = GenericXLogStart(index);
	Page page = GenericXLogRegisterBuffer(state, buffer, 0);
	NavisMetaPage *meta = NavisPageGetMeta(page);

	/* What the engine has of the old dimensions is another index's now. */
	if (meta->dim != 0)
		fill_identity(meta->identity);
	meta->dim = dim;
	GenericXLogFinish(state);
}

static void
note_tails(const NavisMetaPage *meta, NavisTailsSeen *seen)
{
	seen->dim = meta->dim;
	seen->lowest = meta->next_page_sequence;
	for (uint32 i = 0; i < meta->ntails; i++)
		seen->lowest = Min(seen->lowest, meta->tails[i].sequence);
}

/*
 * The first row sets the dimensions; as long as no live entry holds a vector
 * they may be set anew, so that a rolled-back first row does not fix them for
 * ever.  The journal is walked only on a mismatch: once without a lock, then,
 * under the metapage's exclusive lock, the pages that may have changed since,
 * so that the lock is held for a page or two even over a long journal.
 */
bool
navis_meta_set_dimensions(Relation index, uint32 dim)
{
	NavisTailsSeen seen = {0, 0};

	for (;;)
	{
		Buffer buffer = ReadBuffer(index, 0);
		NavisTailsHold hold = NAVIS_TAILS_UNKNOWN;
		NavisMetaPage *meta;
		bool equal, fixed;

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		meta = navis_meta_check(index, buffer);
		if (seen.dim != 0 && meta->dim == seen.dim)
			hold = look_at_tails(index, meta, &seen);
		if (meta->dim == 0 || hold == NAVIS_TAILS_NOTHING)
			store_dimensions(index, buffer, dim);
		equal = meta->dim == dim;
		fixed = meta->dim_fixed || hold == NAVIS_TAILS_VECTOR;
		note_tails(meta, &seen);
		UnlockReleaseBuffer(buffer);

		if (equal)
			return true;
		if (fixed || journal_holds_vector(index))
			return false;
	}
}
