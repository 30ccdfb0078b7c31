"""The stream read of the data source: the changes of a table.

Spark makes one reader in the driver, and one in each task. Spark 4.0 asks for the end of a batch without telling its
start, so the driver's reader remembers it from `partitions`. (After a restart, Spark first asks for the partitions
between the checkpoint's last offset and itself.) A new query asks for the end of its first batch before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from cdc.clock import now_ms
from cdc.publishing.parked import MARKER_KEY
from spark_jobs.source.columns import SourceColumn
from spark_jobs.source.options import LATEST, SourceOptions
from spark_jobs.source.present_state import read_messages, version_of
from spark_jobs.source.progress_ends import ProgressEnds
from spark_jobs.source.record_batches import RawRecord, RecordBatches, op_of
from spark_jobs.source.stream_offsets import StreamOffset, refuse_lost
from spark_jobs.source.table_topic import TableTopicFacts, TopicReader
from spark_jobs.tasks.topic_range import TopicRange

if TYPE_CHECKING:
    import pyarrow as pa

# An idle stream must move its offset before a restart could take it for one that was away for the delete retention.
_QUIET_SHARE: Final = 4
_FACTS_SECONDS: Final = 1.0


class ChangesReader(DataSourceStreamReader):
    """Plans the batches in the driver and reads in the tasks. Picklable before its first use."""

    def __init__(self, options: SourceOptions, topic: str, columns: Sequence[SourceColumn]) -> None:
        self._options = options
        self._topic_name = topic
        self._columns = columns
        self._initial: StreamOffset | None = None
        self._planned: StreamOffset | None = None
        # The time at which the planned offset was the end of what is published; Spark's offset may have an earlier one.
        self._caught_up_ms = 0
        self._known: tuple[float, TableTopicFacts] | None = None
        self._brokers: TopicReader | None = None
        self._ends: ProgressEnds | None = None

    # -- in the driver -----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset that a new query starts from."""
        self._initial = self._initial or self._start()
        return self._initial.to_json()

    def _start(self) -> StreamOffset:
        read_ms, facts = now_ms(), self._facts()
        offsets = facts.starts
        if self._options.starting_offsets == LATEST:
            # A progress record may become visible before the last records that it covers.
            offsets = [min(each) for each in zip(self._published_ends(facts), facts.ends, strict=True)]
        return StreamOffset(topic_id=facts.topic_id, offsets=tuple(offsets), caught_up_ms=read_ms)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset that the next batch goes to."""
        read_ms, facts = now_ms(), self._recent_facts()
        if self._planned is None:
            self._initial = self._planned = self._start()
        planned = self._planned
        if planned.topic_id != facts.topic_id or len(planned.offsets) != len(facts.ends):
            refuse_lost(planned, facts, self._options.table, read_ms)
        ends = self._published_ends(facts)
        latest = planned.next(
            ends, read_ms, self._options.max_records_per_batch, facts.delete_retention_ms // _QUIET_SHARE
        )
        if all(offset >= end for offset, end in zip(planned.offsets, ends, strict=True)):
            self._caught_up_ms = read_ms
        return latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch, one for each partition of the topic, so that a key's changes stay in order."""
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        known = replace(first, caught_up_ms=max(first.caught_up_ms, self._caught_up_ms))
        refuse_lost(known, self._facts(), self._options.table, now_ms())
        self._planned = last
        pairs = enumerate(zip(first.offsets, last.offsets, strict=True))
        ranges = [TopicRange(self._topic_name, number, low, high) for number, (low, high) in pairs if low < high]
        return [InputPartition(each) for each in ranges]

    def stop(self) -> None:
        """Close the connections."""
        if self._brokers is not None:
            self._brokers.close()
        if self._ends is not None:
            self._ends.close()

    def _facts(self) -> TableTopicFacts:
        if self._brokers is None:
            self._brokers = TopicReader(self._options, self._topic_name)
        facts = self._brokers.facts()
        self._known = time.monotonic(), facts
        return facts

    def _recent_facts(self) -> TableTopicFacts:
        """Return facts of the last second: an idle query asks for the latest offset a hundred times a second."""
        if self._known is not None and time.monotonic() - self._known[0] < _FACTS_SECONDS:
            return self._known[1]
        return self._facts()

    def _published_ends(self, facts: TableTopicFacts) -> list[int]:
        """Return the ends of the last progress record; during the initial snapshot, the last stable offsets."""
        if self._ends is None:
            self._ends = ProgressEnds(self._options)
        progress = self._ends.newest()
        if progress is None or progress.state != "streaming":
            return facts.ends
        recorded = progress.end_offsets.get(self._topic_name, [])
        is_same = progress.topic_ids.get(self._topic_name) == facts.topic_id and len(recorded) == len(facts.ends)
        return [max(each) for each in zip(recorded, facts.starts, strict=True)] if is_same else facts.ends

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch."""
        if partition is None:
            return
        part: TopicRange = partition.value
        batches = RecordBatches(part.topic, self._columns, deletes=True)
        with closing(read_messages(self._options.kafka, part)) as found:
            for messages in found:
                batch = batches.batch(_records(messages, part.partition))
                if batch.num_rows:
                    yield batch


def _records(messages: Sequence[Any], partition: int) -> Iterator[RawRecord]:
    """Yield the records. Of the markers of a TRUNCATE, one per partition, only the first partition's is a row."""
    for message in messages:
        key, value = message.key(), message.value()
        if partition and value is not None and key.startswith(MARKER_KEY) and op_of(value) == "t":
            continue
        yield key, version_of(message), value
