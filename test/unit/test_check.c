/*
 * test_check.c
 *		CHECK: a sound index has no problems, also while it is worked on; each
 *		kind of damage is told for what it is.
 */
#include "engine_fixture.h"

#include "engine_internal.h"
#include "store_internal.h"

#define CHECKED_ROWS 1300u

static nv_index *index_of_test;
static nv_body *body;

static int
setup_check(void **state)
{
	fixture *f;
	int rc = setup_with(state, NV_METRIC_L2, CHECKED_ROWS);

	f = *state;
	stop_engine(f, false);
	/* What is on disk is read; two rows are equal. */
	f->config.cache_size = 0;
	f->config.fsync = false;
	memcpy(f->rows + DIM, f->rows, DIM * sizeof(float));
	start_engine(f);
	build_all(f);
	index_of_test = nv_index_get(f->engine, &f->key, false);
	body = nv_index_body(index_of_test);
	return rc;
}

static int
teardown_check(void **state)
{
	nv_body_put(body);
	nv_index_put(index_of_test);
	return teardown(state);
}

static nv_req_check *
run_part(fixture *f, nv_check_part part)
{
	begin(f, NV_REQ_CHECK)->u.check.part = part;
	assert_int_equal(call(f), NV_OK);
	assert_true(f->r->u.check.next == UINT64_MAX);
	assert_int_equal(f->r->u.check.unlisted, 0);
	return &f->r->u.check;
}

/* The only part with problems is this one; the first of them is like that. */
static void
expect(fixture *f, nv_check_part part, bool warning, const char *detail)
{
	bool found = false;

	for (uint32_t p = 0; p < NV_CHECK_PARTS; p++)
	{
		nv_req_check *c = run_part(f, (nv_check_part) p);
		const nv_problem *problem = (const nv_problem *) f->r->data;

		for (uint32_t i = 0; i < c->n; i++)
		{
			assert_int_equal(problem[i].part, p);
			if (p != (uint32_t) part && !problem[i].warning)
				fail_msg("part %u: %s", p, problem[i].detail);
			found |= p == (uint32_t) part &&
					 problem[i].warning == (warning ? 1 : 0) &&
					 strstr(problem[i].detail, detail) != NULL;
		}
	}
	if (!found)
		fail_msg("part %d does not say \"%s\"", (int) part, detail);
}

static void
expect_nothing(fixture *f)
{
	for (uint32_t p = 0; p < NV_CHECK_PARTS; p++)
	{
		nv_req_check *c = run_part(f, (nv_check_part) p);

		if (c->n > 0)
			fail_msg("part %u: %s", p, ((nv_problem *) f->r->data)->detail);
		assert_true(c->checked > 0);
		assert_int_equal(c->has_graph, 1);
		assert_int_equal(c->state, NV_INDEX_READY);
	}
}

/* Flips a bit of a file of the graph, behind the engine's back. */
static void
flip(fixture *f, const char *name, uint64_t at)
{
	char dir[300], path[400];
	uint8_t byte;
	int fd;

	index_dir(f, dir);
	snprintf(path, sizeof(path), "%s/g1/%s", dir, name);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t) at), 1);
	byte ^= 4;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t) at), 1);
	close(fd);
}

/* --- Sound --- */

static void
test_sound(void **state)
{
	fixture *f = *state;

	expect_nothing(f);
	assert_int_equal(delete (f, 100, 200, 1), NV_OK);
	checkpoint(f);
	expect_nothing(f);
}

static void
test_not_open(void **state)
{
	fixture *f = *state;

	begin(f, NV_REQ_CHECK)->key.database = 77;
	assert_int_equal(call(f), NV_ENOENT);
	begin(f, NV_REQ_CHECK)->u.check.part = 99;
	assert_int_equal(call(f), NV_EINVAL);
}

static void *
check_beside(void *arg)
{
	fixture *f = arg;

	for (int round = 0; round < 3; round++)
		for (uint32_t p = 0; p < NV_CHECK_PARTS; p++)
		{
			begin(f, NV_REQ_CHECK)->u.check.part = p;
			if (call(f) != NV_OK)
				abort();
			for (uint32_t i = 0; i < f->r->u.check.n; i++)
			{
				const nv_problem *problem = (const nv_problem *) f->r->data + i;

				/* Only out of reach, and for good, may a row be. */
				if (problem->part == NV_CHECK_REACH)
					continue;
				fprintf(stderr, "part %u: %s\n", p, problem->detail);
				abort();
			}
		}
	return NULL;
}

