/*
 * cache.h
 *		NAVIS-Cache: 4 KiB pages of edge files in host memory.
 *
 * Two regions.  New pages enter an LRU admission window (10 %); a page that
 * leaves it moves to the mostly-frozen region (90 %) if it is worth more than
 * one there, which goes instead.  A page's worth is the number of lookups it
 * has had, each counting half as much after so many later lookups as four
 * times the cache has pages; it is remembered for a while after the page has
 * gone.  Partitioned by page, each partition with a latch of its own; no latch
 * is held across I/O.
 *
 * The reference's policy promotes a page after so many hits in the window and
 * evicts the one promoted earliest, whatever its hits.  It is here to be
 * compared with (nv_cache_policy), as is a plain LRU list; on the lookups of
 * this engine it loses to that, for an insertion asks for its pages twice
 * within milliseconds, which promotes them all.
 *
 * Keys are (file, page); file is a number the caller never reuses while pages
 * of it may be cached.
 *
 * Source: navis-system.txt, "NAVIS-Cache"; the worth of a page is that of
 * LRFU (Lee et al., 2001), with the least of a few pages instead of a heap.
 */
#ifndef NAVIS_CACHE_H
#define NAVIS_CACHE_H

#include "navis/status.h"

#define NV_PAGE 4096

typedef struct nv_cache nv_cache;

typedef enum nv_cache_policy
{
	NV_CACHE_WORTH,
	NV_CACHE_REFERENCE, /* for comparison */
	NV_CACHE_LRU,       /* one list; for comparison */
	NV_CACHE_POLICIES
} nv_cache_policy;

/* Hits in the window that promote a page, with the reference's policy. */
#define NV_CACHE_REFERENCE_PROMOTE 2
#define NV_CACHE_REFERENCE_PROMOTE_SEARCH 16

typedef struct nv_cache_params
{
	uint64_t bytes; /* memory for pages and bookkeeping; 0 = off */
	double window;  /* share of the admission window, 0.10 */
	/*
	 * Lookups by insertion (4) and by search (1) that count as one; with the
	 * reference's policy, hits in the window that promote a page.
	 */
	uint32_t promote, promote_search;
	uint32_t partitions; /* 0: chosen; 1 for tests against a model */
	nv_cache_policy policy;
} nv_cache_params;

typedef enum nv_cache_user
{
	NV_CACHE_SEARCH,
	NV_CACHE_INSERT,  /* position seeking */
	NV_CACHE_PASSING, /* says nothing about what will be asked for again:
					   * linking where a seek has just been, sweeps, checks */
	NV_CACHE_USERS
} nv_cache_user;

typedef struct nv_cache_stats
{
	uint64_t lookups, hits, fills, promotions, evictions, dropped_fills;
	uint64_t pages, frozen_pages, capacity_pages, bytes;
	/* of lookups and hits, by nv_cache_user */
	uint64_t user_lookups[NV_CACHE_USERS], user_hits[NV_CACHE_USERS];
	uint64_t spare_pages, spare_lookups, spare_hits; /* not counted above */
} nv_cache_stats;

extern nv_status nv_cache_create(const nv_cache_params *params,
								 nv_cache **cache, nv_error *err);
extern void nv_cache_free(nv_cache *cache);

/*
 * Copies the page into out and counts a hit; false if it is not there, and
 * then *ticket is set for a later nv_cache_fill.  With bytes = 0 always false.
 */
extern bool nv_cache_get(nv_cache *cache, uint32_t file, uint64_t page,
						 nv_cache_user user, uint8_t *out, uint64_t *ticket);

/*
 * Offers a page that was read from disk.  Dropped when the page was written
 * (nv_cache_written) since the ticket was drawn.
 */
extern void nv_cache_fill(nv_cache *cache, uint32_t file, uint64_t page,
						  uint64_t ticket, const uint8_t *bytes);

/*
 * Write-through: replaces the copy if there is one, and makes tickets of this
 * page stale.  With NV_CACHE_WORTH a page enters where no other edge page has
 * to go for it.
 */
extern void nv_cache_written(nv_cache *cache, uint32_t file, uint64_t page,
							 const uint8_t *bytes);

/*
 * Spare pages: of other files than edge files, in frames that no edge page
 * wants.  has_spare: there may be such frames.  get: copies `len` bytes from
 * `at` on.  written: whole sectors from `at` on are on disk now; the copy gets
 * them, too, and the page's tickets are stale.
 */
extern bool nv_cache_has_spare(const nv_cache *cache, uint32_t file,
							   uint64_t page);
extern bool nv_cache_get_spare(nv_cache *cache, uint32_t file, uint64_t page,
							   uint32_t at, uint32_t len, uint8_t *out,
							   uint64_t *ticket);
extern void nv_cache_fill_spare(nv_cache *cache, uint32_t file, uint64_t page,
								uint64_t ticket, const uint8_t *bytes);
extern void nv_cache_written_spare(nv_cache *cache, uint32_t file,
								   uint64_t page, uint32_t at, uint32_t len,
								   const uint8_t *bytes);

/* Forgets all pages of a file. */
extern void nv_cache_forget(nv_cache *cache, uint32_t file);
extern void nv_cache_get_stats(nv_cache *cache, nv_cache_stats *stats);

#endif
