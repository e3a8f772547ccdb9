/*
 * test_casr.c
 *		CASR against traces worked out by hand and against the rule taken
 *		literally; the calibration table and its saved form.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

#include "casr.h"
#include "navis/hash.h"
#include "util.h"

#define MAX_EXPLORED 120
#define MAX_K 12

typedef struct trace
{
	const double *distances;
	uint32_t explored, k, window;
	bool stages;
} trace;

/* Drives a rerank to its end; sizes[] receives the batches. */
static nv_casr
run(const trace *t, double *heap, uint32_t *sizes)
{
	nv_casr c;
	uint32_t want;

	nv_casr_start(&c, t->k, t->window, t->explored, heap);
	if (t->stages)
		nv_casr_use_stages(&c);
	while ((want = nv_casr_want(&c)) > 0)
	{
		if (sizes != NULL)
			sizes[c.batches - 1] = want;
		for (uint32_t i = 0; i < want; i++)
			nv_casr_loaded(&c, t->distances[c.loaded]);
	}
	assert_int_equal(nv_casr_want(&c), 0);
	return c;
}

/*
 * K = 2; top 2 after each load, * marks a change:
 *
 *	load		 1	 2	 3	 4	 5	 6	 7	 8	 9	10	11	12
 *	distance	 5	 4	 6	 3	 9	 8	 7	10	 1	11	12	13
 *	top			 5* 45* 45  34* 34  34  34  34  13* 13  13  13
 *
 * Changes at 1, 2, 4, 9: distances between them 1, 1, 2, 5, so the smallest
 * window is 5.
 */
static const double by_hand[] = {5, 4, 6, 3, 9, 8, 7, 10, 1, 11, 12, 13};

static void
check_trace(uint32_t window, const uint32_t *sizes, uint32_t batches,
			uint32_t loads)
{
	trace t = {by_hand, NV_LENGTH(by_hand), 2, window, false};
	uint32_t found[MAX_EXPLORED];
	double heap[2];
	nv_casr c = run(&t, heap, found);

	assert_int_equal(c.loaded, loads);
	assert_int_equal(c.batches, batches);
	assert_memory_equal(found, sizes, batches * sizeof(*sizes));
}

static void
check_stages(uint32_t window, const uint32_t *sizes, uint32_t batches)
{
	trace t = {by_hand, NV_LENGTH(by_hand), 2, window, true};
	uint32_t found[MAX_EXPLORED];
	double heap[2];
	nv_casr c = run(&t, heap, found);

	assert_int_equal(c.batches, batches);
	assert_memory_equal(found, sizes, batches * sizeof(*sizes));
}

/* Stages of ceil(w / 2), until two in a row changed nothing. */
static void
test_stages_by_hand(void **state)
{
	/* 1-3 unchanged, 4 changes, 5 and 6 do not. */
	check_stages(1, (const uint32_t[]){3, 1, 1, 1}, 4);
	check_stages(2, (const uint32_t[]){3, 1, 1, 1}, 4);
	/* 1-4 changed, 5-6 and 7-8 not. */
	check_stages(3, (const uint32_t[]){4, 2, 2}, 3);
	check_stages(4, (const uint32_t[]){4, 2, 2}, 3);
	/* 1-5 changed, 6-8 not, 9-11 changed: to the end. */
	check_stages(5, (const uint32_t[]){5, 3, 3, 1}, 4);
	check_stages(NV_CASR_ALL, (const uint32_t[]){12}, 1);
}

/* With stages at least what the window loads is loaded, on any trace. */
static void
test_stages_are_as_safe(void **state)
{
	uint64_t random = nv_random_seed(77);

	for (int round = 0; round < 2000; round++)
	{
		double distances[MAX_EXPLORED], heap[MAX_K];
		trace t = {.distances = distances};
		uint32_t loads;

		t.explored = 1 + (uint32_t) nv_random_below(&random, MAX_EXPLORED);
		t.k = 1 + (uint32_t) nv_random_below(&random, MAX_K);
		t.window = 1 + (uint32_t) nv_random_below(&random, 30);
		for (uint32_t i = 0; i < t.explored; i++)
			distances[i] = (double) nv_random_below(&random, 50 + 10 * i);
		loads = run(&t, heap, NULL).loaded;
		t.stages = true;
		assert_true(run(&t, heap, NULL).loaded >= loads);
	}
}

