"""One capture session, from acquiring the slot to the first error, and the retry loop around it.

Exactly-once delivery depends on the order of the steps (docs/design/exactly-once.md): acquire the slot, fence, read
progress, check, skip published changes, then publish batch after batch (`batches`).
"""

from __future__ import annotations

import gc
import threading
import time
from typing import NamedTuple

import psycopg

from cdc.backoff import Backoff
from cdc.capture.batch_commit import BatchCommit
from cdc.capture.batches import Batches
from cdc.capture.event_rules import EventRules
from cdc.capture.incremental_snapshot import WatermarkHandler
from cdc.capture.message_topics import MessageTopics
from cdc.capture.reselect import Reselect
from cdc.capture.table_messages import TableMessages
from cdc.config import Config
from cdc.encoding.envelope import clock
from cdc.encoding.row_runs import NativeRun
from cdc.errors import RefusedError, TransientError
from cdc.logical_messages.heartbeat import PREFIX as HEARTBEAT_PREFIX
from cdc.logical_messages.heartbeat import Heartbeat
from cdc.logical_messages.signed import OWN_PREFIX, OwnMessages
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.pgoutput.decoder import HEAD_BYTES, decode_message, sent_at_of, start_of
from cdc.pgoutput.messages import Begin, Commit, LogicalMessage, Message, Origin, Relation, Truncate, Type
from cdc.postgres import catalog
from cdc.postgres.connection import connect, explain
from cdc.postgres.replication import sent_up_to
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.visibility import Snapshot
from cdc.postgres.worker_thread import Worker
from cdc.snapshot.incremental.watermarks import PREFIX as COPY_PREFIX
from cdc.startup.startup import Started, start
from cdc.tables.watch import TableWatch

log = get_logger("capture")

# A commit older than this when the server sends it is late anyway: use larger batches and fewer Kafka commits.
_LATE_US = 1_000_000
# How many rows capture handles between two checks of the clock, the keepalives, the split limit and the queues.
_ROWS_BETWEEN_CHECKS = 256
# The pauses between two sessions. A session longer than the last value resets the pause.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS, _LONG_SESSION_SECONDS = 0.25, 5.0, 30.0


_VISIBLE = """
select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,
       current_setting('synchronous_standby_names') <> ''
"""


class _Visible(NamedTuple):
    """A snapshot of the visible transactions, and an LSN read just after it.

    `late`: the server has synchronous standbys, so a commit in the WAL becomes visible only after a standby confirms.
    """

    snapshot: Snapshot
    lsn: LSN
    late: bool


