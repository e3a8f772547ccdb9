/*
 * sim_disk.c
 *		The disk in memory: inodes, names, what is durable and what is not.
 *
 * A file has two images, as programs see it and as it is durable, and the
 * changes between them.  An entry of a directory remembers every inode its
 * name stood for since the directory was synced.
 */
#include "sim_disk.h"

#include <errno.h>

#include "util.h"

#define MAX_VERSIONS 64

typedef struct image
{
	uint8_t *bytes;
	uint64_t size, room;
} image;

/* One change of a file since its last sync. */
typedef struct change
{
	uint64_t number;
	uint64_t offset;
	uint64_t len;   /* 0: only the size changed */
	uint64_t size;  /* of the file afterwards */
	uint8_t *bytes; /* len */
	bool lost;
} change;

typedef struct inode inode;

typedef struct entry
{
	char *name;
	inode *now;                   /* NULL: no such name */
	inode *version[MAX_VERSIONS]; /* since the last sync, durable one first */
	uint64_t number[MAX_VERSIONS];
	uint32_t versions;
} entry;

struct inode
{
	inode *next; /* of all */
	bool is_dir;
	uint32_t id;
	char path[512]; /* as it was opened last */
	image now, durable;
	change *changes;
	size_t n_changes, changes_room;
	entry *entries;
	size_t n_entries, entries_room;
};

struct sim_disk
{
	nv_disk ops;
	inode *all;
	inode *root;
	uint32_t ids;
	uint64_t random;
	uint32_t align;
	sim_faults faults;
	uint64_t changes, power_off_at, n_faults;
	bool off, calm;
	uint64_t capacity; /* 0: no limit */
	sim_hook called;
	void *called_arg;
};

/* An open file. */
typedef struct handle
{
	sim_disk *disk;
	inode *inode;
} handle;

/* --- Memory --- */

static void *
must(void *p)
{
	if (p == NULL)
		abort();
	return p;
}

/* An array with room for n entries of that size. */
static void *
room_for(void *array, size_t *room, size_t n, size_t size)
{
	if (n <= *room)
		return array;
	*room = NV_MAX(2 * *room, NV_MAX(n, (size_t) 8));
	return must(realloc(array, *room * size));
}

static void
resize(image *img, uint64_t size)
{
	if (size > img->room)
	{
		uint64_t room = NV_MAX(size, img->room + img->room / 2);

		img->bytes = must(realloc(img->bytes, room));
		img->room = room;
	}
	if (size > img->size)
		memset(img->bytes + img->size, 0, size - img->size);
	img->size = size;
}

static void
copy_image(image *to, const image *from)
{
	resize(to, from->size);
	if (from->size > 0)
		memcpy(to->bytes, from->bytes, from->size);
}

static inode *
new_inode(sim_disk *disk, bool is_dir)
{
	inode *node = must(calloc(1, sizeof(*node)));

	node->is_dir = is_dir;
	node->id = disk->ids++;
	node->next = disk->all;
	disk->all = node;
	return node;
}

static void
forget_changes(inode *node)
{
	for (size_t i = 0; i < node->n_changes; i++)
		free(node->changes[i].bytes);
	node->n_changes = 0;
}

void
sim_disk_free(sim_disk *disk)
{
	while (disk != NULL && disk->all != NULL)
	{
		inode *node = disk->all;

		disk->all = node->next;
		forget_changes(node);
		for (size_t i = 0; i < node->n_entries; i++)
			free(node->entries[i].name);
		free(node->entries);
		free(node->changes);
		free(node->now.bytes);
		free(node->durable.bytes);
		free(node);
	}
	free(disk);
}

/* --- Chance --- */

static bool
happens(sim_disk *disk, uint32_t in_65536)
{
	return in_65536 > 0 && !disk->calm &&
		   nv_random_below(&disk->random, 65536) < in_65536;
}

static bool
fails(sim_disk *disk, uint32_t in_65536)
{
	bool yes = happens(disk, in_65536);

	disk->n_faults += yes;
	return yes;
}

/* Counts a change; false: there is no power (any more). */
static bool
begin_change(sim_disk *disk)
{
	if (disk->off)
		return false;
	disk->changes++;
	if (disk->power_off_at != 0 && disk->changes >= disk->power_off_at)
		disk->off = true;
	/* The change at which it fails may still be done in part. */
	return true;
}

static void
call_hook(sim_disk *disk, bool is_sync)
{
	if (disk->called != NULL && !disk->off && !disk->calm)
		disk->called(disk->called_arg, is_sync);
}

