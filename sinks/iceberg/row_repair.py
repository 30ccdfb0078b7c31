"""The SQL that repairs single rows of a current table, in Spark's dialect. Pure: no I/O.

The history determines the correct state of a row, because a sync writes the history first. The statement replaces a row
only with the history's open version, and removes a row only if the history has no open version or a delete. It reads
the history in the same statement. So it does not undo a concurrent change: the change is already in the history, or its
own statement runs later, or one of the two conflicts with the other's commit and is retried.
"""

# ruff: noqa: S608 - identifiers pass through `quoted_name`

from __future__ import annotations

from collections.abc import Sequence

from sinks.iceberg.naming import OP, OPEN, POSITION, SEQ
from sinks.iceberg.schemas import CURRENT_OWN
from sinks.iceberg.statements import Target, full_name, quoted_name


def replace_current(target: Target, rows: str) -> str:
    """Return the MERGE that replaces or removes rows in one commit.

    `rows` is a view of typed rows, one for each key. Op `d` removes the row. If the current table holds a key more than
    once, the statement deletes all its rows and inserts the correct one.
    """
    columns = [*target.columns, *CURRENT_OWN]
    wanted = ", ".join(f"r.{quoted_name(each)}" for each in columns)
    known = ", ".join(quoted_name(each) for each in [*target.key, POSITION, SEQ, OP])
    allowed = (
        f"SELECT {wanted}, r.{OP} FROM {rows} r"
        f" LEFT JOIN (SELECT {known} FROM {full_name(target.history)} WHERE {OPEN} = true) h"
        f" ON {_equal('r', 'h', target.key)}"
        f" WHERE (r.{OP} = 'd' AND coalesce(h.{OP}, 'd') = 'd')"
        f" OR (r.{OP} <> 'd' AND h.{OP} <> 'd' AND h.{POSITION} = r.{POSITION} AND h.{SEQ} = r.{SEQ})"
    )
    listed = ", ".join(quoted_name(each) for each in columns)
    values = ", ".join(f"s.{quoted_name(each)}" for each in columns)
    return (
        f"MERGE INTO {full_name(target.current)} t USING ("
        f"SELECT a.*, explode(array(true, false)) AS _tailrace_removing FROM ({allowed}) a"
        f") s ON s._tailrace_removing AND {_equal('t', 's', target.key)}"
        f" WHEN MATCHED THEN DELETE"
        f" WHEN NOT MATCHED AND NOT s._tailrace_removing AND s.{OP} <> 'd' THEN INSERT ({listed}) VALUES ({values})"
    )


def _equal(left: str, right: str, names: Sequence[str]) -> str:
    return " AND ".join(f"{left}.{quoted_name(each)} = {right}.{quoted_name(each)}" for each in names)
