/*
 * test_io.c
 *		Files and rings: contents, limits, refusals and what degrades then.
 *
 * Rings are tried with every set of properties the kernel may leave us.  What
 * only another kernel, a full disk or a low limit would show is provoked in a
 * forked child (seccomp filters, limits, a small tmpfs) or by files of our own
 * operations.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmocka.h>

#include "io_internal.h"
#include "navis/engine.h"
#include "sanitized.h"
#include "util.h"

#define DATA_SIZE ((uint64_t) 16 * 1024 * 1024)
#define WORDS_PER_BLOCK (NV_BLOCK / sizeof(uint64_t))

static char work_dir[1024]; /* on the disk; removed at the end */
static char data_path[1100];

typedef struct variant
{
	const char *name;
	nv_io_method method;
	uint32_t properties;
	bool buffered;
} variant;

static const variant variants[] = {
	{"io_uring, everything", NV_IO_URING, NV_RING_EVERYTHING, false},
	{"io_uring, cooperative", NV_IO_URING,
	 NV_RING_COOP | NV_RING_FIXED_BUFFERS | NV_RING_FIXED_FILES, false},
	{"io_uring, deferred, nothing fixed", NV_IO_URING, NV_RING_DEFER, false},
	{"io_uring, plain", NV_IO_URING, 0, false},
	{"io_uring, buffered", NV_IO_URING, NV_RING_EVERYTHING, true},
	{"sync", NV_IO_SYNC, 0, false},
	{"sync, buffered", NV_IO_SYNC, 0, true},
};

/* Word number i of the data file. */
static uint64_t
word_at(uint64_t i)
{
	return nv_random_seed(i);
}

static bool
content_is_right(const void *buf, size_t len, uint64_t offset)
{
	const uint64_t *words = buf;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		if (words[i] != word_at(offset / sizeof(*words) + i))
			return false;
	return true;
}

static uint8_t *
aligned_memory(size_t size)
{
	uint8_t *p = aligned_alloc(NV_BLOCK, size);

	assert_non_null(p);
	memset(p, 0xa5, size);
	return p;
}

static char *
path_in(const char *dir, const char *name)
{
	static char path[1200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static nv_ring *
ring_of(const variant *v, size_t arena)
{
	nv_ring *ring;
	nv_error err;

	if (nv_ring_create_with(v->method, arena, v->properties, &ring, &err) !=
		NV_OK)
	{
		/* Other processes of the user hold the memory that may be locked. */
		if (v->method == NV_IO_URING && err.sys_errno == ENOMEM)
			skip();
		fail_msg("%s: %s", v->name, err.detail);
	}
	return ring;
}

static nv_file *
data_file(bool buffered)
{
	nv_file *file;
	int flags = NV_FILE_READONLY | (buffered ? NV_FILE_BUFFERED : 0);

	assert_int_equal(nv_file_open(data_path, flags, &file, NULL), NV_OK);
	return file;
}

/* False in containers that refuse io_uring: then only its refusal is tried. */
static bool
have_uring(void)
{
	nv_ring *ring;

	if (nv_ring_create(NV_IO_URING, 0, &ring, NULL) != NV_OK)
		return false;
	nv_ring_destroy(ring);
	return true;
}

#define NEEDS_URING()                                                          \
	do                                                                         \
	{                                                                          \
		if (!have_uring())                                                     \
			skip();                                                            \
	} while (0)

/* Runs the body for each variant that is possible here. */
#define FOR_EACH_VARIANT(v)                                                    \
	for (const variant *v = variants; v < variants + NV_LENGTH(variants); v++) \
		if (v->method == NV_IO_SYNC || have_uring())

/* Log lines, counted. */

static atomic_uint log_lines;
static char last_line[512];

static void
counting_sink(void *arg, nv_log_level level, const char *line)
{
	if (level == NV_LOG_DEBUG)
		return;
	atomic_fetch_add(&log_lines, 1);
	snprintf(last_line, sizeof(last_line), "%s", line);
}

/*
 * Children.  A child function returns 0, SKIPPED or the line of the check that
 * failed.
 */
#define SKIPPED (-1)
#define CHECK(cond)                                                            \
	do                                                                         \
	{                                                                          \
		if (!(cond))                                                           \
		{                                                                      \
			fprintf(stderr, "child: line %d: %s\n", __LINE__, #cond);          \
			return __LINE__;                                                   \
		}                                                                      \
	} while (0)

static void
in_child(int (*run)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
	{
		int rc;

		alarm(60);
		atomic_store(&log_lines, 0);
		nv_set_log_sink(counting_sink, NULL);
		rc = run();
		_exit(rc == 0 ? 0 : rc == SKIPPED ? 2 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		skip();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Makes one system call fail; with arg1 >= 0 only when its second argument
 * has one of these bits. */
static bool
forbid(long call, int error, int64_t arg1)
{
	uint32_t low_word_of_arg1 = offsetof(struct seccomp_data, args[1]);
	uint32_t refuse = SECCOMP_RET_ERRNO | (uint32_t) error;
	uint32_t bits = arg1 < 0 ? 0 : (uint32_t) arg1;
	struct sock_filter any[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t) call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, refuse),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_filter some[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t) call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_word_of_arg1),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, refuse),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {NV_LENGTH(any), any};

	if (arg1 >= 0)
	{
		prog.len = NV_LENGTH(some);
		prog.filter = some;
	}
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
		   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0) == 0;
}

/* Reads the start of the data file by the ring; 0 or the failed line. */
static int
reads_right(nv_ring *ring, nv_file *file, uint32_t count)
{
	nv_completion done;
	uint8_t *arena = nv_ring_arena(ring);

	for (uint32_t i = 0; i < count; i++)
	{
		CHECK(nv_ring_read(ring, file, arena, NV_BLOCK, i * NV_BLOCK, i));
		CHECK(nv_ring_reap(ring, &done, 1, true) == 1);
		CHECK(done.token == i && done.result == NV_BLOCK);
		CHECK(content_is_right(arena, NV_BLOCK, i * NV_BLOCK));
	}
	return 0;
}

/* Random reads */

typedef struct reader
{
	nv_ring *ring;
	nv_file *file;
	uint8_t *outside; /* buffers that are not the arena's */
	uint64_t offsets[NV_RING_DEPTH];
	uint32_t lengths[NV_RING_DEPTH];
	bool busy[NV_RING_DEPTH];
	uint64_t random;
} reader;

#define LONGEST_READ (4 * NV_BLOCK)

/* Even tokens read into the arena, odd ones elsewhere. */
static uint8_t *
buffer_of(reader *r, uint64_t token)
{
	uint8_t *base = token % 2 == 0 ? nv_ring_arena(r->ring) : r->outside;

	return base + token / 2 * LONGEST_READ;
}

static bool
start_read(reader *r, uint64_t token)
{
	uint32_t unit = nv_file_align(r->file);
	uint64_t units = DATA_SIZE / unit;
	uint32_t most = LONGEST_READ / unit;
	uint64_t len = 1 + nv_random_below(&r->random, most);
	uint64_t at = nv_random_below(&r->random, units - len + 1);

	r->busy[token] = true;
	r->offsets[token] = at * unit;
	r->lengths[token] = (uint32_t) len * unit;
	memset(buffer_of(r, token), 0xa5, r->lengths[token]);
	return nv_ring_read(r->ring, r->file, buffer_of(r, token),
						r->lengths[token], r->offsets[token], token);
}

static bool
check_completion(reader *r, const nv_completion *c)
{
	bool right = c->token < NV_RING_DEPTH && r->busy[c->token] &&
				 c->result == (int32_t) r->lengths[c->token] &&
				 content_is_right(buffer_of(r, c->token), r->lengths[c->token],
								  r->offsets[c->token]);

	if (c->token < NV_RING_DEPTH)
		r->busy[c->token] = false;
	return right;
}

/* Keeps up to depth reads in flight until count are done; their mistakes. */
static uint32_t
read_at_random(nv_ring *ring, nv_file *file, uint32_t depth, uint32_t count)
{
	reader *r = calloc(1, sizeof(*r));
	nv_completion done[NV_RING_DEPTH];
	uint32_t started = 0;
	uint32_t finished = 0;
	uint32_t wrong = 0;

	r->ring = ring;
	r->file = file;
	r->outside = aligned_memory(NV_RING_DEPTH / 2 * LONGEST_READ);
	r->random = nv_random_seed(depth);
	while (finished < count)
	{
		uint32_t n;

		for (uint64_t t = 0; t < depth && started < count; t++)
			if (!r->busy[t])
			{
				wrong += !start_read(r, t);
				started++;
			}
		if (started % 3 == 0)
			nv_ring_submit(ring);
		n = nv_ring_reap(ring, done, 1 + started % depth, started % 5 != 0);
		for (uint32_t i = 0; i < n; i++)
			wrong += !check_completion(r, &done[i]);
		finished += n;
	}
	wrong += nv_ring_inflight(ring);
	free(r->outside);
	free(r);
	return wrong;
}

static void
test_random_reads(void **state)
{
	static const uint32_t depths[] = {1, 7, 32, NV_RING_DEPTH};

	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, NV_RING_DEPTH / 2 * LONGEST_READ);
		nv_file *file = data_file(v->buffered);

		assert_int_equal(nv_ring_is_uring(ring), v->method == NV_IO_URING);
		assert_int_equal(nv_ring_has(ring) & ~v->properties, 0);
		for (size_t i = 0; i < NV_LENGTH(depths); i++)
			assert_int_equal(read_at_random(ring, file, depths[i], 800), 0);
		nv_ring_forget(ring, file);
		nv_file_close(file);
		nv_ring_destroy(ring);
	}
}

