"""An incremental snapshot can be paused, resumed and cancelled from another process, and reports its state."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from cdc.config import load_config
from cdc.snapshot.table_status import read_status
from cdc.supervisor.parts.snapshots_due import snapshots_due
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks, wait_for_look
from tests.harness.processes.command import run_command
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import RecordingView, copy_due, copying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _status(pipeline: Pipeline) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_command("snapshot", pipeline.config, "--status", "--json").stdout)
    return found


def _is_due(pipeline: Pipeline) -> bool:
    """Whether `tailrace run` would start an incremental snapshot."""
    return bool(snapshots_due(read_status(load_config(pipeline.config))))


def test_pause_resume_and_cancel(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """A paused snapshot starts no chunk; a cancelled one ends and is not restarted; a resumed one completes."""
    pipeline = make_pipeline(snapshot={"initial": False, "chunk_mb": 1, "connections": 1, "rows_per_second": 15000})
    execute = pipeline.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute("CREATE TABLE small (id int PRIMARY KEY, v text)")
    execute("INSERT INTO small VALUES (1, 'a')")
    execute("INSERT INTO t SELECT n, repeat('x', 30) FROM generate_series(1, 60000) n")
    capture = pipeline.start()
    idle = run_command("snapshot", pipeline.config, "--cancel", code=1)
    assert idle.stdout.startswith("No snapshot is running or due")
    execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
    execute("ALTER TABLE small ADD COLUMN w int DEFAULT 7")
    wait_for_look(pipeline, capture)
    eventually(lambda: _is_due(pipeline), what="a copy to be due")
    view, stop = RecordingView(), threading.Event()
    copier = threading.Thread(target=copying, args=(pipeline, spark, view, stop))
    copier.start()
    try:
        eventually(lambda: any(each.chunks for each in view.reports), 60, "the first chunk")
        run_command("snapshot", pipeline.config, "--pause")
        eventually(lambda: view.reports[-1].paused, what="the copy to be paused")
        status = _status(pipeline)
        assert status["paused"]
        assert [copy["state"] for copy in status["snapshots"]] == ["paused"]
        assert not _is_due(pipeline)
        execute("UPDATE t SET v = 'changed' WHERE id % 1000 = 0")
        assert "public.small, public.t" in run_command("snapshot", pipeline.config, "--cancel").stdout
        copier.join(60)
        assert not copier.is_alive()
    finally:
        stop.set()
        copier.join(60)
    run_command("snapshot", pipeline.config, "--resume")
    run_command("snapshot", pipeline.config, "--cancel")
    status = _status(pipeline)
    assert status["snapshots"][-1]["state"] == "abandoned"
    assert {each["table"] for each in status["incomplete"] if each.get("cancelled")} == {"public.t", "public.small"}
    assert marks(pipeline).keys() == {"t", "small"}
    assert not _is_due(pipeline)
    assert not copy_due(pipeline, spark).is_complete  # cancelled: left alone, and said
    assert "cancelled" in run_command("snapshot", pipeline.config, "--status").stdout
    run_command("snapshot", pipeline.config, "--resume")
    assert _is_due(pipeline)
    assert copy_due(pipeline, spark).is_complete
    assert marks(pipeline) == {}
    pipeline.assert_same("t", "small", while_running=capture)


def test_a_running_snapshot_is_cancelled_table_by_table(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """The cancelled table stays incomplete, and the other one is copied completely."""
    pipeline = make_pipeline(snapshot={"initial": False, "chunk_mb": 1, "connections": 1, "rows_per_second": 15000})
    execute = pipeline.database.execute
    for table in ("a", "b"):
        execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        execute(f"INSERT INTO {table} SELECT n, repeat('x', 30) FROM generate_series(1, 30000) n")
    capture = pipeline.start()
    for table in ("a", "b"):
        execute(f"ALTER TABLE {table} ADD COLUMN w int DEFAULT 7")
    wait_for_look(pipeline, capture)
    view, stop = RecordingView(), threading.Event()
    copier = threading.Thread(target=copying, args=(pipeline, spark, view, stop))
    copier.start()
    try:
        eventually(lambda: view.reports, 60, "the copy to begin")
        run_command("snapshot", pipeline.config, "--cancel", "--table", "b")
        copier.join(90)
        assert not copier.is_alive()
    finally:
        stop.set()
        copier.join(60)
    assert marks(pipeline).keys() == {"b"}
    pipeline.assert_same("a", while_running=capture)
    assert copy_due(pipeline, spark, "b").is_complete  # named: wanted after all
    pipeline.assert_same("a", "b", while_running=capture)
