"""Iceberg schemas of a table's current rows and of its history, and which type changes are possible in place.

All columns of the source are optional in Iceberg, because the log does not report a change of NOT NULL. Columns are
matched by name. Types that Iceberg can widen in place (int to bigint, float to double, a decimal's digits) are widened.
Any other change of type needs a new generation. The history instead renames the old column and adds the new one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.stores.contract import TableSchema
from sinks.iceberg import library, naming
from sinks.typed_columns import STRING, element_type, spark_type

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDENED: Final = {("int", "bigint"), ("float", "double")}

CURRENT_OWN: Final = {naming.POSITION: "bigint", naming.SEQ: "int", naming.AT: "timestamp"}
HISTORY_OWN: Final = {
    naming.POSITION: "bigint",
    naming.SEQ: "int",
    naming.OP: "string",
    naming.TRANSACTION: "bigint",
    naming.VALID_FROM: "timestamp",
    naming.VALID_TO: "timestamp",
    naming.TO_POSITION: "bigint",
    naming.TO_SEQ: "int",
    naming.OPEN: "boolean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseColumn:
    """A column's name in Postgres (`source`), its name in the warehouse (`name`), and its Spark SQL type."""

    source: str
    name: str
    type: str


def warehouse_columns(table: TableSchema, as_text: Collection[str] = ()) -> list[WarehouseColumn]:
    """Return the table's columns in the warehouse. Columns in `as_text` become strings."""
    names = naming.column_names([column.name for column in table.columns])
    return [
        WarehouseColumn(source=column.name, name=name, type=STRING if column.name in as_text else spark_type(column))
        for column, name in zip(table.columns, names, strict=True)
    ]


def key_columns(table: TableSchema, columns: list[WarehouseColumn]) -> list[WarehouseColumn]:
    """Return the columns of the primary key, in the key's order."""
    by_source = {column.source: column for column in columns}
    return [by_source[name] for name in table.key]


def iceberg_schema(columns: list[WarehouseColumn], own: dict[str, str]) -> Schema:
    """Return the Iceberg schema with these columns, followed by Tailrace's own columns (name to Spark SQL type)."""
    named = [(column.name, column.type) for column in columns] + list(own.items())
    fields = []
    next_id = len(named) + 1
    for number, (name, kind) in enumerate(named, 1):
        element = element_type(kind)
        fields.append(library.types.NestedField(number, name, iceberg_type(kind, next_id), required=False))
        next_id += element is not None
    return library.Schema(*fields)


def iceberg_type(kind: str, element_id: int = -1) -> IcebergType:
    """Return the Iceberg type for a Spark SQL type."""
    types = library.types
    element = element_type(kind)
    if element is not None:
        return types.ListType(element_id, iceberg_type(element), element_required=False)
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is not None:
        return types.DecimalType(int(decimal[1]), int(decimal[2]))
    plain: dict[str, type[IcebergType]] = {
        "int": types.IntegerType,
        "bigint": types.LongType,
        "float": types.FloatType,
        "double": types.DoubleType,
        "boolean": types.BooleanType,
        "date": types.DateType,
        "timestamp": types.TimestamptzType,
        "timestamp_ntz": types.TimestampType,
        "binary": types.BinaryType,
        STRING: types.StringType,
    }
    return plain[kind]()


def spark_name(kind: IcebergType) -> str:
    """Return the Spark SQL type for an Iceberg type."""
    text = str(kind)
    if text.startswith("list<"):
        return f"array<{spark_name(kind.element_type)}>"  # type: ignore[attr-defined]
    decimal = re.fullmatch(r"decimal\((\d+), ?(\d+)\)", text)
    if decimal is not None:
        return f"decimal({decimal[1]},{decimal[2]})"
    return {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}.get(text, text)


def widens(old: str, new: str) -> bool:
    """Whether Iceberg can change the type in place without changing any value."""
    if (old, new) in _WIDENED:
        return True
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return bool(before and after and before[2] == after[2] and int(before[1]) < int(after[1]))
