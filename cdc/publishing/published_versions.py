"""Finds the highest version in the topics, and the base with which all new versions are higher. Reads only Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config import KafkaConfig
from cdc.errors import TransientError
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.offsets import first_and_end_offset
from cdc.lsn import LSN, Version

_FIRST_LOOK_BACK = 64
_READ_SECONDS = 30.0
# A base that has to rise puts new versions this far above the highest known version: a store may have applied a version
# that it has not recorded, and a broker may have lost one.
_MARGIN_BYTES = 1 << 30
# Every base is a multiple of 8, as LSNs are: Elasticsearch's versions omit the position's lowest three bits
# (docs/reference/stores.md).
_STEP = 8
_COPY_MARKER = b'"by":"copy"'


def base_above(highest: Version, point: LSN, base: int) -> int:
    """Return a base with which all versions from `point` on are higher than `highest`. Keep `base` if that suffices."""
    if base + point > highest.position:
        return base
    needed = highest.position + _MARGIN_BYTES - point
    return -(-needed // _STEP) * _STEP


def highest_version(kafka: KafkaConfig, partitions: Mapping[str, int]) -> Version:
    """Return the highest version of all records of these topics, or (0, 0) if they have no records.

    `partitions`: the number of partitions by topic. Within a partition, versions never decrease, except for the markers
    that end a snapshot. So the last record that is no such marker has the highest version.
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
    low, high = first_and_end_offset(consumer, name, number, timeout_seconds=_READ_SECONDS)
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
    """Return the highest version from `start` on, and whether it is the highest of the whole partition."""
    consumer.assign([TopicPartition(name, number, start)])
    highest, conclusive = Version(0, 0), False
    while True:
        message = consumer.poll(_READ_SECONDS)
        if message is None:
            raise TransientError(f"Kafka returned nothing from {name} for {_READ_SECONDS:.0f} seconds.")
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return highest, conclusive
            raise KafkaException(error)
        highest = max(highest, _version(message))
        conclusive = conclusive or _COPY_MARKER not in (message.key() or b"")


def _version(message: Message) -> Version:
    """Return the record's version. A record that another program wrote has none, and counts as (0, 0)."""
    stamp = dict(message.headers() or []).get("v")
    is_ours = isinstance(stamp, bytes) and len(stamp) == len(str(Version(0, 0)))
    return Version.parse(stamp.decode()) if isinstance(stamp, bytes) and is_ours else Version(0, 0)
