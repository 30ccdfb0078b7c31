"""Row ids from record keys. All stores use the same id for a row. Pure: no I/O."""

from __future__ import annotations

import msgspec

from cdc import names

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_QUOTE = ord('"')


def row_id_of(key: bytes) -> str:
    """Return the row id of a record's key, a JSON object of the key columns.

    A JSON string contributes its text, every other value its JSON spelling.
    """
    return names.row_id([_text(bytes(value)) for value in _decode_members(key).values()])


def _text(value: bytes) -> str:
    return _decode_text(value) if value[0] == _QUOTE else value.decode()
