"""The columns of the data source's rows: the table's, with the types of the warehouse, and `_key`, `_version`, `_op`.

Pure: no I/O, and no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cdc.errors import UsageError
from cdc.stores.contract import SchemaColumn, TableSchema
from sinks.typed_columns import STRING, spark_type

KEY: Final = "_key"
VERSION: Final = "_version"
OP: Final = "_op"
OWN: Final = (KEY, VERSION, OP)
# Types of which capture writes every value as a JSON string.
_TEXTS: Final = frozenset(
    {"text", "varchar", "bpchar", "char", "name", "citext", "json", "jsonb", "xml", "uuid", "inet", "cidr", "macaddr"}
    | {"macaddr8", "numeric", "money", "bytea", "date", "time", "timetz", "timestamp", "timestamptz", "interval"}
)


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the rows.

    `name` is its name in Spark, `type` its Spark type, `source` its name in Postgres ("" for `_key`, `_version` and
    `_op`). `is_text`: the events have a JSON string or null, never another JSON value.
    """

    name: str
    type: str
    source: str = ""
    is_text: bool = False


def source_columns(table: TableSchema, *, as_text: bool = False) -> list[SourceColumn]:
    """Return all columns of the table's rows. `as_text`: all of them are strings.

    Spark treats names that differ only in case as equal, so a later one gets an underscore at the end. A column that is
    called like one of our own gets another underscore in front.
    """
    taken = set(OWN)
    found = []
    for column in table.columns:
        name = f"_{column.name}" if column.name.lower() in OWN else column.name
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        found.append(_source_column(column, name, as_text=as_text))
    return [*found, *(SourceColumn(name, STRING) for name in OWN)]


def requested_columns(known: Iterable[SourceColumn], fields: Iterable[tuple[str, str]]) -> list[SourceColumn]:
    """Return the columns that a schema asks for: names and types. Any column may be read as `string`."""
    by_name = {column.name: column for column in known}
    found = []
    for name, kind in fields:
        column = by_name.get(name)
        if column is None:
            raise UsageError(f"The table has no column {name!r}. It has: {', '.join(by_name)}.")
        if kind not in (column.type, STRING):
            raise UsageError(f"Column {name} is {column.type}; it can be read as that or as string, not as {kind}.")
        found.append(SourceColumn(name, kind, column.source, column.is_text))
    return found


def _source_column(column: SchemaColumn, name: str, *, as_text: bool) -> SourceColumn:
    kind = STRING if as_text else spark_type(column)
    return SourceColumn(name, kind, column.name, column.type in _TEXTS)
