/*
 * entrance.c
 *		The entrance graph: sample, search, tombstones, flat form.
 *
 * Members are sorted by vertex id, so that a member's number is found by
 * binary search and the sample needs no further map.  Vectors are IEEE halves
 * of the rows times a power of two (2^exponent) that brings the largest
 * component near 2^14: rows of any magnitude keep the precision of a half and
 * never overflow.  Distances are divided by its square when reported.
 *
 * A tombstone is one bit in an atomic word; it only decides what is reported.
 * When tombstones leave fewer members than asked for, the search is done again
 * with a longer list.
 *
 * Source: algorithms.md section 11; navis-system.txt (NAVIS-Update).
 */
#include "entrance.h"

#include <math.h>
#include <stdatomic.h>

#include "navis/distance.h"
#include "util.h"

#define MAGIC 0x544e4556u /* "VENT" */
#define FORMAT 1u

/* The largest component of a member is scaled to below 2 to this power. */
#define HALF_TOP_EXPONENT 14
/* The largest finite half is below 2^16; exponent bits all set mean more. */
#define HALF_EXPONENT_MASK 0x7c00u
#define EXPONENT_LIMIT                                                         \
	170 /* a float's are -149 .. 128; see choose_exponent                      \
		 */
/* The top bit of a pool entry's id tells that it was expanded. */
#define POOL_EXPANDED 0x80000000u

struct nv_entrance
{
	uint32_t gdim;
	int32_t exponent;
	nv_graph graph;         /* over member numbers */
	uint32_t *vertex;       /* graph.n, ascending */
	uint16_t *half;         /* graph.n * gdim */
	_Atomic uint32_t *dead; /* one bit a member */
	_Atomic uint32_t dead_count;
};

/* Head of the flat form; then vertex, dead, half (padded), degree, edges. */
typedef struct saved_head
{
	uint32_t magic;
	uint32_t format;
	uint32_t count;
	uint32_t gdim;
	int32_t exponent;
	uint32_t medoid;
	uint64_t edges;
} saved_head;

static inline size_t
dead_words(uint32_t count)
{
	return ((size_t) count + 31) / 32;
}

static inline size_t
half_bytes(uint32_t count, uint32_t gdim)
{
	return (size_t) nv_round_up((uint64_t) count * gdim * sizeof(uint16_t), 4);
}

static nv_status
out_of_memory(nv_error *err, uint32_t count)
{
	return nv_fail(err, NV_ENOMEM, 0,
				   "out of memory for an entrance graph of %u members", count);
}

void
nv_entrance_free(nv_entrance *ent)
{
	if (ent == NULL)
		return;
	nv_graph_free(&ent->graph);
	free(ent->vertex);
	free(ent->half);
	free((void *) ent->dead);
	free(ent);
}

/* An entrance graph without edges; NULL when there is no memory. */
static nv_entrance *
allocate(uint32_t count, uint32_t gdim)
{
	nv_entrance *ent = nv_alloc(sizeof(*ent));

	if (ent == NULL)
		return NULL;
	ent->gdim = gdim;
	ent->vertex = nv_alloc_array(count, sizeof(*ent->vertex));
	ent->half = nv_alloc_array(count, gdim * sizeof(*ent->half));
	ent->dead = nv_alloc_array(dead_words(count), sizeof(*ent->dead));
	if (ent->vertex == NULL || ent->half == NULL || ent->dead == NULL)
	{
		nv_entrance_free(ent);
		return NULL;
	}
	return ent;
}

/* ---------- build ---------- */

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
take_rows(nv_entrance *ent, uint32_t count, const float *rows, size_t stride,
		  float *members)
{
	uint32_t gdim = ent->gdim;

	for (uint32_t i = 0; i < count; i++)
		memcpy(members + (size_t) i * gdim,
			   rows + (size_t) ent->vertex[i] * stride, gdim * sizeof(*rows));
	ent->exponent = choose_exponent(members, (uint64_t) count * gdim);
	for (uint32_t i = 0; i < count; i++)
	{
		float *row = members + (size_t) i * gdim;
		uint16_t *half = ent->half + (size_t) i * gdim;

		for (uint32_t j = 0; j < gdim; j++)
			row[j] = ldexpf(row[j], ent->exponent);
		nv_to_half(row, half, gdim);
		nv_from_half(half, row, gdim);
	}
}

