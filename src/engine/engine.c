/*
 * engine.c
 *		Start and stop, thread pools, the housekeeper.
 *
 * Threads: search threads (searcher.c), insert threads (insert.c), a pool for
 *requests that may block, a pool for builds, the calibrator (calibrate.c) and
 *the housekeeper, which publishes checkpoints of changed indexes and drops what
 *was left behind.
 */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blas.h"
#include "engine_internal.h"
#include "page_writer.h"
#include "retrain.h"

#define HOUSEKEEPING_SECONDS 1
#define MAX_SEARCH_THREADS 64
#define MAX_INSERT_THREADS 32

/* When a changed index is published before its time is over. */
#define DEAD_SHARE 8           /* retired slots: this part of all, and */
#define MIN_DEAD_SLOTS 2048    /* this many, about 0.5 MiB */
/* Linking waits where retired slots are half as many as the others. */
#define MOST_DEAD_SLOTS(all) ((all) / 3)
#define MIN_UNSAVED_ROWS 20000 /* rows linked: this many, and */
#define UNSAVED_SHARE 200      /* this part of all */

_Static_assert(MAX_INSERT_THREADS <= NV_EQUAL_CLAIMS,
			   "every insert thread may claim a hash");

void
nv_config_defaults(nv_config *config)
{
	memset(config, 0, sizeof(*config));
	config->search_threads = 4;
	config->interleave = 4;
	config->cache_size = UINT64_C(256) << 20;
	config->cache_window = 0.10;
	config->cache_promote = 4;
	config->cache_promote_search = 1;
	config->pending_memory = UINT64_C(64) << 20;
	config->casr_warmup = 1000;
	config->checkpoint_timeout = 300;
	config->max_cursors = 1000;
	config->cursor_idle = 300;
	config->fsync = true;
	config->insert_threads = 2;
	config->insert_list_size = 100;
	config->insert_queue_size = 2000;
	config->casr_percentile_insert = 90;
	config->build_memory = UINT64_C(2) << 30;
	config->build_threads = 0;
}

bool
nv_abandoned(const nv_request *request)
{
	return atomic_load_explicit(&request->state, memory_order_relaxed) ==
		   NV_ABANDONED;
}

void
nv_answer(nv_engine *engine, nv_request *request, nv_status status,
		  const nv_error *err)
{
	request->status = status;
	request->sys_errno = 0;
	request->detail[0] = '\0';
	if (status != NV_OK)
	{
		request->sys_errno = err != NULL ? err->sys_errno : 0;
		snprintf(request->detail, sizeof(request->detail), "%s",
				 err != NULL && err->detail[0] != '\0'
					 ? err->detail
					 : nv_status_name(status));
	}
	engine->port->finish(engine->port->arg, request);
}

void
nv_pause(const nv_engine *engine, uint32_t us)
{
	struct timespec pause = {.tv_nsec = (long) us * 1000};

	nv_assert(us < 1000000);
	if (engine->pause != NULL)
		engine->pause(engine->pause_arg);
	else
		nanosleep(&pause, NULL);
}

/* --- pools --- */

static void *
pool_main(void *arg)
{
	nv_pool *pool = arg;

	for (;;)
	{
		nv_job *job;

		pthread_mutex_lock(&pool->lock);
		while (pool->head == NULL && !pool->closed)
			pthread_cond_wait(&pool->cond, &pool->lock);
		job = pool->head;
		if (job != NULL && (pool->head = job->next) == NULL)
			pool->tail = &pool->head;
		pthread_mutex_unlock(&pool->lock);
		if (job == NULL)
			return NULL;
		job->run(pool->engine, job);
		free(job);
	}
}

nv_status
nv_submit_job(nv_engine *engine, nv_pool *pool,
			  void (*run)(nv_engine *, nv_job *), nv_request *request,
			  void *arg)
{
	nv_job *job = nv_alloc(sizeof(*job));
	nv_status status = NV_ECANCELLED;

	if (job == NULL)
		return NV_ENOMEM;
	job->run = run;
	job->request = request;
	job->arg = arg;
	pthread_mutex_lock(&pool->lock);
	if (!pool->closed && pool->n_threads > 0)
	{
		*pool->tail = job;
		pool->tail = &job->next;
		pthread_cond_signal(&pool->cond);
		status = NV_OK;
	}
	pthread_mutex_unlock(&pool->lock);
	if (status != NV_OK)
		free(job);
	return status;
}

