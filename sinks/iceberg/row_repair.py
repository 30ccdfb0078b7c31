"""The SQL that puts single rows of a current table right, whatever stands there now, as text in Spark's dialect. Pure.

The history says what a row must be: a sync writes it first. A row is replaced only by the version that the history has
open, and removed only where it has none (or a delete), looked up in the same statement. So a change that comes
meanwhile is not undone: it is in the history already, or its own statement runs after this one, or one of the two finds
the other's commit in its way and runs again.
"""

# ruff: noqa: S608 - identifiers pass through `quoted_name`

from __future__ import annotations

from collections.abc import Sequence

from sinks.iceberg.naming import OP, OPEN, POSITION, SEQ
from sinks.iceberg.schemas import CURRENT_OWN
from sinks.iceberg.statements import Target, full_name, quoted_name


def replace_current(target: Target, rows: str) -> str:
    """`rows`: a view of typed rows, one for each key; with op `d`, the row is to go. All in one commit.

    A key may stand there more than once: all of its rows go, and the one that is right comes beside.
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
