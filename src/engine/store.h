/*
 * store.h
 *		The sidecar of one index: edge file, vector file, state file, and the
 *		checkpoint protocol and concurrency scheme that keep them consistent.
 *
 * Files of a sidecar directory:
 *
 *	edges	4 KiB pages of NV_PAGE_UNITS units of NV_UNIT bytes.  A slot is
 *			{vertex 32, degree 16, sequence 48, CRC-32C 32} little-endian, 16
 *			bytes, then degree ids of 32 bits; it never spans pages.  The CRC
 *			covers the slot with its own field taken as 0.  No page header.
 *	vectors	stored vectors as the table has them, no header, record r at
 *			nv_record_offset(): whole 512-byte sectors for records of 512 bytes
 *			and more, several records a sector below.
 *	state	two root blocks, then 64 KiB segments, copy on write: map, element
 *			map, codes, blobs, and the segment table.
 *
 * A map entry has 24 bytes: edge word, vector record number, vector hash.
 * Edge word: unit address (38 bits: page * 64 + unit), tag (25 bits: low bits
 * of the slot's sequence), linked bit (1).  0 means no list.  An element entry
 * has 8 bytes: complement of the vertex (32), generation (32).
 *
 * Locking order (design, "Concurrency" 6): gate shared -> one vertex stripe ->
 * allocator -> RMW -> cache -> retire list.  Nothing is held across I/O.
 *
 * Source: design.md section 4, "Checkpoint protocol" and "Concurrency".
 */
#ifndef NAVIS_STORE_H
#define NAVIS_STORE_H

#include "cache.h"
#include "io.h"
#include "navis/request.h"
#include "vamana.h"

#define NV_FORMAT_VERSION 1
#define NV_SECTOR 512
#define NV_SEGMENT 65536
#define NV_NO_VERTEX UINT32_MAX
#define NV_MAX_VERTICES (UINT32_MAX - 1)
#define NV_MAX_ELEMENTS (UINT32_MAX - 1)
#define NV_EPOCH_SLOTS 8192 /* a search takes two */

#define NV_LINKED UINT64_C(1) /* in the edge word */

typedef struct nv_store nv_store;
typedef struct nv_writer nv_writer;

/* What never changes in a sidecar's life; part of every root. */
typedef struct nv_store_params
{
	nv_key key;
	uint32_t relfilenode; /* only to find the owner */
	uint32_t index_oid;
	uint32_t dim;          /* of stored vectors */
	uint32_t vector_bytes; /* of a stored vector: dim * 4 for float4 */
	uint32_t max_degree;   /* hard cap R */
	uint32_t code_stride;  /* bytes between codes, multiple of 4; 0: no codes */
} nv_store_params;

/* Blobs: replaced as a whole, meaning known only to the caller. */
typedef enum nv_blob
{
	NV_BLOB_META,
	NV_BLOB_CODEBOOK,
	NV_BLOB_ENTRANCE,
	NV_BLOB_CALIBRATION,
	NV_BLOBS
} nv_blob;

/*
 * Creates the files in an existing empty directory; nothing is published
 * before the first checkpoint.  cache may be shared by many stores and must
 * outlive them; NULL: none.
 */
extern nv_status nv_store_create(const char *dir, const nv_store_params *params,
								 nv_cache *cache, nv_store **store,
								 nv_error *err);

/*
 * Opens at the newest valid root.  NV_ENOENT: no directory, file or root;
 * NV_EVERSION; NV_EFOREIGN: root of another key; NV_ECORRUPT: checksum or
 * bounds (of every segment: state is read and verified as a whole).
 */
extern nv_status nv_store_open(const char *dir, const nv_key *key,
							   nv_cache *cache, nv_store **store,
							   nv_error *err);

/*
 * Its files are about to be opened anew at their last root while readers are
 * still inside: on return nothing of it is written any more, nor ever will be.
 * What they read from then on may be overwritten under them.  No writer or
 * checkpoint may be active.
 */
