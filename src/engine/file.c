/*
 * file.c
 *		Files: opening, direct I/O and its alignment, whole-length transfers.
 *
 * A file is opened without O_DIRECT and switched afterwards: a file system
 * that refuses O_DIRECT at open may have created the file by then, and leaves
 * it behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_internal.h"
#include "util.h"

/* Bytes of a path shown in an error text: the end of it tells most. */
#define SHOWN_PATH 120

/* Bytes written at a time where the file system cannot reserve space. */
#define ZERO_CHUNK ((size_t) 256 * 1024)

static atomic_bool fsync_on = true;
static atomic_bool read_only;
static atomic_ullong last_serial;
static const nv_disk *disk; /* NULL: the real one */

void
nv_io_set_fsync(bool on)
{
	atomic_store(&fsync_on, on);
}

void
nv_io_set_disk(const nv_disk *other)
{
	disk = other;
}

const nv_disk *
nv_io_names(void)
{
	return disk != NULL && disk->change != NULL ? disk : NULL;
}

/* Errors */

static nv_status
status_of_errno(int error)
{
	switch (error)
	{
		case ENOSPC:
		case EDQUOT:
		case EFBIG: /* limit of the process or of the file system */
			return NV_ENOSPC;
		case ENOENT:
			return NV_ENOENT;
		case EEXIST:
			return NV_EEXIST;
		case ENOMEM:
			return NV_ENOMEM;
		default:
			return NV_EIO;
	}
}

static const char *
shown_path(const char *path)
{
	size_t len = strlen(path);

	if (len <= SHOWN_PATH)
		return path;
	path += len - SHOWN_PATH;
	while (((unsigned char) *path & 0xc0) == 0x80) /* inside a UTF-8 letter */
		path++;
	return path;
}

/* "could not VERB file ..."; printf's %m is the thread-safe strerror. */
static nv_status
file_failed(const char *verb, const char *path, int error, nv_error *err)
{
	errno = error;
	return nv_fail(err, status_of_errno(error), error,
				   "could not %s \"%s\": %m", verb, shown_path(path));
}

static nv_status
transfer_failed(const nv_file *file, const char *verb, size_t len,
				uint64_t offset, int error, nv_error *err)
{
	nv_status status = status_of_errno(error);

	errno = error;
	return nv_fail(err, status == NV_ENOSPC ? NV_ENOSPC : NV_EIO, error,
				   "could not %s %zu bytes at offset %llu of \"%s\": %m", verb,
				   len, (unsigned long long) offset, shown_path(file->path));
}

/* Operations of real files */

static ssize_t
real_pread(nv_file *file, void *buf, size_t len, uint64_t offset)
{
	ssize_t n = pread(file->fd, buf, len, (off_t) offset);

	return n < 0 ? -errno : n;
}

static ssize_t
real_pwrite(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	ssize_t n = pwrite(file->fd, buf, len, (off_t) offset);

	return n < 0 ? -errno : n;
}

/* fdatasync also makes durable what finding the data needs: size, extents. */
static int
real_sync(nv_file *file)
{
	return fdatasync(file->fd) < 0 ? -errno : 0;
}

static int
real_size(nv_file *file, uint64_t *size)
{
	struct stat st;

	if (fstat(file->fd, &st) < 0)
		return -errno;
	*size = (uint64_t) st.st_size;
	return 0;
}

static int
real_fallocate(nv_file *file, uint64_t size)
{
	return fallocate(file->fd, 0, 0, (off_t) size) < 0 ? -errno : 0;
}

static int
real_truncate(nv_file *file, uint64_t size)
{
	return ftruncate(file->fd, (off_t) size) < 0 ? -errno : 0;
}

static void
real_close(nv_file *file)
{
	close(file->fd);
}

static const nv_file_ops real_ops = {
	.pread = real_pread,
	.pwrite = real_pwrite,
	.sync = real_sync,
	.size = real_size,
	.fallocate = real_fallocate,
	.truncate = real_truncate,
	.close = real_close,
};

/* Direct I/O */

uint32_t
nv_probe_align(int fd)
{
	static const uint32_t units[] = {NV_SECTOR, NV_BLOCK};
	_Alignas(NV_BLOCK) uint8_t buf[2 * NV_BLOCK];

	for (size_t i = 0; i < NV_LENGTH(units); i++)
	{
		ssize_t n;

		/* an address with this alignment and no larger one */
		do
			n = pread(fd, buf + units[i], units[i], 0);
		while (n < 0 && errno == EINTR);
		if (n > 0)
			return units[i];
		/* end of file comes before the check; real errors show later */
		if (n == 0 || errno != EINVAL)
			return NV_BLOCK;
	}
	return 0;
}

