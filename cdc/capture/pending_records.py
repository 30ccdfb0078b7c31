"""Where records wait while the Kafka transaction before theirs is being committed.

A producer has one transaction at a time, and a commit takes some ten milliseconds; rows need not wait that long to be
decoded. So they go into this queue meanwhile, and to the producer once the commit is through.
"""

from __future__ import annotations

from collections import deque

from cdc.kafka.record import RECORD_BYTES, Emit, Headers


class PendingRecords:
    def __init__(self) -> None:
        self._records: deque[tuple[str, bytes, bytes | None, Headers, int]] = deque()
        self.bytes = 0  # about what the records take up

    def __len__(self) -> int:
        return len(self._records)

    def put(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int = -1) -> None:
        self._records.append((topic, key, value, headers, partition))
        self.bytes += RECORD_BYTES + (len(value) if value is not None else 0)

    def empty_into(self, send: Emit) -> None:
        """Each is let go of as it is sent: the producer has a copy of it then."""
        records = self._records
        while records:
            send(*records.popleft())
        self.bytes = 0
