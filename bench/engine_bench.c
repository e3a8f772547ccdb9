/*
 * engine_bench.c
 *		The engine alone, without a server: builds an index over an .fbin file,
 *		searches it, and prints what issue and documentation quote.
 *
 *	engine_bench build  DIR --base F --metric l2 [--degree N] [--list N]
 *						[--pq-bytes N] [--threads N] [--random-placement]
 *	engine_bench search DIR --base F --query F --truth F --metric l2
 *						[--cache-mb N] [--clients N] [--sweep 20,40,...]
 *						[--load-all] [--from-medoid] [--passes N]
 *	engine_bench insert DIR --base F --from N --metric l2 [options of build]
 *						[--insert-threads N] [--insert-list N] [--clients N]
 *						[--query F --truth F and options of search]
 *
 * insert builds over the first N rows and inserts the rest one by one, at most
 * QUEUE rows ahead of the insert threads; searches before and after tell the
 * recall (before: of the true neighbours that were there).
 *
 * Files: .fbin = uint32 n, uint32 dim, n * dim float32; .ibin = uint32 n,
 * uint32 k, n * k int32 (row numbers of base).  DIR holds one index; search
 * opens it as a backend does, comparing generations and hashes.  Each line of
 * a search is measured after its bucket's warm-up and one unmeasured pass.
 */
#include <errno.h>
#include <getopt.h>
#include <sys/resource.h>
#include <unistd.h>

#include "navis/engine.h"
#include "navis/hash.h"
#include "util.h"

#define K 10
#define MAX_CLIENTS 64
#define MAX_SWEEP 32
#define OPEN_BATCH 4000
#define QUEUE 2000 /* navis.insert_queue_size */
#define QUEUE_CHECK 100 /* rows between two looks at the queue */

typedef struct matrix
{
	uint32_t n, dim;
	uint32_t *words; /* n * dim 32-bit values: float or int */
} matrix;

typedef struct options
{
	const char *mode, *dir, *base, *query, *truth;
	nv_index_params params;
	uint32_t threads, clients, passes, n_sweep;
	uint32_t sweep[MAX_SWEEP];
	uint64_t cache_mb;
	uint32_t flags;
	uint32_t from, insert_threads, insert_list;
	bool random_placement;
} options;

typedef struct bench
{
	options o;
	nv_local *local;
	nv_engine *engine;
	nv_key key;
	matrix query, truth;
	uint32_t present; /* rows that are in the index: 0 .. present - 1 */
} bench;

static void
die(const char *what, const char *detail)
{
	fprintf(stderr, "engine_bench: %s: %s\n", what, detail);
	exit(1);
}

/* --- files ------------------------------------------------------------------- */

static FILE *
open_matrix(const char *path, uint32_t *n, uint32_t *dim)
{
	FILE *f = path != NULL ? fopen(path, "rb") : NULL;
	uint32_t head[2];

	if (f == NULL || fread(head, 4, 2, f) != 2)
		die(path != NULL ? path : "file missing", strerror(errno));
	*n = head[0];
	*dim = head[1];
	return f;
}

static matrix
read_matrix(const char *path)
{
	matrix m;
	FILE *f = open_matrix(path, &m.n, &m.dim);

	m.words = nv_alloc_array((size_t) m.n * m.dim, 4);
	if (m.words == NULL ||
		fread(m.words, 4, (size_t) m.n * m.dim, f) != (size_t) m.n * m.dim)
		die(path, "cannot read");
	fclose(f);
	return m;
}

/* --- requests ------------------------------------------------------------------ */

static nv_request *
new_request(const bench *b, nv_request_kind kind, uint64_t owner)
{
	nv_request *r = nv_alloc(sizeof(*r));

	if (r == NULL)
		die("request", "no memory");
	r->kind = kind;
	r->key = b->key;
	r->owner = owner;
	return r;
}

static void
call(const bench *b, nv_request *r, const char *what)
{
	if (nv_local_call(b->local, r) != NV_OK)
		die(what, r->detail);
}

