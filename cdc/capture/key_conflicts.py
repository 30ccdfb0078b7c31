"""Finds the keys that several rows pass through in one transaction. Only a deferrable primary key allows this.

`SET id = id + 1` arrives as 1→2, 2→3, 3→4. Applied one by one, each delete would remove the row that has just arrived.
pgoutput does not send which row has such a key at commit, so capture re-selects those keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cdc.encoding.table_encoder import TableEncoder


class Ambiguous(NamedTuple):
    """A key that one row took and another gave up, and the number of the change that made the key ambiguous."""

    number: int
    table: TableEncoder
    key: bytes
    key_values: tuple[bytes, ...]


class KeyConflicts:
    """The hashes of the keys that rows took and gave up in one transaction.

    Hashes keep memory small in a large transaction. A collision only causes a needless re-select.
    """

    __slots__ = ("_ambiguous", "_entered", "_left")

    def __init__(self) -> None:
        self._entered: set[int] = set()
        self._left: set[int] = set()
        self._ambiguous: dict[bytes, tuple[int, tuple[bytes, ...]]] = {}  # record key -> number, key values

    def enter(self, number: int, key: bytes, key_values: tuple[bytes, ...]) -> None:
        """Note that change `number` gave a row this key."""
        self._note(self._entered, self._left, number, key, key_values)

    def leave(self, number: int, key: bytes, key_values: tuple[bytes, ...]) -> None:
        """Note that change `number` took this key from a row."""
        self._note(self._left, self._entered, number, key, key_values)

    def ambiguous(self, table: TableEncoder) -> Iterator[Ambiguous]:
        """Yield the ambiguous keys in the order of their numbers. One change of a key can make two keys ambiguous."""
        for key, (number, key_values) in self._ambiguous.items():
            yield Ambiguous(number, table, key, key_values)

    def _note(self, mine: set[int], other: set[int], number: int, key: bytes, key_values: tuple[bytes, ...]) -> None:
        digest = hash(key)
        mine.add(digest)
        if digest in other and key not in self._ambiguous:
            self._ambiguous[key] = number, key_values
