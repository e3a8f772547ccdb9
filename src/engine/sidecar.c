/*
 * sidecar.c
 *		Directories of sidecars: names, marker file, quarantine, removal.
 *
 *	<navis.directory>/navis.lock
 *	<navis.directory>/<database>/<identity>/navis.sidecar	the marker
 *	<navis.directory>/<database>/<identity>/g<n>/			one graph
 *
 * A rebuild writes generation n + 1 and removes n after it was published, so
 * the highest generation with a valid root counts.  Only directories with a
 * marker are ever removed (design, invariant 10).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine_internal.h"

#define MARKER "navis.sidecar"
#define TEMP ".tmp"       /* behind the marker's name while it is written */
#define TRYING "trying"   /* it is being opened */
#define OPENING "opening" /* again, after it was left in the state before */
#define LOCK_FILE "navis.lock"

static void
sidecar_dir(const nv_engine *engine, const nv_key *key, char *path)
{
	char hex[33];

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", key->identity[i]);
	snprintf(path, NV_PATH, "%s/%u/%s", engine->config.directory, key->database,
			 hex);
}

void
nv_sidecar_generation_dir(const nv_engine *engine, const nv_key *key,
						  uint32_t generation, char *path)
{
	size_t len;

	sidecar_dir(engine, key, path);
	len = strlen(path);
	snprintf(path + len, NV_PATH - len, "/g%u", generation);
}

/* The directory of that name, which is there for good afterwards. */
static nv_status
make_dir(const char *path, nv_error *err)
{
	char parent[NV_PATH];
	nv_status status = nv_dir_make(path, err);

	if (status == NV_EEXIST)
		return NV_OK;
	if (status != NV_OK)
		return status;
	snprintf(parent, sizeof(parent), "%s", path);
	if (strrchr(parent, '/') == NULL || strrchr(parent, '/') == parent)
		return NV_OK;
	*strrchr(parent, '/') = '\0';
	return nv_dir_sync(parent, err);
}

/* Writes the marker by rename, so that it is whole or not there. */
static nv_status
write_marker(const char *dir, const nv_key *key, const nv_index_params *params,
			 nv_error *err)
{
	char path[NV_PATH + 32], temp[NV_PATH + 40], text[256];
	nv_file *file = NULL;
	nv_status status;
	int len;

	snprintf(path, sizeof(path), "%s/" MARKER, dir);
	snprintf(temp, sizeof(temp), "%s" TEMP, path);
	len = snprintf(text, sizeof(text),
				   "navis sidecar 1\nsystem %" PRIu64 "\ndatabase %u\n"
				   "relfilenode %u\nindex %u\n",
				   key->system_id, key->database, params->relfilenode,
				   params->index_oid);
	nv_assert(len > 0 && (size_t) len < sizeof(text));
	status = nv_path_remove(temp, err); /* left by a crash */
	if (status == NV_OK)
		status =
			nv_file_open(temp, NV_FILE_CREATE | NV_FILE_BUFFERED, &file, err);
	if (status != NV_OK)
		return status;
	status = nv_file_write(file, text, (size_t) len, 0, err);
	if (status == NV_OK)
		status = nv_file_sync(file, err);
	nv_file_close(file);
	if (status == NV_OK)
		status = nv_path_rename(temp, path, err);
	return status == NV_OK ? nv_dir_sync(dir, err) : status;
}

nv_status
nv_sidecar_create(const nv_engine *engine, const nv_key *key,
				  const nv_index_params *params, nv_error *err)
{
	char path[NV_PATH];
	nv_status status;

	snprintf(path, sizeof(path), "%s/%u", engine->config.directory,
			 key->database);
	status = make_dir(path, err);
	if (status != NV_OK)
		return status;
	sidecar_dir(engine, key, path);
	status = make_dir(path, err);
	if (status != NV_OK)
		return status;
	return write_marker(path, key, params, err);
}

static int
compare_descending(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

	return x < y ? 1 : x > y ? -1 : 0;
}

nv_status
nv_sidecar_create_graph(const nv_engine *engine, const nv_key *key,
						uint32_t generation, nv_error *err)
{
	char path[NV_PATH];
	nv_status status;

	nv_sidecar_generation_dir(engine, key, generation, path);
	status = nv_remove_tree(path, err); /* of a build that was killed */
	return status == NV_OK ? make_dir(path, err) : status;
}

typedef struct generation_list
{
	uint32_t *out;
	uint32_t n, max;
} generation_list;

static void
note_generation(void *arg, const char *name)
{
	generation_list *list = arg;
	unsigned g;
	char rest;

	if (list->n < list->max && sscanf(name, "g%u%c", &g, &rest) == 1 && g > 0)
		list->out[list->n++] = g;
}

uint32_t
nv_sidecar_generations(const nv_engine *engine, const nv_key *key,
					   uint32_t *out, uint32_t max)
{
	generation_list list = {.out = out, .max = max};
	char path[NV_PATH];

	sidecar_dir(engine, key, path);
	(void) nv_dir_list(path, note_generation, &list, NULL);
	qsort(out, list.n, sizeof(*out), compare_descending);
	return list.n;
}

bool
nv_sidecar_quarantined(const char *dir)
{
	char path[NV_PATH + 32];

	snprintf(path, sizeof(path), "%s/" OPENING, dir);
	return nv_path_exists(path);
}

/*
 * A server that goes down says nothing about the sidecar that was being opened
 * just then.  So the first attempt that did not end is repeated; the second one
 * was the sidecar's fault.  That an attempt ended well is made durable.
 */
