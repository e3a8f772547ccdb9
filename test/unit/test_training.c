/*
 * test_training.c
 *		Graphs that the engine builds by itself: the first one, larger ones,
 *		another codebook, also for a graph that stays; beside searches, inserts
 *and deletions; what fails.
 *
 * The order of builds depends on the machine's speed, so the tests wait for
 * what must come in the end and check every answer on the way.
 */
#include "engine_fixture.h"

#include "renew.h"
#include "retrain.h"

#ifdef __SANITIZE_THREAD__
#define TOTAL 3000u
#else
#define TOTAL 9000u
#endif
#define WAIT_SECONDS 120
#define QUERIES 60

/* Rows from FAR on are of another kind: much wider spread, elsewhere. */
#define FAR 3000u

/* --- Set-up --- */

static int
setup_training(void **state, nv_metric metric, uint32_t n)
{
	fixture *f;
	int rc = setup_with(state, metric, n);

	f = *state;
	stop_engine(f, false);
	f->config.insert_threads = 2;
	f->config.fsync = false;
	f->config.build_threads = 2;
	/* Of fewer the 99th percentile says little. */
	f->config.casr_warmup = 300;
	f->params.max_degree = 24;
	f->params.build_list_size = 40;
	start_engine(f);
	return rc;
}

static int
setup_l2(void **state)
{
	return setup_training(state, NV_METRIC_L2, TOTAL);
}

static int
setup_cos(void **state)
{
	return setup_training(state, NV_METRIC_COSINE, TOTAL);
}

static int
setup_first(void **state)
{
	return setup_training(state, NV_METRIC_L2, NV_FIRST_GRAPH_ROWS + 500);
}

/* As many rows, a quarter of what a graph needs of distinct ones. */
static int
setup_equal(void **state)
{
	int rc = setup_training(state, NV_METRIC_L2, 3000);
	fixture *f = *state;

	for (uint32_t e = NV_MIN_GRAPH_ROWS / 4; e < f->n; e++)
		memcpy(f->rows + (size_t) e * DIM,
			   f->rows + (size_t) (e % (NV_MIN_GRAPH_ROWS / 4)) * DIM,
			   DIM * sizeof(float));
	return rc;
}

#ifndef __SANITIZE_THREAD__
static int
setup_drift(void **state)
{
	int rc = setup_training(state, NV_METRIC_L2, FAR + 2500);
	fixture *f = *state;
	uint64_t random = nv_random_seed(5);

	for (uint32_t e = FAR; e < f->n; e++)
		for (uint32_t d = 0; d < DIM; d++)
			f->rows[(size_t) e * DIM + d] =
				(float) (nv_random(&random) >> 40) / (float) (1 << 16) - 300;
	return rc;
}

#endif

/* An index over an empty table. */
static void
open_empty(fixture *f)
{
	uint32_t state;

	assert_int_equal(open_index(f, 0, 0, 0, true, &state), 0);
	assert_int_equal(state, NV_INDEX_READY);
}

static void
insert_rows(fixture *f, uint32_t first, uint32_t n)
{
	for (uint32_t e = first; e < first + n; e++)
		assert_int_equal(insert(f, e, 1), NV_OK);
}

/* Until there is a graph, nothing waits for one, and nothing is pending. */
static nv_req_info *
await_graph(fixture *f, uint32_t renewals)
{
	for (int i = 0; i < WAIT_SECONDS * 100; i++)
	{
		nv_req_info *now = info(f);

		if (now->has_graph && now->renewals >= renewals && !now->building &&
			now->pending_rows == 0)
			return now;
		usleep(10000);
	}
	fail_msg("no graph after %d s: %u renewals, %llu rows pending",
			 WAIT_SECONDS, f->r->u.info.renewals,
			 (unsigned long long) f->r->u.info.pending_rows);
	return NULL;
}

static void
await_building(fixture *f)
{
	for (int i = 0; i < WAIT_SECONDS * 1000; i++)
	{
		nv_req_info *now = info(f);

		if (now->building && now->build_phase >= NV_PHASE_TRAIN)
		{
			assert_int_equal(now->build_own, 1);
			return;
		}
		usleep(1000);
	}
	fail_msg("no build after %d s", WAIT_SECONDS);
}

