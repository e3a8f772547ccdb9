--
-- Searches through the graph, compared with exact answers.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
-- different lengths, so that the three metrics differ
CREATE TABLE sea (id int PRIMARY KEY, v real[], n int);
INSERT INTO sea
  SELECT i, array(SELECT (x * (1 + i % 7))::real FROM unnest(pg_temp.vec(i, 16)) x), i % 500
  FROM generate_series(1, 3000) i;
CREATE INDEX sea_l2 ON sea USING navis (v);
CREATE INDEX sea_ip ON sea USING navis (v real_ip_ops);
CREATE INDEX sea_cosine ON sea USING navis (v real_cosine_ops);
VACUUM ANALYZE sea;

-- did the last scan give k rows, from the graph of this index alone?
CREATE FUNCTION pg_temp.from_graph(i regclass, k int) RETURNS bool LANGUAGE sql AS
  'SELECT index = i AND mode = ''graph'' AND hops > 0 AND edge_pages > 0 AND list_size > 0 AND rows = k
   FROM navis_last_scan()';

-- nq searches with LIMIT k: how many of the nearest rows were found?
CREATE FUNCTION pg_temp.compare(i regclass, op text, k int, nq int,
  OUT rows bigint, OUT recall float8, OUT ordered bool, OUT graph bool)
LANGUAGE plpgsql AS $$
DECLARE
  query real[];
  ids int[];
  distances float8[];
  truth int[];
  hits float8;
BEGIN
  rows := 0; hits := 0; ordered := true; graph := true;
  FOR q IN 1 .. nq LOOP
    query := pg_temp.vec(-q, 16);
    PERFORM set_config('enable_indexscan', 'on', true);
    EXECUTE format('SELECT array_agg(id), array_agg(d) FROM
      (SELECT id, v %s $1 AS d FROM sea ORDER BY v %1$s $1 LIMIT %s) s', op, k)
      INTO ids, distances USING query;
    graph := graph AND pg_temp.from_graph(i, k);
    PERFORM set_config('enable_indexscan', 'off', true);
    EXECUTE format('SELECT array_agg(id) FROM
      (SELECT id FROM sea ORDER BY v %s $1, id LIMIT %s) s', op, k) INTO truth USING query;
    rows := rows + cardinality(ids);
    hits := hits + (SELECT count(*) FROM unnest(ids) x WHERE x = ANY (truth));
    ordered := ordered AND distances = (SELECT array_agg(x ORDER BY x) FROM unnest(distances) x);
  END LOOP;
  recall := hits / rows;
END $$;
SELECT rows, recall >= 0.97 AS recall, ordered, graph FROM pg_temp.compare('sea_l2', '<->', 10, 40);
SELECT rows, recall >= 0.95 AS recall, ordered, graph FROM pg_temp.compare('sea_ip', '<#>', 10, 40);
SELECT rows, recall >= 0.97 AS recall, ordered, graph FROM pg_temp.compare('sea_cosine', '<=>', 10, 40);
SET navis.search_list_size = 400;
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_l2', '<->', 10, 20);
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_ip', '<#>', 10, 20);
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_cosine', '<=>', 10, 20);
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_l2', '<->', 100, 5);
-- switches that only change the way there
SET navis.casr = off;
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_l2', '<->', 10, 10);
SET navis.entrance = off;
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_l2', '<->', 10, 10);
SET navis.beam_width = 1;
SELECT rows, recall >= 0.99 AS recall, ordered, graph FROM pg_temp.compare('sea_l2', '<->', 10, 10);
RESET navis.casr;
RESET navis.entrance;
RESET navis.beam_width;
RESET navis.search_list_size;

-- a row's own vector finds the row, at distance 0
SELECT count(*) FROM generate_series(1, 3000, 60) i, LATERAL (
  SELECT id, v <-> (SELECT v FROM sea WHERE id = i) AS d FROM sea
  ORDER BY v <-> (SELECT v FROM sea WHERE id = i) LIMIT 1) s
WHERE s.id = i AND s.d = 0;
SELECT pg_temp.from_graph('sea_l2', 1);
-- the distance the index orders by is the operator's, bit for bit
SET navis.search_list_size = 300;
WITH near AS MATERIALIZED (
  SELECT id, v <-> pg_temp.vec(-1, 16) AS d FROM sea ORDER BY v <-> pg_temp.vec(-1, 16) LIMIT 50)
SELECT count(*), bool_and(d = (SELECT v <-> pg_temp.vec(-1, 16) FROM sea s WHERE s.id = near.id)) AS equal
FROM near;
SELECT pg_temp.from_graph('sea_l2', 50);
RESET navis.search_list_size;

-- LIMIT ladder: exactly so many rows, all different, whatever the list size
SET enable_seqscan = off;
SET enable_sort = off;
CREATE FUNCTION pg_temp.ladder(k int, OUT rows bigint, OUT different bigint, OUT mode text)
LANGUAGE plpgsql AS $$
BEGIN
  SELECT count(*), count(DISTINCT id) INTO rows, different
  FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-3, 16) LIMIT k) s;
  SELECT l.mode || CASE WHEN l.hops > 0 AND l.edge_pages > 0 AND l.index = 'sea_l2'::regclass
                        AND l.rows = k
                        THEN '' ELSE ' without graph' END INTO mode FROM navis_last_scan() l;
