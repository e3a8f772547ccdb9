--
-- Who says how many dimensions an index has, and values it refuses.
--
CREATE FUNCTION pg_temp.failure(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  detail text;
  hint text;
BEGIN
  EXECUTE query;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RETURN concat_ws(' | ', SQLSTATE, SQLERRM, nullif(detail, ''), nullif(hint, ''));
END $$;

-- the first row
CREATE TABLE dmn (id serial, v real[]);
CREATE INDEX dmn_i ON dmn USING navis (v);
SELECT dimensions FROM navis_index_info('dmn_i');
INSERT INTO dmn (v) VALUES (NULL);
SELECT dimensions FROM navis_index_info('dmn_i');
INSERT INTO dmn (v) VALUES ('{1,2,3}');
SELECT dimensions FROM navis_index_info('dmn_i');
SELECT pg_temp.failure($$INSERT INTO dmn (v) VALUES ('{1,2}')$$);
SELECT pg_temp.failure($$INSERT INTO dmn (v) VALUES ('{1,2,3,4}')$$);
SELECT pg_temp.failure($$UPDATE dmn SET v = '{1,2}'$$);
SELECT count(*) FROM dmn;
-- a query with others
SET enable_seqscan = off;
SELECT pg_temp.failure($$SELECT * FROM dmn ORDER BY v <-> '{1,2}' LIMIT 1$$);
SELECT pg_temp.failure($$SELECT * FROM dmn ORDER BY v <-> '{}' LIMIT 1$$);
SELECT pg_temp.failure($$SELECT * FROM dmn ORDER BY v <-> '{1,NaN,2}' LIMIT 1$$);
SELECT pg_temp.failure($$SELECT * FROM dmn ORDER BY v <-> '{1,NULL,2}' LIMIT 1$$);
SELECT pg_temp.failure($$SELECT * FROM dmn ORDER BY v <-> '{{1,2,3}}' LIMIT 1$$);
SELECT v FROM dmn ORDER BY v <-> '{1,2,4}' LIMIT 1;

-- a rolled-back first row fixes nothing
TRUNCATE dmn;
BEGIN;
INSERT INTO dmn (v) VALUES ('{1,2,3,4,5}');
SELECT v FROM dmn ORDER BY v <-> '{1,2,3,4,6}' LIMIT 1;
ROLLBACK;
SELECT pg_temp.failure($$INSERT INTO dmn (v) VALUES ('{1,2}')$$);
VACUUM dmn;
INSERT INTO dmn (v) VALUES ('{1,2}');
SELECT dimensions FROM navis_index_info('dmn_i');
SELECT v FROM dmn ORDER BY v <-> '{1,3}' LIMIT 2;
-- nor do rows that are deleted and vacuumed
DELETE FROM dmn;
VACUUM dmn;
INSERT INTO dmn (v) VALUES ('{1,2,3,4}');
SELECT dimensions FROM navis_index_info('dmn_i');
SELECT v FROM dmn ORDER BY v <-> '{1,3,3,4}' LIMIT 2;
-- but a row that lives does
SELECT pg_temp.failure($$INSERT INTO dmn (v) VALUES ('{1,2}')$$);
RESET enable_seqscan;

-- the option
CREATE TABLE dmn_option (v real[]);
CREATE INDEX dmn_option_i ON dmn_option USING navis (v) WITH (dimensions = 3);
SELECT pg_temp.failure($$INSERT INTO dmn_option VALUES ('{1,2}')$$);
INSERT INTO dmn_option VALUES ('{1,2,3}');
TRUNCATE dmn_option;
SELECT pg_temp.failure($$INSERT INTO dmn_option VALUES ('{1,2,3,4}')$$);
DROP TABLE dmn_option;

-- a build over rows that do not fit names the row, and leaves nothing behind
CREATE TABLE dmn_bad (id int, v real[]);
INSERT INTO dmn_bad SELECT i, ARRAY[i, i % 7, 1]::real[] FROM generate_series(1, 30) i;
DELETE FROM dmn_bad WHERE id = 17;
INSERT INTO dmn_bad VALUES (17, '{1,2}');
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v);
SELECT ctid FROM dmn_bad WHERE id = 17;
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v) WITH (dimensions = 2);
SELECT count(*) FROM pg_class WHERE relname = 'dmn_bad_i';
UPDATE dmn_bad SET v = '{1,NULL,3}' WHERE id = 17;
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v);
UPDATE dmn_bad SET v = '{1,2,-Infinity}' WHERE id = 17;
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v);
UPDATE dmn_bad SET v = '{}' WHERE id = 17;
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v);
UPDATE dmn_bad SET v = '{{1,2,3}}' WHERE id = 17;
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v);
-- a row that is dead does not fail the build
DELETE FROM dmn_bad WHERE id = 17;
CREATE INDEX dmn_bad_i ON dmn_bad USING navis (v);
SELECT dimensions FROM navis_index_info('dmn_bad_i');
SET enable_seqscan = off;
SELECT id FROM dmn_bad ORDER BY v <-> '{20,6,1}' LIMIT 1;
RESET enable_seqscan;
DROP TABLE dmn_bad;

