/*
 * vamana.c
 *		Graph construction in memory: one pass, several threads.
 *
 * Every vertex is searched for in the graph made so far, on exact distances;
 * what the search expanded are the candidates of its own list (RobustPrune),
 * and each chosen neighbour gets an edge back.  A list may grow up to the hard
 * cap; only one that would outgrow it is pruned, to a target below the cap, so
 * that room is left for later edges and overflows stay rare.  Lists are not
 * filled up unless asked for (engine-measurements.md, 6.2).
 *
 * The vertices are visited with a stride coprime to n near the golden section
 * of n, so that each prefix of the order is spread evenly over the rows:
 * tables are often sorted by something that clusters the vectors.
 *
 * Searches begin at the medoid.  Of groups that lie far apart it sees the own
 * one only, and rows of another one would find those rows nearest to them that
 * face them, never each other.  So where a search has ended it looks at some
 * starts, spread over the rows by the choice of k-means++, and goes on from
 * those that are nearer than what it has found; elsewhere they change nothing.
 *
 * With one thread the result depends on the input only.
 *
 * Source: algorithms.md sections 2 and 13; design.md section 4.
 */
#include "vamana_build.h"

#include <math.h>
#include <sched.h>

#include "navis/distance.h"
#include "util.h"

#define CACHE_LINE 64
/* Vectors are fetched this many ahead, at most so many lines of each. */
#define PREFETCH_AHEAD 6
#define PREFETCH_LINES 16

/* Floats compared between two questions to params->cancel: below 1 ms. */
#define CANCEL_WORK (UINT64_C(1) << 20)

#define SPINS_BEFORE_YIELD 100

#define THREADS_MAX 1024

/* ---------- locks ---------- */

static inline void
lock_list(nv_build *b, uint32_t v)
{
	_Atomic uint8_t *lock = &b->locks[v & (NV_BUILD_LOCKS - 1)];
	int spins = 0;

	while (atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0)
		if (++spins >= SPINS_BEFORE_YIELD)
		{
			sched_yield();
			spins = 0;
		}
}

static inline void
unlock_list(nv_build *b, uint32_t v)
{
	atomic_store_explicit(&b->locks[v & (NV_BUILD_LOCKS - 1)], 0,
						  memory_order_release);
}

static uint32_t
copy_list(nv_build *b, uint32_t v, uint32_t *ids)
{
	const uint32_t *list = nv_build_list(b, v);
	uint32_t degree;

	lock_list(b, v);
	degree = list[0];
	memcpy(ids, list + 1, degree * sizeof(*ids));
	unlock_list(b, v);
	return degree;
}

/* ---------- phases ---------- */

bool
nv_build_stopped(nv_build_worker *w, uint64_t floats)
{
	nv_build *b = w->build;

	w->work += floats;
	if (w->work >= CANCEL_WORK)
	{
		w->work = 0;
		if (b->params->cancel != NULL &&
			b->params->cancel(b->params->cancel_arg))
			atomic_store_explicit(&b->stop, true, memory_order_relaxed);
	}
	return atomic_load_explicit(&b->stop, memory_order_relaxed);
}

static void *
run_worker(void *arg)
{
	nv_build_worker *w = arg;
	nv_build *b = w->build;

	for (;;)
	{
		uint64_t begin = atomic_fetch_add_explicit(&b->next, NV_BUILD_CHUNK,
												   memory_order_relaxed);
		uint64_t end = NV_MIN(begin + NV_BUILD_CHUNK, b->phase_size);

		if (begin >= b->phase_size ||
			atomic_load_explicit(&b->stop, memory_order_relaxed))
			return NULL;
		b->phase(w, (uint32_t) begin, (uint32_t) end);
	}
}

bool
nv_build_phase(nv_build *b, nv_build_fn fn, uint32_t size)
{
	uint32_t started = 1;

	b->phase = fn;
	b->phase_size = size;
	atomic_store(&b->next, 0);
	/* A thread that cannot be had is done without: worker 0 is the caller. */
	while (started < b->threads &&
		   pthread_create(&b->workers[started].thread, NULL, run_worker,
						  &b->workers[started]) == 0)
		started++;
	run_worker(&b->workers[0]);
	for (uint32_t i = 1; i < started; i++)
		pthread_join(b->workers[i].thread, NULL);
	return !atomic_load(&b->stop);
}

