"""A table as Postgres's catalog describes it: columns with their types, and the primary key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg


@dataclass(frozen=True, slots=True)
class PgType:
    """`name` is the catalog's (`int4`, `timestamptz`); a domain is described as the type beneath it."""

    name: str
    element: PgType | None = None
    delimiter: str = ","
    typmod: int = -1


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: PgType


@dataclass(frozen=True, slots=True)
class Table:
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def type_of(self, column: str) -> PgType:
        return next(found.type for found in self.columns if found.name == column)

    def without(self, *columns: str) -> Table:
        """The same table to a reader that does not carry these columns."""
        return replace(self, columns=tuple(kept for kept in self.columns if kept.name not in columns))


_TABLE = "SELECT nspname, relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = %s"
_COLUMNS = (
    "SELECT attname, atttypid, atttypmod FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_KEY = (
    "SELECT attname FROM pg_index, unnest(indkey::int2[]) WITH ORDINALITY AS k (num, place), pg_attribute"
    " WHERE indrelid = %s AND indisprimary AND attrelid = indrelid AND attnum = num ORDER BY place"
)
_TYPE = "SELECT typname, typtype, typbasetype, typtypmod, typcategory, typelem FROM pg_type WHERE oid = %s"


def describe(connection: psycopg.Connection[Any], *names: str) -> list[Table]:
    """Describe tables, each named as one would in SQL (`public.orders`, `"Odd.Name"`)."""
    return [_describe(connection, name) for name in names]


def _describe(connection: psycopg.Connection[Any], name: str) -> Table:
    with connection.cursor() as cursor:
        oid = cursor.execute("SELECT %s::regclass::oid", (name,)).fetchone()[0]  # type: ignore[index]
        schema, table = cursor.execute(_TABLE, (oid,)).fetchone()  # type: ignore[misc]
        columns = cursor.execute(_COLUMNS, (oid,)).fetchall()
        key = tuple(row[0] for row in cursor.execute(_KEY, (oid,)))
        described = tuple(Column(column, _type(cursor, type_, mod)) for column, type_, mod in columns)
    return Table(schema, table, described, key)


def _type(cursor: psycopg.Cursor[Any], oid: int, typmod: int) -> PgType:
    row = cursor.execute(_TYPE, (oid,)).fetchone()
    assert row is not None, f"no type with oid {oid}"
    name, kind, base, base_typmod, category, element = row
    if kind == "d":
        return _type(cursor, base, base_typmod)
    # A fixed-length type may have elements too (point, name): only category A is an array to its users.
    # int2vector and oidvector are in it as well, but write their elements with spaces between.
    if category == "A" and name not in ("int2vector", "oidvector"):
        inner = _type(cursor, element, typmod)
        delimiter = cursor.execute("SELECT typdelim FROM pg_type WHERE oid = %s", (element,)).fetchone()
        assert delimiter is not None
        return PgType(name, inner, delimiter[0], typmod)
    return PgType(name, typmod=typmod)
