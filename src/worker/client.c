/*
 * client.c
 *		The backend's side of a request: claim the slot, submit, wait, withdraw.
 *
 * Every process owns the slot of its PGPROC.  A request left behind by an
 * error or by the death of the process is withdrawn; the next request in the
 * slot, of whoever owns it then, waits until the engine has let go of it.
 *
 * An INSERT may be posted instead: nobody waits for its answer and nobody takes
 * it back.  The next request in the slot waits for it, and before a request
 * that must know of every row (a search above all) its owner waits for those
 * that were posted from all slots.
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/lsyscache.h"

#include "client.h"
#include "worker_compat.h"
#include "slots.h"
#include "worker.h"

#define WAIT_MS 1000    /* the incarnation is looked at that often at least */
#define PROGRESS_MS 100 /* between calls of a progress function */
#define SPIN_US 10      /* before the backend sleeps */
#define NAP_US 50       /* between looks at what another one has posted */
#define NAPS 20         /* before these looks become one in NAP_MS */
#define NAP_MS 1

/* This process's slot and owner number; NULL before the first request. */
static NavisSlot *my_slot = NULL;
static uint32 my_number;
static uint64 my_owner;
static bool may_spin;

/* --- state --- */

NavisEngineStatus
navis_engine_status(void)
{
	if (navis_control == NULL)
		return NAVIS_ENGINE_NOT_PRELOADED;
	switch ((NavisWorkerState) atomic_load(&navis_control->worker_state))
	{
		case NAVIS_WORKER_STARTING:
			return NAVIS_ENGINE_STARTING;
		case NAVIS_WORKER_RUNNING:
			return NAVIS_ENGINE_RUNNING;
		case NAVIS_WORKER_STOPPED:
			return NAVIS_ENGINE_STOPPED;
		case NAVIS_WORKER_NONE:
		case NAVIS_WORKER_FAILED:
			break;
	}
	return NAVIS_ENGINE_NO_WORKER;
}

uint64
navis_engine_incarnation(void)
{
	if (navis_control == NULL)
		return 0;
	return atomic_load(&navis_control->incarnation);
}

void
navis_engine_process(int *pid, TimestampTz *started)
{
	*pid = 0;
	*started = 0;
	if (navis_control == NULL)
		return;
	*pid = (int) atomic_load(&navis_control->worker_pid);
	if (atomic_load(&navis_control->incarnation) != 0)
		*started = (TimestampTz) atomic_load(&navis_control->engine_started);
}

void
navis_make_key(nv_key *key, const uint8 *identity)
{
	memset(key, 0, sizeof(*key));
	key->system_id = GetSystemIdentifier();
	key->database = MyDatabaseId;
	memcpy(key->identity, identity, sizeof(key->identity));
}

/* --- the slot --- */

/*
 * Ends this process's claim on a request, whatever its state: what nobody
 * took is taken back, what runs is left to the engine, which sees it between
 * two steps.
 */
static void
withdraw(nv_request *request)
{
	uint32 state = NV_SUBMITTED;

	if (atomic_compare_exchange_strong(&request->state, &state, NV_IDLE))
		return;
	state = NV_RUNNING;
	if (atomic_compare_exchange_strong(&request->state, &state, NV_ABANDONED))
	{
		navis_wake_engine_all(navis_control);
		return;
	}
	if (state == NV_DONE)
		atomic_store(&request->state, NV_IDLE);
}

/* A posted INSERT that the engine has not answered. */
static bool
post_under_way(const nv_request *request)
{
	uint32 state = atomic_load(&request->state);

	return (state == NV_SUBMITTED || state == NV_RUNNING) &&
		   navis_is_posted(request);
}

/* Whatever the engine has noted of places in insert queues is void. */
static void
clear_places(nv_request *request)
{
	for (int i = 0; i < NV_REQUEST_PLACES; i++)
		atomic_store(&request->place[i], NV_PLACE_NONE);
}

