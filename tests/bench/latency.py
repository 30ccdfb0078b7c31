"""Commit to topic: single rows committed at a steady pace, and when a reader of committed records had each of them.

The pace does not wait for anybody (what comes late is still counted from its own commit). The commit's time is the one
that Postgres put into the commit record, which both envelopes carry; the clock is the same machine's.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from tests.bench.readers import TopicReader

TABLE: Final = "ticks"
ROWS_PER_SECOND: Final = 1_000
WARM_SECONDS: Final = 3.0
_WRITERS: Final = 4
_SILENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    p50_ms: float
    p99_ms: float
    max_ms: float
    rows: int
    rows_per_second: float  # as it was really written


def measure(reader: TopicReader, dsn: str, *, first_id: int, seconds: float) -> Latency:
    """The reader runs for the time of the measurement; the first seconds are not counted."""
    arrivals = reader.arrivals
    warm, counted = int(WARM_SECONDS * ROWS_PER_SECOND), int(seconds * ROWS_PER_SECOND)
    rows = warm + counted
    consumer = arrivals.consumer(TABLE, arrivals.ends(TABLE, committed=True))
    consumer.poll(0)
    reader.start_and_catch_up()
    try:
        context = multiprocessing.get_context("spawn")
        writer = context.Process(target=write, args=(dsn, first_id, rows), daemon=True)
        writer.start()
        seen: dict[int, tuple[int, int]] = {}
        last = first_id + rows
        heard = time.monotonic()
        while len(seen) < rows:
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                reader.engine.check()
                if time.monotonic() - heard > _SILENCE_SECONDS:
                    raise RuntimeError(f"{reader.name} published {len(seen)} of {rows} rows, then nothing")
                continue
            arrived_us = time.time_ns() // 1000
            heard = time.monotonic()
            value = json.loads(message.value() or b"null")
            row_id = value["after"]["id"]
            if first_id <= row_id < last:
                seen[row_id] = (value["source"]["ts_us"], arrived_us)
        writer.join()
    finally:
        reader.stop()
        consumer.close()
    return summary([seen[row_id] for row_id in range(first_id + warm, last)])


def write(
    dsn: str, first_id: int, rows: int, rows_per_second: int = ROWS_PER_SECOND, start: float | None = None
) -> None:
    """In a process of its own: row n is due n / `rows_per_second` after the start, a time of the monotonic clock."""
    begin = time.monotonic() + 0.5 if start is None else start
    threads = [
        threading.Thread(target=_write_part, args=(dsn, first_id, rows, part, begin, rows_per_second))
        for part in range(_WRITERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _write_part(dsn: str, first_id: int, rows: int, part: int, start: float, rows_per_second: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(part, rows, _WRITERS):
            pause = start + number / rows_per_second - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            connection.execute(
                "INSERT INTO ticks VALUES (%s, 'customer name', 'customer@example.com', 12.50, now(), true)",
                [first_id + number],
                prepare=True,
            )


def summary(times: Sequence[tuple[int, int]]) -> Latency:
    delays = sorted((arrived - committed) / 1000 for committed, arrived in times)
    commits = sorted(committed for committed, _ in times)
    seconds = (commits[-1] - commits[0]) / 1_000_000
    return Latency(
        p50_ms=round(_quantile(delays, 0.50), 1),
        p99_ms=round(_quantile(delays, 0.99), 1),
        max_ms=round(delays[-1], 1),
        rows=len(delays),
        rows_per_second=round((len(commits) - 1) / seconds, 1),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
