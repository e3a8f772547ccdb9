/*
 * cover.c
 *		Members of the entrance graph for regions that have too few.
 *
 * Vertices become members when they are inserted.  Where whole regions are
 * deleted, the others may be left with few members or none; what led to those
 * without went through the vertices that are gone.  So a consolidation looks,
 * with codes and entrance graph only, how far a sample of the live vertices is
 * from the nearest member, and promotes the farthest ones: while there are
 * fewer members than the index's share, and beyond it, by a quarter at most,
 * those that are much farther than most.
 *
 * Source: design.md section 4, "Entrance graph", "Deletion".
 */
#include "consolidate.h"
#include "pq_internal.h"

/* Sampled vertices for each member there should be, and at most. */
#define SAMPLE_SHARE 8
#define MAX_SAMPLE 16384u
/* Squared distance to the nearest member, as a multiple of the median. */
#define FAR_AWAY 4.0f

typedef struct cover
{
	nv_body *body;
	float *place; /* of the vertex at hand, in graph space */
	void *scratch;
	size_t room;
	nv_candidate *sample; /* distance to the nearest member, vertex */
	uint32_t n;
	nv_candidate near[NV_ENTRANCE_BUILD_LIST];
	uint32_t n_near;
} cover;

/* Members near a vertex, where its code says it is. */
static nv_status
look_around(cover *c, uint32_t vertex, uint32_t count, nv_error *err)
{
	const nv_entrance *entrance = c->body->entrance;
	size_t room = nv_entrance_scratch_size(entrance);
	nv_status status = nv_body_decode(c->body, vertex, c->place, err);

	if (status != NV_OK)
		return status;
	if (room > c->room)
	{
		free(c->scratch);
		c->scratch = nv_alloc(room);
		c->room = c->scratch != NULL ? room : 0;
	}
	if (c->scratch == NULL)
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory to search the entrance graph");
	c->n_near = nv_entrance_search(entrance, c->place, count, count, c->scratch,
								   c->room, c->near);
	return NV_OK;
}

static bool
may_join(nv_body *body, uint32_t vertex)
{
	return nv_body_live(body, vertex) && !nv_body_dying(body, vertex) &&
		   (nv_store_edge_word(body->store, vertex) & NV_LINKED);
}

static nv_status
take_sample(cover *c, uint32_t most, nv_cancel_fn cancel, void *cancel_arg,
			nv_error *err)
{
	uint32_t ids = nv_store_vertices(c->body->store);
	uint64_t live = NV_MAX(nv_body_live_vertices(c->body), UINT64_C(1));
	uint64_t met = 0;
	nv_status status = NV_OK;

	for (uint32_t v = 0; v < ids && c->n < most && status == NV_OK; v++)
	{
		if (!may_join(c->body, v) || met++ * most / live < c->n)
			continue;
		if (cancel(cancel_arg))
			return nv_fail(err, NV_ECANCELLED, 0, "consolidation was stopped");
		status = look_around(c, v, NV_ENTRANCE_LIST, err);
		if (status == NV_OK && c->n_near > 0)
			c->sample[c->n++] = (nv_candidate){c->near[0].dist, v};
	}
	return status;
}

static nv_status
promote(cover *c, uint32_t vertex, nv_error *err)
{
	nv_entrance *entrance = c->body->entrance;
	uint32_t near[NV_ENTRANCE_BUILD_LIST];
	nv_status status;

	for (uint32_t i = 0; i < c->n_near; i++)
		near[i] = c->near[i].id;
	status = nv_entrance_promote(entrance, vertex, c->place, near, c->n_near,
								 c->body->params.alpha, err);
	/* Deleted at the same time: whoever comes last drops the member. */
	if (status == NV_OK && !nv_body_live(c->body, vertex))
		nv_entrance_drop(entrance, vertex);
	return status;
}

/* The farthest first, unless one that was promoted before is near by now. */
static nv_status
promote_far(cover *c, double target, nv_error *err)
{
	float median = c->sample[c->n / 2].dist;
	nv_status status = NV_OK;

	for (uint32_t i = c->n; i-- > 0 && status == NV_OK;)
	{
		double members = nv_entrance_live(c->body->entrance);
		float least = members < target ? median : FAR_AWAY * median;

		if (members >= target + target / 4 + 1 || c->sample[i].dist <= least)
			break;
		status = look_around(c, c->sample[i].id, NV_ENTRANCE_BUILD_LIST, err);
		if (status == NV_OK && c->n_near > 0 && c->near[0].dist > least)
			status = promote(c, c->sample[i].id, err);
	}
	return status;
}

nv_status
nv_cover_regions(nv_body *body, nv_cancel_fn cancel, void *cancel_arg,
				 nv_error *err)
{
	uint64_t live = nv_body_live_vertices(body);
	double target = (double) body->params.entrance_ratio * (double) live;
	double wanted = NV_MIN(SAMPLE_SHARE * (target + 1), (double) MAX_SAMPLE);
	uint32_t most = (uint32_t) NV_MIN(wanted, (double) live);
	cover c = {.body = body};
	nv_status status = NV_OK;

	c.place = nv_alloc(body->view.gspace.gdim * sizeof(*c.place));
	c.sample = nv_alloc_array((size_t) most + 1, sizeof(*c.sample));
	if (c.place == NULL || c.sample == NULL)
		status = nv_fail(err, NV_ENOMEM, 0, "no memory for a sample of %u rows",
						 most);
	if (status == NV_OK)
		status = take_sample(&c, most, cancel, cancel_arg, err);
	if (status == NV_OK && c.n > 0)
	{
		nv_candidate_sort(c.sample, c.n);
		status = promote_far(&c, target, err);
	}
	free(c.place);
	free(c.sample);
	free(c.scratch);
	return status;
}
