"""The re-select against a real server: while tables move under it, and with rows of every width."""

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
from tests.harness.database import Connection, Database
from tests.harness.event_rules import INT8, TEXT, Feed, make_table, value_of
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
    return feed.queue.held


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


# -- size --------------------------------------------------------------------------------------------------------------

MIB = 1 << 20
# The values, and what rendering one record of 1 MiB takes for a moment.
MOST_BYTES = 8 * MIB + 20 * MIB


def _updates(count: int) -> list[Cells]:
    return [[str(number), "1", LEFT_OUT] for number in range(1, count + 1)]


def _completed(reselect: Reselect, held: Held) -> tuple[list[int], int]:
    """The rows' numbers, and the most bytes of Python's that were taken at once, each record let go of when it came."""
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
    """About 8 MiB of values, however many rows wait, whether they compress or not; every one of them is completed."""
    _rows(database, 60, value)
    held = _waiting(database, *_updates(60))
    numbers, peak = _completed(reselect, held)
    assert numbers == list(range(1, 61))
    assert peak < MOST_BYTES


def test_a_row_that_is_larger_than_the_room_for_it_is_completed(database: Database, reselect: Reselect) -> None:
    """One row is always fetched, and only that one."""
    _rows(database, 3, "CASE i WHEN 2 THEN repeat('y', 20 << 20) ELSE 'small' END")
    records = list(reselect.complete(_waiting(database, *_updates(3))))
    assert [len(value_of(record)["after"]["big"]) for record in records] == [5, 20 * MIB, 5]


def test_narrow_rows_before_wide_ones_do_not_deceive(database: Database, reselect: Reselect) -> None:
    """That the rows so far were small, so that many are asked for at once, says nothing about the next ones."""
    _rows(database, 2000, "CASE WHEN i > 1500 THEN repeat('z', 200000) ELSE 'small' END")
    numbers, peak = _completed(reselect, _waiting(database, *_updates(2000)))
    assert numbers == list(range(1, 2001))
    assert peak < MOST_BYTES


def test_rows_that_are_gone_are_told_from_those_that_had_no_room(database: Database, reselect: Reselect) -> None:
    """Wherever they lie: nothing is left out but what is not there."""
    _rows(database, 40, "repeat('x', 1 << 20)")
    held = _waiting(database, *_updates(40))
    database.execute("DELETE FROM t WHERE id % 3 = 1 OR id BETWEEN 20 AND 30")
    expected = [number for (number,) in database.execute("SELECT id FROM t ORDER BY id")]
    assert _completed(reselect, held)[0] == expected


def test_wide_rows_of_several_tables_keep_their_order(database: Database, reselect: Reselect) -> None:
    """They share the room, and whoever found none is asked for again."""
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
    """An enum's label has got another name since, say: that event is left out, and the others are completed."""
    _rows(database, 3, "'old ' || i")
    beyond = [["99999999999999999999", "1", LEFT_OUT]]
    held = _waiting(database, *_updates(1), *beyond, *_updates(3)[1:], *beyond)
    assert _completed(reselect, held)[0] == [1, 2, 3]
