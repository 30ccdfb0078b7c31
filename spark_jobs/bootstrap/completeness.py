"""When may a rebuilt store call itself complete? Pure: facts in, reasons against it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.lsn import LSN
from cdc.positions.progress import Progress
from cdc.tables.recorded_state import TableStates
from spark_jobs.sync.start_position import TopicFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """`rows` live rows as of `lsn`; complete if there is no reason against it, "except" where only rows are parked."""

    lsn: int
    rows: int
    parked: int
    reasons: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.reasons and not self.parked

    def __str__(self) -> str:
        if self.reasons:
            return f"not proven complete as of {LSN(self.lsn)}, {self.rows:,} rows: " + "; ".join(self.reasons)
        except_for = f" except {self.parked:,} parked" if self.parked else ""
        return f"complete as of {LSN(self.lsn)}, {self.rows:,} rows{except_for}"


def reasons_before(progress: Progress, topics: Mapping[str, TopicFacts], policies: Mapping[str, str]) -> list[str]:
    """What makes the topics themselves no whole copy of their tables: nothing built from them could be complete."""
    reasons = []
    if progress.state != "streaming":
        reasons.append("the first copy is not complete")
    for name, facts in topics.items():
        if any(facts.starts):
            reasons.append(f"records were deleted from the beginning of {name}")
        if policies.get(name) != "compact":
            reasons.append(f"{name} has cleanup.policy={policies.get(name)}")
        if progress.topic_ids.get(name) != facts.topic.id:
            reasons.append(f"{name} was made again")
        if len(progress.end_offsets.get(name, ())) != facts.topic.partitions:
            reasons.append(f"{name} has another number of partitions than recorded")
    return reasons


def reasons_after(
    states: TableStates | None, *, too_slow: str | None, expected: Mapping[str, range], found: Mapping[str, int]
) -> list[str]:
    """What came to light while it was built. `expected` (every table of the store) and `found`: live rows by table."""
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
    """Deletes that were written meanwhile may have been forgotten before they were read. `elapsed_ms`: the broker's.

    A broker's clock that was set back proves nothing.
    """
    if 0 <= elapsed_ms < retention_ms:
        return None
    if elapsed_ms < 0:
        return "the broker's clock was set back, so how long it took is not known"
    return (
        f"it took {elapsed_ms / 3_600_000:.2f} hours, and deletes are kept for {retention_ms / 3_600_000:g}:"
        " rows that were deleted meanwhile may have stayed"
    )
