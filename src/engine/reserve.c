/*
 * reserve.c
 *		Places in the insert queue: writers ask for one before they touch the
 *		journal, and wait here while the queue or the disk is full.
 *
 * A place is the promise that one more row may become pending.  It counts like
 * a pending row until its INSERT comes (then the row itself counts), its owner
 * gives it up, or its index goes.  What its owner says about it stands in a
 * word of the owner's request: the owner may clear the word at any time and
 * tells nobody; who needs room looks at the words.  Places that were only
 * offered, with the answer of an INSERT, are taken back the same way.
 *
 * A request that finds no room is parked: it stays RUNNING and occupies no
 * thread.  Insert threads answer parked requests, in their order, when a row
 * has left the queue; the housekeeper looks every second for what nobody tells
 * (owners that went away, indexes that nobody links any more).  Files grow on a
 * thread that may block.
 *
 * Nobody waits where nobody links: see queue_limit.
 *
 * Locking order: growing locks of a store -> places.lock -> index->lock; other
 * store locks are leaves.
 *
 * Source: design.md, invariant 9; section 4, "Concurrency" 5; section 6,
 * "Insert".
 */
#include "engine_internal.h"

/* A place's number: a serial, above its position in the table. */
#define POSITION_BITS 20
#define POSITION_MASK ((UINT64_C(1) << POSITION_BITS) - 1)
#define NO_POSITION UINT32_MAX
/* Space on disk is made for so many rows at once, if there is as much. */
#define AHEAD_ROWS 256
/* A backlog is limited by navis.pending_memory alone. */
#define BACKLOG_ROWS (UINT64_MAX / 4)
/* Places are offered unasked while the queue is filled to less than half. */
#define OFFER_SHARE 2
/* One part in so many of pending_memory is for indexes with a graph. */
#define GRAPH_SHARE 8

/* What a row that wants to come finds. */
typedef enum verdict
{
	NOT_NEEDED, /* nobody links: it may come without a place */
	ROOM,
	NO_ROOM,  /* until rows are linked */
	NO_SPACE, /* the files must grow first */
	DISK_FULL
} verdict;

struct nv_parked
{
	nv_parked *next;
	nv_index *index; /* with a reference */
	nv_request *request;
	uint64_t since_ns;
	verdict found; /* when it leaves the list */
};

void
nv_places_init(nv_engine *engine)
{
	pthread_mutex_init(&engine->places.lock, NULL);
	engine->places.free = NO_POSITION;
	engine->places.last = &engine->places.first;
}

/* --- Is there room? --- */

/*
 * Rows of the index that may be pending; 0: nobody links them now, so that
 * waiting would not help.  index->lock is held.
 */
static uint64_t
queue_limit(const nv_index *index)
{
	const nv_engine *engine = index->engine;

	if (index->dropped || index->pending == NULL ||
		index->state != NV_INDEX_READY)
		return 0;
	if (atomic_load(&engine->inserters_running) == 0)
		return 0;
	/* Linking, or a build that runs or is about to, takes them together. */
	if (nv_index_wants_backlog(index) &&
		(index->body != NULL ||
		 atomic_load(&index->renewal) != NV_RENEWAL_BACKLOG ||
		 nv_index_builds_when_full(index)))
		return BACKLOG_ROWS;
	if (index->body == NULL || index->build != NULL)
		return 0;
	return engine->config.insert_queue_size;
}

/*
 * Rows that there must be space for in the files: more than the queue holds
 * wait for a build, which makes files of its own.
 */
static uint64_t
rows_for_files(const nv_index *index, uint64_t rows)
{
	return NV_MIN(rows, (uint64_t) index->engine->config.insert_queue_size);
}

/*
 * Rows without a graph may stay for good: a part is kept for those that leave,
 * or many small indexes would make all others useless.
 */
uint64_t
nv_index_pending_limit(const nv_index *index)
{
	uint64_t all = index->engine->config.pending_memory;

	return index->body != NULL ? all : all - all / GRAPH_SHARE;
}

/*
 * With a graph rows that are handed over again are linked.  Half of what the
 * other indexes leave must be free, so that it is not done for a few.  Without
 * one it is a matter of time (small.c).
 */
