"""After `tailrace snapshot` of incomplete tables, the topics equal the source."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.kafka.topics import delete_topics
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks, wait_for_look
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.slow_commits import SlowCommits
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import RecordingView, copy_due, copying
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_changed_without_row_events_is_copied(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """The snapshot publishes every change that had no row events, under a constant load.

    Earlier rows, a column default, a retype, a rename, an attached and a detached partition, a table added during a
    transaction.
    """
    pipeline = make_pipeline()
    execute = pipeline.database.execute
    execute(SCHEMA)
    execute("CREATE TABLE altered (id int PRIMARY KEY, v text)")
    execute("INSERT INTO altered SELECT n FROM generate_series(1, 99) n")
    execute("CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    execute("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    execute("CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200)")
    execute("INSERT INTO parts SELECT n, 'part' FROM generate_series(0, 199) n")
    capture = pipeline.start()
    with Writer(pipeline.database):
        execute("UPDATE parts SET v = 'seen'")
        execute("ALTER TABLE altered ADD COLUMN w int DEFAULT 7, ALTER COLUMN id TYPE bigint USING id * 10")
        execute("ALTER TABLE altered RENAME COLUMN v TO x")
        execute("ALTER TABLE parts DETACH PARTITION high")
        execute("CREATE TABLE higher (LIKE parts INCLUDING ALL)")
        execute("INSERT INTO higher SELECT n, 'attached' FROM generate_series(200, 299) n")
        execute("ALTER TABLE parts ATTACH PARTITION higher FOR VALUES FROM (200) TO (300)")
        writer = pipeline.database.connect(autocommit=False)
        execute("CREATE TABLE added (id int PRIMARY KEY, v text)")
        writer.execute("INSERT INTO added SELECT n, 'open' FROM generate_series(1, 50) n")
        wait_for_look(pipeline, capture)
        writer.commit()
        capture.wait_for_line('public.added".*"table_added"', 60)
        wait_for_look(pipeline, capture)
        assert marks(pipeline).keys() >= {"altered", "parts", "added"}
        execute("VACUUM FULL altered")
        report = copy_due(pipeline, spark)
        assert report.is_complete, report.incomplete
    assert marks(pipeline) == {}
    pipeline.assert_same("altered", "parts", "added", "high", "items", while_running=capture)
    assert_clean(pipeline.config, spark)


def test_a_snapshot_of_one_pipeline_leaves_another_on_the_same_database_alone(
    make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path, tailrace: StartProcess
) -> None:
    """Two pipelines read the same watermarks in the log; the other pipeline ignores them."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    (tmp_path / "other").mkdir()
    other = Pipeline(
        database=database,
        bootstrap=pipeline.bootstrap,
        prefix=f"{pipeline.prefix}-b",
        folder=tmp_path / "other",
        start=tailrace,
    )
    other.slot_name = f"{pipeline.slot_name}_b"
    other.configure(source={"publication": "other"})
    capture, other_capture = pipeline.start(), other.start()
    database.execute("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 99) n")
    other.assert_same("t", while_running=other_capture)
    before = other.end_offsets("t")
    assert copy_due(pipeline, spark, "t").is_complete
    pipeline.assert_same("t", while_running=capture)
    assert [record.op for record in pipeline.records("t")].count("r") == 99
    other.fence(while_running=other_capture)
    assert other.end_offsets("t") == before, "not a record, not even a commit's"
    database.execute("DELETE FROM t WHERE id < 50")
    other.assert_same("t", while_running=other_capture)
    other_capture.stop()
    delete_topics(other.bootstrap, other.prefix)


def test_a_commit_that_is_streamed_before_it_is_visible(
    make_pipeline: MakePipeline, spark: SparkSession, slow_commits: SlowCommits
) -> None:
    """A chunk read before a streamed commit is visible is read again, and the streamed row stays."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n")
    capture = pipeline.start()
    slow_commits.begin()
    slow_commits.commit("UPDATE t SET v = 'new' WHERE id < 9; DELETE FROM t WHERE id = 9")
    # Sessions from now on, the copy's, do not wait for the standby.
    database.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = local")
    capture.wait_for(lambda: pipeline.rows_published("t") >= 9, 30, "the commit in the topic")
    ((seen,),) = database.execute("SELECT count(*) FROM t WHERE v = 'new'")
    assert seen == 0
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(copy_due, pipeline, spark, "t")
        capture.wait_for_line('"chunk_repeated".*not visible|not visible.*"chunk_repeated"', 60)
        slow_commits.end()
        assert copy.result(120).is_complete
    pipeline.assert_same("t", while_running=capture)
    assert_clean(pipeline.config, spark)


def test_named_table_and_condition(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Any table can be copied again; with a condition only the selected rows are, and no other row is removed."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'row' FROM generate_series(1, 100) n")
    capture = pipeline.start()
    copy_due(pipeline, spark, "public.t", where="id <= 10")
    assert len([record for record in pipeline.records("t") if record.op == "r"]) == 10
    copy_due(pipeline, spark, "t", where="id > 10")
    pipeline.assert_same("t", while_running=capture)
    copy_due(pipeline, spark, "t")
    pipeline.assert_same("t", while_running=capture)


def test_a_resumed_snapshot_restarts_a_table_that_was_rewritten(
    make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    """A snapshot resumed after VACUUM FULL or a detached partition reads that table from its start.

    Rows may have moved into blocks that were already read; the snapshot would miss them and then remove them.
    """
    pipeline = make_pipeline(snapshot={"initial": False, "chunk_mb": 1, "rows_per_second": 10_000, "connections": 1})
    execute = pipeline.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n")
    execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    execute("CREATE TABLE low PARTITION OF p FOR VALUES FROM (0) TO (100)")
    execute("CREATE TABLE high PARTITION OF p FOR VALUES FROM (100) TO (200)")
    execute("INSERT INTO p SELECT n FROM generate_series(0, 199) n")
    capture = pipeline.start()
    stop, view = threading.Event(), RecordingView()
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(copying, pipeline, spark, view, stop, "t", "p")
        eventually(lambda: any(report.chunks for report in view.reports) or copy.done(), 120, "a finished chunk")
        stop.set()
        assert copy.result(60).stopped
    execute("DELETE FROM t WHERE id <= 10000")
    execute("VACUUM FULL t")
    execute("DROP TABLE low")
    assert copy_due(pipeline, spark, "t", "p").is_complete
    assert copy_due(pipeline, spark).is_complete  # p is due again: a partition was dropped
    pipeline.assert_same("t", "p", while_running=capture)
    assert_clean(pipeline.config, spark)