static nv_status
start_thread(pthread_t *thread, void *(*entry)(void *), void *arg,
			 nv_error *err)
{
	int rc = pthread_create(thread, NULL, entry, arg);

	return rc == 0 ? NV_OK
				   : nv_fail(err, NV_ENOMEM, rc, "could not start a thread: %s",
							 strerror(rc));
}

static nv_status
start_pool(nv_engine *engine, nv_pool *pool, uint32_t n, nv_error *err)
{
	nv_status status = NV_OK;

	nv_assert(n <= NV_LENGTH(pool->threads));
	while (pool->n_threads < n && status == NV_OK)
	{
		status =
			start_thread(&pool->threads[pool->n_threads], pool_main, pool, err);
		pool->n_threads += status == NV_OK;
	}
	return status;
}

static void
init_pool(nv_engine *engine, nv_pool *pool)
{
	pool->engine = engine;
	pool->tail = &pool->head;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->cond, NULL);
}

/* What is queued is still done; then the threads end. */
static void
stop_pool(nv_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->closed = true;
	pthread_cond_broadcast(&pool->cond);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->n_threads; i++)
		pthread_join(pool->threads[i], NULL);
	pool->n_threads = 0;
}

/* --- files that rings must forget --- */

static bool
all_forgot(nv_engine *engine, uint64_t seq)
{
	for (uint32_t i = 0; i < engine->n_searchers; i++)
		if (atomic_load(&engine->searchers[i].forgotten) < seq)
			return false;
	return true;
}

void
nv_engine_forget(nv_engine *engine, nv_file *a, nv_file *b)
{
	uint64_t seq;

	pthread_mutex_lock(&engine->forget_lock);
	while (engine->forget_files[0] != NULL) /* somebody else's turn */
		pthread_cond_wait(&engine->forget_cond, &engine->forget_lock);
	engine->forget_files[0] = a;
	engine->forget_files[1] = b;
	seq = atomic_fetch_add(&engine->forget_seq, 1) + 1;
	while (!all_forgot(engine, seq))
	{
		struct timespec until;

		engine->port->kick(engine->port->arg);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 10000000;
		if (until.tv_nsec >= 1000000000)
		{
			until.tv_sec++;
			until.tv_nsec -= 1000000000;
		}
		pthread_cond_timedwait(&engine->forget_cond, &engine->forget_lock,
							   &until);
	}
	engine->forget_files[0] = engine->forget_files[1] = NULL;
	pthread_cond_broadcast(&engine->forget_cond);
	pthread_mutex_unlock(&engine->forget_lock);
}

/* --- housekeeping --- */

void
nv_engine_wake(nv_engine *engine)
{
	pthread_mutex_lock(&engine->wake_lock);
	pthread_cond_broadcast(&engine->wake_cond);
	pthread_mutex_unlock(&engine->wake_lock);
}

/*
 * A checkpoint that failed is never tried again on the same files: the last
 * published one is opened anew and the journal tells what is missing.
 */
static void
reset_index(nv_index *index, const nv_error *err)
{
	nv_body *body;

	nv_log(NV_LOG_WARNING,
		   "checkpoint of %s failed: %s; it will be opened again at its last "
		   "checkpoint",
		   index->title, err->detail);
	/* Who opens it again waits until nobody writes to the old files. */
	pthread_mutex_lock(&index->load_lock);
	pthread_mutex_lock(&index->lock);
	body = index->body;
	index->body = NULL;
	index->state = NV_INDEX_OPENING;
	/* It would take the place of what is opened instead. */
	nv_build_cancel(index);
	nv_passes_free(index);
	pthread_mutex_unlock(&index->lock);
	if (body != NULL)
	{
		nv_insert_wait(index->engine, body);
		nv_store_give_up(body->store);
		/* A checkpoint that began before ends; others are refused. */
		pthread_mutex_lock(&index->checkpoint_lock);
		pthread_mutex_unlock(&index->checkpoint_lock);
	}
	nv_body_put(body);
	pthread_mutex_lock(&index->lock);
	index->loaded = false;
	pthread_mutex_unlock(&index->lock);
	pthread_mutex_unlock(&index->load_lock);
}

