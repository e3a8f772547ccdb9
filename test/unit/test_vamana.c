/*
 * test_vamana.c
 *		RobustPrune against a second implementation, and the graphs that
 *		nv_vamana_build makes.
 */
#include "graph_fixture.h"

#include <malloc.h>

#define SLACK_BYTES 65536
#define POINTS (SANITIZED ? 1200u : 5000u)

/* ---------- RobustPrune ---------- */

static const float *
row_vector(void *arg, uint32_t id)
{
	return fix_row(arg, id);
}

/* `count` distinct random candidates around a centre row. */
static void
draw_candidates(const float *rows, uint32_t n, uint32_t centre, uint32_t count,
				uint64_t *state, nv_candidate *cand)
{
	bool *taken = nv_alloc_array(n, sizeof(*taken));

	taken[centre] = true;
	for (uint32_t i = 0; i < count;)
	{
		uint32_t id = (uint32_t) nv_random_below(state, n);

		if (taken[id])
			continue;
		taken[id] = true;
		cand[i++] = (nv_candidate){
			nv_l2sq(fix_row(rows, centre), fix_row(rows, id), FIX_DIM), id};
	}
	free(taken);
}

/*
 * RobustPrune as the literature writes it: every pick updates the occlusion
 * ratio of all later candidates at once.  Sorted candidates in, ids out.
 */
static uint32_t
reference_prune(const float *rows, const nv_candidate *sorted, uint32_t count,
				uint32_t max_degree, double alpha, uint32_t *out)
{
	double *ratio = nv_alloc_array(count, sizeof(*ratio));
	bool *chosen = nv_alloc_array(count, sizeof(*chosen));
	uint32_t picks = 0;
	uint32_t kept = 0;

	for (double a = 1.0; picks < max_degree; a = fmin(a * 1.2, alpha))
	{
		for (uint32_t i = 0; i < count && picks < max_degree; i++)
		{
			if (chosen[i] || ratio[i] > a)
				continue;
			chosen[i] = true;
			picks++;
			for (uint32_t t = i + 1; t < count; t++)
			{
				double d = nv_l2sq(fix_row(rows, sorted[i].id),
								   fix_row(rows, sorted[t].id), FIX_DIM);
				double r = d == 0.0 ? INFINITY : sorted[t].dist / d;

				ratio[t] = fmax(ratio[t], r);
			}
		}
		if (a >= alpha)
			break;
	}
	for (uint32_t i = 0; i < count; i++)
		if (chosen[i])
			out[kept++] = sorted[i].id;
	free(ratio);
	free(chosen);
	return kept;
}

static void
test_prune_reference(void **unused)
{
	static const float alphas[] = {1.0f, 1.1f, 1.2f, 1.5f, 2.0f};
	float *rows = fix_points(1500, 1, false);
	void *scratch = nv_alloc(nv_prune_scratch_size());
	uint64_t state = nv_random_seed(5);
	uint64_t pruned = 0;
	nv_candidate cand[900];
	nv_candidate sorted[900];
	uint32_t got[900];
	uint32_t expected[900];

	for (uint32_t round = 0; round < (SANITIZED ? 60u : 300u); round++)
	{
		uint32_t count = 1 + (uint32_t) nv_random_below(&state, 300);
		uint32_t degree = 1 + (uint32_t) nv_random_below(&state, 96);
		float alpha = alphas[round % NV_LENGTH(alphas)];
		uint32_t centre = (uint32_t) nv_random_below(&state, 1500);
		uint32_t kept;
		uint32_t wanted;

		if (round % 10 == 9)
			count = 900; /* above the cap */
		draw_candidates(rows, 1500, centre, count, &state, cand);
		memcpy(sorted, cand, sizeof(cand));
		nv_candidate_sort(sorted, count);
		wanted =
			reference_prune(rows, sorted, NV_MIN(count, NV_PRUNE_CANDIDATES),
							degree, (double) alpha, expected);
		kept = nv_robust_prune(cand, count, degree, alpha, 0, FIX_DIM,
							   row_vector, rows, scratch, got);
		assert_int_equal(kept, wanted);
		assert_memory_equal(got, expected, kept * sizeof(*got));
		pruned += kept < NV_MIN(count, degree) ? 1 : 0;
	}
	/* Candidates must be occluded, or lists are plain nearest ones. */
	assert_true(pruned > (SANITIZED ? 20 : 100));
	free(rows);
	free(scratch);
}

