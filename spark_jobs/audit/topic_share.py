"""A share of a topic: the committed records of one partition between two offsets, hashed as they come.

Read with librdkafka and not with Spark's own source, which takes twice as long for each record (measured: 8 µs against
4, on one core). Hot: `take` costs something per record; an event without a `before` is not parsed, since its `after`
lies between two texts that no JSON string can hold (their quotes would be escaped).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.audit.blocks import OFFSET_BITS, block, by_group
from cdc.audit.content import numbers
from cdc.errors import TransientError
from spark_jobs.audit.sides import MARKER, ROWS_AT_ONCE, TOPIC, Hashing, Record, after_of, stamps, troubled

_HEAD: Final = b'{"before":null,"after":'
_HEAD_BYTES: Final = len(_HEAD)
_SOURCE: Final = b',"source":{"version":"'
_MARKER_KEY: Final = b'{"__truncate":'
_AT_ONCE: Final = 10_000
_ANSWER_SECONDS: Final = 60.0
_BULK: Final = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "group.id": "tailrace-unused",
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 65_536,
    "check.crcs": False,
    "log_level": 0,
}


class _Op(msgspec.Struct):
    op: str = ""


_decode_op = msgspec.json.Decoder(_Op).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShare:
    """Holds the broker's secrets, so it goes nowhere but into tasks."""

    options: dict[str, str] = field(repr=False)
    topic: str
    partition: int
    start: int
    end: int
    hashing: Hashing

    def __call__(self) -> Iterator[Record]:
        return troubled(self._records())

    def _records(self) -> Iterator[Record]:
        waiting = _Waiting(self.partition)
        consumer = Consumer({**self.options, **_BULK})
        try:
            consumer.assign([TopicPartition(self.topic, self.partition, self.start)])
            for messages in self._batches(consumer):
                waiting.take(messages, self.hashing)
                if len(waiting.keys) >= ROWS_AT_ONCE:
                    yield from waiting.packed(self.hashing)
            yield from waiting.packed(self.hashing)
            if waiting.marker:
                yield from ((group, (MARKER, waiting.marker)) for group in range(self.hashing.groups))
        finally:
            consumer.close()

    def _batches(self, consumer: Consumer) -> Iterator[list[Message]]:
        """Up to the end; the end is told by an offset, or by the broker where only control records follow."""
        give_up_at = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                messages = consumer.consume(_AT_ONCE, timeout=0.2)
            except KafkaException as error:
                raise TransientError(f"{self.topic} could not be read: {error.args[0].str()}.") from error
            if not messages:
                if time.monotonic() > give_up_at:
                    raise TransientError(f"Kafka gave nothing from {self.topic} for {_ANSWER_SECONDS:.0f} seconds.")
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


class _Waiting:
    """Rows on their way into a block."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.marker = b""
        self._clear()

    def _clear(self) -> None:
        self.keys: list[bytes] = []
        self._contents = bytearray()
        self._offsets: list[int] = []
        self._live: list[bool] = []
        self._stamps: list[bytes | None] = []

    def take(self, messages: Sequence[Message], hashing: Hashing) -> None:
        keys = [message.key() or b"" for message in messages]
        values = [message.value() for message in messages]
        if _MARKER_KEY in b"".join(keys):
            markers = [message for message in messages if _is_marker(message)]
            self.marker = max([self.marker, *(_stamp(message) or b"" for message in markers)])
            if markers:
                self.take([message for message in messages if message not in markers], hashing)
                return
        rows = [_row(value) for value in values]
        self.keys += keys
        self._offsets += [message.offset() or 0 for message in messages]
        self._stamps += map(_stamp, messages)
        self._live += [row is not None for row in rows]
        self._contents += hashing.contents([row or b"" for row in rows])

    def packed(self, hashing: Hashing) -> Iterator[Record]:
        if not self.keys:
            return
        positions, seqs = stamps(self._stamps)
        rows = block(
            ids=numbers(hashing.ids(self.keys)),
            contents=numbers(self._contents),
            keys=self.keys,
            positions=positions,
            seqs=seqs,
            places=(self._partition << OFFSET_BITS) | np.array(self._offsets, np.int64),
            live=np.array(self._live, bool),
        )
        self._clear()
        for group, data in by_group(rows, hashing.groups):
            yield group, (TOPIC, data)


def _is_marker(message: Message) -> bool:
    key, value = message.key(), message.value()
    try:
        return bool(key and value and key.startswith(_MARKER_KEY) and _decode_op(value).op == "t")
    except msgspec.DecodeError:
        return False


def _stamp(message: Message) -> bytes | None:
    """The first header of every record of ours."""
    headers = message.headers()
    if not isinstance(headers, list) or not headers:
        return None
    stamp = headers[0][1]
    return stamp if isinstance(stamp, bytes) else None


def _row(value: bytes | None) -> bytes | None:
    if value is not None and value.startswith(_HEAD):
        end = value.find(_SOURCE)
        if end > 0:
            row = value[_HEAD_BYTES:end]
            return None if row == b"null" else row
    return after_of(value)
