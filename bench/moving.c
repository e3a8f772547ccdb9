/*
 * moving.c
 *		Batches of insertions and deletions; see moving.h.
 *
 * A row counts as inserted when it is linked into the graph, and a batch is
 * over when all its rows are and as many of the oldest are deleted; until then
 * a feeder keeps a short queue of rows that wait.  Beside a batch: wait, one
 * pass over the queries, pause, repeat; no recall there, since the data moves.
 * A pass that the end of the batch cuts off counts with the queries it
 * answered.  After the batch one pass with recall, against the truth of the
 * rows that are live then.
 *
 * Throughput is rows inserted by batch time.  The latency of an insertion is
 * its thread's: from the moment it takes the row until the row is linked.
 *
 * Source: navis-system.txt, "The run reports", definitions of the tables.
 */
#include "moving.h"

#include <math.h>
#include <unistd.h>

#include "link_times.h"
#include "navis/hash.h"

#define FEED_PAUSE_US 500
#define WATCH_US 5000
#define DELETE_BATCH 100 /* elements a request */
#define SHOW_SECONDS 10  /* progress of a batch without passes beside it */

/* One batch under way. */
typedef struct batch
{
	const tool *tool;
	const moving_options *o;
	bench_rows *data;
	uint64_t first, oldest; /* rows inserted and deleted from here on */
	uint64_t inserted_before;
	_Atomic uint64_t submitted, deleting, deleted;
	atomic_bool over; /* all is linked and deleted */
} batch;

/* Sums over the run. */
typedef struct totals
{
	double batch_seconds, qps, p50, p99, mean, recall;
	uint64_t rows, passes, scored;
	double insert_mean, insert_p50, insert_p99; /* of each batch */
} totals;

/* --- Feeding --- */

static uint64_t
linked(const batch *b, nv_request *r)
{
	nv_req_info info = tool_info(b->tool, r);

	if (info.state != NV_INDEX_READY)
		bench_die("insertion", "the index is not usable any more");
	return info.inserted - b->inserted_before;
}

static void
insert_row(const batch *b, nv_request *r, uint64_t row, float *vector)
{
	uint32_t dim = b->data->dim;
	nv_error err;

	bench_check(bench_rows_read(b->data, row, 1, vector, &err), &err);
	r->kind = NV_REQ_INSERT;
	memset(&r->u.insert, 0, sizeof(r->u.insert));
	r->u.insert.element = (uint32_t) row;
	r->u.insert.generation = 1;
	r->u.insert.hash = nv_vector_hash(vector, dim * sizeof(float));
	r->u.insert.dim = dim;
	memcpy(r->data, vector, dim * sizeof(float));
	tool_call(b->tool, r, "insert");
}

static void *
feeder_main(void *arg)
{
	batch *b = arg;
	nv_request *r = tool_request(b->tool, NV_REQ_INSERT, 50);
	float *vector = bench_allocate(b->data->dim, sizeof(float));
	uint64_t done = 0;

	for (uint64_t i = 0; i < b->o->batch_size; i++)
	{
		while (i - done >= b->o->queue &&
			   i - (done = linked(b, r)) >= b->o->queue)
			usleep(FEED_PAUSE_US);
		insert_row(b, r, b->first + i, vector);
		atomic_fetch_add(&b->submitted, 1);
	}
	free(vector);
	free(r);
	return NULL;
}

/* Keeps pace with the insertions, so that the live set stays as large. */
static void *
deleter_main(void *arg)
{
	batch *b = arg;
	nv_request *r = tool_request(b->tool, NV_REQ_DELETE, 60);
	nv_element_ref *refs = (nv_element_ref *) r->data;
	uint64_t at;

	while ((at = atomic_fetch_add(&b->deleting, DELETE_BATCH)) <
		   b->o->batch_size)
	{
		uint64_t n = NV_MIN(b->o->batch_size - at, (uint64_t) DELETE_BATCH);

		while (atomic_load(&b->submitted) < at)
			usleep(FEED_PAUSE_US);
		r->kind = NV_REQ_DELETE;
		memset(&r->u.del, 0, sizeof(r->u.del));
		r->u.del.n = (uint32_t) n;
		for (uint64_t i = 0; i < n; i++)
			refs[i] = (nv_element_ref){(uint32_t) (b->oldest + at + i), 1};
		tool_call(b->tool, r, "delete");
		atomic_fetch_add(&b->deleted, n);
	}
	free(r);
	return NULL;
}

