/*
 * cache.c
 *		NAVIS-Cache.
 *
 * A page belongs to the partition its key hashes to.  A partition has a latch,
 * a fixed number of page frames, a chained hash table over them, and four
 * lists: the window (most recently used first), the frozen region (latest
 * promoted first) and the free frames.  Everything below a partition is
 * guarded by its latch; latches are held for one copy of 4 KiB at most (longer
 * only in nv_cache_forget) and never two at a time.
 *
 * Frames that no edge page takes hold spare pages: pages of vectors, least
 * recently used first to go, and before any edge page.
 *
 * As long as the frozen region is not full its share serves the window, so
 * that a young cache uses all its memory; from then on the window has its
 * configured share.
 *
 * Tickets: each partition counts the writes to its pages in many stripes; a
 * ticket is the count of the page's stripe, and a fill with another count than
 * the present one is dropped.  Two pages of one stripe can only cause a fill
 * too many to be dropped, never a stale one to be taken.
 *
 * Source: navis-system.txt, "NAVIS-Cache"; design, section 4.
 */
#include "cache.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "util.h"

#define NONE UINT32_MAX
#define MAX_PARTITIONS 64
#define MIN_PAGES_PER_PARTITION 256 /* where the number is chosen here */
#define MIN_STRIPES 64              /* a partition */
/* Where edge pages leave less than this part, spare pages are not worth it. */
#define SPARE_SHARE 8

typedef enum region
{
	FREE,
	WINDOW,
	FROZEN,
	SPARE, /* not of an edge file: as long as no edge page wants the frame */
	REGIONS
} region;

/* What is known about a frame; frame i holds the bytes at pages + i * 4 KiB. */
typedef struct frame
{
	uint64_t page;
	uint32_t file;
	uint32_t chain;      /* next frame of the same hash bucket */
	uint32_t prev, next; /* in the list of its region */
	uint32_t region;
	uint32_t hits[NV_CACHE_USERS]; /* in the window, by nv_cache_user */
} frame;

typedef struct list
{
	uint32_t head, tail, count;
} list;

typedef struct partition
{
	_Alignas(64) pthread_mutex_t latch;
	list lists[REGIONS];
	uint32_t unused; /* frames from here on were never used */
	frame *frames;
	uint32_t *buckets; /* first frame of each chain; as many as frames */
	uint64_t *writes;  /* stripes */
	uint8_t *pages;
	nv_cache_stats stats;        /* counters only */
	_Atomic uint32_t edge_pages; /* in the window or frozen */
} partition;

struct nv_cache
{
	uint32_t n_partitions;
	uint32_t n_frames;   /* a partition */
	uint32_t max_frozen; /* a partition */
	uint32_t n_stripes;  /* a partition */
	uint32_t threshold[NV_CACHE_USERS];
	uint64_t bookkeeping; /* bytes */
	uint8_t *pages;       /* of all partitions, one mapping */
	partition *partitions;
};

/* A page's place: partition, hash bucket and stripe. */
typedef struct place
{
	partition *part;
	uint32_t bucket, stripe;
} place;

/* Uniform in 0 .. n - 1 from 32 random bits. */
static inline uint32_t
reduce(uint32_t bits, uint32_t n)
{
	return (uint32_t) (((uint64_t) bits * n) >> 32);
}

static place
find_place(const nv_cache *cache, uint32_t file, uint64_t page)
{
	uint64_t hash = nv_random_seed(page ^ nv_random_seed(file));
	uint64_t more = nv_random_seed(hash);
	place p;

	p.part = &cache->partitions[reduce((uint32_t) more, cache->n_partitions)];
	p.bucket = reduce((uint32_t) hash, cache->n_frames);
	p.stripe = reduce((uint32_t) (hash >> 32), cache->n_stripes);
	return p;
}

static void
list_remove(partition *part, uint32_t i)
{
	frame *f = &part->frames[i];
	list *l = &part->lists[f->region];

	if (f->prev != NONE)
		part->frames[f->prev].next = f->next;
	else
		l->head = f->next;
	if (f->next != NONE)
		part->frames[f->next].prev = f->prev;
	else
		l->tail = f->prev;
	l->count--;
}

