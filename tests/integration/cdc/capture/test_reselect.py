"""The re-select against a real server: while tables are altered, and with rows of every width."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cdc.capture.reselect import Reselect
from cdc.encoding.incomplete_event import Held
from cdc.kafka.record import Record
from cdc.postgres.connection import connect
from tests.harness.pipeline.event_rules import INT8, TEXT, Feed, make_table, value_of
from tests.harness.postgres.database import Connection, Database
from tests.harness.postgres.pgoutput import LEFT_OUT, Cells, update
from tests.harness.processes.waiting import eventually

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
    """Updates of t without `big`, as the stream brings them, in one transaction that has committed."""
    ((oid, xid),) = database.execute("SELECT 't'::regclass::oid::int8, pg_current_xact_id()::text::int8")
    feed = Feed(make_table(oid, "t", COLUMNS))
    feed.transaction(0x5000, *(update(oid, row) for row in rows), xid=xid % (1 << 32))
    return feed.queue.held


def _rows(database: Database, count: int, value: str) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, n bigint, big text)")
    database.execute(f"INSERT INTO t SELECT i, 0, {value} FROM generate_series(1, {count}) i")


def _while_locked(database: Database, reselect: Reselect, held: Held, migration: str) -> list[Record]:
    """Hold the migration's lock when the query starts, and commit the migration before it is answered."""
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
    """The re-select waits for the lock and queries the table as the migration left it, under its new name."""
    _rows(database, 1, "'old ' || i")
    migration, expected = MIGRATIONS[name]
    (record,) = _while_locked(database, reselect, _waiting(database, ["1", "1", LEFT_OUT]), migration)
    assert value_of(record)["after"] == {"id": 1, "n": 1, "big": expected}


@pytest.mark.parametrize("migration", ["DROP TABLE t", "TRUNCATE t", "DROP TABLE t; CREATE VIEW t AS SELECT 1 AS id"])
def test_rows_that_a_migration_took_away_are_left_out(database: Database, reselect: Reselect, migration: str) -> None:
    """A row that a migration removed is left out; a later event covers it."""
    _rows(database, 1, "'old'")
    assert _while_locked(database, reselect, _waiting(database, ["1", "1", LEFT_OUT]), migration) == []


def test_tables_renamed_during_the_query_give_their_own_rows(database: Database, reselect: Reselect) -> None:
    """While two tables swap names repeatedly, every answer comes from the right table."""
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


# -- size --------------------------------------------------------------------------------------------------------------

MIB = 1 << 20
# The values, and what rendering one record of 1 MiB takes for a moment.
MOST_BYTES = 8 * MIB + 20 * MIB


def _updates(count: int) -> list[Cells]:
    return [[str(number), "1", LEFT_OUT] for number in range(1, count + 1)]


def _completed(reselect: Reselect, held: Held) -> tuple[list[int], int]:
    """The rows' numbers, and the most Python bytes allocated at once; each record is released when it arrives."""
    tracemalloc.start()
    try:
        numbers = [json.loads(record.key)["id"] for record in reselect.complete(held)]
        return numbers, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value", ["repeat('x', 1 << 20)", "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 32768) n)"]
)
def test_wide_rows_are_not_all_fetched_at_once(database: Database, reselect: Reselect, value: str) -> None:
    """The re-select fetches about 8 MiB of values at a time, compressible or not, and completes every row."""
    _rows(database, 60, value)
    held = _waiting(database, *_updates(60))
    numbers, peak = _completed(reselect, held)
    assert numbers == list(range(1, 61))
    assert peak < MOST_BYTES


def test_a_row_that_is_larger_than_the_room_for_it_is_completed(database: Database, reselect: Reselect) -> None:
    """A row that is larger than the limit is fetched alone."""
    _rows(database, 3, "CASE i WHEN 2 THEN repeat('y', 20 << 20) ELSE 'small' END")
    records = list(reselect.complete(_waiting(database, *_updates(3))))
    assert [len(value_of(record)["after"]["big"]) for record in records] == [5, 20 * MIB, 5]


def test_narrow_rows_before_wide_ones_do_not_raise_the_memory(database: Database, reselect: Reselect) -> None:
    """Narrow first rows do not make the re-select fetch too many wide ones at once."""
    _rows(database, 2000, "CASE WHEN i > 1500 THEN repeat('z', 200000) ELSE 'small' END")
    numbers, peak = _completed(reselect, _waiting(database, *_updates(2000)))
    assert numbers == list(range(1, 2001))
    assert peak < MOST_BYTES


def test_deleted_rows_are_told_from_rows_that_did_not_fit(database: Database, reselect: Reselect) -> None:
    """Only rows that no longer exist are left out, at any place."""
    _rows(database, 40, "repeat('x', 1 << 20)")
    held = _waiting(database, *_updates(40))
    database.execute("DELETE FROM t WHERE id % 3 = 1 OR id BETWEEN 20 AND 30")
    expected = [number for (number,) in database.execute("SELECT id FROM t ORDER BY id")]
    assert _completed(reselect, held)[0] == expected


def test_wide_rows_of_several_tables_keep_their_order(database: Database, reselect: Reselect) -> None:
    """Rows of several tables share the limit, and rows that did not fit are queried again."""
    for name in ("left", "right"):
        database.execute(f'CREATE TABLE "{name}" (id bigint PRIMARY KEY, n bigint, big text)')
        database.execute(f"INSERT INTO \"{name}\" SELECT i, 0, repeat('x', 1 << 20) FROM generate_series(1, 20) i")
    ((left, right, xid),) = database.execute(
        "SELECT '\"left\"'::regclass::oid::int8, '\"right\"'::regclass::oid::int8, pg_current_xact_id()::text::int8"
    )
    feed = Feed(make_table(left, "left", COLUMNS), make_table(right, "right", COLUMNS))
    rows = [update(oid, [str(n), "1", LEFT_OUT]) for n in range(1, 21) for oid in (left, right)]
    feed.transaction(0x5000, *rows, xid=xid % (1 << 32))
    numbers, peak = _completed(reselect, feed.queue.held)
    assert numbers == [n for n in range(1, 21) for _ in range(2)]
    assert peak < MOST_BYTES


def test_a_key_that_is_no_value_of_its_type_any_more_has_no_row(database: Database, reselect: Reselect) -> None:
    """An event whose key is no longer valid, as after an enum label was renamed, is left out, and the others are
    completed.
    """
    _rows(database, 3, "'old ' || i")
    beyond = [["99999999999999999999", "1", LEFT_OUT]]
    held = _waiting(database, *_updates(1), *beyond, *_updates(3)[1:], *beyond)
    assert _completed(reselect, held)[0] == [1, 2, 3]
