/*
 * navis_convert.c
 *		Data for the benchmarks: subsets and other formats, a generator, exact
 *		neighbours, those of moving data included.
 *
 * subset converts when IN and OUT have other formats (vectors.h lists them).
 * batch-gt writes PREFIX_<offset>.bin for every batch boundary: -o for data
 * that grows, rows [0, N + offset), --delete-o for a sliding window, rows
 * [offset, N + offset); one pass gives both (truth.h).
 *
 * Source: navis-system.txt, navis_convert.
 */
#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "truth.h"
#include "generate.h"
#include "options.h"
#include "parallel.h"
#include "progress.h"
#include "util.h"

#define COPY_BYTES (UINT64_C(4) << 20)

typedef struct options
{
	const char *files[2];
	const char *out, *delete_out;
	uint64_t count, first, index_npts, total_npts, batch, seed, drift_from;
	uint64_t budget;
	uint32_t k, threads, dim, metric;
	bench_element type;
	bench_stream stream;
} options;

static bench_rows *
open_rows(const char *path, bench_element type)
{
	bench_rows *rows;
	nv_error err;

	bench_check(bench_rows_open(path, type, &rows, &err), &err);
	return rows;
}

/* --- subset --- */

static void
copy_rows(bench_rows *in, bench_writer *out, uint64_t first, uint64_t n)
{
	uint64_t at_once = NV_MAX(COPY_BYTES / (in->dim * 4), 1);
	uint32_t *words = bench_allocate(at_once * in->dim, 4);
	bench_progress progress;
	nv_error err;
	nv_status status = NV_OK;

	bench_progress_begin(&progress, "rows", n);
	for (uint64_t done = 0, part; done < n && status == NV_OK; done += part)
	{
		part = NV_MIN(n - done, at_once);
		if (in->element == BENCH_UINT32)
		{
			status = bench_rows_read_ids(in, first + done, part, words, &err);
			if (status == NV_OK)
				status = bench_writer_add_ids(out, words, part, &err);
		}
		else
		{
			status =
				bench_rows_read(in, first + done, part, (float *) words, &err);
			if (status == NV_OK)
				status =
					bench_writer_add(out, (const float *) words, part, &err);
		}
		bench_progress_show(&progress, done);
	}
	bench_progress_end(&progress);
	free(words);
	if (status != NV_OK)
		bench_writer_abandon(out);
	else
		status = bench_writer_close(out, &err);
	bench_check(status, &err);
}

static void
run_subset(const options *o)
{
	bench_rows *in;
	bench_writer *out;
	uint64_t n;
	nv_error err;

	bench_require(o->files[1], "OUT");
	in = open_rows(o->files[0], o->type);
	if (o->first > in->n || o->count > in->n - o->first)
		bench_die(o->files[0], "has fewer rows than asked for");
	n = o->count > 0 ? o->count : in->n - o->first;
	bench_check(bench_writer_create(o->files[1], o->type, in->dim, &out, &err),
				&err);
	copy_rows(in, out, o->first, n);
	printf("%s: %llu rows of %u %s values\n", o->files[1],
		   (unsigned long long) n, in->dim, bench_element_name(in->element));
	bench_rows_close(in);
}

/* --- generate --- */

typedef struct generating
{
	const bench_generator *generator;
	bench_stream stream;
	uint64_t first;
	uint32_t dim;
	float *rows;
} generating;

static void
generate_row(void *arg, uint32_t worker, uint64_t step)
{
	generating *g = arg;

	bench_generate(g->generator, g->stream, g->first + step,
				   g->rows + step * g->dim);
}

static void
run_generate(const options *o)
{
	uint64_t at_once = NV_MAX(COPY_BYTES / (o->dim * 4), 1);
	generating g = {.stream = o->stream, .dim = o->dim};
	bench_generator *generator;
	bench_progress progress;
	bench_writer *out;
	nv_error err;
	nv_status status;

	bench_check(bench_generator_create(o->seed, o->dim, o->drift_from,
									   &generator, &err),
				&err);
	g.generator = generator;
	g.rows = bench_allocate(at_once * o->dim, sizeof(float));
	bench_check(bench_writer_create(o->files[0], o->type, o->dim, &out, &err),
				&err);
	bench_progress_begin(&progress, "rows", o->count);
	status = NV_OK;
	for (uint64_t done = 0, part; done < o->count && status == NV_OK;
		 done += part)
	{
		part = NV_MIN(o->count - done, at_once);
		g.first = o->first + done;
		status = nv_parallel_run(o->threads, part, generate_row, &g, NULL, NULL,
								 &err);
		if (status == NV_OK)
			status = bench_writer_add(out, g.rows, part, &err);
		bench_progress_show(&progress, done);
	}
	bench_progress_end(&progress);
	if (status != NV_OK)
		bench_writer_abandon(out);
	else
		status = bench_writer_close(out, &err);
	bench_check(status, &err);
	printf("%s: %llu rows of %u dimensions, seed %llu\n", o->files[0],
		   (unsigned long long) o->count, o->dim, (unsigned long long) o->seed);
	free(g.rows);
	bench_generator_free(generator);
}

