--
-- Rows without a vector or without a finite distance: they come, last.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
CREATE TABLE nul (id int PRIMARY KEY, v real[]);
INSERT INTO nul SELECT i, CASE WHEN i % 100 = 0 THEN NULL
                               WHEN i % 100 = 50 THEN array_fill(0::real, ARRAY[8])
                               ELSE pg_temp.vec(i, 8) END
  FROM generate_series(1, 2500) i;
CREATE INDEX nul_cosine ON nul USING navis (v real_cosine_ops);
CREATE INDEX nul_l2 ON nul USING navis (v);
CREATE INDEX nul_ip ON nul USING navis (v real_ip_ops);
VACUUM ANALYZE nul;
SELECT live_rows, rows_without_vector FROM navis_index_info('nul_cosine');
SELECT live_rows, rows_without_vector FROM navis_index_info('nul_l2');
SELECT reltuples FROM pg_class WHERE relname = 'nul_cosine';

SET enable_seqscan = off;
SET enable_sort = off;
CREATE FUNCTION pg_temp.scan(query real[], OUT rows bigint, OUT ids bigint, OUT finite bigint,
  OUT nan bigint, OUT nulls bigint, OUT in_order bool) LANGUAGE sql AS $$
  SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE class = 0),
         count(*) FILTER (WHERE class = 1), count(*) FILTER (WHERE class = 2),
         array_agg(class ORDER BY n) = array_agg(class ORDER BY class)
  FROM (SELECT *, CASE WHEN d IS NULL THEN 2 WHEN d = 'NaN' THEN 1 ELSE 0 END AS class
        FROM (SELECT *, row_number() OVER () AS n
              FROM (SELECT id, v <=> query AS d FROM nul ORDER BY v <=> query OFFSET 0) a) b) c $$;
-- NaN rows, then NULL rows, last: as a sort gives them
SELECT * FROM pg_temp.scan(pg_temp.vec(-1, 8));
SELECT index, mode, rows, hops > 0 AS hops, edge_pages > 0 AS edge_pages FROM navis_last_scan();
SELECT count(*), count(*) FILTER (WHERE d = 'NaN') AS nan, count(*) FILTER (WHERE d IS NULL) AS nulls
FROM (SELECT v <=> pg_temp.vec(-1, 8) AS d FROM nul ORDER BY v <=> pg_temp.vec(-1, 8) LIMIT 2470) s;
-- the nearest ones are never these
SELECT count(*) FILTER (WHERE d = 'NaN' OR d IS NULL) AS special, count(*)
FROM (SELECT v <=> pg_temp.vec(-1, 8) AS d FROM nul ORDER BY v <=> pg_temp.vec(-1, 8) LIMIT 100) s;
SELECT mode, rows, hops > 0 AS hops, edge_pages > 0 AS edge_pages FROM navis_last_scan();
-- a zero query: every distance is NaN, all rows come
SELECT * FROM pg_temp.scan('{0,0,0,0,0,0,0,0}');
SELECT mode, rows FROM navis_last_scan();
-- a NULL query orders nothing, all rows come
SELECT * FROM pg_temp.scan(NULL);
-- under the other metrics a zero vector is a vector
SELECT id % 100 FROM nul ORDER BY v <-> '{0,0,0,0,0,0,0,0}' LIMIT 1;
SELECT count(*) FILTER (WHERE d = 0), count(*) FROM
  (SELECT v <-> '{0,0,0,0,0,0,0,0}' AS d FROM nul ORDER BY v <-> '{0,0,0,0,0,0,0,0}' LIMIT 30) s;
SELECT index, mode, rows, hops > 0 AS hops FROM navis_last_scan();
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE d IS NULL) AS nulls FROM
  (SELECT id, v <#> pg_temp.vec(-1, 8) AS d FROM nul ORDER BY v <#> pg_temp.vec(-1, 8)) s;
SELECT index, mode, rows, hops > 0 AS hops FROM navis_last_scan();

-- they come and go like other rows
BEGIN;
INSERT INTO nul VALUES (3001, NULL), (3002, '{0,0,0,0,0,0,0,0}'), (3003, pg_temp.vec(-1, 8));
SELECT * FROM pg_temp.scan(pg_temp.vec(-1, 8));
DELETE FROM nul WHERE id IN (100, 50);
UPDATE nul SET v = NULL WHERE id = 51;
UPDATE nul SET v = pg_temp.vec(200, 8) WHERE id = 200;
SELECT * FROM pg_temp.scan(pg_temp.vec(-1, 8));
ROLLBACK;
SELECT * FROM pg_temp.scan(pg_temp.vec(-1, 8));

-- nothing but NULLs, nothing but zero vectors
CREATE TABLE nul_only (id int, v real[]);
INSERT INTO nul_only SELECT i, NULL FROM generate_series(1, 30) i;
CREATE INDEX nul_only_i ON nul_only USING navis (v real_cosine_ops);
SELECT count(*) FROM (SELECT id FROM nul_only ORDER BY v <=> '{1,2}') s;
SELECT mode, rows FROM navis_last_scan();
SELECT dimensions, live_rows, rows_without_vector FROM navis_index_info('nul_only_i');
INSERT INTO nul_only SELECT 100 + i, '{0,0,0}' FROM generate_series(1, 30) i;
SELECT count(*), count(d) FROM (SELECT id, v <=> '{1,2,1}' AS d FROM nul_only ORDER BY v <=> '{1,2,1}') s;
INSERT INTO nul_only VALUES (200, '{1,2,3}');
SELECT id FROM nul_only ORDER BY v <=> '{1,2,1}' LIMIT 1;
SELECT dimensions, live_rows, rows_without_vector FROM navis_index_info('nul_only_i');

DROP TABLE nul, nul_only;