static void
start(bench *b)
{
	nv_config config;
	nv_error err;

	nv_config_defaults(&config);
	snprintf(config.directory, sizeof(config.directory), "%s", b->o.dir);
	config.cache_size = b->o.cache_mb << 20;
	config.insert_threads = b->o.insert_threads;
	config.insert_list_size = b->o.insert_list;
	b->local = nv_local_create();
	if (nv_engine_start(&config, nv_local_port(b->local), &b->engine, &err) !=
		NV_OK)
		die("engine", err.detail);
}

/* --- build ------------------------------------------------------------------------ */

static void
add_rows(bench *b, nv_request *r, FILE *f, uint32_t n, uint32_t dim)
{
	size_t bytes = nv_round_up(sizeof(nv_journal_entry) + dim * 4, 8);
	uint32_t per_request = (uint32_t) (NV_REQUEST_DATA / bytes);

	for (uint32_t i = 0; i < n;)
	{
		uint32_t k = 0;

		for (; k < per_request && i < n; k++, i++)
		{
			uint8_t *p = r->data + k * bytes;
			nv_journal_entry entry = {i, 1, 0};

			if (fread(p + sizeof(entry), 4, dim, f) != dim)
				die(b->o.base, "too short");
			entry.hash = nv_vector_hash(p + sizeof(entry), dim * 4);
			memcpy(p, &entry, sizeof(entry));
		}
		r->kind = NV_REQ_BUILD_ADD;
		r->u.build.n = k;
		call(b, r, "add rows");
	}
}

static void
run_build(bench *b)
{
	uint32_t n, dim;
	FILE *f = open_matrix(b->o.base, &n, &dim);
	nv_request *r = new_request(b, NV_REQ_BUILD_BEGIN, 1);
	nv_req_build *u = &r->u.build;
	uint64_t begun;

	if (b->o.from > 0)
		n = NV_MIN(n, b->o.from);
	b->present = n;
	b->o.params.dim = dim;
	start(b);
	u->params = b->o.params;
	u->expected_rows = n;
	u->build_memory = UINT64_C(1) << 40;
	u->threads = b->o.threads;
	u->placement_random = b->o.random_placement;
	call(b, r, "begin build");
	begun = nv_now_ns();
	add_rows(b, r, f, n, dim);
	fclose(f);
	r->kind = NV_REQ_BUILD_RUN;
	call(b, r, "build");
	printf("build: rows %llu, vertices %u, dim %u, max_degree %u, "
		   "build_list_size %u, threads %u\n",
		   (unsigned long long) u->rows, u->vertices, dim,
		   b->o.params.max_degree, b->o.params.build_list_size, b->o.threads);
	printf("build: %.1f s (codes %.1f, links %.1f, placement %.1f, files "
		   "%.1f), average degree %.1f, placement quality %.3f, pq_bytes %u%s, "
		   "code recall@10 %.3f, edge pages %u, entrance %u\n",
		   (double) (nv_now_ns() - begun) / 1e9, u->seconds_train,
		   u->seconds_link, u->seconds_place, u->seconds_write,
		   u->average_degree, u->placement_quality, u->pq_bytes,
		   u->pq_rotated ? " rotated" : "", u->pq_recall, u->edge_pages,
		   u->entrance_members);
	free(r);
}

/* --- open -------------------------------------------------------------------------- */

