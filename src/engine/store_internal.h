/*
 * store_internal.h
 *		What the files of the store share: the store itself, roots, edge pages
 *		and pages being written (RMW).
 *
 * store.c			creating, opening, closing, elements, blobs, statistics
 * segments.c		arrays in memory, saved in segments, copy on write
 * state_file.c		roots, segment table, reading and writing of the state file
 * checkpoint.c		the protocol that publishes a root
 * edge_file.c		slots, bulk writing of lists
 * edge_pages.c		pages of the edge file: taken units, owners
 * rmw.c			pages that are being built or written
 * writer.c			replacing a list
 * vector_file.c	places of vectors, bulk writing of vectors
 * vertex.c		vertices that are added one by one
 * room.c			space on disk for rows that are to come
 * free_vertex.c	vertices that are freed, and their ids
 * epoch.c			readers, and slots that wait for them or for a root
 */
#ifndef NAVIS_STORE_INTERNAL_H
#define NAVIS_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "epoch.h"
#include "segments.h"
#include "store.h"
#include "util.h"

/* --- Map entries --- */

#define NV_MAP_ENTRY 24 /* edge word, vector record, vector hash */
#define NV_ELEMENT_ENTRY 8

#define NV_TAG_BITS 25
#define NV_TAG_MASK ((UINT64_C(1) << NV_TAG_BITS) - 1)
#define NV_UNIT_SHIFT (NV_TAG_BITS + 1)
#define NV_MAX_EDGE_PAGES (UINT64_C(1) << 32)
#define NV_SEQUENCE_MAX ((UINT64_C(1) << 48) - 1)

static inline uint64_t
nv_word_make(uint64_t page, uint32_t unit, uint64_t sequence, bool linked)
{
	return (page * NV_PAGE_UNITS + unit) << NV_UNIT_SHIFT |
		   (sequence & NV_TAG_MASK) << 1 | (linked ? NV_LINKED : 0);
}

static inline uint32_t
nv_word_unit(uint64_t word)
{
	return (uint32_t) (word >> NV_UNIT_SHIFT) & (NV_PAGE_UNITS - 1);
}

/* The unit's number in the file. */
static inline uint64_t
nv_word_slot(uint64_t word)
{
	return word >> NV_UNIT_SHIFT;
}

static inline uint64_t
nv_word_tag(uint64_t word)
{
	return word >> 1 & NV_TAG_MASK;
}

/* --- Pages being built or written (RMW) --- */

#define NV_RMW_PARTITIONS 256
#define NV_RMW_CHAINS 16 /* of a partition: a look-up meets few other pages */
/* Sealed pages at most before writers wait, or write pages themselves: 32 MiB.
 */
#define NV_RMW_MAX_SEALED 8192
/* The background writer leaves fewer where they are: they may change again. */
#define NV_RMW_MIN_SEALED 4096

typedef enum nv_rmw_state
{
	NV_RMW_OPEN,   /* its writer's */
	NV_RMW_SEALED, /* in the list of pages to be written */
	NV_RMW_WRITING
} nv_rmw_state;

typedef struct nv_rmw_page
{
	struct nv_rmw_page *next;         /* in its partition */
	struct nv_rmw_page *prev, *later; /* in the list of sealed pages */
	uint64_t page;
	uint64_t epoch;     /* segment epoch it was opened in */
	nv_rmw_state state; /* under rmw.lock */
	bool dirty;         /* holds slots that are not in the file */
	uint8_t *bytes;     /* changed and copied under the partition's latch */
	uint32_t room;      /* its writer's: units of a slot that fits, at least */
} nv_rmw_page;

typedef struct nv_rmw_partition
{
	pthread_mutex_t latch;
	nv_rmw_page *pages[NV_RMW_CHAINS];
} nv_rmw_partition;

typedef struct nv_rmw_counters
{
	_Atomic uint64_t reopened; /* sealed pages that were taken back */
	_Atomic uint64_t waits;    /* of writers, for sealed pages to be written */
} nv_rmw_counters;

