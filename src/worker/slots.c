/*
 * slots.c
 *		Making the shared memory, and waking the engine's threads.
 *
 * The wake-up functions run on engine threads too: plain C and system calls.
 */
#include "slots.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "miscadmin.h"
#include "postmaster/bgworker_internals.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "worker.h"

#define BITS_PER_WORD 64
#define BITMAPS 3

NavisControl *navis_control = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

/* A slot for every PGPROC that can run code; prepared transactions cannot. */
static uint32
slot_count(void)
{
	return (uint32) (MaxBackends + NUM_AUXILIARY_PROCS);
}

static uint32
word_count(void)
{
	return (slot_count() + BITS_PER_WORD - 1) / BITS_PER_WORD;
}

static Size
bitmap_size(void)
{
	return CACHELINEALIGN(mul_size(word_count(), sizeof(uint64)));
}

static Size
shared_size(void)
{
	Size size = CACHELINEALIGN(sizeof(NavisControl));

	size = add_size(size, mul_size(BITMAPS, bitmap_size()));
	return add_size(size, mul_size(slot_count(), sizeof(NavisSlot)));
}

/* Leaves the payload alone: it is large and nobody reads it unwritten. */
static void
initialise_slot(NavisSlot *slot)
{
	memset(&slot->request, 0, offsetof(nv_request, data));
	atomic_init(&slot->request.state, NV_IDLE);
	atomic_init(&slot->latch, NULL);
	atomic_init(&slot->posts, 0);
	atomic_init(&slot->awaited, 0);
	memset(slot->releases, 0, sizeof(slot->releases));
}

static void
initialise_control(NavisControl *control)
{
	char *next = (char *) control;

	memset(control, 0, sizeof(*control));
	next += CACHELINEALIGN(sizeof(NavisControl));
	control->nslots = slot_count();
	control->nwords = word_count();
	control->submitted = (_Atomic uint64 *) next;
	next += bitmap_size();
	control->released = (_Atomic uint64 *) next;
	next += bitmap_size();
	control->posted = (_Atomic uint64 *) next;
	next += bitmap_size();
	control->slots = (NavisSlot *) next;
	memset((void *) control->submitted, 0, BITMAPS * bitmap_size());
	for (uint32 i = 0; i < control->nslots; i++)
		initialise_slot(&control->slots[i]);
	control->lock = &GetNamedLWLockTranche("navis")->lock;
	atomic_init(&control->worker_state, navis_worker_expected());
}

static void
request_shared_memory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("navis", 1);
}

static void
attach_shared_memory(void)
{
	bool found;
	NavisControl *control;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	control = ShmemInitStruct("navis request slots", shared_size(), &found);
	if (!found)
		initialise_control(control);
	LWLockRelease(AddinShmemInitLock);
	navis_control = control;
}

void
navis_slots_init(void)
{
	StaticAssertStmt(sizeof(NavisSlot) % 64 == 0 &&
						 offsetof(NavisSlot, request) == 0,
					 "slots must keep the alignment of their payload");
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = attach_shared_memory;
}

/*
 * A thread that is about to sleep takes the word as its ticket, looks for work
 * once more, then spins or sleeps only while the word is unchanged.  So
 * whoever publishes work changes the word first.  Of the spinning thread it is
 * known that it will look again: claiming it (1 -> 0) saves the system call,
 * and no two submitters rely on the same one.
 */
void
navis_wake_engine(NavisControl *control)
{
	uint32 one = 1;

	atomic_fetch_add(&control->word, 1);
	if (atomic_compare_exchange_strong(&control->spinner, &one, 0))
		return;
	if (atomic_load(&control->sleepers) > 0)
		syscall(SYS_futex, &control->word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void
navis_wake_engine_all(NavisControl *control)
{
	atomic_fetch_add(&control->word, 1);
	if (atomic_load(&control->sleepers) > 0)
		syscall(SYS_futex, &control->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint64
navis_now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64) ts.tv_sec * 1000000u + (uint64) ts.tv_nsec / 1000;
}
