"""Rows of one side as columns of numbers, cut into groups by the hash of their id, and two sides compared. Pure.

A row is here: the hash of its id, the hash of its content, its version and where it stands. Groups are what travels and
what is compared: a row is in the same group on every side. Python does nothing per row here; Arrow and numpy do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

#: `place`: partition and offset of a topic's record in one number, or -1; `key`: the record's key, or a store's id.
SCHEMA: Final = pa.schema(
    [
        ("id", pa.uint64()),
        ("content", pa.uint64()),
        ("position", pa.uint64()),
        ("seq", pa.uint32()),
        ("place", pa.int64()),
        ("live", pa.bool_()),
        ("key", pa.binary()),
    ]
)
OFFSET_BITS: Final = 48


def place_of(partition: int, offset: int) -> int:
    return partition << OFFSET_BITS | offset


def split_place(place: int) -> tuple[int, int]:
    return place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)


def block(
    *,
    ids: Any,
    contents: Any,
    keys: Any,
    positions: Any = None,
    seqs: Any = None,
    places: Any = None,
    live: Any = None,
) -> pa.RecordBatch:
    """What is not given is 0, -1 for places, and alive."""
    count = len(ids)
    columns = [
        _column(ids, pa.uint64()),
        _column(contents, pa.uint64()),
        _column(np.zeros(count, np.uint64) if positions is None else positions, pa.uint64()),
        _column(np.zeros(count, np.uint32) if seqs is None else seqs, pa.uint32()),
        _column(np.full(count, -1, np.int64) if places is None else places, pa.int64()),
        _column(np.ones(count, bool) if live is None else live, pa.bool_()),
        keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def by_group(rows: pa.RecordBatch, groups: int) -> Iterator[tuple[int, bytes]]:
    """Cut into groups, each as bytes that `joined` reads."""
    if not rows.num_rows:
        return
    group = (_numbers(rows, "id") % np.uint64(groups)).astype(np.int32)
    order = np.argsort(group, kind="stable")
    ordered = rows.take(pa.array(order))
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    for number in range(groups):
        first, end = int(bounds[number]), int(bounds[number + 1])
        if end > first:
            yield number, _packed(ordered.slice(first, end - first))


def joined(packed: Sequence[bytes]) -> pa.Table:
    batches = [batch for each in packed for batch in pa.ipc.open_stream(each)]
    return pa.Table.from_batches(batches, SCHEMA).combine_chunks()


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
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
    """One row for each id, in the order of ids: the last one where there are several (a topic before compaction)."""

    def __init__(self, rows: pa.Table, marker: tuple[int, int] = (0, 0)) -> None:
        """`marker`: the version of the table's last TRUNCATE; rows below it are dead."""
        ids, places = _numbers(rows, "id"), _numbers(rows, "place")
        order = (
            np.lexsort((places, ids)) if len(ids) and places.max(initial=-1) >= 0 else np.argsort(ids, kind="stable")
        )
        sorted_ids = ids[order]
        is_last = np.append(sorted_ids[1:] != sorted_ids[:-1], True)[: len(ids)]
        last = order[is_last]
        self.rows = rows
        self.ids = sorted_ids[is_last]
        self.index = last
        self.contents = _numbers(rows, "content")[last]
        self.positions = _numbers(rows, "position")[last]
        self.seqs = _numbers(rows, "seq")[last]
        self.live = _numbers(rows, "live")[last] & ~_below(self.positions, self.seqs, marker)
        self.disordered = self._disordered(order, is_last)

    def _disordered(self, order: Array, is_last: Array) -> Array:
        """Ids whose versions fall somewhere along the way: compaction and stores would not keep the same one.

        Only in a topic may an id be there more than once; rows of other sides have no place.
        """
        positions, seqs = _numbers(self.rows, "position")[order], _numbers(self.rows, "seq")[order]
        falls = (positions[1:] < positions[:-1]) | ((positions[1:] == positions[:-1]) & (seqs[1:] < seqs[:-1]))
        falls |= _numbers(self.rows, "place")[order][1:] < 0
        falls &= ~is_last[:-1]
        found = np.zeros(len(self.ids), bool)
        if falls.any():
            found[np.searchsorted(self.ids, _numbers(self.rows, "id")[order][1:][falls])] = True
        return found

    @property
    def live_rows(self) -> int:
        return int(self.live.sum())


def _below(positions: Array, seqs: Array, marker: tuple[int, int]) -> Array:
    position, seq = np.uint64(marker[0]), np.uint32(marker[1])
    found: Array = (positions < position) | ((positions == position) & (seqs < seq))
    return found


def differing(one: Side, other: Side, *, versions: bool) -> Array:
    """Ids that are not live with the same content (and version, where asked) on both sides, or dead on both."""
    ids = np.union1d(one.ids, other.ids)
    first, second = _aligned(ids, one), _aligned(ids, other)
    differ = first["live"] != second["live"]
    both = first["live"] & second["live"]
    differ |= both & (first["contents"] != second["contents"])
    if versions:
        differ |= both & ((first["positions"] != second["positions"]) | (first["seqs"] != second["seqs"]))
    differ |= first["disordered"] | second["disordered"]
    found: Array = ids[differ]
    return found


def _aligned(ids: Array, side: Side) -> dict[str, Array]:
    """The side's columns at these ids; what it does not have is dead."""
    at = np.searchsorted(side.ids, ids)
    inside = at < len(side.ids)
    at = np.where(inside, at, 0)
    there = inside & (side.ids[at] == ids) if len(side.ids) else np.zeros(len(ids), bool)
    if not len(side.ids):
        return {
            name: np.zeros(len(ids), kind)
            for name, kind in (
                ("live", bool),
                ("disordered", bool),
                ("contents", np.uint64),
                ("positions", np.uint64),
                ("seqs", np.uint32),
            )
        }
    return {
        "live": there & side.live[at],
        "disordered": there & side.disordered[at],
        "contents": side.contents[at],
        "positions": side.positions[at],
        "seqs": side.seqs[at],
    }


def found_at(side: Side, ids: Array) -> Iterator[tuple[bytes, int] | None]:
    """Key and place of each id, None where the side does not have it."""
    at = np.searchsorted(side.ids, ids)
    keys, places = side.rows.column("key"), side.rows.column("place")
    for place, wanted in zip(at.tolist(), ids.tolist(), strict=True):
        if place < len(side.ids) and int(side.ids[place]) == wanted:
            row = int(side.index[place])
            yield keys[row].as_py(), places[row].as_py()
        else:
            yield None
