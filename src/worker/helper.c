/*
 * helper.c
 *		The helper process: what no session is waiting for, in one database.
 *
 * Started by the worker, it looks for orphan sidecars, rebuilds the indexes
 * that need it, and ends.  The one without database looks after dropped
 * databases.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"

#include "client.h"
#include "navis.h"
#include "slots.h"
#include "worker.h"

static void
sign_off(int code, Datum arg)
{
	NavisHelper *helpers = navis_control->helpers;

	LWLockAcquire(navis_control->lock, LW_EXCLUSIVE);
	for (int i = 0; i < NAVIS_MAX_HELPERS; i++)
	{
		if (helpers[i].pid == MyProcPid)
			helpers[i].pid = 0;
	}
	LWLockRelease(navis_control->lock);
}

/*
 * Takes one of the few places.  The worker keeps to the limits as well, but a
 * worker that was restarted does not know the helpers of its predecessor.
 */
static bool
sign_on(Oid database)
{
	NavisHelper *helpers = navis_control->helpers;
	NavisHelper *place = NULL;
	bool twice = false;

	LWLockAcquire(navis_control->lock, LW_EXCLUSIVE);
	for (int i = 0; i < NAVIS_MAX_HELPERS; i++)
	{
		if (helpers[i].pid == 0)
			place = &helpers[i];
		else if (helpers[i].database == database)
			twice = true;
	}
	if (place != NULL && !twice)
	{
		place->pid = MyProcPid;
		place->database = database;
	}
	LWLockRelease(navis_control->lock);
	if (place == NULL || twice)
		return false;
	before_shmem_exit(sign_off, 0);
	return true;
}

bool
navis_helper_may_stay(void)
{
	LOCKTAG tag;
	bool free;

	CHECK_FOR_INTERRUPTS();
	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	free = LockAcquire(&tag, AccessShareLock, false, true) !=
		   LOCKACQUIRE_NOT_AVAIL;
	CommitTransactionCommand();
	return free;
}

void
navis_helper_main(Datum arg)
{
	Oid database = DatumGetObjectId(arg);

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	if (navis_control == NULL || !sign_on(database))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	pgstat_report_activity(STATE_RUNNING, "navis: looking for orphan sidecars");
	if (!OidIsValid(database))
		navis_collect_dropped();
	else
	{
		navis_collect_database();
		if (navis_helper_may_stay())
		{
			pgstat_report_activity(STATE_RUNNING, "navis: rebuilding graphs");
			navis_rebuild_all();
		}
	}
	pgstat_report_activity(STATE_IDLE, NULL);
	proc_exit(0);
}
