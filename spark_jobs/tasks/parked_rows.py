"""Reads the rows on `<prefix>.__parked` that are not settled, and the partitions that they came from.

Capture parks rows without a store. A sync or a bootstrap parks rows of its store.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from cdc.config import Config
from cdc.errors import TransientError
from cdc.kafka.control_topics import committed_reader
from cdc.names import Control, control_topic
from cdc.publishing.parked import Parked, read_parked_rows

__all__ = ["Parked", "read_parked", "read_partition"]

_ANSWER_SECONDS = 15.0


def read_parked(config: Config) -> list[Parked]:
    """Return the latest record of each row and store that is still parked, oldest first."""
    return read_parked_rows(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PARKED))


def read_partition(config: Config, topic: str, partition: int, start: int) -> Iterator[Message]:
    """Yields the committed records of a partition from the offset `start` to its present end."""
    consumer = committed_reader(config.kafka.client_options())
    try:
        if topic not in consumer.list_topics(timeout=_ANSWER_SECONDS).topics:
            return
        consumer.assign([TopicPartition(topic, partition, start)])
        while True:
            message = consumer.poll(_ANSWER_SECONDS)
            if message is None:
                raise TransientError(f"Kafka returned nothing from {topic} for {_ANSWER_SECONDS:.0f} seconds.")
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
    except KafkaException as error:
        raise TransientError(f"{topic} could not be read: {error.args[0].str()}.") from error
    finally:
        consumer.close()
