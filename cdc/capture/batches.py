"""Batches: whole source transactions are gathered into one Kafka transaction, which is committed beside the reading.

The only place that moves progress and confirms the slot: events, flush, end offsets, progress record, commit, and only
then the confirmation.
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
# What may wait in the outbox and in the producer's queue together; past this, decoding waits. Little, so that every
# large transaction soon gets there, and its size hardly matters to memory. Three times as much was no faster.
_FULL_BYTES = 6 << 20
# What may wait for one re-select; it is not waited for like the above, but completed in the middle of the batch.
_HELD_EVENTS = 2_000
_HELD_BYTES = 4 << 20
_IDLE_PROGRESS_SECONDS = 1.0


class Batches:
    """`progress` may be changed by others after `settle`, and is written with the next batch; so are the states."""

    def __init__(
        self,
        settings: Settings,
        *,
        changes: EventRules,
        stream: ReplicationStream,
        publisher: Publisher,
        commits: BatchCommit,
        worker: Worker,
        attendance: StreamWaiter,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._seconds = settings.batch_milliseconds / 1000
        self._changes = changes
        self._stream = stream
        self._publisher = publisher
        self._commits = commits
        self._worker = worker
        self._attendance = attendance
        self.progress = progress
        self.heartbeat_seen = False
        self.is_late = False  # what comes was committed a while ago: it is throughput that counts
        self.idle_lsn = LSN(0)  # the server has sent everything before it
        self.after_heartbeat: Callable[[], None] = lambda: None
        self._outbox = PendingRecords()
        self._commit: Future[Progress] | None = None  # the one under way
        self._confirmed_at = 0.0
        self._started = 0.0
        self._settled_at = 0.0
        self._last_commit: Commit | None = None  # of the batch that is being gathered
        self._last_sent: Commit | None = None
        self._split_at = 0  # how many changes of the source transaction were committed in parts

    @property
    def states(self) -> TableStates:
        return self._commits.states

    def replace_states(self, states: TableStates) -> None:
        """They are written with the batch that is being gathered, not with the one that is being committed."""
        if states is not self._commits.states:
            self.settle()
            self._commits.states = states

    # -- gathering -------------------------------------------------------------------------------------------

    def on_begin(self) -> None:
        self._split_at = 0
        if not self._started:
            self._started = time.monotonic()

    def on_commit(self, message: Commit) -> None:
        self._last_commit = self._last_sent = message
        # While a commit is under way the next batch grows in the outbox: nothing is gained by waiting here.
        if self._commit is None and self._is_due():
            self.end()

    def on_keepalive(self, lsn: LSN) -> None:
        """Outside of transactions. First of all it is sent when there is no more: then a batch waits for nothing.

        (It has other reasons as well. If there is more, the next commit says so.)
        """
        self.idle_lsn = lsn
        self.is_late = False

    def end_or_wait(self) -> bool:
        """Nothing more has come: end a whole batch, unless more of a backlog may follow. False: there is none."""
        if not self._is_whole() or self._commit is not None:
            return False
        if self._is_due() or not (self.is_late and self._stream.pump(self._seconds)):
            self.end()
        return True

    def end(self) -> None:
        """Transactions that published nothing (Postgres 14 sends them all) are worth no Kafka transaction."""
        if self._count() or self._changes.held or self.heartbeat_seen or self._last_commit is None:
            self._commit_batch()
        else:
            self.idle_lsn = self._last_commit.end_lsn
            self._last_commit = None
            self._started = 0.0

    def finish(self) -> None:
        """Asked to stop: publish what is whole, leave the rest to the next start."""
        if self._is_whole():
            self._commit_batch()
        self.settle()
        self._stream.send_status()

    def settle(self) -> None:
        """Wait for the commit under way, if there is one; only now may the slot be confirmed."""
        if self._commit is None:
            return
        self.progress = self._attendance.wait(self._commit, self._stream)
        self._commit = None
        self._confirm(self.progress.confirmable)
        self._changes.emit = self._publisher.emit
        self._outbox.empty_into(self._publisher.send)
        self._settled_at = time.monotonic()

    def look(self) -> None:
        """Between rows: do too many wait, has a huge transaction filled its Kafka transaction?"""
        self._attendance.wait_while(self._is_full, self._stream)
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
        """Nothing in flight: what the server says it has sent is what we have. Progress first, then confirm."""
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
        """What blocks, in the worker thread."""
        return self._attendance.call(call, self._stream)

    # -- committing ------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        due_seconds = max(self._seconds, _LATE_BATCH_SECONDS) if self.is_late else self._seconds
        return self._count() >= _GROUP_EVENTS or time.monotonic() - self._started >= due_seconds

    def _is_old(self) -> bool:
        """Has the Kafka transaction been open for so long that it must end? What waits in the outbox is in none yet."""
        opened_at = max(self._started, self._settled_at)
        limit_seconds = self._settings.transaction_timeout_seconds / 3
        return self._commit is None and self._count() > 0 and time.monotonic() - opened_at > limit_seconds

    def _is_whole(self) -> bool:
        """Nothing half-read, and something to publish: whole transactions, or a message outside of any."""
        return self._changes.begin is None and (self._last_commit is not None or self._count() > 0)

    def _is_full(self) -> bool:
        """Must decoding wait for Kafka? What was delivered leaves the queue while we ask."""
        if self._commit is None:
            self._publisher.poll()
        elif self._commit.done():
            return False
        return self._outbox.bytes + self._publisher.queued_bytes >= _FULL_BYTES

    def _count(self) -> int:
        return len(self._outbox) if self._commit is not None else self._publisher.count

    def _commit_batch(self) -> None:
        """Hand the batch to the worker thread. Records of the next one wait in the outbox until this one is through."""
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
        if heartbeat:  # it may change what is known of the tables, which the next row needs
            self.settle()
            self.after_heartbeat()

    def _sent_last(self) -> LastCommit | None:
        """The last commit that has come, or the transaction that is being read, which is named after its commit."""
        begin, commit = self._changes.begin, self._last_sent
        if begin is not None:
            return LastCommit(int(begin.final_lsn), begin.commit_time_us + POSTGRES_EPOCH_US)
        if commit is not None:
            return LastCommit(int(commit.commit_lsn), commit.commit_time_us + POSTGRES_EPOCH_US)
        return None

    def _release_held(self) -> None:
        """Too many wait for a re-select: complete them in the middle of the batch, so that memory stays flat."""
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
    """Progress at `version`, which is that of `changes`, or later where the log has gone on without changes of ours.

    While transactions are sent again that were published before a restart, the version stands still; how far into its
    transaction that was, and how many of its messages were published, must not be forgotten meanwhile.
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
