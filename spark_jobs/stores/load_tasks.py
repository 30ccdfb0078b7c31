"""What the tasks of a bulk load do: read a range of a topic and apply it, then count the keys that all of them saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from confluent_kafka import Message

from spark_jobs.stores.reduction import Record
from spark_jobs.stores.tasks import Answer, Applying
from spark_jobs.stores.topic_range import TopicRange, read_range

#: An answer, and the group of keys that it is wanted in.
Grouped = tuple[int, Answer]


@dataclass(frozen=True, slots=True)
class RangeTask:
    """For `mapPartitions`, over the numbers of ranges. Holds secrets, like `applying`."""

    applying: Applying
    markers: Mapping[str, bytes]
    ranges: Sequence[TopicRange]

    def __call__(self, numbers: Iterable[int]) -> Iterator[Grouped]:
        # All of them first: a worker that leaves input unread is thrown away, and the next has to be started.
        for number in list(numbers):
            wanted = self.ranges[number]
            batches = read_range(self.applying.kafka_options, wanted)
            records = (_records(wanted, messages) for messages in batches)
            for answer in self.applying.answers(records, self.markers):
                yield from grouped(self.applying.key_groups, answer)


def _records(wanted: TopicRange, messages: Sequence[Message]) -> Iterable[Record]:
    """A record of ours has its version as the first header."""
    return zip(
        repeat(wanted.topic),
        repeat(wanted.partition),
        [message.offset() for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.headers()[0][1] for message in messages],  # type: ignore[index]
        repeat(None),
        strict=False,
    )


def grouped(groups: int, answer: Answer) -> Iterator[Grouped]:
    """Where an answer is wanted: keys in their group, a marker wherever keys are counted, the rest anywhere."""
    if answer["kind"] == "keys":
        yield answer["grp"], answer
    elif answer["kind"] == "marker":
        yield from ((group, answer) for group in range(max(1, groups)))
    else:
        yield 0, answer


def count_rows(group: Iterable[Grouped]) -> Iterator[Grouped]:
    """For `mapPartitions` over groups: keys become the number of live rows, the rest goes through."""
    from spark_jobs.stores.live_rows import live_rows  # noqa: PLC0415 - numpy: only a task needs it

    keys: dict[str, list[bytes]] = {}
    markers: dict[str, bytes] = {}
    for number, answer in group:
        if answer["kind"] == "keys":
            keys.setdefault(answer["topic"], []).append(answer["data"])
            continue
        if answer["kind"] == "marker":
            markers[answer["topic"]] = max(answer["stamp"].encode(), markers.get(answer["topic"], b""))
        yield number, answer
    for topic, states in keys.items():
        yield 0, {"kind": "rows", "topic": topic, "rows": live_rows(states, markers.get(topic, b""))}
