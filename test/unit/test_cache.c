/*
 * test_cache.c
 *		NAVIS-Cache against a model of one partition; its rules one by one;
 *		and under threads that read, fill and write the same pages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <unistd.h>

#include "cache.h"
#include "sanitized.h"
#include "util.h"

#define FILES 2
#define PAGES 60 /* a file */
#define MAX_MODEL 64

static uint8_t page_buffer[NV_PAGE];

/* A page's bytes tell which version of which page they are. */
static const uint8_t *
bytes_of(uint32_t file, uint64_t page, uint64_t version)
{
	uint64_t words[NV_PAGE / 8];

	for (size_t i = 0; i < NV_LENGTH(words); i++)
		words[i] = version ^ (page << 40) ^ ((uint64_t) file << 60);
	memcpy(page_buffer, words, NV_PAGE);
	return page_buffer;
}

static nv_cache_params
params_for(uint64_t pages)
{
	nv_cache_params p = {.bytes = pages * 4300 + 4096,
						 .window = 0.10,
						 .promote = 4,
						 .promote_search = 1,
						 .partitions = 1};

	return p;
}

static nv_cache_params
reference_params(uint64_t pages)
{
	nv_cache_params p = params_for(pages);

	p.policy = NV_CACHE_REFERENCE;
	p.promote = NV_CACHE_REFERENCE_PROMOTE;
	p.promote_search = NV_CACHE_REFERENCE_PROMOTE_SEARCH;
	return p;
}

static nv_cache *
create(const nv_cache_params *params)
{
	nv_cache *cache;
	nv_error err;

	if (nv_cache_create(params, &cache, &err) != NV_OK)
		fail_msg("%s", err.detail);
	return cache;
}

static nv_cache_stats
stats_of(nv_cache *cache)
{
	nv_cache_stats stats;

	nv_cache_get_stats(cache, &stats);
	return stats;
}

static bool
get(nv_cache *cache, uint64_t page, nv_cache_user user)
{
	uint8_t out[NV_PAGE];
	uint64_t ticket;

	return nv_cache_get(cache, 1, page, user, out, &ticket);
}

/* A miss and the fill that follows it. */
static void
load(nv_cache *cache, uint64_t page)
{
	uint8_t out[NV_PAGE];
	uint64_t ticket;

	assert_false(nv_cache_get(cache, 1, page, NV_CACHE_INSERT, out, &ticket));
	nv_cache_fill(cache, 1, page, ticket, bytes_of(1, page, 0));
}

/* The model: a list of pages, in window order or in order of promotion. */
typedef struct model_page
{
	uint32_t file;
	uint64_t page, version;
	uint32_t hits[2];
} model_page;

typedef struct model_list
{
	model_page pages[MAX_MODEL]; /* most recent first */
	uint32_t n;
} model_list;

typedef struct model
{
	model_list window, frozen;
	uint32_t capacity, max_frozen, threshold[2];
	uint64_t evictions, promotions;
} model;

static int
model_find(const model_list *l, uint32_t file, uint64_t page)
{
	for (uint32_t i = 0; i < l->n; i++)
	{
		if (l->pages[i].file == file && l->pages[i].page == page)
			return (int) i;
	}
	return -1;
}

static model_page
model_remove(model_list *l, uint32_t at)
{
	model_page page = l->pages[at];

	l->n--;
	memmove(&l->pages[at], &l->pages[at + 1], (l->n - at) * sizeof(page));
	return page;
}

static void
model_push(model_list *l, model_page page)
{
	memmove(&l->pages[1], &l->pages[0], l->n * sizeof(page));
	l->pages[0] = page;
	l->n++;
}

/* Returns the version that must be found, or -1 for a miss. */
static int64_t
model_get(model *m, uint32_t file, uint64_t page, nv_cache_user user)
{
	int at = model_find(&m->frozen, file, page);
	model_page found;

	if (at >= 0)
		return (int64_t) m->frozen.pages[at].version;
	at = model_find(&m->window, file, page);
	if (at < 0)
		return -1;
	found = model_remove(&m->window, (uint32_t) at);
	found.hits[user]++;
	if (m->max_frozen > 0 && found.hits[user] >= m->threshold[user])
	{
		if (m->frozen.n == m->max_frozen)
		{
			m->frozen.n--;
			m->evictions++;
		}
		model_push(&m->frozen, found);
		m->promotions++;
	}
	else
		model_push(&m->window, found);
	return (int64_t) found.version;
}

static void
model_fill(model *m, uint32_t file, uint64_t page, uint64_t version)
{
	model_page fresh = {file, page, version, {0, 0}};

	if (model_find(&m->window, file, page) >= 0 ||
		model_find(&m->frozen, file, page) >= 0)
		return;
	if (m->window.n + m->frozen.n == m->capacity)
	{
		m->window.n--;
		m->evictions++;
	}
	model_push(&m->window, fresh);
}

