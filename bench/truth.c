/*
 * truth.c
 *		Exact nearest neighbours by blocks; see truth.h.
 */
#include "truth.h"

#include <math.h>
#include <stdatomic.h>

#include "blas.h"
#include "parallel.h"
#include "progress.h"
#include "util.h"

#define TILE_ROWS 1024  /* of a matrix product */
#define TILE_QUERIES 64 /* queries of one step of a thread */
#define SPARE 32        /* candidates beyond k */
#define MAX_PARTITION (UINT64_C(512) << 20) /* bytes; more gains nothing */

typedef struct candidate
{
	float score;  /* orders like the distance, but for rounding */
	uint32_t row; /* of the partition */
} candidate;

typedef struct worker
{
	float *scores;      /* TILE_QUERIES x TILE_ROWS */
	candidate *heap;    /* k + SPARE, largest score first */
	bench_near *merged; /* 2 k + SPARE */
} worker;

typedef struct pass
{
	const bench_exact_params *p;
	uint32_t dim, n_queries, n_candidates;
	float *queries;
	float *query_norm;
	float *rows; /* of the partition */
	float *row_norm;
	float max_norm;    /* of the partition's rows */
	uint64_t first, n; /* row numbers in the partition */
	bench_near *near;  /* of the partition's block */
	worker *workers;
	_Atomic uint64_t full;
} pass;

/* --- Candidates by matrix product --- */

/*
 * Scores: squared distance without the query's own square, negative inner
 * product, negative cosine times the query's length.
 */
static float
score_of(const pass *t, float product, uint32_t row)
{
	float norm = t->row_norm[row];

	switch (t->p->metric)
	{
		case NV_METRIC_L2:
			return norm * norm - 2 * product;
		case NV_METRIC_IP:
			return -product;
		case NV_METRIC_COSINE:
			break;
	}
	return norm > 0 ? -product / norm : INFINITY;
}

static double
exact_score(const pass *t, double distance, uint32_t query)
{
	double norm = t->query_norm[query];

	switch (t->p->metric)
	{
		case NV_METRIC_L2:
			return distance * distance - norm * norm;
		case NV_METRIC_IP:
			return distance;
		case NV_METRIC_COSINE:
			break;
	}
	return (distance - 1) * norm;
}

/*
 * Twice the bound on the error of a score: dim products are summed in float,
 * squares in double; norms and distances are rounded to float or better.
 */
static double
score_error(const pass *t, uint32_t query)
{
	double unit = (t->dim + 16) * 0x1p-23, q = t->query_norm[query];

	if (t->p->metric == NV_METRIC_COSINE)
		return 4 * unit * q;
	return 4 * unit *
		   (q * (double) t->max_norm + (double) t->max_norm * t->max_norm +
			q * q);
}

