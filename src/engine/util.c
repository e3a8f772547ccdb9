/*
 * util.c
 *		Memory, errors, the log and the priority of threads.
 */
#include "util.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKGROUND_NICE 10

void *
nv_alloc(size_t size)
{
	size_t rounded = (size_t) nv_round_up(size == 0 ? 1 : size, 64);
	void *p;

	if (rounded < size)
		return NULL;
	p = aligned_alloc(64, rounded);
	if (p != NULL)
		memset(p, 0, rounded);
	return p;
}

void *
nv_alloc_array(size_t count, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes))
		return NULL;
	return nv_alloc(bytes);
}

nv_status
nv_fail(nv_error *err, nv_status status, int sys_errno, const char *fmt, ...)
{
	va_list args;

	if (err == NULL)
		return status;
	err->status = status;
	err->sys_errno = sys_errno;
	va_start(args, fmt);
	vsnprintf(err->detail, sizeof(err->detail), fmt, args);
	va_end(args);
	return status;
}

const char *
nv_status_name(nv_status status)
{
	static const char *const names[] = {
		[NV_OK] = "ok",
		[NV_ENOMEM] = "out of memory",
		[NV_EIO] = "input/output error",
		[NV_ENOSPC] = "no space left on device",
		[NV_ECORRUPT] = "data corrupted",
		[NV_EVERSION] = "other format version",
		[NV_EFOREIGN] = "belongs to another index",
		[NV_ENOENT] = "does not exist",
		[NV_EEXIST] = "exists already",
		[NV_EBUSY] = "in use",
		[NV_ECANCELLED] = "cancelled",
		[NV_EINVAL] = "invalid argument",
		[NV_ELIMIT] = "limit exceeded",
		[NV_EUNUSABLE] = "not usable",
	};

	if ((size_t) status < NV_LENGTH(names) && names[status] != NULL)
		return names[status];
	return "unknown status";
}

static void
stderr_sink(void *arg, nv_log_level level, const char *line)
{
	static const char *const names[] = {"debug", "info", "warning"};

	fprintf(stderr, "navis %s: %s\n", names[level], line);
}

/* Set before engine threads start and after they ended, so no lock. */
static nv_log_sink log_sink = stderr_sink;
static void *log_arg;

void
nv_set_log_sink(nv_log_sink sink, void *arg)
{
	log_sink = sink != NULL ? sink : stderr_sink;
	log_arg = arg;
}

void
nv_log(nv_log_level level, const char *fmt, ...)
{
	char line[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	log_sink(log_arg, level, line);
}

/* On Linux each thread has a nice value of its own, and may always raise it. */
void
nv_background_thread(void)
{
	(void) setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid),
					   BACKGROUND_NICE);
}
