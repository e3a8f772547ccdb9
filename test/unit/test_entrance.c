/*
 * test_entrance.c
 *		The entrance graph: what it finds, tombstones, the flat form.
 */
#include "graph_fixture.h"

#include "entrance.h"

#define POINTS 4000u
#define SIZE_OF(ent) nv_entrance_scratch_size(ent)

static nv_entrance *
build(const float *rows, uint32_t n, float ratio, uint64_t seed)
{
	nv_entrance *ent;
	nv_error err = {0};

	assert_int_equal(nv_entrance_build(rows, FIX_DIM, n, FIX_DIM, ratio, 32,
									   1.2f, 2, seed, NULL, NULL, &ent, &err),
					 NV_OK);
	assert_non_null(ent);
	return ent;
}

static void *
new_scratch(const nv_entrance *ent)
{
	void *scratch = nv_alloc(nv_entrance_scratch_size(ent));

	assert_non_null(scratch);
	return scratch;
}

/* The nearest live member by brute force. */
static nv_candidate
nearest_member(const nv_entrance *ent, const float *rows, uint32_t n,
			   const bool *dead, const float *query)
{
	nv_candidate best = {INFINITY, UINT32_MAX};

	for (uint32_t v = 0; v < n; v++)
	{
		float d = nv_l2sq(query, fix_row(rows, v), FIX_DIM);

		if (nv_entrance_member(ent, v) && d < best.dist &&
			(dead == NULL || !dead[v]))
			best = (nv_candidate){d, v};
	}
	return best;
}

static void
test_sample(void **unused)
{
	float *rows = fix_points(POINTS, 1, false);
	nv_entrance *a = build(rows, POINTS, 0.05f, 3);
	nv_entrance *b = build(rows, POINTS, 0.05f, 4);
	uint32_t members = 0;
	uint32_t low = 0;
	uint32_t common = 0;

	for (uint32_t v = 0; v < POINTS; v++)
	{
		bool in = nv_entrance_member(a, v);

		members += in;
		low += in && v < POINTS / 2;
		common += in && nv_entrance_member(b, v);
	}
	assert_int_equal(nv_entrance_count(a), 200);
	assert_int_equal(members, 200);
	assert_false(nv_entrance_member(a, POINTS));
	assert_false(nv_entrance_member(a, UINT32_MAX));
	/* Uniform: about half in each half (5 deviations), seeds matter. */
	assert_true(low > 65 && low < 135);
	assert_true(common < 40);
	assert_true(nv_entrance_memory(a) > 200u * FIX_DIM * 2);
	nv_entrance_free(a);
	nv_entrance_free(b);
	free(rows);
}

/* Entry quality, order, and distances in graph space at any magnitude. */
static void
check_search(float factor)
{
	float *rows = fix_points(POINTS, 2, false);
	float *query = fix_points(100, 50, false);
	uint32_t found_nearest = 0;
	nv_entrance *ent;
	void *scratch;

	for (size_t i = 0; i < (size_t) POINTS * FIX_DIM; i++)
		rows[i] *= factor;
	for (size_t i = 0; i < 100 * FIX_DIM; i++)
		query[i] *= factor;
	ent = build(rows, POINTS, 0.1f, 5);
	scratch = new_scratch(ent);
	for (uint32_t q = 0; q < 100; q++)
	{
		nv_candidate out[10];
		const float *at = fix_row(query, q);
		nv_candidate best = nearest_member(ent, rows, POINTS, NULL, at);

		assert_int_equal(nv_entrance_search(ent, at, NV_ENTRANCE_LIST, 10,
											scratch, SIZE_OF(ent), out),
						 10);
		for (uint32_t i = 0; i < 10; i++)
		{
			float d = nv_l2sq(at, fix_row(rows, out[i].id), FIX_DIM);

			assert_true(nv_entrance_member(ent, out[i].id));
			assert_true(fabsf(out[i].dist - d) <= 0.01f * d);
			assert_true(i == 0 || out[i].dist >= out[i - 1].dist);
			for (uint32_t j = 0; j < i; j++)
				assert_true(out[j].id != out[i].id);
		}
		/* Halves may swap members that are equally near. */
		found_nearest += out[0].dist <= best.dist * 1.01f;
	}
	if (found_nearest < 90)
		fail_msg("nearest member found for %u of 100", found_nearest);
	nv_entrance_free(ent);
	free(scratch);
	free(rows);
	free(query);
}