typedef struct nv_rmw
{
	nv_rmw_partition partition[NV_RMW_PARTITIONS];
	_Atomic uint64_t count; /* pages in RMW */
	pthread_mutex_t lock;   /* what follows */
	pthread_cond_t changed;
	nv_rmw_page *first_sealed, *last_sealed; /* oldest first */
	uint64_t sealed_count;
	uint32_t most_sealed, least_sealed; /* the limits above; fixed */
	uint64_t sealed_ever;
	uint64_t passed; /* of these: written or taken back */
	uint32_t wanted; /* checkpoints and others that want all to be written */
	/* Pages in RMW that were opened in even and odd segment epochs. */
	uint64_t unwritten[2];
	nv_rmw_counters counters;
} nv_rmw;

extern nv_rmw_page *nv_rmw_page_alloc(nv_error *err);
extern void nv_rmw_page_free(nv_rmw_page *page);

/* Puts a page into RMW, visible to readers; the gate is held shared. */
extern void nv_rmw_add(nv_store *store, nv_rmw_page *page);
/* Its writer lets go of it: from here on it waits to be written. */
extern void nv_rmw_seal(nv_store *store, nv_rmw_page *page);
/*
 * Takes a page back that waits to be written and was opened in this epoch, as
 * one that is open; NULL: it does not.  The gate is held shared.
 */
extern nv_rmw_page *nv_rmw_reopen(nv_store *store, uint64_t page);
/*
 * Takes the oldest sealed pages out of the list, in the order of the file, max
 * at most, to be written; then one of:
 */
extern uint32_t nv_rmw_take_sealed(nv_store *store, nv_rmw_page **pages,
								   uint32_t max);
/* One write wrote them all. */
extern void nv_rmw_written(nv_store *store, nv_rmw_page **pages, uint32_t n);
/* They stay in RMW, readable, until the store is closed; it has failed. */
extern void nv_rmw_not_written(nv_store *store, nv_rmw_page **pages, uint32_t n,
							   const nv_error *why);
/* Waits while too many sealed pages wait; NV_ECANCELLED. */
extern nv_status nv_rmw_await_room(nv_writer *writer, nv_error *err);
extern nv_rmw_partition *nv_rmw_partition_of(nv_store *store, uint64_t page);

static inline uint32_t
nv_rmw_chain_of(uint64_t page)
{
	return (uint32_t) (page / NV_RMW_PARTITIONS % NV_RMW_CHAINS);
}

/* Writes pages until none that was opened in `epoch` is left. */
extern nv_status nv_rmw_drain(nv_store *store, uint64_t epoch, nv_error *err);

/* --- Edge file --- */

typedef enum nv_page_state
{
	NV_PAGE_FREE,
	NV_PAGE_OWNED, /* some writer's, until its write is complete */
	NV_PAGE_WRITTEN
} nv_page_state;

typedef struct nv_page_info
{
	uint64_t used;  /* units of slots not yet released */
	uint64_t start; /* first units of these */
	uint64_t young; /* first units of those born in the epoch, if it is now */
	uint64_t epoch; /* segment epoch */
	uint8_t state;
	bool guessed; /* after opening: slots may be shorter than `used` says */
} nv_page_info;

/* Slots on the page that are not yet released. */
static inline uint32_t
nv_page_slots(const nv_page_info *info)
{
	return (uint32_t) __builtin_popcountll(info->start);
}

typedef struct nv_edges
{
	nv_file *file;
	pthread_mutex_t growing;   /* held while the file grows, by nobody else */
	pthread_mutex_t allocator; /* what follows */
	nv_page_info *info;        /* capacity entries */
	uint32_t *free;            /* a stack of free pages, capacity entries */
	uint64_t capacity;         /* pages that there is space for on disk */
	uint64_t pages;            /* ever used */
	uint64_t free_count;
	uint64_t live_slots, used_units;
	uint64_t hand; /* where to look for a page with room next */
} nv_edges;

typedef enum nv_page_kind
{
	NV_TOOK_NONE,
	NV_TOOK_EMPTY,
	NV_TOOK_USED /* there are lists on it: to be read before it is written */
} nv_page_kind;

/*
 * Lists come to a page only if so many units are free: its own lists need room
 * to be rewritten.
 */
#define NV_NEAR_UNITS 12

/* Pages beyond those in use that there must be space for: one a writer. */
#define NV_SPARE_PAGES 64

/* Space on disk and in memory for at least `pages` pages. */
extern nv_status nv_edges_reserve(nv_store *store, uint64_t pages,
								  nv_error *err);
