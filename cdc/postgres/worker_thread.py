"""A thread for blocking calls, so that the thread that owns the replication connection never blocks."""

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
    """One call at a time. A daemon: a call that hangs (a broker that never answers) must not keep the process alive.

    `wake_fd` becomes readable when a call ends, for a `select` that waits on sockets at the same time.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def drain(self) -> None:
        """Take back the wake-ups that have been seen."""
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Ends after the call under way, if that ever ends; the pipe is left to the process's end in that case."""
        self._calls.put(None)

    def _run(self) -> None:
        while (task := self._calls.get()) is not None:
            future, call = task
            try:
                result = call()
            except BaseException as error:  # it is handed to whoever waits
                future.set_exception(error)
            else:
                future.set_result(result)
            self._wake()
        os.close(self.wake_fd)
        os.close(self._write_fd)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._write_fd, b".")
