"""Topics of a test's own: made by hand, and taken away by prefix."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]


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
