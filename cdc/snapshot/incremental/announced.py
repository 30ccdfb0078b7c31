"""The incremental snapshots that this pipeline has announced. Capture ignores watermarks of all others.

Any role that may write to the database can emit a watermark into the WAL. But only a client with write access to the
pipeline's topics can announce a snapshot on `<prefix>.__copies`. Every snapshot is announced before it emits its first
watermark.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer

from cdc.config import KafkaConfig
from cdc.kafka.control_topics import uncommitted_reader, write_records
from cdc.names import Control, control_topic
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import ChunkState, SnapshotState


class AnnouncedSnapshots:
    """Looks up announced snapshots and chunks. Reads Kafka only for one that it has not read yet. Blocks."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._copies: dict[str, SnapshotState] = {}
        self._chunks: set[tuple[str, int]] = set()
        self._next_offset = 0

    def has_chunk(self, copy: str, number: int) -> bool:
        """Whether this chunk was announced as not done."""
        if (copy, number) not in self._chunks:
            self._read_on()
        return (copy, number) in self._chunks

    def plan(self, copy: str) -> SnapshotState | None:
        """Return the snapshot as it was planned, or None if it was not announced."""
        if copy not in self._copies:
            self._read_on()
        return self._copies.get(copy)

    def _read_on(self) -> None:
        log = _AllRecords(self._kafka, start=self._next_offset)
        with log:
            log.refresh()
        self._next_offset = log.next_offset
        self._copies |= log.planned
        self._chunks |= log.open_chunks


class _AllRecords(SnapshotLog):
    """The snapshot log with records of open and aborted transactions.

    A reader of committed records stops at the first open transaction, and that may be the caller's own. Records of
    aborted transactions are harmless as announcements, since an aborted plan has no watermarks. But they must not
    change a state: an aborted transaction of capture may contain a record that a chunk is done or a snapshot complete,
    and that record is not valid. So this class keeps only announcements: open chunks and planned snapshots.
    """

    def __init__(self, kafka: KafkaConfig, *, start: int) -> None:
        super().__init__(kafka, start=start)
        self.planned: dict[str, SnapshotState] = {}
        self.open_chunks: set[tuple[str, int]] = set()

    def _reader(self, kafka: KafkaConfig) -> Consumer:
        return uncommitted_reader(kafka.client_options())

    def _keep_chunk(self, chunk: ChunkState) -> None:
        if not chunk.done:
            self.open_chunks.add((chunk.copy, chunk.number))

    def _keep_snapshot(self, copy: SnapshotState) -> None:
        if copy.kind == "later" and copy.state == "planned":
            self.planned[copy.id] = copy


def announce(kafka: KafkaConfig, records: Iterable[ChunkState | SnapshotState]) -> None:
    """Announce a snapshot that has no driver. A driver announces its snapshot in its own transaction."""
    topic = control_topic(kafka.prefix, Control.COPIES)
    write_records(kafka.client_options(), topic, ((record.key, record.encode()) for record in records))
