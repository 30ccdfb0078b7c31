"""The config as plain data and as TOML, for display. Secrets are masked, so neither form can be loaded again."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdc.config.settings import Location, is_setting
from cdc.secrets import SecretOptions, redact

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def as_plain(section: Any) -> dict[str, Any]:
    """Return nested dictionaries of the keys that have a value, defaults included."""
    values = {
        declared.name: getattr(section, declared.name)
        for declared in dataclasses.fields(section)
        if is_setting(declared)
    }
    return {name: plain_value(value) for name, value in values.items() if value is not None}


def as_toml(plain: Mapping[str, Any]) -> str:
    return "\n".join(_toml_lines(plain, ())).strip("\n")


def plain_value(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path | Location):
        return redact(str(value))
    if isinstance(value, SecretOptions):
        return value.masked()
    if isinstance(value, Mapping):
        return {str(name): plain_value(member) for name, member in value.items()}
    if isinstance(value, tuple):
        return [plain_value(member) for member in value]
    # Types with a `parse` method (a selector, a mask, a secret) are strings in the file.
    return str(value) if hasattr(value, "parse") else as_plain(value)


def _toml_lines(table: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[str]:
    scalars = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
    if scalars:
        if place:
            yield ""
            yield f"[{'.'.join(map(_toml_key, place))}]"
        for name, value in scalars.items():
            yield f"{_toml_key(name)} = {toml_value(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, (*place, name))


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # JSON's strings, numbers and booleans are valid TOML, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
