/*
 * pq_train.c
 *		Training of a codebook: the sample, the candidates, the choice.
 *
 * Codes are as small as their own recall allows.  A candidate is a number of
 * bytes, with or without the learned rotation; it is trained on the sample
 * and measured by a trial (pq_recall.h).  Recall grows with the bytes, so the
 * smallest size that suffices is found by bisection, and the codebook that was
 * measured is the one that is used.
 *
 * The rotation is made of the sample's principal directions, distributed over
 * the chunks so that the products of their variances are balanced: every chunk
 * gets its share of what there is to tell apart.
 *
 * Source: design.md section 4 "Codes", engine-measurements.md section 2.
 */
#include <math.h>

#include "blas.h"
#include "kmeans.h"
#include "parallel.h"
#include "pq_internal.h"
#include "pq_recall.h"
#include "util.h"

/* Rows of the sample: at most the first, fewer when they are wide. */
#define NV_PQ_TRAIN_ROWS 20000
#define NV_PQ_TRAIN_FLOATS (UINT64_C(64) << 20)

/*
 * Below this a rotation is not tried.  Trying takes as long as all the rest;
 * at 100 dimensions word vectors gained nothing (images still did).
 */
#define NV_PQ_ROTATION_MIN_GDIM 128
/* At equal bytes a rotation must raise recall by this much. */
#define NV_PQ_ROTATION_GAIN 0.03

/* Part of the largest variance that counts as none. */
#define NV_PQ_NO_VARIANCE 1e-9

/* Rows added to the covariance between looks at cancel. */
#define NV_PQ_GRAM_ROWS 2048

static const uint32_t ladder[] = {32, 48, 64, 96, 128, 192, 256};

#define NV_PQ_MAX_STEPS NV_LENGTH(ladder)

typedef struct nv_pq_candidate
{
	nv_pq *pq; /* NULL: not tried yet */
	double recall;
} nv_pq_candidate;

typedef struct nv_pq_trainer
{
	const nv_pq_params *params;
	uint32_t gdim;
	uint32_t threads;
	nv_pq_trial *trial; /* its mean is the codebooks' */
	double asked;
	uint32_t steps;
	uint32_t step_bytes[NV_PQ_MAX_STEPS];
	bool may_rotate;
	nv_pq_candidate tried[2][NV_PQ_MAX_STEPS]; /* [rotated][step] */
	uint32_t sample_rows;
	float *sample;     /* sample_rows x gdim, centred */
	float *turned;     /* the same along the directions; only if may_rotate */
	float *directions; /* gdim x gdim: unit vectors, greatest variance first */
	float *variances;  /* gdim */
} nv_pq_trainer;

/* ---------------------------------------------------------------------
 * The sample and its principal directions
 * ---------------------------------------------------------------------
 */

static bool
cancelled(const nv_pq_trainer *trainer)
{
	const nv_pq_params *params = trainer->params;

	return params->cancel != NULL && params->cancel(params->cancel_arg);
}

/* Copies rows that are no queries, spread over all, and centres them. */
static nv_status
take_sample(nv_pq_trainer *trainer, nv_error *err)
{
	nv_pq_trial *trial = trainer->trial;
	uint32_t gdim = trainer->gdim;
	uint64_t others = trial->n - NV_PQ_TRIAL_QUERIES;
	uint64_t most = NV_MIN(NV_PQ_TRAIN_ROWS, NV_PQ_TRAIN_FLOATS / gdim);
	double *sum = nv_alloc_array(gdim, sizeof(double));
	uint32_t before = 0; /* queries with smaller ids */

	trainer->sample_rows = (uint32_t) NV_MIN(others, most);
	trainer->sample =
		nv_alloc_array((size_t) trainer->sample_rows * gdim, sizeof(float));
	if (sum == NULL || trainer->sample == NULL)
	{
		free(sum);
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a sample of %u rows",
					   trainer->sample_rows);
	}
	for (uint32_t i = 0; i < trainer->sample_rows; i++)
	{
		uint64_t id = before + nv_pq_spread(i, trainer->sample_rows, others,
											trainer->params->seed + 3);
		float *copy = trainer->sample + (size_t) i * gdim;

		for (; before < NV_PQ_TRIAL_QUERIES && trial->query_id[before] <= id;
			 before++)
			id++;
		memcpy(copy, trial->rows + id * trial->stride, gdim * sizeof(float));
		for (uint32_t k = 0; k < gdim; k++)
			sum[k] += copy[k];
	}
	for (uint32_t k = 0; k < gdim; k++)
		trial->mean[k] = (float) (sum[k] / trainer->sample_rows);
	for (uint32_t i = 0; i < trainer->sample_rows; i++)
		for (uint32_t k = 0; k < gdim; k++)
			trainer->sample[(size_t) i * gdim + k] -= trial->mean[k];
	free(sum);
	return cancelled(trainer) ? nv_fail(err, NV_ECANCELLED, 0, "cancelled")
							  : NV_OK;
}

