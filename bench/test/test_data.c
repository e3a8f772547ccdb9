/*
 * test_data.c
 *		The benchmarks' data: formats, refused files, exact neighbours against a
 *		plain double loop, the generator.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blas.h"
#include "truth.h"
#include "generate.h"
#include "navis/hash.h"
#include "util.h"

#define DIM 24
#define ROWS 900

static char dir[] = "/tmp/navis-bench-test-XXXXXX";

static const char *
in_dir(const char *name)
{
	static char paths[4][256];
	static int turn;
	char *path = paths[turn++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

static uint64_t
file_size(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t) st.st_size;
}

/* Small whole numbers, so that every format holds them; some rows are equal. */
static float *
make_rows(uint32_t n, uint32_t dim, uint64_t seed)
{
	float *rows = nv_alloc_array((size_t) n * dim, sizeof(float));
	uint64_t random = nv_random_seed(seed);

	for (size_t i = 0; i < (size_t) n * dim; i++)
		rows[i] = (float) nv_random_below(&random, 12);
	for (uint32_t i = 7; i < n; i += 7)
		memcpy(rows + (size_t) i * dim, rows + (size_t) (i / 2) * dim,
			   dim * sizeof(float));
	return rows;
}

static void
write_rows(const char *path, const float *rows, uint32_t n, uint32_t dim)
{
	bench_writer *w;

	assert_int_equal(bench_writer_create(path, BENCH_FLOAT, dim, &w, NULL),
					 NV_OK);
	assert_int_equal(bench_writer_add(w, rows, n / 3, NULL), NV_OK);
	assert_int_equal(
		bench_writer_add(w, rows + (size_t) (n / 3) * dim, n - n / 3, NULL),
		NV_OK);
	assert_int_equal(bench_writer_close(w, NULL), NV_OK);
}

/* --- Formats --- */

static void
check_format(const char *name, bench_element element, const float *rows)
{
	float *back = nv_alloc_array((size_t) ROWS * DIM, sizeof(float));
	const char *path = in_dir(name);
	bench_rows *r;

	write_rows(path, rows, ROWS, DIM);
	assert_int_equal(bench_rows_open(path, BENCH_FLOAT, &r, NULL), NV_OK);
	assert_int_equal(r->n, ROWS);
	assert_int_equal(r->dim, DIM);
	assert_int_equal(r->element, element);
	assert_int_equal(bench_rows_read(r, 0, ROWS, back, NULL), NV_OK);
	assert_memory_equal(back, rows, (size_t) ROWS * DIM * sizeof(float));
	/* Any window, the last row among them. */
	assert_int_equal(bench_rows_read(r, ROWS - 5, 5, back, NULL), NV_OK);
	assert_memory_equal(back, rows + (size_t) (ROWS - 5) * DIM,
						5 * DIM * sizeof(float));
	assert_int_equal(bench_rows_read(r, ROWS - 4, 5, back, NULL), NV_EINVAL);
	assert_int_equal(bench_rows_read_ids(r, 0, 1, (uint32_t *) back, NULL),
					 NV_EINVAL);
	bench_rows_close(r);
	free(back);
}

static void
test_formats(void **state)
{
	float *rows = make_rows(ROWS, DIM, 1);

	check_format("a.fbin", BENCH_FLOAT, rows);
	check_format("a.bin", BENCH_FLOAT, rows);
	check_format("a.u8bin", BENCH_UINT8, rows);
	check_format("a.fvecs", BENCH_FLOAT, rows);
	check_format("a.bvecs", BENCH_UINT8, rows);
	for (size_t i = 0; i < (size_t) ROWS * DIM; i++)
		rows[i] -= 6;
	check_format("a.i8bin", BENCH_INT8, rows);
	free(rows);
}

