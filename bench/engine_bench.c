/*
 * engine_bench.c
 *		The engine alone, without a server: builds an index over an .fbin file,
 *		searches it, and prints what the documentation quotes.
 *
 * DIR holds one index; search opens it as a backend does, comparing
 * generations and hashes.  Each line of a sweep: a warm-up until the rerank
 * window of that list size is calibrated, a pass for recall and statistics,
 * and timed passes with each number of clients.
 */
#include <errno.h>
#include <unistd.h>

#include "engine_bench.h"
#include "navis/hash.h"
#include "util.h"

#define OPEN_BATCH 4000
#define CALIBRATION_SECONDS 120  /* a warm-up that takes longer has failed */
#define NOT_CALIBRATED_ABOVE 800 /* list size of the last bucket */

/* --- requests --- */

nv_request *
eb_request(const bench *b, nv_request_kind kind, uint64_t owner)
{
	nv_request *r = bench_need(nv_alloc(sizeof(*r)));

	r->kind = kind;
	r->key = b->key;
	r->owner = owner;
	return r;
}

void
eb_call(const bench *b, nv_request *r, const char *what)
{
	if (nv_local_call(b->local, r) != NV_OK)
		bench_die(what, r->detail);
}

void
eb_start(bench *b)
{
	nv_config config;
	nv_error err;

	nv_config_defaults(&config);
	snprintf(config.directory, sizeof(config.directory), "%s", b->o.dir);
	config.cache_size = (uint64_t) b->o.cache_mb << 20;
	config.insert_threads = b->o.insert_threads;
	config.insert_list_size = b->o.insert_list;
	config.insert_queue_size = b->o.queue;
	b->local = bench_need(nv_local_create());
	if (nv_engine_start(&config, nv_local_port(b->local), &b->engine, &err) !=
		NV_OK)
		bench_die("engine", err.detail);
}

/*
 * Rows are named as a journal does that gives the place of a deleted row to a
 * new one, so that numbers of elements stay below the number of rows at hand.
 */
nv_journal_entry
eb_name(const bench *b, uint32_t row, const void *vector, uint32_t dim)
{
	nv_journal_entry entry = {row, 1, nv_vector_hash(vector, dim * 4)};

	if (b->o.window != 0)
	{
		entry.element = row % b->o.window;
		entry.generation = row / b->o.window + 1;
	}
	return entry;
}

uint32_t
eb_row(const bench *b, const nv_hit *hit)
{
	return (hit->generation - 1) * b->o.window + hit->element;
}

/* --- build --- */

/* Rows first .. first + n - 1, which the file gives from where it stands. */
static void
add_rows(bench *b, nv_request *r, const eb_source *from)
{
	uint32_t dim = from->dim;
	size_t bytes = nv_round_up(sizeof(nv_journal_entry) + dim * 4, 8);
	uint32_t per_request = (uint32_t) (NV_REQUEST_DATA / bytes);

	for (uint32_t i = 0; i < from->n;)
	{
		uint32_t k = 0;

		for (; k < per_request && i < from->n; k++, i++)
		{
			uint8_t *p = r->data + k * bytes;
			uint8_t *vector = p + sizeof(nv_journal_entry);
			uint32_t row = from->first + i;
			nv_journal_entry entry;

			if (from->words != NULL)
				memcpy(vector, from->words + (size_t) row * dim, dim * 4);
			else if (fread(vector, 4, dim, from->file) != dim)
				bench_die(b->o.base, "too short");
			entry = eb_name(b, row, vector, dim);
			memcpy(p, &entry, sizeof(entry));
		}
		r->kind = NV_REQ_BUILD_ADD;
		r->u.build.n = k;
		eb_call(b, r, "add rows");
	}
}

void
eb_build(bench *b, const eb_source *from)
{
	nv_request *r = eb_request(b, NV_REQ_BUILD_BEGIN, 1);
	nv_req_build *u = &r->u.build;
	uint64_t begun;

	b->o.params.dim = from->dim;
	u->params = b->o.params;
	u->expected_rows = from->n;
	u->build_memory = UINT64_C(1) << 40;
	u->threads = b->o.threads;
	u->placement_random = b->o.random_placement;
	eb_call(b, r, "begin build");
	begun = nv_now_ns();
	add_rows(b, r, from);
	r->kind = NV_REQ_BUILD_RUN;
	eb_call(b, r, "build");
	printf("build: rows %llu, vertices %u, dim %u, max_degree %u, "
		   "build_list_size %u, threads %u\n",
		   (unsigned long long) u->rows, u->vertices, from->dim,
		   b->o.params.max_degree, b->o.params.build_list_size, b->o.threads);
	printf("build: %.1f s (codes %.1f, links %.1f, placement %.1f, files "
		   "%.1f), average degree %.1f, placement quality %.3f, pq_bytes %u%s, "
		   "code recall@10 %.3f, edge pages %u, entrance %u\n",
		   (double) (nv_now_ns() - begun) / 1e9, u->seconds_train,
		   u->seconds_link, u->seconds_place, u->seconds_write,
		   u->average_degree, u->placement_quality, u->pq_bytes,
		   u->pq_rotated ? " rotated" : "", u->pq_recall, u->edge_pages,
		   u->entrance_members);
	fflush(stdout);
	free(r);
}