END $$;
SELECT k, (pg_temp.ladder(k)).* FROM unnest('{1,10,39,40,41,100,500}'::int[]) k;
SET navis.search_list_size = 10;
SELECT k, (pg_temp.ladder(k)).* FROM unnest('{1,10,39,40,41,100,500}'::int[]) k;
RESET navis.search_list_size;
SELECT k, (pg_temp.ladder(k)).rows FROM unnest('{2999,3000,3001,100000}'::int[]) k;
SELECT k, (pg_temp.ladder(k)).different FROM unnest('{2999,3000,3001,100000}'::int[]) k;
-- no LIMIT: every row, once
CREATE TEMP TABLE sea_all AS SELECT id, v <-> pg_temp.vec(-3, 16) AS d FROM sea ORDER BY v <-> pg_temp.vec(-3, 16);
SELECT mode, hops > 0 AS hops, edge_pages > 0 AS edge_pages, rows FROM navis_last_scan();
SELECT count(*), count(DISTINCT id), min(id), max(id) FROM sea_all;
-- OFFSET counts
SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-3, 16) OFFSET 30 LIMIT 20) s;
SELECT rows, requests, mode FROM navis_last_scan();
SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-3, 16) OFFSET 2990) s;
-- LIMIT 0, LIMIT NULL
SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-3, 16) LIMIT 0) s;
SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-3, 16) LIMIT NULL) s;
-- K is taken from the plan: one request is enough
SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-3, 16) LIMIT 77) s;
SELECT rows, requests, pg_temp.from_graph('sea_l2', 77) FROM navis_last_scan();
RESET enable_seqscan;
RESET enable_sort;

-- filters: the scan goes on until LIMIT is reached; 0.2 % of the rows pass
ALTER TABLE sea ADD m int;
UPDATE sea SET m = CASE WHEN id % 499 < 2 THEN 1 ELSE 0 END;
VACUUM ANALYZE sea;
SELECT count(*) FROM sea WHERE m = 1;
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*), count(DISTINCT id) FROM
  (SELECT id FROM sea WHERE m = 1 ORDER BY v <-> pg_temp.vec(-5, 16) LIMIT 10) s;
SELECT index, mode IN ('graph', 'graph+sweep') AS graph, hops > 0 AS hops, edge_pages > 0 AS edge_pages,
       rows > 500 AS went_on FROM navis_last_scan();
-- 6 rows exist in 0.2 %
SELECT array_agg(id ORDER BY id) FROM
  (SELECT id FROM sea WHERE n = 7 ORDER BY v <-> pg_temp.vec(-5, 16) LIMIT 10) s;
SELECT count(*) FROM (SELECT id FROM sea WHERE id < 0 ORDER BY v <-> pg_temp.vec(-5, 16) LIMIT 10) s;
RESET enable_seqscan;
RESET enable_sort;

-- LATERAL, also with NULL query vectors: all rows, no error
SELECT q, count(*), count(DISTINCT s.id) FROM
  (SELECT q, CASE WHEN q % 2 = 0 THEN pg_temp.vec(-q, 16) END AS x FROM generate_series(1, 4) q) qs,
  LATERAL (SELECT id FROM sea ORDER BY v <-> x LIMIT 5) s GROUP BY q ORDER BY q;
