/*
 * settings.h
 *		The settings navis.*; documented in README.md.
 */
#ifndef NAVIS_SETTINGS_H
#define NAVIS_SETTINGS_H

/* Set at server start; sizes in kB. */
extern char *navis_directory; /* "navis", in the data directory */
extern int navis_io_method;   /* nv_io_method */
extern int navis_search_threads;
extern int navis_insert_threads;
extern int navis_insert_list_size;
extern int navis_insert_queue_size;
extern double navis_casr_percentile_insert;
extern int navis_cache_size; /* kB */
extern double navis_cache_window;
extern int navis_cache_promote;
extern int navis_cache_promote_search;
extern int navis_pending_memory; /* kB */
extern int navis_casr_warmup;
extern int navis_checkpoint_timeout; /* s */
extern int navis_max_cursors;

/* Reloadable. */
extern int navis_collect_interval; /* s between looks for orphan sidecars */

/* Superuser, in the session. */
extern int navis_build_memory; /* kB */

/* In the session. */
extern int navis_search_list_size;
extern int navis_beam_width;
extern int navis_entrance_list_size;
extern double navis_casr_percentile_search;
extern bool navis_casr;           /* off: load every explored vector */
extern bool navis_entrance;       /* off: start from the medoid */
extern int navis_max_scan_tuples; /* 0: unlimited */
extern int navis_build_threads;   /* 0: one a core */

extern void navis_settings_init(void); /* from _PG_init */

#endif
