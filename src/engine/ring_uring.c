/*
 * ring_uring.c
 *		The ring on io_uring.
 *
 * Everything beyond plain io_uring (Linux 5.6) is asked for and done without
 * when refused: deferred completion work (6.1), cooperative completion work
 * (5.19), the arena as registered buffer (RLIMIT_MEMLOCK), registered files.
 * There is no kernel polling thread: it costs a core a ring.
 *
 * Deferred completions ask that one thread creates and uses the ring; only
 * then does the kernel keep completions until that thread comes for them.
 *
 * A kernel that stops taking submissions (no memory, a filter installed later)
 * makes the ring go on with pread: what was prepared is never submitted after
 * that, so no read can land in a buffer that has been given to somebody else.
 */
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>

#include "io_internal.h"
#include "util.h"

/* Numbers of the kernel's interface, for older liburing headers. */
#ifndef IORING_SETUP_SUBMIT_ALL
#define IORING_SETUP_SUBMIT_ALL (1U << 7)
#endif
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#define IORING_SETUP_TASKRUN_FLAG (1U << 9)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

/* The kernel takes no larger registered buffer. */
#define MAX_FIXED_BUFFER ((size_t) 1 << 30)

/* How long submissions may fail for want of memory before pread is used. */
#define MAX_STALL_NS UINT64_C(100000000)
#define STALL_SLEEP_NS 1000000

struct nv_uring
{
	struct io_uring ring;
	uint32_t in_kernel;     /* reads the kernel has taken and not returned */
	uint32_t pending_count; /* prepared, not yet taken, oldest first */
	uint16_t pending[NV_RING_DEPTH];
	uint64_t stalled_since; /* ns; 0: the last submission was taken */
	bool broken;            /* submit nothing any more */
	uint32_t last_file;     /* where the last look-up found its file */
	uint64_t files[NV_RING_MAX_FILES]; /* serial of each fixed file, 0: none */
};

static void
short_sleep(void)
{
	struct timespec ts = {0, STALL_SLEEP_NS};

	nanosleep(&ts, NULL);
}

/* Index of the file among the fixed files, or -1: read by descriptor. */
static int
fixed_file(nv_ring *ring, const nv_file *file)
{
	nv_uring *u = ring->uring;
	uint32_t unused = NV_RING_MAX_FILES;

	if (u->files[u->last_file] == file->serial)
		return (int) u->last_file;
	for (uint32_t i = 0; i < NV_RING_MAX_FILES; i++)
	{
		if (u->files[i] == file->serial)
		{
			u->last_file = i;
			return (int) i;
		}
		if (u->files[i] == 0 && unused == NV_RING_MAX_FILES)
			unused = i;
	}
	if (unused == NV_RING_MAX_FILES || (ring->has & NV_RING_FIXED_FILES) == 0)
		return -1;
	if (io_uring_register_files_update(&u->ring, unused, &file->fd, 1) != 1)
	{
		ring->has &= ~NV_RING_FIXED_FILES;
		return -1;
	}
	u->files[unused] = file->serial;
	u->last_file = unused;
	return (int) unused;
}

static bool
in_fixed_buffer(const nv_ring *ring, const uint8_t *buf, uint32_t len)
{
	uintptr_t start = (uintptr_t) ring->arena;
	uintptr_t at = (uintptr_t) buf;

	return (ring->has & NV_RING_FIXED_BUFFERS) != 0 && at >= start &&
		   at - start < ring->arena_size &&
		   len <= ring->arena_size - (at - start);
}

static uint64_t
user_data_of(const nv_ring *ring, uint32_t slot)
{
	return (uint64_t) ring->requests[slot].generation << 32 | slot;
}

/* Puts one request into the submission queue, or reads it at once. */
static void
prepare(nv_ring *ring, uint32_t slot)
{
	nv_uring *u = ring->uring;
	nv_ring_request *request = &ring->requests[slot];
	uint8_t *buf = request->buf + request->base;
	uint32_t len = request->len - request->base;
	uint64_t offset = request->offset + request->base;
	struct io_uring_sqe *sqe = NULL;
	int index;

	if (request->file->fd >= 0 && !u->broken)
		sqe = io_uring_get_sqe(&u->ring);
	if (sqe == NULL)
	{
		nv_ring_by_hand(ring, slot);
		return;
	}
	index = fixed_file(ring, request->file);
	if (request->write)
		io_uring_prep_write(sqe, request->file->fd, buf, len, offset);
	else if (in_fixed_buffer(ring, buf, len))
		io_uring_prep_read_fixed(sqe, request->file->fd, buf, len, offset, 0);
	else
		io_uring_prep_read(sqe, request->file->fd, buf, len, offset);
	if (index >= 0)
	{
		sqe->fd = index;
		sqe->flags |= IOSQE_FIXED_FILE;
	}
	sqe->user_data = user_data_of(ring, slot);
	u->pending[u->pending_count++] = (uint16_t) slot;
}

