/*
 * edge_pages.c
 *		Pages of the edge file: which units of which page are taken, which
 *		page is whose.
 *
 * A slot is taken from its birth until it is released, that is until neither
 * the map, nor a root that counts, nor a reader can name it; only then its
 * units are given to another slot.  So a page can be written again and again,
 * and no write changes a byte of a slot that anybody may still need.
 *
 * A page belongs to one writer from the moment it is taken (out of the free
 * ones, or with lists on it) until its write is complete.
 *
 * Three bitmaps tell all there is to know of a page: the units that are taken,
 * those that slots begin at, and those that slots born since the last cut
 * begin at.  What is not born since the last cut may be named by its root, or
 * by the one before: that is all the retire list has to know of a birth.
 *
 * Source: design.md section 4, "Checkpoint protocol" 1, 2 and 10,
 * "Concurrency" 4.
 */
#include "store_internal.h"

#define GROW_PAGES 64 /* space is reserved in steps of this many pages */
#define GROW_SHARE 32 /* or this part of the file */
/*
 * The file grows only when less than this part of it is free; else pages with
 * SCAVENGED_UNITS free ones are looked for, so many pages at a time.
 */
#define FREE_SHARE 10
#define SCAVENGED_UNITS (NV_PAGE_UNITS * 5 / 16)
#define SCAVENGE_PAGES 512

_Static_assert(NV_PAGE_UNITS == 64, "bitmaps of 64 units");

/* --- Bits --- */

static inline uint64_t
bit(uint32_t unit)
{
	return UINT64_C(1) << unit;
}

/* n units from `unit` on. */
static inline uint64_t
bits(uint32_t unit, uint32_t n)
{
	nv_assert(n > 0 && unit + n <= NV_PAGE_UNITS);
	return (n == NV_PAGE_UNITS ? ~UINT64_C(0) : bit(n) - 1) << unit;
}

/* First units of runs of n free ones. */
static inline uint64_t
runs(uint64_t used, uint32_t n)
{
	uint64_t m = ~used;

	for (uint32_t i = 1; i < n && m != 0; i++)
		m &= m >> 1;
	return m;
}

/* The units of the slot that begins at `unit`. */
static uint32_t
slot_length(const nv_page_info *info, uint32_t unit)
{
	uint32_t n = 1;

	nv_assert(info->used & info->start & bit(unit));
	while (unit + n < NV_PAGE_UNITS && (info->used & bit(unit + n)) &&
		   !(info->start & bit(unit + n)))
		n++;
	return n;
}

static inline uint32_t
free_units(const nv_page_info *info)
{
	return NV_PAGE_UNITS - (uint32_t) __builtin_popcountll(info->used);
}

/* The longest slot that fits, up to `most` units. */
static uint32_t
longest_room(const nv_page_info *info, uint32_t most)
{
	uint32_t n = 0;

	while (n < most && runs(info->used, n + 1) != 0)
		n++;
	return n;
}

/* --- Space --- */

/* Called with the allocator held; more memory for pages and free ones. */
static nv_status
grow_tables(nv_edges *edges, uint64_t capacity, nv_error *err)
{
	nv_page_info *info;
	uint32_t *stack;

	info = realloc(edges->info, capacity * sizeof(*info));
	if (info != NULL)
		edges->info = info;
	stack = realloc(edges->free, capacity * sizeof(*stack));
	if (stack != NULL)
		edges->free = stack;
	if (info == NULL || stack == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %llu edge pages",
					   (unsigned long long) capacity);
	memset(edges->info + edges->capacity, 0,
		   (capacity - edges->capacity) * sizeof(*info));
	edges->capacity = capacity;
	return NV_OK;
}

static uint64_t
capacity_now(nv_edges *edges)
{
	uint64_t capacity;

	pthread_mutex_lock(&edges->allocator);
	capacity = edges->capacity;
	pthread_mutex_unlock(&edges->allocator);
	return capacity;
}

