"""Publishes one chunk of the initial snapshot in one Kafka transaction. Runs in a Spark task, without importing Spark.

Several attempts at a chunk may run, one after the other or at the same time: a retry, a speculative task, a task that
was frozen and continues. The chunk's rows are published exactly once, and never after the stream has started:

1. An attempt first fences the chunk's own `transactional.id`. Of all attempts, only the one that fenced last can
   commit. Kafka rejects the writes of the others. After the fence, no earlier attempt can commit any more.
2. Then the attempt reads the snapshot log to its end. If the chunk is done, an earlier attempt has committed, and this
   one returns. If the snapshot is no longer running, capture wrote that before it fenced, and this attempt writes
   nothing.
3. The chunk's final record is in the same Kafka transaction as its rows. When capture reads that all chunks are done,
   it starts the stream: every attempt that could commit has committed, and a later one stops at step 2. When capture
   abandons a snapshot, it first writes that state and then fences every unfinished chunk. An attempt that fenced
   before is fenced by capture, and an attempt that fences later reads the state in step 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg

from cdc.config import Config
from cdc.kafka.control_topics import end_offsets
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.publishing.publisher import Publisher
from cdc.snapshot.chunk_attempt import Attempt, AttemptOutcome, RateLimiter, run_attempt
from cdc.snapshot.copy_rows import READS_TUPLES
from cdc.snapshot.events import snapshot_event
from cdc.snapshot.locked_pieces import LockedPiece, lock_pieces
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import ChunkState, SnapshotState, chunk_transactional_id
from cdc.snapshot.row_sampling import DEFAULT_READ_OPTIONS, ReadOptions
from cdc.snapshot.source_reader import at_snapshot, lines, tuples
from cdc.snapshot.table_description import DescribedTable
from cdc.tables.event_settings import refuse_settings_mismatch

# Brokers allow up to 15 minutes. A chunk takes seconds. If an attempt dies without an abort, readers of committed
# records wait this long for its transaction.
_TRANSACTION_SECONDS = 600
_FENCE_SECONDS = 60.0
_COMMIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """The input of an attempt, which the driver sends to a Spark worker.

    `log_offset`: the offset up to which the driver has read the snapshot log.
    """

    config: Config
    copy: SnapshotState
    chunk: ChunkState
    tables: Mapping[str, DescribedTable]
    database: str
    log_offset: int
    rows_per_second: float = 0.0
    read_options: ReadOptions = DEFAULT_READ_OPTIONS


def run_chunk(task: ChunkTask) -> Attempt:
    return run_attempt(task.chunk.number, lambda: _Chunk(task).run())


class _Chunk:
    def __init__(self, task: ChunkTask) -> None:
        self._task = task
        kafka = task.config.kafka
        self._snapshots_topic = control_topic(kafka.prefix, Control.COPIES)
        compression = {} if task.read_options.compress else {"compression.type": "none"}
        self._publisher = Publisher(
            compression | kafka.client_options(),  # the user's client options take precedence
            transactional_id=chunk_transactional_id(
                kafka.prefix, task.config.source.slot, task.copy.id, task.chunk.number
            ),
            transaction_timeout_seconds=_TRANSACTION_SECONDS,
            max_message_bytes=kafka.max_message_bytes,
            parked_topic=control_topic(kafka.prefix, Control.PARKED),
            wait_for_room=lambda: time.sleep(0.002),
        )

    def run(self) -> Attempt:
        task = self._task
        refuse_settings_mismatch(
            task.config, task.copy.settings, {oid: table.name for oid, table in task.tables.items()}
        )
        self._publisher.fence(_FENCE_SECONDS)
        try:
            found = self._poll()
            if found is not None:
                return found
            with at_snapshot(task.config.source.conninfo(), task.copy.snapshot) as connection:
                finished = self._publish(connection)
            self._publisher.flush(_COMMIT_SECONDS, lambda: None)
            finished = msgspec.structs.replace(finished, end_offsets=self._end_offsets())
            self._publisher.send(self._snapshots_topic, finished.key, finished.encode(), [])
            self._publisher.commit(_COMMIT_SECONDS)
            return Attempt(number=finished.number, ending=AttemptOutcome.DONE, chunk=finished)
        except BaseException:
            self._publisher.abandon()
            raise

    def _poll(self) -> Attempt | None:
        """Step 2 of the module docstring: read the log from `log_offset`, where the driver stopped reading.

        Return the attempt's result if nothing is left to do, or None if the chunk must be read.
        """
        task = self._task
        with SnapshotLog(task.config.kafka, start=task.log_offset) as log:
            log.refresh_to_end()
        chunk = log.chunks.get(task.copy.id, {}).get(task.chunk.number, task.chunk)
        if chunk.done:
            return Attempt(number=chunk.number, ending=AttemptOutcome.DONE, chunk=chunk)
        copy = log.copies.get(task.copy.id, task.copy)
        if copy.state != "planned":
            return Attempt(number=chunk.number, ending=AttemptOutcome.STOPPED, message=f"The snapshot is {copy.state}.")
        return None

    def _publish(self, connection: psycopg.Connection[Any]) -> ChunkState:
        task = self._task
        locked, left_out = lock_pieces(connection, task.chunk, task.tables, self._event)
        pace = RateLimiter(task.rows_per_second)
        rows = sum(self._send(connection, each, pace) for each in locked)
        return task.chunk.finished(rows, left_out)

    def _end_offsets(self) -> dict[str, list[int]]:
        """Return the end offsets of the topics that have rows of this chunk.

        Kafka has acknowledged all records before these offsets, so a topic that ends before them has lost records.
        """
        tables = (table.shape.topic for table in self._task.tables.values())
        touched = sorted(self._publisher.touched.intersection(tables))
        return end_offsets(self._task.config.kafka.client_options(), touched, _COMMIT_SECONDS)

    def _send(self, connection: psycopg.Connection[Any], locked: LockedPiece, pace: RateLimiter) -> int:
        topic, version = locked.encoder.topic, str(self._version).encode()
        rows = 0
        for block in self._blocks(connection, locked):
            self._publisher.send_rows(topic, block, version)
            rows += len(block)
            pace.passed(len(block))
        return rows

    def _blocks(self, connection: psycopg.Connection[Any], locked: LockedPiece) -> Iterator[list[tuple[bytes, bytes]]]:
        piece, readable, encoder = locked.piece, locked.readable, locked.encoder
        if self._task.read_options.as_tuples and READS_TUPLES:
            return map(encoder.encode_tuples, tuples(connection, readable, piece, encoder.columns, encoder.types))
        return map(encoder.encode, lines(connection, readable, piece, encoder.columns))

    @property
    def _version(self) -> Version:
        return Version(self._task.copy.base + self._task.copy.point, 0)

    def _event(self, table: DescribedTable) -> tuple[bytes, bytes]:
        task = self._task
        return snapshot_event(
            table.shape,
            pipeline=task.config.kafka.prefix,
            database=task.database,
            lsn=task.copy.point,
            version=self._version,
            taken_ms=task.copy.started_ms,
        )
