/*
 * engine.h
 *		Starting and stopping the engine, and the port through which it meets
 *		whoever drives it (the worker, a test, a benchmark).
 */
#ifndef NAVIS_ENGINE_H
#define NAVIS_ENGINE_H

#include "navis/request.h"

/*
 * All functions may be called on any engine thread at any time between
 * nv_engine_start and the return of nv_engine_stop.
 */
typedef struct nv_port
{
	void *arg;

	/* Claims a submitted request (SUBMITTED -> RUNNING), or NULL. */
	nv_request *(*take)(void *arg);

	/*
	 * Results are in place: RUNNING -> DONE and wake the owner, or ABANDONED
	 * -> IDLE.
	 */
	void (*finish)(void *arg, nv_request *request);

	/*
	 * Sleeping until a request may be waiting: ticket() before a last take(),
	 * then sleep(ticket) returns at once if something was submitted since, or
	 * kick() was called, else at the latest after timeout_us.
	 */
	uint32_t (*ticket)(void *arg);
	void (*sleep)(void *arg, uint32_t ticket, uint32_t timeout_us);
	void (*kick)(void *arg);

	/* Returns when WAL is durable up to lsn; NV_ECANCELLED at shutdown. */
	nv_status (*flush_wal)(void *arg, uint64_t lsn, nv_error *err);
} nv_port;

typedef struct nv_config
{
	char directory[1024];    /* created if missing (its parent exists) */
	uint32_t io_method;      /* 0 auto, 1 io_uring, 2 sync */
	uint32_t search_threads; /* 1 .. 64 */
	uint32_t interleave;     /* queries a search thread keeps going, 1 .. 32 */
	uint64_t cache_size;     /* bytes, 0 = off */
	double cache_window;
	uint32_t cache_promote, cache_promote_search;
	uint64_t pending_memory; /* bytes of unlinked vectors, all indexes */
	uint32_t casr_warmup;    /* reranks a bucket */
	uint32_t
		checkpoint_timeout; /* seconds between checkpoints of a changed index */
	uint32_t max_cursors;
	uint32_t cursor_idle; /* seconds before an unused cursor may go */
	bool fsync;
	uint32_t insert_threads;       /* 0 .. 32; 0: rows stay unlinked */
	uint32_t insert_list_size;     /* |E_pos| */
	uint32_t insert_queue_size;    /* rows not linked yet, of an index; >= 1 */
	double casr_percentile_insert; /* 1 .. 100 */
	uint32_t cache_policy;         /* nv_cache_policy (benchmark) */
	bool entrance_static;          /* no promotion (benchmark) */
	uint64_t build_memory;  /* bytes, for rebuilds by the engine itself */
	uint32_t build_threads; /* of these; 0: one for each processor */
} nv_config;

typedef struct nv_engine nv_engine;

/* Sensible values for everything but the directory. */
extern void nv_config_defaults(nv_config *config);

/*
 * Locks the directory (NV_EBUSY: another server has it), starts the threads.
 * All signals are blocked in engine threads.
 */
extern nv_status nv_engine_start(const nv_config *config, const nv_port *port,
								 nv_engine **engine, nv_error *err);

/*
 * Ends all threads: what runs is cancelled; with checkpoint, every changed
 * index is checkpointed first (timeout_ms bounds the whole).
 */
extern void nv_engine_stop(nv_engine *engine, bool checkpoint,
						   uint32_t timeout_ms);

/* New values of the settings of these names; any thread, at once. */
extern void nv_engine_set_build(nv_engine *engine, uint64_t build_memory,
								uint32_t build_threads);

/*
 * Frees a cursor soon; any thread, does not wait.  Unknown numbers are ignored.
 */
extern void nv_engine_release_cursor(nv_engine *engine, uint64_t cursor);

/*
 * Lists sidecars on disk, for the collector: calls found(arg, key,
 * relfilenode, index_oid) for every directory that carries our marker file.
 * Needs no engine; opens nothing else.
 */
typedef void (*nv_sidecar_fn)(void *arg, const nv_key *key,
							  uint32_t relfilenode, uint32_t index_oid);
extern nv_status nv_list_sidecars(const char *directory, nv_sidecar_fn found,
								  void *arg, nv_error *err);

/*
 * A port and a client for programs without PostgreSQL: requests of the same
 * process.  nv_local_call submits, waits and returns the request's status.
 */
typedef struct nv_local nv_local;
extern nv_local *nv_local_create(void);
extern void nv_local_free(nv_local *local);
extern const nv_port *nv_local_port(nv_local *local);
extern nv_status nv_local_call(nv_local *local, nv_request *request);
/* Submit without waiting; then poll or wait, or abandon. */
extern void nv_local_submit(nv_local *local, nv_request *request);
extern nv_status nv_local_wait(nv_local *local, nv_request *request);
extern void nv_local_abandon(nv_local *local, nv_request *request);

#endif
