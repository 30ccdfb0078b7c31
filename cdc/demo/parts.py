"""The parts of the demo. The demo starts them in order, displays their figures, and stops them in reverse order.

This module has the writer's part. `pipeline_process` has the pipeline's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from cdc.demo.writer import Counts, ShopWriter


class Figure(NamedTuple):
    """One figure to display. `value` is formatted text."""

    label: str
    value: str


class DemoPart(Protocol):
    """A part of the demo. If it ends early, `healthy` becomes false and `stop` raises the cause."""

    name: str

    @property
    def healthy(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def figures(self) -> Sequence[Figure]: ...


class WriterPart:
    """The shop's writer. Its rates are those since the previous call of `figures`."""

    name = "shop"

    def __init__(self, writer: ShopWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._seen = (clock(), writer.counts)

    @property
    def healthy(self) -> bool:
        return not self._writer.failed

    def start(self) -> None:
        self._writer.start()
        self._seen = (self._clock(), self._writer.counts)

    def stop(self) -> None:
        self._writer.stop()

    def figures(self) -> Sequence[Figure]:
        now, counts = self._clock(), self._writer.counts
        (then, before), self._seen = self._seen, (now, counts)
        if not counts.connected:
            return [Figure("writer", f"waiting for Postgres, {counts.transactions:,} transactions so far")]
        return [*_rates(before, counts, now - then), Figure("written", f"{counts.rows:,} rows")]


def _rates(before: Counts, now: Counts, seconds: float) -> list[Figure]:
    per_second = 1 / seconds if seconds > 0 else 0.0
    return [
        Figure(label, f"{(after - earlier) * per_second:,.1f}/s")
        for label, earlier, after in (
            ("transactions", before.transactions, now.transactions),
            ("inserts", before.inserted, now.inserted),
            ("updates", before.updated, now.updated),
            ("deletes", before.deleted, now.deleted),
        )
    ]
