/*
 * validate.c
 *		amvalidate: is an operator class one that the access method can use?
 *
 * A class needs strategy 1, an ordering operator of its own type that returns
 * float8, and support function 1, which names the metric (int4).  Everything
 * else in the class or its family is an error.
 */
#include "postgres.h"

#include "access/amvalidate.h"
#include "access/htup_details.h"
#include "catalog/pg_am.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "navis.h"

#define NAVIS_ORDER_STRATEGY 1
#define NAVIS_METRIC_PROC 1

/* ereport at INFO, as amvalidate functions do, about the family's name. */
#define complain(family, fmt, ...)                                             \
	ereport(INFO,                                                              \
			(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),                       \
			 errmsg("operator family \"%s\" of access method navis " fmt,      \
					family, ##__VA_ARGS__)))

static bool
validate_function(const char *family, Form_pg_amproc proc)
{
	if (proc->amproclefttype != proc->amprocrighttype)
		complain(family,
				 "contains support function %s with different left and right "
				 "input types",
				 format_procedure(proc->amproc));
	else if (proc->amprocnum != NAVIS_METRIC_PROC)
		complain(family,
				 "contains function %s with invalid support number %d, "
				 "expected %d",
				 format_procedure(proc->amproc), proc->amprocnum,
				 NAVIS_METRIC_PROC);
	else if (!check_amproc_signature(proc->amproc, INT4OID, true, 0, 0))
		complain(family,
				 "contains function %s with wrong signature for support "
				 "number %d",
				 format_procedure(proc->amproc), proc->amprocnum);
	else
		return true;
	return false;
}

static bool
validate_operator(const char *family, Form_pg_amop op)
{
	if (op->amopstrategy != NAVIS_ORDER_STRATEGY)
		complain(family,
				 "contains operator %s with invalid strategy number %d, "
				 "expected %d",
				 format_operator(op->amopopr), op->amopstrategy,
				 NAVIS_ORDER_STRATEGY);
	else if (op->amoppurpose != AMOP_ORDER)
		complain(family, "contains operator %s that is not FOR ORDER BY",
				 format_operator(op->amopopr));
	else if (op->amoplefttype != op->amoprighttype)
		complain(family,
				 "contains operator %s with different left and right types",
				 format_operator(op->amopopr));
	else if (!check_amop_signature(op->amopopr, FLOAT8OID, op->amoplefttype,
								   op->amoprighttype))
		complain(family, "contains operator %s with wrong signature",
				 format_operator(op->amopopr));
	else if (!opfamily_can_sort_type(op->amopsortfamily, FLOAT8OID))
		complain(family,
				 "contains incorrect ORDER BY opfamily specification for "
				 "operator %s",
				 format_operator(op->amopopr));
	else
		return true;
	return false;
}

/* Every type of the family, and the class's own, needs both members. */
static bool
validate_groups(const char *family, CatCList *operators, CatCList *functions,
				Oid type)
{
	List *groups = identify_opfamily_groups(operators, functions);
	bool valid = true, own = false;
	ListCell *cell;

	foreach (cell, groups)
	{
		OpFamilyOpFuncGroup *group = lfirst(cell);

		if (group->lefttype != group->righttype)
			continue; /* said already */
		own |= group->lefttype == type;
		if (!(group->operatorset & (1 << NAVIS_ORDER_STRATEGY)))
		{
			complain(family, "is missing its ordering operator for type %s",
					 format_type_be(group->lefttype));
			valid = false;
		}
		if (!(group->functionset & (1 << NAVIS_METRIC_PROC)))
		{
			complain(family, "is missing support function %d for type %s",
					 NAVIS_METRIC_PROC, format_type_be(group->lefttype));
			valid = false;
		}
	}
	if (!own)
		complain(family, "has no members for type %s", format_type_be(type));
	return valid && own;
}

static bool
validate_family(const char *family, Oid familyoid, Oid type)
{
	CatCList *operators =
		SearchSysCacheList1(AMOPSTRATEGY, ObjectIdGetDatum(familyoid));
	CatCList *functions =
		SearchSysCacheList1(AMPROCNUM, ObjectIdGetDatum(familyoid));
	bool valid = true;

	for (int i = 0; i < functions->n_members; i++)
		valid &= validate_function(
			family, (Form_pg_amproc) GETSTRUCT(&functions->members[i]->tuple));
	for (int i = 0; i < operators->n_members; i++)
		valid &= validate_operator(
			family, (Form_pg_amop) GETSTRUCT(&operators->members[i]->tuple));
	valid &= validate_groups(family, operators, functions, type);
	ReleaseCatCacheList(functions);
	ReleaseCatCacheList(operators);
	return valid;
}

static char *
family_name(Oid familyoid)
{
	HeapTuple tuple = SearchSysCache1(OPFAMILYOID, ObjectIdGetDatum(familyoid));
	char *name;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator family %u", familyoid);
	name = pstrdup(NameStr(((Form_pg_opfamily) GETSTRUCT(tuple))->opfname));
	ReleaseSysCache(tuple);
	return name;
}

bool
navis_validate(Oid opclass)
{
	HeapTuple tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(opclass));
	Form_pg_opclass class;
	char *family;
	bool valid;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator class %u", opclass);
	class = (Form_pg_opclass) GETSTRUCT(tuple);
	family = family_name(class->opcfamily);
	valid = validate_family(family, class->opcfamily, class->opcintype);
	if (OidIsValid(class->opckeytype) && class->opckeytype != class->opcintype)
	{
		complain(family, "does not support storage type %s",
				 format_type_be(class->opckeytype));
		valid = false;
	}
	ReleaseSysCache(tuple);
	return valid;
}
