/*
 * navis_cache.c
 *		Replays what a run asked the page cache for (navis_bench --cache-trace)
 *		through the engine's cache with other policies and sizes.
 *
 * A share is of the pages that the trace asks for, or of N.  A lookup that
 * misses is followed by a fill at once.  The last policy, "best", evicts the
 * page that is asked for latest of all, and does not take one that would be
 * (Belady): no policy can have more hits, and none can know that.
 *
 * What a run asks for depends on its policy a little: by the order of its
 * threads, and by which pages of a hop are there already.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "cache_trace.h"
#include "json.h"
#include "options.h"
#include "progress.h"
#include "util.h"

#define NEVER UINT32_MAX

typedef struct options
{
	bench_numbers shares; /* per cent */
	uint32_t file_pages;  /* 0: those in the trace */
	const char *json;
} options;

typedef struct run
{
	trace_event *events; /* page: a number from 0 on, by file and page */
	uint32_t n, pages;
	uint32_t *next; /* event that asks for the same page again, or NEVER */
	const char *name;
} run;

typedef struct count
{
	uint64_t lookups[2], hits[2]; /* by search and by insertion */
} count;

/* --- The trace --- */

static void
read_events(run *r)
{
	FILE *f = fopen(r->name, "rb");
	uint64_t magic;
	long size;

	if (f == NULL || fread(&magic, sizeof(magic), 1, f) != 1 ||
		magic != TRACE_MAGIC)
		bench_die(r->name, "is not a trace of navis_bench");
	if (fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0 ||
		(size_t) size / sizeof(trace_event) >= NEVER ||
		((size_t) size - sizeof(magic)) % sizeof(trace_event) != 0)
		bench_die(r->name, "is cut off or too long");
	r->n = (uint32_t) (((size_t) size - sizeof(magic)) / sizeof(trace_event));
	r->events =
		bench_need(nv_alloc_array((size_t) r->n + 1, sizeof(trace_event)));
	if (fseek(f, sizeof(magic), SEEK_SET) != 0 ||
		fread(r->events, sizeof(trace_event), r->n, f) != r->n)
		bench_die(r->name, "cannot be read");
	fclose(f);
}

static uint64_t
key_of(const trace_event *e)
{
	return (uint64_t) e->file << 32 | e->page;
}

static int
compare_keys(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

	return (x > y) - (x < y);
}

/* Numbers the pages that are asked for, and writes of no other stay. */
static void
number_pages(run *r)
{
	uint64_t *keys =
		bench_need(nv_alloc_array((size_t) r->n + 1, sizeof(*keys)));
	uint32_t n = 0, kept = 0;

	for (uint32_t i = 0; i < r->n; i++)
		if (r->events[i].kind != TRACE_WRITTEN)
			keys[n++] = key_of(&r->events[i]);
	qsort(keys, n, sizeof(*keys), compare_keys);
	for (uint32_t i = 0; i < n; i++)
		if (i == 0 || keys[i] != keys[r->pages - 1])
			keys[r->pages++] = keys[i];
	for (uint32_t i = 0; i < r->n; i++)
	{
		uint64_t key = key_of(&r->events[i]);
		uint64_t *found =
			bsearch(&key, keys, r->pages, sizeof(*keys), compare_keys);

		if (found == NULL)
			continue;
		r->events[kept] = r->events[i];
		r->events[kept++].page = (uint32_t) (found - keys);
	}
	r->n = kept;
	free(keys);
}

static void
find_next(run *r)
{
	uint32_t *later = bench_need(nv_alloc_array((size_t) r->pages + 1, 4));

	r->next = bench_need(nv_alloc_array((size_t) r->n + 1, sizeof(*r->next)));
	for (uint32_t i = 0; i < r->pages; i++)
		later[i] = NEVER;
	for (uint32_t i = r->n; i-- > 0;)
	{
		const trace_event *e = &r->events[i];

		if (e->kind == TRACE_WRITTEN)
			continue;
		r->next[i] = later[e->page];
		later[e->page] = i;
	}
	free(later);
}

