/*
 * port.c
 *		nv_port over the request slots in shared memory.
 *
 * Runs on engine threads: C11 atomics, futex, pthread, and SetLatch on latches
 * of other processes.  See README.md in this folder.
 */
#include "port.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "settings.h"

#define LOG_LINES 256        /* lines waiting for the main thread */
#define CLOSE_REQUESTS 4     /* released cursors in the engine at a time */
#define SPIN_US 20           /* before an engine thread sleeps */
#define MAX_SLEEP_US 1000000 /* released cursors are seen that soon */

typedef struct LogLine
{
	nv_log_level level;
	char text[NAVIS_LOG_LINE];
} LogLine;

/*
 * Waits for WAL.  An attempt begun after a request entered its LSN covers it;
 * so a request that is not satisfied by then has failed.
 */
typedef struct Mailbox
{
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool closed;
	XLogRecPtr wanted;  /* highest LSN waited for; 0: nobody waits */
	XLogRecPtr flushed; /* durable up to here */
	uint64 begun, done; /* attempts */
} Mailbox;

typedef struct Port
{
	nv_port functions;
	NavisControl *control;
	_Atomic uint64 incarnation; /* requests of others are refused; 0: closed */
	_Atomic uint32 next_slot;   /* where take() starts looking */
	int event;
	bool spin; /* more than one processor */

	/* CLOSE requests made from released cursors */
	nv_request *close_requests;
	_Atomic uint32 close_busy; /* bit per request */

	_Atomic bool log_debug; /* somebody wants debug lines */
	pthread_mutex_t log_lock;
	LogLine lines[LOG_LINES];
	uint32 first_line, n_lines;
	uint64 lost_lines;

	Mailbox mailbox;
} Port;

static Port *port;

/* --- finding requests --- */

static void
wake_owner(NavisSlot *slot)
{
	Latch *latch = atomic_load(&slot->latch);

	if (latch != NULL)
		SetLatch(latch);
}

/*
 * The row of a posted INSERT is searched from here on, or its index is not.
 * Before the request is DONE: then its owner may post another.
 */
static void
end_post(NavisSlot *slot)
{
	uint32 number = (uint32) (slot - navis_control->slots);

	atomic_fetch_and(&navis_control->posted[number / 64],
					 ~(UINT64_C(1) << (number % 64)));
}

/* RUNNING -> DONE, or ABANDONED -> IDLE; the owner waits for either. */
static void
end_request(NavisSlot *slot)
{
	uint32 state = NV_RUNNING;
	bool posted = navis_is_posted(&slot->request);

	if (posted)
		end_post(slot);
	if (!atomic_compare_exchange_strong(&slot->request.state, &state, NV_DONE))
	{
		state = NV_ABANDONED;
		atomic_compare_exchange_strong(&slot->request.state, &state, NV_IDLE);
	}
	/* Who has posted waits only when it needs the slot again. */
	if (!posted || atomic_load(&slot->awaited) != 0)
		wake_owner(slot);
}

static void
refuse_request(NavisSlot *slot)
{
	slot->request.status = NV_EUNUSABLE;
	strcpy(slot->request.detail, "the engine was restarted or is stopping");
	end_request(slot);
}

/* The bit is set after the state, so a cleared bit hides no request. */
static nv_request *
claim_request(Port *p, uint32 number, uint64 mask)
{
	NavisSlot *slot = &p->control->slots[number];
	uint32 state = NV_SUBMITTED;

	if (!(atomic_fetch_and(&p->control->submitted[number / 64], ~mask) & mask))
		return NULL;
	if (!atomic_compare_exchange_strong(&slot->request.state, &state,
										NV_RUNNING))
		return NULL; /* taken back by its owner, or an old bit */
	if (slot->request.engine != atomic_load(&p->incarnation))
	{
		refuse_request(slot);
		return NULL;
	}
	atomic_store_explicit(&p->next_slot, number + 1, memory_order_relaxed);
	return &slot->request;
}

/*
 * A cursor must not be closed while an abandoned request may still use it: the
 * bit stays until the slot's request has ended (finish() looks again).
 */
static bool
slot_is_running(const NavisSlot *slot)
{
	uint32 state = atomic_load(&slot->request.state);

	return state == NV_RUNNING || state == NV_ABANDONED;
}

