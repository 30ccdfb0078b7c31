"""The sync process of several stores as a part.

If the sync of one store refuses, the next start leaves out only that store. A store that another sync has taken over is
left out too. When this supervisor's capture leads, the part takes that store back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cdc.supervisor.child import ExitReason
from cdc.supervisor.parts.part import EXIT_REFUSED, PartState, PipelinePart, ProcessCondition


class SyncPart(PipelinePart):
    """The sync process. `refused`: the stores whose sync refused, with the reasons. The other stores continue.

    `leads`: whether this supervisor's capture holds the slot.
    """

    def __init__(
        self,
        stores: Sequence[str],
        arguments: Sequence[str],
        *,
        name: str = "sync",
        leads: Callable[[], bool] = lambda: True,
        **settings: Any,
    ) -> None:
        super().__init__(name, arguments, **settings)
        self._stores = tuple(stores)
        self._leads = leads
        self._lost: set[str] = set()
        self.refused: dict[str, ExitReason] = {}

    @property
    def remaining(self) -> list[str]:
        """The stores of the next start."""
        return [name for name in self._stores if name not in self.refused and name not in self._lost]

    def arguments(self) -> Sequence[str]:
        return [*super().arguments(), *self.remaining]

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        store = event.get("store")
        if event.get("event") != "refused" or store not in self._stores:
            return
        if event.get("taken_over"):
            self._lost.add(store)
        else:
            self.refused[store] = ExitReason(str(event.get("reason", "")), str(event.get("remedy") or ""))

    def poll(self) -> None:
        if self._lost and self._leads():
            self._lost -= self._lost.copy()
            self._ask_to_end()
        super().poll()

    def is_due(self) -> bool:
        return bool(self.remaining) and super().is_due()

    def refusal_of_exit(self, code: int, reason: ExitReason) -> ExitReason | None:
        if code == EXIT_REFUSED and (self._lost or (self.refused and self.remaining)):
            return None
        if code == EXIT_REFUSED and self.refused:
            reasons = "; ".join(f"{name}: {refusal.reason}" for name, refusal in self.refused.items())
            return ExitReason(reasons, " ".join(dict.fromkeys(each.remedy for each in self.refused.values())))
        return super().refusal_of_exit(code, reason)

    def state(self) -> PartState:
        state = super().state()
        lost = sorted(self._lost.copy())
        if not lost or state.condition is ProcessCondition.REFUSED:
            return state
        note = f"another sync has taken {', '.join(lost)}"
        if state.condition is ProcessCondition.RUNNING:
            return replace(state, note="; ".join(filter(None, (state.note, note))))
        return state if self.remaining else replace(state, condition=ProcessCondition.IDLE, note=note)

    def clear_refusal(self) -> None:
        """Restart the process with all stores. Each store continues from its own position."""
        if self.refused or self._lost:
            self.refused = {}
            self._lost.clear()
            self._ask_to_end()
        super().clear_refusal()
