"""`tailrace recover` repairs what capture refuses, and the topics equal the source again."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cdc.config import load_config
from cdc.monitoring.observer import Observer
from cdc.monitoring.status_record import HealthLevel, PipelineStatus
from cdc.names import Control, control_topic
from tests.harness.kafka.topics import alter_topic, create_topic, delete_topic, grow_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.command import run_command
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.snapshot.initial_snapshot import Copying
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES = ("CREATE TABLE a (id int PRIMARY KEY, v text)", "CREATE TABLE b (id int PRIMARY KEY, v text)")


def _filled(pipeline: Pipeline) -> Pipeline:
    """Two tables with published rows; capture was stopped with SIGTERM."""
    for statement in _TABLES:
        pipeline.database.execute(statement)
    capture = pipeline.start()
    for table in ("a", "b"):
        pipeline.database.execute(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, 20) n")
    pipeline.assert_same("a", "b", while_running=capture)
    capture.stop()
    return pipeline


def _change_unseen(pipeline: Pipeline, number: int = 0) -> None:
    """Delete, change and insert a row in the part of the log that capture loses."""
    for table in ("a", "b"):
        pipeline.database.execute(f"DELETE FROM {table} WHERE id = {2 + number}")
        pipeline.database.execute(f"UPDATE {table} SET v = 'unseen {number}' WHERE id = 1")
        pipeline.database.execute(f"INSERT INTO {table} VALUES ({-1 - number}, 'unseen')")


def _refused(pipeline: Pipeline, *words: str) -> None:
    capture = pipeline.launch()
    capture.expect_exit(3, 60)
    for word in (*words, "tailrace recover"):
        assert word in capture.errors, capture.transcript()


def _recover(pipeline: Pipeline, *arguments: str) -> None:
    run_command("recover", pipeline.config, "--yes", *arguments)


def _assert_repaired(pipeline: Pipeline, spark: SparkSession) -> None:
    """Capture continues, the snapshot brings every row, and later changes arrive."""
    capture = pipeline.start()
    pipeline.database.execute("UPDATE a SET v = v || ', streamed' WHERE id = 3")
    report = copy_due(pipeline, spark)
    assert report.is_complete, report.incomplete
    pipeline.assert_same("a", "b", while_running=capture)
    pipeline.database.execute("UPDATE b SET v = v || ', streamed' WHERE id < 10")
    pipeline.database.execute("DELETE FROM a WHERE id = 19")
    pipeline.assert_same("a", "b", while_running=capture)
    assert_clean(pipeline.config, spark)
    capture.stop()


def test_a_refusal_is_shown_with_its_own_remedy_until_it_is_repaired(
    make_pipeline: MakePipeline, tailrace: StartProcess
) -> None:
    """After a topic is deleted, the dashboard shows capture's own reason and remedy, and not "start capture".

    Recovery ends the refusal, and no speed is negative although topics were created again.
    """
    pipeline = make_pipeline()
    pipeline.database.execute(_TABLES[0])
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO a SELECT n, 'old' FROM generate_series(1, 20) n")
    pipeline.fence(while_running=capture)
    observer = Observer(load_config(pipeline.config))
    try:
        _shown(observer, lambda record: record.topics.health.state is HealthLevel.OK)
        delete_topic(pipeline.bootstrap, pipeline.topic("a"))
        capture.expect_exit(3, 60)
        refused = _shown(observer, lambda record: "Refused: Topic" in record.topics.health.reason)
        assert refused.topics.health.state is HealthLevel.DOWN
        assert "tailrace recover" in refused.topics.health.remedy
        lag = tailrace("lag", "--config", str(pipeline.config))
        lag.expect_exit(1, 60)
        assert "tailrace recover" in lag.output
        assert "tailrace run" not in lag.output
        status = json.loads(run_command("capture", pipeline.config, "--status", "--json").stdout)
        assert "tailrace recover" in status["refusal"]["remedy"]
        _recover(pipeline)
        _shown(observer, lambda record: record.topics.health.remedy == "tailrace run")
        capture = pipeline.start()
        pipeline.database.execute("INSERT INTO a VALUES (100, 'new')")
        pipeline.fence(while_running=capture)
        _shown(observer, lambda record: record.topics.health.state is HealthLevel.OK)
    finally:
        observer.close()


def _shown(observer: Observer, holds: Callable[[PipelineStatus], bool]) -> PipelineStatus:
    """The first record for which the condition is true. No figure ever decreases."""

    def poll() -> PipelineStatus | None:
        record = observer.poll()
        speeds = [record.topics.records_per_second, *(table.records_per_second for table in record.tables)]
        assert all(speed is None or speed >= 0 for speed in speeds), speeds
        return record if holds(record) else None

    found: PipelineStatus | None = eventually(poll, 60, "the pipeline to be shown so")
    assert found is not None
    return found


def test_a_lost_slot_is_repaired_and_deleted_rows_are_removed(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Showing or declining the plan changes nothing; accepting it closes the gap, deletes included."""
    pipeline = _filled(make_pipeline())
    said = run_command("recover", pipeline.config, code=1)
    assert "There is no problem" in said.stdout
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])
    _change_unseen(pipeline)
    _refused(pipeline, "is gone")
    before = pipeline.progress_records()[-1]
    planned = json.loads(run_command("recover", pipeline.config, "--dry-run", "--json").stdout)
    assert planned["state"] == "planned"
    assert planned["tables"] == ["public.a", "public.b"]
    assert [step["action"] for step in planned["steps"]] == ["fence", "note", "create_slot", "update_records"]
    declined = run_command("recover", pipeline.config, code=1, answer="n\n")
    assert "Nothing was changed" in declined.stdout
    assert pipeline.progress_records()[-1] == before
    done = run_command("recover", pipeline.config, answer="y\n")
    assert done.stdout.count("Done:") == 4
    _assert_repaired(pipeline, spark)
    assert pipeline.progress_records()[-1]["base"] == 0  # the same server: its LSNs only rise


