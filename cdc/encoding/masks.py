"""Masks: replace the values of a column with a hash, NULL or a fixed text. Applied where a value is encoded.

No code after the encoder has the unmasked value. The config names masked columns. If no column has such a name, or none
has it any more, Tailrace refuses to run, since it would publish the values unmasked.
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
    """Return the encoder of a masked column.

    NULL stays NULL under every mask. Equal values have equal hashes, so that joins on a masked key still work.
    """
    if mask.kind is MaskKind.HASH:
        return lambda value: b'"%b"' % hmac.new(salt, value, sha256).hexdigest().encode()
    constant = b"null" if mask.kind is MaskKind.NULL else orjson.dumps(mask.text)
    return lambda _value: constant


def masks_of(masks: Masks, table: TableName, columns: Iterable[str], seen: Collection[str]) -> dict[str, Mask]:
    """Return the masks of a Relation message's columns, by name.

    `seen`: all columns that Tailrace has ever read for the table from the catalog. A column that is not in `seen` was
    dropped, or renamed and renamed back, between two reads of the catalog. It may have been a masked column under
    another name. So if the table has any masks, the column's values are hashed.
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
    """Refuse a mask on a key column that would give different rows the same key."""
    if mask.kind is not MaskKind.HASH:
        raise RefusedError(
            f"Column {table}.{key_column} is part of the key and masked with {mask.kind.value}: "
            "different rows would get the same key.",
            remedy='Mask it with "hash", or do not mask it.',
        )
