"""The batch read of the data source: the present state of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cdc.errors import RefusedError
from cdc.tables.state_reader import copy_command
from spark_jobs.source.columns import SourceColumn
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.present_state import TopicSlice, present_rows
from spark_jobs.source.table_topic import (
    Published,
    TableTopicFacts,
    find_table,
    read_facts,
    read_published,
    reasons_incomplete,
)
from spark_jobs.tasks.topic_range import TopicRange

if TYPE_CHECKING:
    import pyarrow as pa


class PresentStateReader(DataSourceReader):
    """Plans the read in the driver and reads in the tasks. Picklable; it holds secrets, as every task does."""

    def __init__(self, options: SourceOptions, columns: Sequence[SourceColumn]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the table's state as of now. Raises if the topic is not a complete copy of the table."""
        published = read_published(self._options)
        table = find_table(self._options, published)
        facts = read_facts(self._options, table.topic)
        reasons = reasons_incomplete(published, table, facts)
        if reasons and not self._options.allow_incomplete:
            raise RefusedError(
                f"The topic of {table} is not a complete copy of the table: {'; '.join(reasons)}.",
                remedy=f"Run: {copy_command(published.states, table.topic)}"
                ' Or read what is there: .option("allowIncomplete", "true")',
            )
        ends = _ends(published, table.topic, facts)
        slices = plan(table.topic, facts, ends, self._options.max_records_per_task, is_complete=not reasons)
        return [InputPartition(each) for each in slices]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read a part. It is None if the topic is empty."""
        if partition is not None:
            yield from present_rows(self._options.kafka, partition.value, self._columns)


def plan(topic: str, facts: TableTopicFacts, ends: Sequence[int], most: int, *, is_complete: bool) -> list[TopicSlice]:
    """Divide each partition into slices of its keys, so that a task notes about `most` records at the most."""
    found = []
    for partition, (start, end) in enumerate(zip(facts.starts, ends, strict=True)):
        count = -(-(end - start) // most)
        whole = TopicRange(topic, partition, start, end)
        retention_ms = facts.delete_retention_ms
        found += [TopicSlice(whole, number, count, retention_ms, is_complete) for number in range(count)]
    return found


def _ends(published: Published, topic: str, facts: TableTopicFacts) -> list[int]:
    """Return the end offsets of the last progress record, which lie between two Kafka transactions of capture.

    During the initial snapshot the record does not have them.
    """
    progress = published.progress
    recorded = progress.end_offsets.get(topic, [])
    is_usable = progress.state == "streaming" and progress.topic_ids.get(topic) == facts.topic_id
    if not is_usable or len(recorded) != len(facts.ends):
        return facts.ends
    return [max(each) for each in zip(recorded, facts.starts, strict=True)]
