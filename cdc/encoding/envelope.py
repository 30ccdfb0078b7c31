"""Renders the Debezium envelope of an event as bytes.

Field names and their order are Debezium's. Tailrace adds `commit_lsn`, `position` and `seq`. The parts that are the
same for all rows of one table in one transaction are rendered once, and a row's values are joined between them.
docs/reference/events.md shows the envelope and its differences from Debezium's. `cdc.snapshot.events` renders the same
fields for the rows of snapshots: change both together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import orjson

from cdc import __version__
from cdc.encoding.table_encoder import Shape
from cdc.lsn import LSN
from cdc.pgoutput.messages import Begin, Origin

# pgoutput counts microseconds from 2000-01-01 UTC.
POSTGRES_EPOCH_US = 946_684_800_000_000
NULL = b"null"
# Placeholder for a row's value in the template. JSON text never contains this byte.
_ROW = b"\0"


class Place(NamedTuple):
    """Identifies a change: its LSN, its number in the transaction (`seq`), and Debezium's two event counts.

    `order` counts events of the transaction (`total_order`), `table_order` those of the table in the transaction
    (`data_collection_order`).
    """

    lsn: int
    seq: int
    order: int
    table_order: int


class Envelope:
    """The shared parts of all events of one table in one transaction, and the number of events so far."""

    __slots__ = ("parts", "table_order")

    def __init__(
        self,
        shape: Shape,
        begin: Begin,
        *,
        pipeline: str,
        database: str,
        position: int,
        previous_commit_end: LSN | None,
        origin: Origin | None,
        table_order: int = 0,
    ) -> None:
        self.table_order = table_order
        commit_us = begin.commit_time_us + POSTGRES_EPOCH_US
        event = _template(pipeline, database, shape.schema, shape.table) % (
            commit_us // 1000,
            NULL if previous_commit_end is None else b'\\"%d\\"' % previous_commit_end,
            commit_us,
            commit_us,
            begin.xid,
            NULL if origin is None else orjson.dumps(origin.name),
            NULL if origin is None else b"%d" % origin.commit_lsn,
            begin.final_lsn,
            position,
            begin.xid,
            begin.final_lsn,
        )
        # The constant parts between a row's values, for `render` and for the hot loop of `row_runs`.
        self.parts = event.split(_ROW)

    def next_event(self) -> int:
        """Count the next event of the table."""
        self.table_order += 1
        return self.table_order

    def advance(self, table_order: int) -> None:
        """Take over the number of the last event of a run that the fast path has rendered."""
        self.table_order = table_order

    def render(
        self, op: bytes, before: bytes, after: bytes, place: Place, now: bytes, reselected: Sequence[str] = ()
    ) -> bytes:
        """Return one event. `reselected`: columns whose value was read from the table, since the WAL lacks it."""
        mark = b',"reselected":' + orjson.dumps(reselected) if reselected else b""
        lsn, seq, order, table_order = [b"%d" % number for number in place]
        head, middle, *rest = self.parts
        return b"".join(
            (
                *(head, before, middle, after, rest[0], lsn, rest[1], lsn, rest[2], seq + mark),
                *(rest[3], order, rest[4], table_order, envelope_tail(op, now)),
            )
        )


def envelope_tail(op: bytes, now: bytes) -> bytes:
    """Return the last part of an event: the operation and the envelope's time stamps."""
    return b'},"op":"%b",%b}' % (op, now)


def clock() -> bytes:
    """Return the present time as the envelope's time stamps. Called once per chunk of messages, not per row."""
    ns = time.time_ns()
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (ns // 1_000_000, ns // 1000, ns)


@lru_cache(maxsize=4096)
def _template(pipeline: str, database: str, schema: str, table: str) -> bytes:
    """Return the template of a table's event, without `envelope_tail`.

    It has `%` fields for the values of a transaction, and a `_ROW` byte for each value of a row.
    """
    template: bytes = (
        b'{"before":~,"after":~,"source":{"version":"%b","connector":"postgresql","name":%b,"ts_ms":%%d,'
        b'"snapshot":"false","db":%b,"sequence":"[%%b,\\"~\\"]","ts_us":%%d,"ts_ns":%%d000,"schema":%b,'
        b'"table":%b,"txId":%%d,"lsn":~,"xmin":null,"origin":%%b,"origin_lsn":%%b,"commit_lsn":%%d,"position":%%d,'
        b'"seq":~},"transaction":{"id":"%%d:%%d","total_order":~,"data_collection_order":'
    )
    names = [orjson.dumps(name).replace(b"%", b"%%") for name in (pipeline, database, schema, table)]
    return template.replace(b"~", _ROW) % (__version__.encode(), *names)
