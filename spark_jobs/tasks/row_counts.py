"""How many rows must a store have? Counted from what the tasks saw, once for each key, by columns of numbers. Pure.

A key is here as a hash, in one of several groups by that hash. A group is what travels through Spark's shuffle and what
is counted at once, so the memory for it does not grow with the table, and Python does nothing per row but the hash.
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
    """The states of these keys of one topic, each key at most once, by group."""
    count = len(keys)
    states = np.empty(count, _STATE)
    hashes = np.fromiter(map(_hash, keys), np.int64, count)
    # A key belongs to its partition: the same one elsewhere would be another.
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
    """Keys whose last state (by offset) is a row, and not older than the last TRUNCATE (b"": there was none)."""
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


# Python's own hash is twenty times as quick, and the same in every worker where it is not seeded by chance (Spark sees
# to that, as its own shuffles need it).
_hash: Final = _slow_hash if sys.flags.hash_randomization else hash
