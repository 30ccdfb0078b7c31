"""What `remove` is about to do, as facts: shown before it is done, and told after. Nothing here does anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cdc.errors import RefusedError
from cdc.setup.steps import Action, Step, steps_as_json


class RemovalAction(Action):
    DROP_SLOT = "drop_slot", "drop slot {name}"
    DROP_PUBLICATION = "drop_publication", "drop publication {name}"
    ALTER_PUBLICATION = "alter_publication", "take {name} out of the publication"
    UPDATE_RECORDS = "update_records", "strike {name} from capture's records"
    CATCH_UP = "catch_up", "publish what slot {name} still holds, so that nothing comes after the topic is gone"
    DELETE_TOPIC = "delete_topic", "delete topic {name} with all that it holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """`refusal` is why it cannot be done now; `left` are topics that stay; `notes` is what a person should know."""

    steps: tuple[Step, ...]
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: RefusedError | None = None

    def lines(self) -> Iterator[str]:
        yield from (f"  - {step}" for step in self.steps)
        yield from (f"  Left: topic {name}" for name in self.left)
        yield from (f"  Note: {note}" for note in self.notes)

    def as_json(self, state: str, done: Collection[Step]) -> dict[str, Any]:
        return {
            "state": state,
            "steps": steps_as_json(self.steps, done),
            "left": list(self.left),
            "notes": list(self.notes),
            "refusal": None if self.refusal is None else str(self.refusal),
        }


class Removal(Protocol):
    """Carrying out what is left of a plan is always safe: a removal that was interrupted is begun again."""

    def plan(self) -> RemovalPlan: ...

    def carry_out(self, plan: RemovalPlan, done: Callable[[Step], None]) -> None:
        """Calls `done` after each step of the plan."""
        ...