/* While rows are inserted, deleted and published. */
static void
test_beside_work(void **state)
{
	fixture *f = *state, checker;
	pthread_t thread;

	nv_body_put(body);
	nv_index_put(index_of_test);
	stop_engine(f, true);
	f->config.insert_threads = 2;
	start_engine(f);
	{
		uint32_t st;

		assert_int_equal(open_index(f, CHECKED_ROWS, 0, 0, true, &st), 0);
	}
	index_of_test = nv_index_get(f->engine, &f->key, false);
	body = nv_index_body(index_of_test);
	checker = fork_fixture(f, 2);
	assert_int_equal(pthread_create(&thread, NULL, check_beside, &checker), 0);
	for (uint32_t round = 2; round < 5; round++)
		for (uint32_t e = 0; e < 300; e++)
		{
			/* Other vectors, so that lists change. */
			f->rows[(size_t) e * DIM] += 0.25f;
			assert_int_equal(insert(f, e, round), NV_OK);
			if (e % 50 == 0)
			{
				checkpoint(f);
			}
		}
	pthread_join(thread, NULL);
	free(checker.r);
}

/* --- Damage on disk --- */

static void
test_damaged_list(void **state)
{
	fixture *f = *state;
	uint64_t word = nv_store_edge_word(body->store, 7);

	flip(f, "edges",
		 nv_word_page(word) * NV_PAGE + nv_word_unit(word) * NV_UNIT + 17);
	expect(f, NV_CHECK_LISTS, false, "does not hold its list");
	assert_int_equal(run_part(f, NV_CHECK_LISTS)->n, 1);
	assert_int_equal(((nv_problem *) f->r->data)->vertex, 7);
}

static void
test_damaged_vector(void **state)
{
	fixture *f = *state;

	flip(f, "vectors",
		 nv_record_offset(DIM * sizeof(float), 31) + DIM * sizeof(float) - 1);
	expect(f, NV_CHECK_VECTORS, false, "another hash");
	assert_int_equal(run_part(f, NV_CHECK_VECTORS)->n, 1);
	assert_int_equal(((nv_problem *) f->r->data)->vertex, 31);
}

static void
test_short_vector_file(void **state)
{
	fixture *f = *state;
	char dir[300], path[400];

	index_dir(f, dir);
	snprintf(path, sizeof(path), "%s/g1/vectors", dir);
	assert_int_equal(truncate(path, NV_BLOCK), 0);
	begin(f, NV_REQ_CHECK)->u.check.part = NV_CHECK_VECTORS;
	assert_int_equal(call(f), NV_OK);
	/* More than there is room for is counted. */
	assert_int_equal(f->r->u.check.n, NV_MAX_PROBLEMS);
	assert_true(f->r->u.check.unlisted > 100);
	assert_int_equal(f->r->u.check.unlisted_damage, f->r->u.check.unlisted);
}

static void
test_damaged_state(void **state)
{
	fixture *f = *state;
	uint32_t place = nv_array_segment(&body->store->map, 0)->place;

	flip(f, "state", (uint64_t) place * NV_SEGMENT + 100);
	expect(f, NV_CHECK_STATE, false, "checksum of segment");
	flip(f, "state", (uint64_t) place * NV_SEGMENT + 100);
	expect_nothing(f);
	flip(f, "state",
		 (uint64_t) body->store->state.root_block * NV_SEGMENT + 40);
	expect(f, NV_CHECK_STATE, false, "the last root");
}

/* --- Damage in memory --- */

static void
test_element_of_another(void **state)
{
	fixture *f = *state;

	assert_int_equal(nv_store_set_element(body->store, 9, 500, 1, NULL), NV_OK);
	expect(f, NV_CHECK_ELEMENTS, false, "the vertex does not lead");
	expect(f, NV_CHECK_ELEMENTS, false, "does not name its vertex");
}

