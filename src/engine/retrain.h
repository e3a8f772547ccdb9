/*
 * retrain.h
 *		Another codebook for a graph that stays.
 *
 * Source: design.md section 4 ("Codes"); issue 3, item 3.
 */
#ifndef NAVIS_RETRAIN_H
#define NAVIS_RETRAIN_H

#include "engine_internal.h"

extern void *nv_retrainer_main(void *arg);
/* Replaces the codes of one index that needs it; false: none does. */
extern bool nv_retrain_next(nv_engine *engine);

/* Bytes it takes at its peak for a graph with so many ids of vertices. */
extern uint64_t nv_retrain_memory(const nv_body *body, uint64_t ids);

#endif
