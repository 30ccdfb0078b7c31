"""One batch of a store: which way it is read, and then applied.

Tasks read from Kafka themselves where possible: a small batch is mostly overhead, and Spark's own reading is most of
it. Spark reads the batch where it evaluates the rows: for shapes with expressions, and for stores whose tables it
writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.config import Config
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.sync.topic_frame import read_topic_frame
from spark_jobs.tasks.apply_tasks import ANSWER, MARKERS_PROPERTY, ApplySettings, markers_text
from spark_jobs.tasks.range_tasks import RangeTask, shared
from spark_jobs.tasks.task_results import Answers, read_answers
from spark_jobs.tasks.topic_range import TopicRange, cut
from spark_jobs.writing.contract import Offsets, StoreBatch

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

# One more task pays off for each so many records.
_TASK_RECORDS: Final = 5_000
_ANY_SIZE: Final = 1 << 62


class FrameReading:
    """Has Spark read batches, and evaluate their shapes."""

    def __init__(self, config: Config, store_tables: StoreTables) -> None:
        self._config = config
        self._store_tables = store_tables
        # Spark keeps consumers for the next batch only under a group id that stays the same. By default each batch has
        # its own. No group is joined. Sessions do not share consumers, since a topic may be created again in between.
        self._kafka_options = {"kafka.group.id": f"tailrace-unused-{uuid.uuid4().hex}"}

    def frame(self, start: Offsets, end: Offsets) -> DataFrame:
        """Return the records between these offsets, with what their shapes compute."""
        # Spark would plan each stage of a small batch again. Stores that read frames have a session of their own.
        self._store_tables.spark.conf.set("spark.sql.adaptive.enabled", "false")
        records = read_topic_frame(self._store_tables.spark, self._config, start, end, **self._kafka_options)
        return self._store_tables.evaluated(records)


class RowReading:
    """Reads batches of a row store. At most `parallelism` tasks run, so that a slow store leaves slots for others."""

    def __init__(self, config: Config, store_tables: StoreTables, applying: ApplySettings, parallelism: int) -> None:
        self._store_tables = store_tables
        self._applying = applying
        self._parallelism = parallelism
        self._frames = FrameReading(config, store_tables)
        # By the number of tasks. Cached, since creating an RDD takes as long as a small batch.
        self._numbers: dict[int, RDD[int]] = {}

    def batch(self, start: Offsets, end: Offsets) -> StoreBatch:
        """Return the batch between these offsets."""
        if not has_expressions(self._store_tables):
            return _ReadByTasks(self, self._applying, start, end)
        # Spark gives a topic partition to one task, in order. `coalesce` gives several partitions to one task.
        shaped = self._frames.frame(start, end).coalesce(self._parallelism)
        return _ReadBySpark(shaped.mapInArrow(self._applying, ANSWER))  # type: ignore[arg-type]

    def share_out(self, records: int, ranges: Sequence[TopicRange]) -> tuple[RDD[int], list[list[TopicRange]]]:
        """Return an RDD of task numbers, and the ranges that each task reads."""
        shares = shared(ranges, min(self._parallelism, 1 + records // _TASK_RECORDS))
        tasks = len(shares)
        if tasks not in self._numbers:
            self._numbers[tasks] = self._store_tables.spark.sparkContext.parallelize(range(tasks), tasks)
        return self._numbers[tasks], shares


def has_expressions(store_tables: StoreTables) -> bool:
    """Return whether any table has a shape that Spark must evaluate."""
    return any(shape.row.evaluated for shape in store_tables.shapes.values())


@dataclass(frozen=True, slots=True)
class _ReadBySpark:
    frame: DataFrame

    def apply(self, markers: Mapping[str, bytes]) -> Answers:
        self.frame.sparkSession.sparkContext.setLocalProperty(MARKERS_PROPERTY, markers_text(markers))
        return read_answers(self.frame)


@dataclass(frozen=True, slots=True)
class _ReadByTasks:
    reading: RowReading
    applying: ApplySettings
    start: Offsets
    end: Offsets

    def apply(self, markers: Mapping[str, bytes]) -> Answers:
        ranges = cut(self.start, self.end, _ANY_SIZE)
        if not ranges:
            return Answers({}, {})
        numbers, shares = self.reading.share_out(sum(each.end - each.start for each in ranges), ranges)
        return Answers.of(numbers.mapPartitions(RangeTask(self.applying, markers, shares)).collect())
