/*
 * check.c
 *		navis_check(regclass, repair): journal against heap and engine, and the
 *		engine's own check.
 *
 * The table is locked as VACUUM locks it, so that no entry goes away while it
 * is compared; reading and writing go on.  On a standby, where that lock cannot
 * be had, what replay may be in the middle of is not looked at.
 *
 *	heap -> journal		each row of a snapshot has an entry, with its hash;
 *						entries are read after the snapshot was taken
 *	journal -> heap		each live entry leads to a place of the heap that is in
 *						use (the row may be dead: VACUUM comes yet), no two to
 *						the same
 *	journal -> engine	it has each entry whose row is not dead
 *	engine -> journal	each element it has is live there
 *	engine				see NV_REQ_CHECK
 *
 * Source: design.md sections 3 (invariants), 5 and 8.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "client.h"
#include "compat.h"
#include "navis.h"

PG_FUNCTION_INFO_V1(navis_check);

#define CHECK_COLUMNS 6
/* A row that was appended is handed over a moment later. */
#define HANDOVER_TRIES 20
#define HANDOVER_PAUSE 50 /* ms */
#define ENTRIES_A_REQUEST                                                      \
	((uint32) (NV_REQUEST_DATA / sizeof(nv_journal_entry)))
#define NO_NUMBER PG_UINT32_MAX

/* A journal entry, by element id. */
typedef struct Entry
{
	uint64 hash;
	uint32 generation;
	ItemPointerData tid;
	bool live;
} Entry;

/* The live entry of a place in the heap. */
typedef struct Place
{
	ItemPointerData tid;
	uint32 element;
} Place;

typedef struct Check
{
	ReturnSetInfo *result;
	Relation heap, index;
	NavisMeta meta;
	nv_key key;
	bool repair, standby;
	Entry *entries;
	uint64 n_entries;
	Place *places; /* sorted by tid */
	uint64 n_places;
	NavisFetch *fetch;
	IndexInfo *info;
	MemoryContext row; /* reset with every row of the table */
	bool condemned;    /* the graph is to be built again */
} Check;

static void
report(Check *check, bool error, const char *kind, uint32 element,
	   uint32 vertex, bool repaired, const char *detail)
{
	Datum values[CHECK_COLUMNS] = {
		CStringGetTextDatum(error ? "error" : "warning"),
		CStringGetTextDatum(kind),
		Int64GetDatum(element),
		Int64GetDatum(vertex),
		CStringGetTextDatum(detail),
		BoolGetDatum(repaired)};
	bool nulls[CHECK_COLUMNS] = {false};

	nulls[2] = element == NO_NUMBER;
	nulls[3] = vertex == NO_NUMBER;
	tuplestore_putvalues(check->result->setResult, check->result->setDesc,
						 values, nulls);
}

static const char *
show_tid(ItemPointer tid)
{
	return psprintf("(%u,%u)", ItemPointerGetBlockNumberNoCheck(tid),
					ItemPointerGetOffsetNumberNoCheck(tid));
}

/* --- The journal --- */

static int
compare_places(const void *a, const void *b)
{
	const Place *x = a, *y = b;

	return ItemPointerCompare((ItemPointer) &x->tid, (ItemPointer) &y->tid);
}

static void
read_journal(Check *check)
{
	uint32 a_page = navis_entries_per_page();
	NavisEntry *page = palloc(a_page * sizeof(NavisEntry));
	BlockNumber blocks = RelationGetNumberOfBlocks(check->index);

	check->entries = MemoryContextAllocHuge(
		CurrentMemoryContext, ((uint64) blocks * a_page + 1) * sizeof(Entry));
	memset(check->entries, 0, ((uint64) blocks * a_page + 1) * sizeof(Entry));
	check->places = MemoryContextAllocHuge(
		CurrentMemoryContext, ((uint64) blocks * a_page + 1) * sizeof(Place));
	for (BlockNumber block = NAVIS_FIRST_PAGE; block < blocks; block++)
	{
		XLogRecPtr lsn;
		uint32 n = navis_journal_read(check->index, block, page, &lsn, NULL);
		uint32 first = navis_first_element(block);

		CHECK_FOR_INTERRUPTS();
		for (uint32 i = 0; i < n; i++)
		{
			Entry *entry = &check->entries[first + i];

			entry->generation = page[i].generation;
			entry->hash = navis_entry_hash(&page[i]);
			entry->tid = page[i].tid;
			entry->live = navis_entry_live(&page[i]);
			if (entry->live)
				check->places[check->n_places++] =
					(Place){entry->tid, first + i};
		}
		check->n_entries = (uint64) first + n;
	}
	pfree(page);
	if (check->n_places > 0)
		qsort(check->places, check->n_places, sizeof(Place), compare_places);
}

