/*
 * ring.c
 *		The common front of rings: requests, queue, completions.
 *
 * A request moves free -> queued -> (kernel -> queued ...) -> done -> free.  A
 * read that comes back short is queued again from where it stopped; it is at
 * the end of the file when that brings nothing new.  So a caller sees either
 * the full count, or the short count that the end of the file explains, or an
 * error.  Requests are known to the kernel by slot and generation, never by
 * address, and no ring is freed before its last read is back.
 */
#include <errno.h>
#include <stdatomic.h>

#include "io_internal.h"
#include "util.h"

/* A result is an int32_t. */
#define MAX_READ INT32_MAX

static void
enqueue(nv_ring *ring, uint32_t slot)
{
	nv_assert(ring->queued_count < NV_RING_DEPTH);
	ring->queued[(ring->queued_head + ring->queued_count) % NV_RING_DEPTH] =
		(uint16_t) slot;
	ring->queued_count++;
}

bool
nv_ring_next(nv_ring *ring, uint32_t *slot)
{
	if (ring->queued_count == 0)
		return false;
	*slot = ring->queued[ring->queued_head];
	ring->queued_head = (ring->queued_head + 1) % NV_RING_DEPTH;
	ring->queued_count--;
	return true;
}

static void
complete(nv_ring *ring, uint32_t slot, int32_t result)
{
	nv_ring_request *request = &ring->requests[slot];
	uint32_t at = (ring->done_head + ring->done_count) % NV_RING_DEPTH;

	nv_assert(ring->done_count < NV_RING_DEPTH);
	ring->done[at].token = request->token;
	ring->done[at].result = result;
	ring->done_count++;
	request->file = NULL;
	request->generation++;
	ring->free_slots[ring->free_count++] = (uint16_t) slot;
}

void
nv_ring_arrived(nv_ring *ring, uint32_t slot, int32_t result)
{
	nv_ring_request *request = &ring->requests[slot];
	uint32_t total;

	nv_assert(request->file != NULL);
	if ((result == -EINTR || result == -EAGAIN) &&
		request->retries < NV_RING_RETRIES)
	{
		request->retries++;
		enqueue(ring, slot);
		return;
	}
	if (result < 0)
	{
		complete(ring, slot, result);
		return;
	}
	nv_assert((uint32_t) result <= request->len - request->base);
	total = request->base + (uint32_t) result;
	if (total == request->len || total <= request->got)
	{
		complete(ring, slot, (int32_t) NV_MAX(total, request->got));
		return;
	}
	request->got = total;
	request->base = (uint32_t) nv_resume_point(request->file, total);
	request->retries = 0;
	enqueue(ring, slot);
}

void
nv_ring_by_hand(nv_ring *ring, uint32_t slot)
{
	nv_ring_request *request = &ring->requests[slot];
	uint8_t *buf = request->buf + request->base;
	size_t len = request->len - request->base;
	uint64_t offset = request->offset + request->base;
	const nv_file_ops *ops = request->file->ops;
	ssize_t n = request->write ? ops->pwrite(request->file, buf, len, offset)
							   : ops->pread(request->file, buf, len, offset);

	nv_ring_arrived(ring, slot, (int32_t) n);
}

nv_status
nv_ring_create(nv_io_method method, size_t arena_size, nv_ring **ring,
			   nv_error *err)
{
	return nv_ring_create_with(method, arena_size, NV_RING_EVERYTHING, ring,
							   err);
}

/* Chooses the method; with NV_IO_AUTO says once a process that it is sync. */
static nv_status
attach(nv_ring *ring, nv_io_method method, uint32_t properties, nv_error *err)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	nv_error refusal;

	if (method == NV_IO_URING)
		return nv_uring_attach(ring, properties, err);
	if (method == NV_IO_AUTO)
	{
		if (nv_uring_attach(ring, properties, &refusal) == NV_OK)
			return NV_OK;
		if (!atomic_flag_test_and_set(&logged))
			nv_log(NV_LOG_WARNING, "%s; reading by pread instead",
				   refusal.detail);
	}
	nv_sync_attach(ring);
	return NV_OK;
}