/* The newest kernels grant everything: a silent loss of it would be a bug. */
static void
test_properties_granted(void **state)
{
	nv_ring *ring;
	nv_file *file = data_file(false);

	NEEDS_URING();
	ring = ring_of(&variants[0], 4 * NV_BLOCK);
	assert_int_equal(reads_right(ring, file, 3), 0);
	if ((nv_ring_has(ring) & NV_RING_DEFER) != 0)
		assert_int_equal(nv_ring_has(ring), NV_RING_EVERYTHING & ~NV_RING_COOP);
	nv_ring_destroy(ring);
	nv_file_close(file);
}

/* One ring a thread, one file. */

static void *
read_in_thread(void *arg)
{
	nv_file *file = arg;
	nv_ring *ring;
	uintptr_t wrong = 1;

	if (nv_ring_create(NV_IO_AUTO, NV_RING_DEPTH / 2 * LONGEST_READ, &ring,
					   NULL) == NV_OK)
	{
		wrong = read_at_random(ring, file, 16, 1000);
		nv_ring_destroy(ring);
	}
	return (void *) wrong;
}

static void
test_threads(void **state)
{
	nv_file *file = data_file(false);
	pthread_t threads[4];

	for (size_t i = 0; i < NV_LENGTH(threads); i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, read_in_thread, file), 0);
	for (size_t i = 0; i < NV_LENGTH(threads); i++)
	{
		void *wrong;

		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	nv_file_close(file);
}

static void
test_depth_limit(void **state)
{
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, NV_RING_DEPTH * NV_BLOCK);
		nv_file *file = data_file(v->buffered);
		bool seen[NV_RING_DEPTH] = {false};
		nv_completion done[NV_RING_DEPTH];
		uint32_t got = 0;

		assert_int_equal(nv_ring_reap(ring, done, 1, true), 0);
		for (uint32_t i = 0; i < NV_RING_DEPTH; i++)
			assert_true(nv_ring_read(ring, file,
									 nv_ring_arena(ring) + i * NV_BLOCK,
									 NV_BLOCK, i * NV_BLOCK, i));
		assert_false(nv_ring_read(ring, file, nv_ring_arena(ring), NV_BLOCK, 0,
								  NV_RING_DEPTH));
		nv_ring_submit(ring);
		assert_false(nv_ring_read(ring, file, nv_ring_arena(ring), NV_BLOCK, 0,
								  NV_RING_DEPTH));
		assert_int_equal(nv_ring_inflight(ring), NV_RING_DEPTH);
		while (got < NV_RING_DEPTH)
		{
			uint32_t n = nv_ring_reap(ring, done, 100, true);

			assert_in_range(n, 1, 100);
			for (uint32_t i = 0; i < n; i++)
			{
				assert_false(seen[done[i].token]);
				seen[done[i].token] = true;
				assert_int_equal(done[i].result, NV_BLOCK);
			}
			got += n;
			assert_int_equal(nv_ring_inflight(ring), NV_RING_DEPTH - got);
		}
		assert_true(
			content_is_right(nv_ring_arena(ring), NV_RING_DEPTH * NV_BLOCK, 0));
		nv_ring_forget(ring, file);
		nv_file_close(file);
		nv_ring_destroy(ring);
	}
}

/* Writes go out of order and come back; what a file refuses is an error. */
static void
test_ring_writes(void **state)
{
	enum
	{
		BLOCKS = 20
	};
	uint8_t *all = aligned_memory(BLOCKS * NV_BLOCK);
	uint8_t *back = aligned_memory(BLOCKS * NV_BLOCK);

	for (uint64_t i = 0; i < BLOCKS * WORDS_PER_BLOCK; i++)
		((uint64_t *) (void *) all)[i] = word_at(i);
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, BLOCKS * NV_BLOCK);
		const char *path = path_in(work_dir, "written");
		nv_file *file, *sealed = data_file(v->buffered);
		nv_completion done;
		int flags = NV_FILE_CREATE | (v->buffered ? NV_FILE_BUFFERED : 0);

		assert_int_equal(nv_file_open(path, flags, &file, NULL), NV_OK);
		for (uint32_t i = BLOCKS; i-- > 0;)
			assert_true(nv_ring_write(ring, file, all + i * NV_BLOCK, NV_BLOCK,
									  i * NV_BLOCK, i));
		for (uint32_t i = 0; i < BLOCKS; i++)
		{
			assert_int_equal(nv_ring_reap(ring, &done, 1, true), 1);
			assert_int_equal(done.result, NV_BLOCK);
		}
		assert_int_equal(nv_file_read(file, back, BLOCKS * NV_BLOCK, 0, NULL),
						 NV_OK);
		assert_memory_equal(all, back, BLOCKS * NV_BLOCK);
		assert_true(nv_ring_write(ring, sealed, all, NV_BLOCK, 0, 7));
		assert_int_equal(nv_ring_reap(ring, &done, 1, true), 1);
		assert_int_equal(done.token, 7);
		assert_int_equal(done.result, -EBADF);
		nv_ring_forget(ring, file);
		nv_ring_forget(ring, sealed);
		nv_file_close(file);
		nv_file_close(sealed);
		nv_ring_destroy(ring);
		assert_int_equal(unlink(path), 0);
	}
	free(all);
	free(back);
}

static nv_completion
read_one(nv_ring *ring, nv_file *file, void *buf, uint32_t len, uint64_t offset)
{
	nv_completion done = {0, 0};

	assert_true(nv_ring_read(ring, file, buf, len, offset, 77));
	assert_int_equal(nv_ring_reap(ring, &done, 1, true), 1);
	assert_int_equal(done.token, 77);
	assert_int_equal(nv_ring_inflight(ring), 0);
	return done;
}

/* A file of 2 blocks and 904 bytes: its end is aligned to nothing. */
static void
make_ragged(const char *path)
{
	static uint64_t words[2 * WORDS_PER_BLOCK + 113];
	nv_file *file;

	for (size_t i = 0; i < NV_LENGTH(words); i++)
		words[i] = word_at(i);
	assert_int_equal(
		nv_file_open(path, NV_FILE_CREATE | NV_FILE_BUFFERED, &file, NULL),
		NV_OK);
	assert_int_equal(nv_file_write(file, words, sizeof(words), 0, NULL), NV_OK);
	assert_int_equal(nv_file_sync(file, NULL), NV_OK);
	nv_file_close(file);
}

