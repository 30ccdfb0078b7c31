"""Schema changes while capture runs: every row has the columns it was written with, and what is missing is known."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.control import read_last
from cdc.table_states import KEY, TableStates, decode
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.waiting import eventually


def states(pipeline: Pipeline) -> TableStates:
    """What capture knows of its tables."""
    data = read_last({"bootstrap.servers": pipeline.bootstrap}, f"{pipeline.prefix}.__schema", KEY)
    assert data is not None
    return decode(data)


def rows_after(pipeline: Pipeline, table: str) -> list[Any]:
    rows = [record.value["after"] for record in pipeline.records(table)]
    return sorted(rows, key=lambda row: row["id"])


def markers(pipeline: Pipeline, table: str) -> int:
    return sum(record.value["op"] == "t" for record in pipeline.records(table) if record.value is not None)


def test_every_row_has_the_columns_it_was_written_with(make_pipeline: MakePipeline) -> None:
    """Add, drop, rename and retype with writes between, in one transaction, and a crash before the acknowledgement."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    capture = pipeline.start()
    connection = database.connect(autocommit=False)
    connection.execute("INSERT INTO t VALUES (1, 1, 'one')")
    connection.execute("ALTER TABLE t ADD COLUMN c int")
    connection.execute("INSERT INTO t VALUES (2, 2, 'two', 2)")
    connection.execute("ALTER TABLE t DROP COLUMN a")
    connection.execute("INSERT INTO t VALUES (3, 'three', 3)")
    connection.execute("ALTER TABLE t RENAME COLUMN b TO bb")
    connection.execute("INSERT INTO t VALUES (4, 'four', 4)")
    connection.execute("ALTER TABLE t ALTER COLUMN c TYPE text USING 'c' || c")
    connection.execute("INSERT INTO t VALUES (5, 'five', 'c5')")
    capture.kill()
    connection.commit()
    pipeline.start()
    pipeline.fence()
    assert rows_after(pipeline, "t") == [
        {"id": 1, "a": 1, "b": "one"},
        {"id": 2, "a": 2, "b": "two", "c": 2},
        {"id": 3, "b": "three", "c": 3},
        {"id": 4, "bb": "four", "c": 4},
        {"id": 5, "bb": "five", "c": "c5"},
    ]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE t ADD COLUMN c int", None),
        ("ALTER TABLE t ADD COLUMN c int DEFAULT 7", "column c was added with a default"),
        ("ALTER TABLE t DROP COLUMN a", None),
        ("ALTER TABLE t RENAME COLUMN a TO aa", "column a was renamed to aa"),
        ("ALTER TABLE t ALTER COLUMN a TYPE text USING 'x' || a", "column a changed its type"),
        ("ALTER TABLE t ALTER COLUMN a TYPE int USING a + 1", "the table was rewritten with column a"),
        ("VACUUM FULL t", None),
        ("CREATE INDEX ON t (a)", None),
    ],
)
def test_what_changes_rows_without_row_events_is_marked(
    make_pipeline: MakePipeline, statement: str, reason: str | None
) -> None:
    """Such a table is incomplete until it is copied; one whose rows only lost or gained nothing is not."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    pipeline.start()
    database.execute("INSERT INTO t VALUES (1, 1)")
    database.execute(statement)
    after = database.lsn()
    eventually(lambda: pipeline.published_to() > after, 30, "the heartbeat after the change")
    database.execute("INSERT INTO t VALUES (2)")
    pipeline.fence()
    pipeline.fence()
    pending = states(pipeline).pending
    assert {topic: mark.reason for topic, mark in pending.items()} == ({pipeline.topic("t"): reason} if reason else {})


def test_tables_that_come_and_go_are_followed(make_pipeline: MakePipeline) -> None:
    """A new empty table is complete at once; a dropped one empties its topic; one with rows in it is marked."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE first (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute("INSERT INTO first VALUES (1, 'x')")
    database.execute("CREATE TABLE second (id int PRIMARY KEY, v text)")
    capture.wait_for_line('"table_added"', 30)
    database.execute("INSERT INTO second VALUES (1, 'in time')")
    database.execute("CREATE TABLE third (id int PRIMARY KEY, v text); INSERT INTO third VALUES (1, 'too early')")
    eventually(lambda: pipeline.topic("third") in states(pipeline).pending, 30, "the third table to be marked")
    database.execute("DROP TABLE first")
    pipeline.assert_same("second")
    eventually(lambda: markers(pipeline, "first") == 2, 30, "the markers of the table that was dropped")
    assert set(states(pipeline).pending) == {pipeline.topic("third")}
