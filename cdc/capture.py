"""Capture: one life from taking the slot to the first trouble, and the loop that lives again after it.

The order of everything here is the delivery promise (docs/architecture.md, "Exactly once"): take the slot, fence, read
progress, check, skip what was published; then per batch: events, flush, end offsets, progress record, commit, and only
then confirm the slot.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TypeVar

import psycopg

from cdc import catalog, schema
from cdc.attendance import Attendance
from cdc.batch_commit import BatchCommit
from cdc.changes import Changes
from cdc.config import Config
from cdc.copies.described import describe_tables
from cdc.copies.marks import PREFIX as COPY_PREFIX
from cdc.copies.passage import Passage
from cdc.decoder import HEAD_BYTES, decode, sent_at_of, start_of
from cdc.envelope import POSTGRES_EPOCH_US, clock
from cdc.errors import RefusedError, TransientError
from cdc.heartbeat import OWN_PREFIX, Heartbeat
from cdc.heartbeat import PREFIX as HEARTBEAT_PREFIX
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.messages import Begin, Commit, LogicalMessage, Message, Origin, Relation, Truncate, Type
from cdc.names import Control, control_topic, message_topic
from cdc.outbox import Outbox
from cdc.postgres import connect, explain
from cdc.progress import Progress
from cdc.publisher import Publisher
from cdc.relations import Shape, Table
from cdc.replication import ReplicationStream, sent_up_to
from cdc.reselect import Reselect
from cdc.snapshots import Snapshot
from cdc.startup import Started, start
from cdc.table_watch import TableWatch
from cdc.tables import Tables
from cdc.worker import Worker

T = TypeVar("T")
log = get_logger("capture")

# A Kafka transaction takes in whole source transactions up to about this many events before it is committed.
_GROUP_EVENTS = 30_000
# What is older than this when the server sends it is late anyway: larger batches, fewer commits.
_LATE_US = 1_000_000
_LATE_BATCH_SECONDS = 0.5
# How many events may wait for one re-select.
_HELD_EVENTS = 2_000
# Between two looks at the clock, the split limit and the keepalives, while rows rush by.
_ROWS_BETWEEN_LOOKS = 512
_IDLE_PROGRESS_SECONDS = 1.0
# Between two lives.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS, _LONG_LIFE_SECONDS = 0.25, 5.0, 30.0


class Capture:
    """One life. `run` returns when asked to stop, and raises TransientError or RefusedError otherwise."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        self._config = config
        self._stop = stop
        self._conninfo = config.source.conninfo()
        self._batch_seconds = config.capture.batch_milliseconds / 1000
        self._worker = Worker("tailrace-kafka")
        self._heartbeat: Heartbeat | None = None
        self._attendance = Attendance(self._worker, stop, self._server_lost)
        self._outbox = Outbox()
        self._commit: Future[Progress] | None = None  # the one under way
        self._confirmed_at = 0.0
        self._batch_started = 0.0
        self._last_commit: Commit | None = None  # of the batch that is being gathered
        self._is_late = False
        self._split_at = 0  # the number up to which a source transaction has been committed in parts
        self._heartbeat_seen = False
        self._idle_lsn = LSN(0)

    def run(self) -> None:
        try:
            started = start(self._config, self._attendance.call, stop=self._stop)
            if started is None:
                return
            self._adopt(started)
            self._stream_changes()
            self._finish()
        finally:
            self._close()

    # -- start and end ---------------------------------------------------------------------------------------

    def _adopt(self, started: Started) -> None:
        kafka = self._config.kafka
        self._stream: ReplicationStream = started.stream
        self._publisher: Publisher = started.publisher
        self._topics = started.topics
        self._catalog: psycopg.Connection = started.catalog
        self._progress: Progress = started.progress
        self._schema_topic = control_topic(kafka.prefix, Control.SCHEMA)
        self._changes = Changes(
            pipeline=kafka.prefix,
            database=catalog.database_name(self._catalog),
            base=self._progress.base,
            resume_after=self._progress.version,
            messages_published=self._progress.messages,
            emit=self._publisher.send,
            partitions=kafka.partitions,
        )
        self._tables = Tables(self._config, self._catalog)
        database = catalog.database_name(self._catalog)
        self._passage = Passage(
            self._config,
            self._changes,
            database=database,
            call=self._call,
            settle=self._finish_commit,
            introduce=self._introduce,
        )
        self._reselect = Reselect(lambda: connect(self._conninfo), stop=self._server_lost)
        self._commits = BatchCommit(
            prefix=kafka.prefix,
            timeout_seconds=self._config.capture.transaction_timeout_seconds,
            publisher=self._publisher,
            topics=self._topics,
            reselect=self._reselect,
            watch=TableWatch(self._config, self._catalog),
            states=started.states,
        )
        self._heartbeat = Heartbeat(
            lambda: connect(self._conninfo),
            slot=self._config.source.slot,
            interval_seconds=self._config.source.heartbeat_seconds,
        )
        self._publisher.wait_for_room = lambda: self._attendance.wait_for_room(self._stream)
        self._stream.watch(self._worker.wake_fd)
        self._stream.confirm(self._progress.confirmable)
        self._heartbeat.start()
        log.info("streaming", slot=self._config.source.slot, version=str(self._progress.version))

    def _finish(self) -> None:
        """Asked to stop: publish what is whole, leave the rest to the next start."""
        if self._batch_is_whole():
            self._commit_batch()
        self._finish_commit()
        self._stream.send_status()
        log.info("stopped", version=str(self._progress.version))

    def _close(self) -> None:
        """The replication connection first: a server that is shutting down waits for nothing but that."""
        if self._heartbeat is not None:
            self._stream.close()
            self._heartbeat.close()
            self._reselect.close()
            self._catalog.close()
            self._publisher.abandon()
            self._topics.close()
        self._worker.close()

    # -- the stream ------------------------------------------------------------------------------------------

    def _stream_changes(self) -> None:
        while not self._stop.is_set():
            items = self._stream.take()
            if items:
                self._handle_all(items)
            elif self._batch_is_whole() and not self._is_committing():
                if self._batch_is_due() or not (self._is_late and self._stream.pump(self._batch_seconds)):
                    self._end_batch()
            else:
                self._note_idle()
                self._stream.pump(0.5)
                self._look_around()

    def _handle_all(self, items: list[bytes]) -> None:
        changes = self._changes
        changes.now = clock()
        at, look_at = 0, 0
        while at < len(items):
            if at >= look_at:
                self._stream.attend()
                self._look_around()
                look_at = min(at + _ROWS_BETWEEN_LOOKS, len(items))
            at = changes.take_rows(items, at, look_at)
            if at < look_at:
                self._handle_one(items[at])
                at += 1

    def _handle_one(self, raw: bytes) -> None:
        """What is not a plain row."""
        wal_end = sent_up_to(raw)
        if wal_end is None:
            message = decode(raw[HEAD_BYTES:])
            if isinstance(message, Commit):
                self._is_late = sent_at_of(raw)[0] - message.commit_time_us > _LATE_US
            self._handle(message, *start_of(raw))
        elif self._changes.begin is None:
            self._idle_lsn = wal_end

    def _handle(self, message: Message, lsn: int) -> None:
        changes = self._changes
        if isinstance(message, Begin):
            changes.on_begin(message)
            self._split_at = 0
            if not self._batch_started:
                self._batch_started = time.monotonic()
        elif isinstance(message, Commit):
            changes.on_commit(message)
            self._last_commit = message
            # While a commit is under way the next batch grows in the outbox: nothing is gained by waiting here.
            if not self._is_committing() and self._batch_is_due():
                self._end_batch()
        elif isinstance(message, Relation):
            self._on_relation(message, lsn)
        elif isinstance(message, Truncate):
            self._on_truncate(message, lsn)
        elif isinstance(message, LogicalMessage):
            self._on_message(message)
        elif isinstance(message, Origin):
            changes.on_origin(message)
        elif not isinstance(message, Type):  # its name is not needed: the catalog is asked for types
            changes.on_row(message, lsn)

    def _on_relation(self, relation: Relation, lsn: int) -> None:
        table = self._tables.table_for(relation, self._commits.states, self._progress.topic_ids)
        if table is None:
            self._changes.on_table_gone(relation.oid)
            return
        self._changes.gone.discard(relation.oid)
        self._changes.windows.disturb([table.topic], "its columns may have changed while it was read")
        learned = self._tables.learn(relation.oid, self._commits.states, lsn)
        if learned is not self._commits.states:
            self._finish_commit()
            self._commits.states = learned
        self._make_known(table)
        self._changes.on_table(table)

    def _make_known(self, table: Table) -> None:
        """Its topic, and its columns for whoever reads that, before its first row."""
        if table.topic not in self._progress.topic_ids:
            self._add_topic(table.topic)
        digest = schema.digest(table)
        if self._progress.schemas.get(table.topic) != digest and not self._changes.replaying:
            self._finish_commit()
            self._progress = self._progress.with_schema(table.topic, digest)
            self._publisher.send(*schema.record(table, self._changes.version, self._schema_topic))

    def _introduce(self, oids: Collection[str]) -> None:
        """Tables that are copied before the stream has told of them."""
        topics = {oid: self._commits.states.tables[oid].topic for oid in oids if oid in self._commits.states.tables}
        unknown = [oid for oid, topic in topics.items() if topic not in self._progress.schemas]
        if unknown:
            for each in self._call(lambda: describe_tables(self._catalog, self._config, unknown)).values():
                self._make_known(each.table(each.relation))

    def _follow_renamed_roots(self) -> None:
        """No message tells that the partitioned table above a partition has another name."""
        for oid, table in list(self._changes.tables.items()):
            root = self._commits.states.root_of(oid)
            if root is not None and str(oid) in root.leaves and root.topic != table.topic:
                self._on_relation(table.relation, self._progress.confirm_lsn)

    def _on_truncate(self, message: Truncate, lsn: int) -> None:
        """TRUNCATE of a partitioned table names all of its partitions; of a partition, only that one."""
        oids = tuple(oid for oid in message.relation_oids if oid not in self._changes.gone)
        truncated = {str(oid) for oid in oids}
        partial = set()
        for oid in oids:
            root = self._commits.states.root_of(oid)
            if root is not None and root.leaves and not root.leaves.keys() <= truncated:
                partial.add(root.topic)
                self._finish_commit()
                self._commits.states = self._commits.states.with_pending(root.topic, lsn, "a partition was truncated")
        roots = [root.topic for oid in oids if (root := self._commits.states.root_of(oid)) is not None]
        self._changes.windows.disturb(roots, "it was truncated while it was read")
        self._changes.on_truncate(Truncate(oids, message.cascade, message.restart_identity), lsn, partial)

    def _on_message(self, message: LogicalMessage) -> None:
        if message.prefix == HEARTBEAT_PREFIX:
            self._heartbeat_seen = True
            self._empty_topics_of_gone_tables(message.lsn)
        elif message.prefix == COPY_PREFIX and message.transactional:
            states = self._passage.on_mark(message.content, message.lsn, self._commits.states)
            if states is not self._commits.states:
                self._finish_commit()
                self._commits.states = states
        elif self._config.source.messages and not message.prefix.startswith(OWN_PREFIX):
            name = message_topic(self._config.kafka.prefix, message.prefix)
            if name not in self._progress.topic_ids:
                self._finish_commit()
                topic_id = self._call(lambda: self._topics.ensure_messages(name))
                self._progress = self._progress.with_message_topic(name, topic_id)
            self._changes.on_message(message, name)

    def _empty_topics_of_gone_tables(self, lsn: int) -> None:
        if not self._commits.states.emptying:
            return
        self._finish_commit()  # it must not record as emptied what is emptied only by the next one
        live = {state.topic for state in self._commits.states.tables.values()}
        due = {name: gone for name, gone in self._commits.states.emptying.items() if gone.seen < lsn}
        for name, gone in due.items():
            if name not in live:
                self._changes.on_gone(Shape(schema=gone.schema, table=gone.table, topic=name, key=()), lsn)
        self._commits.states = self._commits.states.emptied(due)

    def _forget_visible(self) -> None:
        """Transactions that every session sees by now cannot be missing in what a copy reads."""
        row = self._call(lambda: self._catalog.execute("select pg_current_snapshot()::text").fetchone())
        if row is not None:
            self._changes.windows.forget_visible(Snapshot.parse(row[0]))

    def _add_topic(self, name: str) -> None:
        self._finish_commit()
        made = self._call(lambda: self._topics.ensure_tables([name]))
        self._progress = self._progress.with_topic(name, made[name].id, made[name].partitions)

    def _call(self, call: Callable[[], T]) -> T:
        return self._attendance.call(call, self._stream)

    def _server_lost(self) -> bool:
        return self._heartbeat is not None and self._heartbeat.server_lost.is_set()

    # -- batches ---------------------------------------------------------------------------------------------

    def _batch_is_due(self) -> bool:
        due_seconds = max(self._batch_seconds, _LATE_BATCH_SECONDS) if self._is_late else self._batch_seconds
        return self._batch_count() >= _GROUP_EVENTS or time.monotonic() - self._batch_started >= due_seconds

    def _batch_is_whole(self) -> bool:
        """Nothing half-read, and something to publish: whole transactions, or a message outside of any."""
        return self._changes.begin is None and (self._last_commit is not None or self._batch_count() > 0)

    def _batch_count(self) -> int:
        return len(self._outbox) if self._is_committing() else self._publisher.count

    def _is_committing(self) -> bool:
        return self._commit is not None

    def _end_batch(self) -> None:
        """Transactions that published nothing (Postgres 14 sends them all) are worth no Kafka transaction."""
        if self._batch_count() or self._changes.held or self._heartbeat_seen or self._last_commit is None:
            self._commit_batch()
        else:
            self._idle_lsn = self._last_commit.end_lsn
            self._last_commit = None
            self._batch_started = 0.0

    def _commit_batch(self) -> None:
        """Hand the batch to the worker thread. Records of the next one wait in the outbox until this one is through."""
        self._finish_commit()
        changes, held = self._changes, self._changes.held
        changes.held = []
        inside = changes.begin is not None
        last = self._last_commit
        draft = self._progress.advanced(
            changes.version,
            confirm_lsn=last.end_lsn if last else LSN(self._progress.confirm_lsn),
            commit_time_us=last.commit_time_us + POSTGRES_EPOCH_US if last else None,
            inside_transaction=inside,
            messages=changes.messages,
        )
        heartbeat, self._heartbeat_seen = self._heartbeat_seen, False
        changes.emit = self._outbox.put
        self._commit = self._worker.submit(lambda: self._commits.publish(held, draft, heartbeat=heartbeat))
        self._batch_started = time.monotonic() if inside else 0.0
        self._last_commit = None
        self._split_at = changes.seq if inside else 0
        if heartbeat:  # it may change what is known of the tables, which the next row needs
            self._finish_commit()
            self._follow_renamed_roots()
            self._forget_visible()

    def _finish_commit(self) -> None:
        """Wait for the commit under way, if there is one; only now may the slot be confirmed."""
        if self._commit is None:
            return
        commit = self._commit
        self._progress = self._attendance.wait(commit, self._stream)
        self._commit = None
        self._stream.confirm(self._progress.confirmable)
        self._stream.send_status()
        self._confirmed_at = time.monotonic()
        self._changes.emit = self._publisher.send
        self._outbox.empty_into(self._publisher.send)

    def _release_held(self) -> None:
        """Too many wait for a re-select: complete them in the middle of the batch, so that memory stays flat."""
        self._finish_commit()
        held, self._changes.held = self._changes.held, []
        self._call(lambda: self._commits.send_completed(held))

    def _look_around(self) -> None:
        """Between rows: is the server there, do too many wait, has a huge transaction filled its Kafka transaction?"""
        self._attendance.raise_if_lost()
        if self._commit is None:
            self._publisher.poll()
        elif self._commit.done() or self._outbox.is_full:
            self._finish_commit()
        if len(self._changes.held) >= _HELD_EVENTS:
            self._release_held()
        if self._changes.windows.is_full:
            self._forget_visible()
        if self._changes.begin is None:
            return
        limit_seconds = self._config.capture.transaction_timeout_seconds / 3
        if self._changes.seq - self._split_at >= self._config.capture.transaction_events or (
            self._batch_count() and time.monotonic() - self._batch_started > limit_seconds
        ):
            log.info("transaction_split", version=str(self._changes.version))
            self._commit_batch()

    def _note_idle(self) -> None:
        """Nothing in flight: what the server says it has sent is what we have. Progress first, then confirm."""
        lsn = self._idle_lsn
        due = time.monotonic() - self._confirmed_at >= _IDLE_PROGRESS_SECONDS
        busy = self._is_committing() or self._changes.begin is not None or self._last_commit is not None
        if busy or not due or lsn <= self._progress.confirm_lsn:
            return
        version = max(self._changes.version, Version(self._progress.base + lsn, 0))
        draft = self._progress.advanced(version, confirm_lsn=lsn)
        self._progress = self._call(lambda: self._commits.publish([], draft, heartbeat=False))
        self._stream.confirm(lsn)
        self._stream.send_status()
        self._confirmed_at = time.monotonic()


def run_capture(config: Config, stop: threading.Event) -> None:
    """Live again after every trouble that another try can mend; refusals go to the caller."""
    pause_seconds = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        born = time.monotonic()
        try:
            Capture(config, stop).run()
            continue
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            reason = explain(error)
        except psycopg.Error as error:
            raise RefusedError(
                f"Postgres refused: {explain(error)}", remedy="Mend this at the source, then start capture again."
            ) from error
        except TransientError as error:
            reason = str(error)
        if time.monotonic() - born > _LONG_LIFE_SECONDS:
            pause_seconds = _FIRST_PAUSE_SECONDS
        log.warning("retrying", reason=reason, in_seconds=pause_seconds)
        gc.collect()  # of the life that ended: its producer, with threads and sockets, hangs in a reference cycle
        stop.wait(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _LAST_PAUSE_SECONDS)
