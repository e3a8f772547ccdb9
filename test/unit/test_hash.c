/*
 * test_hash.c
 *		XXH3 and CRC-32C against published values; every implementation of the
 *		latter against bit-by-bit division.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels.h"
#include "navis/hash.h"
#include "util.h"

#define MAX_LENGTH 300

typedef uint32_t (*crc_function)(uint32_t crc, const void *bytes, size_t len);

typedef struct known_hash
{
	size_t len;
	uint64_t hash;
} known_hash;

/*
 * XXH3, 64 bits, seed 0, of the first bytes of the generator the algorithm's
 * own self-test uses: the lengths reach every branch of it.
 */
static void
test_vector_hash(void **state)
{
	static const known_hash known[] = {
		{0, UINT64_C(0x2d06800538d394c2)},
		{1, UINT64_C(0xc44bdff4074eecdb)},
		{6, UINT64_C(0x27b56a84cd2d7325)},
		{12, UINT64_C(0xa713daf0dfbb77e7)},
		{24, UINT64_C(0xa3fe70bf9d3510eb)},
		{48, UINT64_C(0x397da259ecba1f11)},
		{80, UINT64_C(0xbcdefbbb2c47c90a)},
		{195, UINT64_C(0xcd94217ee362ec3a)},
		{403, UINT64_C(0xcdeb804d65c6dea4)},
		{512, UINT64_C(0x617e49599013cb6b)},
		{2048, UINT64_C(0xdd59e2c3a5f038e0)},
	};
	uint8_t bytes[2048];
	uint64_t generator = UINT32_C(2654435761);

	for (size_t i = 0; i < sizeof(bytes); i++)
	{
		bytes[i] = (uint8_t) (generator >> 56);
		generator *= UINT64_C(11400714785074694797);
	}
	for (size_t i = 0; i < NV_LENGTH(known); i++)
		assert_true(nv_vector_hash(bytes, known[i].len) == known[i].hash);
	assert_true(nv_vector_hash(bytes, 100) != nv_vector_hash(bytes + 1, 100));
}

static uint32_t
crc_by_bits(uint32_t crc, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	crc = ~crc;
	for (; len > 0; len--, p++)
	{
		crc ^= *p;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ UINT32_C(0x82f63b78) : crc >> 1;
	}
	return ~crc;
}

/* RFC 3720, appendix B.4, and the check value of the CRC catalogues. */
static void
check_published(crc_function crc)
{
	uint8_t bytes[32];

	assert_int_equal(crc(0, "", 0), 0);
	assert_int_equal(crc(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(crc(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(crc(0, bytes, 32), 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t) i;
	assert_int_equal(crc(0, bytes, 32), 0x46dd794e);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t) (31 - i);
	assert_int_equal(crc(0, bytes, 32), 0x113fdb5c);
}

/* All lengths and alignments, in one piece and in two. */
static void
check_lengths(crc_function crc)
{
	uint8_t bytes[MAX_LENGTH + 8];
	uint64_t seed = nv_random_seed(3);

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t) (nv_random(&seed) >> 32);
	for (size_t len = 0; len <= MAX_LENGTH; len++)
	{
		const uint8_t *p = bytes + len % 8;
		size_t cut = (size_t) nv_random_below(&seed, len + 1);
		uint32_t expected = crc_by_bits(0, p, len);

		assert_int_equal(crc(0, p, len), expected);
		assert_int_equal(crc(crc(0, p, cut), p + cut, len - cut), expected);
	}
}

static void
test_crc(void **state)
{
	const crc_function functions[] = {nv_crc32c, nv_crc32c_tables, crc_by_bits};

	for (size_t i = 0; i < NV_LENGTH(functions); i++)
	{
		check_published(functions[i]);
		check_lengths(functions[i]);
	}
	if (!nv_crc32c_has_hardware())
	{
		printf("no CRC-32C instruction here\n");
		return;
	}
	check_published(nv_crc32c_hardware);
	check_lengths(nv_crc32c_hardware);
}

static void *
one_crc(void *result)
{
	*(uint32_t *) result =
		nv_crc32c(0, "123456789", 9) ^ nv_crc32c_tables(0, "123456789", 9);
	return NULL;
}

/* Must run first: tables are filled while four threads call. */
static void
test_crc_by_threads(void **state)
{
	pthread_t thread[4];
	uint32_t result[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, one_crc, &result[i]),
						 0);
	for (int i = 0; i < 4; i++)
	{
		pthread_join(thread[i], NULL);
		assert_int_equal(result[i], 0);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc_by_threads),
		cmocka_unit_test(test_vector_hash),
		cmocka_unit_test(test_crc),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
