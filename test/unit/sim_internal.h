/*
 * sim_internal.h
 *		What the files of the simulated world share: the world and its model.
 *
 * sim_world.c	the engine on the simulated disk: lives, work, ends
 * sim_model.c	the journal, what roots said, and what is compared with it
 * sim_beside.c	consolidation and builds by the engine itself, beside the rest
 * sim_turns.c	threads of which one runs at a time
 */
#ifndef NAVIS_SIM_INTERNAL_H
#define NAVIS_SIM_INTERNAL_H

#include "sim_world.h"

#include <inttypes.h>
#include <setjmp.h>

#include "linker.h"
#include "sim_turns.h"
#include "store_internal.h"

#define BASE_ROWS 1060u /* a graph needs NV_MIN_GRAPH_ROWS */
#define BASE_EQUAL 10u  /* of these, rows equal to an earlier one */
#define MAX_ELEMENTS 1500u
#define VECTORS 1900u
#define CLUSTERS 12u
#define MAX_DEGREE 12u

/* --- What the model knows --- */

/* An entry of the journal. */
typedef struct element
{
	uint32_t generation;
	uint32_t vector;
	bool live;
} element;

/* To undo what a crash took from the end of the journal. */
typedef struct journal_change
{
	uint64_t lsn;
	uint32_t element;
	element before;
} journal_change;

/* Rows there ever were, by their generation: what was lost comes twice. */
typedef struct past_row
{
	uint32_t generation, vector;
	uint32_t before; /* the element's one before, UINT32_MAX: none */
} past_row;

typedef struct vertex_state
{
	uint64_t word, hash;
	uint32_t list_crc, code_crc;
	bool readable; /* its list could be verified */
} vertex_state;

typedef struct element_state
{
	uint32_t vertex, generation;
} element_state;

/* Everything a root says, and what the journal said then. */
typedef struct snapshot
{
	uint64_t lsn;
	/*
	 * Of a graph that was built and not opened yet: which rows it must hold the
	 * journal says; its vertices are known when it has taken its place.
	 */
	bool built;
	const nv_store *store; /* whose it is; NULL: it was not opened yet */
	uint32_t n_vertices, n_elements;
	vertex_state *vertex;
	element_state *element;
	uint32_t *vector; /* of each element with a vertex */
	uint32_t blob_crc[NV_BLOBS];
} snapshot;

struct sim_base
{
	uint32_t dim;
	sim_disk *disk, *empty; /* with a graph, and before that */
	float *vectors;         /* VECTORS * dim */
	uint64_t *hashes;
	nv_key key;
	nv_index_params params;
	snapshot root; /* the one that was published */
};

/* Whose turn it is. */
typedef enum actor
{
	ACTOR_MAIN, /* everybody but */
	ACTOR_CONSOLIDATOR,
	ACTOR_BUILDER,
	ACTOR_RETRAINER,
	ACTORS
} actor;

/* What a life is about. */
typedef struct mood
{
	bool consolidates, builds, deletes_many, retrains;
} mood;

typedef struct world
{
	const sim_base *base;
	sim_kind kind;
	uint64_t seed, random;
	sim_disk *disk;
	sim_counts *counts;
	char *why;
	jmp_buf failed;

	nv_port port;
	nv_engine *engine;
	nv_index *index; /* a reference */
	nv_linker linker;
	nv_ring *search_ring;
	nv_search *search;
	float *row;
	nv_request *request;

	element elements[MAX_ELEMENTS];
	uint32_t n_elements;
	journal_change *journal;
	size_t n_journal, journal_room;
	past_row *past;
	size_t n_past, past_room;
	uint32_t last_past[MAX_ELEMENTS]; /* of each element, + 1; 0: none */
	uint64_t lsn, flushed;

	snapshot *snapshots; /* all roots there were */
	uint32_t n_snapshots, snapshots_room;
	uint64_t acknowledged;   /* LSN of the last root known to be published */
	uint64_t under_way;      /* of one that may be, 0: none */
	uint64_t last_cut;       /* of one whose cut was made, 0: none */
	uint64_t built_lsn;      /* of the last graph built beside, 0: none */
	const nv_store *watched; /* the graph's */
	uint64_t epoch_seen;     /* its segment epoch: a cut raises it */
	bool in_checkpoint, nested;
	uint64_t turns; /* how seldom reads give the turn away */
	bool linking;   /* a row is being linked */
	bool searching; /* a search is under way */
	const nv_store *linked_into;
	uint32_t linked;          /* vertices that were before */
	uint64_t freed;           /* vertices that had been freed then */
	bool fell_back;           /* the newest root was not whole */
	bool interrupted;         /* power failed in the last opening */
	bool lost_writes;         /* roots may have been published in vain */
	bool building;            /* BUILD_RUN is at work */
	bool short_of_room;       /* the disk is small */
	const nv_store *promised; /* it has taken a row since */
	bool deleted_many;        /* members of the entrance graph among them */

	/* beside the rest */
	bool may_retrain; /* some worlds do */
	mood mood;
	sim_task *task[ACTORS];
	actor actor;
	uint64_t budget;       /* reads and syncs until the task rests, 0: never */
	bool failed_in_task;   /* it does not go on */
	nv_request *wish;      /* a CONSOLIDATE; NULL: none is under way */
	uint64_t changed;      /* rows deleted and linked, since the start */
	uint64_t wish_changed; /* the same, when the run began */
} world;

