/*
 * lastscan.c
 *		navis_last_scan(): what this session's last scan of a navis index did.
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"

#include "scan.h"

PG_FUNCTION_INFO_V1(navis_last_scan);

#define LAST_SCAN_COLUMNS 18

static NavisScanCounters last_scan;
static bool have_last_scan = false;

void
navis_note_scan(const NavisScanCounters *counters)
{
	last_scan = *counters;
	have_last_scan = true;
}

static const char *
mode_name(const NavisScanCounters *c)
{
	switch (c->mode)
	{
		case NAVIS_SCAN_GRAPH:
			return c->swept ? "graph+sweep" : "graph";
		case NAVIS_SCAN_WALK:
			return "walk";
		default:
			return "exact";
	}
}

/*
 * One row; NULLs before the first scan.  Times are microseconds, window is
 * NULL when every explored vector was loaded.
 */
Datum
navis_last_scan(PG_FUNCTION_ARGS)
{
	const NavisScanCounters *c = &last_scan;
	Datum values[LAST_SCAN_COLUMNS] = {0};
	bool nulls[LAST_SCAN_COLUMNS] = {0};
	TupleDesc desc;
	int i = 0;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE ||
		desc->natts != LAST_SCAN_COLUMNS)
		elog(ERROR, "navis_last_scan must return %d columns",
			 LAST_SCAN_COLUMNS);
	if (!have_last_scan)
	{
		memset(nulls, true, sizeof(nulls));
		PG_RETURN_DATUM(
			HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
	}
	values[i++] = ObjectIdGetDatum(c->index_oid);
	values[i++] = CStringGetTextDatum(mode_name(c));
	values[i++] = Int64GetDatum((int64) c->rows);
	values[i++] = Int64GetDatum((int64) c->requests);
	values[i++] = Int64GetDatum((int64) c->engine.hops);
	values[i++] = Int64GetDatum((int64) c->engine.edge_pages);
	values[i++] = Int64GetDatum((int64) c->engine.edge_reads);
	values[i++] = Int64GetDatum((int64) c->engine.cache_hits);
	values[i++] = Int64GetDatum((int64) c->engine.explored);
	values[i++] = Int64GetDatum((int64) c->engine.vectors);
	values[i++] = Int64GetDatum((int64) c->engine.batches);
	values[i++] = Int64GetDatum((int64) c->engine.pending);
	values[i++] = Int64GetDatum((int64) c->fetched);
	values[i++] = Int64GetDatum((int64) c->engine.bytes);
	values[i++] = Int64GetDatum((int64) c->engine.io_ns / 1000);
	values[i++] = Int64GetDatum((int64) c->engine.compute_ns / 1000);
	nulls[i] = c->mode != NAVIS_SCAN_GRAPH || c->window == UINT32_MAX;
	values[i++] = Int64GetDatum((int64) c->window);
	nulls[i] = c->mode != NAVIS_SCAN_GRAPH;
	values[i++] = Int64GetDatum((int64) c->list_used);
	Assert(i == LAST_SCAN_COLUMNS);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}
