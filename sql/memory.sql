-- What goes over all rows of a table needs no memory for them: an index
-- expression, which is evaluated for each row, looks at the session's.
CREATE FUNCTION within_memory(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF (SELECT sum(used_bytes) FROM pg_backend_memory_contexts) > current_setting('test.memory')::int8 THEN
    RAISE EXCEPTION 'memory grows with the rows';
  END IF;
  RETURN v;
END $$;
-- 200 vectors of 64 kB, 2 MB more than there is now.
CREATE TABLE long (id int, v real[]);
ALTER TABLE long ALTER v SET STORAGE EXTERNAL;
INSERT INTO long SELECT i, array_fill(i::real, ARRAY[16000]) FROM generate_series(1, 200) i;
SELECT set_config('test.memory', (sum(used_bytes) + 2 * 1024 * 1024)::text, false) IS NOT NULL AS set FROM pg_backend_memory_contexts;
CREATE INDEX long_v ON long USING navis (within_memory(v));
SELECT live_rows FROM navis_index_info('long_v');
SELECT count(*) FROM navis_check('long_v');
INSERT INTO long SELECT id, v FROM long LIMIT 100;
VACUUM long;
SELECT live_rows FROM navis_index_info('long_v');
-- A scan that is read to its end.
SET enable_seqscan = off;
SET enable_sort = off;
SELECT count(*) FROM (SELECT id FROM long ORDER BY within_memory(v) <-> array_fill(0::real, ARRAY[16000])) s;
DROP TABLE long;
