/*
 * navis_build.c
 *		Builds an index over a file of vectors, without a server.
 *
 *	navis_build -d DATA -o DIR [-t float|int8|uint8] [-m l2|cosine|ip]
 *				[--count N] [-R 96] [-L 100] [--pq-bytes 0] [--alpha 1.2]
 *				[--sample 0.01] [--ent-R 32] [--mem-budget GB] [--threads N]
 *				[--warmup-queries 1000] [--random-placement] [--json FILE]
 *
 * DIR is made and gets the index and rows.journal (tool.h).  --pq-bytes 0
 * chooses the size by the codes' own recall.  --mem-budget bounds what the
 *build holds; rows that do not fit are an error before anything is written.
 *8-bit values are kept as floats.
 *
 * Source: navis-system.txt, navis_build.  The entrance graph's build list is
 * 64 as there, and is no option.
 */
#include <errno.h>
#include <getopt.h>
#include <sys/stat.h>

#include "blas.h"
#include "json.h"
#include "navis/hash.h"
#include "progress.h"
#include "tool.h"

typedef struct options
{
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

enum
{
	COUNT = 256,
	PQ,
	BUDGET,
	ALPHA,
	SAMPLE,
	ENT_R,
	THREADS,
	WARMUP,
	RANDOM,
	JSON
};

static const struct option known[] = {{"count", 1, NULL, COUNT},
									  {"pq-bytes", 1, NULL, PQ},
									  {"mem-budget", 1, NULL, BUDGET},
									  {"alpha", 1, NULL, ALPHA},
									  {"sample", 1, NULL, SAMPLE},
									  {"ent-R", 1, NULL, ENT_R},
									  {"threads", 1, NULL, THREADS},
									  {"warmup-queries", 1, NULL, WARMUP},
									  {"random-placement", 0, NULL, RANDOM},
									  {"json", 1, NULL, JSON},
									  {NULL, 0, NULL, 0}};

static void
parse_long(tool *t, options *o, int c)
{
	switch (c)
	{
		case COUNT:
			o->count = bench_count_option("--count", 1, UINT32_MAX - 1);
			break;
		case PQ:
			t->params.pq_bytes = bench_count_option("--pq-bytes", 0, 256);
			break;
		case BUDGET:
			o->budget =
				(uint64_t) (bench_parse_real("--mem-budget", optarg, 0, 1e6) *
							1e9);
			break;
		case ALPHA:
			t->params.alpha = (float) bench_parse_real("--alpha", optarg, 1, 2);
			break;
		case SAMPLE:
			t->params.entrance_ratio =
				(float) bench_parse_real("--sample", optarg, 0.0001, 0.1);
			break;
		case ENT_R:
			t->params.entrance_degree = bench_count_option("--ent-R", 4, 512);
			break;
		case THREADS:
			o->threads = bench_count_option("--threads", 1, 64);
			break;
		case WARMUP:
			t->config.casr_warmup =
				bench_count_option("--warmup-queries", 1, 10000);
			break;
		case RANDOM:
			o->random_placement = true;
			break;
		case JSON:
			o->json = optarg;
			break;
		default:
			exit(2);
	}
}

static void
parse(tool *t, options *o, int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "d:o:t:m:R:L:", known, NULL)) != -1)
		switch (c)
		{
			case 'd':
				o->data = optarg;
				break;
			case 'o':
				o->dir = optarg;
				break;
			case 't':
				o->type = bench_parse_type(optarg);
				break;
			case 'm':
				t->params.metric = bench_parse_metric(optarg);
				break;
			case 'R':
				t->params.max_degree = bench_count_option("-R", 4, 512);
				break;
			case 'L':
				t->params.build_list_size = bench_count_option("-L", 4, 10000);
				break;
			default:
				parse_long(t, o, c);
				break;
		}
	if (optind < argc)
		bench_die(argv[optind], "not expected");
	bench_require(o->data, "-d DATA is missing");
	bench_require(o->dir, "-o DIR is missing");
}

int
main(int argc, char **argv)
{
	static tool t;
	options o = {.threads = bench_processors(),
				 .budget = bench_default_budget()};

	bench_program = "navis_build";
	nv_blas_prepare();
	tool_init(&t);
	t.params = (nv_index_params){.metric = NV_METRIC_L2,
								 .max_degree = 96,
								 .build_list_size = 100,
								 .entrance_degree = 32,
								 .alpha = 1.2f,
								 .entrance_ratio = 0.01f};
	parse(&t, &o, argc, argv);
	run(&t, &o);
	return 0;
}
