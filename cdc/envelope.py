"""The Debezium envelope as bytes: field names and order are Debezium's, `commit_lsn`, `position`, `seq` are ours.

Everything that is the same for all rows of one table in one transaction is put into a template once; a row fills
in the rest. docs/events.md shows the envelope, and where it differs from Debezium's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from cdc import __version__
from cdc.lsn import LSN
from cdc.messages import Begin
from cdc.relations import Table

# pgoutput counts microseconds from 2000-01-01 UTC.
_POSTGRES_EPOCH_US = 946_684_800_000_000

Headers = list[tuple[str, bytes]]


class Record(NamedTuple):
    """What goes to Kafka. `value` None is a tombstone; `partition` -1 leaves the choice to the key."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    partition: int = -1


class Envelope:
    """The fixed part of the events of one table in one transaction."""

    __slots__ = ("template",)

    def __init__(
        self, table: Table, begin: Begin, *, pipeline: str, database: str, position: int, previous_commit: LSN
    ) -> None:
        commit_us = begin.commit_time_us + _POSTGRES_EPOCH_US
        relation = table.relation
        head = (
            f'{{"version":"{__version__}","connector":"postgresql","name":{_text(pipeline)},'
            f'"ts_ms":{commit_us // 1000},"snapshot":"false","db":{_text(database)},'
        )
        middle = (
            f'"ts_us":{commit_us},"ts_ns":{commit_us}000,"schema":{_text(relation.schema)},'
            f'"table":{_text(relation.table)},"txId":{begin.xid},'
        )
        self.template = (
            b'{"before":%b,"after":%b,"source":'
            + head.encode().replace(b"%", b"%%")
            + rb'"sequence":"[\"'
            + str(int(previous_commit)).encode()
            + rb'\",\"%d\"]",'
            + middle.encode().replace(b"%", b"%%")
            + b'"lsn":%d,"xmin":null,"commit_lsn":'
            + f'{int(begin.final_lsn)},"position":{position},"seq":'.encode()
            + b'%d%b},"transaction":{"id":"'
            + f'{begin.xid}:{int(begin.final_lsn)}","total_order":'.encode()
            + b'%d,"data_collection_order":%d},"op":"%b",%b}'
        )

    def render(
        self,
        *,
        op: bytes,
        before: bytes,
        after: bytes,
        lsn: int,
        seq: int,
        order: int,
        table_order: int,
        now: bytes,
        reselected: Sequence[str] = (),
    ) -> bytes:
        mark = b',"reselected":' + orjson.dumps(reselected) if reselected else b""
        return self.template % (before, after, lsn, lsn, seq, mark, order, table_order, op, now)


def clock() -> bytes:
    """The envelope's own time stamps; taken once per chunk of messages, not per row."""
    ns = time.time_ns()
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (ns // 1_000_000, ns // 1000, ns)


def _text(value: str) -> str:
    return orjson.dumps(value).decode()