static void
test_search(void **unused)
{
	check_search(1.0f);
}

/* Beyond what a half can hold. */
static void
test_magnitudes(void **unused)
{
	check_search(1e7f);
	check_search(1e-9f);
}

static void
test_drop(void **unused)
{
	float *rows = fix_points(1000, 6, false);
	nv_entrance *ent = build(rows, 1000, 0.2f, 7);
	void *scratch = new_scratch(ent);
	bool dead[1000] = {false};
	uint32_t left = nv_entrance_count(ent);
	uint32_t v = 0;
	nv_candidate out[20];

	for (; left > 0; left--)
	{
		const float *query = fix_row(rows, (left * 37) % 1000);
		uint32_t count =
			nv_entrance_search(ent, query, 10, 20, scratch, SIZE_OF(ent), out);

		/* The list grows past the dead ones; all are in its reach here. */
		assert_int_equal(count, NV_MIN(left, 20));
		for (uint32_t i = 0; i < count; i++)
			assert_false(dead[out[i].id]);
		if (left <= 20) /* then the answer is complete, hence exact */
		{
			nv_candidate best = nearest_member(ent, rows, 1000, dead, query);

			assert_true(out[0].dist <= best.dist * 1.01f + 1e-3f);
		}
		while (!nv_entrance_member(ent, v))
			v++;
		dead[v] = true;
		nv_entrance_drop(ent, v);
		nv_entrance_drop(ent, v); /* twice is once */
		assert_true(nv_entrance_member(ent, v++));
	}
	assert_int_equal(
		nv_entrance_search(ent, rows, 10, 20, scratch, SIZE_OF(ent), out), 0);
	/* Not members: nothing happens. */
	nv_entrance_drop(ent, 1000);
	nv_entrance_drop(ent, UINT32_MAX);
	nv_entrance_free(ent);
	free(scratch);
	free(rows);
}

static void
test_tiny(void **unused)
{
	float *rows = fix_points(3, 8, false);
	nv_candidate out[5];
	nv_entrance *ent;

	for (uint32_t n = 1; n <= 3; n++)
		for (int all = 0; all < 2; all++)
		{
			uint32_t count = all ? n : 1;
			void *scratch;

			ent = build(rows, n, all ? 1.0f : 0.0f, 9);
			scratch = new_scratch(ent);
			assert_int_equal(nv_entrance_count(ent), count);
			assert_int_equal(nv_entrance_search(ent, rows, 10, 5, scratch,
												SIZE_OF(ent), out),
							 count);
			assert_true(out[0].id < n);
			nv_entrance_free(ent);
			free(scratch);
		}
	assert_int_equal(nv_entrance_build(rows, FIX_DIM, 0, FIX_DIM, 0.1f, 32,
									   1.2f, 1, 1, NULL, NULL, &ent, NULL),
					 NV_EINVAL);
	memset(rows, 0, 3 * FIX_DIM * sizeof(float)); /* no largest component */
	ent = build(rows, 3, 1.0f, 10);
	nv_entrance_free(ent);
	free(rows);
}

static bool
cancel_now(void *arg)
{
	return true;
}

static void
test_cancel(void **unused)
{
	float *rows = fix_points(2000, 11, false);
	nv_entrance *ent;
	nv_error err = {0};

	assert_int_equal(nv_entrance_build(rows, FIX_DIM, 2000, FIX_DIM, 1.0f, 32,
									   1.2f, 2, 1, cancel_now, NULL, &ent,
									   &err),
					 NV_ECANCELLED);
	assert_null(ent);
	free(rows);
}

static uint8_t *
save(const nv_entrance *ent, size_t *size)
{
	uint8_t *bytes;

	*size = nv_entrance_saved_size(ent);
	bytes = malloc(*size); /* exact, so that ASan sees a byte too many */
	assert_non_null(bytes);
	nv_entrance_save(ent, bytes);
	return bytes;
}