static void
run_build(bench *b)
{
	eb_source from = {0};

	from.file = bench_open_matrix(b->o.base, &from.n, &from.dim);
	eb_start(b);
	eb_build(b, &from);
	fclose(from.file);
}

/* --- open --- */

static void
run_open(bench *b)
{
	uint32_t n, dim, missing = 0;
	FILE *f = bench_open_matrix(b->o.base, &n, &dim);
	nv_request *r = eb_request(b, NV_REQ_OPEN, 1);
	float *row = bench_allocate(dim, sizeof(float));
	uint64_t pass;

	b->o.params.dim = dim;
	eb_start(b);
	r->u.open.params = b->o.params;
	eb_call(b, r, "open");
	pass = r->u.open.pass;
	for (uint32_t i = 0; i < n && pass != 0;)
	{
		nv_journal_entry *e = (nv_journal_entry *) r->data;
		uint32_t k = 0;

		for (; k < OPEN_BATCH && i < n; k++, i++)
		{
			if (fread(row, 4, dim, f) != dim)
				bench_die(b->o.base, "too short");
			e[k] = (nv_journal_entry){i, 1, nv_vector_hash(row, dim * 4)};
		}
		r->kind = NV_REQ_RECONCILE;
		r->u.reconcile.pass = pass;
		r->u.reconcile.n = k;
		eb_call(b, r, "compare");
		missing += r->u.reconcile.n_missing;
	}
	if (missing > 0)
		bench_die(b->o.dir, "is not an index over this base file");
	r->kind = NV_REQ_OPENED;
	r->u.opened.pass = pass;
	r->u.opened.complete = 1;
	eb_call(b, r, "opened");
	fclose(f);
	free(row);
	free(r);
}

/* --- search --- */

/* The answer stays in the client's request. */
static void
ask(void *arg, uint32_t client, uint32_t q)
{
	const bench *b = arg;
	nv_request *r = b->requests[client];
	nv_req_search *s = &r->u.search;

	r->kind = NV_REQ_SEARCH;
	memset(s, 0, sizeof(*s));
	s->dim = b->query.dim;
	s->k = BENCH_K;
	s->list_size = b->list;
	s->beam_width = 4;
	s->entrance_list = 10;
	s->percentile = b->o.percentile;
	s->flags = (b->o.load_all ? NV_SEARCH_LOAD_ALL : 0) |
			   (b->o.from_medoid ? NV_SEARCH_FROM_MEDOID : 0);
	memcpy(r->data, b->query.words + (size_t) q * b->query.dim,
		   b->query.dim * 4);
	eb_call(b, r, "search");
	if (s->n != BENCH_K || s->stats.hops == 0 || s->stats.edge_pages == 0)
		bench_die("search", "the graph did not answer");
	if (s->stats.damaged > 0)
		bench_die("search", "damaged slots or records were met");
	nv_engine_release_cursor(b->engine, s->cursor);
}

static void
add_answer(const bench *b, uint32_t q, bench_figures *f)
{
	const nv_request *r = b->requests[0];
	const nv_hit *hits = (const nv_hit *) r->data;
	const nv_search_stats *s = &r->u.search.stats;
	uint32_t ids[BENCH_K];

	for (uint32_t i = 0; i < BENCH_K; i++)
		ids[i] = eb_row(b, &hits[i]);
	f->found += bench_count_hits(&b->truth, q, ids);
	f->hops += s->hops;
	f->edge_pages += s->edge_pages;
	f->edge_reads += s->edge_reads;
	f->explored += s->explored;
	f->vectors += s->vectors;
	f->bytes += s->bytes;
	f->io_us += s->io_ns / 1000;
	f->compute_us += s->compute_ns / 1000;
}