static void
model_written(model *m, uint32_t file, uint64_t page, uint64_t version)
{
	int in_window = model_find(&m->window, file, page);
	int in_frozen = model_find(&m->frozen, file, page);

	if (in_window >= 0)
		m->window.pages[in_window].version = version;
	if (in_frozen >= 0)
		m->frozen.pages[in_frozen].version = version;
}

static void
model_forget(model_list *l, uint32_t file)
{
	for (uint32_t i = l->n; i > 0; i--)
	{
		if (l->pages[i - 1].file == file)
			model_remove(l, i - 1);
	}
}

static void
check_against_model(const model *m, nv_cache *cache)
{
	nv_cache_stats s = stats_of(cache);

	assert_int_equal(s.pages, m->window.n + m->frozen.n);
	assert_int_equal(s.frozen_pages, m->frozen.n);
	assert_int_equal(s.evictions, m->evictions);
	assert_int_equal(s.promotions, m->promotions);
}

/* A read: get, and after a miss a fill with what is on disk. */
static void
read_both(model *m, nv_cache *cache, uint32_t file, uint64_t page,
		  nv_cache_user user, uint64_t version)
{
	uint8_t out[NV_PAGE];
	uint64_t ticket;
	int64_t expected = model_get(m, file, page, user);

	assert_int_equal(nv_cache_get(cache, file, page, user, out, &ticket),
					 expected >= 0);
	if (expected >= 0)
	{
		assert_int_equal(expected, version);
		assert_memory_equal(out, bytes_of(file, page, version), NV_PAGE);
		return;
	}
	nv_cache_fill(cache, file, page, ticket, bytes_of(file, page, version));
	model_fill(m, file, page, version);
}

static void
run_against_model(nv_cache_params p, uint64_t seed_value, uint32_t reads)
{
	static model m;
	uint64_t version[FILES][PAGES] = {{0}}, seed = nv_random_seed(seed_value);
	nv_cache *cache = create(&p);

	memset(&m, 0, sizeof(m));
	m.capacity = (uint32_t) stats_of(cache).capacity_pages;
	assert_in_range(m.capacity, 1, MAX_MODEL - 1);
	if (p.policy == NV_CACHE_REFERENCE)
	{
		uint32_t window = (uint32_t) (p.window * m.capacity + 0.5);

		m.max_frozen = m.capacity - (window == 0 ? 1 : window);
	}
	m.threshold[NV_CACHE_SEARCH] = p.promote_search;
	m.threshold[NV_CACHE_INSERT] = p.promote;
	for (uint32_t i = 0; i < reads; i++)
	{
		uint32_t file = (uint32_t) nv_random_below(&seed, FILES);
		/* Skewed: small numbers are asked for more often. */
		uint64_t page = nv_random_below(&seed, PAGES);
		uint64_t what = nv_random_below(&seed, 1000);

		page = nv_random_below(&seed, page + 1);
		if (what < 2)
		{
			nv_cache_forget(cache, file);
			model_forget(&m.window, file);
			model_forget(&m.frozen, file);
		}
		else if (what < 150)
		{
			version[file][page]++;
			nv_cache_written(cache, file, page,
							 bytes_of(file, page, version[file][page]));
			model_written(&m, file, page, version[file][page]);
		}
		else
			read_both(&m, cache, file, page,
					  what < 500 ? NV_CACHE_INSERT : NV_CACHE_SEARCH,
					  version[file][page]);
		check_against_model(&m, cache);
	}
	assert_true(m.evictions > 0);
	assert_true(m.max_frozen == 0 || m.promotions > 0);
	assert_int_equal(stats_of(cache).dropped_fills, 0);
	nv_cache_free(cache);
}

static void
test_model(void **state)
{
	nv_cache_params p = reference_params(20);

	run_against_model(p, 1, 20000);
	p.promote_search = 3;
	run_against_model(p, 2, 20000);
	p.window = 0.5;
	run_against_model(p, 3, 20000);
	p.window = 1; /* no frozen region */
	run_against_model(p, 4, 5000);
	p = reference_params(1);
	run_against_model(p, 5, 5000);
	p = reference_params(2);
	p.promote = 1; /* two hits in so small a window hardly happen */
	run_against_model(p, 6, 5000);
	p = reference_params(40);
	p.promote = p.promote_search = 1;
	run_against_model(p, 7, 20000);
	p.policy = NV_CACHE_LRU;
	run_against_model(p, 8, 20000);
}

