"""Runs a store's batches: a loop that asks Kafka for the end offsets and applies the records that lie before them.

A batch is a range of offsets in each partition. The driver remembers only the offsets that it has applied, and starts
from those of the store's position. It does no work of its own on records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cdc.errors import TailraceError, TransientError
from cdc.positions.progress import Progress
from spark_jobs.tasks.task_errors import error_line
from spark_jobs.writing.contract import Offsets

# While there is nothing to read, the driver asks Kafka after each of these waits, the last one again and again. A
# progress record ends a wait, and the waits start over: its transaction becomes visible partition by partition.
_IDLE_WAITS_SECONDS: Final = (0.005, 0.01, 0.02, 0.04, 0.1)
_LONGEST_STEP_SECONDS: Final = 0.5

#: Applies the records between two offsets of each partition, and saves the second ones as the store's position.
ApplyBatch = Callable[[Offsets, Offsets], None]
#: Waits, at most so many seconds, until the newest progress record is another than this one; returns the newest one.
WaitForProgress = Callable[[Progress | None, float], Progress | None]


class BatchDriver:
    """Runs batches one after another. One thread may use it."""

    def __init__(
        self,
        *,
        starting: Offsets,
        end_offsets: Callable[[], Offsets],
        apply_batch: ApplyBatch,
        wait_for_progress: WaitForProgress,
        events_per_batch: int,
        interval_seconds: float,
        stop: threading.Event,
    ) -> None:
        """`end_offsets` returns the present end of the committed records in each partition.

        `interval_seconds` is the shortest time between the starts of two batches.
        """
        self._applied: Offsets = {topic: list(offsets) for topic, offsets in starting.items()}
        self._end_offsets = end_offsets
        self._apply_batch = apply_batch
        self._wait_for_progress = wait_for_progress
        self._events_per_batch = events_per_batch
        self._interval_seconds = interval_seconds
        self._stop = stop
        self._start_at = time.monotonic()
        self._waits = 0
        self._progress: Progress | None = None

    def step(self) -> None:
        """Run the next batch if one is due and there is something to read; otherwise wait at most half a second."""
        early_seconds = self._start_at - time.monotonic()
        if early_seconds > 0:
            self._stop.wait(min(early_seconds, _LONGEST_STEP_SECONDS))
            return
        ends = next_ends(self._applied, self._end_offsets(), self._events_per_batch)
        if ends == self._applied:
            self._wait()
            return
        self._start_at = time.monotonic() + self._interval_seconds
        self._waits = 0
        self._run(ends)

    def _run(self, ends: Offsets) -> None:
        try:
            self._apply_batch(self._applied, ends)
        except TailraceError:
            raise
        except Exception as error:
            raise TransientError(f"A batch failed: {error_line(error)}.") from error
        self._applied = ends

    def _wait(self) -> None:
        seconds = _IDLE_WAITS_SECONDS[min(self._waits, len(_IDLE_WAITS_SECONDS) - 1)]
        before, self._progress = self._progress, self._wait_for_progress(self._progress, seconds)
        self._waits = self._waits + 1 if self._progress is before else 0


def next_ends(applied: Offsets, ends: Mapping[str, Sequence[int]], most: int) -> Offsets:
    """Return the end offsets of the next batch: of about `most` offsets, and equal to `applied` if there are none.

    Each partition gets a share in proportion to its backlog, and at least one offset if it has a backlog.
    """
    backlogs = {topic: [end - start for start, end in _pairs(topic, applied, ends)] for topic in applied}
    total = sum(sum(each) for each in backlogs.values())
    found = {}
    for topic, sizes in backlogs.items():
        shares = [min(size, max(1, size * most // total)) if size else 0 for size in sizes]
        found[topic] = [start + share for start, share in zip(applied[topic], shares, strict=True)]
    return found


def _pairs(topic: str, applied: Offsets, ends: Offsets) -> list[tuple[int, int]]:
    found = list(zip(applied[topic], ends[topic], strict=True))
    if any(end < start for start, end in found):
        raise TransientError(f"Topic {topic} ends before the offset that was read: it was created again.")
    return found