static void
run_open(bench *b)
{
	uint32_t n, dim, missing = 0;
	FILE *f = open_matrix(b->o.base, &n, &dim);
	nv_request *r = new_request(b, NV_REQ_OPEN, 1);
	float *row = nv_alloc(dim * 4);
	uint64_t pass;

	b->o.params.dim = dim;
	start(b);
	r->u.open.params = b->o.params;
	call(b, r, "open");
	pass = r->u.open.pass;
	for (uint32_t i = 0; i < n && pass != 0;)
	{
		nv_journal_entry *e = (nv_journal_entry *) r->data;
		uint32_t k = 0;

		for (; k < OPEN_BATCH && i < n; k++, i++)
		{
			if (fread(row, 4, dim, f) != dim)
				die(b->o.base, "too short");
			e[k] = (nv_journal_entry){i, 1, nv_vector_hash(row, dim * 4)};
		}
		r->kind = NV_REQ_RECONCILE;
		r->u.reconcile.pass = pass;
		r->u.reconcile.n = k;
		call(b, r, "compare");
		missing += r->u.reconcile.n_missing;
	}
	b->present = n;
	if (missing > 0)
		die(b->o.dir, "is not an index over this base file");
	r->kind = NV_REQ_OPENED;
	r->u.opened.pass = pass;
	r->u.opened.complete = 1;
	call(b, r, "opened");
	fclose(f);
	free(row);
	free(r);
}

/* --- search -------------------------------------------------------------------------- */

typedef struct client
{
	bench *b;
	pthread_t thread;
	uint32_t list, number;
	nv_search_stats sum;
	uint64_t found, wanted, queries;
	uint32_t window;
	double *ms; /* latencies of this client's queries */
} client;

static void
search_once(client *c, nv_request *r, uint32_t q, uint32_t list)
{
	const bench *b = c->b;
	nv_req_search *s = &r->u.search;

	r->kind = NV_REQ_SEARCH;
	memset(s, 0, sizeof(*s));
	s->dim = b->query.dim;
	s->k = K;
	s->list_size = list;
	s->beam_width = 4;
	s->entrance_list = 10;
	s->percentile = 99;
	s->flags = b->o.flags;
	memcpy(r->data, b->query.words + (size_t) q * b->query.dim,
		   b->query.dim * 4);
	call(b, r, "search");
	if (s->n != K || s->stats.hops == 0)
		die("search", "the graph did not answer");
	nv_engine_release_cursor(b->engine, s->cursor);
}

static void
count_hits(client *c, const nv_request *r, uint32_t q)
{
	const nv_hit *hits = (const nv_hit *) r->data;
	const uint32_t *truth = c->b->truth.words + (size_t) q * c->b->truth.dim;

	for (uint32_t j = 0; j < K; j++)
	{
		if (truth[j] >= c->b->present)
			continue;
		c->wanted++;
		for (uint32_t i = 0; i < K; i++)
			c->found += hits[i].element == truth[j];
	}
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
	sum->bytes += s->bytes;
	sum->damaged += s->damaged;
}

static void *
client_main(void *arg)
{
	client *c = arg;
	nv_request *r = new_request(c->b, NV_REQ_SEARCH, 100 + c->number);

	for (uint32_t pass = 0; pass < c->b->o.passes; pass++)
		for (uint32_t q = c->number; q < c->b->query.n; q += c->b->o.clients)
		{
			uint64_t begun = nv_now_ns();

			search_once(c, r, q, c->list);
			c->ms[c->queries++] = (double) (nv_now_ns() - begun) / 1e6;
			c->window = r->u.search.window;
			count_hits(c, r, q);
			add_stats(&c->sum, &r->u.search.stats);
		}
	free(r);
	return NULL;
}

/* Searches until the bucket of this list size has its warm-up behind it. */
static void
warm_up(bench *b, uint32_t list)
{
	client c = {.b = b};
	nv_request *r = new_request(b, NV_REQ_SEARCH, 99);

	for (;;)
	{
		const nv_bucket_info *buckets = (const nv_bucket_info *) r->data;
		bool ready = (b->o.flags & NV_SEARCH_LOAD_ALL) != 0;

		for (uint32_t q = 0; q < b->query.n && q < 1000; q++)
			search_once(&c, r, q, list);
		r->kind = NV_REQ_INFO;
		call(b, r, "info");
		for (uint32_t i = 0; i < r->u.info.n_buckets; i++)
			ready |= buckets[i].ready && buckets[i].k_bound >= K &&
					 buckets[i].list_bound >= list &&
					 (i == 0 || buckets[i - 1].list_bound < list ||
					  buckets[i - 1].k_bound < K);
		if (ready || list > 800)
			break;
	}
	free(r);
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return x < y ? -1 : x > y;
}

