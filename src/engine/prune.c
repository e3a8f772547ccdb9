/*
 * prune.c
 *		RobustPrune: which of many candidates become neighbours; delta prune:
 *		who leaves a full list for a newcomer.
 *
 * Source: algorithms.md section 2, step 4, and items 2, 5, 20 and 21 of
 * section 13.  Distances are squared, so alpha 1.2 acts like 1.095 on lengths.
 *
 * A candidate t is occluded at factor a when a vertex picked before it, and
 * nearer to the centre, is so near to t that
 *
 *		dist(centre, t) > a * dist(picked, t)   or   dist(picked, t) = 0.
 *
 * Only the smallest distance to a picked vertex counts, so it is all that is
 * kept of a candidate, beside the number of picks it was compared with.  The
 * comparison goes on where it stopped when a rises; most candidates meet their
 * occluder after a few picks, and no distance is computed twice.
 */
#include "vamana.h"

#include <math.h>
#include <string.h>

#include "navis/distance.h"
#include "util.h"

/* Factor between two rounds of picking; the last round is at alpha itself. */
#define ALPHA_STEP 1.2f

/* State of one call; lives in the caller's scratch. */
typedef struct prune_state
{
	const float *exact[NV_PRUNE_CANDIDATES];   /* or NULL */
	const int16_t *place[NV_PRUNE_CANDIDATES]; /* set where one is NULL */
	double unit; /* of squared distances of places */
	float error; /* added to a distance of which one side is exact */
	float nearest_pick[NV_PRUNE_CANDIDATES]; /* squared; INFINITY at first */
	uint16_t compared[NV_PRUNE_CANDIDATES];  /* picks already compared */
	bool picked[NV_PRUNE_CANDIDATES];
	uint16_t pick[NV_PRUNE_CANDIDATES]; /* positions in order of picking */
	uint32_t picks;
} prune_state;

size_t
nv_prune_scratch_size(void)
{
	return sizeof(prune_state);
}

/* Orders by distance, then id: squared distances are never negative. */
static inline uint64_t
sort_key(nv_candidate c)
{
	uint32_t bits;

	memcpy(&bits, &c.dist, sizeof(bits));
	return (uint64_t) bits << 32 | c.id;
}

void
nv_candidate_sort(nv_candidate *cand, uint32_t count)
{
	/* Shell sort: in place, no recursion, fast for a few hundred. */
	static const uint32_t gaps[] = {4193, 1750, 701, 301, 132,
									57,   23,   10,  4,   1};

	for (size_t g = 0; g < NV_LENGTH(gaps); g++)
		for (uint32_t i = gaps[g]; i < count; i++)
		{
			nv_candidate moving = cand[i];
			uint64_t key = sort_key(moving);
			uint32_t j = i;

			for (; j >= gaps[g] && sort_key(cand[j - gaps[g]]) > key;
				 j -= gaps[g])
				cand[j] = cand[j - gaps[g]];
			cand[j] = moving;
		}
}

/* Sorts, drops repeated ids and cuts to the cap. */
static uint32_t
prepare_candidates(nv_candidate *cand, uint32_t count)
{
	uint32_t kept = 0;

	nv_candidate_sort(cand, count);
	for (uint32_t i = 0; i < count && kept < NV_PRUNE_CANDIDATES; i++)
		if (kept == 0 || cand[kept - 1].id != cand[i].id)
			cand[kept++] = cand[i];
	return kept;
}

static inline bool
occludes(float to_centre, float to_pick, float factor)
{
	return to_pick == 0.0f || to_centre > factor * to_pick;
}

static inline float
pair_distance(const prune_state *s, uint32_t a, uint32_t b, uint32_t gdim)
{
	const float *x = s->exact[a], *y = s->exact[b];

	if (x != NULL && y != NULL)
		return nv_l2sq(x, y, gdim);
	return (float) (s->unit * nv_l2sq_short(s->place[a], s->place[b], gdim)) +
		   (x != NULL || y != NULL ? s->error : 0.0f);
}

/*
 * Compares candidate t with the picks it has not met yet, until one occludes
 * it.  Picks of an earlier round that lie farther out than t do not count.
 */
static bool
is_occluded(prune_state *s, const nv_candidate *cand, uint32_t t, float factor,
			uint32_t gdim)
{
	float nearest = s->nearest_pick[t];
	uint32_t k = s->compared[t];

	while (!occludes(cand[t].dist, nearest, factor) && k < s->picks)
	{
		uint32_t i = s->pick[k++];

		if (i < t)
		{
			float d = pair_distance(s, i, t, gdim);

			nearest = NV_MIN(nearest, d);
		}
	}
	s->nearest_pick[t] = nearest;
	s->compared[t] = (uint16_t) k;
	return occludes(cand[t].dist, nearest, factor);
}

/* One round of picking at a given factor. */
static void
pick_round(prune_state *s, const nv_candidate *cand, uint32_t count,
		   uint32_t max_degree, float factor, uint32_t gdim)
{
	for (uint32_t t = 0; t < count && s->picks < max_degree; t++)
		if (!s->picked[t] && !is_occluded(s, cand, t, factor, gdim))
		{
			s->picked[t] = true;
			s->pick[s->picks++] = (uint16_t) t;
		}
}

/*
 * Saturation: adds the nearest unpicked candidates.  Among many at the same
 * distance (copies in graph space) at most half of fill_to are taken, so that
 * they cannot make up the whole list.
 */
