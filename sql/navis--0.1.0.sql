/* sql/navis--0.1.0.sql */

-- complain if the script is sourced in psql rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION navis" to load this file. \quit

--
-- Distances of real[] vectors: 1 to 16,000 finite elements, equal dimensions.
--

CREATE FUNCTION navis_l2_distance(real[], real[]) RETURNS float8
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION navis_l2_distance(real[], real[]) IS 'Euclidean distance';

CREATE FUNCTION navis_negative_inner_product(real[], real[]) RETURNS float8
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION navis_negative_inner_product(real[], real[]) IS
  'inner product times -1';

CREATE FUNCTION navis_cosine_distance(real[], real[]) RETURNS float8
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION navis_cosine_distance(real[], real[]) IS
  '1 - cosine of the angle; NaN for a zero vector';

CREATE OPERATOR <-> (
  LEFTARG = real[], RIGHTARG = real[],
  FUNCTION = navis_l2_distance, COMMUTATOR = '<->'
);
COMMENT ON OPERATOR <-> (real[], real[]) IS 'Euclidean distance';

CREATE OPERATOR <#> (
  LEFTARG = real[], RIGHTARG = real[],
  FUNCTION = navis_negative_inner_product, COMMUTATOR = '<#>'
);
COMMENT ON OPERATOR <#> (real[], real[]) IS 'negative inner product';

CREATE OPERATOR <=> (
  LEFTARG = real[], RIGHTARG = real[],
  FUNCTION = navis_cosine_distance, COMMUTATOR = '<=>'
);
COMMENT ON OPERATOR <=> (real[], real[]) IS 'cosine distance';

--
-- Access method and operator classes.  Support function 1 names the metric.
--

CREATE FUNCTION navis_handler(internal) RETURNS index_am_handler
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE ACCESS METHOD navis TYPE INDEX HANDLER navis_handler;
COMMENT ON ACCESS METHOD navis IS 'nearest-neighbour graph on SSD';

CREATE FUNCTION navis_metric_l2() RETURNS int4
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION navis_metric_ip() RETURNS int4
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION navis_metric_cosine() RETURNS int4
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE PARALLEL SAFE;

CREATE OPERATOR CLASS real_l2_ops
DEFAULT FOR TYPE real[] USING navis AS
  OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 1 navis_metric_l2();

CREATE OPERATOR CLASS real_ip_ops
FOR TYPE real[] USING navis AS
  OPERATOR 1 <#> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 1 navis_metric_ip();

CREATE OPERATOR CLASS real_cosine_ops
FOR TYPE real[] USING navis AS
  OPERATOR 1 <=> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 1 navis_metric_cosine();

--
-- Observability
--

CREATE FUNCTION navis_index_info(
  index regclass,
  OUT state text,
  OUT dimensions int8, OUT metric text,
  OUT max_degree int8, OUT build_list_size int8, OUT alpha float4,
  OUT entrance_ratio float4, OUT entrance_degree int8,
  OUT journal_pages int8, OUT live_rows int8, OUT rows_without_vector int8,
  OUT vertices int8, OUT deleted_vertices int8,
  OUT edge_pages int8, OUT free_edge_pages int8,
  OUT average_degree float4, OUT placement_quality float4,
  OUT entrance_members int8,
  OUT pq_bytes int8, OUT pq_rotated bool, OUT pq_recall float4,
  OUT edge_bytes int8, OUT vector_bytes int8, OUT state_bytes int8,
  OUT published_lsn pg_lsn,
  OUT memory_codes int8, OUT memory_map int8, OUT memory_elements int8,
  OUT memory_entrance int8, OUT memory_other int8,
  OUT memory_per_vector float4,
  OUT pending_rows int8, OUT pending_bytes int8, OUT pending_limit int8,
  OUT cache_bytes int8, OUT cache_limit int8, OUT cache_lookups int8,
  OUT cache_hits int8, OUT cache_promotions int8,
  OUT cursors int8, OUT searches int8, OUT search_threads int8,
  OUT io_method text, OUT simd text,
  OUT build_phase text, OUT build_done int8, OUT build_total int8,
  OUT built_vertices int8, OUT code_error float4, OUT code_drift float4,
  OUT renewals int8, OUT renewals_failed int8,
  OUT retraining bool, OUT retrainings int8,
  OUT consolidating bool, OUT consolidations int8, OUT freed_vertices int8
) RETURNS record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION navis_index_info(regclass) IS
  'what a navis index is made of and what it holds, sizes in bytes';

