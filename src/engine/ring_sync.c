/*
 * ring_sync.c
 *		The ring without io_uring: each read is one pread.
 *
 * Nothing overlaps here; parallelism comes from the engine's threads.  A read
 * is done when somebody reaps, one at a time, so that the caller works on the
 * first page before it waits for the second.
 */
#include "io_internal.h"

static void
sync_submit(nv_ring *ring)
{
}

static void
sync_progress(nv_ring *ring, bool wait)
{
	uint32_t slot;

	if (ring->done_count == 0 && nv_ring_next(ring, &slot))
		nv_ring_by_hand(ring, slot);
}

static void
sync_forget(nv_ring *ring, nv_file *file)
{
}

static void
sync_detach(nv_ring *ring)
{
}

static const nv_ring_ops sync_ops = {
	.submit = sync_submit,
	.progress = sync_progress,
	.forget = sync_forget,
	.detach = sync_detach,
};

void
nv_sync_attach(nv_ring *ring)
{
	ring->ops = &sync_ops;
}
