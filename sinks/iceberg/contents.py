"""Rows as a stranger reads them, through pyiceberg, given back in the JSON forms of docs/reference/types.md.

For tests and audit: what is typed here must be what was in the topic.
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

# What a string column holds is JSON of its own where the topic has no JSON string.
_JSON_TEXTS: Final = frozenset({"point"})
# Every float of at least this size is told by its first six digits, if it was written with so few.
_LEAST_NORMAL: Final = 2.0**-126


def count_rows(table: Table) -> int:
    with iceberg_errors():
        return int(table.scan().count())


def stored_rows(found: Table, table: TableSchema, columns: list[WarehouseColumn]) -> Iterator[StoredRow]:
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
    """By the source's names. `kinds`: the columns' types in the warehouse, by their names there."""
    sources = {column.name: column for column in table.columns}
    return {
        column.source: json_value(kinds[column.name], sources[column.source], row[column.name]) for column in columns
    }


def json_value(kind: str, column: SchemaColumn, value: Any) -> Any:
    """What stands in the topic for a typed value."""
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
    """A text that holds JSON of its own; anything else is a text."""
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
    """The number that a `real` was written as: Python shows all digits of the double that stands for it."""
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
    """Without a zone, zeros at the end of the fraction are left out."""
    return _timestamp(value, 6)[:-1].rstrip("0").rstrip(".") + "Z" if value.microsecond else _timestamp(value, 0)


_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "decimal": lambda value: f"{value:f}",
    "float": lambda value: _float(_shortest(value)),
    "double": _float,
    "date": lambda value: f"{value.isoformat()}Z",
    "timestamp_ntz": _trimmed,
    "binary": lambda value: base64.b64encode(value).decode(),
}
