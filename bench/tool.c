/*
 * tool.c
 *		What navis_build and navis_bench share; see tool.h.
 */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fs.h>

#include "engine_internal.h"
#include "navis/hash.h"
#include "progress.h"

#define COMPARE_BATCH 4000 /* journal entries a request */
#define STOP_MS 600000
#define POLL_US 20000

void
tool_init(tool *t)
{
	memset(t, 0, sizeof(*t));
	nv_config_defaults(&t->config);
	memset(t->key.identity, 1, sizeof(t->key.identity));
	t->key.system_id = 1;
	t->key.database = 1;
}

/* --- Requests --- */

nv_request *
tool_request(const tool *t, nv_request_kind kind, uint64_t owner)
{
	nv_request *r = bench_need(nv_alloc(sizeof(*r)));

	r->kind = kind;
	r->key = t->key;
	r->owner = owner;
	return r;
}

void
tool_call(const tool *t, nv_request *r, const char *what)
{
	if (nv_local_call(t->local, r) != NV_OK)
		bench_die(what, r->detail);
}

static const char *const phases[] = {
	[NV_PHASE_NONE] = "build",           [NV_PHASE_SCAN] = "rows",
	[NV_PHASE_TRAIN] = "training",       [NV_PHASE_ENCODE] = "encoding",
	[NV_PHASE_LINK] = "linking",         [NV_PHASE_PLACE] = "placing",
	[NV_PHASE_ENTRANCE] = "entrance",    [NV_PHASE_WRITE] = "writing",
	[NV_PHASE_CALIBRATE] = "calibrating"};

void
tool_call_long(const tool *t, nv_request *r, const char *what)
{
	bench_progress progress;
	uint32_t phase = NV_PHASES;

	nv_local_submit(t->local, r);
	while (atomic_load(&r->state) != NV_DONE)
	{
		uint32_t now = atomic_load(&r->phase);

		if (now != phase)
			bench_progress_begin(&progress,
								 now < NV_PHASES ? phases[now] : what,
								 atomic_load(&r->total));
		phase = now;
		progress.total = atomic_load(&r->total);
		bench_progress_show(&progress, atomic_load(&r->done));
		usleep(POLL_US);
	}
	bench_progress_end(&progress);
	if (nv_local_wait(t->local, r) != NV_OK)
		bench_die(what, r->detail);
}

void
tool_start(tool *t, const char *dir)
{
	nv_error err;

	snprintf(t->config.directory, sizeof(t->config.directory), "%s", dir);
	t->local = bench_need(nv_local_create());
	bench_check(
		nv_engine_start(&t->config, nv_local_port(t->local), &t->engine, &err),
		&err);
}

void
tool_stop(tool *t, bool checkpoint)
{
	nv_engine_stop(t->engine, checkpoint, STOP_MS);
	nv_local_free(t->local);
	t->engine = NULL;
	t->local = NULL;
}

nv_req_info
tool_info(const tool *t, nv_request *r)
{
	r->kind = NV_REQ_INFO;
	memset(&r->u.info, 0, sizeof(r->u.info));
	tool_call(t, r, "info");
	return r->u.info;
}

/* --- rows.journal --- */

typedef struct journal_head
{
	char magic[8];
	uint32_t version, dim, metric, unused;
	uint64_t rows;
} journal_head;

static const char journal_magic[8] = "NVROWS";

#define JOURNAL_VERSION 1

struct tool_journal
{
	FILE *file;
	char path[TOOL_PATH + 32];
	uint64_t rows;
};

static void
journal_path(const char *dir, char *path)
{
	snprintf(path, TOOL_PATH + 32, "%s/rows.journal", dir);
}

tool_journal *
tool_journal_create(const char *dir)
{
	tool_journal *j = bench_allocate(1, sizeof(*j));
	journal_head head = {.rows = 0};

	journal_path(dir, j->path);
	j->file = fopen(j->path, "wb");
	if (j->file == NULL || fwrite(&head, sizeof(head), 1, j->file) != 1)
		bench_die(j->path, strerror(errno));
	return j;
}

void
tool_journal_add(tool_journal *j, uint64_t hash)
{
	if (fwrite(&hash, sizeof(hash), 1, j->file) != 1)
		bench_die(j->path, strerror(errno));
	j->rows++;
}

void
tool_journal_close(tool_journal *j, const nv_index_params *params)
{
	journal_head head = {.version = JOURNAL_VERSION,
						 .dim = params->dim,
						 .metric = params->metric,
						 .rows = j->rows};

	memcpy(head.magic, journal_magic, sizeof(head.magic));
	if (fseek(j->file, 0, SEEK_SET) != 0 ||
		fwrite(&head, sizeof(head), 1, j->file) != 1 || fclose(j->file) != 0)
		bench_die(j->path, strerror(errno));
	free(j);
}

static FILE *
open_journal(const char *dir, journal_head *head)
{
	char path[TOOL_PATH + 32];
	FILE *f;

	journal_path(dir, path);
	f = fopen(path, "rb");
	if (f == NULL)
		bench_die(path, errno == ENOENT ? "missing: no index of navis_build"
										: strerror(errno));
	if (fread(head, sizeof(*head), 1, f) != 1 ||
		memcmp(head->magic, journal_magic, sizeof(head->magic)) != 0 ||
		head->version != JOURNAL_VERSION)
		bench_die(path, "not written by this version of navis_build");
	return f;
}

void
tool_read_head(tool *t, const char *dir)
{
	journal_head head;

	fclose(open_journal(dir, &head));
	t->params.dim = head.dim;
	t->params.metric = head.metric;
	t->rows = head.rows;
}

