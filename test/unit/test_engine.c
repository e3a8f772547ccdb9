/*
 * test_engine.c
 *		The engine through its requests: build, search, rows that come and go,
 *		restart, rebuild, limits, damage.
 */
#include "engine_fixture.h"

#include "engine_internal.h"

/* --- tests --- */

static void
test_build_search(void **state)
{
	fixture *f = *state;

	build_all(f);
	assert_true(f->r->u.build.vertices > 2990);
	assert_true(f->r->u.build.average_degree > 4);
	assert_int_equal(info(f)->state, NV_INDEX_READY);
	assert_int_equal(info(f)->n_buckets, 1); /* calibrated by the build */
	assert_true(recall(f, 60, NULL) >= 0.95);
}

/* Every element exactly once, in order, until the graph has no more. */
static void
test_complete_scan(void **state)
{
	fixture *f = *state;
	uint8_t *seen = nv_alloc(f->n);
	uint32_t total = 0;
	double last = -1;
	uint64_t cursor;

	build_all(f);
	assert_int_equal(insert(f, 7, 2), NV_OK); /* element 7 anew, unlinked */
	assert_int_equal(search(f, f->rows, 10, 40), NV_OK);
	for (;;)
	{
		const nv_hit *hits = (const nv_hit *) f->r->data;
		nv_request *r;

		for (uint32_t i = 0; i < f->r->u.search.n; i++)
		{
			assert_int_equal(seen[hits[i].element], 0);
			seen[hits[i].element] = 1;
			assert_int_equal(hits[i].generation, hits[i].element == 7 ? 2 : 1);
			assert_true(hits[i].distance >= last);
			last = hits[i].distance;
			total++;
		}
		cursor = f->r->u.search.cursor;
		if (cursor == 0)
			break;
		r = begin(f, NV_REQ_NEXT);
		r->u.search.cursor = cursor;
		r->u.search.k = 123;
		assert_int_equal(call(f), NV_OK);
	}
	assert_int_equal(f->r->u.search.exhausted, 1);
	/*
	 * What was found too late is held back.  Isolated clusters like these are
	 * the worst case for that: 15 % when this was written.
	 */
	assert_true(total <= f->n && total > f->n * 75 / 100);
	free(seen);
}

/*
 * Of a frontier as narrow as the answer a part comes too late for its place: it
 * is held back, however little is asked for at a time.
 */
static void
test_order(void **state)
{
	fixture *f = *state;
	float queries[20 * DIM];

	build_all(f);
	make_rows(queries, 20, 5);
	for (uint32_t q = 0; q < 20; q++)
	{
		double last = -1;

		assert_int_equal(search(f, queries + q * DIM, 1, 1), NV_OK);
		for (uint32_t i = 0; i < 200 && f->r->u.search.cursor != 0; i++)
		{
			uint64_t cursor = f->r->u.search.cursor;
			const nv_hit *hits = (const nv_hit *) f->r->data;

			for (uint32_t h = 0; h < f->r->u.search.n; h++)
			{
				assert_true(hits[h].distance >= last);
				last = hits[h].distance;
			}
			begin(f, NV_REQ_NEXT)->u.search.cursor = cursor;
			f->r->u.search.k = 1;
			assert_int_equal(call(f), NV_OK);
		}
	}
}

static void
test_rows_come_and_go(void **state)
{
	fixture *f = *state;
	float far[DIM];

	for (int d = 0; d < DIM; d++)
		far[d] = 100;
	build_all(f);
	assert_int_equal(delete (f, 0, 500, 1), NV_OK);
	assert_true(recall(f, 60, alive_upper) >= 0.95);
	/* A stale generation deletes nothing. */
	assert_int_equal(delete (f, 600, 1, 9), NV_OK);
	assert_int_equal(search(f, f->rows + 600 * DIM, 1, 60), NV_OK);
	assert_int_equal(((nv_hit *) f->r->data)->element, 600);
	/* An element that comes back with another vector. */
	memcpy(f->rows, far, sizeof(far));
	assert_int_equal(insert(f, 0, 2), NV_OK);
	assert_int_equal(insert(f, 0, 2), NV_OK); /* idempotent */
	assert_int_equal(search(f, far, 10, 60), NV_OK);
	assert_int_equal(((nv_hit *) f->r->data)[0].element, 0);
	assert_int_equal(((nv_hit *) f->r->data)[0].generation, 2);
	assert_true(((nv_hit *) f->r->data)[0].distance == 0);
	assert_int_not_equal(((nv_hit *) f->r->data)[1].element, 0);
	assert_int_equal(info(f)->pending_rows, 1);
	assert_int_equal(delete (f, 0, 1, 2), NV_OK);
	assert_int_equal(info(f)->pending_rows, 0);
}

