"""Waiting for blocking calls without neglecting the replication connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cdc.errors import TransientError
from cdc.postgres.replication import ReplicationStream
from cdc.postgres.worker_thread import Worker

T = TypeVar("T")

# How long a stop may wait for Kafka.
_STOP_SECONDS = 5.0
_ROOM_SECONDS = 0.005


class StreamWaiter:
    """Calls run in the worker thread; meanwhile the stream is read ahead and its keepalives are answered."""

    def __init__(self, worker: Worker, stop: threading.Event, server_lost: Callable[[], bool]) -> None:
        self._worker = worker
        self._stop = stop
        self._server_lost = server_lost

    def call(self, call: Callable[[], T], stream: ReplicationStream) -> T:
        return self.wait(self._worker.submit(call), stream)

    def wait(self, future: Future[T], stream: ReplicationStream) -> T:
        stream.watch(self._worker.wake_fd)
        self._wait_while(lambda: not future.done(), stream, 0.5)
        self._worker.drain()
        return future.result()

    def wait_while(self, is_full: Callable[[], bool], stream: ReplicationStream) -> None:
        """Backpressure. Nothing tells when there is room: it is looked at often."""
        self._wait_while(is_full, stream, _ROOM_SECONDS)

    def _wait_while(self, goes_on: Callable[[], bool], stream: ReplicationStream, poll_seconds: float) -> None:
        began_at = time.monotonic()
        while goes_on():
            stream.pump(poll_seconds)
            self._worker.drain()
            self.raise_if_lost()
            if self._stop.is_set() and time.monotonic() > began_at + _STOP_SECONDS:
                raise TransientError("Asked to stop; Kafka does not answer. What is not published stays in the slot.")

    def wait_for_room(self, stream: ReplicationStream) -> None:
        """The producer's queue is full: backpressure. The worker thread just waits, it may not touch the stream."""
        if self._worker.is_current():
            time.sleep(_ROOM_SECONDS)
        else:
            stream.pump(_ROOM_SECONDS)
            self.raise_if_lost()

    def raise_if_lost(self) -> None:
        if self._server_lost():
            raise TransientError("Postgres is stopping or has gone away.")
