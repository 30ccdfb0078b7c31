"""Which keys several rows passed through inside one transaction: possible only where the primary key is deferrable.

`SET id = id + 1` reaches us as 1→2, 2→3, 3→4: taken one by one, each delete would remove the row that has just arrived.
pgoutput does not say who holds such a key at commit, so those keys are re-selected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cdc.encoding.table_encoder import TableEncoder


class Ambiguous(NamedTuple):
    """A key that was both entered and left, and the number of the change since which that is so."""

    number: int
    table: TableEncoder
    key: bytes
    key_values: tuple[bytes, ...]


class KeyConflicts:
    """Hashes of the keys entered and left, so that a large transaction stays small; a collision only asks in vain."""

    __slots__ = ("_ambiguous", "_entered", "_left")

    def __init__(self) -> None:
        self._entered: set[int] = set()
        self._left: set[int] = set()
        self._ambiguous: dict[bytes, tuple[int, tuple[bytes, ...]]] = {}  # record key -> number, key values

    def enter(self, number: int, key: bytes, key_values: tuple[bytes, ...]) -> None:
        self._note(self._entered, self._left, number, key, key_values)

    def leave(self, number: int, key: bytes, key_values: tuple[bytes, ...]) -> None:
        self._note(self._left, self._entered, number, key, key_values)

    def ambiguous(self, table: TableEncoder) -> Iterator[Ambiguous]:
        """In the order of their numbers; a change of a key may give two."""
        for key, (number, key_values) in self._ambiguous.items():
            yield Ambiguous(number, table, key, key_values)

    def _note(self, mine: set[int], other: set[int], number: int, key: bytes, key_values: tuple[bytes, ...]) -> None:
        digest = hash(key)
        mine.add(digest)
        if digest in other and key not in self._ambiguous:
            self._ambiguous[key] = number, key_values
