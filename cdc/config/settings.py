"""Declaration of a config key: a dataclass field whose metadata holds its description and its checks.

`about(doc, *checks)` goes into `field(metadata=…)`. The reader, `tailrace config` and the test of
docs/reference/config.md all read these declarations; there is no second list of keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import Field
from typing import Any
from urllib.parse import urlsplit

from cdc.secrets import Url

#: Returns what is wrong with a value, without quoting the value; None if it is valid.
Check = Callable[[Any], str | None]
#: `(key, what is wrong)`, from a rule that covers several keys of a section. The key is "" for the section itself.
Problem = tuple[str, str]


class Location(str):
    """A folder (relative to the config file's folder) or a URI such as `s3://bucket/path`."""

    __slots__ = ()


def about(doc: str, *checks: Check, names: Check | None = None, formerly: str | None = None) -> dict[str, Any]:
    """Return the metadata of a key's field.

    `names` checks the names that users choose themselves (`[stores.NAME]`). `formerly` is the key's name before 0.2.0:
    a file that still has it gets an error that names the new key.
    """
    return {"doc": doc, "checks": checks, "names": names, "formerly": formerly}


def is_setting(declared: Field[Any]) -> bool:
    return "doc" in declared.metadata


def at_least(least: float) -> Check:
    return lambda value: None if value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    return lambda value: None if least <= value <= most else f"must be between {least} and {most}"


def matching(pattern: str, rule: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: None if compiled.fullmatch(value) else rule


def not_empty(value: Any) -> str | None:
    return None if value else "must not be empty"


def scheme(*schemes: str) -> Check:
    expected = " or ".join(f"{name}://…" for name in schemes)

    def check(url: Url) -> str | None:
        try:
            parts = urlsplit(url.reveal())
            good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
        except ValueError:  # its message quotes the URL
            good = False
        return None if good else f"must be a URL {expected} with a host"

    return check


def problems_of(section: Any) -> list[Problem]:
    """Return what the section's rules between keys report. A section without such rules has no `problems` method."""
    rules = getattr(section, "problems", None)
    return list(rules()) if rules is not None else []
