"""Tasks that read their records themselves: some ranges of topics, applied one list after the other."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from cdc.errors import RefusedError
from spark_jobs.tasks.apply_tasks import Answer, Applying
from spark_jobs.tasks.latest_per_key import Record
from spark_jobs.tasks.topic_range import TopicRange, read_ranges

# Rows make many objects and no cycles.
_GC_THRESHOLDS: Final = (100_000, 20, 100)


@dataclass(frozen=True, slots=True)
class RangeTask:
    """For `mapPartitions`, over numbers of `shares`. It holds secrets, like `applying`: for tasks and nobody else."""

    applying: Applying
    markers: Mapping[str, bytes]
    shares: Sequence[Sequence[TopicRange]]

    def __call__(self, numbers: Iterable[int]) -> Iterator[Answer]:
        gc.set_threshold(*_GC_THRESHOLDS)
        # All of them first: a worker that leaves input unread is thrown away, and the next has to be started.
        for number in list(numbers):
            if number < len(self.shares):
                yield from self._apply(self.shares[number])

    def _apply(self, share: Sequence[TopicRange]) -> Iterator[Answer]:
        to_records = _of_one if len(share) == 1 else _of_many
        with closing(read_ranges(self.applying.kafka_options, share)) as batches:
            yield from self.applying.answers(map(to_records, batches), self.markers)


def shared(ranges: Sequence[TopicRange], most: int) -> list[list[TopicRange]]:
    """In so many shares at most, of about the same number of records."""
    shares: list[list[TopicRange]] = [[] for _ in range(min(most, len(ranges)))]
    sizes = [0] * len(shares)
    for each in sorted(ranges, key=lambda each: each.start - each.end):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(each)
        sizes[smallest] += each.end - each.start
    return shares


def _of_one(messages: list[Any]) -> Iterable[Record]:
    """Of one partition."""
    return _records(repeat(messages[0].topic()), repeat(messages[0].partition()), messages)


def _of_many(messages: list[Any]) -> Iterable[Record]:
    topics, partitions = [each.topic() for each in messages], [each.partition() for each in messages]
    return _records(topics, partitions, messages)


def _records(topics: Iterable[str], partitions: Iterable[int], messages: list[Any]) -> Iterable[Record]:
    """A record of ours has its version as the first header. (Messages: none of what they may lack is lacking here.)"""
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
        " Something else than Tailrace writes to this topic.",
        remedy="Stop that. `tailrace audit --topic --repair` mends the row, and compaction removes the record.",
    )
