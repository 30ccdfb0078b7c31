"""The warehouse's own state: generations, positions, markers. Kept inside it, as one property of one table's snapshot.

Every change is a commit against the snapshot that was read, so of two writers one fails, whatever the catalog is. The
table holds no rows; nothing compacts it, and its last snapshot is never expired.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cdc.errors import RefusedError, TransientError
from cdc.stores.contract import Position, refuse_newer
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
    created_ms: int
    state: str = "loading"
    position: Position = Position()
    #: Tables that were made for it: topic -> what the store was told of it.
    topics: tuple[str, ...] = ()
    #: When it is switched to, the history goes on from where the one before stood.
    resumes: bool = False


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Between these positions the history has not every version of the table."""

    topic: str
    from_position: int
    to_position: int
    until_ms: int


class WarehouseState(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    #: Whose warehouse it is: the pipeline's prefix, and the store's name.
    prefix: str = ""
    store: str = ""
    serving: int | None = None
    #: A switch that was begun: its names may have been exchanged already.
    switching: int | None = None
    next_number: int = 1
    generations: dict[int, GenerationState] = {}
    #: Topic -> version of the last TRUNCATE that the history was swept for.
    markers: dict[str, str] = {}
    gaps: tuple[Gap, ...] = ()
    #: Until then a sync begins no batch: an upkeep needs the tables to itself for a moment.
    held_until_ms: int = 0


class StateConflictError(TransientError):
    """Somebody else has changed the state meanwhile: read it again."""


class StateTable:
    """Reads and replaces the state: `read`, then `write`, which replaces exactly what was read."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._table: Table | None = None

    def read(self) -> WarehouseState | None:
        """None before the first `create`."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - see catalog.py

        with iceberg_errors():
            try:
                self._table = self._catalog.load_table(STATE)
            except NoSuchTableError:
                self._table = None
                return None
        return _state_of(self._table)

    def create(self, state: WarehouseState) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415 - see catalog.py
        from pyiceberg.schema import Schema  # noqa: PLC0415 - see catalog.py
        from pyiceberg.types import NestedField, StringType  # noqa: PLC0415 - see catalog.py

        properties = {
            # A commit that lost the race must fail, and not be tried again on top of the other's.
            "commit.retry.num-retries": "0",
            "write.metadata.previous-versions-max": "10",
            "write.metadata.delete-after-commit.enabled": "true",
        }
        schema = Schema(NestedField(1, "note", StringType(), required=False))
        with iceberg_errors():
            self._catalog.create_namespace_if_not_exists(STATE[0])
            with contextlib.suppress(TableAlreadyExistsError):
                self._catalog.create_table(STATE, schema, properties=properties)
            self._table = self._catalog.load_table(STATE)
        if _state_of(self._table) is None:
            self.write(state)

    def write(self, state: WarehouseState) -> None:
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - see catalog.py

        table = self._known()
        text = msgspec.json.encode(state).decode()
        with iceberg_errors():
            try:
                transaction = table.transaction()
                transaction.update_snapshot(snapshot_properties={_PROPERTY: text}).fast_append().commit()
                self._table = transaction.commit_transaction()
            except CommitFailedException as error:
                raise StateConflictError("The warehouse's state was changed by somebody else meanwhile.") from error
            self._forget_old()

    def _forget_old(self) -> None:
        """Only who writes it looks at it; a race is lost without harm."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - see catalog.py

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
    if (state.prefix, state.store) != (prefix, store):
        raise RefusedError(
            f"This warehouse belongs to store {state.store} of the pipeline {state.prefix}.",
            remedy="Give this store a `path` (and a catalog) of its own.",
        )
