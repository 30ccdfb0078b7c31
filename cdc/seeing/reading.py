"""Asks everybody at once and makes the record: nobody waits for a server that is away longer than the deadline.

observer = Observer(config)
record = observer.look()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.secrets import redact
from cdc.seeing.assembling import Assembler, Readings
from cdc.seeing.clock import LogClock
from cdc.seeing.log_facts import LogReader
from cdc.seeing.record import Record, Trouble
from cdc.seeing.source_facts import SourceReader
from cdc.seeing.store_facts import StoreReader
from cdc.seeing.words import in_time
from sinks.registry import KINDS

T = TypeVar("T")

ONE_LOOK_SECONDS = 15.0
_CLOSE_SECONDS = 2.0


class _Asked(Generic[T]):
    """One reader in a thread of its own, asked again only when it has answered; its last answer stands meanwhile."""

    def __init__(self, read: Callable[[], T], close: Callable[[], None]) -> None:
        self._read = read
        self._close = close
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tailrace-seeing")
        self._pending: Future[T] | None = None
        self._asked_at = 0.0
        self.answer: T | None = None
        self.problem: str | None = None
        self.answered_at = 0.0

    def close(self) -> None:
        """In its own thread, after what it is doing now: a client must not be closed while another thread uses it."""
        closing = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        wait([closing], timeout=_CLOSE_SECONDS)

    def ask(self) -> Future[T]:
        if self._pending is None:
            self._asked_at = time.monotonic()
            self._pending = self._thread.submit(self._answered)
        return self._pending

    def _answered(self) -> T:
        answer = self._read()
        self.answered_at = time.monotonic()
        return answer

    def take(self) -> None:
        pending = self._pending
        if pending is None:
            return
        if not pending.done():
            self.problem = f"no answer for {in_time(time.monotonic() - self._asked_at)}"
            return
        self._pending = None
        try:
            self.answer, self.problem = pending.result(), None
        except TailraceError as error:
            self.problem = redact(error.message)
        except Exception as error:  # a library's own: looking must go on
            self.problem = redact(f"{type(error).__name__}: {error}".splitlines()[0][:300])


class Observer:
    """`look` is called by one thread. `troubles`: what somebody else knows, such as the parts of `tailrace run`."""

    def __init__(
        self, config: Config, stores: Sequence[str] | None = None, troubles: Callable[[], Sequence[Trouble]] = tuple
    ) -> None:
        names = (
            [name for name, store in config.stores.items() if store.kind in KINDS] if stores is None else list(stores)
        )
        clock = LogClock()
        source, log = SourceReader(config), LogReader(config, clock)
        opened = [StoreReader(config, name) for name in names]
        self._source = _Asked(source.read, source.close)
        self._log = _Asked(log.read, log.close)
        self._stores = {each.name: _Asked(each.read, each.close) for each in opened}
        self._assembler = Assembler(config, clock)
        self._troubles = troubles
        self._clock_ahead_seconds = 0.0

    def look(self, deadline_seconds: float = ONE_LOOK_SECONDS) -> Record:
        """The source first: then nobody looks behind for having been asked before it."""
        give_up_at = time.monotonic() + deadline_seconds
        wait([self._source.ask()], timeout=deadline_seconds / 2)
        others: list[_Asked[Any]] = [self._log, *self._stores.values()]
        wait([asked.ask() for asked in others], timeout=max(0.1, give_up_at - time.monotonic()))
        for asked in (self._source, *others):
            asked.take()
        return self._assembler.assemble(self._readings())

    def close(self) -> None:
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
            log=self._log.answer,
            stores={name: each.answer for name, each in self._stores.items()},
            problems={name: each.problem for name, each in asked.items() if each.problem is not None},
            troubles=self._troubles(),
        )


def look_once(config: Config, stores: Sequence[str] | None = None) -> Record:
    observer = Observer(config, stores)
    try:
        return observer.look()
    finally:
        observer.close()