/* Of the rows [0, n): share of the 10 nearest found; alive NULL: all live. */
static double
recall_among(fixture *f, uint32_t n, const float *queries, uint32_t n_queries,
			 bool (*alive)(uint32_t e))
{
	fixture part = *f;
	uint32_t found = 0;

	part.n = n;
	for (uint32_t q = 0; q < n_queries; q++)
	{
		const float *query = queries + (size_t) q * DIM;
		double bound = kth_distance(&part, query, 10, alive);
		const nv_hit *hits = (const nv_hit *) f->r->data;

		assert_int_equal(search(f, query, 10, 100), NV_OK);
		assert_int_equal(f->r->u.search.n, 10);
		for (uint32_t i = 0; i < 10; i++)
		{
			assert_true(hits[i].element < n);
			assert_true(alive == NULL || alive(hits[i].element));
			assert_true(hits[i].distance ==
						distance(f, query, hits[i].element));
			for (uint32_t j = 0; j < i; j++)
				assert_int_not_equal(hits[i].element, hits[j].element);
			found += hits[i].distance <= bound;
		}
	}
	return found / (10.0 * n_queries);
}

static double
recall_now(fixture *f, uint32_t n, uint32_t n_queries)
{
	float queries[QUERIES * DIM];

	assert_true(n_queries <= QUERIES);
	make_rows(queries, n_queries, 79);
	return recall_among(f, n, queries, n_queries, NULL);
}

/* --- The first graph --- */

/* Exact before, at least 0.95 during and after; the same after a restart. */
static void
test_first_graph(void **state)
{
	fixture *f = *state;
	nv_req_info *i;
	uint32_t opened;

	open_empty(f);
	insert_rows(f, 0, NV_FIRST_GRAPH_ROWS - 1);
	usleep(500000);
	i = info(f);
	assert_int_equal(i->has_graph, 0);
	assert_int_equal(i->state, NV_INDEX_READY);
	assert_int_equal(i->pending_rows, NV_FIRST_GRAPH_ROWS - 1);
	assert_int_equal(i->renewals + i->renewals_failed, 0);
	assert_true(recall_now(f, NV_FIRST_GRAPH_ROWS - 1, 20) == 1);

	insert_rows(f, NV_FIRST_GRAPH_ROWS - 1, 1);
	await_building(f);
	assert_true(recall_now(f, NV_FIRST_GRAPH_ROWS, 20) >= 0.95);
	/* These come while it runs, or right after it. */
	insert_rows(f, NV_FIRST_GRAPH_ROWS, 500);
	assert_true(recall_now(f, f->n, 20) >= 0.95);
	i = await_graph(f, 1);
	assert_int_equal(i->renewals, 1);
	assert_int_equal(i->state, NV_INDEX_READY);
	assert_true(i->built >= NV_FIRST_GRAPH_ROWS && i->code_error > 0);
	assert_int_equal(i->vertices - i->deleted, f->n);
	assert_true(recall_now(f, f->n, QUERIES) >= 0.95);

	stop_engine(f, true);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &opened), 0);
	assert_true(recall_now(f, f->n, QUERIES) >= 0.95);
	assert_int_equal(info(f)->renewals, 0);
}

/* Too few distinct vectors: they stay, and it is not tried all the time. */
static void
test_equal_rows_get_none(void **state)
{
	fixture *f = *state;
	nv_req_info *i;

	open_empty(f);
	insert_rows(f, 0, f->n);
	usleep(1500000);
	i = info(f);
	assert_int_equal(i->has_graph, 0);
	assert_int_equal(i->building, 0);
	assert_int_equal(i->pending_rows, f->n);
	assert_int_equal(i->renewals + i->renewals_failed, 0);
	assert_int_equal(search(f, f->rows, 10, 100), NV_OK);
	assert_true(((nv_hit *) f->r->data)[9].distance == 0);
}

