/*
 * options.c
 *		Index options: CREATE INDEX ... WITH (...).
 *
 * What an index is built with is copied into its metapage; a changed option
 * takes effect at the next REINDEX.  Only consolidate_threshold is read when it
 * is used: by VACUUM, and by whoever opens the index.
 */
#include "postgres.h"

#include "access/reloptions.h"

#include "navis.h"

#define NAVIS_PQ_BYTES_STEP 4
#define NAVIS_CONSOLIDATE_THRESHOLD 0.1

static relopt_kind navis_relopt_kind;

void
navis_options_init(void)
{
	const LOCKMODE lock = AccessExclusiveLock;

	navis_relopt_kind = add_reloption_kind();
	add_int_reloption(navis_relopt_kind, "max_degree",
					  "Hard limit of a vertex's edge list", 96, 8, 512, lock);
	add_int_reloption(navis_relopt_kind, "build_list_size",
					  "Candidates kept while a vertex is linked", 100, 8, 2000,
					  lock);
	add_real_reloption(navis_relopt_kind, "alpha",
					   "Pruning slack: longer edges are kept above 1", 1.2, 1.0,
					   2.0, lock);
	add_int_reloption(navis_relopt_kind, "pq_bytes",
					  "Bytes of a vector's code in memory, 0 = by measured "
					  "recall",
					  0, 0, 256, lock);
	add_int_reloption(navis_relopt_kind, "dimensions",
					  "Dimensions of the vectors, 0 = from the first row", 0, 0,
					  NV_MAX_DIM, lock);
	add_real_reloption(navis_relopt_kind, "entrance_ratio",
					   "Share of the vertices in the entrance graph", 0.01,
					   0.0001, 0.5, lock);
	add_int_reloption(navis_relopt_kind, "entrance_degree",
					  "Degree of the entrance graph", 32, 4, 128, lock);
	add_real_reloption(navis_relopt_kind, "consolidate_threshold",
					   "Share of vertices without rows above which they are "
					   "taken out of the graph, 1 = never",
					   NAVIS_CONSOLIDATE_THRESHOLD, 0.01, 1.0,
					   ShareUpdateExclusiveLock);
}

bytea *
navis_options(Datum reloptions, bool validate)
{
	static const relopt_parse_elt table[] = {
		{"max_degree", RELOPT_TYPE_INT, offsetof(NavisOptions, max_degree)},
		{"build_list_size", RELOPT_TYPE_INT,
		 offsetof(NavisOptions, build_list_size)},
		{"alpha", RELOPT_TYPE_REAL, offsetof(NavisOptions, alpha)},
		{"pq_bytes", RELOPT_TYPE_INT, offsetof(NavisOptions, pq_bytes)},
		{"dimensions", RELOPT_TYPE_INT, offsetof(NavisOptions, dimensions)},
		{"entrance_ratio", RELOPT_TYPE_REAL,
		 offsetof(NavisOptions, entrance_ratio)},
		{"entrance_degree", RELOPT_TYPE_INT,
		 offsetof(NavisOptions, entrance_degree)},
		{"consolidate_threshold", RELOPT_TYPE_REAL,
		 offsetof(NavisOptions, consolidate_threshold)}};
	NavisOptions *options =
		build_reloptions(reloptions, validate, navis_relopt_kind,
						 sizeof(NavisOptions), table, lengthof(table));

	if (validate && options != NULL &&
		options->pq_bytes % NAVIS_PQ_BYTES_STEP != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value %d out of bounds for option \"pq_bytes\"",
						options->pq_bytes),
				 errdetail("Valid values are 0 and multiples of %d up to 256.",
						   NAVIS_PQ_BYTES_STEP)));
	return (bytea *) options;
}

float
navis_consolidate_threshold(Relation index)
{
	NavisOptions *options = (NavisOptions *) index->rd_options;

	return (float) (options != NULL ? options->consolidate_threshold
									: NAVIS_CONSOLIDATE_THRESHOLD);
}
