/*
 * sim_model.c
 *		The journal of a simulated world, what its roots said, and what a graph
 *		is compared with.
 */
#include "sim_internal.h"

#include "entrance_internal.h"
#include "navis/distance.h"

#define CODES_STEP 32 /* of so many one is looked at: that takes its time */

/* --- The journal --- */

void
sim_journal_note(world *w, uint32_t e)
{
	if (w->n_journal == w->journal_room)
	{
		w->journal_room = NV_MAX(2 * w->journal_room, (size_t) 256);
		w->journal = sim_must(
			realloc(w->journal, w->journal_room * sizeof(*w->journal)));
	}
	w->journal[w->n_journal++] = (journal_change){++w->lsn, e, w->elements[e]};
}

static void
remember(world *w, uint32_t e)
{
	if (w->n_past == w->past_room)
	{
		w->past_room = NV_MAX(2 * w->past_room, (size_t) 4096);
		w->past = sim_must(realloc(w->past, w->past_room * sizeof(*w->past)));
	}
	w->past[w->n_past] = (past_row){w->elements[e].generation,
									w->elements[e].vector, w->last_past[e]};
	w->last_past[e] = (uint32_t) ++w->n_past;
}

void
sim_journal_row(world *w, uint32_t e, uint32_t vector)
{
	w->elements[e].generation++;
	w->elements[e].vector = vector;
	w->elements[e].live = true;
	remember(w, e);
}

/* The vector of a row there was, VECTORS: there was none. */
static uint32_t
vector_of(const world *w, uint32_t e, uint32_t generation)
{
	uint32_t i = e < MAX_ELEMENTS ? w->last_past[e] : 0;

	while (i != 0 && w->past[i - 1].generation != generation)
		i = w->past[i - 1].before;
	return i != 0 ? w->past[i - 1].vector : VECTORS;
}

/* A crash of the server: WAL that was not flushed may be gone. */
void
sim_journal_crash(world *w)
{
	uint64_t keep = w->flushed;

	if (w->lsn > w->flushed)
		keep += sim_pick(w, w->lsn - w->flushed + 1);
	while (w->n_journal > 0 && w->journal[w->n_journal - 1].lsn > keep)
	{
		const journal_change *c = &w->journal[--w->n_journal];

		w->elements[c->element] = c->before;
	}
	/* LSNs are not used again for something else: other tests do that. */
}

/* --- Reading a graph --- */

void
sim_free_snapshot(snapshot *s)
{
	free(s->vertex);
	free(s->element);
	free(s->vector);
	memset(s, 0, sizeof(*s));
}

/* The page that lists were read from last; page UINT64_MAX: none. */
typedef struct page_at_hand
{
	_Alignas(NV_BLOCK) uint8_t bytes[NV_PAGE];
	uint64_t page;
} page_at_hand;

/* A page as readers see it; false: it cannot be read. */
static bool
read_page(nv_store *store, uint64_t page, uint8_t *bytes)
{
	uint64_t ticket;

	return nv_store_get_page(store, page, NV_CACHE_SEARCH, bytes, &ticket) !=
			   NV_PAGE_MISS ||
		   nv_file_read(nv_store_edge_file(store), bytes, NV_PAGE,
						page * NV_PAGE, NULL) == NV_OK;
}

/* The list that an edge word names; NULL: it is not there. */
static const uint32_t *
read_list(nv_store *store, page_at_hand *hand, uint64_t word, uint32_t v,
		  uint32_t *degree)
{
	uint64_t page = nv_word_page(word);

	if (page != hand->page)
		hand->page = read_page(store, page, hand->bytes) ? page : UINT64_MAX;
	return hand->page == page
			   ? nv_slot_find(store, hand->bytes, word, v, degree)
			   : NULL;
}

