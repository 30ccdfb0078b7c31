"""Locks a pipeline: acquires the slot, fences capture's producer, and gives access to capture's records.

While the lock is held, no capture can start, and a capture that lost its connection can no longer write. The lock is
meant for seconds. It reads nothing from the slot, so the server closes the connection after `wal_sender_timeout`. That
is safe: the next process that acquires the slot fences this producer, and the next write here fails.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psycopg

from cdc.config import Config
from cdc.errors import RefusedError
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.positions.progress import KEY, Progress, read_progress
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationStream, SlotInUse
from cdc.publishing.parked import every_settled_entry, read_parked_rows
from cdc.publishing.publisher import Publisher
from cdc.startup.startup import first_start_lock, make_publisher
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import read_recorded_states

_KAFKA_SECONDS = 30.0
# The server releases the slot a moment after its reader has disconnected.
_SLOT_SECONDS = 5.0


class PipelineLock:
    """A locked pipeline: its records (`progress`, `states`), and the server's `system_identifier` and `timeline`."""

    def __init__(self, config: Config, publisher: Publisher, system_identifier: str, timeline: int) -> None:
        self._publisher = publisher
        self._options = config.kafka.client_options()
        self._parked_topic = control_topic(config.kafka.prefix, Control.PARKED)
        self._topic = control_topic(config.kafka.prefix, Control.PROGRESS)
        self._schema_topic = control_topic(config.kafka.prefix, Control.SCHEMA)
        self.system_identifier = system_identifier
        self.timeline = timeline
        self.progress: Progress | None = read_progress(self._options, self._topic, decided=True)
        self.states: TableStates | None = read_recorded_states(config)

    def write(self, progress: Progress, states: TableStates | None, gone: Collection[str] = ()) -> None:
        """Write both records in one Kafka transaction, as capture does.

        `gone` names the topics of removed tables. All rows that capture parked for them become settled.
        """
        parked = {row.topic for row in read_parked_rows(self._options, self._parked_topic) if not row.store}
        past_all = str(Version(progress.position, progress.seq + 1)).encode()
        self._publisher.begin()
        for topic in sorted(parked.intersection(gone)):
            self._publisher.send(*every_settled_entry(self._parked_topic, topic, past_all))
        self._publisher.send(self._topic, KEY, progress.encode(), [("v", str(progress.version).encode())])
        if states is not None:
            self._publisher.send(self._schema_topic, STATES_KEY, states.encode(), [])
        self._publisher.commit(_KAFKA_SECONDS)


@contextmanager
def lock_pipeline(config: Config) -> Iterator[PipelineLock]:
    """Lock the pipeline. Refuse if a capture is running, or is waiting for the initial snapshot."""
    with connect(config.source.conninfo()) as connection, _no_first_start(connection, config.source.slot):
        yield from _held(config)


@contextmanager
def _no_first_start(connection: psycopg.Connection, slot: str) -> Iterator[None]:
    try:
        with first_start_lock(connection, slot):
            yield
    except SlotInUse as in_use:
        raise capture_runs(slot, str(in_use)) from None


def _held(config: Config) -> Iterator[PipelineLock]:
    stream = _take_slot(config)
    try:
        publisher = make_publisher(config)
        publisher.fence(_KAFKA_SECONDS)
        try:
            yield PipelineLock(config, publisher, *stream.identity)
        finally:
            publisher.abandon()
    finally:
        stream.close()


def capture_runs(slot: str, detail: str) -> RefusedError:
    """Return the error that says that capture is running on `slot`; `detail` says how that was detected."""
    return RefusedError(
        f"Capture is running on slot {slot} ({detail}).",
        remedy="Stop it and its supervisor, then run this command again.",
    )


def system_identifier(config: Config) -> str:
    """Return the server's system identifier, without acquiring the slot."""
    stream = _open(config)
    try:
        return stream.identify()[0]
    finally:
        stream.close()


class _Taken:
    """A replication stream that has acquired the slot."""

    def __init__(self, stream: ReplicationStream) -> None:
        self.identity = stream.identify()
        stream.start()
        self.close = stream.close


def _take_slot(config: Config) -> _Taken:
    deadline = time.monotonic() + _SLOT_SECONDS
    while True:
        stream = _open(config)
        try:
            return _Taken(stream)
        except SlotInUse as in_use:
            stream.close()
            if time.monotonic() > deadline:
                raise capture_runs(config.source.slot, str(in_use)) from None
            time.sleep(0.1)
        except BaseException:
            stream.close()
            raise


def _open(config: Config) -> ReplicationStream:
    source = config.source
    return ReplicationStream(source.conninfo(), slot=source.slot, publication=source.publication, stop=lambda: False)
