"""Runs chunks on Spark: a few at a time, each as a job of one task, a failed one again. Decides nothing about copies.

One job per chunk, and not one job with a task for each: the next chunk goes to whoever is free, at most as many
connections are open as the config allows whatever the cluster's size, and what fails, fails alone.
"""

from __future__ import annotations

import gc
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.secrets import redact
from cdc.snapshot.incremental.chunk import IncrementalChunkTask, run_incremental_chunk
from cdc.snapshot.initial_chunk import Attempt, ChunkTask, Ending, run_chunk
from cdc.snapshot.records import ChunkState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("copy")

_TICK_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 15.0
# Without a single chunk finished for this long, whoever supervises the command had better know.
_PATIENCE_SECONDS = 600.0
_TRACE_WORDS = ("at ", "An error occurred while calling", "File ", "Traceback")
_NAMED_ERROR = re.compile(r"^(?!org\.apache\.spark).*\b[A-Z]\w+Error\b: .|^[\w/.-]*python\S*: ")
_GIST_CHARACTERS = 300
# As in `tailrace capture`: rows make many objects and no cycles.
_GC_THRESHOLDS = (100_000, 20, 100)


def run_on_spark(session: SparkSession, task: ChunkTask | IncrementalChunkTask) -> Attempt:
    """Blocks until the chunk's job has ended. Spark itself repeats a task whose executor died."""
    context = session.sparkContext
    context.setJobDescription(f"copy {task.chunk.copy}, chunk {task.chunk.number}")
    # In the function and not in the data: data is written to a file on its way, and the config has passwords.
    (attempt,) = context.parallelize([None], 1).mapPartitions(partial(_attempt, task)).collect()
    result: Attempt = attempt
    return result


def _attempt(task: ChunkTask | IncrementalChunkTask, nothing: Iterable[Any]) -> Iterator[Attempt]:
    """In the worker."""
    deque(nothing, maxlen=0)  # a worker that leaves input unread is thrown away; the next would import everything anew
    gc.set_threshold(*_GC_THRESHOLDS)
    yield run_chunk(task) if isinstance(task, ChunkTask) else run_incremental_chunk(task)


class OfChunk(Protocol):
    """All that the queue has to know of a task."""

    @property
    def chunk(self) -> ChunkState: ...


Task = TypeVar("Task", bound=OfChunk)


class ChunkQueue(Generic[Task]):
    """`tick` is called twice a second from the thread that iterates, whatever the chunks do.

    `hold`: no chunk is begun while it says so; those that run go on. `skip`: chunks that are not wanted any more, asked
    when their turn comes.
    """

    def __init__(
        self,
        run: Callable[[Task], Attempt],
        *,
        at_once: int,
        tick: Callable[[], None],
        stop: Callable[[], bool],
        cancel: Callable[[], None],
        hold: Callable[[], bool] = lambda: False,
        skip: Callable[[ChunkState], bool] = lambda _chunk: False,
    ) -> None:
        self._hold = hold
        self._skip = skip
        self._run = run
        self._at_once = at_once
        self._tick = tick
        self._stop = stop
        self._cancel = cancel
        self._failures: dict[int, int] = {}

    def attempts(self, tasks: Iterable[Callable[[], Task]]) -> Iterator[Attempt]:
        """Each chunk's final attempt as it ends. Tasks are made when their turn comes.

        Ends early when asked to stop: what runs is cut off, and Kafka forgets it. Whoever iterates may leave at any
        time; running chunks are waited for.
        """
        waiting = deque((0.0, make) for make in tasks)
        running: dict[Future[Attempt], Callable[[], Task]] = {}
        last_success = time.monotonic()
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="tailrace-chunk") as pool:
            while (waiting or running) and not self._stop():
                self._fill(pool, waiting, running)
                done, _ = wait(running, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                if not running:
                    time.sleep(_TICK_SECONDS)
                ended = []
                for future in done:
                    make = running.pop(future)
                    attempt = _outcome(future, make().chunk.number)
                    if attempt.ending is not Ending.FAILED:
                        last_success = time.monotonic()
                        ended.append(attempt)
                        continue
                    message = attempt.message
                    if time.monotonic() - last_success > _PATIENCE_SECONDS:
                        raise TransientError(f"No chunk could be copied for {_PATIENCE_SECONDS:.0f} seconds: {message}")
                    waiting.append((time.monotonic() + self._pause(make().chunk.number, message), make))
                self._fill(pool, waiting, running)  # before anybody looks at what has ended: that takes a while
                self._tick()
                yield from ended
            if running:
                self._cancel()

    def _fill(
        self,
        pool: ThreadPoolExecutor,
        waiting: deque[tuple[float, Callable[[], Task]]],
        running: dict[Future[Attempt], Callable[[], Task]],
    ) -> None:
        for _ in range(len(waiting)):
            if len(running) >= self._at_once:
                return
            due, make = waiting.popleft()
            task = make()
            if self._skip(task.chunk):
                running[pool.submit(_skipped, task)] = make
            elif due > time.monotonic() or self._hold():
                waiting.append((due, make))
            else:
                running[pool.submit(self._run, task)] = make

    def _pause(self, number: int, message: str) -> float:
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        pause = min(_LONGEST_PAUSE_SECONDS, 0.5 * (1 << failures))
        log.warning("chunk_failed", chunk=number, failures=failures, reason=message, in_seconds=pause)
        return pause


def _skipped(task: OfChunk) -> Attempt:
    return Attempt(number=task.chunk.number, ending=Ending.SKIPPED, chunk=task.chunk)


def _outcome(future: Future[Attempt], number: int) -> Attempt:
    """Failed, where Spark could not run it at all: a worker killed too often, an executor without our code."""
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, Exception):
        raise error
    text = redact(str(error))
    log.debug("spark_job_failed", chunk=number, text=text)
    return Attempt(number=number, ending=Ending.FAILED, message=f"Spark could not run it: {_gist(text)}")


def _gist(text: str) -> str:
    """What is wrong, out of many lines of Java's and Python's stack traces."""
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_TRACE_WORDS)]
    named = [line for line in telling if _NAMED_ERROR.search(line)]
    return (named or telling or ["no reason given"])[0][:_GIST_CHARACTERS]
