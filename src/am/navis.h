/*
 * navis.h
 *		What the files of the access method share.
 *
 * The journal is the index relation's main fork.  Block 0 is the metapage;
 * every other page is an array of entries, one an indexed row.  An entry's
 * position is its element id.  See README.md in this folder.
 */
#ifndef NAVIS_H
#define NAVIS_H

#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/generic_xlog.h"
#include "access/itup.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "navis/hash.h"
#include "navis/request.h"

#define NAVIS_MAGIC 0x5349564e /* "NVIS" */
#define NAVIS_JOURNAL_VERSION 1
#define NAVIS_PAGE_ID 0xFA15 /* last two bytes of every page */
#define NAVIS_MAX_TAILS 4
#define NAVIS_FIRST_PAGE 1 /* block 0 is the metapage */

/* Index options; -1 or 0 where "chosen" is possible. */
typedef struct NavisOptions
{
	int32 vl_len_;
	int max_degree;               /* 96, 8 .. 512 */
	int build_list_size;          /* 100, 8 .. 2000 */
	double alpha;                 /* 1.2, 1.0 .. 2.0 */
	int pq_bytes;                 /* 0 = by measured recall, .. 256 */
	int dimensions;               /* 0 = from the type or the first row */
	double entrance_ratio;        /* 0.01, 0.0001 .. 0.5 */
	int entrance_degree;          /* 32, 4 .. 128 */
	double consolidate_threshold; /* 0.1, 0.01 .. 1 = never */
} NavisOptions;

/* Share of dead vertices above which the graph is consolidated. */
extern float navis_consolidate_threshold(Relation index);

/* Element types of a column. */
typedef enum NavisElementType
{
	NAVIS_TYPE_REAL = 1 /* real[] */
} NavisElementType;

/* A copy of what the metapage says. */
typedef struct NavisMeta
{
	uint32 version;
	uint32 dim; /* 0: not known yet */
	bool dim_fixed; /* by the option */
	uint32 element_type;
	uint32 metric; /* nv_metric */
	uint8 identity[16];
	uint32 max_degree, build_list_size, pq_bytes, entrance_degree;
	float alpha, entrance_ratio;
	uint64 next_page_sequence;
	uint32 ntails;
	struct
	{
		BlockNumber block;
		uint64 sequence;
	} tails[NAVIS_MAX_TAILS];
} NavisMeta;

/* Entry flags. */
#define NAVIS_ENTRY_FREE 0
#define NAVIS_ENTRY_LIVE 1
#define NAVIS_ENTRY_DELETED 2
#define NAVIS_ENTRY_STATE 3  /* mask */
#define NAVIS_ENTRY_KILLED 4 /* hint */

typedef struct NavisEntry
{
	uint32 hash_low, hash_high; /* 64-bit hash of the vector; 0: no vector */
	uint32 generation;
	ItemPointerData tid; /* 6 bytes */
	uint16 flags;
} NavisEntry;

static inline uint64
navis_entry_hash(const NavisEntry *e)
{
	return ((uint64) e->hash_high << 32) | e->hash_low;
}

static inline uint32
navis_entry_state(const NavisEntry *entry)
{
	return entry->flags & NAVIS_ENTRY_STATE;
}

static inline bool
navis_entry_live(const NavisEntry *entry)
{
	return navis_entry_state(entry) == NAVIS_ENTRY_LIVE;
}

/* Live and with a vector: what the engine must have. */
static inline bool
navis_entry_has_vector(const NavisEntry *entry)
{
	return navis_entry_live(entry) && navis_entry_hash(entry) != 0;
}

/* Live for a scan that ignores entries with the killed hint, or does not. */
static inline bool
navis_entry_visible(const NavisEntry *entry, bool ignore_killed)
{
	return navis_entry_live(entry) &&
		   !(ignore_killed && (entry->flags & NAVIS_ENTRY_KILLED));
}

/* --- journal.c --- */

/* Reads and checks block 0; errors: other version (hint REINDEX), not ours. */
extern void navis_meta_read(Relation index, NavisMeta *meta);
/* The same for whoever only looks: false where that throws, or no page yet. */
extern bool navis_meta_peek(Relation index, NavisMeta *meta);

