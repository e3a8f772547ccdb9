/*
 * navis_bench.c
 *		Searches an index of navis_build, alone or while rows are inserted and
 *		deleted, without a server.
 *
 *	navis_bench -i DIR -q QUERIES [-g TRUTH] [options] [L ...]
 *
 * Search only, with --num-batches 0: DIR is opened for reading only.  -g names
 * the file PREFIX_0.bin of batch-gt by its PREFIX, or any truth file.  Numbers
 * behind the options sweep the search list; each is calibrated first.
 *	--warmup-passes N	unreported passes before the first measured one (0)
 *	--passes N			measured passes of each list size (1)
 *
 * Batches: searches and insertion run on a shadow copy of DIR, so that each run
 * begins with the same index; -g is a PREFIX.
 *	--insert-data FILE	rows behind those of the index are inserted
 *	--batch-size N, --num-batches N			(100000, 10)
 *	--workload-change, --delete-threads N	sliding window (off, 1)
 *	--consolidate		take deleted vertices out of the graph after each batch,
 *						timed by itself
 *	--insert-only		no searches beside or after
 *	--first-wait S, --pause S	cadence of the passes beside (5, 1)
 *	--queue N			rows that may wait to be linked (4 * insert threads)
 *	--shadow DIR, --keep-shadow
 *
 * Settings, with the reference's defaults:
 *	--search-L 40, --insert-L 100, --mem-L 10, --beam-width 4
 *	--search-threads 22, --insert-threads 10; --clients (search threads)
 *	--cache-gb 16, --cache-window 0.10, --cache-promote 4
 *	--cache-promote-search 1 (cache.h tells what they mean)
 *	--warmup-queries 1000, --casr-percentile-search 100,
 *	--casr-percentile-insert 90, --casr-percentile (both)
 *	-K 10, -t float
 * The metric and the entrance graph's ratio and degree are the index's.
 *
 * Ablations: --load-all, --fixed-stages, --from-medoid, --single-lists,
 * --static-entrance, --cache-policy navis|reference|lru (--plain-lru), of which
 * the second comes with the reference's --cache-promote 2 and
 * --cache-promote-search 16.
 *
 * --json FILE appends a line for everything measured, --label TEXT marks them.
 * --cache-trace FILE records what the page cache is asked for (navis_cache).
 *
 * Source: navis-system.txt, navis_bench.
 */
#include <getopt.h>
#include <unistd.h>

#include "blas.h"
#include "cache_trace.h"
#include "io.h"
#include "moving.h"

typedef struct options
{
	const char *dir, *queries, *truth, *data, *json, *label, *shadow, *trace;
	pass_options pass;
	moving_options moving;
	uint32_t warmup_passes, passes, clients;
	bench_element type;
	bench_numbers sweep;
	bool keep_shadow;
} options;

/* --- Search only --- */

/* The truth of the index as it is: TRUTH itself, or TRUTH_0.bin. */
static bench_truth
initial_truth(const options *o, const pass_setup *s)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s_0.bin", o->truth);
	return pass_truth(access(path, F_OK) == 0 ? path : o->truth, s);
}

static void
report_memory(const tool *t, bench_json *j)
{
	nv_request *r = tool_request(t, NV_REQ_INFO, 1);
	nv_req_info i = tool_info(t, r);
	double held = (double) (i.memory_codes + i.memory_map + i.memory_elements +
							i.memory_entrance + i.memory_other);

	printf("memory: %.1f bytes a vector and %.1f MB of cache, RSS %.1f MB, "
		   "peak %.1f MB; edge file %.1f MB, vector file %.1f MB, state %.1f "
		   "MB\n",
		   held / (double) i.vertices, (double) i.cache_bytes / 1e6,
		   (double) tool_resident_bytes() / 1e6,
		   (double) tool_peak_bytes() / 1e6, (double) i.edge_bytes / 1e6,
		   (double) i.vector_bytes / 1e6, (double) i.state_bytes / 1e6);
	bench_json_begin(j, "memory");
	bench_json_number(j, "vertices", (double) i.vertices);
	bench_json_number(j, "held", held);
	bench_json_number(j, "cache", (double) i.cache_bytes);
	bench_json_number(j, "rss", (double) tool_resident_bytes());
	bench_json_number(j, "peak_rss", (double) tool_peak_bytes());
	bench_json_number(j, "edge_bytes", (double) i.edge_bytes);
	bench_json_number(j, "vector_bytes", (double) i.vector_bytes);
	bench_json_number(j, "state_bytes", (double) i.state_bytes);
	bench_json_end(j);
	free(r);
}

