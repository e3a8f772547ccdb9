/*
 * test_store_concurrent.c
 *		Lists are relinked by two threads while two threads read and
 *		checkpoints are cut; every checkpoint is copied, opened and compared.
 *
 * Run under TSan it is the proof of the concurrency scheme, design.md section
 * 4: no lock for readers, no list seen that was never written, a cut that is a
 * moment.
 *
 * Lists tell their version.  Some vertices are relinked by one writer only, in
 * ascending versions, so that bounds of what a reader or a checkpoint may see
 * are known; the others are fought over by both, with versions at random.
 */
#include "must.h"
#include "store_fixture.h"

#define WRITERS 2
#define READERS 2
#define CHECKPOINTS 30
#define STEP 600 /* relinks between two cuts, at least */
#define ELEMENTS 20000
#define CACHE_BYTES (64 * 1024 + 40 * NV_PAGE)

static nv_store *store;
static nv_cache *cache;
static char dir[NAME], copy[NAME];
static _Atomic bool stop;
static _Atomic uint64_t relinks, lost, reads, worn_out, outlived;
static _Atomic uint64_t journal; /* "LSN" */

/* Of a vertex with one writer: versions begun and completed. */
static _Atomic uint32_t begun[VERTICES], completed[VERTICES];
/* Generations of elements begun and set, one writer each. */
static _Atomic uint32_t set_begun[ELEMENTS], set_done[ELEMENTS];

/* As of the cut. */
static struct
{
	uint64_t word[VERTICES];
	uint32_t completed[VERTICES], begun[VERTICES];
	uint32_t set_begun[ELEMENTS], set_done[ELEMENTS];
	uint64_t elements, lsn;
} model;

/* The writer a vertex belongs to, or WRITERS: any. */
static uint32_t
owner_of(uint32_t vertex)
{
	uint32_t part = vertex % 4;

	return part < WRITERS ? part : WRITERS;
}

/* One relink of a vertex; false when another writer was faster. */
static bool
relink_once(nv_writer *writer, uint32_t vertex, uint32_t version)
{
	uint32_t ids[DEGREE], degree = make_list(vertex, version, ids);
	nv_error err;
	nv_status status = nv_store_relink(
		writer, vertex, nv_store_edge_word(store, vertex), ids, degree, &err);

	if (status == NV_EBUSY)
	{
		atomic_fetch_add(&lost, 1);
		return false;
	}
	if (status != NV_OK)
		fprintf(stderr, "relink: %s\n", err.detail);
	must(status == NV_OK);
	atomic_fetch_add(&relinks, 1);
	return true;
}

static void
set_one(uint64_t *seed, uint32_t me)
{
	/* The map grows while checkpoints run. */
	uint64_t bound = NV_MIN(ELEMENTS, 1000 + atomic_load(&relinks));
	uint32_t element =
		(uint32_t) nv_random_below(seed, bound / WRITERS) * WRITERS + me;
	uint32_t generation = atomic_load(&set_begun[element]) + 1;

	atomic_store(&set_begun[element], generation);
	must(nv_store_set_element(store, element, (element + generation) % VERTICES,
							  generation, NULL) == NV_OK);
	atomic_store(&set_done[element], generation);
}

/* One of the few vertices that both writers change, so that they meet. */
static uint32_t
contested(uint32_t number)
{
	number = number % 32 | 2; /* as it is of a vertex without an owner */
	return number % 16 * 4 + 2 + number / 16 % 2;
}

static void *
write_thread(void *arg)
{
	uint32_t me = (uint32_t) (uintptr_t) arg;
	uint64_t seed = nv_random_seed(100 + me), rounds = 0;
	nv_writer *writer;

	must(nv_writer_create(store, &writer, NULL) == NV_OK);
	while (!atomic_load(&stop))
	{
		uint32_t vertex = (uint32_t) nv_random_below(&seed, VERTICES);
		uint32_t owner = owner_of(vertex);

		if (owner == me)
		{
			uint32_t version = atomic_load(&begun[vertex]) + 1;

			if (version == VERSIONS)
			{
				atomic_fetch_add(&worn_out, 1);
				continue;
			}
			atomic_store(&begun[vertex], version);
			must(relink_once(writer, vertex, version));
			atomic_store(&completed[vertex], version);
		}
		else if (owner == WRITERS)
		{
			relink_once(writer, contested(vertex),
						(uint32_t) nv_random_below(&seed, VERSIONS));
		}
		set_one(&seed, me);
		/* Versions of the owned ones must last to the end. */
		if (++rounds % 4 == 0)
			usleep(100);
		if (nv_random_below(&seed, 300) == 0)
			must(nv_store_write_back(store, NULL) == NV_OK);
	}
	nv_writer_destroy(writer);
	return NULL;
}

