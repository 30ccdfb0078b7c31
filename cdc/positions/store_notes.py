"""Notes on `<prefix>.__stores`: pauses of stores, progress of builds, and refusals of processes with their reasons.

The notes are in a topic and not in a file, because a sync may run on another machine than the operator who pauses it.
The last note under each key counts. `tailrace sync` obeys a pause between two batches. Notes about builds and refusals
are for display only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.clock import now_ms
from cdc.config import Config
from cdc.errors import TailraceError, TransientError
from cdc.kafka.clients import open_durable_producer
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.topics import Topics
from cdc.logs import get_logger
from cdc.names import Control, control_topic
from cdc.secrets import redact

FORMAT = 1
_ANSWER_SECONDS = 10.0
_NOTE_SECONDS = 1.0


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the operator has paused a store."""

    format: int = FORMAT
    store: str
    paused: bool
    since_ms: int = 0

    @property
    def key(self) -> bytes:
        """The record's key."""
        return orjson.dumps({"pause": self.store})


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a bootstrap. `done`: the bootstrap has switched readers to the new generation."""

    format: int = FORMAT
    store: str
    generation: int
    records: int
    total_records: int
    began_ms: int
    written_ms: int
    done: bool = False

    @property
    def key(self) -> bytes:
        """The record's key."""
        return orjson.dumps({"build": self.store})


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A process has stopped because the operator must decide (exit code 3). `where`: "capture", or "store NAME".

    `over`: the process runs again. Capture does not write a note with `over`: a progress record that is newer than the
    refusal means the same.
    """

    format: int = FORMAT
    where: str
    reason: str = ""
    remedy: str = ""
    over: bool = False

    @property
    def key(self) -> bytes:
        """The record's key."""
        return orjson.dumps({"refusal": self.where})


Note = Pause | Build | Refusal


class Notes:
    """The last note of each kind and store. `refusals`: with the broker's timestamp of each note, 0 if unknown."""

    def __init__(self) -> None:
        self.pauses: dict[str, Pause] = {}
        self.builds: dict[str, Build] = {}
        self.refusals: dict[str, tuple[int, Refusal]] = {}

    def take(self, key: bytes, value: bytes | None, appended_ms: int = 0) -> None:
        """Add a note. Ignores notes of an unknown kind or a newer format."""
        named = orjson.loads(key or b"{}")
        if value is None or orjson.loads(value).get("format", 0) > FORMAT:
            return
        if "pause" in named:
            self.pauses[named["pause"]] = msgspec.json.decode(value, type=Pause)
        elif "build" in named:
            self.builds[named["build"]] = msgspec.json.decode(value, type=Build)
        elif "refusal" in named:
            self.refusals[named["refusal"]] = appended_ms, msgspec.json.decode(value, type=Refusal)

    def is_paused(self, store: str) -> bool:
        """Return whether the store is paused."""
        note = self.pauses.get(store)
        return note is not None and note.paused

    def is_refused(self, where: str) -> bool:
        """Return whether the process has refused to continue and does not run again yet."""
        _, note = self.refusals.get(where, (0, None))
        return note is not None and not note.over


def note_refusal(config: Config, where: str, error: TailraceError) -> None:
    """Write why a process has stopped, so that dashboard, `lag` and alerts on any host can show it. Ignores errors."""
    with suppress(TransientError, KafkaException, BufferError):
        refusal = Refusal(where=where, reason=redact(error.message), remedy=redact(error.remedy or ""))
        NoteWriter(config).write(refusal)


def end_refusal(config: Config, where: str) -> None:
    """Write that the process runs again. Ignores errors."""
    with suppress(TransientError, KafkaException, BufferError):
        NoteWriter(config).write(Refusal(where=where, over=True))