/* --- Space --- */

static uint64_t
used_below(const inode *node)
{
	uint64_t bytes = node->is_dir ? 0 : node->now.size;

	for (size_t i = 0; i < node->n_entries; i++)
		if (node->entries[i].now != NULL)
			bytes += used_below(node->entries[i].now);
	return bytes;
}

uint64_t
sim_disk_used(const sim_disk *disk)
{
	return used_below(disk->root);
}

void
sim_disk_set_capacity(sim_disk *disk, uint64_t bytes)
{
	disk->capacity = bytes;
}

/* A file may become so large. */
static bool
has_space(sim_disk *disk, const inode *node, uint64_t size)
{
	uint64_t more = size > node->now.size ? size - node->now.size : 0;

	if (more == 0 || disk->capacity == 0 ||
		sim_disk_used(disk) + more <= disk->capacity)
		return true;
	disk->n_faults++;
	return false;
}

/* --- Files --- */

static ssize_t
sim_pread(nv_file *file, void *buf, size_t len, uint64_t offset)
{
	handle *h = file->arg;
	sim_disk *disk = h->disk;
	const image *img = &h->inode->now;

	call_hook(disk, false);
	if (disk->off || fails(disk, disk->faults.read_error))
		return -EIO;
	if (offset >= img->size)
		return 0;
	len = (size_t) NV_MIN((uint64_t) len, img->size - offset);
	if (happens(disk, disk->faults.short_transfer))
	{
		if (len <= file->align)
			return -EINTR;
		len = (1 + (size_t) nv_random_below(&disk->random, len / file->align)) *
			  file->align;
		len = (size_t) NV_MIN((uint64_t) len, img->size - offset);
	}
	memcpy(buf, img->bytes + offset, len);
	return (ssize_t) len;
}

static void
note_change(sim_disk *disk, inode *node, const void *bytes, uint64_t len,
			uint64_t offset, bool lost)
{
	change *c;

	node->changes = room_for(node->changes, &node->changes_room,
							 node->n_changes + 1, sizeof(*node->changes));
	c = &node->changes[node->n_changes++];
	c->number = disk->changes;
	c->offset = offset;
	c->len = len;
	c->size = node->now.size;
	c->lost = lost;
	c->bytes = len > 0 ? must(malloc(len)) : NULL;
	if (len > 0)
		memcpy(c->bytes, bytes, len);
}

static ssize_t
sim_pwrite(nv_file *file, const void *buf, size_t len, uint64_t offset)
{
	handle *h = file->arg;
	sim_disk *disk = h->disk;

	if (!begin_change(disk) || fails(disk, disk->faults.write_error))
		return -EIO;
	if (fails(disk, disk->faults.no_space) ||
		!has_space(disk, h->inode, offset + len))
		return -ENOSPC;
	if (len > file->align && happens(disk, disk->faults.short_transfer))
		len = (1 + (size_t) nv_random_below(&disk->random, len / file->align)) *
			  file->align;
	len = (size_t) NV_MIN(len, (size_t) 1 << 30);
	if (offset + len > h->inode->now.size)
		resize(&h->inode->now, offset + len);
	memcpy(h->inode->now.bytes + offset, buf, len);
	note_change(disk, h->inode, buf, len, offset,
				fails(disk, disk->faults.lost_write));
	return disk->off ? -EIO : (ssize_t) len;
}

static void
apply(image *img, const change *c, uint64_t from, uint64_t len)
{
	if (c->offset + from + len > img->size)
		resize(img, c->offset + from + len);
	memcpy(img->bytes + c->offset + from, c->bytes + from, len);
}

static int
sim_sync(nv_file *file)
{
	handle *h = file->arg;
	sim_disk *disk = h->disk;
	inode *node = h->inode;

	call_hook(disk, true);
	/* Power that fails now fails before the sync is done. */
	if (!begin_change(disk) || disk->off ||
		fails(disk, disk->faults.sync_error))
		return -EIO;
	for (size_t i = 0; i < node->n_changes; i++)
	{
		const change *c = &node->changes[i];

		if (!c->lost && c->len > 0)
			apply(&node->durable, c, 0, c->len);
		else if (c->size < node->durable.size)
			resize(&node->durable, c->size);
	}
	resize(&node->durable, node->now.size);
	forget_changes(node);
	return 0;
}

