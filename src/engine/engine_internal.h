/*
 * engine_internal.h
 *		What the files of the engine's facade share: the engine, its indexes,
 *		their bodies, cursors and jobs.
 *
 * An index (nv_index) is what the engine knows about one key.  Its body
 * (nv_body) is one finished graph with its sidecar; a rebuild replaces the
 * body while searches go on in the old one.  Rows without a vertex in the body
 * are pending: kept in memory and compared exactly.
 *
 * References: whoever uses an index or a body holds a reference; the last one
 * to let go of a body hands it to a job, which closes files (rings first
 * forget them) and removes the directory if it was superseded or dropped.
 *
 * Locking order: engine->lock -> index->lock -> pending lock; none is held
 * across I/O.
 */
#ifndef NAVIS_ENGINE_INTERNAL_H
#define NAVIS_ENGINE_INTERNAL_H

#include "navis/engine.h"
#include "navis/hash.h"
#include "equal.h"
#include "io.h"
#include "numbers.h"
#include "pending.h"
#include "renew.h"
#include "search.h"
#include "util.h"

#define NV_PATH 1280
#define NV_MAX_INDEXES 4096
#define NV_JOB_THREADS 4
#define NV_BUILD_THREADS 2 /* builds that run at the same time */
#define NV_NO_ELEMENT UINT32_MAX

/*
 * Lists are filled up to this by the build: a third of R costs an eighth more
 * edge pages at equal frontier and gives about a point of recall on word
 * vectors; the room up to R is for back edges (engine-measurements.md 6.2).
 */
#define NV_BUILD_FILL(max_degree) ((max_degree) / 3)

/* Default bucket: calibrated as the last phase of a build. */
#define NV_DEFAULT_K 10
#define NV_DEFAULT_LIST 100

typedef struct nv_index nv_index;

/* Dead vertices that are being consolidated: they are never revived. */
typedef struct nv_dying
{
	struct nv_dying *next; /* older ones that somebody may still look at */
	uint32_t n;            /* ids it has bits for */
	_Atomic uint64_t bits[];
} nv_dying;

/*
 * One graph.  Who changes which elements its vertices have holds the lock of
 * the index it belongs to (or nobody else knows the body); all else that
 * changes is atomic or guarded by store, entrance graph and calibration.
 */
typedef struct nv_body
{
	_Atomic uint32_t refs;
	nv_engine *engine;
	char dir[NV_PATH];
	_Atomic bool remove_dir;  /* superseded or dropped: remove when closed */
	_Atomic bool given_up;    /* its files are opened anew: write no more */
	_Atomic bool no_space;    /* linking met a full disk last */
	_Atomic uint32_t linkers; /* insert threads that may write to it */
	nv_store *store;
	nv_pq *pq; /* the codebook in use; others find it by nv_store_coding */
	uint32_t pq_bytes; /* of a code; they stay as many */
	/*
	 * Replaced by a consolidation, which waits for readers inside an epoch of
	 * the store, for index->lock and for checkpoint_lock before it frees the
	 * old one: use it with one of them.
	 */
	_Atomic(nv_entrance *) entrance;
	nv_casr_table *casr;        /* of searches */
	nv_casr_table *casr_insert; /* of position seeking */
	nv_view view;
	nv_index_params params;         /* as it was built */
	_Atomic uint32_t n_vertices;    /* linked ones; ids go up to the store's */
	_Atomic uint64_t dead_vertices; /* of these, without an element */
	/* Elements of a vertex: see body.c. */
	nv_numbers first; /* vertex -> an element */
	nv_numbers next;  /* element -> next of the same vertex */
	nv_numbers prev;  /* element -> the one before it */
	pthread_mutex_t chain_lock;
	_Atomic uint64_t chain_changes; /* odd while a chain changes */
	nv_equal *equal;                /* vertices by hash */
	nv_drift drift;                 /* of rows since it was built */
	_Atomic(nv_dying *) dying;      /* see consolidate.c; NULL: none ever */
	nv_entrance *left_entrance;     /* the old one, while it may be in use */
	_Atomic uint64_t freed;         /* raised before vertices are freed */
	_Atomic uint64_t unsaved;       /* rows linked since the last cut */
	_Atomic bool windows_unsaved;   /* buckets were calibrated since then */
	uint64_t entrance_saved;        /* its changes then; checkpoint_lock */
	_Atomic uint64_t damaged;
	/* Buckets to be calibrated: 1 asked for, 2 in work, done or given up. */
	_Atomic uint32_t wanted[NV_CASR_K_BUCKETS * NV_CASR_L_BUCKETS];
	_Atomic uint32_t wanted_insert[NV_CASR_K_BUCKETS * NV_CASR_L_BUCKETS];
	_Atomic uint32_t calibrating;
	/* from the meta blob */
	_Atomic uint32_t pq_rotated;
	_Atomic float pq_recall;
	float average_degree, placement_quality;
	uint32_t built;      /* vertices it was built over */
	uint32_t generation; /* number of its directory */
} nv_body;

