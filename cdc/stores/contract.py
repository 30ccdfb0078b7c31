"""What a store must do, and what it may rely on. Every store implements `Store` and `Writer`; nothing here knows one.

The rules that all of it hangs on:

- Input comes at least once, and for one key in version order; a batch holds only the last change of each key.
- A smaller version never replaces a larger one. An equal one may be written again.
- Returning means durable (as durable as that server keeps anything); what is not, raises.
- The position is kept inside the store, written after the data, never ahead of it.
- A row that the store can never take comes back as `Rejected`, and everything else is written.
- Trouble that passes is a `TransientError`; what a person must mend is a `RefusedError`. Neither moves the position.

Nothing in `sinks` imports Spark or knows Postgres: rows arrive as the bytes of an event's `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec

from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version

POSITION_FORMAT = 1


class TakenOverError(RefusedError):
    """Another owner has taken this generation: two drivers on one store, and this one stops."""


class PositionLostError(TransientError):
    """The store is not as this driver left it: flushed, restored, restarted, or the generation is gone.

    Start over from what the store says now: `serving()`, then `take()`.
    """


class Change(NamedTuple):
    """The last state of one key in a batch. Deletes are changes too, also of rows that the store never had."""

    #: The row's id in every store: `cdc.stores.row_ids.row_id(key)`.
    id: str
    #: The record's key, as it is in the topic.
    key: bytes
    version: Version
    #: The event's `after`, byte by byte; None: the row is gone.
    row: bytes | None


class Rejected(NamedTuple):
    """A change that the store can never take. The caller parks it; `reason` holds no value of the row."""

    change: Change
    reason: str


class SchemaColumn(NamedTuple):
    name: str
    #: Postgres's name of the type: `int8`, `_text` for an array, `public.mood` for a type of the user's.
    type: str
    modifier: int


class TableSchema(NamedTuple):
    """A table as `__schema` describes it; hashable, picklable."""

    schema: str
    table: str
    topic: str
    key: tuple[str, ...]
    columns: tuple[SchemaColumn, ...]

    @classmethod
    def from_record(cls, value: bytes) -> TableSchema:
        """From the value of a record on `__schema`; a newer format is refused."""
        record = msgspec.json.decode(value)
        refuse_newer(record.get("format", 1), 1, "the record on __schema")
        columns = tuple(SchemaColumn(each["name"], each["type"], each["type_modifier"]) for each in record["columns"])
        return cls(record["schema"], record["table"], record["topic"], tuple(record["key"]), columns)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class TopicPosition(msgspec.Struct, frozen=True):
    #: The topic's id: offsets mean nothing in a topic that was made again under the same name.
    topic_id: str
    #: Per partition, the first offset that is not applied yet.
    next_offsets: tuple[int, ...]
    #: What the generation's rows of this topic were made with; "" is rows as they are (docs/guides/shaping.md).
    shape: str = ""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a generation has come. All of it is applied and durable; more may be."""

    format: int = POSITION_FORMAT
    #: The token of the driver that took the generation; "" before the first.
    owner: str = ""
    #: The pipeline whose topics it is built from; "" where an older Tailrace wrote it. Versions of two pipelines
    #: cannot be compared.
    pipeline_id: str = ""
    topics: dict[str, TopicPosition] = {}
    #: Everything up to this version is applied, over all topics.
    version: Version = Version(0, 0)
    #: The source's LSN up to which everything is applied (`wait` compares with it).
    lsn: int = 0
    #: As `caught_up_broker_ms`, for an older Tailrace, which wrote it by its own clock: no evidence of anything.
    caught_up_ms: int = 0
    #: The store has applied every record that was written before this time of the broker's clock, and read it before
    #: Kafka could forget a delete (docs/guides/sync.md). 0: an older Tailrace wrote this position.
    caught_up_broker_ms: int = 0
    written_ms: int = 0


def caught_up_at(position: Position, broker_ms: int) -> Position:
    """The position with another time of `caught_up_broker_ms`."""
    return msgspec.structs.replace(position, caught_up_ms=broker_ms, caught_up_broker_ms=broker_ms)


def displaced(found: Position, mine: Position) -> TakenOverError | PositionLostError:
    """Why a position that is not the one this driver saved last is there.

    Under any driver a generation only gets further. One that is not as far as it was has been restored from a backup,
    whoever owned it then.
    """
    if found.owner != mine.owner and (found.version, found.lsn) >= (mine.version, mine.lsn):
        return TakenOverError(
            "Another sync has taken over this store.",
            remedy="Only one may run for each store: stop the other one, then start again.",
        )
    return PositionLostError("The store's position is not the one that was saved last.")


class Generation(NamedTuple):
    """One full build of a store. Numbers rise and are never used again while an older one exists."""

    number: int
    created_ms: int
    #: "loading" until `settle`: tuned for bulk load, not for readers.
    state: Literal["loading", "settled"]

    def __str__(self) -> str:
        return f"generation {self.number}"


class Fit(Enum):
    """Whether a generation can hold a table as it is now."""

    READY = "ready"
    #: Rows still flow (a field may stay unindexed, or a row is rejected); a bootstrap would make it right.
    NEEDS_GENERATION = "needs a new generation"


class StoreCheck(NamedTuple):
    """One thing that was looked at; `fail` means that the store must not be written as it is."""

    level: Literal["ok", "warn", "fail"]
    what: str
    remedy: str | None = None