static void
test_save(void **unused)
{
	float *rows = fix_points(1500, 12, false);
	nv_entrance *ent = build(rows, 1500, 0.1f, 13);
	void *scratch = new_scratch(ent);
	nv_entrance *loaded;
	nv_error err = {0};
	uint8_t *bytes;
	uint8_t *again;
	size_t size;
	size_t size_again;

	for (uint32_t v = 0; v < 1500; v += 3)
		nv_entrance_drop(ent, v);
	bytes = save(ent, &size);
	assert_int_equal(
		nv_entrance_load(bytes, size, 1500, FIX_DIM, &loaded, &err), NV_OK);
	again = save(loaded, &size_again);
	assert_int_equal(size, size_again);
	assert_memory_equal(bytes, again, size);
	assert_int_equal(nv_entrance_scratch_size(ent),
					 nv_entrance_scratch_size(loaded));
	for (uint32_t q = 0; q < 50; q++)
	{
		nv_candidate a[10];
		nv_candidate b[10];

		assert_int_equal(nv_entrance_search(ent, fix_row(rows, q), 10, 10,
											scratch, SIZE_OF(ent), a),
						 10);
		assert_int_equal(nv_entrance_search(loaded, fix_row(rows, q), 10, 10,
											scratch, SIZE_OF(loaded), b),
						 10);
		assert_memory_equal(a, b, sizeof(a));
		for (uint32_t i = 0; i < 10; i++)
			assert_true(a[i].id % 3 != 0);
	}
	nv_entrance_free(ent);
	nv_entrance_free(loaded);
	free(bytes);
	free(again);
	free(scratch);
	free(rows);
}

/* Loads damaged bytes; what is accepted must be searchable and in bounds. */
static bool
load_damaged(const uint8_t *bytes, size_t size, const float *query)
{
	nv_entrance *loaded;
	nv_error err = {0};
	nv_status status =
		nv_entrance_load(bytes, size, 100, FIX_DIM, &loaded, &err);
	nv_candidate out[10];
	uint32_t count;
	void *scratch;

	if (status != NV_OK)
	{
		assert_true(status == NV_ECORRUPT || status == NV_EVERSION);
		assert_int_equal(err.status, status);
		assert_null(loaded);
		return false;
	}
	scratch = new_scratch(loaded);
	count = nv_entrance_search(loaded, query, 10, 10, scratch, SIZE_OF(loaded),
							   out);
	for (uint32_t i = 0; i < count; i++)
		assert_true(out[i].id < 100 && !isnan(out[i].dist));
	free(scratch);
	nv_entrance_free(loaded);
	return true;
}

/* A list that names a member twice, or its own; edges end the flat form. */
static void
check_bad_list(uint8_t *bytes, size_t size, const float *query)
{
	uint64_t edges;
	uint32_t *edge;
	uint32_t degree;
	uint32_t second;

	memcpy(&edges, bytes + 24, sizeof(edges));
	edge = (uint32_t *) (bytes + size) - edges;
	memcpy(&degree, edge - 30, sizeof(degree)); /* of the first of 30 */
	assert_true(degree >= 2);
	second = edge[1];
	edge[1] = edge[0];
	assert_false(load_damaged(bytes, size, query));
	edge[1] = 0;
	assert_false(load_damaged(bytes, size, query));
	edge[1] = 30;
	assert_false(load_damaged(bytes, size, query));
	edge[1] = second;
	assert_true(load_damaged(bytes, size, query));
}

static void
test_corruption(void **unused)
{
	float *rows = fix_points(100, 14, false);
	nv_entrance *ent = build(rows, 100, 0.3f, 15);
	size_t size;
	uint8_t *bytes = save(ent, &size);
	size_t head = 32;
	nv_entrance *loaded;
	uint32_t rejected = 0;

	assert_true(load_damaged(bytes, size, rows));
	for (size_t len = 0; len < size; len += len < 2 * head ? 1 : 7)
	{
		uint8_t *cut = malloc(NV_MAX(len, 1));

		memcpy(cut, bytes, len);
		assert_false(load_damaged(cut, len, rows));
		free(cut);
	}
	for (size_t at = 0; at < size; at++)
	{
		static const uint8_t flips[] = {0x01, 0x80, 0xff};

		for (size_t f = 0; f < NV_LENGTH(flips); f++)
		{
			bytes[at] ^= flips[f];
			rejected += !load_damaged(bytes, size, rows);
			bytes[at] ^= flips[f];
		}
	}
	assert_true(rejected > 500);
	check_bad_list(bytes, size, rows);
	/* Other index: other dimensions, fewer vertices. */
	assert_int_equal(
		nv_entrance_load(bytes, size, 100, FIX_DIM - 1, &loaded, NULL),
		NV_ECORRUPT);
	assert_int_equal(nv_entrance_load(bytes, size, 20, FIX_DIM, &loaded, NULL),
					 NV_ECORRUPT);
	bytes[4]++;
	assert_int_equal(nv_entrance_load(bytes, size, 100, FIX_DIM, &loaded, NULL),
					 NV_EVERSION);
	nv_entrance_free(ent);
	free(bytes);
	free(rows);
}

