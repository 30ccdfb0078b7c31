"""Types of computed fields: the JSON form of each Spark type, and the Postgres type that a table's schema uses for it.

The forms are those of docs/reference/types.md, so that computed fields look like captured columns in a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, CharType, DataType, DecimalType, StringType, VarcharType

from cdc.stores.contract import SchemaColumn as TableColumn

_PLAIN: Final = {
    "boolean": "bool",
    "tinyint": "int2",
    "smallint": "int2",
    "int": "int4",
    "bigint": "int8",
    "float": "float4",
    "double": "float8",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def column_of(name: str, kind: DataType) -> TableColumn | None:
    """Return the column that holds values of a Spark type; None if stores have no form for that type."""
    if isinstance(kind, ArrayType):
        element = column_of(name, kind.elementType)
        if element is None or isinstance(kind.elementType, ArrayType):
            return element  # as in Postgres, where `_int4` does not include the number of dimensions
        return TableColumn(name, f"_{element.type}", element.modifier)
    if isinstance(kind, DecimalType):
        return TableColumn(name, "numeric", ((kind.precision << 16) | kind.scale) + 4)
    if isinstance(kind, StringType | CharType | VarcharType):
        return TableColumn(name, "text", -1)
    plain = _PLAIN.get(kind.simpleString())
    return None if plain is None else TableColumn(name, plain, -1)


def json_form(value: Column, kind: DataType) -> Column:
    """Convert a value so that `to_json` writes it in the form of docs/reference/types.md."""
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return f.transform(value, lambda each: json_form(each, element))
    if isinstance(kind, DecimalType):
        return value.cast("string")
    forms: dict[str, Callable[[], Column]] = {
        "binary": lambda: f.base64(value),
        "date": lambda: f.concat(value.cast("string"), f.lit("Z")),
        "timestamp": lambda: f.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"),
        "timestamp_ntz": lambda: f.concat(f.replace(value.cast("string"), f.lit(" "), f.lit("T")), f.lit("Z")),
    }
    return forms.get(kind.simpleString(), lambda: value)()