static void
leave_slot(int code, Datum arg)
{
	if (my_slot == NULL)
		return;
	clear_places(&my_slot->request);
	/* The row of one that was posted may be committed. */
	if (!post_under_way(&my_slot->request))
		withdraw(&my_slot->request);
}

/* First request of this process.  An owner number is never given twice. */
static void
enter_slot(void)
{
	my_number = (uint32) (MyProc - ProcGlobal->allProcs);
	if (my_number >= navis_control->nslots)
		elog(ERROR, "navis has no slot for process number %u", my_number);
	my_owner = atomic_fetch_add(&navis_control->last_owner, 1) + 1;
	may_spin = sysconf(_SC_NPROCESSORS_ONLN) > 1;
	before_shmem_exit(leave_slot, 0);
	my_slot = &navis_control->slots[my_number];
	clear_places(&my_slot->request);
	atomic_store(&my_slot->latch, MyLatch);
}

/* What pg_stat_activity calls the waits of this file. */
static uint32
wait_event(void)
{
	static uint32 event = 0;

	return navis_wait_event("NavisEngine", &event);
}

/*
 * LWLocks, buffer content locks among them, hold off interrupts: with them
 * held nobody may wait for the engine.
 */
static void
check_may_wait(void)
{
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	if (InterruptHoldoffCount != 0)
		elog(ERROR, "navis engine called while interrupts are held off");
}

/*
 * Sleeps until the latch is set, at most timeout_ms.  False: the postmaster is
 * dead (only with interruptible = false; else the process ends).
 */
static bool
wait_for_latch(long timeout_ms, bool interruptible)
{
	int rc;

	rc = WaitLatch(
		MyLatch,
		WL_LATCH_SET | WL_TIMEOUT |
			(interruptible ? WL_EXIT_ON_PM_DEATH : WL_POSTMASTER_DEATH),
		timeout_ms, wait_event());
	if (rc & WL_LATCH_SET)
		ResetLatch(MyLatch);
	if (interruptible)
		CHECK_FOR_INTERRUPTS();
	return (rc & WL_POSTMASTER_DEATH) == 0;
}

void
navis_nap(long ms)
{
	uint64 now = navis_now_us(), end = now + (uint64) ms * 1000;

	/* The latch may be set by answers that nobody waits for any more. */
	for (; now < end; now = navis_now_us())
		(void) wait_for_latch((long) ((end - now) / 1000 + 1), true);
}

/*
 * Waits until the slot is free.  False: the engine went away, or (with a
 * timeout, which means without serving interrupts) it takes too long.
 */
static bool
wait_until_free(nv_request *request, int timeout_ms)
{
	bool interruptible = timeout_ms < 0;
	uint64 end = navis_now_us() + (uint64) Max(timeout_ms, 0) * 1000;
	bool ok = true;

	while (ok && atomic_load(&request->state) != NV_IDLE)
	{
		uint64 now = navis_now_us();
		long ms = WAIT_MS;

		if (!interruptible)
			ms = now < end ? (long) ((end - now) / 1000 + 1) : 0;
		ok = ms > 0 && navis_engine_incarnation() != 0 &&
			 wait_for_latch(Min(ms, WAIT_MS), interruptible);
	}
	if (!interruptible)
		SetLatch(MyLatch); /* others may have waited for what we consumed */
	return ok;
}

/* --- waiting --- */

static bool
is_done(const nv_request *request)
{
	return atomic_load(&request->state) == NV_DONE;
}

static bool
no_post_under_way(const nv_request *request)
{
	return !post_under_way(request);
}

/* A fast answer is cheaper to wait for than to be woken for. */
static bool
spin_until(bool (*over)(const nv_request *), const nv_request *request)
{
	uint64 end;

	if (!may_spin)
		return over(request);
	end = navis_now_us() + SPIN_US;
	do
	{
		for (int i = 0; i < 32; i++)
		{
			if (over(request))
				return true;
			navis_relax();
		}
	} while (navis_now_us() < end);
	return false;
}

/* --- posted INSERTs --- */

