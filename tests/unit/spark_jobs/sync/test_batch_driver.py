"""Which offsets a batch takes, and when it starts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cdc.errors import RefusedError, TransientError
from cdc.positions.progress import Progress
from spark_jobs.sync.batch_driver import BatchDriver, next_ends
from spark_jobs.writing.contract import Offsets


def test_a_batch_takes_everything_if_it_is_small_enough() -> None:
    assert next_ends({"a": [0, 5], "b": [7]}, {"a": [3, 5], "b": [9]}, 100) == {"a": [3, 5], "b": [9]}


def test_partitions_get_shares_in_proportion_to_their_backlogs() -> None:
    """Over all topics together."""
    applied, ends = {"a": [100, 0], "b": [0]}, {"a": [700, 300], "b": [100]}
    assert next_ends(applied, ends, 100) == {"a": [160, 30], "b": [10]}


def test_every_partition_with_a_backlog_makes_progress() -> None:
    """Also one whose share is less than a record; a partition without a backlog stays where it is."""
    assert next_ends({"a": [0, 0, 4]}, {"a": [1_000_000, 1, 4]}, 10) == {"a": [9, 1, 4]}


def test_an_end_before_the_applied_offset_is_an_error() -> None:
    """The topic was created again, and its first offsets say nothing about the old ones."""
    with pytest.raises(TransientError, match="Topic a ends before the offset that was read"):
        next_ends({"a": [5]}, {"a": [4]}, 10)


class _Kafka:
    """Topic `a` with one partition, whose end a test moves."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.batches: list[tuple[int, int]] = []
        self.waits: list[float] = []
        self.when_waiting: Callable[[], None] = lambda: None

    def ends(self) -> Offsets:
        return {"a": [self.end]}

    def apply(self, start: Offsets, end: Offsets) -> None:
        self.batches.append((start["a"][0], end["a"][0]))

    def wait(self, known: Progress | None, seconds: float) -> Progress | None:
        self.waits.append(seconds)
        self.when_waiting()
        return known

    def driver(
        self, apply: Callable[[Offsets, Offsets], None] | None = None, interval_seconds: float = 0.0
    ) -> BatchDriver:
        return BatchDriver(
            starting={"a": [0]},
            end_offsets=self.ends,
            apply_batch=apply or self.apply,
            wait_for_progress=self.wait,
            events_per_batch=10,
            interval_seconds=interval_seconds,
            stop=self.stop,
        )

    @property
    def stop(self) -> threading.Event:
        stop = threading.Event()
        stop.set()  # so that a wait for the interval returns at once
        return stop


def test_a_backlog_is_read_batch_by_batch_without_a_wait() -> None:
    kafka = _Kafka(25)
    driver = kafka.driver()
    for _ in range(3):
        driver.step()
    assert kafka.batches == [(0, 10), (10, 20), (20, 25)]
    assert kafka.waits == []


def test_without_a_record_it_waits_longer_and_longer_and_then_starts_at_once() -> None:
    kafka = _Kafka()
    driver = kafka.driver()
    for _ in range(8):
        driver.step()
    assert kafka.waits == sorted(kafka.waits)
    assert kafka.waits[0] < kafka.waits[-1] <= 0.1
    kafka.end = 1
    driver.step()
    assert kafka.batches == [(0, 1)]


def test_the_interval_between_the_starts_of_two_batches_is_kept() -> None:
    """The next step neither asks Kafka nor runs a batch before it has passed."""
    kafka = _Kafka(25)
    driver = kafka.driver(interval_seconds=3600)
    for _ in range(3):
        driver.step()
    assert kafka.batches == [(0, 10)]
    assert kafka.waits == []


def test_a_batch_that_fails_is_not_applied() -> None:
    """An error of Tailrace is raised as it is; any other error becomes one that the caller retries."""
    kafka = _Kafka(5)
    errors: list[Exception] = [RefusedError("the store is full"), ValueError("first line\nsecond line")]

    def fail(start: Offsets, end: Offsets) -> None:
        kafka.apply(start, end)
        if errors:
            raise errors.pop(0)

    driver = kafka.driver(fail)
    with pytest.raises(RefusedError, match="the store is full"):
        driver.step()
    with pytest.raises(TransientError, match=r"^A batch failed: ValueError\.$"):
        driver.step()
    driver.step()
    assert kafka.batches == [(0, 5)] * 3