/* ---------- searches while members are dropped ---------- */

typedef struct dropper
{
	nv_entrance *ent;
	uint32_t n;
} dropper;

static void *
drop_all(void *arg)
{
	dropper *d = arg;

	for (uint32_t v = 0; v < d->n; v++)
		nv_entrance_drop(d->ent, v);
	return NULL;
}

static void
test_concurrent_drop(void **unused)
{
	float *rows = fix_points(1000, 16, false);
	nv_entrance *ent = build(rows, 1000, 0.2f, 17);
	void *scratch = new_scratch(ent);
	dropper d = {ent, 1000};
	nv_candidate out[10];
	pthread_t threads[2];

	for (int t = 0; t < 2; t++)
		assert_int_equal(pthread_create(&threads[t], NULL, drop_all, &d), 0);
	for (uint32_t q = 0; q < 100; q++)
		assert_true(nv_entrance_search(ent, fix_row(rows, q), 10, 10, scratch,
									   SIZE_OF(ent), out) <= 10);
	for (int t = 0; t < 2; t++)
		pthread_join(threads[t], NULL);
	assert_int_equal(
		nv_entrance_search(ent, rows, 10, 10, scratch, SIZE_OF(ent), out), 0);
	nv_entrance_free(ent);
	free(scratch);
	free(rows);
}

/* --- promotion --- */

#define GROWN 2000u

/* Promotes a row with the members that a search for it meets. */
static void
promote(nv_entrance *ent, const float *rows, uint32_t vertex, void *scratch,
		size_t size)
{
	nv_candidate met[30];
	uint32_t near[32], n;

	n = nv_entrance_search(ent, fix_row(rows, vertex), 30, 30, scratch, size,
						   met);
	for (uint32_t i = 0; i < n; i++)
		near[i] = met[i].id;
	near[n++] = UINT32_MAX; /* no member */
	near[n++] = near[0];    /* twice */
	assert_int_equal(nv_entrance_promote(ent, vertex, fix_row(rows, vertex),
										 near, n, 1.2f, NULL),
					 NV_OK);
}

static uint32_t
find_themselves(const nv_entrance *ent, const float *rows, uint32_t n)
{
	void *scratch = new_scratch(ent);
	uint32_t found = 0;
	nv_candidate out[10];

	for (uint32_t v = 0; v < n; v++)
		found += nv_entrance_member(ent, v) &&
				 nv_entrance_search(ent, fix_row(rows, v), 20, 10, scratch,
									SIZE_OF(ent), out) > 0 &&
				 out[0].id == v;
	free(scratch);
	return found;
}

static void
test_promote(void **unused)
{
	float *rows = fix_points(GROWN, 21, false);
	nv_entrance *ent = build(rows, 200, 1.0f, 22), *loaded;
	size_t room = 4 * SIZE_OF(ent), size;
	void *scratch = nv_alloc(room);
	uint64_t changes = nv_entrance_changes(ent);
	uint8_t *bytes;

	for (uint32_t v = 200; v < GROWN; v++)
		promote(ent, rows, v, scratch, SIZE_OF(ent));
	assert_int_equal(nv_entrance_count(ent), GROWN);
	assert_int_equal(nv_entrance_live(ent), GROWN);
	assert_int_equal(nv_entrance_changes(ent), changes + GROWN - 200);
	assert_true(find_themselves(ent, rows, GROWN) > GROWN * 98 / 100);
	/* Twice is once; a dropped one comes back. */
	promote(ent, rows, 300, scratch, SIZE_OF(ent));
	assert_int_equal(nv_entrance_count(ent), GROWN);
	nv_entrance_drop(ent, 300);
	assert_int_equal(nv_entrance_live(ent), GROWN - 1);
	promote(ent, rows, 300, scratch, SIZE_OF(ent));
	assert_int_equal(nv_entrance_live(ent), GROWN);
	/* As it is saved. */
	bytes = nv_entrance_copy(ent, &size);
	assert_non_null(bytes);
	assert_int_equal(
		nv_entrance_load(bytes, size, GROWN, FIX_DIM, &loaded, NULL), NV_OK);
	assert_true(find_themselves(loaded, rows, GROWN) > GROWN * 98 / 100);
	nv_entrance_free(loaded);
	nv_entrance_free(ent);
	free(bytes);
	free(scratch);
	free(rows);
}

