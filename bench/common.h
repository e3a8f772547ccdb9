/*
 * common.h
 *		What the benchmark programs share: data files, clients on threads, and
 *		the table that they print.
 *
 * Files: .fbin = uint32 n, uint32 dim, n * dim float32; .ibin = uint32 n,
 * uint32 k, n * k int32 (row numbers of the base file), little-endian.
 */
#ifndef NAVIS_BENCH_COMMON_H
#define NAVIS_BENCH_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_K 10 /* recall is recall@10 throughout */
#define BENCH_MAX_CLIENTS 64
#define BENCH_MAX_NUMBERS 32

/* Prints program, what and detail, and exits with status 1. */
extern const char *bench_program;
extern void bench_die(const char *what, const char *detail)
	__attribute__((noreturn));
/* The memory itself; ends the program if there was none. */
extern void *bench_need(void *memory);
/* Zeroed, of n elements; ends the program without memory. */
extern void *bench_allocate(size_t n, size_t size);

typedef struct bench_matrix
{
	uint32_t n, dim;
	uint32_t *words; /* n * dim 32-bit values: float or int */
} bench_matrix;

/* Opens a file and reads its head; the rows follow. */
extern FILE *bench_open_matrix(const char *path, uint32_t *n, uint32_t *dim);
extern bench_matrix bench_read_matrix(const char *path);

/* How many of the first K true neighbours of a query are among ids[K]. */
extern uint32_t bench_count_hits(const bench_matrix *truth, uint32_t query,
								 const uint32_t *ids);

typedef struct bench_numbers
{
	uint32_t n;
	uint32_t values[BENCH_MAX_NUMBERS];
} bench_numbers;

/* Sums over the queries of a pass, from the index's own statistics. */
typedef struct bench_figures
{
	uint64_t queries, found; /* found: of queries * K */
	uint64_t hops, edge_pages, edge_reads, explored, vectors, bytes;
	uint64_t io_us, compute_us;
	uint64_t proc_bytes; /* read_bytes of the engine's process */
	const char *window;  /* w as text */
} bench_figures;

typedef struct bench_speed
{
	double qps, mean_ms, p50_ms, p99_ms;
} bench_speed;

/* Sorts; qps is left 0.  n is at least 1. */
extern bench_speed bench_percentiles(double *ms, size_t n);

/*
 * Every query is asked `passes` times, each client on its own thread asking
 * its share one after the other; the clock is the client's.
 */
typedef void (*bench_ask)(void *arg, uint32_t client, uint32_t query);
extern bench_speed bench_run_clients(uint32_t clients, uint32_t queries,
									 uint32_t passes, bench_ask ask, void *arg);

/* A Markdown table; speeds has one entry for each number of clients. */
extern void bench_print_head(const bench_numbers *clients, bool statistics);
extern void bench_print_row(uint32_t list, const bench_figures *f,
							const bench_speed *speeds, uint32_t n_speeds,
							bool statistics);

/* Bytes the storage layer has read for a process (0: this one). */
extern uint64_t bench_proc_read_bytes(long pid);

/* Seconds of processor time that a process (0: this one) has used so far. */
extern double bench_proc_cpu_seconds(long pid);

extern uint64_t bench_now_ns(void);

#endif
