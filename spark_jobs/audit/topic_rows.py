"""Turns records of a topic into columns of hashes and versions, in Python.

This is a hot loop where the compiled module is missing. Otherwise it gets only the records that the compiled module
returns as unusual. An event without a `before` is not parsed: its `after` stands between two texts that cannot occur
inside a JSON string, because their quotes would be escaped there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from cdc.audit.row_content import numbers
from spark_jobs.audit.side_tasks import Hashing, after_of, stamps

_HEAD: Final = b'{"before":null,"after":'
_HEAD_BYTES: Final = len(_HEAD)
_SOURCE: Final = b',"source":{"version":"'
_MARKER_KEY: Final = b'{"__truncate":'

#: Offset, key, value (None for a tombstone), and the text of the version (None if the record has none).
RawRecord = tuple[int, bytes, "bytes | None", "bytes | None"]


class Columns(NamedTuple):
    """Numpy arrays of equal length, with one element per record."""

    ids: Any
    contents: Any
    positions: Any
    seqs: Any
    offsets: Any
    live: Any


class _Op(msgspec.Struct):
    op: str = ""


_decode_op = msgspec.json.Decoder(_Op).decode


class TopicRows:
    """Collects records as columns. `marker`: the largest version of a TRUNCATE so far, or b""."""

    def __init__(self, hashing: Hashing) -> None:
        self._hashing = hashing
        self.marker = b""
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes] = []
        self._contents = bytearray()
        self._offsets: list[int] = []
        self._live: list[bool] = []
        self._stamps: list[bytes | None] = []

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, records: Sequence[RawRecord]) -> None:
        """Add records. Markers of a TRUNCATE only raise `marker`."""
        if not records:
            return
        offsets, keys, values, versions = zip(*records, strict=True)
        if _MARKER_KEY in b"".join(keys):
            markers = {offset for offset, key, value, _ in records if _is_marker(key, value)}
            if markers:
                self.marker = max([self.marker, *(each[3] or b"" for each in records if each[0] in markers)])
                self.take([each for each in records if each[0] not in markers])
                return
        rows = [_row(value) for value in values]
        self._keys += keys
        self._offsets += offsets
        self._stamps += versions
        self._live += [row is not None for row in rows]
        self._contents += self._hashing.contents([row or b"" for row in rows])

    def columns(self) -> Columns:
        """Return the columns of the records collected so far, and start again with none."""
        positions, seqs = stamps(self._stamps)
        made = Columns(
            numbers(self._hashing.ids(self._keys)),
            numbers(self._contents),
            positions,
            seqs,
            np.array(self._offsets, np.int64),
            np.array(self._live, bool),
        )
        self._clear()
        return made


def _is_marker(key: bytes, value: bytes | None) -> bool:
    try:
        return bool(value and key.startswith(_MARKER_KEY) and _decode_op(value).op == "t")
    except msgspec.DecodeError:
        return False


def _row(value: bytes | None) -> bytes | None:
    if value is not None and value.startswith(_HEAD):
        end = value.find(_SOURCE)
        if end > 0:
            row = value[_HEAD_BYTES:end]
            return None if row == b"null" else row
    return after_of(value)