/*
 * What is known of an index whose rows this process inserts: which word of its
 * slot is for places in its queue, and what became of the last row.
 */
typedef struct PlaceWord
{
	nv_key key;
	uint64 incarnation; /* 0: nothing yet */
	uint64 used;        /* a clock of uses */
	bool accepted;      /* the engine took the last row: the next is posted */
} PlaceWord;

static PlaceWord place_words[NV_REQUEST_PLACES];

/*
 * The engine this request was given to is gone or leaving.  Checked after the
 * submission, so either the worker's sweep has seen the request or we see
 * that the incarnation changed.
 */
static bool
engine_gone(nv_request *request)
{
	return navis_engine_incarnation() != request->engine;
}

/*
 * Waits until the INSERT posted from this slot, by whichever process, is
 * answered, or its engine is gone: the next one reads the row's journal entry.
 * False: it takes too long.
 */
static bool
await_own_post(nv_request *request, int timeout_ms)
{
	bool interruptible = timeout_ms < 0;
	uint64 end = navis_now_us() + (uint64) Max(timeout_ms, 0) * 1000;
	bool ok = true;

	if (spin_until(no_post_under_way, request))
		return true;
	/* Before another look at the state: see end_request. */
	atomic_store(&my_slot->awaited, 1);
	while (ok && post_under_way(request) && !engine_gone(request))
	{
		uint64 now = navis_now_us();
		long ms = WAIT_MS;

		if (!interruptible)
			ms = now < end ? (long) ((end - now) / 1000 + 1) : 0;
		ok = ms > 0 && wait_for_latch(Min(ms, WAIT_MS), interruptible);
	}
	if (!interruptible)
		SetLatch(MyLatch); /* others may have waited for what we consumed */
	return ok;
}

/* What became of the row that this process posted last. */
static void
note_post(const nv_request *request)
{
	if (atomic_load(&request->state) == NV_DONE && navis_is_posted(request) &&
		request->owner == my_owner && request->status != NV_OK)
		place_words[request->u.insert.place].accepted = false;
}

/*
 * Between two looks at a slot whose engine thread will not wake us.  Usually it
 * is at work and needs microseconds; longer sleeps see the postmaster's end.
 */
static void
nap(uint32 naps)
{
	CHECK_FOR_INTERRUPTS();
	if (naps >= NAPS)
	{
		(void) wait_for_latch(NAP_MS, true);
		return;
	}
	pgstat_report_wait_start(wait_event());
	pg_usleep(NAP_US);
	pgstat_report_wait_end();
}

/* Until the INSERT posted from a slot at this moment is answered. */
static void
await_post(uint32 number)
{
	const NavisSlot *slot = &navis_control->slots[number];
	uint64 post = atomic_load(&slot->posts);
	uint64 mask = UINT64_C(1) << (number % 64);
	uint64 spin_end = navis_now_us() + SPIN_US;
	uint32 naps = 0;

	while ((atomic_load(&navis_control->posted[number / 64]) & mask) != 0 &&
		   atomic_load(&slot->posts) == post &&
		   post_under_way(&slot->request) &&
		   slot->request.engine == navis_engine_incarnation())
	{
		if (may_spin && navis_now_us() < spin_end)
			navis_relax();
		else
			nap(naps++);
	}
}

/*
 * Rows of transactions that we see were posted before we saw them: what is
 * asked from here on is asked of an engine that has them.
 */
static void
await_posts(void)
{
	for (uint32 w = 0; w < navis_control->nwords; w++)
	{
		uint64 bits = atomic_load(&navis_control->posted[w]);

		for (; bits != 0; bits &= bits - 1)
			await_post(w * 64 + (uint32) __builtin_ctzll(bits));
	}
}

/* Requests that may be overtaken by rows, or overtake them. */
static bool
needs_all_rows(nv_request_kind kind)
{
	return kind != NV_REQ_INSERT && kind != NV_REQ_RESERVE &&
		   kind != NV_REQ_NEXT;
}

