/*
 * common.c
 *		What the benchmark programs share; see common.h.
 */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *bench_program = "bench";

void
bench_die(const char *what, const char *detail)
{
	fprintf(stderr, "%s: %s: %s\n", bench_program, what, detail);
	exit(1);
}

void *
bench_need(void *memory)
{
	if (memory == NULL)
		bench_die("memory", "not enough");
	return memory;
}

void *
bench_allocate(size_t n, size_t size)
{
	return bench_need(calloc(n > 0 ? n : 1, size));
}

uint64_t
bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t) t.tv_sec * 1000000000 + (uint64_t) t.tv_nsec;
}

/* --- files --- */

FILE *
bench_open_matrix(const char *path, uint32_t *n, uint32_t *dim)
{
	FILE *f;
	uint32_t head[2];

	f = fopen(path, "rb");
	if (f == NULL)
		bench_die(path, strerror(errno));
	if (fread(head, 4, 2, f) != 2)
		bench_die(path, "too short");
	*n = head[0];
	*dim = head[1];
	return f;
}

bench_matrix
bench_read_matrix(const char *path)
{
	bench_matrix m;
	FILE *f = bench_open_matrix(path, &m.n, &m.dim);
	size_t words = (size_t) m.n * m.dim;

	m.words = bench_allocate(words, 4);
	if (fread(m.words, 4, words, f) != words)
		bench_die(path, "too short");
	fclose(f);
	return m;
}

uint32_t
bench_count_hits(const bench_matrix *truth, uint32_t query, const uint32_t *ids)
{
	const uint32_t *nearest = truth->words + (size_t) query * truth->dim;
	uint32_t found = 0;

	for (uint32_t i = 0; i < BENCH_K; i++)
		for (uint32_t j = 0; j < BENCH_K; j++)
			found += nearest[i] == ids[j];
	return found;
}

/* --- clients --- */

typedef struct client
{
	pthread_t thread;
	uint32_t number, clients, queries, passes;
	bench_ask ask;
	void *arg;
	double *ms; /* latency of each of its queries */
	uint64_t n;
} client;

static void *
client_main(void *arg)
{
	client *c = arg;

	for (uint32_t pass = 0; pass < c->passes; pass++)
		for (uint32_t q = c->number; q < c->queries; q += c->clients)
		{
			uint64_t begun = bench_now_ns();

			c->ask(c->arg, c->number, q);
			c->ms[c->n++] = (double) (bench_now_ns() - begun) / 1e6;
		}
	return NULL;
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return (x > y) - (x < y);
}

bench_speed
bench_percentiles(double *ms, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += ms[i];
	qsort(ms, n, sizeof(double), compare_doubles);
	return (bench_speed){.mean_ms = sum / (double) n,
						 .p50_ms = ms[n / 2],
						 .p99_ms = ms[n * 99 / 100]};
}

bench_speed
bench_run_clients(uint32_t clients, uint32_t queries, uint32_t passes,
				  bench_ask ask, void *arg)
{
	client c[BENCH_MAX_CLIENTS];
	size_t n = 0, total = (size_t) queries * passes;
	double *ms = bench_allocate(total, sizeof(double));
	uint64_t begun = bench_now_ns();
	double seconds;
	bench_speed speed;

	for (uint32_t i = 0; i < clients; i++)
	{
		c[i] = (client){.number = i,
						.clients = clients,
						.queries = queries,
						.passes = passes,
						.ask = ask,
						.arg = arg,
						.ms = bench_allocate(total, sizeof(double))};
		if (pthread_create(&c[i].thread, NULL, client_main, &c[i]) != 0)
			bench_die("client", "cannot start a thread");
	}
	for (uint32_t i = 0; i < clients; i++)
	{
		pthread_join(c[i].thread, NULL);
		memcpy(ms + n, c[i].ms, c[i].n * sizeof(double));
		n += c[i].n;
		free(c[i].ms);
	}
	seconds = (double) (bench_now_ns() - begun) / 1e9;
	speed = bench_percentiles(ms, n);
	speed.qps = (double) n / seconds;
	free(ms);
	return speed;
}

/* --- the table --- */

void
bench_print_head(const bench_numbers *clients, bool statistics)
{
	printf("| list | recall |");
	for (uint32_t i = 0; i < clients->n; i++)
		printf(" QPS, %u cl. | p50 ms | p99 ms |", clients->values[i]);
	if (statistics)
		printf(" hops | edge pages | disk reads | explored | vectors | w "
			   "| bytes | /proc bytes | I/O us | compute us |");
	printf("\n|---:|---:|");
	for (uint32_t i = 0; i < clients->n; i++)
		printf("---:|---:|---:|");
	if (statistics)
		printf("---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
	printf("\n");
}

void
bench_print_row(uint32_t list, const bench_figures *f,
				const bench_speed *speeds, uint32_t n_speeds, bool statistics)
{
	double n = (double) f->queries;

	printf("| %u | %.4f |", list, (double) f->found / (n * BENCH_K));
	for (uint32_t i = 0; i < n_speeds; i++)
		printf(" %.0f | %.2f | %.2f |", speeds[i].qps, speeds[i].p50_ms,
			   speeds[i].p99_ms);
	if (statistics)
		printf(" %.1f | %.1f | %.1f | %.1f | %.1f | %s | %.0f | %.0f | %.0f "
			   "| %.0f |",
			   (double) f->hops / n, (double) f->edge_pages / n,
			   (double) f->edge_reads / n, (double) f->explored / n,
			   (double) f->vectors / n, f->window, (double) f->bytes / n,
			   (double) f->proc_bytes / n, (double) f->io_us / n,
			   (double) f->compute_us / n);
	printf("\n");
	fflush(stdout);
}

uint64_t
bench_proc_read_bytes(long pid)
{
	char path[64] = "/proc/self/io", line[128];
	unsigned long long bytes;
	bool found = false;
	FILE *f;

	if (pid != 0)
		snprintf(path, sizeof(path), "/proc/%ld/io", pid);
	f = fopen(path, "r");
	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL)
		found = sscanf(line, "read_bytes: %llu", &bytes) == 1;
	if (!found)
		bench_die(path, "read_bytes cannot be read");
	fclose(f);
	return bytes;
}

double
bench_proc_cpu_seconds(long pid)
{
	char path[64] = "/proc/self/stat", line[1024];
	unsigned long user, system;
	const char *behind_name = NULL;
	FILE *f;

	if (pid != 0)
		snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	f = fopen(path, "r");
	if (f != NULL && fgets(line, sizeof(line), f) != NULL)
		behind_name = strrchr(line, ')');
	if (behind_name == NULL ||
		sscanf(behind_name + 1,
			   " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			   &system) != 2)
		bench_die(path, "the processor time cannot be read");
	fclose(f);
	return (double) (user + system) / (double) sysconf(_SC_CLK_TCK);
}