/* What catch-up hands over may have been read from the table long ago. */
static nv_status
insert_from_heap(fixture *f, uint32_t e, uint32_t generation)
{
	nv_request *r = begin(f, NV_REQ_INSERT);

	r->u.insert = (nv_req_insert){
		.element = e,
		.generation = generation,
		.hash = hash_row(f, e),
		.dim = DIM,
		.from_heap = 1,
	};
	memcpy(r->data, f->rows + (size_t) e * DIM, DIM * sizeof(float));
	return call(f);
}

/* The row that is found for row e's vector, its generation. */
static uint32_t
found_generation(fixture *f, uint32_t e)
{
	assert_int_equal(search(f, f->rows + (size_t) e * DIM, 1, 60), NV_OK);
	assert_int_equal(((nv_hit *) f->r->data)->element, e);
	return ((nv_hit *) f->r->data)->generation;
}

/* A row of before must not take the place of the one that is there now. */
static void
test_late_catch_up(void **state)
{
	fixture *f = *state;
	uint64_t pass;

	build_all(f);
	assert_int_equal(delete (f, 0, 2, 1), NV_OK);
	assert_int_equal(insert(f, 0, 2), NV_OK);
	assert_int_equal(insert_from_heap(f, 0, 1), NV_OK); /* pending: 2 */
	assert_int_equal(found_generation(f, 0), 2);
	assert_int_equal(insert_from_heap(f, 600, 0), NV_OK); /* linked: 1 */
	assert_int_equal(found_generation(f, 600), 1);
	assert_int_equal(info(f)->pending_rows, 1);
	assert_int_equal(insert_from_heap(f, 600, 2), NV_OK);
	assert_int_equal(found_generation(f, 600), 2);
	/* Generations go round. */
	assert_int_equal(insert(f, 1, UINT32_MAX), NV_OK);
	assert_int_equal(insert_from_heap(f, 1, 1), NV_OK);
	assert_int_equal(found_generation(f, 1), 1);
	assert_int_equal(insert_from_heap(f, 1, UINT32_MAX), NV_OK);
	assert_int_equal(found_generation(f, 1), 1);
	stop_engine(f, true);

	/* Whatever the sidecar of another time has: the journal decides. */
	start_engine(f);
	begin(f, NV_REQ_OPEN)->u.open.params = f->params;
	assert_int_equal(call(f), NV_OK);
	pass = f->r->u.open.pass;
	assert_int_not_equal(pass, 0);
	assert_int_equal(insert_from_heap(f, 700, 0), NV_OK);
	assert_int_equal(info(f)->pending_rows, 1);
	begin(f, NV_REQ_RECONCILE)->u.reconcile.pass = pass;
	f->r->u.reconcile.n = 1;
	*(nv_journal_entry *) f->r->data =
		(nv_journal_entry){701, 1, hash_row(f, 701)};
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(f->r->u.reconcile.n_missing, 0);
	assert_int_equal(insert_from_heap(f, 701, 0), NV_OK); /* agreed on: 1 */
	assert_int_equal(info(f)->pending_rows, 1);
	begin(f, NV_REQ_OPENED)->u.opened.pass = pass;
	f->r->u.opened.complete = 1;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(found_generation(f, 700), 0);
	assert_int_equal(found_generation(f, 701), 1);
}

/* n_missing of a RECONCILE about one entry. */
static uint32_t
reconcile_one(fixture *f, uint64_t pass, nv_journal_entry entry)
{
	nv_request *r = begin(f, NV_REQ_RECONCILE);

	r->u.reconcile.pass = pass;
	r->u.reconcile.n = 1;
	*(nv_journal_entry *) r->data = entry;
	assert_int_equal(call(f), NV_OK);
	return r->u.reconcile.n_missing;
}

/*
 * A sidecar of another time or timeline has an element's row only if both its
 * generation and its vector's hash are the journal's.  What it has instead is
 * not found any more, whether the right row comes or not.
 */
