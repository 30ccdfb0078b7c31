"""SQLite as a store of Tailrace: the rows of every generation in one table, guarded by their versions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from cdc.config import SyncedStoreConfig
from cdc.config.settings import about
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.stores.contract import (
    POSITION_FORMAT,
    Change,
    Fit,
    Generation,
    Position,
    PositionLostError,
    Rejected,
    RowStore,
    StoreCheck,
    StoredRow,
    TableSchema,
    position_changed_error,
    refuse_newer,
)
from cdc.stores.scan import Forced, ReadSlice, RowScan

_TABLES = """
create table if not exists generations (number integer primary key, created_ms int, state text, serving int default 0);
create table if not exists positions (number int primary key, position text);
create table if not exists keys (number int, topic text, key text, primary key (number, topic));
create table if not exists markers (number int, topic text, version text, primary key (number, topic));
create table if not exists rows (number int, topic text, id text, version text, row blob, deleted_ms int,
                                 primary key (number, topic, id)) without rowid;
"""
# A version's text sorts like the version. An equal version is written again, a smaller one is not.
_UPSERT = (
    "insert into rows select ?1, ?2, ?3, ?4, ?5, ?6"
    " where ?4 >= coalesce((select version from markers where number = ?1 and topic = ?2), '')"
    " on conflict do update set version = excluded.version, row = excluded.row, deleted_ms = excluded.deleted_ms"
    " where excluded.version >= rows.version"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteConfig(SyncedStoreConfig):
    """The keys of `[stores.NAME]` with kind = sqlite, besides those of every kind."""

    kind: Literal["sqlite"] = field(default="sqlite", metadata=about("Kind of store"))
    path: Path = field(metadata=about("The database file"))


@dataclass(frozen=True, slots=True)
class SqliteWriterFactory:
    path: Path
    number: int

    def __call__(self) -> SqliteWriter:
        return SqliteWriter(self.path, self.number)


class SqliteWriter:
    def __init__(self, path: Path, number: int) -> None:
        self._db = _connect(path)
        self._number = number

    def apply(self, table: TableSchema, changes: Sequence[Change]) -> list[Rejected]:
        with _transaction(self._db):
            _refuse_gone(self._db, self._number)
            self._db.executemany(_UPSERT, [_values(self._number, table, each) for each in changes])
        return []

    def truncate(self, table: TableSchema, version: Version) -> int:
        place = {"number": self._number, "topic": table.topic, "version": str(version), "now": _now_ms()}
        with _transaction(self._db):
            _refuse_gone(self._db, self._number)
            self._db.execute(
                "insert into markers values (:number, :topic, :version)"
                " on conflict do update set version = max(version, excluded.version)",
                place,
            )
            return self._db.execute(
                "update rows set row = null, version = :version, deleted_ms = :now"
                " where number = :number and topic = :topic and version < :version and row is not null",
                place,
            ).rowcount

    def close(self) -> None:
        self._db.close()


class SqliteStore(RowStore):
    kind: ClassVar[str] = "sqlite"

    def __init__(self, name: str, settings: SqliteConfig, prefix: str) -> None:
        self._path = settings.path
        self._db = _connect(self._path)
        self._saved: dict[int, str] = {}

    def check(self) -> list[StoreCheck]:
        return [StoreCheck("ok", f"SQLite {sqlite3.sqlite_version}")]

    def serving(self) -> Generation | None:
        return next(iter(self._generations("where serving")), None)

    def list_generations(self) -> list[Generation]:
        return self._generations("order by number")

    def create_generation(self, tables: Iterable[TableSchema], pipeline_id: str = "") -> Generation:
        with _transaction(self._db):
            ((last,),) = self._db.execute("select coalesce(max(number), 0) from generations")
            made = Generation(last + 1, _now_ms(), "loading")
            self._db.execute("insert into generations (number, created_ms, state) values (?, ?, ?)", made)
            empty = _text(Position(pipeline_id=pipeline_id))
            self._db.execute("insert into positions values (?, ?)", (made.number, empty))
        for table in tables:
            self.ensure_table(made, table)
        return made

    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        key = (generation.number, table.topic, _text(table.key))
        self._db.execute("insert or ignore into keys values (?, ?, ?)", key)
        known = self._db.execute("select 1 from keys where number = ? and topic = ? and key = ?", key).fetchone()
        return Fit.READY if known else Fit.NEEDS_GENERATION

    def settle(self, generation: Generation) -> Generation:
        self._db.execute("update generations set state = 'settled' where number = ?", (generation.number,))
        return generation._replace(state="settled")

    def switch(self, generation: Generation) -> None:
        self.settle(generation)
        with _transaction(self._db):
            _refuse_gone(self._db, generation.number)
            self._db.execute("update generations set serving = (number = ?)", (generation.number,))

    def drop(self, generation: Generation) -> None:
        serving = self.serving()
        if serving is not None and serving.number == generation.number:
            raise RefusedError(f"{generation} serves readers and cannot be dropped.")
        with _transaction(self._db):
            for table in ("generations", "positions", "keys", "markers", "rows"):
                self._db.execute(f"delete from {table} where number = ?", (generation.number,))

    def position(self, generation: Generation) -> Position | None:
        text = self._stored(generation)
        return None if text is None else _position(text)

    def take(self, generation: Generation, owner: str) -> Position:
        with _transaction(self._db):
            mine = msgspec.structs.replace(_position(self._existing(generation)), owner=owner)
            self._replace(generation, _text(mine))
        return mine

    def save_position(self, generation: Generation, position: Position) -> Position:
        saved = self._saved[generation.number]
        mine = _position(saved)
        new = msgspec.structs.replace(position, owner=mine.owner, format=POSITION_FORMAT, written_ms=_now_ms())
        with _transaction(self._db):
            found = self._existing(generation)
            if found != saved:
                raise position_changed_error(_position(found), mine)
            self._replace(generation, _text(new))
        return new

    def writer_factory(self, generation: Generation) -> SqliteWriterFactory:
        return SqliteWriterFactory(self._path, generation.number)

    def reap(self, generation: Generation, below: Version, grace_seconds: float | None = None) -> int:
        oldest = _now_ms() - int((86_400 if grace_seconds is None else grace_seconds) * 1000)
        return self._db.execute(
            "delete from rows where number = ? and row is null and version < ? and deleted_ms <= ?",
            (generation.number, str(below), oldest),
        ).rowcount

    def contents(self, generation: Generation, table: TableSchema, *, tombstones: bool = False) -> Iterator[StoredRow]:
        yield from _read(self._db, generation, table, "" if tombstones else "and row is not null")

    def close(self) -> None:
        self._db.close()

    def _generations(self, rest: str) -> list[Generation]:
        found = self._db.execute(f"select number, created_ms, state from generations {rest}")
        return [Generation(*row) for row in found]

    def _stored(self, generation: Generation) -> str | None:
        found = self._db.execute("select position from positions where number = ?", (generation.number,)).fetchone()
        return found[0] if found else None

    def _existing(self, generation: Generation) -> str:
        found = self._stored(generation)
        if found is None:
            raise PositionLostError(f"{generation} of the store is gone.")
        return found

    def _replace(self, generation: Generation, text: str) -> None:
        self._db.execute("update positions set position = ? where number = ?", (text, generation.number))
        self._saved[generation.number] = text


@dataclass(frozen=True, slots=True)
class SqliteSlice:
    """Reads a whole table, in one query and so at one point in time."""

    path: Path
    generation: Generation
    table: TableSchema

    def __call__(self) -> Iterator[list[StoredRow]]:
        db = _connect(self.path)
        try:
            yield list(_read(db, self.generation, self.table, "and row is not null"))
        finally:
            db.close()


class SqliteScan(RowScan):
    def __init__(self, name: str, settings: SqliteConfig, prefix: str, generation: Generation) -> None:
        self._path = settings.path
        self._db = _connect(self._path)
        self._generation = generation

    @contextmanager
    def slices(self, table: TableSchema, count: int) -> Iterator[list[ReadSlice]]:
        yield [SqliteSlice(self._path, self._generation, table)]

    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        wanted = _text(list(ids))
        found = _read(self._db, self._generation, table, "and id in (select value from json_each(?))", wanted)
        return {row.id: row for row in found}

    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        rest = "and row is not null order by random() limit ?"
        return list(_read(self._db, self._generation, table, rest, count))

    def force(self, table: TableSchema, forced: Sequence[Forced]) -> None:
        number = self._generation.number
        with _transaction(self._db):
            for held, change in forced:
                if held is not None:
                    same = "number = ? and topic = ? and id = ? and version = ?"
                    place = (number, table.topic, held.id, str(held.version))
                    self._db.execute(f"delete from rows where {same}", place)
                if change.row is not None:
                    self._db.execute(_UPSERT, _values(number, table, change))

    def close(self) -> None:
        self._db.close()


def _connect(path: Path) -> sqlite3.Connection:
    # Autocommit: `_transaction` begins and ends every transaction. `synchronous = full` makes a commit durable.
    connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    connection.executescript("pragma journal_mode = wal; pragma synchronous = full;" + _TABLES)
    return connection


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction, which locks the database before it reads."""
    try:
        db.execute("begin immediate")
    except sqlite3.OperationalError as error:
        raise TransientError(f"SQLite cannot be written now: {error}.") from error
    try:
        yield
    except BaseException:
        db.execute("rollback")
        raise
    db.execute("commit")


def _read(
    db: sqlite3.Connection, generation: Generation, table: TableSchema, rest: str, *more: object
) -> Iterator[StoredRow]:
    # Another program may have written a row as text.
    query = f"select id, version, cast(row as blob) from rows where number = ? and topic = ? {rest}"
    for row_id, version, row in db.execute(query, (generation.number, table.topic, *more)):
        yield StoredRow(row_id, Version.parse(version), row)


def _values(number: int, table: TableSchema, change: Change) -> tuple[object, ...]:
    deleted_ms = _now_ms() if change.row is None else None
    return number, table.topic, change.id, str(change.version), change.row, deleted_ms


def _refuse_gone(db: sqlite3.Connection, number: int) -> None:
    if db.execute("select 1 from generations where number = ?", (number,)).fetchone() is None:
        raise PositionLostError(f"Generation {number} of the store is gone.")


def _position(text: str) -> Position:
    refuse_newer(msgspec.json.decode(text).get("format"), POSITION_FORMAT, "the store's position")
    return msgspec.json.decode(text, type=Position)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
