"""Parses Postgres's text form of arrays and hstore, apart from the product's parser, whose mistakes it must not
share.
"""

from __future__ import annotations

import re
from typing import Any, Final

_COMMA_TOKEN: Final = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)|,', re.DOTALL)
# `box` alone separates by semicolons, and has commas inside its elements.
_SEMICOLON_TOKEN: Final = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|((?:[^{};"\\]|\\.)+)|;', re.DOTALL)
_HSTORE_PAIR: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |\Z)', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


def array(text: str, delimiter: str = ",") -> tuple[str, list[Any]]:
    """The bounds (empty unless they are unusual), and the elements as text or None, nested as written."""
    bounds, body = "", text
    if text.startswith("["):
        bounds, _, body = text.partition("=")
    pattern = _COMMA_TOKEN if delimiter == "," else _SEMICOLON_TOKEN
    outermost: list[Any] = []
    open_lists = [outermost]
    at = 0
    while at < len(body):
        token = pattern.match(body, at)
        if token is None:
            raise ValueError(f"not an array: {text!r}")
        at = token.end()
        brace, quoted, plain = token.groups()
        if brace == "{":
            inner: list[Any] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif brace == "}":
            open_lists.pop()
        elif quoted is not None:
            open_lists[-1].append(_unescape(quoted))
        elif plain is not None:
            open_lists[-1].append(None if plain == "NULL" else _unescape(plain))
    return bounds, outermost[0]


def hstore(text: str) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        match = _HSTORE_PAIR.match(text, at)
        if match is None:
            raise ValueError(f"not an hstore: {text!r}")
        key, value = match.groups()
        pairs[_unescape(key)] = None if value is None else _unescape(value)
        at = match.end()
    return pairs


def _unescape(text: str) -> str:
    return _ESCAPE.sub(r"\1", text)