static void
test_by_hand(void **state)
{
	/* w = 1: loads 1-3 (K + w); last change 2, 2 + 1 = 3: done. */
	check_trace(1, (const uint32_t[]){3}, 1, 3);
	/* w = 2: loads 1-4; change at 4, so 5-6; 4 + 2 = 6: done. */
	check_trace(2, (const uint32_t[]){4, 2}, 2, 6);
	/* w = 3: loads 1-5; change at 4, so up to 7: done, 4 + 3. */
	check_trace(3, (const uint32_t[]){5, 2}, 2, 7);
	/* w = 4: loads 1-6, then up to 8: done just before the change at 9. */
	check_trace(4, (const uint32_t[]){6, 2}, 2, 8);
	/* w = 5: loads 1-7, up to 9, which changes, up to 14: there are 12. */
	check_trace(5, (const uint32_t[]){7, 2, 3}, 3, 12);
	/* w = 0: the top K of the first K, no look further. */
	check_trace(0, (const uint32_t[]){2}, 1, 2);
	/* Everything: one batch. */
	check_trace(NV_CASR_ALL, (const uint32_t[]){12}, 1, 12);
	/* A window larger than there are candidates is no overflow. */
	check_trace(NV_CASR_ALL - 1, (const uint32_t[]){12}, 1, 12);
}

static void
test_smallest_window_by_hand(void **state)
{
	trace t = {by_hand, NV_LENGTH(by_hand), 2, NV_CASR_ALL, false};
	double heap[2];
	nv_casr c = run(&t, heap, NULL);

	assert_int_equal(nv_casr_smallest_window(&c), 5);
	assert_int_equal(c.last_change, 9);
	assert_true(heap[0] == 3 && heap[1] == 1);
	/* Only the first eight: gaps 1, 1, 2. */
	t.explored = 8;
	c = run(&t, heap, NULL);
	assert_int_equal(nv_casr_smallest_window(&c), 2);
	/* In order already: changes at 1 and 2 only. */
	t = (trace){(const double[]){1, 2, 3, 4, 5}, 5, 2, NV_CASR_ALL, false};
	c = run(&t, heap, NULL);
	assert_int_equal(nv_casr_smallest_window(&c), 1);
	/* K = 1, changes at 1 and 5. */
	t = (trace){(const double[]){5, 6, 7, 8, 4}, 5, 1, NV_CASR_ALL, false};
	c = run(&t, heap, NULL);
	assert_int_equal(nv_casr_smallest_window(&c), 4);
	/* Ties with the worst of the top change nothing. */
	t = (trace){(const double[]){5, 5, 5, 5}, 4, 1, NV_CASR_ALL, false};
	c = run(&t, heap, NULL);
	assert_int_equal(nv_casr_smallest_window(&c), 1);
	assert_int_equal(c.last_change, 1);
}

static void
test_few_candidates(void **state)
{
	trace t = {(const double[]){2, 1, 3}, 3, 10, 4, false};
	double heap[10];
	nv_casr c = run(&t, heap, NULL);

	assert_int_equal(c.loaded, 3);
	assert_int_equal(c.batches, 1);
	assert_int_equal(c.heap_size, 3);
	t.explored = 0;
	c = run(&t, heap, NULL);
	assert_int_equal(c.loaded, 0);
	assert_int_equal(c.batches, 0);
	assert_int_equal(nv_casr_smallest_window(&c), 0);
}

