/*
 * consolidate.h
 *		Dead vertices leave the graph and are freed: what the files share.
 *
 * consolidate.c	the run, its phases and who waits for whom; requests; the
 *					thread
 * sweep.c			the walk over the edge file
 * rewire.c			what becomes of a list that names dying vertices
 * cover.c			members of the entrance graph for what is left
 */
#ifndef NAVIS_CONSOLIDATE_H
#define NAVIS_CONSOLIDATE_H

#include "linker.h"
#include "visited.h"

/* Vertices of one run: bounds its memory, NV_SUBSTITUTES * 4 bytes each. */
#define NV_CONSOLIDATE_MAX (UINT32_C(1) << 20)
/* Neighbours of a dying vertex that may take its place, nearest first. */
#define NV_SUBSTITUTES 24

/* --- Rewiring --- */

typedef struct nv_rewire
{
	nv_linker *linker;
	const nv_dying *dying;
	const uint32_t *dead; /* ascending */
	uint32_t n_dead;
	uint32_t *substitutes;   /* NV_SUBSTITUTES of each dying vertex */
	uint8_t *n_substitutes;  /* how many there are */
	_Atomic uint64_t *count; /* of lists rewired */
	/* candidates of one list */
	nv_candidate cand[NV_PRUNE_CANDIDATES]; /* id: number of the candidate */
	uint32_t vertex[NV_PRUNE_CANDIDATES];
	int16_t *places;         /* as nv_pq_decode_short gives them */
	const nv_coding *coding; /* codes that the list at hand is seen by */
	int16_t *centre;
	nv_visited met;
} nv_rewire;

extern nv_status nv_rewire_begin(nv_rewire *rewire, nv_linker *linker,
								 const nv_dying *dying, const uint32_t *dead,
								 uint32_t n_dead, nv_error *err);
extern void nv_rewire_end(nv_rewire *rewire);

static inline bool
nv_is_dying(const nv_dying *dying, uint32_t vertex)
{
	return vertex < dying->n && (atomic_load_explicit(&dying->bits[vertex / 64],
													  memory_order_relaxed) >>
									 vertex % 64 &
								 1) != 0;
}

/* Some of the ids are dying. */
extern bool nv_rewire_names(const nv_rewire *rewire, const uint32_t *ids,
							uint32_t degree);
/* Keeps the nearest neighbours of a dying vertex that are not. */
extern void nv_rewire_collect(nv_rewire *rewire, uint32_t vertex,
							  const uint32_t *ids, uint32_t degree);
/* The list of a dying vertex while it is still walked through. */
extern const uint32_t *nv_rewire_substitutes(const nv_rewire *rewire,
											 uint32_t vertex, uint32_t *degree);
/*
 * The new list of a vertex whose list names dying ones: out has room for
 * max_degree ids; returns its degree.  False: no memory.
 */
extern bool nv_rewire_list(nv_rewire *rewire, uint32_t vertex,
						   const uint32_t *ids, uint32_t degree, uint32_t *out,
						   uint32_t *new_degree);

/* --- The walk --- */

typedef struct nv_sweep
{
	nv_index *index;
	nv_linker *linker;
	nv_rewire *rewire;
	nv_writer *dead_writer; /* lists of dying vertices: pages of their own */
	uint32_t n;             /* ids there were at the beginning */
	uint64_t *seen;         /* bitmap: its list was looked at */
	uint8_t *named;         /* lists that name a vertex, up to 255 */
	uint32_t *island;       /* union-find: vertices that edges connect */
	float *row;
	/* The run: progress, and whether to stop (also looked at in between). */
	bool (*stop)(void *arg, uint32_t phase, uint64_t done, uint64_t total);
	void *stop_arg;
} nv_sweep;

extern nv_status nv_sweep_begin(nv_sweep *sweep, nv_error *err);
extern void nv_sweep_end(nv_sweep *sweep);
/* The neighbours of all dying vertices go to rewire. */
extern nv_status nv_sweep_collect(nv_sweep *sweep, nv_error *err);
/* Afterwards no list of a vertex that is not dying names one. */
extern nv_status nv_sweep_rewrite(nv_sweep *sweep, nv_error *err);
/* Live vertices that nothing leads to get back edges again. */
extern nv_status nv_sweep_repair(nv_sweep *sweep, uint32_t medoid,
								 nv_error *err);

/* --- The entrance graph --- */

/*
 * Promotes live vertices that are far from every member, of which there is
 * one; for the thread that may replace the entrance graph.  NV_ENOMEM,
 * NV_ECANCELLED.
 */
extern nv_status nv_cover_regions(nv_body *body, nv_cancel_fn cancel,
								  void *cancel_arg, nv_error *err);

#endif
