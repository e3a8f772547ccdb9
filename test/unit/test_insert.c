/*
 * test_insert.c
 *		Rows that leave the queue for the graph: beside searches, deletions and
 *		checkpoints; equal rows; crashes; what the graph looks like afterwards.
 */
#include "engine_threads.h"

#include <unistd.h>

#include "engine_internal.h"
#include "io_internal.h"
#include "store_internal.h"

/* Sanitizer builds run on fewer rows. */
#ifdef __SANITIZE_THREAD__
#define TOTAL 2400u
#define STRIDE 20
#define QUERIES 50
#define ADDED 120u
#elif defined(__SANITIZE_ADDRESS__)
#define TOTAL 3000u
#define STRIDE 5
#define QUERIES 100
#define ADDED 400u
#else
#define TOTAL 4000u
#define STRIDE 2
#define QUERIES 100
#define ADDED 400u
#endif
#define BASE (TOTAL / 2)
#define NARROW_DEGREE 8
#define INSERTERS 2
#define SEARCHERS 2

/* --- Set-up --- */

static int
setup_insert(void **state, nv_metric metric, uint32_t n)
{
	int rc = setup_linking(state, metric, n);
	fixture *f = *state;

	stop_engine(f, false);
	f->config.build_memory = 0; /* all rows are linked: test_training.c */
	start_engine(f);
	return rc;
}

static int
setup_l2(void **state)
{
	return setup_insert(state, NV_METRIC_L2, TOTAL);
}

/*
 * Nobody asks for a checkpoint before 2,048 lists are dead, and only lists that
 * a root names stay dead until the next one: so many must be rewritten.
 */
#define CHURN_BASE 3000u
#define CHURN_ROWS 700u

static int
setup_churn(void **state)
{
	return setup_insert(state, NV_METRIC_L2, CHURN_BASE + CHURN_ROWS);
}

#ifndef __SANITIZE_THREAD__
static int
setup_cos(void **state)
{
	return setup_insert(state, NV_METRIC_COSINE, TOTAL);
}

static int
setup_inner(void **state)
{
	return setup_insert(state, NV_METRIC_IP, TOTAL);
}
#endif

static int
setup_equal(void **state)
{
	return setup_insert(state, NV_METRIC_L2, 7200);
}

/*
 * Opens as a backend does and hands over what was missing: rows 0 .. n - 1 in
 * generation 1.  Returns how many were missing; rows that do not fit are tried
 * again.
 */
static uint32_t
catch_up(fixture *f, uint32_t n)
{
	uint32_t missing[400], all = 0;
	uint64_t pass;

	begin(f, NV_REQ_OPEN)->u.open.params = f->params;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(f->r->u.open.state, NV_INDEX_OPENING);
	pass = f->r->u.open.pass;
	for (uint32_t e = 0; e < n; e += NV_LENGTH(missing))
	{
		nv_request *r = begin(f, NV_REQ_RECONCILE);
		nv_journal_entry *entry = (nv_journal_entry *) r->data;
		uint32_t found;

		r->u.reconcile.pass = pass;
		for (uint32_t i = e; i < n && i < e + NV_LENGTH(missing); i++)
			entry[r->u.reconcile.n++] =
				(nv_journal_entry){i, 1, hash_row(f, i)};
		assert_int_equal(call(f), NV_OK);
		found = f->r->u.reconcile.n_missing;
		memcpy(missing, f->r->data, found * sizeof(*missing));
		for (uint32_t i = 0; i < found; i++)
			while (insert(f, missing[i], 1) != NV_OK)
				usleep(1000);
		all += found;
	}
	begin(f, NV_REQ_OPENED)->u.opened.pass = pass;
	f->r->u.opened.complete = true;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(f->r->u.opened.state, NV_INDEX_READY);
	return all;
}

/* --- Inserting beside everything else --- */

static void *
insert_thread(void *arg)
{
	worker *me = arg;
	world *w = me->w;
	fixture f = me->f;

	for (;;)
	{
		uint32_t e = atomic_fetch_add(&w->next, 1);

		if (e >= f.n)
			break;
		must(insert(&f, e, 1) == NV_OK);
		atomic_store(&w->generation[e], 1);
	}
	free(f.r);
	return NULL;
}

