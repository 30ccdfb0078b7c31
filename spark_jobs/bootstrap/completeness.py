"""Decides whether a rebuilt store is complete. Pure functions: they take facts and return the reasons against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.lsn import LSN
from cdc.positions.progress import Progress
from cdc.tables.recorded_state import TableStates
from spark_jobs.sync.start_position import TopicFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """The verdict on a generation with `rows` live rows as of `lsn`.

    It is complete if there are no `reasons` against it and no parked rows.
    """

    lsn: int
    rows: int
    parked: int
    reasons: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the generation is proven complete, without exceptions."""
        return not self.reasons and not self.parked

    def __str__(self) -> str:
        if self.reasons:
            return f"not proven complete as of {LSN(self.lsn)}, {self.rows:,} rows: " + "; ".join(self.reasons)
        except_for = f" except {self.parked:,} parked" if self.parked else ""
        return f"complete as of {LSN(self.lsn)}, {self.rows:,} rows{except_for}"


def reasons_before(progress: Progress, topics: Mapping[str, TopicFacts], policies: Mapping[str, str]) -> list[str]:
    """Return why the topics are not complete copies of their tables.

    If there is any reason, no generation built from these topics can be complete. `policies`: `cleanup.policy` by
    topic.
    """
    reasons = []
    if progress.state != "streaming":
        reasons.append("the initial snapshot is not complete")
    for name, facts in topics.items():
        if any(facts.starts):
            reasons.append(f"records were deleted from the beginning of {name}")
        if policies.get(name) != "compact":
            reasons.append(f"{name} has cleanup.policy={policies.get(name)}")
        if progress.topic_ids.get(name) != facts.topic.id:
            reasons.append(f"{name} was deleted and made again")
        if len(progress.end_offsets.get(name, ())) != facts.topic.partitions:
            reasons.append(f"the number of partitions of {name} differs from the recorded one")
    return reasons


def reasons_after(
    states: TableStates | None, *, too_slow: str | None, expected: Mapping[str, range], found: Mapping[str, int]
) -> list[str]:
    """Return the reasons against completeness that are known only after the build.

    `expected`: the allowed numbers of live rows, for every table of the store. `found`: the counted numbers.
    """
    reasons = [
        f"{topic} is incomplete since {LSN(mark.since)}: {mark.reason}"
        for topic, mark in (states.pending if states is not None else {}).items()
        if topic in expected
    ]
    if too_slow is not None:
        reasons.append(too_slow)
    reasons += [
        f"{table} has {found[table]:,} rows instead of {rows.stop - 1:,}"
        for table, rows in expected.items()
        if table in found and found[table] not in rows
    ]
    return reasons


def why_too_slow(elapsed_ms: int, retention_ms: int) -> str | None:
    """Return why the build took too long, or None. `elapsed_ms`: its duration by the broker's clock.

    In a build longer than the retention, compaction may have removed tombstones before the build read them. If the
    broker's clock was set back, the duration is unknown, so that is a reason as well.
    """
    if 0 <= elapsed_ms < retention_ms:
        return None
    if elapsed_ms < 0:
        return "the broker's clock was set back during the build, so the build's duration is unknown"
    return (
        f"the build took {elapsed_ms / 3_600_000:.2f} hours, and deletes are kept for {retention_ms / 3_600_000:g}"
        " hours: rows that were deleted during the build may still be in the store"
    )
