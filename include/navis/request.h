/*
 * request.h
 *		What a backend may ask the engine, and how the answer comes back.
 *
 * A request is plain memory that both sides can see: a slot in PostgreSQL's
 * shared memory, or ordinary memory in tests and benchmarks.  It holds no
 * pointer.  Who may touch it is told by its state:
 *
 *	IDLE		the owner (one backend)
 *	SUBMITTED	nobody; the owner may take it back or abandon it
 *	RUNNING		the engine
 *	DONE		the owner: status and results are in place
 *	ABANDONED	the engine, which sets IDLE when it has let go
 *
 * The owner sets IDLE -> SUBMITTED, SUBMITTED/RUNNING -> ABANDONED (cancel) and
 * DONE -> IDLE; the engine sets SUBMITTED -> RUNNING, RUNNING -> DONE and
 * ABANDONED -> IDLE.  All by compare-and-swap.  An engine thread looks at the
 * state between steps of long work and stops soon after it became ABANDONED.
 */
#ifndef NAVIS_REQUEST_H
#define NAVIS_REQUEST_H

#include <stdatomic.h>

#include "navis/distance.h"

/* The identity of an index: what its sidecar is keyed by. */
typedef struct nv_key
{
	uint64_t system_id;
	uint32_t database;
	uint32_t unused; /* 0 */
	uint8_t identity[16];
} nv_key;

typedef enum nv_request_state
{
	NV_IDLE,
	NV_SUBMITTED,
	NV_RUNNING,
	NV_DONE,
	NV_ABANDONED
} nv_request_state;

typedef enum nv_request_kind
{
	NV_REQ_SEARCH = 1,
	NV_REQ_NEXT,
	NV_REQ_CLOSE,
	NV_REQ_INSERT,
	NV_REQ_DELETE,
	NV_REQ_OPEN,
	NV_REQ_RECONCILE,
	NV_REQ_OPENED,
	NV_REQ_BUILD_BEGIN,
	NV_REQ_BUILD_ADD,
	NV_REQ_BUILD_RUN,
	NV_REQ_BUILD_ABORT,
	NV_REQ_CHECKPOINT,
	NV_REQ_INFO,
	NV_REQ_DROP,
	NV_REQ_FOLLOWED,
	NV_REQ_RESERVE,
	NV_REQ_TOTALS,
	NV_REQ_CONSOLIDATE,
	NV_REQ_CHECK
} nv_request_kind;

#define NV_REQUEST_DATA 65536 /* bytes of payload, in and out */
#define NV_TITLE_SIZE 192     /* of what the log calls an index */

/* One element that an answer names; in distance order. */
typedef struct nv_hit
{
	uint32_t element;
	uint32_t generation;
	double distance; /* bit-equal to nv_distance(metric, query, row) */
} nv_hit;

#define NV_MAX_HITS (NV_REQUEST_DATA / sizeof(nv_hit))

/* Work done for one request. */
typedef struct nv_search_stats
{
	uint64_t hops;       /* rounds of edge pages (beam steps) */
	uint64_t edge_pages; /* edge pages looked at: read, cached or in RMW */
	uint64_t edge_reads; /* of these, read from disk */
	uint64_t cache_hits; /* of these, found in NAVIS-Cache or RMW */
	uint64_t explored;   /* vertices whose list was expanded */
	uint64_t vectors;    /* vectors loaded for exact comparison */
	uint64_t batches;    /* rerank batches */
	uint64_t pending;    /* unlinked vectors compared exactly */
	uint64_t bytes;      /* read from disk, edges and vectors */
	uint64_t io_ns;      /* time with nothing to do but wait for reads */
	uint64_t compute_ns; /* time on a core */
	uint64_t damaged;    /* slots or records that failed verification */
} nv_search_stats;