/* --- A load, with everything beside it --- */

typedef struct world
{
	fixture f;
	_Atomic bool stop;
	uint32_t first;        /* of the rows that are searched for */
	uint32_t pause_us;     /* between searches: background work has nice */
	_Atomic uint32_t rows; /* that are in */
	_Atomic uint64_t searches, misses, failures;
	pthread_t thread;
} world;

/* Rows that are in are found by their own vectors, whatever is built. */
static void *
searcher_thread(void *arg)
{
	world *w = arg;
	uint64_t random = nv_random_seed(3);

	while (!atomic_load(&w->stop))
	{
		uint32_t rows = atomic_load(&w->rows);
		uint32_t some = NV_MAX(rows, w->first + 1) - w->first;
		uint32_t e = w->first + (uint32_t) nv_random_below(&random, some);
		const nv_hit *hits = (const nv_hit *) w->f.r->data;
		const float *query = w->f.rows + (size_t) e * DIM;
		bool found = false;

		if (rows < 10)
			continue;
		usleep(w->pause_us);
		if (search(&w->f, query, 10, 100) != NV_OK || w->f.r->u.search.n != 10)
			atomic_fetch_add(&w->failures, 1);
		for (uint32_t i = 0; i < w->f.r->u.search.n; i++)
			found |= hits[i].element == e;
		atomic_fetch_add(&w->misses, !found);
		atomic_fetch_add(&w->searches, 1);
	}
	return NULL;
}

static void
test_load_into_empty(void **state)
{
	fixture *f = *state;
	world *w = nv_alloc(sizeof(*w));
	nv_req_info *i;

	open_empty(f);
	w->f = fork_fixture(f, 9);
	assert_int_equal(pthread_create(&w->thread, NULL, searcher_thread, w), 0);
	for (uint32_t e = 0; e < f->n; e++)
	{
		assert_int_equal(insert(f, e, 1), NV_OK);
		atomic_store(&w->rows, e + 1);
	}
	i = await_graph(f, 1);
	assert_int_equal(i->state, NV_INDEX_READY);
	assert_int_equal(i->vertices - i->deleted, f->n);
	assert_int_equal(i->renewals_failed, 0);
	/* Never far behind what there is. */
	assert_true(i->built * NV_RENEW_GROWTH >= f->n);
	atomic_store(&w->stop, true);
	pthread_join(w->thread, NULL);
	assert_int_equal(w->failures, 0);
	assert_true(w->searches > 100);
	/* A row is its own nearest: nearly always found at this list size. */
	assert_true((double) w->misses <= 0.005 * (double) w->searches);
	assert_true(recall_now(f, f->n, QUERIES) >= 0.95);
	free(w->f.r);
	free(w);
}

/* --- Deletions during a build --- */

static bool
alive_after(uint32_t e)
{
	return e >= 700 || (e >= 300 && e < 400);
}

/*
 * Deleted and replaced while the build runs: rows 0 .. 299 go, 300 .. 399 come
 * again in generation 2, 400 .. 699 go as pending ones right after it began.
 */
static void
test_delete_during_build(void **state)
{
	fixture *f = *state;
	float queries[20 * DIM];
	nv_req_info *i;

	open_empty(f);
	insert_rows(f, 0, f->n);
	await_building(f);
	assert_int_equal(delete (f, 0, 400, 1), NV_OK);
	for (uint32_t e = 300; e < 400; e++)
		assert_int_equal(insert(f, e, 2), NV_OK);
	assert_int_equal(delete (f, 400, 300, 1), NV_OK);
	i = await_graph(f, 1);
	assert_int_equal(i->vertices - i->deleted, f->n - 600);
	memcpy(queries, f->rows + 290 * DIM, sizeof(queries));
	assert_true(recall_among(f, f->n, queries, 20, alive_after) >= 0.95);
	for (uint32_t e = 0; e < 700; e += 50)
	{
		const nv_hit *hits = (const nv_hit *) f->r->data;

		assert_int_equal(search(f, f->rows + (size_t) e * DIM, 200, 400),
						 NV_OK);
		for (uint32_t h = 0; h < f->r->u.search.n; h++)
		{
			assert_true(alive_after(hits[h].element));
			assert_int_equal(hits[h].generation, hits[h].element < 400 ? 2 : 1);
		}
	}
}

