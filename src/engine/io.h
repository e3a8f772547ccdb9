/*
 * io.h
 *		Files and rings: the only way to the disk.
 *
 * Two implementations stand behind one interface: io_uring and plain
 * pread/pwrite; a third (a simulated disk) can be put behind nv_file_ops.
 * Offsets, lengths and buffers are multiples of nv_file_align() for reads and
 * writes of files opened direct.
 */
#ifndef NAVIS_IO_H
#define NAVIS_IO_H

#include "navis/status.h"

typedef enum nv_io_method
{
	NV_IO_AUTO, /* io_uring, else sync; O_DIRECT, else buffered */
	NV_IO_URING,
	NV_IO_SYNC
} nv_io_method;

#define NV_BLOCK 4096        /* alignment that every device takes */
#define NV_RING_DEPTH 256    /* requests in flight a ring, at most */
#define NV_RING_MAX_FILES 64 /* fixed files a ring; others go unfixed */

typedef struct nv_file nv_file;
typedef struct nv_ring nv_ring;

/* flags of nv_file_open */
#define NV_FILE_CREATE 1 /* create it; error if it exists */
#define NV_FILE_READONLY 2
#define NV_FILE_BUFFERED 4 /* never O_DIRECT (small metadata files) */

/*
 * Opens a file; O_DIRECT unless refused by the file system (then buffered,
 * and one log line a process).  Thread-safe objects: any thread may read,
 * write and sync; the caller sees to it that closing comes last.
 */
extern nv_status nv_file_open(const char *path, int flags, nv_file **file,
							  nv_error *err);
extern void nv_file_close(nv_file *file);

/* Smallest unit of offset, length and buffer address: 512 or 4096. */
extern uint32_t nv_file_align(const nv_file *file);
extern bool nv_file_is_direct(const nv_file *file);
extern const char *nv_file_path(const nv_file *file);

/*
 * Whole-length blocking transfers: a short read is NV_ECORRUPT (the file is
 * shorter than it must be), a failed write NV_EIO or NV_ENOSPC.
 */
extern nv_status nv_file_read(nv_file *file, void *buf, size_t len,
							  uint64_t offset, nv_error *err);
extern nv_status nv_file_write(nv_file *file, const void *buf, size_t len,
							   uint64_t offset, nv_error *err);

/* Makes what was written durable; does nothing when nv_io_set_fsync(false). */
extern nv_status nv_file_sync(nv_file *file, nv_error *err);
extern nv_status nv_file_size(nv_file *file, uint64_t *size, nv_error *err);

/* Reserves space up to size (posix_fallocate semantics: ENOSPC shows here). */
extern nv_status nv_file_reserve(nv_file *file, uint64_t size, nv_error *err);
/* Gives the space behind size back; a shorter file stays as it is. */
extern nv_status nv_file_shorten(nv_file *file, uint64_t size, nv_error *err);

/* Syncs a directory, so that names created or removed in it are durable. */
extern nv_status nv_dir_sync(const char *path, nv_error *err);

/*
 * Files are opened for reading only from now on, whatever is asked for; writing
 * and creating then fail.  For programs that must not change what they open.
 */
extern void nv_io_set_readonly(bool on);
extern bool nv_io_readonly(void);

/* --- Names (names.c) --- */

/* Makes a directory.  NV_EEXIST: something is there. */
extern nv_status nv_dir_make(const char *path, nv_error *err);
/*
 * Calls found(arg, name) for everything in a directory but "." and ".."; found
 * changes nothing there.  NV_ENOENT: there is none.
 */
typedef void (*nv_name_fn)(void *arg, const char *name);
extern nv_status nv_dir_list(const char *path, nv_name_fn found, void *arg,
							 nv_error *err);
extern bool nv_path_exists(const char *path);
/* In one step; what was at the new place goes. */
extern nv_status nv_path_rename(const char *from, const char *to,
								nv_error *err);
/* Removes a file; NV_OK also when there is none. */
extern nv_status nv_path_remove(const char *path, nv_error *err);
/* Removes a file or a directory with what is in it; NV_OK when there is none.
 */
extern nv_status nv_remove_tree(const char *path, nv_error *err);
/* The same; the name `last` in it goes when nothing else is left, so that a
 * removal that is cut short can be found and repeated. */
extern nv_status nv_remove_tree_but(const char *path, const char *last,
									nv_error *err);

/* "fsync = off" of the server. */
extern void nv_io_set_fsync(bool on);

/*
 * A ring belongs to one thread.  arena_size bytes of buffer memory (multiple
 * of NV_BLOCK) come with it, registered with the kernel when RLIMIT_MEMLOCK
 * allows; reads may also go to other memory.
 */
extern nv_status nv_ring_create(nv_io_method method, size_t arena_size,
								nv_ring **ring, nv_error *err);

/* Drains what is in flight, then frees. */
extern void nv_ring_destroy(nv_ring *ring);
extern uint8_t *nv_ring_arena(nv_ring *ring);
extern bool nv_ring_is_uring(const nv_ring *ring);

typedef struct nv_completion
{
	uint64_t token; /* as given to nv_ring_read */
	int32_t result; /* bytes read or written, or -errno */
} nv_completion;

/*
 * Queues one read.  False when NV_RING_DEPTH reads are already in flight or
 * queued.  Nothing goes to the kernel before nv_ring_submit or nv_ring_reap.
 */
extern bool nv_ring_read(nv_ring *ring, nv_file *file, void *buf, uint32_t len,
						 uint64_t offset, uint64_t token);
/* The same, writing; buf stays as it is until the completion. */
extern bool nv_ring_write(nv_ring *ring, nv_file *file, const void *buf,
						  uint32_t len, uint64_t offset, uint64_t token);
extern void nv_ring_submit(nv_ring *ring);

/*
 * Submits what is queued and harvests up to max completions; waits until at
 * least one is there when wait is true and something is in flight.  Returns
 * their number.  A completion is reported exactly once.
 */
extern uint32_t nv_ring_reap(nv_ring *ring, nv_completion *out, uint32_t max,
							 bool wait);
extern uint32_t nv_ring_inflight(const nv_ring *ring);

/*
 * Takes a file out of the ring's fixed files, so that closing it really frees
 * its space.  No read of that file may be in flight.
 */
extern void nv_ring_forget(nv_ring *ring, nv_file *file);

#endif
