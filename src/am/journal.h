/*
 * journal.h
 *		The journal's bytes on disk, and what only its writers need: build,
 *		vacuum and the metapage code.  README.md explains format and locking.
 */
#ifndef NAVIS_JOURNAL_H
#define NAVIS_JOURNAL_H

#include "navis.h"

/* Contents of block 0, right behind the page header. */
typedef struct NavisMetaPage
{
	uint32 magic;
	uint32 version;
	uint32 dim;       /* 0: not known yet */
	uint32 dim_fixed; /* 1: by the option, never to be set anew */
	uint32 element_type;
	uint32 metric;
	uint32 max_degree;
	uint32 build_list_size;
	uint32 pq_bytes;
	uint32 entrance_degree;
	float alpha;
	float entrance_ratio;
	uint32 reserved[8]; /* 0, for options to come */
	uint8 identity[16];
	uint64 next_page_sequence;
	uint32 ntails;
	uint32 unused;
	struct
	{
		uint64 sequence;
		BlockNumber block;
		uint32 unused;
	} tails[NAVIS_MAX_TAILS];
} NavisMetaPage;

/* Special space of every page; the page id stands in the last two bytes. */
typedef struct NavisPageSpecial
{
	uint64 sequence;      /* 0 on the metapage */
	uint64 link_sequence; /* of the linked page when the link was made */
	BlockNumber link;     /* previous tail; InvalidBlockNumber: none */
	uint16 unused;
	uint16 page_id;
} NavisPageSpecial;

#define NavisPageGetMeta(page) ((NavisMetaPage *) PageGetContents(page))
#define NavisPageGetSpecial(page)                                              \
	((NavisPageSpecial *) PageGetSpecialPointer(page))
#define NavisPageEntries(page) ((NavisEntry *) PageGetContents(page))

/* Entries that a full page has. */
#define NAVIS_PAGE_CAPACITY                                                    \
	((BLCKSZ - MAXALIGN(SizeOfPageHeaderData) -                                \
	  MAXALIGN(sizeof(NavisPageSpecial))) /                                    \
	 sizeof(NavisEntry))

/* Of these must be free before VACUUM's page may become tail again. */
#define NAVIS_REUSE_FREE (NAVIS_PAGE_CAPACITY / 2)

/* Element ids are 32 bits wide. */
#define NAVIS_MAX_BLOCK ((BlockNumber) (PG_UINT32_MAX / NAVIS_PAGE_CAPACITY))

/* --- meta.c --- */

/* Checks a locked block 0 and returns its contents. */
extern NavisMetaPage *navis_meta_check(Relation index, Buffer buffer);

/* From the bytes on disk. */
extern void navis_meta_copy(const NavisMetaPage *stored, NavisMeta *meta);

/* Writes a metapage for the relation's options into a page in memory. */
extern void navis_meta_init(Relation index, Page page);

/* --- journal.c --- */

extern void navis_page_init(Page page, uint64 sequence, BlockNumber link,
							uint64 link_sequence);

/*
 * Number of entries of a page, 0 for an all-zero page; an error for a page
 * that is not ours.
 */
extern uint32 navis_page_count(Relation index, BlockNumber block, Page page);

/* May a (locked) page become tail?  Enough of its entries must be free. */
extern bool navis_page_reusable(Relation index, BlockNumber block, Page page);

/*
 * The special space of a (locked) page; sequence 0 for an all-zero page.
 */
extern NavisPageSpecial navis_page_special(Page page);

/*
 * One step back along a tail's links, from a page that should have this
 * sequence; false: a page on the way has become tail once more, and the links
 * tell too little.  *block is invalid at the end.
 */
extern bool navis_page_back(const NavisPageSpecial *special, BlockNumber *block,
							uint64 *sequence);

#endif
