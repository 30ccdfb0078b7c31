"""A Spark job that writes a range of every topic into a generation, and counts the rows that must be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc.config import Config
from cdc.errors import TransientError
from spark_jobs.shape.fed import FedTables
from spark_jobs.stores.answers import Answers, read_answers
from spark_jobs.stores.tasks import ANSWER, MARKERS_PROPERTY, Applying, markers_text
from spark_jobs.stores.topic_stream import offsets_json, read_topics
from spark_jobs.warehouse.apply import WarehouseBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Offsets = Mapping[str, Sequence[int]]

# Offsets of one task: enough to be worth its start, few enough that progress is seen and a failure costs little.
_TASK_OFFSETS = 100_000
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    tasks_done: int
    tasks: int
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """`rows`: live rows by topic, counted by Spark from what the tasks saw, once for each key."""

    answers: Answers
    rows: dict[str, int]


class Loading:
    """`between` is called about every second while a job runs."""

    def __init__(self, fed: FedTables, config: Config, between: Callable[[LoadProgress], None]) -> None:
        self._fed = fed
        self._spark = fed.spark
        self._config = config
        self._between = between

    def load(
        self,
        applying: Applying | WarehouseBatches,
        start: Offsets,
        end: Offsets,
        markers: Mapping[str, bytes],
        *,
        count: bool,
    ) -> Loaded:
        """Everything from `start` up to `end`. Rows below a marker are left out or made deletes."""
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

    def _run(
        self,
        applying: Applying | WarehouseBatches,
        start: Offsets,
        end: Offsets,
        markers: Mapping[str, bytes],
        events: int,
        count: bool,
    ) -> Loaded:
        if not isinstance(applying, Applying):
            raise TypeError("the warehouse loads in its own way")
        self._spark.sparkContext.setLocalProperty(MARKERS_PROPERTY, markers_text(markers))
        source = read_topics(
            self._spark.read,
            self._config,
            start,
            endingOffsets=offsets_json(end),
            minPartitions=str(max(1, events // _TASK_OFFSETS)),
        )
        shaped = self._fed.evaluated(source)
        answers = shaped.mapInArrow(replace(applying, with_keys=count, ahead_of_markers=True), ANSWER)  # type: ignore[arg-type]
        try:
            if not count:
                return Loaded(answers=read_answers(answers), rows={})
            answers = answers.persist()
            try:
                result = read_answers(answers.filter("kind <> 'key'"))
                return Loaded(answers=result, rows=_live_rows(answers))
            finally:
                answers.unpersist()
        except TransientError:
            raise
        except Exception as error:
            if type(error).__module__.startswith(("pyspark", "py4j")):
                raise TransientError(f"The load failed: {str(error).splitlines()[0][:300]}") from error
            raise

    def _watch(self, job: Future[Loaded], events: int) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not job.done():
            stages = [
                info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None
            ]
            done, tasks = sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
            self._between(LoadProgress(tasks_done=done, tasks=tasks, events=events))
            _wait(job)


def _wait(job: Future[Loaded]) -> None:
    try:
        job.exception(_LOOK_SECONDS)
    except TimeoutError:
        return
    except Exception:  # noqa: S110 - its result says it
        pass


def _live_rows(answers: DataFrame) -> dict[str, int]:
    """The last state of each key, of keys that no TRUNCATE killed. Spark sorts and spills: no key is held in Python."""
    markers = answers.filter("kind = 'marker'").groupBy("topic").agg({"stamp": "max"}).toDF("topic", "marker")
    last = (
        answers.filter("kind = 'key'")
        .selectExpr("topic", "partition", "key", "struct(offset, live, stamp) AS state")
        .groupBy("topic", "partition", "key")
        .agg({"state": "max"})
        .toDF("topic", "partition", "key", "state")
    )
    live = last.join(markers, "topic", "left").filter("state.live AND (marker IS NULL OR state.stamp >= marker)")
    return {row["topic"]: row["count"] for row in live.groupBy("topic").count().collect()}