/* So many pages can be taken without reserving. */
extern bool nv_edges_have_room(nv_store *store, uint64_t pages);
extern nv_status nv_edges_make_room(nv_store *store, uint64_t pages,
									nv_error *err);
/*
 * With `growing` held: what more than so many pages would need is no longer
 * counted on; then the file is cut to what is.
 */
extern void nv_edges_count_on(nv_store *store, uint64_t pages);
extern nv_status nv_edges_cut(nv_store *store, nv_error *err);
/* There is no free page and will be none before slots are released. */
extern bool nv_edges_full(nv_store *store);
/* A free page, or one with much room; none: reserve first. */
extern nv_page_kind nv_edges_take_page(nv_store *store, uint32_t units,
									   uint64_t *page);
/*
 * Pages that a list could go to, and how many of its neighbours lie there.  The
 * first one may be its own.
 */
typedef struct nv_near_page
{
	uint64_t page;
	uint32_t lists;
	uint32_t weight; /* 0: there is no room */
} nv_near_page;

extern void nv_edges_weigh(nv_store *store, nv_near_page *near, uint32_t n,
						   uint32_t units);
/* A page that was taken has not been changed, or its write is complete. */
extern void nv_edges_give_back(nv_store *store, uint64_t page);
/* This page, if nobody has it and a slot fits. */
extern bool nv_edges_take(nv_store *store, uint64_t page, uint32_t units);
/* Units of the longest slot that fits a page that was taken. */
extern uint32_t nv_edges_room(nv_store *store, uint64_t page);
/*
 * A slot is born on a page, which has room for it: returns its first unit.
 * old: the word of the slot it replaces, or 0; *old_young: that was born since
 * the last cut.  The gate is held shared.
 */
extern uint32_t nv_edges_add_slot(nv_store *store, uint64_t page,
								  uint32_t units, uint64_t old,
								  bool *old_young);
/* The slot was born since the last cut; the gate is held shared. */
extern bool nv_edges_is_young(nv_store *store, uint64_t word);
/* Releases what the retire list lets go of. */
extern void nv_edges_reclaim(nv_store *store);
/* Pages of an opened store, from the map; checks bounds of the words. */
extern nv_status nv_edges_recount(nv_store *store, uint64_t pages,
								  nv_error *err);
/* A copy of a page tells how long its slots really are. */
extern void nv_edges_measure(nv_store *store, uint64_t page,
							 const uint8_t *bytes);

/* Writes a slot at its place in a page. */
extern void nv_slot_write(uint8_t *slot, uint32_t vertex, uint64_t sequence,
						  const uint32_t *ids, uint32_t degree);

/* Units of the slot at a unit of a page; 0: there is none, or it is damaged. */
extern uint32_t nv_slot_measure(const uint8_t *page, uint32_t unit,
								uint32_t max_degree);

/* --- Vector file --- */

#define NV_VECTOR_BUFFER (1024 * 1024)
/* Writers at a time for whose unfinished units there is to be space. */
#define NV_MAX_WRITERS 32

typedef struct nv_freed
{
	uint32_t vertex;
	uint64_t death; /* sequence: roots from there on do not name it */
} nv_freed;

typedef struct nv_vectors
{
	nv_file *file;
	uint64_t records;
	/* Bulk writing: the end of the file, not yet written as a whole buffer. */
	uint8_t *buffer; /* NV_VECTOR_BUFFER bytes, NULL when none is needed */
	uint64_t base;   /* offset of the buffer in the file */
	uint32_t used, written;
	/* Adding one by one: see vertex.c. */
	pthread_mutex_t growing; /* held while the file grows, by nobody else */
	pthread_mutex_t lock;    /* what follows */
	bool counted;            /* units were looked at */
	uint64_t space;          /* bytes there is space for on disk */
	uint64_t next_unit;      /* never given out from here on */
	uint64_t fresh_unit;     /* nothing was ever written from here on */
	uint32_t *free_units;    /* a stack: some of their ids are unused */
	size_t free_count, free_room;
	/* Freeing: see free_vertex.c. */
	uint8_t *unit_flags; /* NV_UNIT_...; flag_room of them */
	uint64_t *held;      /* bitmap: freed ids that a root may still name */
	uint64_t flag_room, held_room;
	nv_freed *freed; /* held ids */
	uint64_t freed_count, freed_room;
} nv_vectors;