/* All indexes, each with a reference; returns their number. */
static uint32_t
list_indexes(nv_engine *engine, nv_index ***out)
{
	nv_index **list;
	uint32_t n = 0;

	pthread_mutex_lock(&engine->lock);
	list = malloc((engine->n_indexes + 1) * sizeof(*list));
	for (uint32_t i = 0; list != NULL && i < NV_MAX_INDEXES; i++)
		for (nv_index *x = engine->table[i]; x != NULL; x = x->hash_next)
		{
			atomic_fetch_add(&x->refs, 1);
			list[n++] = x;
		}
	pthread_mutex_unlock(&engine->lock);
	*out = list;
	return n;
}

uint32_t
nv_engine_indexes(nv_engine *engine, nv_index ***list)
{
	return list_indexes(engine, list);
}

/*
 * Lists that only the last checkpoint needs, or rows that are in none, have
 * become many (design, "Checkpoint protocol" 10).
 */
bool
nv_checkpoint_wanted(nv_body *body)
{
	uint64_t retired, live, unsaved = atomic_load(&body->unsaved);
	uint64_t rows = atomic_load(&body->n_vertices);

	nv_store_count_slots(body->store, &live, &retired);
	return (retired >= MIN_DEAD_SLOTS && retired * DEAD_SHARE > live) ||
		   unsaved >= NV_MAX((uint64_t) MIN_UNSAVED_ROWS, rows / UNSAVED_SHARE);
}

/*
 * They have become so many that the file would outgrow the graph before the
 * checkpoint is published: the disk is busy, or the graph small.
 */
bool
nv_checkpoint_overdue(nv_body *body)
{
	uint64_t retired, all;

	nv_store_count_slots(body->store, &all, &retired);
	return retired >= NV_MAX((uint64_t) MIN_DEAD_SLOTS,
							 MOST_DEAD_SLOTS(all));
}

/*
 * A changed index is published then, and when its time is over.  One whose
 * store has failed, wherever it was noticed, refuses its checkpoint and is then
 * opened again.
 */
static bool
checkpoint_due(nv_index *index, bool now)
{
	uint64_t timeout =
		(uint64_t) index->engine->config.checkpoint_timeout * 1000000000u;
	nv_body *body = nv_index_body(index);
	nv_store_stats stats = {0};
	bool due, changed;

	if (body == NULL)
		return false;
	nv_store_get_stats(body->store, &stats);
	due = now ||
		  nv_elapsed_ns(atomic_load(&index->checkpointed_ns)) > timeout ||
		  nv_checkpoint_wanted(body);
	changed = stats.dirty ||
			  (atomic_load(&body->windows_unsaved) && !nv_io_readonly());
	nv_body_put(body);
	return (due && changed) || stats.failed;
}

/*
 * One that was refused before it began, for want of space or memory, is tried
 * again when it is due the next time.
 */
static void
checkpoint_failed(nv_index *index, const nv_error *err)
{
	uint64_t failures = atomic_load(&index->work.checkpoint_failures);
	nv_body *body = nv_index_body(index);
	nv_store_stats stats = {.failed = true};

	if (body != NULL)
		nv_store_get_stats(body->store, &stats);
	nv_body_put(body);
	if (stats.failed)
		reset_index(index, err);
	/* The first, the second, the fourth, ... */
	else if ((failures & (failures - 1)) == 0)
		nv_log(NV_LOG_WARNING,
			   "checkpoint of %s was put off: %s; its rows come from the table "
			   "again after a crash",
			   index->title, err->detail);
}

void
nv_checkpoint_changed(nv_engine *engine, bool now)
{
	nv_index **list;
	uint32_t n = list_indexes(engine, &list);

	for (uint32_t i = 0; i < n; i++)
	{
		nv_error err;

		if (checkpoint_due(list[i], now))
		{
			if (nv_index_checkpoint(list[i], &err) == NV_OK)
				nv_places_trim(list[i]);
			else
				checkpoint_failed(list[i], &err);
		}
		nv_index_put(list[i]);
	}
	free(list);
}

