/*
 * test_recode.c
 *		All codes of a store are replaced by those of another codebook: what a
 *		crash leaves, vertices that come meanwhile, and everything at once.
 */
#include "must.h"
#include "store_dirs.h"
#include "store_internal.h"

#define CODE 12u
#define DIMS 16u
#define ROUNDS 4u
#define NEW_ROWS 400u

/* Codebook of a round, as a blob. */
static void
book_of(uint32_t round, uint8_t *book)
{
	make_bytes(round, 77, book, 100);
}

static nv_store *
first_store(void)
{
	nv_store *store = build_store(dir, DIMS, CODE, NULL);
	uint8_t book[100];

	book_of(0, book);
	ok(nv_store_set_blob(store, NV_BLOB_CODEBOOK, book, 100, &why));
	ok(nv_store_set_blob(store, NV_BLOB_META, book, 20, &why));
	ok(nv_store_set_blob(store, NV_BLOB_CALIBRATION, book, 30, &why));
	publish(store);
	return store;
}

/* The code of a vertex with this number in a round; 0: as it was built. */
static void
code_of(uint32_t number, uint32_t round, uint8_t *code)
{
	make_bytes(number, round == 0 ? 2 : 100 + round, code, CODE);
}

/* The vector of row n that comes later, and what its vertex is called here. */
static uint32_t
row_of(uint32_t n, uint8_t *vector)
{
	make_bytes(n, 7, vector, DIMS * 4);
	return 1000000 + n;
}

/* Codebooks are told apart by where they are; nobody looks into them. */
static char tags[ROUNDS + 1];

static const nv_pq *
tag_of(uint32_t round)
{
	return (const nv_pq *) (const void *) &tags[round];
}

static uint32_t
round_of(const nv_coding *coding)
{
	const char *tag = (const char *) (const void *) nv_coding_pq(coding);

	return tag == NULL ? 0 : (uint32_t) (tag - tags);
}

/* Row n comes, with codes of what there is; linked, so that it stays. */
static uint32_t
add_row(nv_writer *w, uint32_t n)
{
	nv_store *store = w->store;
	uint8_t vector[DIMS * 4], code[CODE], next_code[CODE];
	nv_vertex_codes codes = {.code = code, .next_code = next_code};
	nv_vector_write write;
	uint32_t name = row_of(n, vector), vertex = 0, to = 0;
	uint64_t hash = nv_vector_hash(vector, DIMS * 4);
	int epoch = nv_store_enter(store);
	nv_status status;

	must(epoch >= 0);
	must(nv_store_place_vector(w, vector, &write, NULL) == NV_OK);
	must(nv_file_write(write.file, write.buf, write.len, write.offset, NULL) ==
		 NV_OK);
	do
	{
		nv_store_codings(store, &codes);
		code_of(name, round_of(codes.coding), code);
		if (codes.next != NULL)
			code_of(name, round_of(codes.next), next_code);
		status = nv_store_enter_coded(w, hash, &codes, &vertex, NULL);
	} while (status == NV_EBUSY);
	must(status == NV_OK);
	must(nv_store_relink(w, vertex, 0, &to, 1, NULL) == NV_OK);
	must(nv_store_set_linked(store, vertex, NULL) == NV_OK);
	nv_store_leave(store, epoch);
	return vertex;
}

/* All codes are those of a round; rows are vertices from VERTICES on. */
static void
check_codes(nv_store *store, uint32_t round, const uint32_t *rows,
			uint32_t n_rows)
{
	uint8_t code[CODE], book[100], vector[DIMS * 4];
	size_t len;
	const uint8_t *blob = nv_store_get_blob(store, NV_BLOB_CODEBOOK, &len);

	book_of(round, book);
	assert_int_equal(len, 100);
	assert_memory_equal(blob, book, 100);
	for (uint32_t v = 0; v < VERTICES; v++)
	{
		code_of(v, round, code);
		assert_memory_equal(nv_store_code(store, v), code, CODE);
	}
	for (uint32_t i = 0; i < n_rows; i++)
	{
		code_of(row_of(i, vector), round, code);
		assert_memory_equal(nv_store_code(store, rows[i]), code, CODE);
	}
}

