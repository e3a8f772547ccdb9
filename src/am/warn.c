/*
 * warn.c
 *		What a session says, once, when it has to do without the engine.
 */
#include "postgres.h"

#include "feed.h"
#include "navis.h"

/* A build waits so long for an engine that is starting. */
#define NAVIS_START_WAIT 10000 /* ms */
#define NAVIS_START_POLL 100   /* ms */

const char *
navis_engine_hint(NavisEngineStatus status)
{
	switch (status)
	{
		case NAVIS_ENGINE_NOT_PRELOADED:
			return "Set shared_preload_libraries = 'navis' and restart the "
				   "server.";
		case NAVIS_ENGINE_NO_WORKER:
			return "Raise max_worker_processes if no worker slot is free. If "
				   "the server log says that the engine could not start, look "
				   "at navis.directory and navis.io_method.";
		case NAVIS_ENGINE_STARTING:
			return "The engine is starting; try again in a moment.";
		case NAVIS_ENGINE_STOPPED:
			return "The engine is shutting down, or switched off for a binary "
				   "upgrade.";
		case NAVIS_ENGINE_RUNNING:
			break;
	}
	return "The engine has been restarted; try again.";
}

NavisEngineStatus
navis_engine_wait_started(void)
{
	NavisEngineStatus status = navis_engine_status();

	for (int waited = 0;
		 status == NAVIS_ENGINE_STARTING && waited < NAVIS_START_WAIT;
		 waited += NAVIS_START_POLL)
	{
		navis_nap(NAVIS_START_POLL);
		status = navis_engine_status();
	}
	return status;
}

void
navis_warn_no_engine(NavisEngineStatus status)
{
	static bool warned = false;

	/* One that is starting or stopping is nothing the user can change. */
	if (warned || (status != NAVIS_ENGINE_NOT_PRELOADED &&
				   status != NAVIS_ENGINE_NO_WORKER))
		return;
	warned = true;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("the navis engine is not running: navis indexes answer by "
					"exact scans"),
			 errhint("%s", navis_engine_hint(status))));
}

/* The exact scan of so few rows takes no time worth speaking of. */
static bool
is_small(Relation index)
{
	return (uint64) RelationGetNumberOfBlocks(index) *
			   navis_entries_per_page() <=
		   2 * NV_MIN_GRAPH_ROWS;
}

void
navis_warn_pending_full(Relation index)
{
	static bool warned = false;

	if (warned || is_small(index))
		return;
	warned = true;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("rows of index \"%s\" that are not linked yet exceed "
					"navis.pending_memory: it answers by exact scans",
					RelationGetRelationName(index)),
			 errhint("REINDEX links them; a larger navis.pending_memory holds "
					 "more of them.")));
}
