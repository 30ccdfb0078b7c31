"""Finds the last record of each key in a partition, from keys and offsets alone. Pure: numpy columns, no I/O.

A key is represented by a hash of 128 bits, so a record takes 24 bytes, however long its key is. Two keys with the same
hash would lose a row; among 100 million keys the chance of that is below 1 in 10^22.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

_HASH: Final = np.dtype([("first", ">u8"), ("second", ">u8")])


class LatestRecords:
    """The last record of each key whose hash belongs to slice `number` of `count`. Add records in offset order."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self._slice = number, count
        self._parts: list[tuple[Any, Any, Any]] = []
        self._first = self._offsets = np.empty(0, np.uint64)

    def add(self, keys: Collection[bytes], offsets: Sequence[int]) -> None:
        """Add records."""
        first, second = _hashed(keys)
        places = np.fromiter(offsets, np.int64, len(keys))
        number, count = self._slice
        if count > 1:
            ours = first % np.uint64(count) == number
            first, second, places = first[ours], second[ours], places[ours]
        self._parts.append((first, second, places))

    def finish(self) -> None:
        """Find the last records. Call it once, after the last `add`."""
        if not self._parts:
            return
        first, second, offsets = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        self._parts = []
        order = np.lexsort((second, first))  # stable: the records of a key stay in offset order
        first, second, offsets = first[order], second[order], offsets[order]
        is_last = np.ones(len(first), bool)
        is_last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._first = first[is_last]
        self._offsets = np.sort(offsets[is_last])

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._offsets)

    def between(self, start: int, end: int) -> set[int]:
        """Return the offsets of last records from `start` up to, but not including, `end`."""
        low, high = np.searchsorted(self._offsets, [start, end])
        found: set[int] = set(self._offsets[low:high].tolist())
        return found

    def missing(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of the keys that belong to the slice and have no record. It compares half of the hash."""
        first, _ = _hashed(keys)
        number, count = self._slice
        ours = first % np.uint64(count) == number
        if len(self._first):
            places = np.minimum(np.searchsorted(self._first, first), len(self._first) - 1)
            ours &= self._first[places] != first
        return [key for key, is_missing in zip(keys, ours.tolist(), strict=True) if is_missing]


def _hashed(keys: Collection[bytes]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    hashes = np.frombuffer(b"".join(map(xxh3_128_digest, keys)), _HASH)
    return hashes["first"].astype(np.uint64), hashes["second"].astype(np.uint64)