static nv_request *
claim_close_request(Port *p)
{
	for (uint32 i = 0; i < CLOSE_REQUESTS; i++)
	{
		uint32 bit = 1u << i;

		if (!(atomic_fetch_or(&p->close_busy, bit) & bit))
			return &p->close_requests[i];
	}
	return NULL;
}

static bool
is_close_request(const Port *p, const nv_request *request)
{
	return request >= p->close_requests &&
		   request < p->close_requests + CLOSE_REQUESTS;
}

static void
end_close_request(Port *p, nv_request *request)
{
	uint32 bit = 1u << (uint32) (request - p->close_requests);

	atomic_store(&request->state, NV_IDLE);
	atomic_fetch_and(&p->close_busy, ~bit);
}

/* Copies one released cursor of this engine out of a slot. */
static bool
take_release(Port *p, NavisSlot *slot, nv_request *request)
{
	for (int i = 0; i < NAVIS_SLOT_RELEASES; i++)
	{
		NavisRelease *release = &slot->releases[i];
		uint32 state = NAVIS_RELEASE_FULL;
		bool ours;

		if (atomic_load(&release->state) != NAVIS_RELEASE_FULL ||
			!atomic_compare_exchange_strong(&release->state, &state,
											NAVIS_RELEASE_TAKEN))
			continue;
		ours = release->engine == atomic_load(&p->incarnation);
		if (ours)
		{
			memset(request, 0, offsetof(nv_request, data));
			request->kind = NV_REQ_CLOSE;
			request->engine = release->engine;
			request->owner = release->owner;
			request->key = release->key;
			request->u.search.cursor = release->cursor;
		}
		atomic_store(&release->state, NAVIS_RELEASE_EMPTY);
		if (ours)
			return true;
	}
	return false;
}

/* One released cursor of a slot as a CLOSE request. */
static nv_request *
claim_release(Port *p, uint32 number, uint64 mask)
{
	NavisSlot *slot = &p->control->slots[number];
	_Atomic uint64 *word = &p->control->released[number / 64];
	nv_request *request;

	if (slot_is_running(slot) || (request = claim_close_request(p)) == NULL)
		return NULL;
	if ((atomic_fetch_and(word, ~mask) & mask) &&
		take_release(p, slot, request))
	{
		atomic_fetch_or(word, mask); /* there may be more */
		atomic_store(&request->state, NV_RUNNING);
		return request;
	}
	end_close_request(p, request);
	return NULL;
}

/*
 * Walks the set bits of a bitmap once, beginning behind the slot served last so
 * that low slots do not starve high ones.
 */
static nv_request *
walk(Port *p, _Atomic uint64 *bitmap,
	 nv_request *(*claim)(Port *p, uint32 number, uint64 mask))
{
	uint32 nwords = p->control->nwords;
	uint32 start = atomic_load_explicit(&p->next_slot, memory_order_relaxed) %
				   (nwords * 64);
	uint64 below = (UINT64_C(1) << (start % 64)) - 1;

	for (uint32 i = 0; i <= nwords; i++)
	{
		uint32 w = (start / 64 + i) % nwords;
		uint64 bits = atomic_load(&bitmap[w]);

		if (i == 0)
			bits &= ~below;
		else if (i == nwords)
			bits &= below;
		while (bits != 0)
		{
			uint64 mask = bits & -bits;
			nv_request *request =
				claim(p, w * 64 + (uint32) __builtin_ctzll(bits), mask);

			if (request != NULL)
				return request;
			bits &= ~mask;
		}
	}
	return NULL;
}

static nv_request *
port_take(void *arg)
{
	Port *p = arg;
	nv_request *request;

	if (atomic_load(&p->incarnation) == 0)
		return NULL;
	/* Cursors first: closing is short, and each had a request before it. */
	request = walk(p, p->control->released, claim_release);
	if (request == NULL)
		request = walk(p, p->control->submitted, claim_request);
	return request;
}

static void
port_finish(void *arg, nv_request *request)
{
	Port *p = arg;
	NavisSlot *slot = (NavisSlot *) request;
	uint32 number;

	if (is_close_request(p, request))
	{
		end_close_request(p, request);
		return;
	}
	number = (uint32) (slot - p->control->slots);
	end_request(slot);
	if (atomic_load(&p->control->released[number / 64]) &
		(UINT64_C(1) << (number % 64)))
		navis_wake_engine(p->control);
}

