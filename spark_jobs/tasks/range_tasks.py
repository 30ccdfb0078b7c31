"""Tasks that read ranges of topics from Kafka themselves, and apply the records."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from cdc.errors import RefusedError
from spark_jobs.tasks.apply_tasks import Answer, ApplySettings
from spark_jobs.tasks.latest_per_key import Record
from spark_jobs.tasks.topic_range import TopicRange, read_ranges

# Rows create many objects and no cycles, so the garbage collector may run rarely.
_GC_THRESHOLDS: Final = (100_000, 20, 100)


@dataclass(frozen=True, slots=True)
class RangeTask:
    """The function of `mapPartitions` over indexes of `shares`. It holds secrets, so pass it only to tasks."""

    applying: ApplySettings
    markers: Mapping[str, bytes]
    shares: Sequence[Sequence[TopicRange]]

    def __call__(self, numbers: Iterable[int]) -> Iterator[Answer]:
        """Apply the shares with these numbers and yield the result rows."""
        gc.set_threshold(*_GC_THRESHOLDS)
        # Read all input first. Spark ends a worker that leaves input unread, and must then start another.
        for number in list(numbers):
            if number < len(self.shares):
                yield from self._apply(self.shares[number])

    def _apply(self, share: Sequence[TopicRange]) -> Iterator[Answer]:
        to_records = _of_one if len(share) == 1 else _of_many
        with closing(read_ranges(self.applying.kafka_options, share)) as batches:
            yield from self.applying.answers(map(to_records, batches), self.markers)


def shared(ranges: Sequence[TopicRange], most: int) -> list[list[TopicRange]]:
    """Divide the ranges into at most `most` shares with about the same number of records."""
    shares: list[list[TopicRange]] = [[] for _ in range(min(most, len(ranges)))]
    sizes = [0] * len(shares)
    for each in sorted(ranges, key=lambda each: each.start - each.end):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(each)
        sizes[smallest] += each.end - each.start
    return shares


def _of_one(messages: list[Any]) -> Iterable[Record]:
    """Convert messages of one partition."""
    return _records(repeat(messages[0].topic()), repeat(messages[0].partition()), messages)


def _of_many(messages: list[Any]) -> Iterable[Record]:
    topics, partitions = [each.topic() for each in messages], [each.partition() for each in messages]
    return _records(topics, partitions, messages)


def _records(topics: Iterable[str], partitions: Iterable[int], messages: list[Any]) -> Iterable[Record]:
    """Convert messages to records. The first header of a record that Tailrace wrote is its version."""
    try:
        stamps = [message.headers()[0][1] for message in messages]
    except TypeError:
        raise _foreign(messages) from None
    return zip(
        topics,
        partitions,
        [message.offset() for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        stamps,
        repeat(None),
        strict=False,
    )


def _foreign(messages: list[Any]) -> RefusedError:
    first = next(message for message in messages if not message.headers())
    return RefusedError(
        f"{first.topic()}, partition {first.partition()}, offset {first.offset()}: a record without a version."
        " A program other than Tailrace writes to this topic.",
        remedy="Stop that program. `tailrace audit --topic --repair` repairs the row. Compaction removes the record.",
    )
