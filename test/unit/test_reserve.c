/*
 * test_reserve.c
 *		Places in the insert queue: given, offered, taken back, waited for,
 *		given up; who waits occupies no thread and comes on in its turn.
 */
#include "engine_fixture.h"

#include "engine_internal.h"
#include "must.h"
#include "pending.h"

#define QUEUE 4u
#define BASE 1200u
#define EXTRA 5 /* requests beside those that fill the queue */
#ifdef __SANITIZE_THREAD__
#define TOTAL 1300u
#else
#define TOTAL 1500u
#endif
#define WRITERS 4

static fixture others[QUEUE + EXTRA]; /* other backends */

static int
setup_queue(void **state)
{
	fixture *f;
	int rc = setup_with(state, NV_METRIC_L2, TOTAL);

	f = *state;
	stop_engine(f, false);
	f->config.insert_threads = 2;
	f->config.insert_queue_size = QUEUE;
	/* Too little to let rows pile up for a build. */
	f->config.pending_memory = 512 << 10;
	f->config.fsync = false;
	start_engine(f);
	build_first(f, BASE);
	for (uint32_t i = 0; i < NV_LENGTH(others); i++)
		others[i] = fork_fixture(f, 100 + i);
	return rc;
}

static int
teardown_queue(void **state)
{
	int rc = teardown(state); /* requests outlive the engine */

	for (uint32_t i = 0; i < NV_LENGTH(others); i++)
		free(others[i].r);
	return rc;
}

/* --- Requests as a backend makes them --- */

static void
submit_reserve(fixture *f)
{
	nv_request *r = begin(f, NV_REQ_RESERVE);

	r->u.reserve.place = 1;
	atomic_store(&r->place[1], NV_PLACE_WANTED);
	nv_local_submit(f->local, r);
}

/* 1: a place was given; 0: none is needed. */
static uint32_t
reserve(fixture *f)
{
	submit_reserve(f);
	must(nv_local_wait(f->local, f->r) == NV_OK);
	must(((atomic_load(&f->r->place[1]) & NV_PLACE_STATE) == NV_PLACE_TAKEN) ==
		 (f->r->u.reserve.granted == 1));
	return f->r->u.reserve.granted;
}

static nv_status
insert_placed(fixture *f, uint32_t e)
{
	nv_request *r = begin(f, NV_REQ_INSERT);

	r->u.insert = (nv_req_insert){
		.element = e,
		.generation = 1,
		.hash = hash_row(f, e),
		.lsn = 1,
		.dim = DIM,
		.place = 1,
	};
	memcpy(r->data, f->rows + (size_t) e * DIM, DIM * sizeof(float));
	return call(f);
}

static uint64_t
state_of(const fixture *f)
{
	return atomic_load(&f->r->place[1]) & NV_PLACE_STATE;
}

/* Takes an offer as a backend does. */
static bool
take_offer(fixture *f)
{
	uint64_t offered = atomic_load(&f->r->place[1]);

	return (offered & NV_PLACE_STATE) == NV_PLACE_OFFERED &&
		   atomic_compare_exchange_strong(&f->r->place[1], &offered,
										  offered | NV_PLACE_TAKEN);
}

static void
fill_queue(fixture *f)
{
	for (uint32_t i = 0; i < QUEUE; i++)
		assert_int_equal(reserve(&others[i]), 1);
	assert_int_equal(info(f)->insert_reserved, QUEUE);
}

static bool
waits(const fixture *f)
{
	usleep(50000);
	return atomic_load(&f->r->state) == NV_RUNNING;
}

static bool
comes_to(const fixture *f, uint32_t request_state)
{
	for (int i = 0; i < 1000; i++)
	{
		if (atomic_load(&f->r->state) == request_state)
			return true;
		usleep(10000);
	}
	return false;
}

static bool
in_base(uint32_t e)
{
	return e < BASE;
}

/* --- Tests --- */

static void
test_waits(void **state)
{
	fixture *f = *state;
	fixture *waiter = &others[QUEUE], *second = &others[QUEUE + 1];

	fill_queue(f);
	submit_reserve(waiter);
	assert_true(waits(waiter));
	submit_reserve(second);
	assert_true(waits(second));
	/* Nobody else does: searches, deletions, inserts without a place. */
	assert_true(recall(f, 100, in_base) > 0.9);
	assert_int_equal(delete (f, 3, 1, 1), NV_OK);

	/* A row comes and is linked: the first in the row goes on. */
	assert_int_equal(insert_placed(&others[0], BASE), NV_OK);
	assert_int_equal(nv_local_wait(f->local, waiter->r), NV_OK);
	assert_int_equal(waiter->r->u.reserve.granted, 1);
	assert_int_equal(state_of(waiter), NV_PLACE_TAKEN);
	assert_true(waits(second));
	/* Nothing was offered while others wait. */
	assert_int_equal(state_of(&others[0]), NV_PLACE_NONE);

	/* An owner gives its place up, and tells nobody. */
	atomic_store(&others[1].r->place[1], NV_PLACE_NONE);
	assert_int_equal(nv_local_wait(f->local, second->r), NV_OK);
	assert_int_equal(second->r->u.reserve.granted, 1);
	assert_int_equal(info(f)->insert_waits, 2);
	assert_true(f->r->u.info.insert_wait_ns > 0);
	assert_int_equal(f->r->u.info.insert_reserved, QUEUE);
}

