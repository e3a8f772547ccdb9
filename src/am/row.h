/*
 * row.h
 *		The row that a function returns, put together column by column in the
 *		order of the SQL definition.  A column is NULL unless what it tells is
 *		there.
 */
#ifndef NAVIS_ROW_H
#define NAVIS_ROW_H

#include "postgres.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"

#define NAVIS_MAX_COLUMNS 64

typedef struct NavisRow
{
	Datum values[NAVIS_MAX_COLUMNS];
	bool nulls[NAVIS_MAX_COLUMNS];
	int n;
} NavisRow;

static inline void
put(NavisRow *row, bool there, Datum value)
{
	Assert(row->n < NAVIS_MAX_COLUMNS);
	row->nulls[row->n] = !there;
	row->values[row->n++] = value;
}

static inline void
put_bool(NavisRow *row, bool there, bool value)
{
	put(row, there, BoolGetDatum(value));
}

static inline void
put_int(NavisRow *row, bool there, uint64 value)
{
	put(row, there, Int64GetDatum((int64) value));
}

static inline void
put_float4(NavisRow *row, bool there, double value)
{
	put(row, there, Float4GetDatum((float4) value));
}

static inline void
put_float8(NavisRow *row, bool there, double value)
{
	put(row, there, Float8GetDatum(value));
}

/* value need not be one if it is not there. */
static inline void
put_text(NavisRow *row, bool there, const char *value)
{
	put(row, there, there ? CStringGetTextDatum(value) : (Datum) 0);
}

/* An error unless the SQL definition has as many columns. */
static inline void
check_columns(TupleDesc desc, const NavisRow *row)
{
	if (desc->natts != row->n)
		elog(ERROR, "row type has %d columns, expected %d", desc->natts,
			 row->n);
}

/* The result of a function that returns one row. */
static inline Datum
row_result(FunctionCallInfo fcinfo, NavisRow *row)
{
	TupleDesc desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(desc, row);
	return HeapTupleGetDatum(heap_form_tuple(desc, row->values, row->nulls));
}

/* One more row of a function that returns a set. */
static inline void
add_row(ReturnSetInfo *result, NavisRow *row)
{
	check_columns(result->setDesc, row);
	tuplestore_putvalues(result->setResult, result->setDesc, row->values,
						 row->nulls);
}

#endif