/* --- Two rows of one element in a build --- */

/* Without insert threads nothing is built and linked but what a test does. */
static int
setup_by_hand(void **state)
{
	return setup_with(state, NV_METRIC_L2, NV_MIN_GRAPH_ROWS + 100);
}

static void
give_row(fixture *f, nv_build *b, uint32_t e, uint32_t generation)
{
	nv_journal_entry entry = {e, generation, hash_row(f, e)};

	assert_int_equal(
		nv_build_own_add(b, &entry, f->rows + (size_t) e * DIM, NULL), NV_OK);
}

/* The element's row is deleted, and another one of it waits. */
static void
replace_row(fixture *f, uint32_t e)
{
	assert_int_equal(delete (f, e, 1, 1), NV_OK);
	make_rows(f->rows + (size_t) e * DIM, 1, 500 + e);
	assert_int_equal(insert(f, e, 2), NV_OK);
}

/*
 * A build reads rows of the old graph, two of these elements get other rows,
 * which it finds waiting; one is deleted again.  What was deleted is the first
 * row of the one that stays, and both of the other.
 */
static void
test_element_read_twice(void **state)
{
	const uint32_t stays = 7, goes = 300;
	fixture *f = *state;
	const nv_hit *hits = (const nv_hit *) f->r->data;
	nv_req_build result;
	nv_index *index;
	nv_build *b;

	build_all(f);
	index = nv_index_get(f->engine, &f->key, false);
	assert_int_equal(
		nv_build_own_begin(index, f->n, UINT64_C(1) << 30, 2, &b, NULL), NV_OK);
	for (uint32_t e = 0; e < f->n; e++)
		give_row(f, b, e, 1);
	replace_row(f, stays);
	replace_row(f, goes);
	give_row(f, b, stays, 2);
	give_row(f, b, goes, 2);
	assert_int_equal(delete (f, goes, 1, 2), NV_OK);
	assert_int_equal(nv_build_own_end(b, NV_OK, &result, NULL), NV_OK);
	nv_index_put(index);

	assert_int_equal(info(f)->pending_rows, 0);
	assert_int_equal(info(f)->vertices - info(f)->deleted, f->n - 1);
	assert_int_equal(search(f, f->rows + (size_t) stays * DIM, 10, 100), NV_OK);
	assert_true(hits[0].element == stays && hits[0].generation == 2);
	assert_true(hits[0].distance == 0);
	assert_int_equal(search(f, f->rows + (size_t) goes * DIM, 10, 100), NV_OK);
	for (uint32_t h = 0; h < f->r->u.search.n; h++)
		assert_int_not_equal(hits[h].element, goes);
}

#ifndef __SANITIZE_THREAD__ /* they take long, and do the same */
/* --- Growth and drift --- */

/* Rows one by one, at a pace that linking can keep. */
static void
test_growth(void **state)
{
	fixture *f = *state;
	uint32_t first = 1100;
	nv_req_info *i;

	assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, first), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	for (uint32_t e = first; e < 4 * first + 100; e++)
	{
		assert_int_equal(insert(f, e, 1), NV_OK);
		if (e % 200 == 0)
			for (int wait = 0; wait < 1000 && info(f)->pending_rows > 400;
				 wait++)
				usleep(10000);
	}
	i = await_graph(f, 1);
	assert_true(i->built >= 4 * first);
	assert_true(i->inserted > 0); /* the rest was linked */
	assert_true(recall_now(f, 4 * first + 100, QUERIES) >= 0.95);
}

static bool
alive_far(uint32_t e)
{
	return e >= FAR;
}

/*
 * Rows of another kind: their codes tell little until the codebook is trained
 * on them.  Code-only recall is what it was, so the test looks at codes alone
 * by the error, and at the answers.
 */
