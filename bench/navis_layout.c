/*
 * navis_layout.c
 *		A counted simulation of other disk layouts: what each would read for the
 *		same searches and insertions, through the same cache.
 *
 * This measures nothing: it counts.  The graph is the index's.  Every query is
 * traversed once, best first, exploring only the lists it asks for, and the
 * vertices it explores are noted; rows of --insert-data are searched for as
 * position seeking does.  Then each layout tells on which page a vertex lies:
 *
 *	packed				vector and list of R edges in one record, as many
 *records a page as fit (DiskANN, OdinANN); explored vertices need no further
 *read fixed, random		lists apart, slots for R edges, 9 a page at R = 96
 *	fixed, placed		the same, placed by page locality
 *	variable, random	lists apart, slots as long as their lists (ours)
 *	variable, placed
 *
 * and the noted pages go through nv_cache of the size given, a share of the
 * packed file: the first half of the traces warms it up, the second counts.  A
 * page counts once a query.  Where lists lie apart, each vector that the rerank
 * loads is one more read of its extent, which is not cached.
 *
 * Source: navis-system.txt, "OdinANN+$", "Locality-driven decoupling".
 */
#include <unistd.h>

#include "blas.h"
#include "engine_internal.h"
#include "json.h"
#include "progress.h"
#include "search_run.h"
#include "tool.h"

#define SEED 7
#define POLL_US 20000
#define LAYOUTS 5

typedef struct options
{
	const char *dir, *queries, *data, *json;
	uint32_t search_list, insert_list, rows;
	bench_numbers shares; /* per cent */
	bench_element type;
} options;

/* What one kind of operation explored. */
typedef struct traces
{
	const char *name;
	nv_cache_user user;
	uint32_t n;
	uint64_t *first; /* n + 1: where each begins in vertex */
	uint32_t *vertex;
	size_t room;
	uint64_t loads; /* vectors, of the second half */
} traces;

typedef struct layout
{
	const char *name;
	uint32_t *page; /* of each vertex; the first of span pages */
	uint32_t span;  /* pages a record takes */
	uint64_t pages;
	bool vectors_apart;
} layout;

typedef struct simulation
{
	tool tool;
	options o;
	nv_index *index;
	nv_body *body;
	nv_graph graph;
	nv_ring *ring;
	bench_json *json;
} simulation;

/* --- The graph --- */

/* The lists of one page, by vertex. */
static void
take_page(simulation *s, uint64_t number, const uint8_t *bytes,
		  uint32_t **lists, uint32_t *degrees)
{
	nv_store *store = s->body->store;
	nv_page_lists on_page;

	nv_store_page_lists(store, number, bytes, &on_page);
	for (uint32_t i = 0; i < on_page.n; i++)
	{
		uint32_t v = on_page.vertex[i], degree;
		const uint32_t *ids =
			nv_slot_find(store, bytes, on_page.word[i], v, &degree);

		if (ids == NULL || lists[v] != NULL)
			continue;
		lists[v] = bench_need(nv_alloc_array(degree + 1, sizeof(uint32_t)));
		memcpy(lists[v], ids, degree * sizeof(uint32_t));
		degrees[v] = degree;
	}
}

static void
join_lists(nv_graph *g, uint32_t **lists, const uint32_t *degrees)
{
	g->offset = bench_need(nv_alloc_array((size_t) g->n + 1, sizeof(uint64_t)));
	for (uint32_t v = 0; v < g->n; v++)
		g->offset[v + 1] = g->offset[v] + degrees[v];
	g->edges =
		bench_need(nv_alloc_array(g->offset[g->n] + 1, sizeof(uint32_t)));
	for (uint32_t v = 0; v < g->n; v++)
	{
		if (lists[v] == NULL)
			bench_die("index", "a list could not be read");
		memcpy(g->edges + g->offset[v], lists[v],
			   degrees[v] * sizeof(uint32_t));
		free(lists[v]);
	}
}

