/*
 * store_dirs.h
 *		Two directories for a test over store_fixture.h: of a store, and of a
 *		copy, as a crash might leave it.
 */
#ifndef NAVIS_STORE_DIRS_H
#define NAVIS_STORE_DIRS_H

#include "store_fixture.h"

static char dir[NAME], copy[NAME];

static inline int
make_two(void **state)
{
	make_directory(dir);
	make_directory(copy);
	return 0;
}

static inline int
remove_two(void **state)
{
	remove_directory(dir);
	remove_directory(copy);
	return 0;
}

/* A checkpoint that nobody has a say in. */
static inline void
publish(nv_store *store)
{
	nv_checkpoint_hooks hooks = {0};

	ok(nv_store_checkpoint(store, &hooks, &why));
}

#endif