/* Candidates with odd ids have an exact vector: a row of the second half. */
static const float *
exact_vector(void *arg, uint32_t id)
{
	return id % 2 == 1 ? fix_row(arg, id + 750) : NULL;
}

/* Rows of the first half as places; the rows are rounded to what those hold. */
#define PLACE_STEP 0x1p-9f

static int16_t rounded[750 * FIX_DIM];

static void
round_rows(float *rows)
{
	for (size_t i = 0; i < NV_LENGTH(rounded); i++)
	{
		rounded[i] = (int16_t) lrintf(rows[i] / PLACE_STEP);
		assert_true(abs(rounded[i]) < 16000);
		rows[i] = (float) rounded[i] * PLACE_STEP;
	}
}

static const int16_t *
rounded_place(void *arg, uint32_t id)
{
	return rounded + (size_t) id * FIX_DIM;
}

/* The candidates whose ids are odd, or even; returns how many. */
static uint32_t
of_parity(const nv_candidate *from, uint32_t count, uint32_t parity,
		  nv_candidate *to)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++)
		if (from[i].id % 2 == parity)
			to[n++] = from[i];
	return n;
}

/*
 * An error beyond all distances keeps exact candidates and decoded ones from
 * occluding each other: each kind is pruned by itself, by its own vectors.
 */
static void
test_prune_coded(void **unused)
{
	float *rows = fix_points(1500, 1, false);
	void *scratch = nv_alloc(nv_prune_scratch_size());
	nv_coded_places places = {.place = rounded_place,
							  .unit = (double) PLACE_STEP * PLACE_STEP,
							  .exact = exact_vector,
							  .error = 1e30f};
	nv_coded_places coded = {.place = rounded_place, .unit = places.unit};
	uint64_t state = nv_random_seed(6);
	uint32_t pruned = 0;

	round_rows(rows);
	for (uint32_t round = 0; round < 50; round++)
	{
		nv_candidate cand[200], copy[200], sorted[200], part[200];
		uint32_t got[200], expected[400], n, wanted, common = 0;

		draw_candidates(rows, 750, round, 200, &state, cand);
		memcpy(copy, cand, sizeof(cand));
		memcpy(sorted, cand, sizeof(cand));
		nv_candidate_sort(sorted, 200);
		n = of_parity(sorted, 200, 0, part);
		wanted = reference_prune(rows, part, n, 200, 1.2, expected);
		n = of_parity(sorted, 200, 1, part);
		wanted += reference_prune(rows + (size_t) 750 * FIX_DIM, part, n, 200,
								  1.2, expected + wanted);
		n = nv_robust_prune_coded(cand, 200, 200, 1.2f, 0, FIX_DIM, &places,
								  rows, scratch, got);
		assert_int_equal(n, wanted);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < wanted; k++)
				common += got[i] == expected[k];
		assert_int_equal(common, n);
		pruned += n < 200;
		/* Without exact ones nothing is added. */
		n = nv_robust_prune_coded(copy, 200, 200, 1.2f, 0, FIX_DIM, &coded,
								  rows, scratch, got);
		wanted = reference_prune(rows, sorted, 200, 200, 1.2, expected);
		assert_int_equal(n, wanted);
		assert_memory_equal(got, expected, n * sizeof(*got));
	}
	assert_int_equal(pruned, 50);
	free(rows);
	free(scratch);
}

