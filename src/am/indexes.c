/*
 * indexes.c
 *		Which relations are navis indexes, and which of them this session can
 *		look into.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "navis.h"

bool
navis_is_index(Relation relation)
{
	return relation->rd_rel->relkind == RELKIND_INDEX &&
		   relation->rd_indam != NULL &&
		   relation->rd_indam->amgettuple == navis_gettuple;
}

bool
navis_has_no_pages(Relation index)
{
	return RELATION_IS_OTHER_TEMP(index) ||
		   (RecoveryInProgress() &&
			index->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED);
}

Relation
navis_index_open(Oid oid, LOCKMODE mode)
{
	Relation index = relation_open(oid, mode);

	if (!navis_is_index(index))
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("\"%s\" is not a navis index",
							   RelationGetRelationName(index))));
	if (RELATION_IS_OTHER_TEMP(index))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("cannot access temporary indexes of other "
							   "sessions")));
	return index;
}

List *
navis_index_oids(void)
{
	Oid am = get_index_am_oid("navis", true);
	Relation classes = table_open(RelationRelationId, AccessShareLock);
	List *oids = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;

	ScanKeyInit(&key, Anum_pg_class_relam, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(am));
	scan = systable_beginscan(classes, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		CHECK_FOR_INTERRUPTS();
		if (form->relkind == RELKIND_INDEX)
			oids = lappend_oid(oids, form->oid);
	}
	systable_endscan(scan);
	table_close(classes, AccessShareLock);
	return oids;
}
