/*
 * info.c
 *		navis_index_info(regclass) and navis_index_calibration(regclass).
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/pg_lsn.h"

#include "client.h"
#include "navis.h"
#include "row.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(navis_index_info);
PG_FUNCTION_INFO_V1(navis_index_calibration);

#define CALIBRATION_COLUMNS 7

bool
navis_ask_info(const nv_key *key, nv_req_info *info, nv_bucket_info **buckets)
{
	nv_request *request = navis_request_begin(NV_REQ_INFO, key);

	if (request == NULL)
		return false;
	request->u.info.percentile = navis_casr_percentile_search;
	if (navis_request_call(request, NULL, NULL) != NV_OK)
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
	for (BlockNumber block = NAVIS_FIRST_PAGE;
		 block < RelationGetNumberOfBlocks(index); block++)
	{
		XLogRecPtr lsn;
		uint32 n = navis_journal_read(index, block, entries, &lsn, NULL);

		CHECK_FOR_INTERRUPTS();
		for (uint32 i = 0; i < n; i++)
			if (navis_entry_live(&entries[i]))
			{
				++*live;
				*without_vector += navis_entry_hash(&entries[i]) == 0;
			}
	}
	pfree(entries);
}

static void
put_journal(NavisRow *row, Relation index, const NavisMeta *meta)
{
	int64 live, without_vector;

	count_entries(index, &live, &without_vector);
	put_int(row, meta->dim != 0, meta->dim);
	put_text(row, true, metric_name(meta->metric));
	put_int(row, true, meta->max_degree);
	put_int(row, true, meta->build_list_size);
	put_float4(row, true, meta->alpha);
	put_float4(row, true, meta->entrance_ratio);
	put_int(row, true, meta->entrance_degree);
	put_int(row, true, RelationGetNumberOfBlocks(index));
	put_int(row, true, live);
	put_int(row, true, without_vector);
}

static void
put_graph(NavisRow *row, bool there, const nv_req_info *info)
{
	put_int(row, there, info->vertices);
	put_int(row, there, info->deleted);
	put_int(row, there, info->edge_pages);
	put_int(row, there, info->free_pages);
	put_float4(row, there, info->average_degree);
	put_float4(row, there, info->placement_quality);
	put_int(row, there, info->entrance_members);
	put_int(row, there, info->pq_bytes);
	put_bool(row, there, info->pq_rotated != 0);
	put_float4(row, there, info->pq_recall);
	put_int(row, there, info->edge_bytes);
	put_int(row, there, info->vector_bytes);
	put_int(row, there, info->state_bytes);
	put(row, there, LSNGetDatum(info->published_lsn));
}

static void
put_memory(NavisRow *row, bool engine, const nv_req_info *info)
{
	bool graph = engine && info->has_graph;
	uint64 held = info->memory_codes + info->memory_map +
				  info->memory_elements + info->memory_entrance +
				  info->memory_other;

	put_int(row, graph, info->memory_codes);
	put_int(row, graph, info->memory_map);
	put_int(row, graph, info->memory_elements);
	put_int(row, graph, info->memory_entrance);
	put_int(row, graph, info->memory_other);
	put_float4(row, graph && info->vertices > 0,
			   info->vertices > 0 ? (double) held / info->vertices : 0);
	put_int(row, engine, info->pending_rows);
	put_int(row, engine, info->pending_bytes);
	put_int(row, engine, info->pending_limit);
	put_int(row, engine, info->cache_bytes);
	put_int(row, engine, info->cache_limit);
	put_int(row, engine, info->cache_lookups);
	put_int(row, engine, info->cache_hits);
	put_int(row, engine, info->cache_promotions);
	put_int(row, engine, info->cursors);
	put_int(row, engine, info->searches);
	put_int(row, engine, info->search_threads);
	put_text(row, engine, navis_io_name(info->io_uring, info->search_threads));
	put_text(row, engine, nv_simd_name((nv_simd) info->simd));
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
put_builds(NavisRow *row, bool engine, const nv_req_info *info)
{
	bool runs = engine && info->building;
	bool graph = engine && info->has_graph;

	put_text(row, runs, runs ? build_phase(info) : NULL);
	put_int(row, runs && info->build_total > 0, info->build_done);
	put_int(row, runs && info->build_total > 0, info->build_total);
	put_int(row, graph, info->built);
	put_float4(row, graph, info->code_error);
	put_float4(row, graph, info->drift);
	put_int(row, engine, info->renewals);
	put_int(row, engine, info->renewals_failed);
	put_bool(row, engine, info->retraining != 0);
	put_int(row, engine, info->retrained);
}

/* Consolidation since the engine opened the index. */
static void
put_consolidation(NavisRow *row, bool engine, const nv_req_info *info)
{
	put_bool(row, engine, info->consolidating != NV_CONSOLIDATE_NONE);
	put_int(row, engine, info->consolidations);
	put_int(row, engine, info->freed_vertices);
}

/*
 * navis_index_info(index): one row; what needs the engine is NULL without it,
 * what needs a graph is NULL without one.  Sizes and memory in bytes.
 */
Datum
navis_index_info(PG_FUNCTION_ARGS)
{
	Relation index = navis_index_open(PG_GETARG_OID(0), AccessShareLock);
	nv_req_info info = {0};
	NavisRow row = {0};
	NavisMeta meta;
	nv_key key;
	bool engine;

	navis_meta_read(index, &meta);
	navis_make_key(&key, meta.identity);
	engine = navis_ask_info(&key, &info, NULL);
	put_text(&row, true, navis_state_name(engine, &info));
	put_journal(&row, index, &meta);
	put_graph(&row, engine && info.has_graph, &info);
	put_memory(&row, engine, &info);
	put_builds(&row, engine, &info);
	put_consolidation(&row, engine, &info);
	relation_close(index, AccessShareLock);
	return row_result(fcinfo, &row);
}

/*
 * navis_index_calibration(index): a row for each bucket of (LIMIT, list size)
 * in use: its upper bounds, reranks observed, whether the warm-up is complete,
 * and the window at percentiles 90, 99 and 100 (NULL before).
 */
Datum
navis_index_calibration(PG_FUNCTION_ARGS)
{
	Relation index = navis_index_open(PG_GETARG_OID(0), AccessShareLock);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	nv_req_info info = {0};
	nv_bucket_info *buckets;
	NavisMeta meta;
	nv_key key;

	InitMaterializedSRF(fcinfo, 0);
	navis_meta_read(index, &meta);
	navis_make_key(&key, meta.identity);
	if (!navis_ask_info(&key, &info, &buckets))
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
