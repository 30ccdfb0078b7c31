"""The slot moves whatever is written or not written; and what was rolled back is never published."""

from __future__ import annotations

import threading

import psycopg
import pytest

from cdc.capture.loop import CaptureSession
from cdc.config import load_config
from cdc.lsn import LSN
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.process import Process
from tests.harness.waiting import eventually
from tests.harness.writer import SCHEMA


def _wait_for_slot(pipeline: Pipeline, capture: Process, lsn: LSN) -> None:
    """Until the server may forget everything before `lsn`, and has nothing left to read again from before it."""

    def passed() -> bool:
        # What the restart point may move to is found at these records; the server writes one every 15 seconds.
        pipeline.database.execute("SELECT pg_log_standby_snapshot()")
        slot = pipeline.slot()
        return slot.confirmed >= lsn and slot.restart >= lsn

    capture.wait_for(passed, 60, f"the slot to pass {lsn}")


@pytest.mark.parametrize("heartbeat_seconds", [0.5, 3600])
def test_large_transaction_on_unpublished_tables(make_pipeline: MakePipeline, heartbeat_seconds: float) -> None:
    """A transaction that concerns none of our tables lets the slot pass it, also by the server's keepalives alone."""
    pipeline = make_pipeline(source={"tables": ["public.items"], "heartbeat_seconds": heartbeat_seconds})
    pipeline.database.execute(SCHEMA)
    pipeline.database.execute("CREATE TABLE other (id int PRIMARY KEY, note text)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, 300000) AS n")
    _wait_for_slot(pipeline, capture, pipeline.database.lsn())
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'after it')")
    pipeline.assert_same("items", while_running=capture)


def test_idle_tables_on_a_busy_server(make_pipeline: MakePipeline, postgres_url: str) -> None:
    """Only another database is written to: the heartbeat moves our slot, so that no log piles up behind it."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    before = pipeline.slot().confirmed
    with psycopg.connect(postgres_url, autocommit=True) as elsewhere:
        elsewhere.execute("CREATE TEMPORARY TABLE busy (id int)")
        for _ in range(3):
            elsewhere.execute("SELECT pg_logical_emit_message(false, 'busy', repeat('x', 4000000))")
            _wait_for_slot(pipeline, capture, pipeline.database.lsn())
    assert pipeline.slot().confirmed - before > 12_000_000
    assert pipeline.rows_published("items") == 0


def test_what_is_rolled_back_is_never_published(make_pipeline: MakePipeline) -> None:
    """Savepoints rolled back, transactions rolled back or prepared and rolled back leave nothing in the topic."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(SCHEMA)
    capture = pipeline.start()
    database.execute("BEGIN; INSERT INTO items VALUES (1, 0, 'rolled back'); ROLLBACK")
    database.execute("BEGIN; INSERT INTO items VALUES (2, 0, 'rolled back'); PREPARE TRANSACTION 'lost'")
    database.execute(
        "BEGIN; INSERT INTO items VALUES (3, 0, 'kept');"
        "SAVEPOINT a; INSERT INTO items VALUES (4, 0, 'rolled back'); UPDATE items SET note = 'wrong' WHERE id = 3;"
        "ROLLBACK TO a; INSERT INTO items VALUES (5, 0, 'kept'); COMMIT"
    )
    database.execute("BEGIN; INSERT INTO items VALUES (6, 0, 'kept'); PREPARE TRANSACTION 'kept'")
    pipeline.fence(while_running=capture)
    assert {record.value["after"]["id"] for record in pipeline.records("items")} == {3, 5}
    database.execute("ROLLBACK PREPARED 'lost'")
    capture.kill()  # in the middle of the prepared one
    database.execute("COMMIT PREPARED 'kept'")
    capture = pipeline.start()
    pipeline.assert_same("items", while_running=capture)
    assert [record.value["after"]["note"] for record in pipeline.records("items")] == ["kept"] * 3


def test_time_limits_of_the_role_do_not_keep_a_slot_from_being_made(make_pipeline: MakePipeline) -> None:
    """Making one waits for every open transaction to end, however long that takes."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(SCHEMA)
    for limit in ("lock_timeout", "statement_timeout"):
        database.execute(f"ALTER ROLE postgres IN DATABASE \"{database.name}\" SET {limit} = '1s'")
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO items VALUES (1, 0, 'open for long')")
        capture = pipeline.launch()
        capture.wait_for_line("waiting_for_open_transactions", 60)
        writer.commit()
    capture.wait_for_line('"streaming"', 60)
    database.execute("DELETE FROM items; INSERT INTO items VALUES (2, 0, 'after it')")
    pipeline.assert_same("items", while_running=capture)


def test_progress_comes_before_confirmation_on_an_idle_database(make_pipeline: MakePipeline) -> None:
    """At no moment, writes or none, does the slot stand beyond what the recovery record says."""
    pipeline = make_pipeline(source={"heartbeat_seconds": 0.1})
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    for number in range(20):
        if number % 4 == 0:
            pipeline.database.execute("INSERT INTO items VALUES (%s, 0, 'a')", [number])
        confirmed = pipeline.slot().confirmed
        assert confirmed <= pipeline.published_to()
    pipeline.assert_same("items", while_running=capture)


@pytest.mark.parametrize("step", ["database_name", "_check_visible"])
def test_a_life_that_fails_at_its_beginning_lets_the_slot_go(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The next one would wait for ever as the standby of a dead one; no session and no thread of it is left."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)

    def fail(*_: object) -> None:
        raise psycopg.errors.DeadlockDetected("just now")

    if step == "database_name":
        monkeypatch.setattr("cdc.capture.loop.catalog.database_name", fail)
    else:
        monkeypatch.setattr(CaptureSession, step, fail)
    life = CaptureSession(load_config(pipeline.config), threading.Event())
    with pytest.raises(psycopg.errors.DeadlockDetected):
        life.run()
    sessions = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    eventually(lambda: not pipeline.database.execute(sessions), 30, "its sessions to end")
    assert pipeline.slot().pid is None
