"""Converts parsed TOML into the config's dataclasses. It collects every problem instead of stopping at the first.

A section's dataclass defines its keys (field names), types (annotations) and checks (`about(…)`). Problems never quote
a secret, and quote an interpolated value as the file has it (`${NAME}`).
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from cdc.config.settings import Check, Location, is_setting, problems_of
from cdc.config.stores import SyncedStoreConfig
from cdc.config.toml.interpolation import UNRESOLVED, Interpolated
from cdc.secrets import MASK, Secret, SecretOptions, redact

#: Path to a value: its keys, and the index of an array's member.
Place = tuple[str | int, ...]


class _Bad:
    """Placeholder for an invalid value, whose problem is already reported."""


BAD = _Bad()
_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "a table",
}


class ConfigReader:
    """Reads sections. Relative paths start from `folder`. `problems` collects what is wrong."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problems: list[tuple[Place, str]] = []

    def section(self, kind: type, table: object, place: Place) -> Any:
        """Return an instance of the dataclass `kind`, or BAD."""
        if not isinstance(table, dict):
            return self._wrong(place, "a table", table)
        known = settings_of(kind)
        for key in table.keys() - known.keys():
            self.problems.append(((*place, key), _unknown(key, known, "key" if place else "section")))
        values = {key: self._member(declared, hint, table, (*place, key)) for key, (declared, hint) in known.items()}
        given = {key: value for key, value in values.items() if value is not dataclasses.MISSING}
        if any(value is BAD for value in given.values()):
            return BAD
        section = kind(**given)
        self.problems += [((*place, key) if key else place, what) for key, what in problems_of(section)]
        return section

    def _member(self, declared: dataclasses.Field[Any], hint: Any, table: dict[str, Any], place: Place) -> Any:
        key = declared.name
        if key not in table:
            if declared.default is not dataclasses.MISSING or declared.default_factory is not dataclasses.MISSING:
                return dataclasses.MISSING
            if dataclasses.is_dataclass(hint):  # a required section: report what is missing inside it
                return self.section(typing.cast(type, hint), {}, place)
            self.problems.append((place, f"missing ({_lower_first(declared.metadata['doc'])})"))
            return BAD
        value = self._value(hint, table[key], place, declared.metadata["names"])
        return self._checked(value, declared.metadata["checks"], table[key], place)

    def _checked(self, value: Any, checks: tuple[Check, ...], raw: object, place: Place) -> Any:
        if value is BAD:
            return BAD
        for check in checks:
            wrong = check(value)
            if wrong is not None:
                return self._bad(place, wrong + _quoted(value, raw))
        return value

    def _value(self, hint: Any, raw: object, place: Place, names: Check | None = None) -> Any:  # noqa: PLR0911 - one line for each kind of type
        if raw is UNRESOLVED:
            return BAD
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._value(next(kind for kind in get_args(hint) if kind is not types.NoneType), raw, place)
        if origin is Literal:
            return self._choice(get_args(hint), raw, place)
        if origin is tuple:
            return self._array(get_args(hint)[0], raw, place)
        if origin is not None:
            return self._named(get_args(hint), raw, place, names)
        if hint is SyncedStoreConfig:
            return self._store(raw, place)
        if dataclasses.is_dataclass(hint) and not hasattr(hint, "parse"):
            return self.section(typing.cast(type, hint), raw, place)
        if hint is SecretOptions:
            return self._options(raw, place)
        return self._scalar(hint, raw, place)

    def _store(self, raw: object, place: Place) -> Any:
        if not isinstance(raw, dict):
            return self._wrong(place, "a table", raw)
        kinds = SyncedStoreConfig.kinds()
        if "kind" not in raw:
            return self._bad((*place, "kind"), f"missing (one of {', '.join(kinds)})")
        chosen = self._value(Literal[tuple(kinds)], raw["kind"], (*place, "kind"))
        return BAD if chosen is BAD else self.section(SyncedStoreConfig.of_kind(chosen), raw, place)

    def _choice(self, choices: tuple[str, ...], raw: object, place: Place) -> Any:
        if not isinstance(raw, str):
            return self._wrong(place, "a string", raw)
        if raw not in choices:
            return self._bad(place, f"must be one of {', '.join(choices)}{_quoted(raw, raw)}")
        return str(raw)

    def _array(self, hint: Any, raw: object, place: Place) -> Any:
        if not isinstance(raw, list):
            return self._wrong(place, "an array", raw)
        members = [self._value(hint, member, (*place, index)) for index, member in enumerate(raw)]
        for index, member in enumerate(members):
            if member is not BAD and member in members[:index]:
                self._bad((*place, index), f"is listed twice{_quoted(member, raw[index])}")
        return BAD if BAD in members else tuple(members)

    def _named(self, hints: tuple[Any, ...], raw: object, place: Place, names: Check | None) -> Any:
        """Return the members of a table whose keys the user chooses."""
        if not isinstance(raw, dict):
            return self._wrong(place, "a table", raw)
        key_hint, hint = hints
        members: dict[Any, Any] = {}
        bad = False
        for name, member in raw.items():
            here = (*place, name)
            key = self._checked(self._scalar(key_hint, name, here), (names,) if names else (), name, here)
            value = self._value(hint, member, here) if key is not BAD else BAD
            if value is not BAD and key in members:
                value = self._bad(here, "has the same name as a line above")
            bad = bad or value is BAD
            members[key] = value
        return BAD if bad else members

    def _options(self, raw: object, place: Place) -> Any:
        if not isinstance(raw, dict):
            return self._wrong(place, "a table", raw)
        members = {name: self._option(member, (*place, name)) for name, member in _flat(raw)}
        return BAD if BAD in members.values() else SecretOptions(members)

    def _option(self, raw: object, place: Place) -> Any:
        if raw is UNRESOLVED:
            return BAD
        if isinstance(raw, bool):
            return str(raw).lower()
        return str(raw) if isinstance(raw, str | int | float) else self._wrong(place, "a string", raw)

    def _scalar(self, hint: Any, raw: object, place: Place) -> Any:
        if hint in (int, float, bool):
            number = _number(hint, raw)
            return self._wrong(place, _NAMES[hint], raw) if number is None else number
        if not isinstance(raw, str):
            return self._wrong(place, "a string", raw)
        try:
            return self._parsed(hint, str(raw))
        except ValueError as error:
            return self._bad(place, f"{error}{_quoted(None, raw)}")

    def _parsed(self, hint: Any, text: str) -> Any:
        if hint is str:
            return text
        if hint is Path:
            return self._folder / Path(text).expanduser()
        if hint is Location:
            return Location(text if "://" in text or not text else self._folder / Path(text).expanduser())
        return hint.parse(text)

    def _wrong(self, place: Place, expected: str, raw: object) -> Any:
        got = next((name for kind, name in _NAMES.items() if isinstance(raw, kind)), "a date or time")
        if isinstance(raw, bool):
            got = "a boolean"
        return self._bad(place, f"expected {expected}, got {got}")

    def _bad(self, place: Place, what: str) -> Any:
        self.problems.append((place, what))
        return BAD


