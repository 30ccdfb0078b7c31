"""Whether the cause of a refusal has been removed: then the parts that refused get another try, unasked.

Pure: what is known comes from elsewhere. Two repairs are noticed, wherever they are made: `tailrace recover` counts
itself in the progress record, and a bootstrap (or a sync of another host) ends the note of a store's refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class RefusalWatch:
    """`recoveries`: how often the pipeline has been recovered; None while that is not known.

    `is_refused`: whether the note of this store's refusal stands.
    """

    def __init__(self, recoveries: Callable[[], int | None], is_refused: Callable[[str], bool]) -> None:
        self._recoveries = recoveries
        self._is_refused = is_refused
        self._known: int | None = None
        self._noted: set[str] = set()

    def look(self, *, is_capture_refused: bool, refused_stores: Collection[str]) -> bool:
        """True once for each repair."""
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
