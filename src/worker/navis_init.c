/*
 * navis_init.c
 *		Loading the library.
 *
 * Preloaded, it asks for shared memory and registers the worker.  Loaded later
 * by a session it only brings the access method and the settings: there is
 * no engine then.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "worker_compat.h"
#include "navis.h"
#include "settings.h"
#include "slots.h"
#include "worker.h"

PG_MODULE_MAGIC;

void
_PG_init(void)
{
	navis_settings_init();
	navis_options_init();
	navis_limit_init();
	if (!process_shared_preload_libraries_in_progress)
		return;
	navis_slots_init();
	navis_worker_register();
}
