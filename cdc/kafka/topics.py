"""Creates topics with the settings that the guarantees depend on, and checks existing topics.

This module uses kafka-python. The producer uses confluent-kafka, which is more than ten times as fast (measured).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    InvalidConfigurationError,
    InvalidTopicError,
    KafkaError,
    PolicyViolationError,
    TopicAlreadyExistsError,
)

from cdc.config import KafkaConfig
from cdc.errors import RefusedError, TransientError
from cdc.kafka.admin import open_admin
from cdc.kafka.failures import unreachable
from cdc.names import Control, control_topic

T = TypeVar("T")

# __positions keeps its history: it maps times to WAL positions, for lag and `tailrace wait`.
_POSITIONS_RETENTION_MS = 7 * 24 * 3_600_000
# Rows of a snapshot chunk stay on __copy until capture passes the chunk's high watermark, or a task reads it again.
_COPY_RETENTION_MS = 24 * 3_600_000
# Brokers from 4.0 on refuse records with a time more than an hour ahead. With the broker's time, a wrong clock on our
# host does not stop capture.
_BROKERS_CLOCK = {"message.timestamp.type": "LogAppendTime"}
# The broker's reason in the text of a kafka-python error, which contains the whole request and response.
_BROKERS_REASON = re.compile(r"""error_message=(?:"([^"]+)"|'([^']+)')""")


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic: its id and its number of partitions."""

    id: str
    partitions: int


class Topics:
    """Kafka's admin operations that capture needs."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        try:
            self._admin = _translated(lambda: open_admin(kafka))
        except TransientError as error:
            raise unreachable(kafka.client_options(), error.message) from error

    def close(self) -> None:
        self._admin.close()

    def describe(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return those of the topics that exist."""
        wanted = list(names)
        found = _translated(lambda: self._admin.describe_topics(wanted)) if wanted else []
        return {
            topic["name"]: Topic(str(topic["topic_id"]), len(topic["partitions"]))
            for topic in found
            if topic["error_code"] == 0
        }

    def ensure_tables(self, names: Iterable[str]) -> dict[str, Topic]:
        """Create the missing table topics. Raises RefusedError for one with other partitions or cleanup policy."""
        return self._ensure({name: self._table_settings() for name in names}, self._kafka.partitions)

    def ensure_messages(self, name: str) -> str:
        """Create a topic for logical messages if it is missing, and return its id.

        It has one partition, to keep the commit order. The broker's defaults determine the retention.
        """
        return self._ensure({name: {"cleanup.policy": "delete", **_BROKERS_CLOCK, **self._size()}}, 1)[name].id

    def ensure_control(self) -> dict[str, Topic]:
        """Create the missing control topics. All have one partition."""
        prefix = self._kafka.prefix
        compact = {
            "cleanup.policy": "compact",
            "segment.ms": "600000",
            "min.cleanable.dirty.ratio": "0.1",
        }
        kept = {"cleanup.policy": "delete", "retention.ms": str(_POSITIONS_RETENTION_MS)}
        settings = {
            Control.PROGRESS: {**compact, "segment.bytes": str(16 << 20)},
            Control.SCHEMA: compact,
            Control.COPIES: compact,
            Control.COPY: {"cleanup.policy": "delete", "retention.ms": str(_COPY_RETENTION_MS)},
            Control.PARKED: {"cleanup.policy": "delete", "retention.ms": "-1"},
            Control.POSITIONS: kept,
            Control.STORES: compact,
            Control.REQUESTS: compact,
            Control.AUDITS: compact,
        }
        every = {**_BROKERS_CLOCK, **self._size()}
        wanted = {control_topic(prefix, control): {**value, **every} for control, value in settings.items()}
        made = self._ensure(wanted, 1)
        self.raise_size_limits(made)
        return made

    def end_offsets(self, partitions: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the end offset of each partition, after open transactions. `partitions`: their number by topic."""
        places = [TopicPartition(name, p) for name, count in partitions.items() for p in range(count)]
        found = _translated(
            lambda: self._admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST)) if places else {}
        )
        ends = {name: [0] * count for name, count in partitions.items()}
        for place, offset in found.items():
            ends[place.topic][place.partition] = offset.offset
        return ends

    def raise_size_limits(self, names: Iterable[str]) -> None:
        """Raise the topics' max.message.bytes to max_message_bytes.

        A topic that was created with a smaller limit would refuse records that capture no longer parks.
        """
        wanted = self._kafka.max_message_bytes
        found = self._configs(names)
        limits = {name: _setting(config, "max.message.bytes") for name, config in found.items()}
        small = [name for name, limit in limits.items() if limit is not None and int(limit) < wanted]
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, self._size()) for name in small]
        if resources:
            _translated(lambda: self._admin.alter_configs(resources))

    def cleanup_policies(self, names: Iterable[str]) -> dict[str, str]:
        """Return the cleanup policy of each topic that exists."""
        return self.settings(names, "cleanup.policy")

    def settings(self, names: Iterable[str], setting: str) -> dict[str, str]:
        """Return the effective value of one setting for each topic that exists."""
        found = {name: _setting(config, setting) for name, config in self._configs(names).items()}
        return {name: value for name, value in found.items() if value is not None}

    def _configs(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        described = _translated(lambda: self._admin.describe_configs(resources, config_filter="all"))
        configs: dict[str, dict[str, Any]] = described["topic"]
        return configs

    def _ensure(self, wanted: Mapping[str, dict[str, str]], partitions: int) -> dict[str, Topic]:
        existing = self.describe(wanted)
        missing = {
            name: {
                "num_partitions": partitions,
                "replication_factor": self._kafka.replication_factor,
                "configs": settings,
            }
            for name, settings in wanted.items()
            if name not in existing
        }
        if missing:
            _translated(lambda: self._create(missing))
            existing = self.describe(wanted)
        self._refuse_wrong_shape(existing, wanted, partitions)
        return existing

    def _create(self, missing: Mapping[str, Any]) -> None:
        try:
            self._admin.create_topics(missing, wait_for_metadata=True)
        except TopicAlreadyExistsError:
            pass  # another capture created it, just before it found the slot in use
        except (InvalidTopicError, InvalidConfigurationError, PolicyViolationError) as error:
            reasons = {first or second for first, second in _BROKERS_REASON.findall(str(error))}
            raise RefusedError(
                f"Kafka refuses to create a topic: {'; '.join(sorted(reasons)) or error}",
                remedy="Remove the table from [source] tables, or correct the setting that the broker refuses.",
            ) from error

    def _refuse_wrong_shape(
        self, existing: Mapping[str, Topic], wanted: Mapping[str, dict[str, str]], partitions: int
    ) -> None:
        policies = self.cleanup_policies(existing)
        for name, topic in existing.items():
            if topic.partitions != partitions:
                raise RefusedError(
                    f"Topic {name} has {topic.partitions} partitions. The config has {partitions}.",
                    remedy="Set [kafka] partitions to the old value. To re-partition, run: tailrace recover",
                )
            policy = wanted[name]["cleanup.policy"]
            if policies.get(name) != policy:
                raise RefusedError(
                    f"Topic {name} has cleanup.policy={policies.get(name)}, expected {policy}: rows may be missing.",
                    remedy="Run: tailrace recover. It restores the setting, and every table then needs a snapshot.",
                )

    def _table_settings(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(self._kafka.delete_retention_milliseconds),
            **_BROKERS_CLOCK,
            **self._size(),
        }

    def _size(self) -> dict[str, str]:
        return {"max.message.bytes": str(self._kafka.max_message_bytes)}


def _setting(config: Mapping[str, Any], name: str) -> str | None:
    """Return the setting's value. None: Kafka returned no settings, because the topic does not exist."""
    entry = config.get(name)
    return None if entry is None else entry["value"]


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except KafkaError as error:
        text = str(error)  # it starts with the name of the error
        if "Authentication" in text or "Authorization" in text:
            raise RefusedError(
                f"Kafka denied access: {text}", remedy="Correct [kafka] or the broker's ACLs."
            ) from error
        raise TransientError(f"Kafka did not answer: {text}") from error
