/*
 * kmeans.h
 *		k-means with 256 clusters, for the codebook of one chunk.
 */
#ifndef NAVIS_KMEANS_H
#define NAVIS_KMEANS_H

#include <stddef.h>
#include <stdint.h>

/* Rounds without and with the early stop. */
#define NV_KMEANS_MIN_ROUNDS 8
#define NV_KMEANS_MAX_ROUNDS 12

extern size_t nv_kmeans_scratch_size(uint32_t n, uint32_t dim);

/*
 * Clusters n > 0 rows of dim floats, without gaps between them.  centroids gets
 * 256 x dim floats; with fewer distinct rows some centroids are equal.
 * scratch holds nv_kmeans_scratch_size() bytes, aligned to 64.  One thread;
 * equal rows and seeds give equal centroids.  Returns the mean squared
 * distance of a row to its centroid, as of the last round.
 */
extern double nv_kmeans(const float *rows, uint32_t n, uint32_t dim,
						uint64_t seed, void *scratch, float *centroids);

#endif
