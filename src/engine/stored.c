/*
 * stored.c
 *		Stored vectors of a graph, read one after the other by a background
 *		thread.
 *
 * In the order of the file, a window of it is read at a time; what lies before
 * the window or behind it begins another.
 */
#include "stored.h"

#define WINDOW (UINT64_C(1) << 20) /* bytes */

nv_status
nv_stored_open(nv_stored *s, nv_body *body, nv_error *err)
{
	const nv_store_params *params = nv_store_get_params(body->store);

	nv_assert(params->vector_bytes == params->dim * sizeof(float));
	nv_assert(nv_store_vector_extent_max(body->store) <= WINDOW);
	memset(s, 0, sizeof(*s));
	s->body = body;
	s->window = aligned_alloc(NV_BLOCK, WINDOW);
	s->row = nv_alloc(params->vector_bytes);
	if (s->window != NULL && s->row != NULL)
		return NV_OK;
	nv_stored_close(s);
	return nv_fail(err, NV_ENOMEM, 0, "no memory to read vectors");
}

void
nv_stored_close(nv_stored *s)
{
	free(s->window);
	free(s->row);
	s->window = NULL;
	s->row = NULL;
}

void
nv_stored_forget(nv_stored *s)
{
	s->len = 0;
}

nv_status
nv_stored_read(nv_stored *s, uint32_t vertex, nv_error *err)
{
	nv_store *store = s->body->store;
	uint64_t offset;
	uint32_t len, skip;
	nv_status status;

	nv_store_vector_extent(store, vertex, &offset, &len, &skip);
	if (offset < s->start || offset + len > s->start + s->len)
	{
		uint64_t most = NV_MAX(s->end, offset + len) - offset;

		s->start = offset;
		s->len = NV_MIN(WINDOW, most);
		status = nv_file_read(nv_store_vector_file(store), s->window, s->len,
							  offset, err);
		if (status != NV_OK)
		{
			s->len = 0;
			return status;
		}
	}
	memcpy(s->row, s->window + (offset - s->start) + skip,
		   nv_store_get_params(store)->vector_bytes);
	return NV_OK;
}
