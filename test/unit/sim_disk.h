/*
 * sim_disk.h
 *		A disk in memory for tests: it keeps every write since the last sync,
 *		loses its power when told to, and can produce any state that a real
 *		disk may be in afterwards.
 *
 * What a real disk promises, and nothing more: a file's content is durable
 * after its sync, a name after the sync of its directory.  Of what was written
 * since, any sectors of 512 bytes may be there, in any order, and the size may
 * be any it had meanwhile.  A name may stand for anything it stood for since.
 * Space that was never written may hold anything where the test says so.  The
 * state file must also bear that the sectors of its last write are lost with
 * what they held before: roots are written in turn.
 *
 * One thread.  Everything random follows from the seeds that are given.
 */
#ifndef NAVIS_SIM_DISK_H
#define NAVIS_SIM_DISK_H

#include "io_internal.h"

#define SIM_SECTOR 512

typedef struct sim_disk sim_disk;

/* Faults while there is power; probabilities are x in 65536. */
typedef struct sim_faults
{
	uint32_t read_error, write_error, sync_error; /* -EIO */
	uint32_t no_space;                            /* -ENOSPC */
	uint32_t short_transfer; /* fewer bytes, or -EINTR: no error */
	uint32_t lost_write;     /* "done", but never on the disk */
} sim_faults;

extern sim_disk *sim_disk_new(uint64_t seed);
extern void sim_disk_free(sim_disk *disk);
/* The disk below nv_file_open from now on; NULL: the real one. */
extern void sim_disk_use(sim_disk *disk);

/* 512 or 4096: what files that are opened direct ask for. */
extern void sim_disk_set_align(sim_disk *disk, uint32_t align);
extern void sim_disk_set_faults(sim_disk *disk, const sim_faults *faults);
/* Bytes of all files with a name; more is NV_ENOSPC.  0: no limit. */
extern void sim_disk_set_capacity(sim_disk *disk, uint64_t bytes);
extern uint64_t sim_disk_used(const sim_disk *disk);
/* No faults while somebody only looks. */
extern void sim_disk_calm(sim_disk *disk, bool calm);
/* Called before each read or sync of a file; may use the disk. */
typedef void (*sim_hook)(void *arg, bool is_sync);
extern void sim_disk_set_hook(sim_disk *disk, sim_hook hook, void *arg);

/* Writes, syncs, reservations and changes of names so far. */
extern uint64_t sim_disk_changes(const sim_disk *disk);
/* Faults so far that were reported as errors, and lost writes. */
extern uint64_t sim_disk_faults(const sim_disk *disk);
/* Power fails when change number n (from 1) is begun; 0: never. */
extern void sim_disk_power_off_at(sim_disk *disk, uint64_t n);
extern bool sim_disk_is_off(const sim_disk *disk);
/* It fails now; sim_disk_resume ends that, too. */
extern void sim_disk_power_off(sim_disk *disk);
/*
 * Only the program died: everything written is there, and not more durable
 * than it was.
 */
extern void sim_disk_resume(sim_disk *disk);

/* What of the unsynced changes is there after the power failure. */
typedef enum sim_policy
{
	SIM_NOTHING,
	SIM_EVERYTHING,
	SIM_SECTORS, /* each sector of each write, or not */
	SIM_WRITES,  /* each write, or not */
	SIM_PREFIX,  /* up to some moment; the last write torn, a root shorn */
	SIM_FILES,   /* all of some files, nothing of the others */
	SIM_POLICIES
} sim_policy;

/* A disk in a state possible after power failed now; the old one stays. */
extern sim_disk *sim_disk_crash(const sim_disk *disk, sim_policy policy,
								bool garbage, uint64_t seed);
/*
 * Flips `bits` random bits between two offsets of files whose path contains
 * `name`.
 */
extern void sim_disk_flip(sim_disk *disk, const char *name, uint64_t from,
						  uint64_t below, uint32_t bits, uint64_t seed);
/* Everything so far is durable; the same content with its own future. */
extern sim_disk *sim_disk_copy(const sim_disk *disk, uint64_t seed);

#endif