static void
prepare_queued(nv_ring *ring)
{
	uint32_t slot;

	while (nv_ring_next(ring, &slot))
		prepare(ring, slot);
}

/* The kernel took the n oldest prepared requests. */
static void
taken(nv_uring *u, uint32_t n)
{
	nv_assert(n <= u->pending_count);
	u->pending_count -= n;
	u->in_kernel += n;
	u->stalled_since = 0;
	memmove(u->pending, u->pending + n, u->pending_count * sizeof(*u->pending));
}

/* No submission any more; what was prepared is read by pread. */
static void
give_up(nv_ring *ring, int error)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	nv_uring *u = ring->uring;
	uint32_t count = u->pending_count;

	u->broken = true;
	u->pending_count = 0;
	errno = error;
	if (!atomic_flag_test_and_set(&logged))
		nv_log(NV_LOG_WARNING,
			   "io_uring takes no more reads: %m; reading by pread instead");
	for (uint32_t i = 0; i < count; i++)
		nv_ring_by_hand(ring, u->pending[i]);
}

/* Submission failed for a reason that may pass; true: tried long enough. */
static bool
stalled_too_long(nv_uring *u)
{
	uint64_t now = nv_now_ns();

	if (u->stalled_since == 0)
		u->stalled_since = now;
	return now - u->stalled_since >= MAX_STALL_NS;
}

/* Sleeps until the kernel has a completion, without submitting anything. */
static void
wait_only(nv_uring *u)
{
	struct io_uring_cqe *cqe;
	int rc = io_uring_wait_cqe(&u->ring, &cqe);

	if (rc < 0 && rc != -EINTR)
		short_sleep();
}

/*
 * Submits what is prepared, in as many calls as the kernel asks for, and waits
 * for one completion when told to.  May return without one.
 */
static void
enter(nv_ring *ring, bool wait)
{
	nv_uring *u = ring->uring;

	for (;;)
	{
		int rc = wait ? io_uring_submit_and_wait(&u->ring, 1)
					  : io_uring_submit(&u->ring);

		if (rc > 0)
		{
			taken(u, NV_MIN((uint32_t) rc, u->pending_count));
			if (u->pending_count == 0)
				return;
			continue;
		}
		if (rc == -EINTR || (rc == 0 && u->pending_count == 0))
			return;
		if (rc < 0 && rc != -EAGAIN && rc != -EBUSY)
		{
			give_up(ring, -rc);
			return;
		}
		/* completions give back what the kernel lacks */
		if (u->in_kernel == 0 && stalled_too_long(u))
			give_up(ring, rc < 0 ? -rc : EAGAIN);
		else if (wait && u->in_kernel > 0)
			wait_only(u);
		else if (wait)
			short_sleep();
		return;
	}
}

/* Hands on what has arrived.  Reads that stopped short are queued again. */
static void
harvest(nv_ring *ring)
{
	nv_uring *u = ring->uring;
	struct io_uring_cqe *cqes[NV_RING_DEPTH];
	unsigned n = io_uring_peek_batch_cqe(&u->ring, cqes, NV_RING_DEPTH);

	for (unsigned i = 0; i < n; i++)
	{
		uint32_t slot = (uint32_t) cqes[i]->user_data;
		bool ours = slot < NV_RING_DEPTH && ring->requests[slot].file != NULL &&
					cqes[i]->user_data == user_data_of(ring, slot);

		/* each read the kernel took comes back once, under its own name */
		nv_assert(ours && u->in_kernel > 0);
		if (!ours)
			continue;
		u->in_kernel--;
		nv_ring_arrived(ring, slot, cqes[i]->res);
	}
	io_uring_cq_advance(&u->ring, n);
}

static void
uring_submit(nv_ring *ring)
{
	prepare_queued(ring);
	if (ring->uring->pending_count > 0)
		enter(ring, false);
}

static void
uring_progress(nv_ring *ring, bool wait)
{
	nv_uring *u = ring->uring;
	bool sleep;

	prepare_queued(ring);
	sleep = wait && ring->done_count == 0 && io_uring_cq_ready(&u->ring) == 0;
	if (u->pending_count > 0)
		enter(ring, sleep);
	else if (sleep && u->in_kernel > 0)
		wait_only(u);
	if (u->in_kernel > 0)
		harvest(ring);
}

static void
uring_forget(nv_ring *ring, nv_file *file)
{
	nv_uring *u = ring->uring;
	int none = -1;

	for (uint32_t i = 0; i < NV_RING_MAX_FILES; i++)
	{
		if (u->files[i] != file->serial)
			continue;
		io_uring_register_files_update(&u->ring, i, &none, 1);
		u->files[i] = 0;
	}
}