/* Exchanges rows so that the greatest variance comes first. */
static void
reverse_directions(nv_pq_trainer *trainer)
{
	uint32_t gdim = trainer->gdim;

	for (uint32_t i = 0, j = gdim - 1; i < j; i++, j--)
	{
		float variance = trainer->variances[i];

		trainer->variances[i] = trainer->variances[j];
		trainer->variances[j] = variance;
		for (uint32_t k = 0; k < gdim; k++)
		{
			float *a = &trainer->directions[(size_t) i * gdim + k];
			float *b = &trainer->directions[(size_t) j * gdim + k];
			float x = *a;

			*a = *b;
			*b = x;
		}
	}
}

static void
turn_block(void *arg, uint32_t worker, uint64_t step)
{
	nv_pq_trainer *trainer = arg;
	size_t gdim = trainer->gdim;
	uint32_t first = (uint32_t) step * NV_PQ_GRAM_ROWS;
	uint32_t count = NV_MIN(trainer->sample_rows - first, NV_PQ_GRAM_ROWS);

	nv_blas_product(trainer->sample + first * gdim, gdim, count,
					trainer->directions, gdim, trainer->gdim, trainer->gdim,
					trainer->turned + first * gdim, gdim);
}

static nv_status
find_directions(nv_pq_trainer *trainer, nv_error *err)
{
	uint32_t gdim = trainer->gdim;
	uint32_t blocks =
		(trainer->sample_rows + NV_PQ_GRAM_ROWS - 1) / NV_PQ_GRAM_ROWS;
	nv_status status;

	trainer->directions = nv_alloc_array((size_t) gdim * gdim, sizeof(float));
	trainer->variances = nv_alloc_array(gdim, sizeof(float));
	trainer->turned =
		nv_alloc_array((size_t) trainer->sample_rows * gdim, sizeof(float));
	if (trainer->directions == NULL || trainer->variances == NULL ||
		trainer->turned == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for a rotation of %u dimensions", gdim);
	for (uint32_t b = 0; b < blocks; b++)
	{
		uint32_t first = b * NV_PQ_GRAM_ROWS;

		if (cancelled(trainer))
			return nv_fail(err, NV_ECANCELLED, 0, "cancelled");
		nv_blas_add_gram(trainer->sample + (size_t) first * gdim,
						 NV_MIN(trainer->sample_rows - first, NV_PQ_GRAM_ROWS),
						 gdim, trainer->directions);
	}
	status = nv_blas_eigen(trainer->directions, gdim, trainer->variances, err);
	if (status != NV_OK)
		return status;
	reverse_directions(trainer);
	return nv_parallel_run(trainer->threads, blocks, turn_block, trainer,
						   trainer->params->cancel, trainer->params->cancel_arg,
						   err);
}

/*
 * direction[k] is what dimension k of code space is made of: going from the
 * greatest variance down, each direction goes to the chunk with room whose
 * product of variances is smallest so far.
 */
static void
distribute_directions(const nv_pq_trainer *trainer, const nv_pq *pq,
					  uint32_t *direction)
{
	double log_product[NV_PQ_MAX_BYTES] = {0};
	uint32_t used[NV_PQ_MAX_BYTES] = {0};
	double none = NV_MAX(trainer->variances[0] * NV_PQ_NO_VARIANCE, 1e-37);

	for (uint32_t d = 0; d < trainer->gdim; d++)
	{
		/* Never negative, so that a chunk grows by what it is given. */
		double share = log(NV_MAX(trainer->variances[d] / none, 1.0));
		uint32_t chunk = pq->bytes;

		for (uint32_t c = 0; c < pq->bytes; c++)
			if (used[c] < nv_pq_chunk_dims(pq, c) &&
				(chunk == pq->bytes || log_product[c] < log_product[chunk]))
				chunk = c;
		nv_assert(chunk < pq->bytes);
		direction[pq->start[chunk] + used[chunk]++] = d;
		log_product[chunk] += share;
	}
}

/* ---------------------------------------------------------------------
 * One candidate
 * ---------------------------------------------------------------------
 */

/* Chunks are trained one a step; arrays of a thread follow one another. */
typedef struct nv_pq_chunk_loop
{
	const nv_pq_trainer *trainer;
	nv_pq *pq;
	const float *source;
	const uint32_t *column; /* gdim: the source's column of a dimension */
	float *rows;            /* thread: a chunk of the sample */
	size_t rows_size;
	uint8_t *scratch; /* thread: of nv_kmeans */
	size_t scratch_size;
} nv_pq_chunk_loop;

static void
train_chunk(void *arg, uint32_t worker, uint64_t step)
{
	nv_pq_chunk_loop *loop = arg;
	const nv_pq_trainer *trainer = loop->trainer;
	uint32_t first = loop->pq->start[step];
	uint32_t dims = nv_pq_chunk_dims(loop->pq, (uint32_t) step);
	float *rows = loop->rows + worker * loop->rows_size;

	for (uint32_t i = 0; i < trainer->sample_rows; i++)
	{
		const float *row = loop->source + (size_t) i * trainer->gdim;

		for (uint32_t k = 0; k < dims; k++)
			rows[(size_t) i * dims + k] = row[loop->column[first + k]];
	}
	nv_kmeans(rows, trainer->sample_rows, dims,
			  trainer->params->seed + 4 + step,
			  loop->scratch + worker * loop->scratch_size,
			  loop->pq->centroids + (size_t) first * NV_PQ_CENTROIDS);
}

static nv_status
train_chunks(const nv_pq_trainer *trainer, nv_pq *pq, const float *source,
			 const uint32_t *column, nv_error *err)
{
	uint32_t widest = nv_pq_chunk_dims(pq, 0);
	nv_pq_chunk_loop loop = {
		.trainer = trainer, .pq = pq, .source = source, .column = column};
	nv_status status;

	loop.rows_size = nv_round_up((uint64_t) trainer->sample_rows * widest, 16);
	loop.scratch_size = nv_kmeans_scratch_size(trainer->sample_rows, widest);
	loop.rows =
		nv_alloc_array(trainer->threads * loop.rows_size, sizeof(float));
	loop.scratch = nv_alloc_array(trainer->threads, loop.scratch_size);
	if (loop.rows == NULL || loop.scratch == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to train a codebook");
	else
		status = nv_parallel_run(trainer->threads, pq->bytes, train_chunk,
								 &loop, trainer->params->cancel,
								 trainer->params->cancel_arg, err);
	free(loop.rows);
	free(loop.scratch);
	return status;
}

/* Gives the codebook its rotation: the directions in their new order. */
static nv_status
set_rotation(const nv_pq_trainer *trainer, nv_pq *pq, const uint32_t *direction,
			 nv_error *err)
{
	size_t gdim = trainer->gdim;
	float *rotation = nv_alloc_array(gdim * gdim, sizeof(float));
	nv_status status;

	if (rotation == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for a rotation of %u dimensions",
					   trainer->gdim);
	for (size_t k = 0; k < gdim; k++)
		memcpy(rotation + k * gdim, trainer->directions + direction[k] * gdim,
			   gdim * sizeof(float));
	status = nv_pq_rotate(pq, rotation, err);
	free(rotation);
	return status;
}

static nv_status
train_candidate(const nv_pq_trainer *trainer, bool rotated, uint32_t bytes,
				nv_pq **pq, nv_error *err)
{
	uint32_t gdim = trainer->gdim;
	uint32_t *column = nv_alloc_array(gdim, sizeof(uint32_t));
	nv_pq *new = NULL;
	nv_status status;

	if (column == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to train a codebook");
	status = nv_pq_create(gdim, bytes, &new, err);
	if (status == NV_OK)
	{
		memcpy(new->mean, trainer->trial->mean, gdim * sizeof(float));
		for (uint32_t k = 0; k < gdim; k++)
			column[k] = k;
		if (rotated)
		{
			distribute_directions(trainer, new, column);
			status = set_rotation(trainer, new, column, err);
		}
	}
	if (status == NV_OK)
		status = train_chunks(trainer, new,
							  rotated ? trainer->turned : trainer->sample,
							  column, err);
	free(column);
	if (status != NV_OK)
	{
		nv_pq_free(new);
		return status;
	}
	nv_pq_finish(new);
	*pq = new;
	return NV_OK;
}

/* Trains and measures a candidate, unless that has been done. */
static nv_status
try_candidate(nv_pq_trainer *trainer, bool rotated, uint32_t step,
			  nv_error *err)
{
	nv_pq_candidate *candidate = &trainer->tried[rotated][step];
	nv_status status;

	if (candidate->pq != NULL)
		return NV_OK;
	status = train_candidate(trainer, rotated, trainer->step_bytes[step],
							 &candidate->pq, err);
	if (status == NV_OK)
		status = nv_pq_trial_recall(trainer->trial, candidate->pq,
									&candidate->recall, err);
	return status;
}

/* ---------------------------------------------------------------------
 * The choice
 * ---------------------------------------------------------------------
 */

static bool
suffices(const nv_pq_trainer *trainer, bool rotated, uint32_t step)
{
	return trainer->tried[rotated][step].recall >= trainer->asked;
}

/*
 * The smallest of the steps below end that suffices, or end, given that those
 * from end on do or are not there.  *step has been tried if it is below the end
 * given.
 */
static nv_status
find_smallest(nv_pq_trainer *trainer, bool rotated, uint32_t end,
			  uint32_t *step, nv_error *err)
{
	uint32_t low = 0;

	while (low < end)
	{
		uint32_t middle = (low + end - 1) / 2; /* rather the cheaper one */
		nv_status status = try_candidate(trainer, rotated, middle, err);

		if (status != NV_OK)
			return status;
		if (suffices(trainer, rotated, middle))
			end = middle;
		else
			low = middle + 1;
	}
	*step = end;
	return NV_OK;
}

/* Without rotation: the smallest that suffices, or else the largest. */
static nv_status
choose_plain(nv_pq_trainer *trainer, uint32_t end, uint32_t *step,
			 nv_error *err)
{
	nv_status status = find_smallest(trainer, false, end, step, err);

	if (status != NV_OK)
		return status;
	*step = NV_MIN(*step, trainer->steps - 1);
	return try_candidate(trainer, false, *step, err);
}

/*
 * With a rotation to be had: it is taken where it saves a step, or raises the
 * recall clearly at the same one.
 */
static nv_status
choose_either(nv_pq_trainer *trainer, bool *rotated, uint32_t *step,
			  nv_error *err)
{
	uint32_t turned;
	uint32_t plain_end = trainer->steps;
	nv_status status;

	status = find_smallest(trainer, true, trainer->steps, &turned, err);
	if (status == NV_OK && turned < trainer->steps)
	{
		status = try_candidate(trainer, false, turned, err);
		plain_end = turned;
		if (status == NV_OK && !suffices(trainer, false, turned))
		{
			*rotated = true;
			*step = turned;
			return NV_OK;
		}
	}
	if (status == NV_OK)
		status = choose_plain(trainer, plain_end, step, err);
	if (status != NV_OK)
		return status;
	turned = NV_MIN(turned, trainer->steps - 1);
	*rotated = *step == turned &&
			   trainer->tried[true][*step].recall >=
				   trainer->tried[false][*step].recall + NV_PQ_ROTATION_GAIN;
	return NV_OK;
}

/* The sizes to choose from, ascending: one if it was given or gdim is small. */
static void
set_steps(nv_pq_trainer *trainer)
{
	uint32_t given = trainer->params->bytes;
	uint32_t gdim = trainer->gdim;

	trainer->steps = 1;
	trainer->step_bytes[0] = given != 0 ? NV_MIN(given, gdim) : gdim;
	if (given != 0 || gdim < ladder[0])
		return;
	trainer->steps = 0;
	for (uint32_t i = 0; i < NV_LENGTH(ladder) && ladder[i] <= gdim; i++)
		trainer->step_bytes[trainer->steps++] = ladder[i];
}

static nv_status
prepare(nv_pq_trainer *trainer, const float *rows, size_t stride, uint64_t n,
		nv_error *err)
{
	const nv_pq_params *params = trainer->params;
	uint32_t gdim = trainer->gdim;
	nv_status status = nv_blas_load(err);

	if (status == NV_OK)
		status = nv_pq_trial_create(params, rows, stride, n, gdim,
									&trainer->trial, err);
	if (status == NV_OK)
		status = take_sample(trainer, err);
	if (status == NV_OK)
		status = nv_pq_trial_prepare(trainer->trial, err);
	if (status != NV_OK)
		return status;
	set_steps(trainer);
	if (params->bytes == 0)
		trainer->asked =
			NV_PQ_RECALL +
			NV_PQ_RECALL_PER_DECADE *
				log10((double) n / (double) trainer->trial->scanned);
	trainer->may_rotate = !params->no_rotation &&
						  gdim >= NV_PQ_ROTATION_MIN_GDIM &&
						  gdim <= NV_PQ_ROTATION_MAX_GDIM;
	if (trainer->may_rotate)
		status = find_directions(trainer, err);
	return status;
}

static void
release(nv_pq_trainer *trainer)
{
	for (uint32_t step = 0; step < NV_PQ_MAX_STEPS; step++)
	{
		nv_pq_free(trainer->tried[false][step].pq);
		nv_pq_free(trainer->tried[true][step].pq);
	}
	nv_pq_trial_free(trainer->trial);
	free(trainer->sample);
	free(trainer->turned);
	free(trainer->directions);
	free(trainer->variances);
}

static nv_status
check_arguments(const nv_pq_params *params, uint64_t n, uint32_t gdim,
				nv_error *err)
{
	if (gdim < 1 || gdim > NV_PQ_MAX_GDIM)
		return nv_fail(err, NV_EINVAL, 0,
					   "codes of %u dimensions, expected 1 to %d", gdim,
					   NV_PQ_MAX_GDIM);
	if (n < NV_PQ_MIN_ROWS)
		return nv_fail(err, NV_EINVAL, 0,
					   "codes trained on %llu rows, expected at least %d",
					   (unsigned long long) n, NV_PQ_MIN_ROWS);
	if (params->bytes > NV_PQ_MAX_BYTES)
		return nv_fail(err, NV_EINVAL, 0,
					   "codes of %u bytes, expected at most %d", params->bytes,
					   NV_PQ_MAX_BYTES);
	return NV_OK;
}

static int
compare_errors(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/*
 * Mean over the worst of the trial's queries, which are not in the sample.  A
 * kind of rows that makes up as large a part of all rows has no greater error
 * than this, however well the others do.
 */
static double
held_out_error(const nv_pq_trial *trial, const nv_pq *pq)
{
	uint32_t worst = NV_PQ_TRIAL_QUERIES / NV_PQ_ERROR_SHARE;
	double error[NV_PQ_TRIAL_QUERIES], sum = 0;
	uint8_t code[NV_PQ_MAX_BYTES];

	for (uint32_t q = 0; q < NV_PQ_TRIAL_QUERIES; q++)
		error[q] = nv_pq_encode_error(
			pq, trial->rows + trial->query_id[q] * trial->stride, code);
	qsort(error, NV_PQ_TRIAL_QUERIES, sizeof(*error), compare_errors);
	for (uint32_t q = 0; q < worst; q++)
		sum += error[q];
	return sum / worst;
}

nv_status
nv_pq_train(const nv_pq_params *params, const float *rows, size_t stride,
			uint64_t n, uint32_t gdim, nv_pq **pq, nv_pq_report *report,
			nv_error *err)
{
	nv_pq_trainer trainer = {.params = params, .gdim = gdim};
	bool rotated = false;
	uint32_t step = 0;
	nv_status status = check_arguments(params, n, gdim, err);

	if (status != NV_OK)
		return status;
	trainer.threads = nv_parallel_threads(params->threads);
	status = prepare(&trainer, rows, stride, n, err);
	if (status == NV_OK && trainer.may_rotate)
		status = choose_either(&trainer, &rotated, &step, err);
	else if (status == NV_OK)
		status = choose_plain(&trainer, trainer.steps, &step, err);
	if (status == NV_OK)
	{
		nv_pq_candidate *chosen = &trainer.tried[rotated][step];

		if (report != NULL)
			*report = (nv_pq_report){
				.bytes = chosen->pq->bytes,
				.rotated = rotated,
				.recall = chosen->recall,
				.recall_asked = trainer.asked,
				.scanned = trainer.trial->scanned,
				.error = held_out_error(trainer.trial, chosen->pq)};
		*pq = chosen->pq;
		chosen->pq = NULL;
	}
	release(&trainer);
	return status;
}
