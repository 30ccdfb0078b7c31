"""When a process dies or freezes in the initial snapshot, finished chunks stay and no row is published twice or too
late.
"""

from __future__ import annotations

import json
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.snapshot.chunk_attempt import AttemptOutcome
from cdc.snapshot.initial_chunk import ChunkTask, run_chunk
from deploy.stack import Stack
from tests.harness.kafka.records import Record
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, Copying, copies, prepared, wait_for_hold
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RUN_CHUNK = """
import pickle, sys
from cdc.snapshot.initial_chunk import run_chunk
attempt = run_chunk(pickle.load(open(sys.argv[1], "rb")))
print("attempt", attempt.ending.value, attempt.message, flush=True)
"""


def make_large(pipeline: Pipeline, rows: int = 30_000) -> None:
    pipeline.database.execute("CREATE TABLE large (id int PRIMARY KEY, a text)")
    pipeline.database.execute("INSERT INTO large SELECT i, repeat('x', 100) FROM generate_series(1, %s) i", [rows])


def copied(pipeline: Pipeline, table: str = "large") -> list[Record]:
    return [record for record in pipeline.records(table) if record.op == "r"]


def start_attempt(start_process: StartProcess, folder: Path, task: ChunkTask) -> Process:
    """Start a task in a process of its own, which can be frozen."""
    file = folder / f"chunk-{task.chunk.number}"
    file.write_bytes(pickle.dumps(task))
    return start_process(sys.executable, "-c", _RUN_CHUNK, str(file))


def slowed(task: ChunkTask, rows_per_second: float) -> ChunkTask:
    return replace(task, rows_per_second=rows_per_second)


def test_a_frozen_attempt_cannot_write_after_the_stream_has_begun(
    make_pipeline: MakePipeline, start_process: StartProcess, tmp_path: Path, spark: SparkSession
) -> None:
    """A task that was frozen while capture gave the snapshot up and streamed is fenced when it resumes.

    A task that starts only then finds the snapshot given up. Neither leaves a row.
    """
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    make_large(pipeline)
    capture = wait_for_hold(pipeline)
    copy = prepared(pipeline)
    done, frozen, late = (copy.task(chunk) for chunk in copy.chunks[:3])
    assert run_chunk(done).ending is AttemptOutcome.DONE
    rows = len(copied(pipeline))
    assert rows > 0
    before = pipeline.end_offsets("large")
    zombie = start_attempt(start_process, tmp_path, slowed(frozen, 50))
    zombie.wait_for(lambda: pipeline.end_offsets("large") > before + 100, 60, "rows of an open transaction")
    zombie.freeze()
    capture.kill()
    pipeline.database.execute("UPDATE large SET a = 'new'")
    again = pipeline.start(90)
    pipeline.fence(while_running=again)
    zombie.thaw()
    zombie.wait_for_line("attempt failed", 90)
    assert "fenced by a newer instance" in zombie.errors
    assert run_chunk(late).ending is AttemptOutcome.STOPPED
    assert run_chunk(done).ending is AttemptOutcome.DONE
    assert len(copied(pipeline)) == rows
    pipeline.database.execute("UPDATE large SET a = 'newer'")
    pipeline.assert_same("large", while_running=again)
    assert "large" in marks(pipeline)
    assert copy_due(pipeline, spark).is_complete
    assert_clean(pipeline.config, spark)


