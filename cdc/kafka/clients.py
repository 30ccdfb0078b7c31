"""Opens the confluent-kafka clients, with the options that all of them share. Callers name only what differs.

Transactional producers are opened by `producer`, and kafka-python's admin client by `admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

# librdkafka would print to stderr, outside our log. Errors arrive as exceptions.
_SILENT: Final = {"log_level": 0}
_CONSUMER: Final = {
    "group.id": "tailrace-unused",  # required but never joined, since partitions are assigned explicitly
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # fail if the records are gone; never start at another offset
    "fetch.wait.max.ms": 20,  # a fetch at the end waits this long before it reports the end (default 500)
}


def open_consumer(options: Mapping[str, str], differing: Mapping[str, Any] | None = None) -> Consumer:
    """Open a consumer of committed records, without an assignment. It reports the end of each partition.

    `options`: the connection (`KafkaConfig.client_options`). `differing`: what this caller needs otherwise.
    """
    return Consumer({**options, **_SILENT, **_CONSUMER, **(differing or {})})


def open_durable_producer(options: Mapping[str, Any], differing: Mapping[str, Any] | None = None) -> Producer:
    """Open a producer without transactions, whose records are durable when they are acknowledged."""
    return Producer({**options, **_SILENT, "acks": "all", **(differing or {})})


def open_offset_client(options: Mapping[str, str], differing: Mapping[str, Any] | None = None) -> AdminClient:
    """Open librdkafka's admin client, for offsets that are read or committed repeatedly."""
    return AdminClient({**options, **_SILENT, **(differing or {})})