static void
list_push(partition *part, uint32_t i, region to)
{
	frame *f = &part->frames[i];
	list *l = &part->lists[to];

	f->region = to;
	f->prev = NONE;
	f->next = l->head;
	if (l->head != NONE)
		part->frames[l->head].prev = i;
	else
		l->tail = i;
	l->head = i;
	l->count++;
}

static inline uint8_t *
bytes_of(const partition *part, uint32_t i)
{
	return part->pages + (size_t) i * NV_PAGE;
}

static uint32_t
find_frame(const place *p, uint32_t file, uint64_t page)
{
	uint32_t i = p->part->buckets[p->bucket];

	while (i != NONE &&
		   (p->part->frames[i].page != page || p->part->frames[i].file != file))
		i = p->part->frames[i].chain;
	return i;
}

/* Takes frame i out of its chain and puts it on the free list. */
static void
release_frame(const nv_cache *cache, partition *part, uint32_t i)
{
	frame *f = &part->frames[i];
	place p = find_place(cache, f->file, f->page);
	uint32_t *link = &part->buckets[p.bucket];

	nv_assert(p.part == part);
	while (*link != i)
	{
		nv_assert(*link != NONE);
		link = &part->frames[*link].chain;
	}
	*link = f->chain;
	if (f->region != SPARE)
		atomic_fetch_sub(&part->edge_pages, 1);
	list_remove(part, i);
	list_push(part, i, FREE);
}

/*
 * A free frame that is in no list; evicts a spare page, or else one of the
 * window, if need be.
 */
static uint32_t
take_frame(const nv_cache *cache, partition *part)
{
	uint32_t i;

	if (part->lists[FREE].count == 0 && part->unused < cache->n_frames)
		return part->unused++;
	if (part->lists[FREE].count == 0)
	{
		/* The frozen region never has all frames. */
		region from = part->lists[SPARE].count > 0 ? SPARE : WINDOW;

		release_frame(cache, part, part->lists[from].tail);
		part->stats.evictions++;
	}
	i = part->lists[FREE].head;
	list_remove(part, i);
	return i;
}

/* Moves a page of the window to the frozen region. */
static void
promote(const nv_cache *cache, partition *part, uint32_t i)
{
	if (part->lists[FROZEN].count >= cache->max_frozen)
	{
		release_frame(cache, part, part->lists[FROZEN].tail);
		part->stats.evictions++;
	}
	list_remove(part, i);
	list_push(part, i, FROZEN);
	part->stats.promotions++;
}

/* The replacement policy's side of a hit. */
static void
touch(const nv_cache *cache, partition *part, uint32_t i, nv_cache_user user)
{
	frame *f = &part->frames[i];

	if (f->region == FROZEN)
		return;
	if (f->hits[user] < UINT32_MAX)
		f->hits[user]++;
	if (cache->max_frozen > 0 && f->hits[user] >= cache->threshold[user])
		promote(cache, part, i);
	else
	{
		list_remove(part, i);
		list_push(part, i, WINDOW);
	}
}

bool
nv_cache_get(nv_cache *cache, uint32_t file, uint64_t page, nv_cache_user user,
			 uint8_t *out, uint64_t *ticket)
{
	place p;
	uint32_t i;

	*ticket = 0;
	if (cache->n_frames == 0)
		return false;
	p = find_place(cache, file, page);
	pthread_mutex_lock(&p.part->latch);
	p.part->stats.lookups++;
	p.part->stats.user_lookups[user]++;
	i = find_frame(&p, file, page);
	if (i != NONE)
	{
		p.part->stats.hits++;
		p.part->stats.user_hits[user]++;
		memcpy(out, bytes_of(p.part, i), NV_PAGE);
		touch(cache, p.part, i, user);
	}
	else
		*ticket = p.part->writes[p.stripe];
	pthread_mutex_unlock(&p.part->latch);
	return i != NONE;
}