/* A unit is in the stack, or some writer's. */
#define NV_UNIT_TAKEN 1
/* An id of it was freed meanwhile: into the stack with it afterwards. */
#define NV_UNIT_AGAIN 2

static inline uint64_t
nv_record_offset(uint32_t vector_bytes, uint64_t record)
{
	uint32_t each;

	if (vector_bytes >= NV_SECTOR)
		return record * nv_round_up(vector_bytes, NV_SECTOR);
	each = NV_SECTOR / vector_bytes;
	return record / each * NV_SECTOR + record % each * vector_bytes;
}

/* Length of a vector file of that many records, in whole blocks. */
static inline uint64_t
nv_vector_file_size(uint32_t vector_bytes, uint64_t records)
{
	if (records == 0)
		return 0;
	return nv_round_up(
		nv_record_offset(vector_bytes, records - 1) + vector_bytes, NV_BLOCK);
}

extern void nv_vectors_end_bulk(nv_store *store);
/* Of the writer's next id, before it can be found by its vector. */
extern void nv_vectors_written(const nv_writer *w);

/* Space on disk for the vectors of so many more vertices; see vertex.c. */
extern bool nv_vectors_have_room(nv_store *store, uint64_t rows);
extern nv_status nv_vectors_make_room(nv_store *store, uint64_t rows,
									  nv_error *err);

/* The same as for edges, with vectors.growing held. */
extern void nv_vectors_count_on(nv_store *store, uint64_t rows);
extern nv_status nv_vectors_cut(nv_store *store, nv_error *err);

/* A writer's unit of vector records; all zero: none. */
typedef struct nv_unit
{
	uint8_t *buffer; /* the unit's bytes as they are on disk */
	uint64_t number;
	uint64_t offset;    /* in the file */
	uint32_t next, end; /* ids not yet used; may lie beyond the last vertex */
} nv_unit;

/* The writer goes: what is left of its unit is for others. */
extern void nv_unit_give_back(nv_store *store, nv_unit *unit);
/* Records in a unit of the store. */
extern uint32_t nv_unit_records(const nv_store *store);
/* A unit goes to the stack; vectors->lock is held. */
extern nv_status nv_unit_push(nv_vectors *vectors, uint64_t unit,
							  nv_error *err);

/* --- Freed vertices (free_vertex.c) --- */

/* What follows is called with vectors->lock held. */
/* A freed id that a root may still name. */
extern bool nv_id_held(const nv_vectors *vectors, uint32_t vertex);
/* The unit becomes some writer's, or is in the stack from here on. */
extern nv_status nv_unit_take(nv_vectors *vectors, uint64_t unit,
							  nv_error *err);
/* It is neither any more; true: some of its ids were freed meanwhile. */
extern bool nv_unit_leave(nv_vectors *vectors, uint64_t unit);

/* A root of this sequence is the last one published. */
extern void nv_freed_published(nv_store *store, uint64_t sequence);
/* The edge word becomes 0 and the list is retired; *death: when. */
extern nv_status nv_store_drop_list(nv_store *store, uint32_t vertex,
									uint64_t *death, nv_error *err);

/* --- State file --- */

#define NV_TABLE_SEGMENTS 480
#define NV_TABLE_ENTRIES (NV_SEGMENT / sizeof(nv_table_entry))
#define NV_FIRST_PLACE 2 /* segments 0 and 1 hold the roots */

typedef struct nv_segment_ref
{
	uint32_t place; /* segment of the state file */
	uint32_t crc;
} nv_segment_ref;

typedef struct nv_table_entry
{
	uint32_t place;
	uint32_t crc;
	uint32_t label; /* of code segments: CRC of their codebook; else 0 */
	uint32_t unused;
} nv_table_entry;