static void *
search_thread(void *arg)
{
	worker *me = arg;
	world *w = me->w;
	fixture f = me->f;
	uint64_t seed = nv_random_seed(me->number);

	while (!atomic_load(&w->stop))
	{
		uint32_t most = NV_MIN(atomic_load(&w->next), f.n);
		uint32_t e = (uint32_t) nv_random_below(&seed, most);

		/* Recent ones more often: they are on their way. */
		if (nv_random_below(&seed, 2) == 0)
			e = most - 1 - e % NV_MIN(most, 300u);
		if (atomic_load(&w->generation[e]) == 0)
			continue;
		if (!finds_itself(&f, e, 1, 100))
			atomic_fetch_add(&w->misses, 1);
		atomic_fetch_add(&w->searches, 1);
	}
	free(f.r);
	return NULL;
}

/* The same rows in an index of their own that was built at once. */
static double
fresh_recall(fixture *f, uint32_t list, uint64_t *edge_bytes)
{
	fixture fresh = *f;
	double recall;

	fresh.key.identity[0] ^= 255;
	build_all(&fresh);
	recall = recall_over(&fresh, QUERIES, list, NULL);
	*edge_bytes = info(&fresh)->edge_bytes;
	begin(&fresh, NV_REQ_DROP);
	assert_int_equal(call(&fresh), NV_OK);
	return recall;
}

static void
check_counters(fixture *f)
{
	nv_req_info *i = info(f);

	assert_int_equal(i->inserted, f->n - BASE);
	assert_true(i->vertices >= f->n - 20 && i->vertices <= f->n);
	assert_int_equal(i->seeks + i->inserted_equal, i->inserted);
	assert_true(i->seek_explored > 60 * i->seeks);
	assert_true(i->seek_pages > 0 && i->seek_vectors > 10 * i->seeks);
	assert_true(i->relinks >= i->seeks && i->overflows > 0);
	assert_int_equal(i->insert_failures, 0);
	assert_int_equal(i->insert_queue, 0);
	assert_int_equal(i->insert_threads, 2);
	assert_int_equal(i->deleted, 0);
	/* 1 % of what there is. */
	assert_int_equal(i->promotions, i->entrance_members - (BASE + 50) / 100);
	assert_true(i->entrance_live >= i->vertices / 100 - 1 &&
				i->entrance_live <= i->vertices / 100 + 2);
}

static void
test_insert_beside(void **state)
{
	fixture *f = *state;
	world w = {.f = f};
	worker workers[INSERTERS + SEARCHERS + 1];
	uint32_t n = 0;
	uint64_t fresh_bytes;
	double fresh, grown;
	graph_shape shape;

	build_first(f, BASE);
	w.generation = nv_alloc_array(f->n, sizeof(*w.generation));
	atomic_store(&w.next, BASE);
	for (uint32_t e = 0; e < BASE; e++)
		atomic_store(&w.generation[e], 1);
	for (int i = 0; i < INSERTERS; i++)
		start_worker(&w, workers, &n, insert_thread);
	for (int i = 0; i < SEARCHERS; i++)
		start_worker(&w, workers, &n, search_thread);
	start_worker(&w, workers, &n, checkpoint_thread);
	join_workers(workers, 0, INSERTERS);
	await_linked(f);
	atomic_store(&w.stop, true);
	join_workers(workers, INSERTERS, n);
	check_counters(f);
	for (uint32_t e = 0; e < f->n; e++)
		if (e >= BASE || e % STRIDE == 0)
			w.misses += !finds_itself(f, e, 1, 100);
	grown = recall_over(f, QUERIES, 40, NULL);
	fresh = fresh_recall(f, 40, &fresh_bytes);
	checkpoint(f);
	stop_engine(f, false);
	shape = check_graph(f);
	print_message("%llu searches, %llu misses; recall %.4f, fresh %.4f; degree "
				  "%.1f, %u orphans, edge file %.2f x fresh\n",
				  (unsigned long long) w.searches,
				  (unsigned long long) w.misses, grown, fresh, shape.degree,
				  shape.orphans,
				  (double) shape.edge_bytes / (double) fresh_bytes);
	assert_true(w.searches > 100);
	assert_int_equal(w.misses, 0);
	assert_true(grown >= fresh - 0.01);
	assert_int_equal(shape.unlinked, 0);
	assert_int_equal(shape.linked, f->n);
	free((void *) w.generation);
}

#ifndef __SANITIZE_THREAD__
/*
 * Other metrics: the graph that grew is about as good as a fresh one.  Fresh
 * ones of inner product differ among themselves: 0.947 to 1.000 in ten builds
 * over these isolated clusters.
 */
