/*
 * entrance_compact.c
 *		The entrance graph without its dropped members.
 *
 * Readers take no lock, so a member cannot be taken out of the graph they walk
 * on.  A new graph is made instead: the live members one after the other, each
 * linked by a search among those that are in it already, with the list size of
 * the build.  The halves are copied as they are: rows are scaled by a power of
 * two, which rounds nothing twice.
 *
 * Source: algorithms.md section 11; design.md section 4, "Deletion".
 */
#include <math.h>

#include "entrance_internal.h"
#include "navis/distance.h"

typedef struct compaction
{
	nv_entrance *made;
	float *row; /* in graph space */
	nv_candidate *near;
	uint32_t *vertex; /* of near */
	void *scratch;
	size_t scratch_size;
} compaction;

static bool
begin(compaction *c, const nv_entrance *ent)
{
	memset(c, 0, sizeof(*c));
	c->scratch_size = nv_entrance_scratch_size(ent);
	c->made = nv_ent_allocate(ent->gdim, ent->cap);
	c->row = nv_alloc(ent->gdim * sizeof(*c->row));
	c->near = nv_alloc_array(NV_ENTRANCE_BUILD_LIST, sizeof(*c->near));
	c->vertex = nv_alloc_array(NV_ENTRANCE_BUILD_LIST, sizeof(*c->vertex));
	c->scratch = nv_alloc(c->scratch_size);
	if (c->made != NULL)
		c->made->exponent = ent->exponent;
	return c->made != NULL && c->row != NULL && c->near != NULL &&
		   c->vertex != NULL && c->scratch != NULL;
}

static void
end(compaction *c)
{
	free(c->row);
	free(c->near);
	free(c->vertex);
	free(c->scratch);
}

static nv_status
add(compaction *c, const nv_entrance *ent, uint32_t i, float alpha,
	nv_error *err)
{
	uint32_t n = 0;

	nv_from_half(nv_ent_half(ent, i), c->row, ent->gdim);
	for (uint32_t d = 0; d < ent->gdim; d++)
		c->row[d] = ldexpf(c->row[d], -ent->exponent);
	if (nv_entrance_count(c->made) > 0)
		n = nv_entrance_search(c->made, c->row, NV_ENTRANCE_BUILD_LIST,
							   NV_ENTRANCE_BUILD_LIST, c->scratch,
							   c->scratch_size, c->near);
	for (uint32_t k = 0; k < n; k++)
		c->vertex[k] = c->near[k].id;
	return nv_entrance_promote(c->made, nv_ent_vertex(ent, i), c->row,
							   c->vertex, n, alpha, err);
}

nv_status
nv_entrance_compact(const nv_entrance *ent, float alpha, nv_cancel_fn cancel,
					void *cancel_arg, nv_entrance **out, nv_error *err)
{
	uint32_t count = atomic_load(&ent->count);
	nv_status status = NV_OK;
	compaction c;

	*out = NULL;
	if (!begin(&c, ent))
		status =
			nv_fail(err, NV_ENOMEM, 0,
					"no memory for an entrance graph of %u members", count);
	/* Searches begin at the first one. */
	if (status == NV_OK && !nv_ent_dead(ent, ent->medoid))
		status = add(&c, ent, ent->medoid, alpha, err);
	for (uint32_t i = 0; i < count && status == NV_OK; i++)
	{
		if (cancel != NULL && cancel(cancel_arg))
			status = nv_fail(err, NV_ECANCELLED, 0, "cancelled");
		else if (!nv_ent_dead(ent, i) && i != ent->medoid)
			status = add(&c, ent, i, alpha, err);
	}
	end(&c);
	if (status == NV_OK && nv_entrance_count(c.made) == 0)
		status = nv_fail(err, NV_EINVAL, 0, "all members are dropped");
	if (status == NV_OK)
		*out = c.made;
	else
		nv_entrance_free(c.made);
	return status;
}

void
nv_entrance_each(const nv_entrance *ent, void (*fn)(void *arg, uint32_t vertex),
				 void *arg)
{
	uint32_t count = atomic_load(&ent->count);

	for (uint32_t i = 0; i < count; i++)
		if (!nv_ent_dead(ent, i))
			fn(arg, nv_ent_vertex(ent, i));
}
