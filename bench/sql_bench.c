/*
 * sql_bench.c
 *		The same measurements through SQL, as an application meets them.
 *
 * The server is found by libpq's environment variables.  load makes
 * TABLE (id int, v real[] or vector); id is the row's number in the file.
 * search asks SELECT id ... ORDER BY v OPERATOR $1 LIMIT 10, prepared, binary.
 *
 * Each line of a sweep: a warm-up until the rerank window of that list size is
 * calibrated; one pass that reads recall and, with real[], navis_last_scan()
 * after every query and stops with an error if one was not answered by the
 * graph; then timed passes with each number of clients.  With --type vector
 * the plan is looked at instead.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"
#include "sql_bench.h"

#define REAL_OID 700
#define CALIBRATION_SECONDS 120  /* a warm-up that takes longer has failed */
#define NOT_CALIBRATED_ABOVE 800 /* list size of the last bucket */

/* --- talking to the server --- */

PGconn *
sb_connect(void)
{
	PGconn *conn = PQconnectdb("");

	if (PQstatus(conn) != CONNECTION_OK)
		bench_die("connection", PQerrorMessage(conn));
	return conn;
}

PGresult *
sb_checked(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK &&
		status != PGRES_COPY_IN)
		bench_die("server", PQerrorMessage(conn));
	return result;
}

void
sb_command(PGconn *conn, const char *sql)
{
	PQclear(sb_checked(conn, PQexec(conn, sql)));
}

/* --- vectors in binary form --- */

char *
sb_put16(char *p, uint32_t value)
{
	uint16_t word = htons((uint16_t) value);

	memcpy(p, &word, 2);
	return p + 2;
}

char *
sb_put32(char *p, uint32_t value)
{
	uint32_t word = htonl(value);

	memcpy(p, &word, 4);
	return p + 4;
}

/* Both forms fit. */
size_t
sb_vector_room(uint32_t dim)
{
	return 20 + (size_t) dim * 8;
}

/*
 * As array_send and vector_send have it: dimensions, flags, element type,
 * length, lower bound and elements with their lengths; or length, 0, elements.
 */
char *
sb_put_vector(char *p, const uint32_t *words, uint32_t dim, bool is_array)
{
	if (is_array)
	{
		p = sb_put32(p, 1);
		p = sb_put32(p, 0);
		p = sb_put32(p, REAL_OID);
		p = sb_put32(p, dim);
		p = sb_put32(p, 1);
	}
	else
	{
		p = sb_put16(p, dim);
		p = sb_put16(p, 0);
	}
	for (uint32_t i = 0; i < dim; i++)
	{
		if (is_array)
			p = sb_put32(p, 4);
		p = sb_put32(p, words[i]);
	}
	return p;
}

/* --- load --- */

static void
send_copy(PGconn *conn, const char *data, const char *end)
{
	if (PQputCopyData(conn, data, (int) (end - data)) != 1)
		bench_die("COPY", PQerrorMessage(conn));
}

void
sb_copy(PGconn *conn, const bench *b, const sb_rows *rows)
{
	static const char signature[19] = "PGCOPY\n\377\r\n";
	uint32_t dim = rows->dim;
	char *row = bench_allocate(14 + sb_vector_room(dim), 1), sql[512];
	uint32_t *words = bench_allocate(dim, 4);
	bench_progress progress;

	snprintf(sql, sizeof(sql), "COPY %s (id, v) FROM STDIN (FORMAT binary)",
			 b->o.table);
	sb_command(conn, sql);
	send_copy(conn, signature, signature + sizeof(signature));
	bench_progress_begin(&progress, "rows copied", rows->n);
	for (uint32_t i = 0; i < rows->n; i++)
	{
		char *vector = row + 14, *end;

		if (rows->words != NULL)
			memcpy(words, rows->words + (size_t) i * dim, (size_t) dim * 4);
		else if (fread(words, 4, dim, rows->file) != dim)
			bench_die(b->o.base, "too short");
		end = sb_put_vector(vector, words, dim, b->navis);
		sb_put32(sb_put32(sb_put32(sb_put16(row, 2), 4), rows->first + i),
				 (uint32_t) (end - vector));
		send_copy(conn, row, end);
		bench_progress_show(&progress, i + 1);
	}
	bench_progress_end(&progress);
	send_copy(conn, row, sb_put16(row, UINT16_MAX));
	if (PQputCopyEnd(conn, NULL) != 1)
		bench_die("COPY", PQerrorMessage(conn));
	for (PGresult *r; (r = PQgetResult(conn)) != NULL;)
		PQclear(sb_checked(conn, r));
	free(row);
	free(words);
}