/* One opener's walk over the journal. */
typedef struct nv_pass
{
	uint64_t id;
	uint64_t *confirmed; /* bitmap over the body's elements */
	uint64_t n_bits;
	uint64_t started_ns;
	bool lacks_row; /* it may have gone by one that is missing */
	struct nv_pass *next;
} nv_pass;

typedef struct nv_build nv_build;

/* What insertion has done for an index since it was opened. */
typedef struct nv_insert_counters
{
	_Atomic uint64_t rows;       /* pending rows that got an element */
	_Atomic uint64_t equal;      /* of these, to a vertex that was there */
	_Atomic uint64_t seeks;      /* positions sought */
	_Atomic uint64_t pages;      /* edge pages these looked at */
	_Atomic uint64_t reads;      /* of these, read from disk */
	_Atomic uint64_t explored;   /* vertices they explored */
	_Atomic uint64_t vectors;    /* vectors they loaded */
	_Atomic uint64_t relinks;    /* lists rewritten for back edges */
	_Atomic uint64_t overflows;  /* of these, full ones that were pruned */
	_Atomic uint64_t moved;      /* of these: to another page */
	_Atomic uint64_t promotions; /* new members of the entrance graph */
	_Atomic uint64_t failures;   /* rows that wait for another try */
	_Atomic uint64_t waits;      /* writers that waited for a place */
	_Atomic uint64_t wait_ns;    /* how long in all */
	_Atomic uint64_t cached;     /* of pages, found in memory */
	_Atomic uint64_t link_pages; /* edge pages looked at for back edges */
	_Atomic uint64_t link_cached;
	_Atomic uint64_t bytes; /* read from disk */
} nv_insert_counters;

/* What else was done for an index since it was opened. */
typedef struct nv_work_counters
{
	_Atomic uint64_t searches;
	_Atomic uint64_t pages;   /* edge pages searches looked at */
	_Atomic uint64_t cached;  /* of these, found in memory */
	_Atomic uint64_t vectors; /* loaded */
	_Atomic uint64_t pending; /* unlinked rows compared */
	_Atomic uint64_t bytes;   /* read from disk */
	_Atomic uint64_t checkpoints, checkpoint_failures, checkpoint_ns;
} nv_work_counters;

/* Counters of an index; those of indexes that are gone add up here, too. */
typedef struct nv_counters
{
	nv_insert_counters insert;
	nv_work_counters work;
} nv_counters;

/* Counted, never waited for: no order is needed. */
static inline void
nv_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* What consolidation has done for an index since it was opened. */
typedef struct nv_consolidate_counters
{
	_Atomic uint32_t phase; /* nv_consolidate_phase of the run there is */
	_Atomic uint64_t runs;  /* that came to their end */
	_Atomic uint64_t freed; /* vertices */
	_Atomic uint64_t rewired;
} nv_consolidate_counters;