static int
sim_size(nv_file *file, uint64_t *size)
{
	handle *h = file->arg;

	if (h->disk->off)
		return -EIO;
	*size = h->inode->now.size;
	return 0;
}

static int
sim_fallocate(nv_file *file, uint64_t size)
{
	handle *h = file->arg;
	sim_disk *disk = h->disk;

	if (!begin_change(disk))
		return -EIO;
	if (fails(disk, disk->faults.no_space) || !has_space(disk, h->inode, size))
		return -ENOSPC;
	if (size > h->inode->now.size)
	{
		resize(&h->inode->now, size);
		note_change(disk, h->inode, NULL, 0, 0, false);
	}
	return disk->off ? -EIO : 0;
}

static int
sim_truncate(nv_file *file, uint64_t size)
{
	handle *h = file->arg;
	sim_disk *disk = h->disk;

	if (!begin_change(disk))
		return -EIO;
	resize(&h->inode->now, size);
	note_change(disk, h->inode, NULL, 0, 0, false);
	return disk->off ? -EIO : 0;
}

static void
sim_close(nv_file *file)
{
	free(file->arg);
}

static const nv_file_ops file_ops = {
	.pread = sim_pread,
	.pwrite = sim_pwrite,
	.sync = sim_sync,
	.size = sim_size,
	.fallocate = sim_fallocate,
	.truncate = sim_truncate,
	.close = sim_close,
};

/* --- Names --- */

static entry *
find_entry(const inode *dir, const char *name, size_t len)
{
	for (size_t i = 0; i < dir->n_entries; i++)
		if (strlen(dir->entries[i].name) == len &&
			memcmp(dir->entries[i].name, name, len) == 0)
			return &dir->entries[i];
	return NULL;
}

/* What a path stands for; NULL: nothing.  *dir, *last: its last part's. */
static inode *
resolve(const sim_disk *disk, const char *path, inode **dir, const char **last)
{
	inode *at = disk->root;

	*dir = NULL;
	*last = "";
	while (at != NULL && *path != '\0')
	{
		size_t len;
		entry *e;

		while (*path == '/')
			path++;
		len = strcspn(path, "/");
		if (len == 0)
			break;
		if (!at->is_dir)
			return NULL;
		*dir = at;
		*last = path;
		e = find_entry(at, path, len);
		at = e != NULL ? e->now : NULL;
		path += len;
		if (at == NULL && *path != '\0')
			*dir = NULL; /* a directory on the way is missing */
	}
	return at;
}

static void
set_entry(sim_disk *disk, inode *dir, const char *name, inode *node)
{
	entry *e = find_entry(dir, name, strlen(name));

	if (e == NULL)
	{
		dir->entries = room_for(dir->entries, &dir->entries_room,
								dir->n_entries + 1, sizeof(*dir->entries));
		e = &dir->entries[dir->n_entries++];
		memset(e, 0, sizeof(*e));
		e->name = must(strdup(name));
		e->versions = 1; /* nothing */
	}
	e->now = node;
	if (e->versions == MAX_VERSIONS)
		e->versions--;
	e->number[e->versions] = disk->changes;
	e->version[e->versions++] = node;
}

static nv_status
sim_open(void *arg, const char *path, int flags, nv_file **file, nv_error *err)
{
	sim_disk *disk = arg;
	const char *last;
	inode *dir, *node = resolve(disk, path, &dir, &last);
	bool create = (flags & NV_FILE_CREATE) != 0;
	handle *h;
	nv_status status;

	if (disk->off || (create && !begin_change(disk)) || disk->off)
		return nv_fail(err, NV_EIO, EIO, "no power");
	if (create && fails(disk, disk->faults.no_space))
		return nv_fail(err, NV_ENOSPC, ENOSPC, "no space for \"%s\"", path);
	if (create && node != NULL)
		return nv_fail(err, NV_EEXIST, EEXIST, "\"%s\" exists", path);
	if (create && dir != NULL)
	{
		node = new_inode(disk, false);
		set_entry(disk, dir, last, node);
	}
	if (node == NULL || node->is_dir)
		return nv_fail(err, NV_ENOENT, ENOENT, "there is no \"%s\"", path);
	snprintf(node->path, sizeof(node->path), "%s", path);
	h = must(calloc(1, sizeof(*h)));
	h->disk = disk;
	h->inode = node;
	status = nv_file_new(&file_ops, h, path, flags, file, err);
	if (status != NV_OK)
	{
		free(h);
		return status;
	}
	if ((flags & NV_FILE_BUFFERED) == 0)
	{
		(*file)->direct = true;
		(*file)->align = disk->align;
	}
	return NV_OK;
}

