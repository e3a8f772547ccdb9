/*
 * pq_recall.c
 *		How well codes alone find the nearest rows.
 *
 * An ADC distance is the exact distance to the decoded row, so rows are
 * encoded, decoded and compared with all queries by one matrix product a block;
 * that is several times faster than ADC tables here, and the true neighbours
 * come from the same code.  Products are of centred rows, which keeps
 * |y|^2 / 2 - q * y exact enough when the data lies far from the origin.
 */
#include "pq_recall.h"

#include <math.h>

#include "blas.h"
#include "parallel.h"
#include "pq_internal.h"
#include "util.h"

/* A neighbour may be this much farther than the K-th: rounding of sums. */
#define NV_PQ_TRIAL_SLACK 1e-5f

typedef struct nv_pq_nearest
{
	float score[NV_PQ_TRIAL_K]; /* ascending, then by row */
	uint64_t row[NV_PQ_TRIAL_K];
	uint32_t count;
} nv_pq_nearest;

/* A pass over the scanned rows; arrays of a thread follow one another. */
typedef struct nv_pq_scan
{
	const nv_pq_trial *trial;
	const nv_pq *pq; /* NULL: the rows themselves, not their codes */
	uint32_t block;
	uint32_t threads;
	float *queries;         /* queries x gdim, in the space of the products */
	float *work;            /* thread: three blocks of rows */
	uint8_t *codes;         /* thread: a block */
	float *scores;          /* thread: queries x block */
	nv_pq_nearest *nearest; /* thread: queries */
} nv_pq_scan;

double
nv_pq_recall_asked(uint64_t n, uint64_t scanned)
{
	return NV_PQ_RECALL +
		   NV_PQ_RECALL_PER_DECADE * log10((double) n / (double) scanned);
}

uint64_t
nv_pq_spread(uint64_t i, uint64_t count, uint64_t n, uint64_t seed)
{
	uint64_t low = (uint64_t) ((unsigned __int128) i * n / count);
	uint64_t high = (uint64_t) ((unsigned __int128) (i + 1) * n / count);
	uint64_t random = nv_random_seed(seed ^ nv_random_seed(i));

	return low + nv_random_below(&random, high - low);
}