static void *
housekeeper_main(void *arg)
{
	nv_engine *engine = arg;

	while (!atomic_load(&engine->stopping))
	{
		struct timespec until;

		nv_checkpoint_changed(engine, false);
		nv_cursors_expire(engine);
		nv_builds_expire(engine);
		if (atomic_load(&engine->places.n_parked) > 0)
			nv_places_serve(engine);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += HOUSEKEEPING_SECONDS;
		pthread_mutex_lock(&engine->wake_lock);
		if (!atomic_load(&engine->stopping))
			pthread_cond_timedwait(&engine->wake_cond, &engine->wake_lock,
								   &until);
		pthread_mutex_unlock(&engine->wake_lock);
	}
	return NULL;
}

void
nv_sleep_unless_stopping(nv_engine *engine, uint32_t ms)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += (long) (ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000)
	{
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&engine->wake_lock);
	while (!atomic_load(&engine->stopping) &&
		   pthread_cond_timedwait(&engine->wake_cond, &engine->wake_lock,
								  &until) == 0)
		;
	pthread_mutex_unlock(&engine->wake_lock);
}

/* --- start --- */

static nv_status
check_config(const nv_config *c, nv_error *err)
{
	if (c->search_threads < 1 || c->search_threads > MAX_SEARCH_THREADS)
		return nv_fail(err, NV_EINVAL, 0, "search_threads is %u, not 1 to %d",
					   c->search_threads, MAX_SEARCH_THREADS);
	if (c->interleave < 1 || c->interleave > 32)
		return nv_fail(err, NV_EINVAL, 0, "interleave is %u, not 1 to 32",
					   c->interleave);
	if (c->insert_threads > MAX_INSERT_THREADS || c->insert_list_size < 4 ||
		c->insert_list_size > NV_BUILD_MAX_LIST || c->insert_queue_size < 1 ||
		!(c->casr_percentile_insert >= 1 && c->casr_percentile_insert <= 100))
		return nv_fail(err, NV_EINVAL, 0,
					   "insert_threads is %u, insert_list_size %u, "
					   "insert_queue_size %u, casr_percentile_insert %g",
					   c->insert_threads, c->insert_list_size,
					   c->insert_queue_size, c->casr_percentile_insert);
	if (c->max_cursors < 1 || c->casr_warmup < 1 ||
		c->casr_warmup > NV_CASR_MAX_WARMUP)
		return nv_fail(err, NV_EINVAL, 0,
					   "max_cursors is %u, casr_warmup is %u", c->max_cursors,
					   c->casr_warmup);
	return NV_OK;
}

static nv_status
make_cache(nv_engine *engine, nv_error *err)
{
	nv_cache_params params = {
		.bytes = engine->config.cache_size,
		.window = engine->config.cache_window,
		.promote = engine->config.cache_promote,
		.promote_search = engine->config.cache_promote_search,
		.policy = (nv_cache_policy) engine->config.cache_policy,
	};

	return nv_cache_create(&params, &engine->cache, err);
}