def set_paused(config: Config, store: str, paused: bool) -> None:
    """Pause or resume a store. Returns when the note is durable; a running sync obeys it within about two seconds."""
    topics = Topics(config.kafka)
    try:
        topics.ensure_control()  # a pipeline that an older version has set up lacks the topic
    finally:
        topics.close()
    NoteWriter(config).write(Pause(store=store, paused=paused, since_ms=now_ms()))


class NoteWriter:
    """Writes notes to the topic."""

    def __init__(self, config: Config) -> None:
        self._topic = control_topic(config.kafka.prefix, Control.STORES)
        self._failed: list[KafkaError] = []
        self._producer = open_durable_producer(config.kafka.client_options(), {"on_delivery": self._delivered})

    def write(self, note: Note) -> None:
        """Write a note, and wait until it is durable."""
        if self._topic not in self._producer.list_topics(timeout=_ANSWER_SECONDS).topics:
            # Without this check a broker could create the topic automatically, with its own settings.
            raise TransientError(f"Topic {self._topic} does not exist.")
        self.send(note)
        left = self._producer.flush(_ANSWER_SECONDS)
        if left or self._failed:
            why = self._failed[0].str() if self._failed else f"no answer within {_ANSWER_SECONDS:.0f} seconds"
            raise TransientError(f"Cannot write to topic {self._topic}: {why}.")

    def send(self, note: Note) -> None:
        """Send a note without waiting, for display-only notes."""
        self._producer.produce(self._topic, msgspec.json.encode(note), note.key)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(error)


class BuildNotes:
    """Writes the progress of one generation's build about every second. Ignores errors: the notes are display-only."""

    def __init__(self, config: Config, store: str, generation: int) -> None:
        self._writer = NoteWriter(config)
        self._noted_at = 0.0
        self._build = Build(
            store=store, generation=generation, records=0, total_records=0, began_ms=now_ms(), written_ms=now_ms()
        )

    def step(self, records: int, total_records: int) -> None:
        """Write the progress of the first load. Ignores the later, smaller loads that catch up with the topics."""
        if total_records < self._build.total_records or time.monotonic() - self._noted_at < _NOTE_SECONDS:
            return
        self._noted_at = time.monotonic()
        self._build = msgspec.structs.replace(
            self._build, records=records, total_records=total_records, written_ms=now_ms()
        )
        with suppress(BufferError):
            self._writer.send(self._build)

    def end(self) -> None:
        """Write that the build is done."""
        with suppress(TransientError, BufferError):
            self._writer.write(msgspec.structs.replace(self._build, done=True, written_ms=now_ms()))


class PauseWatch:
    """Reads the notes in a background thread. While Kafka does not answer, the last known notes stay in effect."""

    def __init__(self, config: Config) -> None:
        self._options: Mapping[str, str] = config.kafka.client_options()
        self._topic = control_topic(config.kafka.prefix, Control.STORES)
        self._notes = Notes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pauses", daemon=True)

    def __enter__(self) -> PauseWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def is_paused(self, store: str) -> bool:
        """Return whether the store is paused."""
        return self._notes.is_paused(store)

    def is_refused(self, where: str) -> bool:
        """Return whether the process has refused to continue and does not run again yet."""
        return self._notes.is_refused(where)

    def _run(self) -> None:
        log = get_logger("pauses")
        while not self._stop.is_set():
            try:
                self._follow()
            except KafkaException as error:
                log.debug("retrying", reason=error.args[0].str())
            self._stop.wait(2.0)

    def _follow(self) -> None:
        """Read notes until `stop` is set. Returns at once if the topic does not exist yet."""
        consumer: Consumer = committed_reader(dict(self._options))
        try:
            if self._topic not in consumer.list_topics(timeout=_ANSWER_SECONDS).topics:
                return
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while not self._stop.is_set():
                message = consumer.poll(0.5)
                error = message.error() if message is not None else None
                if message is not None and error is None:
                    self._notes.take(message.key() or b"{}", message.value())
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
        finally:
            consumer.close()
