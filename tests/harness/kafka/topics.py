"""Creates topics for a test, and deletes topics by prefix."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.harness.processes.waiting import eventually


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    """`config` takes Kafka's names with underscores: `cleanup_policy="compact"`."""
    settings = {setting.replace("_", "."): value for setting, value in config.items()}
    with _admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)


def list_topics(bootstrap: str) -> set[str]:
    with _admin(bootstrap) as admin:
        return set(admin.list_topics(timeout=10).topics)


def delete_topics(bootstrap: str, prefix: str) -> None:
    with _admin(bootstrap) as admin:
        topics = [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{prefix}.")]
        if topics:
            for deleted in admin.delete_topics(topics, operation_timeout=10).values():
                deleted.result()


def wait_until_readable(bootstrap: str, prefix: str, deadline_seconds: float) -> None:
    """Wait until readers of committed records see all present records.

    A transaction's end reaches its partitions one by one, so a reader of one partition may be ahead of another.
    """
    with _admin(bootstrap) as admin:
        partitions = [
            TopicPartition(name, partition)
            for name, topic in admin.list_topics(timeout=10).topics.items()
            if name.startswith(f"{prefix}.")
            for partition in topic.partitions
        ]
        ends = _ends(admin, partitions, IsolationLevel.READ_UNCOMMITTED)

        def all_readable() -> bool:
            stable = _ends(admin, partitions, IsolationLevel.READ_COMMITTED)
            return all(stable.get(each, end) >= end for each, end in ends.items())

        eventually(all_readable, deadline_seconds, "the transactions in the topics to end")


def _ends(admin: AdminClient, partitions: list[TopicPartition], isolation: IsolationLevel) -> dict[TopicPartition, int]:
    """End offsets, without topics that are being deleted."""
    asked = {each: OffsetSpec.latest() for each in partitions}
    ends = {}
    for each, answer in admin.list_offsets(asked, isolation_level=isolation, request_timeout=10).items():
        try:
            ends[each] = answer.result().offset
        except KafkaException:
            continue
    return ends


def delete_topic(bootstrap: str, topic: str) -> None:
    with _admin(bootstrap) as admin:
        (deleted,) = admin.delete_topics([topic], operation_timeout=10).values()
        deleted.result(30)
    eventually(lambda: topic not in list_topics(bootstrap), what=f"{topic} to be gone")


def alter_topic(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    with _admin(bootstrap) as admin:
        (altered,) = admin.incremental_alter_configs([resource]).values()
        altered.result(30)


def grow_topic(bootstrap: str, topic: str, partitions: int) -> None:
    with _admin(bootstrap) as admin:
        (grown,) = admin.create_partitions([NewPartitions(topic, partitions)]).values()
        grown.result(30)


def _admin(bootstrap: str) -> AdminClient:
    """A client that its caller must close: the garbage collector may run in the wrong thread."""
    return AdminClient({"bootstrap.servers": bootstrap})
