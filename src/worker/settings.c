/*
 * settings.c
 *		The settings navis.*: names, ranges, descriptions.
 *
 * Settings that the engine reads when it starts can only change with the
 * server.  In a session that loaded the library without preloading they are
 * defined all the same, so that configuration files are accepted and SHOW
 * works, but nobody reads them there.
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "navis/engine.h"
#include "settings.h"

char *navis_directory;
int navis_io_method;
int navis_search_threads;
int navis_insert_threads;
int navis_insert_list_size;
int navis_insert_queue_size;
double navis_casr_percentile_insert;
int navis_cache_size;
double navis_cache_window;
int navis_cache_promote;
int navis_cache_promote_search;
int navis_pending_memory;
int navis_casr_warmup;
int navis_checkpoint_timeout;
int navis_max_cursors;

int navis_collect_interval;

int navis_build_memory;

int navis_search_list_size;
int navis_beam_width;
int navis_entrance_list_size;
double navis_casr_percentile_search;
bool navis_casr;
bool navis_entrance;
int navis_max_scan_tuples;
int navis_build_threads;

/* Values as in nv_config.io_method. */
static const struct config_enum_entry io_methods[] = {{"auto", 0, false},
													  {"io_uring", 1, false},
													  {"sync", 2, false},
													  {NULL, 0, false}};

/* The engine's path has a fixed size and is below the data directory. */
static bool
check_directory(char **value, void **extra, GucSource source)
{
	size_t room = sizeof(((nv_config *) NULL)->directory);
	size_t length = strlen(*value);

	if (length == 0)
	{
		GUC_check_errdetail("The directory must not be empty.");
		return false;
	}
	if (!is_absolute_path(*value) && DataDir != NULL)
		length += strlen(DataDir) + 1;
	if (length >= room)
	{
		GUC_check_errdetail("The path has %zu bytes, at most %zu are allowed.",
							length, room - 1);
		return false;
	}
	return true;
}

static void
define_start_storage(GucContext start)
{
	DefineCustomStringVariable(
		"navis.directory",
		"Sets the directory that holds the sidecars of navis indexes.",
		"A relative path is below the data directory.", &navis_directory,
		"navis", start, 0, check_directory, NULL, NULL);
	DefineCustomEnumVariable(
		"navis.io_method", "Selects how navis reads and writes its files.",
		"\"auto\" takes io_uring where the kernel permits it.",
		&navis_io_method, 0, io_methods, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.checkpoint_timeout",
		"Sets the time between checkpoints of a changed navis index.", NULL,
		&navis_checkpoint_timeout, 300, 1, 86400, start, GUC_UNIT_S, NULL, NULL,
		NULL);
	DefineCustomIntVariable(
		"navis.search_threads",
		"Sets the number of threads that answer searches of navis indexes.",
		NULL, &navis_search_threads, 4, 1, 64, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.max_cursors",
		"Sets the number of unfinished scans navis keeps open.",
		"A scan whose cursor was dropped starts anew where it stopped.",
		&navis_max_cursors, 1000, 1, 1000000, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.pending_memory",
		"Sets the memory for vectors that are not yet linked into a graph.",
		"An index that needs more of it is scanned exactly.",
		&navis_pending_memory, 64 * 1024, 64, MAX_KILOBYTES, start, GUC_UNIT_KB,
		NULL, NULL, NULL);
}

static void
define_start_insert(GucContext start)
{
	DefineCustomIntVariable(
		"navis.insert_threads",
		"Sets the number of threads that link new rows into graphs.",
		"0 leaves new rows unlinked; searches compare them exactly.",
		&navis_insert_threads, 2, 0, 32, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.insert_list_size",
		"Sets the number of candidates kept when a row's place is sought.",
		"A longer list links rows better and takes longer.",
		&navis_insert_list_size, 100, 10, 1000, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.insert_queue_size",
		"Sets the number of rows of an index that may wait to be linked.",
		"Writers wait when there are more.", &navis_insert_queue_size, 2000, 1,
		1000000, start, 0, NULL, NULL, NULL);
	DefineCustomRealVariable(
		"navis.casr_percentile_insert",
		"Sets the percentile of calibrated rerank windows an insert uses.",
		NULL, &navis_casr_percentile_insert, 90.0, 1.0, 100.0, start, 0, NULL,
		NULL, NULL);
}