def settings_of(kind: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """Return the keys of a section: their fields and types."""
    hints = typing.get_type_hints(kind)
    declared = [member for member in dataclasses.fields(kind) if is_setting(member)]
    return {member.name: (member, hints[member.name]) for member in declared}


def _number(hint: type, raw: object) -> Any:
    """Return `raw` as the requested type, or None. Text from an environment variable may hold a number."""
    if isinstance(raw, Interpolated):
        if hint is bool:
            return {"true": True, "false": False}.get(raw.lower())
        try:
            return hint(raw)
        except ValueError:
            return None
    if isinstance(raw, bool):
        return raw if hint is bool else None
    if hint is float and isinstance(raw, int):
        return float(raw)
    return raw if isinstance(raw, hint) else None


def _quoted(value: object, raw: object) -> str:
    """Return `raw` for a message: a variable by its name, and nothing before an @, because it may be a password."""
    if isinstance(value, Secret) or isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return ""
    if not isinstance(raw, str):
        return f", got {raw}"
    shown = redact(raw.template if isinstance(raw, Interpolated) else raw)
    before, at, after = shown.rpartition("@")
    if at and "://" not in before:
        shown = f"{MASK}@{after}"
    return f", got {shown!r}"


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    # TOML parses `client.id = "x"` without quotes as nested tables. Join the names again.
    for name, member in table.items():
        if isinstance(member, dict):
            yield from _flat(member, f"{before}{name}.")
        else:
            yield f"{before}{name}", member


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _unknown(key: str, known: Mapping[str, tuple[dataclasses.Field[Any], Any]], what: str) -> str:
    """Say that the section has no such key, and which one the user may mean."""
    for name, (declared, _) in known.items():
        if declared.metadata["formerly"] == key:
            return f"this {what} is called {_shown(name, what)} since 0.2.0: rename it"
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown {what}" + (f"; did you mean `{near[0]}`?" if near else f"; known here: {', '.join(known)}")


def _shown(name: str, what: str) -> str:
    return f"[{name}]" if what == "section" else f"`{name}`"
