/*
 * checkpoint.c
 *		The protocol that publishes a root.
 *
 * Source: design.md section 4, "Checkpoint protocol" 5 to 10; the numbers
 * below are those of its steps.
 */
#include "store_internal.h"

/* 5.  Inside the exclusive gate: no flip is under way, and no I/O is done. */
static void
make_cut(nv_store *store, const nv_checkpoint_hooks *hooks, nv_cut *cut)
{
	memset(cut, 0, sizeof(*cut));
	pthread_rwlock_wrlock(&store->gate);
	cut->sequence = atomic_load(&store->sequence);
	cut->lsn = hooks->cut != NULL ? hooks->cut(hooks->arg) : 0;
	cut->epoch = atomic_fetch_add(&store->epoch, 1);
	cut->vertices = atomic_load(&store->vertices);
	cut->elements = atomic_load(&store->elements);
	cut->records = store->vectors.records;

	/* What is written to a page later belongs to the next checkpoint. */
	pthread_mutex_lock(&store->writers_lock);
	for (nv_writer *w = store->writers; w != NULL; w = w->next)
	{
		for (uint32_t i = 0; i < w->n_open; i++)
			nv_rmw_seal(store, w->open[i]);
		if (w->main != NULL)
			nv_rmw_seal(store, w->main);
		w->n_open = 0;
		w->main = NULL;
	}
	pthread_mutex_unlock(&store->writers_lock);
	pthread_mutex_lock(&store->edges.allocator);
	cut->edge_pages = store->edges.pages;
	pthread_mutex_unlock(&store->edges.allocator);
	pthread_mutex_lock(&store->blob_lock);
	for (int b = 0; b < NV_BLOBS; b++)
	{
		cut->blob[b] = store->blob[b];
		if (cut->blob[b] != NULL)
			atomic_fetch_add(&cut->blob[b]->references, 1);
	}
	pthread_mutex_unlock(&store->blob_lock);
	nv_retire_cut(&store->retired, cut->sequence);
	atomic_store(&store->dirty, false);
	pthread_rwlock_unlock(&store->gate);
}

static nv_status
sync_directory(nv_store *store, nv_error *err)
{
	nv_status status;

	if (store->directory_synced)
		return NV_OK;
	status = nv_dir_sync(store->dir, err);
	store->directory_synced = status == NV_OK;
	return status;
}

/* 6 to 9. */
static nv_status
save(nv_store *store, const nv_checkpoint_hooks *hooks, const nv_cut *cut,
	 nv_error *err)
{
	nv_root *root = nv_alloc(sizeof(*root));
	nv_status status = NV_OK;

	if (root == NULL)
		return nv_fail(err, NV_ENOMEM, 0, "no memory for a root");
	/* 6. */
	status = nv_rmw_drain(store, cut->epoch, err);
	if (status == NV_OK)
		status = nv_file_sync(store->edges.file, err);
	if (status == NV_OK)
		status = nv_file_sync(store->vectors.file, err);
	/* 7. */
	if (status == NV_OK)
		status = nv_state_save(store, cut, root, err);
	if (status == NV_OK)
		status = sync_directory(store, err);
	/* 8. */
	if (status == NV_OK && hooks->flush_wal != NULL)
		status = hooks->flush_wal(hooks->arg, cut->lsn, err);
	/* 9. */
	if (status == NV_OK)
		status = nv_state_publish(store, root, err);
	free(root);
	return status;
}

nv_status
nv_store_checkpoint(nv_store *store, const nv_checkpoint_hooks *hooks,
					nv_error *err)
{
	nv_cut cut;
	nv_status status;

	/* Held across I/O; only checkpoints wait for each other here. */
	pthread_mutex_lock(&store->checkpoint);
	status = nv_store_check(store, err);
	/* A full disk shows here, where it harms nothing. */
	if (status == NV_OK)
		status = nv_state_make_room_now(store, err);
	if (status != NV_OK)
	{
		if (status == NV_EIO)
			nv_store_fail(store, err);
		pthread_mutex_unlock(&store->checkpoint);
		return status;
	}
	nv_vectors_end_bulk(store);
	make_cut(store, hooks, &cut);
	status = save(store, hooks, &cut, err);
	if (status == NV_OK)
	{
		atomic_store(&store->published_sequence, cut.sequence);
		atomic_store(&store->published_lsn, cut.lsn);
		/* 10. */
		nv_retire_published(&store->retired, cut.sequence);
		nv_edges_reclaim(store);
		nv_freed_published(store, cut.sequence);
	}
	else
		nv_store_fail(store, err);
	for (int b = 0; b < NV_BLOBS; b++)
		nv_blob_drop(cut.blob[b]);
	pthread_mutex_unlock(&store->checkpoint);
	return status;
}
