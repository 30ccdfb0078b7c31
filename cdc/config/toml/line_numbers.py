"""Line numbers of keys in a TOML file, for error messages only. It scans line starts and is not a second parser.

A key that it cannot find (such as one in an inline table) gets the line of the enclosing key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PART = r'(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|\'[^\']*\')'
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_PARTS = re.compile(_PART)
_LONG_QUOTES = ('"""', "'''")


def line_of(text: str, place: tuple[str | int, ...]) -> int | None:
    """Return the line of `place`, or of the nearest enclosing key."""
    lines = _lines_by_key(text)
    keys = tuple(str(part) for part in place if isinstance(part, str))
    return next((lines[keys[:size]] for size in range(len(keys), 0, -1) if keys[:size] in lines), None)


def _lines_by_key(text: str) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, line in _lines_outside_long_strings(text):
        header = _HEADER.match(line)
        key = None if header else _KEY.match(line)
        if header is not None:
            section = _split(header[1])
            found.setdefault(section, number)
        elif key is not None:
            parts = _split(key[1])
            for size in range(1, len(parts) + 1):
                found.setdefault((*section, *parts[:size]), number)
    return found


def _lines_outside_long_strings(text: str) -> Iterator[tuple[int, str]]:
    inside: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if inside is None:
            yield number, line
        for quotes in _LONG_QUOTES:
            if line.count(quotes) % 2 and inside in (None, quotes):
                inside = None if inside else quotes


def _split(dotted: str) -> tuple[str, ...]:
    parts: list[str] = _PARTS.findall(dotted)
    return tuple(part[1:-1].replace('\\"', '"').replace("\\\\", "\\") if part[0] in "\"'" else part for part in parts)
