"""Reads the present rows of one partition of a table's topic. Runs in a task.

1. It reads the partition up to its end and notes, for each key, the offset of its last record (`latest_records`).
   Records are kept as long as they take little memory.
2. It emits the last records. If they were not kept, it reads the partition a second time.
3. It reads what was published after the end, keys only. If compaction has removed a row of the present state because of
   a later change, that change is there, and the read fails instead of leaving the row out.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition

from cdc.errors import RefusedError, TransientError
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.failures import kafka_failure
from cdc.publishing.parked import HEADER as PARKED_HEADER
from cdc.publishing.parked import MARKER_KEY
from spark_jobs.source.columns import SourceColumn
from spark_jobs.source.latest_records import LatestRecords
from spark_jobs.source.record_batches import RawRecord, RecordBatches, op_of
from spark_jobs.tasks.topic_range import TopicRange, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

#: How many bytes of records a task keeps between its two steps.
KEPT_BYTES: Final = 128_000_000
_OBJECT_BYTES: Final = 200
_BATCH_ROWS: Final = 5_000
_EXISTED: Final = ("u", "d")
# As in `spark_jobs.tasks.range_tasks`.
_GC_THRESHOLDS: Final = (100_000, 20, 100)
_ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """The keys of a range whose hashes belong to slice `number` of `count`.

    `is_complete`: the topic is a complete copy of its table, so check that compaction did not disturb the read.
    """

    range: TopicRange
    number: int
    count: int
    delete_retention_ms: int
    is_complete: bool = True


def present_rows(
    kafka: dict[str, str], part: TopicSlice, columns: Sequence[SourceColumn], kept_bytes: int = KEPT_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slice. `kafka`: librdkafka's options."""
    gc.set_threshold(*_GC_THRESHOLDS)
    began = time.monotonic()
    batches = RecordBatches(part.range.topic, columns, deletes=False)
    reading = _Reading(kafka, part, kept_bytes)
    for records in reading.last_records():
        batch = batches.batch(records)
        if batch.num_rows:
            yield batch
    if (time.monotonic() - began) * 1000 >= part.delete_retention_ms:
        raise RefusedError(
            f"The read of {part.range.topic} took longer than the topic keeps deletes: it may have deleted rows.",
            remedy="Read with more partitions or more cores, or raise [kafka] delete_retention_hours.",
        )
    if part.is_complete:
        reading.refuse_if_compacted()


class _Reading:
    """One read of a slice."""

    def __init__(self, kafka: dict[str, str], part: TopicSlice, kept_bytes: int) -> None:
        self._kafka = kafka
        self._part = part
        self._latest = LatestRecords(part.number, part.count)
        self._marker = b""
        self._marker_keys: set[bytes] = set()
        self._kept: list[tuple[int, RawRecord]] | None = []
        self._room = kept_bytes

    def last_records(self) -> Iterator[list[RawRecord]]:
        """Yield the last records of the slice's keys that no TRUNCATE is later than."""
        with closing(read_messages(self._kafka, self._part.range)) as batches:
            for messages in batches:
                self._note(messages)
        self._latest.finish()
        found = 0
        for records in self._second_step():
            found += len(records)
            yield [record for record in records if record[1] >= self._marker]
        if found != len(self._latest):
            raise self._compacted()

    def _note(self, messages: list[Any]) -> None:
        keys, offsets = [message.key() for message in messages], [message.offset() for message in messages]
        markers = [place for place, key in enumerate(keys) if key.startswith(MARKER_KEY)]
        for place in reversed(markers):
            value = messages[place].value()
            if value is not None and op_of(value) == "t":
                self._marker = max(self._marker, version_of(messages[place]))
                self._marker_keys.add(keys[place])
                del keys[place], offsets[place], messages[place]
        if not keys:
            return
        self._latest.add(keys, offsets)
        if self._kept is not None:
            self._keep(
                offsets, [(key, version_of(each), each.value()) for key, each in zip(keys, messages, strict=True)]
            )

    def _keep(self, offsets: list[int], records: list[RawRecord]) -> None:
        self._room -= sum(len(key) + len(value or b"") + _OBJECT_BYTES for key, _, value in records)
        if self._room < 0:
            self._kept = None
        elif self._kept is not None:
            self._kept += zip(offsets, records, strict=True)

    def _second_step(self) -> Iterator[list[RawRecord]]:
        kept, self._kept = self._kept, None
        if kept is not None:
            for first in range(0, len(kept), _BATCH_ROWS):
                batch = kept[first : first + _BATCH_ROWS]
                last = self._latest.between(batch[0][0], batch[-1][0] + 1)
                yield [record for offset, record in batch if offset in last]
            return
        with closing(read_messages(self._kafka, self._part.range)) as batches:
            for messages in batches:
                last = self._latest.between(messages[0].offset(), messages[-1].offset() + 1)
                yield [(each.key(), version_of(each), each.value()) for each in messages if each.offset() in last]

    def refuse_if_compacted(self) -> None:
        """Raise if a key changed after the end and has no record before it, although its row existed by then.

        A TRUNCATE after the end may have replaced the marker of an earlier one, so the first marker raises as well.
        """
        topic, partition, start = self._part.range.topic, self._part.range.partition, self._part.range.end
        end = self._present_end()
        if end <= start:
            return
        seen: set[bytes] = set()
        with closing(read_messages(self._kafka, TopicRange(topic, partition, start, end))) as batches:
            for messages in batches:
                changed = []
                for message in messages:
                    key, value = message.key(), message.value()
                    if key in seen:
                        continue
                    seen.add(key)
                    op = "d" if value is None else op_of(value)
                    if op == "t" and key not in self._marker_keys:
                        raise self._compacted()
                    if op in _EXISTED and not _is_parked(message):
                        changed.append(key)
                if changed and self._latest.missing(changed):
                    raise self._compacted()

    def _present_end(self) -> int:
        consumer = committed_reader(self._kafka)
        try:
            place = TopicPartition(self._part.range.topic, self._part.range.partition)
            _, end = consumer.get_watermark_offsets(place, timeout=_ANSWER_SECONDS)
            return int(end)
        except KafkaException as error:
            raise kafka_failure(self._kafka, f"{place.topic} could not be read", error.args[0]) from None
        finally:
            consumer.close()

    def _compacted(self) -> TransientError:
        return TransientError(
            f"{self._part.range.topic} was compacted during the read, so rows of the state that is read may be gone.",
            remedy="Read it again; if that recurs, set min.compaction.lag.ms of the topic above a read's duration.",
        )


def _is_parked(message: Any) -> bool:
    """Whether the delete stands for a row that is too large. That row may be a new one."""
    return any(name == PARKED_HEADER for name, _ in message.headers() or ())


def read_messages(kafka: dict[str, str], part: TopicRange) -> Generator[list[Any], None, None]:
    """Yield the messages of a range. Raises for a record without a key. The caller must close the generator."""
    with closing(read_ranges(kafka, [part])) as batches:
        for messages in batches:
            for message in messages:
                if message.key() is None:
                    raise foreign_record(message)
            yield messages


def version_of(message: Any) -> bytes:
    """Return the version, which is the first header of every record that Tailrace wrote."""
    headers = message.headers()
    if not headers:
        raise foreign_record(message)
    stamp: bytes = headers[0][1]
    return stamp


def foreign_record(message: Any) -> RefusedError:
    return RefusedError(
        f"{message.topic()}, partition {message.partition()}, offset {message.offset()}: a record without a version."
        " A program other than Tailrace writes to this topic.",
        remedy="Stop that program, then run: tailrace audit --topic --repair",
    )