/* ---------- search ---------- */

static inline void
prefetch_row(const nv_build *b, uint32_t v)
{
	const char *p = (const char *) nv_build_row(b, v);
	size_t size = NV_MIN(b->gdim * sizeof(float), PREFETCH_LINES * CACHE_LINE);

	for (size_t at = 0; at < size; at += CACHE_LINE)
		__builtin_prefetch(p + at);
	__builtin_prefetch(p + size - 1); /* rows need not start a line */
}

static inline bool
pool_before(nv_candidate a, float dist, uint32_t id)
{
	return a.dist < dist || (a.dist == dist && (a.id & ~NV_POOL_EXPANDED) < id);
}

/* Returns the position taken, or size when there is no place. */
static inline uint32_t
pool_insert(nv_candidate *pool, uint32_t *size, uint32_t cap, float dist,
			uint32_t id)
{
	uint32_t low = 0;
	uint32_t high = *size;

	if (*size == cap &&
		!pool_before((nv_candidate){dist, id}, pool[cap - 1].dist,
					 pool[cap - 1].id & ~NV_POOL_EXPANDED))
		return cap;
	while (low < high)
	{
		uint32_t mid = (low + high) / 2;

		if (pool_before(pool[mid], dist, id))
			low = mid + 1;
		else
			high = mid;
	}
	if (*size < cap)
		(*size)++;
	memmove(pool + low + 1, pool + low, (*size - 1 - low) * sizeof(*pool));
	pool[low] = (nv_candidate){dist, id};
	return low;
}

static void
begin_visits(nv_build_worker *w)
{
	if (++w->generation == 0)
	{
		memset(w->stamp, 0, w->build->n);
		w->generation = 1;
	}
}

/* Moves the ids of w->ids not scored in this search to w->fresh. */
static uint32_t
take_unvisited(nv_build_worker *w, uint32_t count)
{
	uint32_t fresh = 0;

	for (uint32_t i = 0; i < count; i++)
		__builtin_prefetch(&w->stamp[w->ids[i]], 1);
	for (uint32_t i = 0; i < count; i++)
	{
		uint32_t id = w->ids[i];

		w->fresh[fresh] = id;
		fresh += w->stamp[id] != w->generation;
		w->stamp[id] = w->generation;
	}
	return fresh;
}

/* Scores count vertices of w->fresh; returns the nearest position changed. */
static uint32_t
score(nv_build_worker *w, const float *query, uint32_t count, uint32_t *size)
{
	nv_build *b = w->build;
	uint32_t nearest = *size;

	for (uint32_t i = 0; i < NV_MIN(count, PREFETCH_AHEAD); i++)
		prefetch_row(b, w->fresh[i]);
	for (uint32_t i = 0; i < count; i++)
	{
		float dist;
		uint32_t at;

		if (i + PREFETCH_AHEAD < count)
			prefetch_row(b, w->fresh[i + PREFETCH_AHEAD]);
		dist = nv_l2sq(query, nv_build_row(b, w->fresh[i]), b->gdim);
		at =
			pool_insert(w->pool, size, b->params->list_size, dist, w->fresh[i]);
		nearest = NV_MIN(nearest, at);
	}
	return nearest;
}

/*
 * Expands what the pool holds from position `at` on, until nothing is left that
 * is not; counts on from `expanded`, the number of vertices before.
 */
static uint32_t
descend(nv_build_worker *w, uint32_t v, uint32_t *size, uint32_t at,
		uint32_t expanded)
{
	nv_build *b = w->build;
	const float *query = nv_build_row(b, v);

	while (at < *size)
	{
		nv_candidate c = w->pool[at];
		uint32_t count;

		if (c.id & NV_POOL_EXPANDED)
		{
			at++;
			continue;
		}
		w->pool[at].id |= NV_POOL_EXPANDED;
		/* Beyond the cap the oldest go, which are the farthest as a rule. */
		if (c.id != v)
			w->expanded[expanded++ % b->expanded_cap] = c;
		count = copy_list(b, c.id, w->ids);
		count = take_unvisited(w, count);
		at = NV_MIN(at, score(w, query, count, size));
		if (nv_build_stopped(w, (uint64_t) count * b->gdim))
			break;
	}
	return expanded;
}

