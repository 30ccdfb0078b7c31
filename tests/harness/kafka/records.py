"""Reads a whole topic as a reader of committed records, and reduces it to the last row of each key."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.lsn import Version
from tests.harness.comparison import canonical
from tests.harness.postgres.catalog import Table

Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """`value` is None for a tombstone; `version` is None only if the header is missing, which is an error."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: Any
    version: Version | None
    headers: dict[str, bytes]

    @property
    def op(self) -> str | None:
        return None if self.value is None else self.value["op"]


def read_topic(bootstrap: str, topic: str, deadline_seconds: float = 30.0) -> list[Record]:
    """Every committed record from the beginning to the end as of now, in offset order within a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "harness",  # required, but never joined: partitions are assigned by hand
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "allow.auto.create.topics": False,
        }
    )
    try:
        partitions = _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        return _read_to_the_end(consumer, topic, set(partitions), deadline_seconds)
    finally:
        consumer.close()


def last_rows(table: Table, records: Iterable[Record]) -> dict[Key, Row]:
    """The rows after deletes and TRUNCATE markers, as a reader of the whole topic has them."""
    last: dict[bytes, Record] = {}
    truncated: Version | None = None
    for record in records:
        if record.op == "t":
            assert record.version is not None, f"a marker without version: {record}"
            truncated = max(truncated or record.version, record.version)
        else:
            last[record.key] = record
    return {
        _key(table, record.key): _row(table, record.value["after"])
        for record in last.values()
        if record.op not in (None, "d")
        and not (truncated is not None and record.version is not None and record.version < truncated)
    }


def _key(table: Table, key: bytes) -> Key:
    fields = canonical.loads(key)
    assert list(fields) == list(table.key), f"{table}: key columns {list(fields)} instead of {list(table.key)}"
    return tuple(canonical.from_json(table.type_of(name), value) for name, value in fields.items())


def _row(table: Table, after: dict[str, Any]) -> Row:
    known = {column.name: column.type for column in table.columns}
    return {
        name: canonical.from_json(known[name], value) if name in known else canonical.Malformed(value, "no such column")
        for name, value in after.items()
    }


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    described = consumer.list_topics(topic, timeout=10).topics[topic]
    assert described.error is None, f"topic {topic}: {described.error}"
    return list(described.partitions)


def _read_to_the_end(consumer: Consumer, topic: str, unfinished: set[int], deadline_seconds: float) -> list[Record]:
    records: list[Record] = []
    give_up_at = time.monotonic() + deadline_seconds
    while unfinished:
        # Short: a batch that is not full is handed over only when this time is up.
        messages = consumer.consume(num_messages=10_000, timeout=0.05)
        if messages:
            give_up_at = time.monotonic() + deadline_seconds
        assert time.monotonic() < give_up_at, f"topic {topic}: partitions {unfinished} never ended"
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            else:
                raise KafkaException(error)
    return records


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, message
    assert partition is not None, message
    assert offset is not None, message
    pairs: list[tuple[str, bytes]] = message.headers() or []  # type: ignore[assignment]  # bytes when received
    headers = dict(pairs)
    value = message.value()
    version = headers.get("v")
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        key=message.key() or b"",
        value=None if value is None else canonical.loads(value),
        version=None if version is None else Version.parse(version.decode()),
        headers=headers,
    )
