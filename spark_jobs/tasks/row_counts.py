"""Counts the rows that a store must have, from the last state of each key that the tasks saw. Pure functions.

Each key is represented by a hash and belongs to one of several groups, by that hash. Spark shuffles whole groups, and
each group is counted separately, so the memory for a group does not grow with the table. All work is on numpy columns,
and Python computes only the hash per row.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_STATE: Final = np.dtype([("key", "<i8"), ("offset", "<i8"), ("position", ">u8"), ("seq", ">u4"), ("live", "?")])
_SPREAD: Final = 0x1E3779B97F4A7C15
_STAMP: Final = np.dtype([("position", ">u8"), ("seq", ">u4")])


def packed(
    keys: Collection[bytes],
    partitions: Iterable[int],
    offsets: Iterable[int],
    stamps: Iterable[bytes],
    live: Iterable[bool],
    groups: int,
) -> Iterator[tuple[int, bytes]]:
    """Yields (group, packed states) for keys of one topic. Each key occurs at most once."""
    count = len(keys)
    states = np.empty(count, _STATE)
    hashes = np.fromiter(map(_hash, keys), np.int64, count)
    # The same key in another partition counts as another key.
    states["key"] = hashes ^ (np.fromiter(partitions, np.int64, count) * _SPREAD)
    states["offset"] = np.fromiter(offsets, np.int64, count)
    states["live"] = np.fromiter(live, bool, count)
    versions = np.frombuffer(bytes.fromhex(b"".join(stamps).replace(b".", b"").decode()), _STAMP)
    states["position"], states["seq"] = versions["position"], versions["seq"]
    group = states["key"] % groups
    order = np.argsort(group, kind="stable")
    states, bounds = states[order], np.searchsorted(group[order], np.arange(groups + 1))
    for number, (first, end) in enumerate(pairwise(bounds)):
        if end > first:
            yield number, states[first:end].tobytes()


def live_rows(group: Iterable[bytes], marker: bytes) -> int:
    """Return the number of keys whose last state, by offset, is a row that is not older than the last TRUNCATE.

    `marker` is the version of that TRUNCATE; b"" if there was none.
    """
    found = [np.frombuffer(each, _STATE) for each in group]
    if not found:
        return 0
    states = np.concatenate(found)
    ordered = np.sort(states["key"])
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return _count(states, marker)
    again = np.isin(states["key"], repeated)
    several = states[again]
    several = several[np.lexsort((several["offset"], several["key"]))]
    is_last = np.append(several["key"][1:] != several["key"][:-1], True)
    return _count(states[~again], marker) + _count(several[is_last], marker)


def _count(states: npt.NDArray[Any], marker: bytes) -> int:
    return int(np.count_nonzero(states["live"] & _not_below(states, marker)))


def _not_below(states: npt.NDArray[Any], marker: bytes) -> Any:
    if not marker:
        return True
    position, seq = int(marker[:16], 16), int(marker[17:], 16)
    return (states["position"] > position) | ((states["position"] == position) & (states["seq"] >= seq))


def _slow_hash(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little", signed=True)


# Python's own hash is twenty times as fast. It is the same in every worker if it has no random seed. Spark sets a
# fixed seed, because its own shuffles need one.
_hash: Final = _slow_hash if sys.flags.hash_randomization else hash
