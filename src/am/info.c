/*
 * info.c
 *		navis_index_info(regclass) and navis_index_calibration(regclass).
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#include "client.h"
#include "navis.h"

PG_FUNCTION_INFO_V1(navis_index_info);
PG_FUNCTION_INFO_V1(navis_index_calibration);

#define INFO_COLUMNS 55
#define CALIBRATION_COLUMNS 7

static Relation
open_navis_index(Oid oid)
{
	Relation index = relation_open(oid, AccessShareLock);

	if (index->rd_rel->relkind != RELKIND_INDEX || index->rd_indam == NULL ||
		index->rd_indam->amgettuple != navis_gettuple)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("\"%s\" is not a navis index",
							   RelationGetRelationName(index))));
	if (RELATION_IS_OTHER_TEMP(index))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("cannot access temporary indexes of other "
							   "sessions")));
	return index;
}

/* Asks the engine; false when there is none. */
static bool
ask_engine(const NavisMeta *meta, nv_req_info *info, nv_bucket_info **buckets)
{
	nv_request *request;
	nv_key key;

	navis_make_key(&key, meta->identity);
	request = navis_request_begin(NV_REQ_INFO, &key);
	if (request == NULL || navis_request_call(request, NULL, NULL) != NV_OK)
		return false;
	*info = request->u.info;
	if (buckets != NULL)
	{
		*buckets = palloc(info->n_buckets * sizeof(nv_bucket_info) + 1);
		memcpy(*buckets, request->data,
			   info->n_buckets * sizeof(nv_bucket_info));
	}
	return true;
}

const char *
navis_state_name(bool engine, const nv_req_info *info)
{
	if (!engine)
		return "no engine";
	if (info->building)
		return "building";
	switch (info->state)
	{
		case NV_INDEX_ABSENT:
			return "not open";
		case NV_INDEX_OPENING:
			return "opening";
		case NV_INDEX_READY:
			return "ready";
		case NV_INDEX_FULL:
			return "pending memory full";
		case NV_INDEX_NO_GRAPH:
			return "needs rebuild";
		case NV_INDEX_DAMAGED:
			return "damaged";
		default:
			return "unknown";
	}
}

const char *
navis_io_name(uint32 io_uring, uint32 threads)
{
	return io_uring == 0 ? "sync" : io_uring == threads ? "io_uring" : "mixed";
}

static const char *
metric_name(uint32 metric)
{
	return metric == NV_METRIC_L2   ? "l2"
		   : metric == NV_METRIC_IP ? "ip"
									: "cosine";
}

/* Live entries of the journal, with and without a vector. */
static void
count_entries(Relation index, int64 *live, int64 *without_vector)
{
	NavisEntry *entries = palloc(navis_entries_per_page() * sizeof(NavisEntry));

	*live = *without_vector = 0;
	for (BlockNumber block = 1; block < RelationGetNumberOfBlocks(index);
		 block++)
	{
		XLogRecPtr lsn;
		uint32 n = navis_journal_read(index, block, entries, &lsn, NULL);

		CHECK_FOR_INTERRUPTS();
		for (uint32 i = 0; i < n; i++)
			if ((entries[i].flags & NAVIS_ENTRY_STATE) == NAVIS_ENTRY_LIVE)
			{
				++*live;
				*without_vector += navis_entry_hash(&entries[i]) == 0;
			}
	}
	pfree(entries);
}

typedef struct Row
{
	Datum values[INFO_COLUMNS];
	bool nulls[INFO_COLUMNS];
	int n;
} Row;

static void
put(Row *row, Datum value)
{
	row->values[row->n++] = value;
}

static void
put_int(Row *row, uint64 value)
{
	put(row, Int64GetDatum((int64) value));
}

/* NULL unless there. */
static void
put_int_if(Row *row, bool there, uint64 value)
{
	row->nulls[row->n] = !there;
	put_int(row, value);
}

static void
put_float_if(Row *row, bool there, double value)
{
	row->nulls[row->n] = !there;
	put(row, Float4GetDatum((float4) value));
}

static void
put_text_if(Row *row, bool there, const char *value)
{
	row->nulls[row->n] = !there;
	put(row, CStringGetTextDatum(value));
}

static void
put_journal(Row *row, Relation index, const NavisMeta *meta)
{
	int64 live, without_vector;

	count_entries(index, &live, &without_vector);
	put_int_if(row, meta->dim != 0, meta->dim);
	put_text_if(row, true, metric_name(meta->metric));
	put_int(row, meta->max_degree);
	put_int(row, meta->build_list_size);
	put(row, Float4GetDatum(meta->alpha));
	put(row, Float4GetDatum(meta->entrance_ratio));
	put_int(row, meta->entrance_degree);
	put_int(row, RelationGetNumberOfBlocks(index));
	put_int(row, live);
	put_int(row, without_vector);
}

static void
put_graph(Row *row, bool there, const nv_req_info *info)
{
	put_int_if(row, there, info->vertices);
	put_int_if(row, there, info->deleted);
	put_int_if(row, there, info->edge_pages);
	put_int_if(row, there, info->free_pages);
	put_float_if(row, there, info->average_degree);
	put_float_if(row, there, info->placement_quality);
	put_int_if(row, there, info->entrance_members);
	put_int_if(row, there, info->pq_bytes);
	row->nulls[row->n] = !there;
	put(row, BoolGetDatum(info->pq_rotated != 0));
	put_float_if(row, there, info->pq_recall);
	put_int_if(row, there, info->edge_bytes);
	put_int_if(row, there, info->vector_bytes);
	put_int_if(row, there, info->state_bytes);
	row->nulls[row->n] = !there;
	put(row, LSNGetDatum(info->published_lsn));
}