static uint64_t
proc_read_bytes(void)
{
	FILE *f = fopen("/proc/self/io", "r");
	char line[128];
	unsigned long long bytes = 0;

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "read_bytes: %llu", &bytes) == 1)
			break;
	if (f != NULL)
		fclose(f);
	return bytes;
}

static uint64_t
resident_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long long size = 0, resident = 0;

	if (f == NULL || fscanf(f, "%llu %llu", &size, &resident) != 2)
		resident = 0;
	if (f != NULL)
		fclose(f);
	return resident * (uint64_t) sysconf(_SC_PAGESIZE);
}

static void
measure(bench *b, uint32_t list)
{
	client clients[MAX_CLIENTS] = {0};
	uint64_t total = (uint64_t) b->query.n * b->o.passes, n = 0, found = 0;
	uint64_t wanted = 0;
	double *ms = nv_alloc_array(total + b->o.clients, sizeof(double));
	nv_search_stats sum = {0};
	uint64_t begun, read_before;
	double seconds;

	warm_up(b, list);
	read_before = proc_read_bytes();
	begun = nv_now_ns();
	for (uint32_t i = 0; i < b->o.clients; i++)
	{
		clients[i] = (client){.b = b, .list = list, .number = i};
		clients[i].ms = nv_alloc_array(total, sizeof(double));
		if (pthread_create(&clients[i].thread, NULL, client_main,
						   &clients[i]) != 0)
			die("client", "no thread");
	}
	for (uint32_t i = 0; i < b->o.clients; i++)
	{
		pthread_join(clients[i].thread, NULL);
		memcpy(ms + n, clients[i].ms, clients[i].queries * sizeof(double));
		n += clients[i].queries;
		found += clients[i].found;
		wanted += clients[i].wanted;
		add_stats(&sum, &clients[i].sum);
		free(clients[i].ms);
	}
	seconds = (double) (nv_now_ns() - begun) / 1e9;
	qsort(ms, n, sizeof(double), compare_doubles);
	printf("%5u  %.4f  %7.0f  %6.2f %6.2f  %6.1f %7.1f %7.1f  %8.1f %7.1f  "
		   "%5d  %9.0f  %9.0f\n",
		   list, (double) found / (double) wanted, (double) n / seconds,
		   ms[n / 2], ms[n * 99 / 100], (double) sum.hops / (double) n,
		   (double) sum.edge_pages / (double) n,
		   (double) sum.edge_reads / (double) n,
		   (double) sum.explored / (double) n,
		   (double) sum.vectors / (double) n, (int) clients[0].window,
		   (double) sum.bytes / (double) n,
		   (double) (proc_read_bytes() - read_before) / (double) n);
	fflush(stdout);
	if (sum.damaged > 0)
		die("search", "damaged slots or records were met");
	free(ms);
}

static void
print_memory(bench *b, uint64_t before)
{
	nv_request *r = new_request(b, NV_REQ_INFO, 1);
	nv_req_info *i = &r->u.info;
	uint64_t held;

	call(b, r, "info");
	held = i->memory_codes + i->memory_map + i->memory_elements +
		   i->memory_entrance + i->memory_other;
	printf("memory held: %.1f bytes a vector (codes %.1f, map %.1f, elements "
		   "%.1f, entrance %.1f, other %.1f) + cache %.1f MB\n",
		   (double) held / (double) i->vertices,
		   (double) i->memory_codes / (double) i->vertices,
		   (double) i->memory_map / (double) i->vertices,
		   (double) i->memory_elements / (double) i->vertices,
		   (double) i->memory_entrance / (double) i->vertices,
		   (double) i->memory_other / (double) i->vertices,
		   (double) i->cache_bytes / 1e6);
	printf("resident: %.1f MB before opening, %.1f MB now: %.1f MB for %.1f "
		   "MB held and cached; vector file %.1f MB, edge file %.1f MB\n",
		   (double) before / 1e6, (double) resident_bytes() / 1e6,
		   ((double) resident_bytes() - (double) before) / 1e6,
		   (double) (held + i->cache_bytes) / 1e6,
		   (double) i->vector_bytes / 1e6, (double) i->edge_bytes / 1e6);
	free(r);
}

