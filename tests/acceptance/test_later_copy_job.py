"""`tailrace snapshot` for tables that have become incomplete: after it, the topics equal the source."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc.config import load_config
from cdc.copies.records import CopyProgress
from spark_jobs.due_copies import copy_what_is_due
from spark_jobs.first_copy import Report, Session
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.table_states import marks, wait_for_look
from tests.harness.writer import SCHEMA, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Nobody:
    """Looks on."""

    def waiting(self, what: str) -> None: ...

    def progress(self, progress: CopyProgress) -> None: ...


def copy_due(pipeline: Pipeline, spark: SparkSession, *tables: str, where: str = "") -> Report:
    @contextmanager
    def session() -> Iterator[Session]:
        yield lambda: spark

    config = load_config(pipeline.config)
    return copy_what_is_due(config, _Nobody(), threading.Event(), tables=tables, where=where, sessions=session)


def test_what_changed_without_row_events_is_copied(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Rows from before, a column with a default, a retype, a rename, a partition that came and one that went, a table
    that had an open writer when it was published: all are in the topics after the copy, under a constant load."""
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


def test_named_table_and_condition(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Any table can be copied again; with a condition only those rows are, and no row of it is taken for gone."""
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
