/*
 * vectors.h
 *		Files of vectors as benchmarks exchange them, read and written row by
 *		row in constant memory.
 *
 *	.fbin .bin	uint32 rows, uint32 dim, rows * dim float32 (.bin: the type
 *asked for) .u8bin		the same with uint8 .i8bin		the same with int8 .ibin
 *the same with uint32: numbers of rows .fvecs		each row: uint32 dim, dim
 *float32 .bvecs		each row: uint32 dim, dim uint8 .ivecs		each row:
 *uint32 dim, dim uint32 .hdf5 .h5	a dataset of rows x dim, "FILE.hdf5:NAME";
 *without a name "train" (ann-benchmarks has train, test, neighbors, distances);
 *read only
 *
 * All little-endian.  A file whose size is not what its head says is refused
 * when it is opened; the message names both sizes.
 */
#ifndef NAVIS_BENCH_VECTORS_H
#define NAVIS_BENCH_VECTORS_H

#include "navis/status.h"

typedef enum bench_element
{
	BENCH_FLOAT,
	BENCH_UINT8,
	BENCH_INT8,
	BENCH_UINT32
} bench_element;

/* "float", "uint8", "int8", "uint32"; false: none of them. */
extern bool bench_parse_element(const char *name, bench_element *element);
extern const char *bench_element_name(bench_element element);

typedef struct bench_rows
{
	uint64_t n;
	uint32_t dim;
	bench_element element;
	/* the rest belongs to vectors.c */
	char *path;
	int fd;
	uint64_t head;   /* bytes before the first row */
	uint32_t prefix; /* bytes before the values of each row */
	uint8_t *raw;    /* BENCH_READ_BYTES */
	void *hdf5;
} bench_rows;

/* bin: what a .bin file holds. */
extern nv_status bench_rows_open(const char *path, bench_element bin,
								 bench_rows **rows, nv_error *err);
extern void bench_rows_close(bench_rows *rows);

/*
 * Rows first .. first + n - 1, as float (8-bit values exactly) or, from files
 * of numbers, as uint32.  NV_EINVAL: beyond the end; NV_EIO, NV_ECORRUPT.
 */
extern nv_status bench_rows_read(bench_rows *rows, uint64_t first, uint64_t n,
								 float *out, nv_error *err);
extern nv_status bench_rows_read_ids(bench_rows *rows, uint64_t first,
									 uint64_t n, uint32_t *out, nv_error *err);

typedef struct bench_writer bench_writer;

/*
 * Begins a file whose name says the format.  It has another name until it is
 * whole: bench_writer_close renames it, bench_writer_abandon removes it.
 */
extern nv_status bench_writer_create(const char *path, bench_element bin,
									 uint32_t dim, bench_writer **writer,
									 nv_error *err);
/* NV_EINVAL: a value that the format cannot hold, or 2^32 rows. */
extern nv_status bench_writer_add(bench_writer *writer, const float *rows,
								  uint64_t n, nv_error *err);
extern nv_status bench_writer_add_ids(bench_writer *writer,
									  const uint32_t *rows, uint64_t n,
									  nv_error *err);
extern nv_status bench_writer_close(bench_writer *writer, nv_error *err);
extern void bench_writer_abandon(bench_writer *writer);

/*
 * Exact neighbours: uint32 queries, uint32 k, then queries * k numbers of rows
 * as uint32, nearest first, and queries * k distances as float32 (the layout
 * DiskANN uses).  Files without distances are read, too.
 */
typedef struct bench_truth
{
	uint32_t n, k;
	uint32_t *ids;
	float *distances; /* NULL: not in the file */
} bench_truth;

extern nv_status bench_truth_read(const char *path, bench_truth *truth,
								  nv_error *err);
extern nv_status bench_truth_write(const char *path, const bench_truth *truth,
								   nv_error *err);
extern void bench_truth_free(bench_truth *truth);

/* --- vectors_hdf5.c; in a build without libhdf5 opening says so --- */

extern nv_status bench_hdf5_open(bench_rows *rows, nv_error *err);
extern nv_status bench_hdf5_read(bench_rows *rows, uint64_t first, uint64_t n,
								 void *out, nv_error *err);
extern void bench_hdf5_close(bench_rows *rows);

#endif
