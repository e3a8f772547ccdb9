/*
 * cache_trace.c
 *		See cache_trace.h.
 */
#include "cache_trace.h"

#include <pthread.h>
#include <stdio.h>

#include "cache.h"
#include "common.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *trace; /* set before the engine's threads run */

extern bool __real_nv_cache_get(nv_cache *cache, uint32_t file, uint64_t page,
								nv_cache_user user, uint8_t *out,
								uint64_t *ticket);
extern bool __wrap_nv_cache_get(nv_cache *cache, uint32_t file, uint64_t page,
								nv_cache_user user, uint8_t *out,
								uint64_t *ticket);
extern void __real_nv_cache_written(nv_cache *cache, uint32_t file,
									uint64_t page, const uint8_t *bytes);
extern void __wrap_nv_cache_written(nv_cache *cache, uint32_t file,
									uint64_t page, const uint8_t *bytes);

static void
put(const void *bytes, size_t n)
{
	if (fwrite(bytes, n, 1, trace) != 1)
		bench_die("trace", "cannot be written");
}

static void
add(uint32_t file, uint64_t page, trace_kind kind)
{
	trace_event e = {(uint32_t) page, (uint16_t) file, (uint16_t) kind};

	if (trace == NULL)
		return;
	pthread_mutex_lock(&lock);
	put(&e, sizeof(e));
	pthread_mutex_unlock(&lock);
}

bool
__wrap_nv_cache_get(nv_cache *cache, uint32_t file, uint64_t page,
					nv_cache_user user, uint8_t *out, uint64_t *ticket)
{
	add(file, page, (trace_kind) user);
	return __real_nv_cache_get(cache, file, page, user, out, ticket);
}

void
__wrap_nv_cache_written(nv_cache *cache, uint32_t file, uint64_t page,
						const uint8_t *bytes)
{
	add(file, page, TRACE_WRITTEN);
	__real_nv_cache_written(cache, file, page, bytes);
}

void
trace_begin(const char *path)
{
	uint64_t magic = TRACE_MAGIC;

	if ((trace = fopen(path, "wb")) == NULL)
		bench_die(path, "cannot be created");
	put(&magic, sizeof(magic));
}

void
trace_end(void)
{
	if (trace != NULL && fclose(trace) != 0)
		bench_die("trace", "cannot be written");
	trace = NULL;
}
