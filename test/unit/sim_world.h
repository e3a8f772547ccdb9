/*
 * sim_world.h
 *		An engine on a simulated disk, a journal, and a model that knows what
 *		must be there after a crash.
 *
 * A world is a run of several lives.  In each the engine opens what the disk
 * holds, is compared with the model and with the journal, works (insertions,
 * deletions, linking, searches, checkpoints, all on one thread), and ends: by a
 * power failure in the middle of something, by being killed, or in order.
 * Everything follows from the seed.
 */
#ifndef NAVIS_SIM_WORLD_H
#define NAVIS_SIM_WORLD_H

#include "sim_disk.h"

#define SIM_WHY 512

typedef enum sim_kind
{
	SIM_POWER,  /* power fails, programs die; the disk keeps its promises */
	SIM_ERRORS, /* and transfers fail, are short, space runs out */
	SIM_LIES,   /* and writes get lost, bits flip: damage must be noticed */
	SIM_KINDS
} sim_kind;

typedef struct sim_counts
{
	uint64_t lives, crashes, kills, states, checkpoints, inserts, deletes,
		links, searches, faults, refused, fallbacks, unreachable, missed,
		unfound, rebuilt, changes, consolidations, freed, cut_short, builds,
		retrained;
} sim_counts;

/* What a run is about whose every change is a moment at which power fails. */
typedef enum sim_script
{
	SIM_REBUILD,     /* the graph is built anew beside the old one */
	SIM_CONSOLIDATE, /* a cluster dies, others come, three runs */
	SIM_FULL_DISK,   /* no crash */
	SIM_ALL_DIE,     /* no crash: all rows are deleted beside a run */
	SIM_SCRIPTS
} sim_script;

/* A sidecar that was built and published, and the vectors it is made of. */
typedef struct sim_base sim_base;
/* dim: floats a vector; align: 512 or 4096. */
extern sim_base *sim_base_new(uint32_t dim, uint32_t align);
extern void sim_base_free(sim_base *base);

/*
 * Runs a world.  power_off_at: the change of the first life at which power
 * fails, 0: as the seed says.  False: the model was contradicted; why
 * (SIM_WHY bytes) tells how.
 */
extern bool sim_run(const sim_base *base, sim_kind kind, uint64_t seed,
					uint64_t power_off_at, sim_counts *counts, char *why);

/*
 * Runs a script; power fails at that change of it, or, *finished, right after
 * it.  What was interrupted is done again, to its end.
 */
extern bool sim_run_script(const sim_base *base, sim_script script,
						   uint64_t seed, uint64_t power_off_at, bool *finished,
						   sim_counts *counts, char *why);

#endif