static nv_status
sim_dir_sync(void *arg, const char *path, nv_error *err)
{
	sim_disk *disk = arg;
	const char *last;
	inode *dir, *node = resolve(disk, path, &dir, &last);

	if (!begin_change(disk) || disk->off ||
		fails(disk, disk->faults.sync_error))
		return nv_fail(err, NV_EIO, EIO, "could not sync \"%s\"", path);
	if (node == NULL || !node->is_dir)
		return nv_fail(err, NV_ENOENT, ENOENT, "there is no \"%s\"", path);
	for (size_t i = 0; i < node->n_entries; i++)
	{
		entry *e = &node->entries[i];

		e->version[0] = e->now;
		e->versions = 1;
	}
	return NV_OK;
}

static bool
is_empty(const inode *dir)
{
	for (size_t i = 0; i < dir->n_entries; i++)
		if (dir->entries[i].now != NULL)
			return false;
	return true;
}

static int
sim_change(void *arg, nv_name_change what, const char *path, const char *to)
{
	sim_disk *disk = arg;
	const char *last, *to_last;
	inode *dir, *to_dir, *node = resolve(disk, path, &dir, &last);

	if (!begin_change(disk))
		return -EIO;
	if (what != NV_NAME_REMOVE && fails(disk, disk->faults.no_space))
		return -ENOSPC;
	if (dir == NULL || (node == NULL && what != NV_NAME_MAKE_DIR))
		return -ENOENT;
	switch (what)
	{
		case NV_NAME_MAKE_DIR:
			if (node != NULL)
				return -EEXIST;
			set_entry(disk, dir, last, new_inode(disk, true));
			break;
		case NV_NAME_RENAME:
			(void) resolve(disk, to, &to_dir, &to_last);
			if (to_dir == NULL)
				return -ENOENT;
			set_entry(disk, to_dir, to_last, node);
			set_entry(disk, dir, last, NULL);
			break;
		case NV_NAME_REMOVE:
			if (node->is_dir && !is_empty(node))
				return -ENOTEMPTY;
			set_entry(disk, dir, last, NULL);
			break;
	}
	return disk->off ? -EIO : 0;
}

static int
sim_list(void *arg, const char *path, nv_name_fn found, void *found_arg)
{
	sim_disk *disk = arg;
	const char *last;
	inode *dir, *node = resolve(disk, path, &dir, &last);

	if (disk->off)
		return -EIO;
	if (node == NULL)
		return -ENOENT;
	if (!node->is_dir)
		return -ENOTDIR;
	for (size_t i = 0; found != NULL && i < node->n_entries; i++)
		if (node->entries[i].now != NULL)
			found(found_arg, node->entries[i].name);
	return 0;
}

/* --- The disk --- */

static sim_disk *
empty_disk(uint64_t seed)
{
	sim_disk *disk = must(calloc(1, sizeof(*disk)));

	disk->ops = (nv_disk){.open = sim_open,
						  .dir_sync = sim_dir_sync,
						  .arg = disk,
						  .change = sim_change,
						  .list = sim_list};
	disk->random = nv_random_seed(seed);
	disk->align = SIM_SECTOR;
	return disk;
}

sim_disk *
sim_disk_new(uint64_t seed)
{
	sim_disk *disk = empty_disk(seed);

	disk->root = new_inode(disk, true);
	return disk;
}

void
sim_disk_use(sim_disk *disk)
{
	nv_io_set_disk(disk != NULL ? &disk->ops : NULL);
}

void
sim_disk_set_align(sim_disk *disk, uint32_t align)
{
	disk->align = align;
}

void
sim_disk_set_faults(sim_disk *disk, const sim_faults *faults)
{
	disk->faults = *faults;
}

void
sim_disk_calm(sim_disk *disk, bool calm)
{
	disk->calm = calm;
}

void
sim_disk_set_hook(sim_disk *disk, sim_hook hook, void *arg)
{
	disk->called = hook;
	disk->called_arg = arg;
}

uint64_t
sim_disk_changes(const sim_disk *disk)
{
	return disk->changes;
}

uint64_t
sim_disk_faults(const sim_disk *disk)
{
	return disk->n_faults;
}

void
sim_disk_power_off_at(sim_disk *disk, uint64_t n)
{
	disk->power_off_at = n;
}