static void
test_promotion(void **state)
{
	nv_cache_params p = reference_params(20);
	nv_cache *cache = create(&p);

	load(cache, 1);
	assert_true(get(cache, 1, NV_CACHE_INSERT));
	assert_int_equal(stats_of(cache).frozen_pages, 0);
	assert_true(get(cache, 1, NV_CACHE_INSERT));
	assert_int_equal(stats_of(cache).frozen_pages, 1);
	/* Search: sixteen, and the two counts do not add up. */
	load(cache, 2);
	for (int i = 1; i <= 15; i++)
		assert_true(get(cache, 2, NV_CACHE_SEARCH));
	assert_true(get(cache, 2, NV_CACHE_INSERT));
	assert_int_equal(stats_of(cache).frozen_pages, 1);
	assert_true(get(cache, 2, NV_CACHE_SEARCH));
	assert_int_equal(stats_of(cache).frozen_pages, 2);
	assert_int_equal(stats_of(cache).promotions, 2);
	nv_cache_free(cache);
}

/* A full frozen region evicts the page promoted earliest, hits or no hits. */
static void
test_earliest_promoted(void **state)
{
	nv_cache_params p = reference_params(20);
	nv_cache *cache;
	uint64_t frozen;

	p.promote = 1;
	cache = create(&p);
	frozen = stats_of(cache).capacity_pages - 2; /* window: 10 % of 20 */
	for (uint64_t page = 0; page < frozen; page++)
	{
		load(cache, page);
		assert_true(get(cache, page, NV_CACHE_INSERT));
	}
	assert_int_equal(stats_of(cache).frozen_pages, frozen);
	for (int i = 0; i < 100; i++)
		assert_true(get(cache, 0, NV_CACHE_INSERT));
	load(cache, 1000);
	assert_int_equal(stats_of(cache).evictions, 0);
	assert_true(get(cache, 1000, NV_CACHE_INSERT));
	assert_int_equal(stats_of(cache).evictions, 1);
	assert_int_equal(stats_of(cache).frozen_pages, frozen);
	assert_false(get(cache, 0, NV_CACHE_INSERT));
	for (uint64_t page = 1; page < frozen; page++)
		assert_true(get(cache, page, NV_CACHE_INSERT));
	/* Traffic that is not hit twice goes through the window only. */
	for (uint64_t page = 2000; page < 2100; page++)
		load(cache, page);
	assert_int_equal(stats_of(cache).frozen_pages, frozen);
	for (uint64_t page = 1; page < frozen; page++)
		assert_true(get(cache, page, NV_CACHE_INSERT));
	nv_cache_free(cache);
}

/* --- Worth --- */

/* How many of pages from .. from + n - 1 are there; says nothing to the policy.
 */
static uint64_t
count_there(nv_cache *cache, uint64_t from, uint64_t n)
{
	uint64_t there = 0;

	for (uint64_t page = from; page < from + n; page++)
		there += get(cache, page, NV_CACHE_PASSING);
	return there;
}

/* A lookup, and a fill if it missed; true: a hit. */
static bool
ask(nv_cache *cache, uint64_t page, nv_cache_user user)
{
	uint8_t out[NV_PAGE];
	uint64_t ticket;

	if (nv_cache_get(cache, 1, page, user, out, &ticket))
		return true;
	nv_cache_fill(cache, 1, page, ticket, bytes_of(1, page, 0));
	return false;
}

/*
 * 100 pages that are asked for again and again outlive ten times as many as
 * the cache has that are asked for once; with one list they do not.
 */
static void
test_scan(void **state)
{
	for (int lru = 0; lru < 2; lru++)
	{
		nv_cache_params p = params_for(400);
		nv_cache *cache;

		p.policy = lru ? NV_CACHE_LRU : NV_CACHE_WORTH;
		cache = create(&p);
		for (int turn = 0; turn < 20; turn++)
			for (uint64_t page = 0; page < 100; page++)
				ask(cache, page, NV_CACHE_SEARCH);
		for (uint64_t page = 1000; page < 5000; page++)
			ask(cache, page, NV_CACHE_SEARCH);
		assert_int_equal(count_there(cache, 0, 100), lru ? 0 : 100);
		nv_cache_free(cache);
	}
}

/* What nobody asks for any more goes, however often it was asked for. */
static void
test_old_worth(void **state)
{
	nv_cache_params p = params_for(400);
	nv_cache *cache = create(&p);

	for (int turn = 0; turn < 50; turn++)
		for (uint64_t page = 0; page < 300; page++)
			ask(cache, page, NV_CACHE_SEARCH);
	/* Some 60 lookups for each frame: fifteen half-lives. */
	for (int turn = 0; turn < 40; turn++)
		for (uint64_t page = 1000; page < 1600; page++)
			ask(cache, page, NV_CACHE_SEARCH);
	assert_int_equal(count_there(cache, 0, 300), 0);
	assert_true(count_there(cache, 1000, 600) >= 390);
	nv_cache_free(cache);
}