static void
test_stale_sidecar(void **state)
{
	fixture *f = *state;
	uint64_t pass, other = hash_row(f, 703);
	const nv_hit *hit;
	nv_request *r;

	build_all(f);
	stop_engine(f, true);
	start_engine(f);
	begin(f, NV_REQ_OPEN)->u.open.params = f->params;
	assert_int_equal(call(f), NV_OK);
	pass = f->r->u.open.pass;
	for (uint32_t e = 0; e < f->n; e++)
		if (e < 700 || e > 703)
			assert_int_equal(
				reconcile_one(f, pass,
							  (nv_journal_entry){e, 1, hash_row(f, e)}),
				0);
	/* Of another generation, with another vector, both; 703 is not named. */
	assert_int_equal(
		reconcile_one(f, pass, (nv_journal_entry){700, 2, hash_row(f, 700)}),
		1);
	assert_int_equal(reconcile_one(f, pass, (nv_journal_entry){701, 1, other}),
					 1);
	assert_int_equal(reconcile_one(f, pass, (nv_journal_entry){702, 2, other}),
					 1);
	assert_int_equal(insert_from_heap(f, 700, 2), NV_OK);
	r = begin(f, NV_REQ_INSERT);
	r->u.insert = (nv_req_insert){.element = 701,
								  .generation = 1,
								  .hash = other,
								  .dim = DIM,
								  .from_heap = 1};
	memcpy(r->data, f->rows + (size_t) 703 * DIM, DIM * sizeof(float));
	assert_int_equal(call(f), NV_OK);
	begin(f, NV_REQ_OPENED)->u.opened.pass = pass;
	f->r->u.opened.complete = 1;
	assert_int_equal(call(f), NV_OK);
	assert_int_equal(info(f)->pending_rows, 2);
	assert_int_equal(found_generation(f, 700), 2);
	for (uint32_t e = 701; e <= 703; e++)
	{
		assert_int_equal(search(f, f->rows + (size_t) e * DIM, 1, 60), NV_OK);
		hit = (const nv_hit *) f->r->data;
		if (e == 703)
			assert_true(hit->element == 701 && hit->distance == 0);
		else
			assert_true(hit->element < 700 || hit->distance > 0);
	}
}

/* A row that cannot be taken and whose inserter does not wait to hear it. */
static void
post_refused(fixture *f, uint32_t e)
{
	nv_request *r = begin(f, NV_REQ_INSERT);

	r->u.insert = (nv_req_insert){
		.element = e,
		.generation = 1,
		.hash = 1,
		.lsn = ++f->lsn,
		.dim = DIM + 1,
		.posted = 1,
	};
	assert_int_equal(call(f), NV_EINVAL);
}

static uint64_t
begin_pass(fixture *f)
{
	begin(f, NV_REQ_OPEN)->u.open.params = f->params;
	assert_int_equal(call(f), NV_OK);
	assert_int_not_equal(f->r->u.open.pass, 0);
	return f->r->u.open.pass;
}

static uint32_t
end_pass(fixture *f, uint64_t pass)
{
	begin(f, NV_REQ_OPENED)->u.opened.pass = pass;
	f->r->u.opened.complete = 1;
	assert_int_equal(call(f), NV_OK);
	return f->r->u.opened.state;
}

/*
 * A row is missing and nobody was told: no search, and no walk that may have
 * gone by the row makes the index usable, only one that began afterwards.
 */
static void
test_missing_row(void **state)
{
	fixture *f = *state;
	nv_index *index;
	uint64_t pass;
	uint32_t st;

	build_all(f);
	post_refused(f, f->n);
	assert_int_equal(search(f, f->rows, 10, 60), NV_EUNUSABLE);
	pass = begin_pass(f);
	post_refused(f, f->n);
	assert_int_equal(end_pass(f, pass), NV_INDEX_OPENING);
	assert_int_equal(search(f, f->rows, 10, 60), NV_EUNUSABLE);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_int_equal(search(f, f->rows, 10, 60), NV_OK);

	/* The same where the row finds no room and others leave soon. */
	post_refused(f, f->n);
	pass = begin_pass(f);
	index = nv_index_get(f->engine, &f->key, false);
	pthread_mutex_lock(&index->lock);
	nv_index_become_full(index, "no room for a row");
	nv_index_leave_full(index);
	pthread_mutex_unlock(&index->lock);
	nv_index_put(index);
	assert_int_not_equal(begin_pass(f), pass);
	assert_int_equal(end_pass(f, pass), NV_INDEX_OPENING);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
}

static void
test_restart(void **state)
{
	fixture *f = *state;
	uint32_t st;

	build_all(f);
	assert_int_equal(delete (f, 0, 500, 1), NV_OK);
	checkpoint(f);
	stop_engine(f, false);
	start_engine(f);
	assert_int_equal(search(f, f->rows, 10, 60), NV_ENOENT);
	assert_int_equal(open_index(f, f->n, 0, 500, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_true(recall(f, 60, alive_upper) >= 0.95);
	assert_true(info(f)->published_lsn > 0);
	assert_true(info(f)->deleted >= 490);
	/* Opening again needs no walk. */
	open_index(f, f->n, 0, 500, true, &st);
	assert_int_equal(st, NV_INDEX_READY);
}

/* Rerank windows are kept although nothing else changed since the build. */
static void
test_restart_calibrated(void **state)
{
	fixture *f = *state;
	nv_bucket_info before;
	uint32_t st;

	build_all(f);
	assert_int_equal(info(f)->n_buckets, 1);
	before = *(const nv_bucket_info *) f->r->data;
	stop_engine(f, true);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_int_equal(info(f)->n_buckets, 1);
	assert_memory_equal(f->r->data, &before, sizeof(before));
}

/* Deletes without a checkpoint are lost; the journal's walk finds them. */
static void
test_restart_behind_journal(void **state)
{
	fixture *f = *state;
	uint32_t st;

	build_all(f);
	stop_engine(f, false);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 500, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_true(recall(f, 60, alive_upper) >= 0.95);
	stop_engine(f, true); /* publishes */
	/* Now the journal has rows that the sidecar lacks. */
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, false, &st), 500);
	assert_int_equal(st, NV_INDEX_NO_GRAPH);
	assert_int_equal(search(f, f->rows, 10, 60), NV_EUNUSABLE);
}

