"""Finds the keys that several rows pass through in one transaction. Only a deferrable primary key allows this.

`SET id = id + 1` arrives as 1→2, 2→3, 3→4. Applied one by one, each delete would remove the row that has just arrived.
pgoutput does not send which row has such a key at commit, so capture re-selects those keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby, islice
from typing import NamedTuple

from cdc.encoding.table_encoder import TableEncoder

# How many corrections are made before the caller checks the limits of the batch.
CORRECTIONS_AT_ONCE = 256


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


class Correction(NamedTuple):
    """The number of a correction, and the keys that it corrects."""

    seq: int
    keys: list[Ambiguous]


class KeyCorrections:
    """The corrections of one transaction. `tables`: the key conflicts of each table with a deferrable key.

    In a transaction of n changes, the correction of the key that change k made ambiguous gets seq n + k. So corrections
    have higher versions than all events of the transaction. A correction has the same seq each time the server sends
    the transaction, even if other tables no longer exist by then. And capture can split corrections over several Kafka
    transactions, as it does with changes.
    """

    def __init__(self) -> None:
        self.tables: dict[TableEncoder, KeyConflicts] = {}
        self._remaining: Iterator[tuple[int, Iterator[Ambiguous]]] | None = None
        self._changes = 0  # how many changes the transaction has, without its corrections

    def of(self, table: TableEncoder) -> KeyConflicts:
        return self.tables.setdefault(table, KeyConflicts())

    def replace(self, old: TableEncoder, new: TableEncoder) -> None:
        """Continue with the keys of a table after its columns have changed inside the transaction."""
        if old in self.tables:
            self.tables[new] = self.tables.pop(old)

    def next_some(self, seq: int) -> list[Correction]:
        """Return the next corrections: fewer than `CORRECTIONS_AT_ONCE` if they are the transaction's last ones.

        `seq`: the number of the last change, at the first call of the transaction.
        """
        if self._remaining is None:
            by_table = [conflicts.ambiguous(table) for table, conflicts in self.tables.items()]
            self._remaining = groupby(merge(*by_table, key=_number), key=_number)
            self._changes = seq
        slice_ = islice(self._remaining, CORRECTIONS_AT_ONCE)
        corrections = [Correction(self._changes + number, list(keys)) for number, keys in slice_]
        if len(corrections) < CORRECTIONS_AT_ONCE:
            self._remaining = None
            self.tables.clear()
        return corrections


def _number(ambiguous: Ambiguous) -> int:
    return ambiguous.number
