"""Encoders of single values other than dates and times: Postgres text to a JSON fragment.

The hot ones are one expression each, and where they can be, a C function without a Python frame around it.
Measured against a scan for characters to escape, `orjson.dumps(text.decode())` is the fastest for text of any
length, and it checks the UTF-8 on the way.
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_hex, b2a_base64
from collections.abc import Callable

import orjson

from cdc.encoding.values.types import Encode
from cdc.errors import ProtocolError

_POINT, _EXPONENT = b".e"


def _identity(text: bytes) -> bytes:
    return text


IDENTITY: Encode = _identity
"""Integers: the text is the JSON. A hot loop may test `encode is IDENTITY` and leave the call out."""

QUOTE: Encode = b'"%b"'.__mod__
"""Text that can hold nothing to escape, as a JSON string. A hot loop may put the quotes into its template."""

boolean: Encode = {b"t": b"true", b"f": b"false"}.__getitem__


def text(value: bytes, _dumps: Callable[[str], bytes] = orjson.dumps) -> bytes:
    return _dumps(value.decode())


TEXT: Encode = text
"""Any text. A hot loop may write it out."""


def floating(value: bytes) -> bytes:
    """Keep a float's look (`100.0`), so that a reader without a schema does not take it for an integer."""
    if _POINT in value or _EXPONENT in value:
        return value
    if value[-1] > 57:  # NaN, Infinity, -Infinity: not numbers in JSON
        return QUOTE(value)
    return value + b".0"


BOOLEAN, FLOATING = boolean, floating
"""A hot loop may write these out too."""


def binary(value: bytes) -> bytes:
    if value[:2] != b"\\x":
        raise ProtocolError("A bytea value is not in hex form.", remedy=_SETTINGS)
    return b'"%b"' % b2a_base64(a2b_hex(value[2:]), newline=False)


def money(value: bytes) -> bytes:
    """`-$1,234.56` under lc_monetary=C."""
    amount = value.translate(None, b"$,")
    if _AMOUNT(amount) is None:
        raise ProtocolError("A money value is not in the C locale's form.", remedy=_SETTINGS)
    return QUOTE(amount)


def bits(length: int) -> Encode:
    """bit(n): Debezium's forms, a boolean for one bit, else the bytes, little-endian, without zeros at the end."""
    if length == 1:
        return {b"1": b"true", b"0": b"false"}.__getitem__
    return _bit_bytes if length > 1 else QUOTE


def _bit_bytes(value: bytes) -> bytes:
    number = int(value, 2)
    size = (number.bit_length() + 7) // 8
    return b'"%b"' % b2a_base64(number.to_bytes(size, "little"), newline=False)


def point(value: bytes) -> bytes:
    """Debezium's struct: the coordinates, and both again as well-known binary."""
    x, _, y = value[1:-1].partition(b",")
    wkb = b2a_base64(struct.pack("<BIdd", 1, 1, float(x), float(y)), newline=False)
    return b'{"x":%b,"y":%b,"wkb":"%b","srid":null}' % (floating(x), floating(y), wkb)


def hstore(value: bytes) -> bytes:
    """A string that holds a JSON object, as Debezium writes it under hstore.handling.mode=json."""
    pairs: dict[str, str | None] = {}
    for match in _PAIR.finditer(value):
        key, held = match.groups()
        pairs[unescape(key).decode()] = None if held is None else unescape(held).decode()
    return orjson.dumps(orjson.dumps(pairs).decode())


def unescape(value: bytes) -> bytes:
    """What stands between the double quotes of an array's or an hstore's text."""
    return _ESCAPED.sub(rb"\1", value) if b"\\" in value else value


_SETTINGS = "Set the session up with cdc.encoding.values.SESSION_SETTINGS."
_AMOUNT = re.compile(rb"-?\d+\.\d\d").fullmatch
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_QUOTED = rb'"((?:[^"\\]|\\.)*)"'
_PAIR = re.compile(_QUOTED + rb"=>(?:" + _QUOTED + rb"|NULL)", re.DOTALL)