void
nv_index_leave_full(nv_index *index)
{
	uint64_t limit, others, own;

	if (nv_index_rested(index))
		index->state = NV_INDEX_OPENING;
	if (index->state != NV_INDEX_FULL || index->body == NULL)
		return;
	limit = nv_index_pending_limit(index);
	own = nv_pending_count(index->pending) *
		  nv_pending_row_bytes(index->params.dim);
	others = atomic_load(&index->engine->pending_bytes);
	others -= NV_MIN(own, others);
	if (others < limit && own < (limit - others) / 2)
		index->state = NV_INDEX_OPENING;
}

/* Pending rows and those that have places. */
static uint64_t
queued(const nv_index *index)
{
	return nv_pending_count(index->pending) + atomic_load(&index->reserved);
}

/* index->lock is held. */
static bool
memory_for_row(const nv_index *index)
{
	const nv_engine *engine = index->engine;
	uint64_t bytes = atomic_load(&engine->pending_bytes) +
					 atomic_load(&engine->places.bytes) +
					 nv_pending_row_bytes(index->params.dim);

	return bytes <= nv_index_pending_limit(index);
}

/* index->lock is held. */
static verdict
consider_queue(const nv_index *index, uint32_t share)
{
	uint64_t limit = queue_limit(index), rows;

	if (limit == 0)
		return NOT_NEEDED;
	rows = queued(index);
	if (rows * share >= limit)
		return NO_ROOM;
	if (memory_for_row(index))
		return ROOM;
	/* Others have it all: nothing we could wait for. */
	return rows > 0 ? NO_ROOM : NOT_NEEDED;
}

/* share: only so small a part of the queue may be filled, 1: all of it. */
static verdict
consider(nv_index *index, uint32_t share)
{
	nv_body *body = NULL;
	uint64_t rows = 0;
	verdict v;

	pthread_mutex_lock(&index->lock);
	v = consider_queue(index, share);
	if (v == ROOM && index->body != NULL)
	{
		rows = queued(index);
		body = index->body;
		nv_body_get(body);
	}
	pthread_mutex_unlock(&index->lock);
	if (body == NULL)
		return v;
	/* Linking tries again until it succeeds; only a row can show that. */
	if (atomic_load(&body->no_space) && nv_pending_count(index->pending) > 0)
		v = DISK_FULL;
	else if (!nv_store_have_room(body->store, rows_for_files(index, rows + 1)))
		v = NO_SPACE;
	nv_body_put(body);
	return v;
}

/* --- The table; places.lock is held --- */

static uint32_t
take_position(nv_places *places)
{
	uint32_t position = places->free;

	if (position != NO_POSITION)
	{
		places->free = places->place[position].next_free;
		return position;
	}
	if (places->n == places->room)
	{
		uint32_t room = NV_MAX(places->room * 2, 64u);
		nv_queue_place *grown;

		if (room > POSITION_MASK)
			return NO_POSITION;
		grown = realloc(places->place, room * sizeof(*grown));
		if (grown == NULL)
			return NO_POSITION;
		places->place = grown;
		places->room = room;
	}
	return places->n++;
}

/* The word becomes the number of a new place; false: it no longer is `from`. */
static bool
give(nv_engine *engine, nv_index *index, nv_request *request, uint32_t word,
	 uint64_t from, uint64_t state)
{
	nv_places *places = &engine->places;
	uint32_t position = take_position(places);
	nv_queue_place *place;
	uint64_t number;

	if (position == NO_POSITION)
		return false;
	place = &places->place[position];
	number = ++places->last_serial << POSITION_BITS | position;
	if (!atomic_compare_exchange_strong(&request->place[word], &from,
										number << 2 | state))
	{
		place->index = NULL;
		place->next_free = places->free;
		places->free = position;
		return false;
	}
	atomic_fetch_add(&index->refs, 1);
	*place = (nv_queue_place){index, request, word, NO_POSITION, number};
	atomic_fetch_add(&index->reserved, 1);
	atomic_fetch_add(&places->bytes, nv_pending_row_bytes(index->params.dim));
	return true;
}

