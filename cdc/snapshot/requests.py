"""Operators' requests about incremental snapshots, on `<prefix>.__requests`: pause, resume, cancel tables.

There is one key, and its last record is valid. Running snapshots and the process that starts them read it about once
a second.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress

import msgspec
from confluent_kafka import KafkaException

from cdc.clock import now_ms
from cdc.config import KafkaConfig
from cdc.errors import RefusedError, TransientError
from cdc.kafka.control_topics import committed_reader, read_last, write_records
from cdc.names import Control, control_topic

FORMAT = 1
KEY = b'{"requests":"copies"}'
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 1.0


class SnapshotRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The operators' requests.

    `cancelled` maps the topic of each cancelled table to the time of the request in milliseconds. A cancelled table is
    not copied until an operator requests its snapshot.
    """

    format: int = FORMAT
    paused: bool = False
    cancelled: dict[str, int] = {}

    def pausing(self, paused: bool) -> SnapshotRequests:
        return msgspec.structs.replace(self, paused=paused)

    def cancelling(self, topics: Collection[str]) -> SnapshotRequests:
        return msgspec.structs.replace(self, cancelled={**self.cancelled, **dict.fromkeys(topics, now_ms())})

    def wanting(self, topics: Collection[str]) -> SnapshotRequests:
        """Return the requests without the cancellation of these topics."""
        left = {topic: when for topic, when in self.cancelled.items() if topic not in topics}
        return msgspec.structs.replace(self, cancelled=left)


class _Format(msgspec.Struct):
    format: int


def decode_requests(data: bytes) -> SnapshotRequests:
    found = msgspec.json.decode(data, type=_Format)
    if found.format > FORMAT:
        raise RefusedError(
            f"The record of snapshot requests has format {found.format}. This Tailrace reads formats up to {FORMAT}.",
            remedy="Run the newer Tailrace that wrote it.",
        )
    return msgspec.json.decode(data, type=SnapshotRequests)


def read_requests(kafka: KafkaConfig) -> SnapshotRequests:
    """Return the last requests, or empty ones if the topic does not exist (an older Tailrace set up the pipeline)."""
    name = control_topic(kafka.prefix, Control.REQUESTS)
    try:
        data = read_last(kafka.client_options(), name, KEY, timeout_seconds=_ANSWER_SECONDS)
    except TransientError:
        if _exists(kafka, name):
            raise
        return SnapshotRequests()
    return SnapshotRequests() if data is None else decode_requests(data)


def write_requests(kafka: KafkaConfig, requests: SnapshotRequests) -> None:
    """Write the requests and return when the record is durable. The topic must exist."""
    name = control_topic(kafka.prefix, Control.REQUESTS)
    record = KEY, msgspec.json.encode(requests)
    write_records(kafka.client_options(), name, [record], timeout_seconds=_ANSWER_SECONDS)


class RequestPoller:
    """Polls the requests at most once a second. Keeps the last known ones while Kafka does not answer."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._known = SnapshotRequests()
        self._next_poll = 0.0

    def poll(self) -> SnapshotRequests:
        if time.monotonic() >= self._next_poll:
            with suppress(TransientError):
                self._known = read_requests(self._kafka)
            self._next_poll = time.monotonic() + _POLL_SECONDS
        return self._known


def _exists(kafka: KafkaConfig, name: str) -> bool:
    consumer = committed_reader(kafka.client_options())
    try:
        return name in consumer.list_topics(timeout=_ANSWER_SECONDS).topics
    except KafkaException as error:
        raise TransientError(f"Kafka did not answer: {error.args[0].str()}") from error
    finally:
        consumer.close()