static void
test_past_end(void **state)
{
	char *path = path_in(work_dir, "ragged");

	make_ragged(path);
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, 4 * NV_BLOCK);
		uint8_t *arena = nv_ring_arena(ring);
		nv_file *file;
		nv_error err;
		int flags = v->buffered ? NV_FILE_BUFFERED : 0;

		assert_int_equal(nv_file_open(path, flags, &file, NULL), NV_OK);
		assert_int_equal(read_one(ring, file, arena, 2 * NV_BLOCK, 0).result,
						 2 * NV_BLOCK);
		assert_int_equal(read_one(ring, file, arena, 4 * NV_BLOCK, 0).result,
						 2 * NV_BLOCK + 904);
		assert_true(content_is_right(arena, 2 * NV_BLOCK + 904, 0));
		assert_int_equal(
			read_one(ring, file, arena, NV_BLOCK, 2 * NV_BLOCK).result, 904);
		assert_int_equal(
			read_one(ring, file, arena, NV_BLOCK, 3 * NV_BLOCK).result, 0);
		assert_int_equal(
			read_one(ring, file, arena, NV_BLOCK, 300 * NV_BLOCK).result, 0);
		assert_int_equal(nv_file_read(file, arena, 2 * NV_BLOCK, 0, &err),
						 NV_OK);
		assert_int_equal(
			nv_file_read(file, arena, 2 * NV_BLOCK, NV_BLOCK, &err),
			NV_ECORRUPT);
		assert_non_null(strstr(err.detail, "ragged"));
		assert_non_null(strstr(err.detail, "8192 bytes at offset 4096"));
		assert_non_null(strstr(err.detail, "after 5000"));
		nv_ring_forget(ring, file);
		nv_file_close(file);
		nv_ring_destroy(ring);
	}
	assert_int_equal(unlink(path), 0);
}

/*
 * A read lease is granted only while nobody has the file open for writing, in
 * whatever way: so it tells whether a ring still holds the file, and with it
 * the space of an unlinked one.
 */
static bool
held_for_writing(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
	{
		assert_int_equal(errno, EAGAIN);
		return true;
	}
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return false;
}

/* Older kernels let go of fixed files a moment later. */
static bool
let_go_soon(int fd)
{
	for (int i = 0; i < 5000; i++)
	{
		if (!held_for_writing(fd))
			return true;
		usleep(1000);
	}
	return false;
}

/* Uses a new file by the ring and unlinks it; *watch sees who holds it. */
static nv_file *
used_and_unlinked(nv_ring *ring, int *watch)
{
	char *path = path_in(work_dir, "unlinked");
	uint8_t *arena = nv_ring_arena(ring);
	nv_file *file;

	assert_int_equal(nv_file_open(path, NV_FILE_CREATE, &file, NULL), NV_OK);
	assert_int_equal(nv_file_write(file, arena, NV_BLOCK, 0, NULL), NV_OK);
	*watch = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*watch >= 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(read_one(ring, file, arena, NV_BLOCK, 0).result, NV_BLOCK);
	assert_true(held_for_writing(*watch));
	return file;
}

static void
test_forget_frees(void **state)
{
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, NV_BLOCK);
		nv_ring *other = ring_of(v, NV_BLOCK);
		nv_file *file;
		int watch;

		file = used_and_unlinked(ring, &watch);
		nv_ring_forget(other, file); /* never seen: no harm */
		nv_ring_forget(ring, file);
		nv_file_close(file);
		assert_true(let_go_soon(watch));
		close(watch);

		/* without forgetting, a fixed file stays held until the ring ends */
		file = used_and_unlinked(ring, &watch);
		nv_file_close(file);
		assert_int_equal(held_for_writing(watch),
						 (nv_ring_has(ring) & NV_RING_FIXED_FILES) != 0);
		nv_ring_destroy(ring);
		assert_true(let_go_soon(watch));
		close(watch);
		nv_ring_destroy(other);
	}
}

/* More files than places, in turn; then their places serve new files. */
static void
test_many_files(void **state)
{
	enum
	{
		FILES = NV_RING_MAX_FILES + 20
	};

	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, 8 * NV_BLOCK);
		nv_file *files[FILES];
		nv_file *file;
		int watch;

		for (int round = 0; round < 3; round++)
		{
			for (int i = 0; i < FILES; i++)
			{
				files[i] = data_file(v->buffered);
				assert_int_equal(reads_right(ring, files[i], 2), 0);
			}
			for (int i = FILES - 1; i >= 0; i--)
			{
				assert_int_equal(reads_right(ring, files[i], 1), 0);
				nv_ring_forget(ring, files[i]);
				nv_file_close(files[i]);
			}
		}
		/* a place is free again: a file closed unforgotten stays in it */
		file = used_and_unlinked(ring, &watch);
		nv_file_close(file);
		assert_int_equal(held_for_writing(watch),
						 (nv_ring_has(ring) & NV_RING_FIXED_FILES) != 0);
		close(watch);
		nv_ring_destroy(ring);
	}
}

/* A pipe behind io_uring: reads that really come in pieces, when we like. */

static nv_status
no_close_pipe(nv_file **file, int fds[2])
{
	static nv_file_ops ops; /* the kernel reads by descriptor, not by ops */
	nv_status status;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return NV_EIO;
	status = nv_file_new(&ops, NULL, "pipe", NV_FILE_READONLY, file, NULL);
	if (status == NV_OK)
		(*file)->fd = fds[0];
	return status;
}

static void
free_pipe(nv_file *file, int fds[2])
{
	close(fds[0]);
	if (fds[1] >= 0)
		close(fds[1]);
	free(file->path);
	free(file);
}

static void
test_short_reads_uring(void **state)
{
	NEEDS_URING();
	for (const variant *v = variants; v->method == NV_IO_URING; v++)
	{
		nv_ring *ring = ring_of(v, NV_BLOCK);
		uint8_t *arena = nv_ring_arena(ring);
		nv_completion done;
		nv_file *file;
		int fds[2];

		assert_int_equal(no_close_pipe(&file, fds), NV_OK);
		assert_true(nv_ring_read(ring, file, arena, 12, 0, 1));
		nv_ring_submit(ring);
		assert_int_equal(nv_ring_reap(ring, &done, 1, false), 0);
		for (int i = 0; i < 3; i++)
		{
			assert_int_equal(nv_ring_reap(ring, &done, 1, false), 0);
			assert_int_equal(write(fds[1], "abcd", 4), 4);
		}
		assert_int_equal(nv_ring_reap(ring, &done, 1, true), 1);
		assert_int_equal(done.result, 12);
		assert_memory_equal(arena, "abcdabcdabcd", 12);

		/* the end: what came before it is reported */
		assert_true(nv_ring_read(ring, file, arena, 12, 0, 2));
		nv_ring_submit(ring);
		assert_int_equal(write(fds[1], "efghi", 5), 5);
		assert_int_equal(nv_ring_reap(ring, &done, 1, false), 0);
		close(fds[1]);
		fds[1] = -1;
		assert_int_equal(nv_ring_reap(ring, &done, 1, true), 1);
		assert_int_equal(done.token, 2);
		assert_int_equal(done.result, 5);
		assert_memory_equal(arena, "efghibcdabcd", 12);
		nv_ring_forget(ring, file);
		free_pipe(file, fds);
		nv_ring_destroy(ring);
	}
}

typedef struct late_writer
{
	int fd;
	atomic_bool written;
} late_writer;

static void *
write_late(void *arg)
{
	late_writer *late = arg;

	usleep(50000);
	atomic_store(&late->written, true);
	if (write(late->fd, "0123456789abcdef", 16) != 16)
		abort();
	return NULL;
}

static void
handler_that_does_nothing(int signo)
{
}

/* Signals interrupt the wait again and again; it goes on. */
static void *
interrupt_often(void *arg)
{
	for (int i = 0; i < 20; i++)
	{
		usleep(1000);
		pthread_kill(*(pthread_t *) arg, SIGUSR1);
	}
	return NULL;
}