static void
release(nv_engine *engine, uint32_t position)
{
	nv_places *places = &engine->places;
	nv_queue_place *place = &places->place[position];
	nv_index *index = place->index;

	nv_assert(index != NULL && atomic_load(&index->reserved) > 0);
	atomic_fetch_sub(&index->reserved, 1);
	atomic_fetch_sub(&places->bytes, nv_pending_row_bytes(index->params.dim));
	place->index = NULL;
	place->next_free = places->free;
	places->free = position;
	nv_index_put(index);
}

/*
 * Takes back what was only offered, and what its owner gave up; of one index,
 * or of all.  all: what its owner counts on, too.
 */
static void
take_back(nv_engine *engine, const nv_index *index, bool all)
{
	nv_places *places = &engine->places;

	for (uint32_t i = 0; i < places->n; i++)
	{
		nv_queue_place *place = &places->place[i];
		_Atomic uint64_t *word;
		uint64_t offered = place->number << 2 | NV_PLACE_OFFERED;

		if (place->index == NULL || (index != NULL && place->index != index))
			continue;
		word = &place->request->place[place->word];
		if (all || atomic_load(word) != (place->number << 2 | NV_PLACE_TAKEN))
		{
			atomic_compare_exchange_strong(word, &offered, NV_PLACE_NONE);
			/* Taken in this moment? */
			if (all ||
				atomic_load(word) != (place->number << 2 | NV_PLACE_TAKEN))
				release(engine, i);
		}
	}
}

/* --- RESERVE --- */

/* No place is needed, or none is given: the owner no longer waits for one. */
static void
clear_wanted(nv_request *request)
{
	uint64_t wanted = NV_PLACE_WANTED;

	atomic_compare_exchange_strong(&request->place[request->u.reserve.place],
								   &wanted, NV_PLACE_NONE);
}

/* Memory, not the length of the queue, is what there is too little of. */
static bool
wants_memory(nv_index *index)
{
	bool wants;

	pthread_mutex_lock(&index->lock);
	wants = index->pending != NULL && !memory_for_row(index);
	pthread_mutex_unlock(&index->lock);
	return wants;
}

/* places.lock is held. */
static verdict
try_place(nv_engine *engine, nv_index *index, nv_request *request)
{
	verdict v = consider(index, 1);

	if (v == NO_ROOM)
	{
		take_back(engine, index, false);
		v = consider(index, 1);
	}
	/* Of what ended sessions or idle ones have of other indexes, too. */
	if ((v == NO_ROOM || v == NOT_NEEDED) && wants_memory(index))
	{
		take_back(engine, NULL, false);
		v = consider(index, 1);
	}
	/* It fails only if the owner has gone, or for want of memory. */
	if (v == ROOM)
		request->u.reserve.granted =
			give(engine, index, request, request->u.reserve.place,
				 NV_PLACE_WANTED, NV_PLACE_TAKEN);
	return v;
}

static void
count_wait(nv_index *index, uint64_t since_ns)
{
	atomic_fetch_add(&index->inserted.waits, 1);
	atomic_fetch_add(&index->inserted.wait_ns, nv_now_ns() - since_ns);
}

/*
 * Gives a place or parks the request (then NO_ROOM is returned and the request
 * is no longer ours).
 */
static verdict
reserve_or_park(nv_engine *engine, nv_index *index, nv_request *request)
{
	nv_places *places = &engine->places;
	nv_parked *parked = nv_alloc(sizeof(*parked));
	verdict v = NO_ROOM;

	pthread_mutex_lock(&places->lock);
	/* Counted first: who links a row from here on looks for us. */
	if (atomic_fetch_add(&index->parked, 1) == 0)
		v = try_place(engine, index, request);
	if (v == NO_ROOM && parked == NULL)
		v = NOT_NEEDED; /* no memory to wait */
	if (v == NO_ROOM)
	{
		atomic_fetch_add(&index->refs, 1);
		*parked = (nv_parked){NULL, index, request, nv_now_ns(), NO_ROOM};
		*places->last = parked;
		places->last = &parked->next;
		atomic_fetch_add(&places->n_parked, 1);
		parked = NULL;
	}
	else
		atomic_fetch_sub(&index->parked, 1);
	pthread_mutex_unlock(&places->lock);
	free(parked);
	return v;
}

static void grow_job(nv_engine *engine, nv_job *job);

