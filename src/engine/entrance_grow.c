/*
 * entrance_grow.c
 *		The entrance graph: members and their numbers, promotion.
 *
 * Source: navis-system.txt (NAVIS-Update); algorithms.md section 11: a freshly
 * linked vertex joins with the members that its own position seeking met, so
 * that no traversal is needed; back edges by the rule of the large graph
 * (prune.c, delta prune).
 */
#include <math.h>
#include <sys/mman.h>

#include "entrance_internal.h"
#include "navis/distance.h"

#define DIRECTORY_BYTES (NV_ENT_MAX_CHUNKS * sizeof(void *))
#define NO_NUMBER NV_ENT_MAX_MEMBERS
#define HALF_LARGEST 65504.0f
/* Members met by one position seeking that are looked at, at most. */
#define MAX_NEAR 128

/* --- Memory -----------------------------------------------------------------
 */

nv_entrance *
nv_ent_allocate(uint32_t gdim, uint32_t cap)
{
	nv_entrance *ent = nv_alloc(sizeof(*ent));
	void *dir;

	if (ent == NULL)
		return NULL;
	dir = mmap(NULL, DIRECTORY_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (dir == MAP_FAILED)
	{
		free(ent);
		return NULL;
	}
	ent->chunks = dir;
	ent->gdim = gdim;
	ent->cap = cap;
	pthread_mutex_init(&ent->lock, NULL);
	return ent;
}

static void
free_chunk(nv_ent_chunk *chunk)
{
	if (chunk == NULL)
		return;
	free((void *) chunk->edges);
	free(chunk->half);
	free(chunk);
}

void
nv_entrance_free(nv_entrance *ent)
{
	if (ent == NULL)
		return;
	for (uint32_t c = 0; c < NV_ENT_MAX_CHUNKS; c++)
	{
		nv_ent_chunk *chunk = atomic_load(&ent->chunks[c]);

		if (chunk == NULL)
			break; /* chunks are added in order */
		free_chunk(chunk);
	}
	munmap((void *) ent->chunks, DIRECTORY_BYTES);
	pthread_mutex_destroy(&ent->lock);
	free(ent->table);
	free(ent);
}

static size_t
chunk_bytes(const nv_entrance *ent)
{
	return sizeof(nv_ent_chunk) +
		   (size_t) NV_ENT_CHUNK *
			   (ent->cap * sizeof(uint32_t) + ent->gdim * sizeof(uint16_t));
}

size_t
nv_entrance_memory(const nv_entrance *ent)
{
	size_t chunks =
		(atomic_load(&ent->count) + NV_ENT_CHUNK - 1) / NV_ENT_CHUNK;

	return sizeof(*ent) + chunks * chunk_bytes(ent) +
		   (size_t) atomic_load(&ent->count) * 4 * sizeof(uint32_t);
}

static nv_ent_chunk *
new_chunk(const nv_entrance *ent)
{
	nv_ent_chunk *chunk = nv_alloc(sizeof(*chunk));

	if (chunk == NULL)
		return NULL;
	chunk->edges = nv_alloc_array(NV_ENT_CHUNK, ent->cap * sizeof(uint32_t));
	chunk->half = nv_alloc_array(NV_ENT_CHUNK, ent->gdim * sizeof(uint16_t));
	if (chunk->edges == NULL || chunk->half == NULL)
	{
		free_chunk(chunk);
		return NULL;
	}
	return chunk;
}

/* --- Numbers of vertices
 * ------------------------------------------------------ */

static uint32_t
table_start(const nv_entrance *ent, uint32_t vertex)
{
	uint64_t hash = vertex * UINT64_C(0x9e3779b97f4a7c15);

	return (uint32_t) (hash >> 32) & (ent->table_size - 1);
}

uint32_t
nv_ent_number(const nv_entrance *ent, uint32_t vertex)
{
	if (ent->table_size == 0)
		return NO_NUMBER;
	for (uint32_t at = table_start(ent, vertex);;
		 at = (at + 1) & (ent->table_size - 1))
	{
		uint32_t i = ent->table[at];

		if (i == NO_NUMBER || nv_ent_vertex(ent, i) == vertex)
			return i;
	}
}

static void
table_put(nv_entrance *ent, uint32_t i)
{
	uint32_t at = table_start(ent, nv_ent_vertex(ent, i));

	while (ent->table[at] != NO_NUMBER)
		at = (at + 1) & (ent->table_size - 1);
	ent->table[at] = i;
}

/* At most half full with one more. */
static bool
table_reserve(nv_entrance *ent, uint32_t count)
{
	uint32_t size = NV_MAX(ent->table_size, 64u);
	uint32_t *table;

	while (size / 2 < count + 1)
		size *= 2;
	if (size == ent->table_size)
		return true;
	table = nv_alloc_array(size, sizeof(*table));
	if (table == NULL)
		return false;
	for (uint32_t at = 0; at < size; at++)
		table[at] = NO_NUMBER;
	free(ent->table);
	ent->table = table;
	ent->table_size = size;
	for (uint32_t i = 0; i < count; i++)
		table_put(ent, i);
	return true;
}

uint32_t
nv_ent_add(nv_entrance *ent, uint32_t vertex)
{
	uint32_t i = atomic_load(&ent->count);
	nv_ent_chunk *chunk;

	if (i + 1 >= NV_ENT_MAX_MEMBERS || !table_reserve(ent, i))
		return NO_NUMBER;
	chunk = nv_ent_chunk_of(ent, i);
	if (chunk == NULL)
	{
		chunk = new_chunk(ent);
		if (chunk == NULL)
			return NO_NUMBER;
		atomic_store_explicit(&ent->chunks[i / NV_ENT_CHUNK], chunk,
							  memory_order_release);
	}
	chunk->vertex[i % NV_ENT_CHUNK] = vertex;
	return i;
}

void
nv_ent_publish(nv_entrance *ent, uint32_t i)
{
	table_put(ent, i);
	atomic_store(&ent->count, i + 1);
}

/* --- Promotion
 * ------------------------------------------------------------------ */

/* Members among which a new one finds its neighbours. */
typedef struct surroundings
{
	const nv_entrance *ent;
	nv_candidate cand[MAX_NEAR]; /* id: position below */
	uint32_t number[MAX_NEAR];
	float *rows; /* MAX_NEAR * gdim, scaled */
	uint32_t n;
} surroundings;

static const float *
row_at(void *arg, uint32_t position)
{
	surroundings *s = arg;

	return s->rows + (size_t) position * s->ent->gdim;
}

static void
meet(surroundings *s, const float *row, uint32_t number)
{
	uint32_t gdim = s->ent->gdim;

	for (uint32_t i = 0; i < s->n; i++)
		if (s->number[i] == number)
			return;
	s->number[s->n] = number;
	nv_from_half(nv_ent_half(s->ent, number), s->rows + (size_t) s->n * gdim,
				 gdim);
	s->cand[s->n].id = s->n;
	s->cand[s->n].dist = nv_l2sq(row, s->rows + (size_t) s->n * gdim, gdim);
	s->n++;
}

/* The member's own half, and what it says as floats. */
static void
round_row(const nv_entrance *ent, const float *row, uint16_t *half,
		  float *scaled)
{
	for (uint32_t j = 0; j < ent->gdim; j++)
	{
		float x = ldexpf(row[j], ent->exponent);

		/* A row longer than the sample's: an entry point somewhat off. */
		scaled[j] = fminf(fmaxf(x, -HALF_LARGEST), HALF_LARGEST);
	}
	nv_to_half(scaled, half, ent->gdim);
	nv_from_half(half, scaled, ent->gdim);
}

/* A back edge at its place in the list of p, which has room or loses one. */
static bool
link_back(nv_entrance *ent, uint32_t p, uint32_t newcomer, const float *row,
		  bool must_stay, float alpha, float *rows)
{
	nv_candidate cand[NV_MAX_DEGREE + 1];
	const float *vector[NV_MAX_DEGREE + 1];
	uint32_t degree, gdim = ent->gdim, goes;
	_Atomic uint32_t *list = nv_ent_list(ent, p, &degree);
	float *centre = rows + (size_t) degree * gdim;

	if (degree < ent->cap)
	{
		atomic_store_explicit(&list[degree], newcomer, memory_order_release);
		atomic_store_explicit(
			&nv_ent_chunk_of(ent, p)->degree[p % NV_ENT_CHUNK], degree + 1,
			memory_order_release);
		return true;
	}
	nv_from_half(nv_ent_half(ent, p), centre, gdim);
	for (uint32_t e = 0; e < degree; e++)
	{
		uint32_t other = atomic_load(&list[e]);

		vector[e] = rows + (size_t) e * gdim;
		nv_from_half(nv_ent_half(ent, other), rows + (size_t) e * gdim, gdim);
		cand[e] = (nv_candidate){nv_l2sq(centre, vector[e], gdim), other};
	}
	vector[degree] = row;
	cand[degree] = (nv_candidate){nv_l2sq(centre, row, gdim), newcomer};
	goes = nv_delta_prune(cand, vector, degree + 1, degree, must_stay, alpha,
						  gdim);
	if (goes == degree)
		return false;
	atomic_store_explicit(&list[goes], newcomer, memory_order_release);
	return true;
}

/* Chooses the list of new member i, publishes it, and links back. */
static void
join(nv_entrance *ent, uint32_t i, surroundings *s, const float *row,
	 float alpha, void *scratch, float *rows)
{
	uint32_t picks[MAX_NEAR], degree, none;
	_Atomic uint32_t *list = nv_ent_list(ent, i, &none);
	bool reachable = false;

	degree = nv_robust_prune(s->cand, s->n, NV_MIN(ent->cap, MAX_NEAR), alpha,
							 0, ent->gdim, row_at, s, scratch, picks);
	for (uint32_t e = 0; e < degree; e++)
		atomic_store(&list[e], s->number[picks[e]]);
	atomic_store(&nv_ent_chunk_of(ent, i)->degree[i % NV_ENT_CHUNK], degree);
	nv_ent_publish(ent, i);
	for (uint32_t e = 0; e < degree; e++)
		reachable |=
			link_back(ent, s->number[picks[e]], i, row, false, alpha, rows);
	if (!reachable && degree > 0)
		link_back(ent, s->number[picks[0]], i, row, true, alpha, rows);
}

/* Everything a promotion works with, besides the graph. */
typedef struct promotion
{
	surroundings s;
	float *row;  /* scaled and rounded */
	float *rows; /* of a full list and its centre */
	void *scratch;
} promotion;

static void
promotion_free(promotion *p)
{
	if (p == NULL)
		return;
	free(p->s.rows);
	free(p->row);
	free(p->rows);
	free(p->scratch);
	free(p);
}

static promotion *
promotion_new(const nv_entrance *ent)
{
	size_t row = ent->gdim * sizeof(float);
	promotion *p = nv_alloc(sizeof(*p));

	if (p == NULL)
		return NULL;
	p->s.ent = ent;
	p->s.rows = nv_alloc_array(MAX_NEAR, row);
	p->row = nv_alloc(row);
	p->rows = nv_alloc_array((size_t) ent->cap + 1, row);
	p->scratch = nv_alloc(nv_prune_scratch_size());
	if (p->s.rows == NULL || p->row == NULL || p->rows == NULL ||
		p->scratch == NULL)
	{
		promotion_free(p);
		return NULL;
	}
	return p;
}

/* The lock is held. */
static bool
promote_locked(nv_entrance *ent, promotion *p, uint32_t vertex,
			   const float *row, const uint32_t *near, uint32_t n_near,
			   float alpha)
{
	uint32_t i = nv_ent_number(ent, vertex);

	if (i != NO_NUMBER)
	{
		if (nv_ent_dead(ent, i))
			atomic_fetch_sub(&ent->dead_count, 1);
		atomic_store(&nv_ent_chunk_of(ent, i)->dead[i % NV_ENT_CHUNK], 0);
		return true;
	}
	i = nv_ent_add(ent, vertex);
	if (i == NO_NUMBER)
		return false;
	round_row(ent, row, nv_ent_half(ent, i), p->row);
	for (uint32_t k = 0; k < n_near && p->s.n < MAX_NEAR; k++)
	{
		uint32_t number = nv_ent_number(ent, near[k]);

		if (number != NO_NUMBER && !nv_ent_dead(ent, number))
			meet(&p->s, p->row, number);
	}
	/* It must hang on something. */
	if (p->s.n == 0 && i > 0)
		meet(&p->s, p->row, ent->medoid);
	join(ent, i, &p->s, p->row, alpha, p->scratch, p->rows);
	return true;
}

nv_status
nv_entrance_promote(nv_entrance *ent, uint32_t vertex, const float *row,
					const uint32_t *near, uint32_t n_near, float alpha,
					nv_error *err)
{
	promotion *p = promotion_new(ent);
	bool done = false;

	if (p != NULL)
	{
		pthread_mutex_lock(&ent->lock);
		done = promote_locked(ent, p, vertex, row, near, n_near, alpha);
		if (done)
			atomic_fetch_add(&ent->changes, 1);
		pthread_mutex_unlock(&ent->lock);
	}
	promotion_free(p);
	return done ? NV_OK
				: nv_fail(err, NV_ENOMEM, 0,
						  "no memory for a member of the entrance graph");
}
