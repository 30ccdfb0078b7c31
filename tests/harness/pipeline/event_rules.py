"""Feeds hand-made pgoutput messages to `cdc.capture.events` as capture does, and collects what comes out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdc.capture.events.event_rules import EventRules
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.capture.events.transaction_envelopes import TransactionEnvelopes
from cdc.config.tables import Mask
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.encoding.values import TypeInfo, built_in
from cdc.kafka.record import Emit, Headers, Record
from cdc.lsn import Version
from cdc.pgoutput.decoder import HEAD_BYTES, decode_message, start_of
from cdc.pgoutput.messages import Begin, Commit, Delete, Insert, Origin, Relation, Truncate, Update
from cdc.snapshot.incremental.window import ChunkWindows
from tests.harness.postgres import pgoutput

INT8, TEXT, BOOL = 20, 25, 16
NOTHING_PUBLISHED: Final = Version(0, 0)
# name, type, in the replica identity
Columns = Iterable[tuple[str, int, bool]]
ID_AND_NAME: Columns = (("id", INT8, True), ("name", TEXT, False))


def types_of(relation: Relation) -> dict[int, TypeInfo]:
    found = {column.type_oid: built_in(column.type_oid) for column in relation.columns}
    return {oid: info for oid, info in found.items() if info is not None}


def make_table(
    oid: int = 16_384,
    name: str = "orders",
    columns: Columns = ID_AND_NAME,
    *,
    key: Iterable[str] = ("id",),
    identity: str = "d",
    deferrable_key: bool = False,
    columns_published: tuple[str, ...] | None = None,
    masks: Mapping[str, Mask] | None = None,
) -> TableEncoder:
    data = pgoutput.relation(
        oid, "public", name, ((column, type_oid, -1, in_key) for column, type_oid, in_key in columns), identity=identity
    )
    relation = decode_message(data)
    assert isinstance(relation, Relation)
    shape = Shape(
        schema="public",
        table=name,
        topic=f"shop.public.{name}",
        key=tuple(key),
        deferrable_key=deferrable_key,
        columns=columns_published,
        masks=masks or {},
        salt=b"salt",
    )
    return TableEncoder(relation, shape, types_of(relation))


def full(columns: Columns = ID_AND_NAME) -> Columns:
    """The same columns under REPLICA IDENTITY FULL, where all of them count as key."""
    return tuple((name, type_oid, True) for name, type_oid, _ in columns)


class Feed:
    """`records` is what was emitted; what waits for a query is in `queue.held`."""

    def __init__(
        self,
        *tables: TableEncoder,
        resume_after: Version = NOTHING_PUBLISHED,
        base: int = 0,
        partitions: int = 2,
        quick: bool = True,
        emit: Emit | None = None,
    ) -> None:
        self.records: list[Record] = []
        self.numbering = Numbering(base=base, resume_after=resume_after)
        envelopes = TransactionEnvelopes(
            self.numbering, pipeline="shop", database="shop_db", now=b'"ts_ms":1,"ts_us":1000,"ts_ns":1000000'
        )
        self.queue = RecordQueue(emit=emit or self._emit, send=emit or self._emit)
        self.rules = EventRules(self.numbering, envelopes, self.queue, ChunkWindows(), partitions=partitions)
        self._quick = quick
        self._lsn = 0x1000
        for table in tables:
            self.rules.on_table(table)

    def __call__(self, *messages: bytes) -> None:
        """Feed messages, each with the LSN that the server would give it."""
        items = []
        for data in messages:
            self._lsn += 8
            items.append(b"w" + self._lsn.to_bytes(8, "big") + bytes(16) + data)
        at = 0
        while at < len(items):
            if self._quick:
                at = self.rules.take_rows(items, at, len(items))
            if at < len(items):
                self._dispatch(items[at][HEAD_BYTES:], *start_of(items[at]))
                at += 1

    def transaction(self, commit_lsn: int, *messages: bytes, xid: int = 700) -> None:
        self(pgoutput.begin(commit_lsn, xid=xid), *messages, pgoutput.commit(commit_lsn))

    @property
    def all(self) -> list[Record]:
        """Emitted and held records in the order in which they will be published; nothing may wait for a query."""
        held = [item for item in self.queue.held if isinstance(item, Record)]
        assert len(held) == len(self.queue.held)
        return [*self.records, *held]

    def _emit(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int) -> None:
        self.records.append(Record(topic, key, value, headers, partition))

    def _dispatch(self, data: bytes, lsn: int) -> None:
        message, rules = decode_message(data), self.rules
        if isinstance(message, Begin):
            rules.on_begin(message)
        elif isinstance(message, Commit):
            rules.on_commit(message)
        elif isinstance(message, (Insert, Update, Delete)):
            rules.on_row(message, lsn)
        elif isinstance(message, Truncate):
            rules.on_truncate(message, lsn)
        elif isinstance(message, Origin):
            rules.on_origin(message)


def value_of(record: Record) -> dict[str, Any]:
    assert record.value is not None
    value: dict[str, Any] = json.loads(record.value)
    return value


def version_of(record: Record) -> Version:
    name, text = record.headers[0]
    assert name == "v"
    return Version.parse(text.decode())


def outline(records: Iterable[Record]) -> list[tuple[str | None, str, Version]]:
    """The op (None for a tombstone), key and version of each record."""
    return [
        (None if record.value is None else value_of(record)["op"], record.key.decode(), version_of(record))
        for record in records
    ]