static void
check_ids(const char *name)
{
	uint32_t ids[6] = {1, 2, UINT32_MAX, 4, 0, 6}, back[6];
	const char *path = in_dir(name);
	bench_writer *w;
	bench_rows *r;

	assert_int_equal(bench_writer_create(path, BENCH_FLOAT, 3, &w, NULL),
					 NV_OK);
	assert_int_equal(bench_writer_add_ids(w, ids, 2, NULL), NV_OK);
	assert_int_equal(bench_writer_add(w, (float *) ids, 1, NULL), NV_EINVAL);
	assert_int_equal(bench_writer_close(w, NULL), NV_OK);
	assert_int_equal(bench_rows_open(path, BENCH_FLOAT, &r, NULL), NV_OK);
	assert_int_equal(bench_rows_read_ids(r, 0, 2, back, NULL), NV_OK);
	assert_memory_equal(back, ids, sizeof(ids));
	assert_int_equal(bench_rows_read(r, 0, 2, (float *) back, NULL), NV_EINVAL);
	bench_rows_close(r);
}

static void
test_ids(void **state)
{
	check_ids("a.ibin");
	check_ids("a.ivecs");
}

/* A file of another type than its name says, e.g. 8-bit values in a .bin. */
static void
test_bin_type(void **state)
{
	float *rows = make_rows(4, DIM, 2), back[4 * DIM];
	bench_writer *w;
	bench_rows *r;

	assert_int_equal(
		bench_writer_create(in_dir("t.bin"), BENCH_INT8, DIM, &w, NULL), NV_OK);
	assert_int_equal(bench_writer_add(w, rows, 4, NULL), NV_OK);
	assert_int_equal(bench_writer_close(w, NULL), NV_OK);
	assert_int_equal(file_size(in_dir("t.bin")), 8 + 4 * DIM);
	assert_int_equal(bench_rows_open(in_dir("t.bin"), BENCH_INT8, &r, NULL),
					 NV_OK);
	assert_int_equal(bench_rows_read(r, 0, 4, back, NULL), NV_OK);
	assert_memory_equal(back, rows, sizeof(back));
	bench_rows_close(r);
	assert_int_equal(bench_rows_open(in_dir("t.bin"), BENCH_FLOAT, &r, NULL),
					 NV_ECORRUPT);
	free(rows);
}

/* --- Files that are refused --- */

static void
check_refused(const char *path, nv_status expected, const char *words)
{
	bench_rows *r = NULL;
	nv_error err = {0};

	assert_int_equal(bench_rows_open(path, BENCH_FLOAT, &r, &err), expected);
	assert_non_null(strstr(err.detail, words));
}

static void
test_truncated(void **state)
{
	static const char *const names[] = {"c.fbin", "c.u8bin", "c.fvecs",
										"c.bvecs"};
	float *rows = make_rows(50, DIM, 3);

	for (size_t i = 0; i < NV_LENGTH(names); i++)
	{
		const char *path = in_dir(names[i]);
		uint64_t size;

		write_rows(path, rows, 50, DIM);
		size = file_size(path);
		assert_int_equal(truncate(path, (off_t) size - 1), 0);
		check_refused(path, NV_ECORRUPT, "expected");
		assert_int_equal(truncate(path, (off_t) size + 3), 0);
		check_refused(path, NV_ECORRUPT, "expected");
		assert_int_equal(truncate(path, 3), 0);
		check_refused(path, NV_ECORRUPT, "has 3 bytes");
	}
	check_refused(in_dir("none.fbin"), NV_ENOENT, "none.fbin");
	check_refused(in_dir("c.tsv"), NV_EINVAL, "unknown format");
	free(rows);
}

static void
test_inconsistent(void **state)
{
	float *rows = make_rows(50, DIM, 4), back[50 * DIM];
	uint32_t other = DIM - 1, zero = 0;
	nv_error err = {0};
	bench_rows *r;
	FILE *f;

	write_rows(in_dir("d.fvecs"), rows, 50, DIM);
	f = fopen(in_dir("d.fvecs"), "r+b");
	fseek(f, 20 * (DIM + 1) * 4, SEEK_SET);
	fwrite(&other, 4, 1, f);
	fclose(f);
	assert_int_equal(bench_rows_open(in_dir("d.fvecs"), BENCH_FLOAT, &r, NULL),
					 NV_OK);
	assert_int_equal(bench_rows_read(r, 0, 20, back, &err), NV_OK);
	assert_int_equal(bench_rows_read(r, 0, 50, back, &err), NV_ECORRUPT);
	assert_non_null(strstr(err.detail, "row 20"));
	bench_rows_close(r);
	f = fopen(in_dir("d.fbin"), "wb");
	fwrite(&zero, 4, 1, f);
	fwrite(&zero, 4, 1, f);
	fclose(f);
	check_refused(in_dir("d.fbin"), NV_ECORRUPT, "0 dimensions");
	free(rows);
}

