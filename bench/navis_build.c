/*
 * navis_build.c
 *		Builds an index over a file of vectors, without a server.
 *
 * DIR is made and gets the index and rows.journal (tool.h).  --mem-budget
 * bounds what the build holds; rows that do not fit are an error before
 * anything is written.  8-bit values are kept as floats.
 *
 * Source: navis-system.txt, navis_build.  The entrance graph's build list is
 * 64 as there, and is no option.
 */
#include <errno.h>
#include <sys/stat.h>

#include "blas.h"
#include "json.h"
#include "navis/hash.h"
#include "progress.h"
#include "tool.h"

typedef struct options
{
	tool tool;
	const char *data, *dir, *json;
	uint64_t count, budget;
	uint32_t threads;
	bench_element type;
	bool random_placement;
} options;

static void
add_rows(tool *t, nv_request *r, bench_rows *rows, tool_journal *journal)
{
	size_t bytes = nv_round_up(sizeof(nv_journal_entry) + rows->dim * 4, 8);
	uint32_t per_request = (uint32_t) (NV_REQUEST_DATA / bytes);
	bench_progress progress;
	nv_error err;

	bench_progress_begin(&progress, "rows", t->rows);
	for (uint64_t i = 0; i < t->rows;)
	{
		uint32_t n = (uint32_t) NV_MIN(t->rows - i, (uint64_t) per_request);

		for (uint32_t k = 0; k < n; k++, i++)
		{
			uint8_t *p = r->data + k * bytes;
			float *row = (float *) (void *) (p + sizeof(nv_journal_entry));
			nv_journal_entry entry = {(uint32_t) i, 1, 0};

			bench_check(bench_rows_read(rows, i, 1, row, &err), &err);
			entry.hash = nv_vector_hash(row, rows->dim * 4);
			memcpy(p, &entry, sizeof(entry));
			tool_journal_add(journal, entry.hash);
		}
		r->kind = NV_REQ_BUILD_ADD;
		r->u.build.n = n;
		tool_call(t, r, "add rows");
		bench_progress_show(&progress, i);
	}
	bench_progress_end(&progress);
}

static void
report(const tool *t, const options *o, const nv_req_build *u, double seconds)
{
	bench_json *j = bench_json_open(o->json);

	printf("build: rows %llu, vertices %u, dim %u, R %u, L %u, threads %u\n",
		   (unsigned long long) u->rows, u->vertices, t->params.dim,
		   t->params.max_degree, t->params.build_list_size, o->threads);
	printf("build: %.1f s (codes %.1f, links %.1f, placement %.1f, files "
		   "%.1f), average degree %.1f, placement quality %.3f\n",
		   seconds, u->seconds_train, u->seconds_link, u->seconds_place,
		   u->seconds_write, u->average_degree, u->placement_quality);
	printf("build: pq_bytes %u%s, code recall@10 %.3f, edge pages %u, entrance "
		   "members %u, peak RSS %.1f MB\n",
		   u->pq_bytes, u->pq_rotated ? " rotated" : "", u->pq_recall,
		   u->edge_pages, u->entrance_members,
		   (double) tool_peak_bytes() / 1e6);
	bench_json_begin(j, "build");
	bench_json_number(j, "rows", (double) u->rows);
	bench_json_number(j, "dim", t->params.dim);
	bench_json_number(j, "seconds", seconds);
	bench_json_number(j, "average_degree", u->average_degree);
	bench_json_number(j, "placement_quality", u->placement_quality);
	bench_json_number(j, "pq_bytes", u->pq_bytes);
	bench_json_number(j, "code_recall", u->pq_recall);
	bench_json_number(j, "edge_pages", u->edge_pages);
	bench_json_number(j, "entrance_members", u->entrance_members);
	bench_json_number(j, "peak_rss", (double) tool_peak_bytes());
	bench_json_end(j);
	bench_json_close(j);
}

/* What fails leaves no directory that the next try would stumble over. */
static const char *unfinished;

static void
remove_unfinished(void)
{
	const char *dir = unfinished;

	unfinished = NULL;
	if (dir != NULL)
		tool_remove(dir);
}

