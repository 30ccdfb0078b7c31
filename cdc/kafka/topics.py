"""Topics: made once with the settings that the promises hang on, then only looked at.

kafka-python does this; producing is confluent-kafka's (measured more than ten times as fast).
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
from cdc.kafka.admin import Admin
from cdc.kafka.failures import unreachable
from cdc.names import Control, control_topic

T = TypeVar("T")

# Kept beyond the last use: __positions answers "where was the log when?", for lag and `wait`.
_POSITIONS_RETENTION_MS = 7 * 24 * 3_600_000
# Rows of a chunk wait there only until capture passes its mark, or the chunk is read again.
_COPY_RETENTION_MS = 24 * 3_600_000
# The default of half a minute would hold capture up long after a broker is back.
_RECONNECT = {"reconnect_backoff_max_ms": 1000}
# Since 4.0, brokers refuse records stamped more than an hour ahead: a wrong clock of ours must not stop everything.
_BROKERS_CLOCK = {"message.timestamp.type": "LogAppendTime"}
# kafka-python's error is the whole request and the whole response; this is what the broker says in it.
_BROKERS_REASON = re.compile(r"""error_message=(?:"([^"]+)"|'([^']+)')""")
# Nobody can stop us while the client tries to reach the first broker.
_FIRST_ANSWER_MS = 5_000


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    partitions: int


class Topics:
    """All that capture asks of Kafka beside producing."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        options = {"bootstrap_timeout_ms": _FIRST_ANSWER_MS, **kafka.python_options()}
        try:
            self._admin = _translated(lambda: Admin(**options))
        except TransientError as error:
            raise unreachable(kafka.client_options(), error.message) from error

    def close(self) -> None:
        self._admin.close()

    def describe(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that exist."""
        wanted = list(names)
        found = _translated(lambda: self._admin.describe_topics(wanted)) if wanted else []
        return {
            topic["name"]: Topic(str(topic["topic_id"]), len(topic["partitions"]))
            for topic in found
            if topic["error_code"] == 0
        }

    def ensure_tables(self, names: Iterable[str]) -> dict[str, Topic]:
        """Create the tables' topics that are missing; refuse those that exist with another shape."""
        return self._ensure({name: self._table_settings() for name in names}, self._kafka.partitions)

    def ensure_messages(self, name: str) -> str:
        """A topic for logical messages, in commit order, so of one partition; kept as long as the broker keeps such."""
        return self._ensure({name: {"cleanup.policy": "delete", **_BROKERS_CLOCK, **self._size()}}, 1)[name].id

    def ensure_control(self) -> dict[str, Topic]:
        """The control topics; all have one partition."""
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
        """Where each partition ends now, open transactions included. `partitions`: topic -> how many."""
        places = [TopicPartition(name, p) for name, count in partitions.items() for p in range(count)]
        found = _translated(
            lambda: self._admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST)) if places else {}
        )
        ends = {name: [0] * count for name, count in partitions.items()}
        for place, offset in found.items():
            ends[place.topic][place.partition] = offset.offset
        return ends

    def raise_size_limits(self, names: Iterable[str]) -> None:
        """Topics made under a smaller max_message_bytes would refuse what is not parked any more."""
        wanted = self._kafka.max_message_bytes
        found = self._configs(names)
        limits = {name: _setting(config, "max.message.bytes") for name, config in found.items()}
        small = [name for name, limit in limits.items() if limit is not None and int(limit) < wanted]
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, self._size()) for name in small]
        if resources:
            _translated(lambda: self._admin.alter_configs(resources))

    def cleanup_policies(self, names: Iterable[str]) -> dict[str, str]:
        return self.settings(names, "cleanup.policy")

    def settings(self, names: Iterable[str], setting: str) -> dict[str, str]:
        """One setting of each topic, as it is in force. A topic that does not exist is left out."""
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
            pass  # by another capture, just before it found the slot taken
        except (InvalidTopicError, InvalidConfigurationError, PolicyViolationError) as error:
            reasons = {first or second for first, second in _BROKERS_REASON.findall(str(error))}
            raise RefusedError(
                f"Kafka refuses to make a topic: {'; '.join(sorted(reasons)) or error}",
                remedy="Take the table out of [source] tables, or mend what the broker does not like.",
            ) from error

    def _refuse_wrong_shape(
        self, existing: Mapping[str, Topic], wanted: Mapping[str, dict[str, str]], partitions: int
    ) -> None:
        policies = self.cleanup_policies(existing)
        for name, topic in existing.items():
            if topic.partitions != partitions:
                raise RefusedError(
                    f"Topic {name} has {topic.partitions} partitions, the config says {partitions}.",
                    remedy="Set [kafka] partitions back; to re-partition, run: tailrace recover",
                )
            policy = wanted[name]["cleanup.policy"]
            if policies.get(name) != policy:
                raise RefusedError(
                    f"Topic {name} has cleanup.policy={policies.get(name)}, expected {policy}: rows may be gone.",
                    remedy="Run: tailrace recover, which sets it back and copies what may be gone.",
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
    """None where Kafka describes no settings: the topic is gone."""
    entry = config.get(name)
    return None if entry is None else entry["value"]


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except KafkaError as error:
        text = str(error)  # begins with the kind of error
        if "Authentication" in text or "Authorization" in text:
            raise RefusedError(f"Kafka does not let us: {text}", remedy="Mend [kafka] or the broker's ACLs.") from error
        raise TransientError(f"Kafka did not answer: {text}") from error