/* 0 when direct I/O is refused. */
static uint32_t
direct_align(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
		(stx.stx_mask & STATX_DIOALIGN) != 0)
	{
		uint32_t mem = stx.stx_dio_mem_align;
		uint32_t offset = stx.stx_dio_offset_align;
		uint32_t align = NV_MAX(mem, offset);

		if (mem == 0 || offset == 0 || align > NV_BLOCK)
			return 0;
		return align <= NV_SECTOR ? NV_SECTOR : NV_BLOCK;
	}
#endif
	return nv_probe_align(fd);
}

/* Switches to direct I/O, or stays buffered and says so once a process. */
static void
try_direct(nv_file *file)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	int flags = fcntl(file->fd, F_GETFL);

	if (flags >= 0 && fcntl(file->fd, F_SETFL, flags | O_DIRECT) == 0)
	{
		uint32_t align = direct_align(file->fd);

		if (align != 0)
		{
			file->direct = true;
			file->align = align;
			return;
		}
		fcntl(file->fd, F_SETFL, flags);
	}
	if (!atomic_flag_test_and_set(&logged))
		nv_log(NV_LOG_WARNING,
			   "direct I/O is refused for \"%s\", files there are read and "
			   "written through the page cache",
			   shown_path(file->path));
}

/* Opening and closing */

nv_status
nv_file_new(const nv_file_ops *ops, void *arg, const char *path, int flags,
			nv_file **file, nv_error *err)
{
	nv_file *f = nv_alloc(sizeof(*f));
	char *copy = strdup(path);

	*file = NULL;
	if (f == NULL || copy == NULL)
	{
		free(f);
		free(copy);
		return nv_fail(err, NV_ENOMEM, ENOMEM,
					   "out of memory while opening \"%s\"", shown_path(path));
	}
	f->ops = ops;
	f->arg = arg;
	f->path = copy;
	f->serial = atomic_fetch_add(&last_serial, 1) + 1;
	f->fd = -1;
	f->align = NV_SECTOR;
	f->readonly = (flags & NV_FILE_READONLY) != 0;
	*file = f;
	return NV_OK;
}

static void
file_free(nv_file *file)
{
	free(file->path);
	free(file);
}

void
nv_io_set_readonly(bool on)
{
	atomic_store(&read_only, on);
}

bool
nv_io_readonly(void)
{
	return atomic_load(&read_only);
}

nv_status
nv_file_open(const char *path, int flags, nv_file **file, nv_error *err)
{
	int mode;
	nv_file *f;
	nv_status status;

	*file = NULL;
	if (atomic_load(&read_only))
		flags |= NV_FILE_READONLY;
	mode = flags & NV_FILE_READONLY ? O_RDONLY : O_RDWR;
	if ((flags & NV_FILE_CREATE) != 0 && (flags & NV_FILE_READONLY) != 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "cannot create \"%s\" for reading only",
					   shown_path(path));
	if (disk != NULL)
		return disk->open(disk->arg, path, flags, file, err);
	status = nv_file_new(&real_ops, NULL, path, flags, &f, err);
	if (status != NV_OK)
		return status;
	if ((flags & NV_FILE_CREATE) != 0)
		mode |= O_CREAT | O_EXCL;
	do
		f->fd = open(path, mode | O_CLOEXEC, S_IRUSR | S_IWUSR);
	while (f->fd < 0 && errno == EINTR);
	if (f->fd < 0)
	{
		int error = errno;

		file_free(f);
		return file_failed(flags & NV_FILE_CREATE ? "create" : "open", path,
						   error, err);
	}
	if ((flags & NV_FILE_BUFFERED) == 0)
		try_direct(f);
	*file = f;
	return NV_OK;
}

void
nv_file_close(nv_file *file)
{
	if (file == NULL)
		return;
	file->ops->close(file);
	file_free(file);
}

uint32_t
nv_file_align(const nv_file *file)
{
	return file->align;
}

bool
nv_file_is_direct(const nv_file *file)
{
	return file->direct;
}

const char *
nv_file_path(const nv_file *file)
{
	return file->path;
}

/* Transfers */

/*
 * A read that stopped short is taken up at the last aligned point; it has met
 * the end of the file when that brings nothing new.
 */
nv_status
nv_file_read(nv_file *file, void *buf, size_t len, uint64_t offset,
			 nv_error *err)
{
	size_t base = 0;
	size_t got = 0;

	nv_assert(nv_io_aligned(file, buf, len, offset));
	while (got < len)
	{
		ssize_t n = file->ops->pread(file, (uint8_t *) buf + base, len - base,
									 offset + base);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return transfer_failed(file, "read", len, offset, (int) -n, err);
		if (base + (size_t) n <= got)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "could not read %zu bytes at offset %llu of "
						   "\"%s\": file ends after %zu of them",
						   len, (unsigned long long) offset,
						   shown_path(file->path), got);
		got = base + (size_t) n;
		base = nv_resume_point(file, got);
	}
	return NV_OK;
}

