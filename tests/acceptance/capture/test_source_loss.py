"""Capture refuses a source that has lost data it needs, or that is another server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process
from tests.harness.servers.dedicated_postgres import OwnPostgres


@pytest.fixture
def pipeline(own_pipeline: Pipeline) -> Pipeline:
    own_pipeline.database.execute(SCHEMA)
    return own_pipeline


def _publish(pipeline: Pipeline, number: int) -> Process:
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO items VALUES (%s, 0, 'a')", [number])
    pipeline.assert_same("items", while_running=capture)
    return capture


@pytest.mark.parametrize("frozen", [False, True])
def test_an_invalidated_slot_is_refused(pipeline: Pipeline, own: OwnPostgres, frozen: bool) -> None:
    """Capture refuses to continue after the server removed unread WAL, whether it was stopped or hung."""
    capture = _publish(pipeline, 1)
    if frozen:
        capture.freeze()
        own.configure({"wal_sender_timeout": "1s"})
    else:
        capture.stop()
    pipeline.database.execute("DELETE FROM items")
    own.outgrow(pipeline.slot_name)
    before = pipeline.published_to()
    if frozen:
        own.configure({"wal_sender_timeout": "60s"})
        capture.thaw()
        processes = [capture]
    else:
        processes = [pipeline.launch()]
    for process in (*processes, pipeline.launch()):
        process.expect_exit(3, 60)
        assert f"Slot {pipeline.slot_name} is invalidated" in process.errors, process.transcript()
        assert "max_slot_wal_keep_size" in process.errors
        assert "tailrace recover" in process.errors
    assert pipeline.published_to() == before


def test_a_server_restored_from_an_older_backup_is_refused(
    pipeline: Pipeline, own: OwnPostgres, tmp_path: Path
) -> None:
    """A restored server whose log ends before the published LSN is refused."""
    _publish(pipeline, 1).stop()
    own.keep(tmp_path / "backup")
    pipeline.database.forget_connection()
    # More than a start writes itself.
    pipeline.database.execute("SELECT pg_logical_emit_message(true, 'test.more', repeat('x', 1000000))")
    capture = _publish(pipeline, 2)
    own.restore(tmp_path / "backup")
    capture.expect_exit(3, 60)
    before = pipeline.published_to()
    for process in (capture, pipeline.launch()):
        process.expect_exit(3, 60)
        assert "restored from an older backup" in process.errors, process.transcript()
        assert "tailrace recover" in process.errors
    assert pipeline.published_to() == before


def test_a_rolled_back_server_that_has_written_more_log_is_refused(
    pipeline: Pipeline, own: OwnPostgres, tmp_path: Path
) -> None:
    """Its log is longer than what was published, and other transactions are where the published ones were. Every start
    refuses, and none of them confirms the slot: the next one finds what this one found."""
    _publish(pipeline, 1).stop()
    own.keep(tmp_path / "backup")
    pipeline.database.forget_connection()
    _publish(pipeline, 2).stop()
    published = pipeline.published_to()
    own.restore(tmp_path / "backup")
    pipeline.database.forget_connection()
    pipeline.database.execute("INSERT INTO items VALUES (3, 0, 'skipped, if it is not noticed')")
    pipeline.database.execute("SELECT pg_switch_wal()")
    pipeline.database.execute("INSERT INTO items VALUES (4, 0, 'b')")
    assert pipeline.database.lsn() > published
    confirmed = pipeline.slot().confirmed
    for _ in range(2):
        capture = pipeline.launch()
        capture.expect_exit(3, 60)
        assert "rolled back" in capture.errors, capture.transcript()
        assert "tailrace recover" in capture.errors
        assert pipeline.published_to() == published
        assert pipeline.slot().confirmed == confirmed


def test_a_server_that_crashed_is_not_taken_for_one_that_was_rolled_back(pipeline: Pipeline, own: OwnPostgres) -> None:
    """After a crash the slot falls back to its checkpoint and sends published changes again; capture continues."""
    capture = _publish(pipeline, 1)
    for number in (2, 3):
        pipeline.database.execute("INSERT INTO items VALUES (%s, 0, 'a')", [number])
        pipeline.fence(while_running=capture)
        own.kill()
        pipeline.database.forget_connection()
        own.start()
        pipeline.wait_for_session(capture, number)
        pipeline.assert_same("items", while_running=capture)
    capture.stop()


@pytest.mark.parametrize("with_slot", [True, False])
def test_another_server_is_refused(pipeline: Pipeline, database: Database, with_slot: bool) -> None:
    """Another cluster at the same address is refused, even with the same tables and slot."""
    _publish(pipeline, 1).stop()
    before = pipeline.published_to()
    database.execute(SCHEMA)
    database.execute("CREATE PUBLICATION tailrace FOR TABLE items")
    if with_slot:
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot_name])
    pipeline.configure(source={"dsn": database.dsn})
    capture = pipeline.launch()
    capture.expect_exit(3)
    assert "another database cluster" in capture.errors, capture.transcript()
    assert "tailrace recover" in capture.errors
    assert pipeline.published_to() == before


@pytest.mark.parametrize("prepared", [False, True])
def test_an_open_transaction_while_the_slot_is_made(make_pipeline: MakePipeline, prepared: bool) -> None:
    """The first start waits for an open transaction, names it, and continues when it has ended."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(SCHEMA)
    writer = database.connect()
    writer.execute("BEGIN; INSERT INTO items VALUES (1, 0, 'before')")
    if prepared:
        writer.execute("PREPARE TRANSACTION 'left-over'")
    who = "prepared transaction left-over" if prepared else f"pid {writer.info.backend_pid}"
    capture = pipeline.launch()
    line = capture.wait_for_line('"waiting_for_open_transactions"').string
    said = json.loads(line)["transactions"]
    assert [each for each in said if each.startswith(f"{who}") and "open for" in each], said
    assert "slot_created" not in capture.errors
    writer.execute("COMMIT PREPARED 'left-over'" if prepared else "COMMIT")
    capture.wait_for_line('"streaming"')
    database.execute("DELETE FROM items; INSERT INTO items VALUES (2, 0, 'after')")
    pipeline.assert_same("items", while_running=capture)