bool
sim_disk_is_off(const sim_disk *disk)
{
	return disk->off;
}

void
sim_disk_power_off(sim_disk *disk)
{
	disk->off = true;
}

void
sim_disk_resume(sim_disk *disk)
{
	disk->off = false;
	disk->power_off_at = 0;
	disk->called = NULL;
	disk->capacity = 0;
	memset(&disk->faults, 0, sizeof(disk->faults));
}

/* --- After a power failure --- */

/* How one crash comes out. */
typedef struct outcome
{
	sim_policy policy;
	bool garbage;
	uint64_t random;
	uint64_t until;     /* of SIM_PREFIX: the first change that is not there */
	uint32_t in_65536;  /* what is there, of SIM_SECTORS and SIM_WRITES */
	bool shorn;         /* torn sectors of the file at hand are lost, too */
	bool file_survives; /* of SIM_FILES, for the file at hand */
} outcome;

static bool
chance(outcome *o)
{
	return nv_random_below(&o->random, 65536) < o->in_65536;
}

/* Is this change there, or sectors of it? */
static bool
change_survives(outcome *o, uint64_t number)
{
	switch (o->policy)
	{
		case SIM_NOTHING:
			return false;
		case SIM_EVERYTHING:
			return true;
		case SIM_SECTORS:
			return true;
		case SIM_WRITES:
			return chance(o);
		case SIM_PREFIX:
			return number <= o->until;
		case SIM_FILES:
			return o->file_survives;
		default:
			abort();
	}
}

/* The write under way when it happened is torn. */
static bool
sector_survives(outcome *o, uint64_t number)
{
	if (o->policy == SIM_SECTORS)
		return chance(o);
	if (o->policy == SIM_PREFIX && number == o->until)
		return nv_random_below(&o->random, 2) == 0;
	return true;
}

/* A sector under the disk's head when power failed reads as nothing sensible.
 */
static void
scramble(outcome *o, image *img, uint64_t offset, uint64_t len)
{
	if (offset + len > img->size)
		resize(img, offset + len);
	for (uint64_t i = 0; i < len; i++)
		img->bytes[offset + i] = (uint8_t) nv_random(&o->random);
}

/* A sector of a file: [*from, *from + len) of a change, by disk sectors. */
static uint64_t
sector_len(const change *c, uint64_t from)
{
	uint64_t end = (c->offset + from) / SIM_SECTOR * SIM_SECTOR + SIM_SECTOR;

	return NV_MIN(end - c->offset, c->len) - from;
}

static uint64_t
choose_size(outcome *o, const inode *from)
{
	uint64_t size = from->durable.size;
	size_t n = from->n_changes;

	if (n == 0)
		return size;
	if (o->policy == SIM_SECTORS || o->policy == SIM_WRITES)
	{
		size_t i = (size_t) nv_random_below(&o->random, n + 1);

		return i == n ? size : from->changes[i].size;
	}
	for (size_t i = 0; i < n; i++)
		if (change_survives(o, from->changes[i].number))
			size = from->changes[i].size;
	return size;
}

static void
crash_file(outcome *o, const inode *from, inode *to)
{
	size_t n = from->n_changes, *order;
	uint64_t size, old = from->durable.size;

	copy_image(&to->durable, &from->durable);
	o->in_65536 = 4096 + (uint32_t) nv_random_below(&o->random, 57344);
	o->file_survives = nv_random_below(&o->random, 2) == 0;
	o->shorn = o->policy == SIM_PREFIX && strstr(from->path, "state") != NULL &&
			   nv_random_below(&o->random, 2) == 0;
	size = choose_size(o, from);
	order = must(malloc((n + 1) * sizeof(*order)));
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	if (o->policy == SIM_SECTORS || o->policy == SIM_WRITES)
		for (size_t i = n; i > 1; i--)
		{
			size_t j = (size_t) nv_random_below(&o->random, i);
			size_t x = order[i - 1];

			order[i - 1] = order[j];
			order[j] = x;
		}
	if (size > old)
	{
		resize(&to->durable, size);
		for (uint64_t i = old; o->garbage && i < size; i++)
			to->durable.bytes[i] = (uint8_t) nv_random(&o->random);
	}
	for (size_t i = 0; i < n; i++)
	{
		const change *c = &from->changes[order[i]];
		uint64_t len;

		if (c->len == 0 || c->lost || !change_survives(o, c->number))
			continue;
		for (uint64_t at = 0; at < c->len; at += len)
		{
			len = sector_len(c, at);
			if (sector_survives(o, c->number))
				apply(&to->durable, c, at, len);
			else if (o->shorn)
				scramble(o, &to->durable, c->offset + at, len);
		}
	}
	free(order);
	resize(&to->durable, size);
	copy_image(&to->now, &to->durable);
}

