/*
 * launch.c
 *		The worker's main thread decides which helper processes run.
 *
 * A database gets a helper when somebody asked for one (navis_helper_wanted).
 * Every navis.collect_interval, if there are sidecars at all, a helper without
 * database looks which databases they belong to; it asks for one in each.  At
 * most NAVIS_MAX_HELPERS run at once, and one in a database.  A database's
 * helper is not started again at once, so that one that fails early does no
 * harm.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/timestamp.h"

#include "navis/engine.h"
#include "settings.h"
#include "worker.h"

#define MAX_TARGETS 1024      /* databases waiting for, or having a helper */
#define MAX_PAUSE_MS 5000     /* between two helpers of one database */
#define NO_SLOT_PAUSE_MS 5000 /* when no worker slot was free */
#define CHECK_MS 1000         /* helpers are looked at that often at least */

typedef struct Target
{
	Oid database; /* InvalidOid: the helper without database */
	bool wanted;
	TimestampTz not_before;
	BackgroundWorkerHandle *handle; /* NULL: none runs */
} Target;

static Target targets[MAX_TARGETS];
static int ntargets = 0;
static TimestampTz next_look = 0; /* for sidecars */
static TimestampTz slot_at = 0;   /* not before: a worker slot may be free */

static Target *
find_target(Oid database)
{
	for (int i = 0; i < ntargets; i++)
	{
		if (targets[i].database == database)
			return &targets[i];
	}
	return NULL;
}

static bool
want(Oid database)
{
	Target *target = find_target(database);

	if (target == NULL)
	{
		if (ntargets == MAX_TARGETS)
			return false;
		target = &targets[ntargets++];
		memset(target, 0, sizeof(*target));
		target->database = database;
	}
	target->wanted = true;
	return true;
}

static void
take_wishes(void)
{
	for (int i = 0; i < NAVIS_WANTED; i++)
	{
		uint32 database = atomic_load(&navis_control->wanted[i]);

		if (database != 0 && want(database))
			atomic_store(&navis_control->wanted[i], 0);
	}
}

static int
count_running(void)
{
	int n = 0;

	for (int i = 0; i < ntargets; i++)
		n += targets[i].handle != NULL;
	return n;
}

/* Pauses the database whose helper ended, and forgets targets of no interest.
 */
static void
reap(TimestampTz now)
{
	int pause_ms = Min(MAX_PAUSE_MS, navis_collect_interval * 1000);
	int kept = 0;

	for (int i = 0; i < ntargets; i++)
	{
		Target *target = &targets[i];
		pid_t pid;

		if (target->handle != NULL &&
			GetBackgroundWorkerPid(target->handle, &pid) == BGWH_STOPPED)
		{
			pfree(target->handle);
			target->handle = NULL;
			target->not_before = TimestampTzPlusMilliseconds(now, pause_ms);
			if (target->database == InvalidOid)
			{
				target->not_before = now;
				next_look = TimestampTzPlusMilliseconds(
					now, (int64) navis_collect_interval * 1000);
			}
		}
		if (target->handle != NULL || target->wanted ||
			target->not_before > now)
			targets[kept++] = *target;
	}
	ntargets = kept;
}

static bool
start_helper(Oid database, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker = {0};

	snprintf(worker.bgw_name, BGW_MAXLEN, "navis helper");
	if (OidIsValid(database))
		snprintf(worker.bgw_name, BGW_MAXLEN, "navis helper for database %u",
				 database);
	snprintf(worker.bgw_type, BGW_MAXLEN, "navis helper");
	worker.bgw_flags =
		BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "navis");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "navis_helper_main");
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

/* Starts what is due, longest waiting first. */
static void
start_helpers(TimestampTz now)
{
	for (int i = 0; i < ntargets && count_running() < NAVIS_MAX_HELPERS; i++)
	{
		Target *target = &targets[i];

		if (!target->wanted || target->handle != NULL ||
			target->not_before > now || slot_at > now)
			continue;
		if (!start_helper(target->database, &target->handle))
		{
			target->handle = NULL;
			slot_at = TimestampTzPlusMilliseconds(now, NO_SLOT_PAUSE_MS);
			ereport(DEBUG1,
					(errmsg_internal("navis found no free worker slot for a "
									 "helper, tries again later")));
			return;
		}
		target->wanted = false;
	}
}

static void
note_sidecar(void *arg, const nv_key *key, uint32_t relfilenode,
			 uint32_t index_oid)
{
	if (key->system_id == GetSystemIdentifier())
		*(bool *) arg = true;
}

/* The helper without database is wanted when there are sidecars of ours. */
static void
look_for_sidecars(TimestampTz now)
{
	Target *target = find_target(InvalidOid);
	bool found = false;
	nv_error err = {0};

	if (next_look > now || (target && (target->wanted || target->handle)))
		return;
	if (nv_list_sidecars(navis_directory_path(), note_sidecar, &found, &err) !=
		NV_OK)
		ereport(DEBUG1, (errmsg_internal("navis could not list sidecars: %s",
										 err.detail)));
	if (!found || !want(InvalidOid))
		next_look = TimestampTzPlusMilliseconds(
			now, (int64) navis_collect_interval * 1000);
}

void
navis_launch_soon(void)
{
	next_look = 0;
}

long
navis_launch(void)
{
	TimestampTz now = GetCurrentTimestamp();

	reap(now);
	take_wishes();
	look_for_sidecars(now);
	start_helpers(now);
	if (ntargets > 0)
		return CHECK_MS;
	/* A reload may have shortened the interval; 1 ms: never a busy loop. */
	next_look = Min(next_look, TimestampTzPlusMilliseconds(
								   now, (int64) navis_collect_interval * 1000));
	return Max(1, TimestampDifferenceMilliseconds(now, next_look));
}

void
navis_launch_stop(void)
{
	for (int i = 0; i < ntargets; i++)
	{
		if (targets[i].handle != NULL)
			TerminateBackgroundWorker(targets[i].handle);
	}
}