/* Rows without a distance count as farther than all others. */
static void
test_nan(void **state)
{
	trace t = {(const double[]){NAN, NAN, 3, 1, NAN, 2}, 6, 2, NV_CASR_ALL,
			   false};
	double heap[2];
	nv_casr c = run(&t, heap, NULL);

	assert_int_equal(c.last_change, 6);
	assert_true(heap[0] == 2 && heap[1] == 1);
}

/* The rule word by word: one load at a time, top K kept sorted. */
static uint32_t
literal_loads(const trace *t, double *top)
{
	uint32_t n = 0, unchanged = 0, loads = 0;

	while (loads < t->explored && (n < t->k || unchanged < t->window))
	{
		double d = t->distances[loads++];
		uint32_t at;

		if (n == t->k && d >= top[n - 1])
		{
			unchanged++;
			continue;
		}
		unchanged = 0;
		if (n < t->k)
			n++;
		for (at = n - 1; at > 0 && top[at - 1] > d; at--)
			top[at] = top[at - 1];
		top[at] = d;
	}
	return loads;
}

static double
sum_of(const double *values, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += values[i];
	return sum;
}

static void
test_against_rule(void **state)
{
	uint64_t seed = nv_random_seed(11);

	for (int round = 0; round < 3000; round++)
	{
		double distances[MAX_EXPLORED], heap[MAX_K], all[MAX_K], top[MAX_K];
		trace t = {distances, 0, 0, 0, false};
		nv_casr full, c;
		uint32_t smallest, n;

		t.explored = (uint32_t) nv_random_below(&seed, MAX_EXPLORED) + 1;
		t.k = (uint32_t) nv_random_below(&seed, MAX_K) + 1;
		/* Rising, with noise, as code order is; integers, so that sums of
		   any order are exact. */
		for (uint32_t i = 0; i < t.explored; i++)
			distances[i] = i + (double) nv_random_below(&seed, 40);
		t.window = NV_CASR_ALL;
		full = run(&t, all, NULL);
		assert_int_equal(full.loaded, t.explored);
		n = full.heap_size;
		smallest = nv_casr_smallest_window(&full);
		for (t.window = 1; t.window <= smallest + 2; t.window++)
		{
			c = run(&t, heap, NULL);
			assert_int_equal(c.loaded, literal_loads(&t, top));
			assert_int_equal(c.loaded,
							 NV_MIN(t.explored, c.last_change + t.window));
			assert_true(sum_of(heap, n) == sum_of(top, n));
			/* Right from the smallest window on, and not before. */
			assert_int_equal(sum_of(heap, n) == sum_of(all, n),
							 t.window >= smallest);
		}
	}
}

static void
test_buckets(void **state)
{
	assert_int_equal(nv_casr_bucket(1, 20), 0);
	assert_int_equal(nv_casr_bucket(1, 1), 0);
	assert_int_equal(nv_casr_bucket(2, 20), NV_CASR_L_BUCKETS);
	assert_int_equal(nv_casr_bucket(10, 40), NV_CASR_L_BUCKETS + 1);
	assert_int_equal(nv_casr_bucket(11, 41), 2 * NV_CASR_L_BUCKETS + 2);
	assert_int_equal(nv_casr_bucket(500, 800),
					 NV_CASR_K_BUCKETS * NV_CASR_L_BUCKETS - 1);
	assert_int_equal(nv_casr_bucket(501, 800), -1);
	assert_int_equal(nv_casr_bucket(500, 801), -1);
	for (uint32_t k = 1; k <= 500; k++)
	{
		for (uint32_t l = 1; l <= 800; l += 7)
		{
			int bucket = nv_casr_bucket(k, l);
			int of_k = bucket / NV_CASR_L_BUCKETS;
			int of_l = bucket % NV_CASR_L_BUCKETS;

			assert_true(k <= nv_casr_bucket_k(bucket));
			assert_true(l <= nv_casr_bucket_l(bucket));
			assert_true(of_k == 0 || k > nv_casr_k_bound[of_k - 1]);
			assert_true(of_l == 0 || l > nv_casr_l_bound[of_l - 1]);
		}
	}
}

