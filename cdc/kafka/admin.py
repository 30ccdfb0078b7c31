"""kafka-python's admin client, without its resource leak."""

from __future__ import annotations

from typing import Any

from kafka import KafkaAdminClient


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
