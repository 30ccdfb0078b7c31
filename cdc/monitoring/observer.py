"""Polls Postgres, Kafka and the stores, and builds the status record within a deadline.

A server that does not answer delays a poll by at most the deadline.

observer = Observer(config)
record = observer.look()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.monitoring.facts.kafka import KafkaFactsReader
from cdc.monitoring.facts.source import SourceReader
from cdc.monitoring.facts.store import StoreReader
from cdc.monitoring.facts.wal_clock import WalClock
from cdc.monitoring.process_file import parts_path, read_process_errors
from cdc.monitoring.status_builder import Readings, StatusBuilder
from cdc.monitoring.status_record import PipelineStatus, ProcessError
from cdc.secrets import redact
from cdc.stores.registry import is_store_kind
from cdc.units import in_time

T = TypeVar("T")

POLL_TIMEOUT_SECONDS = 15.0
_CLOSE_SECONDS = 2.0


class _Asked(Generic[T]):
    """One reader in its own thread. It gets a new request only after it has answered the last one.

    Until then its previous answer remains valid. The thread is a daemon, so that a server that hangs cannot delay the
    end of the process.
    """

    def __init__(self, read: Callable[[], T], close: Callable[[], None]) -> None:
        self._read = read
        self._close = close
        self._wanted, self._done = threading.Event(), threading.Event()
        self._is_asked = self._stopping = False
        self._asked_at = 0.0
        self._found: tuple[T | None, str | None] = None, None
        self.answer: T | None = None
        self.problem: str | None = None
        self.answered_at = 0.0
        self._thread = threading.Thread(target=self._run, name="tailrace-observer", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Request a new answer, unless a request is still open."""
        if not self._is_asked:
            self._is_asked, self._asked_at = True, time.monotonic()
            self._done.clear()
            self._wanted.set()

    def wait(self, until: float) -> None:
        """Wait for the answer, up to this time of the monotonic clock."""
        self._done.wait(max(0.0, until - time.monotonic()))

    def take(self) -> None:
        """Set `answer` and `problem` from what has arrived. If no answer has arrived, only `problem` changes."""
        if not self._done.is_set():
            self.problem = f"no answer for {in_time(time.monotonic() - self._asked_at)}"
        elif self._is_asked:
            self._is_asked = False
            answer, self.problem = self._found
            if answer is not None:
                self.answer = answer

    def close(self) -> None:
        """Close the reader in its own thread, after its current request.

        A client must not be closed while another thread uses it.
        """
        self._stopping = True
        self._wanted.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                with suppress(Exception):  # the reader is discarded in any case
                    self._close()
                return
            self._found = self._poll()
            self._done.set()

    def _poll(self) -> tuple[T | None, str | None]:
        try:
            answer = self._read()
        except TailraceError as error:
            return None, redact(error.message)
        except Exception as error:  # from a client library: polling must continue
            return None, redact(f"{type(error).__name__}: {error}".splitlines()[0][:300])
        self.answered_at = time.monotonic()
        return answer, None


class Observer:
    """Builds status records. One thread calls `poll`.

    `process_errors` returns errors from another source, such as the parts of `tailrace run`.
    """

    def __init__(
        self,
        config: Config,
        stores: Sequence[str] | None = None,
        process_errors: Callable[[], Sequence[ProcessError]] = tuple,
    ) -> None:
        names = (
            [name for name, store in config.stores.items() if is_store_kind(store.kind)]
            if stores is None
            else list(stores)
        )
        clock = WalClock()
        source, log = SourceReader(config), KafkaFactsReader(config, clock)
        opened = [StoreReader(config, name) for name in names]
        self._source = _Asked(source.read, source.close)
        self._log = _Asked(log.read, log.close)
        self._stores = {each.name: _Asked(each.read, each.close) for each in opened}
        self._assembler = StatusBuilder(config, clock)
        self._process_errors = process_errors
        self._clock_ahead_seconds = 0.0

    def poll(self, deadline_seconds: float = POLL_TIMEOUT_SECONDS) -> PipelineStatus:
        """Poll every server and return the status record.

        The source is read first. Otherwise a hop that was read before the source would seem to be behind it.
        """
        now = time.monotonic()
        self._source.ask()
        self._source.wait(now + deadline_seconds / 2)
        others: list[_Asked[Any]] = [self._log, *self._stores.values()]
        for asked in others:
            asked.ask()
        for asked in others:
            asked.wait(now + deadline_seconds)
        for asked in (self._source, *others):
            asked.take()
        return self._assembler.assemble(self._readings())

    def close(self) -> None:
        """Close all readers."""
        asked: list[_Asked[Any]] = [self._source, self._log, *self._stores.values()]
        for each in asked:
            each.close()

    def _readings(self) -> Readings:
        asked: dict[str, _Asked[Any]] = {"source": self._source, "log": self._log, **self._stores}
        now = time.time() + self._clock_ahead_seconds
        if self._source.problem is None and self._source.answer is not None:
            now = self._source.answer.time
            self._clock_ahead_seconds = now - (time.time() - (time.monotonic() - self._source.answered_at))
        return Readings(
            now=now,
            source=self._source.answer,
            kafka_facts=self._log.answer,
            stores={name: each.answer for name, each in self._stores.items()},
            problems={name: each.problem for name, each in asked.items() if each.problem is not None},
            process_errors=self._process_errors(),
        )


def poll_once(config: Config, stores: Sequence[str] | None = None) -> PipelineStatus:
    """Poll every server once and return the status record. `stores`: None means every store of the config."""
    observer = Observer(config, stores, process_errors=lambda: read_process_errors(parts_path(config)))
    try:
        return observer.poll()
    finally:
        observer.close()
