/*
 * lastscan.c
 *		navis_last_scan(): what this session's last scan of a navis index did.
 */
#include "postgres.h"

#include "row.h"
#include "scan.h"

PG_FUNCTION_INFO_V1(navis_last_scan);

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
	bool there = have_last_scan;
	bool graph = there && c->mode == NAVIS_SCAN_GRAPH;
	NavisRow row = {0};

	put(&row, there, ObjectIdGetDatum(c->index_oid));
	put_text(&row, there, mode_name(c));
	put_int(&row, there, c->rows);
	put_int(&row, there, c->requests);
	put_int(&row, there, c->engine.hops);
	put_int(&row, there, c->engine.edge_pages);
	put_int(&row, there, c->engine.edge_reads);
	put_int(&row, there, c->engine.cache_hits);
	put_int(&row, there, c->engine.explored);
	put_int(&row, there, c->engine.vectors);
	put_int(&row, there, c->engine.batches);
	put_int(&row, there, c->engine.pending);
	put_int(&row, there, c->fetched);
	put_int(&row, there, c->engine.bytes);
	put_int(&row, there, c->engine.io_ns / 1000);
	put_int(&row, there, c->engine.compute_ns / 1000);
	put_int(&row, graph && c->window != UINT32_MAX, c->window);
	put_int(&row, graph, c->list_used);
	return row_result(fcinfo, &row);
}
