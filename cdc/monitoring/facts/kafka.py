"""Follows the pipeline's control topics in Kafka, and reads the end offsets of the table topics.

One consumer reads all control topics and stays open, so a poll costs a fetch and not a connection. It reads committed
records only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from cdc.audit.audit_records import AuditRecord
from cdc.config import Config
from cdc.errors import TransientError
from cdc.kafka.broker_clock import append_time_ms
from cdc.kafka.clients import open_offset_client
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.failures import kafka_refusal
from cdc.kafka.offsets import first_and_end_offset
from cdc.monitoring.audit_summary import decode_audit, last_audits
from cdc.monitoring.facts.published_offsets import PublishedOffsets
from cdc.monitoring.facts.wal_clock import WalClock
from cdc.monitoring.status_record import AuditStatus
from cdc.names import Control, control_topic
from cdc.positions import progress as progress_records
from cdc.positions.progress import Progress
from cdc.positions.store_notes import Build, Notes, Refusal
from cdc.publishing.parked import ParkedRows, decode_parked
from cdc.snapshot.records import SnapshotProgress, SnapshotState
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableStates, decode_states

# How many records before the end the reader starts, for these topics. It reads every other control topic in full.
_LOOK_BACK = {Control.PROGRESS: 256, Control.POSITIONS: 2000}
_ANSWER_SECONDS = 8.0
_END_OF_DRAIN_SECONDS = 0.05
# How often the reader checks for control topics that do not exist yet: in a new pipeline, and in an established one,
# where for example only the first audit has yet to create its topic.
_NEW_TOPICS_SECONDS, _TOPICS_SECONDS = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaFacts:
    """What the control topics contain. `parked`: row counts by store and topic; capture's have an empty store name.

    `ends`: the end offsets of the committed records of each table topic, one per partition.
    """

    progress: Progress | None = None
    states: TableStates = field(default_factory=TableStates)
    snapshots: Mapping[str, SnapshotState] = field(default_factory=dict)
    snapshot_progress: Mapping[str, SnapshotProgress] = field(default_factory=dict)
    parked: Mapping[tuple[str, str], int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    builds: Mapping[str, Build] = field(default_factory=dict)
    #: The processes that refuse to run until an operator decides: "capture", "store NAME".
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    audits: Mapping[str, AuditStatus] = field(default_factory=dict)
    ends: Mapping[str, list[int]] = field(default_factory=dict)
    published: PublishedOffsets = field(default_factory=PublishedOffsets)

    @property
    def parked_by_capture(self) -> dict[str, int]:
        """Return the rows that capture has parked, by topic. Parked logical messages are not rows and do not count."""
        tables = {state.topic for state in self.states.tables.values()}
        return {topic: count for (store, topic), count in self.parked.items() if not store and topic in tables}


class KafkaFactsReader:
    """Reads `KafkaFacts`. For use by one thread. It adds the commit in each progress record to `clock`."""

    def __init__(self, config: Config, clock: WalClock) -> None:
        self._config = config
        self._clock = clock
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        prefix = config.kafka.prefix
        self._controls = {control_topic(prefix, each): each.value for each in Control if each is not Control.COPY}
        self._places: dict[str, int] = {}
        self._unread: set[str] = set()
        self._next_topic_check = 0.0
        self._progress: Progress | None = None
        self._states = TableStates()
        self._snapshots: dict[str, SnapshotState] = {}
        self._snapshot_progress: dict[str, SnapshotProgress] = {}
        self._parked = ParkedRows()
        self._notes = Notes()
        self._progress_ms = 0  # when the broker appended the newest progress record
        self._audits: dict[bytes, AuditRecord] = {}
        self._ends: dict[str, list[int]] = {}
        self._published = PublishedOffsets()
        self._new_progress: list[Progress] = []

    def read(self) -> KafkaFacts:
        """Read the control topics up to their current end. Raises TransientError if Kafka does not answer."""
        try:
            if self._consumer is None:
                self._consumer = committed_reader(self._config.kafka.client_options())
            if time.monotonic() >= self._next_topic_check:
                self._assign(self._consumer)
            self._drain(self._consumer)
            self._published.add(self._new_progress)
            self._new_progress.clear()
            self._read_ends()
        except KafkaException as error:
            self.close()
            refused = kafka_refusal(self._config.kafka.client_options())
            raise TransientError(str(refused or f"Kafka does not answer: {error.args[0].str()}")) from None
        except TransientError:
            self.close()
            raise
        return self._known()

    def _known(self) -> KafkaFacts:
        """Return a copy, because other threads use it while the reader's thread continues."""
        return KafkaFacts(
            progress=self._progress,
            states=self._states,
            snapshots=dict(self._snapshots),
            snapshot_progress=dict(self._snapshot_progress),
            parked=self._parked.counts(),
            paused=frozenset(note.store for note in self._notes.pauses.values() if note.paused),
            builds=dict(self._notes.builds),
            refusals=self._refusals(),
            audits=last_audits(self._audits.values()),
            ends=self._ends,
            published=self._published,
        )

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._admin = None
        self._next_topic_check = 0.0
        if consumer is not None:
            with suppress(KafkaException):
                consumer.close()

    # -- control topics ------------------------------------------------------------------------------------------

    def _assign(self, consumer: Consumer) -> None:
        existing = consumer.list_topics(timeout=_ANSWER_SECONDS).topics
        wanted = [name for name in self._controls if name in existing]
        is_new = not any(self._controls[name] == Control.STORES.value for name in wanted)
        self._next_topic_check = time.monotonic() + (_NEW_TOPICS_SECONDS if is_new else _TOPICS_SECONDS)
        assigned = {place.topic for place in consumer.assignment()}
        if assigned == set(wanted):
            return
        places = [TopicPartition(name, 0, self._start(consumer, name)) for name in wanted]
        consumer.assign(places)
        self._unread = set(wanted)

    def _start(self, consumer: Consumer, name: str) -> int:
        low, high = first_and_end_offset(consumer, name, timeout_seconds=_ANSWER_SECONDS)
        look_back = next((back for each, back in _LOOK_BACK.items() if each.value == self._controls[name]), high)
        known = self._places.get(name, 0)
        return max(low, high - look_back, known if known <= high else 0)

    def _drain(self, consumer: Consumer) -> None:
        give_up_at = time.monotonic() + _ANSWER_SECONDS
        while True:
            messages = consumer.consume(1000, 0.2 if self._unread else _END_OF_DRAIN_SECONDS)
            for message in messages:
                self._take(message)
            if not messages and not self._unread:
                return
            if time.monotonic() > give_up_at:
                if self._unread:
                    raise TransientError(f"Kafka sent no records for {_ANSWER_SECONDS:.0f} seconds.")
                return

    def _take(self, message: Message) -> None:
        topic, error = message.topic() or "", message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._unread.discard(topic)
            elif not error.retriable():
                raise KafkaException(error)
            return
        self._places[topic] = (message.offset() or 0) + 1
        value = message.value()
        if value is not None:
            self._learn(self._controls[topic], message.key() or b"", value, append_time_ms(message))

    def _refusals(self) -> dict[str, Refusal]:
        """Return the refusals that still apply.

        Capture's refusal is over if there is a newer progress record: capture has continued, or an operator has run
        `tailrace recover`.
        """
        return {
            where: note
            for where, (appended_ms, note) in self._notes.refusals.items()
            if not note.over and (where != "capture" or appended_ms > self._progress_ms)
        }

    def _learn(self, control: str, key: bytes, value: bytes, appended_ms: int) -> None:
        if control == Control.PROGRESS.value:
            self._progress_ms = max(self._progress_ms, appended_ms)
        if control in (Control.PROGRESS.value, Control.POSITIONS.value):
            self._learn_progress(progress_records.decode_progress(value), newest=control == Control.PROGRESS.value)
        elif control == Control.SCHEMA.value:
            if key == STATES_KEY:
                self._states = decode_states(value)
        elif control == Control.COPIES.value:
            named = msgspec.json.decode(key)
            if "progress" in named:
                self._snapshot_progress[named["copy"]] = msgspec.json.decode(value, type=SnapshotProgress)
            elif "copy" in named and "chunk" not in named:
                self._snapshots[named["copy"]] = msgspec.json.decode(value, type=SnapshotState)
        elif control == Control.PARKED.value:
            self._parked.take(decode_parked(value, 0, control))
        elif control == Control.STORES.value:
            self._notes.take(key, value, appended_ms)
        elif control == Control.AUDITS.value:
            audit = decode_audit(value)
            if audit is not None:
                self._audits[key] = audit

    def _learn_progress(self, progress: Progress, *, newest: bool) -> None:
        if progress.commit_time_us:
            self._clock.see(progress.confirm_lsn, progress.commit_time_us / 1e6)
        self._new_progress.append(progress)
        if newest:
            self._progress = progress

    # -- tables' topics ------------------------------------------------------------------------------------------

    def _read_ends(self) -> None:
        """Read the end offsets of the committed records of each table topic."""
        progress = self._progress
        if progress is None:
            return
        if self._admin is None:
            self._admin = open_offset_client(self._config.kafka.client_options())
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        places = {
            TopicPartition(name, number): latest
            for name, ends in progress.end_offsets.items()
            for number in range(len(ends))
        }
        if not places:
            return
        ends = {name: list(known) for name, known in progress.end_offsets.items()}
        answers = self._admin.list_offsets(
            places, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_SECONDS
        )
        for place, answer in answers.items():
            try:
                ends[place.topic][place.partition] = answer.result(_ANSWER_SECONDS).offset
            except KafkaException:
                # Keep the end offset from the progress record. Either the topic is being deleted, or its leader has
                # changed. This client does not notice a new leader, so the next poll uses a new client.
                self._admin = None
        self._ends = ends
