/*
 * io_internal.h
 *		What the files of the I/O layer share, and where another disk plugs in.
 *
 * A file is an nv_file with a table of operations; the operations of real
 * files sit in file.c.  A test can put a simulated disk in their place with
 * nv_io_set_disk(): its files have no descriptor, and rings then read them by
 * their pread operation.
 *
 * A ring is a common front (ring.c: requests, queue, completions, the rules for
 * short and repeated reads) and one of two methods behind it (ring_uring.c,
 * ring_sync.c) that carry queued requests to the disk.
 */
#ifndef NAVIS_IO_INTERNAL_H
#define NAVIS_IO_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>

#include "io.h"

#define NV_SECTOR 512 /* smallest unit of direct I/O we report */

/*
 * Operations return 0 or a count, or -errno.  They may be interrupted and may
 * transfer less than asked for: the callers repeat and continue.
 */
typedef struct nv_file_ops
{
	ssize_t (*pread)(nv_file *file, void *buf, size_t len, uint64_t offset);
	ssize_t (*pwrite)(nv_file *file, const void *buf, size_t len,
					  uint64_t offset);
	int (*sync)(nv_file *file);
	int (*size)(nv_file *file, uint64_t *size);
	int (*fallocate)(nv_file *file, uint64_t size);
	int (*truncate)(nv_file *file, uint64_t size);
	void (*close)(nv_file *file); /* frees arg, not the nv_file */
} nv_file_ops;

struct nv_file
{
	const nv_file_ops *ops;
	void *arg;       /* belongs to ops */
	char *path;      /* as given to nv_file_open */
	uint64_t serial; /* never used twice in a process, unlike an address */
	int fd;          /* -1 when this is no file of the kernel */
	uint32_t align;  /* bytes */
	bool direct;
	bool readonly;
};

/* An nv_file without descriptor, buffered, for an implementer of nv_disk. */
extern nv_status nv_file_new(const nv_file_ops *ops, void *arg,
							 const char *path, int flags, nv_file **file,
							 nv_error *err);

/*
 * Takes the place of the file system below nv_file_open, nv_dir_sync and the
 * names of io.h.  Where a disk leaves names to the real one, change is NULL.
 */
typedef enum nv_name_change
{
	NV_NAME_MAKE_DIR,
	NV_NAME_RENAME,
	NV_NAME_REMOVE /* a file or an empty directory */
} nv_name_change;

typedef struct nv_disk
{
	nv_status (*open)(void *arg, const char *path, int flags, nv_file **file,
					  nv_error *err);
	nv_status (*dir_sync)(void *arg, const char *path, nv_error *err);
	void *arg;
	/* 0 or -errno; to: of a rename */
	int (*change)(void *arg, nv_name_change what, const char *path,
				  const char *to);
	/* 0 or -errno (ENOTDIR for a file); found may be NULL */
	int (*list)(void *arg, const char *path, nv_name_fn found, void *found_arg);
} nv_disk;

/* NULL: the real one.  Only while no other thread opens files. */
extern void nv_io_set_disk(const nv_disk *disk);
/* The disk that names are on, or NULL: the real one. */
extern const nv_disk *nv_io_names(void);

/*
 * Alignment that direct reads of fd really need, found by reading; 0 when they
 * are refused at every alignment up to NV_BLOCK.
 */
extern uint32_t nv_probe_align(int fd);

/* What direct I/O asks of every transfer. */
static inline bool
nv_io_aligned(const nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	return !file->direct ||
		   ((uintptr_t) buf % file->align == 0 && len % file->align == 0 &&
			offset % file->align == 0);
}

/* Where a transfer that stopped after done bytes may be taken up again. */
static inline size_t
nv_resume_point(const nv_file *file, size_t done)
{
	return file->direct ? done - done % file->align : done;
}

/* Properties of a ring; what the kernel refuses is missing in nv_ring_has. */
#define NV_RING_DEFER 1u         /* SINGLE_ISSUER and DEFER_TASKRUN */
#define NV_RING_COOP 2u          /* COOP_TASKRUN */
#define NV_RING_FIXED_BUFFERS 4u /* the arena is registered */
#define NV_RING_FIXED_FILES 8u   /* files are registered */
#define NV_RING_EVERYTHING 15u

/* nv_ring_create with only some of the properties, for tests and benches. */
extern nv_status nv_ring_create_with(nv_io_method method, size_t arena_size,
									 uint32_t properties, nv_ring **ring,
									 nv_error *err);
extern uint32_t nv_ring_has(const nv_ring *ring);

/* How often a read that got EINTR or EAGAIN is repeated without progress. */
#define NV_RING_RETRIES 100

typedef struct nv_ring_request
{
	nv_file *file; /* NULL: the slot is free */
	uint8_t *buf;
	uint64_t offset;
	uint64_t token;
	uint32_t len;
	uint32_t base; /* where in buf the read under way begins */
	uint32_t got;  /* bytes at the start of buf known to be read */
	uint32_t retries;
	uint32_t generation; /* raised when the slot is freed */
	bool write;
} nv_ring_request;

typedef struct nv_ring_ops
{
	/* Gives what is queued to the kernel. */
	void (*submit)(nv_ring *ring);

	/*
	 * Submits and collects what has arrived.  With wait it may sleep until one
	 * read has arrived; the caller repeats until it is satisfied.
	 */
	void (*progress)(nv_ring *ring, bool wait);
	void (*forget)(nv_ring *ring, nv_file *file);
	void (*detach)(nv_ring *ring); /* nothing is in flight any more */
} nv_ring_ops;

typedef struct nv_uring nv_uring; /* ring_uring.c */

struct nv_ring
{
	const nv_ring_ops *ops;
	nv_uring *uring; /* NULL with the sync method */
	pthread_t owner;
	uint8_t *arena;
	size_t arena_size;
	uint32_t has; /* NV_RING_* */

	uint32_t inflight; /* accepted and not yet reported */
	uint32_t free_count;
	uint32_t queued_head; /* FIFO of slots that wait for the kernel */
	uint32_t queued_count;
	uint32_t done_head; /* FIFO of completions that wait for nv_ring_reap */
	uint32_t done_count;
	uint16_t free_slots[NV_RING_DEPTH];
	uint16_t queued[NV_RING_DEPTH];
	nv_completion done[NV_RING_DEPTH];
	nv_ring_request requests[NV_RING_DEPTH];
};

/* For the methods: the oldest queued slot, taken off; false when none. */
extern bool nv_ring_next(nv_ring *ring, uint32_t *slot);

/* For the methods: a read returned result; completes it or queues it again. */
extern void nv_ring_arrived(nv_ring *ring, uint32_t slot, int32_t result);

/* For the methods: one transfer by the file's own pread or pwrite operation. */
extern void nv_ring_by_hand(nv_ring *ring, uint32_t slot);

/* The two methods; they set ops (and uring). */
extern void nv_sync_attach(nv_ring *ring);
extern nv_status nv_uring_attach(nv_ring *ring, uint32_t properties,
								 nv_error *err);

#endif
