/*
 * navis_bench.c
 *		Searches an index of navis_build, alone or while rows are inserted and
 *		deleted, without a server.
 *
 * With --num-batches 0 the index is opened for reading only.  Otherwise
 * searches and insertion run on a shadow copy, so that each run begins with the
 * same index.  --help lists the options, with the reference's names and
 * defaults but for the cache's policy and what it takes to be promoted.
 *
 * Source: navis-system.txt, navis_bench.
 */
#include <unistd.h>

#include "blas.h"
#include "cache_trace.h"
#include "io.h"
#include "moving.h"
#include "progress.h"

typedef struct options
{
	tool tool;
	const char *dir, *queries, *truth, *data, *json, *label, *shadow, *trace;
	pass_options pass;
	moving_options moving;
	uint32_t warmup_passes, passes, metric;
	bench_element type;
	bench_numbers sweep;
	bool keep_shadow, insert_only;
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
	bench_progress progress;
	char head[64];

	if (o->truth != NULL)
		truth = initial_truth(o, s);
	printf("--- Search ---\n");
	pass_await_window(s);
	bench_progress_begin(&progress, "passes to warm up", o->warmup_passes);
	for (uint32_t i = 0; i < o->warmup_passes; i++)
	{
		(void) pass_run(s, NULL, NULL);
		bench_progress_show(&progress, i + 1);
	}
	bench_progress_end(&progress);
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
		bench_require(o->data, "--insert-data FILE");
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

#define AT(field) offsetof(options, field)
#define ENGINE(field) offsetof(options, tool.config.field)
#define SEARCH(field) offsetof(options, pass.field)
#define MOVING(field) offsetof(options, moving.field)

static void
take_percentiles(const bench_argument *a, const char *text, void *options_)
{
	options *o = options_;

	o->pass.percentile = o->tool.config.casr_percentile_insert =
		bench_parse_real(a->name, text, a->low, a->high);
}

/* Hits to promote mean something else for the reference's policy. */
static void
take_policy(const bench_argument *a, const char *text, void *options_)
{
	nv_config *e = &((options *) options_)->tool.config;

	e->cache_policy =
		text != NULL ? bench_parse_policy(a->name, text) : NV_CACHE_LRU;
	if (e->cache_policy == NV_CACHE_REFERENCE)
	{
		e->cache_promote = NV_CACHE_REFERENCE_PROMOTE;
		e->cache_promote_search = NV_CACHE_REFERENCE_PROMOTE_SEARCH;
	}
}

/* low is the flag. */
static void
take_flag(const bench_argument *a, const char *text, void *options_)
{
	((options *) options_)->pass.flags |= (uint32_t) a->low;
}

static const bench_argument known[] = {
	{"-i", "DIR", "index of navis_build", bench_take_text, AT(dir), 0, 0, NULL,
	 ALWAYS},
	{"-q", "FILE", "queries", bench_take_text, AT(queries), 0, 0, NULL, ALWAYS},
	{"-g", "TRUTH",
	 "exact neighbours: the PREFIX that batch-gt wrote to or, without batches, "
	 "any such file; default: no recall",
	 bench_take_text, AT(truth)},
	{"-K", "N", "neighbours of a query", bench_take_count, SEARCH(k), 1, 1000},
	{"-t", "TYPE",
	 "values of a .bin file: float, int8 or uint8 (default float)",
	 bench_take_type, AT(type)},
	{"-m", "METRIC", "l2, cosine or ip; not used, the index has its own",
	 bench_take_metric, AT(metric)},
	{"--json", "FILE", "append everything measured as lines of JSON",
	 bench_take_text, AT(json)},
	{"--label", "TEXT", "mark those lines with it", bench_take_text, AT(label)},
	{"--cache-trace", "FILE",
	 "record what the page cache is asked for (see navis_cache)",
	 bench_take_text, AT(trace)},

	{.help = "Searches:"},
	{"--search-L", "N", "search list, where no L is given", bench_take_count,
	 SEARCH(list_size), 1, 100000},
	{"--mem-L", "N", "search list in the entrance graph", bench_take_count,
	 SEARCH(entrance_list), 1, 1000},
	{"--beam-width", "N", "edge pages read at a time", bench_take_count,
	 SEARCH(beam_width), 1, 32},
	{"--search-threads", "N", "of the engine", bench_take_count,
	 ENGINE(search_threads), 1, 64},
	{"--clients", "N",
	 "that ask, each one query at a time; default: as many as search threads",
	 bench_take_count, SEARCH(clients), 1, BENCH_MAX_CLIENTS},
	{"--warmup-passes", "N",
	 "without batches: passes before the first measured one, not reported",
	 bench_take_count, AT(warmup_passes), 0, 1000000},
	{"--passes", "N", "without batches: measured passes of each L",
	 bench_take_count, AT(passes), 1, 1000000},
	{"--warmup-queries", "N", "reranks that calibrate a window",
	 bench_take_count, ENGINE(casr_warmup), 1, 10000},
	{"--casr-percentile-search", "P",
	 "of the warm-up's windows that searches use", bench_take_real,
	 SEARCH(percentile), 1, 100},
	{"--casr-percentile-insert", "P", "that insertions use", bench_take_real,
	 ENGINE(casr_percentile_insert), 1, 100},
	{"--casr-percentile", "P", "sets both", take_percentiles, 0, 1, 100},

	{.help = "Batches:"},
	{"--num-batches", "N", "0: searches only, the index is opened read-only",
	 bench_take_count, MOVING(batches), 0, 1000000},
	{"--batch-size", "N", "rows a batch", bench_take_long, MOVING(batch_size),
	 1, UINT32_MAX},
	{"--insert-data", "FILE", "its rows behind those of the index are inserted",
	 bench_take_text, AT(data)},
	{"--insert-L", "N", "search list of an insertion", bench_take_count,
	 ENGINE(insert_list_size), 4, 10000},
	{"--insert-threads", "N", "of the engine", bench_take_count,
	 ENGINE(insert_threads), 1, 32},
	{"--queue", "N",
	 "rows that wait to be linked, at most; default: four for each insert "
	 "thread",
	 bench_take_count, MOVING(queue), 1, 1000000},
	{"--workload-change", NULL,
	 "sliding window: a batch deletes as many of the oldest rows",
	 bench_take_switch, MOVING(window)},
	{"--delete-threads", "N", "for that", bench_take_count,
	 MOVING(delete_threads), 1, BENCH_MAX_CLIENTS},
	{"--consolidate", NULL,
	 "take deleted vertices out of the graph after each batch; timed apart",
	 bench_take_switch, MOVING(consolidate)},
	{"--insert-only", NULL, "no searches beside batches or after them",
	 bench_take_switch, AT(insert_only)},
	{"--first-wait", "SECONDS", "from a batch's begin to the first pass beside",
	 bench_take_real, MOVING(first_wait), 0, 3600},
	{"--pause", "SECONDS", "between passes beside", bench_take_real,
	 MOVING(pause), 0, 3600},
	{"--shadow", "DIR", "the copy batches work on; default: DIR_shadow",
	 bench_take_text, AT(shadow)},
	{"--keep-shadow", NULL, "do not remove it", bench_take_switch,
	 AT(keep_shadow)},

	{.help = "Cache:"},
	{"--cache-gb", "GIB", "in 2^30 bytes; 0: none", bench_take_gib,
	 ENGINE(cache_size), 0, 1e6},
	{"--cache-window", "SHARE", "of it that new pages enter", bench_take_real,
	 ENGINE(cache_window), 0.001, 1},
	{"--cache-promote", "N",
	 "lookups by insertion that count as one; with the reference's policy, "
	 "hits "
	 "that promote a page",
	 bench_take_count, ENGINE(cache_promote), 1, 1000000},
	{"--cache-promote-search", "N", "the same of searches", bench_take_count,
	 ENGINE(cache_promote_search), 1, 1000000},

	{.help = "Ablations:"},
	{"--load-all", NULL, "no CASR: rerank everything explored", take_flag, 0,
	 NV_SEARCH_LOAD_ALL},
	{"--fixed-stages", NULL, "no CASR: rerank in fixed stages", take_flag, 0,
	 NV_SEARCH_STAGES},
	{"--from-medoid", NULL, "no entrance graph", take_flag, 0,
	 NV_SEARCH_FROM_MEDOID},
	{"--single-lists", NULL, "of a page only the list that was asked for",
	 take_flag, 0, NV_SEARCH_SINGLE_LISTS},
	{"--static-entrance", NULL, "the entrance graph does not grow",
	 bench_take_switch, ENGINE(entrance_static)},
	{"--cache-policy", "NAME",
	 "navis, lru, or reference, which comes with the reference's "
	 "--cache-promote 2 and --cache-promote-search 16 (default navis)",
	 take_policy, 0},
	{"--plain-lru", NULL, "--cache-policy lru", take_policy, 0}};

static const bench_command command = {
	"navis_bench -i DIR -q FILE [-g TRUTH] [options] [L ...]",
	"Searches an index of navis_build, alone or while rows are inserted and\n"
	"deleted, without a server.  Without batches, each L is measured.\n",
	known, NV_LENGTH(known), NULL};

static void
parse(options *o, int argc, char **argv)
{
	for (int i = bench_parse_arguments(&command, o, argc, argv); i < argc; i++)
	{
		if (o->sweep.n == BENCH_MAX_NUMBERS)
			bench_usage(argv[i], "is one L too many");
		o->sweep.values[o->sweep.n++] =
			(uint32_t) bench_parse_count("L", argv[i], 1, 100000);
	}
	if (o->sweep.n == 0)
		o->sweep.values[o->sweep.n++] = o->pass.list_size;
	if (o->pass.clients == 0)
		o->pass.clients =
			NV_MIN(o->tool.config.search_threads, BENCH_MAX_CLIENTS);
	if (o->moving.queue == 0)
		o->moving.queue = 4 * o->tool.config.insert_threads;
	o->moving.truth = o->truth;
	o->moving.searches = !o->insert_only;
}

int
main(int argc, char **argv)
{
	static options o = {.passes = 1,
						.pass = {.k = 10,
								 .list_size = 40,
								 .beam_width = 4,
								 .entrance_list = 10,
								 .percentile = 100},
						.moving = {.batch_size = 100000,
								   .batches = 10,
								   .delete_threads = 1,
								   .first_wait = 5,
								   .pause = 1}};

	bench_program = "navis_bench";
	(void) pass_clock();
	nv_blas_prepare();
	tool_init(&o.tool);
	o.tool.config.search_threads = 22;
	o.tool.config.insert_threads = 10;
	o.tool.config.cache_size = UINT64_C(16) << 30;
	parse(&o, argc, argv);
	run(&o.tool, &o);
	return 0;
}