/* Still live, as it was read. */
static bool
still_live(Check *check, uint32 element)
{
	ItemPointerData tid;

	return navis_journal_live(check->index, element,
							  check->entries[element].generation, false, &tid);
}

/* --- The heap against the journal --- */

static void
report_missing_row(Check *check, ItemPointer tid, Datum *values, bool *isnull)
{
	if (check->repair)
		(void) navis_insert(check->index, values, isnull, tid, check->heap,
							UNIQUE_CHECK_NO, false, check->info);
	report(check, true, "journal", NO_NUMBER, NO_NUMBER, check->repair,
		   psprintf("row %s of the table has no entry", show_tid(tid)));
}

/* An entry's hash, as the row has it now. */
static uint64
row_hash(const Check *check, Datum value, bool isnull)
{
	const float *vector;
	uint32 dim;

	if (isnull)
		return 0;
	vector = navis_vector_from_datum(value, check->meta.element_type, 0, &dim);
	return navis_journal_hash(check->meta.metric, vector, dim);
}

static void
compare_row(Check *check, ItemPointer tid, Datum *values, bool *isnull)
{
	Place wanted = {.tid = *tid};
	Place *found = check->n_places == 0
					   ? NULL
					   : bsearch(&wanted, check->places, check->n_places,
								 sizeof(Place), compare_places);

	if (found == NULL)
	{
		report_missing_row(check, tid, values, isnull);
		return;
	}
	/* Over a HOT chain that was broken a snapshot may see another version. */
	if (check->index->rd_index->indcheckxmin)
		return;
	if (row_hash(check, values[0], isnull[0]) !=
		check->entries[found->element].hash)
		report(check, true, "journal", found->element, NO_NUMBER, false,
			   psprintf("the vector of row %s is not the one that was indexed; "
						"REINDEX",
						show_tid(tid)));
}

static void
check_row(Relation index, ItemPointer tid, Datum *values, bool *isnull,
		  bool alive, void *arg)
{
	Check *check = arg;
	MemoryContext old = MemoryContextSwitchTo(check->row);

	compare_row(check, tid, values, isnull);
	MemoryContextSwitchTo(old);
	MemoryContextReset(check->row);
}

/* Index expressions run as everywhere outside the inserting statement. */
static void
check_heap(Check *check, Snapshot snapshot)
{
	TableScanDesc scan =
		table_beginscan_strat(check->heap, snapshot, 0, NULL, true, true);
	NavisGuard guard;

	navis_guard_enter(&guard, check->heap);
	check->info = BuildIndexInfo(check->index);
	check->row = AllocSetContextCreate(CurrentMemoryContext, "navis check row",
									   ALLOCSET_DEFAULT_SIZES);
	/* Rows of the snapshot only, none of those that are merely not dead. */
	check->info->ii_Concurrent = true;
	table_index_build_scan(check->heap, check->index, check->info, true, false,
						   check_row, check, scan);
	MemoryContextDelete(check->row);
	navis_guard_leave(&guard);
}

/* --- The journal against the heap --- */

/* Is there a row, dead or alive, or what is left of one? */
static bool
place_in_use(Check *check, ItemPointer tid)
{
	BlockNumber block = ItemPointerGetBlockNumberNoCheck(tid);
	OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(tid);
	Buffer buffer;
	Page page;
	bool used;

	if (block >= RelationGetNumberOfBlocks(check->heap))
		return false;
	buffer = ReadBuffer(check->heap, block);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	used = offset >= FirstOffsetNumber &&
		   offset <= PageGetMaxOffsetNumber(page) &&
		   ItemIdIsUsed(PageGetItemId(page, offset));
	UnlockReleaseBuffer(buffer);
	return used;
}

