"""What `recover` has found and is about to do, as facts: shown before it is done, and told after. Does nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cdc.errors import RefusedError


class Action(Enum):
    """In the order in which they are carried out."""

    FENCE = "fence"
    NOTE = "note"
    CREATE_PUBLICATION = "create_publication"
    ADD_TO_PUBLICATION = "add_to_publication"
    SET_POLICY = "set_policy"
    REMAKE_TOPIC = "remake_topic"
    MAKE_TOPIC = "make_topic"
    DROP_SLOT = "drop_slot"
    CREATE_SLOT = "create_slot"
    UPDATE_RECORDS = "update_records"


_WORDS = {
    Action.FENCE: "cut off every producer of {name} that may still be at work",
    Action.NOTE: "write down that {name} is being recovered: capture does not start until that has ended",
    Action.CREATE_PUBLICATION: "create publication {name}",
    Action.ADD_TO_PUBLICATION: "put {name} into the publication",
    Action.SET_POLICY: "set cleanup.policy of topic {name} back",
    Action.REMAKE_TOPIC: "delete topic {name} with all that it holds, and make it anew",
    Action.MAKE_TOPIC: "make topic {name}",
    Action.DROP_SLOT: "drop slot {name}",
    Action.CREATE_SLOT: "create slot {name}",
    Action.UPDATE_RECORDS: "write down that {name} goes on from there, and that every table is to be copied again",
}


@dataclass(frozen=True, slots=True)
class Step:
    action: Action
    name: str

    def __str__(self) -> str:
        return _WORDS[self.action].format(name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """`problems`: what capture would refuse. `refusal`: why it cannot be mended now."""

    problems: tuple[str, ...]
    tables: tuple[str, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    refusal: RefusedError | None = None

    def lines(self) -> Iterator[str]:
        yield from (f"  {number}. {step}" for number, step in enumerate(self.steps, 1))
        yield f"  Afterwards `tailrace run` copies {_count(self.tables)} again, beside the stream:"
        yield f"    {', '.join(self.tables)}"
        yield from (f"  Note: {note}" for note in self.notes)

    def as_json(self, state: str, done: Collection[Step]) -> dict[str, Any]:
        return {
            "state": state,
            "problems": list(self.problems),
            "steps": [{"action": step.action.value, "name": step.name, "done": step in done} for step in self.steps],
            "tables": list(self.tables),
            "notes": list(self.notes),
            "refusal": None if self.refusal is None else str(self.refusal),
        }


def _count(tables: Collection[str]) -> str:
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"