static void
test_drift(void **state)
{
	fixture *f = *state;
	double before, after;
	nv_req_info *i;

	assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, FAR), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	before = info(f)->code_error;
	assert_true(info(f)->drift < NV_DRIFT_FACTOR);
	for (uint32_t e = FAR; e < f->n; e++)
	{
		assert_int_equal(insert(f, e, 1), NV_OK);
		/* Backlogs are not what this is about. */
		if (e % 100 == 0)
			for (int wait = 0; wait < 1000 && info(f)->pending_rows > 400;
				 wait++)
				usleep(10000);
	}
	i = await_graph(f, 1);
	after = i->code_error;
	assert_true(i->built >= FAR + NV_DRIFT_MIN_ROWS / 2);
	assert_true(after > 2 * before);
	assert_true(i->drift < NV_DRIFT_FACTOR);
	assert_true(i->renewals <= 2); /* not again and again */
	/* Answers about the new rows are as good as those about the old were. */
	assert_true(recall_among(f, f->n, f->rows + (size_t) (f->n - 40) * DIM, 40,
							 alive_far) >= 0.95);
	assert_true(recall_now(f, f->n, QUERIES) >= 0.95);
}
#endif

/* --- Another codebook for a graph that stays --- */

#define KEPT 1100u
#define DRIFTED 1250u
#ifdef __SANITIZE_THREAD__
#define SEARCH_PAUSE_US 10000
#else
#define SEARCH_PAUSE_US 2000
#endif
#define HELD_BACK 120u /* rows that come while it is retrained */

/* Rows from KEPT on are some of clusters elsewhere, ten times as wide. */
static int
setup_retrain(void **state)
{
	int rc = setup_training(state, NV_METRIC_L2, KEPT + DRIFTED);
	fixture *f = *state;

	stop_engine(f, false);
	f->config.casr_warmup = 150;
	start_engine(f);
	for (uint32_t e = KEPT; e < f->n; e++)
		for (uint32_t d = 0; d < DIM; d++)
			f->rows[(size_t) e * DIM + d] =
				10 * f->rows[(size_t) e * DIM + d] - 100;
	return rc;
}

static void
insert_paced(fixture *f, uint32_t first, uint32_t end)
{
	for (uint32_t e = first; e < end; e++)
	{
		assert_int_equal(insert(f, e, 1), NV_OK);
		if (e % 100 == 0)
			for (int wait = 0; wait < 1000 && info(f)->pending_rows > 400;
				 wait++)
				usleep(10000);
	}
}

/* A graph over the first rows, and then only memory for other codes. */
static void
build_and_forbid(fixture *f)
{
	nv_body *body;
	nv_index *index;
	uint64_t memory;

	assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, KEPT), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	index = nv_index_get(f->engine, &f->key, false);
	assert_non_null(index);
	body = nv_index_body(index);
	memory = nv_retrain_memory(body, f->n + 100);
	assert_true(memory < nv_build_memory(&index->params, KEPT, 1));
	nv_engine_set_build(f->engine, memory, 2);
	nv_body_put(body);
	nv_index_put(index);
}

/* As searches use it, and as it is saved. */
static void
check_codebook_memory(fixture *f)
{
	nv_index *index = nv_index_get(f->engine, &f->key, false);
	nv_body *body = nv_index_body(index);
	uint64_t twice = nv_pq_memory(body->pq) + nv_pq_saved_size(body->pq);

	assert_true(nv_pq_memory(body->pq) >= 2 * (uint64_t) nv_pq_gdim(body->pq) *
											  NV_PQ_CENTROIDS * sizeof(float));
	assert_true(info(f)->memory_other >= twice);
	nv_body_put(body);
	nv_index_put(index);
}

static void
await_retraining(fixture *f)
{
	for (int i = 0; i < WAIT_SECONDS * 1000; i++)
	{
		nv_req_info *now = info(f);

		if (now->retraining || now->retrained > 0)
			return;
		usleep(1000);
	}
	fail_msg("not retrained after %d s: drift %.2f", WAIT_SECONDS,
			 (double) f->r->u.info.drift);
}