nv_status
nv_file_write(nv_file *file, const void *buf, size_t len, uint64_t offset,
			  nv_error *err)
{
	size_t base = 0;
	size_t put = 0;

	nv_assert(nv_io_aligned(file, buf, len, offset));
	if (file->readonly)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\" is open for reading only",
					   shown_path(file->path));
	while (put < len)
	{
		ssize_t n = file->ops->pwrite(file, (const uint8_t *) buf + base,
									  len - base, offset + base);

		if (n == -EINTR)
			continue;
		/* no error and no progress: the device takes no more */
		if (n >= 0 && base + (size_t) n <= put)
			n = -ENOSPC;
		if (n < 0)
			return transfer_failed(file, "write", len, offset, (int) -n, err);
		put = base + (size_t) n;
		base = nv_resume_point(file, put);
	}
	return NV_OK;
}

/* Never repeated after an error: the kernel may have dropped dirty pages. */
nv_status
nv_file_sync(nv_file *file, nv_error *err)
{
	int rc;

	if (!atomic_load(&fsync_on))
		return NV_OK;
	do
		rc = file->ops->sync(file);
	while (rc == -EINTR);
	return rc < 0 ? file_failed("sync", file->path, -rc, err) : NV_OK;
}

nv_status
nv_file_size(nv_file *file, uint64_t *size, nv_error *err)
{
	int rc = file->ops->size(file, size);

	return rc < 0 ? file_failed("find the size of", file->path, -rc, err)
				  : NV_OK;
}

/*
 * Space for a file system without fallocate: zeros behind the end.  Holes
 * before the end stay holes.  Nobody else may write behind the end meanwhile.
 */
static nv_status
extend_by_zeros(nv_file *file, uint64_t size, nv_error *err)
{
	uint8_t *zeros = NULL;
	uint64_t end;
	nv_status status = nv_file_size(file, &end, err);

	if (status != NV_OK || end >= size)
		return status;
	if (posix_memalign((void **) &zeros, NV_BLOCK, ZERO_CHUNK) != 0)
		return nv_fail(err, NV_ENOMEM, ENOMEM,
					   "out of memory while extending \"%s\"",
					   shown_path(file->path));
	memset(zeros, 0, ZERO_CHUNK);
	/* a ragged end is rounded up: those bytes must not be overwritten */
	end = nv_round_up(end, file->direct ? file->align : 1);
	size = nv_round_up(size, file->direct ? file->align : 1);
	while (status == NV_OK && end < size)
	{
		size_t len = (size_t) NV_MIN(size - end, ZERO_CHUNK);

		status = nv_file_write(file, zeros, len, end, err);
		end += len;
	}
	free(zeros);
	return status;
}

nv_status
nv_file_reserve(nv_file *file, uint64_t size, nv_error *err)
{
	int rc;

	if (file->readonly)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\" is open for reading only",
					   shown_path(file->path));
	if (size == 0)
		return NV_OK;
	do
		rc = file->ops->fallocate(file, size);
	while (rc == -EINTR);
	if (rc == -EOPNOTSUPP || rc == -ENOSYS)
		return extend_by_zeros(file, size, err);
	if (rc < 0)
	{
		nv_status status = status_of_errno(-rc);

		errno = -rc;
		return nv_fail(err, status, -rc,
					   "could not reserve %llu bytes for \"%s\": %m",
					   (unsigned long long) size, shown_path(file->path));
	}
	return NV_OK;
}

nv_status
nv_file_shorten(nv_file *file, uint64_t size, nv_error *err)
{
	uint64_t have;
	nv_status status;
	int rc;

	if (file->readonly)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\" is open for reading only",
					   shown_path(file->path));
	status = nv_file_size(file, &have, err);
	if (status != NV_OK || have <= size)
		return status;
	do
		rc = file->ops->truncate(file, size);
	while (rc == -EINTR);
	return rc < 0 ? file_failed("shorten", file->path, -rc, err) : NV_OK;
}

nv_status
nv_dir_sync(const char *path, nv_error *err)
{
	int fd;
	int error = 0;

	if (!atomic_load(&fsync_on))
		return NV_OK;
	if (disk != NULL)
		return disk->dir_sync(disk->arg, path, err);
	do
		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (fd < 0 && errno == EINTR);
	if (fd < 0)
		return file_failed("open directory", path, errno, err);
	while (fsync(fd) < 0)
	{
		error = errno;
		if (error != EINTR)
			break;
		error = 0;
	}
	close(fd);
	/* file systems whose directories need no sync answer so */
	if (error == EBADF || error == EINVAL)
		error = 0;
	return error != 0 ? file_failed("sync directory", path, error, err) : NV_OK;
}
