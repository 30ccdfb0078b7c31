"""One Python value for one Postgres value, whichever way it came: as the server's text, or as the topic's JSON.

Two values are the same exactly if their canonical forms are equal, so nothing is rounded here. JSON of a form that
docs/reference/types.md does not allow becomes `Malformed`, which equals nothing.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.harness.comparison import literals, temporal
from tests.harness.postgres.catalog import PgType


@dataclass(frozen=True, slots=True, eq=False)
class Malformed:
    """A JSON value that its type does not allow; reports show it unchanged."""

    value: object
    reason: str


def from_text(type_: PgType, text: str | None) -> Any:
    """The canonical value of a type's output text under the comparer's session settings."""
    if text is None:
        return None
    if type_.element is not None:
        bounds, elements = literals.array(text, type_.delimiter)
        inner = type_.element
        return bounds, _each(elements, lambda element: from_text(inner, element))
    if type_.name == "bit" and type_.typmod == 1:
        return text == "1"
    return _FROM_TEXT.get(type_.name, str)(text)


def from_json(type_: PgType, value: Any) -> Any:
    """The canonical value of JSON from the topic, parsed with `loads` below so that no digit is lost."""
    if value is None:
        return None
    if type_.element is not None:
        return _array_from_json(type_, type_.element, value)
    expected, read = _FROM_JSON.get(type_.name, (str, str))
    if type_.name == "bit" and type_.typmod == 1:
        expected, read = bool, bool
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        return Malformed(value, f"{type_.name} as JSON {type(value).__name__}")
    try:
        return read(value)
    except ValueError as unreadable:
        return Malformed(value, str(unreadable))


@dataclass(frozen=True, slots=True)
class JsonNumber:
    """A JSON number with a point or an exponent, as written."""

    text: str

    def __float__(self) -> float:
        return float(self.text)


def loads(text: str | bytes) -> Any:
    """Like `json.loads`, but fractions keep every digit."""
    return json.loads(text, parse_float=JsonNumber)


def _array_from_json(type_: PgType, inner: PgType, value: Any) -> Any:
    if isinstance(value, list):
        return "", _each(value, lambda element: from_json(inner, element))
    if isinstance(value, str) and value.startswith("["):  # unusual bounds have no JSON form: the server's text
        return from_text(type_, value)
    return Malformed(value, f"{type_.name} as JSON {type(value).__name__}")


def _each(elements: list[Any], convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(_each(item, convert) if isinstance(item, list) else convert(item) for item in elements)


def _float8(value: Any) -> str:
    number = float(value)
    return "NaN" if math.isnan(number) else repr(number)


def _float4(value: Any) -> str:
    number = float(value)
    if math.isfinite(number):
        number = struct.unpack("f", struct.pack("f", number))[0]
    return _float8(number)


def _json(text: str) -> str:
    """White space does not count; digits, the order of keys and duplicate keys do."""
    return _rewritten(text, _Pairs)


def _jsonb(text: str) -> str:
    """jsonb keeps no order of keys and no duplicates."""
    return _rewritten(text, lambda pairs: _Pairs(sorted(dict(pairs).items())))


def _rewritten(text: str, keep: Callable[[list[tuple[str, Any]]], Any]) -> str:
    return repr(json.loads(text, parse_float=JsonNumber, parse_int=JsonNumber, object_pairs_hook=keep))


class _Pairs(list[Any]):
    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in self) + "}"


def _money(text: str) -> str:
    """The amount alone: symbol and separators depend on the server's locale."""
    sign = "-" if text.startswith(("-", "(")) else ""
    return sign + "".join(character for character in text if character.isdigit() or character == ".")


def _hstore_json(text: str) -> tuple[tuple[str, str | None], ...]:
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ValueError(f"hstore as JSON {type(parsed).__name__}")
    return tuple(sorted(parsed.items()))


def _bits_json(text: str) -> int:
    return int.from_bytes(base64.b64decode(text, validate=True), "little")


def _point(text: str) -> tuple[str, ...]:
    return tuple(_float8(number) for number in text.strip("()").split(","))


def _point_json(value: dict[str, Any]) -> tuple[str, ...]:
    """Both coordinates, which the well-known binary beside them must repeat."""
    point = _float8(value["x"]), _float8(value["y"])
    binary = struct.unpack("<BIdd", base64.b64decode(value["wkb"], validate=True))
    if (1, 1, *point) != (*binary[:2], *map(_float8, binary[2:])):
        raise ValueError("wkb is another point")
    return point


def _bool_text(text: str) -> bool:
    return {"t": True, "f": False}[text]


_FROM_TEXT: Final[dict[str, Callable[[str], Any]]] = {
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float4": _float4,
    "float8": _float8,
    "bool": _bool_text,
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
    "date": temporal.days,
    "time": temporal.time_of_day,
    "timetz": temporal.time_and_zone,
    "timestamp": temporal.microseconds,
    "timestamptz": temporal.microseconds,
    "interval": temporal.interval,
    "json": _json,
    "jsonb": _jsonb,
    "money": _money,
    "bit": lambda text: int(text, 2),
    "point": _point,
    "hstore": lambda text: tuple(sorted(literals.hstore(text).items())),
}

_NUMBER: Final = (int, JsonNumber, str)  # NaN and the infinities are strings
_FROM_JSON: Final[dict[str, tuple[Any, Callable[[Any], Any]]]] = {
    "int2": (int, int),
    "int4": (int, int),
    "int8": (int, int),
    "oid": (int, int),
    "float4": (_NUMBER, _float4),
    "float8": (_NUMBER, _float8),
    "bool": (bool, bool),
    "bytea": (str, lambda text: base64.b64decode(text, validate=True)),
    "date": (str, temporal.days),
    "time": (str, temporal.time_of_day),
    "timetz": (str, temporal.time_and_zone),
    "timestamp": (str, temporal.microseconds),
    "timestamptz": (str, temporal.microseconds),
    "interval": (str, temporal.interval),
    "json": (str, _json),
    "jsonb": (str, _jsonb),
    "money": (str, _money),
    "bit": (str, _bits_json),
    "point": (dict, _point_json),
    "hstore": (str, _hstore_json),
}
