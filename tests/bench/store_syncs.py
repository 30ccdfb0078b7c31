"""`tailrace sync` at saturation, and from commit to visible at a steady pace; capture runs all the while."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.bench import latency
from tests.bench.arrivals import Arrivals
from tests.bench.capture import say
from tests.bench.store_pipeline import STORES, Addresses, BenchPipeline
from tests.bench.store_readers import StoreReader, Watcher, drain, open_reader
from tests.bench.store_saturation import saturate
from tests.bench.store_source import StoreSource

BACKLOG_ROWS: Final = 500_000
ROWS_PER_SECOND: Final = 500
LATENCY_SECONDS: Final = 30.0
SATURATED_SECONDS: Final = 30.0
_WARM_SECONDS: Final = 15.0  # the sync has just started: Java compiles what is hot
_WATCHED: Final = 5  # every fifth row: readers that ask for all of them would be the load
_LEAD_SECONDS: Final = 3.0
_GIVE_UP_SECONDS: Final = 600.0

BACKLOG: Final = "backlog"


class Syncs:
    def __init__(self, folder: Path, addresses: Addresses, source: StoreSource, scale: float) -> None:
        self._source = source
        self._scale = scale
        for table in (BACKLOG, latency.TABLE):
            source.create(table)
        self._pipeline = BenchPipeline(folder, "live", [BACKLOG, latency.TABLE], addresses)

    def run(self, parts: Sequence[str]) -> dict[str, object]:
        say("starting capture for the syncs")
        figures: dict[str, object] = {}
        self._pipeline.copy()
        with self._pipeline.running("capture") as capture:
            if "sustained" in parts:
                figures["sustained_rates"] = self._drain_backlogs(capture.check)
            if "latency" in parts:
                figures["visible_ms"] = self._measure_latency(capture.check)
            if "saturated" in parts:
                figures["saturated"] = self._saturate(capture.check)
        return figures

    def _drain_backlogs(self, check: Callable[[], None]) -> dict[str, dict[str, float | None]]:
        """Each store alone, from a position right before the backlog, into what readers see."""
        rows = max(1_000, int(BACKLOG_ROWS * self._scale))
        with self._pipeline.running("sync") as sync, ExitStack() as opened:
            readers = {name: _opened(opened, name, self._pipeline, BACKLOG) for name in STORES}
            self._source.insert(BACKLOG, 0)
            _wait_for_row(0, readers, sync.check)
        self._publish(rows, check)
        found = {}
        for name in STORES:
            with closing(open_reader(name, self._pipeline, BACKLOG)) as reader:
                before = reader.count()
                with self._pipeline.running("sync", name) as sync:
                    drained = drain(reader, before, rows, sync.check)
            rate = drained.rate
            say(f"  {name:<6} sync {rate or 0:>9,.0f} rows/s ({drained.seconds_from_start:.1f} s from its start)")
            found[name] = {
                "rows_per_second": round(rate) if rate is not None else None,
                "seconds_from_start": round(drained.seconds_from_start, 1),
            }
        return found

    def _publish(self, rows: int, check: Callable[[], None]) -> None:
        say(f"a backlog of {rows} rows")
        arrivals = Arrivals(self._pipeline.addresses.kafka, self._pipeline.name, check)
        before = sum(arrivals.ends(BACKLOG, committed=True))
        self._source.fill(BACKLOG, rows)
        _wait(lambda: sum(arrivals.ends(BACKLOG, committed=True)) >= before + rows, check, "the backlog in the topic")

    def _measure_latency(self, check: Callable[[], None]) -> dict[str, dict[str, float]]:
        counted = int(max(3.0, LATENCY_SECONDS * min(1.0, self._scale)) * ROWS_PER_SECOND)
        warm = int(_WARM_SECONDS * ROWS_PER_SECOND)
        rows = warm + counted
        with self._pipeline.running("sync") as sync, ExitStack() as opened:
            readers = {name: _opened(opened, name, self._pipeline, latency.TABLE) for name in STORES}
            self._source.insert(latency.TABLE, 0)
            _wait_for_row(0, readers, sync.check)
            say(f"commit to visible, {ROWS_PER_SECOND} rows/s for {counted / ROWS_PER_SECOND:.0f} s, both stores")
            watchers = self._watch(readers, rows, [check, sync.check])
        committed = self._source.commit_times_us(latency.TABLE)
        found = {}
        for name, watcher in watchers.items():
            times = [(committed[each], arrived) for each, arrived in watcher.arrived_us.items() if each > warm]
            summary = latency.summary(times)
            say(f"  {name:<6} p50 {summary.p50_ms} ms, p99 {summary.p99_ms} ms, max {summary.max_ms} ms")
            found[name] = {**asdict(summary), "rows_per_second": _pace(committed, warm)}
        return found

    def _saturate(self, check: Callable[[], None]) -> dict[str, dict[str, float]]:
        """Into a table that has been read by then, with both stores running."""
        first_id = max(1_000, int(BACKLOG_ROWS * self._scale)) + 1
        with self._pipeline.running("sync") as sync, ExitStack() as opened:
            readers = {name: _opened(opened, name, self._pipeline, BACKLOG) for name in STORES}
            self._source.insert(BACKLOG, -1)
            _wait_for_row(-1, readers, sync.check)
            seconds = max(3.0, SATURATED_SECONDS * min(1.0, self._scale))
            say(f"commit to visible, both stores at their limit for {seconds:.0f} s")
            found = saturate(self._source, BACKLOG, readers, [check, sync.check], first_id=first_id, seconds=seconds)
        for name, figures in found.items():
            rate, p50, p99 = (figures[key] for key in ("rows_per_second", "p50_ms", "p99_ms"))
            say(f"  {name:<6} {rate:,.0f} rows/s, p50 {p50} ms, p99 {p99} ms")
        return found

    def _watch(
        self, readers: dict[str, StoreReader], rows: int, checks: Sequence[Callable[[], None]]
    ) -> dict[str, Watcher]:
        """The writer is a process of its own, and keeps its rate."""
        start = time.monotonic() + _LEAD_SECONDS
        ids = list(range(1, rows + 1, _WATCHED))

        def due(row_id: int) -> float:
            return start + (row_id - 1) / ROWS_PER_SECOND

        watchers = {name: Watcher(reader, ids, due) for name, reader in readers.items()}
        writer = multiprocessing.get_context("spawn").Process(
            target=latency.write, args=(self._source.dsn, 1, rows, ROWS_PER_SECOND, start), daemon=True
        )
        writer.start()
        for watcher in watchers.values():
            watcher.start()
        try:
            while any(watcher.is_alive() for watcher in watchers.values()):
                for check in checks:
                    check()
                if writer.exitcode:
                    raise RuntimeError(f"the writer ended with exit code {writer.exitcode}")
                for watcher in watchers.values():
                    watcher.join(0.5)
            writer.join(_GIVE_UP_SECONDS)
        finally:
            writer.kill()
            for watcher in watchers.values():
                watcher.stop()
        for name, watcher in watchers.items():
            if watcher.error is not None:
                raise RuntimeError(f"the reader of {name} failed: {watcher.error}") from watcher.error
        return watchers


def _opened(opened: ExitStack, store: str, pipeline: BenchPipeline, table: str) -> StoreReader:
    return opened.enter_context(closing(open_reader(store, pipeline, table)))


def _wait_for_row(row_id: int, readers: dict[str, StoreReader], check: Callable[[], None]) -> None:
    def is_everywhere() -> bool:
        return all(reader.found([row_id]) for reader in readers.values())

    _wait(is_everywhere, check, "the first row in every store")


def _pace(committed: dict[int, int], warm: int) -> float:
    """Rows a second, as they were really written."""
    times = [when for row_id, when in committed.items() if row_id > warm]
    return round((len(times) - 1) / ((max(times) - min(times)) / 1_000_000), 1)


def _wait(condition: Callable[[], bool], check: Callable[[], None], what: str) -> None:
    give_up_at = time.monotonic() + _GIVE_UP_SECONDS
    while not condition():
        check()
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"waited {_GIVE_UP_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.1)