static void
test_abandoned(void **state)
{
	fixture *f = *state;
	fixture *waiter = &others[QUEUE], *second = &others[QUEUE + 1];

	fill_queue(f);
	submit_reserve(waiter);
	submit_reserve(second);
	assert_true(waits(waiter));
	atomic_store(&waiter->r->place[1], NV_PLACE_NONE);
	nv_local_abandon(f->local, waiter->r);
	assert_true(comes_to(waiter, NV_IDLE));
	assert_int_equal(state_of(waiter), NV_PLACE_NONE);
	/* The place is the next one's. */
	assert_true(waits(second));
	assert_int_equal(insert_placed(&others[0], BASE), NV_OK);
	assert_int_equal(nv_local_wait(f->local, second->r), NV_OK);
	assert_int_equal(second->r->u.reserve.granted, 1);
}

/* One request a row; an offer is taken back when others need the room. */
static void
test_offered(void **state)
{
	fixture *f = *state;
	uint32_t asked = 0;

	assert_int_equal(reserve(&others[0]), 1);
	for (uint32_t e = BASE; e < BASE + 20; e++)
	{
		assert_int_equal(insert_placed(&others[0], e), NV_OK);
		await_linked(f);
		if (take_offer(&others[0]))
			continue;
		assert_int_equal(reserve(&others[0]), 1);
		asked++;
	}
	/* The queue was empty; only when files had to grow nothing was offered. */
	assert_true(asked <= 2);
	assert_int_equal(info(f)->insert_reserved, 1);
	assert_int_equal(insert_placed(&others[0], BASE + 20), NV_OK);
	await_linked(f);
	assert_int_equal(state_of(&others[0]), NV_PLACE_OFFERED);
	for (uint32_t i = 1; i <= QUEUE; i++)
		assert_int_equal(reserve(&others[i]), 1);
	assert_int_equal(state_of(&others[0]), NV_PLACE_NONE);
	assert_int_equal(info(f)->insert_reserved, QUEUE);
	/* A number that is not the engine's: the row is accepted, no more. */
	atomic_store(&others[0].r->place[1], 12345 << 2 | NV_PLACE_TAKEN);
	assert_int_equal(insert_placed(&others[0], BASE + 21), NV_OK);
	assert_int_equal(state_of(&others[0]), NV_PLACE_NONE);
	assert_int_equal(info(f)->insert_reserved, QUEUE);
}

/* Rows without a place come in all the same: catch-up brings them. */
static void
test_without(void **state)
{
	fixture *f = *state;

	fill_queue(f);
	for (uint32_t e = BASE; e < BASE + 2 * QUEUE; e++)
		assert_int_equal(insert(f, e, 1), NV_OK);
	await_linked(f);
	assert_int_equal(info(f)->insert_reserved, QUEUE);
}

static void
test_drop(void **state)
{
	fixture *f = *state;
	fixture *waiter = &others[QUEUE];

	fill_queue(f);
	submit_reserve(waiter);
	assert_true(waits(waiter));
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(nv_local_wait(f->local, waiter->r), NV_OK);
	assert_int_equal(waiter->r->u.reserve.granted, 0);
	assert_int_equal(state_of(waiter), NV_PLACE_NONE);
	/* Nor is there anything to wait for now. */
	assert_int_equal(reserve(waiter), 0);
	assert_int_equal(insert_placed(&others[0], BASE), NV_ENOENT);
}

static void
test_stop(void **state)
{
	fixture *f = *state;
	fixture *waiter = &others[QUEUE];
	nv_local *local = f->local;

	fill_queue(f);
	submit_reserve(waiter);
	assert_true(waits(waiter));
	nv_engine_stop(f->engine, true, 10000);
	f->engine = NULL;
	assert_int_equal(nv_local_wait(local, waiter->r), NV_ECANCELLED);
	for (uint32_t i = 0; i < NV_LENGTH(others); i++)
		assert_int_not_equal(state_of(&others[i]), NV_PLACE_OFFERED);
	nv_local_free(local);
	f->local = NULL;
}