static void
search_passes(const options *o, pass_setup *s, bench_json *j)
{
	bench_truth truth = {0};
	char head[64];

	if (o->truth != NULL)
		truth = initial_truth(o, s);
	printf("--- Search ---\n");
	pass_await_window(s);
	for (uint32_t i = 0; i < o->warmup_passes; i++)
		(void) pass_run(s, NULL, NULL);
	for (uint32_t i = 0; i < o->sweep.n; i++)
	{
		s->o.list_size = o->sweep.values[i];
		pass_await_window(s);
		for (uint32_t pass = 0; pass < o->passes; pass++)
		{
			pass_result r =
				pass_run(s, truth.ids != NULL ? &truth : NULL, NULL);

			snprintf(head, sizeof(head), "L %u: ", s->o.list_size);
			pass_print(head, &r);
			pass_json(j, "search", s, &r, -1);
		}
	}
	bench_truth_free(&truth);
}

/* --- The run --- */

static void
open_data(const options *o, const char *path, bench_rows **rows)
{
	nv_error err;

	bench_check(bench_rows_open(path, o->type, rows, &err), &err);
}

/* Where the engine works: the index itself, or a shadow of it. */
static const char *
working_dir(options *o)
{
	static char shadow[TOOL_PATH];

	if (o->moving.batches == 0)
	{
		nv_io_set_readonly(true);
		return o->dir;
	}
	snprintf(shadow, sizeof(shadow), "%s_shadow", o->dir);
	if (o->shadow == NULL)
		o->shadow = shadow;
	tool_shadow(o->dir, o->shadow);
	return o->shadow;
}

static void
run(tool *t, options *o)
{
	bench_json *j = bench_json_open(o->json);
	bench_rows *queries, *data = NULL;
	pass_setup setup;
	const char *dir;

	bench_json_label(j, o->label);
	open_data(o, o->queries, &queries);
	if (o->moving.batches > 0)
	{
		bench_require(o->data, "--insert-data FILE is missing");
		open_data(o, o->data, &data);
	}
	else
		t->config.insert_threads = 0;
	tool_read_head(t, o->dir);
	if (data != NULL &&
		data->n < t->rows + o->moving.batches * o->moving.batch_size)
		bench_die(data->path, "has fewer rows than the batches take");
	dir = working_dir(o);
	if (o->trace != NULL)
		trace_begin(o->trace);
	tool_start(t, dir);
	tool_open(t, dir);
	pass_setup_init(&setup, t, queries, &o->pass);
	if (o->moving.batches == 0 || o->moving.searches)
		search_passes(o, &setup, j);
	report_memory(t, j);
	if (o->moving.batches > 0)
	{
		setup.o.list_size = o->pass.list_size;
		moving_run(t, &setup, data, &o->moving, j);
	}
	tool_stop(t, false);
	trace_end();
	pass_setup_free(&setup);
	if (o->moving.batches > 0 && !o->keep_shadow)
		tool_remove(dir);
	bench_rows_close(queries);
	bench_rows_close(data);
	bench_json_close(j);
}

/* --- Command line --- */

enum
{
	INSERT_DATA = 256,
	WARMUP_PASSES,
	PASSES,
	BATCH_SIZE,
	NUM_BATCHES,
	WORKLOAD_CHANGE,
	DELETE_THREADS,
	CONSOLIDATE,
	INSERT_ONLY,
	FIRST_WAIT,
	PAUSE,
	QUEUE,
	SHADOW,
	KEEP_SHADOW,
	SEARCH_L,
	INSERT_L,
	MEM_L,
	BEAM_WIDTH,
	SEARCH_THREADS,
	INSERT_THREADS,
	CLIENTS,
	CACHE_GB,
	CACHE_WINDOW,
	CACHE_PROMOTE,
	CACHE_PROMOTE_SEARCH,
	WARMUP_QUERIES,
	CASR_SEARCH,
	CASR_INSERT,
	CASR_BOTH,
	LOAD_ALL,
	FIXED_STAGES,
	FROM_MEDOID,
	SINGLE_LISTS,
	CACHE_POLICY,
	PLAIN_LRU,
	STATIC_ENTRANCE,
	JSON,
	LABEL,
	CACHE_TRACE
};

