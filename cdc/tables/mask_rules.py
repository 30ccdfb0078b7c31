"""Checks the config's masks and column lists against the tables.

Capture refuses a mask that names no column, and a mask whose column was renamed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cdc.config import Config
from cdc.config.tables import ColumnName, MaskKind, TableName
from cdc.encoding.masks import Masks, refuse_unfit_mask
from cdc.errors import RefusedError
from cdc.tables.recorded_state import TableState


def refuse_lost_mask(masks: Masks, before: TableState | None, now: TableState) -> None:
    """Refuse to run if a masked column or its table was renamed, since it would be published unmasked."""
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
                f"Column {old} is masked and was renamed to {new}, which is not.",
                remedy=f"Add '{new}' to [mask]. Keep the old line until all changes before the rename are published.",
            )


def refuse_unfit(config: Config, tables: Collection[TableState]) -> None:
    """Check [mask] and [columns] before the first start.

    Refuses a name that no captured table or column has, since a misspelled name would mask nothing. Also refuses masks
    and column lists that are not allowed for key columns.
    """
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
            remedy="Correct the name (for a partition, name the partitioned table), or remove it.",
        )


def _refuse_unfit_for_key(config: Config, table: TableName, key: Iterable[str]) -> None:
    for name in key:
        mask = config.masks_of(table).get(name)
        if mask is not None:
            refuse_unfit_mask(table, name, mask)
        columns = config.columns_of(table)
        if columns is not None and name not in columns:
            raise RefusedError(
                f"[columns] of {table} leaves out a column of its key.",
                remedy=f"Add the key columns: {', '.join(key)}.",
            )
