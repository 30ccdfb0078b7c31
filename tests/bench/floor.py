"""The least that a process can do which brings every row from the slot to its topic by one call of Python.

It reads the stream and calls `produce` once per row, in Kafka transactions, with the events of the first rows in place
of those of all later ones: same size, same topics, nothing decoded, nothing encoded, no progress kept. It commits
without reading on meanwhile, so it is an estimate of the least, not a proof.
"""

from __future__ import annotations

import select
import signal
import struct
import sys
from collections.abc import Callable
from itertools import cycle
from typing import Final

import psycopg
from confluent_kafka import Producer
from psycopg import pq

from cdc.capture.events.event_rules import EventRules
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.capture.events.transaction_envelopes import TransactionEnvelopes
from cdc.encoding.envelope import clock
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.encoding.values import built_in
from cdc.kafka.record import Headers
from cdc.lsn import Version
from cdc.pgoutput.decoder import HEAD_BYTES, decode_message
from cdc.pgoutput.messages import Begin, Commit, Relation
from cdc.publishing.publisher import PRODUCER_SETTINGS
from cdc.snapshot.incremental.window import ChunkWindows
from tests.bench.source import FINISH, PUBLICATION

Event = tuple[str, bytes, "bytes | None", Headers, int]

_BEGIN, _COMMIT = b"BC"
_END_LSN: Final = struct.Struct("!10xQ")
_SAMPLES: Final = 1_000
_EVENTS_PER_TRANSACTION: Final = 100_000
_EVENTS_BETWEEN_POLLS: Final = 512
_WAIT_SECONDS: Final = 0.05
_ROOM_SECONDS: Final = 0.002


class Samples:
    """Real events of the first rows of each kind, then those again and again. The last table's are always real."""

    def __init__(self, prefix: str, send: Callable[[Event], None]) -> None:
        self._prefix = prefix
        self._send = send
        self._made: dict[bytes, list[Event]] = {}
        self._begin, self._kind = b"", b""
        self._real: set[int] = set()
        self.ready: dict[bytes, Callable[[], Event]] = {}  # by kind and relation
        self.last_end = 0
        self._numbering = Numbering(base=0, resume_after=Version(0, 0))
        self._rules = EventRules(
            self._numbering,
            TransactionEnvelopes(self._numbering, pipeline=prefix, database="bench", now=clock()),
            RecordQueue(emit=self._collect, send=self._collect),
            ChunkWindows(),
            partitions=1,
        )

    def take(self, raw: bytes) -> None:
        """Whatever `ready` has nothing for. A transaction is looked at only if one of its rows is."""
        kind = raw[HEAD_BYTES]
        if kind == _BEGIN:
            self._begin = raw
        elif kind == _COMMIT:
            self._end_transaction(raw)
            (self.last_end,) = _END_LSN.unpack_from(raw, HEAD_BYTES)
        else:
            self._take_change(raw)

    def _end_transaction(self, raw: bytes) -> None:
        if self._numbering.begin is not None:
            commit = decode_message(raw[HEAD_BYTES:])
            assert isinstance(commit, Commit)
            self._rules.on_commit(commit)

    def _take_change(self, raw: bytes) -> None:
        rules = self._rules
        if self._numbering.begin is None:
            begin = decode_message(self._begin[HEAD_BYTES:])
            assert isinstance(begin, Begin)
            rules.on_begin(begin)
        self._kind = raw[HEAD_BYTES : HEAD_BYTES + 5]
        if not rules.take_rows([raw], 0, 1):
            relation = decode_message(raw[HEAD_BYTES:])
            assert isinstance(relation, Relation)
            rules.on_table(self._table(relation))

    def _table(self, relation: Relation) -> TableEncoder:
        if relation.table == FINISH:
            self._real.add(relation.oid)
        types = {column.type_oid: built_in(column.type_oid) for column in relation.columns}
        shape = Shape(
            schema="public", table=relation.table, topic=f"{self._prefix}.public.{relation.table}", key=("id",)
        )
        return TableEncoder(relation, shape, {oid: known for oid, known in types.items() if known is not None})

    def _collect(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int) -> None:
        event = (topic, key, value, headers, partition)
        self._send(event)
        made = self._made.setdefault(self._kind, [])
        made.append(event)
        if len(made) == _SAMPLES and int.from_bytes(self._kind[1:], "big") not in self._real:
            self.ready[self._kind] = cycle(made).__next__


class Floor:
    """`prefix` is also the name of its slot."""

    def __init__(self, dsn: str, bootstrap: str, prefix: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, replication="database")
        self._pgconn = _started(self._connection.pgconn, prefix)
        self._producer = Producer(
            {
                **PRODUCER_SETTINGS,
                "bootstrap.servers": bootstrap,
                "transactional.id": prefix,
                "on_delivery": lambda _error, _message: None,
            }
        )
        self._producer.init_transactions(30)
        self._producer.begin_transaction()
        self._count = 0
        self._samples = Samples(prefix, self._send)
        self.is_stopped = False

    def run(self) -> None:
        """Hot: what stands between a `get_copy_data` and a `produce` is all that there is."""
        get_copy_data, produce, ready = self._pgconn.get_copy_data, self._producer.produce, self._samples.ready
        while not self.is_stopped:
            length, data = get_copy_data(1)
            if length <= 0:
                self._wait()
                continue
            raw = data.tobytes()
            event = ready.get(raw[25:30])
            if event is None:
                self._take(raw)
                continue
            topic, key, value, headers, partition = event()
            try:
                produce(topic, value, key, partition, headers=headers)  # type: ignore[arg-type]  # their list is invariant
            except BufferError:
                self._send((topic, key, value, headers, partition))
                continue
            self._count += 1
            if not self._count % _EVENTS_BETWEEN_POLLS:
                self._poll()
        self._commit()

    def _send(self, event: Event) -> None:
        topic, key, value, headers, partition = event
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)  # type: ignore[arg-type]
                break
            except BufferError:
                self._producer.poll(_ROOM_SECONDS)
        self._count += 1

    def _take(self, raw: bytes) -> None:
        if raw[:1] == b"w":
            self._samples.take(raw)
        elif raw[-1]:  # a keepalive that wants an answer
            self._confirm()

    def _poll(self) -> None:
        self._producer.poll(0)
        if self._count >= _EVENTS_PER_TRANSACTION:
            self._commit()

    def _wait(self) -> None:
        readable, _, _ = select.select([self._pgconn.socket], [], [], _WAIT_SECONDS)
        if not readable and self._count:
            self._commit()
        self._pgconn.consume_input()

    def _commit(self) -> None:
        self._producer.commit_transaction(60)
        self._producer.begin_transaction()
        self._count = 0
        self._confirm()

    def _confirm(self) -> None:
        end = self._samples.last_end
        self._pgconn.put_copy_data(struct.pack("!cQQQqB", b"r", end, end, end, 0, 0))
        self._pgconn.flush()


def _started(pgconn: pq.abc.PGconn, slot: str) -> pq.abc.PGconn:
    pgconn.send_query(
        f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{PUBLICATION}')".encode()
    )
    while pgconn.is_busy():
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_BOTH:
        raise RuntimeError(f"no stream: {result.error_message.decode() if result else ''}")
    pgconn.nonblocking = 1
    return pgconn


def main() -> None:
    floor = Floor(*sys.argv[1:])

    def stop(*_: object) -> None:
        floor.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    floor.run()


if __name__ == "__main__":
    main()
