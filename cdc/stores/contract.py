"""The contract between the sync and a store.

Every store is a `RowStore` or a `TableStore`. Both add one member to the core, `Store`:

- `RowStore.writer_factory`: Tailrace's tasks write rows one by one, each guarded by its version. The author implements
  a `Writer`. Most kinds of stores are row stores, and need no code for Spark.
- `TableStore.spark_writing`: Spark writes whole tables. The author also implements
  `spark_jobs.writing.contract.StoreWriting`.

`cdc.stores.testing` holds the tests of this contract, for authors of sinks. This module contains no code for any single
kind of store. The contract rests on these rules:

- The sync delivers changes at least once, and the changes of one key in version order. A batch holds only the last
  change of each key.
- A smaller version never replaces a larger one. An equal version may be written again.
- When a call returns, its writes are durable (as durable as that server keeps any data). Otherwise the call raises.
- The position is stored inside the store. It is written after the data and is never ahead of the data.
- A row that the store can never accept is returned as `Rejected`, and all other rows are written.
- A transient error is a `TransientError`. An error that an operator must repair is a `RefusedError`. Neither moves the
  position.

Nothing in `sinks` imports Spark or depends on Postgres: rows arrive as the bytes of an event's `after`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec

from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version

POSITION_FORMAT = 1


class TakenOverError(RefusedError):
    """Another sync has taken ownership of this generation. Only one may write to a store, so this one stops."""


class PositionLostError(TransientError):
    """The store is not in the state that this driver left: it was flushed, restored or restarted.

    The store also raises it if the generation is gone. The driver starts over from the store's present state:
    `serving()`, then `take()`.
    """


class Change(NamedTuple):
    """The last state of one key in a batch. A delete is a change too, even of a row that the store never held."""

    #: The row's id in every store: `cdc.stores.row_ids.row_id(key)`.
    id: str
    #: The record's key, as it is in the topic.
    key: bytes
    version: Version
    #: The event's `after`, byte for byte. None: the row was deleted.
    row: bytes | None


class Rejected(NamedTuple):
    """A change that the store can never accept. The caller parks it. `reason` contains no value of the row."""

    change: Change
    reason: str


class SchemaColumn(NamedTuple):
    """One column of a table as `__schema` describes it."""

    name: str
    #: Postgres's name of the type: `int8`, `_text` for an array, `public.mood` for a user-defined type.
    type: str
    modifier: int


class TableSchema(NamedTuple):
    """A table as `__schema` describes it. Hashable and picklable."""

    schema: str
    table: str
    topic: str
    key: tuple[str, ...]
    columns: tuple[SchemaColumn, ...]

    @classmethod
    def from_record(cls, value: bytes) -> TableSchema:
        """Decode the value of a record on `__schema`. Raises RefusedError for a newer format."""
        record = msgspec.json.decode(value)
        refuse_newer(record.get("format", 1), 1, "the record on __schema")
        columns = tuple(SchemaColumn(each["name"], each["type"], each["type_modifier"]) for each in record["columns"])
        return cls(record["schema"], record["table"], record["topic"], tuple(record["key"]), columns)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class TopicPosition(msgspec.Struct, frozen=True):
    """How far a generation has applied one topic."""

    #: The topic's id. Offsets are not comparable after a topic was deleted and created again under the same name.
    topic_id: str
    #: Per partition, the first offset that is not applied yet.
    next_offsets: tuple[int, ...]
    #: The shape with which the generation's rows of this topic were built. "": unshaped rows (docs/guides/shaping.md).
    shape: str = ""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a generation has applied the topics. All of it is durable. The store may hold later changes too."""

    format: int = POSITION_FORMAT
    #: The token of the driver that owns the generation. "": no driver has taken it yet.
    owner: str = ""
    #: The pipeline whose topics the generation is built from. "": an older Tailrace wrote this position. Versions of
    #: two pipelines cannot be compared.
    pipeline_id: str = ""
    topics: dict[str, TopicPosition] = {}
    #: Everything up to this version is applied, over all topics.
    version: Version = Version(0, 0)
    #: The source's LSN up to which everything is applied (`wait` compares with it).
    lsn: int = 0
    #: A copy of `caught_up_broker_ms` for older Tailrace versions. They wrote it by their own clock: do not rely on it.
    caught_up_ms: int = 0
    #: The store has applied every record that was written before this time of the broker's clock. It read each record
    #: before Kafka could compact a delete away (docs/guides/sync.md). 0: an older Tailrace wrote this position.
    caught_up_broker_ms: int = 0
    written_ms: int = 0