/* Until the window of this list size is calibrated; one pass at least. */
static void
warm_up(bench *b)
{
	uint64_t begun = nv_now_ns();
	bool ready = false;

	while (!ready)
	{
		for (uint32_t q = 0; q < b->query.n; q++)
			ask(b, 0, q);
		ready = b->o.load_all || b->list > NOT_CALIBRATED_ABOVE ||
				b->requests[0]->u.search.window != UINT32_MAX;
		if (nv_now_ns() - begun > CALIBRATION_SECONDS * UINT64_C(1000000000))
			bench_die("warm-up", "the rerank window is still not calibrated");
	}
}

/* Prints a line of the table; returns the recall. */
static double
measure(bench *b, uint32_t list)
{
	bench_figures f = {.queries = b->query.n};
	bench_speed speeds[BENCH_MAX_NUMBERS];
	char window[16] = "all";

	b->list = list;
	warm_up(b);
	f.proc_bytes = bench_proc_read_bytes(0);
	for (uint32_t q = 0; q < b->query.n; q++)
	{
		ask(b, 0, q);
		add_answer(b, q, &f);
	}
	f.proc_bytes = bench_proc_read_bytes(0) - f.proc_bytes;
	if (b->requests[0]->u.search.window != UINT32_MAX)
		snprintf(window, sizeof(window), "%u", b->requests[0]->u.search.window);
	f.window = window;
	for (uint32_t i = 0; i < b->o.clients.n; i++)
		speeds[i] = bench_run_clients(b->o.clients.values[i], b->query.n,
									  b->o.passes, ask, b);
	bench_print_row(list, &f, speeds, b->o.clients.n, true);
	return (double) f.found / (double) (f.queries * BENCH_K);
}