/* Offers the starts to the pool; returns the nearest position changed. */
static uint32_t
offer_starts(nv_build_worker *w, uint32_t v, const uint8_t *among,
			 uint32_t *size)
{
	nv_build *b = w->build;
	uint32_t count = 0;

	for (uint32_t i = 0; i < b->n_starts; i++)
		if (among == NULL || among[b->starts[i]])
			w->ids[count++] = b->starts[i];
	count = take_unvisited(w, count);
	w->work += (uint64_t) count * b->gdim;
	return score(w, nv_build_row(b, v), count, size);
}

uint32_t
nv_build_search(nv_build_worker *w, uint32_t v, const uint8_t *among)
{
	nv_build *b = w->build;
	uint32_t size = 0;
	uint32_t expanded;

	begin_visits(w);
	w->stamp[b->medoid] = w->generation;
	w->fresh[0] = b->medoid;
	score(w, nv_build_row(b, v), 1, &size);
	expanded = descend(w, v, &size, 0, 0);
	expanded = descend(w, v, &size, offer_starts(w, v, among, &size), expanded);
	return NV_MIN(expanded, b->expanded_cap);
}

/* ---------- linking ---------- */

static const float *
row_of_candidate(void *arg, uint32_t id)
{
	return nv_build_row(arg, id);
}

/* Prunes the first count of w->cand to max_degree; result in out. */
static uint32_t
prune(nv_build_worker *w, uint32_t count, uint32_t max_degree, uint32_t *out)
{
	nv_build *b = w->build;

	return nv_robust_prune(w->cand, count, max_degree, b->params->alpha,
						   b->params->fill_to, b->gdim, row_of_candidate, b,
						   w->prune_scratch, out);
}

/* Adds count ids to w->cand, which holds `have`, with distances from v. */
static uint32_t
add_candidates(nv_build_worker *w, uint32_t have, uint32_t v,
			   const uint32_t *ids, uint32_t count)
{
	nv_build *b = w->build;
	const float *centre = nv_build_row(b, v);

	for (uint32_t i = 0; i < count; i++)
		prefetch_row(b, ids[i]);
	for (uint32_t i = 0; i < count; i++)
		w->cand[have + i] = (nv_candidate){
			nv_l2sq(centre, nv_build_row(b, ids[i]), b->gdim), ids[i]};
	return have + count;
}

/* Replaces v's list if it still is `old`; the caller tries again if not. */
static bool
replace_list(nv_build *b, uint32_t v, const uint32_t *old, uint32_t old_count,
			 const uint32_t *new_ids, uint32_t new_count)
{
	uint32_t *list = nv_build_list(b, v);
	bool same;

	lock_list(b, v);
	same = list[0] == old_count &&
		   memcmp(list + 1, old, old_count * sizeof(*old)) == 0;
	if (same)
	{
		list[0] = new_count;
		memcpy(list + 1, new_ids, new_count * sizeof(*new_ids));
	}
	unlock_list(b, v);
	return same;
}

typedef enum append_result
{
	APPENDED, /* or there already */
	FULL
} append_result;

/* Appends id to v's list; if that is full, copies it to ids instead. */
static append_result
append_or_copy(nv_build *b, uint32_t v, uint32_t id, uint32_t *ids)
{
	uint32_t *list = nv_build_list(b, v);
	append_result result = APPENDED;
	uint32_t i = 1;

	lock_list(b, v);
	while (i <= list[0] && list[i] != id)
		i++;
	if (i > list[0] && list[0] < b->cap)
		list[++list[0]] = id;
	else if (i > list[0])
	{
		memcpy(ids, list + 1, list[0] * sizeof(*ids));
		result = FULL;
	}
	unlock_list(b, v);
	return result;
}

