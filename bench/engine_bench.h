/*
 * engine_bench.h
 *		What the parts of engine_bench share: options, the engine at hand,
 *		building and measuring.
 */
#ifndef NAVIS_ENGINE_BENCH_H
#define NAVIS_ENGINE_BENCH_H

#include "options.h"
#include "navis/engine.h"

typedef struct options
{
	const char *mode, *dir, *base, *query, *truth;
	nv_index_params params;
	uint32_t threads, passes;
	bench_numbers sweep, clients;
	double percentile;
	uint32_t cache_mb;
	bool random_placement, load_all, from_medoid;
	/* insert and replace */
	uint32_t first;  /* rows that are built before the others are inserted */
	uint32_t rows;   /* in all; 0: those of the file */
	uint32_t window; /* rows at a time; 0: elements are named by their rows */
	uint32_t rounds;
	uint32_t insert_threads, insert_list;
	uint32_t queue; /* rows that may wait to be linked */
} options;

typedef struct bench
{
	options o;
	nv_local *local;
	nv_engine *engine;
	nv_key key; /* of the index that requests are for */
	bench_matrix query, truth;
	nv_request *requests[BENCH_MAX_CLIENTS]; /* one a client */
	uint32_t list;                           /* of the line being measured */
} bench;

/* A request for the index at hand; freed by the caller. */
extern nv_request *eb_request(const bench *b, nv_request_kind kind,
							  uint64_t owner);

/* Submits and waits; any error ends the program. */
extern void eb_call(const bench *b, nv_request *r, const char *what);

extern void eb_start(bench *b);

/* The element that a row is, and the row that an answer names. */
extern nv_journal_entry eb_name(const bench *b, uint32_t row,
								const void *vector, uint32_t dim);
extern uint32_t eb_row(const bench *b, const nv_hit *hit);

/* Rows first .. first + n - 1 of all words, or of the file as it stands. */
typedef struct eb_source
{
	FILE *file;
	const uint32_t *words; /* of row 0 */
	uint32_t first, n, dim;
} eb_source;

/* Builds the index at hand and prints what came of it. */
extern void eb_build(bench *b, const eb_source *from);

/* Requests for as many clients as are ever wanted at a time. */
extern void eb_make_clients(bench *b);
extern void eb_free_clients(bench *b);

/* The table over all list sizes; recalls (may be NULL) has one for each. */
extern void eb_sweep(bench *b, double *recalls);

extern void eb_run_insert(bench *b);
extern void eb_run_replace(bench *b);

#endif
