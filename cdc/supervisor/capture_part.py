"""Capture, and whether it is the one that publishes or stands by for another: the stores are fed where it publishes.

Two `tailrace run` of one config are a pair: the second one's capture waits for the slot, and its syncs wait with it.
Otherwise they would take the stores from each other. While the source is away nobody knows who has the slot, and both
feed: the later one has the stores, until the source is back and the one that leads takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.supervisor.part import Condition, Part, PartState

_STANDBY: Final = "standby"
_LEADS: Final = frozenset({"streaming", "waiting_for_first_copy"})
_CANNOT_SAY: Final = "retrying"  # the source does not answer; what is in the topics reaches the stores all the same


class CapturePart(Part):
    """`when_taken_over`: called from the thread that reads its lines, once it leads and it was not sure before."""

    def __init__(
        self, arguments: Sequence[str], *, when_taken_over: Callable[[], None] = lambda: None, **settings: Any
    ) -> None:
        super().__init__("capture", arguments, **settings)
        self._when_taken_over = when_taken_over
        self._stands_by: bool | None = None  # None: it has not said yet
        self._is_guess = False

    def may_feed_stores(self) -> bool:
        """Unless another capture has the slot; one that has ended has it no more than anybody else."""
        return not self._stands_by if self._stands_by is not None else self.exit_code is not None

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        name = event.get("event")
        if name == _STANDBY:
            self._stands_by, self._is_guess = True, False
        elif name in _LEADS:
            takes_over = self._stands_by or self._is_guess
            self._stands_by = self._is_guess = False
            if takes_over:
                self._when_taken_over()
        elif name == _CANNOT_SAY and self._stands_by is None:
            self._stands_by, self._is_guess = False, True

    def state(self) -> PartState:
        state = super().state()
        if state.condition is Condition.RUNNING and self._stands_by and not state.note:
            return replace(state, note="stands by: another capture has the slot")
        return state