static void
sift_down(candidate *heap, uint32_t n)
{
	candidate moved = heap[0];
	uint32_t at = 0;

	for (uint32_t child = 1; child < n; child = 2 * at + 1)
	{
		if (child + 1 < n && heap[child + 1].score > heap[child].score)
			child++;
		if (heap[child].score <= moved.score)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = moved;
}

static void
sift_up(candidate *heap, uint32_t at)
{
	candidate moved = heap[at];

	while (at > 0 && heap[(at - 1) / 2].score < moved.score)
	{
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = moved;
}

static void
offer(candidate *heap, uint32_t *n, uint32_t room, float score, uint32_t row)
{
	if (*n < room)
	{
		heap[*n] = (candidate){score, row};
		sift_up(heap, (*n)++);
	}
	else if (score < heap[0].score)
	{
		heap[0] = (candidate){score, row};
		sift_down(heap, room);
	}
}

/* --- Exact distances --- */

static int
compare_near(const void *a, const void *b)
{
	const bench_near *x = a, *y = b;
	/* Zero vectors have no cosine: they come last. */
	double dx = isnan(x->distance) ? INFINITY : x->distance;
	double dy = isnan(y->distance) ? INFINITY : y->distance;

	if (dx != dy)
		return dx < dy ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

static bench_near
compare_row(const pass *t, uint32_t query, uint32_t row)
{
	return (bench_near){nv_distance(t->p->metric,
									t->queries + (size_t) query * t->dim,
									t->rows + (size_t) row * t->dim, t->dim),
						(uint32_t) (t->first + row)};
}

/* Puts one more row among the k nearest of its block. */
static void
insert_near(bench_near *near, uint32_t k, bench_near x)
{
	uint32_t at = k - 1;

	if (compare_near(&x, &near[at]) >= 0)
		return;
	for (; at > 0 && compare_near(&x, &near[at - 1]) < 0; at--)
		near[at] = near[at - 1];
	near[at] = x;
}

/*
 * Candidates' exact distances into the block's nearest; row by row when a row
 * that is no candidate could be nearer than the last of them.
 */
static void
settle_query(pass *t, uint32_t query, const candidate *heap, uint32_t n)
{
	uint32_t k = t->p->k;
	bench_near *near = t->near + (size_t) query * k;
	double last;

	for (uint32_t i = 0; i < n; i++)
		insert_near(near, k, compare_row(t, query, heap[i].row));
	if (n == t->n)
		return;
	last = near[k - 1].distance;
	if (near[k - 1].id != UINT32_MAX &&
		exact_score(t, last, query) + score_error(t, query) <
			(double) heap[0].score)
		return;
	atomic_fetch_add(&t->full, 1);
	/* What is there already from this partition must not come twice. */
	for (uint32_t i = 0, kept = 0; i < k; i++)
	{
		bool ours = near[i].id != UINT32_MAX && near[i].id >= t->first &&
					near[i].id < t->first + t->n;

		if (!ours)
			near[kept++] = near[i];
		if (i == k - 1)
			for (; kept < k; kept++)
				near[kept] = (bench_near){INFINITY, UINT32_MAX};
	}
	for (uint32_t row = 0; row < t->n; row++)
		insert_near(near, k, compare_row(t, query, row));
}

static void
run_step(void *arg, uint32_t number, uint64_t step)
{
	pass *t = arg;
	worker *w = &t->workers[number];
	uint32_t first = (uint32_t) step * TILE_QUERIES;
	uint32_t n = NV_MIN(t->n_queries - first, (uint32_t) TILE_QUERIES);
	uint32_t room = t->n_candidates, count[TILE_QUERIES] = {0};

	for (uint64_t row = 0; row < t->n; row += TILE_ROWS)
	{
		uint32_t rows = (uint32_t) NV_MIN(t->n - row, (uint64_t) TILE_ROWS);

		nv_blas_product(t->queries + (size_t) first * t->dim, t->dim, n,
						t->rows + row * t->dim, t->dim, rows, t->dim, w->scores,
						TILE_ROWS);
		for (uint32_t q = 0; q < n; q++)
			for (uint32_t i = 0; i < rows; i++)
				offer(w->heap + (size_t) q * room, &count[q], room,
					  score_of(t, w->scores[q * TILE_ROWS + i],
							   (uint32_t) row + i),
					  (uint32_t) row + i);
	}
	for (uint32_t q = 0; q < n; q++)
		settle_query(t, first + q, w->heap + (size_t) q * room, count[q]);
}

/* --- Memory --- */

static uint64_t
worker_bytes(const pass *t)
{
	return TILE_QUERIES *
		   (TILE_ROWS * sizeof(float) + t->n_candidates * sizeof(candidate));
}

/* Rows of a partition within the budget. */
static nv_status
size_partition(const pass *t, const bench_exact *exact, uint64_t *rows,
			   nv_error *err)
{
	uint64_t each = ((uint64_t) t->dim + 1) * sizeof(float);
	uint64_t fixed = (uint64_t) t->n_queries * (t->dim + 1) * sizeof(float) +
					 (uint64_t) exact->n_blocks * exact->n_queries * exact->k *
						 sizeof(bench_near) +
					 nv_parallel_threads(t->p->threads) * worker_bytes(t);
	uint64_t least = fixed + TILE_ROWS * each;

	if (t->p->budget < least)
		return nv_fail(err, NV_ELIMIT, 0,
					   "a budget of %.3f GB is too small: %u queries, %u "
					   "neighbours in %u blocks need %.3f GB",
					   (double) t->p->budget / 1e9, t->n_queries, exact->k,
					   exact->n_blocks, (double) least / 1e9);
	*rows = NV_MIN(t->p->budget - fixed, MAX_PARTITION) / each;
	return NV_OK;
}

static void
free_pass(pass *t)
{
	uint32_t threads = nv_parallel_threads(t->p->threads);

	for (uint32_t i = 0; t->workers != NULL && i < threads; i++)
	{
		free(t->workers[i].scores);
		free(t->workers[i].heap);
	}
	free(t->workers);
	free(t->queries);
	free(t->query_norm);
	free(t->rows);
	free(t->row_norm);
}

static bool
allocate_pass(pass *t, bench_exact *exact)
{
	uint32_t threads = nv_parallel_threads(t->p->threads);
	size_t near = (size_t) exact->n_blocks * exact->n_queries * exact->k;
	bool ok;

	t->queries = nv_alloc_array((size_t) t->n_queries * t->dim, sizeof(float));
	t->query_norm = nv_alloc_array(t->n_queries, sizeof(float));
	t->rows = nv_alloc_array(exact->partition * t->dim, sizeof(float));
	t->row_norm = nv_alloc_array(exact->partition, sizeof(float));
	t->workers = nv_alloc_array(threads, sizeof(worker));
	exact->near = nv_alloc_array(near, sizeof(bench_near));
	ok = t->queries != NULL && t->query_norm != NULL && t->rows != NULL &&
		 t->row_norm != NULL && t->workers != NULL && exact->near != NULL;
	for (uint32_t i = 0; ok && i < threads; i++)
	{
		worker *w = &t->workers[i];

		w->scores = nv_alloc_array(TILE_QUERIES * TILE_ROWS, sizeof(float));
		w->heap = nv_alloc_array((size_t) TILE_QUERIES * t->n_candidates,
								 sizeof(candidate));
		ok = w->scores != NULL && w->heap != NULL;
	}
	for (size_t i = 0; ok && i < near; i++)
		exact->near[i] = (bench_near){INFINITY, UINT32_MAX};
	return ok;
}

/* --- The pass --- */

static nv_status
read_partition(pass *t, bench_rows *base, nv_error *err)
{
	nv_status status = bench_rows_read(base, t->first, t->n, t->rows, err);

	t->max_norm = 0;
	for (uint64_t i = 0; i < t->n && status == NV_OK; i++)
	{
		t->row_norm[i] = (float) nv_norm(t->rows + i * t->dim, t->dim);
		t->max_norm = NV_MAX(t->max_norm, t->row_norm[i]);
	}
	return status;
}

static nv_status
run_pass(pass *t, bench_rows *base, bench_exact *exact, nv_error *err)
{
	const uint64_t *bounds = t->p->bounds;
	uint64_t steps = (t->n_queries + TILE_QUERIES - 1) / TILE_QUERIES;
	uint64_t end = bounds[t->p->n_blocks];
	uint32_t block = 0;
	bench_progress progress;
	nv_status status = NV_OK;

	bench_progress_begin(&progress, "exact neighbours, rows", end - bounds[0]);
	for (t->first = bounds[0]; t->first < end && status == NV_OK;
		 t->first += t->n)
	{
		while (t->first >= bounds[block + 1])
			block++;
		t->n = NV_MIN(exact->partition, bounds[block + 1] - t->first);
		t->near = exact->near + (size_t) block * t->n_queries * exact->k;
		status = read_partition(t, base, err);
		if (status == NV_OK)
			status = nv_parallel_run(t->p->threads, steps, run_step, t, NULL,
									 NULL, err);
		bench_progress_show(&progress, t->first - bounds[0]);
	}
	bench_progress_end(&progress);
	exact->full = atomic_load(&t->full);
	return status;
}

static nv_status
check_params(const bench_rows *base, const bench_rows *queries,
			 const bench_exact_params *p, nv_error *err)
{
	if (queries->dim != base->dim)
		return nv_fail(err, NV_EINVAL, 0,
					   "queries have %u dimensions, rows have %u", queries->dim,
					   base->dim);
	if (p->k < 1 || p->k > BENCH_EXACT_MAX_K)
		return nv_fail(err, NV_EINVAL, 0, "k is %u, expected 1 to %d", p->k,
					   BENCH_EXACT_MAX_K);
	if (p->bounds[p->n_blocks] > base->n || base->n > UINT32_MAX - 1)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" has %llu rows, asked for %llu", base->path,
					   (unsigned long long) base->n,
					   (unsigned long long) p->bounds[p->n_blocks]);
	if (queries->n == 0 || queries->n > UINT32_MAX)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\" has %llu queries",
					   queries->path, (unsigned long long) queries->n);
	return nv_blas_load(err);
}

nv_status
bench_exact_run(bench_rows *base, bench_rows *queries,
				const bench_exact_params *p, bench_exact *exact, nv_error *err)
{
	pass t = {.p = p, .dim = base->dim};
	nv_status status = check_params(base, queries, p, err);

	memset(exact, 0, sizeof(*exact));
	if (status != NV_OK)
		return status;
	t.n_queries = exact->n_queries = (uint32_t) queries->n;
	exact->k = p->k;
	exact->n_blocks = p->n_blocks;
	t.n_candidates = p->k + SPARE;
	status = size_partition(&t, exact, &exact->partition, err);
	if (status != NV_OK)
		return status;
	if (!allocate_pass(&t, exact))
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for exact neighbours");
	if (status == NV_OK)
		status = bench_rows_read(queries, 0, queries->n, t.queries, err);
	for (uint32_t q = 0; q < t.n_queries && status == NV_OK; q++)
		t.query_norm[q] =
			(float) nv_norm(t.queries + (size_t) q * t.dim, t.dim);
	if (status == NV_OK)
		status = run_pass(&t, base, exact, err);
	free_pass(&t);
	if (status != NV_OK)
		bench_exact_free(exact);
	return status;
}

void
bench_exact_free(bench_exact *exact)
{
	free(exact->near);
	memset(exact, 0, sizeof(*exact));
}

/* --- Unions of blocks --- */

static void
union_of_query(const bench_exact *exact, uint32_t first, uint32_t end,
			   uint32_t query, bench_near *best)
{
	for (uint32_t i = 0; i < exact->k; i++)
		best[i] = (bench_near){INFINITY, UINT32_MAX};
	for (uint32_t block = first; block < end; block++)
	{
		const bench_near *near =
			exact->near +
			((size_t) block * exact->n_queries + query) * exact->k;

		for (uint32_t i = 0; i < exact->k; i++)
			insert_near(best, exact->k, near[i]);
	}
}

nv_status
bench_exact_union(const bench_exact *exact, uint32_t first, uint32_t end,
				  bench_truth *truth, nv_error *err)
{
	size_t values = (size_t) exact->n_queries * exact->k;
	bench_near best[BENCH_EXACT_MAX_K];

	*truth = (bench_truth){exact->n_queries, exact->k,
						   nv_alloc_array(values, sizeof(uint32_t)),
						   nv_alloc_array(values, sizeof(float))};
	if (truth->ids == NULL || truth->distances == NULL)
	{
		bench_truth_free(truth);
		return nv_fail(err, NV_ENOMEM, 0, "no memory for exact neighbours");
	}
	for (uint32_t q = 0; q < exact->n_queries; q++)
	{
		union_of_query(exact, first, end, q, best);
		if (best[exact->k - 1].id == UINT32_MAX)
		{
			bench_truth_free(truth);
			return nv_fail(err, NV_EINVAL, 0,
						   "fewer than %u rows have a distance to query %u",
						   exact->k, q);
		}
		for (uint32_t i = 0; i < exact->k; i++)
		{
			truth->ids[(size_t) q * exact->k + i] = best[i].id;
			truth->distances[(size_t) q * exact->k + i] =
				(float) best[i].distance;
		}
	}
	return NV_OK;
}

static int
compare_bounds(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

	return (x > y) - (x < y);
}

uint64_t *
bench_moving_bounds(uint64_t n, uint64_t batch, uint64_t total,
					uint32_t *n_blocks)
{
	uint64_t steps = (total - n) / batch, count = 0, unique = 0;
	uint64_t *bounds = nv_alloc_array(2 * steps + 2, sizeof(*bounds));

	if (bounds == NULL)
		return NULL;
	for (uint64_t i = 0; i <= steps; i++)
	{
		bounds[count++] = n + i * batch;
		bounds[count++] = i * batch;
	}
	qsort(bounds, count, sizeof(*bounds), compare_bounds);
	for (uint64_t i = 0; i < count; i++)
		if (i == 0 || bounds[i] != bounds[unique - 1])
			bounds[unique++] = bounds[i];
	*n_blocks = (uint32_t) unique - 1;
	return bounds;
}

uint32_t
bench_bound_at(const uint64_t *bounds, uint32_t n_blocks, uint64_t row)
{
	uint32_t i = 0;

	while (i < n_blocks && bounds[i] < row)
		i++;
	nv_assert(bounds[i] == row);
	return i;
}