static void
read_queries(bench *b)
{
	b->query = read_matrix(b->o.query);
	b->truth = read_matrix(b->o.truth);
	if (b->truth.n < b->query.n || b->truth.dim < K)
		die(b->o.truth, "does not fit the queries");
}

static void
sweep(bench *b)
{
	printf("search: K %d, clients %u, cache %llu MB%s%s\n", K, b->o.clients,
		   (unsigned long long) b->o.cache_mb,
		   b->o.flags & NV_SEARCH_LOAD_ALL ? ", every vector loaded" : "",
		   b->o.flags & NV_SEARCH_FROM_MEDOID ? ", from the medoid" : "");
	printf(" list  recall      QPS   p50ms  p99ms    hops   pages   reads  "
		   "explored vectors      w  bytes/query  /proc bytes\n");
	for (uint32_t i = 0; i < b->o.n_sweep; i++)
		measure(b, b->o.sweep[i]);
}

static void
run_search(bench *b)
{
	uint64_t before;

	read_queries(b);
	before = resident_bytes();
	run_open(b);
	sweep(b);
	print_memory(b, before);
}

/* --- insert -------------------------------------------------------------------------- */

typedef struct feeder
{
	bench *b;
	pthread_t thread;
	const matrix *rows;
	uint32_t number;
} feeder;

/* Waits until at most so many rows wait to be linked. */
static void
await_queue(const bench *b, nv_request *r, uint64_t rows)
{
	for (;;)
	{
		r->kind = NV_REQ_INFO;
		call(b, r, "info");
		if (r->u.info.pending_rows <= rows)
			return;
		usleep(1000);
	}
}

static void *
feeder_main(void *arg)
{
	feeder *f = arg;
	const bench *b = f->b;
	nv_request *r = new_request(b, NV_REQ_INSERT, 200 + f->number);
	uint32_t dim = f->rows->dim, sent = 0;

	for (uint32_t e = b->o.from + f->number; e < f->rows->n;
		 e += b->o.clients)
	{
		const uint32_t *row = f->rows->words + (size_t) e * dim;

		if (sent++ % QUEUE_CHECK == 0)
			await_queue(b, r, QUEUE);
		r->kind = NV_REQ_INSERT;
		memset(&r->u.insert, 0, sizeof(r->u.insert));
		r->u.insert.element = e;
		r->u.insert.generation = 1;
		r->u.insert.hash = nv_vector_hash(row, dim * 4);
		r->u.insert.dim = dim;
		memcpy(r->data, row, dim * 4);
		call(b, r, "insert");
	}
	free(r);
	return NULL;
}