/* Called with `growing` held, which keeps the file from growing twice. */
static nv_status
grow(nv_edges *edges, uint64_t pages, nv_error *err)
{
	uint64_t have = capacity_now(edges);
	uint64_t want = NV_MAX(pages, have + have / GROW_SHARE);
	nv_status status;

	if (pages <= have)
		return NV_OK;
	if (pages > NV_MAX_EDGE_PAGES)
		return nv_fail(err, NV_ELIMIT, 0,
					   "an index's edge file holds at most %llu pages",
					   (unsigned long long) NV_MAX_EDGE_PAGES);
	want = NV_MIN(nv_round_up(want, GROW_PAGES), NV_MAX_EDGE_PAGES);
	/* Pages below the capacity are written meanwhile, none above. */
	status = nv_file_reserve(edges->file, want * NV_PAGE, err);
	if (status == NV_ENOSPC && want > pages)
	{
		want = pages; /* a disk that is almost full */
		status = nv_file_reserve(edges->file, want * NV_PAGE, err);
	}
	if (status != NV_OK)
		return status;
	pthread_mutex_lock(&edges->allocator);
	status = grow_tables(edges, want, err);
	pthread_mutex_unlock(&edges->allocator);
	return status;
}

nv_status
nv_edges_reserve(nv_store *store, uint64_t pages, nv_error *err)
{
	nv_edges *edges = &store->edges;
	nv_status status;

	if (pages <= capacity_now(edges))
		return NV_OK;
	pthread_mutex_lock(&edges->growing);
	status = grow(edges, pages, err);
	pthread_mutex_unlock(&edges->growing);
	return status;
}

bool
nv_edges_have_room(nv_store *store, uint64_t pages)
{
	nv_edges *edges = &store->edges;
	bool have;

	pthread_mutex_lock(&edges->allocator);
	have = edges->free_count + (edges->capacity - edges->pages) >= pages;
	pthread_mutex_unlock(&edges->allocator);
	return have;
}

nv_status
nv_edges_make_room(nv_store *store, uint64_t pages, nv_error *err)
{
	nv_edges *edges = &store->edges;
	uint64_t all;

	pthread_mutex_lock(&edges->allocator);
	all = edges->pages + (pages - NV_MIN(pages, edges->free_count));
	pthread_mutex_unlock(&edges->allocator);
	return nv_edges_reserve(store, NV_MIN(all, NV_MAX_EDGE_PAGES), err);
}

void
nv_edges_count_on(nv_store *store, uint64_t pages)
{
	nv_edges *edges = &store->edges;
	uint64_t all;

	pthread_mutex_lock(&edges->allocator);
	/* The last root names none beyond those ever used. */
	all = edges->pages + (pages - NV_MIN(pages, edges->free_count));
	all = nv_round_up(all, GROW_PAGES);
	edges->capacity = NV_MIN(edges->capacity, all);
	pthread_mutex_unlock(&edges->allocator);
}

nv_status
nv_edges_cut(nv_store *store, nv_error *err)
{
	return nv_file_shorten(store->edges.file,
						   capacity_now(&store->edges) * NV_PAGE, err);
}

bool
nv_edges_full(nv_store *store)
{
	nv_edges *edges = &store->edges;
	bool full;

	pthread_mutex_lock(&edges->allocator);
	full = edges->free_count == 0 && edges->pages == NV_MAX_EDGE_PAGES;
	pthread_mutex_unlock(&edges->allocator);
	return full;
}

/* --- Taking pages --- */

/* Whether there is so much room in pages that the file need not grow. */
static bool
roomy(const nv_edges *edges)
{
	uint64_t units = edges->pages * NV_PAGE_UNITS;

	return (units - edges->used_units) * FREE_SHARE > units;
}

