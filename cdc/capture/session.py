"""One capture session: takes messages from the stream and passes each to the object that handles it."""

from __future__ import annotations

import threading

from cdc.capture.batches import Batches
from cdc.capture.commit_handover import CommitHandover
from cdc.capture.events.event_rules import EventRules
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.transaction_envelopes import TransactionEnvelopes
from cdc.capture.logical_messages import LogicalMessages
from cdc.capture.table_messages import TableMessages
from cdc.capture.visible_transactions import VisibleTransactions
from cdc.encoding.envelope import clock
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.pgoutput.decoder import HEAD_BYTES, decode_message, sent_at_of, start_of
from cdc.pgoutput.messages import Begin, Commit, LogicalMessage, Message, Origin, Relation, Truncate, Type
from cdc.postgres.replication import ReplicationStream, sent_up_to
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.worker_thread import Worker
from cdc.startup.resumption import ResumptionCheck

log = get_logger("capture")

# A commit older than this when the server sends it is late anyway: use larger batches and fewer Kafka commits.
_LATE_US = 1_000_000
# How many rows capture handles between two checks of the clock, the keepalives, the split limit and the queues.
_ROWS_BETWEEN_CHECKS = 256


class CaptureSession:
    """One capture session. `run` returns when `stop` is set, and otherwise raises TransientError or RefusedError."""

    def __init__(
        self,
        *,
        stream: ReplicationStream,
        worker: Worker,
        stream_waiter: StreamWaiter,
        resumption: ResumptionCheck,
        numbering: Numbering,
        envelopes: TransactionEnvelopes,
        rules: EventRules,
        commits: CommitHandover,
        batches: Batches,
        tables: TableMessages,
        messages: LogicalMessages,
        visible: VisibleTransactions,
        stop: threading.Event,
    ) -> None:
        self._stream = stream
        self._worker = worker
        self._stream_waiter = stream_waiter
        self._resumption = resumption
        self._numbering = numbering
        self._envelopes = envelopes
        self._rules = rules
        self._commits = commits
        self._batches = batches
        self._tables = tables
        self._messages = messages
        self._visible = visible
        self._stop = stop

    def run(self) -> None:
        """Stream changes until `stop` is set, then publish the whole transactions."""
        if not self._resumption.is_passed:
            self._stream.hold_confirmations()
        self._stream.confirm(self._commits.progress.confirmable)
        while not self._stop.is_set():
            items = self._stream.take()
            if items:
                self._handle_all(items)
            elif not self._batches.end_or_wait():
                self._batches.note_idle()
                self._stream.pump(0.5)
                self._worker.drain()  # clear the worker's wake-up, if there was one: `_poll_all` handles its result
                self._poll_all()
        self._batches.finish()
        log.info("stopped", version=str(self._commits.progress.version))

    def _handle_all(self, items: list[bytes]) -> None:
        self._envelopes.set_time(clock())
        rules = self._rules
        at, check_at = 0, 0
        while at < len(items):
            if at >= check_at:
                self._stream.send_status_if_due()
                self._poll_all()
                check_at = min(at + _ROWS_BETWEEN_CHECKS, len(items))
            at = rules.take_rows(items, at, check_at)
            if at < check_at:
                self._handle_one(items[at])
                at += 1

    def _handle_one(self, raw: bytes) -> None:
        """Handle a message that the fast path cannot take."""
        wal_end = sent_up_to(raw)
        if wal_end is None:
            self._handle(decode_message(raw[HEAD_BYTES:]), raw)
        elif self._numbering.begin is None:
            if not self._resumption.is_passed:
                self._check_resumption(wal_end)
            self._batches.on_keepalive(wal_end)

    def _handle(self, message: Message, raw: bytes) -> None:
        if isinstance(message, Begin):
            if not self._resumption.is_passed:
                self._check_resumption(message)
            self._rules.on_begin(message)
            self._batches.on_begin()
        elif isinstance(message, Commit):
            self._correct_keys(message)
            self._rules.on_commit(message)
            self._batches.on_commit(message, is_late=sent_at_of(raw)[0] - message.commit_time_us > _LATE_US)
        elif isinstance(message, Relation):
            self._tables.on_relation(message, *start_of(raw))
        elif isinstance(message, Truncate):
            self._tables.on_truncate(message, *start_of(raw))
        elif isinstance(message, LogicalMessage):
            self._messages.on_message(message)
        elif isinstance(message, Origin):
            self._rules.on_origin(message)
        elif not isinstance(message, Type):  # capture reads type names from the catalog instead
            self._rules.on_row(message, *start_of(raw))

    def _check_resumption(self, seen: Begin | LSN) -> None:
        """Check that the server's WAL is the one that was published. Until then capture does not confirm the slot."""
        if isinstance(seen, Begin):
            self._resumption.on_begin(seen)
        else:
            self._resumption.on_keepalive(seen)
        if self._resumption.is_passed:
            self._stream.release_confirmations()

    def _correct_keys(self, commit: Commit) -> None:
        """Correct ambiguous keys. There can be as many as changes, so check limits and keepalives in between."""
        while self._rules.correct_keys(commit):
            if self._stop.is_set():
                raise TransientError("Capture stops inside a transaction. The slot keeps the unpublished changes.")
            self._stream.send_status_if_due()
            self._poll_all()

    def _poll_all(self) -> None:
        self._stream_waiter.raise_if_lost()
        self._batches.check_limits()
        self._visible.forget_if_full()
