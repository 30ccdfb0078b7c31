"""An event that needs a value from the table (a re-select) before capture can publish it."""

from __future__ import annotations

from typing import NamedTuple

from cdc.encoding.envelope import Envelope, Place, clock
from cdc.encoding.table_encoder import TableEncoder
from cdc.kafka.record import Headers, Record
from cdc.pgoutput.messages import Value


class Incomplete(NamedTuple):
    """An event that waits for a re-select.

    In `values`, an unchanged TOASTed value is missing (`UNCHANGED`). `values` is None if the re-select must read the
    whole row of the key.
    """

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