static void
define_start_cache(GucContext start)
{
	DefineCustomIntVariable(
		"navis.cache_size", "Sets the memory for cached pages of graphs.",
		"0 turns the cache off.", &navis_cache_size, 256 * 1024, 0,
		MAX_KILOBYTES, start, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomRealVariable(
		"navis.cache_window",
		"Sets the share of the cache that admits pages read once.", NULL,
		&navis_cache_window, 0.10, 0.01, 1.0, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.cache_promote",
		"Sets how many lookups by inserts count as one for the cache.", NULL,
		&navis_cache_promote, 4, 1, 1000000, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.cache_promote_search",
		"Sets how many lookups by searches count as one for the cache.", NULL,
		&navis_cache_promote_search, 1, 1, 1000000, start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.casr_warmup",
		"Sets the number of searches that calibrate the rerank window.",
		"Until then every explored vector is loaded.", &navis_casr_warmup, 1000,
		10, 10000, start, 0, NULL, NULL, NULL);
}

static void
define_background(void)
{
	DefineCustomIntVariable(
		"navis.collect_interval",
		"Sets the time between looks for sidecars no index owns.",
		"A sidecar is removed when two looks in a row found no owner.",
		&navis_collect_interval, 60, 1, 3600, PGC_SIGHUP, GUC_UNIT_S, NULL,
		NULL, NULL);
	DefineCustomIntVariable(
		"navis.build_memory",
		"Sets the memory that all running builds of graphs may hold.", NULL,
		&navis_build_memory, 2 * 1024 * 1024, 1024, MAX_KILOBYTES, PGC_SUSET,
		GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.build_threads", "Sets the number of threads of a build.",
		"0 means one for each processor.", &navis_build_threads, 0, 0, 256,
		PGC_USERSET, 0, NULL, NULL, NULL);
}

static void
define_search(void)
{
	DefineCustomIntVariable(
		"navis.search_list_size",
		"Sets the number of candidates a search keeps.",
		"A longer list finds more of the nearest rows and takes longer.",
		&navis_search_list_size, 100, 10, 10000, PGC_USERSET, 0, NULL, NULL,
		NULL);
	DefineCustomIntVariable(
		"navis.beam_width", "Sets the number of pages a search reads at once.",
		NULL, &navis_beam_width, 4, 1, 32, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.entrance_list_size",
		"Sets the number of candidates a search keeps in the entrance graph.",
		NULL, &navis_entrance_list_size, 10, 1, 1000, PGC_USERSET, 0, NULL,
		NULL, NULL);
	DefineCustomRealVariable(
		"navis.casr_percentile_search",
		"Sets the percentile of calibrated rerank windows a search uses.", NULL,
		&navis_casr_percentile_search, 99.0, 1.0, 100.0, PGC_USERSET, 0, NULL,
		NULL, NULL);
	DefineCustomBoolVariable(
		"navis.casr", "Loads only as many vectors as the calibration says.",
		"If off, a search loads the vector of every explored row.", &navis_casr,
		true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable(
		"navis.entrance", "Starts searches from the entrance graph.",
		"If off, a search starts from the medoid.", &navis_entrance, true,
		PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"navis.max_scan_tuples",
		"Sets the number of rows after which an ordered scan ends.",
		"0 means no limit.", &navis_max_scan_tuples, 0, 0, INT_MAX, PGC_USERSET,
		0, NULL, NULL, NULL);
}

void
navis_settings_init(void)
{
	/* PGC_POSTMASTER variables cannot be created once the server runs. */
	GucContext start = process_shared_preload_libraries_in_progress
						   ? PGC_POSTMASTER
						   : PGC_SIGHUP;

	define_start_storage(start);
	define_start_insert(start);
	define_start_cache(start);
	define_background();
	define_search();
	MarkGUCPrefixReserved("navis");
}
