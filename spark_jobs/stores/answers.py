"""What the tasks of a batch have answered, in small rows; the first trouble among them is raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.stores.tasks import Count, trouble_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Answers:
    """By topic. `markers`: TRUNCATEs that the store has not been swept for yet."""

    counts: dict[str, Count]
    markers: dict[str, bytes]

    def total(self) -> Count:
        total = Count()
        for count in self.counts.values():
            total.add(count)
        return total


def read_answers(answers: DataFrame) -> Answers:
    """Runs the job. A few rows per task come to the driver, never a table's row."""
    result = Answers({}, {})
    for row in answers.collect():
        trouble = trouble_of(row["kind"], row["message"], row["remedy"])
        if trouble is not None:
            raise trouble
        if row["kind"] == "marker":
            stamp = row["stamp"].encode()
            result.markers[row["topic"]] = max(stamp, result.markers.get(row["topic"], b""))
        else:
            count = Count(row["events"], row["written"], row["deleted"], row["parked"])
            result.counts.setdefault(row["topic"], Count()).add(count)
    return result
