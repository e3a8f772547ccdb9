/*
 * local.c
 *		A port for programs without PostgreSQL: requests of this process.
 */

#include "navis/engine.h"
#include "util.h"

#define LOCAL_QUEUE 4096 /* requests submitted and not yet taken, at most */

struct nv_local
{
	nv_port port;
	pthread_mutex_t lock;
	pthread_cond_t submitted; /* wakes the engine */
	pthread_cond_t answered;  /* wakes owners */
	nv_request *queue[LOCAL_QUEUE];
	uint32_t head, n;
	uint32_t ticket;
};

static bool
change_state(nv_request *r, uint32_t from, uint32_t to)
{
	return atomic_compare_exchange_strong(&r->state, &from, to);
}

static nv_request *
local_take(void *arg)
{
	nv_local *l = arg;
	nv_request *r = NULL;

	pthread_mutex_lock(&l->lock);
	while (l->n > 0 && r == NULL)
	{
		r = l->queue[l->head];
		l->head = (l->head + 1) % LOCAL_QUEUE;
		l->n--;
		if (!change_state(r, NV_SUBMITTED, NV_RUNNING))
		{
			/* abandoned before anybody looked at it */
			change_state(r, NV_ABANDONED, NV_IDLE);
			pthread_cond_broadcast(&l->answered);
			r = NULL;
		}
	}
	pthread_mutex_unlock(&l->lock);
	return r;
}

static void
local_finish(void *arg, nv_request *r)
{
	nv_local *l = arg;

	pthread_mutex_lock(&l->lock);
	if (!change_state(r, NV_RUNNING, NV_DONE))
		change_state(r, NV_ABANDONED, NV_IDLE);
	pthread_cond_broadcast(&l->answered);
	pthread_mutex_unlock(&l->lock);
}

static uint32_t
local_ticket(void *arg)
{
	nv_local *l = arg;
	uint32_t ticket;

	pthread_mutex_lock(&l->lock);
	ticket = l->ticket;
	pthread_mutex_unlock(&l->lock);
	return ticket;
}

static void
local_sleep(void *arg, uint32_t ticket, uint32_t timeout_us)
{
	nv_local *l = arg;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_us / 1000000;
	until.tv_nsec += (long) (timeout_us % 1000000) * 1000;
	if (until.tv_nsec >= 1000000000)
	{
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&l->lock);
	if (l->ticket == ticket)
		pthread_cond_timedwait(&l->submitted, &l->lock, &until);
	pthread_mutex_unlock(&l->lock);
}

static void
local_kick(void *arg)
{
	nv_local *l = arg;

	pthread_mutex_lock(&l->lock);
	l->ticket++;
	pthread_cond_broadcast(&l->submitted);
	pthread_mutex_unlock(&l->lock);
}

/* There is no WAL here. */
static nv_status
local_flush(void *arg, uint64_t lsn, nv_error *err)
{
	return NV_OK;
}

nv_local *
nv_local_create(void)
{
	nv_local *l = nv_alloc(sizeof(*l));

	if (l == NULL)
		return NULL;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->submitted, NULL);
	pthread_cond_init(&l->answered, NULL);
	l->port = (nv_port){
		.arg = l,
		.take = local_take,
		.finish = local_finish,
		.ticket = local_ticket,
		.sleep = local_sleep,
		.kick = local_kick,
		.flush_wal = local_flush,
	};
	return l;
}

void
nv_local_free(nv_local *l)
{
	if (l == NULL)
		return;
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->submitted);
	pthread_cond_destroy(&l->answered);
	free(l);
}

const nv_port *
nv_local_port(nv_local *l)
{
	return &l->port;
}

void
nv_local_submit(nv_local *l, nv_request *r)
{
	pthread_mutex_lock(&l->lock);
	while (l->n == LOCAL_QUEUE)
		pthread_cond_wait(&l->answered, &l->lock);
	atomic_store(&r->state, NV_SUBMITTED);
	l->queue[(l->head + l->n) % LOCAL_QUEUE] = r;
	l->n++;
	l->ticket++;
	pthread_cond_signal(&l->submitted);
	pthread_mutex_unlock(&l->lock);
}

nv_status
nv_local_wait(nv_local *l, nv_request *r)
{
	pthread_mutex_lock(&l->lock);
	while (atomic_load(&r->state) != NV_DONE &&
		   atomic_load(&r->state) != NV_IDLE)
		pthread_cond_wait(&l->answered, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return change_state(r, NV_DONE, NV_IDLE) ? (nv_status) r->status
											 : NV_ECANCELLED;
}

nv_status
nv_local_call(nv_local *l, nv_request *r)
{
	nv_local_submit(l, r);
	return nv_local_wait(l, r);
}

void
nv_local_abandon(nv_local *l, nv_request *r)
{
	if (!change_state(r, NV_SUBMITTED, NV_ABANDONED))
		change_state(r, NV_RUNNING, NV_ABANDONED);
	local_kick(l);
}