/* What the engine wanted to be durable, and whether it is. */
static _Atomic uint64_t flushed;
static _Atomic bool flush_fails;

static nv_status
note_flush(void *arg, uint64_t lsn, nv_error *err)
{
	if (atomic_load(&flush_fails))
		return nv_fail(err, NV_EIO, 0, "no WAL is flushed");
	atomic_store(&flushed, lsn);
	return NV_OK;
}

/*
 * WAL is flushed up to whatever a checkpoint may know of, wherever that came
 * from (design, invariant 1); without it nothing is published.
 */
static void
test_journal_first(void **state)
{
	fixture *f = *state;
	static nv_port port; /* the engine's, until it has stopped */
	nv_error err;
	uint32_t st;

	build_first(f, 2000);
	stop_engine(f, true);
	f->local = nv_local_create();
	port = *nv_local_port(f->local);
	port.flush_wal = note_flush;
	assert_int_equal(nv_engine_start(&f->config, &port, &f->engine, &err),
					 NV_OK);
	/* An opener: the LSN of the pages it read. */
	f->lsn += 1000;
	open_index(f, 2000, 0, 0, true, &st);
	assert_int_equal(st, NV_INDEX_READY);
	checkpoint(f);
	assert_int_equal(atomic_load(&flushed), f->lsn);
	insert_some(f, 2000, 10, 1);
	checkpoint(f);
	assert_int_equal(atomic_load(&flushed), f->lsn);
	assert_int_equal(info(f)->published_lsn, f->lsn);
	delete_some(f, 0, 10, 1);
	checkpoint(f);
	assert_int_equal(atomic_load(&flushed), f->lsn);
	assert_int_equal(info(f)->published_lsn, f->lsn);
	atomic_store(&flush_fails, true);
	insert_some(f, 2010, 10, 1);
	begin(f, NV_REQ_CHECKPOINT);
	assert_int_equal(call(f), NV_EIO);
	assert_int_equal(info(f)->published_lsn, f->lsn - 10);
	atomic_store(&flush_fails, false);
}

static void
test_lost_sidecar_rebuild(void **state)
{
	fixture *f = *state;
	char dir[300];
	uint32_t st;

	build_all(f);
	stop_engine(f, true);
	index_dir(f, dir);
	assert_true(exists(dir, "navis.sidecar"));
	remove_all(dir);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, false, &st), f->n);
	assert_int_equal(st, NV_INDEX_NO_GRAPH);
	assert_int_equal(build_begin(f, true, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, f->n - 1), NV_OK);
	/* Meanwhile one row goes and one comes. */
	assert_int_equal(delete (f, 0, 1, 1), NV_OK);
	assert_int_equal(insert(f, f->n - 1, 1), NV_OK);
	assert_int_equal(build_run(f), NV_OK);
	assert_int_equal(open_index(f, f->n, 0, 1, true, &st), 0);
	assert_int_equal(st, NV_INDEX_READY);
	assert_int_equal(search(f, f->rows, 1, 60), NV_OK);
	assert_int_not_equal(((nv_hit *) f->r->data)->element, 0);
	assert_int_equal(search(f, f->rows + (size_t) (f->n - 1) * DIM, 1, 60),
					 NV_OK);
	assert_int_equal(((nv_hit *) f->r->data)->element, f->n - 1);
	assert_true(exists(dir, "navis.sidecar"));
}

/* A rebuild beside searches: they never fail, and one graph stays on disk. */
static void
test_rebuild_in_place(void **state)
{
	fixture *f = *state;
	char dir[300];
	uint32_t st;

	build_all(f);
	assert_int_equal(build_begin(f, true, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_begin(f, true, UINT64_C(1) << 30), NV_EBUSY);
	assert_int_equal(build_add(f, 0, f->n), NV_OK);
	assert_true(recall(f, 60, NULL) >= 0.95);
	assert_int_equal(build_run(f), NV_OK);
	open_index(f, f->n, 0, 0, true, &st);
	assert_int_equal(st, NV_INDEX_READY);
	assert_true(recall(f, 60, NULL) >= 0.95);
	stop_engine(f, true);
	index_dir(f, dir);
	assert_false(exists(dir, "g1"));
	assert_true(exists(dir, "g2"));
}

static void
test_small_index(void **state)
{
	fixture *f = *state;
	char dir[300];
	uint32_t st;

	build_all(f);
	assert_int_equal(f->r->u.build.vertices, 0);
	assert_int_equal(search(f, f->rows + 3 * DIM, 5, 60), NV_OK);
	assert_int_equal(((nv_hit *) f->r->data)->element, 3);
	assert_int_equal(f->r->u.search.stats.hops, 0);
	assert_int_equal(f->r->u.search.stats.pending, f->n);
	/* No graph, but a place that is found when it is to be dropped. */
	index_dir(f, dir);
	assert_true(exists(dir, "navis.sidecar"));
	assert_false(exists(dir, "g1"));
	stop_engine(f, true);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, false, &st), f->n);
}