/* --- Searches beside --- */

typedef struct beside
{
	batch *b;
	pass_setup *s;
	bench_json *j;
	totals *sum;
	int number; /* of the batch */
	double began;
} beside;

/* False: the batch is over. */
static bool
sleep_beside(const batch *b, double seconds)
{
	double until = pass_clock() + seconds;

	while (pass_clock() < until && !atomic_load(&b->over))
		usleep(WATCH_US);
	return !atomic_load(&b->over);
}

static void
show_progress(const beside *w, uint64_t done)
{
	double now = pass_clock(), rate = (double) done / (now - w->began);

	printf("[%6.1fs] inserted %llu of %llu, %.0f vectors/s%s", now,
		   (unsigned long long) done, (unsigned long long) w->b->o->batch_size,
		   rate, w->b->o->searches ? "; " : "\n");
	fflush(stdout);
	bench_json_begin(w->j, "progress");
	bench_json_number(w->j, "batch", w->number);
	bench_json_number(w->j, "at", now);
	bench_json_number(w->j, "inserted", (double) done);
	bench_json_number(w->j, "rate", rate);
	bench_json_end(w->j);
}

static void
pass_beside(beside *w, nv_request *info)
{
	pass_result r = pass_run(w->s, NULL, &w->b->over);
	uint64_t done = linked(w->b, info);

	if (r.answered == 0)
		return;
	show_progress(w, done);
	pass_print("searches ", &r);
	pass_json(w->j, "beside", w->s, &r, w->number);
	w->sum->qps += r.qps;
	w->sum->mean += r.latency.mean_ms;
	w->sum->p50 += r.latency.p50_ms;
	w->sum->p99 += r.latency.p99_ms;
	w->sum->passes++;
}

static void *
beside_main(void *arg)
{
	beside *w = arg;
	nv_request *info = tool_request(w->b->tool, NV_REQ_INFO, 70);
	const moving_options *o = w->b->o;
	bool searches = o->searches;

	for (double wait = o->first_wait;
		 sleep_beside(w->b, searches ? wait : SHOW_SECONDS); wait = o->pause)
	{
		if (searches)
			pass_beside(w, info);
		else
			show_progress(w, linked(w->b, info));
	}
	free(info);
	return NULL;
}

/* --- A batch --- */

static void
start_thread(pthread_t *thread, void *(*main_fn)(void *), void *arg)
{
	if (pthread_create(thread, NULL, main_fn, arg) != 0)
		bench_die("batch", "cannot start a thread");
}

/* Returns the seconds it took. */
static double
run_batch(batch *b, beside *w, nv_request *info)
{
	pthread_t feeder, searcher, deleters[BENCH_MAX_CLIENTS];
	uint32_t n_deleters = b->o->window ? b->o->delete_threads : 0;
	uint64_t to_delete = b->o->window ? b->o->batch_size : 0;
	double began = w->began = pass_clock(), seconds;

	start_thread(&feeder, feeder_main, b);
	start_thread(&searcher, beside_main, w);
	for (uint32_t i = 0; i < n_deleters; i++)
		start_thread(&deleters[i], deleter_main, b);
	while (linked(b, info) < b->o->batch_size ||
		   atomic_load(&b->deleted) < to_delete)
		usleep(WATCH_US);
	seconds = pass_clock() - began;
	atomic_store(&b->over, true);
	pthread_join(feeder, NULL);
	pthread_join(searcher, NULL);
	for (uint32_t i = 0; i < n_deleters; i++)
		pthread_join(deleters[i], NULL);
	return seconds;
}

static double
ratio(uint64_t a, uint64_t b)
{
	return b > 0 ? (double) a / (double) b : 0;
}

