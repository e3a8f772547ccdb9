--
-- navis_stat_indexes and navis_stat_worker.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
-- Waits until rows are linked and the windows are calibrated, a minute at most.
CREATE PROCEDURE pg_temp.settle(i regclass) LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN 1 .. 600 LOOP
    EXIT WHEN (SELECT unlinked_rows = 0 AND w_search > 0 AND w_insert > 0
               FROM navis_stat_indexes WHERE indexrelid = i);
    PERFORM pg_sleep(0.1);
  END LOOP;
END $$;

-- an index that the engine has not open: its row has a state and NULLs
CREATE TABLE sta_empty (id int PRIMARY KEY, v real[]);
CREATE INDEX sta_empty_v ON sta_empty USING navis (v);
SELECT relid::regclass, indexrelid::regclass, schemaname, relname, indexrelname, state,
       queue_length, rows_inserted, searches, vertices, checkpoints, last_checkpoint
FROM navis_stat_indexes WHERE indexrelname LIKE 'sta%';

CREATE TABLE sta (id int PRIMARY KEY, v real[], note text);
INSERT INTO sta SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 3000) i;
CREATE INDEX sta_v ON sta USING navis (v) WITH (max_degree = 32, build_list_size = 64, pq_bytes = 8);
VACUUM ANALYZE sta;
SELECT relname, indexrelname, state, queue_length, unlinked_rows, insert_waits, insert_wait_time,
       rows_inserted, rows_equal, rows_retried, seeks, explored_per_seek, vectors_per_seek, pages_per_seek,
       relinks, overflow_prunes, promotions, searches, search_vectors, search_unlinked, search_bytes_read
FROM navis_stat_indexes WHERE relname = 'sta';
-- both windows are calibrated by the build
SELECT w_search > 0 AS w_search, w_insert > 0 AS w_insert, vertices, deleted_vertices, deleted_fraction,
       slots_used, slots_retired, edge_pages > 0 AS edge_pages, edge_pages_free <= edge_pages AS edge_pages_free,
       checkpoint_failures
FROM navis_stat_indexes WHERE relname = 'sta';

-- searches: as many as there were, and what the last scan says of itself
SELECT count(*) FROM (SELECT id FROM sta ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 10) s;
SELECT s.searches, s.search_vectors = l.vectors AS vectors, s.search_pages = l.edge_pages AS pages,
       s.search_pages_hit = l.cache_hits AS hits, s.search_unlinked = l.pending AS unlinked,
       s.search_bytes_read = l.bytes_read AS bytes
FROM navis_stat_indexes s, navis_last_scan() l WHERE s.relname = 'sta';

-- inserts: new vectors, then equal ones, then an update of another column
INSERT INTO sta SELECT i, pg_temp.vec(i, 16) FROM generate_series(3001, 3200) i;
CALL pg_temp.settle('sta_v');
INSERT INTO sta SELECT i + 10000, pg_temp.vec(i, 16) FROM generate_series(1, 50) i;
UPDATE sta SET note = 'seen' WHERE id BETWEEN 101 AND 125;
CALL pg_temp.settle('sta_v');
SELECT queue_length, unlinked_rows, rows_inserted, rows_equal, rows_retried, seeks, vertices,
       explored_per_seek BETWEEN 1 AND 3200 AS explored, vectors_per_seek BETWEEN 1 AND explored_per_seek AS vectors,
       pages_per_seek >= 1 AS pages, seek_pages_hit <= seek_pages AS pages_hit,
       link_pages > 0 AS link_pages, link_pages_hit <= link_pages AS link_pages_hit,
       relinks >= 200 AS relinks, overflow_prunes >= 0 AS overflow_prunes,
       promotions BETWEEN 0 AND 200 AS promotions, w_insert BETWEEN 1 AND 100 AS w_insert
FROM navis_stat_indexes WHERE relname = 'sta';

-- deletes: at VACUUM, a vertex whose last row is gone
DELETE FROM sta WHERE id BETWEEN 201 AND 500;
VACUUM sta;
SELECT vertices - deleted_vertices AS live, deleted_fraction BETWEEN 0 AND 0.1 AS fraction
FROM navis_stat_indexes WHERE relname = 'sta';

-- the worker: one row; nobody else has more indexes open than it says
SELECT w.state, w.pid > 0 AS pid, w.started < now() + interval '1 minute' AS started, w.incarnation > 0 AS incarnation,
       w.search_threads > 0 AS search_threads, w.insert_threads > 0 AS insert_threads,
       w.io_method IN ('io_uring', 'sync', 'mixed') AS io_method, w.simd <> '' AS simd,
       w.indexes > 0 AS indexes, w.cursors >= 0 AS cursors, w.index_bytes > 0 AS index_bytes,
       w.unlinked_bytes <= w.unlinked_limit AS unlinked, w.cache_bytes <= w.cache_limit AS cache,
       w.cache_pages_frozen <= w.cache_pages AS frozen,
       w.search_cache_hits <= w.search_cache_lookups AS search_hits,
       w.insert_cache_hits <= w.insert_cache_lookups AS insert_hits
FROM navis_stat_worker w;
SELECT w.searches >= i.searches AS searches, w.rows_inserted >= i.rows_inserted AS inserted,
       w.rows_equal >= i.rows_equal AS equal, w.seeks >= i.seeks AS seeks, w.relinks >= i.relinks AS relinks,
       w.search_vectors >= i.search_vectors AS vectors, w.pages_written >= i.pages_written AS written,
       w.checkpoints >= i.checkpoints AS checkpoints
FROM navis_stat_worker w, navis_stat_indexes i WHERE i.relname = 'sta';

-- what a dropped index has counted stays in the totals
CREATE TEMP TABLE before AS SELECT * FROM navis_stat_worker;
DROP TABLE sta;
SELECT count(*) FROM navis_stat_indexes WHERE relname = 'sta';
SELECT w.searches >= b.searches AS searches, w.rows_inserted >= b.rows_inserted AS inserted, w.seeks >= b.seeks AS seeks
FROM navis_stat_worker w, before b;

-- everybody may look; nobody may write
CREATE ROLE sta_reader;
SET ROLE sta_reader;
SELECT indexrelname FROM navis_stat_indexes WHERE relname = 'sta_empty';
SELECT state FROM navis_stat_worker;
DELETE FROM navis_stat_worker;
RESET ROLE;
DROP ROLE sta_reader;
-- an index that is made in this transaction, and one that is not valid
BEGIN;
CREATE INDEX sta_empty_w ON sta_empty USING navis (v);
SELECT indexrelname, state FROM navis_stat_indexes WHERE relname = 'sta_empty' ORDER BY 1;
ROLLBACK;
SELECT indexrelname FROM navis_stat_indexes WHERE relname = 'sta_empty';
DROP TABLE sta_empty;
