"""The progress record as an onlooker reads it: nothing is taken, nobody is fenced."""

from __future__ import annotations

from cdc.config import KafkaConfig
from cdc.kafka.topics import Topics
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress, read_progress


def last_progress(kafka: KafkaConfig, topics: Topics) -> Progress | None:
    """None where capture has never begun under this prefix, or its record is gone."""
    name = control_topic(kafka.prefix, Control.PROGRESS)
    return read_progress(kafka.client_options(), name) if topics.describe([name]) else None