nv_status
nv_pq_trial_create(const nv_pq_params *params, const float *rows, size_t stride,
				   uint64_t n, uint32_t gdim, nv_pq_trial **trial,
				   nv_error *err)
{
	nv_pq_trial *new = nv_alloc(sizeof(nv_pq_trial));
	uint64_t wide = NV_MAX(NV_PQ_TRIAL_FLOATS / gdim, NV_PQ_TRIAL_MIN_ROWS);

	if (new != NULL)
		new->mean = nv_alloc_array(gdim, sizeof(float));
	if (new == NULL || new->mean == NULL)
	{
		nv_pq_trial_free(new);
		return nv_fail(err, NV_ENOMEM, 0, "no memory to measure codes");
	}
	new->params = params;
	new->rows = rows;
	new->stride = stride;
	new->n = n;
	new->gdim = gdim;
	new->scanned = NV_MIN(n, NV_MIN(NV_PQ_TRIAL_ROWS, wide));
	for (uint32_t q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
		new->query_id[q] =
			nv_pq_spread(q, NV_PQ_TRIAL_QUERIES, n, params->seed + 1);
	*trial = new;
	return NV_OK;
}

void
nv_pq_trial_free(nv_pq_trial *trial)
{
	if (trial == NULL)
		return;
	free(trial->mean);
	free(trial);
}

static const float *
trial_row(const nv_pq_trial *trial, uint64_t row)
{
	return trial->rows + row * trial->stride;
}

/* Queries (or rows) as the products have them; scratch as nv_pq_project. */
static void
project(const nv_pq_scan *scan, const float *row, float *out, float *scratch)
{
	const nv_pq_trial *trial = scan->trial;

	if (scan->pq != NULL)
		nv_pq_project(scan->pq, row, trial->gdim, 1, out, scratch);
	else
		for (uint32_t k = 0; k < trial->gdim; k++)
			out[k] = row[k] - trial->mean[k];
}

/* Keeps the K least by (score, row): the same whatever order they come in. */
static void
keep(nv_pq_nearest *nearest, float score, uint64_t row)
{
	uint32_t at = nearest->count;

	if (at == NV_PQ_TRIAL_K)
	{
		at--;
		if (score > nearest->score[at] ||
			(score == nearest->score[at] && row > nearest->row[at]))
			return;
	}
	else
		nearest->count++;
	while (at > 0 &&
		   (score < nearest->score[at - 1] ||
			(score == nearest->score[at - 1] && row < nearest->row[at - 1])))
	{
		nearest->score[at] = nearest->score[at - 1];
		nearest->row[at] = nearest->row[at - 1];
		at--;
	}
	nearest->score[at] = score;
	nearest->row[at] = row;
}

/* Keeps what is near of a block's rows, given their products with a query. */
static void
keep_nearest(nv_pq_nearest *nearest, const uint64_t *ids,
			 const float *half_norm, const float *product, uint32_t count,
			 uint64_t self)
{
	float bound = INFINITY;

	if (nearest->count == NV_PQ_TRIAL_K)
		bound = nearest->score[NV_PQ_TRIAL_K - 1];
	for (uint32_t i = 0; i < count; i++)
	{
		float score = half_norm[i] - product[i];

		if (!(score <= bound) || ids[i] == self)
			continue;
		keep(nearest, score, ids[i]);
		if (nearest->count == NV_PQ_TRIAL_K)
			bound = nearest->score[NV_PQ_TRIAL_K - 1];
	}
}

/* Gathers a block's rows and replaces them by what the products compare. */
static float *
load_block(const nv_pq_scan *scan, const uint64_t *ids, uint32_t count,
		   uint32_t worker)
{
	const nv_pq_trial *trial = scan->trial;
	uint32_t gdim = trial->gdim;
	size_t floats = (size_t) scan->block * gdim;
	float *rows = scan->work + worker * 3 * floats;
	float *projected = rows + floats;
	uint8_t *codes;

	if (scan->pq == NULL)
	{
		for (uint32_t i = 0; i < count; i++)
			project(scan, trial_row(trial, ids[i]), rows + (size_t) i * gdim,
					NULL);
		return rows;
	}
	for (uint32_t i = 0; i < count; i++)
		memcpy(rows + (size_t) i * gdim, trial_row(trial, ids[i]),
			   gdim * sizeof(float));
	nv_pq_project(scan->pq, rows, gdim, count, projected, projected + floats);
	codes = scan->codes + (size_t) worker * scan->block * scan->pq->stride;
	nv_pq_encode_projected(scan->pq, projected, count, codes);
	for (uint32_t i = 0; i < count; i++)
		nv_pq_decode_projected(scan->pq, codes + i * scan->pq->stride,
							   rows + (size_t) i * gdim);
	return rows;
}

static void
scan_block(void *arg, uint32_t worker, uint64_t step)
{
	nv_pq_scan *scan = arg;
	const nv_pq_trial *trial = scan->trial;
	uint32_t gdim = trial->gdim;
	uint32_t block = scan->block;
	uint64_t first = step * block;
	uint32_t count = (uint32_t) NV_MIN(block, trial->scanned - first);
	uint64_t ids[NV_PQ_BLOCK_MAX_ROWS];
	float half_norm[NV_PQ_BLOCK_MAX_ROWS];
	float *rows;
	float *scores =
		scan->scores + (size_t) worker * NV_PQ_TRIAL_QUERIES * block;

	for (uint32_t i = 0; i < count; i++)
		ids[i] = nv_pq_spread(first + i, trial->scanned, trial->n,
							  trial->params->seed + 2);
	rows = load_block(scan, ids, count, worker);
	for (uint32_t i = 0; i < count; i++)
		half_norm[i] =
			nv_dot(rows + (size_t) i * gdim, rows + (size_t) i * gdim, gdim) /
			2;
	nv_blas_product(scan->queries, gdim, NV_PQ_TRIAL_QUERIES, rows, gdim, count,
					gdim, scores, block);
	for (uint32_t q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
		keep_nearest(&scan->nearest[worker * NV_PQ_TRIAL_QUERIES + q], ids,
					 half_norm, scores + (size_t) q * block, count,
					 trial->query_id[q]);
}

static void
scan_end(nv_pq_scan *scan)
{
	free(scan->queries);
	free(scan->work);
	free(scan->codes);
	free(scan->scores);
	free(scan->nearest);
}

static nv_status
scan_begin(nv_pq_scan *scan, const nv_pq_trial *trial, const nv_pq *pq,
		   nv_error *err)
{
	size_t block = nv_pq_block_rows(trial->gdim);
	size_t threads = nv_parallel_threads(trial->params->threads);
	size_t queries = NV_PQ_TRIAL_QUERIES;

	*scan = (nv_pq_scan){.trial = trial, .pq = pq, .block = (uint32_t) block};
	scan->threads = (uint32_t) threads;
	scan->queries = nv_alloc_array(queries * trial->gdim, sizeof(float));
	scan->work =
		nv_alloc_array(threads * 3 * block * trial->gdim, sizeof(float));
	scan->codes = nv_alloc_array(threads * block, pq == NULL ? 1 : pq->stride);
	scan->scores = nv_alloc_array(threads * queries * block, sizeof(float));
	scan->nearest = nv_alloc_array(threads * queries, sizeof(nv_pq_nearest));
	if (scan->queries == NULL || scan->work == NULL || scan->codes == NULL ||
		scan->scores == NULL || scan->nearest == NULL)
	{
		scan_end(scan);
		return nv_fail(err, NV_ENOMEM, 0, "no memory to measure codes");
	}
	for (uint32_t q = 0; q < queries; q++)
		project(scan, trial_row(trial, trial->query_id[q]),
				scan->queries + (size_t) q * trial->gdim, scan->work);
	return NV_OK;
}

/* After this the first thread's lists are the lists of all. */
static nv_status
scan_run(nv_pq_scan *scan, nv_error *err)
{
	const nv_pq_trial *trial = scan->trial;
	uint64_t steps = (trial->scanned + scan->block - 1) / scan->block;
	nv_status status;

	status =
		nv_parallel_run(scan->threads, steps, scan_block, scan,
						trial->params->cancel, trial->params->cancel_arg, err);
	if (status != NV_OK)
		return status;
	for (uint32_t t = 1; t < scan->threads; t++)
		for (uint32_t q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
		{
			nv_pq_nearest *from = &scan->nearest[t * NV_PQ_TRIAL_QUERIES + q];

			for (uint32_t i = 0; i < from->count; i++)
				keep(&scan->nearest[q], from->score[i], from->row[i]);
		}
	return NV_OK;
}

/* Exact squared distance of a query to its i-th found row. */
static float
exact(const nv_pq_scan *scan, uint32_t q, uint32_t i)
{
	const nv_pq_trial *trial = scan->trial;

	return nv_l2sq(trial_row(trial, trial->query_id[q]),
				   trial_row(trial, scan->nearest[q].row[i]), trial->gdim);
}

nv_status
nv_pq_trial_prepare(nv_pq_trial *trial, nv_error *err)
{
	nv_pq_scan scan;
	nv_status status = scan_begin(&scan, trial, NULL, err);

	if (status != NV_OK)
		return status;
	status = scan_run(&scan, err);
	if (status == NV_OK)
		for (uint32_t q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
		{
			trial->kth[q] = 0;
			for (uint32_t i = 0; i < scan.nearest[q].count; i++)
				trial->kth[q] = NV_MAX(trial->kth[q], exact(&scan, q, i));
		}
	scan_end(&scan);
	return status;
}

nv_status
nv_pq_trial_recall(const nv_pq_trial *trial, const nv_pq *pq, double *recall,
				   nv_error *err)
{
	nv_pq_scan scan;
	uint32_t found = 0;
	nv_status status = scan_begin(&scan, trial, pq, err);

	if (status != NV_OK)
		return status;
	status = scan_run(&scan, err);
	if (status == NV_OK)
		for (uint32_t q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
			for (uint32_t i = 0; i < scan.nearest[q].count; i++)
				found += exact(&scan, q, i) <=
						 trial->kth[q] * (1 + NV_PQ_TRIAL_SLACK);
	*recall = (double) found / (NV_PQ_TRIAL_QUERIES * NV_PQ_TRIAL_K);
	scan_end(&scan);
	return status;
}
