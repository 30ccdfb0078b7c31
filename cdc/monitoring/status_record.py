"""The one record of how the pipeline does. Facts only; what cannot be told is None, and `problem` says why.

Times are seconds since 1970 by the source's clock. Holds no secret and no value of a row: all of it may be shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from cdc.lsn import LSN


class HealthLevel(Enum):
    """From good to bad."""

    OK = "ok"
    IDLE = "idle"  # nothing was built or asked for yet
    PAUSED = "paused"  # somebody wanted it so
    PARKED = "parked"  # rows could not be delivered, and everything else was
    BEHIND = "behind"
    UNKNOWN = "unknown"
    STALLED = "stalled"  # something to do, and no step forward
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`reason` and `remedy` are sentences for a person; both empty where all is well."""

    state: HealthLevel = HealthLevel.OK
    reason: str = ""
    remedy: str = ""

    @property
    def is_good(self) -> bool:
        return self.state in (HealthLevel.OK, HealthLevel.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    lsn: LSN | None = None
    wal_bytes_per_second: float | None = None
    problem: str | None = None
    health: Health = Health()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """`bytes`: written at the source and not confirmed; `retained_bytes`: what the server keeps for it.

    `left_bytes`: until the server gives it up (None: no limit); `seconds_left`: the same in time, if it comes nearer.
    """

    name: str
    exists: bool
    active: bool = False
    confirmed: LSN | None = None
    bytes: int | None = None
    retained_bytes: int | None = None
    left_bytes: int | None = None
    limit_bytes: int | None = None
    seconds_left: float | None = None
    wal_status: str | None = None
    invalidation_reason: str | None = None
    health: Health = Health()

    @property
    def used_percent(self) -> float | None:
        if not self.limit_bytes or self.retained_bytes is None:
            return None
        return min(100.0, 100 * self.retained_bytes / self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsStatus:
    """What capture has published. `heartbeat_seconds`: since it was last heard of.

    `parked`: rows of tables that capture could not publish, so that no store has them.
    """

    lsn: LSN | None = None
    state: str | None = None
    bytes: int | None = None
    seconds: float | None = None
    applied_until: float | None = None
    heartbeat_seconds: float | None = None
    records_per_second: float | None = None
    parked: int | None = None
    problem: str | None = None
    health: Health = Health()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """`seconds`: age of the oldest commit that it may not have; `applied_until`: it has everything before that time.

    `parked`: rows that it lacks because they are parked; `parked_by_capture` of them are in no store.
    """

    name: str
    kind: str
    lsn: LSN | None = None
    bytes: int | None = None
    records: int | None = None
    seconds: float | None = None
    applied_until: float | None = None
    records_per_second: float | None = None
    generation: int | None = None
    parked: int | None = None
    parked_by_capture: int | None = None
    paused: bool = False
    building: BuildStatus | None = None
    audit: AuditStatus | None = None
    problem: str | None = None
    health: Health = Health()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStatus:
    """A generation that is being made beside the one that serves."""

    generation: int
    began: float
    records: int | None = None
    total_records: int | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStatus:
    """The last comparison of the store with the source."""

    ended: float
    differences: int
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """`applied`: per store, the first offset that it has not applied."""

    number: int
    end: int
    records_per_second: float | None = None
    applied: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    name: str
    topic: str
    records_per_second: float | None
    partitions: tuple[PartitionStatus, ...]
    incomplete: str | None = None
    parked: int = 0  # by capture


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStatus:
    """A copy of tables that is under way."""

    id: str
    kind: str
    began: float
    rows: int = 0
    size_bytes: int = 0
    total_bytes: int = 0
    rows_per_second: float = 0.0
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessError:
    """What a person should know, and what to do about it."""

    where: str
    reason: str
    remedy: str = ""
    state: HealthLevel = HealthLevel.DOWN
    #: It does not run because a person must decide.
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    read_at: float
    prefix: str
    source: SourceStatus
    slot: SlotStatus
    topics: TopicsStatus
    stores: tuple[StoreStatus, ...]
    tables: tuple[TableStatus, ...] = ()
    copies: tuple[SnapshotStatus, ...] = ()
    troubles: tuple[ProcessError, ...] = ()

    @property
    def hops(self) -> dict[str, Health]:
        """By name, in the order of the flow."""
        named = {"source": self.source.health, "slot": self.slot.health, "topics": self.topics.health}
        return {**named, **{f"store {store.name}": store.health for store in self.stores}}

    @property
    def is_ready(self) -> bool:
        """Nothing is down or stands still."""
        return all(health.state not in (HealthLevel.DOWN, HealthLevel.STALLED) for health in self.hops.values())

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(asdict(self))
        plain["slot"]["used_percent"] = self.slot.used_percent
        plain["ready"] = self.is_ready
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, LSN):
        return str(value)
    if isinstance(value, float):
        return round(value, 3)
    return value.value if isinstance(value, Enum) else value
