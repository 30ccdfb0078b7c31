"""The status record of the pipeline. A figure that is unknown is None, and `problem` gives the reason.

Times are Unix times in seconds, by the source's clock. The record contains no secrets and no row values, so all of it
may be displayed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from cdc.lsn import LSN


class HealthLevel(Enum):
    """The health of a hop, in order of severity."""

    OK = "ok"
    IDLE = "idle"  # not built or started yet
    PAUSED = "paused"  # by an operator
    PARKED = "parked"  # some rows could not be delivered; all others were
    BEHIND = "behind"
    UNKNOWN = "unknown"
    STALLED = "stalled"  # there is work to do, and no progress
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a hop. `reason` and `remedy` are sentences for the operator; both are empty if the state is OK."""

    state: HealthLevel = HealthLevel.OK
    reason: str = ""
    remedy: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the state needs no action by the operator."""
        return self.state in (HealthLevel.OK, HealthLevel.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The source database. `lsn`: its current WAL insert position."""

    lsn: LSN | None = None
    wal_bytes_per_second: float | None = None
    problem: str | None = None
    health: Health = Health()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """The replication slot. `bytes`: WAL written and not confirmed. `retained_bytes`: WAL that the server keeps for it.

    `left_bytes`: WAL until the server invalidates the slot (None: no limit). `seconds_left`: the time until then at the
    current rate; None while `left_bytes` does not shrink.
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
        """The share of its limit that the slot uses; None without a limit."""
        if not self.limit_bytes or self.retained_bytes is None:
            return None
        return min(100.0, 100 * self.retained_bytes / self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsStatus:
    """What capture has published. `heartbeat_seconds`: time since capture's last progress record.

    `parked`: rows that capture could not publish, so no store has them.
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
    """One store. `seconds`: the age of the oldest commit that it may lack. `applied_until`: it has all earlier commits.

    `parked`: rows that it lacks because they are parked. `parked_by_capture`: those of them that capture has parked, so
    no store has them.
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
    """A generation that is being built while another one serves."""

    generation: int
    began: float
    records: int | None = None
    total_records: int | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStatus:
    """The result of a store's last audit."""

    ended: float
    differences: int
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition of a table topic. `applied`: for each store, the first offset that it has not applied."""

    number: int
    end: int
    records_per_second: float | None = None
    applied: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A table and its topic. `incomplete`: why its topic lacks changes; `tailrace snapshot` repairs this."""

    name: str
    topic: str
    records_per_second: float | None
    partitions: tuple[PartitionStatus, ...]
    incomplete: str | None = None
    parked: int = 0  # by capture


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStatus:
    """A snapshot of tables that is in progress."""

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
    """An error that a process reported, and its remedy."""

    where: str
    reason: str
    remedy: str = ""
    state: HealthLevel = HealthLevel.DOWN
    #: The process does not run until an operator decides.
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """The status of the whole pipeline at one moment."""

    read_at: float
    prefix: str
    source: SourceStatus
    slot: SlotStatus
    topics: TopicsStatus
    stores: tuple[StoreStatus, ...]
    tables: tuple[TableStatus, ...] = ()
    snapshots: tuple[SnapshotStatus, ...] = ()
    process_errors: tuple[ProcessError, ...] = ()

    @property
    def hops(self) -> dict[str, Health]:
        """The health of each hop by its name, from the source to the stores."""
        named = {"source": self.source.health, "slot": self.slot.health, "topics": self.topics.health}
        return {**named, **{f"store {store.name}": store.health for store in self.stores}}

    @property
    def is_ready(self) -> bool:
        """Whether no hop is down or stalled."""
        return all(health.state not in (HealthLevel.DOWN, HealthLevel.STALLED) for health in self.hops.values())

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
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