static void
run_load(bench *b)
{
	PGconn *conn = sb_connect();
	sb_rows rows = {0};
	char sql[512], type[64] = "real[]";

	rows.file = bench_open_matrix(b->o.base, &rows.n, &rows.dim);
	if (b->o.rows > rows.n)
		bench_die(b->o.base, "has fewer rows than asked for");
	if (b->o.rows != 0)
		rows.n = b->o.rows;
	if (!b->navis)
		snprintf(type, sizeof(type), "vector(%u)", rows.dim);
	snprintf(sql, sizeof(sql), "CREATE TABLE %s (id int, v %s)", b->o.table,
			 type);
	sb_command(conn, sql);
	sb_copy(conn, b, &rows);
	snprintf(sql, sizeof(sql), "VACUUM ANALYZE %s", b->o.table);
	sb_command(conn, sql);
	fclose(rows.file);
	PQfinish(conn);
}

/* --- search --- */

/* The answer's ids; fewer than K rows are an error. */
static void
ask_ids(bench *b, uint32_t client, uint32_t q, uint32_t *ids)
{
	connection *c = &b->connections[client];
	char *end =
		sb_put_vector(c->parameter, b->query.words + (size_t) q * b->query.dim,
					  b->query.dim, b->navis);
	const char *values[1] = {c->parameter};
	const int lengths[1] = {(int) (end - c->parameter)}, formats[1] = {1};
	PGresult *r =
		sb_checked(c->conn, PQexecPrepared(c->conn, "nearest", 1, values,
										   lengths, formats, 1));

	if (PQntuples(r) != BENCH_K)
		bench_die("search", "the answer has not ten rows");
	for (int i = 0; i < BENCH_K; i++)
	{
		uint32_t id;

		memcpy(&id, PQgetvalue(r, i, 0), 4);
		ids[i] = ntohl(id);
	}
	PQclear(r);
}

void
sb_ask(void *arg, uint32_t client, uint32_t q)
{
	uint32_t ids[BENCH_K];

	ask_ids(arg, client, q, ids);
}

static uint64_t
number(const PGresult *r, int column)
{
	return strtoull(PQgetvalue(r, 0, column), NULL, 10);
}

/*
 * Adds what the last scan of this connection did; an error unless the graph
 * answered.  True when the rerank window is calibrated.
 */
static bool
add_last_scan(bench *b, uint32_t client, bench_figures *f)
{
	static char window[16];
	PGconn *conn = b->connections[client].conn;
	PGresult *r = sb_checked(
		conn, PQexec(conn, "SELECT mode, hops, edge_pages, edge_reads, "
						   "explored, vectors, bytes_read, io_us, compute_us, "
						   "rerank_window, rows FROM navis_last_scan()"));
	bool calibrated = !PQgetisnull(r, 0, 9);

	if (strcmp(PQgetvalue(r, 0, 0), "graph") != 0 || number(r, 1) == 0 ||
		number(r, 2) == 0 || number(r, 10) != BENCH_K)
		bench_die("the graph did not answer; mode", PQgetvalue(r, 0, 0));
	f->hops += number(r, 1);
	f->edge_pages += number(r, 2);
	f->edge_reads += number(r, 3);
	f->explored += number(r, 4);
	f->vectors += number(r, 5);
	f->bytes += number(r, 6);
	f->io_us += number(r, 7);
	f->compute_us += number(r, 8);
	snprintf(window, sizeof(window), "%s",
			 calibrated ? PQgetvalue(r, 0, 9) : "all");
	f->window = window;
	PQclear(r);
	return calibrated;
}

/* The prepared plan must be an index scan, of that index if one is named. */
static void
check_plan(bench *b, PGconn *conn)
{
	PGresult *r = sb_checked(
		conn, PQexec(conn, "EXPLAIN (COSTS off) EXECUTE nearest(NULL)"));
	char wanted[128];
	bool found = false;

	snprintf(wanted, sizeof(wanted), "Index Scan using %s",
			 b->o.index != NULL ? b->o.index : "");
	for (int i = 0; i < PQntuples(r); i++)
		found |= strstr(PQgetvalue(r, i, 0), wanted) != NULL;
	if (!found)
		bench_die("the plan does not take the index", PQgetvalue(r, 0, 0));
	PQclear(r);
}