CREATE FUNCTION navis_index_calibration(
  index regclass,
  OUT limit_bound int4, OUT list_size_bound int4,
  OUT observed int4, OUT ready bool,
  OUT window_p90 int4, OUT window_p99 int4, OUT window_p100 int4
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION navis_index_calibration(regclass) IS
  'rerank windows by bucket of LIMIT and list size';

CREATE FUNCTION navis_last_scan(
  OUT index regclass, OUT mode text,
  OUT rows int8, OUT requests int8,
  OUT hops int8, OUT edge_pages int8, OUT edge_reads int8,
  OUT cache_hits int8, OUT explored int8,
  OUT vectors int8, OUT rerank_batches int8,
  OUT pending int8, OUT rows_compared int8,
  OUT bytes_read int8, OUT io_us int8, OUT compute_us int8,
  OUT rerank_window int8, OUT list_size int8
) RETURNS record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION navis_last_scan() IS
  'what the last scan of a navis index in this session did';

--
-- Statistics: of the indexes of this database, of the engine.  A row's counters
-- are of the time since the engine opened the index, or since it started.
--

CREATE FUNCTION navis_stat_get_indexes(
  OUT indexrelid oid, OUT state text,
  OUT queue_length int8, OUT unlinked_rows int8,
  OUT insert_waits int8, OUT insert_wait_time float8,
  OUT rows_inserted int8, OUT rows_equal int8, OUT rows_retried int8,
  OUT seeks int8, OUT seek_explored int8, OUT seek_vectors int8,
  OUT seek_pages int8, OUT seek_pages_hit int8,
  OUT link_pages int8, OUT link_pages_hit int8, OUT insert_bytes_read int8,
  OUT relinks int8, OUT overflow_prunes int8, OUT lists_moved int8,
  OUT promotions int8,
  OUT searches int8, OUT search_vectors int8,
  OUT search_pages int8, OUT search_pages_hit int8,
  OUT search_unlinked int8, OUT search_bytes_read int8,
  OUT w_search int8, OUT w_insert int8,
  OUT vertices int8, OUT deleted_vertices int8, OUT deleted_fraction float8,
  OUT consolidating bool, OUT consolidations int8, OUT freed_vertices int8,
  OUT retraining bool, OUT retrainings int8,
  OUT slots_used int8, OUT slots_retired int8,
  OUT edge_pages int8, OUT edge_pages_free int8,
  OUT rmw_pages int8, OUT rmw_hits_search int8, OUT rmw_hits_insert int8,
  OUT pages_written int8, OUT page_writes int8,
  OUT checkpoints int8, OUT checkpoint_failures int8,
  OUT last_checkpoint timestamptz, OUT checkpoint_time float8,
  OUT journal_lsn pg_lsn, OUT followed_lsn pg_lsn
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION navis_stat_get_indexes() IS
  'statistics of the navis indexes of this database';

CREATE VIEW navis_stat_indexes AS
  SELECT x.indrelid AS relid, s.indexrelid,
         n.nspname AS schemaname, t.relname, i.relname AS indexrelname,
         s.state, s.queue_length, s.unlinked_rows,
         s.insert_waits, s.insert_wait_time,
         s.rows_inserted, s.rows_equal, s.rows_retried, s.seeks,
         s.seek_explored, s.seek_vectors, s.seek_pages, s.seek_pages_hit,
         s.seek_explored::float8 / NULLIF(s.seeks, 0) AS explored_per_seek,
         s.seek_vectors::float8 / NULLIF(s.seeks, 0) AS vectors_per_seek,
         s.seek_pages::float8 / NULLIF(s.seeks, 0) AS pages_per_seek,
         s.link_pages, s.link_pages_hit, s.insert_bytes_read,
         s.relinks, s.overflow_prunes, s.lists_moved, s.promotions,
         s.searches, s.search_vectors, s.search_pages, s.search_pages_hit,
         s.search_unlinked, s.search_bytes_read, s.w_search, s.w_insert,
         s.vertices, s.deleted_vertices, s.deleted_fraction,
         s.consolidating, s.consolidations, s.freed_vertices,
         s.retraining, s.retrainings,
         s.slots_used, s.slots_retired, s.edge_pages, s.edge_pages_free,
         s.rmw_pages, s.rmw_hits_search, s.rmw_hits_insert,
         s.pages_written, s.page_writes,
         s.checkpoints, s.checkpoint_failures,
         s.last_checkpoint, s.checkpoint_time
  FROM navis_stat_get_indexes() s
       JOIN pg_catalog.pg_index x ON x.indexrelid = s.indexrelid
       JOIN pg_catalog.pg_class i ON i.oid = s.indexrelid
       JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
       JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace;
COMMENT ON VIEW navis_stat_indexes IS
  'what searches and writes did in each navis index of this database';

CREATE VIEW navis_stat_standby AS
  SELECT x.indrelid AS relid, s.indexrelid,
         n.nspname AS schemaname, t.relname, i.relname AS indexrelname,
         s.state, pg_catalog.pg_last_wal_replay_lsn() AS replay_lsn,
         s.journal_lsn, s.followed_lsn,
         pg_catalog.pg_wal_lsn_diff(s.journal_lsn, s.followed_lsn)::int8 AS lag_bytes,
         s.unlinked_rows
  FROM navis_stat_get_indexes() s
       JOIN pg_catalog.pg_index x ON x.indexrelid = s.indexrelid
       JOIN pg_catalog.pg_class i ON i.oid = s.indexrelid
       JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
       JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
  WHERE pg_catalog.pg_is_in_recovery();
COMMENT ON VIEW navis_stat_standby IS
  'on a standby: how far the engine has followed the replayed rows of each navis index';

CREATE FUNCTION navis_stat_get_worker(
  OUT pid int4, OUT state text, OUT started timestamptz, OUT incarnation int8,
  OUT search_threads int8, OUT insert_threads int8,
  OUT io_method text, OUT simd text,
  OUT indexes int8, OUT cursors int8, OUT index_bytes int8,
  OUT queue_length int8, OUT unlinked_rows int8,
  OUT unlinked_bytes int8, OUT unlinked_limit int8,
  OUT cache_bytes int8, OUT cache_limit int8,
  OUT cache_pages int8, OUT cache_pages_frozen int8,
  OUT search_cache_lookups int8, OUT search_cache_hits int8,
  OUT insert_cache_lookups int8, OUT insert_cache_hits int8,
  OUT cache_promotions int8, OUT cache_evictions int8,
  OUT searches int8, OUT search_vectors int8, OUT search_unlinked int8,
  OUT search_bytes_read int8,
  OUT rows_inserted int8, OUT rows_equal int8, OUT rows_retried int8,
  OUT insert_waits int8, OUT insert_wait_time float8,
  OUT seeks int8, OUT seek_vectors int8, OUT insert_bytes_read int8,
  OUT relinks int8, OUT overflow_prunes int8, OUT promotions int8,
  OUT checkpoints int8, OUT checkpoint_failures int8,
  OUT checkpoint_time float8,
  OUT pages_written int8, OUT page_writes int8
) RETURNS record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION navis_stat_get_worker() IS
  'statistics of the navis engine, whatever databases its indexes are in';

CREATE VIEW navis_stat_worker AS SELECT * FROM navis_stat_get_worker();
COMMENT ON VIEW navis_stat_worker IS
  'the navis engine: state, memory, cache, and totals since it started';

GRANT SELECT ON navis_stat_indexes, navis_stat_standby, navis_stat_worker TO PUBLIC;

CREATE FUNCTION navis_check(
  index regclass, repair bool DEFAULT false,
  OUT severity text, OUT kind text, OUT element int8, OUT vertex int8,
  OUT detail text, OUT repaired bool
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION navis_check(regclass, bool) IS
  'compares a navis index with its table and looks for damage: a row for every problem';
