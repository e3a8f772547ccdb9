/*
 * blas.c
 *		OpenBLAS, loaded when it is first needed.
 */
#include "blas.h"

#include <dlfcn.h>
#include <pthread.h>

#include "util.h"

#define NV_BLAS_LIBRARY "libopenblas.so.0"

/* Values of the CBLAS enumerations. */
#define NV_CBLAS_ROW_MAJOR 101
#define NV_CBLAS_NO_TRANS 111
#define NV_CBLAS_TRANS 112
#define NV_CBLAS_LOWER 122

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n,
						 int k, float alpha, const float *a, int lda,
						 const float *b, int ldb, float beta, float *c,
						 int ldc);
typedef void (*ssyrk_fn)(int order, int uplo, int trans, int n, int k,
						 float alpha, const float *a, int lda, float beta,
						 float *c, int ldc);
typedef void (*ssyevd_fn)(const char *jobz, const char *uplo, const int *n,
						  float *a, const int *lda, float *w, float *work,
						  const int *lwork, int *iwork, const int *liwork,
						  int *info);
typedef void (*set_threads_fn)(int threads);

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static nv_error load_error;
static sgemm_fn blas_sgemm;
static ssyrk_fn blas_ssyrk;
static ssyevd_fn lapack_ssyevd;

/* A symbol as a function pointer, whose type ISO C keeps apart from void *. */
static bool
resolve(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	if (symbol == NULL)
	{
		nv_fail(&load_error, NV_ENOENT, 0, "library \"%s\" has no function %s",
				NV_BLAS_LIBRARY, name);
		return false;
	}
	memcpy(function, &symbol, sizeof(symbol));
	return true;
}

void
nv_blas_prepare(void)
{
	setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

static void
load(void)
{
	set_threads_fn set_threads;
	const char *reason;
	void *library;

	library = dlopen(NV_BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
	{
		reason = dlerror();
		nv_fail(&load_error, NV_ENOENT, 0,
				"could not load OpenBLAS, which training of codes needs: %s",
				reason != NULL ? reason : NV_BLAS_LIBRARY);
		return;
	}
	if (resolve(library, "openblas_set_num_threads", &set_threads) &&
		resolve(library, "cblas_sgemm", &blas_sgemm) &&
		resolve(library, "cblas_ssyrk", &blas_ssyrk) &&
		resolve(library, "ssyevd_", &lapack_ssyevd))
		set_threads(1);
}

nv_status
nv_blas_load(nv_error *err)
{
	pthread_once(&load_once, load);
	if (load_error.status != NV_OK && err != NULL)
		*err = load_error;
	return load_error.status;
}

void
nv_blas_product(const float *a, size_t stride_a, uint32_t rows_a,
				const float *b, size_t stride_b, uint32_t rows_b,
				uint32_t depth, float *out, size_t stride_out)
{
	blas_sgemm(NV_CBLAS_ROW_MAJOR, NV_CBLAS_NO_TRANS, NV_CBLAS_TRANS,
			   (int) rows_a, (int) rows_b, (int) depth, 1.0f, a, (int) stride_a,
			   b, (int) stride_b, 0.0f, out, (int) stride_out);
}

void
nv_blas_add_gram(const float *a, uint32_t rows, uint32_t dim, float *out)
{
	blas_ssyrk(NV_CBLAS_ROW_MAJOR, NV_CBLAS_LOWER, NV_CBLAS_TRANS, (int) dim,
			   (int) rows, 1.0f, a, (int) dim, 1.0f, out, (int) dim);
}

nv_status
nv_blas_eigen(float *matrix, uint32_t dim, float *values, nv_error *err)
{
	/* Fortran is column major: our lower triangle is its upper one. */
	int n = (int) dim;
	int work_size = 1 + 6 * n + 2 * n * n;
	int iwork_size = 3 + 5 * n;
	int info = 0;
	float *work;
	int *iwork;

	nv_assert(dim <= 16384); /* work_size fits an int */
	work = nv_alloc_array((size_t) work_size, sizeof(float));
	iwork = nv_alloc_array((size_t) iwork_size, sizeof(int));
	if (work == NULL || iwork == NULL)
	{
		free(work);
		free(iwork);
		return nv_fail(err, NV_ENOMEM, 0,
					   "no memory for eigenvectors of %u dimensions", dim);
	}
	lapack_ssyevd("V", "U", &n, matrix, &n, values, work, &work_size, iwork,
				  &iwork_size, &info);
	free(work);
	free(iwork);
	if (info != 0)
		return nv_fail(err, NV_EINVAL, 0,
					   "eigenvectors of %u dimensions did not converge", dim);
	return NV_OK;
}
