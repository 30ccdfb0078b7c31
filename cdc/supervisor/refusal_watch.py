"""Detects that the cause of a refusal has been repaired, so that the supervisor restarts the parts that refused.

No I/O: the caller passes functions that return the facts. Two repairs are detected, on whatever host they happen:
`tailrace recover` increments a counter in the progress record, and a bootstrap (or a sync on another host) ends the
note of a store's refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class RefusalWatch:
    """Compares the facts with those of the previous call.

    `recoveries` returns how often `tailrace recover` has run; None while this is unknown. `is_refused` returns whether
    the note of this store's refusal still applies.
    """

    def __init__(self, recoveries: Callable[[], int | None], is_refused: Callable[[str], bool]) -> None:
        self._recoveries = recoveries
        self._is_refused = is_refused
        self._known: int | None = None
        self._noted: set[str] = set()

    def poll(self, *, is_capture_refused: bool, refused_stores: Collection[str]) -> bool:
        """Return True once for each repair."""
        recovered = self._is_recovered(is_capture_refused)
        return self._is_store_repaired(refused_stores) or recovered

    def _is_recovered(self, is_capture_refused: bool) -> bool:
        before, now = self._known, self._recoveries()
        if now is None:
            return False
        self._known = now
        return is_capture_refused and before is not None and before != now

    def _is_store_repaired(self, refused: Collection[str]) -> bool:
        noted = {name for name in refused if self._is_refused(name)}
        repaired = (self._noted & set(refused)) - noted
        self._noted = noted
        return bool(repaired)
