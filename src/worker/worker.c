/*
 * worker.c
 *		The background worker: starts and stops the engine, serves its threads.
 *
 * The main thread is an ordinary PostgreSQL process without a database.  It
 * sleeps in a WaitEventSet on its latch (signals, backends), on an eventfd
 * (engine threads) and on the postmaster's death.  It runs nothing long.
 */
#include "postgres.h"

#include <errno.h>
#include <pthread.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/bgworker_internals.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "worker_compat.h"
#include "port.h"
#include "settings.h"
#include "worker.h"

#define RESTART_S 2         /* until the postmaster starts the worker again */
#define RETRY_MS 5000       /* until the engine's start is tried again */
#define CHECKPOINT_MS 10000 /* for the last checkpoint, SIGTERM */
#define GRACE_MS 2000       /* for threads to end */
#define STOP_POLL_MS 20
#define INTERLEAVE 4 /* queries a search thread keeps going (measured) */

/* The engine of this process, and the thread that stops it. */
typedef struct StopJob
{
	nv_engine *engine;
	bool checkpoint;
	uint32 timeout_ms;
	_Atomic bool done;
	bool running;
	pthread_t thread;
} StopJob;

static nv_engine *engine = NULL;
static StopJob stop_job;
static bool threads_left = false; /* did not end in time */
static bool ready = false;        /* the port exists */
static WaitEventSet *wait_set = NULL;
static uint64 retry_at = 0; /* navis_now_us() */
static char last_failure[NV_DETAIL_SIZE + 64];

/* --- registration --- */

void
navis_worker_register(void)
{
	BackgroundWorker worker = {0};

	if (IsBinaryUpgrade || !IsPostmasterEnvironment)
		return;
	snprintf(worker.bgw_name, BGW_MAXLEN, "navis worker");
	snprintf(worker.bgw_type, BGW_MAXLEN, "navis worker");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RESTART_S;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "navis");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "navis_worker_main");
	RegisterBackgroundWorker(&worker);
}

