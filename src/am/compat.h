/*
 * compat.h
 *		Differences between PostgreSQL 15, 16, 17 and 18, all in one place.
 */
#ifndef NAVIS_COMPAT_H
#define NAVIS_COMPAT_H

#include "catalog/pg_class.h"
#include "commands/vacuum.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#if PG_VERSION_NUM < 150000
#error "navis needs PostgreSQL 15 or later"
#endif

/* 18 tells vacuum_delay_point whether it runs in ANALYZE. */
#if PG_VERSION_NUM >= 180000
#define navis_vacuum_delay_point() vacuum_delay_point(false)
#else
#define navis_vacuum_delay_point() vacuum_delay_point()
#endif

/* 16 renamed RelFileNode to RelFileLocator. */
#if PG_VERSION_NUM >= 160000
#define navis_relfilenode(rel) ((rel)->rd_locator.relNumber)
#else
#define navis_relfilenode(rel) ((rel)->rd_node.relNode)
#endif

/* A new, pinned, unlocked, all-zero block at the end of a fork. */
static inline Buffer
navis_extend(Relation rel, ForkNumber fork)
{
#if PG_VERSION_NUM >= 160000
	return ExtendBufferedRel(BMR_REL(rel), fork, NULL, 0);
#else
	Buffer buffer;

	LockRelationForExtension(rel, ExclusiveLock);
	buffer = ReadBufferExtended(rel, fork, P_NEW, RBM_NORMAL, NULL);
	UnlockRelationForExtension(rel, ExclusiveLock);
	return buffer;
#endif
}

/*
 * 15 and 16: with old_snapshot_threshold set, a page that changed after a
 * snapshot grew too old may lack rows which that snapshot should see.
 */
static inline void
navis_test_old_snapshot(Relation rel, Page page)
{
#if PG_VERSION_NUM < 170000
	if (old_snapshot_threshold >= 0 && ActiveSnapshotSet())
		TestForOldSnapshot(GetActiveSnapshot(), rel, page);
#endif
}

/* 16 has one function for the owners of all kinds of objects. */
static inline bool
navis_relation_owner(Oid relation, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relation, role);
#else
	return pg_class_ownercheck(relation, role);
#endif
}

/*
 * Pins search_path for users' functions; undone by AtEOXact_GUC for the
 * nest level that the caller has begun.
 */
static inline void
navis_restrict_search_path(void)
{
#if PG_VERSION_NUM >= 170000
	RestrictSearchPath();
#else
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
#endif
}

#endif
