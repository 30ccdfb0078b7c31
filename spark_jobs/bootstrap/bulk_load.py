"""A Spark job that writes an offset range of every topic into a generation, and counts the rows that must result.

`BulkLoad` runs and watches the job. `RowBulkLoad` is the job of stores that tasks write row by row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from cdc.config import Config
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.sync.batches import has_expressions
from spark_jobs.sync.topic_frame import read_topic_frame
from spark_jobs.tasks.apply_tasks import ANSWER, MARKERS_PROPERTY, ApplySettings, markers_text
from spark_jobs.tasks.key_groups import Grouped, count_group_rows, grouped
from spark_jobs.tasks.range_tasks import RangeTask
from spark_jobs.tasks.task_errors import spark_errors
from spark_jobs.tasks.task_results import Answers
from spark_jobs.tasks.topic_range import cut
from spark_jobs.writing.contract import ApplierT, Loaded, LoadProgress, Offsets

if TYPE_CHECKING:
    from pyspark import RDD

# Limits of offsets per task: enough to be worth starting a task, few enough that progress is visible and that all tasks
# end at about the same time.
_FEWEST_OFFSETS, _MOST_OFFSETS = 50_000, 500_000
_TASKS = 400
# Approximate number of keys that one task counts; this takes about 100 MB of memory.
_KEYS_PER_GROUP = 1_000_000
_POLL_SECONDS = 1.0


class BulkLoad(ABC, Generic[ApplierT]):
    """Loads offset ranges into one generation. It calls `between` about every second while a job runs."""

    def __init__(self, store_tables: StoreTables, config: Config, between: Callable[[LoadProgress], None]) -> None:
        self._store_tables = store_tables
        self._spark = store_tables.spark
        self._config = config
        self._between = between

    def load(
        self,
        applying: ApplierT,
        start: Offsets,
        end: Offsets,
        markers: Mapping[str, bytes],
        *,
        count: bool,
    ) -> Loaded:
        """Write everything from `start` up to `end`, and count the resulting rows if `count`.

        Rows with a version below their topic's entry in `markers` are left out or written as deletes.
        """
        moved = {topic: offsets for topic, offsets in end.items() if list(offsets) != list(start[topic])}
        if not moved:
            return Loaded(answers=Answers({}, {}), rows={})
        events = sum(sum(end[topic]) - sum(start[topic]) for topic in moved)
        with ThreadPoolExecutor(1, thread_name_prefix="tailrace-load") as pool:
            job = pool.submit(
                self._run, applying, {topic: start[topic] for topic in moved}, moved, markers, events, count
            )
            self._watch(job, events)
            return job.result()

    @abstractmethod
    def _run(
        self,
        applying: ApplierT,
        start: Offsets,
        end: Offsets,
        markers: Mapping[str, bytes],
        events: int,
        count: bool,
    ) -> Loaded:
        """Run the job. `events`: number of offsets from `start` to `end`."""

    def _watch(self, job: Future[Loaded], events: int) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        most = 0
        while not job.done():
            stages = [
                info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None
            ]
            tasks = sum(info.numTasks for info in stages)
            if tasks >= most:  # the stage that counts keys afterwards has fewer tasks, and is short
                most, done = tasks, sum(info.numCompletedTasks for info in stages)
                self._between(LoadProgress(tasks_done=done, tasks=tasks, events=events))
            else:
                self._between(LoadProgress(tasks_done=most, tasks=most, events=events))
            _wait(job)


class RowBulkLoad(BulkLoad[ApplySettings]):
    """Loads offset ranges with tasks that write rows one by one."""

    def _run(
        self,
        applying: ApplySettings,
        start: Offsets,
        end: Offsets,
        markers: Mapping[str, bytes],
        events: int,
        count: bool,
    ) -> Loaded:
        groups = -(-events // _KEYS_PER_GROUP) if count else 0
        applying = replace(applying, key_groups=groups, ahead_of_markers=True)
        with spark_errors("The Spark job of the load failed"):
            answers = self._answers(applying, start, end, markers, events)
            if groups:
                answers = answers.partitionBy(groups, int).mapPartitions(count_group_rows)
            found: list[Grouped] = answers.collect()
        result = Answers.of(answer for _, answer in found)
        rows: dict[str, int] = {}
        for _, answer in found:
            if answer["kind"] == "rows":
                rows[answer["topic"]] = rows.get(answer["topic"], 0) + answer["rows"]
        return Loaded(answers=result, rows=rows)

    def _answers(
        self, applying: ApplySettings, start: Offsets, end: Offsets, markers: Mapping[str, bytes], events: int
    ) -> RDD[Any]:
        """Return the tasks' answers by group of keys.

        Tasks read Kafka directly. Only if shapes have expressions does Spark read the topics, because it evaluates
        them.
        """
        context = self._spark.sparkContext
        if not has_expressions(self._store_tables):
            task = RangeTask(applying, markers, [[each] for each in cut(start, end, _task_offsets(events))])
            numbers = context.parallelize(range(len(task.shares)), len(task.shares))
            return numbers.mapPartitions(task).flatMap(partial(grouped, applying.key_groups))
        context.setLocalProperty(MARKERS_PROPERTY, markers_text(markers))
        partitions = str(max(1, events // _task_offsets(events)))
        source = read_topic_frame(self._spark, self._config, start, end, minPartitions=partitions)
        answers = self._store_tables.evaluated(source).mapInArrow(applying, ANSWER)  # type: ignore[arg-type]
        return answers.rdd.map(lambda row: row.asDict()).flatMap(partial(grouped, applying.key_groups))


def _task_offsets(events: int) -> int:
    return max(_FEWEST_OFFSETS, min(_MOST_OFFSETS, events // _TASKS))


def _wait(job: Future[Loaded]) -> None:
    try:
        job.exception(_POLL_SECONDS)
    except TimeoutError:
        return
    except Exception:  # noqa: S110 - the caller gets it from the job's result
        pass
