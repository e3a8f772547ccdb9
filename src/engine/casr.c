/*
 * casr.c
 *		CASR: the stopping rule of a rerank.
 */
#include "casr.h"

#include <math.h>

#include "util.h"

void
nv_casr_start(nv_casr *c, uint32_t k, uint32_t window, uint32_t explored,
			  double *heap)
{
	nv_assert(k > 0);
	memset(c, 0, sizeof(*c));
	c->k = k;
	c->window = window;
	c->explored = explored;
	c->heap = heap;
}

void
nv_casr_use_stages(nv_casr *c)
{
	nv_assert(c->loaded == 0);
	if (c->window == NV_CASR_ALL)
		return;
	c->stage = NV_MAX((c->window + 1) / 2, 1);
	c->stage_end = 0;
}

/* The end of the next stage; that of the last one when it was the last. */
static uint64_t
next_stage(nv_casr *c)
{
	if (c->loaded < c->stage_end)
		return c->stage_end;
	if (c->stage_end == 0)
		c->stage_end = NV_MIN((uint64_t) c->k + c->stage, c->explored);
	else
	{
		/* The stage that ended began one stage before. */
		c->unchanged =
			c->last_change + c->stage > c->stage_end ? 0 : c->unchanged + 1;
		if (c->unchanged < 2)
			c->stage_end =
				NV_MIN((uint64_t) c->stage_end + c->stage, c->explored);
	}
	return c->stage_end;
}

/*
 * The first K loads always change the top K, so that the loads known to be
 * needed are last change + w, and K + w before anything is loaded.
 */
uint32_t
nv_casr_want(nv_casr *c)
{
	uint64_t needed = c->explored;

	if (c->stage != 0)
		needed = next_stage(c);
	else if (c->window != NV_CASR_ALL)
		needed = (uint64_t) NV_MAX(c->last_change, c->k) + c->window;
	needed = NV_MIN(needed, c->explored);
	if (needed <= c->loaded)
		return 0;
	c->batches++;
	return (uint32_t) (needed - c->loaded);
}

/* Moves the value at the root of a max-heap of n down to its place. */
static void
sift_down(double *heap, uint32_t n)
{
	uint32_t at = 0;
	double value = heap[0];

	for (;;)
	{
		uint64_t child = (uint64_t) at * 2 + 1;

		if (child >= n)
			break;
		if (child + 1 < n && heap[child + 1] > heap[child])
			child++;
		if (heap[child] <= value)
			break;
		heap[at] = heap[child];
		at = (uint32_t) child;
	}
	heap[at] = value;
}

/* Moves the value at position at of a max-heap up to its place. */
static void
sift_up(double *heap, uint32_t at)
{
	double value = heap[at];

	while (at > 0 && heap[(at - 1) / 2] < value)
	{
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = value;
}

void
nv_casr_loaded(nv_casr *c, double distance)
{
	nv_assert(c->loaded < c->explored);
	c->loaded++;
	/* What has no distance is behind everything that has one. */
	if (isnan(distance))
		distance = INFINITY;
	if (c->heap_size < c->k)
	{
		c->heap[c->heap_size] = distance;
		sift_up(c->heap, c->heap_size++);
	}
	else if (distance < c->heap[0])
	{
		c->heap[0] = distance;
		sift_down(c->heap, c->heap_size);
	}
	else
		return;
	c->max_gap = NV_MAX(c->max_gap, c->loaded - c->last_change);
	c->last_change = c->loaded;
}

/*
 * A rerank stops as soon as w loads in a row changed nothing, so w must reach
 * from each change to the next.  At least 1 once anything was loaded.
 */
uint32_t
nv_casr_smallest_window(const nv_casr *c)
{
	return c->max_gap;
}
