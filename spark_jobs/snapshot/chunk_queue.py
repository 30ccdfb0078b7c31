"""Runs snapshot chunks on Spark, a few at a time, and retries failed ones. Decides nothing else about snapshots.

Each chunk is a Spark job with one task, instead of one job with a task per chunk. So the next free thread takes the
next chunk, the number of connections stays within the config whatever the cluster's size, and a chunk fails alone.
"""

from __future__ import annotations

import gc
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cdc.backoff import Backoff
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.secrets import redact
from cdc.snapshot.chunk_attempt import Attempt, AttemptOutcome
from cdc.snapshot.incremental.chunk import IncrementalChunkTask, run_incremental_chunk
from cdc.snapshot.initial_chunk import ChunkTask, run_chunk
from cdc.snapshot.records import ChunkState
from spark_jobs.tasks.task_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("snapshot")

_TICK_SECONDS = 0.5
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0
# If no chunk finishes for this long, the command ends with an error, so that its supervisor or the operator notices.
_PATIENCE_SECONDS = 600.0
# As in `tailrace capture`: rows create many objects and no cycles, so the garbage collector may run rarely.
_GC_THRESHOLDS = (100_000, 20, 100)


def run_on_spark(session: SparkSession, task: ChunkTask | IncrementalChunkTask) -> Attempt:
    """Run the chunk as a Spark job and wait for its end. Spark itself retries a task whose executor died."""
    context = session.sparkContext
    context.setJobDescription(f"copy {task.chunk.copy}, chunk {task.chunk.number}")
    # Pass the task in the function, not as data. Spark writes data to a file, and the config holds passwords.
    (attempt,) = context.parallelize([None], 1).mapPartitions(partial(_attempt, task)).collect()
    result: Attempt = attempt
    return result


def _attempt(task: ChunkTask | IncrementalChunkTask, nothing: Iterable[Any]) -> Iterator[Attempt]:
    """Run the chunk. Called in the Spark worker."""
    deque(nothing, maxlen=0)  # Spark ends a worker that leaves input unread; a new one would import all again
    gc.set_threshold(*_GC_THRESHOLDS)
    yield run_chunk(task) if isinstance(task, ChunkTask) else run_incremental_chunk(task)


class OfChunk(Protocol):
    """The part of a task that the queue uses."""

    @property
    def chunk(self) -> ChunkState: ...


Task = TypeVar("Task", bound=OfChunk)


class ChunkQueue(Generic[Task]):
    """Runs at most `at_once` chunks at the same time.

    The iterating thread calls `tick` about twice a second. While `hold` returns true, the queue starts no chunk;
    running chunks continue. `skip` is called before a chunk starts, and returns whether the chunk is not needed any
    more. `cancel` ends the running jobs.
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
        self._failures: Counter[int] = Counter()
        self._backoffs: dict[int, Backoff] = {}

    def attempts(self, tasks: Iterable[Callable[[], Task]]) -> Iterator[Attempt]:
        """Yields the final attempt of each chunk as it ends. A task is created when its turn comes.

        Ends early when asked to stop. Running jobs are then cancelled, and Kafka aborts their transactions. The
        caller may stop the iteration at any time; the generator then waits for running chunks.
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
                    if attempt.ending is not AttemptOutcome.FAILED:
                        last_success = time.monotonic()
                        ended.append(attempt)
                        continue
                    message = attempt.message
                    if time.monotonic() - last_success > _PATIENCE_SECONDS:
                        raise TransientError(f"No chunk could be read for {_PATIENCE_SECONDS:.0f} seconds: {message}")
                    waiting.append((time.monotonic() + self._pause(make().chunk.number, message), make))
                self._fill(pool, waiting, running)  # before the caller handles the ended ones, which takes a while
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
        self._failures[number] += 1
        backoff = self._backoffs.setdefault(number, Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS))
        pause = backoff.next_delay()
        log.warning("chunk_failed", chunk=number, failures=self._failures[number], reason=message, in_seconds=pause)
        return pause


def _skipped(task: OfChunk) -> Attempt:
    return Attempt(number=task.chunk.number, ending=AttemptOutcome.SKIPPED, chunk=task.chunk)


def _outcome(future: Future[Attempt], number: int) -> Attempt:
    """Return the attempt. It is a failed one if Spark could not run the chunk.

    That happens if the worker was killed too often, or if an executor does not have Tailrace's code.
    """
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, Exception):
        raise error
    text = redact(str(error))
    log.debug("spark_job_failed", chunk=number, text=text)
    message = f"Spark could not run the chunk: {error_line(text)}"
    return Attempt(number=number, ending=AttemptOutcome.FAILED, message=message)
