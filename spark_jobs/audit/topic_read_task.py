"""The task that reads a share of a topic: the committed records of one partition between two offsets, as hashes.

There are two implementations with the same result. Where `native_records` was compiled, it parses raw record batches:
half a microsecond per record, and no object. Otherwise, and whenever `native_records` meets data that it cannot parse,
librdkafka reads the share, at four microseconds per record. (Spark's Kafka source takes eight.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.audit.record_batches import UnreadableError, committed
from cdc.audit.row_blocks import OFFSET_BITS, block, by_group
from cdc.audit.row_content import SEED
from cdc.errors import TransientError
from cdc.kafka.clients import open_consumer
from cdc.logs import get_logger
from spark_jobs.audit.raw_fetch import PartitionFetch
from spark_jobs.audit.side_tasks import MARKER, ROWS_AT_ONCE, TOPIC, Hashing, Record, failed_side
from spark_jobs.audit.topic_rows import Columns, RawRecord, TopicRows

NativeRecords: Any
try:
    from cdc.audit.native_records import NativeRecords  # type: ignore[import-not-found,no-redef]
except ImportError:  # not compiled
    NativeRecords = None

log = get_logger("audit")

_AT_ONCE: Final = 10_000
_ANSWER_SECONDS: Final = 60.0
_BULK: Final = {
    # By default librdkafka pauses fetching for a second whenever its queue is full.
    "fetch.queue.backoff.ms": 0,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 65_536,
    "check.crcs": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReadTask:
    """A task that reads the offsets from `start` up to `end` of one partition.

    `options`: librdkafka's; `python_options`: kafka-python's. Both hold secrets, so a share must be passed to tasks
    only.
    """

    options: dict[str, str] = field(repr=False)
    python_options: dict[str, Any] = field(repr=False)
    topic: str
    partition: int
    start: int
    end: int
    hashing: Hashing

    def __call__(self) -> Iterator[Record]:
        return failed_side(self._records())

    def _records(self) -> Iterator[Record]:
        if NativeRecords is not None:
            try:
                yield from self._raw_records()
                return
            except UnreadableError as error:
                # Read the share again from its start: a record that is yielded twice does no harm.
                log.warning("audit_reads_by_client", topic=self.topic, partition=self.partition, reason=str(error))
        yield from self._client_records()

    def _raw_records(self) -> Iterator[Record]:
        rows = TopicRows(self.hashing)
        native = NativeRecords(
            exact=self.hashing.content.exact,
            by_id=self.hashing.by_id,
            one_column=self.hashing.one_column,
            seed=SEED,
        )
        at = self.start
        fetching = PartitionFetch(self.python_options, self.topic, self.partition)
        try:
            give_up_at = time.monotonic() + _ANSWER_SECONDS
            while at < self.end:
                fetched = fetching.fetch(at)
                before = at
                for batch in committed(fetched.data, fetched.aborted):
                    if batch.records:
                        rows.take(self._taken(native, batch.data, batch.records, batch.base))
                    at = max(at, batch.end)
                if at > before:
                    give_up_at = time.monotonic() + _ANSWER_SECONDS
                elif time.monotonic() > give_up_at:
                    raise TransientError(f"Kafka sent no records of {self.topic} for {_ANSWER_SECONDS:.0f} seconds.")
                if len(native) + len(rows) >= ROWS_AT_ONCE:
                    yield from self._packed(_columns(native), rows.columns())
            yield from self._packed(_columns(native), rows.columns())
            yield from self._marker(rows)
        finally:
            fetching.close()

    def _taken(self, native: Any, data: bytes, records: int, base: int) -> list[RawRecord]:
        try:
            odd: list[RawRecord] = native.take(data, records, base, self.start, self.end)
        except ValueError as error:
            raise UnreadableError(str(error)) from error
        return odd

    def _client_records(self) -> Iterator[Record]:
        rows = TopicRows(self.hashing)
        consumer = open_consumer(self.options, _BULK)
        try:
            consumer.assign([TopicPartition(self.topic, self.partition, self.start)])
            for messages in self._batches(consumer):
                rows.take([_raw(message) for message in messages])
                if len(rows) >= ROWS_AT_ONCE:
                    yield from self._packed(rows.columns())
            yield from self._packed(rows.columns())
            yield from self._marker(rows)
        finally:
            consumer.close()

    def _marker(self, rows: TopicRows) -> Iterator[Record]:
        if rows.marker:
            yield from ((group, (MARKER, rows.marker)) for group in range(self.hashing.groups))

    def _packed(self, *some: Columns) -> Iterator[Record]:
        for columns in some:
            rows = block(
                ids=columns.ids,
                contents=columns.contents,
                positions=columns.positions,
                seqs=columns.seqs,
                places=(self.partition << OFFSET_BITS) | columns.offsets,
                live=columns.live,
            )
            for group, data in by_group(rows, self.hashing.groups):
                yield group, (TOPIC, data)

    def _batches(self, consumer: Consumer) -> Iterator[Sequence[Message]]:
        """Yield messages up to `end`.

        The end is recognised by a message's offset, or by the end-of-partition event if only control records follow.
        """
        give_up_at = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                messages = consumer.consume(_AT_ONCE, timeout=0.2)
            except KafkaException as error:
                raise TransientError(f"{self.topic} could not be read: {error.args[0].str()}.") from error
            if not messages:
                if time.monotonic() > give_up_at:
                    raise TransientError(f"Kafka sent no records of {self.topic} for {_ANSWER_SECONDS:.0f} seconds.")
                continue
            give_up_at = time.monotonic() + _ANSWER_SECONDS
            last = messages[-1]
            rows, reached = messages, (last.offset() or 0) + (last.error() is None)
            if any(message.error() is not None for message in messages):
                rows = [message for message in messages if not self._is_end(message)]
            if reached >= self.end:
                yield [message for message in rows if (message.offset() or 0) < self.end]
                return
            yield rows

    def _is_end(self, message: Message) -> bool:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
            raise TransientError(f"{self.topic} could not be read: {error.str()}.")
        return error is not None


def _columns(native: Any) -> Columns:
    ids, contents, positions, seqs, offsets, live = native.columns()
    native.clear()
    return Columns(
        np.frombuffer(ids, np.uint64),
        np.frombuffer(contents, np.uint64),
        np.frombuffer(positions, np.uint64),
        np.frombuffer(seqs, np.uint32),
        np.frombuffer(offsets, np.int64),
        np.frombuffer(live, bool),
    )


def _raw(message: Message) -> RawRecord:
    """Return the parts of a message. The version is the first header of every record that Tailrace writes."""
    headers = message.headers()
    stamp = headers[0][1] if isinstance(headers, list) and headers else None
    return (
        message.offset() or 0,
        message.key() or b"",
        message.value(),
        stamp if isinstance(stamp, bytes) else None,
    )
