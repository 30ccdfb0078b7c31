"""Encoders of single values other than dates and times: convert Postgres text to a JSON fragment.

The most used encoders are one expression each. Where possible, they are C functions without a Python frame. For text of
any length, `orjson.dumps(text.decode())` was measured to be faster than a search for characters to escape, and it also
checks that the text is valid UTF-8.
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
"""Encodes integers: the text is the JSON. A hot loop may test `encode is IDENTITY` and omit the call."""

QUOTE: Encode = b'"%b"'.__mod__
"""Encodes text that never needs an escape as a JSON string. A hot loop may put the quotes into its template."""

boolean: Encode = {b"t": b"true", b"f": b"false"}.__getitem__


def text(value: bytes, _dumps: Callable[[str], bytes] = orjson.dumps) -> bytes:
    return _dumps(value.decode())


TEXT: Encode = text
"""Encodes any text. A hot loop may inline it."""


def floating(value: bytes) -> bytes:
    """Encode a float as `100.0`, not `100`, so that a reader without a schema does not take it for an integer."""
    if _POINT in value or _EXPONENT in value:
        return value
    if value[-1] > 57:  # the last byte is a letter: NaN, Infinity or -Infinity, which JSON numbers do not have
        return QUOTE(value)
    return value + b".0"


BOOLEAN, FLOATING = boolean, floating
"""A hot loop may inline these too."""


def binary(value: bytes) -> bytes:
    if value[:2] != b"\\x":
        raise ProtocolError("A bytea value is not in hex format.", remedy=_SETTINGS)
    return b'"%b"' % b2a_base64(a2b_hex(value[2:]), newline=False)


def money(value: bytes) -> bytes:
    """Encode an amount such as `-$1,234.56`, which is the text form with lc_monetary=C."""
    amount = value.translate(None, b"$,")
    if _AMOUNT(amount) is None:
        raise ProtocolError("A money value is not in the format of the C locale.", remedy=_SETTINGS)
    return QUOTE(amount)


def bits(length: int) -> Encode:
    """Return the encoder of bit(n) with Debezium's form.

    One bit is a boolean. More bits are little-endian bytes in Base64, without zero bytes at the end.
    """
    if length == 1:
        return {b"1": b"true", b"0": b"false"}.__getitem__
    return _bit_bytes if length > 1 else QUOTE


def _bit_bytes(value: bytes) -> bytes:
    number = int(value, 2)
    size = (number.bit_length() + 7) // 8
    return b'"%b"' % b2a_base64(number.to_bytes(size, "little"), newline=False)


def point(value: bytes) -> bytes:
    """Encode a point as Debezium's struct: the coordinates, and the point as well-known binary."""
    x, _, y = value[1:-1].partition(b",")
    wkb = b2a_base64(struct.pack("<BIdd", 1, 1, float(x), float(y)), newline=False)
    return b'{"x":%b,"y":%b,"wkb":"%b","srid":null}' % (floating(x), floating(y), wkb)


def hstore(value: bytes) -> bytes:
    """Encode an hstore as a string that contains a JSON object, as Debezium does with hstore.handling.mode=json."""
    pairs: dict[str, str | None] = {}
    for match in _PAIR.finditer(value):
        key, held = match.groups()
        pairs[unescape(key).decode()] = None if held is None else unescape(held).decode()
    return orjson.dumps(orjson.dumps(pairs).decode())


def unescape(value: bytes) -> bytes:
    """Return the value of a quoted element of an array or an hstore, without backslashes. Takes it without quotes."""
    return _ESCAPED.sub(rb"\1", value) if b"\\" in value else value


_SETTINGS = "The session must have the parameters of cdc.postgres.connection.SESSION_SETTINGS."
_AMOUNT = re.compile(rb"-?\d+\.\d\d").fullmatch
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_QUOTED = rb'"((?:[^"\\]|\\.)*)"'
_PAIR = re.compile(_QUOTED + rb"=>(?:" + _QUOTED + rb"|NULL)", re.DOTALL)