/* Enters a page that is not there.  Called with the latch held. */
static void
enter(const nv_cache *cache, const place *p, uint32_t file, uint64_t page,
	  const uint8_t *bytes, region to)
{
	partition *part = p->part;
	uint32_t i = take_frame(cache, part);
	frame *f = &part->frames[i];

	memset(f, 0, sizeof(*f));
	f->file = file;
	f->page = page;
	f->chain = part->buckets[p->bucket];
	part->buckets[p->bucket] = i;
	list_push(part, i, to);
	if (to != SPARE)
		atomic_fetch_add(&part->edge_pages, 1);
	memcpy(bytes_of(part, i), bytes, NV_PAGE);
	part->stats.fills++;
}

void
nv_cache_fill(nv_cache *cache, uint32_t file, uint64_t page, uint64_t ticket,
			  const uint8_t *bytes)
{
	place p;

	if (cache->n_frames == 0)
		return;
	p = find_place(cache, file, page);
	pthread_mutex_lock(&p.part->latch);
	if (p.part->writes[p.stripe] != ticket)
		p.part->stats.dropped_fills++;
	else if (find_frame(&p, file, page) == NONE)
		enter(cache, &p, file, page, bytes, WINDOW);
	/* Else somebody who missed it, too, was faster, with the same bytes. */
	pthread_mutex_unlock(&p.part->latch);
}

void
nv_cache_written(nv_cache *cache, uint32_t file, uint64_t page,
				 const uint8_t *bytes)
{
	place p;
	uint32_t i;

	if (cache->n_frames == 0)
		return;
	p = find_place(cache, file, page);
	pthread_mutex_lock(&p.part->latch);
	p.part->writes[p.stripe]++;
	i = find_frame(&p, file, page);
	if (i != NONE)
		memcpy(bytes_of(p.part, i), bytes, NV_PAGE);
	pthread_mutex_unlock(&p.part->latch);
}

/* --- Spare pages --- */

bool
nv_cache_has_spare(const nv_cache *cache, uint32_t file, uint64_t page)
{
	const partition *part;

	if (cache->n_frames == 0)
		return false;
	part = find_place(cache, file, page).part;
	return atomic_load_explicit(&part->edge_pages, memory_order_relaxed) <
		   cache->n_frames - cache->n_frames / SPARE_SHARE;
}

bool
nv_cache_get_spare(nv_cache *cache, uint32_t file, uint64_t page, uint32_t at,
				   uint32_t len, uint8_t *out, uint64_t *ticket)
{
	place p = find_place(cache, file, page);
	uint32_t i;

	nv_assert(cache->n_frames > 0 && at + len <= NV_PAGE);
	pthread_mutex_lock(&p.part->latch);
	p.part->stats.spare_lookups++;
	i = find_frame(&p, file, page);
	if (i != NONE)
	{
		p.part->stats.spare_hits++;
		memcpy(out, bytes_of(p.part, i) + at, len);
		list_remove(p.part, i);
		list_push(p.part, i, SPARE);
	}
	else
		*ticket = p.part->writes[p.stripe];
	pthread_mutex_unlock(&p.part->latch);
	return i != NONE;
}

void
nv_cache_fill_spare(nv_cache *cache, uint32_t file, uint64_t page,
					uint64_t ticket, const uint8_t *bytes)
{
	place p = find_place(cache, file, page);
	partition *part = p.part;

	pthread_mutex_lock(&part->latch);
	if (part->writes[p.stripe] != ticket)
		part->stats.dropped_fills++;
	else if (find_frame(&p, file, page) == NONE &&
			 (part->lists[FREE].count > 0 || part->unused < cache->n_frames ||
			  part->lists[SPARE].count > 0))
		enter(cache, &p, file, page, bytes, SPARE);
	pthread_mutex_unlock(&part->latch);
}

void
nv_cache_drop_spare(nv_cache *cache, uint32_t file, uint64_t page)
{
	place p;
	uint32_t i;

	if (cache->n_frames == 0)
		return;
	p = find_place(cache, file, page);
	pthread_mutex_lock(&p.part->latch);
	p.part->writes[p.stripe]++;
	i = find_frame(&p, file, page);
	if (i != NONE)
		release_frame(cache, p.part, i);
	pthread_mutex_unlock(&p.part->latch);
}

