--
-- Distance operators of real[]: values, symmetry, NULL, errors.
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

-- values
SELECT '{1,2}'::real[] <-> '{4,6}' AS l2,
       '{1,2}'::real[] <#> '{4,6}' AS ip,
       round(('{1,0}'::real[] <=> '{1,1}')::numeric, 6) AS cosine;
SELECT '{3}'::real[] <-> '{-1}' AS l2, '{3}'::real[] <#> '{-1}' AS ip,
       round(('{3}'::real[] <=> '{-1}')::numeric, 6) AS cosine;
SELECT '{1,2,3}'::real[] <-> '{1,2,3}' AS zero;
-- longer than any vector register, and not a multiple of one
SELECT n, a <-> b AS l2, a <#> b AS ip,
       round((a <=> a)::numeric, 6) AS cosine
FROM (SELECT n, array(SELECT (i % 5)::real FROM generate_series(1, n) i) AS a,
             array(SELECT (i % 5 + 1)::real FROM generate_series(1, n) i) AS b
      FROM unnest('{1,4,7,9,16,25,49,100,225,1024,16000}'::int[]) n) s;

-- symmetry, and agreement with the definition computed by SQL
WITH v AS (
  SELECT i, array(SELECT (hashint4(i * 100 + j) / 2147483648.0)::real
                  FROM generate_series(1, 33) j) AS x
  FROM generate_series(1, 12) i)
SELECT bool_and(a.x <-> b.x = b.x <-> a.x) AS l2_symmetric,
       bool_and(a.x <#> b.x = b.x <#> a.x) AS ip_symmetric,
       bool_and(a.x <=> b.x = b.x <=> a.x) AS cosine_symmetric,
       bool_and(abs((a.x <-> b.x) - s.l2) < 1e-5) AS l2_right,
       bool_and(abs((a.x <#> b.x) - s.ip) < 1e-5) AS ip_right,
       bool_and(abs((a.x <=> b.x) - s.cosine) < 1e-5) AS cosine_right,
       count(*)
FROM v a, v b, LATERAL (
  SELECT sqrt(sum((p::float8 - q) ^ 2)) AS l2, -sum(p::float8 * q) AS ip,
         1 - sum(p::float8 * q) / sqrt(sum(p::float8 ^ 2) * sum(q::float8 ^ 2))
           AS cosine
  FROM unnest(a.x, b.x) u(p, q)) s;

-- no overflow in the squares of large, no underflow in those of small numbers
SELECT '{1e30}'::real[] <-> '{-1e30}' > 1.9e30 AS large,
       '{1e-30}'::real[] <-> '{-1e-30}' > 0 AS small,
       round(('{1e30,1e30}'::real[] <=> '{1e30,0}')::numeric, 6) AS cosine_large;

-- a zero vector has no direction
SELECT '{0,0}'::real[] <=> '{1,2}' AS "left", '{1,2}'::real[] <=> '{0,0}' AS "right",
       '{0,0}'::real[] <=> '{0,0}' AS "both";
SELECT '{0,0}'::real[] <-> '{3,4}' AS l2, '{0,0}'::real[] <#> '{3,4}' AS ip;

-- NULL in, NULL out
SELECT NULL::real[] <-> '{1}' IS NULL AS l2, '{1}'::real[] <#> NULL IS NULL AS ip,
       NULL::real[] <=> NULL IS NULL AS cosine;

-- arrays with other bounds, domains, toasted and compressed values
SELECT '[5:6]={1,2}'::real[] <-> '{4,6}' AS l2;
CREATE TABLE op_toast (v real[]);
ALTER TABLE op_toast ALTER v SET STORAGE EXTERNAL;
INSERT INTO op_toast SELECT array_agg(i::real) FROM generate_series(1, 3000) i;
ALTER TABLE op_toast ALTER v SET STORAGE EXTENDED;
INSERT INTO op_toast SELECT array_fill(2::real, ARRAY[3000]);
SELECT v <-> v AS self, v <#> array_fill(1::real, ARRAY[3000]) AS ip FROM op_toast ORDER BY 2;
DROP TABLE op_toast;

-- errors: found and expected, with SQLSTATE
SELECT op, pg_temp.failure(format('SELECT %L::real[] %s %L::real[]', a, op, b))
FROM unnest('{<->,<#>,<=>}'::text[]) op,
     (VALUES ('{1,2}', '{1,2,3}'), ('{1,2,3}', '{1,2}')) t(a, b);
SELECT op, pg_temp.failure(format('SELECT %L::real[] %s %L::real[]', a, op, b))
FROM unnest('{<->,<#>,<=>}'::text[]) op,
     (VALUES ('{1,NULL}', '{1,2}'), ('{1,2}', '{NULL,2}'), ('{1,NaN}', '{1,2}'),
             ('{1,2}', '{1,Infinity}'), ('{-Infinity,1}', '{1,2}'),
             ('{}', '{1}'), ('{{1,2}}', '{1,2}'), ('{1,2}', '{{{1}},{{2}}}')) t(a, b);
SELECT pg_temp.failure('SELECT array_fill(1::real, ARRAY[16001]) <-> array_fill(1::real, ARRAY[16001])');
SELECT array_fill(1::real, ARRAY[16000]) <-> array_fill(2::real, ARRAY[16000]) > 126 AS most_dimensions;
SELECT pg_temp.failure('SELECT ''{1}''::float8[] <-> ''{1}''::float8[]') LIKE '42883%' AS other_types_have_no_operator;

-- properties the planner and pg_dump rely on
SELECT oprname, oprcom = o.oid AS own_commutator, p.provolatile, p.proisstrict,
       p.proparallel, oprresult::regtype
FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
WHERE oprleft = 'real[]'::regtype AND oprname IN ('<->', '<#>', '<=>')
ORDER BY oprname COLLATE "C";