def caught_up_at(position: Position, broker_ms: int) -> Position:
    """Return the position with `caught_up_broker_ms` set to `broker_ms`."""
    return msgspec.structs.replace(position, caught_up_ms=broker_ms, caught_up_broker_ms=broker_ms)


def position_changed_error(found: Position, mine: Position) -> TakenOverError | PositionLostError:
    """Return the error for a stored position that is not the one this driver saved last.

    Every driver only moves a generation forward. A generation that is behind its earlier position was restored from a
    backup, whichever driver owned it at the time of that backup.
    """
    if found.owner != mine.owner and (found.version, found.lsn) >= (mine.version, mine.lsn):
        return TakenOverError(
            "Another sync has taken over this store.",
            remedy="Only one may run for each store: stop the other one, then start again.",
        )
    return PositionLostError("The store's position is not the one that was saved last.")


class Generation(NamedTuple):
    """One full build of a store. Numbers increase. A number is not used again while an older generation exists."""

    number: int
    created_ms: int
    #: "loading" until `settle`: configured for bulk load, not for readers.
    state: Literal["loading", "settled"]

    def __str__(self) -> str:
        return f"generation {self.number}"


class Fit(Enum):
    """Whether a generation can hold a table with its present columns."""

    READY = "ready"
    #: Rows still flow, but a field may stay unindexed or a row may be rejected. A bootstrap repairs that.
    NEEDS_GENERATION = "needs a new generation"


class StoreCheck(NamedTuple):
    """The result of one check. `fail` means that the sync must not write to the store in this state."""

    level: Literal["ok", "warn", "fail"]
    what: str
    remedy: str | None = None


class StoredRow(NamedTuple):
    """A row as the store holds it, with the same JSON values as in the event. `row` is None for a tombstone."""

    id: str
    version: Version
    row: bytes | None


class Writer(Protocol):
    """Writes rows of one generation. A picklable factory creates one in each task, and one thread uses it."""

    def apply(self, table: TableSchema, changes: Sequence[Change]) -> list[Rejected]:
        """Write all changes durably, or raise. `changes` holds each key at most once.

        A change below the table's last `truncate` version never restores a row. If this raises, any part of the changes
        may be written: the caller applies the batch again.
        """

    def truncate(self, table: TableSchema, version: Version) -> int:
        """Delete every row of the table that has a smaller version, permanently. Returns how many rows were deleted.

        Only the driver calls this, before the batch's `apply` calls for that table and never concurrently with them.
        The caller should still pass rows of the same batch that are older than the TRUNCATE marker to `apply`, as
        deletes at the marker's version. A delayed request of an earlier attempt that carries these rows then finds a
        larger version in the store. (A bootstrap into a new generation has no earlier attempts and may omit them.)
        """

    def close(self) -> None:
        """Close the connections. No write is pending once `apply` has returned."""


#: Picklable; called once in each task.
WriterFactory = Callable[[], Writer]


