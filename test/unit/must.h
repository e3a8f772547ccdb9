/*
 * must.h
 *		Checks for threads of tests: cmocka's are for the main thread only.
 */
#ifndef NAVIS_MUST_H
#define NAVIS_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define must(cond)                                                             \
	((cond) ? (void) 0                                                         \
			: (fprintf(stderr, "%s, line %d\n", #cond, __LINE__), abort()))

#endif
