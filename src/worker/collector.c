/*
 * collector.c
 *		Removing sidecars that no index owns any more.
 *
 * A sidecar goes when two looks, at least navis.collect_interval apart, found
 * no owner; each look lists the directory first and reads the catalogs
 * afterwards, under SnapshotDirty, which sees uncommitted and prepared
 * creations.  So a sidecar whose index is being created has an owner from the
 * start: the pg_class row is older than the directory.  Between two looks the
 * candidates are remembered in shared memory (NavisOrphan).
 *
 * Owner is the index whose metapage carries the sidecar's identity.  Where the
 * metapage cannot be read (somebody holds a strong lock: created, dropped or
 * moved right now; another session's temporary relation; damage) the OID and
 * the relfilenode in the sidecar's marker decide, and the sidecar stays.
 *
 * No lock is waited for, so this works on a standby as well.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "client.h"
#include "navis.h"
#include "navis/engine.h"
#include "settings.h"
#include "slots.h"
#include "worker.h"

typedef struct Sidecar
{
	nv_key key;
	uint32 relfilenode; /* from the marker */
	Oid index_oid;
	bool owned;
	bool remove; /* found without owner twice */
} Sidecar;

typedef struct Database
{
	Oid oid;
	bool valid; /* false: DROP DATABASE failed half way, nobody can connect */
} Database;

typedef struct Listing
{
	Oid database;    /* InvalidOid: of all databases */
	List *databases; /* then: those that exist (Database) */
	Sidecar *sidecars;
	int n, room;
	TimestampTz taken; /* when the directory had been read */
} Listing;

/* --- the directory --- */

static void
add_sidecar(void *arg, const nv_key *key, uint32_t relfilenode,
			uint32_t index_oid)
{
	Listing *listing = arg;
	Sidecar *sidecar;

	if (key->system_id != GetSystemIdentifier() ||
		(OidIsValid(listing->database) && key->database != listing->database))
		return;
	if (listing->n == listing->room)
	{
		listing->room *= 2;
		listing->sidecars =
			repalloc(listing->sidecars, listing->room * sizeof(Sidecar));
	}
	sidecar = &listing->sidecars[listing->n++];
	memset(sidecar, 0, sizeof(*sidecar));
	sidecar->key.system_id = key->system_id;
	sidecar->key.database = key->database;
	memcpy(sidecar->key.identity, key->identity, sizeof(key->identity));
	sidecar->relfilenode = relfilenode;
	sidecar->index_oid = index_oid;
}

static void
list_sidecars(Oid database, Listing *listing)
{
	nv_error err = {0};

	memset(listing, 0, sizeof(*listing));
	listing->database = database;
	listing->room = 16;
	listing->sidecars =
		MemoryContextAlloc(TopMemoryContext, listing->room * sizeof(Sidecar));
	if (nv_list_sidecars(navis_directory_path(), add_sidecar, listing, &err) !=
		NV_OK)
	{
		ereport(LOG,
				(errmsg("navis could not list its sidecars: %s", err.detail)));
		listing->n = 0;
	}
	listing->taken = GetCurrentTimestamp();
}

/* --- owners --- */

/* Like its indexes, the access method may be uncommitted. */
static List *
navis_access_methods(void)
{
	Relation rel = table_open(AccessMethodRelationId, AccessShareLock);
	List *oids = NIL;
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_pg_am_amname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("navis"));
	scan = systable_beginscan(rel, AmNameIndexId, true, &dirty, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		oids = lappend_oid(oids, ((Form_pg_am) GETSTRUCT(tuple))->oid);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return oids;
}

typedef struct IndexRow
{
	Oid oid;
	uint32 relfilenode;
	char persistence;
} IndexRow;

/*
 * Every pg_class row of an index of ours, committed or in the making; an array
 * of *n.
 */