/*
 * Words are loaded, time passes, pages are read: inside one epoch the lists
 * must be there, though other lists have taken their place in the map.  Time
 * has passed when the contested ones among them, which are changed to the end,
 * have all been changed.
 */
#define HELD 16
#define HELD_CONTESTED (HELD / 2)
#define OUTLIVED 100 /* lists read after others took their place */

static void
await_changes(const uint32_t *vertex, const uint64_t *word)
{
	for (int i = 0; i < HELD_CONTESTED; i++)
		while (nv_store_edge_word(store, vertex[i]) == word[i] &&
			   !atomic_load(&stop))
			usleep(100);
}

static void
read_slowly(uint64_t *seed)
{
	uint8_t *page = aligned_alloc(NV_BLOCK, NV_PAGE);
	uint64_t word[HELD], ticket;
	uint32_t vertex[HELD], degree;
	int place = nv_store_enter(store);

	must(page != NULL && place >= 0);
	for (int i = 0; i < HELD; i++)
	{
		vertex[i] = (uint32_t) nv_random_below(seed, VERTICES);
		if (i < HELD_CONTESTED)
			vertex[i] = contested(vertex[i]);
		word[i] = nv_store_edge_word(store, vertex[i]);
	}
	await_changes(vertex, word);
	for (int i = 0; i < HELD; i++)
	{
		const uint32_t *ids;

		if (nv_store_get_page(store, nv_word_page(word[i]), NV_CACHE_SEARCH,
							  page, &ticket) == NV_PAGE_MISS)
		{
			must(nv_file_read(nv_store_edge_file(store), page, NV_PAGE,
							  nv_word_page(word[i]) * NV_PAGE, NULL) == NV_OK);
			nv_store_fill(store, nv_word_page(word[i]), ticket, page);
		}
		ids = nv_slot_find(store, page, word[i], vertex[i], &degree);
		must(ids != NULL && list_version(vertex[i], ids, degree) >= 0);
		if (nv_store_edge_word(store, vertex[i]) != word[i])
			atomic_fetch_add(&outlived, 1);
	}
	nv_store_leave(store, place);
	free(page);
}

static void *
read_thread(void *arg)
{
	uint32_t me = (uint32_t) (uintptr_t) arg;
	uint64_t seed = nv_random_seed(200 + me);

	while (!atomic_load(&stop))
	{
		uint32_t vertex = (uint32_t) nv_random_below(&seed, VERTICES);
		uint32_t element = (uint32_t) nv_random_below(&seed, ELEMENTS);
		uint32_t low = atomic_load(&completed[vertex]), generation, found;
		int version = read_version(store, vertex, (nv_cache_user) (vertex & 1));

		must(version >= 0);
		if (owner_of(vertex) < WRITERS)
			must((uint32_t) version >= low &&
				 (uint32_t) version <= atomic_load(&begun[vertex]));
		low = atomic_load(&set_done[element]);
		found = nv_store_element(store, element, &generation);
		must(generation >= low &&
			 generation <= atomic_load(&set_begun[element]));
		must(found == (generation == 0 ? NV_NO_VERTEX
									   : (element + generation) % VERTICES));
		if (atomic_fetch_add(&reads, 1) % 200 == 0)
			read_slowly(&seed);
	}
	return NULL;
}

/* Inside the gate: no flip is under way. */
static uint64_t
cut(void *arg)
{
	for (uint32_t v = 0; v < VERTICES; v++)
	{
		model.word[v] = nv_store_edge_word(store, v);
		model.completed[v] = atomic_load(&completed[v]);
		model.begun[v] = atomic_load(&begun[v]);
	}
	for (uint32_t e = 0; e < ELEMENTS; e++)
	{
		model.set_done[e] = atomic_load(&set_done[e]);
		model.set_begun[e] = atomic_load(&set_begun[e]);
	}
	model.elements = nv_store_elements(store);
	model.lsn = atomic_fetch_add(&journal, 10);
	return model.lsn;
}

