"""Mirrors each store's offsets to a Kafka consumer group, `<prefix>.<store>`, so that standard tools see its lag.

No process reads these groups. A sync continues from the store's own position and does not use them.
"""

from __future__ import annotations

from concurrent import futures

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from cdc.config import Config
from cdc.kafka.clients import open_offset_client
from cdc.logs import get_logger
from cdc.monitoring.status_record import PipelineStatus

log = get_logger("mirror")

_ANSWER_SECONDS = 5.0

Offsets = dict[tuple[str, int], int]


def group_of(prefix: str, store: str) -> str:
    """Return the name of a store's consumer group."""
    return f"{prefix}.{store}"


class GroupMirror:
    """Commits the stores' offsets to their consumer groups. For use by one thread."""

    def __init__(self, config: Config) -> None:
        self._prefix = config.kafka.prefix
        self._admin = open_offset_client(config.kafka.client_options())
        self._committed: dict[str, Offsets] = {}
        self._complained = False

    def mirror(self, record: PipelineStatus) -> None:
        """Commit the offsets that have changed. An error is logged once, until a commit succeeds again."""
        for store in record.stores:
            offsets = {
                (table.topic, partition.number): partition.applied[store.name]
                for table in record.tables
                for partition in table.partitions
                if store.name in partition.applied
            }
            moved = {
                place: offset
                for place, offset in offsets.items()
                if self._committed.get(store.name, {}).get(place) != offset
            }
            if moved and self._commit(store.name, moved):
                self._committed[store.name] = offsets

    def _commit(self, store: str, offsets: Offsets) -> bool:
        group = group_of(self._prefix, store)
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        try:
            asked = self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=_ANSWER_SECONDS
            )
            for answer in asked.values():
                answer.result(_ANSWER_SECONDS + 1)
        except (KafkaException, futures.TimeoutError) as error:
            if not self._complained:
                log.warning("group_not_mirrored", group=group, reason=str(error.args[0] if error.args else error))
                self._complained = True
            return False
        self._complained = False
        return True
