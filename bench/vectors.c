/*
 * vectors.c
 *		Files of vectors; see vectors.h.
 */
#include "vectors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util.h"

#define READ_BYTES (UINT64_C(1) << 20)
#define MAX_FILE_DIM (1 << 16) /* above: the head is no head */
#define SUFFIX ".part"

typedef enum file_layout
{
	LAYOUT_BIN, /* head, then rows */
	LAYOUT_VECS,
	LAYOUT_HDF5
} file_layout;

typedef struct format
{
	const char *suffix;
	file_layout layout;
	bench_element element;
} format;

static const format formats[] = {
	{".fbin", LAYOUT_BIN, BENCH_FLOAT},   {".u8bin", LAYOUT_BIN, BENCH_UINT8},
	{".i8bin", LAYOUT_BIN, BENCH_INT8},   {".ibin", LAYOUT_BIN, BENCH_UINT32},
	{".bin", LAYOUT_BIN, BENCH_FLOAT},    {".fvecs", LAYOUT_VECS, BENCH_FLOAT},
	{".bvecs", LAYOUT_VECS, BENCH_UINT8}, {".ivecs", LAYOUT_VECS, BENCH_UINT32},
	{".hdf5", LAYOUT_HDF5, BENCH_FLOAT},  {".h5", LAYOUT_HDF5, BENCH_FLOAT},
};

static const char *const element_names[] = {"float", "uint8", "int8", "uint32"};
static const uint32_t element_bytes[] = {4, 1, 1, 4};

bool
bench_parse_element(const char *name, bench_element *element)
{
	for (uint32_t i = 0; i < NV_LENGTH(element_names); i++)
		if (strcmp(name, element_names[i]) == 0)
		{
			*element = (bench_element) i;
			return true;
		}
	return false;
}

const char *
bench_element_name(bench_element element)
{
	return element_names[element];
}

/* The format that a name asks for, .bin with the element type given. */
static nv_status
find_format(const char *path, bench_element bin, format *out, nv_error *err)
{
	const char *slash = strrchr(path, '/');
	const char *dot = strrchr(slash != NULL ? slash : path, '.');

	for (uint32_t i = 0; dot != NULL && i < NV_LENGTH(formats); i++)
	{
		size_t len = strlen(formats[i].suffix);

		if (strncmp(dot, formats[i].suffix, len) != 0 ||
			!(dot[len] == '\0' ||
			  (dot[len] == ':' && formats[i].layout == LAYOUT_HDF5)))
			continue;
		*out = formats[i];
		if (strcmp(out->suffix, ".bin") == 0)
			out->element = bin;
		return NV_OK;
	}
	return nv_fail(err, NV_EINVAL, 0,
				   "\"%s\": unknown format, expected .fbin, .bin, .u8bin, "
				   ".i8bin, .ibin, .fvecs, .bvecs, .ivecs or .hdf5",
				   path);
}

static nv_status
io_failed(nv_error *err, const char *path, const char *what)
{
	int error = errno;

	return nv_fail(err, error == ENOENT ? NV_ENOENT : NV_EIO, error,
				   "could not %s \"%s\": %s", what, path, strerror(error));
}

static nv_status
read_fully(int fd, const char *path, void *out, size_t len, uint64_t offset,
		   nv_error *err)
{
	for (size_t done = 0; done < len;)
	{
		ssize_t n =
			pread(fd, (char *) out + done, len - done, (off_t) (offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return io_failed(err, path, "read");
		if (n == 0)
			return nv_fail(err, NV_ECORRUPT, 0,
						   "\"%s\" ends at byte %llu, more was expected", path,
						   (unsigned long long) (offset + done));
		done += (size_t) n;
	}
	return NV_OK;
}

/* --- Opening --- */

static nv_status
check_dim(const char *path, uint32_t dim, nv_error *err)
{
	if (dim == 0 || dim > MAX_FILE_DIM)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" says it has %u dimensions, expected 1 to %d",
					   path, dim, MAX_FILE_DIM);
	return NV_OK;
}

static uint64_t
row_bytes(const bench_rows *r)
{
	return r->prefix + (uint64_t) r->dim * element_bytes[r->element];
}

static nv_status
open_bin(bench_rows *r, uint64_t size, nv_error *err)
{
	uint32_t head[2];
	uint64_t expected;
	nv_status status;

	if (size < sizeof(head))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" has %llu bytes, expected a head of 8", r->path,
					   (unsigned long long) size);
	status = read_fully(r->fd, r->path, head, sizeof(head), 0, err);
	if (status != NV_OK)
		return status;
	r->n = head[0];
	r->dim = head[1];
	r->head = sizeof(head);
	status = check_dim(r->path, r->dim, err);
	if (status != NV_OK)
		return status;
	expected = r->head + r->n * row_bytes(r);
	if (size != expected)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" has %llu bytes, expected %llu for %llu rows of "
					   "%u %s values",
					   r->path, (unsigned long long) size,
					   (unsigned long long) expected, (unsigned long long) r->n,
					   r->dim, element_names[r->element]);
	return NV_OK;
}

