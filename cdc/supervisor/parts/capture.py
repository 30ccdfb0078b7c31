"""The capture process as a part, and its role: whether it holds the slot (leads) or stands by for another capture.

Several `tailrace run` of one config form a group. The capture that acquires the slot leads, and its supervisor runs the
other parts. The captures of the others wait for the slot, and their other parts wait too. While capture cannot reach
the source, its role is unknown. Its supervisor then runs the other parts anyway, so that records that are already in
the topics reach the stores, until a supervisor that leads takes the stores over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

from cdc.supervisor.parts.part import PartState, PipelinePart, ProcessCondition

_STANDBY: Final = "standby"
_LEADS: Final = frozenset({"streaming", "waiting_for_initial_snapshot"})
_CANNOT_SAY: Final = "retrying"


class _Role(Enum):
    UNSAID = auto()  # capture has just started and has not reported its role
    LEADS = auto()
    STANDS_BY = auto()
    UNKNOWN = auto()  # capture does not hold the slot; another capture may hold it or not


class CapturePart(PipelinePart):
    """The capture process. Its role comes from the events in its log."""

    def __init__(self, arguments: Sequence[str], **settings: Any) -> None:
        super().__init__("capture", arguments, when_ended=self._forget_role, **settings)
        self._role = _Role.UNSAID

    def leads(self) -> bool:
        """Return whether capture holds the slot."""
        return self._role is _Role.LEADS

    def may_lead(self) -> bool:
        """Return whether capture holds the slot, or it is unknown which capture does."""
        return self._role in (_Role.LEADS, _Role.UNKNOWN)

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        name = event.get("event")
        if name == _STANDBY:
            self._role = _Role.STANDS_BY
        elif name in _LEADS:
            self._role = _Role.LEADS
        elif name == _CANNOT_SAY:
            self._forget_role()

    def state(self) -> PartState:
        state = super().state()
        if state.condition is ProcessCondition.RUNNING and self._role is _Role.STANDS_BY and not state.note:
            return replace(state, note="stands by: another capture has the slot")
        return state

    def _forget_role(self) -> None:
        """Set the role to unknown, because capture has ended or retries.

        A standby stays a standby, because the capture that leads may still run.
        """
        if self._role is not _Role.STANDS_BY:
            self._role = _Role.UNKNOWN