static void
take_vertices(nv_store *store, snapshot *s)
{
	page_at_hand hand = {.page = UINT64_MAX};
	uint32_t stride = nv_store_get_params(store)->code_stride;

	s->n_vertices = nv_store_vertices(store);
	s->vertex = sim_must(nv_alloc_array(s->n_vertices + 1, sizeof(*s->vertex)));
	for (uint32_t v = 0; v < s->n_vertices; v++)
	{
		vertex_state *to = &s->vertex[v];
		const uint32_t *ids;
		uint32_t degree;

		to->word = nv_store_edge_word(store, v);
		to->hash = nv_store_vector_hash(store, v);
		to->code_crc = nv_crc32c(0, nv_store_code(store, v), stride);
		if (to->word == 0)
			continue;
		ids = read_list(store, &hand, to->word, v, &degree);
		to->readable = ids != NULL;
		if (ids != NULL)
			to->list_crc = nv_crc32c(degree, ids, degree * 4);
	}
}

/* The state of a store with nobody at work on it. */
void
sim_take_snapshot(nv_store *store, snapshot *s)
{
	take_vertices(store, s);
	s->n_elements = (uint32_t) nv_store_elements(store);
	s->element =
		sim_must(nv_alloc_array(s->n_elements + 1, sizeof(*s->element)));
	for (uint32_t e = 0; e < s->n_elements; e++)
		s->element[e].vertex =
			nv_store_element(store, e, &s->element[e].generation);
	for (int b = 0; b < NV_BLOBS; b++)
	{
		size_t len;
		const uint8_t *bytes = nv_store_get_blob(store, (nv_blob) b, &len);

		s->blob_crc[b] = nv_crc32c((uint32_t) len, bytes, len);
	}
}

void
sim_take_vectors(snapshot *s, const element *elements)
{
	s->vector = sim_must(nv_alloc_array(s->n_elements + 1, sizeof(*s->vector)));
	for (uint32_t e = 0; e < s->n_elements; e++)
		s->vector[e] = elements[e].vector;
}

uint32_t
sim_count_linked(const nv_store *store)
{
	uint32_t n = 0;

	for (uint32_t v = 0; v < nv_store_vertices(store); v++)
		n += (nv_store_edge_word(store, v) & NV_LINKED) != 0;
	return n;
}

/*
 * A place for the root that is being made.  None is forgotten: one of a build
 * that has not taken the other graph's place yet, and one that was built and
 * not changed since, may be found however many others were made.
 */
snapshot *
sim_new_snapshot(world *w)
{
	if (w->n_snapshots == w->snapshots_room)
	{
		w->snapshots_room = NV_MAX(2 * w->snapshots_room, UINT32_C(32));
		w->snapshots = sim_must(
			realloc(w->snapshots, w->snapshots_room * sizeof(*w->snapshots)));
	}
	memset(&w->snapshots[w->n_snapshots], 0, sizeof(snapshot));
	return &w->snapshots[w->n_snapshots++];
}

snapshot *
sim_find_snapshot(world *w, uint64_t lsn)
{
	for (uint32_t i = w->n_snapshots; i-- > 0;)
		if (w->snapshots[i].lsn == lsn)
			return &w->snapshots[i];
	return NULL;
}

/* --- Comparing --- */

/* Lists of a store that was opened, against those of the root. */
static void
compare_vertices(world *w, const snapshot *now, const snapshot *root)
{
	bool honest = w->kind != SIM_LIES;

	sim_check(w, now->n_vertices == root->n_vertices);
	for (uint32_t v = 0; v < now->n_vertices; v++)
	{
		const vertex_state *a = &now->vertex[v], *b = &root->vertex[v];

		sim_check(w, a->word == b->word && a->hash == b->hash);
		sim_check(w, a->code_crc == b->code_crc);
		sim_check(w, a->readable || a->word == 0 || !honest);
		/* A lost write may leave a list of an earlier life, valid in itself. */
		if (a->readable && (honest || !w->lost_writes))
			sim_check(w, a->list_crc == b->list_crc && b->readable);
	}
}

static void
compare_root(world *w, const snapshot *now, const snapshot *root)
{
	compare_vertices(w, now, root);
	sim_check(w, now->n_elements == root->n_elements);
	for (uint32_t e = 0; e < now->n_elements; e++)
	{
		const element_state *a = &now->element[e], *b = &root->element[e];

		sim_check(w, a->vertex == b->vertex && a->generation == b->generation);
	}
	for (int b = 0; b < NV_BLOBS; b++)
		sim_check(w, now->blob_crc[b] == root->blob_crc[b]);
}

