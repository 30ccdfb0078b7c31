"""Follows the end offsets of a topic in capture's progress records, for the driver of a stream.

The ends of a record lie between two Kafka transactions of capture, so a batch has whole source transactions (unless a
transaction is larger than `[capture] transaction_events`).
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import TransientError
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.failures import kafka_failure
from cdc.names import Control, control_topic
from cdc.positions.progress import KEY, Progress, decode_progress, read_progress
from spark_jobs.source.options import SourceOptions

_ANSWER_SECONDS: Final = 15.0


class ProgressEnds:
    """The newest progress record. It keeps its connection until `close`."""

    def __init__(self, options: SourceOptions) -> None:
        self._kafka = options.kafka
        self._place = TopicPartition(control_topic(options.prefix, Control.PROGRESS), 0)
        self._progress: Progress | None = None
        self._reached = 0
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def newest(self) -> Progress | None:
        """Return the newest record; None if capture has published nothing."""
        try:
            return self._newest()
        except KafkaException as error:
            self.close()
            raise kafka_failure(self._kafka, f"{self._place.topic} could not be read", error.args[0]) from None

    def _newest(self) -> Progress | None:
        consumer = self._consumer or self._open()
        _, end = consumer.get_watermark_offsets(self._place, timeout=_ANSWER_SECONDS)
        while self._reached < end:
            self._take(consumer)
        return self._progress

    def _open(self) -> Consumer:
        """Read the newest record, and return a consumer that follows from just before it."""
        consumer = self._consumer = committed_reader(self._kafka)
        _, self._reached = consumer.get_watermark_offsets(self._place, timeout=_ANSWER_SECONDS)
        self._progress = read_progress(self._kafka, self._place.topic, timeout_seconds=_ANSWER_SECONDS)
        consumer.assign([TopicPartition(self._place.topic, 0, self._reached)])
        return consumer

    def _take(self, consumer: Consumer) -> None:
        message = consumer.poll(_ANSWER_SECONDS)
        if message is None:
            self.close()
            raise TransientError(f"Kafka returned nothing from {self._place.topic} for {_ANSWER_SECONDS:.0f} seconds.")
        error, offset, value = message.error(), message.offset() or 0, message.value()
        if error is None:
            self._reached = offset + 1
            if message.key() == KEY and value is not None:
                self._progress = decode_progress(value)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._reached = max(offset, self._reached)
        else:
            raise KafkaException(error)
