/*
 * test_consolidate.c
 *		Dead vertices leave the graph: what is found, what lists name, what is
 *		used again; beside everything else; crashes; requests.
 */
#include "engine_internal.h"
#include "engine_threads.h"
#include "entrance.h"

/* Sanitizer builds run on fewer rows. */
#ifdef __SANITIZE_THREAD__
#define WINDOW 1200u
#define ROUNDS 2u
#define QUERIES 40u
#define STRIDE 10u
#define GIVE_UPS 10u
#define CRASHES 4u
#elif defined(__SANITIZE_ADDRESS__)
#define WINDOW 2000u
#define ROUNDS 4u
#define QUERIES 60u
#define STRIDE 5u
#define GIVE_UPS 20u
#define CRASHES 6u
#else
#define WINDOW 4000u
#define ROUNDS 10u
#define QUERIES 150u
#define STRIDE 2u
#define GIVE_UPS 40u
#define CRASHES 12u
#endif
#define SLIDE (WINDOW / 5)

/* --- Set-up --- */

static int
setup_window(void **state)
{
	return setup_linking(state, NV_METRIC_L2, WINDOW + ROUNDS * SLIDE);
}

static int
setup_few(void **state)
{
	return setup_linking(state, NV_METRIC_L2, 3000);
}

static nv_status
consolidate(fixture *f, float threshold)
{
	begin(f, NV_REQ_CONSOLIDATE)->u.consolidate.threshold = threshold;
	return call(f);
}

#ifndef __SANITIZE_THREAD__
/* Makes the threshold the index's own, too. */
static nv_status
keep_threshold(fixture *f, float threshold)
{
	begin(f, NV_REQ_CONSOLIDATE)->u.consolidate.threshold = threshold;
	f->r->u.consolidate.keep = 1;
	return call(f);
}
#endif

/* --- Checks --- */

/* All that a scan gives that is read to its end, as a bitmap of elements. */
static uint32_t
scan_all(fixture *f, const float *query, uint32_t list, uint8_t *found)
{
	uint32_t n = 0;
	nv_status status = search(f, query, 300, list);

	for (;;)
	{
		const nv_hit *hits = (const nv_hit *) f->r->data;
		uint64_t cursor = f->r->u.search.cursor;

		must(status == NV_OK);
		for (uint32_t i = 0; i < f->r->u.search.n; i++)
		{
			must(found[hits[i].element] == 0);
			must(hits[i].distance == distance(f, query, hits[i].element));
			found[hits[i].element] = 1;
			n++;
		}
		if (cursor == 0)
			return n;
		begin(f, NV_REQ_NEXT)->u.search.cursor = cursor;
		f->r->u.search.k = 300;
		status = call(f);
	}
}

/* Elements first .. first + n - 1 are what there is, or all but few of them. */
static void
check_scan(fixture *f, uint32_t first, uint32_t n, uint32_t missing)
{
	uint8_t *found = nv_alloc(f->n);
	uint32_t all = scan_all(f, f->rows + (size_t) first * DIM, 200, found);

	for (uint32_t e = 0; e < f->n; e++)
		assert_true(!found[e] || (e >= first && e < first + n));
	/* What nothing leads to is the caller's final sweep's. */
	if (all + missing < n)
		fail_msg("a complete scan gives %u of %u rows", all, n);
	free(found);
}

static uint32_t window_first;

static bool
alive_window(uint32_t e)
{
	return e >= window_first && e < window_first + WINDOW;
}

/* --- Rounds of replacement --- */

typedef struct sizes
{
	uint64_t edges, vectors, state;
} sizes;

static sizes
sizes_now(fixture *f)
{
	nv_req_info *i = info(f);

	return (sizes){i->edge_bytes, i->vector_bytes, i->state_bytes};
}