/* Every open index holds three descriptors: take all that we may have. */
static void
raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
		limit.rlim_cur < limit.rlim_max)
	{
		limit.rlim_cur = limit.rlim_max;
		(void) setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void
init_locks(nv_engine *engine)
{
	pthread_mutex_init(&engine->lock, NULL);
	pthread_mutex_init(&engine->wake_lock, NULL);
	pthread_cond_init(&engine->wake_cond, NULL);
	pthread_mutex_init(&engine->forget_lock, NULL);
	pthread_cond_init(&engine->forget_cond, NULL);
	pthread_mutex_init(&engine->cursor_lock, NULL);
	pthread_mutex_init(&engine->insert_lock, NULL);
	pthread_cond_init(&engine->insert_cond, NULL);
	nv_places_init(engine);
	pthread_mutex_init(&engine->consolidate_lock, NULL);
	pthread_cond_init(&engine->consolidate_cond, NULL);
	init_pool(engine, &engine->jobs);
	init_pool(engine, &engine->builders);
}

/*
 * Waits until every search thread has its ring, or has none; one is enough. One
 * line about all that have none.
 */
static nv_status
await_searchers(nv_engine *engine, nv_error *err)
{
	const nv_error *failure = NULL;
	uint32_t ready = 0;

	for (uint32_t i = 0; i < engine->n_searchers; i++)
	{
		nv_searcher *s = &engine->searchers[i];

		while (atomic_load(&s->state) == NV_SEARCHER_STARTING)
			usleep(1000);
		if (atomic_load(&s->state) == NV_SEARCHER_READY)
			ready++;
		else if (failure == NULL)
			failure = &s->failure;
	}
	if (ready == 0)
		return nv_fail(err, NV_EIO, 0, "no search thread could be started: %s",
					   failure->detail);
	if (failure != NULL)
		nv_log(NV_LOG_WARNING, "%u of %u search threads could not start: %s",
			   engine->n_searchers - ready, engine->n_searchers,
			   failure->detail);
	return NV_OK;
}

static nv_status
start_searchers(nv_engine *engine, nv_error *err)
{
	nv_status status = NV_OK;

	while (status == NV_OK &&
		   engine->n_searchers < engine->config.search_threads)
	{
		nv_searcher *s = &engine->searchers[engine->n_searchers];

		s->engine = engine;
		status = start_thread(&s->thread, nv_searcher_main, s, err);
		engine->n_searchers += status == NV_OK;
	}
	return status == NV_OK ? await_searchers(engine, err) : status;
}

static nv_status
start_inserters(nv_engine *engine, nv_error *err)
{
	nv_status status = NV_OK;

	while (status == NV_OK &&
		   engine->n_inserters < engine->config.insert_threads)
	{
		nv_inserter *i = &engine->inserters[engine->n_inserters];

		i->engine = engine;
		status = start_thread(&i->thread, nv_inserter_main, i, err);
		engine->n_inserters += status == NV_OK;
		atomic_fetch_add(&engine->inserters_running, status == NV_OK);
	}
	return status;
}

/* Search threads before those that can do without a ring. */
static nv_status
start_threads(nv_engine *engine, nv_error *err)
{
	nv_status status = start_pool(engine, &engine->jobs, NV_JOB_THREADS, err);

	if (status == NV_OK)
		status = nv_page_writer_create((nv_io_method) engine->config.io_method,
									   &engine->page_writer, err);
	if (status == NV_OK)
		status = start_pool(engine, &engine->builders, NV_BUILD_THREADS, err);
	if (status == NV_OK)
		status = start_searchers(engine, err);
	if (status == NV_OK)
	{
		status =
			start_thread(&engine->housekeeper, housekeeper_main, engine, err);
		engine->has_housekeeper = status == NV_OK;
	}
	if (status == NV_OK)
	{
		status =
			start_thread(&engine->calibrator, nv_calibrator_main, engine, err);
		engine->has_calibrator = status == NV_OK;
	}
	if (status == NV_OK)
	{
		status = start_thread(&engine->renewer, nv_renewer_main, engine, err);
		engine->has_renewer = status == NV_OK;
	}
	if (status == NV_OK)
	{
		status =
			start_thread(&engine->retrainer, nv_retrainer_main, engine, err);
		engine->has_retrainer = status == NV_OK;
	}
	if (status == NV_OK)
	{
		status = start_thread(&engine->consolidator, nv_consolidator_main,
							  engine, err);
		engine->has_consolidator = status == NV_OK;
	}
	return status == NV_OK ? start_inserters(engine, err) : status;
}

nv_status
nv_engine_create(const nv_config *config, const nv_port *port, nv_engine **out,
				 nv_error *err)
{
	nv_engine *engine;
	nv_status status = check_config(config, err);

	if (status != NV_OK)
		return status;
	engine = nv_alloc(sizeof(*engine));
	if (engine == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for the engine");
	engine->config = *config;
	engine->port = port;
	engine->lock_fd = -1;
	nv_engine_set_build(engine, config->build_memory, config->build_threads);
	init_locks(engine);
	engine->searchers =
		nv_alloc_array(config->search_threads, sizeof(*engine->searchers));
	engine->inserters =
		nv_alloc_array(config->insert_threads + 1, sizeof(*engine->inserters));
	engine->cursors =
		nv_alloc_array(config->max_cursors, sizeof(*engine->cursors));
	nv_io_set_fsync(config->fsync);
	nv_blas_prepare();
	status = engine->searchers != NULL && engine->cursors != NULL &&
					 engine->inserters != NULL
				 ? make_cache(engine, err)
				 : nv_fail(err, NV_ENOMEM, 0, "no memory for the engine");
	if (status != NV_OK)
	{
		nv_engine_stop(engine, false, 0);
		return status;
	}
	*out = engine;
	return NV_OK;
}

nv_status
nv_engine_start(const nv_config *config, const nv_port *port, nv_engine **out,
				nv_error *err)
{
	nv_engine *engine;
	sigset_t all, old;
	nv_status status = nv_engine_create(config, port, &engine, err);

	if (status != NV_OK)
		return status;
	raise_descriptor_limit();
	status = nv_lock_directory(config->directory, &engine->lock_fd, err);
	if (status == NV_OK)
	{
		nv_tidy_sidecars(config->directory);
		/* Signals belong to whoever started us; threads inherit the mask. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		status = start_threads(engine, err);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	if (status != NV_OK)
	{
		nv_engine_stop(engine, false, 0);
		return status;
	}
	*out = engine;
	return NV_OK;
}

/* --- stop --- */

/* After all threads: closes what is open. */
static void
close_indexes(nv_engine *engine)
{
	nv_index **list;
	uint32_t n;

	nv_cursors_close_all(engine);
	n = list_indexes(engine, &list);
	for (uint32_t i = 0; i < n; i++)
	{
		nv_index_remove(list[i]);
		nv_index_put(list[i]);
	}
	free(list);
}

static void
cancel_builds(nv_engine *engine)
{
	nv_index **list;
	uint32_t n = list_indexes(engine, &list);

	for (uint32_t i = 0; i < n; i++)
	{
		pthread_mutex_lock(&list[i]->lock);
		nv_build_cancel(list[i]);
		pthread_mutex_unlock(&list[i]->lock);
		nv_index_put(list[i]);
	}
	free(list);
}

void
nv_engine_stop(nv_engine *engine, bool checkpoint, uint32_t timeout_ms)
{
	uint64_t deadline = nv_now_ns() + (uint64_t) timeout_ms * 1000000u;

	atomic_store(&engine->stopping, true);
	nv_engine_wake(engine);
	engine->port->kick(engine->port->arg);
	/* Bodies that die from here on wait for rings: they must still serve. */
	stop_pool(&engine->builders);
	pthread_mutex_lock(&engine->insert_lock);
	pthread_cond_broadcast(&engine->insert_cond);
	pthread_mutex_unlock(&engine->insert_lock);
	for (uint32_t i = 0; i < engine->n_inserters; i++)
		pthread_join(engine->inserters[i].thread, NULL);
	if (engine->has_renewer)
		pthread_join(engine->renewer, NULL);
	if (engine->has_retrainer)
		pthread_join(engine->retrainer, NULL);
	pthread_mutex_lock(&engine->consolidate_lock);
	pthread_cond_broadcast(&engine->consolidate_cond);
	pthread_mutex_unlock(&engine->consolidate_lock);
	if (engine->has_consolidator)
		pthread_join(engine->consolidator, NULL);
	if (engine->has_housekeeper)
		pthread_join(engine->housekeeper, NULL);
	if (engine->has_calibrator)
		pthread_join(engine->calibrator, NULL);
	for (uint32_t i = 0; i < engine->n_searchers; i++)
	{
		engine->port->kick(engine->port->arg);
		pthread_join(engine->searchers[i].thread, NULL);
	}
	nv_consolidate_end(engine);
	stop_pool(&engine->jobs);
	nv_places_close(engine);
	cancel_builds(engine);
	nv_builds_expire(engine);
	if (checkpoint && nv_now_ns() < deadline)
		nv_checkpoint_changed(engine, true);
	close_indexes(engine);
	nv_page_writer_destroy(engine->page_writer);
	nv_cache_free(engine->cache);
	free(engine->searchers);
	free(engine->inserters);
	free(engine->cursors);
	if (engine->lock_fd >= 0)
		close(engine->lock_fd);
	free(engine);
}
