/*
 * engine_update.c
 *		engine_bench's modes for an index that changes: rows inserted one by
 *		one, and a window that slides over the rows.
 *
 * insert builds over the first N rows and inserts the others, each client
 * its share, with at most QUEUE of them waiting to be linked.  replace builds
 * over a window of N rows and in each round deletes the oldest fifth,
 * consolidates as VACUUM does, and inserts as many new ones.  Then another
 * index is built over the rows that are there, and the two are compared: recall
 * at equal list sizes, lengths of files.  Exact neighbours are computed here,
 * for the rows of the moment.
 */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "engine_bench.h"
#include "exact.h"
#include "util.h"

#define QUEUE_CHECK 64   /* rows a client inserts before it looks again */
#define SHARE 5          /* a round replaces one row of five */
#define FIRST_OWNER 1000 /* numbers of the inserting clients */

/* Lengths of an index's files, after a checkpoint. */
typedef struct sizes
{
	uint64_t edges, vectors, state;
} sizes;

/* --- inserting --- */

typedef struct feeder
{
	pthread_t thread;
	const bench *b;
	const bench_matrix *rows;
	uint32_t begin, end, step;
} feeder;

static void
ask_info(const bench *b, nv_request *r)
{
	r->kind = NV_REQ_INFO;
	eb_call(b, r, "info");
}

/* Returns when at most so many rows wait to be linked. */
static void
await_queue(const bench *b, nv_request *r, uint64_t rows)
{
	for (;;)
	{
		ask_info(b, r);
		if (r->u.info.pending_rows <= rows)
			return;
		usleep(1000);
	}
}

/* A place in the insert queue, as a backend takes one; waits for room. */
static void
take_place(const bench *b, nv_request *r)
{
	uint64_t word = atomic_load(&r->place[0]);
	uint64_t taken = (word & ~(uint64_t) NV_PLACE_STATE) | NV_PLACE_TAKEN;

	if ((word & NV_PLACE_STATE) == NV_PLACE_OFFERED &&
		atomic_compare_exchange_strong(&r->place[0], &word, taken))
		return;
	r->kind = NV_REQ_RESERVE;
	r->u.reserve = (nv_req_reserve){.place = 0};
	atomic_store(&r->place[0], NV_PLACE_WANTED);
	eb_call(b, r, "reserve");
	if (!r->u.reserve.granted)
		atomic_store(&r->place[0], NV_PLACE_NONE);
}

static void *
feeder_main(void *arg)
{
	const feeder *f = arg;
	const bench *b = f->b;
	uint32_t dim = f->rows->dim, sent = 0;
	nv_request *r = eb_request(b, NV_REQ_INFO, FIRST_OWNER + f->begin);

	for (uint32_t row = f->begin; row < f->end; row += f->step)
	{
		const uint32_t *vector = f->rows->words + (size_t) row * dim;
		nv_journal_entry entry = eb_name(b, row, vector, dim);

		/* Else the engine lets more come and builds over all of them. */
		if (sent++ % QUEUE_CHECK == 0)
			await_queue(b, r, b->o.queue);
		take_place(b, r);
		r->kind = NV_REQ_INSERT;
		r->u.insert = (nv_req_insert){
			.element = entry.element,
			.generation = entry.generation,
			.hash = entry.hash,
			.dim = dim,
		};
		memcpy(r->data, vector, dim * 4);
		eb_call(b, r, "insert");
	}
	free(r);
	return NULL;
}

/* Inserts rows [begin, end) and waits until all are linked; seconds. */
static double
insert_rows(bench *b, const bench_matrix *rows, uint32_t begin, uint32_t end)
{
	uint32_t clients = b->o.clients.values[0];
	feeder feeders[BENCH_MAX_CLIENTS];
	nv_request *r = eb_request(b, NV_REQ_INFO, 1);
	uint64_t begun = nv_now_ns();

	for (uint32_t i = 0; i < clients; i++)
	{
		feeders[i] = (feeder){.b = b,
							  .rows = rows,
							  .begin = begin + i,
							  .end = end,
							  .step = clients};
		if (pthread_create(&feeders[i].thread, NULL, feeder_main,
						   &feeders[i]) != 0)
			bench_die("client", "cannot start a thread");
	}
	for (uint32_t i = 0; i < clients; i++)
		pthread_join(feeders[i].thread, NULL);
	await_queue(b, r, 0);
	free(r);
	return (double) (nv_now_ns() - begun) / 1e9;
}

