/*
 * limit.c
 *		How many rows does the executor want from an index scan?
 *
 * An index scan is not told.  An ExecutorStart hook looks for navis index
 * scans below a Limit and wraps their node, so that a scan can read count +
 * offset from the LimitState when it starts: by then they are computed, also
 * for parameters, generic plans and rescans.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "navis.h"

/* A wrapped node. */
typedef struct NavisLimit
{
	PlanState *node; /* hash key */
	LimitState *limit;
	ExecProcNodeMtd execute;
} NavisLimit;

/* What a parent says to its children. */
typedef struct NavisLimitWalk
{
	PlanState *parent;
	LimitState *limit; /* NULL: no limit applies */
} NavisLimitWalk;

static ExecutorStart_hook_type previous_start = NULL;
static HTAB *limits = NULL;
static const NavisLimit *running = NULL; /* node that executes now */

static HTAB *
limits_table(void)
{
	HASHCTL control = {0};

	if (limits != NULL)
		return limits;
	control.keysize = sizeof(PlanState *);
	control.entrysize = sizeof(NavisLimit);
	limits = hash_create("navis limits", 16, &control, HASH_ELEM | HASH_BLOBS);
	return limits;
}

/* The query's memory goes: so does what points into it. */
static void
forget_node(void *arg)
{
	PlanState *node = arg;

	(void) hash_search(limits, &node, HASH_REMOVE, NULL);
}

static TupleTableSlot *
execute_wrapped(PlanState *node)
{
	const NavisLimit *outer = running;
	NavisLimit *mine = hash_search(limits, &node, HASH_FIND, NULL);
	TupleTableSlot *slot;

	Assert(mine != NULL);
	running = mine;
	PG_TRY();
	{
		slot = mine->execute(node);
	}
	PG_FINALLY();
	{
		running = outer;
	}
	PG_END_TRY();
	return slot;
}

static void
wrap(PlanState *node, LimitState *limit)
{
	MemoryContext context = node->state->es_query_cxt;
	MemoryContextCallback *callback;
	NavisLimit *entry;
	bool found;

	callback = MemoryContextAlloc(context, sizeof(*callback));
	entry = hash_search(limits_table(), &node, HASH_ENTER, &found);
	if (found)
		return;
	entry->limit = limit;
	entry->execute = node->ExecProcNodeReal;
	callback->func = forget_node;
	callback->arg = node;
	MemoryContextRegisterResetCallback(context, callback);
	ExecSetExecProcNode(node, execute_wrapped);
}

static bool
is_our_scan(PlanState *node)
{
	IndexScanState *scan = (IndexScanState *) node;

	return IsA(node, IndexScanState) && scan->iss_RelationDesc != NULL &&
		   navis_is_index(scan->iss_RelationDesc) &&
		   scan->iss_NumOrderByKeys > 0;
}

/* Is node one of its parent's inputs, rather than a sub-select? */
static bool
is_input(PlanState *parent, PlanState *node)
{
	PlanState **members = NULL;
	int n = 0;

	if (outerPlanState(parent) == node)
		return true;
	if (IsA(parent, AppendState))
	{
		members = ((AppendState *) parent)->appendplans;
		n = ((AppendState *) parent)->as_nplans;
	}
	else if (IsA(parent, MergeAppendState))
	{
		members = ((MergeAppendState *) parent)->mergeplans;
		n = ((MergeAppendState *) parent)->ms_nplans;
	}
	else if (IsA(parent, SubqueryScanState))
		return ((SubqueryScanState *) parent)->subplan == node;
	for (int i = 0; i < n; i++)
		if (members[i] == node)
			return true;
	return false;
}

/* What limit applies to the inputs of a node that itself is under `in`. */
static NavisLimitWalk
limit_below(PlanState *node, const NavisLimitWalk *in)
{
	NavisLimitWalk below = {node, in->limit};

	switch (nodeTag(node))
	{
		case T_LimitState:
			below.limit = (LimitState *) node;
			break;
		case T_AppendState:
		case T_MergeAppendState:
		case T_LockRowsState:
		case T_ResultState:
		case T_SubqueryScanState:
		case T_NestLoopState:
		case T_WindowAggState:
		case T_ProjectSetState:
		case T_MaterialState:
		case T_MemoizeState:
			break;
		default:
			below.limit = NULL;
			break;
	}
	return below;
}

static bool
walk(PlanState *node, void *arg)
{
	NavisLimitWalk in = *(NavisLimitWalk *) arg;
	NavisLimitWalk below;

	if (node == NULL)
		return false;
	if (in.parent != NULL && !is_input(in.parent, node))
		in.limit = NULL;
	if (in.limit != NULL && is_our_scan(node))
		wrap(node, in.limit);
	below = limit_below(node, &in);
	return planstate_tree_walker(node, walk, &below);
}

static void
navis_executor_start(QueryDesc *query, int eflags)
{
	NavisLimitWalk top = {0};

	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		(void) walk(query->planstate, &top);
}

uint64
navis_limit_wanted(void)
{
	const LimitState *limit;

	if (running == NULL)
		return 0;
	limit = running->limit;
	if (limit->lstate == LIMIT_INITIAL || limit->noCount)
		return 0;
	return (uint64) (limit->count + limit->offset);
}

void
navis_limit_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = navis_executor_start;
}
