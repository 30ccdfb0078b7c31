"""Rows of one side as columns of numbers, grouped by the hash of their id, and the comparison of two sides. No I/O.

A row is represented by the hash of its id, the hash of its content, its version and its place (the partition and offset
of its record). Tasks exchange and compare whole groups: a row is in the same group on every side. All work per row is
done in Arrow and numpy, not in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

OFFSET_BITS: Final = 48
# Odd multipliers with irregular bits, for mixing hashes.
_MIXERS: Final = tuple(np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_HALF: Final = np.uint64(32)


def packed_place(partition: int, offset: int) -> int:
    """Pack a partition and an offset into one number, the place of a record."""
    return partition << OFFSET_BITS | offset


def split_place(place: int) -> tuple[int, int]:
    """Return the partition and the offset of a place."""
    return place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)


def block(
    *,
    ids: Any,
    contents: Any,
    keys: Any = None,
    positions: Any = None,
    seqs: Any = None,
    places: Any = None,
    live: Any = None,
) -> pa.RecordBatch:
    """Build a batch of rows from their columns.

    Columns that a side does not have are left out, to save bytes. `Side` then assumes version 0, no place, and live.
    `places`: the places of the topic's records (`packed_place`). `keys`: the records' keys, or the store's ids.
    """
    given = {
        "id": (ids, pa.uint64()),
        "content": (contents, pa.uint64()),
        "position": (positions, pa.uint64()),
        "seq": (seqs, pa.uint32()),
        "place": (places, pa.int64()),
        "live": (live, pa.bool_()),
        "key": (keys, pa.binary()),
    }
    columns = {name: _column(values, kind) for name, (values, kind) in given.items() if values is not None}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def by_group(rows: pa.RecordBatch, groups: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each non-empty group and its rows, serialized for `joined`."""
    if not rows.num_rows:
        return
    group = (_numbers(rows, "id") % np.uint64(groups)).astype(np.uint16)
    order = np.argsort(group, kind="stable")
    ordered = rows.take(pa.array(order))
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    for number in range(groups):
        first, end = int(bounds[number]), int(bounds[number + 1])
        if end > first:
            yield number, _packed(ordered.slice(first, end - first))


def joined(packed: Sequence[bytes]) -> pa.Table:
    """Concatenate serialized groups of one side into a table."""
    batches = [batch for each in packed for batch in pa.ipc.open_stream(each)]
    return pa.Table.from_batches(batches).combine_chunks()


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _numbers(rows: pa.RecordBatch | pa.Table, name: str) -> Array:
    column = rows.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers


class Side:
    """All rows of one side, and the last row of each id (a topic that is not compacted yet has several per id)."""

    def __init__(self, rows: pa.Table | None, marker: tuple[int, int] = (0, 0), *, distinct: bool = False) -> None:
        """`marker`: the version of the table's last TRUNCATE; rows with a smaller version are dead.

        `distinct`: the caller guarantees that no id occurs twice.
        """
        self._rows = rows
        self._count = 0 if rows is None else rows.num_rows
        self._marker = marker
        self.distinct = distinct
        self._last: Last | None = None

    def column(self, name: str, default: Any, kind: Any) -> Array:
        if self._rows is None or name not in self._rows.column_names:
            return np.full(self._count, default, kind)
        return _numbers(self._rows, name)

    def key(self, row: int) -> bytes:
        """Return the key of the row, or b"" if this side has no keys."""
        if self._rows is None or "key" not in self._rows.column_names:
            return b""
        key: bytes = self._rows.column("key")[row].as_py()
        return key

    @property
    def all_live(self) -> Array:
        """Whether each row is live, for all rows and not only for the last row of each id."""
        live = self.column("live", True, bool)
        if self._marker == (0, 0):
            return live
        return live & ~_below(self.column("position", 0, np.uint64), self.column("seq", 0, np.uint32), self._marker)

    def checksum(self, *, versions: bool) -> tuple[int, int] | None:
        """Return a checksum that does not depend on the order of rows, or None if not all rows are live."""
        if not self.all_live.all():
            return None
        columns = [("id", np.uint64), ("content", np.uint64)]
        columns += [("position", np.uint64), ("seq", np.uint32)] if versions else []
        mixed = np.zeros(self._count, np.uint64)
        for name, kind in columns:
            mixed = (mixed ^ self.column(name, 0, kind).astype(np.uint64, copy=False)) * _MIXERS[0]
            mixed = (mixed ^ (mixed >> _HALF)) * _MIXERS[1]
            mixed = (mixed ^ (mixed >> _HALF)) * _MIXERS[2]
        return self._count, int(mixed.sum())

    @property
    def last(self) -> Last:
        if self._last is None:
            self._last = Last(self)
        return self._last

    @property
    def live_rows(self) -> int:
        return int((self.all_live if self.distinct else self.last.live).sum())