/*
 * Two sets that are in turn at hand, one asked for by `by`: how much of each is
 * left when a cache of 400 pages had 400 of each to choose from.
 */
static void
compete(nv_cache_user by, uint32_t times, uint64_t *first, uint64_t *second)
{
	nv_cache_params p = params_for(400);
	nv_cache *cache = create(&p);

	for (int turn = 0; turn < 30; turn++)
		for (uint64_t page = 0; page < 400; page++)
		{
			for (uint32_t i = 0; i < times; i++)
				ask(cache, page, by);
			ask(cache, 1000 + page, NV_CACHE_SEARCH);
		}
	*first = count_there(cache, 0, 400);
	*second = count_there(cache, 1000, 400);
	nv_cache_free(cache);
}

/* Four lookups by insertion are worth one by search, passing none. */
static void
test_users(void **state)
{
	uint64_t other, search;

	compete(NV_CACHE_SEARCH, 3, &other, &search);
	assert_true(other > 2 * search);
	compete(NV_CACHE_INSERT, 1, &other, &search);
	assert_true(search > 2 * other);
	compete(NV_CACHE_INSERT, 12, &other, &search);
	assert_true(other > 2 * search);
	compete(NV_CACHE_PASSING, 12, &other, &search);
	assert_true(search > 2 * other);
}

/* A page that comes again is worth what it was, and one that never was is not.
 */
static void
test_remembered(void **state)
{
	nv_cache_params p = params_for(400);
	nv_cache *cache = create(&p);
	uint64_t kept;

	/* Each of them alone goes before it is asked for again. */
	for (int turn = 0; turn < 20; turn++)
		for (uint64_t page = 0; page < 600; page++)
			ask(cache, page, NV_CACHE_SEARCH);
	kept = count_there(cache, 0, 600);
	assert_true(kept >= 390);
	/* In a cache without a memory they were all worth one lookup, as these. */
	for (uint64_t page = 1000; page < 2000; page++)
		ask(cache, page, NV_CACHE_SEARCH);
	assert_true(count_there(cache, 0, 600) >= 250);
	nv_cache_free(cache);
}

#define STREAM 120000
#define STREAM_PAGES 2000

typedef enum stream
{
	SKEWED,   /* small numbers more often */
	SHIFTING, /* the same, with other pages every now and then */
	UNIFORM,
	TWICE, /* each page twice in a row at random, as an insertion does */
	STREAMS
} stream;

static uint64_t
stream_page(stream kind, uint32_t at, uint64_t *seed)
{
	uint64_t page = nv_random_below(seed, STREAM_PAGES);

	if (kind == UNIFORM || kind == TWICE)
		return page;
	page = nv_random_below(seed, page + 1);
	page = nv_random_below(seed, page + 1);
	return kind == SKEWED ? page : (page + at / 20000 * 300) % STREAM_PAGES;
}

static double
hit_rate(stream kind, nv_cache_policy policy)
{
	nv_cache_params p = params_for(STREAM_PAGES / 4);
	uint64_t seed = nv_random_seed(17 + kind);
	nv_cache *cache;
	nv_cache_stats s;

	p.policy = policy;
	cache = create(&p);
	for (uint32_t i = 0; i < STREAM; i++)
	{
		uint64_t page = stream_page(kind, i, &seed);

		ask(cache, page, NV_CACHE_SEARCH);
		if (kind == TWICE)
			ask(cache, page, NV_CACHE_PASSING);
	}
	s = stats_of(cache);
	nv_cache_free(cache);
	return (double) s.hits / (double) s.lookups;
}

/* Nowhere worse than one list, and better where some pages are hotter. */
static void
test_against_lru(void **state)
{
	for (int kind = 0; kind < STREAMS; kind++)
	{
		double worth = hit_rate((stream) kind, NV_CACHE_WORTH);
		double lru = hit_rate((stream) kind, NV_CACHE_LRU);

		/* A hundredth: two runs with other seeds differ by half of that. */
		if (worth < lru - 0.01)
			fail_msg("stream %d: %.3f of the lookups hit, LRU %.3f", kind,
					 worth, lru);
		if (kind == SKEWED)
			assert_true(worth > lru + 0.03);
	}
}