/* --- sleeping --- */

static uint32_t
port_ticket(void *arg)
{
	Port *p = arg;

	return atomic_load(&p->control->word);
}

/* One thread at a time spins; true: the word changed or somebody claimed us. */
static bool
spin(NavisControl *control, uint32 ticket, uint32 limit_us)
{
	uint32 zero = 0;
	uint32 one = 1;
	uint64 end;

	if (!atomic_compare_exchange_strong(&control->spinner, &zero, 1))
		return false;
	end = navis_now_us() + limit_us;
	do
	{
		for (int i = 0; i < 32; i++)
		{
			if (atomic_load_explicit(&control->word, memory_order_relaxed) !=
				ticket)
			{
				atomic_compare_exchange_strong(&control->spinner, &one, 0);
				return true;
			}
			navis_relax();
		}
	} while (navis_now_us() < end);
	/* Claimed in the last moment: the word has changed. */
	return !atomic_compare_exchange_strong(&control->spinner, &one, 0);
}

static void
port_sleep(void *arg, uint32_t ticket, uint32_t timeout_us)
{
	Port *p = arg;
	NavisControl *control = p->control;
	uint32 us = Min(timeout_us, MAX_SLEEP_US);
	struct timespec timeout = {.tv_sec = us / 1000000,
							   .tv_nsec = (long) (us % 1000000) * 1000};

	if (atomic_load(&control->word) != ticket)
		return;
	if (p->spin && spin(control, ticket, Min(us, SPIN_US)))
		return;
	atomic_fetch_add(&control->sleepers, 1);
	syscall(SYS_futex, &control->word, FUTEX_WAIT, ticket, &timeout, NULL, 0);
	atomic_fetch_sub(&control->sleepers, 1);
}

static void
port_kick(void *arg)
{
	Port *p = arg;

	navis_wake_engine_all(p->control);
}

/* --- the main thread: attention, log, WAL --- */

void
navis_port_attention(void)
{
	uint64 one = 1;
	ssize_t written;

	/* Fails only when the counter is full, and then it is readable. */
	written = write(port->event, &one, sizeof(one));
	(void) written;
}

int
navis_port_event(void)
{
	return port->event;
}

void
navis_port_event_clear(void)
{
	uint64 count;
	ssize_t got;

	got = read(port->event, &count, sizeof(count));
	(void) got; /* not readable: nothing to clear */
}

void
navis_port_log(void *arg, nv_log_level level, const char *line)
{
	if (level == NV_LOG_DEBUG && !atomic_load(&port->log_debug))
		return;
	pthread_mutex_lock(&port->log_lock);
	if (port->n_lines < LOG_LINES)
	{
		uint32 at = (port->first_line + port->n_lines) % LOG_LINES;

		port->lines[at].level = level;
		snprintf(port->lines[at].text, NAVIS_LOG_LINE, "%s", line);
		port->n_lines++;
	}
	else
		port->lost_lines++;
	pthread_mutex_unlock(&port->log_lock);
	navis_port_attention();
}

void
navis_port_log_debug(bool wanted)
{
	atomic_store(&port->log_debug, wanted);
}

bool
navis_port_next_line(nv_log_level *level, char *line)
{
	bool found = true;

	pthread_mutex_lock(&port->log_lock);
	if (port->n_lines > 0)
	{
		*level = port->lines[port->first_line].level;
		strcpy(line, port->lines[port->first_line].text);
		port->first_line = (port->first_line + 1) % LOG_LINES;
		port->n_lines--;
	}
	else if (port->lost_lines > 0)
	{
		*level = NV_LOG_WARNING;
		snprintf(line, NAVIS_LOG_LINE,
				 UINT64_FORMAT " lines of the engine's log were lost",
				 port->lost_lines);
		port->lost_lines = 0;
	}
	else
		found = false;
	pthread_mutex_unlock(&port->log_lock);
	return found;
}

