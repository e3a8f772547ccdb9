/*
 * vector.c
 *		From SQL values to vectors: checks, hash, and the operators.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "navis.h"

PG_FUNCTION_INFO_V1(navis_l2_distance);
PG_FUNCTION_INFO_V1(navis_negative_inner_product);
PG_FUNCTION_INFO_V1(navis_cosine_distance);
PG_FUNCTION_INFO_V1(navis_metric_l2);
PG_FUNCTION_INFO_V1(navis_metric_ip);
PG_FUNCTION_INFO_V1(navis_metric_cosine);

static void
check_dimensions(int64 found, uint32 expected)
{
	if (found < 1 || found > NV_MAX_DIM)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("vector has " INT64_FORMAT
							   " dimensions, expected 1 to %d",
							   found, NV_MAX_DIM)));
	if (expected != 0 && found != expected)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vector has " INT64_FORMAT " dimensions, expected %u",
						found, expected)));
}

static void
check_no_nulls(ArrayType *array, int n)
{
	bits8 *bitmap = ARR_NULLBITMAP(array);

	for (int i = 0; bitmap != NULL && i < n; i++)
		if (!(bitmap[i / 8] & (1 << (i % 8))))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("vector element %d is null, expected a number",
							i + 1)));
}

static void
check_finite(const float *vector, int n)
{
	for (int i = 0; i < n; i++)
		if (!isfinite(vector[i]))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_EXCEPTION),
					 errmsg("vector element %d is %s, expected a finite number",
							i + 1,
							isnan(vector[i]) ? "NaN"
							: vector[i] > 0  ? "Infinity"
											 : "-Infinity")));
}

const float *
navis_vector_from_datum(Datum value, uint32 element_type, uint32 expected_dim,
						uint32 *dim)
{
	ArrayType *array = DatumGetArrayTypeP(value);
	const float *vector;
	int n;

	Assert(element_type == NAVIS_TYPE_REAL);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("vector is an array with %d subscripts, expected 1",
						ARR_NDIM(array))));
	if (ARR_ELEMTYPE(array) != FLOAT4OID)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
						errmsg("vector has elements of type %u, expected real",
							   ARR_ELEMTYPE(array))));
	n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	check_no_nulls(array, n);
	check_dimensions(n, expected_dim);
	vector = (const float *) ARR_DATA_PTR(array);
	check_finite(vector, n);
	*dim = (uint32) n;
	return vector;
}

uint64
navis_journal_hash(uint32 metric, const float *vector, uint32 dim)
{
	if (metric == NV_METRIC_COSINE && nv_norm(vector, dim) == 0)
		return 0;
	return nv_vector_hash(vector, dim * sizeof(float));
}

uint32
navis_index_metric(Relation index)
{
	FmgrInfo *proc = index_getprocinfo(index, 1, 1);
	int32 metric;

	if (proc->fn_nargs != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("support function 1 of index \"%s\" has %d "
						"arguments, expected none",
						RelationGetRelationName(index), proc->fn_nargs)));
	metric = DatumGetInt32(FunctionCall0Coll(proc, InvalidOid));
	if (metric < NV_METRIC_L2 || metric > NV_METRIC_COSINE)
		ereport(ERROR, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
						errmsg("operator class of index \"%s\" has metric %d, "
							   "expected %d to %d",
							   RelationGetRelationName(index), metric,
							   NV_METRIC_L2, NV_METRIC_COSINE)));
	return (uint32) metric;
}

static Datum
distance(FunctionCallInfo fcinfo, nv_metric metric)
{
	uint32 dim, dim2;
	const float *a =
		navis_vector_from_datum(PG_GETARG_DATUM(0), NAVIS_TYPE_REAL, 0, &dim);
	const float *b = navis_vector_from_datum(PG_GETARG_DATUM(1),
											 NAVIS_TYPE_REAL, dim, &dim2);

	PG_RETURN_FLOAT8(nv_distance(metric, a, b, dim));
}

/* a <-> b: Euclidean distance. */
Datum
navis_l2_distance(PG_FUNCTION_ARGS)
{
	return distance(fcinfo, NV_METRIC_L2);
}

/* a <#> b: inner product times -1, so that ascending order is most similar. */
Datum
navis_negative_inner_product(PG_FUNCTION_ARGS)
{
	return distance(fcinfo, NV_METRIC_IP);
}

/* a <=> b: 1 - cosine; NaN if one of them is the zero vector. */
Datum
navis_cosine_distance(PG_FUNCTION_ARGS)
{
	return distance(fcinfo, NV_METRIC_COSINE);
}

/* Support function 1 of the operator classes. */
Datum
navis_metric_l2(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(NV_METRIC_L2);
}

Datum
navis_metric_ip(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(NV_METRIC_IP);
}

Datum
navis_metric_cosine(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(NV_METRIC_COSINE);
}
