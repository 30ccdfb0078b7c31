"""Encodes values from Postgres's text output to JSON, for the stream and for snapshots.

A row must have the same bytes in a snapshot and in the stream, so no other code may convert a value to JSON.
docs/reference/types.md defines the JSON forms. The tests run its tables against real servers.
"""

from __future__ import annotations

from cdc.encoding.values.builtin import built_in
from cdc.encoding.values.catalog import load_types
from cdc.encoding.values.encoders import encoder_for
from cdc.encoding.values.scalars import BOOLEAN, FLOATING, IDENTITY, QUOTE, TEXT
from cdc.encoding.values.times import DATE, TIMESTAMP
from cdc.encoding.values.types import MALFORMED, MALFORMED_ROW, Encode, Kind, TypeInfo

__all__ = [
    "BOOLEAN",
    "DATE",
    "FLOATING",
    "IDENTITY",
    "MALFORMED",
    "MALFORMED_ROW",
    "QUOTE",
    "TEXT",
    "TIMESTAMP",
    "Encode",
    "Kind",
    "TypeInfo",
    "built_in",
    "encoder_for",
    "load_types",
]
