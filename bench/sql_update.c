/*
 * sql_update.c
 *		sql_bench's modes for a table that changes.
 *
 * insert takes rows FIRST .. FIRST + ROWS - 1 of the file into the table, one
 * session, one transaction: prepared INSERTs of one row (rows), of BATCH rows
 * (multi), or one COPY.  It prints the time to the end of the transaction and,
 * with the name of a navis index, the time until no row of it waits to be
 * linked any more; the processor time of session and engine (with
 * --engine-pid), which means something on a busy machine, too; and the latency
 * of the INSERT statements.
 *
 * pairs inserts every row into TABLE, which has the index, and into the plain
 * one, which has none, each in a transaction of its own, in changing order,
 * with a pause after each pair in which the index can link the row.
 *
 * mixed asks all queries PASSES times, alone and while another session inserts
 * rows (prepared, BATCH of them in a transaction), in turns; no row comes
 * twice.  Between rounds it waits until all are linked.  A row's latency is
 * that of its INSERT, and for the last one of a transaction of its COMMIT, too.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sql_bench.h"

#define POLL_US 10000
#define LINK_SECONDS 1800 /* a backlog that takes longer has failed */

/* A session that inserts, with its prepared statement of `batch` rows. */
typedef struct inserter
{
	PGconn *conn;
	const sb_rows *rows;
	bool is_array;
	uint32_t batch;
	char **values; /* id and vector of each row */
	int *lengths, *formats;
} inserter;

static double
seconds_since(uint64_t begun)
{
	return (double) (bench_now_ns() - begun) / 1e9;
}

/* --- rows --- */

static sb_rows
read_rows(const bench *b)
{
	sb_rows rows = {.first = b->o.first};
	uint32_t n;
	FILE *f = bench_open_matrix(b->o.base, &n, &rows.dim);
	size_t words;

	rows.n = b->o.rows != 0 ? b->o.rows : n - rows.first;
	if (rows.first > n || rows.n > n - rows.first || rows.n == 0)
		bench_die("--first and --rows", "not as many rows in the file");
	words = (size_t) rows.n * rows.dim;
	rows.words = bench_allocate(words, 4);
	if (fseek(f, (long) rows.first * rows.dim * 4, SEEK_CUR) != 0 ||
		fread(rows.words, 4, words, f) != words)
		bench_die(b->o.base, "too short");
	fclose(f);
	return rows;
}

/* --- a session that inserts --- */

/* INSERT INTO table (id, v) VALUES ($1, $2), ($3, $4) ...: `name`. */
static void
prepare_insert(PGconn *conn, const char *name, const char *table,
			   uint32_t batch)
{
	char *sql = bench_allocate(200 + strlen(table) + batch * 24u, 1), *p = sql;

	p += sprintf(p, "INSERT INTO %s (id, v) VALUES ", table);
	for (uint32_t i = 0; i < batch; i++)
		p +=
			sprintf(p, "%s($%u, $%u)", i > 0 ? ", " : "", 2 * i + 1, 2 * i + 2);
	PQclear(sb_checked(conn, PQprepare(conn, name, sql, 0, NULL)));
	free(sql);
}

static inserter
open_inserter(const bench *b, const sb_rows *rows, uint32_t batch)
{
	inserter s = {.conn = sb_connect(),
				  .rows = rows,
				  .is_array = b->navis,
				  .batch = batch};

	s.values = bench_allocate(2 * batch, sizeof(*s.values));
	s.lengths = bench_allocate(2 * batch, sizeof(*s.lengths));
	s.formats = bench_allocate(2 * batch, sizeof(*s.formats));
	for (uint32_t i = 0; i < 2 * batch; i++)
	{
		s.values[i] = bench_allocate(sb_vector_room(rows->dim), 1);
		s.formats[i] = 1;
	}
	prepare_insert(s.conn, "insert", b->o.table, batch);
	return s;
}

static void
close_inserter(inserter *s)
{
	PQfinish(s->conn);
	for (uint32_t i = 0; i < 2 * s->batch; i++)
		free(s->values[i]);
	free(s->values);
	free(s->lengths);
	free(s->formats);
}