/* Starts a read that the kernel cannot finish before the writer has written. */
static void
start_unfinished(nv_ring *ring, nv_file *file, void *buf, uint64_t token)
{
	nv_completion done;

	assert_true(nv_ring_read(ring, file, buf, 8, 0, token));
	nv_ring_submit(ring);
	assert_int_equal(nv_ring_reap(ring, &done, 1, false), 0);
	assert_int_equal(nv_ring_inflight(ring), token);
}

static void
test_destroy_drains(void **state)
{
	struct sigaction act = {.sa_handler = handler_that_does_nothing};
	pthread_t self = pthread_self();

	NEEDS_URING();
	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	for (const variant *v = variants; v->method == NV_IO_URING; v++)
	{
		nv_ring *ring = ring_of(v, NV_BLOCK);
		uint8_t *outside = aligned_memory(NV_BLOCK);
		late_writer late = {.written = false};
		pthread_t writer;
		pthread_t interrupter;
		nv_file *file;
		int fds[2];

		assert_int_equal(no_close_pipe(&file, fds), NV_OK);
		late.fd = fds[1];
		start_unfinished(ring, file, nv_ring_arena(ring), 1);
		start_unfinished(ring, file, outside, 2);
		pthread_create(&writer, NULL, write_late, &late);
		pthread_create(&interrupter, NULL, interrupt_often, &self);
		nv_ring_destroy(ring);
		assert_true(atomic_load(&late.written));
		pthread_join(writer, NULL);
		pthread_join(interrupter, NULL);
		assert_true(memcmp(outside, "01234567", 8) == 0 ||
					memcmp(outside, "89abcdef", 8) == 0);
		free(outside);
		free_pipe(file, fds);
	}
}

/* Hundreds of reads of a disk in flight at the end, not one reaped. */
static void
test_destroy_full(void **state)
{
	FOR_EACH_VARIANT(v)
	{
		nv_file *file = data_file(v->buffered);
		uint8_t *outside = aligned_memory(NV_RING_DEPTH * NV_BLOCK);

		for (int round = 0; round < 5; round++)
		{
			nv_ring *ring = ring_of(v, NV_RING_DEPTH * NV_BLOCK);

			for (uint32_t i = 0; i < NV_RING_DEPTH; i++)
			{
				uint8_t *base = i % 2 ? outside : nv_ring_arena(ring);

				assert_true(nv_ring_read(ring, file, base + i * NV_BLOCK,
										 NV_BLOCK, i * NV_BLOCK, i));
				if (i == NV_RING_DEPTH / 2)
					nv_ring_submit(ring);
			}
			nv_ring_destroy(ring);
			/* complete already: nothing is written here any more */
			for (uint32_t i = 1; i < NV_RING_DEPTH; i += 2)
				assert_true(content_is_right(outside + i * NV_BLOCK, NV_BLOCK,
											 i * NV_BLOCK));
			memset(outside, 0, NV_RING_DEPTH * NV_BLOCK);
		}
		free(outside);
		nv_file_close(file);
	}
}

/* A simulated disk: one file in memory that misbehaves as told. */

typedef struct fake
{
	uint8_t data[16];
	uint64_t size;
	size_t most;     /* bytes a transfer */
	int error;       /* -errno of the next failures ... */
	int error_count; /* ... and how many there are, -1: for ever */
	int calls;
	int syncs;
	int dir_syncs;
	int closes;
	bool no_fallocate;
} fake;

static bool
fake_fails(fake *f)
{
	f->calls++;
	if (f->error_count == 0)
		return false;
	if (f->error_count > 0)
		f->error_count--;
	return true;
}

static ssize_t
fake_pread(nv_file *file, void *buf, size_t len, uint64_t offset)
{
	fake *f = file->arg;

	if (!nv_io_aligned(file, buf, len, offset))
		return -EINVAL;
	if (fake_fails(f))
		return f->error;
	if (offset >= f->size)
		return 0;
	len = NV_MIN(NV_MIN(len, f->most), f->size - offset);
	memcpy(buf, f->data + offset, len);
	return (ssize_t) len;
}

static ssize_t
fake_pwrite(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	fake *f = file->arg;

	if (!nv_io_aligned(file, buf, len, offset))
		return -EINVAL;
	if (fake_fails(f))
		return f->error;
	if (offset >= sizeof(f->data))
		return 0;
	len = NV_MIN(NV_MIN(len, f->most), sizeof(f->data) - offset);
	memcpy(f->data + offset, buf, len);
	f->size = NV_MAX(f->size, offset + len);
	return (ssize_t) len;
}

static int
fake_sync(nv_file *file)
{
	fake *f = file->arg;

	f->syncs++;
	return fake_fails(f) ? f->error : 0;
}

static int
fake_size(nv_file *file, uint64_t *size)
{
	*size = ((fake *) file->arg)->size;
	return 0;
}

static int
fake_fallocate(nv_file *file, uint64_t size)
{
	fake *f = file->arg;

	if (f->no_fallocate)
		return -EOPNOTSUPP;
	if (fake_fails(f))
		return f->error;
	f->size = NV_MAX(f->size, size);
	return 0;
}

static int
fake_truncate(nv_file *file, uint64_t size)
{
	fake *f = file->arg;

	if (fake_fails(f))
		return f->error;
	f->size = size;
	return 0;
}

static void
fake_close(nv_file *file)
{
	((fake *) file->arg)->closes++;
}

static const nv_file_ops fake_ops = {fake_pread, fake_pwrite,    fake_sync,
									 fake_size,  fake_fallocate, fake_truncate,
									 fake_close};

static nv_status
fake_open(void *arg, const char *path, int flags, nv_file **file, nv_error *err)
{
	return nv_file_new(&fake_ops, arg, path, flags, file, err);
}

static nv_status
fake_dir_sync(void *arg, const char *path, nv_error *err)
{
	((fake *) arg)->dir_syncs++;
	return NV_OK;
}

static nv_file *
open_fake(fake *f, const char *path)
{
	const nv_disk simulated = {
		.open = fake_open, .dir_sync = fake_dir_sync, .arg = f};
	nv_file *file;

	nv_io_set_disk(&simulated);
	assert_int_equal(nv_file_open(path, NV_FILE_CREATE, &file, NULL), NV_OK);
	assert_int_equal(nv_dir_sync("nowhere", NULL), NV_OK);
	nv_io_set_disk(NULL);
	return file;
}

static void
test_simulated_disk(void **state)
{
	fake f = {.most = 5};
	nv_file *file = open_fake(&f, "simulated");
	char back[16];

	assert_int_equal(f.dir_syncs, 1);
	assert_int_equal(nv_file_write(file, "0123456789abcdef", 16, 0, NULL),
					 NV_OK);
	assert_int_equal(f.calls, 4);
	assert_int_equal(nv_file_read(file, back, 16, 0, NULL), NV_OK);
	assert_memory_equal(back, "0123456789abcdef", 16);
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, NV_BLOCK);
		nv_completion done;

		memset(back, 0, sizeof(back));
		assert_int_equal(read_one(ring, file, back, 16, 0).result, 16);
		assert_memory_equal(back, "0123456789abcdef", 16);
		assert_int_equal(read_one(ring, file, back, 16, 9).result, 7);
		assert_memory_equal(back, "9abcdef", 7);

		/* passing refusals are tried again, lasting ones are reported */
		f.error = -EAGAIN;
		f.error_count = NV_RING_RETRIES;
		assert_int_equal(read_one(ring, file, back, 16, 0).result, 16);
		f.error = -EINTR;
		f.error_count = -1;
		assert_int_equal(read_one(ring, file, back, 16, 0).result, -EINTR);
		f.error = -EIO;
		f.error_count = 1;
		assert_int_equal(read_one(ring, file, back, 16, 0).result, -EIO);
		f.error_count = 0;

		/* two files, two kinds, one ring */
		assert_true(nv_ring_read(ring, file, back, 16, 0, 1));
		assert_int_equal(nv_ring_reap(ring, &done, 1, true), 1);
		nv_ring_forget(ring, file);
		nv_ring_destroy(ring);
	}
	nv_file_close(file);
	assert_int_equal(f.closes, 1);
}