static void
test_writer_refuses(void **state)
{
	float row[2] = {1, 0.5f}, large[2] = {1, 256};
	nv_error err = {0};
	bench_writer *w;

	assert_int_equal(
		bench_writer_create(in_dir("e.u8bin"), BENCH_FLOAT, 2, &w, NULL),
		NV_OK);
	assert_int_equal(bench_writer_add(w, row, 1, &err), NV_EINVAL);
	assert_non_null(strstr(err.detail, "0.5"));
	assert_int_equal(bench_writer_add(w, large, 1, &err), NV_EINVAL);
	bench_writer_abandon(w);
	assert_int_not_equal(access(in_dir("e.u8bin"), F_OK), 0);
	assert_int_not_equal(access(in_dir("e.u8bin.part"), F_OK), 0);
	assert_int_equal(
		bench_writer_create(in_dir("e.hdf5"), BENCH_FLOAT, 2, &w, &err),
		NV_EINVAL);
}

static void
test_truth_files(void **state)
{
	uint32_t ids[4] = {4, 3, 2, 1};
	float distances[4] = {0, 1, 2, 3};
	bench_truth t = {2, 2, ids, distances}, back;

	assert_int_equal(bench_truth_write(in_dir("gt.bin"), &t, NULL), NV_OK);
	assert_int_equal(bench_truth_read(in_dir("gt.bin"), &back, NULL), NV_OK);
	assert_memory_equal(back.ids, ids, sizeof(ids));
	assert_memory_equal(back.distances, distances, sizeof(distances));
	bench_truth_free(&back);
	assert_int_equal(truncate(in_dir("gt.bin"), 8 + sizeof(ids)), 0);
	assert_int_equal(bench_truth_read(in_dir("gt.bin"), &back, NULL), NV_OK);
	assert_null(back.distances);
	bench_truth_free(&back);
	assert_int_equal(truncate(in_dir("gt.bin"), 8 + sizeof(ids) + 1), 0);
	assert_int_equal(bench_truth_read(in_dir("gt.bin"), &back, NULL),
					 NV_ECORRUPT);
}

/* --- HDF5 --- */

#ifdef HAVE_HDF5
#include <hdf5.h>

static void
write_hdf5(const char *path, const float *rows, hsize_t n)
{
	hsize_t dims[2] = {n, DIM};
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
	hid_t space = H5Screate_simple(2, dims, NULL);
	hid_t set = H5Dcreate2(file, "train", H5T_IEEE_F32LE, space, H5P_DEFAULT,
						   H5P_DEFAULT, H5P_DEFAULT);

	H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows);
	H5Dclose(set);
	H5Sclose(space);
	H5Fclose(file);
}

static void
test_hdf5(void **state)
{
	float *rows = make_rows(50, DIM, 5), back[30 * DIM];
	char named[300];
	nv_error err = {0};
	bench_rows *r;

	write_hdf5(in_dir("a.hdf5"), rows, 50);
	snprintf(named, sizeof(named), "%s:train", in_dir("a.hdf5"));
	for (int i = 0; i < 2; i++)
	{
		assert_int_equal(bench_rows_open(i == 0 ? named : in_dir("a.hdf5"),
										 BENCH_FLOAT, &r, NULL),
						 NV_OK);
		assert_int_equal(r->n, 50);
		assert_int_equal(r->dim, DIM);
		assert_int_equal(bench_rows_read(r, 20, 30, back, NULL), NV_OK);
		assert_memory_equal(back, rows + 20 * DIM, sizeof(back));
		assert_int_equal(bench_rows_read(r, 21, 30, back, NULL), NV_EINVAL);
		bench_rows_close(r);
	}
	snprintf(named, sizeof(named), "%s:test", in_dir("a.hdf5"));
	assert_int_equal(bench_rows_open(named, BENCH_FLOAT, &r, &err), NV_ENOENT);
	assert_non_null(strstr(err.detail, "no dataset \"test\""));
	write_rows(in_dir("a.fbin"), rows, 50, DIM);
	assert_int_equal(rename(in_dir("a.fbin"), in_dir("b.hdf5")), 0);
	check_refused(in_dir("b.hdf5"), NV_ENOENT, "as HDF5");
	free(rows);
}
#else
static void
test_hdf5(void **state)
{
	check_refused(in_dir("a.hdf5"), NV_EINVAL, "without HDF5");
}
#endif

