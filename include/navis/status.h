/*
 * status.h
 *		How the engine reports errors and writes its log.
 *
 * An engine function that can fail returns nv_status and fills an nv_error
 * when the caller passed one (a NULL nv_error is allowed everywhere).  The
 * detail text is in PostgreSQL's style: lower case, no full stop, and it
 * names the value found and the value expected.
 */
#ifndef NAVIS_STATUS_H
#define NAVIS_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum nv_status
{
	NV_OK = 0,
	NV_ENOMEM,     /* allocation failed, or a memory limit is reached */
	NV_EIO,        /* a read, write or sync failed; sys_errno tells */
	NV_ENOSPC,     /* no space left on the device */
	NV_ECORRUPT,   /* checksum, id or bounds of something read do not hold */
	NV_EVERSION,   /* a file of another format version */
	NV_EFOREIGN,   /* a file of another system, database or index */
	NV_ENOENT,     /* no such file, index or cursor */
	NV_EEXIST,     /* exists already */
	NV_EBUSY,      /* somebody else holds it (lock file, running build) */
	NV_ECANCELLED, /* the caller asked to stop */
	NV_EINVAL,     /* an argument out of its range */
	NV_ELIMIT,     /* a stated limit would be exceeded (build_memory, ...) */
	NV_EUNUSABLE   /* index not usable: answer by the exact scan */
} nv_status;

#define NV_DETAIL_SIZE 256

typedef struct nv_error
{
	nv_status status;
	int sys_errno; /* errno of the failed call, 0 if none */
	char detail[NV_DETAIL_SIZE];
} nv_error;

/* Fills err (if not NULL) and returns status: "return nv_fail(...)". */
extern nv_status nv_fail(nv_error *err, nv_status status, int sys_errno,
						 const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* A fixed English word for a status, never NULL. */
extern const char *nv_status_name(nv_status status);

typedef enum nv_log_level
{
	NV_LOG_DEBUG,
	NV_LOG_INFO,
	NV_LOG_WARNING
} nv_log_level;

/*
 * The sink may be called from any engine thread and must not block for long;
 * the default one writes to stderr.  One line a call, without newline.
 */
typedef void (*nv_log_sink)(void *arg, nv_log_level level, const char *line);

extern void nv_set_log_sink(nv_log_sink sink, void *arg);
extern void nv_log(nv_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