/* The record of a vertex; false: it cannot be read, or is damaged. */
static bool
read_vector(nv_store *store, uint32_t vertex, float *out)
{
	_Alignas(NV_BLOCK) static uint8_t bytes[NV_BLOCK * 2];
	uint32_t len, skip, size = nv_store_get_params(store)->vector_bytes;
	uint64_t offset;

	nv_store_vector_extent(store, vertex, &offset, &len, &skip);
	if (len > sizeof(bytes) || nv_file_read(nv_store_vector_file(store), bytes,
											len, offset, NULL) != NV_OK)
		return false;
	memcpy(out, bytes + skip, size);
	return nv_vector_hash(out, size) == nv_store_vector_hash(store, vertex);
}

/* Records of elements are theirs; the others belong to their hash at least. */
static void
compare_vectors(world *w, nv_store *store, const snapshot *now,
				const snapshot *root)
{
	uint32_t dim = w->base->dim;

	for (uint32_t v = 0; v < now->n_vertices; v++)
		if (now->vertex[v].word != 0 && !read_vector(store, v, w->row) &&
			w->kind != SIM_LIES)
			sim_fail(w, "the record of vertex %u is damaged", v);

	for (uint32_t e = 0; e < now->n_elements; e++)
	{
		uint32_t v = now->element[e].vertex;

		if (v == NV_NO_VERTEX)
			continue;
		sim_check(w, v < now->n_vertices && (now->vertex[v].word & NV_LINKED));
		if (!read_vector(store, v, w->row))
			sim_check(w, w->kind == SIM_LIES);
		else
			sim_check(w,
					  memcmp(w->row,
							 w->base->vectors + (size_t) root->vector[e] * dim,
							 dim * sizeof(float)) == 0);
	}
}

static bool
list_is_sound(const snapshot *s, uint32_t v, const uint32_t *ids,
			  uint32_t degree, uint32_t *seen)
{
	if (degree > MAX_DEGREE)
		return false;
	for (uint32_t i = 0; i < degree; i++)
	{
		if (ids[i] >= s->n_vertices || ids[i] == v || seen[ids[i]] == v + 1 ||
			s->vertex[ids[i]].word == 0)
			return false;
		seen[ids[i]] = v + 1;
	}
	return true;
}

/* Bounds and sets; every id named has a list. */
static void
check_lists(world *w, nv_store *store, const snapshot *s)
{
	page_at_hand hand = {.page = UINT64_MAX};
	uint32_t *seen = sim_must(nv_alloc_array(s->n_vertices + 1, sizeof(*seen)));

	for (uint32_t v = 0; v < s->n_vertices && !w->lost_writes; v++)
	{
		const uint32_t *ids;
		uint32_t degree;

		if (!s->vertex[v].readable)
			continue;
		ids = read_list(store, &hand, s->vertex[v].word, v, &degree);
		if (ids != NULL && !list_is_sound(s, v, ids, degree, seen))
			sim_fail(w, "list of vertex %u is not sound", v);
	}
	free(seen);
}

static int
by_hash(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

	return x < y ? -1 : x > y;
}

/*
 * Equal vectors are stored once, but for dead vertices: one that is being
 * consolidated is not taken back.
 */
static void
check_distinct(world *w, const snapshot *s)
{
	uint8_t *live = sim_must(nv_alloc((size_t) s->n_vertices + 1));
	uint64_t *all =
		sim_must(nv_alloc_array((size_t) s->n_vertices + 1, sizeof(*all)));
	uint32_t n = 0, twice = 0;

	for (uint32_t e = 0; e < s->n_elements; e++)
		if (s->element[e].vertex < s->n_vertices)
			live[s->element[e].vertex] = 1;
	for (uint32_t v = 0; v < s->n_vertices; v++)
		if (live[v])
			all[n++] = s->vertex[v].hash;
	qsort(all, n, sizeof(*all), by_hash);
	for (uint32_t i = 1; i < n; i++)
		twice += all[i] == all[i - 1];
	free(all);
	free(live);
	/* Where a record was damaged its vector comes a second time. */
	sim_check(w, twice == 0 || w->kind == SIM_LIES);
}

