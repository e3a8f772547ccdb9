/*
 * test_placement.c
 *		Page placement: capacity, completeness, and that it beats chance.
 */
#include "graph_fixture.h"

#define POINTS (SANITIZED ? 1500u : 6000u)

/* Greedy placement must put at least this many times more neighbours of a list
 * on its page than chance does. */
#define BETTER_THAN_RANDOM 8.0

static uint32_t
degree_of(const nv_graph *g, uint32_t v)
{
	return (uint32_t) (g->offset[v + 1] - g->offset[v]);
}

static uint64_t
all_units(const nv_graph *g)
{
	uint64_t units = 0;

	for (uint32_t v = 0; v < g->n; v++)
		units += nv_slot_units(degree_of(g, v));
	return units;
}

/* Every vertex on a page below `pages`; no page over-full or empty. */
static void
check_placement(const nv_graph *g, const uint32_t *page, uint32_t pages)
{
	uint32_t *used = nv_alloc_array(pages, sizeof(*used));

	assert_true(pages >= 1);
	for (uint32_t v = 0; v < g->n; v++)
	{
		assert_true(page[v] < pages);
		used[page[v]] += nv_slot_units(degree_of(g, v));
	}
	for (uint32_t p = 0; p < pages; p++)
		assert_true(used[p] > 0 && used[p] <= NV_PAGE_UNITS);
	free(used);
}

static void
place(const nv_graph *g, int rounds, bool random, uint64_t seed, uint32_t *page,
	  uint32_t *pages)
{
	nv_error err = {0};

	/* What is not written must be noticed. */
	memset(page, 0xff, g->n * sizeof(*page));
	assert_int_equal(
		nv_place(g, rounds, random, 1, seed, NULL, NULL, page, pages, &err),
		NV_OK);
	check_placement(g, page, *pages);
}

static void
test_units(void **unused)
{
	assert_int_equal(nv_slot_units(0), 1);
	assert_int_equal(nv_slot_units(12), 1);
	assert_int_equal(nv_slot_units(13), 2);
	assert_int_equal(nv_slot_units(96), 7);
	assert_int_equal(nv_slot_units(NV_MAX_DEGREE), 33);
}

static void
test_better_than_random(void **unused)
{
	float *rows = fix_points(POINTS, 1, false);
	uint32_t *page = nv_alloc_array(POINTS, sizeof(*page));
	uint32_t pages;
	uint64_t least;
	double greedy;
	double initial;
	double random;
	nv_graph g;

	fix_build(rows, POINTS, 48, 0, 2, &g);
	least = (all_units(&g) + NV_PAGE_UNITS - 1) / NV_PAGE_UNITS;
	place(&g, 0, true, 5, page, &pages);
	random = nv_place_quality(&g, page, pages);
	assert_true(pages <= least + least / 50 + 2);
	place(&g, 1, false, 5, page, &pages);
	initial = nv_place_quality(&g, page, pages);
	place(&g, 0, false, 5, page, &pages);
	greedy = nv_place_quality(&g, page, pages);
	assert_true(pages <= least + least / 25 + 2);
	if (greedy < BETTER_THAN_RANDOM * random)
		fail_msg("quality is %.4f, %.4f at random", greedy, random);
	assert_true(greedy > initial); /* rounds are worth something */
	assert_true(greedy <= 1.0);
	nv_graph_free(&g);
	free(rows);
	free(page);
}

static void
test_deterministic(void **unused)
{
	uint32_t n = 1000;
	float *rows = fix_points(n, 2, false);
	uint32_t *a = nv_alloc_array(n, sizeof(*a));
	uint32_t *b = nv_alloc_array(n, sizeof(*b));
	uint32_t pages_a;
	uint32_t pages_b;
	nv_graph g;

	fix_build(rows, n, 32, 0, 1, &g);
	for (int random = 0; random < 2; random++)
	{
		place(&g, 3, random, 9, a, &pages_a);
		place(&g, 3, random, 9, b, &pages_b);
		assert_int_equal(pages_a, pages_b);
		assert_memory_equal(a, b, n * sizeof(*a));
		place(&g, 3, random, 10, b, &pages_b);
		assert_memory_not_equal(a, b, n * sizeof(*a));
	}
	nv_graph_free(&g);
	free(rows);
	free(a);
	free(b);
}

