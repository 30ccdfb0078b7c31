"""Derives a table's index mapping from `__schema`. Elasticsearch never guesses fields from documents. Pure: no I/O.

Whatever the mapping, the document holds the row as it was in the event. A mapping only decides what can be searched. So
derived mappings tolerate values that Elasticsearch cannot represent (`infinity`, `NaN`): the document keeps and returns
such a value, but a range query does not find it. An override from the config is used unchanged, and a row that does not
fit it is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.config.tables import ColumnName
from cdc.stores.contract import TableSchema
from sinks.elasticsearch.naming import OWN, field_name

Field = dict[str, Any]

META_FORMAT: Final = 1
# The longest text, in characters, whose UTF-8 encoding always fits into a Lucene term (32,766 bytes).
_LONGEST_TERM: Final = 8191
_DOUBLE_DIGITS: Final = 15

_KEYWORD: Final[Field] = {"type": "keyword", "ignore_above": _LONGEST_TERM}
_TEXT: Final[Field] = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
_KEPT_ONLY: Final[Field] = {"type": "keyword", "index": False, "doc_values": False}
_OBJECT: Final[Field] = {"type": "object", "enabled": False}
_DATE: Final[Field] = {
    "type": "date",
    "format": "strict_date_optional_time||uuuu-MM-ddXXX",
    "ignore_malformed": True,
}


def _number(kind: str) -> Field:
    return {"type": kind, "ignore_malformed": True}


_BY_TYPE: Final[dict[str, Field]] = {
    "bool": {"type": "boolean", "ignore_malformed": True},
    "int2": _number("short"),
    "int4": _number("integer"),
    "int8": _number("long"),
    "oid": _number("long"),
    "float4": _number("float"),
    "float8": _number("double"),
    "money": _number("double"),
    "date": _DATE,
    "timestamp": _DATE,
    "timestamptz": _DATE,
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "citext": _TEXT,
    "xml": _TEXT,
    "json": _KEPT_ONLY,
    "jsonb": _KEPT_ONLY,
    "bytea": _KEPT_ONLY,
    "hstore": _KEPT_ONLY,
    "point": _OBJECT,
}
_OF_EXTENSIONS: Final = ("citext", "hstore")

OWN_FIELD: Final[Field] = {
    # Most have doc values only, without an index: only sweeps query them, and a sweep reads every document anyway.
    "properties": {
        "position": {"type": "long", "index": False},
        "seq": {"type": "long", "index": False},
        "deleted": {"type": "boolean"},
        "deleted_ms": {"type": "date", "format": "epoch_millis", "index": False},
    }
}


def fields_of(table: TableSchema, overrides: Mapping[ColumnName, Mapping[str, str]]) -> dict[str, Field]:
    """Return the mapping of every column, by the field's name in the document."""
    return {
        field_name(column.name): _overridden(overrides.get(ColumnName(table.schema, table.table, column.name)))
        or _derived(column.type, column.modifier)
        for column in table.columns
    }


def mappings(table: TableSchema, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the complete mapping of a table's index."""
    return {"dynamic": False, "_meta": meta(table, fields), "properties": {OWN: OWN_FIELD, **fields}}


def meta(table: TableSchema, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the description of the table that is stored in the mapping's `_meta`.

    It repeats the fields, because the server returns mappings in a different spelling than they were written in.
    """
    return {
        OWN: {
            "format": META_FORMAT,
            "schema": table.schema,
            "table": table.table,
            "topic": table.topic,
            "key": list(table.key),
            "fields": dict(fields),
        }
    }


def _derived(type_name: str, modifier: int) -> Field:
    """Return the mapping of a Postgres type.

    A type with a schema, such as `public.mood`, is user-defined and becomes a keyword, unless it belongs to a
    well-known extension.
    """
    schema, _, base = type_name.rpartition(".")
    element = base.removeprefix("_")
    if schema and element not in _OF_EXTENSIONS:
        return _KEYWORD
    known = _BY_TYPE.get(element)
    if known is not None:
        return known
    if element == "numeric":
        return _numeric(modifier)
    if base == "bit" and modifier == 1:
        return _BY_TYPE["bool"]
    # Enums, uuid, ranges, network addresses, intervals and unknown types: a text that is matched as a whole.
    return _KEYWORD


def _numeric(modifier: int) -> Field:
    """Map to a double for range queries. If a double has too few digits, the subfield `.exact` allows exact matches."""
    precision = ((modifier - 4) >> 16) & 0xFFFF if modifier >= 4 else None
    if precision is not None and precision <= _DOUBLE_DIGITS:
        return _number("double")
    return {**_number("double"), "fields": {"exact": _KEYWORD}}


def _overridden(options: Mapping[str, str] | None) -> Field | None:
    """Return the mapping from the config. A dotted option such as `fields.raw.type` becomes nested objects again."""
    if options is None:
        return None
    field: Field = {}
    for name, value in options.items():
        *outer, last = name.split(".")
        place = field
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return field
