/*
 * options.h
 *		Command lines of the tools around the engine: what they share beside
 *		numbers.
 */
#ifndef NAVIS_BENCH_OPTIONS_H
#define NAVIS_BENCH_OPTIONS_H

#include "arguments.h"
#include "cache.h"
#include "navis/distance.h"
#include "vectors.h"

/* Ends the program with the error's message unless status is NV_OK. */
extern void bench_check(nv_status status, const nv_error *err);

extern void bench_take_metric(const bench_argument *a, const char *text,
							  void *options); /* uint32_t, nv_metric */
extern void bench_take_type(const bench_argument *a, const char *text,
							void *options); /* bench_element */
/* navis, reference or lru. */
extern nv_cache_policy bench_parse_policy(const char *option, const char *text);

extern uint32_t bench_processors(void);
/* 75 % of physical memory: the reference's default budget. */
extern uint64_t bench_default_budget(void);

#endif