/* Without members nearby, far out, and full of dead ones. */
static void
test_promote_thin(void **unused)
{
	float *rows = fix_points(300, 23, false);
	nv_entrance *ent = build(rows, 100, 1.0f, 24), *loaded;
	float far[FIX_DIM];
	uint8_t *bytes;
	size_t size;

	for (uint32_t v = 100; v < 140; v++)
		assert_int_equal(
			nv_entrance_promote(ent, v, fix_row(rows, v), NULL, 0, 1.2f, NULL),
			NV_OK);
	assert_true(find_themselves(ent, rows, 140) > 100);
	for (uint32_t v = 0; v < 140; v++)
		nv_entrance_drop(ent, v);
	assert_int_equal(nv_entrance_live(ent), 0);
	assert_int_equal(nv_entrance_promote(ent, 200, fix_row(rows, 200),
										 (uint32_t[]){5, 6}, 2, 1.2f, NULL),
					 NV_OK);
	assert_int_equal(find_themselves(ent, rows, 300), 1);
	for (int j = 0; j < FIX_DIM; j++)
		far[j] = 1e30f;
	assert_int_equal(nv_entrance_promote(ent, 201, far, NULL, 0, 1.2f, NULL),
					 NV_OK);
	bytes = nv_entrance_copy(ent, &size);
	assert_int_equal(nv_entrance_load(bytes, size, 300, FIX_DIM, &loaded, NULL),
					 NV_OK);
	nv_entrance_free(loaded);
	nv_entrance_free(ent);
	free(bytes);
	free(rows);
}

typedef struct promoter
{
	nv_entrance *ent;
	const float *rows;
	uint32_t number;
	pthread_t thread;
} promoter;

static void *
promote_some(void *arg)
{
	promoter *p = arg;
	size_t room = sizeof(uint32_t) * GROWN + SIZE_OF(p->ent);
	void *scratch = nv_alloc(room);

	for (uint32_t v = 200 + p->number; v < GROWN; v += 4)
	{
		promote(p->ent, p->rows, v, scratch, SIZE_OF(p->ent));
		if (v % 5 == 0)
			nv_entrance_drop(p->ent, v - 40);
	}
	free(scratch);
	return NULL;
}

static void
test_concurrent_promote(void **unused)
{
	float *rows = fix_points(GROWN, 25, false);
	nv_entrance *ent = build(rows, 200, 1.0f, 26);
	/* Room for some of the members to come only. */
	void *scratch = new_scratch(ent);
	size_t size = SIZE_OF(ent);
	promoter p[2];
	nv_candidate out[10];

	for (uint32_t t = 0; t < 2; t++)
	{
		p[t] = (promoter){.ent = ent, .rows = rows, .number = t};
		assert_int_equal(
			pthread_create(&p[t].thread, NULL, promote_some, &p[t]), 0);
	}
	for (uint32_t q = 0; q < 2000; q++)
	{
		uint32_t n = nv_entrance_search(ent, fix_row(rows, q % GROWN), 10, 10,
										scratch, size, out);

		assert_true(n > 0 && n <= 10);
		for (uint32_t i = 0; i < n; i++)
			assert_true(out[i].id < GROWN);
	}
	for (uint32_t t = 0; t < 2; t++)
		pthread_join(p[t].thread, NULL);
	assert_int_equal(nv_entrance_count(ent), 200 + (GROWN - 200) / 2);
	nv_entrance_free(ent);
	free(scratch);
	free(rows);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sample),
		cmocka_unit_test(test_search),
		cmocka_unit_test(test_magnitudes),
		cmocka_unit_test(test_drop),
		cmocka_unit_test(test_tiny),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_save),
		cmocka_unit_test(test_corruption),
		cmocka_unit_test(test_concurrent_drop),
		cmocka_unit_test(test_promote),
		cmocka_unit_test(test_promote_thin),
		cmocka_unit_test(test_concurrent_promote),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