static void
check_places(Check *check)
{
	for (uint64 i = 0; i < check->n_places; i++)
	{
		Place *place = &check->places[i];

		CHECK_FOR_INTERRUPTS();
		if (i > 0 && compare_places(place, place - 1) == 0)
			report(check, true, "journal", place->element, NO_NUMBER, false,
				   psprintf("elements %u and %u are the same row %s; REINDEX",
							(place - 1)->element, place->element,
							show_tid(&place->tid)));
		/* Replay removes entries, then rows: we may come in between. */
		if (!check->standby && !place_in_use(check, &place->tid))
			report(check, true, "journal", place->element, NO_NUMBER, false,
				   psprintf("entry of row %s, where there is none; REINDEX",
							show_tid(&place->tid)));
	}
}

/* --- The journal against the engine --- */

/* One request about entries; the ids it has not got, in missing. */
static bool
ask_entries(Check *check, const uint32 *elements, uint32 n, uint32 *missing,
			uint32 *n_missing)
{
	nv_request *request = navis_request_begin(NV_REQ_CHECK, &check->key);
	nv_journal_entry *entries;

	if (request == NULL)
		return false;
	request->u.check.part = NV_CHECK_ENTRIES;
	request->u.check.n = n;
	entries = (nv_journal_entry *) request->data;
	for (uint32 i = 0; i < n; i++)
	{
		const Entry *entry = &check->entries[elements[i]];

		entries[i].element = elements[i];
		entries[i].generation = entry->generation;
		entries[i].hash = entry->hash;
	}
	if (navis_request_call(request, NULL, NULL) != NV_OK)
		return false;
	*n_missing = request->u.check.n;
	memcpy(missing, request->data, request->u.check.n * sizeof(uint32));
	return true;
}

/* The vector of a row that the engine should have; NULL: it need not. */
static const float *
needed_vector(Check *check, uint32 element, bool *wrong)
{
	Entry *entry = &check->entries[element];
	const float *vector = NULL;
	uint32 dim = 0;
	NavisFetchResult result;

	if (check->fetch == NULL)
		check->fetch = navis_fetch_begin(check->heap, check->index, NULL);
	result = navis_fetch_row(check->fetch, &entry->tid, &vector, &dim);
	*wrong =
		result != NAVIS_FETCH_GONE &&
		(result == NAVIS_FETCH_NULL || dim != check->meta.dim ||
		 navis_journal_hash(check->meta.metric, vector, dim) != entry->hash);
	return result == NAVIS_FETCH_VECTOR && still_live(check, element) ? vector
																	  : NULL;
}

static bool
hand_over(Check *check, uint32 element, const float *vector)
{
	nv_request *request = navis_request_begin(NV_REQ_INSERT, &check->key);
	const Entry *entry = &check->entries[element];

	if (request == NULL)
		return false;
	request->u.insert.element = element;
	request->u.insert.generation = entry->generation;
	request->u.insert.hash = entry->hash;
	request->u.insert.dim = check->meta.dim;
	request->u.insert.from_heap = 1;
	memcpy(request->data, vector, check->meta.dim * sizeof(float));
	return navis_request_call(request, NULL, NULL) == NV_OK;
}

/* What the engine has not got, also after those that write had their time. */
static void
report_missing(Check *check, uint32 *missing, uint32 n)
{
	for (int tries = 0; n > 0 && tries < HANDOVER_TRIES; tries++)
	{
		navis_nap(HANDOVER_PAUSE);
		if (!ask_entries(check, missing, n, missing, &n))
			return;
	}
	for (uint32 i = 0; i < n; i++)
	{
		bool wrong, fed = false;
		const float *vector = needed_vector(check, missing[i], &wrong);

		if (vector == NULL)
			continue;
		if (check->repair && !wrong)
			fed = hand_over(check, missing[i], vector);
		report(check, true, "sidecar", missing[i], NO_NUMBER, fed,
			   psprintf("the engine has not got row %s",
						show_tid(&check->entries[missing[i]].tid)));
	}
}

static void
check_entries(Check *check)
{
	uint32 *batch = palloc(ENTRIES_A_REQUEST * sizeof(uint32));
	uint32 *missing = palloc(ENTRIES_A_REQUEST * sizeof(uint32));
	uint32 n = 0, n_missing;

	for (uint64 e = 0; e <= check->n_entries; e++)
	{
		if (e < check->n_entries && check->entries[e].live &&
			check->entries[e].hash != 0)
			batch[n++] = (uint32) e;
		if (n < ENTRIES_A_REQUEST && (e < check->n_entries || n == 0))
			continue;
		if (ask_entries(check, batch, n, missing, &n_missing))
			report_missing(check, missing, n_missing);
		n = 0;
	}
	pfree(batch);
	pfree(missing);
}