static void
test_insert_metric(void **state)
{
	fixture *f = *state;
	uint64_t bytes;
	double grown, fresh;
	double slack = f->params.metric == NV_METRIC_IP ? 0.06 : 0.02;

	build_first(f, BASE);
	for (uint32_t e = BASE; e < f->n; e++)
		assert_int_equal(insert(f, e, 1), NV_OK);
	await_linked(f);
	grown = recall_over(f, QUERIES, 100, NULL);
	fresh = fresh_recall(f, 100, &bytes);
	print_message("recall %.4f, fresh %.4f\n", grown, fresh);
	assert_true(grown >= fresh - slack);
}
#endif

/* --- Equal rows --- */

#define EQUAL_BASE 1200u
#define EQUALS 5000u

/* 1,200 built, then 5,000 equal ones and 1,000 others, mixed. */
static void
test_equal(void **state)
{
	fixture *f = *state;
	uint32_t found = 0, e = EQUAL_BASE;
	nv_req_info *i;

	for (uint32_t k = 0; k < EQUALS; k++)
		memcpy(f->rows + (size_t) (EQUAL_BASE + k) * DIM,
			   f->rows + (size_t) EQUAL_BASE * DIM, DIM * sizeof(float));
	build_first(f, EQUAL_BASE);
	for (uint32_t k = 0; k < EQUALS; k++, e++)
	{
		assert_int_equal(insert(f, e, 1), NV_OK);
		if (k % 5 == 0)
			assert_int_equal(insert(f, EQUAL_BASE + EQUALS + k / 5, 1), NV_OK);
	}
	await_linked(f);
	i = info(f);
	assert_true(i->vertices <= EQUAL_BASE + 1001 &&
				i->vertices > EQUAL_BASE + 980);
	assert_true(i->inserted_equal >= EQUALS - 1);
	assert_int_equal(i->elements, f->n);
	assert_int_equal(
		search(f, f->rows + (size_t) EQUAL_BASE * DIM, NV_MAX_HITS, 60), NV_OK);
	for (uint32_t h = 0; h < f->r->u.search.n; h++)
		found += ((nv_hit *) f->r->data)[h].distance == 0;
	assert_int_equal(found, NV_MIN(EQUALS, NV_MAX_HITS));
	assert_int_equal(search(f, f->rows + (size_t) EQUAL_BASE * DIM, 500, 60),
					 NV_OK);
	for (uint32_t h = 0; h < 500; h++)
		assert_true(((nv_hit *) f->r->data)[h].distance == 0);
	for (e = EQUAL_BASE + EQUALS; e < f->n; e++)
		assert_true(finds_itself(f, e, 1, 60));
	assert_true(recall_over(f, 50, 60, NULL) >= 0.95);
}

/* A row whose vector was deleted before comes back to its old vertex. */
static void
test_revive(void **state)
{
	fixture *f = *state;
	uint32_t vertices;

	build_first(f, BASE);
	assert_int_equal(insert(f, BASE, 1), NV_OK);
	await_linked(f);
	vertices = (uint32_t) info(f)->vertices;
	for (uint32_t round = 2; round < 12; round++)
	{
		assert_int_equal(delete (f, BASE, 1, round - 1), NV_OK);
		assert_false(finds_itself(f, BASE, round - 1, 100));
		assert_int_equal(info(f)->deleted, 1);
		assert_int_equal(insert(f, BASE, round), NV_OK);
		assert_true(finds_itself(f, BASE, round, 100));
		await_linked(f);
		assert_true(finds_itself(f, BASE, round, 100));
		assert_int_equal(info(f)->vertices, vertices);
		assert_int_equal(info(f)->deleted, 0);
	}
}

/* An element that comes back with another vector leaves the old vertex. */
static void
test_element_reuse(void **state)
{
	fixture *f = *state;

	build_first(f, BASE);
	for (uint32_t round = 2; round < 6; round++)
	{
		for (uint32_t e = 0; e < 40; e++)
		{
			/* Another row's vector, so chains of several elements. */
			memcpy(f->rows + (size_t) e * DIM,
				   f->rows + (size_t) (1000 + (e + round) % 4) * DIM,
				   DIM * sizeof(float));
			assert_int_equal(insert(f, e, round), NV_OK);
		}
		await_linked(f);
		for (uint32_t e = 1000; e < 1004; e++)
		{
			uint32_t found = 0;

			assert_int_equal(search(f, f->rows + (size_t) e * DIM, 60, 60),
							 NV_OK);
			for (uint32_t h = 0; h < 60; h++)
			{
				const nv_hit *hit = (nv_hit *) f->r->data + h;

				found += hit->distance == 0;
				if (hit->element < 40)
					assert_int_equal(hit->generation, round);
			}
			assert_int_equal(found, 11);
		}
	}
}