/* Whatever happens, what is found is what was written last. */
static void
test_contents(void **state)
{
	uint64_t version[FILES][PAGES] = {{0}}, seed = nv_random_seed(9), ticket;
	nv_cache_params p = params_for(40);
	nv_cache *cache = create(&p);
	uint8_t out[NV_PAGE];
	nv_cache_stats s;

	for (uint32_t i = 0; i < 40000; i++)
	{
		uint32_t file = (uint32_t) nv_random_below(&seed, FILES);
		uint64_t page = nv_random_below(&seed, PAGES);
		uint64_t what = nv_random_below(&seed, 1000);
		nv_cache_user user =
			(nv_cache_user) nv_random_below(&seed, NV_CACHE_USERS);

		if (what < 2)
			nv_cache_forget(cache, file);
		else if (what < 150)
			nv_cache_written(cache, file, page,
							 bytes_of(file, page, ++version[file][page]));
		else if (nv_cache_get(cache, file, page, user, out, &ticket))
			assert_memory_equal(out, bytes_of(file, page, version[file][page]),
								NV_PAGE);
		else
			nv_cache_fill(cache, file, page, ticket,
						  bytes_of(file, page, version[file][page]));
		s = stats_of(cache);
		assert_true(s.pages <= s.capacity_pages && s.frozen_pages <= s.pages);
	}
	assert_true(s.hits > 0 && s.evictions > 0);
	nv_cache_free(cache);
}

static void
test_stale_fill(void **state)
{
	nv_cache_params p = params_for(20);
	nv_cache *cache;
	uint8_t out[NV_PAGE];
	uint64_t ticket, other;

	p.policy = NV_CACHE_REFERENCE;
	cache = create(&p);
	/* Written between the miss and the fill: the fill is old. */
	assert_false(nv_cache_get(cache, 1, 5, NV_CACHE_SEARCH, out, &ticket));
	nv_cache_written(cache, 1, 5, bytes_of(1, 5, 1));
	nv_cache_fill(cache, 1, 5, ticket, bytes_of(1, 5, 0));
	assert_int_equal(stats_of(cache).dropped_fills, 1);
	assert_false(nv_cache_get(cache, 1, 5, NV_CACHE_SEARCH, out, &ticket));
	/* With this policy a write inserts nothing; the new ticket is good. */
	nv_cache_fill(cache, 1, 5, ticket, bytes_of(1, 5, 1));
	assert_true(nv_cache_get(cache, 1, 5, NV_CACHE_SEARCH, out, &other));
	assert_memory_equal(out, bytes_of(1, 5, 1), NV_PAGE);
	/* Write-through: the copy is the new one at once. */
	nv_cache_written(cache, 1, 5, bytes_of(1, 5, 2));
	assert_true(nv_cache_get(cache, 1, 5, NV_CACHE_SEARCH, out, &other));
	assert_memory_equal(out, bytes_of(1, 5, 2), NV_PAGE);
	/* Two that missed: the second fill finds it there. */
	assert_false(nv_cache_get(cache, 1, 6, NV_CACHE_SEARCH, out, &ticket));
	assert_false(nv_cache_get(cache, 1, 6, NV_CACHE_SEARCH, out, &other));
	nv_cache_fill(cache, 1, 6, ticket, bytes_of(1, 6, 0));
	nv_cache_fill(cache, 1, 6, other, bytes_of(1, 6, 0));
	assert_int_equal(stats_of(cache).pages, 2);
	/* A read in flight when its file is forgotten brings nothing back. */
	assert_false(nv_cache_get(cache, 1, 7, NV_CACHE_SEARCH, out, &ticket));
	nv_cache_forget(cache, 1);
	nv_cache_fill(cache, 1, 7, ticket, bytes_of(1, 7, 0));
	assert_int_equal(stats_of(cache).pages, 0);
	nv_cache_free(cache);
}

/* A page that was written enters as long as no other one has to go. */
static void
test_written_enters(void **state)
{
	nv_cache_params p = params_for(20);
	nv_cache *cache = create(&p);
	uint8_t out[NV_PAGE];
	uint64_t capacity = stats_of(cache).capacity_pages, ticket;

	for (uint64_t page = 0; page < capacity; page++)
	{
		nv_cache_written(cache, 1, page, bytes_of(1, page, 3));
		assert_true(
			nv_cache_get(cache, 1, page, NV_CACHE_PASSING, out, &ticket));
		assert_memory_equal(out, bytes_of(1, page, 3), NV_PAGE);
	}
	nv_cache_written(cache, 1, capacity, bytes_of(1, capacity, 3));
	assert_false(
		nv_cache_get(cache, 1, capacity, NV_CACHE_PASSING, out, &ticket));
	assert_int_equal(stats_of(cache).pages, capacity);
	nv_cache_free(cache);
}

/* A few writes elsewhere must not drop most fills. */
static void
test_stripes(void **state)
{
	nv_cache_params p = params_for(1000);
	nv_cache *cache = create(&p);
	uint8_t out[NV_PAGE];
	uint64_t ticket;

	for (uint64_t page = 0; page < 500; page++)
	{
		assert_false(
			nv_cache_get(cache, 1, page, NV_CACHE_SEARCH, out, &ticket));
		nv_cache_written(cache, 1, page + 10000, bytes_of(1, 0, 0));
		nv_cache_fill(cache, 1, page, ticket, bytes_of(1, page, 0));
	}
	assert_true(stats_of(cache).dropped_fills < 10);
	nv_cache_free(cache);
}

