/*
 * parallel.c
 *		Splitting a counted loop over threads for its duration.
 */
#include "parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "util.h"

typedef struct nv_parallel_loop
{
	nv_parallel_fn fn;
	void *arg;
	uint64_t steps;
	_Atomic uint64_t next;
	atomic_bool stop;
} nv_parallel_loop;

typedef struct nv_parallel_worker
{
	nv_parallel_loop *loop;
	uint32_t number;
	pthread_t thread;
} nv_parallel_worker;

/* False when no step is left. */
static bool
run_step(nv_parallel_loop *loop, uint32_t worker)
{
	uint64_t step;

	if (atomic_load_explicit(&loop->stop, memory_order_relaxed))
		return false;
	step = atomic_fetch_add(&loop->next, 1);
	if (step >= loop->steps)
		return false;
	loop->fn(loop->arg, worker, step);
	return true;
}

static void *
worker_main(void *arg)
{
	nv_parallel_worker *worker = arg;

	while (run_step(worker->loop, worker->number))
		;
	return NULL;
}

/* Starts workers 1 .. wanted - 1; returns how many workers there are. */
static uint32_t
start_workers(nv_parallel_worker *workers, nv_parallel_loop *loop,
			  uint32_t wanted)
{
	sigset_t all;
	sigset_t before;
	uint32_t count = 1;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (count < wanted)
	{
		nv_parallel_worker *worker = &workers[count];

		worker->loop = loop;
		worker->number = count;
		if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0)
			break;
		count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return count;
}

uint32_t
nv_parallel_threads(uint32_t threads)
{
	return NV_MIN(NV_MAX(threads, 1), NV_PARALLEL_MAX_THREADS);
}

nv_status
nv_parallel_run(uint32_t threads, uint64_t steps, nv_parallel_fn fn, void *arg,
				nv_parallel_cancel_fn cancel, void *cancel_arg, nv_error *err)
{
	nv_parallel_worker workers[NV_PARALLEL_MAX_THREADS];
	nv_parallel_loop loop = {.fn = fn, .arg = arg, .steps = steps};
	uint32_t wanted = (uint32_t) NV_MIN(nv_parallel_threads(threads), steps);
	uint32_t count = start_workers(workers, &loop, wanted);

	do
	{
		if (cancel != NULL && cancel(cancel_arg))
			atomic_store(&loop.stop, true);
	} while (run_step(&loop, 0));
	for (uint32_t i = 1; i < count; i++)
		pthread_join(workers[i].thread, NULL);
	if (atomic_load(&loop.stop))
		return nv_fail(err, NV_ECANCELLED, 0, "cancelled");
	return NV_OK;
}
