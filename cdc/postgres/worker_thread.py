"""A thread for blocking calls. The thread that owns the replication connection never blocks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Runs submitted calls in one daemon thread, one after the other.

    The thread is a daemon because a call may hang for ever (a broker that never responds), and the process must still
    be able to exit. `wake_fd` becomes readable when a call ends, so that a `select` can wait for calls and sockets
    together.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue the call and return its future."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def drain(self) -> None:
        """Empty the wake-up pipe, so that `wake_fd` is no longer readable."""
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass

    def is_current(self) -> bool:
        """True if the caller runs in the worker thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread after the calls that are already queued.

        If the current call hangs, the thread and the pipe stay open until the process exits.
        """
        self._calls.put(None)

    def _run(self) -> None:
        while (task := self._calls.get()) is not None:
            future, call = task
            try:
                result = call()
            except BaseException as error:  # the waiting thread gets the error from the future
                future.set_exception(error)
            else:
                future.set_result(result)
            self._wake()
        os.close(self.wake_fd)
        os.close(self._write_fd)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so `wake_fd` is readable already
            os.write(self._write_fd, b".")