static IndexRow *
navis_indexes(List *methods, int *n)
{
	Relation rel = table_open(RelationRelationId, AccessShareLock);
	int room = 64;
	IndexRow *rows = palloc(room * sizeof(IndexRow));
	SnapshotData dirty;
	SysScanDesc scan;
	HeapTuple tuple;

	*n = 0;
	InitDirtySnapshot(dirty);
	scan = systable_beginscan(rel, InvalidOid, false, &dirty, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		CHECK_FOR_INTERRUPTS();
		if (form->relkind != RELKIND_INDEX ||
			!list_member_oid(methods, form->relam))
			continue;
		if (*n == room)
			rows = repalloc(rows, (room *= 2) * sizeof(IndexRow));
		rows[*n].oid = form->oid;
		rows[*n].relfilenode = form->relfilenode;
		rows[*n].persistence = form->relpersistence;
		(*n)++;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return rows;
}

typedef struct MetaRead
{
	Relation index;
	NavisMeta meta;
} MetaRead;

static void
read_meta(void *arg)
{
	MetaRead *read = arg;

	navis_meta_read(read->index, &read->meta);
}

/*
 * Reads the identity in a metapage.  An error (other version, damage, no file)
 * is no news here: somebody who uses the index will be told.
 */
static bool
read_identity(Relation index, uint8 *identity)
{
	MetaRead read = {.index = index};
	ErrorData *error = navis_attempt(read_meta, &read);

	if (error != NULL)
		FreeErrorData(error);
	else
		memcpy(identity, read.meta.identity, sizeof(read.meta.identity));
	return error == NULL;
}

typedef enum Reading
{
	READING_IDENTITY, /* known */
	READING_GONE,     /* the index does not exist any more */
	READING_UNKNOWN   /* exists, or may exist soon */
} Reading;

/*
 * A strong lock means that the index is being made, moved or dropped.  The OID
 * may come from an old marker and belong to something else by now.
 */
static Reading
read_index(Oid oid, List *methods, uint8 *identity)
{
	Reading reading;
	Relation index;

	if (!ConditionalLockRelationOid(oid, AccessShareLock))
		return READING_UNKNOWN;
	index = try_relation_open(oid, NoLock);
	if (index == NULL || index->rd_rel->relkind != RELKIND_INDEX ||
		!list_member_oid(methods, index->rd_rel->relam))
		reading = READING_GONE;
	else if (!navis_has_no_pages(index) && read_identity(index, identity))
		reading = READING_IDENTITY;
	else
		reading = READING_UNKNOWN;
	if (index != NULL)
		relation_close(index, NoLock);
	UnlockRelationOid(oid, AccessShareLock);
	return reading;
}

static void
mark_owned(Listing *listing, const IndexRow *row, List *methods)
{
	uint8 identity[16];
	Reading reading = read_index(row->oid, methods, identity);

	for (int i = 0; i < listing->n; i++)
	{
		Sidecar *s = &listing->sidecars[i];

		if (reading == READING_IDENTITY)
			s->owned |= memcmp(s->key.identity, identity, 16) == 0;
		else if (reading == READING_UNKNOWN)
			s->owned |=
				s->index_oid == row->oid || s->relfilenode == row->relfilenode;
	}
}

/*
 * A row that is updated during the scan may be passed by in both versions; so
 * what seems to have no owner is looked up once more by the marker's OID.
 */
static void
look_again(Listing *listing, List *methods)
{
	for (int i = 0; i < listing->n; i++)
	{
		Sidecar *s = &listing->sidecars[i];
		uint8 identity[16];

		if (s->owned || !OidIsValid(s->index_oid))
			continue;
		switch (read_index(s->index_oid, methods, identity))
		{
			case READING_IDENTITY:
				s->owned = memcmp(s->key.identity, identity, 16) == 0;
				break;
			case READING_UNKNOWN:
				s->owned = true;
				break;
			case READING_GONE:
				break;
		}
	}
}

static void
find_index_owners(Listing *listing)
{
	List *methods;
	IndexRow *rows;
	int n;

	StartTransactionCommand();
	methods = navis_access_methods();
	rows = navis_indexes(methods, &n);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		mark_owned(listing, &rows[i], methods);
	}
	look_again(listing, methods);
	CommitTransactionCommand();
}

/* --- what was without owner before --- */

static bool
same_key(const nv_key *a, const nv_key *b)
{
	return a->system_id == b->system_id && a->database == b->database &&
		   memcmp(a->identity, b->identity, sizeof(a->identity)) == 0;
}

/* What a look speaks about: its database, or all that do not exist. */
static bool
covers(const Listing *listing, const nv_key *key)
{
	ListCell *cell;

	if (OidIsValid(listing->database))
		return key->database == listing->database;
	foreach (cell, listing->databases)
	{
		if (((Database *) lfirst(cell))->oid == key->database)
			return false;
	}
	return true;
}

/*
 * Forgets what this look covers and found owned or not at all, so that a
 * remembered orphan was without owner in every look since.
 */
static void
forget_orphans(Listing *listing)
{
	for (int i = 0; i < NAVIS_MAX_ORPHANS; i++)
	{
		NavisOrphan *orphan = &navis_control->orphans[i];
		bool still = false;

		if (!orphan->used || !covers(listing, &orphan->key))
			continue;
		for (int j = 0; j < listing->n && !still; j++)
			still = !listing->sidecars[j].owned &&
					same_key(&orphan->key, &listing->sidecars[j].key);
		orphan->used = still;
	}
}

