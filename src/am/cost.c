/*
 * cost.c
 *		What the planner is told about a scan.
 *
 * Total cost is reading all rows, startup cost is the first batch; for a LIMIT
 * the planner interpolates.  Where the order of rows decides more than the
 * order of the answer (grouping, DISTINCT, merge joins), the path is refused:
 * the final sweep of a complete scan may begin nearer than the row before it
 * (design, invariant 8).  Window functions are refused too, unless a LIMIT says
 * that only the first rows count: rank() over the nearest few is how hybrid
 * searches are written.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/float.h"

#include "navis.h"
#include "settings.h"

/*
 * In units of cpu_operator_cost: exploring one vertex of the frontier (about
 * 50 table look-ups and its share of a page), and one row by the exact scan
 * (fetch aside).
 */
#define COST_EXPLORE 40.0
#define COST_EXACT_ROW 20.0
/* In units of random_page_cost: pages read on the way in, and one more row. */
#define COST_APPROACH_PAGES 2.5
#define COST_ROW_PAGES 0.1

static void
refuse(IndexPath *path, Cost *startup_cost, Cost *total_cost)
{
	*startup_cost = get_float8_infinity();
	*total_cost = get_float8_infinity();
#if PG_VERSION_NUM >= 180000
	path->path.disabled_nodes = 2;
#endif
}

/* Is the distance equal to something else?  A merge join could use that. */
static bool
is_equated(const EquivalenceClass *class)
{
	int own = 0;
	ListCell *cell;

	foreach (cell, class->ec_members)
		own += !lfirst_node(EquivalenceMember, cell)->em_is_child;
	return own > 1 || class->ec_sources != NIL;
}

/*
 * Could this expression of a query be the distance that a sub-select is ordered
 * by?  Which sub-select is being planned cannot be told from here.
 */
static bool
may_be_distance(const Query *query, Node *node)
{
	Var *var = (Var *) node;

	return node != NULL && IsA(node, Var) && var->vartype == FLOAT8OID &&
		   var->varlevelsup == 0 && !IS_SPECIAL_VARNO(var->varno) &&
		   rt_fetch(var->varno, query->rtable)->rtekind == RTE_SUBQUERY;
}

static bool
key_may_be_distance(const Query *query, List *clauses)
{
	ListCell *cell;

	foreach (cell, clauses)
		if (may_be_distance(query, get_sortgroupclause_expr(lfirst(cell),
															query->targetList)))
			return true;
	return false;
}

/* LIMIT ALL and LIMIT NULL are none. */
static bool
has_limit(const Query *query)
{
	Node *limit = query->limitCount;

	return limit != NULL &&
		   !(IsA(limit, Const) && ((Const *) limit)->constisnull);
}

static bool
window_may_use_distance(const Query *query)
{
	ListCell *cell;

	foreach (cell, query->windowClause)
	{
		WindowClause *window = lfirst_node(WindowClause, cell);

		if (key_may_be_distance(query, window->partitionClause) ||
			key_may_be_distance(query, window->orderClause))
			return true;
	}
	return false;
}

/* From 16 on, aggregates that sort their input may take it as sorted. */
static bool
has_ordered_aggregate(Node *node, void *context)
{
	if (node == NULL || PG_VERSION_NUM < 160000)
		return false;
	if (IsA(node, Aggref) && (((Aggref *) node)->aggorder != NIL ||
							  ((Aggref *) node)->aggdistinct != NIL))
		return true;
	return expression_tree_walker(node, has_ordered_aggregate, context);
}

/* Joins on a distance: a merge join would want both sides in its order. */
static bool
join_may_use_distance(const PlannerInfo *root)
{
	ListCell *cell, *member;

	foreach (cell, root->eq_classes)
	{
		EquivalenceClass *class = lfirst(cell);

		/* Equal to a constant: nothing is sorted by it. */
		if (list_length(class->ec_members) < 2 || EC_MUST_BE_REDUNDANT(class))
			continue;
		foreach (member, class->ec_members)
			if (may_be_distance(
					root->parse,
					(Node *) lfirst_node(EquivalenceMember, member)->em_expr))
				return true;
	}
	return false;
}

/*
 * The order of a sub-select is taken over by the queries around it, if the
 * distance is among its columns.
 */
static bool
order_leaves_query(const PlannerInfo *root)
{
	const Query *query = root->parse;
	bool limited = has_limit(query);

	if (get_sortgroupclause_tle(linitial(query->sortClause), query->targetList)
			->resjunk)
		return false;
	for (root = root->parent_root; root != NULL; root = root->parent_root)
	{
		query = root->parse;
		if (query->setOperations != NULL ||
			key_may_be_distance(query, query->groupClause) ||
			key_may_be_distance(query, query->distinctClause) ||
			(!limited && window_may_use_distance(query)) ||
			join_may_use_distance(root) ||
			has_ordered_aggregate((Node *) query->targetList, NULL) ||
			has_ordered_aggregate(query->havingQual, NULL))
			return true;
		limited |= has_limit(query);
	}
	return false;
}

/* min(distance) as the planner rewrites it: ORDER BY distance LIMIT 1. */
static bool
is_min_or_max(PlannerInfo *root)
{
	TargetEntry *target;

	if (root->parent_root == NULL || !root->parent_root->parse->hasAggs ||
		list_length(root->parse->targetList) != 1)
		return false;
	target = linitial_node(TargetEntry, root->parse->targetList);
	return target->resname != NULL &&
		   strcmp(target->resname, "agg_target") == 0;
}

/* True when nothing but the order of the answer depends on our order. */
static bool
only_orders(PlannerInfo *root, IndexPath *path)
{
	PathKey *key;

	if (path->indexorderbys == NIL || path->path.pathkeys == NIL)
		return false;
	if (root->parse->groupClause != NIL || root->parse->distinctClause != NIL ||
		root->parse->groupingSets != NIL ||
		(root->window_pathkeys != NIL && !has_limit(root->parse)) ||
		root->sort_pathkeys == NIL)
		return false;
	if (order_leaves_query(root) || is_min_or_max(root))
		return false;
	key = linitial_node(PathKey, path->path.pathkeys);
	if (linitial_node(PathKey, root->sort_pathkeys) != key)
		return false;
	return !is_equated(key->pk_eclass);
}

void
navis_costestimate(PlannerInfo *root, IndexPath *path, double loop_count,
				   Cost *startup_cost, Cost *total_cost,
				   Selectivity *selectivity, double *correlation, double *pages)
{
	IndexOptInfo *index = path->indexinfo;
	double rows = Max(index->tuples, 1.0);
	double list = Min((double) navis_search_list_size, rows);

	*selectivity = 1.0;
	*correlation = 0.0;
	*pages = index->pages;
	if (!only_orders(root, path))
	{
		refuse(path, startup_cost, total_cost);
		return;
	}
	if (navis_expect_exact(index->indexoid))
	{
		/* The exact scan: journal, every row, a sort, then the first one. */
		Cost sort = 2.0 * cpu_operator_cost * rows * log2(Max(rows, 2.0));

		*startup_cost =
			index->pages * seq_page_cost + sort +
			rows * (cpu_operator_cost * COST_EXACT_ROW + cpu_tuple_cost +
					random_page_cost * COST_ROW_PAGES);
		*total_cost = *startup_cost + rows * cpu_index_tuple_cost;
		return;
	}
	*startup_cost = list * cpu_operator_cost * COST_EXPLORE +
					random_page_cost * COST_APPROACH_PAGES;
	*total_cost = *startup_cost + rows * (random_page_cost * COST_ROW_PAGES +
										  cpu_index_tuple_cost);
}