/* --- What is free --- */

/* The places that the root names are taken, in the file and among the ids. */
static void
check_root_kept(world *w, nv_store *store, const snapshot *root)
{
	for (uint32_t v = 0; v < root->n_vertices; v++)
	{
		uint64_t word = root->vertex[v].word;
		const nv_page_info *info;

		if (word == 0)
			continue;
		info = &store->edges.info[nv_word_page(word)];
		if (info->state == NV_PAGE_FREE ||
			!(info->used & info->start & UINT64_C(1) << nv_word_unit(word)))
			sim_fail(w,
					 "root with LSN %" PRIu64 " names a list of vertex %u "
					 "whose place counts as free",
					 root->lsn, v);
		if (nv_store_edge_word(store, v) == 0 &&
			!nv_id_held(&store->vectors, v))
			sim_fail(w,
					 "root with LSN %" PRIu64 " names vertex %u, whose id "
					 "counts as free",
					 root->lsn, v);
	}
}

void
sim_check_kept(world *w, nv_store *store)
{
	const snapshot *root =
		sim_find_snapshot(w, atomic_load(&store->published_lsn));

	/* What was lost of a store that failed another opening counts anew. */
	if (atomic_load(&store->failed) || w->kind == SIM_LIES)
		return;
	sim_check(w, root != NULL);
	if (root->store == store)
		check_root_kept(w, store, root);
	/* And the one that is being made, from its cut on. */
	root = w->last_cut != 0 ? sim_find_snapshot(w, w->last_cut) : NULL;
	if (root != NULL && root->store == store)
		check_root_kept(w, store, root);
}

void
sim_check_published(world *w, nv_store *store, const snapshot *root)
{
	page_at_hand hand = {.page = UINT64_MAX};

	if (root == NULL || root->store != store || atomic_load(&store->failed) ||
		w->kind == SIM_LIES || sim_disk_is_off(w->disk))
		return;
	for (uint32_t v = 0; v < root->n_vertices; v++)
	{
		const vertex_state *was = &root->vertex[v];
		const uint32_t *ids;
		uint32_t degree;

		if (!was->readable)
			continue;
		ids = read_list(store, &hand, was->word, v, &degree);
		if (ids == NULL || nv_crc32c(degree, ids, degree * 4) != was->list_crc)
			sim_fail(w,
					 "root with LSN %" PRIu64 " is out, its list of vertex %u "
					 "was overwritten",
					 root->lsn, v);
	}
}

void
sim_check_newcomers(world *w, nv_body *body)
{
	page_at_hand hand = {.page = UINT64_MAX};
	nv_store *store = body->store;
	const nv_dying *dying = atomic_load(&body->dying);
	uint32_t n = nv_store_vertices(store);

	for (uint32_t v = dying != NULL ? dying->n : n; v < n; v++)
	{
		uint64_t word = nv_store_edge_word(store, v);
		const uint32_t *ids = NULL;
		uint32_t degree = 0;

		if (word != 0)
			ids = read_list(store, &hand, word, v, &degree);
		for (uint32_t i = 0; ids != NULL && i < degree; i++)
			if (nv_body_dying(body, ids[i]))
				sim_fail(w,
						 "new vertex %u has vertex %u for a neighbour, which "
						 "is being taken out",
						 v, ids[i]);
	}
}

/*
 * A row that is equal to one that was taken out does not find it: its id is
 * anybody's, and another thread may be writing another vector to it.
 */
static void
check_equal(world *w, nv_body *body, uint32_t vertex)
{
	uint64_t hash = nv_store_vector_hash(body->store, vertex);
	uint32_t found[NV_EQUAL_MAX], n;

	/* Who has not been asked yet knows nothing. */
	if (!nv_equal_expect(body->equal, body->store, hash) ||
		nv_equal_find(body->equal, body->store, hash, found, &n, NULL) != NV_OK)
		return;
	for (uint32_t i = 0; i < n; i++)
		if (found[i] == vertex)
			sim_fail(w, "vertex %u is free, and is found for an equal row",
					 vertex);
}