class CaptureSession:
    """One capture session. `run` returns when `stop` is set, and otherwise raises TransientError or RefusedError."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        self._config = config
        self._stop = stop
        self._conninfo = config.source.conninfo()
        self._worker = Worker("tailrace-kafka")
        self._started: Started | None = None
        self._reselect: Reselect | None = None
        self._heartbeat: Heartbeat | None = None
        self._stream_waiter = StreamWaiter(self._worker, stop, self._server_lost)

    def run(self) -> None:
        """Start, stream changes until `stop` is set, publish the whole transactions, and close all connections."""
        try:
            self._started = start(self._config, self._stream_waiter.call, stop=self._stop)
            if self._started is None:
                return
            self._adopt(self._started)
            self._stream_changes()
            self._batches.finish()
            log.info("stopped", version=str(self._batches.progress.version))
        finally:
            self._close()

    # -- start and end ---------------------------------------------------------------------------------------

    def _adopt(self, started: Started) -> None:
        config, kafka, progress = self._config, self._config.kafka, started.progress
        self._stream = started.stream
        self._publisher = started.publisher
        self._topics = started.topics
        self._catalog = started.catalog
        database = catalog.database_name(self._catalog)
        self._changes = EventRules(
            pipeline=kafka.prefix,
            database=database,
            base=progress.base,
            resume_after=progress.version,
            messages_published=progress.messages,
            emit=self._publisher.emit,
            partitions=kafka.partitions,
        )
        self._reselect = Reselect(lambda: connect(self._conninfo), stop=self._server_lost)
        self._batches = Batches(
            config.capture,
            changes=self._changes,
            stream=self._stream,
            publisher=self._publisher,
            commits=BatchCommit(
                prefix=kafka.prefix,
                timeout_seconds=config.capture.transaction_timeout_seconds,
                publisher=self._publisher,
                topics=self._topics,
                reselect=self._reselect,
                watch=TableWatch(config, self._catalog, self._topics),
                states=started.states,
            ),
            worker=self._worker,
            stream_waiter=self._stream_waiter,
            progress=progress,
        )
        self._tables = TableMessages(
            config,
            catalog=self._catalog,
            changes=self._changes,
            batches=self._batches,
            publisher=self._publisher,
            topics=self._topics,
        )
        self._watermarks = WatermarkHandler(
            config,
            self._changes,
            database=database,
            call=self._batches.call,
            settle=self._batches.settle,
            introduce=self._tables.introduce,
        )
        self._own_messages = OwnMessages(started.secret, config.source.slot)
        self._message_topics = MessageTopics(config)
        self._visible = self._check_visible()
        self._changes.windows.start(self._visible.snapshot.in_progress if self._visible.late else (), self._visible.lsn)
        self._batches.after_heartbeat = self._after_heartbeat
        self._heartbeat = Heartbeat(
            lambda: connect(self._conninfo),
            slot=config.source.slot,
            secret=started.secret,
            interval_seconds=config.source.heartbeat_seconds,
        )
        self._publisher.wait_for_room = lambda: self._stream_waiter.wait_for_room(self._stream)
        self._resumption = started.resumption
        if not self._resumption.is_passed:
            self._stream.hold_confirmations()
        self._stream.confirm(progress.confirmable)
        self._heartbeat.start()
        log.info("streaming", slot=config.source.slot, version=str(progress.version), compiled=NativeRun is not None)

    def _close(self) -> None:
        """Close everything that is open. The replication connection is first: a server's shutdown waits only for it."""
        if self._started is not None:
            self._started.stream.close()
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self._reselect is not None:
            self._reselect.close()
        if self._started is not None:
            self._started.catalog.close()
            self._started.publisher.abandon()
            self._started.topics.close()
        self._worker.close()

    # -- the stream ------------------------------------------------------------------------------------------

    def _stream_changes(self) -> None:
        while not self._stop.is_set():
            items = self._stream.take()
            if items:
                self._handle_all(items)
            elif not self._batches.end_or_wait():
                self._batches.note_idle()
                self._stream.pump(0.5)
                self._worker.drain()  # clear the worker's wake-up, if there was one: `_poll_all` handles its result
                self._poll_all()

    def _handle_all(self, items: list[bytes]) -> None:
        changes = self._changes
        changes.now = clock()
        at, check_at = 0, 0
        while at < len(items):
            if at >= check_at:
                self._stream.send_status_if_due()
                self._poll_all()
                check_at = min(at + _ROWS_BETWEEN_CHECKS, len(items))
            at = changes.take_rows(items, at, check_at)
            if at < check_at:
                self._handle_one(items[at])
                at += 1

    def _handle_one(self, raw: bytes) -> None:
        """Handle a message that the fast path cannot take."""
        wal_end = sent_up_to(raw)
        if wal_end is None:
            message = decode_message(raw[HEAD_BYTES:])
            if isinstance(message, Commit):
                self._batches.is_late = sent_at_of(raw)[0] - message.commit_time_us > _LATE_US
            self._handle(message, *start_of(raw))
        elif self._changes.begin is None:
            if not self._resumption.is_passed:
                self._check_resumption(wal_end)
            self._batches.on_keepalive(wal_end)

    def _handle(self, message: Message, lsn: int) -> None:
        if isinstance(message, Begin):
            if not self._resumption.is_passed:
                self._check_resumption(message)
            self._changes.on_begin(message)
            self._batches.on_begin()
        elif isinstance(message, Commit):
            self._correct_keys(message)
            self._changes.on_commit(message)
            self._batches.on_commit(message)
        elif isinstance(message, Relation):
            self._tables.on_relation(message, lsn)
        elif isinstance(message, Truncate):
            self._tables.on_truncate(message, lsn)
        elif isinstance(message, LogicalMessage):
            self._on_message(message)
        elif isinstance(message, Origin):
            self._changes.on_origin(message)
        elif not isinstance(message, Type):  # capture reads type names from the catalog instead
            self._changes.on_row(message, lsn)

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
        while self._changes.correct_keys(commit):
            if self._stop.is_set():
                raise TransientError("Capture stops inside a transaction. The slot keeps the unpublished changes.")
            self._stream.send_status_if_due()
            self._poll_all()

    def _on_message(self, message: LogicalMessage) -> None:
        if message.prefix.startswith(OWN_PREFIX):
            content = self._own_messages.opened(message, self._changes.begin)
            if content is not None:
                self._on_own_message(message, content)
            return
        batches, topics = self._batches, self._message_topics
        name = topics.topic_for(message.prefix, batches.progress)
        if name is None:
            return
        if name not in batches.progress.topic_ids:
            batches.settle()
            topic_id = batches.call(lambda: self._topics.ensure_messages(name))
            batches.progress = batches.progress.with_message_topic(name, topic_id)
        self._changes.on_message(message, name, is_shared=topics.is_shared(name))

    def _on_own_message(self, message: LogicalMessage, content: bytes) -> None:
        batches = self._batches
        if message.prefix == HEARTBEAT_PREFIX:
            batches.heartbeat_seen = True
            self._tables.empty_topics_of_dropped_tables(message.lsn)
        elif message.prefix == COPY_PREFIX:
            batches.replace_states(self._watermarks.on_watermark(content, message.lsn, batches.states))

    def _poll_all(self) -> None:
        self._stream_waiter.raise_if_lost()
        self._batches.check_limits()
        if self._changes.windows.is_full:
            self._forget_visible()

    def _after_heartbeat(self) -> None:
        self._tables.follow_renamed_roots()
        self._forget_visible()

    def _forget_visible(self) -> None:
        """Forget the streamed transactions that every later snapshot chunk is sure to see.

        A chunk that was read earlier may still be on its way, and a commit is in the WAL before it is visible. So
        capture uses a snapshot only once the stream has passed the LSN that was read with it. (Capture ignores chunks
        that began before the first snapshot.) A stream that is far behind takes long to pass that LSN: if too many
        transactions accumulate, tracking starts again with the transactions that are in progress now.
        """
        windows, seen = self._changes.windows, self._visible
        has_passed = self._changes.position - self._changes.base > seen.lsn
        if has_passed or windows.is_overfull:
            self._visible = self._batches.call(self._check_visible)
        if has_passed or seen.lsn == windows.started_at:
            windows.forget_visible(seen.snapshot)
        if windows.is_overfull:
            windows.start(self._visible.snapshot.in_progress, self._visible.lsn)

    def _check_visible(self) -> _Visible:
        row = self._catalog.execute(_VISIBLE).fetchone()
        assert row is not None  # noqa: S101  # a select without FROM has one row
        return _Visible(Snapshot.parse(row[0]), LSN.parse(row[1]), row[2])

    def _server_lost(self) -> bool:
        return self._heartbeat is not None and self._heartbeat.server_lost.is_set()