/* --- Exact neighbours --- */

#define QUERIES 70 /* more than one step */
#define K 9

/* The k nearest of rows [first, end), by nothing but nv_distance. */
static void
brute_force(const float *rows, uint64_t first, uint64_t end, const float *query,
			nv_metric metric, uint32_t *ids)
{
	double best[K];

	for (uint32_t i = 0; i < K; i++)
		best[i] = INFINITY;
	for (uint64_t row = first; row < end; row++)
	{
		double d = nv_distance(metric, query, rows + row * DIM, DIM);
		uint32_t at = K;

		while (at > 0 && d < best[at - 1])
			at--;
		if (at == K)
			continue;
		memmove(best + at + 1, best + at, (K - 1 - at) * sizeof(*best));
		memmove(ids + at + 1, ids + at, (K - 1 - at) * sizeof(*ids));
		best[at] = d;
		ids[at] = (uint32_t) row;
	}
}

static void
check_union(const bench_exact *exact, const float *rows, const float *queries,
			nv_metric metric, uint32_t first, uint32_t end,
			const uint64_t *bounds)
{
	bench_truth truth;

	assert_int_equal(bench_exact_union(exact, first, end, &truth, NULL), NV_OK);
	for (uint32_t q = 0; q < QUERIES; q++)
	{
		uint32_t ids[K];

		brute_force(rows, bounds[first], bounds[end], queries + q * DIM, metric,
					ids);
		assert_memory_equal(ids, truth.ids + q * K, sizeof(ids));
		for (uint32_t i = 0; i < K; i++)
			assert_float_equal(truth.distances[q * K + i],
							   (float) nv_distance(metric, queries + q * DIM,
												   rows + (size_t) ids[i] * DIM,
												   DIM),
							   0);
	}
	bench_truth_free(&truth);
}

/*
 * Rows [0, n + i batch) and [i batch, n + i batch) for every i, from one pass.
 * Values are few and rows repeat: ties.  Returns what was compared in full.
 */
static uint64_t
check_moving(nv_metric metric, float scale, uint64_t budget, uint32_t threads,
			 uint64_t n, uint64_t batch)
{
	float *rows = make_rows(ROWS, DIM, 6);
	float *queries = make_rows(QUERIES, DIM, 7);
	bench_exact_params p = {metric, K, threads, budget, NULL, 0};
	uint64_t *bounds = bench_moving_bounds(n, batch, ROWS, &p.n_blocks);
	bench_rows *base, *asked;
	bench_exact exact;
	uint64_t full;

	for (size_t i = 0; i < (size_t) ROWS * DIM; i++)
		rows[i] = rows[i] * scale + 1;
	write_rows(in_dir("base.fbin"), rows, ROWS, DIM);
	write_rows(in_dir("query.fbin"), queries, QUERIES, DIM);
	p.bounds = bounds;
	assert_int_equal(
		bench_rows_open(in_dir("base.fbin"), BENCH_FLOAT, &base, NULL), NV_OK);
	assert_int_equal(
		bench_rows_open(in_dir("query.fbin"), BENCH_FLOAT, &asked, NULL),
		NV_OK);
	assert_int_equal(bench_exact_run(base, asked, &p, &exact, NULL), NV_OK);
	for (uint64_t at = 0; n + at <= ROWS; at += batch)
	{
		uint32_t end = bench_bound_at(bounds, p.n_blocks, n + at);

		check_union(&exact, rows, queries, metric, 0, end, bounds);
		check_union(&exact, rows, queries, metric,
					bench_bound_at(bounds, p.n_blocks, at), end, bounds);
	}
	full = exact.full;
	bench_exact_free(&exact);
	bench_rows_close(base);
	bench_rows_close(asked);
	free(bounds);
	free(rows);
	free(queries);
	return full;
}