static void
run(tool *t, const options *o)
{
	uint64_t begun = nv_now_ns();
	tool_journal *journal;
	bench_rows *rows;
	nv_request *r;
	nv_error err;

	bench_check(bench_rows_open(o->data, o->type, &rows, &err), &err);
	if (o->count > rows->n)
		bench_die("--count", "the file has fewer rows");
	t->rows = o->count > 0 ? o->count : rows->n;
	t->params.dim = rows->dim;
	if (mkdir(o->dir, 0700) != 0)
		bench_die(o->dir, strerror(errno));
	unfinished = o->dir;
	atexit(remove_unfinished);
	journal = tool_journal_create(o->dir);
	t->config.insert_threads = 0;
	tool_start(t, o->dir);
	r = tool_request(t, NV_REQ_BUILD_BEGIN, 1);
	r->u.build.params = t->params;
	r->u.build.expected_rows = t->rows;
	r->u.build.build_memory = o->budget;
	r->u.build.threads = o->threads;
	r->u.build.placement_random = o->random_placement;
	tool_call(t, r, "begin build");
	add_rows(t, r, rows, journal);
	r->kind = NV_REQ_BUILD_RUN;
	tool_call_long(t, r, "build");
	tool_journal_close(journal, &t->params);
	report(t, o, &r->u.build, (double) (nv_now_ns() - begun) / 1e9);
	tool_stop(t, true);
	unfinished = NULL;
	bench_rows_close(rows);
	free(r);
}

/* --- command line --- */

#define AT(field) offsetof(options, field)
#define PARAM(field) offsetof(options, tool.params.field)

static const bench_argument known[] = {
	{"-d", "DATA", "file of vectors; formats are in bench/README.md",
	 bench_take_text, AT(data), 0, 0, NULL, ALWAYS},
	{"-o", "DIR", "the index; is made, and may not be there yet",
	 bench_take_text, AT(dir), 0, 0, NULL, ALWAYS},
	{"-t", "TYPE",
	 "values of a .bin file: float, int8 or uint8 (default float)",
	 bench_take_type, AT(type)},
	{"-m", "METRIC", "l2, cosine or ip (default l2)", bench_take_metric,
	 PARAM(metric)},
	{"--count", "N", "rows, from the first on; default: all", bench_take_long,
	 AT(count), 1, UINT32_MAX - 1},
	{"-R", "N", "edges of a vertex, at most", bench_take_count,
	 PARAM(max_degree), 4, 512},
	{"-L", "N", "search list of the build", bench_take_count,
	 PARAM(build_list_size), 4, 10000},
	{"--alpha", "A", "slack of pruning", bench_take_float, PARAM(alpha), 1, 2},
	{"--pq-bytes", "N",
	 "bytes of a vector's code; 0: chosen by the codes' own recall",
	 bench_take_count, PARAM(pq_bytes), 0, 256},
	{"--sample", "SHARE", "of the vertices in the entrance graph",
	 bench_take_float, PARAM(entrance_ratio), 0.0001, 0.1},
	{"--ent-R", "N", "edges of a vertex there, at most", bench_take_count,
	 PARAM(entrance_degree), 4, 512},
	{"--mem-budget", "GB",
	 "what the build may hold, in 10^9 bytes; default: 75 % of memory",
	 bench_take_gb, AT(budget), 0, 1e6},
	{"--threads", "N", "default: one for each processor", bench_take_count,
	 AT(threads), 1, 64},
	{"--warmup-queries", "N", "searches that calibrate a rerank window",
	 bench_take_count, AT(tool.config.casr_warmup), 1, 10000},
	{"--random-placement", NULL,
	 "ablation: edge lists anywhere, not near their neighbours'",
	 bench_take_switch, AT(random_placement)},
	{"--json", "FILE", "append the figures as a line of JSON", bench_take_text,
	 AT(json)}};

static const bench_command command = {
	"navis_build -d DATA -o DIR [options]",
	"Builds an index over a file of vectors, without a server.\n", known,
	NV_LENGTH(known), NULL};

int
main(int argc, char **argv)
{
	static options o;

	bench_program = "navis_build";
	nv_blas_prepare();
	tool_init(&o.tool);
	o.threads = bench_processors();
	o.budget = bench_default_budget();
	o.tool.params = (nv_index_params){.metric = NV_METRIC_L2,
									  .max_degree = 96,
									  .build_list_size = 100,
									  .entrance_degree = 32,
									  .alpha = 1.2f,
									  .entrance_ratio = 0.01f};
	bench_no_more(bench_parse_arguments(&command, &o, argc, argv), argc, argv);
	run(&o.tool, &o);
	return 0;
}