/* What a name stands for after the crash. */
static inode *
choose_version(outcome *o, const entry *e)
{
	inode *node = e->version[0];

	if (o->policy == SIM_SECTORS || o->policy == SIM_WRITES)
		return e->version[nv_random_below(&o->random, e->versions)];
	if (o->policy == SIM_FILES)
		o->file_survives = nv_random_below(&o->random, 2) == 0;
	for (uint32_t i = 1; i < e->versions; i++)
		if (change_survives(o, e->number[i]))
			node = e->version[i];
	return node;
}

/* An inode of the old disk in the new one, with everything below it. */
static inode *
crash_inode(outcome *o, const inode *from, sim_disk *disk)
{
	inode *to = new_inode(disk, from->is_dir);

	memcpy(to->path, from->path, sizeof(to->path));
	if (!from->is_dir)
		crash_file(o, from, to);
	for (size_t i = 0; i < from->n_entries; i++)
	{
		inode *node = choose_version(o, &from->entries[i]);

		if (node == NULL)
			continue;
		node = crash_inode(o, node, disk);
		set_entry(disk, to, from->entries[i].name, node);
		to->entries[to->n_entries - 1].version[0] = node;
		to->entries[to->n_entries - 1].versions = 1;
	}
	return to;
}

static uint64_t
oldest_change(const inode *node)
{
	uint64_t oldest = UINT64_MAX;

	for (; node != NULL; node = node->next)
	{
		if (node->n_changes > 0)
			oldest = NV_MIN(oldest, node->changes[0].number);
		for (size_t i = 0; i < node->n_entries; i++)
			if (node->entries[i].versions > 1)
				oldest = NV_MIN(oldest, node->entries[i].number[1]);
	}
	return oldest;
}

sim_disk *
sim_disk_crash(const sim_disk *disk, sim_policy policy, bool garbage,
			   uint64_t seed)
{
	sim_disk *after = empty_disk(seed);
	outcome o = {.policy = policy,
				 .garbage = garbage,
				 .random = nv_random_seed(seed ^ 0x5eed)};
	uint64_t oldest = oldest_change(disk->all);

	after->align = disk->align;
	o.until = disk->changes;
	if (oldest <= disk->changes)
		o.until =
			oldest + nv_random_below(&o.random, disk->changes - oldest + 1);
	after->root = crash_inode(&o, disk->root, after);
	return after;
}

/* Inodes that are opened still keep what they are: copies are of names. */
static inode *
copy_inode(const inode *from, sim_disk *disk)
{
	inode *to = new_inode(disk, from->is_dir);

	memcpy(to->path, from->path, sizeof(to->path));
	copy_image(&to->durable, &from->now);
	copy_image(&to->now, &from->now);
	for (size_t i = 0; i < from->n_entries; i++)
		if (from->entries[i].now != NULL)
		{
			inode *node = copy_inode(from->entries[i].now, disk);

			set_entry(disk, to, from->entries[i].name, node);
			to->entries[to->n_entries - 1].version[0] = node;
			to->entries[to->n_entries - 1].versions = 1;
		}
	return to;
}

sim_disk *
sim_disk_copy(const sim_disk *disk, uint64_t seed)
{
	sim_disk *copy = empty_disk(seed);

	copy->align = disk->align;
	copy->root = copy_inode(disk->root, copy);
	return copy;
}

void
sim_disk_flip(sim_disk *disk, const char *name, uint64_t from, uint64_t below,
			  uint32_t bits, uint64_t seed)
{
	uint64_t random = nv_random_seed(seed);

	for (inode *node = disk->all; node != NULL; node = node->next)
	{
		if (node->is_dir || node->now.size <= from ||
			strstr(node->path, name) == NULL)
			continue;
		for (uint32_t i = 0; i < bits; i++)
		{
			uint64_t end = NV_MIN(node->now.size, below);
			uint64_t at = from + nv_random_below(&random, end - from);
			uint8_t bit = (uint8_t) (1 << nv_random_below(&random, 8));

			node->now.bytes[at] ^= bit;
			if (at < node->durable.size)
				node->durable.bytes[at] ^= bit;
		}
	}
}
