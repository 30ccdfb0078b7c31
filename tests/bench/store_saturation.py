"""Both stores fed as fast as they take rows: the writer keeps a fixed number of rows ahead of the slower store.

A writer that never waited would only measure how long it wrote: the rows of an open queue wait longer and longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from tests.bench import latency
from tests.bench.store_readers import StoreReader, Watcher
from tests.bench.store_source import StoreSource

ROWS_AHEAD: Final = 20_000
_ROWS_PER_COMMIT: Final = 100
_WATCHED: Final = 100
_MOST_PER_SECOND: Final = 30_000  # watchers look through all rows that may come
_WARM_SHARE: Final = 0.3


def saturate(
    source: StoreSource,
    table: str,
    readers: Mapping[str, StoreReader],
    checks: Sequence[Callable[[], None]],
    *,
    first_id: int,
    seconds: float,
) -> dict[str, dict[str, float]]:
    """By store: rows a second, and commit to visible of every hundredth row; the first part of the time is left out."""
    written = first_id - 1
    most = first_id + int(seconds * _MOST_PER_SECOND)
    ids = list(range(first_id, most, _WATCHED))

    def due(row_id: int) -> float:
        return 0.0 if row_id <= written else math.inf

    watchers = {name: Watcher(reader, ids, due) for name, reader in readers.items()}
    for watcher in watchers.values():
        watcher.start()
    began = time.monotonic()
    warm_until = first_id
    try:
        while time.monotonic() - began < seconds and written < most - _ROWS_PER_COMMIT:
            for check in checks:
                check()
            slowest = min(first_id - 1 + len(watcher.arrived_us) * _WATCHED for watcher in watchers.values())
            if written - slowest >= ROWS_AHEAD:
                time.sleep(0.005)
                continue
            source.append(table, written + 1, _ROWS_PER_COMMIT)
            written += _ROWS_PER_COMMIT
            if time.monotonic() - began < seconds * _WARM_SHARE:
                warm_until = written
        _wait_for_all(watchers, len([each for each in ids if each <= written]), checks)
    finally:
        for watcher in watchers.values():
            watcher.stop()
    committed = source.commit_times_us(table, first_id, _WATCHED)
    return {name: _figures(watcher, committed, warm_until) for name, watcher in watchers.items()}


def _wait_for_all(watchers: Mapping[str, Watcher], rows: int, checks: Sequence[Callable[[], None]]) -> None:
    """A watcher gives up by itself where nothing comes any more."""
    while any(watcher.is_alive() and len(watcher.arrived_us) < rows for watcher in watchers.values()):
        for check in checks:
            check()
        time.sleep(0.1)
    for name, watcher in watchers.items():
        if watcher.error is not None:
            raise RuntimeError(f"the reader of {name} failed: {watcher.error}") from watcher.error


def _figures(watcher: Watcher, committed: Mapping[int, int], warm_until: int) -> dict[str, float]:
    counted = {each: arrived for each, arrived in watcher.arrived_us.items() if each > warm_until}
    arrivals = sorted(counted.values())
    summary = latency.summary([(committed[each], arrived) for each, arrived in counted.items()])
    rate = (len(arrivals) - 1) * _WATCHED / ((arrivals[-1] - arrivals[0]) / 1_000_000)
    return {**asdict(summary), "rows_per_second": round(rate)}
