/*
 * options.c
 *		Command lines of the tools around the engine; see options.h.
 */
#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void
bench_check(nv_status status, const nv_error *err)
{
	if (status != NV_OK)
		bench_die(nv_status_name(status), err->detail);
}

void
bench_take_metric(const bench_argument *a, const char *text, void *options)
{
	uint32_t *metric = (uint32_t *) (void *) ((char *) options + a->at);

	if (strcmp(text, "l2") == 0)
		*metric = NV_METRIC_L2;
	else if (strcmp(text, "ip") == 0)
		*metric = NV_METRIC_IP;
	else if (strcmp(text, "cosine") == 0)
		*metric = NV_METRIC_COSINE;
	else
		bench_usage(a->name, "l2, ip or cosine expected");
}

void
bench_take_type(const bench_argument *a, const char *text, void *options)
{
	bench_element element;

	if (!bench_parse_element(text, &element) || element == BENCH_UINT32)
		bench_usage(a->name, "float, int8 or uint8 expected");
	*(bench_element *) (void *) ((char *) options + a->at) = element;
}

nv_cache_policy
bench_parse_policy(const char *option, const char *text)
{
	if (strcmp(text, "navis") == 0)
		return NV_CACHE_WORTH;
	if (strcmp(text, "reference") == 0)
		return NV_CACHE_REFERENCE;
	if (strcmp(text, "lru") != 0)
		bench_usage(option, "navis, reference or lru expected");
	return NV_CACHE_LRU;
}

uint32_t
bench_processors(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (uint32_t) n : 1;
}

uint64_t
bench_default_budget(void)
{
	return (uint64_t) sysconf(_SC_PHYS_PAGES) / 4 * 3 *
		   (uint64_t) sysconf(_SC_PAGESIZE);
}