/* What a crash now would leave. */
static void
check_crash(uint32_t round, const uint32_t *rows, uint32_t n_rows)
{
	nv_store *store = NULL;

	copy_directory(dir, copy);
	ok(nv_store_open(copy, &test_key, NULL, &store, &why));
	check_codes(store, round, rows, n_rows);
	nv_store_close(store);
}

/* Codes of all vertices that are not among the rows. */
static void
recode_all(nv_store *store, uint32_t round)
{
	uint8_t codes[64 * CODE];
	uint32_t ids[64];
	uint64_t hashes[64];

	for (uint32_t v = 0, n; v < VERTICES; v += n)
	{
		n = NV_MIN(VERTICES - v, 64u);
		for (uint32_t i = 0; i < n; i++)
		{
			ids[i] = v + i;
			hashes[i] = nv_store_vector_hash(store, v + i);
			code_of(v + i, round, codes + i * CODE);
		}
		nv_store_recode(store, ids, hashes, codes, n);
	}
}

static nv_status
switch_to(nv_store *store, uint32_t round)
{
	uint8_t book[100];

	book_of(round, book);
	return nv_store_recode_switch(store, book, 100, book, 20, NULL);
}

static void
wait_for_all(nv_store *store)
{
	uint64_t mark = nv_store_mark(store);

	while (!nv_store_passed(store, mark))
		usleep(100);
}

static void
wait_and_free(nv_store *store)
{
	wait_for_all(store);
	nv_store_recode_free(store);
}

/* Old codes with the old codebook, or new ones with the new. */
static void
test_crash(void **state)
{
	nv_store *store = first_store();
	const nv_coding *old = nv_store_coding(store);
	uint8_t code[CODE];
	uint32_t rows[3];
	nv_writer *w;
	size_t len;

	ok(nv_writer_create(store, &w, &why));
	rows[0] = add_row(w, 0);
	ok(nv_store_recode_begin(store, tag_of(1), &why));
	rows[1] = add_row(w, 1);
	check_crash(0, rows, 0);
	publish(store);
	check_crash(0, rows, 2);
	recode_all(store, 1);
	/* The one that was there before all this, as a vertex of its own. */
	{
		uint8_t vector[DIMS * 4];
		uint64_t hash = nv_store_vector_hash(store, rows[0]), other = hash + 1;

		code_of(row_of(0, vector), 1, code);
		nv_store_recode(store, &rows[0], &hash, code, 1);
		memset(code, 0, CODE);
		nv_store_recode(store, &rows[0], &other, code, 1);
	}
	publish(store);
	check_crash(0, rows, 2);
	assert_int_equal(switch_to(store, 1), NV_OK);
	check_codes(store, 1, rows, 2);
	assert_null(nv_store_get_blob(store, NV_BLOB_CALIBRATION, &len));
	/* Who began before goes on with what he has. */
	code_of(5, 0, code);
	assert_memory_equal(nv_coding_code(old, 5), code, CODE);
	check_crash(0, rows, 2);
	rows[2] = add_row(w, 2);
	publish(store);
	check_crash(1, rows, 3);
	wait_and_free(store);
	check_codes(store, 1, rows, 3);
	nv_writer_destroy(w);
	nv_store_close(store);
	check_crash(1, rows, 3);
}

/* Given up: nothing has happened, and it may be tried again. */
static void
test_abort(void **state)
{
	nv_store *store = first_store();
	uint8_t vector[DIMS * 4], code[CODE] = {0};
	nv_vector_write write;
	uint32_t rows[1], vertex;
	nv_store_stats before, during;
	nv_writer *w;

	ok(nv_writer_create(store, &w, &why));
	nv_store_get_stats(store, &before);
	ok(nv_store_recode_begin(store, tag_of(1), &why));
	nv_store_get_stats(store, &during);
	assert_true(during.memory_codes >= 2 * before.memory_codes);
	/* Without the other code it is refused. */
	make_bytes(9, 9, vector, DIMS * 4);
	ok(nv_store_place_vector(w, vector, &write, &why));
	assert_int_equal(nv_store_enter_vertex(w, 9, code, &vertex, NULL),
					 NV_EBUSY);
	rows[0] = add_row(w, 0);
	recode_all(store, 1);
	nv_store_recode_abort(store);
	wait_and_free(store);
	nv_store_get_stats(store, &during);
	assert_int_equal(during.memory_codes, before.memory_codes);
	check_codes(store, 0, rows, 1);
	publish(store);
	check_crash(0, rows, 1);
	ok(nv_store_recode_begin(store, tag_of(2), &why));
	nv_store_recode_abort(store);
	nv_writer_destroy(w);
	nv_store_close(store); /* what was left behind goes with it */
}

