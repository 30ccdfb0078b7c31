"""docs/design/code-tour.md: every path that it names exists, and every name in a line is in that line's file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TOUR = ROOT / "docs" / "design" / "code-tour.md"
_CODE = re.compile(r"`([^`]+)`")
_PATH = re.compile(r"[\w./]+/[\w./]*|[\w/]+\.pyx?")
_STEP = re.compile(r"^(\d+)\. `([^`]+)`:(.*)$", re.MULTILINE)
# A step may also name a topic, a statement of SQL, a file that another step has opened, pyproject.toml, or an option.
_OTHER = re.compile(r"__[a-z]+|--[a-z]+|[a-z_]+\.py|pyproject\.toml|COPY")


def _steps() -> list[tuple[str, str]]:
    """Each step of each tour: its file, and what the line says about it."""
    return [(path, text) for _, path, text in _STEP.findall(TOUR.read_text(encoding="utf-8"))]


def test_every_path_in_the_tour_exists() -> None:
    """A reader can open every file and folder that the tour names, by its path from the repository's root."""
    named = {text for text in _CODE.findall(TOUR.read_text(encoding="utf-8")) if "/" in text and _PATH.fullmatch(text)}
    assert len(named) > 100
    assert not {path for path in named if not (ROOT / path).exists()}


def test_every_name_in_a_step_is_in_its_file() -> None:
    """A function or class that a step names is defined or used in the step's file."""
    missing = [
        f"{path}: {name}"
        for path, text in _steps()
        for name in _CODE.findall(text)
        if not _OTHER.fullmatch(name)
        and not _PATH.fullmatch(name)
        and not re.search(rf"\b{re.escape(name)}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not missing


def test_every_line_of_a_tour_is_one_numbered_step() -> None:
    """The steps of a tour are numbered from 1 without a gap, so that the text may refer to a step by its number."""
    tour = TOUR.read_text(encoding="utf-8")
    for section in tour.split("\n## ")[1:-1]:
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 5
        assert len(numbers) == len(_STEP.findall(section))
