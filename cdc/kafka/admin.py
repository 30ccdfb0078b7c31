"""Opens kafka-python's admin client, and frees its resources if no broker answers."""

from __future__ import annotations

from typing import Any, Final

from kafka import KafkaAdminClient

from cdc.config import KafkaConfig

# Short, because capture cannot stop while the client connects to the first broker.
_FIRST_ANSWER_MS: Final = 5_000


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """An admin client that closes itself when no broker answers. The base class leaks a thread and files each time."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:
            if hasattr(self, "_net"):
                self._closed = False  # otherwise `close` does nothing
                self.close()
            raise


def open_admin(kafka: KafkaConfig) -> Admin:
    """Open an admin client for topics, configs, offsets and groups."""
    return Admin(**({"bootstrap_timeout_ms": _FIRST_ANSWER_MS} | kafka.python_options()))