def is_transient(error: psycopg.Error) -> bool:
    """Whether a retry can succeed: connections, deadlocks, locks, limits, a server that shuts down, a race."""
    # psycopg derives OperationalError from the SQLSTATE (40, 53, 55, 57, 58, …). DDL concurrent with a catalog query
    # causes XX000: "tuple concurrently updated", "cache lookup failed". (XX001 and XX002 mean damaged data.)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) or error.sqlstate == "XX000"


def run_capture(config: Config, stop: threading.Event) -> None:
    """Run capture sessions until `stop` is set, and retry after transient errors. Refusals go to the caller."""
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS, _LONG_SESSION_SECONDS)
    while not stop.is_set():
        born = time.monotonic()
        try:
            CaptureSession(config, stop).run()
            continue
        except psycopg.Error as error:
            if not is_transient(error):
                raise RefusedError(
                    f"Postgres refused: {explain(error)}", remedy="Repair this at the source, then start capture again."
                ) from error
            reason = explain(error)
        except TransientError as error:
            reason = str(error)
        pause_seconds = backoff.after(time.monotonic() - born)
        log.warning("retrying", reason=reason, in_seconds=pause_seconds)
        gc.collect()  # frees the ended session's producer, whose threads and sockets are in a reference cycle
        stop.wait(pause_seconds)