/* On disk as it is here: little-endian, without holes, one block. */
typedef struct nv_root
{
	uint8_t magic[8];
	uint32_t version; /* magic, version and crc stay where they are */
	uint32_t crc;     /* of the block, this field 0 */
	uint64_t number;  /* of the publication, from 1; parity: which block */
	uint64_t sequence;
	uint64_t lsn;
	nv_key key;
	uint32_t relfilenode, index_oid;
	uint32_t dim, vector_bytes, max_degree, code_stride;
	uint64_t vertices, elements, records, edge_pages;
	uint64_t blob_len[NV_BLOBS];
	uint32_t table_entries, table_segments;
	nv_segment_ref table[NV_TABLE_SEGMENTS];
	uint8_t unused[NV_BLOCK - 168 - 8 * NV_TABLE_SEGMENTS];
} nv_root;

/* A blob: replaced as a whole, never changed, counted references. */
typedef struct nv_blob_data
{
	_Atomic uint32_t references;
	uint32_t crc; /* of all its bytes */
	size_t len;
	uint8_t *bytes; /* segments * NV_SEGMENT bytes, the rest zero */
	uint32_t segments;
	nv_segment_ref *places; /* place 0: not written yet; the checkpoint's */
} nv_blob_data;

/* What a root in the making describes. */
typedef struct nv_cut
{
	uint64_t sequence, lsn;
	uint64_t epoch; /* the segment epoch it closed */
	uint64_t vertices, elements, records, edge_pages;
	nv_blob_data *blob[NV_BLOBS];
} nv_cut;

/* Places of the state file: who refers to each. */
#define NV_PLACE_PUBLISHED 1
#define NV_PLACE_PENDING 2

typedef struct nv_state
{
	nv_file *file;
	uint8_t *used;   /* flags of each place; capacity bytes */
	uint64_t places; /* in the file */
	uint64_t capacity;
	uint64_t cursor;         /* where to look for a free place next */
	_Atomic uint64_t number; /* of the last root published, 0: none */
	uint32_t root_block;     /* where it is: 0 or 1 */
	_Atomic uint64_t size;   /* of the file */
	_Atomic uint64_t published; /* places that the last root names */
	pthread_mutex_t growing;    /* held while the file grows, by nobody else */
	_Atomic uint64_t space; /* bytes there is space for: nobody writes behind */
} nv_state;

extern nv_status nv_state_create(nv_store *store, nv_error *err);
/* Loads the newest root that is whole.  The files are open. */
extern nv_status nv_state_load(nv_store *store, const nv_key *key,
							   nv_error *err);
/* Steps 7 (write segments and table, sync) and 9 (root, sync). */
extern nv_status nv_state_save(nv_store *store, const nv_cut *cut,
							   nv_root *root, nv_error *err);
extern nv_status nv_state_publish(nv_store *store, const nv_root *root,
								  nv_error *err);

/*
 * Space for the next checkpoint, also after so many rows more (room.c); now:
 * for what it would save at this moment.  NV_ENOSPC: nothing is harmed.
 */
extern bool nv_state_have_room(nv_store *store, uint64_t rows);
extern nv_status nv_state_make_room(nv_store *store, uint64_t rows,
									nv_error *err);
extern nv_status nv_state_make_room_now(nv_store *store, nv_error *err);
/* The file has space for so many places. */
extern nv_status nv_state_reserve(nv_store *store, uint64_t places,
								  nv_error *err);

/* Of a root, its own field taken as 0. */
extern uint32_t nv_root_crc(const nv_root *root);
extern nv_blob_data *nv_blob_alloc(size_t len);
/* A blob of these bytes; NULL: no memory. */
extern nv_blob_data *nv_blob_make(const uint8_t *bytes, size_t len);
extern void nv_blob_drop(nv_blob_data *blob);

/* --- Codes --- */

/* Codes of all vertices. */
struct nv_coding
{
	nv_array codes;
	const nv_pq *pq; /* what they mean; whoever opened the store says it */
};

extern nv_coding *nv_coding_create(void);
extern void nv_coding_free(nv_coding *coding);
/* Bytes of all codes there are; takes the gate. */
extern uint64_t nv_codings_memory(nv_store *store);
/* Room for n codes wherever new vertices get one; the gate is held. */
extern nv_status nv_codings_grow(nv_store *store, uint64_t n, nv_error *err);

/* --- The store --- */

#define NV_OPEN_PAGES 16 /* of a writer */

