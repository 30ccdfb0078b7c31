"""Reads rows through pyiceberg, as any reader would, and converts them back to the JSON of docs/reference/types.md.

For tests and the audit, which compare the typed values with those in the topic.
"""

from __future__ import annotations

import base64
import datetime
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.lsn import Version
from cdc.stores.contract import SchemaColumn, StoredRow, TableSchema
from cdc.stores.row_ids import row_id_of
from sinks.iceberg import naming
from sinks.iceberg.catalog import iceberg_errors
from sinks.iceberg.schemas import WarehouseColumn
from sinks.iceberg.tables import types_of
from sinks.typed_columns import element_type

if TYPE_CHECKING:
    from pyiceberg.table import Table

# Types whose value in the topic is not a JSON string. A string column holds the JSON text of their values.
_JSON_TEXTS: Final = frozenset({"point"})
# Above this size a `real` that was written with at most six digits is determined by them.
_LEAST_NORMAL: Final = 2.0**-126


def count_rows(table: Table) -> int:
    """Return the number of rows."""
    with iceberg_errors():
        return int(table.scan().count())


def stored_rows(found: Table, table: TableSchema, columns: list[WarehouseColumn]) -> Iterator[StoredRow]:
    """Yield all rows of a current table, in no order."""
    kinds = types_of(found, columns)
    there = {field.name for field in found.schema().fields}
    present = [column for column in columns if column.name in there]
    with iceberg_errors():
        for batch in found.scan().to_arrow_batch_reader():
            for row in batch.to_pylist():
                values = json_row(table, present, kinds, row)
                key = orjson.dumps({name: values[name] for name in table.key})
                yield StoredRow(row_id_of(key), Version(row[naming.POSITION], row[naming.SEQ]), orjson.dumps(values))


def json_row(
    table: TableSchema, columns: list[WarehouseColumn], kinds: Mapping[str, str], row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row's JSON values by the source's column names.

    `kinds` are the columns' types in the warehouse, by their names in the warehouse.
    """
    sources = {column.name: column for column in table.columns}
    return {
        column.source: json_value(kinds[column.name], sources[column.source], row[column.name]) for column in columns
    }


def json_value(kind: str, column: SchemaColumn, value: Any) -> Any:
    """Return the JSON value that the topic has for a typed value."""
    if value is None:
        return None
    element = element_type(kind)
    if element is not None:
        inner = column._replace(type=column.type[1:])
        return [json_value(element, inner, each) for each in value]
    if kind == "string" and (column.type in _JSON_TEXTS or column.type.startswith("_") or "." in column.type):
        return _loads(value)
    if kind == "timestamp":
        return _timestamp(value, 6 if column.modifier < 0 else column.modifier)
    form = _FORMS.get(kind.partition("(")[0])
    return form(value) if form is not None else value


def _loads(text: str) -> Any:
    """Decode a text that is a JSON object or array. Return any other text unchanged."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _shortest(value: float) -> float:
    """Return the shortest decimal number that denotes the same `real`.

    A `real` is read as a double, and Python would show all digits of that double.
    """
    if not math.isfinite(value):
        return value
    single = struct.pack("f", value)
    fewest = 6 if abs(value) >= _LEAST_NORMAL else 1
    return next(
        (each for digits in range(fewest, 10) if struct.pack("f", each := float(f"{value:.{digits}g}")) == single),
        value,
    )


def _timestamp(value: datetime.datetime, digits: int) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text[: 20 + digits] if digits else text[:19]}Z"


def _trimmed(value: datetime.datetime) -> str:
    """Format a timestamp without time zone, without trailing zeros in the fraction."""
    return _timestamp(value, 6)[:-1].rstrip("0").rstrip(".") + "Z" if value.microsecond else _timestamp(value, 0)


_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "decimal": lambda value: f"{value:f}",
    "float": lambda value: _float(_shortest(value)),
    "double": _float,
    "date": lambda value: f"{value.isoformat()}Z",
    "timestamp_ntz": _trimmed,
    "binary": lambda value: base64.b64encode(value).decode(),
}