/* Repeated ids count once; equal distances go by id. */
static void
test_prune_sets(void **unused)
{
	float rows[4 * FIX_DIM] = {0};
	void *scratch = nv_alloc(nv_prune_scratch_size());
	nv_candidate cand[6] = {{1, 2}, {1, 1}, {1, 3}, {1, 2}, {1, 3}, {1, 1}};
	uint32_t out[6];

	/* Three unit vectors: pairwise distance 2, none occludes another. */
	for (int i = 1; i < 4; i++)
		rows[i * FIX_DIM + i] = 1.0f;
	assert_int_equal(nv_robust_prune(cand, 6, 6, 1.2f, 0, FIX_DIM, row_vector,
									 rows, scratch, out),
					 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(out[i], i + 1);
	assert_int_equal(nv_robust_prune(cand, 0, 6, 1.2f, 3, FIX_DIM, row_vector,
									 rows, scratch, out),
					 0);
	free(scratch);
}

/* Saturation reaches fill_to exactly, with the nearest, in order. */
static void
test_prune_fill(void **unused)
{
	float *rows = fix_points(1000, 3, false);
	void *scratch = nv_alloc(nv_prune_scratch_size());
	uint64_t state = nv_random_seed(6);
	nv_candidate cand[200];
	uint32_t plain[200];
	uint32_t filled[200];

	for (uint32_t round = 0; round < 20; round++)
	{
		uint32_t kept;
		uint32_t more;
		uint32_t i = 0;

		draw_candidates(rows, 1000, round, 200, &state, cand);
		kept = nv_robust_prune(cand, 200, 96, 1.2f, 0, FIX_DIM, row_vector,
							   rows, scratch, plain);
		more = nv_robust_prune(cand, 200, 96, 1.2f, 40, FIX_DIM, row_vector,
							   rows, scratch, filled);
		assert_true(kept < 40); /* the data leaves something to fill */
		assert_int_equal(more, 40);
		/* The picks are all there; what was added is nearer than what was
		 * left out, so up to the last addition nothing is missing. */
		for (uint32_t j = 0; j < more; j++)
			i += i < kept && plain[i] == filled[j];
		assert_int_equal(i, kept);
		assert_int_equal(filled[0], cand[0].id);
		for (uint32_t j = 0, added = 0; added < 40 - kept; j++)
		{
			bool was_pick = false;

			assert_int_equal(filled[j], cand[j].id);
			for (uint32_t p = 0; p < kept; p++)
				was_pick |= plain[p] == filled[j];
			added += !was_pick;
		}
	}
	free(rows);
	free(scratch);
}

/* A hundred copies of one neighbour do not make up a filled list. */
static void
test_prune_copies(void **unused)
{
	float *rows = fix_points(200, 4, false);
	void *scratch = nv_alloc(nv_prune_scratch_size());
	nv_candidate cand[199];
	uint32_t out[199];
	uint32_t copies = 0;
	uint32_t kept;

	for (uint32_t i = 1; i < 100; i++)
		memcpy(rows + (size_t) i * FIX_DIM, rows, FIX_DIM * sizeof(float));
	for (uint32_t i = 1; i < 200; i++)
		cand[i - 1] =
			(nv_candidate){nv_l2sq(rows, fix_row(rows, i), FIX_DIM), i};
	kept = nv_robust_prune(cand, 199, 64, 1.2f, 32, FIX_DIM, row_vector, rows,
						   scratch, out);
	for (uint32_t i = 0; i < kept; i++)
		copies += out[i] < 100;
	assert_int_equal(kept, 32);
	assert_true(copies >= 1 && copies <= 16);
	free(rows);
	free(scratch);
}

/* ---------- graphs ---------- */

static void
check_recall(uint32_t threads, bool sorted)
{
	float *rows = fix_points(POINTS, 10, sorted);
	nv_graph g;
	double recall;

	fix_build(rows, POINTS, 48, 0, threads, &g);
	recall = fix_recall(&g, rows, 100, SANITIZED ? 20 : 100);
	if (recall < 0.95)
		fail_msg("recall@10 is %.3f at list size 100", recall);
	/* Diversity: far from full, far from empty. */
	assert_true(g.offset[POINTS] > 4 * (uint64_t) POINTS);
	assert_true(g.offset[POINTS] < 36 * (uint64_t) POINTS);
	nv_graph_free(&g);
	free(rows);
}

static void
test_recall(void **unused)
{
	check_recall(1, false);
	check_recall(2, false);
}

static void
test_recall_sorted(void **unused)
{
	check_recall(2, true);
}

#define TIGHT_CLUSTERS 40

/* Two groups far apart: `tight` rows of clusters close together, and a wide one
 * of the others. */
static float *
grouped_points(uint32_t n, uint32_t tight, uint64_t seed)
{
	uint64_t random = nv_random_seed(seed);
	float *rows = nv_alloc_array(n, FIX_DIM * sizeof(float));

	assert_non_null(rows);
	for (uint32_t i = 0; i < n; i++)
	{
		uint64_t centre =
			nv_random_seed(nv_random_below(&random, TIGHT_CLUSTERS));
		float *row = rows + (size_t) i * FIX_DIM;

		for (uint32_t j = 0; j < FIX_DIM; j++)
			row[j] = i < tight
						 ? 4.0f * fix_uniform(&centre) + fix_uniform(&random)
						 : 256.0f * fix_uniform(&random) - 300.0f;
	}
	return rows;
}

/* The nearest of every 64th row, as an entrance graph would give it. */
static uint32_t
enter(const float *rows, uint32_t n, const float *query)
{
	uint32_t best = 0;
	float best_dist = INFINITY;

	for (uint32_t v = 0; v < n; v += 64)
	{
		float dist = nv_l2sq(query, fix_row(rows, v), FIX_DIM);

		if (dist < best_dist)
			best = v;
		best_dist = NV_MIN(best_dist, dist);
	}
	return best;
}

static uint32_t
found_in_tight_group(uint64_t seed, uint32_t queries)
{
	uint32_t n = 2200, tight = 1200, hits = 0;
	float *rows = grouped_points(n, tight, seed);
	float *query = grouped_points(queries, queries, 77);
	nv_candidate *found = nv_alloc_array(100, sizeof(*found));
	nv_vamana_params params = {.max_degree = 24,
							   .list_size = 40,
							   .alpha = 1.2f,
							   .fill_to = 8,
							   .threads = 1};
	nv_graph g;
	nv_error err;

	assert_non_null(found);
	assert_int_equal(
		nv_vamana_build(&params, rows, FIX_DIM, n, FIX_DIM, &g, &err), NV_OK);
	fix_check_graph(&g, rows, n, 24);
	for (uint32_t q = 0; q < queries; q++)
	{
		nv_candidate exact[10];
		uint32_t count;

		g.medoid = enter(rows, n, fix_row(query, q));
		count = fix_search(&g, rows, fix_row(query, q), 100, found);
		fix_nearest(rows, n, fix_row(query, q), 10, exact);
		for (uint32_t i = 0; i < NV_MIN(10, count); i++)
			hits += found[i].dist <= exact[9].dist;
	}
	nv_graph_free(&g);
	free(rows);
	free(query);
	free(found);
	return hits;
}

/*
 * The rows of a group find each other, wherever the medoid lies.  With searches
 * that only begin at the medoid, half of them were lost in one build of five.
 */
static void
test_groups(void **unused)
{
	uint32_t queries = SANITIZED ? 10 : 50;

	for (uint64_t seed = 1; seed <= 8; seed++)
	{
		uint32_t hits = found_in_tight_group(seed, queries);

		if (hits < 0.95 * 10 * queries)
			fail_msg("recall@10 is %.3f in the tight group, seed %d",
					 hits / (10.0 * queries), (int) seed);
	}
}

/* Many small lists: overflows and the hard cap, four threads at once. */
static void
test_overflow(void **unused)
{
	uint32_t n = SANITIZED ? 800 : 3000;
	float *rows = fix_points(n, 11, false);
	nv_graph g;

	for (uint32_t degree = 1; degree <= 9; degree += 2)
	{
		fix_build(rows, n, degree, degree / 2, 4, &g);
		nv_graph_free(&g);
	}
	free(rows);
}

static void
test_medoid(void **unused)
{
	float *rows = fix_points(500, 12, false);
	float mean[FIX_DIM] = {0};
	nv_candidate nearest[2];
	nv_graph g;

	for (uint32_t i = 0; i < 500; i++)
		for (uint32_t j = 0; j < FIX_DIM; j++)
			mean[j] += rows[(size_t) i * FIX_DIM + j] / 500.0f;
	fix_nearest(rows, 500, mean, 2, nearest);
	fix_build(rows, 500, 16, 0, 3, &g);
	assert_int_equal(g.medoid, nearest[0].id);
	nv_graph_free(&g);
	free(rows);
}

static void
test_fill_in_build(void **unused)
{
	uint32_t n = SANITIZED ? 800 : 3000;
	float *rows = fix_points(n, 13, false);
	nv_graph plain;
	nv_graph filled;
	uint32_t reached = 0;

	fix_build(rows, n, 64, 0, 2, &plain);
	fix_build(rows, n, 64, 32, 2, &filled);
	for (uint32_t v = 0; v < n; v++)
		reached += filled.offset[v + 1] - filled.offset[v] >= 32;
	assert_true(reached > n * 9 / 10);
	assert_true(filled.offset[n] > plain.offset[n]);
	nv_graph_free(&plain);
	nv_graph_free(&filled);
	free(rows);
}

static void
test_deterministic(void **unused)
{
	uint32_t n = SANITIZED ? 500 : 2000;
	float *rows = fix_points(n, 14, false);
	nv_graph a;
	nv_graph b;

	fix_build(rows, n, 24, 8, 1, &a);
	fix_build(rows, n, 24, 8, 1, &b);
	assert_int_equal(a.medoid, b.medoid);
	assert_memory_equal(a.offset, b.offset, (n + 1) * sizeof(*a.offset));
	assert_memory_equal(a.edges, b.edges, a.offset[n] * sizeof(*a.edges));
	nv_graph_free(&a);
	nv_graph_free(&b);
	free(rows);
}

/* Copies in graph space: of everything, and of a part. */
static void
test_copies(void **unused)
{
	uint32_t n = SANITIZED ? 400 : 1500;
	float *rows = fix_points(n, 15, false);
	nv_candidate found[64];
	nv_graph g;
	double recall;

	for (uint32_t i = n / 3; i < n; i++)
		memcpy(rows + (size_t) i * FIX_DIM, fix_row(rows, n / 3),
			   FIX_DIM * sizeof(float));
	fix_build(rows, n, 16, 8, 2, &g);
	recall = fix_recall(&g, rows, 64, 40);
	if (recall < 0.9)
		fail_msg("recall@10 is %.3f beside copies", recall);
	/* Whoever asks for the copies gets as many as the list holds. */
	assert_int_equal(fix_search(&g, rows, fix_row(rows, n / 3), 64, found), 64);
	for (uint32_t i = 0; i < 64; i++)
		assert_true(found[i].dist == 0.0f);
	nv_graph_free(&g);

	memset(rows, 0, (size_t) n * FIX_DIM * sizeof(float));
	fix_build(rows, n, 8, 4, 2, &g);
	nv_graph_free(&g);
	free(rows);
}

static void
test_tiny(void **unused)
{
	float *rows = fix_points(40, 16, false);
	nv_graph g;

	for (uint32_t n = 1; n <= 40; n += n < 4 ? 1 : 9)
		for (uint32_t degree = 1; degree <= 4; degree++)
		{
			fix_build(rows, n, degree, 0, 2, &g);
			assert_true(n == 1 || g.offset[n] >= n - 1);
			nv_graph_free(&g);
		}
	free(rows);
}

static void
test_bad_params(void **unused)
{
	float *rows = fix_points(10, 17, false);
	nv_vamana_params good = {
		.max_degree = 8, .list_size = 16, .alpha = 1.2f, .threads = 1};
	nv_vamana_params bad[6];
	nv_graph g;

	for (size_t i = 0; i < NV_LENGTH(bad); i++)
		bad[i] = good;
	bad[0].max_degree = 0;
	bad[1].max_degree = NV_MAX_DEGREE + 1;
	bad[2].list_size = 0;
	bad[3].fill_to = 5;
	bad[4].alpha = 0.9f;
	bad[5].alpha = NAN;
	for (size_t i = 0; i < NV_LENGTH(bad); i++)
	{
		nv_error err = {0};

		assert_int_equal(
			nv_vamana_build(&bad[i], rows, FIX_DIM, 10, FIX_DIM, &g, &err),
			NV_EINVAL);
		assert_int_equal(err.status, NV_EINVAL);
		assert_null(g.edges);
	}
	assert_int_equal(
		nv_vamana_build(&good, rows, FIX_DIM, 0, FIX_DIM, &g, NULL), NV_ELIMIT);
	free(rows);
}

/* ---------- cancel, progress, memory ---------- */

typedef struct hook
{
	_Atomic uint32_t calls;
	uint32_t cancel_at;  /* this call and all later ones cancel; 0: never */
	_Atomic size_t most; /* bytes in use seen */
} hook;

static size_t
bytes_in_use(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static bool
on_cancel(void *arg)
{
	hook *h = arg;
	uint32_t call = atomic_fetch_add(&h->calls, 1) + 1;

	if (!SANITIZED)
	{
		size_t now = bytes_in_use();

		if (now > atomic_load(&h->most))
			atomic_store(&h->most, now);
	}
	return h->cancel_at != 0 && call >= h->cancel_at;
}

static nv_status
build_hooked(const float *rows, uint32_t n, hook *h, uint32_t threads,
			 _Atomic uint64_t *done, nv_graph *g)
{
	nv_vamana_params params = {.max_degree = 96,
							   .list_size = 100,
							   .alpha = 1.2f,
							   .threads = threads,
							   .done = done,
							   .cancel = on_cancel,
							   .cancel_arg = h};

	return nv_vamana_build(&params, rows, FIX_DIM, n, FIX_DIM, g, NULL);
}

static void
test_cancel(void **unused)
{
	uint32_t n = SANITIZED ? 1200 : 2000;
	float *rows = fix_points(n, 18, false);
	hook count = {0};
	nv_graph g;

	assert_int_equal(build_hooked(rows, n, &count, 1, NULL, &g), NV_OK);
	nv_graph_free(&g);
	assert_true(count.calls >= 4);
	for (uint32_t at = 1; at <= count.calls; at += 1 + count.calls / 8)
		for (uint32_t threads = 1; threads <= 2; threads++)
		{
			hook h = {.cancel_at = at};
			_Atomic uint64_t done = 0;

			/* With two threads each counts its own work, so the last
			 * questions may not be asked. */
			if (threads == 2 && at > count.calls / 2)
				continue;
			assert_int_equal(build_hooked(rows, n, &h, threads, &done, &g),
							 NV_ECANCELLED);
			assert_null(g.edges);
			assert_null(g.offset);
			/* At most each thread asks once more. */
			assert_true(h.calls <= at + threads);
			assert_true(done < n || at + 2 > count.calls);
		}
	free(rows);
}

static void
test_progress(void **unused)
{
	float *rows = fix_points(700, 19, false);
	hook h = {0};
	_Atomic uint64_t done = 0;
	nv_graph g;

	assert_int_equal(build_hooked(rows, 700, &h, 2, &done, &g), NV_OK);
	assert_true(done == 700);
	nv_graph_free(&g);
	free(rows);
}

/* What the allocator says while build and placement run stays in the bound. */
static void
test_memory(void **unused)
{
	uint32_t n = 6000;
	float *rows;
	uint32_t *page;
	uint32_t pages;
	hook h = {0};
	size_t before;
	uint64_t bound = nv_vamana_memory(n, 96, 2);
	nv_graph g;

	if (SANITIZED)
		skip(); /* mallinfo2 does not see a sanitizer's heap */
	rows = fix_points(n, 20, false);
	page = nv_alloc_array(n, sizeof(*page));
	before = bytes_in_use();
	assert_int_equal(build_hooked(rows, n, &h, 2, NULL, &g), NV_OK);
	assert_true(h.most > before + (size_t) n * 96 * 4); /* it does see ours */
	assert_true(h.most - before <= bound);
	/* The finished graph holds its edges, not the room they had. */
	assert_true(bytes_in_use() - before <= g.offset[n] * sizeof(uint32_t) +
											   (n + 1) * sizeof(uint64_t) +
											   SLACK_BYTES);
	h.most = 0;
	assert_int_equal(
		nv_place(&g, 0, false, 1, 1, on_cancel, &h, page, &pages, NULL), NV_OK);
	assert_true(h.most > before + g.offset[n] * sizeof(uint32_t));
	assert_true(h.most - before <= bound);
	nv_graph_free(&g);
	/* The C library keeps a little for threads that ended. */
	assert_true(bytes_in_use() <= before + SLACK_BYTES);
	free(rows);
	free(page);
}

/* --- delta prune --- */

#define DELTA 12u

/* A full list and a newcomer, the last: rows as given, centre at 0. */
static uint32_t
delta(float rows[DELTA][FIX_DIM], bool must_stay)
{
	static const float centre[FIX_DIM];
	nv_candidate cand[DELTA];
	const float *vector[DELTA];

	for (uint32_t i = 0; i < DELTA; i++)
	{
		vector[i] = rows[i];
		cand[i] = (nv_candidate){nv_l2sq(centre, rows[i], FIX_DIM), 100 + i};
	}
	return nv_delta_prune(cand, vector, DELTA, DELTA - 1, must_stay, 1.2f,
						  FIX_DIM);
}

/* Each in a direction of its own: none occludes another. */
static void
make_apart(float rows[DELTA][FIX_DIM])
{
	memset(rows, 0, DELTA * sizeof(rows[0]));
	for (uint32_t i = 0; i < DELTA; i++)
		rows[i][i] = 1.0f + 0.01f * (float) (i * 5 % DELTA);
}

static void
test_delta(void **unused)
{
	float rows[DELTA][FIX_DIM];

	/* Nothing is occluded: the farthest goes, 5 * 7 % 12 = 11. */
	make_apart(rows);
	assert_int_equal(delta(rows, false), 7);
	/* The newcomer is the farthest. */
	rows[DELTA - 1][DELTA - 1] = 3.0f;
	assert_int_equal(delta(rows, false), DELTA - 1);
	assert_int_equal(delta(rows, true), 7);
	/* It lies before another, which goes though others are farther. */
	make_apart(rows);
	rows[DELTA - 1][DELTA - 1] = 0.0f;
	rows[DELTA - 1][2] = 0.9f;
	assert_int_equal(delta(rows, false), 2);
	/* It lies behind another. */
	rows[DELTA - 1][2] = 1.2f;
	assert_int_equal(delta(rows, false), DELTA - 1);
	assert_int_not_equal(delta(rows, true), DELTA - 1);
	/* Of two old ones one is behind the other. */
	make_apart(rows);
	memcpy(rows[4], rows[3], sizeof(rows[3]));
	rows[4][3] += 0.02f;
	assert_int_equal(delta(rows, false), 4);
	/* A copy of a listed one: one of the two. */
	make_apart(rows);
	memcpy(rows[DELTA - 1], rows[6], sizeof(rows[6]));
	assert_int_equal(delta(rows, false), DELTA - 1);
	assert_int_not_equal(delta(rows, true), DELTA - 1);
}

/* Whatever goes, it is in the list; who must stay does. */
static void
test_delta_random(void **unused)
{
	uint32_t newcomers = 0;

	for (uint32_t round = 0; round < 500; round++)
	{
		float *points = fix_points(DELTA, round + 1000, false);
		float rows[DELTA][FIX_DIM];
		uint32_t goes;

		memcpy(rows, points, sizeof(rows));
		free(points);
		goes = delta(rows, false);
		assert_true(goes < DELTA);
		newcomers += goes == DELTA - 1;
		assert_true(delta(rows, true) < DELTA - 1);
	}
	assert_true(newcomers > 10 && newcomers < 400);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prune_reference),
		cmocka_unit_test(test_prune_coded),
		cmocka_unit_test(test_prune_sets),
		cmocka_unit_test(test_prune_fill),
		cmocka_unit_test(test_prune_copies),
		cmocka_unit_test(test_recall),
		cmocka_unit_test(test_recall_sorted),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_medoid),
		cmocka_unit_test(test_fill_in_build),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_tiny),
		cmocka_unit_test(test_bad_params),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_delta),
		cmocka_unit_test(test_delta_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
