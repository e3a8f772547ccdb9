/*
 * casr.h
 *		Convergence-aware speculative reranking: when to stop loading vectors,
 *		and how the window is calibrated.
 *
 * Vectors of the explored set are loaded in code order.  The rerank stops when
 * the exact top K has gone w loads unchanged; after a change the next w are
 * needed regardless and are read as one batch.  So a rerank loads
 * min(explored, last change + w), exactly; the first batch is K + w.
 *
 * Calibration loads everything and records the smallest window that would not
 * have stopped too early: the largest distance between successive changes.
 * Windows are kept by (K, L) bucket; a window is a percentile of the recorded
 * values.  Pure logic: no I/O, no locks except inside nv_casr_table.
 *
 * Source: navis-system.txt, "CASR".
 */
#ifndef NAVIS_CASR_H
#define NAVIS_CASR_H

#include "navis/status.h"

#define NV_CASR_ALL UINT32_MAX /* window: load everything */
#define NV_CASR_MAX_WARMUP 10000

/* One rerank. */
typedef struct nv_casr
{
	uint32_t k;
	uint32_t window;      /* w, or NV_CASR_ALL */
	uint32_t stage;       /* ablation: loads a stage; 0: windows */
	uint32_t stage_end;   /* loads at the end of the stage under way */
	uint32_t unchanged;   /* stages in a row that changed nothing */
	uint32_t explored;    /* candidates there are */
	uint32_t loaded;      /* exact distances given so far */
	uint32_t last_change; /* number of loads at the last change of the top K */
	uint32_t max_gap;     /* largest distance between successive changes */
	uint32_t batches;
	uint32_t heap_size;
	double
		*heap; /* the k best exact distances, largest first; caller's memory */
} nv_casr;

/* heap: room for k doubles. */
extern void nv_casr_start(nv_casr *c, uint32_t k, uint32_t window,
						  uint32_t explored, double *heap);

/*
 * Ablation, right after nv_casr_start: fixed stages instead of a window that
 * begins anew with every change.  After K loads and one stage, stages of
 * ceil(w / 2) loads follow until two in a row have changed nothing, so that it
 * never stops before the window would have.  Without a window: no effect.
 *
 * Source: navis-system.txt, CASR, "the paper's version".
 */
extern void nv_casr_use_stages(nv_casr *c);

/*
 * How many of the candidates after the first c->loaded must be loaded now
 * (the next batch); 0: the rerank has converged or everything is loaded.
 */
extern uint32_t nv_casr_want(nv_casr *c);

/* The exact distance of the next candidate in code order. */
extern void nv_casr_loaded(nv_casr *c, double distance);

/* After a full load: the smallest window that would not have stopped early. */
extern uint32_t nv_casr_smallest_window(const nv_casr *c);

/* Buckets: upper bounds, inclusive.  Above the last bound: load everything. */
#define NV_CASR_K_BUCKETS 7
#define NV_CASR_L_BUCKETS 8
extern const uint32_t
	nv_casr_k_bound[NV_CASR_K_BUCKETS]; /* 1 10 20 50 100 200 500 */
extern const uint32_t
	nv_casr_l_bound[NV_CASR_L_BUCKETS]; /* 20 40 60 80 100 200 400 800 */

typedef struct nv_casr_table nv_casr_table; /* thread-safe */

extern nv_casr_table *nv_casr_table_create(uint32_t warmup);
extern void nv_casr_table_free(nv_casr_table *t);

/* Bucket number of (k, l), or -1 above the bounds. */
extern int nv_casr_bucket(uint32_t k, uint32_t l);
extern uint32_t nv_casr_bucket_k(int bucket); /* upper bounds of a bucket */
extern uint32_t nv_casr_bucket_l(int bucket);

/*
 * The window at a percentile (1 .. 100; 100 = the largest) of a bucket that
 * has its warm-up behind it; NV_CASR_ALL before that or for bucket -1.
 */
extern uint32_t nv_casr_window(nv_casr_table *t, int bucket, double percentile);

/* Adds one observation; true when it was the one that completed the warm-up. */
extern bool nv_casr_observe(nv_casr_table *t, int bucket, uint32_t window);
extern uint32_t nv_casr_observed(nv_casr_table *t, int bucket);
extern bool nv_casr_ready(nv_casr_table *t, int bucket);
extern void nv_casr_reset(nv_casr_table *t);

extern size_t nv_casr_saved_size(nv_casr_table *t);
extern size_t nv_casr_save(nv_casr_table *t, uint8_t *out, size_t room);
extern nv_status nv_casr_load(nv_casr_table *t, const uint8_t *in, size_t len,
							  nv_error *err);

#endif
