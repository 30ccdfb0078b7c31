"""An event that waits for a query before it can become a record."""

from __future__ import annotations

from typing import NamedTuple

from cdc.envelope import Envelope, Place, clock
from cdc.messages import Value
from cdc.record import Headers, Record
from cdc.relations import Table


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
