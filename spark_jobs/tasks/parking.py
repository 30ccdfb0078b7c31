"""Parks rows that a store can never accept: writes them to `<prefix>.__parked`, durably, before the position moves on.

A parked record names the row and the reason, never the row's values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson
from confluent_kafka import KafkaError, KafkaException, Message

from cdc.clock import now_ms
from cdc.errors import TransientError
from cdc.kafka.clients import open_durable_producer

FORMAT = 1
_KEY_BYTES = 512
_FLUSH_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRow:
    """A row to park or to settle. `partition` and `offset` are the place of the change in its topic."""

    store: str
    topic: str
    partition: int
    offset: int
    key: bytes
    version: str
    reason: str


class Parking:
    """Writes parked rows, with its own producer. No transactions: a row that is parked twice is listed only once."""

    def __init__(self, options: dict[str, str], topic: str) -> None:
        self._topic = topic
        self._failed: list[KafkaError] = []
        self._producer = open_durable_producer(options, {"enable.idempotence": "true", "on_delivery": self._delivered})

    def park(self, rows: Iterable[ParkedRow]) -> None:
        """Write the rows with their reasons. Returns when Kafka has acknowledged them."""
        for row in rows:
            self._send(row, {"reason": row.reason})
        self._flush()

    def settle(self, rows: Iterable[ParkedRow]) -> None:
        """Record that these rows are not parked any more: the store has them, or a newer version."""
        for row in rows:
            self._send(row, {"settled": True})
        self._flush()

    def _send(self, row: ParkedRow, more: dict[str, object]) -> None:
        value = {
            "format": FORMAT,
            "store": row.store,
            "topic": row.topic,
            "partition": row.partition,
            "offset": row.offset,
            "key": row.key[:_KEY_BYTES].decode(errors="replace"),
            "version": row.version,
            "parked_ms": now_ms(),
            **({"key_bytes": len(row.key)} if len(row.key) > _KEY_BYTES else {}),
            **more,
        }
        headers: dict[str, str | bytes | None] = {"v": row.version.encode()}
        try:
            self._producer.produce(self._topic, orjson.dumps(value), row.key[:_KEY_BYTES], headers=headers)
        except BufferError:
            self._flush()
            self._producer.produce(self._topic, orjson.dumps(value), row.key[:_KEY_BYTES], headers=headers)

    def _flush(self) -> None:
        try:
            left = self._producer.flush(_FLUSH_SECONDS)
        except KafkaException as error:
            raise TransientError(f"{self._topic} cannot be written: {error.args[0].str()}.") from error
        failed, self._failed = self._failed, []
        if failed or left:
            why = failed[0].str() if failed else f"no answer within {_FLUSH_SECONDS:.0f} seconds"
            raise TransientError(f"{self._topic} cannot be written: {why}.")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(error)