static nv_status
open_vecs(bench_rows *r, uint64_t size, nv_error *err)
{
	nv_status status;

	if (size < sizeof(r->dim))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" has %llu bytes, expected a row at least",
					   r->path, (unsigned long long) size);
	r->prefix = sizeof(r->dim);
	status = read_fully(r->fd, r->path, &r->dim, sizeof(r->dim), 0, err);
	if (status == NV_OK)
		status = check_dim(r->path, r->dim, err);
	if (status != NV_OK)
		return status;
	r->n = size / row_bytes(r);
	if (size % row_bytes(r) != 0)
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" has %llu bytes, expected a multiple of %llu "
					   "(rows of %u %s values)",
					   r->path, (unsigned long long) size,
					   (unsigned long long) row_bytes(r), r->dim,
					   element_names[r->element]);
	return NV_OK;
}

static nv_status
open_rows(bench_rows *r, file_layout layout, nv_error *err)
{
	struct stat st;

	if (layout == LAYOUT_HDF5)
		return bench_hdf5_open(r, err);
	r->fd = open(r->path, O_RDONLY | O_CLOEXEC);
	if (r->fd < 0)
		return io_failed(err, r->path, "open");
	if (fstat(r->fd, &st) != 0)
		return io_failed(err, r->path, "look at");
	return layout == LAYOUT_BIN ? open_bin(r, (uint64_t) st.st_size, err)
								: open_vecs(r, (uint64_t) st.st_size, err);
}

nv_status
bench_rows_open(const char *path, bench_element bin, bench_rows **rows,
				nv_error *err)
{
	bench_rows *r;
	format f;
	nv_status status = find_format(path, bin, &f, err);

	if (status != NV_OK)
		return status;
	r = nv_alloc(sizeof(*r));
	if (r == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to read \"%s\"", path);
	r->fd = -1;
	r->element = f.element;
	r->path = strdup(path);
	r->raw = nv_alloc(READ_BYTES);
	status = r->path != NULL && r->raw != NULL
				 ? open_rows(r, f.layout, err)
				 : nv_fail(err, NV_ENOMEM, 0, "no memory to read \"%s\"", path);
	if (status == NV_OK && row_bytes(r) > READ_BYTES)
		status = nv_fail(err, NV_EINVAL, 0, "\"%s\": rows of %llu bytes", path,
						 (unsigned long long) row_bytes(r));
	if (status != NV_OK)
	{
		bench_rows_close(r);
		return status;
	}
	*rows = r;
	return NV_OK;
}

void
bench_rows_close(bench_rows *r)
{
	if (r == NULL)
		return;
	if (r->hdf5 != NULL)
		bench_hdf5_close(r);
	if (r->fd >= 0)
		close(r->fd);
	free(r->raw);
	free(r->path);
	free(r);
}

/* --- Reading --- */

/* One row's values, 4 bytes each in out whatever the file has. */
static void
widen(const bench_rows *r, const uint8_t *values, uint32_t *out)
{
	float *as_float = (float *) out;

	switch (r->element)
	{
		case BENCH_FLOAT:
		case BENCH_UINT32:
			memcpy(out, values, (size_t) r->dim * 4);
			break;
		case BENCH_UINT8:
			for (uint32_t i = 0; i < r->dim; i++)
				as_float[i] = values[i];
			break;
		case BENCH_INT8:
			for (uint32_t i = 0; i < r->dim; i++)
				as_float[i] = (int8_t) values[i];
			break;
	}
}

/* Rows that raw holds are next to each other in the file. */
static nv_status
take_rows(bench_rows *r, uint64_t first, uint64_t n, uint32_t *out,
		  nv_error *err)
{
	uint64_t each = row_bytes(r);
	nv_status status = read_fully(r->fd, r->path, r->raw, n * each,
								  r->head + first * each, err);

	for (uint64_t i = 0; i < n && status == NV_OK; i++)
	{
		const uint8_t *row = r->raw + i * each;
		uint32_t dim = r->dim;

		if (r->prefix != 0)
			memcpy(&dim, row, sizeof(dim));
		if (dim != r->dim)
			status =
				nv_fail(err, NV_ECORRUPT, 0,
						"row %llu of \"%s\" has %u dimensions, the first "
						"one has %u",
						(unsigned long long) (first + i), r->path, dim, r->dim);
		else
			widen(r, row + r->prefix, out + i * dim);
	}
	return status;
}