def test_attempts_at_one_chunk_publish_it_once(
    make_pipeline: MakePipeline, start_process: StartProcess, tmp_path: Path, spark: SparkSession
) -> None:
    """A speculative task, a slow one and a retry of the same chunk publish its rows once."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    make_large(pipeline)
    capture = wait_for_hold(pipeline)
    copy = prepared(pipeline)
    task = copy.task(copy.chunks[0])
    slow = start_attempt(start_process, tmp_path, slowed(task, 50))
    slow.wait_for(lambda: pipeline.end_offsets("large") > 100, 60, "rows of an open transaction")
    overtaking = run_chunk(task)
    assert overtaking.ending is AttemptOutcome.DONE
    slow.wait_for_line("attempt failed", 90)
    assert run_chunk(task) == overtaking
    with Copying(pipeline, spark) as copying:
        assert copying.report().is_complete
    # The stream has begun: the last attempts to come find nothing to do.
    assert run_chunk(task).ending in (AttemptOutcome.DONE, AttemptOutcome.STOPPED)
    pipeline.assert_same("large", while_running=capture)
    assert len(copied(pipeline)) == 30_000


def _lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]


def _chunks(process: Process) -> int:
    return max((line["chunks"] for line in _lines(process) if line["event"] == "progress"), default=0)


@pytest.mark.slow
def test_a_killed_driver_is_resumed(make_pipeline: MakePipeline, tailrace: StartProcess, spark: SparkSession) -> None:
    """After `tailrace snapshot` is killed and started again, finished chunks are not copied again."""
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 10_000, "connections": 2})
    make_large(pipeline, 60_000)
    capture = wait_for_hold(pipeline)
    driver = tailrace("snapshot", "--json", "--config", str(pipeline.config))
    driver.wait_for(lambda: _chunks(driver) >= 2, 120, "two finished chunks")
    driver.kill()
    rows = len(copied(pipeline))
    assert rows > 0
    with Copying(pipeline, spark) as copying:
        report = copying.report()
    assert report.is_complete
    assert report.progress is not None
    assert report.progress.rows == 60_000
    assert [copy.state for copy in copies(pipeline)] == ["complete"]
    pipeline.assert_same("large", while_running=capture)
    assert len(copied(pipeline)) == 60_000


@pytest.mark.slow
def test_without_a_capture_the_command_makes_the_slot_itself(
    make_pipeline: MakePipeline, tailrace: StartProcess
) -> None:
    """Without capture the command makes the slot and copies everything; capture later continues from the slot.

    A second run has nothing to do. No output has a password.
    """
    pipeline = make_pipeline(source={"password": "open-sesame-7313"}, snapshot=WITH_INITIAL_SNAPSHOT)
    make_large(pipeline)
    snapshot = tailrace("snapshot", "--json", "--config", str(pipeline.config))
    snapshot.expect_exit(0, 180)
    result = _lines(snapshot)[-1]
    assert (result["event"], result["complete"], result["progress"]["rows"]) == ("result", True, 30_000)
    pipeline.database.execute("DELETE FROM large WHERE id <= 10")
    capture = pipeline.start()
    pipeline.assert_same("large", while_running=capture)
    again = tailrace("snapshot", "--config", str(pipeline.config))
    again.expect_exit(0, 60)
    assert "Nothing to do" in again.output
    for process in (snapshot, capture, again):
        assert "sesame" not in process.output + process.errors


@pytest.mark.slow
def test_ctrl_c_stops_the_snapshot_and_reports_finished_chunks(
    make_pipeline: MakePipeline, tailrace: StartProcess, spark: SparkSession
) -> None:
    """Ctrl-C cancels running chunks with exit code 1, and the next run continues from the finished ones."""
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 4000, "connections": 2})
    make_large(pipeline)
    capture = wait_for_hold(pipeline)
    driver = tailrace("snapshot", "--config", str(pipeline.config))
    driver.wait_for_line("rows/s", 120)
    driver.signal(SIGINT)
    driver.expect_exit(1, 60)
    assert "Stopped" in driver.output
    with Copying(pipeline, spark) as copying:
        assert copying.report().is_complete
    pipeline.assert_same("large", while_running=capture)
    assert len(copied(pipeline)) == 30_000


@pytest.mark.slow
def test_postgres_and_then_capture_killed(make_pipeline: MakePipeline, spark: SparkSession, stack: Stack) -> None:
    """After Postgres and capture are killed, deleted rows are removed, changes flow, and the table is incomplete."""
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 8000, "connections": 2})
    make_large(pipeline, 60_000)
    capture = wait_for_hold(pipeline)
    with Copying(pipeline, spark) as copying:
        copying.wait_for_chunks(1)
        stack.stop("postgres", SIGKILL)
        try:
            capture.kill()
        finally:
            stack.start("postgres")
        with suppress(psycopg.OperationalError):  # how the connection learns that its server was away
            pipeline.database.execute("SELECT")
        pipeline.database.execute("DELETE FROM large WHERE id % 2 = 0")
        again = pipeline.start(120)
        assert not copying.report().is_complete
    pipeline.fence(while_running=again)
    assert "large" in marks(pipeline)
    last = {record.key: record for record in pipeline.records("large") if record.op != "t"}
    alive = [record for record in last.values() if record.value is not None and record.op != "d"]
    assert alive
    assert alive
    assert all(record.value["after"]["id"] % 2 == 1 for record in alive)
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same("large", while_running=again)
    assert_clean(pipeline.config, spark)


@pytest.mark.slow
def test_a_broker_killed_on_the_way_is_waited_for(
    make_pipeline: MakePipeline, spark: SparkSession, stack: Stack
) -> None:
    """Chunks that a killed broker interrupted are copied again when it is back, and every row is there once."""
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 8000, "connections": 2})
    make_large(pipeline, 60_000)
    capture = wait_for_hold(pipeline)
    with Copying(pipeline, spark) as copying:
        copying.wait_for_chunks(1)
        stack.stop("kafka", SIGKILL)
        stack.start("kafka")
        report = copying.report(240)
    assert report.is_complete
    eventually(lambda: pipeline.published_to() > 0, 60, "the stream")
    pipeline.assert_same("large", while_running=capture)
    assert len(copied(pipeline)) == 60_000


@pytest.mark.slow
def test_postgres_killed_under_a_running_capture(
    make_pipeline: MakePipeline, spark: SparkSession, stack: Stack
) -> None:
    """Capture notices that its exported snapshot is gone, keeps finished chunks, marks the rest incomplete, and
    streams.
    """
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 8000, "connections": 2})
    make_large(pipeline, 60_000)
    capture = wait_for_hold(pipeline)
    with Copying(pipeline, spark) as copying:
        copying.wait_for_chunks(1)
        stack.stop("postgres", SIGKILL)
        stack.start("postgres")
        with suppress(psycopg.OperationalError):  # how the connection learns that its server was away
            pipeline.database.execute("SELECT")
        pipeline.database.execute("DELETE FROM large WHERE id % 3 = 0")
        capture.wait_for_line('"streaming"', 120)
        assert not copying.report().is_complete
    assert 0 < len(copied(pipeline)) < 60_000
    assert "large" in marks(pipeline)
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same("large", while_running=capture)