nv_status
nv_sidecar_mark_opening(const char *dir, bool on, nv_error *err)
{
	char first[NV_PATH + 32], second[NV_PATH + 32];
	nv_file *file;
	nv_status status;

	snprintf(first, sizeof(first), "%s/" TRYING, dir);
	snprintf(second, sizeof(second), "%s/" OPENING, dir);
	if (!on)
	{
		status = nv_path_remove(first, err);
		if (status == NV_OK)
			status = nv_path_remove(second, err);
		return status == NV_OK ? nv_dir_sync(dir, err) : status;
	}
	status = nv_file_open(nv_path_exists(first) ? second : first,
						  NV_FILE_CREATE | NV_FILE_BUFFERED, &file, err);
	if (status == NV_OK)
		nv_file_close(file);
	return status;
}

nv_status
nv_sidecar_remove(const nv_engine *engine, const nv_key *key, nv_error *err)
{
	char path[NV_PATH];
	nv_status status;

	sidecar_dir(engine, key, path);
	/* As long as anything is left the collector must find it. */
	status = nv_remove_tree_but(path, MARKER, err);
	/* The database's directory goes with its last sidecar. */
	*strrchr(path, '/') = '\0';
	(void) nv_path_remove(path, NULL);
	return status;
}

nv_status
nv_lock_directory(const char *path, int *fd, nv_error *err)
{
	char lock[NV_PATH + 32];
	nv_status status = nv_dir_make(path, err);

	if (status != NV_OK && status != NV_EEXIST)
		return status;
	snprintf(lock, sizeof(lock), "%s/" LOCK_FILE, path);
	*fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (*fd < 0)
		return nv_fail(err, NV_EIO, errno, "could not open file \"%s\": %s",
					   lock, strerror(errno));
	if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
		return NV_OK;
	status = nv_fail(err, errno == EWOULDBLOCK ? NV_EBUSY : NV_EIO, errno,
					 "could not lock file \"%s\": %s", lock,
					 errno == EWOULDBLOCK ? "another server uses this directory"
										  : strerror(errno));
	close(*fd);
	*fd = -1;
	return status;
}

/* 32 hexadecimal digits: an identity, the name of a sidecar. */
static bool
read_identity(const char *name, uint8_t *identity)
{
	if (strlen(name) != 32 || strspn(name, "0123456789abcdef") != 32)
		return false;
	for (int i = 0; i < 16; i++)
	{
		unsigned byte;

		if (sscanf(name + 2 * i, "%2x", &byte) != 1)
			return false;
		identity[i] = (uint8_t) byte;
	}
	return true;
}

/* Reads one sidecar's marker and name; false if it is none of ours. */
static bool
read_marker(const char *directory, const char *database, const char *name,
			nv_key *key, uint32_t *relfilenode, uint32_t *index_oid)
{
	char path[NV_PATH + 600];
	unsigned db;
	bool ok;
	FILE *f;

	memset(key, 0, sizeof(*key));
	if (!read_identity(name, key->identity))
		return false;
	snprintf(path, sizeof(path), "%s/%s/%s/" MARKER, directory, database, name);
	f = fopen(path, "r");
	if (f == NULL)
		return false;
	ok = fscanf(f,
				"navis sidecar 1 system %" SCNu64
				" database %u relfilenode %u index %u",
				&key->system_id, &db, relfilenode, index_oid) == 4;
	fclose(f);
	key->database = db;
	return ok && strtoul(database, NULL, 10) == db;
}

nv_status
nv_list_sidecars(const char *directory, nv_sidecar_fn found, void *arg,
				 nv_error *err)
{
	DIR *top = opendir(directory);
	struct dirent *db;

	if (top == NULL)
	{
		if (errno == ENOENT)
			return NV_OK;
		return nv_fail(err, NV_EIO, errno,
					   "could not open directory \"%s\": %s", directory,
					   strerror(errno));
	}
	while ((db = readdir(top)) != NULL)
	{
		char path[NV_PATH + 300];
		struct dirent *side;
		DIR *dir;

		if (db->d_name[0] < '0' || db->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "%s/%s", directory, db->d_name);
		dir = opendir(path);
		if (dir == NULL)
			continue;
		while ((side = readdir(dir)) != NULL)
		{
			nv_key key;
			uint32_t relfilenode, oid;

			if (read_marker(directory, db->d_name, side->d_name, &key,
							&relfilenode, &oid))
				found(arg, &key, relfilenode, oid);
		}
		closedir(dir);
	}
	closedir(top);
	return NV_OK;
}

/* --- what a crash leaves --- */

/* The name is the first part of a marker, or all there is of a sidecar. */
static void
tidy_sidecar(const char *path)
{
	char marker[NV_PATH + 700], temp[NV_PATH + 710];

	snprintf(marker, sizeof(marker), "%s/" MARKER, path);
	snprintf(temp, sizeof(temp), "%s" TEMP, marker);
	(void) unlink(temp);
	if (access(marker, F_OK) != 0)
		(void) rmdir(path);
}

void
nv_tidy_sidecars(const char *directory)
{
	DIR *top = opendir(directory), *dir;
	struct dirent *db, *side;
	char path[NV_PATH + 300], sidecar[NV_PATH + 600];
	uint8_t identity[16];

	while (top != NULL && (db = readdir(top)) != NULL)
	{
		if (strspn(db->d_name, "0123456789") != strlen(db->d_name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", directory, db->d_name);
		dir = opendir(path);
		if (dir == NULL)
			continue;
		while ((side = readdir(dir)) != NULL)
			if (read_identity(side->d_name, identity))
			{
				snprintf(sidecar, sizeof(sidecar), "%s/%s", path, side->d_name);
				tidy_sidecar(sidecar);
			}
		closedir(dir);
		(void) rmdir(path); /* if it is empty */
	}
	if (top != NULL)
		closedir(top);
}