static void
print_inserted(const bench *b, nv_request *r, double seconds)
{
	const nv_req_info *i = &r->u.info;
	double seeks = (double) NV_MAX(i->seeks, UINT64_C(1));

	printf("insert: %llu rows in %.1f s: %.0f rows/s, %u insert threads, "
		   "|E_pos| %u, %u clients, cache %llu MB; %llu to equal vectors\n",
		   (unsigned long long) i->inserted, seconds,
		   (double) i->inserted / seconds, i->insert_threads,
		   b->o.insert_list, b->o.clients,
		   (unsigned long long) b->o.cache_mb,
		   (unsigned long long) i->inserted_equal);
	printf("insert: a seek explores %.1f vertices on %.1f edge pages (%.1f "
		   "read) and loads %.1f vectors (w %d); %.1f lists rewritten, %.2f "
		   "of them full, %.1f moved; %llu promotions, %llu put back\n",
		   (double) i->seek_explored / seeks, (double) i->seek_pages / seeks,
		   (double) i->seek_reads / seeks, (double) i->seek_vectors / seeks,
		   (int) i->window_insert, (double) i->relinks / seeks,
		   (double) i->overflows / seeks, (double) i->moved / seeks,
		   (unsigned long long) i->promotions,
		   (unsigned long long) i->insert_failures);
	printf("insert: %llu vertices, edge file %.1f MB (%llu pages, %llu free), "
		   "%llu slots live, %llu retired; vector file %.1f MB, state file "
		   "%.1f MB; entrance %u\n",
		   (unsigned long long) i->vertices, (double) i->edge_bytes / 1e6,
		   (unsigned long long) i->edge_pages,
		   (unsigned long long) i->free_pages,
		   (unsigned long long) i->live_slots,
		   (unsigned long long) i->retired_slots,
		   (double) i->vector_bytes / 1e6, (double) i->state_bytes / 1e6,
		   i->entrance_live);
	fflush(stdout);
}

static void
run_insert(bench *b)
{
	matrix rows = read_matrix(b->o.base);
	feeder feeders[MAX_CLIENTS];
	nv_request *r;
	uint64_t begun;

	if (b->o.from == 0 || b->o.from >= rows.n)
		die("--from", "must be between 1 and the number of rows");
	if (b->o.query != NULL)
		read_queries(b);
	run_build(b);
	if (b->o.query != NULL)
		sweep(b);
	r = new_request(b, NV_REQ_INFO, 1);
	begun = nv_now_ns();
	for (uint32_t i = 0; i < b->o.clients; i++)
	{
		feeders[i] = (feeder){.b = b, .rows = &rows, .number = i};
		if (pthread_create(&feeders[i].thread, NULL, feeder_main,
						   &feeders[i]) != 0)
			die("client", "no thread");
	}
	for (uint32_t i = 0; i < b->o.clients; i++)
		pthread_join(feeders[i].thread, NULL);
	await_queue(b, r, 0);
	print_inserted(b, r, (double) (nv_now_ns() - begun) / 1e9);
	r->kind = NV_REQ_CHECKPOINT;
	call(b, r, "checkpoint");
	b->present = rows.n;
	if (b->o.query != NULL)
		sweep(b);
	r->kind = NV_REQ_INFO;
	call(b, r, "info");
	printf("after a checkpoint: edge file %.1f MB, %llu of %llu pages free\n",
		   (double) r->u.info.edge_bytes / 1e6,
		   (unsigned long long) r->u.info.free_pages,
		   (unsigned long long) r->u.info.edge_pages);
	free(rows.words);
	free(r);
}

/* --- command line ------------------------------------------------------------------------- */

static void
parse_sweep(options *o, const char *text)
{
	o->n_sweep = 0;
	while (*text != '\0' && o->n_sweep < MAX_SWEEP)
	{
		char *end;

		o->sweep[o->n_sweep++] = (uint32_t) strtoul(text, &end, 10);
		text = *end == ',' ? end + 1 : end;
		if (*end != ',' && *end != '\0')
			die("--sweep", "numbers separated by commas expected");
	}
}

static uint32_t
parse_metric(const char *name)
{
	if (strcmp(name, "l2") == 0)
		return NV_METRIC_L2;
	if (strcmp(name, "ip") == 0)
		return NV_METRIC_IP;
	if (strcmp(name, "cosine") == 0)
		return NV_METRIC_COSINE;
	die("--metric", "l2, ip or cosine expected");
	return 0;
}