static nv_status
read_rows(bench_rows *r, uint64_t first, uint64_t n, uint32_t *out,
		  nv_error *err)
{
	uint64_t at_once = READ_BYTES / row_bytes(r);
	nv_status status = NV_OK;

	if (first > r->n || n > r->n - first)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" has %llu rows, asked for %llu from row %llu",
					   r->path, (unsigned long long) r->n,
					   (unsigned long long) n, (unsigned long long) first);
	if (r->hdf5 != NULL)
		return bench_hdf5_read(r, first, n, out, err);
	while (n > 0 && status == NV_OK)
	{
		uint64_t part = NV_MIN(n, at_once);

		status = take_rows(r, first, part, out, err);
		out += part * r->dim;
		first += part;
		n -= part;
	}
	return status;
}

nv_status
bench_rows_read(bench_rows *r, uint64_t first, uint64_t n, float *out,
				nv_error *err)
{
	if (r->element == BENCH_UINT32)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" holds numbers of rows, not vectors", r->path);
	return read_rows(r, first, n, (uint32_t *) out, err);
}

nv_status
bench_rows_read_ids(bench_rows *r, uint64_t first, uint64_t n, uint32_t *out,
					nv_error *err)
{
	if (r->element != BENCH_UINT32)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" holds vectors, not numbers of rows", r->path);
	return read_rows(r, first, n, out, err);
}

/* --- Writing --- */

struct bench_writer
{
	FILE *file;
	char *path, *part;
	file_layout layout;
	bench_element element;
	uint32_t dim;
	uint64_t n;
	uint8_t *row;
};

static void
free_writer(bench_writer *w)
{
	if (w->file != NULL)
		fclose(w->file);
	free(w->path);
	free(w->part);
	free(w->row);
	free(w);
}

static nv_status
begin_file(bench_writer *w, nv_error *err)
{
	uint32_t head[2] = {0, w->dim};

	w->file = fopen(w->part, "wb");
	if (w->file == NULL)
		return io_failed(err, w->part, "create");
	if (w->layout == LAYOUT_BIN && fwrite(head, sizeof(head), 1, w->file) != 1)
		return io_failed(err, w->part, "write");
	return NV_OK;
}

nv_status
bench_writer_create(const char *path, bench_element bin, uint32_t dim,
					bench_writer **writer, nv_error *err)
{
	bench_writer *w;
	format f;
	nv_status status = find_format(path, bin, &f, err);

	if (status != NV_OK)
		return status;
	if (f.layout == LAYOUT_HDF5)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\": HDF5 is read, not written",
					   path);
	w = nv_alloc(sizeof(*w));
	if (w == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to write \"%s\"", path);
	w->layout = f.layout;
	w->element = f.element;
	w->dim = dim;
	w->path = strdup(path);
	w->part = nv_alloc(strlen(path) + sizeof(SUFFIX));
	w->row = nv_alloc_array(dim + 1, 4);
	if (w->path != NULL && w->part != NULL && w->row != NULL)
	{
		sprintf(w->part, "%s%s", path, SUFFIX);
		status = begin_file(w, err);
	}
	else
		status = nv_fail(err, NV_ENOMEM, 0, "no memory to write \"%s\"", path);
	if (status != NV_OK)
	{
		bench_writer_abandon(w);
		return status;
	}
	*writer = w;
	return NV_OK;
}

/* Values of one row as the file has them. */
static nv_status
narrow(bench_writer *w, const float *row, uint8_t *out, nv_error *err)
{
	float low = w->element == BENCH_INT8 ? -128 : 0;
	float high = w->element == BENCH_INT8 ? 127 : 255;

	if (w->element == BENCH_FLOAT)
	{
		memcpy(out, row, (size_t) w->dim * 4);
		return NV_OK;
	}
	for (uint32_t i = 0; i < w->dim; i++)
	{
		if (!(row[i] >= low && row[i] <= high) || row[i] != floorf(row[i]))
			return nv_fail(err, NV_EINVAL, 0,
						   "value %g of row %llu does not fit %s, expected a "
						   "whole number from %g to %g",
						   (double) row[i], (unsigned long long) w->n,
						   element_names[w->element], (double) low,
						   (double) high);
		out[i] = (uint8_t) (int) row[i];
	}
	return NV_OK;
}

/* The values are in w->row behind its dimensions. */
static nv_status
put_row(bench_writer *w, nv_error *err)
{
	size_t prefix = w->layout == LAYOUT_VECS ? 0 : 4;
	size_t bytes = 4 - prefix + (size_t) w->dim * element_bytes[w->element];

	if (w->n == UINT32_MAX)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\" would have 2^32 rows",
					   w->path);
	memcpy(w->row, &w->dim, 4);
	if (fwrite(w->row + prefix, bytes, 1, w->file) != 1)
		return io_failed(err, w->part, "write");
	w->n++;
	return NV_OK;
}

