/*
 * journal.c
 *		The journal's pages: append, read, live check, killed hint.
 *
 * Locking order: metapage, then one page.  Whoever appends holds the metapage
 * shared meanwhile, so that an exclusive lock on it stops all appends.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/indexfsm.h"

#include "compat.h"
#include "journal.h"

StaticAssertDecl(sizeof(NavisEntry) == 20, "journal entry has 20 bytes");
StaticAssertDecl(sizeof(NavisPageSpecial) == 24,
				 "page id stands in the last two bytes of a page");

uint32
navis_entries_per_page(void)
{
	return NAVIS_PAGE_CAPACITY;
}

uint32
navis_first_element(BlockNumber block)
{
	Assert(block >= NAVIS_FIRST_PAGE && block <= NAVIS_MAX_BLOCK);
	return (block - NAVIS_FIRST_PAGE) * (uint32) NAVIS_PAGE_CAPACITY;
}

static BlockNumber
element_block(uint32 element)
{
	return element / (uint32) NAVIS_PAGE_CAPACITY + NAVIS_FIRST_PAGE;
}

void
navis_page_init(Page page, uint64 sequence, BlockNumber link,
				uint64 link_sequence)
{
	NavisPageSpecial *special;

	PageInit(page, BLCKSZ, sizeof(NavisPageSpecial));
	special = NavisPageGetSpecial(page);
	special->sequence = sequence;
	special->link = link;
	special->link_sequence = link_sequence;
	special->page_id = NAVIS_PAGE_ID;
}

uint32
navis_page_count(Relation index, BlockNumber block, Page page)
{
	uint32 bytes;

	/* Left by a crash between the relation's extension and its WAL record. */
	if (PageIsNew(page))
		return 0;

	bytes = ((PageHeader) page)->pd_lower - MAXALIGN(SizeOfPageHeaderData);
	if (PageGetSpecialSize(page) != MAXALIGN(sizeof(NavisPageSpecial)) ||
		NavisPageGetSpecial(page)->page_id != NAVIS_PAGE_ID ||
		bytes % sizeof(NavisEntry) != 0 ||
		bytes / sizeof(NavisEntry) > NAVIS_PAGE_CAPACITY)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("block %u of index \"%s\" is not a navis journal page",
						block, RelationGetRelationName(index)),
				 errhint("Please REINDEX it.")));
	return bytes / sizeof(NavisEntry);
}

/* Free places of a page that has count entries. */
static uint32
page_free(Page page, uint32 count)
{
	NavisEntry *entries = NavisPageEntries(page);
	uint32 free = NAVIS_PAGE_CAPACITY - count;

	for (uint32 i = 0; i < count; i++)
		if (navis_entry_state(&entries[i]) == NAVIS_ENTRY_FREE)
			free++;
	return free;
}

bool
navis_page_reusable(Relation index, BlockNumber block, Page page)
{
	return PageIsNew(page) ||
		   page_free(page, navis_page_count(index, block, page)) >=
			   NAVIS_REUSE_FREE;
}

NavisPageSpecial
navis_page_special(Page page)
{
	NavisPageSpecial none = {0};

	return PageIsNew(page) ? none : *NavisPageGetSpecial(page);
}

bool
navis_page_back(const NavisPageSpecial *special, BlockNumber *block,
				uint64 *sequence)
{
	/* Links lead to lower sequences: damage must not lead round in a circle. */
	if (special->sequence != *sequence ||
		(special->link != InvalidBlockNumber &&
		 special->link_sequence >= *sequence))
		return false;
	*block = special->link;
	*sequence = special->link_sequence;
	return true;
}

/* --- reading --- */