/* The text in w->why is the reason; does not return. */
extern void sim_give_up(world *w) __attribute__((noreturn));

#define sim_fail(w, ...)                                                       \
	do                                                                         \
	{                                                                          \
		snprintf((w)->why, SIM_WHY, __VA_ARGS__);                              \
		sim_give_up(w);                                                        \
	} while (0)

#define sim_check(w, cond)                                                     \
	do                                                                         \
	{                                                                          \
		if (!(cond))                                                           \
			sim_fail(w, "%s, line %d", #cond, __LINE__);                       \
	} while (0)

static inline uint64_t
sim_pick(world *w, uint64_t bound)
{
	return nv_random_below(&w->random, bound);
}

static inline void *
sim_must(void *p)
{
	if (p == NULL)
		abort();
	return p;
}

/* With the disk's power gone, or where faults are made, calls may fail. */
static inline bool
sim_may_fail(const world *w)
{
	return sim_disk_is_off(w->disk) || w->kind != SIM_POWER;
}

/*
 * A full disk may refuse a checkpoint before it has begun, as long as no row
 * was promised a place.
 */
static inline bool
sim_refused(const world *w, uint32_t status)
{
	const nv_body *body = w->index->body;

	return status == NV_ENOSPC && w->short_of_room && body != NULL &&
		   body->store != w->promised && !atomic_load(&body->store->failed);
}

/* --- sim_model.c --- */

/* An entry of the journal is about to change. */
extern void sim_journal_note(world *w, uint32_t e);
/* A crash of the server: WAL that was not flushed may be gone. */
extern void sim_journal_crash(world *w);
/* The element gets another row. */
extern void sim_journal_row(world *w, uint32_t e, uint32_t vector);
extern void sim_free_snapshot(snapshot *s);
/* A place for the root that is being made. */
extern snapshot *sim_new_snapshot(world *w);
extern snapshot *sim_find_snapshot(world *w, uint64_t lsn);
/* The state of a store with nobody at work on it. */
extern void sim_take_snapshot(nv_store *store, snapshot *s);
extern void sim_take_vectors(snapshot *s, const element *elements);
extern uint32_t sim_count_linked(const nv_store *store);
/* What a store holds after opening: the root it says, whole. */
extern void sim_check_opened(world *w, nv_body *body);
/* Another graph is the index's: if it was built beside, its lists are noted. */
extern void sim_watch_built(world *w, nv_store *store);
/* Lists in bounds, naming what has a list; equal vectors once. */
extern void sim_check_graph(world *w, nv_body *body);
/* Nothing that a root names counts as free. */
extern void sim_check_kept(world *w, nv_store *store);
/* The root that was just published has all its lists. */
extern void sim_check_published(world *w, nv_store *store,
								const snapshot *root);
/* Vertices that came during a consolidation name none that it takes out. */
extern void sim_check_newcomers(world *w, nv_body *body);
/* Counters are what can be counted, and equal rows find what has a list. */
extern void sim_check_counts(world *w, nv_body *body);
/* Every unused id can be had again; nobody has any. */
extern void sim_check_ids(world *w, nv_store *store);
/* Codes are of the codebook in use: those of every step-th vertex. */
extern void sim_check_codes(world *w, nv_body *body, uint32_t first,
							uint32_t step);
/* Every live row is linked or pending, nothing else is linked. */
extern void sim_check_rows(world *w);

/* --- sim_beside.c --- */

/* A read or a sync of a file: cuts that were made are noted. */
extern void sim_watch(world *w);
/* A root with that LSN may be found from here on. */
extern void sim_note_flush(world *w, uint64_t lsn);
/* Whoever has the turn waits for others. */
extern void sim_others_go(void *arg);
/* Lets a task go for so many reads and syncs, 0: until it waits. */
extern void sim_let_go(world *w, actor who, uint64_t budget);
/* Somebody is at work beside. */
extern bool sim_anybody_beside(const world *w);
/* Begins or goes on with what the life is about, or lets it go to its end. */
extern void sim_go_on_beside(world *w);
extern void sim_end_beside(world *w);
/* All dead vertices leave, whatever it takes. */
extern void sim_consolidate_all(world *w);
extern void sim_start_consolidation(world *w, float threshold);
/* Tasks end, as those of a process that dies: nothing is written any more. */
extern void sim_kill_tasks(world *w);

#endif