static void
test_forget(void **state)
{
	nv_cache_params p = reference_params(100);
	nv_cache *cache;
	uint8_t out[NV_PAGE];
	uint64_t ticket;

	p.partitions = 4;
	cache = create(&p);
	for (uint32_t file = 1; file <= 3; file++)
	{
		for (uint64_t page = 0; page < 10; page++)
		{
			nv_cache_get(cache, file, page, NV_CACHE_INSERT, out, &ticket);
			nv_cache_fill(cache, file, page, ticket, bytes_of(file, page, 0));
			nv_cache_get(cache, file, page, NV_CACHE_INSERT, out, &ticket);
			if (page % 2 == 0)
				nv_cache_get(cache, file, page, NV_CACHE_INSERT, out, &ticket);
		}
	}
	assert_int_equal(stats_of(cache).pages, 30);
	assert_int_equal(stats_of(cache).frozen_pages, 15);
	nv_cache_forget(cache, 2);
	assert_int_equal(stats_of(cache).pages, 20);
	assert_int_equal(stats_of(cache).frozen_pages, 10);
	for (uint64_t page = 0; page < 10; page++)
	{
		assert_true(
			nv_cache_get(cache, 1, page, NV_CACHE_SEARCH, out, &ticket));
		assert_memory_equal(out, bytes_of(1, page, 0), NV_PAGE);
		assert_false(
			nv_cache_get(cache, 2, page, NV_CACHE_SEARCH, out, &ticket));
	}
	nv_cache_free(cache);
}

static void
test_off(void **state)
{
	static const uint64_t sizes[] = {0, 100, 4096};

	for (size_t i = 0; i < NV_LENGTH(sizes); i++)
	{
		nv_cache_params p = params_for(1);
		nv_cache *cache;

		p.bytes = sizes[i];
		cache = create(&p);
		load(cache, 1);
		nv_cache_written(cache, 1, 1, bytes_of(1, 1, 1));
		assert_false(get(cache, 1, NV_CACHE_SEARCH));
		nv_cache_forget(cache, 1);
		assert_int_equal(stats_of(cache).capacity_pages, 0);
		assert_int_equal(stats_of(cache).pages, 0);
		assert_int_equal(stats_of(cache).bytes, 0);
		nv_cache_free(cache);
	}
	nv_cache_free(NULL);
}

static void
test_bad_params(void **state)
{
	nv_cache_params p = params_for(10);
	nv_cache *cache;
	nv_error err;

	p.window = 0;
	assert_int_equal(nv_cache_create(&p, &cache, &err), NV_EINVAL);
	assert_null(cache);
	p.window = 1.5;
	assert_int_equal(nv_cache_create(&p, &cache, &err), NV_EINVAL);
	p = params_for(10);
	p.promote = 0;
	assert_int_equal(nv_cache_create(&p, &cache, NULL), NV_EINVAL);
	p = params_for(10);
	p.policy = NV_CACHE_POLICIES;
	assert_int_equal(nv_cache_create(&p, &cache, &err), NV_EINVAL);
	p = params_for(10);
	p.bytes = UINT64_C(1) << 60; /* no such memory */
	assert_int_equal(nv_cache_create(&p, &cache, &err), NV_ENOMEM);
	assert_null(cache);
}

/* Resident bytes of this process; sanitizers keep memory of their own. */
static uint64_t
resident(void)
{
#ifdef SANITIZED
	return 0;
#else
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long total, pages;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &total, &pages), 2);
	fclose(f);
	return (uint64_t) pages * (uint64_t) sysconf(_SC_PAGESIZE);
#endif
}

/* Pages and bookkeeping stay within the limit and use nearly all of it. */
static void
check_memory(uint64_t bytes, uint32_t partitions)
{
	nv_cache_params p = params_for(0);
	uint64_t before = resident();
	nv_cache *cache;
	nv_cache_stats s;

	p.bytes = bytes;
	p.partitions = partitions;
	cache = create(&p);
	s = stats_of(cache);
	assert_true(s.bytes <= bytes / 50 + 100000); /* nothing used yet */
	assert_true(s.capacity_pages * NV_PAGE <= bytes);
	assert_true(s.capacity_pages * NV_PAGE >= bytes / 100 * 97);
	for (uint64_t page = 0; page < 3 * s.capacity_pages; page++)
		load(cache, page);
	s = stats_of(cache);
	assert_int_equal(s.pages, s.capacity_pages);
	assert_true(s.bytes <= bytes);
	assert_true(s.bytes >= s.pages * NV_PAGE);
	/* Half a megabyte for what the process itself touches meanwhile. */
	assert_true(resident() <= before + bytes + 500000);
	nv_cache_free(cache);
}