/* Answers a request that is not parked. */
static void
conclude(nv_engine *engine, nv_request *request, verdict v)
{
	nv_error err = {0};
	nv_status status = NV_OK;

	switch (v)
	{
		case NO_SPACE:
			status =
				nv_submit_job(engine, &engine->jobs, grow_job, request, NULL);
			if (status == NV_OK)
				return;
			nv_fail(&err, status, 0, "engine is stopping");
			break;
		case DISK_FULL:
			status = nv_fail(&err, NV_ENOSPC, 0,
							 "rows could not be linked for want of space");
			break;
		case NOT_NEEDED:
		case ROOM:
		case NO_ROOM:
			break;
	}
	if (!request->u.reserve.granted)
		clear_wanted(request);
	nv_answer(engine, request, status, &err);
}

/* Space for a few rows more than asked for, or at least for those. */
static nv_status
make_room(nv_index *index, nv_error *err)
{
	nv_body *body = nv_index_body(index);
	uint64_t rows;
	nv_status status;

	if (body == NULL)
		return NV_OK;
	rows = rows_for_files(index, queued(index) + 1);
	status = nv_store_make_room(body->store, rows + AHEAD_ROWS, err);
	if (status == NV_ENOSPC)
		status = nv_store_make_room(body->store, rows, err);
	nv_body_put(body);
	return status;
}

static void
grow_job(nv_engine *engine, nv_job *job)
{
	nv_request *request = job->request;
	nv_index *index = nv_index_get(engine, &request->key, false);
	nv_error err = {0};
	nv_status status = NV_OK;
	verdict v = NO_SPACE;

	/* Others may use up what we made. */
	while (index != NULL && v == NO_SPACE && !nv_abandoned(request) &&
		   (status = make_room(index, &err)) == NV_OK)
		v = reserve_or_park(engine, index, request);
	nv_index_put(index);
	if (status == NV_ENOSPC)
	{
		clear_wanted(request);
		nv_answer(engine, request, status, &err);
	}
	else if (v == NO_SPACE)
		conclude(engine, request, NOT_NEEDED); /* gone, or files that failed */
	else if (v != NO_ROOM)
		conclude(engine, request, v);
}

void
nv_request_reserve(nv_engine *engine, nv_request *request)
{
	nv_index *index;
	verdict v = NOT_NEEDED;
	nv_error err;

	request->u.reserve.granted = 0;
	if (request->u.reserve.place >= NV_REQUEST_PLACES)
	{
		nv_fail(&err, NV_EINVAL, 0, "place %u of %d", request->u.reserve.place,
				NV_REQUEST_PLACES);
		nv_answer(engine, request, NV_EINVAL, &err);
		return;
	}
	index = nv_index_get(engine, &request->key, false);
	if (index != NULL)
		v = reserve_or_park(engine, index, request);
	nv_index_put(index);
	if (v != NO_ROOM)
		conclude(engine, request, v);
}

/* --- Parked requests --- */

/* Takes a request out of the list; places.lock is held. */
static nv_parked *
unpark(nv_places *places, nv_parked **link)
{
	nv_parked *parked = *link;

	*link = parked->next;
	if (*link == NULL)
		places->last = link;
	atomic_fetch_sub(&places->n_parked, 1);
	atomic_fetch_sub(&parked->index->parked, 1);
	count_wait(parked->index, parked->since_ns);
	return parked;
}

static void
let_go(nv_engine *engine, nv_request *request)
{
	nv_error err;

	nv_fail(&err, NV_ECANCELLED, 0,
			"waiting for the insert queue was given up");
	clear_wanted(request);
	nv_answer(engine, request, NV_ECANCELLED, &err);
}

/* May a parked request go on?  *full: an index known to have no room. */
static bool
may_go(nv_engine *engine, nv_parked *parked, const nv_index **full)
{
	if (nv_abandoned(parked->request))
		return true;
	if (parked->index == *full)
		return false;
	parked->found = try_place(engine, parked->index, parked->request);
	if (parked->found == NO_ROOM)
		*full = parked->index;
	return parked->found != NO_ROOM;
}

