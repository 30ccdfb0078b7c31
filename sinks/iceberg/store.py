"""The warehouse as a store: generations, positions, tables. Spark writes the rows (`spark_jobs/warehouse`).

A generation that does not serve has its tables in separate namespaces (`public__g3`). The switch exchanges the names of
the tables. In a SQL catalog it exchanges all names atomically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import msgspec

from cdc.backoff import Backoff
from cdc.clock import now_ms
from cdc.config import IcebergConfig
from cdc.errors import RefusedError, TransientError
from cdc.stores.contract import (
    Fit,
    Generation,
    Position,
    PositionLostError,
    StoreCheck,
    StoredRow,
    TableSchema,
    TableStore,
    TakenOverError,
)
from sinks.iceberg import naming
from sinks.iceberg.catalog import open_catalog
from sinks.iceberg.checks import check_warehouse
from sinks.iceberg.contents import count_rows, stored_rows
from sinks.iceberg.name_switch import TableMovedError, exchange_tables
from sinks.iceberg.naming import Identifier
from sinks.iceberg.state import Gap, GenerationState, StateConflictError, StateTable, WarehouseState, refuse_foreign
from sinks.iceberg.tables import PIPELINE_PROPERTY, IcebergTables

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_TRIES = 20
_HELD_PAUSE_SECONDS = 0.25
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 1.0


class IcebergStore(TableStore):
    """One configured warehouse."""

    kind: ClassVar[str] = "iceberg"
    spark_writing: ClassVar[str] = "spark_jobs.kinds.warehouse:WarehouseWriting"

    def __init__(self, name: str, settings: IcebergConfig, prefix: str) -> None:
        self.name = name
        self.settings = settings
        self._prefix = prefix
        self._owner: str | None = None

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, opened on first use."""
        return open_catalog(self.settings)

    @cached_property
    def tables(self) -> IcebergTables:
        """The warehouse's tables."""
        return IcebergTables(self.catalog, self.settings)

    @cached_property
    def _state(self) -> StateTable:
        return StateTable(self.catalog)

    def check(self) -> list[StoreCheck]:
        return check_warehouse(self.settings, self.name, self._prefix)

    # -- generations -------------------------------------------------------------------------------------------

    def read_state(self) -> WarehouseState | None:
        """Return the present state. None: none was written yet. Raises RefusedError if another store owns it."""
        found = self._state.read()
        if found is not None:
            refuse_foreign(found, self._prefix, self.name)
        return found

    def state(self) -> WarehouseState:
        """Return the present state, or an empty one if none was written yet."""
        return self.read_state() or WarehouseState(prefix=self._prefix, store=self.name)

    def serving(self) -> Generation | None:
        state = self.state()
        if state.switching is not None:
            self._finish_switch()
            state = self.state()
        return self._generation(state, state.serving) if state.serving in state.generations else None

    def list_generations(self) -> list[Generation]:
        state = self.state()
        return [self._generation(state, number) for number in sorted(state.generations)]

    def create_generation(self, tables: Iterable[TableSchema], pipeline_id: str = "") -> Generation:
        number = 0

        def change(state: WarehouseState) -> WarehouseState:
            nonlocal number
            number = state.next_number
            made = GenerationState(created_ms=now_ms(), position=Position(pipeline_id=pipeline_id))
            return msgspec.structs.replace(
                state, next_number=number + 1, generations={**state.generations, number: made}
            )

        if self._state.read() is None:
            self._state.create(WarehouseState(prefix=self._prefix, store=self.name))
        state = self.change(change)
        for table in tables:
            self.tables.create_generation_table(table, number)
            self._note_table(number, table)
            self.tables.ensure_history(table, pipeline_id)
        return self._generation(state, number)

    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        name = self.table_name(generation, table)
        known = self._known(self.state(), generation.number)
        self.tables.ensure_history(table, known.position.pipeline_id)
        if self.tables.load(name) is None:
            if table.topic in known.topics:
                raise PositionLostError(f"The warehouse's table {'.'.join(name)} is gone.")
            self.tables.create_generation_table(table, generation.number)
            if name == naming.current_table(table):
                exchange_tables(self.catalog, [(naming.generation_table(table, generation.number), name)])
            self._note_table(generation.number, table)
            return Fit.READY
        return self.tables.ensure(name, table)

    def table_name(self, generation: Generation, table: TableSchema) -> Identifier:
        """Return the present name of the table's current rows in this generation."""
        serves = self.state().serving == generation.number
        return naming.current_table(table) if serves else naming.generation_table(table, generation.number)

    def settle(self, generation: Generation) -> Generation:
        def change(state: WarehouseState) -> WarehouseState:
            return _with(state, generation.number, state="settled")

        return self._generation(self.change(change), generation.number)

    def switch(self, generation: Generation) -> None:
        """Record the switch, then exchange the names. After a crash in between, the next client completes it."""
        self.change(lambda state: msgspec.structs.replace(state, switching=generation.number))
        self._finish_switch()

    def _finish_switch(self) -> None:
        """Complete a recorded switch. Other clients, including readers, may complete it at the same time."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        for _ in range(_TRIES):
            state = self.read_state()
            if state is None or state.switching is None:
                return
            try:
                self._exchange_and_record(state, state.switching)
                return
            except TableMovedError:
                time.sleep(backoff.next_delay())
        raise TransientError("Other clients keep moving the warehouse's tables.")

    def _exchange_and_record(self, state: WarehouseState, number: int) -> None:
        old = state.serving
        pairs = [
            ((name, table), (name.rpartition("__g")[0], table))
            for name in self._namespaces(number)
            for _, table in self.catalog.list_tables(name)
        ]
        if number != old:
            exchange_tables(self.catalog, pairs, aside=None if old is None else lambda base: f"{base}__g{old}")

        def change(state: WarehouseState) -> WarehouseState:
            if state.switching != number:
                return state
            position = _resumed(state, number, old)
            settled = _with(state, number, state="settled", position=position, resumes=False)
            return msgspec.structs.replace(settled, serving=number, switching=None)

        self.change(change)

    def _namespaces(self, number: int) -> list[str]:
        names = [name[0] for name in self.catalog.list_namespaces()]
        return [name for name in names if naming.generation_of(name) == number]

    def drop(self, generation: Generation) -> None:
        if self.state().serving == generation.number:
            raise RefusedError(
                f"Generation {generation.number} serves readers and cannot be dropped.",
                remedy="Switch to another generation first.",
            )

        def change(state: WarehouseState) -> WarehouseState:
            kept = {number: each for number, each in state.generations.items() if number != generation.number}
            return msgspec.structs.replace(state, generations=kept)

        self.change(change)
        for name in self._namespaces(generation.number):
            for table in self.catalog.list_tables(name):
                self.tables.drop((name, table[-1]))
            self.catalog.drop_namespace(name)

    # -- positions ---------------------------------------------------------------------------------------------

    def position(self, generation: Generation) -> Position | None:
        found = self.state().generations.get(generation.number)
        return found.position if found is not None and found.created_ms == generation.created_ms else None

    def take(self, generation: Generation, owner: str) -> Position:
        def change(state: WarehouseState) -> WarehouseState:
            known = self._known(state, generation.number)
            return _with(state, generation.number, position=msgspec.structs.replace(known.position, owner=owner))

        state = self.change(change)
        self._owner = owner
        return state.generations[generation.number].position

    def save_position(self, generation: Generation, position: Position) -> Position:
        saved = msgspec.structs.replace(position, owner=self._owner or "", written_ms=now_ms())

        def change(state: WarehouseState) -> WarehouseState:
            self._refuse_other_owner(state, generation)
            return _with(state, generation.number, position=saved)

        self.change(change)
        return saved

    def confirm_owner(self, generation: Generation) -> None:
        """Raise TakenOverError if another driver owns the generation. No effect before `take`.

        The driver calls this before each statement, so that a driver that was suspended writes nothing more.
        """
        if self._owner is not None:
            self._refuse_other_owner(self.state(), generation)

    def _refuse_other_owner(self, state: WarehouseState, generation: Generation) -> None:
        if self._known(state, generation.number).position.owner != self._owner:
            raise TakenOverError(
                "Another sync has taken over the warehouse.",
                remedy="Only one may run for each store: stop the other one, then start again.",
            )

    def note_markers(self, markers: dict[str, str]) -> None:
        """Record the TRUNCATE markers that were applied to the history."""

        def change(state: WarehouseState) -> WarehouseState:
            newest = {topic: max(stamp, state.markers.get(topic, "")) for topic, stamp in markers.items()}
            return msgspec.structs.replace(state, markers={**state.markers, **newest})

        self.change(change)

    def resume_history(self, generation: Generation) -> None:
        """Let the history continue from the old generation's position at the switch, so that it gets no gap."""
        self.change(lambda state: _with(state, generation.number, resumes=True))

    def set_histories_aside(self, pipeline_id: str, unnamed: str) -> list[Identifier]:
        """Rename the histories of other pipelines, and return the new names. They keep their contents.

        `unnamed` is the pipeline id for a history without an id. An empty history is dropped, so that this pipeline
        creates its own under the same name.
        """
        moved = []
        for namespace, *_ in self.catalog.list_namespaces():
            for _, table in self.catalog.list_tables(namespace) if naming.is_history(namespace) else ():
                name = (namespace, table)
                history = self.tables.load(name)
                whose = history.properties.get(PIPELINE_PROPERTY, unnamed) if history is not None else pipeline_id
                if history is not None and whose != pipeline_id:
                    if history.current_snapshot() is None:
                        self.tables.drop(name)
                        continue
                    moved.append((name, naming.earlier_history(name, whose)))
        if moved:
            self.change(lambda state: msgspec.structs.replace(state, markers={}, gaps=()))
            exchange_tables(self.catalog, moved)
        return [to for _, to in moved]

    def note_gaps(self, gaps: Iterable[Gap]) -> None:
        """Record gaps of the history."""
        added = tuple(gaps)
        if added:
            self.change(lambda state: msgspec.structs.replace(state, gaps=(*state.gaps, *added)))

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Keep syncs from starting a batch during the `with` block.

        The hold expires after `seconds`, even if the process that holds it has crashed.
        """
        self.change(lambda state: msgspec.structs.replace(state, held_until_ms=now_ms() + int(seconds * 1000)))
        try:
            yield
        finally:
            self.change(lambda state: msgspec.structs.replace(state, held_until_ms=0))

    def wait_while_held(self) -> None:
        """Wait until no process holds the tables (see `held`)."""
        while self.state().held_until_ms > now_ms():
            time.sleep(_HELD_PAUSE_SECONDS)

    def change(self, change: Callable[[WarehouseState], WarehouseState]) -> WarehouseState:
        """Read the state, apply `change`, and write the result. Retries if another process writes at the same time."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        for _ in range(_TRIES):
            state = self.state()
            changed = change(state)
            try:
                if changed != state:
                    self._state.write(changed)
                return changed
            except StateConflictError:
                time.sleep(backoff.next_delay())
        raise TransientError("Other processes keep changing the warehouse's state.")

    # -- rows --------------------------------------------------------------------------------------------------

    def count(self, generation: Generation, table: TableSchema) -> int:
        found = self.tables.load(self.table_name(generation, table))
        return 0 if found is None else count_rows(found)

    def contents(
        self,
        generation: Generation,
        table: TableSchema,
        *,
        tombstones: bool = False,  # noqa: ARG002 - deletes are only in the history
    ) -> Iterator[StoredRow]:
        found = self.tables.load(self.table_name(generation, table))
        if found is not None:
            yield from stored_rows(found, table, self.tables.columns(table))

    def close(self) -> None:
        engine = getattr(self.__dict__.get("catalog"), "engine", None)
        if engine is not None:
            engine.dispose()

    def _note_table(self, number: int, table: TableSchema) -> None:
        def change(state: WarehouseState) -> WarehouseState:
            topics = self._known(state, number).topics
            return _with(state, number, topics=tuple(sorted({*topics, table.topic})))

        self.change(change)

    def _known(self, state: WarehouseState, number: int) -> GenerationState:
        known = state.generations.get(number)
        if known is None:
            raise PositionLostError(f"The warehouse has no generation {number} any more.")
        return known

    def _generation(self, state: WarehouseState, number: int | None) -> Generation:
        known = self._known(state, number or 0)
        return Generation(number or 0, known.created_ms, "loading" if known.state == "loading" else "settled")


def _with(state: WarehouseState, number: int, /, **changes: object) -> WarehouseState:
    known = state.generations.get(number)
    if known is None:
        raise PositionLostError(f"The warehouse has no generation {number} any more.")
    changed = msgspec.structs.replace(known, **changes)
    return msgspec.structs.replace(state, generations={**state.generations, number: changed})


def _resumed(state: WarehouseState, number: int, old: int | None) -> Position:
    """Return the position after a switch: for each partition the smaller offset of the two generations.

    Records that are applied again change nothing.
    """
    new, before = state.generations[number], state.generations.get(old or 0)
    if before is None or not new.resumes:
        return new.position
    topics = dict(new.position.topics)
    for topic, place in before.position.topics.items():
        if topic in topics and topics[topic].topic_id == place.topic_id:
            offsets = tuple(map(min, topics[topic].next_offsets, place.next_offsets))
            topics[topic] = msgspec.structs.replace(topics[topic], next_offsets=offsets)
    return msgspec.structs.replace(new.position, topics=topics)