struct nv_index
{
	_Atomic uint32_t refs;
	nv_engine *engine;
	nv_key key;
	nv_index_params params;
	char title[NV_TITLE_SIZE]; /* for the log; set and kept as params */
	pthread_mutex_t lock; /* state, body pointer, passes, build, deleted log */
	uint32_t state;       /* nv_index_state, without BUILDING */
	bool loaded;          /* the sidecar was looked at */
	bool explained;       /* the log says why there is no graph */
	bool dropped;
	bool lacks_row; /* and no walk has begun since */
	nv_body *body;  /* NULL: no graph */
	nv_pass *passes;
	nv_followed followed; /* valid in state READY */
	nv_build *build;      /* running */
	uint32_t next_generation;
	_Atomic uint64_t lsn;            /* newest journal LSN handed over */
	pthread_mutex_t load_lock;       /* serialises loading */
	pthread_mutex_t checkpoint_lock; /* serialises checkpoints */
	_Atomic uint64_t checkpointed_ns;
	uint64_t no_graph_ns;     /* when the state became NO_GRAPH last */
	uint64_t full_ns;         /* when it became FULL last */
	_Atomic uint64_t used_ns; /* when a session searched or inserted last */
	_Atomic uint64_t let_go;  /* times it gave up its unlinked rows */
	nv_pending *pending;
	/* Moves of rows from pending into a body: begun and over, see cursor.c. */
	_Atomic uint64_t moves_begun, moves_over;
	nv_insert_counters inserted;
	nv_work_counters work;
	_Atomic uint64_t checkpointed_at; /* microseconds since 1970, or 0 */
	_Atomic uint64_t insert_after_ns; /* no insertion before, after an error */
	_Atomic uint64_t arrived;         /* rows handed over, in all */
	_Atomic uint64_t build_row_ns; /* CPU, a row of the last build; 0: none */
	_Atomic uint64_t link_row_ns;  /* CPU, a row linked; 0: none */
	_Atomic uint32_t renewal;      /* nv_renewal */
	nv_renew_plan plan;            /* the renewer's own */
	uint64_t retrain_after_ns;     /* the retrainer's own, as the next */
	uint32_t retrain_failures;     /* in a row */
	_Atomic uint32_t retrained;    /* times since it was opened */
	_Atomic bool retraining;
	/* Places of the queue given to rows to come; changed under places.lock. */
	_Atomic uint64_t reserved;
	_Atomic uint32_t parked; /* requests that wait for one */
	nv_consolidate_counters consolidated;
	_Atomic uint64_t consolidate_after_ns; /* not before, by itself */
	nv_index *hash_next;
};

typedef struct nv_cursor nv_cursor;
typedef struct nv_consolidate_wish nv_consolidate_wish;

/* Work that may block; runs on a pool thread. */
typedef struct nv_job
{
	void (*run)(nv_engine *engine, struct nv_job *job);
	nv_request *request; /* or NULL */
	void *arg;
	struct nv_job *next;
} nv_job;

typedef struct nv_pool
{
	nv_engine *engine;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	nv_job *head, **tail;
	pthread_t threads[NV_JOB_THREADS];
	uint32_t n_threads;
	bool closed; /* no new jobs; threads end when the queue is empty */
} nv_pool;

typedef enum nv_searcher_state
{
	NV_SEARCHER_STARTING,
	NV_SEARCHER_READY,
	NV_SEARCHER_FAILED /* no ring or no memory: it has ended */
} nv_searcher_state;

/* A search thread's place in the engine. */
typedef struct nv_searcher
{
	nv_engine *engine;
	pthread_t thread;
	nv_ring *ring;
	_Atomic uint32_t state;     /* nv_searcher_state */
	_Atomic bool uring;         /* its ring is an io_uring */
	_Atomic uint64_t forgotten; /* forget requests it has served */
	nv_error failure;           /* why it is FAILED */
} nv_searcher;

/* An insert thread's place in the engine. */
typedef struct nv_inserter
{
	nv_engine *engine;
	pthread_t thread;
	_Atomic bool running; /* it has its rings */
} nv_inserter;

/* One place of an insert queue that a row will come for; see reserve.c. */
typedef struct nv_queue_place
{
	nv_index *index;     /* with a reference; NULL: not in use */
	nv_request *request; /* whose word it is */
	uint32_t word;
	uint32_t next_free;
	uint64_t number; /* as the word says it */
} nv_queue_place;

typedef struct nv_parked nv_parked;

typedef struct nv_places
{
	pthread_mutex_t lock; /* before index->lock */
	nv_queue_place *place;
	uint32_t n, room, free; /* used ever, allocated, first free one */
	uint64_t last_serial;
	nv_parked *first, **last; /* requests that wait, in their order */
	_Atomic uint32_t n_parked;
	_Atomic uint64_t bytes; /* of pending_memory */
} nv_places;

struct nv_engine
{
	nv_config config;
	const nv_port *port;
	int lock_fd;
	_Atomic bool stopping; /* cancel everything */
	nv_cache *cache;
	struct nv_page_writer *page_writer;
	pthread_mutex_t lock; /* index table */
	nv_index *table[NV_MAX_INDEXES];
	uint32_t n_indexes;

