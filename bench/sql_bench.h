/*
 * sql_bench.h
 *		What the parts of sql_bench share: options, talking to the server,
 *		vectors in binary form.
 */
#ifndef NAVIS_SQL_BENCH_H
#define NAVIS_SQL_BENCH_H

#include <libpq-fe.h>

#include "arguments.h"
#include "json.h"

#define SB_MAX_SETTINGS 16
#define SB_MAX_BATCH 1000 /* two parameters a row, 65,535 in all */
#define SB_MAX_ROUNDS 100

typedef struct options
{
	const char *table, *base, *query, *truth;
	const char *type, *op, *index, *setting, *json, *label;
	const char *using, *opclass, *with; /* build */
	const char *settings[SB_MAX_SETTINGS];
	uint32_t n_settings, rows, passes;
	bench_numbers sweep, clients;
	uint32_t engine_pid; /* of the process that searches; 0: not asked */
	/* insert, pairs, mixed */
	const char *method, *plain;
	uint32_t first, batch, pause_us, rounds;
	double rate; /* rows a second, 0: as many as there can be */
} options;

typedef struct connection
{
	PGconn *conn;
	char *parameter; /* the query vector in its type's binary form */
} connection;

typedef struct bench
{
	options o;
	bench_matrix query, truth;
	connection connections[BENCH_MAX_CLIENTS];
	uint32_t n_connections;
	bool navis; /* the index under test is ours */
	bool casr;
	bench_json *json;
} bench;

/* An error of the server ends the program. */
extern PGconn *sb_connect(void);
extern PGresult *sb_checked(PGconn *conn, PGresult *result);
extern void sb_command(PGconn *conn, const char *sql);

/* Numbers and vectors in network order; return the byte behind. */
extern char *sb_put16(char *p, uint32_t value);
extern char *sb_put32(char *p, uint32_t value);
extern char *sb_put_vector(char *p, const uint32_t *words, uint32_t dim,
						   bool is_array);
extern size_t sb_vector_room(uint32_t dim);

/* Rows first .. first + n - 1 at words, or of the file as it stands. */
typedef struct sb_rows
{
	FILE *file;
	uint32_t *words; /* of row first */
	uint32_t first, n, dim;
} sb_rows;

/* COPY into the table, in binary form, to the end of the statement. */
extern void sb_copy(PGconn *conn, const bench *b, const sb_rows *rows);

/* The --set options. */
extern void sb_apply_settings(const bench *b, PGconn *conn);

/* A connection with the prepared search and the options' settings. */
extern void sb_prepare(bench *b, connection *c);
/* bench_ask of arg, a bench. */
extern void sb_ask(void *arg, uint32_t client, uint32_t q);

extern void sb_run_build(bench *b);
extern void sb_run_delete(bench *b);
extern void sb_run_insert(bench *b);
extern void sb_run_pairs(bench *b);
extern void sb_run_mixed(bench *b);

#endif
