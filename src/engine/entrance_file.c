/*
 * entrance_file.c
 *		The entrance graph: flat form.
 *
 * Head; then of each member, in the order of their numbers: vertex; dead bits;
 * vectors (padded); degrees; edges.
 */
#include "entrance_internal.h"
#include "navis/distance.h"

#define MAGIC 0x544e4556u /* "VENT" */
#define FORMAT 2u

/* The largest finite half is below 2^16; exponent bits all set mean more. */
#define HALF_EXPONENT_MASK 0x7c00u
/* A float's are -149 .. 128; see choose_exponent in entrance.c. */
#define EXPONENT_LIMIT 170

typedef struct saved_head
{
	uint32_t magic;
	uint32_t format;
	uint32_t count;
	uint32_t gdim;
	int32_t exponent;
	uint32_t medoid;
	uint64_t edges;
	uint32_t cap;
	uint32_t unused;
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

static uint64_t
count_edges(const nv_entrance *ent)
{
	uint64_t edges = 0;

	for (uint32_t i = 0; i < nv_entrance_count(ent); i++)
	{
		uint32_t degree;

		(void) nv_ent_list(ent, i, &degree);
		edges += degree;
	}
	return edges;
}

size_t
nv_entrance_saved_size(const nv_entrance *ent)
{
	size_t n = nv_entrance_count(ent);

	return sizeof(saved_head) + 2 * n * sizeof(uint32_t) +
		   dead_words((uint32_t) n) * sizeof(uint32_t) +
		   half_bytes((uint32_t) n, ent->gdim) +
		   count_edges(ent) * sizeof(uint32_t);
}

static uint8_t *
put_bytes(uint8_t *out, const void *bytes, size_t size)
{
	memcpy(out, bytes, size);
	return out + size;
}

static uint8_t *
put_dead(const nv_entrance *ent, uint32_t n, uint8_t *out)
{
	for (size_t w = 0; w < dead_words(n); w++)
	{
		uint32_t word = 0;

		for (uint32_t i = (uint32_t) w * 32; i < n && i < (w + 1) * 32; i++)
			word |= (uint32_t) nv_ent_dead(ent, i) << i % 32;
		out = put_bytes(out, &word, sizeof(word));
	}
	return out;
}

void
nv_entrance_save(const nv_entrance *ent, uint8_t *out)
{
	uint32_t n = nv_entrance_count(ent), degree;
	size_t half = (size_t) ent->gdim * sizeof(uint16_t);
	saved_head head = {.magic = MAGIC,
					   .format = FORMAT,
					   .count = n,
					   .gdim = ent->gdim,
					   .exponent = ent->exponent,
					   .medoid = ent->medoid,
					   .edges = count_edges(ent),
					   .cap = ent->cap};

	out = put_bytes(out, &head, sizeof(head));
	for (uint32_t i = 0; i < n; i++)
	{
		uint32_t vertex = nv_ent_vertex(ent, i);

		out = put_bytes(out, &vertex, sizeof(vertex));
	}
	out = put_dead(ent, n, out);
	for (uint32_t i = 0; i < n; i++)
		out = put_bytes(out, nv_ent_half(ent, i), half);
	memset(out, 0, half_bytes(n, ent->gdim) - n * half);
	out += half_bytes(n, ent->gdim) - n * half;
	for (uint32_t i = 0; i < n; i++)
	{
		(void) nv_ent_list(ent, i, &degree);
		out = put_bytes(out, &degree, sizeof(degree));
	}
	for (uint32_t i = 0; i < n; i++)
	{
		const _Atomic uint32_t *list = nv_ent_list(ent, i, &degree);

		for (uint32_t e = 0; e < degree; e++)
		{
			uint32_t other = atomic_load(&list[e]);

			out = put_bytes(out, &other, sizeof(other));
		}
	}
}

uint8_t *
nv_entrance_copy(nv_entrance *ent, size_t *size)
{
	uint8_t *bytes;

	pthread_mutex_lock(&ent->lock);
	*size = nv_entrance_saved_size(ent);
	bytes = malloc(*size);
	if (bytes != NULL)
		nv_entrance_save(ent, bytes);
	pthread_mutex_unlock(&ent->lock);
	return bytes;
}

/* --- Loading --- */

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
	if (h->count == 0 || h->count > n_vertices ||
		h->count >= NV_ENT_MAX_MEMBERS || h->medoid >= h->count ||
		h->exponent < -EXPONENT_LIMIT || h->exponent > EXPONENT_LIMIT ||
		h->cap == 0 || h->cap > NV_MAX_DEGREE)
		return corrupt(err, "number out of range");
	fixed = (uint64_t) h->count * 8 + dead_words(h->count) * 4 +
			half_bytes(h->count, gdim);
	if (fixed > rest || h->edges != (rest - fixed) / 4 || (rest - fixed) % 4)
		return corrupt(err, "wrong length");
	return NV_OK;
}

