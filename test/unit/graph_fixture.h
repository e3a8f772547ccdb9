/*
 * graph_fixture.h
 *		Clustered points, brute force and graph checks for the tests of graph
 *		construction, placement and the entrance graph.
 */
#ifndef NAVIS_GRAPH_FIXTURE_H
#define NAVIS_GRAPH_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "navis/distance.h"
#include "util.h"
#include "vamana.h"

/* Sanitizer builds run on fewer points. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define FIX_DIM 24
#define FIX_CLUSTERS 20

static inline float
fix_uniform(uint64_t *state)
{
	return (float) (nv_random(state) >> 40) / (float) (1 << 24);
}

/* About normal, variance 1. */
static inline float
fix_normal(uint64_t *state)
{
	float sum = -6.0f;

	for (int i = 0; i < 12; i++)
		sum += fix_uniform(state);
	return sum;
}

/* n rows of FIX_DIM around FIX_CLUSTERS overlapping centres, sorted by centre
 * when `sorted`. */
static inline float *
fix_points(uint32_t n, uint64_t seed, bool sorted)
{
	float centre[FIX_CLUSTERS][FIX_DIM];
	uint64_t centres = nv_random_seed(1);
	uint64_t state = nv_random_seed(seed + 2);
	float *rows = nv_alloc_array(n, FIX_DIM * sizeof(float));

	assert_non_null(rows);
	for (int c = 0; c < FIX_CLUSTERS; c++)
		for (int j = 0; j < FIX_DIM; j++)
			centre[c][j] = 2.0f * fix_normal(&centres);
	for (uint32_t i = 0; i < n; i++)
	{
		uint32_t c = sorted ? (uint32_t) ((uint64_t) i * FIX_CLUSTERS / n)
							: (uint32_t) nv_random_below(&state, FIX_CLUSTERS);

		for (int j = 0; j < FIX_DIM; j++)
			rows[(size_t) i * FIX_DIM + j] = centre[c][j] + fix_normal(&state);
	}
	return rows;
}

static inline const float *
fix_row(const float *rows, uint32_t i)
{
	return rows + (size_t) i * FIX_DIM;
}

/* The k nearest of n rows by brute force. */
static inline void
fix_nearest(const float *rows, uint32_t n, const float *query, uint32_t k,
			nv_candidate *out)
{
	uint32_t have = 0;

	for (uint32_t i = 0; i < n; i++)
	{
		nv_candidate c = {nv_l2sq(query, fix_row(rows, i), FIX_DIM), i};
		uint32_t at = have;

		if (have == k && c.dist >= out[k - 1].dist)
			continue;
		if (have < k)
			have++;
		else
			at--;
		for (; at > 0 && out[at - 1].dist > c.dist; at--)
			out[at] = out[at - 1];
		out[at] = c;
	}
	assert_true(have == k);
}

/* Plain beam search: the whole candidate list is sorted at each step. */
static inline uint32_t
fix_search(const nv_graph *g, const float *rows, const float *query,
		   uint32_t list, nv_candidate *out)
{
	nv_candidate *all = nv_alloc_array(g->n, sizeof(*all));
	bool *seen = nv_alloc_array(g->n, sizeof(*seen));
	bool *expanded = nv_alloc_array(g->n, sizeof(*expanded));
	uint32_t count = 1;
	uint32_t kept;

	assert_true(all != NULL && seen != NULL && expanded != NULL);
	seen[g->medoid] = true;
	all[0] = (nv_candidate){nv_l2sq(query, fix_row(rows, g->medoid), FIX_DIM),
							g->medoid};
	for (;;)
	{
		uint32_t i = 0;

		nv_candidate_sort(all, count);
		count = NV_MIN(count, list);
		while (i < count && expanded[all[i].id])
			i++;
		if (i == count)
			break;
		expanded[all[i].id] = true;
		for (uint64_t e = g->offset[all[i].id], end = g->offset[all[i].id + 1];
			 e < end; e++)
		{
			uint32_t u = g->edges[e];

			if (!seen[u])
				all[count++] = (nv_candidate){
					nv_l2sq(query, fix_row(rows, u), FIX_DIM), u};
			seen[u] = true;
		}
	}
	kept = count;
	memcpy(out, all, kept * sizeof(*out));
	free(all);
	free(seen);
	free(expanded);
	return kept;
}

/* Mean recall@10 at a list size over queries drawn like the points. */
static inline double
fix_recall(const nv_graph *g, const float *rows, uint32_t list,
		   uint32_t queries)
{
	float *query = fix_points(queries, 77, false);
	nv_candidate *found = nv_alloc_array(list, sizeof(*found));
	uint32_t hits = 0;

	for (uint32_t q = 0; q < queries; q++)
	{
		nv_candidate exact[10];
		uint32_t count = fix_search(g, rows, fix_row(query, q), list, found);

		fix_nearest(rows, g->n, fix_row(query, q), 10, exact);
		for (uint32_t i = 0; i < NV_MIN(10, count); i++)
			hits += found[i].dist <= exact[9].dist;
	}
	free(query);
	free(found);
	return hits / (10.0 * queries);
}

static inline uint32_t
fix_reachable(const nv_graph *g)
{
	uint32_t *queue = nv_alloc_array(g->n, sizeof(*queue));
	bool *seen = nv_alloc_array(g->n, sizeof(*seen));
	uint32_t tail = 0;

	assert_true(queue != NULL && seen != NULL);
	queue[tail++] = g->medoid;
	seen[g->medoid] = true;
	for (uint32_t head = 0; head < tail; head++)
		for (uint64_t e = g->offset[queue[head]];
			 e < g->offset[queue[head] + 1]; e++)
			if (!seen[g->edges[e]])
			{
				seen[g->edges[e]] = true;
				queue[tail++] = g->edges[e];
			}
	free(queue);
	free(seen);
	return tail;
}

/* All that vamana.h promises of a graph over rows. */
static inline void
fix_check_graph(const nv_graph *g, const float *rows, uint32_t n,
				uint32_t max_degree)
{
	uint32_t *seen = nv_alloc_array(n, sizeof(*seen));

	assert_int_equal(g->n, n);
	assert_true(g->medoid < n);
	assert_true(g->offset[0] == 0);
	for (uint32_t v = 0; v < n; v++)
	{
		nv_candidate last = {-1.0f, 0};

		assert_true(g->offset[v + 1] >= g->offset[v]);
		assert_true(g->offset[v + 1] - g->offset[v] <= max_degree);
		for (uint64_t e = g->offset[v]; e < g->offset[v + 1]; e++)
		{
			uint32_t u = g->edges[e];
			float d;

			assert_true(u < n && u != v);
			assert_true(seen[u] != v + 1);
			seen[u] = v + 1;
			d = nv_l2sq(fix_row(rows, v), fix_row(rows, u), FIX_DIM);
			assert_true(d > last.dist || (d == last.dist && u > last.id));
			last = (nv_candidate){d, u};
		}
	}
	free(seen);
	assert_int_equal(fix_reachable(g), n);
}

static inline void
fix_build(const float *rows, uint32_t n, uint32_t degree, uint32_t fill_to,
		  uint32_t threads, nv_graph *g)
{
	nv_vamana_params params = {.max_degree = degree,
							   .list_size = 64,
							   .alpha = 1.2f,
							   .fill_to = fill_to,
							   .threads = threads};
	nv_error err = {0};

	assert_int_equal(
		nv_vamana_build(&params, rows, FIX_DIM, n, FIX_DIM, g, &err), NV_OK);
	fix_check_graph(g, rows, n, degree);
}

#endif
