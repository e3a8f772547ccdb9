/*
 * util.h
 *		Small things every engine file needs.
 */
#ifndef NAVIS_UTIL_H
#define NAVIS_UTIL_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "navis/status.h"

/*
 * Internal invariants.  On in tests and in servers built with assertions;
 * anything that can be wrong from outside is an nv_error instead.
 */
#ifdef NV_ASSERT
#define nv_assert(cond)                                                        \
	((cond) ? (void) 0                                                         \
			: (fprintf(stderr, "navis: assertion failed: %s, %s:%d\n", #cond,  \
					   __FILE__, __LINE__),                                    \
			   abort()))
#else
#define nv_assert(cond) ((void) sizeof((cond) ? 1 : 0))
#endif

#define NV_MIN(a, b) ((a) < (b) ? (a) : (b))
#define NV_MAX(a, b) ((a) > (b) ? (a) : (b))
#define NV_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static inline uint64_t
nv_round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* The greatest that divides both. */
static inline uint32_t
nv_common_divisor(uint32_t a, uint32_t b)
{
	while (b != 0)
	{
		uint32_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Monotonic clock in nanoseconds. */
static inline uint64_t
nv_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t) ts.tv_sec * 1000000000u + (uint64_t) ts.tv_nsec;
}

/* CPU time of the calling thread in nanoseconds. */
static inline uint64_t
nv_thread_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t) ts.tv_sec * 1000000000u + (uint64_t) ts.tv_nsec;
}

/*
 * Nanoseconds since a moment that another thread may have noted after the
 * caller last looked at the clock: never less than none.
 */
static inline uint64_t
nv_elapsed_ns(uint64_t since)
{
	uint64_t now = nv_now_ns();

	return now > since ? now - since : 0;
}

/* xorshift64*: seeded, reproducible; state must not be 0. */
static inline uint64_t
nv_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * UINT64_C(2685821657736338717);
}

/* Turns any seed into a usable state (splitmix64). */
static inline uint64_t
nv_random_seed(uint64_t seed)
{
	uint64_t z = seed + UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	z ^= z >> 31;
	return z == 0 ? 1 : z;
}

/* Uniform in 0 .. bound - 1. */
static inline uint64_t
nv_random_below(uint64_t *state, uint64_t bound)
{
	return (uint64_t) (((unsigned __int128) nv_random(state) * bound) >> 64);
}

/*
 * The calling thread steps back where others want the processor: what it does
 * can wait, a search cannot.
 */
extern void nv_background_thread(void);

/* Zeroed memory aligned to 64 bytes; NULL when there is none.  Freed by free.
 */
extern void *nv_alloc(size_t size);

/* Overflow-checked count * size. */
extern void *nv_alloc_array(size_t count, size_t size);

#endif