/* --- Policies of the engine --- */

static void
add(count *c, const trace_event *e, bool hit)
{
	int by = e->kind == TRACE_SEARCH ? 0 : 1;

	c->lookups[by]++;
	c->hits[by] += hit;
}

static nv_cache *
make_cache(uint32_t pages, nv_cache_policy policy)
{
	bool reference = policy == NV_CACHE_REFERENCE;
	nv_cache_params params = {
		.window = 0.10, .promote = 4, .promote_search = 1, .policy = policy};
	nv_cache_stats stats = {0};
	nv_cache *cache;
	nv_error err;

	if (reference)
	{
		params.promote = NV_CACHE_REFERENCE_PROMOTE;
		params.promote_search = NV_CACHE_REFERENCE_PROMOTE_SEARCH;
	}
	/* Bookkeeping takes some of the bytes. */
	for (params.bytes = (uint64_t) pages * NV_PAGE;; params.bytes += NV_PAGE)
	{
		bench_check(nv_cache_create(&params, &cache, &err), &err);
		nv_cache_get_stats(cache, &stats);
		if (stats.capacity_pages >= pages)
			return cache;
		nv_cache_free(cache);
	}
}

static count
replay(const run *r, uint32_t pages, nv_cache_policy policy)
{
	static uint8_t bytes[NV_PAGE];
	nv_cache *cache = make_cache(pages, policy);
	count c = {{0}, {0}};
	uint64_t ticket;

	for (uint32_t i = 0; i < r->n; i++)
	{
		const trace_event *e = &r->events[i];
		bool hit;

		if (e->kind == TRACE_WRITTEN)
		{
			nv_cache_written(cache, 1, e->page, bytes);
			continue;
		}
		hit = nv_cache_get(cache, 1, e->page, (nv_cache_user) e->kind, bytes,
						   &ticket);
		if (!hit)
			nv_cache_fill(cache, 1, e->page, ticket, bytes);
		add(&c, e, hit);
	}
	nv_cache_free(cache);
	return c;
}

/* --- The best --- */

/* A heap of the pages that are there, the latest asked for on top. */
typedef struct heap
{
	uint32_t *page, n;
	uint32_t *at;   /* of each page in the heap, or NEVER */
	uint32_t *when; /* each page is asked for next */
} heap;

static void
put_at(heap *h, uint32_t at, uint32_t page)
{
	h->page[at] = page;
	h->at[page] = at;
}

static void
sink(heap *h, uint32_t at, uint32_t page)
{
	for (uint32_t child; (child = 2 * at + 1) < h->n; at = child)
	{
		if (child + 1 < h->n &&
			h->when[h->page[child + 1]] > h->when[h->page[child]])
			child++;
		if (h->when[h->page[child]] <= h->when[page])
			break;
		put_at(h, at, h->page[child]);
	}
	put_at(h, at, page);
}

/* A page comes, or is asked for later than before. */
static void
rise(heap *h, uint32_t at, uint32_t page)
{
	for (; at > 0 && h->when[h->page[(at - 1) / 2]] < h->when[page];
		 at = (at - 1) / 2)
		put_at(h, at, h->page[(at - 1) / 2]);
	put_at(h, at, page);
}

static count
replay_best(const run *r, uint32_t pages)
{
	heap h = {.page = bench_need(nv_alloc_array((size_t) pages + 1, 4)),
			  .at = bench_need(nv_alloc_array((size_t) r->pages + 1, 4)),
			  .when = bench_need(nv_alloc_array((size_t) r->pages + 1, 4))};
	count c = {{0}, {0}};

	for (uint32_t i = 0; i < r->pages; i++)
		h.at[i] = NEVER;
	for (uint32_t i = 0; i < r->n; i++)
	{
		const trace_event *e = &r->events[i];

		if (e->kind == TRACE_WRITTEN)
			continue;
		add(&c, e, h.at[e->page] != NEVER);
		h.when[e->page] = r->next[i];
		if (h.at[e->page] != NEVER)
			rise(&h, h.at[e->page], e->page);
		else if (h.n < pages)
			rise(&h, h.n++, e->page);
		else if (h.when[h.page[0]] > r->next[i])
		{
			h.at[h.page[0]] = NEVER;
			sink(&h, 0, e->page);
		}
	}
	free(h.page);
	free(h.at);
	free(h.when);
	return c;
}