static uint32_t
member_count(float ratio, uint32_t n)
{
	double count = round((double) ratio * n);

	return count < 1.0 ? 1 : count > n ? n : (uint32_t) count;
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
	nv_entrance *made;
	float *members;
	nv_status status;

	*ent = NULL;
	if (n == 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "no vertices to make an entrance graph of");
	made = allocate(count, gdim);
	members = nv_alloc_array(count, gdim * sizeof(*members));
	if (made == NULL || members == NULL)
		status = out_of_memory(err, count);
	else
	{
		sample(made->vertex, count, n, seed);
		take_rows(made, count, rows, stride, members);
		status = nv_vamana_build(&params, members, gdim, count, gdim,
								 &made->graph, err);
	}
	free(members);
	if (status == NV_OK)
		*ent = made;
	else
		nv_entrance_free(made);
	return status;
}

/* ---------- members ---------- */

uint32_t
nv_entrance_count(const nv_entrance *ent)
{
	return ent->graph.n;
}

size_t
nv_entrance_memory(const nv_entrance *ent)
{
	uint32_t n = ent->graph.n;

	return sizeof(*ent) + n * sizeof(*ent->vertex) +
		   (size_t) n * ent->gdim * sizeof(*ent->half) +
		   dead_words(n) * sizeof(*ent->dead) +
		   ((size_t) n + 1) * sizeof(*ent->graph.offset) +
		   ent->graph.offset[n] * sizeof(*ent->graph.edges);
}

/* The member's number, or the count if the vertex is none. */
static uint32_t
number_of(const nv_entrance *ent, uint32_t vertex)
{
	uint32_t low = 0;
	uint32_t high = ent->graph.n;

	while (low < high)
	{
		uint32_t mid = low + (high - low) / 2;

		if (ent->vertex[mid] < vertex)
			low = mid + 1;
		else
			high = mid;
	}
	return low < ent->graph.n && ent->vertex[low] == vertex ? low
															: ent->graph.n;
}

bool
nv_entrance_member(const nv_entrance *ent, uint32_t vertex)
{
	return number_of(ent, vertex) < ent->graph.n;
}

void
nv_entrance_drop(nv_entrance *ent, uint32_t vertex)
{
	uint32_t i = number_of(ent, vertex);
	uint32_t bit = UINT32_C(1) << i % 32;

	if (i < ent->graph.n && !(atomic_fetch_or_explicit(&ent->dead[i / 32], bit,
													   memory_order_relaxed) &
							  bit))
		atomic_fetch_add_explicit(&ent->dead_count, 1, memory_order_relaxed);
}

static inline bool
is_dead(const nv_entrance *ent, uint32_t i)
{
	return atomic_load_explicit(&ent->dead[i / 32], memory_order_relaxed) >>
			   i % 32 &
		   1;
}

/* ---------- search ---------- */

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
	uint32_t list_size;
} searching;

size_t
nv_entrance_scratch_size(const nv_entrance *ent)
{
	return sizeof(search_scratch) + ent->gdim * sizeof(float) +
		   ent->graph.n * sizeof(uint32_t);
}