/* A page with lists on it that is nobody's and has room; the clock goes on. */
static bool
scavenge(nv_edges *edges, uint32_t units, uint64_t *page)
{
	for (uint32_t i = 0; i < SCAVENGE_PAGES && i < edges->pages; i++)
	{
		uint64_t p = edges->hand;

		edges->hand = edges->hand + 1 < edges->pages ? edges->hand + 1 : 0;
		if (edges->info[p].state == NV_PAGE_WRITTEN &&
			free_units(&edges->info[p]) >= SCAVENGED_UNITS &&
			runs(edges->info[p].used, units) != 0)
		{
			*page = p;
			return true;
		}
	}
	return false;
}

nv_page_kind
nv_edges_take_page(nv_store *store, uint32_t units, uint64_t *page)
{
	nv_edges *edges = &store->edges;
	nv_page_kind kind = NV_TOOK_EMPTY;

	pthread_mutex_lock(&edges->allocator);
	if (edges->free_count > 0)
		*page = edges->free[--edges->free_count];
	else if (roomy(edges) && scavenge(edges, units, page))
		kind = NV_TOOK_USED;
	else if (edges->pages < edges->capacity)
		*page = edges->pages++;
	else
		kind = NV_TOOK_NONE;
	if (kind != NV_TOOK_NONE)
	{
		nv_page_info *info = &edges->info[*page];

		nv_assert(info->state ==
				  (kind == NV_TOOK_USED ? NV_PAGE_WRITTEN : NV_PAGE_FREE));
		nv_assert(kind == NV_TOOK_USED || info->used == 0);
		info->state = NV_PAGE_OWNED;
	}
	pthread_mutex_unlock(&edges->allocator);
	return kind;
}

/* Called with the allocator held. */
static void
free_if_empty(nv_edges *edges, uint64_t page)
{
	nv_page_info *info = &edges->info[page];

	if (info->used != 0 || info->state != NV_PAGE_WRITTEN)
		return;
	info->state = NV_PAGE_FREE;
	nv_assert(edges->free_count < edges->capacity);
	edges->free[edges->free_count++] = (uint32_t) page;
}

void
nv_edges_give_back(nv_store *store, uint64_t page)
{
	nv_edges *edges = &store->edges;

	pthread_mutex_lock(&edges->allocator);
	nv_assert(edges->info[page].state == NV_PAGE_OWNED);
	edges->info[page].state = NV_PAGE_WRITTEN;
	free_if_empty(edges, page);
	pthread_mutex_unlock(&edges->allocator);
}

bool
nv_edges_take(nv_store *store, uint64_t page, uint32_t units)
{
	nv_edges *edges = &store->edges;
	nv_page_info *info;
	bool taken;

	pthread_mutex_lock(&edges->allocator);
	info = &edges->info[page];
	taken = info->state == NV_PAGE_WRITTEN && runs(info->used, units) != 0;
	if (taken)
		info->state = NV_PAGE_OWNED;
	pthread_mutex_unlock(&edges->allocator);
	return taken;
}

void
nv_edges_weigh(nv_store *store, nv_near_page *near, uint32_t n, uint32_t units)
{
	nv_edges *edges = &store->edges;

	pthread_mutex_lock(&edges->allocator);
	for (uint32_t i = 0; i < n; i++)
	{
		const nv_page_info *info = &edges->info[near[i].page];
		uint32_t spare = free_units(info);

		near[i].weight = near[i].lists * spare;
		if (runs(info->used, units) == 0 || (i > 0 && spare < NV_NEAR_UNITS))
			near[i].weight = 0;
	}
	pthread_mutex_unlock(&edges->allocator);
}

/* --- Slots --- */

uint32_t
nv_edges_room(nv_store *store, uint64_t page)
{
	nv_edges *edges = &store->edges;
	uint32_t room;

	pthread_mutex_lock(&edges->allocator);
	nv_assert(edges->info[page].state == NV_PAGE_OWNED);
	room = longest_room(&edges->info[page],
						nv_slot_units(store->params.max_degree));
	pthread_mutex_unlock(&edges->allocator);
	return room;
}

