"""What capture hands on: a record for Kafka, or an event that waits for a query before it can become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cdc.envelope import Envelope, Place, clock
from cdc.messages import Value
from cdc.relations import Table

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


class Incomplete(NamedTuple):
    """`values` has holes where a TOASTed value was left out, or is None when the key's whole state is asked for."""

    table: Table
    envelope: Envelope
    xid: int
    op: bytes
    before: bytes
    values: list[Value] | None
    key: bytes
    key_values: tuple[bytes, ...]
    place: Place
    headers: Headers

    def render(self, op: bytes, after: bytes, reselected: list[str]) -> bytes:
        return self.envelope.render(op, self.before, after, self.place, clock(), reselected)


Held = list["Record | Incomplete"]
