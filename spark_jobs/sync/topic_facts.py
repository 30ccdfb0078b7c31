"""Reads from Kafka the facts about table topics that a sync needs: topic ids, offsets, delete retention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent import futures
from types import TracebackType

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from cdc.config import Config
from cdc.errors import TransientError
from cdc.kafka.clients import open_offset_client
from cdc.kafka.failures import unreachable
from cdc.kafka.topics import Topics
from spark_jobs.sync.start_position import TopicFacts

_ANSWER_SECONDS = 20.0
# A sync asks all the time, and does not notice while it waits that it has to stop.
_NEXT_ANSWER_SECONDS = 10.0


def read_topic_facts(config: Config, names: Iterable[str]) -> dict[str, TopicFacts]:
    """Return the facts of each topic, by name. Raises `TransientError` if a topic does not exist."""
    wanted = sorted(names)
    topics = Topics(config.kafka)
    try:
        described = topics.describe(wanted)
        settings = topics.settings(wanted, "delete.retention.ms")
    finally:
        topics.close()
    missing = [name for name in wanted if name not in described or name not in settings]
    if missing:
        # Transient: when a table is removed, its topic is deleted shortly before capture's progress record shows the
        # removal.
        raise TransientError(
            f"Topic {missing[0]} is gone.",
            remedy="If it was deleted, capture refuses to continue. Run `tailrace recover`, which creates it again.",
        )
    starts, ends = offsets(config, {name: topic.partitions for name, topic in described.items()})
    return {
        name: TopicFacts(topic=topic, starts=starts[name], ends=ends[name], delete_retention_ms=int(settings[name]))
        for name, topic in described.items()
    }


class CommittedEnds:
    """Asks Kafka again and again for the end of the committed records. Use it in one thread."""

    def __init__(self, config: Config, partitions: Mapping[str, int]) -> None:
        """`partitions` is the number of partitions of each topic."""
        self._partitions = dict(partitions)
        self._latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._admin = open_offset_client(config.kafka.client_options())

    def __enter__(self) -> CommittedEnds:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        # As in `offsets`: closed here, not by the garbage collector.
        self._admin.__exit__(None, None, None)

    def read(self) -> dict[str, list[int]]:
        """Return the end offset of each partition. It is at the first open transaction if there is one."""
        return _asked(self._admin, self._partitions, self._latest, _NEXT_ANSWER_SECONDS)

    def check_partitions(self) -> None:
        """Raise if a topic has another number of partitions than at the start. The next session then refuses."""
        try:
            topics = self._admin.list_topics(timeout=_NEXT_ANSWER_SECONDS).topics
        except KafkaException as error:
            raise TransientError(f"Kafka did not answer: {error.args[0].str()}.") from error
        for name, count in self._partitions.items():
            if name in topics and len(topics[name].partitions) not in (0, count):
                raise TransientError(f"Topic {name} has {len(topics[name].partitions)} partitions; it had {count}.")


def offsets(config: Config, partitions: dict[str, int]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the first and the end offset of each partition, for a consumer that reads committed records."""
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    # Close the client here. The garbage collector may run in one of the client's own threads, and then librdkafka
    # aborts.
    with open_offset_client(config.kafka.client_options()) as admin:
        try:
            return _asked(admin, partitions, earliest), _asked(admin, partitions, latest)
        except TransientError as error:
            raise unreachable(config.kafka.client_options(), error.message) from error


def _asked(
    admin: AdminClient, partitions: Mapping[str, int], spec: OffsetSpec, timeout_seconds: float = _ANSWER_SECONDS
) -> dict[str, list[int]]:
    places = {TopicPartition(name, number): spec for name, count in partitions.items() for number in range(count)}
    found = {name: [0] * count for name, count in partitions.items()}
    if not places:
        return found
    answers = admin.list_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_seconds)
    try:
        for place, answer in answers.items():
            found[place.topic][place.partition] = answer.result(timeout_seconds).offset
    except KafkaException as error:
        raise TransientError(f"Kafka did not answer: {error.args[0].str()}.") from error
    except futures.TimeoutError as error:
        raise TransientError("Kafka did not answer in time.") from error
    return found
