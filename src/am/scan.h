/*
 * scan.h
 *		A scan's state, shared by scan.c (graph), sweep.c (exact) and
 *		lastscan.c (what the session can ask about it afterwards).
 */
#ifndef NAVIS_SCAN_H
#define NAVIS_SCAN_H

#include "navis.h"

#include "access/relscan.h"
#include "utils/tuplesort.h"

#include "client.h"

typedef enum NavisScanPhase
{
	NAVIS_SCAN_START,
	NAVIS_SCAN_GRAPH, /* batches from the engine */
	NAVIS_SCAN_SWEEP, /* sorted rest, or all rows without the engine */
	NAVIS_SCAN_WALK,  /* no order asked for: journal order */
	NAVIS_SCAN_DONE
} NavisScanPhase;

/* For navis_last_scan(). */
typedef struct NavisScanCounters
{
	Oid index_oid;
	NavisScanPhase mode; /* how the scan began: GRAPH, SWEEP or WALK */
	bool swept;          /* the graph was not enough: final sweep */
	uint64 requests;     /* batches asked of the engine */
	uint64 rows;         /* given to the executor */
	uint64 fetched;      /* rows compared by the exact scan or sweep */
	uint32 window, list_used;
	nv_search_stats engine;
} NavisScanCounters;

/* Dead entries that a scan collects before it tells of them. */
#define NAVIS_SCAN_DEAD 32

typedef struct NavisScan
{
	MemoryContext context; /* of the scan */
	MemoryContext work;    /* reset by every rescan */
	NavisMeta meta;
	nv_key key;
	NavisScanPhase phase;
	Datum query_value;
	bool query_null;
	const float *query; /* in work */
	uint32 dim;

	/* graph */
	uint64 incarnation;
	uint64 cursor;
	uint32 batch; /* rows asked for next */
	bool exhausted;
	nv_hit *hits; /* in work; room for batch */
	uint32 n_hits, next_hit, hits_room;
	uint32 *given; /* elements given, in order */
	uint64 n_given, given_room;
	bool replaying;       /* a lost cursor was replaced: skip what was given */
	uint32 *given_sorted; /* a sorted copy for that */
	uint64 n_sorted;
	double last;
	/* met and not live any more, to be told to a standby's engine */
	nv_element_ref dead[NAVIS_SCAN_DEAD];
	uint32 n_dead;

	/* sweep */
	Tuplesortstate *sort;
	TupleTableSlot *slot;

	/* walk */
	BlockNumber block;
	NavisEntry *entries;
	uint32 n_entries, next_entry;

	/* the row given last, for kill_prior_tuple */
	bool has_prior;
	uint32 prior_element, prior_generation;

	MemoryContextCallback release; /* of the cursor, also on abort */
	NavisScanCounters counters;
} NavisScan;

/* sweep.c: sorts every row that was not given; then gives them. */
extern void navis_sweep_begin(IndexScanDesc scan);
extern bool navis_sweep_next(IndexScanDesc scan);
extern void navis_sweep_end(NavisScan *so);

/* lastscan.c */
extern void navis_note_scan(const NavisScanCounters *counters);

#endif
