"""The initial snapshot of `tailrace snapshot`: wait for the exported snapshot, copy, wait until capture streams.

If no capture runs, this process creates the slot and holds the exported snapshot itself. After an error it retries,
or it ends with a report of the tables that are complete and incomplete. It never starts from zero without a message.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from cdc.config import Config, SparkConfig
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress, read_progress
from cdc.postgres.connection import explain
from cdc.secrets import SecretOptions
from cdc.snapshot.records import SnapshotProgress
from cdc.snapshot.table_status import read_status
from cdc.startup.snapshot_host import InitialSnapshotHost, hosted_initial_snapshot
from cdc.stop_signals import kept_handlers
from spark_jobs.session.spark_session import spark_session, start_workers
from spark_jobs.session.worker_daemon import MODULES_VARIABLE
from spark_jobs.snapshot.initial_driver import SnapshotDriver, SnapshotRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("snapshot")

Session = Callable[[], "SparkSession"]
Sessions = Callable[[], AbstractContextManager[Session]]

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 2.0


class SnapshotView(Protocol):
    """Shows the operator or a program what the snapshot waits for, and how far it is."""

    def waiting(self, what: str) -> None: ...
    def progress(self, progress: SnapshotProgress) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """The result of `tailrace snapshot`.

    `status` (of `cdc.snapshot.table_status`) is None if capture has never started. `progress` is None if no row was
    copied.
    """

    status: dict[str, Any] | None
    progress: SnapshotProgress | None
    stopped: bool

    @property
    def incomplete(self) -> list[dict[str, Any]]:
        """The tables that need an incremental snapshot."""
        tables = [] if self.status is None else self.status["tables"]
        return [table for table in tables if not table["complete"]]

    @property
    def is_complete(self) -> bool:
        """Whether capture streams and every table is complete."""
        return self.status is not None and self.status["state"] == "streaming" and not self.incomplete


def take_initial_snapshot(
    config: Config, view: SnapshotView, stop: threading.Event, sessions: Sessions | None = None
) -> SnapshotReport:
    """Make the initial snapshot. Returns when capture streams, or when asked to stop.

    `sessions` provides the Spark session; None means a new session of this function's own.
    """
    status = read_status(config)
    if status is not None and status["state"] == "streaming":
        return SnapshotReport(status=status, progress=None, stopped=False)
    with hosted_initial_snapshot(config) as host, (sessions or partial(one_session, config))() as session:
        progress = _Driving(config, view, stop, host, session).until_streaming()
    return SnapshotReport(status=read_status(config), progress=progress, stopped=stop.is_set())


@contextmanager
def one_session(config: Config) -> Iterator[Session]:
    """Yields a function that starts the Spark session on its first call.

    A resumed snapshot may have no chunk left to run, and then needs no session.
    """
    started: list[SparkSession] = []

    def session() -> SparkSession:
        if not started:
            with kept_handlers():  # with pyspark's handler, Ctrl-C would end this process at any point
                started.append(spark_session(_for_chunks(config), "tailrace snapshot"))
                start_workers(started[0])
        return started[0]

    try:
        yield session
    finally:
        for each in started:
            each.stop()


class _Driving:
    def __init__(
        self, config: Config, view: SnapshotView, stop: threading.Event, host: InitialSnapshotHost, session: Session
    ) -> None:
        self._config = config
        self._view = view
        self._stop = stop
        self._host = host
        self._session = session
        self._through: str | None = None  # the snapshot of which this driver has finished its part
        self._last: SnapshotProgress | None = None

    def until_streaming(self) -> SnapshotProgress | None:
        """Run the snapshot until capture streams, with retries. Returns the last progress."""
        while not self._stop.is_set():
            if self._host.failure is not None:
                raise self._host.failure
            try:
                found = self._progress()
                if found is not None and found.state == "streaming":
                    break
                self._step(found)
            except (TransientError, psycopg.Error) as error:
                reason = explain(error) if isinstance(error, psycopg.Error) else str(error)
                log.warning("retrying", reason=reason, in_seconds=_RETRY_SECONDS)
                self._stop.wait(_RETRY_SECONDS)
        return self._last

    def _step(self, found: Progress | None) -> None:
        if found is None or found.state != "copying":
            self._view.waiting("the snapshot of a new slot")
        elif found.copy == self._through:
            self._view.waiting("capture to take over")
        else:
            with SnapshotDriver(self._config, watch=self._view.progress, stop=self._stop) as driver:
                prepared = driver.prepare(found.copy)
                run = None if prepared is None else driver.run(prepared, self._session)
            self._remember(found.copy, run)
        self._stop.wait(_POLL_SECONDS)

    def _remember(self, copy: str, run: SnapshotRun | None) -> None:
        if run is not None:
            self._last = run.progress
        if run is None or run.lost:
            raise TransientError("The exported snapshot is gone. Waiting until capture abandons this initial snapshot.")
        if not run.stopped:
            self._through = copy

    def _progress(self) -> Progress | None:
        if read_status(self._config) is None:  # the topic may not exist yet
            return None
        kafka = self._config.kafka
        return read_progress(kafka.client_options(), control_topic(kafka.prefix, Control.PROGRESS), timeout_seconds=10)


def _for_chunks(config: Config) -> SparkConfig:
    """Return Spark's settings for chunks: more task slots than cores.

    A chunk waits for its fence, its commit and the source about as long as it computes. Java only distributes the
    chunks, so its C2 compiler would take more CPU time than it saves.
    """
    settings = config.spark
    own = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        f"spark.executorEnv.{MODULES_VARIABLE}": "spark_jobs.snapshot.chunk_queue",
    }
    options = SecretOptions({**own, **settings.options})
    if settings.master != "local[*]":
        return replace(settings, options=options)
    return replace(settings, options=options, master=f"local[{max(os.cpu_count() or 1, config.snapshot.connections)}]")