/* Direct transfers that stop at odd places go on from aligned ones. */
static void
test_direct_resumes_aligned(void **state)
{
	fake f = {.most = 7};
	nv_file *file = open_fake(&f, "direct");
	_Alignas(16) char from[] = "0123456789abcdef";
	_Alignas(16) char back[16];

	file->direct = true;
	file->align = 4;
	assert_int_equal(nv_file_write(file, from, 16, 0, NULL), NV_OK);
	assert_memory_equal(f.data, from, 16);
	assert_int_equal(nv_file_read(file, back, 16, 0, NULL), NV_OK);
	assert_memory_equal(back, from, 16);
	f.size = 14;
	assert_int_equal(nv_file_read(file, back, 16, 0, NULL), NV_ECORRUPT);
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, NV_BLOCK);

		memset(back, 0, sizeof(back));
		assert_int_equal(read_one(ring, file, back, 16, 0).result, 14);
		assert_memory_equal(back, from, 14);
		assert_int_equal(read_one(ring, file, back, 12, 0).result, 12);
		nv_ring_destroy(ring);
	}
	nv_file_close(file);
}

static void
test_errors_named(void **state)
{
	fake f = {.most = 16};
	char path[400];
	nv_file *file;
	nv_error err;
	char buf[16] = {0};

	memset(path, 'x', sizeof(path));
	memcpy(path + sizeof(path) - 8, "/name.e", 8);
	file = open_fake(&f, path);
	f.error = -EIO;
	f.error_count = -1;
	assert_int_equal(nv_file_read(file, buf, 12, 4, &err), NV_EIO);
	assert_int_equal(err.sys_errno, EIO);
	assert_non_null(strstr(err.detail, "could not read 12 bytes at offset 4"));
	assert_non_null(strstr(err.detail, "/name.e\": Input/output error"));
	assert_int_equal(nv_file_write(file, buf, 12, 4, &err), NV_EIO);
	assert_non_null(strstr(err.detail, "could not write 12 bytes at offset 4"));
	f.syncs = 0;
	assert_int_equal(nv_file_sync(file, &err), NV_EIO);
	assert_int_equal(f.syncs, 1); /* never repeated */
	assert_non_null(strstr(err.detail, "could not sync"));
	f.error = -ENOSPC;
	assert_int_equal(nv_file_write(file, buf, 12, 4, &err), NV_ENOSPC);
	assert_non_null(strstr(err.detail, "No space left on device"));
	assert_int_equal(nv_file_reserve(file, 12, &err), NV_ENOSPC);
	assert_non_null(strstr(err.detail, "could not reserve 12 bytes"));
	f.error = -EINTR;
	f.error_count = 3;
	assert_int_equal(nv_file_write(file, buf, 12, 4, NULL), NV_OK);
	f.error_count = 3;
	assert_int_equal(nv_file_read(file, buf, 12, 4, NULL), NV_OK);
	f.error_count = 3;
	assert_int_equal(nv_file_sync(file, NULL), NV_OK);

	/* a device that takes nothing more without saying why */
	assert_int_equal(nv_file_write(file, buf, 8, 12, &err), NV_ENOSPC);
	nv_file_close(file);
}

static void
test_reserve_by_zeros(void **state)
{
	fake f = {.most = 3, .no_fallocate = true};
	nv_file *file = open_fake(&f, "zeros");
	nv_error err;

	assert_int_equal(nv_file_write(file, "abc", 3, 0, NULL), NV_OK);
	memset(f.data + 3, 0xff, 13);
	assert_int_equal(nv_file_reserve(file, 2, NULL), NV_OK);
	assert_int_equal(f.size, 3);
	assert_int_equal(nv_file_reserve(file, 10, NULL), NV_OK);
	assert_int_equal(f.size, 10);
	assert_memory_equal(f.data, "abc\0\0\0\0\0\0\0\xff", 11);
	assert_int_equal(nv_file_reserve(file, 20, &err), NV_ENOSPC);
	nv_file_close(file);
}

static void
test_shorten(void **state)
{
	fake f = {.most = 16};
	nv_file *file = open_fake(&f, "short");
	nv_error err;

	assert_int_equal(nv_file_write(file, "abcdefgh", 8, 0, NULL), NV_OK);
	assert_int_equal(nv_file_shorten(file, 9, NULL), NV_OK);
	assert_int_equal(f.size, 8);
	f.error = -EINTR;
	f.error_count = 2;
	assert_int_equal(nv_file_shorten(file, 4, NULL), NV_OK);
	assert_int_equal(f.size, 4);
	f.error = -EIO;
	f.error_count = 1;
	assert_int_equal(nv_file_shorten(file, 0, &err), NV_EIO);
	assert_non_null(strstr(err.detail, "could not shorten \"short\""));
	assert_int_equal(f.size, 4);
	nv_file_close(file);
}

static void
test_fsync_off(void **state)
{
	fake f = {.most = 16};
	nv_file *file = open_fake(&f, "nosync");

	nv_io_set_fsync(false);
	assert_int_equal(nv_file_sync(file, NULL), NV_OK);
	assert_int_equal(f.syncs, 0);
	assert_int_equal(nv_dir_sync("/does/not/exist", NULL), NV_OK);
	nv_io_set_fsync(true);
	assert_int_equal(nv_file_sync(file, NULL), NV_OK);
	assert_int_equal(f.syncs, 1);
	assert_int_equal(nv_dir_sync("/does/not/exist", NULL), NV_ENOENT);
	assert_int_equal(nv_dir_sync(work_dir, NULL), NV_OK);
	nv_file_close(file);
}

/* Real files */

static void
test_open(void **state)
{
	char *path = path_in(work_dir, "opened");
	uint8_t *block = aligned_memory(NV_BLOCK);
	nv_file *file;
	nv_error err;
	struct stat st;
	uint64_t size;

	assert_int_equal(nv_file_open(path, 0, &file, &err), NV_ENOENT);
	assert_null(file);
	assert_int_equal(err.sys_errno, ENOENT);
	assert_non_null(strstr(err.detail, "opened\": No such file"));
	assert_int_equal(nv_file_open(path, NV_FILE_CREATE, &file, NULL), NV_OK);
	assert_string_equal(nv_file_path(file), path);
	assert_true(nv_file_align(file) == 512 || nv_file_align(file) == NV_BLOCK);
	assert_int_equal(nv_file_size(file, &size, NULL), NV_OK);
	assert_int_equal(size, 0);
	assert_int_equal(nv_file_reserve(file, 0, NULL), NV_OK);
	assert_int_equal(nv_file_reserve(file, 5 * NV_BLOCK, NULL), NV_OK);
	assert_int_equal(nv_file_size(file, &size, NULL), NV_OK);
	assert_int_equal(size, 5 * NV_BLOCK);
	assert_int_equal(nv_file_write(file, block, NV_BLOCK, NV_BLOCK, NULL),
					 NV_OK);
	assert_int_equal(nv_file_sync(file, NULL), NV_OK);
	nv_file_close(file);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(nv_file_open(path, NV_FILE_CREATE, &file, &err),
					 NV_EEXIST);
	assert_null(file);
	assert_int_equal(
		nv_file_open(path, NV_FILE_CREATE | NV_FILE_READONLY, &file, &err),
		NV_EINVAL);
	free(block);
	assert_int_equal(unlink(path), 0);
}

static void
test_readonly(void **state)
{
	nv_file *file = data_file(false);
	uint8_t *block = aligned_memory(NV_BLOCK);
	nv_error err;

	assert_int_equal(nv_file_read(file, block, NV_BLOCK, NV_BLOCK, NULL),
					 NV_OK);
	assert_true(content_is_right(block, NV_BLOCK, NV_BLOCK));
	assert_int_equal(nv_file_write(file, block, NV_BLOCK, 0, &err), NV_EINVAL);
	assert_int_equal(nv_file_reserve(file, 2 * DATA_SIZE, &err), NV_EINVAL);
	nv_file_close(file);
	free(block);
}