/* One request's worth of entries; returns how many there were. */
static uint32_t
read_entries(FILE *f, uint64_t first, uint64_t rows, nv_journal_entry *entries)
{
	uint64_t hashes[COMPARE_BATCH];
	uint32_t n = (uint32_t) NV_MIN(rows - first, (uint64_t) COMPARE_BATCH);

	if (fread(hashes, sizeof(*hashes), n, f) != n)
		bench_die("rows.journal", "ends before its last row");
	for (uint32_t i = 0; i < n; i++)
		entries[i] = (nv_journal_entry){(uint32_t) (first + i), 1, hashes[i]};
	return n;
}

void
tool_open(tool *t, const char *dir)
{
	nv_request *r = tool_request(t, NV_REQ_OPEN, 1);
	journal_head head;
	FILE *f = open_journal(dir, &head);
	uint64_t missing = 0, pass;

	r->u.open.params = t->params;
	tool_call_long(t, r, "open");
	pass = r->u.open.pass;
	if (!r->u.open.has_graph)
		bench_die(dir, "holds no graph");
	for (uint64_t i = 0; i < head.rows;)
	{
		uint32_t n =
			read_entries(f, i, head.rows, (nv_journal_entry *) r->data);

		r->kind = NV_REQ_RECONCILE;
		memset(&r->u.reconcile, 0, sizeof(r->u.reconcile));
		r->u.reconcile.pass = pass;
		r->u.reconcile.n = n;
		tool_call(t, r, "compare");
		missing += r->u.reconcile.n_missing;
		i += n;
	}
	fclose(f);
	if (missing > 0)
		bench_die(dir, "the index lacks rows of its journal");
	r->kind = NV_REQ_OPENED;
	memset(&r->u.opened, 0, sizeof(r->u.opened));
	r->u.opened.pass = pass;
	r->u.opened.complete = 1;
	tool_call(t, r, "opened");
	if (r->u.opened.state != NV_INDEX_READY)
		bench_die(dir, "the index is not usable");
	free(r);
}

/* --- Shadow copies --- */

typedef struct copying
{
	uint64_t bytes, files, referenced;
	bench_progress progress;
} copying;

static void
copy_bytes(int from, int to, uint64_t size, const char *path, copying *c)
{
	for (uint64_t done = 0; done < size;)
	{
		ssize_t n = copy_file_range(from, NULL, to, NULL,
									NV_MIN(size - done, 1u << 26), 0);

		if (n <= 0)
			bench_die(path, n < 0 ? strerror(errno) : "it was cut off");
		done += (uint64_t) n;
		bench_progress_show(&c->progress, c->bytes + done);
	}
}

static void
copy_file(const char *from, const char *to, uint64_t size, copying *c)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (in < 0 || out < 0)
		bench_die(in < 0 ? from : to, strerror(errno));
	if (ioctl(out, FICLONE, in) == 0)
		c->referenced++;
	else
		copy_bytes(in, out, size, from, c);
	c->bytes += size;
	c->files++;
	close(in);
	if (close(out) != 0)
		bench_die(to, strerror(errno));
}

/* Locks and markers of another engine are not part of the index. */
static bool
belongs(const char *name)
{
	return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
		   strcmp(name, "navis.lock") != 0 && strcmp(name, "opening") != 0;
}

static void
copy_tree(const char *from, const char *to, copying *c)
{
	DIR *dir = opendir(from);
	struct dirent *e;

	if (dir == NULL)
		bench_die(from, strerror(errno));
	if (mkdir(to, 0700) != 0)
		bench_die(to, strerror(errno));
	while ((e = readdir(dir)) != NULL)
	{
		char inner[2][TOOL_PATH];
		struct stat st;

		if (!belongs(e->d_name))
			continue;
		if ((size_t) snprintf(inner[0], TOOL_PATH, "%s/%s", from, e->d_name) >=
				TOOL_PATH ||
			(size_t) snprintf(inner[1], TOOL_PATH, "%s/%s", to, e->d_name) >=
				TOOL_PATH)
			bench_die(from, "its path is too long");
		if (stat(inner[0], &st) != 0)
			bench_die(inner[0], strerror(errno));
		if (S_ISDIR(st.st_mode))
			copy_tree(inner[0], inner[1], c);
		else
			copy_file(inner[0], inner[1], (uint64_t) st.st_size, c);
	}
	closedir(dir);
}

void
tool_shadow(const char *dir, const char *shadow)
{
	copying c = {0};
	uint64_t begun = nv_now_ns();

	if (access(shadow, F_OK) == 0)
		bench_die(shadow, "is there already; remove it, or give another "
						  "--shadow");
	bench_progress_begin(&c.progress, "shadow copy, bytes", 0);
	copy_tree(dir, shadow, &c);
	bench_progress_end(&c.progress);
	printf("shadow copy: %.1f MB in %.1f s, %llu of %llu files by reference\n",
		   (double) c.bytes / 1e6, (double) (nv_now_ns() - begun) / 1e9,
		   (unsigned long long) c.referenced, (unsigned long long) c.files);
}

void
tool_remove(const char *dir)
{
	nv_error err;

	bench_check(nv_remove_tree(dir, &err), &err);
}

/* --- Measures --- */

static uint64_t
status_bytes(const char *name)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	size_t len = strlen(name);
	unsigned long long kb = 0;

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, name, len) == 0 && line[len] == ':')
			sscanf(line + len + 1, "%llu", &kb);
	if (f != NULL)
		fclose(f);
	return kb * 1024;
}

uint64_t
tool_resident_bytes(void)
{
	return status_bytes("VmRSS");
}

uint64_t
tool_peak_bytes(void)
{
	return status_bytes("VmHWM");
}