/* 2,000 equal rows are one vertex; all of them are found. */
static void
test_equal_rows(void **state)
{
	fixture *f = *state;
	uint32_t found = 0;

	for (uint32_t e = 1; e < 2000; e++)
		memcpy(f->rows + (size_t) e * DIM, f->rows, DIM * sizeof(float));
	memcpy(f->rows + (size_t) 2999 * DIM, f->rows + (size_t) 2998 * DIM,
		   DIM * sizeof(float));
	make_rows(f->rows + (size_t) 2000 * DIM, 500, 5);
	build_all(f);
	assert_true(f->r->u.build.vertices <= 1001);
	if (f->r->u.build.vertices == 0)
		return;
	assert_int_equal(search(f, f->rows, 2000, 60), NV_OK);
	for (uint32_t i = 0; i < f->r->u.search.n; i++)
		found += ((nv_hit *) f->r->data)[i].element < 2000;
	assert_int_equal(found, 2000);
}

static void
test_memory_limits(void **state)
{
	fixture *f = *state;
	nv_status status = NV_OK;
	char dir[300];

	assert_int_equal(build_begin(f, false, 1 << 20), NV_ELIMIT);
	assert_non_null(strstr(f->r->detail, "navis.build_memory"));
	index_dir(f, dir);
	assert_false(exists(dir, ""));
	/* An estimate that was too low is found out while rows come. */
	f->n = 10;
	assert_int_equal(build_begin(f, false, 8 << 20), NV_OK);
	f->n = ROWS;
	for (int round = 0; round < 100 && status == NV_OK; round++)
		status = build_add(f, 0, f->n);
	assert_int_equal(status, NV_ELIMIT);
	begin(f, NV_REQ_BUILD_ABORT);
	assert_int_equal(call(f), NV_OK);
	assert_false(exists(dir, ""));
	/* The memory is free again. */
	build_all(f);
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	assert_false(exists(dir, ""));
}

static void
test_pending_limit(void **state)
{
	fixture *f = *state;
	nv_status status = NV_OK;
	uint32_t e;

	stop_engine(f, false);
	f->config.pending_memory = 64 << 10;
	start_engine(f);
	build_all(f);
	for (e = 0; e < f->n && status == NV_OK; e++)
		status = insert(f, e, 2);
	assert_int_equal(status, NV_ELIMIT);
	assert_true(e > 400 && e < 500);
	assert_int_equal(info(f)->state, NV_INDEX_FULL);
	assert_int_equal(search(f, f->rows, 10, 60), NV_EUNUSABLE);
	assert_int_equal(delete (f, 0, 1, 2), NV_OK);
	assert_int_equal(info(f)->state, NV_INDEX_FULL);
}

static void
test_cancel(void **state)
{
	fixture *f = *state;
	char dir[300];

	assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
	assert_int_equal(build_add(f, 0, f->n), NV_OK);
	begin(f, NV_REQ_BUILD_RUN);
	nv_local_submit(f->local, f->r);
	while (atomic_load(&f->r->phase) < NV_PHASE_TRAIN)
		usleep(100);
	nv_local_abandon(f->local, f->r);
	nv_local_wait(f->local, f->r);
	index_dir(f, dir);
	/* Files are closed and removed by a job soon after. */
	for (int i = 0; i < 1000 && exists(dir, ""); i++)
		usleep(10000);
	assert_false(exists(dir, ""));
	assert_int_equal(info(f)->state, NV_INDEX_ABSENT);
	build_all(f);
	/* Abandoned searches leave the slot usable and the engine alive. */
	for (int i = 0; i < 200; i++)
	{
		search_request(f, f->rows, 10, 1000);
		nv_local_submit(f->local, f->r);
		nv_local_abandon(f->local, f->r);
		nv_local_wait(f->local, f->r);
	}
	assert_true(recall(f, 60, NULL) >= 0.95);
}

