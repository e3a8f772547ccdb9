/*
 * stats.c
 *		What stands behind navis_stat_indexes and navis_stat_worker.
 *
 * Both can be read at any time: they wait for no lock of another session and
 * throw no error because an index is being made, moved, dropped or damaged
 * (a WARNING says what does not read), or because there is no engine.  They
 *tell sizes and counts, no content, so that everybody may read them, as
 *pg_stat_all_indexes.
 */
#include "postgres.h"

#include "access/relation.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "catchup.h"
#include "client.h"
#include "navis.h"
#include "row.h"

PG_FUNCTION_INFO_V1(navis_stat_get_indexes);
PG_FUNCTION_INFO_V1(navis_stat_get_worker);

#define USECS_1970_TO_2000                                                     \
	((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

/* --- Columns --- */

static void
put_milliseconds(NavisRow *row, bool there, uint64 ns)
{
	put_float8(row, there, (double) ns / 1e6);
}

static void
put_share(NavisRow *row, bool there, uint64 part, uint64 whole)
{
	put_float8(row, there && whole > 0,
			   whole > 0 ? (double) part / (double) whole : 0);
}

/* UINT32_MAX: everything is loaded, there is no window. */
static void
put_window(NavisRow *row, bool there, uint32 window)
{
	put_int(row, there && window != UINT32_MAX, window);
}

/* Microseconds since 1970; 0: never. */
static void
put_time(NavisRow *row, bool there, uint64 unix_us)
{
	put(row, there && unix_us != 0,
		TimestampTzGetDatum((TimestampTz) unix_us - USECS_1970_TO_2000));
}

/* --- One index --- */

typedef struct IndexStat
{
	Oid oid;
	const char *state;
	bool engine; /* info is filled */
	nv_req_info info;
	nv_followed journal; /* as it is now; on a standby */
} IndexStat;

typedef struct JournalRead
{
	Relation index;
	bool readable;
	NavisMeta meta;
	nv_followed *tails;
} JournalRead;

static void
read_journal(void *arg)
{
	JournalRead *read = arg;

	read->readable = navis_meta_peek(read->index, &read->meta);
	if (read->readable && RecoveryInProgress())
		navis_tails_read(read->index, read->tails);
}

/* A page that does not read costs what it would tell, not the other indexes. */
static bool
try_journal(Relation index, NavisMeta *meta, nv_followed *tails)
{
	JournalRead read = {.index = index, .tails = tails};
	ErrorData *error = navis_attempt(read_journal, &read);

	if (error != NULL)
	{
		ereport(WARNING, (errcode(error->sqlerrcode),
						  errmsg_internal("%s", error->message)));
		FreeErrorData(error);
		memset(tails, 0, sizeof(nv_followed));
	}
	*meta = read.meta;
	return read.readable;
}

/* False: it does not exist any more. */
static bool
read_key(Oid oid, nv_key *key, const char **state, nv_followed *journal)
{
	Relation index;
	NavisMeta meta;

	/* Held by whoever makes, moves or drops it. */
	if (!ConditionalLockRelationOid(oid, AccessShareLock))
	{
		*state = "locked";
		return true;
	}
	index = try_relation_open(oid, NoLock);
	if (index == NULL)
	{
		UnlockRelationOid(oid, AccessShareLock);
		return false;
	}
	if (navis_has_no_pages(index) || !try_journal(index, &meta, journal))
		*state = "not readable";
	else
		navis_make_key(key, meta.identity);
	relation_close(index, AccessShareLock);
	return true;
}

static void
ask_engine(const nv_key *key, IndexStat *stat)
{
	bool answered = navis_ask_info(key, &stat->info, NULL);

	stat->engine = answered && stat->info.state != NV_INDEX_ABSENT;
	stat->state = navis_state_name(answered, &stat->info);
}

static bool
index_stat(Oid oid, IndexStat *stat)
{
	nv_key key;

	memset(stat, 0, sizeof(*stat));
	stat->oid = oid;
	if (!read_key(oid, &key, &stat->state, &stat->journal))
		return false;
	if (stat->state == NULL)
		ask_engine(&key, stat);
	return true;
}

/* --- Columns, in the order of the SQL definition --- */

static void
put_inserts(NavisRow *row, bool there, const nv_req_info *i)
{
	put_int(row, there, i->insert_queue);
	put_int(row, there, i->pending_rows);
	put_int(row, there, i->insert_waits);
	put_milliseconds(row, there, i->insert_wait_ns);
	put_int(row, there, i->inserted);
	put_int(row, there, i->inserted_equal);
	put_int(row, there, i->insert_failures);
	put_int(row, there, i->seeks);
	put_int(row, there, i->seek_explored);
	put_int(row, there, i->seek_vectors);
	put_int(row, there, i->seek_pages);
	put_int(row, there, i->seek_cached);
	put_int(row, there, i->link_pages);
	put_int(row, there, i->link_cached);
	put_int(row, there, i->insert_bytes);
	put_int(row, there, i->relinks);
	put_int(row, there, i->overflows);
	put_int(row, there, i->moved);
	put_int(row, there, i->promotions);
}

static void
put_searches(NavisRow *row, bool there, const nv_req_info *i)
{
	put_int(row, there, i->searches);
	put_int(row, there, i->search_vectors);
	put_int(row, there, i->search_pages);
	put_int(row, there, i->search_cached);
	put_int(row, there, i->search_pending);
	put_int(row, there, i->search_bytes);
}

static void
put_graph(NavisRow *row, bool graph, const nv_req_info *i)
{
	put_window(row, graph, i->window_search);
	put_window(row, graph, i->window_insert);
	put_int(row, graph, i->vertices);
	put_int(row, graph, i->deleted);
	put_share(row, graph, i->deleted, i->vertices);
	put_bool(row, graph, i->consolidating != NV_CONSOLIDATE_NONE);
	put_int(row, graph, i->consolidations);
	put_int(row, graph, i->freed_vertices);
	put_bool(row, graph, i->retraining != 0);
	put_int(row, graph, i->retrained);
	put_int(row, graph, i->live_slots);
	put_int(row, graph, i->retired_slots);
	put_int(row, graph, i->edge_pages);
	put_int(row, graph, i->free_pages);
	put_int(row, graph, i->rmw_pages);
	put_int(row, graph, i->rmw_hits_search);
	put_int(row, graph, i->rmw_hits_insert);
	put_int(row, graph, i->pages_written);
	put_int(row, graph, i->page_writes);
}

static void
put_checkpoints(NavisRow *row, bool there, const nv_req_info *i)
{
	put_int(row, there, i->checkpoints);
	put_int(row, there, i->checkpoint_failures);
	put_time(row, there, i->checkpointed_at);
	put_milliseconds(row, there, i->checkpoint_ns);
}

static void
put_lsn(NavisRow *row, bool there, XLogRecPtr lsn)
{
	put(row, there && lsn != InvalidXLogRecPtr, LSNGetDatum(lsn));
}

/* How far a standby's engine is behind what was replayed. */
static void
put_followed(NavisRow *row, const IndexStat *stat)
{
	put_lsn(row, true, navis_newest_followed(&stat->journal));
	put_lsn(row,
			stat->engine && stat->info.state == NV_INDEX_READY &&
				stat->journal.in_recovery,
			navis_newest_followed(&stat->info.followed));
}

/*
 * navis_stat_get_indexes(): a row for each navis index of the database.  What
 * the engine does not know, because it has not opened the index, is NULL.
 */
Datum
navis_stat_get_indexes(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell *cell;
	List *oids;

	InitMaterializedSRF(fcinfo, 0);
	oids = navis_index_oids();
	foreach (cell, oids)
	{
		IndexStat stat;
		NavisRow row = {0};

		CHECK_FOR_INTERRUPTS();
		if (!index_stat(lfirst_oid(cell), &stat))
			continue;
		put(&row, true, ObjectIdGetDatum(stat.oid));
		put_text(&row, true, stat.state);
		put_inserts(&row, stat.engine, &stat.info);
		put_searches(&row, stat.engine, &stat.info);
		put_graph(&row, stat.engine && stat.info.has_graph, &stat.info);
		put_checkpoints(&row, stat.engine, &stat.info);
		put_followed(&row, &stat);
		add_row(result, &row);
	}
	return (Datum) 0;
}

/* --- The worker --- */

static const char *
worker_state(void)
{
	switch (navis_engine_status())
	{
		case NAVIS_ENGINE_RUNNING:
			return "running";
		case NAVIS_ENGINE_NOT_PRELOADED:
			return "not preloaded";
		case NAVIS_ENGINE_STARTING:
			return "starting";
		case NAVIS_ENGINE_NO_WORKER:
			return "not started";
		case NAVIS_ENGINE_STOPPED:
			break;
	}
	return "stopped";
}

/* The engine's totals, and its incarnation; 0: there is none. */
static uint64
ask_totals(nv_req_totals *totals)
{
	nv_key none = {0};
	uint64 incarnation = navis_engine_incarnation();
	nv_request *request = navis_request_begin(NV_REQ_TOTALS, &none);

	if (request == NULL || navis_request_call(request, NULL, NULL) != NV_OK)
		return 0;
	*totals = request->u.totals;
	return incarnation;
}

static void
put_engine(NavisRow *row, bool there, const nv_req_totals *t)
{
	put_int(row, there, t->search_threads);
	put_int(row, there, t->insert_threads);
	put_text(row, there, navis_io_name(t->io_uring, t->search_threads));
	put_text(row, there, nv_simd_name((nv_simd) t->simd));
	put_int(row, there, t->indexes);
	put_int(row, there, t->cursors);
	put_int(row, there, t->memory);
	put_int(row, there, t->insert_queue);
	put_int(row, there, t->pending_rows);
	put_int(row, there, t->pending_bytes);
	put_int(row, there, t->pending_limit);
}

static void
put_cache(NavisRow *row, bool there, const nv_req_totals *t)
{
	put_int(row, there, t->cache_bytes);
	put_int(row, there, t->cache_limit);
	put_int(row, there, t->cache_pages);
	put_int(row, there, t->cache_frozen);
	put_int(row, there, t->search_lookups);
	put_int(row, there, t->search_hits);
	put_int(row, there, t->insert_lookups);
	put_int(row, there, t->insert_hits);
	put_int(row, there, t->cache_promotions);
	put_int(row, there, t->cache_evictions);
}

static void
put_totals(NavisRow *row, bool there, const nv_req_totals *t)
{
	put_int(row, there, t->searches);
	put_int(row, there, t->search_vectors);
	put_int(row, there, t->search_pending);
	put_int(row, there, t->search_bytes);
	put_int(row, there, t->inserted);
	put_int(row, there, t->inserted_equal);
	put_int(row, there, t->insert_failures);
	put_int(row, there, t->insert_waits);
	put_milliseconds(row, there, t->insert_wait_ns);
	put_int(row, there, t->seeks);
	put_int(row, there, t->seek_vectors);
	put_int(row, there, t->insert_bytes);
	put_int(row, there, t->relinks);
	put_int(row, there, t->overflows);
	put_int(row, there, t->promotions);
	put_int(row, there, t->checkpoints);
	put_int(row, there, t->checkpoint_failures);
	put_milliseconds(row, there, t->checkpoint_ns);
	put_int(row, there, t->pages_written);
	put_int(row, there, t->page_writes);
}

/*
 * navis_stat_get_worker(): one row, always; without an engine its state says
 * why, and what the engine would tell is NULL.
 */
Datum
navis_stat_get_worker(PG_FUNCTION_ARGS)
{
	nv_req_totals totals = {0};
	uint64 incarnation = ask_totals(&totals);
	bool there = incarnation != 0;
	TimestampTz started;
	NavisRow row = {0};
	int pid;

	navis_engine_process(&pid, &started);
	put(&row, pid != 0, Int32GetDatum(pid));
	put_text(&row, true, worker_state());
	put(&row, started != 0, TimestampTzGetDatum(started));
	put_int(&row, there, incarnation);
	put_engine(&row, there, &totals);
	put_cache(&row, there, &totals);
	put_totals(&row, there, &totals);
	return row_result(fcinfo, &row);
}