/* What the engine did during the batch: the difference of two infos. */
static void
report_batch(const beside *w, const nv_req_info *before,
			 const nv_req_info *after, const pass_latency *each, double seconds)
{
	const moving_options *o = w->b->o;
	uint64_t seeks = after->seeks - before->seeks;
	double loads = ratio(after->seek_vectors - before->seek_vectors, seeks);
	double pages = ratio(after->seek_pages - before->seek_pages, seeks);
	double reads = ratio(after->seek_reads - before->seek_reads, seeks);
	double hits = ratio(after->cache_hits - before->cache_hits,
						after->cache_lookups - before->cache_lookups);
	double rate = (double) o->batch_size / seconds;
	bool all = after->window_insert == UINT32_MAX;

	printf("Batch %d done in %.1f s: %.0f vectors/s, an insertion mean %.2f, "
		   "P50 %.2f, P99 %.2f ms; %.1f vector loads a rerank, w_insert ",
		   w->number, seconds, rate, each->mean_ms, each->p50_ms, each->p99_ms,
		   loads);
	printf(all ? "all" : "%u", after->window_insert);
	printf(", %.1f edge pages (%.1f read), cache hit rate %.1f %%, deleted "
		   "%llu of %llu, RSS %.1f MB\n",
		   pages, reads, hits * 100, (unsigned long long) after->deleted,
		   (unsigned long long) after->vertices,
		   (double) tool_resident_bytes() / 1e6);
	if (after->insert_failures > before->insert_failures)
		printf("  %llu rows had to be linked again after an error\n",
			   (unsigned long long) (after->insert_failures -
									 before->insert_failures));
	bench_json_begin(w->j, "batch");
	bench_json_number(w->j, "batch", w->number);
	bench_json_number(w->j, "at", w->began);
	bench_json_number(w->j, "seconds", seconds);
	bench_json_number(w->j, "rows", (double) o->batch_size);
	bench_json_number(w->j, "rate", rate);
	bench_json_number(w->j, "insert_ms", each->mean_ms);
	bench_json_number(w->j, "insert_p50_ms", each->p50_ms);
	bench_json_number(w->j, "insert_p99_ms", each->p99_ms);
	bench_json_counts(w->j, "insert_buckets", each->histogram, PASS_BUCKETS);
	bench_json_number(w->j, "insert_loads", loads);
	bench_json_number(w->j, "w_insert",
					  all ? NAN : (double) after->window_insert);
	bench_json_number(w->j, "insert_pages", pages);
	bench_json_number(w->j, "insert_reads", reads);
	bench_json_number(w->j, "cache_hit_rate", hits);
	bench_json_number(w->j, "relinks",
					  ratio(after->relinks - before->relinks, seeks));
	bench_json_number(w->j, "promotions",
					  (double) (after->promotions - before->promotions));
	bench_json_number(w->j, "entrance_live", after->entrance_live);
	bench_json_number(w->j, "vertices", (double) after->vertices);
	bench_json_number(w->j, "deleted", (double) after->deleted);
	bench_json_number(w->j, "edge_bytes", (double) after->edge_bytes);
	bench_json_number(w->j, "rss", (double) tool_resident_bytes());
	bench_json_end(w->j);
}

/* Takes what the batch deleted out of the graph. */
static void
consolidate(const beside *w)
{
	nv_request *r = tool_request(w->b->tool, NV_REQ_CONSOLIDATE, 80);
	double began = pass_clock(), seconds;

	tool_call(w->b->tool, r, "consolidation");
	seconds = pass_clock() - began;
	printf("consolidation: %llu vertices freed in %.1f s, %llu of %llu left "
		   "deleted\n",
		   (unsigned long long) r->u.consolidate.freed, seconds,
		   (unsigned long long) r->u.consolidate.deleted,
		   (unsigned long long) r->u.consolidate.vertices);
	bench_json_begin(w->j, "consolidation");
	bench_json_number(w->j, "batch", w->number);
	bench_json_number(w->j, "seconds", seconds);
	bench_json_number(w->j, "freed", (double) r->u.consolidate.freed);
	bench_json_number(w->j, "deleted", (double) r->u.consolidate.deleted);
	bench_json_number(w->j, "vertices", (double) r->u.consolidate.vertices);
	bench_json_end(w->j);
	free(r);
}