static void
read_graph(simulation *s)
{
	nv_store *store = s->body->store;
	uint32_t n = nv_store_vertices(store);
	uint32_t **lists = bench_need(nv_alloc_array(n, sizeof(*lists)));
	uint32_t *degrees = bench_need(nv_alloc_array(n, sizeof(*degrees)));
	uint8_t *bytes = bench_need(aligned_alloc(NV_BLOCK, NV_PAGE));
	bench_progress progress;
	nv_store_stats stats;
	nv_error err;

	nv_store_get_stats(store, &stats);
	s->graph.n = n;
	bench_progress_begin(&progress, "edge pages", stats.edge_pages);
	for (uint64_t page = 0; page < stats.edge_pages; page++)
	{
		bench_check(nv_file_read(nv_store_edge_file(store), bytes, NV_PAGE,
								 page * NV_PAGE, &err),
					&err);
		take_page(s, page, bytes, lists, degrees);
		bench_progress_show(&progress, page + 1);
	}
	bench_progress_end(&progress);
	join_lists(&s->graph, lists, degrees);
	free(lists);
	free(degrees);
	free(bytes);
}

/* --- Traces --- */

/* The window at that percentile, once the engine has calibrated it. */
static uint32_t
await_window(simulation *s, bool seek, uint32_t list, double percentile)
{
	nv_body *body = s->body;
	nv_casr_table *table = seek ? body->casr_insert : body->casr;
	int bucket = nv_casr_bucket(NV_DEFAULT_K, list);

	if (bucket < 0)
		return NV_CASR_ALL;
	if (!nv_casr_ready(table, bucket))
	{
		atomic_store(
			seek ? &body->wanted_insert[bucket] : &body->wanted[bucket], 1);
		nv_engine_wake(s->tool.engine);
	}
	while (!nv_casr_ready(table, bucket))
		usleep(POLL_US);
	return nv_casr_window(table, bucket, percentile);
}

static void
add_trace(traces *t, nv_search *search)
{
	uint32_t met = nv_search_n_met(search);
	uint64_t at = t->first[t->n];

	if (at + met > t->room)
	{
		t->room = 2 * (at + met);
		t->vertex =
			bench_need(realloc(t->vertex, t->room * sizeof(*t->vertex)));
	}
	for (uint32_t i = 0; i < met; i++)
		t->vertex[at + i] = nv_search_met(search, i).vertex;
	t->first[++t->n] = at + met;
}

static void
trace(simulation *s, bench_rows *rows, uint64_t first, uint32_t n,
	  const nv_search_options *how, traces *t)
{
	float *row = bench_need(nv_alloc_array(rows->dim, sizeof(float)));
	bench_progress progress;
	nv_search *search;
	nv_error err;

	bench_progress_begin(&progress, t->name, n);
	t->user = how->user;
	t->first = bench_need(nv_alloc_array((size_t) n + 1, sizeof(uint64_t)));
	bench_check(nv_search_create(&search, &err), &err);
	for (uint32_t i = 0; i < n; i++)
	{
		bench_check(bench_rows_read(rows, first + i, 1, row, &err), &err);
		bench_check(nv_search_start(search, &s->body->view, how, row,
									nv_ring_arena(s->ring), &err),
					&err);
		if (nv_search_run(search, s->ring) != NV_OK)
			bench_die("search", nv_search_error(search)->detail);
		add_trace(t, search);
		if (i >= n / 2)
			t->loads += nv_search_get_stats(search)->vectors;
		bench_progress_show(&progress, i + 1);
	}
	bench_progress_end(&progress);
	nv_search_free(search);
	free(row);
}