/* What an append did. */
typedef struct NavisAppended
{
	uint32 element;
	uint32 generation;
	XLogRecPtr lsn; /* of the WAL record; invalid for relations without WAL */
	uint8 identity[16]; /* of the index at that moment */
} NavisAppended;

/*
 * Appends a live entry.  dim: of the vector, 0 if there is none.  False, and
 * nothing done, when the metapage says other dimensions.
 */
extern bool navis_journal_append(Relation index, ItemPointer tid, uint64 hash,
								 uint32 dim, NavisAppended *appended);

/*
 * Makes dim the dimensions of the index: true if they are now (or were), false
 * if others are fixed, by the option or by a live entry that holds a vector.
 */
extern bool navis_meta_set_dimensions(Relation index, uint32 dim);

/* First element id of a block and number of entries a full page has. */
extern uint32 navis_first_element(BlockNumber block);
extern uint32 navis_entries_per_page(void);

/*
 * Copies the entries of one journal page (block >= 1) into entries (room for
 * navis_entries_per_page()); returns their number, *lsn = page LSN.
 */
extern uint32 navis_journal_read(Relation index, BlockNumber block,
								 NavisEntry *entries, XLogRecPtr *lsn,
								 BufferAccessStrategy strategy);

/*
 * True when the journal, under its buffer lock, says that this element and
 * generation is live; *tid is the row.  ignore_killed is the scan's
 * ignore_killed_tuples: true = an entry with the killed hint is not live.
 */
extern bool navis_journal_live(Relation index, uint32 element,
							   uint32 generation, bool ignore_killed,
							   ItemPointer tid);

/* Sets the killed hint of an element (kill_prior_tuple). */
extern void navis_journal_kill(Relation index, uint32 element,
							   uint32 generation);

/* --- vector.c: from SQL values to floats --- */

/*
 * Checks a value of the column's type: real[], one-dimensional, no NULLs,
 * finite, 1 .. 16,000 elements; expected_dim 0: any.  Returns a palloc'd or
 * in-place (detoasted) float array and its dimensions.  Errors name found and
 * expected (design section 5).
 */
extern const float *navis_vector_from_datum(Datum value, uint32 element_type,
											uint32 expected_dim, uint32 *dim);

/*
 * Hash for the journal: 0 when this vector cannot be a vertex (zero vector
 * under cosine).
 */
extern uint64 navis_journal_hash(uint32 metric, const float *vector,
								 uint32 dim);

/* Metric of an index's opclass: its support function 1 returns nv_metric. */
extern uint32 navis_index_metric(Relation index);

/* --- heapfetch.c: rows behind journal entries --- */

/* Fetches rows of the indexed table and computes the indexed value. */
typedef struct NavisFetch NavisFetch;

typedef enum NavisFetchResult
{
	NAVIS_FETCH_GONE, /* no version of the row is visible / not dead */
	NAVIS_FETCH_NULL,
	NAVIS_FETCH_VECTOR
} NavisFetchResult;

/*
 * snapshot: an MVCC snapshot (exact scan), or NULL: the last version that is
 * not dead to everybody (catch-up).  Index expressions are evaluated as the
 * table's owner in a security-restricted context.
 */
extern NavisFetch *navis_fetch_begin(Relation heap, Relation index,
									 Snapshot snapshot);
extern NavisFetchResult navis_fetch_row(NavisFetch *fetch, ItemPointer tid,
										const float **vector, uint32 *dim);
/* Is there such a version of the row?  Computes nothing. */
extern bool navis_fetch_exists(NavisFetch *fetch, ItemPointer tid);
extern void navis_fetch_end(NavisFetch *fetch);

/*
 * Index expressions are users' functions: outside the inserting statement they
 * run as the table's owner, in a security-restricted context and with a pinned
 * search_path.  After an error the end of the (sub)transaction leaves.
 */
typedef struct NavisGuard
{
	Oid user; /* who the session is */
	int security;
	int nest_level;
} NavisGuard;

extern void navis_guard_enter(NavisGuard *guard, Relation heap);
extern void navis_guard_leave(const NavisGuard *guard);

/* --- attempt.c --- */

/*
 * Runs action(arg) in a subtransaction; not in parallel mode.  NULL if it came
 * to its end, else its error, in the caller's memory, with everything undone.
 * What is about the session (cancel, shutdown, exhausted resources) is thrown.
 */
extern ErrorData *navis_attempt(void (*action)(void *arg), void *arg);

