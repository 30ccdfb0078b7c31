"""The re-select against a real server: while tables move under it, and with rows of every width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cdc.postgres import connect
from cdc.records import Held, Record
from cdc.reselect import Reselect
from tests.harness.changes import INT8, TEXT, Feed, make_table, value_of
from tests.harness.database import Connection, Database
from tests.harness.pgoutput import LEFT_OUT, Cells, update
from tests.harness.waiting import eventually

COLUMNS = [("id", INT8, True), ("n", INT8, False), ("big", TEXT, False)]
# How a migration that the question waits for may leave the table, and what the event's column holds then.
MIGRATIONS = {
    "column renamed": ("ALTER TABLE t RENAME big TO body", None),
    "column dropped": ("ALTER TABLE t DROP big", None),
    "column retyped": ("ALTER TABLE t ALTER big TYPE bytea USING big::bytea", None),
    "another column retyped": ("ALTER TABLE t ALTER n TYPE numeric", "old 1"),
    "renamed": ("ALTER TABLE t RENAME TO moved", "old 1"),
    "moved to another schema": ("CREATE SCHEMA other; ALTER TABLE t SET SCHEMA other", "old 1"),
    "swapped with another": (
        "CREATE TABLE fresh (LIKE t INCLUDING ALL); INSERT INTO fresh VALUES (1, 0, 'of another table');"
        "ALTER TABLE t RENAME TO old; ALTER TABLE fresh RENAME TO t",
        "old 1",
    ),
    "put behind a view": ("ALTER TABLE t RENAME TO base; CREATE VIEW t AS SELECT * FROM base", "old 1"),
}


@pytest.fixture
def reselect(database: Database) -> Iterator[Reselect]:
    made = Reselect(lambda: connect(database.dsn, application_name="re-select"), stop=lambda: False)
    yield made
    made.close()


def _waiting(database: Database, *rows: Cells) -> Held:
    """Updates of t that left `big` out, as the stream would bring them: all by one transaction that is through."""
    ((oid, xid),) = database.execute("SELECT 't'::regclass::oid::int8, pg_current_xact_id()::text::int8")
    feed = Feed(make_table(oid, "t", COLUMNS))
    feed.transaction(0x5000, *(update(oid, row) for row in rows), xid=xid % (1 << 32))
    return feed.changes.held


def _rows(database: Database, count: int, value: str) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, n bigint, big text)")
    database.execute(f"INSERT INTO t SELECT i, 0, {value} FROM generate_series(1, {count}) i")


def _while_locked(database: Database, reselect: Reselect, held: Held, migration: str) -> list[Record]:
    """The migration is under way when the question comes, and is through before it is answered."""
    migrating: Connection = database.connect(autocommit=False)
    migrating.execute(migration)
    with ThreadPoolExecutor(1) as pool:
        asked: Future[list[Record]] = pool.submit(lambda: list(reselect.complete(held)))
        waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 're-select' AND wait_event_type = 'Lock'"
        eventually(lambda: database.execute(waits) or asked.done(), 30, "the question to wait for the lock")
        migrating.commit()
        return asked.result(60)


@pytest.mark.parametrize("name", MIGRATIONS)
def test_a_migration_that_holds_the_table_is_waited_for(database: Database, reselect: Reselect, name: str) -> None:
    """The question is put to the table as it is afterwards, under whatever name; ordinary DDL is no reason to stop."""
    _rows(database, 1, "'old ' || i")
    migration, expected = MIGRATIONS[name]
    (record,) = _while_locked(database, reselect, _waiting(database, ["1", "1", LEFT_OUT]), migration)
    assert value_of(record)["after"] == {"id": 1, "n": 1, "big": expected}


@pytest.mark.parametrize("migration", ["DROP TABLE t", "TRUNCATE t", "DROP TABLE t; CREATE VIEW t AS SELECT 1 AS id"])
def test_rows_that_a_migration_took_away_are_left_out(database: Database, reselect: Reselect, migration: str) -> None:
    """A later event says so."""
    _rows(database, 1, "'old'")
    assert _while_locked(database, reselect, _waiting(database, ["1", "1", LEFT_OUT]), migration) == []


def test_tables_that_move_while_they_are_asked_for(database: Database, reselect: Reselect) -> None:
    """Renamed back and forth all the time: every answer is the table's own."""
    _rows(database, 3, "'old ' || i")
    held = _waiting(database, ["1", "1", LEFT_OUT], ["2", "1", LEFT_OUT], ["3", "1", LEFT_OUT])
    migrating = database.connect()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [list(reselect.complete(held)) for _ in range(60)])
        while not asked.done():
            migrating.execute("ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME big TO body")
            migrating.execute("ALTER TABLE u RENAME TO t; ALTER TABLE t RENAME body TO big")
    for records in asked.result():
        assert [json.loads(record.key)["id"] for record in records] == [1, 2, 3]
        assert all(value_of(each)["after"]["big"] in (f"old {n}", None) for n, each in enumerate(records, start=1))