void
sb_apply_settings(const bench *b, PGconn *conn)
{
	char sql[512];

	for (uint32_t i = 0; i < b->o.n_settings; i++)
	{
		const char *equals = strchr(b->o.settings[i], '=');

		snprintf(sql, sizeof(sql), "SET %.*s = '%s'",
				 (int) (equals - b->o.settings[i]), b->o.settings[i],
				 equals + 1);
		sb_command(conn, sql);
	}
}

void
sb_prepare(bench *b, connection *c)
{
	char sql[512];

	c->conn = sb_connect();
	c->parameter = bench_allocate(sb_vector_room(b->query.dim), 1);
	sb_command(c->conn, "SET plan_cache_mode = force_generic_plan");
	sb_apply_settings(b, c->conn);
	snprintf(sql, sizeof(sql),
			 "PREPARE nearest(%s) AS SELECT id FROM %s ORDER BY v %s $1 "
			 "LIMIT %d",
			 b->navis ? "real[]" : "vector", b->o.table, b->o.op, BENCH_K);
	sb_command(c->conn, sql);
	check_plan(b, c->conn);
}

/* Until the window of this list size is calibrated; one pass at least. */
static void
warm_up(bench *b, uint32_t list)
{
	bench_figures unused = {0};
	uint32_t ids[BENCH_K];
	uint64_t begun = bench_now_ns();

	for (;;)
	{
		bool ready = !b->navis || !b->casr || list > NOT_CALIBRATED_ABOVE;

		for (uint32_t q = 0; q < b->query.n; q++)
			ask_ids(b, 0, q, ids);
		if (ready || add_last_scan(b, 0, &unused))
			break;
		if (bench_now_ns() - begun > CALIBRATION_SECONDS * UINT64_C(1000000000))
			bench_die("warm-up", "the rerank window is still not calibrated");
	}
}

static bench_figures
collect(bench *b)
{
	bench_figures f = {.queries = b->query.n, .window = ""};
	uint32_t ids[BENCH_K];
	uint32_t pid = b->o.engine_pid;

	if (pid != 0)
		f.proc_bytes = bench_proc_read_bytes(pid);
	for (uint32_t q = 0; q < b->query.n; q++)
	{
		ask_ids(b, 0, q, ids);
		f.found += bench_count_hits(&b->truth, q, ids);
		if (b->navis)
			add_last_scan(b, 0, &f);
	}
	if (pid != 0)
		f.proc_bytes = bench_proc_read_bytes(pid) - f.proc_bytes;
	return f;
}

static void
json_search(bench *b, uint32_t list, const bench_figures *f, uint32_t clients,
			const bench_speed *speed)
{
	double n = (double) f->queries;

	bench_json_begin(b->json, "sql_search");
	bench_json_number(b->json, "L", list);
	bench_json_number(b->json, "recall", (double) f->found / (n * BENCH_K));
	bench_json_number(b->json, "clients", clients);
	bench_json_number(b->json, "qps", speed->qps);
	bench_json_number(b->json, "mean_ms", speed->mean_ms);
	bench_json_number(b->json, "p50_ms", speed->p50_ms);
	bench_json_number(b->json, "p99_ms", speed->p99_ms);
	if (b->navis)
	{
		bench_json_number(b->json, "edge_pages", (double) f->edge_pages / n);
		bench_json_number(b->json, "edge_reads", (double) f->edge_reads / n);
		bench_json_number(b->json, "vectors", (double) f->vectors / n);
		bench_json_number(b->json, "bytes", (double) f->bytes / n);
	}
	bench_json_end(b->json);
}

