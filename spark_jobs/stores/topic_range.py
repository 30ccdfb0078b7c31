"""A range of a topic: the committed records of one partition between two offsets, read inside a task.

Read with librdkafka and not with Spark's own source: that one's first query keeps Java busy for seconds, and each
record costs it twice as much.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import TransientError

_AT_ONCE: Final = 5_000
_ANSWER_SECONDS: Final = 60.0
_BULK: Final = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # records that are gone are no reason to begin elsewhere
    "group.id": "tailrace-unused",  # required, but never joined: partitions are assigned by hand
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 1 << 20,
    # What is read ahead, past the range's end as well, and thrown away there: enough to keep the task busy.
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32_768,
    "check.crcs": False,
    "log_level": 0,
}
# librdkafka mends these by itself, in time or not.
_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})


@dataclass(frozen=True, slots=True)
class TopicRange:
    topic: str
    partition: int
    start: int
    end: int


def cut(start: Mapping[str, Sequence[int]], end: Mapping[str, Sequence[int]], most: int) -> list[TopicRange]:
    """Everything in between, in ranges of about the same size, none much larger than `most`."""
    found = []
    for topic, ends in end.items():
        for partition, (first, last) in enumerate(zip(start[topic], ends, strict=True)):
            pieces = -(-(last - first) // most)
            bounds = [first + (last - first) * number // pieces for number in range(pieces + 1) if pieces]
            found += [TopicRange(topic, partition, *each) for each in pairwise(bounds)]
    return found


def read_range(options: Mapping[str, str], wanted: TopicRange) -> Iterator[list[Message]]:
    """Its records, some thousand at a time. `options`: of librdkafka."""
    consumer = Consumer({**options, **_BULK})
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        yield from _batches(consumer, wanted)
    finally:
        consumer.close()


def _batches(consumer: Consumer, wanted: TopicRange) -> Iterator[list[Message]]:
    """Up to the end; the end is told by an offset, or by the broker where only control records follow."""
    give_up_at = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            messages = consumer.consume(_AT_ONCE, timeout=0.2)
        except KafkaException as error:
            raise _trouble(wanted, error.args[0]) from error
        rows = messages
        if any(message.error() is not None for message in messages):
            rows = [message for message in messages if _is_record(message, wanted)]
        reached = max((_next_offset(message) for message in messages[-1:]), default=0)
        if reached:
            give_up_at = time.monotonic() + _ANSWER_SECONDS
        elif time.monotonic() > give_up_at:
            raise TransientError(f"Kafka gave nothing from {wanted.topic} for {_ANSWER_SECONDS:.0f} seconds.")
        if reached >= wanted.end:
            yield [message for message in rows if (message.offset() or 0) < wanted.end]
            return
        if rows:
            yield rows


def _next_offset(message: Message) -> int:
    """Everything below it has been read; 0 where the message says nothing about that."""
    error, offset = message.error(), message.offset() or 0
    if error is None:
        return offset + 1
    return offset if error.code() == KafkaError._PARTITION_EOF else 0


def _is_record(message: Message, wanted: TopicRange) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF and error.code() not in _PASSING:
        raise _trouble(wanted, error)
    return error is None


def _trouble(wanted: TopicRange, error: KafkaError) -> TransientError:
    return TransientError(f"{wanted.topic} could not be read: {error.str()}.")
