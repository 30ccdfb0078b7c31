"""Describes a Postgres type: the properties that determine its JSON form. Does no I/O and no encoding."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cdc.errors import ProtocolError

Encode = Callable[[bytes], bytes]
"""Converts Postgres text (never NULL) to a JSON fragment. Both are UTF-8."""

# The exceptions that encoders raise for text that is not valid for their type.
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
MALFORMED_ROW = (*MALFORMED, struct.error, ProtocolError)

Kind = Literal["base", "enum", "domain", "composite", "range", "multirange", "array", "pseudo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """One row of pg_type. `name` is a schema-qualified, quoted SQL name; types of pg_catalog have no schema in it."""

    oid: int
    name: str
    kind: Kind
    base: TypeInfo | None = None  # an array's element, a domain's base type
    base_typmod: int = -1  # the type modifier that a domain sets for its base type; a column of a domain type has none
    delimiter: str = ","  # between an array's elements
    extension: str | None = None
