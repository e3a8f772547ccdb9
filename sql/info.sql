--
-- What can be asked about indexes and scans; navis.max_scan_tuples.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
-- before the first scan of a session
SELECT index, mode, rows, hops, list_size FROM navis_last_scan();
CREATE TABLE inf (id int PRIMARY KEY, v real[]);
INSERT INTO inf SELECT i, CASE WHEN i % 300 <> 0 THEN pg_temp.vec(i, 16) END FROM generate_series(1, 3000) i;
CREATE INDEX inf_v ON inf USING navis (v) WITH (max_degree = 32, build_list_size = 64, pq_bytes = 8);
VACUUM ANALYZE inf;
SELECT state, dimensions, metric, max_degree, build_list_size, entrance_degree, live_rows, rows_without_vector,
       vertices, deleted_vertices, entrance_members, pq_bytes, pending_rows
FROM navis_index_info('inf_v');
SELECT round(alpha::numeric, 3) AS alpha, round(entrance_ratio::numeric, 3) AS entrance_ratio,
       journal_pages, average_degree BETWEEN 2 AND 32 AS average_degree,
       pq_recall BETWEEN 0 AND 1 AS pq_recall,
       placement_quality BETWEEN 0 AND 1 AS placement_quality,
       edge_pages BETWEEN 10 AND 1000 AS edge_pages, edge_bytes > edge_pages * 4096 - 1 AS edge_bytes,
       vector_bytes >= 2990 * 64 AS vector_bytes, state_bytes > 0 AS state_bytes,
       published_lsn > '0/0' AS published, memory_codes >= 2990 * 8 AS memory_codes, memory_map > 0 AS memory_map,
       memory_elements > 0 AS memory_elements, memory_entrance > 0 AS memory_entrance,
       memory_per_vector > 0 AS memory_per_vector, pending_limit > 0 AS pending_limit,
       cache_bytes <= cache_limit AS cache_limit, cache_hits <= cache_lookups AS cache_hits,
       search_threads > 0 AS search_threads, io_method IN ('io_uring', 'sync', 'mixed') AS io_method, simd <> '' AS simd
FROM navis_index_info('inf_v');
-- calibrated by the build for the default list size and LIMIT 10
SELECT limit_bound >= 10 AS limit_bound, list_size_bound >= 100 AS list_size_bound, observed > 0 AS observed, ready,
       window_p90 <= window_p99 AND window_p99 <= window_p100 AS percentiles
FROM navis_index_calibration('inf_v') WHERE ready;

-- counters of a scan fit together
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 10) s;
SELECT index, mode, rows, requests, hops > 0 AS hops, edge_pages = edge_reads + cache_hits AS edge_pages,
       explored >= 10 AS explored, vectors BETWEEN 10 AND explored AS vectors, rerank_batches >= 1 AS batches,
       pending, rows_compared, bytes_read >= 0 AS bytes, list_size,
       rerank_window < list_size AS window FROM navis_last_scan();
SELECT searches > 0 AS searches FROM navis_index_info('inf_v');
INSERT INTO inf SELECT i, pg_temp.vec(i, 16) FROM generate_series(3001, 3007) i;
-- they are being linked meanwhile
SELECT pending_rows <= 7 AS pending, (pending_rows > 0) = (pending_bytes > 0) AS bytes, live_rows FROM navis_index_info('inf_v');
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 10) s;
SELECT rows, pending <= 7 AS pending FROM navis_last_scan();
SET navis.casr = off;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 10) s;
SELECT rows, rerank_window, vectors >= explored AS all_loaded FROM navis_last_scan();
RESET navis.casr;
SET navis.search_list_size = 250;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 10) s;
SELECT rows, list_size FROM navis_last_scan();
RESET navis.search_list_size;
-- cursors are let go
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 200;
MOVE 5 IN c;
ROLLBACK;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 1) s;
-- no more rows than navis.max_scan_tuples, and a notice that says so
SET enable_seqscan = off;
SET enable_sort = off;
SET navis.max_scan_tuples = 25;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 20) s;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 25) s;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 26) s;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16)) s;
SELECT count(*) FROM (SELECT id FROM inf WHERE id % 3 = 0 ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 20) s;
-- a scan that orders nothing has all rows
SET plan_cache_mode = force_generic_plan;
PREPARE unordered(real[]) AS SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> $1) s;
EXECUTE unordered(NULL);
SELECT mode, rows FROM navis_last_scan();
RESET plan_cache_mode;
SET navis.max_scan_tuples = 0;
SELECT count(*) FROM (SELECT id FROM inf ORDER BY v <-> pg_temp.vec(-1, 16)) s;
RESET navis.max_scan_tuples;
RESET enable_seqscan;
RESET enable_sort;

-- of other relations
SELECT * FROM navis_index_info('inf');
SELECT * FROM navis_index_info('inf_pkey');
SELECT * FROM navis_index_calibration('inf_pkey');
SELECT * FROM navis_index_info('pg_views');
SELECT * FROM navis_index_info('no_such_index');
SELECT * FROM navis_index_info(0);
SELECT navis_index_info(NULL);
-- statistics of the server count the scan
SELECT pg_stat_force_next_flush();
SELECT idx_scan >= 5 AS scans, idx_tup_read >= 100 AS read FROM pg_stat_user_indexes WHERE indexrelname = 'inf_v';
DROP TABLE inf;