static void
test_exact(void **state)
{
	static const nv_metric metrics[] = {NV_METRIC_L2, NV_METRIC_IP,
										NV_METRIC_COSINE};

	for (size_t i = 0; i < NV_LENGTH(metrics); i++)
	{
		check_moving(metrics[i], 1, UINT64_C(1) << 30, 2, 600, 100);
		check_moving(metrics[i], 0.37f, UINT64_C(1) << 30, 1, 610, 140);
	}
	/* Far from the origin little is left of the product's precision. */
	assert_true(
		check_moving(NV_METRIC_L2, 1e-4f, UINT64_C(1) << 30, 2, 600, 100) > 0);
}

/* Values of an embedding: the product decides, and nothing is done in full. */
static void
test_exact_embeddings(void **state)
{
	enum
	{
		N = 5000,
		WIDE = 128
	};
	bench_exact_params p = {NV_METRIC_L2, K, 2, UINT64_C(1) << 30, NULL, 1};
	uint64_t bounds[2] = {0, N};
	float *rows = nv_alloc_array((size_t) N * WIDE, sizeof(float));
	bench_generator *g;
	bench_rows *base;
	bench_exact small, large;

	p.bounds = bounds;
	assert_int_equal(bench_generator_create(1, WIDE, 0, &g, NULL), NV_OK);
	for (uint32_t i = 0; i < N; i++)
		bench_generate(g, BENCH_STREAM_BASE, i, rows + (size_t) i * WIDE);
	write_rows(in_dir("e.fbin"), rows, N, WIDE);
	write_rows(in_dir("eq.fbin"), rows, 20, WIDE);
	assert_int_equal(
		bench_rows_open(in_dir("e.fbin"), BENCH_FLOAT, &base, NULL), NV_OK);
	for (int round = 0; round < 2; round++)
	{
		bench_rows *asked;

		assert_int_equal(
			bench_rows_open(in_dir("eq.fbin"), BENCH_FLOAT, &asked, NULL),
			NV_OK);
		assert_int_equal(bench_exact_run(base, asked, &p,
										 round == 0 ? &large : &small, NULL),
						 NV_OK);
		p.budget = UINT64_C(2000000); /* several partitions */
		bench_rows_close(asked);
	}
	assert_int_equal(large.full, 0);
	assert_true(small.partition < N && large.partition >= N);
	assert_memory_equal(small.near, large.near, 20 * K * sizeof(bench_near));
	/* Rows asked for themselves. */
	for (uint32_t q = 0; q < 20; q++)
		assert_int_equal(large.near[q * K].id, q);
	bench_exact_free(&small);
	bench_exact_free(&large);
	bench_rows_close(base);
	bench_generator_free(g);
	free(rows);
}

static void
test_exact_refuses(void **state)
{
	uint64_t bounds[2] = {0, 50};
	bench_exact_params p = {NV_METRIC_L2, K, 1, 10000, bounds, 1};
	float *rows = make_rows(50, DIM, 8);
	nv_error err = {0};
	bench_rows *base, *asked;
	bench_exact exact;
	bench_truth truth;

	write_rows(in_dir("f.fbin"), rows, 50, DIM);
	assert_int_equal(
		bench_rows_open(in_dir("f.fbin"), BENCH_FLOAT, &base, NULL), NV_OK);
	assert_int_equal(
		bench_rows_open(in_dir("f.fbin"), BENCH_FLOAT, &asked, NULL), NV_OK);
	assert_int_equal(bench_exact_run(base, asked, &p, &exact, &err), NV_ELIMIT);
	assert_non_null(strstr(err.detail, "budget"));
	p.budget = UINT64_C(1) << 30;
	bounds[1] = 51;
	assert_int_equal(bench_exact_run(base, asked, &p, &exact, &err), NV_EINVAL);
	assert_non_null(strstr(err.detail, "50 rows"));
	/* Fewer rows than neighbours. */
	bounds[1] = K - 1;
	assert_int_equal(bench_exact_run(base, asked, &p, &exact, &err), NV_OK);
	assert_int_equal(bench_exact_union(&exact, 0, 1, &truth, &err), NV_EINVAL);
	bench_exact_free(&exact);
	bench_rows_close(base);
	bench_rows_close(asked);
	free(rows);
}