nv_status
nv_ring_create_with(nv_io_method method, size_t arena_size, uint32_t properties,
					nv_ring **out, nv_error *err)
{
	nv_ring *ring;
	nv_status status;

	*out = NULL;
	if (arena_size % NV_BLOCK != 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "size of ring memory is %zu bytes, expected a multiple "
					   "of %d",
					   arena_size, NV_BLOCK);
	ring = nv_alloc(sizeof(*ring));
	if (ring == NULL ||
		(arena_size > 0 &&
		 posix_memalign((void **) &ring->arena, NV_BLOCK, arena_size) != 0))
	{
		free(ring);
		return nv_fail(err, NV_ENOMEM, ENOMEM,
					   "out of memory for a ring with %zu bytes of buffers",
					   arena_size);
	}
	if (arena_size > 0)
		memset(ring->arena, 0, arena_size);
	ring->arena_size = arena_size;
	ring->owner = pthread_self();
	for (uint32_t i = 0; i < NV_RING_DEPTH; i++)
		ring->free_slots[i] = (uint16_t) (NV_RING_DEPTH - 1 - i);
	ring->free_count = NV_RING_DEPTH;
	status = attach(ring, method, properties, err);
	if (status != NV_OK)
	{
		free(ring->arena);
		free(ring);
		return status;
	}
	*out = ring;
	return NV_OK;
}

void
nv_ring_destroy(nv_ring *ring)
{
	nv_completion dropped[16];

	if (ring == NULL)
		return;
	while (ring->inflight > 0)
		nv_ring_reap(ring, dropped, NV_LENGTH(dropped), true);
	ring->ops->detach(ring);
	free(ring->arena);
	free(ring);
}

uint8_t *
nv_ring_arena(nv_ring *ring)
{
	return ring->arena;
}

bool
nv_ring_is_uring(const nv_ring *ring)
{
	return ring->uring != NULL;
}

uint32_t
nv_ring_has(const nv_ring *ring)
{
	return ring->has;
}

uint32_t
nv_ring_inflight(const nv_ring *ring)
{
	return ring->inflight;
}

static bool
queue_transfer(nv_ring *ring, nv_file *file, void *buf, uint32_t len,
			   uint64_t offset, uint64_t token, bool is_write)
{
	nv_ring_request *request;
	uint32_t slot;

	nv_assert(pthread_equal(ring->owner, pthread_self()));
	nv_assert(len > 0 && len <= MAX_READ);
	nv_assert(nv_io_aligned(file, buf, len, offset));
	if (ring->inflight == NV_RING_DEPTH)
		return false;
	slot = ring->free_slots[--ring->free_count];
	request = &ring->requests[slot];
	nv_assert(request->file == NULL);
	request->file = file;
	request->buf = buf;
	request->offset = offset;
	request->token = token;
	request->len = len;
	request->base = 0;
	request->got = 0;
	request->retries = 0;
	request->write = is_write;
	ring->inflight++;
	enqueue(ring, slot);
	return true;
}

bool
nv_ring_read(nv_ring *ring, nv_file *file, void *buf, uint32_t len,
			 uint64_t offset, uint64_t token)
{
	return queue_transfer(ring, file, buf, len, offset, token, false);
}

bool
nv_ring_write(nv_ring *ring, nv_file *file, const void *buf, uint32_t len,
			  uint64_t offset, uint64_t token)
{
	return queue_transfer(ring, file, (void *) (uintptr_t) buf, len, offset,
						  token, true);
}

void
nv_ring_submit(nv_ring *ring)
{
	nv_assert(pthread_equal(ring->owner, pthread_self()));
	ring->ops->submit(ring);
}

uint32_t
nv_ring_reap(nv_ring *ring, nv_completion *out, uint32_t max, bool wait)
{
	uint32_t n = 0;

	if (ring->inflight == 0 || max == 0)
		return 0;
	nv_assert(pthread_equal(ring->owner, pthread_self()));
	do
		ring->ops->progress(ring, wait && ring->done_count == 0);
	while (wait && ring->done_count == 0);
	while (n < max && ring->done_count > 0)
	{
		out[n++] = ring->done[ring->done_head];
		ring->done_head = (ring->done_head + 1) % NV_RING_DEPTH;
		ring->done_count--;
		ring->inflight--;
	}
	return n;
}

void
nv_ring_forget(nv_ring *ring, nv_file *file)
{
	for (uint32_t i = 0; i < NV_RING_DEPTH; i++)
		nv_assert(ring->requests[i].file != file);
	ring->ops->forget(ring, file);
}
