"""Finds when the broker appended the progress record that matches a store's position. Reads only `__positions`.

Positions that an older Tailrace wrote need this: their time is by the clock of a Tailrace host, which proves nothing.
`__positions` holds the progress record of each heartbeat of the last seven days, with the broker's append time.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config import Config
from cdc.errors import TransientError
from cdc.kafka.broker_clock import append_time_ms
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.offsets import first_and_end_offset
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.positions import progress as progress_records

_ANSWER_SECONDS = 20.0

Place = tuple[Version, int]


def appended_ms(config: Config, place: Place) -> int:
    """Return the append time of the newest record up to this place (version and LSN); 0 if no such record is left."""
    place_of_topic = TopicPartition(control_topic(config.kafka.prefix, Control.POSITIONS), 0)
    consumer = committed_reader(config.kafka.client_options())
    try:
        low, end = first_and_end_offset(consumer, place_of_topic.topic, timeout_seconds=_ANSWER_SECONDS)
        found_ms = 0
        while low < end:  # binary search: places only rise
            middle = (low + end) // 2
            message = _first_from(consumer, place_of_topic.topic, middle, end)
            if message is None or _place(message) > place:
                end = middle
            else:
                found_ms, low = append_time_ms(message), (message.offset() or 0) + 1
        return found_ms
    except KafkaException as error:
        raise TransientError(f"{place_of_topic.topic} could not be read: {error.args[0].str()}.") from error
    finally:
        consumer.close()


def _first_from(consumer: Consumer, topic: str, offset: int, end: int) -> Message | None:
    """Return the first record at or after this offset; None if only transaction markers follow before `end`."""
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(_ANSWER_SECONDS)
    if message is None:
        raise TransientError(f"Kafka returned nothing from {topic} for {_ANSWER_SECONDS:.0f} seconds.")
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return None if error is not None or (message.offset() or 0) >= end else message


def _place(message: Message) -> Place:
    progress = progress_records.decode_progress(message.value() or b"")
    return progress.version, progress.confirm_lsn
