/*
 * json.h
 *		Lines of JSON, one object each, appended to a file: what plots and
 *		reports are made from.
 */
#ifndef NAVIS_BENCH_JSON_H
#define NAVIS_BENCH_JSON_H

#include <stdint.h>

typedef struct bench_json bench_json;

/* NULL path: nothing is written. */
extern bench_json *bench_json_open(const char *path);
extern void bench_json_close(bench_json *j);

/* An object with "kind" and the label given with bench_json_label. */
extern void bench_json_begin(bench_json *j, const char *kind);
extern void bench_json_number(bench_json *j, const char *name, double value);
extern void bench_json_text(bench_json *j, const char *name, const char *value);
extern void bench_json_counts(bench_json *j, const char *name,
							  const uint32_t *counts, uint32_t n);
extern void bench_json_end(bench_json *j);

extern void bench_json_label(bench_json *j, const char *label);

#endif