/* The requests that leave the list, in their order. */
static nv_parked *
collect(nv_engine *engine, bool only_abandoned)
{
	nv_places *places = &engine->places;
	nv_parked *out = NULL, **end = &out, **link = &places->first;
	const nv_index *full = NULL;

	while (*link != NULL)
	{
		nv_parked *parked = *link;

		if (only_abandoned ? !nv_abandoned(parked->request)
						   : !may_go(engine, parked, &full))
		{
			link = &parked->next;
			continue;
		}
		*end = unpark(places, link);
		end = &(*end)->next;
		*end = NULL;
	}
	return out;
}

static void
answer_parked(nv_engine *engine, nv_parked *list)
{
	while (list != NULL)
	{
		nv_parked *parked = list;

		list = parked->next;
		if (nv_abandoned(parked->request))
			let_go(engine, parked->request);
		else
			conclude(engine, parked->request, parked->found);
		nv_index_put(parked->index);
		free(parked);
	}
}

void
nv_places_serve(nv_engine *engine)
{
	nv_parked *list;

	pthread_mutex_lock(&engine->places.lock);
	list = collect(engine, false);
	pthread_mutex_unlock(&engine->places.lock);
	answer_parked(engine, list);
}

void
nv_places_look(nv_engine *engine)
{
	nv_parked *list;

	/* Whoever holds the lock for longer looks at them, too. */
	if (pthread_mutex_trylock(&engine->places.lock) != 0)
		return;
	list = collect(engine, true);
	pthread_mutex_unlock(&engine->places.lock);
	answer_parked(engine, list);
}

/* --- At rest --- */

void
nv_places_trim(nv_index *index)
{
	nv_places *places = &index->engine->places;
	nv_body *body = nv_index_body(index);

	if (body == NULL)
		return;
	nv_store_trim_begin(body->store);
	/* With the lock held nobody is promised what is about to go. */
	pthread_mutex_lock(&places->lock);
	if (index->pending != NULL && nv_pending_waiting(index->pending) == 0)
		nv_store_trim(body->store,
					  rows_for_files(index, queued(index)) + AHEAD_ROWS);
	pthread_mutex_unlock(&places->lock);
	nv_store_trim_end(body->store);
	nv_body_put(body);
}

/* --- The row comes --- */

bool
nv_places_used(nv_engine *engine, nv_index *index, nv_request *request,
			   bool accepted)
{
	nv_places *places = &engine->places;
	uint32_t word = request->u.insert.place, position;
	uint64_t taken, number;
	bool valid;

	if (word >= NV_REQUEST_PLACES)
		return false;
	taken = atomic_load(&request->place[word]);
	if ((taken & NV_PLACE_STATE) != NV_PLACE_TAKEN)
		return false;
	number = taken >> 2;
	position = (uint32_t) (number & POSITION_MASK);
	pthread_mutex_lock(&places->lock);
	valid = position < places->n && places->place[position].index == index &&
			places->place[position].request == request &&
			places->place[position].number == number;
	if (valid)
		release(engine, position);
	/* Without an offer the word goes back to nothing. */
	if (!(valid && accepted && atomic_load(&index->parked) == 0 &&
		  consider(index, OFFER_SHARE) == ROOM &&
		  give(engine, index, request, word, taken, NV_PLACE_OFFERED)))
		atomic_compare_exchange_strong(&request->place[word], &taken,
									   NV_PLACE_NONE);
	pthread_mutex_unlock(&places->lock);
	if (valid && !accepted && atomic_load(&index->parked) > 0)
		nv_places_serve(engine);
	return valid;
}

/* --- Ends --- */

void
nv_places_of_index(nv_engine *engine, nv_index *index)
{
	pthread_mutex_lock(&engine->places.lock);
	take_back(engine, index, true);
	pthread_mutex_unlock(&engine->places.lock);
}

void
nv_places_close(nv_engine *engine)
{
	nv_places *places = &engine->places;
	nv_parked *next;

	for (nv_parked *parked = places->first; parked != NULL; parked = next)
	{
		next = parked->next;
		let_go(engine, parked->request);
		nv_index_put(parked->index);
		free(parked);
	}
	places->first = NULL;
	take_back(engine, NULL, true);
	free(places->place);
	places->place = NULL;
	places->n = places->room = 0;
}