/* --- Deletions beside insertions --- */

#define CHURNERS 3u

static void
test_delete_beside(void **state)
{
	fixture *f = *state;
	world w = {.f = f,
			   .churn = {.first = BASE,
						 .rows = BASE / 2,
						 .threads = CHURNERS,
						 .changes = TOTAL / 8,
						 .list = 120}};
	worker workers[CHURNERS + 1];
	uint32_t n = 0, live, misses;

	build_first(f, BASE);
	w.generation = nv_alloc_array(f->n, sizeof(*w.generation));
	for (uint32_t i = 0; i < CHURNERS; i++)
		start_worker(&w, workers, &n, churn_thread);
	start_worker(&w, workers, &n, checkpoint_thread);
	join_workers(workers, 0, CHURNERS);
	await_linked(f);
	atomic_store(&w.stop, true);
	join_workers(workers, CHURNERS, n);
	/* Others may have gone before they were linked; not these. */
	for (uint32_t e = BASE, gone = 0; e < f->n && gone < 30; e++)
	{
		uint32_t g = atomic_load(&w.generation[e]);

		if (g % 2 == 0)
			continue;
		assert_int_equal(delete (f, e, 1, g), NV_OK);
		atomic_store(&w.generation[e], g + 1);
		gone++;
	}
	info(f);
	assert_true(f->r->u.info.deleted + f->r->u.info.freed_vertices >= 30);
	live = count_live(&w, BASE, 150, &misses);
	assert_int_equal(misses, 0);
	assert_true(live > 20);
	assert_true(info(f)->vertices - info(f)->deleted <= BASE + live);
	checkpoint(f);
	stop_engine(f, false);
	(void) check_graph(f);
	free((void *) w.generation);
}

/* --- Small degrees --- */

static int
setup_narrow(void **state)
{
	int rc = setup_insert(state, NV_METRIC_L2, TOTAL);
	fixture *f = *state;

	f->params.max_degree = NARROW_DEGREE;
	f->params.build_list_size = 2 * NARROW_DEGREE;
	return rc;
}

/*
 * Where most back edges prune a full list, vertices stay in some list: but for
 * one that two threads take out of its last two at the same time.
 */
static void
test_narrow(void **state)
{
	fixture *f = *state;

	build_first(f, BASE);
	insert_some(f, BASE, TOTAL - BASE, 1);
	await_linked(f);
	assert_true(info(f)->overflows > TOTAL - BASE);
	checkpoint(f);
	stop_engine(f, false);
	assert_true(check_graph(f).orphans <= 2);
}

/* --- Restarts --- */

/* Rows of the build every STRIDE-th, all that came later. */
static void
find_all(fixture *f, uint32_t n)
{
	for (uint32_t e = 0; e < n; e += e < BASE ? STRIDE : 1)
		assert_true(finds_itself(f, e, 1, 100));
}