static void
test_memory(void **state)
{
	check_memory(1 << 20, 1);
	check_memory(3000000, 3);
	check_memory(32 << 20, 0);
}

/*
 * Threads.  "Disk" holds a version for each page; a writer changes it and then
 * tells the cache, as the engine does; the lower bound of what a reader may
 * find is what was told before it asked.
 */
#define THREADS 4
#define SHARED_PAGES 64
#define ROUNDS 4000

typedef struct shared
{
	nv_cache *cache;
	pthread_mutex_t writer[SHARED_PAGES]; /* one writer a page at a time */
	atomic_uint_fast64_t disk[SHARED_PAGES];
	atomic_uint_fast64_t told[SHARED_PAGES];
	atomic_uint_fast32_t errors, next_thread;
} shared;

/* A page of the threads' test: all words are its version. */
static void
make_page(uint8_t *out, uint64_t version)
{
	for (size_t i = 0; i < NV_PAGE; i += sizeof(version))
		memcpy(out + i, &version, sizeof(version));
}

static bool
page_is_whole(const uint8_t *bytes, uint64_t *version)
{
	memcpy(version, bytes, sizeof(*version));
	return memcmp(bytes, bytes + 8, NV_PAGE - 8) == 0;
}

static void
read_page(shared *s, uint32_t page, nv_cache_user user)
{
	uint8_t bytes[NV_PAGE];
	uint64_t ticket, version, least = atomic_load(&s->told[page]);

	if (nv_cache_get(s->cache, 1, page, user, bytes, &ticket))
	{
		if (!page_is_whole(bytes, &version) || version < least)
			atomic_fetch_add(&s->errors, 1);
		return;
	}
	make_page(bytes, atomic_load(&s->disk[page]));
	nv_cache_fill(s->cache, 1, page, ticket, bytes);
}

static void
write_page(shared *s, uint32_t page)
{
	uint8_t bytes[NV_PAGE];
	uint64_t version;

	pthread_mutex_lock(&s->writer[page]);
	version = atomic_load(&s->disk[page]) + 1;
	make_page(bytes, version);
	atomic_store(&s->disk[page], version);
	nv_cache_written(s->cache, 1, page, bytes);
	atomic_store(&s->told[page], version);
	pthread_mutex_unlock(&s->writer[page]);
}

static void *
read_and_write(void *arg)
{
	shared *s = arg;
	uint64_t seed = nv_random_seed(atomic_fetch_add(&s->next_thread, 1) + 100);

	for (int i = 0; i < ROUNDS; i++)
	{
		uint32_t page = (uint32_t) nv_random_below(&seed, SHARED_PAGES);
		uint64_t what = nv_random_below(&seed, 1000);
		nv_cache_stats stats;

		if (what < 200)
			write_page(s, page);
		else if (what < 203)
			nv_cache_forget(s->cache, 1);
		else if (what < 206)
			nv_cache_get_stats(s->cache, &stats);
		else
			read_page(s, page,
					  what % 2 == 0 ? NV_CACHE_SEARCH : NV_CACHE_INSERT);
	}
	return NULL;
}

static void
run_threads(nv_cache_policy policy, uint32_t partitions)
{
	static shared s;
	nv_cache_params p = reference_params(48);
	pthread_t thread[THREADS];
	nv_cache_stats stats;

	memset(&s, 0, sizeof(s));
	p.partitions = partitions;
	p.policy = policy;
	s.cache = create(&p);
	for (int i = 0; i < SHARED_PAGES; i++)
		pthread_mutex_init(&s.writer[i], NULL);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, read_and_write, &s),
						 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(atomic_load(&s.errors), 0);
	stats = stats_of(s.cache);
	assert_true(stats.hits > 0 && stats.fills > 0);
	assert_true(policy != NV_CACHE_REFERENCE || stats.promotions > 0);
	assert_true(stats.pages <= stats.capacity_pages);
	/* At rest everything cached is what is on disk. */
	for (uint32_t page = 0; page < SHARED_PAGES; page++)
		read_page(&s, page, NV_CACHE_SEARCH);
	assert_int_equal(atomic_load(&s.errors), 0);
	for (int i = 0; i < SHARED_PAGES; i++)
		pthread_mutex_destroy(&s.writer[i]);
	nv_cache_free(s.cache);
}

static void
test_threads(void **state)
{
	run_threads(NV_CACHE_WORTH, 1);
	run_threads(NV_CACHE_WORTH, 4);
	run_threads(NV_CACHE_REFERENCE, 2);
	run_threads(NV_CACHE_LRU, 2);
}

/* --- Spare pages --- */