	nv_searcher *searchers;
	uint32_t n_searchers;
	nv_inserter *inserters;
	uint32_t n_inserters;
	_Atomic uint32_t inserters_running;
	_Atomic bool inserter_failed; /* one has no ring: that was said */
	nv_places places;
	pthread_mutex_t insert_lock; /* insert threads sleep on it */
	pthread_cond_t insert_cond;
	_Atomic uint32_t insert_idle;   /* how many do, or are about to */
	_Atomic uint32_t insert_ticket; /* raised with every row that comes */
	nv_pool jobs, builders;
	pthread_t housekeeper, calibrator, renewer, consolidator, retrainer;
	bool has_housekeeper, has_calibrator, has_renewer, has_consolidator;
	bool has_retrainer;
	/* What nv_engine_set_build last said. */
	_Atomic uint64_t build_memory;
	_Atomic uint32_t build_threads;
	_Atomic bool renewing;           /* the renewer builds */
	_Atomic uint64_t renew_after_ns; /* it has given way until then */
	pthread_mutex_t wake_lock; /* housekeeper and calibrator sleep on it */
	pthread_cond_t wake_cond;

	/* requests for consolidation; consolidate_lock */
	pthread_mutex_t consolidate_lock; /* the consolidator sleeps on it */
	pthread_cond_t consolidate_cond;
	nv_consolidate_wish *wishes;

	/* files that rings must forget before they are closed */
	pthread_mutex_t forget_lock;
	pthread_cond_t forget_cond;
	nv_file *forget_files[2];
	_Atomic uint64_t forget_seq;

	/* cursors */
	pthread_mutex_t cursor_lock;
	nv_cursor **cursors; /* config.max_cursors */
	uint32_t n_cursors;
	uint64_t next_cursor;

	/* How threads of an engine without threads let others go on; or NULL. */
	void (*pause)(void *arg);
	void *pause_arg;

	_Atomic uint64_t next_pass;
	_Atomic uint64_t pending_bytes; /* all indexes */
	_Atomic uint64_t build_bytes;   /* reserved by running builds */
	_Atomic uint64_t retrain_bytes; /* the same, for other codes */

	nv_counters gone; /* of indexes that were dropped; stats.c */
	_Atomic uint64_t gone_pages_written, gone_page_writes; /* closed graphs */
};

/* --- index.c --- */

/* Finds an index and takes a reference; create: makes an empty one. */
extern nv_index *nv_index_get(nv_engine *engine, const nv_key *key,
							  bool create);
extern void nv_index_put(nv_index *index);
/* Takes it out of the table; new requests no longer find it. */
extern void nv_index_remove(nv_index *index);
extern nv_body *nv_index_body(nv_index *index); /* with a reference, or NULL */
/*
 * Bytes of pending_memory that are for rows of this index and of the others.
 * index->lock held.
 */
extern uint64_t nv_index_pending_limit(const nv_index *index);
/*
 * Rows that did not fit pending_memory can be asked for again when there is
 * room.  index->lock held.
 */
extern void nv_index_leave_full(nv_index *index);
extern void nv_index_set_lsn(nv_index *index, uint64_t lsn);

/* --- small.c --- */

/* A session searches or inserts. */
extern void nv_index_used(nv_index *index);
/*
 * Of an index without a graph: lets others without one give up unlinked rows,
 * those first that were used least recently, until so many bytes are free of
 * what indexes without a graph may have.  False: they will not be, or the index
 * has just had to give up its own.  No lock held.
 */
extern bool nv_index_make_room(nv_index *index, uint64_t bytes);
/*
 * It has not got all of its rows: scans are exact.  Without hope of a graph it
 * gives up the others, too.  index->lock held.
 */
extern void nv_index_become_full(nv_index *index, const char *why);
/* FULL, without unlinked rows: it takes none.  index->lock held. */
extern bool nv_index_rests(const nv_index *index);
/* It did so for long enough to ask for room again.  index->lock held. */
extern bool nv_index_rested(const nv_index *index);

/*
 * Takes an element out of the body there is, and out of what a running build
 * makes.  index->lock held.
 */
extern nv_status nv_index_drop_element(nv_index *index, uint32_t element,
									   nv_error *err);
/* What the index is made of and called in the log; index->lock held. */
extern void nv_index_describe(nv_index *index, const nv_index_params *params,
							  const char *title);
