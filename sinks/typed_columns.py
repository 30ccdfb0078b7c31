"""Which typed column holds a Postgres column, in Spark SQL's words (docs/reference/types.md). Pure; the only such list.

A type has a typed column only if its ordinary values fit exactly. What does not fit such a column (infinity, a year
before Christ, NaN in a decimal, an array of arrays) is never changed: the row is parked, or the column is made `string`
by the config. Everything else is a `string` that holds the value as it is in the topic.
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
# Their elements' JSON may hold more than one value, or arrays of their own.
_ARRAYS_AS_TEXT: Final = frozenset({"point", "box"})


def spark_type(column: SchemaColumn) -> str:
    """`bigint`, `decimal(10,2)`, `array<date>`, `string`."""
    name = column.type
    # A type of the user's (`public.mood`) is known by name only: a string, whatever it is made of.
    if name.startswith("_") and "." not in name and name[1:] not in _ARRAYS_AS_TEXT:
        return f"array<{_scalar(name[1:], column.modifier)}>"
    return _scalar(name, column.modifier)


def element_type(spark_type: str) -> str | None:
    """Of an array; None of anything else."""
    return spark_type[6:-1] if spark_type.startswith("array<") else None


def _scalar(name: str, modifier: int) -> str:
    if name == "numeric":
        return _numeric(modifier)
    if name == "bit":
        return "boolean" if modifier == 1 else STRING
    return _PLAIN.get(name, STRING)


def _numeric(modifier: int) -> str:
    """Postgres packs precision and scale into the modifier; the scale may be negative or over the precision."""
    if modifier < 4:
        return STRING
    precision = (modifier - 4) >> 16 & 0xFFFF
    scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if precision > _MOST_DIGITS or not 0 <= scale <= precision:
        return STRING
    return f"decimal({precision},{scale})"