extern void nv_store_give_up(nv_store *store);

/* No reader, writer or checkpoint may be active.  Publishes nothing. */
extern void nv_store_close(nv_store *store);

extern const nv_store_params *nv_store_get_params(const nv_store *store);

/* --- Reading --- */

extern uint32_t nv_store_vertices(const nv_store *store); /* ids 0 .. n - 1 */
extern uint64_t nv_store_elements(const nv_store *store); /* ids 0 .. n - 1 */

/* Map entry of a vertex; the edge word is loaded with acquire. */
extern uint64_t nv_store_edge_word(const nv_store *store, uint32_t vertex);
extern uint64_t nv_store_vector_hash(const nv_store *store, uint32_t vertex);

/*
 * Codes of all vertices, and the codebook they were made with.  They may be
 * replaced by others (below, "Replacing all codes"): whoever asks for them
 * inside an epoch may use what he got until he leaves it, and does not mix it
 * with what he gets later.  Without a codebook (nv_store_use_pq) its pq is
 * NULL.
 */
typedef struct nv_coding nv_coding;

extern const nv_coding *nv_store_coding(const nv_store *store);
extern const nv_pq *nv_coding_pq(const nv_coding *coding);
extern const uint8_t *nv_coding_code(const nv_coding *coding, uint32_t vertex);
/* Of the codes in use; for whoever knows that nobody replaces them. */
extern const uint8_t *nv_store_code(const nv_store *store, uint32_t vertex);
/*
 * The codebook of a store that was opened or filled, before others use it; it
 * stays the caller's, who frees it after the store is closed.
 */
extern void nv_store_use_pq(nv_store *store, const nv_pq *pq);

/* Element entry: vertex (NV_NO_VERTEX: none) and generation, read as one. */
extern uint32_t nv_store_element(const nv_store *store, uint32_t element,
								 uint32_t *generation);

static inline uint64_t
nv_word_page(uint64_t word)
{
	return word >> (1 + 25 + 6);
}

/*
 * Epochs: a query (or insert) takes a slot before it loads its first edge
 * word and gives it back after its last read is drained.  -1: all taken.
 */
extern int nv_store_enter(nv_store *store);
extern void nv_store_leave(nv_store *store, int slot);

/*
 * Whoever was inside at the mark has left once it has passed; who enters later
 * sees all that was done before the mark.
 */
extern uint64_t nv_store_mark(nv_store *store);
extern bool nv_store_passed(nv_store *store, uint64_t mark);

typedef enum nv_page_source
{
	NV_PAGE_RMW,
	NV_PAGE_CACHE,
	NV_PAGE_MISS /* read it from nv_store_edge_file at page * NV_PAGE */
} nv_page_source;

/* Looks a page up: RMW, then NAVIS-Cache; on a miss *ticket is for the fill. */
extern nv_page_source nv_store_get_page(nv_store *store, uint64_t page,
										nv_cache_user user, uint8_t *out,
										uint64_t *ticket);
extern void nv_store_fill(nv_store *store, uint64_t page, uint64_t ticket,
						  const uint8_t *bytes);
extern nv_file *nv_store_edge_file(nv_store *store);
extern nv_file *nv_store_vector_file(nv_store *store);

/*
 * The slot that an edge word of this vertex points to, in a copy of its page:
 * verified (id, tag, degree, bounds, CRC).  Returns the list and its degree;
 * NULL when the page does not hold it (word changed, or damage).  The list is
 * not aligned to more than 4 bytes, and the page must be 4-byte aligned.
 */
extern const uint32_t *nv_slot_find(const nv_store *store, const uint8_t *page,
									uint64_t word, uint32_t vertex,
									uint32_t *degree);

/* Lists on a page that the map names. */
typedef struct nv_page_lists
{
	uint32_t n;
	uint32_t units; /* that they take */
	uint32_t vertex[NV_PAGE_UNITS];
	uint64_t word[NV_PAGE_UNITS];
} nv_page_lists;

