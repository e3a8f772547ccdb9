/*
 * handler.c
 *		What PostgreSQL is told about the access method.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "commands/vacuum.h"

#include "navis.h"

PG_FUNCTION_INFO_V1(navis_handler);

/* One strategy, "order by distance"; one support function, the metric. */
static void
describe(IndexAmRoutine *am)
{
	am->amstrategies = 1;
	am->amsupport = 1;
	am->amoptsprocnum = 0;
	am->amcanorder = false;
	am->amcanorderbyop = true;
	am->amcanbackward = false;
	am->amcanunique = false;
	am->amcanmulticol = false;
	am->amoptionalkey = true; /* scans without ORDER BY walk the journal */
	am->amsearcharray = false;
	am->amsearchnulls = false;
	am->amstorage = false;
	am->amclusterable = false;
	am->ampredlocks = false;
	am->amcanparallel = false;
	am->amcaninclude = false;
	am->amusemaintenanceworkmem = false;
	am->amparallelvacuumoptions =
		VACUUM_OPTION_PARALLEL_BULKDEL | VACUUM_OPTION_PARALLEL_CLEANUP;
	am->amkeytype = InvalidOid;
#if PG_VERSION_NUM >= 160000
	am->amsummarizing = false;
#endif
#if PG_VERSION_NUM >= 170000
	am->amcanbuildparallel = false;
#endif
#if PG_VERSION_NUM >= 180000
	am->amcanhash = false;
	am->amconsistentequality = false;
	am->amconsistentordering = false;
#endif
}

Datum
navis_handler(PG_FUNCTION_ARGS)
{
	IndexAmRoutine *am = makeNode(IndexAmRoutine);

	describe(am);
	am->ambuild = navis_build;
	am->ambuildempty = navis_buildempty;
	am->aminsert = navis_insert;
	am->ambulkdelete = navis_bulkdelete;
	am->amvacuumcleanup = navis_vacuumcleanup;
	am->amcostestimate = navis_costestimate;
	am->amoptions = navis_options;
	am->ambuildphasename = navis_buildphasename;
	am->amvalidate = navis_validate;
	am->ambeginscan = navis_beginscan;
	am->amrescan = navis_rescan;
	am->amgettuple = navis_gettuple;
	am->amendscan = navis_endscan;
	PG_RETURN_POINTER(am);
}

char *
navis_buildphasename(int64 phase)
{
	switch (phase - PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE)
	{
		case NV_PHASE_NONE:
			return "initializing";
		case NV_PHASE_SCAN:
			return "scanning table";
		case NV_PHASE_TRAIN:
			return "training codes";
		case NV_PHASE_ENCODE:
			return "encoding vectors";
		case NV_PHASE_LINK:
			return "linking graph";
		case NV_PHASE_PLACE:
			return "placing edge lists";
		case NV_PHASE_ENTRANCE:
			return "building entrance graph";
		case NV_PHASE_WRITE:
			return "writing files";
		case NV_PHASE_CALIBRATE:
			return "calibrating search";
		default:
			return NULL;
	}
}