/*
 * Gives v an edge to id.  An overflowing list is pruned outside the lock; if
 * somebody else changed it meanwhile (there is room now, since he pruned it)
 * it is tried again, so no concurrent edge is lost.
 */
static void
add_edge(nv_build_worker *w, uint32_t v, uint32_t id)
{
	nv_build *b = w->build;
	uint32_t count;

	do
	{
		if (append_or_copy(b, v, id, w->ids) == APPENDED)
			return;
		w->ids[b->cap] = id;
		count = add_candidates(w, 0, v, w->ids, b->cap + 1);
		count = prune(w, count, b->target, w->picks);
		w->work += (uint64_t) b->cap * b->gdim;
	} while (!replace_list(b, v, w->ids, b->cap, w->picks, count));
}

/* Searches for v, gives it a list and its neighbours an edge back. */
static void
link_vertex(nv_build_worker *w, uint32_t v)
{
	nv_build *b = w->build;
	uint32_t expanded = nv_build_search(w, v, NULL);
	uint32_t old_count;
	uint32_t links;

	if (nv_build_stopped(w, 0))
		return;
	do
	{
		uint32_t count = expanded;

		/* Only what others can meet has a list already: medoid and starts. */
		old_count = copy_list(b, v, w->ids);
		memcpy(w->cand, w->expanded, expanded * sizeof(*w->cand));
		count = add_candidates(w, count, v, w->ids, old_count);
		links = prune(w, count, b->target, w->links);
	} while (!replace_list(b, v, w->ids, old_count, w->links, links));
	for (uint32_t i = 0; i < links; i++)
	{
		add_edge(w, w->links[i], v);
		if (nv_build_stopped(w, 0))
			return;
	}
}

static void
link_phase(nv_build_worker *w, uint32_t begin, uint32_t end)
{
	nv_build *b = w->build;

	for (uint32_t i = begin; i < end && !nv_build_stopped(w, 0); i++)
	{
		link_vertex(w, (uint32_t) ((uint64_t) i * b->step % b->n));
		if (b->params->done != NULL)
			atomic_fetch_add_explicit(b->params->done, 1, memory_order_relaxed);
	}
}

/* ---------- order and medoid ---------- */

static uint32_t
golden_step(uint32_t n)
{
	uint32_t step = (uint32_t) (n * 0.6180339887498949);

	step = NV_MAX(step, 1);
	while (nv_common_divisor(step, n) != 1)
		step++; /* n + 1 at the latest */
	return step;
}

static void
nearest_to_mean(nv_build_worker *w, uint32_t begin, uint32_t end)
{
	nv_build *b = w->build;

	for (uint32_t i = begin; i < end && !nv_build_stopped(w, b->gdim); i++)
	{
		float dist = nv_l2sq(b->mean, nv_build_row(b, i), b->gdim);

		if (dist < w->nearest_dist ||
			(dist == w->nearest_dist && i < w->nearest))
		{
			w->nearest_dist = dist;
			w->nearest = i;
		}
	}
}

/* Mean of all rows, in doubles, by one thread: a single pass over memory. */
static bool
compute_mean(nv_build *b)
{
	double *sum = nv_alloc_array(b->gdim, sizeof(*sum));

	if (sum == NULL)
		return false;
	for (uint32_t i = 0; i < b->n; i++)
	{
		const float *row = nv_build_row(b, i);

		for (uint32_t j = 0; j < b->gdim; j++)
			sum[j] += (double) row[j];
		if (nv_build_stopped(&b->workers[0], b->gdim))
			break;
	}
	for (uint32_t j = 0; j < b->gdim; j++)
		b->mean[j] = (float) (sum[j] / b->n);
	free(sum);
	return true;
}

