"""Reads every byte of a pipeline in Kafka, control topics included, to find secrets and records that are no JSON."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.harness.kafka.topics import list_topics


@dataclass(frozen=True, slots=True)
class RawRecord:
    topic: str
    key: bytes
    value: bytes
    headers: dict[str, bytes]

    def holds(self, text: bytes) -> bool:
        return any(text in each for each in (self.key, self.value, *self.headers.values()))


def topics_under(bootstrap: str, prefix: str) -> list[str]:
    return sorted(name for name in list_topics(bootstrap) if name.startswith(f"{prefix}."))


def read_raw(bootstrap: str, *topics: str, committed: bool = True) -> list[RawRecord]:
    """Read a topic from beginning to end, in order within a partition, including records of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "harness",  # required, but never joined
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        places = [
            TopicPartition(name, partition, OFFSET_BEGINNING)
            for name in topics
            for partition in consumer.list_topics(name, timeout=10).topics[name].partitions
        ]
        consumer.assign(places)
        return _read_to_the_end(consumer, {(place.topic, place.partition) for place in places})
    finally:
        consumer.close()


def _read_to_the_end(consumer: Consumer, unfinished: set[tuple[str | None, int | None]]) -> list[RawRecord]:
    records: list[RawRecord] = []
    give_up_at = time.monotonic() + 30
    while unfinished:
        assert time.monotonic() < give_up_at, f"never ended: {unfinished}"
        for message in consumer.consume(num_messages=1000, timeout=0.05):
            error = message.error()
            if error is None:
                headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]  # bytes when received
                records.append(RawRecord(message.topic() or "", message.key() or b"", message.value() or b"", headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard((message.topic(), message.partition()))
            else:
                raise KafkaException(error)
    return records