/*
 * Looks through a copy of a page.  What it tells is a moment's truth: verify
 * with nv_slot_find, replace with nv_store_relink.
 */
extern void nv_store_page_lists(nv_store *store, uint64_t page,
								const uint8_t *bytes, nv_page_lists *lists);
/* Some writer is still adding lists to the page, or it is not yet written. */
extern bool nv_store_page_open(nv_store *store, uint64_t page);

/*
 * Where a vertex's vector is: an aligned extent to read (offset, len), and the
 * position of the record in it.  The caller verifies nv_vector_hash().
 */
extern void nv_store_vector_extent(const nv_store *store, uint32_t vertex,
								   uint64_t *offset, uint32_t *len,
								   uint32_t *skip);
/* Upper bound of len over all vertices. */
extern uint32_t nv_store_vector_extent_max(const nv_store *store);

/*
 * A vector by way of the cache, where edge pages leave room for it.  True: out
 * has its vector_bytes bytes.  False: what is to be read, at most
 * nv_store_vector_read_max bytes, and then handed to nv_store_fill_vector.
 */
#define NV_VECTOR_PAGES 3 /* a vector on more pages is not kept */

typedef struct nv_vector_place
{
	uint64_t offset;
	uint32_t len, skip;
	uint32_t missing; /* bits: pages of it that the cache may take */
	uint64_t ticket[NV_VECTOR_PAGES];
} nv_vector_place;

extern bool nv_store_get_vector(nv_store *store, uint32_t vertex, uint8_t *out,
								nv_vector_place *place);
extern void nv_store_fill_vector(nv_store *store, const nv_vector_place *place,
								 const uint8_t *bytes);
extern uint32_t nv_store_vector_read_max(const nv_store *store);

/*
 * The last set or loaded value of a blob, valid until it is set again; NULL and
 * 0 when there is none.
 */
extern const uint8_t *nv_store_get_blob(nv_store *store, nv_blob which,
										size_t *len);

/*
 * --- Bulk building: one thread, before the first checkpoint ---------------
 *
 * When writing fails or is cancelled half-way, the store can only be closed.
 */

/*
 * Vector file: n vectors of vector_bytes bytes, stride bytes apart, appended
 * to those already given: vertex ids follow the order.  Their hashes with them.
 */
extern nv_status nv_store_bulk_vectors(nv_store *store, const void *vectors,
									   size_t stride, const uint64_t *hashes,
									   uint32_t n, nv_error *err);
/*
 * For a store created with code_stride 0: vectors are written before codes are
 * trained, and only training tells their size.
 */
extern nv_status nv_store_set_code_stride(nv_store *store, uint32_t stride,
										  nv_error *err);
/* Codes of all vertices (n * code_stride bytes; copied). */
extern nv_status nv_store_bulk_codes(nv_store *store, const uint8_t *codes,
									 nv_error *err);
/* All lists, each on its page, all linked; done counts pages (may be NULL). */
extern nv_status nv_store_bulk_edges(nv_store *store, const nv_graph *graph,
									 const uint32_t *page, uint32_t pages,
									 nv_cancel_fn cancel, void *cancel_arg,
									 nv_error *err);

/* --- Changing: any thread --- */

/*
 * Element map: vertex NV_NO_VERTEX takes the element out.  Extends the map as
 * needed.  Takes the gate shared.
 */
extern nv_status nv_store_set_element(nv_store *store, uint32_t element,
									  uint32_t vertex, uint32_t generation,
									  nv_error *err);
extern nv_status nv_store_set_blob(nv_store *store, nv_blob which,
								   const uint8_t *bytes, size_t len,
								   nv_error *err);

/*
 * Space on disk for so many vertices that will be added: have_room tells from
 * memory, make_room extends the files (NV_ENOSPC: nothing is harmed).
 */