/* --- a request --- */

static nv_request *
begin(nv_request_kind kind, const nv_key *key, int timeout_ms)
{
	nv_request *request;
	uint64 incarnation;

	if (MyProc == NULL || navis_engine_incarnation() == 0)
		return NULL;
	if (my_slot == NULL)
		enter_slot();
	request = &my_slot->request;
	if (timeout_ms < 0)
		check_may_wait();
	if (!await_own_post(request, timeout_ms))
		return NULL;
	note_post(request);
	if (timeout_ms < 0 && needs_all_rows(kind))
		await_posts();
	withdraw(request);
	if (atomic_load(&request->state) != NV_IDLE &&
		!wait_until_free(request, timeout_ms))
		return NULL;
	incarnation = navis_engine_incarnation();
	if (incarnation == 0)
		return NULL;
	request->kind = kind;
	request->status = NV_OK;
	request->sys_errno = 0;
	request->engine = incarnation;
	request->owner = my_owner;
	request->key = *key;
	atomic_store(&request->phase, 0);
	atomic_store(&request->done, 0);
	atomic_store(&request->total, 0);
	memset(&request->u, 0, sizeof(request->u));
	request->title[0] = '\0';
	request->detail[0] = '\0';
	return request;
}

nv_request *
navis_request_begin(nv_request_kind kind, const nv_key *key)
{
	return begin(kind, key, -1);
}

nv_request *
navis_request_begin_noerror(nv_request_kind kind, const nv_key *key,
							int timeout_ms)
{
	return begin(kind, key, Max(timeout_ms, 0));
}

void
navis_request_title(nv_request *request, Oid index_oid)
{
	char *index = get_rel_name(index_oid);
	char *database = get_database_name(MyDatabaseId);

	if (index != NULL && database != NULL)
		snprintf(request->title, sizeof(request->title),
				 "index \"%s\" of database \"%s\"", index, database);
}

/* --- submit and wait --- */

static void
submit(nv_request *request)
{
	uint64 mask = UINT64_C(1) << (my_number % 64);

	Assert(request == &my_slot->request);
	atomic_store(&request->state, NV_SUBMITTED);
	/* The state before the bit: see claim_request. */
	atomic_fetch_or(&navis_control->submitted[my_number / 64], mask);
	navis_wake_engine(navis_control);
}

static nv_status
answer(nv_request *request)
{
	nv_status status;

	if (!is_done(request))
	{
		withdraw(request);
		return NV_EUNUSABLE;
	}
	status = (nv_status) request->status;
	/* A stopping engine cancels what runs. */
	if (status == NV_ECANCELLED && engine_gone(request))
		status = NV_EUNUSABLE;
	return status;
}

static void
wait_for_answer(nv_request *request,
				void (*progress)(nv_request *request, void *arg), void *arg)
{
	uint64 last = navis_now_us();

	while (!is_done(request) && !engine_gone(request))
	{
		wait_for_latch(progress ? PROGRESS_MS : WAIT_MS, true);
		if (progress && navis_now_us() - last >= PROGRESS_MS * 1000)
		{
			progress(request, arg);
			last = navis_now_us();
		}
	}
}

