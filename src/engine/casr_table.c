/*
 * casr_table.c
 *		CASR: the windows recorded in warm-up, by bucket of (K, L), and their
 *		saved form.
 *
 * Saved form, little-endian 32-bit words: magic, version, number of entries;
 * entries in order of buckets, each bucket number, count, count windows;
 * CRC-32C of all that.  The bucket bounds belong to the version.
 */
#include "casr.h"

#include <math.h>

#include "navis/hash.h"
#include "util.h"

#define BUCKETS (NV_CASR_K_BUCKETS * NV_CASR_L_BUCKETS)

const uint32_t nv_casr_k_bound[NV_CASR_K_BUCKETS] = {1,   10,  20, 50,
													 100, 200, 500};
const uint32_t nv_casr_l_bound[NV_CASR_L_BUCKETS] = {20,  40,  60,  80,
													 100, 200, 400, 800};

/* Observations of one bucket, allocated with the first one. */
typedef struct window_set
{
	uint32_t *windows; /* sorted once the bucket is ready */
	uint32_t count;
} window_set;

struct nv_casr_table
{
	pthread_mutex_t lock; /* over the buckets */
	uint32_t warmup;
	window_set buckets[BUCKETS];
};

nv_casr_table *
nv_casr_table_create(uint32_t warmup)
{
	nv_casr_table *t = nv_alloc(sizeof(*t));

	if (t == NULL)
		return NULL;
	if (pthread_mutex_init(&t->lock, NULL) != 0)
	{
		free(t);
		return NULL;
	}
	t->warmup = NV_MIN(NV_MAX(warmup, 1), NV_CASR_MAX_WARMUP);
	return t;
}

static void
free_buckets(window_set *buckets)
{
	for (int i = 0; i < BUCKETS; i++)
		free(buckets[i].windows);
	memset(buckets, 0, BUCKETS * sizeof(*buckets));
}