uint32
navis_journal_read(Relation index, BlockNumber block, NavisEntry *entries,
				   XLogRecPtr *lsn, BufferAccessStrategy strategy)
{
	Buffer buffer =
		ReadBufferExtended(index, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
	Page page = BufferGetPage(buffer);
	uint32 n;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	navis_test_old_snapshot(index, page);
	n = navis_page_count(index, block, page);
	memcpy(entries, NavisPageEntries(page), n * sizeof(NavisEntry));
	if (lsn != NULL)
		*lsn = BufferGetLSNAtomic(buffer);
	UnlockReleaseBuffer(buffer);
	return n;
}

/*
 * The entry of an element, with its page pinned and locked shared; NULL, and
 * nothing held, when there is none or it is not live in this generation.
 */
static NavisEntry *
lock_live_entry(Relation index, uint32 element, uint32 generation,
				Buffer *buffer)
{
	BlockNumber block = element_block(element);
	uint32 slot = element - navis_first_element(block);
	NavisEntry *entry;

	/* The engine named it: it may be wrong about where the journal ends. */
	if (block >= RelationGetNumberOfBlocks(index))
		return NULL;
	*buffer = ReadBuffer(index, block);
	LockBuffer(*buffer, BUFFER_LOCK_SHARE);
	navis_test_old_snapshot(index, BufferGetPage(*buffer));
	if (slot < navis_page_count(index, block, BufferGetPage(*buffer)))
	{
		entry = &NavisPageEntries(BufferGetPage(*buffer))[slot];
		if (navis_entry_live(entry) && entry->generation == generation)
			return entry;
	}
	UnlockReleaseBuffer(*buffer);
	return NULL;
}

bool
navis_journal_live(Relation index, uint32 element, uint32 generation,
				   bool ignore_killed, ItemPointer tid)
{
	Buffer buffer;
	NavisEntry *entry = lock_live_entry(index, element, generation, &buffer);
	bool live;

	if (entry == NULL)
		return false;
	live = navis_entry_visible(entry, ignore_killed);
	*tid = entry->tid;
	UnlockReleaseBuffer(buffer);
	return live;
}

/* Not WAL-logged: after a crash or on a standby the hint is simply missing. */
void
navis_journal_kill(Relation index, uint32 element, uint32 generation)
{
	Buffer buffer;
	NavisEntry *entry = lock_live_entry(index, element, generation, &buffer);

	if (entry == NULL)
		return;
	if (!(entry->flags & NAVIS_ENTRY_KILLED))
	{
		entry->flags |= NAVIS_ENTRY_KILLED;
		MarkBufferDirtyHint(buffer, true);
	}
	UnlockReleaseBuffer(buffer);
}

/* --- tails --- */

/* A tail that was, or is to be: what new_tail makes sure of before it acts. */
typedef struct NavisTailSlot
{
	uint32 slot;
	uint64 sequence; /* of the tail there; 0: the slot is not in use */
} NavisTailSlot;

/*
 * Pins and locks a tail page to append to, with the metapage locked shared.
 * The tail is chosen by process; if its page is taken, any other.  Invalid
 * when there is no tail yet, or all are taken and there may be another one:
 * then *wanted names the slot that needs a page.
 */
static Buffer
lock_tail(Relation index, const NavisMetaPage *meta, NavisTailSlot *wanted)
{
	uint32 first = meta->ntails > 0 ? (uint32) MyProcPid % meta->ntails : 0;
	Buffer buffer;

	for (uint32 i = 0; i < meta->ntails; i++)
	{
		wanted->slot = (first + i) % meta->ntails;
		wanted->sequence = meta->tails[wanted->slot].sequence;
		buffer = ReadBuffer(index, meta->tails[wanted->slot].block);
		if (ConditionalLockBuffer(buffer))
			return buffer;
		ReleaseBuffer(buffer);
	}
	if (meta->ntails < NAVIS_MAX_TAILS)
	{
		wanted->slot = meta->ntails;
		wanted->sequence = 0;
		return InvalidBuffer;
	}
	wanted->slot = first;
	wanted->sequence = meta->tails[first].sequence;
	buffer = ReadBuffer(index, meta->tails[first].block);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	return buffer;
}

/*
 * A pinned page that looks as if it could become tail: one that VACUUM has
 * noted in the free space map (which may be wrong: verified again later), or
 * a new one.
 */
static Buffer
find_page(Relation index)
{
	BlockNumber end = RelationGetNumberOfBlocks(index);
	Buffer buffer;

	for (;;)
	{
		BlockNumber block = GetFreeIndexPage(index);
		bool usable;

		if (block == InvalidBlockNumber)
			break;
		if (block < NAVIS_FIRST_PAGE || block >= end)
			continue;
		buffer = ReadBuffer(index, block);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		usable = navis_page_reusable(index, block, BufferGetPage(buffer));
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		if (usable)
			return buffer;
		ReleaseBuffer(buffer);
	}
	if (end > NAVIS_MAX_BLOCK)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("index \"%s\" cannot have more than %u entries",
							   RelationGetRelationName(index), PG_UINT32_MAX),
						errhint("VACUUM makes entries of deleted rows free.")));
	return navis_extend(index, MAIN_FORKNUM);
}

/*
 * Metapage and page change in one record.  The page gets the next sequence
 * and a link to the tail that was in its slot before.
 */