/* What reading finds out agrees with what we report. */
static void
test_alignment(void **state)
{
	nv_file *file = data_file(false);
	nv_file *buffered = data_file(true);
	uint32_t found = nv_probe_align(file->fd);

	assert_false(nv_file_is_direct(buffered));
	if (nv_file_is_direct(file))
	{
		assert_true(found != 0 && found <= nv_file_align(file));
		assert_true((fcntl(file->fd, F_GETFL) & O_DIRECT) != 0);
	}
	else
		assert_int_equal(fcntl(file->fd, F_GETFL) & O_DIRECT, 0);
	assert_int_equal(fcntl(buffered->fd, F_GETFL) & O_DIRECT, 0);
	nv_file_close(file);
	nv_file_close(buffered);
}

/* tmpfs refuses O_DIRECT on some kernels and takes it on others. */
static void
test_tmpfs(void **state)
{
	char path[64];
	nv_file *file;
	uint8_t *buf = aligned_memory(4 * NV_BLOCK);

	snprintf(path, sizeof(path), "/dev/shm/navis-test-io-%d", (int) getpid());
	if (nv_file_open(path, NV_FILE_CREATE, &file, NULL) != NV_OK)
	{
		free(buf);
		skip();
	}
	unlink(path);
	assert_int_equal(nv_file_reserve(file, 8 * NV_BLOCK, NULL), NV_OK);
	for (size_t i = 0; i < 4 * WORDS_PER_BLOCK; i++)
		((uint64_t *) buf)[i] = word_at(i);
	assert_int_equal(nv_file_write(file, buf, 4 * NV_BLOCK, 0, NULL), NV_OK);
	assert_int_equal(nv_file_sync(file, NULL), NV_OK);
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, 4 * NV_BLOCK);

		memset(buf, 0, 4 * NV_BLOCK);
		assert_int_equal(reads_right(ring, file, 4), 0);
		assert_int_equal(read_one(ring, file, buf, 4 * NV_BLOCK, 0).result,
						 4 * NV_BLOCK);
		assert_true(content_is_right(buf, 4 * NV_BLOCK, 0));
		nv_ring_forget(ring, file);
		nv_ring_destroy(ring);
	}
	nv_file_close(file);
	free(buf);
}

/* A true error of the kernel: the first page of no address space is there. */
static void
test_true_io_error(void **state)
{
	nv_file *file;
	nv_error err;
	char buf[64];

	assert_int_equal(nv_file_open("/proc/self/mem",
								  NV_FILE_READONLY | NV_FILE_BUFFERED, &file,
								  NULL),
					 NV_OK);
	assert_int_equal(nv_file_read(file, buf, 64, 64, &err), NV_EIO);
	assert_int_equal(err.sys_errno, EIO);
	FOR_EACH_VARIANT(v)
	{
		nv_ring *ring = ring_of(v, NV_BLOCK);

		assert_int_equal(read_one(ring, file, buf, 64, 64).result, -EIO);
		nv_ring_forget(ring, file);
		nv_ring_destroy(ring);
	}
	nv_file_close(file);
}

static void
test_device_full(void **state)
{
	nv_file *file;
	nv_error err;
	char buf[64] = {0};

	if (nv_file_open("/dev/full", NV_FILE_BUFFERED, &file, NULL) != NV_OK)
		skip();
	assert_int_equal(nv_file_write(file, buf, 64, 0, &err), NV_ENOSPC);
	assert_int_equal(err.sys_errno, ENOSPC);
	assert_non_null(strstr(err.detail, "write 64 bytes at offset 0"));
	nv_file_close(file);
}

static void
test_bad_arena(void **state)
{
	nv_ring *ring;
	nv_error err;

	assert_int_equal(nv_ring_create(NV_IO_AUTO, 1000, &ring, &err), NV_EINVAL);
	assert_null(ring);
#ifndef SANITIZED /* whose allocators do not return then */
	assert_int_equal(
		nv_ring_create(NV_IO_AUTO, SIZE_MAX / NV_BLOCK * NV_BLOCK, &ring, &err),
		NV_ENOMEM);
#endif
	assert_int_equal(nv_ring_create(NV_IO_AUTO, 0, &ring, &err), NV_OK);
	assert_null(nv_ring_arena(ring));
	nv_ring_destroy(ring);
	nv_ring_destroy(NULL);
}

/* Refusals, each in a child of its own */

static int
run_file_size_limit(void)
{
	struct rlimit limit = {16 * NV_BLOCK, 16 * NV_BLOCK};
	char *path = path_in(work_dir, "limited");
	uint8_t *buf = aligned_memory(32 * NV_BLOCK);
	nv_file *file;
	nv_error err;

	CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK(nv_file_open(path, NV_FILE_CREATE, &file, NULL) == NV_OK);
	unlink(path);
	/* the first half fits: the error is the second half's */
	CHECK(nv_file_write(file, buf, 32 * NV_BLOCK, 0, &err) == NV_ENOSPC);
	CHECK(err.sys_errno == EFBIG);
	CHECK(strstr(err.detail, "could not write 131072 bytes at offset 0"));
	CHECK(strstr(err.detail, "File too large"));
	CHECK(nv_file_reserve(file, 32 * NV_BLOCK, &err) == NV_ENOSPC);
	CHECK(nv_file_write(file, buf, NV_BLOCK, 0, &err) == NV_OK);
	nv_file_close(file);
	free(buf);
	return 0;
}

