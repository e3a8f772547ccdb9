/*
 * engine_graph.h
 *		What an index answers for each of its rows, and what its graph looks
 *		like on disk; for tests over engine_fixture.h.
 */
#ifndef NAVIS_ENGINE_GRAPH_H
#define NAVIS_ENGINE_GRAPH_H

#include "engine_fixture.h"
#include "must.h"
#include "store.h"

/* --- Answers --- */

/*
 * The row's own vector finds it, nothing twice, all at the distances their
 * rows have, whatever their vertices were before.  For any thread.
 */
static inline bool
finds_itself(fixture *f, uint32_t e, uint32_t generation, uint32_t list)
{
	const nv_hit *hits = (const nv_hit *) f->r->data;
	const float *row = f->rows + (size_t) e * DIM;
	bool found = false;

	must(search(f, row, 10, list) == NV_OK);
	for (uint32_t i = 0; i < f->r->u.search.n; i++)
	{
		for (uint32_t j = 0; j < i; j++)
			must(hits[i].element != hits[j].element);
		must(i == 0 || hits[i].distance >= hits[i - 1].distance);
		must(hits[i].distance == distance(f, row, hits[i].element));
		found |= hits[i].element == e && hits[i].generation == generation;
	}
	return found;
}

/* Recall as the fixture measures it, without its demands on the answer. */
static inline double
recall_over(fixture *f, uint32_t n_queries, uint32_t list,
			bool (*alive)(uint32_t e))
{
	float *queries = malloc((size_t) n_queries * DIM * sizeof(float));
	uint32_t found = 0;

	make_rows(queries, n_queries, 78);
	for (uint32_t q = 0; q < n_queries; q++)
	{
		const float *query = queries + (size_t) q * DIM;
		double bound = kth_distance(f, query, 10, alive);
		const nv_hit *hits = (const nv_hit *) f->r->data;

		assert_int_equal(search(f, query, 10, list), NV_OK);
		assert_int_equal(f->r->u.search.n, 10);
		for (uint32_t i = 0; i < 10; i++)
			found += hits[i].distance <= bound;
	}
	free(queries);
	return found / (10.0 * n_queries);
}

/* --- The graph on disk --- */

typedef struct graph_shape
{
	uint32_t ids, lists; /* vertex ids given, lists there are */
	uint32_t linked, unlinked;
	uint32_t orphans; /* have a list, are in none */
	double degree;
	uint64_t edge_bytes;
} graph_shape;

static inline const uint32_t *
read_list(nv_store *store, uint32_t v, uint8_t *page, uint32_t *degree)
{
	uint64_t word = nv_store_edge_word(store, v);
	const uint32_t *list;

	assert_int_equal(nv_file_read(nv_store_edge_file(store), page, NV_PAGE,
								  nv_word_page(word) * NV_PAGE, NULL),
					 NV_OK);
	list = nv_slot_find(store, page, word, v, degree);
	assert_non_null(list);
	return list;
}

/* In bounds, without repetitions, naming only vertices that have lists. */
static inline void
check_list(nv_store *store, uint32_t v, const uint32_t *list, uint32_t degree,
		   uint32_t *seen)
{
	for (uint32_t i = 0; i < degree; i++)
	{
		assert_true(list[i] < nv_store_vertices(store) && list[i] != v);
		if (nv_store_edge_word(store, list[i]) == 0)
			fail_msg("list of vertex %u names %u, which is free", v, list[i]);
		assert_int_not_equal(seen[list[i]], v + 1);
		seen[list[i]] = v + 1;
	}
}

/* Every list; named[v] counts the lists that vertex v is in. */
static inline void
check_lists(const fixture *f, nv_store *store, uint32_t *named,
			graph_shape *shape)
{
	uint8_t *page = aligned_alloc(NV_BLOCK, NV_PAGE);
	uint32_t *seen = nv_alloc_array(shape->ids, sizeof(*seen));

	for (uint32_t v = 0; v < shape->ids; v++)
	{
		uint32_t degree;
		const uint32_t *list;

		if (nv_store_edge_word(store, v) == 0)
			continue;
		list = read_list(store, v, page, &degree);
		assert_true(degree <= f->params.max_degree);
		check_list(store, v, list, degree, seen);
		for (uint32_t i = 0; i < degree; i++)
			named[list[i]]++;
		shape->lists++;
		shape->degree += degree;
	}
	shape->degree /= NV_MAX(shape->lists, 1u);
	free(seen);
	free(page);
}

/* The last checkpoint: its lists, and elements of linked vertices only. */
static inline graph_shape
check_graph(const fixture *f)
{
	graph_shape shape = {0};
	char dir[300], path[320];
	nv_store *store;
	nv_store_stats stats;
	uint32_t *named;

	index_dir(f, dir);
	snprintf(path, sizeof(path), "%s/g1", dir);
	assert_int_equal(nv_store_open(path, &f->key, NULL, &store, NULL), NV_OK);
	nv_store_get_stats(store, &stats);
	shape.edge_bytes = stats.edge_bytes;
	shape.ids = nv_store_vertices(store);
	named = nv_alloc_array(shape.ids, sizeof(*named));
	check_lists(f, store, named, &shape);
	for (uint32_t v = 0; v < shape.ids; v++)
	{
		uint64_t word = nv_store_edge_word(store, v);

		shape.linked += (word & NV_LINKED) != 0;
		shape.orphans += word != 0 && named[v] == 0;
	}
	shape.unlinked = shape.lists - shape.linked;
	for (uint64_t e = 0; e < nv_store_elements(store); e++)
	{
		uint32_t g, v = nv_store_element(store, (uint32_t) e, &g);

		assert_true(v == NV_NO_VERTEX ||
					(nv_store_edge_word(store, v) & NV_LINKED) != 0);
	}
	free(named);
	nv_store_close(store);
	return shape;
}

#endif