/* --- indexes.c --- */

/* Is it an index of our access method? */
extern bool navis_is_index(Relation relation);

/* For users' functions; errors: not a navis index, another's temporary one. */
extern Relation navis_index_open(Oid oid, LOCKMODE mode);

/* No page to read: another's temporary index, an unlogged one in recovery. */
extern bool navis_has_no_pages(Relation index);

/* Those of this database that this transaction sees. */
extern List *navis_index_oids(void);

/* --- opening.c: make the engine agree with the journal --- */

typedef enum NavisUse
{
	NAVIS_USE_GRAPH, /* usable: the engine answers */
	NAVIS_USE_EXACT  /* answer by the exact scan */
} NavisUse;

/*
 * Opens the index in the engine if need be (catch-up included) and says which
 * way a scan must go.  Asks for a background rebuild where one is needed.
 * One WARNING a session without an engine, one when pending memory is full.
 */
extern NavisUse navis_open_index(Relation heap, Relation index,
								 const NavisMeta *meta, nv_key *key);

/*
 * For the planner: will a scan probably be the exact one?  By what this session
 * saw when it opened the index last, for some seconds; asks nobody.
 */
extern bool navis_expect_exact(Oid index_oid);

/*
 * A request about the index answered NV_ENOENT or NV_EUNUSABLE: what this
 * process remembers of it is out of date.  Call it, then navis_open_index
 * again; no request is needed for an index remembered as usable.
 */
extern void navis_open_forget(Oid index_oid);

/*
 * Rebuilds every index of this database that needs it; for the helper, called
 * outside a transaction.
 */
extern void navis_rebuild_all(void);

/* nv_index_params from metapage and relation. */
extern void navis_index_params(Relation index, const NavisMeta *meta,
							   nv_index_params *params);

/* --- build.c, insert.c, vacuum.c --- */

extern IndexBuildResult *navis_build(Relation heap, Relation index,
									 IndexInfo *info);
extern void navis_buildempty(Relation index);
extern bool navis_insert(Relation index, Datum *values, bool *isnull,
						 ItemPointer tid, Relation heap,
						 IndexUniqueCheck unique, bool unchanged,
						 IndexInfo *info);
extern IndexBulkDeleteResult *navis_bulkdelete(IndexVacuumInfo *info,
											   IndexBulkDeleteResult *stats,
											   IndexBulkDeleteCallback callback,
											   void *state);
extern IndexBulkDeleteResult *navis_vacuumcleanup(IndexVacuumInfo *info,
												  IndexBulkDeleteResult *stats);

/* --- scan.c, exactscan.c --- */

extern IndexScanDesc navis_beginscan(Relation index, int nkeys, int norderbys);
extern void navis_rescan(IndexScanDesc scan, ScanKey keys, int nkeys,
						 ScanKey orderbys, int norderbys);
extern bool navis_gettuple(IndexScanDesc scan, ScanDirection direction);
extern void navis_endscan(IndexScanDesc scan);

/* --- limit.c: K from the plan's Limit --- */

extern void navis_limit_init(void); /* installs the executor hooks */

/*
 * Rows the executor wants from the index scan that runs now, count + offset
 * of the Limit above it; 0 when not known.
 */
extern uint64 navis_limit_wanted(void);

/* --- info.c --- */

/*
 * Asks the engine what it knows of an index; false: there is none.  buckets
 * (NULL: not wanted) becomes an array of info->n_buckets.
 */
extern bool navis_ask_info(const nv_key *key, nv_req_info *info,
						   nv_bucket_info **buckets);
/* What users read as the state of an index; engine: info is its answer. */
extern const char *navis_state_name(bool engine, const nv_req_info *info);
/* How search threads read, so many of them by io_uring. */
extern const char *navis_io_name(uint32 io_uring, uint32 threads);

/* --- cost.c, options.c, handler.c --- */

extern void navis_costestimate(struct PlannerInfo *root, struct IndexPath *path,
							   double loop_count, Cost *startup_cost,
							   Cost *total_cost, Selectivity *selectivity,
							   double *correlation, double *pages);
extern void navis_options_init(void); /* reloptions */
extern bytea *navis_options(Datum reloptions, bool validate);
extern char *navis_buildphasename(int64 phase);
extern bool navis_validate(Oid opclass);

#endif
