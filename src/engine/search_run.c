/*
 * search_run.c
 *		The blocking driver of one search.
 */
#include "search_run.h"

#include "util.h"

/* Takes in what has completed; with wait, at least one. */
static void
harvest(nv_search *search, nv_ring *ring, bool wait)
{
	nv_completion done[NV_SEARCH_MAX_READS];
	uint32_t n = nv_ring_reap(ring, done, NV_SEARCH_MAX_READS, wait);

	for (uint32_t i = 0; i < n; i++)
		nv_search_arrived(search, (uint32_t) done[i].token, done[i].result);
}

nv_status
nv_search_run(nv_search *search, nv_ring *ring)
{
	nv_read reads[NV_SEARCH_MAX_READS];
	uint32_t n;

	nv_assert(nv_ring_inflight(ring) == 0);
	for (;;)
	{
		nv_step step = nv_search_step(search, reads, &n);

		if (step == NV_STEP_DONE || step == NV_STEP_FAILED)
			break;
		for (uint32_t i = 0; i < n; i++)
			while (!nv_ring_read(ring, reads[i].file, reads[i].buf,
								 reads[i].len, reads[i].offset, reads[i].tag))
				harvest(search, ring, true);
		if (step == NV_STEP_WAIT)
			harvest(search, ring, true);
	}
	/* The search ends only when everything it asked for has arrived. */
	nv_assert(nv_ring_inflight(ring) == 0);
	return nv_search_error(search)->status;
}