static _Atomic uint64_t flushed;

static nv_status
flush(void *arg, uint64_t lsn, nv_error *err)
{
	atomic_store(&flushed, lsn);
	return NV_OK;
}

/* The copy holds the state of the cut. */
static void
compare_copy(void)
{
	nv_store *again = NULL;
	nv_store_stats stats;

	uint8_t *edges;

	ok(nv_store_open(copy, &test_key, NULL, &again, &why));
	edges = read_file(nv_store_edge_file(again));
	nv_store_get_stats(again, &stats);
	must(stats.published_lsn == model.lsn);
	must(atomic_load(&flushed) == model.lsn);
	must(stats.live_slots == VERTICES);
	must(nv_store_elements(again) == model.elements);
	for (uint32_t v = 0; v < VERTICES; v++)
	{
		int version = version_in(again, v, edges);

		must(nv_store_edge_word(again, v) == model.word[v]);
		must(version >= 0);
		if (owner_of(v) < WRITERS)
			must((uint32_t) version >= model.completed[v] &&
				 (uint32_t) version <= model.begun[v]);
	}
	for (uint32_t e = 0; e < ELEMENTS; e++)
	{
		uint32_t generation, found = nv_store_element(again, e, &generation);

		must(generation >= model.set_done[e] &&
			 generation <= model.set_begun[e]);
		must(found ==
			 (generation == 0 ? NV_NO_VERTEX : (e + generation) % VERTICES));
	}
	free(edges);
	nv_store_close(again);
}

static void
test_relink_read_checkpoint(void **state)
{
	nv_checkpoint_hooks hooks = {NULL, cut, flush};
	pthread_t thread[WRITERS + READERS];
	nv_store_stats first, stats;
	uint64_t before;

	make_directory(dir);
	make_directory(copy);
	cache = make_cache(CACHE_BYTES);
	store = build_store(dir, 4, 8, cache);
	ok(nv_store_checkpoint(store, &hooks, &why));
	nv_store_get_stats(store, &first);
	for (uintptr_t i = 0; i < WRITERS + READERS; i++)
		must(pthread_create(&thread[i], NULL,
							i < WRITERS ? write_thread : read_thread,
							(void *) (i < WRITERS ? i : i - WRITERS)) == 0);
	for (int c = 0; c < CHECKPOINTS; c++)
	{
		before = atomic_load(&relinks);
		/* Something must have happened since the last cut. */
		while (atomic_load(&relinks) < before + STEP)
			usleep(1000);
		ok(nv_store_checkpoint(store, &hooks, &why));
		copy_directory(dir, copy);
		compare_copy();
	}
	/* The readers go on until they have seen enough. */
	while (atomic_load(&outlived) <= OUTLIVED)
		usleep(1000);
	atomic_store(&stop, true);
	for (int i = 0; i < WRITERS + READERS; i++)
		pthread_join(thread[i], NULL);

	ok(nv_store_checkpoint(store, &hooks, &why));
	nv_store_get_stats(store, &stats);
	print_message("%llu relinks, %llu lost races, %llu reads, %llu pages\n",
				  (unsigned long long) relinks, (unsigned long long) lost,
				  (unsigned long long) reads,
				  (unsigned long long) stats.edge_pages);
	must(relinks > STEP * CHECKPOINTS && reads > 1000);
	must(stats.live_slots == VERTICES && stats.retired_slots == 0);
	must(stats.rmw_pages == 0);
	must(worn_out < relinks / 10);
	/*
	 * A cut leaves at most one half full page a writer; the rest is lists of
	 * two roots and of what is between them.
	 */
	must(stats.edge_pages < relinks / 8);
	nv_store_close(store);
	nv_cache_free(cache);
	copy_directory(dir, copy);
	compare_copy();
	remove_directory(dir);
	remove_directory(copy);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_relink_read_checkpoint),
	};

	nv_io_set_fsync(false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
