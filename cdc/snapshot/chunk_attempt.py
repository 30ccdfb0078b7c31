"""One attempt at a snapshot chunk: its outcome as the driver sees it, and the rate limit of its reads.

Both kinds of snapshot use it. An attempt returns its errors, so that the driver decides about a retry and not Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import psycopg

from cdc.errors import RefusedError, TailraceError
from cdc.postgres.connection import explain
from cdc.snapshot.records import ChunkState
from cdc.snapshot.source_reader import SnapshotLostError


class AttemptOutcome(Enum):
    """How an attempt at a chunk ended."""

    DONE = "done"
    STOPPED = "stopped"  # the snapshot is no longer running
    LOST = "lost"  # the exported Postgres snapshot no longer exists; capture decides what to do
    FAILED = "failed"  # a retry may succeed
    REFUSED = "refused"  # the operator must decide
    SKIPPED = "skipped"  # did not run: the operator has cancelled the snapshot of its tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of an attempt. Spark sends it to the driver, so it contains plain data and no secrets."""

    number: int
    ending: AttemptOutcome
    chunk: ChunkState | None = None
    message: str = ""
    remedy: str | None = None
    high: int = 0  # incremental snapshot only: LSN of the high watermark, at which capture publishes or rejects it


def run_attempt(number: int, run: Callable[[], Attempt]) -> Attempt:
    """Run an attempt and return errors as its result, so that the driver decides about a retry and not Spark."""
    try:
        return run()
    except SnapshotLostError as error:
        return Attempt(number=number, ending=AttemptOutcome.LOST, message=str(error))
    except RefusedError as error:
        return Attempt(number=number, ending=AttemptOutcome.REFUSED, message=error.message, remedy=error.remedy)
    except TailraceError as error:
        return Attempt(number=number, ending=AttemptOutcome.FAILED, message=error.message, remedy=error.remedy)
    except psycopg.Error as error:
        return Attempt(number=number, ending=AttemptOutcome.FAILED, message=f"Postgres: {explain(error)}")


class RateLimiter:
    """Limits a task to a number of rows per second. 0 means no limit."""

    def __init__(
        self,
        rows_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._started = clock()
        self._rows = 0

    def passed(self, rows: int) -> None:
        if self._rate:
            self._rows += rows
            ahead = self._rows / self._rate - (self._clock() - self._started)
            if ahead > 0:
                self._sleep(ahead)