static void
parse(options *o, int argc, char **argv)
{
	enum { BASE = 1, QUERY, TRUTH, METRIC, DEGREE, LIST, PQ, THREADS, CACHE,
		   CLIENTS, SWEEP, PASSES, RANDOM, ALL, MEDOID, FROM, INSERTERS,
		   INSERT_LIST };
	static const struct option known[] = {
		{"base", 1, NULL, BASE},
		{"query", 1, NULL, QUERY},
		{"truth", 1, NULL, TRUTH},
		{"metric", 1, NULL, METRIC},
		{"degree", 1, NULL, DEGREE},
		{"list", 1, NULL, LIST},
		{"pq-bytes", 1, NULL, PQ},
		{"threads", 1, NULL, THREADS},
		{"cache-mb", 1, NULL, CACHE},
		{"clients", 1, NULL, CLIENTS},
		{"sweep", 1, NULL, SWEEP},
		{"passes", 1, NULL, PASSES},
		{"random-placement", 0, NULL, RANDOM},
		{"load-all", 0, NULL, ALL},
		{"from-medoid", 0, NULL, MEDOID},
		{"from", 1, NULL, FROM},
		{"insert-threads", 1, NULL, INSERTERS},
		{"insert-list", 1, NULL, INSERT_LIST},
		{NULL, 0, NULL, 0},
	};
	int c;

	if (argc < 3)
		die("usage", "engine_bench build|search|insert DIR --base FILE ...");
	o->mode = argv[1];
	o->dir = argv[2];
	optind = 3;
	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1)
	{
		uint32_t number = optarg != NULL ? (uint32_t) strtoul(optarg, NULL, 10)
										 : 0;

		switch (c)
		{
			case BASE:
				o->base = optarg;
				break;
			case QUERY:
				o->query = optarg;
				break;
			case TRUTH:
				o->truth = optarg;
				break;
			case METRIC:
				o->params.metric = parse_metric(optarg);
				break;
			case DEGREE:
				o->params.max_degree = number;
				break;
			case LIST:
				o->params.build_list_size = number;
				break;
			case PQ:
				o->params.pq_bytes = number;
				break;
			case THREADS:
				o->threads = number;
				break;
			case CACHE:
				o->cache_mb = number;
				break;
			case CLIENTS:
				o->clients = NV_MAX(1u, NV_MIN(number, (uint32_t) MAX_CLIENTS));
				break;
			case SWEEP:
				parse_sweep(o, optarg);
				break;
			case PASSES:
				o->passes = NV_MAX(1u, number);
				break;
			case RANDOM:
				o->random_placement = true;
				break;
			case ALL:
				o->flags |= NV_SEARCH_LOAD_ALL;
				break;
			case FROM:
				o->from = number;
				break;
			case INSERTERS:
				o->insert_threads = number;
				break;
			case INSERT_LIST:
				o->insert_list = number;
				break;
			case MEDOID:
				o->flags |= NV_SEARCH_FROM_MEDOID;
				break;
			default:
				exit(2);
		}
	}
}

int
main(int argc, char **argv)
{
	bench *b = nv_alloc(sizeof(*b));

	b->o.params = (nv_index_params){
		.metric = NV_METRIC_L2,
		.max_degree = 96,
		.build_list_size = 100,
		.alpha = 1.2f,
		.entrance_ratio = 0.01f,
		.entrance_degree = 32,
	};
	b->o.threads = (uint32_t) sysconf(_SC_NPROCESSORS_ONLN);
	b->o.clients = 1;
	b->o.passes = 1;
	b->o.cache_mb = 256;
	b->o.insert_threads = 2;
	b->o.insert_list = 100;
	parse_sweep(&b->o, "20,40,60,80,100,200,400");
	parse(&b->o, argc, argv);
	memset(&b->key, 1, sizeof(b->key));
	b->key.unused = 0;
	if (strcmp(b->o.mode, "build") == 0)
		run_build(b);
	else if (strcmp(b->o.mode, "search") == 0)
		run_search(b);
	else if (strcmp(b->o.mode, "insert") == 0)
		run_insert(b);
	else
		die(b->o.mode, "build, search or insert expected");
	nv_engine_stop(b->engine, true, 60000);
	nv_local_free(b->local);
	free(b->query.words);
	free(b->truth.words);
	free(b);
	return 0;
}
