"""Incremental snapshots under test: `tailrace snapshot`'s own code on the run's Spark session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc.config import load_config
from cdc.snapshot.records import SnapshotProgress
from spark_jobs.snapshot.due_snapshots import take_due_snapshots
from spark_jobs.snapshot.initial import Session, SnapshotReport
from tests.harness.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RecordingView:
    """A view of a snapshot that keeps all reports of its progress."""

    def __init__(self) -> None:
        self.reports: list[SnapshotProgress] = []

    def waiting(self, what: str) -> None: ...

    def progress(self, progress: SnapshotProgress) -> None:
        self.reports.append(progress)


def copy_due(pipeline: Pipeline, spark: SparkSession, *tables: str, where: str = "") -> SnapshotReport:
    """Copy every incomplete table, or those named; capture must be running."""
    return copying(pipeline, spark, RecordingView(), threading.Event(), *tables, where=where)


def copying(
    pipeline: Pipeline,
    spark: SparkSession,
    view: RecordingView,
    stop: threading.Event,
    *tables: str,
    where: str = "",
) -> SnapshotReport:
    @contextmanager
    def session() -> Iterator[Session]:
        yield lambda: spark

    return take_due_snapshots(load_config(pipeline.config), view, stop, tables=tables, where=where, sessions=session)