static int
run_small_disk(void)
{
	char mount_point[1100];
	uint8_t *buf = aligned_memory(64 * NV_BLOCK);
	nv_file *file;
	nv_error err;

	snprintf(mount_point, sizeof(mount_point), "%s/small", work_dir);
	if (mkdir(mount_point, 0700) < 0 || unshare(CLONE_NEWNS) < 0 ||
		mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", mount_point, "tmpfs", 0, "size=64k") < 0)
		return SKIPPED;
	CHECK(nv_file_open(path_in(mount_point, "a"), NV_FILE_CREATE, &file,
					   &err) == NV_OK);
	CHECK(nv_file_reserve(file, 64 * NV_BLOCK, &err) == NV_ENOSPC);
	CHECK(err.sys_errno == ENOSPC);
	CHECK(nv_file_write(file, buf, 64 * NV_BLOCK, 0, &err) == NV_ENOSPC);
	CHECK(strstr(err.detail, "No space left on device"));
	CHECK(strstr(err.detail, "small/a"));
	nv_file_close(file);
	free(buf);
	return 0;
}

/* AUTO goes on by pread and says so once; URING is an error. */
static int
check_refused(const char *why)
{
	nv_file *file = data_file(false);
	nv_ring *ring;
	nv_error err;

	for (int i = 0; i < 3; i++)
	{
		CHECK(nv_ring_create(NV_IO_AUTO, NV_BLOCK, &ring, &err) == NV_OK);
		CHECK(!nv_ring_is_uring(ring));
		CHECK(reads_right(ring, file, 10) == 0);
		nv_ring_destroy(ring);
		CHECK(atomic_load(&log_lines) == 1);
	}
	CHECK(strstr(last_line, "io_uring is not available"));
	CHECK(strstr(last_line, why));
	CHECK((strstr(last_line, "LimitMEMLOCK") != NULL) ==
		  (strcmp(why, "Cannot allocate memory") == 0));
	CHECK(nv_ring_create(NV_IO_URING, NV_BLOCK, &ring, &err) != NV_OK);
	CHECK(ring == NULL);
	CHECK(strstr(err.detail, why));
	CHECK((strstr(err.detail, "LimitMEMLOCK") != NULL) ==
		  (strcmp(why, "Cannot allocate memory") == 0));
	CHECK(err.sys_errno != 0);
	CHECK(atomic_load(&log_lines) == 1);
	nv_file_close(file);
	return 0;
}

static int
run_no_setup(void)
{
	CHECK(forbid(SYS_io_uring_setup, EPERM, -1));
	return check_refused("Operation not permitted");
}

static int
run_no_setup_old_kernel(void)
{
	CHECK(forbid(SYS_io_uring_setup, ENOSYS, -1));
	return check_refused("Function not implemented");
}

static int
run_no_setup_memory(void)
{
	CHECK(forbid(SYS_io_uring_setup, ENOMEM, -1));
	return check_refused("Cannot allocate memory");
}

/* Set-up is allowed, use is not. */
static int
run_no_enter(void)
{
	if (!have_uring())
		return SKIPPED;
	CHECK(forbid(SYS_io_uring_enter, EPERM, -1));
	return check_refused("Operation not permitted");
}

/* Nothing can be registered: reads go on, without it. */
static int
run_no_register(void)
{
	nv_file *file = data_file(false);
	nv_ring *ring;

	if (!have_uring())
		return SKIPPED;
	CHECK(forbid(SYS_io_uring_register, EPERM, -1));
	CHECK(nv_ring_create(NV_IO_URING, NV_BLOCK, &ring, NULL) == NV_OK);
	CHECK(nv_ring_is_uring(ring));
	CHECK((nv_ring_has(ring) & (NV_RING_FIXED_BUFFERS | NV_RING_FIXED_FILES)) ==
		  0);
	CHECK(reads_right(ring, file, 10) == 0);
	nv_ring_forget(ring, file);
	nv_file_close(file);
	nv_ring_destroy(ring);
	CHECK(atomic_load(&log_lines) == 0);
	return 0;
}

/* The files were going to be registered one by one, and then it is refused. */
static int
run_register_lost(void)
{
	nv_file *file = data_file(false);
	nv_file *other = data_file(false);
	nv_ring *ring;

	if (!have_uring())
		return SKIPPED;
	CHECK(nv_ring_create(NV_IO_URING, NV_BLOCK, &ring, NULL) == NV_OK);
	CHECK(reads_right(ring, file, 3) == 0);
	CHECK(forbid(SYS_io_uring_register, EPERM, -1));
	CHECK(reads_right(ring, other, 3) == 0);
	CHECK(reads_right(ring, file, 3) == 0);
	CHECK((nv_ring_has(ring) & NV_RING_FIXED_FILES) == 0);
	nv_ring_destroy(ring);
	nv_file_close(file);
	nv_file_close(other);
	return 0;
}

/*
 * The kernel stops taking submissions while the ring is in use, for good
 * (error EPERM) or as if for want of memory (EAGAIN).
 */
static int
check_enter_lost(int error)
{
	nv_file *file = data_file(false);
	nv_ring *ring;

	if (!have_uring())
		return SKIPPED;
	CHECK(nv_ring_create(NV_IO_URING, NV_RING_DEPTH * NV_BLOCK, &ring, NULL) ==
		  NV_OK);
	CHECK(reads_right(ring, file, 3) == 0);
	CHECK(forbid(SYS_io_uring_enter, error, -1));
	CHECK(nv_ring_read(ring, file, nv_ring_arena(ring), NV_BLOCK, 0, 5));
	nv_ring_submit(ring);
	for (uint32_t i = 1; i < NV_RING_DEPTH; i++)
		CHECK(nv_ring_read(ring, file, nv_ring_arena(ring) + i * NV_BLOCK,
						   NV_BLOCK, i * NV_BLOCK, 5 + i));
	while (nv_ring_inflight(ring) > 0)
	{
		nv_completion done;

		CHECK(nv_ring_reap(ring, &done, 1, true) == 1);
		CHECK(done.result == NV_BLOCK);
	}
	CHECK(content_is_right(nv_ring_arena(ring), NV_RING_DEPTH * NV_BLOCK, 0));
	CHECK(reads_right(ring, file, 100) == 0);
	CHECK(atomic_load(&log_lines) == 1);
	CHECK(strstr(last_line, "takes no more reads"));
	nv_ring_destroy(ring);
	nv_file_close(file);
	return 0;
}

static int
run_enter_lost(void)
{
	return check_enter_lost(EPERM);
}

static int
run_enter_stalls(void)
{
	return check_enter_lost(EAGAIN);
}

/*
 * An old kernel: every set-up is caught (SIGSYS), refused when it has a flag
 * the kernel of that time did not know, and else done.
 */
#define PASS_ON 0x6e61u /* third argument, unused: this call is not caught */

static volatile uint32_t known_flags;

static void
old_kernel_setup(int signo, siginfo_t *info, void *context)
{
	ucontext_t *at = context;
	int saved_errno = errno;
	long result;
#if defined(__x86_64__)
	greg_t *answer = &at->uc_mcontext.gregs[REG_RAX];
	long entries = at->uc_mcontext.gregs[REG_RDI];
	uint32_t *params = (uint32_t *) at->uc_mcontext.gregs[REG_RSI];
#else
	unsigned long long *answer = &at->uc_mcontext.regs[0];
	long entries = (long) at->uc_mcontext.regs[0];
	uint32_t *params = (uint32_t *) at->uc_mcontext.regs[1];
#endif

	/* params: sq_entries, cq_entries, flags, ... */
	if ((params[2] & ~known_flags) != 0)
		result = -EINVAL;
	else
	{
		result = syscall(SYS_io_uring_setup, entries, params, PASS_ON);
		if (result < 0)
			result = -errno;
	}
	*answer = result;
	errno = saved_errno;
}

static int
check_old_kernel(uint32_t flags, uint32_t property)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
				 offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PASS_ON, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {NV_LENGTH(filter), filter};
	struct sigaction act = {.sa_sigaction = old_kernel_setup,
							.sa_flags = SA_SIGINFO};
	nv_file *file = data_file(false);
	nv_ring *ring;

	if (!have_uring())
		return SKIPPED;
	known_flags = flags;
	CHECK(sigaction(SIGSYS, &act, NULL) == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0) == 0);
	CHECK(nv_ring_create(NV_IO_AUTO, NV_BLOCK, &ring, NULL) == NV_OK);
	CHECK(nv_ring_is_uring(ring));
	CHECK((nv_ring_has(ring) & (NV_RING_DEFER | NV_RING_COOP)) == property);
	CHECK(reads_right(ring, file, 100) == 0);
	nv_ring_destroy(ring);
	nv_file_close(file);
	return 0;
}

static int
run_linux_5_19(void)
{
	return check_old_kernel(0x1ff | 1u << 9, NV_RING_COOP);
}

static int
run_linux_5_6(void)
{
	return check_old_kernel(0, 0);
}