static void
test_percentiles(void **state)
{
	nv_casr_table *t = nv_casr_table_create(10);
	int bucket = nv_casr_bucket(10, 100);

	assert_non_null(t);
	/* 7 1 8 2 10 3 9 4 6 5, the tenth completes the warm-up. */
	for (uint32_t i = 0; i < 10; i++)
	{
		static const uint32_t windows[] = {7, 1, 8, 2, 10, 3, 9, 4, 6, 5};

		assert_false(nv_casr_ready(t, bucket));
		assert_int_equal(nv_casr_window(t, bucket, 100), NV_CASR_ALL);
		assert_int_equal(nv_casr_observed(t, bucket), i);
		assert_int_equal(nv_casr_observe(t, bucket, windows[i]), i == 9);
	}
	assert_true(nv_casr_ready(t, bucket));
	assert_int_equal(nv_casr_window(t, bucket, 100), 10);
	assert_int_equal(nv_casr_window(t, bucket, 99), 10);
	assert_int_equal(nv_casr_window(t, bucket, 90.001), 10);
	assert_int_equal(nv_casr_window(t, bucket, 90), 9);
	assert_int_equal(nv_casr_window(t, bucket, 50), 5);
	assert_int_equal(nv_casr_window(t, bucket, 1), 1);
	/* Out of range is the nearest end. */
	assert_int_equal(nv_casr_window(t, bucket, 0), 1);
	assert_int_equal(nv_casr_window(t, bucket, 200), 10);
	assert_int_equal(nv_casr_window(t, bucket, NAN), 10);
	/* Later ones change nothing; other buckets know nothing. */
	assert_false(nv_casr_observe(t, bucket, 1000));
	assert_int_equal(nv_casr_window(t, bucket, 100), 10);
	assert_int_equal(nv_casr_observed(t, bucket), 10);
	assert_int_equal(nv_casr_window(t, bucket + 1, 100), NV_CASR_ALL);
	assert_int_equal(nv_casr_window(t, -1, 100), NV_CASR_ALL);
	assert_false(nv_casr_observe(t, -1, 3));
	assert_false(nv_casr_ready(t, -1));
	assert_int_equal(nv_casr_observed(t, -1), 0);
	nv_casr_reset(t);
	assert_false(nv_casr_ready(t, bucket));
	assert_int_equal(nv_casr_observed(t, bucket), 0);
	nv_casr_table_free(t);
	nv_casr_table_free(NULL);
}

/* One bucket ready, one half way, the others empty. */
static nv_casr_table *
filled_table(void)
{
	nv_casr_table *t = nv_casr_table_create(5);

	assert_non_null(t);
	for (uint32_t i = 0; i < 5; i++)
		nv_casr_observe(t, 9, 50 - i * 10);
	for (uint32_t i = 0; i < 3; i++)
		nv_casr_observe(t, 55, i + 100);
	return t;
}

static void
test_save_and_load(void **state)
{
	nv_casr_table *from = filled_table(), *to = nv_casr_table_create(5);
	uint8_t saved[256], again[256];
	size_t size = nv_casr_saved_size(from);

	/* 3 words, two entries of 2 + 5 and 2 + 3, checksum. */
	assert_int_equal(size, (3 + 7 + 5 + 1) * 4);
	assert_int_equal(nv_casr_save(from, saved, size - 1), 0);
	assert_int_equal(nv_casr_save(from, saved, sizeof(saved)), size);
	nv_casr_observe(to, 0, 7); /* goes away */
	assert_int_equal(nv_casr_load(to, saved, size, NULL), NV_OK);
	assert_int_equal(nv_casr_observed(to, 0), 0);
	assert_true(nv_casr_ready(to, 9));
	assert_int_equal(nv_casr_window(to, 9, 100), 50);
	assert_int_equal(nv_casr_window(to, 9, 20), 10);
	assert_int_equal(nv_casr_observed(to, 55), 3);
	assert_int_equal(nv_casr_save(to, again, sizeof(again)), size);
	assert_memory_equal(saved, again, size);
	/* The half-filled bucket goes on where it was. */
	assert_false(nv_casr_observe(to, 55, 1));
	assert_true(nv_casr_observe(to, 55, 2));
	assert_int_equal(nv_casr_window(to, 55, 100), 102);
	nv_casr_table_free(from);
	nv_casr_table_free(to);
}