static void
test_cursors(void **state)
{
	fixture *f = *state;
	uint64_t first;
	nv_request *r;

	stop_engine(f, false);
	f->config.max_cursors = 4;
	start_engine(f);
	build_all(f);
	assert_int_equal(search(f, f->rows, 3, 40), NV_OK);
	first = f->r->u.search.cursor;
	assert_true(first != 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(search(f, f->rows, 3, 40), NV_OK);
	assert_int_equal(info(f)->cursors, 4);
	/* The oldest had to go. */
	r = begin(f, NV_REQ_NEXT);
	r->u.search.cursor = first;
	r->u.search.k = 5;
	assert_int_equal(call(f), NV_ENOENT);
	/* Another backend's cursor is none of ours. */
	assert_int_equal(search(f, f->rows, 3, 40), NV_OK);
	first = f->r->u.search.cursor;
	r = begin(f, NV_REQ_NEXT);
	r->owner = 2;
	r->u.search.cursor = first;
	r->u.search.k = 5;
	assert_int_equal(call(f), NV_ENOENT);
	nv_engine_release_cursor(f->engine, first);
	assert_int_equal(info(f)->cursors, 3);
}

static void
test_damage(void **state)
{
	fixture *f = *state;
	char dir[300], path[400];
	uint8_t junk[4096];
	uint32_t st;
	int fd;

	build_all(f);
	stop_engine(f, true);
	index_dir(f, dir);
	snprintf(path, sizeof(path), "%s/g1/edges", dir);
	memset(junk, 0x5a, sizeof(junk));
	fd = open(path, O_WRONLY);
	for (int i = 0; i < 8; i++)
		assert_int_equal(pwrite(fd, junk, sizeof(junk), i * 4096),
						 sizeof(junk));
	close(fd);
	start_engine(f);
	open_index(f, f->n, 0, 0, true, &st);
	assert_int_equal(st, NV_INDEX_READY);
	for (uint32_t e = 0; e < f->n; e += 10)
		if (search(f, f->rows + (size_t) e * DIM, 10, 60) == NV_EUNUSABLE)
			break;
	assert_int_equal(info(f)->state, NV_INDEX_DAMAGED);
	/* A broken state file: no root, so no graph. */
	stop_engine(f, false);
	snprintf(path, sizeof(path), "%s/g1/state", dir);
	fd = open(path, O_WRONLY);
	for (int i = 0; i < 40; i++)
		assert_int_equal(pwrite(fd, junk, sizeof(junk), i * 4096),
						 sizeof(junk));
	close(fd);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, false, &st), f->n);
	assert_int_equal(st, NV_INDEX_NO_GRAPH);
}

static void
test_quarantine(void **state)
{
	fixture *f = *state;
	char dir[300], path[400];
	uint32_t st;
	int fd;

	build_all(f);
	stop_engine(f, true);
	index_dir(f, dir);
	snprintf(path, sizeof(path), "%s/g1/opening", dir);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	close(fd);
	start_engine(f);
	assert_int_equal(open_index(f, f->n, 0, 0, false, &st), f->n);
}

static void
test_directory_lock(void **state)
{
	fixture *f = *state;
	nv_local *other = nv_local_create();
	nv_engine *engine;
	nv_error err;

	assert_int_equal(
		nv_engine_start(&f->config, nv_local_port(other), &engine, &err),
		NV_EBUSY);
	assert_non_null(strstr(err.detail, "another server"));
	nv_local_free(other);
}

static void
count_sidecar(void *arg, const nv_key *key, uint32_t relfilenode,
			  uint32_t index_oid)
{
	assert_int_equal(relfilenode, 1000);
	assert_int_equal(index_oid, 1001);
	assert_int_equal(key->system_id, 42);
	(*(int *) arg)++;
}

static void
test_drop_and_list(void **state)
{
	fixture *f = *state;
	char dir[300];
	nv_error err;
	int n = 0;

	build_all(f);
	assert_int_equal(nv_list_sidecars(f->dir, count_sidecar, &n, &err), NV_OK);
	assert_int_equal(n, 1);
	assert_int_equal(search(f, f->rows, 3, 40), NV_OK); /* leaves a cursor */
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	n = 0;
	nv_list_sidecars(f->dir, count_sidecar, &n, &err);
	assert_int_equal(n, 0);
	assert_int_equal(search(f, f->rows, 3, 40), NV_ENOENT);
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK); /* nothing there is fine */
	/* What looks like ours, but does not carry our marker, is not. */
	snprintf(dir, sizeof(dir), "%s/%u", f->dir, f->key.database);
	assert_int_equal(mkdir(dir, 0700), 0);
	index_dir(f, dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	n = 0;
	assert_int_equal(nv_list_sidecars(f->dir, count_sidecar, &n, &err), NV_OK);
	assert_int_equal(n, 0);
}

