"""Cuts what a person types into SQL statements. Text in, text out; knows quotes and comments, nothing of a server."""

from __future__ import annotations

import re

# Everything that may hide a semicolon, tried in this order at each place.
_HIDING = re.compile(
    r"""
      --[^\n]*
    | /\*
    | (?<![A-Za-z0-9_])[eE]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?<![A-Za-z0-9_$])\$(?P<tag>[A-Za-z_][A-Za-z0-9_]*)?\$.*?\$(?(tag)(?P=tag)|)\$
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING = re.compile(r"""['"]|/\*|(?<![A-Za-z0-9_$])\$([A-Za-z_][A-Za-z0-9_]*)?\$""")


def split_statements(text: str) -> tuple[list[str], str]:
    """The complete statements, without their semicolons, and what is typed after the last one."""
    statements: list[str] = []
    start = place = 0
    while place < len(text):
        after = _skip_hidden(text, place)
        if after is None:
            break  # a quote or comment is still open: more lines will come
        if after > place:
            place = after
        elif text[place] == ";":
            statements.append(text[start:place].strip())
            start = place = place + 1
        else:
            place += 1
    return [statement for statement in statements if statement], text[start:]


def is_blank(text: str) -> bool:
    """Whether there is nothing to run: spaces and comments only."""
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        after = _skip_hidden(text, place)
        if after is None or after == place or text[place] not in "-/":
            return False
        place = after
    return True


def _skip_hidden(text: str, place: int) -> int | None:
    """The place after the quote or comment that begins here; `place` itself where none does; None if it never ends."""
    found = _HIDING.match(text, place)
    if found and found.group() == "/*":
        return _comment_end(text, place)
    if found:
        return found.end()
    return None if _OPENING.match(text, place) else place


def _comment_end(text: str, place: int) -> int | None:
    """Block comments nest in Postgres."""
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[place:]):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return place + mark.end()
    return None
