"""Asks a broker for the offsets of a partition."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

# A broker answers these for a moment after it has created a topic, and while a partition's leader changes.
_WITHOUT_LEADER: Final = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
_RETRY_SECONDS: Final = 0.05
_LONGEST_WAIT_SECONDS: Final = 5.0


def first_and_end_offset(
    consumer: Consumer, topic: str, partition: int = 0, *, timeout_seconds: float
) -> tuple[int, int]:
    """Return the first offset of the partition and the end offset. Waits some seconds until it has a leader.

    For a consumer of committed records, the end offset is at the first open transaction. Raises KafkaException.
    """
    give_up_at = time.monotonic() + min(timeout_seconds, _LONGEST_WAIT_SECONDS)
    while True:
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_seconds)
            return int(first), int(end)
        except KafkaException as error:
            if error.args[0].code() not in _WITHOUT_LEADER or time.monotonic() > give_up_at:
                raise
        time.sleep(_RETRY_SECONDS)
        consumer.list_topics(topic, timeout=timeout_seconds)  # asks again which broker leads the partition