/* --- exact neighbours --- */

static void
find_exact(const options *o, const uint64_t *bounds, uint32_t n_blocks,
		   bench_exact *exact)
{
	bench_exact_params params = {
		(nv_metric) o->metric, o->k, o->threads, o->budget, bounds, n_blocks};
	bench_rows *data = open_rows(o->files[0], o->type);
	bench_rows *queries = open_rows(o->files[1], o->type);
	uint64_t begun = bench_now_ns();
	nv_error err;

	bench_check(bench_exact_run(data, queries, &params, exact, &err), &err);
	printf("exact neighbours of %u queries among %llu rows: %.1f s, %u blocks, "
		   "%llu rows at a time, %llu compared row by row\n",
		   exact->n_queries,
		   (unsigned long long) (bounds[n_blocks] - bounds[0]),
		   (double) (bench_now_ns() - begun) / 1e9, n_blocks,
		   (unsigned long long) exact->partition,
		   (unsigned long long) exact->full);
	bench_rows_close(queries);
	bench_rows_close(data);
}

static void
write_union(const bench_exact *exact, uint32_t first, uint32_t end,
			const char *path)
{
	bench_truth truth;
	nv_error err;

	bench_check(bench_exact_union(exact, first, end, &truth, &err), &err);
	bench_check(bench_truth_write(path, &truth, &err), &err);
	bench_truth_free(&truth);
}

static void
run_gt(const options *o)
{
	uint64_t bounds[2] = {0, o->count};
	bench_exact exact;

	bench_require(o->files[1], "QUERIES");
	if (o->count == 0)
	{
		bench_rows *data = open_rows(o->files[0], o->type);

		bounds[1] = data->n;
		bench_rows_close(data);
	}
	find_exact(o, bounds, 1, &exact);
	write_union(&exact, 0, 1, o->out);
	bench_exact_free(&exact);
}

/* One file for each offset of both workloads. */
static void
write_batches(const options *o, const bench_exact *exact,
			  const uint64_t *bounds, uint32_t n_blocks)
{
	char path[4096];
	uint32_t files = 0;

	for (uint64_t offset = 0; o->index_npts + offset <= o->total_npts;
		 offset += o->batch)
	{
		uint32_t first = bench_bound_at(bounds, n_blocks, offset);
		uint32_t end = bench_bound_at(bounds, n_blocks, o->index_npts + offset);

		if (o->out != NULL)
		{
			snprintf(path, sizeof(path), "%s_%llu.bin", o->out,
					 (unsigned long long) offset);
			write_union(exact, 0, end, path);
			files++;
		}
		if (o->delete_out != NULL)
		{
			snprintf(path, sizeof(path), "%s_%llu.bin", o->delete_out,
					 (unsigned long long) offset);
			write_union(exact, first, end, path);
			files++;
		}
	}
	printf("%u files written\n", files);
}

static void
run_batch_gt(const options *o)
{
	uint64_t *bounds;
	uint32_t n_blocks;
	bench_exact exact;

	bench_require(o->files[1], "QUERIES");
	if (o->out == NULL && o->delete_out == NULL)
		bench_usage("-o or --delete-o", "is missing");
	if (o->total_npts < o->index_npts)
		bench_usage("--total-npts", "is below --index-npts");
	bounds = bench_need(
		bench_moving_bounds(o->index_npts, o->batch, o->total_npts, &n_blocks));
	find_exact(o, bounds, n_blocks, &exact);
	write_batches(o, &exact, bounds, n_blocks);
	bench_exact_free(&exact);
	free(bounds);
}

static void
run_info(const options *o)
{
	bench_rows *rows = open_rows(o->files[0], o->type);

	printf("%s: %llu rows of %u %s values\n", o->files[0],
		   (unsigned long long) rows->n, rows->dim,
		   bench_element_name(rows->element));
	bench_rows_close(rows);
}

/* --- command line --- */

#define AT(field) offsetof(options, field)

