"""The one encoder from Postgres's text output to JSON, for the stream and for the copies alike.

A row that is copied and the same row streamed must give the same bytes, so nothing else may turn a value into
JSON. The forms are fixed by docs/reference/types.md, whose table the tests run against real servers.
"""

from __future__ import annotations

from cdc.encoding.values.builtin import built_in
from cdc.encoding.values.catalog import load_types
from cdc.encoding.values.encoders import encoder_for
from cdc.encoding.values.scalars import BOOLEAN, FLOATING, IDENTITY, QUOTE, TEXT
from cdc.encoding.values.times import DATE, TIMESTAMP
from cdc.encoding.values.types import Encode, Kind, TypeInfo

__all__ = [
    "BOOLEAN",
    "DATE",
    "FLOATING",
    "IDENTITY",
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