SELECT pg_temp.from_graph('sea_l2', 5);
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM sea ORDER BY v <-> NULL::real[]) s;
SELECT q, count(*), count(DISTINCT s.id), min(s.d) IS NULL AS null_distance FROM
  (SELECT q, CASE WHEN q % 2 = 0 THEN pg_temp.vec(-q, 16) END AS x FROM generate_series(1, 3) q) qs,
  LATERAL (SELECT id, v <-> x AS d FROM sea ORDER BY v <-> x) s GROUP BY q ORDER BY q;
RESET enable_seqscan;
RESET enable_sort;

-- prepared statements: generic plans with the query and LIMIT as parameters
SET plan_cache_mode = force_generic_plan;
PREPARE nearest(real[], int) AS SELECT id FROM sea ORDER BY v <-> $1 LIMIT $2;
EXPLAIN (COSTS OFF) EXECUTE nearest(NULL, 10);
CREATE TEMP TABLE sea_got AS EXECUTE nearest(pg_temp.vec(-8, 16), 3);
SELECT count(*), (SELECT requests FROM navis_last_scan()), pg_temp.from_graph('sea_l2', 3) FROM sea_got;
DROP TABLE sea_got;
CREATE TEMP TABLE sea_got AS EXECUTE nearest(pg_temp.vec(-9, 16), 41);
SELECT count(*), (SELECT requests FROM navis_last_scan()), pg_temp.from_graph('sea_l2', 41) FROM sea_got;
DROP TABLE sea_got;
CREATE TEMP TABLE sea_got AS EXECUTE nearest(pg_temp.vec(-9, 16), 500);
SELECT count(*), (SELECT requests FROM navis_last_scan()), pg_temp.from_graph('sea_l2', 500) FROM sea_got;
DROP TABLE sea_got;
CREATE TEMP TABLE sea_got AS EXECUTE nearest(pg_temp.vec(-9, 16), NULL);
SELECT count(*), (SELECT rows FROM navis_last_scan()) FROM sea_got;
DROP TABLE sea_got;
EXECUTE nearest(NULL, 0);
EXECUTE nearest('{1,2}', 5);
DEALLOCATE nearest;
RESET plan_cache_mode;
-- in functions
CREATE FUNCTION pg_temp.nearest(q real[], k int) RETURNS SETOF int LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT id FROM sea ORDER BY v <-> q LIMIT k;
END $$;
SELECT count(*), count(DISTINCT i) FROM pg_temp.nearest(pg_temp.vec(1, 16), 1) i;
SELECT requests, pg_temp.from_graph('sea_l2', 1) FROM navis_last_scan();
SELECT count(*), count(DISTINCT i) FROM pg_temp.nearest(pg_temp.vec(2, 16), 40) i;
SELECT requests, pg_temp.from_graph('sea_l2', 40) FROM navis_last_scan();
SELECT count(*), count(DISTINCT i) FROM pg_temp.nearest(pg_temp.vec(3, 16), 200) i;
SELECT requests, pg_temp.from_graph('sea_l2', 200) FROM navis_last_scan();

-- cursors: in pieces, and beside another search
BEGIN;
DECLARE c CURSOR FOR SELECT id, v <-> pg_temp.vec(-11, 16) AS d FROM sea ORDER BY v <-> pg_temp.vec(-11, 16) LIMIT 60;
CREATE TEMP TABLE sea_cursor (id int, d float8, n serial);
CREATE FUNCTION pg_temp.pull(c refcursor, k int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  FOR i IN 1 .. k LOOP
    FETCH c INTO r;
    IF NOT FOUND THEN
      RETURN i - 1;
    END IF;
    INSERT INTO sea_cursor VALUES (r.id, r.d);
  END LOOP;
  RETURN k;
END $$;
SELECT pg_temp.pull('c', 1);
SELECT pg_temp.pull('c', 9);
SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-12, 16) LIMIT 10) s;
SELECT pg_temp.pull('c', 30);
SELECT pg_temp.from_graph('sea_l2', 40);
SELECT pg_temp.pull('c', 100);
COMMIT;
SELECT count(*), count(DISTINCT id), array_agg(d ORDER BY n) = array_agg(d ORDER BY d) AS ordered FROM sea_cursor;
SELECT count(*) >= 58 AS right FROM sea_cursor WHERE id IN
  (SELECT id FROM (SELECT id FROM sea ORDER BY (v <-> pg_temp.vec(-11, 16)) + 0 LIMIT 60) s);