/* n vertices with lists of given lengths to random others. */
static void
random_graph(uint32_t n, uint32_t least, uint32_t most, nv_graph *g)
{
	uint64_t state = nv_random_seed(3);

	g->n = n;
	g->medoid = 0;
	g->offset = nv_alloc_array(n + 1, sizeof(*g->offset));
	g->edges = nv_alloc_array((size_t) n * most + 1, sizeof(*g->edges));
	for (uint32_t v = 0; v < n; v++)
	{
		uint32_t degree =
			least + (uint32_t) nv_random_below(&state, most - least + 1);
		uint32_t first = (uint32_t) nv_random_below(&state, n);

		g->offset[v + 1] = g->offset[v];
		for (uint32_t i = 0; i < degree; i++)
			if ((first + i) % n != v)
				g->edges[g->offset[v + 1]++] = (first + i) % n;
	}
}

/* Lists of every length, up to more than half a page; without edges; one. */
static void
test_lengths(void **unused)
{
	static const struct
	{
		uint32_t n, least, most;
	} cases[] = {{900, 0, 511}, {900, 505, 512}, {700, 240, 260},
				 {1000, 0, 0},  {300, 12, 13},   {1, 0, 0},
				 {2, 0, 1},     {65, 0, 1},      {64, 0, 0}};
	uint32_t page[1000];
	uint32_t pages;

	for (size_t i = 0; i < NV_LENGTH(cases); i++)
	{
		nv_graph g;
		uint64_t least;

		random_graph(cases[i].n, cases[i].least, cases[i].most, &g);
		least = (all_units(&g) + NV_PAGE_UNITS - 1) / NV_PAGE_UNITS;
		for (int random = 0; random < 2; random++)
		{
			place(&g, 4, random, 1, page, &pages);
			/* Each page but one is more than half full, by first fit. */
			assert_true(pages <= 2 * least + 1);
			if (cases[i].most <= 13)
				assert_true(pages <= least + 1 + least / 25);
		}
		nv_graph_free(&g);
	}
}

/* A hand-computed value. */
static void
test_quality(void **unused)
{
	uint64_t offset[] = {0, 2, 3, 3, 4, 4};
	uint32_t edges[] = {1, 2, 0, 4};
	nv_graph g = {.n = 5, .offset = offset, .edges = edges};
	uint32_t page[] = {0, 0, 0, 1, 2};

	/* 0: two of two, 1: one of two, 2: none; 3 and 4 are alone. */
	assert_true(fabs(nv_place_quality(&g, page, 3) - 1.5 / 5) < 1e-12);
}

static bool
cancel_later(void *arg)
{
	uint32_t *left = arg;

	return (*left)-- == 0;
}

static void
test_cancel(void **unused)
{
	uint32_t n = 5000;
	uint32_t *page = nv_alloc_array(n, sizeof(*page));
	uint32_t pages;
	nv_graph g;

	random_graph(n, 5, 10, &g);
	for (int random = 0; random < 2; random++)
		for (uint32_t after = 0; after < 4; after++)
		{
			uint32_t left = after;
			nv_error err = {0};

			assert_int_equal(nv_place(&g, 2, random, 1, 1, cancel_later, &left,
									  page, &pages, &err),
							 NV_ECANCELLED);
			assert_int_equal(err.status, NV_ECANCELLED);
		}
	nv_graph_free(&g);
	free(page);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_units),
		cmocka_unit_test(test_better_than_random),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_quality),
		cmocka_unit_test(test_cancel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
