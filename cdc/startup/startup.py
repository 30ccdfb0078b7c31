"""Starts a capture session: acquires the slot, fences the producer, reads the progress record, runs the checks.

On the first start of a pipeline, it also creates the publication, the topics and the slot.

The slot is the lock: only the process that holds it may capture. Every other capture process waits as a standby. The
start fences the producer only after it has acquired the slot: otherwise it would fence the capture that is running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

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
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.publishing.parked import Parked, read_parked_rows
from cdc.publishing.publisher import Publisher
from cdc.startup.first_start import FirstStart
from cdc.startup.resumption import ResumptionCheck
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.event_settings import apply_changed_settings, pipeline_digest, refuse_removed
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableStates, decode_states

log = get_logger("startup")

_STANDBY_SECONDS = 1.0
_FENCE_SECONDS = 30.0
_LATE_RECORD_SECONDS = 5.0
_ROOM_SECONDS = 0.01
_PARKED_LOST = "__parked no longer has the entries of some of its parked rows"
# A quarter of a snapshot job's batch size: during a request, librdkafka has its batch in memory twice, plain and
# compressed.
_BATCH_BYTES = "262144"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The open connections and the state of a session that may now stream. The caller closes them."""

    stream: ReplicationStream
    publisher: Publisher
    topics: Topics
    catalog: psycopg.Connection
    progress: Progress
    states: TableStates
    secret: bytes  # the key for the signatures of Tailrace's own logical messages
    resumption: ResumptionCheck


