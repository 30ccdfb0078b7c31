"""What the control topics and the brokers say about one table's topic. Runs in the driver. Reads Kafka only."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from cdc.config import TableName
from cdc.errors import RefusedError, TailraceError, TransientError, UsageError
from cdc.kafka.clients import open_offset_client
from cdc.kafka.control_topics import committed_reader, read_to_end
from cdc.kafka.failures import kafka_failure, unreachable
from cdc.lsn import LSN
from cdc.names import Control, control_topic, topic
from cdc.positions.progress import Progress, read_progress
from cdc.stores.contract import TableSchema
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableStates, decode_states
from spark_jobs.source.options import SourceOptions

_ANSWER_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Published:
    """The tables that capture has published, by topic, and their recorded states."""

    progress: Progress
    schemas: dict[str, TableSchema]
    states: TableStates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTopicFacts:
    """A table's topic. Offsets are those of a consumer of committed records, by partition."""

    topic_id: str
    starts: list[int]
    ends: list[int]
    cleanup_policy: str
    delete_retention_ms: int


class _SchemaKey(msgspec.Struct):
    topic: str = ""
    version: str = ""


def read_published(options: SourceOptions) -> Published:
    """Read capture's progress and the tables' schemas."""
    name = control_topic(options.prefix, Control.PROGRESS)
    try:
        progress = (
            read_progress(options.kafka, name, timeout_seconds=_ANSWER_SECONDS) if _exists(options, name) else None
        )
        if progress is None:
            raise _nothing_published(options)
        return _with_schemas(options, progress)
    except TransientError as error:
        raise _no_answer(options, error) from None


def _exists(options: SourceOptions, name: str) -> bool:
    consumer = committed_reader(options.kafka)
    try:
        return name in consumer.list_topics(timeout=_ANSWER_SECONDS).topics
    except KafkaException as error:
        raise kafka_failure(options.kafka, name, error.args[0]) from None
    finally:
        consumer.close()


def _with_schemas(options: SourceOptions, progress: Progress) -> Published:
    newest: dict[str, tuple[str, bytes]] = {}
    states: TableStates | None = None
    name = control_topic(options.prefix, Control.SCHEMA)
    for message in read_to_end(options.kafka, name, timeout_seconds=_ANSWER_SECONDS):
        key, value = message.key() or b"", message.value()
        if value is None:
            continue
        if key == STATES_KEY:
            states = decode_states(value)
            continue
        named = msgspec.json.decode(key, type=_SchemaKey)
        if named.version and named.version >= newest.get(named.topic, ("", b""))[0]:
            newest[named.topic] = named.version, value
    schemas = {
        table: TableSchema.from_record(value) for table, (_, value) in newest.items() if table in progress.end_offsets
    }
    return Published(progress, schemas, states)


def find_table(options: SourceOptions, published: Published) -> TableSchema:
    """Return the schema of the table that the options name."""
    wanted = options.table
    by_name = {str(table): table for table in published.schemas.values()}
    table = by_name.get(wanted) or by_name.get(_unquoted(wanted))
    if table is not None:
        return table
    schema, _, name = _unquoted(wanted).partition(".")
    if name and topic(options.prefix, schema, name) in published.progress.end_offsets:
        raise UsageError(
            f"{wanted} has no record on {control_topic(options.prefix, Control.SCHEMA)} yet."
            " Capture writes it with the table's first event."
        )
    near = get_close_matches(wanted, by_name, n=3) or sorted(by_name)[:3]
    hint = f" Near names: {', '.join(near)}." if near else ""
    raise UsageError(f"Capture has published no table {wanted} under the prefix {options.prefix}.{hint}")


