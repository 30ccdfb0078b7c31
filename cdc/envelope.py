"""The Debezium envelope as bytes: field names and order are Debezium's, `commit_lsn`, `position`, `seq` are ours.

Everything that is the same for all rows of one table in one transaction is put into a template once; a row fills
in the rest. docs/events.md shows the envelope, and where it differs from Debezium's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import orjson

from cdc import __version__
from cdc.lsn import LSN
from cdc.messages import Begin, Origin
from cdc.relations import Shape

# pgoutput counts microseconds from 2000-01-01 UTC.
POSTGRES_EPOCH_US = 946_684_800_000_000
NULL = b"null"


class Place(NamedTuple):
    """Where a change stands: its own LSN, its number in the transaction, and Debezium's two event counts."""

    lsn: int
    seq: int
    order: int
    table_order: int


class Envelope:
    """The events of one table in one transaction: what they share, and how many there were."""

    __slots__ = ("table_order", "template")

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
        # Filled by `render`, and by the hot path in `changes`, in this order:
        # before, after, lsn, lsn, seq, mark of re-selected columns, order, table order, op, clock().
        self.template = (
            b'{"before":%%b,"after":%%b,"source":{"version":"%b","connector":"postgresql","name":%b,"ts_ms":%d,'
            b'"snapshot":"false","db":%b,"sequence":"[%b,\\"%%d\\"]","ts_us":%d,"ts_ns":%d000,"schema":%b,'
            b'"table":%b,"txId":%d,"lsn":%%d,"xmin":null,"origin":%b,"origin_lsn":%b,"commit_lsn":%d,"position":%d,"seq":%%d%%b},'
            b'"transaction":{"id":"%d:%d","total_order":%%d,"data_collection_order":%%d},"op":"%%b",%%b}'
        ) % (
            __version__.encode(),
            _text(pipeline),
            commit_us // 1000,
            _text(database),
            NULL if previous_commit_end is None else b'\\"%d\\"' % previous_commit_end,
            commit_us,
            commit_us,
            _text(shape.schema),
            _text(shape.table),
            begin.xid,
            NULL if origin is None else _text(origin.name),
            NULL if origin is None else b"%d" % origin.commit_lsn,
            begin.final_lsn,
            position,
            begin.xid,
            begin.final_lsn,
        )

    def render(
        self, op: bytes, before: bytes, after: bytes, place: Place, now: bytes, reselected: Sequence[str] = ()
    ) -> bytes:
        mark = b',"reselected":' + orjson.dumps(reselected) if reselected else b""
        lsn, seq, order, table_order = place
        return self.template % (before, after, lsn, lsn, seq, mark, order, table_order, op, now)


def clock() -> bytes:
    """The envelope's own time stamps; taken once per chunk of messages, not per row."""
    ns = time.time_ns()
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (ns // 1_000_000, ns // 1000, ns)


@lru_cache(maxsize=4096)  # the same few names, several times per transaction
def _text(value: str) -> bytes:
    """JSON, safe to be formatted once more."""
    return orjson.dumps(value).replace(b"%", b"%%")