uint32_t
nv_edges_add_slot(nv_store *store, uint64_t page, uint32_t units, uint64_t old,
				  bool *old_young)
{
	nv_edges *edges = &store->edges;
	uint64_t epoch = atomic_load(&store->epoch), fits;
	nv_page_info *info;
	uint32_t unit;

	pthread_mutex_lock(&edges->allocator);
	info = &edges->info[page];
	nv_assert(info->state == NV_PAGE_OWNED);
	fits = runs(info->used, units);
	nv_assert(fits != 0);
	unit = (uint32_t) __builtin_ctzll(fits);
	if (info->epoch != epoch)
		info->young = 0;
	info->epoch = epoch;
	info->used |= bits(unit, units);
	info->start |= bit(unit);
	info->young |= bit(unit);
	edges->used_units += units;
	edges->live_slots++;
	*old_young = false;
	if (old != 0)
	{
		info = &edges->info[nv_word_page(old)];
		nv_assert(info->start & bit(nv_word_unit(old)));
		*old_young =
			info->epoch == epoch && (info->young & bit(nv_word_unit(old))) != 0;
	}
	pthread_mutex_unlock(&edges->allocator);
	return unit;
}

static void
release_slot(nv_store *store, uint64_t page, uint32_t unit)
{
	nv_edges *edges = &store->edges;
	nv_page_info *info;
	uint32_t units;

	pthread_mutex_lock(&edges->allocator);
	info = &edges->info[page];
	units = slot_length(info, unit);
	nv_assert(edges->live_slots > 0 && edges->used_units >= units);
	info->used &= ~bits(unit, units);
	info->start &= ~bit(unit);
	info->young &= ~bit(unit);
	edges->used_units -= units;
	edges->live_slots--;
	free_if_empty(edges, page);
	pthread_mutex_unlock(&edges->allocator);
}

void
nv_edges_reclaim(nv_store *store)
{
	uint64_t slots[256];
	uint32_t n;

	do
	{
		n = nv_retire_release(&store->retired, &store->readers, slots,
							  NV_LENGTH(slots));
		for (uint32_t i = 0; i < n; i++)
			release_slot(store, slots[i] / NV_PAGE_UNITS,
						 (uint32_t) (slots[i] % NV_PAGE_UNITS));
	} while (n == NV_LENGTH(slots));
}

/* --- Looking through pages --- */

bool
nv_edges_is_young(nv_store *store, uint64_t word)
{
	nv_edges *edges = &store->edges;
	const nv_page_info *info;
	bool young;

	pthread_mutex_lock(&edges->allocator);
	info = &edges->info[nv_word_page(word)];
	young = info->epoch == atomic_load(&store->epoch) &&
			(info->young & bit(nv_word_unit(word))) != 0;
	pthread_mutex_unlock(&edges->allocator);
	return young;
}

bool
nv_store_page_open(nv_store *store, uint64_t page)
{
	bool open;

	pthread_mutex_lock(&store->edges.allocator);
	open = page < store->edges.pages &&
		   store->edges.info[page].state == NV_PAGE_OWNED;
	pthread_mutex_unlock(&store->edges.allocator);
	return open;
}

void
nv_store_page_lists(nv_store *store, uint64_t page, const uint8_t *bytes,
					nv_page_lists *lists)
{
	uint32_t vertices = atomic_load(&store->vertices);
	uint64_t start = 0;

	pthread_mutex_lock(&store->edges.allocator);
	if (page < store->edges.pages)
		start = store->edges.info[page].start;
	pthread_mutex_unlock(&store->edges.allocator);
	lists->n = lists->units = 0;
	for (uint32_t unit = 0; unit < NV_PAGE_UNITS; unit++)
	{
		uint32_t id;
		uint64_t word;

		if (!(start & bit(unit)))
			continue;
		memcpy(&id, bytes + (size_t) unit * NV_UNIT, sizeof(id));
		word = id < vertices ? nv_store_edge_word(store, id) : 0;
		if (word == 0 || nv_word_page(word) != page ||
			nv_word_unit(word) != unit)
			continue;
		lists->vertex[lists->n] = id;
		lists->word[lists->n++] = word;
		lists->units += nv_slot_measure(bytes, unit, store->params.max_degree);
	}
}

