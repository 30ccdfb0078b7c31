"""Before the initial snapshot is complete, capture holds the exported snapshot, publishes nothing, and can be
restarted.
"""

from __future__ import annotations

import threading

import pytest

from cdc.config import load_config
from cdc.errors import TransientError
from cdc.startup.initial_snapshot import interrupted
from spark_jobs.snapshot.initial_driver import SnapshotDriver
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_postgres import OwnPostgres
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, copies, wait_for_hold


def test_empty_tables_need_no_snapshot(make_pipeline: MakePipeline) -> None:
    """A pipeline over empty tables streams at once, and readers find the columns of tables without a row."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.start()
    assert [copy.state for copy in copies(pipeline)] == ["complete"]
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline.assert_same("t")


def test_nothing_is_published_before_the_snapshot(make_pipeline: MakePipeline) -> None:
    """While the initial snapshot is due, changes stay in the slot, and a second capture waits as the standby."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    capture = wait_for_hold(pipeline)
    (copy,) = copies(pipeline)
    assert (copy.kind, copy.state) == ("first", "open")
    pipeline.database.execute("INSERT INTO t VALUES (2, 'b')")
    standby = pipeline.launch()
    standby.wait_for_line('"standby"', 60)
    assert pipeline.end_offsets("t") == 0
    assert pipeline.progress_records()[-1]["state"] == "copying"
    assert capture.running


def test_death_before_any_chunk_starts_a_new_snapshot(make_pipeline: MakePipeline) -> None:
    """When capture dies before a chunk is copied, the next one makes a new slot and exported snapshot."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    wait_for_hold(pipeline).kill()
    wait_for_hold(pipeline)
    eventually(lambda: [copy.state for copy in copies(pipeline)] == ["abandoned", "open"], 30, "the two copies")


def test_death_while_the_snapshot_is_given_up_starts_a_new_one(make_pipeline: MakePipeline) -> None:
    """When capture dies right after it gave the snapshot up, the next one does not take it for complete."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    wait_for_hold(pipeline).kill()
    (copy,) = copies(pipeline)
    for _ in range(2):
        outcome = interrupted(load_config(pipeline.config), copy.id)
        assert (outcome.is_complete, outcome.missing.keys()) == (False, set(copy.tables))
        assert [each.state for each in copies(pipeline)] == ["abandoned"]
    wait_for_hold(pipeline)
    assert [each.state for each in copies(pipeline)] == ["abandoned", "open"]


def test_a_driver_cannot_plan_what_was_given_up(make_pipeline: MakePipeline) -> None:
    """Once capture gives a snapshot up in the driver's transactional id, the driver is fenced and cannot plan it."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    wait_for_hold(pipeline)
    config = load_config(pipeline.config)
    (copy,) = copies(pipeline)
    with SnapshotDriver(config, watch=lambda _: None, stop=threading.Event()) as driver:
        driver._publisher.fence(30)
        interrupted(config, copy.id)
        with pytest.raises(TransientError, match="fenced"):
            driver._plan(copy, driver._connection, {})
    with SnapshotDriver(config, watch=lambda _: None, stop=threading.Event()) as driver:
        assert driver.prepare(copy.id) is None
    assert [each.state for each in copies(pipeline)] == ["abandoned"]


def test_a_slot_that_is_lost_meanwhile_ends_the_wait(make_pipeline: MakePipeline) -> None:
    """A slot lost during the snapshot ends it at once with the remedy, since no stream can continue from it."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    capture = wait_for_hold(pipeline)
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])
    capture.expect_exit(3, 60)
    assert f"Slot {pipeline.slot_name} is gone" in capture.errors
    assert "tailrace recover" in capture.errors


def test_the_log_that_is_held_meanwhile_is_watched(own: OwnPostgres, own_pipeline: Pipeline) -> None:
    """Capture warns about the WAL that the slot retains before the server's limit, and refuses past it."""
    pipeline = own_pipeline
    pipeline.configure(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    own.configure({"max_slot_wal_keep_size": "128MB"})
    capture = wait_for_hold(pipeline)
    pipeline.database.execute(
        "SELECT count(pg_logical_emit_message(false, 'flood', repeat('x', 1000000))) FROM generate_series(1, 80)"
    )
    capture.wait_for_line('"slot_nears_its_limit"', 30)
    assert "max_slot_wal_keep_size" in capture.errors
    own.outgrow(pipeline.slot_name)
    capture.expect_exit(3, 60)
    assert f"Slot {pipeline.slot_name} is invalidated" in capture.errors


def test_lost_connection_is_noticed(make_pipeline: MakePipeline) -> None:
    """When the server ends the session with the exported snapshot, capture stops waiting for the copy."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    capture = wait_for_hold(pipeline)
    pipeline.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'walsender' AND datname = current_database()"
    )
    eventually(lambda: len(copies(pipeline)) == 2, 60, "a new copy")
    assert capture.errors.count('"waiting_for_initial_snapshot"') == 2
