"""Sees from outside when records arrive in a reader's topics; the same eyes for ours and for Debezium.

While a reader is timed this costs next to nothing: end offsets are polled only until the first record is there, after
that one fetch waits at the broker for the row that was written behind the backlog.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.bench.source import FINISH

DRAIN_SECONDS = 1800.0
_POLL_SECONDS = 0.005


class Arrivals:
    """`check` is called while waiting; it raises when the reader has died."""

    def __init__(self, bootstrap: str, prefix: str, check: Callable[[], None]) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._check = check
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 1})
        self._finish: Consumer | None = None
        self._partitions: dict[str, int] = {}

    def topic(self, table: str) -> str:
        return f"{self._prefix}.public.{table}"

    def ends(self, table: str, *, committed: bool) -> list[int]:
        """Each partition's end offset."""
        places = self._places(table)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(dict.fromkeys(places, latest), isolation_level=level)
        found = {place.partition: answer.result().offset for place, answer in asked.items()}
        return [found[partition] for partition in sorted(found)]

    def watch_finish(self) -> None:
        """From now on; call before the reader starts."""
        self._finish = self.consumer(FINISH, self.ends(FINISH, committed=True))

    def wait_for_first(self, table: str, before: list[int]) -> float:
        """When a first record was on the broker, committed or not."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while sum(self.ends(table, committed=False)) <= sum(before):
            self._go_on(deadline, "the first record")
            time.sleep(_POLL_SECONDS)
        return time.monotonic()

    def wait_for_finish(self, finish: int) -> None:
        """Wait until readers of committed records see the row that was written after everything else."""
        deadline = time.monotonic() + DRAIN_SECONDS
        consumer, self._finish = self._finish, None
        assert consumer is not None
        while True:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None and _id(message.key()) == finish:
                break
            self._go_on(deadline, "the last record")
        consumer.close()

    def wait_for_last(self, table: str, before: list[int], rows: int, finish: int) -> float:
        """When readers of committed records could see all of it."""
        self.wait_for_finish(finish)
        deadline = time.monotonic() + DRAIN_SECONDS
        # Debezium's producer keeps no order between topics: the row behind may have overtaken the last ones.
        while sum(self.ends(table, committed=True)) < sum(before) + rows:
            self._go_on(deadline, "the last record")
            time.sleep(_POLL_SECONDS)
        return time.monotonic()

    def count(self, table: str, before: list[int]) -> int:
        """How many records committed readers see after those offsets."""
        consumer = self.consumer(table, before)
        unfinished = set(range(len(before)))
        found = 0
        while unfinished:
            for message in consumer.consume(num_messages=20_000, timeout=0.1):
                error = message.error()
                if error is None:
                    found += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
        consumer.close()
        return found

    def consumer(self, table: str, offsets: list[int]) -> Consumer:
        """A reader of committed records from the given offsets on."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "log_level": 1,
                "group.id": "bench",  # required, but never joined: partitions are assigned by hand
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        topic = self.topic(table)
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)])
        return consumer

    def _places(self, table: str) -> list[TopicPartition]:
        topic = self.topic(table)
        if topic not in self._partitions:
            described: Any = self._admin.list_topics(topic, timeout=30).topics[topic]
            self._partitions[topic] = len(described.partitions)
        return [TopicPartition(topic, number) for number in range(self._partitions[topic])]

    def _go_on(self, deadline: float, what: str) -> None:
        self._check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{self._prefix}: waited {DRAIN_SECONDS:.0f} s in vain for {what}")


def _id(key: Any) -> int:
    found: int = json.loads(key)["id"]
    return found
