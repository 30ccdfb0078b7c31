"""How Spark jobs write one kind of store. `spark_jobs.writing.choice` returns it for a kind.

The jobs (sync, bootstrap, audit, retrying parked rows) ask a `StoreWriting` for what depends on the kind, and contain
no code for any single kind. Row stores share `spark_jobs.kinds.rows`. A `TableStore` names its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

from cdc.config import Config
from cdc.config.stores import SyncedStoreConfig
from cdc.lsn import Version
from cdc.positions.offset_index import Point
from cdc.stores.contract import Generation, Position, Store, TableSchema
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.tasks.parked_rows import Parked
from spark_jobs.tasks.task_results import Answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.audit.recheck import Audited
    from cdc.audit.repair import Wrong

#: An offset for each partition of each topic.
Offsets = Mapping[str, Sequence[int]]

UNREPAIRED: Final = (
    "rows still differ after the repair: another program writes them, or the sync is not running; repair again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Progress of a running load. `events`: number of offsets that the whole load reads."""

    tasks_done: int
    tasks: int
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The result of a load. `rows`: number of live rows by topic, counted by key from the records that tasks read."""

    answers: Answers
    rows: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of retrying one parked row. `reason` says why the row stays parked, or why it needed no write."""

    parked: Parked
    settled: bool
    reason: str = ""

    @classmethod
    def judged(cls, row: Parked, reason: str | None) -> Retried:
        """Return the result of a row that stays parked for this reason; None: it is settled."""
        return cls(parked=row, settled=reason is None, reason=reason or "")


class BatchApplier(Protocol):
    """Applies batches to one generation."""

    def truncate(self, markers: Mapping[str, bytes]) -> dict[str, int]:
        """Delete the rows below these TRUNCATE markers, which tasks found. Returns how many rows, by topic.

        Runs in the driver, while no task runs.
        """


class StoreBatch(Protocol):
    """A batch that can be applied to its store."""

    def apply(self, markers: Mapping[str, bytes]) -> Answers:
        """Apply the batch. `markers` are the TRUNCATEs whose rows have been deleted from the store.

        May be called again, with more markers.
        """


class BatchReading(Protocol):
    """Decides how the batches of one sync session are read."""

    def batch(self, start: Offsets, end: Offsets) -> StoreBatch:
        """Return the batch between these offsets."""


StoreT = TypeVar("StoreT", bound=Store)
ApplierT = TypeVar("ApplierT", bound=BatchApplier)
_ApplierT_contra = TypeVar("_ApplierT_contra", bound=BatchApplier, contravariant=True)


class Loading(Protocol[_ApplierT_contra]):
    """Loads offset ranges into one generation."""

    def load(
        self, applying: _ApplierT_contra, start: Offsets, end: Offsets, markers: Mapping[str, bytes], *, count: bool
    ) -> Loaded:
        """Write everything from `start` up to `end`, and count the resulting rows if `count`.

        Rows with a version below their topic's entry in `markers` are left out or written as deletes.
        """


class StoreWriting(ABC, Generic[StoreT, ApplierT]):
    """What Spark jobs do differently from one kind of store to another. It has no state."""

    #: True: Spark itself evaluates and writes the rows. False: Python workers do.
    in_spark: ClassVar[bool]
    #: Why rows still differ after a repair, with the remedy. `{store}` is the store's name.
    unrepaired: ClassVar[str] = UNREPAIRED

    @abstractmethod
    def session(self, spark: SparkSession, settings: SyncedStoreConfig) -> SparkSession:
        """Return the session in which the store's jobs run."""

    @abstractmethod
    def applier(
        self, config: Config, name: str, store: StoreT, generation: Generation, store_tables: StoreTables
    ) -> ApplierT:
        """Return what applies batches to the generation."""

    @abstractmethod
    def reading(self, config: Config, store_tables: StoreTables, applying: ApplierT, parallelism: int) -> BatchReading:
        """Return how a sync session reads its batches, in at most `parallelism` tasks."""

    @abstractmethod
    def loading(
        self, store_tables: StoreTables, config: Config, between: Callable[[LoadProgress], None]
    ) -> Loading[ApplierT]:
        """Return the bulk load of a bootstrap. It calls `between` about every second."""

    @abstractmethod
    def retry(
        self,
        config: Config,
        name: str,
        store: StoreT,
        generation: Generation,
        position: Position,
        tables: Mapping[str, TableSchema],
        rows: Sequence[Parked],
    ) -> list[Retried]:
        """Write the present state of parked rows. `tables`: by topic, those of the store."""

    @abstractmethod
    def repair(
        self,
        config: Config,
        spark: Callable[[], SparkSession],
        audited: Audited,
        name: str,
        wrong: Wrong,
        marker: Version,
    ) -> int:
        """Write the rows that are right in the topic and wrong in the store. Returns how many."""

    def before_switch(
        self,
        store: StoreT,
        generation: Generation,
        applying: ApplierT,
        store_tables: StoreTables,
        *,
        old_position: Position | None,
        point: Point,
        began_ms: int,
    ) -> None:
        """Prepare what all generations share for the new generation. By default they share nothing.

        `old_position`: the serving generation's position when the build began, if this pipeline built it. `point`: the
        state that the new generation was loaded from, read at `began_ms`.
        """
