"""The type of a Kafka record, as all of Tailrace passes it to the producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# The first header of every record is `v`, the version.
Headers = list[tuple[str, bytes]]


#: The second header of a logical message, and of no other record.
MESSAGE_HEADER = "transactional"


# topic, key, value, headers, partition. The arguments are positional for speed: there is one call per row.
Emit = Callable[[str, bytes, "bytes | None", Headers, int], None]


# The memory of one queued record in addition to its key and value: its objects, here or in the producer's queue.
RECORD_BYTES = 500


class Record(NamedTuple):
    """One Kafka record. `value` None: a tombstone. `partition` -1: the partitioner chooses by the key."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    partition: int = -1
