"""Runs all snapshots that are due: first the initial snapshot, then incremental snapshots of incomplete tables."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial

from cdc.config import Config
from cdc.errors import TransientError, UsageError
from cdc.logs import get_logger
from cdc.snapshot.records import SnapshotProgress
from cdc.snapshot.requests import read_requests, write_requests
from cdc.snapshot.table_status import read_status
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import read_recorded_states
from spark_jobs.snapshot.incremental import CANCELLED, IncrementalSnapshotDriver
from spark_jobs.snapshot.initial import (
    Session,
    Sessions,
    SnapshotReport,
    SnapshotView,
    one_session,
    take_initial_snapshot,
)
from spark_jobs.snapshot.initial_driver import SnapshotRun

log = get_logger("snapshot")

_RETRY_SECONDS = 2.0
# A table that is rewritten in every round cannot be copied. After so many rounds the operator must decide.
_MOST_ROUNDS = 10


def take_due_snapshots(
    config: Config,
    view: SnapshotView,
    stop: threading.Event,
    *,
    tables: Collection[str] = (),
    where: str = "",
    sessions: Sessions | None = None,
) -> SnapshotReport:
    """Run the initial snapshot if it is not complete, then incremental snapshots. Returns the result.

    `tables` names tables to read, complete or not. If it is empty, the incomplete tables are read.
    `where` is an SQL condition for the rows of `tables`.
    """
    with (sessions or partial(one_session, config))() as session:
        report = take_initial_snapshot(config, view, stop, lambda: _Given(session))
        if report.status is None or report.status["state"] != "streaming" or stop.is_set():
            return report
        incremental = _IncrementalSnapshots(config, view, stop, session)
        progress = incremental.named(tables, where) if tables else incremental.incomplete()
    return SnapshotReport(status=read_status(config), progress=progress or report.progress, stopped=stop.is_set())


class _Given:
    """A Spark session that the caller owns and ends."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        return self._session

    def __exit__(self, *_: object) -> None:
        return None


class _IncrementalSnapshots:
    def __init__(self, config: Config, view: SnapshotView, stop: threading.Event, session: Session) -> None:
        self._config = config
        self._view = view
        self._stop = stop
        self._session = session

    def incomplete(self) -> SnapshotProgress | None:
        """Copy incomplete tables until none is left. Returns the last progress.

        It takes several rounds if a table is rewritten while it is copied.
        """
        last: SnapshotProgress | None = None
        for _ in range(_MOST_ROUNDS):
            states = self._states()
            wanted = (
                states.due(first=self._config.snapshot.initial) - read_requests(self._config.kafka).cancelled.keys()
            )
            due = {oid for oid, state in states.tables.items() if state.topic in wanted}
            if not due or self._stop.is_set():
                break
            run = self._copy(due, "")
            last = last if run is None else run.progress
        return last

    def named(self, names: Collection[str], where: str) -> SnapshotProgress | None:
        """Copy the named tables, and end a cancellation of them. Returns the last progress."""
        states = self._states()
        oids = {f"{state.schema}.{state.table}": oid for oid, state in states.tables.items()}
        wanted = [name if "." in name else f"public.{name}" for name in names]
        for name in wanted:
            if name not in oids:
                raise UsageError(
                    f"Table {name} is not captured.", remedy=f"Captured tables: {', '.join(sorted(oids)) or 'none'}."
                )
        requests = read_requests(self._config.kafka)
        topics = [states.tables[oids[name]].topic for name in wanted]
        if not requests.cancelled.keys().isdisjoint(topics):
            write_requests(self._config.kafka, requests.wanting(topics))
        for _ in range(_MOST_ROUNDS):
            run = self._copy({oids[name] for name in wanted}, where)
            if run is None or set(run.left_out.values()) <= {CANCELLED}:
                break
        return None if run is None else run.progress

    def _copy(self, oids: Collection[str], where: str) -> SnapshotRun | None:
        self._view.waiting("capture to pass the snapshot's watermarks (capture must be running)")
        while not self._stop.is_set():
            try:
                driver = IncrementalSnapshotDriver(self._config, watch=self._view.progress, stop=self._stop)
                with driver:
                    return driver.snapshot_tables(oids, where, self._session)
            except TransientError as error:
                log.warning("retrying", reason=str(error), in_seconds=_RETRY_SECONDS)
                self._stop.wait(_RETRY_SECONDS)
        return None

    def _states(self) -> TableStates:
        return read_recorded_states(self._config) or TableStates()
