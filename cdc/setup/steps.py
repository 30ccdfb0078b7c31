"""The steps of a plan that is shown before it is carried out, as facts: what is done, to what. Nothing here does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Action(Enum):
    """The base of each plan's own actions: the name that programs get, and the words for people."""

    def __init__(self, code: str, words: str) -> None:
        self.code = code
        self.words = words


@dataclass(frozen=True, slots=True)
class Step:
    action: Action
    name: str

    def __str__(self) -> str:
        return self.action.words.format(name=self.name)


def steps_as_json(steps: Sequence[Step], done: Collection[Step]) -> list[dict[str, Any]]:
    return [{"action": step.action.code, "name": step.name, "done": step in done} for step in steps]
