--
-- Kinds of indexes and tables, and commands on them.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
CREATE FUNCTION pg_temp.last(i regclass) RETURNS text LANGUAGE sql AS
  'SELECT mode || CASE WHEN index <> i THEN '' other index'' WHEN hops > 0 AND edge_pages > 0 THEN '' with hops and pages''
                       ELSE '''' END || '', '' || rows || '' rows'' FROM navis_last_scan()';
CREATE TABLE knd (id int PRIMARY KEY, v real[], w real[], kind text);
INSERT INTO knd SELECT i, pg_temp.vec(i, 16), pg_temp.vec(-i, 12), CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END
  FROM generate_series(1, 3000) i;

-- several indexes on one table, each of its own column, dimensions, metric
CREATE INDEX knd_v ON knd USING navis (v) WITH (max_degree = 24, build_list_size = 40);
CREATE INDEX knd_w ON knd USING navis (w real_cosine_ops) WITH (max_degree = 24, build_list_size = 40);
VACUUM ANALYZE knd;
SELECT id, v <-> pg_temp.vec(9, 16) AS d FROM knd ORDER BY v <-> pg_temp.vec(9, 16) LIMIT 1;
SELECT pg_temp.last('knd_v');
SELECT id FROM knd ORDER BY w <=> pg_temp.vec(-10, 12) LIMIT 1;
SELECT pg_temp.last('knd_w');
INSERT INTO knd VALUES (3001, pg_temp.vec(3001, 16), pg_temp.vec(-3001, 12), 'odd');
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(3001, 16) LIMIT 1;
SELECT id FROM knd ORDER BY w <=> pg_temp.vec(-3001, 12) LIMIT 1;
INSERT INTO knd VALUES (3002, pg_temp.vec(3002, 16), '{1,2}', 'even');
SELECT id FROM knd WHERE id = 3002;
SELECT count(*) FROM (SELECT id, v <-> pg_temp.vec(3002, 16) AS d FROM knd ORDER BY v <-> pg_temp.vec(3002, 16) LIMIT 1) s
WHERE d = 0;
DROP INDEX knd_w;

-- partial index
DROP INDEX knd_v;
CREATE INDEX knd_even ON knd USING navis (v) WITH (max_degree = 24, build_list_size = 40) WHERE kind = 'even';
ANALYZE knd;
EXPLAIN (COSTS OFF) SELECT id FROM knd ORDER BY v <-> '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id FROM knd WHERE kind = 'even' ORDER BY v <-> '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}' LIMIT 5;
SELECT live_rows FROM navis_index_info('knd_even');
SELECT count(*), count(*) FILTER (WHERE id % 2 = 0) AS even FROM
  (SELECT id FROM knd WHERE kind = 'even' ORDER BY v <-> pg_temp.vec(9, 16) LIMIT 50) s;
SELECT pg_temp.last('knd_even');
UPDATE knd SET kind = 'odd' WHERE id = 8;
UPDATE knd SET kind = 'even' WHERE id = 9;
SELECT id FROM knd WHERE kind = 'even' ORDER BY v <-> pg_temp.vec(9, 16) LIMIT 1;
SELECT count(*) FROM (SELECT id FROM knd WHERE kind = 'even' ORDER BY v <-> pg_temp.vec(8, 16) LIMIT 5) s WHERE id = 8;
DROP INDEX knd_even;

-- expression index
CREATE FUNCTION knd_half(real[]) RETURNS real[] LANGUAGE sql IMMUTABLE STRICT AS 'SELECT ($1)[1:8]';
CREATE INDEX knd_half_i ON knd USING navis (knd_half(v)) WITH (max_degree = 24, build_list_size = 40);
ANALYZE knd;
SELECT dimensions FROM navis_index_info('knd_half_i');
SELECT id FROM knd ORDER BY knd_half(v) <-> pg_temp.vec(12, 8) LIMIT 1;
SELECT pg_temp.last('knd_half_i');
INSERT INTO knd VALUES (3003, pg_temp.vec(3003, 16), NULL, 'odd');
SELECT id FROM knd ORDER BY knd_half(v) <-> pg_temp.vec(3003, 8) LIMIT 1;
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM knd ORDER BY knd_half(v) <-> pg_temp.vec(12, 8)) s;
RESET enable_seqscan;
RESET enable_sort;
DROP INDEX knd_half_i;
DROP FUNCTION knd_half(real[]);

-- CONCURRENTLY, and REINDEX of every kind
DELETE FROM knd WHERE id > 2990;
CREATE INDEX CONCURRENTLY knd_c ON knd USING navis (v) WITH (max_degree = 24, build_list_size = 40);
SELECT indisvalid, indisready FROM pg_index WHERE indexrelid = 'knd_c'::regclass;
SELECT live_rows >= 2990 AS rows FROM navis_index_info('knd_c');
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(13, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
INSERT INTO knd VALUES (4001, pg_temp.vec(4001, 16), NULL, 'odd');
SELECT vertices + pending_rows AS before FROM navis_index_info('knd_c');
REINDEX INDEX knd_c;
SELECT vertices AS after, pending_rows FROM navis_index_info('knd_c');
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4001, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
INSERT INTO knd VALUES (4002, pg_temp.vec(4002, 16), NULL, 'odd');
REINDEX INDEX CONCURRENTLY knd_c;
SELECT vertices, pending_rows FROM navis_index_info('knd_c');
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4002, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
REINDEX TABLE knd;
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4002, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
VACUUM FULL knd;
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4002, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
CLUSTER knd USING knd_pkey;
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4002, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
-- a table rewritten by ALTER
ALTER TABLE knd ALTER id TYPE bigint;
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4002, 16) LIMIT 1;
SELECT pg_temp.last('knd_c');
ALTER INDEX knd_c RENAME TO knd_d;
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4001, 16) LIMIT 1;
SELECT pg_temp.last('knd_d');
-- TRUNCATE, also rolled back
BEGIN;
TRUNCATE knd;
INSERT INTO knd VALUES (1, '{1,2,3}', NULL, 'odd');
SET LOCAL enable_seqscan = off;
SELECT id FROM knd ORDER BY v <-> '{1,2,2}' LIMIT 5;
ROLLBACK;
SELECT id FROM knd ORDER BY v <-> pg_temp.vec(4002, 16) LIMIT 1;
SELECT pg_temp.last('knd_d');
TRUNCATE knd;
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id FROM knd ORDER BY v <-> '{1,2,2}') s;
SELECT dimensions, live_rows FROM navis_index_info('knd_d');
INSERT INTO knd VALUES (1, '{1,2,3}', NULL, 'odd'), (2, '{4,5,6}', NULL, 'even');
SELECT id FROM knd ORDER BY v <-> '{4,5,5}' LIMIT 5;
RESET enable_seqscan;
DROP TABLE knd;

-- an index made before the rows finds them at once, and gets its graph
CREATE TABLE knd_first (id int, v real[]);
CREATE INDEX knd_first_v ON knd_first USING navis (v);
INSERT INTO knd_first SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 1500) i;
SET enable_seqscan = off;
SELECT id FROM knd_first ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT index, rows FROM navis_last_scan();
SELECT count(*) FROM (SELECT id FROM knd_first ORDER BY v <-> pg_temp.vec(700, 16)) s;
REINDEX INDEX knd_first_v;
SELECT id FROM knd_first ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT pg_temp.last('knd_first_v');
SELECT vertices, pending_rows, live_rows FROM navis_index_info('knd_first_v');
DROP TABLE knd_first;
-- too few rows for a graph
CREATE TABLE knd_small (id int, v real[]);
INSERT INTO knd_small SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 1023) i;
CREATE INDEX knd_small_v ON knd_small USING navis (v);
SELECT id FROM knd_small ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT mode, rows, hops, pending FROM navis_last_scan();
SELECT count(*) FROM (SELECT id FROM knd_small ORDER BY v <-> pg_temp.vec(700, 16)) s;
INSERT INTO knd_small VALUES (1024, pg_temp.vec(1024, 16));
REINDEX INDEX knd_small_v;
SELECT id FROM knd_small ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT pg_temp.last('knd_small_v');
DROP TABLE knd_small;
RESET enable_seqscan;

-- temporary and unlogged tables
CREATE TEMP TABLE knd_temp (id int, v real[]);
INSERT INTO knd_temp SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 2000) i;
CREATE INDEX knd_temp_v ON knd_temp USING navis (v) WITH (max_degree = 24, build_list_size = 40);
ANALYZE knd_temp;
SELECT id FROM knd_temp ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT pg_temp.last('knd_temp_v');
INSERT INTO knd_temp VALUES (2001, pg_temp.vec(2001, 16));
SELECT id FROM knd_temp ORDER BY v <-> pg_temp.vec(2001, 16) LIMIT 1;
SELECT pg_temp.last('knd_temp_v');
DROP TABLE knd_temp;
CREATE TEMP TABLE knd_temp (id int, v real[]) ON COMMIT DELETE ROWS;
CREATE INDEX ON knd_temp USING navis (v);
SET enable_seqscan = off;
BEGIN;
INSERT INTO knd_temp SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 200) i;
SELECT id FROM knd_temp ORDER BY v <-> pg_temp.vec(70, 16) LIMIT 1;
COMMIT;
SELECT id FROM knd_temp ORDER BY v <-> '{1,2}' LIMIT 1;
RESET enable_seqscan;
DROP TABLE knd_temp;
CREATE UNLOGGED TABLE knd_unlogged (id int, v real[]);
INSERT INTO knd_unlogged SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 2000) i;
CREATE INDEX knd_unlogged_v ON knd_unlogged USING navis (v) WITH (max_degree = 24, build_list_size = 40);
ANALYZE knd_unlogged;
SELECT id FROM knd_unlogged ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT pg_temp.last('knd_unlogged_v');
INSERT INTO knd_unlogged VALUES (2001, pg_temp.vec(2001, 16));
SELECT id FROM knd_unlogged ORDER BY v <-> pg_temp.vec(2001, 16) LIMIT 1;
ALTER TABLE knd_unlogged SET LOGGED;
SELECT id FROM knd_unlogged ORDER BY v <-> pg_temp.vec(2001, 16) LIMIT 1;
SELECT pg_temp.last('knd_unlogged_v');
DROP TABLE knd_unlogged;

-- materialized views
CREATE TABLE knd_base (id int, v real[]);
INSERT INTO knd_base SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 2000) i;
CREATE MATERIALIZED VIEW knd_view AS SELECT id, v FROM knd_base WITH NO DATA;
CREATE INDEX knd_view_v ON knd_view USING navis (v) WITH (max_degree = 24, build_list_size = 40);
REFRESH MATERIALIZED VIEW knd_view;
ANALYZE knd_view;
SELECT id FROM knd_view ORDER BY v <-> pg_temp.vec(700, 16) LIMIT 1;
SELECT pg_temp.last('knd_view_v');
DROP MATERIALIZED VIEW knd_view;
DROP TABLE knd_base;
-- other kinds of relations have no such indexes
CREATE VIEW knd_plain_view AS SELECT '{1,2}'::real[] AS v;
CREATE INDEX ON knd_plain_view USING navis (v);
DROP VIEW knd_plain_view;
