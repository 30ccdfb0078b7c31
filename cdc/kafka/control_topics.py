"""Reads and writes control topics: all committed records, or the last record with a key."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import TransientError
from cdc.kafka.clients import open_consumer, open_durable_producer
from cdc.kafka.failures import kafka_failure, unreachable
from cdc.kafka.offsets import first_and_end_offset

OPEN_TRANSACTION_SECONDS = 0.02
_FIRST_LOOK_BACK = 64
# Where a reader continues if its offset is gone.
_FROM_THE_START = {"auto.offset.reset": "earliest"}


def committed_reader(options: dict[str, str]) -> Consumer:
    """Return a consumer of committed records, without an assignment.

    It reports the end of a partition (_PARTITION_EOF), which is at the first open transaction if there is one.
    """
    return open_consumer(options, _FROM_THE_START)


def uncommitted_reader(options: dict[str, str]) -> Consumer:
    """Return a consumer like `committed_reader` that also reads records of open and aborted transactions."""
    return open_consumer(options, _FROM_THE_START | {"isolation.level": "read_uncommitted"})


def end_of_all(options: dict[str, str], topic: str, timeout_seconds: float) -> int:
    """Return the offset after all records. (For committed records, Kafka returns only the first open transaction.)"""
    everything = uncommitted_reader(options)
    try:
        return first_and_end_offset(everything, topic, timeout_seconds=timeout_seconds)[1]
    except KafkaException as error:
        raise kafka_failure(options, f"{topic} could not be read", error.args[0]) from error
    finally:
        everything.close()


def end_offsets(options: dict[str, str], topics: Iterable[str], timeout_seconds: float) -> dict[str, list[int]]:
    """Return the end offset of each partition of the topics, after open transactions. Cheaper than an admin client."""
    everything = uncommitted_reader(options)
    try:
        return {name: _ends(everything, name, timeout_seconds) for name in topics}
    except KafkaException as error:
        raise kafka_failure(options, "The end offsets of topics could not be read", error.args[0]) from error
    finally:
        everything.close()


def _ends(consumer: Consumer, topic: str, timeout_seconds: float) -> list[int]:
    numbers = sorted(consumer.list_topics(topic, timeout=timeout_seconds).topics[topic].partitions)
    return [first_and_end_offset(consumer, topic, each, timeout_seconds=timeout_seconds)[1] for each in numbers]


def read_last(
    options: dict[str, str], topic: str, key: bytes, *, timeout_seconds: float = 30, decided: bool = False
) -> bytes | None:
    """Return the value of the last record with this key. None: there is no such record.

    It searches backwards, since the record is usually near the end of the topic. By default it reads up to the first
    open transaction. `decided`: read up to the current end, and wait until no transaction before it is open. This is
    for a caller that has fenced all writers, so that no transaction stays open for long.
    """
    end = end_of_all(options, topic, timeout_seconds) if decided else 0
    give_up_at = time.monotonic() + timeout_seconds
    consumer = committed_reader(options)
    try:
        while True:
            found, reached = _read_backwards(consumer, topic, key, timeout_seconds)
            if reached >= end:
                return found
            if time.monotonic() > give_up_at:
                raise TransientError(f"A transaction on {topic} stayed open for {timeout_seconds:.0f} seconds.")
            time.sleep(OPEN_TRANSACTION_SECONDS)
    except KafkaException as error:
        raise kafka_failure(options, f"{topic} could not be read", error.args[0]) from error
    finally:
        consumer.close()


def _read_backwards(consumer: Consumer, topic: str, key: bytes, timeout_seconds: float) -> tuple[bytes | None, int]:
    """Return the value, and the offset at which reading ended."""
    low, high = first_and_end_offset(consumer, topic, timeout_seconds=timeout_seconds)
    look_back = _FIRST_LOOK_BACK
    while True:
        start = max(low, high - look_back)
        found, reached = _last_value(consumer, topic, start, key, timeout_seconds)
        if found is not None or start <= low:
            return found, reached
        look_back *= 8


def _last_value(
    consumer: Consumer, topic: str, start: int, key: bytes, timeout_seconds: float
) -> tuple[bytes | None, int]:
    consumer.assign([TopicPartition(topic, 0, start)])
    last: bytes | None = None
    while True:
        message = consumer.poll(timeout_seconds)
        if message is None:
            raise TransientError(f"Kafka returned nothing from {topic} for {timeout_seconds:.0f} seconds.")
        error = message.error()
        if error is None:
            if message.key() == key:
                last = message.value()
        elif error.code() == KafkaError._PARTITION_EOF:
            return last, message.offset() or 0
        else:
            raise KafkaException(error)


def read_to_end(options: dict[str, str], topic: str, *, timeout_seconds: float = 30) -> Iterator[Message]:
    """Yields every committed record of a topic with one partition, up to its current end. A missing topic has none.

    It waits until no transaction before that end is open.
    """
    consumer = committed_reader(options)
    try:
        if topic not in consumer.list_topics(timeout=timeout_seconds).topics:
            return
        end = end_of_all(options, topic, timeout_seconds)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        give_up_at = time.monotonic() + timeout_seconds
        while True:
            message = consumer.poll(timeout_seconds)
            if message is None:
                raise TransientError(f"Kafka returned nothing from {topic} for {timeout_seconds:.0f} seconds.")
            error = message.error()
            if error is None:
                give_up_at = time.monotonic() + timeout_seconds
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif (message.offset() or 0) >= end:
                return
            elif time.monotonic() > give_up_at:
                raise TransientError(f"A transaction on {topic} stayed open for {timeout_seconds:.0f} seconds.")
    except KafkaException as error:
        raise kafka_failure(options, f"{topic} could not be read", error.args[0]) from error
    finally:
        consumer.close()


def write_records(
    options: dict[str, str], topic: str, records: Iterable[tuple[bytes, bytes]], *, timeout_seconds: float = 30
) -> None:
    """Write keys and values outside any transaction. Returns when all are durable. The topic must exist."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = open_durable_producer(options, {"on_delivery": delivered})
    try:
        for key, value in records:
            producer.produce(topic, value, key, 0)
        unsent = producer.flush(timeout_seconds)
    except KafkaException as error:
        raise kafka_failure(options, f"{topic} cannot be written", error.args[0]) from error
    if failed:
        raise kafka_failure(options, f"{topic} cannot be written", failed[0])
    if unsent:
        raise unreachable(options, f"{topic} cannot be written: no answer within {timeout_seconds:.0f} seconds.")