nv_status
navis_request_call(nv_request *request,
				   void (*progress)(nv_request *request, void *arg), void *arg)
{
	check_may_wait();
	submit(request);
	if (spin_until(is_done, request))
		return answer(request);
	PG_TRY();
	{
		wait_for_answer(request, progress, arg);
	}
	PG_CATCH();
	{
		withdraw(request);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return answer(request);
}

void
navis_request_post(nv_request *request)
{
	Assert(request->kind == NV_REQ_INSERT);
	request->u.insert.posted = 1;
	atomic_fetch_add(&my_slot->posts, 1);
	atomic_store(&my_slot->awaited, 0);
	/* Who sees our transaction sees the bit, or an answered request. */
	atomic_fetch_or(&navis_control->posted[my_number / 64],
					UINT64_C(1) << (my_number % 64));
	submit(request);
}

nv_status
navis_request_call_noerror(nv_request *request, int timeout_ms)
{
	uint64 end = navis_now_us() + (uint64) Max(timeout_ms, 0) * 1000;
	bool alive = true;
	uint64 now;

	submit(request);
	if (spin_until(is_done, request))
		return answer(request);
	while (!is_done(request) && !engine_gone(request) && alive &&
		   (now = navis_now_us()) < end)
		alive = wait_for_latch(Min((end - now) / 1000 + 1, WAIT_MS), false);
	SetLatch(MyLatch); /* others may have waited for what we consumed */
	if (is_done(request) || engine_gone(request) || !alive)
		return answer(request);
	withdraw(request);
	return NV_ECANCELLED;
}

/* --- places in insert queues --- */

/* The word of this index and engine, else the one used longest ago. */
static uint32
word_for(const nv_key *key, uint64 incarnation, bool *known)
{
	uint32 oldest = 0;

	for (uint32 i = 0; i < NV_REQUEST_PLACES; i++)
	{
		*known = place_words[i].incarnation == incarnation &&
				 memcmp(&place_words[i].key, key, sizeof(nv_key)) == 0;
		if (*known)
			return i;
		if (place_words[i].used < place_words[oldest].used)
			oldest = i;
	}
	return oldest;
}

/* Has the engine offered one?  No request is needed then. */
static bool
take_offered(NavisPlace *place)
{
	_Atomic uint64 *word = &my_slot->request.place[place->word];
	uint64 offered = atomic_load(word);

	if ((offered & NV_PLACE_STATE) != NV_PLACE_OFFERED)
		return false;
	place->taken = (offered & ~(uint64) NV_PLACE_STATE) | NV_PLACE_TAKEN;
	return atomic_compare_exchange_strong(word, &offered, place->taken);
}

static nv_status
ask_for_place(nv_request *request, NavisPlace *place)
{
	_Atomic uint64 *word = &request->place[place->word];
	nv_status status;

	place->taken = NV_PLACE_NONE;
	request->u.reserve.place = place->word;
	atomic_store(word, NV_PLACE_WANTED);
	PG_TRY();
	{
		status = navis_request_call(request, NULL, NULL);
	}
	PG_CATCH();
	{
		atomic_store(word, NV_PLACE_NONE);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (status == NV_OK && request->u.reserve.granted)
		place->taken = atomic_load(word);
	else
		atomic_store(word, NV_PLACE_NONE);
	return status;
}

nv_status
navis_place_reserve(const nv_key *key, NavisPlace *place, nv_request **request)
{
	static uint64 clock = 0;
	uint64 incarnation = navis_engine_incarnation();
	PlaceWord *about;
	bool known;

	*request = NULL;
	place->word = 0;
	place->taken = NV_PLACE_NONE;
	if (incarnation == 0 || MyProc == NULL)
		return NV_OK;
	place->word = word_for(key, incarnation, &known);
	about = &place_words[place->word];
	about->used = ++clock;
	/* The next place is offered with the answer of the last row. */
	if (my_slot != NULL)
	{
		check_may_wait();
		(void) await_own_post(&my_slot->request, -1);
		note_post(&my_slot->request);
	}
	if (known && my_slot != NULL && take_offered(place))
		return NV_OK;
	place->taken = NV_PLACE_NONE;
	*request = navis_request_begin(NV_REQ_RESERVE, key);
	if (*request == NULL)
		return NV_OK;
	if (!known || about->incarnation != (*request)->engine)
		about->accepted = false;
	about->key = *key;
	about->incarnation = (*request)->engine;
	return ask_for_place(*request, place);
}

bool
navis_place_accepted(const NavisPlace *place, const nv_request *request)
{
	const PlaceWord *about = &place_words[place->word];

	return about->accepted && about->incarnation == request->engine &&
		   memcmp(&about->key, &request->key, sizeof(nv_key)) == 0;
}

void
navis_place_answered(const NavisPlace *place, const nv_request *request,
					 nv_status status)
{
	PlaceWord *about = &place_words[place->word];

	if (about->incarnation == request->engine &&
		memcmp(&about->key, &request->key, sizeof(nv_key)) == 0)
		about->accepted = status == NV_OK;
}

void
navis_place_drop(const NavisPlace *place)
{
	uint64 taken = place->taken;

	if (taken != NV_PLACE_NONE)
		atomic_compare_exchange_strong(&my_slot->request.place[place->word],
									   &taken, NV_PLACE_NONE);
}

/* --- without waiting --- */

void
navis_cursor_release(const nv_key *key, uint64 cursor)
{
	uint64 mask = UINT64_C(1) << (my_number % 64);

	/* A cursor needs a request, so there is a slot if there is a cursor. */
	if (cursor == 0 || my_slot == NULL)
		return;
	for (int i = 0; i < NAVIS_SLOT_RELEASES; i++)
	{
		NavisRelease *release = &my_slot->releases[i];

		if (atomic_load(&release->state) != NAVIS_RELEASE_EMPTY)
			continue;
		release->cursor = cursor;
		release->engine = my_slot->request.engine;
		release->owner = my_owner;
		release->key = *key;
		atomic_store(&release->state, NAVIS_RELEASE_FULL);
		atomic_fetch_or(&navis_control->released[my_number / 64], mask);
		return; /* no wake-up: it can wait for the engine's next request */
	}
	/* No room: the engine drops it when it was idle for long. */
}

void
navis_helper_wanted(Oid database)
{
	Latch *latch;

	if (navis_control == NULL || !OidIsValid(database))
		return;
	for (int i = 0; i < NAVIS_WANTED; i++)
	{
		uint32 found = 0;

		if (atomic_compare_exchange_strong(&navis_control->wanted[i], &found,
										   database))
			break;
		if (found == database)
			return; /* the worker knows */
	}
	/* No room: whoever needs it asks again. */
	latch = atomic_load(&navis_control->worker_latch);
	if (latch != NULL)
		SetLatch(latch);
}

/* --- errors --- */

static int
sqlstate(nv_status status)
{
	switch (status)
	{
		case NV_ENOMEM:
			return ERRCODE_OUT_OF_MEMORY;
		case NV_EIO:
			return ERRCODE_IO_ERROR;
		case NV_ENOSPC:
			return ERRCODE_DISK_FULL;
		case NV_ECORRUPT:
			return ERRCODE_DATA_CORRUPTED;
		case NV_EVERSION:
		case NV_EFOREIGN:
		case NV_EUNUSABLE:
			return ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
		case NV_ENOENT:
			return ERRCODE_UNDEFINED_OBJECT;
		case NV_EEXIST:
			return ERRCODE_DUPLICATE_OBJECT;
		case NV_EBUSY:
			return ERRCODE_OBJECT_IN_USE;
		case NV_ECANCELLED:
			return ERRCODE_QUERY_CANCELED;
		case NV_EINVAL:
			return ERRCODE_INVALID_PARAMETER_VALUE;
		case NV_ELIMIT:
			return ERRCODE_PROGRAM_LIMIT_EXCEEDED;
		case NV_OK:
			break;
	}
	return ERRCODE_INTERNAL_ERROR;
}

void
navis_request_error(nv_request *request, nv_status status, const char *what)
{
	/* Only an answered request's text is ours to read. */
	const char *detail = nv_status_name(status);

	if (status == NV_EUNUSABLE)
		detail = "the navis engine went away or cannot use the index";
	if (request != NULL && is_done(request) && request->detail[0] != '\0')
		detail = request->detail;
	if (request != NULL && is_done(request) && request->sys_errno != 0)
		ereport(ERROR,
				(errcode(sqlstate(status)), errmsg("%s: %s", what, detail),
				 errdetail("The operating system reported: %s.",
						   strerror(request->sys_errno))));
	ereport(ERROR, (errcode(sqlstate(status)), errmsg("%s: %s", what, detail)));
}