static void
trace_searches(simulation *s, traces *t)
{
	nv_search_options how = {.k = NV_DEFAULT_K,
							 .list_size = s->o.search_list,
							 .beam_width = 4,
							 .entrance_list = NV_ENTRANCE_LIST,
							 .exclude = NV_NO_VERTEX,
							 .single_lists = true,
							 .user = NV_CACHE_SEARCH};
	bench_rows *rows;
	nv_error err;

	bench_check(bench_rows_open(s->o.queries, s->o.type, &rows, &err), &err);
	how.window = await_window(s, false, s->o.search_list, 100);
	trace(s, rows, 0, (uint32_t) rows->n, &how, t);
	bench_rows_close(rows);
}

static void
trace_seeks(simulation *s, traces *t)
{
	nv_search_options how = {.k = NV_DEFAULT_K,
							 .list_size = s->o.insert_list,
							 .beam_width = 4,
							 .entrance_list = NV_ENTRANCE_LIST,
							 .exclude = NV_NO_VERTEX,
							 .single_lists = true,
							 .seek = true,
							 .user = NV_CACHE_INSERT};
	bench_rows *rows;
	nv_error err;

	bench_check(bench_rows_open(s->o.data, s->o.type, &rows, &err), &err);
	if (rows->n < s->tool.rows + s->o.rows)
		bench_die(s->o.data, "has fewer rows behind the index than asked for");
	how.window = await_window(s, true, s->o.insert_list, 90);
	trace(s, rows, s->tool.rows, s->o.rows, &how, t);
	bench_rows_close(rows);
}

/* --- Layouts --- */

/* The graph with every list as long as R, by repeating it. */
static nv_graph
padded(const nv_graph *g, uint32_t degree)
{
	nv_graph p = {.n = g->n, .medoid = g->medoid};

	p.offset = bench_need(nv_alloc_array((size_t) g->n + 1, sizeof(uint64_t)));
	p.edges =
		bench_need(nv_alloc_array((size_t) g->n * degree, sizeof(uint32_t)));
	for (uint32_t v = 0; v < g->n; v++)
	{
		uint64_t len = g->offset[v + 1] - g->offset[v];

		p.offset[v + 1] = p.offset[v] + degree;
		for (uint32_t i = 0; i < degree; i++)
			p.edges[p.offset[v] + i] =
				len > 0 ? g->edges[g->offset[v] + i % len] : v;
	}
	return p;
}

static layout
place(const nv_graph *g, const char *name, bool random)
{
	layout l = {.name = name, .span = 1, .vectors_apart = true};
	uint32_t pages;
	nv_error err;

	l.page = bench_need(nv_alloc_array(g->n, sizeof(*l.page)));
	bench_check(nv_place(g, 0, random, bench_processors(), SEED, NULL, NULL,
						 l.page, &pages, &err),
				&err);
	l.pages = pages;
	return l;
}

static layout
pack(const simulation *s)
{
	layout l = {.name = "packed"};
	uint32_t bytes = s->tool.params.dim * 4 + 4 +
					 nv_store_get_params(s->body->store)->max_degree * 4;
	uint32_t per_page = NV_MAX(NV_PAGE / bytes, 1u), n = s->graph.n;

	l.span = (bytes + NV_PAGE - 1) / NV_PAGE;
	l.page = bench_need(nv_alloc_array(n, sizeof(*l.page)));
	for (uint32_t v = 0; v < n; v++)
		l.page[v] = v / per_page * l.span;
	l.pages = (uint64_t) l.page[n - 1] + l.span;
	return l;
}

static void
make_layouts(const simulation *s, layout *layouts)
{
	nv_graph fixed =
		padded(&s->graph, nv_store_get_params(s->body->store)->max_degree);

	layouts[0] = pack(s);
	layouts[1] = place(&fixed, "fixed, random", true);
	layouts[2] = place(&fixed, "fixed, placed", false);
	layouts[3] = place(&s->graph, "variable, random", true);
	layouts[4] = place(&s->graph, "variable, placed", false);
	nv_graph_free(&fixed);
}

