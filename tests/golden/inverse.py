"""From the documented JSON form back to Postgres's input: the proof that no form loses anything."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from cdc.encoding.values import TypeInfo

_ISO = re.compile(r"([+-]?\d{4,})(-\d\d-\d\d)(?:T([\d:.]+))?Z")


def to_input(type_info: TypeInfo, typmod: int, value: Any) -> str:
    """What Postgres reads as this value; not for NULL."""
    if type_info.kind == "domain" and type_info.base is not None:
        return to_input(type_info.base, type_info.base_typmod, value)
    if type_info.kind == "array" and type_info.base is not None and isinstance(value, list):
        return _array(type_info.base, typmod, value, type_info.delimiter)
    if type_info.name == "bit":
        return _bits(value, typmod)
    name = type_info.name.rpartition(".")[2]
    return _INVERSES.get(name, _as_it_stands)(value)


def _array(element: TypeInfo, typmod: int, values: list[Any], delimiter: str) -> str:
    parts = [_element(element, typmod, value, delimiter) for value in values]
    return "{" + delimiter.join(parts) + "}"


def _element(element: TypeInfo, typmod: int, value: Any, delimiter: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array(element, typmod, value, delimiter)
    text = to_input(element, typmod, value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _as_it_stands(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _calendar(value: str) -> str:
    match = _ISO.fullmatch(value)
    if match is None:
        return value  # infinity
    year = int(match[1])
    date = f"{year if year > 0 else 1 - year:04d}{match[2]}"
    return date + (f" {match[3]}+00" if match[3] else "") + (" BC" if year <= 0 else "")


def _bits(value: bool | str, length: int) -> str:
    if isinstance(value, bool):
        return str(int(value))
    number = int.from_bytes(base64.b64decode(value), "little")
    return f"{number:0{length}b}"


def _hstore(value: str) -> str:
    def quoted(text: str | None) -> str:
        return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return ", ".join(f"{quoted(key)}=>{quoted(held)}" for key, held in json.loads(value).items())


_INVERSES: dict[str, Callable[[Any], str]] = {
    "bytea": lambda value: "\\x" + base64.b64decode(value).hex(),
    "date": _calendar,
    "timestamp": _calendar,
    "timestamptz": _calendar,
    "point": lambda value: f"({value['x']},{value['y']})",
    "hstore": _hstore,
}