void
nv_casr_table_free(nv_casr_table *t)
{
	if (t == NULL)
		return;
	free_buckets(t->buckets);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static int
first_bound(const uint32_t *bounds, int n, uint32_t value)
{
	for (int i = 0; i < n; i++)
	{
		if (value <= bounds[i])
			return i;
	}
	return -1;
}

int
nv_casr_bucket(uint32_t k, uint32_t l)
{
	int of_k = first_bound(nv_casr_k_bound, NV_CASR_K_BUCKETS, k);
	int of_l = first_bound(nv_casr_l_bound, NV_CASR_L_BUCKETS, l);

	if (of_k < 0 || of_l < 0)
		return -1;
	return of_k * NV_CASR_L_BUCKETS + of_l;
}

uint32_t
nv_casr_bucket_k(int bucket)
{
	nv_assert(bucket >= 0 && bucket < BUCKETS);
	return nv_casr_k_bound[bucket / NV_CASR_L_BUCKETS];
}

uint32_t
nv_casr_bucket_l(int bucket)
{
	nv_assert(bucket >= 0 && bucket < BUCKETS);
	return nv_casr_l_bound[bucket % NV_CASR_L_BUCKETS];
}

static bool
ready(const nv_casr_table *t, const window_set *b)
{
	return b->count >= t->warmup;
}

static int
compare_windows(const void *x, const void *y)
{
	uint32_t a = *(const uint32_t *) x, b = *(const uint32_t *) y;

	return (a > b) - (a < b);
}

/*
 * Percentile by nearest rank: the smallest recorded value that at least that
 * share of the values does not exceed.
 */
uint32_t
nv_casr_window(nv_casr_table *t, int bucket_no, double percentile)
{
	uint32_t window = NV_CASR_ALL;

	if (bucket_no < 0 || bucket_no >= BUCKETS)
		return NV_CASR_ALL;
	pthread_mutex_lock(&t->lock);
	{
		const window_set *b = &t->buckets[bucket_no];

		if (ready(t, b))
		{
			double rank = ceil(percentile * b->count / 100);

			/* Written so that a NaN asks for the largest. */
			if (!(rank < b->count))
				rank = b->count;
			window = b->windows[rank < 1 ? 0 : (uint32_t) rank - 1];
		}
	}
	pthread_mutex_unlock(&t->lock);
	return window;
}

/* Room for the whole warm-up; false if there is no memory. */
static bool
make_room(window_set *b, uint32_t room)
{
	if (b->windows == NULL)
	{
		b->windows = nv_alloc_array(room, sizeof(*b->windows));
	}
	return b->windows != NULL;
}

bool
nv_casr_observe(nv_casr_table *t, int bucket_no, uint32_t window)
{
	bool completed = false;

	if (bucket_no < 0 || bucket_no >= BUCKETS)
		return false;
	pthread_mutex_lock(&t->lock);
	{
		window_set *b = &t->buckets[bucket_no];

		if (!ready(t, b) && make_room(b, t->warmup))
		{
			b->windows[b->count++] = window;
			completed = ready(t, b);
			if (completed)
				qsort(b->windows, b->count, sizeof(*b->windows),
					  compare_windows);
		}
	}
	pthread_mutex_unlock(&t->lock);
	return completed;
}

uint32_t
nv_casr_observed(nv_casr_table *t, int bucket_no)
{
	uint32_t count;

	if (bucket_no < 0 || bucket_no >= BUCKETS)
		return 0;
	pthread_mutex_lock(&t->lock);
	count = t->buckets[bucket_no].count;
	pthread_mutex_unlock(&t->lock);
	return count;
}

bool
nv_casr_ready(nv_casr_table *t, int bucket_no)
{
	bool answer;

	if (bucket_no < 0 || bucket_no >= BUCKETS)
		return false;
	pthread_mutex_lock(&t->lock);
	answer = ready(t, &t->buckets[bucket_no]);
	pthread_mutex_unlock(&t->lock);
	return answer;
}

void
nv_casr_reset(nv_casr_table *t)
{
	pthread_mutex_lock(&t->lock);
	free_buckets(t->buckets);
	pthread_mutex_unlock(&t->lock);
}

#define SAVED_MAGIC UINT32_C(0x5743564e) /* "NVCW" */
#define SAVED_VERSION 1
#define SAVED_HEADER 3 /* words */
#define SAVED_ENTRY 2  /* words before the windows */

static void
put_word(uint8_t *out, size_t word, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		out[word * 4 + i] = (uint8_t) (value >> (8 * i));
}

static uint32_t
get_word(const uint8_t *in, size_t word)
{
	uint32_t value = 0;

	for (int i = 0; i < 4; i++)
		value |= (uint32_t) in[word * 4 + i] << (8 * i);
	return value;
}

/* In words, the CRC included.  Called with the lock held. */
static size_t
saved_words(const nv_casr_table *t)
{
	size_t words = SAVED_HEADER + 1;

	for (int i = 0; i < BUCKETS; i++)
	{
		if (t->buckets[i].count > 0)
			words += SAVED_ENTRY + t->buckets[i].count;
	}
	return words;
}

size_t
nv_casr_saved_size(nv_casr_table *t)
{
	size_t words;

	pthread_mutex_lock(&t->lock);
	words = saved_words(t);
	pthread_mutex_unlock(&t->lock);
	return words * 4;
}

/*
 * Returns the bytes written; 0 when they do not fit, for observations may have
 * come in since nv_casr_saved_size().
 */
size_t
nv_casr_save(nv_casr_table *t, uint8_t *out, size_t room)
{
	size_t at = SAVED_HEADER, words;
	uint32_t entries = 0;

	pthread_mutex_lock(&t->lock);
	words = saved_words(t);
	if (words * 4 > room)
	{
		pthread_mutex_unlock(&t->lock);
		return 0;
	}
	for (int i = 0; i < BUCKETS; i++)
	{
		const window_set *b = &t->buckets[i];

		if (b->count == 0)
			continue;
		entries++;
		put_word(out, at++, (uint32_t) i);
		put_word(out, at++, b->count);
		for (uint32_t j = 0; j < b->count; j++)
			put_word(out, at++, b->windows[j]);
	}
	pthread_mutex_unlock(&t->lock);
	put_word(out, 0, SAVED_MAGIC);
	put_word(out, 1, SAVED_VERSION);
	put_word(out, 2, entries);
	put_word(out, at, nv_crc32c(0, out, at * 4));
	nv_assert(at + 1 == words);
	return words * 4;
}

/* Everything that can be said before looking at an entry. */
static nv_status
check_header(const uint8_t *in, size_t len, nv_error *err)
{
	size_t words = len / 4;

	if (len % 4 != 0 || words < SAVED_HEADER + 1)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "calibration has %zu bytes, which is no valid size",
					   len);
	if (get_word(in, 0) != SAVED_MAGIC)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "calibration starts with %08x, expected %08x",
					   get_word(in, 0), SAVED_MAGIC);
	if (get_word(in, 1) != SAVED_VERSION)
		return nv_fail(err, NV_EVERSION, 0,
					   "calibration has format version %u, expected %d",
					   get_word(in, 1), SAVED_VERSION);
	if (get_word(in, words - 1) != nv_crc32c(0, in, len - 4))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "calibration has checksum %08x, expected %08x",
					   nv_crc32c(0, in, len - 4), get_word(in, words - 1));
	return NV_OK;
}