/* --- Counting --- */

typedef struct counts
{
	uint64_t operations, pages, reads;
} counts;

/* One operation's pages through the cache, each once. */
static void
replay(const layout *l, const traces *t, uint32_t operation, nv_cache *cache,
	   uint32_t *seen, counts *c)
{
	static uint8_t bytes[NV_PAGE];
	uint64_t ticket;

	c->operations++;
	for (uint64_t i = t->first[operation]; i < t->first[operation + 1]; i++)
	{
		uint32_t page = l->page[t->vertex[i]];

		if (seen[page] == operation + 1)
			continue;
		seen[page] = operation + 1;
		for (uint32_t part = 0; part < l->span; part++)
		{
			c->pages++;
			if (nv_cache_get(cache, 1, page + part, t->user, bytes, &ticket))
				continue;
			c->reads++;
			nv_cache_fill(cache, 1, page + part, ticket, bytes);
		}
	}
}

static void
report(const simulation *s, const layout *l, const traces *t, const counts *c,
	   uint32_t share, uint64_t cache_bytes, const char *policy)
{
	uint64_t extent = nv_store_vector_extent_max(s->body->store);
	double n = (double) c->operations, pages = (double) c->pages / n;
	double reads = (double) c->reads / n;
	double loads = l->vectors_apart ? (double) t->loads / n : 0;
	double hits = 1 - (double) c->reads / (double) c->pages;
	double kb = (reads * NV_PAGE + loads * (double) extent) / 1024;

	printf("| %s | %s | %u %% | %s | %.1f | %.1f | %.1f %% | %.1f | %.1f | "
		   "%.1f |\n",
		   l->name, t->name, share, policy, (double) l->pages * NV_PAGE / 1e6,
		   pages, hits * 100, reads, loads, kb);
	bench_json_begin(s->json, "layout");
	bench_json_text(s->json, "layout", l->name);
	bench_json_text(s->json, "operation", t->name);
	bench_json_text(s->json, "policy", policy);
	bench_json_number(s->json, "share", share);
	bench_json_number(s->json, "cache_bytes", (double) cache_bytes);
	bench_json_number(s->json, "disk_bytes", (double) l->pages * NV_PAGE);
	bench_json_number(s->json, "pages", pages);
	bench_json_number(s->json, "hit_rate", hits);
	bench_json_number(s->json, "reads", reads);
	bench_json_number(s->json, "vector_reads", loads);
	bench_json_number(s->json, "kbytes", kb);
	bench_json_end(s->json);
}

static void
simulate(const simulation *s, const layout *l, const traces *t, uint32_t share,
		 uint64_t packed_pages, bool lru)
{
	nv_cache_params params = {.bytes = packed_pages * NV_PAGE / 100 * share,
							  .window = 0.10,
							  .promote = 4,
							  .promote_search = 1,
							  .policy = lru ? NV_CACHE_LRU : NV_CACHE_WORTH,
							  .partitions = 1};
	uint32_t *seen = bench_need(nv_alloc_array(l->pages, sizeof(*seen)));
	counts warm = {0}, count = {0};
	nv_cache *cache;
	nv_error err;

	bench_check(nv_cache_create(&params, &cache, &err), &err);
	for (uint32_t i = 0; i < t->n; i++)
		replay(l, t, i, cache, seen, i < t->n / 2 ? &warm : &count);
	report(s, l, t, &count, share, params.bytes, lru ? "LRU" : "NAVIS");
	nv_cache_free(cache);
	free(seen);
}

