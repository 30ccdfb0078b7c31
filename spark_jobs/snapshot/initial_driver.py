"""The driver of the initial snapshot: plans chunks, runs them on Spark, and records the progress. It keeps no data.

All durable state is on the topic `__copies`, so a driver may be killed at any point. The next driver continues with
the chunks that have no final record. Capture holds the exported snapshot and decides on the result
(`cdc/startup/initial_snapshot.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import psycopg

from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.logs import get_logger
from cdc.names import Control, control_topic
from cdc.postgres import catalog
from cdc.postgres.connection import connect, explain
from cdc.publishing.publisher import Publisher
from cdc.snapshot.chunk_attempt import Attempt, AttemptOutcome
from cdc.snapshot.chunk_plan import Limits, plan_chunks, read_block_bytes, read_sizes, readers
from cdc.snapshot.initial_chunk import ChunkTask
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.meter import Meter
from cdc.snapshot.records import ChunkState, SnapshotProgress, SnapshotState, driver_transactional_id
from cdc.snapshot.row_sampling import DEFAULT_READ_OPTIONS, ReadOptions, choose_read_options
from cdc.snapshot.source_reader import SnapshotLostError, at_snapshot
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.tables.event_settings import refuse_settings_mismatch
from spark_jobs.snapshot.chunk_queue import ChunkQueue, run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("snapshot")

_FENCE_SECONDS = 60.0
_RECORD_SECONDS = 2.0


class Watcher(Protocol):
    """A callback for the snapshot's progress, called about twice a second."""

    def __call__(self, progress: SnapshotProgress) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSnapshot:
    """A planned initial snapshot, with everything that its tasks need.

    `log_offset` is the offset of `__copies` up to which the driver has read the chunks' records.
    """

    config: Config
    copy: SnapshotState
    chunks: tuple[ChunkState, ...]
    tables: Mapping[str, DescribedTable]
    database: str
    log_offset: int
    read_options_by_table: Mapping[str, ReadOptions]  # by table; a table without an entry has the usual one

    def task(self, chunk: ChunkState) -> ChunkTask:
        """Return the task that copies this chunk."""
        settings = self.config.snapshot
        return ChunkTask(
            config=self.config,
            copy=self.copy,
            chunk=chunk,
            tables={piece.table: self.tables[piece.table] for piece in chunk.pieces},
            database=self.database,
            log_offset=self.log_offset,
            rows_per_second=settings.rows_per_second / readers(settings),
            read_options=self._read_options(chunk),
        )

    def _read_options(self, chunk: ChunkState) -> ReadOptions:
        found = {self.read_options_by_table.get(piece.table, DEFAULT_READ_OPTIONS) for piece in chunk.pieces}
        return found.pop() if len(found) == 1 else DEFAULT_READ_OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRun:
    """The result of one run. `lost`: the exported snapshot is gone, so unfinished chunks cannot be copied."""

    progress: SnapshotProgress
    left_out: Mapping[str, str]  # table -> reason
    lost: bool = False
    stopped: bool = False


