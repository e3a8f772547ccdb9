/*
 * worker_compat.h
 *		What differs between PostgreSQL versions for src/worker.
 */
#ifndef NAVIS_WORKER_COMPAT_H
#define NAVIS_WORKER_COMPAT_H

#include "postgres.h"

#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 180000
#include "storage/waiteventset.h"
#endif

/* From 17 an extension's waits have names of their own. */
static inline uint32
navis_wait_event(const char *name, uint32 *event)
{
#if PG_VERSION_NUM >= 170000
	if (*event == 0)
		*event = WaitEventExtensionNew(name);
	return *event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

static inline WaitEventSet *
navis_wait_event_set(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

/* Up to 15 a library had to declare it itself. */
#if PG_VERSION_NUM < 160000
extern PGDLLEXPORT void _PG_init(void);
#endif

#endif