static void
measure(bench *b, uint32_t list)
{
	bench_speed speeds[BENCH_MAX_NUMBERS];
	bench_figures figures, unused = {0};
	char sql[256];

	if (b->o.setting != NULL)
		for (uint32_t i = 0; i < b->n_connections; i++)
		{
			snprintf(sql, sizeof(sql), "SET %s = %u", b->o.setting, list);
			sb_command(b->connections[i].conn, sql);
		}
	warm_up(b, list);
	figures = collect(b);
	for (uint32_t i = 0; i < b->o.clients.n; i++)
	{
		uint32_t clients = b->o.clients.values[i];

		speeds[i] =
			bench_run_clients(clients, b->query.n, b->o.passes, sb_ask, b);
		for (uint32_t j = 0; b->navis && j < clients; j++)
			add_last_scan(b, j, &unused);
	}
	bench_print_row(list, &figures, speeds, b->o.clients.n, b->navis);
	for (uint32_t i = 0; i < b->o.clients.n; i++)
		json_search(b, list, &figures, b->o.clients.values[i], &speeds[i]);
}

static void
run_search(bench *b)
{
	b->query = bench_read_matrix(b->o.query);
	b->truth = bench_read_matrix(b->o.truth);
	if (b->truth.n < b->query.n || b->truth.dim < BENCH_K)
		bench_die(b->o.truth, "does not fit the queries");
	b->casr = true;
	for (uint32_t i = 0; i < b->o.n_settings; i++)
		b->casr &= strcmp(b->o.settings[i], "navis.casr=off") != 0;
	for (uint32_t i = 0; i < b->o.clients.n; i++)
		if (b->o.clients.values[i] > b->n_connections)
			b->n_connections = b->o.clients.values[i];
	for (uint32_t i = 0; i < b->n_connections; i++)
		sb_prepare(b, &b->connections[i]);
	bench_print_head(&b->o.clients, b->navis);
	for (uint32_t i = 0; i < b->o.sweep.n; i++)
		measure(b, b->o.sweep.values[i]);
	for (uint32_t i = 0; i < b->n_connections; i++)
	{
		PQfinish(b->connections[i].conn);
		free(b->connections[i].parameter);
	}
	free(b->query.words);
	free(b->truth.words);
}

/* --- command line --- */

#define AT(field) offsetof(options, field)

/* Modes that ask, that take rows of the file, and that insert. */
#define ASK "search mixed"
#define INSERT "insert pairs mixed"

static void
take_setting(const bench_argument *a, const char *text, void *options_)
{
	options *o = options_;

	if (strchr(text, '=') == NULL)
		bench_usage(a->name, "NAME=VALUE expected");
	if (o->n_settings == SB_MAX_SETTINGS)
		bench_usage(a->name, "is there too often");
	o->settings[o->n_settings++] = text;
}

static void
take_method(const bench_argument *a, const char *text, void *options_)
{
	if (strcmp(text, "rows") != 0 && strcmp(text, "multi") != 0 &&
		strcmp(text, "copy") != 0)
		bench_usage(a->name, "rows, multi or copy expected");
	bench_take_text(a, text, options_);
}

static void
take_type(const bench_argument *a, const char *text, void *options_)
{
	if (strcmp(text, "real") != 0 && strcmp(text, "vector") != 0)
		bench_usage(a->name, "real or vector expected");
	bench_take_text(a, text, options_);
}