/* Remembers an orphan, or says that it may go.  Full: it has to wait. */
static bool
note_orphan(const Sidecar *sidecar, TimestampTz listed, TimestampTz looked)
{
	NavisOrphan *place = NULL;
	int64 wait_ms = (int64) navis_collect_interval * 1000;

	for (int i = 0; i < NAVIS_MAX_ORPHANS; i++)
	{
		NavisOrphan *orphan = &navis_control->orphans[i];

		if (!orphan->used)
			place = orphan;
		else if (same_key(&orphan->key, &sidecar->key))
			return TimestampTzPlusMilliseconds(orphan->since, wait_ms) <=
				   listed;
	}
	if (place != NULL)
	{
		place->used = true;
		place->key = sidecar->key;
		place->since = looked;
	}
	return false;
}

static void
note_orphans(Listing *listing)
{
	TimestampTz looked = GetCurrentTimestamp();

	LWLockAcquire(navis_control->lock, LW_EXCLUSIVE);
	forget_orphans(listing);
	for (int i = 0; i < listing->n; i++)
	{
		Sidecar *s = &listing->sidecars[i];

		if (!s->owned)
			s->remove = note_orphan(s, listing->taken, looked);
	}
	LWLockRelease(navis_control->lock);
}

/* The engine closes its files first, so it does the removal. */
static void
remove_orphans(Listing *listing)
{
	for (int i = 0; i < listing->n; i++)
	{
		Sidecar *s = &listing->sidecars[i];
		nv_request *request;
		nv_status status;

		if (!s->remove)
			continue;
		request = navis_request_begin(NV_REQ_DROP, &s->key);
		if (request == NULL)
			return; /* no engine: later */
		status = navis_request_call(request, NULL, NULL);
		if (status == NV_EUNUSABLE)
			return;
		if (status == NV_OK)
			ereport(DEBUG1,
					(errmsg_internal("navis removed the sidecar of the index "
									 "with OID %u in the database with OID "
									 "%u, which no index owns",
									 s->index_oid, s->key.database)));
		else if (status != NV_ENOENT)
			ereport(
				LOG,
				(errmsg("navis could not remove the sidecar of the index with "
						"OID %u in the database with OID %u: %s",
						s->index_oid, s->key.database,
						request->detail[0] != '\0' ? request->detail
												   : nv_status_name(status))));
	}
}

/* --- looks --- */

void
navis_collect_database(void)
{
	Listing listing;

	list_sidecars(MyDatabaseId, &listing);
	if (listing.n > 0)
		find_index_owners(&listing);
	note_orphans(&listing);
	remove_orphans(&listing);
	pfree(listing.sidecars);
}

/*
 * All databases, under SnapshotDirty.  By the heap: without a database of
 * one's own there may be no relcache entries for the indexes.
 */
static List *
all_databases(void)
{
	Relation rel = table_open(DatabaseRelationId, AccessShareLock);
	List *databases = NIL;
	SnapshotData dirty;
	SysScanDesc scan;
	HeapTuple tuple;

	InitDirtySnapshot(dirty);
	scan = systable_beginscan(rel, InvalidOid, false, &dirty, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		Database *database = palloc(sizeof(Database));

		database->oid = form->oid;
		/* The mark of invalid databases since the minor releases of 2023. */
		database->valid = form->datconnlimit != -2;
		databases = lappend(databases, database);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return databases;
}

/* A sidecar is owned here if its database is there. */
static void
find_databases(Listing *listing)
{
	MemoryContext context = CurrentMemoryContext;

	StartTransactionCommand();
	MemoryContextSwitchTo(context); /* the list outlives the transaction */
	listing->databases = all_databases();
	CommitTransactionCommand();
	for (int i = 0; i < listing->n; i++)
	{
		Sidecar *s = &listing->sidecars[i];
		ListCell *cell;

		foreach (cell, listing->databases)
		{
			Database *database = lfirst(cell);

			if (database->oid != s->key.database)
				continue;
			s->owned = true;
			if (database->valid)
				navis_helper_wanted(database->oid);
		}
	}
}

void
navis_collect_dropped(void)
{
	Listing listing;

	list_sidecars(InvalidOid, &listing);
	find_databases(&listing);
	note_orphans(&listing);
	remove_orphans(&listing);
	pfree(listing.sidecars);
}
