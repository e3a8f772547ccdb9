/*
 * options.c
 *		Command lines of the navis_* tools; see options.h.
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

nv_metric
bench_parse_metric(const char *text)
{
	if (strcmp(text, "l2") == 0)
		return NV_METRIC_L2;
	if (strcmp(text, "ip") == 0)
		return NV_METRIC_IP;
	if (strcmp(text, "cosine") != 0)
		bench_die("-m", "l2, ip or cosine expected");
	return NV_METRIC_COSINE;
}

bench_element
bench_parse_type(const char *text)
{
	bench_element element;

	if (!bench_parse_element(text, &element) || element == BENCH_UINT32)
		bench_die("-t", "float, int8 or uint8 expected");
	return element;
}

nv_cache_policy
bench_parse_policy(const char *text)
{
	if (strcmp(text, "navis") == 0)
		return NV_CACHE_WORTH;
	if (strcmp(text, "reference") == 0)
		return NV_CACHE_REFERENCE;
	if (strcmp(text, "lru") != 0)
		bench_die("--cache-policy", "navis, reference or lru expected");
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

void
bench_require(const void *value, const char *option)
{
	if (value == NULL)
		bench_die("usage", option);
}
