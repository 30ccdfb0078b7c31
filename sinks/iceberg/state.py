"""The warehouse's state: generations, positions, TRUNCATE markers. One snapshot property of one Iceberg table holds it.

Every change is a commit against the snapshot that was read. So one of two concurrent writers fails, whatever the
catalog. The table holds no rows. No process compacts it, and its last snapshot never expires.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

from cdc.errors import RefusedError, TransientError
from cdc.stores.contract import Position, refuse_newer
from sinks.iceberg import library
from sinks.iceberg.catalog import iceberg_errors
from sinks.iceberg.naming import STATE

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FORMAT: Final = 1
_PROPERTY: Final = "tailrace.state"
_KEPT_SNAPSHOTS: Final = 20
_EXPIRE_AT: Final = 60


class GenerationState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one generation."""

    created_ms: int
    state: str = "loading"
    position: Position = Position()
    #: The topics whose tables were created in this generation.
    topics: tuple[str, ...] = ()
    #: At the switch to this generation, the history continues from the position of the previous generation.
    resumes: bool = False


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A range of positions in which the history lacks some versions of the table's rows."""

    topic: str
    from_position: int
    to_position: int
    until_ms: int


class WarehouseState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a warehouse."""

    format: int = FORMAT
    #: The owner of the warehouse: the pipeline's prefix and the store's name.
    prefix: str = ""
    store: str = ""
    serving: int | None = None
    #: The generation of an unfinished switch. The names may already be exchanged.
    switching: int | None = None
    next_number: int = 1
    generations: dict[int, GenerationState] = {}
    #: Topic to the version of the last TRUNCATE marker that was applied to the history.
    markers: dict[str, str] = {}
    gaps: tuple[Gap, ...] = ()
    #: A sync starts no batch before this time, because `maintain` needs exclusive access to the tables.
    held_until_ms: int = 0


class StateConflictError(TransientError):
    """Another process has changed the state since it was read. The caller reads it again."""


class StateTable:
    """Reads and replaces the state. `write` succeeds only if the state is still the one that `read` returned."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._table: Table | None = None

    def read(self) -> WarehouseState | None:
        """Return the state. None: `create` was never called."""
        with iceberg_errors():
            try:
                self._table = self._catalog.load_table(STATE)
            except NoSuchTableError:
                self._table = None
                return None
        return _state_of(self._table)

    def create(self, state: WarehouseState) -> None:
        """Create the state table with this state. An existing state stays."""
        properties = {
            # A commit that conflicts with another must fail. The library must not retry it on top of the other commit.
            "commit.retry.num-retries": "0",
            "write.metadata.previous-versions-max": "10",
            "write.metadata.delete-after-commit.enabled": "true",
        }
        schema = library.Schema(library.types.NestedField(1, "note", library.types.StringType(), required=False))
        with iceberg_errors():
            self._catalog.create_namespace_if_not_exists(STATE[0])
            with contextlib.suppress(TableAlreadyExistsError):
                self._catalog.create_table(STATE, schema, properties=properties)
            self._table = self._catalog.load_table(STATE)
        if _state_of(self._table) is None:
            self.write(state)

    def write(self, state: WarehouseState) -> None:
        """Replace the state that was read. Raises StateConflictError if another process has replaced it."""
        table = self._known()
        text = msgspec.json.encode(state).decode()
        with iceberg_errors():
            try:
                transaction = table.transaction()
                transaction.update_snapshot(snapshot_properties={_PROPERTY: text}).fast_append().commit()
                self._table = transaction.commit_transaction()
            except CommitFailedException as error:
                raise StateConflictError("Another process has changed the warehouse's state.") from error
            self._forget_old()

    def _forget_old(self) -> None:
        """Expire old snapshots. Only writers of the state read them, so a conflict with another writer is harmless."""
        table = self._known()
        snapshots = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
        if len(snapshots) < _EXPIRE_AT:
            return
        old = [each.snapshot_id for each in snapshots[:-_KEPT_SNAPSHOTS]]
        with contextlib.suppress(CommitFailedException):
            table.maintenance.expire_snapshots().by_ids(old).commit()
        self._table = None

    def _known(self) -> Table:
        if self._table is None:
            raise StateConflictError("The warehouse's state was not read.")
        return self._table


def _state_of(table: Table) -> WarehouseState | None:
    snapshot = table.current_snapshot()
    text: Any = snapshot.summary[_PROPERTY] if snapshot is not None and snapshot.summary is not None else None
    if text is None:
        return None
    refuse_newer(msgspec.json.decode(text).get("format", 1), FORMAT, "the warehouse's state")
    return msgspec.json.decode(text, type=WarehouseState)


def refuse_foreign(state: WarehouseState, prefix: str, store: str) -> None:
    """Raise RefusedError if the warehouse belongs to another pipeline or store."""
    if (state.prefix, state.store) != (prefix, store):
        raise RefusedError(
            f"This warehouse belongs to store {state.store} of the pipeline {state.prefix}.",
            remedy="Set a different `path` (and catalog) for this store.",
        )
