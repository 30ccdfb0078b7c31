"""The encoder of arrays: converts Postgres's array text to a JSON array with the same number of dimensions.

An array whose subscripts do not start at 1 becomes a JSON string with Postgres's whole text (`[0:1]={1,2}`), since a
JSON array cannot contain its lower bound.
"""

from __future__ import annotations

import re

import orjson

from cdc.encoding.values.scalars import IDENTITY, text, unescape
from cdc.encoding.values.types import Encode
from cdc.errors import ProtocolError

_OPEN, _BOUNDS, _QUOTE = b'{["'
_BRACKETS = bytes.maketrans(b"{}", b"[]")


def array(element: Encode, delimiter: str) -> Encode:
    """Return the encoder of arrays whose elements have this encoder and delimiter."""
    separator = delimiter.encode()
    escaped = re.escape(separator)
    token = re.compile(rb'"(?:[^"\\]|\\.)*"|[^{}"' + escaped + rb"]+|[{}]|" + escaped, re.DOTALL)
    structure = {b"{": b"[", b"}": b"]", separator: b",", b"NULL": b"null"}

    def translate(match: re.Match[bytes]) -> bytes:
        found = match[0]
        if found[0] == _QUOTE:
            return element(unescape(found[1:-1]))
        return structure.get(found) or element(found)

    def encode(value: bytes) -> bytes:
        if value[0] != _OPEN:
            return _with_bounds(value)
        if b'"' in value or value.find(b"{", 1) != -1 or value == b"{}":
            return token.sub(translate, value)
        if element is text and b"NULL" not in value:
            return orjson.dumps(value[1:-1].decode().split(delimiter))
        items = value[1:-1].split(separator)
        return b"[%b]" % b",".join([b"null" if item == b"NULL" else element(item) for item in items])

    def encode_numbers(value: bytes) -> bytes:
        """Replace the brackets only, since numbers have no quotes. A quoted element is a pgvector list."""
        if value[0] == _OPEN and b'"' not in value:
            return value.translate(_BRACKETS).replace(b"NULL", b"null")
        return encode(value)

    return encode_numbers if element is IDENTITY and delimiter == "," else encode


def _with_bounds(value: bytes) -> bytes:
    if value[0] != _BOUNDS:
        raise ProtocolError("An array value does not start with a brace or a bracket.")
    return text(value)
