"""The outbox: a queue for records while the producer commits the Kafka transaction before theirs.

A producer has one transaction at a time, and a commit takes about ten milliseconds. Decoding does not wait for it: new
records go into this queue, and to the producer when the commit is complete.
"""

from __future__ import annotations

from collections import deque

from cdc.kafka.record import RECORD_BYTES, Emit, Headers


class PendingRecords:
    """A queue of records with its approximate size in bytes."""

    def __init__(self) -> None:
        self._records: deque[tuple[str, bytes, bytes | None, Headers, int]] = deque()
        self.bytes = 0  # the approximate size of the records

    def __len__(self) -> int:
        return len(self._records)

    def put(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int = -1) -> None:
        self._records.append((topic, key, value, headers, partition))
        self.bytes += RECORD_BYTES + (len(value) if value is not None else 0)

    def empty_into(self, send: Emit) -> None:
        """Send all records, and release each as soon as it is sent: the producer has its own copy."""
        records = self._records
        while records:
            send(*records.popleft())
        self.bytes = 0