/* The setting may have changed between saving and loading. */
static void
test_load_other_warmup(void **state)
{
	nv_casr_table *from = filled_table();
	nv_casr_table *shorter = nv_casr_table_create(3);
	nv_casr_table *longer = nv_casr_table_create(100);
	uint8_t saved[256];
	size_t size = nv_casr_save(from, saved, sizeof(saved));

	assert_int_equal(nv_casr_load(shorter, saved, size, NULL), NV_OK);
	assert_true(nv_casr_ready(shorter, 9));
	assert_int_equal(nv_casr_observed(shorter, 9), 5);
	assert_int_equal(nv_casr_window(shorter, 55, 100), 102);
	assert_int_equal(nv_casr_load(longer, saved, size, NULL), NV_OK);
	assert_false(nv_casr_ready(longer, 9));
	for (uint32_t i = 5; i < 100; i++)
		assert_int_equal(nv_casr_observe(longer, 9, i == 99 ? 5 : 60), i == 99);
	assert_int_equal(nv_casr_window(longer, 9, 100), 60);
	assert_int_equal(nv_casr_window(longer, 9, 1), 5);
	nv_casr_table_free(from);
	nv_casr_table_free(shorter);
	nv_casr_table_free(longer);
}

static void
set_word(uint8_t *saved, size_t word, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		saved[word * 4 + i] = (uint8_t) (value >> (8 * i));
}

/* A changed word under a right checksum must be found by bounds. */
static void
check_refused(const uint8_t *good, size_t size, size_t word, uint32_t value,
			  nv_status expected)
{
	uint8_t bad[256];
	nv_casr_table *t = filled_table();
	nv_error err = {NV_OK, 0, ""};

	memcpy(bad, good, size);
	set_word(bad, word, value);
	set_word(bad, size / 4 - 1, nv_crc32c(0, bad, size - 4));
	assert_int_equal(nv_casr_load(t, bad, size, &err), expected);
	assert_int_equal(err.status, expected);
	assert_true(err.detail[0] != '\0');
	/* What the table held is still there. */
	assert_int_equal(nv_casr_window(t, 9, 100), 50);
	assert_int_equal(nv_casr_observed(t, 55), 3);
	nv_casr_table_free(t);
}

/* A bucket named twice, the second time with more than there was room for. */
static void
test_load_bucket_twice(void **state)
{
	nv_casr_table *from = nv_casr_table_create(100);
	nv_casr_table *to = nv_casr_table_create(2);
	uint8_t saved[1024];
	size_t size;

	nv_casr_observe(from, 9, 1);
	for (uint32_t i = 0; i < 90; i++)
		nv_casr_observe(from, 55, i);
	size = nv_casr_save(from, saved, sizeof(saved));
	set_word(saved, 3, 55);
	set_word(saved, size / 4 - 1, nv_crc32c(0, saved, size - 4));
	assert_int_equal(nv_casr_load(to, saved, size, NULL), NV_ECORRUPT);
	nv_casr_table_free(from);
	nv_casr_table_free(to);
}