/*
 * Reads the entry at word *at into its bucket and advances; end is the word
 * behind the last entry.  The bucket gets room for a whole warm-up.
 */
static nv_status
load_entry(const uint8_t *in, size_t *at, size_t end, uint32_t warmup,
		   window_set *buckets, nv_error *err)
{
	uint32_t number, count;
	window_set *b;

	if (end - *at < SAVED_ENTRY)
		return nv_fail(err, NV_ECORRUPT, 0, "calibration is cut off");
	number = get_word(in, (*at)++);
	count = get_word(in, (*at)++);
	if (number >= BUCKETS || buckets[number].count != 0)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "calibration names bucket %u, expected each below %d "
					   "once",
					   number, BUCKETS);
	if (count == 0 || count > NV_CASR_MAX_WARMUP || count > end - *at)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "calibration bucket %u has %u windows, expected 1 to "
					   "%d",
					   number, count, NV_CASR_MAX_WARMUP);
	b = &buckets[number];
	if (!make_room(b, NV_MAX(count, warmup)))
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for %u calibration windows",
					   NV_MAX(count, warmup));
	for (; b->count < count; b->count++)
		b->windows[b->count] = get_word(in, (*at)++);
	return NV_OK;
}

/*
 * Replaces what the table holds; on failure it is unchanged.  A bucket is
 * ready when it has as many windows as this table's warm-up asks for; if it
 * has more, all of them count.
 */
nv_status
nv_casr_load(nv_casr_table *t, const uint8_t *in, size_t len, nv_error *err)
{
	window_set loaded[BUCKETS] = {{NULL, 0}};
	nv_status status = check_header(in, len, err);
	size_t at = SAVED_HEADER, end = len / 4 - 1;

	if (status != NV_OK)
		return status;
	for (uint32_t i = get_word(in, 2); i > 0 && status == NV_OK; i--)
		status = load_entry(in, &at, end, t->warmup, loaded, err);
	if (status == NV_OK && at != end)
		status =
			nv_fail(err, NV_ECORRUPT, 0,
					"calibration has %zu words, expected %zu", end + 1, at + 1);
	if (status != NV_OK)
	{
		free_buckets(loaded);
		return status;
	}
	for (int i = 0; i < BUCKETS; i++)
	{
		if (ready(t, &loaded[i]))
			qsort(loaded[i].windows, loaded[i].count, sizeof(uint32_t),
				  compare_windows);
	}
	pthread_mutex_lock(&t->lock);
	free_buckets(t->buckets);
	memcpy(t->buckets, loaded, sizeof(loaded));
	pthread_mutex_unlock(&t->lock);
	return NV_OK;
}
