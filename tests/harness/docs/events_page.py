"""Reads docs/reference/events.md: its sections, tables and annotated JSON, for tests that compare it with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

EVENTS: Final = Path(__file__).parents[3] / "docs" / "reference" / "events.md"

_BLOCK = re.compile(r"```jsonc\n(.*?)```", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)//.*$", re.MULTILINE)


def section(title: str, path: Path = EVENTS) -> str:
    """The text under a heading, up to the next one of its rank or higher."""
    heading = re.search(rf"^(#+) {re.escape(title)}$", path.read_text(), re.MULTILINE)
    assert heading is not None, f"{path.name} has no section {title!r}"
    rest = path.read_text()[heading.end() :]
    following = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def example(title: str) -> Any:
    """The first annotated JSON of a section, without its comments."""
    block = _BLOCK.search(section(title))
    assert block is not None, f"section {title!r} has no block of jsonc"
    return json.loads(_COMMENT.sub("", block[1]))


def first_column(title: str) -> list[str]:
    """The first column of the section's table, without its header."""
    rows = re.findall(r"^\| (.+?) \|", section(title), re.MULTILINE)
    return [row for row in rows[1:] if not row.startswith("---")]
