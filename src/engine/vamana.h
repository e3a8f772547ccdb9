/*
 * vamana.h
 *		Graph construction in memory, RobustPrune, and page placement.
 *
 * Source: algorithms.md sections 2 and 5; design.md section 4.
 */
#ifndef NAVIS_VAMANA_H
#define NAVIS_VAMANA_H

#include "pq.h"

#define NV_MAX_DEGREE 512       /* upper bound of the reloption max_degree */
#define NV_BUILD_MAX_LIST 10000 /* upper bound of build_list_size */

/*
 * A finished graph: the list of vertex i is at
 * edges[offset[i]] .. edges[offset[i + 1]], nearest first, each id once, never
 * i.
 */
typedef struct nv_graph
{
	uint32_t n;
	uint32_t medoid;
	uint64_t *offset; /* n + 1 */
	uint32_t *edges;
} nv_graph;

typedef struct nv_vamana_params
{
	uint32_t max_degree; /* R, hard cap */
	uint32_t list_size;  /* L_build */
	float alpha;
	uint32_t fill_to; /* saturate lists up to this; at most R / 2 */
	uint32_t threads;
	_Atomic uint64_t *done; /* progress in vertices, may be NULL */
	nv_cancel_fn cancel;    /* may be NULL; checked at least every 10 ms */
	void *cancel_arg;
} nv_vamana_params;

/*
 * Builds over n rows of graph space, stride floats apart.  One pass, in
 * parallel.  NV_ECANCELLED, NV_ENOMEM.
 */
extern nv_status nv_vamana_build(const nv_vamana_params *params,
								 const float *rows, size_t stride, uint32_t n,
								 uint32_t gdim, nv_graph *graph, nv_error *err);
extern void nv_graph_free(nv_graph *graph);

/* Bytes nv_vamana_build and placement hold beside the rows, at most. */
extern uint64_t nv_vamana_memory(uint64_t n, uint32_t max_degree,
								 uint32_t threads);

/*
 * A list of the build, and one that overflows, are pruned to four fifths of
 * the cap.  Without slack below the cap overflows become the main cost: on
 * 100k word vectors with R = 96 and lists filled up to 32 the whole build takes
 * 2.6 times the CPU time, for 0.1 points of recall@10 at L = 100.
 */
static inline uint32_t
nv_prune_target(uint32_t max_degree)
{
	return max_degree * 4 / 5 > 1 ? max_degree * 4 / 5 : 1;
}

/*
 * RobustPrune: of count candidates (ids with squared distances to the centre,
 * sorted by distance then id by this function), keep at most max_degree.
 * vector(arg, id) gives a candidate's gdim floats.  Writes the kept ids
 * nearest first, returns their number.  Candidates are capped at
 * NV_PRUNE_CANDIDATES.  scratch as nv_prune_scratch_size() says.
 */
#define NV_PRUNE_CANDIDATES 750

typedef struct nv_candidate
{
	float dist;
	uint32_t id;
} nv_candidate;

/* Sorts by distance, then id; squared distances, so none is negative. */
extern void nv_candidate_sort(nv_candidate *cand, uint32_t count);

typedef const float *(*nv_vector_fn)(void *arg, uint32_t id);

/*
 * Candidates known by codes, of which some have an exact vector, too.  Two
 * exact ones are compared as such, all others by their codes' places; error,
 * the mean squared distance of the two, is added where one of a pair is exact:
 * that is what its comparison with a decoded one would give on average.
 */
typedef struct nv_coded_places
{
	const int16_t *(*place)(void *arg, uint32_t id); /* nv_pq_decode_short */
	double unit;                                     /* nv_pq.short_unit */
	nv_vector_fn exact; /* NULL for a candidate without one */
	float error;
} nv_coded_places;

extern size_t nv_prune_scratch_size(void);
extern uint32_t nv_robust_prune(nv_candidate *cand, uint32_t count,
								uint32_t max_degree, float alpha,
								uint32_t fill_to, uint32_t gdim,
								nv_vector_fn vector, void *arg, void *scratch,
								uint32_t *out);
/* The same for such candidates; places->exact may be NULL. */
extern uint32_t nv_robust_prune_coded(nv_candidate *cand, uint32_t count,
									  uint32_t max_degree, float alpha,
									  uint32_t fill_to, uint32_t gdim,
									  const nv_coded_places *places, void *arg,
									  void *scratch, uint32_t *out);

/*
 * A full list and one newcomer: which of them goes.  cand[i] has the squared
 * distance to the list's centre, vector[i] the place; newcomer is a position.
 * Returns a position; never the newcomer when it must stay.  count at most
 * NV_MAX_DEGREE + 1, at least 2.
 */
extern uint32_t nv_delta_prune(const nv_candidate *cand,
							   const float *const *vector, uint32_t count,
							   uint32_t newcomer, bool must_stay, float alpha,
							   uint32_t gdim);

/*
 * Greedy page-locality placement of lists of variable length: out_page[i] is
 * the page (0-based, dense) of vertex i's list.  A list of degree d takes
 * nv_slot_units(d) of the NV_PAGE_UNITS units of a page.  rounds <= 0: the
 * default.  random = true places at random (for the benchmark).
 */
#define NV_UNIT 64
#define NV_PAGE_UNITS 64
#define NV_SLOT_HEADER 16
#define NV_PLACE_NEIGHBOURS 24 /* nearest of a list that are looked at */

static inline uint32_t
nv_slot_units(uint32_t degree)
{
	return (NV_SLOT_HEADER + degree * 4 + NV_UNIT - 1) / NV_UNIT;
}

extern nv_status nv_place(const nv_graph *graph, int rounds, bool random,
						  uint32_t threads, uint64_t seed, nv_cancel_fn cancel,
						  void *cancel_arg, uint32_t *out_page,
						  uint32_t *out_pages, nv_error *err);

/*
 * Mean over vertices of (out-neighbours on its page) / (lists on its page - 1).
 */
extern double nv_place_quality(const nv_graph *graph, const uint32_t *page,
							   uint32_t pages);

#endif