/* Registration fails with a log line only; the list tells. */
static bool
is_registered(void)
{
#if PG_VERSION_NUM >= 180000
	dlist_iter iter;

	dlist_foreach(iter, &BackgroundWorkerList)
	{
		RegisteredBgWorker *w =
			dlist_container(RegisteredBgWorker, rw_lnode, iter.cur);
#else
	slist_iter iter;

	slist_foreach(iter, &BackgroundWorkerList)
	{
		RegisteredBgWorker *w =
			slist_container(RegisteredBgWorker, rw_lnode, iter.cur);
#endif

		if (strcmp(w->rw_worker.bgw_function_name, "navis_worker_main") == 0)
			return true;
	}
	return false;
}

NavisWorkerState
navis_worker_expected(void)
{
	if (IsBinaryUpgrade || !IsPostmasterEnvironment)
		return NAVIS_WORKER_STOPPED;
	return is_registered() ? NAVIS_WORKER_STARTING : NAVIS_WORKER_NONE;
}

/* --- serving engine threads --- */

static void
emit_log(void)
{
	nv_log_level level;
	char line[NAVIS_LOG_LINE];

	while (navis_port_next_line(&level, line))
	{
		int elevel = level == NV_LOG_DEBUG  ? DEBUG1
					 : level == NV_LOG_INFO ? LOG
											: WARNING;

		ereport(elevel, (errmsg("navis: %s", line)));
	}
}

/*
 * Flushes WAL as far as engine threads want.  In recovery XLogFlush moves
 * minRecoveryPoint instead.  An LSN that this server has not reached (damage)
 * is not passed on: XLogFlush would throw.
 */
static void
flush_wal(void)
{
	XLogRecPtr wanted;

	while ((wanted = navis_port_flush_wanted()) != InvalidXLogRecPtr)
	{
		XLogRecPtr end = RecoveryInProgress() ? GetCurrentReplayRecPtr(NULL)
											  : GetXLogInsertRecPtr();
		XLogRecPtr target = Min(wanted, end);

		XLogFlush(target);
		navis_port_flush_done(target);
	}
}

/* One sleep, then whatever is to be done. */
static void
serve(long timeout_ms)
{
	static uint32 wait_event = 0;
	WaitEvent events[3];
	int n;

	n = WaitEventSetWait(wait_set, timeout_ms, events, lengthof(events),
						 navis_wait_event("NavisWorkerMain", &wait_event));
	for (int i = 0; i < n; i++)
	{
		if (events[i].events & WL_POSTMASTER_DEATH)
			_exit(1); /* at once: checkpoints on disk are whole */
		if (events[i].events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (events[i].events & WL_SOCKET_READABLE)
			navis_port_event_clear();
	}
	flush_wal();
	emit_log();
}

/* --- starting --- */

const char *
navis_directory_path(void)
{
	static char path[MAXPGPATH];

	if (is_absolute_path(navis_directory))
		strlcpy(path, navis_directory, sizeof(path));
	else
		snprintf(path, sizeof(path), "%s/%s", DataDir, navis_directory);
	return path;
}

static void
make_config(nv_config *config)
{
	nv_config_defaults(config);
	strlcpy(config->directory, navis_directory_path(),
			sizeof(config->directory));
	config->io_method = (uint32) navis_io_method;
	config->search_threads = (uint32) navis_search_threads;
	config->insert_threads = (uint32) navis_insert_threads;
	config->insert_list_size = (uint32) navis_insert_list_size;
	config->insert_queue_size = (uint32) navis_insert_queue_size;
	config->casr_percentile_insert = navis_casr_percentile_insert;
	config->interleave = INTERLEAVE;
	config->cache_size = (uint64) navis_cache_size * 1024;
	config->cache_window = navis_cache_window;
	config->cache_promote = (uint32) navis_cache_promote;
	config->cache_promote_search = (uint32) navis_cache_promote_search;
	config->pending_memory = (uint64) navis_pending_memory * 1024;
	config->casr_warmup = (uint32) navis_casr_warmup;
	config->checkpoint_timeout = (uint32) navis_checkpoint_timeout;
	config->max_cursors = (uint32) navis_max_cursors;
	config->fsync = enableFsync;
	config->build_memory = (uint64) navis_build_memory * 1024;
	config->build_threads = (uint32) navis_build_threads;
}

/* One line when it fails, and again only when the reason is another one. */
static void
report_failure(nv_status status, const nv_error *err)
{
	char failure[sizeof(last_failure)];

	snprintf(failure, sizeof(failure), "%s%s%s",
			 err->detail[0] != '\0' ? err->detail : nv_status_name(status),
			 err->sys_errno != 0 ? ": " : "",
			 err->sys_errno != 0 ? strerror(err->sys_errno) : "");
	if (strcmp(failure, last_failure) != 0)
		ereport(LOG,
				(errmsg("navis engine could not be started: %s", failure),
				 errdetail("Indexes answer exactly and slowly meanwhile; the "
						   "start is tried again every %d seconds.",
						   RETRY_MS / 1000)));
	strlcpy(last_failure, failure, sizeof(last_failure));
}

/* Threads made while the engine starts, by libraries too, get no signals. */
static nv_status
start_with_signals_blocked(const nv_config *config, nv_error *err)
{
	sigset_t all;
	sigset_t old;
	nv_status status;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	status = nv_engine_start(config, navis_port(), &engine, err);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return status;
}

static void
start_engine(void)
{
	uint64 incarnation =
		atomic_fetch_add(&navis_control->last_incarnation, 1) + 1;
	nv_config config;
	nv_error err = {0};
	nv_status status;

	make_config(&config);
	navis_port_open(incarnation);
	nv_set_log_sink(navis_port_log, NULL);
	status = start_with_signals_blocked(&config, &err);
	emit_log();
	if (status != NV_OK)
	{
		engine = NULL;
		navis_port_close(true);
		atomic_store(&navis_control->worker_state, NAVIS_WORKER_FAILED);
		report_failure(status, &err);
		retry_at = navis_now_us() + RETRY_MS * 1000;
		return;
	}
	last_failure[0] = '\0';
	atomic_store(&navis_control->engine_started,
				 (uint64) GetCurrentTimestamp());
	atomic_store(&navis_control->incarnation, incarnation);
	atomic_store(&navis_control->worker_state, NAVIS_WORKER_RUNNING);
	ereport(LOG, (errmsg("navis engine started"),
				  errdetail(
					  "Directory \"%s\", %u search threads, %u insert threads.",
					  config.directory, config.search_threads,
					  config.insert_threads)));
	navis_launch_soon();
}

/* --- stopping --- */

static void *
stop_main(void *arg)
{
	StopJob *job = arg;

	nv_engine_stop(job->engine, job->checkpoint, job->timeout_ms);
	atomic_store(&job->done, true);
	navis_port_attention();
	return NULL;
}

/*
 * The engine is stopped by a thread of its own, since its last checkpoint
 * needs the main thread to flush WAL.
 */
static void
begin_stop(bool checkpoint, uint32 timeout_ms)
{
	sigset_t all;
	sigset_t old;
	int rc;

	stop_job.engine = engine;
	stop_job.checkpoint = checkpoint;
	stop_job.timeout_ms = timeout_ms;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&stop_job.thread, NULL, stop_main, &stop_job);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc == 0)
	{
		stop_job.running = true;
		return;
	}
	/* No thread: without the mailbox nothing waits for us. */
	navis_port_close(true);
	nv_engine_stop(engine, false, timeout_ms);
	atomic_store(&stop_job.done, true);
}

