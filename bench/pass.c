/*
 * pass.c
 *		A search pass; see pass.h.
 */
#include "pass.h"

#include <math.h>
#include <unistd.h>

#define CALIBRATION_SECONDS 600
#define CALIBRATION_POLL_US 20000
#define NOT_CALIBRATED_ABOVE 800 /* list size of the last bucket */

double
pass_clock(void)
{
	static uint64_t begun;
	uint64_t now = nv_now_ns();

	if (begun == 0)
		begun = now;
	return (double) (now - begun) / 1e9;
}

void
pass_setup_init(pass_setup *s, const tool *t, bench_rows *queries,
				const pass_options *o)
{
	nv_error err;

	memset(s, 0, sizeof(*s));
	s->tool = t;
	s->o = *o;
	if (queries->n == 0 || queries->n > UINT32_MAX)
		bench_die(queries->path, "no queries");
	if (queries->dim != t->params.dim)
		bench_die(queries->path,
				  "queries have other dimensions than the index");
	s->n_queries = (uint32_t) queries->n;
	s->dim = queries->dim;
	s->queries = bench_allocate((size_t) s->n_queries * s->dim, sizeof(float));
	s->ms = bench_allocate(s->n_queries, sizeof(double));
	bench_check(bench_rows_read(queries, 0, s->n_queries, s->queries, &err),
				&err);
	for (uint32_t i = 0; i < o->clients; i++)
		s->requests[i] = tool_request(t, NV_REQ_SEARCH, 100 + i);
}

void
pass_setup_free(pass_setup *s)
{
	for (uint32_t i = 0; i < BENCH_MAX_CLIENTS; i++)
		free(s->requests[i]);
	free(s->queries);
	free(s->ms);
}

bench_truth
pass_truth(const char *path, const pass_setup *s)
{
	bench_truth truth;
	nv_error err;

	bench_check(bench_truth_read(path, &truth, &err), &err);
	if (truth.n < s->n_queries || truth.k < s->o.k)
		bench_die(path, "has fewer queries or neighbours than asked for");
	return truth;
}

/* --- Asking --- */

typedef struct running
{
	pass_setup *s;
	const bench_truth *truth;
	const atomic_bool *stop;
	_Atomic uint32_t next;
	pthread_mutex_t lock; /* over the sums */
	pass_result *r;
	uint64_t hits;
} running;

typedef struct client
{
	running *run;
	nv_request *request;
	pthread_t thread;
} client;

static void
search_one(const pass_setup *s, nv_request *r, uint32_t query)
{
	nv_req_search *ask = &r->u.search;

	r->kind = NV_REQ_SEARCH;
	memset(ask, 0, sizeof(*ask));
	ask->dim = s->dim;
	ask->k = s->o.k;
	ask->list_size = s->o.list_size;
	ask->beam_width = s->o.beam_width;
	ask->entrance_list = s->o.entrance_list;
	ask->percentile = s->o.percentile;
	ask->flags = s->o.flags;
	memcpy(r->data, s->queries + (size_t) query * s->dim,
		   s->dim * sizeof(float));
	tool_call(s->tool, r, "search");
	if (ask->n != s->o.k || ask->stats.hops == 0)
		bench_die("search", "the graph did not answer");
	nv_engine_release_cursor(s->tool->engine, ask->cursor);
}

static uint64_t
count_hits(const running *run, const nv_request *r, uint32_t query)
{
	const nv_hit *hits = (const nv_hit *) r->data;
	uint32_t k = run->s->o.k;
	const uint32_t *nearest = run->truth->ids + (size_t) query * run->truth->k;
	uint64_t found = 0;

	for (uint32_t i = 0; i < k; i++)
		for (uint32_t j = 0; j < k; j++)
			found += nearest[i] == hits[j].element;
	return found;
}

static void
add_stats(nv_search_stats *sum, const nv_search_stats *s)
{
	sum->hops += s->hops;
	sum->edge_pages += s->edge_pages;
	sum->edge_reads += s->edge_reads;
	sum->cache_hits += s->cache_hits;
	sum->explored += s->explored;
	sum->vectors += s->vectors;
	sum->batches += s->batches;
	sum->pending += s->pending;
	sum->bytes += s->bytes;
	sum->io_ns += s->io_ns;
	sum->compute_ns += s->compute_ns;
}

static void *
client_main(void *arg)
{
	client *c = arg;
	running *run = c->run;
	pass_setup *s = run->s;
	nv_search_stats sum = {0};
	uint64_t hits = 0, answered = 0;

	for (;;)
	{
		uint32_t query = atomic_fetch_add(&run->next, 1);
		uint64_t begun = nv_now_ns();

		if (query >= s->n_queries ||
			(run->stop != NULL && atomic_load(run->stop)))
			break;
		search_one(s, c->request, query);
		s->ms[query] = (double) (nv_now_ns() - begun) / 1e6;
		add_stats(&sum, &c->request->u.search.stats);
		if (run->truth != NULL)
			hits += count_hits(run, c->request, query);
		answered++;
	}
	pthread_mutex_lock(&run->lock);
	add_stats(&run->r->sum, &sum);
	run->hits += hits;
	run->r->answered += answered;
	if (answered > 0)
	{
		run->r->window = c->request->u.search.window;
		run->r->list_used = c->request->u.search.list_used;
	}
	pthread_mutex_unlock(&run->lock);
	return NULL;
}

/* --- A pass --- */

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return (x > y) - (x < y);
}

static uint32_t
bucket_of(double ms)
{
	double at = 4 * log2(ms / 0.01);

	return at < 0 ? 0 : at >= PASS_BUCKETS ? PASS_BUCKETS - 1 : (uint32_t) at;
}