static void
test_element_of_unlinked(void **state)
{
	fixture *f = *state;
	_Atomic uint64_t *word = nv_map_field(body->store, 12, NV_MAP_WORD);

	atomic_fetch_and(word, ~NV_LINKED);
	expect(f, NV_CHECK_ELEMENTS, false, "not linked");
	expect(f, NV_CHECK_ELEMENTS, true, "are counted");
	atomic_fetch_or(word, NV_LINKED);
	atomic_fetch_add(&body->dead_vertices, 1);
	expect(f, NV_CHECK_ELEMENTS, true, "counted as deleted");
}

static uint32_t
add_vertex(nv_writer *writer, const float *row)
{
	uint8_t code[NV_PQ_MAX_BYTES] = {0};
	uint32_t vertex = 0;

	assert_int_equal(nv_store_add_vertex(
						 writer, row, nv_vector_hash(row, DIM * sizeof(float)),
						 code, &vertex, NULL),
					 NV_OK);
	return vertex;
}

static void
relink(nv_writer *writer, uint32_t v, const uint32_t *ids, uint32_t n)
{
	assert_int_equal(nv_store_relink(writer, v,
									 nv_store_edge_word(body->store, v), ids, n,
									 NULL),
					 NV_OK);
}

static void
test_bad_edges(void **state)
{
	fixture *f = *state;
	nv_writer *writer;
	uint32_t ids[3] = {4, 5, 4}, unlisted;

	assert_int_equal(nv_writer_create(body->store, &writer, NULL), NV_OK);
	relink(writer, 20, ids, 3);
	expect(f, NV_CHECK_LISTS, true, "names vertex 4 twice");
	ids[2] = unlisted = add_vertex(writer, f->rows + 100 * DIM);
	relink(writer, 20, ids, 3);
	expect(f, NV_CHECK_LISTS, true, "which has none");
	assert_int_equal(run_part(f, NV_CHECK_LISTS)->n, 1);
	ids[2] = 6;
	relink(writer, 20, ids, 3);
	assert_int_equal(run_part(f, NV_CHECK_LISTS)->n, 0);
	/* It gets a list: its vector is there twice now. */
	relink(writer, unlisted, ids, 3);
	/* That is said of vertices with rows only: a dead one is not taken back
	   when it is consolidated. */
	assert_int_equal(run_part(f, NV_CHECK_EQUAL)->n, 0);
	assert_int_equal(nv_store_set_linked(body->store, unlisted, NULL), NV_OK);
	nv_body_count_vertex(body);
	assert_int_equal(nv_body_add_element(body, f->n + 1, 1, unlisted, NULL),
					 NV_OK);
	expect(f, NV_CHECK_EQUAL, true, "its vector is that of vertex");
	nv_writer_destroy(writer);
}

static void
test_out_of_reach(void **state)
{
	fixture *f = *state;
	float row[DIM] = {1, 2, 3};
	nv_writer *writer;
	uint32_t ids[3] = {4, 5, 6}, vertex;

	assert_int_equal(nv_writer_create(body->store, &writer, NULL), NV_OK);
	vertex = add_vertex(writer, row);
	relink(writer, vertex, ids, 3);
	assert_int_equal(nv_store_set_linked(body->store, vertex, NULL), NV_OK);
	pthread_mutex_lock(&index_of_test->lock);
	nv_body_count_vertex(body);
	assert_int_equal(nv_body_add_element(body, f->n, 1, vertex, NULL), NV_OK);
	pthread_mutex_unlock(&index_of_test->lock);
	expect(f, NV_CHECK_REACH, true, "no list that can be reached");
	assert_int_equal(run_part(f, NV_CHECK_REACH)->n, 1);
	assert_int_equal(((nv_problem *) f->r->data)->vertex, vertex);
	assert_int_equal(((nv_problem *) f->r->data)->element, f->n);
	ids[0] = vertex;
	relink(writer, 20, ids, 3);
	assert_int_equal(run_part(f, NV_CHECK_REACH)->n, 0);
	nv_writer_destroy(writer);
}

