"""What versions the topics hold already, and the base that puts everything new above them. Reads Kafka only."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config import KafkaConfig
from cdc.errors import TransientError
from cdc.kafka.control_topics import committed_reader
from cdc.lsn import LSN, Version

_FIRST_LOOK_BACK = 64
_READ_SECONDS = 30.0
# Beyond the highest version that is known, where a base has to rise: what a store has applied and not yet noted, or
# what a broker has lost, may be somewhat higher.
_MARGIN_BYTES = 1 << 30
# Elasticsearch has room for versions that differ by 8 (docs/reference/stores.md).
_STEP = 8
_COPY_MARKER = b'"by":"copy"'


def base_above(highest: Version, point: LSN, base: int) -> int:
    """The base with which everything from `point` on has a larger version than `highest`: the same one, if it does."""
    if base + point > highest.position:
        return base
    needed = highest.position + _MARGIN_BYTES - point
    return -(-needed // _STEP) * _STEP


def highest_version(kafka: KafkaConfig, partitions: Mapping[str, int]) -> Version:
    """Of all records of these topics; (0, 0) where there are none.

    Within a partition versions never fall, but for the markers that end a copy: its last other record has the highest.
    """
    consumer = committed_reader(kafka.client_options())
    try:
        places = [(name, number) for name, count in partitions.items() for number in range(count)]
        return max((_highest(consumer, name, number) for name, number in places), default=Version(0, 0))
    except KafkaException as error:
        raise TransientError(f"The topics could not be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _highest(consumer: Consumer, name: str, number: int) -> Version:
    low, high = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=_READ_SECONDS)
    look_back = _FIRST_LOOK_BACK
    highest = Version(0, 0)
    while high > low:
        start = max(low, high - look_back)
        found, conclusive = _highest_from(consumer, name, number, start)
        highest = max(highest, found)
        if conclusive or start == low:
            break
        look_back *= 8
    return highest


def _highest_from(consumer: Consumer, name: str, number: int, start: int) -> tuple[Version, bool]:
    """The highest version from there to the end, and whether that is the partition's."""
    consumer.assign([TopicPartition(name, number, start)])
    highest, conclusive = Version(0, 0), False
    while True:
        message = consumer.poll(_READ_SECONDS)
        if message is None:
            raise TransientError(f"Kafka gave nothing from {name} for {_READ_SECONDS:.0f} seconds.")
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return highest, conclusive
            raise KafkaException(error)
        highest = max(highest, _version(message))
        conclusive = conclusive or _COPY_MARKER not in (message.key() or b"")


def _version(message: Message) -> Version:
    """A record that is not ours has none."""
    stamp = dict(message.headers() or []).get("v")
    is_ours = isinstance(stamp, bytes) and len(stamp) == len(str(Version(0, 0)))
    return Version.parse(stamp.decode()) if isinstance(stamp, bytes) and is_ours else Version(0, 0)