def test_recover_refuses_while_capture_runs(make_pipeline: MakePipeline) -> None:
    """Recover refuses to replace the slot of a running capture."""
    pipeline = make_pipeline()
    for statement in _TABLES:
        pipeline.database.execute(statement)
    pipeline.start()
    said = run_command("recover", pipeline.config, "--yes", "--anyway", code=3)
    assert "Capture is running" in said.stderr


@pytest.mark.slow
def test_recover_is_killed_after_every_step_and_run_again(
    make_pipeline: MakePipeline, spark: SparkSession, start_process: StartProcess
) -> None:
    """After recover is killed at any step, capture refuses to start, and the next recover completes."""
    pipeline = _filled(make_pipeline())
    pipeline.database.execute("DROP PUBLICATION tailrace")
    pipeline.database.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [pipeline.slot_name]
    )
    _change_unseen(pipeline)
    delete_topic(pipeline.bootstrap, pipeline.topic("b"))
    steps = ["fence", "note", "create_publication", "make_topic", "drop_slot", "create_slot"]
    for step in steps:
        dying = start_process(
            sys.executable, "-m", "tests.harness.pipeline.killed_recovery", str(pipeline.config), step
        )
        dying.expect_exit(-signal.SIGKILL)
        _refused(pipeline)
    _recover(pipeline)
    _assert_repaired(pipeline, spark)


