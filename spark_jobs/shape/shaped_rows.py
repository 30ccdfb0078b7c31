"""A row in a store's shape: its own bytes without what is left out, and the computed fields behind. Pure.

Values that are only kept stay byte by byte what they are in the topic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class RowShape(NamedTuple):
    """Picklable; what a task needs to know of a table's shape."""

    #: None: every column.
    kept: frozenset[str] | None
    #: Columns that a computed field has taken the name of.
    replaced: frozenset[str]
    #: Whether Spark has looked at the row, for `where` or `select`.
    evaluated: bool

    def row(self, after: bytes, computed: str | None) -> bytes:
        """`computed`: a JSON object of the computed fields."""
        if self.kept is not None or self.replaced:
            kept, replaced = self.kept, self.replaced
            after = _encode(
                {
                    name: value
                    for name, value in _decode_members(after).items()
                    if (kept is None or name in kept) and name not in replaced
                }
            )
        if computed is None or len(computed) <= 2:
            return after
        comma = b"," if len(after) > 2 else b""
        return after[:-1] + comma + computed.encode()[1:]


class Troubled(NamedTuple):
    """An expression failed for this row; `reason` holds no value of it."""

    reason: str


def shaped_row(shape: RowShape, after: bytes, found: dict[str, Any] | None) -> bytes | Troubled | None:
    """What the store must hold; None: not this row. `found`: what Spark says, the column `shaped` of `with_shapes`."""
    if not shape.evaluated:
        return shape.row(after, None)
    if found is None:
        return Troubled("the row could not be read by Spark")
    if found["trouble"] is not None:
        return Troubled(found["trouble"])
    return shape.row(after, found["computed"]) if found["kept"] else None