static void
test_bad_requests(void **state)
{
	fixture *f = *state;
	float query[DIM] = {0};

	build_all(f);
	assert_int_equal(search(f, query, 0, 40), NV_EINVAL);
	assert_int_equal(search(f, query, NV_MAX_HITS + 1, 40), NV_EINVAL);
	search_request(f, query, 1, 40)->dim = DIM + 1;
	assert_int_equal(call(f), NV_EINVAL);
	search_request(f, query, 1, 40)->beam_width = 0;
	assert_int_equal(call(f), NV_EINVAL);
	search_request(f, query, 1, 40)->percentile = 101;
	assert_int_equal(call(f), NV_EINVAL);
	begin(f, NV_REQ_DELETE)->u.del.n = UINT32_MAX;
	assert_int_equal(call(f), NV_EINVAL);
	begin(f, (nv_request_kind) 99);
	assert_int_equal(call(f), NV_EINVAL);
	begin(f, NV_REQ_OPEN)->u.open.params.dim = NV_MAX_DIM + 1;
	assert_int_equal(call(f), NV_EINVAL);
	begin(f, NV_REQ_BUILD_RUN);
	assert_int_equal(call(f), NV_ENOENT);
}

/* --- Builds that nobody has left --- */

typedef struct expirer
{
	nv_engine *engine;
	_Atomic bool stop;
} expirer;

static void *
expire_builds(void *arg)
{
	expirer *e = arg;

	while (!atomic_load(&e->stop))
		nv_builds_expire(e->engine);
	return NULL;
}

/* A build begun while the housekeeper looks for idle ones is not idle. */
static void
test_young_builds(void **state)
{
	fixture *f = *state;
	expirer e = {.engine = f->engine};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, expire_builds, &e), 0);
	for (int i = 0; i < 300; i++)
	{
		assert_int_equal(build_begin(f, false, UINT64_C(1) << 30), NV_OK);
		assert_int_equal(build_add(f, 0, 50), NV_OK);
		begin(f, NV_REQ_BUILD_ABORT);
		assert_int_equal(call(f), NV_OK);
	}
	atomic_store(&e.stop, true);
	pthread_join(thread, NULL);
}

/* --- small indexes share pending_memory --- */

#define SMALL 300 /* rows; three and a half such indexes fit */

/* The fixture turns to another index. */
static void
turn_to(fixture *f, int number)
{
	f->key.identity[0] = (uint8_t) number;
}

/* Makes a rest end at once. */
static void
end_rest(fixture *f)
{
	nv_index *index = nv_index_get(f->engine, &f->key, false);

	pthread_mutex_lock(&index->lock);
	index->full_ns = 0;
	pthread_mutex_unlock(&index->lock);
	nv_index_put(index);
}

/* What a backend does before it searches; the state afterwards. */
static uint32_t
open_small(fixture *f, int number, uint32_t rows)
{
	nv_req_open *open;
	uint64_t pass;

	turn_to(f, number);
	open = &begin(f, NV_REQ_OPEN)->u.open;
	open->params = f->params;
	assert_int_equal(call(f), NV_OK);
	assert_true(open->room >= NV_MIN_GRAPH_ROWS);
	pass = open->pass;
	if (pass == 0)
		return open->state;
	for (uint32_t e = 0; e < rows; e++)
		if (insert(f, e, 1) == NV_ELIMIT)
			break;
	begin(f, NV_REQ_OPENED)->u.opened.pass = pass;
	f->r->u.opened.complete = 1;
	assert_int_equal(call(f), NV_OK);
	return f->r->u.opened.state;
}

static void
expect_small(fixture *f, int number, nv_index_state state, uint32_t rows)
{
	turn_to(f, number);
	assert_int_equal(info(f)->state, state);
	assert_int_equal(f->r->u.info.pending_rows, rows);
}

static void
search_small(fixture *f, int number, nv_status expected)
{
	turn_to(f, number);
	assert_int_equal(search(f, f->rows, 10, 40), expected);
}

static void
restart_narrow(fixture *f)
{
	uint64_t index = SMALL * nv_pending_row_bytes(DIM);

	stop_engine(f, false);
	f->config.pending_memory = index * 7 / 2 * 8 / 7;
	start_engine(f);
}

/* The one that was used least recently lets go, rests, and comes back. */
static void
test_small_take_turns(void **state)
{
	fixture *f = *state;

	restart_narrow(f);
	for (int i = 1; i <= 3; i++)
		assert_int_equal(open_small(f, i, SMALL), NV_INDEX_READY);
	search_small(f, 1, NV_OK);
	assert_int_equal(open_small(f, 4, SMALL), NV_INDEX_READY);
	expect_small(f, 1, NV_INDEX_READY, SMALL);
	expect_small(f, 2, NV_INDEX_FULL, 0);
	expect_small(f, 3, NV_INDEX_READY, SMALL);
	expect_small(f, 4, NV_INDEX_READY, SMALL);
	/* It is at rest: neither opened nor inserted into. */
	search_small(f, 2, NV_EUNUSABLE);
	assert_int_equal(open_small(f, 2, SMALL), NV_INDEX_FULL);
	assert_int_equal(insert(f, SMALL, 1), NV_ELIMIT);
	expect_small(f, 3, NV_INDEX_READY, SMALL);
	turn_to(f, 2);
	end_rest(f);
	assert_int_equal(open_small(f, 2, SMALL), NV_INDEX_READY);
	search_small(f, 2, NV_OK);
	assert_true(((nv_hit *) f->r->data)[0].element == 0);
	expect_small(f, 3, NV_INDEX_FULL, 0);
	expect_small(f, 1, NV_INDEX_READY, SMALL);
}