/* The search start: the row nearest to the mean, the lowest id among equals. */
static bool
find_medoid(nv_build *b)
{
	for (uint32_t t = 0; t < b->threads; t++)
	{
		b->workers[t].nearest_dist = INFINITY;
		b->workers[t].nearest = b->n - 1;
	}
	if (!nv_build_phase(b, nearest_to_mean, b->n))
		return false;
	for (uint32_t t = 1; t < b->threads; t++)
	{
		const nv_build_worker *w = &b->workers[t];
		nv_build_worker *best = &b->workers[0];

		if (w->nearest_dist < best->nearest_dist ||
			(w->nearest_dist == best->nearest_dist &&
			 w->nearest < best->nearest))
		{
			best->nearest_dist = w->nearest_dist;
			best->nearest = w->nearest;
		}
	}
	b->medoid = b->workers[0].nearest;
	return true;
}

/* ---------- starts ---------- */

/* Lowers the distances of the sample to what has been chosen; their sum. */
static double
lower_distances(const nv_build *b, const uint32_t *row, float *dist, uint32_t n,
				uint32_t chosen)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
	{
		float d =
			nv_l2sq(nv_build_row(b, chosen), nv_build_row(b, row[i]), b->gdim);

		dist[i] = NV_MIN(dist[i], d);
		sum += (double) dist[i];
	}
	return sum;
}

/* One of the sample, each as likely as its distance is large. */
static uint32_t
draw(const uint32_t *row, const float *dist, uint32_t n, double sum,
	 uint64_t *random)
{
	double left = sum * (double) (nv_random(random) >> 11) / 0x1p53;
	uint32_t i = 0;

	while (i + 1 < n && left >= (double) dist[i])
		left -= (double) dist[i++];
	return row[i];
}

/*
 * Starts from a sample, in the manner of k-means++ (Arthur and Vassilvitskii):
 * the medoid is there already, and whatever is far from all so far is likely to
 * be next.  A group of few rows that is not in the sample gets none.
 */
static bool
choose_starts(nv_build *b)
{
	uint32_t n = NV_MIN(b->n, NV_BUILD_START_SAMPLE);
	uint32_t most = NV_MIN(b->n / NV_BUILD_START_ROWS, NV_BUILD_STARTS);
	uint32_t *row = nv_alloc_array(n, sizeof(*row));
	float *dist = nv_alloc_array(n, sizeof(*dist));
	uint64_t random = nv_random_seed(b->n);
	uint32_t last = b->medoid;
	bool ok = row != NULL && dist != NULL;

	for (uint32_t i = 0; ok && i < n; i++)
	{
		row[i] = (uint32_t) ((uint64_t) i * b->step % b->n);
		dist[i] = INFINITY;
	}
	while (ok && b->n_starts < most)
	{
		double sum = lower_distances(b, row, dist, n, last);

		if (!(sum > 0) || isinf(sum))
			break;
		last = draw(row, dist, n, sum, &random);
		b->starts[b->n_starts++] = last;
		ok = !nv_build_stopped(&b->workers[0], (uint64_t) n * b->gdim);
	}
	free(row);
	free(dist);
	return ok;
}

/* ---------- set-up ---------- */

static bool
allocate_worker(nv_build *b, nv_build_worker *w)
{
	w->build = b;
	w->stamp = nv_alloc(b->n);
	w->pool = nv_alloc_array(b->params->list_size, sizeof(*w->pool));
	w->expanded = nv_alloc_array(b->expanded_cap, sizeof(*w->expanded));
	w->cand = nv_alloc_array(b->expanded_cap + b->cap + 1, sizeof(*w->cand));
	w->ids =
		nv_alloc_array(NV_MAX(b->cap + 1, NV_BUILD_STARTS), sizeof(*w->ids));
	w->fresh =
		nv_alloc_array(NV_MAX(b->cap + 1, NV_BUILD_STARTS), sizeof(*w->fresh));
	w->picks = nv_alloc_array(b->cap + 1, sizeof(*w->picks));
	w->links = nv_alloc_array(b->cap + 1, sizeof(*w->links));
	w->prune_scratch = nv_alloc(nv_prune_scratch_size());
	return w->stamp != NULL && w->pool != NULL && w->expanded != NULL &&
		   w->cand != NULL && w->ids != NULL && w->fresh != NULL &&
		   w->picks != NULL && w->links != NULL && w->prune_scratch != NULL;
}