/* --- Reports --- */

static double
share_of(uint64_t hits, uint64_t lookups)
{
	return lookups > 0 ? 100 * (double) hits / (double) lookups : 0;
}

static void
report(const run *r, uint32_t share, uint32_t pages, const char *policy,
	   const count *c, bench_json *j)
{
	double all =
		share_of(c->hits[0] + c->hits[1], c->lookups[0] + c->lookups[1]);
	double search = share_of(c->hits[0], c->lookups[0]);
	double insert = share_of(c->hits[1], c->lookups[1]);
	const char *name = strrchr(r->name, '/');

	printf("| %s | %u %% | %u | %s | %.1f | %.1f | %.1f |\n", r->name, share,
		   pages, policy, all, search, insert);
	bench_json_begin(j, "cache_policy");
	bench_json_text(j, "trace", name == NULL ? r->name : name + 1);
	bench_json_number(j, "share", share);
	bench_json_number(j, "pages", pages);
	bench_json_text(j, "policy", policy);
	bench_json_number(j, "hits", all);
	bench_json_number(j, "search_hits", search);
	bench_json_number(j, "insert_hits", insert);
	bench_json_end(j);
}

static void
compare(const options *o, const char *name, bench_json *j)
{
	static const char *const names[] = {
		[NV_CACHE_WORTH] = "navis",
		[NV_CACHE_REFERENCE] = "reference",
		[NV_CACHE_LRU] = "lru",
	};
	run r = {.name = name};
	bench_progress progress;

	read_events(&r);
	number_pages(&r);
	find_next(&r);
	bench_progress_begin(&progress, "sizes", o->shares.n);
	for (uint32_t i = 0; i < o->shares.n; i++)
	{
		uint32_t share = o->shares.values[i];
		uint64_t of = o->file_pages > 0 ? o->file_pages : r.pages;
		uint32_t pages = (uint32_t) NV_MAX(of * share / 100, 1);
		count c;

		for (int p = 0; p < NV_CACHE_POLICIES; p++)
		{
			c = replay(&r, pages, (nv_cache_policy) p);
			report(&r, share, pages, names[p], &c, j);
		}
		c = replay_best(&r, pages);
		report(&r, share, pages, "best", &c, j);
		bench_progress_show(&progress, i + 1);
	}
	bench_progress_end(&progress);
	free(r.events);
	free(r.next);
}

/* --- Command line --- */

#define AT(field) offsetof(options, field)

static const bench_argument known[] = {
	{"--shares", "LIST",
	 "sizes of the cache, in per cent of the pages that the trace asks for, or "
	 "of --file-pages",
	 bench_take_numbers, AT(shares), 1, 100},
	{"--file-pages", "N", "pages of the edge file", bench_take_count,
	 AT(file_pages), 1, 1u << 31},
	{"--json", "FILE", "append the figures as lines of JSON", bench_take_text,
	 AT(json)}};

static const bench_command command = {
	"navis_cache TRACE... [options]",
	"Replays what a run asked the page cache for (navis_bench --cache-trace)\n"
	"through every policy and through the best possible one.\n",
	known, NV_LENGTH(known), NULL};

int
main(int argc, char **argv)
{
	options o = {.shares = {4, {5, 10, 25, 50}}};
	bench_json *j;
	int first;

	bench_program = "navis_cache";
	first = bench_parse_arguments(&command, &o, argc, argv);
	bench_require(argv[first], "TRACE");
	j = bench_json_open(o.json);
	printf("| trace | cache | pages | policy | hits %% | of search | of "
		   "insertion |\n|---|---:|---:|---|---:|---:|---:|\n");
	for (int i = first; i < argc; i++)
		compare(&o, argv[i], j);
	bench_json_close(j);
	return 0;
}
