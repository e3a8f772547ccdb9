/*
 * vamana_build.h
 *		State of a running graph construction, shared by vamana.c (linking) and
 *		vamana_finish.c (reachability and the final form).
 *
 * While the graph grows every vertex has max_degree + 1 words in `lists`: its
 * degree and room for its neighbours, in no particular order.  A list is read
 * and written under its lock (locks are striped over the vertices); no lock
 * is held while distances are computed, and never two at once.
 */
#ifndef NAVIS_VAMANA_BUILD_H
#define NAVIS_VAMANA_BUILD_H

#include <pthread.h>
#include <stdatomic.h>

#include "vamana.h"

#define NV_BUILD_LOCKS 65536 /* stripes; a power of two */

/* Rows are taken by the threads in chunks of this many. */
#define NV_BUILD_CHUNK 16

/* Expanded vertices remembered for a search list of L: 4 L + this. */
#define NV_BUILD_EXPANDED_SPARE 64

/*
 * Where searches may go on beside the medoid, at most, and one for so many rows
 * at most; chosen from so many rows.  Each costs every search a distance, of
 * some thousand.
 */
#define NV_BUILD_STARTS 32u
#define NV_BUILD_START_ROWS 32u
#define NV_BUILD_START_SAMPLE 2048u

/* The top bit of a pool entry's id tells that it was expanded. */
#define NV_POOL_EXPANDED 0x80000000u
#define NV_MAX_VERTICES 0x7fffffffu

struct nv_build;

/* What one thread owns. */
typedef struct nv_build_worker
{
	struct nv_build *build;
	pthread_t thread;

	uint8_t *stamp; /* n: equal to generation means scored in this search */
	uint8_t generation;
	nv_candidate *pool;     /* list_size, nearest first */
	nv_candidate *expanded; /* by the last search; expanded_cap */
	nv_candidate *cand;     /* input of a prune; expanded_cap + max_degree */
	uint32_t *ids;          /* a copied list or starts, max_degree + 1 */
	uint32_t *fresh;        /* its ids not scored before, max_degree + 1 */
	uint32_t *picks;        /* result of a prune, max_degree */
	uint32_t *links;        /* the new list of the vertex, max_degree */
	void *prune_scratch;

	uint64_t work;      /* floats compared since cancel was asked */
	float nearest_dist; /* nearest row to the mean seen by this thread */
	uint32_t nearest;
} nv_build_worker;

typedef void (*nv_build_fn)(nv_build_worker *w, uint32_t begin, uint32_t end);

typedef struct nv_build
{
	const nv_vamana_params *params;
	const float *rows;
	size_t stride; /* floats */
	uint32_t n;
	uint32_t gdim;

	uint32_t cap;    /* hard cap of a list */
	uint32_t target; /* an overflowing list is pruned to this */
	uint32_t expanded_cap;
	uint32_t medoid;
	uint32_t starts[NV_BUILD_STARTS];
	uint32_t n_starts;
	uint32_t step; /* linking visits (i * step) mod n, i = 0, 1, ... */

	uint32_t *lists;
	_Atomic uint8_t *locks;
	float *mean; /* gdim */

	uint32_t threads;
	nv_build_worker *workers;
	nv_build_fn phase;
	uint32_t phase_size;
	_Atomic uint64_t next; /* first item of the phase nobody has taken */
	_Atomic bool stop;
} nv_build;

static inline const float *
nv_build_row(const nv_build *b, uint32_t v)
{
	return b->rows + (size_t) v * b->stride;
}

/* Words of a vertex: [0] its degree, [1 ...] the neighbours. */
static inline uint32_t *
nv_build_list(const nv_build *b, uint32_t v)
{
	return b->lists + (size_t) v * (b->cap + 1);
}

/* Runs fn over 0 .. size - 1 on all threads; false if the build must stop. */
extern bool nv_build_phase(nv_build *b, nv_build_fn fn, uint32_t size);

/* Counts work and asks the caller now and then; true if it must stop. */
extern bool nv_build_stopped(nv_build_worker *w, uint64_t floats);

/*
 * Greedy search for row v from the medoid, and from those starts that are
 * nearer than what it leads to; among: one byte a vertex, 0 for starts to be
 * left out (NULL: none).  Leaves what was expanded, without v, in w->expanded
 * and returns its number.
 */
extern uint32_t nv_build_search(nv_build_worker *w, uint32_t v,
								const uint8_t *among);

/* Makes every vertex reachable from the medoid; false: stopped or no memory. */
extern bool nv_build_connect(nv_build *b);

/* Sorts the lists nearest first and hands them to graph; false as above. */
extern bool nv_build_finish(nv_build *b, nv_graph *graph);

#endif
