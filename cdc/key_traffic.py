"""Which keys several rows passed through inside one transaction: possible only where the primary key is deferrable.

`SET id = id + 1` reaches us as 1→2, 2→3, 3→4: taken one by one, each delete would remove the row that has just arrived.
pgoutput does not say who holds such a key at commit, so those keys are re-selected.
"""

from __future__ import annotations

from cdc.relations import Table


class KeyTraffic:
    """Hashes of the keys entered and left, so that a large transaction stays small; a collision only asks in vain."""

    __slots__ = ("_entered", "_left", "ambiguous", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self._entered: set[int] = set()
        self._left: set[int] = set()
        self.ambiguous: dict[bytes, tuple[bytes, ...]] = {}  # record key -> key values

    def enter(self, key: bytes, key_values: tuple[bytes, ...]) -> None:
        self._note(self._entered, self._left, key, key_values)

    def leave(self, key: bytes, key_values: tuple[bytes, ...]) -> None:
        self._note(self._left, self._entered, key, key_values)

    def _note(self, mine: set[int], other: set[int], key: bytes, key_values: tuple[bytes, ...]) -> None:
        digest = hash(key)
        mine.add(digest)
        if digest in other:
            self.ambiguous[key] = key_values
