"""`tailrace snapshot` for a new pipeline: wait until the snapshot is there, copy, wait until capture has taken over.

Where no capture runs, this process makes the slot and holds the snapshot itself. Whatever breaks on the way is tried
again, or ends with what stands and what does not: it never starts from zero without saying so.
"""

from __future__ import annotations

import os
import signal
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
from cdc.snapshot.records import CopyProgress
from cdc.snapshot.table_status import read_status
from cdc.startup.snapshot_host import FirstCopyHost, hosted_first_copy
from spark_jobs.session.spark_session import spark_session, start_workers
from spark_jobs.session.worker_daemon import MODULES_VARIABLE
from spark_jobs.snapshot.initial_driver import CopyDriver, CopyRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("copy")

Session = Callable[[], "SparkSession"]
Sessions = Callable[[], AbstractContextManager[Session]]

_LOOK_SECONDS = 0.5
_RETRY_SECONDS = 2.0


class SnapshotView(Protocol):
    """Where a person or a program looks on."""

    def waiting(self, what: str) -> None: ...

    def progress(self, progress: CopyProgress) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """`status` is None before capture's first start (`cdc.snapshot.table_status`); `progress` before the first row."""

    status: dict[str, Any] | None
    progress: CopyProgress | None
    stopped: bool

    @property
    def incomplete(self) -> list[dict[str, Any]]:
        tables = [] if self.status is None else self.status["tables"]
        return [table for table in tables if not table["complete"]]

    @property
    def is_complete(self) -> bool:
        return self.status is not None and self.status["state"] == "streaming" and not self.incomplete


def copy_first(
    config: Config, view: SnapshotView, stop: threading.Event, sessions: Sessions | None = None
) -> SnapshotReport:
    """Ends when the stream has begun, or when asked to stop. `sessions`: where there is a Spark session already."""
    status = read_status(config)
    if status is not None and status["state"] == "streaming":
        return SnapshotReport(status=status, progress=None, stopped=False)
    with hosted_first_copy(config) as host, (sessions or partial(one_session, config))() as session:
        progress = _Driving(config, view, stop, host, session).until_streaming()
    return SnapshotReport(status=read_status(config), progress=progress, stopped=stop.is_set())


@contextmanager
def one_session(config: Config) -> Iterator[Session]:
    """Started when the first chunk is to run: a resumed copy may have none left."""
    started: list[SparkSession] = []

    def session() -> SparkSession:
        if not started:
            with _kept_signals():
                started.append(spark_session(_for_chunks(config), "tailrace snapshot"))
                start_workers(started[0])
        return started[0]

    try:
        yield session
    finally:
        for each in started:
            each.stop()


@contextmanager
def _kept_signals() -> Iterator[None]:
    """pyspark takes Ctrl-C for itself, and would end us in the middle of whatever we do."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


class _Driving:
    def __init__(
        self, config: Config, view: SnapshotView, stop: threading.Event, host: FirstCopyHost, session: Session
    ) -> None:
        self._config = config
        self._view = view
        self._stop = stop
        self._host = host
        self._session = session
        self._through: str | None = None  # the copy that has nothing left to do for us
        self._last: CopyProgress | None = None

    def until_streaming(self) -> CopyProgress | None:
        while not self._stop.is_set():
            if self._host.trouble is not None:
                raise self._host.trouble
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
            with CopyDriver(self._config, watch=self._view.progress, stop=self._stop) as driver:
                prepared = driver.prepare(found.copy)
                run = None if prepared is None else driver.run(prepared, self._session)
            self._remember(found.copy, run)
        self._stop.wait(_LOOK_SECONDS)

    def _remember(self, copy: str, run: CopyRun | None) -> None:
        if run is not None:
            self._last = run.progress
        if run is None or run.lost:
            raise TransientError("The copy's snapshot is gone; waiting until capture gives the copy up.")
        if not run.stopped:
            self._through = copy

    def _progress(self) -> Progress | None:
        if read_status(self._config) is None:  # not even the topic, perhaps
            return None
        kafka = self._config.kafka
        return read_progress(kafka.client_options(), control_topic(kafka.prefix, Control.PROGRESS), timeout_seconds=10)


def _for_chunks(config: Config) -> SparkConfig:
    """A chunk waits as often as it computes (for its fence, its commit, the source): more of them than cores.

    Java only hands them out, so its second compiler would take more of the processor than it gives.
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
