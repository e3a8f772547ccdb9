/*
 * page_writer.h
 *		The background writer: edge pages leave RMW without an insert thread
 *		waiting for the disk.
 *
 * One thread serves all stores that were given to it.  Pages that writers let
 * go of wait in the list of their store; from NV_RMW_MIN_SEALED of them on, or
 * when a checkpoint wants them, they are written, in batches of the oldest that
 * are sorted so that neighbours in the file become one write.  Until then
 * a page can be taken back and changed again, which saves a write.
 *
 * Source: navis-system.txt, "I/O"; design.md section 4, "I/O".
 */
#ifndef NAVIS_PAGE_WRITER_H
#define NAVIS_PAGE_WRITER_H

#include "store.h"

typedef struct nv_page_writer nv_page_writer;

extern nv_status nv_page_writer_create(nv_io_method method,
									   nv_page_writer **writer, nv_error *err);
/* All stores are closed. */
extern void nv_page_writer_destroy(nv_page_writer *writer);

/*
 * The store's pages are written by it from now on, until the store is closed.
 * Again: does nothing.
 */
extern void nv_store_use_page_writer(nv_store *store, nv_page_writer *writer);

/* For the store: pages wait that should be written; it is being closed. */
extern void nv_page_writer_wake(nv_page_writer *writer);
/* For a store that has failed: until no write of its pages is under way. */
extern void nv_page_writer_await(nv_page_writer *writer, const nv_store *store);
extern void nv_page_writer_detach(nv_page_writer *writer, nv_store *store);

#endif
