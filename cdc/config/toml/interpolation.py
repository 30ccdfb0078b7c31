"""Replaces `${NAME}` in the config's strings with the value of an environment variable. `$${` stands for `${`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Interpolated(str):
    """A string with values from the environment. Messages show only `template`, the text in the file."""

    __slots__ = ("template",)
    template: str

    def __new__(cls, value: str, template: str) -> Interpolated:
        made = super().__new__(cls, value)
        made.template = template
        return made


#: Placeholder for a value with an unset variable, whose problem is already reported.
UNRESOLVED = object()


def interpolate(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return `text` with its references replaced, and the problems found."""
    if "${" not in text:
        return text, []
    problems: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, closed = match[1], match[2]
        if not closed or _NAME.fullmatch(name) is None:
            problems.append("has `${` without a variable's name and `}`; write `$${` for the two characters themselves")
        elif name not in environment:
            problems.append(f"environment variable {name} is not set")
        else:
            return environment[name]
        return ""

    return Interpolated(_REFERENCE.sub(replace, text), text), problems
