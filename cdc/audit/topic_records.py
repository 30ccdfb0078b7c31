"""Read committed records of a table topic: those at given places, and those after a given offset."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.audit.row_blocks import packed_place, split_place
from cdc.config import KafkaConfig
from cdc.errors import TransientError
from cdc.kafka.control_topics import committed_reader
from cdc.kafka.offsets import first_and_end_offset
from cdc.lsn import Version
from cdc.stores.contract import TableSchema
from cdc.stores.row_ids import row_id_of

_ANSWER_SECONDS = 30.0
_AT_ONCE = 2000
# Up to about this many records, reading on is faster than a seek.
_READ_ON = 3000


class _Source(msgspec.Struct):
    txId: int | None = None  # noqa: N815 - Debezium's name


class _Event(msgspec.Struct):
    op: str = ""
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: _Source = msgspec.field(default_factory=_Source)


_decode_event = msgspec.json.Decoder(_Event).decode


class TopicRecord(NamedTuple):
    """One record of a table topic.

    `row`: None if the record removes the row. `xid`: the source transaction's id. It is None for a snapshot row, for a
    tombstone, and for a record that Tailrace did not write. `is_marker`: the record stands for a TRUNCATE.
    """

    place: int
    key: bytes
    version: Version
    row: bytes | None
    xid: int | None = None
    is_marker: bool = False


def record_of(message: Message) -> TopicRecord:
    """Decode a message. One that is not an event has its raw value as the row."""
    headers = dict(message.headers() or [])
    place = packed_place(message.partition() or 0, message.offset() or 0)
    version = _version(headers.get("v"))
    key, value = message.key() or b"", message.value()
    if value is None:
        return TopicRecord(place, key, version, None)
    try:
        event = _decode_event(value)
    except msgspec.DecodeError:
        return TopicRecord(place, key, version, value)
    after = bytes(event.after)
    row = None if after == b"null" else after
    return TopicRecord(place, key, version, row, event.source.txId, event.op == "t")


def id_of(key: bytes) -> str:
    """Return the row's id in stores, or the key as text if Tailrace did not write it."""
    try:
        return row_id_of(key)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return key.decode(errors="replace")


def _version(stamp: object) -> Version:
    try:
        return Version.parse(stamp.decode()) if isinstance(stamp, bytes) else Version(0, 0)
    except ValueError:
        return Version(0, 0)


class TopicTail:
    """Reads a topic from the given offsets on. `read_to` yields the next records, in order."""

    def __init__(self, kafka: KafkaConfig, topic: str, starts: Sequence[int]) -> None:
        self._topic = topic
        self._next = list(starts)
        self._consumer = committed_reader(kafka.client_options())

    def close(self) -> None:
        self._consumer.close()

    def ends(self) -> list[int]:
        """Return the current end offset of each partition, for committed records."""
        return [_end(self._consumer, self._topic, partition) for partition in range(len(self._next))]

    def read_to(self, ends: Sequence[int]) -> Iterator[TopicRecord]:
        """Yield the records from the last read up to these end offsets."""
        behind = {number for number, end in enumerate(ends) if self._next[number] < end}
        if not behind:
            return
        self._consumer.assign([TopicPartition(self._topic, number, self._next[number]) for number in sorted(behind)])
        for message in _messages(self._consumer, self._topic):
            number, error = message.partition() or 0, message.error()
            offset = message.offset() or 0
            if error is None:
                self._next[number] = offset + 1
                yield record_of(message)
            else:
                self._next[number] = max(self._next[number], offset)
            if self._next[number] >= ends[number]:
                behind.discard(number)
                if not behind:
                    return


def fetch_records(kafka: KafkaConfig, topic: str, places: Collection[int]) -> dict[int, TopicRecord]:
    """Return the records at these places. A record that compaction has removed since is missing."""
    return {place: record_of(message) for place, message in fetch_messages(kafka, topic, places).items()}


def fetch_messages(kafka: KafkaConfig, topic: str, places: Collection[int]) -> dict[int, Message]:
    """Return the undecoded messages at these places, without those that compaction has removed since."""
    found: dict[int, Message] = {}
    wanted: dict[int, list[int]] = {}
    for place in sorted(places):
        partition, offset = split_place(place)
        wanted.setdefault(partition, []).append(offset)
    consumer = committed_reader(kafka.client_options())
    try:
        for partition, offsets in wanted.items():
            for run in _runs(offsets):
                _fetch_run(consumer, topic, partition, run, found)
    finally:
        consumer.close()
    return found


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    run = [offsets[0]]
    for offset in offsets[1:]:
        if offset - run[-1] > _READ_ON:
            yield run
            run = []
        run.append(offset)
    yield run


def _fetch_run(
    consumer: Consumer, topic: str, partition: int, offsets: Sequence[int], found: dict[int, Message]
) -> None:
    wanted = set(offsets)
    consumer.assign([TopicPartition(topic, partition, offsets[0])])
    for message in _messages(consumer, topic):
        offset = message.offset() or 0
        if message.error() is None and offset in wanted:
            found[packed_place(partition, offset)] = message
        if offset >= offsets[-1] or message.error() is not None:
            return


def _messages(consumer: Consumer, topic: str) -> Iterator[Message]:
    """Yield messages, including the end-of-partition message: it has an error, and the end as its offset."""
    give_up_at = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            messages = consumer.consume(_AT_ONCE, timeout=0.1)
        except KafkaException as raised:
            raise TransientError(f"{topic} could not be read: {raised.args[0].str()}.") from raised
        for message in messages:
            give_up_at = time.monotonic() + _ANSWER_SECONDS
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.retriable():
                    continue
                raise TransientError(f"{topic} could not be read: {error.str()}.")
            yield message
        if not messages and time.monotonic() > give_up_at:
            raise TransientError(f"Kafka gave nothing from {topic} for {_ANSWER_SECONDS:.0f} seconds.")


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    try:
        return first_and_end_offset(consumer, topic, partition, timeout_seconds=_ANSWER_SECONDS)[1]
    except KafkaException as error:
        raise TransientError(f"{topic} could not be read: {error.args[0].str()}.") from error


class Schemas(NamedTuple):
    """`last`: the table's current schema on `__schema`. `columns`: the columns of each of its schemas, oldest first."""

    last: TableSchema
    columns: tuple[tuple[str, ...], ...]


class _SchemaKey(msgspec.Struct):
    topic: str = ""
    version: str = ""


def read_schemas(kafka: KafkaConfig, schema_topic: str) -> Mapping[str, Schemas]:
    """Read all schemas from `__schema`, by table topic."""
    consumer = committed_reader(kafka.client_options())
    found: dict[str, list[tuple[str, TableSchema]]] = {}
    try:
        consumer.assign([TopicPartition(schema_topic, 0, 0)])
        for message in messages_to_end(consumer, schema_topic):
            key, value = message.key(), message.value()
            named = msgspec.json.decode(key, type=_SchemaKey) if key is not None else _SchemaKey()
            if named.version and value is not None:
                found.setdefault(named.topic, []).append((named.version, TableSchema.from_record(value)))
    finally:
        consumer.close()
    return {topic: _schemas([schema for _, schema in sorted(states)]) for topic, states in found.items()}


def messages_to_end(consumer: Consumer, topic: str) -> Iterator[Message]:
    """Yield the messages of the consumer's single partition, up to its end."""
    for message in _messages(consumer, topic):
        if message.error() is not None:
            return
        yield message


def _schemas(states: Sequence[TableSchema]) -> Schemas:
    return Schemas(states[-1], tuple(tuple(column.name for column in state.columns) for state in states))
