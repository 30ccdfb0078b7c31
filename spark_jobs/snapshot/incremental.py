"""The driver of incremental snapshots: reads incomplete tables, or tables that the operator names, during streaming.

Spark tasks read the chunks. Capture publishes a chunk's rows when it passes the chunk's watermarks, and records on
the topic `__copies` whether the chunk was valid. So an incremental snapshot needs a running capture. If capture or
the driver dies, the snapshot continues later from the chunks that are done.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import psycopg
from psycopg import sql

from cdc.clock import now_ms
from cdc.config import Config
from cdc.errors import TransientError, UsageError
from cdc.logical_messages.signed import read_secret
from cdc.logs import get_logger
from cdc.names import Control, control_topic
from cdc.positions.progress import read_progress
from cdc.postgres import catalog
from cdc.postgres.connection import explain
from cdc.snapshot.chunk_attempt import Attempt, AttemptOutcome
from cdc.snapshot.chunk_plan import Limits, plan_chunks, read_block_bytes, read_sizes, readers
from cdc.snapshot.incremental import watermarks
from cdc.snapshot.incremental.chunk import IncrementalChunkTask, refuse_other_settings
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.meter import Meter
from cdc.snapshot.records import ChunkState, SnapshotState
from cdc.snapshot.requests import RequestPoller
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.tables.event_settings import event_settings_digests, settings_mismatch_error
from spark_jobs.snapshot.chunk_queue import ChunkQueue, run_on_spark
from spark_jobs.snapshot.initial_driver import SnapshotDriver, SnapshotRun, Watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("snapshot")

# Capture keeps in memory the keys that change while a chunk is read, so chunks are smaller than those of an initial
# snapshot.
_CHUNK_MB = 8
_POLL_SECONDS = 0.2
_COMMIT_SECONDS = 60.0
_WHERE_TIMEOUT = "10s"
CANCELLED = "its snapshot was cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSnapshot:
    copy: SnapshotState
    chunks: tuple[ChunkState, ...]
    tables: Mapping[str, DescribedTable]


class IncrementalSnapshotDriver(SnapshotDriver):
    """Runs one incremental snapshot at a time. Use as a context manager: it then is the only driver of the pipeline."""

    def __init__(self, config: Config, *, watch: Watcher, stop: threading.Event) -> None:
        small = replace(config.snapshot, chunk_mb=min(config.snapshot.chunk_mb, _CHUNK_MB))
        super().__init__(replace(config, snapshot=small), watch=watch, stop=stop)
        self._outcomes = _Outcomes(config)
        self._requests = RequestPoller(config.kafka)

    def close(self) -> None:
        self._outcomes.close()
        super().close()

    def snapshot_tables(self, oids: Collection[str], where: str, session: Callable[[], SparkSession]) -> SnapshotRun:
        """Copy these tables, or continue an earlier snapshot of them. Returns when capture has passed its end."""
        planned = self._begin(oids, where)
        unfinished = [chunk for chunk in planned.chunks if not chunk.done]
        log.info("snapshot_started", copy=planned.copy.id, chunks=len(planned.chunks), unfinished=len(unfinished))
        meter = Meter(planned.copy, planned.chunks)
        ending = self._run(planned, unfinished, meter, session) if unfinished else AttemptOutcome.DONE
        if ending is AttemptOutcome.DONE and meter.is_complete:
            if planned.tables and set(meter.left_out) == set(planned.tables) == self._cancelled(planned):
                self._give_up(planned.copy, CANCELLED)
            else:
                self._end(planned, meter.left_out)
        self._record(meter, now=True)
        names = {oid: str(table.shape) for oid, table in planned.tables.items()}
        return SnapshotRun(
            progress=meter.progress(self._wal_held()),
            left_out={names.get(oid, oid): reason for oid, reason in meter.left_out.items()},
            lost=False,
            stopped=not meter.is_complete,
        )

    # -- start and end ---------------------------------------------------------------------------------------

    def _begin(self, oids: Collection[str], where: str) -> _PlannedSnapshot:
        self._publisher.fence(_COMMIT_SECONDS)
        known = self._log.refresh_to_end()
        began = catalog.current_lsn(self._connection)
        tables = describe_tables(self._connection, self._config, sorted(oids))
        refuse_other_settings(self._config, tables)
        settings = event_settings_digests(self._config, {oid: table.name for oid, table in tables.items()})
        if where:
            self._check_where(tables, where)
        base = self._outcomes.base()
        earlier = [copy for copy in known.copies.values() if copy.kind == "later" and copy.state == "planned"]
        for copy in earlier:
            is_same = set(copy.tables) == set(tables) and copy.where == where and copy.base == base
            if is_same and copy.settings == settings:
                chunks = known.chunks.get(copy.id, {})
                return _PlannedSnapshot(
                    copy=copy, chunks=tuple(chunks[number] for number in sorted(chunks)), tables=tables
                )
        for copy in earlier:
            self._give_up(copy, "another snapshot was started")
        return self._plan_tables(tables, settings, int(began), base, where)

    def _plan_tables(
        self, tables: Mapping[str, DescribedTable], settings: dict[str, str], began: int, base: int, where: str
    ) -> _PlannedSnapshot:
        sizes = read_sizes(self._connection, tables.values())
        total = sum(size.heap_bytes + size.toast_bytes for size in sizes.values())
        snapshot_id = uuid.uuid4().hex[:12]
        limits = Limits.of(self._config.snapshot, total, read_block_bytes(self._connection))
        chunks = plan_chunks(snapshot_id, list(tables.values()), sizes, limits)
        copy = SnapshotState(
            id=snapshot_id,
            kind="later",
            state="planned",
            tables=sorted(tables),
            snapshot="",
            point=began,
            base=base,
            chunks=len(chunks),
            size_bytes=total,
            started_ms=now_ms(),
            where=where,
            settings=settings,
        )
        records: list[ChunkState | SnapshotState] = [*chunks, copy]
        for record in records:
            self._publisher.send(self._topic, record.key, record.encode(), [])
        self._publisher.commit(_COMMIT_SECONDS)
        return _PlannedSnapshot(copy=copy, chunks=tuple(chunks), tables=tables)

    def _give_up(self, copy: SnapshotState, reason: str) -> None:
        given_up = msgspec.structs.replace(copy, state="abandoned", reason=reason, ended_ms=now_ms())
        self._publisher.send(self._topic, given_up.key, given_up.encode(), [])
        self._publisher.commit(_COMMIT_SECONDS)
        log.info("snapshot_abandoned", copy=copy.id, reason=reason)

    def give_up_planned(self, reason: str) -> None:
        """Abandon all planned incremental snapshots. No other driver runs them, since this object holds the lock."""
        self._publisher.fence(_COMMIT_SECONDS)
        for copy in self._log.refresh_to_end().copies.values():
            if copy.kind == "later" and copy.state == "planned":
                self._give_up(copy, reason)

    def _check_where(self, tables: Mapping[str, DescribedTable], where: str) -> None:
        """Refuse a condition that does not fit the tables.

        Postgres prepares the query, so the condition cannot contain a second statement, and plans it without running
        it.
        """
        for table in tables.values():
            for leaf in table.leaves[:1]:
                name = sql.Identifier(leaf.relation.schema, leaf.relation.table)
                query = sql.SQL("explain select from only {} where ({})").format(name, sql.SQL(where))
                try:
                    with self._connection.transaction():
                        self._connection.execute(f"set local statement_timeout = '{_WHERE_TIMEOUT}'")
                        self._connection.execute("set transaction read only")
                        self._connection.execute(query, prepare=True)
                except psycopg.Error as error:
                    raise UsageError(
                        f"--where does not fit {table.shape}: {explain(error)}",
                        remedy="Give an SQL condition over the table's columns, as it would follow WHERE.",
                    ) from None

    def _end(self, planned: _PlannedSnapshot, left_out: Mapping[str, str]) -> None:
        whole = {} if planned.copy.where else {oid: planned.copy.point for oid in planned.tables if oid not in left_out}
        mark = watermarks.EndWatermark(
            pipeline=watermarks.pipeline_of(self._config),
            copy=planned.copy,
            whole=whole,
            settings=planned.copy.settings,
        )
        at = watermarks.emit_watermark(self._connection, mark, read_secret(self._config.kafka))
        while not self._stop.wait(_POLL_SECONDS):
            state = self._outcomes.copy(planned.copy.id)
            if state is not None and state.state == "complete":
                return
            if state is not None and state.state == "abandoned":
                raise settings_mismatch_error(state.reason)
            if self._outcomes.has_passed(at) and self._outcomes.copy(planned.copy.id) == state:
                raise TransientError("Capture has passed the end watermark of the snapshot and recorded no result.")

    # -- chunks ----------------------------------------------------------------------------------------------

    def _run(
        self,
        planned: _PlannedSnapshot,
        unfinished: Sequence[ChunkState],
        meter: Meter,
        session: Callable[[], SparkSession],
    ) -> AttemptOutcome:
        while self._is_held() and not self._cancelled(planned) and not self._stop.wait(_POLL_SECONDS):
            self._record(meter)  # not yet in the queue: Spark starts only when a chunk may run
        if self._stop.is_set():
            return AttemptOutcome.STOPPED
        spark = session()
        queue = ChunkQueue[IncrementalChunkTask](
            partial(self._read_and_wait, spark),
            at_once=readers(self._config.snapshot),
            tick=lambda: self._record(meter),
            stop=self._stop.is_set,
            cancel=spark.sparkContext.cancelAllJobs,
            hold=self._is_held,
            skip=partial(self._is_cancelled, planned),
        )
        for attempt in queue.attempts([partial(self._task, planned, chunk) for chunk in unfinished]):
            ending = self._judge(_left_out(attempt), meter)
            if ending is not AttemptOutcome.DONE:
                return ending
        return AttemptOutcome.DONE

    def _is_held(self) -> bool:
        self._paused = self._requests.poll().paused
        return self._paused

    def _cancelled(self, planned: _PlannedSnapshot) -> set[str]:
        """Return the tables of this snapshot that the operator has cancelled."""
        cancelled = self._requests.poll().cancelled
        return {oid for oid, table in planned.tables.items() if table.shape.topic in cancelled}

    def _is_cancelled(self, planned: _PlannedSnapshot, chunk: ChunkState) -> bool:
        return {piece.table for piece in chunk.pieces} <= self._cancelled(planned)

    def _task(self, planned: _PlannedSnapshot, chunk: ChunkState) -> IncrementalChunkTask:
        return IncrementalChunkTask(
            config=self._config,
            chunk=chunk,
            attempt=time.time_ns() // 1000,  # differs from every earlier attempt, also of another driver
            tables={piece.table: planned.tables[piece.table] for piece in chunk.pieces},
            where=planned.copy.where or None,
            rows_per_second=self._config.snapshot.rows_per_second / readers(self._config.snapshot),
        )

    def _read_and_wait(self, spark: SparkSession, task: IncrementalChunkTask) -> Attempt:
        read = run_on_spark(spark, task)
        if read.ending is not AttemptOutcome.DONE:
            return read
        while not self._stop.wait(_POLL_SECONDS):
            passed = self._outcomes.has_passed(read.high)
            chunk = self._outcomes.chunk(task.chunk, task.attempt)
            if chunk is not None and chunk.done:
                return Attempt(number=chunk.number, ending=AttemptOutcome.DONE, chunk=chunk)
            if chunk is not None and chunk.refused:
                refusal = settings_mismatch_error(chunk.repeat)
                return Attempt(
                    number=chunk.number, ending=AttemptOutcome.REFUSED, message=refusal.message, remedy=refusal.remedy
                )
            if chunk is not None:
                return Attempt(number=chunk.number, ending=AttemptOutcome.FAILED, message=chunk.repeat)
            if passed:
                return Attempt(
                    number=task.chunk.number,
                    ending=AttemptOutcome.FAILED,
                    message="capture has passed it and recorded no result",
                )
        return Attempt(number=task.chunk.number, ending=AttemptOutcome.STOPPED, message="asked to stop")


def _left_out(attempt: Attempt) -> Attempt:
    """Turn a skipped chunk into a finished one without rows that leaves its tables out."""
    if attempt.ending is not AttemptOutcome.SKIPPED or attempt.chunk is None:
        return attempt
    tables = dict.fromkeys((piece.table for piece in attempt.chunk.pieces), CANCELLED)
    chunk = msgspec.structs.replace(attempt.chunk, rows=0, left_out=tables)
    return Attempt(number=attempt.number, ending=AttemptOutcome.DONE, chunk=chunk)


class _Outcomes:
    """Capture's results of chunks and snapshots, shared by the threads that wait for them."""

    def __init__(self, config: Config) -> None:
        self._kafka = config.kafka
        self._progress_topic = control_topic(config.kafka.prefix, Control.PROGRESS)
        self._log = SnapshotLog(config.kafka)
        self._lock = threading.Lock()
        self._polled_at = 0.0
        self._confirmed = 0

    def close(self) -> None:
        with self._lock:
            self._log.close()

    def chunk(self, chunk: ChunkState, attempt: int) -> ChunkState | None:
        with self._lock:
            found = self._log.refresh().chunks.get(chunk.copy, {}).get(chunk.number)
        return found if found is not None and found.attempt == attempt else None

    def copy(self, snapshot_id: str) -> SnapshotState | None:
        with self._lock:
            return self._log.refresh().copies.get(snapshot_id)

    def base(self) -> int:
        """Return capture's present base. A snapshot that started under another base cannot continue."""
        progress = read_progress(self._kafka.client_options(), self._progress_topic)
        return 0 if progress is None else progress.base

    def has_passed(self, lsn: int) -> bool:
        """Return whether capture has confirmed an LSN after this one. Polls the progress record once a second.

        Call this before reading the log. The log then has every result that capture wrote up to this LSN.
        """
        with self._lock:
            if time.monotonic() - self._polled_at > 1:
                self._polled_at = time.monotonic()
                progress = read_progress(self._kafka.client_options(), self._progress_topic)
                self._confirmed = 0 if progress is None else progress.confirm_lsn
        return self._confirmed > lsn