extern bool nv_store_have_room(nv_store *store, uint64_t rows);
extern nv_status nv_store_make_room(nv_store *store, uint64_t rows,
									nv_error *err);
/*
 * What so many rows do not need is no longer counted on (have_room), and goes
 * back to the file system at the end.  Between begin and end nobody makes room;
 * trim itself only looks at memory: promises may be kept from being made
 * meanwhile.
 */
extern void nv_store_trim_begin(nv_store *store);
extern void nv_store_trim(nv_store *store, uint64_t rows);
extern void nv_store_trim_end(nv_store *store);

/* One a linking thread: owns its open page and a few vector records. */
extern nv_status nv_writer_create(nv_store *store, nv_writer **writer,
								  nv_error *err);
extern void nv_writer_destroy(nv_writer *writer);
/* Asked while it waits for pages to be written; true: NV_ECANCELLED. */
extern void nv_writer_set_cancel(nv_writer *writer, nv_cancel_fn cancel,
								 void *arg);

/*
 * Replaces the list of a vertex out of place: stripe lock, recheck that the
 * edge word still is `expected`, build the slot in the writer's open page
 * (RMW), flip, unlock.  NV_EBUSY: the word changed, reload and retry.  ids are
 * unique, below nv_store_vertices, never the vertex; degree <= max_degree.
 */
extern nv_status nv_store_relink(nv_writer *writer, uint32_t vertex,
								 uint64_t expected, const uint32_t *ids,
								 uint32_t degree, nv_error *err);

/*
 * A new vertex, after the first checkpoint: its vector is in the file when
 * this returns (not yet durable), hash and code are entered; it has no list
 * (edge word 0) and is not linked.  The first list is written by
 * nv_store_relink with expected = 0.  A vertex that has no list when the store
 * is opened again is as if it had never been: its id is given out anew.
 * nv_store_vertices counts ids that were set aside, too.
 */
extern nv_status nv_store_add_vertex(nv_writer *writer, const void *vector,
									 uint64_t hash, const uint8_t *code,
									 uint32_t *vertex, nv_error *err);

/*
 * The same in two steps, for whoever has something to do while the vector is
 * written: what is to be written, from memory of the writer's, and then, when
 * it is in the file, the vertex.  Without the second step, or when the write
 * fails, nothing has happened.
 */
typedef struct nv_vector_write
{
	nv_file *file;
	const uint8_t *buf;
	uint32_t len;
	uint64_t offset;
} nv_vector_write;

extern nv_status nv_store_place_vector(nv_writer *writer, const void *vector,
									   nv_vector_write *write, nv_error *err);
extern nv_status nv_store_enter_vertex(nv_writer *writer, uint64_t hash,
									   const uint8_t *code, uint32_t *vertex,
									   nv_error *err);

/*
 * The same while codes may be replaced: what they were made by, as
 * nv_store_codings said inside the epoch that the caller is in.  NV_EBUSY: not
 * so any more, encode again.
 */
typedef struct nv_vertex_codes
{
	const nv_coding *coding, *next; /* next: NULL, nothing is in the making */
	const uint8_t *code, *next_code;
} nv_vertex_codes;

extern void nv_store_codings(const nv_store *store, nv_vertex_codes *codes);
extern nv_status nv_store_enter_coded(nv_writer *writer, uint64_t hash,
									  const nv_vertex_codes *codes,
									  uint32_t *vertex, nv_error *err);

/*
 * The vertex has its list and all its back edges: sets the linked bit, which
 * relinking keeps.  NV_EINVAL: it has no list.
 */
extern nv_status nv_store_set_linked(nv_store *store, uint32_t vertex,
									 nv_error *err);

/*
 * Frees a vertex whose list no other list names, and which no reader inside an
 * epoch can know (rule 12): its edge word becomes 0, and its id, with the
 * record in the vector file, is given out again after the next root without it
 * is published.  Nobody changes its list meanwhile but to move it.
 */
