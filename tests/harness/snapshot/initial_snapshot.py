"""An initial snapshot under test: `tailrace snapshot`'s own code in a thread, on the run's Spark session.

Only tests that kill `tailrace snapshot` start it as a process; all others share one Spark session.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from cdc.config import load_config
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import ChunkState, SnapshotProgress, SnapshotState
from spark_jobs.snapshot.initial import Session, SnapshotReport, take_initial_snapshot
from spark_jobs.snapshot.initial_driver import PreparedSnapshot, SnapshotDriver
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_INITIAL_SNAPSHOT = {"initial": True, "chunk_mb": 1}


class Copying:
    """`with Copying(pipeline, spark) as copying:` … `copying.report()`; leaving the block stops it."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self.chunks = 0
        self._config = load_config(pipeline.config)
        self._spark = spark
        self._stop = threading.Event()
        self._report: SnapshotReport | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="copying", daemon=True)

    def __enter__(self) -> Copying:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    def report(self, deadline_seconds: float = 120) -> SnapshotReport:
        self._thread.join(timeout=deadline_seconds)
        if self._error is not None:
            raise self._error
        assert self._report is not None, f"the copy has not ended after {deadline_seconds:g} s"
        return self._report

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait_for_chunks(self, count: int) -> None:
        eventually(lambda: self.chunks >= count or not self._thread.is_alive(), 120, f"{count} finished chunks")
        assert self.chunks >= count, self._error

    # What `take_initial_snapshot` tells.

    def waiting(self, what: str) -> None:
        """Nothing to remember."""

    def progress(self, progress: SnapshotProgress) -> None:
        self.chunks = progress.chunks

    def _run(self) -> None:
        try:
            self._report = take_initial_snapshot(self._config, self, self._stop, self._session)
        except BaseException as error:
            self._error = error

    @contextmanager
    def _session(self) -> Iterator[Session]:
        yield lambda: self._spark


def copies(pipeline: Pipeline) -> list[SnapshotState]:
    """All snapshots that were begun, oldest first."""
    with SnapshotLog(load_config(pipeline.config).kafka) as log:
        return sorted(log.refresh_to_end().copies.values(), key=lambda copy: copy.started_ms)


def chunks(pipeline: Pipeline) -> list[ChunkState]:
    """The chunks of the latest snapshot."""
    with SnapshotLog(load_config(pipeline.config).kafka) as log:
        return list(log.refresh_to_end().chunks.get(copies(pipeline)[-1].id, {}).values())


def wait_for_hold(pipeline: Pipeline) -> Process:
    """Start capture and wait until it holds the exported snapshot."""
    capture = pipeline.launch()
    capture.wait_for_line('"waiting_for_initial_snapshot"', 90)
    return capture


def prepared(pipeline: Pipeline) -> PreparedSnapshot:
    """The snapshot that capture has opened, planned, without a chunk run."""
    with SnapshotDriver(load_config(pipeline.config), watch=lambda _: None, stop=threading.Event()) as driver:
        found = driver.prepare(copies(pipeline)[-1].id)
    assert found is not None
    return found
