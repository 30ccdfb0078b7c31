"""Masks: what leaves the database instead of a column's value. Applied where a value is encoded: before anything.

They go by name, so a name that fits nothing, or does not fit any more, is refused: it would let values out as they are.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

import orjson

from cdc.config.tables import ColumnName, Mask, MaskKind, TableName
from cdc.encoding.values import Encode
from cdc.errors import RefusedError

Masks = Mapping[ColumnName, Mask]


def mask_encoder(mask: Mask, salt: bytes) -> Encode:
    """NULL stays NULL under every mask; equal values have equal hashes, so that a masked key still joins."""
    if mask.kind is MaskKind.HASH:
        return lambda value: b'"%b"' % hmac.new(salt, value, sha256).hexdigest().encode()
    constant = b"null" if mask.kind is MaskKind.NULL else orjson.dumps(mask.text)
    return lambda _value: constant


def masks_of(masks: Masks, table: TableName, columns: Iterable[str], seen: Collection[str]) -> dict[str, Mask]:
    """The masks of a Relation's columns. `seen`: the columns that the table was ever seen with in the catalog.

    A column of another name is one that was renamed there and back meanwhile, or is gone: hashed, where others are
    masked, since nobody can say what it was.
    """
    of_table = {
        name.column: mask
        for name, mask in masks.items()
        if (name.schema, name.table) == table and mask.kind is not MaskKind.NONE
    }
    found = {}
    for column in columns:
        if column in of_table:
            found[column] = of_table[column]
        elif of_table and column not in seen:
            found[column] = Mask(MaskKind.HASH)
    return found


def refuse_unfit_mask(table: object, key_column: str, mask: Mask) -> None:
    if mask.kind is not MaskKind.HASH:
        raise RefusedError(
            f"Column {table}.{key_column} is part of the key and masked with {mask.kind.value}: "
            "all rows would become one.",
            remedy='Mask it with "hash", or not at all.',
        )
