"""The status report of `tailrace run` at one moment, which all views display."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdc.supervisor.child import ExitReason
from cdc.supervisor.hop_watch import Hops
from cdc.supervisor.parts.part import PartState
from cdc.supervisor.parts.snapshots_due import SnapshotsDue


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFigures:
    """The progress of the running snapshot, from the events in its log."""

    rows: int
    size_bytes: int
    total_bytes: int
    rows_per_second: float
    seconds_left: float | None

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> SnapshotFigures:
        """Read the figures from a `progress` event."""
        return cls(**{name: event[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The states of all parts, the lag of each hop, and the snapshots that are due or running."""

    parts: tuple[PartState, ...]
    hops: Hops
    due: SnapshotsDue
    snapshot: SnapshotFigures | None
    refused_stores: Mapping[str, ExitReason]

    def as_json(self) -> dict[str, Any]:
        """Return the report as `tailrace run --json` prints it, one object per line."""
        lag, slot = self.hops.lag, self.hops.slot
        return {
            "event": "state",
            "read_at": round(self.hops.read_at, 3),
            "parts": [{**asdict(part), "condition": part.condition.value} for part in self.parts],
            "source_lsn": None if lag is None or lag.source_lsn is None else str(lag.source_lsn),
            "slot": None if slot is None else {**asdict(slot), "confirmed": str(slot.confirmed)},
            "topics_lsn": None if lag is None or lag.topics_lsn is None else str(lag.topics_lsn),
            "stores": []
            if lag is None
            else [{**asdict(each), "lsn": None if each.lsn is None else str(each.lsn)} for each in lag.stores],
            "refused_stores": {name: words._asdict() for name, words in self.refused_stores.items()},
            "problems": self.hops.problems,
            "initial_snapshot_due": self.due.first,
            "incomplete": [{"table": table, "reason": reason} for table, reason in self.due.tables],
            "snapshot": None if self.snapshot is None else asdict(self.snapshot),
        }
