/*
 * rewire.c
 *		What becomes of a list that names dying vertices.
 *
 * A dying vertex is replaced by its own neighbours: the nearest
 * NV_SUBSTITUTES of those that stay are collected from its list before
 * anything is rewritten.  A list keeps its members that stay.  For the places
 * that become free it takes, of the substitutes of those that go, what
 * RobustPrune picks among all candidates (decoded codes, in code space); it
 * does not grow.  Where pruning picks too few, the nearest fill it up to what
 * the build fills lists to.
 *
 * Source: algorithms.md section 10 (OdinANN's sampled neighbours,
 *FreshDiskANN's delete phase), design.md section 4 "Deletion".
 */
#include "consolidate.h"
#include "navis/distance.h"
#include "pq_internal.h"

nv_status
nv_rewire_begin(nv_rewire *r, nv_linker *linker, const nv_dying *dying,
				const uint32_t *dead, uint32_t n_dead, nv_error *err)
{
	size_t place = linker->body->view.gspace.gdim * sizeof(*r->places);

	r->linker = linker;
	r->dying = dying;
	r->dead = dead;
	r->n_dead = n_dead;
	r->substitutes =
		nv_alloc_array(n_dead, NV_SUBSTITUTES * sizeof(*r->substitutes));
	r->n_substitutes = nv_alloc_array(n_dead, sizeof(*r->n_substitutes));
	r->places = nv_alloc_array(NV_PRUNE_CANDIDATES, place);
	r->centre = nv_alloc(place);
	if (r->substitutes == NULL || r->n_substitutes == NULL ||
		r->places == NULL || r->centre == NULL ||
		!nv_visited_reserve(&r->met, NV_PRUNE_CANDIDATES + NV_MAX_DEGREE))
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory to take %u vertices out of the graph",
					   n_dead);
	return NV_OK;
}

void
nv_rewire_end(nv_rewire *r)
{
	free(r->substitutes);
	free(r->n_substitutes);
	free(r->places);
	free(r->centre);
	nv_visited_free(&r->met);
}

bool
nv_rewire_names(const nv_rewire *r, const uint32_t *ids, uint32_t degree)
{
	for (uint32_t i = 0; i < degree; i++)
		if (nv_is_dying(r->dying, ids[i]))
			return true;
	return false;
}

/* The number of a dying vertex, or n_dead. */
static uint32_t
number_of(const nv_rewire *r, uint32_t vertex)
{
	uint32_t low = 0, high = r->n_dead;

	while (low < high)
	{
		uint32_t middle = low + (high - low) / 2;

		if (r->dead[middle] < vertex)
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->n_dead && r->dead[low] == vertex ? low : r->n_dead;
}

/* --- Candidates --- */

static int16_t *
place_at(const nv_rewire *r, uint32_t i)
{
	return r->places + (size_t) i * r->linker->body->view.gspace.gdim;
}

static const int16_t *
place_of(void *arg, uint32_t i)
{
	return place_at(arg, i);
}

static void
set_centre(nv_rewire *r, uint32_t vertex)
{
	/* One coding for all of a list: their spaces differ. */
	r->coding = nv_store_coding(r->linker->body->store);
	nv_pq_decode_short(nv_coding_pq(r->coding),
					   nv_coding_code(r->coding, vertex), r->centre);
	nv_visited_clear(&r->met);
}

/* Vertex is candidate number i. */
static void
add_candidate(nv_rewire *r, uint32_t i, uint32_t vertex)
{
	const nv_pq *pq = nv_coding_pq(r->coding);
	int16_t *place = place_at(r, i);

	nv_pq_decode_short(pq, nv_coding_code(r->coding, vertex), place);
	r->vertex[i] = vertex;
	r->cand[i].id = i;
	r->cand[i].dist =
		(float) (pq->short_unit * nv_l2sq_short(r->centre, place, pq->gdim));
}

void
nv_rewire_collect(nv_rewire *r, uint32_t vertex, const uint32_t *ids,
				  uint32_t degree)
{
	uint32_t number = number_of(r, vertex), n = 0;
	uint32_t *out = r->substitutes + (size_t) number * NV_SUBSTITUTES;

	if (number == r->n_dead)
		return;
	set_centre(r, vertex);
	for (uint32_t i = 0; i < degree; i++)
		if (!nv_is_dying(r->dying, ids[i]))
			add_candidate(r, n++, ids[i]);
	nv_candidate_sort(r->cand, n);
	n = NV_MIN(n, (uint32_t) NV_SUBSTITUTES);
	for (uint32_t i = 0; i < n; i++)
		out[i] = r->vertex[r->cand[i].id];
	r->n_substitutes[number] = (uint8_t) n;
}

const uint32_t *
nv_rewire_substitutes(const nv_rewire *r, uint32_t vertex, uint32_t *degree)
{
	uint32_t number = number_of(r, vertex);

	*degree = number < r->n_dead ? r->n_substitutes[number] : 0;
	return r->substitutes + (size_t) number * NV_SUBSTITUTES;
}

/*
 * The nearest substitute of each that goes, then the second of each, and so
 * on, while there is room; n candidates are there already.
 */
static uint32_t
add_substitutes(nv_rewire *r, const uint32_t *ids, uint32_t degree, uint32_t n)
{
	for (uint32_t rank = 0; rank < NV_SUBSTITUTES; rank++)
		for (uint32_t i = 0; i < degree; i++)
		{
			const uint32_t *list;
			uint32_t length;

			if (!nv_is_dying(r->dying, ids[i]))
				continue;
			list = nv_rewire_substitutes(r, ids[i], &length);
			if (rank >= length || !nv_visited_add(&r->met, list[rank]))
				continue;
			if (n == NV_PRUNE_CANDIDATES)
				return n;
			add_candidate(r, n++, list[rank]);
		}
	return n;
}

bool
nv_rewire_list(nv_rewire *r, uint32_t vertex, const uint32_t *ids,
			   uint32_t degree, uint32_t *out, uint32_t *new_degree)
{
	const nv_body *body = r->linker->body;
	uint32_t max_degree = nv_store_get_params(body->store)->max_degree;
	uint32_t picks[NV_MAX_DEGREE], n = 0, kept, picked;
	nv_coded_places places = {.place = place_of};

	set_centre(r, vertex);
	places.unit = nv_coding_pq(r->coding)->short_unit;
	if (!nv_visited_reserve(&r->met, NV_PRUNE_CANDIDATES + degree + 1))
		return false;
	nv_visited_add(&r->met, vertex);
	for (uint32_t i = 0; i < degree; i++)
		if (!nv_is_dying(r->dying, ids[i]) && nv_visited_add(&r->met, ids[i]))
		{
			out[n] = ids[i];
			add_candidate(r, n++, ids[i]);
		}
	kept = n;
	n = add_substitutes(r, ids, degree, n);
	/* Its order is by distance; cand is sorted, its ids stay what they were. */
	picked = nv_robust_prune_coded(r->cand, n, max_degree, body->params.alpha,
								   NV_MIN(degree, NV_BUILD_FILL(max_degree)),
								   body->view.gspace.gdim, &places, r,
								   r->linker->prune_scratch, picks);
	*new_degree = kept;
	for (uint32_t i = 0; i < picked && *new_degree < degree; i++)
		if (picks[i] >= kept) /* not there already */
			out[(*new_degree)++] = r->vertex[picks[i]];
	return true;
}