static void
test_spare(void **state)
{
	nv_cache_params params = {.bytes = 64 * 4500,
							  .window = 0.10,
							  .promote = 2,
							  .promote_search = 16,
							  .partitions = 1};
	static uint8_t in[NV_PAGE], out[NV_PAGE];
	nv_cache_stats stats;
	nv_cache *cache = NULL;
	uint64_t ticket, frames;
	uint32_t there = 0;

	assert_int_equal(nv_cache_create(&params, &cache, NULL), NV_OK);
	nv_cache_get_stats(cache, &stats);
	frames = stats.capacity_pages;
	assert_true(frames > 40);
	/* They take every frame, one more pushes the oldest out. */
	for (uint64_t p = 0; p <= frames; p++)
	{
		memset(in, (int) p, NV_PAGE);
		assert_true(nv_cache_has_spare(cache, 2, p));
		assert_false(nv_cache_get_spare(cache, 2, p, 0, 8, out, &ticket));
		nv_cache_fill_spare(cache, 2, p, ticket, in);
		assert_true(nv_cache_get_spare(cache, 2, p, 100, 50, out, &ticket));
		assert_true(out[0] == (uint8_t) p && out[49] == (uint8_t) p);
	}
	nv_cache_get_stats(cache, &stats);
	assert_int_equal(stats.spare_pages, frames);
	assert_int_equal(stats.pages, 0);
	assert_int_equal(stats.lookups, 0);
	assert_false(nv_cache_get_spare(cache, 2, 0, 0, 8, out, &ticket));
	/* A page that was read before it changed is not taken. */
	assert_true(nv_cache_get_spare(cache, 2, 5, 0, 8, out, &ticket));
	assert_false(nv_cache_get_spare(cache, 2, frames + 1, 0, 8, out, &ticket));
	memset(in, 0xab, NV_PAGE);
	nv_cache_written_spare(cache, 2, frames + 1, 1024, 512, in);
	memset(in, 0xcd, NV_PAGE);
	nv_cache_fill_spare(cache, 2, frames + 1, ticket, in);
	/* Of a page that was not there only what was written is. */
	assert_true(
		nv_cache_get_spare(cache, 2, frames + 1, 1100, 436, out, &ticket));
	assert_true(out[0] == 0xab && out[435] == 0xab);
	assert_false(
		nv_cache_get_spare(cache, 2, frames + 1, 1023, 8, out, &ticket));
	assert_false(
		nv_cache_get_spare(cache, 2, frames + 1, 1530, 8, out, &ticket));
	nv_cache_fill_spare(cache, 2, frames + 1, ticket, in);
	assert_true(
		nv_cache_get_spare(cache, 2, frames + 1, 0, NV_PAGE, out, &ticket));
	assert_true(out[0] == 0xcd && out[1100] == 0xcd && out[4095] == 0xcd);
	/* Of one that is there the rest stays. */
	nv_cache_written_spare(cache, 2, 5, 512, 3584, in);
	assert_true(nv_cache_get_spare(cache, 2, 5, 0, NV_PAGE, out, &ticket));
	assert_true(out[0] == 5 && out[511] == 5 && out[512] == 0xcd &&
				out[4095] == 0xcd);
	/* Edge pages take all their frames, and keep them. */
	for (uint64_t p = 0; p < frames; p++)
	{
		assert_false(nv_cache_get(cache, 1, p, NV_CACHE_INSERT, out, &ticket));
		nv_cache_fill(cache, 1, p, ticket, in);
		nv_cache_get(cache, 1, p, NV_CACHE_INSERT, out, &ticket);
	}
	nv_cache_get_stats(cache, &stats);
	assert_int_equal(stats.spare_pages, 0);
	assert_int_equal(stats.pages, frames);
	assert_false(nv_cache_has_spare(cache, 2, 7));
	assert_false(nv_cache_get_spare(cache, 2, 7, 0, 8, out, &ticket));
	nv_cache_fill_spare(cache, 2, 7, ticket, in);
	nv_cache_written_spare(cache, 2, 7, 0, NV_PAGE, in);
	for (uint64_t p = 0; p < frames; p++)
		there += nv_cache_get(cache, 1, p, NV_CACHE_INSERT, out, &ticket);
	assert_int_equal(there, frames);
	nv_cache_forget(cache, 1);
	assert_true(nv_cache_has_spare(cache, 2, 7));
	nv_cache_free(cache);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spare),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_promotion),
		cmocka_unit_test(test_earliest_promoted),
		cmocka_unit_test(test_scan),
		cmocka_unit_test(test_old_worth),
		cmocka_unit_test(test_users),
		cmocka_unit_test(test_remembered),
		cmocka_unit_test(test_against_lru),
		cmocka_unit_test(test_contents),
		cmocka_unit_test(test_stale_fill),
		cmocka_unit_test(test_written_enters),
		cmocka_unit_test(test_stripes),
		cmocka_unit_test(test_forget),
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_bad_params),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