/* Where nobody links nobody waits. */
static void
test_no_threads(void **state)
{
	fixture *f = *state;
	uint32_t index_state;

	stop_engine(f, true);
	f->config.insert_threads = 0;
	start_engine(f);
	for (uint32_t i = 0; i < NV_LENGTH(others); i++)
	{
		others[i].local = f->local;
		others[i].engine = f->engine;
		assert_int_equal(reserve(&others[i]), 0); /* not open */
	}
	assert_int_equal(open_index(f, BASE, 0, 0, true, &index_state), 0);
	assert_int_equal(index_state, NV_INDEX_READY);
	for (uint32_t i = 0; i < NV_LENGTH(others); i++)
		assert_int_equal(reserve(&others[i]), 0);
	assert_int_equal(info(f)->insert_reserved, 0);
}

/* --- Rows whose vector did not change --- */

static nv_status
insert_unchanged(fixture *f, uint32_t element, uint32_t row)
{
	nv_request *r = begin(f, NV_REQ_INSERT);

	r->u.insert = (nv_req_insert){
		.element = element,
		.generation = 1,
		.hash = hash_row(f, row),
		.lsn = 1,
		.dim = DIM,
		.unchanged = 1,
	};
	memcpy(r->data, f->rows + (size_t) row * DIM, DIM * sizeof(float));
	return call(f);
}

/* A vertex that is there gets another element, without a seek. */
static void
test_unchanged(void **state)
{
	fixture *f = *state;
	uint64_t vertices = info(f)->vertices, seeks = f->r->u.info.seeks;

	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(insert_unchanged(f, 5000 + i, i * 7), NV_OK);
	await_linked(f);
	assert_int_equal(f->r->u.info.vertices, vertices);
	assert_int_equal(f->r->u.info.seeks, seeks);
	assert_int_equal(f->r->u.info.inserted_equal, 100);
	/* The hint is wrong: a vertex of its own. */
	assert_int_equal(insert_unchanged(f, 5100, BASE), NV_OK);
	await_linked(f);
	assert_int_equal(f->r->u.info.vertices, vertices + 1);
	assert_int_equal(f->r->u.info.seeks, seeks + 1);
	assert_int_equal(f->r->u.info.inserted_equal, 100);
}

/* What is hurried is taken first; the others keep their order. */
static void
test_hurry(void **state)
{
	static const uint32_t order[] = {4, 2, 0, 1, 3, 5};
	_Atomic uint64_t used = 0;
	nv_pending *p = nv_pending_create(DIM, &used, 1 << 20);
	nv_journal_entry taken, entry[6];
	float row[DIM] = {0};

	for (uint32_t i = 0; i < 6; i++)
	{
		entry[i] = (nv_journal_entry){i, 1, i + 1};
		assert_int_equal(nv_pending_add(p, &entry[i], row, NULL), NV_OK);
	}
	nv_pending_hurry(p, &entry[2]);
	nv_pending_hurry(p, &entry[4]);
	nv_pending_hurry(p, &entry[4]);
	nv_pending_hurry(p, &(nv_journal_entry){3, 2, 4}); /* not there */
	assert_int_equal(nv_pending_waiting(p), 6);
	for (uint32_t i = 0; i < 6; i++)
	{
		assert_true(nv_pending_take(p, &taken, row));
		assert_int_equal(taken.element, order[i]);
		nv_pending_hurry(p, &taken); /* taken: it waits no more */
	}
	assert_false(nv_pending_take(p, &taken, row));
	nv_pending_give_back(p, &entry[1]);
	nv_pending_give_back(p, &entry[5]);
	nv_pending_hurry(p, &entry[5]);
	assert_true(nv_pending_take(p, &taken, row));
	assert_int_equal(taken.element, 5);
	nv_pending_free(p);
}

/* --- Many writers --- */

static _Atomic uint32_t next_row;

static void *
writer(void *arg)
{
	fixture *f = arg;

	for (;;)
	{
		uint32_t e = atomic_fetch_add(&next_row, 1);

		if (e >= TOTAL)
			return NULL;
		if (!take_offer(f))
			must(reserve(f) == 1);
		must(insert_placed(f, e) == NV_OK);
	}
}

/* The limit holds at every moment, and everybody comes through. */
static void
test_many(void **state)
{
	fixture *f = *state;
	pthread_t threads[WRITERS];
	uint64_t most = 0;

	atomic_store(&next_row, BASE);
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, writer, &others[i]),
						 0);
	while (atomic_load(&next_row) < TOTAL)
	{
		most = NV_MAX(most, info(f)->pending_rows);
		assert_int_equal(search(f, f->rows, 10, 50), NV_OK);
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	assert_true(most <= QUEUE);
	await_linked(f);
	assert_int_equal(info(f)->inserted, TOTAL - BASE);
	assert_true(recall(f, 100, NULL) > 0.9);
}

/* --- Memory that others have --- */