/* What position seeking and linking did since the index was opened. */
static void
print_work(const bench *b, nv_request *r)
{
	const nv_req_info *i = &r->u.info;
	double seeks;

	ask_info(b, r);
	seeks = (double) NV_MAX(i->seeks, UINT64_C(1));
	printf("\n| work of an insert | |\n|---|---:|\n");
	printf("| insert threads | %u |\n| list size | %u |\n", i->insert_threads,
		   b->o.insert_list);
	printf("| w | %d |\n", (int) i->window_insert);
	printf("| rows linked | %llu |\n| to equal vectors | %llu |\n",
		   (unsigned long long) i->inserted,
		   (unsigned long long) i->inserted_equal);
	printf("| explored | %.1f |\n", (double) i->seek_explored / seeks);
	printf("| vectors loaded | %.1f |\n", (double) i->seek_vectors / seeks);
	printf("| loaded of explored | %.3f |\n",
		   (double) i->seek_vectors /
			   (double) NV_MAX(i->seek_explored, UINT64_C(1)));
	printf("| edge pages | %.1f |\n", (double) i->seek_pages / seeks);
	printf("| edge pages read | %.1f |\n", (double) i->seek_reads / seeks);
	printf("| lists rewritten | %.1f |\n", (double) i->relinks / seeks);
	printf("| full lists | %.2f |\n", (double) i->overflows / seeks);
	printf("| lists moved | %.1f |\n", (double) i->moved / seeks);
	printf("| promotions | %llu |\n| failures | %llu |\n",
		   (unsigned long long) i->promotions,
		   (unsigned long long) i->insert_failures);
	printf("| vertices the graph was built over | %u |\n\n", i->built);
	fflush(stdout);
}

/* --- comparing --- */

static void
exact_truth(bench *b, const bench_matrix *rows, uint32_t first, uint32_t n)
{
	free(b->truth.words);
	b->truth = bench_exact((nv_metric) b->o.params.metric, rows, first, n,
						   &b->query, b->o.threads);
}

static sizes
checkpoint(const bench *b, nv_request *r)
{
	r->kind = NV_REQ_CHECKPOINT;
	eb_call(b, r, "checkpoint");
	ask_info(b, r);
	return (sizes){r->u.info.edge_bytes, r->u.info.vector_bytes,
				   r->u.info.state_bytes};
}

static void
print_size(const char *what, uint64_t changed, uint64_t fresh)
{
	printf("| %s | %.1f | %.1f | %.3f |\n", what, (double) changed / 1e6,
		   (double) fresh / 1e6, (double) changed / (double) fresh);
}

/*
 * Builds the index anew over the rows and prints it beside the changed one,
 * whose recalls and files are given.
 */
static void
compare_with_fresh(bench *b, const eb_source *from, const double *recalls,
				   sizes changed)
{
	double fresh_recalls[BENCH_MAX_NUMBERS];
	sizes fresh;
	nv_request *r;

	printf("### Fresh build\n\n");
	b->key.identity[0] = 2;
	eb_free_clients(b);
	eb_make_clients(b);
	eb_build(b, from);
	printf("\n");
	eb_sweep(b, fresh_recalls);
	r = eb_request(b, NV_REQ_INFO, 1);
	fresh = checkpoint(b, r);
	printf("### Side by side\n\n| list | changed | fresh | difference |\n"
		   "|---:|---:|---:|---:|\n");
	for (uint32_t i = 0; i < b->o.sweep.n; i++)
		printf("| %u | %.4f | %.4f | %+.4f |\n", b->o.sweep.values[i],
			   recalls[i], fresh_recalls[i], recalls[i] - fresh_recalls[i]);
	printf("\n| file, MB | changed | fresh | ratio |\n|---|---:|---:|---:|\n");
	print_size("edges", changed.edges, fresh.edges);
	print_size("vectors", changed.vectors, fresh.vectors);
	print_size("state", changed.state, fresh.state);
	print_size("all files", changed.edges + changed.vectors + changed.state,
			   fresh.edges + fresh.vectors + fresh.state);
	free(r);
}

static bench_matrix
read_data(bench *b)
{
	bench_matrix rows = bench_read_matrix(b->o.base);

	if (b->o.rows != 0 && b->o.rows < rows.n)
		rows.n = b->o.rows;
	b->query = bench_read_matrix(b->o.query);
	b->truth = (bench_matrix){0};
	eb_make_clients(b);
	eb_start(b);
	return rows;
}

/* --- insert --- */