/* All tickets become stale: reads of the file may still be in flight. */
void
nv_cache_forget(nv_cache *cache, uint32_t file)
{
	if (cache->n_frames == 0)
		return;
	for (uint32_t n = 0; n < cache->n_partitions; n++)
	{
		partition *part = &cache->partitions[n];

		pthread_mutex_lock(&part->latch);
		for (uint32_t i = 0; i < part->unused; i++)
		{
			if (part->frames[i].region != FREE && part->frames[i].file == file)
				release_frame(cache, part, i);
		}
		for (uint32_t i = 0; i < cache->n_stripes; i++)
			part->writes[i]++;
		pthread_mutex_unlock(&part->latch);
	}
}

void
nv_cache_get_stats(nv_cache *cache, nv_cache_stats *stats)
{
	uint64_t used = 0;

	memset(stats, 0, sizeof(*stats));
	for (uint32_t n = 0; cache->n_frames > 0 && n < cache->n_partitions; n++)
	{
		partition *part = &cache->partitions[n];

		pthread_mutex_lock(&part->latch);
		stats->lookups += part->stats.lookups;
		stats->hits += part->stats.hits;
		for (int u = 0; u < NV_CACHE_USERS; u++)
		{
			stats->user_lookups[u] += part->stats.user_lookups[u];
			stats->user_hits[u] += part->stats.user_hits[u];
		}
		stats->fills += part->stats.fills;
		stats->promotions += part->stats.promotions;
		stats->evictions += part->stats.evictions;
		stats->dropped_fills += part->stats.dropped_fills;
		stats->pages += part->lists[WINDOW].count + part->lists[FROZEN].count;
		stats->spare_pages += part->lists[SPARE].count;
		stats->spare_lookups += part->stats.spare_lookups;
		stats->spare_hits += part->stats.spare_hits;
		stats->frozen_pages += part->lists[FROZEN].count;
		used += part->unused;
		pthread_mutex_unlock(&part->latch);
	}
	stats->capacity_pages = (uint64_t) cache->n_frames * cache->n_partitions;
	stats->bytes = cache->bookkeeping + used * NV_PAGE;
}

/* What nv_alloc takes for an array. */
static uint64_t
array_bytes(uint64_t count, size_t size)
{
	return nv_round_up(count * size, 64);
}

/* Bytes beside pages for that many frames a partition. */
static uint64_t
bookkeeping_bytes(uint32_t partitions, uint64_t frames)
{
	return array_bytes(1, sizeof(nv_cache)) +
		   array_bytes(partitions, sizeof(partition)) +
		   partitions * (array_bytes(frames, sizeof(frame)) +
						 array_bytes(frames, sizeof(uint32_t)) +
						 array_bytes(frames + MIN_STRIPES, sizeof(uint64_t)));
}

/* Frames a partition that fit, pages and bookkeeping, into bytes; maybe 0. */
static uint32_t
frames_that_fit(uint64_t bytes, uint32_t partitions)
{
	const uint64_t each =
		NV_PAGE + sizeof(frame) + sizeof(uint32_t) + sizeof(uint64_t);
	uint64_t frames = bytes / partitions / each;

	frames = NV_MIN(frames, UINT32_MAX / 2);
	while (frames > 0 && bookkeeping_bytes(partitions, frames) +
								 frames * partitions * NV_PAGE >
							 bytes)
		frames--;
	return (uint32_t) frames;
}

static uint32_t
choose_partitions(uint64_t bytes)
{
	uint32_t n = 1;

	while (n < MAX_PARTITIONS &&
		   bytes / NV_PAGE / (2 * n) >= MIN_PAGES_PER_PARTITION)
		n *= 2;
	return n;
}

/* Pages of the frozen region; the window keeps one at least. */
static uint32_t
frozen_share(const nv_cache_params *params, uint32_t frames)
{
	double window = round(params->window * frames);

	if (params->plain_lru || frames == 0)
		return 0;
	window = NV_MIN(NV_MAX(window, 1), frames);
	return frames - (uint32_t) window;
}

