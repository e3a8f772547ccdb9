/*
 * sim_turns.h
 *		Threads of which one runs at a time, in an order that the test decides.
 *
 * A task runs on a thread of its own, but only while somebody lets it go: who
 * does so stands still until the task rests or ends.  So what runs on several
 * threads in an engine runs here in an order that follows from a seed.  Where a
 * lock is not free its holder stands still, too; a program linked with
 * -Wl,--wrap=pthread_mutex_lock then asks what sim_turns_blocked was given.
 */
#ifndef NAVIS_SIM_TURNS_H
#define NAVIS_SIM_TURNS_H

#include <stdbool.h>

typedef struct sim_task sim_task;

/* It does not run yet. */
extern sim_task *sim_task_start(void (*run)(void *arg), void *arg);
/* Lets it go on until it rests or ends; true: it has ended, and is freed. */
extern bool sim_task_go(sim_task *task);
/* In a task: who let it go goes on, until it lets it go again. */
extern void sim_task_rest(void);

/*
 * Called by this thread and by tasks that meet a lock that is not free; lets
 * others go on.  NULL: nobody.
 */
extern void sim_turns_blocked(void (*blocked)(void *arg), void *arg);

#endif
