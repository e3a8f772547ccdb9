/*
 * linker.h
 *		One insert thread's tools for one graph: seeking a position and linking
 *		a vertex there.
 *
 * link.c does the work on the graph; insert.c decides which rows, and what
 * becomes of them.
 */
#ifndef NAVIS_LINKER_H
#define NAVIS_LINKER_H

#include "engine_internal.h"
#include "naming.h"

typedef struct nv_linker
{
	nv_ring *ring;       /* the thread's; arena of NV_SEARCH_BUFFER bytes */
	nv_ring *write_ring; /* for the one vector that is on its way to disk */
	nv_body *body;       /* NULL: no graph at hand */
	nv_writer *writer;
	nv_search *search;
	nv_insert_counters *counters; /* of the index worked for */

	uint8_t *code, *next_code;
	uint8_t *record; /* one extent of the vector file */

	/* candidates of a new list; places as nv_pq_decode_short gives them */
	nv_candidate *cand; /* id: number of the candidate */
	uint32_t *vertex;   /* of each candidate */
	int16_t *places;
	const float **exact; /* loaded vectors, in graph space; NULL: none */
	size_t cap_cand, cap_vertex, cap_places, cap_exact;
	void *prune_scratch;
	uint32_t *met;    /* of each candidate: its number in the search */
	uint32_t *chosen; /* max_degree: of each neighbour, the same */
	size_t cap_met;

	/* one list that gets a back edge */
	uint32_t *list; /* max_degree + 1 ids */
	int16_t *list_places;
	uint8_t *page;
	nv_naming naming; /* of lists the last seek has met */
	bool naming_counted;
} nv_linker;

/* Makes it fit for a graph (a reference is taken), or for none (NULL). */
extern nv_status nv_linker_use(nv_linker *linker, nv_body *body, nv_error *err);

/*
 * Begins to write the row's vector; nv_link_written waits until it is in the
 * file, which must come before anything else is begun or the thread ends.
 */
extern nv_status nv_link_write(nv_linker *linker, const float *row,
							   nv_error *err);
extern nv_status nv_link_written(nv_linker *linker, nv_error *err);

/* Searches the row's surroundings; exclude: its vertex, if it has one. */
extern nv_status nv_link_seek(nv_linker *linker, const float *row,
							  uint32_t exclude, nv_error *err);

/*
 * After a seek: chooses the vertex's neighbours, writes its list, and gives
 * them back edges.  The vertex has a list already only if it was linked, or
 * half linked, before.
 */
extern nv_status nv_link_vertex(nv_linker *linker, uint32_t vertex,
								nv_error *err);

/*
 * For vertices that are there.  The list of a vertex, copied into linker->list,
 * and the edge word it belongs to; inside an epoch.  Links a vertex that has
 * lost its back edges: its surroundings are sought, and its neighbours there
 * name it again; its own list is replaced only if it is empty, or with replace.
 * row: room for its vector.
 */
extern nv_status nv_link_read_list(nv_linker *linker, uint32_t vertex,
								   uint64_t *word, uint32_t *degree,
								   nv_error *err);
extern nv_status nv_link_again(nv_linker *linker, uint32_t vertex, float *row,
							   bool replace, nv_error *err);

/* After a seek: makes the vertex a member of the entrance graph. */
extern nv_status nv_link_promote(nv_linker *linker, uint32_t vertex,
								 nv_error *err);

#endif
