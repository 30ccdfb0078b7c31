"""Combines the result rows of a batch's tasks, and raises the first error among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.tasks.apply_tasks import Answer, Count
from spark_jobs.tasks.task_errors import unpacked_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Answers:
    """Counts by topic. `markers` are TRUNCATEs whose rows have not been deleted from the store yet."""

    counts: dict[str, Count]
    markers: dict[str, bytes]

    @classmethod
    def of(cls, rows: Iterable[Answer]) -> Answers:
        """Combine the rows of all tasks. Raises the first error among them."""
        found = cls({}, {})
        for row in rows:
            if row["kind"] == "error":
                raise unpacked_error(row["data"])
            if row["kind"] == "marker":
                found.markers[row["topic"]] = max(row["stamp"].encode(), found.markers.get(row["topic"], b""))
            elif row["kind"] == "events":
                count = Count(row["events"], row["written"], row["deleted"], row["parked"])
                found.counts.setdefault(row["topic"], Count()).add(count)
        return found

    def total(self) -> Count:
        """Return the sum over all topics."""
        total = Count()
        for count in self.counts.values():
            total.add(count)
        return total


def read_answers(answers: DataFrame) -> Answers:
    """Run the job and combine its results. Each task returns a few small rows to the driver, never a table's rows."""
    return Answers.of(row.asDict() for row in answers.collect())
