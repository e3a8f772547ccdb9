/*
 * sim_turns.c
 *		Tasks: a lock and a condition hand the turn over and back.
 */
#include "sim_turns.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* The linker's names for what --wrap replaces. */
extern int __real_pthread_mutex_lock(pthread_mutex_t *lock);
extern int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);

struct sim_task
{
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool goes, ended;
	void (*run)(void *arg);
	void *arg;
};

static _Thread_local sim_task *current;
static _Thread_local bool takes_part; /* this thread is one of them */
static void (*when_blocked)(void *arg);
static void *when_blocked_arg;

static void
wait_until(sim_task *task, bool goes)
{
	__real_pthread_mutex_lock(&task->lock);
	while (task->goes != goes)
		pthread_cond_wait(&task->changed, &task->lock);
	pthread_mutex_unlock(&task->lock);
}

static void
hand_over(sim_task *task, bool goes)
{
	__real_pthread_mutex_lock(&task->lock);
	task->goes = goes;
	pthread_cond_broadcast(&task->changed);
	pthread_mutex_unlock(&task->lock);
}

static void *
task_main(void *arg)
{
	sim_task *task = arg;

	current = task;
	takes_part = true;
	wait_until(task, true);
	task->run(task->arg);
	task->ended = true;
	hand_over(task, false);
	return NULL;
}

sim_task *
sim_task_start(void (*run)(void *arg), void *arg)
{
	sim_task *task = calloc(1, sizeof(*task));

	if (task == NULL)
		abort();
	task->run = run;
	task->arg = arg;
	pthread_mutex_init(&task->lock, NULL);
	pthread_cond_init(&task->changed, NULL);
	if (pthread_create(&task->thread, NULL, task_main, task) != 0)
		abort();
	return task;
}

bool
sim_task_go(sim_task *task)
{
	hand_over(task, true);
	wait_until(task, false);
	if (!task->ended)
		return false;
	pthread_join(task->thread, NULL);
	pthread_cond_destroy(&task->changed);
	pthread_mutex_destroy(&task->lock);
	free(task);
	return true;
}

void
sim_task_rest(void)
{
	sim_task *task = current;

	hand_over(task, false);
	wait_until(task, true);
}

void
sim_turns_blocked(void (*blocked)(void *arg), void *arg)
{
	when_blocked = blocked;
	when_blocked_arg = arg;
	takes_part = true;
}

int
__wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	int rc;

	if (!takes_part || when_blocked == NULL)
		return __real_pthread_mutex_lock(lock);
	while ((rc = pthread_mutex_trylock(lock)) == EBUSY)
		when_blocked(when_blocked_arg);
	return rc;
}