nv_status
bench_writer_add(bench_writer *w, const float *rows, uint64_t n, nv_error *err)
{
	nv_status status = NV_OK;

	if (w->element == BENCH_UINT32)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" is for numbers of rows, not vectors", w->path);
	for (uint64_t i = 0; i < n && status == NV_OK; i++)
	{
		status = narrow(w, rows + i * w->dim, w->row + 4, err);
		if (status == NV_OK)
			status = put_row(w, err);
	}
	return status;
}

nv_status
bench_writer_add_ids(bench_writer *w, const uint32_t *rows, uint64_t n,
					 nv_error *err)
{
	nv_status status = NV_OK;

	if (w->element != BENCH_UINT32)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" is for vectors, not numbers of rows", w->path);
	for (uint64_t i = 0; i < n && status == NV_OK; i++)
	{
		memcpy(w->row + 4, rows + i * w->dim, (size_t) w->dim * 4);
		status = put_row(w, err);
	}
	return status;
}

static nv_status
finish_file(bench_writer *w, nv_error *err)
{
	uint32_t n = (uint32_t) w->n;
	bool ok = true;
	FILE *file = w->file;

	if (w->layout == LAYOUT_BIN)
		ok = fseek(file, 0, SEEK_SET) == 0 &&
			 fwrite(&n, sizeof(n), 1, file) == 1;
	ok = ok && fflush(file) == 0;
	if (!ok)
		return io_failed(err, w->part, "write");
	w->file = NULL;
	if (fclose(file) != 0)
		return io_failed(err, w->part, "write");
	if (rename(w->part, w->path) != 0)
		return io_failed(err, w->part, "rename");
	return NV_OK;
}

nv_status
bench_writer_close(bench_writer *w, nv_error *err)
{
	nv_status status = finish_file(w, err);

	if (status != NV_OK)
		bench_writer_abandon(w);
	else
		free_writer(w);
	return status;
}

void
bench_writer_abandon(bench_writer *w)
{
	if (w->part != NULL)
		unlink(w->part);
	free_writer(w);
}

/* --- Exact neighbours --- */

static nv_status
read_truth(FILE *f, const char *path, bench_truth *t, nv_error *err)
{
	uint32_t head[2];
	uint64_t values, ids, whole, size;
	struct stat st;

	if (fstat(fileno(f), &st) != 0 || fread(head, sizeof(head), 1, f) != 1)
		return nv_fail(err, NV_ECORRUPT, 0, "\"%s\" has no head of 8 bytes",
					   path);
	size = (uint64_t) st.st_size;
	values = (uint64_t) head[0] * head[1];
	ids = sizeof(head) + values * 4;
	whole = ids + values * 4;
	if (values == 0 || (size != ids && size != whole))
		return nv_fail(err, NV_ECORRUPT, 0,
					   "\"%s\" has %llu bytes, expected %llu or %llu for %u "
					   "neighbours of %u queries",
					   path, (unsigned long long) size,
					   (unsigned long long) ids, (unsigned long long) whole,
					   head[1], head[0]);
	t->n = head[0];
	t->k = head[1];
	t->ids = nv_alloc_array(values, 4);
	t->distances = size == whole ? nv_alloc_array(values, 4) : NULL;
	if (t->ids == NULL || (size == whole && t->distances == NULL))
		return nv_fail(err, NV_ENOMEM, 0, "no memory to read \"%s\"", path);
	if (fread(t->ids, 4, values, f) != values ||
		(t->distances != NULL && fread(t->distances, 4, values, f) != values))
		return io_failed(err, path, "read");
	return NV_OK;
}

nv_status
bench_truth_read(const char *path, bench_truth *truth, nv_error *err)
{
	FILE *f = fopen(path, "rb");
	nv_status status;

	memset(truth, 0, sizeof(*truth));
	if (f == NULL)
		return io_failed(err, path, "open");
	status = read_truth(f, path, truth, err);
	fclose(f);
	if (status != NV_OK)
		bench_truth_free(truth);
	return status;
}

nv_status
bench_truth_write(const char *path, const bench_truth *t, nv_error *err)
{
	uint64_t values = (uint64_t) t->n * t->k;
	uint32_t head[2] = {t->n, t->k};
	FILE *f = fopen(path, "wb");
	bool ok;

	if (f == NULL)
		return io_failed(err, path, "create");
	ok = fwrite(head, sizeof(head), 1, f) == 1 &&
		 fwrite(t->ids, 4, values, f) == values &&
		 (t->distances == NULL || fwrite(t->distances, 4, values, f) == values);
	ok &= fclose(f) == 0;
	return ok ? NV_OK : io_failed(err, path, "write");
}

void
bench_truth_free(bench_truth *truth)
{
	free(truth->ids);
	free(truth->distances);
	memset(truth, 0, sizeof(*truth));
}