static void
fill_up(prune_state *s, const nv_candidate *cand, uint32_t count,
		uint32_t fill_to)
{
	uint32_t equal = 0; /* picked or added at the present distance */

	for (uint32_t t = 0; t < count && s->picks < fill_to; t++)
	{
		if (t > 0 && cand[t].dist != cand[t - 1].dist)
			equal = 0;
		if (!s->picked[t] && equal < NV_MAX(1, fill_to / 2))
		{
			s->picked[t] = true;
			s->picks++;
		}
		equal += s->picked[t];
	}
}

/* Candidates and what they are compared by are there. */
static uint32_t
prune(prune_state *s, const nv_candidate *cand, uint32_t count,
	  uint32_t max_degree, float alpha, uint32_t fill_to, uint32_t gdim,
	  uint32_t *out)
{
	uint32_t kept = 0;

	s->picks = 0;
	for (uint32_t t = 0; t < count; t++)
	{
		s->nearest_pick[t] = INFINITY;
		s->compared[t] = 0;
		s->picked[t] = false;
	}
	for (float factor = 1.0f;;)
	{
		pick_round(s, cand, count, max_degree, factor, gdim);
		if (factor >= alpha || s->picks >= max_degree)
			break;
		factor = NV_MIN(factor * ALPHA_STEP, alpha);
	}
	fill_up(s, cand, count, NV_MIN(fill_to, max_degree));
	for (uint32_t t = 0; t < count; t++)
		if (s->picked[t])
			out[kept++] = cand[t].id;
	nv_assert(kept == s->picks && kept <= max_degree);
	return kept;
}

uint32_t
nv_robust_prune(nv_candidate *cand, uint32_t count, uint32_t max_degree,
				float alpha, uint32_t fill_to, uint32_t gdim,
				nv_vector_fn vector, void *arg, void *scratch, uint32_t *out)
{
	prune_state *s = scratch;

	count = prepare_candidates(cand, count);
	for (uint32_t t = 0; t < count; t++)
		s->exact[t] = vector(arg, cand[t].id);
	return prune(s, cand, count, max_degree, alpha, fill_to, gdim, out);
}

uint32_t
nv_robust_prune_coded(nv_candidate *cand, uint32_t count, uint32_t max_degree,
					  float alpha, uint32_t fill_to, uint32_t gdim,
					  const nv_coded_places *places, void *arg, void *scratch,
					  uint32_t *out)
{
	prune_state *s = scratch;

	count = prepare_candidates(cand, count);
	s->unit = places->unit;
	s->error = places->error;
	for (uint32_t t = 0; t < count; t++)
	{
		s->place[t] = places->place(arg, cand[t].id);
		s->exact[t] =
			places->exact != NULL ? places->exact(arg, cand[t].id) : NULL;
	}
	return prune(s, cand, count, max_degree, alpha, fill_to, gdim, out);
}

/* --- Delta prune, algorithms.md section 9, step 7 --- */

/* Positions, nearest to the centre first. */
static void
order_by_distance(const nv_candidate *cand, uint32_t count, uint16_t *order)
{
	for (uint32_t i = 0; i < count; i++)
	{
		uint64_t key = sort_key(cand[i]);
		uint32_t j = i;

		for (; j > 0 && sort_key(cand[order[j - 1]]) > key; j--)
			order[j] = order[j - 1];
		order[j] = (uint16_t) i;
	}
}

/*
 * The farther of a pair (newcomer, other) that the nearer one occludes, the
 * farthest other first; count if there is none.
 */
static uint32_t
occluded_pair(const nv_candidate *cand, uint32_t count, const uint16_t *order,
			  const float *to_newcomer, uint32_t newcomer, bool must_stay,
			  float factor)
{
	bool beyond = true; /* others of higher rank than the newcomer */

	for (uint32_t r = count; r-- > 0;)
	{
		uint32_t other = order[r];
		uint32_t far = beyond ? other : newcomer;

		if (other == newcomer)
			beyond = false;
		else if (!(far == newcomer && must_stay) &&
				 occludes(cand[far].dist, to_newcomer[other], factor))
			return far;
	}
	return count;
}

/* The farthest old one that another old one occludes, or count. */
static uint32_t
occluded_old(const nv_candidate *cand, const float *const *vector,
			 uint32_t count, const uint16_t *order, uint32_t newcomer,
			 float factor, uint32_t gdim)
{
	for (uint32_t r = count; r-- > 0;)
	{
		uint32_t far = order[r];

		for (uint32_t q = 0; q < r && far != newcomer; q++)
		{
			uint32_t near = order[q];

			if (near != newcomer &&
				occludes(cand[far].dist,
						 nv_l2sq(vector[far], vector[near], gdim), factor))
				return far;
		}
	}
	return count;
}

uint32_t
nv_delta_prune(const nv_candidate *cand, const float *const *vector,
			   uint32_t count, uint32_t newcomer, bool must_stay, float alpha,
			   uint32_t gdim)
{
	uint16_t order[NV_MAX_DEGREE + 1];
	float to_newcomer[NV_MAX_DEGREE + 1];
	uint32_t goes = count;

	nv_assert(count >= 2 && count <= NV_MAX_DEGREE + 1);
	order_by_distance(cand, count, order);
	for (uint32_t i = 0; i < count; i++)
		to_newcomer[i] = nv_l2sq(vector[newcomer], vector[i], gdim);
	for (float factor = alpha; goes == count; factor /= ALPHA_STEP)
	{
		factor = NV_MAX(factor, 1.0f);
		goes = occluded_pair(cand, count, order, to_newcomer, newcomer,
							 must_stay, factor);
		if (factor == 1.0f)
			break;
	}
	if (goes == count)
		goes = occluded_old(cand, vector, count, order, newcomer, alpha, gdim);
	if (goes == count)
		goes = order[count - 1];
	if (goes == newcomer && must_stay)
		goes = order[count - 2];
	return goes;
}