class StoredRow(NamedTuple):
    """A row as the store holds it; `row` is None for a tombstone. The same JSON values as in the event."""

    id: str
    version: Version
    row: bytes | None


class Writer(Protocol):
    """Writes rows of one generation. Lives in one task, is used by one thread, and is made by a picklable factory."""

    def apply(self, table: TableSchema, changes: Sequence[Change]) -> list[Rejected]:
        """Write them all, durably, or raise; each key at most once in `changes`.

        A change below the table's last `truncate` version never brings a row back. When this raises, any part of
        the changes may be written: do the batch again.
        """

    def truncate(self, table: TableSchema, version: Version) -> int:
        """Every row of the table with a smaller version is dead, for good; gives how many were swept.

        Call it from one place (the driver) before the batch's `apply` of that table, never beside it. Rows of the same
        batch that are older than the marker should still be handed to `apply`, as deletes at the marker's version: a
        delayed request of an earlier attempt that carries them then finds a larger version. (A bootstrap into a new
        generation has no earlier attempts, and may leave them out.)
        """

    def close(self) -> None:
        """Give connections back. Nothing is pending after `apply` has returned."""


#: Picklable; called once in each task.
WriterFactory = Callable[[], Writer]


class Store(Protocol):
    """One configured store, used on the driver by one thread."""

    kind: ClassVar[str]
    #: True: a new generation is written over the rows that readers see, by version, and `delete_stale_rows` ends it.
    #: False: it is built aside, unseen, until `switch`.
    rebuilds_in_place: ClassVar[bool]

    def check(self) -> list[StoreCheck]:
        """Reachable, allowed, set up as it must be. Changes nothing. Raises TransientError when nobody answers."""

    def serving(self) -> Generation | None:
        """The generation that readers see; None: nothing was built yet, or it is lost: build a new one."""

    def list_generations(self) -> list[Generation]:
        """All that exist, oldest first, the serving one among them."""

    def create_generation(self, tables: Iterable[TableSchema], pipeline_id: str = "") -> Generation:
        """A new one beside the others, empty, in state "loading", with a position that has only the `pipeline_id`.

        A store that rebuilds in place takes rows of another pipeline for rows that are not there: whatever their
        version, a change replaces them, and none of them is left after `switch`.
        """

    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        """Make room for a table that came later or whose columns changed; harmless when nothing changed.

        In the serving generation a new table is visible to readers at once.
        """

    def settle(self, generation: Generation) -> Generation:
        """Loading is over: settings for serving, everything written so far visible. `switch` does it where needed."""

    def switch(self, generation: Generation) -> None:
        """Readers see this generation from now on, all tables at once. The old one stays until `drop`."""

    def drop(self, generation: Generation) -> None:
        """Remove a generation that does not serve; harmless when it is gone. Its writers raise PositionLostError."""

    def position(self, generation: Generation) -> Position | None:
        """As the store has it now; None: lost, or the generation is gone. A newer format is refused.

        Lost also means: what the rows were written to was restored or replaced, so that the position proves nothing.
        Anybody may ask (`lag`, `wait`). A driver compares it with what it saved last before each batch.
        """

    def take(self, generation: Generation, owner: str) -> Position:
        """Become the owner and give the position as found (with this owner in it). The last one to take it has it.

        Raises PositionLostError when there is no such generation (any more).
        """

    def publish(self, generation: Generation, tables: Iterable[TableSchema]) -> None:
        """Make what was applied to these tables visible to readers, where that is not so by itself.

        Called before `save_position`, so that `wait` does not answer before a search finds the row. Not needed in a
        bulk load.
        """

    def save_position(self, generation: Generation, position: Position) -> Position:
        """Replace the position that this object took or saved last; `owner` and `written_ms` are filled in here.

        Gives what was written. Raises TakenOverError when another owner has taken the generation, and PositionLostError
        when the store may have lost something since `take` or the last save: then nothing was saved.
        """

    def writer_factory(self, generation: Generation) -> WriterFactory:
        """For tasks; holds the store's secrets, so it goes nowhere but into tasks."""

    def reap(self, generation: Generation, below: Version, grace_seconds: float | None = None) -> int:
        """Forget tombstones smaller than `below` (a version that is durable) and older than the grace time.

        Without a grace time the config's holds. Gives how many; 0 where the store does it by itself.
        """

    def delete_stale_rows(self, generation: Generation, table: TableSchema, below: Version) -> int:
        """In-place rebuilds only: delete rows up to and including `below` that no writer of `generation` has seen.

        `below` is the version that the rebuild is complete as of. Call it when all of that is applied.
        """

    def count(self, generation: Generation, table: TableSchema) -> int:
        """Live rows that are applied; may read the whole table."""

    def contents(self, generation: Generation, table: TableSchema, *, tombstones: bool = False) -> Iterator[StoredRow]:
        """Every live row (and tombstone, where asked), in no order; for tests and audit."""

    def close(self) -> None:
        """Give connections back."""


class StoreKind(Protocol):
    """How a store is opened: `settings` is its section of the config, `prefix` the pipeline's, `name` the store's."""

    def __call__(self, name: str, settings: Any, prefix: str) -> Store: ...


def refuse_newer(found: object, known: int, what: str) -> None:
    """State that a newer Tailrace wrote is not guessed at."""
    if not isinstance(found, int) or found > known:
        raise RefusedError(
            f"{what} has format {found}, this Tailrace knows up to {known}.", remedy="Use the newer Tailrace."
        )
