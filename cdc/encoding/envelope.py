"""The Debezium envelope as bytes: field names and order are Debezium's, `commit_lsn`, `position`, `seq` are ours.

Everything that is the same for all rows of one table in one transaction is rendered once, in parts; a row's values are
joined in between. docs/reference/events.md shows the envelope, and where it differs from Debezium's.
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
# Marks the gaps for a row's values: JSON has no such byte.
_ROW = b"\0"


class Place(NamedTuple):
    """Where a change stands: its own LSN, its number in the transaction, and Debezium's two event counts."""

    lsn: int
    seq: int
    order: int
    table_order: int


class Envelope:
    """The events of one table in one transaction: what they share, and how many there were."""

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
    ) -> None:
        self.table_order = 0
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
        # What stands between the values of a row, for `render` and for the hot loop of `changes`.
        self.parts = event.split(_ROW)

    def render(
        self, op: bytes, before: bytes, after: bytes, place: Place, now: bytes, reselected: Sequence[str] = ()
    ) -> bytes:
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
    """How an event ends."""
    return b'},"op":"%b",%b}' % (op, now)


def clock() -> bytes:
    """The envelope's own time stamps; taken once per chunk of messages, not per row."""
    ns = time.time_ns()
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (ns // 1_000_000, ns // 1000, ns)


@lru_cache(maxsize=4096)
def _template(pipeline: str, database: str, schema: str, table: str) -> bytes:
    """A table's event, to be filled in per transaction, with a gap for each value of a row but `envelope_tail`."""
    template: bytes = (
        b'{"before":~,"after":~,"source":{"version":"%b","connector":"postgresql","name":%b,"ts_ms":%%d,'
        b'"snapshot":"false","db":%b,"sequence":"[%%b,\\"~\\"]","ts_us":%%d,"ts_ns":%%d000,"schema":%b,'
        b'"table":%b,"txId":%%d,"lsn":~,"xmin":null,"origin":%%b,"origin_lsn":%%b,"commit_lsn":%%d,"position":%%d,'
        b'"seq":~},"transaction":{"id":"%%d:%%d","total_order":~,"data_collection_order":'
    )
    names = [orjson.dumps(name).replace(b"%", b"%%") for name in (pipeline, database, schema, table)]
    return template.replace(b"~", _ROW) % (__version__.encode(), *names)