@pytest.mark.slow
def test_every_way_to_lose_the_source(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Recover repairs each kind of source damage on one pipeline.

    A slot made again, an advanced slot, a publication made again, a table removed and added, a renamed slot, a lost
    progress record.
    """
    pipeline = _filled(make_pipeline())
    execute = pipeline.database.execute
    progress_topic = control_topic(pipeline.prefix, Control.PROGRESS)

    def remake_slot() -> None:
        execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])
        execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot_name])

    def advance_slot() -> None:
        execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [pipeline.slot_name])

    def remake_publication() -> None:
        execute("DROP PUBLICATION tailrace")
        _change_unseen(pipeline, 8)
        execute("CREATE PUBLICATION tailrace FOR TABLE a, b")

    def take_out_and_put_back() -> None:
        execute("ALTER PUBLICATION tailrace DROP TABLE b")
        _change_unseen(pipeline, 9)
        execute("ALTER PUBLICATION tailrace ADD TABLE b")

    def rename_slot() -> None:
        pipeline.slot_name += "_2"
        pipeline.configure()

    losses = [
        (remake_slot, "re-created or advanced"),
        (advance_slot, "re-created or advanced"),
        (lambda: execute("DROP PUBLICATION tailrace"), "Publication tailrace is gone"),
        (remake_publication, "was re-created or altered"),
        (take_out_and_put_back, "was re-created or altered"),
        (rename_slot, "the progress record has slot"),
        (lambda: delete_topic(pipeline.bootstrap, progress_topic), "no progress record"),
    ]
    for number, (lose, words) in enumerate(losses):
        _change_unseen(pipeline, number)
        lose()
        _refused(pipeline, words)
        _recover(pipeline)
        _assert_repaired(pipeline, spark)
    slots = execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(pipeline.slot_name,)]


@pytest.mark.slow
def test_every_way_to_lose_a_topic(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Recover repairs each kind of topic damage.

    A deleted topic, one created again, one with another policy, one with more partitions, then another number in the
    config. Topics whose records are still valid keep their id.
    """
    pipeline = _filled(make_pipeline())
    bootstrap, topics = pipeline.bootstrap, {name: pipeline.topic(name) for name in ("a", "b")}

    def recreate() -> None:
        delete_topic(bootstrap, topics["b"])
        create_topic(bootstrap, topics["b"], 2, cleanup_policy="compact")

    losses = [
        (lambda: delete_topic(bootstrap, topics["b"]), "is gone"),
        (recreate, "was re-created"),
        (lambda: alter_topic(bootstrap, topics["b"], {"cleanup.policy": "delete"}), "cleanup.policy=delete"),
        (lambda: grow_topic(bootstrap, topics["b"], 5), "partitions"),
        (lambda: pipeline.configure(kafka={"partitions": 3}), "[kafka] partitions is 3"),
    ]
    for number, (lose, words) in enumerate(losses):
        before = pipeline.progress_records()[-1]["topic_ids"]
        _change_unseen(pipeline, number)
        lose()
        _refused(pipeline, words)
        _recover(pipeline)
        after = pipeline.progress_records()[-1]
        assert (after["topic_ids"][topics["a"]] == before[topics["a"]]) is (number < 4)
        assert (after["topic_ids"][topics["b"]] == before[topics["b"]]) is (number == 2)
        _assert_repaired(pipeline, spark)
    assert {len(ends) for ends in pipeline.progress_records()[-1]["end_offsets"].values()} == {3}


def test_nothing_is_dropped_where_nothing_was_captured(make_pipeline: MakePipeline) -> None:
    """Under another prefix the slot belongs to another pipeline: capture and recover refuse and say what to do."""
    pipeline = _filled(make_pipeline())
    pipeline.configure(kafka={"prefix": f"{pipeline.prefix}x"})
    launched = pipeline.launch()
    launched.expect_exit(3, 60)
    assert "prefix was changed" in launched.errors
    assert "set it back" in run_command("recover", pipeline.config, "--yes", code=3).stderr
    assert pipeline.slot()
    pipeline.configure()
    capture = pipeline.start()
    pipeline.assert_same("a", "b", while_running=capture)


@pytest.mark.slow
def test_a_slot_that_is_lost_during_the_initial_snapshot(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """When the slot is lost during the initial snapshot, every chunk is copied again, since no stream continues from
    it.
    """
    pipeline = make_pipeline(snapshot={"initial": True, "chunk_mb": 1})
    for statement in _TABLES:
        pipeline.database.execute(statement)
    for table in ("a", "b"):
        pipeline.database.execute(f"INSERT INTO {table} SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n")
    capture = pipeline.launch()
    capture.wait_for_line("waiting_for_initial_snapshot", 60)
    with Copying(pipeline, spark) as first:
        first.wait_for_chunks(1)
        capture.kill()
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
    eventually(lambda: pipeline.database.execute(drop, [pipeline.slot_name]), what="the slot to be free")
    _change_unseen(pipeline)
    _refused(pipeline, "is gone")
    _recover(pipeline)
    _assert_repaired(pipeline, spark)
