/*
 * kmeans.c
 *		k-means with 256 clusters, for the codebook of one chunk.
 *
 * Seeding is k-means++ on at most NV_KMEANS_SEED_ROWS rows, then Lloyd's rounds
 * on all.  A cluster without rows is moved to the row that is farthest from its
 * centroid.
 *
 * Source: algorithms.md section 4.
 */
#include "kmeans.h"

#include <math.h>

#include "pq.h"
#include "pq_kernel.h"
#include "util.h"

#define NV_KMEANS_SEED_ROWS 4096
/* Rounds end when one lowers the mean distance by less than this part. */
#define NV_KMEANS_TOLERANCE 0.005
/* Part of a row's squared length that rounding may leave of distance 0. */
#define NV_KMEANS_ZERO 1e-5f

typedef struct nv_kmeans_state
{
	const float *rows;
	uint32_t n;
	uint32_t dim;
	float *norms;      /* n: squared lengths */
	float *dist;       /* n: squared distance to the row's centroid */
	uint8_t *codes;    /* n: the row's centroid */
	double *sums;      /* 256 x dim */
	uint32_t *members; /* 256 */
	float *panels;     /* centroids as pq_kernel.h has them */
	float *half_norms; /* 256 */
	float *seed_rows;  /* blocks of 256 rows, each block in panels */
	float *seed_dist;  /* seed_count: to the nearest chosen row */
	uint32_t seed_count;
} nv_kmeans_state;

static uint32_t
seed_blocks(uint32_t n)
{
	uint32_t rows = NV_MIN(n, NV_KMEANS_SEED_ROWS);

	return (rows + NV_PQ_CENTROIDS - 1) / NV_PQ_CENTROIDS;
}

static void *
carve(uint8_t *scratch, size_t *used, size_t bytes)
{
	void *part = scratch == NULL ? NULL : scratch + *used;

	*used += (size_t) nv_round_up(bytes, 64);
	return part;
}

/* Places the state's arrays in scratch (NULL: only counts); bytes used. */
static size_t
lay_out(nv_kmeans_state *km, uint8_t *scratch)
{
	size_t n = km->n;
	size_t panel_floats = nv_panel_size(km->dim, NV_PQ_CENTROIDS);
	size_t blocks = seed_blocks(km->n);
	size_t used = 0;

	km->norms = carve(scratch, &used, n * sizeof(float));
	km->dist = carve(scratch, &used, n * sizeof(float));
	km->codes = carve(scratch, &used, n);
	km->sums =
		carve(scratch, &used, sizeof(double) * NV_PQ_CENTROIDS * km->dim);
	km->members = carve(scratch, &used, sizeof(uint32_t) * NV_PQ_CENTROIDS);
	km->panels = carve(scratch, &used, sizeof(float) * panel_floats);
	km->half_norms = carve(scratch, &used, sizeof(float) * NV_PQ_CENTROIDS);
	km->seed_rows =
		carve(scratch, &used, sizeof(float) * panel_floats * blocks);
	km->seed_dist =
		carve(scratch, &used, sizeof(float) * NV_PQ_CENTROIDS * blocks);
	return used;
}

size_t
nv_kmeans_scratch_size(uint32_t n, uint32_t dim)
{
	nv_kmeans_state km = {.n = n, .dim = dim};

	return lay_out(&km, NULL);
}

/* The row that is candidate i of the seeding: spread over all rows. */
static const float *
seed_row(const nv_kmeans_state *km, uint32_t i)
{
	uint64_t row = (uint64_t) i * km->n / km->seed_count;

	return km->rows + row * km->dim;
}

/*
 * Packs the candidates, 256 a block, gathering a block in centroids; missing
 * ones of the last block are never looked at.
 */
static void
pack_seed_rows(nv_kmeans_state *km, float *centroids)
{
	size_t block_floats = nv_panel_size(km->dim, NV_PQ_CENTROIDS);

	for (uint32_t first = 0; first < km->seed_count; first += NV_PQ_CENTROIDS)
	{
		uint32_t count = NV_MIN(km->seed_count - first, NV_PQ_CENTROIDS);
		float *block = km->seed_rows + first / NV_PQ_CENTROIDS * block_floats;

		for (uint32_t i = 0; i < count; i++)
			memcpy(centroids + (size_t) i * km->dim, seed_row(km, first + i),
				   km->dim * sizeof(float));
		memset(block, 0, block_floats * sizeof(float));
		nv_panel_pack(centroids, count, km->dim, block);
	}
}

/* Lowers the candidates' distances by a new centroid; returns their sum. */
static double
add_seed(nv_kmeans_state *km, const float *centroid, bool first_one)
{
	size_t block_floats = nv_panel_size(km->dim, NV_PQ_CENTROIDS);
	double total = 0;

	for (uint32_t first = 0; first < km->seed_count; first += NV_PQ_CENTROIDS)
	{
		uint32_t count = NV_MIN(km->seed_count - first, NV_PQ_CENTROIDS);
		float dist[NV_PQ_CENTROIDS];
		float *nearest = km->seed_dist + first;

		nv_panel_distances(
			centroid, km->dim,
			km->seed_rows + first / NV_PQ_CENTROIDS * block_floats, dist);
		for (uint32_t i = 0; i < count; i++)
		{
			if (first_one || dist[i] < nearest[i])
				nearest[i] = dist[i];
			total += nearest[i];
		}
	}
	return total;
}

