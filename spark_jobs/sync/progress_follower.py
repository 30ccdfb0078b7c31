"""Follows capture's progress records and table schemas on the control topics, for the driver of a sync.

Reads only Kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent import futures
from types import TracebackType

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from cdc.config import Config
from cdc.errors import TailraceError, TransientError
from cdc.kafka.broker_clock import BrokerClock, append_time_ms
from cdc.kafka.clients import open_offset_client
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.failures import kafka_failure, unreachable
from cdc.kafka.offsets import first_and_end_offset
from cdc.logs import get_logger
from cdc.names import Control, control_topic
from cdc.positions import progress as progress_records
from cdc.positions.offset_index import Offsets, Point, Points
from cdc.positions.progress import Progress
from cdc.stores.contract import TableSchema

_LOOK_BACK = 200
_STALE_SECONDS = 10.0
_OPEN_TRANSACTION_SECONDS = 1.0


class _SchemaKey(msgspec.Struct):
    """The key of a schema record. The record of all tables' states is on the same topic, and its key has no `topic`."""

    topic: str = ""
    version: str = ""


class ProgressFollower:
    """Consumes `__progress` and `__schema` in its own thread. Every method may be called from any thread."""

    def __init__(self, config: Config) -> None:
        self._progress_topic = control_topic(config.kafka.prefix, Control.PROGRESS)
        self._schema_topic = control_topic(config.kafka.prefix, Control.SCHEMA)
        self._options = config.kafka.client_options()
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._progress: Progress | None = None
        self._points = Points()
        self._schemas: dict[str, tuple[str, TableSchema]] = {}
        self._read_to: dict[str, int] = {}
        self._rereads_schemas = False
        self._admin = open_offset_client(self._options)
        self._clock = BrokerClock(config)
        self._clock_turn = threading.Lock()
        self._refused: TailraceError | None = None
        self._thread = threading.Thread(target=self._run, name="tailrace-progress-follower", daemon=True)

    def __enter__(self) -> ProgressFollower:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        # Close the client here. The garbage collector may run in one of its own threads, and librdkafka then aborts.
        self._admin.__exit__(None, None, None)
        with self._clock_turn:
            self._clock.close()

    # -- queries -----------------------------------------------------------------------------------------------

    def progress(self) -> Progress | None:
        """Return the newest progress record; None if capture has never started."""
        self._raise_refused()
        return self._progress

    def tables(self) -> dict[str, TableSchema]:
        """Return, by topic, the present schema of each captured table. Tables without a schema are left out."""
        self._raise_refused()
        with self._changed:
            known = self._progress.end_offsets if self._progress is not None else {}
            return {topic: self._schemas[topic][1] for topic in sorted(known) if topic in self._schemas}

    def covered(self, offsets: Offsets, left_out: Collection[str] = ()) -> Point | None:
        """Return the newest point that these offsets cover. `left_out` are topics that the reader does not read."""
        with self._changed:
            return self._points.covered(offsets, left_out)

    def newest(self) -> Point | None:
        """Return the newest point; None if there is none yet."""
        with self._changed:
            return self._points.newest

    def wait_for_progress(self, known: Progress | None, timeout_seconds: float) -> Progress | None:
        """Wait until the newest progress record is another one than `known`. Returns the newest one."""
        with self._changed:
            self._changed.wait_for(lambda: self._progress is not known, timeout_seconds)
            return self._progress

    def broker_ms(self) -> int:
        """Return the broker's time. This is a request to the broker, so do not call it for each batch."""
        with self._clock_turn:
            now_ms = self._clock.now_ms()
        newest = self.newest()
        return max(now_ms, newest.broker_ms if newest is not None else 0)

    def has_read_all(self) -> bool:
        """Return whether the newest point covers everything that was published before this call.

        That is so if no progress record follows the newest one and no transaction is open. Capture publishes every
        record of a table in one transaction with a progress record.
        """
        _, end = self._ends(self._progress_topic)
        with self._changed:
            return self._read_to.get(self._progress_topic, -1) >= end

    def catch_up(self, deadline_seconds: float = _STALE_SECONDS) -> None:
        """Wait until every schema that is published now has been read.

        Capture publishes a schema in the transaction of the first rows that use it. A reader of those rows needs the
        schema. A transaction becomes visible partition by partition, so this method also waits for open transactions
        on the schema topic. That wait is short, because the open transaction may be a later one.
        """
        committed, end = self._ends(self._schema_topic)
        began = time.monotonic()
        with self._changed:
            while (
                known := self._read_to.get(self._schema_topic, -1)
            ) < end or self._progress_topic not in self._read_to:
                waited = time.monotonic() - began
                if committed <= known and waited > _OPEN_TRANSACTION_SECONDS and self._progress is not None:
                    return
                if waited > deadline_seconds or self._stop.is_set():
                    raise TransientError(f"{self._schema_topic} could not be read to its end.")
                self._changed.wait(0.2)
                self._raise_refused()

    def _ends(self, topic: str) -> tuple[int, int]:
        """Return two end offsets of the topic: of committed records, and of all records."""
        place, latest = TopicPartition(topic, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = [
            self._admin.list_offsets({place: latest}, isolation_level=level, request_timeout=_STALE_SECONDS)[place]
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        try:
            committed, end = (answer.result(_STALE_SECONDS).offset for answer in asked)
        except (KafkaException, futures.TimeoutError) as error:
            self._admin = open_offset_client(
                self._options
            )  # the old client may stay with a former leader or its epoch forever
            reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
            raise unreachable(self._options, f"Kafka did not answer: {reason}.") from error
        return committed, end

    def _raise_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        log = get_logger("ledger")
        while not self._stop.is_set():
            try:
                self._follow()
            except TransientError as error:
                log.warning("retrying", reason=str(error))
                self._stop.wait(1.0)
            except TailraceError as error:
                self._refused = error
                return

    def _follow(self) -> None:
        try:
            self._read_topics()
        except KafkaException as error:
            raise kafka_failure(self._options, "The control topics could not be read", error.args[0]) from error

    def _read_topics(self) -> None:
        consumer = committed_reader(self._options)
        try:
            if not self._assign(consumer):
                self._stop.wait(0.5)
                return
            while not self._stop.is_set():
                first = consumer.poll(0.1)
                # `consume` alone would wait until its time is over or it has all of these records.
                for message in [first, *consumer.consume(1000, 0)] if first is not None else []:
                    self._take(message)
                if self._rereads_schemas:
                    self._rereads_schemas = False
                    consumer.seek(TopicPartition(self._schema_topic, 0, OFFSET_BEGINNING))
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> bool:
        """Assign the control topics to the consumer. Returns False if capture has not created them yet."""
        found = consumer.list_topics(timeout=10).topics
        if self._progress_topic not in found or self._schema_topic not in found:
            return False
        low, high = first_and_end_offset(consumer, self._progress_topic, timeout_seconds=10)
        self._read_to = {}
        consumer.assign(
            [
                TopicPartition(self._progress_topic, 0, max(low, high - _LOOK_BACK)),
                TopicPartition(self._schema_topic, 0, OFFSET_BEGINNING),
            ]
        )
        return True

    def _take(self, message: Message) -> None:
        error, topic, offset = message.error(), message.topic() or "", message.offset() or 0
        with self._changed:
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                self._read_to[topic] = offset
            else:
                self._learn(topic, message.key() or b"", message.value(), append_time_ms(message))
                if topic == self._schema_topic:
                    self._read_to[topic] = offset + 1
            self._changed.notify_all()

    def _begin_again(self) -> None:
        """Discard what was read: another pipeline publishes now, and its versions may be smaller than the old ones."""
        self._points, self._schemas = Points(), {}
        self._read_to.pop(self._schema_topic, None)
        self._rereads_schemas = True

    def _learn(self, topic: str, key: bytes, value: bytes | None, broker_ms: int) -> None:
        if value is None:
            return
        if topic == self._progress_topic:
            if key == progress_records.KEY:
                before, self._progress = self._progress, progress_records.decode_progress(value)
                if before is not None and before.pipeline_id and before.pipeline_id != self._progress.pipeline_id:
                    self._begin_again()
                point = Point.of(self._progress, broker_ms)
                if point is not None:
                    self._points.add(point)
            return
        named = msgspec.json.decode(key, type=_SchemaKey)
        if named.version and named.version >= self._schemas.get(named.topic, ("", None))[0]:
            self._schemas[named.topic] = (named.version, TableSchema.from_record(value))