static const struct option known[] = {
	{"insert-data", 1, NULL, INSERT_DATA},
	{"warmup-passes", 1, NULL, WARMUP_PASSES},
	{"passes", 1, NULL, PASSES},
	{"batch-size", 1, NULL, BATCH_SIZE},
	{"num-batches", 1, NULL, NUM_BATCHES},
	{"workload-change", 0, NULL, WORKLOAD_CHANGE},
	{"delete-threads", 1, NULL, DELETE_THREADS},
	{"consolidate", 0, NULL, CONSOLIDATE},
	{"insert-only", 0, NULL, INSERT_ONLY},
	{"first-wait", 1, NULL, FIRST_WAIT},
	{"pause", 1, NULL, PAUSE},
	{"queue", 1, NULL, QUEUE},
	{"shadow", 1, NULL, SHADOW},
	{"keep-shadow", 0, NULL, KEEP_SHADOW},
	{"search-L", 1, NULL, SEARCH_L},
	{"insert-L", 1, NULL, INSERT_L},
	{"mem-L", 1, NULL, MEM_L},
	{"beam-width", 1, NULL, BEAM_WIDTH},
	{"search-threads", 1, NULL, SEARCH_THREADS},
	{"insert-threads", 1, NULL, INSERT_THREADS},
	{"clients", 1, NULL, CLIENTS},
	{"cache-gb", 1, NULL, CACHE_GB},
	{"cache-window", 1, NULL, CACHE_WINDOW},
	{"cache-promote", 1, NULL, CACHE_PROMOTE},
	{"cache-promote-search", 1, NULL, CACHE_PROMOTE_SEARCH},
	{"warmup-queries", 1, NULL, WARMUP_QUERIES},
	{"casr-percentile-search", 1, NULL, CASR_SEARCH},
	{"casr-percentile-insert", 1, NULL, CASR_INSERT},
	{"casr-percentile", 1, NULL, CASR_BOTH},
	{"load-all", 0, NULL, LOAD_ALL},
	{"fixed-stages", 0, NULL, FIXED_STAGES},
	{"from-medoid", 0, NULL, FROM_MEDOID},
	{"single-lists", 0, NULL, SINGLE_LISTS},
	{"cache-policy", 1, NULL, CACHE_POLICY},
	{"plain-lru", 0, NULL, PLAIN_LRU},
	{"static-entrance", 0, NULL, STATIC_ENTRANCE},
	{"json", 1, NULL, JSON},
	{"label", 1, NULL, LABEL},
	{"cache-trace", 1, NULL, CACHE_TRACE},
	{NULL, 0, NULL, 0}};

static bool
parse_workload(options *o, int c)
{
	moving_options *m = &o->moving;

	switch (c)
	{
		case INSERT_DATA:
			o->data = optarg;
			return true;
		case BATCH_SIZE:
			m->batch_size = bench_count_option("--batch-size", 1, UINT32_MAX);
			return true;
		case NUM_BATCHES:
			m->batches = bench_count_option("--num-batches", 0, 1000000);
			return true;
		case WORKLOAD_CHANGE:
			m->window = true;
			return true;
		case DELETE_THREADS:
			m->delete_threads =
				bench_count_option("--delete-threads", 1, BENCH_MAX_CLIENTS);
			return true;
		case CONSOLIDATE:
			m->consolidate = true;
			return true;
		case INSERT_ONLY:
			m->searches = false;
			return true;
		case FIRST_WAIT:
			m->first_wait = bench_parse_real("--first-wait", optarg, 0, 3600);
			return true;
		case PAUSE:
			m->pause = bench_parse_real("--pause", optarg, 0, 3600);
			return true;
		case QUEUE:
			m->queue = bench_count_option("--queue", 1, 1000000);
			return true;
		default:
			return false;
	}
}

/* Hits to promote mean something else for the reference's policy. */
static void
set_policy(nv_config *e, nv_cache_policy policy)
{
	e->cache_policy = policy;
	if (policy == NV_CACHE_REFERENCE)
	{
		e->cache_promote = NV_CACHE_REFERENCE_PROMOTE;
		e->cache_promote_search = NV_CACHE_REFERENCE_PROMOTE_SEARCH;
	}
}

static bool
parse_engine(nv_config *e, int c)
{
	switch (c)
	{
		case INSERT_L:
			e->insert_list_size = bench_count_option("--insert-L", 4, 10000);
			return true;
		case SEARCH_THREADS:
			e->search_threads = bench_count_option("--search-threads", 1, 64);
			return true;
		case INSERT_THREADS:
			e->insert_threads = bench_count_option("--insert-threads", 1, 32);
			return true;
		case CACHE_GB:
			e->cache_size =
				(uint64_t) (bench_parse_real("--cache-gb", optarg, 0, 1e6) *
							1073741824.0);
			return true;
		case CACHE_WINDOW:
			e->cache_window =
				bench_parse_real("--cache-window", optarg, 0.001, 1);
			return true;
		case CACHE_PROMOTE:
			e->cache_promote =
				bench_count_option("--cache-promote", 1, 1000000);
			return true;
		case CACHE_PROMOTE_SEARCH:
			e->cache_promote_search =
				bench_count_option("--cache-promote-search", 1, 1000000);
			return true;
		case WARMUP_QUERIES:
			e->casr_warmup = bench_count_option("--warmup-queries", 1, 10000);
			return true;
		case CACHE_POLICY:
			set_policy(e, bench_parse_policy(optarg));
			return true;
		case PLAIN_LRU:
			set_policy(e, NV_CACHE_LRU);
			return true;
		case STATIC_ENTRANCE:
			e->entrance_static = true;
			return true;
		default:
			return false;
	}
}