static void
insert_batch(inserter *s, const char *statement, uint32_t from)
{
	const sb_rows *rows = s->rows;

	for (uint32_t i = 0; i < s->batch; i++)
	{
		char *vector = s->values[2 * i + 1];
		char *end =
			sb_put_vector(vector, rows->words + (size_t) (from + i) * rows->dim,
						  rows->dim, s->is_array);

		sb_put32(s->values[2 * i], rows->first + from + i);
		s->lengths[2 * i] = 4;
		s->lengths[2 * i + 1] = (int) (end - vector);
	}
	PQclear(sb_checked(s->conn,
					   PQexecPrepared(s->conn, statement, 2 * (int) s->batch,
									  (const char *const *) s->values,
									  s->lengths, s->formats, 1)));
}

/* --- the queue of the index --- */

/*
 * Returns when nothing of the navis index waits to be linked and no build of
 * the engine's own runs any more.
 */
static void
await_linked(PGconn *conn, const char *index)
{
	uint64_t begun = bench_now_ns();
	char sql[256], state[64];
	bool done = false;

	snprintf(sql, sizeof(sql),
			 "SELECT state, pending_rows FROM navis_index_info('%s')", index);
	while (!done)
	{
		PGresult *r = sb_checked(conn, PQexec(conn, sql));

		snprintf(state, sizeof(state), "%s", PQgetvalue(r, 0, 0));
		done = strcmp(state, "ready") == 0 &&
			   strcmp(PQgetvalue(r, 0, 1), "0") == 0;
		PQclear(r);
		if (strcmp(state, "no engine") == 0 ||
			seconds_since(begun) > LINK_SECONDS)
			bench_die("the index does not link its rows; state", state);
		if (!done)
			usleep(POLL_US);
	}
}

/* --- insert --- */

/* Latencies, as many as there come. */
typedef struct latencies
{
	double *ms;
	size_t n, room;
} latencies;

static void
add_latency(latencies *l, double ms)
{
	if (l->n == l->room)
	{
		l->room = l->room == 0 ? 1024 : 2 * l->room;
		l->ms = bench_need(realloc(l->ms, l->room * sizeof(double)));
	}
	l->ms[l->n++] = ms;
}

/* Frees them; zeros without any. */
static bench_speed
end_latencies(latencies *l)
{
	bench_speed speed = {0};

	if (l->n > 0)
		speed = bench_percentiles(l->ms, l->n);
	free(l->ms);
	*l = (latencies){0};
	return speed;
}

static void
json_latency(bench *b, const bench_speed *each)
{
	bench_json_number(b->json, "insert_mean_ms", each->mean_ms);
	bench_json_number(b->json, "insert_p50_ms", each->p50_ms);
	bench_json_number(b->json, "insert_p99_ms", each->p99_ms);
}

static double
timed_row(inserter *s, const char *statement, uint32_t row)
{
	uint64_t begun = bench_now_ns();

	insert_batch(s, statement, row);
	return (double) (bench_now_ns() - begun) / 1e6;
}

static void
insert_all(bench *b, inserter *s, latencies *l)
{
	const sb_rows *rows = s->rows;

	if (strcmp(b->o.method, "copy") == 0)
	{
		sb_copy(s->conn, b, rows);
		return;
	}
	sb_command(s->conn, "BEGIN");
	for (uint32_t i = 0; i < rows->n; i += s->batch)
		add_latency(l, timed_row(s, "insert", i));
	sb_command(s->conn, "COMMIT");
}

/* Of the session's process and, if it is named, of the engine's. */
static double
cpu_seconds(const bench *b, PGconn *conn)
{
	double seconds = bench_proc_cpu_seconds(PQbackendPID(conn));

	if (b->o.engine_pid != 0)
		seconds += bench_proc_cpu_seconds(b->o.engine_pid);
	return seconds;
}