/* Damage was met in the body: scans are exact until it is rebuilt. */
extern void nv_index_damaged(nv_index *index, nv_body *body);
/* So much has changed that a checkpoint is due before its time. */
extern bool nv_checkpoint_wanted(nv_body *body);
/* So much that who changes more should wait for it. */
extern bool nv_checkpoint_overdue(nv_body *body);
/* Publishes a checkpoint of the body if there is one. */
extern nv_status nv_index_checkpoint(nv_index *index, nv_error *err);

extern void nv_request_insert(nv_engine *engine, nv_request *request);
extern void nv_request_delete(nv_engine *engine, nv_request *request);
extern void nv_request_info(nv_engine *engine, nv_request *request);

/* --- body.c --- */

/*
 * Makes a body over an opened store whose blobs are set (store is taken over,
 * also on failure).
 */
extern nv_status nv_body_create(nv_engine *engine, nv_store *store,
								const char *dir, uint32_t generation,
								nv_body **body, nv_error *err);
extern void nv_body_get(nv_body *body);
extern void nv_body_put(nv_body *body);
/* Takes an element out; its vertex dies with its last element. */
extern nv_status nv_body_drop_element(nv_body *body, uint32_t element,
									  nv_error *err);
/*
 * Gives a linked vertex an element (that has none now).  Index lock held.
 */
extern nv_status nv_body_add_element(nv_body *body, uint32_t element,
									 uint32_t generation, uint32_t vertex,
									 nv_error *err);
/* A vertex was linked that was not before; it counts as dead as yet. */
extern void nv_body_count_vertex(nv_body *body);
/* True if the vertex has an element. */
extern bool nv_body_live(const nv_body *body, uint32_t vertex);
/* Vertices with rows; the counters are read one after the other. */
extern uint64_t nv_body_live_vertices(nv_body *body);
/* Where a vertex's code says it is, in graph space. */
extern nv_status nv_body_decode(nv_body *body, uint32_t vertex, float *place,
								nv_error *err);
/* True if the vertex is dead and about to be freed; see consolidate.c. */
extern bool nv_body_dying(nv_body *body, uint32_t vertex);
/*
 * All elements of a vertex at one moment, into *refs, which grows as needed
 * (*room entries, malloc'ed); false: no memory.
 */
extern bool nv_body_elements(nv_body *body, uint32_t vertex,
							 nv_element_ref **refs, uint32_t *room,
							 uint32_t *n);
extern bool nv_body_has(const nv_body *body, uint32_t element,
						uint32_t generation, uint64_t hash);
/*
 * Bytes of the codebook as searches use it, and of one in the making; what is
 * saved of it is the store's.  0 while all reader slots are taken.
 */
extern uint64_t nv_body_codebooks_memory(nv_body *body);
/* ceil(list / (1 - d)) + 10 when d > 0 (navis-system.txt, "Deletion"). */
extern uint32_t nv_widen(uint32_t list_size, uint64_t dead, uint64_t all);
/* The same by the body's share of dead vertices at the moment. */
extern uint32_t nv_body_widen(const nv_body *body, uint32_t list_size);

/* Meta blob: what a body knows beside store, codebook and entrance graph. */
typedef struct nv_meta_blob
{
	uint32_t version; /* NV_META_VERSION */
	uint32_t medoid;
	nv_index_params params;
	nv_gspace gspace;
	uint32_t pq_rotated;
	float pq_recall, average_degree, placement_quality;
	uint32_t built;   /* vertices it was built over */
	float code_error; /* nv_pq_report: error */
} nv_meta_blob;

/* The calibration blob begins with this; then both tables. */
typedef struct nv_calibration_head
{
	uint32_t search_bytes, insert_bytes;
} nv_calibration_head;

#define NV_META_VERSION 3

/* --- opening.c --- */

extern void nv_job_open(nv_engine *engine, nv_job *job);
extern void nv_request_reconcile(nv_engine *engine, nv_request *request);
extern void nv_job_opened(nv_engine *engine, nv_job *job);
extern void nv_request_followed(nv_engine *engine, nv_request *request);
extern void nv_passes_free(nv_index *index);
/*
 * A row of the journal is missing: only a walk that begins from here on can say
 * that the index is whole.  index->lock held.
 */
extern void nv_index_lacks_row(nv_index *index);
/*
 * A row left pending for the body: walks that compare the body must not take
 * it for a stale one.  index->lock held.
 */
extern void nv_passes_confirm(nv_index *index, uint32_t element);
/*
 * What the body has of the element is of the running server, or agrees with its
 * journal; not so what a sidecar of another time may have.  index->lock held.
 */
