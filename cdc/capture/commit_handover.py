"""Hands one batch at a time to the worker thread, and confirms the slot when its commit has ended.

It keeps what is committed: progress and table states. It is the only module that advances progress and confirms the
slot. The order is: events, flush, end offsets, progress record, commit, and only then the confirmation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cdc.capture.batch_commit import BatchCommit
from cdc.capture.events.record_queue import RecordQueue
from cdc.lsn import LSN
from cdc.positions.progress import Progress
from cdc.postgres.replication import ReplicationStream
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.worker_thread import Worker
from cdc.tables.recorded_state import TableStates

T = TypeVar("T")


class CommitHandover:
    """Commits batches and confirms the slot.

    `progress`: what the next batch's record starts from: the last committed record, extended by the topics and schemas
    that the next batch adds. `current`: the Kafka commit in progress. `settled_at`, `confirmed_at`: when the last
    commit ended, and when the slot was last confirmed.
    """

    def __init__(
        self,
        batch_commit: BatchCommit,
        queue: RecordQueue,
        *,
        stream: ReplicationStream,
        worker: Worker,
        stream_waiter: StreamWaiter,
        progress: Progress,
    ) -> None:
        self._batch_commit = batch_commit
        self._queue = queue
        self._stream = stream
        self._worker = worker
        self._stream_waiter = stream_waiter
        self.progress = progress
        self.current: Future[Progress] | None = None
        self.settled_at = 0.0
        self.confirmed_at = 0.0

    @property
    def states(self) -> TableStates:
        """The states of the tables, as the next batch records them."""
        return self._batch_commit.states

    def replace_states(self, states: TableStates) -> None:
        """Record new table states with the batch that is being gathered, not with the one that is being committed."""
        if states is not self._batch_commit.states:
            self.settle()
            self._batch_commit.replace_states(states)

    def replace_progress(self, progress: Progress) -> None:
        """Record a new topic or schema with the batch that is being gathered. Call `settle` before."""
        self.progress = progress

    def start(self, draft: Progress, *, heartbeat: bool) -> None:
        """Commit, in the worker thread, what was gathered. Further records wait in the outbox. Call `settle` before."""
        held = self._queue.take_held()
        self._queue.open_outbox()
        self.current = self._worker.submit(lambda: self._batch_commit.publish(held, draft, heartbeat=heartbeat))

    def settle(self) -> None:
        """Wait for the Kafka commit in progress, if there is one. Only then confirm the slot."""
        if self.current is None:
            return
        self.progress = self._stream_waiter.wait(self.current, self._stream)
        self.current = None
        self._confirm(self.progress.confirmable)
        self._queue.close_outbox()
        self.settled_at = time.monotonic()

    def settle_if_done(self) -> None:
        """Confirm the slot if the Kafka commit in progress has ended."""
        if self.current is not None and self.current.done():
            self.settle()

    def commit_idle(self, draft: Progress) -> None:
        """Commit progress without records, then confirm the slot. No other commit is in progress."""
        self.progress = self.call(lambda: self._batch_commit.publish([], draft, heartbeat=False))
        self._confirm(self.progress.confirmable)

    def send_held(self) -> None:
        """Complete the events that wait for a re-select in the middle of a batch, so that memory stays bounded."""
        self.settle()
        held = self._queue.take_held()
        self.call(lambda: self._batch_commit.send_completed(held))

    def call(self, call: Callable[[], T]) -> T:
        """Run a blocking call in the worker thread and return its result."""
        return self._stream_waiter.call(call, self._stream)

    def _confirm(self, lsn: LSN) -> None:
        self._stream.confirm(lsn)
        self._stream.send_status()
        self.confirmed_at = time.monotonic()
