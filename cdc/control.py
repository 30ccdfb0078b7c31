"""Reading control topics: committed records up to the end, and the last one under a key."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import TransientError

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


def read_last(options: dict[str, str], topic: str, key: bytes, *, timeout_seconds: float = 30) -> bytes | None:
    """Looks from the end backwards, since what is asked for is mostly there. None where there is no such record."""
    consumer = committed_reader(options)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout_seconds)
        look_back = _FIRST_LOOK_BACK
        while True:
            start = max(low, high - look_back)
            found = _last_value(consumer, topic, start, key, timeout_seconds)
            if found is not None or start <= low:
                return found
            look_back *= 8
    except KafkaException as error:
        raise TransientError(f"{topic} could not be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _last_value(consumer: Consumer, topic: str, start: int, key: bytes, timeout_seconds: float) -> bytes | None:
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
            return last
        else:
            raise KafkaException(error)
