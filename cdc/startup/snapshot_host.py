"""An initial snapshot without a running capture: `tailrace snapshot` creates the slot and keeps the snapshot open.

It starts like capture, and ends where streaming would begin. While a capture runs, this is only its standby.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cdc.config import Config
from cdc.errors import TailraceError, TransientError
from cdc.logs import get_logger
from cdc.postgres.connection import explain
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.worker_thread import Worker
from cdc.startup.startup import start

log = get_logger("initial_snapshot")

_RETRY_SECONDS = 2.0
# If capture starts at the same time, let it acquire the slot and keep the snapshot open: it runs longer than this job.
_CAPTURE_FIRST_SECONDS = 5.0


class InitialSnapshotHost:
    """Runs the first start in a thread. `failure`: the error that ended it, for the caller that waits."""

    def __init__(self, config: Config) -> None:
        self.failure: TailraceError | None = None
        self._config = config
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-initial-snapshot", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        self._stop.wait(_CAPTURE_FIRST_SECONDS)
        while not self._stop.is_set():
            try:
                self._hold_once()
                return
            except (TransientError, psycopg.Error) as error:
                reason = explain(error) if isinstance(error, psycopg.Error) else str(error)
                log.warning("retrying", reason=reason, in_seconds=_RETRY_SECONDS)
                self._stop.wait(_RETRY_SECONDS)
            except TailraceError as error:
                self.failure = error
                return

    def _hold_once(self) -> None:
        worker = Worker("tailrace-kafka")
        try:
            started = start(self._config, StreamWaiter(worker, self._stop, lambda: False), stop=self._stop)
            if started is not None:
                started.stream.close()
                started.publisher.abandon()
                started.catalog.close()
                started.topics.close()
        finally:
            worker.close()


@contextmanager
def hosted_initial_snapshot(config: Config) -> Iterator[InitialSnapshotHost]:
    """Keep the exported snapshot open in a thread while the context is active."""
    host = InitialSnapshotHost(config)
    host.start()
    try:
        yield host
    finally:
        host.stop()
