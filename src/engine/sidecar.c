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
#include <sys/stat.h>
#include <unistd.h>

#include "engine_internal.h"

#define MARKER "navis.sidecar"
#define OPENING "opening"
#define LOCK_FILE "navis.lock"

void
nv_sidecar_dir(const nv_engine *engine, const nv_key *key, char *path)
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

	nv_sidecar_dir(engine, key, path);
	len = strlen(path);
	snprintf(path + len, NV_PATH - len, "/g%u", generation);
}

static nv_status
make_dir(const char *path, nv_error *err)
{
	if (mkdir(path, 0700) == 0 || errno == EEXIST)
		return NV_OK;
	return nv_fail(err, errno == ENOSPC ? NV_ENOSPC : NV_EIO, errno,
				   "could not create directory \"%s\": %s", path,
				   strerror(errno));
}

/* Writes the marker by rename, so that it is whole or not there. */
static nv_status
write_marker(const char *dir, const nv_key *key, const nv_index_params *params,
			 nv_error *err)
{
	char path[NV_PATH + 32], temp[NV_PATH + 40];
	FILE *f;
	bool ok;

	snprintf(path, sizeof(path), "%s/" MARKER, dir);
	snprintf(temp, sizeof(temp), "%s.tmp", path);
	f = fopen(temp, "w");
	if (f == NULL)
		return nv_fail(err, errno == ENOSPC ? NV_ENOSPC : NV_EIO, errno,
					   "could not create file \"%s\": %s", temp,
					   strerror(errno));
	fprintf(f, "navis sidecar 1\nsystem %" PRIu64 "\ndatabase %u\n",
			key->system_id, key->database);
	fprintf(f, "relfilenode %u\nindex %u\n", params->relfilenode,
			params->index_oid);
	ok = fflush(f) == 0 && (fsync(fileno(f)) == 0);
	ok = (fclose(f) == 0) && ok && rename(temp, path) == 0;
	if (!ok)
		return nv_fail(err, errno == ENOSPC ? NV_ENOSPC : NV_EIO, errno,
					   "could not write file \"%s\": %s", path,
					   strerror(errno));
	return nv_dir_sync(dir, err);
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
	nv_sidecar_dir(engine, key, path);
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

uint32_t
nv_sidecar_generations(const nv_engine *engine, const nv_key *key,
					   uint32_t *out, uint32_t max)
{
	char path[NV_PATH];
	uint32_t n = 0;
	struct dirent *entry;
	DIR *dir;

	nv_sidecar_dir(engine, key, path);
	dir = opendir(path);
	if (dir == NULL)
		return 0;
	while (n < max && (entry = readdir(dir)) != NULL)
	{
		unsigned g;
		char rest;

		if (sscanf(entry->d_name, "g%u%c", &g, &rest) == 1 && g > 0)
			out[n++] = g;
	}
	closedir(dir);
	qsort(out, n, sizeof(*out), compare_descending);
	return n;
}

bool
nv_sidecar_quarantined(const char *dir)
{
	char path[NV_PATH + 32];

	snprintf(path, sizeof(path), "%s/" OPENING, dir);
	return access(path, F_OK) == 0;
}

nv_status
nv_sidecar_mark_opening(const char *dir, bool on, nv_error *err)
{
	char path[NV_PATH + 32];
	int fd;

	snprintf(path, sizeof(path), "%s/" OPENING, dir);
	if (!on)
	{
		if (unlink(path) == 0 || errno == ENOENT)
			return NV_OK;
		return nv_fail(err, NV_EIO, errno, "could not remove file \"%s\": %s",
					   path, strerror(errno));
	}
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	if (fd < 0)
		return nv_fail(err, errno == ENOSPC ? NV_ENOSPC : NV_EIO, errno,
					   "could not create file \"%s\": %s", path,
					   strerror(errno));
	close(fd);
	return NV_OK;
}

nv_status
nv_remove_tree(const char *path, nv_error *err)
{
	struct dirent *entry;
	nv_status status = NV_OK;
	DIR *dir = opendir(path);

	if (dir == NULL)
	{
		if (errno == ENOENT)
			return NV_OK;
		if (errno != ENOTDIR)
			return nv_fail(err, NV_EIO, errno,
						   "could not open directory \"%s\": %s", path,
						   strerror(errno));
		if (unlink(path) == 0 || errno == ENOENT)
			return NV_OK;
		return nv_fail(err, NV_EIO, errno, "could not remove file \"%s\": %s",
					   path, strerror(errno));
	}
	while ((entry = readdir(dir)) != NULL)
	{
		char child[NV_PATH + 300];
		struct stat st;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		snprintf(child, sizeof(child), "%s/%s", path, entry->d_name);
		/* A symbolic link is removed, never followed. */
		if (lstat(child, &st) == 0 && S_ISDIR(st.st_mode))
			status = nv_remove_tree(child, err);
		else if (unlink(child) != 0 && errno != ENOENT)
			status =
				nv_fail(err, NV_EIO, errno, "could not remove file \"%s\": %s",
						child, strerror(errno));
	}
	closedir(dir);
	if (rmdir(path) != 0 && errno != ENOENT && status == NV_OK)
		status =
			nv_fail(err, NV_EIO, errno, "could not remove directory \"%s\": %s",
					path, strerror(errno));
	return status;
}

nv_status
nv_sidecar_remove(const nv_engine *engine, const nv_key *key, nv_error *err)
{
	char path[NV_PATH];
	nv_status status;

	nv_sidecar_dir(engine, key, path);
	status = nv_remove_tree(path, err);
	/* The database's directory goes with its last sidecar. */
	*strrchr(path, '/') = '\0';
	(void) rmdir(path);
	return status;
}

nv_status
nv_lock_directory(const char *path, int *fd, nv_error *err)
{
	char lock[NV_PATH + 32];
	nv_status status = make_dir(path, err);

	if (status != NV_OK)
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
	if (strlen(name) != 32)
		return false;
	for (int i = 0; i < 16; i++)
	{
		unsigned byte;

		if (sscanf(name + 2 * i, "%2x", &byte) != 1)
			return false;
		key->identity[i] = (uint8_t) byte;
	}
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