static nv_req_info *
await_retrained(fixture *f)
{
	for (int i = 0; i < WAIT_SECONDS * 100; i++)
	{
		nv_req_info *now = info(f);

		if (now->retrained > 0 && !now->retraining && now->pending_rows == 0)
			return now;
		usleep(10000);
	}
	fail_msg("no other codebook after %d s", WAIT_SECONDS);
	return NULL;
}

#define GONE 280u /* first rows that are deleted meanwhile */

static bool
alive_retrained(uint32_t e)
{
	return e >= GONE;
}

/* Of the nearest of the last rows and of rows that were there before. */
static void
check_recall(fixture *f)
{
	float queries[QUERIES * DIM];

	make_rows(queries, QUERIES, 79);
	assert_true(recall_among(f, f->n, queries, QUERIES, alive_retrained) >=
				0.95);
	assert_true(recall_among(f, f->n, f->rows + (size_t) (f->n - 40) * DIM, 40,
							 alive_retrained) >= 0.95);
}

/*
 * The graph stays, searches go on all the time, rows come and go all the time
 * (and so many that the dead are taken out of the graph), and the drifted rows
 * are found as well afterwards as the others.
 */
static void
test_retrain(void **state)
{
	fixture *f = *state;
	world *w = nv_alloc(sizeof(*w));
	uint32_t opened;
	double before;
	nv_req_info *i;

	build_and_forbid(f);
	check_codebook_memory(f);
	before = info(f)->code_error;
	w->f = fork_fixture(f, 9);
	w->first = GONE;
	w->pause_us = SEARCH_PAUSE_US;
	atomic_store(&w->rows, KEPT);
	assert_int_equal(pthread_create(&w->thread, NULL, searcher_thread, w), 0);
	insert_paced(f, KEPT, f->n - HELD_BACK);
	await_retraining(f);
	assert_int_equal(delete (f, 0, GONE, 1), NV_OK);
	insert_paced(f, f->n - HELD_BACK, f->n);
	i = await_retrained(f);
	assert_int_equal(i->renewals + i->renewals_failed, 0);
	assert_int_equal(i->built, KEPT);
	assert_true(i->code_error > 2 * before);
	assert_true(i->drift < NV_DRIFT_FACTOR);
	assert_int_equal(i->vertices - i->deleted, f->n - GONE);
	check_recall(f);
	atomic_store(&w->stop, true);
	pthread_join(w->thread, NULL);
	assert_int_equal(w->failures, 0);
	assert_true(w->searches > 100);
	assert_true((double) w->misses <= 0.005 * (double) w->searches);
	/* What was published has codes and codebook that fit. */
	stop_engine(f, true);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, GONE, true, &opened), 0);
	assert_true(info(f)->code_error > 2 * before);
	check_recall(f);
	free(w->f.r);
	free(w);
}

#ifndef __SANITIZE_THREAD__ /* they take long, and add little */
/* Killed in the middle: the old codes or the new ones, and all is right. */
static void
test_retrain_crash(void **state)
{
	fixture *f = *state;
	uint32_t opened;
	double before, after;

	build_and_forbid(f);
	before = info(f)->code_error;
	insert_paced(f, KEPT, f->n);
	await_linked(f);
	await_retraining(f);
	checkpoint(f); /* before the switch, or after it */
	stop_engine(f, false);
	start_engine(f);
	nv_engine_set_build(f->engine, 0, 2);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &opened), 0);
	after = info(f)->code_error;
	assert_true(after == before || after > 2 * before);
	assert_int_equal(info(f)->vertices - info(f)->deleted, f->n);
	assert_true(recall_now(f, f->n, QUERIES) >= 0.95);
}

/*
 * A scan that began with the old codes is told to begin anew; nothing else
 * would tell it, for no row is deleted.
 */
static void
test_retrain_cursor(void **state)
{
	fixture *f = *state;
	uint64_t cursor;

	build_and_forbid(f);
	assert_int_equal(search(f, f->rows, 10, 40), NV_OK);
	cursor = f->r->u.search.cursor;
	assert_true(cursor != 0);
	insert_paced(f, KEPT, f->n);
	(void) await_retrained(f);
	begin(f, NV_REQ_NEXT)->u.search.cursor = cursor;
	f->r->u.search.k = 10;
	assert_int_equal(call(f), NV_ENOENT);
}