void
sim_check_counts(world *w, nv_body *body)
{
	nv_store *store = body->store;
	uint32_t linked = 0, dead = 0;

	for (uint32_t v = 0; v < nv_store_vertices(store); v++)
		if (nv_store_edge_word(store, v) & NV_LINKED)
		{
			linked++;
			dead += !nv_body_live(body, v);
		}
		else if (nv_store_edge_word(store, v) == 0)
			check_equal(w, body, v);
	if (atomic_load(&body->n_vertices) != linked ||
		atomic_load(&body->dead_vertices) != dead)
		sim_fail(w, "%u vertices, %u of them dead, count as %u and %" PRIu64,
				 linked, dead, atomic_load(&body->n_vertices),
				 atomic_load(&body->dead_vertices));
}

void
sim_check_ids(world *w, nv_store *store)
{
	const nv_vectors *vectors = &store->vectors;
	uint32_t records = nv_unit_records(store), n = nv_store_vertices(store);
	uint8_t *stacked = sim_must(nv_alloc((size_t) n / records + 2));

	for (size_t i = 0; i < vectors->free_count; i++)
		if (vectors->free_units[i] <= n / records)
			sim_check(w, stacked[vectors->free_units[i]]++ == 0);
	for (uint32_t v = 0; vectors->counted && v < n; v++)
		if (nv_store_edge_word(store, v) == 0 && !nv_id_held(vectors, v) &&
			v / records < vectors->next_unit && stacked[v / records] == 0)
			sim_fail(w, "id %u is used by nobody and cannot be had", v);
	free(stacked);
}

/*
 * No other code of this codebook is nearer to the vector.  Codes of another
 * codebook, and of another vector, are far from it as a rule.
 */
void
sim_check_codes(world *w, nv_body *body, uint32_t first, uint32_t step)
{
	nv_store *store = body->store;
	const nv_gspace *gspace = &body->view.gspace;
	float *place = sim_must(nv_alloc_array(2 * gspace->gdim, sizeof(*place)));
	float *decoded = place + gspace->gdim;
	uint8_t *code = sim_must(nv_alloc(nv_pq_stride(body->pq)));

	for (uint32_t v = first; v < nv_store_vertices(store); v += step)
	{
		double least, is;

		if (!(nv_store_edge_word(store, v) & NV_LINKED) ||
			!read_vector(store, v, w->row))
			continue;
		nv_gspace_row(gspace, w->row, place);
		least = nv_pq_encode_error(body->pq, place, code);
		nv_pq_decode(body->pq, nv_store_code(store, v), decoded);
		is = nv_l2sq(place, decoded, gspace->gdim);
		if (is > least * 1.001 + 1e-4)
			sim_fail(w, "code of vertex %u is %g from its vector, not %g", v,
					 is, least);
	}
	free(code);
	free(place);
}

/* --- After an opening --- */

/* What searches begin at has a list. */
static void
check_beginnings(world *w, nv_body *body)
{
	uint32_t medoid = atomic_load(&body->view.medoid);
	const nv_entrance *entrance = body->entrance;

	if (!(nv_store_edge_word(body->store, medoid) & NV_LINKED))
		sim_fail(w, "searches begin at vertex %u, which has no list", medoid);
	for (uint32_t i = 0; i < nv_entrance_count(entrance); i++)
		if (!(nv_store_edge_word(body->store, nv_ent_vertex(entrance, i)) &
			  NV_LINKED))
			sim_fail(w, "vertex %u of the entrance graph has no list",
					 nv_ent_vertex(entrance, i));
}

void
sim_check_graph(world *w, nv_body *body)
{
	snapshot now = {0};

	sim_take_snapshot(body->store, &now);
	check_lists(w, body->store, &now);
	check_distinct(w, &now);
	sim_free_snapshot(&now);
	if (w->kind != SIM_LIES)
		check_beginnings(w, body);
}

/*
 * A graph that was built beside: made of rows that the journal had, and of the
 * lists it had when it took the other one's place, if it did.
 */
