/*
 * pq.h
 *		Product quantization: codebooks, codes and ADC tables.
 *
 * A code has m bytes, one a chunk of graph-space dimensions; each byte names
 * one of 256 centroids of its chunk.  Codes are stored nv_pq_stride() bytes
 * apart (m rounded up to 4).  With a rotation, chunks are taken of R * x, R an
 * orthogonal gdim x gdim matrix learned from the sample.
 *
 * Source: algorithms.md section 4; size and rotation: design.md section 4.
 */
#ifndef NAVIS_PQ_H
#define NAVIS_PQ_H

#include "navis/status.h"

#define NV_PQ_CENTROIDS 256
#define NV_PQ_MAX_BYTES 256
/* Fewer distinct vectors than this are not trained on: see design section 6. */
#define NV_PQ_MIN_ROWS 1024

typedef struct nv_pq nv_pq; /* immutable after training: share freely */

/* Called between steps of long work; true means stop (NV_ECANCELLED). */
typedef bool (*nv_cancel_fn)(void *arg);

typedef struct nv_pq_params
{
	uint32_t bytes; /* code size, or 0: chosen by measured recall */
	uint32_t threads;
	uint64_t seed;       /* equal seeds and rows give equal codebooks */
	bool no_rotation;    /* for ablations */
	nv_cancel_fn cancel; /* may be NULL */
	void *cancel_arg;
} nv_pq_params;

/* The report's error is that of the worst so-manieth part of the rows. */
#define NV_PQ_ERROR_SHARE 8

typedef struct nv_pq_report
{
	uint32_t bytes;
	bool rotated;
	double recall;       /* code-only recall@10 on held-out rows */
	double recall_asked; /* bound it was held against (0: size was given) */
	uint64_t scanned;    /* rows the recall was measured against */
	double error;        /* mean squared, of the worst of the rows held out */
} nv_pq_report;

/*
 * Trains on rows of graph space (n rows, stride floats apart, n >=
 * NV_PQ_MIN_ROWS).  Deterministic for equal input, params and any number of
 * threads.  NV_ECANCELLED, NV_ENOMEM.
 */
extern nv_status nv_pq_train(const nv_pq_params *params, const float *rows,
							 size_t stride, uint64_t n, uint32_t gdim,
							 nv_pq **pq, nv_pq_report *report, nv_error *err);
extern void nv_pq_free(nv_pq *pq);

extern uint32_t nv_pq_bytes(const nv_pq *pq);  /* m */
extern uint32_t nv_pq_stride(const nv_pq *pq); /* m rounded up to 4 */
extern uint32_t nv_pq_gdim(const nv_pq *pq);
extern bool nv_pq_rotated(const nv_pq *pq);
extern size_t nv_pq_memory(const nv_pq *pq); /* bytes held */

/* Encode one row (stack or caller scratch only), or n rows in blocks. */
extern void nv_pq_encode(const nv_pq *pq, const float *row, uint8_t *code);
/* The same; returns the squared distance of the row and what was encoded. */
extern float nv_pq_encode_error(const nv_pq *pq, const float *row,
								uint8_t *code);
extern nv_status nv_pq_encode_many(const nv_pq *pq, const float *rows,
								   size_t stride, uint64_t n, uint8_t *codes,
								   uint32_t threads, nv_cancel_fn cancel,
								   void *cancel_arg, nv_error *err);

/* Reconstruct ("deflate") into gdim floats of graph space. */
extern void nv_pq_decode(const nv_pq *pq, const uint8_t *code, float *row);

/*
 * ADC table of a query of graph space: m * 256 floats, squared distances.
 * table must hold nv_pq_table_size() floats.
 */
extern size_t nv_pq_table_size(const nv_pq *pq);
extern void nv_pq_table(const nv_pq *pq, const float *query, float *table);

/* Flat, little-endian form for the state file; load checks every bound. */
extern size_t nv_pq_saved_size(const nv_pq *pq);
extern void nv_pq_save(const nv_pq *pq, uint8_t *out);
extern nv_status nv_pq_load(const uint8_t *in, size_t len, nv_pq **pq,
							nv_error *err);

#endif
