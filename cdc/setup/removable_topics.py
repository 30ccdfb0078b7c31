"""Lists topics by prefix and deletes them. This is separate from `Topics`, so that capture cannot delete a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from cdc.errors import RefusedError, TransientError
from cdc.kafka.topics import Topics

T = TypeVar("T")


class RemovableTopics(Topics):
    """The broker's topics, which can also be listed and deleted."""

    def under(self, prefix: str) -> list[str]:
        """Return every topic whose name begins with `<prefix>.`, including topics that Tailrace did not create."""
        names: list[str] = _translated(self._admin.list_topics)
        return sorted(name for name in names if name.startswith(f"{prefix}."))

    def delete(self, name: str) -> None:
        """Delete a topic. A topic that does not exist counts as deleted."""
        try:
            _translated(lambda: self._admin.delete_topics([name]))
        except UnknownTopicOrPartitionError:
            return


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except UnknownTopicOrPartitionError:
        raise
    except KafkaError as error:
        text = str(error)
        if "Authorization" in text or "Disabled" in text:
            raise RefusedError(
                f"Kafka denies the request: {text}",
                remedy="Correct the broker's settings or ACLs, then run this again.",
            ) from error
        raise TransientError(f"The request to Kafka failed: {text}", remedy="Run this again.") from error