static void
test_restart_published(void **state)
{
	fixture *f = *state;
	uint32_t st, members;

	build_first(f, BASE);
	insert_some(f, BASE, ADDED, 1);
	await_linked(f);
	members = info(f)->entrance_members;
	assert_true(members > (BASE + 50) / 100);
	stop_engine(f, true);
	start_engine(f);
	assert_int_equal(open_index(f, BASE + ADDED, 0, 0, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_int_equal(info(f)->entrance_members, members);
	assert_int_equal(info(f)->pending_rows, 0);
	find_all(f, BASE + ADDED);
	/* It goes on from there. */
	insert_some(f, BASE + ADDED, 50, 1);
	await_linked(f);
	find_all(f, BASE + ADDED + 50);
}

/* Rows linked since the last checkpoint are missing and come back. */
static void
test_restart_killed(void **state)
{
	fixture *f = *state;
	uint64_t vertices;

	build_first(f, BASE);
	insert_some(f, BASE, ADDED, 1);
	await_linked(f);
	checkpoint(f);
	vertices = info(f)->vertices;
	insert_some(f, BASE + ADDED, ADDED, 1);
	await_linked(f);
	assert_true(info(f)->vertices > vertices);
	stop_engine(f, false);
	start_engine(f);
	/* All of the second half, unless a checkpoint came by itself. */
	assert_true(catch_up(f, BASE + 2 * ADDED) <= ADDED);
	assert_true(info(f)->vertices >= vertices);
	find_all(f, BASE + 2 * ADDED);
	await_linked(f);
	find_all(f, BASE + 2 * ADDED);
}

/* --- Checkpoints that come by themselves --- */

/* Until another root than this was published. */
static void
await_root(fixture *f, uint64_t sequence)
{
	for (int i = 0; i < WAIT_SECONDS * 100; i++)
	{
		if (info(f)->published_sequence != sequence)
			return;
		usleep(10000);
	}
	fail_msg("no checkpoint for %d s", WAIT_SECONDS);
}

/* Dead lists are more than an eighth of all long before any timeout. */
static void
test_checkpoint_dead(void **state)
{
	fixture *f = *state;
	uint64_t sequence;

	build_first(f, CHURN_BASE);
	sequence = info(f)->published_sequence;
	assert_true(f->config.checkpoint_timeout >= 300);
	insert_some(f, CHURN_BASE, CHURN_ROWS, 1);
	await_linked(f);
	await_root(f, sequence);
	/* And so the dead ones are few: what a checkpoint holds, and a batch's. */
	assert_true(info(f)->pages_written > 0);
	stop_engine(f, false);
	start_engine(f);
	assert_true(catch_up(f, f->n) < CHURN_ROWS);
	await_linked(f);
	for (uint32_t e = CHURN_BASE; e < f->n; e++)
		assert_true(finds_itself(f, e, 1, 100));
}

#define ROOT_US 300000 /* that a root takes to be written */
#define MIN_DEAD 2048u /* fewer make nobody wait */

static const nv_file_ops *real_ops;

static ssize_t
slow_root(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	if (offset < NV_FIRST_PLACE * NV_SEGMENT)
		usleep(ROOT_US);
	return real_ops->pwrite(file, buf, len, offset);
}

/* However long a checkpoint takes, dead lists are at most half of the others. */
static void
test_checkpoint_slow(void **state)
{
	fixture *f = *state;
	nv_index *index;
	nv_body *body;
	nv_file_ops ops;
	uint64_t most = 0, checkpoints;

	build_first(f, CHURN_BASE);
	index = nv_index_get(f->engine, &f->key, false);
	body = nv_index_body(index);
	real_ops = body->store->state.file->ops;
	ops = *real_ops;
	ops.pwrite = slow_root;
	body->store->state.file->ops = &ops;
	checkpoints = info(f)->checkpoints;
	insert_some(f, CHURN_BASE, CHURN_ROWS, 1);
	while (info(f)->pending_rows > 0)
	{
		const nv_req_info *i = &f->r->u.info;

		/* Each thread may rewrite those of one row more. */
		assert_true(i->retired_slots <=
					NV_MAX((i->live_slots - i->retired_slots) / 2, MIN_DEAD) +
						2 * f->params.max_degree + 1);
		most = NV_MAX(most, i->retired_slots);
		usleep(2000);
	}
	print_message("%llu of %llu lists dead, %llu checkpoints\n",
				  (unsigned long long) most,
				  (unsigned long long) f->r->u.info.live_slots,
				  (unsigned long long) (info(f)->checkpoints - checkpoints));
	assert_true(info(f)->checkpoints >= checkpoints + 2);
	checkpoint(f); /* and none is under way */
	body->store->state.file->ops = real_ops;
	nv_body_put(body);
	nv_index_put(index);
	for (uint32_t e = CHURN_BASE; e < f->n; e++)
		assert_true(finds_itself(f, e, 1, 100));
}

static void
test_checkpoint_timeout(void **state)
{
	fixture *f = *state;
	uint64_t sequence;

	stop_engine(f, false);
	f->config.checkpoint_timeout = 1;
	start_engine(f);
	build_first(f, BASE);
	sequence = info(f)->published_sequence;
	insert_some(f, BASE, 3, 1);
	await_linked(f);
	await_root(f, sequence);
	stop_engine(f, false);
	start_engine(f);
	/* It may have come between two rows. */
	assert_true(catch_up(f, BASE + 3) <= 3);
	assert_true(info(f)->published_sequence > sequence);
}

static void *
cut_thread(void *arg)
{
	worker *me = arg;
	fixture f = me->f;

	/* The last cut falls somewhere among rows that are being linked. */
	do
	{
		begin(&f, NV_REQ_CHECKPOINT);
		must(call(&f) == NV_OK);
	} while (info(&f)->inserted < (f.n - BASE) / 2);
	free(f.r);
	return NULL;
}

static void
test_restart_halfway(void **state)
{
	fixture *f = *state;
	world w = {.f = f};
	worker workers[1];
	uint32_t n = 0, missing, distinct;
	graph_shape shape;

	build_first(f, BASE);
	start_worker(&w, workers, &n, cut_thread);
	insert_some(f, BASE, f->n - BASE, 1);
	join_workers(workers, 0, n);
	stop_engine(f, false);
	shape = check_graph(f);
	start_engine(f);
	missing = catch_up(f, f->n);
	print_message("%u missing, %u vertices half linked\n", missing,
				  shape.unlinked);
	assert_true(missing <= f->n - BASE);
	await_linked(f);
	assert_int_equal(info(f)->inserted, missing);
	find_all(f, f->n);
	/* Half linked vertices were taken up again. */
	distinct = (uint32_t) info(f)->vertices;
	assert_true(distinct <= f->n);
	stop_engine(f, true);
	shape = check_graph(f);
	assert_int_equal(shape.unlinked, 0);
	assert_int_equal(shape.linked, distinct);
}

/* --- Rebuild, drop, limits -------------------------------------------------
 */

/* Rows that come while a rebuild runs are pending until it is done. */
static void
test_rebuild_beside(void **state)
{
	fixture *f = *state;
	uint32_t st;

	build_first(f, BASE);
	insert_some(f, BASE, 100, 1);
	assert_int_equal(build_begin(f, true, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, BASE + 100), NV_OK);
	insert_some(f, BASE + 100, 100, 1);
	find_all(f, BASE + 200);
	usleep(300000);
	assert_true(info(f)->pending_rows >= 100);
	assert_int_equal(build_run(f), NV_OK);
	assert_int_equal(open_index(f, BASE + 200, 0, 0, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	await_linked(f);
	find_all(f, BASE + 200);
	assert_true(info(f)->vertices > BASE + 180);
}

static void
test_drop_beside(void **state)
{
	fixture *f = *state;
	char dir[300];

	build_first(f, BASE);
	insert_some(f, BASE, 500, 1);
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	index_dir(f, dir);
	assert_false(exists(dir, ""));
	assert_int_equal(insert(f, BASE, 1), NV_ENOENT);
}

/* An index that was too full for pending rows is asked for them again. */
static void
test_full_recovers(void **state)
{
	fixture *f = *state;
	nv_status status = NV_OK;
	uint32_t e, st = NV_INDEX_FULL, stopped;

	stop_engine(f, false);
	f->config.pending_memory = 40 * (DIM * sizeof(float) + 48);
	start_engine(f);
	build_first(f, BASE);
	for (e = BASE; e < f->n && status == NV_OK; e++)
		status = insert(f, e, 1);
	stopped = e;
	if (status == NV_OK)
		return; /* linking kept pace */
	assert_int_equal(status, NV_ELIMIT);
	for (int i = 0; i < WAIT_SECONDS * 100 && st == NV_INDEX_FULL; i++)
	{
		st = info(f)->state;
		usleep(10000);
	}
	assert_int_equal(st, NV_INDEX_OPENING);
	assert_true(catch_up(f, stopped) > 0);
	await_linked(f);
	find_all(f, stopped);
}

#define insert_test(test, set_up)                                              \
	cmocka_unit_test_setup_teardown(test, set_up, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		insert_test(test_insert_beside, setup_l2),
		insert_test(test_narrow, setup_narrow),
#ifndef __SANITIZE_THREAD__ /* nothing new for it */
		insert_test(test_insert_metric, setup_cos),
		insert_test(test_insert_metric, setup_inner),
#endif
		insert_test(test_equal, setup_equal),
		insert_test(test_revive, setup_l2),
		insert_test(test_element_reuse, setup_l2),
		insert_test(test_delete_beside, setup_l2),
		insert_test(test_restart_published, setup_l2),
		insert_test(test_restart_killed, setup_l2),
		insert_test(test_checkpoint_dead, setup_churn),
		insert_test(test_checkpoint_slow, setup_churn),
		insert_test(test_checkpoint_timeout, setup_l2),
		insert_test(test_restart_halfway, setup_l2),
		insert_test(test_rebuild_beside, setup_l2),
		insert_test(test_drop_beside, setup_l2),
		insert_test(test_full_recovers, setup_l2),
	};

	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