static void
count_layouts(const simulation *s, const traces *t, uint32_t n_traces)
{
	layout layouts[LAYOUTS];

	make_layouts(s, layouts);
	printf("Counted, not measured: the same traversals over other layouts, "
		   "through the same cache.\n\n"
		   "| layout | operation | cache | policy | MB on disk | pages | hits "
		   "| page reads | vector reads | KiB read |\n"
		   "|---|---|---:|---|---:|---:|---:|---:|---:|---:|\n");
	for (uint32_t i = 0; i < n_traces; i++)
		for (uint32_t share = 0; share < s->o.shares.n; share++)
			for (uint32_t l = 0; l < LAYOUTS; l++)
				for (int lru = 0; lru < 2; lru++)
					simulate(s, &layouts[l], &t[i], s->o.shares.values[share],
							 layouts[0].pages, lru == 1);
	for (uint32_t l = 0; l < LAYOUTS; l++)
		free(layouts[l].page);
}

static void
run(simulation *s)
{
	traces t[2] = {{.name = "search"}, {.name = "seek"}};
	nv_error err;

	s->json = bench_json_open(s->o.json);
	nv_io_set_readonly(true);
	tool_read_head(&s->tool, s->o.dir);
	s->tool.config.insert_threads = 0;
	tool_start(&s->tool, s->o.dir);
	tool_open(&s->tool, s->o.dir);
	s->index = nv_index_get(s->tool.engine, &s->tool.key, false);
	s->body = nv_index_body(s->index);
	bench_check(nv_ring_create(NV_IO_AUTO, NV_SEARCH_BUFFER, &s->ring, &err),
				&err);
	read_graph(s);
	trace_searches(s, &t[0]);
	if (s->o.rows > 0)
		trace_seeks(s, &t[1]);
	count_layouts(s, t, s->o.rows > 0 ? 2 : 1);
	for (int i = 0; i < 2; i++)
	{
		free(t[i].first);
		free(t[i].vertex);
	}
	nv_graph_free(&s->graph);
	nv_ring_destroy(s->ring);
	nv_body_put(s->body);
	nv_index_put(s->index);
	tool_stop(&s->tool, false);
	bench_json_close(s->json);
}

/* --- Command line --- */

#define AT(field) offsetof(simulation, o.field)

static const bench_argument known[] = {
	{"-i", "DIR", "index of navis_build; is read only", bench_take_text,
	 AT(dir), 0, 0, NULL, ALWAYS},
	{"-q", "FILE", "queries", bench_take_text, AT(queries), 0, 0, NULL, ALWAYS},
	{"-t", "TYPE",
	 "values of a .bin file: float, int8 or uint8 (default float)",
	 bench_take_type, AT(type)},
	{"--insert-data", "FILE",
	 "its rows behind those of the index are searched for as insertions do",
	 bench_take_text, AT(data)},
	{"--rows", "N", "of these", bench_take_count, AT(rows), 2, 10000000},
	{"--search-L", "N", "search list", bench_take_count, AT(search_list), 10,
	 10000},
	{"--insert-L", "N", "search list of an insertion", bench_take_count,
	 AT(insert_list), 10, 10000},
	{"--cache-shares", "LIST",
	 "sizes of the cache, in per cent of the packed "
	 "layout's file",
	 bench_take_numbers, AT(shares), 1, 100},
	{"--json", "FILE", "append the figures as lines of JSON", bench_take_text,
	 AT(json)}};

static const bench_command command = {
	"navis_layout -i DIR -q FILE [--insert-data FILE --rows N] [options]",
	"Counts what other disk layouts would read for the same searches and\n"
	"insertions, through the same cache.\n",
	known, NV_LENGTH(known), NULL};

int
main(int argc, char **argv)
{
	static simulation s;

	bench_program = "navis_layout";
	nv_blas_prepare();
	tool_init(&s.tool);
	s.o.search_list = 40;
	s.o.insert_list = 100;
	s.o.shares = (bench_numbers){3, {5, 10, 25}};
	bench_no_more(bench_parse_arguments(&command, &s, argc, argv), argc, argv);
	if ((s.o.data != NULL) != (s.o.rows > 0))
		bench_usage("--insert-data and --rows", "go together");
	run(&s);
	return 0;
}