-- what an index refuses one by one, with SQLSTATE
CREATE TABLE dmn_one (v real[]);
CREATE INDEX dmn_one_i ON dmn_one USING navis (v);
SELECT x, pg_temp.failure(format('INSERT INTO dmn_one VALUES (%L)', x))
FROM unnest(ARRAY['{}', '{NaN}', '{Infinity}', '{-Infinity,1}', '{NULL}', '{1,NULL}', '{{1},{2}}', '{1}']) x;
SELECT pg_temp.failure('INSERT INTO dmn_one VALUES (array_fill(1::real, ARRAY[16001]))');
SELECT pg_temp.failure('INSERT INTO dmn_one VALUES (array_fill(1::real, ARRAY[100000]))');
SELECT count(*) FROM dmn_one;
DROP TABLE dmn_one;

-- the most dimensions: built over, inserted, searched
CREATE TABLE dmn_most (id int, v real[]);
INSERT INTO dmn_most SELECT i, array(SELECT (hashint4(i * 20000 + j) / 2147483648.0)::real
                                     FROM generate_series(1, 16000) j) FROM generate_series(1, 5) i;
CREATE INDEX dmn_most_i ON dmn_most USING navis (v);
INSERT INTO dmn_most SELECT i, array(SELECT (hashint4(i * 20000 + j) / 2147483648.0)::real
                                     FROM generate_series(1, 16000) j) FROM generate_series(6, 8) i;
SET enable_seqscan = off;
SELECT id, v <-> (SELECT v FROM dmn_most WHERE id = 7) AS d FROM dmn_most
ORDER BY v <-> (SELECT v FROM dmn_most WHERE id = 7) LIMIT 1;
SELECT index, mode, pending FROM navis_last_scan();
SELECT count(*) FROM (SELECT id FROM dmn_most ORDER BY v <-> (SELECT v FROM dmn_most WHERE id = 7)) s;
RESET enable_seqscan;
SELECT dimensions FROM navis_index_info('dmn_most_i');
DROP TABLE dmn_most;
-- the fewest, enough rows for a graph
CREATE TABLE dmn_least (id int, v real[]);
INSERT INTO dmn_least SELECT i, ARRAY[i::real / 8] FROM generate_series(1, 2000) i;
CREATE INDEX dmn_least_i ON dmn_least USING navis (v);
SET enable_seqscan = off;
SELECT id FROM dmn_least ORDER BY v <-> '{100}' LIMIT 1;
SELECT index, mode, hops > 0 AS hops, edge_pages > 0 AS edge_pages FROM navis_last_scan();
RESET enable_seqscan;
DROP TABLE dmn_least, dmn;
