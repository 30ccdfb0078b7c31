"""Reads the types that are not built in from the catalog, with their element and base types, in one query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row

from cdc.encoding.values.builtin import built_in
from cdc.encoding.values.types import Kind, TypeInfo

# An array is a type with the output function array_out. typelem is not enough: box, oidvector and others have elements
# too, but another text form.
_QUERY = """
WITH RECURSIVE wanted (oid) AS (
    SELECT pg_catalog.unnest(%s::pg_catalog.oid[])
    UNION
    SELECT CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END
    FROM wanted JOIN pg_catalog.pg_type AS t USING (oid)
    WHERE t.typtype = 'd' OR t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc
)
SELECT t.oid::pg_catalog.int8 AS oid,
       CASE WHEN n.nspname = 'pg_catalog' THEN t.typname::pg_catalog.text
            ELSE pg_catalog.format('%%I.%%I', n.nspname, t.typname) END AS name,
       CASE t.typtype WHEN 'd' THEN 'domain' WHEN 'c' THEN 'composite' WHEN 'e' THEN 'enum'
            WHEN 'r' THEN 'range' WHEN 'm' THEN 'multirange' WHEN 'p' THEN 'pseudo'
            ELSE CASE WHEN t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc THEN 'array' ELSE 'base' END
       END AS kind,
       CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END::pg_catalog.int8 AS base,
       t.typtypmod AS base_typmod,
       COALESCE(element.typdelim, t.typdelim)::pg_catalog.text AS delimiter,
       e.extname::pg_catalog.text AS extension
FROM wanted
JOIN pg_catalog.pg_type AS t USING (oid)
JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type AS element ON element.oid = t.typelem
LEFT JOIN pg_catalog.pg_depend AS d
       ON d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid AND d.deptype = 'e'
LEFT JOIN pg_catalog.pg_extension AS e ON e.oid = d.refobjid
"""


class _Row(NamedTuple):
    oid: int
    name: str
    kind: Kind
    base: int
    base_typmod: int
    delimiter: str
    extension: str | None


def load_types(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, TypeInfo]:
    """Return the types by oid. A type that no longer exists becomes an unknown type, which is encoded as text."""
    wanted = set(oids)
    types = {oid: known for oid in wanted if (known := built_in(oid)) is not None}
    missing = sorted(wanted - types.keys())
    if not missing:
        return types
    with connection.cursor(row_factory=class_row(_Row)) as cursor:
        rows = {row.oid: row for row in cursor.execute(_QUERY, [missing])}
    for oid in missing:
        types[oid] = _type(oid, rows)
    return types


def _type(oid: int, rows: Mapping[int, _Row]) -> TypeInfo:
    known = built_in(oid)
    if known is not None:
        return known
    row = rows.get(oid)
    if row is None:
        return TypeInfo(oid=oid, name="-", kind="base")
    return TypeInfo(
        oid=oid,
        name=row.name,
        kind=row.kind,
        base=_type(row.base, rows) if row.kind in ("array", "domain") else None,
        base_typmod=row.base_typmod if row.kind == "domain" else -1,
        delimiter=row.delimiter,
        extension=row.extension,
    )