/* --- The generator --- */

#define GENERATED 300
/* CRC-32C of the first rows below: the same with every compiler. */
#define GENERATED_CRC UINT32_C(0xcc455a3d)

static void
test_generator_is_fixed(void **state)
{
	float *rows = nv_alloc_array((size_t) GENERATED * 768, sizeof(float));
	float again[768];
	bench_generator *g;

	assert_int_equal(bench_generator_create(42, 768, 0, &g, NULL), NV_OK);
	for (uint32_t i = 0; i < GENERATED; i++)
	{
		bench_generate(g, BENCH_STREAM_BASE, i, rows + (size_t) i * 768);
		assert_true(fabs(nv_norm(rows + (size_t) i * 768, 768) - 1) < 1e-5);
	}
	assert_int_equal(
		nv_crc32c(0, rows, (size_t) GENERATED * 768 * sizeof(float)),
		GENERATED_CRC);
	/* Any row by itself; another stream is another row. */
	bench_generate(g, BENCH_STREAM_BASE, 123, again);
	assert_memory_equal(again, rows + 123 * 768, sizeof(again));
	bench_generate(g, BENCH_STREAM_QUERY, 123, again);
	assert_memory_not_equal(again, rows + 123 * 768, sizeof(again));
	bench_generator_free(g);
	assert_int_equal(bench_generator_create(42, 50, 0, &g, NULL), NV_EINVAL);
	free(rows);
}

/* Mean distance of rows [first, first + 200) to the nearest of rows below n. */
static double
mean_nearest(const float *rows, uint32_t first, uint32_t n, uint32_t dim)
{
	double sum = 0;

	for (uint32_t i = first; i < first + 200; i++)
	{
		double best = INFINITY;

		for (uint32_t j = 0; j < n; j++)
			if (j != i)
				best = fmin(best,
							nv_distance(NV_METRIC_L2, rows + (size_t) i * dim,
										rows + (size_t) j * dim, dim));
		sum += best;
	}
	return sum / 200;
}

/* New rows are farther from the old ones than these are from each other. */
static void
test_drift(void **state)
{
	enum
	{
		OLD = 3000,
		WIDE = 96
	};
	float *rows = nv_alloc_array((size_t) (OLD + 200) * WIDE, sizeof(float));
	double among, to;
	bench_generator *g;

	assert_int_equal(bench_generator_create(3, WIDE, OLD, &g, NULL), NV_OK);
	for (uint32_t i = 0; i < OLD + 200; i++)
		bench_generate(g, BENCH_STREAM_BASE, i, rows + (size_t) i * WIDE);
	among = mean_nearest(rows, 0, OLD, WIDE);
	to = mean_nearest(rows, OLD, OLD, WIDE);
	assert_true(to > among * 1.1);
	bench_generator_free(g);
	free(rows);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_bin_type),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_inconsistent),
		cmocka_unit_test(test_writer_refuses),
		cmocka_unit_test(test_truth_files),
		cmocka_unit_test(test_hdf5),
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_exact_embeddings),
		cmocka_unit_test(test_exact_refuses),
		cmocka_unit_test(test_generator_is_fixed),
		cmocka_unit_test(test_drift),
	};
	char command[300];
	int failed;

	if (mkdtemp(dir) == NULL)
		return 1;
	nv_blas_prepare();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	return system(command) == 0 ? failed : 1;
}