static bool
parse_search(nv_config *e, options *o, int c)
{
	pass_options *p = &o->pass;

	switch (c)
	{
		case SEARCH_L:
			p->list_size = bench_count_option("--search-L", 1, 100000);
			return true;
		case MEM_L:
			p->entrance_list = bench_count_option("--mem-L", 1, 1000);
			return true;
		case BEAM_WIDTH:
			p->beam_width = bench_count_option("--beam-width", 1, 32);
			return true;
		case CLIENTS:
			o->clients = bench_count_option("--clients", 1, BENCH_MAX_CLIENTS);
			return true;
		case CASR_SEARCH:
		case CASR_BOTH:
			p->percentile =
				bench_parse_real("--casr-percentile", optarg, 1, 100);
			if (c == CASR_BOTH)
				e->casr_percentile_insert = p->percentile;
			return true;
		case CASR_INSERT:
			e->casr_percentile_insert =
				bench_parse_real("--casr-percentile-insert", optarg, 1, 100);
			return true;
		case LOAD_ALL:
			p->flags |= NV_SEARCH_LOAD_ALL;
			return true;
		case FIXED_STAGES:
			p->flags |= NV_SEARCH_STAGES;
			return true;
		case FROM_MEDOID:
			p->flags |= NV_SEARCH_FROM_MEDOID;
			return true;
		case SINGLE_LISTS:
			p->flags |= NV_SEARCH_SINGLE_LISTS;
			return true;
		default:
			return false;
	}
}

static void
parse_other(options *o, int c)
{
	switch (c)
	{
		case 'i':
			o->dir = optarg;
			break;
		case 'q':
			o->queries = optarg;
			break;
		case 'g':
			o->truth = o->moving.truth = optarg;
			break;
		case 'K':
			o->pass.k = bench_count_option("-K", 1, 1000);
			break;
		case 't':
			o->type = bench_parse_type(optarg);
			break;
		case 'm': /* the index's is used */
			(void) bench_parse_metric(optarg);
			break;
		case WARMUP_PASSES:
			o->warmup_passes =
				bench_count_option("--warmup-passes", 0, 1000000);
			break;
		case PASSES:
			o->passes = bench_count_option("--passes", 1, 1000000);
			break;
		case SHADOW:
			o->shadow = optarg;
			break;
		case KEEP_SHADOW:
			o->keep_shadow = true;
			break;
		case JSON:
			o->json = optarg;
			break;
		case LABEL:
			o->label = optarg;
			break;
		case CACHE_TRACE:
			o->trace = optarg;
			break;
		default:
			exit(2);
	}
}

static void
parse(tool *t, options *o, int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "i:q:g:K:t:m:", known, NULL)) != -1)
		if (!parse_workload(o, c) && !parse_engine(&t->config, c) &&
			!parse_search(&t->config, o, c))
			parse_other(o, c);
	for (; optind < argc; optind++)
	{
		if (o->sweep.n == BENCH_MAX_NUMBERS)
			bench_die(argv[optind], "too many list sizes");
		o->sweep.values[o->sweep.n++] =
			(uint32_t) bench_parse_count("L", argv[optind], 1, 100000);
	}
	if (o->sweep.n == 0)
		o->sweep.values[o->sweep.n++] = o->pass.list_size;
	bench_require(o->dir, "-i DIR is missing");
	bench_require(o->queries, "-q QUERIES is missing");
	o->pass.clients = o->clients > 0
						  ? o->clients
						  : NV_MIN(t->config.search_threads, BENCH_MAX_CLIENTS);
	if (o->moving.queue == 0)
		o->moving.queue = 4 * t->config.insert_threads;
}

int
main(int argc, char **argv)
{
	static tool t;
	options o = {.passes = 1,
				 .pass = {.k = 10,
						  .list_size = 40,
						  .beam_width = 4,
						  .entrance_list = 10,
						  .percentile = 100},
				 .moving = {.batch_size = 100000,
							.batches = 10,
							.delete_threads = 1,
							.searches = true,
							.first_wait = 5,
							.pause = 1}};

	bench_program = "navis_bench";
	(void) pass_clock();
	nv_blas_prepare();
	tool_init(&t);
	t.config.search_threads = 22;
	t.config.insert_threads = 10;
	t.config.cache_size = UINT64_C(16) << 30;
	parse(&t, &o, argc, argv);
	run(&t, &o);
	return 0;
}
