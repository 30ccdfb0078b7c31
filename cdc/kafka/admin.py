"""kafka-python's client for administration, as it is used here."""

from __future__ import annotations

from typing import Any

from kafka import KafkaAdminClient


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """Leaves nothing behind when no broker answers; the base class leaves a thread each time, and files with it."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:
            if hasattr(self, "_net"):
                self._closed = False  # else `close` takes it for closed
                self.close()
            raise