struct nv_writer
{
	nv_store *store;
	struct nv_writer *next, *prev; /* under store->writers_lock */
	/* Touched with the gate held: */
	nv_rmw_page *open[NV_OPEN_PAGES];
	uint32_t n_open;
	uint32_t turn;     /* which of them makes place for another */
	nv_rmw_page *main; /* one more, or NULL: for lists without a near page */
	/* Its own: */
	nv_rmw_page *spare; /* memory for the next one */
	nv_page_kind taken; /* a page that is its own, but not yet in RMW */
	uint64_t taken_page;
	bool taken_main;  /* is to be the main one */
	uint32_t relinks; /* since it last reclaimed */
	nv_cancel_fn cancel;
	void *cancel_arg;
	nv_unit unit; /* where its next vectors go */
};

struct nv_store
{
	nv_store_params params;
	char *dir;
	nv_cache *cache;
	uint32_t cache_file;    /* number of the edge file in the cache */
	uint32_t cache_vectors; /* number of the vector file there */

	pthread_rwlock_t gate;
	_Atomic uint64_t epoch; /* segment epoch; raised with the gate exclusive */
	_Atomic uint64_t sequence; /* the last one given out */
	_Atomic bool dirty;
	_Atomic bool failed; /* nothing is published any more */
	nv_error failure;    /* why, if it is known; under rmw.lock */
	_Atomic(struct nv_page_writer *) page_writer; /* NULL: none */
	struct nv_store *next_served;                 /* the page writer's */

	_Atomic uint32_t vertices;
	_Atomic uint64_t elements;
	nv_array map, element_map;
	_Atomic(nv_coding *) coding;      /* codes in use */
	_Atomic(nv_coding *) next_coding; /* others in the making, or NULL; gate */
	nv_coding *left_coding; /* replaced, and maybe in use yet; see coding.c */
	pthread_mutex_t recode_lock; /* codes of next_coding, and their hashes */
	pthread_mutex_t extend;      /* number of elements */

	pthread_mutex_t blob_lock;
	nv_blob_data *blob[NV_BLOBS];

	nv_edges edges;
	nv_rmw rmw;
	nv_vectors vectors;
	nv_state state;

	nv_epochs readers;
	nv_retire_list retired;
	pthread_mutex_t writers_lock;
	nv_writer *writers;

	pthread_mutex_t checkpoint; /* one at a time; nobody else takes it */
	bool directory_synced;
	_Atomic uint64_t published_sequence, published_lsn;

	/* statistics */
	_Atomic uint64_t rmw_hits[NV_CACHE_USERS];
	_Atomic uint64_t pages_written, page_writes;
};

enum
{
	NV_MAP_WORD,
	NV_MAP_RECORD,
	NV_MAP_HASH
};

static inline _Atomic uint64_t *
nv_map_field(const nv_store *store, uint32_t vertex, int field)
{
	nv_assert(vertex < atomic_load(&store->vertices));
	return (_Atomic uint64_t *) nv_array_entry(&store->map, vertex) + field;
}

/*
 * The next sequence number.  Those whose tag would be 0 are left out, so that
 * no edge word is 0.
 */
static inline uint64_t
nv_next_sequence(nv_store *store)
{
	uint64_t sequence;

	do
		sequence = atomic_fetch_add(&store->sequence, 1) + 1;
	while ((sequence & NV_TAG_MASK) == 0);
	nv_assert(sequence <= NV_SEQUENCE_MAX);
	return sequence;
}

/*
 * For tests that repeat a run to the last detail: caches place pages by the
 * numbers of their files.  Nobody has a store open.
 */
extern void nv_store_number_files(uint32_t first);

/* Of the codes in use; inside an epoch, the gate or a checkpoint. */
static inline nv_array *
nv_store_codes(const nv_store *store)
{
	return &atomic_load(&store->coding)->codes;
}

/* Nothing is published from here on; why may be NULL. */
extern void nv_store_fail(nv_store *store, const nv_error *why);
/* NV_OK, or the error of a store that has failed. */
extern nv_status nv_store_check(nv_store *store, nv_error *err);
/* Touches the segment of one field of a map entry; the gate is held. */
extern nv_status nv_store_touch_map(nv_store *store, uint32_t vertex, int field,
									nv_error *err);
extern nv_status nv_check_params(const nv_store_params *params,
								 nv_status status, nv_error *err);

#endif
