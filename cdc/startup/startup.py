"""How a life of capture begins: take the slot, fence, read progress, check. The first time, make what is missing.

The slot is the lock: whoever holds it is the one capture, anybody else waits as the standby. Only then is the producer
fenced, because fencing before would cut off the capture that rightly runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import psycopg

from cdc.config import Config, TableSelector
from cdc.errors import TransientError
from cdc.kafka.control_topics import read_last
from cdc.kafka.topics import Topics
from cdc.logical_messages.signed import ensure_secret
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions import continuity
from cdc.positions.progress import KEY as PROGRESS_KEY
from cdc.positions.progress import Progress, new_pipeline_id, read_progress
from cdc.postgres import catalog
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationStream, SlotInUse
from cdc.publishing.parked import Parked, read_parked_rows
from cdc.publishing.publisher import Publisher
from cdc.startup.first_start import FirstStart
from cdc.startup.resumption import Resumption
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.event_settings import follow_settings, pipeline_digest, refuse_removed
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableStates, decode_states

T = TypeVar("T")
log = get_logger("startup")

_STANDBY_SECONDS = 1.0
_FENCE_SECONDS = 30.0
_LATE_RECORD_SECONDS = 5.0
_PARKED_LOST = "which of its rows are parked was lost with __parked"
# A quarter of a copy's: while a request is under way, librdkafka holds its batch twice, as it was and compressed.
_BATCH_BYTES = "262144"


class Attend(Protocol):
    """Runs a blocking call in another thread while the replication connection stays answered."""

    def __call__(self, call: Callable[[], T], stream: ReplicationStream) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    stream: ReplicationStream
    publisher: Publisher
    topics: Topics
    catalog: psycopg.Connection
    progress: Progress
    states: TableStates
    secret: bytes  # of our own messages in the log
    resumption: Resumption


def start(config: Config, attend: Attend, *, stop: threading.Event) -> Started | None:
    """None when asked to stop while waiting as the standby. Closes what it opened when it fails."""
    topics = Topics(config.kafka)
    try:
        topics.ensure_control()
        connection = connect(config.source.conninfo(), application_name="tailrace catalog")
        try:
            start_once = _Start(config, attend, topics, connection, stop)
            announced = False
            while not stop.is_set():
                try:
                    if (started := start_once.try_to_take()) is not None:
                        return started
                except SlotInUse as in_use:
                    if not announced:
                        log.info("standby", slot=config.source.slot, reason=str(in_use))
                        announced = True
                    stop.wait(_STANDBY_SECONDS)
        except BaseException:
            connection.close()
            raise
        connection.close()
    except BaseException:
        topics.close()
        raise
    topics.close()
    return None


class _Start:
    def __init__(
        self, config: Config, attend: Attend, topics: Topics, connection: psycopg.Connection, stop: threading.Event
    ) -> None:
        self._config = config
        self._source = config.source
        self._attend = attend
        self._topics = topics
        self._connection = connection
        self._stop = stop
        self._progress_topic = control_topic(config.kafka.prefix, Control.PROGRESS)
        self._schema_topic = control_topic(config.kafka.prefix, Control.SCHEMA)
        self._parked_topic = control_topic(config.kafka.prefix, Control.PARKED)
        self._made: Publisher | None = None
        self._slot_confirmed: LSN | None = None  # as the stream began; None: the slot is new

    def _stream(self) -> ReplicationStream:
        return ReplicationStream(
            self._source.conninfo(),
            slot=self._source.slot,
            publication=self._source.publication,
            stop=self._stop.is_set,
        )

    def try_to_take(self) -> Started | None:
        """None when asked to stop during the first copy."""
        if catalog.is_standby(self._connection):
            raise TransientError("This server is a standby; capture reads from the primary.")
        # Where there is no slot yet, or it is there but waits for the first copy, this lock stands in for it.
        with first_start_lock(self._connection, self._source.slot):
            stream = self._stream()
            try:
                found = self._take(stream)
                started = None if found is None else self._started(stream, *found)
            except BaseException:
                self._give_up(stream)
                raise
            if started is None:
                self._give_up(stream)
            return started

    def _give_up(self, stream: ReplicationStream) -> None:
        stream.close()
        if self._made is not None:
            self._made.abandon()

    def _started(self, stream: ReplicationStream, publisher: Publisher, progress: Progress) -> Started:
        found = self._attend(self._read_states, stream)
        parked = [] if progress.parked == {} else self._attend(self._read_parked, stream)
        publisher.know_parked(row for row in parked if row.topic in progress.topic_ids)
        lsn = catalog.current_lsn(self._connection)
        states = without_lost(progress, publisher.parked_counts, self._followed(found, lsn), lsn)
        progress = progress.with_parked(publisher.parked_counts)
        settings = pipeline_digest(self._config)
        if states != found or progress.settings != settings:
            progress = progress.with_settings(settings)
            # Before anything else: jobs compare their settings with these.
            self._attend(lambda: self._write(publisher, progress, states), stream)
        return Started(
            stream=stream,
            publisher=publisher,
            topics=self._topics,
            catalog=self._connection,
            progress=progress,
            states=states,
            secret=self._attend(lambda: ensure_secret(self._config.kafka), stream),
            resumption=Resumption(progress, self._slot_confirmed),
        )

    def _write(self, publisher: Publisher, progress: Progress, states: TableStates) -> None:
        publisher.begin()
        publisher.send(self._schema_topic, STATES_KEY, states.encode(), [])
        publisher.send(self._progress_topic, PROGRESS_KEY, progress.encode(), [("v", str(progress.version).encode())])
        publisher.commit(_FENCE_SECONDS)

    def _read_parked(self) -> list[Parked]:
        """Rows that capture has parked and not settled."""
        rows = read_parked_rows(self._config.kafka.client_options(), self._parked_topic)
        return [row for row in rows if not row.store]

    def _followed(self, states: TableStates, lsn: LSN) -> TableStates:
        """What the config says now, against what it said when the tables were published."""
        now = read_catalog_states(self._connection, states.tables, prefix=self._config.kafka.prefix)
        refuse_removed(self._config, states, now)
        for state in states.tables.values():
            if not any(selector.matches(state.schema, state.table) for selector in self._source.tables):
                log.warning(
                    "table_not_selected",
                    table=f"{state.schema}.{state.table}",
                    reason="[source] tables does not select it any more; it is captured until it is removed",
                    remedy=f"Run: tailrace remove --table {TableSelector(state.schema, state.table)}",
                )
        return follow_settings(self._config, states, lsn)

    def _take(self, stream: ReplicationStream) -> tuple[Publisher, Progress] | None:
        identity = stream.identify()
        slot = catalog.slot(self._connection, self._source.slot)
        if slot is None:
            is_physical = catalog.is_physical_slot(self._connection, self._source.slot)
            continuity.check_not_physical(self._source.slot, is_physical=is_physical)
            return self._begin_without_slot(stream, *identity)
        # Postgres would refuse these as well, without the remedy.
        continuity.check_owner(slot, name=self._source.slot, database=catalog.database_name(self._connection))
        continuity.check_valid(slot, name=self._source.slot)
        stream.start()
        return self._resume(stream, *identity)

    def _resume(self, stream: ReplicationStream, system_identifier: str, timeline: int) -> tuple[Publisher, Progress]:
        publisher = self._publisher()
        progress = self._attend(lambda: self._fence_and_read(publisher), stream)
        slot = catalog.slot(self._connection, self._source.slot)
        if slot is None:
            raise TransientError(f"Slot {self._source.slot} vanished while it was taken.")
        self._slot_confirmed = slot.confirmed_flush_lsn
        if progress is not None and slot.confirmed_flush_lsn is not None:
            progress = self._attend(partial(self._read_up_to, slot.confirmed_flush_lsn, progress), stream)
        if progress is not None:
            continuity.check_state(progress)
            continuity.check_cluster(
                progress, system_identifier
            )  # first: on another one, its slot is not ours to judge
            continuity.check_slot_name(progress, self._source.slot)
        if progress is not None and progress.state == "creating":
            # A first start that died between making the slot and saying so. Nothing was published from it.
            stream.close()
            drop_when_free(self._connection, self._source.slot)
            raise TransientError("The first start had died half-way; its slot was dropped to begin anew.")
        continuity.check_slot(progress, slot, name=self._source.slot, database=catalog.database_name(self._connection))
        assert progress is not None  # noqa: S101  # check_slot refuses otherwise
        # Asked on a connection of its own: this one streams already.
        continuity.check_server(
            progress,
            system_identifier,
            timeline,
            log_end=catalog.current_lsn(self._connection),
            forked_at=self._forked_at(timeline, progress),
        )
        progress = progress.on_timeline(timeline).on_slot(self._source.slot).identified()
        return publisher, self._checked(stream, publisher, progress)

    def _checked(self, stream: ReplicationStream, publisher: Publisher, progress: Progress) -> Progress:
        continuity.check_publication(
            progress,
            catalog.publication(self._connection, self._source.publication),
            name=self._source.publication,
            existing_tables=catalog.existing_tables(self._connection, progress.publication_tables),
        )
        continuity.check_partitions_setting(progress, self._config.kafka.partitions)
        self._attend(lambda: continuity.check_topics(progress, self._topics), stream)
        self._attend(lambda: self._topics.raise_size_limits(progress.topic_ids), stream)
        if progress.state == "copying":
            progress = self._attend(lambda: self._finish_interrupted(publisher, progress), stream)
            if progress.state == "creating":
                raise TransientError("The first copy had not begun when its snapshot was lost; beginning anew.")
        return progress

    def _finish_interrupted(self, publisher: Publisher, progress: Progress) -> Progress:
        first_start = FirstStart(self._config, self._topics, self._connection, publisher, self._stop)
        return first_start.finish_interrupted(progress, self._read_states())

    def _forked_at(self, timeline: int, progress: Progress) -> LSN | None:
        if timeline == progress.timeline:
            return None
        asking = self._stream()
        try:
            return asking.forked_at(timeline, progress.timeline)
        finally:
            asking.close()

    def _begin_without_slot(
        self, stream: ReplicationStream, system_identifier: str, timeline: int
    ) -> tuple[Publisher, Progress] | None:
        publisher = self._publisher()
        progress = self._fence_and_read(publisher)
        if progress is not None and progress.state != "creating":
            continuity.check_state(progress)
            continuity.check_cluster(progress, system_identifier)
            continuity.check_slot_name(progress, self._source.slot)
            raise continuity.missing_slot(self._source.slot, progress.confirmable)
        first_start = FirstStart(self._config, self._topics, self._connection, publisher, self._stop)
        # A first start that was interrupted has published nothing, but stores may know its id.
        pipeline_id = progress.identified().pipeline_id if progress is not None else new_pipeline_id()
        progress = first_start.run(stream, system_identifier, timeline, pipeline_id=pipeline_id)
        if progress is None:
            return None
        stream.start()
        return publisher, progress

    def _publisher(self) -> Publisher:
        self._made = make_publisher(self._config)
        return self._made

    def _fence_and_read(self, publisher: Publisher) -> Progress | None:
        publisher.fence(_FENCE_SECONDS)
        return self._read_progress()

    def _read_progress(self) -> Progress | None:
        return read_progress(self._config.kafka.client_options(), self._progress_topic, decided=True)

    def _read_up_to(self, confirmed: LSN, progress: Progress) -> Progress:
        """The slot is only ever told what a committed record says: one that says less may not be the last.

        A broker that was killed and restarted was seen, once, to show its last committed record a moment late. That no
        transaction is open does not rule that out: it may not know the end of its log yet, and says so to nobody.
        """
        give_up_at = time.monotonic() + _LATE_RECORD_SECONDS
        while progress.confirmable < confirmed and time.monotonic() < give_up_at:
            time.sleep(0.5)
            progress = self._read_progress() or progress
        return progress

    def _read_states(self) -> TableStates:
        found = self._last_states()
        if found is None:
            raise continuity.lost_states(self._schema_topic)
        return decode_states(found)

    def _last_states(self) -> bytes | None:
        """None only after a while: see `_read_up_to`."""
        give_up_at = time.monotonic() + _LATE_RECORD_SECONDS
        while True:
            found = read_last(self._config.kafka.client_options(), self._schema_topic, STATES_KEY, decided=True)
            if found is not None or time.monotonic() > give_up_at:
                return found
            time.sleep(0.5)


def without_lost(progress: Progress, found: Mapping[str, int], states: TableStates, lsn: LSN) -> TableStates:
    """Tables of which fewer rows are parked than were counted are incomplete: which rows they lack is not known."""
    for topic, count in (progress.parked or {}).items():
        if found.get(topic, 0) < count and any(state.topic == topic for state in states.tables.values()):
            log.warning("table_incomplete", topic=topic, reason=_PARKED_LOST)
            states = states.with_pending(topic, lsn, _PARKED_LOST)
    return states


@contextmanager
def first_start_lock(connection: psycopg.Connection, slot: str) -> Iterator[None]:
    """Raises SlotInUse where another capture is at its first start."""
    lock = f"tailrace:{slot}"
    row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [lock]).fetchone()
    if row is None or not row[0]:
        raise SlotInUse("another capture is starting, or waits for the first copy")
    try:
        yield
    finally:
        with suppress(psycopg.OperationalError):  # a session that is gone has no locks
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [lock])


def make_publisher(config: Config) -> Publisher:
    """Capture's own producer: whoever fences it cuts off every other one of this pipeline."""
    kafka = config.kafka
    return Publisher(
        {"batch.size": _BATCH_BYTES} | kafka.client_options(),
        transactional_id=f"{kafka.prefix}.{config.source.slot}",
        transaction_timeout_seconds=config.capture.transaction_timeout_seconds,
        max_message_bytes=kafka.max_message_bytes,
        parked_topic=control_topic(kafka.prefix, Control.PARKED),
    )


def drop_when_free(connection: psycopg.Connection, slot: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            catalog.drop_slot(connection, slot)
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise TransientError(f"Slot {slot} is still in use.") from None
            time.sleep(0.1)
        except psycopg.errors.UndefinedObject:
            return
