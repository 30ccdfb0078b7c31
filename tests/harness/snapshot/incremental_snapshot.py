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


class Onlooker:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[SnapshotProgress] = []

    def waiting(self, what: str) -> None: ...

    def progress(self, progress: SnapshotProgress) -> None:
        self.told.append(progress)


def copy_due(pipeline: Pipeline, spark: SparkSession, *tables: str, where: str = "") -> SnapshotReport:
    """Copy every incomplete table, or those named; capture must be running."""
    return copying(pipeline, spark, Onlooker(), threading.Event(), *tables, where=where)


def copying(
    pipeline: Pipeline,
    spark: SparkSession,
    onlooker: Onlooker,
    stop: threading.Event,
    *tables: str,
    where: str = "",
) -> SnapshotReport:
    @contextmanager
    def session() -> Iterator[Session]:
        yield lambda: spark

    return take_due_snapshots(
        load_config(pipeline.config), onlooker, stop, tables=tables, where=where, sessions=session
    )
