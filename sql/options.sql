--
-- Index options and settings: bounds, errors, defaults.
--
CREATE FUNCTION pg_temp.failure(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  detail text;
BEGIN
  EXECUTE query;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RETURN concat_ws(' | ', SQLSTATE, SQLERRM, nullif(detail, ''));
END $$;

CREATE TABLE opt (v real[]);

-- lowest and highest values, on an empty table
CREATE FUNCTION pg_temp.try(option text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  answer text;
BEGIN
  answer := pg_temp.failure(format('CREATE INDEX opt_try ON opt USING navis (v) WITH (%s)', option));
  DROP INDEX IF EXISTS opt_try;
  RETURN answer;
END $$;
SET client_min_messages = warning;
SELECT o, pg_temp.try(o) FROM unnest(ARRAY[
  'max_degree = 7', 'max_degree = 8', 'max_degree = 512', 'max_degree = 513',
  'build_list_size = 7', 'build_list_size = 8', 'build_list_size = 2000', 'build_list_size = 2001',
  'alpha = 0.99', 'alpha = 1', 'alpha = 2', 'alpha = 2.01',
  'pq_bytes = -4', 'pq_bytes = 0', 'pq_bytes = 4', 'pq_bytes = 6', 'pq_bytes = 256', 'pq_bytes = 260',
  'dimensions = -1', 'dimensions = 0', 'dimensions = 1', 'dimensions = 16000', 'dimensions = 16001',
  'entrance_ratio = 0.00009', 'entrance_ratio = 0.0001', 'entrance_ratio = 0.5', 'entrance_ratio = 0.51',
  'entrance_degree = 3', 'entrance_degree = 4', 'entrance_degree = 128', 'entrance_degree = 129',
  'consolidate_threshold = 0.009', 'consolidate_threshold = 0.01', 'consolidate_threshold = 1', 'consolidate_threshold = 1.1',
  'max_degree = many', 'fillfactor = 90', 'm = 16']) o;
RESET client_min_messages;

-- what is given stands in the metapage until the next REINDEX
CREATE INDEX opt_i ON opt USING navis (v) WITH (max_degree = 24, build_list_size = 48,
  alpha = 1.5, pq_bytes = 8, dimensions = 3, entrance_ratio = 0.25, entrance_degree = 16);
SELECT max_degree, build_list_size, alpha, entrance_ratio, entrance_degree, dimensions
FROM navis_index_info('opt_i');
ALTER INDEX opt_i SET (max_degree = 40, dimensions = 4);
SELECT max_degree, dimensions FROM navis_index_info('opt_i');
ALTER INDEX opt_i SET (consolidate_threshold = 0.25);
ALTER INDEX opt_i RESET (consolidate_threshold);
REINDEX INDEX opt_i;
SELECT max_degree, dimensions FROM navis_index_info('opt_i');
ALTER INDEX opt_i RESET (max_degree, build_list_size, alpha, dimensions, entrance_ratio, entrance_degree);
REINDEX INDEX opt_i;
SELECT max_degree, build_list_size, round(alpha::numeric, 6) AS alpha,
       round(entrance_ratio::numeric, 6) AS entrance_ratio, entrance_degree, dimensions
FROM navis_index_info('opt_i');
SELECT reloptions FROM pg_class WHERE relname = 'opt_i';
SELECT pg_temp.failure('ALTER INDEX opt_i SET (max_degree = 3)');
SELECT pg_temp.failure('ALTER INDEX opt_i SET (pq_bytes = 7)');

-- all settings: default, kind, range, when they take effect
SELECT name, boot_val, unit, vartype, min_val, max_val, enumvals, context
FROM pg_settings WHERE name LIKE 'navis.%' ORDER BY name;
SELECT count(*) AS without_description FROM pg_settings
WHERE name LIKE 'navis.%' AND coalesce(short_desc, '') = '';
SHOW navis.search_list_size;
SHOW navis.build_memory;
SHOW navis.pending_memory;
SHOW navis.io_method;
SET navis.search_list_size = 9;
SET navis.search_list_size = 10001;
SET navis.casr_percentile_search = 0.5;
SET navis.beam_width = 0;
SET navis.cache_size = 0;
SET navis.directory = '/tmp';
SET navis.search_threads = 2;
SET navis.collect_interval = 5;
SET navis.no_such_setting = 1;
-- who may take the server's memory
CREATE ROLE opt_user;
SET ROLE opt_user;
SET navis.build_memory = '1GB';
SET navis.search_list_size = 50;
RESET ROLE;
RESET navis.search_list_size;
DROP ROLE opt_user;

DROP TABLE opt;
