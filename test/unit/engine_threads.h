/*
 * engine_threads.h
 *		Threads that work on one index beside each other; for tests over
 *		engine_fixture.h.
 */
#ifndef NAVIS_ENGINE_THREADS_H
#define NAVIS_ENGINE_THREADS_H

#include <pthread.h>

#include "engine_graph.h"

/* What the threads of a test share. */
typedef struct world
{
	fixture *f;
	_Atomic bool stop;
	_Atomic uint32_t *generation; /* of each row; odd: in, even: out */
	_Atomic uint32_t next;        /* row to insert next */
	_Atomic uint64_t searches, misses, runs, given_up;
	/* churn_thread: rows from first on, each the business of one thread */
	struct
	{
		uint32_t first, rows, threads;
		uint32_t changes; /* of each thread */
		uint32_t list;    /* frontier of its searches */
	} churn;
} world;

typedef struct worker
{
	world *w;
	uint32_t number;
	fixture f; /* its own, made before others work with the world's */
	pthread_t thread;
} worker;

static inline void
start_worker(world *w, worker *workers, uint32_t *n, void *(*run)(void *) )
{
	workers[*n] =
		(worker){.w = w, .number = *n, .f = fork_fixture(w->f, 10 + *n)};
	assert_int_equal(
		pthread_create(&workers[*n].thread, NULL, run, &workers[*n]), 0);
	(*n)++;
}

static inline void
join_workers(worker *workers, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		pthread_join(workers[i].thread, NULL);
}

/* Checkpoints, one after another, until the world stops. */
static inline void *
checkpoint_thread(void *arg)
{
	worker *me = arg;
	fixture f = me->f;

	while (!atomic_load(&me->w->stop))
	{
		begin(&f, NV_REQ_CHECKPOINT);
		must(call(&f) == NV_OK);
		usleep(20000);
	}
	free(f.r);
	return NULL;
}

/* Each thread has rows of its own: in, found; out, not found; in again. */
static inline void *
churn_thread(void *arg)
{
	worker *me = arg;
	world *w = me->w;
	fixture f = me->f;
	uint64_t seed = nv_random_seed(me->number + 7);
	uint32_t rows = w->churn.rows / w->churn.threads;

	for (uint32_t i = 0; i < w->churn.changes; i++)
	{
		uint32_t e = w->churn.first + me->number +
					 (uint32_t) nv_random_below(&seed, rows) * w->churn.threads;
		uint32_t g = atomic_load(&w->generation[e]);

		if (g % 2 == 0)
			must(insert(&f, e, g + 1) == NV_OK);
		else
			must(delete (&f, e, 1, g) == NV_OK);
		atomic_store(&w->generation[e], g + 1);
		if (i % 4 == 0)
			must(finds_itself(&f, e, g % 2 == 0 ? g + 1 : g, w->churn.list) ==
				 (g % 2 == 0));
	}
	free(f.r);
	return NULL;
}

/*
 * Searches for each row that ever came, from first on: how many are in, and
 * how many were not found, or found though they are out.
 */
static inline uint32_t
count_live(const world *w, uint32_t first, uint32_t list, uint32_t *misses)
{
	uint32_t live = 0;

	*misses = 0;
	for (uint32_t e = first; e < w->f->n; e++)
	{
		uint32_t g = atomic_load(&w->generation[e]);

		live += g % 2;
		if (g > 0)
			*misses +=
				finds_itself(w->f, e, g % 2 == 1 ? g : g - 1, list) != g % 2;
	}
	return live;
}

#endif