/*
 * Files and buffers are taken back one by one: tearing a ring down lets go of
 * them at some later time.
 */
static void
uring_detach(nv_ring *ring)
{
	nv_uring *u = ring->uring;

	nv_assert(u->in_kernel == 0);
	io_uring_unregister_files(&u->ring);
	if ((ring->has & NV_RING_FIXED_BUFFERS) != 0)
		io_uring_unregister_buffers(&u->ring);
	io_uring_queue_exit(&u->ring);
	free(u);
	ring->uring = NULL;
}

static const nv_ring_ops uring_ops = {
	.submit = uring_submit,
	.progress = uring_progress,
	.forget = uring_forget,
	.detach = uring_detach,
};

/* Sets up a ring with the best flags the kernel knows; 0 or -errno. */
static int
set_up(struct io_uring *ring, uint32_t wanted, uint32_t *has)
{
	static const struct
	{
		uint32_t property;
		unsigned flags;
	} choices[] = {
		{NV_RING_DEFER,
		 IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL},
		{NV_RING_COOP, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
						   IORING_SETUP_SUBMIT_ALL},
		{0, 0},
	};
	int rc = -EINVAL;

	for (size_t i = 0; i < NV_LENGTH(choices) && rc == -EINVAL; i++)
	{
		struct io_uring_params params;

		if ((choices[i].property & wanted) != choices[i].property)
			continue;
		memset(&params, 0, sizeof(params));
		params.flags = choices[i].flags;
		rc = io_uring_queue_init_params(NV_RING_DEPTH, ring, &params);
		if (rc < 0)
			continue;
		/* read without vectors came with this feature, in Linux 5.6 */
		if ((params.features & IORING_FEAT_CUR_PERSONALITY) == 0)
		{
			io_uring_queue_exit(ring);
			return -ENOSYS;
		}
		*has = choices[i].property;
	}
	return rc;
}

/* A request that does nothing, there and back: set-up alone proves little. */
static int
try_out(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int rc;

	io_uring_prep_nop(sqe);
	do
		rc = io_uring_submit(ring);
	while (rc == -EINTR);
	if (rc < 0)
		return rc;
	do
		rc = io_uring_wait_cqe(ring, &cqe);
	while (rc == -EINTR);
	if (rc < 0)
		return rc;
	rc = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return rc;
}

static void
register_what_can_be(nv_ring *ring, uint32_t wanted)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	nv_uring *u = ring->uring;
	int none[NV_RING_MAX_FILES];

	memset(none, 0xff, sizeof(none)); /* -1: an empty place */
	if ((wanted & NV_RING_FIXED_FILES) != 0 &&
		io_uring_register_files(&u->ring, none, NV_RING_MAX_FILES) == 0)
		ring->has |= NV_RING_FIXED_FILES;
	if ((wanted & NV_RING_FIXED_BUFFERS) != 0 && ring->arena_size > 0 &&
		ring->arena_size <= MAX_FIXED_BUFFER)
	{
		struct iovec all = {ring->arena, ring->arena_size};
		int rc = io_uring_register_buffers(&u->ring, &all, 1);

		if (rc == 0)
			ring->has |= NV_RING_FIXED_BUFFERS;
		errno = -rc;
		if (rc < 0 && !atomic_flag_test_and_set(&logged))
			nv_log(NV_LOG_DEBUG, "read buffers are not registered: %m");
	}
}

/* What an administrator can do about a refusal. */
static const char *
memory_hint(int error)
{
	return error == ENOMEM
			   ? " (RLIMIT_MEMLOCK may be too small, it is counted for all "
				 "processes of the user: ulimit -l, LimitMEMLOCK of a systemd "
				 "unit)"
			   : "";
}

nv_status
nv_uring_attach(nv_ring *ring, uint32_t properties, nv_error *err)
{
	nv_uring *u = nv_alloc(sizeof(*u));
	uint32_t has = 0;
	int rc = u == NULL ? -ENOMEM : set_up(&u->ring, properties, &has);

	if (rc == 0)
	{
		rc = try_out(&u->ring);
		if (rc < 0)
			io_uring_queue_exit(&u->ring);
	}
	if (rc < 0)
	{
		free(u);
		errno = -rc;
		return nv_fail(err, rc == -ENOMEM ? NV_ENOMEM : NV_EIO, -rc,
					   "io_uring is not available: %m%s", memory_hint(-rc));
	}
	ring->ops = &uring_ops;
	ring->uring = u;
	ring->has = has;
	register_what_can_be(ring, properties);
	return NV_OK;
}
