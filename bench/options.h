/*
 * options.h
 *		Command lines of the navis_* tools: what they share beside numbers.
 *Wrong values end the program with a message.
 */
#ifndef NAVIS_BENCH_OPTIONS_H
#define NAVIS_BENCH_OPTIONS_H

#include "arguments.h"
#include "cache.h"
#include "navis/distance.h"
#include "vectors.h"

/* Ends the program with the error's message unless status is NV_OK. */
extern void bench_check(nv_status status, const nv_error *err);

extern nv_metric bench_parse_metric(const char *text);
extern bench_element bench_parse_type(const char *text);
/* navis, reference or lru. */
extern nv_cache_policy bench_parse_policy(const char *text);

extern uint32_t bench_processors(void);
/* 75 % of physical memory: the reference's default budget. */
extern uint64_t bench_default_budget(void);

/* Ends the program when an option has no value. */
extern void bench_require(const void *value, const char *option);

#endif