static void
test_load_corrupted(void **state)
{
	nv_casr_table *t = filled_table();
	uint8_t saved[256];
	size_t size = nv_casr_save(t, saved, sizeof(saved));

	/* Words: 0 magic, 1 version, 2 entries, 3 bucket, 4 count, 5 .. 9. */
	check_refused(saved, size, 0, 1, NV_ECORRUPT);
	check_refused(saved, size, 1, 2, NV_EVERSION);
	check_refused(saved, size, 2, 1, NV_ECORRUPT);
	check_refused(saved, size, 2, 3, NV_ECORRUPT);
	check_refused(saved, size, 2, UINT32_MAX, NV_ECORRUPT);
	check_refused(saved, size, 3, 56, NV_ECORRUPT);
	check_refused(saved, size, 3, 55, NV_ECORRUPT); /* twice */
	check_refused(saved, size, 4, 0, NV_ECORRUPT);
	check_refused(saved, size, 4, 4, NV_ECORRUPT);
	check_refused(saved, size, 4, 6, NV_ECORRUPT);
	check_refused(saved, size, 4, UINT32_MAX, NV_ECORRUPT);
	/* Every cut and every flipped bit. */
	for (size_t len = 0; len < size; len++)
		assert_int_equal(nv_casr_load(t, saved, len, NULL), NV_ECORRUPT);
	for (size_t bit = 0; bit < size * 8; bit++)
	{
		saved[bit / 8] ^= (uint8_t) (1 << bit % 8);
		assert_int_not_equal(nv_casr_load(t, saved, size, NULL), NV_OK);
		saved[bit / 8] ^= (uint8_t) (1 << bit % 8);
	}
	assert_int_equal(nv_casr_window(t, 9, 100), 50);
	nv_casr_table_free(t);
}

/* Any bytes at all: refused or not, never read beyond. */
static void
test_load_random(void **state)
{
	nv_casr_table *t = nv_casr_table_create(4);
	uint64_t seed = nv_random_seed(21);

	for (int round = 0; round < 2000; round++)
	{
		size_t words = (size_t) nv_random_below(&seed, 30) + 4;
		uint8_t *bytes = malloc(words * 4);

		assert_non_null(bytes);
		for (size_t i = 0; i < words; i++)
			set_word(bytes, i, (uint32_t) nv_random_below(&seed, 60));
		set_word(bytes, 0, 0x5743564e);
		set_word(bytes, 1, 1);
		set_word(bytes, 2, (uint32_t) nv_random_below(&seed, 4));
		set_word(bytes, words - 1, nv_crc32c(0, bytes, words * 4 - 4));
		if (nv_casr_load(t, bytes, words * 4, NULL) == NV_OK)
			assert_int_equal(nv_casr_saved_size(t), words * 4);
		free(bytes);
	}
	nv_casr_table_free(t);
}

static void *
observe_and_ask(void *arg)
{
	nv_casr_table *t = arg;
	uintptr_t completed = 0;
	uint8_t saved[65536];

	for (uint32_t i = 0; i < 1000; i++)
	{
		completed += nv_casr_observe(t, 3, i);
		nv_casr_window(t, 3, 99);
		if (i % 100 == 0)
			nv_casr_save(t, saved, sizeof(saved));
	}
	return (void *) completed;
}

/* Exactly one of the threads completes the warm-up. */
static void
test_threads(void **state)
{
	nv_casr_table *t = nv_casr_table_create(2500);
	pthread_t thread[4];
	uintptr_t completed = 0;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, observe_and_ask, t),
						 0);
	for (int i = 0; i < 4; i++)
	{
		void *result;

		pthread_join(thread[i], &result);
		completed += (uintptr_t) result;
	}
	assert_int_equal(completed, 1);
	assert_int_equal(nv_casr_observed(t, 3), 2500);
	nv_casr_table_free(t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_stages_by_hand),
		cmocka_unit_test(test_stages_are_as_safe),
		cmocka_unit_test(test_smallest_window_by_hand),
		cmocka_unit_test(test_few_candidates),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_against_rule),
		cmocka_unit_test(test_buckets),
		cmocka_unit_test(test_percentiles),
		cmocka_unit_test(test_save_and_load),
		cmocka_unit_test(test_load_other_warmup),
		cmocka_unit_test(test_load_corrupted),
		cmocka_unit_test(test_load_bucket_twice),
		cmocka_unit_test(test_load_random),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
