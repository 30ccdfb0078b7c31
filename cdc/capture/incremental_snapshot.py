"""Handles the watermarks of incremental snapshots in the replication stream.

The snapshot job writes the rows of a snapshot chunk to `<prefix>.__copy`. When capture reaches the chunk's high
watermark, it publishes these rows to the table topics with the version of that watermark. It discards the rows for
which the stream has a newer change (`windows`). Capture writes the chunk's record to `__copies` in the same Kafka
transaction. So the job that waits for the record and a restarted capture see the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import msgspec
from confluent_kafka import KafkaException, Message, TopicPartition

from cdc.capture.events.event_rules import EventRules
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.config import Config, KafkaConfig
from cdc.encoding.table_encoder import Shape
from cdc.errors import TransientError
from cdc.kafka.clients import open_consumer
from cdc.kafka.offsets import first_and_end_offset
from cdc.kafka.record import Record
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.names import Control, control_topic
from cdc.postgres.visibility import Snapshot
from cdc.publishing.parked import parked_headers
from cdc.snapshot.events import full_snapshot_markers, snapshot_event
from cdc.snapshot.incremental import watermarks
from cdc.snapshot.incremental.announced import AnnouncedSnapshots
from cdc.snapshot.incremental.chunk_rows import CHUNK_HEADER, GONE, SIZE_HEADER, TOPIC_HEADER, SnapshotRow, chunk_tag
from cdc.snapshot.incremental.window import ChunkWindows, WindowVerdict
from cdc.snapshot.records import ChunkState, SnapshotState
from cdc.tables.event_settings import job_settings_mismatch, name_of
from cdc.tables.recorded_state import TableState, TableStates

T = TypeVar("T")
log = get_logger("snapshot")

_READ_SECONDS = 30.0
_SLICE_ROWS = 1000


class Call(Protocol):
    """Runs a blocking call in another thread, while this thread keeps answering the replication connection."""

    def __call__(self, call: Callable[[], T]) -> T: ...


class WatermarkHandler:
    """Publishes snapshot chunks at their high watermarks, and records the outcome of chunks and snapshots.

    `settle` waits for the Kafka commit in progress. After it, rows go to the producer, which blocks while its queue is
    full. `introduce` makes sure that the tables with these oids have a topic and a record of their columns.
    """

    def __init__(
        self,
        config: Config,
        *,
        numbering: Numbering,
        rules: EventRules,
        queue: RecordQueue,
        windows: ChunkWindows,
        database: str,
        call: Call,
        settle: Callable[[], None],
        introduce: Callable[[Collection[str]], None],
    ) -> None:
        self._config = config
        self._kafka = config.kafka
        self._prefix = config.kafka.prefix
        self._pipeline = watermarks.pipeline_of(config)
        self._announced = AnnouncedSnapshots(config.kafka)
        self._numbering = numbering
        self._rules = rules
        self._queue = queue
        self._windows = windows
        self._database = database
        self._call = call
        self._settle = settle
        self._introduce = introduce
        self._snapshots_topic = control_topic(self._prefix, Control.COPIES)

    def on_watermark(self, content: bytes, lsn: LSN, states: TableStates) -> TableStates:
        """Handle one watermark and return the table states after it."""
        mark = watermarks.decode_watermark(content)
        if mark is None:
            log.warning("watermark_ignored", reason="the message has our prefix but is no watermark", lsn=str(lsn))
        elif mark.pipeline != self._pipeline:
            # Another pipeline on this database wrote it, or a release whose watermarks named no pipeline. The job that
            # wrote it notices that capture has passed it without a record, and reads the chunk again.
            log.debug(
                "watermark_ignored", reason="it belongs to another pipeline", pipeline=mark.pipeline, lsn=str(lsn)
            )
        elif self._numbering.is_replaying_snapshots:
            pass  # capture handled it before the restart
        elif isinstance(mark, watermarks.LowWatermark):
            if (reason := self._why_refused(mark.tables, mark.settings, states)) is not None:
                log.warning("watermark_refused", reason=reason, copy=mark.copy, chunk=mark.chunk, lsn=str(lsn))
                return states
            topics = [states.tables[oid].topic for oid in mark.tables if oid in states.tables]
            self._windows.low((mark.copy, mark.chunk), (mark.attempt, mark.reading), topics, lsn)
            self._rules.watch_windows()
        elif isinstance(mark, watermarks.HighWatermark):
            self._on_high(mark, lsn, states)
        else:
            return self._on_end(mark, lsn, states)
        return states

    def _why_refused(self, oids: Collection[str], settings: Mapping[str, str], states: TableStates) -> str | None:
        """Return how the job's settings differ from capture's. None: they are the same.

        A job with other settings encodes rows differently. So may a job of an older release, which sends no settings.
        """
        tables = {oid: name_of(states.tables[oid]) for oid in oids if oid in states.tables}
        return job_settings_mismatch(self._config, settings, tables)

    def _on_high(self, mark: watermarks.HighWatermark, lsn: LSN, states: TableStates) -> None:
        chunk = msgspec.structs.replace(mark.chunk, attempt=mark.attempt, repeat="")
        if not self._call(lambda: self._announced.has_chunk(chunk.copy, chunk.number)):
            log.warning(
                "watermark_ignored", reason="no snapshot job has announced its chunk", copy=chunk.copy, lsn=str(lsn)
            )
            return
        tables = {piece.table for piece in chunk.pieces}
        if (reason := self._why_refused(tables, mark.settings, states)) is not None:
            log.warning("watermark_refused", reason=reason, copy=chunk.copy, chunk=chunk.number, lsn=str(lsn))
            self._note(msgspec.structs.replace(chunk, rows=0, done=False, repeat=reason, refused=True))
            return
        snapshot = Snapshot.parse(mark.snapshot)
        verdict = self._windows.high((chunk.copy, chunk.number), (mark.attempt, mark.reading), snapshot, mark.writers)
        self._rules.watch_windows()
        self._introduce(tables)
        self._settle()
        tag = chunk_tag(chunk.copy, chunk.number, mark.attempt, mark.reading)
        waiting = WaitingRows(self._kafka, mark.first, mark.end, tag)
        try:
            if verdict.repeat is None and not self._call(waiting.are_there):
                verdict = WindowVerdict("its rows are no longer on the topic")
            rows = 0
            if verdict.repeat is None:
                rows = self._publish(waiting, verdict, lsn, states)
                if waiting.count != mark.chunk.rows:
                    # The published rows are correct and stay. But they are not the whole chunk.
                    verdict = WindowVerdict(f"{waiting.count} of {mark.chunk.rows} rows were found on {waiting.topic}")
            if verdict.repeat is None:
                chunk = chunk.finished(rows, mark.chunk.left_out)
            else:
                chunk = msgspec.structs.replace(chunk, rows=0, repeat=verdict.repeat)
                log.info("chunk_repeated", copy=chunk.copy, chunk=chunk.number, reason=verdict.repeat)
        finally:
            waiting.close()
        self._note(chunk)

    def _publish(self, waiting: WaitingRows, verdict: WindowVerdict, lsn: LSN, states: TableStates) -> int:
        version = Version(self._numbering.position, 0)
        stamp = str(version).encode()
        found = self._events("r", lsn, version, states)
        deletes = self._events("d", lsn, version, states)
        parked = self._events("d", lsn, version, states, parked=True)
        published = 0
        while rows := self._call(waiting.next_slice):
            for topic, key, row, size in rows:
                if (topic, key) in verdict.overtaken or topic not in found:
                    continue
                events = parked if size else deletes if row == GONE else found
                head, tail = events[topic]
                headers = parked_headers(stamp, size) if size else [("v", stamp)]
                self._queue.put(Record(topic, key, head + (GONE if size else row) + tail, headers))
                if events is not found:
                    self._queue.put(Record(topic, key, None, headers))
                published += not size
        return published

    def _events(
        self, op: str, lsn: LSN, version: Version, states: TableStates, *, parked: bool = False
    ) -> dict[str, tuple[bytes, bytes]]:
        """Return, by topic, the bytes of an event before and after its row."""
        return {
            state.topic: snapshot_event(
                _shape(state),
                pipeline=self._prefix,
                database=self._database,
                lsn=lsn,
                version=version,
                taken_ms=self._numbering.commit_ms,
                op=op,
                parked=parked,
            )
            for state in states.tables.values()
        }

    def _on_end(self, mark: watermarks.EndWatermark, lsn: LSN, states: TableStates) -> TableStates:
        """Complete a snapshot of whole tables: write markers that invalidate all versions from before its start.

        A row that the snapshot did not read no longer exists at the source.
        """
        if mark.copy.base != self._numbering.base:
            log.warning(
                "watermark_ignored", reason="its snapshot began before a recovery", copy=mark.copy.id, lsn=str(lsn)
            )
            return states
        plan = self._call(lambda: self._announced.plan(mark.copy.id))
        if plan is None or not mark.whole.keys() <= set(plan.tables):
            log.warning("watermark_ignored", reason="no job has planned its tables", copy=mark.copy.id, lsn=str(lsn))
            return states
        if any(began > lsn for began in mark.whole.values()):
            log.warning("watermark_ignored", reason="a table's start LSN is after it", copy=mark.copy.id, lsn=str(lsn))
            return states
        reason = self._why_refused(mark.whole, mark.settings, states)
        if reason is not None:
            log.warning("watermark_refused", reason=reason, copy=mark.copy.id, lsn=str(lsn))
            self._note(
                msgspec.structs.replace(plan, state="abandoned", reason=reason, ended_ms=self._numbering.commit_ms)
            )
            return states
        self._introduce(mark.whole)
        for oid, began in mark.whole.items():
            state = states.tables.get(oid)
            if state is None:
                continue
            for record in full_snapshot_markers(
                _shape(state),
                msgspec.structs.replace(plan, point=began),
                pipeline=self._prefix,
                database=self._database,
                partitions=self._kafka.partitions,
            ):
                self._queue.put(record)
            states = states.copied(state.topic, began)
        self._note(msgspec.structs.replace(plan, state="complete", ended_ms=self._numbering.commit_ms))
        log.info("snapshot_complete", copy=mark.copy.id, lsn=str(lsn), tables=len(mark.whole))
        return states

    def _note(self, record: ChunkState | SnapshotState) -> None:
        self._queue.put(Record(self._snapshots_topic, record.key, record.encode(), [("v", b"")], 0))


def _shape(state: TableState) -> Shape:
    return Shape(schema=state.schema, table=state.table, topic=state.topic, key=tuple(state.key))


class WaitingRows:
    """The rows of one reading of a chunk, on `__copy`. Rows of other chunks may be between them.

    `count`: how many rows were read so far.
    """

    def __init__(self, kafka: KafkaConfig, first: int, end: int, tag: bytes) -> None:
        self.topic = control_topic(kafka.prefix, Control.COPY)
        self._first = first
        self._end = end
        self._tag = tag
        self._at = first
        self.count = 0
        self._consumer = open_consumer(
            kafka.client_options(),
            {
                "enable.partition.eof": False,
                "queued.max.messages.kbytes": 4096,  # limits memory: the consumer prefetches, also other chunks
            },
        )
        self._consumer.assign([TopicPartition(self.topic, 0, first)])

    def close(self) -> None:
        self._consumer.close()

    def are_there(self) -> bool:
        """Whether the topic still has all offsets of the chunk. Kafka deletes its rows after a day."""
        if self._first == self._end:
            return True
        try:
            low, high = first_and_end_offset(self._consumer, self.topic, timeout_seconds=_READ_SECONDS)
        except KafkaException as error:
            raise TransientError(f"{self.topic} could not be read: {error.args[0].str()}") from error
        return low <= self._first and self._end <= high

    def next_slice(self) -> list[SnapshotRow]:
        """Read and return the next rows. An empty list: the end of the chunk."""
        rows: list[SnapshotRow] = []
        while self._at < self._end and not rows:
            # Do not ask for more records than exist, since `consume` waits for that many. (No record on this topic is
            # transactional, so the consumer sees all of them.)
            messages = self._consumer.consume(min(_SLICE_ROWS, self._end - self._at), timeout=_READ_SECONDS)
            if not messages:
                raise TransientError(f"Kafka returned nothing from {self.topic} for {_READ_SECONDS:.0f} seconds.")
            rows = [row for message in messages if (row := self._row(message)) is not None]
        return rows

    def _row(self, message: Message) -> SnapshotRow | None:
        error = message.error()
        if error is not None:
            raise TransientError(f"{self.topic} could not be read: {error.str()}")
        self._at = (message.offset() or 0) + 1
        headers = dict(message.headers() or [])
        if self._at > self._end or headers.get(CHUNK_HEADER) != self._tag:
            return None
        self.count += 1
        return SnapshotRow(
            _data(headers.get(TOPIC_HEADER)).decode(),
            _data(message.key()),
            _data(message.value()),
            int(_data(headers.get(SIZE_HEADER)) or b"0"),
        )


def _data(value: str | bytes | None) -> bytes:
    """Return the bytes, or b"" for None. confluent-kafka's types also allow `str`, which it never returns."""
    return value if isinstance(value, bytes) else b""
