"""Reads one chunk of an incremental snapshot while capture streams. Runs in a Spark task, without importing Spark.

The task emits the low watermark, reads the rows in a Postgres snapshot, writes them to `<prefix>.__copy` and emits the
high watermark. When capture reaches the high watermark, it publishes the rows or requests the chunk again (see
`cdc.capture.incremental_snapshot` and `window`). If an attempt dies, no watermark refers to its rows.

As in the initial snapshot, a chunk is a range of the table's blocks. An update may move a row from a block that is not
read yet to one that was read before. The row is then missing in the chunks, but the update is in the stream. A rewrite
of the table moves rows without changes in the stream, so the reader checks for rewrites.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
from confluent_kafka import KafkaError, KafkaException, Message

from cdc.config import Config
from cdc.config.tables import TableName
from cdc.errors import TransientError
from cdc.kafka.clients import open_durable_producer
from cdc.logical_messages.signed import read_secret
from cdc.names import TOPIC_BYTES, Control, control_topic
from cdc.postgres.connection import connect
from cdc.publishing.publisher import largest_record, producer_settings
from cdc.snapshot.chunk_attempt import Attempt, AttemptOutcome, RateLimiter, run_attempt
from cdc.snapshot.incremental import watermarks
from cdc.snapshot.incremental.chunk_rows import CHUNK_HEADER, GONE, SIZE_HEADER, TOPIC_HEADER, chunk_tag
from cdc.snapshot.locked_pieces import LockedPiece, lock_pieces
from cdc.snapshot.records import ChunkState
from cdc.snapshot.rows_by_key import rows_by_key
from cdc.snapshot.source_reader import at_snapshot, lines
from cdc.snapshot.table_description import DescribedTable
from cdc.tables.event_settings import event_settings_digests, recorded_settings_mismatch, settings_mismatch_error
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import read_recorded_states

_FLUSH_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalChunkTask:
    """The input of an attempt, which the driver sends to a Spark worker.

    `where`: SQL condition that selects the rows of every table. `keys`: if given, the attempt reads the rows of the
    chunk's only table with these record keys instead of the chunk's blocks. Capture publishes a delete for each key
    that the source does not have.
    """

    config: Config
    chunk: ChunkState
    attempt: int
    tables: Mapping[str, DescribedTable]
    where: str | None = None
    keys: tuple[bytes, ...] | None = None
    rows_per_second: float = 0.0


def run_incremental_chunk(task: IncrementalChunkTask) -> Attempt:
    """Run an attempt and return its result.

    DONE means that the rows are on `__copy` and both watermarks in the WAL. When capture has passed the LSN `high`, the
    chunk's record says whether capture published the rows.
    """
    return run_attempt(task.chunk.number, lambda: read_incremental_chunk(task))


def refuse_other_settings(config: Config, tables: Mapping[str, DescribedTable]) -> None:
    """Refuse to run if this config's settings for the tables' events differ from those that capture uses.

    Called before any row is written to `__copy`.
    """
    reason = recorded_settings_mismatch(config, read_recorded_states(config) or TableStates(), _names(tables))
    if reason is not None:
        raise settings_mismatch_error(reason)


def _names(tables: Mapping[str, DescribedTable]) -> dict[str, TableName]:
    return {oid: table.name for oid, table in tables.items()}


def read_incremental_chunk(task: IncrementalChunkTask) -> Attempt:
    """Read the chunk's rows, write them to `__copy`, and emit the low and the high watermark around them."""
    refuse_other_settings(task.config, task.tables)
    oids = sorted({piece.table for piece in task.chunk.pieces})
    settings = event_settings_digests(task.config, _names(task.tables))
    secret = read_secret(task.config.kafka)
    chunk = task.chunk
    with connect(task.config.source.conninfo(), application_name="tailrace copy") as marking:
        mine, attempt = watermarks.pipeline_of(task.config), task.attempt
        rows = _Rows(task)
        low = watermarks.LowWatermark(
            pipeline=mine,
            copy=chunk.copy,
            chunk=chunk.number,
            attempt=attempt,
            tables=oids,
            settings=settings,
            reading=rows.reading,
        )
        watermarks.emit_watermark(marking, low, secret)
        writers = _writers(marking, task.tables.values())
        with at_snapshot(task.config.source.conninfo(), None) as connection:
            left_out = rows.send_all(connection)
            row = connection.execute("select pg_current_snapshot()::text").fetchone()
            assert row is not None  # noqa: S101  # a select without FROM has one row
        rows.flush()
        chunk = msgspec.structs.replace(chunk, rows=rows.count, left_out=left_out, attempt=task.attempt)
        high = watermarks.HighWatermark(
            pipeline=mine,
            chunk=chunk,
            attempt=task.attempt,
            snapshot=row[0],
            first=rows.first,
            end=rows.end,
            writers=writers,
            settings=settings,
            reading=rows.reading,
        )
        at = watermarks.emit_watermark(marking, high, secret)
        return Attempt(number=chunk.number, ending=AttemptOutcome.DONE, chunk=chunk, high=int(at))