/* More of them than there is room for are still no damage. */
static void
test_many_out_of_reach(void **state)
{
	fixture *f = *state;
	float row[DIM] = {1, 2, 3};
	nv_writer *writer;
	uint32_t ids[3] = {4, 5, 6};

	assert_int_equal(nv_writer_create(body->store, &writer, NULL), NV_OK);
	for (uint32_t i = 0; i < NV_MAX_PROBLEMS + 10; i++)
	{
		uint32_t vertex;

		row[3] = (float) i;
		vertex = add_vertex(writer, row);
		relink(writer, vertex, ids, 3);
		assert_int_equal(nv_store_set_linked(body->store, vertex, NULL), NV_OK);
		pthread_mutex_lock(&index_of_test->lock);
		nv_body_count_vertex(body);
		assert_int_equal(nv_body_add_element(body, f->n + i, 1, vertex, NULL),
						 NV_OK);
		pthread_mutex_unlock(&index_of_test->lock);
	}
	begin(f, NV_REQ_CHECK)->u.check.part = NV_CHECK_REACH;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(f->r->u.check.n, NV_MAX_PROBLEMS);
	assert_int_equal(f->r->u.check.unlisted, 10);
	assert_int_equal(f->r->u.check.unlisted_damage, 0);
	nv_writer_destroy(writer);
}

static void
test_space(void **state)
{
	fixture *f = *state;
	nv_edges *edges = &body->store->edges;
	uint64_t start = edges->info[0].start;

	edges->info[0].start &= start - 1;
	expect(f, NV_CHECK_SPACE, false, "another number of slots");
	edges->info[0].start = start;
	expect_nothing(f);
	/* A page in use that is on the list of free ones. */
	edges->free[edges->free_count++] = 1;
	expect(f, NV_CHECK_SPACE, false, "is free and not on the list");
	edges->free_count--;
	expect_nothing(f);
}

/* --- Against the journal --- */

static void
test_entries(void **state)
{
	fixture *f = *state;
	nv_journal_entry *entry = (nv_journal_entry *) f->r->data;
	const uint32_t *missing = (const uint32_t *) f->r->data;
	nv_req_check *c;

	begin(f, NV_REQ_CHECK)->u.check.part = NV_CHECK_ENTRIES;
	for (uint32_t e = 0; e < 10; e++)
		entry[e] = (nv_journal_entry){e, 1, hash_row(f, e)};
	entry[3].generation = 2;
	entry[6].hash ^= 1;
	entry[8].element = f->n + 5;
	f->r->u.check.n = 10;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(f->r->u.check.n, 3);
	assert_int_equal(missing[0], 3);
	assert_int_equal(missing[1], 6);
	assert_int_equal(missing[2], f->n + 5);
	/* One that is pending is there. */
	assert_int_equal(delete (f, 3, 1, 1), NV_OK);
	assert_int_equal(insert(f, 3, 2), NV_OK);
	begin(f, NV_REQ_CHECK)->u.check.part = NV_CHECK_ENTRIES;
	entry[0] = (nv_journal_entry){3, 2, hash_row(f, 3)};
	f->r->u.check.n = 1;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(f->r->u.check.n, 0);
	/* What the graph has: all but that one. */
	c = run_part(f, NV_CHECK_NAMED);
	assert_int_equal(c->n, f->n - 1);
	assert_int_equal(entry[3].element, 4);
	assert_true(entry[3].hash == hash_row(f, 4));
}

static void
test_condemn(void **state)
{
	fixture *f = *state;

	(void) run_part(f, NV_CHECK_CONDEMN);
	assert_int_equal(info(f)->state, NV_INDEX_DAMAGED);
}

#define check_test(test)                                                       \
	cmocka_unit_test_setup_teardown(test, setup_check, teardown_check)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		check_test(test_sound),
		check_test(test_not_open),
		check_test(test_beside_work),
		check_test(test_damaged_list),
		check_test(test_damaged_vector),
		check_test(test_short_vector_file),
		check_test(test_damaged_state),
		check_test(test_element_of_another),
		check_test(test_element_of_unlinked),
		check_test(test_bad_edges),
		check_test(test_out_of_reach),
		check_test(test_many_out_of_reach),
		check_test(test_space),
		check_test(test_entries),
		check_test(test_condemn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