/* --- The engine against the journal --- */

static bool
forget_element(Check *check, const nv_journal_entry *named)
{
	nv_request *request = navis_request_begin(NV_REQ_DELETE, &check->key);
	nv_element_ref *refs;

	if (request == NULL)
		return false;
	refs = (nv_element_ref *) request->data;
	refs[0].element = named->element;
	refs[0].generation = named->generation;
	request->u.del.n = 1;
	return navis_request_call(request, NULL, NULL) == NV_OK;
}

/* Entries made since the journal was read are none of our business. */
static void
check_named(Check *check, const nv_journal_entry *named)
{
	const Entry *entry;
	ItemPointerData tid;

	if (named->element >= check->n_entries)
		return;
	entry = &check->entries[named->element];
	if (entry->live && entry->generation == named->generation)
	{
		if (entry->hash != named->hash)
			report(check, true, "sidecar", named->element, NO_NUMBER,
				   check->repair && forget_element(check, named),
				   "the engine has another vector of this element");
		return;
	}
	if (!navis_journal_live(check->index, named->element, named->generation,
							false, &tid))
		report(check, false, "sidecar", named->element, NO_NUMBER,
			   check->repair && forget_element(check, named),
			   psprintf("the engine has generation %u, which is not live",
						named->generation));
}

static void
check_engine_elements(Check *check)
{
	nv_journal_entry *named = palloc(NV_REQUEST_DATA);

	for (uint64 from = 0; from != PG_UINT64_MAX;)
	{
		nv_request *request = navis_request_begin(NV_REQ_CHECK, &check->key);
		uint32 n;

		if (request == NULL)
			break;
		request->u.check.part = NV_CHECK_NAMED;
		request->u.check.from = from;
		if (navis_request_call(request, NULL, NULL) != NV_OK)
			break;
		n = request->u.check.n;
		from = request->u.check.next;
		memcpy(named, request->data, n * sizeof(nv_journal_entry));
		for (uint32 i = 0; i < n; i++)
			check_named(check, &named[i]);
	}
	pfree(named);
}

/* --- The engine --- */

static const char *
part_name(uint32 part)
{
	static const char *const names[] = {"state", "list",  "vector", "element",
										"equal", "reach", "space"};

	return part < lengthof(names) ? names[part] : "unknown";
}

static void
condemn(Check *check)
{
	nv_request *request = navis_request_begin(NV_REQ_CHECK, &check->key);

	if (request == NULL)
		return;
	request->u.check.part = NV_CHECK_CONDEMN;
	if (navis_request_call(request, NULL, NULL) != NV_OK)
		return;
	check->condemned = true;
	navis_open_forget(RelationGetRelid(check->index));
	navis_helper_wanted(MyDatabaseId);
}

/* The problems of one answer; damage in it: the graph is built again. */
static void
report_problems(Check *check, const nv_problem *problems,
				const nv_req_check *answer)
{
	uint32 n = answer->n;
	bool damage = answer->unlisted_damage > 0;

	for (uint32 i = 0; i < n && !damage; i++)
		damage = !problems[i].warning;
	if (damage && check->repair && !check->condemned)
		condemn(check);
	for (uint32 i = 0; i < n; i++)
		report(check, !problems[i].warning, part_name(problems[i].part),
			   problems[i].element, problems[i].vertex,
			   check->condemned && !problems[i].warning, problems[i].detail);
	if (answer->unlisted > 0)
		report(check, answer->unlisted_damage > 0, part_name(answer->part),
			   NO_NUMBER, NO_NUMBER,
			   check->condemned && answer->unlisted_damage > 0,
			   psprintf("and %u more like these", answer->unlisted));
}

/* False: there is no engine any more, or it does not have the index. */
static bool
check_part(Check *check, uint32 part)
{
	nv_problem *problems = palloc(NV_REQUEST_DATA);

	for (uint64 from = 0; from != PG_UINT64_MAX;)
	{
		nv_request *request = navis_request_begin(NV_REQ_CHECK, &check->key);
		nv_req_check answer;
		nv_status status;

		if (request == NULL)
			return false;
		request->u.check.part = part;
		request->u.check.from = from;
		status = navis_request_call(request, NULL, NULL);
		if (status == NV_ENOENT || status == NV_EUNUSABLE)
			return false;
		if (status != NV_OK)
			navis_request_error(request, status, "could not check index");
		answer = request->u.check;
		memcpy(problems, request->data, answer.n * sizeof(nv_problem));
		report_problems(check, problems, &answer);
		from = answer.next;
	}
	pfree(problems);
	return true;
}