/* Rows that will have a graph stay; who gets no room keeps nothing. */
static void
test_small_beside_growing(void **state)
{
	fixture *f = *state;

	restart_narrow(f);
	for (int i = 1; i <= 3; i++)
		assert_int_equal(open_small(f, i, SMALL), NV_INDEX_READY);
	assert_int_equal(open_small(f, 4, NV_MIN_GRAPH_ROWS), NV_INDEX_READY);
	for (int i = 1; i <= 3; i++)
		expect_small(f, i, NV_INDEX_FULL, 0);
	assert_int_equal(open_small(f, 5, SMALL), NV_INDEX_FULL);
	expect_small(f, 5, NV_INDEX_FULL, 0);
	expect_small(f, 4, NV_INDEX_READY, NV_MIN_GRAPH_ROWS);
	/* A build of so few rows keeps them, or it does not. */
	turn_to(f, 6);
	f->n = SMALL;
	build_all(f);
	expect_small(f, 6, NV_INDEX_FULL, 0);
	turn_to(f, 4);
	begin(f, NV_REQ_DROP);
	assert_int_equal(call(f), NV_OK);
	for (int i = 7; i <= 10; i++)
	{
		turn_to(f, i);
		build_all(f);
		expect_small(f, i, NV_INDEX_READY, SMALL);
	}
	expect_small(f, 7, NV_INDEX_FULL, 0);
}

typedef struct rival
{
	fixture f;
	_Atomic bool stop;
} rival;

/* Opens others, as if the first one were used least. */
static void *
open_others(void *arg)
{
	rival *r = arg;

	for (int i = 0; !atomic_load(&r->stop); i++)
	{
		int number = 2 + i % 5;
		nv_index *index;

		turn_to(&r->f, number);
		if (i >= 5)
			end_rest(&r->f);
		(void) open_small(&r->f, number, SMALL);
		index = nv_index_get(r->f.engine, &r->f.key, false);
		atomic_store(&index->used_ns, UINT64_MAX - 1);
		nv_index_put(index);
	}
	return NULL;
}

/* A search has all rows, or says that it has not. */
static void
test_small_searched(void **state)
{
	fixture *f = *state;
	uint32_t answered = 0, refused = 0, wrong = 0;
	pthread_t thread;
	rival r = {0};

	restart_narrow(f);
	assert_int_equal(open_small(f, 1, SMALL), NV_INDEX_READY);
	r.f = fork_fixture(f, 2);
	assert_int_equal(pthread_create(&thread, NULL, open_others, &r), 0);
	for (int i = 0; i < 20000 && (answered < 300 || refused < 30); i++)
	{
		uint32_t e = (uint32_t) i % SMALL;
		nv_status status;

		turn_to(f, 1);
		status = search(f, f->rows + (size_t) e * DIM, SMALL, 40);
		if (status == NV_OK)
		{
			wrong += f->r->u.search.n != SMALL ||
					 ((nv_hit *) f->r->data)[0].distance != 0;
			answered++;
			continue;
		}
		wrong += status != NV_EUNUSABLE;
		refused++;
		end_rest(f);
		(void) open_small(f, 1, SMALL);
	}
	atomic_store(&r.stop, true);
	pthread_join(thread, NULL);
	free(r.f.r);
	assert_int_equal(wrong, 0);
	assert_true(answered >= 300 && refused >= 30);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_build_search),
		cmocka_unit_test_setup_teardown(test_build_search, setup_cosine,
										teardown),
		cmocka_unit_test_setup_teardown(test_build_search, setup_ip, teardown),
		TEST(test_complete_scan),
		TEST(test_order),
		TEST(test_rows_come_and_go),
		TEST(test_late_catch_up),
		TEST(test_stale_sidecar),
		TEST(test_missing_row),
		TEST(test_restart),
		TEST(test_restart_calibrated),
		TEST(test_restart_behind_journal),
		TEST(test_journal_first),
		TEST(test_lost_sidecar_rebuild),
		TEST(test_rebuild_in_place),
		cmocka_unit_test_setup_teardown(test_small_index, setup_small,
										teardown),
		TEST(test_equal_rows),
		TEST(test_memory_limits),
		TEST(test_pending_limit),
		TEST(test_small_take_turns),
		TEST(test_small_beside_growing),
		TEST(test_small_searched),
		TEST(test_cancel),
		TEST(test_young_builds),
		TEST(test_cursors),
		TEST(test_damage),
		TEST(test_quarantine),
		TEST(test_directory_lock),
		TEST(test_drop_and_list),
		TEST(test_bad_requests),
	};

	nv_set_log_sink(NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
