"""Reading and writing control topics: committed records up to the end, and the last one under a key."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from cdc.errors import TransientError
from cdc.kafka.failures import kafka_failure, unreachable

OPEN_TRANSACTION_SECONDS = 0.02
_FIRST_LOOK_BACK = 64


def committed_reader(options: dict[str, str]) -> Consumer:
    """To be assigned by hand; it tells when it has reached the end (or the first open transaction)."""
    return _reader(options, "read_committed")


def uncommitted_reader(options: dict[str, str]) -> Consumer:
    """As `committed_reader`; what is in open and in aborted transactions comes too."""
    return _reader(options, "read_uncommitted")


def _reader(options: dict[str, str], isolation: str) -> Consumer:
    return Consumer(
        {
            **options,
            "group.id": "tailrace-unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,  # the end is told only when a fetch has waited this long for more (500 by default)
            "log_level": 0,  # as in publisher: it comes as an exception
        }
    )


def end_of_all(options: dict[str, str], topic: str, timeout_seconds: float) -> int:
    """Behind all records. (A consumer of committed ones is told only where the first open transaction begins.)"""
    everything = uncommitted_reader(options)
    try:
        _, end = everything.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout_seconds)
        return int(end)
    except KafkaException as error:
        raise kafka_failure(options, f"{topic} could not be read", error.args[0]) from error
    finally:
        everything.close()


def end_offsets(options: dict[str, str], topics: Iterable[str], timeout_seconds: float) -> dict[str, list[int]]:
    """Where each partition of the topics ends, open transactions included. Cheaper than an admin client of its own."""
    everything = uncommitted_reader(options)
    try:
        return {name: _ends(everything, name, timeout_seconds) for name in topics}
    except KafkaException as error:
        raise kafka_failure(options, "The ends of topics could not be read", error.args[0]) from error
    finally:
        everything.close()


def _ends(consumer: Consumer, topic: str, timeout_seconds: float) -> list[int]:
    partitions = consumer.list_topics(topic, timeout=timeout_seconds).topics[topic].partitions
    places = [TopicPartition(topic, number) for number in sorted(partitions)]
    return [int(consumer.get_watermark_offsets(place, timeout=timeout_seconds)[1]) for place in places]


def read_last(
    options: dict[str, str], topic: str, key: bytes, *, timeout_seconds: float = 30, decided: bool = False
) -> bytes | None:
    """Looks from the end backwards, since what is asked for is mostly there. None where there is no such record.

    `decided`: the last of all records that are there now; waits until the transactions before that end are decided. For
    whoever has fenced all writers, so that none is open for long. Others read up to the first open transaction.
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
    """The value, and the offset up to which was read."""
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout_seconds)
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
            raise TransientError(f"Kafka gave nothing from {topic} for {timeout_seconds:.0f} seconds.")
        error = message.error()
        if error is None:
            if message.key() == key:
                last = message.value()
        elif error.code() == KafkaError._PARTITION_EOF:
            return last, message.offset() or 0
        else:
            raise KafkaException(error)


def read_to_end(options: dict[str, str], topic: str, *, timeout_seconds: float = 30) -> Iterator[Message]:
    """Every committed record of a topic of one partition, up to its present end; none if there is no such topic.

    Waits until the transactions before that end are decided.
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
                raise TransientError(f"Kafka gave nothing from {topic} for {timeout_seconds:.0f} seconds.")
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
    """Keys and values, outside of any transaction; returns when all are durable. The topic must be there."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**options, "acks": "all", "log_level": 0, "on_delivery": delivered})
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
