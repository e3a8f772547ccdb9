/*
 * tool.h
 *		What navis_build and navis_bench share: an index in a directory of its
 *		own, without a server, and requests to its engine.
 *
 * Beside what the engine writes, the directory holds rows.journal: what the
 * journal is in a server, the hash of every row's vector.  Elements are
 * numbers of rows in the data file, generations are 1.
 */
#ifndef NAVIS_BENCH_TOOL_H
#define NAVIS_BENCH_TOOL_H

#include "navis/engine.h"
#include "options.h"
#include "util.h"

#define TOOL_PATH 1024

typedef struct tool
{
	nv_config config;
	nv_local *local;
	nv_engine *engine;
	nv_key key; /* there is one index a directory */
	nv_index_params params;
	uint64_t rows;
} tool;

extern void tool_init(tool *t);

/* A request of its own for each thread; freed by the caller. */
extern nv_request *tool_request(const tool *t, nv_request_kind kind,
								uint64_t owner);
/* Submits and waits; any error ends the program. */
extern void tool_call(const tool *t, nv_request *r, const char *what);
/* The same with progress, as the engine reports it. */
extern void tool_call_long(const tool *t, nv_request *r, const char *what);

/* Starts the engine in the directory. */
extern void tool_start(tool *t, const char *dir);
extern void tool_stop(tool *t, bool checkpoint);

/* Everything the engine knows about the index. */
extern nv_req_info tool_info(const tool *t, nv_request *r);

/* --- rows.journal --- */

typedef struct tool_journal tool_journal;

extern tool_journal *tool_journal_create(const char *dir);
extern void tool_journal_add(tool_journal *j, uint64_t hash);
extern void tool_journal_close(tool_journal *j, const nv_index_params *params);

/*
 * Reads the journal's head into params and rows.  Then tool_open, once the
 * engine runs, has it compare all rows, as a backend does.
 */
extern void tool_read_head(tool *t, const char *dir);
extern void tool_open(tool *t, const char *dir);

/* --- Shadow copies --- */

/*
 * Copies the files of an index into a directory that is made for it: by
 * reference where the file system can, else by bytes.  Prints what it did.
 */
extern void tool_shadow(const char *dir, const char *shadow);
extern void tool_remove(const char *dir);

/* --- Measures --- */

extern uint64_t tool_resident_bytes(void);
extern uint64_t tool_peak_bytes(void);

#endif
