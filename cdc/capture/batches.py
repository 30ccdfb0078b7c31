"""Groups whole source transactions into batches: one Kafka transaction each, committed while capture reads on.

This is the only module that advances progress and confirms the slot. The order is: events, flush, end offsets, progress
record, commit, and only then the confirmation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cdc.capture.batch_commit import BatchCommit
from cdc.capture.event_rules import EventRules
from cdc.capture.pending_records import PendingRecords
from cdc.config.model import CaptureConfig as Settings
from cdc.encoding.envelope import POSTGRES_EPOCH_US
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.pgoutput.messages import Commit
from cdc.positions.progress import LastCommit, Progress
from cdc.postgres.replication import ReplicationStream
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.worker_thread import Worker
from cdc.publishing.publisher import Publisher
from cdc.tables.recorded_state import TableStates

T = TypeVar("T")
log = get_logger("capture")

# A Kafka transaction takes in whole source transactions up to about this many events before it is committed.
_GROUP_EVENTS = 100_000
_LATE_BATCH_SECONDS = 1.0
# The limit for the outbox and the producer's queue together. Above it, decoding waits. The limit is small, so every
# large transaction soon reaches it, and memory use hardly depends on the transaction's size. Three times as much was no
# faster.
_FULL_BYTES = 6 << 20
# The limits for events that wait for one re-select. Above them, capture completes the events in mid-batch.
_HELD_EVENTS = 2_000
_HELD_BYTES = 4 << 20
_IDLE_PROGRESS_SECONDS = 1.0


class Batches:
    """Gathers, commits and confirms batches.

    After `settle`, other objects may replace `progress` and the table states. The next batch writes them.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        changes: EventRules,
        stream: ReplicationStream,
        publisher: Publisher,
        commits: BatchCommit,
        worker: Worker,
        stream_waiter: StreamWaiter,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._seconds = settings.batch_milliseconds / 1000
        self._changes = changes
        self._stream = stream
        self._publisher = publisher
        self._commits = commits
        self._worker = worker
        self._stream_waiter = stream_waiter
        self.progress = progress
        self.heartbeat_seen = False
        self.is_late = False  # the transactions were committed a while ago: throughput matters more than latency
        self.idle_lsn = LSN(0)  # the server has sent everything before this LSN
        self.after_heartbeat: Callable[[], None] = lambda: None
        self._outbox = PendingRecords()
        self._commit: Future[Progress] | None = None  # the Kafka commit that is in progress
        self._confirmed_at = 0.0
        self._started = 0.0
        self._settled_at = 0.0
        self._last_commit: Commit | None = None  # the last one in the batch that is being gathered
        self._last_sent: Commit | None = None
        self._split_at = 0  # how many changes of the current source transaction earlier batches contain

    @property
    def states(self) -> TableStates:
        """The states of the tables, as the next batch records them."""
        return self._commits.states

    def replace_states(self, states: TableStates) -> None:
        """Record new table states with the batch that is being gathered, not with the one that is being committed."""
        if states is not self._commits.states:
            self.settle()
            self._commits.states = states

    # -- gathering -------------------------------------------------------------------------------------------

    def on_begin(self) -> None:
        """Start the batch's clock at its first Begin message."""
        self._split_at = 0
        if not self._started:
            self._started = time.monotonic()

    def on_commit(self, message: Commit) -> None:
        """Note that a source transaction is complete, and end the batch if it is due."""
        self._last_commit = self._last_sent = message
        # While a Kafka commit is in progress, the next batch grows in the outbox. To wait here would gain nothing.
        if self._commit is None and self._is_due():
            self.end()

    def on_keepalive(self, lsn: LSN) -> None:
        """Handle a keepalive outside a transaction.

        The server usually sends one when it has nothing more to send, so a batch need not wait for more transactions.
        The server also has other reasons to send one. In that case the next commit sets `is_late` again.
        """
        self.idle_lsn = lsn
        self.is_late = False

    def end_or_wait(self) -> bool:
        """End the batch, because the stream is empty, unless more of a backlog may follow. False: no batch to end."""
        if not self._is_whole() or self._commit is not None:
            return False
        if self._is_due() or not (self.is_late and self._stream.pump(self._seconds)):
            self.end()
        return True

    def end(self) -> None:
        """Commit the batch. A batch without records needs no Kafka transaction (Postgres 14 sends empty ones)."""
        if self._count() or self._changes.held or self.heartbeat_seen or self._last_commit is None:
            self._commit_batch()
        else:
            self.idle_lsn = self._last_commit.end_lsn
            self._last_commit = None
            self._started = 0.0

    def finish(self) -> None:
        """Publish the whole transactions before capture stops. The slot keeps the rest for the next start."""
        if self._is_whole():
            self._commit_batch()
        self.settle()
        self._stream.send_status()

    def settle(self) -> None:
        """Wait for the Kafka commit in progress, if there is one. Only then confirm the slot."""
        if self._commit is None:
            return
        self.progress = self._stream_waiter.wait(self._commit, self._stream)
        self._commit = None
        self._confirm(self.progress.confirmable)
        self._changes.emit = self._publisher.emit
        self._outbox.empty_into(self._publisher.send)
        self._settled_at = time.monotonic()

    def check_limits(self) -> None:
        """Check the limits between rows: wait for Kafka, complete held events, split a very large transaction."""
        self._stream_waiter.wait_while(self._is_full, self._stream)
        if self._commit is not None and self._commit.done():
            self.settle()
        if len(self._changes.held) >= _HELD_EVENTS or self._changes.held_bytes >= _HELD_BYTES:
            self._release_held()
        if self._changes.begin is None:
            return
        if self._changes.count - self._split_at > self._settings.transaction_events or self._is_old():
            log.info("transaction_split", version=str(self._changes.version))
            self._commit_batch()

    def note_idle(self) -> None:
        """With nothing in flight, advance progress to the LSN that the server has sent, then confirm the slot."""
        lsn = self.idle_lsn
        due = time.monotonic() - self._confirmed_at >= _IDLE_PROGRESS_SECONDS
        busy = self._commit is not None or self._changes.begin is not None or self._last_commit is not None
        if busy or not due or lsn <= self.progress.confirm_lsn:
            return
        version = max(self._changes.version, Version(self.progress.base + lsn, 0))
        draft = draft_progress(self.progress, self._changes, version, confirm_lsn=lsn, commit=self._sent_last())
        self.progress = self.call(lambda: self._commits.publish([], draft, heartbeat=False))
        self._confirm(lsn)

    def call(self, call: Callable[[], T]) -> T:
        """Run a blocking call in the worker thread and return its result."""
        return self._stream_waiter.call(call, self._stream)

    # -- committing ------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        due_seconds = max(self._seconds, _LATE_BATCH_SECONDS) if self.is_late else self._seconds
        return self._count() >= _GROUP_EVENTS or time.monotonic() - self._started >= due_seconds

    def _is_old(self) -> bool:
        """Whether the Kafka transaction has been open so long that it must end.

        Records in the outbox belong to no Kafka transaction yet.
        """
        opened_at = max(self._started, self._settled_at)
        limit_seconds = self._settings.transaction_timeout_seconds / 3
        return self._commit is None and self._count() > 0 and time.monotonic() - opened_at > limit_seconds

    def _is_whole(self) -> bool:
        """Whether the batch has something to publish and ends at a transaction boundary.

        It then holds whole transactions, or a logical message outside a transaction.
        """
        return self._changes.begin is None and (self._last_commit is not None or self._count() > 0)

    def _is_full(self) -> bool:
        """Whether decoding must wait for Kafka. Polling the producer removes delivered records from its queue."""
        if self._commit is None:
            self._publisher.poll()
        elif self._commit.done():
            return False
        return self._outbox.bytes + self._publisher.queued_bytes >= _FULL_BYTES

    def _count(self) -> int:
        return len(self._outbox) if self._commit is not None else self._publisher.count

    def _commit_batch(self) -> None:
        """Commit the batch in the worker thread. The next batch's records wait in the outbox until then."""
        self.settle()
        changes, held = self._changes, self._changes.take_held()
        inside = changes.begin is not None
        last = self._last_commit
        draft = draft_progress(
            self.progress,
            changes,
            changes.version,
            confirm_lsn=last.end_lsn if last else LSN(self.progress.confirm_lsn),
            commit=self._sent_last(),
        )
        heartbeat, self.heartbeat_seen = self.heartbeat_seen, False
        changes.emit = self._outbox.put
        self._commit = self._worker.submit(lambda: self._commits.publish(held, draft, heartbeat=heartbeat))
        self._started = time.monotonic() if inside else 0.0
        self._last_commit = None
        self._split_at = changes.count if inside else 0
        if heartbeat:  # it may change the table states, which the next row needs
            self.settle()
            self.after_heartbeat()

    def _sent_last(self) -> LastCommit | None:
        """Return the last commit received. Inside a transaction it is the transaction's own, from its Begin."""
        begin, commit = self._changes.begin, self._last_sent
        if begin is not None:
            return LastCommit(int(begin.final_lsn), begin.commit_time_us + POSTGRES_EPOCH_US)
        if commit is not None:
            return LastCommit(int(commit.commit_lsn), commit.commit_time_us + POSTGRES_EPOCH_US)
        return None

    def _release_held(self) -> None:
        """Complete the events that wait for a re-select in the middle of the batch, so that memory stays bounded."""
        self.settle()
        held = self._changes.take_held()
        self.call(lambda: self._commits.send_completed(held))

    def _confirm(self, lsn: LSN) -> None:
        self._stream.confirm(lsn)
        self._stream.send_status()
        self._confirmed_at = time.monotonic()


def draft_progress(
    known: Progress, changes: EventRules, version: Version, *, confirm_lsn: LSN, commit: LastCommit | None = None
) -> Progress:
    """Return the progress record for `version`.

    `version` is that of `changes`, or a later one when the WAL has advanced without changes of captured tables.

    After a restart, the server sends transactions again that capture has already published. During this time the
    version does not change. Progress must keep how far into its transaction the version is, and how many of the
    transaction's logical messages are published.
    """
    is_there = version.position == changes.position and not changes.is_behind
    inside, messages = (changes.begin is not None, changes.messages) if is_there else (False, 0)
    if version.position == known.position:
        inside = inside or (changes.is_behind and known.inside_transaction)
        messages = max(messages, known.messages)
    return known.advanced(
        version,
        confirm_lsn=confirm_lsn,
        commit=commit,
        inside_transaction=inside,
        messages=messages,
    )