void
sb_run_insert(bench *b)
{
	sb_rows rows = read_rows(b);
	bool multi = strcmp(b->o.method, "multi") == 0;
	inserter s = open_inserter(b, &rows, multi ? b->o.batch : 1);
	double ended, linked, cpu;
	latencies l = {0};
	bench_speed each;
	uint64_t begun;

	rows.n -= rows.n % s.batch;
	if (b->o.index != NULL)
		await_linked(s.conn, b->o.index);
	begun = bench_now_ns();
	cpu = cpu_seconds(b, s.conn);
	insert_all(b, &s, &l);
	ended = linked = seconds_since(begun);
	if (b->o.index != NULL)
	{
		await_linked(s.conn, b->o.index);
		linked = seconds_since(begun);
	}
	cpu = cpu_seconds(b, s.conn) - cpu;
	each = end_latencies(&l);
	printf("| method | rows | s to the end | rows/s | s until linked | rows/s "
		   "linked | CPU ms a row | mean ms | p50 ms | p99 ms "
		   "|\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
	printf("| %s | %u | %.2f | %.0f | %.2f | %.0f | %.3f | %.3f | %.3f | %.3f "
		   "|\n",
		   b->o.method, rows.n, ended, rows.n / ended, linked, rows.n / linked,
		   cpu * 1e3 / rows.n, each.mean_ms, each.p50_ms, each.p99_ms);
	bench_json_begin(b->json, "sql_insert");
	bench_json_text(b->json, "method", b->o.method);
	bench_json_number(b->json, "rows", rows.n);
	bench_json_number(b->json, "rate", rows.n / ended);
	bench_json_number(b->json, "linked_rate", rows.n / linked);
	json_latency(b, &each);
	bench_json_end(b->json);
	close_inserter(&s);
	free(rows.words);
}

/* --- pairs --- */

void
sb_run_pairs(bench *b)
{
	sb_rows rows = read_rows(b);
	inserter s = open_inserter(b, &rows, 1);
	double *indexed = bench_allocate(rows.n, sizeof(double));
	double *plain = bench_allocate(rows.n, sizeof(double));
	bench_speed with, without;

	sb_apply_settings(b, s.conn);
	prepare_insert(s.conn, "plain", b->o.plain, 1);
	if (b->o.index != NULL)
		await_linked(s.conn, b->o.index);
	for (uint32_t i = 0; i < rows.n; i++)
	{
		if (i % 2 == 0)
			plain[i] = timed_row(&s, "plain", i);
		indexed[i] = timed_row(&s, "insert", i);
		if (i % 2 != 0)
			plain[i] = timed_row(&s, "plain", i);
		if (b->o.pause_us > 0)
			usleep(b->o.pause_us);
	}
	with = bench_percentiles(indexed, rows.n);
	without = bench_percentiles(plain, rows.n);
	printf("| pairs | p50 ms, index | p50 ms, none | ratio | p99 ms, index | "
		   "p99 ms, none |\n|---:|---:|---:|---:|---:|---:|\n");
	printf("| %u | %.4f | %.4f | %.3f | %.3f | %.3f |\n", rows.n, with.p50_ms,
		   without.p50_ms, with.p50_ms / without.p50_ms, with.p99_ms,
		   without.p99_ms);
	bench_json_begin(b->json, "sql_pairs");
	bench_json_number(b->json, "pairs", rows.n);
	bench_json_number(b->json, "p50_ms", with.p50_ms);
	bench_json_number(b->json, "p99_ms", with.p99_ms);
	bench_json_number(b->json, "p50_ms_plain", without.p50_ms);
	bench_json_number(b->json, "p99_ms_plain", without.p99_ms);
	bench_json_end(b->json);
	close_inserter(&s);
	free(indexed);
	free(plain);
	free(rows.words);
}

/* --- mixed --- */

/* The session that inserts beside the searches. */
typedef struct beside
{
	pthread_t thread;
	bench *b;
	inserter *s; /* its rows are row */
	const sb_rows *rows;
	sb_rows row;   /* the next one */
	uint32_t next; /* its number among rows and what is made of them */
	atomic_bool stop;
	double rate; /* what came of it */
	latencies latency;
} beside;

/*
 * When the file's rows are used up, rows that differ from all of them: nine
 * parts of one and one part of another.
 */
static void
next_row(beside *w)
{
	const sb_rows *rows = w->rows;
	uint32_t turn = w->next / rows->n, at = w->next % rows->n;
	uint32_t dim = rows->dim, other = (at + turn) % rows->n;
	const float *a = (const float *) rows->words + (size_t) at * dim;
	const float *b = (const float *) rows->words + (size_t) other * dim;
	float *row = (float *) w->row.words;

	for (uint32_t i = 0; i < dim; i++)
		row[i] = turn == 0 ? a[i] : 0.9f * a[i] + 0.1f * b[i];
	w->row.first = rows->first + w->next++;
}

static void *
beside_main(void *arg)
{
	beside *w = arg;
	const options *o = &w->b->o;
	uint64_t begun = bench_now_ns();
	uint32_t done = 0;

	while (!atomic_load(&w->stop))
	{
		double ms = -1;
		uint64_t commit;

		sb_command(w->s->conn, "BEGIN");
		for (uint32_t i = 0; i < o->batch && !atomic_load(&w->stop); i++)
		{
			double ahead =
				o->rate > 0 ? done / o->rate - seconds_since(begun) : 0;

			if (ahead > 0)
				usleep((useconds_t) (ahead * 1e6));
			next_row(w);
			/* The last one's waits for the COMMIT. */
			if (ms >= 0)
				add_latency(&w->latency, ms);
			ms = timed_row(w->s, "insert", 0);
			done++;
		}
		commit = bench_now_ns();
		sb_command(w->s->conn, "COMMIT");
		if (ms >= 0)
			add_latency(&w->latency,
						ms + (double) (bench_now_ns() - commit) / 1e6);
	}
	w->rate = done / seconds_since(begun);
	return NULL;
}

static bench_speed
search_beside(bench *b, beside *w)
{
	bench_speed speed;

	atomic_store(&w->stop, false);
	if (pthread_create(&w->thread, NULL, beside_main, w) != 0)
		bench_die("inserts", "cannot start a thread");
	speed = bench_run_clients(b->o.clients.values[0], b->query.n, b->o.passes,
							  sb_ask, b);
	atomic_store(&w->stop, true);
	pthread_join(w->thread, NULL);
	return speed;
}

static void
set_list(bench *b)
{
	char sql[256];

	for (uint32_t i = 0; b->o.setting != NULL && i < b->n_connections; i++)
	{
		snprintf(sql, sizeof(sql), "SET %s = %u", b->o.setting,
				 b->o.sweep.values[0]);
		sb_command(b->connections[i].conn, sql);
	}
}

static void
json_mixed(bench *b, uint32_t round, const bench_speed *alone,
		   const bench_speed *with, double rate, const bench_speed *each)
{
	bench_json_begin(b->json, "sql_mixed");
	bench_json_number(b->json, "round", round);
	bench_json_number(b->json, "qps_alone", alone->qps);
	bench_json_number(b->json, "p50_ms_alone", alone->p50_ms);
	bench_json_number(b->json, "p99_ms_alone", alone->p99_ms);
	bench_json_number(b->json, "qps", with->qps);
	bench_json_number(b->json, "mean_ms", with->mean_ms);
	bench_json_number(b->json, "p50_ms", with->p50_ms);
	bench_json_number(b->json, "p99_ms", with->p99_ms);
	bench_json_number(b->json, "rate", rate);
	json_latency(b, each);
	bench_json_end(b->json);
}

void
sb_run_mixed(bench *b)
{
	sb_rows rows = read_rows(b);
	beside w = {.b = b, .rows = &rows, .row = {.n = 1, .dim = rows.dim}};
	inserter s = open_inserter(b, &w.row, 1);
	double ratios[SB_MAX_ROUNDS];
	uint32_t clients = b->o.clients.values[0];

	w.s = &s;
	w.row.words = bench_allocate(rows.dim, sizeof(float));
	b->query = bench_read_matrix(b->o.query);
	for (b->n_connections = 0; b->n_connections < clients; b->n_connections++)
		sb_prepare(b, &b->connections[b->n_connections]);
	set_list(b);
	bench_run_clients(clients, b->query.n, 2, sb_ask, b); /* warm-up */
	printf("| round | p50 ms alone | p99 ms alone | p50 ms beside | p99 ms "
		   "beside | ratio of p50 | rows/s inserted | QPS alone | QPS beside | "
		   "insert mean ms | insert p50 ms | insert p99 ms |\n"
		   "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
	for (uint32_t i = 0; i < b->o.rounds; i++)
	{
		bench_speed alone, with, each;

		if (b->o.index != NULL && b->navis)
			await_linked(s.conn, b->o.index);
		alone = bench_run_clients(clients, b->query.n, b->o.passes, sb_ask, b);
		with = search_beside(b, &w);
		ratios[i] = with.p50_ms / alone.p50_ms;
		each = end_latencies(&w.latency);
		printf("| %u | %.3f | %.3f | %.3f | %.3f | %.3f | %.0f | %.0f | %.0f "
			   "| %.3f | %.3f | %.3f |\n",
			   i + 1, alone.p50_ms, alone.p99_ms, with.p50_ms, with.p99_ms,
			   ratios[i], w.rate, alone.qps, with.qps, each.mean_ms,
			   each.p50_ms, each.p99_ms);
		json_mixed(b, i, &alone, &with, w.rate, &each);
		fflush(stdout);
	}
	printf("| median | | | | | %.3f | | | | | | |\n",
		   bench_percentiles(ratios, b->o.rounds).p50_ms);
	close_inserter(&s);
	free(w.row.words);
	free(rows.words);
}
