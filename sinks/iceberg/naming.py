"""Names of namespaces, tables and columns in the warehouse. Pure: no I/O. docs/guides/warehouse.md explains them.

The names for the source's table `public.orders`:

- `public.orders`: the current rows in the serving generation.
- `public__g3.orders`: the current rows in generation 3 while it does not serve.
- `public__history.orders`: the history.
- `public__history_1f0c88e2.orders`: the history of an earlier pipeline.

Bytes outside `[A-Za-z0-9_]` become `-hh`, as in a topic's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cdc.stores.contract import TableSchema

#: The catalog's name. A JDBC catalog stores it with every table, so every reader must use this name.
CATALOG: Final = "tailrace"
#: The table that holds the warehouse's state. It is the only table in its namespace.
STATE: Final = ("__tailrace", "state")

POSITION: Final = "_tailrace_position"
SEQ: Final = "_tailrace_seq"
#: The commit time of the version, by the source's clock.
AT: Final = "_tailrace_at"
OP: Final = "_tailrace_op"
TRANSACTION: Final = "_tailrace_transaction"
VALID_FROM: Final = "_tailrace_valid_from"
VALID_TO: Final = "_tailrace_valid_to"
TO_POSITION: Final = "_tailrace_to_position"
TO_SEQ: Final = "_tailrace_to_seq"
OPEN: Final = "_tailrace_open"
# Columns of DataFrames and statements only, not of stored tables. The prefix avoids conflicts with user columns.
KEY_TEXT: Final = "_tailrace_key"
VERSION_TEXT: Final = "_tailrace_version"
PARTITION: Final = "_tailrace_partition"
OFFSET: Final = "_tailrace_offset"
UNFIT: Final = "_tailrace_unfit"
RECORDS: Final = "_tailrace_records"
ENDS: Final = "_tailrace_ends"
CLOSING: Final = "_tailrace_closing"
LAST_POSITION: Final = "_tailrace_last_position"
LAST_SEQ: Final = "_tailrace_last_seq"

_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9_]")
# A source schema whose name looks like one of Tailrace's namespaces gets an escaped underscore to avoid a conflict.
_OURS: Final = re.compile(r"_(_(?:history(?:_[0-9a-f]{8})?|tailrace|g[0-9]+))\Z")
_RESERVED_COLUMN: Final = re.compile(r"_+tailrace_", re.IGNORECASE)

Identifier = tuple[str, str]


def current_table(table: TableSchema) -> Identifier:
    """Return the name of a table's current rows in the serving generation, which readers use."""
    return namespace(table.schema), _escape(table.table)


def generation_table(table: TableSchema, number: int) -> Identifier:
    """Return the name of a table's current rows in a generation that does not serve."""
    return f"{namespace(table.schema)}__g{number}", _escape(table.table)


def history_table(table: TableSchema) -> Identifier:
    """Return the name of a table's history."""
    return f"{namespace(table.schema)}__history", _escape(table.table)


def earlier_history(name: Identifier, pipeline_id: str) -> Identifier:
    """Return the new name of the history `name` after another pipeline has started a history of its own.

    `pipeline_id` is the id of the pipeline that wrote the renamed history.
    """
    return f"{name[0]}_{pipeline_id[:8] or '0' * 8}", name[1]


def is_history(name: str) -> bool:
    """Whether a namespace holds the histories of the present pipeline."""
    return name.endswith("__history")


def namespace(schema: str) -> str:
    """Return the namespace for a source schema."""
    return _OURS.sub(r"-5f\1", _escape(schema))


def generation_of(name: str) -> int | None:
    """Return the generation of a namespace. None: a namespace of the serving generation or of histories."""
    base, _, ending = name.rpartition("__g")
    return int(ending) if base and ending.isdigit() else None


def column_names(columns: Sequence[str]) -> list[str]:
    """Return the columns' names in the warehouse, in order. A name stays the same unless Spark would misread it.

    Spark treats names that differ only in case as equal, so later ones get an underscore at the end. Spark reads a dot
    as a path, so special characters are escaped. A name with Tailrace's prefix gets another underscore at the front.
    """
    taken: set[str] = set()
    named = []
    for column in columns:
        name = _column(column)
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        named.append(name)
    return named


def _column(name: str) -> str:
    if _RESERVED_COLUMN.match(name):
        return f"_{name}"
    return name if not set(name) & set('.`"\\\n\r\t;{}()=,/ ') and name.isprintable() else _escape(name)


def _escape(identifier: str) -> str:
    return _ESCAPED.sub(lambda byte: b"-%02x" % ord(byte[0]), identifier.encode()).decode("ascii")