/* SEARCH: data = dim floats.  Answer: hits in data. */
typedef struct nv_req_search
{
	/* in */
	uint32_t dim;
	uint32_t k;          /* hits wanted, 1 .. NV_MAX_HITS */
	uint32_t list_size;  /* |E_search|; max(list_size, what k needs) is used */
	uint32_t beam_width; /* 1 .. 64 */
	uint32_t entrance_list;
	uint32_t flags;    /* NV_SEARCH_... */
	double percentile; /* CASR, 1 .. 100 */
	/* out */
	uint64_t cursor;    /* for NEXT and CLOSE; 0: nothing left to continue */
	uint32_t n;         /* hits in data */
	uint32_t exhausted; /* 1: the graph has nothing more to give */
	uint32_t window;    /* w used, or UINT32_MAX: everything loaded */
	uint32_t list_used; /* the frontier that was used */
	nv_search_stats stats;
} nv_req_search;

#define NV_SEARCH_LOAD_ALL 1    /* no CASR: rerank everything (benchmark) */
#define NV_SEARCH_FROM_MEDOID 2 /* no entrance graph (benchmark) */
#define NV_SEARCH_STAGES 4      /* rerank in fixed stages (benchmark) */
#define NV_SEARCH_SINGLE_LISTS                                                 \
	8 /* of a page only the list asked for (benchmark) */

/*
 * NEXT: the next k hits of a cursor, never one already given, each not nearer
 * than the last one given (what is found too late is held back for the
 * caller's final sweep).  NV_ENOENT: the engine no longer has the cursor.
 * Uses nv_req_search: cursor and k in, the rest out.  CLOSE: cursor in.
 */

/* INSERT: one row becomes searchable (exactly) before DONE.  data = vector. */
typedef struct nv_req_insert
{
	uint32_t element;
	uint32_t generation;
	uint64_t hash;
	uint64_t lsn; /* of the journal append */
	uint32_t dim;
	uint32_t from_heap; /* 1: catch-up, not a new row */
	uint32_t place;     /* which of the request's places it comes with */
	uint32_t unchanged; /* 1: probably the vector of another row's */
	/*
	 * 1: the owner waits for no answer.  The row must not be missed all the
	 * same: an index that cannot take it is compared with its journal again.
	 */
	uint32_t posted;
} nv_req_insert;

/*
 * RESERVE: a place in the insert queue for one row, before the journal is
 * touched.  Answered when there is room; parked until then.  granted = 0: none
 * is needed, INSERT may come without.  NV_ENOSPC: the files cannot grow.
 *
 * The place is one of the words request.place, named by u.reserve.place and
 * then by u.insert.place.  Its states:
 *
 *	NV_PLACE_NONE
 *	NV_PLACE_WANTED	set by the owner before RESERVE
 *	TAKEN			set by the engine in its place: the owner has it
 *	OFFERED			set by the engine with the answer of an INSERT: the owner
 *					may take it without asking (-> TAKEN), the engine may take
 *					it back (-> NONE)
 *
 * All by compare-and-swap.  The owner gives a place back by setting NONE,
 * whatever the word says; the engine finds out when it needs room.
 */
#define NV_REQUEST_PLACES 4

#define NV_PLACE_NONE 0
#define NV_PLACE_WANTED 1
#define NV_PLACE_STATE 3 /* mask; above it the engine's number of the place */
#define NV_PLACE_OFFERED 2
#define NV_PLACE_TAKEN 3

typedef struct nv_req_reserve
{
	uint32_t place;   /* in */
	uint32_t granted; /* out */
} nv_req_reserve;

/* DELETE: elements are out of every later answer.  data = n nv_element_ref. */
typedef struct nv_element_ref
{
	uint32_t element;
	uint32_t generation;
} nv_element_ref;

typedef struct nv_req_delete
{
	uint64_t lsn;
	uint32_t n;
} nv_req_delete;

/* What an index is made of; from metapage and reloptions. */
typedef struct nv_index_params
{
	uint32_t dim;
	uint32_t metric; /* nv_metric */
	uint32_t max_degree;
	uint32_t build_list_size;
	uint32_t pq_bytes; /* 0: by measured recall */
	uint32_t entrance_degree;
	float alpha;
	float entrance_ratio;
	/*
	 * Share of dead vertices above which the engine consolidates by itself;
	 * 0, and 1, which no share exceeds: never.
	 */
	float consolidate_threshold;
	uint32_t relfilenode;
	uint32_t index_oid;
} nv_index_params;