/* A candidate drawn with probability proportional to its distance. */
static uint32_t
draw_seed(const nv_kmeans_state *km, double total, uint64_t *random)
{
	double left = total * ((double) (nv_random(random) >> 11) * 0x1p-53);
	uint32_t last = 0;

	if (!(total > 0) || !isfinite(total))
		return (uint32_t) nv_random_below(random, km->seed_count);
	for (uint32_t i = 0; i < km->seed_count; i++)
	{
		if (km->seed_dist[i] <= 0)
			continue;
		last = i;
		left -= km->seed_dist[i];
		if (left < 0)
			break;
	}
	return last;
}

static void
seed_centroids(nv_kmeans_state *km, uint64_t seed, float *centroids)
{
	uint64_t random = nv_random_seed(seed);
	uint32_t chosen = (uint32_t) nv_random_below(&random, km->seed_count);

	pack_seed_rows(km, centroids);
	for (uint32_t c = 0; c < NV_PQ_CENTROIDS; c++)
	{
		float *centroid = centroids + (size_t) c * km->dim;

		memcpy(centroid, seed_row(km, chosen), km->dim * sizeof(float));
		if (c + 1 < NV_PQ_CENTROIDS)
			chosen = draw_seed(km, add_seed(km, centroid, c == 0), &random);
	}
}

static void
measure_rows(nv_kmeans_state *km)
{
	for (uint32_t i = 0; i < km->n; i++)
	{
		const float *row = km->rows + (size_t) i * km->dim;
		float sum = 0;

		for (uint32_t k = 0; k < km->dim; k++)
			sum += row[k] * row[k];
		km->norms[i] = sum;
	}
}

/* Gives every row its nearest centroid; returns the mean squared distance. */
static double
assign_rows(nv_kmeans_state *km, const float *centroids)
{
	double total = 0;

	nv_panel_pack(centroids, NV_PQ_CENTROIDS, km->dim, km->panels);
	nv_panel_half_norms(km->panels, km->dim, km->half_norms);
	nv_panel_nearest(km->rows, km->dim, km->n, km->dim, km->panels,
					 km->half_norms, km->codes, 1, km->dist);
	for (uint32_t i = 0; i < km->n; i++)
	{
		float dist = 2 * km->dist[i] + km->norms[i];

		km->dist[i] = dist > NV_KMEANS_ZERO * km->norms[i] ? dist : 0;
		total += km->dist[i];
	}
	return total / km->n;
}

/* Moves a centroid without rows to the farthest row, if any is away. */
static bool
move_to_farthest(nv_kmeans_state *km, float *centroid)
{
	uint32_t farthest = 0;

	for (uint32_t i = 1; i < km->n; i++)
		if (km->dist[i] > km->dist[farthest])
			farthest = i;
	if (!(km->dist[farthest] > 0))
		return false;
	km->dist[farthest] = 0;
	memcpy(centroid, km->rows + (size_t) farthest * km->dim,
		   km->dim * sizeof(float));
	return true;
}

/* Puts every centroid into the middle of its rows; true if some had none. */
static bool
move_centroids(nv_kmeans_state *km, float *centroids)
{
	uint32_t dim = km->dim;
	bool away = true;
	bool moved = false;

	memset(km->sums, 0, sizeof(double) * NV_PQ_CENTROIDS * dim);
	memset(km->members, 0, sizeof(uint32_t) * NV_PQ_CENTROIDS);
	for (uint32_t i = 0; i < km->n; i++)
	{
		double *sum = km->sums + (size_t) km->codes[i] * dim;
		const float *row = km->rows + (size_t) i * dim;

		km->members[km->codes[i]]++;
		for (uint32_t k = 0; k < dim; k++)
			sum[k] += row[k];
	}
	for (uint32_t c = 0; c < NV_PQ_CENTROIDS; c++)
	{
		float *centroid = centroids + (size_t) c * dim;

		if (km->members[c] == 0)
		{
			away = away && move_to_farthest(km, centroid);
			moved = moved || away;
			continue;
		}
		for (uint32_t k = 0; k < dim; k++)
			centroid[k] =
				(float) (km->sums[(size_t) c * dim + k] / km->members[c]);
	}
	return moved;
}

double
nv_kmeans(const float *rows, uint32_t n, uint32_t dim, uint64_t seed,
		  void *scratch, float *centroids)
{
	nv_kmeans_state km = {.rows = rows, .n = n, .dim = dim};
	double before = INFINITY;
	double mean = 0;

	nv_assert(n > 0 && dim > 0);
	lay_out(&km, scratch);
	km.seed_count = NV_MIN(n, NV_KMEANS_SEED_ROWS);
	measure_rows(&km);
	seed_centroids(&km, seed, centroids);
	for (int round = 0; round < NV_KMEANS_MAX_ROUNDS; round++)
	{
		bool moved;

		mean = assign_rows(&km, centroids);
		moved = move_centroids(&km, centroids);
		if (mean == 0 || (!moved && round + 1 >= NV_KMEANS_MIN_ROUNDS &&
						  mean > before * (1 - NV_KMEANS_TOLERANCE)))
			break;
		before = mean;
	}
	return mean;
}
