"""The warehouse as a store: generations, positions, tables. Rows come and go by Spark (`spark_jobs/warehouse`).

A generation that does not serve has its tables in namespaces of its own (`public__g3`); the switch exchanges what the
names point at, for all tables at once where the catalog is a database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import msgspec

from cdc.config import IcebergConfig
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.stores.contract import (
    Fit,
    Generation,
    Position,
    PositionLostError,
    Store,
    StoreCheck,
    StoredRow,
    TableSchema,
    TakenOverError,
    WriterFactory,
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


class IcebergStore(Store):
    kind: ClassVar[str] = "iceberg"
    rebuilds_in_place: ClassVar[bool] = False

    def __init__(self, name: str, settings: IcebergConfig, prefix: str) -> None:
        self.name = name
        self.settings = settings
        self._prefix = prefix
        self._owner: str | None = None

    @cached_property
    def catalog(self) -> Catalog:
        return open_catalog(self.settings)

    @cached_property
    def tables(self) -> IcebergTables:
        return IcebergTables(self.catalog, self.settings)

    @cached_property
    def _state(self) -> StateTable:
        return StateTable(self.catalog)

    def check(self) -> list[StoreCheck]:
        return check_warehouse(self.settings, self.name, self._prefix)

    # -- generations -------------------------------------------------------------------------------------------

    def read_state(self) -> WarehouseState | None:
        found = self._state.read()
        if found is not None:
            refuse_foreign(found, self._prefix, self.name)
        return found

    def state(self) -> WarehouseState:
        """As it is now; empty before anything was built."""
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
            made = GenerationState(created_ms=_now_ms(), position=Position(pipeline_id=pipeline_id))
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
        """Where the generation's rows of the table are now."""
        serves = self.state().serving == generation.number
        return naming.current_table(table) if serves else naming.generation_table(table, generation.number)

    def settle(self, generation: Generation) -> Generation:
        def change(state: WarehouseState) -> WarehouseState:
            return _with(state, generation.number, state="settled")

        return self._generation(self.change(change), generation.number)

    def switch(self, generation: Generation) -> None:
        """Written down first: whoever comes after a crash in between ends it."""
        self.change(lambda state: msgspec.structs.replace(state, switching=generation.number))
        self._finish_switch()

    def _finish_switch(self) -> None:
        """Other clients, readers included, may end the same switch at the same time."""
        for attempt in range(_TRIES):
            state = self.read_state()
            if state is None or state.switching is None:
                return
            try:
                self._exchange_and_record(state, state.switching)
                return
            except TableMovedError:
                time.sleep(min(0.02 * 2**attempt, 1.0))
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
            raise RefusedError(f"Generation {generation.number} serves.", remedy="Switch to another one first.")

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
        saved = msgspec.structs.replace(position, owner=self._owner or "", written_ms=_now_ms())

        def change(state: WarehouseState) -> WarehouseState:
            self._refuse_other_owner(state, generation)
            return _with(state, generation.number, position=saved)

        self.change(change)
        return saved

    def confirm_owner(self, generation: Generation) -> None:
        """Before each statement: a driver that has slept does nothing more."""
        if self._owner is not None:
            self._refuse_other_owner(self.state(), generation)

    def _refuse_other_owner(self, state: WarehouseState, generation: Generation) -> None:
        if self._known(state, generation.number).position.owner != self._owner:
            raise TakenOverError(
                "Another sync has taken over the warehouse.",
                remedy="Only one may run for each store: stop the other one, then start again.",
            )

    def note_markers(self, markers: dict[str, str]) -> None:
        """TRUNCATEs that the history has been swept for."""

        def change(state: WarehouseState) -> WarehouseState:
            newest = {topic: max(stamp, state.markers.get(topic, "")) for topic, stamp in markers.items()}
            return msgspec.structs.replace(state, markers={**state.markers, **newest})

        self.change(change)

    def resume_history(self, generation: Generation) -> None:
        """After the switch nothing of the history may be left out: it goes on where the old generation stands then."""
        self.change(lambda state: _with(state, generation.number, resumes=True))

    def set_histories_aside(self, pipeline_id: str, unnamed: str) -> list[Identifier]:
        """Histories of other pipelines get another name, with all that they hold; gives the new names.

        `unnamed`: whose a history without an id is. A history that has nothing in it becomes this pipeline's.
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
        added = tuple(gaps)
        if added:
            self.change(lambda state: msgspec.structs.replace(state, gaps=(*state.gaps, *added)))

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """No sync begins a batch meanwhile; not for longer than this, whatever becomes of the holder."""
        self.change(lambda state: msgspec.structs.replace(state, held_until_ms=_now_ms() + int(seconds * 1000)))
        try:
            yield
        finally:
            self.change(lambda state: msgspec.structs.replace(state, held_until_ms=0))

    def wait_while_held(self) -> None:
        while self.state().held_until_ms > _now_ms():
            time.sleep(_HELD_PAUSE_SECONDS)

    def publish(self, _generation: Generation, _tables: Iterable[TableSchema]) -> None:
        """A commit is visible at once."""

    def change(self, change: Callable[[WarehouseState], WarehouseState]) -> WarehouseState:
        """Read, change, write; once more where somebody else was quicker."""
        for attempt in range(_TRIES):
            state = self.state()
            changed = change(state)
            try:
                if changed != state:
                    self._state.write(changed)
                return changed
            except StateConflictError:
                time.sleep(min(0.02 * 2**attempt, 1.0))
        raise TransientError("The warehouse's state is changed by others all the time.")

    # -- rows --------------------------------------------------------------------------------------------------

    def writer_factory(self, _generation: Generation) -> WriterFactory:
        raise RefusedError(
            f"Rows of the warehouse {self.name} are written by Spark, not one by one.",
            remedy=f"A bootstrap takes parked rows again: tailrace bootstrap {self.name}",
        )

    def reap(self, _generation: Generation, _below: Version, _grace_seconds: float | None = None) -> int:
        """Deletes are versions of the history, and stay."""
        return 0

    def delete_stale_rows(self, _generation: Generation, _table: TableSchema, _below: Version) -> int:
        raise RefusedError("The warehouse is not rebuilt in place.")

    def count(self, generation: Generation, table: TableSchema) -> int:
        found = self.tables.load(self.table_name(generation, table))
        return 0 if found is None else count_rows(found)

    def contents(
        self,
        generation: Generation,
        table: TableSchema,
        *,
        tombstones: bool = False,  # noqa: ARG002 - deletes are in the history, not here
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
    """The lesser offset of both, partition by partition: what comes again changes nothing."""
    new, before = state.generations[number], state.generations.get(old or 0)
    if before is None or not new.resumes:
        return new.position
    topics = dict(new.position.topics)
    for topic, place in before.position.topics.items():
        if topic in topics and topics[topic].topic_id == place.topic_id:
            offsets = tuple(map(min, topics[topic].next_offsets, place.next_offsets))
            topics[topic] = msgspec.structs.replace(topics[topic], next_offsets=offsets)
    return msgspec.structs.replace(new.position, topics=topics)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
