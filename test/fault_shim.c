/*
 * fault_shim.c
 *		Makes I/O on chosen files fail in a running server (LD_PRELOAD).
 *
 * The file $NAVIS_FAULT is mapped by every process that is started with the
 * shim, so that a test arms and disarms it at any time:
 *
 *	byte 0		'1': armed
 *	rest		"<calls> <errno> <part of a path>", NUL
 *
 * calls is of r (pread), w (pwrite), s (fsync, fdatasync), f (fallocate).
 * errno 0: the process dies by SIGSEGV instead.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONTROL_SIZE 512

static volatile char *control = NULL;

__attribute__((constructor)) static void
map_control(void)
{
	const char *path = getenv("NAVIS_FAULT");
	int fd = path != NULL ? open(path, O_RDONLY) : -1;
	void *p;

	if (fd < 0)
		return;
	p = mmap(NULL, CONTROL_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		control = p;
}

/* Is this call to fail?  Sets errno. */
static int
fails(char call, int fd)
{
	char text[CONTROL_SIZE], calls[8], match[256], link[64], path[1024];
	int number;
	ssize_t n;

	if (control == NULL || control[0] != '1')
		return 0;
	memcpy(text, (const char *) control, sizeof(text));
	text[sizeof(text) - 1] = '\0';
	if (sscanf(text + 1, "%7s %d %255s", calls, &number, match) != 3 ||
		strchr(calls, call) == NULL)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return 0;
	path[n] = '\0';
	if (strstr(path, match) == NULL)
		return 0;
	if (number == 0) /* raise() would wait: engine threads block signals */
		*(volatile int *) 8 = 0;
	errno = number;
	return 1;
}

#define REAL(type, name, ...)                                                  \
	static type (*real)(__VA_ARGS__);                                          \
	if (real == NULL)                                                          \
	*(void **) &real = dlsym(RTLD_NEXT, name)

ssize_t
pread(int fd, void *buf, size_t len, off_t offset)
{
	REAL(ssize_t, "pread", int, void *, size_t, off_t);
	return fails('r', fd) ? -1 : real(fd, buf, len, offset);
}

ssize_t
pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
	return fails('w', fd) ? -1 : real(fd, buf, len, offset);
}

int
fsync(int fd)
{
	REAL(int, "fsync", int);
	return fails('s', fd) ? -1 : real(fd);
}

int
fdatasync(int fd)
{
	REAL(int, "fdatasync", int);
	return fails('s', fd) ? -1 : real(fd);
}

int
fallocate(int fd, int mode, off_t offset, off_t len)
{
	REAL(int, "fallocate", int, int, off_t, off_t);
	return fails('f', fd) ? -1 : real(fd, mode, offset, len);
}
