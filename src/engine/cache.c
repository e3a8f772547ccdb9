/*
 * cache.c
 *		NAVIS-Cache.
 *
 * A page belongs to the partition its key hashes to.  A partition has a latch,
 * a fixed number of page frames, a chained hash table over them, and four
 * lists: the window (most recently used first), the frozen region (latest
 * promoted first), spare pages and the free frames.  Everything below a
 * partition is guarded by its latch; latches are held for one copy of 4 KiB at
 * most (longer only in nv_cache_forget) and never two at a time.
 *
 * Worth is kept as a logarithm, in 1/256 of a half-life: with s lookups' worth
 * at the time t it is t / half-life + log2(s), which need not be touched while
 * time goes on and compares as s does.  Time is counted in lookups of the
 * partition.  Evicting looks at the next SAMPLE frames of the frozen region
 * behind a hand that goes round, and takes the one that is worth least.
 *
 * Frames that no edge page takes hold spare pages: pages of vectors, least
 * recently used first to go, and before any edge page.  Of a page whose vectors
 * are being added one by one only the sectors that were written may be there.
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
 * Source: navis-system.txt, "NAVIS-Cache"; design, section 4; cache.h.
 */
#include "cache.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "store.h"
#include "util.h"

#define NONE UINT32_MAX
#define MAX_PARTITIONS 64
#define MIN_PAGES_PER_PARTITION 256 /* where the number is chosen here */
#define MIN_STRIPES 64              /* a partition */
/* Where edge pages leave less than this part, spare pages are not worth it. */
#define SPARE_SHARE 8

/*
 * The window has room for the pages that a few insertions have in hand, which
 * ask for them again when they link.
 */
#define MIN_WINDOW 128 /* pages, of all partitions */
#define HALF_LIFE 4    /* lookups for each frame */
#define SAMPLE 8       /* frames looked at to evict one */
#define REMEMBERED 2   /* places for the worth of pages gone, for each frame */
#define WORTH_UNIT 256 /* a half-life */
#define WORTH_BEGIN (UINT64_C(1) << 20) /* so that no worth is below 0 */
#define GAIN_STEP 16                    /* of differences, in nv_cache.gain */
#define GAINS 176 /* from there on a lookup adds nothing any more */

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
	uint64_t worth;
	uint32_t file;
	uint32_t chain;      /* next frame of the same hash bucket */
	uint32_t prev, next; /* in the list of its region */
	uint32_t region;
	uint32_t hits[2]; /* in the window, by search and by insertion */
	uint32_t valid;   /* sectors of a spare page that are there, a bit each */
} frame;

/* The worth of a page that is not there any more: its low bits. */
typedef struct memory
{
	uint32_t tag, worth; /* tag 0: none */
} memory;

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
	memory *gone;      /* REMEMBERED for each frame */
	uint32_t hand;     /* frame last looked at to evict one */
	uint64_t now;      /* time in half-lives, as worth is */
	uint64_t fraction; /* of it, less than half_life */
	uint8_t *pages;
	nv_cache_stats stats;        /* counters only */
	_Atomic uint32_t edge_pages; /* in the window or frozen */
} partition;

struct nv_cache
{
	nv_cache_policy policy;
	uint32_t n_partitions;
	uint32_t n_frames;   /* a partition */
	uint32_t max_frozen; /* a partition */
	uint32_t n_stripes;  /* a partition */
	uint64_t half_life;  /* lookups of a partition, in WORTH_UNIT */
	/* what search and insertion need to promote, or how little they count */
	uint32_t threshold[2], lightness[2];
	uint16_t gain[GAINS]; /* log2(1 + 2^-x), x in steps of GAIN_STEP */
	uint64_t bookkeeping; /* bytes */
	uint8_t *pages;       /* of all partitions, one mapping */
	partition *partitions;
};