typedef enum nv_index_state
{
	NV_INDEX_ABSENT,   /* the engine does not have it: OPEN first */
	NV_INDEX_OPENING,  /* loaded, not yet compared with the journal */
	NV_INDEX_READY,    /* usable */
	NV_INDEX_FULL,     /* pending_memory outgrown: not usable */
	NV_INDEX_NO_GRAPH, /* no sidecar or no usable root, and too many rows */
	NV_INDEX_BUILDING, /* a (re)build runs; usable only when also READY */
	NV_INDEX_DAMAGED   /* reading found damage: rebuild */
} nv_index_state;

/*
 * How far somebody has followed a journal whose writers do not publish to this
 * engine (a standby's): every entry that its pages held when this was read has
 * been handed over.  The engine only keeps it; design.md section 3, "Entries
 * are appended only to a few tail pages".
 */
#define NV_MAX_TAILS 4
typedef struct nv_followed
{
	uint64_t next_sequence; /* of the next page that becomes tail; 0: nothing */
	uint32_t n_tails;
	uint32_t in_recovery; /* 1: writers did not publish at that time */
	uint64_t walked;      /* pages not newer than this LSN have been read */
	int64_t walked_at;    /* the caller's clock */
	struct
	{
		uint64_t sequence;
		uint64_t lsn; /* of the page */
		uint32_t block;
		uint32_t unused;
	} tails[NV_MAX_TAILS];
} nv_followed;

/*
 * OPEN: the engine loads the sidecar if it does not have the index yet.
 * Then the caller walks the journal: RECONCILE for every page (live entries
 * with a vector), then INSERT (from_heap) for what was missing, then OPENED.
 * Several openers may do that at the same time.
 */
typedef struct nv_req_open
{
	/* in */
	nv_index_params params;
	/* out */
	uint32_t state;       /* nv_index_state */
	uint32_t has_graph;   /* the sidecar holds a graph */
	uint64_t pass;        /* names this opener in RECONCILE and OPENED */
	uint64_t room;        /* vectors that still fit navis.pending_memory */
	nv_followed followed; /* valid when READY */
} nv_req_open;

/*
 * RECONCILE: data = n nv_journal_entry in; out: n_missing element ids (uint32)
 * of those the engine has not got in this generation and hash.  pass 0: the
 * index is READY, and only asked.
 */
typedef struct nv_journal_entry
{
	uint32_t element;
	uint32_t generation;
	uint64_t hash;
} nv_journal_entry;

typedef struct nv_req_reconcile
{
	uint64_t pass;
	uint64_t lsn; /* of the page read */
	uint32_t n;
	uint32_t n_missing;
} nv_req_reconcile;

/*
 * OPENED: the walk is complete (complete = 1; elements it did not name are
 * dropped from the engine) or given up (0).  state out: READY when every row
 * named missing has been inserted.  followed in: as it was before the walk.
 */
typedef struct nv_req_opened
{
	uint64_t pass;
	uint32_t complete;
	uint32_t state;
	nv_followed followed;
} nv_req_opened;

/* FOLLOWED: the difference up to here has been handed over; kept if newer. */
typedef struct nv_req_followed
{
	nv_followed followed;
} nv_req_followed;

/*
 * BUILD_BEGIN: a new sidecar for the key, or (rebuild = 1) another graph for
 * an index that is open or known to need one.  NV_EBUSY: one is running;
 * NV_ELIMIT: expected_rows do not fit build_memory (detail names both).
 * BUILD_ADD: data = n rows of {nv_journal_entry, vector} back to back, each
 * rounded up to 8 bytes.  BUILD_RUN: trains, links, places, writes, publishes;
 * progress in phase/done/total of the request.  BUILD_ABORT: also done when
 * any of these is abandoned or fails, and leaves nothing on disk.
 */
