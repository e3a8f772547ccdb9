--
-- When the planner takes the index, and when it must not.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
CREATE TABLE pla (id int PRIMARY KEY, v real[], n int);
INSERT INTO pla SELECT i, pg_temp.vec(i, 8), i % 100 FROM generate_series(1, 2000) i;
CREATE INDEX pla_v ON pla USING navis (v);
CREATE INDEX pla_n ON pla (n);
VACUUM ANALYZE pla;

-- from 2,000 rows on: the nearest ones
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY '{1,2,3,4,5,6,7,8}' <-> v LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id, v <-> '{1,2,3,4,5,6,7,8}' AS d FROM pla ORDER BY d LIMIT 10 OFFSET 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' FETCH FIRST 3 ROWS ONLY;
EXPLAIN (COSTS OFF) SELECT id FROM pla WHERE id <> 7 ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10 FOR UPDATE;
EXPLAIN (COSTS OFF) SELECT p.id, s.id FROM pla p,
  LATERAL (SELECT id FROM pla ORDER BY v <-> p.v LIMIT 3) s WHERE p.id < 4;
EXPLAIN (COSTS OFF) SELECT (SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 1);

-- another order than the index has
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' DESC LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' NULLS FIRST LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <=> '{1,2,3,4,5,6,7,8}' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <#> '{1,2,3,4,5,6,7,8}' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY id, v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla WHERE v <-> '{1,2,3,4,5,6,7,8}' < 1;

-- all rows: sorting is cheaper
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}';
EXPLAIN (COSTS OFF) SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 2000;
-- a filter that leaves little is better served by its own index
EXPLAIN (COSTS OFF) SELECT id FROM pla WHERE id = 77 ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;

-- never: what asks for no order, even if nothing else is allowed
EXPLAIN (COSTS OFF) SELECT count(*) FROM pla;
EXPLAIN (COSTS OFF) SELECT * FROM pla;
SET enable_seqscan = off;
SET enable_indexonlyscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM pla;
EXPLAIN (COSTS OFF) SELECT v FROM pla;
EXPLAIN (COSTS OFF) SELECT v FROM pla WHERE v = '{1,2,3,4,5,6,7,8}';
-- never: where the order of rows decides more than the order of the answer
SET enable_hashagg = off;
SET enable_sort = off;
EXPLAIN (COSTS OFF) SELECT v <-> '{1,2,3,4,5,6,7,8}' AS d, count(*) FROM pla GROUP BY d;
EXPLAIN (COSTS OFF) SELECT v <-> '{1,2,3,4,5,6,7,8}' AS d, count(*) FROM pla GROUP BY d ORDER BY d LIMIT 5;
EXPLAIN (COSTS OFF) SELECT DISTINCT v <-> '{1,2,3,4,5,6,7,8}' AS d FROM pla ORDER BY d LIMIT 5;
EXPLAIN (COSTS OFF) SELECT DISTINCT ON (v <-> '{1,2,3,4,5,6,7,8}') id FROM pla
  ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT rank() OVER (ORDER BY v <-> '{1,2,3,4,5,6,7,8}') FROM pla;
EXPLAIN (COSTS OFF) SELECT rank() OVER (ORDER BY v <-> '{1,2,3,4,5,6,7,8}') FROM pla
  ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
SET enable_hashjoin = off;
SET enable_nestloop = off;
EXPLAIN (COSTS OFF) SELECT a.id FROM pla a JOIN pla b
  ON a.v <-> '{1,2,3,4,5,6,7,8}' = b.v <-> '{1,2,3,4,5,6,7,8}' ORDER BY a.v <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
CREATE TEMP TABLE pla_q AS SELECT id, v FROM pla LIMIT 3;
-- ... nor above a sub-select that is in the order of the distance
EXPLAIN (COSTS OFF) SELECT DISTINCT d
  FROM (SELECT v <-> '{1,2,3,4,5,6,7,8}' AS d FROM pla ORDER BY d OFFSET 0) s;
EXPLAIN (COSTS OFF) SELECT min(v <-> '{1,2,3,4,5,6,7,8}') FROM pla;
-- one that only hands rows on, or has a LIMIT of its own, may use the index
EXPLAIN (COSTS OFF) SELECT id
  FROM (SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}') s LIMIT 5;
EXPLAIN (COSTS OFF) SELECT count(*)
  FROM (SELECT id FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 5) s;
EXPLAIN (COSTS OFF) SELECT t.id, s.id, s.d FROM pla_q t,
  LATERAL (SELECT id, v <-> t.v AS d FROM pla ORDER BY v <-> t.v LIMIT 5) s;
EXPLAIN (COSTS OFF) SELECT t.id FROM pla_q t,
  LATERAL (SELECT id, v <-> t.v AS d FROM pla ORDER BY v <-> t.v LIMIT 5) s WHERE s.d = 0 AND s.id = t.id;
EXPLAIN (COSTS OFF) SELECT DISTINCT d FROM pla_q t,
  LATERAL (SELECT id, v <-> t.v AS d FROM pla ORDER BY v <-> t.v LIMIT 5) s;
-- windows over the first few: hybrid searches are written like this
EXPLAIN (COSTS OFF) SELECT id, rank() OVER (ORDER BY v <-> '{1,2,3,4,5,6,7,8}')
  FROM pla ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id, rank() OVER (ORDER BY d)
  FROM (SELECT id, v <-> '{1,2,3,4,5,6,7,8}' AS d FROM pla ORDER BY d LIMIT 5) s;
-- what these give is right
SELECT count(*), sum(c) FROM (SELECT v <-> '{1,2,3,4,5,6,7,8}' AS d, count(*) AS c FROM pla GROUP BY d) s;
SELECT count(*), count(DISTINCT d) FROM (SELECT DISTINCT v <-> '{1,2,3,4,5,6,7,8}' AS d FROM pla) s;
RESET enable_hashjoin;
RESET enable_nestloop;
RESET enable_hashagg;
RESET enable_sort;
RESET enable_seqscan;
RESET enable_indexonlyscan;
RESET enable_bitmapscan;

-- few rows: no index needed
CREATE TABLE pla_few (id int, v real[]);
INSERT INTO pla_few SELECT id, v FROM pla WHERE id <= 20;
CREATE INDEX ON pla_few USING navis (v);
ANALYZE pla_few;
EXPLAIN (COSTS OFF) SELECT id FROM pla_few ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;
-- many more rows, by the statistics: still the nearest ones, never all
CREATE TABLE pla_many (id int, v real[]);
INSERT INTO pla_many SELECT i, pg_temp.vec(i, 8) FROM generate_series(1, 20000) i;
CREATE INDEX ON pla_many USING navis (v) WITH (max_degree = 16, build_list_size = 24);
ANALYZE pla_many;
EXPLAIN (COSTS OFF) SELECT id FROM pla_many ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM pla_many ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 500;
EXPLAIN (COSTS OFF) SELECT id FROM pla_many ORDER BY v <-> '{1,2,3,4,5,6,7,8}';
EXPLAIN (COSTS OFF) SELECT count(*) FROM pla_many;

DROP TABLE pla, pla_few, pla_many;
