"""An event that waits for a query before it can become a record."""

from __future__ import annotations

from typing import NamedTuple

from cdc.encoding.envelope import Envelope, Place, clock
from cdc.encoding.table_encoder import TableEncoder
from cdc.kafka.record import Headers, Record
from cdc.pgoutput.messages import Value


class Incomplete(NamedTuple):
    """`values` has holes where a TOASTed value was left out, or is None when the key's whole state is asked for."""

    table: TableEncoder
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
