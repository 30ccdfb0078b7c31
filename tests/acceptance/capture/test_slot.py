"""The slot advances with and without writes, and rolled-back changes are never published."""

from __future__ import annotations

import threading

import psycopg
import pytest

from cdc.capture.wiring import open_session
from cdc.config import Config, load_config
from cdc.lsn import LSN
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually


def _wait_for_slot(pipeline: Pipeline, capture: Process, lsn: LSN) -> None:
    """Wait until the slot's restart and confirmed LSNs have reached `lsn`."""

    def passed() -> bool:
        # What the restart point may move to is found at these records; the server writes one every 15 seconds.
        pipeline.database.execute("SELECT pg_log_standby_snapshot()")
        slot = pipeline.slot()
        return slot.confirmed >= lsn and slot.restart >= lsn

    capture.wait_for(passed, 60, f"the slot to pass {lsn}")


@pytest.mark.parametrize("heartbeat_seconds", [0.5, 3600])
def test_large_transaction_on_unpublished_tables(make_pipeline: MakePipeline, heartbeat_seconds: float) -> None:
    """A transaction on tables that are not captured lets the slot advance, also by keepalives alone."""
    pipeline = make_pipeline(source={"tables": ["public.items"], "heartbeat_seconds": heartbeat_seconds})
    pipeline.database.execute(SCHEMA)
    pipeline.database.execute("CREATE TABLE other (id int PRIMARY KEY, note text)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, 300000) AS n")
    _wait_for_slot(pipeline, capture, pipeline.database.lsn())
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'after it')")
    pipeline.assert_same("items", while_running=capture)


def test_idle_tables_on_a_busy_server(make_pipeline: MakePipeline, postgres_url: str) -> None:
    """When only another database has writes, the heartbeat advances the slot, so that WAL does not accumulate."""
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
    """Rolled-back savepoints, transactions and prepared transactions leave nothing in the topic."""
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
    """Time limits of the role do not cancel the creation of a slot, which waits for every open transaction."""
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
    """The slot is never beyond the progress record, with writes or without."""
    pipeline = make_pipeline(source={"heartbeat_seconds": 0.1})
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    for number in range(20):
        if number % 4 == 0:
            pipeline.database.execute("INSERT INTO items VALUES (%s, 0, 'a')", [number])
        confirmed = pipeline.slot().confirmed
        assert confirmed <= pipeline.published_to()
    pipeline.assert_same("items", while_running=capture)


def _run_session(config: Config) -> None:
    with open_session(config, threading.Event()) as session:
        assert session is not None
        session.run()


@pytest.mark.parametrize(
    "step",
    [
        "cdc.capture.wiring.catalog.database_name",
        "cdc.capture.visible_transactions.VisibleTransactions._query",
    ],
)
def test_a_session_that_fails_at_start_releases_the_slot(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A capture session that fails at its start leaves no connection or thread that would hold the slot."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)

    def fail(*_: object) -> None:
        raise psycopg.errors.DeadlockDetected("just now")

    monkeypatch.setattr(step, fail)
    with pytest.raises(psycopg.errors.DeadlockDetected):
        _run_session(load_config(pipeline.config))
    sessions = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    eventually(lambda: not pipeline.database.execute(sessions), 30, "its sessions to end")
    assert pipeline.slot().pid is None
