"""A record for Kafka, as every part of Tailrace hands it to the producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# The first header of every record is `v`, the version.
Headers = list[tuple[str, bytes]]


#: The second header of a logical message, and of no other record.
MESSAGE_HEADER = "transactional"


# topic, key, value, headers, partition: positional, because it is called once per row
Emit = Callable[[str, bytes, "bytes | None", Headers, int], None]


# What the objects of one record cost beside its key and value, waiting to be sent or in the producer's queue.
RECORD_BYTES = 500


class Record(NamedTuple):
    """`value` None is a tombstone; `partition` -1 leaves the choice to the key."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    partition: int = -1