static const bench_argument known[] = {
	{"--type", "TYPE",
	 "of the column v: real (for real[]) or vector (default real)", take_type,
	 AT(type)},
	{"--json", "FILE", "append everything measured as lines of JSON",
	 bench_take_text, AT(json)},
	{"--label", "TEXT", "mark those lines with it", bench_take_text, AT(label)},
	{"--set", "NAME=VALUE",
	 "a setting of the sessions that are measured; up to 16 of them",
	 take_setting, 0, 0, 0, "build search delete pairs mixed"},
	{"--base", "FILE", "rows (.fbin); row number n gets the id n",
	 bench_take_text, AT(base), 0, 0, "load " INSERT, "load " INSERT},
	{"--first", "N", "id of the first row", bench_take_count, AT(first), 0,
	 UINT32_MAX, "delete " INSERT},
	{"--rows", "N", "rows; default: to the end of the file", bench_take_count,
	 AT(rows), 1, UINT32_MAX, "load delete " INSERT, "delete"},
	{"--index", "NAME",
	 "the index: to be made; that plans must take; of navis, that has linked "
	 "all rows before and after",
	 bench_take_text, AT(index), 0, 0, "build search " INSERT, "build"},
	{"--using", "METHOD", "access method", bench_take_text, AT(using), 0, 0,
	 "build", "build"},
	{"--opclass", "NAME", "operator class; default: the type's",
	 bench_take_text, AT(opclass), 0, 0, "build"},
	{"--with", "TEXT", "index parameters, \"lists = 100\"", bench_take_text,
	 AT(with), 0, 0, "build"},
	{"--query", "FILE", "queries (.fbin)", bench_take_text, AT(query), 0, 0,
	 ASK, ASK},
	{"--truth", "FILE", "their exact neighbours (.ibin, or of navis_convert)",
	 bench_take_text, AT(truth), 0, 0, "search", "search"},
	{"--operator", "NAME", "of the distance", bench_take_text, AT(op), 0, 0,
	 ASK},
	{"--setting", "NAME", "what --sweep sets", bench_take_text, AT(setting), 0,
	 0, ASK},
	{"--sweep", "LIST", "its values; mixed: the first", bench_take_numbers,
	 AT(sweep), 1, UINT32_MAX, ASK},
	{"--clients", "LIST", "numbers of clients; mixed: the first",
	 bench_take_numbers, AT(clients), 1, BENCH_MAX_CLIENTS, ASK},
	{"--passes", "N",
	 "timed passes over the queries for each number of clients",
	 bench_take_count, AT(passes), 1, 1000000, ASK},
	{"--engine-pid", "PID",
	 "process of the engine, whose reads or processor time count",
	 bench_take_count, AT(engine_pid), 1, 1u << 30, "search insert"},
	{"--method", "NAME",
	 "rows (INSERTs of one row), multi (of --batch rows) or copy (one COPY) "
	 "(default rows)",
	 take_method, AT(method), 0, 0, "insert"},
	{"--batch", "N", "rows an INSERT; mixed: a transaction", bench_take_count,
	 AT(batch), 1, SB_MAX_BATCH, "insert mixed"},
	{"--plain", "TABLE", "the table without an index", bench_take_text,
	 AT(plain), 0, 0, "pairs", "pairs"},
	{"--pause-us", "US", "microseconds after each pair", bench_take_count,
	 AT(pause_us), 0, 1000000, "pairs"},
	{"--rate", "N", "rows a second; 0: as many as there can be",
	 bench_take_real, AT(rate), 0, 1e9, "mixed"},
	{"--rounds", "N", "of searches alone and beside insertion",
	 bench_take_count, AT(rounds), 1, SB_MAX_ROUNDS, "mixed"}};

static const bench_command command = {
	"sql_bench load   TABLE --base FILE [options]\n"
	"       sql_bench build  TABLE --index NAME --using METHOD [options]\n"
	"       sql_bench search TABLE --query FILE --truth FILE [options]\n"
	"       sql_bench insert TABLE --base FILE --first N --rows N [options]\n"
	"       sql_bench delete TABLE --first N --rows N [options]\n"
	"       sql_bench pairs  TABLE --plain TABLE --base FILE [options]\n"
	"       sql_bench mixed  TABLE --base FILE --query FILE [options]",
	"Through SQL, any access method: loads a table by COPY, builds an index,\n"
	"searches, inserts, deletes and vacuums, times INSERTs with and without "
	"an\n"
	"index, searches beside insertion.  libpq's environment variables name "
	"the\n"
	"server.\n",
	known, sizeof(known) / sizeof(known[0]),
	"load build search insert delete pairs mixed"};

static const struct
{
	const char *name;
	void (*run)(bench *);
} modes[] = {{"load", run_load},        {"build", sb_run_build},
			 {"search", run_search},    {"insert", sb_run_insert},
			 {"delete", sb_run_delete}, {"pairs", sb_run_pairs},
			 {"mixed", sb_run_mixed}};

int
main(int argc, char **argv)
{
	static bench b = {.o = {.type = "real",
							.op = "<->",
							.setting = "navis.search_list_size",
							.passes = 3,
							.method = "rows",
							.batch = 100,
							.rounds = 3,
							.sweep = {1, {100}},
							.clients = {1, {1}}}};
	int first;

	bench_program = "sql_bench";
	first = bench_parse_arguments(&command, &b.o, argc, argv);
	b.o.table = argv[first];
	bench_require(b.o.table, "TABLE");
	bench_no_more(first + 1, argc, argv);
	b.navis = strcmp(b.o.type, "vector") != 0;
	b.json = bench_json_open(b.o.json);
	bench_json_label(b.json, b.o.label);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (strcmp(argv[1], modes[i].name) == 0)
			modes[i].run(&b);
	bench_json_close(b.json);
	return 0;
}