static void
take_stream(const bench_argument *a, const char *text, void *options_)
{
	if (strcmp(text, "query") != 0 && strcmp(text, "base") != 0)
		bench_usage(a->name, "base or query expected");
	((options *) options_)->stream =
		text[0] == 'q' ? BENCH_STREAM_QUERY : BENCH_STREAM_BASE;
}

static const bench_argument known[] = {
	{"-o", "OUT",
	 "gt: the file; batch-gt: PREFIX of PREFIX_<offset>.bin for "
	 "data that grows, rows 0 to N + offset",
	 bench_take_text, AT(out), 0, 0, "gt batch-gt", "gt"},
	{"--delete-o", "PREFIX",
	 "the same for a sliding window, rows offset to N + offset",
	 bench_take_text, AT(delete_out), 0, 0, "batch-gt"},
	{"--index-npts", "N", "rows of the first index", bench_take_long,
	 AT(index_npts), 1, UINT32_MAX, "batch-gt", "batch-gt"},
	{"--total-npts", "N", "rows in the end", bench_take_long, AT(total_npts), 1,
	 UINT32_MAX, "batch-gt", "batch-gt"},
	{"--batch", "N", "rows a batch", bench_take_long, AT(batch), 1, UINT32_MAX,
	 "batch-gt", "batch-gt"},
	{"-K", "N", "neighbours of a query", bench_take_count, AT(k), 1,
	 BENCH_EXACT_MAX_K, "gt batch-gt"},
	{"-m", "METRIC", "l2, cosine or ip (default l2)", bench_take_metric,
	 AT(metric), 0, 0, "gt batch-gt"},
	{"--mem-budget", "GB",
	 "what may be held, in 10^9 bytes; default: 75 % of memory", bench_take_gb,
	 AT(budget), 0, 1e6, "gt batch-gt"},
	{"--count", "N", "rows; default: all", bench_take_long, AT(count), 1,
	 UINT32_MAX, "subset generate gt", "generate"},
	{"--first", "N", "number of the first row", bench_take_long, AT(first), 0,
	 UINT32_MAX, "subset generate"},
	{"--stream", "NAME",
	 "base or query: rows that are never the other's "
	 "(default base)",
	 take_stream, 0, 0, 0, "generate"},
	{"--dim", "N", "dimensions", bench_take_count, AT(dim), 1, 16000,
	 "generate"},
	{"--seed", "N", "rows depend on it and their numbers only", bench_take_long,
	 AT(seed), 0, UINT32_MAX, "generate"},
	{"--drift-from", "N",
	 "rows from N on come from regions that those before have not; 0: no drift",
	 bench_take_long, AT(drift_from), 0, UINT32_MAX, "generate"},
	{"-t", "TYPE",
	 "values of a .bin file: float, int8 or uint8 (default float)",
	 bench_take_type, AT(type)},
	{"--threads", "N", "default: one for each processor", bench_take_count,
	 AT(threads), 1, 64, "generate gt batch-gt"}};

static const bench_command command = {
	"navis_convert subset IN OUT [options]\n"
	"       navis_convert generate OUT --count N [options]\n"
	"       navis_convert gt DATA QUERIES -o OUT [options]\n"
	"       navis_convert batch-gt DATA QUERIES --index-npts N --total-npts N\n"
	"                     --batch N [-o PREFIX] [--delete-o PREFIX] [options]\n"
	"       navis_convert info FILE",
	"Data for the benchmarks: some rows of a file, in the format that OUT's "
	"name\n"
	"says; generated rows; exact neighbours, and those of moving data for "
	"every\n"
	"batch; what a file holds.  Formats are in bench/README.md.\n",
	known, NV_LENGTH(known), "subset generate gt batch-gt info"};

static void
parse(options *o, int argc, char **argv)
{
	int first = bench_parse_arguments(&command, o, argc, argv);

	for (int i = 0; i < 2 && first < argc; i++)
		o->files[i] = argv[first++];
	bench_no_more(first, argc, argv);
	bench_require(o->files[0], "the file");
}

int
main(int argc, char **argv)
{
	static const struct
	{
		const char *name;
		void (*run)(const options *);
	} commands[] = {{"subset", run_subset},
					{"generate", run_generate},
					{"gt", run_gt},
					{"batch-gt", run_batch_gt},
					{"info", run_info}};
	options o = {.k = 10,
				 .threads = bench_processors(),
				 .budget = bench_default_budget(),
				 .dim = 768,
				 .seed = 42,
				 .metric = NV_METRIC_L2};

	bench_program = "navis_convert";
	nv_blas_prepare();
	parse(&o, argc, argv);
	for (size_t i = 0; i < NV_LENGTH(commands); i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			commands[i].run(&o);
	return 0;
}