extern bool nv_passes_vouch(const nv_index *index, uint32_t element);

/* --- build.c --- */

extern void nv_job_build_begin(nv_engine *engine, nv_job *job);
extern void nv_request_build_add(nv_engine *engine, nv_request *request);
extern void nv_job_build_run(nv_engine *engine, nv_job *job);
extern void nv_job_build_abort(nv_engine *engine, nv_job *job);
/* Notes that a running build must not bring this element back. */
extern void nv_build_note_delete(nv_build *build, nv_element_ref ref);
extern void nv_build_cancel(nv_index *index); /* index->lock held */
/* Only a build by the engine itself; index->lock held. */
extern void nv_build_cancel_own(nv_index *index);
/* Ends builds whose owner went away between two requests. */
extern void nv_builds_expire(nv_engine *engine);
/* What runs, for INFO; index->lock held. */
extern void nv_build_progress(const nv_index *index, nv_req_info *info);
/* Bytes a build over n rows holds at its peak. */
extern uint64_t nv_build_memory(const nv_index_params *params, uint64_t n,
								uint32_t threads);

/*
 * Builds by the engine itself over rows it holds (renew.c).  From begin on no
 * row moves from pending to the body, and what goes away is noted; end trains,
 * links, and puts the new body in place of the old one, if status is NV_OK, or
 * else ends it in vain; the build is gone afterwards.  One thread.  NV_EBUSY:
 * another build or an opening; NV_ELIMIT: more than memory; NV_EINVAL (end):
 * fewer than NV_MIN_GRAPH_ROWS distinct vectors; NV_ECANCELLED.
 */
extern nv_status nv_build_own_begin(nv_index *index, uint64_t rows,
									uint64_t memory, uint32_t threads,
									nv_build **build, nv_error *err);
extern nv_status nv_build_own_add(nv_build *build,
								  const nv_journal_entry *entry,
								  const float *vector, nv_error *err);
extern nv_status nv_build_own_end(nv_build *build, nv_status status,
								  nv_req_build *result, nv_error *err);

/* --- sidecar.c --- */

extern void nv_sidecar_generation_dir(const nv_engine *engine,
									  const nv_key *key, uint32_t generation,
									  char *path);
/* Makes directory and marker file. */
extern nv_status nv_sidecar_create(const nv_engine *engine, const nv_key *key,
								   const nv_index_params *params,
								   nv_error *err);
/* An empty directory for a graph, in place of what may be there. */
extern nv_status nv_sidecar_create_graph(const nv_engine *engine,
										 const nv_key *key, uint32_t generation,
										 nv_error *err);
/* Generations on disk, highest first; returns their number (at most max). */
extern uint32_t nv_sidecar_generations(const nv_engine *engine,
									   const nv_key *key, uint32_t *out,
									   uint32_t max);
/* Removes the sidecar whole, whatever is in it; the marker at the end. */
extern nv_status nv_sidecar_remove(const nv_engine *engine, const nv_key *key,
								   nv_error *err);
/*
 * Before anything is made or removed in the directory: what has no marker,
 * because a crash came between making or emptying a directory and its marker,
 * goes if it is empty, and so does a marker that was not finished.
 */
extern void nv_tidy_sidecars(const char *directory);
/* The marker that is left behind when opening crashes twice (quarantine). */
extern bool nv_sidecar_quarantined(const char *dir);
extern nv_status nv_sidecar_mark_opening(const char *dir, bool on,
										 nv_error *err);
extern nv_status nv_lock_directory(const char *path, int *fd, nv_error *err);

/* --- cursor.c, searcher.c --- */

extern void *nv_searcher_main(void *arg);
extern void nv_cursors_close_all(nv_engine *engine);
extern void nv_cursors_expire(nv_engine *engine);
extern void nv_cursors_of_index(nv_engine *engine, nv_index *index);

/* --- calibrate.c --- */

extern void *nv_calibrator_main(void *arg);
/*
 * Runs the warm-up of one bucket: base rows as queries, self excluded, all
 * explored vectors loaded; of searches, or of position seeking.  view: the
 * body's, or a copy of it with rows.
 */
extern nv_status nv_calibrate(nv_body *body, const nv_view *view, int bucket,
							  bool seek, nv_ring *ring, nv_cancel_fn cancel,
							  void *cancel_arg, _Atomic uint64_t *done,
							  nv_error *err);