static void
put_memory(Row *row, bool engine, const nv_req_info *info)
{
	bool graph = engine && info->has_graph;
	uint64 held = info->memory_codes + info->memory_map +
				  info->memory_elements + info->memory_entrance +
				  info->memory_other;

	put_int_if(row, graph, info->memory_codes);
	put_int_if(row, graph, info->memory_map);
	put_int_if(row, graph, info->memory_elements);
	put_int_if(row, graph, info->memory_entrance);
	put_int_if(row, graph, info->memory_other);
	put_float_if(row, graph && info->vertices > 0,
				 info->vertices > 0 ? (double) held / info->vertices : 0);
	put_int_if(row, engine, info->pending_rows);
	put_int_if(row, engine, info->pending_bytes);
	put_int_if(row, engine, info->pending_limit);
	put_int_if(row, engine, info->cache_bytes);
	put_int_if(row, engine, info->cache_limit);
	put_int_if(row, engine, info->cache_lookups);
	put_int_if(row, engine, info->cache_hits);
	put_int_if(row, engine, info->cache_promotions);
	put_int_if(row, engine, info->cursors);
	put_int_if(row, engine, info->searches);
	put_int_if(row, engine, info->search_threads);
	put_text_if(row, engine,
				navis_io_name(info->io_uring, info->search_threads));
	put_text_if(row, engine, nv_simd_name((nv_simd) info->simd));
}

static const char *
build_phase(const nv_req_info *info)
{
	if (info->build_own && info->build_phase == NV_PHASE_SCAN)
		return "collecting vectors"; /* of its own, not the table's */
	return navis_buildphasename(PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE +
								info->build_phase);
}

/* Builds: one that runs, and those the engine began by itself. */
static void
put_builds(Row *row, bool engine, const nv_req_info *info)
{
	bool runs = engine && info->building;
	bool graph = engine && info->has_graph;

	put_text_if(row, runs, runs ? build_phase(info) : "");
	put_int_if(row, runs && info->build_total > 0, info->build_done);
	put_int_if(row, runs && info->build_total > 0, info->build_total);
	put_int_if(row, graph, info->built);
	put_float_if(row, graph, info->code_error);
	put_float_if(row, graph, info->drift);
	put_int_if(row, engine, info->renewals);
	put_int_if(row, engine, info->renewals_failed);
}

/* Consolidation since the engine opened the index. */
static void
put_consolidation(Row *row, bool engine, const nv_req_info *info)
{
	row->nulls[row->n] = !engine;
	put(row, BoolGetDatum(info->consolidating != NV_CONSOLIDATE_NONE));
	put_int_if(row, engine, info->consolidations);
	put_int_if(row, engine, info->freed_vertices);
}

/*
 * navis_index_info(index): one row; what needs the engine is NULL without it,
 * what needs a graph is NULL without one.  Sizes and memory in bytes.
 */
Datum
navis_index_info(PG_FUNCTION_ARGS)
{
	Relation index = open_navis_index(PG_GETARG_OID(0));
	nv_req_info info = {0};
	Row row = {0};
	NavisMeta meta;
	TupleDesc desc;
	bool engine;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE ||
		desc->natts != INFO_COLUMNS)
		elog(ERROR, "navis_index_info must return %d columns", INFO_COLUMNS);
	navis_meta_read(index, &meta);
	engine = ask_engine(&meta, &info, NULL);
	put_text_if(&row, true, navis_state_name(engine, &info));
	put_journal(&row, index, &meta);
	put_graph(&row, engine && info.has_graph, &info);
	put_memory(&row, engine, &info);
	put_builds(&row, engine, &info);
	put_consolidation(&row, engine, &info);
	relation_close(index, AccessShareLock);
	Assert(row.n == INFO_COLUMNS);
	PG_RETURN_DATUM(
		HeapTupleGetDatum(heap_form_tuple(desc, row.values, row.nulls)));
}

/*
 * navis_index_calibration(index): a row for each bucket of (LIMIT, list size)
 * in use: its upper bounds, reranks observed, whether the warm-up is complete,
 * and the window at percentiles 90, 99 and 100 (NULL before).
 */
Datum
navis_index_calibration(PG_FUNCTION_ARGS)
{
	Relation index = open_navis_index(PG_GETARG_OID(0));
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	nv_req_info info = {0};
	nv_bucket_info *buckets;
	NavisMeta meta;

	InitMaterializedSRF(fcinfo, 0);
	navis_meta_read(index, &meta);
	if (!ask_engine(&meta, &info, &buckets))
		info.n_buckets = 0;
	for (uint32 i = 0; i < info.n_buckets; i++)
	{
		const nv_bucket_info *b = &buckets[i];
		Datum values[CALIBRATION_COLUMNS] = {
			Int32GetDatum(b->k_bound),  Int32GetDatum(b->list_bound),
			Int32GetDatum(b->observed), BoolGetDatum(b->ready != 0),
			Int32GetDatum(b->p90),      Int32GetDatum(b->p99),
			Int32GetDatum(b->p100)};
		bool nulls[CALIBRATION_COLUMNS] = {false};

		nulls[4] = nulls[5] = nulls[6] = b->ready == 0;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	relation_close(index, AccessShareLock);
	return (Datum) 0;
}
