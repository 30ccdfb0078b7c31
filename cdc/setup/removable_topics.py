"""Topics that can be listed by prefix and deleted; apart from `Topics`, so that capture has no way to delete one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from cdc.errors import RefusedError, TransientError
from cdc.kafka.topics import Topics

T = TypeVar("T")


class RemovableTopics(Topics):
    def under(self, prefix: str) -> list[str]:
        """Every topic whose name begins with `<prefix>.`, ours or not."""
        names: list[str] = _translated(self._admin.list_topics)
        return sorted(name for name in names if name.startswith(f"{prefix}."))

    def delete(self, name: str) -> None:
        """One that is not there (any more) is as good as deleted."""
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
                f"Kafka does not let us: {text}", remedy="Mend the broker's settings or ACLs, and run this again."
            ) from error
        raise TransientError(f"Kafka did not do it: {text}", remedy="Run this again.") from error
