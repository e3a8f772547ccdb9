/*
 * vectors_hdf5.c
 *		Datasets of HDF5 files, as ann-benchmarks publishes them; see vectors.h.
 *
 * Built with libhdf5 where the Makefile finds it (HAVE_HDF5).
 */
#include "vectors.h"

#include "util.h"

#ifndef HAVE_HDF5

nv_status
bench_hdf5_open(bench_rows *rows, nv_error *err)
{
	return nv_fail(err, NV_EINVAL, 0,
				   "\"%s\": this program was built without HDF5; install "
				   "libhdf5-dev and build it again",
				   rows->path);
}

nv_status
bench_hdf5_read(bench_rows *rows, uint64_t first, uint64_t n, void *out,
				nv_error *err)
{
	return bench_hdf5_open(rows, err);
}

void
bench_hdf5_close(bench_rows *rows)
{
}

#else

#include <hdf5.h>

#define DEFAULT_DATASET "train"

typedef struct dataset
{
	hid_t file, set, space;
} dataset;

/* Path without, and name of, the dataset; both freed by the caller. */
static void
split_path(const char *path, char **file, const char **name)
{
	char *colon;

	*file = strdup(path);
	*name = DEFAULT_DATASET;
	colon = *file != NULL ? strrchr(*file, ':') : NULL;
	if (colon != NULL && strchr(colon, '/') == NULL)
	{
		*colon = '\0';
		*name = path + (colon - *file) + 1;
	}
}

/* Rows, dimensions and kind of values. */
static nv_status
look_at(bench_rows *r, const dataset *d, nv_error *err)
{
	hsize_t dims[2];
	hid_t type = H5Dget_type(d->set);
	H5T_class_t class = H5Tget_class(type);

	H5Tclose(type);
	if (H5Sget_simple_extent_ndims(d->space) != 2 ||
		H5Sget_simple_extent_dims(d->space, dims, NULL) < 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "\"%s\" is not a table of rows and dimensions", r->path);
	if (class != H5T_FLOAT && class != H5T_INTEGER)
		return nv_fail(err, NV_EINVAL, 0, "\"%s\" does not hold numbers",
					   r->path);
	if (dims[1] == 0 || dims[1] > UINT32_MAX)
		return nv_fail(err, NV_ECORRUPT, 0, "\"%s\" has %llu dimensions",
					   r->path, (unsigned long long) dims[1]);
	r->n = dims[0];
	r->dim = (uint32_t) dims[1];
	r->element = class == H5T_FLOAT ? BENCH_FLOAT : BENCH_UINT32;
	return NV_OK;
}

nv_status
bench_hdf5_open(bench_rows *r, nv_error *err)
{
	dataset *d = nv_alloc(sizeof(*d));
	const char *name;
	char *path;
	nv_status status;

	if (d == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory to read \"%s\"", r->path);
	r->hdf5 = d;
	H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* we report ourselves */
	split_path(r->path, &path, &name);
	d->set = d->space = -1;
	d->file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
	if (d->file >= 0)
		d->set = H5Dopen2(d->file, name, H5P_DEFAULT);
	if (d->set >= 0)
		d->space = H5Dget_space(d->set);
	if (d->file < 0)
		status =
			nv_fail(err, NV_ENOENT, 0, "could not open \"%s\" as HDF5", path);
	else if (d->set < 0)
		status = nv_fail(err, NV_ENOENT, 0, "\"%s\" has no dataset \"%s\"",
						 path, name);
	else
		status = look_at(r, d, err);
	free(path);
	return status;
}

nv_status
bench_hdf5_read(bench_rows *r, uint64_t first, uint64_t n, void *out,
				nv_error *err)
{
	const dataset *d = r->hdf5;
	hsize_t start[2] = {first, 0}, count[2] = {n, r->dim};
	hid_t memory = H5Screate_simple(2, count, NULL);
	hid_t type =
		r->element == BENCH_FLOAT ? H5T_NATIVE_FLOAT : H5T_NATIVE_UINT32;
	herr_t rc;

	rc =
		H5Sselect_hyperslab(d->space, H5S_SELECT_SET, start, NULL, count, NULL);
	if (rc >= 0)
		rc = H5Dread(d->set, type, memory, d->space, H5P_DEFAULT, out);
	H5Sclose(memory);
	return rc >= 0
			   ? NV_OK
			   : nv_fail(err, NV_EIO, 0, "could not read row %llu of \"%s\"",
						 (unsigned long long) first, r->path);
}

void
bench_hdf5_close(bench_rows *r)
{
	dataset *d = r->hdf5;

	if (d->space >= 0)
		H5Sclose(d->space);
	if (d->set >= 0)
		H5Dclose(d->set);
	if (d->file >= 0)
		H5Fclose(d->file);
	free(d);
	r->hdf5 = NULL;
}

#endif