void
eb_sweep(bench *b, double *recalls)
{
	bench_print_head(&b->o.clients, true);
	for (uint32_t i = 0; i < b->o.sweep.n; i++)
	{
		double recall = measure(b, b->o.sweep.values[i]);

		if (recalls != NULL)
			recalls[i] = recall;
	}
	printf("\n");
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

/* Requests for as many clients as are ever wanted at a time. */
void
eb_make_clients(bench *b)
{
	uint32_t n = 1;

	for (uint32_t i = 0; i < b->o.clients.n; i++)
		n = NV_MAX(n, b->o.clients.values[i]);
	if (n > BENCH_MAX_CLIENTS)
		bench_usage("--clients", "at most 64");
	for (uint32_t i = 0; i < n; i++)
		b->requests[i] = eb_request(b, NV_REQ_SEARCH, 100 + i);
}

void
eb_free_clients(bench *b)
{
	for (uint32_t i = 0; i < BENCH_MAX_CLIENTS; i++)
	{
		free(b->requests[i]);
		b->requests[i] = NULL;
	}
}

static void
print_memory(bench *b, uint64_t before)
{
	nv_request *r = eb_request(b, NV_REQ_INFO, 1);
	nv_req_info *i = &r->u.info;
	uint64_t held;

	eb_call(b, r, "info");
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
run_search(bench *b)
{
	uint64_t before;

	b->query = bench_read_matrix(b->o.query);
	b->truth = bench_read_matrix(b->o.truth);
	if (b->truth.n < b->query.n || b->truth.dim < BENCH_K)
		bench_die(b->o.truth, "does not fit the queries");
	before = resident_bytes();
	run_open(b);
	eb_make_clients(b);
	eb_sweep(b, NULL);
	print_memory(b, before);
	eb_free_clients(b);
}

/* --- command line --- */

#define AT(field) offsetof(options, field)

/* Modes that build, that search, and that change an index. */
#define BUILD "build insert replace"
#define SEARCH "search insert replace"
#define CHANGE "insert replace"

static const bench_argument known[] = {
	{"--base", "FILE", "rows (.fbin)", bench_take_text, AT(base), 0, 0, NULL,
	 ALWAYS},
	{"--metric", "METRIC", "l2, cosine or ip (default l2)", bench_take_metric,
	 AT(params.metric)},
	{"--degree", "N", "edges of a vertex, at most", bench_take_count,
	 AT(params.max_degree), 4, 512, BUILD},
	{"--list", "N", "search list of the build", bench_take_count,
	 AT(params.build_list_size), 4, 10000, BUILD},
	{"--pq-bytes", "N",
	 "bytes of a vector's code; 0: chosen by the codes' own recall",
	 bench_take_count, AT(params.pq_bytes), 0, 256, BUILD},
	{"--threads", "N", "of the build", bench_take_count, AT(threads), 1, 64,
	 BUILD},
	{"--random-placement", NULL,
	 "edge lists anywhere, not near their neighbours'", bench_take_switch,
	 AT(random_placement), 0, 0, BUILD},
	{"--query", "FILE", "queries (.fbin)", bench_take_text, AT(query), 0, 0,
	 SEARCH, SEARCH},
	{"--truth", "FILE", "their exact neighbours (.ibin)", bench_take_text,
	 AT(truth), 0, 0, "search", "search"},
	{"--cache-mb", "N", "page cache, in 2^20 bytes; 0: none", bench_take_count,
	 AT(cache_mb), 0, 1u << 30, SEARCH},
	{"--clients", "LIST", "numbers of clients that ask at a time",
	 bench_take_numbers, AT(clients), 1, BENCH_MAX_CLIENTS, SEARCH},
	{"--sweep", "LIST", "search lists", bench_take_numbers, AT(sweep), 1,
	 100000, SEARCH},
	{"--passes", "N",
	 "timed passes over the queries for each number of clients",
	 bench_take_count, AT(passes), 1, 1000000, SEARCH},
	{"--percentile", "P", "of the warm-up's windows that the rerank uses",
	 bench_take_real, AT(percentile), 1, 100, SEARCH},
	{"--load-all", NULL, "no CASR: rerank everything explored",
	 bench_take_switch, AT(load_all), 0, 0, SEARCH},
	{"--from-medoid", NULL, "no entrance graph", bench_take_switch,
	 AT(from_medoid), 0, 0, SEARCH},
	{"--rows", "N", "of the file; default: all", bench_take_count, AT(rows), 1,
	 UINT32_MAX, CHANGE},
	{"--first", "N", "rows that are built, the others are inserted",
	 bench_take_count, AT(first), BENCH_K, UINT32_MAX, "insert", "insert"},
	{"--window", "N",
	 "rows at a time, a fifth of which is replaced in each round",
	 bench_take_count, AT(window), BENCH_K, UINT32_MAX, "replace", "replace"},
	{"--rounds", "N", "of replacing", bench_take_count, AT(rounds), 1, 1000000,
	 "replace"},
	{"--insert-threads", "N", "of the engine", bench_take_count,
	 AT(insert_threads), 1, 32, SEARCH},
	{"--insert-list", "N", "search list of an insertion", bench_take_count,
	 AT(insert_list), 4, 10000, SEARCH},
	{"--queue", "N", "rows that wait to be linked, at most", bench_take_count,
	 AT(queue), 1, 1000000, CHANGE}};

static const bench_command command = {
	"engine_bench build   DIR --base FILE [options]\n"
	"       engine_bench search  DIR --base FILE --query FILE --truth FILE "
	"[options]\n"
	"       engine_bench insert  DIR --base FILE --query FILE --first N "
	"[options]\n"
	"       engine_bench replace DIR --base FILE --query FILE --window N "
	"[options]",
	"The engine alone, without a server: builds an index in DIR, searches it,\n"
	"inserts rows, replaces rows and compares with a fresh build.\n",
	known, NV_LENGTH(known), "build search insert replace"};

static const options defaults = {.params = {.metric = NV_METRIC_L2,
											.max_degree = 96,
											.build_list_size = 100,
											.alpha = 1.2f,
											.entrance_ratio = 0.01f,
											.entrance_degree = 32,
											.consolidate_threshold = 0.1f},
								 .clients = {1, {1}},
								 .sweep = {7, {20, 40, 60, 80, 100, 200, 400}},
								 .percentile = 99,
								 .passes = 1,
								 .cache_mb = 256,
								 .insert_threads = 2,
								 .insert_list = 100,
								 .queue = 500,
								 .rounds = 10};

static void
parse(options *o, int argc, char **argv)
{
	int first = bench_parse_arguments(&command, o, argc, argv);

	o->mode = argv[1];
	bench_require(argv[first], "DIR");
	o->dir = argv[first];
	bench_no_more(first + 1, argc, argv);
}

int
main(int argc, char **argv)
{
	bench *b = bench_need(nv_alloc(sizeof(*b)));

	bench_program = "engine_bench";
	b->o = defaults;
	b->o.threads = bench_processors();
	parse(&b->o, argc, argv);
	memset(&b->key, 1, sizeof(b->key));
	b->key.unused = 0;
	if (strcmp(b->o.mode, "build") == 0)
		run_build(b);
	else if (strcmp(b->o.mode, "search") == 0)
		run_search(b);
	else if (strcmp(b->o.mode, "insert") == 0)
		eb_run_insert(b);
	else
		eb_run_replace(b);
	nv_engine_stop(b->engine, true, 60000);
	nv_local_free(b->local);
	free(b->query.words);
	free(b->truth.words);
	free(b);
	return 0;
}