/* Dropped in the middle. */
static void
test_retrain_drop(void **state)
{
	fixture *f = *state;
	char dir[300];

	build_and_forbid(f);
	insert_paced(f, KEPT, f->n);
	await_retraining(f);
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	index_dir(f, dir);
	for (int i = 0; i < 3000 && access(dir, F_OK) == 0; i++)
		usleep(10000);
	assert_int_not_equal(access(dir, F_OK), 0);
}
#endif

/* What is retrained, by the test's own thread, and where it is cut short. */
typedef struct cut
{
	nv_engine *engine;
	nv_store *store;
	uint32_t pauses, at; /* 0: never */
	uint32_t with_codes; /* times it had begun with the codes */
} cut;

/* Somebody else wants the memory. */
static void
cut_short(void *arg)
{
	cut *c = arg;
	nv_vertex_codes codes;

	if (++c->pauses != c->at)
		return;
	nv_store_codings(c->store, &codes);
	c->with_codes += codes.next != NULL;
	atomic_store(&c->engine->renew_after_ns, UINT64_MAX);
}

static uint64_t
codes_memory(nv_store *store)
{
	nv_store_stats stats;

	nv_store_get_stats(store, &stats);
	return stats.memory_codes;
}

/*
 * Cut short at every place where it rests, it leaves no codes in the making
 * behind and can begin anew; at last it comes to its end.
 */
static void
test_retrain_cut(void **state)
{
	fixture *f = *state;
	nv_index *index;
	nv_body *body;
	cut c = {.engine = f->engine};
	uint64_t memory;

	build_and_forbid(f);
	index = nv_index_get(f->engine, &f->key, false);
	body = nv_index_body(index);
	c.store = body->store;
	memory = codes_memory(c.store);
	for (uint32_t i = 0; i < 2 * NV_DRIFT_MIN_ROWS; i++)
		nv_drift_add(&body->drift, 100 * nv_drift_trained(&body->drift));
	f->engine->pause = cut_short;
	f->engine->pause_arg = &c;
	while (index->retrained == 0)
	{
		nv_vertex_codes codes;

		c.pauses = 0;
		c.at++;
		assert_true(nv_retrain_next(f->engine));
		atomic_store(&f->engine->renew_after_ns, 0);
		nv_store_codings(c.store, &codes);
		assert_null(codes.next);
		assert_int_equal(codes_memory(c.store), memory);
	}
	assert_true(c.with_codes >= 3);
	f->engine->pause = NULL;
	assert_true(recall_now(f, KEPT, QUERIES) >= 0.95);
	nv_body_put(body);
	nv_index_put(index);
}

/* --- What fails, and who goes first --- */

/* No room for the files: rows stay pending, answers right, then it comes. */
static void
test_failure(void **state)
{
	fixture *f = *state;
	char dir[300];
	FILE *file;

	open_empty(f);
	index_dir(f, dir);
	assert_true(exists(dir, "navis.sidecar")); /* so that it can be dropped */
	remove_all(dir);
	file = fopen(dir, "w"); /* where its directory should be */
	assert_non_null(file);
	fclose(file);
	insert_rows(f, 0, f->n);
	for (int i = 0; i < WAIT_SECONDS * 100 && info(f)->renewals_failed == 0;
		 i++)
		usleep(10000);
	assert_int_equal(info(f)->state, NV_INDEX_READY);
	assert_true(info(f)->renewals_failed >= 1);
	assert_int_equal(info(f)->pending_rows, f->n);
	assert_true(recall_now(f, f->n, 20) == 1);
	assert_int_equal(unlink(dir), 0);
	assert_int_equal(await_graph(f, 1)->renewals, 1);
	assert_true(recall_now(f, f->n, QUERIES) >= 0.95);
}

