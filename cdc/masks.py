"""Masks: what leaves the database instead of a column's value. Applied where a value is encoded: before anything.

They go by name, so a name that fits nothing, or does not fit any more, is refused: it would let values out as they are.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

import orjson

from cdc.config import Config
from cdc.config.tables import ColumnName, Mask, MaskKind, TableName
from cdc.errors import RefusedError
from cdc.table_states import TableState
from cdc.values import Encode

Masks = Mapping[ColumnName, Mask]


def masked(mask: Mask, salt: bytes) -> Encode:
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


def refuse_lost_mask(masks: Masks, before: TableState | None, now: TableState) -> None:
    """A masked column, or its table, has another name now: under that one it would leave as it is."""
    if before is None:
        return
    names = {column.number: column.name for column in now.columns}
    for column in before.columns:
        old = ColumnName(before.schema, before.table, column.name)
        name = names.get(column.number)
        new = ColumnName(now.schema, now.table, name) if name is not None else None
        is_masked = old in masks and masks[old].kind is not MaskKind.NONE
        if is_masked and new is not None and new not in masks:
            raise RefusedError(
                f"Column {old} is masked and is now {new}, which is not.",
                remedy=f"Add '{new}' to [mask]; keep the old line until everything written before is published.",
            )


def refuse_unfit(config: Config, tables: Collection[TableState]) -> None:
    """Before the first start: what names nothing (a mistyped name would mask nothing), and what does not suit a key."""
    for each in tables:
        _refuse_unfit_for_key(config, TableName(each.schema, each.table), each.key)
    columns = {TableName(each.schema, each.table): {column.name for column in each.columns} for each in tables}
    named = [("mask", str(name), TableName(name.schema, name.table), name.column) for name in config.mask]
    named += [
        ("columns", f"{table}: {name}", table, name)
        for table in config.columns
        for name in config.columns_of(table) or ()
    ]
    for section, text, table, column in named:
        if table not in columns:
            problem = f"{table} is not a captured table"
        elif column not in columns[table]:
            problem = f"{table} has no column {column!r}"
        else:
            continue
        raise RefusedError(
            f"[{section}] {text}: {problem}.",
            remedy="Mend the name (of a partitioned table, name the table itself, not a partition), or take it out.",
        )


def _refuse_unfit_for_key(config: Config, table: TableName, key: Iterable[str]) -> None:
    for name in key:
        mask = config.masks_of(table).get(name)
        if mask is not None:
            refuse_unfit_mask(table, name, mask)
        columns = config.columns_of(table)
        if columns is not None and name not in columns:
            raise RefusedError(
                f"[columns] of {table} leaves out a column of its key.", remedy=f"It must have {', '.join(key)}."
            )


def refuse_unfit_mask(table: object, key_column: str, mask: Mask) -> None:
    if mask.kind is not MaskKind.HASH:
        raise RefusedError(
            f"Column {table}.{key_column} is part of the key and masked with {mask.kind.value}: "
            "all rows would become one.",
            remedy='Mask it with "hash", or not at all.',
        )