/* Another index, open, without rows. */
static fixture
small_index(fixture *f, uint64_t owner)
{
	fixture small = fork_fixture(f, owner);
	uint32_t state;

	small.key.identity[0] ^= (uint8_t) owner;
	assert_int_equal(open_index(&small, 0, 0, 0, true, &state), 0);
	assert_int_equal(info(&small)->state, NV_INDEX_READY);
	return small;
}

/*
 * Rows without a graph fill what they may have of pending_memory, whoever was
 * there first, and yet an index that has one takes and links rows and is
 * searched.
 */
static void
test_small_indexes(void **state)
{
	fixture *f = *state;
	uint64_t row = nv_pending_row_bytes(DIM), limit = 512 << 10;
	uint64_t fit = limit / 8 * 7 / row, held = 0;
	fixture small[16];
	uint32_t n;

	for (n = 0; n < NV_LENGTH(small); n++)
	{
		small[n] = small_index(f, 200 + n);
		/* Too few for a graph of their own. */
		for (uint32_t e = 0; e < 1000; e++)
			assert_int_equal(insert(&small[n], e, 1), NV_OK);
	}
	for (uint32_t i = 0; i < n; i++)
		held += info(&small[i])->pending_rows;
	assert_true(held <= fit && held > fit - 1000);
	assert_int_equal(info(&small[n - 1])->state, NV_INDEX_READY);
	assert_int_equal(info(&small[0])->state, NV_INDEX_FULL);
	for (uint32_t e = BASE; e < BASE + 60; e++)
	{
		assert_int_equal(reserve(&others[0]), 1);
		assert_int_equal(insert_placed(&others[0], e), NV_OK);
		atomic_store(&others[0].r->place[1], NV_PLACE_NONE);
		assert_int_equal(info(f)->state, NV_INDEX_READY);
	}
	await_linked(f);
	assert_int_equal(search(f, f->rows, 10, 60), NV_OK);
	for (uint32_t i = 0; i < n; i++)
		free(small[i].r);
}

/*
 * Places that nobody counts on any more, of sessions that ended or went on to
 * other indexes, make no other index wait.
 */
static void
test_left_places(void **state)
{
	fixture *f = *state;
	fixture *g = &others[QUEUE]; /* of another index */
	uint64_t limit = 512 << 10, row = nv_pending_row_bytes(DIM);
	uint32_t n;

	f->engine->config.insert_queue_size = 1 << 20;
	g->key.identity[1] ^= 1;
	build_first(g, BASE);
	for (n = 0; n < limit / row; n++)
	{
		atomic_store(&g->r->place[1], NV_PLACE_NONE);
		assert_int_equal(reserve(g), 1);
	}
	/* The last is one that somebody counts on. */
	assert_int_equal(info(g)->insert_reserved, n);
	for (n = 0; n < 3; n++)
	{
		submit_reserve(&others[n]);
		for (int i = 0; i < 5000 && atomic_load(&others[n].r->state) != NV_DONE;
			 i++)
			usleep(1000);
		assert_int_equal(atomic_load(&others[n].r->state), NV_DONE);
		assert_int_equal(nv_local_wait(f->local, others[n].r), NV_OK);
		assert_int_equal(others[n].r->u.reserve.granted, 1);
	}
	assert_int_equal(state_of(g), NV_PLACE_TAKEN);
	assert_int_equal(info(f)->insert_reserved, 3);
}

/*
 * An index with a graph that could not take a row can ask for it again as soon
 * as there is room, whether or not more rows come.
 */
static void
test_leaves_full(void **state)
{
	fixture *f = *state;
	uint64_t taken = UINT64_C(512) << 10;

	assert_int_equal(info(f)->state, NV_INDEX_READY);
	atomic_fetch_add(&f->engine->pending_bytes, taken);
	assert_int_equal(insert(f, BASE, 1), NV_ELIMIT);
	assert_int_equal(info(f)->state, NV_INDEX_FULL);
	usleep(500000);
	assert_int_equal(info(f)->state, NV_INDEX_FULL);
	atomic_fetch_sub(&f->engine->pending_bytes, taken);
	for (int i = 0; i < 20000 && info(f)->state == NV_INDEX_FULL; i++)
		usleep(1000);
	assert_int_equal(info(f)->state, NV_INDEX_OPENING);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name)                                                             \
	cmocka_unit_test_setup_teardown(name, setup_queue, teardown_queue)
		TEST(test_waits),
		TEST(test_abandoned),
		TEST(test_offered),
		TEST(test_without),
		TEST(test_drop),
		TEST(test_stop),
		TEST(test_no_threads),
		TEST(test_unchanged),
		cmocka_unit_test(test_hurry),
		TEST(test_many),
		TEST(test_small_indexes),
		TEST(test_left_places),
		TEST(test_leaves_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