/* --- Everything at once --- */

static _Atomic bool stop;
static _Atomic uint32_t n_rows;
static uint32_t row_vertex[NEW_ROWS];

static void *
adds_rows(void *arg)
{
	nv_writer *w = arg;

	for (uint32_t n = 0; n < NEW_ROWS && !atomic_load(&stop); n++)
	{
		int epoch = nv_store_enter(w->store);

		must(epoch >= 0);
		row_vertex[n] = add_row(w, n);
		atomic_store(&n_rows, n + 1);
		nv_store_leave(w->store, epoch);
	}
	return NULL;
}

static void *
publishes(void *arg)
{
	nv_checkpoint_hooks hooks = {0};

	while (!atomic_load(&stop))
		must(nv_store_checkpoint(arg, &hooks, NULL) == NV_OK);
	return NULL;
}

/* Inside an epoch all codes are of one codebook, the one it is told. */
static void *
reads(void *arg)
{
	nv_store *store = arg;

	while (!atomic_load(&stop))
	{
		int epoch = nv_store_enter(store);
		const nv_coding *coding = nv_store_coding(store);
		uint32_t round = round_of(coding);

		must(epoch >= 0);
		for (uint32_t v = 0; v < VERTICES; v += 7)
		{
			uint8_t code[CODE];

			code_of(v, round, code);
			must(memcmp(nv_coding_code(coding, v), code, CODE) == 0);
		}
		nv_store_leave(store, epoch);
	}
	return NULL;
}

/* Rows that came before a round began are encoded like all others. */
static void
recode_rows(nv_store *store, uint32_t round, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
	{
		uint8_t vector[DIMS * 4], code[CODE];
		uint64_t hash = nv_store_vector_hash(store, row_vertex[i]);

		code_of(row_of(i, vector), round, code);
		nv_store_recode(store, &row_vertex[i], &hash, code, 1);
	}
}

static void
test_at_once(void **state)
{
	nv_store *store = first_store();
	pthread_t thread[3];
	nv_writer *w;

	ok(nv_writer_create(store, &w, &why));
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread[0], NULL, adds_rows, w), 0);
	assert_int_equal(pthread_create(&thread[1], NULL, publishes, store), 0);
	assert_int_equal(pthread_create(&thread[2], NULL, reads, store), 0);
	for (uint32_t round = 1; round <= ROUNDS; round++)
	{
		usleep(5000);
		ok(nv_store_recode_begin(store, tag_of(round), &why));
		recode_all(store, round);
		/* Who entered a row before that has told of it when he has left. */
		wait_for_all(store);
		recode_rows(store, round, atomic_load(&n_rows));
		assert_int_equal(switch_to(store, round), NV_OK);
		wait_and_free(store);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	check_codes(store, ROUNDS, row_vertex, atomic_load(&n_rows));
	publish(store);
	check_crash(ROUNDS, row_vertex, atomic_load(&n_rows));
	nv_writer_destroy(w);
	nv_store_close(store);
}

/*
 * With new rows codes may all be written anew, beside those of the last root:
 * what is promised has places for both.
 */
static void
test_room(void **state)
{
	const uint64_t rows = 1000000;
	nv_store *store = first_store();
	/* Writers hold units of which not all records are used. */
	uint64_t vertices =
		VERTICES + rows + NV_MAX_WRITERS * nv_unit_records(store);
	uint64_t segments = nv_array_segments(&store->map, vertices) +
						nv_array_segments(&store->element_map, rows) +
						nv_array_segments(nv_store_codes(store), vertices);

	assert_false(nv_state_have_room(store, rows));
	ok(nv_state_make_room(store, rows, &why));
	assert_true(nv_state_have_room(store, rows));
	assert_true(atomic_load(&store->state.space) / NV_SEGMENT >= 2 * segments);
	nv_store_close(store);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_crash, make_two, remove_two),
		cmocka_unit_test_setup_teardown(test_abort, make_two, remove_two),
		cmocka_unit_test_setup_teardown(test_at_once, make_two, remove_two),
		cmocka_unit_test_setup_teardown(test_room, make_two, remove_two),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
