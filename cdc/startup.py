"""How a life of capture begins: take the slot, fence, read progress, check. The first time, make what is missing.

The slot is the lock: whoever holds it is the one capture, anybody else waits as the standby. Only then is the producer
fenced, because fencing before would cut off the capture that rightly runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import psycopg

from cdc import catalog, checks
from cdc.catalog import SourceTable
from cdc.config import Config
from cdc.control import read_last
from cdc.errors import RefusedError, TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.masks import refuse_unfit
from cdc.names import Control, control_topic, topic
from cdc.postgres import connect, explain
from cdc.progress import KEY as PROGRESS_KEY
from cdc.progress import Progress, read_progress
from cdc.publisher import Publisher
from cdc.replication import ReplicationStream, SlotInUse
from cdc.table_catalog import read_states
from cdc.table_states import KEY as STATES_KEY
from cdc.table_states import TableStates
from cdc.table_states import decode as decode_states
from cdc.topics import Topics

T = TypeVar("T")
log = get_logger("startup")

_STANDBY_SECONDS = 1.0
_FENCE_SECONDS = 30.0


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
                    return start_once.try_to_take()
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

    def _stream(self) -> ReplicationStream:
        return ReplicationStream(
            self._source.conninfo(),
            slot=self._source.slot,
            publication=self._source.publication,
            stop=self._stop.is_set,
        )

    def try_to_take(self) -> Started:
        if catalog.is_standby(self._connection):
            raise TransientError("This server is a standby; capture reads from the primary.")
        stream = self._stream()
        try:
            identity = stream.identify()
            slot = catalog.slot(self._connection, self._source.slot)
            if slot is None:
                publisher, progress = self._begin_without_slot(stream, *identity)
            else:
                checks.check_valid(slot, name=self._source.slot)  # Postgres would refuse it without the remedy
                stream.start()
                publisher, progress = self._resume(stream, *identity)
        except BaseException:
            stream.close()
            raise
        return Started(
            stream=stream,
            publisher=publisher,
            topics=self._topics,
            catalog=self._connection,
            progress=progress,
            states=self._attend(lambda: self._read_states(progress), stream),
        )

    def _resume(self, stream: ReplicationStream, system_identifier: str, timeline: int) -> tuple[Publisher, Progress]:
        publisher = self._publisher()
        progress = self._attend(lambda: self._fence_and_read(publisher), stream)
        slot = catalog.slot(self._connection, self._source.slot)
        if slot is None:
            raise TransientError(f"Slot {self._source.slot} vanished while it was taken.")
        if progress is not None:
            checks.check_cluster(progress, system_identifier)  # first: on another one, its slot is not ours to judge
        if progress is not None and progress.state == "creating":
            # A first start that died between making the slot and saying so. Nothing was published from it.
            stream.close()
            _drop_when_free(self._connection, self._source.slot)
            raise TransientError("The first start had died half-way; its slot was dropped to begin anew.")
        checks.check_slot(progress, slot, name=self._source.slot, database=catalog.database_name(self._connection))
        assert progress is not None  # noqa: S101  # check_slot refuses otherwise
        # Asked on a connection of its own: this one streams already.
        checks.check_server(
            progress,
            system_identifier,
            timeline,
            log_end=catalog.current_lsn(self._connection),
            forked_at=self._forked_at(timeline, progress),
        )
        progress = progress.on_timeline(timeline)
        checks.check_publication(
            progress,
            catalog.publication(self._connection, self._source.publication),
            name=self._source.publication,
            existing_tables=catalog.existing_tables(self._connection, progress.publication_tables),
        )
        checks.check_partitions_setting(progress, self._config.kafka.partitions)
        self._attend(lambda: checks.check_topics(progress, self._topics), stream)
        self._attend(lambda: self._topics.raise_size_limits(progress.topic_ids), stream)
        return publisher, progress

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
    ) -> tuple[Publisher, Progress]:
        """No slot to be the lock yet: an advisory lock stands in until the slot is taken."""
        lock = f"tailrace:{self._source.slot}"
        row = self._connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [lock]).fetchone()
        if row is None or not row[0]:
            raise SlotInUse("another capture is making the slot")
        try:
            publisher = self._publisher()
            progress = self._fence_and_read(publisher)
            if progress is not None and progress.state != "creating":
                checks.check_cluster(progress, system_identifier)
                raise checks.missing_slot(self._source.slot, progress)
            progress = self._first_start(stream, publisher, system_identifier, timeline)
            stream.start()
            return publisher, progress
        finally:
            self._connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [lock])

    def _first_start(
        self, stream: ReplicationStream, publisher: Publisher, system_identifier: str, timeline: int
    ) -> Progress:
        chosen = self._choose_tables()
        oids = [str(table.oid) for table in chosen]
        found = read_states(self._connection, oids, prefix=self._config.kafka.prefix)
        refuse_unfit(self._config, found.values())
        publication = catalog.publication(self._connection, self._source.publication)
        if publication is None:
            self._create_publication(chosen)
            publication = catalog.publication(self._connection, self._source.publication)
            log.info("publication_created", publication=self._source.publication, tables=len(chosen))
        assert publication is not None  # noqa: S101  # just made
        self._refuse_uncovered(chosen, publication)
        names = [topic(self._config.kafka.prefix, table.schema, table.name) for table in chosen]
        made = self._topics.ensure_tables(names)
        progress = Progress(
            state="creating",
            position=0,
            seq=0,
            base=0,
            confirm_lsn=0,
            system_identifier=system_identifier,
            timeline=timeline,
            publication=publication.identity,
            publication_tables=publication.tables,
            topic_ids={name: made[name].id for name in names},
            end_offsets=self._topics.end_offsets({name: made[name].partitions for name in names}),
        )
        self._write(publisher, progress)
        point = stream.create_slot(self._tell_what_it_waits_for)
        log.info("slot_created", slot=self._source.slot, consistent_point=str(point))
        progress = progress.streaming_from(point)
        states = read_states(self._connection, publication.tables, prefix=self._config.kafka.prefix)
        self._write(publisher, progress, TableStates(tables=states))
        return progress

    def _tell_what_it_waits_for(self) -> None:
        log.info(
            "waiting_for_open_transactions",
            slot=self._source.slot,
            reason="the slot is made once every transaction that is open now has ended",
            transactions=catalog.open_transactions(self._connection),
        )

    def _choose_tables(self) -> list[SourceTable]:
        """What the config selects. What cannot be captured: an error if named, a warning if under `schema.*`."""
        named = {(selector.schema, selector.table) for selector in self._source.tables if selector.table is not None}
        found = catalog.tables(self._connection, self._source.tables)
        for schema, name in sorted(named - {(table.schema, table.name) for table in found}):
            raise RefusedError(
                f"Table {schema}.{name} of [source] tables does not exist (or is temporary or unlogged).",
                remedy="Create it or take it out of the config.",
            )
        chosen = []
        for table in found:
            problem = catalog.why_not_captured(table)
            if problem is None:
                chosen.append(table)
            elif (table.schema, table.name) in named:
                raise RefusedError(f"Table {table} cannot be captured: {problem[0]}.", remedy=problem[1])
            else:
                log.warning("table_left_out", table=str(table), reason=problem[0], remedy=problem[1])
        if not chosen:
            raise RefusedError("No table to capture.", remedy="See [source] tables; each needs a primary key.")
        return chosen

    def _create_publication(self, chosen: list[SourceTable]) -> None:
        name = self._source.publication
        try:
            catalog.create_publication(self._connection, name, chosen)
        except psycopg.errors.InsufficientPrivilege as error:
            tables = ", ".join(str(table) for table in chosen)
            raise RefusedError(
                f"The role may not make publication {name}: {explain(error)}.",
                remedy=f"As the tables' owner run: create publication {name} for table {tables};",
            ) from error

    def _refuse_uncovered(self, chosen: list[SourceTable], publication: catalog.Publication) -> None:
        missing = [str(table) for table in chosen if str(table.oid) not in publication.tables]
        if missing:
            raise RefusedError(
                f"Publication {self._source.publication} exists, but lacks {', '.join(missing)}.",
                remedy=f"Run: alter publication {self._source.publication} add table {', '.join(missing)}; "
                "or drop it, and capture makes it anew.",
            )

    def _publisher(self) -> Publisher:
        return make_publisher(self._config)

    def _fence_and_read(self, publisher: Publisher) -> Progress | None:
        publisher.fence(_FENCE_SECONDS)
        return read_progress(self._config.kafka.client_options(), self._progress_topic)

    def _read_states(self, progress: Progress) -> TableStates:
        data = read_last(self._config.kafka.client_options(), self._schema_topic, STATES_KEY)
        if data is not None:
            return decode_states(data)
        # The first start has died before it wrote them: what is there now is where we begin.
        oids = progress.publication_tables
        return TableStates(tables=read_states(self._connection, oids, prefix=self._config.kafka.prefix))

    def _write(self, publisher: Publisher, progress: Progress, states: TableStates | None = None) -> None:
        publisher.begin()
        publisher.send(self._progress_topic, PROGRESS_KEY, progress.encode(), [])
        if states is not None:
            publisher.send(self._schema_topic, STATES_KEY, states.encode(), [])
        publisher.commit(_FENCE_SECONDS)


def make_publisher(config: Config) -> Publisher:
    """Capture's own producer: whoever fences it cuts off every other one of this pipeline."""
    kafka = config.kafka
    return Publisher(
        kafka.client_options(),
        transactional_id=f"{kafka.prefix}.{config.source.slot}",
        transaction_timeout_seconds=config.capture.transaction_timeout_seconds,
        max_message_bytes=kafka.max_message_bytes,
        parked_topic=control_topic(kafka.prefix, Control.PARKED),
    )


def _drop_when_free(connection: psycopg.Connection, slot: str) -> None:
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
