"""Where records wait while the Kafka transaction before theirs is being committed.

A producer has one transaction at a time, and a commit takes some ten milliseconds; rows need not wait that long to be
decoded. So they go into this queue meanwhile, and to the producer once the commit is through.
"""

from __future__ import annotations

from cdc.records import Emit, Headers

# Past this, decoding waits for the commit: memory stays flat.
FULL_BYTES = 16 << 20
_RECORD_BYTES = 500  # what the objects of one record cost beside its value


class Outbox:
    def __init__(self) -> None:
        self._records: list[tuple[str, bytes, bytes | None, Headers, int]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_full(self) -> bool:
        return self._bytes >= FULL_BYTES

    def put(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int = -1) -> None:
        self._records.append((topic, key, value, headers, partition))
        self._bytes += _RECORD_BYTES + (len(value) if value is not None else 0)

    def empty_into(self, send: Emit) -> None:
        records, self._records, self._bytes = self._records, [], 0
        for record in records:
            send(*record)