static void
check_built(world *w, nv_store *store, snapshot *now, const snapshot *root)
{
	if (root->vertex != NULL)
		compare_vertices(w, now, root);
	now->vector =
		sim_must(nv_alloc_array(now->n_elements + 1, sizeof(*now->vector)));
	for (uint32_t e = 0; e < now->n_elements; e++)
	{
		if (now->element[e].vertex == NV_NO_VERTEX)
			continue;
		now->vector[e] = vector_of(w, e, now->element[e].generation);
		if (now->vector[e] == VECTORS)
			sim_fail(w, "the new graph has element %u of generation %u", e,
					 now->element[e].generation);
	}
	compare_vectors(w, store, now, now);
	w->counts->rebuilt++;
}

void
sim_watch_built(world *w, nv_store *store)
{
	snapshot *root = sim_find_snapshot(w, atomic_load(&store->published_lsn));

	if (root == NULL || !root->built || root->vertex != NULL ||
		sim_disk_is_off(w->disk))
		return;
	sim_disk_calm(w->disk, true);
	take_vertices(store, root);
	sim_disk_calm(w->disk, false);
	root->store = store;
}

/* What was found in a graph that was built is what its root says. */
static void
keep_built(snapshot *root, snapshot *now)
{
	now->lsn = root->lsn;
	sim_free_snapshot(root);
	*root = *now;
	memset(now, 0, sizeof(*now));
}

/* Which root was found. */
static snapshot *
check_which(world *w, uint64_t lsn)
{
	snapshot *root = sim_find_snapshot(w, lsn);

	if (root == NULL)
		sim_fail(w,
				 "root with LSN %" PRIu64 " was never made (last %" PRIu64 ")",
				 lsn, w->acknowledged);
	if (lsn != w->acknowledged && lsn != w->under_way && lsn != w->built_lsn)
	{
		if (w->kind != SIM_LIES)
			sim_fail(w,
					 "root has LSN %" PRIu64 ", published were %" PRIu64
					 " and perhaps %" PRIu64 " or %" PRIu64,
					 lsn, w->acknowledged, w->under_way, w->built_lsn);
		w->counts->fallbacks++;
	}
	sim_check(w, lsn <= w->flushed);
	return root;
}

void
sim_check_opened(world *w, nv_body *body)
{
	nv_store *store = body->store;
	snapshot now = {0};
	snapshot *root = check_which(w, atomic_load(&store->published_lsn));

	sim_check(w, !w->fell_back || w->kind == SIM_LIES);
	w->fell_back = false;
	sim_take_snapshot(store, &now);
	if (root->built)
		check_built(w, store, &now, root);
	else
	{
		compare_root(w, &now, root);
		compare_vectors(w, store, &now, root);
	}
	check_lists(w, store, &now);
	check_distinct(w, &now);
	if (root->built)
		keep_built(root, &now);
	sim_free_snapshot(&now);
	if (w->kind != SIM_LIES)
		check_beginnings(w, body);
	sim_check_codes(w, body, (uint32_t) (root->lsn % CODES_STEP), CODES_STEP);
	root->store = store;
	w->acknowledged = root->lsn;
	w->under_way = w->last_cut = 0;
	w->counts->states++;
}

void
sim_check_rows(world *w)
{
	nv_body *body = w->index->body;

	for (uint32_t e = 0; e < w->n_elements; e++)
	{
		const element *row = &w->elements[e];
		uint64_t hash = w->base->hashes[row->vector];
		uint32_t generation, vertex = NV_NO_VERTEX;
		bool has;

		/* By itself, not as the engine compares them. */
		if (body != NULL)
			vertex = nv_store_element(body->store, e, &generation);
		has = vertex != NV_NO_VERTEX && generation == row->generation &&
			  nv_store_vector_hash(body->store, vertex) == hash &&
			  (nv_store_edge_word(body->store, vertex) & NV_LINKED) != 0;
		has |= nv_pending_has(w->index->pending, e, row->generation, hash);
		if (row->live && !has)
			sim_fail(w, "element %u is missing", e);
		if (!row->live && vertex != NV_NO_VERTEX)
			sim_fail(w, "element %u was deleted and is back", e);
		if (!row->live)
			sim_check(w, !has);
	}
}