class Last:
    """The last row of each id, ordered by id. `index`: the number of each row in the side."""

    def __init__(self, side: Side) -> None:
        ids, places = side.column("id", 0, np.uint64), side.column("place", -1, np.int64)
        order = np.argsort(ids)
        sorted_ids = ids[order]
        same = sorted_ids[1:] == sorted_ids[:-1]
        if same.any():
            _order_by_place(order, same, ids, places)
        is_last = np.append(~same, True)[: len(ids)]
        self.ids = sorted_ids[is_last]
        self.index = order[is_last]
        self.contents = side.column("content", 0, np.uint64)[self.index]
        positions, seqs = side.column("position", 0, np.uint64), side.column("seq", 0, np.uint32)
        self.positions = positions[self.index]
        self.seqs = seqs[self.index]
        self.live = side.all_live[self.index]
        self.places = places[self.index]
        self.disordered = np.zeros(len(self.ids), bool)
        if same.any():
            falls = same & _falls(positions[order], seqs[order], places[order])
            self.disordered[np.searchsorted(self.ids, sorted_ids[1:][falls])] = True


def _order_by_place(order: Array, same: Array, ids: Array, places: Array) -> None:
    """Sort the rows of each id by place, in place. `order` is sorted by id; ids with one row stay as they are."""
    several = np.zeros(len(order), bool)
    several[1:] |= same
    several[:-1] |= same
    at = np.flatnonzero(several)
    rows = order[at]
    order[at] = rows[np.lexsort((places[rows], ids[rows]))]


def _falls(positions: Array, seqs: Array, places: Array) -> Array:
    """Return where a row's version is smaller than that of the row before.

    Compaction would keep the last record there, and a store the one with the largest version. Only a topic may have an
    id more than once. Rows of other sides have no place, so a repeated id counts as a fall there.
    """
    found: Array = (positions[1:] < positions[:-1]) | ((positions[1:] == positions[:-1]) & (seqs[1:] < seqs[:-1]))
    return found | (places[1:] < 0)


def _below(positions: Array, seqs: Array, marker: tuple[int, int]) -> Array:
    position, seq = np.uint64(marker[0]), np.uint32(marker[1])
    found: Array = (positions < position) | ((positions == position) & (seqs < seq))
    return found


def differing(one: Side, other: Side, *, versions: bool) -> Array:
    """Return the ids that differ between two sides.

    An id is equal if it is live on both sides with the same content (and the same version, if `versions` is set), or
    dead or absent on both. If `one` is distinct, equal checksums prove that the sides are equal, without sorting them.
    """
    if one.distinct:
        checksum = one.checksum(versions=versions)
        if checksum is not None and checksum == other.checksum(versions=versions):
            other.distinct = True
            return np.zeros(0, np.uint64)
    ids = _union(one.last.ids, other.last.ids)
    first, second = _aligned(ids, one.last), _aligned(ids, other.last)
    differ = first["live"] != second["live"]
    both = first["live"] & second["live"]
    differ |= both & (first["contents"] != second["contents"])
    if versions:
        differ |= both & ((first["positions"] != second["positions"]) | (first["seqs"] != second["seqs"]))
    differ |= first["disordered"] | second["disordered"]
    found: Array = ids[differ]
    return found


def _union(one: Array, other: Array) -> Array:
    """Return the union of two sorted arrays. A stable sort merges sorted runs in linear time."""
    if np.array_equal(one, other):
        return one
    both = np.sort(np.concatenate([one, other]), kind="stable")
    found: Array = both[np.append(True, both[1:] != both[:-1])[: len(both)]]
    return found


_ALIGNED: Final = {
    "live": bool,
    "disordered": bool,
    "contents": np.uint64,
    "positions": np.uint64,
    "seqs": np.uint32,
}


def _aligned(ids: Array, side: Last) -> dict[str, Array]:
    """Return the side's columns at these ids. An id that the side does not have is dead."""
    if not len(side.ids):
        return {name: np.zeros(len(ids), kind) for name, kind in _ALIGNED.items()}
    if len(side.ids) == len(ids):
        return {name: getattr(side, name) for name in _ALIGNED}  # as long as the union, so it has the same ids
    at = np.searchsorted(side.ids, ids)
    at = np.where(at < len(side.ids), at, 0)
    there = side.ids[at] == ids
    found: dict[str, Array] = {name: getattr(side, name)[at] for name in _ALIGNED}
    return found | {"live": there & found["live"], "disordered": there & found["disordered"]}


def found_at(side: Side, ids: Array) -> Iterator[tuple[bytes, int] | None]:
    """Yield the key and the place of each id, or None if the side does not have the id."""
    if not len(ids):
        return
    last = side.last
    for at, wanted in zip(np.searchsorted(last.ids, ids).tolist(), ids.tolist(), strict=True):
        if at < len(last.ids) and int(last.ids[at]) == wanted:
            yield side.key(int(last.index[at])), int(last.places[at])
        else:
            yield None