/* A page's place: partition, hash bucket and stripe. */
typedef struct place
{
	partition *part;
	uint32_t bucket, stripe, gone, tag;
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
	p.gone = reduce((uint32_t) (more >> 32), cache->n_frames * REMEMBERED);
	p.tag = (uint32_t) hash | 1;
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

/* --- Worth --- */

/* A lookup that counts goes by. */
static void
pass_time(const nv_cache *cache, partition *part)
{
	for (part->fraction += WORTH_UNIT; part->fraction >= cache->half_life;
		 part->fraction -= cache->half_life)
		part->now++;
}

/* The worth of one lookup. */
static inline uint64_t
worth_of_one(const nv_cache *cache, const partition *part, nv_cache_user user)
{
	return part->now - cache->lightness[user];
}

/* Logarithms of two numbers to that of their sum. */
static uint64_t
sum_of(const nv_cache *cache, uint64_t a, uint64_t b)
{
	uint64_t high = NV_MAX(a, b), step = (high - NV_MIN(a, b)) / GAIN_STEP;

	return high + (step < GAINS ? cache->gain[step] : 0);
}

/* Of a page that is not there; false: not known. */
static bool
recall(const place *p, uint64_t *worth)
{
	const memory *m = &p->part->gone[p->gone];

	if (m->tag != p->tag)
		return false;
	/* It differs from now by much less than 2^31 either way. */
	*worth =
		p->part->now +
		(uint64_t) (int64_t) (int32_t) (m->worth - (uint32_t) p->part->now);
	return true;
}

static void
remember(const place *p, uint64_t worth)
{
	p->part->gone[p->gone] = (memory){p->tag, (uint32_t) worth};
}

/* A lookup that did not find the page. */
static void
count_miss(const nv_cache *cache, const place *p, nv_cache_user user)
{
	uint64_t worth, one;

	if (cache->policy != NV_CACHE_WORTH || user == NV_CACHE_PASSING)
		return;
	pass_time(cache, p->part);
	one = worth_of_one(cache, p->part, user);
	remember(p, recall(p, &worth) ? sum_of(cache, worth, one) : one);
}

/* --- Policy --- */

static void
evict(const nv_cache *cache, partition *part, uint32_t i)
{
	frame *f = &part->frames[i];

	if (cache->policy == NV_CACHE_WORTH && f->region != SPARE)
	{
		place p = find_place(cache, f->file, f->page);

		remember(&p, f->worth);
	}
	release_frame(cache, part, i);
	part->stats.evictions++;
}

static bool
has_free_frame(const nv_cache *cache, const partition *part)
{
	return part->lists[FREE].count > 0 || part->unused < cache->n_frames ||
		   part->lists[SPARE].count > 0;
}

/* Of the next few frozen pages; there is one at least. */
static uint32_t
least_worth(const nv_cache *cache, partition *part)
{
	uint32_t least = NONE, left = NV_MIN(part->lists[FROZEN].count, SAMPLE);

	while (left > 0)
	{
		const frame *f;

		part->hand = part->hand + 1 < cache->n_frames ? part->hand + 1 : 0;
		f = &part->frames[part->hand];
		if (f->region != FROZEN)
			continue;
		if (least == NONE || f->worth < part->frames[least].worth)
			least = part->hand;
		left--;
	}
	return least;
}

/* The page that goes when there is neither a free frame nor a spare page. */
static uint32_t
choose_victim(const nv_cache *cache, partition *part)
{
	/* Only with this policy the frozen region may have all frames. */
	if (cache->policy == NV_CACHE_WORTH && part->lists[FROZEN].count > 0)
		return least_worth(cache, part);
	return part->lists[WINDOW].tail;
}

/* A free frame that is in no list. */
static uint32_t
take_frame(const nv_cache *cache, partition *part)
{
	uint32_t i;

	if (part->lists[FREE].count == 0 && part->unused < cache->n_frames)
		return part->unused++;
	if (part->lists[FREE].count == 0)
		evict(cache, part,
			  part->lists[SPARE].count > 0 ? part->lists[SPARE].tail
										   : choose_victim(cache, part));
	i = part->lists[FREE].head;
	list_remove(part, i);
	return i;
}

/* Moves a page of the window to the frozen region. */
static void
promote(const nv_cache *cache, partition *part, uint32_t i)
{
	if (cache->policy == NV_CACHE_REFERENCE &&
		part->lists[FROZEN].count >= cache->max_frozen)
		evict(cache, part, part->lists[FROZEN].tail);
	list_remove(part, i);
	list_push(part, i, FROZEN);
	part->stats.promotions++;
}

/*
 * A page is about to enter the window: where it is full, its oldest one goes on
 * to the frozen region or out.
 */
static void
make_way(const nv_cache *cache, partition *part)
{
	uint32_t oldest = part->lists[WINDOW].tail, least;

	if (part->lists[WINDOW].count < cache->n_frames - cache->max_frozen)
		return;
	if (has_free_frame(cache, part))
	{
		if (cache->max_frozen > 0)
			promote(cache, part, oldest);
		return;
	}
	if (part->lists[FROZEN].count == 0)
		return;
	least = least_worth(cache, part);
	if (part->frames[oldest].worth < part->frames[least].worth)
		evict(cache, part, oldest);
	else
	{
		evict(cache, part, least);
		promote(cache, part, oldest);
	}
}

/* A hit in the window; true: it promotes the page. */
static bool
count_hit(const nv_cache *cache, frame *f, nv_cache_user user)
{
	uint32_t by = user == NV_CACHE_SEARCH ? NV_CACHE_SEARCH : NV_CACHE_INSERT;

	if (f->hits[by] < UINT32_MAX)
		f->hits[by]++;
	return cache->policy == NV_CACHE_REFERENCE && cache->max_frozen > 0 &&
		   f->hits[by] >= cache->threshold[by];
}

/* The replacement policy's side of a hit. */
static void
touch(const nv_cache *cache, partition *part, uint32_t i, nv_cache_user user)
{
	frame *f = &part->frames[i];

	if (cache->policy == NV_CACHE_WORTH)
	{
		if (user == NV_CACHE_PASSING)
			return;
		pass_time(cache, part);
		f->worth = sum_of(cache, f->worth, worth_of_one(cache, part, user));
	}
	if (f->region == FROZEN)
		return;
	if (count_hit(cache, f, user))
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
	{
		count_miss(cache, &p, user);
		*ticket = p.part->writes[p.stripe];
	}
	pthread_mutex_unlock(&p.part->latch);
	return i != NONE;
}

/* A frame for a page that is not there; its bytes are not set. */
static uint32_t
add_frame(const nv_cache *cache, const place *p, uint32_t file, uint64_t page,
		  region to)
{
	partition *part = p->part;
	uint32_t i;
	frame *f;

	if (cache->policy == NV_CACHE_WORTH && to == WINDOW)
		make_way(cache, part);
	i = take_frame(cache, part);
	f = &part->frames[i];
	memset(f, 0, sizeof(*f));
	if (cache->policy == NV_CACHE_WORTH && !recall(p, &f->worth))
		f->worth = worth_of_one(cache, part, NV_CACHE_INSERT);
	f->file = file;
	f->page = page;
	f->chain = part->buckets[p->bucket];
	part->buckets[p->bucket] = i;
	list_push(part, i, to);
	if (to != SPARE)
		atomic_fetch_add(&part->edge_pages, 1);
	part->stats.fills++;
	return i;
}

/* Enters an edge page that is not there.  Called with the latch held. */
static void
enter(const nv_cache *cache, const place *p, uint32_t file, uint64_t page,
	  const uint8_t *bytes)
{
	uint32_t i = add_frame(cache, p, file, page, WINDOW);

	memcpy(bytes_of(p->part, i), bytes, NV_PAGE);
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
		enter(cache, &p, file, page, bytes);
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
	else if (cache->policy == NV_CACHE_WORTH && has_free_frame(cache, p.part))
		enter(cache, &p, file, page, bytes);
	pthread_mutex_unlock(&p.part->latch);
}

/* --- Spare pages --- */

#define ALL_SECTORS ((1u << NV_PAGE / NV_SECTOR) - 1)

/* The sectors that len bytes from `at` on lie in. */
static inline uint32_t
sectors(uint32_t at, uint32_t len)
{
	uint32_t first = at / NV_SECTOR, end = (at + len - 1) / NV_SECTOR + 1;

	return (1u << end) - (1u << first);
}

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
	uint32_t i, wanted = sectors(at, len);

	nv_assert(cache->n_frames > 0 && at + len <= NV_PAGE);
	pthread_mutex_lock(&p.part->latch);
	p.part->stats.spare_lookups++;
	i = find_frame(&p, file, page);
	if (i != NONE && (p.part->frames[i].valid & wanted) != wanted)
		i = NONE;
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

/* Bytes that the file has from `at` on.  The latch is held. */
static void
put_spare(const nv_cache *cache, const place *p, uint32_t file, uint64_t page,
		  const uint8_t *bytes, uint32_t at, uint32_t len)
{
	partition *part = p->part;
	uint32_t i = find_frame(p, file, page);

	if (i == NONE && has_free_frame(cache, part))
		i = add_frame(cache, p, file, page, SPARE);
	if (i == NONE)
		return;
	memcpy(bytes_of(part, i) + at, bytes, len);
	part->frames[i].valid |= sectors(at, len);
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
	else
		put_spare(cache, &p, file, page, bytes, 0, NV_PAGE);
	pthread_mutex_unlock(&part->latch);
}

void
nv_cache_written_spare(nv_cache *cache, uint32_t file, uint64_t page,
					   uint32_t at, uint32_t len, const uint8_t *bytes)
{
	bool room = nv_cache_has_spare(cache, file, page);
	place p;

	if (cache->n_frames == 0)
		return;
	nv_assert(at % NV_SECTOR == 0 && len % NV_SECTOR == 0 && at < NV_PAGE &&
			  len > 0 && len <= NV_PAGE - at);
	p = find_place(cache, file, page);
	pthread_mutex_lock(&p.part->latch);
	p.part->writes[p.stripe]++;
	if (room || find_frame(&p, file, page) != NONE)
		put_spare(cache, &p, file, page, bytes, at, len);
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
		   partitions * (array_bytes(frames * REMEMBERED, sizeof(memory)) +
						 array_bytes(frames, sizeof(frame)) +
						 array_bytes(frames, sizeof(uint32_t)) +
						 array_bytes(frames + MIN_STRIPES, sizeof(uint64_t)));
}

/* Frames a partition that fit, pages and bookkeeping, into bytes; maybe 0. */
static uint32_t
frames_that_fit(uint64_t bytes, uint32_t partitions)
{
	const uint64_t each = NV_PAGE + sizeof(frame) + sizeof(uint32_t) +
						  sizeof(uint64_t) + REMEMBERED * sizeof(memory);
	uint64_t frames = bytes / partitions / each;

	frames = NV_MIN(frames, UINT32_MAX / 2 / REMEMBERED);
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
frozen_share(const nv_cache_params *params, uint32_t partitions,
			 uint32_t frames)
{
	double window = round(params->window * frames);

	if (params->policy == NV_CACHE_LRU || frames == 0)
		return 0;
	if (params->policy == NV_CACHE_WORTH)
		window = NV_MAX(window, MIN_WINDOW / partitions);
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
	if (params->policy >= NV_CACHE_POLICIES)
		return nv_fail(err, NV_EINVAL, 0, "no cache policy has number %u",
					   (unsigned) params->policy);
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
	part->gone =
		nv_alloc_array((size_t) cache->n_frames * REMEMBERED, sizeof(memory));
	part->now = WORTH_BEGIN;
	if (part->frames == NULL || part->buckets == NULL || part->writes == NULL ||
		part->gone == NULL)
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

static void
init_policy(nv_cache *c, const nv_cache_params *params)
{
	c->policy = params->policy;
	c->max_frozen = frozen_share(params, c->n_partitions, c->n_frames);
	c->half_life = (uint64_t) c->n_frames * HALF_LIFE;
	c->threshold[NV_CACHE_SEARCH] = params->promote_search;
	c->threshold[NV_CACHE_INSERT] = params->promote;
	for (int u = 0; u < 2; u++)
		c->lightness[u] =
			(uint32_t) round(WORTH_UNIT * log2((double) c->threshold[u]));
	for (uint32_t i = 0; i < GAINS; i++)
	{
		double x = (double) i * GAIN_STEP / WORTH_UNIT;

		c->gain[i] = (uint16_t) round(WORTH_UNIT * log2(1 + exp2(-x)));
	}
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
	c->n_stripes = c->n_frames + MIN_STRIPES;
	init_policy(c, params);
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
		free(part->gone);
	}
	if (cache->pages != NULL)
		munmap(cache->pages,
			   (size_t) cache->n_frames * NV_PAGE * cache->n_partitions);
	free(cache->partitions);
	free(cache);
}
