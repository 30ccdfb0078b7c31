"""The steps of a plan that a command prints before it carries them out: an action and the name of its object.

This module carries nothing out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Action(Enum):
    """The base class of a plan's actions: a code for JSON output, and a text for people."""

    def __init__(self, code: str, words: str) -> None:
        self.code = code
        self.words = words


@dataclass(frozen=True, slots=True)
class Step:
    """An action on the object called `name`."""

    action: Action
    name: str

    def __str__(self) -> str:
        return self.action.words.format(name=self.name)


def steps_as_json(steps: Sequence[Step], done: Collection[Step]) -> list[dict[str, Any]]:
    """Return the steps as JSON, each with whether it is in `done`."""
    return [{"action": step.action.code, "name": step.name, "done": step in done} for step in steps]
