"""The worker thread runs one call at a time, returns results and errors, and signals their end on a descriptor."""

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
    """A call runs in the worker thread while the calling thread is free."""
    caller = threading.get_ident()
    assert worker.submit(threading.get_ident).result(10) != caller


def test_calls_run_one_after_the_other_in_order(worker: Worker) -> None:
    """Calls run in order and never overlap, since the producer is not thread-safe."""
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
def test_an_error_is_raised_to_the_caller_and_the_thread_continues(worker: Worker, error: BaseException) -> None:
    """Any error of a call is raised to its caller, and the thread takes further calls."""

    def fail() -> None:
        raise error

    failed = worker.submit(fail)
    with pytest.raises(type(error)):
        failed.result(10)
    assert worker.submit(lambda: "still here").result(10) == "still here"


def test_the_descriptor_becomes_readable_when_a_call_ends(worker: Worker) -> None:
    """The end of a call makes the descriptor readable, so that one `select` waits for the server and for Kafka."""
    release = threading.Event()
    worker.submit(release.wait)
    assert not _readable(worker)
    release.set()
    assert _readable(worker, 10)


def test_a_failed_call_wakes_as_well(worker: Worker) -> None:
    """A failed call makes the descriptor readable, so that its error is not noticed later."""
    worker.submit(lambda: 1 / 0)
    assert _readable(worker, 10)


def test_draining_takes_the_wake_ups_back_and_never_blocks(worker: Worker) -> None:
    """Draining empties the descriptor and does not block."""
    worker.submit(lambda: None)
    assert _readable(worker, 10)
    worker.drain()
    assert not _readable(worker)
    worker.drain()


def test_more_wake_ups_than_the_pipe_holds_do_not_block_the_thread(worker: Worker) -> None:
    """A full pipe does not block the worker when its descriptor is not drained."""
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(worker._write_fd, b"." * 4096)
    assert worker.submit(lambda: "done").result(10) == "done"
    worker.drain()


def test_it_knows_its_own_thread(worker: Worker) -> None:
    """The worker recognises its own thread, from which backpressure must not use the stream."""
    assert not worker.is_current()
    assert worker.submit(worker.is_current).result(10)


def test_closing_lets_the_call_under_way_finish() -> None:
    """Closing runs the submitted calls, ends the thread and closes the descriptors."""
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
    """A process can exit while a call never ends."""
    worker = Worker("stuck-worker")
    release = threading.Event()
    worker.submit(release.wait)
    assert worker._thread.daemon
    worker.close()
    release.set()
