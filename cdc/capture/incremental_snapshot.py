"""Where later copies join the stream: what capture does when it passes their marks.

The rows of a chunk wait on `<prefix>.__copy`; they are published when capture passes the chunk's HIGH mark, at the
version of that mark, without those that a newer change has overtaken (`windows`). The chunk's record on `__copies` goes
into the same Kafka transaction, so the job that waits for it and a capture that restarts see the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdc.capture.event_rules import EventRules
from cdc.config import Config, KafkaConfig
from cdc.encoding.table_encoder import Shape
from cdc.errors import TransientError
from cdc.kafka.record import Record
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.names import Control, control_topic
from cdc.postgres.visibility import Snapshot
from cdc.publishing.parked import parked_headers
from cdc.snapshot.events import copied_event, full_copy_markers
from cdc.snapshot.incremental import watermarks
from cdc.snapshot.incremental.announced import Announced
from cdc.snapshot.incremental.chunk_rows import CHUNK_HEADER, GONE, SIZE_HEADER, TOPIC_HEADER, CopiedRow, chunk_tag
from cdc.snapshot.incremental.window import WindowVerdict
from cdc.snapshot.records import ChunkState, CopyState
from cdc.tables.event_settings import name_of, why_different
from cdc.tables.recorded_state import TableState, TableStates

T = TypeVar("T")
log = get_logger("copies")

_READ_SECONDS = 30.0
_SLICE_ROWS = 1000


class Call(Protocol):
    """Runs what blocks in another thread, while the stream is attended to."""

    def __call__(self, call: Callable[[], T]) -> T: ...


class WatermarkHandler:
    """`settle` waits for the commit under way; after it, rows go to the producer, which holds them back if need be.

    `introduce` makes sure that tables (by oid) have a topic, and a record of their columns.
    """

    def __init__(
        self,
        config: Config,
        changes: EventRules,
        *,
        database: str,
        call: Call,
        settle: Callable[[], None],
        introduce: Callable[[Collection[str]], None],
    ) -> None:
        self._config = config
        self._kafka = config.kafka
        self._prefix = config.kafka.prefix
        self._pipeline = watermarks.pipeline_of(config)
        self._announced = Announced(config.kafka)
        self._changes = changes
        self._database = database
        self._call = call
        self._settle = settle
        self._introduce = introduce
        self._copies_topic = control_topic(self._prefix, Control.COPIES)

    def on_mark(self, content: bytes, lsn: LSN, states: TableStates) -> TableStates:
        """What is known of the tables after it."""
        mark = watermarks.decode_watermark(content)
        if mark is None:
            log.warning("mark_ignored", reason="a message of our name that is not ours", lsn=str(lsn))
        elif mark.pipeline != self._pipeline:
            # Of another pipeline on this database, or of a version before marks had names: whoever wrote it notices
            # that capture went past it without a word, and reads the chunk again.
            log.debug("mark_ignored", reason="of another pipeline", pipeline=mark.pipeline, lsn=str(lsn))
        elif self._changes.is_replaying_copies:
            pass  # it was passed before the restart
        elif isinstance(mark, watermarks.Low):
            if (reason := self._why_refused(mark.tables, mark.settings, states)) is not None:
                log.warning("mark_refused", reason=reason, copy=mark.copy, chunk=mark.chunk, lsn=str(lsn))
                return states
            topics = [states.tables[oid].topic for oid in mark.tables if oid in states.tables]
            self._changes.windows.low((mark.copy, mark.chunk), (mark.attempt, mark.reading), topics, lsn)
            self._changes.watch_windows()
        elif isinstance(mark, watermarks.High):
            self._on_high(mark, lsn, states)
        else:
            return self._on_end(mark, lsn, states)
        return states

    def _why_refused(self, oids: Collection[str], settings: Mapping[str, str], states: TableStates) -> str | None:
        """A job with other settings encodes rows otherwise; so may one of an older Tailrace, which does not say."""
        tables = {oid: name_of(states.tables[oid]) for oid in oids if oid in states.tables}
        return why_different(self._config, settings, tables)

    def _on_high(self, mark: watermarks.High, lsn: LSN, states: TableStates) -> None:
        chunk = msgspec.structs.replace(mark.chunk, attempt=mark.attempt, repeat="")
        windows = self._changes.windows
        if not self._call(lambda: self._announced.has_chunk(chunk.copy, chunk.number)):
            log.warning("mark_ignored", reason="nobody has announced its chunk", copy=chunk.copy, lsn=str(lsn))
            return
        tables = {piece.table for piece in chunk.pieces}
        if (reason := self._why_refused(tables, mark.settings, states)) is not None:
            log.warning("mark_refused", reason=reason, copy=chunk.copy, chunk=chunk.number, lsn=str(lsn))
            self._note(msgspec.structs.replace(chunk, rows=0, done=False, repeat=reason, refused=True))
            return
        snapshot = Snapshot.parse(mark.snapshot)
        verdict = windows.high((chunk.copy, chunk.number), (mark.attempt, mark.reading), snapshot, mark.writers)
        self._changes.watch_windows()
        self._introduce(tables)
        self._settle()
        tag = chunk_tag(chunk.copy, chunk.number, mark.attempt, mark.reading)
        waiting = WaitingRows(self._kafka, mark.first, mark.end, tag)
        try:
            if verdict.repeat is None and not self._call(waiting.are_there):
                verdict = WindowVerdict("its rows are no longer there")
            rows = 0
            if verdict.repeat is None:
                rows = self._publish(waiting, verdict, lsn, states)
                if waiting.count != mark.chunk.rows:
                    # What was published stands: each row is right. But they are not all of the chunk.
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
        version = Version(self._changes.position, 0)
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
                self._changes.on_copied(Record(topic, key, head + (GONE if size else row) + tail, headers))
                if events is not found:
                    self._changes.on_copied(Record(topic, key, None, headers))
                published += not size
        return published

    def _events(
        self, op: str, lsn: LSN, version: Version, states: TableStates, *, parked: bool = False
    ) -> dict[str, tuple[bytes, bytes]]:
        """By topic, what stands before and after a row."""
        return {
            state.topic: copied_event(
                _shape(state),
                pipeline=self._prefix,
                database=self._database,
                lsn=lsn,
                version=version,
                taken_ms=self._changes.commit_ms,
                op=op,
                parked=parked,
            )
            for state in states.tables.values()
        }

    def _on_end(self, mark: watermarks.End, lsn: LSN, states: TableStates) -> TableStates:
        """Rows that a whole copy did not bring are not there: what is older than its beginning is dead."""
        if mark.copy.base != self._changes.base:
            log.warning("mark_ignored", reason="its copy was begun before a recovery", copy=mark.copy.id, lsn=str(lsn))
            return states
        plan = self._call(lambda: self._announced.plan(mark.copy.id))
        if plan is None or not mark.whole.keys() <= set(plan.tables):
            log.warning("mark_ignored", reason="nobody has planned its copy", copy=mark.copy.id, lsn=str(lsn))
            return states
        if any(began > lsn for began in mark.whole.values()):
            log.warning("mark_ignored", reason="it would end what comes after it", copy=mark.copy.id, lsn=str(lsn))
            return states
        reason = self._why_refused(mark.whole, mark.settings, states)
        if reason is not None:
            log.warning("mark_refused", reason=reason, copy=mark.copy.id, lsn=str(lsn))
            self._note(
                msgspec.structs.replace(plan, state="abandoned", reason=reason, ended_ms=self._changes.commit_ms)
            )
            return states
        self._introduce(mark.whole)
        for oid, began in mark.whole.items():
            state = states.tables.get(oid)
            if state is None:
                continue
            for record in full_copy_markers(
                _shape(state),
                msgspec.structs.replace(plan, point=began),
                pipeline=self._prefix,
                database=self._database,
                partitions=self._kafka.partitions,
            ):
                self._changes.on_copied(record)
            states = states.copied(state.topic, began)
        self._note(msgspec.structs.replace(plan, state="complete", ended_ms=self._changes.commit_ms))
        log.info("copy_complete", copy=mark.copy.id, lsn=str(lsn), tables=len(mark.whole))
        return states

    def _note(self, record: ChunkState | CopyState) -> None:
        self._changes.on_copied(Record(self._copies_topic, record.key, record.encode(), [("v", b"")], 0))


def _shape(state: TableState) -> Shape:
    return Shape(schema=state.schema, table=state.table, topic=state.topic, key=tuple(state.key))


class WaitingRows:
    """The rows of one reading of a chunk, on `__copy`; other chunks' rows may lie between them.

    `count`: how many have been found so far.
    """

    def __init__(self, kafka: KafkaConfig, first: int, end: int, tag: bytes) -> None:
        self.topic = control_topic(kafka.prefix, Control.COPY)
        self._first = first
        self._end = end
        self._tag = tag
        self._at = first
        self.count = 0
        self._consumer = Consumer(
            {
                **kafka.client_options(),
                "group.id": "tailrace-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
                "queued.max.messages.kbytes": 4096,  # bounds memory: it fetches ahead, of other chunks too
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(self.topic, 0, first)])

    def close(self) -> None:
        self._consumer.close()

    def are_there(self) -> bool:
        """Whether the topic still reaches back so far (rows wait there for a day)."""
        if self._first == self._end:
            return True
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=_READ_SECONDS)
        except KafkaException as error:
            raise TransientError(f"{self.topic} could not be read: {error.args[0].str()}") from error
        return bool(low <= self._first and self._end <= high)

    def next_slice(self) -> list[CopiedRow]:
        """Empty at the end."""
        rows: list[CopiedRow] = []
        while self._at < self._end and not rows:
            # Never more than there are: it waits for as many. (Nothing on this topic is transactional, none is hidden.)
            messages = self._consumer.consume(min(_SLICE_ROWS, self._end - self._at), timeout=_READ_SECONDS)
            if not messages:
                raise TransientError(f"Kafka gave nothing from {self.topic} for {_READ_SECONDS:.0f} seconds.")
            rows = [row for message in messages if (row := self._row(message)) is not None]
        return rows

    def _row(self, message: Message) -> CopiedRow | None:
        error = message.error()
        if error is not None:
            raise TransientError(f"{self.topic} could not be read: {error.str()}")
        self._at = (message.offset() or 0) + 1
        headers = dict(message.headers() or [])
        if self._at > self._end or headers.get(CHUNK_HEADER) != self._tag:
            return None
        self.count += 1
        return CopiedRow(
            _data(headers.get(TOPIC_HEADER)).decode(),
            _data(message.key()),
            _data(message.value()),
            int(_data(headers.get(SIZE_HEADER)) or b"0"),
        )


def _data(value: str | bytes | None) -> bytes:
    """confluent-kafka's types allow text, which it never gives."""
    return value if isinstance(value, bytes) else b""