/* --- check.c --- */

extern void nv_job_check(nv_engine *engine, nv_job *job);

/* --- insert.c --- */

extern void *nv_inserter_main(void *arg);
/*
 * Links the next row that waits, on the caller's thread and with its linker,
 * which is fit for the index's body; row: room for its vector.  False: there is
 * nothing to do for now.
 */
struct nv_linker;
extern bool nv_insert_next(struct nv_linker *linker, nv_index *index,
						   float *row);
/* A row may wait to be linked. */
extern void nv_insert_wake(nv_engine *engine);
/* Waits until no insert thread writes to the body, nor ever will. */
extern void nv_insert_wait(nv_engine *engine, nv_body *body);

/* --- reserve.c --- */

extern void nv_places_init(nv_engine *engine);
extern void nv_request_reserve(nv_engine *engine, nv_request *request);
/*
 * The row of an INSERT has come (or will not): its place is free, and if it
 * was accepted and there is room the next one is offered.  Returns true if the
 * row came with a place.
 */
extern bool nv_places_used(nv_engine *engine, nv_index *index,
						   nv_request *request, bool accepted);
/* Room may have come: answers whoever can go on. */
extern void nv_places_serve(nv_engine *engine);
/* Lets go of parked requests whose owners gave up; cheap. */
extern void nv_places_look(nv_engine *engine);
/*
 * After a checkpoint: where no row waits, space on disk that only a longer
 * queue would need goes back to the file system.
 */
extern void nv_places_trim(nv_index *index);
/* Takes all places of an index back. */
extern void nv_places_of_index(nv_engine *engine, nv_index *index);
/* At the end of the engine, after all threads that may park requests. */
extern void nv_places_close(nv_engine *engine);

/* --- consolidate.c --- */

extern void *nv_consolidator_main(void *arg);
/*
 * The next run that is due or asked for, on the caller's thread and with its
 * linker, which has rings of that thread.  False: there is nothing to do.
 */
extern bool nv_consolidate_next(nv_engine *engine, struct nv_linker *linker);
extern void nv_request_consolidate(nv_engine *engine, nv_request *request);
/* Answers what still waits; the consolidator has ended. */
extern void nv_consolidate_end(nv_engine *engine);

/* --- engine.c --- */

/* For threads that look at something now and then; ends at once when the engine
 * stops. */
extern void nv_sleep_unless_stopping(nv_engine *engine, uint32_t ms);

/*
 * An engine without threads and without the directory's lock, whose functions
 * the caller calls on its own thread; nv_engine_stop ends it.
 */
extern nv_status nv_engine_create(const nv_config *config, const nv_port *port,
								  nv_engine **engine, nv_error *err);
/* Waits for what others do, so long or until they have gone on a little. */
extern void nv_pause(const nv_engine *engine, uint32_t us);
/*
 * What the housekeeper does about checkpoints: those of changed indexes that
 * are due, or all (now); an index whose store failed is let go, so that it is
 * opened again at its last one.
 */
extern void nv_checkpoint_changed(nv_engine *engine, bool now);

/* --- stats.c --- */

extern void nv_request_totals(nv_engine *engine, nv_request *request);
/* The counters of an index, for INFO. */
extern void nv_stats_index(nv_index *index, nv_req_info *info);
/* What a search did for one request. */
extern void nv_stats_search(nv_index *index, const nv_search_stats *stats);
extern void nv_stats_checkpoint(nv_index *index, bool done, uint64_t ns);
/* The index goes: its counts stay in the engine's totals. */
extern void nv_stats_index_gone(nv_index *index);
/* The graph is closed. */
extern void nv_stats_body_gone(nv_body *body);

/* All indexes, each with a reference, into malloc'ed *list; their number. */
extern uint32_t nv_engine_indexes(nv_engine *engine, nv_index ***list);

extern void nv_answer(nv_engine *engine, nv_request *request, nv_status status,
					  const nv_error *err);
extern bool nv_abandoned(const nv_request *request);
extern nv_status nv_submit_job(nv_engine *engine, nv_pool *pool,
							   void (*run)(nv_engine *, nv_job *),
							   nv_request *request, void *arg);
/* Waits until no ring has these files registered. */
extern void nv_engine_forget(nv_engine *engine, nv_file *a, nv_file *b);
extern void nv_engine_wake(nv_engine *engine); /* housekeeper, calibrator */

#endif