typedef struct nv_req_build
{
	/* in */
	nv_index_params params;
	uint64_t expected_rows;    /* BEGIN: estimate, 0 if unknown */
	uint64_t build_memory;     /* BEGIN: bytes all running builds may hold */
	uint32_t threads;          /* BEGIN */
	uint32_t rebuild;          /* BEGIN */
	uint32_t placement_random; /* BEGIN: benchmark */
	uint32_t n;                /* ADD: rows in data */
	uint64_t lsn; /* RUN: newest LSN of the journal entries given */
	/* out (RUN) */
	uint64_t rows;     /* elements with a vector */
	uint32_t vertices; /* distinct vectors linked; 0: kept as pending */
	uint32_t pq_bytes;
	uint32_t pq_rotated;
	float pq_recall;
	float average_degree;
	float placement_quality;
	uint32_t edge_pages;
	uint32_t entrance_members;
	double seconds_train, seconds_link, seconds_place, seconds_write;
} nv_req_build;

/* Fewer distinct vectors than this are kept and compared exactly. */
#define NV_MIN_GRAPH_ROWS 1024

typedef enum nv_build_phase
{
	NV_PHASE_NONE,
	NV_PHASE_SCAN,  /* table rows streamed */
	NV_PHASE_TRAIN, /* codebook */
	NV_PHASE_ENCODE,
	NV_PHASE_LINK, /* vertices linked */
	NV_PHASE_PLACE,
	NV_PHASE_ENTRANCE,
	NV_PHASE_WRITE,     /* files and checkpoint */
	NV_PHASE_CALIBRATE, /* warm-up of the default bucket */
	NV_PHASES
} nv_build_phase;

/*
 * CONSOLIDATE: takes the vertices that are dead now out of the graph, if their
 * share of all is above threshold (0: if there are any), and frees them. Starts
 * a run or waits for the one that is under way; DONE when the share is not
 * above the threshold any more, or nothing can be done about it.  With keep = 1
 * the threshold is from now on also the index's own.  Abandoning it stops a run
 * that nobody else wants; what that has rewired stays.  NV_EUNUSABLE: the index
 * is not READY; NV_EBUSY: a rebuild runs, which leaves the dead behind.
 * Progress in phase (nv_consolidate_phase), done and total (edge pages).
 */
typedef struct nv_req_consolidate
{
	/* in */
	float threshold;
	uint32_t keep;
	/* out */
	uint32_t runs;  /* that were waited for: 0 if there was nothing to do */
	uint64_t freed; /* vertices they freed */
	uint64_t vertices, deleted; /* as in INFO, afterwards */
} nv_req_consolidate;

typedef enum nv_consolidate_phase
{
	NV_CONSOLIDATE_NONE,
	NV_CONSOLIDATE_WAIT,    /* for older insertions, or for another run */
	NV_CONSOLIDATE_COLLECT, /* lists of the dead are read */
	NV_CONSOLIDATE_SWEEP,   /* lists that name them are rewritten */
	NV_CONSOLIDATE_REPAIR,  /* what nothing leads to any more is linked */
	NV_CONSOLIDATE_FREE     /* ids are freed, a checkpoint is published */
} nv_consolidate_phase;

