/*
 * names.c
 *		Names of files and directories: making, listing, renaming, removing.
 *
 * Like files, names may be those of a simulated disk (io_internal.h).  What is
 * changed here is durable only after nv_dir_sync of the directory.
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_internal.h"
#include "util.h"

#define NAME_ROOM 4096 /* bytes of a path */

/* "could not VERB "path": ..."; printf's %m is the thread-safe strerror. */
static nv_status
name_failed(const char *verb, const char *path, int error, nv_error *err)
{
	nv_status status = error == ENOSPC || error == EDQUOT ? NV_ENOSPC
					   : error == ENOENT                  ? NV_ENOENT
					   : error == EEXIST                  ? NV_EEXIST
														  : NV_EIO;

	errno = error;
	return nv_fail(err, status, error, "could not %s \"%s\": %m", verb, path);
}

/* One change on whichever disk; 0 or an errno. */
static int
change(nv_name_change what, const char *path, const char *to)
{
	const nv_disk *disk = nv_io_names();
	int rc = 0;

	if (disk != NULL)
		return -disk->change(disk->arg, what, path, to);
	switch (what)
	{
		case NV_NAME_MAKE_DIR:
			rc = mkdir(path, S_IRWXU);
			break;
		case NV_NAME_RENAME:
			rc = rename(path, to);
			break;
		case NV_NAME_REMOVE:
			rc = remove(path);
			break;
	}
	return rc < 0 ? errno : 0;
}

nv_status
nv_dir_make(const char *path, nv_error *err)
{
	int error = change(NV_NAME_MAKE_DIR, path, NULL);

	return error == 0 ? NV_OK
					  : name_failed("create directory", path, error, err);
}

nv_status
nv_path_rename(const char *from, const char *to, nv_error *err)
{
	int error = change(NV_NAME_RENAME, from, to);

	return error == 0 ? NV_OK : name_failed("rename to", to, error, err);
}

nv_status
nv_path_remove(const char *path, nv_error *err)
{
	int error = change(NV_NAME_REMOVE, path, NULL);

	return error == 0 || error == ENOENT
			   ? NV_OK
			   : name_failed("remove", path, error, err);
}

bool
nv_path_exists(const char *path)
{
	const nv_disk *disk = nv_io_names();

	if (disk == NULL)
		return access(path, F_OK) == 0;
	return disk->list(disk->arg, path, NULL, NULL) != -ENOENT;
}

/* 0 or an errno; ENOTDIR for anything but a directory, links included. */
static int
list(const char *path, nv_name_fn found, void *arg)
{
	const nv_disk *disk = nv_io_names();
	struct dirent *entry;
	struct stat st;
	DIR *dir;

	if (disk != NULL)
		return -disk->list(disk->arg, path, found, arg);
	if (lstat(path, &st) < 0)
		return errno;
	if (S_ISLNK(st.st_mode))
		return ENOTDIR;
	dir = opendir(path);
	if (dir == NULL)
		return errno;
	while ((entry = readdir(dir)) != NULL)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			found(arg, entry->d_name);
	closedir(dir);
	return 0;
}

nv_status
nv_dir_list(const char *path, nv_name_fn found, void *arg, nv_error *err)
{
	int error = list(path, found, arg);

	return error == 0 ? NV_OK : name_failed("list", path, error, err);
}

/* --- Trees --- */

typedef struct name_list
{
	char **name;
	size_t n, room;
	bool failed;
} name_list;

static void
collect(void *arg, const char *name)
{
	name_list *names = arg;

	if (names->n == names->room)
	{
		size_t room = NV_MAX(2 * names->room, (size_t) 16);
		char **grown = realloc(names->name, room * sizeof(*grown));

		if (grown == NULL)
		{
			names->failed = true;
			return;
		}
		names->name = grown;
		names->room = room;
	}
	names->name[names->n] = strdup(name);
	names->failed |= names->name[names->n] == NULL;
	names->n += names->name[names->n] != NULL;
}

/* Puts the name `last` at the end, where it is the last to go. */
static void
put_last(name_list *names, const char *last)
{
	for (size_t i = 0; last != NULL && i + 1 < names->n; i++)
		if (strcmp(names->name[i], last) == 0)
		{
			char *swap = names->name[names->n - 1];

			names->name[names->n - 1] = names->name[i];
			names->name[i] = swap;
		}
}

static bool
is_last(const name_list *names, size_t i, const char *last)
{
	return last != NULL && strcmp(names->name[i], last) == 0;
}

/* What can be removed is, whatever else fails; but `last` only after all. */
nv_status
nv_remove_tree_but(const char *path, const char *last, nv_error *err)
{
	name_list names = {0};
	nv_status status = NV_OK, removed;
	int error = list(path, collect, &names);

	if (error != 0 && error != ENOTDIR && error != ENOENT)
		status = name_failed("list", path, error, err);
	if (names.failed)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to remove \"%s\"", path);
	put_last(&names, last);
	for (size_t i = 0; i < names.n; i++)
	{
		char child[NAME_ROOM];

		if ((status == NV_OK || !is_last(&names, i, last)) &&
			snprintf(child, sizeof(child), "%s/%s", path, names.name[i]) <
				(int) sizeof(child))
		{
			removed = nv_remove_tree(child, err);
			status = status == NV_OK ? removed : status;
		}
		free(names.name[i]);
	}
	free(names.name);
	if (status != NV_OK || error == ENOENT)
		return status;
	return nv_path_remove(path, err);
}

nv_status
nv_remove_tree(const char *path, nv_error *err)
{
	return nv_remove_tree_but(path, NULL, err);
}