/* What was saved, in its parts. */
typedef struct parts
{
	const uint8_t *vertex, *dead, *half, *degree, *edges;
} parts;

static uint32_t
word_at(const uint8_t *bytes, uint64_t i)
{
	uint32_t word;

	memcpy(&word, bytes + i * sizeof(word), sizeof(word));
	return word;
}

/* What is wrong, or NULL; "" means: no memory. */
static const char *
load_member(nv_entrance *ent, uint32_t i, const parts *in, uint32_t n_vertices)
{
	uint32_t vertex = word_at(in->vertex, i);
	uint16_t *half;

	if (vertex >= n_vertices)
		return "member out of range";
	if (nv_ent_number(ent, vertex) != NV_ENT_MAX_MEMBERS)
		return "member twice";
	if (nv_ent_add(ent, vertex) != i)
		return "";
	half = nv_ent_half(ent, i);
	memcpy(half, in->half + (size_t) i * ent->gdim * sizeof(*half),
		   ent->gdim * sizeof(*half));
	for (uint32_t j = 0; j < ent->gdim; j++)
		if ((half[j] & HALF_EXPONENT_MASK) == HALF_EXPONENT_MASK)
			return "vector not finite";
	if (word_at(in->dead, i / 32) >> i % 32 & 1)
	{
		atomic_store(&nv_ent_chunk_of(ent, i)->dead[i % NV_ENT_CHUNK], 1);
		atomic_fetch_add(&ent->dead_count, 1);
	}
	nv_ent_publish(ent, i);
	return NULL;
}

/* Lists are sets of other members; seen holds a stamp a member, all 0. */
static const char *
load_list(nv_entrance *ent, uint32_t i, const parts *in, uint64_t *edge,
		  uint64_t edges, uint32_t *seen)
{
	uint32_t degree = word_at(in->degree, i), none;
	_Atomic uint32_t *list = nv_ent_list(ent, i, &none);

	if (degree > ent->cap)
		return "degree out of range";
	if (*edge + degree > edges)
		return "degrees do not add up";
	for (uint32_t e = 0; e < degree; e++)
	{
		uint32_t other = word_at(in->edges, (*edge)++);

		if (other >= nv_entrance_count(ent) || other == i)
			return "edge out of range";
		if (seen[other] == i + 1)
			return "edge twice";
		seen[other] = i + 1;
		atomic_store(&list[e], other);
	}
	atomic_store(&nv_ent_chunk_of(ent, i)->degree[i % NV_ENT_CHUNK], degree);
	return NULL;
}

/* Everything after the head; what is wrong, or NULL; "": no memory. */
static const char *
load_body(nv_entrance *ent, const saved_head *h, const uint8_t *in,
		  uint32_t n_vertices, uint32_t *seen)
{
	parts p = {.vertex = in};
	const char *wrong = NULL;
	uint64_t edge = 0;

	p.dead = p.vertex + (size_t) h->count * sizeof(uint32_t);
	p.half = p.dead + dead_words(h->count) * sizeof(uint32_t);
	p.degree = p.half + half_bytes(h->count, h->gdim);
	p.edges = p.degree + (size_t) h->count * sizeof(uint32_t);
	for (uint32_t i = 0; i < h->count && wrong == NULL; i++)
		wrong = load_member(ent, i, &p, n_vertices);
	for (uint32_t i = 0; i < h->count && wrong == NULL; i++)
		wrong = load_list(ent, i, &p, &edge, h->edges, seen);
	if (wrong == NULL && edge != h->edges)
		wrong = "degrees do not add up";
	return wrong;
}

nv_status
nv_entrance_load(const uint8_t *in, size_t len, uint32_t n_vertices,
				 uint32_t gdim, nv_entrance **ent, nv_error *err)
{
	saved_head head;
	nv_entrance *made;
	uint32_t *seen;
	const char *wrong = "";
	nv_status status;

	*ent = NULL;
	if (len < sizeof(head))
		return corrupt(err, "too short");
	memcpy(&head, in, sizeof(head));
	status = check_head(&head, len, n_vertices, gdim, err);
	if (status != NV_OK)
		return status;
	made = nv_ent_allocate(gdim, head.cap);
	seen = nv_alloc_array(head.count, sizeof(*seen));
	if (made != NULL && seen != NULL)
	{
		made->exponent = head.exponent;
		made->medoid = head.medoid;
		wrong = load_body(made, &head, in + sizeof(head), n_vertices, seen);
	}
	free(seen);
	if (wrong == NULL)
	{
		*ent = made;
		return NV_OK;
	}
	nv_entrance_free(made);
	if (*wrong != '\0')
		return corrupt(err, wrong);
	return nv_fail(err, NV_ENOMEM, 0,
				   "out of memory for an entrance graph of %u members",
				   head.count);
}
