/*
 * pq.c
 *		Product quantization: encoding, decoding, ADC tables, and the flat form.
 *
 * Source: algorithms.md section 4.  Training is in pq_train.c.
 */
#include "pq_internal.h"

#include <math.h>

#include "parallel.h"
#include "pq_kernel.h"
#include "util.h"

/* Floats of the rows in flight that nv_pq_block_rows() aims at: 512 KB. */
#define NV_PQ_BLOCK_FLOATS 131072
#define NV_PQ_BLOCK_MIN_ROWS 16
/* With rounding it fits 16 bits, and its square 31. */
#define SHORT_STEPS 32000

/* The flat form: six 32-bit words, mean, centroids, rotation. */
#define NV_PQ_MAGIC 0x5150564eu /* "NVPQ" */
#define NV_PQ_VERSION 1
#define NV_PQ_ROTATED 1u /* flag */

typedef struct nv_pq_header
{
	uint32_t magic;
	uint32_t version;
	uint32_t gdim;
	uint32_t bytes;
	uint32_t flags;
	uint32_t unused; /* 0 */
} nv_pq_header;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
			   "the flat form is written as it is in memory");

nv_status
nv_pq_create(uint32_t gdim, uint32_t bytes, nv_pq **pq, nv_error *err)
{
	size_t floats = (size_t) gdim * NV_PQ_CENTROIDS;
	nv_pq *new = nv_alloc(sizeof(nv_pq));

	nv_assert(gdim >= 1 && gdim <= NV_PQ_MAX_GDIM);
	nv_assert(bytes >= 1 && bytes <= NV_MIN(gdim, NV_PQ_MAX_BYTES));
	if (new == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a codebook");
	new->gdim = gdim;
	new->bytes = bytes;
	new->stride = (uint32_t) nv_round_up(bytes, 4);
	new->mean = nv_alloc_array(gdim, sizeof(float));
	new->centroids = nv_alloc_array(floats, sizeof(float));
	new->panels = nv_alloc_array(floats, sizeof(float));
	new->shorts = nv_alloc_array(floats, sizeof(int16_t));
	new->half_norms =
		nv_alloc_array((size_t) bytes * NV_PQ_CENTROIDS, sizeof(float));
	if (new->mean == NULL || new->centroids == NULL || new->panels == NULL ||
		new->shorts == NULL || new->half_norms == NULL)
	{
		nv_pq_free(new);
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for a codebook of %u dimensions", gdim);
	}
	/* The first gdim % bytes chunks have one dimension more. */
	for (uint32_t c = 0; c <= bytes; c++)
		new->start[c] = c *(gdim / bytes) + NV_MIN(c, gdim % bytes);
	*pq = new;
	return NV_OK;
}

nv_status
nv_pq_rotate(nv_pq *pq, const float *rotation, nv_error *err)
{
	size_t panels = nv_panel_size(pq->gdim, pq->gdim);

	nv_assert(pq->rotation == NULL && pq->gdim <= NV_PQ_ROTATION_MAX_GDIM);
	pq->rotation = nv_alloc_array(panels, sizeof(*pq->rotation));
	pq->rotation_short = nv_alloc_array(panels, sizeof(*pq->rotation_short));
	if (pq->rotation == NULL || pq->rotation_short == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for a rotation of %u dimensions", pq->gdim);
	nv_panel_pack(rotation, pq->gdim, pq->gdim, pq->rotation);
	nv_panel_shorten(pq->rotation, panels, pq->rotation_short);
	return NV_OK;
}

size_t
nv_pq_memory(const nv_pq *pq)
{
	/* centroids, rotation: elements that are held as integers, too */
	size_t centroids = (size_t) pq->gdim * NV_PQ_CENTROIDS, rotation = 0;
	/* mean, panels, norms */
	size_t floats = pq->gdim + centroids + (size_t) pq->bytes * NV_PQ_CENTROIDS;

	if (pq->rotation != NULL)
		rotation = nv_panel_size(pq->gdim, pq->gdim);
	return sizeof(*pq) + floats * sizeof(float) +
		   (centroids + rotation) * (sizeof(float) + sizeof(int16_t));
}

static const float *
chunk_panels(const nv_pq *pq, uint32_t chunk)
{
	return pq->panels + (size_t) pq->start[chunk] * NV_PQ_CENTROIDS;
}

/* The squared length of the longest centroid of a chunk. */
static double
longest_centroid(const nv_pq *pq, uint32_t chunk)
{
	uint32_t dims = nv_pq_chunk_dims(pq, chunk);
	const float *x =
		pq->centroids + (size_t) pq->start[chunk] * NV_PQ_CENTROIDS;
	double longest = 0;

	for (uint32_t i = 0; i < NV_PQ_CENTROIDS; i++)
	{
		double sum = 0;

		for (uint32_t k = 0; k < dims; k++, x++)
			sum += (double) *x * (double) *x;
		longest = NV_MAX(longest, sum);
	}
	return longest;
}

/*
 * No code is farther from the origin than all chunks' longest centroids
 * together, and no two are farther apart than twice that: SHORT_STEPS.
 */
static void
make_shorts(nv_pq *pq)
{
	size_t floats = (size_t) pq->gdim * NV_PQ_CENTROIDS;
	double sum = 0, step;

	for (uint32_t c = 0; c < pq->bytes; c++)
		sum += longest_centroid(pq, c);
	step = sum > 0 ? 2 * sqrt(sum) / SHORT_STEPS : 1;
	pq->short_unit = step * step;
	for (size_t i = 0; i < floats; i++)
		pq->shorts[i] = (int16_t) lrint((double) pq->centroids[i] / step);
}

void
nv_pq_finish(nv_pq *pq)
{
	for (uint32_t c = 0; c < pq->bytes; c++)
	{
		size_t offset = (size_t) pq->start[c] * NV_PQ_CENTROIDS;
		uint32_t dims = nv_pq_chunk_dims(pq, c);

		nv_panel_pack(pq->centroids + offset, NV_PQ_CENTROIDS, dims,
					  pq->panels + offset);
		nv_panel_half_norms(pq->panels + offset, dims,
							pq->half_norms + (size_t) c * NV_PQ_CENTROIDS);
	}
	make_shorts(pq);
}

void
nv_pq_free(nv_pq *pq)
{
	if (pq == NULL)
		return;
	free(pq->mean);
	free(pq->rotation);
	free(pq->rotation_short);
	free(pq->centroids);
	free(pq->panels);
	free(pq->shorts);
	free(pq->half_norms);
	free(pq);
}

uint32_t
nv_pq_bytes(const nv_pq *pq)
{
	return pq->bytes;
}

uint32_t
nv_pq_stride(const nv_pq *pq)
{
	return pq->stride;
}

uint32_t
nv_pq_gdim(const nv_pq *pq)
{
	return pq->gdim;
}

bool
nv_pq_rotated(const nv_pq *pq)
{
	return pq->rotation != NULL;
}

/* ---------------------------------------------------------------------
 * Encoding
 * ---------------------------------------------------------------------
 */

uint32_t
nv_pq_block_rows(uint32_t gdim)
{
	uint32_t rows = NV_PQ_BLOCK_FLOATS / gdim / 4 * 4;

	return NV_MIN(NV_MAX(rows, NV_PQ_BLOCK_MIN_ROWS), NV_PQ_BLOCK_MAX_ROWS);
}

void
nv_pq_project(const nv_pq *pq, const float *rows, size_t stride, size_t n,
			  float *out, float *scratch)
{
	float *centred = pq->rotation == NULL ? out : scratch;
	uint32_t gdim = pq->gdim;

	for (size_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < gdim; k++)
			centred[i * gdim + k] = rows[i * stride + k] - pq->mean[k];
	/* One row alone waits for the matrix to come from memory. */
	if (pq->rotation != NULL && n == 1)
		nv_panel_multiply_short(centred, gdim, pq->rotation_short, gdim, out);
	else if (pq->rotation != NULL)
		nv_panel_multiply(centred, gdim, n, gdim, pq->rotation, gdim, out,
						  gdim);
}

void
nv_pq_encode_projected(const nv_pq *pq, const float *projected, size_t n,
					   uint8_t *codes)
{
	for (size_t i = 0; i < n; i++)
		memset(codes + i * pq->stride + pq->bytes, 0, pq->stride - pq->bytes);
	for (uint32_t c = 0; c < pq->bytes; c++)
		nv_panel_nearest(projected + pq->start[c], pq->gdim, n,
						 nv_pq_chunk_dims(pq, c), chunk_panels(pq, c),
						 pq->half_norms + (size_t) c * NV_PQ_CENTROIDS,
						 codes + c, pq->stride, NULL);
}

void
nv_pq_encode(const nv_pq *pq, const float *row, uint8_t *code)
{
	float projected[NV_PQ_MAX_GDIM];
	float centred[NV_PQ_ROTATION_MAX_GDIM];

	nv_pq_project(pq, row, pq->gdim, 1, projected, centred);
	nv_pq_encode_projected(pq, projected, 1, code);
}

/* One row; returns the squared distance of it and what was encoded. */
static float
encode_one(const nv_pq *pq, const float *projected, uint8_t *code)
{
	float decoded[NV_PQ_MAX_GDIM];

	/* Turning keeps distances. */
	nv_pq_encode_projected(pq, projected, 1, code);
	nv_pq_decode_projected(pq, code, decoded);
	return nv_l2sq(projected, decoded, pq->gdim);
}

float
nv_pq_encode_error(const nv_pq *pq, const float *row, uint8_t *code)
{
	float projected[NV_PQ_MAX_GDIM];
	float centred[NV_PQ_ROTATION_MAX_GDIM];

	nv_pq_project(pq, row, pq->gdim, 1, projected, centred);
	return encode_one(pq, projected, code);
}

float
nv_pq_encode_by_table(const nv_pq *pq, const float *table, uint8_t *code)
{
	float error = 0;

	memset(code, 0, pq->stride);
	for (uint32_t c = 0; c < pq->bytes; c++, table += NV_PQ_CENTROIDS)
		error += nv_panel_least(table, &code[c]);
	return error;
}

typedef struct nv_pq_encoder
{
	const nv_pq *pq;
	const float *rows;
	size_t stride;
	uint64_t n;
	uint8_t *codes;
	uint32_t block;
	float *scratch; /* of each thread: twice a block */
} nv_pq_encoder;

static void
encode_block(void *arg, uint32_t worker, uint64_t step)
{
	nv_pq_encoder *encoder = arg;
	const nv_pq *pq = encoder->pq;
	size_t floats = (size_t) encoder->block * pq->gdim;
	float *projected = encoder->scratch + worker * 2 * floats;
	uint64_t first = step * encoder->block;
	size_t n = (size_t) NV_MIN(encoder->block, encoder->n - first);

	nv_pq_project(pq, encoder->rows + first * encoder->stride, encoder->stride,
				  n, projected, projected + floats);
	nv_pq_encode_projected(pq, projected, n,
						   encoder->codes + first * pq->stride);
}

nv_status
nv_pq_encode_many(const nv_pq *pq, const float *rows, size_t stride, uint64_t n,
				  uint8_t *codes, uint32_t threads, nv_cancel_fn cancel,
				  void *cancel_arg, nv_error *err)
{
	nv_pq_encoder encoder = {.pq = pq,
							 .rows = rows,
							 .stride = stride,
							 .n = n,
							 .codes = codes,
							 .block = nv_pq_block_rows(pq->gdim)};
	uint64_t steps = (n + encoder.block - 1) / encoder.block;
	nv_status status;

	threads = nv_parallel_threads(threads);
	encoder.scratch = nv_alloc_array(
		(size_t) threads * 2 * encoder.block * pq->gdim, sizeof(float));
	if (encoder.scratch == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to encode rows");
	status = nv_parallel_run(threads, steps, encode_block, &encoder, cancel,
							 cancel_arg, err);
	free(encoder.scratch);
	return status;
}

/* ---------------------------------------------------------------------
 * Decoding and distances
 * ---------------------------------------------------------------------
 */

/*
 * Decodes a row from centroids that lie chunk after chunk, as floats or as
 * integers.  A chunk's few elements are copied in pieces of constant length: a
 * call would cost more.
 */
#define DECODE(type, pq, centroids, code, out)                                 \
	for (uint32_t c = 0; c < (pq)->bytes; c++)                                 \
	{                                                                          \
		uint32_t n = nv_pq_chunk_dims(pq, c);                                  \
		const type *from = (centroids) +                                       \
						   (size_t) (pq)->start[c] * NV_PQ_CENTROIDS +         \
						   (size_t) (code)[c] * n;                             \
		type *to = (out) + (pq)->start[c];                                     \
                                                                               \
		for (; n >= 8; n -= 8, to += 8, from += 8)                             \
			memcpy(to, from, 8 * sizeof(*to));                                 \
		if (n >= 4)                                                            \
		{                                                                      \
			memcpy(to, from, 4 * sizeof(*to));                                 \
			n -= 4, to += 4, from += 4;                                        \
		}                                                                      \
		for (; n > 0; n--)                                                     \
			*to++ = *from++;                                                   \
	}

void
nv_pq_decode_projected(const nv_pq *pq, const uint8_t *code, float *projected)
{
	DECODE(float, pq, pq->centroids, code, projected);
}

void
nv_pq_decode_short(const nv_pq *pq, const uint8_t *code, int16_t *place)
{
	DECODE(int16_t, pq, pq->shorts, code, place);
}

/* row = R^T * projected, 32 rows of R at a time as the panels have them. */
static void
rotate_back(const nv_pq *pq, const float *projected, float *row)
{
	uint32_t gdim = pq->gdim;

	memset(row, 0, gdim * sizeof(float));
	for (uint32_t c = 0; c < gdim; c += NV_PANEL_COLUMNS)
	{
		const float *panel = pq->rotation + (size_t) c * gdim;
		uint32_t width = NV_MIN(gdim - c, NV_PANEL_COLUMNS);

		for (uint32_t k = 0; k < gdim; k++)
			row[k] += nv_dot(panel + (size_t) k * NV_PANEL_COLUMNS,
							 projected + c, width);
	}
}

void
nv_pq_decode(const nv_pq *pq, const uint8_t *code, float *row)
{
	if (pq->rotation == NULL)
		nv_pq_decode_projected(pq, code, row);
	else
	{
		float projected[NV_PQ_ROTATION_MAX_GDIM];

		nv_pq_decode_projected(pq, code, projected);
		rotate_back(pq, projected, row);
	}
	for (uint32_t k = 0; k < pq->gdim; k++)
		row[k] += pq->mean[k];
}

size_t
nv_pq_table_size(const nv_pq *pq)
{
	return (size_t) pq->bytes * NV_PQ_CENTROIDS;
}

void
nv_pq_table(const nv_pq *pq, const float *query, float *table)
{
	float projected[NV_PQ_MAX_GDIM];
	float centred[NV_PQ_ROTATION_MAX_GDIM];

	nv_pq_project(pq, query, pq->gdim, 1, projected, centred);
	nv_pq_table_projected(pq, projected, table);
}

void
nv_pq_table_projected(const nv_pq *pq, const float *projected, float *table)
{
	for (uint32_t c = 0; c < pq->bytes; c++)
		nv_panel_distances(projected + pq->start[c], nv_pq_chunk_dims(pq, c),
						   chunk_panels(pq, c),
						   table + (size_t) c * NV_PQ_CENTROIDS);
}

/* ---------------------------------------------------------------------
 * The flat form
 * ---------------------------------------------------------------------
 */

static size_t
saved_size(uint32_t gdim, bool rotated)
{
	size_t floats = (size_t) gdim * (1 + NV_PQ_CENTROIDS);

	if (rotated)
		floats += (size_t) gdim * gdim;
	return sizeof(nv_pq_header) + floats * sizeof(float);
}

size_t
nv_pq_saved_size(const nv_pq *pq)
{
	return saved_size(pq->gdim, pq->rotation != NULL);
}

void
nv_pq_save(const nv_pq *pq, uint8_t *out)
{
	size_t mean = pq->gdim * sizeof(float);
	nv_pq_header header = {
		.magic = NV_PQ_MAGIC,
		.version = NV_PQ_VERSION,
		.gdim = pq->gdim,
		.bytes = pq->bytes,
		.flags = pq->rotation != NULL ? NV_PQ_ROTATED : 0,
	};

	memcpy(out, &header, sizeof(header));
	out += sizeof(header);
	memcpy(out, pq->mean, mean);
	out += mean;
	memcpy(out, pq->centroids, mean * NV_PQ_CENTROIDS);
	out += mean * NV_PQ_CENTROIDS;
	if (pq->rotation == NULL)
		return;
	for (uint32_t c = 0; c < pq->gdim; c++)
		for (uint32_t k = 0; k < pq->gdim; k++)
		{
			size_t panel = (size_t) (c - c % NV_PANEL_COLUMNS) * pq->gdim;

			memcpy(out,
				   pq->rotation + panel + (size_t) k * NV_PANEL_COLUMNS +
					   c % NV_PANEL_COLUMNS,
				   sizeof(float));
			out += sizeof(float);
		}
}

/* The header's fields and the length they ask for. */
static nv_status
check_header(const nv_pq_header *header, size_t len, nv_error *err)
{
	uint32_t gdim = header->gdim;
	bool rotated = header->flags == NV_PQ_ROTATED;

	if (header->magic != NV_PQ_MAGIC)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook begins with 0x%08x instead of 0x%08x",
					   header->magic, NV_PQ_MAGIC);
	if (header->version != NV_PQ_VERSION)
		return nv_fail(err, NV_EVERSION, 0,
					   "codebook has version %u, expected %d", header->version,
					   NV_PQ_VERSION);
	if (gdim < 1 || gdim > NV_PQ_MAX_GDIM)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook has %u dimensions, expected 1 to %d", gdim,
					   NV_PQ_MAX_GDIM);
	if (header->bytes < 1 || header->bytes > NV_MIN(gdim, NV_PQ_MAX_BYTES))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook has %u bytes a code, expected 1 to %u",
					   header->bytes, NV_MIN(gdim, NV_PQ_MAX_BYTES));
	if (header->flags > NV_PQ_ROTATED || header->unused != 0 ||
		(rotated && gdim > NV_PQ_ROTATION_MAX_GDIM))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook of %u dimensions has flags 0x%x", gdim,
					   header->flags);
	if (len != saved_size(gdim, rotated))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook takes %zu bytes, expected %zu", len,
					   saved_size(gdim, rotated));
	return NV_OK;
}

