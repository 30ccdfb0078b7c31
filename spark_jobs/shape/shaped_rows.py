"""Builds a row in a store's shape: the kept columns, followed by the computed fields. Pure functions.

The values of kept columns stay byte for byte as they are in the topic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class RowShape(NamedTuple):
    """The part of a table's shape that tasks need; picklable."""

    #: The columns that the store gets; None for all columns.
    kept: frozenset[str] | None
    #: Columns that computed fields of the same name replace.
    replaced: frozenset[str]
    #: Whether the shape has expressions (`where` or `select`), which Spark evaluates for each row.
    evaluated: bool

    def row(self, after: bytes, computed: str | None) -> bytes:
        """Return the row in this shape. `computed`: a JSON object of the computed fields."""
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


class FailedRow(NamedTuple):
    """An expression failed for a row. `reason` contains no value of the row."""

    reason: str


def shaped_row(shape: RowShape, after: bytes, found: dict[str, Any] | None) -> bytes | FailedRow | None:
    """Return the row that the store must hold; None if `where` leaves it out.

    `found`: the column `shaped` of `with_shapes`.
    """
    if not shape.evaluated:
        return shape.row(after, None)
    if found is None:
        return FailedRow("Spark could not read the row")
    if found["failure"] is not None:
        return FailedRow(found["failure"])
    return shape.row(after, found["computed"]) if found["kept"] else None
