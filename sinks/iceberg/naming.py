"""Names in the warehouse: namespaces, tables, columns. Pure; what they mean to readers is in docs/guides/warehouse.md.

`public.orders` is `public.orders`, its history `public__history.orders` (of an earlier pipeline:
`public__history_1f0c88e2.orders`), and while a generation 3 is built beside the serving one, its table is
`public__g3.orders`. Bytes outside `[A-Za-z0-9_]` become `-hh`, as in a topic's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cdc.stores.contract import TableSchema

#: Of the catalog itself: a JDBC catalog stores it with every table, so every reader must use this one.
CATALOG: Final = "tailrace"
#: Our own namespace; its one table holds the warehouse's state.
STATE: Final = ("__tailrace", "state")

POSITION: Final = "_tailrace_position"
SEQ: Final = "_tailrace_seq"
#: When the version was committed, by the source's clock.
AT: Final = "_tailrace_at"
OP: Final = "_tailrace_op"
TRANSACTION: Final = "_tailrace_transaction"
VALID_FROM: Final = "_tailrace_valid_from"
VALID_TO: Final = "_tailrace_valid_to"
TO_POSITION: Final = "_tailrace_to_position"
TO_SEQ: Final = "_tailrace_to_seq"
OPEN: Final = "_tailrace_open"
# Of frames and statements only, beside a user's columns of any name.
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
# A schema that has the name of one of our namespaces is told from it by an escaped underscore.
_OURS: Final = re.compile(r"_(_(?:history(?:_[0-9a-f]{8})?|tailrace|g[0-9]+))\Z")
_RESERVED_COLUMN: Final = re.compile(r"_+tailrace_", re.IGNORECASE)

Identifier = tuple[str, str]


def current_table(table: TableSchema) -> Identifier:
    """What readers see."""
    return namespace(table.schema), _escape(table.table)


def generation_table(table: TableSchema, number: int) -> Identifier:
    """The same table of a generation that does not serve."""
    return f"{namespace(table.schema)}__g{number}", _escape(table.table)


def history_table(table: TableSchema) -> Identifier:
    return f"{namespace(table.schema)}__history", _escape(table.table)


def earlier_history(name: Identifier, pipeline_id: str) -> Identifier:
    """Where the history `name` goes when another pipeline begins one; `pipeline_id`: of the one that wrote it."""
    return f"{name[0]}_{pipeline_id[:8] or '0' * 8}", name[1]


def is_history(name: str) -> bool:
    """Whether a namespace holds the histories of the present pipeline."""
    return name.endswith("__history")


def namespace(schema: str) -> str:
    return _OURS.sub(r"-5f\1", _escape(schema))


def generation_of(name: str) -> int | None:
    """The generation that a namespace belongs to; None: readers' own, or the history's."""
    base, _, ending = name.rpartition("__g")
    return int(ending) if base and ending.isdigit() else None


def column_names(columns: Sequence[str]) -> list[str]:
    """As the warehouse has them, in order. A name is kept unless it would be read as something else.

    Spark takes names that differ only in case for one, and a dot for a path; names like ours get another underscore.
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