def reasons_incomplete(published: Published, table: TableSchema, facts: TableTopicFacts) -> list[str]:
    """Return why the topic is not a complete copy of its table: the reasons for which a bootstrap is refused."""
    progress, name = published.progress, table.topic
    reasons = []
    if progress.state != "streaming":
        reasons.append("the initial snapshot is not complete")
    if any(facts.starts):
        reasons.append("records were deleted from its beginning")
    if facts.cleanup_policy != "compact":
        reasons.append(f"its topic has cleanup.policy={facts.cleanup_policy}")
    if progress.topic_ids.get(name) != facts.topic_id:
        reasons.append("its topic was deleted and made again")
    elif len(progress.end_offsets.get(name, ())) != len(facts.ends):
        reasons.append("its topic has another number of partitions than the recorded one")
    mark = published.states.pending.get(name) if published.states is not None else None
    if mark is not None:
        reasons.append(f"incomplete since {LSN(mark.since)}: {mark.reason}")
    return reasons


class TopicReader:
    """Asks the brokers about one topic. It keeps its connection until `close`."""

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._admin = open_offset_client(options.kafka)

    def close(self) -> None:
        """Close the connection. The garbage collector may do it in one of the client's own threads, which aborts."""
        self._admin.__exit__(None, None, None)

    def facts(self) -> TableTopicFacts:
        """Ask for everything. Raises if the topic is gone."""
        described = self._described()
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._name)
        settings = self._result(self._admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS)[resource])
        partitions = len(described.partitions)
        return TableTopicFacts(
            topic_id=_id_text(described.topic_id),
            starts=self._offsets(OffsetSpec.earliest(), partitions),  # type: ignore[no-untyped-call]
            ends=self._offsets(OffsetSpec.latest(), partitions),  # type: ignore[no-untyped-call]
            cleanup_policy=settings["cleanup.policy"].value,
            delete_retention_ms=int(settings["delete.retention.ms"].value),
        )

    def _described(self) -> Any:
        answers = self._admin.describe_topics(TopicCollection([self._name]), request_timeout=_ANSWER_SECONDS)
        return self._result(answers[self._name])

    def _offsets(self, spec: Any, partitions: int) -> list[int]:
        places = {TopicPartition(self._name, number): spec for number in range(partitions)}
        answers = self._admin.list_offsets(
            places, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_SECONDS
        )
        found = {place.partition: self._result(answer).offset for place, answer in answers.items()}
        return [found[number] for number in range(partitions)]

    def _result(self, answer: futures.Future[Any]) -> Any:
        try:
            return answer.result(_ANSWER_SECONDS)
        except KafkaException as error:
            raise kafka_failure(self._options.kafka, f"{self._name} could not be read", error.args[0]) from None
        except futures.TimeoutError:
            raise unreachable(self._options.kafka, f"{self._name}: Kafka did not answer in time.") from None


def read_facts(options: SourceOptions, name: str) -> TableTopicFacts:
    """Ask the brokers about a topic, with a connection of its own."""
    reader = TopicReader(options, name)
    try:
        return reader.facts()
    finally:
        reader.close()


def _id_text(topic_id: Any) -> str:
    """Return the topic's id in the form that the progress record has."""
    mask = (1 << 64) - 1
    high, low = topic_id.get_most_significant_bits() & mask, topic_id.get_least_significant_bits() & mask
    return str(uuid.UUID(int=high << 64 | low))


def _unquoted(name: str) -> str:
    try:
        return ".".join(TableName.parse(name)[:2])
    except ValueError:
        return name


def _nothing_published(options: SourceOptions) -> RefusedError:
    return RefusedError(
        f"There is no pipeline with the prefix {options.prefix} at {_servers(options.kafka)}.",
        remedy="Correct the prefix, or start capture first: tailrace capture",
    )


def _no_answer(options: SourceOptions, error: TransientError) -> TailraceError:
    return TransientError(f"Kafka at {_servers(options.kafka)} could not be read: {error.message}", remedy=error.remedy)


def _servers(kafka: Mapping[str, str]) -> str:
    return kafka["bootstrap.servers"]
