"""Which later copies this pipeline has begun itself: capture publishes what their marks say, and nobody else's.

Anybody who may write to the database may put a mark into its log. But only those who may write to the pipeline's topics
can announce a copy on `<prefix>.__copies`, which everybody does before the first mark.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer

from cdc.config import KafkaConfig
from cdc.kafka.control_topics import uncommitted_reader, write_records
from cdc.names import Control, control_topic
from cdc.snapshot.log import CopyLog
from cdc.snapshot.records import ChunkState, CopyState


class Announced:
    """Asks Kafka only for a copy that is not known yet: once for each. Blocks."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._copies: dict[str, CopyState] = {}
        self._chunks: set[tuple[str, int]] = set()
        self._next_offset = 0

    def has_chunk(self, copy: str, number: int) -> bool:
        if (copy, number) not in self._chunks:
            self._read_on()
        return (copy, number) in self._chunks

    def plan(self, copy: str) -> CopyState | None:
        """The copy as it was planned."""
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


class _AllRecords(CopyLog):
    """Those of open transactions too: the transaction that keeps later records back may be the very one of the asker.

    What is in an aborted one does no harm: a plan that was aborted has no marks. But it must not hide anything: a chunk
    that is done, or a copy that is complete, according to an aborted transaction of capture still is what it was.
    """

    def __init__(self, kafka: KafkaConfig, *, start: int) -> None:
        super().__init__(kafka, start=start)
        self.planned: dict[str, CopyState] = {}
        self.open_chunks: set[tuple[str, int]] = set()

    def _reader(self, kafka: KafkaConfig) -> Consumer:
        return uncommitted_reader(kafka.client_options())

    def _keep_chunk(self, chunk: ChunkState) -> None:
        if not chunk.done:
            self.open_chunks.add((chunk.copy, chunk.number))

    def _keep_copy(self, copy: CopyState) -> None:
        if copy.kind == "later" and copy.state == "planned":
            self.planned[copy.id] = copy


def announce(kafka: KafkaConfig, records: Iterable[ChunkState | CopyState]) -> None:
    """For a copy without a driver, whose transaction would do it."""
    topic = control_topic(kafka.prefix, Control.COPIES)
    write_records(kafka.client_options(), topic, ((record.key, record.encode()) for record in records))
