/*
 * renew.h
 *		Graphs that the engine builds by itself, from what it holds: the first
 *		one of an index, and new ones when rows or data have outgrown the old.
 *
 * Source: design.md sections 4 ("Codes"), 6, 8; issue 3, items 3 and 4.
 */
#ifndef NAVIS_RENEW_H
#define NAVIS_RENEW_H

#include <pthread.h>

#include "navis/request.h"
#include "pq.h"

typedef struct nv_engine nv_engine;
typedef struct nv_index nv_index;

/*
 * An index without a graph gets one at this many rows: twice what a graph
 * needs, so that some may be equal, and eight rows for each centroid of a
 * codebook.  Comparing as many exactly takes a search less than a millisecond
 * at 768 dimensions, about what a graph of them would take.
 */
#define NV_FIRST_GRAPH_ROWS 2048

/*
 * A codebook is trained on 20,000 rows.  One that had fewer was also chosen by
 * their recall, and so were the rerank windows: it is renewed when there are
 * four times as many.  Beyond that only the recall asked for rises, by 0.06 a
 * decade.  Both are geometric: all builds of a table that grows from nothing
 * to n rows take less than half as long again as the one over n rows.
 */
#define NV_RENEW_FULL_SAMPLE 20000
#define NV_RENEW_GROWTH 4
#define NV_RENEW_GROWTH_TRAINED 10

/*
 * Unlinked rows are built in, instead of linked one by one, when that takes
 * less time: what a row takes is measured, of builds and of linking, in CPU
 * time: by the clock a machine that other work keeps busy now would be compared
 * with the one that was idle then.  (Rows that wait to be built in are few
 * enough for their graph to be in the cache, so little reading is left out.)
 * Before both are known, a build is taken to be four times as fast a row.  The
 * ratio is used within bounds, so that the rows a build begins with are at
 * least an eighth of what it builds over, and it is not begun for a few.
 */
#define NV_RENEW_RATIO 4.0
#define NV_RENEW_RATIO_MIN 1.5
#define NV_RENEW_RATIO_MAX 9.0

/*
 * The squared error of rows as they are encoded, against that of rows held out
 * at training: a running mean over about NV_DRIFT_WINDOW rows, and the mean of
 * the worst eighth then.  The codebook is trained anew when the former is
 * NV_DRIFT_FACTOR times the latter, and has been for NV_DRIFT_MIN_ROWS rows and
 * an eighth of the graph.  Afterwards those rows are an eighth at least, so
 * they are among the worst then, and do not make it begin again.
 */
#define NV_DRIFT_WINDOW 256
#define NV_DRIFT_FACTOR 1.5
#define NV_DRIFT_MIN_ROWS 1024
#define NV_DRIFT_SHARE NV_PQ_ERROR_SHARE

typedef struct nv_drift
{
	pthread_mutex_t lock;
	double trained; /* nv_pq_report's error */
	double mean;
	uint64_t drifted; /* rows that came while the mean was too high */
	bool told;        /* that it cannot be mended; the retrainer's own */
} nv_drift;

/* The lock is the body's to make. */
extern void nv_drift_start(nv_drift *drift, double trained);
/* The same while others use it: another codebook, of this error. */
extern void nv_drift_restart(nv_drift *drift, double trained);
extern double nv_drift_trained(nv_drift *drift);
/* One row was encoded with this squared error. */
extern void nv_drift_add(nv_drift *drift, double error);
/* The running mean as a factor of the error at training. */
extern double nv_drift_factor(nv_drift *drift);
/* A graph of so many vertices is worth another codebook. */
extern bool nv_drift_too_far(nv_drift *drift, uint64_t vertices);

/* What the renewer remembers of an index; index->lock. */
typedef struct nv_renew_plan
{
	uint64_t arrived;  /* nv_index's, when it was looked at last */
	uint64_t min_rows; /* for a first graph, when fewer were too few */
	uint64_t after_ns; /* no build before, after a failure */
	uint32_t failures; /* in a row */
	uint32_t renewals, all_failures;
} nv_renew_plan;

extern void *nv_renewer_main(void *arg);
/* A build that is due, on the caller's thread.  False: none is. */
extern bool nv_renew_next(nv_engine *engine);

/* A build over so many rows fits navis.build_memory, beside so many bytes. */
extern bool nv_renew_fits(const nv_index *index, uint64_t rows,
						  uint64_t beside);

/* A row was linked in so much time by one thread. */
extern void nv_renew_note_link(nv_index *index, uint64_t ns);

/*
 * Rows that wait to be linked may be more than the insert queue holds, as long
 * as they fit navis.pending_memory: a build over them is running, or begins
 * when they have become many.  Any thread, no lock; false for an index whose
 * rows will be linked one by one.
 */
extern bool nv_index_wants_backlog(const nv_index *index);

/*
 * An index without a graph whose state is NV_RENEWAL_BACKLOG: it has rows
 * enough for one, and gets it as soon as pending_memory is nearly full.
 * index->lock held.
 */
extern bool nv_index_builds_when_full(const nv_index *index);

/*
 * Somebody else wants build_memory: cancels what the engine builds by itself
 * and waits until it is gone, 10 s at most; it is tried again later.  False:
 * there was nothing.  No lock held; may block.
 */
extern bool nv_renew_give_way(nv_engine *engine);

#endif
