"""The syncs of all stores: one process, but a store that refuses is left out of its next life, and only that one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc.supervisor.child import LastWords
from cdc.supervisor.part import EXIT_REFUSED, Part

# How long a sync that the other pipeline had begun already may take to reach the store: Spark starts slowly.
_TAKING_BACK_SECONDS = 120.0


class SyncPart(Part):
    """`refused`: stores whose sync said that a person must decide, and why; the process goes on with the others."""

    def __init__(self, stores: Sequence[str], arguments: Sequence[str], *, name: str = "sync", **settings: Any) -> None:
        super().__init__(name, arguments, **settings)
        self._stores = tuple(stores)
        self.refused: dict[str, LastWords] = {}
        self._taken_over: set[str] = set()
        self._takes_back_until = 0.0
        self._begins_again = False

    @property
    def remaining(self) -> list[str]:
        return [name for name in self._stores if name not in self.refused]

    def arguments(self) -> Sequence[str]:
        return [*super().arguments(), *self.remaining]

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        if event.get("event") == "refused" and event.get("store") in self._stores:
            self.refused[event["store"]] = LastWords(str(event.get("reason", "")), str(event.get("remedy") or ""))
            if event.get("taken_over"):
                self._taken_over.add(event["store"])

    def take_back(self) -> None:
        """This pipeline leads now: the other one, which has taken the stores over or is about to, does not start its
        syncs again. May be called from any thread."""
        self._takes_back_until = self._clock() + _TAKING_BACK_SECONDS

    def look(self) -> None:
        if self._taken_over and self._clock() < self._takes_back_until:
            self._forgive(self._taken_over.copy())
        super().look()

    def judge(self, code: int, words: LastWords) -> LastWords | None:
        begins_again, self._begins_again = self._begins_again, False
        if begins_again or (code == EXIT_REFUSED and self.refused and self.remaining):
            return None
        if code == EXIT_REFUSED and self.refused:
            reasons = "; ".join(f"{name}: {refusal.reason}" for name, refusal in self.refused.items())
            return LastWords(reasons, " ".join(dict.fromkeys(each.remedy for each in self.refused.values())))
        return super().judge(code, words)

    def forgive(self) -> None:
        """The driver ends and begins again with all stores; each goes on from its own position."""
        self._forgive(set(self.refused))
        super().forgive()

    def _forgive(self, stores: set[str]) -> None:
        forgiven = stores & self.refused.keys()
        self.refused = {name: words for name, words in self.refused.items() if name not in stores}
        self._taken_over -= stores
        if not forgiven:
            return
        super().forgive()
        if self._child is not None:
            self._begins_again = True  # it will say "refused" with its exit code, of what is forgiven
            self._child.terminate()
