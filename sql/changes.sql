--
-- Inserts, updates, deletes: seen at once by their transaction, gone with it.
--
CREATE FUNCTION pg_temp.vec(i int, dim int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
  'SELECT array_agg((hashint4(i * 1000 + j) / 2147483648.0)::real ORDER BY j)
   FROM generate_series(1, dim) j';
CREATE TABLE chg (id int PRIMARY KEY, v real[], note text);
INSERT INTO chg SELECT i, pg_temp.vec(i, 16) FROM generate_series(1, 2500) i;
CREATE INDEX chg_v ON chg USING navis (v);
VACUUM ANALYZE chg;
-- nearest row to a vector, and how it was found; -1: no hit at distance 0
CREATE FUNCTION pg_temp.find(q real[], OUT id int, OUT mode text, OUT hops bool, OUT edge_pages bool)
LANGUAGE plpgsql AS $$
DECLARE
  d float8;
BEGIN
  SELECT c.id, c.v <-> q INTO id, d FROM chg c ORDER BY c.v <-> q LIMIT 1;
  IF d <> 0 THEN
    id := -1;
  END IF;
  SELECT l.mode, l.hops > 0, l.edge_pages > 0 INTO mode, hops, edge_pages
  FROM navis_last_scan() l WHERE l.index = 'chg_v'::regclass AND l.rows >= 1;
END $$;
SELECT * FROM pg_temp.find(pg_temp.vec(77, 16));

-- read your own writes
SELECT * FROM pg_temp.find(pg_temp.vec(5001, 16));
INSERT INTO chg VALUES (5001, pg_temp.vec(5001, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(5001, 16));
BEGIN;
INSERT INTO chg SELECT i, pg_temp.vec(i, 16) FROM generate_series(5002, 5100) i;
SELECT * FROM pg_temp.find(pg_temp.vec(5002, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(5100, 16));
UPDATE chg SET v = pg_temp.vec(6001, 16) WHERE id = 77;
SELECT * FROM pg_temp.find(pg_temp.vec(6001, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(77, 16));
DELETE FROM chg WHERE id = 78;
SELECT * FROM pg_temp.find(pg_temp.vec(78, 16));
COMMIT;
SELECT * FROM pg_temp.find(pg_temp.vec(5002, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(6001, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(77, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(78, 16));

-- an update of another column leaves the vector where it is, HOT or not
UPDATE chg SET note = 'hot' WHERE id = 79;
SELECT * FROM pg_temp.find(pg_temp.vec(79, 16));
ALTER TABLE chg ADD k int DEFAULT 0;
CREATE INDEX ON chg (k);
UPDATE chg SET k = 1 WHERE id = 80;
SELECT * FROM pg_temp.find(pg_temp.vec(80, 16));
UPDATE chg SET k = k + 1 WHERE id = 80;
SELECT count(*) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(80, 16) LIMIT 5) s WHERE id = 80;
SELECT note IS NULL AS right_row FROM chg ORDER BY v <-> pg_temp.vec(80, 16) LIMIT 1;

-- rollback, of all and of a part
BEGIN;
INSERT INTO chg VALUES (5201, pg_temp.vec(5201, 16));
SAVEPOINT s;
INSERT INTO chg VALUES (5202, pg_temp.vec(5202, 16));
UPDATE chg SET v = pg_temp.vec(5203, 16) WHERE id = 81;
DELETE FROM chg WHERE id = 82;
SELECT * FROM pg_temp.find(pg_temp.vec(5202, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(5203, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(82, 16));
ROLLBACK TO s;
SELECT * FROM pg_temp.find(pg_temp.vec(5201, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(5202, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(5203, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(81, 16));
SELECT * FROM pg_temp.find(pg_temp.vec(82, 16));
ROLLBACK;
SELECT * FROM pg_temp.find(pg_temp.vec(5201, 16));
-- a statement that fails half way
INSERT INTO chg SELECT i, CASE WHEN i < 5350 THEN pg_temp.vec(i, 16) ELSE '{1,2}' END
  FROM generate_series(5301, 5400) i;
SELECT * FROM pg_temp.find(pg_temp.vec(5301, 16));

-- LIMIT gives so many rows all the same
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(5301, 16) LIMIT 500) s;
SELECT mode, rows >= 500 AS rows, hops > 0 AS hops FROM navis_last_scan();
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(5301, 16)) s;
SELECT count(*) FROM chg;

-- a cursor sees what its snapshot sees
CREATE FUNCTION pg_temp.rest(c refcursor, OUT n int, OUT inserted int, OUT deleted int) LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  n := 0; inserted := 0; deleted := 0;
  LOOP
    FETCH c INTO r;
    EXIT WHEN NOT FOUND;
    n := n + 1;
    inserted := inserted + (r.id > 7000)::int;
    deleted := deleted + (r.id % 2 = 0 AND r.id <= 7000)::int;
  END LOOP;
END $$;
BEGIN;
DECLARE c CURSOR FOR SELECT id, v <-> pg_temp.vec(90, 16) AS d FROM chg
  ORDER BY v <-> pg_temp.vec(90, 16);
FETCH 1 FROM c;
DELETE FROM chg WHERE id % 2 = 0;
INSERT INTO chg SELECT 7000 + i, pg_temp.vec(90, 16) FROM generate_series(1, 20) i;
SELECT * FROM pg_temp.rest('c');
SELECT index, rows >= 2599 AS rows, hops > 0 AS hops, edge_pages > 0 AS edge_pages FROM navis_last_scan();
SELECT count(*) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(90, 16)) s;
SELECT count(*) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(90, 16) LIMIT 20) s WHERE id > 7000;
ROLLBACK;
-- a holdable cursor across a commit
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id, 0::float8 AS d FROM chg ORDER BY v <-> pg_temp.vec(90, 16) LIMIT 30;
FETCH 1 FROM h;
DELETE FROM chg WHERE id IN (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(90, 16) LIMIT 5);
COMMIT;
VACUUM chg;
SELECT n FROM pg_temp.rest('h');
CLOSE h;
SELECT * FROM pg_temp.find(pg_temp.vec(90, 16));

-- dead rows do not use up a LIMIT
DELETE FROM chg WHERE id % 10 <> 0;
SELECT count(*) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(11, 16) LIMIT 100) s;
SELECT mode IN ('graph', 'graph+sweep') AS graph, hops > 0 AS hops FROM navis_last_scan();
VACUUM chg;
SELECT count(*) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(11, 16) LIMIT 100) s;
SELECT mode IN ('graph', 'graph+sweep') AS graph, rows, hops > 0 AS hops FROM navis_last_scan();
-- VACUUM leaves true counts behind
SELECT reltuples = (SELECT count(*) FROM chg) AS true_count FROM pg_class WHERE relname = 'chg_v';
SELECT live_rows = (SELECT count(*) FROM chg) AS true_count FROM navis_index_info('chg_v');
DELETE FROM chg;
VACUUM chg;
SELECT count(*) FROM (SELECT id FROM chg ORDER BY v <-> pg_temp.vec(11, 16) LIMIT 100) s;
SELECT live_rows FROM navis_index_info('chg_v');
INSERT INTO chg VALUES (1, pg_temp.vec(1, 16));
SELECT id FROM chg ORDER BY v <-> pg_temp.vec(11, 16) LIMIT 100;
RESET enable_seqscan;
RESET enable_sort;

-- ON CONFLICT, triggers that change the vector, COPY
INSERT INTO chg VALUES (1, pg_temp.vec(2, 16)) ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO chg VALUES (1, pg_temp.vec(3, 16)) ON CONFLICT DO NOTHING;
SET enable_seqscan = off;
SELECT id, v = pg_temp.vec(2, 16) AS v2 FROM chg ORDER BY v <-> pg_temp.vec(3, 16) LIMIT 3;
CREATE FUNCTION chg_negate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.v := array(SELECT -x FROM unnest(NEW.v) WITH ORDINALITY u(x, n) ORDER BY n);
  RETURN NEW;
END $$;
CREATE TRIGGER t BEFORE UPDATE ON chg FOR EACH ROW EXECUTE FUNCTION chg_negate();
UPDATE chg SET note = 'turned';
SELECT id, v <-> (SELECT array_agg(-x ORDER BY n) FROM unnest(pg_temp.vec(2, 16)) WITH ORDINALITY u(x, n)) AS d
FROM chg ORDER BY v <-> (SELECT array_agg(-x ORDER BY n) FROM unnest(pg_temp.vec(2, 16)) WITH ORDINALITY u(x, n)) LIMIT 1;
COPY chg (id, v) FROM stdin;
10	{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}
11	\N
12	{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,17}
\.
SELECT id FROM chg ORDER BY v <-> '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}' LIMIT 2;
DROP TABLE chg;
DROP FUNCTION chg_negate();

-- 500 equal vectors are one vertex and 500 rows
CREATE TABLE chg_dup (id int PRIMARY KEY, v real[]);
INSERT INTO chg_dup SELECT i, pg_temp.vec(CASE WHEN i % 4 = 0 THEN 0 ELSE i END, 16)
  FROM generate_series(1, 2000) i;
CREATE INDEX chg_dup_v ON chg_dup USING navis (v);
VACUUM ANALYZE chg_dup;
SELECT vertices, live_rows FROM navis_index_info('chg_dup_v');
SELECT count(*), count(DISTINCT id) FROM
  (SELECT id, v <-> pg_temp.vec(0, 16) AS d FROM chg_dup ORDER BY v <-> pg_temp.vec(0, 16) LIMIT 10) s WHERE d = 0;
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE d = 0) AS equal FROM
  (SELECT id, v <-> pg_temp.vec(0, 16) AS d FROM chg_dup ORDER BY v <-> pg_temp.vec(0, 16) LIMIT 510) s;
SELECT mode, rows, hops > 0 AS hops, edge_pages > 0 AS edge_pages FROM navis_last_scan();
-- more of them, some go
INSERT INTO chg_dup SELECT 3000 + i, pg_temp.vec(0, 16) FROM generate_series(1, 100) i;
DELETE FROM chg_dup WHERE id BETWEEN 1000 AND 1199;
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE d = 0) AS equal FROM
  (SELECT id, v <-> pg_temp.vec(0, 16) AS d FROM chg_dup ORDER BY v <-> pg_temp.vec(0, 16) LIMIT 560) s;
VACUUM chg_dup;
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE d = 0) AS equal FROM
  (SELECT id, v <-> pg_temp.vec(0, 16) AS d FROM chg_dup ORDER BY v <-> pg_temp.vec(0, 16) LIMIT 560) s;
SELECT count(*) FROM chg_dup WHERE v = pg_temp.vec(0, 16);
DROP TABLE chg_dup;