class Store(ABC):
    """One configured store: its generations, its positions, and how to read it. One thread of the driver uses it.

    A sink implements `RowStore` or `TableStore`. The last methods have defaults that are right for most stores.
    """

    kind: ClassVar[str]
    #: True: a new generation overwrites the rows that readers see, by version, and `delete_stale_rows` completes it.
    #: False: a new generation is built separately, and readers do not see it until `switch`.
    rebuilds_in_place: ClassVar[bool] = False

    @abstractmethod
    def check(self) -> list[StoreCheck]:
        """Check reachability, privileges and settings. Changes nothing. Raises TransientError if no server answers."""

    @abstractmethod
    def serving(self) -> Generation | None:
        """Return the generation that readers see. None: none was built yet, or it is lost. Then build a new one."""

    @abstractmethod
    def list_generations(self) -> list[Generation]:
        """Return all generations, oldest first, including the serving one."""

    @abstractmethod
    def create_generation(self, tables: Iterable[TableSchema], pipeline_id: str = "") -> Generation:
        """Create an empty generation in state "loading", whose position holds only the `pipeline_id`.

        The existing generations stay. A store that rebuilds in place treats rows of another pipeline as absent: a
        change replaces such a row whatever its version, and none of these rows is left after `switch`.
        """

    @abstractmethod
    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        """Prepare the generation for a table that is new or whose columns changed. Has no effect if nothing changed.

        In the serving generation, readers see a new table immediately.
        """

    @abstractmethod
    def settle(self, generation: Generation) -> Generation:
        """End the bulk load: apply the settings for serving, make all writes visible. `switch` does so if needed."""

    @abstractmethod
    def switch(self, generation: Generation) -> None:
        """Switch readers to this generation, all tables at once. The old generation stays until `drop`."""

    @abstractmethod
    def drop(self, generation: Generation) -> None:
        """Remove a generation that does not serve. No effect if it is gone. Its writers raise PositionLostError."""

    @abstractmethod
    def position(self, generation: Generation) -> Position | None:
        """Read the stored position. None: the position is lost, or the generation is gone.

        Raises RefusedError for a newer format. The position also counts as lost if the storage that holds the rows was
        restored or replaced, because the position then proves nothing. Any process may call this (`lag`, `wait`). A
        driver compares the result with the position that it saved last before each batch.
        """

    @abstractmethod
    def take(self, generation: Generation, owner: str) -> Position:
        """Become the owner, and return the stored position with this owner in it. The most recent caller is the owner.

        Raises PositionLostError if the generation does not exist (any more).
        """

    @abstractmethod
    def save_position(self, generation: Generation, position: Position) -> Position:
        """Replace the position that this object took or saved last. This call sets `owner` and `written_ms`.

        Returns the position as written. Raises TakenOverError if another owner has taken the generation, and
        PositionLostError if the store may have lost data since `take` or the last save. In both cases it saves nothing.
        """

    @abstractmethod
    def contents(self, generation: Generation, table: TableSchema, *, tombstones: bool = False) -> Iterator[StoredRow]:
        """Yield every live row in no order, and the tombstones too if `tombstones`. For tests and the audit."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    # -- optional ----------------------------------------------------------------------------------------------

    def count(self, generation: Generation, table: TableSchema) -> int:
        """Return the number of live rows that are applied. May read the whole table, and does so by default."""
        return sum(1 for _ in self.contents(generation, table))

    def publish(self, generation: Generation, tables: Iterable[TableSchema]) -> None:  # noqa: B027 - optional
        """Make the applied changes of these tables visible to readers, if the store does not do so by itself.

        The driver calls this before `save_position`, so that `wait` does not return before a search finds the row. A
        bulk load does not need it. By default: nothing to do, because readers see each write immediately.
        """

    def reap(self, generation: Generation, below: Version, grace_seconds: float | None = None) -> int:  # noqa: ARG002
        """Remove tombstones that are smaller than `below` (a durable version) and older than the grace time.

        The default grace time is the config's. Returns how many were removed. By default 0: the store keeps no
        tombstones, or removes them by itself.
        """
        return 0

    def delete_stale_rows(self, generation: Generation, table: TableSchema, below: Version) -> int:  # noqa: ARG002
        """In-place rebuilds only: delete rows with versions up to `below` that no writer of `generation` was given.

        `below` is inclusive: the rebuild is complete as of this version. Call it once all changes up to it are applied.
        Returns how many were deleted. By default 0: a generation that is built separately starts empty.
        """
        return 0


class RowStore(Store):
    """A store that Tailrace's tasks write row by row."""

    @abstractmethod
    def writer_factory(self, generation: Generation) -> WriterFactory:
        """Return a factory for tasks. It contains the store's secrets, so pass it to tasks only."""


class TableStore(Store):
    """A store whose tables Spark writes, typed and in bulk. Its rows do not pass through Python."""

    #: The class that writes it, as `module:name`: an implementation of `spark_jobs.writing.contract.StoreWriting`. It
    #: is a name because a sink does not import Spark. Only Spark jobs load the class.
    spark_writing: ClassVar[str]


class StoreKind(Protocol):
    """Opens a store. `name` is the store's, `settings` its section of the config, `prefix` the pipeline's."""

    def __call__(self, name: str, settings: Any, prefix: str) -> Store: ...


def refuse_newer(found: object, known: int, what: str) -> None:
    """Raise RefusedError if a newer Tailrace wrote this state, because this one may misread it."""
    if not isinstance(found, int) or found > known:
        raise RefusedError(
            f"{what} has format {found}, this Tailrace reads formats up to {known}.", remedy="Use the newer Tailrace."
        )