static void
begin_visits(searching *s)
{
	if (++s->scratch->generation == 0)
	{
		memset(s->stamp, 0, s->ent->graph.n * sizeof(*s->stamp));
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
	float dist = nv_l2sq_half(
		s->query, s->ent->half + (size_t) i * s->ent->gdim, s->ent->gdim);

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
	const nv_graph *g = &s->ent->graph;
	nv_candidate *pool = s->scratch->pool;
	uint32_t at = 0;

	begin_visits(s);
	visit(s, g->medoid);
	while (at < s->scratch->pool_size)
	{
		uint32_t i = pool[at].id;

		if (i & POOL_EXPANDED)
		{
			at++;
			continue;
		}
		pool[at].id |= POOL_EXPANDED;
		for (uint64_t e = g->offset[i]; e < g->offset[i + 1]; e++)
			if (s->stamp[g->edges[e]] != s->scratch->generation)
			{
				uint32_t put = visit(s, g->edges[e]);

				at = NV_MIN(at, put);
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

		if (!is_dead(ent, i))
			out[found++] =
				(nv_candidate){(float) (c.dist * unscale), ent->vertex[i]};
	}
	return found;
}

uint32_t
nv_entrance_search(const nv_entrance *ent, const float *query,
				   uint32_t list_size, uint32_t count, void *scratch,
				   nv_candidate *out)
{
	searching s = {.ent = ent, .scratch = scratch};
	uint32_t longest = NV_MIN(ent->graph.n, NV_ENTRANCE_MAX_LIST);
	double scale = ldexp(1.0, ent->exponent);

	s.query = (float *) (s.scratch + 1);
	s.stamp = (uint32_t *) (s.query + ent->gdim);
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

/* ---------- flat form ---------- */

size_t
nv_entrance_saved_size(const nv_entrance *ent)
{
	const nv_graph *g = &ent->graph;

	return sizeof(saved_head) + g->n * sizeof(uint32_t) +
		   dead_words(g->n) * sizeof(uint32_t) + half_bytes(g->n, ent->gdim) +
		   g->n * sizeof(uint32_t) + g->offset[g->n] * sizeof(uint32_t);
}

static uint8_t *
put_bytes(uint8_t *out, const void *bytes, size_t size)
{
	memcpy(out, bytes, size);
	return out + size;
}

void
nv_entrance_save(const nv_entrance *ent, uint8_t *out)
{
	const nv_graph *g = &ent->graph;
	saved_head head = {.magic = MAGIC,
					   .format = FORMAT,
					   .count = g->n,
					   .gdim = ent->gdim,
					   .exponent = ent->exponent,
					   .medoid = g->medoid,
					   .edges = g->offset[g->n]};
	size_t half = (size_t) g->n * ent->gdim * sizeof(uint16_t);

	out = put_bytes(out, &head, sizeof(head));
	out = put_bytes(out, ent->vertex, g->n * sizeof(*ent->vertex));
	for (size_t i = 0; i < dead_words(g->n); i++)
	{
		uint32_t word = atomic_load(&ent->dead[i]);

		out = put_bytes(out, &word, sizeof(word));
	}
	put_bytes(out, ent->half, half);
	memset(out + half, 0, half_bytes(g->n, ent->gdim) - half);
	out += half_bytes(g->n, ent->gdim);
	for (uint32_t i = 0; i < g->n; i++)
	{
		uint32_t degree = (uint32_t) (g->offset[i + 1] - g->offset[i]);

		out = put_bytes(out, &degree, sizeof(degree));
	}
	put_bytes(out, g->edges, g->offset[g->n] * sizeof(*g->edges));
}

static nv_status
corrupt(nv_error *err, const char *what)
{
	return nv_fail(err, NV_ECORRUPT, 0, "saved entrance graph: %s", what);
}

/* Checks the head and that len is exactly what it says. */
static nv_status
check_head(const saved_head *h, size_t len, uint32_t n_vertices, uint32_t gdim,
		   nv_error *err)
{
	uint64_t rest = len - sizeof(*h);
	uint64_t fixed;

	if (h->magic != MAGIC)
		return corrupt(err, "not one");
	if (h->format != FORMAT)
		return nv_fail(err, NV_EVERSION, 0,
					   "saved entrance graph has format %u: expected %u",
					   h->format, FORMAT);
	if (h->gdim != gdim || gdim > NV_MAX_DIM + 1)
		return corrupt(err, "other dimensions");
	if (h->count == 0 || h->count > n_vertices || h->count >= POOL_EXPANDED ||
		h->medoid >= h->count || h->exponent < -EXPONENT_LIMIT ||
		h->exponent > EXPONENT_LIMIT)
		return corrupt(err, "number out of range");
	fixed = (uint64_t) h->count * 8 + dead_words(h->count) * 4 +
			half_bytes(h->count, gdim);
	if (fixed > rest || h->edges != (rest - fixed) / 4 || (rest - fixed) % 4)
		return corrupt(err, "wrong length");
	return NV_OK;
}

static const char *
check_members(const nv_entrance *ent, uint32_t count, uint32_t n_vertices)
{
	uint64_t halves = (uint64_t) count * ent->gdim;

	for (uint32_t i = 0; i < count; i++)
		if (ent->vertex[i] >= n_vertices ||
			(i > 0 && ent->vertex[i] <= ent->vertex[i - 1]))
			return "member out of range or order";
	for (uint64_t i = 0; i < halves; i++)
		if ((ent->half[i] & HALF_EXPONENT_MASK) == HALF_EXPONENT_MASK)
			return "vector not finite";
	return NULL;
}

/* Lists are sets of other members; seen holds a stamp a member, all 0. */
static const char *
check_edges(const nv_graph *g, uint32_t *seen)
{
	for (uint32_t i = 0; i < g->n; i++)
		for (uint64_t e = g->offset[i]; e < g->offset[i + 1]; e++)
		{
			uint32_t other = g->edges[e];

			if (other >= g->n || other == i)
				return "edge out of range";
			if (seen[other] == i + 1)
				return "edge twice";
			seen[other] = i + 1;
		}
	return NULL;
}

/* Turns the degrees at `in` into offsets; they must add up. */
static const char *
load_offsets(nv_graph *g, const uint8_t *in, uint64_t edges)
{
	for (uint32_t i = 0; i < g->n; i++)
	{
		uint32_t degree;

		memcpy(&degree, in + (size_t) i * sizeof(degree), sizeof(degree));
		if (degree > NV_MAX_DEGREE)
			return "degree out of range";
		g->offset[i + 1] = g->offset[i] + degree;
	}
	return g->offset[g->n] == edges ? NULL : "degrees do not add up";
}

static void
load_dead(nv_entrance *ent, uint32_t count, const uint8_t *in)
{
	uint32_t dead = 0;

	for (size_t i = 0; i < dead_words(count); i++)
	{
		uint32_t word;

		memcpy(&word, in + i * sizeof(word), sizeof(word));
		if (i == count / 32) /* the last one, partly used */
			word &= (UINT32_C(1) << count % 32) - 1;
		atomic_store_explicit(&ent->dead[i], word, memory_order_relaxed);
		dead += (uint32_t) __builtin_popcount(word);
	}
	atomic_store_explicit(&ent->dead_count, dead, memory_order_relaxed);
}

/* Everything after the head; what is wrong, or NULL. */
static const char *
load_body(nv_entrance *ent, const saved_head *h, const uint8_t *in,
		  uint32_t n_vertices, uint32_t *seen)
{
	nv_graph *g = &ent->graph;
	const char *wrong;

	memcpy(ent->vertex, in, h->count * sizeof(*ent->vertex));
	in += h->count * sizeof(*ent->vertex);
	load_dead(ent, h->count, in);
	in += dead_words(h->count) * sizeof(uint32_t);
	memcpy(ent->half, in, (size_t) h->count * h->gdim * sizeof(*ent->half));
	in += half_bytes(h->count, h->gdim);
	wrong = check_members(ent, h->count, n_vertices);
	if (wrong == NULL)
		wrong = load_offsets(g, in, h->edges);
	if (wrong != NULL)
		return wrong;
	in += h->count * sizeof(uint32_t);
	memcpy(g->edges, in, h->edges * sizeof(*g->edges));
	return check_edges(g, seen);
}

nv_status
nv_entrance_load(const uint8_t *in, size_t len, uint32_t n_vertices,
				 uint32_t gdim, nv_entrance **ent, nv_error *err)
{
	saved_head head;
	nv_entrance *made;
	uint32_t *seen;
	nv_status status;

	*ent = NULL;
	if (len < sizeof(head))
		return corrupt(err, "too short");
	memcpy(&head, in, sizeof(head));
	status = check_head(&head, len, n_vertices, gdim, err);
	if (status != NV_OK)
		return status;
	made = allocate(head.count, gdim);
	seen = nv_alloc_array(head.count, sizeof(*seen));
	if (made != NULL)
	{
		made->exponent = head.exponent;
		made->graph.n = head.count;
		made->graph.medoid = head.medoid;
		made->graph.offset =
			nv_alloc_array((size_t) head.count + 1, sizeof(uint64_t));
		made->graph.edges = nv_alloc_array(head.edges, sizeof(uint32_t));
	}
	if (made == NULL || seen == NULL || made->graph.offset == NULL ||
		made->graph.edges == NULL)
		status = out_of_memory(err, head.count);
	else
	{
		const char *wrong =
			load_body(made, &head, in + sizeof(head), n_vertices, seen);

		if (wrong != NULL)
			status = corrupt(err, wrong);
	}
	free(seen);
	if (status == NV_OK)
		*ent = made;
	else
		nv_entrance_free(made);
	return status;
}
