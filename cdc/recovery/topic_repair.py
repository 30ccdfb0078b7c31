"""Repairs topics: creates them again or restores their cleanup policy. Not in `Topics`: capture must never do this."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError

from cdc.errors import TransientError
from cdc.kafka.topics import Topic
from cdc.names import Control, control_topic
from cdc.recovery.topic_actions import DamagedTopic
from cdc.setup.removable_topics import RemovableTopics

_GONE_SECONDS = 60.0
_POLL_SECONDS = 0.2
_COMPACTED = (Control.PROGRESS, Control.SCHEMA, Control.COPIES)


class RepairableTopics(RemovableTopics):
    def facts(self, names: Iterable[str]) -> dict[str, DamagedTopic]:
        """Return the facts of the topics that exist."""
        found = self.describe(names)
        if not found:
            return {}
        partitions = {name: topic.partitions for name, topic in found.items()}
        starts, ends = self._start_offsets(partitions), self.end_offsets(partitions)
        policies = self.cleanup_policies(found)
        return {
            name: DamagedTopic(topic=topic, starts=starts[name], ends=ends[name], policy=policies[name])
            for name, topic in found.items()
        }

    def control_policies(self) -> list[str]:
        """Return the control topics whose cleanup policy is not `compact`, so that they lose records."""
        names = [control_topic(self._kafka.prefix, control) for control in _COMPACTED]
        return [name for name, policy in self.cleanup_policies(self.describe(names)).items() if policy != "compact"]

    def compact(self, name: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, {"cleanup.policy": "compact"})
        try:
            self._admin.alter_configs([resource])
        except KafkaError as error:
            raise TransientError(f"Kafka did not do it: {error}", remedy="Run this again.") from error

    def remake(self, name: str) -> Topic:
        """Delete and create a topic. Wait in between, because the brokers free the name only after a moment."""
        self.delete(name)
        give_up_at = time.monotonic() + _GONE_SECONDS
        while self.describe([name]):
            if time.monotonic() > give_up_at:
                raise TransientError(f"Topic {name} is still being deleted.", remedy="Run this again.")
            time.sleep(_POLL_SECONDS)
        return self.ensure_tables([name])[name]

    def _start_offsets(self, partitions: Mapping[str, int]) -> dict[str, list[int]]:
        places = [TopicPartition(name, number) for name, count in partitions.items() for number in range(count)]
        try:
            found = self._admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST))
        except KafkaError as error:
            raise TransientError(f"Kafka did not answer: {error}") from error
        starts = {name: [0] * count for name, count in partitions.items()}
        for place, offset in found.items():
            starts[place.topic][place.partition] = offset.offset
        return starts
