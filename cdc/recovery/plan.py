"""What `recover` has found and is about to do, as facts: shown before it is done, and told after. Does nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from cdc.errors import RefusedError
from cdc.setup.steps import Action, Step, steps_as_json


class RecoveryAction(Action):
    """In the order in which they are carried out."""

    FENCE = "fence", "fence every producer of {name} that may still write"
    NOTE = "note", "record that {name} is being recovered: capture does not start before the recovery has ended"
    CREATE_PUBLICATION = "create_publication", "create publication {name}"
    ADD_TO_PUBLICATION = "add_to_publication", "add {name} to the publication"
    SET_POLICY = "set_policy", "reset cleanup.policy of topic {name}"
    REMAKE_TOPIC = "remake_topic", "delete topic {name} with all its records, and create it again"
    MAKE_TOPIC = "make_topic", "create topic {name}"
    DROP_SLOT = "drop_slot", "drop slot {name}"
    CREATE_SLOT = "create_slot", "create slot {name}"
    UPDATE_RECORDS = (
        "update_records",
        "record that {name} continues from there, and that every table needs a snapshot",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """`problems`: what capture would refuse. `refusal`: why it cannot be repaired now."""

    problems: tuple[str, ...]
    tables: tuple[str, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    refusal: RefusedError | None = None

    def lines(self) -> Iterator[str]:
        yield from (f"  {number}. {step}" for number, step in enumerate(self.steps, 1))
        yield f"  Afterwards `tailrace run` streams, and takes a snapshot of {_count(self.tables)}:"
        yield f"    {', '.join(self.tables)}"
        yield from (f"  Note: {note}" for note in self.notes)

    def as_json(self, state: str, done: Collection[Step]) -> dict[str, Any]:
        return {
            "state": state,
            "problems": list(self.problems),
            "steps": steps_as_json(self.steps, done),
            "tables": list(self.tables),
            "notes": list(self.notes),
            "refusal": None if self.refusal is None else str(self.refusal),
        }


def _count(tables: Collection[str]) -> str:
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"
