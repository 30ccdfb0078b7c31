"""Waiting for blocking calls while the replication connection continues to read and to send status updates."""

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

# After a stop request, the longest wait for Kafka.
_STOP_SECONDS = 5.0
_ROOM_SECONDS = 0.005


class StreamWaiter:
    """Runs calls in the worker thread. Meanwhile it reads the stream ahead and answers the server's keepalives."""

    def __init__(self, worker: Worker, stop: threading.Event, server_lost: Callable[[], bool]) -> None:
        self._worker = worker
        self._stop = stop
        self._server_lost = server_lost

    def call(self, call: Callable[[], T], stream: ReplicationStream) -> T:
        """Run the call in the worker thread and return its result."""
        return self.wait(self._worker.submit(call), stream)

    def wait(self, future: Future[T], stream: ReplicationStream) -> T:
        """Wait for the worker's future and return its result."""
        stream.watch(self._worker.wake_fd)
        self._wait_while(lambda: not future.done(), stream, 0.5)
        self._worker.drain()
        return future.result()

    def wait_while(self, is_full: Callable[[], bool], stream: ReplicationStream) -> None:
        """Wait until `is_full` returns False (backpressure). No event signals free space, so this polls every 5 ms."""
        self._wait_while(is_full, stream, _ROOM_SECONDS)

    def _wait_while(self, goes_on: Callable[[], bool], stream: ReplicationStream, poll_seconds: float) -> None:
        began_at = time.monotonic()
        while goes_on():
            stream.pump(poll_seconds)
            self._worker.drain()
            self.raise_if_lost()
            if self._stop.is_set() and time.monotonic() > began_at + _STOP_SECONDS:
                raise TransientError(
                    "Capture received a stop signal while Kafka does not respond. The slot keeps unpublished changes."
                )

    def wait_for_room(self, stream: ReplicationStream) -> None:
        """Wait a moment because the producer's queue is full (backpressure).

        The worker thread only sleeps: the main thread alone may use the stream. Before the stream starts, there is
        nothing to read.
        """
        if self._worker.is_current() or not stream.is_started:
            time.sleep(_ROOM_SECONDS)
        else:
            stream.pump(_ROOM_SECONDS)
            self.raise_if_lost()

    def raise_if_lost(self) -> None:
        """Raise TransientError if the server is shutting down or the connection to it is lost."""
        if self._server_lost():
            raise TransientError("Postgres is shutting down, or the connection to it is lost.")