class SnapshotDriver:
    """Runs one initial snapshot that capture has opened. Use as a context manager, which locks out other drivers."""

    def __init__(self, config: Config, *, watch: Watcher, stop: threading.Event) -> None:
        self._config = config
        self._watch = watch
        self._stop = stop
        self._topic = control_topic(config.kafka.prefix, Control.COPIES)
        self._log = SnapshotLog(config.kafka)
        self._connection = connect(config.source.conninfo(), application_name="tailrace snapshot")
        self._publisher = Publisher(
            config.kafka.client_options(),
            transactional_id=driver_transactional_id(config.kafka.prefix, config.source.slot),
            transaction_timeout_seconds=60,
            max_message_bytes=config.kafka.max_message_bytes,
            parked_topic=control_topic(config.kafka.prefix, Control.PARKED),
        )
        self._recorded_at = 0.0
        self._wal_held_bytes: int | None = None
        self._paused = False

    def __enter__(self) -> SnapshotDriver:
        name = f"tailrace:{self._config.source.slot}:copy"
        row = self._connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [name]).fetchone()
        if row is None or not row[0]:
            self.close()
            raise TransientError("Another `tailrace snapshot` is running on this pipeline.", remedy="Let it finish.")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the producer, the connection (which releases the lock) and the log."""
        self._publisher.abandon()
        self._connection.close()
        self._log.close()

    def prepare(self, snapshot_id: str) -> PreparedSnapshot | None:
        """Plan the initial snapshot if it is not planned yet.

        Returns None if it cannot continue: the exported snapshot is gone, or capture has abandoned it.
        """
        self._publisher.fence(_FENCE_SECONDS)
        copy = self._log.refresh_to_end().copies.get(snapshot_id)
        if copy is None or copy.state not in ("open", "planned"):
            return None
        try:
            with at_snapshot(self._config.source.conninfo(), copy.snapshot) as connection:
                tables = describe_tables(connection, self._config, copy.tables)
                refuse_settings_mismatch(
                    self._config, copy.settings, {oid: table.name for oid, table in tables.items()}
                )
                if copy.state == "open":
                    copy = self._plan(copy, connection, tables)
                chunks = self._log.refresh_to_end().chunks.get(copy.id, {})
                found = choose_read_options(connection, tables, chunks.values())
        except SnapshotLostError as error:
            log.warning("snapshot_lost", copy=copy.id, reason=str(error))
            return None
        return PreparedSnapshot(
            config=self._config,
            copy=copy,
            chunks=tuple(chunks[number] for number in sorted(chunks)),
            tables=tables,
            database=catalog.database_name(self._connection),
            log_offset=self._log.next_offset,
            read_options_by_table=found,
        )

    def run(self, prepared: PreparedSnapshot, session: Callable[[], SparkSession]) -> SnapshotRun:
        """Run the unfinished chunks."""
        unfinished = [chunk for chunk in prepared.chunks if not chunk.done]
        copy = prepared.copy
        log.info(
            "snapshot_started",
            copy=copy.id,
            chunks=copy.chunks,
            unfinished=len(unfinished),
            bytes=copy.size_bytes,
            uncompressed=[
                str(prepared.tables[table].shape)
                for table, read_options in prepared.read_options_by_table.items()
                if not read_options.compress
            ],
        )
        spark = session() if unfinished else None
        meter = Meter(copy, prepared.chunks)
        ending = AttemptOutcome.DONE if spark is None else self._run_chunks(prepared, unfinished, meter, spark)
        self._record(meter, now=True)
        names = {oid: str(table.shape) for oid, table in prepared.tables.items()}
        return SnapshotRun(
            progress=meter.progress(self._wal_held()),
            left_out={names.get(oid, oid): reason for oid, reason in meter.left_out.items()},
            lost=ending in (AttemptOutcome.LOST, AttemptOutcome.STOPPED),
            stopped=self._stop.is_set() and not meter.is_complete,
        )

    def _plan(
        self, copy: SnapshotState, connection: psycopg.Connection, tables: Mapping[str, DescribedTable]
    ) -> SnapshotState:
        """Plan the chunks and write the plan in one Kafka transaction."""
        sizes = read_sizes(connection, tables.values())
        total = sum(size.heap_bytes + size.toast_bytes for size in sizes.values())
        limits = Limits.of(self._config.snapshot, total, read_block_bytes(connection))
        chunks = plan_chunks(copy.id, list(tables.values()), sizes, limits)
        planned = msgspec.structs.replace(copy, state="planned", chunks=len(chunks), size_bytes=total)
        records: list[ChunkState | SnapshotState] = [*chunks, planned]
        for record in records:
            self._publisher.send(self._topic, record.key, record.encode(), [])
        self._publisher.commit(_FENCE_SECONDS)
        log.info("snapshot_planned", copy=copy.id, chunks=len(chunks), bytes=total, tables=len(tables))
        return planned

    def _run_chunks(
        self, prepared: PreparedSnapshot, unfinished: Sequence[ChunkState], meter: Meter, spark: SparkSession
    ) -> AttemptOutcome:
        queue = ChunkQueue(
            partial(run_on_spark, spark),
            at_once=readers(self._config.snapshot),
            tick=lambda: self._record(meter),
            stop=self._stop.is_set,
            cancel=spark.sparkContext.cancelAllJobs,
        )
        for attempt in queue.attempts([partial(prepared.task, chunk) for chunk in unfinished]):
            ending = self._judge(attempt, meter)
            if ending is not AttemptOutcome.DONE:
                return ending
        return AttemptOutcome.DONE

    def _judge(self, attempt: Attempt, meter: Meter) -> AttemptOutcome:
        if attempt.ending is AttemptOutcome.REFUSED:
            raise RefusedError(attempt.message, remedy=attempt.remedy)
        if attempt.chunk is not None:
            meter.add(attempt.chunk)
            for table, reason in attempt.chunk.left_out.items():
                log.warning("table_left_out", table=table, chunk=attempt.number, reason=reason)
        else:
            log.warning("snapshot_stopped", chunk=attempt.number, ending=attempt.ending.value, reason=attempt.message)
        return attempt.ending

    def _record(self, meter: Meter, *, now: bool = False) -> None:
        """Show the progress. Write it to `__copies` as well, every two seconds."""
        is_due = now or time.monotonic() - self._recorded_at > _RECORD_SECONDS
        if is_due:
            self._wal_held_bytes = self._wal_held()
        progress = meter.progress(self._wal_held_bytes, paused=self._paused)
        self._watch(progress)
        if is_due:
            self._recorded_at = time.monotonic()
            self._publisher.send(self._topic, progress.key, progress.encode(), [])
            self._publisher.commit(_FENCE_SECONDS)

    def _wal_held(self) -> int | None:
        try:
            return catalog.wal_held(self._connection, self._config.source.slot)[0]
        except psycopg.Error as error:
            raise TransientError(f"The connection to Postgres failed: {explain(error)}") from error
