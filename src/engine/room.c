/*
 * room.c
 *		Space on disk for rows that are to come.
 *
 * A row needs a record of the vector file and a list of its own; the lists that
 * name it are rewritten, out of place, and their old places come back with the
 * next checkpoint.  Both files grow in steps, so that this is seldom asked in
 * vain.
 *
 * Source: design.md, invariant 9.
 */
#include "store_internal.h"

/* Pages for lists that are rewritten, whatever the number of rows. */
#define REWRITE_PAGES 128

/* Pages for so many full lists. */
static uint64_t
pages_for(const nv_store *store, uint64_t rows)
{
	uint32_t per_page = NV_PAGE_UNITS / nv_slot_units(store->params.max_degree);

	return REWRITE_PAGES + rows / NV_MAX(per_page, 1u) + 1;
}

bool
nv_store_have_room(nv_store *store, uint64_t rows)
{
	return nv_vectors_have_room(store, rows) &&
		   nv_edges_have_room(store, pages_for(store, rows));
}

nv_status
nv_store_make_room(nv_store *store, uint64_t rows, nv_error *err)
{
	nv_status status = nv_store_check(store, err);

	if (status == NV_OK)
		status = nv_vectors_make_room(store, rows, err);
	if (status == NV_OK)
		status = nv_edges_make_room(store, pages_for(store, rows), err);
	return status;
}