static bool
allocate(nv_build *b)
{
	bool all = true;

	b->lists = nv_alloc_array(b->n, (b->cap + 1) * sizeof(*b->lists));
	b->locks = nv_alloc(NV_BUILD_LOCKS);
	b->mean = nv_alloc_array(b->gdim, sizeof(*b->mean));
	b->workers = nv_alloc_array(b->threads, sizeof(*b->workers));
	if (b->lists == NULL || b->locks == NULL || b->mean == NULL ||
		b->workers == NULL)
		return false;
	for (uint32_t t = 0; t < b->threads; t++)
		all &= allocate_worker(b, &b->workers[t]);
	return all;
}

static void
release(nv_build *b)
{
	for (uint32_t t = 0; b->workers != NULL && t < b->threads; t++)
	{
		nv_build_worker *w = &b->workers[t];

		free(w->stamp);
		free(w->pool);
		free(w->expanded);
		free(w->cand);
		free(w->ids);
		free(w->fresh);
		free(w->picks);
		free(w->links);
		free(w->prune_scratch);
	}
	free(b->workers);
	free(b->lists);
	free((void *) b->locks);
	free(b->mean);
}

static nv_status
check_params(const nv_vamana_params *p, uint32_t n, nv_error *err)
{
	if (n == 0 || n > NV_MAX_VERTICES)
		return nv_fail(err, NV_ELIMIT, 0,
					   "cannot build a graph of %u vertices: expected 1 to %u",
					   n, NV_MAX_VERTICES);
	if (p->max_degree == 0 || p->max_degree > NV_MAX_DEGREE)
		return nv_fail(err, NV_EINVAL, 0,
					   "maximum degree is %u: expected 1 to %d", p->max_degree,
					   NV_MAX_DEGREE);
	if (p->list_size == 0 || p->list_size > NV_BUILD_MAX_LIST)
		return nv_fail(err, NV_EINVAL, 0,
					   "build list size is %u: expected 1 to %d", p->list_size,
					   NV_BUILD_MAX_LIST);
	if (p->fill_to > p->max_degree / 2)
		return nv_fail(err, NV_EINVAL, 0,
					   "lists to be filled to %u: expected at most %u",
					   p->fill_to, p->max_degree / 2);
	if (!(p->alpha >= 1.0f))
		return nv_fail(err, NV_EINVAL, 0, "alpha is %g: expected 1 or more",
					   (double) p->alpha);
	return NV_OK;
}

static nv_status
run_build(nv_build *b, nv_graph *graph, nv_error *err)
{
	/* Each step returns false when it was stopped or has no memory. */
	if (allocate(b) && compute_mean(b) && find_medoid(b) && choose_starts(b) &&
		nv_build_phase(b, link_phase, b->n) && nv_build_connect(b) &&
		nv_build_finish(b, graph))
		return NV_OK;
	if (!atomic_load(&b->stop))
		return nv_fail(err, NV_ENOMEM, 0,
					   "out of memory while building a graph of %u vertices",
					   b->n);
	return nv_fail(err, NV_ECANCELLED, 0, "graph construction was cancelled");
}

nv_status
nv_vamana_build(const nv_vamana_params *params, const float *rows,
				size_t stride, uint32_t n, uint32_t gdim, nv_graph *graph,
				nv_error *err)
{
	nv_build b = {.params = params,
				  .rows = rows,
				  .stride = stride,
				  .n = n,
				  .gdim = gdim,
				  .cap = params->max_degree};
	nv_status status = check_params(params, n, err);

	memset(graph, 0, sizeof(*graph));
	if (status != NV_OK)
		return status;
	b.target = nv_prune_target(b.cap);
	b.expanded_cap = 4 * params->list_size + NV_BUILD_EXPANDED_SPARE;
	b.step = golden_step(n);
	b.threads = NV_MIN(NV_MAX(params->threads, 1), THREADS_MAX);
	status = run_build(&b, graph, err);
	release(&b);
	return status;
}

void
nv_graph_free(nv_graph *graph)
{
	free(graph->offset);
	free(graph->edges);
	memset(graph, 0, sizeof(*graph));
}