void
eb_run_insert(bench *b)
{
	bench_matrix rows = read_data(b);
	eb_source from = {.words = rows.words, .n = b->o.first, .dim = rows.dim};
	double recalls[BENCH_MAX_NUMBERS], seconds, cpu;
	nv_request *r = eb_request(b, NV_REQ_INFO, 1);
	sizes changed;

	if (b->o.first < BENCH_K || b->o.first >= rows.n)
		bench_die("--first", "a number below that of the rows expected");
	b->o.window = 0;
	printf("### Before\n\n");
	eb_build(b, &from);
	printf("\n");
	exact_truth(b, &rows, 0, from.n);
	eb_sweep(b, NULL);
	printf("### %u rows inserted\n\n", rows.n - from.n);
	cpu = bench_proc_cpu_seconds(0);
	seconds = insert_rows(b, &rows, from.n, rows.n);
	cpu = bench_proc_cpu_seconds(0) - cpu;
	printf("insert: %u rows in %.2f s: %.0f rows/s, %.3f ms of processor time "
		   "a row; %u clients, %u rows wait at most, cache %u MB\n",
		   rows.n - from.n, seconds, (rows.n - from.n) / seconds,
		   cpu * 1e3 / (rows.n - from.n), b->o.clients.values[0], b->o.queue,
		   b->o.cache_mb);
	print_work(b, r);
	changed = checkpoint(b, r);
	exact_truth(b, &rows, 0, rows.n);
	eb_sweep(b, recalls);
	from.n = rows.n;
	compare_with_fresh(b, &from, recalls, changed);
	free(r);
	free(rows.words);
	eb_free_clients(b);
}

/* --- replace --- */

/* Deletes rows [begin, end) as VACUUM does. */
static void
delete_rows(const bench *b, nv_request *r, const bench_matrix *rows,
			uint32_t begin, uint32_t end)
{
	nv_element_ref *refs = (nv_element_ref *) r->data;
	const uint32_t most = NV_REQUEST_DATA / sizeof(*refs);

	while (begin < end)
	{
		uint32_t n = NV_MIN(end - begin, most);

		for (uint32_t i = 0; i < n; i++, begin++)
		{
			nv_journal_entry entry = eb_name(
				b, begin, rows->words + (size_t) begin * rows->dim, rows->dim);

			refs[i] = (nv_element_ref){entry.element, entry.generation};
		}
		r->kind = NV_REQ_DELETE;
		r->u.del = (nv_req_delete){.n = n};
		eb_call(b, r, "delete");
	}
}

/* As VACUUM asks for it after its deletions; seconds. */
static double
consolidate(const bench *b, nv_request *r)
{
	uint64_t begun = nv_now_ns();

	r->kind = NV_REQ_CONSOLIDATE;
	r->u.consolidate =
		(nv_req_consolidate){.threshold = b->o.params.consolidate_threshold};
	eb_call(b, r, "consolidate");
	return (double) (nv_now_ns() - begun) / 1e9;
}

/* One line for each round, under the heads of its sweep. */
static void
print_round(const bench *b, nv_request *r, uint32_t round, double rate,
			const double *recalls)
{
	const nv_req_info *i = &r->u.info;
	sizes now = checkpoint(b, r);

	printf("round %u: %.0f rows/s; recall", round, rate);
	for (uint32_t k = 0; k < b->o.sweep.n; k++)
		printf(" %.4f at %u,", recalls[k], b->o.sweep.values[k]);
	printf(" %llu of %llu vertices deleted, files %.1f + %.1f + %.1f MB, "
		   "%llu of %llu edge pages free\n\n",
		   (unsigned long long) i->deleted, (unsigned long long) i->vertices,
		   (double) now.edges / 1e6, (double) now.vectors / 1e6,
		   (double) now.state / 1e6, (unsigned long long) i->free_pages,
		   (unsigned long long) i->edge_pages);
	fflush(stdout);
}

static uint32_t
replace_round(bench *b, nv_request *r, const bench_matrix *rows, uint32_t first,
			  uint32_t round, double *recalls)
{
	uint32_t window = b->o.window, part = window / SHARE;
	double seconds;

	printf("### Round %u\n\n", round);
	delete_rows(b, r, rows, first, first + part);
	printf("consolidated in %.2f s\n\n", consolidate(b, r));
	seconds = insert_rows(b, rows, first + window, first + window + part);
	exact_truth(b, rows, first + part, window);
	eb_sweep(b, recalls);
	print_round(b, r, round, part / seconds, recalls);
	return first + part;
}

void
eb_run_replace(bench *b)
{
	bench_matrix rows = read_data(b);
	eb_source from = {.words = rows.words, .n = b->o.window, .dim = rows.dim};
	double recalls[BENCH_MAX_NUMBERS];
	nv_request *r = eb_request(b, NV_REQ_INFO, 1);
	sizes changed;

	if (b->o.window / SHARE < BENCH_K ||
		b->o.window + (uint64_t) b->o.rounds * (b->o.window / SHARE) > rows.n)
		bench_die("--window", "there are not enough rows for the rounds");
	printf("### Before\n\n");
	eb_build(b, &from);
	printf("\n");
	exact_truth(b, &rows, 0, from.n);
	eb_sweep(b, recalls);
	for (uint32_t round = 1; round <= b->o.rounds; round++)
		from.first = replace_round(b, r, &rows, from.first, round, recalls);
	print_work(b, r);
	changed = checkpoint(b, r);
	compare_with_fresh(b, &from, recalls, changed);
	free(r);
	free(rows.words);
	eb_free_clients(b);
}