extern nv_status nv_store_free_vertex(nv_store *store, uint32_t vertex,
									  nv_error *err);

/*
 * Writes out sealed pages (merging neighbours), replaces cached copies and
 * takes them out of RMW.  Called by whoever has time; checkpoints call it.
 */
extern nv_status nv_store_write_back(nv_store *store, nv_error *err);

/* --- Replacing all codes (coding.c) --- */

/*
 * One at a time a store, by one thread: begin; codes for every vertex there is
 * then (those that come later bring theirs); switch, or abort.  Afterwards,
 * when all who were inside an epoch have left it, free.  Nothing of it is in
 * any root before the switch; codes and codebook of a root always fit.  The
 * codes need as much memory as those in use, and are code_stride bytes apart;
 * pq must last until free.
 */
extern nv_status nv_store_recode_begin(nv_store *store, const nv_pq *pq,
									   nv_error *err);
/*
 * Codes, code_stride bytes apart, of n vertices whose vectors had these hashes
 * when they were read; what has got another vector meanwhile has its code.
 */
extern void nv_store_recode(nv_store *store, const uint32_t *vertex,
							const uint64_t *hash, const uint8_t *codes,
							uint32_t n);
/*
 * The new codes are those in use, and these the blobs that belong to them; the
 * one of calibration is gone.  Waits for a checkpoint that runs.
 */
extern nv_status nv_store_recode_switch(nv_store *store,
										const uint8_t *codebook,
										size_t codebook_len,
										const uint8_t *meta, size_t meta_len,
										nv_error *err);
/*
 * The codes in use of such vertices, out of the way of who enters new ones;
 * those of vertices with another vector are left as they are.
 */
extern void nv_store_recode_old(nv_store *store, const uint32_t *vertex,
								const uint64_t *hash, uint8_t *codes,
								uint32_t n);
extern void nv_store_recode_abort(nv_store *store);
extern void nv_store_recode_free(nv_store *store);

/* --- Checkpoint --- */

typedef struct nv_checkpoint_hooks
{
	void *arg;
	/*
	 * Called inside the exclusive gate, well under a millisecond: returns J,
	 * the newest journal LSN handed over to the engine.  May read the store,
	 * must not change it.
	 */
	uint64_t (*cut)(void *arg);
	/* XLogFlush(J) by whoever may do that; NV_OK when durable. */
	nv_status (*flush_wal)(void *arg, uint64_t lsn, nv_error *err);
} nv_checkpoint_hooks;

/*
 * Publishes one checkpoint; one at a time a store (others wait).  After a
 * failure nothing is published, and the store must be closed and opened again
 * (a failed sync is never retried).
 */
extern nv_status nv_store_checkpoint(nv_store *store,
									 const nv_checkpoint_hooks *hooks,
									 nv_error *err);

typedef struct nv_store_stats
{
	uint64_t published_sequence; /* S of the last root, 0 if none */
	uint64_t published_lsn;      /* J of the last root */
	uint64_t edge_pages, free_pages, live_slots, retired_slots;
	uint64_t edge_bytes, vector_bytes, state_bytes; /* sizes of the files */
	uint64_t memory_map, memory_elements, memory_codes, memory_other;
	uint64_t rmw_pages;
	uint64_t rmw_hits[NV_CACHE_USERS];   /* pages found there */
	uint64_t pages_written, page_writes; /* edge pages, in so many writes */
	uint64_t freed_vertices;             /* that wait for the next root */
	uint64_t pages_reopened; /* changed again before they were written */
	uint64_t write_waits;    /* of writers for the background writer */
	bool dirty;              /* something changed since the last cut */
	bool failed;             /* it refuses changes and must be opened again */
} nv_store_stats;

/* Slots in the edge file, and those of them that the map names no more. */
extern void nv_store_count_slots(nv_store *store, uint64_t *all,
								 uint64_t *retired);
extern void nv_store_get_stats(nv_store *store, nv_store_stats *stats);

#endif