/* What does not fit build_memory is not begun; raising it is noticed. */
static void
test_build_memory(void **state)
{
	fixture *f = *state;
	nv_req_info *i;

	nv_engine_set_build(f->engine, UINT64_C(1) << 18, 2);
	open_empty(f);
	insert_rows(f, 0, f->n);
	usleep(600000);
	i = info(f);
	assert_int_equal(i->has_graph + i->building + i->renewals_failed, 0);
	nv_engine_set_build(f->engine, UINT64_C(1) << 30, 2);
	await_graph(f, 1);
}

/* A build that is asked for needs the memory: the engine's own begins anew. */
static void
test_give_way(void **state)
{
	fixture *f = *state;
	fixture other = fork_fixture(f, 7);
	uint64_t memory = UINT64_C(48) << 20;

	nv_engine_set_build(f->engine, memory, 2);
	open_empty(f);
	insert_rows(f, 0, f->n);
	await_building(f);
	other.key.identity[0] ^= 255;
	/* All of it is wanted. */
	while (other.n * UINT64_C(1000) < memory)
		other.n += 1000;
	assert_int_not_equal(build_begin(&other, false, memory / 16), NV_OK);
	other.n = f->n;
	assert_int_equal(build_begin(&other, false, memory / 2), NV_OK);
	assert_int_equal(build_add(&other, 0, other.n), NV_OK);
	assert_int_equal(build_run(&other), NV_OK);
	await_graph(f, 1);
	assert_int_equal(info(f)->renewals_failed, 0);
	free(other.r);
}

/* Stopped, or killed, in the middle: the old state, and then the graph. */
static void
test_stop_and_drop(void **state)
{
	fixture *f = *state;
	char dir[300];
	uint32_t opened;

	open_empty(f);
	insert_rows(f, 0, f->n);
	await_building(f);
	stop_engine(f, true);
	start_engine(f);
	assert_int_equal(open_index(f, 0, 0, 0, true, &opened), 0);
	assert_int_equal(opened, NV_INDEX_READY);
	assert_int_equal(info(f)->has_graph, 0);
	insert_rows(f, 0, f->n);
	await_graph(f, 1);
	/* Twice as many again, as others, and gone while it is built. */
	for (uint32_t e = 0; e < f->n; e++)
		f->rows[(size_t) e * DIM] += 1;
	for (uint32_t e = 0; e < f->n; e++)
		assert_int_equal(insert(f, e, 2), NV_OK);
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	index_dir(f, dir);
	for (int i = 0; i < 3000 && access(dir, F_OK) == 0; i++)
		usleep(10000);
	assert_int_not_equal(access(dir, F_OK), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_first_graph, setup_first,
										teardown),
		cmocka_unit_test_setup_teardown(test_equal_rows_get_none, setup_equal,
										teardown),
		cmocka_unit_test_setup_teardown(test_load_into_empty, setup_cos,
										teardown),
		cmocka_unit_test_setup_teardown(test_delete_during_build, setup_l2,
										teardown),
		cmocka_unit_test_setup_teardown(test_element_read_twice, setup_by_hand,
										teardown),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test_setup_teardown(test_growth, setup_l2, teardown),
		cmocka_unit_test_setup_teardown(test_drift, setup_drift, teardown),
#endif
		cmocka_unit_test_setup_teardown(test_retrain, setup_retrain, teardown),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test_setup_teardown(test_retrain_crash, setup_retrain,
										teardown),
		cmocka_unit_test_setup_teardown(test_retrain_cursor, setup_retrain,
										teardown),
		cmocka_unit_test_setup_teardown(test_retrain_drop, setup_retrain,
										teardown),
#endif
		cmocka_unit_test_setup_teardown(test_retrain_cut, setup_by_hand,
										teardown),
		cmocka_unit_test_setup_teardown(test_failure, setup_first, teardown),
		cmocka_unit_test_setup_teardown(test_build_memory, setup_first,
										teardown),
		cmocka_unit_test_setup_teardown(test_give_way, setup_first, teardown),
		cmocka_unit_test_setup_teardown(test_stop_and_drop, setup_first,
										teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
