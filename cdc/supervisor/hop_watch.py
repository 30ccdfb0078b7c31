"""Polls the lag of each hop (source, slot, topics, stores) in its own thread. It only reads.

A server that does not answer makes the figures old, but does not slow down the supervisor.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from cdc.config import Config
from cdc.lsn import LSN
from cdc.monitoring.observer import Observer
from cdc.monitoring.status_record import PipelineStatus, SlotStatus
from cdc.monitoring.store_lag import StoreLags, lag_of

# The deadline of one poll: a server that does not answer delays the figures of the others by at most this time.
_POLL_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLag:
    """The slot's lag. `bytes`: WAL written and not confirmed. `left_bytes`: None if the server has no limit."""

    confirmed: LSN
    bytes: int
    left_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """The figures of one poll. A figure is None if it is unknown; the problem has the reason."""

    slot: SlotLag | None = None
    slot_problem: str | None = None
    lag: StoreLags | None = None
    lag_problem: str | None = None
    read_at: float = 0.0  # seconds since 1970

    @property
    def problems(self) -> list[str]:
        """The errors of the last poll."""
        return [problem for problem in (self.slot_problem, self.lag_problem) if problem is not None]


def hops_of(record: PipelineStatus) -> Hops:
    """Extract the figures from a status record."""
    return Hops(
        slot=_slot(record.slot),
        slot_problem=f"source: {record.source.problem}" if record.source.problem else None,
        lag=lag_of(record),
        lag_problem=record.topics.problem,
        read_at=record.read_at,
    )


def _slot(slot: SlotStatus) -> SlotLag | None:
    if slot.confirmed is None or slot.bytes is None:
        return None
    return SlotLag(confirmed=slot.confirmed, bytes=slot.bytes, left_bytes=slot.left_bytes)


class HopWatch:
    """Polls in a thread. `hops`: the last figures. `interval_seconds`: the pause between two polls."""

    def __init__(self, config: Config, stores: Sequence[str], interval_seconds: float) -> None:
        self.hops = Hops()
        self._config = config
        self._stores = tuple(stores)
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hops", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        observer = Observer(self._config, self._stores)
        try:
            while not self._stop.is_set():
                self.hops = hops_of(observer.poll(_POLL_SECONDS))
                self._stop.wait(self._interval_seconds)
        finally:
            observer.close()
