"""Reads the progress record without acquiring the slot or fencing a producer."""

from __future__ import annotations

from cdc.config import KafkaConfig
from cdc.kafka.topics import Topics
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress, read_progress


def last_progress(kafka: KafkaConfig, topics: Topics) -> Progress | None:
    """Return the last progress record; None if capture never started under this prefix, or the record is gone."""
    name = control_topic(kafka.prefix, Control.PROGRESS)
    return read_progress(kafka.client_options(), name) if topics.describe([name]) else None