static void
install_tail(Relation index, Buffer metabuf, Buffer buffer, uint32 slot)
{
	bool fresh = PageIsNew(BufferGetPage(buffer));
	GenericXLogState *state = GenericXLogStart(index);
	NavisMetaPage *meta =
		NavisPageGetMeta(GenericXLogRegisterBuffer(state, metabuf, 0));
	Page page = GenericXLogRegisterBuffer(state, buffer,
										  fresh ? GENERIC_XLOG_FULL_IMAGE : 0);
	BlockNumber link = InvalidBlockNumber;
	uint64 link_sequence = 0;

	if (slot < meta->ntails)
	{
		link = meta->tails[slot].block;
		link_sequence = meta->tails[slot].sequence;
	}
	if (fresh)
		navis_page_init(page, meta->next_page_sequence, link, link_sequence);
	else
	{
		NavisPageGetSpecial(page)->sequence = meta->next_page_sequence;
		NavisPageGetSpecial(page)->link = link;
		NavisPageGetSpecial(page)->link_sequence = link_sequence;
	}
	meta->tails[slot].block = BufferGetBlockNumber(buffer);
	meta->tails[slot].sequence = meta->next_page_sequence++;
	meta->ntails = Max(meta->ntails, slot + 1);
	GenericXLogFinish(state);
}

static bool
is_tail(const NavisMetaPage *meta, BlockNumber block)
{
	for (uint32 i = 0; i < meta->ntails; i++)
		if (meta->tails[i].block == block)
			return true;
	return false;
}

/*
 * Gives a slot another tail page, unless somebody else has done so meanwhile.
 * Holds nothing on entry and on return; the caller looks again.
 */
static void
new_tail(Relation index, const NavisTailSlot *wanted)
{
	Buffer buffer = find_page(index);
	BlockNumber block = BufferGetBlockNumber(buffer);
	Buffer metabuf = ReadBuffer(index, 0);
	NavisMetaPage *meta;
	bool needed, usable;

	LockBuffer(metabuf, BUFFER_LOCK_EXCLUSIVE);
	meta = navis_meta_check(index, metabuf);
	needed = wanted->sequence == 0
				 ? wanted->slot == meta->ntails
				 : wanted->slot < meta->ntails &&
					   meta->tails[wanted->slot].sequence == wanted->sequence;
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	usable = !is_tail(meta, block) &&
			 navis_page_reusable(index, block, BufferGetPage(buffer));
	if (needed && usable)
		install_tail(index, metabuf, buffer, wanted->slot);
	UnlockReleaseBuffer(buffer);
	UnlockReleaseBuffer(metabuf);
	if (!needed && usable)
		RecordFreeIndexPage(index, block);
}

/* --- append --- */

/*
 * Puts the entry into the first free place of an exclusively locked page;
 * false if there is none.
 */
static bool
append_to_page(Relation index, Buffer buffer, ItemPointer tid, uint64 hash,
			   NavisAppended *appended)
{
	BlockNumber block = BufferGetBlockNumber(buffer);
	Page page = BufferGetPage(buffer);
	uint32 n = navis_page_count(index, block, page);
	GenericXLogState *state;
	NavisEntry *entry;
	uint32 slot;

	for (slot = 0; slot < n; slot++)
		if (navis_entry_state(&NavisPageEntries(page)[slot]) ==
			NAVIS_ENTRY_FREE)
			break;
	if (slot >= NAVIS_PAGE_CAPACITY)
		return false;

	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, buffer, 0);
	entry = &NavisPageEntries(page)[slot];
	if (slot == n)
	{
		memset(entry, 0, sizeof(NavisEntry));
		((PageHeader) page)->pd_lower += sizeof(NavisEntry);
	}
	entry->generation++;
	entry->hash_low = (uint32) hash;
	entry->hash_high = (uint32) (hash >> 32);
	entry->tid = *tid;
	entry->flags = NAVIS_ENTRY_LIVE;
	appended->element = navis_first_element(block) + slot;
	appended->generation = entry->generation;
	appended->lsn = GenericXLogFinish(state);
	return true;
}

bool
navis_journal_append(Relation index, ItemPointer tid, uint64 hash, uint32 dim,
					 NavisAppended *appended)
{
	for (;;)
	{
		Buffer metabuf = ReadBuffer(index, 0);
		NavisMetaPage *meta;
		NavisTailSlot wanted;
		Buffer buffer;
		bool fits, done = false;

		CHECK_FOR_INTERRUPTS();
		LockBuffer(metabuf, BUFFER_LOCK_SHARE);
		meta = navis_meta_check(index, metabuf);
		fits = dim == 0 || meta->dim == dim;
		if (fits)
		{
			memcpy(appended->identity, meta->identity,
				   sizeof(appended->identity));
			buffer = lock_tail(index, meta, &wanted);
			if (BufferIsValid(buffer))
			{
				done = append_to_page(index, buffer, tid, hash, appended);
				UnlockReleaseBuffer(buffer);
			}
		}
		UnlockReleaseBuffer(metabuf);

		if (!fits || done)
			return done;
		new_tail(index, &wanted);
	}
}
