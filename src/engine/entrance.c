/*
 * entrance.c
 *		The entrance graph: sample, search, tombstones.
 *
 * Vectors are IEEE halves of the rows times a power of two (2^exponent) that
 * brings the largest component of the sample near 2^14: rows of any magnitude
 * keep the precision of a half.  Distances are divided by its square when
 * reported.
 *
 * A tombstone only decides what is reported.  When tombstones leave fewer
 * members than asked for, the search is done again with a longer list.
 *
 * Source: algorithms.md section 11; navis-system.txt (NAVIS-Update).
 */
#include <math.h>

#include "entrance_internal.h"
#include "navis/distance.h"

/* The largest component of a member is scaled to below 2 to this power. */
#define HALF_TOP_EXPONENT 14
/* The top bit of a pool entry's id tells that it was expanded. */
#define POOL_EXPANDED 0x80000000u

static nv_status
out_of_memory(nv_error *err, uint32_t count)
{
	return nv_fail(err, NV_ENOMEM, 0,
				   "out of memory for an entrance graph of %u members", count);
}

/* --- build --- */

/* count of 0 .. n - 1, ascending, each set as likely (Knuth's algorithm S). */
static void
sample(uint32_t *vertex, uint32_t count, uint32_t n, uint64_t seed)
{
	uint64_t random = nv_random_seed(seed);
	uint32_t taken = 0;

	for (uint32_t v = 0; v < n && taken < count; v++)
		if (nv_random_below(&random, n - v) < count - taken)
			vertex[taken++] = v;
}

/* Power of two for the members' largest component. */
static int32_t
choose_exponent(const float *rows, uint64_t size)
{
	float largest = 0.0f;
	int exponent = 0;

	for (uint64_t i = 0; i < size; i++)
		largest = fmaxf(largest, fabsf(rows[i]));
	if (largest == 0.0f)
		return 0;
	frexpf(largest, &exponent);
	return HALF_TOP_EXPONENT - exponent;
}

/*
 * Copies the members' rows, scaled and rounded as they are stored, so that the
 * graph is built on the distances that searches will see.
 */
static void
take_rows(nv_entrance *ent, const uint32_t *vertex, uint32_t count,
		  const float *rows, size_t stride, float *members)
{
	uint32_t gdim = ent->gdim;

	for (uint32_t i = 0; i < count; i++)
		memcpy(members + (size_t) i * gdim, rows + (size_t) vertex[i] * stride,
			   gdim * sizeof(*rows));
	ent->exponent = choose_exponent(members, (uint64_t) count * gdim);
	for (uint32_t i = 0; i < count; i++)
	{
		float *row = members + (size_t) i * gdim;
		uint16_t *half = nv_ent_half(ent, i);

		for (uint32_t j = 0; j < gdim; j++)
			row[j] = ldexpf(row[j], ent->exponent);
		nv_to_half(row, half, gdim);
		nv_from_half(half, row, gdim);
	}
}

static void
take_graph(nv_entrance *ent, const nv_graph *graph)
{
	ent->medoid = graph->medoid;
	for (uint32_t i = 0; i < graph->n; i++)
	{
		uint32_t none, n;
		_Atomic uint32_t *list = nv_ent_list(ent, i, &none);

		n = (uint32_t) (graph->offset[i + 1] - graph->offset[i]);
		nv_assert(n <= ent->cap);
		for (uint32_t e = 0; e < n; e++)
			atomic_store(&list[e], graph->edges[graph->offset[i] + e]);
		atomic_store(&nv_ent_chunk_of(ent, i)->degree[i % NV_ENT_CHUNK], n);
	}
}

static uint32_t
member_count(float ratio, uint32_t n)
{
	double count = round((double) ratio * n);

	count = NV_MIN(count, (double) NV_ENT_MAX_MEMBERS / 2);
	return count < 1.0 ? 1 : count > n ? n : (uint32_t) count;
}

