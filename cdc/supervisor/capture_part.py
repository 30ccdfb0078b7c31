"""Capture, and whether it publishes or stands by for another: the pipeline's work is done where it leads.

Two `tailrace run` of one config are a pair: the second one's capture waits for the slot, and the other parts wait with
it. While capture cannot reach the source nobody knows who has the slot, and what is in the topics reaches the stores
all the same: such a pipeline feeds them, until one that leads takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

from cdc.supervisor.part import PartState, PipelinePart, ProcessCondition

_STANDBY: Final = "standby"
_LEADS: Final = frozenset({"streaming", "waiting_for_first_copy"})
_CANNOT_SAY: Final = "retrying"


class _Role(Enum):
    UNSAID = auto()  # it has only just begun
    LEADS = auto()
    STANDS_BY = auto()
    UNKNOWN = auto()  # it has no hold of the slot now; perhaps nobody has


class CapturePart(PipelinePart):
    def __init__(self, arguments: Sequence[str], **settings: Any) -> None:
        super().__init__("capture", arguments, when_ended=self._let_go, **settings)
        self._role = _Role.UNSAID

    def leads(self) -> bool:
        """For certain."""
        return self._role is _Role.LEADS

    def may_lead(self) -> bool:
        """Unless another capture has the slot; one that has ended has it no more than anybody else."""
        return self._role in (_Role.LEADS, _Role.UNKNOWN)

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        name = event.get("event")
        if name == _STANDBY:
            self._role = _Role.STANDS_BY
        elif name in _LEADS:
            self._role = _Role.LEADS
        elif name == _CANNOT_SAY:
            self._let_go()

    def state(self) -> PartState:
        state = super().state()
        if state.condition is ProcessCondition.RUNNING and self._role is _Role.STANDS_BY and not state.note:
            return replace(state, note="stands by: another capture has the slot")
        return state

    def _let_go(self) -> None:
        """Whoever stood by goes on standing by: the other one may be well."""
        if self._role is not _Role.STANDS_BY:
            self._role = _Role.UNKNOWN
