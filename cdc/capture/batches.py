"""Groups whole source transactions into batches: one Kafka transaction each, committed while capture reads on."""

from __future__ import annotations

import time
from collections.abc import Callable

from cdc.capture.commit_handover import CommitHandover
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.config.model import CaptureConfig as Settings
from cdc.encoding.envelope import POSTGRES_EPOCH_US
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.pgoutput.messages import Commit
from cdc.positions.progress import LastCommit, Progress
from cdc.postgres.replication import ReplicationStream
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.publishing.publisher import Publisher

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
    """Decides when a batch ends, and when decoding must wait for Kafka.

    `after_heartbeat` is called when a batch with a heartbeat is committed, before the next row.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        numbering: Numbering,
        queue: RecordQueue,
        commits: CommitHandover,
        stream: ReplicationStream,
        publisher: Publisher,
        stream_waiter: StreamWaiter,
        after_heartbeat: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._seconds = settings.batch_milliseconds / 1000
        self._numbering = numbering
        self._queue = queue
        self._commits = commits
        self._stream = stream
        self._publisher = publisher
        self._stream_waiter = stream_waiter
        self._after_heartbeat = after_heartbeat
        self._has_heartbeat = False
        self._is_late = False  # the transactions were committed a while ago: throughput matters more than latency
        self._idle_lsn = LSN(0)  # the server has sent everything before this LSN
        self._started = 0.0
        self._last_commit: Commit | None = None  # the last one in the batch that is being gathered
        self._last_sent: Commit | None = None
        self._split_at = 0  # how many changes of the current source transaction earlier batches contain

    # -- gathering -------------------------------------------------------------------------------------------

    def on_begin(self) -> None:
        """Start the batch's clock at its first Begin message."""
        self._split_at = 0
        if not self._started:
            self._started = time.monotonic()

    def on_commit(self, message: Commit, *, is_late: bool) -> None:
        """Note that a source transaction is complete, and end the batch if it is due.

        `is_late`: it was committed a while before the server sent it.
        """
        self._is_late = is_late
        self._last_commit = self._last_sent = message
        # While a Kafka commit is in progress, the next batch grows in the outbox. To wait here would gain nothing.
        if self._commits.current is None and self._is_due():
            self.end()

    def note_heartbeat(self) -> None:
        """Note that the batch contains a heartbeat, so that its commit also checks the topics and the catalog."""
        self._has_heartbeat = True

    def on_keepalive(self, lsn: LSN) -> None:
        """Handle a keepalive outside a transaction.

        The server usually sends one when it has nothing more to send, so a batch need not wait for more transactions.
        The server also has other reasons to send one. In that case the next commit says again whether it is late.
        """
        self._idle_lsn = lsn
        self._is_late = False

    def end_or_wait(self) -> bool:
        """End the batch, because the stream is empty, unless more of a backlog may follow. False: no batch to end."""
        if not self._is_whole() or self._commits.current is not None:
            return False
        if self._is_due() or not (self._is_late and self._stream.pump(self._seconds)):
            self.end()
        return True

    def end(self) -> None:
        """Commit the batch. A batch without records needs no Kafka transaction (Postgres 14 sends empty ones)."""
        if self._count() or self._queue.held or self._has_heartbeat or self._last_commit is None:
            self._commit_batch()
        else:
            self._idle_lsn = self._last_commit.end_lsn
            self._last_commit = None
            self._started = 0.0

    def finish(self) -> None:
        """Publish the whole transactions before capture stops. The slot keeps the rest for the next start."""
        if self._is_whole():
            self._commit_batch()
        self._commits.settle()
        self._stream.send_status()

    def check_limits(self) -> None:
        """Check the limits between rows: wait for Kafka, complete held events, split a very large transaction."""
        self._stream_waiter.wait_while(self._is_full, self._stream)
        self._commits.settle_if_done()
        if len(self._queue.held) >= _HELD_EVENTS or self._queue.held_bytes >= _HELD_BYTES:
            self._commits.send_held()
        if self._numbering.begin is None:
            return
        if self._numbering.count - self._split_at > self._settings.transaction_events or self._is_old():
            log.info("transaction_split", version=str(self._numbering.version))
            self._commit_batch()

    def note_idle(self) -> None:
        """With nothing in flight, advance progress to the LSN that the server has sent, then confirm the slot."""
        lsn, progress = self._idle_lsn, self._commits.progress
        due = time.monotonic() - self._commits.confirmed_at >= _IDLE_PROGRESS_SECONDS
        busy = self._commits.current is not None or self._numbering.begin is not None or self._last_commit is not None
        if busy or not due or lsn <= progress.confirm_lsn:
            return
        version = max(self._numbering.version, Version(progress.base + lsn, 0))
        self._commits.commit_idle(
            draft_progress(progress, self._numbering, version, confirm_lsn=lsn, commit=self._sent_last())
        )

    # -- committing ------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        due_seconds = max(self._seconds, _LATE_BATCH_SECONDS) if self._is_late else self._seconds
        return self._count() >= _GROUP_EVENTS or time.monotonic() - self._started >= due_seconds

    def _is_old(self) -> bool:
        """Whether the Kafka transaction has been open so long that it must end.

        Records in the outbox belong to no Kafka transaction yet.
        """
        opened_at = max(self._started, self._commits.settled_at)
        limit_seconds = self._settings.transaction_timeout_seconds / 3
        return self._commits.current is None and self._count() > 0 and time.monotonic() - opened_at > limit_seconds

    def _is_whole(self) -> bool:
        """Whether the batch has something to publish and ends at a transaction boundary.

        It then holds whole transactions, or a logical message outside a transaction.
        """
        return self._numbering.begin is None and (self._last_commit is not None or self._count() > 0)

    def _is_full(self) -> bool:
        """Whether decoding must wait for Kafka. Polling the producer removes delivered records from its queue."""
        commit = self._commits.current
        if commit is None:
            self._publisher.poll()
        elif commit.done():
            return False
        return self._queue.outbox.bytes + self._publisher.queued_bytes >= _FULL_BYTES

    def _count(self) -> int:
        return len(self._queue.outbox) if self._commits.current is not None else self._publisher.count

    def _commit_batch(self) -> None:
        """Commit the batch in the worker thread. The next batch's records wait in the outbox until then."""
        self._commits.settle()
        progress, last = self._commits.progress, self._last_commit
        is_inside = self._numbering.begin is not None
        draft = draft_progress(
            progress,
            self._numbering,
            self._numbering.version,
            confirm_lsn=last.end_lsn if last else LSN(progress.confirm_lsn),
            commit=self._sent_last(),
        )
        has_heartbeat, self._has_heartbeat = self._has_heartbeat, False
        self._commits.start(draft, heartbeat=has_heartbeat)
        self._started = time.monotonic() if is_inside else 0.0
        self._last_commit = None
        self._split_at = self._numbering.count if is_inside else 0
        if has_heartbeat:  # it may change the table states, which the next row needs
            self._commits.settle()
            self._after_heartbeat()

    def _sent_last(self) -> LastCommit | None:
        """Return the last commit received. Inside a transaction it is the transaction's own, from its Begin."""
        begin, commit = self._numbering.begin, self._last_sent
        if begin is not None:
            return LastCommit(int(begin.final_lsn), begin.commit_time_us + POSTGRES_EPOCH_US)
        if commit is not None:
            return LastCommit(int(commit.commit_lsn), commit.commit_time_us + POSTGRES_EPOCH_US)
        return None


def draft_progress(
    known: Progress, numbering: Numbering, version: Version, *, confirm_lsn: LSN, commit: LastCommit | None = None
) -> Progress:
    """Return the progress record for `version`.

    `version` is that of `numbering`, or a later one when the WAL has advanced without changes of captured tables.

    After a restart, the server sends transactions again that capture has already published. During this time the
    version does not change. Progress must keep how far into its transaction the version is, and how many of the
    transaction's logical messages are published.
    """
    is_there = version.position == numbering.position and not numbering.is_behind
    inside, messages = (numbering.begin is not None, numbering.messages) if is_there else (False, 0)
    if version.position == known.position:
        inside = inside or (numbering.is_behind and known.inside_transaction)
        messages = max(messages, known.messages)
    return known.advanced(
        version,
        confirm_lsn=confirm_lsn,
        commit=commit,
        inside_transaction=inside,
        messages=messages,
    )