/* Members of a sample, without vectors and lists. */
static bool
add_members(nv_entrance *ent, uint32_t *vertex, uint32_t count, uint32_t n,
			uint64_t seed)
{
	sample(vertex, count, n, seed);
	for (uint32_t i = 0; i < count; i++)
	{
		if (nv_ent_add(ent, vertex[i]) != i)
			return false;
		nv_ent_publish(ent, i);
	}
	return true;
}

nv_status
nv_entrance_build(const float *rows, size_t stride, uint32_t n, uint32_t gdim,
				  float ratio, uint32_t degree, float alpha, uint32_t threads,
				  uint64_t seed, nv_cancel_fn cancel, void *cancel_arg,
				  nv_entrance **ent, nv_error *err)
{
	nv_vamana_params params = {.max_degree = degree,
							   .list_size = NV_ENTRANCE_BUILD_LIST,
							   .alpha = alpha,
							   .threads = threads,
							   .cancel = cancel,
							   .cancel_arg = cancel_arg};
	uint32_t count = member_count(ratio, n);
	nv_graph graph = {0};
	nv_entrance *made;
	uint32_t *vertex;
	float *members;
	nv_status status;

	*ent = NULL;
	if (n == 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "no vertices to make an entrance graph of");
	made = nv_ent_allocate(gdim, degree);
	vertex = nv_alloc_array(count, sizeof(*vertex));
	members = nv_alloc_array(count, gdim * sizeof(*members));
	if (made == NULL || vertex == NULL || members == NULL ||
		!add_members(made, vertex, count, n, seed))
		status = out_of_memory(err, count);
	else
	{
		take_rows(made, vertex, count, rows, stride, members);
		status =
			nv_vamana_build(&params, members, gdim, count, gdim, &graph, err);
	}
	if (status == NV_OK)
	{
		take_graph(made, &graph);
		nv_graph_free(&graph);
		*ent = made;
	}
	else
		nv_entrance_free(made);
	free(vertex);
	free(members);
	return status;
}

/* --- members --- */

uint32_t
nv_entrance_count(const nv_entrance *ent)
{
	return atomic_load(&ent->count);
}

uint32_t
nv_entrance_live(const nv_entrance *ent)
{
	/* The dead first: it never exceeds a count that is read later. */
	uint32_t dead = atomic_load(&ent->dead_count);

	return atomic_load(&ent->count) - dead;
}

uint64_t
nv_entrance_changes(const nv_entrance *ent)
{
	return atomic_load(&ent->changes);
}

bool
nv_entrance_member(const nv_entrance *ent, uint32_t vertex)
{
	nv_entrance *mine = (nv_entrance *) ent; /* for its lock */
	bool found;

	pthread_mutex_lock(&mine->lock);
	found = nv_ent_number(ent, vertex) != NV_ENT_MAX_MEMBERS;
	pthread_mutex_unlock(&mine->lock);
	return found;
}

void
nv_entrance_drop(nv_entrance *ent, uint32_t vertex)
{
	uint32_t i;

	pthread_mutex_lock(&ent->lock);
	i = nv_ent_number(ent, vertex);
	if (i != NV_ENT_MAX_MEMBERS && !nv_ent_dead(ent, i))
	{
		atomic_store(&nv_ent_chunk_of(ent, i)->dead[i % NV_ENT_CHUNK], 1);
		atomic_fetch_add(&ent->dead_count, 1);
		atomic_fetch_add(&ent->changes, 1);
	}
	pthread_mutex_unlock(&ent->lock);
}

/* --- search --- */

/* The caller's scratch: this head, the scaled query, a stamp a member. */
typedef struct search_scratch
{
	uint32_t generation;
	uint32_t pool_size;
	nv_candidate pool[NV_ENTRANCE_MAX_LIST];
} search_scratch;

typedef struct searching
{
	const nv_entrance *ent;
	search_scratch *scratch;
	float *query;
	uint32_t *stamp;
	uint32_t n_stamps; /* members the scratch has room for */
	uint32_t list_size;
} searching;

size_t
nv_entrance_scratch_size(const nv_entrance *ent)
{
	uint64_t members = nv_round_up(atomic_load(&ent->count), NV_ENT_CHUNK);

	return sizeof(search_scratch) + ent->gdim * sizeof(float) +
		   members * sizeof(uint32_t);
}