static void
check_engine(Check *check)
{
	NavisUse use;

	/* Again, since on a standby rows may have come with the snapshot. */
	navis_meta_read(check->index, &check->meta);
	use =
		navis_open_index(check->heap, check->index, &check->meta, &check->key);
	if (check->meta.dim == 0)
		return; /* no vector, nothing in the engine */
	if (navis_engine_status() != NAVIS_ENGINE_RUNNING)
	{
		report(check, false, "engine", NO_NUMBER, NO_NUMBER, false,
			   "there is no engine: scans are exact, and only journal and "
			   "table were compared");
		return;
	}
	if (use == NAVIS_USE_EXACT)
		report(check, false, "engine", NO_NUMBER, NO_NUMBER, false,
			   "the engine cannot answer for the index now: scans are exact");
	else
		check_entries(check);
	/* A standby hears of deletions when somebody comes by. */
	if (!check->standby)
		check_engine_elements(check);
	for (uint32 part = 0; part < NV_CHECK_PARTS; part++)
		if (!check_part(check, part))
		{
			report(check, false, "engine", NO_NUMBER, NO_NUMBER, false,
				   "the engine let go of the index while it was checked");
			return;
		}
}

/* --- The function --- */

static void
open_relations(Check *check, Oid oid)
{
	Oid heap_oid = IndexGetRelation(oid, true);

	if (OidIsValid(heap_oid))
		check->heap =
			table_open(heap_oid, check->standby ? AccessShareLock
												: ShareUpdateExclusiveLock);
	check->index = navis_index_open(oid, check->repair ? RowExclusiveLock
													   : AccessShareLock);
	if (check->heap == NULL ||
		check->index->rd_index->indrelid != RelationGetRelid(check->heap))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
						errmsg("could not open the table of index \"%s\"",
							   RelationGetRelationName(check->index))));
	if (!check->index->rd_index->indisvalid)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("index \"%s\" is not valid",
							   RelationGetRelationName(check->index))));
}

/* Before any lock is taken. */
static void
check_permission(Oid oid)
{
	char relkind = get_rel_relkind(oid);

	if (relkind == '\0')
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("relation with OID %u does not exist", oid)));
	if (relkind != RELKIND_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a navis index", get_rel_name(oid))));
	if (!navis_relation_owner(oid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_INDEX, get_rel_name(oid));
}

/*
 * navis_check(index, repair): a row for every problem; none: the index is
 * sound.  severity error: something is lost or wrong; warning: it costs recall
 * or space, or could not be looked at.  kind: what was looked at.  With repair
 * what can be is mended from the table, and repaired says so: rows that are
 * missing are entered and fed again, elements that should not be there are
 * taken out, a damaged graph is built again in the background.
 *
 * The caller owns the index.  Errors: not a navis index; not its owner; repair
 * on a standby or in a read-only transaction.
 */
Datum
navis_check(PG_FUNCTION_ARGS)
{
	Oid oid = PG_GETARG_OID(0);
	Check check = {.result = (ReturnSetInfo *) fcinfo->resultinfo,
				   .repair = PG_GETARG_BOOL(1),
				   .standby = RecoveryInProgress()};
	Snapshot snapshot;

	if (check.repair && check.standby)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot repair an index during recovery"),
				 errhint("Repair it on the primary; a standby's graph is "
						 "built again by itself when damage is met.")));
	if (check.repair)
		PreventCommandIfReadOnly("navis_check() with repair");
	check_permission(oid);
	InitMaterializedSRF(fcinfo, 0);
	open_relations(&check, oid);
	navis_meta_read(check.index, &check.meta);

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	read_journal(&check);
	check_places(&check);
	check_heap(&check, snapshot);
	UnregisterSnapshot(snapshot);
	check_engine(&check);

	if (check.fetch != NULL)
		navis_fetch_end(check.fetch);
	relation_close(check.index, NoLock);
	table_close(check.heap, NoLock);
	return (Datum) 0;
}