/* From now on no backend submits, and none waits. */
static void
turn_clients_away(void)
{
	atomic_store(&navis_control->incarnation, 0);
	atomic_store(&navis_control->worker_state, NAVIS_WORKER_STOPPED);
	navis_port_close(false);
	navis_port_fail_requests(navis_control, false);
	navis_port_wake_owners(navis_control);
}

/* Waits for the stopping thread; serving: with the whole main loop's duties. */
static void
wait_for_stop(uint32 timeout_ms, bool serving)
{
	uint64 end = navis_now_us() + (uint64) timeout_ms * 1000;

	while (!atomic_load(&stop_job.done) && navis_now_us() < end)
	{
		if (serving)
			serve(STOP_POLL_MS);
		else
		{
			struct pollfd event = {.fd = navis_port_event(), .events = POLLIN};

			(void) poll(&event, 1, STOP_POLL_MS);
			navis_port_event_clear();
		}
	}
	threads_left = !atomic_load(&stop_job.done);
	if (!threads_left && stop_job.running)
	{
		pthread_join(stop_job.thread, NULL);
		stop_job.running = false;
	}
}

static void
stop_engine(bool checkpoint)
{
	turn_clients_away();
	if (engine == NULL)
		return;
	if (!stop_job.running)
		begin_stop(checkpoint, checkpoint ? CHECKPOINT_MS : GRACE_MS);
	if (checkpoint)
		wait_for_stop(CHECKPOINT_MS + GRACE_MS, true);
	if (!checkpoint || threads_left)
	{
		navis_port_close(true);
		wait_for_stop(GRACE_MS, false);
	}
	engine = NULL;
	emit_log();
	if (threads_left)
		ereport(WARNING, (errmsg("navis engine did not stop in time")));
}

/*
 * Leaving by any way but a crash: threads end (bounded), and nobody goes on
 * waiting for an answer.
 */
static void
leave(int code, Datum arg)
{
	atomic_store(&navis_control->worker_latch, NULL);
	atomic_store(&navis_control->worker_pid, 0);
	if (!ready)
		return;
	stop_engine(false);
	navis_port_fail_requests(navis_control, true);
}

/* Threads that did not end must not run through exit handlers. */
static void
leave_at_once(int code, Datum arg)
{
	if (threads_left)
		_exit(code);
}

/* --- the main loop --- */

/* The postmaster tells of a helper's start or end by SIGUSR1. */
static void
handle_helper_change(SIGNAL_ARGS)
{
	int saved_errno = errno;

	SetLatch(MyLatch);
	errno = saved_errno;
}

static void
prepare(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGUSR1, handle_helper_change);
	BackgroundWorkerUnblockSignals();

	atomic_store(&navis_control->worker_state, NAVIS_WORKER_STARTING);
	atomic_store(&navis_control->worker_pid, (uint32) MyProcPid);
	on_proc_exit(leave_at_once, 0);
	before_shmem_exit(leave, 0);
	if (!navis_port_init(navis_control))
		ereport(FATAL, (errcode(ERRCODE_OUT_OF_MEMORY),
						errmsg("navis worker has no memory or descriptor for "
							   "its threads")));
	ready = true;
	/* What an earlier worker's engine may have left. */
	navis_port_fail_requests(navis_control, true);

	wait_set = navis_wait_event_set(3);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_POSTMASTER_DEATH, PGINVALID_SOCKET, NULL,
					  NULL);
	AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, navis_port_event(), NULL,
					  NULL);
	atomic_store(&navis_control->worker_latch, MyLatch);
}

static void
reload_settings(void)
{
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		if (engine != NULL)
			nv_engine_set_build(engine, (uint64) navis_build_memory * 1024,
								(uint32) navis_build_threads);
	}
	navis_port_log_debug(message_level_is_interesting(DEBUG1));
}

/* Exit code 0 would unregister the worker for good. */
void
navis_worker_main(Datum arg)
{
	prepare();
	while (!ShutdownRequestPending)
	{
		long timeout_ms;

		reload_settings();
		if (engine == NULL && navis_now_us() >= retry_at)
			start_engine();
		timeout_ms = engine != NULL ? navis_launch() : RETRY_MS;
		serve(timeout_ms);
	}
	navis_launch_stop();
	stop_engine(true);
	proc_exit(1);
}