/* Without the capability to lock memory, and with nothing to lock. */
static int
run_locked_memory_limit(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[2];
	struct rlimit none = {0, 0};
	nv_file *file = data_file(false);
	nv_ring *ring;

	CHECK(syscall(SYS_capget, &header, caps) == 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	caps[0].permitted &= ~(1u << CAP_IPC_LOCK);
	caps[0].inheritable &= ~(1u << CAP_IPC_LOCK);
	CHECK(syscall(SYS_capset, &header, caps) == 0);
	CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
	CHECK(nv_ring_create(NV_IO_AUTO, 64 * NV_BLOCK, &ring, NULL) == NV_OK);
	CHECK((nv_ring_has(ring) & NV_RING_FIXED_BUFFERS) == 0);
	CHECK(reads_right(ring, file, 100) == 0);
	nv_ring_destroy(ring);
	nv_file_close(file);
	return 0;
}

/* fcntl(F_SETFL) is refused as by a file system without direct I/O. */
static int
run_no_direct(void)
{
	nv_file *file;
	uint8_t *buf = aligned_memory(NV_BLOCK);

	CHECK(forbid(SYS_fcntl, EINVAL, F_SETFL));
	for (int i = 0; i < 3; i++)
	{
		CHECK(nv_file_open(data_path, 0, &file, NULL) == NV_OK);
		CHECK(!nv_file_is_direct(file));
		CHECK(nv_file_read(file, buf + 8, 80, 40, NULL) == NV_OK);
		CHECK(content_is_right(buf + 8, 80, 40));
		nv_file_close(file);
		CHECK(atomic_load(&log_lines) == 1);
	}
	CHECK(strstr(last_line, "direct I/O is refused"));
	CHECK(nv_file_open(path_in(work_dir, "undirect"), NV_FILE_CREATE, &file,
					   NULL) == NV_OK);
	unlink(nv_file_path(file));
	nv_file_close(file);
	CHECK(atomic_load(&log_lines) == 1);
	free(buf);
	return 0;
}

/* A kernel that does not tell the alignment: found by reading. */
static int
run_no_statx(void)
{
	nv_file *file = data_file(false);
	nv_file *again;
	uint32_t found = nv_probe_align(file->fd);
	bool direct = nv_file_is_direct(file);

	CHECK(forbid(SYS_statx, ENOSYS, -1));
	again = data_file(false);
	CHECK(nv_file_is_direct(again) == direct);
	CHECK(!direct || nv_file_align(again) == found);
	nv_file_close(again);
	CHECK(nv_file_open(path_in(work_dir, "empty"), NV_FILE_CREATE, &again,
					   NULL) == NV_OK);
	unlink(nv_file_path(again));
	CHECK(!direct || nv_file_align(again) == NV_BLOCK);
	errno = EINVAL; /* what an earlier call left must not matter */
	CHECK(nv_probe_align(again->fd) == NV_BLOCK);
	nv_file_close(again);
	nv_file_close(file);
	return 0;
}

#define CHILD_TEST(name)                                                       \
	static void test_##name(void **state)                                      \
	{                                                                          \
		in_child(run_##name);                                                  \
	}

CHILD_TEST(file_size_limit)
CHILD_TEST(small_disk)
CHILD_TEST(no_setup)
CHILD_TEST(no_setup_old_kernel)
CHILD_TEST(no_setup_memory)
CHILD_TEST(no_enter)
CHILD_TEST(no_register)
CHILD_TEST(register_lost)
CHILD_TEST(enter_lost)
CHILD_TEST(enter_stalls)
CHILD_TEST(locked_memory_limit)
CHILD_TEST(no_direct)
CHILD_TEST(no_statx)
CHILD_TEST(linux_5_19)
CHILD_TEST(linux_5_6)

static int
set_up(void **state)
{
	uint8_t *buf = aligned_memory(DATA_SIZE);
	char program[1000];
	nv_file *file;
	nv_error err;
	ssize_t len;

	/* beside this program: /tmp may be memory */
	len = readlink("/proc/self/exe", program, sizeof(program) - 1);
	assert_true(len > 0);
	program[len] = '\0';
	*strrchr(program, '/') = '\0';
	snprintf(work_dir, sizeof(work_dir), "%s/navis-test-io-%d", program,
			 (int) getpid());
	assert_int_equal(mkdir(work_dir, 0700), 0);
	snprintf(data_path, sizeof(data_path), "%s/data", work_dir);
	for (size_t i = 0; i < DATA_SIZE / sizeof(uint64_t); i++)
		((uint64_t *) buf)[i] = word_at(i);
	if (nv_file_open(data_path, NV_FILE_CREATE, &file, &err) != NV_OK ||
		nv_file_write(file, buf, DATA_SIZE, 0, &err) != NV_OK ||
		nv_file_sync(file, &err) != NV_OK)
		fail_msg("%s", err.detail);
	nv_file_close(file);
	free(buf);
	return 0;
}

static int
tear_down(void **state)
{
	unlink(data_path);
	rmdir(path_in(work_dir, "small"));
	return rmdir(work_dir);
}

/* --- an engine whose threads get no rings --- */

#ifndef __SANITIZE_THREAD__

/* What other processes of the user hold counts, too. */
static bool
out_of_locked_memory(const nv_error *err)
{
	return err->sys_errno == ENOMEM || strstr(err->detail, "LimitMEMLOCK");
}

static bool
rings_for_engine(const nv_config *config)
{
	nv_local *local = nv_local_create();
	nv_engine *engine = NULL;
	nv_error err = {0};
	bool all;

	atomic_store(&log_lines, 0);
	all = local != NULL &&
		  nv_engine_start(config, nv_local_port(local), &engine, &err) == NV_OK;
	if (all)
		nv_engine_stop(engine, false, 0);
	nv_local_free(local);
	return all && atomic_load(&log_lines) == 0;
}

/* A descriptor less with each engine: all, some, none of its threads start. */
static int
engines_short_of_descriptors(void)
{
	nv_config config;
	nv_error err = {0};
	bool started = false, partly = false;
	struct rlimit limit;
	int lowest = dup(0);

	close(lowest);
	nv_config_defaults(&config);
	snprintf(config.directory, sizeof(config.directory), "%.900s/engines",
			 work_dir);
	config.io_method = NV_IO_URING;
	config.cache_size = 0;
	if (!rings_for_engine(&config))
		return SKIPPED;
	/* A limit can only be lowered: raising it again is what engines do. */
	for (int more = 16; more >= 1; more--)
	{
		nv_local *local = nv_local_create();
		nv_engine *engine;
		nv_status status;

		CHECK(local != NULL);
		limit.rlim_cur = limit.rlim_max = (rlim_t) (lowest + more);
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		atomic_store(&log_lines, 0);
		status = nv_engine_start(&config, nv_local_port(local), &engine, &err);
		if (status == NV_OK)
		{
			nv_engine_stop(engine, false, 0);
			started = true;
		}
		else if (out_of_locked_memory(&err))
			return SKIPPED;
		partly |= atomic_load(&log_lines) > 0;
		/* search, insert, calibrating, consolidating threads */
		CHECK(atomic_load(&log_lines) <= (status == NV_OK ? 4 : 0));
		CHECK(status == NV_OK || strstr(err.detail, "Too many open files") ||
			  err.sys_errno == EMFILE);
		nv_local_free(local);
	}
	CHECK(started && partly && err.status != NV_OK);
	CHECK(nv_remove_tree(config.directory, NULL) == NV_OK);
	return 0;
}

/* It says so once for each kind of thread; of none, the error says why. */
static void
test_threads_without_rings(void **state)
{
	NEEDS_URING();
	in_child(engines_short_of_descriptors);
}
#endif

int
main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: a process says once that it has no io_uring, and children
		 * inherit that it has been said. */
		cmocka_unit_test(test_no_setup),
		cmocka_unit_test(test_no_setup_old_kernel),
		cmocka_unit_test(test_no_setup_memory),
		cmocka_unit_test(test_no_enter),
		cmocka_unit_test(test_no_register),
		cmocka_unit_test(test_register_lost),
		cmocka_unit_test(test_enter_lost),
		cmocka_unit_test(test_enter_stalls),
		cmocka_unit_test(test_locked_memory_limit),
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_readonly),
		cmocka_unit_test(test_alignment),
		cmocka_unit_test(test_tmpfs),
		cmocka_unit_test(test_random_reads),
		cmocka_unit_test(test_properties_granted),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_depth_limit),
		cmocka_unit_test(test_ring_writes),
		cmocka_unit_test(test_past_end),
		cmocka_unit_test(test_forget_frees),
		cmocka_unit_test(test_many_files),
		cmocka_unit_test(test_short_reads_uring),
		cmocka_unit_test(test_destroy_drains),
		cmocka_unit_test(test_destroy_full),
		cmocka_unit_test(test_simulated_disk),
		cmocka_unit_test(test_direct_resumes_aligned),
		cmocka_unit_test(test_errors_named),
		cmocka_unit_test(test_reserve_by_zeros),
		cmocka_unit_test(test_shorten),
		cmocka_unit_test(test_fsync_off),
		cmocka_unit_test(test_true_io_error),
		cmocka_unit_test(test_device_full),
		cmocka_unit_test(test_bad_arena),
		cmocka_unit_test(test_file_size_limit),
		cmocka_unit_test(test_small_disk),
		cmocka_unit_test(test_no_direct),
		cmocka_unit_test(test_no_statx),
		cmocka_unit_test(test_linux_5_19),
		cmocka_unit_test(test_linux_5_6),
#ifndef __SANITIZE_THREAD__ /* which has no threads after a fork */
		cmocka_unit_test(test_threads_without_rings),
#endif
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