static void
begin_visits(searching *s)
{
	if (++s->scratch->generation == 0)
	{
		memset(s->stamp, 0, s->n_stamps * sizeof(*s->stamp));
		s->scratch->generation = 1;
	}
	s->scratch->pool_size = 0;
}

/* Scores member i and puts it in the pool; the position, or the pool's size. */
static uint32_t
visit(searching *s, uint32_t i)
{
	search_scratch *scratch = s->scratch;
	nv_candidate *pool = scratch->pool;
	uint32_t at = scratch->pool_size;
	float dist = nv_l2sq_half(s->query, nv_ent_half(s->ent, i), s->ent->gdim);

	s->stamp[i] = scratch->generation;
	if (at == s->list_size && !(dist < pool[at - 1].dist))
		return at;
	if (at < s->list_size)
		scratch->pool_size++;
	else
		at--;
	for (; at > 0 && pool[at - 1].dist > dist; at--)
		pool[at] = pool[at - 1];
	pool[at] = (nv_candidate){dist, i};
	return at;
}

/* Best-first search from the medoid until the pool is all expanded. */
static void
traverse(searching *s)
{
	nv_candidate *pool = s->scratch->pool;
	uint32_t at = 0;

	begin_visits(s);
	visit(s, s->ent->medoid);
	while (at < s->scratch->pool_size)
	{
		uint32_t i = pool[at].id, degree;
		const _Atomic uint32_t *list;

		if (i & POOL_EXPANDED)
		{
			at++;
			continue;
		}
		pool[at].id |= POOL_EXPANDED;
		list = nv_ent_list(s->ent, i, &degree);
		for (uint32_t e = 0; e < degree; e++)
		{
			uint32_t other =
				atomic_load_explicit(&list[e], memory_order_acquire);

			/* Younger than the scratch: as if it were not there yet. */
			if (other < s->n_stamps &&
				s->stamp[other] != s->scratch->generation)
			{
				uint32_t put = visit(s, other);

				at = NV_MIN(at, put);
			}
		}
	}
}

/* The nearest live members of the pool. */
static uint32_t
collect(const searching *s, uint32_t count, nv_candidate *out)
{
	const nv_entrance *ent = s->ent;
	double unscale = ldexp(1.0, -2 * ent->exponent);
	uint32_t found = 0;

	for (uint32_t k = 0; k < s->scratch->pool_size && found < count; k++)
	{
		nv_candidate c = s->scratch->pool[k];
		uint32_t i = c.id & ~POOL_EXPANDED;

		if (!nv_ent_dead(ent, i))
			out[found++] = (nv_candidate){(float) (c.dist * unscale),
										  nv_ent_vertex(ent, i)};
	}
	return found;
}

uint32_t
nv_entrance_search(const nv_entrance *ent, const float *query,
				   uint32_t list_size, uint32_t count, void *scratch,
				   size_t scratch_size, nv_candidate *out)
{
	searching s = {.ent = ent, .scratch = scratch};
	uint32_t longest = NV_MIN(atomic_load(&ent->count), NV_ENTRANCE_MAX_LIST);
	double scale = ldexp(1.0, ent->exponent);

	s.query = (float *) (s.scratch + 1);
	s.stamp = (uint32_t *) (s.query + ent->gdim);
	s.n_stamps =
		(uint32_t) ((scratch_size - sizeof(search_scratch)) / sizeof(uint32_t) -
					ent->gdim);
	for (uint32_t j = 0; j < ent->gdim; j++)
		s.query[j] = (float) (query[j] * scale);
	s.list_size = NV_MIN(NV_MAX(NV_MAX(list_size, count), 1), longest);
	for (;;)
	{
		uint32_t found;

		traverse(&s);
		found = collect(&s, count, out);
		if (found == count || s.list_size == longest ||
			atomic_load_explicit(&ent->dead_count, memory_order_relaxed) == 0)
			return found;
		s.list_size = NV_MIN(2 * s.list_size, longest);
	}
}
