"""The worker thread: one call at a time, answers and errors to whoever waits, a descriptor to wake them."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator

import pytest

from cdc.postgres.worker_thread import Worker
from tests.harness.processes.waiting import eventually


@pytest.fixture
def worker() -> Iterator[Worker]:
    started = Worker("test-worker")
    yield started
    started.close()
    eventually(lambda: "test-worker" not in {thread.name for thread in threading.enumerate()}, 10, "the thread to end")


def _readable(worker: Worker, timeout_seconds: float = 0) -> bool:
    return bool(select.select([worker.wake_fd], [], [], timeout_seconds)[0])


def test_a_call_runs_in_the_other_thread_and_answers(worker: Worker) -> None:
    """The thread that asked is free meanwhile."""
    caller = threading.get_ident()
    assert worker.submit(threading.get_ident).result(10) != caller


def test_calls_run_one_after_the_other_in_order(worker: Worker) -> None:
    """The producer is not thread-safe: no two calls may overlap, none may overtake."""
    running = threading.Lock()
    seen: list[int] = []

    def call(number: int) -> None:
        assert running.acquire(blocking=False)
        seen.append(number)
        running.release()

    futures = [worker.submit(lambda number=number: call(number)) for number in range(100)]  # type: ignore[misc]
    for future in futures:
        future.result(10)
    assert seen == list(range(100))


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_goes_to_whoever_waits_and_the_thread_lives_on(worker: Worker, error: BaseException) -> None:
    """Whatever it is: an error that nobody sees would be a batch that nobody published."""

    def fail() -> None:
        raise error

    failed = worker.submit(fail)
    with pytest.raises(type(error)):
        failed.result(10)
    assert worker.submit(lambda: "still here").result(10) == "still here"


def test_the_descriptor_becomes_readable_when_a_call_ends(worker: Worker) -> None:
    """So that one `select` waits for the server's bytes and for Kafka's answer at the same time."""
    release = threading.Event()
    worker.submit(release.wait)
    assert not _readable(worker)
    release.set()
    assert _readable(worker, 10)


def test_a_failed_call_wakes_as_well(worker: Worker) -> None:
    """Otherwise an error would be noticed only at the next keepalive."""
    worker.submit(lambda: 1 / 0)
    assert _readable(worker, 10)


def test_draining_takes_the_wake_ups_back_and_never_blocks(worker: Worker) -> None:
    """A wake-up that is seen twice would make the loop spin."""
    worker.submit(lambda: None)
    assert _readable(worker, 10)
    worker.drain()
    assert not _readable(worker)
    worker.drain()


def test_more_wake_ups_than_the_pipe_holds_do_not_block_the_thread(worker: Worker) -> None:
    """Nobody may be draining while a long batch goes on."""
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(worker._write_fd, b"." * 4096)
    assert worker.submit(lambda: "done").result(10) == "done"
    worker.drain()


def test_it_knows_its_own_thread(worker: Worker) -> None:
    """Backpressure must not touch the stream from the worker's side."""
    assert not worker.is_current()
    assert worker.submit(worker.is_current).result(10)


def test_closing_lets_the_call_under_way_finish() -> None:
    """What was submitted before still runs; then the thread ends and the descriptors are given back."""
    worker = Worker("closing-worker")
    release = threading.Event()
    under_way = worker.submit(lambda: release.wait(10))
    worker.close()
    release.set()
    assert under_way.result(10)
    eventually(lambda: not worker._thread.is_alive(), 10, "the thread to end")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(worker.wake_fd)


def test_a_call_that_never_ends_does_not_keep_the_process_alive() -> None:
    """A broker that never answers must not make `tailrace capture` unstoppable."""
    worker = Worker("stuck-worker")
    release = threading.Event()
    worker.submit(release.wait)
    assert worker._thread.daemon
    worker.close()
    release.set()
