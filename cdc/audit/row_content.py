"""Compare the content of two rows. Rows are JSON objects in bytes; their values must agree in every digit. No I/O.

If the table's columns never changed, equal rows have equal bytes on every side. Bytes are then compared, which is fast.
After a column was added or dropped, older rows lack the new column (NULL until an UPDATE writes it) and still have the
dropped one. Then NULL equals absent, and columns that the table no longer has are ignored. A store with typed columns
may hold a text where the topic has a number or an array. Such columns are compared by their text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

native_digests: Any
try:
    from cdc.audit.native_records import digests as native_digests  # type: ignore[import-not-found,no-redef]
except ImportError:  # the extension was not built, for lack of a C compiler
    native_digests = None

#: The seed of Spark's `xxhash64`, so that the JVM and Python compute the same hash.
SEED = 42

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = b"null"
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# A float has at most 17 significant digits. A longer number is a numeric, and every digit of it counts.
_FLOAT_DIGITS = 17


def row_digest(data: bytes, _hash: Callable[[bytes, int], int] = xxhash.xxh64_intdigest) -> int:
    """Return the 64-bit hash of the bytes."""
    return _hash(data, SEED)


def python_digests(
    data: Iterable[bytes], seed: int, _hash: Callable[[bytes, int], bytes] = xxhash.xxh64_digest
) -> bytes:
    """Compute `row_digests` without the compiled module."""
    return b"".join([_hash(each, seed) for each in data])


def row_digests(data: Iterable[bytes]) -> bytes:
    """Return the concatenated hashes, eight big-endian bytes each, as `numbers` reads them. Hot: runs for every row."""
    if native_digests is None:
        return python_digests(data, SEED)
    made: bytes = native_digests(data if isinstance(data, list) else list(data), SEED)
    return made


def numbers(packed: bytes | bytearray) -> npt.NDArray[np.uint64]:
    """Return the hashes of `row_digests` as an array."""
    return np.frombuffer(packed, ">u8").astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Content:
    """How rows of one table are compared.

    `exact`: equal rows have equal bytes. `former`: columns that the table had and no longer has. `spelled`: columns
    that a store holds in a text form of its own.
    """

    exact: bool = True
    former: frozenset[str] = frozenset()
    spelled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, columns: Collection[str], ever: Collection[Collection[str]], spelled: Collection[str] = ()) -> Content:
        """Return the comparison for a table with these columns.

        `ever`: the columns, in order, of every version of the table and of every partition.
        """
        former = frozenset(name for each in ever for name in each) - frozenset(columns)
        exact = all(list(each) == list(columns) for each in ever)
        return cls(exact and not spelled, former, frozenset(spelled))

    def canonical(self, row: bytes) -> bytes:
        """Return bytes that are equal for equal rows: the row itself if `exact`, otherwise `ordered`."""
        return row if self.exact else self.ordered(row)

    def ordered(self, row: bytes) -> bytes:
        """Return the row's members sorted by name, without NULLs and former columns.

        A row that is not a JSON object is returned unchanged.
        """
        try:
            members = _decode_members(row)
        except msgspec.DecodeError:
            return row
        kept = sorted((name, bytes(value)) for name, value in members.items() if name not in self.former)
        return b",".join(
            [orjson.dumps(name) + b":" + self._value(name, value) for name, value in kept if value != _NULL]
        )

    def digest(self, row: bytes) -> int:
        """Return a hash that is equal for equal rows."""
        return row_digest(self.canonical(row))

    def same(self, one: bytes | None, other: bytes | None) -> bool:
        """Return whether two rows have the same content. None is a row that does not exist."""
        if one is None or other is None:
            return one is other
        return one == other or self.ordered(one) == self.ordered(other)

    def differing_fields(self, one: bytes, other: bytes) -> list[str]:
        """Return the names of the columns that differ, never their values."""
        try:
            first, second = _decode_members(one), _decode_members(other)
        except msgspec.DecodeError:
            return ["(not a JSON object)"]
        names = dict.fromkeys([*first, *second])
        return [
            name
            for name in names
            if name not in self.former and self._value(name, first.get(name)) != self._value(name, second.get(name))
        ]

    def _value(self, name: str, raw: bytes | msgspec.Raw | None) -> bytes:
        value = _NULL if raw is None else bytes(raw)
        return _text(value) if name in self.spelled else _plain(value)


def _plain(value: bytes) -> bytes:
    """Normalize what JSON leaves open inside a value: escapes, whitespace, the order of members."""
    if value[0] in b"-0123456789tfn":
        return value
    decoded: Any = orjson.loads(value)
    return orjson.dumps(decoded, option=orjson.OPT_SORT_KEYS)


def _text(value: bytes) -> bytes:
    """Return the same bytes for a value and for its text form, whatever the notation of its numbers.

    A text never yields the bytes of NULL.
    """
    if value == _NULL:
        return value
    text: str = orjson.loads(value) if value[0] == ord('"') else value.decode()
    return b'"' + _respelled(text).encode()


def _respelled(text: str) -> str:
    if text[:1] in ("{", "["):
        try:
            return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
        except orjson.JSONDecodeError:
            return text
    number = _NUMBER.fullmatch(text)
    is_float = number is not None and (number[1] or number[2]) and _digits(text) <= _FLOAT_DIGITS
    return repr(float(text)) if is_float else text


def _digits(number: str) -> int:
    return len(re.split("[eE]", number)[0].replace(".", "").strip("-0"))
