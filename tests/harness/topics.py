"""Topics of a test's own: made by hand, and taken away by prefix."""

from __future__ import annotations

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

from tests.harness.waiting import eventually


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    """`config` takes Kafka's names with underscores: `cleanup_policy="compact"`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {setting.replace("_", "."): value for setting, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)


def list_topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


def delete_topics(bootstrap: str, prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{prefix}.")]
    if topics:
        for deleted in admin.delete_topics(topics, operation_timeout=10).values():
            deleted.result()


def wait_until_readable(bootstrap: str, prefix: str, deadline_seconds: float) -> None:
    """Until readers of committed records see all that is there now.

    A transaction's end reaches its partitions one by one: who sees one record of it need not see the others yet.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
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
    """A topic that is being deleted is left out."""
    asked = {each: OffsetSpec.latest() for each in partitions}
    ends = {}
    for each, answer in admin.list_offsets(asked, isolation_level=isolation, request_timeout=10).items():
        try:
            ends[each] = answer.result().offset
        except KafkaException:
            continue
    return ends


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its answers die with it
    (deleted,) = admin.delete_topics([topic], operation_timeout=10).values()
    deleted.result(30)
    eventually(lambda: topic not in list_topics(bootstrap), what=f"{topic} to be gone")


def alter_topic(bootstrap: str, topic: str, name: str, value: str) -> None:
    """One setting of it."""
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(30)


def grow_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (grown,) = admin.create_partitions([NewPartitions(topic, partitions)]).values()
    grown.result(30)