-- without LIMIT: growing batches
TRUNCATE sea_cursor;
SET enable_seqscan = off;
SET enable_sort = off;
BEGIN;
DECLARE c CURSOR FOR SELECT id, v <-> pg_temp.vec(-11, 16) AS d FROM sea ORDER BY v <-> pg_temp.vec(-11, 16);
SELECT pg_temp.pull('c', 300);
SELECT requests > 1 AS batches, pg_temp.from_graph('sea_l2', 300) FROM navis_last_scan();
COMMIT;
SELECT count(*), count(DISTINCT id), array_agg(d ORDER BY n) = array_agg(d ORDER BY d) AS ordered FROM sea_cursor;
-- WITH HOLD, read after the transaction; abandoned ones do no harm
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id, 0::float8 AS d FROM sea ORDER BY v <-> pg_temp.vec(-11, 16) LIMIT 25;
DECLARE a CURSOR FOR SELECT id, 0::float8 AS d FROM sea ORDER BY v <-> pg_temp.vec(-11, 16);
SELECT pg_temp.pull('a', 3);
COMMIT;
SELECT pg_temp.pull('h', 20), pg_temp.pull('h', 20), pg_temp.pull('h', 1);
CLOSE h;
BEGIN;
DECLARE a CURSOR FOR SELECT id, 0::float8 AS d FROM sea ORDER BY v <-> pg_temp.vec(-11, 16);
SELECT pg_temp.pull('a', 3);
SELECT 1 / 0;
ROLLBACK;
-- backwards only with SCROLL, which materializes
BEGIN;
DECLARE b SCROLL CURSOR FOR SELECT id, 0::float8 AS d FROM sea ORDER BY v <-> pg_temp.vec(-11, 16) LIMIT 25;
SELECT pg_temp.pull('b', 20);
MOVE BACKWARD 20 IN b;
SELECT pg_temp.pull('b', 100);
DECLARE f CURSOR FOR SELECT id FROM sea ORDER BY v <-> pg_temp.vec(-11, 16) LIMIT 25;
MOVE 3 IN f;
MOVE BACKWARD 1 IN f;
ROLLBACK;
-- rewound by a correlated sub-select: each rescan asks anew
SELECT count(DISTINCT x), sum(n) FROM (
  SELECT q AS x, (SELECT count(*) FROM (SELECT id FROM sea ORDER BY v <-> pg_temp.vec(q, 16) LIMIT q) s) AS n
  FROM generate_series(1, 20) q) s;
RESET enable_seqscan;
RESET enable_sort;

-- MergeAppend over partitions, each searched through its own index
CREATE TABLE sea_part (id int, v real[]) PARTITION BY RANGE (id);
CREATE TABLE sea_part1 PARTITION OF sea_part FOR VALUES FROM (1) TO (1501);
CREATE TABLE sea_part2 PARTITION OF sea_part FOR VALUES FROM (1501) TO (10000);
INSERT INTO sea_part SELECT id, v FROM sea;
CREATE INDEX ON sea_part USING navis (v);
ANALYZE sea_part;
SET enable_seqscan = off;
SET enable_sort = off;
EXPLAIN (COSTS OFF) SELECT id FROM sea_part ORDER BY v <-> '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}' LIMIT 10;
SELECT count(*) >= 9 AS found FROM
  (SELECT id FROM sea_part ORDER BY v <-> pg_temp.vec(-2, 16) LIMIT 10) p
WHERE id IN (SELECT id FROM (SELECT id FROM sea ORDER BY (v <-> pg_temp.vec(-2, 16)) + 0 LIMIT 10) s);
SELECT mode, hops > 0 AS hops, edge_pages > 0 AS edge_pages, rows >= 1 AS rows FROM navis_last_scan();

DROP TABLE sea, sea_part;