pass_latency
pass_summarise(double *ms, size_t n)
{
	pass_latency l = {.n = n};
	double sum = 0;

	if (n == 0)
		return l;
	for (size_t i = 0; i < n; i++)
	{
		sum += ms[i];
		l.histogram[bucket_of(ms[i])]++;
	}
	qsort(ms, n, sizeof(double), compare_doubles);
	l.mean_ms = sum / (double) n;
	l.p50_ms = ms[n / 2];
	l.p99_ms = ms[n * 99 / 100];
	return l;
}

/* Of the queries that were answered. */
static void
summarise(const pass_setup *s, pass_result *r)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->n_queries; i++)
		if (s->ms[i] >= 0)
			s->ms[n++] = s->ms[i];
	nv_assert(n == r->answered);
	r->latency = pass_summarise(s->ms, n);
	r->qps = (double) n / r->seconds;
}

pass_result
pass_run(pass_setup *s, const bench_truth *truth, const atomic_bool *stop)
{
	pass_result r = {.begun = pass_clock(), .recall = -1};
	running run = {.s = s, .truth = truth, .stop = stop, .r = &r};
	client clients[BENCH_MAX_CLIENTS];
	uint64_t bytes = bench_proc_read_bytes(0);

	pthread_mutex_init(&run.lock, NULL);
	for (uint32_t i = 0; i < s->n_queries; i++)
		s->ms[i] = -1;
	for (uint32_t i = 0; i < s->o.clients; i++)
	{
		clients[i].run = &run;
		clients[i].request = s->requests[i];
		if (pthread_create(&clients[i].thread, NULL, client_main,
						   &clients[i]) != 0)
			bench_die("search", "cannot start a thread");
	}
	for (uint32_t i = 0; i < s->o.clients; i++)
		pthread_join(clients[i].thread, NULL);
	r.seconds = pass_clock() - r.begun;
	r.proc_bytes = bench_proc_read_bytes(0) - bytes;
	pthread_mutex_destroy(&run.lock);
	if (truth != NULL && r.answered > 0)
		r.recall = (double) run.hits / ((double) r.answered * s->o.k);
	summarise(s, &r);
	return r;
}

void
pass_await_window(pass_setup *s)
{
	uint64_t begun = nv_now_ns();

	if ((s->o.flags & NV_SEARCH_LOAD_ALL) != 0 ||
		s->o.list_size > NOT_CALIBRATED_ABOVE)
		return;
	do
	{
		search_one(s, s->requests[0], 0);
		usleep(CALIBRATION_POLL_US);
		if (nv_now_ns() - begun > CALIBRATION_SECONDS * UINT64_C(1000000000))
			bench_die("warm-up", "the rerank window is still not calibrated");
	} while (s->requests[0]->u.search.window == UINT32_MAX);
}

/* --- Reports --- */

void
pass_print(const char *head, const pass_result *r)
{
	double n = (double) NV_MAX(r->answered, 1);

	printf("%s%.0f QPS, mean %.2f, P50 %.2f, P99 %.2f ms", head, r->qps,
		   r->latency.mean_ms, r->latency.p50_ms, r->latency.p99_ms);
	if (r->recall >= 0)
		printf(", recall %.4f", r->recall);
	printf(", %.1f vector loads, %.1f edge pages (%.1f read), %.0f bytes a "
		   "query\n",
		   (double) r->sum.vectors / n, (double) r->sum.edge_pages / n,
		   (double) r->sum.edge_reads / n, (double) r->sum.bytes / n);
	fflush(stdout);
}

void
pass_json(bench_json *j, const char *kind, const pass_setup *s,
		  const pass_result *r, int batch)
{
	double n = (double) NV_MAX(r->answered, 1);

	bench_json_begin(j, kind);
	bench_json_number(j, "batch", batch);
	bench_json_number(j, "at", r->begun);
	bench_json_number(j, "seconds", r->seconds);
	bench_json_number(j, "L", s->o.list_size);
	bench_json_number(j, "beam_width", s->o.beam_width);
	bench_json_number(j, "clients", s->o.clients);
	bench_json_number(j, "queries", (double) r->answered);
	bench_json_number(j, "qps", r->qps);
	bench_json_number(j, "mean_ms", r->latency.mean_ms);
	bench_json_number(j, "p50_ms", r->latency.p50_ms);
	bench_json_number(j, "p99_ms", r->latency.p99_ms);
	if (r->recall >= 0)
		bench_json_number(j, "recall", r->recall);
	bench_json_number(j, "hops", (double) r->sum.hops / n);
	bench_json_number(j, "edge_pages", (double) r->sum.edge_pages / n);
	bench_json_number(j, "edge_reads", (double) r->sum.edge_reads / n);
	bench_json_number(j, "explored", (double) r->sum.explored / n);
	bench_json_number(j, "vectors", (double) r->sum.vectors / n);
	bench_json_number(j, "rerank_batches", (double) r->sum.batches / n);
	bench_json_number(j, "pending", (double) r->sum.pending / n);
	bench_json_number(j, "bytes", (double) r->sum.bytes / n);
	bench_json_number(j, "proc_bytes", (double) r->proc_bytes / n);
	bench_json_number(j, "io_us", (double) r->sum.io_ns / n / 1000);
	bench_json_number(j, "compute_us", (double) r->sum.compute_ns / n / 1000);
	bench_json_number(j, "w_search",
					  r->window == UINT32_MAX ? NAN : (double) r->window);
	bench_json_number(j, "list_used", r->list_used);
	bench_json_counts(j, "latency_buckets", r->latency.histogram, PASS_BUCKETS);
	bench_json_end(j);
}