def start(config: Config, stream_waiter: StreamWaiter, *, stop: threading.Event) -> Started | None:
    """Start a session, and wait as a standby while another process holds the slot. None: `stop` was set.

    If the start fails, it closes every connection that it opened.
    """
    topics = Topics(config.kafka)
    try:
        topics.ensure_control()
        connection = connect(config.source.conninfo(), application_name="tailrace catalog")
        try:
            start_once = _Start(config, stream_waiter, topics, connection, stop)
            announced = False
            while not stop.is_set():
                try:
                    if (started := start_once.try_start()) is not None:
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
    """One start of a session. `try_start` makes one attempt to acquire the slot."""

    def __init__(
        self,
        config: Config,
        stream_waiter: StreamWaiter,
        topics: Topics,
        connection: psycopg.Connection,
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._source = config.source
        self._stream_waiter = stream_waiter
        self._call_while_streaming = stream_waiter.call
        self._topics = topics
        self._connection = connection
        self._stop = stop
        self._progress_topic = control_topic(config.kafka.prefix, Control.PROGRESS)
        self._schema_topic = control_topic(config.kafka.prefix, Control.SCHEMA)
        self._parked_topic = control_topic(config.kafka.prefix, Control.PARKED)
        self._made: Publisher | None = None
        self._slot_confirmed: LSN | None = None  # when streaming began; None: the slot is new

    def _stream(self) -> ReplicationStream:
        return ReplicationStream(
            self._source.conninfo(),
            slot=self._source.slot,
            publication=self._source.publication,
            stop=self._stop.is_set,
        )

    def try_start(self) -> Started | None:
        """Acquire the slot and run all checks. None: `stop` was set during the initial snapshot.

        Raises SlotInUse while another process holds the slot.
        """
        if catalog.is_standby(self._connection):
            raise TransientError("This server is a standby. Capture reads from the primary.")
        # This lock replaces the slot as the lock while there is no slot, or while it waits for the initial snapshot.
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
        found = self._call_while_streaming(self._read_states, stream)
        parked = [] if progress.parked == {} else self._call_while_streaming(self._read_parked, stream)
        publisher.load_parked(row for row in parked if row.topic in progress.topic_ids)
        lsn = catalog.current_lsn(self._connection)
        states = without_lost(progress, publisher.parked_counts, self._followed(found, lsn), lsn)
        progress = progress.with_parked(publisher.parked_counts)
        settings = pipeline_digest(self._config)
        if states != found or progress.settings != settings:
            progress = progress.with_settings(settings)
            # Write this before any other record: jobs compare their settings with these.
            self._call_while_streaming(lambda: self._write(publisher, progress, states), stream)
        return Started(
            stream=stream,
            publisher=publisher,
            topics=self._topics,
            catalog=self._connection,
            progress=progress,
            states=states,
            secret=self._call_while_streaming(lambda: ensure_secret(self._config.kafka), stream),
            resumption=ResumptionCheck(progress, self._slot_confirmed),
        )

    def _write(self, publisher: Publisher, progress: Progress, states: TableStates) -> None:
        publisher.begin()
        publisher.send(self._schema_topic, STATES_KEY, states.encode(), [])
        publisher.send(self._progress_topic, PROGRESS_KEY, progress.encode(), [("v", str(progress.version).encode())])
        publisher.commit(_FENCE_SECONDS)

    def _read_parked(self) -> list[Parked]:
        """Return the rows that capture has parked and not settled."""
        rows = read_parked_rows(self._config.kafka.client_options(), self._parked_topic)
        return [row for row in rows if not row.store]

    def _followed(self, states: TableStates, lsn: LSN) -> TableStates:
        """Compare the config with the settings under which the tables were published, and return the new states."""
        now = read_catalog_states(self._connection, states.tables, prefix=self._config.kafka.prefix)
        refuse_removed(self._config, states, now)
        for state in states.tables.values():
            if not any(selector.matches(state.schema, state.table) for selector in self._source.tables):
                log.warning(
                    "table_not_selected",
                    table=f"{state.schema}.{state.table}",
                    reason="[source] tables no longer selects it; capture publishes it until it is removed",
                    remedy=f"Run: tailrace remove --table {TableSelector(state.schema, state.table)}",
                )
        return apply_changed_settings(self._config, states, lsn)

    def _take(self, stream: ReplicationStream) -> tuple[Publisher, Progress] | None:
        identity = stream.identify()
        slot = catalog.slot(self._connection, self._source.slot)
        if slot is None:
            is_physical = catalog.is_physical_slot(self._connection, self._source.slot)
            continuity.check_not_physical(self._source.slot, is_physical=is_physical)
            return self._begin_without_slot(stream, *identity)
        # Postgres would refuse these slots too, but its errors have no remedy.
        continuity.check_owner(slot, name=self._source.slot, database=catalog.database_name(self._connection))
        continuity.check_valid(slot, name=self._source.slot)
        stream.start()
        return self._resume(stream, *identity)

    def _resume(self, stream: ReplicationStream, system_identifier: str, timeline: int) -> tuple[Publisher, Progress]:
        publisher = self._publisher(stream)
        progress = self._call_while_streaming(lambda: self._fence_and_read(publisher), stream)
        slot = catalog.slot(self._connection, self._source.slot)
        if slot is None:
            raise TransientError(f"Slot {self._source.slot} was dropped while capture acquired it.")
        self._slot_confirmed = slot.confirmed_flush_lsn
        if progress is not None and slot.confirmed_flush_lsn is not None:
            progress = self._call_while_streaming(partial(self._read_up_to, slot.confirmed_flush_lsn, progress), stream)
        if progress is not None:
            continuity.check_state(progress)
            continuity.check_cluster(
                progress, system_identifier
            )  # check this first: on another cluster, the slot is not this pipeline's
            continuity.check_slot_name(progress, self._source.slot)
        if progress is not None and progress.state == "creating":
            # An earlier first start died after it created the slot and before it recorded this. It published nothing.
            stream.close()
            drop_when_free(self._connection, self._source.slot)
            raise TransientError("An earlier first start did not finish. Capture dropped its slot and starts again.")
        continuity.check_slot(progress, slot, name=self._source.slot, database=catalog.database_name(self._connection))
        assert progress is not None  # noqa: S101  # check_slot refuses otherwise
        # `_forked_at` opens its own connection, because this one is already streaming.
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
        self._call_while_streaming(lambda: continuity.check_topics(progress, self._topics), stream)
        self._call_while_streaming(lambda: self._topics.raise_size_limits(progress.topic_ids), stream)
        if progress.state == "copying":
            progress = self._call_while_streaming(lambda: self._finish_interrupted(publisher, progress), stream)
            if progress.state == "creating":
                raise TransientError("The exported snapshot was lost before any row was copied. Capture starts again.")
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
        publisher = self._publisher(stream)
        progress = self._fence_and_read(publisher)
        if progress is not None and progress.state != "creating":
            continuity.check_state(progress)
            continuity.check_cluster(progress, system_identifier)
            continuity.check_slot_name(progress, self._source.slot)
            raise continuity.missing_slot(self._source.slot, progress.confirmable)
        first_start = FirstStart(self._config, self._topics, self._connection, publisher, self._stop)
        # An interrupted first start has published nothing. But stores may have recorded its pipeline id, so keep it.
        pipeline_id = progress.identified().pipeline_id if progress is not None else new_pipeline_id()
        progress = first_start.run(stream, system_identifier, timeline, pipeline_id=pipeline_id)
        if progress is None:
            return None
        stream.start()
        return publisher, progress

    def _publisher(self, stream: ReplicationStream) -> Publisher:
        self._made = make_publisher(self._config, lambda: self._stream_waiter.wait_for_room(stream))
        return self._made

    def _fence_and_read(self, publisher: Publisher) -> Progress | None:
        publisher.fence(_FENCE_SECONDS)
        return self._read_progress()

    def _read_progress(self) -> Progress | None:
        return read_progress(self._config.kafka.client_options(), self._progress_topic, decided=True)

    def _read_up_to(self, confirmed: LSN, progress: Progress) -> Progress:
        """Read the progress record again until it covers the slot's confirmed LSN, or a few seconds have passed.

        Capture confirms to the slot only an LSN from a committed progress record. So a record with a smaller LSN may
        not be the last one. A broker that was killed and restarted once returned its last committed record a moment
        late. That no transaction is open does not exclude this: a broker that has not found the end of its log yet
        reports no error.
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
        """Return the last record of the table states. None only after retries: see `_read_up_to`."""
        give_up_at = time.monotonic() + _LATE_RECORD_SECONDS
        while True:
            found = read_last(self._config.kafka.client_options(), self._schema_topic, STATES_KEY, decided=True)
            if found is not None or time.monotonic() > give_up_at:
                return found
            time.sleep(0.5)


def without_lost(progress: Progress, found: Mapping[str, int], states: TableStates, lsn: LSN) -> TableStates:
    """Mark tables as incomplete that have fewer parked rows on `__parked` than the progress record counts.

    `__parked` has lost entries, so it is unknown which rows these topics lack.
    """
    for topic, count in (progress.parked or {}).items():
        if found.get(topic, 0) < count and any(state.topic == topic for state in states.tables.values()):
            log.warning("table_incomplete", topic=topic, reason=_PARKED_LOST)
            states = states.with_pending(topic, lsn, _PARKED_LOST)
    return states


@contextmanager
def first_start_lock(connection: psycopg.Connection, slot: str) -> Iterator[None]:
    """Hold the advisory lock of the first start. Raises SlotInUse if another capture holds it."""
    lock = f"tailrace:{slot}"
    row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [lock]).fetchone()
    if row is None or not row[0]:
        raise SlotInUse("another capture is starting, or waits for the initial snapshot")
    try:
        yield
    finally:
        with suppress(psycopg.OperationalError):  # the session has ended, and its locks with it
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [lock])


def make_publisher(config: Config, wait_for_room: Callable[[], None] = lambda: time.sleep(_ROOM_SECONDS)) -> Publisher:
    """Return capture's producer. To fence with it stops every other capture producer of this pipeline."""
    kafka = config.kafka
    return Publisher(
        {"batch.size": _BATCH_BYTES} | kafka.client_options(),
        transactional_id=f"{kafka.prefix}.{config.source.slot}",
        transaction_timeout_seconds=config.capture.transaction_timeout_seconds,
        max_message_bytes=kafka.max_message_bytes,
        parked_topic=control_topic(kafka.prefix, Control.PARKED),
        wait_for_room=wait_for_room,
    )


def drop_when_free(connection: psycopg.Connection, slot: str) -> None:
    """Drop the slot, and wait up to ten seconds while a walsender still uses it."""
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
