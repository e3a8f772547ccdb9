--
-- amvalidate, and what an operator class must not be.
--
SELECT opcname, opcdefault, opcintype::regtype, amvalidate(c.oid)
FROM pg_opclass c JOIN pg_am a ON a.oid = opcmethod
WHERE amname = 'navis' ORDER BY opcname;

SELECT amname, amtype, pg_indexam_has_property(oid, 'can_order') AS can_order,
       pg_indexam_has_property(oid, 'can_unique') AS can_unique,
       pg_indexam_has_property(oid, 'can_multi_col') AS can_multi_col,
       pg_indexam_has_property(oid, 'can_exclude') AS can_exclude,
       pg_indexam_has_property(oid, 'can_include') AS can_include
FROM pg_am WHERE amname = 'navis';
CREATE TABLE val (v real[], w real[], n int);
CREATE INDEX val_i ON val USING navis (v);
SELECT p, pg_index_column_has_property('val_i', 1, p) AS column_has
FROM unnest('{asc,desc,orderable,distance_orderable,returnable,search_array,search_nulls}'::text[]) p;
SELECT p, pg_index_has_property('val_i', p) AS index_has
FROM unnest('{clusterable,index_scan,bitmap_scan,backward_scan}'::text[]) p;

-- classes that lack something, or have too much
CREATE OPERATOR CLASS val_nothing FOR TYPE real[] USING navis AS STORAGE real[];
CREATE OPERATOR CLASS val_no_operator FOR TYPE real[] USING navis AS
  FUNCTION 1 navis_metric_l2();
CREATE OPERATOR CLASS val_no_metric FOR TYPE real[] USING navis AS
  OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops;
CREATE FUNCTION val_bad_metric(real[]) RETURNS int4 LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE OPERATOR CLASS val_wrong_function FOR TYPE real[] USING navis AS
  OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 1 val_bad_metric(real[]);
CREATE OPERATOR CLASS val_search FOR TYPE real[] USING navis AS
  OPERATOR 1 = (anyarray, anyarray),
  FUNCTION 1 navis_metric_l2();
CREATE FUNCTION val_distance(real[], real[]) RETURNS int4 LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE OPERATOR <~> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = val_distance);
CREATE OPERATOR CLASS val_wrong_result FOR TYPE real[] USING navis AS
  OPERATOR 1 <~> (real[], real[]) FOR ORDER BY integer_ops,
  FUNCTION 1 navis_metric_l2();
SELECT opcname, amvalidate(oid) FROM pg_opclass WHERE opcname LIKE 'val\_%' ORDER BY opcname;
-- numbers beyond what the access method has are refused at once
CREATE OPERATOR CLASS val_strategy FOR TYPE real[] USING navis AS
  OPERATOR 2 <-> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 1 navis_metric_l2();
CREATE OPERATOR CLASS val_support FOR TYPE real[] USING navis AS
  OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 2 navis_metric_l2();
-- a metric that does not exist
CREATE FUNCTION val_metric_9() RETURNS int4 LANGUAGE sql IMMUTABLE AS 'SELECT 9';
CREATE OPERATOR CLASS val_metric FOR TYPE real[] USING navis AS
  OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops,
  FUNCTION 1 val_metric_9();
CREATE INDEX ON val USING navis (w val_metric);
CREATE INDEX ON val USING navis (w val_wrong_function);

-- kinds of indexes that do not exist
CREATE UNIQUE INDEX ON val USING navis (v);
CREATE INDEX ON val USING navis (v, w);
CREATE INDEX ON val USING navis (v) INCLUDE (n);
CREATE INDEX ON val USING navis (n);
CREATE INDEX ON val USING navis (v DESC);
CREATE INDEX ON val USING navis (v NULLS FIRST);
ALTER TABLE val ADD EXCLUDE USING navis (v WITH =);
ALTER TABLE val ADD EXCLUDE USING navis (w val_search WITH =);
CLUSTER val USING val_i;

DROP TABLE val;
DROP OPERATOR FAMILY val_nothing USING navis;
DROP OPERATOR FAMILY val_no_operator USING navis;
DROP OPERATOR FAMILY val_no_metric USING navis;
DROP OPERATOR FAMILY val_wrong_function USING navis;
DROP OPERATOR FAMILY val_search USING navis;
DROP OPERATOR FAMILY val_wrong_result USING navis;
DROP OPERATOR FAMILY val_metric USING navis;
DROP OPERATOR <~> (real[], real[]);
DROP FUNCTION val_distance(real[], real[]), val_bad_metric(real[]), val_metric_9();