/* Copies floats; false if one is not finite. */
static bool
read_floats(const uint8_t **in, float *out, size_t count)
{
	memcpy(out, *in, count * sizeof(float));
	*in += count * sizeof(float);
	for (size_t i = 0; i < count; i++)
		if (!isfinite(out[i]))
			return false;
	return true;
}

static nv_status
read_rotation(const uint8_t **in, nv_pq *pq, nv_error *err)
{
	size_t floats = (size_t) pq->gdim * pq->gdim;
	float *rotation = nv_alloc_array(floats, sizeof(float));
	nv_status status;

	if (rotation == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a rotation");
	if (read_floats(in, rotation, floats))
		status = nv_pq_rotate(pq, rotation, err);
	else
		status = nv_fail(err, NV_ECORRUPT, 0,
						 "rotation of a codebook is not finite");
	free(rotation);
	return status;
}

nv_status
nv_pq_load(const uint8_t *in, size_t len, nv_pq **pq, nv_error *err)
{
	nv_pq_header header;
	nv_status status;
	nv_pq *new;

	if (len < sizeof(header))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "codebook takes %zu bytes, expected at least %zu", len,
					   sizeof(header));
	memcpy(&header, in, sizeof(header));
	in += sizeof(header);
	status = check_header(&header, len, err);
	if (status == NV_OK)
		status = nv_pq_create(header.gdim, header.bytes, &new, err);
	if (status != NV_OK)
		return status;
	if (!read_floats(&in, new->mean, header.gdim) ||
		!read_floats(&in, new->centroids,
					 (size_t) header.gdim * NV_PQ_CENTROIDS))
		status = nv_fail(err, NV_ECORRUPT, 0, "codebook is not finite");
	else if (header.flags == NV_PQ_ROTATED)
		status = read_rotation(&in, new, err);
	if (status != NV_OK)
	{
		nv_pq_free(new);
		return status;
	}
	nv_pq_finish(new);
	*pq = new;
	return NV_OK;
}
