"""Reads `<prefix>.__copies`, the topic with the state of every snapshot, and follows it as it grows."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.config import KafkaConfig
from cdc.errors import RefusedError, TransientError
from cdc.kafka.control_topics import OPEN_TRANSACTION_SECONDS, committed_reader, end_of_all
from cdc.names import Control, control_topic
from cdc.snapshot.records import FORMAT, ChunkState, SnapshotProgress, SnapshotState


class SnapshotLog:
    """The state of all snapshots from committed records. `refresh` reads to the present end of the topic."""

    def __init__(self, kafka: KafkaConfig, *, start: int = 0) -> None:
        """`start`: the offset to read from. The caller has the records before it (another log's `next_offset`)."""
        self.copies: dict[str, SnapshotState] = {}
        self.chunks: dict[str, dict[int, ChunkState]] = {}
        self.progress: dict[str, SnapshotProgress] = {}
        self._topic = control_topic(kafka.prefix, Control.COPIES)
        self._consumer = self._reader(kafka)
        self._kafka = kafka
        self._connected = False
        self.next_offset = start

    def _reader(self, kafka: KafkaConfig) -> Consumer:
        return committed_reader(kafka.client_options())

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> SnapshotLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self, timeout_seconds: float = 30) -> SnapshotLog:
        """Read to the end, or to the first record of an open transaction, which may still be aborted."""
        self._connect(timeout_seconds)
        # A new assignment makes the consumer report the end of the partition again.
        self._consumer.assign([TopicPartition(self._topic, 0, self.next_offset)])
        while True:
            message = self._consumer.poll(timeout_seconds)
            if message is None:
                raise TransientError(f"Kafka returned nothing from {self._topic} for {timeout_seconds:.0f} seconds.")
            error = message.error()
            if error is None:
                self.next_offset = (message.offset() or 0) + 1
                self._take(orjson.loads(message.key() or b"{}"), message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                self.next_offset = max(self.next_offset, message.offset() or 0)
                return self
            elif error.retriable():
                continue
            else:
                raise TransientError(f"{self._topic} could not be read: {error.str()}") from KafkaException(error)

    def _connect(self, timeout_seconds: float) -> None:
        """Connect to the broker at once. A consumer that only has an assignment tries it once a second."""
        if self._connected:
            return
        try:
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=timeout_seconds)
        except KafkaException as error:
            raise TransientError(f"{self._topic} could not be read: {error.args[0].str()}") from error
        self._connected = True

    def refresh_to_end(self, timeout_seconds: float = 60) -> SnapshotLog:
        """Read to the topic's present end. Waits until the transactions that are open before it have ended."""
        end = end_of_all(self._kafka.client_options(), self._topic, timeout_seconds)
        give_up_at = time.monotonic() + timeout_seconds
        while self.refresh(timeout_seconds).next_offset < end:
            if time.monotonic() > give_up_at:
                raise TransientError(f"A transaction on {self._topic} stayed open for {timeout_seconds:.0f} seconds.")
            time.sleep(OPEN_TRANSACTION_SECONDS)
        return self

    def latest(self, kind: str) -> SnapshotState | None:
        """Return the snapshot of this kind that was started last."""
        of_kind = [copy for copy in self.copies.values() if copy.kind == kind]
        return max(of_kind, key=lambda copy: copy.started_ms, default=None)

    def unfinished(self, copy: SnapshotState) -> list[ChunkState]:
        return [chunk for chunk in self.chunks.get(copy.id, {}).values() if not chunk.done]

    def is_complete(self, copy: SnapshotState) -> bool:
        """Whether the snapshot is planned and every chunk has its final record."""
        chunks = self.chunks.get(copy.id, {})
        return copy.state == "planned" and len(chunks) == copy.chunks and not self.unfinished(copy)

    def _take(self, key: dict[str, Any], value: bytes | None) -> None:
        copy = key.get("copy", "")
        if value is None:
            return
        if orjson.loads(value).get("format", 0) > FORMAT:
            raise RefusedError(
                f"A record on {self._topic} has a newer format than {FORMAT}, the newest that this Tailrace reads.",
                remedy="Run the newer Tailrace that wrote it.",
            )
        if "chunk" in key:
            self._keep_chunk(msgspec.json.decode(value, type=ChunkState))
        elif "progress" in key:
            self.progress[copy] = msgspec.json.decode(value, type=SnapshotProgress)
        else:
            self._keep_snapshot(msgspec.json.decode(value, type=SnapshotState))

    def _keep_chunk(self, chunk: ChunkState) -> None:
        self.chunks.setdefault(chunk.copy, {})[chunk.number] = chunk

    def _keep_snapshot(self, copy: SnapshotState) -> None:
        self.copies[copy.id] = copy