/* The rows there are now in an index that is built at once. */
static double
fresh_recall(fixture *f, uint32_t list, sizes *s)
{
	fixture fresh = *f;
	double recall;

	fresh.key.identity[0] ^= 255;
	assert_int_equal(build_begin(&fresh, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(&fresh, window_first, WINDOW), NV_OK);
	assert_int_equal(build_run(&fresh), NV_OK);
	recall = recall_over(&fresh, QUERIES, list, alive_window);
	*s = sizes_now(&fresh);
	begin(&fresh, NV_REQ_DROP);
	assert_int_equal(call(&fresh), NV_OK);
	return recall;
}

/*
 * Beyond the pages in use, at rest: 64 spare ones, less than 64 for 256 rows
 * that may come, and what makes steps of 64 of them.
 */
#define RESERVED_PAGES (3 * 64)

/* A fifth is deleted, as many are inserted, then VACUUM comes. */
static void
one_round(fixture *f)
{
	nv_req_info *i;

	delete_some(f, window_first, SLIDE, 1);
	insert_some(f, window_first + WINDOW, SLIDE, 1);
	window_first += SLIDE;
	await_linked(f);
	assert_true(info(f)->deleted >= SLIDE - 20);
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(f->r->u.consolidate.runs, 1);
	assert_true(f->r->u.consolidate.freed >= SLIDE - 20);
	assert_int_equal(f->r->u.consolidate.deleted, 0);
	i = info(f);
	assert_true(i->edge_bytes <= (i->edge_pages + RESERVED_PAGES) * NV_PAGE);
	assert_int_equal(i->deleted, 0);
	assert_int_equal(i->consolidating, NV_CONSOLIDATE_NONE);
	assert_true(i->vertices <= WINDOW && i->vertices >= WINDOW - 50);
	/* Promotions make up for the members that went; none stays dropped. */
	assert_int_equal(i->entrance_live, i->entrance_members);
}

/*
 * Nobody asks for a checkpoint before 2,048 of them are dead, 64 pages
 * here, and the edge file grows by 64 pages at least.
 */
#define EDGE_STEP (2 * 64 * NV_PAGE)

static void
test_rounds(void **state)
{
	fixture *f = *state;
	sizes s[ROUNDS], fresh_size;
	graph_shape shape;
	double recall, fresh;

	window_first = 0;
	build_first(f, WINDOW);
	for (uint32_t round = 0; round < ROUNDS; round++)
	{
		one_round(f);
		s[round] = sizes_now(f);
	}
	check_scan(f, window_first, WINDOW, WINDOW / 1000);
	recall = recall_over(f, QUERIES, 40, alive_window);
	fresh = fresh_recall(f, 40, &fresh_size);
	checkpoint(f);
	stop_engine(f, false);
	shape = check_graph(f);
	print_message(
		"recall@10 %.4f, fresh %.4f; degree %.1f, %u orphans, %u ids for %u "
		"lists; edges %.2f, vectors %.2f, state %.2f x fresh\n",
		recall, fresh, shape.degree, shape.orphans, shape.ids, shape.lists,
		(double) s[ROUNDS - 1].edges / (double) fresh_size.edges,
		(double) s[ROUNDS - 1].vectors / (double) fresh_size.vectors,
		(double) s[ROUNDS - 1].state / (double) fresh_size.state);
	assert_true(recall >= fresh - 0.01);
	/* After the first round nothing is new: ids, records and pages return. */
	for (uint32_t round = 2; round < ROUNDS; round++)
	{
		assert_int_equal(s[round].vectors, s[1].vectors);
		assert_true(s[round].edges <= s[1].edges + s[1].edges / 8 + EDGE_STEP);
		assert_true(s[round].state <= s[1].state + s[1].state / 2);
	}
	assert_true(shape.ids <= WINDOW + SLIDE + 200);
	assert_int_equal(shape.orphans, 0);
}

/* --- Beside everything else --- */

#define CHURNERS 2u
#define CHANGES (WINDOW / 3)

/* Scans of several batches, over rows that come and go. */
static void *
cursor_thread(void *arg)
{
	worker *me = arg;
	world *w = me->w;
	fixture f = me->f;
	uint64_t seed = nv_random_seed(me->number);

	while (!atomic_load(&w->stop))
	{
		const float *query =
			f.rows + (size_t) nv_random_below(&seed, f.n) * DIM;
		const nv_hit *hits = (const nv_hit *) f.r->data;
		double last = 0;
		nv_status status = search(&f, query, 10, 40);

		for (int batch = 0; batch < 6; batch++)
		{
			uint64_t cursor = f.r->u.search.cursor;

			must(status == NV_OK || (batch > 0 && status == NV_ENOENT));
			if (status != NV_OK)
				break;
			for (uint32_t i = 0; i < f.r->u.search.n; i++)
			{
				must(hits[i].distance >= last);
				must(hits[i].distance == distance(&f, query, hits[i].element));
				last = hits[i].distance;
			}
			if (cursor == 0)
				break;
			begin(&f, NV_REQ_NEXT)->u.search.cursor = cursor;
			f.r->u.search.k = 10;
			status = call(&f);
		}
		atomic_fetch_add(&w->searches, 1);
	}
	free(f.r);
	return NULL;
}

/* Runs, some of them given up at some moment. */
static void *
consolidate_thread(void *arg)
{
	worker *me = arg;
	world *w = me->w;
	fixture f = me->f;
	uint64_t seed = nv_random_seed(me->number);

	while (!atomic_load(&w->stop))
	{
		nv_status status;

		begin(&f, NV_REQ_CONSOLIDATE)->u.consolidate.threshold = 0;
		nv_local_submit(f.local, f.r);
		if (nv_random_below(&seed, 3) == 0)
		{
			usleep((unsigned) nv_random_below(&seed, 20000));
			nv_local_abandon(f.local, f.r);
			(void) nv_local_wait(f.local, f.r);
			atomic_fetch_add(&w->given_up, 1);
			continue;
		}
		status = nv_local_wait(f.local, f.r);
		must(status == NV_OK || status == NV_ECANCELLED);
		atomic_fetch_add(&w->runs, f.r->u.consolidate.runs);
	}
	free(f.r);
	return NULL;
}

static void
test_beside(void **state)
{
	fixture *f = *state;
	world w = {.f = f,
			   .churn = {.rows = f->n,
						 .threads = CHURNERS,
						 .changes = CHANGES,
						 .list = 100}};
	worker workers[CHURNERS + 4];
	uint32_t n = 0, live, misses;
	graph_shape shape;

	build_first(f, f->n / 2);
	w.generation = nv_alloc_array(f->n, sizeof(*w.generation));
	for (uint32_t e = 0; e < f->n / 2; e++)
		atomic_store(&w.generation[e], 1);
	for (uint32_t i = 0; i < CHURNERS; i++)
		start_worker(&w, workers, &n, churn_thread);
	start_worker(&w, workers, &n, cursor_thread);
	start_worker(&w, workers, &n, checkpoint_thread);
	start_worker(&w, workers, &n, consolidate_thread);
	start_worker(&w, workers, &n, consolidate_thread);
	join_workers(workers, 0, CHURNERS);
	atomic_store(&w.stop, true);
	join_workers(workers, CHURNERS, n);
	await_linked(f);
	assert_int_equal(consolidate(f, 0), NV_OK);
	live = count_live(&w, 0, 150, &misses);
	print_message("%llu runs, %llu given up, %llu scans, %u misses, %llu ids "
				  "freed\n",
				  (unsigned long long) w.runs, (unsigned long long) w.given_up,
				  (unsigned long long) w.searches, misses,
				  (unsigned long long) info(f)->freed_vertices);
	assert_int_equal(misses, 0);
	assert_true(w.runs > 0 && w.given_up > 0);
	assert_int_equal(info(f)->deleted, 0);
	assert_true(info(f)->vertices <= live);
	checkpoint(f);
	stop_engine(f, false);
	shape = check_graph(f);
	assert_int_equal(shape.orphans, 0);
	free((void *) w.generation);
}

#ifndef __SANITIZE_THREAD__
/* --- Cursors, equal rows, few rows ------------------------------------------
 */

/* A scan that began before ids were freed is told to begin anew. */
static void
test_cursor(void **state)
{
	fixture *f = *state;
	fixture other = fork_fixture(f, 2);
	uint64_t cursor;

	build_first(f, 1500);
	assert_int_equal(search(f, f->rows, 10, 40), NV_OK);
	cursor = f->r->u.search.cursor;
	assert_true(cursor != 0);
	delete_some(&other, 500, 300, 1);
	assert_int_equal(consolidate(&other, 0), NV_OK);
	insert_some(&other, 1500, 300, 1);
	await_linked(&other);
	begin(f, NV_REQ_NEXT)->u.search.cursor = cursor;
	f->r->u.search.k = 10;
	assert_int_equal(call(f), NV_ENOENT);
	/* One that began since goes on. */
	assert_int_equal(search(f, f->rows, 10, 40), NV_OK);
	cursor = f->r->u.search.cursor;
	delete_some(&other, 800, 100, 1);
	begin(f, NV_REQ_NEXT)->u.search.cursor = cursor;
	f->r->u.search.k = 10;
	assert_int_equal(call(f), NV_OK);
	free(other.r);
}

/* A row that is deleted comes back after its vertex was freed. */
static void
test_comes_back(void **state)
{
	fixture *f = *state;

	build_first(f, 1500);
	for (uint32_t generation = 1; generation < 5; generation++)
	{
		delete_some(f, 100, 400, generation);
		assert_int_equal(consolidate(f, 0), NV_OK);
		assert_int_equal(info(f)->vertices, 1100);
		for (uint32_t e = 100; e < 500; e += 7)
			assert_false(finds_itself(f, e, generation, 100));
		insert_some(f, 100, 400, generation + 1);
		await_linked(f);
		assert_int_equal(info(f)->vertices, 1500);
		for (uint32_t e = 100; e < 500; e++)
			assert_true(finds_itself(f, e, generation + 1, 100));
	}
	checkpoint(f);
	stop_engine(f, false);
	assert_true(check_graph(f).ids <= 1600);
}

/* Nearly everything goes, then everything, then rows come again. */
static void
test_few_left(void **state)
{
	fixture *f = *state;

	build_first(f, 1500);
	delete_some(f, 0, 700, 1);
	delete_some(f, 701, 799, 1);
	assert_int_equal(info(f)->deleted, 1499);
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(info(f)->vertices, 1);
	assert_true(finds_itself(f, 700, 1, 40));
	delete_some(f, 700, 1, 1);
	/* One must be left to hang others on. */
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(f->r->u.consolidate.runs, 0);
	assert_int_equal(info(f)->deleted, 1);
	assert_int_equal(search(f, f->rows, 10, 40), NV_OK);
	assert_int_equal(f->r->u.search.n, 0);
	insert_some(f, 1500, 1500, 1);
	await_linked(f);
	for (uint32_t e = 1500; e < 3000; e++)
		assert_true(finds_itself(f, e, 1, 100));
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(info(f)->deleted, 0);
	checkpoint(f);
	stop_engine(f, false);
	assert_int_equal(check_graph(f).orphans, 0);
}

/* A whole region goes at once, with it all edges into what borders on it. */
static void
test_region(void **state)
{
	fixture *f = *state;
	uint32_t gone = 0;
	uint8_t *out = nv_alloc(f->n);
	double mean = 0;

	build_first(f, f->n);
	for (uint32_t e = 0; e < f->n; e++)
		mean += f->rows[(size_t) e * DIM] / (double) f->n;
	for (uint32_t e = 0; e < f->n; e++)
		if (f->rows[(size_t) e * DIM] > mean)
		{
			delete_some(f, e, 1, 1);
			out[e] = 1;
			gone++;
		}
	assert_true(gone > f->n / 4 && gone < f->n * 3 / 4);
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(info(f)->vertices, f->n - gone);
	for (uint32_t e = 0; e < f->n; e++)
		assert_int_equal(finds_itself(f, e, 1, 100), !out[e]);
	checkpoint(f);
	stop_engine(f, false);
	assert_int_equal(check_graph(f).orphans, 0);
	free(out);
}

/* Rows in clusters, most of which are deleted whole; makes the rows anew. */
#define CLUSTERS 20u

static uint32_t
cluster_of(uint32_t e)
{
	uint64_t random = nv_random_seed(e + 5);

	return (uint32_t) nv_random_below(&random, CLUSTERS);
}

static bool
cluster_goes(uint32_t number)
{
	return number % 10 < 7;
}

static void
make_clusters(fixture *f)
{
	for (uint32_t e = 0; e < f->n; e++)
	{
		uint64_t random = nv_random_seed(e + 100000);
		uint64_t cluster = nv_random_seed(cluster_of(e) + 1000);

		for (uint32_t d = 0; d < DIM; d++)
			f->rows[(size_t) e * DIM + d] =
				(float) (nv_random(&cluster) >> 40) / (float) (1 << 22) +
				0.2f * (float) (nv_random(&random) >> 40) / (float) (1 << 24);
	}
}

typedef struct members
{
	nv_store *store;
	uint32_t n, of[CLUSTERS];
} members;

static void
count_member(void *arg, uint32_t vertex)
{
	members *m = arg;
	uint32_t g;

	m->n++;
	for (uint32_t e = 0; e < nv_store_elements(m->store); e++)
		if (nv_store_element(m->store, e, &g) == vertex)
			m->of[cluster_of(e)]++;
}

/* Members of the saved entrance graph, by cluster. */
static members
count_members(const fixture *f)
{
	members m = {0};
	nv_entrance *entrance;
	const uint8_t *blob;
	char dir[300], path[320];
	size_t len;

	index_dir(f, dir);
	snprintf(path, sizeof(path), "%s/g1", dir);
	assert_int_equal(nv_store_open(path, &f->key, NULL, &m.store, NULL), NV_OK);
	blob = nv_store_get_blob(m.store, NV_BLOB_ENTRANCE, &len);
	assert_int_equal(nv_entrance_load(blob, len, nv_store_vertices(m.store),
									  DIM, &entrance, NULL),
					 NV_OK);
	nv_entrance_each(entrance, count_member, &m);
	nv_entrance_free(entrance);
	nv_store_close(m.store);
	return m;
}

/*
 * Where most clusters go, those that stay have members of the entrance graph,
 * of which there are as many as the ratio says, and not many more.
 */
static void
test_clusters(void **state)
{
	fixture *f = *state;
	uint32_t live = f->n, found = 0;
	members m;

	make_clusters(f);
	build_first(f, f->n);
	for (uint32_t e = 0; e < f->n; e++)
		if (cluster_goes(cluster_of(e)))
		{
			delete_some(f, e, 1, 1);
			live--;
		}
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(info(f)->vertices, live);
	for (uint32_t e = 0; e < f->n; e++)
		if (!cluster_goes(cluster_of(e)))
			found += finds_itself(f, e, 1, 40);
	assert_true(found >= 0.999 * live);
	checkpoint(f);
	stop_engine(f, false);
	m = count_members(f);
	for (uint32_t c = 0; c < CLUSTERS; c++)
		assert_int_equal(m.of[c] == 0, cluster_goes(c));
	assert_true(m.n >= live / 100 && m.n <= live / 80 + 2);
}

/* --- A medoid that is gone --------------------------------------------------
 */

/* Each row that comes is a member of the entrance graph; ids in their order. */
static int
setup_members(void **state)
{
	int rc = setup_few(state);
	fixture *f = *state;

	stop_engine(f, false);
	f->config.insert_threads = 1;
	f->params.entrance_ratio = 1;
	start_engine(f);
	return rc;
}

static uint32_t
element_of(const nv_store *store, uint32_t vertex)
{
	uint32_t e = 0, g;

	while (nv_store_element(store, e, &g) != vertex)
		e++;
	return e;
}

/* Rows e .. e + n - 1 come, and lie where the code of a vertex is. */
static void
insert_near(fixture *f, nv_body *body, uint32_t vertex, uint32_t e, uint32_t n)
{
	for (uint32_t i = e; i < e + n; i++)
	{
		float *row = f->rows + (size_t) i * DIM;

		assert_int_equal(nv_body_decode(body, vertex, row, NULL), NV_OK);
		for (uint32_t d = 0; d < DIM; d++)
			row[d] /= body->view.gspace.scale;
		row[0] += 0.001f * (float) (i - e);
	}
	insert_some(f, e, n, 1);
	await_linked(f);
	for (uint32_t i = e; i < e + n; i++)
	{
		uint32_t g, v = nv_store_element(body->store, i, &g);

		assert_true(nv_entrance_member(body->entrance, v));
	}
}

/*
 * While a run waits for who was there before it, rows come that are the nearest
 * ones to the medoid that goes.  The run's walk over the lists does not know
 * them, and could not tell who hangs together with such a medoid.
 */
static void
test_young_near_medoid(void **state)
{
	fixture *f = *state;
	fixture other = fork_fixture(f, 2);
	nv_index *index;
	nv_body *body;
	uint32_t ids, medoid, now;
	int epoch;
	bool lives;

	build_first(f, 1500);
	index = nv_index_get(f->engine, &f->key, false);
	body = nv_index_body(index);
	medoid = body->view.medoid;
	delete_some(f, element_of(body->store, medoid), 1, 1);
	epoch = nv_store_enter(body->store);
	ids = nv_store_vertices(body->store);
	begin(&other, NV_REQ_CONSOLIDATE);
	nv_local_submit(other.local, other.r);
	for (int i = 0; i < WAIT_SECONDS * 1000 &&
					info(f)->consolidating != NV_CONSOLIDATE_WAIT;
		 i++)
		usleep(1000);
	assert_int_equal(info(f)->consolidating, NV_CONSOLIDATE_WAIT);
	/* The first ones use up ids that had been set aside. */
	insert_some(f, 1500, 50, 1);
	await_linked(f);
	insert_near(f, body, medoid, 1550, 5);
	for (uint32_t e = 1550; e < 1555; e++)
		assert_true(nv_store_element(body->store, e, &now) >= ids);
	nv_store_leave(body->store, epoch);
	assert_int_equal(nv_local_wait(other.local, other.r), NV_OK);
	assert_int_equal(other.r->u.consolidate.freed, 1);
	now = body->view.medoid;
	lives = nv_body_live(body, now);
	nv_body_put(body);
	nv_index_put(index);
	assert_true(lives && now < ids);
	free(other.r);
}

/* --- Requests ---------------------------------------------------------------
 */

static void
await_freed(fixture *f, uint64_t freed)
{
	for (int i = 0; i < WAIT_SECONDS * 100; i++)
	{
		if (info(f)->freed_vertices >= freed &&
			f->r->u.info.consolidating == NV_CONSOLIDATE_NONE)
			return;
		usleep(10000);
	}
	fail_msg("%llu vertices freed after %d s",
			 (unsigned long long) f->r->u.info.freed_vertices, WAIT_SECONDS);
}

/* By itself above the index's threshold, by request above the request's. */
static void
test_threshold(void **state)
{
	fixture *f = *state;

	f->params.consolidate_threshold = 0.2f;
	build_first(f, 2000);
	delete_some(f, 0, 380, 1);
	assert_int_equal(consolidate(f, 0.2f), NV_OK);
	assert_int_equal(f->r->u.consolidate.runs, 0);
	assert_int_equal(f->r->u.consolidate.deleted, 380);
	delete_some(f, 380, 100, 1);
	await_freed(f, 480);
	assert_int_equal(info(f)->vertices, 1520);
	assert_int_equal(info(f)->consolidations, 1);
	delete_some(f, 480, 100, 1);
	assert_int_equal(consolidate(f, 0.01f), NV_OK);
	assert_int_equal(f->r->u.consolidate.freed, 100);
	assert_int_equal(f->r->u.consolidate.vertices, 1420);
	/* 1 is never exceeded. */
	assert_int_equal(consolidate(f, 1), NV_OK);
	assert_int_equal(f->r->u.consolidate.runs, 0);
	/* A request may change the index's own; above it the engine consolidates.
	 */
	assert_int_equal(keep_threshold(f, 1), NV_OK);
	delete_some(f, 580, 400, 1);
	assert_int_equal(consolidate(f, 1), NV_OK);
	assert_int_equal(f->r->u.consolidate.deleted, 400);
	assert_int_equal(keep_threshold(f, 0.5f), NV_OK);
	assert_int_equal(f->r->u.consolidate.deleted, 400);
	delete_some(f, 980, 400, 1);
	await_freed(f, 1380);
	f->key.identity[3] ^= 1;
	assert_int_equal(consolidate(f, 0), NV_ENOENT);
}

#endif

/* One that is given up stops the run only it wanted; what it did stays. */
static void
test_give_up(void **state)
{
	fixture *f = *state;
	uint64_t rewired = 0;

	build_first(f, 2500);
	delete_some(f, 0, 500, 1);
	for (uint32_t i = 0; i < GIVE_UPS; i++)
	{
		begin(f, NV_REQ_CONSOLIDATE);
		nv_local_submit(f->local, f->r);
		usleep(i * 8000 / GIVE_UPS);
		nv_local_abandon(f->local, f->r);
		(void) nv_local_wait(f->local, f->r);
		rewired = info(f)->rewired_lists;
		/* Rows that come meanwhile find their way. */
		assert_int_equal(insert(f, 2500 + i, 1), NV_OK);
		assert_int_equal(delete (f, 500 + i, 1, 1), NV_OK);
	}
	await_linked(f);
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(info(f)->deleted, 0);
	assert_int_equal(info(f)->freed_vertices, 500 + GIVE_UPS);
	assert_true(f->r->u.info.rewired_lists >= rewired);
	for (uint32_t e = 500 + GIVE_UPS; e < 2500 + GIVE_UPS; e += STRIDE)
		assert_true(finds_itself(f, e, 1, 100));
	checkpoint(f);
	stop_engine(f, false);
	assert_int_equal(check_graph(f).orphans, 0);
}

/* --- Restarts --- */

/* Ends without a checkpoint at some moment of a run, and goes on from there. */
static void
test_crash(void **state)
{
	fixture *f = *state;
	uint32_t freed = 0;

	build_first(f, 2000);
	delete_some(f, 0, 400, 1);
	checkpoint(f);
	for (uint32_t i = 0; i < CRASHES; i++)
	{
		fixture other = fork_fixture(f, 2);
		uint32_t st;

		begin(&other, NV_REQ_CONSOLIDATE);
		nv_local_submit(other.local, other.r);
		usleep(i * 24000 / CRASHES);
		stop_engine(f, false);
		/* Answered, or never taken. */
		assert_true(atomic_load(&other.r->state) == NV_DONE ||
					atomic_load(&other.r->state) == NV_SUBMITTED);
		free(other.r);
		(void) check_graph(f);
		start_engine(f);
		assert_int_equal(open_index(f, 2000, 0, 400, true, &st), 0);
		assert_int_equal(st, NV_INDEX_READY);
		assert_int_equal(info(f)->vertices - f->r->u.info.deleted, 1600);
		freed += info(f)->deleted == 0;
		for (uint32_t e = i; e < 2000; e += 4 * STRIDE)
			assert_int_equal(finds_itself(f, e, 1, 100), e >= 400);
	}
	print_message("%u of %u ends came after the run\n", freed, CRASHES);
	assert_int_equal(consolidate(f, 0), NV_OK);
	assert_int_equal(info(f)->vertices, 1600);
	insert_some(f, 2000, 400, 1);
	await_linked(f);
	checkpoint(f);
	for (uint32_t e = 400; e < 2400; e += STRIDE)
		assert_true(finds_itself(f, e, 1, 100));
	stop_engine(f, false);
	assert_true(check_graph(f).ids <= 2100);
}

/* --- Main --- */

#define consolidate_test(test, set_up)                                         \
	cmocka_unit_test_setup_teardown(test, set_up, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		consolidate_test(test_rounds, setup_window),
		consolidate_test(test_beside, setup_few),
#ifndef __SANITIZE_THREAD__ /* nothing new for it */
		consolidate_test(test_cursor, setup_few),
		consolidate_test(test_comes_back, setup_few),
		consolidate_test(test_few_left, setup_few),
		consolidate_test(test_region, setup_few),
		consolidate_test(test_clusters, setup_few),
		consolidate_test(test_young_near_medoid, setup_members),
		consolidate_test(test_threshold, setup_few),
#endif
		consolidate_test(test_give_up, setup_few),
		consolidate_test(test_crash, setup_few),
	};

	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
