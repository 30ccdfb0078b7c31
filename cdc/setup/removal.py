"""The plan of `remove`: data to print before and after the removal. This module carries nothing out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cdc.errors import RefusedError
from cdc.setup.steps import Action, Step, steps_as_json


class RemovalAction(Action):
    """A kind of step of a removal."""

    DROP_SLOT = "drop_slot", "drop slot {name}"
    DROP_PUBLICATION = "drop_publication", "drop publication {name}"
    ALTER_PUBLICATION = "alter_publication", "remove {name} from the publication"
    UPDATE_RECORDS = "update_records", "remove {name} from capture's records"
    CATCH_UP = "catch_up", "publish the changes that slot {name} still holds, so that none recreates the topic"
    DELETE_TOPIC = "delete_topic", "delete topic {name} and its content"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """The steps of a removal. `left` are topics that remain, `notes` are hints for the operator.

    `refusal` is the reason why the plan cannot be carried out now.
    """

    steps: tuple[Step, ...]
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: RefusedError | None = None

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        yield from (f"  - {step}" for step in self.steps)
        yield from (f"  Left: topic {name}" for name in self.left)
        yield from (f"  Note: {note}" for note in self.notes)

    def as_json(self, state: str, done: Collection[Step]) -> dict[str, Any]:
        """Return the plan as JSON. `done` holds the steps that have been carried out."""
        return {
            "state": state,
            "steps": steps_as_json(self.steps, done),
            "left": list(self.left),
            "notes": list(self.notes),
            "refusal": None if self.refusal is None else str(self.refusal),
        }


class Removal(Protocol):
    """A removal that can be planned and carried out. After an interruption it is safe to plan and run it again."""

    def plan(self) -> RemovalPlan: ...

    def carry_out(self, plan: RemovalPlan, done: Callable[[Step], None]) -> None:
        """Carry out the steps of `plan`, and call `done` after each."""
        ...
