"""Converts the values of a column, as an event's JSON has them, to an Arrow array of the column's Spark type. Pure.

The rule is that of the warehouse (docs/reference/types.md): a value that the type cannot hold is never changed. Here it
becomes NULL. The column's exact text is available as `string`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from itertools import accumulate
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sinks.typed_columns import STRING, element_type

_PLAIN: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
    STRING: pa.string(),
}
# Only the years 0001 to 9999 are typed (see `spark_jobs.shape.typed_rows`). Arrow itself accepts no sign before a year.
_FIRST_DAY: Final = date(1, 1, 1)
_FIRST_INSTANT: Final = datetime(1, 1, 1)  # noqa: DTZ001 - a timestamp without time zone
_FIRST: Final = {
    "date": pa.scalar(_FIRST_DAY, pa.date32()),
    "timestamp": pa.scalar(_FIRST_INSTANT.replace(tzinfo=timezone.utc), _PLAIN["timestamp"]),
    "timestamp_ntz": pa.scalar(_FIRST_INSTANT, _PLAIN["timestamp_ntz"]),
}
_UNFIT: Final = (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError)

Values = Sequence[Any]


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a Spark type of `sinks.typed_columns`."""
    element = element_type(kind)
    if element is not None:
        return pa.list_(arrow_type(element))
    if kind.startswith("decimal("):
        precision, scale = kind[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _PLAIN[kind]


def arrow_array(kind: str, values: Values) -> pa.Array:
    """Convert values of JSON (str, int, float, bool, None, lists of them) or their texts. Unfit ones become NULL."""
    try:
        return _converter(kind)(kind, values)
    except _UNFIT:
        if len(values) == 1:
            return pa.nulls(1, arrow_type(kind))
        # Nearly every value fits, so bisection finds the others with few conversions.
        middle = len(values) // 2
        return pa.concat_arrays([arrow_array(kind, values[:middle]), arrow_array(kind, values[middle:])])


def _converter(kind: str) -> Callable[[str, Values], pa.Array]:
    if kind.startswith("array<"):
        return _lists
    if kind.startswith("decimal("):
        return _parsed
    return _CONVERTERS.get(kind, _native)


def _native(kind: str, values: Values) -> pa.Array:
    try:
        return pa.array(values, arrow_type(kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return _parsed(kind, [each if each is None else str(each) for each in values])


def _parsed(kind: str, values: Values) -> pa.Array:
    return pa.array(values, pa.string()).cast(arrow_type(kind))


def _floats(kind: str, values: Values) -> pa.Array:
    return pa.array([each if each is None else float(each) for each in values], arrow_type(kind))


def _bytes(_: str, values: Values) -> pa.Array:
    decoded = [each if each is None else b64decode(each, validate=True) for each in values]
    return pa.array(decoded, pa.binary())


def _times(kind: str, values: Values) -> pa.Array:
    """Convert dates and timestamps. All of their texts end in `Z`, which says nothing unless it is a `timestamptz`."""
    texts = pa.array(values, pa.string())
    if kind != "timestamp":
        texts = pc.utf8_rtrim(texts, characters="Z")
    found = texts.cast(arrow_type(kind))
    first = pc.min(found)
    if first.is_valid and pc.less(first, _FIRST[kind]).as_py():
        raise ValueError("a year before 1")
    return found


def _lists(kind: str, values: Values) -> pa.Array:
    """Convert arrays. One that loses an element is unfit as a whole, like an array of arrays."""
    lists = [_elements(each) for each in values]
    flat = [element for each in lists if each is not None for element in each]
    if any(type(each) is list for each in flat):
        raise TypeError("an array of arrays")
    elements = arrow_array(element_type(kind) or STRING, flat) if flat else pa.nulls(0, arrow_type(kind).value_type)
    if elements.null_count != sum(each is None for each in flat):
        raise ValueError("an element does not fit")
    sizes = [0 if each is None else len(each) for each in lists]
    ends = pa.array([0, *accumulate(sizes)], pa.int32())
    mask = pa.array([each is None for each in lists], pa.bool_())
    return pa.ListArray.from_arrays(ends, elements, mask=mask)


def _elements(value: Any) -> list[Any] | None:
    """Return the elements of a list or of the text of a JSON array. Raises for another text (`[0:1]={…}`)."""
    if value is None or type(value) is list:
        return value
    return [text_of(each) if bytes(each)[:1] != b"[" else [] for each in _decode_elements(value)]


_decode_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def text_of(raw: msgspec.Raw) -> str | None:
    """Return a JSON value as text: the content of a string, the JSON spelling of any other value; None for null."""
    data = bytes(raw)
    if data[:1] == b'"':
        return _decode_text(data)
    return None if data == b"null" else data.decode()


_CONVERTERS: Final[dict[str, Callable[[str, Values], pa.Array]]] = {
    "float": _floats,
    "double": _floats,
    "date": _times,
    "timestamp": _times,
    "timestamp_ntz": _times,
    "binary": _bytes,
}
