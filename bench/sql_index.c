/*
 * sql_index.c
 *		sql_bench's modes for an index as a whole.
 *
 * build creates the index on column v and prints how long that took and how
 * large the table and the index's relation are; what an access method keeps in
 * files of its own is not in the latter.  delete deletes the rows with these
 * ids and vacuums the table, timed apart; both by the client's clock.
 */
#include <stdlib.h>

#include "sql_bench.h"

static double
timed(PGconn *conn, const char *sql)
{
	uint64_t begun = bench_now_ns();

	sb_command(conn, sql);
	return (double) (bench_now_ns() - begun) / 1e9;
}

static double
ask_number(PGconn *conn, const char *sql)
{
	PGresult *r = sb_checked(conn, PQexec(conn, sql));
	double value = strtod(PQgetvalue(r, 0, 0), NULL);

	PQclear(r);
	return value;
}

void
sb_run_build(bench *b)
{
	const options *o = &b->o;
	PGconn *conn = sb_connect();
	double seconds, table, index;
	char sql[1024];
	int n;

	sb_apply_settings(b, conn);
	n = snprintf(sql, sizeof(sql),
				 "CREATE INDEX %s ON %s USING %s (v %s)%s%s%s", o->index,
				 o->table, o->using, o->opclass != NULL ? o->opclass : "",
				 o->with != NULL ? " WITH (" : "",
				 o->with != NULL ? o->with : "", o->with != NULL ? ")" : "");
	if (n >= (int) sizeof(sql))
		bench_usage("--with", "is too long");
	seconds = timed(conn, sql);
	snprintf(sql, sizeof(sql), "SELECT pg_table_size('%s')", o->table);
	table = ask_number(conn, sql);
	snprintf(sql, sizeof(sql), "SELECT pg_relation_size('%s')", o->index);
	index = ask_number(conn, sql);
	printf("| index | s | table bytes | index bytes |\n|---|---:|---:|---:|\n"
		   "| %s | %.2f | %.0f | %.0f |\n",
		   o->index, seconds, table, index);
	bench_json_begin(b->json, "sql_build");
	bench_json_text(b->json, "index", o->index);
	bench_json_number(b->json, "seconds", seconds);
	bench_json_number(b->json, "table_bytes", table);
	bench_json_number(b->json, "index_bytes", index);
	bench_json_end(b->json);
	PQfinish(conn);
}

void
sb_run_delete(bench *b)
{
	const options *o = &b->o;
	PGconn *conn = sb_connect();
	double deletion, vacuum;
	char sql[512];

	sb_apply_settings(b, conn);
	snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE id >= %u AND id < %llu",
			 o->table, o->first, (unsigned long long) o->first + o->rows);
	deletion = timed(conn, sql);
	snprintf(sql, sizeof(sql), "VACUUM %s", o->table);
	vacuum = timed(conn, sql);
	printf("| rows | DELETE s | VACUUM s |\n|---:|---:|---:|\n"
		   "| %u | %.3f | %.3f |\n",
		   o->rows, deletion, vacuum);
	bench_json_begin(b->json, "sql_delete");
	bench_json_number(b->json, "rows", o->rows);
	bench_json_number(b->json, "delete_seconds", deletion);
	bench_json_number(b->json, "vacuum_seconds", vacuum);
	bench_json_end(b->json);
	PQfinish(conn);
}