static nv_status
port_flush_wal(void *arg, uint64_t lsn, nv_error *err)
{
	Mailbox *box = &((Port *) arg)->mailbox;
	nv_status status = NV_OK;
	uint64 attempt;

	pthread_mutex_lock(&box->lock);
	attempt = box->begun + 1;
	if (lsn > box->flushed && !box->closed)
	{
		box->wanted = Max(box->wanted, lsn);
		navis_port_attention();
	}
	while (lsn > box->flushed && !box->closed && box->done < attempt)
		pthread_cond_wait(&box->changed, &box->lock);
	if (lsn > box->flushed)
	{
		if (box->closed)
			status = nv_fail(err, NV_ECANCELLED, 0, "the engine is stopping");
		else
			status =
				nv_fail(err, NV_EIO, 0,
						"could not flush WAL up to %X/%X, only to %X/%X",
						LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(box->flushed));
	}
	pthread_mutex_unlock(&box->lock);
	return status;
}

XLogRecPtr
navis_port_flush_wanted(void)
{
	Mailbox *box = &port->mailbox;
	XLogRecPtr wanted;

	pthread_mutex_lock(&box->lock);
	wanted = box->wanted;
	box->wanted = InvalidXLogRecPtr;
	if (wanted != InvalidXLogRecPtr)
		box->begun++;
	pthread_mutex_unlock(&box->lock);
	return wanted;
}

void
navis_port_flush_done(XLogRecPtr flushed)
{
	Mailbox *box = &port->mailbox;

	pthread_mutex_lock(&box->lock);
	box->flushed = Max(box->flushed, flushed);
	box->done = box->begun;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
}

/* --- life --- */

bool
navis_port_init(NavisControl *control)
{
	static const nv_port functions = {.take = port_take,
									  .finish = port_finish,
									  .ticket = port_ticket,
									  .sleep = port_sleep,
									  .kick = port_kick,
									  .flush_wal = port_flush_wal};
	Port *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return false;
	p->close_requests = aligned_alloc(64, CLOSE_REQUESTS * sizeof(nv_request));
	p->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (p->close_requests == NULL || p->event < 0)
		return false; /* the process ends with it */
	memset(p->close_requests, 0, CLOSE_REQUESTS * sizeof(nv_request));
	p->functions = functions;
	p->functions.arg = p;
	p->control = control;
	p->spin = sysconf(_SC_NPROCESSORS_ONLN) > 1;
	pthread_mutex_init(&p->log_lock, NULL);
	pthread_mutex_init(&p->mailbox.lock, NULL);
	pthread_cond_init(&p->mailbox.changed, NULL);
	port = p;
	return true;
}

const nv_port *
navis_port(void)
{
	return &port->functions;
}

void
navis_port_open(uint64 incarnation)
{
	/* No engine thread lives: counters of one that died are void. */
	atomic_store(&port->control->sleepers, 0);
	atomic_store(&port->control->spinner, 0);
	atomic_store(&port->close_busy, 0);
	pthread_mutex_lock(&port->mailbox.lock);
	port->mailbox.closed = false;
	port->mailbox.wanted = InvalidXLogRecPtr;
	pthread_mutex_unlock(&port->mailbox.lock);
	atomic_store(&port->incarnation, incarnation);
}

void
navis_port_close(bool mailbox)
{
	atomic_store(&port->incarnation, 0);
	if (!mailbox)
		return;
	pthread_mutex_lock(&port->mailbox.lock);
	port->mailbox.closed = true;
	pthread_cond_broadcast(&port->mailbox.changed);
	pthread_mutex_unlock(&port->mailbox.lock);
}

void
navis_port_fail_requests(NavisControl *control, bool running)
{
	for (uint32 i = 0; i < control->nslots; i++)
	{
		NavisSlot *slot = &control->slots[i];
		uint32 state = NV_SUBMITTED;

		if (atomic_compare_exchange_strong(&slot->request.state, &state,
										   NV_RUNNING))
			refuse_request(slot);
		else if (running && (state == NV_RUNNING || state == NV_ABANDONED))
			refuse_request(slot);
	}
}

void
navis_port_wake_owners(NavisControl *control)
{
	for (uint32 i = 0; i < control->nslots; i++)
	{
		if (atomic_load(&control->slots[i].request.state) != NV_IDLE)
			wake_owner(&control->slots[i]);
	}
}