/* INFO: out. */
typedef struct nv_req_info
{
	uint32_t state; /* nv_index_state */
	uint32_t building;
	uint32_t has_graph;
	nv_index_params params;
	uint64_t vertices, elements,
		deleted; /* deleted: ids without live element */
	uint64_t pending_rows, pending_bytes, pending_limit;
	uint64_t edge_pages, free_pages, edge_bytes, vector_bytes, state_bytes;
	uint64_t published_lsn, published_sequence;
	uint64_t memory_codes, memory_map, memory_elements, memory_entrance,
		memory_other;                  /* held for this index, bytes */
	uint64_t cache_bytes, cache_limit; /* whole engine */
	uint64_t cache_lookups, cache_hits, cache_promotions;
	uint32_t pq_bytes, pq_rotated;
	float pq_recall, average_degree, placement_quality;
	uint32_t entrance_members;
	uint32_t search_threads; /* that run */
	uint32_t io_uring;       /* of these, on an io_uring */
	uint32_t io_direct, simd;
	/* calibrated buckets, in data as n_buckets nv_bucket_info */
	uint32_t n_buckets;
	uint32_t cursors;
	uint64_t searches, damaged;
	/* insertion since the index was opened */
	uint64_t insert_queue;   /* rows that wait to be linked */
	uint64_t inserted;       /* rows that were pending and are in the graph */
	uint64_t inserted_equal; /* of these, to the vertex of an equal row */
	uint64_t seeks;          /* positions sought */
	uint64_t seek_pages, seek_reads; /* edge pages looked at, read from disk */
	uint64_t seek_explored,
		seek_vectors;   /* vertices explored, vectors loaded */
	uint64_t relinks;   /* lists rewritten for back edges */
	uint64_t overflows; /* of these, full ones that were pruned */
	uint64_t moved;     /* of the relinks: the list went to another page */
	uint64_t promotions;
	uint64_t insert_failures; /* rows put back for another try */
	uint64_t insert_reserved; /* places given to rows that are to come */
	uint64_t insert_waits;    /* writers that waited for a place */
	uint64_t insert_wait_ns;  /* how long in all */
	uint32_t insert_threads;
	uint32_t window_insert; /* w, or UINT32_MAX: everything is loaded */
	uint32_t entrance_live;
	uint64_t live_slots, retired_slots; /* of the edge file */
	/* a build that runs */
	uint32_t build_own;   /* 1: begun by the engine itself */
	uint32_t build_phase; /* nv_build_phase */
	uint64_t build_done, build_total;
	/* renewals by the engine itself since the index was opened */
	uint32_t renewal;         /* nv_renewal, as it is now */
	uint32_t renewals;        /* that replaced the graph */
	uint32_t renewals_failed; /* for want of memory, space, ... */
	uint32_t built;           /* vertices the graph was built over */
	float code_error;         /* mean squared, of rows held out at training */
	float drift;              /* of rows since then, as a factor of it */
	uint32_t retraining;      /* 1: another codebook is being made */
	uint32_t retrained;       /* times that one replaced the other */
	/* what searches did since the index was opened */
	uint64_t search_pages, search_cached; /* edge pages; found in memory */
	uint64_t search_vectors, search_bytes;
	uint64_t search_pending; /* unlinked rows they compared */
	/* what insertion looked at, beside the seeks above */
	uint64_t seek_cached;             /* of seek_pages, found in memory */
	uint64_t link_pages, link_cached; /* for back edges */
	uint64_t insert_bytes;            /* read from disk */
	uint64_t rmw_pages;               /* edge pages that are not on disk yet */
	uint64_t rmw_hits_search, rmw_hits_insert;
	uint64_t pages_written, page_writes; /* edge pages, in so many writes */
	uint64_t checkpoints, checkpoint_failures, checkpoint_ns;
	uint64_t checkpointed_at; /* microseconds since 1970; 0: never */
	/* the bucket of NV_DEFAULT_K and NV_DEFAULT_LIST at the percentile asked */
	double percentile; /* in; 0: 99 */
	uint32_t window_search, search_observed;
	/* consolidation since the index was opened */
	uint32_t consolidating;  /* nv_consolidate_phase of the run there is */
	uint64_t consolidations; /* runs that came to their end */
	uint64_t freed_vertices; /* by all runs */
	nv_followed followed;    /* as told, in state READY */
	uint64_t rewired_lists;
	/* of the background writer: changed again before, waits of insertion */
	uint64_t pages_reopened, write_waits;
} nv_req_info;

/* Why the engine builds a graph by itself, see src/engine/renew.h. */
typedef enum nv_renewal
{
	NV_RENEWAL_NONE,
	NV_RENEWAL_BACKLOG, /* will come: more rows are let in than usual */
	NV_RENEWAL_DUE,     /* rows wait for it instead of being linked */
	NV_RENEWAL_RUNS
} nv_renewal;

/*
 * TOTALS: out.  The engine as a whole; sums are over all indexes since the
 * engine started, those it has closed included.
 */
typedef struct nv_req_totals
{
	uint32_t indexes;                        /* open */
	uint32_t search_threads, insert_threads; /* that run */
	uint32_t io_uring;                       /* of these, on an io_uring */
	uint32_t simd, cursors;
	uint64_t memory; /* of all indexes, unlinked rows and cache apart */
	uint64_t insert_queue, pending_rows, pending_bytes, pending_limit;
	uint64_t cache_bytes, cache_limit, cache_pages, cache_frozen;
	uint64_t cache_promotions, cache_evictions;
	uint64_t search_lookups, search_hits, insert_lookups, insert_hits;
	uint64_t searches, search_vectors, search_bytes, search_pending;
	uint64_t inserted, inserted_equal, seeks, seek_vectors, insert_bytes;
	uint64_t insert_waits, insert_wait_ns, insert_failures;
	uint64_t relinks, overflows, promotions;
	uint64_t checkpoints, checkpoint_failures, checkpoint_ns;
	uint64_t pages_written, page_writes;
} nv_req_totals;

