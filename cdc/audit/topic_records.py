"""Records of a table's topic: the ones at given places, and those that came since. Committed ones only."""

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
from cdc.lsn import Version
from cdc.stores.contract import TableSchema
from cdc.stores.row_ids import row_id_of

_ANSWER_SECONDS = 30.0
_AT_ONCE = 2000
# Reading on is quicker than asking for another place, up to about this many records.
_READ_ON = 3000


class _Source(msgspec.Struct):
    txId: int | None = None  # noqa: N815 - Debezium's name


class _Event(msgspec.Struct):
    op: str = ""
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: _Source = msgspec.field(default_factory=_Source)


_decode_event = msgspec.json.Decoder(_Event).decode


class TopicRecord(NamedTuple):
    """`row` None: the row is gone. `xid`: of the transaction, None of a copied row, a tombstone and a stranger's."""

    place: int
    key: bytes
    version: Version
    row: bytes | None
    xid: int | None = None
    is_marker: bool = False


def record_of(message: Message) -> TopicRecord:
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
    """The row's id in stores; of a key that is none of ours, the key."""
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
    """Follows a topic from where somebody else has read it; `read_to` gives what came since, in order."""

    def __init__(self, kafka: KafkaConfig, topic: str, starts: Sequence[int]) -> None:
        self._topic = topic
        self._next = list(starts)
        self._consumer = committed_reader(kafka.client_options())

    def close(self) -> None:
        self._consumer.close()

    def ends(self) -> list[int]:
        """Of what is committed now."""
        return [_end(self._consumer, self._topic, partition) for partition in range(len(self._next))]

    def read_to(self, ends: Sequence[int]) -> Iterator[TopicRecord]:
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
    """The records at these places; one that compaction has taken away meanwhile is missing."""
    return {place: record_of(message) for place, message in fetch_messages(kafka, topic, places).items()}


def fetch_messages(kafka: KafkaConfig, topic: str, places: Collection[int]) -> dict[int, Message]:
    """The same as they are."""
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
    """Messages, and the word that the end is reached (it has an error, and the offset of the end)."""
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
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_ANSWER_SECONDS)
    except KafkaException as error:
        raise TransientError(f"{topic} could not be read: {error.args[0].str()}.") from error
    return int(end)


class Schemas(NamedTuple):
    """`last`: the table as `__schema` has it now; `columns`: of every state that it had, oldest first."""

    last: TableSchema
    columns: tuple[tuple[str, ...], ...]


class _SchemaKey(msgspec.Struct):
    topic: str = ""
    version: str = ""


def read_schemas(kafka: KafkaConfig, schema_topic: str) -> Mapping[str, Schemas]:
    """By topic."""
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
    """Of the one partition that the consumer has."""
    for message in _messages(consumer, topic):
        if message.error() is not None:
            return
        yield message


def _schemas(states: Sequence[TableSchema]) -> Schemas:
    return Schemas(states[-1], tuple(tuple(column.name for column in state.columns) for state in states))