# Includes the ids of subtransactions. The id of the top-level transaction, which the stream has, is among them.
_WRITERS = """
select distinct x.transactionid::text::int8
from pg_locks r join pg_locks x on x.virtualtransaction = r.virtualtransaction and x.locktype = 'transactionid'
where r.locktype = 'relation' and r.relation = any(%s::int8[]::oid[]) and r.mode <> 'AccessShareLock' and r.granted
  and r.database = (select oid from pg_database where datname = current_database())
"""


def _writers(connection: psycopg.Connection[Any], tables: Iterable[DescribedTable]) -> list[int]:
    """Return the ids of transactions that hold a lock on these tables stronger than that of a reader.

    A transaction whose commit is in the WAL keeps its locks until other sessions see it. So these include transactions
    that are committed but not visible yet.
    """
    oids = [leaf.relation.oid for table in tables for leaf in table.leaves]
    return [row[0] for row in connection.execute(_WRITERS, [oids]).fetchall()]


class _Rows:
    """Writes the chunk's rows to `__copy`. Their offsets are from `first` up to but not including `end`."""

    def __init__(self, task: IncrementalChunkTask) -> None:
        kafka = task.config.kafka
        self._task = task
        self._topic = control_topic(kafka.prefix, Control.COPY)
        self.reading = uuid.uuid4().hex[:16]
        self._tag = chunk_tag(task.chunk.copy, task.chunk.number, task.attempt, self.reading)
        self._offsets: list[int] = []
        self._failed: KafkaError | None = None
        settings = producer_settings(kafka.max_message_bytes) | kafka.client_options()
        self._producer = open_durable_producer(settings, {"delivery.report.only.error": False})
        self._pace = RateLimiter(task.rows_per_second)
        self._largest = largest_record(kafka.max_message_bytes)
        self._headers_bytes = TOPIC_BYTES + len(self._tag)
        self.count = 0
        self.first = self.end = 0

    def send_all(self, connection: psycopg.Connection[Any]) -> dict[str, str]:
        """Send all rows and return the tables (by oid) that could not be read, with the reasons."""
        if self._task.keys is not None:
            self._send_keys(connection, self._task.keys)
            return {}
        locked, left_out = lock_pieces(connection, self._task.chunk, self._task.tables, lambda _table: (b"", b""))
        for each in locked:
            self._send(connection, each)
        return left_out

    def _send_keys(self, connection: psycopg.Connection[Any], keys: Sequence[bytes]) -> None:
        (table,) = self._task.tables.values()
        headers = [(TOPIC_HEADER, table.shape.topic.encode()), (CHUNK_HEADER, self._tag)]
        found = rows_by_key(connection, table, keys)
        for key in keys:
            self._produce(key, found.get(key, GONE), headers)
        self.count += len(keys)

    def _send(self, connection: psycopg.Connection[Any], locked: LockedPiece) -> None:
        encoder = locked.encoder
        headers = [(TOPIC_HEADER, encoder.topic.encode()), (CHUNK_HEADER, self._tag)]
        for block in lines(connection, locked.readable, locked.piece, encoder.columns, self._task.where):
            for key, row in encoder.encode(block):
                self._produce(key, row, headers)
            self.count += len(block)
            self._pace.passed(len(block))

    def _produce(self, key: bytes, row: bytes, headers: list[tuple[str, bytes]]) -> None:
        size = len(key) + len(row) + self._headers_bytes
        if size > self._largest:  # too large for `__copy` too: send its size only, and capture parks the row
            row, headers = b"", [*headers, (SIZE_HEADER, b"%d" % size)]
        while True:
            try:
                self._producer.produce(self._topic, row, key, 0, headers=list(headers), on_delivery=self._delivered)
                return
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:
                raise TransientError(f"Kafka: {error.args[0].str()}") from error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = error
            return
        offset = message.offset() or 0
        self.first = offset if self.end == 0 else min(self.first, offset)
        self.end = max(self.end, offset + 1)

    def flush(self) -> None:
        give_up_at = time.monotonic() + _FLUSH_SECONDS
        while self._producer.flush(5):
            if time.monotonic() > give_up_at:
                raise TransientError(f"Kafka acknowledged nothing for {_FLUSH_SECONDS:.0f} seconds.")
        if self._failed is not None:
            raise TransientError(f"Kafka: {self._failed.str()}")
