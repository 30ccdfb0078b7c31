"""Chunks run a few at a time, are retried after a failure, and are not started after a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.config import parse_config
from cdc.errors import TransientError
from cdc.snapshot.chunk_attempt import Attempt, AttemptOutcome, RateLimiter
from cdc.snapshot.initial_chunk import ChunkTask
from cdc.snapshot.meter import Meter
from cdc.snapshot.records import ChunkState, SnapshotState
from spark_jobs.snapshot import chunk_queue
from spark_jobs.snapshot.chunk_queue import ChunkQueue

_TEXT = '[source]\ndsn = "postgresql://h/d"\n[kafka]\nbootstrap = "h:1"\nprefix = "p"\n'
CONFIG = parse_config(_TEXT, file=Path("tailrace.toml"), environment={})
COPY = SnapshotState(id="c", kind="first", state="planned", tables=["1"], snapshot="s", point=8)


def chunk(number: int, **settings: Any) -> ChunkState:
    return ChunkState(copy="c", number=number, pieces=[], size_bytes=100, **settings)


def task(number: int) -> Callable[[], ChunkTask]:
    return lambda: ChunkTask(config=CONFIG, copy=COPY, chunk=chunk(number), tables={}, database="d", log_offset=0)


def queue(
    run: Callable[[ChunkTask], Attempt], at_once: int = 2, stop: Callable[[], bool] = lambda: False
) -> ChunkQueue:
    return ChunkQueue(run, at_once=at_once, tick=lambda: None, stop=stop, cancel=lambda: None)


def done(given: ChunkTask) -> Attempt:
    return Attempt(number=given.chunk.number, ending=AttemptOutcome.DONE, chunk=given.chunk.finished(1, {}))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_queue, "_LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(chunk_queue, "_TICK_SECONDS", 0.01)


def test_every_chunk_is_run_and_never_too_many_at_once() -> None:
    """Every chunk runs, and at most as many at once as the configured connections."""
    running = threading.Semaphore(3)

    def run(given: ChunkTask) -> Attempt:
        assert running.acquire(blocking=False), "too many at once"
        try:
            return done(given)
        finally:
            running.release()

    numbers = [attempt.number for attempt in queue(run, at_once=3).attempts(map(task, range(50)))]
    assert sorted(numbers) == list(range(50))


def test_what_fails_is_run_again() -> None:
    """A chunk is run again when its attempt fails or Spark cannot run it."""
    tries: dict[int, int] = {}

    def run(given: ChunkTask) -> Attempt:
        number = given.chunk.number
        tries[number] = tries.get(number, 0) + 1
        if tries[number] == 1:
            raise RuntimeError("executor lost")
        if tries[number] == 2:
            return Attempt(number=number, ending=AttemptOutcome.FAILED, message="Kafka is away.")
        return done(given)

    attempts = list(queue(run).attempts(map(task, range(3))))
    assert {attempt.ending for attempt in attempts} == {AttemptOutcome.DONE}
    assert tries == {0: 3, 1: 3, 2: 3}


def test_it_gives_up_when_nothing_works_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command fails with the reason when no chunk succeeds for long."""
    monkeypatch.setattr(chunk_queue, "_PATIENCE_SECONDS", 0.05)

    def run(given: ChunkTask) -> Attempt:
        return Attempt(number=given.chunk.number, ending=AttemptOutcome.FAILED, message="Kafka is away.")

    with pytest.raises(TransientError, match="Kafka is away"):
        list(queue(run).attempts([task(0)]))


def test_the_other_endings_are_for_the_driver_to_judge() -> None:
    """Other outcomes are returned to the driver and not retried."""

    def run(given: ChunkTask) -> Attempt:
        return Attempt(number=given.chunk.number, ending=AttemptOutcome.LOST)

    assert [attempt.ending for attempt in queue(run).attempts([task(0)])] == [AttemptOutcome.LOST]


def test_asked_to_stop_it_starts_nothing_more() -> None:
    """After a stop request no chunk starts and running ones are cancelled."""
    stop = threading.Event()
    cut_off = threading.Event()

    def run(given: ChunkTask) -> Attempt:
        stop.set()
        assert cut_off.wait(10)
        return done(given)

    asked = ChunkQueue(run, at_once=1, tick=lambda: None, stop=stop.is_set, cancel=cut_off.set)
    assert list(asked.attempts(map(task, range(5)))) == []


def test_a_pace_is_kept() -> None:
    """The rate is kept on average for any block size, and without a limit nothing waits."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = RateLimiter(100, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        pace.passed(50)
    assert now[0] == pytest.approx(5.0)
    unlimited = RateLimiter(0, clock=lambda: now[0], sleep=sleep)
    unlimited.passed(1_000_000)
    assert now[0] == pytest.approx(5.0)


def test_progress_counts_what_an_earlier_run_has_done_but_not_as_speed() -> None:
    """A resumed snapshot shows its real share, rate and time left."""
    now = [0.0]
    meter = Meter(COPY, [chunk(0, done=True, rows=1000), chunk(1), chunk(2), chunk(3)], clock=lambda: now[0])
    first = meter.progress(None)
    assert (first.rows, first.size_bytes, first.total_bytes, first.chunks) == (1000, 100, 400, 1)
    assert first.seconds_left is None
    now[0] = 10.0
    meter.add(chunk(1, done=True, rows=500, left_out={"1": "rewritten"}))
    then = meter.progress(7)
    assert (then.rows, then.rows_per_second, then.seconds_left, then.wal_held_bytes) == (1500, 50.0, 20.0, 7)
    assert not meter.is_complete
    assert meter.left_out == {"1": "rewritten"}


def test_a_queue_that_is_held_begins_nothing_and_skips_what_nobody_wants() -> None:
    """What is cancelled ends while the rest waits; the rest runs once it is let go."""
    held = threading.Event()
    held.set()
    ran: list[int] = []

    def run(given: ChunkTask) -> Attempt:
        ran.append(given.chunk.number)
        return done(given)

    waiting = ChunkQueue(
        run,
        at_once=2,
        tick=lambda: None,
        stop=lambda: False,
        cancel=lambda: None,
        hold=held.is_set,
        skip=lambda chunk: chunk.number == 2,
    )
    attempts = waiting.attempts([task(1), task(2), task(3)])
    skipped = next(attempts)
    assert (skipped.number, skipped.ending, ran) == (2, AttemptOutcome.SKIPPED, [])
    held.clear()
    assert {attempt.number for attempt in attempts} == {1, 3}
    assert sorted(ran) == [1, 3]