/* The pass on the index as the batch left it. */
static void
pass_after(beside *w, uint64_t offset)
{
	const moving_options *o = w->b->o;
	bench_truth truth = {0};
	pass_result r;
	char path[4096], head[64];

	if (o->truth != NULL)
	{
		snprintf(path, sizeof(path), "%s_%llu.bin", o->truth,
				 (unsigned long long) offset);
		truth = pass_truth(path, w->s);
	}
	r = pass_run(w->s, o->truth != NULL ? &truth : NULL, NULL);
	snprintf(head, sizeof(head), "after batch %d: ", w->number);
	pass_print(head, &r);
	pass_json(w->j, "after", w->s, &r, w->number);
	if (r.recall >= 0)
	{
		w->sum->recall += r.recall;
		w->sum->scored++;
	}
	bench_truth_free(&truth);
}

static void
report_run(const totals *t, const moving_options *o, bench_json *j)
{
	double passes = (double) NV_MAX(t->passes, 1);
	double batches = (double) o->batches;

	printf("--- %s: %llu vectors in %.1f s of batches: %.0f vectors/s, an "
		   "insertion mean %.2f, P50 %.2f, P99 %.2f ms",
		   o->window ? "Replaced" : "Inserted", (unsigned long long) t->rows,
		   t->batch_seconds, (double) t->rows / t->batch_seconds,
		   t->insert_mean / batches, t->insert_p50 / batches,
		   t->insert_p99 / batches);
	if (t->passes > 0)
		printf("; searches beside: %.0f QPS, mean %.2f, P50 %.2f, P99 %.2f ms",
			   t->qps / passes, t->mean / passes, t->p50 / passes,
			   t->p99 / passes);
	if (t->scored > 0)
		printf("; recall %.4f", t->recall / (double) t->scored);
	printf(" ---\n");
	bench_json_begin(j, o->window ? "replace_run" : "insert_run");
	bench_json_number(j, "rows", (double) t->rows);
	bench_json_number(j, "seconds", t->batch_seconds);
	bench_json_number(j, "rate", (double) t->rows / t->batch_seconds);
	bench_json_number(j, "insert_mean_ms", t->insert_mean / batches);
	bench_json_number(j, "insert_p50_ms", t->insert_p50 / batches);
	bench_json_number(j, "insert_p99_ms", t->insert_p99 / batches);
	bench_json_number(j, "passes", (double) t->passes);
	bench_json_number(j, "qps", t->passes > 0 ? t->qps / passes : NAN);
	bench_json_number(j, "mean_ms", t->passes > 0 ? t->mean / passes : NAN);
	bench_json_number(j, "p50_ms", t->passes > 0 ? t->p50 / passes : NAN);
	bench_json_number(j, "p99_ms", t->passes > 0 ? t->p99 / passes : NAN);
	bench_json_number(j, "recall",
					  t->scored > 0 ? t->recall / (double) t->scored : NAN);
	bench_json_number(j, "peak_rss", (double) tool_peak_bytes());
	bench_json_end(j);
}

static void
one_batch(tool *t, pass_setup *s, bench_rows *data, const moving_options *o,
		  int number, totals *sum, bench_json *j)
{
	nv_request *r = tool_request(t, NV_REQ_INFO, 40);
	nv_req_info before = tool_info(t, r), after;
	batch b = {.tool = t,
			   .o = o,
			   .data = data,
			   .first = t->rows + (uint64_t) number * o->batch_size,
			   .oldest = (uint64_t) number * o->batch_size,
			   .inserted_before = before.inserted};
	beside w = {.b = &b, .s = s, .j = j, .sum = sum, .number = number};
	double seconds;
	pass_latency each;

	link_times_begin();
	seconds = run_batch(&b, &w, r);
	each = link_times_end();
	after = tool_info(t, r);
	report_batch(&w, &before, &after, &each, seconds);
	sum->insert_mean += each.mean_ms;
	sum->insert_p50 += each.p50_ms;
	sum->insert_p99 += each.p99_ms;
	sum->batch_seconds += seconds;
	sum->rows += o->batch_size;
	if (o->consolidate)
		consolidate(&w);
	if (o->searches)
		pass_after(&w, ((uint64_t) number + 1) * o->batch_size);
	free(r);
}

void
moving_run(tool *t, pass_setup *s, bench_rows *data, const moving_options *o,
		   bench_json *j)
{
	totals sum = {0};

	if (data->dim != t->params.dim)
		bench_die(data->path, "has other dimensions than the index");
	for (uint32_t i = 0; i < o->batches; i++)
		one_batch(t, s, data, o, (int) i, &sum, j);
	report_run(&sum, o, j);
}