/* --- An opened store --- */

/*
 * The map tells where slots begin, not where they end.  Until the page itself
 * is looked at, each is taken to be as long as it can be.
 */
static bool
count_word(nv_edges *edges, uint64_t word)
{
	uint64_t page = nv_word_page(word), unit = bit(nv_word_unit(word));

	if (word == 0)
		return true;
	if (page >= edges->pages || nv_word_tag(word) == 0 ||
		(edges->info[page].start & unit))
		return false;
	edges->info[page].start |= unit;
	edges->live_slots++;
	return true;
}

static void
guess_lengths(nv_page_info *info, uint32_t longest)
{
	info->used = 0;
	for (uint32_t unit = 0; unit < NV_PAGE_UNITS; unit++)
		if (info->start & bit(unit))
			info->used |= bits(unit, NV_MIN(longest, NV_PAGE_UNITS - unit));
	info->guessed = info->start != 0;
}

nv_status
nv_edges_recount(nv_store *store, uint64_t pages, nv_error *err)
{
	nv_edges *edges = &store->edges;
	uint32_t vertices = atomic_load(&store->vertices);
	uint32_t longest = nv_slot_units(store->params.max_degree);
	nv_status status = NV_OK;

	edges->pages = pages;
	edges->free_count = edges->live_slots = edges->used_units = 0;
	edges->hand = 0;
	if (pages > edges->capacity)
		status = grow_tables(edges, pages, err);
	if (status != NV_OK)
		return status;
	if (edges->capacity > 0)
		memset(edges->info, 0, edges->capacity * sizeof(*edges->info));
	for (uint32_t v = 0; v < vertices; v++)
	{
		uint64_t word = nv_store_edge_word(store, v);

		if (!count_word(edges, word))
			return nv_fail(err, NV_ECORRUPT, 0,
						   "edge word %#llx of vertex %u is out of bounds",
						   (unsigned long long) word, v);
	}
	/* The lowest pages are to be used first. */
	for (uint64_t p = pages; p-- > 0;)
	{
		guess_lengths(&edges->info[p], longest);
		edges->used_units += NV_PAGE_UNITS - free_units(&edges->info[p]);
		edges->info[p].state = NV_PAGE_WRITTEN;
		free_if_empty(edges, p);
	}
	return NV_OK;
}

/* A slot that cannot be measured is damaged: nobody reuses its units. */
static void
measure(nv_page_info *info, const uint8_t *bytes, uint32_t max_degree)
{
	uint64_t used = 0;

	for (uint32_t unit = 0; unit < NV_PAGE_UNITS; unit++)
		if (info->start & bit(unit))
		{
			uint32_t guess = slot_length(info, unit);
			uint32_t units = nv_slot_measure(bytes, unit, max_degree);

			used |= bits(unit, units > 0 && units < guess ? units : guess);
		}
	info->used = used;
	info->guessed = false;
}

void
nv_edges_measure(nv_store *store, uint64_t page, const uint8_t *bytes)
{
	nv_edges *edges = &store->edges;
	nv_page_info *info;

	pthread_mutex_lock(&edges->allocator);
	info = &edges->info[page];
	if (info->guessed)
	{
		edges->used_units -= NV_PAGE_UNITS - free_units(info);
		measure(info, bytes, store->params.max_degree);
		edges->used_units += NV_PAGE_UNITS - free_units(info);
	}
	pthread_mutex_unlock(&edges->allocator);
}
