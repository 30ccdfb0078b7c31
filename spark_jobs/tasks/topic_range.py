"""Reads ranges of topics inside a task: the committed records of a partition between two offsets.

It uses librdkafka instead of Spark's own Kafka source, whose first query keeps Java busy for seconds, and which takes
twice as long per record.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import TransientError
from cdc.kafka.clients import open_consumer

_AT_ONCE: Final = 5_000
_POLL_SECONDS: Final = 0.02
_ANSWER_SECONDS: Final = 60.0
_READING: Final = {
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,  # by default librdkafka waits a second before it refills a full queue
    "queued.max.messages.kbytes": 32_768,
    "check.crcs": False,
}
# How far librdkafka reads ahead: enough to keep the task busy. It also reads past the end of a range, and those
# records are discarded.
_LONG: Final = {"fetch.message.max.bytes": 1 << 19, "queued.min.messages": 5_000}
_SHORT: Final = {"fetch.message.max.bytes": 1 << 18, "queued.min.messages": 1_000}
_IS_LONG: Final = 20_000
# librdkafka retries after these errors by itself. The timeout of `_batches` covers the case that it never succeeds.
_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})


@dataclass(frozen=True, slots=True)
class TopicRange:
    """The offsets from `start` up to, but not including, `end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int


def cut(start: Mapping[str, Sequence[int]], end: Mapping[str, Sequence[int]], most: int) -> list[TopicRange]:
    """Divide all offsets between `start` and `end` into ranges of about equal size, none much larger than `most`."""
    found = []
    for topic, ends in end.items():
        for partition, (first, last) in enumerate(zip(start[topic], ends, strict=True)):
            if last < first:
                raise TransientError(f"Topic {topic} ends before the offset that was read: it was created again.")
            pieces = -(-(last - first) // most)
            bounds = [first + (last - first) * number // pieces for number in range(pieces + 1) if pieces]
            found += [TopicRange(topic, partition, *each) for each in pairwise(bounds)]
    return found


def read_ranges(options: Mapping[str, str], ranges: Sequence[TopicRange]) -> Generator[list[Message], None, None]:
    """Yields the records of the ranges, those of a partition in order. `options` are librdkafka's.

    Only one generator may be in use at a time, and the caller must close it.
    """
    consumer = _consumer(options, long=any(each.end - each.start >= _IS_LONG for each in ranges))
    try:
        consumer.assign([TopicPartition(each.topic, each.partition, each.start) for each in ranges])
        yield from _batches(consumer, _Ends(ranges))
        consumer.unassign()
    except BaseException:  # also when the caller closes the generator early
        _kept.clear()
        consumer.close()
        raise


# A worker process keeps its connections from task to task.
_kept: dict[str, Consumer] = {}


def _consumer(options: Mapping[str, str], *, long: bool) -> Consumer:
    reading = {**_READING, **(_LONG if long else _SHORT)}
    key = repr((sorted(options.items()), sorted(reading.items())))
    if key not in _kept:
        for other in _kept.values():
            other.close()
        _kept.clear()
        _kept[key] = open_consumer(options, reading)
    return _kept[key]


class _Ends:
    """Tracks which ranges are read to their end.

    A range has ended when a record reaches its last offset, or at the end of the partition if only control records
    follow.
    """

    def __init__(self, ranges: Sequence[TopicRange]) -> None:
        self._ends = {(each.topic, each.partition): each.end for each in ranges}
        self._only = ranges[0].end if len(ranges) == 1 else 0
        self.topics = ", ".join(sorted({each.topic for each in ranges}))
        self.open = set(self._ends)

    def records(self, messages: list[Message]) -> list[Message]:
        """Return the messages that belong to a range, and note the ranges that have ended."""
        in_the_middle = (messages[-1].offset() or 0) < self._only - 1
        if in_the_middle and all(message.error() is None for message in messages):
            return messages
        return self._sorted_out(messages)

    def _sorted_out(self, messages: list[Message]) -> list[Message]:
        found = []
        for message in messages:
            error, offset = message.error(), message.offset() or 0
            place = message.topic() or "", message.partition() or 0
            if error is None:
                if offset < self._ends[place]:
                    found.append(message)
                offset += 1
            elif error.code() in _PASSING:
                continue
            elif error.code() != KafkaError._PARTITION_EOF:
                raise _failure(self.topics, error)
            if offset >= self._ends[place]:
                self.open.discard(place)
        return found


def _batches(consumer: Consumer, ends: _Ends) -> Iterator[list[Message]]:
    give_up_at = time.monotonic() + _ANSWER_SECONDS
    while ends.open:
        try:
            messages = consumer.consume(_AT_ONCE, timeout=_POLL_SECONDS)
        except KafkaException as error:
            raise _failure(ends.topics, error.args[0]) from error
        records = ends.records(messages) if messages else []
        if records:
            give_up_at = time.monotonic() + _ANSWER_SECONDS
            yield records
        elif time.monotonic() > give_up_at:
            raise TransientError(f"Kafka returned nothing from {ends.topics} for {_ANSWER_SECONDS:.0f} seconds.")


def _failure(topics: str, error: KafkaError) -> TransientError:
    return TransientError(f"{topics} could not be read: {error.str()}.")