static nv_status
check_params(const nv_cache_params *params, nv_error *err)
{
	if (!(params->window > 0 && params->window <= 1))
		return nv_fail(err, NV_EINVAL, 0,
					   "cache window is %g, expected above 0 and at most 1",
					   params->window);
	if (params->promote == 0 || params->promote_search == 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "hits to promote are %u and %u, expected at least 1",
					   params->promote, params->promote_search);
	return NV_OK;
}

static bool
init_partition(const nv_cache *cache, partition *part, uint8_t *pages)
{
	part->pages = pages;
	for (int i = 0; i < REGIONS; i++)
		part->lists[i].head = part->lists[i].tail = NONE;
	part->frames = nv_alloc_array(cache->n_frames, sizeof(frame));
	part->buckets = nv_alloc_array(cache->n_frames, sizeof(uint32_t));
	part->writes = nv_alloc_array(cache->n_stripes, sizeof(uint64_t));
	if (part->frames == NULL || part->buckets == NULL || part->writes == NULL)
		return false;
	for (uint32_t i = 0; i < cache->n_frames; i++)
		part->buckets[i] = NONE;
	return true;
}

/* Frames get address space only: memory is taken as they are used first. */
static nv_status
init_partitions(nv_cache *cache, nv_error *err)
{
	size_t size = (size_t) cache->n_frames * NV_PAGE;
	size_t total = size * cache->n_partitions;
	void *pages;

	cache->partitions = nv_alloc_array(cache->n_partitions, sizeof(partition));
	if (cache->partitions == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for %u cache partitions",
					   cache->n_partitions);
	for (uint32_t n = 0; n < cache->n_partitions; n++)
		pthread_mutex_init(&cache->partitions[n].latch, NULL);
	pages = mmap(NULL, total, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return nv_fail(err, NV_ENOMEM, errno,
					   "could not map %zu bytes for cached pages", total);
	cache->pages = pages;
	for (uint32_t n = 0; n < cache->n_partitions; n++)
	{
		if (!init_partition(cache, &cache->partitions[n],
							cache->pages + n * size))
			return nv_fail(err, NV_ENOMEM, 0,
						   "no memory for the bookkeeping of %zu cached pages",
						   total / NV_PAGE);
	}
	return NV_OK;
}

nv_status
nv_cache_create(const nv_cache_params *params, nv_cache **cache, nv_error *err)
{
	nv_cache *c;
	nv_status status = check_params(params, err);

	*cache = NULL;
	if (status != NV_OK)
		return status;
	c = nv_alloc(sizeof(*c));
	if (c == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a cache");
	c->n_partitions = params->partitions != 0
						  ? params->partitions
						  : choose_partitions(params->bytes);
	c->n_frames = frames_that_fit(params->bytes, c->n_partitions);
	c->max_frozen = frozen_share(params, c->n_frames);
	c->n_stripes = c->n_frames + MIN_STRIPES;
	c->threshold[NV_CACHE_SEARCH] = params->promote_search;
	c->threshold[NV_CACHE_INSERT] = params->promote;
	if (c->n_frames > 0)
	{
		c->bookkeeping = bookkeeping_bytes(c->n_partitions, c->n_frames);
		status = init_partitions(c, err);
	}
	if (status != NV_OK)
	{
		nv_cache_free(c);
		return status;
	}
	*cache = c;
	return NV_OK;
}

void
nv_cache_free(nv_cache *cache)
{
	if (cache == NULL)
		return;
	for (uint32_t n = 0; cache->partitions != NULL && n < cache->n_partitions;
		 n++)
	{
		partition *part = &cache->partitions[n];

		pthread_mutex_destroy(&part->latch);
		free(part->frames);
		free(part->buckets);
		free(part->writes);
	}
	if (cache->pages != NULL)
		munmap(cache->pages,
			   (size_t) cache->n_frames * NV_PAGE * cache->n_partitions);
	free(cache->partitions);
	free(cache);
}
