"""When are two rows the same? Rows are JSON objects in bytes; what counts is their values, digit by digit. Pure.

A table whose columns never changed has rows that are the same bytes everywhere, so bytes are compared, which is quick.
Once columns came or went, older rows lack the new ones (NULL until somebody writes them) and still have the old ones:
then NULL and absent are the same, and columns that the table no longer has do not count. A store with typed columns may
hold a value as text, where the topic has a number or an array: such columns are compared by their text.
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
except ImportError:  # there was no compiler
    native_digests = None

#: The seed of Spark's own `xxhash64`, so that the JVM and Python give the same number.
SEED = 42

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = b"null"
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# A float has no more; what has more is a numeric, and every digit of it counts.
_FLOAT_DIGITS = 17


def row_digest(data: bytes, _hash: Callable[[bytes, int], int] = xxhash.xxh64_intdigest) -> int:
    return _hash(data, SEED)


def python_digests(
    data: Iterable[bytes], seed: int, _hash: Callable[[bytes, int], bytes] = xxhash.xxh64_digest
) -> bytes:
    return b"".join([_hash(each, seed) for each in data])


def row_digests(data: Iterable[bytes]) -> bytes:
    """Of many at once: eight bytes each, one behind the other, as `numbers` reads them. (Hot: once per row.)"""
    if native_digests is None:
        return python_digests(data, SEED)
    made: bytes = native_digests(data if isinstance(data, list) else list(data), SEED)
    return made


def numbers(packed: bytes | bytearray) -> npt.NDArray[np.uint64]:
    return np.frombuffer(packed, ">u8").astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Content:
    """How rows of one table are compared.

    `former`: columns that it had once and has no longer. `spelled`: columns that a store spells in its own way.
    """

    exact: bool = True
    former: frozenset[str] = frozenset()
    spelled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, columns: Collection[str], ever: Collection[Collection[str]], spelled: Collection[str] = ()) -> Content:
        """`ever`: the columns of every state that the table had, and of every partition, in their order."""
        former = frozenset(name for each in ever for name in each) - frozenset(columns)
        exact = all(list(each) == list(columns) for each in ever)
        return cls(exact and not spelled, former, frozenset(spelled))

    def canonical(self, row: bytes) -> bytes:
        """Equal for rows that are the same; the row itself where bytes are compared."""
        return row if self.exact else self.ordered(row)

    def ordered(self, row: bytes) -> bytes:
        """Members by name, without NULLs and former columns; a row that is no JSON object stays as it is."""
        try:
            members = _decode_members(row)
        except msgspec.DecodeError:
            return row
        kept = sorted((name, bytes(value)) for name, value in members.items() if name not in self.former)
        return b",".join(
            [orjson.dumps(name) + b":" + self._value(name, value) for name, value in kept if value != _NULL]
        )

    def digest(self, row: bytes) -> int:
        return row_digest(self.canonical(row))

    def same(self, one: bytes | None, other: bytes | None) -> bool:
        if one is None or other is None:
            return one is other
        return one == other or self.ordered(one) == self.ordered(other)

    def differing_fields(self, one: bytes, other: bytes) -> list[str]:
        """Names only: what differs, never how."""
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
    """Without the freedom that JSON leaves inside a value: escapes, spaces, the order of members."""
    if value[0] in b"-0123456789tfn":
        return value
    decoded: Any = orjson.loads(value)
    return orjson.dumps(decoded, option=orjson.OPT_SORT_KEYS)


def _text(value: bytes) -> bytes:
    """Equal for a value and for the text that spells it, however its numbers are spelled; never NULL's for a text."""
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