typedef struct nv_bucket_info
{
	uint32_t k_bound, list_bound;
	uint32_t observed, ready;
	uint32_t p90, p99, p100;
	uint32_t unused;
} nv_bucket_info;

/*
 * CHECK: looks through one part of what the engine holds of an index, beside
 * everything else that goes on, and tells what must not be.  NV_ENOENT: the
 * index is not open.  A part is asked for again with from = next until that is
 * UINT64_MAX.  Without a graph all parts but ENTRIES are done at once.
 */
typedef enum nv_check_part
{
	NV_CHECK_STATE,    /* the published root on disk, all its checksums */
	NV_CHECK_LISTS,    /* slots, bounds, ids that occur twice, dangling edges */
	NV_CHECK_VECTORS,  /* records against the hashes of the map */
	NV_CHECK_ELEMENTS, /* elements and vertices name each other; counts */
	NV_CHECK_EQUAL,    /* equal vectors are one vertex */
	NV_CHECK_REACH,    /* live vertices can be reached from the entrance */
	NV_CHECK_SPACE,    /* every slot and page is used or free, not both */
	NV_CHECK_PARTS,    /* number of the above; data = problems */
	NV_CHECK_ENTRIES, /* data = n nv_journal_entry; out: n ids it has not got */
	NV_CHECK_NAMED,   /* out: n nv_journal_entry, what the graph has */
	NV_CHECK_CONDEMN  /* the graph is damaged: to be built again */
} nv_check_part;

typedef struct nv_req_check
{
	/* in */
	uint32_t part;
	uint64_t from; /* 0 first */
	/* in and out */
	uint32_t n; /* in data */
	/* out */
	uint32_t state;           /* nv_index_state */
	uint32_t unlisted;        /* problems that found no room in data */
	uint32_t unlisted_damage; /* of these, more than warnings */
	uint32_t has_graph;
	uint64_t next;    /* where to go on; UINT64_MAX: the part is done */
	uint64_t checked; /* things looked at */
} nv_req_check;

#define NV_PROBLEM_DETAIL 108

/* What CHECK found. */
typedef struct nv_problem
{
	uint32_t warning; /* 1: costs recall or space, no answer is wrong */
	uint32_t part;    /* nv_check_part */
	uint32_t vertex;  /* UINT32_MAX: none */
	uint32_t element; /* UINT32_MAX: none */
	char detail[NV_PROBLEM_DETAIL];
} nv_problem;

#define NV_MAX_PROBLEMS (NV_REQUEST_DATA / sizeof(nv_problem))

typedef struct nv_request
{
	_Atomic uint32_t state;
	uint32_t kind;   /* nv_request_kind */
	uint32_t status; /* nv_status, valid when DONE */
	int32_t sys_errno;
	uint64_t engine; /* incarnation it was submitted to */
	uint64_t owner;  /* changes when another backend takes the slot */
	_Atomic uint64_t place[NV_REQUEST_PLACES]; /* see nv_req_reserve */
	nv_key key;
	/* OPEN, BUILD_BEGIN: how the log names the index; may be empty */
	char title[NV_TITLE_SIZE];
	/* progress of long work, written by the engine */
	_Atomic uint32_t phase;
	_Atomic uint64_t done, total;
	union
	{
		nv_req_search search;
		nv_req_insert insert;
		nv_req_reserve reserve;
		nv_req_delete del;
		nv_req_open open;
		nv_req_reconcile reconcile;
		nv_req_opened opened;
		nv_req_followed followed;
		nv_req_build build;
		nv_req_info info;
		nv_req_totals totals;
		nv_req_consolidate consolidate;
		nv_req_check check;
	} u;
	char detail[NV_DETAIL_SIZE];
	_Alignas(64) uint8_t data[NV_REQUEST_DATA];
} nv_request;

#endif
