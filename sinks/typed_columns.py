"""Maps Postgres types to Spark SQL column types (docs/reference/types.md). Pure: no I/O. The only such mapping.

A type gets a typed column only if the column represents its ordinary values exactly. A value that does not fit
(infinity, a year BC, NaN in a decimal, an array of arrays) is never altered: the row is parked, or the config makes the
column a `string`. Every other type becomes a `string` that holds the value as the topic has it.
"""

from __future__ import annotations

from typing import Final

from cdc.stores.contract import SchemaColumn

STRING: Final = "string"
_PLAIN: Final = {
    "int2": "int",
    "int4": "int",
    "int8": "bigint",
    "oid": "bigint",
    "float4": "float",
    "float8": "double",
    "bool": "boolean",
    "money": "decimal(19,2)",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "bytea": "binary",
}
_MOST_DIGITS: Final = 38
# The JSON of their elements may hold more than one value, or nested arrays.
_ARRAYS_AS_TEXT: Final = frozenset({"point", "box"})


def spark_type(column: SchemaColumn) -> str:
    """Return the Spark SQL type of a column: `bigint`, `decimal(10,2)`, `array<date>`, `string`."""
    name = column.type
    # `__schema` gives only the name of a user-defined type (`public.mood`), so its column is a string.
    if name.startswith("_") and "." not in name and name[1:] not in _ARRAYS_AS_TEXT:
        return f"array<{_scalar(name[1:], column.modifier)}>"
    return _scalar(name, column.modifier)


def element_type(spark_type: str) -> str | None:
    """Return the element type of an array type, and None for any other type."""
    return spark_type[6:-1] if spark_type.startswith("array<") else None


def _scalar(name: str, modifier: int) -> str:
    if name == "numeric":
        return _numeric(modifier)
    if name == "bit":
        return "boolean" if modifier == 1 else STRING
    return _PLAIN.get(name, STRING)


def _numeric(modifier: int) -> str:
    """Postgres packs precision and scale into the modifier. The scale may be negative or exceed the precision."""
    if modifier < 4:
        return STRING
    precision = (modifier - 4) >> 16 & 0xFFFF
    scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if precision > _MOST_DIGITS or not 0 <= scale <= precision:
        return STRING
    return f"decimal({precision},{scale})"
